"""Methods and their parts as Python expressions, read without evaluating anything.

``fedprox(mu=0.1, aggregator=risk_weighted(superquantile(0.5)))`` is a tree of calls.  Each call names a public factory
of the kind that is expected in its place: where an aggregator belongs, an aggregator.  What a factory takes is read off
its signature, so that a new factory needs nothing here.  The model is filled in, and so is the clients' local work,
unless the expression has some.

From top to bottom: reading an expression (:func:`built`, :func:`canonical`, :func:`called`); the kinds of values that
one can make, each with the public factories that return it (``ROOMS``); and expressions with several values in braces,
which a study tries one by one (:func:`braced`).
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
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
from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.local import Work
from evenhand.privacy import AdaptiveClip
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Model, Risk, Sampling, Stack, Sum

__all__ = [
    "ROOMS",
    "Braced",
    "ExpressionError",
    "Room",
    "a",
    "arms",
    "braced",
    "built",
    "called",
    "canonical",
    "constant",
    "example",
    "factories",
    "only_in_python",
    "parameters",
    "room_for",
    "room_of",
    "signature",
]


# --- reading an expression ----------------------------------------------------------------------------------


_LONGEST = 10_000
"""Most characters of an expression."""
_SHOWN = 80
"""Most characters of it in a sentence."""


class ExpressionError(EvenhandError):
    """What is wrong with an expression; arguments are named as Python names them, not as options."""


class _Reader(NamedTuple):
    """An expression, and what is filled into it."""

    text: str
    model: Model
    work: Callable[[], Work]


def built(text: str, kind: type, model: Model, work: Callable[[], Work]) -> Any:
    """The value that an expression stands for.

    Args:
      text: such as ``"fedprox(mu=0.1)"``.
      kind: the type that it must have, such as ``Algorithm``.
      model: what is trained.
      work: makes the clients' local work, where the expression has none.

    Raises:
      ExpressionError: it is not such an expression; the sentence says where, and what is allowed there.
    """
    reader = _Reader(" ".join(text.split()), model, work)
    try:
        return _made(reader, _parsed(reader.text), room_of(kind))
    except RecursionError:
        raise _too_deep(reader.text) from None


def canonical(text: str) -> str:
    """The expression with the spaces and quotes that Python would give it, so that equal expressions are equal texts.

    Raises:
      ExpressionError: it is not an expression.
    """
    text = " ".join(text.split())
    try:
        return ast.unparse(_WholeNumbers().visit(_parsed(text)))
    except RecursionError:
        raise _too_deep(text) from None


def called(text: str) -> tuple[str, list[str], dict[str, str]]:
    """The outermost call of an expression: its name, and the texts of its arguments by position and by name.

    Raises:
      ExpressionError: it is not an expression.

    Example:
      >>> called("averaged(fedprox(mu=1), growth=2)")
      ('averaged', ['fedprox(mu=1)'], {'growth': '2'})
    """
    match _parsed(text):
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if _are_distinct(keywords):
            words = {
                keyword.arg: ast.unparse(keyword.value) for keyword in keywords if keyword.arg is not None
            }
            return name, [ast.unparse(each) for each in args], words
        case _:
            return "", [], {}


class _WholeNumbers(ast.NodeTransformer):
    """``1.0`` as ``1``, which every factory takes for the same."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        value = node.value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return ast.copy_location(ast.Constant(int(value)), node)
        return node


def _are_distinct(keywords: list[ast.keyword]) -> bool:
    names = [keyword.arg for keyword in keywords]
    return None not in names and len(set(names)) == len(names)


def _too_deep(text: str) -> ExpressionError:
    return ExpressionError(f"{_excerpt(text)} is nested too deeply.")


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ExpressionError(
            f"The expression has {len(text):,} characters: give one of at most {_LONGEST:,}."
        )
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = (error.offset or 0) if isinstance(error, SyntaxError) else 0
        where = f" at column {column}" if column else ""
        raise ExpressionError(
            f"{_excerpt(text, column)} is not an expression{where}: "
            "write it as in Python, such as 'fedprox(mu=0.1)', in quotes."
        ) from None


