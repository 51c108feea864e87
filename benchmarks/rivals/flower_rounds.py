"""Flower's worker: its strategy ``FedAvg`` on the simulation engine, whose Ray processes train one client a core."""

from __future__ import annotations

import random
import time

from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import serve
from tasks import Task
from torch_loop import Loop


class FlowerRounds:
    """One task and the global model."""

    def __init__(self, task: Task) -> None:
        random.seed(0)  # Flower draws the cohorts
        self.task, self.loop = task, Loop(task)

    def run(self, first: int, count: int) -> float:
        """Rounds over cohorts that Flower draws, in a simulation that is begun anew, so that none idles meanwhile."""
        task, server = self.task, ServerApp()
        ends: list[float] = []
        averages: list[int] = []

        def after(number: int, arrays: ArrayRecord) -> None:
            ends.append(time.perf_counter())

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            share = task.cohort / len(task.sizes)
            strategy = FedAvg(share, 0.0, min_train_nodes=task.cohort, min_available_nodes=len(task.sizes))
            result = strategy.start(
                grid,
                ArrayRecord(self.loop.model.state_dict()),
                num_rounds=count,
                train_config=ConfigRecord({"task": task.name}),
                evaluate_fn=after,
            )
            averages.extend(result.train_metrics_clientapp)
            self.loop.model.load_state_dict(result.arrays.to_torch_state_dict())

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        run_simulation(server, app, len(task.sizes), backend_config={"client_resources": resources})
        # Flower goes on without clients that fail, and reports the failure of a server in its log alone.
        if len(averages) < count:
            raise RuntimeError(f"{len(averages)} of {count} rounds had an average.")
        # The first entry is from before the first round.
        return ends[-1] - ends[1]

    def loss(self) -> float:
        """The mean loss on the probe."""
        return self.loop.loss()


if __name__ == "__main__":
    serve(FlowerRounds)
