"""The method of a run: its plain name with options, or an expression, and the noise that a budget of privacy needs.

``evenhand run fedprox --mu 0.1`` is ``evenhand run 'fedprox(mu=0.1)'``.  Names, options, defaults and help are read off
signatures and docstrings, so that a new method needs nothing here.  An argument that is called like one of the other
options of ``run`` has no option: only an expression gives it.

From top to bottom: docstrings as a terminal shows them; the methods by their plain names (``METHODS``), with the
options of each; their help for tyro.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from unicodedata import normalize

from tyro.conf import arg, subcommand

from evenhand.cli._arguments import Options, hyphenated, option
from evenhand.cli._data import DataOptions
from evenhand.cli._models import ModelOptions
from evenhand.cli._options import LocalOptions, TrainingOptions
from evenhand.errors import EvenhandError, nearest, perhaps
from evenhand.expressions import KINDS, canonical, factories, kinds
from evenhand.expressions.kinds import alternatives, kind_for, parameters
from evenhand.expressions.reading import NOISE, outermost
from evenhand.types import Algorithm

# --- docstrings as a terminal shows them: first sentences, and what arguments mean --------------------------


_SYMBOLS: dict[str, str] = dict(
    re.findall(
        r"(\S+) (\S)",
        r"""
        \ge ≥  \le ≤  \leftarrow ←  \| ‖  \cdot ·  \infty ∞  \in ∈  \dots …  \sqrt √  \sum Σ  \Delta Δ  \nabla ∇
        \lceil ⌈  \rceil ⌉  \lfloor ⌊  \rfloor ⌋  _1 ₁  _2 ₂  _3 ₃  ^2 ²  \alpha α  \beta β  \gamma γ  \delta δ
        \epsilon ε  \eta η  \theta θ  \lambda λ  \mu μ  \nu ν  \pi π  \rho ρ  \sigma σ  \tau τ  \omega ω
        """,
    )
)
_FONT = re.compile(r"\\(?:mathcal|mathbf|mathrm) ?")
_ACCENT = re.compile(r"\\(bar|hat) ?(\w)")
_COMBINING = {"bar": "\u0304", "hat": "\u0302"}
_MATH = re.compile(r":math:`([^`]*)`")
_FRACTION = re.compile(r"\\frac(\w|{[^{}]*})(\w|{[^{}]*})")
_GROUP = re.compile(r"{([^{}]{2,})}")
_NAME = re.compile(r":\w+:`(?:[\w.]*\.)?(\w+)`|``([^`]*)``")
_EMPHASIS = re.compile(r"\*(\w[^*]*)\*")
_AS_IN = re.compile(r"as in (?:``|:func:`)(\w+)`{1,2}[.,;]?\s*")


def plain(text: str) -> str:
    """``text`` without markup."""

    def formula(match: re.Match[str]) -> str:
        shown = _FONT.sub("", _FRACTION.sub(r"\1/\2", match[1]))
        shown = _ACCENT.sub(lambda accent: normalize("NFC", accent[2] + _COMBINING[accent[1]]), shown)
        for name, symbol in sorted(_SYMBOLS.items(), key=lambda pair: -len(pair[0])):
            shown = re.sub(re.escape(name) + r"(?![A-Za-z])", symbol, shown)
        return re.sub(r"[{}\\]", "", _GROUP.sub(r"(\1)", shown))

    text = _NAME.sub(lambda match: match[1] or match[2], _MATH.sub(formula, " ".join(text.split())))
    return _EMPHASIS.sub(r"\1", text)


def first_line(factory: Callable[..., Any]) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(factory) or "").partition("\n\n")[0])


def argument_lines(name: str, factories: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Argument -> what the docstring of the factory ``name`` says of it; "as in" another factory is looked up."""
    lines: dict[str, str] = {}
    for argument, text in _argument_entries(factories[name]).items():
        reference = _AS_IN.match(text)
        if reference is not None and reference[1] in factories and reference[1] != name:
            shared = argument_lines(reference[1], factories).get(argument, "").rstrip(".")
            added = text[reference.end() :]
            text = f"{shared}; {added}" if added and shared else shared or added
        lines[argument] = plain(text).rstrip(".")
    return lines


@cache
def _argument_entries(factory: Callable[..., Any]) -> dict[str, str]:
    """The entries of a docstring's section ``Args:``; one with several names counts for each of them."""
    section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines: dict[str, str] = {}
    for entry in re.split(r"\n(?=  \S)", f"\n{section}")[1:]:
        names, _, text = entry.partition(":")
        lines |= {name.strip(): text.strip() for name in names.split(",")}
    return lines


# --- the methods by their plain names, with their arguments as options --------------------------------------


