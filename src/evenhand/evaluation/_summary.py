"""How evenly a model serves its clients: one number per client in, a handful of numbers out.

Everything here is NumPy in float64 and runs on the host.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenhand.evaluation._error import ERROR_NAMES, error_statistics

__all__ = ["angle", "best", "entropy", "evenness", "jain", "kl_to_uniform", "summarize", "worst"]

_PERCENTILES = (10, 25, 50, 75, 90)

Vector = npt.NDArray[np.float64]


def summarize(
    values: npt.ArrayLike, weights: npt.ArrayLike | None = None, *, higher_is_better: bool = True
) -> dict[str, float]:
    r"""Summarises one number per client, such as its test accuracy or its loss.

    With ``a`` the values of the ``m`` clients that count and ``c`` their weights:

    * ``clients``: ``m``;
    * ``mean``: ``sum(a) / m``, every client counts alike; ``weighted_mean``: ``sum(c a) / sum(c)``, every example
      counts alike when the weights are numbers of examples;
    * ``variance``: ``sum((a - mean)^2) / m`` (population), ``std`` its root, ``min``, ``max``;
    * ``worst10``, ``best10``: see :func:`worst` and :func:`best`;
    * ``p10``, ``p25``, ``p50``, ``p75``, ``p90``: linearly interpolated percentiles;
    * ``angle`` (degrees), ``kl`` and ``entropy`` (nats), ``jain``: see the functions of the same names
      (``kl`` is :func:`kl_to_uniform`).

    The error of a client is ``e = 1 - a`` where higher is better (accuracies, as shares of 1), else ``e = a``:

    * ``error_p10``, ``..._p20``, ``..._p50``, ``..._p60``, ``..._p80``, ``..._p90``, ``..._p95``: linearly
      interpolated percentiles of ``e``;
    * ``error_superquantile90``, ``error_superquantile95``: mean error of the worst 10 % and 5 % of the clients,
      ``max {sum(q e) : 0 <= q <= 1 / (theta m), sum(q) = 1}`` with ``theta = 0.1`` and ``0.05``: the client at the
      boundary counts in part, where ``worst10`` takes whole clients only;
    * ``error_best10``: mean error of the best 10 %, ``min {sum(q e) : ...}`` over the same ``q``;
    * ``weighted_error_...``: all of these with every example counted alike: percentiles as if each client occurred
      ``c`` times (for weights that are not whole, the limit of many copies), and ``q <= c / (theta sum(c))``.

    Papers report training errors over examples and test errors over clients: ``weighted_error_p90`` of the training
    split, ``error_p90`` of the test split.

    A client without examples has no value and is left out: its weight is 0 or, where no weights are given, its
    value is NaN.  The NaN of a client that has weight is a result (training diverged) and is not hidden: all
    statistics but ``clients`` are then NaN, as they are when no client is left.

    Args:
      values: ``(K,)``, one value per client.
      weights: ``(K,)``, usually each client's examples in the split that the values come from; None: equal weights.
      higher_is_better: False for losses and errors: the worst clients are then those with the highest values.

    Raises:
      ValueError: if the shapes differ or a weight is negative or not finite.

    Example:
      >>> report = summarize([0.5, 0.7, 0.9, 1.0], weights=[10, 10, 10, 70])
      >>> round(report["mean"], 6), round(report["weighted_mean"], 6), round(report["angle"], 3)
      (0.775, 0.91, 13.916)

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (angle, KL, worst and best
    10 %); Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023 (errors); Jain, Chiu and Hawe, DEC-TR-301, 1984 (Jain's index).
    """
    a, c = _counted(values, weights)
    report = {"clients": float(a.size)}
    if a.size == 0 or np.isnan(a).any():
        return report | dict.fromkeys(_NAMES, float("nan"))
    with np.errstate(invalid="ignore"):
        report |= _evenness(a, higher_is_better)
        report |= {
            "weighted_mean": float(np.sum(c * a) / np.sum(c)),
            "std": float(np.sqrt(report["variance"])),
            "min": float(a[0]),
            "max": float(a[-1]),
            "angle": angle(a),
            "kl": kl_to_uniform(a),
            "entropy": entropy(a),
            "jain": jain(a),
        }
        report |= {
            f"p{p}": float(at) for p, at in zip(_PERCENTILES, np.percentile(a, _PERCENTILES), strict=True)
        }
        return report | error_statistics(a, c, higher_is_better=higher_is_better)


def evenness(
    values: npt.ArrayLike, weights: npt.ArrayLike | None = None, *, higher_is_better: bool = True
) -> dict[str, float]:
    """Of :func:`summarize` what a history keeps, in a tenth of the time: mean, ``worst10``, ``best10`` and variance.

    Example:
      >>> {name: round(value, 4) for name, value in evenness([0.5, 0.7, 0.9, 1.0]).items()}
      {'mean': 0.775, 'worst10': 0.5, 'best10': 1.0, 'variance': 0.0369}
    """
    a, _ = _counted(values, weights)
    if a.size == 0 or np.isnan(a).any():
        return dict.fromkeys(("mean", "worst10", "best10", "variance"), float("nan"))
    with np.errstate(invalid="ignore"):
        return _evenness(a, higher_is_better)


def _evenness(ordered: Vector, higher_is_better: bool) -> dict[str, float]:
    return {
        "mean": float(np.mean(ordered)),
        "worst10": worst(ordered, higher_is_better=higher_is_better),
        "best10": best(ordered, higher_is_better=higher_is_better),
        "variance": _variance(ordered),
    }


_NAMES = (
    *("mean", "weighted_mean", "std", "variance", "min", "max", "worst10", "best10"),
    *("angle", "kl", "entropy", "jain"),
    *(f"p{p}" for p in _PERCENTILES),
    *ERROR_NAMES,
)


def worst(values: npt.ArrayLike, fraction: float = 0.1, *, higher_is_better: bool = True) -> float:
    """Mean of the ``max(1, floor(fraction m))`` worst of ``m`` values; NaN if there are none or one is NaN.

    Example:
      >>> worst([0.9, 0.2, 0.8]), worst([0.9, 0.2, 0.8], higher_is_better=False)
      (0.2, 0.9)
    """
    ordered = np.sort(_vector(values))
    if not ordered.size or np.isnan(ordered[-1]):
        return float("nan")
    # The nudge makes floor(0.3 * 10) the 3 that is meant, not the 2 that 2.9999999999999996 gives.
    count = max(1, int(np.floor(fraction * ordered.size + 1e-9)))
    return float(np.mean(ordered[:count] if higher_is_better else ordered[-count:]))


def best(values: npt.ArrayLike, fraction: float = 0.1, *, higher_is_better: bool = True) -> float:
    """Mean of the ``max(1, floor(fraction m))`` best of ``m`` values; NaN if there are none or one is NaN.

    Example:
      >>> best([0.9, 0.2, 0.8])
      0.9
    """
    return worst(values, fraction, higher_is_better=not higher_is_better)


def angle(values: npt.ArrayLike) -> float:
    r"""Angle in degrees between the values and the all-equal vector: 0 is perfectly even.

    ``cos(angle) = mean(a) / sqrt(mean(a^2))``, so that ``tan(angle) = std(a) / mean(a)``; the latter is
    computed, because the arc cosine loses half of the digits near 0.  A constant vector, zeros included, has
    angle 0; a vector with mean 0 that is not constant has 90.

    Example:
      >>> round(angle([0.0, 1.0, 1.0, 1.0]), 9)
      30.0

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, Definition 2.
    """
    a = _vector(values)
    if not a.size or not np.isfinite(a).all():
        return float("nan")
    if np.ptp(a) == 0:
        return 0.0
    a = a / np.max(np.abs(a))
    return float(np.degrees(np.arctan2(np.sqrt(_variance(a)), np.mean(a))))


def kl_to_uniform(values: npt.ArrayLike) -> float:
    r"""Divergence in nats of the normalised values from the uniform distribution: 0 is perfectly even.

    ``KL(a / sum(a) || 1 / m) = ln(m) - entropy(a)``, at most ``ln(m)``, with ``0 ln 0 = 0``.  All zeros
    count as uniform.  NaN if a value is negative or infinite.

    Example:
      >>> round(kl_to_uniform([0.0, 1.0, 1.0, 1.0]), 7)  # ln(4 / 3)
      0.2876821
    """
    shares = _shares(values)
    if not shares.size or np.isnan(shares).any():
        return float("nan")
    if np.ptp(shares) == 0:
        return 0.0
    positive = shares[shares > 0]
    return max(0.0, float(np.sum(positive * np.log(positive * shares.size))))


def entropy(values: npt.ArrayLike) -> float:
    r"""Entropy in nats of the normalised values: ``ln(m)`` is perfectly even.

    ``-sum(p ln p)`` with ``p = a / sum(a)`` and ``0 ln 0 = 0``; all zeros count as uniform.  NaN if a value
    is negative or infinite.

    Example:
      >>> round(entropy([0.5, 0.7, 0.9, 1.0]), 7)
      1.3543281
    """
    shares = _shares(values)
    return float(np.log(shares.size)) - kl_to_uniform(shares) if shares.size else float("nan")


def jain(values: npt.ArrayLike) -> float:
    r"""Jain's index ``sum(a)^2 / (m sum(a^2)) = cos(angle)^2``, from ``1 / m`` to 1, which is perfectly even.

    Example:
      >>> round(jain([0.0, 1.0, 1.0, 1.0]), 9)
      0.75
    """
    return float(np.cos(np.radians(angle(values))) ** 2)


def _vector(values: npt.ArrayLike) -> Vector:
    return np.asarray(values, np.float64).reshape(-1)


def _counted(values: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[Vector, Vector]:
    """The clients that count, sorted, so that no statistic depends on the order they came in."""
    a = _vector(values)
    c = np.ones_like(a) if weights is None else _vector(weights)
    if a.shape != c.shape:
        raise ValueError(f"There are {a.size} values but {c.size} weights; give one weight per client.")
    if not (np.isfinite(c).all() and (c >= 0).all()):
        raise ValueError("A weight is negative or not finite; weights are numbers of examples.")
    counted = ~np.isnan(a) if weights is None else c > 0
    order = np.lexsort((c[counted], a[counted]))
    return a[counted][order], c[counted][order]


def _variance(a: Vector) -> float:
    # Shifted by one of the values, so that a constant vector has exactly zero variance.
    return float(np.var(a - a[0]))


def _shares(values: npt.ArrayLike) -> Vector:
    """The values divided by their sum; NaN where that is not a distribution."""
    a = _vector(values)
    if not a.size:
        return a
    if not np.isfinite(a).all() or (a < 0).any():
        return np.full(a.size, np.nan)
    largest = np.max(a)
    if largest == 0:
        return np.full(a.size, 1 / a.size)
    a = a / largest
    return a / np.sum(a)
