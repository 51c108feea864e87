"""MOCHA as a method, which runs, studies and the command line take like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.personalization._dual_ascent import Linear, by_client, linear_form, related
from evenhand.rounds import PerExample
from evenhand.sampling import uniform
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Effort,
    Info,
    Key,
    Model,
    Params,
    Phase,
    Report,
    Sampling,
)

__all__ = ["mocha"]


class _Server(NamedTuple):
    """Rows ``b_k`` of :math:`B`, ``(N, d, classes)``, the relations, the rounds done, and all models ``w_k``."""

    sums: Array
    relations: Array
    number: Array
    weights: Array


class _Message(NamedTuple):
    """A client's position and model, its :math:`\\Sigma_{kk}`, and :math:`\\rho`."""

    position: Array
    weights: Array
    own: Array
    rho: Array


class _Client(NamedTuple):
    """A client's dual variables ``(examples, classes)``, and its position, -1 until it has trained."""

    alphas: Array
    position: Array


def mocha(
    model: Model,
    *,
    lam: float = 0.01,
    inner: int = 5,
    share: float = 0.5,
    sampling: Sampling = uniform(weighted=False),
    keep_partial: bool = True,
) -> Algorithm:
    r"""MOCHA: multi-task learning of one support vector machine per client, and of how the clients are related.

    .. math::
        \min_{W, \Omega} \sum_k \frac1{n_k} \sum_i \max(0, 1 - y_{ki} x_{ki}^\top w_k)
        + \frac\lambda2 \mathrm{tr}(W \Omega W^\top)

    with the updates of :func:`evenhand.personalization.mocha`, which solves the problem for all clients at once: in a
    round, each client of the cohort takes steps on its dual variables and sends what changed in :math:`b_k`; the server
    adds these up, sets :math:`W = \frac1\lambda B \Sigma`, and learns :math:`\Sigma = \Omega^{-1}` every ``inner``
    rounds.

    Args:
      model: a linear one, such as ``softmax_regression`` or ``svm``: its outputs are the scores of the classes, and
        its metrics are reported; its loss is not what is trained.
      lam: :math:`\lambda > 0`.
      inner: rounds between two updates of how clients are related, which begins at :math:`I / N`.
      share: steps of a client in a round, as a share of its examples, rounded down; at least one step.
      sampling: how cohorts are drawn; weights have no effect.
      keep_partial: aggregate the steps that stragglers complete; False: drop stragglers.

    Raises:
      EvenhandError: a model that is not linear, labels that are no classes, or a number out of range.

    Edge cases: with more than two classes, a machine for each class against all others, which share one
    :math:`\Sigma`.  The intercept, where the model has one, counts as a weight of a feature that is 1.  Models begin at
    0, whatever the model's initial parameters.  The global model, for clients that never trained, is the mean of all
    :math:`w_k`.  A client keeps a number for each of its examples and classes.

    Differs from the paper in that cohorts may be smaller than all clients; the others keep their dual variables.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=5)
      >>> method = mocha(eh.models.softmax_regression(features=64, classes=10))
      >>> run = eh.simulate(method, data, rounds=5)
      >>> bool(run.summary()["mean"] > 0.8)
      True

    Source: Smith et al., *Federated Multi-Task Learning*, NeurIPS 2017; as in Li et al., *Ditto*, ICML 2021, table 7.
    """
    inner = whole_number("inner", inner, 1)
    if not 0.0 < real_number(lam) < float("inf") or not 0.0 < real_number(share) < float("inf"):
        raise EvenhandError(f"mocha(lam={lam}, share={share}): give two finite numbers above 0.")
    linear, count = linear_form(model), _steps(share)

    def init(params: Params, clients: int) -> _Server:
        sums = jnp.zeros((clients, *linear.shape), jnp.float32)
        return _Server(sums, jnp.eye(clients, dtype=jnp.float32) / clients, jnp.int32(0), sums)

    def server(state: _Server, direction: Array, reported: Array, key: Key) -> tuple[_Server, Info]:
        sums, number = state.sums + direction, state.number + 1

        def weights(relations: Array) -> Array:
            return jnp.tensordot(relations, sums, axes=1) * (1.0 / lam)

        def learnt(relations: Array) -> Array:
            return related(weights(relations).reshape(sums.shape[0], -1))

        relations = lax.cond(number % inner == 0, learnt, lambda same: same, state.relations)
        return _Server(sums, relations, number, weights(relations)), {"update_norm": tree.norm(direction)}

    def personal(state: _Server, client: _Client) -> Params:
        own = state.weights[jnp.maximum(client.position, 0)]
        return linear.params(jnp.where(client.position < 0, jnp.mean(state.weights, axis=0), own))

    def newcomer(params: Params, examples: int) -> _Client:
        return _Client(jnp.zeros((examples, linear.shape[1]), jnp.float32), jnp.int32(-1))

    phase = Phase(
        broadcast=_broadcast,
        report=lambda message, state, data: Report(sampling.weight(data.size), jnp.float32(jnp.nan)),
        work=_ascent(linear, lam, count),
        aggregator=by_client(),
        server=server,
        effort=lambda data: Effort(count(data), count(data)),
    )
    return Algorithm(
        model=model,
        init=init,
        phases=(phase,),
        global_params=lambda state: linear.params(jnp.mean(state.weights, axis=0)),
        sampling=sampling,
        init_client=PerExample(newcomer),
        personal_params=personal,
        partial_work=truth_value("keep_partial", keep_partial),
        received=lambda message: linear.params(message.weights),
        name=f"mocha(lam={lam:g})",
    )


