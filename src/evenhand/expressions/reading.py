"""Expressions, read without evaluating anything: as values, as texts of one form, and by their calls.

From top to bottom: the value that an expression stands for (:func:`parse`); its text with Python's spaces and quotes
(:func:`canonical`), its outermost call and its plug-ins; the walk over the tree of calls; the noise multipliers that a
budget of privacy leaves open (:func:`with_noise`); expressions with several values in braces (:func:`braced`).
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from evenhand.errors import EvenhandError, ModelError, perhaps
from evenhand.expressions import kinds, plugins
from evenhand.expressions.kinds import BESIDE, KINDS, Kind, alternatives, factories, factory_of, parameters
from evenhand.local import Work
from evenhand.types import Model

__all__ = [
    "NOISE",
    "Braced",
    "Call",
    "ExpressionError",
    "braced",
    "canonical",
    "outermost",
    "parse",
    "plugins_in",
    "shadowed",
    "takes",
    "with_noise",
]


_LONGEST = 10_000
"""Most characters of an expression."""
_SHOWN = 80
"""Most characters of it in a sentence."""
_REMOVED = {
    "integers_only": "leave it out; a simulation draws the masks of secure sums only if masks=True (--masks) asks"
}
"""What takes the place of arguments that earlier versions had."""


class ExpressionError(EvenhandError):
    """What is wrong with an expression; arguments are named as Python names them, not as options."""


class _Reader(NamedTuple):
    """An expression, and what is filled into it."""

    text: str
    model: Model
    work: Callable[[], Work]
    beside: Mapping[str, Any] = MappingProxyType({})


def parse(
    text: str,
    kind: type,
    model: Model,
    work: Work | Callable[[], Work],
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The value that an expression stands for.

    Args:
      text: such as ``"fedprox(mu=0.1)"``.
      kind: the type that it must have: ``Algorithm``, ``Sum``, ``Risk``, ``Loss``, ``Attack``, ...
      model: what is trained; it is filled in where a factory takes a model.
      work: the clients' local work, or a function that makes it; it is filled in where the expression has none.
      beside: arrays, by the name of the argument that takes them: ``public``, examples ``(x, y)``, and ``divided_by``,
        scales in a tree like the parameters.  They go to every factory of the expression that has the argument.

    Raises:
      ExpressionError: it is not such an expression; the sentence says where, and what is allowed there.

    Example:
      >>> import evenhand as eh
      >>> model = eh.testing.toy_model()
      >>> work = eh.local.sgd(model, 0.1, epochs=1)
      >>> eh.expressions.parse("ditto(fedavg(), lam=0.5)", eh.Algorithm, model, work).name
      'ditto(fedavg, lam=0.5)'
      >>> eh.expressions.parse("sign_flip(0.2)", eh.types.Attack, model, work).fraction
      0.2
    """
    given = work
    make = (lambda: given) if isinstance(given, Work) else given
    reader = _Reader(" ".join(text.split()), model, make, beside)
    try:
        return _value_of_call(reader, _tree(reader.text), kinds.kind_of(kind))
    except RecursionError:
        raise _too_deep(reader.text) from None


def canonical(text: str) -> str:
    """The expression with the spaces and quotes that Python would give it, so that equal expressions are equal texts.

    Raises:
      ExpressionError: it is not an expression.
    """
    text = " ".join(text.split())
    try:
        return ast.unparse(_WholeNumbers().visit(_tree(text)))
    except RecursionError:
        raise _too_deep(text) from None


class Call(NamedTuple):
    """The outermost call of an expression, its arguments as texts.

    Attributes:
      name: of the factory; empty if the expression is no call.
      positional: arguments by position.
      keywords: arguments by name.
    """

    name: str
    positional: list[str]
    keywords: dict[str, str]


def outermost(text: str) -> Call:
    """The outermost call of an expression.

    Raises:
      ExpressionError: it is not an expression.

    Example:
      >>> outermost("averaged(fedprox(mu=1), growth=2)")
      Call(name='averaged', positional=['fedprox(mu=1)'], keywords={'growth': '2'})
    """
    match _tree(text):
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if _are_distinct(keywords):
            words = {word.arg: ast.unparse(word.value) for word in keywords if word.arg is not None}
            return Call(name, list(map(ast.unparse, args)), words)
        case _:
            return Call("", [], {})


