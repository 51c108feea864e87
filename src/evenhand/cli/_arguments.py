"""The words of a command: what its options take, words checked against it, and the dataclass that they spell.

A command is a dataclass: its fields are options, those of the dataclasses in it included, and its docstrings are the
help, which tyro shows.  tyro can read words, too, but it prints what is wrong with them in a box of many lines; here
each mistake is one sentence that names the word and what belongs in its place.

From top to bottom: what each option takes (:func:`options_of`); words sorted into options and the rest
(:func:`split`); words that do not fit, as sentences (:func:`check`); the dataclass of those that do
(:func:`construct`); the help (:func:`show_help`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.conf import CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, Suppress

from evenhand.errors import EvenhandError, perhaps
from evenhand.text import listed

# --- what each option takes, read off the dataclasses -------------------------------------------------------


_POSITIONAL, _HIDDEN = get_args(Positional[int])[1], get_args(Suppress[int])[1]


class Takes(NamedTuple):
    """What an option or a positional argument takes.

    Attributes:
      kinds: types and words, such as ``(int, "all")``; empty for a switch, which takes nothing.
      many: whether it may be several.
      needed: whether it must be given.
      inverts: whether it is the ``--no-`` form of a switch.
    """

    kinds: tuple[Any, ...]
    many: bool = False
    needed: bool = False
    inverts: bool = False

    @property
    def words(self) -> list[str]:
        """The words among the kinds."""
        return [kind for kind in self.kinds if isinstance(kind, str)]

    def __str__(self) -> str:
        if len(self.words) == len(self.kinds) > 1:
            return f"one of {', '.join(self.words)}"
        names = {int: "a whole number", float: "a number"}
        types = [names.get(kind, "a value") for kind in self.kinds if not isinstance(kind, str)]
        return " or ".join(types + self.words)

    def read(self, text: str) -> Any:
        """The value that ``text`` spells.

        Raises:
          ValueError: it spells none.
        """
        for kind in self.kinds:
            if not isinstance(kind, type):  # one of several words
                if text == str(kind):
                    return kind
            elif kind not in _NUMBERS or _NUMBERS[kind].fullmatch(text):
                return kind(text)
        raise ValueError(text)

    def holds(self, value: object) -> bool:
        """Whether ``value``, out of a JSON file, is of one of the kinds; a switch is true or false."""
        return isinstance(value, bool) if not self.kinds else any(_is(value, kind) for kind in self.kinds)


# Fewer spellings than Python reads: no NaN, no underscores, and no more digits than Python converts.
_NUMBERS = {
    int: re.compile(r"[+-]?[0-9]{1,30}"),
    float: re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE | re.ASCII),
}

Options: TypeAlias = Mapping[str, Takes]
"""What a command takes: its options as they are typed, and positional arguments by their names in capitals."""


@cache
def options_of(command: type) -> Options:
    """What a command takes, the options of the dataclasses in it included."""
    options: dict[str, Takes] = {}
    hints = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if dataclasses.is_dataclass(hint):
            options |= options_of(hint)  # pyright: ignore[reportArgumentType]  (a class, not a value)
        elif _POSITIONAL in marks:
            options[field.name.upper()] = takes(hint)._replace(needed=field.default is dataclasses.MISSING)
        elif _HIDDEN not in marks:
            options |= option(field.name, hint)
    return options


def option(name: str, hint: Any) -> Options:
    """The option of one argument, and for a switch its inverse, too."""
    if (taken := takes(hint)).kinds:
        return {f"--{hyphenated(name)}": taken}
    return {f"--{hyphenated(name)}": taken, f"--no-{hyphenated(name)}": taken._replace(inverts=True)}


def takes(hint: Any) -> Takes:
    """What an argument with this type hint takes: the types and words of a union, except bool and None."""
    match get_origin(hint), get_args(hint):
        case origin, (first, *_) if origin is Annotated:
            return takes(first)
        case origin, parts if origin in (Union, UnionType):
            return Takes(tuple(kind for part in parts for kind in takes(part).kinds))
        case origin, words if origin is Literal:
            return Takes(words)
        case origin, (first, *_) if origin is tuple:
            return Takes((first,), many=True)
        case _:
            return Takes(() if hint in (NoneType, bool) else (hint,))


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
    values = ((field, vars(options)[field.name]) for field in dataclasses.fields(options))
    return {field.name: value for field, value in values if value != field.default}


def _is(value: object, kind: Any) -> bool:
    if isinstance(kind, str):
        return value == kind
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (str if kind is Path else kind)


# --- words sorted into options and the rest -----------------------------------------------------------------


HELP = ("-h", "--help")

_NEGATIVE = re.compile(r"-(\.?\d.*|inf|nan)", re.IGNORECASE)


class Words(NamedTuple):
    """The words of a command, sorted.

    Attributes:
      command: the first word.
      loose: those that belong to no option.
      options: pairs of an option and its value; None: without a value.
    """

    command: str
    loose: tuple[str, ...]
    options: tuple[tuple[str, str | None], ...]

    @property
    def ask_for_help(self) -> bool:
        """Whether ``--help`` is among them."""
        return any(name in HELP for name, _ in self.options)

    def last(self, name: str) -> str | None:
        """The value of an option, of which the last counts; None if it has none."""
        return dict(self.options).get(name)

    def plus(self, name: str, value: str) -> Words:
        """The same with one more option."""
        return self._replace(options=(*self.options, (name, value)))

    def values(self, options: Options) -> dict[str, Any]:
        """Argument -> value, for those that are among ``options``, once :func:`check` has passed."""
        values: dict[str, Any] = {}
        for name, text in self.options:
            if name not in options:
                continue
            taken, argument = options[name], name.removeprefix("--").replace("-", "_")
            if taken.kinds:
                values[argument] = taken.read(text or "")
            else:
                values[argument.removeprefix("no_") if taken.inverts else argument] = not taken.inverts
        for place, taken in options.items():
            if place.isupper() and self.loose:
                read = tuple(map(taken.read, self.loose))
                values[place.lower()] = read if taken.many else read[0]
        return values


def split(words: Sequence[str], options: Options, methods: Collection[str] = ()) -> Words:
    """Sorts the words of a command.

    Args:
      words: what follows ``evenhand``.
      options: which of them take a value.  What follows an unknown option was meant for it, unless it is a method.
      methods: their plain names.
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
        pairs.append((name, value if equals else None))
    return Words(words[0], tuple(loose), tuple(pairs))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.fullmatch(word)


