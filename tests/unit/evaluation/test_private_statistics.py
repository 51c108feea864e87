"""Statistics from a histogram: the exact ones are within their bounds, and no smaller bound would hold."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
import scipy.optimize
from hypothesis import example, given
from hypothesis import strategies as st

import evenhand as eh
from evenhand.errors import EvenhandError
from evenhand.evaluation import private_metrics
from evenhand.evaluation.private_metrics import Estimate, cells, edges, statistics
from evenhand.report import PrivateSummary, private_summaries
from evenhand.secure import secure_sum

MONOTONE = ("mean", "min", "max", "worst10", "best10", "p10", "p25", "p50", "p75", "p90")
NAMES = (*MONOTONE, "std", "variance")
# Shares of small numbers of examples, as accuracies are, many of them at edges; and any others.
accuracies = st.one_of(
    st.floats(0, 1), st.tuples(st.integers(0, 8), st.integers(8, 20)).map(lambda x: x[0] / x[1])
)
clients = st.lists(accuracies, min_size=2, max_size=40)
histograms = st.lists(st.integers(0, 6), min_size=1, max_size=12).filter(lambda counts: sum(counts) >= 2)


def total(values: npt.ArrayLike, ends: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The sum of what clients send."""
    return cells(values, np.ones(np.shape(values), bool), ends).sum(axis=0, dtype=np.int64)