def plugins_in(text: str) -> list[plugins.Plugin]:
    """The plug-ins whose factories an expression calls."""
    names = _names(text)
    used = (
        plugins.find(kind.plugins, name)
        for kind in KINDS
        if kind.plugins
        for name in sorted(names - set(factories(kind)))
    )
    return [plugin for plugin in used if plugin is not None]


def shadowed(text: str) -> list[str]:
    """A sentence for each plug-in that has the name of a built-in factory that an expression calls."""
    names = _names(text)
    ignored = (pair for kind in KINDS for pair in kinds.ignored_plugins(kind).items())
    return [sentence for name, sentence in ignored if name in names]


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}


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


def _tree(text: str) -> ast.expr:
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


def _value_of_call(reader: _Reader, node: ast.expr, kind: Kind) -> Any:
    """What a call of one of the kind's factories makes."""
    if isinstance(node, ast.Tuple) and len(node.elts) > 1:
        raise _wrong(
            reader, node, f"one {kind.noun} belongs here, and these are {len(node.elts)}{_braces(node)}"
        )
    name_node = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name_node, ast.Name):
        raise _wrong(reader, node, f"{kind.with_article} belongs here, a call such as {kinds.example(kind)}")
    factory, name = factory_of(kind, name_node.id), name_node.id
    if factory is None:
        raise _wrong(reader, node, _unknown(name, kind))
    if not isinstance(node, ast.Call):
        raise _wrong(reader, node, f"{name} is a function: call it, {kinds.signature(name, factory)}")
    places, words = _bound(reader, node, factory)
    try:
        return factory(*places, **words)
    except (ExpressionError, ModelError):
        raise
    except EvenhandError as error:
        raise ExpressionError(_as_expression(str(error))) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise _wrong(reader, node, f"{kinds.signature(name, factory)} cannot take this ({error})") from None


def _braces(several: ast.Tuple) -> str:
    """Where several values go, as a clause, with these calls as the example if they differ in one argument by place."""
    cure = ": several values of an argument go in braces, and `evenhand study` tries each of them"
    calls = [node for node in several.elts if isinstance(node, ast.Call) and len(node.args) == 1]
    names = {ast.unparse(call.func) for call in calls}
    if len(calls) != len(several.elts) or len(names) != 1 or any(call.keywords for call in calls):
        return cure
    values = ", ".join(ast.unparse(call.args[0]) for call in calls)
    return f"{cure}, as in {names.pop()}({{{values}}})"


_IN_PYTHON = re.compile(r"\beh\.(?:\w+\.)+(\w+)(\((?:model|work)\b(?:, )?)?")


def _as_expression(sentence: str) -> str:
    """A factory's sentence with what an expression can call as it calls it: ``poisson(rate)``, without the model.

    Example:
      >>> _as_expression("give sampling=eh.sampling.poisson(rate), or work such as eh.local.sgd(model, 0.1)")
      'give sampling=poisson(rate), or work such as sgd(0.1)'
    """

    def spelled(match: re.Match[str]) -> str:
        is_known = any(match[1] in factories(kind) for kind in KINDS)
        return f"{match[1]}{'(' if match[2] else ''}" if is_known else match[0]

    return _IN_PYTHON.sub(spelled, sentence)


def _unknown(name: str, kind: Kind) -> str:
    """What is wrong with a name that the kind does not have, and what it may have been meant for."""
    if python := kinds.only_in_python(name):
        return python
    shown, names = f"there is no {kind.noun} {name!r:.40}", kinds.names_of(kind)
    for other in KINDS:
        if name in kinds.names_of(other):
            return f"{shown}: {name} is {other.with_article}, and {kind.with_article} is one of {', '.join(names)}"
    hint = perhaps(name, names) or kinds.described(name, kind)
    return shown + (hint or f" among {', '.join(names)}")


