"""Secure sums between machines, against a server that departs from the protocol and clients that collude with it.

The protocol is that of :mod:`evenhand.secure`, in five exchanges: offers of keys, shares, masked numbers, survivors,
reveals.  A client that is absent from one of them is left out; the sum needs ``threshold`` clients in each.

Its server could lie.  It could invent clients around a real one, or tell some clients of other survivors than the rest,
so that what they reveal adds up to the sum of a few.  Against the first, offers are signed by clients that the
federation's authority has certified (:mod:`evenhand.wire.identities`).  Against the second, a client reveals nothing
before ``threshold`` clients have signed the very terms, offers and survivors that it was told of.  With the threshold
of :func:`quorum`, only one such statement can get so many signatures, as an honest client signs one.

The guarantee: whatever the server does, and whichever ``colluding`` clients help it, it learns at most the sum of the
numbers of one set of clients, of which at least ``smallest - colluding`` are honest.  ``colluding`` and ``smallest``
stand in each client's own :class:`Protection`.

It does not cover several sums.  A server that asks two cohorts that differ in one client for the same training learns
that client's numbers from the difference, to the extent that both trainings agree: against that only noise helps.  A
registered client can falsify a sum by false numbers, which nobody sees, or make it fail by false shares.  A false share
that is revealed is seen, and does not count.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import secure
from evenhand.errors import EvenhandError
from evenhand.secure import (
    SEALED_BYTES,
    SEED_BYTES,
    SHARE_BYTES,
    Cost,
    Offer,
    Plan,
    Revealed,
    Secret,
    TooFewError,
)
from evenhand.types import PyTree, Summation
from evenhand.wire.identities import SIGNATURE_BYTES, Identity, is_signed, signature_of
from evenhand.wire.messages import Packet, PacketError, encode
from evenhand.wire.sum_messages import (
    NUMBERS,
    OFFER,
    OFFER_BYTES,
    REVEAL,
    SHARES,
    STEPS,
    SURVIVORS,
    Occasion,
    SignedOffer,
    SumTerms,
    agreement,
    arrays_of,
    checked_offer,
    id_array,
    ids_of,
    occasion_of,
    quorum,
    rows_of,
    seed_hash,
    signed_offer,
    table,
    terms_of,
)

__all__ = [
    "Protection",
    "SecureTotal",
    "SumForm",
    "SumSession",
    "secure_exchanges",
    "secure_total",
    "sum_cost",
    "sum_form",
]

NDArray: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = tuple[NDArray, ...]
T = TypeVar("T")


# --- the client's half ------------------------------------------------------------------------------------------------


class Protection(NamedTuple):
    """What a client asks of every secure sum that it takes part in; the server cannot change it.

    Attributes:
      smallest: the fewest clients whose numbers may be in a sum.
      colluding: how many other clients may collude with the server; the threshold and the cohort must allow for them.
    """

    smallest: int = 2
    colluding: int = 0

    @property
    def fewest(self) -> int:
        """Clients of a sum, at least; two of them do not collude, as one alone would be the sum of those left."""
        return max(self.smallest, self.colluding + 2)


class _Offered(NamedTuple):
    """What a client keeps once it has made its offer."""

    terms: SumTerms
    plan: Plan
    secret: Secret
    own: SignedOffer


class _Shared(NamedTuple):
    """What it keeps once it has shared its secrets: the offers that it was shown, and its share of its own."""

    offered: _Offered
    offers: dict[int, SignedOffer]
    kept: bytes


class _Sent(NamedTuple):
    """What it keeps once it has sent its numbers: the shares for it, by who sealed them, its own included."""

    shared: _Shared
    sealed: dict[int, bytes]


class _Agreed(NamedTuple):
    """What it keeps once it has signed who has survived."""

    sent: _Sent
    survivors: tuple[int, ...]
    statement: Packet


class _Over(NamedTuple):
    """What it keeps at the end: nothing."""


class SumSession:
    """A client's half of one secure sum.

    Its secrets come from the operating system's randomness, and are in memory only: a client that is restarted is lost
    for the sum.  A message that was sent twice gets the same answer, except the last, which is answered once.  A
    refusal changes nothing.

    There must be one session, ever, for the same numbers, as two sums of them with other clients differ by those; and
    one for an occasion, as the others count on a client that signs once.

    Args:
      identity: the client's.
      occasion: the sum that it takes part in.
      numbers: its whole numbers, uint32 or uint64 ``(n,)``, or a function that makes them when they are needed: to
        answer the third message, of kind ``NUMBERS``.
      protection: what it asks of the sum.

    Raises:
      EvenhandError: the sum is one of another federation.
    """

    def __init__(
        self,
        identity: Identity,
        occasion: Occasion,
        numbers: NDArray | Callable[[], NDArray],
        protection: Protection = Protection(),  # noqa: B008  (immutable)
    ) -> None:
        if identity.federation != occasion.federation:
            raise EvenhandError(
                f"Client {identity.client} is of the federation {identity.federation!r}, and takes no part in a sum of "
                f"the federation {occasion.federation!r}."
            )
        self.identity = identity
        self.occasion = occasion
        self.protection = protection
        self._numbers = numbers
        self._stage: _Offered | _Shared | _Sent | _Agreed | _Over | None = None
        self._answered = dict[str, tuple[bytes, Packet]]()

    def __repr__(self) -> str:
        return f"SumSession(client {self.identity.client}, {self.occasion})"

    def __reduce__(self) -> NoReturn:
        raise EvenhandError(
            "A session of a secure sum is not copied or saved: its secrets stay in one place."
        )

    @property
    def is_over(self) -> bool:
        """Whether it has revealed what it had to, and forgotten its secrets."""
        return isinstance(self._stage, _Over)

    def answer(self, message: Packet) -> Packet:
        """The answer to a message of the server.

        Raises:
          TooFewError: too few clients are left.
          EvenhandError: the client refuses, for the reason in the sentence.
        """
        if (about := occasion_of(message)) != self.occasion:
            self._refuse(f"the message is about {about}")
        content = hashlib.sha256(encode(message)).digest()
        if message.kind in self._answered:
            return self._repeated(message.kind, content)
        match self._stage, message.kind:
            case None, kind if kind == OFFER:
                self._stage, arrays = self._offered(message)
            case _Offered() as stage, kind if kind == SHARES:
                self._stage, arrays = self._shared(stage, message)
            case _Shared() as stage, kind if kind == NUMBERS:
                self._stage, arrays = self._sent(stage, message)
            case _Sent() as stage, kind if kind == SURVIVORS:
                self._stage, arrays = self._agreed(stage, message)
            case _Agreed() as stage, kind if kind == REVEAL:
                arrays = self._revealed(stage, message)
                # Nothing is left with which the sum could be taken further, nor anything that a thief could use.
                self._stage, self._numbers = _Over(), np.zeros(0)
                self._answered.clear()
            case _:
                self._refuse(
                    f"a message {message.kind!r} is not due: those of a sum come in the order {', '.join(STEPS)}, and "
                    "each is answered once"
                )
        answer = self.occasion.message(message.kind, *arrays)
        if not self.is_over:
            self._answered[message.kind] = content, answer
        return answer

    def _refuse(self, reason: str) -> NoReturn:
        raise EvenhandError(
            f"Client {self.identity.client} refuses in the secure sum of {self.occasion}: {reason}."
        )

    def _repeated(self, kind: str, content: bytes) -> Packet:
        """The answer that it has given already, to the same message."""
        before, answer = self._answered[kind]
        if before != content:
            self._refuse(f"it has answered another message {kind!r}, and gives one answer in each step")
        return answer

    def _offered(self, message: Packet) -> tuple[_Offered, Arrays]:
        """The first step: new keys, if the terms protect this client."""
        terms, me = terms_of(message), self.identity.client
        if me not in terms.clients:
            self._refuse("the plan does not list it")
        self._check_count(terms.clients, "are asked")
        least = quorum(len(terms.clients), self.protection.colluding)
        if not least <= terms.threshold <= len(terms.clients):
            self._refuse(
                f"the threshold of {terms.threshold} of {len(terms.clients)} clients does not protect it against "
                f"{self.protection.colluding} that collude with the server, which takes {least} or more"
            )
        plan = terms.plan
        secret, offer = secure.advertise(secrets.token_bytes)
        own = signed_offer(self.identity, terms, offer, secret.seed)
        return _Offered(terms, plan, secret, own), (np.frombuffer(own.record, np.uint8),)

    def _shared(self, stage: _Offered, message: Packet) -> tuple[_Shared, Arrays]:
        """The second step: shares of its secrets, for the registered clients whose offers it was shown."""
        terms, me = stage.terms, self.identity.client
        records = rows_of(message, OFFER_BYTES)
        if records.get(me) != stage.own.record:
            self._refuse("its own offer is not among those that it was shown, or was changed")
        offers = {
            client: checked_offer(self.identity.authority, terms, client, record)
            for client, record in records.items()
        }
        self._check_count(offers, "have made an offer")
        sealed = secure.share(stage.plan, me, stage.secret, _keys(offers), secrets.token_bytes)
        kept = sealed.pop(me)
        return _Shared(stage, offers, kept), table(sealed)

    def _sent(self, stage: _Shared, message: Packet) -> tuple[_Sent, Arrays]:
        """The third step: its numbers, masked with all who have shared."""
        terms, me = stage.offered.terms, self.identity.client
        sealed = {**rows_of(message, SEALED_BYTES), me: stage.kept}
        if strange := sorted(set(sealed) - set(stage.offers)):
            self._refuse(f"client {strange[0]} has sent shares, but was not among the offers before")
        self._check_count(sealed, "have sent shares")
        numbers = self._numbers() if callable(self._numbers) else self._numbers
        if numbers.shape != (terms.size,):
            self._refuse(f"the sum is one of {terms.size} numbers, and it has {list(numbers.shape)}")
        offers = {client: stage.offers[client].offer for client in sealed}
        masked = secure.mask(stage.offered.plan, me, stage.offered.secret, offers, numbers)
        return _Sent(stage, sealed), (masked,)

    def _agreed(self, stage: _Sent, message: Packet) -> tuple[_Agreed, Arrays]:
        """The fourth step: its signature under who has survived, and all else that it was told."""
        survivors = ids_of(message)
        if self.identity.client not in survivors:
            self._refuse("the server says that it has sent no numbers, which it has")
        if strange := sorted(set(survivors) - set(stage.sealed)):
            self._refuse(
                f"client {strange[0]} is said to have sent numbers, but it has sent no shares before"
            )
        self._check_count(survivors, "have sent numbers")
        statement = agreement(stage.shared.offered.terms, stage.shared.offers, stage.sealed.keys(), survivors)
        text = np.frombuffer(signature_of(self.identity.private, statement), np.uint8)
        return _Agreed(stage, survivors, statement), (text,)

    def _revealed(self, stage: _Agreed, message: Packet) -> Arrays:
        """The last step: of each client one share, once enough of them have signed what it has signed itself."""
        shared, offered = stage.sent.shared, stage.sent.shared.offered
        signed = [
            client
            for client, signature in rows_of(message, SIGNATURE_BYTES).items()
            if client in stage.survivors
            and is_signed(shared.offers[client].public, stage.statement, signature)
        ]
        if len(signed) < offered.terms.threshold:
            self._refuse(
                f"{len(signed)} clients have signed the survivors that it was told of, and "
                f"{offered.terms.threshold} must: clients do not agree, or are lost"
            )
        offers = {client: shared.offers[client].offer for client in stage.sent.sealed}
        me = self.identity.client
        revealed = secure.reveal(offered.plan, me, offered.secret, offers, stage.sent.sealed, stage.survivors)
        return table({**revealed.seeds, **revealed.keys})

    def _check_count(self, clients: Collection[int], what_for: str) -> None:
        """Checks that a sum has enough clients for this one's own rule."""
        if len(clients) < self.protection.fewest:
            self._refuse(
                f"{len(clients)} clients {what_for}, and it takes part in no sum of fewer than {self.protection.fewest}"
            )


