"""Secure sums between machines: exact whoever is lost, and silent to a server that departs from the protocol."""

import re
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import EvenhandError, secure
from evenhand.aggregators import reduce_uploads
from evenhand.personalization._dual_ascent import by_client
from evenhand.privacy import discrete_mean, histogram
from evenhand.privacy._quantile import quantile_sum
from evenhand.privacy.secure_delta_fl import _sums, _Tail
from evenhand.secure import TooFewError
from evenhand.types import Upload
from evenhand.wire.messages import Packet, PacketError, encode
from evenhand.wire.secure_sums import SumSession, secure_exchanges, secure_total, sum_cost, sum_form
from evenhand.wire.sum_messages import (
    NUMBERS,
    OFFER,
    REVEAL,
    SHARES,
    SURVIVORS,
    occasion_of,
    sum_terms,
)
from tests.transcripts import traced
from tests.unit.network.clinics import (
    AUTHORITY,
    CLIENTS,
    WHEN,
    Network,
    numbers_of,
    sessions_of,
    terms_for,
    total,
)


def run(numbers, lost=None, **more):
    network = Network(sessions_of(numbers, **more), lost)
    return secure_total(network.ask, terms_for(numbers), AUTHORITY), network


# --- sums, and who may be lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("m", [2, 3, 5])
def test_the_sum_is_exact_and_that_of_all(m, bits):
    numbers = numbers_of(range(m), bits=bits)
    found, network = run(numbers)
    np.testing.assert_array_equal(found.numbers, total(numbers, numbers), strict=True)
    assert found.clients == tuple(range(m)) and not found.rejected
    assert all(session.is_over for session in network.sessions.values())


@pytest.mark.parametrize(
    ("step", "included"),
    [(OFFER, False), (SHARES, False), (NUMBERS, False), (SURVIVORS, True), (REVEAL, True)],
)
def test_clients_lost_in_any_step_are_left_out_or_counted_and_one_more_is_too_many(step, included):
    numbers = numbers_of(range(7))  # four are needed
    found, _ = run(numbers, {step: (1, 4, 6)})
    left = (0, 1, 2, 3, 4, 5, 6) if included else (0, 2, 3, 5)
    assert found.clients == left
    np.testing.assert_array_equal(found.numbers, total(numbers, left), strict=True)
    with pytest.raises(TooFewError, match=f"Of 7 clients, 3 have answered '{step}'.*tag 7.*and 4 are needed"):
        run(numbers, {step: (1, 2, 4, 6)})


def test_losses_add_up_over_the_steps():
    numbers = numbers_of(range(9))  # five are needed
    found, _ = run(numbers, {OFFER: (0,), SHARES: (1,), NUMBERS: (2,), REVEAL: (3,)})
    assert found.clients == (3, 4, 5, 6, 7, 8)
    np.testing.assert_array_equal(found.numbers, total(numbers, found.clients), strict=True)
    with pytest.raises(TooFewError):
        run(numbers, {OFFER: (0,), SHARES: (1,), NUMBERS: (2,), SURVIVORS: (3,), REVEAL: (4,)})


def test_numbers_are_made_when_they_are_needed_and_once():
    made = []

    def make():
        made.append(None)
        return np.full(2, 3, np.uint64)

    sessions = {client: SumSession(CLIENTS[client], WHEN, make) for client in range(3)}
    asked = Network(sessions)
    exchanges = secure_exchanges(sum_terms(WHEN, range(3), bits=64, size=2), AUTHORITY)
    asks = next(exchanges)
    counts = {}
    while REVEAL not in counts:
        kind = asks[0].kind
        answers = asked.ask(asks)
        assert asked.ask(asks).keys() == (answers.keys() if kind != REVEAL else set())  # sent twice
        counts[kind] = len(made)
        with pytest.raises(StopIteration) if kind == REVEAL else nullcontext() as end:
            asks = exchanges.send(answers)
    assert end is not None and end.value.value.numbers.tolist() == [9, 9]
    assert counts == {OFFER: 0, SHARES: 0, NUMBERS: 3, SURVIVORS: 3, REVEAL: 3}


