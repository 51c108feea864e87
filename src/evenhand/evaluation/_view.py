"""What a report shows of a run, whoever made it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.evaluation._classes import CLASS_COLUMNS, summarize_classes
from evenhand.evaluation._summary import summarize
from evenhand.text import spreadsheet_cell

__all__ = ["Finding", "RunView", "Runs", "Viewable", "diverged", "write_clients_csv"]

SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {"train": "training", "valid": "validation", "test": "test"}

_LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity")

NDArray = npt.NDArray[Any]


Kind: TypeAlias = Literal["diverged", "unmoved", "rejected", "guessing", "scales"]


class Finding(NamedTuple):
    """One thing that is wrong with a run.

    Attributes:
      kind: ``"diverged"``, ``"unmoved"`` (nothing was learnt because nothing changed), ``"rejected"`` (uploads
        that no honest client can send), ``"guessing"`` (the model does
        no better than one answer for everybody) or ``"scales"`` (of the features).
      sentence: what it is, since when, how much, and what to try; plain text, of one or more sentences.
    """

    kind: Kind
    sentence: str


class RunView(NamedTuple):
    """All that reports and figures know about a run.

    Attributes:
      title: a short name, such as that of the method.
      history: equal-length arrays, ``"round"`` among them; the others are ``"<split>_<metric>"``, such as
        ``"test_accuracy"``, over rows, optionally with ``"_mean"``, ``"_worst10"`` or ``"_best10"`` behind, over
        clients, or whatever else was recorded.  NaN where there is no number.
      sizes: rows per client, ``(K,)``, of the splits ``"train"``, ``"valid"`` and ``"test"`` that exist.
      client_ids: the clients' names, ``K`` of them.
      clients: split -> metric -> ``(K,)``, at the end of the run; NaN for a client without rows.
      info: what is known about the run itself.  Understood, and all optional: ``"rounds"``, ``"cohort"``,
        ``"seed"``, ``"data"`` and ``"method"`` (names), ``"fingerprint"`` (equal for equal data), ``"seconds"``
        (activity -> seconds),
        ``"examples_per_second"`` of training, ``"padded"`` (share of the executed steps), ``"command"``
        (the line that runs it again), ``"versions"`` (package -> version), ``"by_class"`` (split -> what
        :func:`~evenhand.evaluation.by_class` gives).
      config: every setting of the run, possibly nested.
      classes: split -> what :func:`~evenhand.evaluation.class_spread` gives, ``(K,)`` each; only for splits whose rows
        have classes, and not for runs that were saved before it was measured.
      findings: what a reader must know before believing the numbers, the worst first.
    """

    title: str
    history: Mapping[str, NDArray]
    sizes: Mapping[str, NDArray]
    client_ids: Sequence[str]
    clients: Mapping[str, Mapping[str, NDArray]]
    info: Mapping[str, Any]
    config: Mapping[str, Any]
    classes: Mapping[str, Mapping[str, NDArray]] = MappingProxyType({})
    findings: Sequence[Finding] = ()


def diverged(run: RunView) -> bool:
    """Whether training has failed, so that none of the run's numbers may be called the best."""
    return any(finding.kind == "diverged" for finding in run.findings)


class Viewable(Protocol):
    """What has a :class:`RunView`: a :class:`~evenhand.simulation.Run`."""

    def view(self) -> RunView:
        """All that reports and figures know about it."""
        ...


Runs: TypeAlias = RunView | Viewable | Sequence[RunView | Viewable] | Mapping[str, "Runs"]
"""A run, several, or names with the run or runs that go by each."""

ANONYMOUS = "run"
"""The title of a run that was given none."""


def views(runs: Runs) -> list[RunView]:
    """Every run's view; under its name where it has one.

    Raises:
      EvenhandError: there is no run.
    """
    found = _views(runs)
    if not found:
        raise EvenhandError("There is no run to report on: give at least one.")
    return found


def _views(runs: Runs) -> list[RunView]:
    if isinstance(runs, RunView):
        return [runs]
    if isinstance(runs, Mapping):
        return [view._replace(title=name) for name, of in runs.items() for view in _views(of)]
    if isinstance(runs, Sequence):
        return [view for run in runs for view in _views(run)]
    return [runs.view()]


def write_clients_csv(path: str | Path, view: RunView) -> None:
    """Writes one line per client: its id, its rows in each split, and each metric in each split.

    Where rows have classes, also how many a client has rows of in each split (``"test_classes"``), how its accuracies
    spread over them and the lowest, as in :func:`~evenhand.evaluation.class_spread`.  A metric that a client does not
    have, because it has no rows in that split, is an empty field.  A name that a spreadsheet would take for a formula
    stands behind a ``'``; :func:`evenhand.text.spreadsheet_name` gives it back.
    """
    splits = [split for split in SPLITS if split in view.sizes or split in view.clients]
    columns = {
        f"{split}_rows": [str(int(n)) for n in view.sizes[split]] for split in splits if split in view.sizes
    }
    for split in splits:
        by_class = view.classes.get(split, {})
        known = {name: by_class[name] for name in CLASS_COLUMNS if name in by_class}
        for metric, values in {**view.clients.get(split, {}), **known}.items():
            columns[f"{split}_{metric}"] = ["" if np.isnan(v) else format(v, ".9g") for v in values]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lone surrogate, which no text should hold but which JSON can spell, is kept as it is.
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *map(spreadsheet_cell, columns)])
        names = map(spreadsheet_cell, view.client_ids)
        writer.writerows(zip(names, *columns.values(), strict=True))


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better: not so for losses and errors, told by their names."""
    return not any(word in _measured(metric) for word in _LOWER_IS_BETTER)


def is_share(metric: str) -> bool:
    """Whether a metric is a share of the rows, to be shown in percent."""
    return "accuracy" in _measured(metric)


def _measured(metric: str) -> str:
    """Without the name, in brackets, of the model that it is measured with."""
    return metric.split(" (", 1)[0]


def primary_metric(runs: Sequence[RunView]) -> str:
    """The metric that a report is about: the accuracy where all runs have one, else the loss."""
    return "accuracy" if all(_has(run, "accuracy") for run in runs) else "loss"


def headline_split(runs: Sequence[RunView], metric: str) -> str:
    """The split that says most: test rows if all runs have some, else validation, else training."""
    for split in reversed(SPLITS):
        if all(np.isfinite(client_values(run, split, metric)).any() for run in runs):
            return split
    for split in reversed(SPLITS):  # a run that diverged has no finite value anywhere
        if all(metric in run.clients.get(split, {}) for run in runs):
            return split
    raise EvenhandError(f"No split has a {metric} per client in every run, so there is nothing to report.")


def client_values(run: RunView, split: str, metric: str) -> NDArray:
    """A metric of each client, ``(K,)``; NaN where it is not known."""
    missing = np.full(len(run.client_ids), np.nan)
    return np.asarray(run.clients.get(split, {}).get(metric, missing), np.float64)


def statistics(run: RunView, split: str, metric: str) -> dict[str, float]:
    """The summary of one metric on one split; of the accuracy also that over classes, where it is known."""
    values, sizes = client_values(run, split, metric), run.sizes.get(split)
    found = summarize(values, sizes, higher_is_better=is_higher_better(metric))
    if metric == "accuracy" and split in run.classes:
        found |= summarize_classes(run.classes[split])
    return found


def _has(run: RunView, metric: str) -> bool:
    return any(metric in metrics for metrics in run.clients.values())
