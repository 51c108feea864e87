"""``python benchmarks/rivals``: rounds of federated averaging in Evenhand and in other libraries.

Makes an environment for each library in .venv-rivals, measures all of them in turns, and writes results.json and the
tables of docs/performance.md.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

HERE = Path(__file__).parent
sys.path.insert(1, str(HERE.parent))  # the tasks and the workers of the other benchmarks

from entrant import Entrant  # noqa: E402
from environments import Failure, python_for, versions  # noqa: E402
from page import BEGIN, END, EVENHAND, inserted, rendered  # noqa: E402
from tasks import TASKS  # noqa: E402

NAMES = ("logistic-ragged", "mlp", "femnist-cnn", "logistic-1000")
PAGE, RESULTS = HERE.parents[1] / "docs" / "performance.md", HERE / "results.json"
# Rounds after which losses are compared.
_LEARN = 3
# Seconds between measurements: PyTorch's threads spin a while after their last work.
_PAUSE = 0.5
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """One way to use the cores of the machine."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    threads: int | None = None


@dataclass(frozen=True)
class Library:
    """A library with the settings that are tried, the fastest of which counts.

    Attributes:
      packages: whose versions the page shows.
      settings: each measured in a process of its own.
      requirements: name of a list of packages in this folder; None: the environment of this process.
      most: rounds per measurement at most.
    """

    packages: tuple[str, ...]
    settings: tuple[Setting, ...]
    requirements: str | None = None
    most: int | None = None


def _threads(script: str) -> tuple[Setting, ...]:
    counts = sorted({1, CORES})
    return tuple(Setting(f"{n} thread{'s' * (n > 1)}", script, threads=n) for n in counts)


LIBRARIES = {
    EVENHAND: Library(("evenhand", "jax"), (Setting("default", "evenhand_rounds.py"),)),
    "PyTorch loop": Library(("torch",), _threads("torch_loop.py"), "torch"),
    "FedJAX": Library(
        ("fedjax", "jax", "dm-haiku"), (Setting("backend jit", "rivals/fedjax_rounds.py"),), "fedjax"
    ),
    "pfl": Library(
        ("pfl", "torch"),
        (
            *_threads("rivals/pfl_rounds.py"),
            Setting(f"{CORES} processes", "rivals/pfl_processes.py", (str(CORES),), 1),
        ),
        "pfl",
    ),
    # A round takes at least two waits of Flower's for a tenth of a second each.
    "Flower": Library(
        ("flwr", "ray", "torch"),
        (Setting(f"{CORES} clients at a time", "rivals/flower_rounds.py", threads=1),),
        "flower",
        most=10,
    ),
}


@dataclass(frozen=True)
class Rivals:
    """Time rounds of federated averaging in Evenhand, a PyTorch loop, FedJAX, pfl and Flower's simulation."""

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """which tasks; if some are named, the tables are printed, and the page and results.json stay as they are"""
    repeats: int = 5
    """measurements of each library, taken in turns"""
    patience: float = 900.0
    """seconds that a library may take for one answer before it counts as failed"""
    render: bool = False
    """only make the tables of the page anew, from results.json"""


def installed() -> tuple[dict[str, Path | str], dict[str, Any], dict[str, str]]:
    """The interpreter of each library, the versions of its packages, and why others could not be installed."""
    pythons: dict[str, Path | str] = {}
    packages: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, library in LIBRARIES.items():
        try:
            python = sys.executable if library.requirements is None else python_for(library.requirements)
            packages[name] = versions(python, library.packages)
            pythons[name] = python
        except Failure as failure:
            packages[name], errors[name] = {}, str(failure)
    return pythons, packages, errors


@contextlib.contextmanager
def attempted(name: str, errors: dict[str, str]) -> Iterator[None]:
    """Keeps the failure of one library from the others."""
    try:
        yield
    except Failure as failure:
        print(f"{name} failed: {failure}", file=sys.stderr, flush=True)
        errors[name] = str(failure)


def measure(
    task: str, pythons: dict[str, Path | str], errors: dict[str, str], options: Rivals
) -> dict[str, Any]:
    """One task in all libraries, in turns."""
    errors = dict(errors)
    workers: dict[tuple[str, str], Entrant] = {}
    seconds: dict[str, dict[str, list[float]]] = {}
    losses: dict[str, dict[str, float]] = {}
    try:
        for name, python in pythons.items():
            seconds[name] = {setting.name: [] for setting in LIBRARIES[name].settings}
            with attempted(name, errors):
                for setting in LIBRARIES[name].settings:
                    arguments, patience = setting.arguments, options.patience
                    worker = Entrant(
                        python, setting.script, *arguments, threads=setting.threads, patience=patience
                    )
                    workers[name, setting.name] = worker
                    worker.ask(f"load {task}")
                    # Any setting would do; the last one is the most unlike a plain loop.
                    losses[name] = worker.ask(f"learn {_LEARN}")
                    if losses[name]["after"] >= losses[name]["before"]:
                        raise Failure(f"the loss does not fall: {losses[name]}")
        for turn in range(options.repeats):
            for (name, setting), worker in workers.items():
                if name in errors:
                    continue
                with attempted(name, errors):
                    time.sleep(_PAUSE)
                    rounds = min(TASKS[task].rounds, LIBRARIES[name].most or TASKS[task].rounds)
                    wall = worker.ask(f"time {rounds}")["wall"]
                    seconds[name][setting].append(wall)
                    print(f"{task}, turn {turn + 1}: {name}, {setting}: {1e3 * wall:.1f} ms", file=sys.stderr)
    finally:
        for worker in workers.values():
            worker.close()
    return {
        name: {"error": errors[name]} if name in errors else {"seconds": seconds[name], "loss": losses[name]}
        for name in LIBRARIES
    }


def processor() -> str:
    """What the processor calls itself."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def main() -> None:
    options = tyro.cli(Rivals, description=__doc__)
    if unknown := [name for name in options.tasks if name not in NAMES]:
        raise SystemExit(f"There is no task {unknown[0]!r}: choose from {', '.join(NAMES)}.")
    if not {BEGIN, END} <= set(PAGE.read_text(encoding="utf-8").splitlines()):
        raise SystemExit(f"{PAGE} has no lines {BEGIN} and {END}, between which the tables belong.")
    if options.render:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        pythons, packages, errors = installed()
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": {"processor": processor(), "cores": CORES, "python": platform.python_version()},
            "repeats": options.repeats,
            "rounds": _LEARN,
            "versions": packages,
            "tasks": {name: measure(name, pythons, errors, options) for name in options.tasks or NAMES},
        }
    print(rendered(results))
    if not options.tasks:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
