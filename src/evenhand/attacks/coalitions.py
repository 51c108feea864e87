"""Coalitions: malicious clients that know all uploads of their cohort, and agree on what they send.

What they know of the honest uploads is :class:`_Honest`.  Some set the mean, send one value or copy an honest client;
ALIE and inner-product manipulation stay near the honest mean; min-max and min-sum go as far from it as the distances
between honest uploads allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri

from evenhand import tree
from evenhand.aggregators import reduce_uploads
from evenhand.aggregators.stacked import flattened
from evenhand.attacks.uploads import check_factor
from evenhand.errors import EvenhandError, expect, real_number
from evenhand.types import Aggregator, Array, Attack, Key, PyTree, Sum, Upload

__all__ = ["alie", "inner_product", "mimic", "min_max", "min_sum", "omniscient", "same_value"]


class _Honest(NamedTuple):
    """The honest uploads of a cohort.

    Attributes:
      uploads: those of the whole cohort, leading axis ``m``.
      present: which slots are not empty, bool ``(m,)``.
      weights: ``(m,)``, 1 for each honest client and 0 for all others.
      mean: of the honest uploads.
    """

    uploads: Upload
    present: Array
    weights: Array
    mean: PyTree

    @staticmethod
    def of(uploads: Upload, malicious: Array, present: Array) -> _Honest:
        """Those among the present uploads whose clients are not malicious."""
        weights = (present & ~malicious).astype(jnp.float32)
        return _Honest(uploads, present, weights, tree.weighted_mean(uploads.delta, weights))

    def apart(self) -> PyTree:
        """Each upload less the mean of the honest ones."""
        return jax.tree.map(lambda leaf, mean: leaf - mean[None], self.uploads.delta, self.mean)

    def deviation(self) -> PyTree:
        """The standard deviation of each coordinate over the honest uploads."""
        squares = jax.tree.map(lambda x, mean: jnp.square(x - mean[None]), self.uploads.delta, self.mean)
        return jax.tree.map(jnp.sqrt, tree.weighted_mean(squares, self.weights))

    def moved(self, factor: Array, direction: PyTree) -> PyTree:
        """The honest mean plus ``factor * direction``, as the update of each client."""
        return _everyone(tree.add(self.mean, tree.scale(factor, direction)), self.uploads.delta)


def _everyone(delta: PyTree, like: PyTree) -> PyTree:
    """One update as that of each client."""
    return jax.tree.map(
        lambda update, stacked: jnp.broadcast_to(update, stacked.shape).astype(stacked.dtype), delta, like
    )


# --- one value for all -------------------------------------------------------------------------------------------


def omniscient(fraction: float = 0.0) -> Attack:
    r"""Omniscient attack: turns the weighted mean of the cohort into its opposite.

    .. math:: \Delta_k = \bar\Delta_C - \frac{2 N}{N_C} \bar\Delta

    with :math:`\bar\Delta` the weighted mean of all updates, :math:`\bar\Delta_C` that of the malicious clients, and
    :math:`N`, :math:`N_C` the sums of the weights: the mean of what is sent is then :math:`-\bar\Delta`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.

    Edge cases: malicious clients whose weights are all 0 send zeros.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, section V.
    """

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        weights = jnp.where(present, uploads.weight, 0.0)
        theirs = jnp.where(malicious, weights, 0.0)
        part = jnp.sum(theirs)
        ratio = jnp.where(part > 0, 2.0 * jnp.sum(weights) / jnp.where(part > 0, part, 1.0), 0.0)
        mean, own = (tree.weighted_mean(uploads.delta, shares) for shares in (weights, theirs))
        return _everyone(tree.subtract(own, tree.scale(ratio, mean)), uploads.delta)

    return Attack(fraction, collude=collude)


def same_value(fraction: float = 0.0, *, value: float = 1.0) -> Attack:
    r"""Same-value attack: sends the same number in every coordinate: :math:`\Delta_k = c \mathbf 1`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      value: :math:`c`.

    Raises:
      EvenhandError: ``value`` not finite.

    Source: Li, Xu, Chen, Giannakis and Ling, *RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
    Learning from Heterogeneous Datasets*, AAAI 2019, section 5.
    """
    if not math.isfinite(real_number(value)):
        raise EvenhandError(f"same_value(value={value!r:.40}): give a finite number.")

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, value), uploads.delta)

    return Attack(fraction, collude=collude)


def mimic(fraction: float = 0.0) -> Attack:
    r"""Mimic: all malicious clients copy the honest upload farthest from the honest mean, so it counts too much.

    .. math:: \Delta_k = \Delta_{i^*}, \qquad i^* = \arg\max_i \|\Delta_i - \mu\|

    over the honest clients :math:`i` with mean :math:`\mu`.  Each such upload is one that an honest client has made.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.

    Edge cases: without an honest client in the cohort, they send the first upload.

    Differs from the paper: there one client is copied in all rounds, the one farthest along a direction that is learnt
    over the first of them; here it is chosen anew in each round, as cohorts change.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [2.0], [6.0], [9.0]]), jnp.ones(4), jnp.ones(4))
      >>> malicious, present = jnp.array([False, False, False, True]), jnp.ones(4, bool)
      >>> mimic(0.25).collude(uploads, malicious, present, jax.random.key(0))[3].tolist()
      [6.0]

    Source: Karimireddy, He and Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022,
    section 3.
    """

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = _Honest.of(uploads, malicious, present)
        distances = jax.vmap(tree.norm)(honest.apart())
        chosen = jnp.argmax(jnp.where(honest.weights > 0, distances, -1.0))
        return _everyone(tree.take(uploads.delta, chosen), uploads.delta)

    return Attack(fraction, collude=collude)


# --- near the honest mean, by a formula or as far as deceives a given aggregator ---------------------------------


def alie(fraction: float = 0.0, *, z: float | None = None, against: Aggregator | None = None) -> Attack:
    r"""ALIE ("a little is enough"): sends the honest mean minus some standard deviations of each coordinate.

    .. math:: \Delta_k = \mu - z \sigma, \qquad
        z = \Phi^{-1}\Big(\frac{m - f - s}{m - f}\Big), \quad s = \Big\lfloor \frac m2 + 1 \Big\rfloor - f

    with :math:`m` clients in the cohort, :math:`f` of them malicious.  So many honest uploads are farther out than
    these that a majority seems to stand with them.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      z: :math:`z`; None: as above, and at least 0.
      against: the aggregator to be deceived: of 16 values of ``z``, from 1/16 to 16, the one that moves it farthest.

    Raises:
      EvenhandError: both ``z`` and ``against`` are given, ``z`` is not finite, or ``against`` is an aggregator that
        weighs clients by their reports.

    Differs from the paper: its coalition estimates :math:`\mu` and :math:`\sigma` from its own updates; here it knows
    those of the honest clients.  Here :math:`\sigma^2` is the mean square over the :math:`h = m - f` honest uploads;
    implementations that divide by :math:`h - 1` get a :math:`\sigma` longer by a factor :math:`\sqrt{h / (h - 1)}`.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [3.0], [9.0]]), jnp.ones(3), jnp.ones(3))
      >>> malicious, present = jnp.array([False, False, True]), jnp.ones(3, bool)
      >>> alie(0.3, z=1.5).collude(uploads, malicious, present, jax.random.key(0))[2].tolist()
      [0.5]

    Source: Baruch, Baruch and Goldberg, *A Little Is Enough: Circumventing Defenses for Distributed Learning*, NeurIPS
    2019, algorithm 3; against a named aggregator: Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021.
    """
    _check_against("alie", "z", z, against)

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = _Honest.of(uploads, malicious, present)
        direction = tree.scale(-1.0, honest.deviation())
        if against is not None:
            factor = _strongest(against, honest, direction, key)
        else:
            factor = _usual_z(present, malicious) if z is None else jnp.float32(z)
        return honest.moved(factor, direction)

    return Attack(fraction, collude=collude)


def _usual_z(present: Array, malicious: Array) -> Array:
    m, f = jnp.sum(present), jnp.sum(present & malicious)
    supporters = m // 2 + 1 - f
    honest = jnp.maximum(m - f, 1).astype(jnp.float32)
    share = (m - f - supporters).astype(jnp.float32) / honest
    return jnp.maximum(ndtri(jnp.clip(share, 1e-4, 1 - 1e-4)), 0.0)


def inner_product(
    fraction: float = 0.0, *, epsilon: float | None = None, against: Aggregator | None = None
) -> Attack:
    r"""Inner-product manipulation: sends a multiple of the honest mean, in the opposite direction.

    .. math:: \Delta_k = -\epsilon \mu

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      epsilon: :math:`\epsilon`; None: 0.5 without ``against``.
      against: the aggregator to be deceived: of 16 values of ``1 + epsilon``, from 1/16 to 16, the one that moves it
        farthest.

    Raises:
      EvenhandError: both ``epsilon`` and ``against`` are given, ``epsilon`` is not finite, or ``against`` is an
        aggregator that weighs clients by their reports.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [3.0], [9.0]]), jnp.ones(3), jnp.ones(3))
      >>> malicious, present = jnp.array([False, False, True]), jnp.ones(3, bool)
      >>> inner_product(0.3).collude(uploads, malicious, present, jax.random.key(0))[2].tolist()
      [-1.0]

    Source: Xie, Koyejo and Gupta, *Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation*, UAI
    2019, section 4.
    """
    _check_against("inner_product", "epsilon", epsilon, against)

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = _Honest.of(uploads, malicious, present)
        direction = tree.scale(-1.0, honest.mean)
        factor = jnp.float32(1.0 + (0.5 if epsilon is None else epsilon))
        if against is not None:
            factor = _strongest(against, honest, direction, key)
        return honest.moved(factor, direction)

    return Attack(fraction, collude=collude)


def _check_against(name: str, argument: str, value: float | None, against: Aggregator | None) -> None:
    """One of the two at most, and an aggregator that can be tried on uploads alone."""
    if value is not None and against is not None:
        raise EvenhandError(f"{name}() got both {argument}= and against=: give one of them.")
    if value is not None:
        check_factor(f"{name}({argument}", value)
    expect(f"{name}(against=)", against, Aggregator | None, "eh.aggregators.krum(1)")
    if isinstance(against, Sum) and against.weigh is not None:
        raise EvenhandError(
            f"{name}(against=): this aggregator weighs clients by their reports before they train: give {argument}=."
        )


def _strongest(against: Aggregator, honest: _Honest, direction: PyTree, key: Key) -> Array:
    """The factor, of 16, with which ``mean + factor * direction`` moves an aggregate farthest from the honest mean.

    Args:
      against: the aggregator, in its state before the first round.
      honest: the honest uploads.
      direction: the coalition's, a tree like one delta.
      key: for an aggregator that draws at random.
    """
    factors = jnp.asarray(np.geomspace(1 / 16, 16, 16), jnp.float32)
    uploads, present = honest.uploads, honest.present
    against = against.unmasked
    state = against.init(tree.zeros_like(honest.mean), present.shape[0])
    noise = jax.random.split(key, present.shape[0])

    def moved(factor: Array) -> Array:
        sent = tree.add(honest.mean, tree.scale(factor, direction))
        deltas = tree.among(honest.weights > 0, uploads.delta, _everyone(sent, uploads.delta))
        aggregate, _ = reduce_uploads(against, uploads._replace(delta=deltas), present, state, key, noise)
        return tree.norm(tree.subtract(aggregate, honest.mean))

    return factors[jnp.argmax(lax.map(moved, factors))]


# --- as far out as the distances between honest uploads allow ----------------------------------------------------

_Bound: TypeAlias = Callable[[Array, Array, Array, Array, Array], Array]
"""``(squared distances of the honest to their mean, products with the direction, its squared norm, squared distances
among the honest, which are honest) -> the largest factor``."""

_Direction: TypeAlias = Literal["unit", "std", "sign"]


def min_max(fraction: float = 0.0, *, direction: _Direction = "unit") -> Attack:
    r"""Min-max: no farther from any honest upload than the two farthest honest uploads are from each other.

    .. math:: \Delta_k = \mu + \gamma p, \qquad
        \max_i \|\mu + \gamma p - \Delta_i\| \le \max_{i, j} \|\Delta_i - \Delta_j\|

    over honest :math:`i, j`, with the largest such :math:`\gamma`, which is the root of a quadratic for each :math:`i`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
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

    return _distance_bounded("min_max", fraction, direction, largest)


