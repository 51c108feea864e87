"""The experiment on HIV-1 runs on made data, its recipes are the paper's, and its page has the saved numbers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from experiments.term import hiv
from experiments.term.columns import columns

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
RESULTS = FOLDER / "results"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Four files of octamers that are cut where the fourth residue is one of four, and one row in ten is wrong."""
    rng = np.random.default_rng(0)
    for name in ("1625", "746", "impens", "schilling"):
        words = rng.choice(list(hiv.RESIDUES), (120, 8))
        labels = np.where(np.isin(words[:, 3], list("ARND")) ^ (rng.random(120) < 0.1), 1, -1)
        lines = [f"{''.join(word)},{label}" for word, label in zip(words, labels, strict=True)]
        (tmp_path / f"hiv1_{name}Data.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_experiment_at_a_tiny_size(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    sizes = ["--steps", "20", "--annotator-steps", "20", "--ranked-steps", "10", "--tuned-steps", "15"]
    grids = ["--rates", "1.0", "--tilts", "1.0", "--tails", "0.5", "--radii", "1.0", "--costs", "1.0"]
    grids += ["--gammas", "2.0", "--commons", "0.2", "--powers", "0.5", "--strengths", "0.1"]
    options = ["--data-dir", str(data_dir), "--out", str(out), "--folder", str(kept), "--seeds", "1"]
    options += ["--noisy-rows", "90", "--tuned", "--scenarios", "noisy 1:20", *sizes, *grids]
    monkeypatch.setattr(sys, "argv", [str(FOLDER / "hiv.py"), *options])

    hiv.main(tyro.cli(hiv.Config))

    for part in ("", "_tuned"):
        classes = json.loads((out / f"hiv_classes{part}.json").read_text())
        assert shlex.split(classes["command"]) == ["python", "-m", "experiments.term.hiv", *options]
        assert set(classes["methods"]) - {hiv.LONGER} == set(hiv.PAPER_77)
        assert all(0 <= value <= 1 for row in classes["methods"].values() for value in row["mean"].values())
        table = json.loads((out / f"hiv_noisy_1_20{part}.json").read_text())
        assert set(table["methods"]) | {"HAR"} == set(hiv.PAPER_78)
        assert set(table["not run"]) == {"HAR"}
        assert table["orderings"]["TERM_sc above ERM, rare test"].endswith("of 1 seeds")
    assert any(kept.rglob("*.json"))


def test_noise_and_imbalance_are_in_training_rows_only(data_dir: Path) -> None:
    config = hiv.Config(data_dir=data_dir, noisy_rows=150)
    clean, rare, noisy, both = (hiv.parts(config, scenario, 3) for scenario in hiv.SCENARIOS)

    rng = np.random.RandomState(3)
    every = hiv.octamers(data_dir)
    order = rng.permutation(480)
    np.testing.assert_array_equal(clean.train.y, every.y[order[:384]])
    np.testing.assert_array_equal(clean.test.x, every.x[order[432:]])
    for other in (rare, noisy, both):
        np.testing.assert_array_equal(other.test.y, clean.test.y)

    common = int((clean.train.y == 0).sum())
    assert (rare.train.y == 0).sum() == common
    assert (rare.train.y == 1).sum() == int(0.05 * common)
    np.testing.assert_array_equal(rare.valid.y, clean.valid.y)

    rng = np.random.RandomState(3)
    share = clean.train.y.mean()
    np.testing.assert_array_equal(noisy.train.y[:150], rng.choice([0, 1], 150, p=[1 - share, share]))
    np.testing.assert_array_equal(noisy.valid.y[:15], rng.choice([0, 1], 15, p=[1 - share, share]))
    np.testing.assert_array_equal(noisy.train.y[150:], clean.train.y[150:])
    assert (noisy.train.y != clean.train.y).any()
    assert np.bincount(clean.clean.y).tolist() == [10, 10]
    assert both.train.y.size == rare.train.y.size


def test_annotators_are_three_with_the_noisy_rows_and_seven_with_the_others() -> None:
    train = hiv.Rows(np.zeros((100, 160), np.float32), np.arange(100) % 2)

    kept, annotators = hiv.annotated(train, 30)

    assert np.bincount(annotators).tolist() == [10] * 10
    assert kept.y.size == annotators.size
    np.testing.assert_array_equal(annotators[:30], np.repeat([0, 1, 2], 10))
    # 72 rows for seven annotators: two rows are dropped.
    assert hiv.annotated(train, 28)[1].size == 27 + 70


def test_tilts_are_those_of_a_loop_over_annotators_and_classes() -> None:
    rng = np.random.default_rng(1)
    losses, y, annotators = rng.random(40), rng.integers(0, 2, 40), np.repeat(np.arange(4), 10)
    train, t, m = hiv.Rows(np.zeros((40, 160)), y), 3.0, -2.0

    outer = []
    for annotator in range(4):
        inner = [
            (sum((annotators == annotator) & (y == label)) / 10)
            * np.exp(t * losses[(annotators == annotator) & (y == label)].mean())
            for label in (0, 1)
        ]
        outer.append(np.exp(m * np.log(sum(inner)) / t))
    expected = np.log(np.mean(outer)) / m

    value = hiv.annotator_tilt(train, annotators, t, m).value(jnp.asarray(losses, jnp.float32))
    assert float(value) == pytest.approx(expected, abs=1e-5)


def test_a_higher_threshold_predicts_fewer_events() -> None:
    rows = hiv.Rows(np.eye(3, 160, dtype=np.float32), np.array([0, 1, 1]))
    weights = np.append(np.zeros(160), 0.0)
    weights[:3] = [-1.0, 0.1, 2.0]
    split = hiv.Parts(rows, rows, rows, rows)

    assert hiv.accuracies(split, weights)["rare test"] == 1.0
    assert hiv.accuracies(split, weights, 0.6)["rare test"] == 0.5
    assert hiv.accuracies(split, weights, 0.2)["common test"] == 0.0


# --- the page ------------------------------------------------------------------------------------------------


def saved(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def mean(table: dict, method: str, measure: str) -> float:
    return table["methods"][method]["mean"][measure]


def test_the_page_has_the_saved_numbers() -> None:
    page = (FOLDER / "hiv.md").read_text(encoding="utf-8")
    headings = [f"{rows} {part}" for rows in ("rare", "common", "all") for part in ("train", "test")]
    path = RESULTS / "hiv_classes.json"
    assert columns({name: (path, name) for name in headings}) in page
    scenarios = {
        f"{scenario.name} {rows}": (RESULTS / f"{scenario.path()}.json", f"{rows} test")
        for scenario in hiv.SCENARIOS
        for rows in ("rare", "all")
    }
    assert columns(scenarios) in page


def test_the_verdicts_follow_from_the_saved_numbers() -> None:
    classes = saved("hiv_classes")
    rare, every = mean(classes, hiv.TILTED, "rare test"), mean(classes, hiv.TILTED, "all test")
    assert rare >= 0.88
    assert every >= 0.91
    for name in ("ERM+", "RobustRegRisk+"):
        assert classes["orderings"][f"{hiv.TILTED} above {name}, all test"] == "5 of 5 seeds"
    plain = [name for name in hiv.PAPER_77 if name[-1] != "+" and name != hiv.TILTED]
    assert max(mean(classes, name, "rare test") for name in plain) < 0.845 < rare
    for name in ("CVaR", "HRM", "Linear SVM", hiv.LONGER):
        error = classes["methods"][name]["error"]["all test"]
        assert mean(classes, "TERM (t = 0.1)", "all test") == pytest.approx(
            mean(classes, name, "all test"), abs=error
        )
    assert mean(classes, "TERM (t = 0.1)", "rare test") > mean(classes, "ERM", "rare test") + 0.02
    assert classes["orderings"][f"TERM (t = 0.1) above {hiv.LONGER}, rare test"] == "0 of 5 seeds"

    tables = {scenario.name: saved(scenario.path()) for scenario in hiv.SCENARIOS}
    assert mean(tables["clean 1:20"], "TERM_sc", "rare test") >= 0.80
    for name in ("clean 1:20", "noisy 1:4", "noisy 1:20"):
        table = tables[name]
        rivals = (
            set(table["methods"])
            - {"TERM_sc", "TERM_ca"}
            - ({"RobustRegRisk"} if name == "noisy 1:4" else set())
        )
        for tilt in ("TERM_sc", "TERM_ca"):
            assert mean(table, tilt, "rare test") > max(mean(table, rival, "rare test") for rival in rivals)
            assert table["orderings"][f"{tilt} above ERM, rare test"] == "5 of 5 seeds"
    noisy = tables["noisy 1:4"]
    assert mean(noisy, "RobustRegRisk", "rare test") > mean(noisy, "TERM_sc", "rare test")
    assert noisy["orderings"]["TERM_sc above RobustRegRisk, all test"] == "5 of 5 seeds"
