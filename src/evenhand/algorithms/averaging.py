"""What the averaging methods share: the server's state and step, the report, and the phase in which clients train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.errors import expect
from evenhand.local import check_work
from evenhand.types import (
    Aggregator,
    Array,
    ClientData,
    Info,
    Key,
    Model,
    Params,
    Phase,
    PyTree,
    Report,
    Sampling,
    Stack,
    Sum,
)

__all__ = [
    "Message",
    "ServerState",
    "check_parts",
    "global_params",
    "report",
    "server_init",
    "server_step",
    "training",
]


class ServerState(NamedTuple):
    """The global model, the server optimiser's state, and whatever else the method keeps."""

    params: Params
    optimiser: optax.OptState
    extra: PyTree


class Message(NamedTuple):
    """The broadcast: the global model and whatever else the method sends its clients."""

    params: Params
    extra: PyTree


def server_init(server_opt: optax.GradientTransformation, params: Params, extra: PyTree = ()) -> ServerState:
    """The server's state before the first round."""
    return ServerState(params, server_opt.init(params), extra)


def server_step(
    server_opt: optax.GradientTransformation, state: ServerState, direction: Params
) -> tuple[ServerState, Info]:
    """One step of the server optimiser, with ``-direction`` as the gradient."""
    updates, optimiser = server_opt.update(tree.scale(-1.0, direction), state.optimiser, state.params)
    params = optax.apply_updates(state.params, updates)
    return ServerState(params, optimiser, state.extra), {"update_norm": tree.norm(direction)}


def global_params(state: ServerState) -> Params:
    """The global model."""
    return state.params


def report(
    model: Model, params: Params, data: ClientData, sampling: Sampling, aggregator: Aggregator
) -> Report:
    """The client's weight, and its loss at ``params`` if the aggregator asks for it."""
    weight = sampling.weight(data.size)
    if aggregator.needs_loss:
        return Report(weight, local.full_loss(model, params, data))
    return Report(weight, jnp.full_like(weight, jnp.nan))


def training(
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation,
    aggregator: Aggregator,
    sampling: Sampling,
    correction: Callable[[Message, ClientData], optax.GradientTransformation],
    attach: Callable[[PyTree], PyTree] = lambda extra: (),
    private: bool = False,
) -> Phase:
    """The phase of FedAvg and its variants: train from the broadcast model, upload the difference, step.

    Args:
      work: the local work.
      server_opt: the server's optimiser.
      aggregator: reduces the uploads.
      sampling: gives the clients' weights.
      correction: what is added to each local gradient, given the broadcast and the client's data.
      attach: what is broadcast along with the model, given the method's part of the server state.
      private: whether the method keeps the promise of work that promises privacy: it then corrects no gradient, and its
        clients report no loss.
    """
    check_parts(work, aggregator, sampling, server_opt, private=private)

    def broadcast(state: ServerState, client: Array) -> Message:
        return Message(state.params, attach(state.extra))

    def client_report(message: Message, client_state: PyTree, data: ClientData) -> Report:
        return report(work.model, message.params, data, sampling, aggregator)

    def train(message: Message, client_state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        params, _ = work.solve(message.params, data, key, correction(message, data))
        return tree.subtract(params, message.params), client_state

    def server(state: ServerState, direction: Params, reported: Array, key: Key) -> tuple[ServerState, Info]:
        return server_step(server_opt, state, direction)

    return Phase(broadcast, client_report, train, aggregator, server, effort=work.effort)


def check_parts(
    work: object, aggregator: object, sampling: object, server_opt: object, *, private: bool = False
) -> None:
    """Checks that each part of a method is of the kind that its argument takes.

    ``private``: the method keeps the promise of work that promises privacy.
    """
    reports = isinstance(aggregator, Sum | Stack) and aggregator.needs_loss
    check_work(work, private=private and not reports)
    expect("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()")
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
