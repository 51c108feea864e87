"""Delta-FL by two secure sums a round: a histogram of the losses, then the updates of those above its quantile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.aggregators import secure
from evenhand.algorithms.averaging import Message, ServerState, server_step
from evenhand.errors import EvenhandError, expect, truth_value, whole_number
from evenhand.local import Work, check_work
from evenhand.privacy._quantile import Histogram, histogram, quantile_sum
from evenhand.privacy._tails import (
    Tails,
    broadcast,
    check_room,
    counts,
    learnt_in_tails,
    levels_of,
    method_of,
    report,
)
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Array, ClientData, Info, Key, Need, Params, Phase, PyTree, Sampling, Sum

__all__ = ["secure_delta_fl"]


class _Tail(NamedTuple):
    """What a client sends for one level, and the sum of it; zeros if it is not in the tail.

    Attributes:
      update: its update times its weight.
      weight: its weight.
    """

    update: Params
    weight: Array


def secure_delta_fl(
    work: Work,
    *,
    theta: float | tuple[float, ...] = 0.5,
    largest_loss: float,
    bins: int = 256,
    sigma: float = 0.0,
    scale: int = 1,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = uniform(weighted=False),
    keep_partial: bool = False,
    bits: int = 64,
    largest: float = 2.0**20,
    cohort: int = 2**13,
) -> Algorithm:
    r"""Delta-FL with secure aggregation: the server sees only two secure sums per round, no single loss or update.

    .. math::
        (1)\ \sum_{k \in S_t} \big( c\, x_k + \xi_k \big) \bmod M \ \mapsto\ Q, \qquad
        (2)\ \sum_{k \in S_t} \pi_k \big( \omega_k \Delta_k,\ \omega_k \big), \quad
        \pi_k = \mathbb 1[\ell_k \ge Q], \qquad
        w^{t+1} = w^t + \frac{\sum_k \pi_k \omega_k \Delta_k}{\sum_k \pi_k \omega_k}

    where :math:`\ell_k = \min(F_k(w^t), B)` is the loss over all of a client's examples, before it trains, :math:`x_k`
    its path in a tree of counts, from which the server reads the :math:`1 - \theta` quantile :math:`Q`
    (:func:`evenhand.privacy.quantile`), and :math:`\xi_k` discrete Gaussian noise.  Clients below the quantile send
    zeros, behind the same masks, so no upload shows who is in the tail.

    Args:
      work: local work, as in ``fedavg``.
      theta: :math:`\theta` in (0, 1], the fraction of a cohort, the worst served, that counts; or a tuple of several,
        each of which trains a model.
      largest_loss: :math:`B`, to which losses are clipped; public.
      bins: :math:`b`, a power of two; the quantile is found to :math:`B / b`, for ``2 b - 2`` numbers up.
      sigma: :math:`\sigma` of the noise that each client adds to each of its counts; 0: none.
      scale: :math:`c`, what a client adds to a count before the noise.
      server_opt, keep_partial: as in ``fedavg``.
      sampling: as in ``fedavg``, with the weights :math:`\omega_k`, by default equal; the quantile is that of clients
        who count equally.
      bits: as in :func:`evenhand.aggregators.secure`, for the second sum; the first one is modulo ``2**32``.
      largest: :math:`R`, to which a client clips the numbers of the second sum, :math:`\omega_k \Delta_k` and
        :math:`\omega_k`; at least the weight of the largest client.
      cohort: clients in a round, at most.

    With several levels all their tails are those of :math:`\ell_k = \min(\frac1r \sum_j F_k(w_j), B)`, so that one
    histogram gives all quantiles, at the cost in privacy of one.  The losses of the tail of level ``j`` have a mean of
    at most :math:`\mathbb S_{\theta_j}(F(w_j))`, with equality where the mean loss and that of :math:`w_j` agree on who
    is worst served.  A run's parameters are a tuple, as those of :func:`evenhand.algorithms.delta_fl_levels`, which
    compares the losses of each model and shows them to the server.

    Raises:
      EvenhandError: a number out of range; an argument of the wrong kind; noisy counts that could wrap around.  When a
        run starts: cohorts of more than ``cohort`` clients, whose sums would be given up; tails, or differences of two
        tails, of fewer than 2 clients; a client's weight above ``largest``.

    Privacy: the server sees the counts of the cohort's losses, the sum of the tail's updates, that of their weights,
    and who took part.  With one client in a tail, the sum *is* its update.  With several levels the server can also
    subtract their sums: in round 1 they start from one model and share batches, so the difference of two sums is the
    sum of the updates of the clients between their quantiles, and with one client there, it is its update.  So cohorts
    of :math:`m` clients must have

    .. math:: (\theta_j - \theta_{j+1})\, m \ge 2, \qquad (1 - \theta_2)\, m \ge 3 \text{ if } \theta_1 < 1, \qquad
        1 \ge \theta_1 > \dots > \theta_r > \theta_{r+1} = 0.

    Without noise, and with no two losses in one bin, a tail has :math:`\theta_j m` clients, rounded, or
    :math:`m - 1` where only a loss in the first bin is left out; a half is rounded up at all levels.  So neighbouring
    tails differ by at least 2 clients, and the smallest has at least 2.  What remains are

    * ties: losses in one bin are kept or left out together, as are those above ``largest_loss``, which can leave one
      client in a tail or between two; more bins make ties rarer, and levels that are further apart make them harmless;
    * noisy counts, which shift the quantiles;
    * rounds in which fewer clients answer than are drawn.

    With unequal weights the sum of the tail's weights says more than how many clients it has: sizes are often known,
    and then their sum can identify who is in the tail.  With equal weights, the default, it is their number, which
    counts without noise show as well.  The noise protects the first sum alone (:func:`evenhand.privacy.concentrated`
    says how well), so the method guarantees no privacy: ``dp_delta_fl(at_server=False)`` puts noise on both sums and
    does.

    Robustness: none.  A client can send false counts and false updates into either sum, which nobody sees.

    Edge cases: ``theta=1`` needs no quantile, and so one secure sum; it is FedAvg with these weights.  A tail with
    nobody in it, as with a noisy quantile, keeps the model.  Losses at the quantile count, and losses that are not
    finite are :math:`B`.  Ties, and losses in the bin of the quantile, are kept or left out together, so that the tail
    has about :math:`\theta m` clients.

    Differs from the paper: clients send differences of models, and they send them in a fixed point; weights may be
    numbers of examples (``sampling=uniform()``), where its filter takes all clients to count equally.  Several levels
    in one histogram are not in it.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> run = eh.simulate(secure_delta_fl(work, theta=0.5, largest_loss=8.0), data, rounds=5)
      >>> run.info["secure_sums"], bool(0 < run.per_round["quantile"][-1] < 8)
      (10, True)

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithms 1 and 2.
    """
    levels, cohort = levels_of("secure_delta_fl", theta), whole_number("secure_delta_fl(cohort=)", cohort, 1)
    check_work(work)
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
    counting = histogram(bins, largest=largest_loss, sigma=sigma, scale=scale)
    check_room("secure_delta_fl", counting, cohort)
    tails = secure(_sums(), bits=bits, largest=largest, cohort=cohort)
    tails = tails._replace(needs=(_at_most(cohort), _hidden(levels)))
    training = _trains(work, levels, counting, server_opt, _within(sampling, largest), tails)
    quantiles = quantile_sum(counting, theta=levels.given)
    # A quantile that everybody is above needs no exchange.
    first = () if min(levels.theta) == 1.0 else (counts(work, levels, counting, quantiles),)
    method = method_of(levels, work, server_opt=server_opt, phases=(*first, training), sampling=sampling)
    return method._replace(
        partial_work=truth_value("keep_partial", keep_partial), name=f"secure_delta_fl(theta={levels.shown})"
    )


def _sums() -> Sum:
    """What clients upload, added up; weights are in it, where a sum hides them, and not in reports."""
    return Sum(
        init=lambda like, clients: (),
        lift=lambda upload, public, key: upload.delta,
        lower=lambda total, state, key: (total, state),
    )


def _at_most(cohort: int) -> Need:
    """No larger cohorts than the fixed point has room for, whose sums would be given up."""

    def refusal(m: int) -> str:
        return (
            f"secure_delta_fl(cohort={cohort}): cohorts have {m} clients, and a secure sum of more than {cohort} is "
            f"given up: give cohort={m} or more, or draw fewer clients."
        )

    return Need("secure_delta_fl", lambda m: True, lambda m: m <= cohort, refusal)


def _hidden(levels: Tails) -> Need:
    """Tails, and differences of two tails, of at least two clients: a sum over one client is its update."""
    below = (*levels.theta[1:], 0.0)
    gaps = [wider - tail for wider, tail in zip(levels.theta, below, strict=True)]
    # No quantile is below the first bin, so that of a level below 1 may leave out one client whatever the level is.
    bounds = [2.0 / min(gaps), 0.0 if levels.theta[0] == 1.0 else 3.0 / (1.0 - below[0])]
    # A third of 6 clients is 2 of them, whatever the rounding of a third.
    least = math.ceil(max(bounds) - 1e-6)

    def refusal(m: int) -> str:
        where = "in the tail" if len(levels.theta) == 1 else "in a tail, or in one tail and not in the next"
        return (
            f"secure_delta_fl(theta={levels.shown}): of a cohort of {m} clients, only one may be {where}, and the "
            f"server would see its update: draw at least {least} clients, or give "
            + (
                "another theta."
                if len(levels.theta) == 1
                else "levels that are further apart and further from 0."
            )
        )

    return Need("secure_delta_fl", lambda m: True, lambda m: m >= least, refusal)


def _within(sampling: Sampling, largest: float) -> Callable[[ClientData], Array]:
    """``data -> weight`` of a client; refuses weights that the fixed point would clip."""

    def weight(data: ClientData) -> Array:
        # Weights do not fall with the size; the largest size is known when a run starts.
        with jax.ensure_compile_time_eval():
            most = float(sampling.weight(jnp.int32(data.capacity)))
        if most > largest:
            raise EvenhandError(
                f"secure_delta_fl(largest={largest:g}): a client of {data.capacity} examples has the weight {most:g}, "
                f"which would be clipped: give largest={most:g} or more, or equal weights, "
                "sampling=eh.sampling.uniform(weighted=False)."
            )
        return sampling.weight(data.size)

    return weight


def _trains(
    work: Work,
    levels: Tails,
    counting: Histogram,
    server_opt: optax.GradientTransformation,
    weigh: Callable[[ClientData], Array],
    tails: Sum,
) -> Phase:
    """The second exchange: the tail's updates and weights."""

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        weight = weigh(data)
        learnt = learnt_in_tails(work, levels, counting, message, data, key)
        return levels.join(
            _Tail(tree.scale(weight, delta), jnp.where(inside, weight, 0.0)) for inside, delta in learnt
        ), state

    def server(state: ServerState, direction: PyTree, reported: Array, key: Key) -> tuple[ServerState, Info]:
        states, info = list[ServerState](), dict[str, Array]()
        parts = zip(*map(levels.split, (state.params, state.optimiser, direction)), strict=True)
        names = zip(levels.names("update_norm"), levels.names("tail_weight"), strict=True)
        for (params, optimiser, tail), (norm, kept) in zip(parts, names, strict=True):
            before = ServerState(params, optimiser, ())
            mean = tree.scale(1.0 / jnp.where(tail.weight > 0, tail.weight, 1.0), tail.update)
            after, step = server_step(server_opt, before, mean)
            states.append(tree.select(tail.weight > 0, after, before))
            info |= {norm: step["update_norm"], kept: tail.weight}
        params, optimisers, _ = zip(*states, strict=True)
        return ServerState(levels.join(params), levels.join(optimisers), state.extra), info

    return Phase(
        broadcast=broadcast,
        report=report,
        work=train,
        aggregator=tails,
        server=server,
        effort=levels.effort(work.effort),
    )
