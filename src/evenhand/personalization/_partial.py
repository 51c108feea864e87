"""What the methods of partial personalization share: some parameters cross the wire, and each client keeps the others.

A :class:`Division` says which parameters are personal; :func:`partial` makes a method of averaging one on the shared
parameters only, and :func:`restricted` makes local work one on a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import jax
import optax

from evenhand import local, tree
from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.types import Algorithm, Array, ClientData, Effort, Info, Key, Model, Params, PyTree, Report

# --- which parameters are personal -------------------------------------------------------------------------------

Personal: TypeAlias = str | tuple[str, ...] | Callable[[Params], PyTree]
"""Which parameters are personal: patterns of their paths, or a function that gives a tree of bools like the parameters.

A pattern, such as ``"output"``, ``"conv_*"`` or ``"block_1/norm/scale"``, takes all parameters below a path that it
matches; ``*`` stands for any characters.  ``"*"`` takes all, and ``()`` none.
"""

Named: TypeAlias = Mapping[str, Array]


class Division(NamedTuple):
    """How a model's parameters are divided, by path.

    Attributes:
      is_personal: path -> whether that parameter is personal, in the order of the parameters' leaves.
      structure: of the parameters.
    """

    is_personal: Mapping[str, bool]
    structure: Any

    def part(self, params: Params, *, personal: bool) -> Named:
        """The personal parameters, or the shared ones, by path."""
        leaves = jax.tree.leaves(params)
        pairs = zip(self.is_personal.items(), leaves, strict=True)
        return {path: leaf for (path, own), leaf in pairs if own == personal}

    def whole(self, shared: Named, personal: Named) -> Params:
        """The parameters made of both parts."""
        leaves = [(personal if own else shared)[path] for path, own in self.is_personal.items()]
        return jax.tree.unflatten(self.structure, leaves)


def division(model: Model, personal: Personal) -> Division:
    """The division of a model's parameters.

    Raises:
      ModelError: a pattern that no parameter matches, or a mask that is not like the parameters.
      EvenhandError: something else than patterns or a function.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten_with_path(shapes)
    paths = ["/".join(jax.tree_util.keystr((key,), simple=True) for key in path) for path, _ in leaves]
    if callable(personal):
        chosen, form = jax.tree.flatten(personal(shapes))
        if form != structure or not all(isinstance(leaf, bool) for leaf in chosen):
            raise ModelError("personal= must give a tree of bools of the same structure as the parameters.")
        return Division(dict(zip(paths, chosen, strict=True)), structure)
    patterns: Any = (personal,) if isinstance(personal, str) else personal
    if not isinstance(patterns, tuple | list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise EvenhandError(
            f"{personal!r:.60} does not say which parameters: give paths such as 'output' or ('conv_*', 'output'), or "
            "a function of the parameters that gives a tree of bools."
        )
    for pattern in patterns:
        if not any(_takes(pattern, path) for path in paths):
            places = list(dict.fromkeys(place for path in paths for place in _places(path)))
            more = f" and {len(places) - 12} more" if len(places) > 12 else ""
            raise ModelError(
                f"personal={pattern!r}: no parameter has that path{perhaps(pattern, places)}; "
                f"the model has {', '.join(places[:12])}{more}."
            )
    return Division({path: any(_takes(p, path) for p in patterns) for path in paths}, structure)


def shown(personal: Personal) -> str:
    """The personal parameters in a method's name."""
    return "personal=mask" if callable(personal) else f"personal={personal!r}"


def _takes(pattern: str, path: str) -> bool:
    return any(fnmatchcase(place, pattern) for place in _places(path))


def _places(path: str) -> list[str]:
    """A path and those above it, from the top: ``a``, ``a/b``."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


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
    sends_fresh = sends_fresh or not stateful

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
        "Only a part of this method's model is sent to clients, so that no method that needs the whole model, such as "
        "ditto(), can be put around it: put finetune() around it, or make a larger part of it personal."
    )
