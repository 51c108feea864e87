"""What a study costs beside the loop that a person would write instead of it.

    python benchmarks/study.py [--repeats 3] [--alone loop|study]

Both make the same runs in one warm process, in turns: five seeds of nine step sizes of softmax regression
on Synthetic(1,1) (100 clients, 200 rounds of 10 clients), and two seeds of two step sizes of the FEMNIST CNN
(3 rounds of 5 clients), which train one after another in both.  Medians of seconds, and of the
ratio of each turn.  ``--alone`` makes the first of them by the loop, or by the study, and prints the peak memory of the
process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

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


def study(of: Task) -> None:
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
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", choices=("loop", "study"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore", eh.errors.EvenhandWarning)  # the largest steps diverge on some data
    ways = {"loop": loop, "study": study}
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
