"""Studies that tune on other seeds than they report: ``study(tuning_seeds=...)``."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.studies import Halving, Outcome, Rule, Study, _columns, load, study

MODEL = eh.testing.toy_model()
DATA = eh.data.hold_out(eh.testing.toy_data(), 0.4)
GRID: dict[str, list[Any]] = {"lr": [0.001, 0.1]}
HOW: dict[str, Any] = {"rounds": 4, "eval_every": 2, "grid": GRID}


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> eh.Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))


@cache
def fedprox(lr: float) -> eh.Algorithm:
    return eh.algorithms.fedprox(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4), mu=0.1)


METHODS = {"fedavg": fedavg, "fedprox": fedprox}


def ran(found: Study) -> list[tuple[str, int]]:
    return [(str(each.setting), each.seed) for each in found.outcomes]


@pytest.fixture(scope="module")
def tuned() -> Study:
    return study(METHODS, DATA, seeds=[0, 1, 2], tuning_seeds=[7, 5], **HOW)


def test_every_setting_tunes_and_only_the_chosen_ones_run_again(tuned: Study) -> None:
    every = [f"{name}(lr={lr})" for name in METHODS for lr in GRID["lr"]]
    tuning = [(setting, seed) for setting in every for seed in (7, 5)]
    reported = [(f"{name}(lr=0.1)", seed) for name in METHODS for seed in (0, 1, 2)]
    assert ran(tuned) == tuning + reported
    assert tuned.tuning_seeds == (7, 5)


def test_what_is_reported_is_that_of_a_study_of_the_chosen_settings(tuned: Study) -> None:
    alone = study(METHODS, DATA, seeds=3, **{**HOW, "grid": {"lr": [0.1]}})
    assert [line.method for line in tuned.table()] == ["fedavg", "fedprox"]
    for line, other in zip(tuned.table(), alone.table(), strict=True):
        for name, values in line.values.items():
            assert values.shape == (3,)
            np.testing.assert_allclose(values, other.values[name], rtol=1e-5, atol=1e-7)
    assert [run.config["seed"] for run in tuned.views("fedprox")] == [0, 1, 2]
    for line, whole in zip(tuned.at(1).table(), tuned.table(), strict=True):
        assert line.setting == whole.setting and line.values["mean"] == whole.values["mean"][1:2]


def test_figures_of_the_chosen_settings_have_no_seed_for_tuning(
    tuned: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(eh.report.figures, "learning_curve", lambda runs, **_: drawn.append(runs))
    tuned.figures.learning_curve()
    (runs,) = drawn
    assert {name: [run.config["seed"] for run in of] for name, of in runs.items()} == {
        "fedavg": [0, 1, 2],
        "fedprox": [0, 1, 2],
    }


def _scored(found: Study, wins: Callable[[Outcome], bool]) -> Study:
    """The study as if the runs for which ``wins`` had been right about every validation example, others about none."""
    outcomes: list[Outcome] = []
    for each in found.outcomes:
        assert each.view is not None
        right = np.full_like(each.view.clients["valid"]["accuracy"], float(wins(each)))
        clients = {**each.view.clients, "valid": {**each.view.clients["valid"], "accuracy": right}}
        outcomes.append(each._replace(view=each.view._replace(clients=clients)))
    return Study(tuple(outcomes), found.rule, found.baseline, found.metric, tuning_seeds=found.tuning_seeds)


def test_the_reported_seeds_have_no_say_in_the_choice() -> None:
    plain = study({"fedavg": fedavg}, DATA, seeds=[0, 1, 2, 7, 5], **HOW)

    def wins(each: Outcome) -> bool:  # 0.001 at the seeds for tuning, 0.1 at the three that are reported
        return (each.seed in (7, 5)) == (each.setting.numbers["lr"] == 0.001)

    by_all = _scored(plain, wins)
    assert by_all.best("fedavg").numbers["lr"] == 0.1
    by_some = Study(by_all.outcomes, Rule(), "fedavg", "accuracy", tuning_seeds=(7, 5))
    assert by_some.best("fedavg").numbers["lr"] == 0.001 and by_some.best().numbers["lr"] == 0.001
    (line,) = by_some.table()
    assert line.setting is not None and line.setting.numbers["lr"] == 0.001
    mean = {
        each.seed: each.view.clients["test"]["accuracy"].mean()
        for each in by_all.outcomes
        if each.view is not None and each.setting == line.setting
    }
    np.testing.assert_allclose(line.values["mean"], [mean[seed] for seed in (0, 1, 2)], atol=1e-12)


def test_other_settings_are_chosen_where_the_seeds_for_tuning_ask_for_them() -> None:
    """Through ``study`` itself: data of the seeds for tuning reward the step size that is worse at those reported."""

    def source(seed: int) -> eh.data.FederatedDataset:
        if seed < 3:
            return DATA
        # All training labels are 0, all validation labels 1: what learns most predicts worst.
        flat = replace(DATA, train=DATA.train._replace(x=0 * DATA.train.x, y=0 * DATA.train.y))
        return replace(flat, valid=DATA.valid._replace(x=0 * DATA.valid.x, y=0 * DATA.valid.y + 1))

    select = Rule("valid", "mean", metric="loss")
    common: dict[str, Any] = {**HOW, "select": select, "grid": {"lr": [1e-6, 0.1]}}
    by_all = study({"fedavg": fedavg}, source, seeds=3, **common)
    tuned = study({"fedavg": fedavg}, source, seeds=3, tuning_seeds=2, **common)
    assert by_all.best("fedavg").numbers["lr"] == 0.1 and tuned.best("fedavg").numbers["lr"] == 1e-6
    assert ran(tuned)[-3:] == [("fedavg(lr=1e-06)", seed) for seed in range(3)]
    assert tuned.tuning_seeds == (3, 4)


def test_what_was_tried_is_that_of_the_seeds_for_tuning(tuned: Study) -> None:
    assert [each.runs for each in tuned.tried] == [2, 2, 2, 2]
    for each in tuned.tried:
        assert [view.config["seed"] for view in each.views] == [7, 5]
    assert [str(each.setting) for each in tuned.tried if each.chosen] == ["fedavg(lr=0.1)", "fedprox(lr=0.1)"]


def test_the_page_the_tables_and_the_frame_tell_which_seeds_chose(tuned: Study, tmp_path: Path) -> None:
    note = "Settings were chosen with seeds 7 and 5 alone; the methods are compared with seeds 0, 1 and 2"
    assert any(remark.startswith(note) for remark in tuned.remarks)
    assert tuned.about["seeds"] == "0, 1, 2" and tuned.about["seeds for tuning"] == "7, 5"
    page = tuned.report(tmp_path / "page.html").read_text("utf-8")
    assert note in page and "3 seeds" in page and "at 2 other seeds" in page
    assert "means over the seeds for tuning" in page and "At the seeds for tuning." in page
    frame = tuned.frame()
    apart = {
        int(seed): bool(is_tuning) for seed, is_tuning in zip(frame["seed"], frame["tuning"], strict=True)
    }
    assert apart == {0: False, 1: False, 2: False, 5: True, 7: True}
    plain = study({"fedavg": fedavg}, DATA, seeds=1, **HOW)
    text = plain.report(tmp_path / "plain.html").read_text("utf-8")
    assert "tuning" not in plain.frame() and "for tuning" not in text and "other seed" not in text


@pytest.mark.parametrize(
    ("seeds", "tuning", "sentence"),
    [
        (3, [2, 5], "tuning_seeds=2,5: seed 2 is one of seeds, which are reported: tune on others."),
        ([4, 9], [9], "tuning_seeds=9: seed 9 is one of seeds"),
        (3, [], "tuning_seeds=: give at least one seed"),
        (3, [5, 5], "tuning_seeds=5,5: give at least one seed, and none of them twice"),
        (3, 0, "tuning_seeds"),
    ],
)
def test_seeds_that_are_reported_cannot_tune(seeds: Any, tuning: Any, sentence: str) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        study(METHODS, DATA, seeds=seeds, tuning_seeds=tuning, **HOW)


def test_without_a_choice_there_is_nothing_to_tune() -> None:
    with pytest.raises(eh.EvenhandError, match="tuning_seeds=6: each method has a single setting"):
        study(METHODS, DATA, tuning_seeds=1, **{**HOW, "grid": {"lr": [0.1]}})


@pytest.mark.parametrize(("seeds", "expected"), [(2, (2, 3)), ([8, 3], (9, 10))])
def test_a_number_counts_on_from_the_last_seed(seeds: Any, expected: tuple[int, ...]) -> None:
    found = study({"fedavg": fedavg}, DATA, seeds=seeds, tuning_seeds=2, **HOW)
    assert found.tuning_seeds == expected


def test_warnings_point_at_the_call_of_study_however_deep_data_are_made() -> None:
    """Data of the reported seeds, which alone lack validation examples here, are made in nested comprehensions."""

    def draw(seed: int) -> eh.data.FederatedDataset:
        return DATA if seed == 7 else eh.testing.toy_data()

    with pytest.warns(eh.errors.EvenhandWarning, match="no validation examples") as caught:
        study(METHODS, draw, seeds=2, tuning_seeds=[7], **HOW)
    (warning,) = caught
    assert warning.filename == __file__
    assert linecache.getline(__file__, warning.lineno).strip().startswith("study(METHODS, draw")


def test_each_condition_has_its_own_choice_and_reported_runs() -> None:
    attack = {"none": None, "flip": eh.attacks.sign_flip(0.2)}
    found = study({"fedavg": fedavg}, DATA, seeds=2, tuning_seeds=1, attack=attack, **HOW)
    for name in attack:
        part = found.under({"attack": name})
        (line,) = part.table()
        assert line.setting == part.best("fedavg") and line.values["mean"].shape == (2,)
        assert [each.seed for each in part.outcomes] == [2, 2, 0, 1]


def test_halving_stops_settings_while_tuning_only(tmp_path: Path) -> None:
    grid = {"lr": [1e-5, 1e-4, 0.1]}
    found = study(
        {"fedavg": fedavg}, DATA, seeds=2, tuning_seeds=2, halving=Halving(2, 1 / 3), **{**HOW, "grid": grid}
    )
    status = {(each.setting.numbers["lr"], each.seed): each.status for each in found.outcomes}
    best = found.best("fedavg").numbers["lr"]
    others = [lr for lr in grid["lr"] if lr != best]
    assert status == {
        **{(best, seed): "done" for seed in (0, 1, 2, 3)},
        **{(lr, seed): "stopped" for lr in others for seed in (2, 3)},
    }
    (line,) = found.table()
    assert line.values["mean"].shape == (2,)


def test_where_no_setting_is_sound_nothing_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(jobs: list[Any], wanted: list[int]) -> Iterator[Any]:
        return ((place, RuntimeError("It failed.")) for place in wanted)

    monkeypatch.setattr(_columns, "iterate_many", failed)
    found = study({"fedavg": fedavg}, DATA, seeds=2, tuning_seeds=1, **HOW)
    assert {each.seed for each in found.outcomes} == {2}
    (line,) = found.table()
    assert line.setting is None
    assert "nothing to compare" in found.report(tmp_path / "page.html").read_text("utf-8")


def _stopping(after: int, iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    seen = iter(range(10**6))

    def stopped(*args: Any) -> Iterator[Any]:
        for result in iterate(*args):
            if next(seen) >= after:
                raise KeyboardInterrupt
            yield result

    return stopped


@pytest.mark.parametrize("after", [3, 15])
def test_a_study_that_was_interrupted_goes_on(
    after: int, tuned: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The four runs that tune have 12 evaluations: after 3 it tunes, after 15 it makes the runs that are reported."""
    whole = study(METHODS, DATA, seeds=2, tuning_seeds=[7], folder=tmp_path / "whole", **HOW)
    with monkeypatch.context() as patch:
        patch.setattr(_columns, "iterate_many", _stopping(after, _columns.iterate_many))
        with pytest.raises(KeyboardInterrupt):
            study(METHODS, DATA, seeds=2, tuning_seeds=[7], folder=tmp_path / "cut", checkpoint=0, **HOW)
    assert not (tmp_path / "cut" / "study.json").exists()
    assert len(list((tmp_path / "cut" / "runs").glob("*/result.json"))) // 4 == (after > 12)
    again = study(METHODS, DATA, seeds=2, tuning_seeds=[7], folder=tmp_path / "cut", **HOW)
    for found in (again, load(tmp_path / "cut"), load(tmp_path / "whole")):
        assert ran(found) == ran(whole) and found.tuning_seeds == (7,)
        for line, other in zip(found.table(), whole.table(), strict=True):
            assert line.setting == other.setting
            np.testing.assert_array_equal(line.values["mean"], other.values["mean"])
        assert found.remarks == whole.remarks


def test_runs_that_have_ended_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = study(METHODS, DATA, seeds=2, tuning_seeds=[7], folder=tmp_path, **HOW)
    monkeypatch.setattr(_columns, "iterate_many", None)
    assert ran(study(METHODS, DATA, seeds=2, tuning_seeds=[7], folder=tmp_path, **HOW)) == ran(first)
