"""Which setting of a method a study chooses, and what a reader must know about the choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.errors import Argument, EvenhandError, perhaps
from evenhand.evaluation import SPLIT_NAMES, is_higher_better, primary_metric, summarize
from evenhand.report import RunView, may_win, statistics
from evenhand.studies._plan import Setting, shown

__all__ = ["Choice", "Rule", "choose", "direction", "values"]

_LESS_IS_BETTER = {"variance", "std", "angle", "kl"}
_MORE_IS_BETTER = {"entropy", "jain"}
"""Statistics of which less, or more, is better, whatever the metric."""
_SAME = 1e-12
_FEWEST = 3
"""Values of a grid that has an inside: of two, the best is always at the edge."""


class Rule(NamedTuple):
    """How a setting is chosen: by the mean over the seeds of a statistic over the clients.

    Attributes:
      split: ``"valid"`` or ``"train"``; the test examples choose nothing.
      statistic: a name from :func:`evenhand.evaluation.summarize`, such as ``"mean"`` or ``"worst10"``.
      within: settings whose statistic is this close to the best one are all good enough, and ``then`` decides.
      then: another statistic, such as ``"variance"``: among settings good enough, the best in it is chosen.
      metric: e.g. ``"auc"``, a metric of the model or of :mod:`evenhand.evaluation.metrics`; None: the accuracy, or the
        loss where the model has none.
      near: a method, such as ``"fedavg"``: settings no worse than its chosen one by more than ``within`` are good
        enough, and the closest where there is none; None: what is close to the best setting of the same method.
    """

    split: str = "valid"
    statistic: str = "mean"
    within: float = 0.0
    then: str | None = None
    metric: str | None = None
    near: str | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """The splits that may drop a run; the test examples have no say, not even by being too much for a setting."""
        return "train", self.split

    def metric_of(self, views: Iterable[RunView | None]) -> str:
        """What the statistic is of: the rule's metric, else the accuracy where all runs have one, else the loss."""
        everywhere = all("accuracy" in view.clients["train"] for view in views if view is not None)
        return self.metric or primary_metric(["accuracy"] if everywhere else [])

    def checked(self) -> Rule:
        """The rule itself.

        Raises:
          EvenhandError: it names the test split, or no known split or statistic.
        """
        if self.split == "test":
            raise EvenhandError(
                "The test examples must not choose the settings that they judge: select by 'valid' or 'train'."
            )
        if self.split not in SPLIT_NAMES:
            raise EvenhandError(
                f"There is no split {self.split!r:.40} to select by: give 'valid' or 'train'."
            )
        known = set(summarize([0.5, 1.0]))
        for name in (self.statistic, self.then):
            if name is not None and name not in known:
                raise EvenhandError(f"There is no statistic {name!r:.40} to select by{perhaps(name, known)}.")
        if not self.within >= 0:
            raise EvenhandError(Argument("within", str(self.within)), ": give a number of at least 0.")
        return self


class Choice(NamedTuple):
    """The setting that was chosen, and remarks on the choice, in sentences."""

    setting: Setting
    remarks: tuple[str, ...]


def choose(
    of: Mapping[Setting, Sequence[RunView]], by: Rule, metric: str, near: Sequence[RunView] = ()
) -> Choice | None:
    """The best setting, or None if each of them diverged or failed in some run.

    Args:
      of: the runs of each setting, one per seed; none for a setting of which a run failed or was stopped.
      by: how it is chosen.
      metric: what the statistic is of.
      near: the runs of the setting that the others must be close to; none: the best of them.
    """
    sound = {
        setting: runs for setting, runs in of.items() if runs and all(may_win(run, by.splits) for run in runs)
    }
    first = values(sound, by.split, by.statistic, metric)
    if not first:  # without a choice there need not be examples to choose by
        return Choice(next(iter(sound)), ()) if sound and len(of) == 1 else None
    top = max(first.values())
    goal = _mean(near, by.split, by.statistic, metric) if near else top
    least = min(goal - max(by.within, _SAME * abs(goal)), top)
    good = [setting for setting, value in first.items() if value >= least]
    if by.then is not None:
        second = values({setting: sound[setting] for setting in good}, by.split, by.then, metric)
        most = max(second.values())
        good = [setting for setting, value in second.items() if value >= most - _SAME * abs(most)]
    best = good[0]
    remarks = (
        [f"{_place(best)}: {len(good)} settings are equally good; {best} is the first."] if good[1:] else []
    )
    if top < goal - by.within:
        remarks += [f"{_place(best)}: no setting is as close to {by.near} as asked; {best} is the closest."]
    return Choice(best, (*remarks, *_at_edges(best, list(of), good[1:])))


def values(
    of: Mapping[Setting, Sequence[RunView]], split: str, statistic: str, metric: str
) -> dict[Setting, float]:
    """Setting -> mean over its runs; more is better."""
    means = {setting: _mean(runs, split, statistic, metric) for setting, runs in of.items()}
    return {setting: mean for setting, mean in means.items() if np.isfinite(mean)}


def _mean(runs: Sequence[RunView], split: str, statistic: str, metric: str) -> float:
    """More is better."""
    values = [statistics(run, split, metric)[statistic] for run in runs]
    return direction(statistic, metric) * float(np.mean(values))


def direction(statistic: str, metric: str) -> int:
    """1 where more of a statistic is better, -1 where less is."""
    fewer = statistic in _LESS_IS_BETTER or "error" in statistic
    return -1 if fewer or (statistic not in _MORE_IS_BETTER and not is_higher_better(metric)) else 1


def _place(best: Setting) -> str:
    """The method and the condition that a remark is about."""
    under = ", ".join(f"{name} {value}" for name, value in best.case.items())
    return f"{best.method} under {under}" if under else best.method


def _at_edges(best: Setting, settings: Sequence[Setting], tied: Sequence[Setting]) -> list[str]:
    """A sentence about hyper-parameters whose chosen value is the largest or smallest, but for tied settings."""
    found: list[tuple[str, str, str]] = []
    for name, value in best.numbers.items():
        grid = {other.numbers[name] for other in settings if name in other.numbers}
        tried = {other.numbers[name] for other in settings if name in other.numbers and other not in tied}
        plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in grid)
        if len(grid) < _FEWEST or len(tried) < 2 or not plain:
            continue
        if value in (min(tried), max(tried)):
            found.append((name, shown(value), f"{shown(min(tried))} to {shown(max(tried))}"))
    if not found:
        return []
    if len(found) == 1:
        [(name, value, grid)] = found
        return [f"{_place(best)}: the best {name}, {value}, is at the edge of its grid ({grid}): widen it."]
    each = [f"{name}, {value} (of {grid})" for name, value, grid in found]
    return [f"{_place(best)}: the best {' and '.join(each)} are at the edges of their grids: widen them."]
