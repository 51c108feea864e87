"""Studies on a real Dask cluster and on jobs of submitit: the same page, whichever worker or study is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.records import LOCK
from evenhand.studies import load, study

DATA = eh.data.load("digits", clients=6, valid_fraction=0.2)
MODEL = eh.models.softmax_regression(features=64, classes=10)
HOW = "--cohort 3 --rounds 16 --eval-every 1 --seeds 2 --lr 0.01,0.1 --checkpoint 0 --quiet --out"
WORDS = ["study", "fedavg", "--data", "digits", "--clients", "6", *HOW.split()]


class Cluster:
    """A scheduler of Dask and its workers, each a process with one thread and one device."""

    def __init__(self, folder: Path) -> None:
        self._file, self._folder = folder / "scheduler.json", folder
        self._environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"),
        }
        self._scheduler = self._start("scheduler", "--port", "0", "--host", "127.0.0.1")
        while not self._file.exists():
            time.sleep(0.05)
        self.address: str = json.loads(self._file.read_text())["address"]
        self.workers = [self._worker() for _ in range(2)]

    def _start(self, role: str, *words: str) -> subprocess.Popen[bytes]:
        # In the words of `dask scheduler` and `dask worker`, whose scripts need not be on PATH.
        command = [sys.executable, "-m", f"distributed.cli.dask_{role}", "--scheduler-file", str(self._file)]
        with (self._folder / f"{role}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--no-dashboard", *words], stdout=log, stderr=log, env=self._environment
            )

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder / "local")
        )

    def kill(self, process: int) -> None:
        """Kills a worker, and starts another one in its place."""
        [worker] = [worker for worker in self.workers if worker.pid == process]
        worker.kill()
        worker.wait()
        self.workers = [self._worker() if other is worker else other for other in self.workers]

    def close(self) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study in this process."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*WORDS, str(folder)]) == 0
    return folder


def results(folder: Path) -> dict[str, str]:
    """The results as text without what depends on the clock, and the plan."""
    texts = {"plan": (folder / "plan.json").read_text()}
    for path in sorted(folder.glob("runs/*/result.json")):
        value = json.loads(path.read_text())
        del value["sha256"], value["view"]["info"]["seconds"], value["view"]["info"]["examples_per_second"]
        texts[path.parent.name] = json.dumps(value)
    return texts


def page(folder: Path) -> str:
    """The study's page, as if each run had taken no time."""
    found = load(folder)
    outcomes = []
    for outcome in found.outcomes:
        assert outcome.view is not None
        clock = {"seconds": dict.fromkeys(outcome.view.info["seconds"], 1.0), "examples_per_second": 1.0}
        outcomes.append(outcome._replace(view=outcome.view._replace(info={**outcome.view.info, **clock})))
    about = {**found.about, "command": re.sub(r"--out \S+", "", found.about["command"])}
    path = replace(found, outcomes=tuple(outcomes), about=about).report(folder / "timeless.html")
    return Path(path).read_text()


def holder(folder: Path) -> int:
    """The process that has a run in training, once there is one that has saved a state."""
    while True:
        for lock in folder.glob(f"runs/*/checkpoint/{LOCK}"):
            has_state = any(path.name.isdecimal() and path.name != "0" for path in lock.parent.iterdir())
            if has_state and (process := re.search(r"process (\d+)", lock.read_text())):
                return int(process[1])
        time.sleep(0.01)


def test_a_killed_workers_column_is_trained_elsewhere(
    whole: Path, cluster: Cluster, tmp_path: Path, thorough: bool
) -> None:
    for trial in range(10 if thorough else 1):
        folder, killed = tmp_path / str(trial), list[int]()

        def strike(folder: Path = folder, killed: list[int] = killed, trial: int = trial) -> None:
            process = holder(folder)
            time.sleep(random.Random(trial).uniform(0, 0.5))
            cluster.kill(process)
            killed.append(process)

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        assert main([*WORDS, str(folder), "--dask", cluster.address]) == 0
        thread.join(10)
        assert len(killed) == 1
        assert results(folder) == results(whole)
        assert page(folder) == page(whole)
        assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_killed_study_goes_on(whole: Path, cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evenhand.cli", *WORDS, str(tmp_path), "--dask", cluster.address]
    environment = {
        **os.environ,
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"),
    }
    with subprocess.Popen(command, env=environment) as process:
        holder(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "study.json").exists()
    # Its worker still trains a column, which the next study waits for.
    assert main([*WORDS, str(tmp_path), "--dask", cluster.address]) == 0
    assert results(tmp_path) == results(whole)
    assert page(tmp_path) == page(whole)


def test_halving_at_workers_gives_the_same_bits(cluster: Cluster, tmp_path: Path) -> None:
    def fedavg(lr: float) -> eh.Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=20))

    def made(folder: Path, executor: Any) -> dict[str, str]:
        how: dict[str, Any] = {"rounds": 4, "seeds": 1, "cohort": 3, "eval_every": 2, "folder": folder}
        halving = eh.studies.Halving(2, 0.5)
        study({"f": fedavg}, DATA, grid={"lr": [0.01, 0.1]}, halving=halving, executor=executor, **how)
        return results(folder)

    with distributed.Client(cluster.address) as client:
        assert made(tmp_path / "there", client.get_executor()) == made(tmp_path / "here", None)


def test_jobs_of_submitit_give_the_same_page(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main([*WORDS, str(tmp_path), "--slurm", "cluster=local,timeout_min=10"]) == 0
    assert results(tmp_path) == results(whole)
    assert page(tmp_path) == page(whole)
    assert list((tmp_path / "jobs").glob("*.out"))
