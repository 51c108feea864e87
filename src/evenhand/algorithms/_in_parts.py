"""One method made of several: its states, messages and updates are tuples with an entry for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from evenhand.aggregators import in_parts
from evenhand.local import in_turn, step_per_row
from evenhand.text import of_model
from evenhand.types import Array, ClientData, Info, Key, Model, Phase, PyTree, Report, Sum

__all__ = ["each_part", "model_in_parts", "phase_in_parts"]

Measure: TypeAlias = Callable[[PyTree, Array], Array]


def each_part(function: Callable[..., Any], *parts: Iterable[Any]) -> tuple[Any, ...]:
    """``map`` over parts, as a tuple."""
    return tuple(function(*entries) for entries in zip(*parts, strict=True))


def model_in_parts(model: Model, names: Sequence[str]) -> Model:
    """A copy of ``model`` for each name; metrics are the first copy's, and each copy's under its name."""

    def of(j: int, measure: Measure) -> Measure:
        return lambda outputs, y: measure(outputs[j], y)

    measures = {"loss": model.losses, **model.metrics}
    named = {
        of_model(name, level): of(j, one) for j, level in enumerate(names) for name, one in measures.items()
    }
    return Model(
        init=lambda key: tuple(model.init(key) for _ in names),
        apply=lambda params, x: tuple(model.apply(one, x) for one in params),
        losses=of(0, model.losses),
        metrics={name: of(0, one) for name, one in model.metrics.items()} | named,
    )


def phase_in_parts(phases: Sequence[Phase], names: Sequence[str]) -> Phase:
    """One exchange that runs all ``phases``; what each records is recorded under its name."""

    def report(messages: PyTree, client_states: PyTree, data: ClientData) -> Report:
        reports = each_part(lambda phase, *both: phase.report(*both, data), phases, messages, client_states)
        # A loss that one phase does not need must not invalidate the report of the others.
        losses = [
            one.loss if phase.aggregator.needs_loss else jnp.zeros_like(one.loss)
            for phase, one in zip(phases, reports, strict=True)
        ]
        return Report(jnp.stack([one.weight for one in reports]), jnp.stack(losses))

    def work(messages: PyTree, client_states: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        # All share the key that the client would have in this round if each method ran alone.
        done = each_part(lambda phase, *both: phase.work(*both, data, key), phases, messages, client_states)
        return each_part(lambda one: one[0], done), each_part(lambda one: one[1], done)

    def server(states: PyTree, directions: PyTree, reported: Array, key: Key) -> tuple[PyTree, Info]:
        done = each_part(lambda phase, *both: phase.server(*both, reported, key), phases, states, directions)
        infos = {
            of_model(what, name): value
            for name, (_, info) in zip(names, done, strict=True)
            for what, value in info.items()
        }
        return each_part(lambda one: one[0], done), infos

    return Phase(
        broadcast=lambda states, client: each_part(
            lambda phase, one: phase.broadcast(one, client), phases, states
        ),
        report=report,
        work=work,
        aggregator=in_parts([phase.aggregator for phase in phases if isinstance(phase.aggregator, Sum)]),
        server=server,
        fresh_cohort=phases[0].fresh_cohort,
        effort=in_turn(*(phase.effort or step_per_row for phase in phases)),
        steps_if_empty=phases[0].steps_if_empty,
    )
