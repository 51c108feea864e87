"""APFL: each client is served a mixture of its own model and the global one."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, real_number
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Key, Params, PyTree, Sampling

__all__ = ["apfl"]


class _Own(NamedTuple):
    """What a client keeps: its model, and its share of the mixture."""

    params: Params
    alpha: Array


def apfl(
    work: local.Work,
    *,
    alpha: float = 0.5,
    alpha_step: float = 0.0,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""APFL: FedAvg, while each client trains a local model for a mixture with the global model.

    On each batch ``b``, the same for both models, from the received ``w`` and the :math:`v_k` that the client kept,

    .. math::
        w &\leftarrow w - \eta \nabla F_k(w; b), \qquad
        v_k \leftarrow v_k - \eta \alpha_k \nabla F_k(\bar v_k; b), \qquad \bar v_k = \alpha_k v_k + (1 - \alpha_k) w \\
        \alpha_k &\leftarrow \mathrm{clip}_{[0, 1]} \big( \alpha_k - \eta_\alpha \langle v_k - w, \nabla F_k(\bar v_k;
        b) \rangle \big),

    with everything on the right as before the step.  A client is served :math:`\alpha_k v_k + (1 - \alpha_k) w^t`.

    Args:
      work: local work of both models, made by :func:`evenhand.local.sgd`, with step size :math:`\eta`.
      alpha: :math:`\alpha_k` at first, in [0, 1].
      alpha_step: :math:`\eta_\alpha \ge 0`; 0: the mixture is fixed.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`.

    Raises:
      EvenhandError: a number out of range, or work that is not mini-batch descent.

    Edge cases: ``alpha=1`` trains and serves separate models; ``alpha=0`` serves the global one, as does a client that
    was never drawn.  The global model is that of FedAvg.

    Differs from the code of Ditto's authors, where the first gradient of a round is taken at the mixture of the
    client's previous round; and from the paper's code, which adapts :math:`\alpha` once a round.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(apfl(work, alpha=0.25), data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Deng, Kamani and Mahdavi, *Adaptive Personalized Federated Learning*, 2020, algorithm 1 and equation 11.
    """
    if not 0.0 <= real_number(alpha) <= 1.0 or not 0.0 <= real_number(alpha_step) < float("inf"):
        raise EvenhandError(
            f"apfl(alpha={alpha}, alpha_step={alpha_step}): give a share in [0, 1], and a finite step >= 0."
        )
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    schedule, estimate, client_opt = local.parts_of(work, "apfl")
    (phase,) = method.phases

    # Both models during local work, and their optimisers.
    def step(optimiser: optax.GradientTransformation, carry: PyTree, batch: local.Batch, key: Key) -> PyTree:
        w, (v, share), (w_state, v_state) = carry
        slope = estimate(tree.mix(share, v, w), batch, key)
        w_update, w_state = optimiser.update(estimate(w, batch, key), w_state, w)
        v_update, v_state = optimiser.update(tree.scale(share, slope), v_state, v)
        along = jax.tree.map(lambda v, w, g: jnp.sum((v - w) * g), v, w, slope)
        moved = jnp.clip(share - alpha_step * sum(jax.tree.leaves(along), jnp.float32(0.0)), 0.0, 1.0)
        own = _Own(optax.apply_updates(v, v_update), moved)
        return optax.apply_updates(w, w_update), own, (w_state, v_state)

    def train(message: PyTree, own: _Own, data: ClientData, key: Key) -> tuple[Params, _Own]:
        params, optimiser = method.received(message), client_opt(data)
        begin = (params, own, (optimiser.init(params), optimiser.init(own.params)))
        shared, own, _ = local.over_batches(schedule, partial(step, optimiser), begin, data, key)
        return tree.subtract(shared, params), own

    return method._replace(
        phases=(phase._replace(work=train, effort=local.with_gradients(schedule.effort, 2)),),
        init_client=lambda params: _Own(params, jnp.float32(alpha)),
        personal_params=lambda server, own: tree.mix(own.alpha, own.params, method.global_params(server)),
        name=f"apfl(alpha={alpha:g})",
    )