def _keys(offers: Mapping[int, SignedOffer]) -> dict[int, Offer]:
    return {client: signed.offer for client, signed in offers.items()}


# --- the server's half ------------------------------------------------------------------------------------------------


Asks: TypeAlias = Mapping[int, Packet]
"""A message for each client that is asked; or the answers of those that have answered in time."""


class SecureTotal(NamedTuple):
    """What the server learns.

    Attributes:
      numbers: the sum modulo ``2**bits``, uint32 or uint64 ``(n,)``.
      clients: whose numbers are in it, in rising order.
      rejected: client -> why an answer of it did not count.
    """

    numbers: NDArray
    clients: tuple[int, ...]
    rejected: Mapping[int, str]


def secure_total(ask: Callable[[Asks], Asks], terms: SumTerms, authority: bytes) -> SecureTotal:
    """A secure sum, one exchange after another.

    Args:
      ask: one exchange with a deadline: asks clients, and gives the answers of those that have answered.
      terms: of the sum, from :func:`evenhand.wire.sum_messages.sum_terms`.
      authority: the public key of the federation's authority.

    Raises:
      TooFewError: in some exchange, fewer than ``terms.threshold`` clients have answered as they should.
      EvenhandError: a client has revealed false shares.
    """
    exchanges = secure_exchanges(terms, authority)
    asks = next(exchanges)
    while True:
        try:
            asks = exchanges.send(ask(asks))
        except StopIteration as end:
            return end.value


