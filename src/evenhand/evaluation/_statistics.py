"""How evenly a model serves its clients, and how sure one can be that two methods differ.

One number per client in, a handful of numbers out: how high and how even they are (:func:`summarize` and its parts),
and the same for errors, with every client or every example counting alike.  Then the differences of two methods over
equal seeds (:func:`paired_difference`).  Everything here is NumPy in float64 and runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, real_number, truth_value, whole_number

Vector = npt.NDArray[np.float64]


# --- over clients -------------------------------------------------------------------------------------------------

_PERCENTILES = (10, 25, 50, 75, 90)

_ERROR_PERCENTILES = (10, 20, 50, 60, 80, 90, 95)

_TAILS = {"error_superquantile90": 0.10, "error_superquantile95": 0.05}

_OVER_CLIENTS = (*(f"error_p{p}" for p in _ERROR_PERCENTILES), *_TAILS, "error_best10")

ERROR_NAMES = (*_OVER_CLIENTS, *(f"weighted_{name}" for name in _OVER_CLIENTS))

_NAMES = (
    *("mean", "weighted_mean", "std", "variance", "min", "max", "worst10", "best10"),
    *("angle", "kl", "entropy", "jain"),
    *(f"p{p}" for p in _PERCENTILES),
    *ERROR_NAMES,
)


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
    higher_is_better = truth_value("higher_is_better", higher_is_better)
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
        percentiles = np.percentile(a, _PERCENTILES).tolist()
        if np.isnan(percentiles).any():  # NumPy's are, between two infinities
            percentiles = _weighted_percentiles(a, np.ones_like(a), _PERCENTILES)
        report |= {f"p{p}": at for p, at in zip(_PERCENTILES, percentiles, strict=True)}
        return report | _error_statistics(a, c, higher_is_better=higher_is_better)


def evenness(
    values: npt.ArrayLike, weights: npt.ArrayLike | None = None, *, higher_is_better: bool = True
) -> dict[str, float]:
    """The part of :func:`summarize` that a history keeps: mean, ``worst10``, ``best10`` and variance, ten times faster.

    Example:
      >>> {name: round(value, 4) for name, value in evenness([0.5, 0.7, 0.9, 1.0]).items()}
      {'mean': 0.775, 'worst10': 0.5, 'best10': 1.0, 'variance': 0.0369}
    """
    higher_is_better = truth_value("higher_is_better", higher_is_better)
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


def worst(values: npt.ArrayLike, fraction: float = 0.1, *, higher_is_better: bool = True) -> float:
    """Mean of the ``max(1, floor(fraction m))`` worst of ``m`` values; NaN if there are none or one is NaN.

    Example:
      >>> worst([0.9, 0.2, 0.8]), worst([0.9, 0.2, 0.8], higher_is_better=False)
      (0.2, 0.9)
    """
    higher_is_better = truth_value("higher_is_better", higher_is_better)
    ordered = np.sort(_vector(values))
    if not 0.0 <= real_number(fraction) <= 1.0:
        raise EvenhandError(f"fraction={fraction!r:.40}: give a share of the clients, from 0 to 1.")
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
    higher_is_better = truth_value("higher_is_better", higher_is_better)
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


def _vector(values: npt.ArrayLike, name: str = "values") -> Vector:
    try:
        return np.asarray(values, np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise EvenhandError(f"{name}={values!r:.60}: give one number for each client.") from None


def _counted(values: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[Vector, Vector]:
    """The clients that count, sorted, so that no statistic depends on the order they came in."""
    a = _vector(values)
    c = np.ones_like(a) if weights is None else _vector(weights, "weights")
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


def rank_correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    r"""Spearman's rank correlation of two numbers per client, in [-1, 1]; ties share their mean rank.

    .. math:: \rho = \operatorname{corr}(\operatorname{rank} x, \operatorname{rank} y)

    Args:
      x: ``(n,)``, such as how often each client was available.
      y: ``(n,)``, such as its accuracy; pairs in which a number is not finite do not count.

    Returns:
      NaN for fewer than two pairs, or where one of the two is the same for all.

    Example:
      >>> rank_correlation([0.1, 0.5, 0.9], [10.0, 20.0, 400.0])
      1.0
    """
    pairs = np.array([x, y], np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < 2 or (pairs == pairs[:, :1]).all(axis=1).any():
        return math.nan
    ranks = [_ranks(values) for values in pairs]
    correlations = np.asarray(np.corrcoef(ranks), np.float64)
    return float(np.clip(correlations[0, 1], -1.0, 1.0))


def _ranks(values: Vector) -> Vector:
    """The rank of each value, from 0; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: Vector = np.asarray(np.cumsum(counts) - (counts + 1) / 2, np.float64)
    return means[place]


