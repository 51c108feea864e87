"""A personal model beside any global method, which it listens to and never influences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from evenhand.errors import EvenhandError, expect
from evenhand.local import Work, check_work, in_turn, step_per_row
from evenhand.text import measured
from evenhand.types import Algorithm, ClientData, Effort, Key, Params, Phase, Privacy, PyTree, Report

__all__ = ["beside", "check_method", "non_negative", "uncovered"]


class _State(NamedTuple):
    """What a client keeps: the wrapped method's state, and its personal one."""

    inner: PyTree
    personal: PyTree


def beside(
    method: Algorithm,
    *,
    begin: Callable[[Params], PyTree],
    train: Callable[[PyTree, Params, ClientData, Key], PyTree],
    serve: Callable[[PyTree], Params],
    effort: Callable[[ClientData], Effort],
    name: str,
) -> Algorithm:
    """``method`` unchanged, while each client of the cohort also trains something of its own in the last exchange.

    Args:
      method: any method; its messages, uploads and server states stay the same to the bit.
      begin: ``params -> personal``, the personal state of a client never drawn before.
      train: ``(personal, received, data, key) -> personal``, given the model in the broadcast and the client's key.
      serve: ``personal -> params`` that the client uses.
      effort: of ``train``.
      name: of the result.
    """

    def wrap(phase: Phase, *, last: bool) -> Phase:
        def report(message: PyTree, state: _State, data: ClientData) -> Report:
            return phase.report(message, state.inner, data)

        def work(message: PyTree, state: _State, data: ClientData, key: Key) -> tuple[PyTree, _State]:
            delta, inner = phase.work(message, state.inner, data, key)
            personal = state.personal
            if last:
                personal = train(personal, method.received(message), data, key)
            return delta, _State(inner, personal)

        own = in_turn(phase.effort or step_per_row, effort) if last else phase.effort
        return phase._replace(report=report, work=work, effort=own)

    *before, final = method.phases
    return method._replace(
        name=name,
        phases=(*(wrap(phase, last=False) for phase in before), wrap(final, last=True)),
        init_client=lambda params: _State(method.init_client(params), begin(params)),
        personal_params=lambda server, state: serve(state.personal),
        adapt=None,
        privacy=uncovered(method.privacy),
    )


def uncovered(promise: Privacy | None) -> Privacy | None:
    """The promise of a method around which clients train models of their own."""
    if promise is None:
        return None
    own = "personal models, which their own clients alone may see"
    return promise._replace(unprotected=(own, *promise.unprotected))


def check_method(who: str, method: object, work: object) -> None:
    """Checks that ``method`` is a method and ``work`` local work on the same model."""
    expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    assert isinstance(method, Algorithm)
    check_work(work)
    assert isinstance(work, Work)
    if work.model == method.model:
        return
    if any(metric != measured(metric) for metric in method.model.metrics):  # of several models side by side
        raise EvenhandError(
            f"{who}() takes a method with one model, and side_by_side() trains several: put {who}() around each of its "
            "methods instead."
        )
    raise EvenhandError(f"{who}() got a method and work with different models: make both with the same one.")


def non_negative(who: str, name: str, value: float, *, infinite: bool = False) -> None:
    """Checks that a weight is a number >= 0."""
    if not (value >= 0.0 and (infinite or value < float("inf"))):
        kind = "a number >= 0, or infinite" if infinite else "a finite number >= 0"
        raise EvenhandError(f"{who}({name}={value}): give {kind}.")
