"""Misspelt words: what each option takes is read off the dataclasses, and anything else gets one sentence."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional

from evenhand.cli._methods import METHODS, Composed, Method
from evenhand.errors import EvenhandError, nearest, perhaps
from evenhand.expressions import ROOMS, a, factories, only_in_python

__all__ = ["HELP", "Takes", "named", "options_of", "ordered"]

HELP = ("-h", "--help")

_POSITIONAL = get_args(Positional[int])[1]
_NUMBER = re.compile(r"-(\.?\d.*|inf|nan)")


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
        named = {int: "a whole number", float: "a number"}
        types = [named.get(kind, "a value") for kind in self.kinds if not isinstance(kind, str)]
        return " or ".join(types + self.words)

    def fits(self, text: str) -> bool:
        """Whether ``text`` can be read as one of the kinds."""
        return any(_reads(text, kind) for kind in self.kinds)

    def holds(self, value: object) -> bool:
        """Whether ``value``, out of a JSON file, is of one of the kinds; a switch is true or false."""
        return isinstance(value, bool) if not self.kinds else any(_is(value, kind) for kind in self.kinds)


Options: TypeAlias = Mapping[str, Takes]


@cache
def options_of(command: type) -> Options:
    """What a command, or a method, takes: its options as they are typed, those of the dataclasses in it included.

    Positional arguments are under their names in capitals.
    """
    found: dict[str, Takes] = {}
    hints = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        kinds, needed = tuple(_kinds(hint)), field.default is dataclasses.MISSING
        if any(dataclasses.is_dataclass(kind) for kind in kinds):
            if len(kinds) == 1:  # not the methods, of which there is a choice
                found |= options_of(kinds[0])
            continue
        many = any(get_origin(kind) is tuple for kind in kinds)
        if _POSITIONAL in marks:
            found[field.name.upper()] = Takes(kinds, many, needed)
        else:
            found[f"--{_hyphenated(field.name)}"] = Takes(kinds, many)
            if not kinds:
                found[f"--no-{_hyphenated(field.name)}"] = Takes((), inverts=True)
    return found


def named(words: Sequence[str]) -> set[str]:
    """The names of the options among ``words``, as Python spells them; ``--no-NAME`` is an option of NAME, too."""
    options = (word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--"))
    names = {option.replace("-", "_") for option in options}
    return names | {name.removeprefix("no_") for name in names}


def ordered(words: Sequence[str], commands: Mapping[str, type]) -> list[str]:
    """The words of one of the ``commands``, its method before its options; of an option given twice, the last counts.

    Args:
      words: what follows ``evenhand``.
      commands: name -> dataclass.

    Raises:
      EvenhandError: a command, method or option is unknown, or a value of the wrong kind.
    """
    command = words[0]
    if command not in commands:
        raise EvenhandError(_no_command(command, commands))
    methods = {name: options_of(method) for name, method in METHODS.items()} if command == "run" else {}
    general = options_of(commands[command])
    everything = {
        **general,
        **{name: takes for options in methods.values() for name, takes in options.items()},
    }
    given, places = _sorted(words, everything)
    words = [
        _hyphenated(word) if i in places and _hyphenated(word) in methods else word
        for i, word in enumerate(words)
    ]
    at = next((place for place in places if words[place] in methods), None)
    composed = next((place for place in places if "(" in words[place]), None) if methods else None
    if at is None and composed is not None:
        others = [*words[1:composed], *words[composed + 1 :]]
        return ordered([command, Composed.name, f"--expression={words[composed]}", *others], commands)
    method = None if at is None else words[at]
    loose = [words[place] for place in places if place != at]
    asked, from_file = any(name in HELP for name, _ in given), any(name == "--config" for name, _ in given)
    if methods and method is None and (loose or not (asked or from_file)):
        raise EvenhandError(_no_method(loose))
    known = everything if method is None else {**general, **methods[method]}
    if not asked:
        name = command if method is None else "An expression" if method == Composed.name else method
        all_options = methods or {other: options_of(cls) for other, cls in commands.items()}
        ambiguous = [] if method is None else _ambiguous(given, general, METHODS[method])
        found = [*ambiguous, *_slips(given, known, all_options, name), *_misplaced(loose, known, name)]
        if found:
            whose = command if method in (None, Composed.name) else f"{command} {method}"
            raise EvenhandError(f"{found[0]}: see `evenhand {whose} --help`.")
    return list(words) if at is None else [command, words[at], *words[1:at], *words[at + 1 :]]


def _sorted(words: Sequence[str], known: Options) -> tuple[list[tuple[str, str | None]], list[int]]:
    """The options with their values, and the positions of the other words but the first."""
    given: list[tuple[str, str | None]] = []
    places: list[int] = []
    at = 1
    while at < len(words):
        word, at = words[at], at + 1
        if not _is_option(word):
            places.append(at - 1)
            continue
        name, equals, value = word.partition("=")
        name = _hyphenated(name)
        # What follows an unknown option was meant for it, unless it is a method.
        takes = known.get(name, Takes((str,)))
        count = 0 if equals else len(takes.kinds[:1])
        while count and at < len(words) and not _is_option(words[at]):
            if name not in known and _hyphenated(words[at]) in METHODS:
                break
            equals, value, at, count = "=", words[at], at + 1, count if takes.many else 0
        given.append((name, value if equals else None))
    return given, places


def _hyphenated(word: str) -> str:
    return word.replace("_", "-")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def _slips(
    given: Iterable[tuple[str, str | None]],
    known: Options,
    others: Mapping[str, Options],
    name: str,
) -> Iterable[str]:
    """What is wrong with the options of ``name``, as clauses of a sentence."""
    for option, value in given:
        if option not in known:
            yield _unknown(option, known, others, name)
        elif not (takes := known[option]).kinds:
            if value is not None:
                yield f"{option} is a switch, so leave {'=' + value!r:.40} out"
        elif not value:
            yield f"{option} needs {takes} after it"
        elif not takes.fits(value):
            yield f"{option} takes {takes}, not {value!r:.40}{perhaps(value, takes.words)}"


def _ambiguous(
    given: Iterable[tuple[str, str | None]], general: Options, method: type[Method]
) -> Iterable[str]:
    """Which options of a run are arguments of the method, too, as clauses of a sentence."""
    for argument in method.others:
        option = f"--{_hyphenated(argument)}"
        if option in general and any(name == option for name, _ in given):
            call = f"'{method.name.replace('-', '_')}({argument}=...)'"
            yield (
                f"{option} is ambiguous, as both run and {method.name} have one: write {call} in place of "
                f"{method.name}, and {option} is that of run"
            )


def _unknown(option: str, known: Options, others: Mapping[str, Options], name: str) -> str:
    owners = [other for other, options in others.items() if option in options]
    if owners:
        return f"{name} has no {option}, which is an option of {_listed(owners)}"
    return f"{name} has no option {option}{perhaps(option, _named(known))}"


def _misplaced(loose: Sequence[str], known: Options, name: str) -> Iterable[str]:
    """What is wrong with the words that are not options, as clauses of a sentence."""
    place = next((place for place in known if place.isupper()), None)
    takes = Takes(()) if place is None else known[place]
    if takes.needed and not loose:
        yield f"{name} needs {place} after it"
    for i, word in enumerate(loose):
        if place is None or (i and not takes.many):
            yield f"The word {word!r:.40} is left over{perhaps(word.partition('=')[0], _named(known))}"
        elif not takes.many and not takes.fits(word):
            yield f"{name} takes {takes}, not {word!r:.40}{perhaps(word, takes.words)}"


def _named(known: Options) -> list[str]:
    return [name for name in known if name.startswith("--")]


def _no_command(word: str, commands: Iterable[str]) -> str:
    meant = nearest(word, [*commands, "help", "--help", "--version"])
    if meant is None and (method := nearest(word, METHODS)):
        meant = f"run {method}"
    hint = f" among {', '.join(commands)}" if meant is None else f" (perhaps you meant `evenhand {meant}`)"
    return f"There is no command {word!r:.40}{hint}: see `evenhand --help`."


def _no_method(loose: Sequence[str]) -> str:
    if not loose:
        return "run needs the name of a method, such as `evenhand run fedavg`: see `evenhand list methods`."
    word = next((word for word in loose if nearest(word, METHODS)), loose[0])
    other = next((room for room in ROOMS if word.replace("-", "_") in factories(room)), None)
    if other is not None:
        return f"{word} is {a(other.what)}, not a method: see `evenhand list` for what takes it."
    if python := only_in_python(word.replace("-", "_")):
        return f"{python}."
    hint = perhaps(word, METHODS) or f" among {', '.join(METHODS)}"
    return f"There is no method {word!r:.40}{hint}: see `evenhand list methods`."


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _kinds(hint: Any) -> list[Any]:
    """The types and words that a type hint allows, except bool and None."""
    match get_origin(hint):
        case origin if origin is Annotated:
            return _kinds(get_args(hint)[0])
        case origin if origin is Union or origin is UnionType:
            return [kind for part in get_args(hint) for kind in _kinds(part)]
        case origin if origin is Literal:
            return list(get_args(hint))
        case _:
            return [] if hint in (NoneType, bool) else [hint]


def _is(value: object, kind: Any) -> bool:
    if isinstance(kind, str):
        return value == kind
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (str if kind is Path else kind)


def _reads(text: str, kind: Any) -> bool:
    if isinstance(kind, str):
        return text == kind
    if kind is int:
        return re.fullmatch(r"[+-]?[0-9]{1,30}", text) is not None
    if kind is float:
        return "_" not in text and _is_float(text)
    return True


def _is_float(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
