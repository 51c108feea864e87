"""Runs a traced function with some of its primitives replaced; the rules, except those of convolutions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from itertools import product
from typing import Any, TypeVar, TypeVarTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from evenhand._jaxpr import JaxprEqn, Primitive, closed_call_p, cond_p, jit_p, programs, remat_p, scan_p
from evenhand._jaxpr.convolution import convolution
from evenhand.types import Array

_Arguments = TypeVarTuple("_Arguments")
_R = TypeVar("_R")
_Sizes = tuple[int, ...]


# --- rules: maxima over windows that tile, as elementwise maxima of strided slices ------------------------------------

_LARGEST_WINDOW = 9
"""Numbers in a window up to which slices are faster than the native form."""


def maximum(equation: JaxprEqn) -> Callable[[Array], Array] | None:
    """The rule for ``reduce_window_max``: small windows, side by side and without padding."""
    params, x = equation.params, cast("Any", equation.invars[0].aval)
    size: _Sizes = tuple(params["window_dimensions"])
    tiles = size == tuple(params["window_strides"]) and all(sides == (0, 0) for sides in params["padding"])
    dense = {*params["window_dilation"], *params["base_dilation"]} <= {1}
    fits = 2 <= math.prod(size) <= _LARGEST_WINDOW and jnp.issubdtype(x.dtype, jnp.floating)
    return partial(_maximum, size) if tiles and dense and fits else None


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _maximum(size: _Sizes, x: Array) -> Array:
    return reduce(jnp.maximum, _corners(x, size))


@_maximum.defjvp
def _maximum_jvp(size: _Sizes, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The transpose of strided slices pads and adds as many images as a window has numbers, and jnp.maximum shares
    # the gradient between equal values: one comparison per number is faster by far, and picks one of them.
    (x,), (dx,) = primals, tangents
    pooled = _maximum(size, x)
    last = math.prod(size) - 1
    place = jnp.full(pooled.shape, last, jnp.int32)
    for index, corner in reversed([*enumerate(_corners(x, size))][:last]):
        place = jnp.where(corner == pooled, jnp.int32(index), place)
    windows, axes = _windows(dx, size)
    places = jnp.arange(last + 1, dtype=jnp.int8)
    places = places.reshape([size[axis // 2] if axis in axes else 1 for axis in range(windows.ndim)])
    here = jnp.expand_dims(place.astype(jnp.int8), axes) == places
    return pooled, jnp.sum(jnp.where(here, windows, 0.0), axis=axes)


def _corners(x: Array, size: _Sizes) -> list[Array]:
    """For each place in a window, in reading order, what all windows have there."""
    whole = [length // step * step for length, step in zip(x.shape, size, strict=True)]
    return [lax.slice(x, place, whole, size) for place in product(*map(range, size))]


def _windows(x: Array, size: _Sizes) -> tuple[Array, _Sizes]:
    """``x`` with an axis for the place in the window after each of its own, and which axes those are."""
    counts = [length // step for length, step in zip(x.shape, size, strict=True)]
    whole = [count * step for count, step in zip(counts, size, strict=True)]
    shape = [length for pair in zip(counts, size, strict=True) for length in pair]
    return lax.slice(x, [0] * x.ndim, whole).reshape(shape), tuple(range(1, 2 * x.ndim, 2))


# --- rules: matrix products of rows -----------------------------------------------------------------------------------

_MATRICES = (((1,), (0,)), ((), ()))
_FEWEST_FEATURES = 128
_COLUMNS = (2, 32)
"""Fewest and most columns for which the gradient is faster this way."""
_LARGE, _MOST_ROWS = 2**20, 512
"""Numbers of a matrix, and rows by it, for which the gradient in the rows is faster with the matrix first."""
_FEW_ROWS, _SMALL, _NARROWEST = 32, 2**17, 48
"""Most rows, most numbers of a matrix, and its fewest rows or columns, for which transposing the rows first pays."""


def product_of_rows(equation: JaxprEqn) -> Callable[[Array, Array], Array] | None:
    """The rule for ``dot_general`` on the CPU: rows in several axes, few, or by a matrix that is narrow or large."""
    x, w = (cast("Any", operand.aval) for operand in equation.invars)
    last = (((x.ndim - 1,), (0,)), ((), ()))
    if equation.params["dimension_numbers"] != last or jax.default_backend() != "cpu":
        return None
    if x.ndim < 2 or w.ndim != 2 or x.size == 0:  # vectors
        return None
    if not all(jnp.issubdtype(operand.dtype, jnp.floating) for operand in (x, w)):
        return None
    tall = w.shape[0] >= _FEWEST_FEATURES and _COLUMNS[0] <= w.shape[1] <= _COLUMNS[1]
    rows = x.size // w.shape[0]
    large = not tall and w.size >= _LARGE and 2 <= rows <= _MOST_ROWS
    few = not tall and 2 <= rows <= _FEW_ROWS and min(w.shape) >= _NARROWEST and w.size <= _SMALL
    form = _matmul if tall else _by_large if large else _of_few if few else _native
    matmul = partial(form, {**equation.params, "dimension_numbers": _MATRICES})
    if x.ndim > 2:
        return partial(_of_all_rows, matmul)
    return None if form is _native else matmul


def _of_all_rows(matmul: Callable[[Array, Array], Array], x: Array, w: Array) -> Array:
    # With rows in several axes, XLA transposes the slopes for the gradient of w.
    return matmul(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[-1])


def _native(params: dict[str, Any], x: Array, w: Array) -> Array:
    return lax.dot_general_p.bind(x, w, **params)


def _matmul(params: dict[str, Any], x: Array, w: Array) -> Array:
    # XLA would fold the transpose into the product and make x^T g of it, which is slower than (g^T x)^T.
    return lax.dot_general_p.bind(x, _apart(w.T).T, **params)


def _by_large(params: dict[str, Any], x: Array, w: Array) -> Array:
    # XLA makes (w g^T)^T of the gradient g w^T then, and need not copy w to multiply by its transpose.
    return lax.dot_general_p.bind(_apart(x.T).T, w, **params)


def _of_few(params: dict[str, Any], x: Array, w: Array) -> Array:
    product = jax.custom_jvp(partial(_native, params))

    @partial(product.defjvp, symbolic_zeros=True)
    def _(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
        (x, w), (dx, dw) = primals, tangents
        parts = [] if isinstance(dx, SymbolicZero) else [_native(params, dx, w)]
        if not isinstance(dw, SymbolicZero):
            # XLA has faster code for a copied x^T by g than for an x that is read along its columns.
            by_columns = {**params, "dimension_numbers": (((0,), (0,)), ((), ()))}
            parts.append(_native(by_columns, lax.optimization_barrier(x.T), dw))
        return product(x, w), sum(parts[1:], parts[0])

    return product(x, w)


def outer(a: Array, b: Array) -> Array:
    """``a^T b`` of ``a (n, rows)`` and ``b (n, columns)``, in full precision, and transposed where that is faster."""
    highest = lax.Precision.HIGHEST
    narrow = a.shape[1] >= _FEWEST_FEATURES and _COLUMNS[0] <= b.shape[1] <= _COLUMNS[1]
    if narrow and jax.default_backend() == "cpu":
        return lax.optimization_barrier(jnp.matmul(b.T, a, precision=highest)).T
    return jnp.matmul(a.T, b, precision=highest)


@jax.custom_jvp
def _apart(x: Array) -> Array:
    """The identity, whose derivative the compiler does not merge with what comes before or after."""
    return x


@_apart.defjvp
def _apart_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], lax.optimization_barrier(tangents[0])


# --- the walk ---------------------------------------------------------------------------------------------------------

_RULES: dict[Primitive, Callable[[JaxprEqn], Callable[..., Array] | None]] = {
    lax.conv_general_dilated_p: convolution,
    lax.reduce_window_max_p: maximum,
    lax.dot_general_p: product_of_rows,
}
"""What stands in for a primitive: a function of its operands, or None where the primitive itself is faster."""
_ENTERED = {jit_p, closed_call_p, scan_p, remat_p, cond_p}


def lowered(function: Callable[[*_Arguments], _R]) -> Callable[[*_Arguments], _R]:
    """The same function of arrays, with what XLA does slowly in a loop or under ``vmap`` done another way.

    See :mod:`evenhand.lowering` for what that is.  All local training goes through here; a solver of your own
    that calls ``model.apply`` itself should call ``lowered(model.apply)``.

    Args:
      function: trees of arrays -> tree of arrays, pure and traceable; it is traced once more per call.

    Returns:
      A function with the same arguments and results up to rounding, to be transformed like any other; it calls
      ``function`` itself where there is nothing to replace.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model, x = models.cnn_femnist(), jnp.zeros((1, 784))
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> def gradient(apply):
      ...     return str(jax.make_jaxpr(jax.grad(lambda w: jnp.sum(apply(w, x))))(params))
      >>> ["conv_general_dilated" in gradient(apply) for apply in (model.apply, lowered(model.apply))]
      [True, False]
    """

    @wraps(function)
    def call(*arguments: *_Arguments) -> _R:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        try:
            outputs = _run(closed, *jax.tree.leaves(arguments)) if _has_work(closed) else None
        except Exception as error:
            # Where the function fails, too, as under a transformation that it does not allow, the walk is not to blame.
            result = function(*arguments)
            warnings.warn(
                f"JAX {jax.__version__} keeps programs in a way that Evenhand does not know ({error!r}): convolutions"
                f" and pooling are left to XLA, which makes local training on a CPU several times slower.",
                stacklevel=2,
            )
            return result
        return (
            function(*arguments)
            if outputs is None
            else jax.tree.unflatten(jax.tree.structure(shapes), outputs)
        )

    return call


def _run(program: Any, *operands: Any) -> list[Any]:
    return programs.evaluate(*programs.opened(program), operands, as_lowered)


def as_lowered(equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation, by the rules of :func:`lowered`; :func:`.programs.as_it_is` has none.

    Raises:
      UnknownForm: the equation has an inner program to be lowered, in a form that is not known.
    """
    rule = _RULES.get(equation.primitive)
    function = rule(equation) if rule else None
    if function is not None:
        return [function(*operands)]
    if not any(map(_has_work, _inner(equation))):
        return programs.as_it_is(equation, operands)
    if equation.primitive is remat_p:
        params = equation.params
        inner = partial(_run, params["jaxpr"])
        return jax.checkpoint(inner, prevent_cse=params["prevent_cse"], policy=params["policy"])(*operands)
    return programs.again(equation, operands, _run)


def _has_work(program: Any) -> bool:
    for equation in programs.opened(program)[0].eqns:
        rule = _RULES.get(equation.primitive)
        if (rule and rule(equation)) or any(map(_has_work, _inner(equation))):
            return True
    return False


def _inner(equation: JaxprEqn) -> list[Any]:
    """The programs inside an equation that may be rewritten: not those that come with derivatives of their own."""
    return programs.inner(equation) if equation.primitive in _ENTERED else []
