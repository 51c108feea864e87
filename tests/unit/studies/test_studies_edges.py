"""Studies at their edges: what a test row may not change, names that meet, full disks, breaks of single lines."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.errors import EvenhandError, StorageError
from evenhand.evaluation import Finding, holm, paired_difference
from evenhand.evaluation.metrics import from_function
from evenhand.report import RunView, compare, differences, statistics, undefined_sentence
from evenhand.report.tables import difference_text
from evenhand.studies import Halving, Outcome, Rule, Setting, Study, _columns, study
from evenhand.studies._selection import choose, direction, edge_remarks, rungs, survivors
from evenhand.studies._store import Store
from evenhand.studies._tables import alike
from evenhand.types import Algorithm

MODEL = eh.testing.toy_model()
DATA = eh.data.hold_out(eh.testing.toy_data(), 0.4)
HOW: dict[str, Any] = {"rounds": 2, "seeds": 2, "eval_every": 2}


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))


def run(accuracies: list[float], *, seed: int = 0, metric: str = "accuracy", **other: list[float]) -> RunView:
    """A run with these values on validation examples, and others by split; two examples a client."""
    splits = {"train": accuracies, "valid": accuracies, "test": accuracies} | other
    ids = tuple(f"c{i}" for i in range(len(accuracies)))
    return RunView(
        "run",
        {"round": np.array([0])},
        dict.fromkeys(splits, np.full(len(ids), 2)),
        ids,
        {split: {metric: np.array(values)} for split, values in splits.items()},
        {"seed": seed},
        {"seed": seed},
    )


def outcome(setting: Setting, seed: int, accuracies: list[float], status: Any = "done") -> Outcome:
    return Outcome(setting, seed, status, "", run(accuracies, seed=seed))


# --- choices ---------------------------------------------------------------------------------------------------------


def test_a_test_example_cannot_keep_a_setting_from_being_chosen() -> None:
    """Not even by a loss that is no number; a training or a validation example can."""
    better, worse = Setting("f", {"lr": 1.0}), Setting("f", {"lr": 0.1})
    for split, chosen in (("test", better), ("valid", worse), ("train", worse)):
        missing: dict[str, Any] = {split: [0.9, np.nan]}
        of = {worse: [run([0.5, 0.5])], better: [run([0.9, 0.9], **missing)]}
        found = choose(of, Rule(), "accuracy")
        assert found is not None and found.setting == chosen, split
    outcomes = [
        outcome(Setting("base", {}), 0, [0.5, 0.5]),
        Outcome(Setting("f", {}), 0, "diverged", "", run([0.9, 0.9], test=[0.9, np.nan])),
    ]
    base, other = Study(tuple(outcomes), Rule(), "base", "accuracy").table("test")
    assert other.setting is not None and not other.differences and not base.differences


def _grid_of(factor: float, **how: Any) -> Study:
    """Step sizes .0001 and 50 on two classes apart; the test features are multiplied by the factor."""
    y = np.arange(48) % 2
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (48, 2))
    x = ((2 * y - 1)[:, None] * [1.0, 0.5] + noise).astype(np.float32)
    data = eh.data.from_arrays(x, y, np.arange(48) // 12, test_fraction=0.25, valid_fraction=0.25)
    test = data.test._replace(x=data.test.x * np.float32(factor))
    data = eh.data.FederatedDataset(data.train, data.valid, test, data.client_ids)
    model = eh.models.softmax_regression(features=2, classes=2)

    def method(lr: float) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(model, lr, epochs=1, batch_size=4))

    grid, rule = {"lr": [0.0001, 50.0]}, Rule(metric="loss")
    return study({"f": method}, data, grid=grid, select=rule, **dict(HOW, eval_every=1) | how)


@pytest.mark.parametrize("how", [{}, {"halving": Halving(1, keep=0.5)}], ids=["all rounds", "halving"])
@pytest.mark.parametrize("factor", [1.0, 3e37])
def test_test_features_that_overflow_keep_no_setting_from_being_chosen(
    factor: float, how: dict[str, Any]
) -> None:
    """Times 3e37 the large step size's test loss is not finite, which is reported; it is chosen all the same."""
    found = _grid_of(factor, **how)
    assert str(found.best("f")) == "f(lr=50)"
    kinds = {each.split for view in found.views("f") for each in view.findings if each.kind == "diverged"}
    best = [each for each in found.outcomes if str(each.setting) == "f(lr=50)"]
    assert [each.status for each in best] == ["done", "done"]
    spoken = [remark for remark in found.remarks if "runs have test numbers that are not finite" in remark]
    assert np.isfinite(next(each for each in found.tried if each.chosen).mean("valid_mean"))
    if factor > 1:
        assert kinds == {"test"} and spoken and all("the test loss is not" in each.reason for each in best)
        assert f"2 of {len(found.outcomes)} runs have test numbers" in spoken[0]
    else:
        assert kinds == set() and not spoken and not any(each.reason for each in best)


