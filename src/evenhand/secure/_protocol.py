"""The messages of one secure sum, as functions of what each side knows.

0. The server announces a :class:`Plan`: who is masked with whom, and how many may be lost (:func:`plan`).
1. Each client sends an :class:`Offer` of two public keys (:func:`advertise`).
2. Each splits the seed of a mask of its own and its private key into shares, sealed for its neighbours (:func:`share`);
   it keeps one itself.
3. Each sends its numbers, masked (:func:`mask`).
4. Told who did, they reveal their share of the seed of everybody who sent numbers, and of the key of
   everybody who did not (:func:`reveal`), from which the server finds the sum (:func:`recover`).

A server that follows this learns the sum and who is in it.  It may read along, and conspire with fewer than
``threshold`` of a client's neighbours.  A server that *departs* from it is not kept from a client's numbers by these
functions alone: it may tell different clients of different offers or survivors, or invent clients.  Against that,
clients must authenticate the offers and agree on what they were told before they reveal anything, which they do between
machines: see :mod:`evenhand.wire.secure_sums`.

:func:`secure_sum` is all of it in one process.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.secure import _primitives as primitives
from evenhand.secure._primitives import SEED_BYTES, SHARE_BYTES, NDArray, Random

_COMPLETE = 16
"""Clients up to which each is masked with every other."""


_KEY_BYTES = 32


SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
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
        shares = degree * SEALED_BYTES
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
    bits = whole_number("plan(bits=)", bits, -(2**31))
    if bits not in (32, 64):
        raise EvenhandError(f"plan(bits={bits}): give 32 or 64.")
    if m < 2 or len(set(ids)) < m:
        raise EvenhandError(f"A secure sum needs at least two different clients; there are {len(set(ids))}.")
    if neighbours is None:
        neighbours = m - 1 if m <= _COMPLETE else min(m - 1, 2 * math.ceil(1.5 * math.log2(m)))
    keepers = whole_number("plan(neighbours=)", neighbours, 1) + 1
    threshold = whole_number("plan(threshold=)", keepers // 2 + 1 if threshold is None else threshold, 1)
    if neighbours > m - 1 or (neighbours % 2 and neighbours != m - 1):
        raise EvenhandError(f"plan(neighbours={neighbours}): give an even number below {m}, or {m - 1}.")
    if not keepers / 2 < threshold <= keepers:
        raise EvenhandError(
            f"plan(threshold={threshold}): give more than half of the {keepers} who keep a client's shares, and no "
            "more than all."
        )
    places = range(m) if order is None else order
    expect("plan(order=)", places, Iterable, f"range({m})")
    circle = [ids[whole_number("plan(order=)", i, 0, m - 1)] for i in places]
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
    return secret, Offer(primitives.public_key(secret.mask_key), primitives.public_key(secret.seal_key))


def share(
    plan: Plan, me: int, secret: Secret, offers: Mapping[int, Offer], random: Random
) -> dict[int, bytes]:
    """A client's shares for itself and each neighbour that made an offer, sealed so that only this one can read them.

    Raises:
      TooFewError: with itself, fewer than ``plan.threshold`` made an offer.
      EvenhandError: the plan does not protect this client.
    """
    _check_plan(plan, me)
    _check_present(plan, me, offers)
    points = {other: plan.clients.index(other) + 1 for other in _keepers(plan, me, offers)}
    seeds = primitives.split(secret.seed, [*points.values()], plan.threshold, random)
    keys = primitives.split(secret.mask_key, [*points.values()], plan.threshold, random)
    return {
        other: primitives.seal(_channel(secret, offers[other], me, other), seeds[point] + keys[point], random)
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
    _check_present(plan, me, offers)
    total = _checked(plan, me, numbers).copy()
    seeds = {other: _pair(secret.mask_key, offers[other]) for other in plan.neighbours[me] if other in offers}
    plus = [secret.seed, *(seed for other, seed in seeds.items() if other > me)]
    primitives.add_masks(total, plus, [seed for other, seed in seeds.items() if other < me])
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
    _check_present(plan, me, offers)
    _check_survivors(plan, offers, alive)
    seeds, keys = dict[int, bytes](), dict[int, bytes]()
    for other in _keepers(plan, me, offers):
        if other not in sealed:
            raise EvenhandError(
                f"Client {me} got no share from client {other}, which made an offer: start the round again."
            )
        try:
            both = primitives.unseal(_channel(secret, offers[other], other, me), sealed[other])
        except EvenhandError as error:
            raise EvenhandError(f"What client {other} has shared with client {me}: {error}") from error
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
    _check_survivors(plan, offers, masked)
    _check_members(plan, revealed)
    if len({numbers.shape for numbers in masked.values()}) > 1:
        raise EvenhandError("recover(): clients have sent different numbers of numbers: the sum is lost.")
    seeds = {by: answer.seeds for by, answer in revealed.items()}
    keys = {by: answer.keys for by, answer in revealed.items()}
    plus, minus = list[bytes](), list[bytes]()
    for client, offer in offers.items():
        if client in masked:
            minus.append(_joined(plan, client, seeds, SEED_BYTES))
        # A lost client's masks are left over in the numbers of those that share one with it.
        elif left := _keepers(plan, client, masked):
            key = _joined(plan, client, keys, _KEY_BYTES)
            if primitives.public_key(key) != offer.mask_key:
                raise EvenhandError(f"Shares of the key of client {client} are false: the sum is lost.")
            for other in left:
                (minus if client > other else plus).append(_pair(key, offers[other]))
    total = np.zeros_like(next(iter(masked.values())))
    for client, numbers in masked.items():
        total += _checked(plan, client, numbers)
    primitives.add_masks(total, plus, minus, threads=os.cpu_count() or 1)
    return total


def _keepers(plan: Plan, client: int, among: Collection[int]) -> list[int]:
    """Those ``among`` the given clients who keep shares of a client: its neighbours, and it itself."""
    return [other for other in (*plan.neighbours[client], client) if other in among]


def _pair(private: bytes, other: Offer) -> bytes:
    return primitives.agreed_secret(private, other.mask_key, b"mask")


def _channel(secret: Secret, other: Offer, sender: int, receiver: int) -> bytes:
    """The key under which the sender's shares are sealed for the receiver."""
    return primitives.agreed_secret(secret.seal_key, other.seal_key, f"shares {sender} {receiver}".encode())


