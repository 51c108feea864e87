"""What a report shows of a run, wherever the run comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.evaluation import (
    SPLIT_NAMES,
    SPLITS,
    Finding,
    is_higher_better,
    primary_metric,
    summarize,
    summarize_classes,
    undefined,
)
from evenhand.text import counted

__all__ = ["Coverage", "RunView", "Runs", "Viewable", "among", "covered", "diverged", "honest"]

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
      info: facts about the run itself. Known keys, all optional: ``"rounds"``, ``"cohort"``, ``"seed"``, ``"data"`` and
        ``"method"`` (names), ``"client_column"`` (what a client is, such as ``"hospital"``), ``"fingerprint"`` (equal
        for equal data), ``"clients"`` (how many the data have, those that were not evaluated included), ``"seconds"``
        (activity -> seconds), ``"adapts"`` (whether clients adapt the model that they are served to their examples
        before they use it), ``"examples_per_second"`` of training, ``"padded"`` (share of the executed steps),
        ``"command"`` (the line that repeats the run), ``"versions"`` (package -> version), ``"by_class"`` (split ->
        what :func:`~evenhand.evaluation.by_class` gives), ``"metrics"`` (metric of a set of examples -> what clients
        for which it is undefined have in common), ``"privacy"`` (what :class:`evenhand.privacy.Account` says in words),
        ``"constant"`` (``metric``, ``split`` and ``mean``: what the best constant answer gives the same clients, where
        the run is judged by its loss), ``"kept"`` (which round the numbers of clients are of, in words, if that is not
        the last one).
      config: every setting of the run, possibly nested.
      classes: split -> what :func:`~evenhand.evaluation.class_spread` gives, ``(K,)`` each; only for splits with
        classes, and not for runs saved by versions that did not measure it.
      findings: what to know before trusting the numbers, the worst first.
      malicious: which clients are, bool ``(K,)``; None: no client of this view is.
      unseen: how clients are served that took no part in the training; None: there are none.
      whole: the run with its malicious clients, where this is its honest part (:func:`honest`); else None.
      last_round: the last round, counted from 1, in which each client trained, ``(K,)``; 0: it never did; None: it is
        not known, as in runs that earlier versions saved.
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
    whole: RunView | None = None
    last_round: NDArray | None = None


def diverged(run: RunView, splits: Collection[str] | None = None) -> bool:
    """Whether the run diverged, so that none of its numbers on some splits (None: all) may be called the best."""
    return any(
        finding.kind == "diverged" and (splits is None or not finding.split or finding.split in splits)
        for finding in run.findings
    )


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
        last_round=None if run.last_round is None else run.last_round[chosen],
    )


def honest(run: RunView) -> RunView:
    """The run's honest clients, whom every headline is about; all clients where no client attacks, or each does."""
    if run.malicious is None or run.malicious.all():
        return run
    return among(run, "honest")._replace(malicious=None, whole=run)


class Coverage(NamedTuple):
    """Which clients a number covers.

    Attributes:
      text: in words, such as ``"30 clients"`` or ``"24 of 30 clients, the honest ones"``.
      is_complete: whether these are all clients of the data.
      noun: what one of them is called, such as ``"honest client with test examples"``.
    """

    text: str
    is_complete: bool
    noun: str


def covered(runs: Sequence[RunView], split: str, metric: str = "") -> Coverage:
    """Which clients the numbers of some runs on a split cover: those that were evaluated and have examples in it.

    Where the metric is undefined for some of these, such as the AUC of one class, it does not cover them.
    """
    whole = [run.whole or run for run in runs]
    totals = [max(int(run.info.get("clients") or 0), len(run.client_ids)) for run in whole]
    having = [np.asarray(run.sizes.get(split, np.ones(len(run.client_ids)))) > 0 for run in runs]
    lost = [has & undefined_at(run, split, metric) for has, run in zip(having, runs, strict=True)]
    counts = [int(np.sum(has & ~without)) for has, without in zip(having, lost, strict=True)]
    total, low, high = max(totals), min(counts), max(counts)
    evaluated = [len(run.client_ids) for run in whole]
    is_honest = any(run.whole is not None for run in runs)
    is_undefined, is_lacking = any(map(np.any, lost)), not all(map(np.all, having))
    is_sample = any(count < of for count, of in zip(evaluated, totals, strict=True))
    examples = f" with {SPLIT_NAMES[split]} examples" if is_lacking else ""
    examples += " for which it is defined" if is_undefined else ""
    is_lacking = is_lacking or is_undefined
    noun = f"{'honest ' if is_honest else ''}client{examples}"
    if all(run.malicious is not None for run in runs):
        return Coverage(f"{counted(high, 'client')}, all of them malicious", False, "malicious client")
    if not (is_honest or is_lacking or is_sample):
        return Coverage(counted(total, "client"), True, noun)
    count = f"{low:,} to {high:,}" if low < high else f"{high:,}"
    words = ("the honest ones" if is_honest else "those" if is_lacking else "drawn for evaluation") + examples
    text = f"{count} of {counted(total, 'client')}, {words}"
    if is_sample and (is_honest or is_lacking):
        text = (
            f"{count} of the {counted(max(evaluated), 'client')} drawn for evaluation from {total:,}, {words}"
        )
    return Coverage(text, False, noun)


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
    if sizes is not None:
        sizes = np.where(undefined_at(run, split, metric), 0, sizes)
    found = summarize(values, sizes, higher_is_better=is_higher_better(metric))
    if metric == "accuracy" and split in run.classes:
        found |= summarize_classes(run.classes[split])
    return found


def undefined_at(run: RunView, split: str, metric: str) -> NDArray:
    """For which clients a metric of a set of examples is undefined, bool ``(K,)``; for none of any other metric."""
    clients = run.clients.get(split, {})
    if metric not in clients or metric not in (run.info.get("metrics") or ()):
        return np.zeros(len(run.client_ids), bool)
    return undefined(clients, metric)


def _has(run: RunView, metric: str) -> bool:
    return any(metric in metrics for metrics in run.clients.values())
