"""The words of a command: what its options take, words checked against it, and the dataclass that they spell.

A command is a dataclass: its fields are options, those of the dataclasses in it included, and its docstrings are the
help, which tyro shows.  tyro can read words, too, but it prints what is wrong with them in a box of many lines; here
each mistake is one sentence that names the word and what belongs in its place.

From top to bottom: what each option takes (:func:`options_of`); words sorted into options and the rest
(:func:`split`); the values that they spell, or a sentence about a word that does not fit (:func:`values_of`); the
dataclass of these values (:func:`construct`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from tyro.conf import Positional, Suppress

from evenhand.errors import EvenhandError, perhaps
from evenhand.expressions.kinds import alternatives
from evenhand.text import listed

# --- what each option takes, read off the dataclasses -------------------------------------------------------


_POSITIONAL, _HIDDEN = get_args(Positional[int])[1], get_args(Suppress[int])[1]


class WholeNumbers(str):
    """Whole numbers with commas between them, as typed: ``"300,100"``; a single one is an int.

    A field of type ``Annotated[int | str, WholeNumbers]`` takes them, as the help shows the type.
    """

    def __new__(cls, text: str) -> Any:
        """An int where there is no comma."""
        return str.__new__(cls, text) if "," in text else int(text)


class Takes(NamedTuple):
    """What an option or a positional argument takes.

    Attributes:
      kinds: types and words, such as ``(int, "all")``; empty for a switch, which takes nothing.
      many: whether it may be several.
      needed: whether it must be given.
      inverts: whether it is the ``--no-`` form of a switch.
      cure: what to do instead of giving the option twice, if both values would be expected to count.
    """

    kinds: tuple[Any, ...]
    many: bool = False
    needed: bool = False
    inverts: bool = False
    cure: str | None = None

    @property
    def words(self) -> list[str]:
        """The words among the kinds."""
        return [kind for kind in self.kinds if isinstance(kind, str)]

    def __str__(self) -> str:
        if len(self.words) == len(self.kinds) > 1:
            return f"one of {', '.join(self.words)}"
        names = {int: "a whole number", float: "a number", WholeNumbers: "whole numbers, as in 300,100"}
        kinds = [kind for kind in self.kinds if not isinstance(kind, str)]
        types = [names.get(kind, "a value") for kind in kinds if kind is not int or float not in kinds]
        return " or ".join(types + self.words) or "true or false"

    def read(self, text: str, name: str = "") -> Any:
        """The value that ``text`` spells.

        Raises:
          ValueError: it spells none; the clause says what ``name`` takes.
        """
        for kind in self.kinds:
            if not isinstance(kind, type):  # one of several words
                if text == str(kind):
                    return kind
            elif kind not in _NUMBERS or _NUMBERS[kind].fullmatch(text):
                return kind(text)
        raise ValueError(f"{name} takes {self}, not {text!r:.40}{perhaps(text, self.words)}")

    def holds(self, value: object) -> bool:
        """Whether ``value``, out of a JSON file, is of one of the kinds; a switch is true or false."""
        if not self.kinds:
            return isinstance(value, bool)
        types = [_JSON.get(kind, (kind,)) for kind in self.kinds if isinstance(kind, type)]
        return value in self.words or any(type(value) in alike for alike in types)


_JSON: Mapping[Any, tuple[type, ...]] = {float: (int, float), Path: (str,), WholeNumbers: (int, str)}
"""The types of a JSON file that stand for a type."""
# Fewer spellings than Python reads: no NaN, no underscores, and no more digits than Python converts.
_NUMBERS: Mapping[type, re.Pattern[str]] = {
    WholeNumbers: re.compile(r"[0-9]{1,30}(,[0-9]{1,30})*", re.ASCII),
    int: re.compile(r"[+-]?[0-9]{1,30}"),
    float: re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE | re.ASCII),
}

Options: TypeAlias = Mapping[str, Takes]
"""What a command takes: its options as they are typed, and positional arguments by their names in capitals."""


@cache
def options_of(command: type) -> Options:
    """What a command takes, the options of the dataclasses in it included."""
    options: dict[str, Takes] = {}
    hints, marked = get_type_hints(command), get_type_hints(command, include_extras=True)
    for field in fields(command):
        hint, marks = hints[field.name], get_args(marked[field.name])
        if is_dataclass(hint):
            options |= options_of(hint)  # pyright: ignore[reportArgumentType]  (a class, not a value)
        elif _POSITIONAL in marks:
            options[field.name.upper()] = takes(hint)._replace(needed=field.default is MISSING)
        elif WholeNumbers in marks:
            options |= option(field.name, WholeNumbers)
        elif _HIDDEN not in marks:
            options |= option(field.name, hint)
        if (name := f"--{hyphenated(field.name)}") in options:
            cure = _CURES.get(field.name, _LIST if any(_metavar(mark) in _LISTS for mark in marks) else None)
            options[name] = options[name]._replace(cure=cure)
    return options


# Names add up in a reader's mind; a number replaces an earlier one, as where a command is copied and made shorter.
_LISTS = ("A,B,C", "METRIC,...", "NAME,...", "TRACKER,...")
_LIST = "give all values at once, with commas between them"
_CURES = {
    "attack": "write both(a, b) for both attacks at once, or 'a, b' in a study to try each",
    "systems": "give one, or 'a, b' in a study to try each",
}


def _metavar(mark: Any) -> str:
    """How the help shows the value of an option, such as ``A,B,C`` for a list of names."""
    return getattr(mark, "metavar", None) or ""


def option(name: str, hint: Any) -> Options:
    """The option of one argument, and for a switch its inverse, too."""
    if (taken := takes(hint)).kinds:
        return {f"--{hyphenated(name)}": taken}
    return {f"--{hyphenated(name)}": taken, f"--no-{hyphenated(name)}": taken._replace(inverts=True)}


def takes(hint: Any) -> Takes:
    """What an argument with this type hint takes: the types and words of a union, except bool and None."""
    if get_origin(hint) is tuple:
        return takes(get_args(hint)[0])._replace(many=True)
    parts = (get_args(part) if get_origin(part) is Literal else (part,) for part in alternatives(hint))
    return Takes(tuple(kind for part in parts for kind in part if kind not in (bool, NoneType)))


def hyphenated(word: str) -> str:
    """A name as the command line spells it."""
    return word.replace("_", "-")


def typed(name: str, value: object) -> list[str]:
    """An option with its value as they are typed: ``["--lr", "0.1"]``, ``["--no-text"]``."""
    option_name = f"--{hyphenated(name)}"
    if isinstance(value, bool):
        return [option_name if value else f"--no-{hyphenated(name)}"]
    return [option_name, str(value)]


def changed(options: Any) -> dict[str, Any]:
    """The options of a dataclass that differ from their defaults."""
    values = vars(options)
    return {
        field.name: values[field.name] for field in fields(options) if values[field.name] != field.default
    }


def flat(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that have a value, those of the dataclasses in it included."""
    values: dict[str, Any] = {}
    for name, value in vars(options).items():
        if is_dataclass(value):
            values |= flat(value)
        elif value is not None:
            values[name] = value
    return values


