"""pFedMe: the global model is trained on the Moreau envelopes of the clients' losses."""

from __future__ import annotations

from functools import partial

import optax
from jax import lax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Key, Params, PyTree, Sampling

__all__ = ["pfedme"]


def pfedme(
    work: local.Work,
    *,
    lam: float,
    inner_step: float,
    inner_steps: int = 5,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(weighted=False),
    keep_partial: bool = False,
) -> Algorithm:
    r"""pFedMe: clients minimise the Moreau envelope of their loss; its minimiser is their personal model.

    .. math::
        \min_w \frac1K \sum_k \min_{\theta_k} \Big\{ F_k(\theta_k) + \frac{\lambda}{2} \|\theta_k - w\|^2 \Big\}

    For each batch ``b``, ``inner_steps`` times :math:`\theta \leftarrow \theta - \eta_\theta \big( \nabla F_k(\theta;
    b) + \lambda (\theta - w) \big)`, and then

    .. math:: w \leftarrow w - \eta \lambda (w - \theta).

    :math:`\theta` begins each round as the received :math:`w^t`, and each batch where the one before left it.

    Args:
      work: the batches and the steps on ``w``, of size :math:`\eta`, made by :func:`evenhand.local.sgd`.
      lam: :math:`\lambda > 0`.
      inner_step: :math:`\eta_\theta > 0`; stable if it is below :math:`2 / (L + \lambda)` for curvature ``L``.
      inner_steps: steps on :math:`\theta` for each batch.
      server_opt: ``sgd(beta)`` moves the share :math:`\beta` of the way to the average, as the paper does.
      aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`; the paper weights equally.

    Raises:
      EvenhandError: a number out of range, or work that is not mini-batch descent.

    Edge cases: a client is served its latest :math:`\theta_k`, and the global model before it is drawn.  Unlike
    Ditto's, the global model depends on the personal ones: with :math:`\lambda \to \infty` and exact inner minimisation
    its steps are those of FedAvg.

    Differs from the authors' code, in which all clients train in every round though only some are averaged, the average
    is weighted by size, and the inner step has weight decay 0.001.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.05, epochs=1, batch_size=10)
      >>> run = eh.simulate(pfedme(work, lam=10.0, inner_step=0.05), data, rounds=4)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Dinh, Tran and Nguyen, *Personalized Federated Learning with Moreau Envelopes*, NeurIPS 2020, algorithm 1.
    """
    if not 0.0 < real_number(lam) < float("inf") or not 0.0 < real_number(inner_step) < float("inf"):
        raise EvenhandError(f"pfedme(lam={lam}, inner_step={inner_step}): give finite numbers above 0.")
    inner_steps = whole_number("inner_steps", inner_steps, 1)
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    schedule, estimate, client_opt = local.parts_of(work, "pfedme")
    (phase,) = method.phases

    # The client's copy of the global model, its personal one, and the optimiser of the former.
    def step(optimiser: optax.GradientTransformation, carry: PyTree, batch: local.Batch, key: Key) -> PyTree:
        w, theta, state = carry
        pull = local.proximal(lam, w)

        def approach(i: Array, theta: Params) -> Params:
            gradient, _ = pull.update(estimate(theta, batch, key), optax.EmptyState(), theta)
            return tree.subtract(theta, tree.scale(inner_step, gradient))

        theta = lax.fori_loop(0, inner_steps, approach, theta)
        update, state = optimiser.update(tree.scale(lam, tree.subtract(w, theta)), state, w)
        return optax.apply_updates(w, update), theta, state

    def train(message: PyTree, theta: Params, data: ClientData, key: Key) -> tuple[Params, Params]:
        params, optimiser = method.received(message), client_opt(data)
        begin = (params, params, optimiser.init(params))
        w, theta, _ = local.over_batches(schedule, partial(step, optimiser), begin, data, key)
        return tree.subtract(w, params), theta

    return method._replace(
        phases=(phase._replace(work=train, effort=local.with_gradients(schedule.effort, inner_steps)),),
        init_client=lambda params: params,
        personal_params=lambda server, theta: theta,
        name=f"pfedme(lam={lam:g})",
    )
