"""What a client of a secure sum refuses: a server that departs from the protocol, with and without accomplices."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from evenhand import EvenhandError, secure
from evenhand.secure import SEALED_BYTES, SHARE_BYTES, Revealed, _protocol
from evenhand.wire.identities import (
    certificate_of,
    identity_of,
    is_certified,
    is_signed,
    new_private_key,
    public_key_of,
    signature_of,
)
from evenhand.wire.messages import Packet, PacketError
from evenhand.wire.secure_sums import Protection, SumSession, secure_total
from evenhand.wire.sum_messages import (
    NUMBERS,
    OFFER,
    REVEAL,
    SHARES,
    SURVIVORS,
    Occasion,
    checked_offer,
    id_array,
    quorum,
    rows_of,
    signed_offer,
    sum_terms,
    table,
)
from tests.unit.network.clinics import (
    AUTHORITY,
    CLIENTS,
    SIGNER,
    WHEN,
    Network,
    identity,
    numbers_of,
    sessions_of,
    terms_for,
    total,
)


def same(client, shown):
    """A server that does not lie."""
    return shown


class Server:
    """A server that tells each client what it likes, step by step.

    ``lies`` has, by step, ``(client, shown) -> shown``: the records of offers, the shares, the survivors, and the
    signatures that the client is shown.
    """

    def __init__(self, sessions, terms, **lies):
        self.sessions, self.terms = sessions, terms
        self.lies = {step: lies.get(step, same) for step in ("offers", "shares", "survivors", "signatures")}
        self.records, self.sealed, self.masked, self.signatures, self.revealed = {}, {}, {}, {}, {}
        self.refusals = {}

    def tell(self, client, kind, *arrays) -> Any:
        """The arrays of the client's answer, or None, as it refuses."""
        message = self.terms.occasion.message(kind, *arrays) if arrays else self.terms.message
        try:
            return self.sessions[client].answer(message)
        except EvenhandError as error:
            self.refusals[client] = str(error)
            return None

    def offers(self):
        for client in self.sessions:
            if answer := self.tell(client, OFFER):
                self.records[client] = answer.arrays[0].tobytes()
        return self

    def shares(self):
        for client in self.records:
            if answer := self.tell(client, SHARES, *table(self.lies["offers"](client, self.records))):
                self.sealed[client] = rows_of(answer, SEALED_BYTES)
        return self

    def numbers(self):
        for client in self.sealed:
            mine = {other: sent[client] for other, sent in self.sealed.items() if client in sent}
            if answer := self.tell(client, NUMBERS, *table(self.lies["shares"](client, mine))):
                self.masked[client] = answer.arrays[0]
        return self

    def survivors(self):
        for client in self.masked:
            claimed = id_array(self.lies["survivors"](client, set(self.masked)))
            if answer := self.tell(client, SURVIVORS, claimed):
                self.signatures[client] = answer.arrays[0].tobytes()
        return self

    def reveals(self):
        for client in self.signatures:
            shown = table(self.lies["signatures"](client, self.signatures))
            if answer := self.tell(client, REVEAL, *shown):
                self.revealed[client] = rows_of(answer, SHARE_BYTES)
        return self

    def run(self):
        return self.offers().shares().numbers().survivors().reveals()


def served(m=5, protection=Protection(), colluding=0, clients=CLIENTS, **lies):  # noqa: B008
    numbers = numbers_of(range(m))
    sessions = sessions_of(numbers, protection=protection, clients=clients)
    return Server(sessions, terms_for(numbers, colluding=colluding), **lies), numbers


def refused(server, client):
    """The sentence of the last refusal of a client, which has revealed nothing."""
    assert client not in server.revealed
    return server.refusals[client]


def test_an_honest_server_gets_all_reveals():
    """The control of all that follows."""
    server, _ = served()
    server.run()
    assert set(server.revealed) == set(range(5)) and not server.refusals


# --- different survivors for different clients ------------------------------------------------------------------------


LOST = {0: {2, 3}, 1: {3, 4}, 2: {3, 4}, 3: {2, 4}, 4: {2}}
"""Whom each of five clients is told to be lost, so that three shares of each key of 2, 3 and 4 are revealed."""


