"""docs/performance.md: its tables of other libraries are those of the saved measurements."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RIVALS = ROOT / "benchmarks" / "rivals"

pytestmark = pytest.mark.skipif(not RIVALS.is_dir(), reason="benchmarks are not part of the package")


def _module(name: str) -> ModuleType:
    """A module of the benchmark, which is no package."""
    spec = importlib.util.spec_from_file_location(f"rivals_{name}", RIVALS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page() -> ModuleType:
    return _module("page")


@pytest.fixture
def results() -> dict[str, Any]:
    return json.loads((RIVALS / "results.json").read_text(encoding="utf-8"))


def test_the_tables_are_those_of_the_saved_measurements(page: ModuleType, results: dict[str, Any]):
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.inserted(text, results) == text, "run `python benchmarks/rivals --render`"


def test_every_library_that_runs_learns_every_task_in_as_many_turns(results: dict[str, Any]):
    assert set(results["versions"]) == {"Evenhand", "PyTorch loop", "FedJAX", "pfl", "Flower"}
    assert set(results["tasks"]) == {"logistic-ragged", "mlp", "femnist-cnn", "logistic-1000"}
    for task in results["tasks"].values():
        for result in (result for result in task.values() if "error" not in result):
            assert result["loss"]["after"] < result["loss"]["before"]
            assert {len(walls) for walls in result["seconds"].values()} == {results["repeats"]}


def test_a_time_is_the_median_of_the_fastest_setting(page: ModuleType):
    ours = {"seconds": {"default": [0.01, 0.02, 0.04]}}
    theirs = {"seconds": {"1 thread": [0.09, 0.02, 0.3], "2 threads": [0.05, 0.08, 0.06]}}
    assert page.duration(ours, ours) == "20"
    assert page.fastest(theirs) == "2 threads" and page.duration(theirs, ours) == "60 (4.0x)"


def test_a_library_that_failed_has_the_reason_in_its_row(page: ModuleType, results: dict[str, Any]):
    broken = copy.deepcopy(results)
    broken["versions"]["pfl"] = {}
    for task in broken["tasks"].values():
        task["pfl"] = {"error": "ImportError: a | b"}
    broken["tasks"]["mlp"]["Evenhand"] = {"error": "killed"}
    lines = page.rendered(broken).splitlines()
    assert "| pfl |" + " failed: ImportError: a \\| b |" * len(broken["tasks"]) in lines
    assert "| pfl |" + "  |" * len(broken["tasks"]) in lines, "no loss and no setting"
    ours, theirs = (
        next(line for line in lines if line.startswith(f"| {name} |")) for name in ("Evenhand", "FedJAX")
    )
    assert "failed: killed" in ours and "x)" not in theirs.split(" | ")[2], "nothing to compare with"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Traceback:\n  File ...\n[rank1]: RuntimeError: closed\nbye\n", "RuntimeError: closed"),
        (
            "ERROR: No matching distribution found for flwr==0\n",
            "ERROR: No matching distribution found for flwr==0",
        ),
        ("Killed\n\n", "Killed"),
        ("", "The process ended without a message."),
    ],
)
def test_the_reason_of_a_failure_is_a_line_of_the_log(log: str, reason: str):
    assert _module("environments").last_error(log) == reason
