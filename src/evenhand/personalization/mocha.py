"""MOCHA: a linear support vector machine for each client, and how the clients are related, learnt together."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand._platform import check_process
from evenhand.errors import EvenhandError, EvenhandWarning, expect, real_number, whole_number
from evenhand.personalization._dual_ascent import Ascent, Send, ascent, padded, related, weights_of
from evenhand.rounds import accepts_delta, colluding, false_delta, malicious_clients, poisoned
from evenhand.streams import keys_of, root_key
from evenhand.types import Array, Attack, Cohort, Key, Model, Upload

__all__ = ["Mocha", "mocha"]

NDArray = npt.NDArray[Any]


class Examples(Protocol):
    """The examples of all clients, such as a split of a data set: client ``k`` has rows ``offsets[k]`` to the next."""

    @property
    def x(self) -> NDArray:
        """Features, ``(rows, ...)``."""
        ...

    @property
    def y(self) -> NDArray:
        """Labels 0 and 1, ``(rows,)``."""
        ...

    @property
    def offsets(self) -> NDArray:
        """``(K + 1,)``."""
        ...


class Mocha(NamedTuple):
    """What :func:`mocha` finds.

    Attributes:
      weights: the clients' models :math:`w_k`, ``(K, d)``.
      relations: :math:`\\Sigma = \\Omega^{-1}`, ``(K, K)``.
      primal, dual: the objectives of the models and of the dual variables after each inner round; their difference
        bounds the error for that :math:`\\Omega`.
      malicious: which clients are, bool ``(K,)``.
      rejected: in each inner round, the uploads that were not finite.
    """

    weights: NDArray
    relations: NDArray
    primal: NDArray
    dual: NDArray
    malicious: NDArray
    rejected: NDArray

    def accuracy(self, split: Examples) -> NDArray:
        """The share of its examples that each client's model gets right, ``(K,)``; a score of 0 is wrong."""
        sizes = np.diff(split.offsets)
        own = np.repeat(self.weights, sizes, axis=0)
        scores = np.sum(split.x.reshape(own.shape) * own, axis=1)
        right = (scores * np.where(split.y.reshape(-1) == 1, 1.0, -1.0) > 0).astype(np.float64)
        totals = np.add.reduceat(np.append(right, 0.0), split.offsets[:-1])
        return np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)


