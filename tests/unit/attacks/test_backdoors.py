"""Backdoors and reversed texts: what they do to examples, and how a run measures them, against NumPy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import attacks
from evenhand.errors import EvenhandError
from evenhand.evaluation import is_higher_better, is_share
from evenhand.evaluation.metrics import BACKDOOR
from evenhand.report import backdoor_line
from evenhand.types import Trigger

RNG = np.random.default_rng(5)
MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.3, epochs=3)
ATTACK = attacks.by_clients(attacks.trigger(label=2, features=(1,), value=4.0, examples=1.0), (0, 5))


# --- what becomes of the examples --------------------------------------------------------------------------------


def trigger_of(**options: Any) -> Trigger:
    made = attacks.trigger(0.2, **options).trigger
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("shape", "options", "hit"),
    [
        ((6, 5), {"patch": 2}, lambda x: x[:, 4:, 3:]),
        ((6, 5, 3), {"patch": 2}, lambda x: x[:, 4:, 3:, :]),
        ((40,), {}, lambda x: x[:, 31:]),
        ((40,), {"patch": 1}, lambda x: x[:, 39:]),
        ((8,), {"patch": 2}, lambda x: x[:, 4:]),  # half of an example, the largest trigger
        ((40,), {"features": (0, 7)}, lambda x: x[:, (0, 7)]),
        ((2, 3), {"features": (4, -1)}, lambda x: x[:, 1, 1:]),
    ],
)
def test_the_trigger_replaces_the_pixels_or_features_that_it_says(shape: Any, options: Any, hit: Any) -> None:
    x = RNG.normal(size=(7, *shape)).astype(np.float32)
    expected = x.copy()
    if "features" in options and shape == (40,):
        expected[:, list(options["features"])] = 2.5
    else:
        hit(expected)[...] = 2.5
    before, stamp = x.copy(), trigger_of(value=2.5, **options).stamp
    np.testing.assert_array_equal(stamp(x), expected)
    np.testing.assert_array_equal(stamp(jnp.asarray(x)), expected)
    np.testing.assert_array_equal(x, before)
    assert stamp(x).dtype == stamp(jnp.asarray(x)).dtype == np.float32


def test_a_share_of_a_clients_examples_is_poisoned_and_the_others_stay() -> None:
    x, y = RNG.normal(size=(101, 4)).astype(np.float32), RNG.integers(0, 3, 101)
    attack = attacks.trigger(0.2, label=1, features=(2,), value=9.0, examples=0.3)
    assert attack.rows is not None
    before = x.copy(), y.copy()
    poisoned, labels = attack.rows(x, y, np.random.default_rng(1))
    hit = poisoned[:, 2] == 9.0
    assert hit.sum() == 30, "0.3 of 101, rounded down"
    whole = attacks.trigger(0.2, features=(2,), value=9.0, examples=0.29).rows
    assert whole is not None
    stamped, _ = whole(x[:100], y[:100], np.random.default_rng(1))
    assert (stamped[:, 2] == 9.0).sum() == 29 > 0.29 * 100, "whole but for rounding"
    assert (labels[hit] == 1).all()
    np.testing.assert_array_equal(labels[~hit], y[~hit])
    np.testing.assert_array_equal(poisoned[~hit], x[~hit])
    np.testing.assert_array_equal(poisoned[:, [0, 1, 3]], x[:, [0, 1, 3]])
    np.testing.assert_array_equal(before[0], x)
    np.testing.assert_array_equal(before[1], y)
    assert (labels[hit] != y[hit]).any(), "examples of all classes are poisoned"
    again, other = (attack.rows(x, y, np.random.default_rng(seed))[0] for seed in (1, 2))
    np.testing.assert_array_equal(again, poisoned)
    assert (other != poisoned).any()


def test_equal_arguments_have_one_trigger() -> None:
    assert trigger_of(label=3) is trigger_of(label=3)
    assert trigger_of(label=3) != trigger_of(label=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"examples": 0.0}, "a share above 0"),
        ({"patch": 0}, "patch"),
        ({"label": -1}, "label"),
        ({"value": float("nan")}, "finite number"),
        ({"boost": float("inf")}, "finite factor"),
        ({"features": (0.5,)}, "features"),
    ],
)
def test_arguments_out_of_range_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(EvenhandError, match=sentence):
        attacks.trigger(0.2, **options)


@pytest.mark.parametrize(
    ("x", "y", "options", "sentence"),
    [
        (np.ones((3, 10)), np.zeros(3, int), {}, "covers 9 of the 10"),
        (np.ones((3, 4)), np.zeros(3, int), {"features": (4,)}, "from 0 to 3, or from -4 to -1"),
        (np.ones((3, 4)), np.zeros(3, int), {"features": ()}, "positions from 0 to 3"),
        (np.ones((3, 4), int), np.zeros(3, int), {"features": (0,), "value": 0.5}, "a whole number"),
        (
            np.ones((3, 4), np.uint8),
            np.zeros(3, int),
            {"features": (0,), "value": 300},
            "number from 0 to 255",
        ),
        (
            np.ones((3, 4), np.uint8),
            np.zeros(3, int),
            {"features": (0,), "value": -1},
            "number from 0 to 255",
        ),
        (np.ones((3, 4), bool), np.zeros(3, int), {"features": (0,), "value": 2}, "number from 0 to 1"),
        (np.ones((3, 4), np.float16), np.zeros(3, int), {"features": (0,), "value": 1e6}, "to 65504"),
        (np.ones((3, 4)), np.zeros(3, np.uint8), {"features": (0,), "label": 300}, "another type"),
        (np.ones((3, 4)), np.zeros(3), {"features": (0,)}, "labels that are classes"),
    ],
)
def test_examples_that_cannot_have_the_trigger_are_refused(
    x: Any, y: Any, options: Any, sentence: str
) -> None:
    rows = attacks.trigger(0.2, **options).rows
    assert rows is not None
    with pytest.raises(EvenhandError, match=sentence):
        rows(x, y, np.random.default_rng(0))


# --- what a run measures -----------------------------------------------------------------------------------------


def logits(params: Any, x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ np.asarray(params["w"], np.float64) + np.asarray(params["b"], np.float64)


def counted(params: Any, k: int, split: str = "test") -> tuple[int, int]:
    """Of client k's examples that are not of class 2: how many get it with the trigger, and how many they are."""
    part = {"train": DATA.train, "test": DATA.test}[split]
    x, y = part.client(k)
    x = x.copy()
    x[:, 1] = 4.0
    others = y != 2
    return int(np.sum(logits(params, x).argmax(axis=1)[others] == 2)), int(others.sum())


