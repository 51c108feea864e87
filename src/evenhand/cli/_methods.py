"""The plain names of methods: each stands for a factory, with an option for every argument that text can spell.

``evenhand run fedprox --mu 0.1`` is ``evenhand run 'fedprox(mu=0.1)'``.  Names, options, defaults and help are read off
signatures and docstrings, so that a new method needs nothing here.  An argument that is called like one of the other
options of ``run`` has no option: only an expression gives it.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from tyro.conf import arg, subcommand

from evenhand.cli._budget import NOISE
from evenhand.cli._data import DataOptions
from evenhand.cli._docs import argument_lines, first_line
from evenhand.cli._local import LocalOptions
from evenhand.cli._models import ModelOptions
from evenhand.cli._training import TrainingOptions
from evenhand.errors import EvenhandError
from evenhand.expressions import arms, called, canonical, factories, parameters, room_for, room_of
from evenhand.types import Algorithm

__all__ = ["METHODS", "Choice", "Composed", "Method"]

_FACTORIES = dict(factories(room_of(Algorithm)))
_NUMBERS: Mapping[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}
_TAKEN = {"help", "name", "others"} | {
    field.name
    for options in (DataOptions, LocalOptions, ModelOptions, TrainingOptions)
    for field in dataclasses.fields(options)
}
"""Names that no option of a method may have: those of ``run`` itself, and attributes of :class:`Method`."""


@dataclass(frozen=True)
class Method:
    """A method by its plain name; its fields are the arguments of its factory that have an option.

    Attributes:
      name: what follows ``evenhand run``.
      others: the arguments that have none, and that only an expression can give.
    """

    name: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()

    def text(self, given: Collection[str] = (), before: str = "") -> str:
        """The expression that this stands for.

        Args:
          given: the names of the options that were given.
          before: an expression; if it calls the same method, its arguments apply unless they are given anew.

        Raises:
          EvenhandError: an argument that the method needs is missing, or one is not an expression.
        """
        factory = self.name.replace("-", "_")
        known, hints = parameters(_FACTORIES[factory]), get_type_hints(_FACTORIES[factory])
        values = {name: value for name, value in vars(self).items() if name in given}
        name, places, words = called(before) if before else ("", [], {})
        if name != factory:
            places, words = [], {}
        elif not values:
            return canonical(before)
        positional = [each.name for each in known.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        if len(places) <= len(positional):
            places, words = [], dict(zip(positional, places, strict=False)) | words
        for argument, value in values.items():
            is_part = room_for(list(arms(hints[argument]))) is not None
            words[argument] = canonical(value if is_part else repr(value))
        if not places:
            for parameter in known.values():
                found = parameter.name in words or (parameter.name == NOISE and "epsilon" in given)
                if parameter.default is parameter.empty and not found:
                    raise EvenhandError(f"{self.name} needs {self._option(parameter.name)}.")
        return f"{factory}({', '.join([*places, *(f'{word}={value}' for word, value in words.items())])})"

    def _option(self, argument: str) -> str:
        if argument in self.others:
            factory = self.name.replace("-", "_")
            return (
                f"{argument}=, which only an expression can give: `evenhand run '{factory}({argument}=...)'`"
            )
        return f"--{argument.replace('_', '-')}: see `evenhand run {self.name} --help`"


@dataclass(frozen=True)
class Composed(Method):
    """Any composition of methods and parts, as in Python: `evenhand run 'fedprox(mu=0.1, server_opt=fedadam(0.1))'`."""

    name: ClassVar[str] = "composed"

    expression: str
    """the method, such as 'averaged(fedprox(mu=0.1))'; it may take the place of METHOD, without this option"""

    def text(self, given: Collection[str] = (), before: str = "") -> str:
        """The expression as given, except for spaces and quotes."""
        return canonical(self.expression)


def _named(factory: str) -> type[Method]:
    """The dataclass of a factory."""
    lines, hints = argument_lines(factory, _FACTORIES), get_type_hints(_FACTORIES[factory])
    fields: list[tuple[str, Any, Any]] = []
    others: list[str] = []
    for name, parameter in parameters(_FACTORIES[factory]).items():
        field = _field(parameter, list(arms(hints[name])), lines.get(name, ""))
        fields += [] if field is None else [field]
        others += [name] if field is None else []
    line = first_line(_FACTORIES[factory])
    if others:
        line += f" Only an expression gives {', '.join(others)}: '{factory}({others[0]}=...)'."
    return dataclasses.make_dataclass(
        "".join(word.title() for word in factory.split("_")),
        fields,
        bases=(Method,),
        frozen=True,
        namespace={
            "name": factory.replace("_", "-"),
            "others": tuple(others),
            "__doc__": line,
            "__module__": __name__,
        },
    )


def _field(parameter: inspect.Parameter, kinds: list[Any], line: str) -> tuple[str, Any, Any] | None:
    """A field, its type and its default; ``None`` for what only an expression can give."""
    default, room = parameter.default, room_for(kinds)
    plain = [kind for kind in kinds if kind in _NUMBERS or get_origin(kind) is Literal]
    if parameter.name in _TAKEN or parameter.kind is parameter.VAR_POSITIONAL:
        return None
    if isinstance(default, bool):
        hint = f"(default: {'on' if default else 'off'})"
        marks = arg(help=line.replace("False:", "off:"), help_behavior_hint=hint)
        return parameter.name, Annotated[bool, marks], default
    if room is None and not plain:
        return None
    line, none, stands_for = line.partition("None: ")
    line = line.rstrip("; .") if none else line
    hint = "(required)"
    if default is None:
        hint = f"(default: {stands_for or 'none'})"
    elif default is not parameter.empty:
        hint = f"(default: {default})" if room is None else "(optional)"
    metavar = "|".join(map(_metavar, plain)) if room is None else room.what.upper().replace(" ", "-")
    kind = Union[tuple(plain)] if room is None else str  # noqa: UP007  (| takes no tuple)
    marks = arg(help=line, metavar=metavar, help_behavior_hint=hint)
    return parameter.name, Annotated[kind | None, marks], None


def _metavar(kind: Any) -> str:
    return _NUMBERS.get(kind, "{" + ",".join(map(str, get_args(kind))) + "}")


def _listed(method: type[Method]) -> Any:
    """A method as one of the commands that tyro chooses from; tyro keeps a line break if the next line is indented."""
    shown = textwrap.fill(method.__doc__ or "", 79, subsequent_indent="  ")
    return Annotated[method, subcommand(method.name, description=shown)]


METHODS: Mapping[str, type[Method]] = {method.name: method for method in (*map(_named, _FACTORIES), Composed)}
"""Plain name -> the dataclass of its options."""

if TYPE_CHECKING:
    Choice: TypeAlias = Method
else:
    Choice = Union[tuple(map(_listed, METHODS.values()))]  # noqa: UP007  (| takes no tuple)
"""One of the methods, as tyro reads it."""
