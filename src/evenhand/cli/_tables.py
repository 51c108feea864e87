"""Saved runs as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table

from evenhand.evaluation import RunView
from evenhand.evaluation._view import (
    client_values,
    diverged,
    headline_split,
    is_higher_better,
    is_share,
    labels,
    primary_metric,
    statistics,
)

__all__ = ["Subject", "client_table", "overview", "subject", "tally"]

_COLUMNS = (
    ("mean", "mean"),
    ("weighted_mean", "weighted\nmean"),
    ("worst10", "worst\n10 %"),
    ("best10", "best\n10 %"),
    ("variance", "vari-\nance"),
    ("angle", "angle\n°"),
)
_EVENNESS = ("variance", "angle")
"""Less is better, whatever the metric."""


class Subject(NamedTuple):
    """What is compared: some runs under distinct names, by one metric on one split."""

    runs: Sequence[RunView]
    names: Sequence[str]
    metric: str
    split: str

    @property
    def values(self) -> np.ndarray:
        """``(runs, K)``; only for runs with the same clients."""
        return np.stack([client_values(run, self.split, self.metric) for run in self.runs])


def subject(runs: Sequence[RunView]) -> Subject:
    """The metric and the split that say most about ``runs``.

    Raises:
      EvenhandError: they have no metric in common.
    """
    metric = primary_metric(runs)
    return Subject(runs, labels(runs), metric, headline_split(runs, metric))


def overview(of: Subject) -> Group:
    """One line per run; the best of each column carries a star."""
    percent = ", %" + (" (variance: %²)" if is_share(of.metric) else "") if is_share(of.metric) else ""
    table = _table()
    table.add_column("method", overflow="fold")
    for _, title in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    found = [statistics(run, of.split, of.metric) for run in of.runs]
    sound = [not diverged(run) for run in of.runs]
    cells = [_starred([stats[key] for stats in found], key, of.metric, sound) for key, _ in _COLUMNS]
    for name, *row in zip(of.names, *cells, strict=True):
        table.add_row(name, *row)
    return Group(f"[bold]{of.split} {of.metric} over clients{percent}", table)


def client_table(of: Subject, count: int) -> Group:
    """The ``count`` clients that the first run serves worst, one line each."""
    values, first = of.values, of.runs[0]
    sign = 1 if is_higher_better(of.metric) else -1
    order = np.argsort(sign * values[0], kind="stable")
    shown = [int(k) for k in order if not np.isnan(values[0, k])][:count]
    table = _table()
    table.add_column("client", overflow="fold")
    table.add_column(f"{of.split}\nrows", justify="right")
    for name in of.names:
        table.add_column(name, justify="right", overflow="fold")
    for k in shown:
        rows = f"{int(first.sizes[of.split][k])}" if of.split in first.sizes else ""
        table.add_row(first.client_ids[k], rows, *(_text(v, "mean", of.metric) for v in values[:, k]))
    title = f"{of.split} {of.metric} of the {len(shown)} clients worst off under {of.names[0]}"
    return Group(f"[bold]{title}", table)


def tally(of: Subject) -> str:
    """How many clients the second of two runs serves better than the first."""
    first, second = of.values
    gain = second - first if is_higher_better(of.metric) else first - second
    better, worse, equal = (int(np.sum(test)) for test in (gain > 0, gain < 0, gain == 0))
    return (
        f"{of.names[1]} serves {better} clients better than {of.names[0]}, {worse} worse and {equal} alike."
    )


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _starred(values: Sequence[float], key: str, metric: str, sound: Sequence[bool]) -> list[str]:
    """The column as text, the best value of a run that did not diverge marked unless all are alike."""
    finite = [value for value, known in zip(values, sound, strict=True) if known and np.isfinite(value)]
    choose = max if is_higher_better(metric) and key not in _EVENNESS else min
    best = choose(finite) if finite and min(finite) < max(finite) else None
    texts = (_text(value, key, metric) for value in values)
    return [
        f"[bold green]{text}*[/]" if value == best and known else f"{text} "
        for value, text, known in zip(values, texts, sound, strict=True)
    ]


def _text(value: float, key: str, metric: str) -> str:
    if np.isnan(value):
        return "–"
    if key == "angle" or not is_share(metric):
        return f"{value:.4g}"
    return f"{value * (1e4 if key == 'variance' else 1e2):.1f}"