def test_validation_examples_that_overflow_do_keep_a_setting_from_being_chosen() -> None:
    """By the train split only the training examples do, also among the settings that halving lets live."""
    lost = run([0.9, 0.9], valid=[0.9, np.nan])._replace(findings=[Finding("diverged", "Lost.", "valid")])
    better, worse = Setting("f", {"lr": 1.0}), Setting("f", {"lr": 0.1})
    outcomes = [
        Outcome(better, 0, "diverged", "Lost.", lost),
        Outcome(worse, 0, "done", "", run([0.5, 0.5])),
    ]
    for split, best in (("valid", worse), ("train", better)):
        assert Study(tuple(outcomes), Rule(split), "f", "accuracy").best("f") == best
        assert survivors(outcomes, Rule(split), 0.5) == {best}


def test_clients_without_validation_examples_are_counted_among_the_remarks() -> None:
    """Where settings are chosen by them; with training examples, or with nothing to choose, they do not matter."""

    def made(lr: float, seed: int) -> Outcome:
        view = run([0.5, 0.6, 0.7], seed=seed)
        sizes = {"train": np.array([2, 2, 2]), "valid": np.array([2, 0, 0]), "test": np.array([2, 2, 2])}
        return Outcome(Setting("f", {"lr": lr}), seed, "done", "", view._replace(sizes=sizes))

    sentence = (
        "2 of 3 clients have no validation examples and are in none of the numbers that choose settings."
    )
    outcomes = tuple(made(lr, seed) for lr in (0.1, 1.0) for seed in (0, 1))
    found = Study(outcomes, Rule(), "f", "accuracy")
    assert [remark.startswith(sentence) for remark in found.remarks].count(True) == 1
    assert any("--select train:mean" in remark for remark in found.remarks)
    assert not any("validation" in each for each in Study(outcomes, Rule("train"), "f", "accuracy").remarks)
    assert not any("validation" in each for each in Study(outcomes[:2], Rule(), "f", "accuracy").remarks)


def test_a_finding_about_the_data_is_a_remark_once_for_all_runs() -> None:
    """With how many runs have it, where not all of them have the same sentence."""

    def remarks(*sentences: str) -> list[str]:
        outcomes = [outcome(Setting("f", {}), seed, [0.5, 0.5]) for seed in range(3)]
        for i, text in enumerate(sentences):
            view = outcomes[i].view
            assert view is not None
            finding = Finding("unmeasured", text, "test")
            outcomes[i] = outcomes[i]._replace(view=view._replace(findings=[finding]))
        found = Study(tuple(outcomes), Rule(), "f", "accuracy").remarks
        return [each for each in found if "clients" in each]

    assert remarks("2 clients.", "2 clients.", "2 clients.") == ["2 clients."]
    some = "2 clients. (In 2 of 3 runs; the numbers are those of the first.)"
    assert remarks("2 clients.", "1 clients.") == [some]
    assert remarks("2 clients.", "1 clients.", "3 clients.") == [some.replace("2 of", "all")]


def test_which_way_a_statistic_is_better() -> None:
    for statistic in ("error_mean", "variance", "std", "angle", "kl"):
        assert direction(statistic, "accuracy") == -1, statistic
    for statistic in ("entropy", "jain", "worst10", "mean"):
        assert direction(statistic, "accuracy") == 1, statistic
    assert direction("mean", "loss") == -1 and direction("entropy", "loss") == direction("jain", "loss") == 1


def test_ties_are_ties_up_to_rounding_and_only_what_is_not_tied_makes_an_edge() -> None:
    """Of the equal best ones the first is chosen; the others do not make it the edge of a grid."""

    def chosen(values: dict[float, float]) -> tuple[float, str]:
        of = {Setting("f", {"lr": lr}): [run([value, value])] for lr, value in values.items()}
        found = choose(of, Rule(), "accuracy")
        assert found is not None
        return found.setting.numbers["lr"], " ".join([*found.remarks, *edge_remarks([found])])

    lr, remarks = chosen({0.1: 0.7, 0.2: 0.7 * (1 + 1e-14), 0.3: 0.1})
    assert lr == 0.1 and "2 settings are equally good" in remarks and "edge" in remarks
    lr, remarks = chosen({0.1: 0.7, 0.2: 0.7})
    assert "equally good" in remarks and "edge" not in remarks
    for best, low, high in ((0.1, 0.1, 0.3), (0.3, 0.1, 0.3)):
        assert (
            f"A best value is at the edge of its grid: f, lr {best} (of {low} to {high}). Widen the grid."
            in chosen({lr: 0.9 if lr == best else 0.2 for lr in (0.1, 0.2, 0.3)})[1]
        )
    assert "edge" not in chosen({0.1: 0.2, 0.2: 0.9, 0.3: 0.1})[1]
    assert "edge" not in chosen({0.1: 0.2, 0.3: 0.9})[1]  # a grid of two values has no inside
    for equal, entry in (
        ((0.5, 2.0, 5.0), "lr 0.5 (of 0.02 to 5, as good up to 5)"),
        ((0.5, 0.1, 0.02), "lr 0.5 (of 0.02 to 5, as good down to 0.02)"),
        ((0.02, 0.1, 0.5), "lr 0.02 (of 0.02 to 5)"),
        ((5.0, 0.02), "lr 5 (of 0.02 to 5)"),
    ):
        grid = (*equal, *(lr for lr in (0.02, 0.1, 0.5, 2.0, 5.0) if lr not in equal))
        assert f"its grid: f, {entry}. Widen" in chosen({lr: 0.9 if lr in equal else 0.2 for lr in grid})[1]
    assert (
        "edge" not in chosen({lr: 0.9 if lr in (0.1, 2.0) else 0.2 for lr in (0.02, 0.1, 0.5, 2.0, 5.0)})[1]
    )