def test_the_protocol_alone_gives_a_lying_server_the_sum_of_two_clients(monkeypatch):
    """The control: the server tells each client of other survivors, and finds the sum of clients 0 and 1 of five."""
    numbers = numbers_of(range(5))
    plan = secure.plan(range(5))
    pairs = {k: secure.advertise(np.random.default_rng(k).bytes) for k in range(5)}
    offers = {k: offer for k, (_, offer) in pairs.items()}
    sealed = {k: secure.share(plan, k, pairs[k][0], offers, np.random.default_rng(k).bytes) for k in range(5)}
    masked = {k: secure.mask(plan, k, pairs[k][0], offers, numbers[k]) for k in range(5)}
    revealed = {}
    for k in range(5):
        mine = {other: sealed[other][k] for other in range(5)}
        revealed[k] = secure.reveal(plan, k, pairs[k][0], offers, mine, set(range(5)) - LOST[k])
    # A check of the server's own.
    monkeypatch.setattr(_protocol, "_check_survivors", lambda plan, offers, alive: None)
    found = secure.recover(plan, offers, {k: masked[k] for k in (0, 1)}, revealed)
    np.testing.assert_array_equal(found, total(numbers, (0, 1)))


def test_a_server_that_tells_each_client_of_other_survivors_gets_no_reveals():
    server, _ = served(survivors=lambda client, alive: alive - LOST[client])
    server.run()
    assert set(server.signatures) == set(range(5)) and not server.revealed
    assert "2 clients have signed the survivors that it was told of, and 3 must" in refused(server, 1)


@pytest.mark.parametrize(("m", "first"), [(4, 2), (6, 3), (8, 4)])
def test_a_server_that_claims_different_survivors_to_two_groups_gets_no_reveals(m, first):
    def claimed(client, alive):
        return alive - {m - 1} if client < first else alive - {0}

    server, _ = served(m, survivors=claimed)
    server.run()
    assert len(server.signatures) == m and not server.revealed
    for client in range(m):
        assert "clients do not agree, or are lost" in refused(server, client)
    honest, _ = served(m, survivors=lambda client, alive: alive - {m - 1})
    honest.run()
    assert set(honest.revealed) == set(range(m - 1))  # the last is told that it has sent nothing


def test_of_two_groups_only_the_larger_reveals_so_that_there_is_one_sum():
    server, numbers = served(7, survivors=lambda client, alive: alive - ({6} if client < 4 else {0}))
    server.run()
    assert set(server.revealed) == {0, 1, 2, 3}
    offers = {
        k: checked_offer(AUTHORITY, server.terms, k, record).offer for k, record in server.records.items()
    }
    alive = range(6)
    revealed = {k: Revealed({j: rows[j] for j in alive}, {6: rows[6]}) for k, rows in server.revealed.items()}
    found = secure.recover(server.terms.plan, offers, {k: server.masked[k] for k in alive}, revealed)
    np.testing.assert_array_equal(found, total(numbers, alive))


@pytest.mark.parametrize(("colluding", "reveals"), [(0, True), (1, False)])
def test_the_quorum_holds_against_as_many_accomplices_as_it_is_for(colluding, reveals):
    """Client 4 signs whatever the server claims; with a quorum of 3 of 5, both halves of the others reveal."""

    def claimed(client, alive):
        return {0, 1, 4, 2} if client in (0, 1) else {2, 3, 4, 0} if client in (2, 3) else alive

    def signatures(client, real):
        stage: Any = server.sessions[client]._stage
        return {**real, 4: signature_of(CLIENTS[4].private, stage.statement)}

    protection = Protection(colluding=colluding)
    server, _ = served(
        5, protection=protection, colluding=colluding, survivors=claimed, signatures=signatures
    )
    server.run()
    assert set(server.revealed) - {4} == ({0, 1, 2, 3} if reveals else set())


def test_a_quorum_of_two_groups_has_an_honest_client_in_both():
    for m in range(2, 40):
        for colluding in range(m):
            least = quorum(m, colluding)
            assert 2 * least - m > colluding >= 2 * (least - 1) - m and colluding < least <= m


# --- other views of what came before ----------------------------------------------------------------------------------


def test_clients_that_were_told_of_other_shares_do_not_reveal():
    def without(client, sealed):
        return {other: text for other, text in sealed.items() if other != 5} if client < 3 else sealed

    server, _ = served(6, shares=without, survivors=lambda client, alive: alive - {5})
    server.run()
    assert not server.revealed
    assert "3 clients have signed" in refused(server, 0) and "2 clients have signed" in refused(server, 3)


