"""What the messages of a secure sum say, for both sides: its terms, offers under signatures, and who has survived.

Each statement is signed together with the sum that it is about (:class:`Occasion`) and the terms of that sum, so none
serves for another sum, another pass or another plan.  What comes from the other side is checked here before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand import secure
from evenhand.errors import EvenhandError
from evenhand.secure import Offer, Plan
from evenhand.wire.identities import (
    CERTIFICATE_BYTES,
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    is_certified,
    is_signed,
    signature_of,
)
from evenhand.wire.messages import Packet, PacketError, encode

__all__ = [
    "MOST_CLIENTS",
    "NUMBERS",
    "OFFER",
    "OFFER_BYTES",
    "REVEAL",
    "SHARES",
    "STEPS",
    "SURVIVORS",
    "Occasion",
    "SumTerms",
    "occasion_of",
    "quorum",
    "sum_terms",
]

OFFER, SHARES, NUMBERS, SURVIVORS, REVEAL = STEPS = (
    "sum-offer",
    "sum-shares",
    "sum-numbers",
    "sum-survivors",
    "sum-reveal",
)
"""The kinds of the messages, one for each of the five exchanges; an answer has the kind of its question."""

MOST_CLIENTS = 2**11
"""Of one sum, so that no server can fill a client's memory with a plan."""

NDArray = npt.NDArray[Any]


class Occasion(NamedTuple):
    """Which sum it is.

    Attributes:
      federation: the id of the federation.
      run: the id of the run.
      tag: the number of the exchange in the run; a repeated one has another.
      number: the pass of the aggregation, from 0 on.
    """

    federation: str
    run: str
    tag: int
    number: int

    def message(self, kind: str, *arrays: NDArray) -> Packet:
        """A message of this sum; each says which it belongs to, so that none counts in another."""
        return Packet(kind, self._asdict(), arrays)

    def __str__(self) -> str:
        return f"tag {self.tag}, pass {self.number} of the run {self.run!r} in the federation {self.federation!r}"


# --- the terms of a sum -----------------------------------------------------------------------------------------------


class SumTerms(NamedTuple):
    """What the server announces of a sum, and what all signatures in it name.

    Every client is masked with every other: with fewer neighbours, a server that chooses them could surround a client
    with those that collude with it.

    Attributes:
      occasion: which sum it is.
      clients: the numbers of the clients that are asked, in rising order.
      threshold: how many of them must offer keys, share, send numbers, agree and reveal.
      bits: the sum is modulo ``2**bits``, 32 or 64.
      size: how many numbers are added.
    """

    occasion: Occasion
    clients: tuple[int, ...]
    threshold: int
    bits: int
    size: int

    @property
    def plan(self) -> Plan:
        """The plan of the protocol.

        Raises:
          EvenhandError: there are too few clients, or too many, or other bits.
        """
        if (m := len(self.clients)) > MOST_CLIENTS:
            raise EvenhandError(
                f"A secure sum of {m:,} clients, each masked with every other: give at most {MOST_CLIENTS:,}."
            )
        near = m - 1
        return secure.plan(self.clients, bits=self.bits, neighbours=near, threshold=self.threshold)

    @property
    def message(self) -> Packet:
        """The first message of the sum to each of its clients."""
        first = self.occasion.message(OFFER, id_array(self.clients))
        numbers = {"threshold": self.threshold, "bits": self.bits, "size": self.size}
        return first._replace(fields={**first.fields, **numbers})

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        return hashlib.sha256(encode(self.message)).hexdigest()


def quorum(clients: int, colluding: int = 0) -> int:
    r"""The least threshold of a sum of so many clients of which so many may collude with the server.

    .. math:: q = \Big\lfloor \frac{m + c}{2} \Big\rfloor + 1, \qquad 2 q - m > c

    Two groups of ``q`` clients share more than ``c``, and so an honest one, which signs one set of survivors only.  So
    no two sets of survivors have ``q`` signatures each.  As clients keep one share of a secret each, ``q > c`` is also
    more than the shares that those that collude have.

    Example:
      >>> quorum(4), quorum(5), quorum(5, colluding=1), quorum(10, colluding=3)
      (3, 3, 4, 7)
    """
    return (clients + colluding) // 2 + 1