def test_settings_that_tie_below_the_goal_are_all_the_closest() -> None:
    """The more even of two whose means differ by their rounding, though a third method is out of reach."""
    accuracies = {0.1: [0.3, 0.3], 0.2: [0.6 * (1 + 1e-14), 0.0], 0.3: [0.1, 0.1]}
    candidates = {Setting("f", {"lr": lr}): [run(values)] for lr, values in accuracies.items()}
    choice = choose(candidates, Rule(then="variance", near="best"), "accuracy", [run([0.9, 0.9])])
    assert choice is not None and str(choice.setting) == "f(lr=0.1)"
    assert "no setting is within the tolerance of best" in choice.remarks[-1]


def test_a_hyper_parameter_without_effect_has_no_edge() -> None:
    """Beside another one, whose best value is at the edge."""

    def edges(ks: tuple[int, ...]) -> tuple[str, ...]:
        settings = [Setting("f", {"lr": lr, "k": k}) for lr in (0.1, 0.2, 0.3) for k in (1, 2, 3)]
        best = [
            setting for setting in settings if setting.numbers["lr"] == 0.3 and setting.numbers["k"] in ks
        ]
        found = choose({s: [run([0.9 if s in best else 0.2] * 2)] for s in settings}, Rule(), "accuracy")
        assert found is not None
        return found.edges

    assert edges((1, 2, 3)) == ("lr 0.3 (of 0.1 to 0.3)",)
    assert edges((1, 2)) == edges((1, 3)) == ("lr 0.3 (of 0.1 to 0.3)", "k 1 (of 1 to 3)")
    assert edges((2, 3)) == ("lr 0.3 (of 0.1 to 0.3)",)


def test_remarks_on_a_choice_name_its_condition() -> None:
    case = {"attack": "flip", "data": "x"}
    of = {Setting("f", {"lr": lr}, case): [run([lr, lr])] for lr in (0.1, 0.2, 0.3)}

    def remarks(of: dict[Setting, list[RunView]]) -> tuple[str, ...]:
        found = choose(of, Rule(), "accuracy")
        assert found is not None
        return (*found.remarks, *edge_remarks([found]))

    (edge,) = remarks(of)
    assert edge == (
        "A best value is at the edge of its grid: f, lr 0.3 (of 0.1 to 0.3) under attack flip, data x. Widen the grid."
    )
    (tie, *_) = remarks({key: [run([0.5, 0.5])] for key in of})
    assert tie.startswith("f under attack flip, data x: 3 settings are equally good")


def test_conditions_of_several_kinds_are_named_in_part_and_add_no_settings() -> None:
    """What has one value need not be named; and under two conditions a method has as many settings as under one."""
    outcomes = [
        Outcome(
            Setting(method, {"lr": lr}, {"attack": attack, "systems": "s"}), 0, "done", "", run([0.5] * 2)
        )
        for method, rates in (("f", (0.1,)), ("g", (0.1, 0.2)))
        for attack in ("none", "flip")
        for lr in rates
    ]
    study = Study(tuple(outcomes), Rule(), "f", "accuracy")
    assert study.under({"attack": "flip"}).cases == [{"attack": "flip", "systems": "s"}]
    with pytest.raises(EvenhandError, match="There is no condition"):
        study.under({"attack": "flip", "systems": "t"})
    for case in ({"systems": "s"}, {}):
        with pytest.raises(EvenhandError, match="is several conditions: choose one of"):
            study.under(case)
    assert study.facts[:4] == ["3 settings", "2 conditions", "1 seed", "6 runs"]
    assert "settings tried were f 1, g 2." in " ".join(study.remarks)
    assert "3 settings" in repr(study)