def test_clients_that_were_shown_other_offers_of_one_client_do_not_reveal():
    server, _ = served(6)
    server.offers()
    # Client 5 colludes, and makes two offers.
    _, second = secure.advertise(np.random.default_rng(0).bytes)
    other = signed_offer(CLIENTS[5], server.terms, second, bytes(16)).record
    server.lies["offers"] = lambda client, real: {**real, 5: other} if client < 3 else real
    server.lies["survivors"] = lambda client, alive: alive - {5}
    server.shares().numbers().survivors().reveals()
    assert not server.revealed and len(server.signatures) == 5
    assert "3 clients have signed" in refused(server, 0) and "2 clients have signed" in refused(server, 3)


@pytest.mark.parametrize("change", ["tag", "client", "survivor"])
def test_signatures_of_another_sum_client_or_one_that_is_lost_do_not_count(change):
    """Five clients, of which three must sign, and two have."""
    lost = {4} if change == "survivor" else set()
    server, _ = served(5, survivors=lambda client, alive: alive - lost)
    server.offers().shares().numbers().survivors()
    real = {k: server.signatures[k] for k in (0, 1)}
    stage: Any = server.sessions[0]._stage
    statement = stage.statement
    earlier = statement._replace(fields={**statement.fields, "tag": 6})
    more = {
        "tag": {2: signature_of(CLIENTS[2].private, earlier)},
        "client": {2: server.signatures[1], 3: server.signatures[0]},
        "survivor": {4: signature_of(CLIENTS[4].private, statement)},
    }[change]
    server.lies["signatures"] = lambda client, shown: {**real, **more}
    server.reveals()
    assert "2 clients have signed" in refused(server, 0)
    server.lies["signatures"] = lambda client, shown: {**real, 2: shown[2]}
    server.reveals()
    assert 0 in server.revealed


# --- offers -----------------------------------------------------------------------------------------------------------


def test_invented_clients_are_refused():
    """The server invents three clients around client 0, certified by an authority of its own."""
    invented = {k: identity(k, signer=new_private_key()) for k in (1, 2, 3)}
    server, _ = served(4, clients={0: CLIENTS[0], **invented})
    server.offers().shares()
    assert len(server.records) == 4 and 0 not in server.sealed
    assert "offer of client 1 has no certificate" in refused(server, 0)
    assert "not registered" in refused(server, 0)


def test_clients_of_another_federation_are_refused():
    stranger = identity(1, federation="schools")._replace(federation="clinics")
    server, _ = served(3, clients={**CLIENTS, 1: stranger})
    server.offers().shares()
    assert "offer of client 1 has no certificate" in refused(server, 0)


def test_swapped_offers_are_refused():
    swapped = {0: 0, 1: 2, 2: 1, 3: 3}
    server, _ = served(4, offers=lambda client, real: {k: real[swapped[k]] for k in real})
    server.offers().shares()
    assert "offer of client 1 has no certificate" in refused(server, 0) and not server.sealed


def test_an_offer_of_one_client_is_not_anothers_even_if_both_have_one_key():
    """One device that is certified under two numbers."""
    public = CLIENTS[1].public
    second = CLIENTS[1]._replace(client=2, certificate=certificate_of(SIGNER, "clinics", 2, public))
    server, _ = served(4, clients={**CLIENTS, 2: second})
    server.offers()
    first = checked_offer(AUTHORITY, server.terms, 1, server.records[1])
    copied = first._replace(certificate=second.certificate).record
    server.lies["offers"] = lambda client, real: {**real, 2: copied}
    server.shares()
    assert "Client 2 has not signed this offer" in refused(server, 0)
    server.lies["offers"] = same
    server.shares()
    assert 0 in server.sealed


def test_a_table_whose_parts_do_not_fit_is_refused():
    server, _ = served(4)
    server.offers()
    ids, records = table(server.records)
    with pytest.raises(PacketError, match="has 4 rows for 3 clients"):
        server.sessions[0].answer(WHEN.message(SHARES, ids[:3], records))
    server.shares()
    assert 0 in server.sealed


@pytest.mark.parametrize(
    "other",
    [
        {"occasion": WHEN._replace(tag=6)},
        {"occasion": WHEN._replace(number=1)},
        {"occasion": WHEN._replace(run="second")},
        {"size": 4},
        {"clients": (0, 1, 2)},
        {"threshold": 4},
    ],
    ids=lambda other: next(iter(other)),
)
def test_offers_replayed_from_another_sum_or_plan_are_refused(other):
    server, _ = served(4)
    server.offers()
    terms = server.terms._replace(**other)
    before = Server(sessions_of(numbers_of(terms.clients), terms.occasion), terms).offers()
    server.lies["offers"] = lambda client, real: {**real, 1: before.records[1]}
    server.shares()
    assert "Client 1 has not signed this offer for the sum of tag 7" in refused(server, 0)


