"""The experiment on q-FFL runs from the command line, and its saved numbers say what its page claims."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.studies import Outcome, Setting
from experiments.evidence import section
from experiments.qffl import speed

FOLDER = Path(__file__).parents[2] / "experiments" / "qffl"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["", *arguments])
    runpy.run_module("experiments.qffl", run_name="__main__", alter_sys=True)


def _methods(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["methods"]


def _saved(name: str, method: str, measure: str) -> np.ndarray:
    """A number per seed."""
    return np.array(
        [seed[measure] for seed in _methods(FOLDER / "results" / f"{name}.json")[method]["seeds"]]
    )


def _adult(folder: Path) -> None:
    random = np.random.default_rng(0)
    rows = 60
    fields = ("workclass", "marital_status", "occupation", "relationship", "race", "sex", "native_country")
    table: dict[str, Any] = {name: random.choice(["a", "b"], rows) for name in fields}
    table["education"] = np.where(np.arange(rows) % 4 == 0, "Doctorate", "Masters")
    held_out = np.arange(rows) % 5 == 0
    np.savez(folder / "adult.npz", **table, label=table["workclass"] == "a", is_val=held_out)


def test_qffl_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ["--clients", "6", "--cohort", "3", "--seeds", "1", "--rounds", "4", "--eval-every", "2"]
    powers = ["--powers", "0", "1", "--more-powers", "0.1"]
    _run(monkeypatch, "--claims", "fairness", "--out", str(tmp_path), *shape, *powers)

    for split in ("test", "train"):
        found = _methods(tmp_path / f"family_{split}.json")
        chosen = f"q={found['q chosen on validation rows']['seeds'][0].pop('q'):g}"
        assert list(found)[:4] == ["q=0", "q=0.1", "q=1", "uniform sampling"]
        assert found["q chosen on validation rows"]["seeds"] == found[chosen]["seeds"]
        family = [found[name]["mean"]["mean"] for name in ("q=0", "q=0.1", "q=1")]
        assert len(set(family)) == 3
    course = _methods(tmp_path / "course.json")
    begin = [course[f"{name}, round 0"]["seeds"] for name in ("q=0", "q=1", "uniform sampling")]
    assert begin[0] == begin[1] == begin[2]
    assert course["q=0, round 4"]["mean"]["train_loss"] < course["q=0, round 0"]["mean"]["train_loss"]
    assert (tmp_path / "family_test.png").read_bytes().startswith(b"\x89PNG")


def test_qffl_heterogeneity_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ["--clients", "4", "--cohort", "2", "--seeds", "1", "--heterogeneity-rounds", "2"]
    _run(monkeypatch, "--claims", "heterogeneity", "--out", str(tmp_path), *shape)
    names = [
        f"{kind}, {clients} devices, q={q}"
        for kind in ("IID", "(1, 1)", "(2, 2)")
        for clients in (4, 2)
        for q in (0, 1)
    ]
    assert list(_methods(tmp_path / "heterogeneity.json")) == names


def test_qffl_against_afl_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _adult(tmp_path)
    where = ["--data-dir", str(tmp_path), "--out", str(tmp_path)]
    _run(monkeypatch, "--claims", "afl", *where, "--seeds", "2", "--afl-rounds", "20")
    found = _methods(tmp_path / "adult.json")
    assert list(found) == ["q=0", "q=0.01", "q=2", "AFL", "AFL, last iterate", "q=0, devices by rows"]
    for method in found.values():
        first, second = method["seeds"]
        # 12 test rows, 3 of them on the first device.
        assert first["average"] == pytest.approx((3 * first["PhD"] + 9 * first["non-PhD"]) / 12, rel=1e-4)
        assert first["PhD loss"] != second["PhD loss"]


def test_qffl_says_how_to_give_adult_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"no .*adult\.npz: say with --data-dir"):
        _run(monkeypatch, "--claims", "afl", "--data-dir", str(tmp_path))


def test_saved_qffl_has_a_quarter_less_variance_at_the_same_mean() -> None:
    plain, fair = (_saved("family_test", name, "variance") for name in ("q=0", "q=1"))
    assert len(plain) == 5
    assert (fair < 0.69 * plain).all()
    assert fair.mean() < 0.61 * plain.mean()
    for over in ("mean", "weighted_mean"):
        gain = _saved("family_test", "q=1", over) - _saved("family_test", "q=0", over)
        assert abs(gain.mean()) < 2.0
        assert gain.min() > -2.0
    worst = _saved("family_test", "q=1", "worst10") - _saved("family_test", "q=0", "worst10")
    assert (worst > 10.0).all()
    assert all((_saved("family_test", name, "best10") == 100.0).all() for name in ("q=0", "q=1"))


def test_saved_family_of_q_gets_more_even_up_to_a_point() -> None:
    family = [f"q={q}" for q in ("0", "0.01", "0.1", "1", "2", "5")]
    assert (np.diff([_saved("family_test", name, "variance").mean() for name in family]) < 0).all()
    angles = {name: _saved("family_test", name, "angle").mean() for name in family}
    assert angles["q=2"] < angles["q=1"] < angles["q=5"] < angles["q=0"]
    per_device = _saved("family_test", "each device its own q", "weighted_mean").mean()
    assert per_device > max(_saved("family_test", name, "weighted_mean").mean() for name in family)


def test_saved_uniform_sampling_is_less_even_on_training_rows_and_more_accurate() -> None:
    fair, uniform = (_saved("family_train", name, "variance") for name in ("q=1", "uniform sampling"))
    assert (fair < uniform).all()
    test = [_saved("family_test", name, "variance") for name in ("q=1", "uniform sampling")]
    assert test[0].mean() < test[1].mean()
    assert (test[0] < test[1]).sum() == 3
    gain = _saved("family_test", "uniform sampling", "mean") - _saved("family_test", "q=1", "mean")
    assert gain.mean() > 8.0


def test_saved_course_holds_the_reduction_from_half_of_the_rounds_on() -> None:
    less = []
    for now in range(10_000, 20_001, 2000):
        plain, fair = (_saved("course", f"{name}, round {now}", "variance") for name in ("q=0", "q=1"))
        less.append(1 - fair.mean() / plain.mean())
        assert (fair < 0.83 * plain).all()
    assert 0.29 < min(less) < max(less) < 0.40


def test_saved_adult_says_that_equal_weights_of_devices_are_what_helps() -> None:
    plain, pooled = (_saved("adult", name, "PhD") for name in ("q=0", "q=0, devices by rows"))
    assert len(plain) == 5
    assert (plain > pooled + 8.0).all()
    assert (plain == _saved("adult", "q=0.01", "PhD")).all()
    # All methods but the pooled one lower the loss of the worst device; AFL's last iterate lowers it the most.
    losses = [_saved("adult", name, "PhD loss") for name in ("AFL, last iterate", "q=2", "q=0")]
    assert (losses[0] < losses[1]).all() and (losses[1] < losses[2]).all()
    assert (_saved("adult", "q=2", "average") > _saved("adult", "AFL", "average") + 2.0).all()
    better = _saved("adult", "q=2", "PhD") - _saved("adult", "AFL", "PhD")
    assert (better > 0).sum() == 3 and (better == 0).sum() == 1


def test_saved_heterogeneity_says_where_q_helps() -> None:
    variance = {
        (kind, clients, q): _saved("heterogeneity", f"{kind}, {clients} devices, q={q}", "variance")
        for kind in ("IID", "(1, 1)", "(2, 2)")
        for clients in (100, 50)
        for q in (0, 1)
    }
    for clients in (100, 50):
        assert (variance["(1, 1)", clients, 1] < variance["(1, 1)", clients, 0]).all()
        assert abs(variance["IID", clients, 1].mean() - variance["IID", clients, 0].mean()) < 2
    assert (variance["(2, 2)", 100, 1] < variance["(2, 2)", 100, 0]).all()
    assert all(len(seeds) == 5 for seeds in variance.values())
    # The page says that these claims do not hold; if one comes true, the page must say so.
    assert variance["(2, 2)", 50, 1].mean() > variance["(2, 2)", 50, 0].mean()
    assert variance["(2, 2)", 100, 0].mean() < variance["(1, 1)", 100, 0].mean()


# --- figures 4.4 and 4.10 -----------------------------------------------------------------------------------------


def test_the_speed_of_the_solvers_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With sigma 0 all clients have as many rows, so that all seeds share their compiled programs.
    shape = ["--clients", "4", "--cohort", "2", "--seeds", "2", "--size-sigma", "0", "--batch-size", "40"]
    few = ["--speed.rounds", "6", "--speed.eval-every", "1", "--speed.steps", "0.01", "0.1"]
    places = ["--speed.places", "(1, 1)", "--speed.more-seeds", "2", "--out", str(tmp_path)]
    _run(monkeypatch, "--claims", "speed", *shape, *few, *places)

    content = json.loads((tmp_path / "speed.json").read_text())
    assert list(content["findings"]) == ["synthetic", "fixed step"]
    assert list(content["steps"]) == ["main", "tuning", "selection", "given"]
    for solvers in content["places"].values():
        assert list(solvers) == list(speed.SOLVERS)
        starts = {each["course"][0] for each in solvers.values()}
        assert len(starts) == 1 and all(each["course"][-1] < each["course"][0] for each in solvers.values())
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_objective_is_that_of_q_ffl_over_rows() -> None:
    data = eh.data.synthetic(clients=3, seed=0, max_size=60, valid_fraction=0.2)
    work = eh.local.sgd(eh.models.softmax_regression(features=60, classes=10), 0.1, steps=1)
    run = eh.simulate(eh.algorithms.fedavg(work), data, rounds=1)
    values = speed.objectives(1.0, run)
    for name, split, q in (("train", "train", 1), ("valid", "valid", 1), ("valid at 0", "valid", 0)):
        losses, rows = run.client_metrics(split)["loss"], getattr(data, split).sizes
        expected = sum(
            n / rows.sum() * loss ** (q + 1) / (q + 1) for n, loss in zip(rows, losses, strict=True)
        )
        assert values[name] == pytest.approx(expected)


def test_solvers_are_compared_where_the_slower_one_ends() -> None:
    fast = np.array([8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    slow = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.0])
    diverged = np.array([8.0, np.nan, np.inf, *[np.nan] * 5])
    # The last five evaluations of the slow one are 4.2 on average.
    counts = speed.rounds_to_meet({"q-FedAvg": fast, "q-FedSGD": slow}, 10)
    # From 8 to 4 in ten rounds, and from 5 to 4.
    assert counts == pytest.approx({"q-FedAvg": 9.5, "q-FedSGD": 38.0})
    assert speed.rounds_to_meet({"q-FedAvg": fast, "FedSGD": diverged}, 10) == {"q-FedAvg": 30, "FedSGD": 70}


@pytest.mark.parametrize(("early", "best"), [(False, 0.1), (True, 1.0)])
def test_a_step_is_chosen_by_the_end_or_by_the_whole_course(early: bool, best: float) -> None:
    def tried(step: float, course: list[float], q: float = 1.0) -> Outcome:
        return Outcome(
            Setting("FedSGD", {"q": q, "step": step}), 5, "done", "", None, {"valid": np.array(course)}
        )

    slow, fast, diverged = [9.0] * 20 + [0.5] * 5, [9.0] + [1.0] * 24, [9.0] + [np.nan] * 24
    outcomes = [tried(0.1, slow), tried(1.0, fast), tried(10.0, diverged), tried(3.0, [0.1] * 25, q=0.0)]
    assert speed.best_step(outcomes, "FedSGD", 1.0, "valid", early=early) == best


def test_heterogeneity_is_how_much_further_local_updates_fall_behind() -> None:
    def reach(rounds: int) -> np.ndarray:
        """A course that is at its end after so many rounds."""
        return np.where(np.arange(30) < rounds, 9.0, 1.0)

    def courses(iid: tuple[int, int], unlike: tuple[int, int]) -> Any:
        places = {"IID": iid, "(1, 1)": unlike}
        return {
            place: {
                "q-FedAvg": [reach(ours), reach(ours + 1)],
                "q-FedSGD": [reach(theirs), reach(theirs)],
                "FedSGD": [reach(theirs), reach(theirs)],
            }
            for place, (ours, theirs) in places.items()
        }

    behind = {"main": courses((2, 5), (12, 4)), "tuning": courses((5, 2), (2, 2))}
    behind |= {
        "given": courses((9, 9), (8, 9)),
        "seeds": behind["main"],
        "selection": courses((2, 2), (2, 2)),
    }
    setting = speed.Setting(eval_every=10, places=("IID", "(1, 1)"))
    claim = speed.findings(behind, setting)["heterogeneity"]
    # 12 - 4 evaluations on unlike clients, 2 - 5 on IID ones, ten rounds each.
    assert claim["finding"]["contrast"]["seeds"] == [110, 110]
    assert [rival["contrast"]["mean"] for rival in claim["rivals"]] == [-30, -10, 110, 0]


def _speed() -> dict[str, Any]:
    return json.loads((FOLDER / "results" / "speed.json").read_text())


def test_the_page_has_the_saved_speeds_and_findings() -> None:
    content, page = _speed(), (FOLDER / "README.md").read_text()
    for place, solvers in content["places"].items():
        for solver, saved in solvers.items():
            final, rounds = ([seed[name] for seed in saved["seeds"]] for name in ("final", "rounds"))
            cells = [place, solver, f"{content['steps']['main'][place][solver]:g}"]
            cells += [
                f"{np.mean(final):.3f} ± {np.std(final):.3f}",
                f"{np.mean(rounds):.0f} ± {np.std(rounds):.0f}",
            ]
            assert f"| {' | '.join(cells)} |" in page
    for claim in content["findings"].values():
        assert section(claim) in page
        assert len(claim["finding"]["contrast"]["seeds"]) == 5


def test_verdicts_on_speed_follow_from_the_saved_intervals() -> None:
    findings = _speed()["findings"]

    def interval(name: str, rival: int | None = None) -> tuple[float, float]:
        claim = findings[name]
        saved = claim["finding"]["contrast"] if rival is None else claim["rivals"][rival]["contrast"]
        return saved["low"], saved["high"]

    given = [rival["idea"] for rival in findings["IID"]["rivals"]].index(
        "the range of steps is wider than the paper's"
    )
    # Local updates are faster on Shakespeare, and slower on synthetic data.
    assert interval("Shakespeare")[1] < 0 < min(interval("synthetic")[0], interval("IID")[0])
    # On IID data that is so for tuned steps alone, and so is the growth with heterogeneity.
    assert interval("IID", given)[1] < 0
    assert interval("heterogeneity")[1] < 0 < interval("heterogeneity", given)[0]
    # The fixed step is faster on Synthetic(1, 1) and not on the others.
    assert interval("fixed step")[0] > 0
    places = _speed()["places"]
    rounds = {
        place: [
            np.mean([seed["rounds"] for seed in solvers[name]["seeds"]]) for name in ("q-FedSGD", "FedSGD")
        ]
        for place, solvers in places.items()
    }
    assert rounds["(1, 1)"][0] > rounds["(1, 1)"][1]
    assert all(rounds[place][0] < rounds[place][1] for place in ("IID", "hybrid"))
    assert rounds["Shakespeare"][0] == pytest.approx(rounds["Shakespeare"][1], abs=1.0)


def test_the_picture_of_the_speeds_is_made_from_the_file(tmp_path: Path) -> None:
    copied = tmp_path / "speed.json"
    copied.write_text((FOLDER / "results" / "speed.json").read_text())
    assert speed.draw(copied).read_bytes().startswith(b"\x89PNG")


def test_the_claims_on_speed_have_the_saved_differences() -> None:
    page, findings = (FOLDER / "README.md").read_text(), _speed()["findings"]
    means = {name: claim["finding"]["contrast"]["mean"] for name, claim in findings.items()}
    given = {name: claim["rivals"][1]["contrast"]["mean"] for name, claim in findings.items()}
    for text in (
        f"Shakespeare: {-means['Shakespeare']:.0f} fewer, on each seed",
        f"{means['synthetic']:.0f} more, on each seed",
        f"{means['fixed step']:.0f} rounds slower on Synthetic(1, 1)",
        f"{means['IID']:.0f} rounds *slower* with tuned steps; {-given['IID']:.0f} rounds faster if both",
        f"falls back by {given['heterogeneity']:.0f} rounds",
    ):
        assert text in page