def test_the_first_message_says_which_sum_it_is_and_nothing_else_does():
    terms = terms_for(numbers_of(range(3)))
    assert occasion_of(terms.message) == WHEN
    with pytest.raises(PacketError, match="does not say which secure sum"):
        occasion_of(Packet(SHARES))


# --- answers that are not what they should be -------------------------------------------------------------------------


def changed(network, step, client, change):
    """The exchanges of a network in which one client's answer in one step is another."""

    def ask(asks):
        answers = dict(network.ask(asks))
        if client in answers and asks[client].kind == step:
            answers[client] = change(answers[client])
        return answers

    return ask


def cut(message):
    return message._replace(arrays=tuple(array[:-1] for array in message.arrays))


def zeros(message):
    return message._replace(arrays=(*message.arrays[:-1], np.zeros_like(message.arrays[-1])))


@pytest.mark.parametrize(
    ("step", "change", "sentence", "left"),
    [
        (OFFER, cut, r"uint8\[255\], where uint8\[256\] is due", (0, 1, 3)),
        (OFFER, zeros, "has no certificate of the federation's authority", (0, 1, 3)),
        (OFFER, lambda message: message._replace(kind=SHARES), "'sum-offer' by 'sum-shares'", (0, 1, 3)),
        (SHARES, cut, "has not sent one share for each of the others", (0, 1, 3)),
        (SHARES, lambda message: message._replace(arrays=()), "0 arrays, where 2 are due", (0, 1, 3)),
        (NUMBERS, cut, r"uint64\[4\], where uint64\[5\] is due", (0, 1, 3)),
        (
            NUMBERS,
            lambda message: message._replace(arrays=(message.arrays[0].astype(np.float64),)),
            r"float64\[5\], where uint64",
            (0, 1, 3),
        ),
        (
            NUMBERS,
            lambda message: message._replace(fields={**message.fields, "number": 1}),
            "answer is about tag 7, pass 1",
            (0, 1, 3),
        ),
        (NUMBERS, lambda message: message._replace(fields={}), "does not say which secure sum", (0, 1, 3)),
        (SURVIVORS, zeros, "signed something other than the survivors", (0, 1, 2, 3)),
        (REVEAL, cut, "not revealed one share of each client", (0, 1, 2, 3)),
    ],
)
def test_a_client_whose_answer_is_not_due_is_as_good_as_absent(step, change, sentence, left):
    numbers = numbers_of(range(4))
    ask = changed(Network(sessions_of(numbers)), step, 2, change)
    found = secure_total(ask, terms_for(numbers), AUTHORITY)
    assert found.clients == left
    np.testing.assert_array_equal(found.numbers, total(numbers, left), strict=True)
    assert list(found.rejected) == [2]
    assert re.search(sentence, found.rejected[2])


def low_bit(client, bit=16):
    """Changes a low bit of the share of a client's secret; the last three of a key do not count."""

    def change(message):
        ids, rows = message.arrays
        wrong = rows.copy()
        wrong[[*ids].index(client), 0] ^= bit
        return message._replace(arrays=(ids, wrong))

    return change


@pytest.mark.parametrize("client", [1, 4])
def test_a_false_share_is_seen_and_its_client_left_out_where_enough_are_left(client):
    """Client 1 has survived, and client 4 not: a share of its seed, and one of its key."""
    numbers = numbers_of(range(5))
    for liar in range(4):
        ask = changed(Network(sessions_of(numbers), {NUMBERS: (4,)}), REVEAL, liar, low_bit(client))
        found = secure_total(ask, terms_for(numbers), AUTHORITY)
        np.testing.assert_array_equal(found.numbers, total(numbers, range(4)))
        # Three of four shares are taken, so that the last is not.
        assert list(found.rejected) == ([liar] if liar < 3 else [])
        assert all(f"false share of a secret of client {client}" in text for text in found.rejected.values())


