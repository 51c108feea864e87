"""A server whose clients are away, lie or send garbage, and that is killed itself: training goes on, as is known."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import rounds
from evenhand.network.exchanging import Patience
from evenhand.network.node import Allowed
from evenhand.streams import Purpose, keys_of, stream
from evenhand.wire.messages import decode, encode
from tests.unit.network.sites import (
    CENTRAL,
    DATA,
    MODEL,
    NOISY,
    SCAFFOLD,
    WORK,
    epsilon_of_central,
    random_bytes,
)
from tests.unit.network.trials import Killed, Lost, Trial, assert_same, damaged, differ, packet, share_phases

agg = eh.aggregators
FEDAVG = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=1))
"""One step of gradient descent on all examples of a client."""

TWO_EXCHANGES = eh.personalization.ditto(
    eh.algorithms.feddane(WORK, mu=0.1, aggregator=agg.centered_clipping(0.1)), WORK, lam=0.5
)
"""Server and aggregators remember something from the first exchange of a round, and clients keep models."""

LOSSES = eh.algorithms.fedavg(WORK, aggregator=agg.loss_powers(2.0))
"""Clients report before they work."""

STACKED = eh.algorithms.fedavg(WORK, aggregator=agg.coordinate_median())
METHODS = {
    "sums in passes": SCAFFOLD,
    "two exchanges": TWO_EXCHANGES,
    "reports first": LOSSES,
    "uploads one by one": STACKED,
}
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def _shared(monkeypatch):
    share_phases(monkeypatch)


@cache
def undisturbed(name, **how):
    """The run of a method to which nothing happens."""
    trial = Trial(METHODS[name], **how).run()
    assert trial.log == [] and trial.client_log == []
    return trial, trial.state


def cohorts(trial):
    """The clients drawn for each round's last exchange, as the server draws them."""
    algorithm, terms = trial.server.agreed.algorithm, trial.terms
    sizes, phase = jnp.asarray(DATA.train.sizes, jnp.int32), len(algorithm.phases) - 1
    keys = rounds.roots(algorithm, trial.keys)
    drawn = [rounds.cohort(algorithm, None, sizes, terms.slots, keys, t, phase) for t in range(terms.rounds)]
    return [[int(k) for k, here in zip(c.ids, c.present, strict=True) if here] for c in drawn]


# --- clients that are away --------------------------------------------------------------------------------------------


def away_in(client, rounds_away):
    """Systems in which a client drops out of these rounds, of one exchange each."""
    shared = keys_of(1).shared
    keys = [jax.random.key_data(stream(shared, Purpose.STRAGGLERS, t, 0)) for t in rounds_away]

    def draw(key, cohort, keep_partial):
        is_now = jnp.any(jnp.stack([jnp.all(jax.random.key_data(key) == words) for words in keys]))
        return cohort._replace(present=cohort.present & ~((cohort.ids == client) & is_now))

    return eh.systems.Systems(draw)


def without(client, rounds_away, kinds=("work", "pass", "report")):
    def through(who, message, answer):
        if who == client and message.kind in kinds and message.fields["round"] in rounds_away:
            raise Lost
        return answer()

    return through


def drawn_twice(trial):
    """A client that is drawn in two rounds, and these rounds."""
    times = {k: [t for t, drawn in enumerate(cohorts(trial)) if k in drawn] for k in range(DATA.num_clients)}
    return next((k, t) for k, t in times.items() if len(t) >= 3)


