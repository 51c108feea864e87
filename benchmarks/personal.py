"""What personal models cost: per round, and in memory with a state at each of very many clients.

    python benchmarks/personal.py [--repeats 7] [--one 100000 784 10 memory]

Prints median milliseconds per round of Ditto, FedAlt, FedSim and APFL beside FedAvg with the same local work, in
turns; and, for a federation of so many clients, how long a round takes with the states on the device, in memory and in
files, what a checkpoint writes, and the peak of memory beyond the data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from evenhand_rounds import dataset, network
from fair import Rounds
from rich.console import Console
from rich.table import Table
from tasks import TASKS, Task

import evenhand as eh

_ROUNDS, _COHORT, _ROWS = 100, 100, 5


def methods(task: Task) -> dict[str, eh.Algorithm]:
    """Personal methods with the task's local work; "twice the work" trains two models, as Ditto does."""
    model, rate = network(task), task.lr
    epochs = None if task.steps else 1
    work = eh.local.sgd(model, rate, epochs=epochs, steps=task.steps, batch_size=task.batch)
    fedavg, personal = eh.algorithms.fedavg(work), eh.personalization
    output = "output" if task.model == "mlp" else "bias"
    return {
        "FedAvg": fedavg,
        "Ditto": personal.ditto(fedavg, work, lam=1.0),
        "FedAlt": personal.fedalt(work, personal=output),
        "FedSim": personal.fedsim(work, personal=output),
        "APFL": personal.apfl(work),
        "local only": personal.local_only(work),
    }


def per_round(repeats: int) -> Table:
    """Milliseconds, and ratios to FedAvg."""
    table = Table(title="What a personal model costs per round; medians")
    for column in ("task", "method", "ms", "/ FedAvg"):
        table.add_column(column, justify="left" if column in ("task", "method") else "right")
    for name in ("lr-mnist", "mlp"):
        task = TASKS[name]
        data = dataset(task)
        running = {label: Rounds(method, data, task) for label, method in methods(task).items()}
        turns = {label: np.zeros(repeats) for label in running}
        for turn in range(repeats):
            for label, rounds in running.items():
                turns[label][turn] = rounds.run(task.rounds)
        for label, seconds in turns.items():
            ratio = statistics.median(seconds / turns["FedAvg"])
            table.add_row(name, label, f"{1e3 * statistics.median(seconds):.2f}", f"{ratio:.2f}")
    return table


def federation(clients: int, features: int, classes: int) -> eh.data.FederatedDataset:
    """So many clients with a few examples each, of which one is for testing."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(features, classes)).astype(np.float32)

    def split(rows: int) -> eh.data.Split:
        x = rng.standard_normal((clients * rows, features), np.float32)
        y = np.argmax(x @ truth, axis=1).astype(np.int32) if rows else np.zeros(0, np.int32)
        return eh.data.Split(x, y, np.arange(clients + 1) * rows)

    names = tuple(map(str, range(clients)))
    return eh.data.FederatedDataset(split(_ROWS), split(0), split(1), names)


def at_scale(clients: int, features: int, classes: int, where: str) -> dict[str, Any]:
    """One federation with its states ``where``, in this process."""
    data = federation(clients, features, classes)
    model = eh.models.softmax_regression(features=features, classes=classes)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=_ROWS)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=1.0)
    before, folder = _resident(), Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    offload: Any = {"device": False, "memory": True, "files": folder / "states"}[where]
    runs = eh.simulation.iterate(
        method,
        data,
        rounds=3 * _ROUNDS,
        cohort=_COHORT,
        eval_every=_ROUNDS,
        offload=offload,
        checkpoint=folder / "checkpoint",
    )
    seconds, written = list[float](), list[float]()
    begin = time.perf_counter()
    for run in runs:
        spent = run.info["seconds"]
        seconds.append(spent["train"] + spent["data"])
        last = max(run.info["rounds"], 1)
        files = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
        new = [path for path in files if f"{last:010d}" in path.name or f"/{last}/" in str(path)]
        written.append(sum(path.stat().st_size for path in new) / 1e6)
        evaluated = spent["evaluate"]
    found = {
        "clients": clients,
        "numbers": features * classes + classes,
        "states": where,
        "ms_per_round": round(1e3 * (seconds[-1] - seconds[1]) / (2 * _ROUNDS), 2),
        "evaluate_all_s": round(evaluated / len(seconds), 2),
        "checkpoint_mb": round(written[-1]),
        "save_s": round(run.info["seconds"]["checkpoint"] / 3, 2),
        "whole_s": round(time.perf_counter() - begin, 1),
        "states_gb": round(clients * 4 * (features * classes + classes) / 1e9, 2),
        "peak_beyond_data_gb": round((_peak() - before) / 1e9, 2),
    }
    shutil.rmtree(folder)
    return found


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    """Bytes of this process at its largest, pages of files among them."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--one", nargs=4, default=None, help="clients features classes place: in this process"
    )
    options = parser.parse_args()
    if options.one is not None:
        clients, features, classes = map(int, options.one[:3])
        print(json.dumps(at_scale(clients, features, classes, options.one[3])))
        return
    Console(width=100).print(per_round(options.repeats))
    for clients, features, classes in ((100_000, 784, 10), (1_000_000, 60, 10)):
        for where in ("device", "memory", "files"):
            command = [sys.executable, __file__, "--one", *map(str, (clients, features, classes)), where]
            print(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True
            )


if __name__ == "__main__":
    main()