def at_edges(counts: list[int], ends: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The lowest and the highest values that clients with this histogram can have."""
    low, high = (np.repeat(side, counts) for side in (ends[:-1], ends[1:]))
    return low, np.where(high < ends[-1], np.nextafter(high, 0), high)


# --- the bounds ---------------------------------------------------------------------------------------------------


@given(clients, st.integers(1, 120), st.booleans(), st.sampled_from([1.0, 1e-3, 1e4]))
@example(
    [0.0, *[1.0, 0.0] * 7], 28, False, 0.00797306
)  # where rounding alone exceeds the variance's own bound
def test_the_exact_statistics_are_within_their_bounds(
    values: list[float], bins: int, is_higher_better: bool, largest: float
) -> None:
    ends, values = edges(bins, largest=largest), [largest * value for value in values]
    report = statistics(total(values, ends), ends, higher_is_better=is_higher_better, least=2)
    exact = eh.evaluation.summarize(values, higher_is_better=is_higher_better)
    assert set(report) == {"clients", "clipped", *NAMES}
    assert report["clients"] == Estimate(len(values), 0) and report["clipped"] == Estimate(0, 0)
    for name in NAMES:
        assert report[name].low <= exact[name] <= report[name].high, name
        assert name == "variance" or report[name].bound <= 0.5 * largest / bins * (1 + 1e-9), name


@given(histograms, st.booleans())
def test_no_smaller_bound_holds(counts: list[int], is_higher_better: bool) -> None:
    """Some clients with this very histogram have the least of a statistic, others its largest."""
    ends = edges(len(counts))
    report = statistics([*counts, 0, 0], ends, higher_is_better=is_higher_better, least=2)
    for values, side in zip(at_edges(counts, ends), ("low", "high"), strict=True):
        assert total(values, ends).tolist() == [*counts, 0, 0]
        exact = eh.evaluation.summarize(values, higher_is_better=is_higher_better)
        for name in MONOTONE:
            bound = {"low": report[name].low, "high": report[name].high}[side]
            assert bound == pytest.approx(exact[name], abs=1e-12), name


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(lambda counts: 2 <= sum(counts) <= 7))
def test_the_spread_is_between_the_least_and_the_largest_that_there_can_be(counts: list[int]) -> None:
    ends = edges(len(counts))
    report = statistics([*counts, 0, 0], ends, least=2)
    low, high = at_edges(counts, ends)
    largest = max(np.std(values) for values in itertools.product(*zip(low, high, strict=True)))
    assert report["std"].high == pytest.approx(largest, abs=1e-9)
    assert report["variance"].high == pytest.approx(largest**2, abs=1e-9)

    def variance(values: npt.NDArray[Any]) -> tuple[float, npt.NDArray[Any]]:
        return float(np.var(values)), 2 * (values - values.mean()) / len(values)

    box = scipy.optimize.Bounds(low, high)  # pyright: ignore[reportArgumentType]
    least = scipy.optimize.minimize(variance, (low + high) / 2, jac=True, bounds=box, options={"ftol": 1e-16})
    assert report["variance"].low == pytest.approx(least.fun, abs=1e-7)


@pytest.mark.parametrize("bins", [3, 49, 100, 113])
def test_rounding_breaks_no_bound_of_clients_at_an_edge(bins: int) -> None:
    """They are as far from the estimate as can be, where the last digit decides."""
    ends = edges(bins)
    for value in ends:
        report, exact = statistics(total(np.full(7, value), ends), ends), eh.evaluation.summarize([value] * 7)
        assert all(report[name].low <= exact[name] <= report[name].high for name in NAMES)


def test_a_histogram_knows_less_than_half_of_its_bound() -> None:
    """The negative control: half of the bound leaves the exact statistic out."""
    ends = edges(10)
    values = np.full(20, 0.7)
    report, exact = statistics(total(values, ends), ends), eh.evaluation.summarize(values)
    assert all(abs(exact[name] - report[name].value) > report[name].bound / 2 for name in MONOTONE)


@pytest.mark.parametrize("is_higher_better", [True, False])
def test_a_loss_above_the_limit_is_clipped_and_counted(is_higher_better: bool) -> None:
    values = [0.5, 1.2, 2.0, 3.5, math.inf, -1.0]
    report = private_metrics.summarize(values, bins=8, largest=2.0, higher_is_better=is_higher_better)
    assert report["clipped"] == Estimate(3, 0) and report["clients"] == Estimate(6, 0)
    exact = eh.evaluation.summarize(np.clip(values, 0, 2), higher_is_better=is_higher_better)
    assert all(report[name].low <= exact[name] <= report[name].high for name in NAMES)


def test_values_that_are_not_numbers_make_all_statistics_unknown() -> None:
    report = private_metrics.summarize([0.5, math.nan, 0.7, 0.8, 0.9], [1, 1, 1, 1, 1])
    assert report["clients"] == Estimate(5, 0)
    assert all(math.isnan(report[name].value) and math.isnan(report[name].bound) for name in NAMES)
    # Without examples, or without weights, NaN is no value, as in summarize().
    rest = private_metrics.summarize([0.5, 0.6, 0.7, 0.8, 0.9, math.nan], [1, 1, 1, 1, 1, 0])
    assert rest == private_metrics.summarize([0.5, 0.6, 0.7, 0.8, 0.9, math.nan])
    assert rest["clients"].value == 5 and math.isfinite(rest["mean"].value)


def test_bounds_are_stated_rounded_up() -> None:
    assert str(Estimate(0.705, 0.005)) == "0.705 ± 0.005" and str(Estimate(0.5, 0.0041001)) == "0.5 ± 0.0042"
    assert Estimate(0.5, 0.005 * (1 + 1e-12)).stated == pytest.approx(0.005)
    assert Estimate(3.0, 0.0).stated == 0 and math.isnan(Estimate(math.nan, math.nan).stated)


# --- what clients send --------------------------------------------------------------------------------------------


@given(clients, st.integers(1, 50))
def test_a_client_adds_a_one_to_its_bin(values: list[float], bins: int) -> None:
    ends = edges(bins)
    sent = cells(values, [True] * len(values), ends)
    assert sent.shape == (len(values), bins + 2) and sent.dtype == np.uint32
    assert (sent.sum(axis=1) == 1).all()
    for value, row in zip(values, sent, strict=True):
        assert cells(value, True, ends).tolist() == row.tolist()
        place = int(np.argmax(row))
        assert ends[place] <= value < ends[place + 1] or (value == 1.0 and place == bins - 1)
    assert not cells(values, [False] * len(values), ends).any()


def test_the_sum_is_that_of_the_protocol() -> None:
    """Two clients vanish before they send, one after it: the counts are those of all who sent."""
    accuracy, ends = np.linspace(0.2, 1.0, 9), edges(20)
    sent = cells(accuracy, [True] * 8 + [False], ends)
    counts = secure_sum(dict(enumerate(sent)), bits=32, dropped=[1, 4], silent=[6])
    stay = [0, 2, 3, 5, 6, 7]
    assert counts.tolist() == total(accuracy[stay], ends).tolist()
    report = statistics(counts, ends, clients=7)
    assert report == private_metrics.summarize(accuracy[stay], bins=20)
    assert report["mean"].low <= accuracy[stay].mean() <= report["mean"].high


def test_the_statistics_come_from_the_masked_sum_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values, ends = np.linspace(0.1, 0.9, 6), edges(50)
    assert private_metrics.summarize(values, bins=50) == statistics(total(values, ends), ends)

    def shifted(sent: jax.Array, present: jax.Array, key: jax.Array) -> npt.NDArray[Any]:
        assert present.all() and np.array_equal(sent, cells(values, [True] * 6, ends))
        return np.array([*np.roll(sent.sum(axis=0)[:-2], 4), 0, 0])

    monkeypatch.setattr(private_metrics, "masked_words", shifted)
    report = private_metrics.summarize(values, bins=50)
    assert report["mean"].value == pytest.approx(0.58, abs=0.011)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_too_few_clients_are_refused() -> None:
    ends = edges(4)
    for values in ([], [0.1, 0.5, 0.7, 0.9]):
        with pytest.raises(EvenhandError, match=f"{len(values)} clients with a value: .* fewer than 5"):
            statistics(total(np.array(values), ends), ends)
        with pytest.raises(EvenhandError, match="fewer than 5"):
            private_metrics.summarize(values)
    assert private_metrics.summarize([0.1, 0.5, 0.7, 0.9], least=4)["clients"].value == 4
    with pytest.raises(EvenhandError, match="least=1"):
        statistics(total([0.1], ends), ends, least=1)
    # Those without examples do not make up the number.
    with pytest.raises(EvenhandError, match="3 clients with a value"):
        private_metrics.summarize([0.1] * 6, [1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    "counts",
    [
        [8, 3, 0, 0],  # more than took part
        [8, 0, 0, 3],
        [12, -2, 0, 0],
        [np.uint64(2**64 - 2), np.uint64(8), np.uint64(0), np.uint64(0)],  # below zero, modulo 2**64
        [2, 4, 7, 0],  # more clipped than there are
        [2, 6, 2, 5, 0],  # more clipped than there are at the ends
    ],
)
def test_impossible_counts_are_refused(counts: list[Any]) -> None:
    with pytest.raises(EvenhandError, match="No 10 clients can have these counts"):
        statistics(np.array(counts), edges(len(counts) - 2), clients=10)


@pytest.mark.parametrize("counts", [[1, 2, 3], [5.0, 5.0, 0.0, 0.0], [[5, 5, 0, 0]]])
def test_other_counts_are_refused(counts: list[Any]) -> None:
    with pytest.raises(EvenhandError, match="are 4 whole numbers"):
        statistics(counts, edges(2))


def test_arguments_are_checked() -> None:
    for ends in ([0.5], [0.0, 0.0, 1.0], [1.0, 0.0], [0.0, math.nan], [[0.0, 1.0]]):
        with pytest.raises(EvenhandError, match="ascending"):
            cells(0.5, True, ends)
    for largest in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(EvenhandError, match="largest"):
            edges(4, largest=largest)
    for bins in (0, 10_001, 2.5):
        with pytest.raises(EvenhandError, match="bins"):
            edges(bins)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvenhandError, match="5 values but 4 weights"):
        private_metrics.summarize([0.5] * 5, [1] * 4)
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(EvenhandError, match="weight is negative or not finite"):
            private_metrics.summarize([0.5] * 6, [1.0] * 5 + [weight])
    with pytest.raises(EvenhandError, match="65,537 clients: at most 65,536"):
        private_metrics.summarize(np.zeros(65_537))


# --- as a report has it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [np.linspace(0.3, 0.95, 20), np.full(20, np.nan)])
@pytest.mark.parametrize("is_exact_known", [True, False])
def test_a_summary_survives_json(values: npt.NDArray[np.float64], is_exact_known: bool) -> None:
    exact = eh.evaluation.summarize(values, np.ones(20)) if is_exact_known else {}
    summary = PrivateSummary(
        private_metrics.summarize(values, np.ones(20)),
        metric="accuracy",
        split="test",
        clients="20 clients",
        bins=100,
        largest=1.0,
        exact=exact,
    )
    again = PrivateSummary.from_json(summary.to_json())
    assert repr(again.to_json()) == repr(summary.to_json())
    assert ("exact" in summary.to_json()["statistics"]["mean"]) == is_exact_known
    html = again._repr_html_()
    assert html == summary._repr_html_() and ("exact" in html) == is_exact_known
    assert "Test accuracy over 20 clients, from a histogram of 100 bins under a secure sum" in html
    first, *_ = summary.brief().rows
    assert list(first)[:2] == ["estimate", "–" if np.isnan(values).any() else "62.50"]


# --- of a run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> eh.simulation.Run:
    data = eh.data.load("digits", clients=16, alpha=0.3)
    work = eh.local.sgd(eh.models.softmax_regression(64, classes=10), 0.1, epochs=1, batch_size=10)
    attack = eh.attacks.sign_flip(0.25)
    return eh.simulate(
        eh.algorithms.fedavg(work), data, rounds=2, attack=attack, eval_clients=12, metrics=("auc",)
    )


@pytest.mark.parametrize(("metric", "largest"), [("accuracy", None), ("loss", 5.0), ("auc", 1.0)])
def test_a_run_shows_the_private_statistics_beside_the_exact_ones(
    run: eh.simulation.Run, metric: str, largest: float | None, tmp_path: Path
) -> None:
    private, exact = run.private_summary(metric=metric, largest=largest, bins=50), run.summary(metric=metric)
    assert all(private[name].low <= exact[name] <= private[name].high for name in NAMES)
    assert private["clients"].value == exact["clients"]
    assert private.exact == {name: exact[name] for name in ("clients", *NAMES)}
    # A server cannot leave out those that are malicious: who they are is not known to it.
    assert private.clients == exact.clients and "malicious ones included" in private.clients
    saved = eh.load_run(run.save(tmp_path / "a")).private_summary(metric=metric, largest=largest, bins=50)
    assert saved.to_json() == private.to_json()


@pytest.mark.parametrize(
    "saved", [[1], {"metrics": {"accuracy": 3}}, {"metrics": {"accuracy": {}}, "refused": ""}]
)
def test_what_no_version_wrote_is_refused(run: eh.simulation.Run, saved: Any) -> None:
    assert private_summaries(run.view()) == ([], "")
    with pytest.raises(EvenhandError, match="not as this version of Evenhand writes them"):
        private_summaries(run.view()._replace(info={"private_metrics": saved}))


def test_a_run_refuses_what_has_no_bound(run: eh.simulation.Run) -> None:
    with pytest.raises(EvenhandError, match=r"'loss'.* needs largest="):
        run.private_summary(metric="loss")
    with pytest.raises(EvenhandError, match="no metric 'f2'"):
        run.private_summary(metric="f2")
    with pytest.raises(EvenhandError, match="no split 'tset'"):
        run.private_summary("tset")
    with pytest.raises(EvenhandError, match="fewer than 13"):
        run.private_summary(least=13)