def test_false_shares_by_more_than_can_be_left_out_lose_the_sum_in_a_sentence():
    numbers = numbers_of(range(5))
    two = changed(Network(sessions_of(numbers), {REVEAL: (4,)}), REVEAL, 0, low_bit(1))

    def ask(asks):
        answers = dict(two(asks))
        if 2 in answers and asks[2].kind == REVEAL:
            answers[2] = low_bit(1, 32)(answers[2])  # with equal bits, two can cancel
        return answers

    with pytest.raises(EvenhandError, match=r"tag 7.* a secret of client 1 are false.*The sum is lost"):
        secure_total(ask, terms_for(numbers), AUTHORITY)


def test_two_clients_with_false_shares_of_several_clients_are_left_out():
    numbers = numbers_of(range(6))  # four of six
    first = changed(Network(sessions_of(numbers)), REVEAL, 0, low_bit(3))

    def ask(asks):
        answers = dict(first(asks))
        if asks[1].kind == REVEAL:
            answers[1] = low_bit(5)(answers[1])
        return answers

    found = secure_total(ask, terms_for(numbers), AUTHORITY)
    np.testing.assert_array_equal(found.numbers, total(numbers, range(6)))
    assert set(found.rejected) == {0, 1}


def test_answers_of_clients_that_were_not_asked_do_not_count():
    numbers = numbers_of(range(4))
    network = Network(sessions_of(numbers), {OFFER: (3,)})

    def ask(asks):
        answers = network.ask(asks)
        return {**answers, 3: next(iter(answers.values()))} if asks[0].kind != OFFER else answers

    assert secure_total(ask, terms_for(numbers), AUTHORITY).clients == (0, 1, 2)


# --- the sums of aggregators ------------------------------------------------------------------------------------------


M = 5
SHAPES = {"w": (3, 4), "b": (4,)}


def deltas(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(M, *shape)).astype(np.float32) for name, shape in SHAPES.items()}


def tails():
    weights: Any = np.abs(np.random.default_rng(2).normal(size=M)).astype(np.float32)
    return _Tail(deltas(1), weights)


def losses():
    return np.array([0.1, 3.0, 7.9, 2.0, 5.0], np.float32)


def noisy_counts(bits):
    return histogram(8, largest=8.0, sigma=2.0, scale=4)._replace(bits=bits)


SUMS = {
    "secure(mean)": (eh.aggregators.secure(eh.aggregators.mean()), deltas),
    "secure(mean, bits=32)": (
        eh.aggregators.secure(eh.aggregators.mean(), bits=32, largest=8.0, cohort=8),
        deltas,
    ),
    "secure(mean), added without masks": (
        eh.aggregators.secure(eh.aggregators.mean()).unmasked,
        deltas,
    ),
    "secure(geometric_median)": (eh.aggregators.secure(eh.aggregators.geometric_median(passes=3)), deltas),
    "secure(geometric_median, bits=32)": (
        eh.aggregators.secure(eh.aggregators.geometric_median(passes=2), bits=32, largest=8.0, cohort=8),
        deltas,
    ),
    "secure(centered_clipping)": (eh.aggregators.secure(eh.aggregators.centered_clipping(1.0)), deltas),
    "secure_delta_fl": (eh.aggregators.secure(_sums()), tails),
    "quantile_sum": (quantile_sum(noisy_counts(16), theta=0.5), losses),
    "quantile_sum, 12 bits": (quantile_sum(noisy_counts(12), theta=0.5), losses),
    "quantile_sum, 32 bits": (quantile_sum(noisy_counts(32), theta=(0.5, 0.2)), losses),
    "discrete_mean": (discrete_mean(1.0, noise_multiplier=0.5, rate=1.0, fewest=3), deltas),
}


def one(tree, k):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[k]), tree)


