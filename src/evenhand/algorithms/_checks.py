"""Slips in the making of a method, each told in one sentence."""

from __future__ import annotations

import optax

from evenhand.errors import EvenhandError, expect
from evenhand.local import Work, check_model
from evenhand.types import Sampling, Stack, Sum

__all__ = ["check_parts", "check_work"]


def check_parts(work: object, aggregator: object, sampling: object, server_opt: object) -> None:
    """The parts of a method are what their arguments' names say."""
    check_work(work)
    expect("aggregator", aggregator, Sum | Stack, "eh.aggregators.mean()")
    expect("sampling", sampling, Sampling, "eh.sampling.uniform()")
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")


def check_work(work: object, name: str = "work") -> Work:
    """``work`` is local work, of a model, and ``name`` the argument that it is."""
    expect(name, work, Work, "eh.local.sgd(model, 0.1, epochs=1, batch_size=10)")
    assert isinstance(work, Work)
    check_model(work.model)
    for field, function in (("solve", work.solve), ("effort", work.effort)):
        if not callable(function):
            raise EvenhandError(f"{name}={work!r:.200}: its {field} is not a function; see eh.local.Work.")
    return work
