"""What a study costs beside the loop that a person would write instead of it.

    python benchmarks/study.py [--repeats 3] [--alone loop|study] [--dask]

Both make the same runs in one warm process, in turns: five seeds of nine step sizes of softmax regression
on Synthetic(1,1) (100 clients, 200 rounds of 10 clients), and two seeds of two step sizes of the FEMNIST CNN
(3 rounds of 5 clients), which train one after another in both.  Medians of seconds, and of the
ratio of each turn.  ``--alone`` makes the first of them by the loop, or by the study, and prints the peak memory of the
process.  ``--dask`` instead makes 20 runs of the CNN with one worker of Dask and with two, in turns, each on a core of
its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh
from evenhand.types import Algorithm


class Task(NamedTuple):
    """Runs to make."""

    data: eh.data.FederatedDataset
    make: Callable[[float], Algorithm]
    steps: list[float]
    seeds: int
    rounds: int
    cohort: int
    eval_every: int


def logistic() -> Task:
    data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=100, seed=0)
    model = eh.models.softmax_regression(features=60, classes=10)
    steps = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.6, 0.9]

    def make(lr: float) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(model, lr, epochs=1, batch_size=10))

    return Task(data, make, steps, 5, 200, 10, 10)


def cnn() -> Task:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1000, 28, 28, 1)).astype(np.float32), rng.integers(0, 62, 1000).astype(np.int32)
    rows = eh.data.Split(x, y, np.arange(0, 1001, 100))
    none = eh.data.Split(x[:0], y[:0], np.zeros(11, np.int64))
    data = eh.data.FederatedDataset(rows, none, rows, tuple("abcdefghij"))
    model = eh.models.cnn_femnist(classes=62)

    def make(lr: float) -> Algorithm:
        return eh.algorithms.fedavg(eh.local.sgd(model, lr, steps=5, batch_size=20))

    return Task(data, make, [0.01, 0.03], 2, 3, 5, 3)


def loop(of: Task) -> None:
    """What a person would write."""
    for lr in of.steps:
        method = of.make(lr)
        for seed in range(of.seeds):
            how = {"rounds": of.rounds, "cohort": of.cohort, "eval_every": of.eval_every, "seed": seed}
            eh.simulate(method, of.data, **how)


def study(of: Task, executor: Any = None, folder: str | None = None) -> None:
    """The same runs as a study; the choice by training examples spares others."""
    eh.study(
        {"fedavg": lambda lr: of.make(lr)},
        of.data,
        rounds=of.rounds,
        seeds=of.seeds,
        grid={"lr": of.steps},
        select=("train", "mean"),
        cohort=of.cohort,
        eval_every=of.eval_every,
        folder=folder,
        executor=executor,
    )


@contextmanager
def executor_of(workers: int) -> Iterator[Any]:
    """An executor of Dask with so many workers, each a process with one thread on a core of its own."""
    from distributed import Client

    with TemporaryDirectory() as folder:
        address = Path(folder) / "scheduler.json"

        def start(role: str, core: int | None, *words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", f"distributed.cli.dask_{role}", "--scheduler-file", str(address)]
            process = subprocess.Popen([*command, "--no-dashboard", *words], stderr=subprocess.DEVNULL)
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            return process

        processes = [start("scheduler", None, "--port", "0")]
        while not address.exists():
            time.sleep(0.1)
        how = ("--nthreads", "1", "--no-nanny", "--local-directory", folder)
        cores = sorted(os.sched_getaffinity(0))
        processes += [start("worker", cores[k], *how) for k in range(workers)]
        try:
            with Client(json.loads(address.read_text())["address"]) as client:
                client.wait_for_workers(workers)
                yield client.get_executor()
        finally:
            for process in processes:
                process.kill()
                process.wait()


def by_workers(repeats: int) -> None:
    """Prints how long 20 runs of the CNN take with one worker and with two."""
    of, seconds = cnn()._replace(steps=[0.001 * 1.5**k for k in range(10)]), dict[int, list[float]]()
    with executor_of(1) as one, executor_of(2) as two:
        for turn in range(repeats + 1):
            for workers, executor in ((1, one), (2, two)):
                with TemporaryDirectory() as folder:
                    begin = time.perf_counter()
                    study(of, executor, folder)
                    if turn:  # the first compiles
                        seconds.setdefault(workers, []).append(time.perf_counter() - begin)
    ratio = statistics.median(b / a for a, b in zip(seconds[1], seconds[2], strict=True))
    each = ", ".join(
        f"{workers} workers {statistics.median(found):.1f} s" for workers, found in seconds.items()
    )
    print(f"FEMNIST CNN, 20 runs: {each}, ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", choices=("loop", "study"))
    parser.add_argument("--dask", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", eh.errors.EvenhandWarning)  # the largest steps diverge on some data
    ways = {"loop": loop, "study": study}
    if asked.dask:
        by_workers(asked.repeats)
        return
    if asked.alone is not None:
        ways[asked.alone](logistic())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(f"{asked.alone}: peak memory {peak:.0f} MB")
        return
    for name, of in (("logistic, 45 runs", logistic()), ("FEMNIST CNN, 4 runs", cnn())):
        few = of._replace(seeds=2, steps=of.steps[:2], rounds=min(of.rounds, 20))
        for way in ways.values():
            way(few)  # warm
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(asked.repeats):
            for way, run in ways.items():
                begin = time.perf_counter()
                run(of)
                seconds[way].append(time.perf_counter() - begin)
        ratio = statistics.median(b / a for a, b in zip(seconds["loop"], seconds["study"], strict=True))
        each = ", ".join(f"{way} {statistics.median(found):.1f} s" for way, found in seconds.items())
        print(f"{name}: {each}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
