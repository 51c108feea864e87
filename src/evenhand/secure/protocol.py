"""The messages of one secure sum, as functions of what each side knows.

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

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.secure import masks
from evenhand.secure.checks import TooFewError, check_members, check_plan, check_present, check_survivors
from evenhand.secure.masks import NDArray, Random
from evenhand.secure.plan import Plan
from evenhand.secure.shamir import SHARE_BYTES, join, split

__all__ = [
    "Offer",
    "Revealed",
    "Secret",
    "TooFewError",
    "advertise",
    "mask",
    "recover",
    "reveal",
    "share",
]

_KEY_BYTES = 32


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
    secret = Secret(random(_KEY_BYTES), random(_KEY_BYTES), random(masks.SEED_BYTES))
    return secret, Offer(masks.public(secret.mask_key), masks.public(secret.seal_key))


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
        split(each, list(points.values()), plan.threshold, random) for each in (secret.seed, secret.mask_key)
    )
    return {
        other: masks.seal(
            masks.agreed(secret.seal_key, offers[other].seal_key, _sealing(me, other)),
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
    masks.add(total, plus, [seed for other, seed in seeds.items() if other < me])
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
        key = masks.agreed(secret.seal_key, offers[other].seal_key, _sealing(other, me))
        both = masks.unseal(key, sealed[other])
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
    if len({each.shape for each in masked.values()}) > 1:
        raise EvenhandError("recover(): clients have sent different numbers of numbers: the sum is lost.")
    plus: list[bytes] = []
    minus: list[bytes] = []
    for client, offer in offers.items():
        if client in masked:
            shares = {
                _point(plan, by): each.seeds[client] for by, each in revealed.items() if client in each.seeds
            }
            minus.append(_joined(plan, client, shares, masks.SEED_BYTES))
            continue
        left = [other for other in _near(plan, client, offers) if other in masked]
        if left:
            shares = {
                _point(plan, by): each.keys[client] for by, each in revealed.items() if client in each.keys
            }
            key = _joined(plan, client, shares, _KEY_BYTES)
            if masks.public(key) != offer.mask_key:
                raise EvenhandError(f"Shares of the key of client {client} are false: the sum is lost.")
            for other in left:
                (minus if client > other else plus).append(_pair(key, offers[other].mask_key))
    total = np.zeros_like(next(iter(masked.values())))
    for client, numbers in masked.items():
        total += _checked(plan, client, numbers)
    masks.add(total, plus, minus, threads=os.cpu_count() or 1)
    return total


def _near(plan: Plan, client: int, offers: Mapping[int, Offer]) -> list[int]:
    return [other for other in plan.neighbours[client] if other in offers]


def _keepers(plan: Plan, client: int, offers: Mapping[int, Offer]) -> list[int]:
    return [*_near(plan, client, offers), client]


def _point(plan: Plan, client: int) -> int:
    return plan.clients.index(client) + 1


def _pair(private: bytes, other: bytes) -> bytes:
    return masks.agreed(private, other, b"mask")


def _sealing(sender: int, receiver: int) -> bytes:
    return f"shares {sender} {receiver}".encode()


def _joined(plan: Plan, client: int, shares: Mapping[int, bytes], size: int) -> bytes:
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
