"""Models whose weights are constants plus a trained product of two small factors (LoRA), as methods see them.

:func:`evenhand.models.lora` makes such a model; a method that treats the factors in its own way, such as
:func:`evenhand.algorithms.fedex_lora`, finds them with :func:`adapted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evenhand._paths import KeyPath, Named, leaf_at, named_path, nested
from evenhand.errors import ModelError
from evenhand.types import Array, Key, Model, Params, PyTree

A, B, RESIDUAL = "a", "b", "residual"
"""The names of the factors, and of what a server adds to the weights, below the path of the parameter."""


class Matrix(NamedTuple):
    """How a parameter is a matrix.

    Attributes:
      path: of the parameter.
      shape: of the parameter.
      dtype: of the parameter.
      split: how many of its axes are those of the rows; the others are those of the columns.
      inputs_first: whether rows are inputs (``x @ kernel``); False: they are outputs (``x @ weight.T``).
    """

    path: KeyPath
    shape: tuple[int, ...]
    dtype: Any
    split: int
    inputs_first: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """How many inputs and outputs it has."""
        rows, columns = math.prod(self.shape[: self.split]), math.prod(self.shape[self.split :])
        return (rows, columns) if self.inputs_first else (columns, rows)

    @property
    def factor_dtype(self) -> Any:
        """That of the factors: steps of descent are too small for numbers of 16 bits."""
        return self.dtype if jnp.finfo(self.dtype).bits >= 32 else jnp.float32

    def product(self, a: Array, b: Array) -> Array:
        """``b @ a`` with the axes of the parameter."""
        return (a.T @ b.T if self.inputs_first else b @ a).reshape(self.shape)


class LowRank:
    """A function of all parameters as one of the factors; models that hold it compare by identity.

    Args:
      function: ``(params, x, *key) -> outputs``.
      structure: of all parameters.
      paths: of all parameters.
      constants: the pretrained values of all parameters that are not trained, and of the matrices, by path.
      matrices: the parameters that have factors, by path.
      scale: by which the product of the factors is multiplied.
      fixed: the factors ``a`` where only ``b`` is trained; None: both are.
    """

    def __init__(
        self,
        function: Callable[..., PyTree],
        *,
        structure: Any,
        paths: Sequence[KeyPath],
        constants: Named,
        matrices: Mapping[str, Matrix],
        scale: float,
        fixed: Named | None,
    ) -> None:
        self.function, self.matrices, self.scale, self.fixed = function, matrices, scale, fixed
        self._structure, self._paths, self._constants = structure, paths, constants

    def of(self, function: Callable[..., PyTree]) -> LowRank:
        """The same of another function of all parameters, such as the forward pass for training."""
        return LowRank(
            function,
            structure=self._structure,
            paths=self._paths,
            constants=self._constants,
            matrices=self.matrices,
            scale=self.scale,
            fixed=self.fixed,
        )

    def whole(self, params: Params) -> Params:
        """All parameters, with the products in the weights."""
        leaves = [self._leaf(params, path) for path in self._paths]
        return jax.tree.unflatten(self._structure, leaves)

    def __call__(self, params: Params, x: Array, *key: Key) -> PyTree:
        return self.function(self.whole(params), x, *key)

    def _leaf(self, params: Params, path: KeyPath) -> Array:
        name = named_path(path)
        if (matrix := self.matrices.get(name)) is None:
            return self._constants[name] if name in self._constants else leaf_at(params, path)
        node, weight = leaf_at(params, path), self._constants[name]
        a = _part(node, A, name) if self.fixed is None else self.fixed[name]
        change = self.scale * matrix.product(a, _part(node, B, name))
        if RESIDUAL in node:
            # A constant of the clients, which have no gradient of it.
            change = change + jax.lax.stop_gradient(node[RESIDUAL])
        return weight + change.astype(weight.dtype)

    # --- residuals: what a server adds to the weights beside the product --------------------------------------------

    def no_residuals(self) -> Named:
        """Residuals of zeros, by path."""
        return {name: jnp.zeros(matrix.shape, matrix.factor_dtype) for name, matrix in self.matrices.items()}

    def joined(self, factors: Params, residuals: Named) -> Params:
        """The parameters with the residuals beside the factors."""
        pairs = jax.tree.leaves_with_path(factors)
        key = jax.tree_util.DictKey(RESIDUAL)
        pairs += [((*matrix.path, key), residuals[name]) for name, matrix in self.matrices.items()]
        return nested(*zip(*pairs, strict=True))

    def parted(self, params: Params) -> tuple[Params, Named]:
        """The parameters without the residuals, and these by path."""
        names = {f"{name}/{RESIDUAL}".lstrip("/"): name for name in self.matrices}
        kept, residuals = [], dict[str, Array]()
        for path, leaf in jax.tree.leaves_with_path(params):
            if (name := names.get(named_path(path))) is None:
                kept.append((path, leaf))
            else:
                residuals[name] = leaf
        return nested(*zip(*kept, strict=True)), residuals

    def products(self, factors: Params) -> Named:
        """The products of the factors, each multiplied by the scale, by path."""
        nodes = {name: leaf_at(factors, matrix.path) for name, matrix in self.matrices.items()}
        return {
            name: self.scale * matrix.product(nodes[name][A], nodes[name][B])
            for name, matrix in self.matrices.items()
        }


def adapted(model: Model) -> LowRank | None:
    """The factors of a model; None: it has none, or other functions of its parameters are around them."""
    function: Any = model.apply
    # Of the functions around, those with another structure of parameters have a ``whole`` of their own.
    while function is not None and not hasattr(function, "whole"):
        function = getattr(function, "function", None)
    return function if isinstance(function, LowRank) else None


def _part(node: Any, part: str, name: str) -> Array:
    if not isinstance(node, Mapping) or part not in node:
        raise ModelError(
            f"The parameters have no {name}/{part}, which this model has: give the parameters of this model."
        )
    return node[part]
