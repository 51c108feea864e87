"""A client on its own: what it refuses, when its state changes, and which keys it uses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import tree
from evenhand._version import __version__
from evenhand.network.keeping import FileStore
from evenhand.network.node import Allowed
from evenhand.rounds import lift_key, roots, work_key
from evenhand.streams import keys_of
from evenhand.wire.messages import Packet as Message
from evenhand.wire.messages import decode, encode, packed
from tests.unit.network.sites import (
    CENTRAL,
    DATA,
    NOISY,
    SCAFFOLD,
    WORK,
    Site,
    epsilon_of_central,
    equal,
    random_bytes,
    terms,
)

agg = eh.aggregators
NAME = SCAFFOLD.name
KRUM = eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.krum(1))
SUMMED = eh.privacy.private(
    eh.algorithms.fedavg(
        WORK,
        aggregator=eh.privacy.discrete_mean(0.5, noise_multiplier=4.0, rate=0.2, fewest=15),
        sampling=eh.sampling.fixed(0.2),
    )
)
"""Clients add the noise, under a secure sum."""
SUMMED_TERMS = {"rounds": 20, "clients": 100, "slots": 20}
MASKED = eh.algorithms.fedavg(
    WORK, aggregator=eh.aggregators.secure(eh.aggregators.mean()), sampling=eh.sampling.poisson(0.5)
)
"""Cohorts of any size."""


def refused(site, answer, sentence, event="refused"):
    """The answer is a refusal, of which the log has one line."""
    assert (answer.kind, answer.fields) == ("refused", {"event": event, "sentence": sentence})
    assert answer.arrays == ()
    assert site.log == [(event, sentence)]


# --- it answers honest messages, the control of all refusals ----------------------------------------------------------


def test_it_answers_a_run_without_a_line_in_its_log():
    site = Site().begun()
    first = site.work()
    assert first.kind == "worked"
    assert site.send("pass", site.exchange(exchange=1, number=1), site.public()).kind == "worked"
    assert site.evaluate(counted=1).kind == "measured"
    assert site.settle(counted=1).kind == "settled"
    assert site.work(counted=1, round=1).kind == "worked"
    assert site.log == []


def test_it_says_what_it_has():
    site = Site()
    hello = {"version": __version__, "method": NAME}
    answer = site.send("hello", hello)
    assert answer.kind == "here"
    sizes = [int(part.sizes[site.client]) for part in (DATA.train, DATA.valid, DATA.test)]
    assert answer.fields == {
        "form": {**DATA.form.to_json(), "shape": list(DATA.form.shape)},
        "label": [],
        "sizes": sizes,
        "run": None,
        "columns": [],
        "numbers": 0,
    }
    assert site.begun().send("hello", hello).fields["run"] == "first"


def test_it_reports_before_it_works():
    """Its weight alone, and no state changes."""
    site = Site().begun()
    before = site.state()
    broadcast = packed(site.agreed.algorithm.phases[0].broadcast(site.server, jnp.int32(2)))
    answer = site.send("report", site.exchange(), broadcast)
    assert answer.kind == "reported" and len(answer.arrays) == 2
    assert equal(site.state(counted=1), before)


# --- refusals ---------------------------------------------------------------------------------------------------------


TERMS = {
    "another version": (
        {"version": "0.0.1"},
        f"The server has Evenhand 0.0.1, and this client {__version__}: install the same version on both.",
    ),
    "a method that its own file does not name": (
        {"method": "fedavg()"},
        f"The server trains fedavg(), and this client's file names {NAME}: change one of them.",
    ),
    "test keys": (
        {"terms": terms(SCAFFOLD, seed=3).to_json()},
        "The server asks for keys from a seed that it knows, with which it could subtract this client's noise: a "
        "client agrees only if its own file says test_keys = true.",
    ),
    "a number that there is not": (
        {"client": 6},
        "The terms of the run do not fit this client: its number or its examples are not in them.",
    ),
    "a negative number": (
        {"client": -1},
        "The terms of the run do not fit this client: its number or its examples are not in them.",
    ),
    "more examples than the largest client": (
        {"terms": terms(SCAFFOLD, capacity=2).to_json()},
        "The terms of the run do not fit this client: its number or its examples are not in them.",
    ),
    "other examples": (
        {"terms": terms(SCAFFOLD, form=DATA.form._replace(shape=(5,))).to_json()},
        "The federation trains on examples float32[5], and this client has float32[4]: load its file as the others do.",
    ),
    "tokens": (
        {"terms": terms(SCAFFOLD, form=DATA.form._replace(dtype="int32")).to_json()},
        "The federation trains on examples int32[4], and this client has float32[4]: load its file as the others do.",
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_it_refuses_terms(name):
    change, sentence = TERMS[name]
    site = Site()
    refused(site, site.begin(**change), sentence)
    assert site.store.writes == 0
    assert site.begin().kind == "agreed"  # and takes part when asked as agreed


def test_it_pads_its_examples_to_no_more_than_its_file_allows():
    """A larger capacity, which the server chooses, would fill the memory of a client."""
    capacity = int(DATA.train.sizes.max())
    assert Site(allowed=Allowed(most_examples=capacity)).begin().kind == "agreed"
    site = Site(allowed=Allowed(most_examples=capacity - 1))
    sentence = (
        f"The largest client has {capacity} examples, to which this client would have to pad its own; its file allows "
        f"{capacity - 1}: raise most_examples there."
    )
    refused(site, site.begin(), sentence)
    assert site.store.writes == 0


def test_it_refuses_an_initial_model_of_another_shape():
    site = Site()
    sentence = "The message has 1 arrays for the initial model, which has 2."
    refused(site, site.begin([np.zeros(3, np.float32)]), sentence)
    assert site.store.writes == 0


def test_it_refuses_to_begin_another_run_over_its_state():
    site = Site().begun()
    before = site.kept
    sentence = (
        "The server begins run second, and this client keeps the state of run first: move its state away before "
        "another run begins, or resume that run."
    )
    refused(site, site.begin(terms=terms(SCAFFOLD, run="second").to_json()), sentence)
    assert site.kept == before
    # In a new process, too.
    site.log.clear()
    site.restarted()
    refused(site, site.begin(terms=terms(SCAFFOLD, run="second").to_json()), sentence)
    assert site.work().kind == "worked"


@pytest.mark.parametrize("change", [{"rounds": 400}, {"slots": 2}, {"clients": 7}])
def test_it_refuses_other_terms_for_its_run(change):
    """Else a server could agree on few rounds, and announce more when these are over."""
    site = Site().begun()
    before = site.kept
    answer = site.begin(terms=terms(SCAFFOLD, **change).to_json())
    refused(
        site,
        answer,
        "The server changes the terms of run first, which this client has agreed to: begin another run.",
    )
    assert site.kept == before
    assert site.work().kind == "worked"


def test_it_refuses_another_number_in_its_run():
    site = Site().begun()
    before = site.kept
    answer = site.begin(client=3)
    sentence = (
        "The server changes the terms of run first, which this client has agreed to: begin another run."
    )
    refused(site, answer, sentence)
    assert site.kept == before


REPLAYED = (
    "The message has tag {}, and this client has answered tag {}: it is late or replayed, and "
    "no work is done twice."
)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("tag", [1, 2])
def test_it_refuses_tags_that_it_has_seen(tag, is_restarted):
    """The latest one, and an older one, also after a restart."""
    site = Site().begun()
    assert site.work().kind == "worked"
    assert site.settle(counted=1).kind == "settled"
    before, state = site.kept, site.state()
    if is_restarted:
        site.restarted()
    for kind in ("work", "report", "pass", "evaluate", "settle"):
        site.log.clear()
        answer = site.send(kind, {**site.exchange(), "tag": tag}, site.broadcast())
        refused(site, answer, REPLAYED.format(tag, 2), "replayed")
    assert site.kept == before and equal(site.state(), state)


def test_the_same_bytes_are_answered_once():
    site = Site().begun()
    data = encode(Message("work", site.exchange(), site.broadcast()))
    assert decode(site.node.answer(data)).kind == "worked"
    before = site.kept
    refused(site, decode(site.node.answer(data)), REPLAYED.format(1, 1), "replayed")
    assert site.kept == before


ANOTHER_SCHEMA = (
    "The message has another schema than this client: the two sides differ in the method, the model, the number of "
    "clients or the version; restart both with the same files."
)
NO_RUN = "The message is of a run in which this client does not take part."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "0" * 64}, ANOTHER_SCHEMA),
        ({"run": "second"}, NO_RUN),
        ({"schema": None}, ANOTHER_SCHEMA),
    ],
)
@pytest.mark.parametrize("kind", ["report", "work", "pass", "evaluate", "settle"])
def test_it_refuses_messages_of_another_run(kind, change, sentence):
    site = Site().begun()
    before = site.kept
    refused(site, site.send(kind, {**site.exchange(), **change}, site.broadcast()), sentence)
    assert site.kept == before


def test_it_refuses_work_before_it_has_terms():
    site = Site()
    refused(site, site.work(), NO_RUN)
    assert site.store.writes == 0


TOO_MANY = (
    "The server asks for round {}, and the run has 4: more would spend more privacy than was agreed on."
)
WORK_MESSAGES = {
    "a smaller cohort": (
        {"cohort": 1},
        "The cohort has 1 clients, and this client's file asks for at least 2: draw larger cohorts.",
    ),
    "a round beyond the last": ({"round": 4}, TOO_MANY.format(5)),
    "a round far beyond the last": ({"round": 2**40}, TOO_MANY.format(2**40 + 1)),
    "a round before the first": ({"round": -1}, TOO_MANY.format(0)),
    "an exchange that there is not": (
        {"phase": 1},
        "The server asks for exchange 2 of a round, and the method has 1.",
    ),
    "an exchange before the first": (
        {"phase": -1},
        "The server asks for exchange 0 of a round, and the method has 1.",
    ),
}


@pytest.mark.parametrize("name", WORK_MESSAGES)
@pytest.mark.parametrize("kind", ["report", "work"])
def test_it_refuses_work(name, kind):
    change, sentence = WORK_MESSAGES[name]
    site = Site(allowed=Allowed(cohort=2)).begun()
    before = site.kept
    refused(site, site.send(kind, {**site.exchange(), **change}, site.broadcast()), sentence)
    assert site.kept == before
    assert site.work(cohort=2, round=3).kind == "worked"


NOT_OF_IT = "The server asks for a pass of an exchange that this client does not take part in."


def test_it_refuses_passes_of_an_exchange_that_it_has_not_worked_in():
    site = Site().begun()
    refused(site, site.send("pass", site.exchange(exchange=0, number=1), site.public()), NOT_OF_IT)


def test_it_refuses_passes_of_a_settled_exchange():
    """The upload would leave it once more, when the server has long said what it made of it."""
    site = Site().begun()
    site.work()
    site.settle(counted=1)
    before = site.kept
    answer = site.send("pass", site.exchange(exchange=1, number=1, counted=1), site.public())
    refused(site, answer, NOT_OF_IT)
    assert site.kept == before


def test_it_refuses_passes_of_an_exchange_before_the_last():
    site = Site().begun()
    site.work()
    site.work(round=1)
    refused(site, site.send("pass", site.exchange(exchange=1, number=1), site.public()), NOT_OF_IT)
    site.log.clear()
    assert site.send("pass", site.exchange(exchange=2, number=1), site.public()).kind == "worked"


@pytest.mark.parametrize("numbers", [(0,), (1, 1), (2,), (-1,), (1, 2, 1), (1, 2, 3)])
def test_it_refuses_passes_that_its_aggregator_does_not_take(numbers):
    """Each pass once and in turn: each is a release of the same upload."""
    site = Site().begun()
    site.work()
    *honest, last = numbers
    for number in honest:
        assert site.send("pass", site.exchange(exchange=1, number=number), site.public()).kind == "worked"
    before = site.kept
    answer = site.send("pass", site.exchange(exchange=1, number=last), site.public())
    refused(
        site,
        answer,
        f"The server asks for pass {last + 1} of an exchange after pass {numbers[-2] + 1 if honest else 1} of 3: this "
        "client sends each of them once.",
    )
    assert site.kept == before


def test_a_settled_tag_cannot_be_worked_for_again():
    """Work that names an earlier exchange settles what is pending like any other."""
    site = Site().begun()
    site.work()
    trained = site.state(counted=1)
    assert site.work(counted=1, exchange=1, round=1).kind == "worked"
    assert equal(site.state(), trained)


# --- malformed messages -----------------------------------------------------------------------------------------------


def lacking(kind, error):
    return f"A message of the kind {kind!r} lacks a field, or has an invalid one ({error})."


@pytest.mark.parametrize(
    "field", ["run", "schema", "tag", "counted", "phase", "round", "cohort", "key", "progress"]
)
def test_it_refuses_work_without_a_field(field):
    site = Site().begun()
    site.work()
    before = site.kept
    fields = site.exchange()
    del fields[field]
    refused(site, site.send("work", fields, site.broadcast()), lacking("work", f"KeyError({field!r})"))
    assert site.kept == before


BAD_FIELDS = [
    *(("tag", value) for value in ("7", 7.0, None, True, [7], {}, 10**400, 2**63)),
    *(("counted", value) for value in ("1", 1.5, None, True)),
    *(("round", value) for value in ("0", 0.0, None, True, 10**400)),
    *(("phase", value) for value in ("0", False, None)),
    *(("cohort", value) for value in ("3", 3.5, None, True)),
    *(("progress", value) for value in ("1", None, -0.5, 1.5, 1e30, True, 10**400)),
    *(
        ("key", value)
        for value in (None, 3, [], [1], [1, 2, 3], [1, -1], [1, 2**32], ["a", "b"], [0.5, 1], "ab")
    ),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda part: f"{part!r:.12}")
def test_it_refuses_work_with_a_field_of_another_type(field, value):
    site = Site().begun()
    site.work()
    before = site.kept
    answer = site.send("work", {**site.exchange(), field: value}, site.broadcast())
    sentence = answer.fields["sentence"]
    refused(site, answer, sentence)
    assert sentence.startswith("A message of the kind 'work' lacks a field, or has an invalid one (")
    assert site.kept == before
    assert site.work().kind == "worked"


BAD_TERMS = [
    *(
        (name, value)
        for name in ("clients", "capacity", "rounds", "slots")
        for value in (-1, None, "a", 1.5, 2**31)
    ),
    *(("form", value) for value in (None, [], {}, {"shape": 1})),
    *(("label", value) for value in (None, 3, ["a"])),
    ("seed", "a"),
    ("run", None),
]


@pytest.mark.parametrize(("field", "value"), BAD_TERMS, ids=lambda part: f"{part!r:.12}")
def test_it_refuses_terms_with_a_field_of_another_type(field, value):
    site = Site()
    answer = site.begin(terms={**site.terms.to_json(), field: value})
    assert answer.fields["sentence"].startswith(
        "A message of the kind 'terms' lacks a field, or has an invalid one"
    )
    assert site.store.writes == 0


@pytest.mark.parametrize("terms", [None, [], 3, "terms"])
def test_it_refuses_terms_that_are_none(terms):
    site = Site()
    answer = site.begin(terms=terms)
    assert answer.fields["sentence"].startswith(
        "A message of the kind 'terms' lacks a field, or has an invalid one"
    )


@pytest.mark.parametrize("kind", ["", "hello ", "bye", "worked", "__init__", "x" * 10**5])
def test_it_refuses_kinds_that_it_does_not_know(kind):
    site = Site().begun()
    before = site.kept
    sentence = f"The server asks for {repr(kind)[:40]}, which this version of Evenhand does not know."
    refused(site, site.send(kind, site.exchange()), sentence)
    assert site.kept == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda parts: parts[:-1], "The message has 4 arrays for what the server publishes, which has 5."),
        (lambda parts: parts[:1], "The message has 1 arrays for the broadcast, which has 4."),
        (
            lambda parts: (parts[0].astype(np.float64), *parts[1:]),
            "The message has float64[3] for the broadcast, where float32[3] is due.",
        ),
        (
            lambda parts: (parts[0][:2], *parts[1:]),
            "The message has float32[2] for the broadcast, where float32[3] is due.",
        ),
        (
            lambda parts: (*parts, parts[0]),
            "The message has 6 arrays for what the server publishes, which has 5.",
        ),
    ],
)
def test_it_refuses_arrays_of_other_shapes(change, sentence):
    site = Site().begun()
    before = site.kept
    refused(site, site.work(change(site.broadcast())), sentence)
    assert site.kept == before


def test_it_refuses_bytes_that_are_no_message():
    site = Site().begun()
    before = site.kept
    answer = decode(site.node.answer(b"GET / HTTP/1.1\r\n"))
    sentence = "A message does not begin as those of Evenhand do: it was sent by something else."
    refused(site, answer, sentence)
    assert site.kept == before


# --- cohorts ----------------------------------------------------------------------------------------------------------


def test_it_refuses_a_run_whose_cohorts_may_be_smaller_than_it_allows():
    """A cohort is the same in each attempt at its round, which would be repeated, and charged, for ever."""
    turns = eh.algorithms.fedavg(WORK, sampling=eh.sampling.cyclic())
    cases = [(CENTRAL, 2, 1, {}), (turns, 3, 2, {"slots": 4}), (SCAFFOLD, 4, 3, {})]
    for method, cohort, fewest, changes in cases:
        site = Site(method, allowed=Allowed(cohort=cohort), **changes)
        sentence = (
            f"A round of {method.name} may draw only {fewest} client{'s' * (fewest > 1)}, and this client's file asks "
            f"for cohorts of at least {cohort}: lower cohort there, or deploy a method with larger cohorts of a fixed "
            "size."
        )
        refused(site, site.begin(), sentence)
        assert site.store.writes == 0
        assert Site(method, allowed=Allowed(cohort=fewest), **changes).begin().kind == "agreed"


def test_it_refuses_secure_sums_that_some_cohorts_cannot_meet():
    site = Site(MASKED, colluding=1, slots=6)
    sentence = (
        "fedavg, whose cohorts differ in size, takes secure sums of 2 clients, and with colluding = 1 they need at "
        "least 3: lower colluding, or have more clients in each cohort."
    )
    refused(site, site.begin(), sentence)
    assert site.store.writes == 0
    assert Site(MASKED, slots=6).begin().kind == "agreed"


# --- privacy ----------------------------------------------------------------------------------------------------------


def test_it_refuses_a_method_without_the_privacy_that_it_asks_for():
    for allowed in (Allowed(noise_multiplier=0.5), Allowed(epsilon=1.0)):
        site = Site(allowed=allowed)
        sentence = (
            f"{NAME} guarantees no differential privacy, but this client's file asks for it: deploy a "
            "private method."
        )
        refused(site, site.begin(), sentence)
        assert site.store.writes == 0


def test_it_refuses_less_noise_than_it_asks_for():
    site = Site(CENTRAL, allowed=Allowed(noise_multiplier=1.01))
    sentence = (
        "The noise of a release is 1 times its sensitivity, and this client's file asks for a noise_multiplier of at "
        "least 1.01: deploy the method with more noise."
    )
    refused(site, site.begin(), sentence)
    assert site.store.writes == 0
    assert Site(CENTRAL, allowed=Allowed(noise_multiplier=1.0)).begin().kind == "agreed"


def test_it_refuses_a_run_that_spends_more_than_it_allows():
    spent = epsilon_of_central(rounds=4)
    assert Site(CENTRAL, allowed=Allowed(epsilon=spent)).begin().kind == "agreed"
    site = Site(CENTRAL, allowed=Allowed(epsilon=0.99 * spent))
    sentence = (
        f"The run would spend epsilon {spent:.3g}, and this client's file allows {0.99 * spent:g}: deploy the method "
        "with more noise or fewer rounds."
    )
    refused(site, site.begin(), sentence)
    assert site.store.writes == 0
    # Twice the rounds cost more.
    more = Site(CENTRAL, allowed=Allowed(epsilon=spent), rounds=8)
    assert "would spend epsilon" in more.begin().fields["sentence"]


def test_it_compares_the_noise_of_a_release():
    """It is half the argument of ``discrete_mean``, whose neighbours replace a client."""
    site = Site(SUMMED, allowed=Allowed(noise_multiplier=4.0), **SUMMED_TERMS)
    sentence = "The noise of a release is 2 times its sensitivity, and this client's file asks for a noise_multiplier"
    assert site.begin().fields["sentence"].startswith(f"{sentence} of at least 4")
    enough = Site(SUMMED, allowed=Allowed(noise_multiplier=2.0), **SUMMED_TERMS)
    assert enough.begin().kind == "agreed"


def test_under_noise_of_clients_it_compares_what_the_server_learns():
    """The server draws the cohorts, so that their sampling, on which ``run.privacy`` counts, hides nobody from it."""
    assert SUMMED.privacy is not None
    spent = eh.privacy.account(SUMMED.privacy, rounds=20, units=100).epsilon
    release = eh.types.Release(2.0, times=20, mechanism="concentrated")
    known = eh.privacy.spent([release], delta=0.01).epsilon
    assert (round(spent, 2), round(known, 2)) == (2.92, 8.07)
    refusal = Site(SUMMED, allowed=Allowed(epsilon=0.99 * known), **SUMMED_TERMS).begin()
    sentence = (
        "The run would spend epsilon 8.07 against the server, which knows who takes part, and this client's file "
        "allows 7.99"
    )
    assert refusal.fields["sentence"].startswith(sentence)
    assert Site(SUMMED, allowed=Allowed(epsilon=known), **SUMMED_TERMS).begin().kind == "agreed"


def test_repeated_rounds_spend_what_it_allows():
    """A round that the server repeats is one release more, which a client counts by itself."""
    spent = epsilon_of_central(rounds=5)
    site = Site(CENTRAL, allowed=Allowed(epsilon=spent)).begun()
    assert site.work().kind == "worked"
    assert site.work().kind == "worked"  # the first round again: 5 rounds in all
    before = site.kept
    site.restarted()  # which does not forget it
    answer = site.work()
    more = epsilon_of_central(rounds=6)
    sentence = (
        f"The server repeats round 1, with which the run would spend epsilon {more:.3g}, and this client's file allows "
        f"{spent:g}: deploy the method with more noise or fewer rounds."
    )
    refused(site, answer, sentence)
    assert site.kept == before
    assert site.work(round=1).kind == "worked"  # a new round was agreed on


@pytest.mark.parametrize(("rounds", "most"), [(4, 3), (50, 5)])
def test_rounds_of_private_work_are_repeated_a_few_times(rounds, most):
    """Each repetition has new noise, so a mean of many would have none; whether or not its file bounds epsilon."""
    site = Site(CENTRAL, rounds=rounds).begun()
    assert {site.work().kind for _ in range(1 + most)} == {"worked"}
    site.restarted()  # which does not forget them
    sentence = (
        f"The server has asked {most + 1} times for work of a round that this client had done, each time with new "
        f"noise: it does so at most {most} times in a run."
    )
    refused(site, site.work(), sentence)
    assert site.work(round=1).kind == "worked"


def test_rounds_of_work_without_noise_are_repeated_at_will():
    site = Site(rounds=4).begun()
    assert {site.work().kind for _ in range(8)} == {"worked"}


def test_it_refuses_a_clip_beyond_the_sensitivity_of_the_method():
    """The server publishes the clip, and adds noise for the one that was agreed on."""
    site = Site(CENTRAL).begun()
    before = site.kept
    *broadcast, clip = site.broadcast()
    assert clip == np.float32(0.01)
    answer = site.work([*broadcast, np.float32(100.0)])
    norm = answer.fields["sentence"].split()[4]
    assert float(norm) > 0.02  # what the client would have sent
    refused(
        site,
        answer,
        f"The upload has norm {norm} with the clip that the server has published, and this client sends at most 0.01: "
        "deploy the method with a smaller clip.",
    )
    assert site.kept == before
    assert site.work().kind == "worked"


@pytest.mark.parametrize("clip", [math.nan, -1.0, -100.0])
def test_it_refuses_a_clip_that_is_none(clip):
    site = Site(CENTRAL).begun()
    *broadcast, _ = site.broadcast()
    answer = site.work([*broadcast, np.float32(clip)])
    assert answer.kind == "refused" or np.linalg.norm(site.lifted(answer)[0]["w"]) <= 0.01


def test_its_own_clip_is_a_limit_to_what_it_sends():
    sentence = (
        "The upload has norm 0.01 with the clip that the server has published, and this client sends at most 0.005: "
        "deploy the method with a smaller clip."
    )
    site = Site(CENTRAL, allowed=Allowed(clip=0.005)).begun()
    before = site.kept
    refused(site, site.work(), sentence)
    assert site.kept == before
    assert Site(CENTRAL, allowed=Allowed(clip=0.02)).begun().work().kind == "worked"


def test_its_own_clip_is_a_limit_where_the_server_sees_each_upload():
    site = Site(KRUM, allowed=Allowed(clip=0.005)).begun()
    before = site.kept
    answer = site.work()
    assert answer.kind == "refused"
    assert answer.fields["sentence"].endswith(
        "this client sends at most 0.005: deploy the method with a smaller clip."
    )
    assert site.kept == before
    assert Site(KRUM, allowed=Allowed(clip=100.0)).begun().work().kind == "worked"


CLIPPING = {
    "mean": agg.clip(0.02),
    "geometric median": agg.clip(0.02, then=agg.geometric_median(2)),
    "centred": agg.centered_clipping(0.02),
    "losses": agg.clip(0.02, then=agg.qfedavg(2.0, lipschitz=10.0)),
    "adaptive": eh.privacy.noisy_mean(
        eh.privacy.adaptive_clip(0.02, noise=5.0), noise_multiplier=1.0, rate=0.5
    ),
    "secure": agg.secure(agg.clip(0.02)),
    "secure geometric median": agg.secure(agg.clip(0.02, then=agg.geometric_median(2))),
}


@pytest.mark.parametrize("name", CLIPPING)
def test_the_norm_is_that_of_the_update_as_the_aggregator_clips_it(name):
    """Neither the weight of its examples nor a factor of the aggregator counts."""
    site = Site(eh.algorithms.fedavg(WORK, aggregator=CLIPPING[name]))
    public, ones = CLIPPING[name].publish(site.memory), jax.tree.map(jnp.ones_like, site.params)
    for scale, wanted in ((1.0, 0.02), (0.01 / tree.norm(ones), 0.01)):
        upload = eh.types.Upload(tree.scale(scale, ones), jnp.float32(12.0), jnp.float32(0.5))
        update = site.method.parts[0].update(upload, public, jax.random.key(1))
        assert tree.norm(update) == pytest.approx(wanted, rel=1e-5)


def test_its_own_clip_is_that_of_an_aggregator_whatever_its_weight():
    clipped = eh.algorithms.fedavg(WORK, aggregator=agg.clip(0.01))
    assert DATA.train.sizes[2] > 1
    assert Site(clipped, allowed=Allowed(clip=0.01)).begun().work().kind == "worked"
    refusal = Site(clipped, allowed=Allowed(clip=0.009)).begun().work()
    assert refusal.fields["sentence"].startswith("The upload has norm 0.01 with the clip")


@pytest.mark.parametrize("name", ["discrete_mean", "dp_delta_fl"])
def test_a_clip_that_noise_hides_is_compared_before_the_run(name):
    """Clients clip to the method's, whatever the server publishes."""
    method = SUMMED
    if name == "dp_delta_fl":
        method = eh.privacy.dp_delta_fl(
            WORK,
            theta=0.5,
            largest_loss=3.0,
            clip=0.5,
            noise_multiplier=4.0,
            rate=0.2,
            at_server=False,
            fewest=15,
        )
    assert Site(method, allowed=Allowed(clip=0.5), **SUMMED_TERMS).begin().kind == "agreed"
    site = Site(method, allowed=Allowed(clip=0.49), **SUMMED_TERMS)
    sentence = (
        f"{method.name} clips updates to 0.5, and this client's file allows 0.49: deploy the method with a smaller "
        "clip."
    )
    refused(site, site.begin(), sentence)
    assert site.store.writes == 0