@pytest.mark.parametrize("name", ["sums in passes", "reports first", "uploads one by one"])
def test_an_absent_client_is_one_that_drops_out(name):
    """As in a simulation in which it does: of the round, its state, and the numbers of everybody else."""
    client, times = drawn_twice(undisturbed(name)[0])
    gone = times[:1]
    trial = Trial(METHODS[name])
    trial.through = without(client, gone)
    trial.run()
    simulated = eh.simulate(METHODS[name], DATA, rounds=4, cohort=3, seed=1, systems=away_in(client, gone))
    assert_same(simulated.state, trial.state, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(simulated.per_round["reported"], trial.result.per_round["reported"])
    assert differ(undisturbed(name)[1].server, trial.state.server)
    assert trial.events(client) == [("absent", f"Client {client}: it is not connected.")] * len(gone)
    absent = [float(t in gone) for t in range(4)]
    assert trial.result.per_round["absent"].tolist() == absent
    assert not trial.result.per_round["rejected"].any()
    assert trial.result.info["communication"]["left_out"] == len(gone)


def test_an_absent_client_counts_once_in_a_round_of_two_exchanges():
    client, (gone, *_) = drawn_twice(undisturbed("two exchanges")[0])
    trial = Trial(TWO_EXCHANGES)
    trial.through = without(client, [gone])
    result = trial.run().result
    assert len(trial.events(client)) == 2  # one for each exchange
    assert result.per_round["absent"].tolist() == [float(t == gone) for t in range(4)]
    sent = result.info["communication"]
    assert (sent["took_part"], sent["left_out"]) == (11, 1)


def test_an_absent_client_has_no_part_in_the_mean():
    """FedAvg in NumPy: a step of each client that is there, weighted by its examples."""
    client, (gone, *_) = drawn_twice(Trial(FEDAVG).run())
    trial = Trial(FEDAVG)
    trial.through = without(client, [gone])
    trial.run()
    params = {
        name: np.asarray(leaf, np.float64)
        for name, leaf in MODEL.init(stream(keys_of(1).shared, Purpose.INIT)).items()
    }
    train = DATA.train
    for t, drawn in enumerate(cohorts(trial)):
        sums, total = dict.fromkeys(params, 0.0), 0
        for k in drawn:
            if (t, k) == (gone, client):
                continue
            rows = slice(train.offsets[k], train.offsets[k + 1])
            x, y = train.x[rows].astype(np.float64), train.y[rows]
            scores = np.exp(x @ params["w"] + params["b"])
            errors = scores / scores.sum(1, keepdims=True) - np.eye(3)[y]
            sums["w"] += -0.1 * x.T @ errors
            sums["b"] += -0.1 * errors.sum(0)
            total += len(y)
        params = {name: leaf + sums[name] / total for name, leaf in params.items()}
    assert_same(params, {k: np.asarray(v, np.float64) for k, v in trial.result.params.items()}, atol=1e-6)


@every_method
def test_an_answer_that_is_lost_has_not_counted(name):
    """The client has worked, and its state is what it was: as if it had never been asked."""
    client, times = drawn_twice(undisturbed(name)[0])
    last = len(METHODS[name].phases) - 1

    def lose(when):
        def through(who, message, answer):
            is_it = who == client and message.fields.get("round") == times[0] and message.kind == "work"
            if is_it and message.fields["phase"] == last:
                if when == "after":
                    answer()
                raise Lost
            return answer()

        trial = Trial(METHODS[name])
        trial.through = through
        return trial.run().state

    assert_same(lose("before"), lose("after"))


def test_a_client_that_is_lost_between_passes_does_not_count():
    """Neither in the passes that follow, nor for its own state."""
    client, times = drawn_twice(undisturbed("sums in passes")[0])
    trial = Trial(SCAFFOLD)
    trial.through = without(client, times[:1], kinds=("pass",))
    trial.run()
    assert trial.result.last_round[client] == times[-1] + 1
    assert trial.result.per_round["reported"][times[0]] == 2
    assert trial.result.per_round["absent"][times[0]] == 1
    never = Trial(SCAFFOLD)
    never.through = without(client, times, kinds=("pass",))
    never.run()
    assert never.result.last_round[client] == 0
    initial = SCAFFOLD.init_client(MODEL.init(stream(keys_of(1).shared, Purpose.INIT)))
    assert_same(initial, jax.tree.map(lambda leaf: leaf[client], never.state.clients))


def test_nobody_answers():
    """The round changes nothing, where nobody must answer."""
    trial = Trial(FEDAVG, rounds=3, patience=Patience(min_answers=0, attempts=1, pause=0.0))
    trial.through = lambda client, message, answer: (
        answer() if message.kind in ("terms", "evaluate") else lost()
    )
    trial.run()
    assert_same(trial.result.params, MODEL.init(stream(keys_of(1).shared, Purpose.INIT)))
    assert trial.result.per_round["absent"].tolist() == [3.0, 3.0, 3.0]
    assert not trial.result.last_round.any()


def lost():
    raise Lost


# --- too few answers --------------------------------------------------------------------------------------------------


@every_method
def test_an_exchange_with_too_few_answers_is_repeated_under_a_new_tag(name):
    """To the same numbers, since nothing of the first attempt has counted."""
    reference, state = undisturbed(name)
    trial, fails = Trial(METHODS[name], patience=Patience(min_answers=3, attempts=5, pause=0.0)), [2]

    def through(client, message, answer):
        # Two clients of three are lost in the third round, each in another attempt.
        is_third = message.kind == "work" and message.fields["round"] == 2
        if is_third and fails and client == cohorts(trial)[2][len(fails)] and message.fields["phase"] == last:
            fails.pop()
            answer()  # it works, and its answer is lost
            raise Lost
        return answer()

    last = len(METHODS[name].phases) - 1
    trial.serve()
    trial.through = through
    for _ in trial.server.run():
        pass
    assert fails == []
    assert_same(state, trial.state)
    assert_tags_rise(trial)
    assert len(trial.tags) > len(reference.tags)
    assert trial.result.per_round["absent"].tolist() == [0.0] * 4


def test_a_server_gives_up_after_so_many_attempts():
    trial = Trial(FEDAVG, patience=Patience(min_answers=3, attempts=2, pause=0.0))
    trial.serve()
    gone = cohorts(trial)[1][0]
    trial.through = without(gone, [1])
    with pytest.raises(eh.EvenhandError) as error:
        trial.run()
    assert str(error.value) == (
        "Round 2 had 2 answers in 2 attempts, and 3 are needed: check why clients are absent, and run again "
        "to resume."
    )
    assert trial.events(gone) == [("absent", f"Client {gone}: it is not connected.")] * 2
    # And it does.
    trial.through = lambda client, message, answer: answer()
    assert_same(Trial(FEDAVG).run().state, trial.run().state)
    assert trial.server.is_resumed
    assert_tags_rise(trial)


def test_a_small_cohort_needs_all_of_its_clients_and_no_more():
    """Poisson cohorts are of any size, also of none."""
    method = eh.algorithms.fedavg(WORK, sampling=eh.sampling.poisson(0.2))
    patience = Patience(min_answers=5, attempts=1, pause=0.0)
    trial = Trial(method, rounds=6, patience=patience).run()
    assert trial.result.per_round["reported"].min() == 0 and trial.result.per_round["reported"].max() >= 1


def test_the_server_waits_for_so_many_seconds(monkeypatch):
    """Between attempts, and in each exchange."""
    waited, deadlines = [], []
    monkeypatch.setattr("time.sleep", waited.append)
    trial = Trial(FEDAVG, rounds=1, patience=Patience(deadline=7.0, min_answers=3, pause=0.25, attempts=3))
    ask = trial.ask
    trial.ask = lambda asks, deadline: deadlines.append(deadline) or ask(asks, deadline)
    trial.through = without(cohorts_of_first(trial), [0])
    with pytest.raises(eh.EvenhandError, match="in 3 attempts"):
        trial.run()
    assert waited == [0.25, 0.25]
    assert set(deadlines) == {7.0}


def cohorts_of_first(trial):
    trial.serve()
    return cohorts(trial)[0][0]


# --- a server that is killed ------------------------------------------------------------------------------------------


def assert_tags_rise(trial):
    """No client is ever sent a tag again, nor a smaller one."""
    for client in range(DATA.num_clients):
        tags = [tag for k, tag, _ in trial.tags if k == client]
        assert tags == sorted(set(tags)), f"client {client}"


def killed_at(name, number, **how):
    """A run whose server is killed in its ``number``-th question, once the first client has answered it, and starts
    again; and how many questions it had."""
    trial, asked = Trial(METHODS[name], **how), [0]

    def ask(asks, deadline):
        asked[0] += 1
        is_it, heard = asked[0] == number, list(asks)

        def through(client, message, answer):
            if is_it and client != heard[0]:
                raise Killed
            return answer()

        trial.through = through
        return Trial.ask(trial, asks, deadline)

    trial.ask = ask
    try:
        trial.run()
    except Killed:
        trial.run()
    return trial, asked[0]


def without_bytes(value):
    """Without the bytes of all messages, which a server that resumes sends more of."""
    return (
        {name: part for name, part in value.items() if name != "total"} if isinstance(value, dict) else value
    )


@pytest.mark.parametrize("name", ["sums in passes", "two exchanges", "reports first"])
def test_a_server_that_is_killed_ends_with_the_same_numbers(name):
    """In any of its questions: to one client that has answered, and to others that have not been asked."""
    how = {"rounds": 2, "eval_every": 1}
    reference, state = undisturbed(name, **how)
    reference = reference.result
    for number in range(1, killed_at(name, 0, **how)[1] + 1):
        trial, _ = killed_at(name, number, **how)
        assert_same(state, trial.state)
        assert_tags_rise(trial)
        assert trial.log == [] and trial.client_log == []
        result = trial.result
        # All evaluations are there, with the same numbers.
        for column, values in reference.history.items():
            if not column.startswith("bytes"):
                np.testing.assert_array_equal(values, result.history[column], err_msg=column)
        for column, values in reference.per_round.items():
            np.testing.assert_array_equal(values, result.per_round[column], err_msg=column)
        assert_same(reference.initial_loss, result.initial_loss)
        # And no work is counted twice.
        for part in ("rounds", "steps", "examples", "communication"):
            assert without_bytes(reference.info[part]) == without_bytes(result.info[part]), part
    assert number >= 8


def test_a_server_and_its_clients_are_killed_together():
    _, state = undisturbed("sums in passes")
    trial = Trial(SCAFFOLD)

    def through(client, message, answer):
        if message.kind == "pass" and message.fields["round"] == 2:
            raise Killed
        return answer()

    trial.through = through
    with pytest.raises(Killed):
        trial.run()
    trial.through = lambda client, message, answer: answer()
    for client in range(DATA.num_clients):
        trial.restart(client)
    trial.run()
    assert_same(state, trial.state)
    assert_tags_rise(trial)


def test_a_client_that_is_killed_loses_nothing():
    """Between any two messages; between two passes of one exchange it is absent, and works in the next round."""
    _, state = undisturbed("sums in passes")
    trial = Trial(SCAFFOLD)

    def through(client, message, answer):
        if message.kind not in ("pass", "terms"):
            trial.restart(client)
        return answer()

    trial.through = through
    assert_same(state, trial.run().state)


def test_a_run_that_is_done_is_not_trained_again():
    trial = Trial(FEDAVG, rounds=2).run()
    before, state = len(trial.tags), trial.state
    trial.run()
    assert trial.server.is_resumed and len(trial.tags) == before
    assert_same(state, trial.state)


def test_a_saved_run_of_another_schema_is_refused():
    trial = Trial(FEDAVG, rounds=2).run()
    other = Trial(FEDAVG, rounds=3)
    other.store = trial.store
    with pytest.raises(eh.EvenhandError) as error:
        other.serve()
    assert str(error.value) == (
        "The saved run does not match the files: its method, clients or version have changed since it "
        "began. Restore them, or begin a new federation in another folder."
    )


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b"", lambda data: data[:40]])
def test_a_damaged_saved_run_is_an_error(change):
    trial = Trial(FEDAVG, rounds=2).run()
    trial.store.write(change(trial.store.read()))
    with pytest.raises(eh.EvenhandError):
        trial.serve()


