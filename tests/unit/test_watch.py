"""Trackers: they are told what the history holds, change no bit of a run, and never end one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._watch import titled, watchers
from evenhand.types import Algorithm
from evenhand.watch import Watched, Watcher

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
METHOD = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4))
HOW: dict[str, Any] = {"rounds": 4, "cohort": 4, "eval_every": 2}


class Notes:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, Mapping[str, Any], list[tuple[int, Mapping[str, float]]], list[str]]] = []
        self.watcher = Watcher(self.begin)

    def begin(self, name: str, config: Mapping[str, Any]) -> Watched:
        rows: list[tuple[int, Mapping[str, float]]] = []
        ends: list[str] = []
        self.runs.append((name, config, rows, ends))
        return Watched(lambda round, numbers: rows.append((round, numbers)), ends.append)


def rows_of(history: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    return [
        (int(history["round"][i]), {name: history[name][i] for name in history if name != "round"})
        for i in range(len(history["round"]))
    ]


def same(found: list[Any], expected: list[Any]) -> None:
    assert [each[0] for each in found] == [each[0] for each in expected]
    for (_, a), (_, b) in zip(
        found, expected, strict=True
    ):  # before the first round a method reports nothing
        assert {name: value for name, value in a.items() if value == value} == {
            name: value for name, value in b.items() if value == value
        }
        assert len(a) > 10


def test_a_watcher_is_told_the_history_and_changes_no_bit() -> None:
    one, other = Notes(), Notes()
    run = eh.simulate(METHOD, DATA, seed=3, watch=[one.watcher, other.watcher], **HOW)
    alone = eh.simulate(METHOD, DATA, seed=3, **HOW)
    for name, values in alone.params.items():
        np.testing.assert_array_equal(run.params[name], values)
    for notes in (one, other):
        ((name, config, rows, ends),) = notes.runs
        same(rows, rows_of(alone.history))
        assert name == "data, seed 3" and ends == ["done"]
        assert config == {
            "data": "data",
            "clients": 6,
            "cohort": 4,
            "rounds": 4,
            "seed": 3,
            "eval_every": 2,
        }


def test_how_a_run_ends_is_told(tmp_path: Path) -> None:
    notes = Notes()
    runs = eh.simulation.iterate(METHOD, DATA, watch=notes.watcher, checkpoint=tmp_path, **HOW)
    next(runs)
    next(runs)
    runs.close()
    resumed = eh.simulate(METHOD, DATA, watch=notes.watcher, checkpoint=tmp_path, **HOW)
    wild = eh.algorithms.fedavg(eh.local.sgd(MODEL, 500.0, epochs=3, batch_size=1))
    with pytest.warns(eh.errors.EvenhandWarning, match="diverged"):
        eh.simulate(wild, DATA, watch=notes.watcher, **HOW)
    broken = METHOD._replace(
        model=MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) * np.inf)
    )
    with pytest.raises(eh.EvenhandError):
        eh.simulate(broken, DATA, watch=notes.watcher, **HOW)
    assert [each[3] for each in notes.runs] == [["interrupted"], ["done"], ["diverged"], ["failed"]]
    same(notes.runs[1][2], rows_of(resumed.history))  # with what came before the interruption


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_watcher_that_fails_is_dropped_and_the_run_goes_on(where: str) -> None:
    def fail(*_: object) -> Any:
        raise OSError("no network")

    notes, quiet = Notes(), Watched(lambda round, numbers: None, lambda status: None)
    bad = Watcher(fail if where == "begin" else lambda name, config: quiet._replace(**{where: fail}))
    with pytest.warns(eh.errors.EvenhandWarning, match=r"A watcher failed \(OSError: no network\)") as told:
        run = eh.simulate(METHOD, DATA, watch=[bad, notes.watcher], **HOW)
    assert len(told) == 1
    same(notes.runs[0][2], rows_of(run.history))
    assert notes.runs[0][3] == ["done"]


def test_what_is_no_watcher_is_refused() -> None:
    with pytest.raises(eh.EvenhandError, match=r"watch=.*eh\.watch\.tensorboard"):
        eh.simulate(METHOD, DATA, watch="tensorboard", **HOW)  # type: ignore[arg-type]


def test_every_run_of_a_study_is_a_run_of_the_tracker() -> None:
    def fedavg(lr: float) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))

    notes, data = Notes(), eh.data.hold_out(DATA, 0.4)
    grid, halving = {"lr": [0.001, 0.1]}, eh.studies.Halving(2, 0.5)
    study = eh.study(
        {"fedavg": fedavg}, data, seeds=2, grid=grid, halving=halving, watch=notes.watcher, **HOW
    )
    known = {name: (config, rows, ends) for name, config, rows, ends in notes.runs}
    assert len(known) == len(notes.runs) == len(study.outcomes) == 4
    for outcome in study.outcomes:
        config, rows, ends = known[f"{outcome.setting}, seed {outcome.seed}"]
        assert config == {
            "method": "fedavg",
            "lr": outcome.setting.numbers["lr"],
            "seed": outcome.seed,
            "data": data.name,
            "rounds": 4,
            "cohort": 4,
        }
        assert outcome.view is not None and ends == [outcome.status]
        same(rows, rows_of(outcome.view.history))
    assert sorted(each.status for each in study.outcomes) == ["done", "done", "stopped", "stopped"]


# --- the trackers ----------------------------------------------------------------------------------------------------


def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c  # noqa: F401  (the format read below)

    watched = eh.watch.tensorboard(tmp_path).begin("fedprox(mu=1), seed 0", {"lr": 0.5})
    watched.log(7, {"test_accuracy": 0.25})
    watched.log(9, {"test_accuracy": float("nan")})
    watched.end("done")
    (path,) = (tmp_path / "fedprox-mu=1-seed-0").iterdir()
    data, at, values = path.read_bytes(), 0, {}
    while at < len(data):  # length, its check sum, an event, its check sum
        size = int.from_bytes(data[at : at + 8], "little")
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
        for value in event.summary.value:
            values[value.tag, event.step] = (
                value.simple_value if value.HasField("simple_value") else str(value.tensor)
            )
    assert values["test_accuracy", 7] == 0.25 and np.isnan(values["test_accuracy", 9])
    texts = {tag: value for (tag, _), value in values.items()}
    assert '\\"lr\\": 0.5' in texts["settings/text_summary"] and "done" in texts["status/text_summary"]


@pytest.mark.filterwarnings("ignore")  # of the package's own dependencies
def test_mlflow_gets_parameters_metrics_and_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # any other store needs a server or a database
    uri = tmp_path.as_uri()
    watcher = eh.watch.mlflow(uri, experiment="mine")
    for status in ("done", "failed", "interrupted"):
        watched = watcher.begin(f"run {status}", {"lr": 0.5, "long": "x" * 9999})
        watched.log(7, {"test_accuracy": 0.25})
        watched.log(9, {"test_accuracy": 0.5})
        watched.end(status)
    client = package.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert {run.info.run_name: run.info.status for run in runs} == {
        "run done": "FINISHED",
        "run failed": "FAILED",
        "run interrupted": "KILLED",
    }
    assert runs[0].data.params["lr"] == "0.5" and runs[0].data.tags["status"] == "interrupted"
    history = client.get_metric_history(runs[0].info.run_id, "test_accuracy")
    assert [(each.step, each.value) for each in history] == [(7, 0.25), (9, 0.5)]


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_files_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    watched = eh.watch.wandb("mine", mode="offline", folder=tmp_path, group="study").begin("one", {"lr": 0.5})
    other = eh.watch.wandb("mine", mode="offline", folder=tmp_path).begin("two", {})  # side by side
    watched.log(7, {"test_accuracy": 0.25})
    watched.end("done")
    other.end("failed")
    files = [path.read_bytes() for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))]
    assert len(files) == 2
    (first,) = [text for text in files if b"test_accuracy" in text]
    assert all(word in first for word in (b"0.25", b"mine", b"study", b"one", b"lr"))


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, make in (
        ("tensorboardX", lambda: eh.watch.tensorboard("x")),
        ("mlflow", eh.watch.mlflow),
        ("wandb", eh.watch.wandb),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        extra = "tensorboard" if module == "tensorboardX" else module
        with pytest.raises(eh.EvenhandError, match=rf"needs {module}.*pip install 'evenhand\[{extra}\]'"):
            make()


# --- the command line ------------------------------------------------------------------------------------------------


def test_runs_and_studies_of_the_command_line_are_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    quick = ["--clients", "4", "--rounds", "1", "--quiet", "--watch", "tensorboard"]
    assert main(["run", "fedavg", *quick, "--out", "runs/a"]) == 0
    (path,) = Path("runs/a/tensorboard/a").iterdir()
    assert b"fedavg()" in path.read_bytes()
    assert json.loads(Path("runs/a/config.json").read_text())["options"]["watch"] == "tensorboard"
    assert main(["study", "fedavg", *quick, "--seeds", "2", "--out", "studies/a"]) == 0
    assert {path.name for path in Path("studies/a/tensorboard").iterdir()} == {
        "fedavg-seed-0",
        "fedavg-seed-1",
    }
    for command in ("run", "study"):
        assert main([command, "fedavg", "--data", "no/such", "--watch", "tensorbord"]) == 2
        assert "perhaps you meant tensorboard" in capsys.readouterr().err


def test_names_stand_for_trackers_below_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[tuple[str, Any]] = []
    notes = Notes()
    for name in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setattr(
            eh.watch,
            name,
            lambda *places, _name=name, **given: made.append((_name, (places, given))) or notes.watcher,
        )
    assert watchers(None, tmp_path) == [] and len(watchers("wandb, mlflow,tensorboard", tmp_path)) == 3
    assert made == [
        ("wandb", ((), {"folder": tmp_path, "group": tmp_path.name})),
        ("mlflow", ((), {})),
        ("tensorboard", ((tmp_path / "tensorboard",), {})),
    ]
    titled(notes.watcher, "mine", {"lr": 1}).begin("other", {"lr": 0, "seed": 2})
    assert notes.runs[0][:2] == ("mine", {"lr": 1, "seed": 2})
