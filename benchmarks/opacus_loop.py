"""Steps of PyTorch with every example clipped by Opacus, and plain ones, for ``benchmarks/private.py``.

Runs in a separate environment (PyTorch, NumPy, Opacus).  Reads commands from standard input, one a line, and answers
each with a line of JSON: ``load TASK BATCH FORM``, then ``time STEPS``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from tasks import TASKS, Task, rows
from torch import nn
from torch_loop import network

_CLIP, _BATCHES = 1.0, 16
Step = Callable[[torch.Tensor, torch.Tensor], None]


def _descend(model: Any, optimizer: Any, criterion: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def plain(task: Task, model: nn.Module) -> Step:
    """A step of descent."""
    optimizer, criterion = torch.optim.SGD(model.parameters(), task.lr), nn.CrossEntropyLoss()

    return _descend(model, optimizer, criterion)


def clipped(task: Task, model: nn.Module, batch: int) -> Step:
    """The gradient of every example is formed, clipped and added up; no noise."""
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), task.lr),
        noise_multiplier=0.0,
        max_grad_norm=_CLIP,
        expected_batch_size=batch,
    )
    criterion = nn.CrossEntropyLoss()

    return _descend(wrapped, optimizer, criterion)


def ghost(task: Task, model: nn.Module, batch: int) -> Step:
    """Norms first, and a second pass for the weighted sum; no noise."""
    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=_CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), task.lr),
        noise_multiplier=0.0,
        max_grad_norm=_CLIP,
        expected_batch_size=batch,
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    return _descend(wrapped, optimizer, criterion)


def load(name: str, batch: int, form: str) -> Callable[[int], float]:
    """``steps -> seconds per step``."""
    torch.manual_seed(0)
    task = TASKS[name]
    model = network(task).train()
    forms = {"plain": lambda: plain(task, model), "clipped": lambda: clipped(task, model, batch)}
    step = {**forms, "ghost": lambda: ghost(task, model, batch)}[form]()
    x, y = (torch.from_numpy(each[: _BATCHES * batch]) for each in rows(task))
    if len(task.shape) == 3:
        x = x.permute(0, 3, 1, 2)
    batches = list(zip(x.split(batch), y.long().split(batch), strict=True))

    def seconds(steps: int) -> float:
        begin = time.perf_counter()
        for i in range(steps):
            step(*batches[i % _BATCHES])
        return (time.perf_counter() - begin) / steps

    return seconds


def main() -> None:
    # Of hooks and strides: nothing that a reader of the table could change.
    warnings.simplefilter("ignore")
    seconds: Callable[[int], float] | None = None
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "load":
            seconds = load(words[0], int(words[1]), words[2])
            seconds(2)
            print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
        elif seconds is not None:
            print(json.dumps({"seconds": seconds(int(words[0]))}), flush=True)


if __name__ == "__main__":
    main()
