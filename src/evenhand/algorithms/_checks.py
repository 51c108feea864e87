"""Slips in the making of a method, each told in one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import EvenhandError
from evenhand.types import Model, Sampling, Stack, Sum

__all__ = ["check_parts"]


def check_parts(model: object, aggregator: object, sampling: object, server_opt: object) -> None:
    """The parts of a method are what their arguments' names say."""
    expected = (
        ("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)"),
        ("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()"),
        ("sampling", sampling, Sampling, "eh.sampling.uniform()"),
        ("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)"),
    )
    for name, value, kind, example in expected:
        if not isinstance(value, kind):
            raise EvenhandError(f"A method got {value!r:.60} as its {name}: give a value such as {example}.")
