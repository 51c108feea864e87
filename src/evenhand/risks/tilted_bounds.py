"""Bounds on a quantile from tilted risks: EVaR, of tilts above 0, and the tighter TiVaR, of tilts of either sign."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.core import Tracer

from evenhand.errors import EvenhandError, real_number
from evenhand.risks._population import at, bisected, check_tail, risk
from evenhand.risks.mean import mean
from evenhand.risks.tilted import tilted
from evenhand.types import Array, Risk

__all__ = ["entropic_value_at_risk", "tilted_value_at_risk"]

_STEPS = 48
_DECADES = 4.0
"""The tilt is sought within this many powers of ten, either way, of 1 / (range of the losses)."""


def entropic_value_at_risk(theta: float) -> Risk:
    r"""EVaR: the tightest upper bound on the (1 - theta)-quantile from tilted risks with ``t > 0``.

    .. math:: \text{EVaR}_\theta(f; p) = \min_{t > 0} \Big\{ \tilde R(t; f) - \frac1t \log \theta \Big\}

    The weights :math:`w(t)` are those of the tilted risk at the minimising ``t``, which a bisection finds from
    :math:`\sum_i w_i \log (w_i / p_i) = -\log\theta`: near its minimum the function itself is too flat for float32.

    Args:
      theta: the tail fraction in (0, 1]; 1 gives the mean, values near ``min p`` the largest loss.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: if all losses are equal, the value is that loss.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(entropic_value_at_risk(0.6).value(jnp.array([0.0, 1.0, 2.0, 3.0, 10.0]))), 3)
      7.218

    Source: Ahmadi-Javid, *Entropic Value-at-Risk*, 2012; Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023,
    equation for EVaR.
    """
    check_tail(theta, "entropic_value_at_risk")
    if theta == 1.0:
        return mean()

    def tilt(losses: Array, p: Array) -> Array:
        present = p > 0
        largest = jnp.max(jnp.where(present, losses, -jnp.inf))
        width = largest - jnp.min(jnp.where(present, losses, jnp.inf))
        width = jnp.where((width > 0) & jnp.isfinite(width), width, 1.0)

        def divergence(t: Array) -> Array:
            """The relative entropy of the weights to ``p``: it grows with ``t``, to ``-log theta`` at the minimum."""
            powers = jnp.where(present, t * (losses - largest), -jnp.inf)
            masses = p * jnp.exp(powers)
            total = jnp.sum(masses)
            total = jnp.where(total > 0, total, 1.0)
            return jnp.sum(jnp.where(masses > 0, masses * powers, 0.0)) / total - jnp.log(total)

        def is_low(decade: Array) -> Array:
            return divergence(10.0**decade / width) < -math.log(theta)

        ends = (jnp.full_like(width, -_DECADES), jnp.full_like(width, _DECADES))
        low, high = bisected(*ends, _STEPS, is_low)
        return jax.lax.stop_gradient(10.0 ** (0.5 * (low + high)) / width)

    def weigh(losses: Array, p: Array) -> Array:
        return tilted(tilt(losses, p)).weights(losses, p)

    def value(losses: Array, p: Array) -> Array:
        t = tilt(losses, p)
        bound = tilted(t).value(losses, p) - math.log(theta) / t
        largest = tilted(math.inf).value(losses, p)  # the limit of large t
        return at(jnp.minimum(bound, largest), tilted(t).weights(losses, p), losses)

    return risk(value, weigh)


# --- of either sign: on the host, in float64 ---------------------------------------------------------------------

_NODES = np.logspace(-4.0, 3.0, 57)
"""Tilts that are tried first, with either sign, in units of 1 / (range of the losses)."""
_SURE = 1e-8
"""A bracket below this has lost its digits to cancellation."""


def tilted_value_at_risk(theta: float, *, floor: float = 0.0) -> Risk:
    r"""TiVaR: the tightest upper bound on the (1 - theta)-quantile from tilted risks of *any* real tilt.

    .. math::
        \text{TiVaR}_\theta(f; p) = \min_{t \in \mathbb R} \Big\{ F + \frac1t
        \log \frac{e^{t (\tilde R(t; f) - F)} - (1 - \theta)}{\theta} \Big\}, \qquad F = \texttt{floor}

    It lies between the quantile and EVaR.  The bound is not convex in ``t``, so a grid is searched first and its best
    node refined.  The weights are those of the tilted risk at the minimising ``t``: the direction of the gradient,
    longer by a factor of :math:`1 / (1 - (1 - \theta) e^{-t (\tilde R(t; f) - F)})`.

    Args:
      theta: the tail fraction in (0, 1]; 1 gives the smallest loss.
      floor: a lower bound on the losses, whatever the parameters; the higher, the tighter.

    Raises:
      EvenhandError: ``theta`` outside (0, 1], or ``floor`` not finite; outside compiled code, also a loss below it.

    Edge cases: computed on the host in float64; in compiled code by a callback, where a loss below the floor gives NaN.
    Losses that equal the floor are taken out of the sum before it is compared with ``1 - theta``, so that large
    negative tilts lose nothing to cancellation: if exactly that fraction equals the floor, the value is exactly the
    smallest of the others; if more do, it is the floor, and the gradient is 0.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0])
      >>> [round(float(tilted_value_at_risk(theta).value(losses)), 3) for theta in (0.8, 0.6, 0.4)]
      [1.0, 4.634, 7.869]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, definition of TiVaR.
    """
    check_tail(theta, "tilted_value_at_risk")
    if not math.isfinite(real_number(floor)):
        raise EvenhandError(f"tilted_value_at_risk(floor={floor}): give a finite lower bound of the losses.")

    def solution(losses: Array, p: Array) -> tuple[Array, Array, Array]:
        if not isinstance(losses, Tracer) and bool(jnp.any((losses < floor) & (p > 0))):
            raise EvenhandError(
                f"tilted_value_at_risk(floor={floor}): the smallest loss, {float(jnp.min(losses)):.6g}, is below "
                "the floor; give a floor= that no loss can be below."
            )
        number, vector = (jax.ShapeDtypeStruct(shape, losses.dtype) for shape in ((), losses.shape))

        def host(losses: Any, p: Any) -> tuple[Any, ...]:
            parts = _tivar(np.asarray(losses, np.float64), np.asarray(p, np.float64), theta, floor)
            return tuple(np.asarray(part, number.dtype) for part in parts)

        out: tuple[Array, Array, Array] = jax.pure_callback(
            host, (number, vector, number), *jax.lax.stop_gradient((losses, p)), vmap_method="sequential"
        )
        return out

    def value(losses: Array, p: Array) -> Array:
        number, weights, length = solution(losses, p)
        return at(number, length * weights, losses)

    return risk(value, lambda losses, p: solution(losses, p)[1])


class _Losses(NamedTuple):
    """Losses above the floor, less the floor; their weights; and the weight at the floor, less ``1 - theta``."""

    above: npt.NDArray[np.float64]
    p: npt.NDArray[np.float64]
    at_floor: float
    theta: float

    def bounds(self, t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The bound, less the floor, at each nonzero tilt; infinity where there is none or it is inaccurate."""
        from scipy.special import logsumexp  # takes half a second, and few processes need it

        powers = t[:, None] * self.above[None]
        if self.at_floor == 0.0:
            total: Any = logsumexp(powers, b=self.p[None], axis=1)
            return (total - math.log(self.theta)) / t
        # Typed by hand: SciPy's annotations do not say when a sign comes back.
        powers, masses = np.pad(powers, ((0, 0), (0, 1))), np.append(self.p, self.at_floor)[None]
        logarithms: Any = logsumexp(powers, b=masses, axis=1, return_sign=True)
        whole, sign = logarithms
        bracket = whole - math.log(self.theta)
        sure = (sign > 0) & (bracket > math.log(_SURE))
        return np.where(sure, np.where(sure, bracket, 0.0) / t, math.inf)

    def bound(self, t: float) -> float:
        """The bound, less the floor, at one tilt."""
        return float(self.p @ self.above) / self.theta if t == 0.0 else float(self.bounds(np.array([t]))[0])


