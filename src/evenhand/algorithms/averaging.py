"""What the averaging methods share: the server's state and step, the report, and the phase in which clients train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.errors import expect
from evenhand.local import check_work
from evenhand.sampling import uniform
from evenhand.types import (
    Aggregator,
    ClientData,
    Info,
    Key,
    Model,
    Params,
    Phase,
    PyTree,
    Report,
    Sampling,
)

__all__ = [
    "Message",
    "ServerState",
    "global_params",
    "kept_state",
    "of_sums",
    "report",
    "server_init",
    "server_step",
    "training",
]


class ServerState(NamedTuple):
    """What the server of an averaging method keeps from round to round.

    Attributes:
      params: the global model.
      optimiser: the state of the server's optimiser.
      extra: whatever else the method keeps, any tree of arrays.
    """

    params: Params
    optimiser: optax.OptState
    extra: PyTree


class Message(NamedTuple):
    """The broadcast of an averaging method.

    Attributes:
      params: the global model.
      extra: whatever else the method sends its clients, any tree of arrays.
    """

    params: Params
    extra: PyTree


def server_init(server_opt: optax.GradientTransformation, params: Params, extra: PyTree = ()) -> ServerState:
    """The server's state before the first round: ``params`` is the initial model, ``extra`` what the method keeps."""
    return ServerState(params, server_opt.init(params), extra)


def server_step(
    server_opt: optax.GradientTransformation, state: ServerState, direction: Params
) -> tuple[ServerState, Info]:
    """``(state, info)`` after one step of the server's optimiser along ``direction``; ``info`` has its norm."""
    updates, optimiser = server_opt.update(tree.scale(-1.0, direction), state.optimiser, state.params)
    params = optax.apply_updates(state.params, updates)
    return ServerState(params, optimiser, state.extra), {"update_norm": tree.norm(direction)}


def global_params(state: ServerState) -> Params:
    """The global model, for the field ``global_params`` of an ``Algorithm``."""
    return state.params


def report(
    model: Model, params: Params, data: ClientData, sampling: Sampling, aggregator: Aggregator
) -> Report:
    """The client's report: its weight under ``sampling``, and its loss at ``params`` if ``aggregator`` needs it."""
    weight = sampling.weight(data.size)
    if aggregator.needs_loss:
        return Report(weight, local.full_loss(model, params, data))
    return Report(weight, jnp.full_like(weight, jnp.nan))


def of_sums(phase: Phase) -> Phase:
    """The phase whose clients report the sum of the losses on their examples, and not the mean."""

    def summed(message: PyTree, client_state: PyTree, data: ClientData) -> Report:
        mean = phase.report(message, client_state, data)
        return mean._replace(loss=mean.loss * data.size.astype(mean.loss.dtype))

    return phase._replace(report=summed)


def kept_state(work: local.Work) -> Callable[[Params], PyTree]:
    """``params -> client_state`` of :func:`training`: the optimiser's state where the work keeps that, else ``()``."""
    return (lambda params: ()) if work.kept is None else work.kept.init


Correction: TypeAlias = Callable[[Message, ClientData], optax.GradientTransformation]
"""``(message, data) -> transformation`` that each local gradient passes through."""


REPORTS_LOSS = (
    "the aggregator of this method asks clients for the loss on their examples, which they report without noise: give "
    "this work to eh.algorithms.fedavg with another aggregator, or to eh.algorithms.alone"
)
"""Why work that guarantees privacy is not taken by methods whose weights depend on losses."""


def training(
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    correction: Correction = lambda message, data: optax.identity(),
    attach: Callable[[PyTree], PyTree] = lambda extra: (),
    private: bool = False,
    keeps: bool = False,
    statistics_stay: bool = False,
) -> Phase:
    r"""The phase of FedAvg and its variants: train from the broadcast model, upload the difference, step.

    .. math::
        \Delta_k = \texttt{work.solve}(w^t; D_k, \texttt{correction}) - w^t, \qquad
        w^{t+1} = w^t + \texttt{server\_opt}\big( \texttt{aggregator}(\Delta_1, \dots, \Delta_m) \big)

    Its server state is a :class:`ServerState`, which :func:`server_init` makes, and its broadcast a :class:`Message`.
    A method replaces what differs: ``training(...)._replace(server=...)``.

    Args:
      work: the local work.
      server_opt: the server's optimiser, on the pseudo-gradient: the direction times -1.
      aggregator: reduces the uploads to one direction.
      sampling: gives the clients' weights; it must be the ``Algorithm``'s own, as both make the average right.
      correction: ``(message, data) -> transformation`` that each local gradient passes through before the client's
        optimiser, such as ``eh.local.proximal(mu, message.params)``; by default none changes.
      attach: ``extra -> tree``, what is broadcast beside the model: all or part of the method's own state, which is
        ``message.extra`` then; by default nothing.
      private: whether the method keeps the privacy guarantee of private work: it then corrects no gradient, and its
        clients report no loss.
      keeps: whether work that keeps its optimiser is taken; the ``Algorithm`` then has
        ``init_client=kept_state(work)``.
      statistics_stay: whether a model is taken whose running statistics stay with their client; the ``Algorithm`` then
        keeps them there.

    Running statistics that are sent are averaged as the aggregator averages parameters, and ``server_opt`` does not
    change them.

    Returns:
      A phase whose client states are whatever the method has, and stay as they are; or those of :func:`kept_state`.

    Raises:
      EvenhandError: an argument of the wrong kind, or private work in a method that is not ``private``.

    Example:
      >>> import evenhand as eh
      >>> def near(work, *, mu):
      ...     phase = training(work, correction=lambda message, data: eh.local.proximal(mu, message.params))
      ...     return eh.types.Algorithm(
      ...         model=work.model,
      ...         init=lambda params, clients: server_init(optax.sgd(1.0), params),
      ...         phases=(phase,),
      ...         global_params=global_params,
      ...         sampling=eh.sampling.uniform(),
      ...         name="near",
      ...     )
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
      >>> data = eh.data.load("digits", clients=10)
      >>> one, other = (eh.simulate(method, data, rounds=2) for method in (
      ...     near(work, mu=0.1), eh.algorithms.fedprox(work, mu=0.1)))
      >>> bool((one.params["kernel"] == other.params["kernel"]).all())
      True
    """
    expect("aggregator", aggregator, Aggregator, "eh.aggregators.mean()")
    if aggregator.needs_loss:
        check_work(work, keeps=keeps, statistics_stay=statistics_stay, objection=REPORTS_LOSS)
    else:
        check_work(work, private=private, keeps=keeps, statistics_stay=statistics_stay)
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
    averages = local.spared(server_opt, work.model.statistics, sign=-1.0)

    def train(message: Message, client_state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        added = correction(message, data)
        if work.kept is None:
            params, _ = work.solve(message.params, data, key, added)
        else:
            params, client_state, _ = work.kept.solve(message.params, client_state, data, key, added)
        return tree.subtract(params, message.params), client_state

    return Phase(
        broadcast=lambda state, client: Message(state.params, attach(state.extra)),
        report=lambda message, kept, data: report(work.model, message.params, data, sampling, aggregator),
        work=train,
        aggregator=aggregator,
        server=lambda state, direction, reported, key: server_step(averages, state, direction),
        effort=work.effort,
    )
