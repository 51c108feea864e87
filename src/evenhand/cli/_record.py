"""A run as it happens: every evaluation on disk at once, and a whole run folder whenever it ends."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from evenhand.cli import _folder
from evenhand.cli._saved import load_run
from evenhand.cli._tables import overview, subject
from evenhand.evaluation import write_clients_csv, write_report
from evenhand.evaluation._view import statistics
from evenhand.simulation import Run

__all__ = ["record"]


def record(
    runs: Iterator[Run], folder: Path, config: Mapping[str, Any], *, rounds: int, console: Console
) -> int:
    """Drives ``runs`` to the end, or to Ctrl-C, writes the run folder, and returns the exit code.

    Nothing is written before the first evaluation, so that bad input leaves no folder behind.

    Args:
      runs: the run so far at each evaluation.
      folder: where it goes.
      config: what ``config.json`` shall hold.
      rounds: how many rounds were asked for.
      console: told how it goes, where no bar is live on it.
    """
    last, interrupted = None, False
    try:
        for run in runs:
            row = {name: float(values[-1]) for name, values in run.history.items()}
            with _uninterrupted():
                if last is None:
                    _folder.claim(folder)
                    _folder.write_json(folder / _folder.CONFIG, config)
                _folder.append_metrics(folder, row | {"round": int(row["round"])})
                before, last = last, run
            if not console.is_terminal and _tenth(run, rounds) > _tenth(before, rounds):
                console.print(f"round {row['round']:.0f} of {rounds}, loss {row['train_loss']:.4g}")
    except KeyboardInterrupt:
        interrupted = True
    if last is None:
        print("evenhand: Stopped before the first evaluation, so nothing was written.", file=sys.stderr)
        return 130
    with _uninterrupted():
        _finish(folder, last, rounds, interrupted=interrupted)
    if not console.quiet:
        _tell(folder, last, rounds, interrupted=interrupted)
    return 130 if interrupted else 0


def _tenth(run: Run | None, rounds: int) -> int:
    """How many tenths of the rounds are done; a log wants about ten lines, whatever the number of rounds."""
    return -1 if run is None else 10 * int(run.history["round"][-1]) // max(rounds, 1)


def _finish(folder: Path, run: Run, rounds: int, *, interrupted: bool) -> None:
    done, view = int(run.history["round"][-1]), run.view()
    write_clients_csv(folder / _folder.CLIENTS, view)
    summary: dict[str, Any] = {
        "rounds": done,
        "rounds_asked": rounds,
        "cohort": run.info["cohort"],
        "interrupted": interrupted,
        "last": {name: values[-1] for name, values in run.history.items()},
        "seconds": run.info["seconds"],
    }
    for split, metrics in view.clients.items():
        summary[split] = {metric: statistics(view, split, metric) for metric in metrics}
    _folder.write_json(folder / _folder.SUMMARY, summary)
    write_report(folder / _folder.REPORT, [load_run(folder).view])


def _tell(folder: Path, run: Run, rounds: int, *, interrupted: bool) -> None:
    console = Console(highlight=False)
    rows = f"{run.data.train.rows:,} training and {run.data.test.rows:,} test rows"
    console.print(f"{run.data.name}: {run.data.num_clients} clients, {rows}", soft_wrap=True, markup=False)
    console.print(overview(subject([load_run(folder).view])))
    done, loss = int(run.history["round"][-1]), float(run.history["train_loss"][-1])
    if interrupted:
        console.print(
            f"Stopped after round {done} of {rounds}; the folder holds what was done.", soft_wrap=True
        )
    if not math.isfinite(loss):
        console.print("[yellow]Training diverged: try a smaller --lr or --server-lr.[/]", soft_wrap=True)
    console.print(f"Report: {folder / _folder.REPORT}", soft_wrap=True, markup=False)


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Holds Ctrl-C back until files are whole; only the main thread can, and only it gets Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
