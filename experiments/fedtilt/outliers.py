"""Persistent outliers of all clients as a part of a method, so that one study has methods with and without them."""

from __future__ import annotations

import evenhand as eh
from evenhand import rounds
from evenhand.streams import Purpose, stream
from evenhand.types import Attack, ClientData, Key, PyTree

__all__ = ["persistent"]


def persistent(algorithm: eh.Algorithm, attack: Attack) -> eh.Algorithm:
    """The method, with each client's work done on disturbed examples; a phase's reports still speak of clean ones.

    Args:
      algorithm: of any number of phases.
      attack: what all clients do to their examples.
    """

    fresh = attack.fresh
    assert fresh is not None

    def wrapped(phase: eh.types.Phase) -> eh.types.Phase:
        def work(message: PyTree, own: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
            mine = rounds.own_rows(data)
            # The key itself is for the batches.
            x, y = fresh(mine.x, mine.y, mine.size, stream(key, Purpose.ATTACK))
            return phase.work(message, own, mine._replace(x=x, y=y), key)

        return phase._replace(work=work)

    return algorithm._replace(phases=tuple(wrapped(phase) for phase in algorithm.phases))