@pytest.fixture(scope="module", params=SUMS, ids=str)
def summed(request):
    """An aggregator, and the totals of its passes: over the network, and as the simulation adds."""
    aggregator, make = SUMS[request.param]
    uploads = make()
    weights = jnp.arange(1.0, M + 1.0) / 4
    state = aggregator.init(one(uploads, 0), M)
    keys = jax.random.split(jax.random.key(3), M)
    present = np.array([True, True, False, True, True])
    pairs = []
    for number in range(aggregator.passes):
        public = aggregator.publish(state)
        lifted = [
            aggregator.lift(
                Upload(one(uploads, k), weights[k], jnp.float32(0.0)),
                public,
                jax.random.fold_in(keys[k], number),
            )
            for k in range(M)
        ]
        form = sum_form(aggregator.summation, lifted[0])
        numbers = {k: form.flat(lifted[k]) for k in range(M)}
        network = Network(sessions_of(numbers, WHEN._replace(number=number)), {NUMBERS: (2,)})
        found = secure_total(network.ask, terms_for(numbers, WHEN._replace(number=number)), AUTHORITY)
        assert found.clients == (0, 1, 3, 4) and (len(found.numbers), 8 * found.numbers.itemsize) == (
            form.size,
            form.bits,
        )
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lifted)
        if aggregator.summation.add is None:
            expected = jax.tree.map(lambda leaf: jnp.sum(leaf[present], axis=0), stacked)
        else:
            expected = aggregator.summation.add(stacked, jnp.asarray(present), jax.random.key(9))
        pairs.append((form.tree(found.numbers), expected, state))
        _, state = aggregator.lower(expected, state, jax.random.key(4))
    return aggregator, pairs, network


def test_the_sum_over_the_network_is_that_of_the_simulation_to_the_bit(summed):
    aggregator, pairs, _ = summed
    kept = aggregator.summation.bits
    for found, expected, state in pairs:
        for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            other = secure.carried(other) if aggregator.summation.in_limbs else other & np.uint32(2**kept - 1)
            np.testing.assert_array_equal(leaf, np.asarray(other), strict=True)
            assert np.any(leaf)
        # And so is all that the server makes of it.
        lowered = [aggregator.lower(sums, state, jax.random.key(4)) for sums in (found, expected)]
        for leaf, other in zip(*map(jax.tree.leaves, lowered), strict=True):
            np.testing.assert_array_equal(leaf, other)


def test_words_of_few_bits_are_filled_so_that_the_sum_hides_how_often_it_wraps_around():
    aggregator = quantile_sum(noisy_counts(12), theta=0.5)
    form = sum_form(aggregator.summation, (np.zeros(2, np.uint32), np.uint32(0)))
    first, second = (form.flat((np.array([4095, 5], np.uint32), np.uint32(1))) for _ in range(2))
    assert (first & 4095).tolist() == (second & 4095).tolist() == [4095, 5, 1]
    assert np.all(first >> 12 != second >> 12)  # by chance with 3 / 2**20
    found = form.tree(first + second)
    assert found[0].tolist() == [4094, 10] and found[1] == 2
    exact = sum_form(
        discrete_mean(1.0, noise_multiplier=0.5, rate=1.0, fewest=3).summation, np.zeros(2, np.uint32)
    )
    assert exact.flat(np.array([2**32 - 1, 5], np.uint32)).tolist() == [2**32 - 1, 5]


def test_limbs_that_were_not_carried_are_the_same_number():
    form = sum_form(eh.aggregators.secure(eh.aggregators.mean()).summation, np.zeros((1, 4), np.uint32))
    assert form.flat(np.array([[2**16 + 3, 1, 0, 0]], np.uint32)).tolist() == [3 + 2 * 2**16]


@pytest.mark.parametrize(
    ("summation", "like", "sentence"),
    [
        (
            eh.aggregators.mean().summation,
            np.zeros(2, np.float32),
            "adds real numbers, so its sum cannot be secure",
        ),
        (by_client().summation, np.zeros(2, np.float32), "lets the server see what each client sends"),
        (SUMS["discrete_mean"][0].summation, np.zeros(2, np.float32), "needs lifted arrays of uint32"),
        (
            SUMS["secure(mean)"][0].summation,
            (np.zeros((1, 4), np.uint32), np.zeros((1, 2), np.uint32)),
            "do not mix bits=32 and bits=64",
        ),
    ],
)
def test_sums_that_cannot_be_secure_are_refused_in_a_sentence(summation, like, sentence):
    with pytest.raises(EvenhandError, match=sentence):
        sum_form(summation, like)


