"""The messages of one secure sum, as functions of what each side knows.

0. The server announces a :class:`Plan`: who is masked with whom, and how many may be lost (:func:`plan`).
1. Each client sends an :class:`Offer` of two public keys (:func:`advertise`).
2. Each splits the seed of a mask of its own and its private key into shares, sealed for its neighbours (:func:`share`);
   it keeps one itself.
3. Each sends its numbers, masked (:func:`mask`).
4. Told who did, they reveal their share of the seed of everybody who sent numbers, and of the key of
   everybody who did not (:func:`reveal`), from which the server finds the sum (:func:`recover`).

A server that follows this learns the sum and who is in it.  It may read along, and conspire with fewer than
``threshold`` of a client's neighbours.  A server that *departs* from it is not kept from a client's numbers: it may
tell different clients of different offers or survivors, or invent clients.  Against that, clients would have to
authenticate the offers and compare, among themselves, whom they were told of; neither is done here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, whole_number
from evenhand.secure.primitives import (
    SEED_BYTES,
    SHARE_BYTES,
    NDArray,
    Random,
    add_masks,
    agreed_secret,
    join,
    public_key,
    seal,
    split,
    unseal,
)

__all__ = [
    "Cost",
    "Offer",
    "Plan",
    "Revealed",
    "Secret",
    "TooFewError",
    "advertise",
    "check_members",
    "check_plan",
    "check_present",
    "check_survivors",
    "mask",
    "plan",
    "recover",
    "reveal",
    "share",
]


_COMPLETE = 16
"""Clients up to which each is masked with every other."""


_KEY_BYTES = 32


_SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
"""A nonce, two shares and a tag."""


# --- the plan --------------------------------------------------------------------------------------------


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
        near = {me: tuple(other for other in ids if other != me) for me in ids}
        return Plan(ids, near, threshold, bits)
    steps = [*range(1, neighbours // 2 + 1), *range(-(neighbours // 2), 0)]
    near = {me: tuple(sorted(circle[(i + step) % m] for step in steps)) for i, me in enumerate(circle)}
    return Plan(ids, near, threshold, bits)


# --- the messages, in turn -------------------------------------------------------------------------------


class Secret(NamedTuple):
    """What a client keeps to itself: two private keys, and the seed of a mask of its own."""

    mask_key: bytes
    seal_key: bytes
    seed: bytes


class Offer(NamedTuple):
    """A client's public keys, which the server passes on to its neighbours."""

    mask_key: bytes
    seal_key: bytes


class Revealed(NamedTuple):
    """A client's shares of its neighbours' secrets and its own, by client: of each, one kind only.

    Attributes:
      seeds: of those that sent their numbers.
      keys: of those that did not.
    """

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]


def advertise(random: Random) -> tuple[Secret, Offer]:
    """New secrets of a client, for one sum only, and what it sends.

    Args:
      random: ``secrets.token_bytes`` on a real device.
    """
    secret = Secret(random(_KEY_BYTES), random(_KEY_BYTES), random(SEED_BYTES))
    return secret, Offer(public_key(secret.mask_key), public_key(secret.seal_key))


def share(
    plan: Plan, me: int, secret: Secret, offers: Mapping[int, Offer], random: Random
) -> dict[int, bytes]:
    """A client's shares for itself and each neighbour that made an offer, sealed so that only this one can read them.

    Raises:
      TooFewError: with itself, fewer than ``plan.threshold`` made an offer.
      EvenhandError: the plan does not protect this client.
    """
    check_plan(plan, me)
    check_present(plan, me, offers)
    points = {other: _point(plan, other) for other in _keepers(plan, me, offers)}
    seeds, keys = (
        split(part, list(points.values()), plan.threshold, random) for part in (secret.seed, secret.mask_key)
    )
    return {
        other: seal(
            agreed_secret(secret.seal_key, offers[other].seal_key, _sealing(me, other)),
            seeds[point] + keys[point],
            random,
        )
        for other, point in points.items()
    }


