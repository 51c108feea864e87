"""Who lies, and what the rows of a liar become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.streams import Purpose
from evenhand.types import Attack

__all__ = ["liars_of", "poisoned"]

NDArray = npt.NDArray[Any]


def liars_of(attack: Attack | None, clients: int, seed: int) -> NDArray:
    """Which of the clients lie, bool ``(clients,)``."""
    liars = np.zeros(clients, bool)
    if attack is None:
        return liars
    if not 0.0 <= attack.fraction <= 1.0:
        raise EvenhandError(f"Attack(fraction={attack.fraction}): the share of liars must lie in [0, 1].")
    rng = np.random.default_rng((seed, int(Purpose.LIARS)))
    count = int(attack.fraction * clients + 1e-9)  # 29 % of 100 are 29, not 28.999999999999996
    liars[rng.choice(clients, count, replace=False)] = True
    return liars


def poisoned(
    rows: Callable[[Any, Any, Any], tuple[Any, Any]], x: NDArray, y: NDArray, seed: int, client: int
) -> tuple[NDArray, NDArray]:
    """What the rows of liar ``client`` become; its draws depend on the run's seed and the client alone."""
    new_x, new_y = rows(x, y, np.random.default_rng((seed, int(Purpose.ATTACK), client)))
    if np.shape(new_x) != x.shape or np.shape(new_y) != y.shape:
        raise EvenhandError(
            f"Attack(rows=...) made rows of shape {np.shape(new_x)} with labels {np.shape(new_y)} from "
            f"{x.shape} and {y.shape}: it must keep the shapes."
        )
    return new_x, new_y
