"""What an accelerator does with the tasks: python benchmarks/accelerator.py TASK ... [--lanes 1 8 32] [--long 1500].

Prints, for each task and number of clients side by side, how long a round takes, how long compiling took, and the peak
of the device's memory.  "default" is what the engine chooses.  ``--long`` trains the CIFAR-10 task through
``eh.simulate`` for so many rounds.  ``--crowded`` trains a small network with large activations, of which only a few
fit into the device's memory.  ``--save FILE`` trains small models with methods of every kind and keeps a part of
their parameters; ``--against FILE``, on another device, prints how far its own are from these.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from evenhand_rounds import Rounds, dataset, network
from tasks import TASKS, with_real_sizes

import evenhand as eh
from evenhand.simulation import Execution, Job, engine, setup

REPEATS = 5
MOST = 2_000
"""Numbers of each array of parameters that are compared."""


def peak() -> int:
    """Bytes of the device's memory that were in use at most since the process began; 0: it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def measured(name: str, lanes: int | None, precision: str | None) -> dict[str, Any]:
    """One task with so many lanes, in this process."""
    if precision is not None:
        jax.config.update("jax_default_matmul_precision", precision)
    rounds = Rounds(with_real_sizes(TASKS[name], None), lanes, None)
    count = rounds.task.rounds
    turns = [rounds.time(engine, count) for _ in range(REPEATS)]
    return {
        "task": name,
        "asked": lanes,
        "precision": precision,
        "lanes": rounds.setup.program.lanes,
        "ms": 1e3 * statistics.median(turn["wall"] for turn in turns),
        "spread": [round(1e3 * turn["wall"], 3) for turn in turns],
        "compile": rounds.compile,
        "padded": turns[-1]["padded"],
        "peak_mb": peak() / 2**20,
    }


def apart(arguments: list[str], **settings: str) -> dict[str, Any]:
    """The same in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip()[-400:]}
    return json.loads(done.stdout.splitlines()[-1])


def long_run(rounds: int) -> dict[str, float]:
    """The CIFAR-10 task through the public function, with an evaluation at the end."""
    task = TASKS["cifar10-cnn"]
    method = eh.algorithms.fedavg(eh.local.sgd(network(task), 0.01, epochs=1, batch_size=task.batch))
    begin = time.perf_counter()
    run = eh.simulate(method, dataset(task), rounds=rounds, cohort=task.cohort, eval_every=rounds)
    whole = time.perf_counter() - begin
    return {"rounds": rounds, "seconds": whole, **{k: float(v) for k, v in run.info["seconds"].items()}}


class _Deep(nn.Module):
    """150,000 parameters, whose activations take a hundred times as much memory as they."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(5):
            x = nn.relu(nn.Conv(64, (3, 3))(x))
        return nn.Dense(10)(x.mean((1, 2)))


