"""q-FedAvg and q-FedSGD: q-fair federated learning."""

from __future__ import annotations

import math

import jax.numpy as jnp
import optax

from evenhand import aggregators, local, tree
from evenhand.algorithms.averaging import REPORTS_LOSS, ServerState, of_sums
from evenhand.algorithms.fedavg import fedavg, staying, variant
from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.sampling import proportional
from evenhand.types import Algorithm, Array, Info, Key, Model, Params, PyTree, Sampling, Sum, Upload

__all__ = ["qfedavg", "qfedsgd"]


def qfedavg(
    work: local.Work,
    *,
    q: float,
    lipschitz: float | None = None,
    summed: bool = False,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = proportional(replace=False),
    keep_partial: bool = False,
) -> Algorithm:
    r"""q-FedAvg (q-FFL): weights clients by the ``q``-th power of their loss; the step adapts to the curvature.

    .. math::
        \min_w \sum_k \frac{p_k}{q+1} F_k(w)^{q+1}, \qquad
        w^{t+1} = w^t - \frac{\sum_k F_k^q \Delta w_k}{\sum_k q F_k^{q-1} \|\Delta w_k\|^2 + L F_k^q}, \quad
        \Delta w_k = L (w^t - w_k)

    with :math:`F_k = F_k(w^t)` over all of a client's examples *before* it trains on its plain loss.

    Args:
      work: local work, as in ``fedavg``.
      q: 0 is FedAvg, larger is fairer; a huge ``q`` takes steps of about ``1/q``.
      lipschitz: :math:`L`; tune it at ``q=0`` and keep it for every other ``q``; None: one over the step size of
        the work, which must be plain gradient descent, and over that of each round where the work has a schedule.
      summed: take a client's loss as the sum over its examples rather than the mean, as the reference code does on
        Vehicle; large clients then count more.  :math:`L` is there one over the step along the sum over a batch, which
        is ``batch_size / step_size`` here.
      sampling: ``proportional(replace=False)``, as in the reference code: drawn in proportion to size, sums unweighted.
        With ``uniform()`` both sums are weighted by clients' sizes; with ``uniform(weighted=False)``, not at all.
      server_opt, keep_partial: as in ``fedavg``.

    Raises:
      EvenhandError: ``q`` or ``lipschitz`` out of range, or no ``lipschitz`` for work without a step size.

    Edge cases: with all clients in the cohort and unweighted sums, the objective is unweighted too.  Losses must not
    be negative (for negative losses and losses of 0 see :func:`evenhand.aggregators.qfedavg`).

    Differs from the reference code in computing powers from logarithms in float32, not from losses in float64.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> method = qfedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10), q=1.0, lipschitz=1 / 0.1)
      >>> run = eh.simulate(method, data, rounds=3, cohort=4, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 2.
    """
    summed = truth_value("summed", summed)
    scheduled = None
    if lipschitz is None:
        step_size = local.check_work(work, keeps=True, statistics_stay=True, objection=REPORTS_LOSS).step_size
        if not step_size:
            raise EvenhandError(
                "qfedavg() needs lipschitz=, one over the clients' step size, because this work has no fixed step "
                "size: give it, or make the work with a number, as in eh.local.sgd(model, 0.1, ...)."
            )
        lipschitz = 1.0 / step_size
        scheduled = work.schedule
    rule = aggregators.qfedavg(q, lipschitz)
    method = variant(
        work, server_opt, rule, sampling, keep_partial=keep_partial, keeps=True, statistics_stay=True
    )
    name = f"qfedavg(q={q:g}, lipschitz={lipschitz:g}{', summed=True' if summed else ''})"
    method = method._replace(
        name=name, phases=tuple(map(of_sums, method.phases)) if summed else method.phases
    )
    return staying(method if scheduled is None or q == 0 else _by_round(method, rule, scheduled))


def _by_round(method: Algorithm, rule: Sum, schedule: local.Schedule) -> Algorithm:
    """The method with :math:`L / f(t)` in place of :math:`L`: one over the step size of round :math:`t`."""

    # L is only in the denominator, over the loss: dividing one is multiplying the other.
    def lift(upload: Upload, round: Array, key: Key) -> PyTree:
        return rule.lift(upload._replace(loss=schedule(round) * upload.loss), (), key)

    def lower(total: PyTree, round: Array, key: Key) -> tuple[PyTree, Array]:
        return rule.lower(total, (), key)[0], round + 1

    counting = rule._replace(
        init=lambda like, clients: jnp.int32(0), publish=lambda round: round, lift=lift, lower=lower
    )
    (phase,) = method.phases

    def server(state: ServerState, direction: Params, reported: Array, key: Key) -> tuple[ServerState, Info]:
        stepped, info = phase.server(state, direction, reported, key)
        return tree.select(reported > 0, stepped, state), info

    # Every round counts, also one without uploads, in which nothing else changes.
    counted = phase._replace(aggregator=counting, server=server, steps_if_empty=True)
    return method._replace(phases=(counted,))


def qfedsgd(
    model: Model,
    *,
    q: float,
    lipschitz: float | None = None,
    step_size: float | None = None,
    sampling: Sampling = proportional(replace=False),
) -> Algorithm:
    r"""q-FedSGD: q-FedAvg with one gradient over all of a client's examples per round.

    .. math::
        w^{t+1} = w^t - \frac{\sum_k F_k^q \nabla F_k}{\sum_k q F_k^{q-1} \|\nabla F_k\|^2 + L F_k^q}

    Args:
      model: what is trained.
      q: as in :func:`qfedavg`.
      lipschitz: :math:`L`; at ``q=0`` the step is a gradient step of ``1 / lipschitz``.  Give this or ``step_size``.
      step_size: a fixed server step size :math:`\eta`, whatever the curvature:
        :math:`w^{t+1} = w^t - \eta \frac1K \sum_k F_k^q \nabla F_k`; the FedSGD baseline, to be tuned for each ``q``.
      sampling: as in :func:`qfedavg`.

    Raises:
      EvenhandError: ``q``, ``lipschitz`` or ``step_size`` out of range, or not exactly one of the last two given.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> run = eh.simulate(qfedsgd(model, q=1.0, lipschitz=10.0), data, rounds=5, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 1 and figure 4.
    """
    if step_size is not None and lipschitz is None:
        if not 0.0 < real_number(step_size) < math.inf:
            raise EvenhandError(f"qfedsgd(step_size={step_size}): the step must be a finite number above 0.")
        fair, step = aggregators.loss_powers(q), f"step_size={step_size:g}"
    elif lipschitz is not None and step_size is None:
        fair, step = aggregators.qfedavg(q, lipschitz), f"lipschitz={lipschitz:g}"
        step_size = 1.0 / lipschitz
    else:
        raise EvenhandError("qfedsgd(): give either lipschitz=, for the step of the paper, or step_size=.")
    work = local.sgd(model, step_size, steps=1)._replace(effort=local.step_per_row)
    method = fedavg(work, aggregator=fair, sampling=sampling)
    return method._replace(name=f"qfedsgd(q={q:g}, {step})")