# --- privacy ----------------------------------------------------------------------------------------------------------


def test_private_rounds_are_charged_when_they_are_broadcast():
    """A round that was repeated after a kill is one release more, and the run says so."""
    trial = Trial(CENTRAL, rounds=3).run()
    assert trial.result.info["charged"] == 3
    usual = trial.epsilon
    assert usual == epsilon_of_central(rounds=3)
    killed = Trial(CENTRAL, rounds=3)

    def through(client, message, answer):
        if message.kind == "work" and message.fields["round"] == 1:
            answer()
            raise Killed
        return answer()

    killed.through = through
    with pytest.raises(Killed):
        killed.run()
    killed.through = lambda client, message, answer: answer()
    killed.run()
    assert killed.result.info["rounds"] == 3 and killed.result.info["charged"] == 4
    assert killed.epsilon == epsilon_of_central(rounds=4)
    assert killed.epsilon > usual


def first_upload(change):
    """A private run in whose second round the first client's upload is changed; None: it is lost."""
    trial = Trial(CENTRAL, rounds=2, patience=Patience(min_answers=0, attempts=1))
    chosen = list[int]()

    def through(client, message, answer):
        if message.kind != "work" or message.fields["round"] != 1 or chosen not in ([], [client]):
            return answer()
        chosen[:] = [client]
        if change is None:
            raise Lost
        data = decode(answer())
        norm = np.sqrt(sum(float(np.sum(np.square(array))) for array in data.arrays[2:]))
        lifted = [np.asarray(array * change / norm, array.dtype) for array in data.arrays[2:]]
        return encode(data._replace(arrays=(*data.arrays[:2], *lifted)))

    trial.through = through
    return trial.run()


