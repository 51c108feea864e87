"""The fairness numbers against vectors worked out by hand, SciPy and their own algebra."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evenhand.evaluation import angle, best, entropy, jain, kl_to_uniform, summarize, worst

KEYS = {
    *("clients", "mean", "weighted_mean", "std", "variance", "min", "max", "worst10", "best10"),
    *("p10", "p25", "p50", "p75", "p90", "angle", "kl", "entropy", "jain"),
}
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


def test_nobody_left() -> None:
    for report in (summarize([]), summarize([np.nan]), summarize([1.0], [0])):
        assert report.pop("clients") == 0
        assert all(np.isnan(value) for value in report.values())


def test_pieces_at_their_edges() -> None:
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
