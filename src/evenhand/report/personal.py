"""The section of the report on global and personal models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import is_share
from evenhand.report._personal_plot import personal_scatter
from evenhand.report.comparison import Comparison, Method
from evenhand.report.gains import Gain, gains, in_words, untrained
from evenhand.report.html import Cell, escape, svg, table
from evenhand.report.numbers import number
from evenhand.text import isolated

__all__ = ["personal", "personal_figures"]


def personal(subject: Comparison) -> str:
    """The section on global and personal models; empty where nobody has a model of its own."""
    split, metric, methods = subject.split, subject.metric, _personal(subject)
    if not methods:
        return ""
    rows = [row for method in methods for row in _rows(method, split, metric)]
    unit = "; means in percent" if is_share(metric) else ""
    over = "; ± over seeds" if subject.seeds > 1 else ""
    caption = (
        f"{subject.what[:1].upper()}{subject.what[1:]} of the global model and of clients' own{unit}{over}"
    )
    head = ["Method", "Clients", "How many", "Global model", "Own model", "Gain", "Better", "Worse"]
    caption += "; clients that never trained are left out" if _left_out(methods) else ""
    body = table(caption, head, rows, "numbers")
    return f"<section>\n<h2>What clients gain by models of their own</h2>\n{body}\n</section>"


def personal_figures(subject: Comparison) -> list[str]:
    """The figure of global and personal models, if anybody has a model of its own."""
    methods = _personal(subject)
    if not methods:
        return []
    told = (in_words(method.runs[0], subject.split, subject.metric) for method in methods)
    words = " ".join(f"{isolated(method.name)}: {each}" for method, each in zip(methods, told, strict=True))
    unseen = any(run.unseen is not None for method in methods for run in method.runs)
    note = "One mark per client; above the line, its own model serves it better."
    note += " Hollow: clients unseen in training." if unseen else ""
    note += " Clients that never trained are left out." if _left_out(methods) else ""
    figure = personal_scatter(subject._replace(methods=methods))
    return [svg(figure, "personal", "The global model, or a model of one's own?", note, words)]


def _personal(subject: Comparison) -> tuple[Method, ...]:
    """The methods whose clients have models of their own."""
    of = (subject.split, subject.metric)
    return tuple(method for method in subject.methods if all(gains(run, *of) for run in method.runs))


def _left_out(methods: Sequence[Method]) -> bool:
    """Whether some clients have no personal model because they never trained."""
    return any(untrained(run) for method in methods for run in method.runs)


def _rows(method: Method, split: str, metric: str) -> list[list[str | Cell]]:
    scale = 100.0 if is_share(metric) else 1.0
    by_group: dict[str, list[Gain]] = {}
    names = {"all": "trained", "honest": "honest and trained"} if _left_out([method]) else {}
    for run in method.runs:
        for each in gains(run, split, metric):
            by_group.setdefault(names.get(each.who, each.who), []).append(each)
    rows: list[list[str | Cell]] = []
    for who, group in by_group.items():
        numbers = [
            [scale * each.alone for each in group],
            [scale * each.own for each in group],
            [scale * (each.own - each.alone) for each in group],
        ]
        counts = [[each.gained for each in group], [each.lost for each in group]]
        texts = [
            *map(_over_seeds, numbers),
            *(_over_seeds(of) if len(of) > 1 else f"{of[0]:,}" for of in counts),
        ]
        cells = [Cell(escape(text), "number") for text in texts]
        rows.append(
            [method.name, Cell(escape(who), "number"), Cell(f"{group[0].clients:,}", "number"), *cells]
        )
    return rows


def _over_seeds(of: Sequence[float]) -> str:
    values = np.asarray(of, np.float64)
    more = f" ± {number(float(values.std(ddof=1)), 2)}" if values.size > 1 else ""
    return number(float(values.mean())) + more
