"""The experiment on robust regression runs on made data, its solvers are exact, and its page has the saved numbers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import tyro

from experiments.term import regression
from experiments.term.columns import columns

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
RESULTS = FOLDER / "results"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A small table of bits in place of QSAR's, and one of ten columns in place of abalone's."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (200, 6))
    targets = (bits @ rng.normal(size=6) + 0.1 * rng.normal(size=200))[:, None]
    arrays = {"X_train": bits[:150], "X_test": bits[150:], "y_train": targets[:150], "y_test": targets[150:]}
    np.savez(tmp_path / "qsar.npz", **arrays)
    numbers = rng.random((150, 7))
    rings = (5 + 10 * numbers[:, 0] + rng.normal(size=150)).round()
    lines = [
        ",".join([sex, *(f"{number:.3f}" for number in row), f"{ring:.0f}"])
        for sex, row, ring in zip(rng.choice(list("MFI"), 150), numbers, rings, strict=True)
    ]
    (tmp_path / "abalone.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_experiment_at_a_tiny_size(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    options = ["--data-dir", str(data_dir), "--out", str(out), "--seeds", "2", "--noises", "0.2"]
    options += ["--budgets", "40", "--steps", "500", "--pursuit-steps", "50", "--ramp-steps", "300"]
    monkeypatch.setattr(sys, "argv", [str(FOLDER / "regression.py"), *options])

    regression.main(tyro.cli(regression.Config))

    table = json.loads((out / "regression_qsar_20.json").read_text())
    assert shlex.split(table["command"]) == ["python", "-m", "experiments.term.regression", *options]
    errors = {name: row["mean"]["RMSE"] for name, row in table["methods"].items()}
    # A line with little noise, and a fifth of the targets around 5: the tilt ignores these.
    assert errors["TERM"] < 0.2 < errors["ERM"]
    assert table["orderings"]["TERM below ERM"] == "2 of 2 seeds"
    for data in ("abalone", "diabetes"):
        clean, noisy = (
            json.loads((out / f"regression_{data}_{part}.json").read_text())["methods"]
            for part in ("clean", "noisy")
        )
        assert noisy["ERM"]["mean"]["RMSE"] > 10 * clean["ERM"]["mean"]["RMSE"]
        assert clean["Genie ERM on right rows"] == clean["ERM"]


def test_noise_is_in_the_first_training_rows_only(data_dir: Path) -> None:
    rows = regression.qsar(data_dir)
    parts = regression.noisy_targets(rows, 2, 0.4)

    rng = np.random.RandomState(2)
    order = rng.permutation(200)
    np.testing.assert_array_equal(parts.train.y[:64], rng.normal(5.0, 5.0, 64))
    np.testing.assert_array_equal(parts.train.y[64:], rows.y[order[64:160]])
    np.testing.assert_array_equal(parts.test.y, rows.y[order[180:]])
    np.testing.assert_array_equal(np.flatnonzero(parts.wrong), np.arange(64))

    config = regression.Config(data_dir=data_dir, samples=20, corrupted=2)
    parts = regression.noisy_rows(config, rows, 2)
    np.testing.assert_allclose(parts.train.x[:2], 100 * parts.right.x[:2])
    np.testing.assert_allclose(parts.train.y[:2], 10_000 * parts.right.y[:2])
    np.testing.assert_array_equal(parts.train.x[2:], parts.right.x[2:])


def test_rivals_minimise_their_losses() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3 + np.where(rng.random(60) < 0.3, 20.0, 0.1) * rng.normal(size=60)
    rows = regression.Rows(x, y)

    def huber(weights: np.ndarray) -> float:
        size = np.abs(regression.designed(rows) @ weights - y)
        return np.where(size <= 1, 0.5 * size**2, size - 0.5).mean()

    def absolute(weights: np.ndarray) -> float:
        return np.abs(regression.designed(rows) @ weights - y).mean()

    for loss, weights in (
        (huber, regression.least_huber(rows, 1.0)),
        (absolute, regression.least_absolute(rows)),
    ):
        best = scipy.optimize.minimize(
            loss, weights, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
        )
        assert loss(weights) <= best.fun + 1e-7
        assert loss(weights) < loss(regression.least_squares(rows)) - 0.1
    # As many residuals of 0 as weights: the mark of a vertex.
    residuals = regression.designed(rows) @ regression.least_absolute(rows) - y
    assert (np.abs(residuals) < 1e-8).sum() == 4


def test_a_path_of_tilts_leaves_the_minimum_that_descent_from_0_stops_at() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    is_zero = np.arange(100) < 10  # fitted without a step
    y = np.where(is_zero, 0.0, 10 + 2 * x[:, 0] + 0.3 * rng.normal(size=100))
    rows, clean = regression.Rows(x, y), regression.Rows(x[~is_zero], y[~is_zero])
    config = regression.Config(ramp_steps=500)

    along = regression.tilted_along(rows, config)
    at_once = regression.tilted(rows, -2.0, 0.05, 6000)

    assert regression.errors(clean, along)["RMSE"] < 0.4
    assert regression.errors(clean, at_once)["RMSE"] > 5


# --- the page ------------------------------------------------------------------------------------------------


def test_the_page_has_the_saved_numbers() -> None:
    page = (FOLDER / "regression.md").read_text(encoding="utf-8")
    noises = {
        f"{noise} % noise": (RESULTS / f"regression_qsar_{noise}.json", "RMSE") for noise in (20, 40, 80)
    }
    assert columns(noises) in page
    parts = {
        f"{data}, {part}": (RESULTS / f"regression_{data}_{part}.json", "RMSE")
        for data in ("abalone", "diabetes")
        for part in ("clean", "noisy")
    }
    assert columns(parts) in page


def test_the_verdicts_follow_from_the_saved_numbers() -> None:
    qsar = {noise: saved(f"regression_qsar_{noise}") for noise in (20, 40, 80)}
    assert [error(table, "TERM") for table in qsar.values()] == pytest.approx([1.08, 1.10, 1.56], abs=0.005)
    for noise, table in qsar.items():
        rivals = [error(table, name) for name in regression.RIVALS]
        assert error(table, "TERM") < min(rivals) == error(table, "CRR")
        assert table["orderings"]["TERM below ERM"] == "5 of 5 seeds"
        assert table["orderings"]["TERM below CRR"] == ("3 of 5 seeds" if noise == 20 else "5 of 5 seeds")
    assert error(qsar[80], "TERM") < error(qsar[80], "Genie ERM on right rows")
    for data, limit in (("abalone", 3.0), ("diabetes", 1.0)):
        clean, noisy = saved(f"regression_{data}_clean"), saved(f"regression_{data}_noisy")
        assert error(noisy, "TERM") < limit < 0.01 * min(error(noisy, name) for name in regression.RIVALS)
        assert error(clean, "TERM") > 1.05 * error(clean, "ERM")
        assert all(noisy["orderings"][f"TERM below {name}"] == "5 of 5 seeds" for name in regression.RIVALS)


def saved(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def error(table: dict, method: str) -> float:
    return table["methods"][method]["mean"]["RMSE"]
