"""pfl's worker: ``FederatedAveraging`` on its simulated backend, with PyTorch.  pfl_processes.py starts several."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import serve
from tasks import Task, cohort
from torch.nn import functional as F
from torch_loop import Loop


class Clock(TrainingProcessCallback):
    """When each round was done."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After a round."""
        self.ends.append(time.perf_counter())
        return False, Metrics()


def loss(network: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What pfl minimises."""
    return F.cross_entropy(network(x), y)


def metrics(network: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
    """What pfl measures of the first cohort of each call; none of it is timed."""
    with torch.no_grad():
        return {"loss": Weighted(float(F.cross_entropy(network(x), y, reduction="sum")), len(y))}


def client_ids(task: Task) -> Iterator[int]:
    """The clients of one cohort after another."""
    number = 0
    while True:
        yield from cohort(task, number).tolist()
        number += 1


class PflRounds:
    """One task with its clients and pfl's model."""

    def __init__(self, task: Task) -> None:
        np.random.seed(0)  # noqa: NPY002  (all processes of a simulation need the same)
        self.task, self.loop = task, Loop(task)
        network: Any = self.loop.model
        network.loss, network.metrics = MethodType(loss, network), MethodType(metrics, network)
        self.model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
        ids = client_ids(task)
        self.data = FederatedDataset(self.client, lambda: next(ids), dict(enumerate(task.sizes)))
        self.backend = SimulatedBackend(self.data, self.data, [WeightByDatapoints()])

    def client(self, k: int) -> Dataset:
        """A client's rows in a new order: pfl cuts its batches in the order that it is given."""
        index = torch.randperm(self.task.sizes[k]) + int(self.loop.starts[k])
        return Dataset((self.loop.x[index], self.loop.y[index]))

    def run(self, first: int, count: int) -> float:
        """Rounds over the cohorts of the task."""
        task, clock = self.task, Clock()
        # pfl evaluates in the first round of a call. It must not in those that are timed.
        rounds = NNAlgorithmParams(
            central_num_iterations=count,
            evaluation_frequency=count + 1,
            train_cohort_size=task.cohort,
            val_cohort_size=None,
        )
        work = NNTrainHyperParams(
            local_num_epochs=None if task.steps else 1,
            local_num_steps=task.steps,
            local_learning_rate=task.lr,
            local_batch_size=task.batch,
        )
        FederatedAveraging().run(
            rounds, self.backend, self.model, work, NNEvalHyperParams(local_batch_size=None), [clock]
        )
        return clock.ends[-1] - clock.ends[0]

    def loss(self) -> float:
        """The mean loss on the probe."""
        return self.loop.loss()


if __name__ == "__main__":
    serve(PflRounds)