def test_an_upload_that_is_not_clipped_is_rejected():
    """A client that leaves out its clip is left out itself; one that sends the largest upload there is counts."""
    clipped, larger, lost = first_upload(0.01), first_upload(0.0101), first_upload(None)
    assert clipped.result.per_round["rejected"].tolist() == [0.0, 0.0]
    assert larger.result.per_round["rejected"].tolist() == [0.0, 1.0]
    assert_same(larger.state, lost.state)


def test_each_attempt_of_a_private_round_is_charged():
    trial, fails = Trial(CENTRAL, rounds=3, patience=Patience(min_answers=6, pause=0.0)), [0, 0]

    def through(client, message, answer):
        if message.kind == "work" and message.fields["round"] == 1 and fails:
            fails.pop()
            answer()
            raise Lost
        return answer()

    trial.through = through
    trial.run()
    attempts = len({tag for _, tag, kind in trial.tags if kind == "work"})
    assert trial.result.info["charged"] == attempts > 3
    assert trial.epsilon == epsilon_of_central(rounds=attempts)


def test_a_round_that_no_client_agrees_to_is_not_charged():
    """Nobody has heard of it."""
    patience = Patience(attempts=5, pause=0.0)
    trial = Trial(CENTRAL, rounds=3, patience=patience, allowed=Allowed(test_keys=True, cohort=2))
    with pytest.raises(eh.EvenhandError, match="had 0 answers in 5 attempts"):
        trial.run()
    assert "may draw only 1 client" in trial.log[-1][2]
    assert (trial.server.progress.done, trial.server.progress.attempts) == (0, 0)