# --- the errors of the clients ------------------------------------------------------------------------------------


def _error_statistics(a: Vector, c: Vector, *, higher_is_better: bool) -> dict[str, float]:
    """The part of :func:`~evenhand.evaluation.summarize` that is about errors; ``a`` is ascending, ``c`` positive."""
    errors, weights = (1.0 - a[::-1], c[::-1]) if higher_is_better else (a, c)
    plain = dict(zip(_OVER_CLIENTS, _error_values(errors, np.ones_like(errors)), strict=True))
    weighted = plain.values() if np.all(c == 1) else _error_values(errors, weights)
    return plain | {f"weighted_{name}": value for name, value in zip(_OVER_CLIENTS, weighted, strict=True)}


def _error_values(errors: Vector, weights: Vector) -> list[float]:
    worst = (_tail(errors[::-1], weights[::-1], share) for share in _TAILS.values())
    return [*_weighted_percentiles(errors, weights), *worst, _tail(errors, weights, 0.1)]


def _weighted_percentiles(
    errors: Vector, weights: Vector, percentiles: Sequence[int] = _ERROR_PERCENTILES
) -> list[float]:
    """Percentiles of ascending errors, each counted as often as its weight says."""
    ends, shares, last = np.cumsum(weights), np.array(percentiles) / 100, len(errors) - 1
    if np.all(weights == np.floor(weights)):
        position = shares * (ends[-1] - 1)
        below = np.floor(position)
        part = position - below
        at, after = np.searchsorted(ends, below, "right"), np.searchsorted(ends, below + 1, "right")
    else:  # in the limit of many copies, neighbours differ only where a percentile falls between them
        position, part = shares * ends[-1], 1.0 - shares
        at = np.searchsorted(ends, position * (1 - 1e-12))
        after = np.searchsorted(ends, position * (1 + 1e-12), "right")
    low, high = errors[np.minimum(at, last)], errors[np.minimum(after, last)]
    apart = (part > 0) & (high > low)  # the difference of two infinities is undefined
    step = np.subtract(high, low, where=apart, out=np.zeros_like(low)) * part
    return [float(e) for e in np.minimum(low + step, high)]


def _tail(errors: Vector, weights: Vector, share: float) -> float:
    """Mean of the first ``share`` of all weight, the error at the boundary counted in part."""
    ends = np.cumsum(weights)
    room = share * ends[-1]
    taken = np.clip(room - (ends - weights), 0.0, weights)
    kept = taken > 1e-12 * room  # less is what rounding leaves at a boundary between two errors
    return float(np.sum(taken[kept] * errors[kept]) / np.sum(taken[kept]))


# --- two methods over equal seeds ---------------------------------------------------------------------------------

_LEVEL = 0.05
"""The largest p value of a difference that is called significant."""

_MOST_EXACT = 16
"""Pairs up to which all signs are tried."""

_ROUNDED = 1e-12
"""What rounding may change of differences, relative to the numbers that they are of."""