def test_offers_whose_keys_were_exchanged_are_refused():
    """A server that puts its own keys in place of a client's could open the shares for it, and know its masks."""
    server, _ = served(4)
    server.offers()
    _, mine = secure.advertise(np.random.default_rng(0).bytes)
    for part in ("mask_key", "seal_key"):
        real = checked_offer(AUTHORITY, server.terms, 1, server.records[1])
        offer = real.offer._replace(**{part: mine[part == "seal_key"]})
        record = real._replace(offer=offer).record
        server.lies["offers"] = lambda client, shown, record=record: {**shown, 1: record}
        server.shares()
        assert "Client 1 has not signed this offer" in refused(server, 0)
        # Nor does it help to sign with a key that the authority has not certified for this client.
        own = signed_offer(CLIENTS[2], server.terms, offer, bytes(16))
        server.lies["offers"] = lambda client, shown, own=own: {**shown, 1: own.record}
        server.shares()
        assert "offer of client 1 has no certificate" in refused(server, 0)


def test_an_offer_with_another_hash_of_the_seed_is_refused():
    server, _ = served(4)
    server.offers()
    other = checked_offer(AUTHORITY, server.terms, 1, server.records[1])._replace(seed_hash=bytes(32)).record
    server.lies["offers"] = lambda client, real: {**real, 1: other}
    server.shares()
    assert "Client 1 has not signed this offer" in refused(server, 0)


def test_a_registered_client_that_is_not_in_the_plan_is_refused():
    server, _ = served(4)
    server.offers()
    _, offer = secure.advertise(np.random.default_rng(0).bytes)
    ninth = signed_offer(CLIENTS[8], server.terms, offer, bytes(16)).record
    server.lies["offers"] = lambda client, real: {**real, 8: ninth}
    server.shares()
    assert "Client 8 is not in the plan of this sum" in refused(server, 0)


def test_a_client_misses_its_own_offer():
    server, _ = served(4, offers=lambda client, real: {k: real[k] for k in real if k != client})
    server.offers().shares()
    assert "its own offer is not among those" in refused(server, 0)
    again, _ = served(4)
    again.offers()
    fresh = signed_offer(
        CLIENTS[0], again.terms, secure.advertise(np.random.default_rng(0).bytes)[1], bytes(16)
    )
    again.lies["offers"] = lambda client, real: {**real, 0: fresh.record}
    again.shares()
    assert "its own offer is not among those" in refused(again, 0)


# --- plans ------------------------------------------------------------------------------------------------------------


def session(client=0, protection=Protection(), occasion=WHEN):  # noqa: B008
    return SumSession(CLIENTS[client], occasion, np.zeros(5, np.uint64), protection)


FIVE = sum_terms(WHEN, range(5), bits=64, size=5)


@pytest.mark.parametrize(
    ("terms", "protection", "sentence"),
    [
        (FIVE._replace(threshold=2), Protection(), "threshold of 2 of 5 clients does not protect"),
        (FIVE._replace(threshold=6), Protection(), "threshold of 6 of 5 clients does not protect"),
        (FIVE, Protection(colluding=1), "threshold of 3 .* against 1 that collude .* which takes 4 or more"),
        (FIVE, Protection(smallest=6), "5 clients are asked, and it takes part in no sum of fewer than 6"),
        (FIVE, Protection(colluding=4), "takes part in no sum of fewer than 6"),
        (FIVE._replace(clients=(1, 2, 3, 4, 5)), Protection(), "the plan does not list it"),
        (FIVE._replace(clients=(0,)), Protection(), "fewer than 2"),
        (FIVE._replace(occasion=WHEN._replace(tag=6)), Protection(), "the message is about tag 6, pass 0"),
        (FIVE._replace(occasion=WHEN._replace(number=1)), Protection(), "is about tag 7, pass 1"),
        (FIVE._replace(occasion=WHEN._replace(run="b")), Protection(), "of the run 'b'"),
        (FIVE._replace(occasion=WHEN._replace(federation="x")), Protection(), "federation 'x'"),
        (FIVE._replace(bits=48), Protection(), "give 32 or 64"),
        (
            FIVE._replace(clients=tuple(range(3000)), threshold=1501),
            Protection(),
            "of 3,000 clients, .* at most 2,048",
        ),
        (FIVE._replace(clients=(0, 1, 1, 2)), Protection(), "has clients twice"),
    ],
)
def test_a_plan_that_does_not_protect_a_client_is_refused_and_nothing_is_sent(terms, protection, sentence):
    member = session(protection=protection)
    with pytest.raises(EvenhandError, match=sentence):
        member.answer(terms.message)
    # A refusal changes nothing: the right plan still gets an offer.
    strong = sum_terms(WHEN, range(7), bits=64, size=5, colluding=protection.colluding)
    assert member.answer(strong.message).kind == OFFER


