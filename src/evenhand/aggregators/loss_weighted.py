"""Weighted means whose weights follow the losses that clients report before they train: the fair aggregators."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import risks, tree
from evenhand.aggregators.mean import mean, reciprocal
from evenhand.errors import EvenhandError, expect, real_number, truth_value
from evenhand.risks.power import positive
from evenhand.types import Array, Cohort, Key, PyTree, Report, Risk, Sum, Upload

__all__ = ["ascending_mixture", "loss_powers", "qfedavg", "reference_tilt", "risk_weighted", "running_tilt"]


_LOWEST = -1e30
"""A loss below all others, finite so that differences of two such losses are 0."""


def risk_weighted(risk: Risk, *, of_slots: bool = False) -> Sum:
    r"""Weights uploads by the gradient of a risk of the clients' losses, such as a superquantile or a tilted risk.

    .. math:: \Delta = \sum_k w_k \Delta_k, \qquad w = \texttt{risk.weights}(F_k(w^t); \omega_k)

    for losses :math:`F_k(w^t)` over all of a client's examples before it trains, and base weights :math:`\omega_k`
    from the method's sampling scheme (its number of examples, or 1).

    Args:
      risk: such as ``eh.risks.superquantile(0.5)`` (Delta-FL) or ``eh.risks.tilted(1.0)`` (TERM).
      of_slots: whether an empty slot counts as a client of mean weight :math:`\omega` whose loss is the lowest, so that
        a tail fraction is one of the slots.  Of :math:`m` slots with :math:`c` clients, ``superquantile(theta)`` then
        is that of the clients at :math:`\theta m / c`, at most 1: the same number of clients counts, however many are
        there.  Not meant for :func:`evenhand.sampling.poisson`, whose :math:`m` is that of its largest cohorts.

    Edge cases: a client of weight 0 is left out; without any client the direction is zero.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> worst = risk_weighted(eh.risks.superquantile(0.5))
      >>> step = eh.aggregators.aggregate(worst, jnp.array([4.0, 8.0]), losses=jnp.array([2.0, 1.0]))
      >>> float(step)
      4.0

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 3 and section 6.
    """
    of_slots = truth_value("of_slots", of_slots)
    expect("risk_weighted(risk=)", risk, Risk, "eh.risks.superquantile(0.5)")

    def weigh(reports: Report, cohort: Cohort, state: PyTree) -> tuple[Array, PyTree]:
        return risk.weights(reports.loss, reports.weight), state

    def weigh_slots(reports: Report, cohort: Cohort, state: PyTree) -> tuple[Array, PyTree]:
        there = cohort.present
        count = jnp.maximum(jnp.sum(there, dtype=reports.weight.dtype), 1.0)
        mean_weight = jnp.sum(jnp.where(there, reports.weight, 0.0)) / count
        losses = jnp.where(there, reports.loss, _LOWEST)
        weights = risk.weights(losses, jnp.where(there, reports.weight, mean_weight))
        return jnp.where(there, weights, 0.0), state

    return mean()._replace(weigh=weigh_slots if of_slots else weigh, needs_loss=True, of_slots=of_slots)


# --- AFL ---------------------------------------------------------------------------------------------------------


def ascending_mixture(step_size: float, *, unbiased: bool = False) -> Sum:
    r"""AFL: weights uploads by a mixture over all clients, updated by projected gradient ascent on their losses.

    .. math::
        \Delta = \sum_k \lambda_k \Delta_k, \qquad
        \lambda \leftarrow \Pi_\Lambda \big( \lambda + \gamma_\lambda (F_1(w^t), \dots, F_N(w^t)) \big)

    from :math:`\lambda = 1/N`; the ascent uses the losses of a round whose uploads still have the old weights.

    Args:
      step_size: :math:`\gamma_\lambda \ge 0`; 0 keeps the plain mean over clients.
      unbiased: for cohorts that are drawn uniformly: a direction of :math:`\frac{N}{m} \sum_{k \in S} \lambda_k
        \Delta_k`, whose expectation is the mixture over all clients, as in TR-MAML.  False: scale the members' weights
        to sum to 1.

    Raises:
      EvenhandError: ``step_size`` negative or not finite.

    Edge cases: meant for cohorts of all clients, where both forms are the same.  In a smaller cohort, only the members'
    weights climb; the projection lowers those of all clients.  A loss so large that its step is not finite updates
    nothing, and its client is left out of that round.

    Source: Mohri et al., *Agnostic Federated Learning*, ICML 2019, in the deterministic form that q-FFL is compared to;
    ``unbiased``: Collins, Mokhtari and Shakkottai, *Task-Robust Model-Agnostic Meta-Learning*, NeurIPS 2020.
    """
    unbiased = truth_value("unbiased", unbiased)
    if not 0.0 <= real_number(step_size) < math.inf:
        raise EvenhandError(f"ascending_mixture(step_size={step_size!r:.40}): give a finite number >= 0.")

    def weigh(reports: Report, cohort: Cohort, state: Array) -> tuple[Array, Array]:
        counts = cohort.present & jnp.isfinite(step_size * reports.loss)
        weights = jnp.where(counts, state[cohort.ids], 0.0)
        climbed = state.at[cohort.ids].add(jnp.where(counts, step_size * reports.loss, 0.0))
        return weights, risks.project_simplex(climbed)

    rule = mean()._replace(
        init=lambda like, clients: jnp.full(clients, 1.0 / clients, jnp.float32), weigh=weigh, needs_loss=True
    )
    if not unbiased:
        return rule

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        return tree.scale(upload.weight, upload.delta), jnp.float32(1.0)

    def lower(total: PyTree, state: Array, key: Key) -> tuple[PyTree, Array]:
        deltas, members = total
        return tree.scale(state.shape[0] * reciprocal(members), deltas), state

    return rule._replace(lift=lift, lower=lower)


# --- q-FFL -------------------------------------------------------------------------------------------------------


def qfedavg(q: float, lipschitz: float) -> Sum:
    r"""q-FedAvg's step: weights uploads by the q-th power of their loss, over a bound on the curvature.

    .. math::
        \Delta w_k = -L \Delta_k, \qquad h_k = q F_k^{q-1} \|\Delta w_k\|^2 + L F_k^q, \qquad
        \Delta = -\frac{\sum_k \omega_k F_k^q \Delta w_k}{\sum_k \omega_k h_k}

    with :math:`F_k` the loss at the broadcast model and :math:`\omega_k` the weight from the sampling scheme.

    Args:
      q: how much high losses count, >= 0; 0 is exactly the mean.
      lipschitz: :math:`L`, one over the clients' step size; not to be retuned for each ``q``.

    Raises:
      EvenhandError: ``q`` or ``lipschitz`` out of range.

    Edge cases: 1e-10 is added to each loss; all powers are divided by the largest, which leaves the step unchanged, so
    that no ``q`` overflows.  A loss below 0 counts as 0: add a constant to losses that can be negative.  The step is
    shorter than the mean of the uploads, by a factor of :math:`1 + q L \|\Delta\|^2 / F` for identical clients: about
    ``1/q`` for large ``q``, and almost 0 if a client of loss 0 still moves while ``q < 1``, as the formula has it.
    Sums are in float32, where the reference code has float64: only the powers' common factor needed that range.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[-0.2, 0.1], [0.3, -0.4]])
      >>> step = eh.aggregators.aggregate(qfedavg(1.0, 10.0), deltas, losses=jnp.array([2.0, 0.5]))
      >>> [round(x, 4) for x in step.tolist()]
      [-0.0455, 0.0]

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, algorithm 2.
    """
    _check_power(q, "qfedavg")
    if not 0.0 < real_number(lipschitz) < math.inf:
        raise EvenhandError(
            f"qfedavg(lipschitz={lipschitz!r:.40}): give one over the clients' step size, above 0."
        )

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        lifted = tree.scale(upload.weight, upload.delta), upload.weight
        if q != 0:
            square = lipschitz * jnp.square(tree.norm(upload.delta))
            lifted = lifted[0], _times(upload.weight, 1.0 + q * square / positive(upload.loss))
        return lifted

    # Scaling the powers to sum to 1 leaves the step unchanged: both of its sums contain them.
    return risk_weighted(risks.power(q))._replace(lift=lift)


def loss_powers(q: float) -> Sum:
    r"""The gradient of the q-FFL objective itself, for a server step of fixed size.

    .. math:: \Delta = \frac{\sum_k \omega_k F_k^q \Delta_k}{\sum_k \omega_k}

    Args:
      q: how much high losses count, >= 0.

    Raises:
      EvenhandError: ``q`` out of range.

    Edge cases: powers are not rescaled.  A client whose weighted power overflows is left out of that round; below that,
    products with large updates can still overflow, which :func:`evenhand.aggregators.reject` withstands.

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, figure 4 (FedSGD on q-FFL).
    """
    _check_power(q, "loss_powers")

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        if q == 0:
            return tree.scale(upload.weight, upload.delta), upload.weight
        share = _times(upload.weight, positive(upload.loss) ** q)
        share, weight = tree.select(jnp.isfinite(share), (share, upload.weight), (0.0, 0.0))
        return tree.scale(share, upload.delta), weight

    return risk_weighted(risks.mean())._replace(lift=lift)


def _times(weight: Array, factor: Array) -> Array:
    """The product; 0 for weight 0, even if the factor overflows."""
    return jnp.where(weight > 0, weight * factor, 0.0)


def _check_power(q: float, name: str) -> None:
    if not 0.0 <= real_number(q) < math.inf:
        raise EvenhandError(f"{name}(q={q!r:.40}): q must be a finite number >= 0.")


# --- TERM, with a normaliser that is averaged over rounds --------------------------------------------------------


class _Normaliser(NamedTuple):
    """``log`` of the running mean of ``exp(t F)``, and whether any round has entered it."""

    log: Array
    seen: Array


def running_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""TERM's stochastic weights: losses are normalised by an average over rounds, taken in log space.

    .. math::
        a \leftarrow \log\big( (1 - \rho) e^a + \rho \sum_k p_k e^{t F_k} \big), \qquad
        \Delta = \sum_k p_k e^{t F_k - a} \Delta_k, \qquad p_k = \frac{\omega_k}{\sum_j \omega_j}

    The first round is normalised by its own losses.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`; 1 is ``risk_weighted(eh.risks.tilted(t))`` while no upload is rejected.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: a rejected upload counts as one of zeros, since its loss is in ``a``.  Where losses fall, ``a`` lags: it
    falls by at most :math:`\log\frac{1}{1-\rho}` a round.  If ``t`` times the fall in loss is well above that, all
    weights go to 0 and training stalls, which shows only in the norm of the updates.  A single loss of :math:`t F`
    above about 1e7 stalls it for good: float32 does not hold falls so small beside it.  A client whose :math:`t F` is
    not finite is left out of that round.

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the stochastic solver over devices.
    """
    _check_tilt(t, rate, "running_tilt")

    def init(like: PyTree, clients: int) -> _Normaliser:
        return _Normaliser(jnp.float32(0.0), jnp.bool_(False))

    def weigh(reports: Report, cohort: Cohort, state: _Normaliser) -> tuple[Array, _Normaliser]:
        weights = jnp.where(jnp.isfinite(t * reports.loss), reports.weight, 0.0)
        total = jnp.sum(weights)
        nonempty = total > 0
        base = jnp.log(jnp.where(weights > 0, weights / jnp.where(nonempty, total, 1.0), 1.0))
        logs = jnp.where(weights > 0, t * reports.loss + base, -jnp.inf)
        newest = jax.scipy.special.logsumexp(logs)
        mixed = jnp.where(state.seen, _mixed(state.log, newest, rate), newest)
        log = jnp.where(nonempty, mixed, state.log)
        return jnp.exp(logs - log), _Normaliser(log, state.seen | nonempty)

    return Sum(init, _lift, _whole, weigh=weigh, needs_loss=True)


