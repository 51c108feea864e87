"""Steps and time of TERM beside ERM: counts against loops in NumPy, and the page against the saved numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from experiments.term import cost

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
CENTRES, LEAST = np.array([-0.2, 0.2, 1.2]), np.array([0.0, 0.1, 0.0])
FEW: dict[str, Any] = {"newton_steps": 40, "limit": 400, "seeds": 1, "pairs": 2, "timed_steps": (3, 3, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five octamers in two files, and a small regression."""
    path = tmp_path_factory.mktemp("data")
    (path / "term").mkdir()
    (path / "term" / "hiv1_1Data.txt").write_text("AAAAAAAA,1\nAAAAAAAR,-1\nVVVVVVVV,-1\n")
    (path / "term" / "hiv1_2Data.txt").write_text("RAAAAAAA,1\nNAAAAAAA,-1\n")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (50, 3)).astype(np.uint8)
    y = x @ [1.0, -2.0, 0.5] + rng.normal(0.0, 0.1, 50)
    np.savez(
        path / "term" / "qsar.npz",
        X_train=x[:40],
        X_test=x[40:],
        y_train=y[:40, None],
        y_test=y[40:, None],
    )
    return path


def risk(theta: float, t: float) -> float:
    losses = np.square(theta - CENTRES) + LEAST
    return float(np.log(np.mean(np.exp(t * losses))) / t) if t else float(losses.mean())


def steps_of(t: float, rate: float, target: float, limit: int) -> int:
    theta = 0.0
    for number in range(limit):
        if abs(theta) > 10.0:
            return limit
        if risk(theta, t) <= target:
            return number
        weights = np.exp(t * (np.square(theta - CENTRES) + LEAST - risk(theta, t))) / 3
        theta -= rate * float(weights @ (2 * (theta - CENTRES)))
    return limit


@pytest.fixture(scope="module")
def compiled() -> cost.Programs:
    config = cost.Config(**FEW)
    return cost.programs(config, cost.toy(config))


@pytest.mark.parametrize("t", [0.0, -2.0, 5.0])
def test_steps_are_those_of_a_loop(compiled: cost.Programs, t: float) -> None:
    config = cost.Config(**FEW)
    problem = cost.toy(config)
    # The tilted risk falls from 0 to one minimum on the way: to the left for t < -1, else to the right.
    found = cast(Any, minimize_scalar(lambda theta: risk(theta, t), bounds=(-0.3, 0.7), method="bounded"))
    least = found.fun
    target = least + problem.gap * (risk(0.0, t) - least)
    rows = problem.rows(0)
    assert float(compiled.optimum(jnp.float32(t), *rows)) == pytest.approx(least, abs=1e-6)
    for rate in (0.02, 0.1):
        number = compiled.count(jnp.float32(t), jnp.float32(rate), jnp.float32(target), jnp.int32(400), *rows)
        assert abs(int(number) - steps_of(t, rate, target, 400)) <= 1
        assert 2 < int(number) < 400
    # A step size that is far too large, and too few steps.
    assert (
        int(compiled.count(jnp.float32(t), jnp.float32(90.0), jnp.float32(-9.0), jnp.int32(70), *rows)) == 70
    )
    assert (
        int(compiled.count(jnp.float32(t), jnp.float32(1e-3), jnp.float32(target), jnp.int32(5), *rows)) == 5
    )

    fast = cost.fastest(config, problem, compiled, t, 0, problem.gap)
    every = [steps_of(t, rate, target, 400) for rate in problem.rates]
    assert fast["steps"] == min(every)
    assert fast["step size"] == pytest.approx(problem.rates[int(np.argmin(every))])