def sum_terms(
    occasion: Occasion, clients: Collection[int], *, bits: int, size: int, colluding: int = 0
) -> SumTerms:
    """The terms of a sum, with the least threshold for so many ``colluding`` clients.

    Args:
      occasion: which sum it is.
      clients: the numbers of those that are asked, at least two.
      bits: 32 or 64.
      size: how many numbers are added.
      colluding: how many clients may collude with the server; a client whose file says more refuses.

    Raises:
      EvenhandError: fewer than two clients, more than :data:`MOST_CLIENTS`, equal numbers of clients, or other bits.

    Example:
      >>> sum_terms(Occasion("clinics", "a", 7, 0), [3, 1, 2], bits=64, size=10).threshold
      2
    """
    ids = tuple(sorted(clients))
    terms = SumTerms(occasion, ids, min(quorum(len(ids), colluding), len(ids)), bits, size)
    terms.plan  # noqa: B018  (checks them)
    return terms


def occasion_of(message: Packet) -> Occasion:
    """Which sum a message is about, for a client that decides on the first whether to take part.

    Raises:
      PacketError: it does not say.
    """
    match message.fields:
        # int() so that True is 1, as signatures are of the text of these.
        case {"federation": str(federation), "run": str(run), "tag": int(tag), "number": int(number)}:
            return Occasion(federation, run, int(tag), int(number))
        case _:
            raise PacketError(f"A message {message.kind!r} does not say which secure sum it is about.")


def terms_of(message: Packet) -> SumTerms:
    """The terms that a first message announces; whether they protect a client is another question.

    Raises:
      PacketError: they are none.
    """
    fields = message.fields
    match [fields.get("threshold"), fields.get("bits"), fields.get("size")]:
        case [int(threshold), int(bits), int(size)]:
            (ids,) = arrays_of(message, (np.int64, None))
            return SumTerms(occasion_of(message), _rising(message, ids), int(threshold), int(bits), int(size))
        case _:
            raise PacketError("The first message of a secure sum has no threshold, bits and size.")


# --- offers -----------------------------------------------------------------------------------------------------------


_PARTS = (KEY_BYTES, CERTIFICATE_BYTES, KEY_BYTES, KEY_BYTES, 32, SIGNATURE_BYTES)


OFFER_BYTES = sum(_PARTS)
"""Of an offer on the wire: identity key, certificate, the two keys of this sum, hash of the seed, signature."""


class SignedOffer(NamedTuple):
    """The offer of a client with what shows that it is this client's, and for this sum.

    Attributes:
      public: the public key of the client's identity.
      certificate: that of the authority.
      offer: the keys of this sum.
      seed_hash: of the seed of the client's own mask, by which the server sees whether its shares are false.
      signature: of the offer, the hash and the terms, by the client's identity.
    """

    public: bytes
    certificate: bytes
    offer: Offer
    seed_hash: bytes
    signature: bytes

    @property
    def record(self) -> bytes:
        """The bytes on the wire."""
        return b"".join([self.public, self.certificate, *self.offer, self.seed_hash, self.signature])


def signed_offer(identity: Identity, terms: SumTerms, offer: Offer, seed: bytes) -> SignedOffer:
    """A client's offer, signed, with the hash of its seed."""
    hashed = seed_hash(seed)
    signature = signature_of(identity.private, _offered(terms, identity.client, offer, hashed))
    return SignedOffer(identity.public, identity.certificate, offer, hashed, signature)


def seed_hash(seed: bytes) -> bytes:
    """A hash that only this seed has, and from which nobody finds its 16 random bytes."""
    return hashlib.sha256(b"evenhand seed" + seed).digest()


def checked_offer(authority: bytes, terms: SumTerms, client: int, record: bytes) -> SignedOffer:
    """The offer that a record of :data:`OFFER_BYTES` is, from a registered client and for this sum.

    Raises:
      EvenhandError: it is not.
    """
    ends = np.cumsum(_PARTS).tolist()
    public, certificate, first, second, hashed, signature = (
        record[start:end] for start, end in zip([0, *ends], ends, strict=False)
    )
    offer = Offer(first, second)
    if not is_certified(authority, terms.occasion.federation, client, public, certificate):
        raise EvenhandError(
            f"The offer of client {client} has no certificate of the federation's authority: this client is not "
            "registered, or its offer is another's."
        )
    if not is_signed(public, _offered(terms, client, offer, hashed), signature):
        raise EvenhandError(
            f"Client {client} has not signed this offer for the sum of {terms.occasion}: it was changed, or made for "
            "another sum or plan."
        )
    return SignedOffer(public, certificate, offer, hashed, signature)


