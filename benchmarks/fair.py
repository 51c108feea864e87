"""What fairness costs per round: fair methods beside FedAvg, and beside FedAvg with the pass for clients' losses.

    python benchmarks/fair.py [--repeats 7]

Prints, for two tasks, median milliseconds per round and the ratio to the round of FedAvg whose clients also report the
loss of all their rows, which a fair method needs whatever it does with it.  The methods take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import jax
import numpy as np
from evenhand_rounds import dataset, network
from rich.console import Console
from rich.table import Table
from tasks import TASKS, Task

import evenhand as eh
from evenhand.simulation import Execution, Job, engine
from evenhand.simulation.setup import set_up

LOSSES = "FedAvg and losses"


def methods(task: Task) -> dict[str, eh.Algorithm]:
    """The methods with the task's local work."""
    model, rate = network(task), task.lr
    epochs = None if task.steps else 1
    work = eh.local.sgd(model, rate, epochs=epochs, steps=task.steps, batch_size=task.batch)
    needing_losses = eh.aggregators.risk_weighted(eh.risks.mean())
    alg = eh.algorithms
    return {
        "FedAvg": alg.fedavg(work),
        LOSSES: alg.fedavg(work, aggregator=needing_losses),
        "q-FedAvg": alg.qfedavg(work, q=1.0, lipschitz=1 / rate, sampling=eh.sampling.uniform()),
        "TERM": alg.term(work, t=1.0),
        "Delta-FL": alg.delta_fl(work, theta=0.5),
        "Delta-FL, smoothed": alg.delta_fl(work, theta=0.5, nu=0.1),
        "FedMGDA+ (no losses)": alg.fedmgda(work, epsilon=0.1),
        "FedTilt (no losses, two models)": alg.fedtilt(
            work, classes=10, tilt_class=1.0, tilt_sample=0.5, tilt_server=0.5
        ),
    }


class Rounds:
    """A method, ready to run."""

    def __init__(
        self, method: eh.Algorithm, data: eh.data.FederatedDataset, task: Task, *, masks: bool = False
    ) -> None:
        execution = Execution(stream=False, masks=masks)
        self.setup = set_up(Job(method, data, rounds=1, cohort=task.cohort, execution=execution))
        self.state, self.number, self.task = self.setup.state, 0, task
        self.run(1)

    def run(self, count: int) -> float:
        """Seconds per round."""
        setup: Any = self.setup
        begin = time.perf_counter()
        self.state, _ = engine.run_rounds(
            setup.program, self.state, setup.rows, setup.keys, self.number, count
        )
        jax.block_until_ready(self.state)
        self.number += count
        return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    table = Table(title="What fairness costs per round; medians")
    for column in ("task", "method", "ms", "/ FedAvg", f"/ {LOSSES}"):
        table.add_column(column, justify="left" if column in ("task", "method") else "right")
    for name in ("lr-mnist", "mlp"):
        task = TASKS[name]
        data = dataset(task)
        running = {label: Rounds(method, data, task) for label, method in methods(task).items()}
        turns = {label: np.array([0.0] * repeats) for label in running}
        for turn in range(repeats):
            for label, rounds in running.items():
                turns[label][turn] = rounds.run(task.rounds)
        for label, seconds in turns.items():
            ratios = (statistics.median(seconds / turns[reference]) for reference in ("FedAvg", LOSSES))
            milliseconds = 1e3 * statistics.median(seconds)
            table.add_row(name, label, f"{milliseconds:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