def _made(reader: _Reader, node: ast.expr, room: Room) -> Any:
    """What a call of one of the room's factories makes."""
    known = factories(room)
    name_node = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name_node, ast.Name):
        raise _wrong(reader, node, f"{a(room.what)} belongs here, a call such as {example(room)}")
    if name_node.id not in known:
        raise _wrong(reader, node, _unknown(name_node.id, room))
    factory, name = known[name_node.id], name_node.id
    if not isinstance(node, ast.Call):
        raise _wrong(reader, node, f"{name} is a function: call it, {signature(name, factory)}")
    places, words = _bound(reader, node, name, factory)
    try:
        return factory(*places, **words)
    except (ExpressionError, ModelError):
        raise
    except EvenhandError as error:
        raise ExpressionError(str(error)) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise _wrong(reader, node, f"{signature(name, factory)} cannot take this ({error})") from None


def _unknown(name: str, room: Room) -> str:
    """What is wrong with a name that the room does not have, and what it may have been meant for."""
    if python := only_in_python(name):
        return python
    shown, known = f"there is no {room.what} {name!r:.40}", ", ".join(factories(room))
    for other in ROOMS:
        if name in factories(other):
            return f"{shown}: {name} is {a(other.what)}, and {a(room.what)} is one of {known}"
    return shown + (perhaps(name, factories(room)) or f" among {known}")