def test_rounds_without_anybody_are_charged():
    """Their noise is released like that of others."""
    few = eh.privacy.dp_fedavg(WORK, clip=0.01, noise_multiplier=1.0, rate=0.05)
    trial = Trial(few, rounds=6).run()
    reported = trial.result.per_round["reported"]
    assert np.sum(reported == 0) > 0
    assert trial.result.info["charged"] == 6


def test_keys_leave_the_server_only_where_nothing_is_private():
    """Without a seed, a client gets the keys of work that is not private, and none of work that is."""
    for method, has_key in ((FEDAVG, True), (NOISY, False), (CENTRAL, False)):
        trial, seen = Trial(method, rounds=1, random=random_bytes(3)), []

        def through(client, message, answer, seen=seen):
            if message.kind in ("work", "evaluate"):
                seen.append("key" in message.fields)
            assert message.fields.get("terms", {}).get("seed") is None
            return answer()

        trial.through = through
        trial.run()
        assert set(seen) == {has_key}, method.name


def test_without_a_seed_public_work_has_the_numbers_of_the_simulation():
    trial = Trial(FEDAVG, random=random_bytes(3)).run()
    assert_same(Trial(FEDAVG).run().result.params, trial.result.params)


# --- clients that send something else ---------------------------------------------------------------------------------


def nan(message):
    return message._replace(arrays=tuple(np.full_like(array, np.nan) for array in message.arrays))


def huge(message):
    uploads = (np.full_like(array, 3e38) for array in message.arrays[2:])
    return message._replace(arrays=(*message.arrays[:2], *uploads))


WRONG = {
    "NaN": (nan, None),
    "a NaN weight": (
        lambda message: message._replace(
            arrays=(np.float32(np.nan) + message.arrays[0], *message.arrays[1:])
        ),
        None,
    ),
    "a huge weight": (
        lambda message: message._replace(arrays=(message.arrays[0] + np.float32(1e6), *message.arrays[1:])),
        None,
    ),
    "a negative weight": (
        lambda message: message._replace(arrays=(-message.arrays[0], *message.arrays[1:])),
        None,
    ),
    "numbers beyond float32": (huge, None),
    "too few arrays": (
        lambda message: message._replace(arrays=message.arrays[:-1]),
        "The message has {less} arrays for an answer, which has {arrays}.",
    ),
    "another shape": (
        lambda message: message._replace(arrays=(*message.arrays[:-1], np.zeros((2, 2), np.float32))),
        "The message has float32[2, 2] for an answer, where float32{shape} is due.",
    ),
    "another type": (
        lambda message: message._replace(
            arrays=(*message.arrays[:-1], message.arrays[-1].astype(np.float64))
        ),
        "The message has float64{shape} for an answer, where float32{shape} is due.",
    ),
    "another kind": (
        lambda message: message._replace(kind="measured"),
        "It answered 'measured' where 'worked' was expected.",
    ),
    "an unknown kind": (
        lambda message: message._replace(kind="x" * 1000),
        "It answered 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx where 'worked' was expected.",
    ),
}
GARBAGE = {
    "nothing": (b"", "A message does not begin as those of Evenhand do: it was sent by something else."),
    "text": (b"hello", "A message does not begin as those of Evenhand do: it was sent by something else."),
    "half of it": (None, "A message is cut off: its arrays are longer than what came."),
}


