"""The figures of the report, each with a title, how to read it, and its message in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import SPLITS
from evenhand.report import _plots as plots
from evenhand.report._view import RunView, client_values
from evenhand.report.comparison import Comparison
from evenhand.report.html import escape, svg
from evenhand.report.numbers import value
from evenhand.text import isolated

__all__ = ["gallery"]

_MOST_EXTRA_FIGURES = 6


def gallery(subject: Comparison, further: Sequence[str] = ()) -> str:
    """Learning curves, then what each client gets, then further figures and whatever else was recorded."""
    shown = [*_curves(subject), *_clients(subject), *further]
    for i, key in enumerate(_extra_series(subject.runs)):
        name = key.replace("_", " ")
        name = name if len(name) < 4 else name[:1].upper() + name[1:]
        shown.append(svg(plots.series(subject, key), f"series{i}", name, "By round.", f"{name} by round."))
    note = _how_to_read(subject)
    return (
        f'<section>\n<h2>Figures</h2>\n{note}<div class="figures">\n'
        + "\n".join(shown)
        + "\n</div>\n</section>"
    )


def _how_to_read(subject: Comparison) -> str:
    """Notes on all figures."""
    whose = subject.covered
    notes = [] if whose.is_complete else [f"Of {whose.text}."]
    if len(subject.methods) > 3:
        notes.append("A panel per method, on equal scales; grey: the other methods.")
    if subject.seeds > 1:
        notes.append(
            f"Lines are means over {subject.seeds} seeds; bands span the lowest to the highest seed."
        )
    return f'<p class="caption">{escape(" ".join(notes))}</p>\n' if notes else ""


def _curves(subject: Comparison) -> list[str]:
    """The metric by round and, unless that is the loss, the loss."""
    runs, metric, split, several = subject.runs, subject.metric, subject.split, len(subject.methods) > 1
    if not any(len(run.history["round"]) for run in runs):
        return []
    title = f"{subject.what} by round".capitalize()
    note = "Mean over clients" if plots.over_clients(subject, split, metric) else "Mean over all examples"
    if several:
        note += "; dashed: worst tenth of the clients."
    else:
        note += "." if subject.seeds > 1 else "; band: worst to best tenth of the clients."
    shown = [svg(plots.learning_curve(subject), "curve", title, note, f"{title}. {_message(subject)}")]
    loss_split = "train" if several else split
    if metric != "loss" and any(f"{loss_split}_loss" in run.history for run in runs):
        title = f"{'Training loss' if several else 'Loss'} by round"
        figure = plots.learning_curve(subject._replace(metric="loss", split=loss_split))
        shown.append(svg(figure, "loss", title, "Mean over all examples.", f"{title}."))
    return shown


def _clients(subject: Comparison) -> list[str]:
    """What each client gets at the end of the run."""
    metric, split, what = subject.metric, subject.split, subject.what
    counts = [np.isfinite(client_values(run, split, metric)).sum() for run in subject.runs]
    many = max(counts) >= plots.MEDIANS_FROM
    return [
        svg(
            plots.client_histogram(subject),
            "histogram",
            "How many clients get how much",
            f"Clients by {what}.",
            f"Histogram of the {what} per client. {_message(subject)}",
        ),
        svg(
            plots.client_curve(subject),
            "clients",
            "Every client, worst served first",
            "The flatter, the more even. Shaded: the worst tenth.",
            f"The {what} of every client, worst served first. {_message(subject)}",
        ),
        svg(
            plots.size_scatter(subject),
            "sizes",
            "Does a client's size decide what it gets?",
            "One mark per client." + (" Lines: medians by size." if many else ""),
            f"The {what} of every client against its number of training examples.",
        ),
    ]


def _message(subject: Comparison) -> str:
    """The figure's message in words, for those who cannot see it."""
    metric = subject.metric
    sentences: list[str] = []
    for method in subject.methods:
        stats = method.statistics(subject.split, metric)
        mean, low, high = (value(float(np.mean(stats[key])), metric) for key in ("mean", "worst10", "best10"))
        sentences.append(f"{isolated(method.name)}: mean {mean}, worst tenth {low}, best tenth {high}.")
    return " ".join(sentences)


def _extra_series(runs: Sequence[RunView]) -> list[str]:
    """Other recorded series that change during some run, such as ``mu``: not metrics or their statistics."""
    known = ("round", *(f"{split}_" for split in SPLITS))
    keys = dict.fromkeys(key for run in runs for key in run.history if not key.startswith(known))

    def moves(key: str) -> bool:
        return any(np.unique(x[np.isfinite(x)]).size > 1 for x in (_past(run, key) for run in runs))

    return [key for key in keys if moves(key)][:_MOST_EXTRA_FIGURES]


def _past(run: RunView, key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(run.history.get(key, []), np.float64)