def _joined(plan: Plan, client: int, revealed: Mapping[int, Mapping[int, bytes]], size: int) -> bytes:
    """The client's secret, from the shares that others revealed of it."""
    shares = {plan.clients.index(by) + 1: held[client] for by, held in revealed.items() if client in held}
    if len(shares) < plan.threshold:
        raise TooFewError(
            f"Of the shares of client {client}, {len(shares)} were revealed, and {plan.threshold} are needed: the sum "
            "is lost, and nothing is known of any client's numbers."
        )
    return primitives.join(dict(list(shares.items())[: plan.threshold]), size)


def _checked(plan: Plan, client: int, numbers: NDArray) -> NDArray:
    if numbers.dtype != f"uint{plan.bits}" or numbers.ndim != 1:
        raise EvenhandError(
            f"The numbers of client {client} are {numbers.dtype} of shape {numbers.shape}: give uint{plan.bits} (n,)."
        )
    return numbers


# --- what a client checks before it gives anything away --------------------------------------------------


class TooFewError(EvenhandError):
    """Too few clients are left for the sum to be found."""


def _check_members(plan: Plan, clients: Collection[int]) -> None:
    """Checks that messages are from, or for, clients that the sum's plan names.

    Raises:
      EvenhandError: a client is not in the plan.
    """
    if strange := sorted(set(clients) - (set(plan.clients) & set(plan.neighbours))):
        raise EvenhandError(
            f"Client {strange[0]} is not in the plan of this sum: leave its messages out, and start the round again."
        )


def _check_plan(plan: Plan, me: int) -> None:
    """Checks that a plan, which comes from the server, asks for enough shares of this client's secrets.

    Raises:
      EvenhandError: half of those who keep them could find them, or a neighbour has another view of the plan.
    """
    _check_members(plan, [me, *plan.neighbours.get(me, ())])
    near = plan.neighbours[me]
    mutual = me not in near and all(me in plan.neighbours[other] for other in near)
    if not (mutual and (len(near) + 1) / 2 < plan.threshold <= len(near) + 1):
        raise EvenhandError(
            f"The plan of this sum does not protect client {me}: give neighbours that are mutual, and a threshold of "
            f"more than half of the {len(near) + 1} who keep its shares, not {plan.threshold}."
        )


def _check_present(plan: Plan, me: int, offers: Collection[int]) -> None:
    """Checks that enough of a client and its neighbours made an offer.

    Raises:
      TooFewError: they are fewer than the threshold.
      EvenhandError: a client is not in the plan, or made no offer itself.
    """
    _check_members(plan, [me, *offers])
    if me not in offers:
        raise EvenhandError(f"Client {me} has made no offer, so it cannot take part in this sum.")
    if (there := len(_keepers(plan, me, offers))) < plan.threshold:
        raise TooFewError(
            f"Of client {me} and its {len(plan.neighbours[me])} neighbours, {there} are there, and "
            f"{plan.threshold} are needed: start the round again with other clients."
        )


def _check_survivors(plan: Plan, offers: Collection[int], alive: Collection[int]) -> None:
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
    _check_members(plan, offers)
    if strange := sorted(set(alive) - set(offers)):
        raise EvenhandError(f"Client {strange[0]} has sent numbers, but no shares before: the sum is lost.")
    for client in offers:
        left = len(_keepers(plan, client, alive))
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