def reference_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""TERM's weights as in the authors' reference code, over devices, for comparison with its numbers.

    .. math::
        m = \max_k F_k, \quad s = \frac1K \sum_k e^{t (F_k - m)}, \quad c \leftarrow (1 - \rho) c + \rho s, \quad
        \Delta = \frac1K \sum_k \frac{e^{t (F_k - m)}}{K c} \Delta_k

    with :math:`c` starting at 0.  Unlike in :func:`running_tilt`, the normaliser mixes rounds shifted by different
    ``m``, the sum is divided by ``K`` twice, and the weights of the sampling scheme are ignored.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: for ``t < 0``, losses far apart make :math:`c` so large that all weights are 0 for many rounds, or for
    good if their powers are more than about 1e7 apart.  A client whose :math:`t F` or power is not finite is left out
    of that round.

    Source: T. Li et al., code of *Tilted Empirical Risk Minimization*, the federated trainer.
    """
    _check_tilt(t, rate, "reference_tilt")

    # c in log space: for t < 0 the powers themselves overflow, since the largest loss does not dominate.
    def weigh(reports: Report, cohort: Cohort, state: Array) -> tuple[Array, Array]:
        sound = cohort.present & (reports.weight > 0) & jnp.isfinite(t * reports.loss)
        largest = jnp.max(jnp.where(sound, reports.loss, -jnp.inf))
        powers = t * jnp.where(sound, reports.loss - largest, 0.0)
        counts = sound & (powers < jnp.inf)
        log_count = jnp.log(jnp.sum(counts.astype(jnp.float32)))
        logs = jnp.where(counts, powers, -jnp.inf)
        newest = jax.scipy.special.logsumexp(logs) - log_count
        log = jnp.where(jnp.any(counts), _mixed(state, newest, rate), state)
        return jnp.where(counts, jnp.exp(logs - 2.0 * log_count - log), 0.0), log

    return Sum(lambda like, clients: jnp.float32(-jnp.inf), _lift, _whole, weigh=weigh, needs_loss=True)


def _mixed(old: Array, new: Array, rate: float) -> Array:
    """``log((1 - rate) e^old + rate e^new)``."""
    return jnp.logaddexp(old + math.log1p(-rate), new + math.log(rate)) if rate < 1 else new


def _lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
    return tree.scale(upload.weight, upload.delta)


def _whole(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
    return total, state


def _check_tilt(t: float, rate: float, name: str) -> None:
    if not math.isfinite(real_number(t)):
        raise EvenhandError(f"{name}(t={t!r:.40}): the tilt must be finite.")
    if not 0.0 < real_number(rate) <= 1.0:
        raise EvenhandError(f"{name}(rate={rate!r:.40}): the share of the newest round must lie in (0, 1].")
