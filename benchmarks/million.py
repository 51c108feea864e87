"""Whether a run over a million clients costs more per round than one over ten thousand.

    python benchmarks/million.py [--clients 1000000] [--method fedavg] [--rows auto]

Prints one line of JSON: seconds to set up (from the arrays to the first evaluation, of a sample), to compile, and
median milliseconds per round at both numbers of clients and their ratio, peak memory of the whole process in MB.
The two runs take turns, so that whatever else the machine does affects both.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import evenhand as eh

FEATURES, CLASSES, ROWS = 60, 10, 20


class Timed(NamedTuple):
    """A run that continues when asked, the seconds to set it up, and those trained up to each evaluation."""

    runs: Iterator[Any]
    set_up: float
    rounds: list[float]


def split(clients: int, rows: int, seed: int, place: str) -> eh.data.Split:
    """Rows of a linear model with label noise; read-only, so that they need not be copied."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).normal(size=(FEATURES, CLASSES)).astype(np.float32)
    count = clients * rows
    if place == "mapped":
        file = Path(tempfile.mkdtemp()) / "x.npy"
        x = np.lib.format.open_memmap(file, "w+", np.float32, (count, FEATURES))
    else:
        whole = np.empty(count * FEATURES + 16, np.float32)
        begin = (-whole.ctypes.data % 64) // 4 if place == "resident" else 0
        x = whole[begin : begin + count * FEATURES].reshape(count, FEATURES)
    y = np.empty(count, np.int32)
    for first in range(0, count, 100_000):
        part = slice(first, min(first + 100_000, count))
        x[part] = rng.standard_normal((part.stop - first, FEATURES), np.float32)
        scores = x[part] @ truth
        y[part] = np.argmax(scores + rng.gumbel(size=scores.shape).astype(np.float32), axis=1)
    if place == "mapped":
        x.flush()
        x = np.load(file, mmap_mode="r")
        file.unlink()  # a mapped file stays until it is no longer used
    x.setflags(write=False)
    y.setflags(write=False)
    return eh.data.Split(x, y, np.arange(0, count + 1, rows))


def begin(clients: int, options: argparse.Namespace) -> Timed:
    """The run up to its first evaluation."""
    train, test = (split(clients, rows, seed, options.rows) for rows, seed in ((ROWS, 1), (1, 2)))
    model = eh.models.softmax_regression(features=FEATURES, classes=CLASSES)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    start = time.perf_counter()
    none = eh.data.Split(test.x[:0], test.y[:0], np.zeros(clients + 1, np.int64))
    data = eh.data.FederatedDataset(train, none, test, tuple(map(str, range(clients))))
    method = getattr(eh.algorithms, options.method)(work)
    if options.sampling != "uniform":
        sampling = eh.sampling.proportional(replace=options.sampling == "proportional")
        method = method._replace(sampling=sampling)
    runs = eh.simulation.iterate(
        method,
        data,
        rounds=options.block * (options.repeats + 1),
        cohort=min(options.cohort, clients),
        eval_every=options.block,
        eval_clients=options.eval_clients or None,
        devices=options.devices,
        stream={"auto": None, "mapped": None, "resident": False, "streamed": True}[options.rows],
    )
    next(runs)
    return Timed(runs, time.perf_counter() - start, [])


def train_block(timed: Timed, options: argparse.Namespace) -> dict[str, float]:
    """One block of rounds and an evaluation; returns seconds so far."""
    seconds = next(timed.runs).info["seconds"]
    trained = seconds["train"] + seconds["data"]
    timed.rounds.append(trained)
    return seconds


def per_round(timed: Timed, options: argparse.Namespace) -> float:
    """Median milliseconds; the first block is left out."""
    blocks = [b - a for a, b in zip(timed.rounds, timed.rounds[1:], strict=False)]
    return 1000 * statistics.median(blocks) / options.block


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--sampling", default="uniform")
    parser.add_argument("--rows", choices=("auto", "resident", "streamed", "mapped"), default="auto")
    parser.add_argument("--eval-clients", type=int, default=1000, help="0: all")
    parser.add_argument("--block", type=int, default=200, help="rounds per measurement")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--devices", type=int, default=None)
    options = parser.parse_args()
    many, few = begin(options.clients, options), begin(options.few, options)
    seconds: dict[str, float] = {}
    for _ in range(options.repeats + 1):
        seconds = train_block(many, options)
        train_block(few, options)
    few_ms, many_ms = per_round(few, options), per_round(many, options)
    print(
        json.dumps(
            {
                "clients": options.clients,
                "method": options.method,
                "sampling": options.sampling,
                "rows": options.rows,
                "set_up_s": round(many.set_up, 2),
                "compile_s": round(seconds["compile"], 2),
                "evaluate_s": round(seconds["evaluate"] / (options.repeats + 2), 4),
                "waited_for_rows_s": round(seconds["data"], 4),
                f"ms_per_round_{options.few}": round(few_ms, 3),
                f"ms_per_round_{options.clients}": round(many_ms, 3),
                "ratio": round(many_ms / few_ms, 3),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