def test_all_choices_at_the_edge_of_a_grid_are_one_remark() -> None:
    """One value under two conditions is one entry; the other method has another."""
    outcomes = [
        Outcome(Setting(method, {"lr": lr}, {"attack": attack}), 0, "done", "", run([sign * lr + 0.5] * 2))
        for method, sign in (("f", 1), ("g", -1), ("h", 0))
        for attack in ("none", "flip")
        for lr in (0.1, 0.2, 0.3)
    ]
    found = [remark for remark in Study(tuple(outcomes), Rule(), "f", "accuracy").remarks if "edge" in remark]
    assert found == [
        "Some best values are at the edges of their grids: f, lr 0.3 (of 0.1 to 0.3) under attack none and attack "
        "flip; g, lr 0.1 (of 0.1 to 0.3) under attack none and attack flip. Widen the grids."
    ]


def test_the_metric_is_one_that_all_runs_have() -> None:
    both = [run([0.5]), run([0.5])._replace(clients={"train": {"loss": np.array([1.0])}})]
    assert Rule().metric_of(both) == "loss" and Rule().metric_of(both[:1]) == "accuracy"
    with pytest.raises(
        eh.EvenhandError, match=r"no metric 'acuracy' to select by \(perhaps you meant accuracy\)"
    ):
        study({"f": fedavg(0.1)}, DATA, select=Rule(metric="acuracy"), **HOW)


# --- differences -----------------------------------------------------------------------------------------------------


def test_p_values_are_raised_for_all_comparisons_and_seeds_are_paired() -> None:
    rng = np.random.default_rng(0)
    runs = {
        name: [run(list(0.5 + shift + 0.05 * rng.normal(size=4)), seed=seed) for seed in range(8)]
        for name, shift in (("base", 0.0), ("a", 0.05), ("b", 0.02))
    }
    found = differences(runs, "base", "test", "accuracy")
    alone = {
        name: paired_difference(
            *([float(of.clients["test"]["accuracy"].mean()) for of in runs[x]] for x in (name, "base"))
        )
        for name in ("a", "b")
    }
    raised = holm({name: by.p for name, by in alone.items()})
    assert {name: by.p["mean"] for name, by in found.items()} == pytest.approx(raised)
    assert found["a"].p["mean"] > alone["a"].p or found["b"].p["mean"] > alone["b"].p
    others = [view._replace(info={"seed": seed + 1}) for seed, view in enumerate(runs["b"])]
    assert list(differences(runs | {"b": others}, "base", "test", "accuracy")) == ["a"]
    fewer = [view._replace(sizes=dict.fromkeys(view.sizes, np.full(4, 3))) for view in runs["a"]]
    assert differences(runs | {"a": fewer}, "base", "test", "accuracy")["a"].gains is None


def test_equal_differences_at_a_few_seeds_are_not_sure() -> None:
    assert not paired_difference([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]).is_sure
    assert paired_difference([0.5, 0.51, 0.5], [0.25, 0.25, 0.25]).is_sure


def test_a_baseline_that_was_lost_is_told() -> None:
    lost = Outcome(Setting("base", {}), 0, "failed", "No memory.", None)
    found = Study((lost, outcome(Setting("f", {}), 0, [0.5])), Rule(), "base", "accuracy")
    assert any(
        "base, which the others are compared with, has no sound setting" in each for each in found.remarks
    )


def test_tables_name_the_baseline_though_a_method_before_it_was_lost(tmp_path: Path) -> None:
    lost = tuple(Outcome(Setting("bad", {}), seed, "failed", "No memory.", None) for seed in range(6))
    sound = tuple(
        outcome(Setting(name, {}), seed, [level + 0.01 * seed, level])
        for name, level in (("base", 0.5), ("other", 0.6))
        for seed in range(6)
    )
    result = Study(lost + sound, Rule(), "base", "accuracy")
    for ending in ("md", "tex"):
        text = result.export(tmp_path / f"m.{ending}", "methods").read_text()
        assert "minus base" in text and "minus bad" not in text
    shown = re.sub("<[^>]+>", "", result._repr_html_())
    assert "Minus base" in shown and "Minus bad" not in shown


