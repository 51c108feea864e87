"""The experiments run from the command line, and their saved numbers say what their pages claim."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "fedprox"


def _runs(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    content = json.loads(path.read_text())
    return {(run["panel"], run["line"]): run["measures"] for run in content["runs"]}


def test_fedprox_heterogeneity_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--clients", "4", "--cohort", "2", "--max-size", "60", "--epochs", "3", "--learning-rate", "0.1"]
    shape = ["--seeds", "1", "--rounds", "4", "--eval-every", "2", "--variance-every", "2", "--last", "3"]
    options = ["--claims", "heterogeneity", "--out", str(tmp_path), *tiny, *shape]
    monkeypatch.setattr(sys, "argv", ["", *options])

    runpy.run_module("experiments.fedprox", run_name="__main__", alter_sys=True)

    command = json.loads((tmp_path / "heterogeneity.json").read_text())["command"]
    assert shlex.split(command) == ["python", "-m", "experiments.fedprox", *options]
    runs = _runs(tmp_path / "heterogeneity.json")
    assert len(runs) == 8
    for data in ("IID", "(0, 0)", "(0.5, 0.5)", "(1, 1)"):
        free, held = (runs[data, line]["train_loss"] for line in ("FedProx, mu=0", "FedProx, mu=1"))
        assert free["round"] == [0, 2, 4]
        assert free["curves"][0][0] == held["curves"][0][0]
        assert free["curves"][0][-1] != held["curves"][0][-1]
        # Rounds 2 and 4 are the last three rounds.
        assert free["last"]["per_seed"][0] == pytest.approx(sum(free["curves"][0][1:]) / 2, rel=1e-3)
    first = [runs[data, "FedProx, mu=0"]["uniform_variance"]["curves"][0][0] for data in ("IID", "(0, 0)")]
    assert first[0] < first[1]
    assert (tmp_path / "heterogeneity.png").read_bytes().startswith(b"\x89PNG")


def test_fedprox_beats_fedavg_under_stragglers_for_every_saved_seed() -> None:
    runs = _runs(FOLDER / "results" / "stragglers.json")
    average, proximal = (runs["(1, 1), 90% stragglers", line] for line in ("FedAvg", "FedProx, mu=1"))
    for what in ("final", "last"):
        for ours, theirs in zip(
            proximal["train_loss"][what]["per_seed"], average["train_loss"][what]["per_seed"], strict=True
        ):
            assert ours < theirs
        assert proximal["test_accuracy"][what]["mean"] > average["test_accuracy"][what]["mean"]


def test_fedprox_helps_unlike_clients_and_slows_down_like_ones_for_every_saved_seed() -> None:
    runs = _runs(FOLDER / "results" / "heterogeneity.json")
    for data in ("IID", "(0, 0)", "(0.5, 0.5)", "(1, 1)"):
        for measure in ("train_loss", "uniform_variance", "gradient_variance"):
            free, held = (
                runs[data, line][measure]["last"]["per_seed"] for line in ("FedProx, mu=0", "FedProx, mu=1")
            )
            lower, higher = (free, held) if data == "IID" else (held, free)
            assert all(a < b for a, b in zip(lower, higher, strict=True)), (data, measure)
