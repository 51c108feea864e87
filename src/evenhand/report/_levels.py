"""How a report shows runs whose clients are served one of several models: which one, and how well.

The same numbers are a section of the page, a sentence on the terminal, and a part of ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand import evaluation
from evenhand.evaluation import SPLIT_NAMES
from evenhand.report import formatting
from evenhand.report._comparison import Comparison
from evenhand.report._view import NDArray, RunView, client_values, has_examples, honest
from evenhand.report.formatting import Row, Table, Value, capital, note, over_seeds, section, value
from evenhand.text import counted, listed, of_model

_UNSEEN = "unseen in training"
_MOST_NAMED = 20


class LevelRow(NamedTuple):
    """How well one of several models serves the clients that take it, and how well it would serve all.

    Attributes:
      level: the model; empty: the one that each client is served.
      clients: the ids of those that are served it and have a value of the metric.
      served: the mean over these clients and over the worst tenth of them; NaN without any.
      alone: the same over all clients.
    """

    level: str
    clients: Sequence[str]
    served: tuple[float, float]
    alone: tuple[float, float]


def by_level(run: RunView, split: str, metric: str) -> list[LevelRow]:
    """What each client is served, over the honest clients, and then each level; empty where there is one model."""
    run = honest(run)
    if run.level is None:
        return []
    served, ids = client_values(run, split, metric), np.array(run.client_ids, object)
    measured = has_examples(run, split) & np.isfinite(served)

    def means(values: NDArray, which: NDArray) -> tuple[float, float]:
        if not which.any():
            return (float("nan"), float("nan"))
        higher_is_better = evaluation.is_higher_better(metric)
        statistics = evaluation.summarize(values[which], higher_is_better=higher_is_better)
        return statistics["mean"], statistics["worst10"]

    every = means(served, measured)
    rows = [LevelRow("", tuple(ids[measured]), every, every)]
    for name in run.info.get("levels") or sorted(set(run.level)):
        takes = measured & (run.level == name)
        alone = client_values(run, split, of_model(metric, name))
        rows.append(
            LevelRow(
                name, tuple(ids[takes]), means(served, takes), means(alone, measured & np.isfinite(alone))
            )
        )
    return rows


def levels(subject: Comparison) -> str:
    """The section on which level each client is served; empty where every method has one model."""
    rows, notes, several = list[Row](), list[str](), len(subject.methods) > 1
    for method in subject.methods:
        groups = {"": method.runs}
        if all(run.unseen is not None for run in method.runs):
            groups[_UNSEEN] = tuple(run.unseen for run in method.runs if run.unseen is not None)
        for group, runs in groups.items():
            by_run = [by_level(run, subject.split, subject.metric) for run in runs]
            if not all(by_run):
                continue
            for same in zip(*by_run, strict=True):
                name = same[0].level or "as served"
                head = [method.name] if several else []
                rows.append([*head, ", ".join(filter(None, (name, group))), *_cells(same, subject.metric)])
            if len(subject.runs) == 1:
                notes += [_names(row, group) for row in by_run[0][1:] if row.clients]
    if not rows:
        return ""
    unit = " in percent" if subject.is_share else ""
    caption = f"{capital(subject.quantity)} per client{unit}, by the level that each is served"
    caption += "; ± over seeds" if subject.seeds > 1 else ""
    head = [*(["Method"] if several else []), "Level", "Clients", "Mean", "Worst 10 %", *_ALONE]
    remark = (
        "Each client is served the model that is best on its validation examples; clients unseen in training that have "
        "none choose on their training examples. Mean and worst 10 % are over the clients that are served the level; "
        "the last two columns are over all clients, if all were served it."
    )
    return section("Which level each client is served", Table(head, rows).html(caption), note(remark), *notes)


_ALONE = ("Mean, if served to all", "Worst 10 %, if served to all")


def _cells(same: Sequence[LevelRow], metric: str) -> list[Value]:
    """The numbers of one level, over seeds."""
    scale = formatting.factor("mean", metric)
    counts = [len(row.clients) for row in same]
    every = [[row.served for row in same], [row.alone for row in same]]
    columns = [[pair[i] for pair in pairs] for pairs in every for i in (0, 1)]
    first = over_seeds(counts) if len(counts) > 1 else Value(f"{counts[0]:,}")
    return [first, *(over_seeds(values, scale) for values in columns)]


def _names(row: LevelRow, group: str) -> str:
    """Which clients are served a level, as a paragraph."""
    shown, rest = row.clients[:_MOST_NAMED], len(row.clients) - _MOST_NAMED
    more = f" and {rest:,} more, in clients.csv" if rest > 0 else ""
    kind = f" ({group})" if group else ""
    return note(f"{row.level} serves {counted(len(row.clients), 'client')}{kind}: {', '.join(shown)}{more}.")


def levels_in_words(run: RunView, split: str, metric: str) -> str:
    """The same in a sentence or two; empty where there is one model."""
    sentences = list[str]()
    for noun, view in (("client", run), ("unseen client", run.unseen)):
        rows = [] if view is None else by_level(view, split, metric)
        # Without examples to choose on, a finding says so; newcomers may choose on training examples.
        has_chosen = noun != "client" or np.any(run.sizes.get("valid", 0))
        if rows and rows[0].clients and has_chosen:
            parts = [f"{row.level} to {len(row.clients):,}" for row in rows[1:]]
            best = max(rows[1:], key=lambda row: _merit(row.alone[0], metric))
            sentences.append(
                f"Of {counted(len(rows[0].clients), noun)} with {SPLIT_NAMES[split]} examples, each is served its best "
                f"level: {listed(parts)} (mean {value(rows[0].alone[0], metric)}, worst 10 % "
                f"{value(rows[0].alone[1], metric)}; {best.level} for all: {value(best.alone[0], metric)}, "
                f"{value(best.alone[1], metric)})."
            )
    return " ".join(sentences)


def _merit(x: float, metric: str) -> float:
    return -np.inf if np.isnan(x) else x if evaluation.is_higher_better(metric) else -x


def levels_summary(run: RunView) -> dict[str, Any]:
    """Level -> how many clients are served it, and split -> metric -> mean and worst tenth, for ``summary.json``."""
    run = honest(run)
    if run.level is None:
        return {}
    names = run.info.get("levels") or sorted(set(run.level))
    about: dict[str, Any] = {name: {"clients": int(np.sum(run.level == name))} for name in names}
    for split, metrics in run.clients.items():
        metric = evaluation.primary_metric(metrics)
        for row in by_level(run, split, metric)[1:]:
            (mean, worst), (mean_of_all, worst_of_all) = row.served, row.alone
            about[row.level][split] = {
                "metric": metric,
                "clients": len(row.clients),
                "mean": mean,
                "worst10": worst,
                "mean_if_served_to_all": mean_of_all,
                "worst10_if_served_to_all": worst_of_all,
            }
    return about