def mocha(
    train: Examples,
    *,
    lam: float,
    outer: int = 10,
    inner: int = 100,
    share: float = 0.5,
    seed: int = 0,
    attack: Attack | None = None,
) -> Mocha:
    r"""MOCHA: dual coordinate ascent at the clients, alternating with the relation matrix at the server.

    .. math::
        \min_{W, \Omega} \sum_k \frac1{n_k} \sum_i \max(0, 1 - y_{ki} x_{ki}^\top w_k)
        + \frac\lambda2 \mathrm{tr}(W \Omega W^\top)

    With :math:`\Sigma = \Omega^{-1}`, clients draw examples and take steps on their dual variables,

    .. math::
        \alpha_i \leftarrow y_i \, \mathrm{clip}_{[0, 1]} \Big( \frac{\lambda n_k (1 - y_i x_i^\top (w_k + \rho
        \delta w_k))}{\rho \Sigma_{kk} \|x_i\|^2} + y_i \alpha_i \Big), \qquad
        b_k = \frac1{n_k} \sum_i \alpha_i x_i, \qquad W = \frac1\lambda B \Sigma,

    and send what changed in :math:`b_k`; after ``inner`` such rounds, :math:`\Sigma = A^{1/2} / \mathrm{tr}(A^{1/2})`
    with :math:`A = W^\top W`, and :math:`\rho = \max_k \sum_j |\Sigma_{kj}| / \Sigma_{kk}`.

    Args:
      train: such as ``data.train``; labels 0 and 1 stand for -1 and 1; there is no intercept, so give a column of ones.
      lam: :math:`\lambda > 0`.
      outer: how often :math:`\Sigma` is learnt, after the first ``inner`` rounds with :math:`\Sigma = I / K`; 0: never.
      inner: rounds of communication between.
      share: steps of a client in a round, as a share of its examples, rounded down; at least one step.
      seed: of the examples drawn, with replacement, and of the attack.
      attack: what malicious clients do, as in :func:`evenhand.simulate`, to their examples before the first round, and
        to the change of :math:`b_k` that they send.

    Raises:
      EvenhandError: other labels, a client without examples, a number out of range, or an attack of another kind.

    Edge cases: all clients take part in every round; the eigenvalues of :math:`A` are at least 1e-7.  Under attack
    ``B`` is what the server has added up; an upload that is not finite is rejected, and that client's round undone.

    Differs from the authors' code: :math:`W` is computed anew from the dual variables after each :math:`\Sigma`, which
    their code forgets, so that the dual objective there is not that of its models.

    Example:
      >>> import evenhand as eh, numpy as np
      >>> rng = np.random.default_rng(0)
      >>> x = rng.normal(size=(200, 3))
      >>> client = np.repeat(np.arange(4), 50)
      >>> y = (x[:, 0] + np.where(client < 2, 1, -1) * x[:, 1] > 0).astype(int)  # two kinds of clients
      >>> data = eh.data.from_arrays(x, y, client)
      >>> found = mocha(data.train, lam=0.01, outer=2, inner=20)
      >>> bool(found.accuracy(data.test).mean() > 0.8)
      True
      >>> bool(found.relations[0, 1] > found.relations[0, 2])
      True

    Source: Smith et al., *Federated Multi-Task Learning*, NeurIPS 2017; as in Li et al., *Ditto*, ICML 2021, table 7.
    """
    check_process()
    _check_examples(train)
    for name, value, least in (("outer", outer, 0), ("inner", inner, 1), ("seed", seed, 0)):
        whole_number(name, value, least)
    if not 0.0 < real_number(lam) < float("inf") or not 0.0 < real_number(share) < float("inf"):
        raise EvenhandError(f"mocha(lam={lam}, share={share}): give two finite numbers above 0.")
    sizes = np.diff(train.offsets)
    if not sizes.all():
        raise EvenhandError(
            f"mocha(): client {int(np.argmin(sizes))} has no examples: leave such clients out."
        )
    expect("attack", attack, Attack | None, "eh.attacks.model_replacement(0.2, boost=10.0)")
    if attack is not None and (attack.fresh is not None or attack.report is not None):
        raise EvenhandError(
            "mocha(attack=): its clients have the same examples in every round and report nothing: give an attack "
            "that does not poison them anew or make false reports."
        )
    malicious = malicious_clients(attack, len(sizes), seed)
    x, y = _examples(train, attack, malicious, seed)
    if y.ndim != 1 or not set(np.unique(y)) <= {0, 1}:
        raise EvenhandError("mocha() is for two classes: give one label per example, 0 or 1.")
    rows, send = padded(x, y, train.offsets), _sending(attack, malicious, seed)
    steps = max(1, int(share * int(sizes.max())))
    relations = jnp.eye(len(sizes), dtype=jnp.float32) / len(sizes)
    # Before the first round, all models are 0.
    now = Ascent(jnp.zeros_like(rows.y), jnp.zeros_like(rows.x[:, 0]), jnp.int32(0))
    objectives, rejected = list[NDArray](), list[NDArray]()
    for turn in range(outer + 1):
        if turn:
            relations = related(weights_of(rows, now, relations, lam))
        key = jax.random.fold_in(root_key(seed), turn)
        now, seen = ascent(rows, now, relations, key, lam, share, steps, inner, send)
        objectives.append(np.asarray(seen[0]))
        rejected.append(np.asarray(seen[1]))
    primal, dual = np.concatenate(objectives).T
    weights = np.asarray(weights_of(rows, now, relations, lam))
    if not np.isfinite(weights).all():
        warnings.warn(
            "mocha(): the models are not finite: give a larger lam, smaller features, or a milder attack.",
            EvenhandWarning,
            stacklevel=2,
        )
    return Mocha(
        weights=weights,
        relations=np.asarray(relations),
        primal=primal,
        dual=dual,
        malicious=malicious,
        rejected=np.concatenate(rejected),
    )


def _check_examples(train: object) -> None:
    """Names the method of runs to whoever gives the solver a model."""
    if isinstance(train, Model):
        raise EvenhandError(
            "eh.personalization.mocha() solves the problem for all clients at once: give it their examples, such as "
            "data.train. The method of runs is eh.personalization.methods.mocha(model)."
        )


# --- malicious clients -------------------------------------------------------------------------------------------


def _examples(
    train: Examples, attack: Attack | None, malicious: NDArray, seed: int
) -> tuple[NDArray, NDArray]:
    """Features and labels, those of malicious clients as they have poisoned them."""
    x, y = train.x, train.y
    if attack is None or attack.rows is None:
        return x, y
    x, y = x.copy(), y.copy()
    for k in np.flatnonzero(malicious):
        window = slice(train.offsets[k], train.offsets[k + 1])
        x[window], y[window] = poisoned(attack.rows, x[window], y[window], seed, int(k))
    return x, y


def _sending(attack: Attack | None, malicious: NDArray, seed: int) -> Send | None:
    """What the clients send instead of what changed, and which of it is accepted; None: just that."""
    if attack is None:
        return None
    if attack.reply is not None:
        raise EvenhandError(
            "mocha(attack=): its clients receive no model that false uploads could depend on: give another attack, "
            "such as eh.attacks.gaussian(0.2)."
        )
    keys, is_malicious = keys_of(seed), jnp.asarray(malicious)
    accepts = jax.vmap(accepts_delta)

    def send(change: Array, number: Array, own: Key) -> tuple[Array, Array]:
        sent = jax.vmap(lambda delta, bad, key: false_delta(attack, delta, bad, number, key))(
            change, is_malicious, own
        )
        accepted = accepts(sent)
        if attack.collude is not None:
            ones = jnp.ones(is_malicious.shape, jnp.float32)
            uploads = tree.among(accepted, Upload(sent, ones, ones))
            cohort = Cohort.of(jnp.arange(len(malicious)), accepted)
            sent = colluding(attack, uploads, is_malicious, cohort, keys, number, 0).delta
            accepted &= accepts(sent)
        return sent, accepted

    return send