def crowded(clients: int = 128, batch: int = 128) -> dict[str, float]:
    """A round of clients whose work does not fit side by side, with the count of what each takes."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((clients * batch, 32, 32, 3), np.float32), rng.integers(0, 10, clients * batch)
    model = eh.models.from_flax(_Deep(), loss="cross_entropy", sample=x[:1])
    data = eh.data.from_arrays(x, y, np.arange(len(x)) % clients, test_fraction=0.0)
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.01, epochs=1, batch_size=batch))
    run = setup.set_up(Job(method, data, rounds=1, cohort=clients, execution=Execution()))
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    begin = peak()
    state, _ = engine.run_rounds(run.program, run.state, run.rows, run.keys, 0, 1)
    jax.block_until_ready(state)
    names = ("lanes", "limit_mb", "before_mb", "peak_mb")
    return dict(zip(names, (run.program.lanes, limit / 2**20, begin / 2**20, peak() / 2**20), strict=True))


# --- the same numbers as on the CPU -----------------------------------------------------------------------------------


def methods() -> dict[str, Callable[[eh.types.Local], eh.Algorithm]]:
    """Methods that use the engine in different ways."""
    fedavg = eh.algorithms.fedavg
    aggregators = eh.aggregators
    return {
        "fedavg": fedavg,
        "scaffold": eh.algorithms.scaffold,
        "qfedavg": lambda work: eh.algorithms.qfedavg(work, q=1.0),
        "ditto": lambda work: eh.personalization.ditto(fedavg(work), work, lam=0.1),
        "median": lambda work: fedavg(work, aggregator=aggregators.coordinate_median()),
        "geometric median": lambda work: fedavg(work, aggregator=aggregators.geometric_median()),
        "krum": lambda work: fedavg(work, aggregator=aggregators.krum(2)),
        "secure": lambda work: fedavg(work, aggregator=aggregators.secure(aggregators.mean())),
    }


def models() -> dict[str, tuple[eh.types.Model, np.ndarray]]:
    """Small models with their inputs."""
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((400, 28, 28, 1), np.float32)
    words = rng.integers(0, 80, (400, 20), dtype=np.int32)
    return {
        "softmax": (eh.models.softmax_regression(784, classes=10), pictures.reshape(400, -1)),
        "cnn": (eh.models.cnn_femnist(10), pictures),
        "lstm": (eh.models.lstm(), words),
    }


def trained(kinds: list[str]) -> dict[str, list[np.ndarray]]:
    """The parameters of each method and of these models after three rounds."""
    jax.config.update("jax_default_matmul_precision", "highest")
    out = dict[str, list[np.ndarray]]()
    for kind, (model, x) in models().items():
        if kind not in kinds:
            continue
        y = np.random.default_rng(1).integers(0, 10, len(x))
        data = eh.data.from_arrays(x, y, np.arange(len(x)) % 20, test_fraction=0.1)
        work = eh.local.sgd(model, 0.05, epochs=1, batch_size=6)
        for name, method in methods().items():
            if kind != "softmax" and name not in ("fedavg", "ditto"):
                continue
            begin = time.perf_counter()
            run = eh.simulate(method(work), data, rounds=3, cohort=10)
            out[f"{kind}, {name}"] = [np.asarray(leaf).ravel()[:MOST] for leaf in jax.tree.leaves(run.params)]
            print(f"{kind}, {name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    return out


def agreement(saved: Path, kinds: list[str]) -> dict[str, float]:
    """The largest difference from saved parameters, over the largest of them, by model and method."""
    theirs, gaps = np.load(saved), dict[str, float]()
    for name, leaves in trained(kinds).items():
        pairs = [(leaf, theirs[f"{name}, {i}"]) for i, leaf in enumerate(leaves)]
        gap, size = max(np.abs(a - b).max() for a, b in pairs), max(np.abs(b).max() for _, b in pairs)
        gaps[name] = float(gap / size)
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--lanes", nargs="*", type=int, default=[])
    parser.add_argument("--precision", nargs="*", default=[], help="of products: float32, tensorfloat32")
    parser.add_argument("--long", type=int, help="rounds of the CIFAR-10 task through eh.simulate")
    parser.add_argument("--crowded", action="store_true", help="a network with large activations")
    parser.add_argument("--models", nargs="*", default=[*models()], help="that --save and --against train")
    parser.add_argument("--save", type=Path, help="a file for parameters to compare with")
    parser.add_argument("--against", type=Path, help="a file of parameters that another device has saved")
    parser.add_argument("--out", type=Path, default=Path("."), help="a folder for all measurements")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one is not None:
        name, lanes, precision = options.one
        print(json.dumps(measured(name, int(lanes) or None, None if precision == "-" else precision)))
        return
    if options.save is not None:
        named = {
            f"{name}, {i}": leaf
            for name, leaves in trained(options.models).items()
            for i, leaf in enumerate(leaves)
        }
        np.savez(options.save, **named)
        return
    lines = list[dict[str, Any]]()
    for name in options.tasks:
        for lanes in [0, *options.lanes]:
            for precision in options.precision or ["-"]:
                lines.append(apart(["--one", name, str(lanes), precision]))
                print(json.dumps({**lines[-1], "task": name, "asked": lanes}), flush=True)
    results: dict[str, Any] = {"device": jax.devices()[0].device_kind, "tasks": lines}
    if options.long is not None:
        results["long"] = long_run(options.long)
        print(json.dumps(results["long"]), flush=True)
    if options.crowded:
        results["crowded"] = crowded()
        print(json.dumps(results["crowded"]), flush=True)
    if options.against is not None:
        results["agreement"] = agreement(options.against, options.models)
        print(json.dumps(results["agreement"]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accelerator.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
