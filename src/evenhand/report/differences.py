"""How far methods are from a baseline, over equal seeds, and how sure one can be of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.evaluation import (
    PairedDifference,
    holm,
    is_higher_better,
    is_share,
    paired_difference,
)
from evenhand.report._settings import clients_of
from evenhand.report._view import RunView, client_values, statistics
from evenhand.report.numbers import number

__all__ = ["STATISTICS", "Differences", "differences", "factor", "shown"]

STATISTICS = ("mean", "worst10", "best10", "variance")
"""The statistics that are compared."""


class Differences(NamedTuple):
    """A method minus the baseline.

    Attributes:
      by: statistic -> paired difference.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs do not have the same clients.
    """

    by: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None


def differences(
    runs: Mapping[str, Sequence[RunView]], baseline: str, split: str, metric: str
) -> dict[str, Differences]:
    """Each method against the baseline, without methods that have other seeds or a statistic that is not finite.

    Args:
      runs: method -> its runs, one for each seed, in the order of the seeds.
      baseline: one of the methods.
      split: where the statistics are from.
      metric: what they are of.
    """
    base = runs[baseline]
    values = {
        name: [statistics(run, split, metric) for run in of]
        for name, of in runs.items()
        if _seeds(of) == _seeds(base)
    }
    values = {name: each for name, each in values.items() if _are_finite(each)}
    found = {
        name: {
            key: paired_difference(*([each[key] for each in values[method]] for method in (name, baseline)))
            for key in STATISTICS
        }
        for name in values
        if name != baseline and baseline in values
    }
    raised = {key: holm({name: by[key].p for name, by in found.items()}) for key in STATISTICS}
    return {
        name: Differences(by, {key: raised[key][name] for key in by}, _gains(runs[name], base, split, metric))
        for name, by in found.items()
    }


def factor(statistic: str, metric: str) -> float:
    """What a statistic is multiplied with to be shown: accuracies are shown in percent."""
    if not is_share(metric):
        return 1.0
    return 1e4 if statistic.endswith("variance") else 100.0


def shown(of: PairedDifference, statistic: str, metric: str) -> str:
    """The mean and its interval, such as ``+1.75 [+0.23, +3.27]``."""
    mean, low, high = (factor(statistic, metric) * x for x in (of.mean, of.low, of.high))
    return f"{_signed(mean)} [{_signed(low)}, {_signed(high)}]"


def _signed(x: float) -> str:
    return ("+" if x > 0 else "") + number(x, 3)


def _are_finite(runs: Sequence[Mapping[str, float]]) -> bool:
    return all(np.isfinite(each[key]) for each in runs for key in STATISTICS)


def _seeds(runs: Sequence[RunView]) -> list[object]:
    return [run.info.get("seed") for run in runs]


def _gains(
    runs: Sequence[RunView], base: Sequence[RunView], split: str, metric: str
) -> tuple[int, int] | None:
    if len({clients_of(run) for run in (*runs, *base)}) > 1:
        return None
    sign = 1 if is_higher_better(metric) else -1
    gain = sign * np.array(
        [
            client_values(run, split, metric) - client_values(other, split, metric)
            for run, other in zip(runs, base, strict=True)
        ]
    )
    return int(np.sum(np.all(gain > 0, axis=0))), int(np.sum(np.all(gain < 0, axis=0)))