def test_the_page_has_the_differences_among_the_other_methods(tmp_path: Path) -> None:
    """For three to six methods; by hand for one pair."""
    rng = np.random.default_rng(1)
    levels = {"base": 0.5, "a": 0.6, "b": 0.7, "c": 0.4}
    outcomes = [
        outcome(Setting(name, {}), seed, list(level + 0.05 * rng.normal(size=4)))
        for name, level in levels.items()
        for seed in range(5)
    ]

    def table(methods: int) -> str:
        found = Study(tuple(outcomes[: 5 * methods]), Rule(), "base", "accuracy")
        return found.report(tmp_path / "page.html").read_text().partition("Among the other methods")[2]

    assert not table(2) and "b minus a" in table(3) and "c minus b" in table(4)
    means = {
        name: [
            float(each.view.clients["test"]["accuracy"].mean())
            for each in outcomes
            if each.setting.method == name and each.view
        ]
        for name in ("a", "b")
    }
    by = paired_difference(means["b"], means["a"])
    assert f"{difference_text(by, 'mean', 'accuracy').split()[0]} <span" in table(3).split("b minus a")[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), r"\(No space left on device\): make room"),
        (OSError(30, "Read-only file system"), r"\(Read-only file system\): make the folder writable"),
        (PermissionError(13, "Permission denied"), r"\(Permission denied\): make the folder writable"),
    ],
)
def test_a_page_is_there_whole_or_not_at_all(
    error: OSError, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Study((outcome(Setting("a", {}), 0, [0.5, 0.6]),), Rule(), "a", "accuracy")
    page = found.report(tmp_path / "page.html").read_text()

    def full(path: Path, content: bytes) -> None:
        path.open("w").close()
        raise error

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="The page could not be written in .*" + words):
        found.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page and len(list(tmp_path.iterdir())) == 1


# --- halving ---------------------------------------------------------------------------------------------------------


def test_survivors_are_the_best_share_of_each_method_under_each_condition() -> None:
    """By the rule's statistic; a setting of which one seed is lost does not go on, and a lone setting always does."""

    def made(method: str, case: str, scores: list[list[float]]) -> list[Outcome]:
        return [
            outcome(Setting(method, {"lr": float(i)}, {"data": case}), seed, accuracies)
            for i, accuracies in enumerate(scores)
            for seed in (0, 1)
        ]

    many = [[0.1 * i, 0.1 * i] for i in range(6)]
    # By the worst client, the first is best; by the mean, the second.
    uneven = [[0.5, 0.5], [0.3, 0.9], [0.0, 0.0]]
    outcomes = [
        *made("a", "x", many),
        *made("a", "y", many[::-1]),
        *made("b", "x", uneven),
        *made("c", "x", [[0.0]]),
    ]
    left = survivors(outcomes, Rule("valid", "min"), 1 / 3)
    shown = sorted(f"{each.method}{each.numbers['lr']:g}{each.case['data']}" for each in left)
    assert shown == ["a0y", "a1y", "a4x", "a5x", "b0x", "c0x"]
    lost = outcomes[10].view
    assert lost is not None
    lost = lost._replace(findings=[Finding("diverged", "Training diverged.", "train")])
    outcomes[10] = outcomes[10]._replace(status="diverged", view=lost)
    assert Setting("a", {"lr": 5.0}, {"data": "x"}) not in survivors(outcomes, Rule("valid", "min"), 1 / 3)
    assert rungs(Halving(3, keep=0.1), rounds=100, eval_every=1) == [3, 30]


def test_settings_that_were_lost_count_in_the_share_that_goes_on() -> None:
    """Of six settings a third goes on, two, also where four of them have diverged: not a third of what is left."""
    outcomes = [
        outcome(Setting("f", {"lr": float(i)}), 0, [0.1 * i])
        if i < 2
        else Outcome(Setting("f", {"lr": float(i)}), 0, "diverged", "", run([0.1 * i], train=[np.nan]))
        for i in range(6)
    ]
    left = survivors(outcomes, Rule(), 1 / 3)
    assert sorted(each.numbers["lr"] for each in left) == [0.0, 1.0]
    assert [each.numbers["lr"] for each in survivors(outcomes[:2], Rule(), 1 / 3)] == [1.0]


def test_a_run_that_diverged_before_a_rung_is_not_told_as_stopped(tmp_path: Path) -> None:
    how: dict[str, Any] = HOW | {"rounds": 8, "seeds": 1}
    found = study(
        {"f": fedavg}, DATA, grid={"lr": [0.01, 0.1, 50.0]}, folder=tmp_path, halving=Halving(6), **how
    )
    statuses = {str(each.setting): each.status for each in found.outcomes}
    assert statuses.pop("f(lr=50)") == "diverged"
    assert sorted(statuses.values()) == ["done", "stopped"]
    alone = study({"f": fedavg(0.1), "g": fedavg(0.2)}, DATA, halving=Halving(2), **dict(HOW, rounds=4))
    assert {each.status for each in alone.outcomes} == {"done"}


# --- plans -----------------------------------------------------------------------------------------------------------


