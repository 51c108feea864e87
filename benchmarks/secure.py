"""What secure sums cost per round of a simulation, without masks and with them, beside FedAvg.

    python benchmarks/secure.py [--repeats 7] [--clients 20]

Prints, for the MLP, median milliseconds per round and the ratio to the round of FedAvg.  The methods take turns.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import numpy as np
from evenhand_rounds import dataset, network
from fair import Rounds
from rich.console import Console
from rich.table import Table
from tasks import TASKS

import evenhand as eh

PLAIN = "FedAvg"
AIM = 2.0
"""Rounds of FedAvg that one of ``secure(mean())`` may take without masks."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=20)
    asked = parser.parse_args()
    task = replace(TASKS["mlp"], cohort=asked.clients)
    data, agg = dataset(task), eh.aggregators
    work = eh.local.sgd(network(task), task.lr, epochs=1, batch_size=task.batch)
    rules = {
        PLAIN: (agg.mean(), False),
        "secure(mean())": (agg.secure(agg.mean()), False),
        "secure(mean()), masks": (agg.secure(agg.mean()), True),
        "secure(mean(), bits=32)": (agg.secure(agg.mean(), bits=32, largest=2.0**10, cohort=2**5), False),
        "geometric_median(3)": (agg.geometric_median(3), False),
        "secure(geometric_median(3))": (agg.secure(agg.geometric_median(3)), False),
    }
    running = {
        name: Rounds(eh.algorithms.fedavg(work, aggregator=rule), data, task, masks=masks)
        for name, (rule, masks) in rules.items()
    }
    turns = {name: np.zeros(asked.repeats) for name in running}
    for turn in range(asked.repeats):
        for name, rounds in running.items():
            turns[name][turn] = rounds.run(1 if rules[name][1] else task.rounds)
    table = Table(title=f"A round of the MLP, {asked.clients} clients; medians of {asked.repeats}")
    for column in ("aggregator", "ms", f"/ {PLAIN}", "aim"):
        table.add_column(column, justify="left" if column == "aggregator" else "right")
    for name, seconds in turns.items():
        ratio = statistics.median(seconds / turns[PLAIN])
        aim = f"{AIM:g}" if name == "secure(mean())" else ""
        table.add_row(name, f"{1e3 * statistics.median(seconds):.1f}", f"{ratio:.2f}", aim)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