COMPOSED = "composed"
"""The name that stands for any expression."""

_ANY_EXPRESSION = (
    "Any composition of methods and parts, as in Python: "
    "`evenhand run 'fedprox(mu=0.1, server_opt=fedadam(0.1))'`."
)
_EXPRESSION_HELP = "the method, such as 'averaged(fedprox(mu=0.1))'; it can also be given in place of METHOD"
_METHOD = kinds.kind_of(Algorithm)
_METAVARS: Mapping[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}
_RESERVED = {"help"} | {
    field.name
    for options in (DataOptions, LocalOptions, ModelOptions, TrainingOptions)
    for field in dataclasses.fields(options)
}
"""Names that no option of a method may have: those of ``run`` itself."""


class NamedMethod(NamedTuple):
    """A method by its plain name.

    Attributes:
      name: what follows ``evenhand run``.
      factory: makes it; None: an expression does.
      types: the arguments that have an option -> the type of that option.
      options: its options.
      others: the arguments that have none, and that only an expression can give.
    """

    name: str
    factory: Callable[..., Any] | None
    types: Mapping[str, Any]
    options: Options
    others: tuple[str, ...] = ()

    def text(self, values: Mapping[str, Any], before: str = "", *, has_budget: bool = False) -> str:
        """The expression that the method stands for.

        Args:
          values: argument -> the value of its option, for those that were given.
          before: an expression; if it calls the same method, its arguments apply unless they are given anew.
          has_budget: whether a budget of privacy decides the noise.

        Raises:
          EvenhandError: an argument that the method needs is missing, or one is not an expression.
        """
        if self.factory is None:
            if "expression" not in values:
                raise EvenhandError(f"{self.name} needs --expression: see `evenhand run {self.name} --help`.")
            return canonical(values["expression"])
        name, taken = self.name.replace("-", "_"), parameters(self.factory)
        call = outermost(before) if before else None
        places, words = ([], {}) if call is None or call.name != name else (call.positional, call.keywords)
        if call is not None and call.name == name and not values:
            return canonical(before)
        in_order = [word for word, entry in taken.items() if entry.kind is entry.POSITIONAL_OR_KEYWORD]
        if len(places) <= len(in_order):
            places, words = [], dict(zip(in_order, places, strict=False)) | words
        hints = get_type_hints(self.factory)
        for argument in filter(values.__contains__, self.types):  # in the order of the signature
            is_part = kind_for(list(alternatives(hints[argument]))) is not None
            words[argument] = canonical(values[argument] if is_part else repr(values[argument]))
        for argument, parameter in taken.items() if not places else ():
            is_given = argument in words or (argument == NOISE and has_budget)
            if parameter.default is parameter.empty and not is_given:
                place = f"--{hyphenated(argument)}: see `evenhand run {self.name} --help`"
                if argument in self.others:
                    call = f"`evenhand run '{name}({argument}=...)'`"
                    place = f"{argument}=, which only an expression can give: {call}"
                raise EvenhandError(f"{self.name} needs {place}.")
        return f"{name}({', '.join([*places, *(f'{word}={value}' for word, value in words.items())])})"


class _Methods(Mapping[str, NamedMethod]):
    """Plain name -> method.  Iterating imports no plug-in; looking one up does."""

    def __getitem__(self, name: str) -> NamedMethod:
        if name == COMPOSED:
            return _EXPRESSION
        factory = kinds.factory_of(_METHOD, name.replace("-", "_")) if "_" not in name else None
        if factory is None:
            raise KeyError(name)
        return _method(name, factory)

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(map(hyphenated, [*kinds.names_of(_METHOD), COMPOSED])))

    def __len__(self) -> int:
        return len(list(iter(self)))


_EXPRESSION = NamedMethod(COMPOSED, None, {"expression": str}, option("expression", str))
METHODS: Mapping[str, NamedMethod] = _Methods()
"""The methods that ``evenhand run`` has by name, those of plug-ins included."""


def built_in() -> dict[str, NamedMethod]:
    """The methods that need no plug-in."""
    return {name: METHODS[name] for name in map(hyphenated, [*factories(_METHOD), COMPOSED])}


@cache
def _method(name: str, factory: Callable[..., Any]) -> NamedMethod:
    hints, taken = get_type_hints(factory), parameters(factory)
    types = {argument: _option_type(parameter, hints[argument]) for argument, parameter in taken.items()}
    shown = {argument: type_ for argument, type_ in types.items() if type_ is not None}
    options = {key: given for pair in shown.items() for key, given in option(*pair).items()}
    return NamedMethod(
        name, factory, shown, options, tuple(argument for argument in types if argument not in shown)
    )


