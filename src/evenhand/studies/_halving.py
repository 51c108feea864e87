"""Successive halving: few rounds for many settings, many rounds for the few that are best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evenhand.errors import EvenhandError, whole_number
from evenhand.report import RunView
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._select import Rule, values

__all__ = ["Halving", "rungs", "survivors"]


class Halving(NamedTuple):
    """After ``first`` rounds only a share of each method's settings goes on; after ``1 / keep`` times as many, again.

    Every method keeps the same share of its settings, at all of its seeds, so that each is tuned with the same effort.
    A setting that needs many rounds to show its worth may be stopped: ``first`` must be long enough to tell.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS
    2016, figure 3 (with equal times between the choices replaced by equal factors, as in Hyperband).

    Attributes:
      first: rounds before the first choice; raised to a multiple of ``eval_every``.
      keep: the share of the settings that goes on, rounded up.
    """

    first: int
    keep: float = 1 / 3


def rungs(halving: Halving | None, rounds: int, eval_every: int) -> list[int]:
    """After how many rounds settings are stopped, all below ``rounds``.

    Example:
      >>> rungs(Halving(first=10, keep=0.5), rounds=100, eval_every=5)
      [10, 20, 40, 80]
    """
    if halving is None:
        return []
    whole_number("first", halving.first, 1)
    if not 0 < halving.keep < 1:
        raise EvenhandError(f"Halving(keep={halving.keep}): give a share between 0 and 1.")
    found, reached = list[int](), float(halving.first)
    while (rung := eval_every * math.ceil(round(reached / eval_every, 6))) < rounds:
        found += [rung] if rung not in found else []
        reached /= halving.keep
    return found


def survivors(outcomes: Sequence[Outcome], by: Rule, keep: float) -> set[Setting]:
    """The settings that go on: of each method under each condition, the share that is best by the rule's statistic."""
    metric = by.metric_of(each.view for each in outcomes)
    groups: dict[tuple[str, str], dict[Setting, list[Outcome]]] = {}
    for each in outcomes:
        key = (each.setting.method, str(each.setting.case))
        groups.setdefault(key, {}).setdefault(each.setting, []).append(each)
    found = set[Setting]()
    for group in groups.values():
        sound: dict[Setting, list[RunView]] = {
            setting: [each.seen for each in of if each.seen is not None]
            for setting, of in group.items()
            if all(each.is_sound(by.splits) for each in of)
        }
        scores = values(sound, by.split, by.statistic, metric)
        best = sorted(scores, key=lambda setting: -scores[setting])  # of equal ones, the first
        found.update(best[: math.ceil(keep * len(group))] if len(group) > 1 else group)
    return found
