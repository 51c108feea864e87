"""What the methods of partial personalization share: some parameters cross the wire, and each client keeps the others.

A :class:`evenhand._paths.Division` says which parameters are personal; :func:`partial` makes a method of averaging one
on the shared parameters only, and :func:`restricted` makes local work one on a part of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import optax

from evenhand import local, tree
from evenhand._paths import Division, Named, Personal, shown
from evenhand.errors import EvenhandError, truth_value
from evenhand.text import call_text
from evenhand.types import Algorithm, Array, ClientData, Effort, Info, Key, Params, PyTree, Report

# --- methods on the shared ones ----------------------------------------------------------------------------------

Train = Callable[[Named, Named, Named, ClientData, Key], tuple[Named, Named]]
"""``(shared, personal, fresh, data, key) -> (shared, personal)``, the local work; ``fresh`` is where clients begin."""


class _Server(NamedTuple):
    """The state of the method on the shared parameters, and the personal ones that new clients begin with."""

    inner: PyTree
    fresh: Named


class _Message(NamedTuple):
    """The shared parameters, and the personal ones of new clients where the work needs them."""

    shared: Named
    fresh: Named


def partial(
    method: Algorithm,
    parts: Division,
    train: Train,
    *,
    effort: Callable[[ClientData], Effort],
    sends_fresh: bool,
    stateful: bool,
    name: str,
) -> Algorithm:
    """A method of averaging, on the shared parameters only.

    Args:
      method: made by ``fedavg``, on the whole model.
      parts: the division of the parameters.
      train: the local work on both parts.
      effort: of ``train``.
      sends_fresh: whether the work needs the personal parameters of new clients.
      stateful: whether clients keep their personal parameters; False: they begin anew in every round.
      name: of the result.
    """
    (phase,) = method.phases
    sends_fresh = sends_fresh or not truth_value("stateful", stateful)

    def init(params: Params, clients: int) -> _Server:
        inner = method.init(parts.part(params, personal=False), clients)
        return _Server(inner, parts.part(params, personal=True))

    def broadcast(state: _Server, client: Array) -> _Message:
        message = phase.broadcast(state.inner, client)
        return _Message(method.received(message), state.fresh if sends_fresh else {})

    def report(message: _Message, kept: Named, data: ClientData) -> Report:
        weight = method.sampling.weight(data.size)
        if not phase.aggregator.needs_loss:
            return Report(weight, weight * float("nan"))
        params = parts.whole(message.shared, kept if stateful else message.fresh)
        return Report(weight, local.full_loss(method.model, params, data))

    def work(message: _Message, kept: Named, data: ClientData, key: Key) -> tuple[Named, Named]:
        personal = kept if stateful else message.fresh
        shared, personal = train(message.shared, personal, message.fresh, data, key)
        return tree.subtract(shared, message.shared), personal if stateful else {}

    def server(state: _Server, direction: Named, reported: Array, key: Key) -> tuple[_Server, Info]:
        inner, info = phase.server(state.inner, direction, reported, key)
        return state._replace(inner=inner), info

    def served(state: _Server, personal: Named) -> Params:
        return parts.whole(method.global_params(state.inner), personal)

    return method._replace(
        init=init,
        phases=(phase._replace(broadcast=broadcast, report=report, work=work, server=server, effort=effort),),
        global_params=lambda state: served(state, state.fresh),
        init_client=lambda params: parts.part(params, personal=True) if stateful else {},
        personal_params=served if stateful else None,
        received=_refuse,
        name=name,
    )


def part_name(factory: str, personal: Personal, ridge: float, stateful: bool) -> str:
    """The name of such a method, with the options that are not the usual ones."""
    options = {f"ridge={ridge:g}": ridge != 0, "stateful=False": not truth_value("stateful", stateful)}
    return call_text(factory, shown(personal), options)


def restricted(work: local.Work, parts: Division, factory: str, *, personal: bool) -> Callable[..., Named]:
    """``(trained, fixed, data, key, correction) -> trained``: local work on one part, the other part held fixed."""
    schedule, estimate, client_opt = local.parts_of(work, factory)

    def solve(
        trained: Named, fixed: Named, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> Named:
        def slope(part: Named, batch: local.Batch, key: Key) -> Named:
            params = parts.whole(fixed, part) if personal else parts.whole(part, fixed)
            return parts.part(estimate(params, batch, key), personal=personal)

        return local.descent(schedule, slope, client_opt)(trained, data, key, correction)[0]

    return solve


def _refuse(message: PyTree) -> Params:
    raise EvenhandError(
        "Only a part of this method's model is sent to clients, so that nothing that needs the whole model, such as "
        "ditto() around it or the attack random_model(), works with it: put finetune() around it, make a larger part "
        "of it personal, or take another attack."
    )