def _option_type(parameter: inspect.Parameter, hint: Any) -> Any:
    """The type of the option for an argument; None for what only an expression can give."""
    hints = list(alternatives(hint))
    if parameter.name in _RESERVED or parameter.kind is parameter.VAR_POSITIONAL:
        return None
    if isinstance(parameter.default, bool):
        return bool
    if kind_for(hints) is not None:
        return str
    plain_types = tuple(type_ for type_ in hints if type_ in _METAVARS or get_origin(type_) is Literal)
    return Union[plain_types] if plain_types else None  # noqa: UP007  (| takes no tuple)


def refuse_ambiguous(given: Collection[str], method: NamedMethod) -> None:
    """Refuses an option of ``run`` that was given and is an argument of the method, too."""
    for argument in method.others:
        if (name := f"--{hyphenated(argument)}") in given:
            call = f"'{method.name.replace('-', '_')}({argument}=...)'"
            raise EvenhandError(
                f"{name} is ambiguous, because run and {method.name} both have it: write {call} in place of "
                f"{method.name}, and {name} sets that of run; see `evenhand run {method.name} --help`."
            )


def no_method(loose: tuple[str, ...]) -> EvenhandError:
    """What to say where none of these words is a method."""
    if not loose:
        return EvenhandError(
            "run needs the name of a method, such as `evenhand run fedavg`: see `evenhand list methods`."
        )
    word = next((word for word in loose if nearest(word, METHODS)), loose[0])
    name = word.replace("-", "_")
    if (other := next((kind for kind in KINDS if name in kinds.names_of(kind)), None)) is not None:
        return EvenhandError(
            f"{word} is {other.with_article}, not a method: see `evenhand list` for what takes it."
        )
    if python := kinds.only_in_python(name):
        return EvenhandError(f"{python}.")
    hint = perhaps(word, METHODS) or kinds.described(word, _METHOD) or f" among {', '.join(METHODS)}"
    return EvenhandError(f"There is no method {word!r:.40}{hint}: see `evenhand list methods`.")


# --- their help ---------------------------------------------------------------------------------------------


def method_help() -> Any:
    """The methods as the subcommands that tyro shows, with an option for each argument."""
    return Union[tuple(map(_subcommand, METHODS))]  # noqa: UP007  (| takes no tuple)


def _subcommand(name: str) -> Any:
    """A method as tyro shows it, which breaks its line where a page is narrower."""
    try:
        line, fields = _help_of(METHODS[name])
    except EvenhandError as error:  # a plug-in that cannot be imported does not take the help of others away
        line, fields = str(error), []
    options = dataclasses.make_dataclass(f"_{name}", fields, frozen=True)
    return Annotated[options, subcommand(name, description=" ".join(line.split()))]


def _help_of(method: NamedMethod) -> tuple[str, list[tuple[str, Any, Any]]]:
    """What a method is, and the fields of its options."""
    if method.factory is None:
        marks = arg(help=_EXPRESSION_HELP, metavar="EXPRESSION", help_behavior_hint="(required)")
        return _ANY_EXPRESSION, [("expression", Annotated[str | None, marks], None)]
    name = method.name.replace("-", "_")
    line = first_line(method.factory)
    texts = argument_lines(name, {**factories(_METHOD), name: method.factory})
    if method.others:
        line += f" Set {', '.join(method.others)} in an expression: '{name}({method.others[0]}=...)'."
    taken, hints = parameters(method.factory), get_type_hints(method.factory)
    return line, [
        _field(taken[argument], type_, list(alternatives(hints[argument])), texts.get(argument, ""))
        for argument, type_ in method.types.items()
    ]


def _field(parameter: inspect.Parameter, type_: Any, hints: list[Any], line: str) -> tuple[str, Any, Any]:
    """The field of an option: its name, its type with what the help says of it, and its default."""
    default, kind = parameter.default, kind_for(hints)
    if type_ is bool:
        hint = f"(default: {'on' if default else 'off'})"
        marks = arg(help=line.replace("False:", "off:"), help_behavior_hint=hint)
        return parameter.name, Annotated[bool, marks], default
    line, none, stands_for = line.partition("None: ")
    line, hint = line.rstrip("; .") if none else line, "(required)"
    if default is None:
        hint = f"(default: {stands_for or 'none'})"
    elif default is not parameter.empty:
        hint = f"(default: {default})" if kind is None else "(optional)"
    types = (_METAVARS.get(part, f"{{{','.join(map(str, get_args(part)))}}}") for part in alternatives(type_))
    metavar = "|".join(types) if kind is None else kind.noun.upper().replace(" ", "-")
    marks = arg(help=line, metavar=metavar, help_behavior_hint=hint)
    return parameter.name, Annotated[type_ | None, marks], None