class PairedDifference(NamedTuple):
    """The difference of two methods at equal seeds.

    Attributes:
      pairs: how many seeds both methods have.
      mean: of the differences.
      low: the lower end of the interval of the mean; minus infinity for one pair.
      high: its upper end.
      p: two-sided, of the test by signs (see :func:`paired_difference`).
      gains: at how many seeds the difference is above 0.
      losses: at how many it is below 0.
    """

    pairs: int
    mean: float
    low: float
    high: float
    p: float
    gains: int
    losses: int

    def __str__(self) -> str:
        """The mean and its interval: ``+0.0175 [+0.0023, +0.0327]``."""
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes 0; not if it has no width, since a few equal differences show no noise."""
        return self.low < self.high and (self.low > 0 or self.high < 0)

    def may_be_marked(self, comparisons: int = 1) -> bool:
        """Whether a table may mark the difference as real: it is sure, and the test by signs could agree.

        With fewer pairs than :func:`least_pairs` that test cannot come to a p value of .05, whatever the interval.

        Args:
          comparisons: how many differences are tested together.
        """
        return self.is_sure and self.pairs >= least_pairs(comparisons)


def paired_difference(
    method: npt.ArrayLike, baseline: npt.ArrayLike, *, level: float = 0.95
) -> PairedDifference:
    r"""How much a method exceeds a baseline, from runs at equal seeds: mean difference, interval and p value.

    Runs with the same seed share the initial model, the cohorts and the mini-batches, so that their differences
    :math:`d_i = a_i - b_i` vary less than their values.

    **Interval**: Student's, :math:`\bar d \pm t_{n-1} s / \sqrt n`.  For differences that are about normal it contains
    the true mean as often as its level says, with as few as two seeds; intervals from bootstrap percentiles contain
    it in 83 of 100 studies of five seeds, instead of 95.

    **Test**: if the methods do not differ, each difference is as likely to be ``-d`` as ``d``.  ``p`` is the share of
    all :math:`2^n` choices of signs whose mean is at least as far from 0 as the one that was seen; of
    65,536 random ones where there are more.  With five seeds it is never below 1/16.

    Args:
      method: one number per seed, ``(n,)``.
      baseline: those of the baseline, at the same seeds in the same order.
      level: how often the interval shall contain the true mean.

    Raises:
      EvenhandError: the numbers are not as many, none, or not finite; the level is not between 0 and 1.

    Example:
      >>> from evenhand.evaluation import paired_difference
      >>> difference = paired_difference([0.81, 0.84, 0.80, 0.83], [0.80, 0.82, 0.79, 0.80])
      >>> round(difference.mean, 4), round(difference.low, 4), difference.p, difference.gains
      (0.0175, 0.0023, 0.125, 4)
      >>> print(difference)
      +0.0175 [+0.0023, +0.0327]
    """
    a, b = np.asarray(method, np.float64), np.asarray(baseline, np.float64)
    if a.ndim != 1 or a.shape != b.shape or not a.size:
        raise EvenhandError(
            f"paired_difference() got numbers of shapes {a.shape} and {b.shape}: give one per seed for each of both, "
            f"at the same seeds."
        )
    if not 0 < real_number(level) < 1:
        raise EvenhandError(f"paired_difference(level={level}): give a number between 0 and 1, such as 0.95.")
    d = a - b
    if not np.isfinite(d).all():
        raise EvenhandError(
            "paired_difference() got a number that is not finite: leave out the seeds at which a method diverged."
        )
    if np.ptp(d) <= _ROUNDED * max(np.max(np.abs(a)), np.max(np.abs(b))):
        d = np.full_like(d, d[0])  # as 0.58 - 0.57 and 0.02 - 0.01, which show no noise
    mean, half = float(np.mean(d)), half_width(d, level)
    gains, losses = int(np.sum(d > 0)), int(np.sum(d < 0))
    return PairedDifference(
        pairs=len(d), mean=mean, low=mean - half, high=mean + half, p=_by_signs(d), gains=gains, losses=losses
    )


def half_width(values: Vector, level: float = 0.95) -> float:
    """Half of Student's interval of the values' mean; infinite for a single value, which shows no noise.

    NaN where a value is not finite.
    """
    if len(values) < 2:
        return math.inf
    if not np.isfinite(values).all():
        return math.nan
    from scipy.special import stdtrit  # a tenth of a second that `import evenhand` need not take

    quantile = float(stdtrit(len(values) - 1, 0.5 + level / 2))
    # Their mean is rounded, so that the deviation of equal values may not be exactly 0.
    deviation = float(np.std(values, ddof=1)) if np.ptp(values) > 0 else 0.0
    return quantile * deviation / math.sqrt(len(values))


def least_pairs(comparisons: int = 1) -> int:
    r"""The least number of seeds with which the test by signs can come to a p value of .05.

    With :math:`n` pairs, ``p`` of :func:`paired_difference` is at least :math:`2^{1-n}`, and of :math:`c` comparisons
    the smallest one is raised to :math:`c\, 2^{1-n}` (:func:`holm`): so :math:`n \ge 1 + \log_2(c / 0.05)`.

    Args:
      comparisons: how many differences are tested together, at least 1.

    Example:
      >>> least_pairs(), least_pairs(2), least_pairs(4)
      (6, 7, 8)
    """
    return math.ceil(1 + math.log2(whole_number("comparisons", comparisons, 1) / _LEVEL))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """P values of several comparisons, raised (Holm, 1979) so that the chance of any false find stays as stated.

    Args:
      p: name -> p value of one comparison.

    Example:
      >>> holm({"fedprox": 0.01, "scaffold": 0.04, "qfedavg": 0.03})
      {'fedprox': 0.03, 'scaffold': 0.06, 'qfedavg': 0.06}
    """
    raised, largest = dict[str, float](), 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        # No smaller than that of a smaller p value, or raising them would change their order.
        largest = max(largest, min(1.0, (len(p) - rank) * p[name]))
        raised[name] = largest
    return {name: raised[name] for name in p}


def _by_signs(d: npt.NDArray[np.float64]) -> float:
    """The share of choices of signs whose mean is as far from 0 as that of ``d``."""
    n = len(d)
    if n <= _MOST_EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (2**_MOST_EXACT, n))
        signs[0] = 1.0
    # Rounding must not tell the mean from its mirror image.
    reached = np.abs(signs @ d) >= abs(np.sum(d)) - _ROUNDED * np.sum(np.abs(d))
    return float(np.mean(reached))