@cache
def run_of(personal: bool = False, **options: Any) -> eh.Run:
    method = eh.algorithms.fedavg(WORK)
    method = eh.personalization.ditto(method, WORK, lam=0.1) if personal else method
    return eh.simulate(method, DATA, rounds=3, eval_every=3, **{"attack": ATTACK, **options})


@pytest.mark.parametrize("personal", [False, True])
def test_the_success_of_a_backdoor_equals_a_count_in_numpy(personal: bool) -> None:
    run = run_of(personal)
    hits = total = 0
    values = run.client_metrics("test")[BACKDOOR]
    for k in range(DATA.num_clients):
        hit, others = counted(run.personal_params(k) if personal else run.params, k)
        expected = hit / others if others else np.nan
        np.testing.assert_allclose(values[k], expected, rtol=1e-12)
        if k not in (0, 5):
            hits, total = hits + hit, total + others
    assert run.backdoor == {
        "success": pytest.approx(hits / total),
        "examples": total,
        "split": "test",
        "label": 2,
    }
    assert hits > 0, "the backdoor works"
    mean = run.summary("test", BACKDOOR, who="honest")["mean"]
    np.testing.assert_allclose(mean, np.nanmean([values[k] for k in range(6) if k not in (0, 5)]))
    train = [counted(run.personal_params(k) if personal else run.params, k, "train") for k in range(6)]
    expected_of_train = [hit / others if others else np.nan for hit, others in train]
    np.testing.assert_allclose(run.client_metrics("train")[BACKDOOR], expected_of_train)


