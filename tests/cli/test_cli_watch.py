"""``--watch``: trackers by name, for ``run``, ``resume`` and ``study``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.watch import Watched, Watcher, mlflow

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = [
    "--data",
    "digits",
    "--clients",
    "5",
    "--rounds",
    "2",
    "--eval-every",
    "2",
    "--cohort",
    "3",
    "--quiet",
]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Skips the pages, which take as long as the training."""
    monkeypatch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
    monkeypatch.setattr("evenhand.studies.Study.report", lambda study, path: path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the trackers were made with, and what they were told, in place of what they do."""
    found: dict[str, list[Any]] = {"made": [], "begun": [], "rows": [], "ended": []}

    def stand_in(tracker: str) -> Any:
        def make(*places: Any, **options: Any) -> Watcher:
            found["made"].append((tracker, *places, *sorted(options.items())))
            return Watcher(begin)

        def begin(name: str, config: Any) -> Watched:
            found["begun"].append((name, config))
            return Watched(lambda *row: found["rows"].append(row), found["ended"].append)

        return make

    for tracker in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setattr(eh.watch, tracker, stand_in(tracker))
    return found


def test_a_run_is_tracked_under_its_folder_with_its_configuration(told: dict[str, list[Any]]) -> None:
    assert main(["run", "fedprox", "--mu", "0.5", *QUICK, "--watch", "mlflow", "--out", "runs/a"]) == 0
    [(name, config)] = told["begun"]
    recorded = json.loads(Path("runs/a/config.json").read_text())
    assert (name, config["method"], config["rounds"]) == ("a", recorded["method"], 2)
    assert config.items() >= {**recorded["options"], "data": "digits"}.items() and config["watch"] == "mlflow"
    lines = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert [(line.pop("round"), line) for line in lines] == told["rows"]
    assert told["ended"] == ["done"]


def test_each_tracker_has_its_place_and_is_asked_once(told: dict[str, list[Any]]) -> None:
    names = "wandb, tensorboard,mlflow,wandb"
    assert main(["run", "fedavg", *QUICK, "--watch", names, "--out", "runs/a"]) == 0
    folder = Path("runs/a")
    assert told["made"][-3:] == [
        ("wandb", ("folder", folder), ("group", "a")),
        ("tensorboard", folder / "tensorboard"),
        ("mlflow",),
    ]
    assert told["ended"] == ["done"] * 3


def test_a_resumed_run_is_tracked_again_from_its_beginning(told: dict[str, list[Any]]) -> None:
    assert main(["run", "fedavg", *QUICK, "--watch", "wandb", "--out", "a"]) == 0
    assert main(["resume", "a", "--rounds", "4", "--quiet"]) == 0
    assert [round for round, _ in told["rows"]] == [0, 2, 0, 2, 4] and told["ended"] == ["done", "done"]


def test_the_runs_of_a_study_are_tracked(told: dict[str, list[Any]]) -> None:
    Path("plan.toml").write_text('methods = ["fedavg"]\nlr = [0.01, 0.1]\nwatch = ["tensorboard", "wandb"]\n')
    assert main(["study", "--plan", "plan.toml", "--seeds", "1", *QUICK, "--out", "studies/b"]) == 0
    assert told["made"][-2:] == [
        ("tensorboard", Path("studies/b/tensorboard")),
        ("wandb", ("folder", Path("studies/b")), ("group", "b")),
    ]
    assert sorted(name for name, _ in told["begun"]) == sorted(
        [f"fedavg(lr={lr}), seed 0" for lr in (0.01, 0.1)] * 2
    )
    assert told["ended"] == ["done"] * 4


def test_event_files_are_in_the_folder_and_the_method_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    assert main(["run", "fedavg", *QUICK, "--watch", "tensorboard", "--out", "runs/a"]) == 0
    assert len(list(Path("runs/a/tensorboard/a").glob("events.out.tfevents.*"))) == 1
    assert main(["run", "fedavg", *QUICK, "--seed", "1", "--out", "runs/b"]) == 0
    assert main(["compare", "runs/a", "runs/b"]) == 0
    assert "2 seeds" in capsys.readouterr().out
    again = ["run", "--config", "runs/a", "--out", "runs/a", "--overwrite", "--quiet"]
    assert main(again) == 0 and Path("runs/a/tensorboard/a").is_dir()


@pytest.mark.parametrize("command", ["run fedavg", "study fedavg"])
def test_slips_are_found_before_anything_is_written(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(names: str) -> str:
        assert main([*command.split(), *QUICK, "--watch", names, "--out", "a"]) == 2
        assert not Path("a").exists()
        return capsys.readouterr().err

    assert "--watch 'mlfow': there is no such tracker (perhaps you meant mlflow)." in refused("mlfow")
    assert "there is no such tracker among tensorboard, mlflow, wandb." in refused("comet")
    assert "there is no such tracker" in refused("wandb,")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert refused("wandb").endswith("not installed: pip install 'evenhand[wandb]'.\n")


def test_a_run_whose_tracker_is_gone_is_not_called_damaged(
    told: dict[str, list[Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "fedavg", *QUICK, "--watch", "mlflow", "--out", "a"]) == 0
    monkeypatch.setattr(eh.watch, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["resume", "a", "--rounds", "4"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'evenhand[mlflow]'" in said and "damaged" not in said
