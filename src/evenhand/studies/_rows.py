"""The runs of a study in tables: by setting, and one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.evaluation import column
from evenhand.report import RunView, statistics
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._tried import NDArray, Tried

__all__ = ["FURTHER", "alike", "further_columns", "row", "summed_up"]

FURTHER = ("mean", "worst10", "best10", "clients")
"""The statistics of metrics that were asked for besides."""


def further_columns(view: RunView, split: str) -> dict[str, float]:
    """``"<split>_<metric>_<statistic>"`` of each metric that was asked for, such as ``"test_auc_mean"``."""
    return {
        column(split, metric, name): statistics(view, split, metric)[name]
        for metric in view.info.get("metrics") or ()
        if metric in view.clients.get(split, {})
        for name in FURTHER
    }


def summed_up(setting: Setting, of: Sequence[Outcome], chosen: bool, metric: str) -> Tried:
    """A setting, with what its runs came to."""
    views = [each.seen for each in of if each.seen is not None]
    lost = sum(each.status in ("diverged", "failed") for each in of)
    values, ended = dict[str, NDArray](), all(each.status == "done" for each in of)
    for split in views[0].clients if ended else ():
        found = [statistics(view, split, metric) for view in views]
        values |= {column(split, name): np.array([each[name] for each in found]) for name in found[0]}
        more = [further_columns(view, split) for view in views]
        names = [name for name in more[0] if all(name in each for each in more)]
        values |= {name: np.array([each[name] for each in more]) for name in names}
    for name in of[0].measures if ended else ():
        values[name] = np.array([each.measures[name][-1] for each in of if name in each.measures])
    return Tried(setting, chosen, len(of), lost, values, views)


def row(outcome: Outcome, axes: Sequence[str], cases: Sequence[str], metric: str) -> dict[str, Any]:
    """A run as a row of a data frame: what was set, and each statistic of each split."""
    setting, view = outcome.setting, outcome.seen
    found: dict[str, Any] = {"method": setting.method, "seed": outcome.seed, "status": outcome.status}
    found |= {name: setting.case.get(name, "") for name in cases}
    found |= {name: setting.numbers.get(name, float("nan")) for name in axes}
    if view is not None:
        for split in view.clients:
            found |= {column(split, name): value for name, value in statistics(view, split, metric).items()}
            found |= further_columns(view, split)
    return found | {name: float(values[-1]) for name, values in outcome.measures.items()}


def alike(values: list[Any]) -> list[Any]:
    """A column of one type: numbers as floats where some are, and anything beside a text as text."""
    kinds = {type(value) for value in values if not (isinstance(value, float) and math.isnan(value))}
    if len(kinds) <= 1 and str not in kinds:
        return values
    if kinds <= {int, float}:
        return [float(value) for value in values]
    return ["" if isinstance(value, float) and math.isnan(value) else str(value) for value in values]
