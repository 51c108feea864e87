"""Uploads made of several parts, each with its own aggregator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError
from evenhand.types import Array, Cohort, Key, PyTree, Report, Sum, Upload

__all__ = ["in_parts"]


def in_parts(parts: Sequence[Sum]) -> Sum:
    """Several sums as one: a delta is a tuple with an entry for each, and so are weights and losses.

    Args:
      parts: the sums, each of one pass, that stream.

    Raises:
      EvenhandError: some of them add whole numbers under :func:`evenhand.aggregators.secure`, and others do not.
    """
    summations = [part.summation for part in parts]
    if len({each is not None and each.bits for each in summations}) > 1:
        raise EvenhandError(
            "Methods side by side share their uploads: give secure(...) to all of them, or to none."
        )

    def weigh(reports: Report, cohort: Cohort, states: PyTree) -> tuple[Array, PyTree]:
        weights, after = list[Array](), list[PyTree]()
        for j, (part, state) in enumerate(zip(parts, states, strict=True)):
            weight = reports.weight[:, j]
            if part.weigh is not None:
                weight, state = part.weigh(Report(weight, reports.loss[:, j]), cohort, state)
            weights.append(weight)
            after.append(state)
        return jnp.stack(weights, axis=1), tuple(after)

    def uploads(upload: Upload) -> Iterator[Upload]:
        return (Upload(delta, upload.weight[j], upload.loss[j]) for j, delta in enumerate(upload.delta))

    def lift(upload: Upload, publics: PyTree, key: Key) -> PyTree:
        return tuple(
            part.lift(one, public, jax.random.fold_in(key, j))
            for j, (part, one, public) in enumerate(zip(parts, uploads(upload), publics, strict=True))
        )

    def lower(totals: PyTree, states: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        done = [
            part.lower(total, one, jax.random.fold_in(key, j))
            for j, (part, total, one) in enumerate(zip(parts, totals, states, strict=True))
        ]
        return tuple(direction for direction, _ in done), tuple(state for _, state in done)

    return Sum(
        init=lambda likes, clients: tuple(
            part.init(like, clients) for part, like in zip(parts, likes, strict=True)
        ),
        lift=lift,
        lower=lower,
        publish=lambda states: tuple(part.publish(one) for part, one in zip(parts, states, strict=True)),
        weigh=weigh if any(part.weigh for part in parts) else None,
        needs_loss=any(part.needs_loss for part in parts),
        summation=None if summations[0] is None else summations[0]._replace(numbers=None, anything=None),
        needs=tuple(dict.fromkeys(need for part in parts for need in part.needs)),
    )
