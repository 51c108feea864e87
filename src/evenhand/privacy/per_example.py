"""Gradients of single examples, clipped one by one and summed, at about the price of one plain gradient.

:func:`clipped_sum` takes norms and weighted sums from the accounts of a batch, a leaf at a time, which
:mod:`evenhand._jaxpr.per_example` makes from the loss of one example as a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand._jaxpr.per_example import ExampleRows, LeafGradients, full_type, traced
from evenhand.errors import EvenhandError
from evenhand.local import check_rows_apart
from evenhand.privacy._checks import SMALLEST_CLIP
from evenhand.types import Array, Key, Model, Params

__all__ = ["clip_factors", "clipped_sum"]

_MOST_NUMBERS = 2**24
"""How many numbers of per-example gradients are held at a time."""


_SLACK = 2.0**-18
"""The part by which a squared norm with an offset is overstated: some thirty times what a float32 rounds."""


def clipped_sum(
    model: Model,
    params: Params,
    x: Array,
    y: Array,
    inside: Array,
    key: Key,
    *,
    clip: Array | float,
    divided_by: Params | None = None,
    plus: Params | None = None,
) -> tuple[Params, Array]:
    r"""The sum of per-example gradients, each clipped to a norm of ``clip``.

    With :math:`g_i = (\nabla_w \ell(w; x_i, y_i) + M) / D`, coordinate by coordinate, where :math:`M` and :math:`D` are
    given,

    .. math:: \sum_{i\,:\,\text{inside}_i} g_i \min\Big(1, \frac{\text{clip}}{\|g_i\|}\Big).

    The norm is that of all leaves together.  Adding or removing an example changes the sum by at most ``clip``: this is
    the sensitivity that noise is measured by.  Norms are found by book-keeping: in dense layers, convolutions and
    embeddings from what goes in and the gradients of what comes out; only biases, scales and other leaves, and those
    layers with several positions per example, have a gradient for each example (:mod:`evenhand._jaxpr.per_example`).

    Args:
      model: gives the loss of an example, in training: with dropout, every example has a key of its own.
      params: where the gradients are taken.
      x: the examples, ``(b, ...)``.
      y: their labels, ``(b, ...)``.
      inside: ``(b,)``, which examples count; others add nothing, whatever is in them.
      key: for dropout.
      clip: the largest norm, 0 or at least 1e-12, below which float32 loses squares; infinity: nothing is clipped.  May
        be traced.
      divided_by: :math:`D`, a tree like ``params``, by which gradients are divided before they are clipped; may be
        traced.
      plus: :math:`M`, a tree like ``params``, which is added to each gradient before that; may be traced.

    Returns:
      ``(sum, norms)``: a tree like ``params``, but in float32 at least, since half of its digits would round a sum by
      more than an example can change it; and ``(b,)``, the norms of :math:`g_i` before clipping, with ``plus`` no less
      than these; those of examples that are not ``inside`` mean nothing.  An example whose norm is infinite, too large
      for a float32, or not a number adds nothing, and neither does any example where ``clip`` is not a number.  A
      gradient of zeros stays so; with no example inside, the sum is zeros.

    Raises:
      EvenhandError: the model has running statistics; ``clip`` is negative, too small or not a number; or
        ``divided_by`` or ``plus`` is not a tree like ``params``.

    Memory: the batch's activations, and gradients per example of up to :math:`2^{24}` numbers together; a batch that
    would need more is taken in slices.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.linear_regression(2)
      >>> x, y, key = jnp.array([[2.0, 2.0], [0.0, 1.0]]), jnp.array([-1.0, 0.0]), jax.random.key(0)
      >>> total, norms = clipped_sum(model, model.init(key), x, y, jnp.array([True, True]), key, clip=3.0)
      >>> norms.tolist(), total["bias"].tolist()
      ([6.0, 0.0], [1.0])

    Source: Goodfellow, *Efficient Per-Example Gradient Computations*, 2015; Bu et al., *Differentially Private
    Optimization on Large Model at Small Cost* (book-keeping), ICML 2023.
    """
    check_rows_apart(model, "clipped_sum", "the gradient of each example is taken by itself")
    if not isinstance(clip, jax.Array) and not (clip == 0 or float(clip) >= SMALLEST_CLIP):
        raise EvenhandError(
            f"clip={clip}: give the largest norm of an example's gradient, 0 or a number of at least {SMALLEST_CLIP:g}."
        )
    for name, other in (("divided_by", divided_by), ("plus", plus)):
        if other is not None and jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, other):
            raise EvenhandError(f"{name} must be a tree like the parameters, one number for each of them.")
    leaves, structure = jax.tree.flatten(params)
    divisors, offsets = _like(leaves, divided_by), _like(leaves, plus)
    if divided_by is not None and plus is not None:
        offsets = [m / d for m, d in zip(offsets, divisors, strict=True) if m is not None and d is not None]
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(x), dtype=jnp.uint32))
    loss = traced(model, params, ExampleRows(x, y, keys))
    full, nothing = full_type(*leaves), [jnp.zeros(leaf.shape, full_type(leaf)) for leaf in leaves]

    def of_slice(rows: ExampleRows, inside: Array) -> tuple[list[Array], Array]:
        accounts = loss.accounts(leaves, rows, divisors)
        squares = [account.squares.astype(full) for account in accounts if account]
        norms = jnp.sqrt(_leaning(sum(squares, jnp.zeros(len(inside), full)), accounts, offsets))
        weights = jnp.where(inside, clip_factors(norms, clip), 0.0)
        sums: list[Array] = []
        for account, zeros, offset in zip(accounts, nothing, offsets, strict=True):
            total = zeros if account is None else account.summed(weights).astype(zeros.dtype)
            sums.append(total if offset is None else total + (jnp.sum(weights) * offset).astype(zeros.dtype))
        return sums, norms

    sums, norms = _in_slices(of_slice, ExampleRows(x, y, keys), inside, loss.numbers, nothing)
    return jax.tree.unflatten(structure, sums), norms


def clip_factors(norms: Array, clip: Array | float) -> Array:
    """``min(1, clip / norm)`` for each norm; 1 for a norm of 0, and 0 for one that is infinite or not a number."""
    bound = jnp.maximum(jnp.asarray(clip, norms.dtype), 0.0)
    factors = jnp.where(norms <= bound, 1.0, bound / norms)
    return jnp.where(jnp.isfinite(norms) & jnp.isfinite(factors), factors, 0.0)


def _leaning(
    squares: Array, accounts: Sequence[LeafGradients | None], offsets: Sequence[Array | None]
) -> Array:
    r""":math:`\|g_i + m\|^2`, or a little more, from :math:`\|g_i\|^2`.

    Where :math:`g_i` and :math:`m` cancel, :math:`\|g_i\|^2 + 2 \langle g_i, m \rangle + \|m\|^2` has few digits left,
    and a norm that is too small breaks the privacy guarantee: a part that is larger than its error is added.
    """
    given = [(account, m) for account, m in zip(accounts, offsets, strict=True) if m is not None]
    if not given:
        return squares
    own = sum((jnp.sum(jnp.square(m)).astype(squares.dtype) for _, m in given), jnp.zeros((), squares.dtype))
    shared = sum((leaf.along(m).astype(squares.dtype) for leaf, m in given if leaf), jnp.zeros_like(squares))
    return jnp.maximum(squares + 2.0 * shared + own, 0.0) + _SLACK * (squares + own)


def _like(leaves: Sequence[Array], tree: Params | None) -> Sequence[Array | None]:
    """The leaves of a tree like the parameters, in full precision."""
    if tree is None:
        return [None] * len(leaves)
    others = jax.tree.leaves(tree)
    return [jnp.asarray(other, full_type(leaf)) for other, leaf in zip(others, leaves, strict=True)]


def _in_slices(
    of_slice: Callable[[ExampleRows, Array], tuple[list[Array], Array]],
    rows: ExampleRows,
    inside: Array,
    numbers: int,
    like: Sequence[Array],
) -> tuple[list[Array], Array]:
    """Adds up ``of_slice`` over slices that hold about as many numbers as they may."""
    examples = len(inside)
    if not examples:
        return tree.zeros_like(list(like)), jnp.zeros(0, jnp.float32)
    slices = -(-examples // max(1, _MOST_NUMBERS // max(1, numbers)))
    if slices == 1:
        return of_slice(rows, inside)
    width = -(-examples // slices)
    slices = -(-examples // width)
    index = jnp.arange(slices * width, dtype=jnp.int32).reshape(slices, width)

    def step(total: list[Array], index: Array) -> tuple[list[Array], Array]:
        at = jnp.minimum(index, examples - 1)
        sums, norms = of_slice(tree.take(rows, at), inside[at] & (index < examples))
        return tree.add(total, sums), norms

    total, norms = jax.lax.scan(step, tree.zeros_like(list(like)), index)
    return total, norms.reshape(-1)[:examples]
