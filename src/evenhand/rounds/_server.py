"""The server's half of a round: what it rejects, how it weighs, and its step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.types import Aggregator, Algorithm, Array, Cohort, Info, Key, Phase, PyTree, Report, Sum

__all__ = [
    "Step",
    "accepts_delta",
    "accepts_report",
    "effective",
    "largest_weight",
    "server_step",
    "weighed",
]


class Step(NamedTuple):
    """The result of the server's step: its state, that of the phase's aggregator, and what is reported."""

    server: PyTree
    memory: PyTree
    info: Info


def largest_weight(algorithm: Algorithm, capacity: int) -> Array:
    """The weight of the largest client, whose ``capacity`` of rows the server knows: no honest client reports more."""
    return algorithm.sampling.weight(jnp.int32(capacity))


def accepts_report(aggregator: Aggregator, report: Report, largest: Array) -> Array:
    """Whether an honest client can have sent this: a weight from 0 to the largest, and a finite loss if one is due.

    A bool scalar; where a report has several weights and losses, each must pass.
    """
    # Up to rounding: the server and the client may compile the weight differently.
    fits = (report.weight >= 0) & (report.weight <= largest * (1 + 1e-5))
    return jnp.all(fits & jnp.isfinite(report.loss) if aggregator.needs_loss else fits)


def accepts_delta(delta: PyTree) -> Array:
    """Whether all of an upload is finite, its norm in float32 included; a bool scalar."""
    return jnp.isfinite(tree.norm(delta))


def weighed(
    aggregator: Aggregator, reports: Report, cohort: Cohort, memory: PyTree
) -> tuple[Array, PyTree, Info]:
    """``(weights, memory, info)``: the weights ``(m,)`` that the uploads of a cohort get, given its reports."""
    if not (isinstance(aggregator, Sum) and aggregator.weigh is not None):
        return reports.weight, memory, {}
    weights, memory = aggregator.weigh(tree.among(cohort.present, reports), cohort, memory)
    weights = tree.among(cohort.present, weights)
    return weights, memory, {"effective_cohort": effective(weights)}


def effective(weights: Array) -> Array:
    """The number of equally weighted clients that would count as much: ``(sum w)^2 / sum w^2``; 0 for none.

    The mean of that, where several models are trained side by side, and weights are ``(m, models)``.
    """
    squares = jnp.sum(jnp.square(weights), axis=0)
    sums = jnp.square(jnp.sum(weights, axis=0))
    return jnp.mean(jnp.where(squares > 0, sums / jnp.where(squares > 0, squares, 1.0), 0.0))


def server_step(
    phase: Phase,
    server: PyTree,
    memories: tuple[PyTree, PyTree],
    direction: PyTree,
    reported: Array,
    key: Key,
) -> Step:
    """The server's step.

    Args:
      phase: the exchange that ends.
      server: the algorithm's server state.
      memories: the aggregator's state, before the exchange and after it.
      direction: what the uploads were reduced to.
      reported: how many uploads were accepted.  Without any, nothing changes, unless the phase has ``steps_if_empty``.
      key: of this phase of this round, from the secret root.

    Raises:
      EvenhandError: a state has changed its structure, shapes or dtypes.
    """
    before, after = memories
    stepped, info = phase.server(server, direction, reported, key)
    _check_form("Phase.server", server, stepped)
    _check_form("the aggregator", before, after)
    if phase.steps_if_empty:
        return Step(stepped, after, info)
    anybody = reported > 0
    return Step(tree.select(anybody, stepped, server), tree.select(anybody, after, before), info)


def _check_form(who: str, before: PyTree, after: PyTree) -> None:
    def form(state: PyTree) -> Any:
        leaves, structure = jax.tree.flatten(state)
        return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]

    if form(before) != form(after):
        raise EvenhandError(
            f"A round changed the structure, shapes or dtypes of a state: {who} must return a state like the one that "
            "it gets."
        )
