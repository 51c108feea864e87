"""The words of a command: the options of each method, what every option takes, and what is wrong with misspelt words.

``evenhand run fedprox --mu 0.1`` is ``evenhand run 'fedprox(mu=0.1)'``.  Names, options, defaults and help are read off
signatures and docstrings, so that a new method needs nothing here.  An argument that is called like one of the other
options of ``run`` has no option: only an expression gives it.

From top to bottom: docstrings as a terminal shows them; the plain names of methods (``METHODS``), with a dataclass of
options each; what the options of any command take (:func:`options_of`), and words checked against it, with one sentence
for a misspelt one (:func:`ordered`); the dataclass that checked words spell (:func:`read`).
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from unicodedata import normalize

import tyro
from tyro.conf import (
    CascadeSubcommandArgs,
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
    Positional,
    arg,
    subcommand,
)

from evenhand.cli._data import DataOptions
from evenhand.cli._options import NOISE, LocalOptions, ModelOptions, TrainingOptions
from evenhand.errors import EvenhandError, nearest, perhaps
from evenhand.expressions import (
    ROOMS,
    a,
    arms,
    called,
    canonical,
    factories,
    only_in_python,
    parameters,
    room_for,
    room_of,
)
from evenhand.text import listed
from evenhand.types import Algorithm

__all__ = [
    "HELP",
    "METHODS",
    "Composed",
    "Method",
    "MethodChoice",
    "Takes",
    "argument_lines",
    "first_line",
    "named",
    "options_of",
    "ordered",
    "plain",
    "read",
]

# --- docstrings as a terminal shows them: first sentences, and what arguments mean --------------------------


_SYMBOLS = {
    r"\ge": "≥",
    r"\le": "≤",
    r"\leftarrow": "←",
    r"\|": "‖",
    r"\cdot": "·",
    r"\infty": "∞",
    r"\in": "∈",
    r"\dots": "…",
    r"\sqrt": "√",
    r"\lceil": "⌈",
    r"\rceil": "⌉",
    r"\lfloor": "⌊",
    r"\rfloor": "⌋",
    r"\pi": "π",
    r"\rho": "ρ",
    r"\sigma": "σ",
    r"\sum": "Σ",
    r"\alpha": "α",
    r"\beta": "β",
    r"\gamma": "γ",
    r"\delta": "δ",
    r"\epsilon": "ε",
    r"\eta": "η",
    r"\theta": "θ",
    r"\lambda": "λ",
    r"\mu": "μ",
    r"\nu": "ν",
    r"\tau": "τ",
    r"\omega": "ω",
    r"\Delta": "Δ",
    r"\nabla": "∇",
    "_1": "₁",
    "_2": "₂",
    "_3": "₃",
    "^2": "²",
}
_FONT = re.compile(r"\\(?:mathcal|mathbf|mathrm) ?")
_ACCENT = re.compile(r"\\(bar|hat) ?(\w)")
_COMBINING = {"bar": "\u0304", "hat": "\u0302"}
_MATH = re.compile(r":math:`([^`]*)`")
_FRACTION = re.compile(r"\\frac(\w|{[^{}]*})(\w|{[^{}]*})")
_GROUP = re.compile(r"{([^{}]{2,})}")
_NAME = re.compile(r":\w+:`(?:[\w.]*\.)?(\w+)`|``([^`]*)``")
_EMPHASIS = re.compile(r"\*(\w[^*]*)\*")
_AS_IN = re.compile(r"as in (?:``|:func:`)(\w+)`{1,2}[.;]?\s*")


def plain(text: str) -> str:
    """``text`` without markup."""

    def formula(found: re.Match[str]) -> str:
        shown = _FONT.sub("", _FRACTION.sub(r"\1/\2", found[1]))
        shown = _ACCENT.sub(lambda accent: normalize("NFC", accent[2] + _COMBINING[accent[1]]), shown)
        for name, symbol in sorted(_SYMBOLS.items(), key=lambda pair: -len(pair[0])):
            shown = re.sub(re.escape(name) + r"(?![A-Za-z])", symbol, shown)
        return re.sub(r"[{}\\]", "", _GROUP.sub(r"(\1)", shown))

    text = _NAME.sub(lambda found: found[1] or found[2], _MATH.sub(formula, " ".join(text.split())))
    return _EMPHASIS.sub(r"\1", text)


def first_line(made: Callable[..., Any] | type) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(made) or "").partition("\n\n")[0])


def argument_lines(name: str, known: dict[str, Callable[..., Any]]) -> dict[str, str]:
    """Argument -> what the docstring of the factory ``name`` says of it; "as in" another factory is looked up."""
    lines: dict[str, str] = {}
    for argument, text in _argument_entries(known[name]).items():
        reference = _AS_IN.match(text)
        if reference is not None and reference[1] in known and reference[1] != name:
            shared = argument_lines(reference[1], known).get(argument, "").rstrip(".")
            added = text[reference.end() :]
            text = f"{shared}; {added}" if added and shared else shared or added
        lines[argument] = plain(text).rstrip(".")
    return lines


@cache
def _argument_entries(factory: Callable[..., Any]) -> dict[str, str]:
    """The entries of a docstring's section ``Args:``; one with several names counts for each of them."""
    section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=  \S)", f"\n{section}")[1:]:
        names, _, text = entry.partition(":")
        found |= {name.strip(): text.strip() for name in names.split(",")}
    return found


