"""Min-max and min-sum: uploads as far out as the distances between honest ones allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.attacks._coalition import Honest, everyone
from evenhand.errors import EvenhandError
from evenhand.types import Array, Attack, Key, PyTree, Upload

__all__ = ["min_max", "min_sum"]

_Bound: TypeAlias = Callable[[Array, Array, Array, Array, Array], Array]
"""``(squared distances of the honest to their mean, products with the direction, its squared norm, squared distances
among the honest, which are honest) -> the largest factor``."""

_Direction: TypeAlias = Literal["unit", "std", "sign"]


def min_max(fraction: float = 0.0, *, direction: _Direction = "unit") -> Attack:
    r"""As far from the honest mean as the farthest honest pair are from each other.

    .. math:: \Delta_k = \mu + \gamma p, \qquad
        \max_i \|\mu + \gamma p - \Delta_i\| \le \max_{i, j} \|\Delta_i - \Delta_j\|

    over honest :math:`i, j`, with the largest such :math:`\gamma`, which is the root of a quadratic for each :math:`i`.

    Args:
      fraction: share of the clients that are malicious.
      direction: :math:`p`: ``"unit"``, :math:`-\mu / \|\mu\|`; ``"std"``, less the standard deviation of each
        coordinate; ``"sign"``, less the sign of the mean.

    Raises:
      EvenhandError: another direction.

    Edge cases: with one honest upload, or equal ones, they send the mean.

    Differs from the paper: :math:`\gamma` is exact, where its code halves an interval.

    Source: Shejwalkar and Houmansadr, *Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning*, NDSS 2021, section IV-B, equation 5.
    """

    def largest(apart: Array, products: Array, norm: Array, pairs: Array, honest: Array) -> Array:
        bound = jnp.max(jnp.where(honest[:, None] & honest[None, :], pairs, 0.0))
        return jnp.min(jnp.where(honest, _root(norm, 2.0 * products, apart - bound), jnp.inf))

    return _attack("min_max", fraction, direction, largest)


def min_sum(fraction: float = 0.0, *, direction: _Direction = "unit") -> Attack:
    r"""With a sum of squared distances to the honest no larger than that of the farthest honest one.

    .. math:: \Delta_k = \mu + \gamma p, \qquad
        \sum_i \|\mu + \gamma p - \Delta_i\|^2 \le \max_i \sum_j \|\Delta_i - \Delta_j\|^2

    Args:
      fraction: share of the clients that are malicious.
      direction: :math:`p`, as for :func:`min_max`.

    Raises:
      EvenhandError: another direction.

    Edge cases: as for :func:`min_max`.

    Differs from the paper: as :func:`min_max`.

    Source: Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021, section IV-B, equation 6.
    """

    def largest(apart: Array, products: Array, norm: Array, pairs: Array, honest: Array) -> Array:
        count = jnp.sum(honest.astype(jnp.float32))
        sums = jnp.sum(jnp.where(honest[None, :], pairs, 0.0), axis=1)
        bound = jnp.max(jnp.where(honest, sums, 0.0))
        total = jnp.sum(jnp.where(honest, apart, 0.0)) - bound
        return _root(count * norm, 2.0 * jnp.sum(jnp.where(honest, products, 0.0)), total)

    return _attack("min_sum", fraction, direction, largest)


def _attack(name: str, fraction: float, direction: str, largest: _Bound) -> Attack:
    if direction not in ("unit", "std", "sign"):
        raise EvenhandError(f"{name}(direction={direction!r}): give 'unit', 'std' or 'sign'.")

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = Honest.of(uploads, malicious, present)
        p, here = _direction(honest, direction), honest.weights > 0
        flat = _flat(jax.tree.map(lambda leaf, mean: leaf - mean[None], uploads.delta, honest.mean))
        inner = flat @ flat.T
        apart = jnp.diagonal(inner)
        pairs = jnp.maximum(apart[:, None] + apart[None, :] - 2.0 * inner, 0.0)
        line = jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in jax.tree.leaves(p)])
        factor = largest(apart, -(flat @ line), jnp.dot(line, line), pairs, here)
        factor = jnp.where(jnp.isfinite(factor), factor, 0.0)
        return everyone(tree.add(honest.mean, tree.scale(factor, p)), uploads.delta)

    return Attack(fraction, collude=collude)


def _direction(honest: Honest, name: str) -> PyTree:
    if name == "std":
        return tree.scale(-1.0, honest.deviation())
    if name == "sign":
        return jax.tree.map(lambda leaf: -jnp.sign(leaf), honest.mean)
    return tree.scale(-1.0 / jnp.maximum(tree.norm(honest.mean), 1e-30), honest.mean)


def _root(a: Array, b: Array, c: Array) -> Array:
    """The largest root of ``a x^2 + b x + c``, with ``c`` at most 0; 0 for ``a`` 0."""
    some = jnp.where(a > 0, a, 1.0)
    half = -0.5 * b / some
    return jnp.where(a > 0, half + jnp.sqrt(half * half - c / some), 0.0)


def _flat(deltas: PyTree) -> Array:
    return jnp.concatenate(
        [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(deltas)], axis=1
    )
