"""The tasks that every worker of the benchmark runs: sizes, shapes and data, in NumPy alone.

All workers import this file, so it must not need the libraries of any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

__all__ = ["READERS", "TASKS", "Task", "cohort", "probe", "rows", "with_real_sizes"]


READERS = ("lstm", "gru", "transformer")
"""Models that read tokens and predict the next one."""


@dataclass(frozen=True)
class Task:
    """One round's worth of work.

    Attributes:
      name: what the table calls it.
      model: ``logistic``, ``mlp``, ``cnn_femnist``, ``cnn_cifar``, ``lstm``, ``gru`` or ``transformer``.
      sizes: rows of each client.
      shape: of one row.
      classes: labels.
      cohort: clients per round.
      batch: rows per local step.
      steps: local steps; None: one epoch.
      lr: the clients' step size.
      rounds: rounds per measurement, so that one takes long enough to be timed.
    """

    name: str
    model: str
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    classes: int
    cohort: int
    batch: int
    steps: int | None = None
    lr: float = 0.1
    rounds: int = 1


def _lognormal(clients: int, least: int) -> tuple[int, ...]:
    """Sizes like those of the Synthetic(alpha, beta) data: ``least + exp(N(4, 2))``, cut at 10,000 rows."""
    draws = np.exp(np.random.default_rng(0).normal(4.0, 2.0, clients)).astype(int) + least
    return tuple(int(size) for size in np.minimum(draws, 10_000))


TASKS = {
    task.name: task
    for task in (
        Task("cifar10-cnn", "cnn_cifar", (50,) * 1000, (32, 32, 3), 10, cohort=50, batch=10),
        Task("femnist-cnn", "cnn_femnist", (100,) * 100, (28, 28, 1), 62, 10, 20, steps=5, lr=0.05, rounds=2),
        Task("lr-mnist", "logistic", (60,) * 1000, (784,), 10, cohort=10, batch=10, lr=0.03, rounds=100),
        Task("mlp", "mlp", (200,) * 100, (784,), 62, cohort=20, batch=10, steps=20, lr=0.03, rounds=10),
        Task("logistic-ragged", "logistic", _lognormal(100, 50), (60,), 10, cohort=10, batch=10, rounds=50),
        Task("log-normal-100", "logistic", _lognormal(1000, 1), (60,), 10, cohort=100, batch=10, rounds=5),
        Task("logistic-1000", "logistic", (20,) * 10_000, (60,), 10, cohort=1000, batch=10, rounds=2),
        Task("femnist-ragged", "cnn_femnist", (), (28, 28, 1), 62, cohort=10, batch=20, lr=0.05),
        Task("lstm", "lstm", (40,) * 100, (80,), 80, cohort=5, batch=10, lr=0.5),
        Task("gru", "gru", (40,) * 100, (80,), 80, cohort=5, batch=10, lr=0.5),
        Task("transformer", "transformer", (40,) * 100, (80,), 80, cohort=5, batch=10),
    )
}


def with_real_sizes(task: Task, data_dir: Path | None) -> Task:
    """FEMNIST's real client sizes: from the data folder, or a log-normal fit of them where there is none."""
    if task.sizes:
        return task
    if data_dir is not None:
        sizes = np.load(data_dir / "client_sizes.npz")["emnist_train"]
    else:
        sizes = np.exp(np.random.default_rng(0).normal(5.2, 0.5, 3400)).astype(int).clip(20, 420)
    return replace(task, sizes=tuple(int(size) for size in sizes))


def rows(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """All clients' rows, made up: labels follow the features, so that a loss can fall."""
    rng = np.random.default_rng(1)
    count = sum(task.sizes)
    if task.model in READERS:
        text = rng.integers(0, task.classes, (count, *task.shape), dtype=np.int32)
        return text, text[:, -1].copy()
    y = rng.integers(0, task.classes, count, dtype=np.int32)
    centres = rng.normal(size=(task.classes, *task.shape)).astype(np.float32)
    x = rng.standard_normal((count, *task.shape), dtype=np.float32)
    x += 0.3 * centres[y]
    return x, y


def probe(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two thousand rows of all clients, on which workers measure the loss of the global model."""
    stride = max(1, len(y) // 2000)
    return x[::stride], y[::stride]


def cohort(task: Task, number: int) -> np.ndarray:
    """The clients of a round."""
    return np.random.default_rng((2, number)).choice(len(task.sizes), task.cohort, replace=False)