def lying(name, change, times):
    """A run in which a client sends something else in these rounds."""
    trial = Trial(METHODS[name], rounds=3)
    trial.serve()
    liar = cohorts(trial)[1][0]

    def through(client, message, answer):
        data = answer()
        is_it = client == liar and message.kind == "work" and message.fields["round"] in times
        return change(data) if is_it else data

    trial.through = through
    return trial, liar


@cache
def rejected_run(name):
    """The numbers of a run without the client in the second round."""
    trial, liar = lying(name, None, ())
    trial.through = without(liar, [1], kinds=("work",))
    trial.run()
    return trial, trial.state


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("sums in passes", wrong) for wrong in (*WRONG, *GARBAGE)),
        *(("uploads one by one", wrong) for wrong in ("NaN", "a huge weight", "another shape", "half of it")),
    ],
)
def test_what_a_client_sends_wrongly_is_rejected(name, wrong):
    """It is left out and said so; all others train on, to the numbers of a round without it."""
    if wrong in WRONG:
        change, sentence = WRONG[wrong]
        trial, liar = lying(name, lambda data: damaged(data, change), [1])
    else:
        instead, sentence = GARBAGE[wrong]
        trial, liar = lying(name, lambda data: data[:-9] if instead is None else instead, [1])
    trial.run()
    reference, state = rejected_run(name)
    assert_same(state, trial.state)
    assert trial.result.per_round["rejected"].tolist() == [0.0, 1.0, 0.0]
    assert not trial.result.per_round["absent"].any()
    assert reference.result.per_round["absent"].tolist() == [0.0, 1.0, 0.0]
    wire = trial.server.agreed.wires[0]
    leaves = jax.tree.leaves((wire.report, wire.delta if name == "uploads one by one" else wire.lifted))
    if sentence is None:
        sentence = "Its upload is not finite, or its report is not one that an honest client can send."
    words = sentence.format(less=len(leaves) - 1, arrays=len(leaves), shape=list(leaves[-1].shape))
    assert trial.events(liar) == [("refused", f"Client {liar}: {words}")]
    assert trial.log == [(liar, *trial.events(liar)[0])]


@pytest.mark.parametrize("name", ["uploads one by one", "two exchanges"])
def test_uploads_that_are_rejected_are_counted_as_in_a_simulation(name):
    """They have reached the server: communication and work are those of a round in which they are accepted."""
    trial, _ = lying(name, lambda data: damaged(data, WRONG["NaN"][0]), [1])
    trial.run()
    usual = Trial(METHODS[name], rounds=3).run().result.info
    info, rejected = trial.result.info, trial.result.per_round["rejected"]
    assert rejected[1] > 0 and info["communication"]["took_part"] == 9
    for part in ("took_part", "left_out", "per_client_and_round"):
        assert info["communication"][part] == usual["communication"][part]
    for part in ("steps", "examples"):
        assert info[part] == usual[part]


@pytest.mark.parametrize(
    "answer",
    [
        packet("refused"),
        packet("refused", {"event": "resumed", "sentence": "a" * 10**5}),
        packet("refused", {"event": ["a"], "sentence": {"b": 1}}),
        packet("failed", {"event": "disk", "sentence": "Its disk is full."}),
        packet("failed", {"event": "Ж\n", "sentence": "two\nlines"}),
    ],
)
def test_a_client_that_refuses_is_absent(answer):
    """Whatever it says of it: its event is one of those that a client can have, and its sentence is short."""
    trial, liar = lying("uploads one by one", lambda data: answer, [1])
    trial.run()
    _, state = rejected_run("uploads one by one")
    assert_same(state, trial.state)
    assert trial.result.per_round["absent"].tolist() == [0.0, 1.0, 0.0]
    ((event, sentence),) = trial.events(liar)
    assert event == ("disk" if "disk" in str(decode(answer).fields.get("event")) else "refused")
    assert sentence.startswith(f"Client {liar}: ") and len(sentence) < 600 and "\n" not in sentence


def test_a_report_that_no_honest_client_sends_is_rejected():
    trial = Trial(LOSSES, rounds=3)
    trial.serve()
    liar = cohorts(trial)[1][0]

    def through(client, message, answer):
        data = answer()
        if client == liar and message.kind == "report" and message.fields["round"] == 1:
            return damaged(data, nan)
        return data

    trial.through = through
    trial.run()
    dropped = Trial(LOSSES, rounds=3)
    dropped.through = without(liar, [1])
    dropped.run()
    assert_same(dropped.state, trial.state)
    assert trial.result.per_round["rejected"].tolist() == [0.0, 1.0, 0.0]
    assert [event for event, _ in trial.events(liar)] == ["refused"]