def test_the_direction_of_a_median_in_three_passes_is_that_of_the_simulation():
    aggregator, _ = SUMS["secure(geometric_median)"]
    uploads = Upload(deltas(), jnp.ones(M), jnp.zeros(M))
    noise, key = jax.random.split(jax.random.key(5), M), jax.random.key(6)
    begin = aggregator.init(one(uploads.delta, 0), M)
    expected, _ = reduce_uploads(aggregator, uploads, jnp.ones(M, bool), begin, key, noise)
    state = begin
    for number in range(3):
        public = aggregator.publish(state)
        lifted = [
            aggregator.lift(one(uploads, k), public, jax.random.fold_in(noise[k], number)) for k in range(M)
        ]
        form = sum_form(aggregator.summation, lifted[0])
        found, _ = run({k: form.flat(lifted[k]) for k in range(M)})
        direction, state = aggregator.lower(form.tree(found.numbers), state, jax.random.fold_in(key, number))
    for leaf, other in zip(jax.tree.leaves(direction), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-6)
    assert float(eh.tree.norm(direction)) > 0.01


# --- what reaches the server ------------------------------------------------------------------------------------------


def forms_of(lifted, upload):
    """A client's numbers in all forms: as it has them, in limbs, and as whole numbers."""
    numbers = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(upload.delta)])
    weighted = np.float32(upload.weight) * numbers
    limbs = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(lifted)])
    words = sum_form(SUMS["secure(mean)"][0].summation, lifted).flat(lifted)
    doubles = {"double": numbers.astype(np.float64), "weighted double": weighted.astype(np.float64)}
    return {"float": numbers, "weighted float": weighted, "limbs": limbs, "words": words, **doubles}


def lifted_by(aggregator, k):
    upload = Upload(one(deltas(), k), jnp.float32(0.7 + k), jnp.float32(0.0))
    return aggregator.lift(upload, (), jax.random.key(k)), upload


def transcript_of(numbers):
    found, network = run(numbers)
    np.testing.assert_array_equal(found.numbers, total(numbers, numbers))
    return b"".join(text for _, _, text in network.up)


def test_no_number_of_a_client_is_in_what_reaches_the_server():
    aggregator = SUMS["secure(mean)"][0]
    lifted = {k: lifted_by(aggregator, k) for k in range(M)}
    form = sum_form(aggregator.summation, lifted[0][0])
    transcript = transcript_of({k: form.flat(tree) for k, (tree, _) in lifted.items()})
    assert len(transcript) > M * 8 * form.size
    for tree, upload in lifted.values():
        assert traced(forms_of(tree, upload), transcript) == {}


def test_the_search_finds_numbers_that_are_there(monkeypatch):
    """The control: without masks, and in a plain sum."""
    aggregator = SUMS["secure(mean)"][0]
    tree, upload = lifted_by(aggregator, 0)
    plain = eh.aggregators.mean().lift(upload, (), jax.random.key(0))
    in_clear = encode(Packet("work", {}, tuple(map(np.asarray, jax.tree.leaves(plain)))))
    assert "weighted float" in traced(forms_of(tree, upload), in_clear)
    in_limbs = encode(Packet("work", {}, tuple(map(np.asarray, jax.tree.leaves(tree)))))
    assert "limbs" in traced(forms_of(tree, upload), in_limbs)
    form = sum_form(aggregator.summation, tree)
    monkeypatch.setattr(secure, "mask", lambda plan, me, secret, offers, numbers: numbers)
    monkeypatch.setattr(secure, "recover", lambda plan, offers, masked, revealed: total(masked, masked))
    numbers = {k: form.flat(lifted_by(aggregator, k)[0]) for k in range(M)}
    assert "words" in traced(forms_of(tree, upload), transcript_of(numbers))


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [2, 7])
@pytest.mark.parametrize("bits", [32, 64])
def test_the_cost_is_the_bytes_of_the_messages(m, bits):
    numbers = numbers_of(range(m), size=300, bits=bits)
    _, network = run(numbers)
    cost = sum_cost(terms_for(numbers))
    for client in numbers:
        assert cost.up == sum(len(text) for by, _, text in network.up if by == client)
        assert cost.down == sum(len(text) for to, _, text in network.down if to == client)
    assert cost.plain == 1200