def test_names_that_meet_are_refused_and_a_grid_of_its_own_goes_before() -> None:
    with pytest.raises(eh.EvenhandError, match=r"'f\(lr=0.1\)' twice, under 'f' and 'f\(lr=0.1\)'"):
        study({"f": fedavg, "f(lr=0.1)": fedavg(0.9)}, DATA, grid={"lr": [0.1, 0.2]}, **HOW)
    with pytest.raises(eh.EvenhandError, match="'seed' is a column of the results"):
        study({"f": lambda seed: fedavg(0.1)}, DATA, grid={"seed": [1, 2]}, **HOW)
    with pytest.raises(eh.EvenhandError, match="two of its names are the same text"):
        study({"f": fedavg(0.1)}, {1: DATA, "1": DATA}, **HOW)  # type: ignore[dict-item]

    def keyword(*, lr: float) -> Algorithm:
        return fedavg(lr)

    grid: dict[str, Any] = {"lr": [0.1], "f": {"lr": np.array([0.2, 0.5])}}
    found = study({"f": fedavg, "g(x)": keyword}, DATA, grid=grid, **dict(HOW, rounds=1))
    assert [str(each.setting) for each in found.tried] == ["f(lr=0.2)", "f(lr=0.5)", "g(x), lr=0.1"]
    assert all(type(each.setting.numbers["lr"]) is float for each in found.outcomes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"eval_every": 0}, "eval_every=0"),
        ({"eval_clients": 0}, "eval_clients=0"),
        ({"checkpoint": -1.0}, "checkpoint=-1.0"),
        ({"halving": 2}, "halving=2"),
        ({"select": "valid:mean"}, "select='valid:mean'"),
        ({"grid": [0.1]}, r"grid=\[0.1\]"),
    ],
)
def test_what_would_make_every_run_fail_is_found_before_the_first(change: dict[str, Any], words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        study({"f": fedavg(0.1)}, DATA, **HOW | change)


def test_each_data_set_with_few_validation_examples_is_a_remark() -> None:
    """Also where the first has many; the worst tenth is that of the statistics, rounded down and at least one."""
    rng = np.random.default_rng(0)

    def made(clients: int, rows: int) -> eh.data.FederatedDataset:
        x = rng.normal(size=(clients * rows, 4)).astype("f4")
        ids = np.repeat(np.arange(clients), rows)
        return eh.data.from_arrays(x, np.argmax(x[:, :3], 1), ids, valid_fraction=0.2)

    data = {"many": made(2, 200), "small": made(19, 10), "tiny": made(21, 5)}
    result = study({"f": fedavg}, data, grid={"lr": [0.1, 0.2]}, select=("valid", "worst10"), **HOW)
    remarks = [remark for remark in result.remarks if "per client (median" in remark]
    assert [remark.partition("):")[0] for remark in remarks] == [
        "Settings under data small were chosen on 2 validation examples per client (median of 19 clients; worst tenth: "
        "1 of them",
        "Settings under data tiny were chosen on 1 validation example per client (median of 21 clients; worst tenth: "
        "2 of them",
    ]
    worst = result.outcomes[2 * 2].seen  # of the small data: the mean over one client
    assert worst is not None
    values = worst.clients["valid"]["accuracy"]
    assert statistics(worst, "valid", "accuracy")["worst10"] == pytest.approx(values.min())


def test_columns_of_a_frame_are_of_one_type() -> None:
    nan = float("nan")
    assert alike([1, 0.5]) == [1.0, 0.5] and alike([1, 2]) == [1, 2]
    assert alike([nan, "adam", "x"]) == ["", "adam", "x"] and alike([True, "x"]) == ["True", "x"]
    for values in ([2, nan], [True, nan], [nan, False], [nan]):
        numbers = alike(values)
        assert {type(value) for value in numbers} == {float}, "polars takes no column of two types"
        np.testing.assert_array_equal(numbers, values)
    assert alike([True, False]) == [True, False] and alike([True, 2]) == ["True", "2"]


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        StorageError("The state could not be saved (No space left): make room."),
        OSError(errno.ENOSPC, "No space left"),
        OSError(errno.EDQUOT, "No space left"),
    ],
)
def test_a_full_disk_ends_a_study_and_is_no_result(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again with room, it makes the runs that were lost."""
    methods, real = {"f": fedavg(0.1)}, _columns.iterate_many

    def full(jobs: Any, wanted: Any) -> Any:
        yield 0, error

    monkeypatch.setattr(_columns, "iterate_many", full)
    with pytest.raises(StorageError, match=r"\(No space left\): "):
        study(methods, DATA, folder=tmp_path / "a", **HOW)
    assert not list((tmp_path / "a").rglob("result.json"))
    monkeypatch.setattr(_columns, "iterate_many", real)
    assert {each.status for each in study(methods, DATA, folder=tmp_path / "a", **HOW).outcomes} == {"done"}
    with pytest.raises(eh.EvenhandError, match="cannot be written to"):
        study(methods, DATA, folder=tmp_path / "a" / "study.json" / "b", **HOW)


def test_another_error_of_the_system_is_the_result_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a file that a method misses, which is missing next time, too."""

    def missing(jobs: Any, wanted: Any) -> Any:
        yield from ((place, FileNotFoundError(errno.ENOENT, "No such file")) for place in wanted)

    monkeypatch.setattr(_columns, "iterate_many", missing)
    outcomes = study({"f": fedavg(0.1)}, DATA, **HOW).outcomes
    assert {outcome.status for outcome in outcomes} == {"failed"} and "No such file" in outcomes[0].reason


def test_settings_of_like_names_have_places_of_their_own_and_classes_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    view = run([0.5])._replace(classes={"test": {"client": np.array([0.0]), "accuracy": np.array([0.25])}})
    for setting in (Setting("f", {"x": "a/b"}), Setting("f", {"x": "a-b"})):
        store.save(Outcome(setting, 0, "done", setting.numbers["x"], view), {})
    assert [(store.load(Setting("f", {"x": x}), 0, {}) or _NONE).reason for x in ("a/b", "a-b")] == [
        "a/b",
        "a-b",
    ]
    found = store.load(Setting("f", {"x": "a-b"}), 0, {})
    assert found is not None and found.view is not None
    assert found.view.classes["test"]["accuracy"].tolist() == [0.25]
    long = "x" * 70
    assert f"f-x={long}" in str(store.checkpoint(Setting("f", {"x": long}), 0))


_NONE = Outcome(Setting("", {}), 0, "failed", "", None)


def test_runs_of_other_data_or_systems_are_told_apart(tmp_path: Path) -> None:
    other = eh.data.hold_out(eh.testing.toy_data(), 0.3)
    slow = eh.systems.stragglers(0.5)
    methods = {"f": fedavg(0.1)}
    study(methods, {"x": DATA, "y": other}, systems={"s": None, "t": slow}, folder=tmp_path, **HOW)
    for data, systems in (
        ({"x": other, "y": DATA}, {"s": None, "t": slow}),
        ({"x": DATA, "y": other}, {"s": slow, "t": None}),
    ):
        with pytest.raises(eh.EvenhandError, match="is of another run"):
            study(methods, data, systems=systems, folder=tmp_path, **HOW)


def test_the_comparison_of_a_study_is_with_its_baseline() -> None:
    found = Study(
        tuple(outcome(Setting(name, {}), 0, [0.5, 0.6]) for name in ("a", "b")), Rule(), "b", "accuracy"
    )
    assert [line.method for line in found.table()] == ["a", "b"] and compare(
        {"a": found.views("a")}
    ).names == ["a"]


# --- clients that never trained ------------------------------------------------------------------------------------


def test_a_study_keeps_when_clients_trained_and_what_the_others_are_served(tmp_path: Path) -> None:
    """Two of six clients train in one round; the folder of one choice is not that of the other."""

    def ditto(lam: float) -> Algorithm:
        work = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
        return eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=lam)

    how: dict[str, Any] = {"rounds": 1, "seeds": 1, "eval_every": 1, "cohort": 2, "grid": {"lam": [0.5]}}
    found = study({"ditto": ditto}, DATA, folder=tmp_path, **how)
    initial = study({"ditto": ditto}, DATA, untrained="initial", **how)
    views = [each.outcomes[0].view for each in (found, eh.studies.load(tmp_path), initial)]
    assert views[0] is not None and views[1] is not None and views[2] is not None
    alone = eh.simulate(ditto(0.5), DATA, rounds=1, cohort=2, eval_every=1)
    for view in views:
        assert view is not None and view.last_round is not None
        np.testing.assert_array_equal(view.last_round, alone.last_round)
        assert [finding.kind for finding in view.findings] == ["untrained"]
    losses = [view.clients["test"]["loss"] for view in views if view is not None]
    np.testing.assert_allclose(losses[0], alone.client_metrics("test")["loss"], rtol=1e-5)
    np.testing.assert_array_equal(losses[0], losses[1])
    assert ((losses[0] != losses[2]) == (alone.last_round == 0)).all()
    for result in tmp_path.rglob("result.json"):
        written = json.loads(result.read_text())
        assert written["identity"].pop("untrained") == "global"
        assert all(written.pop(name) for name in ("sha256", "format", "evenhand"))
        result.write_text(json.dumps(written))  # as of an earlier version
    study({"ditto": ditto}, DATA, folder=tmp_path, **how)
    with pytest.raises(eh.EvenhandError, match="its untrained is global, not initial"):
        study({"ditto": ditto}, DATA, folder=tmp_path, untrained="initial", **how)
    with pytest.raises(eh.EvenhandError, match="give 'global' or 'initial'"):
        study({"ditto": ditto}, DATA, untrained="none", **how)  # pyright: ignore[reportArgumentType]