def mask(plan: Plan, me: int, secret: Secret, offers: Mapping[int, Offer], numbers: NDArray) -> NDArray:
    """What a client sends: its numbers, its own mask, and one for each neighbour, which the neighbour subtracts.

    .. math:: y_k = x_k + r(b_k) + \\sum_{j > k} r(s_{kj}) - \\sum_{j < k} r(s_{kj}) \\pmod{2^{bits}}

    Args:
      plan: of this sum.
      me: the client's id.
      secret: from :func:`advertise`.
      offers: of those that have sent their shares, from the server; the same for all clients.
      numbers: uint32 or uint64 ``(n,)``, as the plan's ``bits`` say.

    Raises:
      TooFewError: with itself, fewer than ``plan.threshold`` are among them.
      EvenhandError: the numbers have another type.
    """
    check_present(plan, me, offers)
    total = _checked(plan, me, numbers).copy()
    near = _near(plan, me, offers)
    seeds = {other: _pair(secret.mask_key, offers[other].mask_key) for other in near}
    plus = [secret.seed, *(seed for other, seed in seeds.items() if other > me)]
    add_masks(total, plus, [seed for other, seed in seeds.items() if other < me])
    return total


def reveal(
    plan: Plan,
    me: int,
    secret: Secret,
    offers: Mapping[int, Offer],
    sealed: Mapping[int, bytes],
    survivors: Iterable[int],
) -> Revealed:
    """A client's answer to who has sent their numbers; it must give one answer in a sum, and no second.

    Args:
      plan: of this sum.
      me: the client's id.
      secret: from :func:`advertise`.
      offers: as for :func:`mask`.
      sealed: neighbour, or itself -> the shares that it sealed for this client.
      survivors: who has sent their numbers.

    Raises:
      TooFewError: of some client and its neighbours, fewer than ``plan.threshold`` are left, or the survivors fall
        into groups without masks between them.
      EvenhandError: shares were changed on their way, or are missing.
    """
    alive = set(survivors)
    check_present(plan, me, offers)
    check_survivors(plan, offers, alive)
    seeds: dict[int, bytes] = {}
    keys: dict[int, bytes] = {}
    for other in _keepers(plan, me, offers):
        if other not in sealed:
            raise EvenhandError(
                f"Client {me} got no share from client {other}, which made an offer: start the round again."
            )
        key = agreed_secret(secret.seal_key, offers[other].seal_key, _sealing(other, me))
        both = unseal(key, sealed[other])
        if other in alive:
            seeds[other] = both[:SHARE_BYTES]
        else:
            keys[other] = both[SHARE_BYTES:]
    return Revealed(seeds, keys)


def recover(
    plan: Plan, offers: Mapping[int, Offer], masked: Mapping[int, NDArray], revealed: Mapping[int, Revealed]
) -> NDArray:
    """The server's part: the sum of the numbers of all clients in ``masked``, modulo ``2**plan.bits``.

    Args:
      plan: of this sum.
      offers: of those that have sent their shares.
      masked: client -> what it has sent.
      revealed: client -> its answer.

    Raises:
      TooFewError: some mask cannot be found from what was revealed; nothing but uniform numbers is known then.
      EvenhandError: false shares of a key, or numbers that differ in type or length.
    """
    if not masked:
        raise TooFewError("No client has sent its numbers.")
    check_survivors(plan, offers, masked)
    check_members(plan, revealed)
    if len({numbers.shape for numbers in masked.values()}) > 1:
        raise EvenhandError("recover(): clients have sent different numbers of numbers: the sum is lost.")
    seeds = {by: answer.seeds for by, answer in revealed.items()}
    keys = {by: answer.keys for by, answer in revealed.items()}
    plus: list[bytes] = []
    minus: list[bytes] = []
    for client, offer in offers.items():
        if client in masked:
            minus.append(_joined(plan, client, seeds, SEED_BYTES))
        # A lost client's masks are left over in the numbers of those that share one with it.
        elif left := [other for other in _near(plan, client, offers) if other in masked]:
            key = _joined(plan, client, keys, _KEY_BYTES)
            if public_key(key) != offer.mask_key:
                raise EvenhandError(f"Shares of the key of client {client} are false: the sum is lost.")
            for other in left:
                (minus if client > other else plus).append(_pair(key, offers[other].mask_key))
    total = np.zeros_like(next(iter(masked.values())))
    for client, numbers in masked.items():
        total += _checked(plan, client, numbers)
    add_masks(total, plus, minus, threads=os.cpu_count() or 1)
    return total


def _near(plan: Plan, client: int, offers: Mapping[int, Offer]) -> list[int]:
    return [other for other in plan.neighbours[client] if other in offers]


def _keepers(plan: Plan, client: int, offers: Mapping[int, Offer]) -> list[int]:
    return [*_near(plan, client, offers), client]


def _point(plan: Plan, client: int) -> int:
    return plan.clients.index(client) + 1


def _pair(private: bytes, other: bytes) -> bytes:
    return agreed_secret(private, other, b"mask")


def _sealing(sender: int, receiver: int) -> bytes:
    return f"shares {sender} {receiver}".encode()


