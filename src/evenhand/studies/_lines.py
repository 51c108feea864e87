"""The methods of a study side by side, each at its chosen setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.evaluation import PairedDifference, holm, is_higher_better, paired_difference
from evenhand.report import RunView, statistics
from evenhand.studies._export import STATISTICS
from evenhand.studies._plan import Setting
from evenhand.studies._tried import NDArray

__all__ = ["Line", "lines"]


class Line(NamedTuple):
    """One line of a study's table: a method at its chosen setting.

    Attributes:
      setting: what was chosen; None where every setting diverged or failed.
      method: its name.
      case: the condition.
      values: statistic -> its value in each run, in the order of the seeds.
      differences: statistic -> paired difference to the baseline; empty for the baseline itself.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs do not have the same clients.
    """

    setting: Setting | None
    method: str
    case: Mapping[str, str]
    values: Mapping[str, NDArray]
    differences: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None = None


def lines(
    chosen: Mapping[str, tuple[Setting, Sequence[RunView]] | None],
    baseline: str,
    case: Mapping[str, str],
    split: str,
    metric: str,
) -> list[Line]:
    """A line for each method.

    Args:
      chosen: method -> its chosen setting with its runs, one for each seed; None where there is no sound setting.
      baseline: the method that the others are compared with.
      case: the condition.
      split: where the statistics are from.
      metric: what they are of.
    """
    values = {
        method: {}
        if of is None
        else {name: np.array([statistics(run, split, metric)[name] for run in of[1]]) for name in STATISTICS}
        for method, of in chosen.items()
    }
    found: list[Line] = []
    for method, of in chosen.items():
        differences, gains, base = dict[str, PairedDifference](), None, chosen[baseline]
        if method != baseline and of is not None and base is not None:
            differences = {
                name: paired_difference(values[method][name], values[baseline][name]) for name in STATISTICS
            }
            gains = _gains(of[1], base[1], split, metric)
        setting = None if of is None else of[0]
        found.append(Line(setting, method, case, values[method], differences, {}, gains))
    return _corrected(found)


def _gains(
    runs: Sequence[RunView], base: Sequence[RunView], split: str, metric: str
) -> tuple[int, int] | None:
    """How many clients are better served at every seed, and how many worse."""
    if len({tuple(run.client_ids) for run in (*runs, *base)}) > 1:
        return None
    sign = 1 if is_higher_better(metric) else -1
    differences = sign * np.array(
        [
            np.subtract(run.clients[split][metric], other.clients[split][metric])
            for run, other in zip(runs, base, strict=True)
        ]
    )
    return int(np.sum(np.all(differences > 0, axis=0))), int(np.sum(np.all(differences < 0, axis=0)))


def _corrected(of: Sequence[Line]) -> list[Line]:
    """The lines with p values for as many comparisons as there are."""
    names = {name for line in of for name in line.differences}
    raised = {
        name: holm({line.method: line.differences[name].p for line in of if name in line.differences})
        for name in names
    }
    return [line._replace(p={name: raised[name][line.method] for name in line.differences}) for line in of]
