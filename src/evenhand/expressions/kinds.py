"""What an expression can call: for each kind of value, the factories that return it, with what they take.

A kind has Evenhand's own factories, which are read off the packages' ``__all__``, and perhaps those of plug-ins.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import optax

from evenhand import (
    aggregators,
    algorithms,
    attacks,
    centralized,
    local,
    personalization,
    privacy,
    risks,
    sampling,
    server_opt,
    systems,
)
from evenhand.centralized import Weighting
from evenhand.centralized import methods as central_methods
from evenhand.errors import EvenhandError
from evenhand.expressions import plugins
from evenhand.models import losses
from evenhand.personalization import methods as personal_methods
from evenhand.types import Algorithm, Attack, Model, Risk, Sampling, Stack, Sum

__all__ = [
    "BESIDE",
    "KINDS",
    "Kind",
    "alternatives",
    "constant",
    "described",
    "example",
    "factories",
    "factory_of",
    "ignored_plugins",
    "kind_for",
    "kind_of",
    "names_of",
    "only_in_python",
    "parameters",
    "signature",
]


class Kind(NamedTuple):
    """A kind of value that an expression can make.

    Attributes:
      noun: what such a value is called.
      types: its types.
      modules: whose ``__all__`` have the factories' names.
      plugins: the group of entry points in which other packages register factories; None: they cannot.
    """

    noun: str
    types: tuple[type, ...]
    modules: tuple[ModuleType, ...]
    plugins: str | None = None

    @property
    def with_article(self) -> str:
        """``a method``, ``an aggregator``, ``local work``."""
        if self.noun in ("local work", "systems"):
            return self.noun
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


_METHODS = (algorithms, personalization, privacy, central_methods, personal_methods)

KINDS = (
    Kind(
        "method",
        (Algorithm,),
        (algorithms, personalization, privacy, central_methods, personal_methods),
        "evenhand.methods",
    ),
    Kind("aggregator", (Sum, Stack), (aggregators, privacy), "evenhand.aggregators"),
    Kind("risk", (Risk,), (risks,)),
    Kind("weighting", (Weighting,), (centralized,)),
    Kind("loss", (losses.Loss,), (losses,)),
    Kind("server optimiser", (optax.GradientTransformation,), (server_opt,)),
    Kind("sampling", (Sampling,), (sampling,)),
    Kind("systems", (systems.Systems,), (systems,)),
    Kind("attack", (Attack,), (attacks,), "evenhand.attacks"),
    Kind("local work", (local.Work,), (local, privacy)),
    Kind("schedule", (local.Schedule,), (local,)),
    Kind("clip", (privacy.AdaptiveClip,), (privacy,)),
)
"""All kinds of values."""


BESIDE = ("public", "divided_by")
"""Arguments that hold arrays: no text can give them, so that they stand beside it, in ``parse(..., beside=)``."""

_CONSTANTS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a tuple",
    NoneType: "None",
}


def constant(hint: Any) -> str:
    """What a sentence calls the constants of this type; empty if an expression cannot hold any."""
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return _CONSTANTS.get(get_origin(hint) or hint, "")


def factories(kind: Kind | type) -> Mapping[str, Callable[..., Any]]:
    """Evenhand's public functions that return this kind of value and that an expression can call, by their names.

    Args:
      kind: one of ``KINDS``, or a type of its values, such as ``Algorithm``.

    Example:
      >>> import evenhand as eh
      >>> sorted(eh.expressions.factories(eh.types.Sampling))
      ['cyclic', 'fixed', 'poisson', 'proportional', 'stratified', 'uniform']
    """
    return _factories(kind if isinstance(kind, Kind) else kind_of(kind))


@cache
def _factories(kind: Kind) -> Mapping[str, Callable[..., Any]]:
    return {name: factory for name, factory in _public(kind).items() if not _inexpressible(factory)}


def names_of(kind: Kind) -> list[str]:
    """The names of all factories of a kind; those of plug-ins are read from their packages' metadata, not imported."""
    return [*factories(kind), *(plugins.names(kind.plugins, _public(kind)) if kind.plugins else ())]


def ignored_plugins(kind: Kind) -> dict[str, str]:
    """Name -> a sentence, for each plug-in of a kind that no expression can reach."""
    return plugins.ignored(kind.plugins, _public(kind)) if kind.plugins else {}


def factory_of(kind: Kind, name: str) -> Callable[..., Any] | None:
    """The factory of this name, imported if it is a plug-in's; None if there is none.

    Raises:
      EvenhandError: it is a plug-in's, and does not import, is ambiguous, or makes something else.
    """
    if name in _public(kind) or kind.plugins is None or not name.isidentifier():
        return factories(kind).get(name)
    return _plugin(kind, name, tuple(sys.path))


@cache
def _plugin(kind: Kind, name: str, path: tuple[str, ...]) -> Callable[..., Any] | None:
    """A plug-in's factory, imported and checked once for each ``sys.path``."""
    plugin = plugins.find(kind.plugins or "", name)
    if plugin is None:
        return None
    factory = plugin.load()
    try:
        is_right = inspect.isfunction(factory) and _is_of(get_type_hints(factory).get("return"), kind.types)
    except (NameError, TypeError):  # an annotation that names nothing
        is_right = False
    if not is_right:
        types = " or ".join(type_.__name__ for type_ in kind.types)
        raise EvenhandError(f"{plugin} is not a function that is annotated to return {types}.")
    if needed := _inexpressible(factory):
        raise EvenhandError(f"{plugin} needs {' and '.join(needed)}, which an expression cannot give.")
    return factory