def test_the_server_weighs_where_the_method_does():
    """What a client claims in its second report has no effect: the weight is the server's."""
    _, state = undisturbed("reports first")
    trial = Trial(LOSSES)

    def through(client, message, answer):
        data = answer()
        if message.kind != "work":
            return data
        half = lambda packet: packet._replace(arrays=(packet.arrays[0] * np.float32(0.5), *packet.arrays[1:]))  # noqa: E731
        return damaged(data, half)

    trial.through = through
    assert_same(state, trial.run().state)


def test_a_client_with_another_schema_is_absent():
    trial = Trial(FEDAVG)
    trial.serve()
    other = cohorts(trial)[0][0]

    def through(client, message, answer):
        data = answer()
        if client == other and message.kind == "terms":
            return packet("agreed", {"schema": "0" * 64})
        assert client != other or message.kind == "terms"  # nothing is asked of it
        return data

    trial.through = through
    trial.run()
    sentence = (
        f"Client {other}: its schema differs: its model, its method or its version is not that of the server."
    )
    assert set(trial.events(other)) == {("refused", sentence)}
    times = [other in drawn for drawn in cohorts(trial)]
    assert trial.result.per_round["absent"].tolist() == list(map(float, times))
    assert trial.result.last_round[other] == 0


def test_a_client_that_refuses_the_terms_is_told_once_per_exchange():
    """Not a second time because it refuses the work of a run that it has no part in."""
    patience = Patience(min_answers=0, attempts=1, pause=0.0)
    trial = Trial(FEDAVG, rounds=1, allowed=Allowed(metrics=True), patience=patience)
    trial.run()
    assert trial.server.progress.per_round["absent"] == [3.0]
    per_client = [len(trial.events(client)) for client in range(DATA.num_clients)]
    # Once for each of the two evaluations, and once for the round of those that were drawn.
    (drawn,) = cohorts(trial)
    assert per_client == [3 if client in drawn else 2 for client in range(DATA.num_clients)]
    assert all("test_keys = true" in sentence for _, _, sentence in trial.log)


def test_a_client_that_has_lost_its_state_is_told_of_the_run_again():
    trial = Trial(FEDAVG, patience=Patience(min_answers=0, attempts=1, pause=0.0))

    def through(client, message, answer):
        if message.kind == "work" and message.fields["round"] == 1:
            trial.stores[client].__init__()
            trial.restart(client)
        return answer()

    trial.through = through
    trial.run()
    absent = trial.result.per_round["absent"].tolist()
    assert absent == [0.0, 3.0, 0.0, 0.0]  # and they train again


# --- evaluation -------------------------------------------------------------------------------------------------------


def measured(change):
    """A run in which client 0, whose answer comes first, changes what it has measured."""
    trial = Trial(FEDAVG, rounds=1)
    trial.through = lambda client, message, answer: (
        change(answer()) if (client, message.kind) == (0, "evaluate") else answer()
    )
    return trial.run()


def fields_of(**fields):
    return lambda data: damaged(data, lambda message: message._replace(fields={**message.fields, **fields}))


def arrays_of(change):
    return lambda data: damaged(data, lambda message: message._replace(arrays=tuple(change(message.arrays))))


MEASUREMENTS = {
    "nothing": lambda data: b"",
    "another kind": lambda data: damaged(data, lambda message: message._replace(kind="worked")),
    "no fields": lambda data: packet("measured"),
    "no splits": fields_of(metrics=[], classes=[]),
    "another split": fields_of(metrics=[["secret", ["loss", "accuracy"]]] * 3),
    "another metric": fields_of(metrics=[[split, ["a", "b"]] for split in ("train", "valid", "test")]),
    "a metric too few": fields_of(metrics=[[split, ["loss"]] for split in ("train", "valid", "test")]),
    "metrics that are numbers": fields_of(metrics=3),
    "a level": fields_of(level=True),
    "no arrays": arrays_of(lambda arrays: ()),
    "arrays of two clients": arrays_of(lambda arrays: [np.zeros(2)] * len(arrays)),
    "whole numbers": arrays_of(lambda arrays: (arrays[0].astype(np.int64), *arrays[1:])),
    "classes of other clients": arrays_of(lambda arrays: (*arrays[:6], arrays[6] + 3, *arrays[7:])),
    "classes that there are not": arrays_of(lambda arrays: (*arrays[:7], arrays[7] + 30, *arrays[8:])),
    "negative classes": arrays_of(lambda arrays: (*arrays[:7], arrays[7] - 9, *arrays[8:])),
    "classes of other lengths": arrays_of(lambda arrays: (*arrays[:7], arrays[7][:0], *arrays[8:])),
    "an accuracy above 1": arrays_of(lambda arrays: (arrays[0], arrays[1] * 0 + 1e30, *arrays[2:])),
    "an accuracy below 0": arrays_of(lambda arrays: (*arrays[:5], arrays[5] * 0 - 0.1, *arrays[6:])),
    "counts of other examples": arrays_of(lambda arrays: (*arrays[:8], arrays[8] + 1, *arrays[9:])),
    "counts that overflow": arrays_of(lambda arrays: (*arrays[:8], arrays[8] * 0 + 2**62, *arrays[9:])),
    "counts of nothing": arrays_of(lambda arrays: (*arrays[:8], arrays[8] * 0, *arrays[9:])),
}


