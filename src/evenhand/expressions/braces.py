"""Several values in one expression: ``fedprox(mu={0.1, 1})`` is ``fedprox(mu=0.1)`` and ``fedprox(mu=1)``."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenhand.expressions.reading import ExpressionError, canonical

__all__ = ["Braced", "braced"]


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
    except ValueError:  # a call
        return ast.unparse(node)