def secure_exchanges(terms: SumTerms, authority: bytes) -> Generator[Asks, Asks, SecureTotal]:
    """The server's half of a secure sum, which yields five times what to ask and is sent what was answered.

    So the messages of a sum can travel with others: the first, which holds the plan, with what clients train on.  The
    third, of kind ``NUMBERS``, is the one that clients answer with their numbers, and so takes as long as they need for
    these.  Arguments and errors are those of :func:`secure_total`.
    """
    occasion, rejected = terms.occasion, dict[int, str]()
    records = yield from _collected(
        terms,
        dict.fromkeys(terms.clients, terms.message),
        rejected,
        lambda k, m: _record(authority, terms, k, m),
    )
    offers = {client: record.offer for client, record in records.items()}
    shown = occasion.message(SHARES, *table({client: record.record for client, record in records.items()}))

    def read_shares(client: int, message: Packet) -> dict[int, bytes]:
        shares = rows_of(message, SEALED_BYTES)
        if set(shares) != set(offers) - {client}:
            raise PacketError("It has not sent one share for each of the others.")
        return shares

    shares = yield from _collected(terms, dict.fromkeys(offers, shown), rejected, read_shares)
    asks = {
        client: occasion.message(
            NUMBERS, *table({other: sent[client] for other, sent in shares.items() if other != client})
        )
        for client in shares
    }
    form = (f"uint{terms.bits}", terms.size)
    masked = yield from _collected(terms, asks, rejected, lambda client, message: arrays_of(message, form)[0])
    statement = agreement(terms, records, shares.keys(), masked.keys())
    claim = occasion.message(SURVIVORS, id_array(masked.keys()))
    signatures = yield from _collected(
        terms,
        dict.fromkeys(masked, claim),
        rejected,
        lambda client, message: _signature(records[client].public, statement, message),
    )
    proof = occasion.message(REVEAL, *table(signatures))

    def read_reveal(client: int, message: Packet) -> dict[int, bytes]:
        revealed = rows_of(message, SHARE_BYTES)
        if set(revealed) != set(shares):
            raise PacketError("It has not revealed one share of each client.")
        return revealed

    rows = yield from _collected(terms, dict.fromkeys(signatures, proof), rejected, read_reveal)
    truthful = _truthful(terms, {client: records[client] for client in shares}, masked.keys(), rows, rejected)
    revealed = {
        by: Revealed(
            {client: text for client, text in held.items() if client in masked},
            {client: text for client, text in held.items() if client not in masked},
        )
        for by, held in truthful.items()
    }
    total = secure.recover(terms.plan, {client: offers[client] for client in shares}, masked, revealed)
    return SecureTotal(total, tuple(sorted(masked)), rejected)


