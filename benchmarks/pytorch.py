"""What a module of PyTorch costs beside the same network in flax: compiling, and warm rounds.

    scripts/pytorch --version && .venv-pytorch/bin/python benchmarks/pytorch.py [--repeats 9]

Prints seconds to the end of the first round, median milliseconds of ten warm rounds of FedAvg over 30 clients, in turns
(each of ten clients with ten mini-batches or fewer a round), and ratios to flax.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import flax.linen as linen
import jax
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import evenhand as eh

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))

_ROUNDS, _CLIENTS, _ROWS = 10, 30, 40


class _FlaxMLP(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(10)(linen.relu(linen.Dense(128)(x)))


class _FlaxCNN(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (16, 32):
            x = linen.max_pool(linen.relu(linen.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return linen.Dense(10)(x.reshape(len(x), -1))


class _FlaxLSTM(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = linen.RNN(linen.OptimizedLSTMCell(64))(x)
        return linen.Dense(10)(x[:, -1])


class _TorchLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(16, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def _torch_cnn() -> nn.Module:
    layers = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))


def _torch_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


_NETWORKS: dict[str, tuple[linen.Module, tuple[int, ...], Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_FlaxMLP(), (784,), _torch_mlp, (784,)),
    "cnn": (_FlaxCNN(), (28, 28, 1), _torch_cnn, (1, 28, 28)),
    "lstm": (_FlaxLSTM(), (40, 16), _TorchLSTM, (40, 16)),
}


class _Trial:
    """A model with its data, trained round by round."""

    def __init__(self, model: eh.types.Model, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(0)
        rows = _CLIENTS * _ROWS
        x = random.normal(size=(rows, *shape)).astype(np.float32)
        y = random.integers(0, 10, rows).astype(np.int32)
        self.data = eh.data.from_arrays(x, y, np.repeat(np.arange(_CLIENTS), _ROWS), test_fraction=0.1)
        self.method = eh.algorithms.fedavg(eh.local.sgd(model, 0.05, epochs=1, batch_size=10))
        begin = time.perf_counter()
        self.seconds(rounds=1)
        self.first = time.perf_counter() - begin

    def seconds(self, rounds: int = _ROUNDS) -> float:
        """Of rounds that are compiled already; the first call compiles them."""
        begin = time.perf_counter()
        eh.simulate(self.method, self.data, rounds=rounds, cohort=10, eval_every=rounds)
        return time.perf_counter() - begin


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    if torch.__version__.startswith("2.13"):
        import tolerance

        tolerance.load()
    table = Table(
        "network", "library", "first round, s", f"{_ROUNDS} rounds, ms", "/ flax", title="Medians, in turns"
    )
    for name, (flax_module, flax_shape, make, torch_shape) in _NETWORKS.items():
        sample = np.zeros((1, *torch_shape), np.float32)
        trials = {
            "flax": _Trial(
                eh.models.from_flax(
                    flax_module, loss="cross_entropy", sample=np.zeros((1, *flax_shape), np.float32)
                ),
                flax_shape,
            ),
            "PyTorch": _Trial(eh.models.from_torch(make(), loss="cross_entropy", sample=sample), torch_shape),
        }
        for trial in trials.values():
            trial.seconds()
        times = {library: list[float]() for library in trials}
        for _ in range(repeats):
            for library, trial in trials.items():
                times[library].append(trial.seconds())
        medians = {library: statistics.median(each) for library, each in times.items()}
        for library, trial in trials.items():
            ratio = medians[library] / medians["flax"]
            table.add_row(
                name, library, f"{trial.first:.1f}", f"{1000 * medians[library]:.0f}", f"{ratio:.2f}"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
