"""The protocol of secure sums: exact for whoever survives, uniform to the server, and silent where too few survive."""

import itertools
import re

import numpy as np
import pytest
from scipy import stats

from evenhand import EvenhandError
from evenhand.secure import (
    TooFewError,
    advertise,
    join,
    mask,
    plan,
    recover,
    reveal,
    run_protocol,
    secure_sum,
    share,
    split,
)

TINY = 1e-4
"""A probability at which chance is ruled out; the draws are fixed."""


NUMBERS_OF_4 = {k: np.array([k], np.uint64) for k in range(4)}


def source(seed):
    return np.random.default_rng(seed).bytes


def words(rng, clients, numbers, bits):
    return {k: rng.integers(0, 2**bits, numbers, dtype=f"uint{bits}") for k in clients}


def total(numbers, but=()):
    return sum((each for k, each in numbers.items() if k not in but), start=0 * next(iter(numbers.values())))


def trial(seed):
    """A random sum with random losses; whether enough were left, and the sum was right."""
    rng = np.random.default_rng(seed)
    bits, m = int(rng.choice([32, 64])), int(rng.integers(2, 9))
    ids = rng.choice(1000, m, replace=False).tolist()
    degrees = [m - 1, *range(2, m - 1, 2)]
    degree = int(rng.choice(degrees))
    threshold = int(rng.integers((degree + 1) // 2 + 1, degree + 2))
    numbers = words(rng, ids, int(rng.integers(1, 6)), bits)
    dropped = [k for k in ids if rng.random() < 0.15]
    silent = [k for k in ids if rng.random() < 0.15]
    try:
        found = secure_sum(
            numbers,
            bits=bits,
            dropped=dropped,
            silent=silent,
            neighbours=degree,
            threshold=threshold,
            random=rng.bytes,
        )
    except TooFewError:
        assert dropped or silent
        return False
    np.testing.assert_array_equal(found, total(numbers, dropped))
    return True


def test_sums_are_exact_to_the_bit_whoever_is_lost(thorough):
    trials = 10_000 if thorough else 400
    recovered = sum(map(trial, range(trials)))
    assert 0.3 * trials < recovered < trials  # both ends were seen


def test_sums_of_negative_numbers_and_around_the_modulus():
    assert secure_sum({1: [5, -3], 2: [7, 11], 3: [-20, 4]}).view(np.int64).tolist() == [-8, 12]
    top = np.array([2**32 - 1], np.uint32)
    assert secure_sum({1: top, 2: top, 3: top}, bits=32).tolist() == [2**32 - 3]


@pytest.mark.parametrize("bits", [32, 64])
def test_long_vectors_are_masked_piece_by_piece_and_recovered_by_several_threads(bits):
    rng = np.random.default_rng(0)
    numbers = words(
        rng, range(5), 300_001, bits
    )  # more than a chunk of the stream, and not a whole number of them
    found = secure_sum(numbers, bits=bits, dropped=[3], silent=[1], random=source(1))
    np.testing.assert_array_equal(found, total(numbers, [3]))


def test_graphs_with_few_neighbours_recover_the_sum_and_cost_less():
    rng = np.random.default_rng(0)
    numbers = words(rng, range(60), 3, 64)
    found = secure_sum(numbers, dropped=[5, 17, 40], silent=[2, 30], random=source(2))
    np.testing.assert_array_equal(found, total(numbers, [5, 17, 40]))
    few, all_others = plan(range(60)), plan(range(60), neighbours=59)
    assert {len(near) for near in few.neighbours.values()} == {18}
    assert few.cost(3).up < all_others.cost(3).up / 3
    assert all(k in few.neighbours[other] for k, near in few.neighbours.items() for other in near)


def test_neighbours_are_those_beside_a_client_in_the_order():
    order = np.random.default_rng(0).permutation(20).tolist()
    near = plan(range(100, 120), neighbours=4, order=order).neighbours
    for place, i in enumerate(order):
        beside = {100 + order[(place + step) % 20] for step in (-2, -1, 1, 2)}
        assert set(near[100 + i]) == beside


def bytes_seen(masked):
    return np.frombuffer(b"".join(np.ascontiguousarray(each).tobytes() for each in masked), np.uint8)


def uniform(values):
    """The p-value of equally frequent bytes."""
    return stats.chisquare(np.bincount(values, minlength=256)).pvalue


@pytest.mark.parametrize("bits", [32, 64])
def test_what_the_server_sees_of_a_client_is_uniform_and_without_masks_it_is_not(bits):
    rng = np.random.default_rng(bits)
    small = {k: rng.integers(0, 1000, 400, dtype=f"uint{bits}") for k in range(4)}
    seen = [
        run_protocol(plan(range(4), bits=bits), small, random=source((bits, i))).masked for i in range(40)
    ]
    for k in range(4):
        assert uniform(bytes_seen([each[k] for each in seen])) > TINY
        # The same input is hidden anew in each sum: the differences of two sums are uniform, too.
        apart = [a[k] - b[k] for a, b in itertools.pairwise(seen)]
        assert uniform(bytes_seen(apart)) > TINY
    assert uniform(bytes_seen(small.values())) < TINY
    # All but one client's masks leave that one's own mask: what two conspirators cannot take off.
    pairs_only = [a[0] + a[1] - small[0] - small[1] for a in seen]
    assert uniform(bytes_seen(pairs_only)) > TINY


def test_a_sum_of_all_masked_numbers_hides_the_sum_until_seeds_are_revealed():
    numbers = {k: np.full(4000, k, np.uint64) for k in range(4)}
    seen = run_protocol(plan(range(4)), numbers, random=source(0))
    assert uniform(bytes_seen([total(seen.masked)])) > TINY
    np.testing.assert_array_equal(recover(*seen), np.full(4000, 6))


def test_too_few_survivors_raise_on_the_clients_side_and_on_the_servers():
    numbers = words(np.random.default_rng(0), range(5), 2, 64)
    announced = plan(range(5))  # three answers of five
    with pytest.raises(TooFewError, match="2 have sent their numbers, and 3 are needed: nobody reveals"):
        run_protocol(announced, numbers, dropped=[0, 1, 2])
    seen = run_protocol(announced, numbers, dropped=[0], silent=[1, 2], random=source(3))
    with pytest.raises(TooFewError, match="2 were revealed, and 3 are needed"):
        recover(*seen)
    with pytest.raises(TooFewError, match="No client"):
        recover(announced, seen.offers, {}, {})
    known = {k: advertise(source(k)) for k in range(5)}
    offers = {k: known[k][1] for k in (0, 1)}
    with pytest.raises(TooFewError, match="Of client 0 and its 4 neighbours, 2 are there, and 3 are needed"):
        share(announced, 0, known[0][0], offers, source(9))


def test_survivors_in_groups_without_masks_between_them_reveal_nothing():
    """The server would learn the sum of each group: of clients 1 and 2 of eight in a circle, without 0 and 3."""
    numbers = words(np.random.default_rng(0), range(60), 2, 64)
    eight = {k: numbers[k] for k in range(8)}
    with pytest.raises(TooFewError, match="fall into groups without masks"):
        run_protocol(plan(eight, neighbours=2), eight, dropped=[0, 3])
    seen = run_protocol(plan(eight, neighbours=4), eight, dropped=[0, 3])
    np.testing.assert_array_equal(recover(*seen), total(eight, [0, 3]))
    arcs = [*range(9), *range(19, 28)]
    with pytest.raises(TooFewError, match="fall into groups without masks"):
        run_protocol(plan(range(60)), numbers, dropped=arcs)
    np.testing.assert_array_equal(
        recover(*run_protocol(plan(range(60)), numbers, dropped=arcs[1:])), total(numbers, arcs[1:])
    )


def test_one_neighbourhood_with_too_few_keeps_all_clients_from_revealing():
    numbers = words(np.random.default_rng(0), range(12), 1, 64)
    announced = plan(range(12), neighbours=2)
    known = {k: advertise(source(k)) for k in range(12)}
    offers = {k: offer for k, (_, offer) in known.items()}
    shares = {k: share(announced, k, known[k][0], offers, source(20 + k)) for k in offers}
    alive = set(range(12)) - {6, 8}  # client 7 is alone between them
    for k in alive:
        near = {other: shares[other][k] for other in (*announced.neighbours[k], k)}
        with pytest.raises(TooFewError, match="nobody reveals"):
            reveal(announced, k, known[k][0], offers, near, alive)
    masked = {k: mask(announced, k, known[k][0], offers, numbers[k]) for k in alive}
    with pytest.raises(TooFewError, match="nobody reveals"):
        recover(announced, offers, masked, {})


def test_a_client_masks_nothing_among_too_few_and_shares_nothing_by_a_weak_plan():
    announced = plan(range(5))
    secret, offer = advertise(source(0))
    with pytest.raises(TooFewError, match="1 are there, and 3 are needed"):
        mask(announced, 0, secret, {0: offer}, np.zeros(1, np.uint64))
    offers = {k: advertise(source(k))[1] for k in range(5)}
    assert len(share(announced, 0, secret, offers, source(9))) == 5
    for weak in (
        announced._replace(threshold=1),
        announced._replace(threshold=6),
        announced._replace(neighbours={**announced.neighbours, 3: (1, 2, 4)}),
    ):
        with pytest.raises(EvenhandError, match="does not protect client 0"):
            share(weak, 0, secret, offers, source(9))


def test_the_cost_is_the_bytes_of_what_was_sent():
    numbers = words(np.random.default_rng(0), range(20), 3, 64)
    announced = plan(range(20))
    known = {k: advertise(source(k)) for k in range(20)}
    offers = {k: offer for k, (_, offer) in known.items()}
    sealed = share(announced, 4, known[4][0], offers, source(40))
    seen = run_protocol(announced, numbers, random=source(0))
    answer = seen.revealed[4]
    up = [*offers[4], *(each for k, each in sealed.items() if k != 4), seen.masked[4].tobytes()]
    up += [*answer.seeds.values(), *answer.keys.values()]
    assert announced.cost(3).up == sum(map(len, up))


def test_numbers_without_shares_or_of_another_length_are_refused_by_the_server():
    numbers = words(np.random.default_rng(0), range(5), 2, 64)
    seen = run_protocol(plan(range(5)), numbers, random=source(0))
    offers = {k: offer for k, offer in seen.offers.items() if k != 2}
    with pytest.raises(EvenhandError, match="Client 2 has sent numbers, but no shares"):
        recover(seen.plan, offers, seen.masked, seen.revealed)
    short = {**seen.masked, 2: seen.masked[2][:1]}
    with pytest.raises(EvenhandError, match="different numbers of numbers"):
        recover(seen.plan, seen.offers, short, seen.revealed)


def test_who_has_not_shared_is_left_out_of_the_masks():
    rng = np.random.default_rng(0)
    announced = plan(range(6))
    numbers = words(rng, range(6), 4, 64)
    known = {k: advertise(source(k)) for k in range(5)}  # client 5 never comes
    offers = {k: offer for k, (_, offer) in known.items()}
    shares = {k: share(announced, k, known[k][0], offers, source(10 + k)) for k in offers}
    masked = {k: mask(announced, k, known[k][0], offers, numbers[k]) for k in offers if k != 2}
    revealed = {
        k: reveal(announced, k, known[k][0], offers, {j: shares[j][k] for j in offers}, masked)
        for k in masked
    }
    np.testing.assert_array_equal(recover(announced, offers, masked, revealed), total(numbers, [2, 5]))


def test_nobody_reveals_both_secrets_of_a_client():
    numbers = words(np.random.default_rng(0), range(5), 2, 64)
    seen = run_protocol(plan(range(5)), numbers, dropped=[4])
    for client, answer in seen.revealed.items():
        assert set(answer.seeds) == {0, 1, 2, 3}, client
        assert set(answer.keys) == {4}


def test_shares_that_were_changed_on_their_way_do_not_open():
    announced = plan(range(3))
    known = {k: advertise(source(k)) for k in range(3)}
    offers = {k: offer for k, (_, offer) in known.items()}
    shares = {k: share(announced, k, known[k][0], offers, source(10 + k)) for k in range(3)}
    sealed = {0: shares[0][0], 1: shares[1][0], 2: shares[2][0][:-1] + bytes([shares[2][0][-1] ^ 1])}
    with pytest.raises(EvenhandError, match="changed on their way"):
        reveal(announced, 0, known[0][0], offers, sealed, range(3))
    with pytest.raises(EvenhandError, match="changed on their way"):  # nothing at all
        reveal(announced, 0, known[0][0], offers, {**sealed, 2: b""}, range(3))
    with pytest.raises(EvenhandError, match="changed on their way"):  # another's
        reveal(
            announced, 0, known[0][0], offers, {0: shares[0][0], 1: shares[1][2], 2: shares[2][0]}, range(3)
        )


def test_a_clients_own_message_handed_back_as_its_neighbours_does_not_open():
    announced = plan(range(3))
    known = {k: advertise(source(k)) for k in range(3)}
    offers = {k: offer for k, (_, offer) in known.items()}
    shares = {k: share(announced, k, known[k][0], offers, source(10 + k)) for k in range(3)}
    honest = {k: shares[k][0] for k in range(3)}
    assert set(reveal(announced, 0, known[0][0], offers, honest, range(3)).seeds) == {0, 1, 2}
    with pytest.raises(EvenhandError, match="are another's"):
        reveal(announced, 0, known[0][0], offers, {**honest, 1: shares[0][1]}, range(3))


def test_shares_of_another_key_that_fit_together_are_seen():
    numbers = words(np.random.default_rng(0), range(5), 2, 64)
    seen = run_protocol(plan(range(5)), numbers, dropped=[4], random=source(0))
    points = [client + 1 for client in seen.revealed]
    other = split(source(1)(32), points, seen.plan.threshold, source(2))
    false = {client: answer._replace(keys={4: other[client + 1]}) for client, answer in seen.revealed.items()}
    with pytest.raises(EvenhandError, match="Shares of the key of client 4 are false"):
        recover(seen.plan, seen.offers, seen.masked, false)


def test_a_false_share_of_a_key_is_seen():
    numbers = words(np.random.default_rng(0), range(5), 2, 64)
    seen = run_protocol(plan(range(5)), numbers, dropped=[4], random=source(0))
    answer = seen.revealed[0]
    false = answer._replace(keys={4: answer.keys[4][:-2] + b"\0\0"})
    with pytest.raises(EvenhandError, match=r"false|do not give a secret"):
        recover(seen.plan, seen.offers, seen.masked, {**seen.revealed, 0: false})


def test_clients_draw_new_secrets_each_time():
    first, second = advertise(source(0)), advertise(source(1))
    assert first != second
    assert len({*first[0], *second[0]}) == 6


def test_any_threshold_of_shares_give_the_secret_and_fewer_are_uniform():
    secret, points = b"\x00" * 16, range(1, 8)
    shares = split(secret, points, 4, source(0))
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = rng.choice(points, 4, replace=False).tolist()
        assert join({x: shares[x] for x in chosen}, 16) == secret
        few = {x: shares[x] for x in chosen[:3]}
        with pytest.raises(EvenhandError, match="do not give a secret"):
            join(few, 16)
    # The first 64 bytes of three shares of the same secret, over many splittings.
    drawn = [split(secret, points, 4, source(i)) for i in range(150)]
    assert (
        uniform(np.frombuffer(b"".join(each[x][:64] for each in drawn for x in (1, 2, 3)), np.uint8)) > TINY
    )
    alone = split(secret, points, 1, source(0))
    assert set(alone.values()) == {secret.ljust(66, b"\0")}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: plan([1]), "at least two different clients; there are 1"),
        (lambda: plan([1, 1, 2]), "different clients"),
        (lambda: plan(range(5), bits=48), "give 32 or 64"),
        (lambda: plan(range(6), neighbours=3), "an even number below 6, or 5"),
        (lambda: plan(range(6), neighbours=6), "an even number below 6, or 5"),
        (lambda: plan(range(6), threshold=3), "more than half of the 6 who keep"),
        (lambda: plan(range(5), threshold=6), "no more than all"),
        (lambda: plan(range(4), order=[0, 1, 2, 2]), "give each of 0 to 3 once"),
        (lambda: plan(range(4), order=[0, 1, 2, 9]), "=9: give a whole number from 0 to 3"),
        (lambda: plan(range(4), order=[0, 1, 2, -1]), "=-1: give a whole number from 0 to 3"),
        (lambda: plan(range(6), threshold=4.5), "threshold"),  # pyright: ignore[reportArgumentType]
        (lambda: secure_sum({1: [1], 2: [1]}, dropped=[3]), "client 3 is to vanish"),
        (lambda: run_protocol(plan(range(5)), NUMBERS_OF_4), "Client 4 is .* has no numbers: give them, or"),
        (
            lambda: run_protocol(plan(range(3)), NUMBERS_OF_4),
            "^numbers names client 3, which is not in the plan",
        ),
        (lambda: run_protocol(plan(range(4)), NUMBERS_OF_4, dropped=[0, 77]), "^dropped names client 77, "),
        (lambda: run_protocol(plan(range(4)), NUMBERS_OF_4, silent=[77]), "^silent names client 77, "),
        (lambda: run_protocol(plan(range(4)), [NUMBERS_OF_4[0]] * 4), "^numbers=.* give a value such as"),  # pyright: ignore[reportArgumentType]
        (lambda: secure_sum([[1], [2]]), "^numbers=.* give a value such as"),  # pyright: ignore[reportArgumentType]
        (lambda: plan(range(3), order=[0, 0, 1]), "each of 0 to 2 once"),
        (lambda: split(b"x", [1, 2], 3, source(0)), "give 1 to 2"),
        (lambda: split(b"x", [0, 2], 1, source(0)), "from 1 on"),
        (lambda: split(bytes(65), [1, 2], 2, source(0)), "more than 64"),
        (lambda: secure_sum({1: [0.5], 2: [1.0]}), "whole numbers"),
        (lambda: secure_sum({1: [1], 2: [1, 2]}), "as many for each"),
        (
            lambda: mask(
                plan([1, 2]),
                1,
                advertise(source(0))[0],
                {k: advertise(source(k))[1] for k in (1, 2)},
                np.zeros(1, np.uint32),
            ),
            re.escape("uint32 of shape (1,): give uint64 (n,)"),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(EvenhandError, match=sentence):
        make()


def test_a_dropped_client_of_the_plan_needs_no_numbers():
    seen = run_protocol(plan(range(5)), NUMBERS_OF_4, dropped=[4], silent=[3])
    assert recover(*seen).tolist() == [6]


def setting(ids=(1, 2, 3, 4)):
    """The state of a sum before numbers are sent: the plan, secrets, offers and who got which sealed shares."""
    made = plan(ids)
    pairs = {k: advertise(source(k)) for k in ids}
    offers = {k: offer for k, (_, offer) in pairs.items()}
    secrets = {k: secret for k, (secret, _) in pairs.items()}
    sent = {k: share(made, k, secrets[k], offers, source(k)) for k in ids}
    sealed = {k: {other: sent[other][k] for other in ids} for k in ids}
    return made, secrets, offers, sealed


def test_messages_that_do_not_fit_the_plan_are_refused_in_a_sentence():
    """Missing shares, unknown clients and unknown neighbours, which a faulty server may send."""
    made, secrets, offers, sealed = setting()
    numbers = {k: np.full(2, k, np.uint64) for k in made.clients}
    masked = {k: mask(made, k, secrets[k], offers, numbers[k]) for k in made.clients}
    answers = {k: reveal(made, k, secrets[k], offers, sealed[k], masked) for k in made.clients}
    assert recover(made, offers, masked, answers).tolist() == [10, 10]

    lacking = {k: text for k, text in sealed[1].items() if k != 3}
    with pytest.raises(EvenhandError, match="Client 1 got no share from client 3"):
        reveal(made, 1, secrets[1], offers, lacking, masked)
    more = {**offers, 9: offers[1]}
    strange = made._replace(neighbours={**made.neighbours, 1: (2, 3, 9)})
    calls = [
        lambda: share(made, 1, secrets[1], more, source(0)),
        lambda: share(made, 9, secrets[1], more, source(0)),
        lambda: share(strange, 1, secrets[1], more, source(0)),
        lambda: mask(made, 1, secrets[1], more, numbers[1]),
        lambda: mask(made, 9, secrets[1], more, numbers[1]),
        lambda: reveal(made, 1, secrets[1], more, sealed[1], masked),
        lambda: reveal(made, 9, secrets[1], offers, sealed[1], masked),
        lambda: recover(made, more, masked, answers),
        lambda: recover(made, offers, masked, {**answers, 9: answers[1]}),
    ]
    for call in calls:
        with pytest.raises(EvenhandError, match="Client 9 is not in the plan of this sum"):
            call()
    alone = {k: offer for k, offer in offers.items() if k != 1}
    for call in (
        lambda: share(made, 1, secrets[1], alone, source(0)),
        lambda: mask(made, 1, secrets[1], alone, numbers[1]),
    ):
        with pytest.raises(EvenhandError, match="Client 1 has made no offer"):
            call()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(EvenhandError, match=r"pip install 'evenhand\[secure\]'"):
        advertise(source(0))