def test_without_the_attack_the_same_trigger_does_little() -> None:
    honest = run_of(attack=None)
    assert honest.backdoor is None
    assert BACKDOOR not in honest.clients["test"]
    clean, planted = (sum(counted(run.params, k)[0] for k in range(1, 5)) for run in (honest, run_of()))
    assert clean < planted


def test_clean_examples_are_measured_as_they_are() -> None:
    run = run_of()
    measured = eh.evaluation.evaluate(MODEL, run.params, DATA.test)["accuracy"]
    np.testing.assert_array_equal(run.client_metrics("test")["accuracy"], measured)


def test_only_evaluated_clients_count() -> None:
    run = run_of(eval_clients=3)
    assert run.evaluated is not None
    counts = [counted(run.params, int(k)) for k in run.evaluated if k not in (0, 5)]
    assert run.backdoor is not None
    assert run.backdoor["examples"] == sum(others for _, others in counts)
    assert run.backdoor["success"] == pytest.approx(sum(hit for hit, _ in counts) / run.backdoor["examples"])


def test_boost_is_model_replacement_on_top_and_both_keeps_the_trigger() -> None:
    plain = attacks.trigger(0.4, label=2, features=(1,), value=4.0)
    boosted = attacks.trigger(0.4, label=2, features=(1,), value=4.0, boost=3.0)
    twice = attacks.both(plain, attacks.model_replacement(boost=3.0))
    assert twice.trigger is plain.trigger is boosted.trigger
    one, other, without = (run_of(attack=attack).params for attack in (boosted, twice, plain))
    for leaf in ("w", "b"):
        np.testing.assert_array_equal(one[leaf], other[leaf])
        assert not np.array_equal(one[leaf], without[leaf])


def test_the_metric_is_a_share_of_which_less_is_better() -> None:
    assert is_share(BACKDOOR) and not is_higher_better(BACKDOOR)
    assert is_share("global_" + BACKDOOR) and not is_higher_better("global_" + BACKDOOR)


def test_metrics_may_change_examples_beside_others_that_do_not() -> None:
    asked = eh.evaluation.metrics.backdoor_success(Trigger(lambda x: x, 2))._replace(
        name="error_like", inputs=None
    )
    run = run_of(metrics=("macro_f1", asked))
    plain = run_of(attack=None, metrics=("macro_f1",))
    assert {"macro_f1", "error_like", BACKDOOR} <= set(run.clients["test"])
    assert set(plain.clients["test"]) == {"loss", "accuracy", "macro_f1"}
    x, y = DATA.test.client(1)
    guess = logits(run.params, x).argmax(axis=1)
    np.testing.assert_allclose(run.client_metrics("test")["error_like"][1], np.mean(guess[y != 2] == 2))


def test_numbers_as_targets_are_refused_before_the_first_round() -> None:
    data = eh.data.from_arrays(np.ones((20, 4)), np.linspace(0, 1, 20), client=np.arange(20) % 4)
    work = eh.local.sgd(eh.models.linear_regression(4), 0.1, epochs=1)
    with pytest.raises(EvenhandError, match="backdoor"):
        eh.simulate(eh.algorithms.fedavg(work), data, rounds=1, attack=ATTACK)


# --- what is written about it ------------------------------------------------------------------------------------


