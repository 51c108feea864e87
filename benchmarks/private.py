"""What clipping the gradient of each example costs, as a ratio of a plain step of descent.

    python benchmarks/private.py [--repeats 7] [--tasks mlp femnist-cnn] [--torch .venv-torch/bin/python]

All forms of a step run in a compiled loop, as in training, and are timed in turns in one process on one device, which
has all cores.  "vmap" forms the gradient of every example, of the model as it is and lowered as in training; memory is
what the compiled program needs beside its arguments.  jax_privacy is measured, too, where it is installed, and Opacus
beside a plain step of PyTorch, if it is told of a Python that has both; each at its better number of threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evenhand_rounds import network
from rich.console import Console
from rich.table import Table
from tasks import TASKS, Task, rows
from worker import Worker

from evenhand.lowering import lowered
from evenhand.privacy import clipped_sum
from evenhand.types import Model

AIMS = {"mlp": 1.5, "femnist-cnn": 2.5, "cifar10-cnn": 2.5}
_CLIP, _BATCHES = 1.0, 16
Gradient = Callable[[Any, Any, Any, Any], Any]
"""``(params, x, y, key) -> gradient``."""


def gradients(task: Task) -> dict[str, Gradient]:
    """The forms of a step."""
    model = network(task)
    train = model.apply_train or (lambda params, x, key: model.apply(params, x))

    def mean_loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        return jnp.mean(model.losses(lowered(train)(params, x, key), y))

    def book_keeping(params: Any, x: Any, y: Any, key: Any) -> Any:
        inside = jnp.ones(len(x), bool)
        total, _ = clipped_sum(model, params, x, y, inside, key, clip=_CLIP)
        return jax.tree.map(lambda leaf: leaf / len(x), total)

    def one_by_one(apply: Any) -> Gradient:
        def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
            return model.losses(apply(params, x[None], key), y[None])[0]

        def mean(params: Any, x: Any, y: Any, key: Any) -> Any:
            keys = jax.random.split(key, len(x))
            each = jax.vmap(jax.grad(loss), (None, 0, 0, 0))(params, x, y, keys)
            squares = [jnp.sum(jnp.square(g.reshape(len(x), -1)), axis=1) for g in jax.tree.leaves(each)]
            factors = jnp.minimum(1.0, _CLIP / jnp.sqrt(sum(squares)))
            return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1) / len(x), each)

        return mean

    forms = {
        "plain": jax.grad(mean_loss),
        "clipped_sum": book_keeping,
        "vmap, lowered": one_by_one(lowered(train)),
        "vmap": one_by_one(train),
    }
    if importlib.util.find_spec("jax_privacy") is not None:
        forms["jax_privacy"] = with_jax_privacy(model, train)
    return forms


def with_jax_privacy(model: Model, train: Any) -> Gradient:
    """What another library makes of the same model."""
    import jax_privacy

    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        return jnp.mean(model.losses(train(params, x, key), y))

    clipped = jax_privacy.clipped_grad(loss, l2_clip_norm=_CLIP, batch_argnums=(1, 2), prng_argnum=3)
    return lambda *arguments: jax.tree.map(lambda leaf: leaf / len(arguments[1]), clipped(*arguments))


def step_loop(gradient: Gradient, task: Task, batch: int) -> Any:
    """``(params, x, y, steps) -> params``, the steps in a loop whose length is not compiled in."""

    def loop(params: Any, x: Any, y: Any, steps: Any) -> Any:
        def step(i: Any, params: Any) -> Any:
            begin = (i % _BATCHES) * batch
            at = [jax.lax.dynamic_slice_in_dim(each, begin, batch) for each in (x, y)]
            found = gradient(params, *at, jax.random.fold_in(jax.random.key(1), i))
            return jax.tree.map(lambda w, g: w - task.lr * g, params, found)

        return jax.lax.fori_loop(0, steps, step, params)

    return jax.jit(loop)


class Loop:
    """A compiled loop of one form of step."""

    def __init__(self, gradient: Gradient, task: Task, batch: int) -> None:
        x, y = (each[: _BATCHES * batch] for each in rows(task))
        self.arguments = jax.jit(network(task).init)(jax.random.key(0)), jnp.asarray(x), jnp.asarray(y)
        self.compiled = step_loop(gradient, task, batch).lower(*self.arguments, jnp.int32(1)).compile()
        self.mb = self.compiled.memory_analysis().temp_size_in_bytes / 1e6

    def seconds(self, steps: int) -> float:
        """Per step."""
        begin = time.perf_counter()
        jax.block_until_ready(self.compiled(*self.arguments, jnp.int32(steps)))
        return (time.perf_counter() - begin) / steps


class TorchLoop:
    """One form of step in a process of PyTorch, or rather in two: with a single thread, and with one for each core."""

    def __init__(self, python: str, form: str, task: Task) -> None:
        threads = sorted({1, os.cpu_count() or 1})
        self.workers = [Worker(python, "opacus_loop.py", threads=each) for each in threads]
        for worker in self.workers:
            worker.ask(f"load {task.name} {task.batch} {form}")
        self.best = min(self.workers, key=lambda worker: worker.ask("time 20")["seconds"])

    def seconds(self, steps: int) -> float:
        """Per step."""
        return self.best.ask(f"time {steps}")["seconds"]


TORCH = {"PyTorch, plain": "plain", "Opacus": "clipped", "Opacus, ghost": "ghost"}


def measure(name: str, repeats: int, table: Table, torch: str | None) -> None:
    """Adds a task's lines to the table."""
    task = TASKS[name]
    forms = gradients(task)
    loops: dict[str, Loop | TorchLoop] = {
        label: Loop(form, task, task.batch) for label, form in forms.items()
    }
    if torch is not None:
        loops |= {label: TorchLoop(torch, form, task) for label, form in TORCH.items()}
    steps = {label: max(2, int(0.3 / loop.seconds(2))) for label, loop in loops.items()}
    turns = {label: np.zeros(repeats) for label in loops}
    for turn in range(repeats):
        for label, loop in loops.items():
            turns[label][turn] = loop.seconds(steps[label])
    for label, seconds in turns.items():
        plain = turns["PyTorch, plain" if label in TORCH else "plain"]
        loop, memory = loops[label], ["", ""]
        if isinstance(loop, Loop):
            memory = [f"{each.mb:.1f}" for each in (loop, Loop(forms[label], task, 2 * task.batch))]
        table.add_row(
            f"{name}, {task.batch}",
            label,
            f"{1e3 * statistics.median(seconds):.2f}",
            f"{statistics.median(seconds / plain):.2f}",
            f"{AIMS[name]}" if label == "clipped_sum" and name in AIMS else "",
            *memory,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tasks", nargs="+", default=["lr-mnist", "mlp", "femnist-cnn", "cifar10-cnn"])
    parser.add_argument("--torch", help="a Python that has PyTorch and Opacus; none: without them")
    asked = parser.parse_args()
    table = Table(title="A step with every example clipped; medians")
    for column in ("task, batch", "gradient", "ms", "/ plain", "aim", "MB", "MB, batch twice"):
        table.add_column(column, justify="left" if column in ("task, batch", "gradient") else "right")
    for name in asked.tasks:
        measure(name, asked.repeats, table, asked.torch)
    Console(width=110).print(table)
    if importlib.util.find_spec("jax_privacy") is None:
        print("jax_privacy: not installed")


if __name__ == "__main__":
    main()