def test_a_first_message_without_terms_is_refused():
    with pytest.raises(PacketError, match="no threshold, bits and size"):
        session().answer(WHEN.message(OFFER, id_array(range(5))))


def test_a_client_of_another_federation_takes_no_part():
    other = Occasion("schools", "first", 7, 0)
    with pytest.raises(EvenhandError, match="is of the federation 'clinics'"):
        session(occasion=other)


@pytest.mark.parametrize(
    ("bits", "size", "sentence"), [(64, 4, r"one of 4 numbers, and it has \[5\]"), (32, 5, "give uint32")]
)
def test_a_sum_of_other_numbers_than_the_clients_is_refused(bits, size, sentence):
    numbers = numbers_of(range(3))
    server = Server(sessions_of(numbers), sum_terms(WHEN, numbers, bits=bits, size=size))
    server.offers().shares().numbers()
    assert not server.masked
    with pytest.raises(EvenhandError, match=sentence):
        raise EvenhandError(refused(server, 0))


# --- too few for a client's own rule ----------------------------------------------------------------------------------


FOUR = Protection(smallest=4)


def fewer(client, shown):
    """Three of five: as many as the threshold, and fewer than the clients' own rule of four."""
    return {k: shown[k] for k in (0, 1, 2) if k in shown} if isinstance(shown, dict) else {0, 1, 2}


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        ("offers", "3 clients have made an offer, and it takes part in no sum of fewer than 4"),
        ("shares", "3 clients have sent shares"),
        ("survivors", "3 clients have sent numbers"),
    ],
)
def test_a_sum_of_too_few_for_a_clients_own_rule_is_refused_in_each_step(lie, sentence):
    lies: dict[str, Any] = {lie: fewer, "survivors": fewer}
    server, _ = served(protection=FOUR, **lies)
    server.run()
    assert sentence in refused(server, 0) and not server.revealed
    control, _ = served(protection=Protection(smallest=3), **lies)
    control.run()
    assert set(control.revealed) == {0, 1, 2}


# --- one answer in each step ------------------------------------------------------------------------------------------


def test_messages_out_of_order_are_refused():
    for kind in (SHARES, NUMBERS, SURVIVORS, REVEAL, "sum-all"):
        with pytest.raises(EvenhandError, match=f"a message '{kind}' is not due"):
            session().answer(WHEN.message(kind))


def test_a_message_that_comes_twice_gets_the_same_answer_and_another_none():
    server, _ = served(5)
    member = server.sessions[0]
    first = server.tell(0, OFFER)
    assert server.tell(0, OFFER).arrays[0].tobytes() == first.arrays[0].tobytes()
    with pytest.raises(EvenhandError, match="has answered another message 'sum-offer'"):
        member.answer(server.terms._replace(threshold=4).message)
    server.offers()
    fewer_offers = {k: server.records[k] for k in range(4)}
    server.shares()
    with pytest.raises(EvenhandError, match="has answered another message 'sum-shares'"):
        member.answer(WHEN.message(SHARES, *table(fewer_offers)))
    fewer_shares = {k: server.sealed[k][0] for k in (1, 2)}
    server.numbers()
    with pytest.raises(EvenhandError, match="has answered another message 'sum-numbers'"):
        member.answer(WHEN.message(NUMBERS, *table(fewer_shares)))
    server.survivors()
    assert server.tell(0, SURVIVORS, id_array(range(5))).arrays[0].tobytes() == server.signatures[0]
    with pytest.raises(EvenhandError, match="has answered another message 'sum-survivors'"):
        member.answer(WHEN.message(SURVIVORS, id_array(range(4))))
    assert not member.is_over
    server.reveals()
    assert member.is_over and 0 in server.revealed