# --- the plain names of methods: a factory each, with its arguments as options ------------------------------


_FACTORIES = dict(factories(room_of(Algorithm)))
_METAVARS: Mapping[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}
_RESERVED = {"help", "name", "others"} | {
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


def _dataclass_of(factory: str) -> type[Method]:
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
    plain = [kind for kind in kinds if kind in _METAVARS or get_origin(kind) is Literal]
    if parameter.name in _RESERVED or parameter.kind is parameter.VAR_POSITIONAL:
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
    return _METAVARS.get(kind, "{" + ",".join(map(str, get_args(kind))) + "}")


def _subcommand(method: type[Method]) -> Any:
    """A method as one of the commands that tyro chooses from; tyro keeps a line break if the next line is indented."""
    shown = textwrap.fill(method.__doc__ or "", 79, subsequent_indent="  ")
    return Annotated[method, subcommand(method.name, description=shown)]


METHODS: Mapping[str, type[Method]] = {
    method.name: method for method in (*map(_dataclass_of, _FACTORIES), Composed)
}
"""Plain name -> the dataclass of its options."""

if TYPE_CHECKING:
    MethodChoice: TypeAlias = Method
else:
    MethodChoice = Union[tuple(map(_subcommand, METHODS.values()))]  # noqa: UP007  (| takes no tuple)
"""One of the methods, as tyro reads it."""


# --- what each option takes, read off the dataclasses, and words that do not fit ----------------------------


HELP = ("-h", "--help")

_POSITIONAL = get_args(Positional[int])[1]
_NEGATIVE = re.compile(r"-(\.?\d.*|inf|nan)")


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
    return word.startswith("-") and not _NEGATIVE.fullmatch(word)


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
        return f"{name} has no {option}, which is an option of {listed(owners)}"
    return f"{name} has no option {option}{perhaps(option, _option_names(known))}"


def _misplaced(loose: Sequence[str], known: Options, name: str) -> Iterable[str]:
    """What is wrong with the words that are not options, as clauses of a sentence."""
    place = next((place for place in known if place.isupper()), None)
    takes = Takes(()) if place is None else known[place]
    if takes.needed and not loose:
        yield f"{name} needs {place} after it"
    for i, word in enumerate(loose):
        if place is None or (i and not takes.many):
            yield f"The word {word!r:.40} is left over{perhaps(word.partition('=')[0], _option_names(known))}"
        elif not takes.many and not takes.fits(word):
            yield f"{name} takes {takes}, not {word!r:.40}{perhaps(word, takes.words)}"


def _option_names(known: Options) -> list[str]:
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


# --- words as dataclasses -----------------------------------------------------------------------------------


_STYLE = (CascadeSubcommandArgs, OmitArgPrefixes, OmitSubcommandPrefixes)
"""How dataclasses become options, for all commands."""


def read(kind: Any, words: Sequence[str], *, prog: str, description: str) -> Any:
    """The dataclass that ``words`` spell, once :func:`ordered` has checked them.

    Raises:
      SystemExit: the words ask for help, which is printed.
      EvenhandError: they do not spell one.
    """
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(kind, prog=prog, description=description, args=words, config=_STYLE)
    except SystemExit as end:
        if end.code:
            shown = " ".join(words)
            raise EvenhandError(f"{shown!r:.80} cannot be read: see `evenhand {words[0]} --help`.") from None
        raise