def _offered(terms: SumTerms, client: int, offer: Offer, hashed: bytes) -> Packet:
    """The statement that an offer's signature signs."""
    return _statement("evenhand offer", terms, {"client": client}, *offer, hashed)


# --- survivors --------------------------------------------------------------------------------------------------------


def agreement(
    terms: SumTerms, offers: Mapping[int, SignedOffer], shared: Collection[int], survivors: Collection[int]
) -> Packet:
    """What clients sign before they reveal: all that they were told in this sum that must be the same for all.

    Args:
      terms: of the sum.
      offers: all that were shown.
      shared: who has sent shares.
      survivors: who has sent numbers.
    """
    records = table({client: signed.record for client, signed in offers.items()})
    shown = encode(Packet("offers", {}, records))
    fields = {"shared": sorted(shared), "survivors": sorted(survivors)}
    return _statement("evenhand survivors", terms, fields, hashlib.sha256(shown).digest())


def _statement(kind: str, terms: SumTerms, fields: Mapping[str, Any], *texts: bytes) -> Packet:
    """Something to sign, bound to a sum by its occasion and to a plan by the hash of the terms."""
    arrays = tuple(np.frombuffer(text, np.uint8) for text in texts)
    return Packet(kind, {**terms.occasion._asdict(), "terms": terms.digest, **fields}, arrays)


# --- numbers and bytes by client --------------------------------------------------------------------------------------


def table(rows: Mapping[int, bytes]) -> tuple[NDArray, NDArray]:
    """Bytes of equal length for some clients, by their numbers in rising order."""
    ids = sorted(rows)
    width = len(rows[ids[0]]) if ids else 0
    text = b"".join(rows[client] for client in ids)
    return id_array(ids), np.frombuffer(text, np.uint8).reshape(len(ids), width)


def rows_of(message: Packet, width: int) -> dict[int, bytes]:
    """What :func:`table` has packed in a message, for rows of so many bytes.

    Raises:
      PacketError: it is no such table.
    """
    ids, rows = arrays_of(message, (np.int64, None), (np.uint8, None, width))
    clients = _rising(message, ids)
    if len(clients) != len(rows):
        raise PacketError(f"A message {message.kind!r} has {len(rows)} rows for {len(clients)} clients.")
    return {client: row.tobytes() for client, row in zip(clients, rows, strict=True)}


def ids_of(message: Packet) -> tuple[int, ...]:
    """The numbers of the clients that a message lists.

    Raises:
      PacketError: it is no list of them.
    """
    return _rising(message, arrays_of(message, (np.int64, None))[0])


def id_array(clients: Collection[int]) -> NDArray:
    """The numbers of clients, as they are sent."""
    return np.array(sorted(clients), np.int64)


def arrays_of(message: Packet, *forms: tuple[Any, *tuple[int | None, ...]]) -> tuple[NDArray, ...]:
    """The arrays of a message, each of its type and shape; None is any length.

    Raises:
      PacketError: they are others.
    """
    shown = [f"{array.dtype}{list(array.shape)}" for array in message.arrays]
    if len(message.arrays) != len(forms):
        raise PacketError(f"A message {message.kind!r} has {len(shown)} arrays, where {len(forms)} are due.")
    for array, (dtype, *shape), text in zip(message.arrays, forms, shown, strict=True):
        fits = len(shape) == array.ndim and all(
            size is None or size == length for size, length in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise PacketError(
                f"A message {message.kind!r} has {text}, where {np.dtype(dtype)}{shape} is due (None: any length)."
            )
    return message.arrays


def _rising(message: Packet, ids: NDArray) -> tuple[int, ...]:
    """Numbers of clients, each once and in order, so that one list has one form to sign."""
    clients = tuple(ids.tolist())
    if list(clients) != sorted(set(clients)):
        raise PacketError(f"A message {message.kind!r} has clients twice, or out of order.")
    return clients
