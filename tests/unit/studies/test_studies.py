"""Studies: every setting with every seed, a choice that never sees the test examples, folders that only grow."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.evaluation import paired_difference
from evenhand.report import RunView, compare
from evenhand.report.tables import difference_table
from evenhand.simulation import Job
from evenhand.studies import Outcome, Rule, Setting, Study, _columns, _selection, study
from evenhand.types import Algorithm

MODEL = eh.testing.toy_model()
WHOLE = eh.testing.toy_data()
DATA = eh.data.hold_out(WHOLE, 0.4)
A = eh.algorithms


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> Algorithm:
    return A.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))


@cache
def fedprox(lr: float, mu: float = 0.5) -> Algorithm:
    return A.fedprox(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4), mu=mu)


METHODS: dict[str, Any] = {"fedavg": fedavg, "fedprox": fedprox, "fixed": fedavg(0.1)}
GRID: dict[str, Any] = {"lr": [0.01, 0.1], "fedprox": {"mu": [0.1, 1.0]}}
HOW: dict[str, Any] = {"rounds": 2, "seeds": [3, 5], "eval_every": 2, "cohort": 4}


@pytest.fixture(scope="module")
def small() -> Study:
    return study(METHODS, DATA, grid=GRID, **HOW)


def test_every_setting_runs_with_every_seed_as_it_does_alone(small: Study) -> None:
    ran = [(str(each.setting), each.seed) for each in small.outcomes]
    assert len(ran) == len(set(ran)) == (2 + 4 + 1) * 2
    assert ("fedprox(lr=0.1, mu=1)", 5) in ran and ("fixed()", 3) in ran
    assert {each.status for each in small.outcomes} == {"done"}
    for outcome in small.outcomes[::3]:
        made = METHODS[outcome.setting.method]
        method = made if isinstance(made, Algorithm) else made(**outcome.setting.numbers)
        alone = eh.simulate(method, DATA, rounds=2, eval_every=2, cohort=4, seed=outcome.seed)
        assert outcome.view is not None
        for name, values in alone.history.items():
            np.testing.assert_allclose(outcome.view.history[name], values, atol=2e-5)


def test_the_setting_with_the_best_validation_is_chosen(small: Study) -> None:
    """By hand from the runs, for two statistics; and by another rule another setting may be."""
    for split, statistic in (("valid", "mean"), ("train", "weighted_mean")):
        chosen = Study(small.outcomes, Rule(split, statistic), "fedavg", "accuracy").best("fedprox")
        scores: dict[str, list[float]] = {}
        for each in small.outcomes:
            if each.setting.method == "fedprox" and each.view is not None:
                values, has = each.view.clients[split]["accuracy"], each.view.sizes[split] > 0
                summary = eh.evaluation.summarize(values[has])
                scores.setdefault(str(each.setting), []).append(summary[statistic])
        means = {name: np.mean(values) for name, values in scores.items()}
        assert means[str(chosen)] == max(means.values()) > min(means.values())


def _run_with(setting: str, seed: int, accuracies: list[float]) -> Outcome:
    """A run of a method, or of one ``lr`` of it, with these validation accuracies."""
    method, _, lr = setting.partition(" ")
    values, ids = {"accuracy": np.array(accuracies)}, ("a", "b")
    view = RunView("", {"round": np.array([0])}, {"valid": np.ones(2)}, ids, {"valid": values}, {}, {})
    return Outcome(Setting(method, {"lr": float(lr)} if lr else {}), seed, "done", "", view)


def test_a_rule_asks_for_settings_near_another_method_and_a_seed_chooses_for_itself() -> None:
    """The most even one of those that are at most a point below ``plain``."""
    runs = [
        *(_run_with("plain", seed, [0.9, 0.7]) for seed in (0, 1)),
        *(_run_with("fair 1", seed, [0.97, 0.73]) for seed in (0, 1)),
        _run_with("fair 2", 0, [0.83, 0.76]),
        _run_with("fair 2", 1, [0.6, 0.6]),
        *(_run_with("fair 3", seed, [0.5, 0.5]) for seed in (0, 1)),
    ]
    rule = Rule(within=0.01, then="std", near="plain")
    found = Study(tuple(runs), rule, "plain", "accuracy")
    assert str(found.best("fair")) == "fair(lr=1)"
    assert str(found.at(0).best("fair")) == "fair(lr=2)"
    # By the best of its own, which is 0.85, it would not be close enough.
    assert (
        str(Study(tuple(runs), rule._replace(near=None), "plain", "accuracy").at(0).best("fair"))
        == "fair(lr=1)"
    )
    none = tuple(each for each in runs if str(each.setting) != "fair(lr=1)")
    assert str(Study(none, rule, "plain", "accuracy").at(1).best("fair")) == "fair(lr=2)"
    assert any(
        "within the tolerance of plain" in remark for remark in Study(none, rule, "plain", "accuracy").remarks
    )
    with pytest.raises(eh.EvenhandError, match="choose one of"):
        found.at(2)


def test_the_test_examples_choose_nothing(small: Study) -> None:
    turned = eh.data.Split(DATA.test.x[::-1], (DATA.test.y + 1) % 3, DATA.test.offsets)
    other = eh.data.FederatedDataset(DATA.train, DATA.valid, turned, DATA.client_ids)
    again = study(METHODS, other, grid=GRID, **HOW)
    assert [again.best(name) for name in METHODS] == [small.best(name) for name in METHODS]
    assert again.best() == small.best()
    assert any(
        not np.array_equal(a.view.clients["test"]["loss"], b.view.clients["test"]["loss"])  # type: ignore[union-attr]
        for a, b in zip(again.outcomes, small.outcomes, strict=True)
    )
    with pytest.raises(eh.EvenhandError, match="must not choose"):
        study(METHODS, DATA, grid=GRID, select=("test", "mean"), **HOW)


def test_validation_examples_are_made_where_a_choice_needs_them() -> None:
    with pytest.warns(eh.errors.EvenhandWarning, match="no validation examples") as told:
        found = study({"fedavg": fedavg}, WHOLE, grid={"lr": [0.01, 0.1]}, **HOW)
    assert len(told) == 1 and told[0].filename == __file__
    assert "no validation examples" in found.remarks[0]
    view = found.outcomes[0].view
    assert view is not None and view.sizes["train"].sum() < WHOLE.train.rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = study({"fedavg": fedavg}, WHOLE, grid={"lr": [0.1]}, **HOW)
    assert one.outcomes[0].view is not None and one.outcomes[0].view.sizes["train"].sum() == WHOLE.train.rows


def test_the_table_has_paired_differences_to_the_baseline(small: Study) -> None:
    lines = {line.method: line for line in small.table()}
    base, other = lines["fedavg"], lines["fedprox"]
    assert not base.differences and base.setting == small.best("fedavg")
    for name in ("mean", "worst10", "variance"):
        assert len(other.values[name]) == 2
        assert other.differences[name] == paired_difference(other.values[name], base.values[name])
    holm = eh.evaluation.holm({each: lines[each].differences["mean"].p for each in ("fedprox", "fixed")})
    assert [lines[each].p["mean"] for each in ("fedprox", "fixed")] == [holm["fedprox"], holm["fixed"]]
    pairs = [
        np.subtract(a.clients["test"]["accuracy"], b.clients["test"]["accuracy"])
        for a, b in zip(small.views("fedprox"), small.views("fedavg"), strict=True)
    ]
    assert other.gains == (
        int(np.all(np.array(pairs) > 0, 0).sum()),
        int(np.all(np.array(pairs) < 0, 0).sum()),
    )
    named = study(METHODS, DATA, grid=GRID, baseline="fixed", **HOW)
    assert not {line.method: line for line in named.table()}["fixed"].differences


def test_the_page_shows_the_methods_at_their_best(small: Study, tmp_path: Path) -> None:
    text = small.report(tmp_path / "study.html").read_text()
    assert "fedprox" in text and "fixed" in text and "Means over 2 seeds" in text
    best = {
        name: np.mean([np.mean(v.clients["test"]["accuracy"]) for v in small.views(name)]) for name in METHODS
    }
    assert all(f"{100 * value:.1f}" in text for value in best.values())


def test_the_frame_has_a_row_per_run(small: Study) -> None:
    frame = small.frame()
    columns = {
        name: np.asarray(frame[name]) for name in ("method", "seed", "status", "lr", "mu", "test_mean")
    }
    assert len(columns["method"]) == len(small.outcomes)
    assert list(columns["seed"][:2]) == [3, 5]
    assert np.isnan(columns["mu"][columns["method"] == "fedavg"].astype(float)).all()
    view = small.outcomes[0].view
    assert view is not None
    assert columns["test_mean"][0] == pytest.approx(np.mean(view.clients["test"]["accuracy"]))
    assert {"valid_worst10", "train_variance"} <= set(frame)
    views = [outcome.view for outcome in small.outcomes if outcome.view is not None]
    sent = [view.info["communication"]["total"]["up"]["bytes"] for view in views]
    np.testing.assert_array_equal(frame["bytes_up"], sent)
    assert min(sent) > 0 and set(frame["secure_sums"]) == {0}


def test_data_of_each_seed_and_conditions_by_name() -> None:
    drawn: list[int] = []

    def source(seed: int) -> eh.data.FederatedDataset:
        drawn.append(seed)
        return eh.data.hold_out(WHOLE, 0.4, seed=seed)

    found = study(METHODS, source, grid=GRID, **HOW)
    assert sorted(drawn) == [3, 5]
    first, second = (found.outcomes[i].view for i in (0, 1))
    assert first is not None and second is not None
    shout = eh.types.Attack(0.34, upload=lambda delta, key: eh.tree.scale(-9.0, delta))
    cases = study({"fixed": fedavg(0.1)}, DATA, attack={"none": None, "shout": shout}, **HOW)
    assert [dict(case) for case in cases.cases] == [{"attack": "none"}, {"attack": "shout"}]
    best = [cases.under(case).table()[0].values["mean"].mean() for case in cases.cases]
    assert best[0] != best[1] and "[attack=shout]" in str(cases.outcomes[-1].setting)
    assert not any("malicious client" in remark for remark in cases.remarks)
    with pytest.raises(eh.EvenhandError, match="no condition"):
        cases.under({"attack": "shot"})
    with pytest.raises(eh.EvenhandError, match="a single condition, without a name: use the study itself"):
        found.under({"attack": "shout"})


def test_a_study_names_the_attack_whose_share_is_no_client() -> None:
    attack = {"none": None, "flip": eh.attacks.sign_flip(0.01)}
    found = study({"fixed": fedavg(0.1)}, DATA, attack=attack, **HOW)
    (remark,) = (remark for remark in found.remarks if "no malicious client" in remark)
    assert remark.startswith("attack flip: The attack has no malicious client: its fraction 0.01 of")


def test_a_measure_is_kept_for_each_evaluation(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a run that was interrupted, whose earlier evaluations are not made again."""

    def measure(run: eh.Run) -> dict[str, float]:
        now = run.info["rounds"]
        return {"norm": float(eh.tree.norm(run.params)), **({"late": now} if now > 2 else {})}

    how: dict[str, Any] = HOW | {
        "rounds": 6,
        "measure": measure,
        "grid": {"lr": [0.05, 0.1]},
        "checkpoint": 0,
    }
    whole = study({"fedavg": fedavg}, DATA, **how)
    for each in whole.outcomes:
        assert each.view is not None
        np.testing.assert_array_equal(each.measures["late"], [np.nan, np.nan, 4, 6])
        assert each.measures["norm"].shape == each.view.history["round"].shape
    alone = eh.simulate(fedavg(0.05), DATA, rounds=6, eval_every=6, cohort=4, seed=3)
    assert whole.outcomes[0].measures["norm"][-1] == pytest.approx(
        float(eh.tree.norm(alone.params)), abs=1e-5
    )
    assert whole.tried[1].values["norm"][0] == whole.outcomes[2].measures["norm"][-1]
    assert whole.frame()["late"][0] == 6

    iterate: Callable[..., Any] = _columns.iterate_many

    def stopped(jobs: list[Job], wanted: list[int]) -> Any:
        for number, found in enumerate(iterate(jobs, wanted)):
            if number == 11:
                raise KeyboardInterrupt
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(_columns, "iterate_many", stopped)
        with pytest.raises(KeyboardInterrupt):
            study({"fedavg": fedavg}, DATA, folder=tmp_path, **how)
    assert list(tmp_path.glob("runs/*/measures.json"))
    for _ in range(2):
        found = study({"fedavg": fedavg}, DATA, folder=tmp_path, **how)
        for a, b in zip(whole.outcomes, found.outcomes, strict=True):
            assert list(a.measures) == list(b.measures)
            for name in a.measures:
                np.testing.assert_allclose(a.measures[name], b.measures[name], atol=1e-5)
    assert not list(tmp_path.glob("runs/*/measures.json"))
    study({"fedavg": fedavg}, DATA, folder=tmp_path / "unmeasured", **dict(how, measure=None))
    with pytest.raises(eh.EvenhandError, match=r"another run.*measured"):
        study({"fedavg": fedavg}, DATA, folder=tmp_path / "unmeasured", **how)


