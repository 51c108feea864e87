"""Trackers are told the numbers of the history, change no bit of it, and cannot end a training."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import evenhand as eh
from evenhand.cli import _deploy
from evenhand.errors import EvenhandError, EvenhandWarning
from evenhand.simulation import Run, iterate
from evenhand.simulation._checkpoint import Checkpoints
from evenhand.studies import Halving, load
from evenhand.watch import Watched, Watcher

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
HOW: dict[str, Any] = {"rounds": 4, "eval_every": 2, "cohort": 4}


@cache  # the same method each time, whose rounds are then traced once
def fedavg(lr: float) -> eh.Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))


class Notes:
    """A tracker that keeps what it is told: a dict for each run."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.watcher = Watcher(self._begin)

    def _begin(self, name: str, config: Any) -> Watched:
        run: dict[str, Any] = {"name": name, "config": config, "rows": [], "status": []}
        self.runs.append(run)
        return Watched(lambda *row: run["rows"].append(row), run["status"].append)


def rows_of(history: Any) -> list[tuple[int, dict[str, float]]]:
    """What is to be logged of a history: all of it but what does not exist before the first round."""
    names = [name for name in history if name != "round"]
    return [
        (round, {name: history[name][i] for name in names if round or not np.isnan(history[name][i])})
        for i, round in enumerate(history["round"].tolist())
    ]


def test_what_is_logged_is_the_history_and_the_settings() -> None:
    one, two = Notes(), Notes()
    run = eh.simulate(fedavg(0.1), DATA, seed=3, watch=[one.watcher, two.watcher], **HOW)
    assert one.runs == two.runs
    [told] = one.runs
    assert told["name"] == f"{run.algorithm.name} on {DATA.name}, seed 3"
    assert told["config"] == {
        "method": run.algorithm.name,
        "data": DATA.name,
        "clients": DATA.num_clients,
        "seed": 3,
        **HOW,
    }
    assert told["rows"] == rows_of(run.history) and len(told["rows"]) == 3
    assert "update_norm" in told["rows"][-1][1] and "update_norm" not in told["rows"][0][1]
    assert told["status"] == ["done"]


def test_watching_changes_no_bit() -> None:
    def bits(run: Run) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves((dict(run.history), run.params))]

    plain = eh.simulate(fedavg(0.1), DATA, **HOW)
    watched = eh.simulate(fedavg(0.1), DATA, watch=Notes().watcher, **HOW)
    np.testing.assert_equal(bits(watched), bits(plain))


def test_a_resumed_run_is_told_all_of_its_history(tmp_path: Path) -> None:
    notes = Notes()
    for rounds in (2, 4):
        how = {**HOW, "rounds": rounds}
        run = eh.simulate(fedavg(0.1), DATA, checkpoint=tmp_path, watch=notes.watcher, **how)
    assert [told["rows"] for told in notes.runs] == [
        [row for row in rows_of(run.history) if row[0] <= rounds] for rounds in (2, 4)
    ]