# --- words sorted into options and the rest -----------------------------------------------------------------


_NEGATIVE = re.compile(r"-(\.?\d.*|inf|nan)", re.IGNORECASE)


class Words(NamedTuple):
    """The words of a command, sorted.

    Attributes:
      loose: those that belong to no option.
      options: pairs of an option and its value; None: without a value.
    """

    loose: tuple[str, ...]
    options: tuple[tuple[str, str | None], ...]

    @property
    def given(self) -> dict[str, str | None]:
        """Option -> its value; of an option given twice, the last counts."""
        return dict(self.options)


def split(words: Sequence[str], options: Options, methods: Collection[str] = ()) -> Words:
    """Sorts the words of a command.

    Args:
      words: what follows ``evenhand``.
      options: which of them take a value.  What follows an unknown option was meant for it, unless it is a method.
      methods: their plain names.

    Raises:
      EvenhandError: an option whose values would all be expected to count is given twice.
    """
    pairs, loose = list[tuple[str, str | None]](), list[str]()
    rest = list(reversed(words[1:]))
    while rest:
        word = rest.pop()
        if not _is_option(word):
            loose.append(word)
            continue
        name, equals, value = word.partition("=")
        taken = options.get(name := hyphenated(name))
        follows = bool(rest) and not equals and not _is_option(rest[-1])
        if follows and (taken.kinds if taken is not None else hyphenated(rest[-1]) not in methods):
            equals, value = "=", rest.pop()
        earlier = dict(pairs).get(name)
        if taken is not None and taken.cure and earlier and value and earlier != value:
            raise EvenhandError(f"{name} is given twice, as {earlier!r:.60} and {value!r:.60}: {taken.cure}.")
        pairs.append((name, value if equals else None))
    return Words(tuple(loose), tuple(pairs))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.fullmatch(word)


