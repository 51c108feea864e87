"""Methods and their parts as Python expressions, read without evaluating anything.

``fedprox(mu=0.1, aggregator=risk_weighted(superquantile(0.5)))`` is a tree of calls.  Each call names a public factory
of the kind that is expected in its place: where an aggregator belongs, an aggregator.  What a factory takes is read off
its signature, so that a new factory needs nothing here.  The model is filled in, and so is the clients' local work,
unless the expression has some.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from evenhand.cli._rooms import (
    ROOMS,
    Room,
    a,
    arms,
    constant,
    example,
    factories,
    only_in_python,
    parameters,
    room_for,
    room_of,
    signature,
)
from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.local import Work
from evenhand.types import Model

__all__ = ["ExpressionError", "built", "called", "canonical"]

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
