"""Checks of a method's parts; each raises one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import expect
from evenhand.local import check_work
from evenhand.types import Sampling, Stack, Sum

__all__ = ["check_parts"]


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
