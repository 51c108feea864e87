"""The methods of a study side by side, each at its chosen setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.evaluation import PairedDifference
from evenhand.report import STATISTICS, RunView, differences, statistics
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
    runs = {method: of[1] for method, of in chosen.items() if of is not None}
    compared = differences(runs, baseline, split, metric) if baseline in runs else {}
    found: list[Line] = []
    for method, of in chosen.items():
        each = [] if of is None else [statistics(run, split, metric) for run in of[1]]
        values = {name: np.array([one[name] for one in each]) for name in STATISTICS} if each else {}
        more = compared.get(method)
        by, p, gains = ({}, {}, None) if more is None else more
        found.append(Line(None if of is None else of[0], method, case, values, by, p, gains))
    return found