def _truthful(
    terms: SumTerms,
    records: Mapping[int, SignedOffer],
    survivors: Collection[int],
    rows: Mapping[int, Mapping[int, bytes]],
    rejected: dict[int, str],
) -> Mapping[int, Mapping[int, bytes]]:
    """The shares that clients have revealed, without those of clients that have revealed false ones.

    A share that is wrong in its last bits gives a seed that is, and so a sum that is wrong in all: nothing else tells.
    What is left gives the right sum; that the client left out is the one to blame is not certain if two collude.

    Raises:
      EvenhandError: so many are false that no client but the one whose secret they are of is to blame for sure.
    """

    def fits(client: int, by: Collection[int]) -> bool:
        # Those that recover() takes.
        first = [other for other in rows if other in by][: terms.threshold]
        shares = {terms.clients.index(other) + 1: rows[other][client] for other in first}
        offer = records[client].offer
        try:
            if client in survivors:
                return seed_hash(secure.join(shares, SEED_BYTES)) == records[client].seed_hash
            return secure.public_key(secure.join(shares, len(offer.mask_key))) == offer.mask_key
        except EvenhandError:
            return False

    for client in records:
        if fits(client, rows):
            continue
        for liar in rows:
            others = {by: held for by, held in rows.items() if by != liar}
            if fits(client, others):  # which too few never do
                rejected[liar] = (
                    f"Client {liar} is left out of the last step of the secure sum of {terms.occasion}. It has "
                    f"revealed a false share of a secret of client {client}."
                )
                # From the beginning, as other shares take the place of its own.
                return _truthful(terms, records, survivors, others, rejected)
        raise EvenhandError(
            f"In the secure sum of {terms.occasion}, shares of a secret of client {client} are false: it has made "
            "false ones, or more clients have revealed false ones than can be left out. The sum is lost."
        )
    return rows


