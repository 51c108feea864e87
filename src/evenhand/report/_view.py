"""What a report shows of a run, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.evaluation import (
    SPLITS,
    Finding,
    is_higher_better,
    primary_metric,
    summarize,
    summarize_classes,
)

__all__ = ["RunView", "Runs", "Viewable", "diverged"]

NDArray = npt.NDArray[Any]


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


def common_metric(runs: Sequence[RunView]) -> str:
    """The metric that a report is about: the accuracy where all runs have one, else the loss."""
    return primary_metric(["accuracy"] if all(_has(run, "accuracy") for run in runs) else [])


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