def test_a_client_reveals_once():
    server, _ = served(4)
    server.run()
    member = server.sessions[0]
    proof = WHEN.message(REVEAL, *table(server.signatures))
    for message in (proof, WHEN.message(SURVIVORS, id_array(range(3))), server.terms.message):
        with pytest.raises(EvenhandError, match=r"is not due: those of a sum come in the order .* once"):
            member.answer(message)


def test_a_client_that_refused_to_reveal_does_so_once_enough_have_signed():
    server, _ = served(5, signatures=lambda client, real: {k: real[k] for k in (0, 1)})
    server.run()
    assert not server.revealed
    server.lies["signatures"] = same
    server.reveals()
    assert set(server.revealed) == set(range(5))


# --- survivors and shares that do not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (lambda client, alive: alive - {client}, "it has sent no numbers, which it has"),
        (
            lambda client, alive: alive | {7},
            "client 7 is said to have sent numbers, but it has sent no shares",
        ),
    ],
)
def test_survivors_that_cannot_be_are_refused(lie, sentence):
    server, _ = served(5, survivors=lie)
    server.run()
    assert not server.signatures and sentence in refused(server, 0)


def test_shares_of_a_client_without_an_offer_are_refused():
    server, _ = served(5, offers=lambda client, real: {k: real[k] for k in range(4)})
    server.offers().shares()
    server.lies["shares"] = lambda client, sealed: {**sealed, 4: bytes(SEALED_BYTES)}
    server.numbers()
    assert not server.masked
    assert "client 4 has sent shares, but was not among the offers before" in refused(server, 0)


def test_shares_that_were_changed_or_swapped_on_their_way_keep_a_client_from_revealing():
    server, _ = served(
        4, shares=lambda client, sealed: {k: sealed[j] for k, j in zip(sealed, [*sealed][::-1], strict=True)}
    )
    server.run()
    assert not server.revealed
    assert "What client 1 has shared with client 0: Shares of a client do not open" in refused(server, 0)


# --- anything else ----------------------------------------------------------------------------------------------------


def distorted(message, rng):
    """The message with something random changed in it."""
    arrays, fields = [array.copy() for array in message.arrays], dict(message.fields)
    place = int(rng.integers(len(arrays)))
    array = arrays[place]
    flat = array.reshape(-1)
    match int(rng.integers(8)):
        case 0:
            arrays.pop(place)
        case 1:
            arrays.append(array)
        case 2:
            arrays[place] = array.astype(rng.choice(["float32", "int32", "uint64", "bool"]))
        case 3:
            arrays[place] = array[: int(rng.integers(len(array) + 1))]
        case 4 if flat.size:
            flat[int(rng.integers(flat.size))] ^= flat.dtype.type(1 << int(rng.integers(7)))
        case 5 if flat.size:
            flat[int(rng.integers(flat.size))] = np.iinfo(flat.dtype).max
        case 6:
            arrays[place] = array[::-1] if rng.random() < 0.5 else array[..., None]
        case _:
            name = rng.choice([*fields])
            fields[name] = [None, -1, 10**30, True, "x", [], {}, 0.5][int(rng.integers(8))]
    return message._replace(arrays=tuple(arrays), fields=fields)


def due(server):
    """The next message to client 0."""
    if server.signatures:
        return WHEN.message(REVEAL, *table(server.signatures))
    if server.masked:
        return WHEN.message(SURVIVORS, id_array(server.masked))
    if server.sealed:
        return WHEN.message(NUMBERS, *table({k: v[0] for k, v in server.sealed.items() if k != 0}))
    return WHEN.message(SHARES, *table(server.records)) if server.records else server.terms.message


def test_whatever_a_server_sends_a_client_answers_as_it_should_or_refuses(thorough):
    rng = np.random.default_rng(0)
    refusals = 0
    for trial in range(2000 if thorough else 120):
        server, _ = served(4)
        for step in (server.offers, server.shares, server.numbers, server.survivors)[: trial % 5]:
            step()
        member, message = server.sessions[0], due(server)
        try:
            member.answer(distorted(message, rng))
        except EvenhandError:
            refusals += 1
            assert member.answer(message).kind == message.kind  # a refusal changes nothing
    assert refusals > 80


