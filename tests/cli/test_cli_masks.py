"""Masks of secure sums on the command line: ``--masks`` of a run and of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evenhand.cli import main
from evenhand.simulation import load_run
from evenhand.simulation.program import Program

pytestmark = pytest.mark.usefixtures("shared_programs", "no_figures")

SECURE = "fedavg(aggregator=secure(mean()))"
QUICK = ["--data", "digits", "--clients", "8", "--rounds", "2", "--eval-every", "2", "--quiet"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """Whether each program that is traced has masks."""
    seen, aggregator = list[bool](), Program.aggregator

    def noted(program: Program, phase: int) -> Any:
        seen.append(program.masks)
        return aggregator(program, phase)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Program, "aggregator", noted)
    return seen


def test_a_run_draws_masks_if_asked_and_gets_the_same_model(asked: list[bool]) -> None:
    assert main(["run", SECURE, "--out", "bare", *QUICK]) == 0
    assert asked and not any(asked)
    assert main(["run", SECURE, "--out", "masked", "--masks", *QUICK]) == 0
    assert any(asked)
    bare, masked = (load_run(Path(folder)) for folder in ("bare", "masked"))
    jax.tree.map(np.testing.assert_array_equal, bare.params, masked.params)
    assert json.loads(Path("masked/config.json").read_text())["options"]["masks"] is True


def test_a_study_draws_masks_if_asked(asked: list[bool]) -> None:
    # Two bounds, since what is traced of a method is kept.
    for options, largest in (([], 1024), (["--masks"], 2048)):
        asked.clear()
        method = f"fedavg(aggregator=secure(mean(), largest={largest}))"
        assert main(["study", method, "--seeds", "1", "--out", str(largest), *options, *QUICK]) == 0
        assert asked and (True in asked) == bool(options)
