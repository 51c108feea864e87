"""Metrics of sets of examples: each equals scikit-learn's or a loop, for one set and for many at once."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    mean_absolute_error,
    r2_score,
    recall_score,
    roc_auc_score,
)

from evenhand.errors import EvenhandError
from evenhand.evaluation import is_higher_better, is_share
from evenhand.evaluation.metrics import (
    BUILT_IN,
    auc,
    check,
    from_function,
    measure,
    measure_clients,
    resolved,
    undefined,
)

CLASSES = "auc, average_precision, balanced_accuracy, macro_f1, brier, calibration_error"


def clients(
    seed: int, classes: int, *, ties: bool, many: int = 60
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and offsets of clients with 0 to 40 examples, each of some of the classes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 41, many)
    sizes[:3] = 1, 0, 2
    labels = np.concatenate(
        [rng.choice(rng.permutation(classes)[: rng.integers(1, classes + 1)], n) for n in sizes]
    )
    logits = rng.normal(size=(len(labels), classes)) + 1.5 * (labels[:, None] == np.arange(classes))
    logits = np.round(logits) if ties else logits
    return logits.astype(np.float32), labels, np.concatenate([[0], np.cumsum(sizes)])


def calibration_by_loop(confidence: np.ndarray, right: np.ndarray) -> float:
    """The definition, bin by bin: ``(0, 1/15], (1/15, 2/15], ...``."""
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def by_scikit_learn(score: Any, probabilities: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """One class against the rest, the mean over the classes that occur (of two the second); NaN for one class.

    Rounded, since rounding in softmax would order rows whose probabilities are equal.
    """
    probabilities = np.round(probabilities, 9)
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    return float(
        np.mean([score(labels == c, probabilities[:, c]) for c in (present if classes > 2 else [1])])
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int, ties: bool) -> None:
    """The oracle takes softmax in float64 and goes client by client; rounded logits give many tied scores."""
    logits, labels, offsets = clients(classes, classes, ties=ties)
    got = measure_clients(CLASSES, logits, labels, offsets)
    undefined_ones = 0
    for k, (a, b) in enumerate(itertools.pairwise(offsets)):
        if a == b:
            assert all(np.isnan(values[k]) for values in got.values())
            continue
        y, p = labels[a:b], softmax(logits[a:b].astype(np.float64), axis=1)
        answers = np.argmax(logits[a:b], axis=1)
        expected = {
            "auc": by_scikit_learn(roc_auc_score, p, y, classes),
            "average_precision": by_scikit_learn(average_precision_score, p, y, classes),
            "brier": sum(brier_score_loss(y == c, p[:, c], pos_label=True) for c in range(classes)) / 2,
            "balanced_accuracy": recall_score(y, answers, labels=np.unique(y), average="macro"),
            "macro_f1": f1_score(y, answers, average="macro", zero_division=cast(Any, 0)),
            "calibration_error": calibration_by_loop(p.max(axis=1), answers == y),
        }
        undefined_ones += np.isnan(expected["auc"])
        for name, value in expected.items():
            np.testing.assert_allclose(got[name][k], value, rtol=1e-9, atol=1e-9, err_msg=f"{name} of {k}")
        alone = measure(CLASSES, logits[a:b], y)
        np.testing.assert_allclose([alone[name] for name in got], [got[name][k] for name in got], rtol=1e-12)
    assert undefined_ones > 3


def test_auc_of_several_classes_is_that_of_scikit_learn_where_all_occur() -> None:
    logits, labels, _ = clients(5, 4, ties=False)
    p = softmax(logits.astype(np.float64), axis=1)
    expected = roc_auc_score(labels, p, multi_class="ovr", average="macro")
    assert measure("auc", logits, labels)["auc"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("lowest", [0, -1])
def test_a_single_logit_is_that_of_the_second_class(shape: tuple[int, ...], lowest: int) -> None:
    """Labels 0 and 1 or -1 and 1; the oracle gets the probability and the decision of the logistic function."""
    rng = np.random.default_rng(3)
    z = np.round(rng.normal(size=200) * 2, 1)
    positive = rng.random(200) < expit(z)
    y = np.where(positive, 1, lowest)
    got = measure(CLASSES, z.reshape(shape), y)
    p = expit(z)
    assert got["auc"] == pytest.approx(roc_auc_score(positive, z), abs=1e-12)
    assert got["average_precision"] == pytest.approx(average_precision_score(positive, z), abs=1e-12)
    assert got["brier"] == pytest.approx(brier_score_loss(positive, p), abs=1e-12)
    assert got["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(positive, z > 0))
    assert got["macro_f1"] == pytest.approx(f1_score(positive, z > 0, average="macro"))
    confidence = np.maximum(p, 1 - p)
    assert got["calibration_error"] == pytest.approx(calibration_by_loop(confidence, (z > 0) == positive))


@pytest.mark.parametrize("targets", [1, 3])
def test_metrics_of_numbers_are_those_of_scikit_learn(targets: int) -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([9, 0, 1, 5, 30])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    y = rng.normal(1e3, 5.0, (offsets[-1], targets))
    y[10:15] = 0.1  # client 3: equal targets, whose mean is rounded
    outputs = y + rng.normal(size=y.shape)
    got = measure_clients("r2, mae", outputs.squeeze(), y.squeeze(), offsets)
    assert np.isnan(got["r2"][[1, 2, 3]]).all() and np.isnan(got["mae"][1])
    for k in (0, 4):
        rows = slice(offsets[k], offsets[k + 1])
        assert got["r2"][k] == pytest.approx(r2_score(y[rows], outputs[rows]), rel=1e-9)
    for k in (0, 2, 3, 4):
        rows = slice(offsets[k], offsets[k + 1])
        assert got["mae"][k] == pytest.approx(mean_absolute_error(y[rows], outputs[rows]), rel=1e-9)


def test_outputs_that_are_not_finite_have_no_metrics_and_do_not_touch_other_clients() -> None:
    logits, labels, offsets = clients(1, 3, ties=False, many=12)
    whole = measure_clients(CLASSES, logits, labels, offsets)
    broken = logits.copy()
    broken[offsets[5], 1], broken[offsets[7], 0] = np.nan, np.inf
    got = measure_clients(CLASSES, broken, labels, offsets)
    others = np.setdiff1d(np.arange(12), [5, 7])
    for name, values in got.items():
        assert np.isnan(values[[5, 7]]).all()
        np.testing.assert_array_equal(values[others], whole[name][others])
    y = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 5.0], [4.0, 0.0]])
    outputs = y + 1
    outputs[1, 0] = -np.inf
    numbers = measure_clients("r2, mae", outputs, y, [0, 2, 4])
    assert np.isnan([values[0] for values in numbers.values()]).all()
    assert np.isfinite([values[1] for values in numbers.values()]).all()


def test_a_class_may_be_ruled_out_by_minus_infinity() -> None:
    """The oracle sees the same classes with a logit so low that its probability is 0."""
    logits, labels, offsets = clients(2, 4, ties=False, many=12)
    labels = labels % 3
    low, out = logits.copy(), logits.copy()
    low[:, 3], out[:, 3] = -500.0, -np.inf
    got, expected = (measure_clients(CLASSES, z, labels, offsets) for z in (out, low))
    for name in got:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)
    assert np.isnan(measure("auc", np.full((2, 3), -np.inf), np.array([0, 1]))["auc"])


def test_a_confidence_at_the_edge_of_two_bins_is_in_the_lower_one() -> None:
    """Confidences 1/3 = 5/15, right, and .36, wrong: in one bin their gaps 2/3 and -.36 would cancel."""
    logits = np.array([[0.0, 0.0, 0.0], np.log([0.32, 0.36, 0.32])])
    value = measure("calibration_error", logits, np.array([0, 0]))["calibration_error"]
    assert value == pytest.approx((2 / 3 + 0.36) / 2)


def test_very_confident_outputs_are_no_ties() -> None:
    """All probabilities of the first class round to 1 in float64, while their log-odds are in the right order."""
    logits = np.array([[60.0, 0.0, 0.0], [70.0, 0.0, 0.0], [80.0, 0.0, 0.0], [90.0, 0.0, 0.0]])
    labels = np.array([1, 1, 0, 0])
    assert len(np.unique(softmax(logits, axis=1)[:, 0])) == 1
    assert measure("auc", logits, labels)["auc"] == 1.0
    assert measure("auc", logits, labels[::-1])["auc"] == 0.0


def test_without_examples_there_is_no_value() -> None:
    assert np.isnan(list(measure(CLASSES, np.zeros((0, 3)), np.zeros(0, np.int64)).values())).all()


def test_metrics_of_ones_own_are_called_client_by_client() -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def spread(outputs: np.ndarray, labels: np.ndarray) -> float:
        seen.append((outputs.shape, labels.shape))
        return float(np.ptp(outputs[:, 1])) + labels.sum()

    got = measure_clients([from_function("spread", spread), auc()], [1.0, 3.0, 7.0], [0, 1, 1], [0, 2, 2, 3])
    np.testing.assert_array_equal(got["spread"], [3.0, np.nan, 1.0])
    np.testing.assert_array_equal(got["auc"], [1.0, np.nan, np.nan])
    assert seen == [((2, 2), (2,)), ((1, 2), (1,))]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            lambda outputs, y: outputs.argmax(1) == y,
            r"'own' gives an array of shape \(2,\): give one number for each",
        ),
        (lambda outputs, y: "much", r"'own' gives 'much': give one number"),
        (lambda outputs, y: None, r"'own' gives None: give one number"),
        (
            lambda outputs, y: 1 / 0,
            r"'own' failed on outputs of shape \(2, 2\) and .*: ZeroDivisionError: division",
        ),
    ],
)
def test_metrics_of_ones_own_that_give_no_number_are_named(function: Any, sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence):
        measure_clients([from_function("own", function)], [1.0, 3.0], [0, 1], [0, 2])


def test_names_say_what_is_better_and_what_is_in_percent() -> None:
    metrics = resolved(tuple(BUILT_IN))
    assert [metric.name for metric in metrics] == list(BUILT_IN)
    less = {metric.name for metric in metrics if not metric.higher_is_better}
    assert less == {"mae", "calibration_error", "brier"}
    assert less == {name for name in BUILT_IN if not is_higher_better(name)}
    assert [name for name in BUILT_IN if is_share(name)] == [
        "balanced_accuracy",
        "macro_f1",
        "calibration_error",
    ]
    assert is_share("global_macro_f1") and not is_higher_better("global_mae")


def test_undefined_is_told_from_diverged_by_the_loss() -> None:
    of = {
        "loss": np.array([0.1, 0.2, np.nan, np.nan]),
        "auc": np.array([0.5, np.nan, np.nan, np.nan]),
        "global_loss": np.array([0.1, np.inf, 1.0, np.nan]),
        "global_auc": np.array([np.nan, np.nan, 0.5, np.nan]),
    }
    np.testing.assert_array_equal(undefined(of, "auc"), [False, True, False, False])
    np.testing.assert_array_equal(undefined(of, "global_auc"), [True, False, False, False])


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (("macro_f",), "macro_f1"),
        ("auc,,r2", "There is no metric ''"),
        (("auc", auc()), "'auc' is there twice"),
        ((1,), "1 is no metric"),
        ((from_function("gap", lambda x, y: 0.0, higher_is_better=False),), "less of 'gap' is better"),
        ((from_function("error", lambda x, y: 0.0),), "more of 'error' is better"),
        ((from_function("rows", lambda x, y: 0.0),), "'rows' cannot be a metric's name"),
        ((from_function("global_x", lambda x, y: 0.0),), "'global_x' cannot be"),
        ((from_function("worst_class", lambda x, y: 0.0),), "'worst_class' cannot be"),
    ],
)
def test_metrics_that_cannot_be_are_refused_in_a_sentence(metrics: Any, sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence.replace("(", r"\(")):
        resolved(metrics)


@pytest.mark.parametrize(
    ("metrics", "outputs", "labels", "sentence"),
    [
        ("auc", np.zeros(3), np.zeros(3), "auc needs classes"),
        ("r2", np.zeros((3, 2)), np.zeros(3, np.int64), "r2 needs targets that are numbers"),
        ("auc", np.zeros((3, 2)), np.zeros(4, np.int64), "do not go with labels"),
        ("mae", np.zeros((3, 2)), np.zeros(3), "one output for each target"),
        ("auc", np.zeros((3, 2)), np.zeros((3, 2), np.int64), "one class number per example"),
        ("auc", np.zeros((3, 2)), np.array([0, 1, 2]), "run from 0 to 2"),
        ("auc", np.zeros((3, 2, 2)), np.zeros(3, np.int64), "do not go with labels"),
        ("auc", np.zeros(2), ["no", "yes"], "the labels are no array of numbers"),
        ("r2", ["a", "b"], np.zeros(2), "the outputs are no array of numbers"),
        ("auc", [[1.0], [1.0, 2.0]], np.zeros(2, np.int64), "the outputs are no array of numbers"),
    ],
)
def test_outputs_that_do_not_suit_a_metric_are_refused(
    metrics: str, outputs: Any, labels: Any, sentence: str
) -> None:
    with pytest.raises(EvenhandError, match=sentence):
        measure(metrics, outputs, labels)


def test_offsets_must_cover_the_rows_and_margins_are_no_probabilities() -> None:
    with pytest.raises(EvenhandError, match="offsets"):
        measure_clients("auc", np.zeros(3), np.zeros(3, np.int64), [0, 2])
    check(resolved("auc"), (2, 2), np.dtype(np.int64), margins=True)
    with pytest.raises(EvenhandError, match="margins"):
        check(resolved("calibration_error"), (2, 2), np.dtype(np.int64), margins=True)
