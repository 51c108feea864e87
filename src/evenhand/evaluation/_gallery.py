"""The figures of the report, each with its title, how to read it, and its message in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import figures
from evenhand.evaluation._html import svg, value
from evenhand.evaluation._view import SPLITS, RunView, Subject, client_values, statistics

__all__ = ["gallery"]

_MOST_EXTRA_FIGURES = 6


def gallery(subject: Subject) -> str:
    """Learning curves, then what each client gets, then whatever else was recorded."""
    shown = [*_curves(subject), *_clients(subject)]
    for i, key in enumerate(_extra_series(subject.runs)):
        name = key.replace("_", " ")
        name = name if len(name) < 4 else name[:1].upper() + name[1:]
        shown.append(
            svg(figures.series(subject.runs, key), f"series{i}", name, "By round.", f"{name} by round.")
        )
    return '<section>\n<h2>Figures</h2>\n<div class="figures">\n' + "\n".join(shown) + "\n</div>\n</section>"


def _curves(subject: Subject) -> list[str]:
    """The metric by round and, where it is another, the loss."""
    runs, metric, split, several = subject.runs, subject.metric, subject.split, len(subject.runs) > 1
    if not any(len(run.history["round"]) for run in runs):
        return []
    title = f"{subject.what} by round".capitalize()
    note = "Mean over all rows." + (" Dashed: worst tenth of clients." if several else "")
    figure = figures.learning_curve(runs, metric, split)
    shown = [svg(figure, "curve", title, note, f"{title}. {_told(subject)}")]
    loss_split = "train" if several else split
    if metric != "loss" and any(f"{loss_split}_loss" in run.history for run in runs):
        title = f"{'Training loss' if several else 'Loss'} by round"
        figure = figures.learning_curve(runs, "loss", loss_split)
        shown.append(svg(figure, "loss", title, "Mean over all rows.", f"{title}."))
    return shown


def _clients(subject: Subject) -> list[str]:
    """What each client gets at the end of the run."""
    runs, metric, split, what = subject.runs, subject.metric, subject.split, subject.what
    many = any(np.isfinite(client_values(run, split, metric)).sum() >= figures.MEDIANS_FROM for run in runs)
    return [
        svg(
            figures.client_histogram(runs, metric, split),
            "histogram",
            "How many clients get how much",
            f"Clients by {what}.",
            f"Histogram of the {what} per client. {_told(subject)}",
        ),
        svg(
            figures.client_curve(runs, metric, split),
            "clients",
            "Every client, worst served first",
            "The flatter, the more even. Shaded: the worst tenth.",
            f"The {what} of every client, worst served first. {_told(subject)}",
        ),
        svg(
            figures.size_scatter(runs, metric, split),
            "sizes",
            "Does a client's size decide what it gets?",
            "A mark per client." + (" Lines: medians by size." if many else ""),
            f"The {what} of every client against its number of training rows.",
        ),
    ]


def _told(subject: Subject) -> str:
    """The figure's message in words, for those who cannot see it."""
    metric = subject.metric
    told: list[str] = []
    for name, run in zip(subject.names, subject.runs, strict=True):
        s = statistics(run, subject.split, metric)
        numbers = f"mean {value(s['mean'], metric)}, worst tenth {value(s['worst10'], metric)}"
        told.append(f"{name}: {numbers}, best tenth {value(s['best10'], metric)}.")
    return " ".join(told)


def _extra_series(runs: Sequence[RunView]) -> list[str]:
    """Whatever else changed during some run: ``mu``, say, but no loss, metric or statistic of one."""
    known = ("round", *(f"{split}_" for split in SPLITS))
    keys = dict.fromkeys(key for run in runs for key in run.history if not key.startswith(known))

    def moves(key: str) -> bool:
        return any(np.unique(x[np.isfinite(x)]).size > 1 for x in (_past(run, key) for run in runs))

    return [key for key in keys if moves(key)][:_MOST_EXTRA_FIGURES]


def _past(run: RunView, key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(run.history.get(key, []), np.float64)
