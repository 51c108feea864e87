"""Who is masked with whom in one secure sum, and how many may be lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenhand.errors import EvenhandError, whole_number
from evenhand.secure.shamir import SHARE_BYTES

__all__ = ["Cost", "Plan", "plan"]

_COMPLETE = 16
"""Clients up to which each is masked with every other."""
_KEY_BYTES = 32
_SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
"""A nonce, two shares and a tag."""


class Cost(NamedTuple):
    """Bytes that cross the wire for one client in one sum.

    Attributes:
      up: from the client to the server.
      down: from the server to the client.
      plain: what the numbers alone would take without any protection, either way: 32 bits each.
    """

    up: int
    down: int
    plain: int


class Plan(NamedTuple):
    """One secure sum, as the server announces it.

    Attributes:
      clients: ids of those that are asked.
      neighbours: client -> those with whom it shares masks; they keep its shares, and it keeps one of its own.
      threshold: how many of those who keep a client's shares must answer at the end.
      bits: sums are modulo ``2**bits``, 32 or 64.
    """

    clients: tuple[int, ...]
    neighbours: Mapping[int, tuple[int, ...]]
    threshold: int
    bits: int

    def cost(self, numbers: int) -> Cost:
        """What a client sends and gets in a sum of so many numbers, with as many neighbours as most have."""
        degree = max(len(near) for near in self.neighbours.values())
        shares = degree * _SEALED_BYTES
        up = 2 * _KEY_BYTES + shares + numbers * self.bits // 8 + (degree + 1) * SHARE_BYTES
        return Cost(up, degree * 2 * _KEY_BYTES + shares, numbers * 4)


def plan(
    clients: Iterable[int],
    *,
    bits: int = 64,
    neighbours: int | None = None,
    threshold: int | None = None,
    order: Sequence[int] | None = None,
) -> Plan:
    """A plan in which clients stand in a circle, and each is masked with as many on either side.

    Args:
      clients: their ids, at least two.
      bits: 32 or 64.
      neighbours: of each client; an even number, or all others.  None: all others up to 16 clients, then about
        ``3 log2(clients)``, so that the cost grows with ``m log m`` and not with ``m^2``.  Fewer make it likelier that
        lost clients cut the others into groups, where the sum is lost.
      threshold: how many must answer of a client and its neighbours; more than half of them, so that the mask and the
        key of one client are never both found.  None: just more than half.
      order: the clients' places in the circle, as indices; best drawn at random by the server in each round, so that
        nobody can choose their neighbours.

    Raises:
      EvenhandError: fewer than two clients, equal ids, or numbers that do not fit.

    Example:
      >>> plan(range(4)).neighbours[0], plan(range(4)).threshold
      ((1, 2, 3), 3)

    Source: Bell, Bonawitz, Gascón, Lepoint and Raykova, *Secure Single-Server Aggregation with (Poly)Logarithmic
    Overhead*, CCS 2020, for graphs; Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine
    Learning*, CCS 2017, for the protocol.
    """
    ids = tuple(clients)
    m = len(ids)
    if bits not in (32, 64):
        raise EvenhandError(f"plan(bits={bits}): give 32 or 64.")
    if m < 2 or len(set(ids)) < m:
        raise EvenhandError(f"A secure sum needs at least two different clients; there are {len(set(ids))}.")
    if neighbours is None:
        neighbours = m - 1 if m <= _COMPLETE else min(m - 1, 2 * math.ceil(1.5 * math.log2(m)))
    whole_number("plan(neighbours=)", neighbours, 1)
    if threshold is not None:
        whole_number("plan(threshold=)", threshold, 1)
    if neighbours > m - 1 or (neighbours % 2 and neighbours != m - 1):
        raise EvenhandError(f"plan(neighbours={neighbours}): give an even number below {m}, or {m - 1}.")
    keepers = neighbours + 1
    threshold = keepers // 2 + 1 if threshold is None else threshold
    if not keepers / 2 < threshold <= keepers:
        raise EvenhandError(
            f"plan(threshold={threshold}): give more than half of the {keepers} who keep a client's shares, and no "
            "more than all."
        )
    circle = [ids[i] for i in (range(m) if order is None else order)]
    if sorted(circle) != sorted(ids):
        raise EvenhandError(f"plan(order=): give each of 0 to {m - 1} once.")
    if neighbours == m - 1:
        return Plan(ids, {one: tuple(other for other in ids if other != one) for one in ids}, threshold, bits)
    steps = [*range(1, neighbours // 2 + 1), *range(-(neighbours // 2), 0)]
    near = {one: tuple(sorted(circle[(i + step) % m] for step in steps)) for i, one in enumerate(circle)}
    return Plan(ids, near, threshold, bits)
