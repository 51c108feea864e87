"""Metrics of sets of examples that runs were asked for: which there are, and which clients they cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenhand.evaluation import SPLIT_NAMES, of_global
from evenhand.report._view import RunView, undefined_at
from evenhand.report.comparison import Comparison
from evenhand.report.numbers import listed, plural
from evenhand.text import visible

__all__ = ["further", "metric_remarks", "undefined_sentence"]


def further(of: Comparison) -> list[Comparison]:
    """The comparison by each further metric that was asked for in all runs, on the same split."""
    first, *others = [list(run.info.get("metrics") or ()) for run in of.runs]
    return [
        of._replace(metric=name)
        for name in first
        if name != of.metric and all(name in names for names in others) and not name.startswith(of_global(""))
    ]


def metric_remarks(of: Comparison) -> list[str]:
    """For how many clients each metric is undefined, and which metrics some of the runs lack, in sentences."""
    shown = dict.fromkeys([of.metric, *(about.metric for about in further(of))])
    measured = dict.fromkeys(name for run in of.runs for name in run.info.get("metrics") or ())
    lacking = [name for name in measured if name not in shown and not name.startswith(of_global(""))]
    remarks = [undefined_sentence(of.runs, of.split, name) for name in shown]
    if lacking:
        remarks.append(
            f"Not every run has the {listed(lacking)} of its clients: repeat the others with --metrics."
        )
    return list(filter(None, remarks))


def undefined_sentence(runs: Sequence[RunView], split: str, metric: str, reader: str = "") -> str:
    """Of how many clients a metric is undefined in the run with the most of them; empty where it is for none.

    Args:
      runs: the runs, at least one.
      split: whose examples are measured.
      metric: the metric.
      reader: what is said of the metric between commas, such as "by which settings were chosen".
    """
    counts = [int(np.count_nonzero(undefined_at(run, split, metric))) for run in runs]
    run, count = runs[int(np.argmax(counts))], max(counts)
    if not count:
        return ""
    clients = int(np.count_nonzero(run.sizes.get(split, np.ones(len(run.client_ids)))))
    reason = visible(run.info["metrics"][metric])
    clause = reason if count > 1 else reason.replace("have ", "has ", 1)
    name = f"The {SPLIT_NAMES[split]} {visible(metric)}{f', {reader},' if reader else ''}"
    return f"{name} is undefined for {count:,} of {plural(clients, 'client')}, which {clause}."
