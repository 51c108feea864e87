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
_BLOCKS = ((16, 1), (32, 2), (64, 2))
"""Width and stride of each block of the ResNet-8."""


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


class _FlaxBlock(linen.Module):
    width: int
    stride: int

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        stride = (self.stride, self.stride)
        y = linen.relu(linen.GroupNorm(8)(linen.Conv(self.width, (3, 3), stride, use_bias=False)(x)))
        y = linen.GroupNorm(8)(linen.Conv(self.width, (3, 3), use_bias=False)(y))
        return linen.relu(y + (linen.Conv(self.width, (1, 1), stride)(x) if self.stride > 1 else x))


class _FlaxResNet(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Conv(16, (3, 3))(x)
        for width, stride in _BLOCKS:
            x = _FlaxBlock(width, stride)(x)
        return linen.Dense(10)(x.mean((1, 2)))


class _FlaxEncoder(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Dense(32)(x)
        for _ in range(2):
            x = linen.LayerNorm()(x + linen.MultiHeadDotProductAttention(2)(x))
            x = linen.LayerNorm()(x + linen.Dense(32)(linen.relu(linen.Dense(64)(x))))
        return linen.Dense(10)(x.mean(1))


class _TorchBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, width), nn.GroupNorm(8, width)])
        self.short = nn.Conv2d(before, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.short(x))


class _TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.wide, self.head = nn.Linear(16, 32), nn.Linear(32, 10)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.wide(x)).mean(1))


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


def _torch_resnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    before = 16
    for width, stride in _BLOCKS:
        layers.append(_TorchBlock(before, width, stride))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def _torch_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


_NETWORKS: dict[str, tuple[linen.Module, tuple[int, ...], Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_FlaxMLP(), (784,), _torch_mlp, (784,)),
    "cnn": (_FlaxCNN(), (28, 28, 1), _torch_cnn, (1, 28, 28)),
    "lstm": (_FlaxLSTM(), (40, 16), _TorchLSTM, (40, 16)),
    "encoder": (_FlaxEncoder(), (40, 16), _TorchEncoder, (40, 16)),
    "resnet8": (_FlaxResNet(), (32, 32, 3), _torch_resnet, (3, 32, 32)),
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
