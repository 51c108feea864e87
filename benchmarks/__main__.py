"""``python benchmarks``: how long a round takes, side by side, as a table with ratios.  See docs/performance.md."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from start import first_and_later
from tasks import READERS, TASKS
from worker import HEAP, Worker

HERE = Path(__file__).parent
# Seconds between measurements: PyTorch's threads spin a while after their last work.
_PAUSE = 0.5
# Clients per cohort: the twin is a Python loop. Its programs hold all rows, so that real sizes are too many for it.
_MOST_FOR_TWIN = 20
GOALS = {
    "cifar10-cnn": 0.75,
    "femnist-cnn": 1.0,
    "lr-mnist": 0.5,
    "mlp": 0.3,
    "logistic-ragged": 0.06,
    "logistic-1000": 0.05,
}


@dataclass(frozen=True)
class Bench:
    """Time rounds of federated averaging, Evenhand beside a plain PyTorch loop and its own readable twin."""

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """which tasks; none: all, or with --secure, --personal, --private, --study or --rivals none"""
    torch: Path | None = None
    """a Python that has PyTorch, such as .venv-torch/bin/python; none: without it"""
    threads: tuple[int, ...] = ()
    """of PyTorch; none: one, and as many as there are cores"""
    repeats: int = 5
    """measurements of each worker, taken in turns"""
    twin: bool = True
    """also the readable twin, and the first round of a process"""
    data_dir: Path | None = None
    """folder with client_sizes.npz, for FEMNIST's real client sizes; none: a log-normal fit"""
    million: bool = False
    """also a run over a million clients beside one over ten thousand (some minutes, 6 GB)"""
    fair: bool = False
    """also what fair methods cost beside FedAvg (a minute)"""
    robust: bool = False
    """also what each aggregator costs on stacked uploads, instead of the tasks unless some are named (minutes)"""
    secure: bool = False
    """also what secure sums cost, instead of the tasks unless some are named (a minute)"""
    personal: bool = False
    """also what personal models cost, up to a million clients, instead of the tasks unless some are named (minutes)"""
    private: bool = False
    """also what clipping of each example costs, instead of the tasks unless some are named (minutes)"""
    study: bool = False
    """also what a study costs beside a loop over its runs, instead of the tasks unless some are named (minutes)"""
    rivals: bool = False
    """also the same rounds in other libraries, instead of the tasks unless some are named (half an hour)"""
    out: Path | None = None
    """write all measurements to this JSON file"""


@dataclass
class Result:
    """What was measured of one task."""

    about: dict[str, float]
    measured: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    loss_gap: float | None = None

    def median(self, worker: str, what: str) -> float:
        """The median of a figure of one worker."""
        return statistics.median(each[what] for each in self.measured[worker])

    def ratio(self, reference: str) -> float:
        """Evenhand's time over that of another worker, the median over turns."""
        pairs = zip(self.measured["evenhand"], self.measured[reference], strict=True)
        return statistics.median(a["wall"] / b["wall"] for a, b in pairs)


def measure(name: str, bench: Bench) -> Result:
    """All workers in turns, each in a separate process."""
    folder = str(bench.data_dir or "")
    workers = {"evenhand": Worker(sys.executable, "evenhand_rounds.py", folder)}
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if bench.torch is not None:
        for threads in bench.threads or sorted({1, cores}):
            worker = Worker(str(bench.torch), "torch_loop.py", folder, threads=threads)
            workers[f"torch, {threads} threads"] = worker
    result = Result(workers["evenhand"].ask(f"load {name}"), {label: [] for label in workers})
    for label, worker in workers.items():
        if label != "evenhand":
            worker.ask(f"load {name}")
    for _ in range(bench.repeats):
        for label, worker in workers.items():
            time.sleep(_PAUSE)
            result.measured[label].append(worker.ask("time"))
    if bench.torch is not None and TASKS[name].model not in READERS:
        with tempfile.TemporaryDirectory() as folder:
            losses = [worker.ask(f"check {folder}/plan.npz")["loss"] for worker in workers.values()]
        result.loss_gap = max(abs(loss - losses[0]) for loss in losses[1:])
    if bench.twin and TASKS[name].sizes and TASKS[name].cohort <= _MOST_FOR_TWIN:
        workers["evenhand"].ask("twin")
        result.measured["twin"] = [workers["evenhand"].ask("twin") for _ in range(bench.repeats)]
    for worker in workers.values():
        worker.close()
    return result