# --- the values that words spell, or a sentence about one that does not fit ---------------------------------


def values_of(
    words: Words, options: Options, others: Mapping[str, Options], name: str, page: str
) -> dict[str, Any]:
    """Argument -> value, as the words spell them.

    Args:
      words: the words.
      options: of the command.
      others: the options of other commands or methods, by their names.
      name: what a sentence calls the command.
      page: whose help it points to.

    Raises:
      EvenhandError: an option is unknown, a value is of the wrong kind, or a word is missing or left over.
    """
    try:
        values = dict(_of_option(*pair, options, others, name) for pair in words.options)
        return values | _of_place(words.loose, options, name)
    except ValueError as fault:
        raise EvenhandError(f"{fault}: see `evenhand {page} --help`.") from None


def _of_option(
    option_name: str, text: str | None, options: Options, others: Mapping[str, Options], name: str
) -> tuple[str, Any]:
    """An argument and its value; a ValueError is the clause of a sentence that says what is wrong."""
    if option_name not in options:
        if owners := [other for other, theirs in others.items() if option_name in theirs]:
            raise ValueError(f"{name} has no {option_name}, which is an option of {listed(owners)}")
        raise ValueError(f"{name} has no option {option_name}{perhaps(option_name, _names(options))}")
    taken, argument = options[option_name], option_name.removeprefix("--").replace("-", "_")
    if not taken.kinds:
        if text is not None:
            raise ValueError(f"{option_name} is a switch, so leave {'=' + text!r:.40} out")
        return argument.removeprefix("no_") if taken.inverts else argument, not taken.inverts
    if not text:
        raise ValueError(f"{option_name} needs {taken} after it")
    return argument, taken.read(text, option_name)


def _of_place(loose: Sequence[str], options: Options, name: str) -> dict[str, Any]:
    """The positional argument, from the words that belong to no option; a ValueError as above."""
    place = next(filter(str.isupper, options), None)
    taken = Takes(()) if place is None else options[place]
    if taken.needed and not loose:
        raise ValueError(f"{name} needs {place} after it")
    values = list[Any]()
    for word in loose:
        if place is None or (values and not taken.many):
            hint = perhaps(word.partition("=")[0], _names(options))
            raise ValueError(f"The word {word!r:.40} is left over{hint}")
        values.append(taken.read(word, name))
    return {place.lower(): tuple(values) if taken.many else values[0]} if place and values else {}


def _names(options: Options) -> list[str]:
    return [name for name in options if name.startswith("--")]


# --- the dataclass of these values --------------------------------------------------------------------------


_T = TypeVar("_T")


def construct(command: type[_T], values: Mapping[str, Any]) -> _T:
    """The dataclass with these values of its fields, and of those of the dataclasses in it."""
    kinds = get_type_hints(command)
    own = {name: values[name] for name in kinds if name in values}
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_dataclass(kind)}
    return command(**own | {name: construct(group, values) for name, group in groups.items()})