def min_sum(fraction: float = 0.0, *, direction: _Direction = "unit") -> Attack:
    r"""Min-sum: sum of squared distances to honest uploads no larger than that of the farthest honest upload.

    .. math:: \Delta_k = \mu + \gamma p, \qquad
        \sum_i \|\mu + \gamma p - \Delta_i\|^2 \le \max_i \sum_j \|\Delta_i - \Delta_j\|^2

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
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

    return _distance_bounded("min_sum", fraction, direction, largest)


def _distance_bounded(name: str, fraction: float, direction: str, largest: _Bound) -> Attack:
    if direction not in ("unit", "std", "sign"):
        raise EvenhandError(f"{name}(direction={direction!r}): give 'unit', 'std' or 'sign'.")

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = _Honest.of(uploads, malicious, present)
        p, here = _direction(honest, direction), honest.weights > 0
        flat = jnp.concatenate([flattened(leaf) for leaf in jax.tree.leaves(honest.apart())], axis=1)
        inner = flat @ flat.T
        apart = jnp.diagonal(inner)
        pairs = jnp.maximum(apart[:, None] + apart[None, :] - 2.0 * inner, 0.0)
        line = jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in jax.tree.leaves(p)])
        factor = largest(apart, -(flat @ line), jnp.dot(line, line), pairs, here)
        return honest.moved(jnp.where(jnp.isfinite(factor), factor, 0.0), p)

    return Attack(fraction, collude=collude)


def _direction(honest: _Honest, name: str) -> PyTree:
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