def test_a_clip_that_nobody_can_check_is_refused_before_the_run():
    secure = eh.algorithms.fedavg(WORK, aggregator=agg.secure(agg.mean()))
    method = eh.algorithms.side_by_side({"a": secure, "b": secure})
    site = Site(method, allowed=Allowed(clip=5.0))
    sentence = (
        f"This client's file limits the clip, which cannot be checked in the sums of {method.name}: deploy another "
        "method, or remove clip from the file."
    )
    refused(site, site.begin(), sentence)
    start = packed(method.model.init(jax.random.key(5)))
    assert Site(method).begin(start).kind == "agreed"


# --- a file that changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stricter", "words"),
    [
        (Allowed(epsilon=0.01), "The run would spend epsilon"),
        (Allowed(noise_multiplier=2.0), "The noise of a release is 1 times its sensitivity"),
        (Allowed(most_examples=2), "The largest client has"),
        (Allowed(), "The server asks for keys from a seed"),
    ],
    ids=["epsilon", "noise", "examples", "test keys"],
)
def test_a_stricter_file_holds_from_the_restart_on(stricter, words):
    """The server says nothing of the terms to a client that it has met, so it looks at them itself."""
    usual = Allowed(test_keys=True)
    seed = 3 if "seed" in words else None
    site = Site(CENTRAL, allowed=usual, seed=seed).begun()
    assert site.work().kind == "worked"
    site.allowed = stricter
    site.restarted()
    before = site.kept
    for answer in (site.work(round=1), site.evaluate(), site.begin()):
        assert answer.kind == "refused" and answer.fields["sentence"].startswith(words)
    assert site.kept == before
    site.allowed = usual
    site.restarted()
    assert site.work(round=1).kind == "worked"