@cache
def withheld_run():
    return measured(lambda data: packet("withheld"))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measurements_that_are_none_are_those_of_a_client_without_any(name):
    """The numbers of the others are those of a federation in which it withholds its own."""
    trial, withheld = measured(MEASUREMENTS[name]), withheld_run()
    assert trial.result.history.keys() == withheld.result.history.keys()
    for column, values in withheld.result.history.items():
        if not column.startswith("bytes"):
            np.testing.assert_array_equal(values, trial.result.history[column], err_msg=column)
    for split, cells in withheld.result.classes.items():
        assert_same(tuple(cells), tuple(trial.result.classes[split]))
    assert [event for event, _ in trial.events(0)] == ["refused"] * 2  # of two evaluations
    assert withheld.events(0) == []


def test_clients_that_withhold_their_numbers_train_all_the_same():
    trial = Trial(FEDAVG, allowed=Allowed(metrics=False, test_keys=True)).run()
    assert_same(Trial(FEDAVG).run().state, trial.state)
    assert trial.log == []
    assert set(trial.result.history) == {
        "round",
        "bytes_down",
        "bytes_up",
        "reported",
        "rejected",
        "absent",
        "update_norm",
    }
    assert trial.result.findings == ()
    for metrics in trial.result.clients.values():
        assert set(metrics) == {"loss", "accuracy"}
        assert all(np.isnan(values).all() for values in metrics.values())


def test_a_first_evaluation_that_nobody_answers_is_no_model_that_does_not_move():
    trial = Trial(FEDAVG, rounds=2, eval_every=1)

    def through(client, message, answer):
        if message.kind == "evaluate" and message.fields["round"] == 0:
            raise Lost
        return answer()

    trial.through = through
    trial.run()
    assert np.isnan(trial.result.history["train_loss"]).tolist() == [True, False, False]
    assert trial.result.findings == ()


def test_numbers_that_overflow_are_an_evaluation_like_any_other():
    """NaN is what diverged training gives, and no error."""
    trial = measured(arrays_of(lambda arrays: (np.full(1, np.nan), *arrays[1:])))
    assert trial.log == []
    assert np.isnan(trial.result.clients["train"]["loss"][0])
    assert np.isfinite(trial.result.clients["train"]["loss"][1:]).all()
    accuracies = {1, 3, 5, 9, 13, 17}  # of splits, and of the classes in them
    trial = measured(
        arrays_of(
            lambda arrays: [array * np.nan if i in accuracies else array for i, array in enumerate(arrays)]
        )
    )
    assert trial.log == []
    assert np.isnan(trial.result.clients["train"]["accuracy"][0])


# --- bytes ------------------------------------------------------------------------------------------------------------


@every_method
def test_bytes_are_those_that_pass_the_carrier(name):
    trial = Trial(METHODS[name], rounds=2).run()
    # Before the states are gathered, which takes messages of its own.
    down, up = trial.down, trial.up
    assert trial.result.info["bytes"] == {"down": down, "up": up}
    assert down != up


def test_bytes_up_are_those_of_uploads():
    """With everything that clients send made longer, and nothing that they get."""
    trial = Trial(FEDAVG)
    padding = lambda message: message._replace(fields={**message.fields, "padding": "x" * 1000})  # noqa: E731
    trial.through = lambda client, message, answer: damaged(answer(), padding)
    trial.run()
    usual = Trial(FEDAVG).run()
    before, after = usual.result.info["bytes"], trial.result.info["bytes"]
    assert after["down"] == before["down"]
    assert after["up"] - before["up"] >= 1000 * (len(usual.tags) + DATA.num_clients)