@pytest.mark.parametrize("name", ["seed", "status", "lr", "mu", "bytes_up"])
def test_a_measure_takes_no_column_of_the_results(name: str) -> None:
    """Nor a hyper-parameter of another method."""
    how: dict[str, Any] = HOW | {"grid": {"lr": [0.1], "mu": [1.0]}, "measure": lambda run: {name: 1.0}}
    with pytest.raises(eh.EvenhandError, match=f"measure.*'{name}' is a column of the results"):
        study({"fedavg": fedavg, "fedprox": fedprox}, DATA, **how)


def test_a_measure_named_like_a_statistic_has_a_column_of_its_own() -> None:
    plain = study({"fedavg": fedavg(0.1)}, DATA, **HOW)
    measured = study({"fedavg": fedavg(0.1)}, DATA, measure=lambda run: {"valid_mean": -1.0, "n": 2.0}, **HOW)
    assert list(measured.frame()["valid_mean"]) == list(plain.frame()["valid_mean"])
    np.testing.assert_array_equal(measured.tried[0].values["valid_mean"], plain.tried[0].values["valid_mean"])
    for columns in (measured.frame(), measured.tried[0].values):
        assert set(columns["measured_valid_mean"]) == {-1.0} and set(columns["n"]) == {2.0}
    assert measured.outcomes[0].measures["valid_mean"][-1] == -1.0


