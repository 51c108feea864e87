"""Paired differences: their interval, their test by signs, and several of them at once."""

from __future__ import annotations

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

import evenhand as eh
from evenhand.evaluation import holm, paired_difference
from evenhand.evaluation._statistics import half_width

_STUDIES = 2000


def _studies(seeds: int, gain: float, skew: bool) -> tuple[np.ndarray, np.ndarray]:
    """Results of two methods, ``(studies, seeds)``: what the seed does to both, and the noise of each."""
    rng = np.random.default_rng(seeds)
    of_seed = 0.70 + 0.05 * rng.normal(size=(_STUDIES, seeds))
    noise = rng.gamma(6.0, 0.004, (2, _STUDIES, seeds)) if skew else rng.normal(0, 0.01, (2, _STUDIES, seeds))
    return of_seed + gain + noise[0], of_seed + noise[1]


@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize("seeds", [5, 10])
def test_the_interval_contains_the_true_difference_as_often_as_it_says(seeds: int, skew: bool) -> None:
    """And intervals of other widths do not; unpaired ones are wider by far."""
    gain = 0.02
    found = [paired_difference(a, b) for a, b in zip(*_studies(seeds, gain, skew), strict=True)]
    low, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
    covered = np.mean((low <= gain) & (gain <= high))
    assert 0.93 <= covered <= 0.97
    half, middle = (high - low) / 2, (low + high) / 2
    for wrong in (0.8, 1.25):
        assert not 0.93 <= np.mean(np.abs(middle - gain) <= wrong * half) <= 0.97
    a, b = _studies(seeds, gain, skew)
    apart = scipy.stats.ttest_ind(a, b, axis=1).confidence_interval(0.95)
    assert np.median(apart.high - apart.low) > 2.5 * np.median(high - low)


def test_percentiles_of_a_bootstrap_are_too_narrow() -> None:
    """Why the interval is Student's: of five differences, resampled, they contain the truth in 4 of 5 studies."""
    a, b = _studies(5, 0.0, skew=False)
    drawn = np.random.default_rng(0).integers(0, 5, (400, 5))
    means = np.mean((a - b)[:, drawn], axis=-1)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) < 0.88


def test_the_interval_is_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7))
    for level in (0.8, 0.95):
        expected = scipy.stats.ttest_rel(a, b).confidence_interval(level)
        found = paired_difference(a, b, level=level)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert found.mean == pytest.approx(np.mean(a - b))
        assert found.is_sure == (expected.low > 0 or expected.high < 0)


@hypothesis.given(st.lists(st.floats(-3, 3), min_size=1, max_size=9))
def test_the_test_by_signs_tries_all_of_them(differences: list[float]) -> None:
    """By hand: each choice of signs whose mean is as far from 0."""
    found = paired_difference(differences, np.zeros(len(differences)))
    total = abs(math.fsum(differences))
    sums = [
        abs(math.fsum(sign * each for sign, each in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    near = [each for each in sums if abs(each - total) <= 1e-9]  # ties may fall on either side by rounding
    reached = sum(each > total for each in sums if each not in near) + np.array([1, len(near)])
    assert reached[0] <= found.p * len(sums) + 1e-9 and found.p * len(sums) <= reached[1] + 1e-9
    assert found.gains == sum(each > 0 for each in differences)
    assert found.losses == sum(each < 0 for each in differences)


def test_the_least_p_of_few_seeds() -> None:
    assert paired_difference([1.0, 2.0, 3.0, 2.0, 1.0], np.zeros(5)).p == 1 / 16
    assert paired_difference([1.0, 2.0, 3.0, 2.0, -1.0], np.zeros(5)).p > 1 / 16


def test_many_pairs_are_tested_by_random_signs() -> None:
    rng = np.random.default_rng(1)
    differences = np.asarray(scipy.stats.zscore(rng.normal(size=24))) + 0.3
    exact = scipy.stats.permutation_test(
        (differences, np.zeros(24)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=200_000,
        rng=2,
    )
    found = paired_difference(differences, np.zeros(24))
    assert 0.02 < exact.pvalue < 0.3
    assert found.p == pytest.approx(exact.pvalue, abs=0.006)
    # The signs that were found are among those that are drawn, so that no p is 0.
    assert paired_difference(np.arange(1.0, 41.0), np.zeros(40)).p == 2.0**-16


def test_one_pair_says_nothing_and_equal_methods_do_not_differ() -> None:
    alone = paired_difference([0.9], [0.5])
    assert (alone.low, alone.high, alone.p, alone.is_sure) == (-math.inf, math.inf, 1.0, False)
    same = paired_difference([0.5, 0.6, 0.7], [0.5, 0.6, 0.7])
    assert (same.mean, same.low, same.high, same.p, same.is_sure) == (0.0, 0.0, 0.0, 1.0, False)
    assert (same.gains, same.losses) == (0, 0)


@pytest.mark.parametrize(
    ("method", "baseline"),
    [([0.1] * 6, [0.0] * 6), ([0.02, 0.81, 0.84, 0.3, 0.9, 0.13], [0.01, 0.8, 0.83, 0.29, 0.89, 0.12])],
)
def test_equal_differences_show_no_noise_however_they_are_rounded(
    method: list[float], baseline: list[float]
) -> None:
    found = paired_difference(method, baseline)
    assert found.low == found.high == pytest.approx(method[0] - baseline[0])
    assert not found.is_sure and not found.may_be_marked()


def test_rounding_breaks_no_tie_of_the_test_by_signs() -> None:
    """In hundredths: -7, -9, 9, -8, 6, 9, of which no choice of signs has a sum nearer to 0."""
    method, baseline = [0.14, 0.42, 0.94, 0.29, 0.34, 0.03], [0.21, 0.51, 0.85, 0.37, 0.28, -0.06]
    assert paired_difference(method, baseline).p == 1.0


def test_values_that_diverged_have_no_interval() -> None:
    """Without a warning of NumPy, which would stand above the sentence that says so."""
    assert math.isnan(half_width(np.array([1.0, math.inf, 2.0]))) and math.isinf(half_width(np.ones(1)))


def test_holms_steps() -> None:
    """By hand: 3 x 0.01, then 2 x 0.02, then the largest so far."""
    assert holm({"a": 0.04, "b": 0.01, "c": 0.02}) == pytest.approx({"a": 0.04, "b": 0.03, "c": 0.04})
    assert holm({"a": 0.6, "b": 0.5}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_holm_keeps_the_chance_of_any_false_find() -> None:
    """Four comparisons of methods that do not differ: any find in about 5 of 100 studies, not 18."""
    p = np.random.default_rng(3).uniform(size=(_STUDIES, 4))
    raised = [min(holm(dict(zip("abcd", each, strict=True))).values()) for each in p]
    assert np.mean(np.array(raised) <= 0.05) == pytest.approx(0.05, abs=0.015)
    assert np.mean(p.min(axis=1) <= 0.05) > 0.15


@pytest.mark.parametrize(
    ("a", "b", "level", "words"),
    [
        ([1.0, 2.0], [1.0], 0.95, "one per seed"),
        ([], [], 0.95, "one per seed"),
        ([[1.0]], [[1.0]], 0.95, "one per seed"),
        ([1.0, math.nan], [1.0, 2.0], 0.95, "diverged"),
        ([1.0], [2.0], 1.0, "between 0 and 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: list[float], b: list[float], level: float, words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        paired_difference(a, b, level=level)