def _collected(
    terms: SumTerms, asks: Asks, rejected: dict[int, str], read: Callable[[int, Packet], T]
) -> Generator[Asks, Asks, dict[int, T]]:
    """What clients have answered, where it can be read; the others are as good as absent."""
    answers = yield asks
    kind = next(iter(asks.values())).kind
    read_off = dict[int, T]()
    for client in sorted(set(asks) & set(answers)):
        try:
            if answers[client].kind != kind:
                raise PacketError(f"It has answered {kind!r} by {answers[client].kind!r}.")
            if (about := occasion_of(answers[client])) != terms.occasion:
                raise PacketError(f"Its answer is about {about}.")
            read_off[client] = read(client, answers[client])
        except EvenhandError as error:
            rejected[client] = f"Client {client} is left out of the secure sum of {terms.occasion}. {error}"
    if len(read_off) < terms.threshold:
        raise TooFewError(
            f"Of {len(terms.clients)} clients, {len(read_off)} have answered {kind!r} in the secure sum of "
            f"{terms.occasion}, and {terms.threshold} are needed: repeat it under a new tag."
        )
    return read_off


def _record(authority: bytes, terms: SumTerms, client: int, message: Packet) -> SignedOffer:
    """The offer in a client's first answer; a server that passed on false ones would lose all clients by it."""
    (row,) = arrays_of(message, (np.uint8, OFFER_BYTES))
    return checked_offer(authority, terms, client, row.tobytes())


def _signature(public: bytes, statement: Packet, message: Packet) -> bytes:
    (row,) = arrays_of(message, (np.uint8, SIGNATURE_BYTES))
    if not is_signed(public, statement, row.tobytes()):
        raise PacketError("It has signed something other than the survivors.")
    return row.tobytes()


# --- bytes ------------------------------------------------------------------------------------------------------------


def sum_cost(terms: SumTerms) -> Cost:
    """The bytes of one client in a sum in which nobody is lost: those of messages with the same lengths.

    Example:
      >>> from evenhand.wire.sum_messages import sum_terms
      >>> cost = sum_cost(sum_terms(Occasion("clinics", "a", 0, 0), range(4), bits=64, size=1000))
      >>> cost.up > 8000 and cost.down < 4000
      True
    """
    clients, others, made = terms.clients, terms.clients[1:], terms.occasion.message
    down = [
        terms.message,
        made(SHARES, *table(dict.fromkeys(clients, bytes(OFFER_BYTES)))),
        made(NUMBERS, *table(dict.fromkeys(others, bytes(SEALED_BYTES)))),
        made(SURVIVORS, id_array(clients)),
        made(REVEAL, *table(dict.fromkeys(clients, bytes(SIGNATURE_BYTES)))),
    ]
    up = [
        made(OFFER, np.zeros(OFFER_BYTES, np.uint8)),
        made(SHARES, *table(dict.fromkeys(others, bytes(SEALED_BYTES)))),
        made(NUMBERS, np.zeros(terms.size, f"uint{terms.bits}")),
        made(SURVIVORS, np.zeros(SIGNATURE_BYTES, np.uint8)),
        made(REVEAL, *table(dict.fromkeys(clients, bytes(SHARE_BYTES)))),
    ]
    sent, received = (sum(len(encode(message)) for message in messages) for messages in (up, down))
    return Cost(sent, received, plain=4 * terms.size)