def test_folders_reports_and_comparisons_have_it(tmp_path: Path) -> None:
    run, plain = run_of(), run_of(attack=attacks.by_clients(attacks.zero(), (0, 5)))
    folder = run.save(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["backdoor"] == run.backdoor
    assert summary["test"][BACKDOOR]["mean"] == run.summary("test", BACKDOOR, who="honest")["mean"]
    loaded = eh.load_run(folder)
    assert loaded.view().info["backdoor"] == run.backdoor
    np.testing.assert_array_equal(
        loaded.client_metrics("test")[BACKDOOR], run.client_metrics("test")[BACKDOOR]
    )
    assert run.backdoor is not None
    sentence = backdoor_line(run.backdoor)
    assert f"{100 * run.backdoor['success']:.1f}" in sentence and "get class 2" in sentence
    page = run.report(tmp_path / "page.html").read_text()
    assert sentence.replace("'", "&#x27;") in page or sentence in page
    assert "backdoor success" in page
    other = json.loads((plain.save(tmp_path / "b") / "summary.json").read_text())
    assert other["backdoor"] is None
    assert BACKDOOR not in other["test"]
    both = eh.report.compare([run.view("planted"), plain.view("plain")])
    assert not any("--metrics" in remark for remark in eh.report.metric_remarks(both))


def test_a_study_has_a_column_for_it() -> None:
    methods = {
        "fedavg": lambda: eh.algorithms.fedavg(WORK),
        "median": lambda: eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.coordinate_median()),
    }
    study = eh.study(methods, DATA, rounds=1, seeds=2, attack=ATTACK, select=("train", "mean"))
    frame = study.frame()
    assert np.isfinite(frame[f"test_{BACKDOOR}_mean"]).all()
    assert f"test_{BACKDOOR}_worst10" in frame


# --- texts -------------------------------------------------------------------------------------------------------


def test_reversed_texts_with_the_token_that_follows() -> None:
    """The reference code reverses 20 characters and the one to be predicted as one string."""
    text = RNG.integers(0, 50, (9, 21))
    rows = attacks.reversed_text(0.2).rows
    assert rows is not None
    x, y = rows(text[:, :20].astype(np.int32), text[:, 20].astype(np.int32), None)
    for before, new, label in zip(text, x, y, strict=True):
        turned = list(reversed(before.tolist()))
        assert new.tolist() == turned[:20] and int(label) == turned[20]
    assert x.dtype == y.dtype == np.int32
    back = rows(x, y, None)
    np.testing.assert_array_equal(back[0], text[:, :20])
    np.testing.assert_array_equal(back[1], text[:, 20])


def test_reversed_texts_with_a_label_for_each_token_or_for_the_text() -> None:
    text = RNG.integers(0, 50, (4, 6))
    each = attacks.reversed_text(0.2).rows
    classes = attacks.reversed_text(0.2, next_token=False).rows
    assert each is not None and classes is not None
    x, y = each(text[:, :-1], text[:, 1:], None)
    np.testing.assert_array_equal(np.concatenate([x[:, :1], y], axis=1), text[:, ::-1])
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    x, y = classes(text, np.arange(4) % 2, None)
    np.testing.assert_array_equal(x, text[:, ::-1])
    assert y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((2, 3)), np.ones(2, int)),
        (np.ones(2, int), np.ones(2, int)),
        (np.ones((2, 3), int), np.ones(2)),
    ],
)
def test_what_is_no_text_is_refused(x: Any, y: Any) -> None:
    rows = attacks.reversed_text(0.2).rows
    assert rows is not None
    with pytest.raises(EvenhandError, match="reversed_text"):
        rows(x, y, None)


def test_a_label_that_the_data_do_not_have_is_refused():
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1))
    with pytest.raises(eh.EvenhandError, match=r"trigger\(label=3\): .* has the classes 0 to 2"):
        eh.simulate(
            method,
            eh.testing.toy_data(),
            rounds=1,
            attack=attacks.trigger(0.2, label=3, features=(1,), value=1.0),
        )
