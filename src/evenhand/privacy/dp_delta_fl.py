"""Delta-FL end to end under privacy: a private quantile of the losses, then a noisy mean of those above it."""

from __future__ import annotations

import optax

from evenhand import local, tree
from evenhand.algorithms.averaging import Message, ServerState
from evenhand.errors import EvenhandError, expect, truth_value, whole_number
from evenhand.privacy._checks import positive
from evenhand.privacy._discrete_gaussian import discrete_mean
from evenhand.privacy._quantile import Histogram, histogram, histogram_for, quantile_sum
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
from evenhand.privacy.client_level import private
from evenhand.privacy.gaussian import noisy_mean
from evenhand.sampling import fixed, poisson
from evenhand.types import Algorithm, Array, ClientData, Info, Key, Params, Phase, PyTree, Release, Sum

__all__ = ["dp_delta_fl"]

_SCALE = 16
"""Of the counts, so that to round their noise hardly adds to it."""


def dp_delta_fl(
    work: local.Work,
    *,
    theta: float | tuple[float, ...],
    largest_loss: float,
    clip: float,
    noise_multiplier: float,
    rate: float = 0.1,
    bins: int = 32,
    share: float = 0.5,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    at_server: bool = True,
    fewest: int | None = None,
) -> Algorithm:
    r"""Delta-FL with client-level differential privacy: losses and updates enter noisy sums only.

    Each round has two exchanges with one cohort: a histogram of the losses, in whole numbers under noise, gives the
    quantile :math:`Q`; then every client trains, and

    .. math::
        w^{t+1} = w^t + \frac1{\theta q N} \Big( \sum_{k:\, F_k(w^t) \ge Q} \Delta_k \min\Big(1,
        \frac{C}{\|\Delta_k\|}\Big) + \mathcal N(0, z_w^2 C^2 I) \Big)

    with :math:`z_w = z \sqrt{1 + r}`.  Clients below the quantile send zeros, so that nobody sees who is above it.

    Args:
      work: as in :func:`evenhand.algorithms.delta_fl`.
      theta: :math:`\theta`, the fraction of the clients, the worst served, that counts; or a tuple of several, each
        with a model, as in :func:`evenhand.privacy.secure_delta_fl`.
      largest_loss: :math:`B`, to which losses are clipped; public.
      clip: :math:`C`, in the units of an update, of all levels together; the paper's is that of an update over the step
        size.
      noise_multiplier: :math:`z`, of both exchanges together.
      rate: :math:`q`, the part of the clients that is drawn.
      bins: of the histogram, a power of two.
      share: :math:`r`, the histogram's budget over that of the mean, in concentrated privacy.
      server_opt: the server's optimiser; ``sgd(1.0)`` is averaging.
      at_server: whether the server adds Gaussian noise to both sums, which it then must be trusted with; False: clients
        add discrete Gaussian noise, and both sums are secure (:func:`evenhand.privacy.quantile_sum`,
        :func:`evenhand.privacy.discrete_mean`).
      fewest: clients that answer at least, whose noise must suffice: with fewer a sum is given up.  Needed with
        ``at_server=False``, and without effect otherwise.

    Raises:
      EvenhandError: a number out of range, or no ``fewest`` where it is needed.  When a run starts, with
        ``at_server=False``: as for ``discrete_mean``; or a histogram that could wrap around.

    Privacy: with ``at_server=True`` cohorts are Poisson samples, and neighbours have one client more.  With False they
    are of a fixed size, neighbours have one client *replaced*, and both exchanges together release what concentrated
    noise of multiplier :math:`z / 2` does: as for ``discrete_mean``, whose words on the secrecy of cohorts hold here.
    Several levels cost no more than one: all quantiles are read off one noisy histogram, and all updates of a client
    are clipped together; what they cost is accuracy, as one clip holds for all of them.

    Edge cases: ``theta=1`` is DP-FedAvg with more noise than it needs, as the histogram takes its share for nothing.
    Losses are those of all of a client's examples at :math:`w^t`, before it trains.  A cohort that is counted to have
    nobody takes no quantile: all clients count.  A loss that is not a number counts as :math:`B`, and an update
    that is not finite as zeros; a client that adds noise adds it in either case.

    Differs from the paper: the denominator is the number of clients *expected* above the quantile; the paper divides by
    their true number, which it takes to be public though nothing protects it.  With ``at_server=True`` cohorts are
    Poisson samples, which its accountant assumes and its experiments do not draw, and noise is Gaussian, of which more
    is known under sampling.  With False clients add discrete noise to the histogram, as in the paper, and to the sum of
    updates, too.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=60, alpha=0.3)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> method = dp_delta_fl(work, theta=0.5, largest_loss=3.0, clip=0.5, noise_multiplier=1.0, rate=0.5)
      >>> run = eh.simulate(method, data, rounds=4)
      >>> bool(0 < run.per_round["quantile"][-1] <= 3.0)
      True

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithms 2 and 4, appendix D.
    """
    at_server = truth_value("at_server", at_server)
    levels = levels_of("dp_delta_fl", theta)
    positive("dp_delta_fl(share=)", share)
    positive("dp_delta_fl(noise_multiplier=)", noise_multiplier)
    local.check_work(work)
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
    of_mean = noise_multiplier * (1.0 + share) ** 0.5
    of_histogram = of_mean * share**-0.5
    if at_server:
        plain = histogram(bins, largest=largest_loss, sigma=0.0, scale=_SCALE)
        counting = plain._replace(sigma=of_histogram * plain.sensitivity("tight"))
        if 10.0 * counting.sigma > 2.0**31:
            # An int32 would cut the noise off at its ends, and the counts would show there.
            raise EvenhandError(
                f"dp_delta_fl(noise_multiplier={noise_multiplier:g}): the noise on the histogram does not fit into 32 "
                "bits: give less, or a larger share."
            )
        quantile = quantile_sum(counting, theta=levels.given, at_server=True)
        release = Release(of_histogram, rate)
        mean, sampling = noisy_mean(clip, noise_multiplier=of_mean, rate=rate), poisson(rate)
    else:
        fewest = _checked(fewest)
        counting = _distributed(fewest, of_histogram, bins, largest_loss)
        quantile = quantile_sum(counting, theta=levels.given, fewest=fewest)
        release = Release(of_histogram / 2.0, rate, "fixed", mechanism="concentrated")
        mean = discrete_mean(clip, noise_multiplier=of_mean, rate=rate, fewest=fewest)
        sampling = fixed(rate)

    exchanges = (
        counts(work, levels, counting, quantile._replace(release=release)),
        _trains(work, levels, counting, server_opt, mean),
    )
    method = method_of(levels, work, server_opt=server_opt, phases=exchanges, sampling=sampling)
    begin, cohort = method.init, sampling.slots

    def init(params: Params, clients: int) -> ServerState:
        if not at_server and cohort is not None:
            check_room("dp_delta_fl", counting, cohort(clients))
        return begin(params, clients)

    name = f"dp_delta_fl(theta={levels.shown}, noise_multiplier={noise_multiplier:g})"
    return private(method._replace(init=init))._replace(name=name)


