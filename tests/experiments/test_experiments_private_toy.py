"""The linear toy runs, and what the page says of it is what the saved numbers say."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "private"


def test_the_experiment_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--rows", "40", "--features", "10", "--frequent", "2", "--batch", "4", "--steps", "20"]
    options = ["--out", str(tmp_path), *tiny, "--open-steps", "200", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["", *options])

    runpy.run_module("experiments.private.toy", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / "toy.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.toy", *options]
    assert set(saved["loss"]) == {"DP-SGD", "AdaDPS", "SGD", "AdaS"}
    assert all(len(losses) == 2 for losses in saved["loss"].values())
    # Without noise, descent fits the frequent features at least.
    assert np.mean(saved["loss"]["SGD"]) < np.mean(saved["loss of zero"])
    assert saved["privacy"]["epsilon"] > 0


def test_scales_that_are_known_help_at_each_seed() -> None:
    loss = {name: np.array(each) for name, each in saved_numbers()["loss"].items()}
    assert all(len(each) == 5 for each in loss.values())
    assert (loss["AdaDPS"] < loss["DP-SGD"]).all()
    assert (10 * loss["AdaS"] < loss["SGD"]).all()


def test_the_page_has_the_saved_numbers() -> None:
    saved = saved_numbers()
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    section = page.split("## A linear toy")[1].split("\n## ")[0]
    for name, losses in saved["loss"].items():
        row = re.search(rf"\| {re.escape(name)} \| \**([\d.e-]+)\** ± ([\d.e-]+) \|", section)
        assert row is not None, name
        assert float(row[1]) == pytest.approx(np.mean(losses), rel=0.02)
        assert float(row[2]) == pytest.approx(np.std(losses, ddof=1), rel=0.05)
    epsilon = re.search(r"\(([\d.]+), 1e-3\)-differential privacy", section)
    assert epsilon is not None
    assert float(epsilon[1]) == pytest.approx(saved["privacy"]["epsilon"], abs=0.006)


def saved_numbers() -> dict:
    return json.loads((FOLDER / "results" / "toy.json").read_text(encoding="utf-8"))
