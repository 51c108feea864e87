"""Per-FedAvg: a global model from which one step of a client's own does well."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.sampling import uniform
from evenhand.streams import Purpose, stream
from evenhand.types import Aggregator, Algorithm, ClientData, Key, Params, PyTree, Sampling

__all__ = ["per_fedavg"]


def per_fedavg(
    work: local.Work,
    *,
    alpha: float,
    first_order: bool = False,
    delta: float = 1e-3,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""Per-FedAvg: model-agnostic meta-learning over clients, first-order or Hessian-free.

    .. math:: \min_w \sum_k p_k F_k\big(w - \alpha \nabla F_k(w)\big)

    In each local step, with three independent batches,

    .. math::
        \tilde w = w - \alpha \nabla F_k(w; b_1), \quad g = \nabla F_k(\tilde w; b_2), \quad
        d = \frac{\nabla F_k(w + \delta g; b_3) - \nabla F_k(w - \delta g; b_3)}{2 \delta}, \quad
        w \leftarrow w - \beta (g - \alpha d),

    where ``d`` stands for the product of the Hessian with ``g``.

    Args:
      work: the batches and the outer steps, of size :math:`\beta`, made by :func:`evenhand.local.sgd`.
      alpha: :math:`\alpha \ge 0`, the size of the inner step.
      first_order: leave ``d`` out, as in first-order MAML.
      delta: :math:`\delta > 0`, of the finite difference.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`.

    Raises:
      EvenhandError: a number out of range, or work that is not mini-batch descent.

    Edge cases: ``alpha=0`` is FedAvg on the second batches.  Clients are served the global model itself; to have them
    take their step first, put :func:`evenhand.personalization.finetune` around this, with step size :math:`\alpha`.

    Differs from the paper in nothing but the names.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = per_fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10), alpha=0.05)
      >>> method = eh.personalization.finetune(method, eh.local.sgd(model, 0.05, epochs=1, batch_size=10))
      >>> run = eh.simulate(method, data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Fallah, Mokhtari and Ozdaglar, *Personalized Federated Learning with Theoretical Guarantees*, NeurIPS 2020,
    algorithm 1 and section 4.3.
    """
    first_order = truth_value("first_order", first_order)
    if not 0.0 <= real_number(alpha) < float("inf") or not 0.0 < real_number(delta) < float("inf"):
        raise EvenhandError(
            f"per_fedavg(alpha={alpha}, delta={delta}): give finite numbers, alpha >= 0 and delta > 0."
        )
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    schedule, estimate, client_opt = local.parts_of(work, "per_fedavg")
    (phase,) = method.phases

    def train(message: PyTree, client_state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        second, third = (schedule.draw(data, stream(key, Purpose.PERSONAL, 0, number)) for number in (1, 2))

        # The number of steps done, the model, and its optimiser.
        def step(carry: PyTree, batch: local.Batch, key: Key) -> PyTree:
            number, w, state = carry
            keys = jax.random.split(key, 3)
            inner = tree.subtract(w, tree.scale(alpha, estimate(w, batch, keys[0])))
            gradient = estimate(inner, second(number), keys[1])
            if not first_order:
                nudge, batch = tree.scale(delta, gradient), third(number)
                ahead = estimate(tree.add(w, nudge), batch, keys[2])
                behind = estimate(tree.subtract(w, nudge), batch, keys[2])
                curved = tree.scale(alpha / (2.0 * delta), tree.subtract(ahead, behind))
                gradient = tree.subtract(gradient, curved)
            update, state = optimiser.update(gradient, state, w)
            return number + 1, optax.apply_updates(w, update), state

        params, optimiser = method.received(message), client_opt(data)
        begin = (jnp.int32(0), params, optimiser.init(params))
        _, w, _ = local.over_batches(schedule, step, begin, data, key)
        return tree.subtract(w, params), client_state

    effort = local.with_gradients(schedule.effort, 2 if first_order else 4)
    return method._replace(
        phases=(phase._replace(work=train, effort=effort),),
        name=f"per_fedavg(alpha={alpha:g}{', first_order=True' if first_order else ''})",
    )
