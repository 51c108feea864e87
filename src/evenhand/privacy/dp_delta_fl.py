"""Delta-FL end to end under privacy: a private quantile of the losses, then a noisy mean of those above it."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.algorithms.averaging import Message, ServerState, global_params, server_init
from evenhand.errors import EvenhandError
from evenhand.privacy._quantile import Histogram, histogram, quantile_sum
from evenhand.privacy.client_level import private
from evenhand.privacy.gaussian import noisy_mean
from evenhand.sampling import poisson
from evenhand.types import Algorithm, Array, ClientData, Info, Key, Phase, PyTree, Release, Report, Sum

__all__ = ["dp_delta_fl"]

_SCALE = 16
"""Of the counts, so that to round their noise hardly adds to it."""


def dp_delta_fl(
    work: local.Work,
    *,
    theta: float,
    largest_loss: float,
    clip: float,
    noise_multiplier: float,
    rate: float = 0.1,
    bins: int = 32,
    share: float = 0.5,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""Delta-FL with client-level privacy: neither losses nor updates are seen, and both sums are noisy.

    Each round has two exchanges with one Poisson cohort: a histogram of the losses, in whole numbers under Gaussian
    noise, gives the quantile :math:`Q`; then every client trains, and

    .. math::
        w^{t+1} = w^t + \frac1{\theta q N} \Big( \sum_{k:\, F_k(w^t) \ge Q} \Delta_k \min\Big(1,
        \frac{C}{\|\Delta_k\|}\Big) + \mathcal N(0, z_w^2 C^2 I) \Big).

    with :math:`z_w = z \sqrt{1 + r}`.  Clients below the quantile send zeros, so that nobody sees who is above it.

    Args:
      work: as in :func:`evenhand.algorithms.delta_fl`.
      theta: :math:`\theta`, the fraction of the clients, the worst served, that counts.
      largest_loss: :math:`B`, to which losses are clipped; public.
      clip: :math:`C`, in the units of an update; the paper's is that of an update over the step size.
      noise_multiplier: :math:`z`, of both exchanges together.
      rate: :math:`q`, the chance with which each client is drawn.
      bins: of the histogram, a power of two.
      share: :math:`r`, the histogram's budget over that of the mean, in concentrated privacy.
      server_opt: the server's optimiser; ``sgd(1.0)`` is averaging.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: ``theta=1`` is DP-FedAvg with more noise than it needs, as the histogram takes its share for nothing.
    Losses are those of all of a client's examples at :math:`w^t`, before it trains.  A cohort that is counted to have
    nobody takes no quantile: all clients count.

    Differs from the paper: the denominator is the number of clients *expected* above the quantile; the paper divides by
    their true number, which it takes to be public though nothing protects it.  Cohorts are Poisson
    samples, which its accountant assumes and its experiments do not draw.  The server adds the noise of both sums,
    so that it is Gaussian, of which more is known under sampling; in the paper every client adds discrete noise to the
    histogram, whose sum would tell how many they are (:func:`evenhand.privacy.quantile_sum` has that form, too, for
    cohorts of a fixed size).

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
    if not 0.0 < theta <= 1.0 or not share > 0.0 or not noise_multiplier > 0.0:
        raise EvenhandError(
            f"dp_delta_fl(theta={theta}, share={share}, noise_multiplier={noise_multiplier}): give a fraction above 0 "
            "and at most 1, and two numbers above 0."
        )
    of_mean = noise_multiplier * (1.0 + share) ** 0.5
    of_histogram = of_mean * share**-0.5
    counting = histogram(bins, largest=largest_loss, sigma=0.0, scale=_SCALE)
    counting = counting._replace(sigma=of_histogram * counting.sensitivity("tight"))
    quantile = quantile_sum(counting, theta=theta, integers_only=True, at_server=True)
    quantile = quantile._replace(release=Release(of_histogram, rate))
    mean = noisy_mean(clip, noise_multiplier=of_mean, rate=rate)

    method = Algorithm(
        model=work.model,
        init=lambda params, clients: server_init(server_opt, params, jnp.float32(0.0)),
        phases=(_counts(work, quantile), _trains(work, counting, server_opt, theta, mean)),
        global_params=global_params,
        sampling=poisson(rate),
    )
    name = f"dp_delta_fl(theta={theta:g}, noise_multiplier={noise_multiplier:g})"
    return private(method)._replace(name=name)


def _counts(work: local.Work, aggregator: Sum) -> Phase:
    """The first exchange: the quantile of the losses."""

    def loss(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[Array, PyTree]:
        return local.full_loss(work.model, message.params, data), state

    def server(state: ServerState, direction: Array, reported: Array, key: Key) -> tuple[ServerState, Info]:
        return state._replace(extra=direction), {"quantile": direction}

    return Phase(
        broadcast=_broadcast,
        report=_report,
        work=loss,
        aggregator=aggregator,
        server=server,
        # Losses only: a pass over the examples, and no gradient.
        effort=lambda data: local.every_row(data)._replace(rows=jnp.int32(0)),
    )


def _trains(
    work: local.Work, counting: Histogram, server_opt: optax.GradientTransformation, theta: float, mean: Sum
) -> Phase:
    """The second exchange: those whose loss is at least the quantile send what they have learnt, the others zeros."""

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        loss = counting.clip(local.full_loss(work.model, message.params, data))
        params, _ = work.solve(message.params, data, key, optax.identity())
        delta = tree.subtract(params, message.params)
        return tree.select(loss >= message.extra, delta, tree.zeros_like(delta)), state

    def server(state: ServerState, direction: PyTree, reported: Array, key: Key) -> tuple[ServerState, Info]:
        gradient = tree.scale(-1.0 / theta, direction)
        updates, optimiser = server_opt.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        return ServerState(params, optimiser, state.extra), {"update_norm": tree.norm(gradient)}

    return Phase(
        broadcast=_broadcast, report=_report, work=train, aggregator=mean, server=server, effort=work.effort
    )


def _broadcast(state: ServerState, client: Array) -> Message:
    """The global model, and the last quantile, which the server keeps beside it."""
    return Message(state.params, state.extra)


def _report(message: Message, state: PyTree, data: ClientData) -> Report:
    return Report(jnp.float32(1.0), jnp.float32(jnp.nan))
