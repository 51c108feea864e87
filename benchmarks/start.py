"""What the first rounds of a process cost: python benchmarks/start.py [logistic mlp cnn] [--rounds 2] [--turns 5].

Each measurement is a process of its own; those with an empty cache of compiled programs and those with a filled one
take turns.  CPU time counts all cores together, and wall-clock time begins with this script; both leave out making the
data.  Python's own files are compiled before, as pip does when it installs a package.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

BEGIN = time.perf_counter()
TASKS = ("logistic", "mlp", "cnn")


def one(task: str, rounds: int) -> None:
    """Prints, of this process: wall-clock seconds, and CPU seconds, without those of the data."""
    import numpy as np

    import evenhand as eh

    models = {
        "logistic": lambda: eh.models.softmax_regression(28 * 28, classes=62),
        "mlp": lambda: eh.models.mlp(28 * 28, classes=62),
        "cnn": eh.models.cnn_femnist,
    }
    wall, processor = time.perf_counter(), time.process_time()
    rng = np.random.default_rng(0)
    x, y = rng.random((400, 28, 28, 1), np.float32), rng.integers(0, 62, 400)
    rows = x if task == "cnn" else x.reshape(400, -1)
    data = eh.data.from_arrays(rows, y, np.repeat(np.arange(20), 20), test_fraction=0.2)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    method = eh.algorithms.fedavg(eh.local.sgd(models[task](), 0.05, steps=1, batch_size=20))
    eh.simulate(method, data, rounds=rounds, cohort=10)
    print(f"{time.perf_counter() - BEGIN - wall:.3f} {time.process_time() - processor:.3f}")


def in_process(task: str, rounds: int, environment: Mapping[str, str]) -> tuple[float, float]:
    """What :func:`one` prints in a process of its own."""
    command = [sys.executable, __file__, task, "--rounds", str(rounds), "--one"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    wall, processor = map(float, done.stdout.split())
    return wall, processor


def first_and_later(task: str, rounds: int, turns: int) -> tuple[list[float], list[float]]:
    """Median wall-clock and CPU seconds: with an empty cache, and with a filled one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    first, later = list[tuple[float, float]](), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as compiled:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        with tempfile.TemporaryDirectory() as cache:
            in_process(task, rounds, {**environment, "XDG_CACHE_HOME": cache})  # compiles Python's files
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as cache:
                environment["XDG_CACHE_HOME"] = cache
                first.append(in_process(task, rounds, environment))
                later.append(in_process(task, rounds, environment))
    empty, filled = (
        [statistics.median(column) for column in zip(*times, strict=True)] for times in (first, later)
    )
    return empty, filled


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # With "*", argparse also compares its default, an empty list, with the choices.
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--rounds", type=int, default=2, help="up to the end of which round")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.tasks[0], asked.rounds)
        return
    print("seconds, and in brackets of CPU time:  empty cache    filled cache")
    for task in asked.tasks or TASKS:
        pairs = first_and_later(task, asked.rounds, asked.turns)
        print(f"{task:38} " + "  ".join(f"{wall:5.2f} ({cpu:5.2f})" for wall, cpu in pairs), flush=True)


if __name__ == "__main__":
    main()
