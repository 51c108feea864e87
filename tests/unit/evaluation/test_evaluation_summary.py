"""The fairness numbers against vectors worked out by hand, SciPy and their own algebra."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evenhand.evaluation import angle, best, entropy, jain, kl_to_uniform, summarize, worst

KEYS = {
    *("clients", "mean", "weighted_mean", "std", "variance", "min", "max", "worst10", "best10"),
    *("p10", "p25", "p50", "p75", "p90", "angle", "kl", "entropy", "jain"),
}
PERCENTILES = (10, 20, 50, 60, 80, 90, 95)
ERRORS = (
    *(f"error_p{p}" for p in PERCENTILES),
    *("error_superquantile90", "error_superquantile95", "error_best10"),
)
KEYS |= {*ERRORS, *(f"weighted_{name}" for name in ERRORS)}
accuracies = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1, width=32))


def test_published_vectors() -> None:
    four = summarize([0.5, 0.7, 0.9, 1.0])
    assert set(four) == KEYS
    assert four["mean"] == pytest.approx(0.775)
    assert four["variance"] * 1e4 == pytest.approx(368.75)
    assert four["std"] == pytest.approx(np.sqrt(0.036875))
    assert four["angle"] == pytest.approx(13.916407, abs=5e-7)
    assert four["entropy"] == pytest.approx(1.3543281, abs=5e-8)
    assert four["kl"] == pytest.approx(0.0319663, abs=5e-8)
    zero = summarize([0.0, 1.0, 1.0, 1.0])
    assert (zero["mean"], zero["variance"] * 1e4) == (0.75, pytest.approx(1875))
    assert zero["angle"] == pytest.approx(30.0)
    assert zero["kl"] == pytest.approx(np.log(4 / 3))


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 3e-30, 7e30])
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_constant_vectors_are_exactly_even(value: float, clients: int) -> None:
    report = summarize(np.full(clients, value))
    assert [report[name] for name in ("angle", "kl", "variance", "std", "jain")] == [0, 0, 0, 0, 1]
    assert report["entropy"] == np.log(clients)
    assert report["worst10"] == pytest.approx(value) == report["best10"]


def test_a_nearly_constant_vector_is_not_called_even() -> None:
    # The arc cosine of a number this near 1 is 0 or 8.5e-7 degrees: off by many times the truth.
    values = [1.0, 1.0 + 1e-12]
    assert angle(values) == pytest.approx(np.degrees(0.5e-12), rel=1e-3)


@given(accuracies)
def test_matches_definitions(a: np.ndarray) -> None:
    report = summarize(a)
    assert report["mean"] == pytest.approx(a.mean(), abs=1e-12)
    assert report["variance"] == pytest.approx(np.mean((a - a.mean()) ** 2), abs=1e-12)
    assert report["std"] == pytest.approx(a.std(), abs=1e-9)
    assert report["p25"] == pytest.approx(np.percentile(a, 25), abs=1e-12)
    if a.any():
        cosine = np.clip(a.mean() / np.sqrt(np.mean(a**2)), -1, 1) if np.mean(a**2) > 1e-200 else None
        if cosine is not None:
            assert report["angle"] == pytest.approx(np.degrees(np.arccos(cosine)), abs=1e-5)
            assert report["jain"] == pytest.approx(a.sum() ** 2 / (a.size * np.sum(a**2)), abs=1e-9)
        assert report["entropy"] == pytest.approx(scipy.stats.entropy(a), abs=1e-9)
        assert report["kl"] == pytest.approx(scipy.stats.entropy(a, np.ones_like(a)), abs=1e-9)


@given(accuracies)
def test_tangent_identity(a: np.ndarray) -> None:
    report = summarize(a)
    if report["mean"] > 1e-6:
        tangent = np.tan(np.radians(report["angle"])) ** 2
        assert tangent == pytest.approx(report["variance"] / report["mean"] ** 2, rel=1e-6, abs=1e-12)


def test_tangent_identity_needs_the_client_mean() -> None:
    report = summarize([0.5, 0.7, 0.9, 1.0], [10, 10, 10, 70])
    tangent = np.tan(np.radians(report["angle"])) ** 2
    assert tangent != pytest.approx(report["variance"] / report["weighted_mean"] ** 2, rel=0.1)


@given(accuracies, st.randoms(use_true_random=False))
def test_order_does_not_matter_bit_for_bit(a: np.ndarray, random: Random) -> None:
    weights = np.arange(1, a.size + 1)
    order = list(range(a.size))
    random.shuffle(order)
    assert summarize(a, weights) == summarize(a[order], weights[order])


@given(accuracies, st.sampled_from([0.01, 3.0, 100.0]))
def test_shape_statistics_ignore_scale(a: np.ndarray, scale: float) -> None:
    report, scaled = summarize(a), summarize(scale * a)
    for name in ("angle", "kl", "entropy", "jain"):
        assert scaled[name] == pytest.approx(report[name], abs=1e-6), name
    for name in ("mean", "std", "min", "max", "worst10", "best10", "p10", "p90"):
        assert scaled[name] == pytest.approx(scale * report[name], rel=1e-9, abs=1e-12), name
    assert scaled["variance"] == pytest.approx(scale**2 * report["variance"], rel=1e-9, abs=1e-12)


@given(accuracies)
def test_order_of_statistics(a: np.ndarray) -> None:
    r = summarize(a)
    ladder = [r[n] for n in ("min", "p10", "p25", "p50", "p75", "p90", "max")]
    assert ladder == sorted(ladder)
    assert r["min"] - 1e-12 <= r["worst10"] <= r["mean"] + 1e-12 <= r["best10"] + 2e-12 <= r["max"] + 3e-12
    assert 0 <= r["kl"] <= np.log(a.size) + 1e-12
    assert 1 / a.size - 1e-12 <= r["jain"] <= 1


@pytest.mark.parametrize(
    ("clients", "tail"), [(1, 1), (9, 1), (19, 1), (20, 2), (23, 2), (31, 3), (100, 10), (1101, 110)]
)
def test_size_of_the_tails(clients: int, tail: int) -> None:
    values = np.arange(clients, dtype=float) ** 2
    assert worst(values) == np.mean(values[:tail])
    assert best(values) == np.mean(values[-tail:])


def test_tail_fraction_survives_rounding() -> None:
    assert worst(np.arange(10.0), 0.3) == 1.0
    assert worst(np.arange(100.0), 0.29) == np.mean(np.arange(29))  # 0.29 * 100 < 29 in binary


def test_worst_loss_is_the_highest() -> None:
    losses = np.arange(20.0)
    report = summarize(losses, higher_is_better=False)
    assert (report["worst10"], report["best10"]) == (18.5, 0.5)
    assert (report["min"], report["max"]) == (0, 19)
    assert summarize(losses)["worst10"] == 0.5


def test_weighted_mean_counts_rows() -> None:
    report = summarize([0.0, 1.0], [1, 3])
    assert (report["mean"], report["weighted_mean"]) == (0.5, 0.75)
    assert summarize([0.0, 1.0])["weighted_mean"] == 0.5


def test_clients_without_rows_are_left_out() -> None:
    gaps, full = [0.5, np.nan, 1.0], [0.5, 1.0]
    assert summarize(gaps) == summarize(full)
    assert summarize(gaps, [3, 0, 5]) == summarize(full, [3, 5])
    assert summarize(gaps)["clients"] == 2
    # A value, even one that is a number, does not count where there are no rows.
    assert summarize([0.5, 0.0, 1.0], [3, 0, 5]) == summarize(full, [3, 5])


def test_divergence_is_not_hidden() -> None:
    report = summarize([0.5, np.nan, 1.0], [3, 4, 5])
    assert report.pop("clients") == 3
    assert all(np.isnan(value) for value in report.values())
    infinite = summarize([1.0, np.inf, 2.0], higher_is_better=False)
    assert infinite["mean"] == infinite["worst10"] == infinite["max"] == np.inf
    assert infinite["best10"] == 1.0
    assert np.isnan(infinite["std"])


def test_statistics_of_no_clients_are_not_numbers() -> None:
    for report in (summarize([]), summarize([np.nan]), summarize([1.0], [0])):
        assert report.pop("clients") == 0
        assert all(np.isnan(value) for value in report.values())


def test_single_statistics_at_their_edges() -> None:
    assert angle([-1.0, 1.0]) == 90
    assert np.isnan(kl_to_uniform([-1.0, 2.0]))
    assert np.isnan(entropy([np.inf, 1.0]))
    assert kl_to_uniform([1e-320, 1e-320, 0]) == pytest.approx(np.log(1.5))
    assert kl_to_uniform([0.0, 0.0, 1.0]) == pytest.approx(np.log(3))
    assert entropy([0.0, 0.0, 1.0]) == pytest.approx(0, abs=1e-15)
    assert jain([0.0, 0.0, 1.0]) == pytest.approx(1 / 3)
    for piece in (angle, kl_to_uniform, entropy, jain, worst, best):
        assert np.isnan(piece([]))
        assert np.isnan(piece([1.0, np.nan]))


def test_bad_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values but 3 weights"):
        summarize([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="negative"):
        summarize([1, 2], [1, -2])


def linear_program(errors: np.ndarray, weights: np.ndarray, share: float, sign: float) -> float:
    """The definition itself: the heaviest (or, with sign 1, the lightest) mean under capped weights."""
    p = weights / weights.sum()
    bounds = [(0, cap) for cap in p / share]
    found = scipy.optimize.linprog(sign * errors, A_eq=np.ones((1, len(p))), b_eq=[1], bounds=bounds)
    return float(sign * found.fun)


@given(
    hnp.arrays(np.float64, st.integers(1, 25), elements=st.integers(0, 16).map(lambda n: n / 16)),
    st.integers(0, 99),
    st.booleans(),
)
def test_errors_match_their_definitions(a: np.ndarray, seed: int, higher: bool) -> None:
    weights = np.random.default_rng(seed).integers(1, 9, a.size)
    report, errors = summarize(a, weights, higher_is_better=higher), 1 - a if higher else a
    for prefix, c in (("", np.ones(a.size, int)), ("weighted_", weights)):
        for p in PERCENTILES:
            expected = np.percentile(np.repeat(errors, c), p)
            assert report[f"{prefix}error_p{p}"] == pytest.approx(expected, abs=1e-12)
        for name, share, sign in (
            ("superquantile90", 0.1, -1),
            ("superquantile95", 0.05, -1),
            ("best10", 0.1, 1),
        ):
            expected = linear_program(errors, c, share, sign)
            assert report[f"{prefix}error_{name}"] == pytest.approx(expected, abs=1e-9)


def test_the_client_at_the_boundary_counts_in_part() -> None:
    report = summarize(1 - np.arange(1, 16) / 15)  # a tenth of 15 clients is one and a half
    assert report["error_superquantile90"] == pytest.approx((15 + 0.5 * 14) / 1.5 / 15)
    assert report["error_superquantile95"] == pytest.approx(1.0)
    assert report["error_best10"] == pytest.approx((1 + 0.5 * 2) / 1.5 / 15)
    assert report["worst10"] == pytest.approx(0.0)  # whole clients only: the one with error 1


def test_whole_tails_are_those_of_worst_and_best() -> None:
    a = np.linspace(0.2, 1.0, 40)
    report = summarize(a)
    assert report["error_superquantile90"] == pytest.approx(1 - report["worst10"])
    assert report["error_best10"] == pytest.approx(1 - report["best10"])
    assert report["error_superquantile95"] == pytest.approx(1 - worst(a, 0.05))
    assert report["error_p90"] == pytest.approx(1 - report["p10"])


def test_training_errors_count_rows_and_test_errors_clients() -> None:
    report = summarize([1.0] * 9 + [0.0], [1] * 9 + [91])
    assert (report["error_p80"], report["weighted_error_p80"]) == (0, 1)
    assert report["error_superquantile90"] == report["weighted_error_superquantile90"] == 1
    assert (report["error_best10"], report["weighted_error_best10"]) == (0, pytest.approx(0.1))
    equal = summarize([0.25, 0.5, 1.0])
    assert all(equal[name] == equal[f"weighted_{name}"] for name in ERRORS)


def test_a_loss_is_its_own_error() -> None:
    losses = np.arange(20.0)
    report = summarize(losses, higher_is_better=False)
    assert report["error_p90"] == report["p90"]
    assert report["error_superquantile90"] == report["worst10"] == 18.5
    assert summarize(losses)["error_p90"] == pytest.approx(1 - report["p10"])


def test_weights_that_are_shares_are_limits_of_many_copies() -> None:
    values, rows = np.array([0.1, 0.4, 0.7]), np.array([2, 3, 5])
    shares, many = summarize(values, rows / 10), summarize(values, rows * 10_001)
    for name in ERRORS:
        assert shares[f"weighted_{name}"] == pytest.approx(many[f"weighted_{name}"]), name


def test_percentiles_among_infinite_losses_are_infinite() -> None:
    """As those of the errors, which losses are; a number between two infinities is one."""
    for losses, middle in (
        ([1.0, np.inf], np.inf),
        ([1.0, 2.0, *[np.inf] * 3], np.inf),
        ([1.0, 2.0, np.inf], 2.0),
    ):
        report = summarize(losses, higher_is_better=False)
        assert report["p50"] == report["error_p50"] == middle and report["p90"] == np.inf


def test_an_infinite_loss_does_not_reach_the_others() -> None:
    report = summarize([*np.arange(29.0), np.inf], higher_is_better=False)
    assert report["error_superquantile90"] == np.inf
    assert (report["error_p50"], report["error_best10"]) == (14.5, 1.0)
    assert np.isfinite(report["error_p95"])
    # A tenth of twenty weights of 0.01 is, by rounding, more than two of them.
    shares = summarize([1.0, 1.0, *np.full(18, np.inf)], np.full(20, 0.01), higher_is_better=False)
    assert shares["weighted_error_best10"] == 1.0


def test_published_table_of_23_devices() -> None:
    a = np.r_[0.3, 0.5, np.full(21, 0.9)]  # worst 10 %: the lowest floor(2.3) = 2; std with ddof 0
    report = summarize(a, np.r_[100, 100, np.full(21, 10)])
    assert report["worst10"] == pytest.approx(0.4)
    assert report["std"] == pytest.approx(a.std(ddof=0)) and report["std"] != pytest.approx(a.std(ddof=1))
    assert report["mean"] == pytest.approx(a.mean())
    assert report["weighted_mean"] == pytest.approx((30 + 50 + 189) / 410)
    assert report["error_superquantile90"] == pytest.approx((0.7 + 0.5 + 0.3 * 0.1) / 2.3)