# --- runs that go wrong ----------------------------------------------------------------------------------------------


def test_runs_that_diverge_or_fail_are_results(tmp_path: Path) -> None:
    def broken(lr: float) -> Algorithm:
        method = fedavg(lr)
        if lr < 0.1:
            return method
        return method._replace(
            model=MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) * jnp.inf)
        )

    for folder in (None, tmp_path / "a", tmp_path / "a"):
        found = study(
            {"wild": fedavg, "broken": broken}, DATA, grid={"wild": {"lr": [50.0, 0.1]}, "broken": {"lr": [0.05, 0.2]}},
            folder=folder, rounds=6, seeds=1, eval_every=2,
        )  # fmt: skip
        assert [each.status for each in found.outcomes] == ["diverged", "done", "done", "failed"]
        assert found.outcomes[0].reason and "loss" in found.outcomes[3].reason
        assert str(found.best("wild")) == "wild(lr=0.1)" and str(found.best("broken")) == "broken(lr=0.05)"
        assert any("1 of 4 runs diverged" in remark for remark in found.remarks)
        assert any("1 of 4 runs failed" in remark for remark in found.remarks)
    nothing = study({"wild": fedavg}, DATA, grid={"lr": [50.0, 90.0]}, rounds=6, seeds=1, eval_every=2)
    assert nothing.table()[0].setting is None
    with pytest.raises(eh.EvenhandError, match="diverged or failed"):
        nothing.best("wild")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": {}}, "at least one method"),
        ({"methods": [fedavg]}, "methods="),
        ({"methods": {"fedavg": 3}}, "fedavg is 3"),
        ({"methods": {"fedavg": lambda lr: 3}}, "fedavg"),
        ({"grid": {}}, "needs values of 'lr'"),
        ({"grid": {"lr": [0.1], "mue": [1.0]}}, "perhaps you meant mu"),
        ({"grid": {"lr": [0.1], "fedporx": {"mu": [1.0]}}}, "perhaps you meant fedprox"),
        ({"grid": {"lr": [0.1], "fedavg": {"mu": [1.0]}}}, "fedavg has no argument 'mu'"),
        ({"grid": {"lr": []}}, "distinct values"),
        ({"grid": {"lr": [0.1, 0.1]}}, "distinct values"),
        ({"grid": {"lr": 0.1}}, "distinct values"),
        ({"grid": {"lr": [0.1, object()]}}, "lr has a value of type object, which has no stable name"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "twice"),
        ({"baseline": "fedavgg"}, "perhaps you meant fedavg"),
        ({"select": Rule(near="fedavgg")}, "perhaps you meant fedavg"),
        ({"select": ("valid", "wurst10")}, "perhaps you meant worst10"),
        ({"select": ("validation", "mean")}, "no split"),
        ({"data": {}}, "at least one"),
        ({"data": 3}, "data="),
    ],
)
def test_slips_get_a_sentence(change: dict[str, Any], words: str) -> None:
    methods = {"fedavg": fedavg, "fedprox": fedprox}
    given: dict[str, Any] = {"methods": methods, "data": DATA, "grid": {"lr": [0.1]}, **HOW} | change
    with pytest.raises(eh.EvenhandError, match=words):
        study(**given)


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each batch of a study started."""
    found: list[int] = []
    iterate = _columns.iterate_many

    def counted(jobs: list[Job], wanted: list[int]) -> Any:
        found.append(len(wanted))
        return iterate(jobs, wanted)

    monkeypatch.setattr(_columns, "iterate_many", counted)
    return found


def same(one: Study, other: Study) -> bool:
    """Whether two studies have equal outcomes, to the bit."""
    pairs = [
        (a.view.history[name], b.view.history[name])
        for a, b in zip(one.outcomes, other.outcomes, strict=True)
        if a.view is not None and b.view is not None and a[:4] == b[:4]
        for name in a.view.history
    ]
    whole = len(pairs) == len(one.outcomes) * len(one.views("fedavg")[0].history)
    return whole and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_a_study_that_is_started_again_only_makes_what_is_new(tmp_path: Path, started: list[int]) -> None:
    methods = {"fedavg": fedavg, "fedprox": fedprox}
    how: dict[str, Any] = HOW | {"folder": tmp_path}
    first = study(methods, DATA, grid={"lr": [0.1]}, **how)
    again = study(methods, DATA, grid={"lr": [0.1]}, **how)
    assert same(first, again)
    longer = study(
        {**methods, "fixed": fedavg(0.1)}, DATA, grid={"lr": [0.1, 0.2]}, **dict(how, seeds=[3, 5, 6])
    )
    assert started == [4, 3 * 5 - 4]
    assert [each for each in longer.outcomes if str(each.setting) == "fedavg(lr=0.1)"][1].seed == 5
    assert not list(tmp_path.glob("runs/*/checkpoint"))


def test_a_study_that_was_interrupted_goes_on(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle of its runs, after some have ended: to the numbers of one that was not stopped."""
    methods = {"fedavg": fedavg, "fedprox": fedprox}
    how: dict[str, Any] = HOW | {"rounds": 6}
    whole = study(methods, DATA, grid={"lr": [0.05, 0.1]}, **how)
    iterate: Callable[..., Any] = _columns.iterate_many

    def stopped(jobs: list[Job], wanted: list[int]) -> Any:
        for number, found in enumerate(iterate(jobs, wanted)):
            if number == 19:
                raise KeyboardInterrupt
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(_columns, "iterate_many", stopped)
        with pytest.raises(KeyboardInterrupt):
            study(methods, DATA, grid={"lr": [0.05, 0.1]}, folder=tmp_path, checkpoint=0.0, **how)
    kept = len(list(tmp_path.glob("runs/*/result.json")))
    begun = len(list(tmp_path.glob("runs/*/checkpoint/[0-9]*")))
    assert 0 < kept < 8 and begun
    found = study(methods, DATA, grid={"lr": [0.05, 0.1]}, folder=tmp_path, **how)
    assert started[-1] == 8 - kept
    for a, b in zip(whole.outcomes, found.outcomes, strict=True):
        assert a.view is not None and b.view is not None
        for name in a.view.history:
            np.testing.assert_allclose(a.view.history[name], b.view.history[name], atol=1e-5)


