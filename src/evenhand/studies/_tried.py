"""Every setting that a study has tried, with what its runs came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.report import RunView
from evenhand.studies._plan import Setting

__all__ = ["Tried", "frontier"]

NDArray = npt.NDArray[np.float64]


class Tried(NamedTuple):
    """A setting, and what its runs came to.

    Attributes:
      setting: the method and its hyper-parameters.
      chosen: whether it is the one that its method is compared at.
      runs: how many there are.
      lost: how many of them diverged or failed.
      values: ``"<split>_<statistic>"`` -> a value for each run, in the order of the seeds; empty where some run was
        lost, since means over other seeds than those of the other settings would mislead.  Metrics that were asked for
        are there, too, as ``"<split>_<metric>_<statistic>"``.  What the study's ``measure``
        tells of the last evaluation is there, too, by its own name.
      views: the runs themselves, except for those that failed.
    """

    setting: Setting
    chosen: bool
    runs: int
    lost: int
    values: dict[str, NDArray]
    views: Sequence[RunView]

    def mean(self, name: str) -> float:
        """Over the seeds; NaN where there is no value."""
        return float(np.mean(self.values[name])) if name in self.values else float("nan")

    def std(self, name: str) -> float:
        """Over the seeds, by which a mean over more of them would vary; NaN for fewer than two."""
        found = self.values.get(name, np.zeros(0))
        return float(np.std(found, ddof=1)) if found.size > 1 else float("nan")


def frontier(points: npt.ArrayLike) -> list[int]:
    """Which of the points ``(n, 2)`` no other one beats in both coordinates, by the first one; more is better.

    Example:
      >>> frontier([[1, 3], [2, 2], [1, 1], [3, 0]])
      [0, 1, 3]
    """
    at: npt.NDArray[Any] = np.asarray(points, np.float64)
    best, found = -np.inf, list[int]()
    for i in np.lexsort((-at[:, 1], -at[:, 0])):
        if at[i, 1] > best:
            found.append(int(i))
            best = at[i, 1]
    return found[::-1]