def _bound(reader: _Reader, call: ast.Call, factory: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: those that go to ``*args``, and all others by name."""
    hints, taken, name = get_type_hints(factory), parameters(factory), ast.unparse(call.func)
    given, variadic, words = list(call.args), list[Any](), dict[str, Any]()
    filled = dict[str, Callable[[], Any]]()
    for parameter in inspect.signature(factory).parameters.values():
        types = list(alternatives(hints[parameter.name]))
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = [_value(reader, node, parameter.name, types) for node in given]
            given = []
        elif Model in types:
            words[parameter.name] = reader.model
        elif parameter.name in BESIDE:
            words |= _beside(reader, call, parameter)
        elif Work in types and parameter.default is parameter.empty:
            if _is_work(given):
                words[parameter.name] = _value_of_call(reader, given.pop(0), kinds.kind_of(Work))
            else:
                filled[parameter.name] = reader.work
        elif given and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            words[parameter.name] = _value(reader, given.pop(0), parameter.name, types)
    if given:
        raise _wrong(reader, given[0], f"{name} takes this by name only: {kinds.signature(name, factory)}")
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in {*taken, *filled, *words} - set(BESIDE):
            word = "**" if keyword.arg is None else keyword.arg
            if word in BESIDE:
                raise _wrong(reader, keyword, f"{word} holds arrays, which a text cannot: {_place(word)}")
            if word in _REMOVED:
                raise _wrong(reader, keyword, f"{name} no longer has {word}: {_REMOVED[word]}")
            shown = kinds.signature(name, factory)
            raise _wrong(reader, keyword, f"{name} has no {word!r:.40}{perhaps(word, taken)}: {shown}")
        if keyword.arg in words:
            raise _wrong(reader, keyword, f"{name} gets {keyword.arg} twice")
        types = list(alternatives(hints[keyword.arg]))
        words[keyword.arg] = _value(reader, keyword.value, keyword.arg, types)
    words |= {argument: work() for argument, work in filled.items() if argument not in words}
    for parameter in taken.values():
        if parameter.default is parameter.empty and parameter.name not in words and not variadic:
            raise _wrong(reader, call, f"{name} needs {parameter.name}=: {kinds.signature(name, factory)}")
    return variadic, words


def _beside(reader: _Reader, call: ast.Call, parameter: inspect.Parameter) -> dict[str, Any]:
    """The argument that stands beside the expression; empty if it may be left out, and was."""
    if (name := parameter.name) in reader.beside:
        return {name: reader.beside[name]}
    if parameter.default is parameter.empty:
        raise _wrong(
            reader, call, f"{ast.unparse(call.func)} needs {name}, which holds arrays: {_place(name)}"
        )
    return {}


def _place(name: str) -> str:
    """Where an argument that no text can hold is given."""
    option = "--" + name.replace("_", "-")
    return f"give it as {option} FILE on the command line, and in Python call the factory itself"


def _value(reader: _Reader, node: ast.expr, name: str, types: list[Any]) -> Any:
    """An argument: a part, which a call makes, or a constant of one of the types."""
    kind = kinds.kind_for(types)
    given = _constant(node)
    if given is not _NO_CONSTANT:
        for hint in types:
            if _fits(given[0], hint):
                return hint(given[0]) if hint is float else given[0]
    elif kind is not None:
        return _value_of_call(reader, node, kind)
    wanted = [word for hint in types if (word := kinds.constant(hint))]
    wanted += [] if kind is None else [f"{kind.with_article} such as {kinds.example(kind)}"]
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
            value = _constant(operand)
            return (-value[0],) if value and type(value[0]) in (int, float) else _NO_CONSTANT
        case ast.Tuple(elts=elements):
            values = [_constant(element) for element in elements]
            return (tuple(value[0] for value in values),) if all(values) else _NO_CONSTANT
        case _:
            return _NO_CONSTANT


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return type(value) in (int, float) and not 2**1000 < abs(value) < math.inf
    if hint is int:
        return type(value) is int
    if get_origin(hint) is Literal:
        return any(type(value) is type(word) and value == word for word in get_args(hint))
    return bool(kinds.constant(hint)) and isinstance(value, get_origin(hint) or hint)


def _is_work(given: list[ast.expr]) -> bool:
    """Whether the first argument is local work, rather than what comes after it."""
    call = given[0] if given else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in factories(Work)


def _wrong(reader: _Reader, node: ast.expr | ast.keyword, fault: str) -> ExpressionError:
    column = len(reader.text.encode()[: node.col_offset].decode()) + 1
    return ExpressionError(f"{_excerpt(reader.text, column)}, column {column}: {fault}.")


def _excerpt(text: str, column: int = 1) -> str:
    """``text`` in quotes; of a long one, what is around a column."""
    begin = max(0, min(column - _SHOWN // 2, len(text) - _SHOWN))
    before, after = "..." if begin else "", "..." if begin + _SHOWN < len(text) else ""
    return repr(before + text[begin : begin + _SHOWN] + after)


# --- the noise multipliers that a budget of privacy leaves open ---------------------------------------------


NOISE = "noise_multiplier"


def with_noise(text: str, noise: float) -> str:
    """The expression with this noise multiplier wherever a factory needs one and has none.

    Args:
      text: an expression.
      noise: the multiplier.

    Raises:
      ExpressionError: it is not an expression.

    Example:
      >>> with_noise("ditto(dp_fedavg(clip=1), lam=1)", 0.5)
      'ditto(dp_fedavg(clip=1, noise_multiplier=0.5), lam=1)'
    """
    tree = ast.parse(canonical(text), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _takes_noise(node.func.id):
            is_open = all(word.arg != NOISE for word in node.keywords)
            node.keywords += [ast.keyword(NOISE, ast.Constant(noise))] if is_open else []
    return canonical(ast.unparse(tree))


def takes(text: str, argument: str) -> bool:
    """Whether a factory that the expression calls has an argument of this name, which may stand beside the text.

    Example:
      >>> takes("alone(adadps(0.1, clip=1, noise_multiplier=1, rate=0.1, steps=9))", "public")
      True
    """
    made = (factory_of(kind, name) for name in _names(text) for kind in KINDS)
    return any(argument in inspect.signature(factory).parameters for factory in made if factory is not None)


def _takes_noise(name: str) -> bool:
    made = (factory_of(kind, name) for kind in KINDS)
    return any(NOISE in parameters(factory) for factory in made if factory is not None)


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
        return ast.unparse(_Without().visit(_tree(self.text))).removesuffix("()")

    def fill(self, values: Mapping[str, Any]) -> str:
        """The expression with one value in the place of each pair of braces."""
        return canonical(ast.unparse(_Filled(self.axes, values).visit(_tree(self.text))))


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
    tree = _tree(text)
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

    def visit_Set(self, node: ast.Set) -> None:
        self.nested = True  # below an operator or in a tuple, and no value of an argument itself

    def _argument(self, node: ast.expr, factory: str, name: str) -> None:
        if not isinstance(node, ast.Set):
            self.visit(node)
            return
        name = name if name not in self.axes else f"{factory}_{name}"
        while name in self.axes:
            name += "_"
        self.axes[name] = [_choice(element) for element in node.elts]
        self.nested |= any(isinstance(part, ast.Set) for element in node.elts for part in ast.walk(element))


class _Filled(ast.NodeTransformer):
    """Values in the places of braces, in the order in which :class:`_Finder` meets them."""

    def __init__(self, axes: Mapping[str, list[Any]], values: Mapping[str, Any]) -> None:
        self._left = [values[name] for name in axes]

    def visit_Set(self, node: ast.Set) -> ast.expr:
        value = self._left.pop(0)
        for element in node.elts:
            if _choice(element) == value and type(_choice(element)) is type(value):
                return copy.deepcopy(element)
        raise KeyError(value)


class _Without(ast.NodeTransformer):
    """Arguments with braces are left out."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(value) for value in node.args if not isinstance(value, ast.Set)]
        node.keywords = [self.visit(word) for word in node.keywords if not isinstance(word.value, ast.Set)]
        return node


def _choice(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # a call, or a set of what has no hash
        return ast.unparse(node)
