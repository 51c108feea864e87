"""What Delta-FL's forms without losses in the clear share: the exchange that counts losses, and who is in a tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.algorithms.averaging import Message, ServerState, global_params
from evenhand.algorithms.delta_fl_levels import check_levels, delta_fl_levels
from evenhand.errors import EvenhandError, real_number
from evenhand.privacy._quantile import Histogram
from evenhand.text import of_model
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Effort,
    Info,
    Key,
    Model,
    Params,
    Phase,
    PyTree,
    Report,
    Sampling,
    Sum,
)

MOST_NOISE = 10
"""Standard deviations that no draw of a discrete Gaussian reaches."""


class Tails(NamedTuple):
    """The tail fractions, each with a model; parameters, quantiles and server states are tuples, or those of one.

    Attributes:
      theta: in decreasing order.
      several: whether there is a tuple, perhaps of one.
    """

    theta: tuple[float, ...]
    several: bool

    @property
    def given(self) -> float | tuple[float, ...]:
        """What :func:`evenhand.privacy.quantile_sum` takes."""
        return self.theta if self.several else self.theta[0]

    @property
    def shown(self) -> str:
        """For a method's name."""
        return ", ".join(f"{fraction:g}" for fraction in self.theta)

    def split(self, parts: Any) -> Sequence[Any]:
        """The parts of all levels."""
        return parts if self.several else (parts,)

    def join(self, parts: Iterable[Any]) -> Any:
        """The inverse of :meth:`split`."""
        parts = tuple(parts)
        return parts if self.several else parts[0]

    def names(self, metric: str) -> list[str]:
        """What each level records a metric under, as :func:`evenhand.algorithms.delta_fl_levels` does."""
        if not self.several:
            return [metric]
        return [of_model(metric, f"theta={fraction:g}") for fraction in self.theta]

    def effort(self, effort: Callable[[ClientData], Effort]) -> Callable[[ClientData], Effort]:
        """The effort of the same work for each level."""
        return local.in_turn(*(effort for _ in self.theta)) if self.several else effort

    def server_init(self, server_opt: optax.GradientTransformation, params: Params) -> ServerState:
        """The server's state before the first round, with quantiles of 0, of which everybody is above."""
        optimiser = self.join(server_opt.init(own) for own in self.split(params))
        edges = jnp.zeros(len(self.theta), jnp.float32) if self.several else jnp.float32(0.0)
        return ServerState(params, optimiser, edges)


def levels_of(caller: str, theta: float | tuple[float, ...]) -> Tails:
    """The levels of one fraction, or of a tuple of them."""
    if isinstance(theta, tuple):
        return Tails(check_levels(caller, theta), several=True)
    if not 0.0 < real_number(theta) <= 1.0:
        raise EvenhandError(f"{caller}(theta={theta}): give a fraction above 0 and at most 1.")
    return Tails((float(theta),), several=False)


def method_of(
    levels: Tails,
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation,
    phases: tuple[Phase, ...],
    sampling: Sampling,
) -> Algorithm:
    """A method of these exchanges; with several levels, it serves clients as ``delta_fl_levels`` does."""
    method = Algorithm(
        model=work.model,
        init=lambda params, clients: levels.server_init(server_opt, params),
        phases=phases,
        global_params=global_params,
        sampling=sampling,
    )
    if not levels.several:
        return method
    return delta_fl_levels(work, theta=levels.theta)._replace(
        init=method.init,
        phases=phases,
        global_params=global_params,
        sampling=sampling,
        init_client=method.init_client,
        received=method.received,
    )


def broadcast(state: ServerState, client: Array) -> Message:
    """The models, and the last quantiles, which the server keeps beside them."""
    return Message(state.params, state.extra)


def report(message: Message, state: PyTree, data: ClientData) -> Report:
    """The same of all clients: neither a loss, nor who is in a tail, nor how many examples a client has."""
    return Report(jnp.float32(1.0), jnp.float32(jnp.nan))


def counts(work: local.Work, levels: Tails, counting: Histogram, aggregator: Sum) -> Phase:
    """The first exchange: the quantiles of the clients' losses."""

    def loss(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[Array, PyTree]:
        return counted_loss(work.model, levels, counting, message.params, data), state

    def server(state: ServerState, direction: Array, reported: Array, key: Key) -> tuple[ServerState, Info]:
        edges = dict(zip(levels.names("quantile"), levels.split(direction), strict=True))
        return state._replace(extra=direction), edges

    return Phase(
        broadcast=broadcast,
        report=report,
        work=loss,
        aggregator=aggregator,
        server=server,
        # Losses only: a pass over the examples, and no gradient.
        effort=levels.effort(lambda data: local.every_row(data)._replace(rows=jnp.int32(0))),
    )


def counted_loss(model: Model, levels: Tails, counting: Histogram, params: Params, data: ClientData) -> Array:
    r""":math:`\ell_k`, the mean of a client's losses under the models of all levels, clipped."""
    losses = [local.full_loss(model, own, data) for own in levels.split(params)]
    return counting.clip(reduce(jnp.add, losses) * (1 / len(losses)) if levels.several else losses[0])


def learnt_in_tails(
    work: local.Work, levels: Tails, counting: Histogram, message: Message, data: ClientData, key: Key
) -> list[tuple[Array, PyTree]]:
    """For each level, whether a client is in its tail, and what local work changes in its model, or else zeros."""
    loss = counted_loss(work.model, levels, counting, message.params, data)
    learnt = list[tuple[Array, PyTree]]()
    for before, edge in zip(levels.split(message.params), levels.split(message.extra), strict=True):
        # All levels share the key, and so the batches, as methods side by side do.
        after, _ = work.solve(before, data, key, optax.identity())
        delta = tree.subtract(after, before)
        inside = loss >= edge
        learnt.append((inside, tree.select(inside, delta, tree.zeros_like(delta))))
    return learnt


def check_room(caller: str, counting: Histogram, clients: int) -> None:
    """Refuses noisy counts of which the sum over so many clients could wrap around."""
    if clients * (counting.scale + MOST_NOISE * counting.sigma) >= 2.0 ** (counting.bits - 1):
        raise EvenhandError(
            f"{caller}(): the noisy counts of {clients} clients could wrap around modulo 2**{counting.bits}: "
            "give fewer clients, a smaller scale or less noise."
        )
