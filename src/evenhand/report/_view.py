"""What a report shows of a run, wherever the run comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

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

__all__ = ["RunView", "Runs", "Viewable", "among", "diverged"]

NDArray = npt.NDArray[Any]


class RunView(NamedTuple):
    """All that reports and figures know about a run.

    Attributes:
      title: a short name, such as that of the method.
      history: equal-length arrays: ``"round"``; ``"<split>_<metric>"``, such as ``"test_accuracy"``, over examples;
        the same followed by ``"_mean"``, ``"_worst10"`` or ``"_best10"``, over clients; and whatever else was
        recorded.  NaN where a value is missing.
      sizes: examples per client, ``(K,)``, of the splits ``"train"``, ``"valid"`` and ``"test"`` that exist.
      client_ids: the clients' names, ``K`` of them.
      clients: split -> metric -> ``(K,)``, at the end of the run; NaN for a client without examples.
      info: facts about the run itself.  Known keys, all optional: ``"rounds"``, ``"cohort"``, ``"seed"``, ``"data"``
        and ``"method"`` (names), ``"fingerprint"`` (equal for equal data), ``"seconds"`` (activity -> seconds),
        ``"examples_per_second"`` of training, ``"padded"`` (share of the executed steps), ``"command"`` (the line
        that repeats the run), ``"versions"`` (package -> version), ``"by_class"`` (split -> what
        :func:`~evenhand.evaluation.by_class` gives), ``"privacy"`` (what :class:`evenhand.privacy.Account` says in
        words), ``"kept"`` (which round the numbers of clients are of, in words, if that is not the last one).
      config: every setting of the run, possibly nested.
      classes: split -> what :func:`~evenhand.evaluation.class_spread` gives, ``(K,)`` each; only for splits with
        classes, and not for runs saved by versions that did not measure it.
      findings: what to know before trusting the numbers, the worst first.
      malicious: which clients are, bool ``(K,)``; None: nobody attacked.
      unseen: how clients are served that took no part in the training; None: there are none.
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
    malicious: NDArray | None = None
    unseen: RunView | None = None


def diverged(run: RunView) -> bool:
    """Whether training diverged, so that none of the run's numbers may be called the best."""
    return any(finding.kind == "diverged" for finding in run.findings)


def among(run: RunView, who: Literal["all", "honest", "malicious"]) -> RunView:
    """The run with some of its clients only: all of them where nobody attacked, or for ``"all"``."""
    if run.malicious is None or who == "all":
        return run
    chosen = run.malicious if who == "malicious" else ~run.malicious
    return run._replace(
        sizes={split: of[chosen] for split, of in run.sizes.items()},
        client_ids=[name for name, one in zip(run.client_ids, chosen, strict=True) if one],
        clients={
            split: {metric: values[chosen] for metric, values in of.items()}
            for split, of in run.clients.items()
        },
        classes={
            split: {name: of[chosen] for name, of in found.items()} for split, found in run.classes.items()
        },
        malicious=run.malicious[chosen],
    )


class Viewable(Protocol):
    """Anything that has a :class:`RunView`, such as a :class:`~evenhand.simulation.Run`."""

    def view(self) -> RunView:
        """All that reports and figures know about it."""
        ...


Runs: TypeAlias = RunView | Viewable | Sequence[RunView | Viewable] | Mapping[str, "Runs"]
"""A run, several runs, or a mapping from names to the run or runs of each name."""

ANONYMOUS = "run"
"""The title of a run without one."""


def views(runs: Runs) -> list[RunView]:
    """The views of all runs, titled by the names of the mapping where there is one.

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
    """The metric that a report is about: the accuracy if all runs have one, else the loss."""
    return primary_metric(["accuracy"] if all(_has(run, "accuracy") for run in runs) else [])


def headline_split(runs: Sequence[RunView], metric: str) -> str:
    """The split that a report is about: test if all runs have results on it, else validation, else training."""
    for split in reversed(SPLITS):
        if all(np.isfinite(client_values(run, split, metric)).any() for run in runs):
            return split
    for split in reversed(SPLITS):  # a run that diverged has no finite value anywhere
        if all(metric in run.clients.get(split, {}) for run in runs):
            return split
    raise EvenhandError(f"No split has a {metric} per client in every run, so there is nothing to report.")


def client_values(run: RunView, split: str, metric: str) -> NDArray:
    """A metric of each client, ``(K,)``; NaN where it is unknown."""
    missing = np.full(len(run.client_ids), np.nan)
    return np.asarray(run.clients.get(split, {}).get(metric, missing), np.float64)


def statistics(run: RunView, split: str, metric: str) -> dict[str, float]:
    """The summary of one metric on one split; for the accuracy also that over classes, where known."""
    values, sizes = client_values(run, split, metric), run.sizes.get(split)
    found = summarize(values, sizes, higher_is_better=is_higher_better(metric))
    if metric == "accuracy" and split in run.classes:
        found |= summarize_classes(run.classes[split])
    return found


def _has(run: RunView, metric: str) -> bool:
    return any(metric in metrics for metrics in run.clients.values())
