"""The experiment on the private quantile runs, and its saved numbers are those of the paper's figure 5."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "private"


def test_the_experiment_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--clients", "16", "--bins", "8", "--repetitions", "2", "--bits", "6", "16", "--more-bins", "4"]
    options = ["--out", str(tmp_path), *tiny, "--epsilons", "5.0"]
    monkeypatch.setattr(sys, "argv", ["", *options])

    runpy.run_module("experiments.private.quantile", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / "quantile.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.quantile", *options]
    assert set(saved["panels"]["uniform, modulus"]) == {"6 bits", "16 bits"}
    assert set(saved["panels"]["uniform, histogram"]) == {"tree", "tree, tight", "flat"}
    assert all(len(line["error"]) == 1 for panel in saved["panels"].values() for line in panel.values())
    assert (tmp_path / "quantile.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_numbers_are_those_of_figure_5() -> None:
    panels = json.loads((FOLDER / "results" / "quantile.json").read_text())["panels"]
    for data in ("uniform", "chi-square"):
        lines = {
            bits: dict(zip(line["epsilon"], line["error"], strict=True))
            for bits, line in panels[f"{data}, modulus"].items()
        }
        wide, narrow = lines["16 bits"], lines["10 bits"]
        assert wide[1.0] == pytest.approx(0.14, rel=0.2)
        assert wide[5.0] == pytest.approx(0.03, rel=0.2)
        # Sums wrap around modulo 1024 from epsilon = 5 on; before, they do now and then where losses are alike.
        assert narrow[3.0] == pytest.approx(wide[3.0], rel=0.01 if data == "uniform" else 0.2)
        assert all(narrow[epsilon] > 3 * wide[epsilon] for epsilon in (5.0, 7.0, 10.0))
    for line in panels["uniform, bins"].values():
        assert line["error"][line["bins"].index(1024)] > 1.5 * line["error"][line["bins"].index(64)]