def _bound(
    reader: _Reader, call: ast.Call, name: str, factory: Callable[..., Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: those that go to ``*args``, and all others by name."""
    hints, known = get_type_hints(factory), parameters(factory)
    given, variadic, words = list(call.args), list[Any](), dict[str, Any]()
    filled = dict[str, Callable[[], Any]]()
    for parameter in inspect.signature(factory).parameters.values():
        kinds = list(arms(hints[parameter.name]))
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = [_value(reader, node, parameter.name, kinds) for node in given]
            given = []
        elif Model in kinds:
            words[parameter.name] = reader.model
        elif Work in kinds and parameter.default is parameter.empty:
            if _is_work(given):
                words[parameter.name] = _made(reader, given.pop(0), room_of(Work))
            else:
                filled[parameter.name] = reader.work
        elif given and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            words[parameter.name] = _value(reader, given.pop(0), parameter.name, kinds)
    if given:
        raise _wrong(reader, given[0], f"{name} takes this by name only: {signature(name, factory)}")
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in {*known, *filled, *words}:
            word = "**" if keyword.arg is None else keyword.arg
            shown = signature(name, factory)
            raise _wrong(reader, keyword, f"{name} has no {word!r:.40}{perhaps(word, known)}: {shown}")
        if keyword.arg in words:
            raise _wrong(reader, keyword, f"{name} gets {keyword.arg} twice")
        words[keyword.arg] = _value(reader, keyword.value, keyword.arg, list(arms(hints[keyword.arg])))
    words |= {each: work() for each, work in filled.items() if each not in words}
    for parameter in known.values():
        if parameter.default is parameter.empty and parameter.name not in words and not variadic:
            raise _wrong(reader, call, f"{name} needs {parameter.name}=: {signature(name, factory)}")
    return variadic, words


def _value(reader: _Reader, node: ast.expr, name: str, kinds: list[Any]) -> Any:
    """An argument: a part, which a call makes, or a constant of one of the kinds."""
    room = room_for(kinds)
    given = _constant(node)
    if given is not _NO_CONSTANT:
        for kind in kinds:
            if _fits(given[0], kind):
                return kind(given[0]) if kind is float else given[0]
    elif room is not None:
        return _made(reader, node, room)
    wanted = [word for kind in kinds if (word := constant(kind))]
    wanted += [] if room is None else [f"{a(room.what)} such as {example(room)}"]
    raise _wrong(reader, node, f"{name} takes {' or '.join(wanted) or 'what only Python can give'}")


_NO_CONSTANT: tuple[Any, ...] = ()


def _constant(node: ast.expr) -> tuple[Any, ...]:
    """The constant that a node is, in a tuple of one; an empty tuple if it is none."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return (value,)
        case ast.Name(id="inf"):
            return (math.inf,)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = _constant(operand)
            number = found and isinstance(found[0], int | float) and not isinstance(found[0], bool)
            return (-found[0],) if number else _NO_CONSTANT
        case ast.Tuple(elts=elements):
            values = [_constant(element) for element in elements]
            return (tuple(value[0] for value in values),) if all(values) else _NO_CONSTANT
        case _:
            return _NO_CONSTANT


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and not 2**1000 < abs(value) < math.inf
        )
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(kind) is Literal:
        return any(type(value) is type(word) and value == word for word in get_args(kind))
    return bool(constant(kind)) and isinstance(value, get_origin(kind) or kind)


def _is_work(given: list[ast.expr]) -> bool:
    """Whether the first argument is local work, rather than what comes after it."""
    return (
        bool(given)
        and isinstance(given[0], ast.Call)
        and isinstance(given[0].func, ast.Name)
        and (given[0].func.id in factories(room_of(Work)))
    )


def _wrong(reader: _Reader, node: ast.expr | ast.keyword, what: str) -> ExpressionError:
    column = len(reader.text.encode()[: node.col_offset].decode()) + 1
    return ExpressionError(f"{_excerpt(reader.text, column)}, column {column}: {what}.")


def _excerpt(text: str, column: int = 1) -> str:
    """``text`` in quotes; of a long one, what is around a column."""
    begin = max(0, min(column - _SHOWN // 2, len(text) - _SHOWN))
    before, after = "..." if begin else "", "..." if begin + _SHOWN < len(text) else ""
    return repr(before + text[begin : begin + _SHOWN] + after)


# --- what an expression can call: for each kind of value a "room", the factories that return it -------------


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


# --- several values in one expression: fedprox(mu={0.1, 1}) is fedprox(mu=0.1) and fedprox(mu=1) ------------


class Braced(NamedTuple):
    """An expression with values in braces.

    Attributes:
      text: the expression as it was given.
      axes: argument -> the values in its braces: constants, or the texts of other expressions.
    """

    text: str
    axes: Mapping[str, list[Any]]

    @property
    def name(self) -> str:
        """The expression without what varies: ``fedprox``, ``fedprox(server_opt=fedadam(0.1))``."""
        tree = ast.parse(self.text, mode="eval").body
        return ast.unparse(_Without().visit(tree)).removesuffix("()")

    def fill(self, values: Mapping[str, Any]) -> str:
        """The expression with one value in the place of each pair of braces."""
        return canonical(
            ast.unparse(_Filled(self.axes, values).visit(ast.parse(self.text, mode="eval").body))
        )


def braced(text: str) -> Braced:
    """An expression, or the plain name of a method, with the values in its braces.

    Raises:
      ExpressionError: it is not an expression, or braces are where no value of an argument belongs.

    Example:
      >>> several = braced("fedprox(mu={0.1, 1}, server_opt={fedadam(0.1), fedavgm(0.5, 0.9)})")
      >>> several.name, several.axes["mu"], several.axes["server_opt"][0]
      ('fedprox', [0.1, 1], 'fedadam(0.1)')
      >>> several.fill({"mu": 1, "server_opt": "fedadam(0.1)"})
      'fedprox(mu=1, server_opt=fedadam(0.1))'
    """
    text = canonical(text)
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Name):
        return braced(f"{text}()")
    finder = _Finder()
    finder.visit(tree)
    if isinstance(tree, ast.Set) or finder.nested:
        raise ExpressionError(
            f"{text!r:.80}: braces hold the values of one argument, such as fedprox(mu={{0.1, 1}})."
        )
    return Braced(text, finder.axes)


class _Finder(ast.NodeVisitor):
    """The values in braces, by the argument that they are for."""

    def __init__(self) -> None:
        self.axes: dict[str, list[Any]] = {}
        self.nested = False

    def visit_Call(self, node: ast.Call) -> None:
        factory = ast.unparse(node.func)
        for i, value in enumerate(node.args):
            self._argument(value, factory, factory if i == 0 else f"{factory}_{i + 1}")
        for keyword in node.keywords:
            self._argument(keyword.value, factory, keyword.arg or "")

    def _argument(self, node: ast.expr, factory: str, name: str) -> None:
        if not isinstance(node, ast.Set):
            self.visit(node)
            return
        name = name if name not in self.axes else f"{factory}_{name}"
        while name in self.axes:
            name += "_"
        self.axes[name] = [_choice(each) for each in node.elts]
        self.nested |= any(isinstance(part, ast.Set) for each in node.elts for part in ast.walk(each))


class _Filled(ast.NodeTransformer):
    """Values in the places of braces, in the order in which :class:`_Finder` meets them."""

    def __init__(self, axes: Mapping[str, list[Any]], values: Mapping[str, Any]) -> None:
        self._left = [values[name] for name in axes]

    def visit_Set(self, node: ast.Set) -> ast.expr:
        value = self._left.pop(0)
        for each in node.elts:
            if _choice(each) == value and type(_choice(each)) is type(value):
                return copy.deepcopy(each)
        raise KeyError(value)


class _Without(ast.NodeTransformer):
    """Arguments with braces are left out."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(each) for each in node.args if not isinstance(each, ast.Set)]
        node.keywords = [self.visit(each) for each in node.keywords if not isinstance(each.value, ast.Set)]
        return node


def _choice(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:  # a call
        return ast.unparse(node)
