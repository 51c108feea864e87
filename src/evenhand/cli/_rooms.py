"""What an expression can call: for each kind of value a "room", the public factories that return it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import optax

from evenhand import (
    aggregators,
    algorithms,
    attacks,
    local,
    personalization,
    privacy,
    risks,
    sampling,
    server_opt,
    systems,
)
from evenhand.local import Work
from evenhand.privacy import AdaptiveClip
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Model, Risk, Sampling, Stack, Sum

__all__ = [
    "ROOMS",
    "Room",
    "a",
    "arms",
    "constant",
    "example",
    "factories",
    "only_in_python",
    "parameters",
    "room_for",
    "room_of",
    "signature",
]


class Room(NamedTuple):
    """A kind of value, and the modules of its factories.

    Attributes:
      what: what such a value is called.
      kinds: its types.
      modules: whose ``__all__`` have the factories' names.
    """

    what: str
    kinds: tuple[type, ...]
    modules: tuple[ModuleType, ...]


ROOMS = (
    Room("method", (Algorithm,), (algorithms, personalization, privacy)),
    Room("aggregator", (Sum, Stack), (aggregators, privacy)),
    Room("risk", (Risk,), (risks,)),
    Room("server optimiser", (optax.GradientTransformation,), (server_opt,)),
    Room("sampling", (Sampling,), (sampling,)),
    Room("systems", (Systems,), (systems,)),
    Room("attack", (Attack,), (attacks,)),
    Room("local work", (Work,), (local, privacy)),
    Room("clip", (AdaptiveClip,), (privacy,)),
)


_CONSTANTS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a tuple",
    NoneType: "None",
}


def constant(kind: Any) -> str:
    """What a sentence calls the constants of this type; empty if an expression cannot hold any."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return _CONSTANTS.get(get_origin(kind) or kind, "")


@cache
def factories(room: Room) -> Mapping[str, Callable[..., Any]]:
    """The public functions of a room that return its kind of value and that an expression can call."""
    return {name: made for name, made in _public(room).items() if not _inexpressible(made)}


def only_in_python(name: str) -> str:
    """Why an expression cannot call this public factory, as a clause; empty if it can, or if there is none."""
    for room in ROOMS:
        needed = _inexpressible(_public(room)[name]) if name in _public(room) else []
        if needed:
            return (
                f"{name} needs {' and '.join(needed)}, which an expression cannot give: call it from Python"
            )
    return ""


@cache
def _public(room: Room) -> Mapping[str, Callable[..., Any]]:
    """The public functions of a room that return its kind of value."""
    values = ((name, vars(module)[name]) for module in room.modules for name in module.__all__)
    return {
        name: value
        for name, value in values
        if inspect.isfunction(value) and _is_of(get_type_hints(value).get("return"), room.kinds)
    }


def _inexpressible(factory: Callable[..., Any]) -> list[str]:
    """The arguments that a call must give and an expression cannot."""
    hints = get_type_hints(factory)
    return [
        name
        for name, parameter in parameters(factory).items()
        if parameter.default is parameter.empty and not _is_expressible(hints[name])
    ]


def _is_expressible(hint: Any) -> bool:
    kinds = list(arms(hint))
    return room_for(kinds) is not None or any(map(constant, kinds))


def signature(name: str, factory: Callable[..., Any]) -> str:
    """``fedprox(mu=, keep_partial=True, ...)``: the arguments that an expression can give; of parts, only the names."""
    shown: list[str] = []
    for parameter in parameters(factory).values():
        default = parameter.default
        plain = isinstance(default, bool | int | float | str | NoneType)
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown.append(f"*{parameter.name}")
        elif default is parameter.empty:
            shown.append(f"{parameter.name}=")
        else:
            shown.append(f"{parameter.name}={repr(default) if plain else '...'}")
    return f"{name}({', '.join(shown)})"


def parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a factory that an expression can give: not the model, nor local work that is filled in."""
    hints = get_type_hints(factory)
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if Model not in (types := list(arms(hints[name])))
        and not (Work in types and parameter.default is parameter.empty)
    }


def arms(hint: Any) -> Iterator[Any]:
    """The types of a union, or the one type that the hint is."""
    if get_origin(hint) in (Union, UnionType):
        for arm in get_args(hint):
            yield from arms(arm)
    else:
        yield hint


def _is_of(hint: Any, kinds: tuple[type, ...]) -> bool:
    return hint is not None and all(arm in kinds for arm in arms(hint))


def room_for(kinds: Sequence[Any]) -> Room | None:
    """The room of the first of these types that has one."""
    return next((room for room in ROOMS for kind in kinds if kind in room.kinds), None)


def room_of(kind: type) -> Room:
    """The room of a type that has one."""
    room = room_for((kind,))
    assert room is not None
    return room


def example(room: Room) -> str:
    """The signature to begin with: of the method that everybody knows, or that needs and takes the fewest arguments."""

    def arguments(name: str) -> tuple[int, int]:
        taken = parameters(factories(room)[name]).values()
        return sum(each.default is each.empty for each in taken), len(taken)

    simplest = "fedavg" if Algorithm in room.kinds else min(factories(room), key=arguments)
    return signature(simplest, factories(room)[simplest])


def a(what: str) -> str:
    """``a method``, ``an aggregator``, ``local work``."""
    if what in ("local work", "systems"):
        return what
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