def test_other_runs_of_the_same_name_and_damaged_results_are_refused(tmp_path: Path) -> None:
    how: dict[str, Any] = HOW | {"folder": tmp_path}
    study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, **how)
    with pytest.raises(eh.EvenhandError, match=r"another run.*method"):
        study({"mine": fedprox}, DATA, grid={"lr": [0.1]}, **how)
    with pytest.raises(eh.EvenhandError, match=r"another run.*rounds"):
        study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, **dict(how, rounds=4))
    with pytest.raises(eh.EvenhandError, match=r"another run.*data"):
        study({"mine": fedavg}, WHOLE, grid={"lr": [0.1]}, **how)
    path = next(tmp_path.glob("runs/*/result.json"))
    text = path.read_text()
    for damage in (text[:-30], "[]", json.dumps({"identity": {}}), text.replace('"clients"', '"clents"')):
        path.write_text(damage)
        with pytest.raises(eh.EvenhandError, match=r"is damaged .* delete it"):
            study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, **how)


def test_whole_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    how = {**HOW, "rounds": np.int64(2), "eval_every": np.int32(2), "cohort": np.int16(4)}
    study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, folder=tmp_path, **how)
    assert study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, folder=tmp_path, **HOW).table()


def test_a_folder_of_something_else_is_refused_before_any_training(tmp_path: Path) -> None:
    """Also if no run of the two studies has the same name; with other methods, on the same data, the folder goes on."""
    how: dict[str, Any] = HOW | {"folder": tmp_path}
    study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, **how)
    before = (tmp_path / "study.json").read_text()
    for data, rounds, name in ((WHOLE, HOW["rounds"], "examples"), (DATA, 7, "rounds")):
        with pytest.raises(eh.EvenhandError, match=rf"study\.json is of another study \(its {name} is"):
            study({"other": fedprox}, data, grid={"lr": [0.1]}, **dict(how, rounds=rounds))
    assert (tmp_path / "study.json").read_text() == before and len(list(tmp_path.glob("runs/*"))) == 2
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(eh.EvenhandError, match="is the folder of a run: give another one"):
        study({"other": fedprox}, DATA, grid={"lr": [0.1]}, **how)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(eh.EvenhandError, match=r"could not be written|No checkpoint can be kept"):
        study({"mine": fedavg}, DATA, grid={"lr": [0.1]}, folder=tmp_path, **HOW)