# --- runs that begin with given parameters ---------------------------------------------------------------------------


def test_each_run_begins_with_the_start_and_a_folder_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = eh.simulate(fedavg(0.3), DATA, rounds=3, seed=7).params
    how: dict[str, Any] = {**HOW, "start": trained, "grid": {"lr": [0.1, 0.2]}}
    found, own = (
        study({"f": fedavg}, DATA, folder=tmp_path, **how),
        study({"f": fedavg}, DATA, **HOW | {"grid": how["grid"]}),
    )
    first = eh.simulate(fedavg(0.1), DATA, rounds=2, eval_every=2, start=trained)
    for each, other in zip(found.outcomes, own.outcomes, strict=True):
        assert each.view is not None and other.view is not None
        # Before the first round all runs have the model that they begin with, whatever their seed.
        assert each.view.history["train_loss"][0] == pytest.approx(first.history["train_loss"][0], rel=1e-6)
        assert each.view.history["train_loss"][0] < other.view.history["train_loss"][0]
    assert found.outcomes[0].view is not None
    np.testing.assert_allclose(
        found.outcomes[0].view.history["train_loss"], first.history["train_loss"], rtol=1e-5
    )
    moved = {name: leaf + 1 for name, leaf in trained.items()}
    for start in (None, moved):
        with pytest.raises(EvenhandError, match=r"is of another run \(its start is"):
            study({"f": fedavg}, DATA, folder=tmp_path, **dict(how, start=start))
    study({"f": fedavg}, DATA, folder=tmp_path / "own", **dict(how, start=None))
    with pytest.raises(EvenhandError, match=r"is of another run \(its start is the model's own, not"):
        study({"f": fedavg}, DATA, folder=tmp_path / "own", **how)
    monkeypatch.setattr(_columns, "iterate_many", None)
    again = study({"f": fedavg}, DATA, folder=tmp_path, **how)
    assert [each[:4] for each in again.outcomes] == [each[:4] for each in eh.load_study(tmp_path).outcomes]


