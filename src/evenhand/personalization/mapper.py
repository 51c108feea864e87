"""Mapper: each client chooses how much of its own model goes into the mixture with the global one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, expect, real_number
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Effort, Key, Params, PyTree, Sampling

__all__ = ["mapper"]


class _Own(NamedTuple):
    """What a client keeps: its model, and its share of the mixture."""

    params: Params
    gamma: Array


def mapper(
    work: local.Work,
    *,
    gammas: tuple[float, ...] = (0.25, 0.5, 0.75),
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""Mapper: each client mixes a local model with the global one, in the best of a few proportions.

    .. math:: \min_{w, v_k, \gamma_k} \sum_k p_k F_k\big(\gamma_k v_k + (1 - \gamma_k) w\big)

    In each round, for each candidate :math:`\gamma`, from the :math:`v_k` that the client kept,

    .. math:: v \leftarrow v - \eta \gamma \nabla F_k\big(\gamma v + (1 - \gamma) w^t; b\big)

    for each batch ``b``; the client keeps the candidate with the lowest loss on all of its training examples, and takes
    *one* step on the global model, :math:`w_k = w^t - \eta (1 - \gamma_k) \nabla F_k(\gamma_k v_k + (1 - \gamma_k) w^t;
    b)`, on the last batch, whose difference from :math:`w^t` it uploads.

    Args:
      work: local work on :math:`v`, made by :func:`evenhand.local.sgd`, with step size :math:`\eta`.
      gammas: the candidates, each in [0, 1]; ties go to the first.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`.

    Raises:
      EvenhandError: a candidate out of range, or work that is not mini-batch descent.

    Edge cases: :math:`\gamma_k = 0`, the global model, until a client is first drawn.  ``gammas=(1.0,)`` trains
    separate models; ``gammas=(0.0,)`` is FedAvg with one local step.  A candidate with a loss that is NaN is not kept.

    Differs from the code of Ditto's authors, where only the last client's upload reaches the server and the loss is
    that before the last step.  They finetune the mixtures afterwards: put
    :func:`evenhand.personalization.finetune` around this.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(mapper(work), data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Mansour et al., *Three Approaches for Personalization with Applications to Federated Learning*, 2020,
    algorithm 3, in the form of Li et al., *Ditto*, ICML 2021.
    """
    expect("gammas", gammas, list | tuple, "(0.1, 0.5)")
    if not gammas or not all(0.0 <= real_number(gamma) <= 1.0 for gamma in gammas):
        raise EvenhandError(f"mapper(gammas={gammas}): give at least one number, each in [0, 1].")
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    schedule, estimate, client_opt = local.parts_of(work, "mapper")
    (phase,) = method.phases

    def train(message: PyTree, own: _Own, data: ClientData, key: Key) -> tuple[Params, _Own]:
        fixed, candidates = method.received(message), jnp.asarray(gammas, jnp.float32)

        def candidate(gamma: Array) -> tuple[Params, Array]:
            def slope(params: Params, batch: local.Batch, key: Key) -> Params:
                return tree.scale(gamma, estimate(tree.mix(gamma, params, fixed), batch, key))

            params, _ = local.descent(schedule, slope, client_opt)(own.params, data, key, optax.identity())
            loss = local.full_loss(work.model, tree.mix(gamma, params, fixed), data)
            return params, jnp.where(jnp.isnan(loss), jnp.inf, loss)

        models, losses = jax.lax.map(candidate, candidates)
        best = jnp.argmin(losses)
        kept = _Own(tree.take(models, best), candidates[best])
        last = schedule.effort(data).steps - 1
        batch = schedule.draw(data, key)(jnp.maximum(last, 0))
        mixed = tree.mix(kept.gamma, kept.params, fixed)
        gradient = tree.scale(1.0 - kept.gamma, estimate(mixed, batch, jax.random.fold_in(key, last + 1)))
        optimiser = client_opt(data)
        return optimiser.update(gradient, optimiser.init(fixed), fixed)[0], kept

    def effort(data: ClientData) -> Effort:
        candidate = work.effort(data)
        # How many examples the last batch has depends on no key.
        last = schedule.draw(data, jax.random.key(0))(jnp.maximum(candidate.steps - 1, 0))
        rows = data.size if last.inside is None else jnp.sum(last.inside.astype(jnp.int32))
        step = Effort((data.size > 0).astype(jnp.int32), rows)
        return jax.tree.map(lambda count, more: len(gammas) * count + more, candidate, step)

    return method._replace(
        phases=(phase._replace(work=train, effort=effort),),
        init_client=lambda params: _Own(params, jnp.float32(0.0)),
        personal_params=lambda server, own: tree.mix(own.gamma, own.params, method.global_params(server)),
        name="mapper",
    )
