"""How well a run under attack serves honest clients, and malicious ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import is_share
from evenhand.report._view import RunView, among, statistics
from evenhand.report.comparison import Comparison
from evenhand.report.differences import factor
from evenhand.report.html import Cell, escape, table
from evenhand.report.numbers import number, plural

__all__ = ["attacked"]

_SHOWN = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}
_MOST_NAMED = 20


def attacked(subject: Comparison) -> str:
    """The section on honest and malicious clients; empty where nobody attacked."""
    every = [run.whole or run for run in subject.runs]
    if all(run.malicious is None for run in every):
        return ""
    rows: list[list[str | Cell]] = []
    for name, method in zip(subject.names, subject.methods, strict=True):
        for who in ("all", "honest", "malicious"):
            runs = [among(run.whole or run, who) for run in method.runs]
            if not all(len(run.client_ids) for run in runs):
                continue
            found = [statistics(run, subject.split, subject.metric) for run in runs]
            cells = [
                Cell(
                    escape(_over_seeds([each[key] for each in found], factor(key, subject.metric))), "number"
                )
                for key in _SHOWN
            ]
            rows.append([name, who, Cell(str(len(runs[0].client_ids)), "number"), *cells])
    head = ["Method", "Clients", "How many", *_SHOWN.values()]
    unit = " in percent (variance: %²)" if is_share(subject.metric) else ""
    what = subject.what[:1].upper() + subject.what[1:]
    made = table(f"{what} per client{unit}; ± over seeds", head, rows, "numbers")
    return f"<section>\n<h2>Honest and malicious clients</h2>\n{made}\n{_named(every)}\n</section>"


def _over_seeds(values: Sequence[float], scale: float) -> str:
    at = scale * np.asarray(values)
    return number(float(at.mean())) + (f" ± {number(float(at.std(ddof=1)), 2)}" if at.size > 1 else "")


def _named(runs: Sequence[RunView]) -> str:
    """Who was malicious, where that is the same in all runs."""
    names = {
        tuple(among(run, "malicious").client_ids) if run.malicious is not None else () for run in runs
    } - {()}
    if len(names) != 1:
        return (
            '<p class="note">Malicious clients differ between the runs. All other metrics of clients on this page are '
            "those of the honest clients of each run.</p>"
        )
    [found] = names
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    text = f"{plural(len(found), 'malicious client')}: {', '.join(found[:_MOST_NAMED])}{more}."
    rest = (
        "All other metrics of clients on this page are those of honest ones."
        if any(run.malicious is not None and not run.malicious.all() for run in runs)
        else "No client is honest, so the numbers of this page are of malicious ones."
    )
    return f'<p class="note">{escape(text)} They are measured on clean examples, like all others. {rest}</p>'