def _tivar(
    losses: npt.NDArray[np.float64], p: npt.NDArray[np.float64], theta: float, floor: float
) -> tuple[float, npt.NDArray[np.float64], float]:
    """The value, the weights, and the factor by which the gradient is longer than the weights."""
    present = p > 0
    if not present.any():
        return 0.0, np.zeros_like(p), 0.0
    if not np.all(np.isfinite(losses[present])) or losses[present].min() < floor:
        return math.nan, np.full_like(p, math.nan), math.nan
    p = p / p.sum()
    over = present & (losses > floor)
    at_floor = float(p[present & ~over].sum()) - (1.0 - theta)
    at_floor = 0.0 if abs(at_floor) < 1e-7 else at_floor
    if at_floor > 0.0 or not over.any():  # more than 1 - theta: the limit of large negative tilts
        weights = np.where(present & ~over, p, 0.0)
        return floor, weights / weights.sum(), 0.0
    part = _Losses(losses[over] - floor, p[over], at_floor, theta)
    t = _best_tilt(part, float(np.ptp(losses[present])))
    if math.isinf(t):
        extreme = part.above.max() if t > 0 else part.above.min()
        weights = np.where(over & (losses - floor == extreme), p, 0.0)
        return floor + float(extreme), weights / weights.sum(), 1.0
    powers = np.where(present, t * (losses - floor), -math.inf) + np.log(np.where(present, p, 1.0))
    whole, bound = float(np.logaddexp.reduce(powers)), part.bound(t)
    return floor + bound, np.exp(powers - whole), math.exp(whole - math.log(theta) - t * bound)


def _best_tilt(part: _Losses, width: float) -> float:
    """The tilt with the least bound; plus or minus infinity where that is a limit."""
    from scipy.optimize import minimize_scalar

    if width == 0.0:
        return math.inf
    nodes = np.concatenate([-_NODES[::-1], _NODES]) / width
    bounds = part.bounds(nodes)
    nodes, bounds = np.insert(nodes, len(_NODES), 0.0), np.insert(bounds, len(_NODES), part.bound(0.0))
    best = int(np.argmin(bounds))
    limits = {math.inf: float(part.above.max())}
    if part.at_floor == 0.0:
        limits[-math.inf] = float(part.above.min())
    low, high = nodes[max(best - 1, 0)], nodes[min(best + 1, len(nodes) - 1)]
    finer: Any = minimize_scalar(part.bound, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    t = float(finer.x) if finer.fun < bounds[best] else float(nodes[best])
    limit = min(limits, key=lambda end: limits[end])
    return limit if limits[limit] <= part.bound(t) else t
