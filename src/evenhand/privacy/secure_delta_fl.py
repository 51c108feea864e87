"""Delta-FL by two secure sums a round: a histogram of the losses, then the updates of those above its quantile."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.aggregators import secure
from evenhand.algorithms.averaging import Message, ServerState, server_step
from evenhand.errors import expect
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
from evenhand.types import Algorithm, Array, ClientData, Info, Key, Params, Phase, PyTree, Sampling, Sum

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
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
    bits: int = 64,
    largest: float = 2.0**20,
    cohort: int = 2**13,
    integers_only: bool = False,
) -> Algorithm:
    r"""Delta-FL whose server sees neither a loss nor an update, but two secure sums a round.

    .. math::
        (1)\ \sum_{k \in S_t} \big( c\, x_k + \xi_k \big) \bmod M \ \mapsto\ Q, \qquad
        (2)\ \sum_{k \in S_t} \pi_k \big( \omega_k \Delta_k,\ \omega_k \big), \quad
        \pi_k = \mathbb 1[\ell_k \ge Q], \qquad
        w^{t+1} = w^t + \frac{\sum_k \pi_k \omega_k \Delta_k}{\sum_k \pi_k \omega_k}

    where :math:`\ell_k = \min(F_k(w^t), B)` is the loss over all of a client's examples, before it trains, :math:`x_k`
    its path in a tree of counts, from which the server reads the :math:`1 - \theta` quantile :math:`Q`
    (:func:`evenhand.privacy.quantile`), and :math:`\xi_k` discrete Gaussian noise.  Clients below the quantile send
    zeros, behind the same masks, so that nobody sees who is in the tail.

    Args:
      work: local work, as in ``fedavg``.
      theta: :math:`\theta` in (0, 1], the fraction of a cohort, the worst served, that counts; or a tuple of several,
        each of which trains a model.
      largest_loss: :math:`B`, to which losses are clipped; public.
      bins: :math:`b`, a power of two; the quantile is found to :math:`B / b`, for ``2 b - 2`` numbers up.
      sigma: :math:`\sigma` of the noise that each client adds to each of its counts; 0: none.
      scale: :math:`c`, what a client adds to a count before the noise.
      server_opt, keep_partial: as in ``fedavg``.
      sampling: as in ``fedavg``, with the weights :math:`\omega_k`; the quantile is that of clients who count equally.
      bits, largest, cohort: as in :func:`evenhand.aggregators.secure`, for the second sum; the first one is modulo
        ``2**32``.
      integers_only: leave out the masks, which cancel: the same to the bit, for long simulations.  It hides nothing.

    With several levels all their tails are those of :math:`\ell_k = \min(\frac1r \sum_j F_k(w_j), B)`, so that one
    histogram gives all quantiles, at the cost in privacy of one.  The losses of the tail of level ``j`` have a mean of
    at most :math:`\mathbb S_{\theta_j}(F(w_j))`, with equality where the mean loss and that of :math:`w_j` agree on who
    is worst served.  A run's parameters are a tuple, as those of :func:`evenhand.algorithms.delta_fl_levels`, which
    compares the losses of each model and shows them to the server.

    Raises:
      EvenhandError: a number out of range; an argument of the wrong kind; noisy counts that could wrap around.

    Privacy: the server sees the counts of the cohort's losses, the sum of the tail's updates, that of their weights,
    and who took part.  With one client in a tail, the sum *is* its update: draw cohorts of which :math:`\theta m` is
    well above 1.  The noise protects the first sum alone (:func:`evenhand.privacy.concentrated` says how well), so that
    the method promises no privacy: ``dp_delta_fl(at_server=False)`` puts noise on both sums and does.

    Robustness: none.  A client can send false counts and false updates into either sum, which nobody sees.

    Edge cases: ``theta=1`` needs no quantile, and so one secure sum; it is FedAvg.  A tail with nobody in it, as
    with a noisy quantile, keeps the model.  Losses at the quantile count, and losses that are not finite are
    :math:`B`.  Ties, and losses in the bin of the quantile, are kept or left out together, so that the tail has about
    :math:`\theta m` clients.

    Differs from the paper: clients send differences of models, and they send them in a fixed point; weights may be
    numbers of examples, where its filter takes all clients to count equally.  Several levels in one histogram are not
    in it.

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
    levels = levels_of("secure_delta_fl", theta)
    check_work(work)
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
    counting = histogram(bins, largest=largest_loss, sigma=sigma, scale=scale)
    check_room("secure_delta_fl", counting, cohort)
    tails = secure(_sums(), bits=bits, largest=largest, cohort=cohort, integers_only=integers_only)
    training = _trains(work, levels, counting, server_opt, sampling, tails)
    quantiles = quantile_sum(counting, theta=levels.given, integers_only=integers_only)
    # A quantile that everybody is above needs no exchange.
    first = () if min(levels.theta) == 1.0 else (counts(work, levels, counting, quantiles),)
    method = method_of(levels, work, server_opt=server_opt, phases=(*first, training), sampling=sampling)
    return method._replace(partial_work=keep_partial, name=f"secure_delta_fl(theta={levels.shown})")


def _sums() -> Sum:
    """What clients upload, added up; weights are in it, where a sum hides them, and not in reports."""
    return Sum(
        init=lambda like, clients: (),
        lift=lambda upload, public, key: upload.delta,
        lower=lambda total, state, key: (total, state),
    )


def _trains(
    work: Work,
    levels: Tails,
    counting: Histogram,
    server_opt: optax.GradientTransformation,
    sampling: Sampling,
    tails: Sum,
) -> Phase:
    """The second exchange: the tail's updates and weights."""

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        weight = sampling.weight(data.size)
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