def _broadcast(state: _Server, client: Array) -> _Message:
    own = jnp.diagonal(state.relations)
    rho = jnp.max(jnp.sum(jnp.abs(state.relations), axis=1) / own)
    return _Message(client, state.weights[client], own[client], rho)


def _steps(share: float) -> Callable[[ClientData], Array]:
    """How many steps a client takes in a round, or a straggler of them; none in an empty slot."""

    def count(data: ClientData) -> Array:
        whole = jnp.maximum(1, (share * data.size.astype(jnp.float32)).astype(jnp.int32))
        done = 1 + jnp.floor(data.progress * whole.astype(jnp.float32)).astype(jnp.int32)
        steps = jnp.where(data.progress < 1, jnp.minimum(done, whole), whole)
        return jnp.where(data.size > 0, steps, 0)

    return count


_Work: TypeAlias = Callable[[_Message, _Client, ClientData, Key], tuple[Array, _Client]]


def _ascent(linear: Linear, lam: float, count: Callable[[ClientData], Array]) -> _Work:
    """The local work: steps on the dual variables of examples that are drawn with replacement."""

    def work(message: _Message, state: _Client, data: ClientData, key: Key) -> tuple[Array, _Client]:
        scale = lam * data.size.astype(jnp.float32) / message.own

        def step(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            alphas, change = carry
            i = jax.random.randint(jax.random.fold_in(key, t), (), 0, jnp.maximum(data.size, 1))
            x, y = (lax.dynamic_slice_in_dim(part, data.start + i, 1) for part in (data.x, data.y))
            features, signs = linear.features(x), linear.signs(y)
            slack = 1.0 - signs * (features @ (message.weights + message.rho * change))
            room = scale * slack / (message.rho * jnp.maximum(features @ features, 1e-30))
            new = signs * jnp.clip(room + signs * alphas[i], 0.0, 1.0)
            moved = (new - alphas[i]) / scale
            return alphas.at[i].set(new), change + features[:, None] * moved[None]

        begin = (state.alphas, jnp.zeros_like(message.weights))
        alphas, change = lax.fori_loop(0, count(data), step, begin)
        # b_k, of which Sigma and lambda make the weights
        return change * (lam / message.own), _Client(alphas, message.position)

    return work
