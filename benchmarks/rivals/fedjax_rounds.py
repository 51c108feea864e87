"""FedJAX's worker: its own federated averaging, with the backend ``jit``."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from protocol import serve
from tasks import Task, cohort, probe, rows

# FedJAX 0.0.17 calls it by the name that JAX 0.6 removed. With JAX 0.5, which has the name, its rounds take longer.
jax.tree_map = jax.tree.map

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import optax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402


def network(task: Task) -> Any:
    """The task's model, in Haiku."""

    def forward(batch: Any) -> jax.Array:
        x = batch["x"]
        if task.model == "mlp":
            x = jax.nn.relu(hk.Linear(128)(x))
        elif task.model == "cnn_femnist":
            for channels in (32, 64):
                x = jax.nn.relu(hk.Conv2D(channels, 5)(x))
                x = hk.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID")
            x = jax.nn.relu(hk.Linear(512)(hk.Flatten()(x)))
        return hk.Linear(task.classes)(x)

    def losses(batch: Any, logits: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])

    sample = {"x": np.zeros((1, *task.shape), np.float32), "y": np.zeros(1, np.int32)}
    return fedjax.create_model_from_haiku(hk.transform(forward), sample, losses)


class FedjaxRounds:
    """One task with its clients and the state of FedJAX's server."""

    def __init__(self, task: Task) -> None:
        self.task, (x, y) = task, rows(task)
        ends = np.cumsum(task.sizes)
        windows = [slice(end - size, end) for size, end in zip(task.sizes, ends, strict=True)]
        self.clients = fedjax.InMemoryFederatedData(
            {k: {"x": x[window], "y": y[window]} for k, window in enumerate(windows)}
        )
        self.probe = dict(zip("xy", probe(x, y), strict=True))
        self.model = network(task)
        self.algorithm = fed_avg.federated_averaging(
            fedjax.model_grad(self.model),
            fedjax.optimizers.sgd(task.lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                batch_size=task.batch, num_epochs=None if task.steps else 1, num_steps=task.steps
            ),
        )
        self.state = self.algorithm.init(self.model.init(jax.random.key(0)))

    def run(self, first: int, count: int) -> float:
        """Rounds over the cohorts of the task."""
        begin = time.perf_counter()
        for number in range(first, first + count):
            if number == first + 1:
                begin = time.perf_counter()
            ids = cohort(self.task, number).tolist()
            keys = jax.random.split(jax.random.key(number), len(ids))
            data = self.clients.get_clients(ids)
            clients = [(k, rows, key) for (k, rows), key in zip(data, keys, strict=True)]
            self.state, _ = self.algorithm.apply(self.state, clients)
            jax.block_until_ready(self.state.params)
        return time.perf_counter() - begin

    def loss(self) -> float:
        """The mean loss on the probe."""
        logits = self.model.apply_for_eval(self.state.params, self.probe)
        return float(self.model.train_loss(self.probe, logits).mean())


if __name__ == "__main__":
    serve(FedjaxRounds)