# --- a whole sum in one process: what clients and server do, one after another ---------------------------


class Transcript(NamedTuple):
    """All that a server sees in one secure sum.

    Attributes:
      plan: what it announced.
      offers: the public keys of those that sent shares.
      masked: client -> the numbers that it sent.
      revealed: client -> the shares that it gave at the end.
    """

    plan: Plan
    offers: Mapping[int, Offer]
    masked: Mapping[int, NDArray]
    revealed: Mapping[int, Revealed]


def secure_sum(
    numbers: Mapping[int, npt.ArrayLike],
    *,
    bits: int = 64,
    dropped: Collection[int] = (),
    silent: Collection[int] = (),
    neighbours: int | None = None,
    threshold: int | None = None,
    random: Random = secrets.token_bytes,
) -> NDArray:
    """The sum of clients' whole numbers modulo ``2**bits``, found by the protocol of :mod:`evenhand.secure`.

    Args:
      numbers: client -> whole numbers ``(n,)``; negative ones count modulo ``2**bits``.
      bits: 32 or 64.
      dropped: clients that vanish before they send their numbers; the sum is that of the others.
      silent: clients that vanish after that; they are in the sum.
      neighbours: of each client, as in :func:`evenhand.secure.plan`.
      threshold: of their answers, as there.
      random: a source of random bytes.

    Returns:
      uint32 or uint64 ``(n,)``; ``.view(numpy.int64)`` has the negative ones.

    Raises:
      TooFewError: too many vanish.
      EvenhandError: the numbers have different lengths, or are not whole; or an unknown client vanishes.

    Example:
      >>> import numpy as np
      >>> secure_sum({1: [5, -3], 2: [7, 11], 3: [-20, 4]}).view(np.int64).tolist()
      [-8, 12]

    Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017.
    """
    expect("numbers", numbers, Mapping, "{1: [5, -3], 2: [7, 11]}")
    words = {client: _words(client, uploaded, bits) for client, uploaded in numbers.items()}
    if len(lengths := {len(word) for word in words.values()}) > 1:
        raise EvenhandError(f"secure_sum(): clients have {sorted(lengths)} numbers: give as many for each.")
    if strange := sorted({*dropped, *silent} - set(words)):
        raise EvenhandError(f"secure_sum(): client {strange[0]} is to vanish, but has no numbers.")
    order = np.random.default_rng(int.from_bytes(random(8), "little")).permutation(len(words)).tolist()
    announced = plan(words, bits=bits, neighbours=neighbours, threshold=threshold, order=order)
    return recover(*run_protocol(announced, words, dropped, silent, random))


def run_protocol(
    plan: Plan,
    numbers: Mapping[int, NDArray],
    dropped: Collection[int] = (),
    silent: Collection[int] = (),
    random: Random = secrets.token_bytes,
) -> Transcript:
    """All messages to the server, arguments as for :func:`secure_sum`; clients mask their numbers in threads.

    Raises:
      TooFewError: a client has too few neighbours left, or lost clients cut the others into groups.
      EvenhandError: a client is not in the plan, or has no numbers and is not dropped.
    """
    expect("numbers", numbers, Mapping, "{1: numpy.array([5], numpy.uint64), 2: ...}")
    for name, named in {"numbers": numbers, "dropped": dropped, "silent": silent}.items():
        if strange := [client for client in named if client not in plan.clients]:
            raise EvenhandError(
                f"{name} names client {strange[0]}, which is not in the plan of this sum: leave it out, or make a plan "
                "with it."
            )
    alive = [client for client in plan.clients if client not in dropped]
    if missing := [client for client in alive if client not in numbers]:
        raise EvenhandError(
            f"Client {missing[0]} is in the plan of this sum, but has no numbers: give them, or name it in dropped."
        )
    advertised = {client: advertise(random) for client in plan.clients}
    keys = {client: secret for client, (secret, _) in advertised.items()}
    offers = {client: offer for client, (_, offer) in advertised.items()}
    shares = {client: share(plan, client, secret, offers, random) for client, secret in keys.items()}

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        uploads = pool.map(lambda client: mask(plan, client, keys[client], offers, numbers[client]), alive)
        sent = dict(zip(alive, uploads, strict=True))

    def answer(client: int) -> Revealed:
        sealed = {other: shares[other][client] for other in (*plan.neighbours[client], client)}
        return reveal(plan, client, keys[client], offers, sealed, sent)

    revealed = {client: answer(client) for client in alive if client not in silent}
    return Transcript(plan, offers, sent, revealed)


def _words(client: int, numbers: npt.ArrayLike, bits: int) -> NDArray:
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise EvenhandError(
            f"secure_sum(): the numbers of client {client} are {array.dtype} of shape {array.shape}: give whole "
            "numbers (n,), such as evenhand.secure.fixed_point(...) makes of real ones."
        )
    return array.astype(np.uint32 if bits == 32 else np.uint64)