# --- states: pending until they count ---------------------------------------------------------------------------------


def upload(site, answer):
    return jax.tree.leaves(site.lifted(answer))


@pytest.fixture(scope="module")
def reference():
    """The states of a client of which nothing, and of which the first work has counted, and its next uploads."""
    fresh, trained = Site().begun(), Site().begun()
    initial = fresh.state()
    first = upload(fresh, fresh.work())
    trained.work()
    state = trained.state(counted=1)
    trained.settle(counted=1)
    second = upload(trained, trained.work(counted=1))
    assert not equal(initial, state) and not equal(first, second)
    return initial, state, first, second


def test_the_state_is_what_the_work_gives(reference):
    """Computed by the method itself, without a client around it."""
    initial, state, _, _ = reference
    site = Site()
    phase, key = site.agreed.algorithm.phases[0], jax.random.wrap_key_data(jnp.array([0, 7], jnp.uint32))
    own = DATA.select([DATA.client_ids[2]]).train
    data = eh.types.ClientData(
        x=jnp.asarray(own.x),
        y=jnp.asarray(own.y),
        start=jnp.int32(0),
        size=jnp.int32(own.rows),
        progress=jnp.float32(1.0),
        capacity=site.terms.capacity,
        round=jnp.int32(0),
    )
    padded = data._replace(
        x=jnp.pad(data.x, ((0, 17 - own.rows), (0, 0))), y=jnp.pad(data.y, (0, 17 - own.rows))
    )
    before = site.agreed.algorithm.init_client(site.params)
    broadcast = phase.broadcast(site.server, jnp.int32(2))
    _, after = phase.work(broadcast, before, padded, key)
    assert equal([np.asarray(leaf) for leaf in jax.tree.leaves(before)], initial)
    for mine, its in zip(jax.tree.leaves(after), state, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("between", ["nothing", "settle", "evaluate"])
@pytest.mark.parametrize("counts", [False, True])
def test_work_becomes_state_if_it_has_counted(reference, tmp_path, counts, between, is_restarted):
    """What the next message says decides, whatever that message is, and also after a restart."""
    initial, state, first, second = reference
    site = Site(store=FileStore(tmp_path / "state")).begun()
    site.work()
    counted = 1 if counts else -1
    if is_restarted:
        site.restarted()
    if between != "nothing":
        getattr(site, between)(counted=counted)
        assert equal(site.state(), state if counts else initial)
    if is_restarted:
        site.restarted()
    again = upload(site, site.work(counted=counted))
    assert equal(again, second if counts else first)
    assert equal(site.state(counted=-1), state if counts else initial)


def test_what_was_said_first_holds(reference):
    """A server cannot take back that work has not counted, nor that it has."""
    initial, state, _, _ = reference
    for first, last, expected in ((-1, 1, initial), (1, -1, state)):
        site = Site().begun()
        site.work()
        site.settle(counted=first)
        site.settle(counted=last)
        assert equal(site.state(), expected)


def test_only_the_latest_work_can_count(reference):
    initial, _, _, _ = reference
    site = Site().begun()
    site.work()
    site.work()  # the first was in vain, and was not counted
    assert equal(site.state(), initial)
    site.settle(counted=1)  # of which the second says nothing
    assert equal(site.state(), initial)


def test_passes_leave_the_work_pending(reference):
    initial, state, _, _ = reference
    site = Site().begun()
    site.work()
    site.send("pass", site.exchange(exchange=1, number=1, counted=-1), site.public())
    assert equal(site.state(counted=-1), initial) and equal(site.state(counted=1), state)
    site.settle(counted=1)
    assert equal(site.state(), state)


def test_a_report_settles_what_is_pending(reference):
    _, state, _, _ = reference
    site = Site().begun()
    site.work()
    broadcast = packed(site.agreed.algorithm.phases[0].broadcast(site.server, jnp.int32(2)))
    site.send("report", site.exchange(counted=1), broadcast)
    assert equal(site.state(), state)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_terms_leave_pending_work_as_it_is(reference, is_restarted):
    """A server that comes back after its first round announces the run again, before it says what has counted."""
    _, state, _, second = reference
    site = Site().begun()
    site.work()
    if is_restarted:
        site.restarted()
    assert site.begin().kind == "agreed"
    assert equal(upload(site, site.work(counted=1)), second)
    assert equal(site.state(), state)


def test_terms_leave_a_state_as_it_is(reference):
    _, state, _, _ = reference
    site = Site().begun()
    site.work()
    site.settle(counted=1)
    site.begin([2 * array for array in packed(site.params)])
    assert equal(site.state(), state)


def test_work_that_is_not_finite_is_rejected_and_changes_nothing(reference):
    initial, _, first, _ = reference
    site = Site().begun()
    parts = site.broadcast()
    answer = site.work([np.full_like(parts[0], np.nan), *parts[1:]])
    assert (answer.kind, answer.arrays) == ("rejected", ())
    assert answer.fields["sentence"] == "The client's update is not finite, or its report is not in range."
    assert equal(site.state(counted=1), initial)
    site.settle(counted=1)
    assert equal(upload(site, site.work()), first)


# --- its disk ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing(reference):
    initial, _, first, _ = reference
    site = Site().begun()
    before = site.kept
    site.store.is_full = True
    sentence = (
        "The client's state could not be written (No space left on device): free some space on its disk."
    )
    for answer in (site.work(), site.settle(), site.evaluate()):
        assert (answer.kind, answer.fields, answer.arrays) == (
            "failed",
            {"event": "disk", "sentence": sentence},
            (),
        )
    assert site.log == 3 * [("disk", sentence)]
    site.store.is_full = False
    assert site.kept == before and equal(site.state(counted=1), initial)
    assert equal(upload(site, site.work()), first)


def test_a_disk_that_is_full_from_the_beginning():
    site = Site()
    site.store.is_full = True
    assert site.begin().kind == "failed"
    assert site.work().kind == "refused"
    site.store.is_full = False
    assert site.begun().work().kind == "worked"


def test_no_pass_of_work_that_was_not_written():
    """Its upload has never left the client."""
    site = Site().begun()
    site.store.is_full = True
    assert site.work().kind == "failed"
    site.store.is_full = False
    answer = site.send("pass", site.exchange(exchange=1, number=1), site.public())
    refused_sentence = answer.fields.get("sentence")
    assert refused_sentence == NOT_OF_IT


@pytest.mark.parametrize("algorithm", [SCAFFOLD, KRUM], ids=["sums", "stacked"])
def test_the_store_is_written_before_the_answer_leaves(algorithm):
    """A client that is killed once it has answered never answers the same message again."""
    site = Site(algorithm).begun()
    kinds = [lambda: site.work(), lambda: site.settle(), lambda: site.evaluate()]
    for tag, send in enumerate(kinds, 1):
        writes = site.store.writes
        send()
        assert site.store.writes > writes
        assert decode(site.kept).fields["tag"] == tag
    site.restarted()
    refused(site, site.work(tag=3), REPLAYED.format(3, 3), "replayed")


def test_a_damaged_state_is_told():
    site = Site().begun()
    site.store.write(site.kept[:-1])
    site.restarted()
    sentence = (
        "The client's state is damaged (A message is cut off: its arrays are longer than what came.): restore it from "
        "a backup, or move it away and begin another run."
    )
    refused(site, site.work(), sentence, "disk")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_private_work_has_keys_of_its_own():
    """From the operating system: the same bytes give the same noise, others another, whatever the server sends."""
    uploads = {}
    for name, seed, key in [("a", 1, [0, 7]), ("a, another key", 1, [3, 4]), ("b", 2, [0, 7])]:
        site = Site(NOISY, random=seed).begun()
        uploads[name] = upload(site, site.work(key=key))
    assert equal(uploads["a"], uploads["a, another key"])
    *ours, weight = uploads["a"]
    *others, its = uploads["b"]
    assert not any(np.any(one == other) for one, other in zip(ours, others, strict=True))
    assert weight == its == 8


def test_private_work_needs_no_key_of_the_server():
    site = Site(NOISY).begun()
    assert "key" not in site.exchange()
    assert site.work().kind == "worked"


def test_private_work_takes_new_bytes_each_time():
    site, calls = Site(NOISY), []
    source = random_bytes(1)
    site.random = lambda count: calls.append(count) or source(count)
    site.begun()
    first = upload(site, site.work())
    taken = len(calls)
    second = upload(site, site.work())
    assert taken >= 1 and len(calls) > taken
    assert all(count >= 8 for count in calls)
    assert not equal(first, second)


def test_work_that_is_not_private_has_the_key_of_the_server():
    """So that a run can be repeated from its seed."""
    uploads = {}
    for name, seed, key in [("a", 1, [0, 7]), ("a, other bytes", 2, [0, 7]), ("b", 1, [0, 8])]:
        site = Site(random=seed).begun()
        uploads[name] = upload(site, site.work(key=key))
    assert equal(uploads["a"], uploads["a, other bytes"])
    assert not equal(uploads["a"], uploads["b"])


def test_test_keys_come_from_the_seed_of_the_terms():
    """Those of a simulation, noise included; a seed takes part in nothing else."""

    def no_bytes(count):
        raise AssertionError("bytes of the operating system in the test mode")

    uploads = {}
    for seed in (3, 4):
        site = Site(NOISY, allowed=Allowed(test_keys=True), seed=seed)
        site.random = no_bytes
        site.begun()
        uploads[seed] = upload(site, site.work(key=[9, 9]))
    assert not equal(uploads[3], uploads[4])
    site = Site(NOISY, random=5)
    key = work_key(roots(NOISY, keys_of(3)), 0, 0, jnp.int32(2))
    words = np.asarray(jax.random.key_data(key)).tobytes()
    site.random = lambda count: words[:count]
    assert equal(upload(site.begun(), site.work()), uploads[3])
    assert not jnp.all(key == lift_key(roots(NOISY, keys_of(3)), 0, 0, jnp.int32(2)))


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_its_numbers_leave_it_only_where_its_file_allows():
    answer = Site(allowed=Allowed(metrics=True)).begun().evaluate()
    assert answer.kind == "measured" and len(answer.arrays) > 0
    site = Site(allowed=Allowed(metrics=False)).begun()
    answer = site.evaluate()
    assert answer == Message("withheld", {}, ())
    assert decode(site.kept).fields["tag"] == 1  # and is not asked the same twice