# --- the sums of aggregators as whole numbers -------------------------------------------------------------------------


class SumForm(NamedTuple):
    """How the lifted arrays of an aggregator are one array of whole numbers on the wire.

    Attributes:
      bits: of each number on the wire, 32 or 64.
      size: how many numbers.
      fewest: clients of a sum, at least, as of :class:`evenhand.types.Summation`.
      flat: ``lifted -> numbers`` of a client, uint32 or uint64 ``(size,)``.
      tree: ``total -> lifted``, what ``Summation.add`` gives, as NumPy arrays.
    """

    bits: int
    size: int
    fewest: int
    flat: Callable[[PyTree], NDArray]
    tree: Callable[[NDArray], PyTree]


def sum_form(summation: Summation | None, like: PyTree) -> SumForm:
    """The form on the wire of the sums of an aggregator.

    A sum in limbs is that of the integers that the limbs are.  A sum of words modulo ``2**bits`` with fewer than 32
    bits travels in 32: the client fills the rest at random, so that the server learns the sum modulo ``2**bits`` and
    not how often it wraps around.  What the server gets is then equal to ``Summation.add`` modulo ``2**bits``.

    Args:
      summation: that of the aggregator.
      like: what it lifts, as arrays or shapes.

    Raises:
      EvenhandError: the aggregator sums real numbers, or its server sees what each client sends.
    """
    if summation is None or not summation.is_secure:
        reason = "adds real numbers" if summation is None else "lets the server see what each client sends"
        raise EvenhandError(
            f"This aggregator {reason}, so its sum cannot be secure: put it under eh.aggregators.secure(...), or let "
            "its clients upload in the clear."
        )
    leaves, structure = jax.tree.flatten(like)
    if any(leaf.dtype != jnp.uint32 for leaf in leaves):
        raise EvenhandError(
            "A secure sum needs lifted arrays of uint32, which this aggregator does not give."
        )
    widths = {leaf.shape[-1] for leaf in leaves} if summation.in_limbs else {1}
    if len(widths) != 1:
        raise EvenhandError(
            "A secure sum needs numbers with as many bits each: do not mix bits=32 and bits=64."
        )
    (width,) = widths
    # The numbers of an array, and the bits that count of each.
    sizes, kept = [leaf.size // width for leaf in leaves], summation.bits * width

    def flat(lifted: PyTree) -> NDArray:
        parts = jax.tree.leaves(lifted)
        if summation.in_limbs:
            parts = [secure.from_limbs(np.asarray(secure.carried(part)).reshape(-1, width)) for part in parts]
        words = np.concatenate([np.asarray(part).reshape(-1) for part in parts])
        return words if kept in (32, 64) else _filled(words, kept)

    def tree(total: NDArray) -> PyTree:
        rows = secure.to_limbs(total, width) if summation.in_limbs else total & np.uint32(2**kept - 1)
        parts = zip(np.split(rows, np.cumsum(sizes)[:-1]), leaves, strict=True)
        return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in parts])

    return SumForm(32 if kept <= 32 else 64, sum(sizes), summation.fewest, flat, tree)


def _filled(words: NDArray, bits: int) -> NDArray:
    """The same numbers modulo ``2**bits``, with random multiples of that added: nothing else is left of them."""
    drawn = np.frombuffer(secrets.token_bytes(4 * len(words)), np.uint32)
    return (words & np.uint32(2**bits - 1)) | (drawn << np.uint32(bits))
