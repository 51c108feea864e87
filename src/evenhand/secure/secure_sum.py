"""A whole secure sum in one process: what clients and server do, one after another."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, expect
from evenhand.secure import protocol
from evenhand.secure.primitives import Random
from evenhand.secure.protocol import Offer, Plan, Revealed, plan

__all__ = ["Transcript", "run_protocol", "secure_sum"]

NDArray = npt.NDArray[Any]


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
    """The sum of clients' whole numbers modulo ``2**bits``, found by the protocol of :mod:`evenhand.secure.protocol`.

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
    seen = run_protocol(announced, words, dropped, silent, random)
    return protocol.recover(seen.plan, seen.offers, seen.masked, seen.revealed)


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
    advertised = {client: protocol.advertise(random) for client in plan.clients}
    offers = {client: offer for client, (_, offer) in advertised.items()}
    shares = {
        client: protocol.share(plan, client, secret, offers, random)
        for client, (secret, _) in advertised.items()
    }

    def masked(client: int) -> NDArray:
        return protocol.mask(plan, client, advertised[client][0], offers, numbers[client])

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        sent = dict(zip(alive, pool.map(masked, alive), strict=True))
    revealed = {
        client: protocol.reveal(
            plan,
            client,
            advertised[client][0],
            offers,
            {other: shares[other][client] for other in (*plan.neighbours[client], client)},
            sent,
        )
        for client in alive
        if client not in silent
    }
    return Transcript(plan, offers, sent, revealed)


def _words(client: int, numbers: npt.ArrayLike, bits: int) -> NDArray:
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise EvenhandError(
            f"secure_sum(): the numbers of client {client} are {array.dtype} of shape {array.shape}: give whole "
            "numbers (n,), such as evenhand.secure.fixed_point(...) makes of real ones."
        )
    return array.astype(np.uint32 if bits == 32 else np.uint64)
