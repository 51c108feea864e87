"""What a function of the user's tells of a study's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from evenhand.simulation import Run
from evenhand.studies._plan import Setting
from evenhand.studies._store import Store
from evenhand.studies._tried import NDArray

__all__ = ["Measure", "Measured"]

Measure: TypeAlias = Callable[[Run], Mapping[str, float]]
"""``run -> {name: number}``, called at each evaluation."""


class Measured:
    """The numbers of all runs, on disk until a run ends where the study has a folder.

    Args:
      measure: what tells them; None: nothing is told.
      store: where a run that was interrupted finds those of its earlier evaluations.
    """

    def __init__(self, measure: Measure | None, store: Store | None) -> None:
        self._measure, self._store = measure, store
        self._told: dict[tuple[str, int], dict[int, dict[str, float]]] = {}

    @property
    def identity(self) -> dict[str, bool]:
        """What tells runs that were measured from others."""
        return {} if self._measure is None else {"measured": True}

    def take(self, setting: Setting, seed: int, result: Run | Exception) -> dict[str, NDArray]:
        """Measures a run at its latest evaluation.

        Returns name -> a number for each evaluation so far, NaN where it was not told.
        """
        if self._measure is None or isinstance(result, Exception):
            return {}
        key = str(setting), seed
        if key not in self._told:
            self._told[key] = {} if self._store is None else self._store.notes(setting, seed)
        told, rounds = self._told[key], result.history["round"].tolist()
        told[rounds[-1]] = {name: float(value) for name, value in self._measure(result).items()}
        if self._store is not None:
            self._store.note(setting, seed, told)
        names = dict.fromkeys(name for numbers in told.values() for name in numbers)
        return {
            name: np.array([told.get(now, {}).get(name, np.nan) for now in rounds], np.float64)
            for name in names
        }
