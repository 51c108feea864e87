"""Checks of a method's parts; each raises one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import EvenhandError, expect
from evenhand.local import Work, check_model
from evenhand.types import Sampling, Stack, Sum

__all__ = ["check_parts", "check_work"]


def check_parts(work: object, aggregator: object, sampling: object, server_opt: object) -> None:
    """Checks that each part of a method is of the kind that its argument takes."""
    check_work(work)
    expect("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()")
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")


def check_work(work: object, name: str = "work") -> Work:
    """``work``, checked to be local work on a model; ``name`` is the argument that it was passed as."""
    expect(name, work, Work, "eh.local.sgd(model, 0.1, epochs=1, batch_size=10)")
    assert isinstance(work, Work)
    check_model(work.model)
    for field, function in (("solve", work.solve), ("effort", work.effort)):
        if not callable(function):
            raise EvenhandError(f"{name}={work!r:.200}: its {field} is not a function; see eh.local.Work.")
    return work
