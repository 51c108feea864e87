"""Evenhand's worker of the benchmark: the same tasks, through the engine that ``simulate`` uses.

Reads commands from standard input, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tasks import READERS, TASKS, Task, probe, rows, with_real_sizes

import evenhand as eh
from evenhand import rounds, streams
from evenhand.data import FederatedDataset, Split
from evenhand.simulation import Execution, Job, engine, setup, twin
from evenhand.streams import Keys
from evenhand.types import Model


def network(task: Task) -> Model:
    """The task's model."""
    if task.model == "logistic":
        return eh.models.softmax_regression(task.shape[0], classes=task.classes)
    if task.model == "mlp":
        return eh.models.mlp(task.shape[0], classes=task.classes, hidden=(128,))
    if task.model in READERS:
        return {"lstm": eh.models.lstm, "gru": eh.models.gru, "transformer": eh.models.transformer}[
            task.model
        ]()
    if task.model == "cnn_cifar":
        return eh.models.cnn_cifar(task.classes)
    return eh.models.cnn_femnist(task.classes)


def dataset(task: Task) -> FederatedDataset:
    """The task's rows, all for training."""
    x, y = rows(task)
    x.setflags(write=False)
    none = Split(x[:0], y[:0], np.zeros(len(task.sizes) + 1, int))
    offsets = np.concatenate([[0], np.cumsum(task.sizes)])
    names = tuple(map(str, range(len(task.sizes))))
    return FederatedDataset(Split(x, y, offsets), none, none, names, task.name)


class Rounds:
    """One task, ready to run."""

    def __init__(self, task: Task, lanes: int | None, devices: int | None) -> None:
        self.task, self.number, self.data = task, 0, dataset(task)
        self.execution = Execution(lanes=lanes, devices=devices, stream=False)
        self.setup = self.begun(network(task))
        self.state = self.setup.state
        begin = time.perf_counter()
        self.round(engine, 0)
        self.compile = time.perf_counter() - begin
        self.round(engine, 1)

    def begun(self, model: Model) -> setup.Setup:
        """The task, set up with this model."""
        task, method = self.task, self.method(model)
        return setup.set_up(Job(method, self.data, rounds=1, cohort=task.cohort, execution=self.execution))

    def method(self, model: Model) -> eh.Algorithm:
        """Federated averaging with the task's local work."""
        task = self.task
        return eh.algorithms.fedavg(
            eh.local.sgd(
                model, task.lr, epochs=None if task.steps else 1, steps=task.steps, batch_size=task.batch
            )
        )

    def round(self, engine: ModuleType, count: int) -> dict[str, jax.Array]:
        """Some rounds."""
        run = self.setup
        self.state, infos = engine.run_rounds(run.program, self.state, run.rows, run.keys, self.number, count)
        jax.block_until_ready(self.state)
        self.number += count
        return infos

    def time(self, engine: ModuleType, count: int) -> dict[str, float]:
        """One measurement."""
        wall, cpu = time.perf_counter(), time.process_time()
        infos = self.round(engine, count)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        useful, executed = (float(np.sum(infos[name][:count])) for name in ("steps.useful", "steps.executed"))
        return {"wall": wall / count, "cpu": cpu / count, "peak_mb": peak, "padded": executed / useful}

    def check(self, path: str) -> dict[str, float]:
        """Plans a round for the other workers in ``path``, runs it, and returns the loss on the cohort's rows."""
        model = network(self.task)._replace(
            apply_train=None
        )  # no dropout: two libraries cannot draw the same
        run = self.begun(model)
        params = jax.tree.map(np.array, run.state.server.params)
        sizes = self.data.train.sizes
        method, count = run.program.algorithm, self.task.cohort
        ids = np.array(rounds.cohort(method, None, run.rows.sizes, count, run.keys, 0, 0).ids)
        plan = {f"batches_{i}": self.batches(int(k), int(sizes[k]), run.keys) for i, k in enumerate(ids)}
        np.savez(path, ids=ids, **plan, **for_torch(self.task, params))
        state, _ = engine.run_rounds(run.program, run.state, run.rows, run.keys, 0, 1)
        chosen = np.concatenate([np.arange(*self.data.train.offsets[k : k + 2]) for k in ids])
        return {
            "loss": mean_loss(
                model, state.server.params, self.data.train.x[chosen], self.data.train.y[chosen]
            )
        }

    def learn(self, count: int) -> dict[str, float]:
        """The loss on rows of all clients before and after the first rounds of a new model."""
        model = network(self.task)
        run, rows = self.begun(model), probe(self.data.train.x, self.data.train.y)
        before = mean_loss(model, run.state.server.params, *rows)
        state, _ = engine.run_rounds(run.program, run.state, run.rows, run.keys, 0, count)
        return {"before": before, "after": mean_loss(model, state.server.params, *rows)}

    def batches(self, k: int, size: int, keys: Keys) -> np.ndarray:
        """Positions of each local batch of the first round; -1 where a batch is short."""
        task = self.task
        word = streams.permutation_words(rounds.work_key(keys, 0, 0, jnp.int32(k)))
        per_epoch = -(-size // task.batch)
        plan = []
        for step in range(task.steps or per_epoch):
            positions = step % per_epoch * task.batch + np.arange(task.batch, dtype=np.int32)
            inside = positions < size
            order = streams.permute(
                np.where(inside, positions, 0), jnp.int32(size), word, jnp.int32(step // per_epoch)
            )
            plan.append(np.where(inside, order, -1))
        return np.array(plan)


def mean_loss(model: Model, params: Any, x: np.ndarray, y: np.ndarray) -> float:
    """The mean loss on some rows, in slices that fit a CNN's memory."""
    params = jax.tree.map(np.array, params)
    losses = jax.jit(lambda x, y: model.losses(model.apply(params, x), y))
    parts = [losses(x[i : i + 500], y[i : i + 500]) for i in range(0, len(x), 500)]
    return float(np.mean(np.concatenate(parts)))


def for_torch(task: Task, params: Any) -> dict[str, np.ndarray]:
    """Parameters under PyTorch's names, in its layouts."""
    if task.model == "logistic":
        params = {"": params}
    out = {}
    for layer, leaves in params.items():
        kernel = leaves["kernel"]
        if kernel.ndim == 4:
            kernel = kernel.transpose(3, 2, 0, 1)
        elif layer == "dense":  # its inputs are pixels, ours with channels last
            width = int((kernel.shape[0] // 64) ** 0.5)
            kernel = kernel.reshape(width, width, 64, -1).transpose(3, 2, 0, 1).reshape(-1, kernel.shape[0])
        else:
            kernel = kernel.T
        dot = "." if layer else ""
        out |= {f"{layer}{dot}weight": np.ascontiguousarray(kernel), f"{layer}{dot}bias": leaves["bias"]}
    return out


def main() -> None:
    data_dir = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None
    loop: Rounds | None = None
    for line in sys.stdin:
        verb, *arguments = line.split()
        answer: dict[str, float] = {}
        if verb == "load":
            lanes, devices = (
                int(number) if number.isdigit() else None for number in [*arguments, "-", "-"][1:3]
            )
            loop = Rounds(with_real_sizes(TASKS[arguments[0]], data_dir), lanes, devices)
            program = loop.setup.program
            answer = {"compile": loop.compile, "lanes": program.lanes, "devices": program.devices.size}
        elif loop is not None:
            if verb == "check":
                answer = loop.check(arguments[0])
            elif verb == "learn":
                answer = loop.learn(int(arguments[0]))
            else:
                answer = loop.time(*((engine, loop.task.rounds) if verb == "time" else (twin, 1)))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
