"""MOCHA: a linear support vector machine for each client, and how the clients are related, learnt together."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, whole_number
from evenhand.personalization._dual_ascent import Examples, ascent, padded, related, weights_of
from evenhand.types import Array

__all__ = ["Mocha", "mocha"]

NDArray = npt.NDArray[Any]


class Mocha(NamedTuple):
    """What :func:`mocha` finds.

    Attributes:
      weights: the clients' models :math:`w_k`, ``(K, d)``.
      relations: :math:`\\Sigma = \\Omega^{-1}`, ``(K, K)``.
      primal, dual: the two objectives after each inner round; their difference bounds the error for that
        :math:`\\Omega`.
    """

    weights: NDArray
    relations: NDArray
    primal: NDArray
    dual: NDArray

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
) -> Mocha:
    r"""MOCHA: dual coordinate ascent at the clients, in turns with the matrix of their relations at the server.

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
      seed: of the examples drawn, with replacement.

    Raises:
      EvenhandError: other labels, or a number out of range.

    Edge cases: all clients take part in every round; the eigenvalues of :math:`A` are at least 1e-7.

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
    for name, value, least in (("outer", outer, 0), ("inner", inner, 1), ("seed", seed, 0)):
        whole_number(name, value, least)
    if not 0.0 < lam < float("inf") or not 0.0 < share < float("inf"):
        raise EvenhandError(f"mocha(lam={lam}, share={share}): give two finite numbers above 0.")
    if train.y.ndim != 1 or not set(np.unique(train.y)) <= {0, 1}:
        raise EvenhandError("mocha() is for two classes: give one label per example, 0 or 1.")
    rows, clients = padded(train), len(train.offsets) - 1
    steps = max(1, int(share * int(np.diff(train.offsets).max())))
    relations = jnp.eye(clients, dtype=jnp.float32) / clients
    alphas, found = jnp.zeros(rows.y.shape, jnp.float32), list[Array]()
    for turn in range(outer + 1):
        if turn:
            relations = related(weights_of(rows, alphas, relations, lam))
        key = jax.random.fold_in(jax.random.key(seed), turn)
        alphas, objectives = ascent(rows, alphas, relations, key, lam, share, steps, inner)
        found.append(objectives)
    primal, dual = np.concatenate([np.asarray(each) for each in found]).T
    return Mocha(np.asarray(weights_of(rows, alphas, relations, lam)), np.asarray(relations), primal, dual)