def _checked(fewest: int | None) -> int:
    """How many clients answer at least, which has no default."""
    if fewest is None:
        raise EvenhandError(
            "dp_delta_fl(at_server=False) needs fewest=, how many clients of a cohort answer at least: their noise "
            "must suffice."
        )
    return whole_number("dp_delta_fl(fewest=)", fewest, 2)


def _distributed(fewest: int, noise_multiplier: float, bins: int, largest_loss: float) -> Histogram:
    """The histogram to which at least ``fewest`` clients add noise, for one client that is replaced."""
    # That client moves two paths, and so spends twice what one that is added does: together 2 / z^2, as in the mean,
    # whose sum it moves by twice the clip.
    budget = noise_multiplier**-2
    return histogram_for(
        budget, clients=fewest, bins=bins, largest=largest_loss, sensitivity="tight", bits=32
    )


def _trains(
    work: local.Work, levels: Tails, counting: Histogram, server_opt: optax.GradientTransformation, mean: Sum
) -> Phase:
    """The second exchange: those whose loss is at least the quantile send what they have learnt, the others zeros."""

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        learnt = learnt_in_tails(work, levels, counting, message, data, key)
        return levels.join(delta for _, delta in learnt), state

    def server(state: ServerState, direction: PyTree, reported: Array, key: Key) -> tuple[ServerState, Info]:
        parts = zip(
            levels.theta,
            *map(levels.split, (state.params, state.optimiser, direction)),
            levels.names("update_norm"),
            strict=True,
        )
        params, optimisers, norms = list[Params](), list[optax.OptState](), dict[str, Array]()
        for fraction, before, optimiser, total, name in parts:
            gradient = tree.scale(-1.0 / fraction, total)
            updates, after = server_opt.update(gradient, optimiser, before)
            params.append(optax.apply_updates(before, updates))
            optimisers.append(after)
            norms[name] = tree.norm(gradient)
        return ServerState(levels.join(params), levels.join(optimisers), state.extra), norms

    return Phase(
        broadcast=broadcast,
        report=report,
        work=train,
        aggregator=mean,
        server=server,
        effort=levels.effort(work.effort),
    )
