"""What the tables of tilted losses share: runs that are kept one by one, standard errors, and orderings over seeds."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.records import write_text
from experiments.fairness import Experiment, Measures, write

__all__ = ["TermExperiment", "held", "kept", "run", "table"]


@dataclass(frozen=True, kw_only=True)
class TermExperiment(Experiment):
    """What each table takes from the command line; each adds its own settings, with their sources."""

    out: Path = Path("experiments/term/results")
    """Folder that gets the JSON file."""
    data_dir: Path = Path("data")
    """Folder with the data."""
    seeds: int = 5
    """Section 7.7: five runs."""


def kept(config: TermExperiment, table: str, name: str, compute: Callable[[], Measures]) -> Measures:
    """The numbers of one run, from ``config.folder`` if an earlier session has ended it.

    Args:
      config: has the folder; without one, nothing is kept.
      table: the part of the folder.
      name: the run, such as ``"TERM, noisy 1:4, seed 0"``.
      compute: makes the run.
    """
    folder = config.under(table)
    path = folder and folder / f"{re.sub('[^a-zA-Z0-9.+-]+', '_', name)}.json"
    if path is not None and path.exists():
        return json.loads(path.read_text())
    begin = time.perf_counter()
    measures = {key: float(value) for key, value in compute().items()}
    print(f"{table}: {name}: {measures} ({time.perf_counter() - begin:.0f} s)", file=sys.stderr, flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(measures))
    return measures


def run(
    config: TermExperiment,
    name: str,
    title: str,
    methods: Mapping[str, Callable[[int], Measures]],
    *,
    settings: Mapping[str, Any],
    paper: Mapping[str, Mapping[str, float]] | None = None,
    orderings: Mapping[str, tuple[str, str, str, bool]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Runs a table, method by method and seed by seed, saves ``<name>.json``, and prints it.

    Args:
      config: seeds and folders.
      name: of the JSON file, and of the part of ``config.folder`` that keeps each run.
      title: what the table shows.
      methods: name -> ``seed -> {measure: number}``.
      settings: what the numbers depend on; they are saved beside them.
      paper: method -> measure -> the paper's number.
      orderings: claim -> ``(method, other, measure, higher)``: saved is in how many seeds the method has the higher (or
        lower) measure than the other.
      more: further content of the file, such as settings chosen on validation rows.
    """
    measured = {
        method: [
            kept(config, name, f"{method}, seed {seed}", lambda make=make, seed=seed: make(seed))
            for seed in range(config.seeds)
        ]
        for method, make in methods.items()
    }
    content = {
        "title": title,
        "methods": {method: {"seeds": seeds, **_over(seeds)} for method, seeds in measured.items()},
        "paper": paper or {},
        "orderings": {
            claim: held(measured[better], measured[other], measure, higher=higher)
            for claim, (better, other, measure, higher) in (orderings or {}).items()
        },
        **(more or {}),
    }
    command = shlex.join(["python", "-m", f"experiments.term.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    path = config.out / f"{name}.json"
    write(path, {"command": command, **content}, settings)
    print(table(path), flush=True)
    return path


def held(better: list[Measures], other: list[Measures], measure: str, *, higher: bool) -> str:
    """In how many seeds an ordering holds, as ``"4 of 5 seeds"``."""
    sign = 1.0 if higher else -1.0
    pairs = zip(better, other, strict=True)
    return f"{sum(sign * (a[measure] - b[measure]) > 0 for a, b in pairs)} of {len(better)} seeds"


def table(path: Path) -> str:
    """A saved table in Markdown: mean ± standard error over the seeds; the paper's number in brackets."""
    content = json.loads(path.read_text())
    names = list(next(iter(content["methods"].values()))["mean"])
    rows = [f"| {content['title']} | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for method, numbers in content["methods"].items():
        paper = content["paper"].get(method, {})
        cells = [
            f"{numbers['mean'][name]:.3g} ± {numbers['error'][name]:.2g}"
            + (f" [{paper[name]:g}]" if name in paper else "")
            for name in names
        ]
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *(f"* {claim}: {seeds}" for claim, seeds in content["orderings"].items())])


def _over(seeds: list[Measures]) -> dict[str, Measures]:
    """Mean and standard error over the seeds; of a single seed the error is 0."""
    columns = {name: np.array([one[name] for one in seeds]) for name in seeds[0]}
    count = len(seeds)
    return {
        "mean": {name: float(values.mean()) for name, values in columns.items()},
        "error": {
            name: float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
            for name, values in columns.items()
        },
    }
