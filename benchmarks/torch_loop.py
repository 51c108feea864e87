"""The yardstick: federated averaging as a plain PyTorch loop over clients, as fast as such a loop gets.

Runs in a separate environment (PyTorch, NumPy).  Reads commands from standard input, one a line, and answers each
with a line of JSON, so that the workers can take turns.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from tasks import TASKS, Task, cohort, probe, rows, with_real_sizes
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Convolutions(nn.Module):
    """The two-convolution networks; channels last, which is PyTorch's fast path on a CPU."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        channels = task.shape[-1]
        self.cifar = task.model == "cnn_cifar"
        kernel, pad = (3, 0) if self.cifar else (5, 2)
        self.conv_0, self.conv_1 = (
            nn.Conv2d(channels, 32, kernel, padding=pad),
            nn.Conv2d(32, 64, kernel, padding=pad),
        )
        self.dense = nn.Linear(12544, 128) if self.cifar else nn.Linear(3136, 512)
        self.output = nn.Linear(self.dense.out_features, task.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv_0(x))
        if self.cifar:
            x = F.dropout(F.max_pool2d(F.relu(self.conv_1(x)), 2), 0.25, self.training)
            return self.output(F.dropout(F.relu(self.dense(x.flatten(1))), 0.5, self.training))
        x = F.max_pool2d(F.relu(self.conv_1(F.max_pool2d(x, 2))), 2)
        return self.output(F.relu(self.dense(x.flatten(1))))


class Text(nn.Module):
    """Next character by a two-layer LSTM or GRU."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        kind = nn.LSTM if task.model == "lstm" else nn.GRU
        self.embed, self.read = nn.Embedding(task.classes, 8), kind(8, 256, 2, batch_first=True)
        self.output = nn.Linear(256, task.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.read(self.embed(x))[0][:, -1])


class Transformer(nn.Module):
    """Next character by two pre-norm blocks of PyTorch's own encoder layer, with a causal mask."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.embed = nn.Embedding(task.classes, 64)
        self.places = nn.Parameter(0.02 * torch.randn(task.shape[0], 64))
        layer = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(64), enable_nested_tensor=False)
        self.output = nn.Linear(64, task.classes)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(task.shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.blocks(self.embed(x) + self.places, mask=self.mask, is_causal=True)[:, -1])


def network(task: Task) -> nn.Module:
    """The task's model."""
    if task.model == "logistic":
        return nn.Linear(task.shape[0], task.classes)
    if task.model == "mlp":
        return nn.Sequential(
            OrderedDict(
                dense_0=nn.Linear(task.shape[0], 128), relu=nn.ReLU(), output=nn.Linear(128, task.classes)
            )
        )
    if task.model in ("lstm", "gru"):
        return Text(task)
    if task.model == "transformer":
        return Transformer(task)
    return Convolutions(task).to(memory_format=torch.channels_last)


class Loop:
    """One task, its data and its model."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(0)
        self.task, (x, y) = task, rows(task)
        self.x, self.y = torch.from_numpy(x).to(DEVICE), torch.from_numpy(y).long().to(DEVICE)
        if len(task.shape) == 3:
            self.x = self.x.permute(0, 3, 1, 2)
        self.probe = probe(self.x, self.y)
        self.starts = np.concatenate([[0], np.cumsum(task.sizes)])
        self.model = network(task).to(DEVICE)
        self.params = list(self.model.parameters())
        self.number = 0

    def batches(self, size: int) -> list[torch.Tensor]:
        """Positions of the rows of each local batch."""
        out: list[torch.Tensor] = []
        wanted = self.task.steps or -(-size // self.task.batch)
        while len(out) < wanted:
            out += torch.randperm(size, device=DEVICE).split(self.task.batch)
        return out[:wanted]

    def client(self, start: int, batches: list[torch.Tensor]) -> None:
        """Local training in place."""
        for positions in batches:
            index = positions + start
            loss = F.cross_entropy(self.model(self.x[index]), self.y[index])
            grads = torch.autograd.grad(loss, self.params)
            with torch.no_grad():
                torch._foreach_add_(self.params, grads, alpha=-self.task.lr)

    def round(self, ids: np.ndarray, plan: list[list[torch.Tensor]] | None = None) -> None:
        """One round: all clients of the cohort train from the same model, then the weighted mean."""
        before = [p.detach().clone() for p in self.params]
        total = [torch.zeros_like(p) for p in before]
        weight = sum(self.task.sizes[k] for k in ids)
        for i, k in enumerate(ids):
            with torch.no_grad():
                torch._foreach_copy_(self.params, before)
            self.client(int(self.starts[k]), self.batches(self.task.sizes[k]) if plan is None else plan[i])
            with torch.no_grad():
                torch._foreach_add_(
                    total, [p.detach() for p in self.params], alpha=self.task.sizes[k] / weight
                )
        with torch.no_grad():
            torch._foreach_copy_(self.params, total)

    def time(self) -> dict[str, float]:
        """One measurement."""
        cohorts = [cohort(self.task, self.number + i) for i in range(self.task.rounds)]
        self.number += self.task.rounds
        wall, cpu = time.perf_counter(), time.process_time()
        for ids in cohorts:
            self.round(ids)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        return {"wall": wall / self.task.rounds, "cpu": cpu / self.task.rounds, "peak_mb": peak}

    def loss(self) -> float:
        """The loss of the global model on rows of all clients."""
        x, y = self.probe
        with torch.no_grad():
            return float(F.cross_entropy(self.model(x), y))

    def learn(self, count: int) -> dict[str, float]:
        """The loss before and after the first rounds of a new model."""
        fresh = Loop(self.task)
        before = fresh.loss()
        for number in range(count):
            fresh.round(cohort(self.task, number))
        return {"before": before, "after": fresh.loss()}

    def check(self, path: str) -> dict[str, float]:
        """The loss on the cohort's rows after a round that Evenhand's worker has planned, from its parameters."""
        given = np.load(path)
        self.model.eval()  # no dropout: two libraries cannot draw the same
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.from_numpy(given[name]))
        ids = given["ids"]
        splits = [given[f"batches_{i}"] for i in range(len(ids))]
        self.round(
            ids, [[torch.from_numpy(row[row >= 0]).long().to(DEVICE) for row in rows] for rows in splits]
        )
        total, count = 0.0, 0
        with torch.no_grad():
            for k in ids:
                window = slice(int(self.starts[k]), int(self.starts[k + 1]))
                total += float(F.cross_entropy(self.model(self.x[window]), self.y[window], reduction="sum"))
                count += window.stop - window.start
        self.model.train()
        return {"loss": total / count}


def main() -> None:
    data_dir = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None
    loop: Loop | None = None
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        answer: dict[str, float] = {}
        if verb == "load":
            loop = Loop(with_real_sizes(TASKS[name], data_dir))
            loop.round(cohort(loop.task, 0)[:2])
            answer = {"threads": torch.get_num_threads()}
        elif loop is not None:
            if verb == "learn":
                answer = loop.learn(int(name))
            else:
                answer = loop.check(name) if verb == "check" else loop.time()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