def only_in_python(name: str) -> str:
    """Why an expression cannot call this public factory, as a clause; empty if it can, or if there is none."""
    for kind in KINDS:
        if name in _public(kind) and (needed := " and ".join(_inexpressible(_public(kind)[name]))):
            return f"{name} needs {needed}, which an expression cannot give: call it from Python"
    return ""


def described(word: str, kind: Kind) -> str:
    """``" (perhaps you meant ...)"``: the factory whose first line has this name of a paper; ``""`` if none has.

    Case and hyphens do not count.  Factories of other kinds come after those of ``kind``.

    Example:
      >>> described("q_ffl", kind_of(Algorithm)), described("rfa", kind_of(Algorithm))
      (' (perhaps you meant qfedavg)', ' (perhaps you meant geometric_median, an aggregator)')
    """
    for other in (kind, *KINDS):
        places = {name: _names(factory).get(_folded(word)) for name, factory in factories(other).items()}
        named = {name: place for name, place in places.items() if place is not None}
        if named:  # "DP-SGD: ..." comes before "AdaDPS: DP-SGD whose ..."
            first = min(named, key=named.__getitem__)
            return f" (perhaps you meant {first}{'' if other is kind else f', {other.with_article}'})"
    return ""


def _names(factory: Callable[..., Any]) -> dict[str, int]:
    """The names such as DP-SGD and q-FFL in the first line of a docstring, each with its place."""
    line = (factory.__doc__ or "").strip().partition("\n")[0]
    words = enumerate(re.findall(r"[\w+-]+", line))
    return {_folded(word): place for place, word in words if len(re.findall("[A-Z]", word)) > 1}


def _folded(word: str) -> str:
    return re.sub("[-_+ ]", "", word).casefold()


@cache
def _public(kind: Kind) -> Mapping[str, Callable[..., Any]]:
    """The public functions of Evenhand that return this kind of value."""
    values = ((name, vars(module)[name]) for module in kind.modules for name in module.__all__)
    return {
        name: value
        for name, value in values
        if inspect.isfunction(value) and _is_of(get_type_hints(value).get("return"), kind.types)
    }


_ON_OTHER_MODELS = {algorithms.fedex_lora: "a model of eh.models.lora"}
"""Methods for models that only Python code makes."""


def _inexpressible(factory: Callable[..., Any]) -> list[str]:
    """What a call must give and an expression cannot: arguments, or a model of another kind."""
    if factory in _ON_OTHER_MODELS:
        return [_ON_OTHER_MODELS[factory]]
    hints = get_type_hints(factory)
    needed = (name for name, entry in parameters(factory).items() if entry.default is entry.empty)
    return [name for name in needed if not _is_expressible(hints[name])]


def _is_expressible(hint: Any) -> bool:
    types = list(alternatives(hint))
    return kind_for(types) is not None or any(map(constant, types))


def signature(name: str, factory: Callable[..., Any]) -> str:
    """``fedprox(mu=, keep_partial=True, ...)``: the arguments that an expression can give; of parts, only the names."""
    shown: list[str] = []
    for parameter in parameters(factory).values():
        default = parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown.append(f"*{parameter.name}")
        elif isinstance(default, bool | int | float | str | NoneType) or type(default) is tuple:
            shown.append(f"{parameter.name}={default!r}")
        else:
            shown.append(f"{parameter.name}={'' if default is parameter.empty else '...'}")
    return f"{name}({', '.join(shown)})"


def parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a factory that an expression can give: not the model, nor what is filled in or beside it."""
    hints = get_type_hints(factory)
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if Model not in (types := list(alternatives(hints[name])))
        and name not in BESIDE
        and not (local.Work in types and parameter.default is parameter.empty)
    }


def alternatives(hint: Any) -> Iterator[Any]:
    """The types of a union, or the one type that the hint is."""
    if get_origin(hint) in (Union, UnionType):
        for arm in get_args(hint):
            yield from alternatives(arm)
    else:
        yield hint


def _is_of(hint: Any, types: tuple[type, ...]) -> bool:
    return hint is not None and all(arm in types for arm in alternatives(hint))


def kind_for(types: Sequence[Any]) -> Kind | None:
    """The kind of the first of these types that has one."""
    return next((kind for kind in KINDS for hint in types if hint in kind.types), None)


def kind_of(hint: type) -> Kind:
    """The kind of a type that has one."""
    kind = kind_for((hint,))
    if kind is None:
        nouns = ", ".join(type_.__name__ for kind in KINDS for type_ in kind.types)
        raise EvenhandError(f"kind={hint!r:.60}: expressions make values of the types {nouns}.")
    return kind


def example(kind: Kind) -> str:
    """The signature to begin with: of the method that everybody knows, or that needs and takes the fewest arguments."""

    def arguments(name: str) -> tuple[int, int]:
        taken = parameters(factories(kind)[name]).values()
        return sum(parameter.default is parameter.empty for parameter in taken), len(taken)

    simplest = "fedavg" if Algorithm in kind.types else min(factories(kind), key=arguments)
    return signature(simplest, factories(kind)[simplest])
