"""The plain names of methods: each stands for a factory, with an option for every argument that text can spell.

``evenhand run fedprox --mu 0.1`` is ``evenhand run 'fedprox(mu=0.1)'``.  Names, options, defaults and help are read off
signatures and docstrings, so that a new method needs nothing here.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, Union, get_type_hints

from tyro.conf import arg, subcommand

from evenhand.cli._docs import argument_lines, first_line
from evenhand.cli._expression import called, canonical
from evenhand.cli._rooms import arms, factories, parameters, room_for, room_of
from evenhand.errors import EvenhandError
from evenhand.types import Algorithm

__all__ = ["METHODS", "Choice", "Composed", "Method"]

_FACTORIES = dict(factories(room_of(Algorithm)))
_NUMBERS: Mapping[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}


@dataclass(frozen=True)
class Method:
    """A method by its plain name; its fields are the arguments of its factory, ``None`` where nothing is given."""

    name: ClassVar[str]

    def text(self, before: str = "") -> str:
        """The expression that this stands for.

        Args:
          before: an expression; if it calls the same method, its arguments apply unless they are given anew.

        Raises:
          EvenhandError: an argument that the method needs is missing, or one is not an expression.
        """
        factory = self.name.replace("-", "_")
        given = {
            field.name: vars(self)[field.name]
            for field in dataclasses.fields(self)
            if vars(self)[field.name] not in (None, field.default)
        }
        name, places, words = called(before) if before else ("", [], {})
        if name != factory:
            places, words = [], {}
        elif not given:
            return canonical(before)
        positional = [
            parameter.name
            for parameter in parameters(_FACTORIES[factory]).values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        if len(places) <= len(positional):
            places, words = [], dict(zip(positional, places, strict=False)) | words
        words |= {argument: canonical(str(value)) for argument, value in given.items()}
        if not places:
            for parameter in parameters(_FACTORIES[factory]).values():
                if parameter.default is parameter.empty and parameter.name not in words:
                    option = parameter.name.replace("_", "-")
                    raise EvenhandError(
                        f"{self.name} needs --{option}: see `evenhand run {self.name} --help`."
                    )
        return f"{factory}({', '.join([*places, *(f'{word}={value}' for word, value in words.items())])})"


@dataclass(frozen=True)
class Composed(Method):
    """Any composition of methods and parts, as in Python: `evenhand run 'fedprox(mu=0.1, server_opt=fedadam(0.1))'`."""

    name: ClassVar[str] = "composed"

    expression: str
    """the method, such as 'averaged(fedprox(mu=0.1))'; it may take the place of METHOD, without this option"""

    def text(self, before: str = "") -> str:
        """The expression as given, except for spaces and quotes."""
        return canonical(self.expression)


def _named(factory: str) -> type[Method]:
    """The dataclass of a factory."""
    lines, hints = argument_lines(factory, _FACTORIES), get_type_hints(_FACTORIES[factory])
    fields = [
        field
        for parameter in parameters(_FACTORIES[factory]).values()
        if (field := _field(parameter, list(arms(hints[parameter.name])), lines.get(parameter.name, "")))
    ]
    return dataclasses.make_dataclass(
        "".join(word.title() for word in factory.split("_")),
        fields,
        bases=(Method,),
        frozen=True,
        namespace={
            "name": factory.replace("_", "-"),
            "__doc__": first_line(_FACTORIES[factory]),
            "__module__": __name__,
        },
    )


def _field(parameter: inspect.Parameter, kinds: list[Any], line: str) -> tuple[str, Any, Any] | None:
    """A field, its type and its default; ``None`` for what only an expression can give."""
    default = parameter.default
    if parameter.kind is parameter.VAR_POSITIONAL:
        return None
    if bool in kinds and default is not parameter.empty:
        hint = f"(default: {'on' if default else 'off'})"
        shown = f"switch off: {line}" if default else line
        return parameter.name, Annotated[bool, arg(help=shown, help_behavior_hint=hint)], default
    room = room_for(kinds)
    kind = str if room is not None else next((kind for kind in kinds if kind in _NUMBERS), NoneType)
    if kind is NoneType:
        return None
    hint = "(required)"
    if default is not parameter.empty:
        plainly = isinstance(default, int | float | str)
        hint = f"(default: {default})" if plainly else "(default: none)" if default is None else "(optional)"
    metavar = _NUMBERS[kind] if room is None else room.what.upper().replace(" ", "-")
    marks = arg(help=line, metavar=metavar, help_behavior_hint=hint)
    return parameter.name, Annotated[kind | None, marks], None


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