def test_whatever_clients_send_the_server_finds_a_sum_or_says_why_not(thorough):
    rng = np.random.default_rng(1)
    outcomes = []
    for trial in range(2000 if thorough else 120):
        numbers = numbers_of(range(4), seed=trial)
        network, kind = Network(sessions_of(numbers)), (OFFER, SHARES, NUMBERS, SURVIVORS, REVEAL)[trial % 5]

        def ask(asks, network=network, kind=kind):
            answers = dict(network.ask(asks))
            if 2 in answers and answers[2].kind == kind:
                answers[2] = distorted(answers[2], rng)
            return answers

        try:
            found = secure_total(ask, terms_for(numbers), AUTHORITY)
        except EvenhandError:
            outcomes.append("error")
            continue
        outcomes.append("rejected" if 2 in found.rejected else "counted")
        if kind != NUMBERS or 2 not in found.clients:  # false numbers look like others
            np.testing.assert_array_equal(found.numbers, total(numbers, found.clients))
    assert outcomes.count("rejected") > 60


# --- secrets and identities -------------------------------------------------------------------------------------------


def test_secrets_are_new_in_each_session_and_stay_in_memory():
    first, second = session(), session()
    records = [member.answer(FIVE.message).arrays[0].tobytes() for member in (first, second)]
    offers = [checked_offer(AUTHORITY, FIVE, 0, record).offer for record in records]
    assert len({*offers[0], *offers[1]}) == 4
    for save in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(EvenhandError, match="secrets stay in one place"):
            save(first)
    stage: Any = first._stage
    hidden = [CLIENTS[0].private, *stage.secret]
    for shown in (repr(first), str(first), repr(CLIENTS[0]), f"{CLIENTS[0]}"):
        assert not any(secret.hex() in shown or repr(secret)[2:-1] in shown for secret in hidden)


def test_a_session_forgets_all_when_it_is_over():
    server, _ = served(4)
    server.run()
    kept = vars(server.sessions[0])
    assert kept["_numbers"].size == 0 and not kept["_answered"] and kept["_stage"] == ()


def test_a_certificate_is_for_one_client_key_and_federation():
    private, public = CLIENTS[3].private, CLIENTS[3].public
    certificate = CLIENTS[3].certificate
    assert identity_of("clinics", 3, private, certificate, AUTHORITY) == CLIENTS[3]
    assert is_certified(AUTHORITY, "clinics", 3, public, certificate)
    for federation, client, key, signed, authority in (
        ("clinics", 4, public, certificate, AUTHORITY),
        ("clinic", 3, public, certificate, AUTHORITY),
        ("clinics", 3, CLIENTS[4].public, certificate, AUTHORITY),
        ("clinics", 3, public, CLIENTS[4].certificate, AUTHORITY),
        ("clinics", 3, public, certificate, CLIENTS[4].public),
        ("clinics", 3, public, b"", AUTHORITY),
        ("clinics", 3, public, certificate, b"no key"),
    ):
        assert not is_certified(authority, federation, client, key, signed)
    with pytest.raises(EvenhandError, match="does not fit its key in the federation 'clinics'"):
        identity_of("clinics", 4, private, certificate, AUTHORITY)


def test_a_client_can_be_added_without_a_change_to_the_others():
    """Client 40 is certified when the others exist."""
    private = new_private_key()
    added = identity_of(
        "clinics", 40, private, certificate_of(SIGNER, "clinics", 40, public_key_of(private)), AUTHORITY
    )
    numbers = numbers_of((0, 1, 40))
    network = Network(sessions_of(numbers, clients={**CLIENTS, 40: added}))
    found = secure_total(network.ask, terms_for(numbers), AUTHORITY)
    np.testing.assert_array_equal(found.numbers, total(numbers, numbers))
    assert found.clients == (0, 1, 40)


def test_a_signature_is_for_one_statement_and_its_kind():
    statement = Packet("evenhand offer", {"tag": 1}, (np.arange(3),))
    signature = signature_of(CLIENTS[0].private, statement)
    assert is_signed(CLIENTS[0].public, statement, signature)
    for other in (
        statement._replace(kind="evenhand survivors"),
        statement._replace(fields={"tag": 2}),
        statement._replace(arrays=(np.arange(1, 4),)),
    ):
        assert not is_signed(CLIENTS[0].public, other, signature)
    assert not is_signed(CLIENTS[1].public, statement, signature)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(EvenhandError, match=r"pip install 'evenhand\[secure\]'"):
        new_private_key()
