"""Slips in the making of a method, each told in one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import expect
from evenhand.types import Model, Sampling, Stack, Sum

__all__ = ["check_parts"]


def check_parts(model: object, aggregator: object, sampling: object, server_opt: object) -> None:
    """The parts of a method are what their arguments' names say."""
    expect(
        "model",
        model,
        Model,
        "eh.models.softmax_regression(features=64, classes=10), or a flax module through "
        "eh.models.from_flax(module, loss=..., sample=...)",
    )
    expect("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()")
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