def _joined(plan: Plan, client: int, revealed: Mapping[int, Mapping[int, bytes]], size: int) -> bytes:
    """The client's secret, from the shares that others revealed of it."""
    shares = {_point(plan, by): held[client] for by, held in revealed.items() if client in held}
    if len(shares) < plan.threshold:
        raise TooFewError(
            f"Of the shares of client {client}, {len(shares)} were revealed, and {plan.threshold} are needed: the sum "
            "is lost, and nothing is known of any client's numbers."
        )
    return join(dict(list(shares.items())[: plan.threshold]), size)


def _checked(plan: Plan, client: int, numbers: NDArray) -> NDArray:
    kind = np.uint32 if plan.bits == 32 else np.uint64
    if numbers.dtype != kind or numbers.ndim != 1:
        raise EvenhandError(
            f"The numbers of client {client} are {numbers.dtype} of shape {numbers.shape}: give {np.dtype(kind)} (n,)."
        )
    return numbers


# --- what a client checks before it gives anything away --------------------------------------------------


class TooFewError(EvenhandError):
    """Too few clients are left for the sum to be found."""


def check_members(plan: Plan, clients: Collection[int]) -> None:
    """Checks that messages are from, or for, clients that the sum's plan names.

    Raises:
      EvenhandError: a client is not in the plan.
    """
    if strange := sorted(set(clients) - (set(plan.clients) & set(plan.neighbours))):
        raise EvenhandError(
            f"Client {strange[0]} is not in the plan of this sum: leave its messages out, and start the round again."
        )


def check_plan(plan: Plan, me: int) -> None:
    """Checks that a plan, which comes from the server, asks for enough shares of this client's secrets.

    Raises:
      EvenhandError: half of those who keep them could find them, or a neighbour has another view of the plan.
    """
    check_members(plan, [me])
    near = plan.neighbours[me]
    check_members(plan, near)
    mutual = me not in near and all(me in plan.neighbours[other] for other in near)
    if not (mutual and (len(near) + 1) / 2 < plan.threshold <= len(near) + 1):
        raise EvenhandError(
            f"The plan of this sum does not protect client {me}: give neighbours that are mutual, and a threshold of "
            f"more than half of the {len(near) + 1} who keep its shares, not {plan.threshold}."
        )


def check_present(plan: Plan, me: int, offers: Collection[int]) -> None:
    """Checks that enough of a client and its neighbours made an offer.

    Raises:
      TooFewError: they are fewer than the threshold.
      EvenhandError: a client is not in the plan, or made no offer itself.
    """
    check_members(plan, [me, *offers])
    if me not in offers:
        raise EvenhandError(f"Client {me} has made no offer, so it cannot take part in this sum.")
    there = _keepers_among(plan, me, offers)
    if there < plan.threshold:
        raise TooFewError(
            f"Of client {me} and its {len(plan.neighbours[me])} neighbours, {there} are there, and "
            f"{plan.threshold} are needed: start the round again with other clients."
        )


def check_survivors(plan: Plan, offers: Collection[int], alive: Collection[int]) -> None:
    """Checks that the sum of all survivors can be found, and none of only some of them.

    Masks between survivors stay unknown to the server.  Where these masks link all survivors to each other, they cancel
    in the sum of all and in no other.

    Args:
      plan: of this sum.
      offers: who has sent their shares.
      alive: who has sent their numbers.

    Raises:
      TooFewError: too few are left around some client, or there is a group that no mask links to the others.
      EvenhandError: a survivor has made no offer, or a client is not in the plan.
    """
    check_members(plan, offers)
    if strange := sorted(set(alive) - set(offers)):
        raise EvenhandError(f"Client {strange[0]} has sent numbers, but no shares before: the sum is lost.")
    for client in offers:
        left = _keepers_among(plan, client, alive)
        if left and left < plan.threshold:
            raise TooFewError(
                f"Of client {client} and its neighbours, {left} have sent their numbers, and {plan.threshold} are "
                "needed: nobody reveals anything."
            )
    waiting = set(alive)
    linked = [waiting.pop()] if waiting else []
    while linked:
        reached = waiting.intersection(plan.neighbours[linked.pop()])
        waiting -= reached
        linked += reached
    if waiting:
        raise TooFewError(
            "So many are lost that the others fall into groups without masks between them: as the server would learn "
            "each group's sum, nobody reveals anything."
        )


def _keepers_among(plan: Plan, client: int, among: Collection[int]) -> int:
    return sum(other in among for other in (*plan.neighbours[client], client))
