"""Delta-FL end to end under privacy: the experiment runs, and the page says what the saved numbers say."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "end_to_end.json").read_text(encoding="utf-8"))["methods"]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8").split("## Delta-FL end to end")[1]


def test_the_experiment_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--setting.clients", "40", "--setting.strangers", "20", "--setting.cohort", "20"]
    short = ["--setting.rounds", "3", "--seeds", "1", "--thetas", "0.5", "--epsilons", "5.0"]
    options = ["--out", str(tmp_path), *tiny, *short]
    monkeypatch.setattr(sys, "argv", ["", *options])

    runpy.run_module("experiments.private.end_to_end", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / "end_to_end.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.end_to_end", *options]
    assert set(saved["methods"]) == {"DP-FedAvg", "DP-Delta-FL, theta=0.5"}
    for method in saved["methods"].values():
        assert method["5"]["epsilon"] == pytest.approx(5.0, abs=1e-3)
        assert len(method["5"]["valid"]) == 4
        assert 0 < method["5"]["seeds"][0]["test_stranger_error_p90"] <= 100


def _errors(method: str, epsilon: str, what: str) -> np.ndarray:
    return np.array([seed[f"test_stranger_error_{what}"] for seed in SAVED[method][epsilon]["seeds"]])


@pytest.mark.parametrize("method", SAVED)
def test_the_page_has_the_saved_errors(method: str) -> None:
    cells = next(line for line in PAGE.splitlines() if line.startswith(f"| {method} |")).split("|")[2:-1]
    told = [cell.replace("*", "").split("/") for cell in cells[: len(SAVED[method])]]
    for (mean, tail), epsilon in zip(told, SAVED[method], strict=True):
        assert float(mean) == pytest.approx(_errors(method, epsilon, "mean").mean(), abs=0.051)
        assert float(tail) == pytest.approx(_errors(method, epsilon, "p90").mean(), abs=0.051)


def test_the_tail_of_strangers_is_better_served_at_about_the_same_mean() -> None:
    average, half, quarter = "DP-FedAvg", "DP-Delta-FL, theta=0.5", "DP-Delta-FL, theta=0.25"
    for epsilon in ("3", "5", "10"):
        assert (_errors(half, epsilon, "p90") < _errors(average, epsilon, "p90")).all()
        assert abs(_errors(half, epsilon, "mean").mean() - _errors(average, epsilon, "mean").mean()) < 0.5
    gains = [_gain(average, method, "5", "p90") for method in (half, quarter)]
    assert gains == pytest.approx([2.6, 3.6], abs=0.051)
    assert _gain(quarter, half, "5", "mean") == pytest.approx(1.2, abs=0.051)
    lost = [(_errors(each, "3", "p90") - _errors(each, "10", "p90")).mean() for each in (half, average)]
    assert lost == pytest.approx([0.4, 0.4], abs=0.051)


def _gain(worse: str, better: str, epsilon: str, what: str) -> float:
    return float((_errors(worse, epsilon, what) - _errors(better, epsilon, what)).mean())