def test_a_study_is_read_back_from_its_folder(tmp_path: Path, small: Study) -> None:
    how: dict[str, Any] = HOW | {"folder": tmp_path, "select": Rule("train", "worst10", 0.1, "variance")}
    made = study(METHODS, DATA, grid=GRID, baseline="fixed", **how)
    found = eh.studies.load(tmp_path)
    assert [each[:4] for each in found.outcomes] == [each[:4] for each in made.outcomes]
    assert (found.rule, found.baseline, found.metric) == (made.rule, "fixed", "accuracy")
    assert found.export(tmp_path / "a.csv").read_text() == made.export(tmp_path / "b.csv").read_text()
    next(tmp_path.glob("runs/*/result.json")).unlink()
    with pytest.raises(eh.EvenhandError, match="lacks 1 of its 14 results"):
        eh.studies.load(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(eh.EvenhandError, match="is damaged"):
        eh.studies.load(tmp_path)
    with pytest.raises(eh.EvenhandError, match=r"no study\.json"):
        eh.studies.load(tmp_path / "runs")


# --- successive halving ----------------------------------------------------------------------------------------------

MANY: dict[str, Any] = {"grid": {"lr": [0.003, 0.01, 0.1, 0.3]}, **HOW, "rounds": 8, "eval_every": 2}
HALVING = eh.studies.Halving(1, 0.4)


def test_halving_stops_the_settings_that_were_worst_so_far(tmp_path: Path, started: list[int]) -> None:
    """After 2 rounds (``first`` raised to ``eval_every``) two of each four go on, after 4 one of them to the end.

    By hand: the worst by the mean validation accuracy of all runs without halving, at those rounds.
    """
    methods = {"fedavg": fedavg, "fedprox": fedprox}
    whole = study(methods, DATA, **MANY)
    found = study(methods, DATA, halving=HALVING, folder=tmp_path, **MANY)
    assert started == [16, 16, 8, 4]
    for method in methods:
        alive = list(dict.fromkeys(o.setting for o in whole.outcomes if o.setting.method == method))
        for rounds, keep in ((2, 2), (4, 1)):
            at = 1 + rounds // 2 - 1
            scores = {
                each: np.mean([o.view.history["valid_accuracy_mean"][at] for o in whole.outcomes if o.setting == each])  # type: ignore[union-attr]
                for each in alive
            }  # fmt: skip
            best = sorted(alive, key=lambda each: -scores[each])[:keep]
            ended = [o for o in found.outcomes if o.setting in alive and o.setting not in best]
            assert {(o.status, o.view.info["rounds"]) for o in ended} == {("stopped", rounds)}  # type: ignore[union-attr]
            alive = best
        assert found.best(method) == alive[0]
    for a, b in zip(whole.outcomes, found.outcomes, strict=True):
        if b.status == "done":
            np.testing.assert_allclose(a.view.history["test_loss"], b.view.history["test_loss"], atol=1e-5)  # type: ignore[union-attr]
    assert "were stopped early" in found.remarks[-1]
    again = study(methods, DATA, halving=HALVING, folder=tmp_path, **MANY)
    assert started[4:] == []
    assert [each[:4] for each in again.outcomes] == [each[:4] for each in found.outcomes]
    assert [each[:4] for each in eh.studies.load(tmp_path).outcomes] == [each[:4] for each in found.outcomes]
    further = study(methods, DATA, folder=tmp_path, **MANY)
    assert started[-1] == 12 and {each.status for each in further.outcomes} == {"done"}


def test_halving_needs_no_folder_and_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    found = study({"fedavg": fedavg}, DATA, halving=HALVING, progress=True, **MANY)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert sorted(each.status for each in found.outcomes) == ["done"] * 2 + ["stopped"] * 6
    assert "8/8" in shown and "a minute" in shown
    value = 100 * np.mean(
        [each.clients["valid"]["accuracy"][DATA.valid.sizes > 0].mean() for each in found.views("fedavg")]
    )
    assert f"best so far {found.best()}: valid mean {value:.1f}" in shown


@pytest.mark.parametrize(
    ("halving", "rounds", "expected"),
    [((1, 1 / 3), 27, [2, 4, 10]), ((2, 0.5), 8, [2, 4]), ((9, 0.5), 8, []), ((5, 0.9), 8, [6])],
)
def test_the_rungs_are_evaluated_rounds(halving: Any, rounds: int, expected: list[int]) -> None:
    """Factors of 1 / keep from ``first`` on, each raised to a multiple of two, and none that is the last round."""
    assert _selection.rungs(eh.studies.Halving(*halving), rounds, 2) == expected
    assert _selection.rungs(None, rounds, 2) == []
    assert _selection.rungs(eh.studies.Halving(1, 1 / 3), 82, 1) == [1, 3, 9, 27, 81]
    # 21 / 0.7 is a little above 30.
    assert _selection.rungs(eh.studies.Halving(21, 0.7), 44, 1) == [21, 30, 43]


@pytest.mark.parametrize("halving", [(0, 0.5), (1, 0.0), (1, 1.0), (1.5, 0.5)])
def test_halving_refuses_what_is_no_share(halving: Any) -> None:
    with pytest.raises(eh.EvenhandError, match=r"first|share between 0 and 1"):
        study({"fedavg": fedavg}, DATA, halving=eh.studies.Halving(*halving), **MANY)


# --- what a reader must know -----------------------------------------------------------------------------------------


def test_without_a_choice_the_methods_are_compared_all_the_same() -> None:
    """One setting each needs no validation examples, and gets none; which method is best cannot be said then."""
    methods = {"fedavg": fedavg(0.1), "fedprox": fedprox(0.1)}
    found = study(methods, WHOLE, **HOW)
    assert [str(line.setting) for line in found.table()] == ["fedavg()", "fedprox()"]
    assert all(len(line.values["mean"]) == 2 for line in found.table())
    assert not any("validation" in remark for remark in found.remarks)
    with pytest.raises(eh.EvenhandError, match="no examples to compare the methods on"):
        found.best()


def test_remarks_tell_what_the_intervals_and_the_choice_rest_on(small: Study) -> None:
    remarks = " ".join(small.remarks)
    assert "The methods were not tuned equally: settings tried were fedavg 2, fedprox 4, fixed 1." in remarks
    assert "Every seed has the same training and test examples" in remarks
    typical = np.median(DATA.valid.sizes[DATA.valid.sizes > 0])
    assert f"Settings were chosen on {typical:g} validation examples per client" in remarks
    assert "worst tenth" not in remarks and "One seed" not in remarks
    equal: dict[str, Any] = {"fedavg": fedavg, "other": fedavg}
    how: dict[str, Any] = HOW | {"grid": {"lr": [0.01, 0.1]}, "seeds": 1, "select": ("valid", "worst10")}
    remarks = " ".join(study(equal, lambda seed: DATA, **how).remarks)
    assert "One seed each proves little" in remarks and "; worst tenth: 1 of them)" in remarks
    assert "tuned equally" not in remarks and "Every seed has the same" not in remarks


def test_the_page_tells_how_small_p_can_be(small: Study, tmp_path: Path) -> None:
    """With two seeds and two comparisons, p is 1 at least; with many seeds no seeds are asked for."""
    page = re.sub(r"\s+", " ", small.report(tmp_path / "page.html").read_text())
    assert (
        "with 2 seeds it is never below 1.0, so no difference can be significant: use at least 7 seeds."
        in page
    )
    assert "bold: the interval excludes 0" not in page
    runs = {
        method: [view for seed in range(8) for view in [_seeded(small, method, seed)]]
        for method in ("fedavg", "fedprox")
    }
    page = re.sub(r"\s+", " ", difference_table(compare(runs)))
    assert "with 8 seeds it is never below 0.0078. Clients" in page


def _seeded(of: Study, method: str, seed: int) -> RunView:
    first = of.views(method)[0]
    return first._replace(info={**first.info, "seed": seed}, config={**first.config, "seed": seed})
