"""``evenhand study --dry-run``: how many runs there are, and about how long they take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.data import FederatedDataset
from evenhand.simulation import iterate
from evenhand.studies import Family
from evenhand.types import Algorithm

__all__ = ["announce"]


def announce(
    families: Mapping[str, Family],
    axes: Mapping[str, Mapping[str, Sequence[Any]]],
    data: FederatedDataset,
    each: int,
    rounds: int,
    how: Mapping[str, Any],
) -> None:
    """Prints how many runs there are of each method, and about how long they take one by one.

    Args:
      families: the methods.
      axes: method -> hyper-parameter -> its values.
      data: the clients.
      each: runs of each setting.
      rounds: of a run.
      how: the cohort, and the rounds between two evaluations.
    """
    total, runs = 0.0, 0
    for name, family in families.items():
        mine = each * math.prod(map(len, axes[name].values()))
        first = family.make({axis: values[0] for axis, values in axes[name].items()})
        seconds = _seconds(first, data, rounds, how)
        print(f"{name}: {mine} runs of {rounds} rounds, about {_time(seconds)} each")
        total, runs = total + mine * seconds, runs + mine
    print(
        f"{runs} runs, about {_time(total)} one by one and without compilation; small models train side by side in "
        "less, and runs that have ended are not repeated."
    )


def _seconds(algorithm: Algorithm, data: FederatedDataset, rounds: int, how: Mapping[str, Any]) -> float:
    """Of one run, from the first rounds of another."""
    every = min(how["eval_every"], 5)
    some: dict[str, Any] = {**how, "rounds": min(2 * every, rounds), "eval_every": every}
    for _ in iterate(algorithm, data, **some):  # compiles, which most runs need not
        pass
    times = [time.perf_counter(), *(time.perf_counter() for _ in iterate(algorithm, data, **some))]
    training = (times[-1] - times[-2]) * rounds / every if len(times) > 2 else 0.0
    return times[1] - times[0] + training


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"