def table(results: dict[str, Result]) -> Table:
    """The medians to print."""
    out = Table(title="A round of federated averaging; medians")
    columns = ("task", "wall ms", "CPU ms", "lanes x devices", "padding", "compile s", "peak MB")
    for column in (*columns, "PyTorch ms", "ratio", "goal", "loss gap", "twin / engine"):
        out.add_column(column, justify="left" if column == "task" else "right")
    for name, result in results.items():
        torch = {
            label: result.median(label, "wall") for label in result.measured if label.startswith("torch")
        }
        best = min(torch, key=lambda label: torch[label], default=None)
        out.add_row(
            name,
            f"{1e3 * result.median('evenhand', 'wall'):.2f}",
            f"{1e3 * result.median('evenhand', 'cpu'):.2f}",
            f"{result.about['lanes']:.0f} x {result.about['devices']:.0f}",
            f"{result.median('evenhand', 'padded'):.3f}",
            f"{result.about['compile']:.1f}",
            f"{result.median('evenhand', 'peak_mb'):.0f}",
            f"{1e3 * torch[best]:.1f} ({best[7:]})" if best else "",
            f"{result.ratio(best):.3f}" if best else "",
            f"{GOALS[name]}" if name in GOALS else "",
            "" if result.loss_gap is None else f"{result.loss_gap:.1e}",
            f"{1 / result.ratio('twin'):.1f}" if "twin" in result.measured else "",
        )
    return out


def write(path: Path, results: dict[str, Result]) -> None:
    """Writes everything that was measured."""
    whole = {
        name: {"about": r.about, "measured": r.measured, "loss_gap": r.loss_gap}
        for name, r in results.items()
    }
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    bench = tyro.cli(Bench, description=__doc__)
    unknown = [name for name in bench.tasks if name not in TASKS]
    if unknown:
        raise SystemExit(f"There is no task {unknown[0]!r}: choose from {', '.join(TASKS)}.")
    if bench.robust:
        subprocess.run([sys.executable, str(HERE / "robust.py")], check=True)
    if bench.secure:
        subprocess.run([sys.executable, str(HERE / "secure.py")], check=True)
        if not bench.tasks:
            return
    if bench.personal:
        subprocess.run([sys.executable, str(HERE / "personal.py")], check=True)
        if not bench.tasks:
            return
    if bench.private:
        environment = {**os.environ, **HEAP, "JAX_NUM_CPU_DEVICES": "1"}
        extra = [] if bench.torch is None else ["--torch", str(bench.torch)]
        subprocess.run([sys.executable, str(HERE / "private.py"), *extra], check=True, env=environment)
        if not bench.tasks:
            return
    if bench.study:
        for extra in ([], ["--alone", "loop"], ["--alone", "study"]):
            subprocess.run([sys.executable, str(HERE / "study.py"), *extra], check=True)
        if not bench.tasks:
            return
    if bench.rivals:
        subprocess.run([sys.executable, str(HERE / "rivals"), "--repeats", str(bench.repeats)], check=True)
        if not bench.tasks:
            return
    results: dict[str, Result] = {}
    for name in bench.tasks or TASKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = measure(name, bench)
        if bench.out is not None:
            write(bench.out, results)
    Console(width=150).print(table(results))
    if bench.twin:
        empty, filled = first_and_later("cnn", rounds=1, turns=3)
        first, later = f"{empty[0]:.1f} s", f"{filled[0]:.1f} s"
        print(f"First round of the FEMNIST CNN done after {first}; in a later process after {later}.")
    if bench.fair:
        subprocess.run([sys.executable, str(HERE / "fair.py")], check=True)
    if bench.million:
        subprocess.run([sys.executable, str(HERE / "million.py")], check=True)


if __name__ == "__main__":
    main()