def test_the_experiment_at_a_tiny_size(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cost.py", "--tiny"])
    monkeypatch.setattr(cost, "PROBLEMS", {"QSAR": cost.qsar})
    cost.main(cost.Config(data_dir=folder, out=tmp_path, qsar_tilts=(-1.0,), **FEW))
    saved = json.loads((tmp_path / "cost.json").read_text())
    row = saved["methods"]["QSAR, t=-1"]["mean"]
    assert row["ratio"] == pytest.approx(row["steps"] / row["steps of ERM"], rel=1e-4)
    assert 0 < row["steps"] < 400
    timing = saved["seconds"]["QSAR"]
    assert timing["ratio"] == pytest.approx(
        timing["microseconds, TERM"] / timing["microseconds, ERM"], rel=1e-3
    )
    for problem in (cost.hiv, cost.qsar):
        with pytest.raises(SystemExit, match="say with --data-dir"):
            problem(cost.Config(data_dir=tmp_path)).rows(0)


def test_octamers_are_one_hot_with_the_cut_ones_labelled(folder: Path) -> None:
    x, y = cost.hiv(cost.Config(data_dir=folder)).rows(0)
    assert x.shape == (4, 160)
    np.testing.assert_array_equal(x.sum(1), [8] * 4)
    for places, label in zip(np.asarray(x).reshape(4, 8, 20).argmax(2), np.asarray(y), strict=True):
        octamer = "".join("ARNDCQEGHILKMFPSTWYV"[place] for place in places)
        assert label == (octamer in ("AAAAAAAA", "RAAAAAAA"))


def test_noise_is_in_the_first_targets(folder: Path) -> None:
    x, y = cost.qsar(cost.Config(data_dir=folder)).rows(1)
    residuals = np.abs(np.asarray(y) - np.asarray(x) @ [1.0, -2.0, 0.5, 0.0])
    assert x.shape == (40, 4)
    assert (residuals[16:] < 0.5).all() and np.median(residuals[:16]) > 2.0


# --- the saved numbers -------------------------------------------------------------------------------------------

COLUMNS = {"steps of ERM": 0.51, "steps": 0.51, "ratio": 0.0051, "wide ratio": 0.0051}
"""Each with the rounding of the page."""


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    return json.loads((FOLDER / "results" / "cost.json").read_text())


def test_the_page_has_the_saved_numbers(saved: dict[str, Any]) -> None:
    page = (FOLDER / "cost.md").read_text(encoding="utf-8")
    for name, numbers in saved["methods"].items():
        (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", page, flags=re.MULTILINE)
        for (key, within), cell in zip(COLUMNS.items(), row.split("|"), strict=True):
            mean, error = map(float, re.findall(r"[\d.]+", cell))
            assert mean == pytest.approx(numbers["mean"][key], abs=within)
            assert error == pytest.approx(numbers["error"][key], abs=within)
    for name, numbers in saved["seconds"].items():
        (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", page, flags=re.MULTILINE)
        for cell, number in zip(row.split("|"), numbers.values(), strict=True):
            assert float(cell) == pytest.approx(number, rel=0.02)


def test_the_verdict_follows_from_the_saved_numbers(saved: dict[str, Any]) -> None:
    ratios = {
        name: [seed["ratio"] for seed in numbers["seeds"]] for name, numbers in saved["methods"].items()
    }
    wide = {name: numbers["mean"]["wide ratio"] for name, numbers in saved["methods"].items()}
    limit = saved["config"]["limit"]
    assert all(seed["steps"] < limit for numbers in saved["methods"].values() for seed in numbers["seeds"])
    seeds = {name: sum(ratio <= 2.0 for ratio in several) for name, several in ratios.items()}
    within = {"HIV-1, t=0.1", "HIV-1, t=1", "QSAR, t=-0.5", "QSAR, t=-1"}
    within |= {f"toy, t={t}" for t in (-20, -5, -1, 1, 5)}
    assert seeds == dict.fromkeys(seeds, 0) | dict.fromkeys(within, 5) | {"QSAR, t=-2": 1}
    means = {name: round(float(np.mean(several)), 1) for name, several in ratios.items()}
    assert (means["QSAR, t=-2"], means["HIV-1, t=5"], means["HIV-1, t=50"]) == (2.2, 2.9, 14.2)
    assert (round(wide["HIV-1, t=5"], 1), round(wide["HIV-1, t=50"], 1)) == (1.5, 6.2)
    step = {name: numbers["ratio"] for name, numbers in saved["seconds"].items()}
    assert round(step["HIV-1"], 2) == 1.16 and round(step["QSAR"], 2) == 1.15
    assert round(step["QSAR"] * np.mean(ratios["QSAR, t=-2"]), 1) == 2.6
    assert round(step["HIV-1"] * np.mean(ratios["HIV-1, t=50"])) == 16
    small = [f"{step['HIV-1'] * np.mean(ratios[f'HIV-1, t={t}']):.2f}" for t in ("0.1", "1")]
    assert f"{' and '.join(small)} times that of ERM" in (FOLDER / "cost.md").read_text()