def test_a_start_of_another_structure_is_refused_as_by_a_run() -> None:
    start = MODEL.init(jax.random.key(0)) | {"v": np.zeros(3, np.float32)}
    with pytest.raises(EvenhandError) as alone:
        eh.simulate(fedavg(0.1), DATA, rounds=2, start=start)
    with pytest.raises(EvenhandError, match=r"\['v'\].*nothing.*run\.params") as refused:
        study({"f": fedavg(0.1)}, DATA, start=start, **HOW)
    assert str(alone.value).startswith("simulate(start=...): ")
    wanted = str(alone.value).replace("simulate(", "study(").replace("the model has", "the model of f() has")
    assert str(refused.value) == wanted


def test_a_start_that_does_not_fit_one_of_the_methods_names_it() -> None:
    start = MODEL.init(jax.random.key(0))
    larger = eh.models.mlp(DATA.feature_shape[0], hidden=[2], classes=DATA.num_classes or 0)
    other = eh.algorithms.fedavg(eh.local.sgd(larger, 0.1, epochs=1, batch_size=5))
    with pytest.raises(EvenhandError, match=r"^study\(start=\.\.\.\): .* the model of second\(\) has "):
        study({"first": fedavg(0.1), "second": other}, DATA, start=start, **HOW)


# --- metrics of sets of examples -------------------------------------------------------------------------------------


def test_a_metric_that_no_client_has_chooses_nothing_and_says_so() -> None:
    """The validation examples of all clients are of one class, so that there is no AUC to choose by."""
    alone = DATA.valid._replace(y=np.zeros_like(DATA.valid.y))
    made = study(
        {"fedavg": fedavg},
        replace(DATA, valid=alone),
        grid={"lr": [0.1, 0.3]},
        select=Rule(metric="auc"),
        **HOW,
    )
    clients = int(np.sum(alone.sizes > 0))
    sentence = f"undefined for {clients} of {clients} clients, which have examples of one class only"
    assert any(sentence in remark for remark in made.remarks)
    with pytest.raises(EvenhandError, match="has no valid auc to choose it by"):
        made.best("fedavg")


def test_a_metric_of_ones_own_is_kept_with_its_reason(tmp_path: Path) -> None:
    """Clients for which it is undefined do not count, in the study and when its folder is read again."""
    first = from_function(
        "first", lambda outputs, y: outputs[0, 0] if y[0] else np.nan, undefined="begin with class 0"
    )
    made = study({"fedavg": fedavg(0.1)}, DATA, metrics=("auc", first), folder=tmp_path, **HOW)
    for of in (made, eh.studies.load(tmp_path)):
        [tried] = of.tried
        for view, mean, count in zip(
            tried.views, tried.values["train_first_mean"], tried.values["train_first_clients"], strict=True
        ):
            values = view.clients["train"]["first"]
            assert 0 < count == np.sum(~np.isnan(values)) < len(values)
            assert mean == np.nanmean(values)
        assert undefined_sentence(tried.views, "train", "first").endswith("which begin with class 0.")