# --- words that do not fit, as sentences --------------------------------------------------------------------


def check(words: Words, options: Options, others: Mapping[str, Options], name: str, page: str) -> None:
    """Checks the words against the options of a command.

    Args:
      words: the words.
      options: of the command.
      others: the options of other commands or methods, by their names.
      name: what a sentence calls the command.
      page: whose help it points to.

    Raises:
      EvenhandError: an option is unknown, a value is of the wrong kind, or a word is missing or left over.
    """
    for clause in [*_slips(words, options, others, name), *_misplaced(words.loose, options, name)]:
        raise EvenhandError(f"{clause}: see `evenhand {page} --help`.")


def _slips(words: Words, options: Options, others: Mapping[str, Options], name: str) -> Iterator[str]:
    """What is wrong with the options, as clauses of a sentence."""
    for option_name, text in words.options:
        taken = options.get(option_name)
        if taken is None:
            yield _unknown(option_name, options, others, name)
        elif not taken.kinds:
            if text is not None:
                yield f"{option_name} is a switch, so leave {'=' + text!r:.40} out"
        elif not text:
            yield f"{option_name} needs {taken} after it"
        elif not _reads(taken, text):
            yield f"{option_name} takes {taken}, not {text!r:.40}{perhaps(text, taken.words)}"


def _unknown(option_name: str, options: Options, others: Mapping[str, Options], name: str) -> str:
    owners = [other for other, theirs in others.items() if option_name in theirs]
    if owners:
        return f"{name} has no {option_name}, which is an option of {listed(owners)}"
    return f"{name} has no option {option_name}{perhaps(option_name, _names(options))}"


def _misplaced(loose: Sequence[str], options: Options, name: str) -> Iterator[str]:
    """What is wrong with the words that belong to no option, as clauses of a sentence."""
    place = next((place for place in options if place.isupper()), None)
    taken = Takes(()) if place is None else options[place]
    if taken.needed and not loose:
        yield f"{name} needs {place} after it"
    for i, word in enumerate(loose):
        if place is None or (i and not taken.many):
            yield f"The word {word!r:.40} is left over{perhaps(word.partition('=')[0], _names(options))}"
        elif not _reads(taken, word):
            yield f"{name} takes {taken}, not {word!r:.40}{perhaps(word, taken.words)}"


def _reads(taken: Takes, text: str) -> bool:
    try:
        taken.read(text)
    except ValueError:
        return False
    return True


def _names(options: Options) -> list[str]:
    return [name for name in options if name.startswith("--")]


# --- the dataclass that the words spell, and its help -------------------------------------------------------


_T = TypeVar("_T")


def construct(command: type[_T], values: Mapping[str, Any]) -> _T:
    """The dataclass with these values of its fields, and of those of the dataclasses in it."""
    arguments = dict[str, Any]()
    for name, kind in get_type_hints(command).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            arguments[name] = construct(kind, values)
        elif name in values:
            arguments[name] = values[name]
    return command(**arguments)


def show_help(commands: Any, words: Iterable[str], *, description: str) -> None:
    """Prints what tyro makes of the commands' docstrings, or a script that completes their words.

    Raises:
      SystemExit: always, with 0.
    """
    style = (CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes)
    tyro.cli(commands, prog="evenhand", description=description, args=list(words), config=style)
