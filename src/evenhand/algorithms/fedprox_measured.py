"""FedProx with the proximal weight for which its convergence theorem guarantees most, from what a run measures."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.averaging import Message, ServerState
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError
from evenhand.sampling import uniform
from evenhand.types import (
    Aggregator,
    Algorithm,
    Array,
    ClientData,
    Effort,
    Info,
    Key,
    Params,
    PyTree,
    Sampling,
    Sum,
    Upload,
)

__all__ = ["fedprox_measured"]


def fedprox_measured(
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = True,
) -> Algorithm:
    r"""FedProx with the :math:`\mu` of its convergence theorem, from dissimilarity and inexactness measured each round.

    Each round begins with an exchange in which the cohort rehearses: client ``k`` works from :math:`w^t` to
    :math:`w_k` at the last :math:`\mu` and uploads :math:`\nabla F_k(w^t)` and three numbers.  The server has from
    them, as (root mean square) averages over the cohort,

    .. math::
        B^2 = \frac{\langle \|\nabla F_k(w^t)\|^2 \rangle}{\| \langle \nabla F_k(w^t) \rangle \|^2}, \quad
        \gamma = \Big\langle \frac{\|\nabla F_k(w_k) + \mu (w_k - w^t)\|}{\|\nabla F_k(w^t)\|} \Big\rangle, \quad
        L^2 = \Big\langle \frac{\|\nabla F_k(w_k) - \nabla F_k(w^t)\|^2}{\|w_k - w^t\|^2} \Big\rangle,

    takes the :math:`\mu` for which the guaranteed decrease :math:`\rho` is largest
    (:func:`evenhand.theory.fedprox_mu` for convex losses), and the same cohort trains with it.  Also as
    ``fedprox(work, mu="theory")``.

    Args:
      work: local work, as in ``fedavg``, of plain steps.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedprox`.

    Raises:
      EvenhandError: work without a step size of its own.

    Edge cases: :math:`\mu` is at most one over the step size of the round: above, local steps overshoot what they are
    drawn to. That is also the :math:`\mu` of a round without any guarantee from the theorem: ``per_round["decrease"]``,
    which is :math:`\rho` at the :math:`\mu` taken, is then at most 0.  With small batches or small cohorts all rounds
    may be like that, and training is then far slower than FedAvg's.  The rehearsal costs the local work once more, two
    passes over the examples, and an upload of the model's size; it is always averaged, whatever the ``aggregator`` is.
    To pay only once, run a few rounds and give ``fedprox`` the :math:`\mu` found.

    Robustness: the ``aggregator`` protects the model, not :math:`\mu`.  A malicious client may claim any numbers; those
    below 0, which no honest client has, count as 0, and a :math:`\mu` that is not a number counts as the largest one.
    So one client can raise or lower :math:`\mu`, but only between 0 and one over the step size.

    Differs from the paper, which suggests to tune :math:`\mu` by its theory and gives no method.  The theorem calls for
    the largest :math:`L` and :math:`\gamma` of any client; averages are what a sum can find.  :math:`B`, from a cohort,
    is too small where few clients differ much.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=12, seed=0, max_size=80)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=60, classes=10), 0.05, epochs=1, batch_size=10)
      >>> run = eh.simulate(fedprox_measured(work), data, rounds=3, seed=0)
      >>> bool((run.per_round["B"] > 1).all()), bool((run.per_round["mu"] <= 20).all())
      (True, True)

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, theorem 4 and section 5.3.3.
    """
    schedule = local.check_work(work).schedule
    if (step_size := work.step_size) is None or not step_size > 0.0:
        raise EvenhandError(
            "fedprox_measured(): the largest mu that local steps bear is one over their size, and this work has "
            "none: give it eh.local.sgd(model, 0.1, ...), or give fedprox(mu=) a number."
        )
    base = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name="fedprox_measured",
        correction=lambda message, data: local.proximal(message.extra, message.params),
        attach=lambda chosen: chosen.mu,
        extra=lambda params, clients: _Chosen(jnp.float32(0.0), () if schedule is None else jnp.int32(0)),
    )
    (train,) = base.phases

    def rehearse(message: Message, kept: PyTree, data: ClientData, key: Key) -> tuple[_Measured, PyTree]:
        start, mu = message.params, message.extra
        if schedule is not None:
            # That of the last round, whose steps may have been smaller, as those of a warm-up are.
            mu = jnp.minimum(mu, _inverse(jnp.asarray(work.step_in(data), jnp.float32), step_size))
        end, _ = work.solve(start, data, key, local.proximal(mu, start))
        return _measured(work, start, end, mu, data), kept

    def choose(state: ServerState, means: _Measured, reported: Array, key: Key) -> tuple[ServerState, Info]:
        B = jnp.sqrt(jnp.maximum(_ratio(means.square, tree.norm(means.gradient) ** 2), 1.0))
        gamma, lipschitz = means.gamma, jnp.sqrt(means.bend)
        a, b = _line(B, gamma, lipschitz, reported.astype(jnp.float32))
        most, round = jnp.float32(1.0 / step_size), state.extra.round
        if schedule is not None:
            most = _inverse(step_size * jnp.asarray(schedule(round), jnp.float32), step_size)
        mu = _best(a, b, most)
        decrease = _ratio(a * mu - b, mu**2)
        info = {"mu": mu, "B": B, "gamma": gamma, "lipschitz": lipschitz, "decrease": decrease}
        if schedule is not None:
            # Every round counts, also one without uploads, in which nothing else changes.
            mu, round = jnp.where(reported > 0, mu, state.extra.mu), round + 1
        return state._replace(extra=_Chosen(mu, round)), info

    passes = local.in_turn(work.effort, lambda data: Effort(jnp.int32(0), 2 * data.size))
    measure = train._replace(
        work=rehearse,
        aggregator=_claims(),
        server=choose,
        effort=passes,
        steps_if_empty=schedule is not None,
    )
    return base._replace(phases=(measure, train))


class _Chosen(NamedTuple):
    """What the server keeps: :math:`\\mu`; and the rounds so far, where the work has a schedule, else ()."""

    mu: Array
    round: PyTree


def _inverse(step: Array, usual: float) -> Array:
    """The largest :math:`\\mu` that a step bears; a step of 0 bears any, and gets that of the usual one."""
    return jnp.where(step > 0.0, 1.0 / jnp.where(step > 0.0, step, 1.0), jnp.float32(1.0 / usual))


class _Measured(NamedTuple):
    """What a client uploads of its rehearsal: its gradient, and three numbers whose averages count, float32."""

    gradient: Params
    square: Array
    gamma: Array
    bend: Array


def _claims() -> Sum:
    """The mean of what clients say they measured, none of which is below 0 for an honest client."""
    average = mean()

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        gradient, *numbers = upload.delta
        claims = _Measured(gradient, *(jnp.maximum(number, 0.0) for number in numbers))
        return average.lift(upload._replace(delta=claims), public, key)

    return average._replace(lift=lift)


def _measured(work: local.Work, start: Params, end: Params, mu: Array, data: ClientData) -> _Measured:
    """From the gradients before and after local work."""
    before, after = (local.full_gradient(work.model, params, data) for params in (start, end))
    moved = tree.subtract(end, start)
    left = tree.norm(tree.add(after, tree.scale(mu, moved)))
    length = tree.norm(before)
    bend = _ratio(tree.norm(tree.subtract(after, before)), tree.norm(moved))
    return _Measured(gradient=before, square=length**2, gamma=_ratio(left, length), bend=bend**2)


def _line(B: Array, gamma: Array, lipschitz: Array, cohort: Array) -> tuple[Array, Array]:
    """The two coefficients of the theorem's decrease for convex losses."""
    inexact, cohort = B * (1.0 + gamma), jnp.maximum(cohort, 1.0)
    sampled = (2.0 * jnp.sqrt(2.0 * cohort) + 2.0) / cohort
    slope = 1.0 - gamma * B - jnp.sqrt(2.0 / cohort) * inexact
    return slope, lipschitz * (inexact + inexact**2 * (0.5 + sampled))


def _best(a: Array, b: Array, most: Array) -> Array:
    """The :math:`\\mu` up to ``most`` at which the decrease, :math:`a / \\mu - b / \\mu^2`, is largest."""
    mu = 2.0 * b / jnp.where(a > 0.0, a, 1.0)
    # False numbers that overflow give NaN, with which no client would ever train again.
    return jnp.where((a > 0.0) & (mu >= 0.0) & (mu < most), mu, most)


def _ratio(over: Array, under: Array) -> Array:
    """``over / under``; 0 where ``under`` is."""
    return jnp.where(under > 0.0, over / jnp.where(under > 0.0, under, 1.0), 0.0)
