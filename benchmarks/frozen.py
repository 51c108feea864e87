"""What freezing saves: python benchmarks/frozen.py [--repeats 3].

Prints, for Ditto over 1,000 clients and a network of which 95 % is frozen or nothing is, what the clients' states take,
and by how much the peak of memory is above that of ten clients.  Then, for a frozen array of 41 MB, how long compiling
and evaluating takes, and the peak of memory beyond the data, if it is an argument of the programs, as it is, and if it
is written into each of them, as JAX 0.10 does.  Each measurement is a process of its own; those that are compared take
turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import evenhand as eh

CLIENTS, FEATURES, HIDDEN, CLASSES = 1_000, 64, 1_000, 50
"""Of 1,116,050 parameters, 50,050 are trained."""
FEW = 10
"""Clients in a round."""
WIDTH = 3_200
"""A square matrix of so many columns takes 41 MB."""
GOAL = 0.1
"""The memory of the states with 95 % frozen, over that without, is to be less."""


def resident(line: str) -> float:
    """Megabytes of this process: ``VmRSS`` now, ``VmHWM`` at its largest."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(text.split()[1]) / 1024 for text in lines if text.startswith(line))


def dataset(clients: int, features: int) -> eh.data.FederatedDataset:
    """Five examples at each client, of which one is for testing."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5 * clients, features), np.float32)
    y = rng.integers(0, 2, 5 * clients).astype(np.int32)
    return eh.data.from_arrays(x, y, np.repeat(np.arange(clients), 5), test_fraction=0.2)


def measured(clients: int, features: int, hidden: int, classes: int, frozen: bool) -> dict[str, float]:
    """One run of Ditto in this process."""
    data = dataset(clients, features)
    model = eh.models.mlp(features, classes=classes, hidden=(hidden, hidden))
    if frozen:
        model = eh.models.freeze(model, model.init(jax.random.key(0)), "dense_*")
    work = eh.local.sgd(model, 0.01, epochs=1, batch_size=4)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    before = resident("VmRSS")
    if clients > FEW:  # what compilers and evaluations take does not depend on the number of clients
        eh.simulate(method, dataset(FEW, features), rounds=2, cohort=FEW, eval_clients=FEW)
        before = resident("VmHWM")
    run = eh.simulate(method, data, rounds=2, cohort=FEW, eval_clients=FEW)
    seconds = run.info["seconds"]
    return {
        "states": sum(leaf.nbytes for leaf in jax.tree.leaves(run.state.clients)) / 2**20,
        "peak": resident("VmHWM") - before,
        "compile": seconds["compile"],
        "evaluate": seconds["evaluate"],
    }


def processes(
    cases: dict[str, tuple[list[str], dict[str, str]]], repeats: int
) -> dict[str, dict[str, float]]:
    """The medians of each case, which take turns."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (arguments, settings) in cases.items():
            # Compiled programs of earlier processes would hide what compiling costs.
            environment = {**os.environ, **settings, "JAX_ENABLE_COMPILATION_CACHE": "false"}
            command = [sys.executable, __file__, "--one", *arguments]
            out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            results[name].append(json.loads(out))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in results.items()
    }


def shown(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """The first row, the second, and the first over the second."""
    table = Table(title=title)
    for column in ("", "states MB", "peak MB", "compile s", "evaluate s"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.3g}" for value in row.values()))
    first, second = rows.values()
    table.add_row("ratio", *(f"{first[key] / second[key]:.3f}" for key in first))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=5, help="clients features hidden classes frozen: in this process")
    options = parser.parse_args()
    if options.one is not None:
        warnings.simplefilter("ignore")
        clients, features, hidden, classes, frozen = map(int, options.one)
        print(json.dumps(measured(clients, features, hidden, classes, bool(frozen))))
        return
    console = Console(width=100)
    sizes = [str(size) for size in (CLIENTS, FEATURES, HIDDEN, CLASSES)]
    cases = {"95 % frozen": ([*sizes, "1"], {}), "nothing frozen": ([*sizes, "0"], {})}
    many = processes(cases, options.repeats)
    console.print(shown(f"Ditto, {CLIENTS:,} clients", many))
    ratio = many["95 % frozen"]["states"] / many["nothing frozen"]["states"]
    console.print(f"States: {ratio:.3f} of that without freezing; the goal is below {GOAL}.")
    large = [str(FEW), str(WIDTH), str(WIDTH), "3", "1"]
    cases = {"an argument": (large, {}), "in the program": (large, {"EVENHAND_HOIST": "off"})}
    console.print(shown("A frozen array of 41 MB", processes(cases, options.repeats)))


if __name__ == "__main__":
    main()