@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")
def test_how_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    eh.simulate(fedavg(1e5), DATA, watch=notes.watcher, **HOW)
    for _ in iterate(fedavg(0.1), DATA, watch=notes.watcher, **HOW):
        break

    def full(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(OSError, match="no room"):
        eh.simulate(fedavg(0.1), DATA, watch=notes.watcher, checkpoint=tmp_path, **HOW)
    assert [told["status"] for told in notes.runs] == [["diverged"], ["interrupted"], ["failed"]]


@pytest.mark.parametrize("error", [ConnectionError("no network"), SystemExit("no network")])
@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_dropped_with_one_warning(where: str, error: BaseException) -> None:
    notes, asked = Notes(), list[str]()

    def fails(what: str) -> None:
        asked.append(what)
        if what == where:
            raise error

    def begin(name: str, config: Any) -> Watched:
        fails("begin")
        return Watched(lambda round, numbers: fails("log"), lambda status: fails("end"))

    with pytest.warns(EvenhandWarning) as told:
        run = eh.simulate(fedavg(0.1), DATA, watch=[Watcher(begin), notes.watcher], **HOW)
    [warning] = told
    assert "no longer logs" in str(warning.message) and f"{type(error).__name__}: no network" in str(
        warning.message
    )
    assert (
        asked == {"begin": ["begin"], "log": ["begin", "log"], "end": ["begin", *["log"] * 3, "end"]}[where]
    )
    assert notes.runs[0]["rows"] == rows_of(run.history)


def test_each_run_of_a_study_is_tracked(tmp_path: Path) -> None:
    other = eh.models.softmax_regression(features=99, classes=10)
    methods = {
        "fedavg": fedavg,
        "broken": eh.algorithms.fedavg(eh.local.sgd(other, 0.1, epochs=1, batch_size=4)),
    }
    notes = Notes()

    def make(seeds: int) -> Any:
        how = {"grid": {"lr": [0.01, 0.1]}, "folder": tmp_path, "checkpoint": 0.0, "watch": notes.watcher}
        return eh.study(methods, eh.data.hold_out(DATA), seeds=seeds, **how, **HOW)

    found = make(1)
    told = {run["name"]: run for run in notes.runs}
    assert len(told) == len(notes.runs) == 3
    for outcome in found.outcomes:
        run = told[f"{outcome.setting}, seed 0"]
        assert run["status"] == [outcome.status]
        assert run["rows"] == ([] if outcome.view is None else rows_of(outcome.view.history))
        assert run["config"].items() >= {**outcome.setting.numbers, "seed": 0, **HOW}.items()
    assert told["broken(), seed 0"]["status"] == ["failed"]
    make(2)
    assert sorted(run["name"] for run in notes.runs[3:]) == [
        "broken(), seed 1",
        "fedavg(lr=0.01), seed 1",
        "fedavg(lr=0.1), seed 1",
    ]
    assert len(load(tmp_path).outcomes) == 6


def test_a_run_that_halving_lets_go_on_stays_one_run() -> None:
    notes = Notes()
    how = {**HOW, "rounds": 6, "grid": {"lr": [0.01, 0.1, 0.3]}, "halving": Halving(2), "seeds": 1}
    found = eh.study({"fedavg": fedavg}, eh.data.hold_out(DATA), watch=notes.watcher, **how)
    told = {run["name"]: run for run in notes.runs}
    assert len(told) == len(notes.runs) == 3
    for outcome in found.outcomes:
        run = told[f"{outcome.setting}, seed 0"]
        assert outcome.view is not None and run["rows"] == rows_of(outcome.view.history)
        assert run["status"] == [outcome.status]
    assert sorted(run["status"][0] for run in notes.runs) == ["done", "stopped", "stopped"]


def test_a_study_that_is_interrupted_ends_its_tracked_runs() -> None:
    notes = Notes()

    def stop(round: int, numbers: Any) -> None:
        if round:
            raise KeyboardInterrupt

    stops = Watcher(lambda name, config: Watched(stop, lambda status: None))
    with pytest.raises(KeyboardInterrupt):
        eh.study({"fedavg": fedavg(0.1)}, DATA, seeds=2, watch=[notes.watcher, stops], **HOW)
    assert notes.runs and all(run["status"] == ["interrupted"] for run in notes.runs)


@pytest.mark.parametrize("wrong", ["tensorboard", ["mlflow"], eh.watch.tensorboard, Watched(print, print)])
def test_something_else_is_refused_before_anything_runs(wrong: Any) -> None:
    with pytest.raises(EvenhandError, match=r'watch=.*give a value such as eh\.watch\.tensorboard\("logs"\)'):
        eh.simulate(fedavg(0.1), DATA, watch=wrong, **HOW)
    with pytest.raises(EvenhandError, match="watch="):
        eh.study({"fedavg": fedavg(0.1)}, DATA, watch=wrong, **HOW)


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboardX", lambda: eh.watch.tensorboard("logs")),
        ("mlflow", eh.watch.mlflow),
        ("wandb", eh.watch.wandb),
    ],
)
def test_a_package_that_is_missing_is_named(module: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EvenhandError, match=rf"package {module}, .* pip install 'evenhand\[\w+\]'\.$"):
        make()


def test_names_that_mlflow_refuses_are_written_without_what_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of several methods side by side has columns such as ``train_loss (q=0)``."""
    logged: list[str] = []

    def log_batch(run: str, *, metrics: Any = (), params: Any = ()) -> None:
        for key, *_ in (*metrics, *params):
            assert re.match(r"^[/\w.\- ]*$", key), "what MLflow itself checks, on every system"
            logged.append(key)

    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="0"),
        create_run=lambda place, run_name: SimpleNamespace(info=SimpleNamespace(run_id="1")),
        log_batch=log_batch,
        set_tag=lambda *arguments: None,
        set_terminated=lambda *arguments: None,
    )
    entities = SimpleNamespace(Param=lambda *parts: parts, Metric=lambda *parts: parts)
    package: Any = ModuleType("mlflow")
    package.MlflowClient, package.entities = lambda uri: client, entities
    monkeypatch.setitem(sys.modules, "mlflow", package)
    both = eh.algorithms.side_by_side({"q=0": fedavg(0.1), "q=1": fedavg(0.2)})
    run = eh.simulate(both, DATA, watch=eh.watch.mlflow(), **HOW)
    assert "train_loss (q=0)" in run.history and {"train_loss q 0", "train_loss q 1", "test_loss"} <= set(
        logged
    )
    assert len(set(logged)) == len(run.history) - 1 + len(
        ("method", "data", "clients", "rounds", "seed", "cohort", "eval_every")
    )


def test_a_federation_that_fails_for_any_reason_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    run, notes = eh.simulate(fedavg(0.1), DATA, **HOW), Notes()

    def serve(*_: Any, **__: Any) -> Iterator[Run]:
        yield run
        raise OSError("no space left on device")

    file = SimpleNamespace(options={}, method="fedavg", rounds=4, seed=0, run="1")
    monkeypatch.setattr(_deploy, "serve_run", serve)
    monkeypatch.setattr(_deploy.files, "read_server", lambda folder: file)
    carrier: Any = SimpleNamespace(connected=list)
    log: Any = None  # nothing is logged before the error
    with pytest.raises(OSError, match="no space"):
        _deploy.train(
            Path(),
            lambda form: fedavg(0.1),
            carrier,
            log,
            Console(quiet=True),
            [notes.watcher],
        )
    assert notes.runs[0]["status"] == ["failed"]
