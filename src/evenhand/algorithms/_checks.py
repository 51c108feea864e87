"""Checks of a method's parts; each raises one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import expect
from evenhand.local import check_work
from evenhand.types import Sampling, Stack, Sum

__all__ = ["check_parts"]


def check_parts(work: object, aggregator: object, sampling: object, server_opt: object) -> None:
    """Checks that each part of a method is of the kind that its argument takes."""
    check_work(work)
    expect("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()")
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
