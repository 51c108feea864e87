"""What a client keeps from a server that asks for more than a secure sum gives, in a federation of one process."""

from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand import EvenhandError
from evenhand.network.in_process import federation
from evenhand.network.server import Server
from evenhand.simulation import Job
from evenhand.wire.messages import decode, encode
from evenhand.wire.sum_messages import NUMBERS, OFFER, REVEAL
from tests.transcripts import traced

DATA = eh.testing.toy_data()
WORK = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
MEAN, MEDIAN = eh.aggregators.mean(), eh.aggregators.geometric_median(passes=2)


def averaging(aggregator):
    return eh.algorithms.fedavg(WORK, aggregator=aggregator)


def private(fewest):
    """Clients add the noise, which is that of ``fewest`` of them at least."""
    noisy = eh.privacy.discrete_mean(1.0, noise_multiplier=2.0, rate=1.0, fewest=fewest)
    return eh.privacy.private(eh.algorithms.fedavg(WORK, aggregator=noisy, sampling=eh.sampling.fixed(1.0)))


class Listener:
    """What crosses between a server and its clients, and the messages that a lying server sends before its own.

    The tag of a lie is that of the message that is due.  A client that refuses it answers the other as if nothing had
    been; one that obeys takes the other for a replay, and the round fails.
    """

    def __init__(self, method, lie=lambda client, message: ()):
        job = Job(algorithm=method, data=DATA, rounds=1)
        self.server, self.nodes = federation(job, job.slots)
        self.lie, self.up, self.lies = lie, [], []
        carrier: Any = self.server.caller._carrier
        carrier.handlers = {k: self.through(k, handler) for k, handler in carrier.handlers.items()}

    def through(self, client, handler):
        def answer(data):
            message = decode(data)
            for false in self.lie(client, message):
                self.lies.append(decode(handler(encode(false))))
            self.up.append(handler(data))
            return self.up[-1]

        return answer

    def run(self):
        for _ in self.server.run():
            pass
        assert self.server.progress.per_round["reported"][0] == DATA.num_clients
        return self


def refusals(method, lie):
    """The sentences with which clients refuse a lie, after which the round is as it should be."""
    listener = Listener(method, lie).run()
    assert listener.lies and {reply.kind for reply in listener.lies} == {"refused"}
    return {reply.fields["sentence"] for reply in listener.lies}


def obeyed(method, lie):
    """The kinds of the answers to a lie that clients obey, and cannot tell from the truth."""
    listener = Listener(method, lie)
    with pytest.raises(EvenhandError, match="answers in 1 attempts"):
        listener.run()
    return {reply.kind for reply in listener.lies} - {"refused"}


def is_offer(message):
    return message.kind == "sum" and message.fields["inner"]["kind"] == OFFER


# --- what leaves a client ---------------------------------------------------------------------------------------------


def numbers_of(listener, client):
    """The numbers of a client's update, in limbs and as real ones."""
    node = listener.nodes[client]
    _, index, upload = node._upload
    phase = node._method.agreed.algorithm.phases[index]
    lifted = phase.aggregator.lift(upload, (), jax.random.key(0))
    if phase.aggregator.summation is not None:
        lifted = lifted[0]
    trees = {"update": upload.delta, "lifted": lifted}
    return {
        name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]) for name, tree in trees.items()
    }


def test_no_update_of_a_client_reaches_the_server_under_a_secure_sum():
    listener = Listener(averaging(eh.aggregators.secure(MEAN))).run()
    transcript = b"".join(listener.up)
    assert len(transcript) > 1000 * DATA.num_clients
    for client in range(DATA.num_clients):
        assert traced(numbers_of(listener, client), transcript) == {}
    plain = Listener(averaging(MEAN)).run()
    for client in range(DATA.num_clients):
        assert "lifted" in traced(numbers_of(plain, client), b"".join(plain.up))


# --- more than is due -------------------------------------------------------------------------------------------------


def a_pass_in_the_clear(client, message):
    """What the client adds to a sum, without masks."""
    if message.kind in ("sum", "pass"):
        arrays = message.arrays if message.kind == "pass" else ()
        yield message._replace(kind="pass", arrays=arrays)


def test_a_client_gives_nothing_without_masks_that_is_due_under_masks():
    (sentence,) = refusals(averaging(eh.aggregators.secure(MEAN)), a_pass_in_the_clear)
    assert "which leaves the client only under masks" in sentence
    assert obeyed(averaging(MEDIAN), a_pass_in_the_clear) == {"worked"}


def a_report_before_the_work(client, message):
    """The client's loss, and its weight."""
    if message.kind == "work":
        yield message._replace(kind="report", arrays=message.arrays[:2])  # the parameters


def test_a_client_reports_nothing_that_a_secure_sum_hides():
    (sentence,) = refusals(averaging(eh.aggregators.secure(MEAN)), a_report_before_the_work)
    assert "a secure sum hides what clients report" in sentence
    assert obeyed(eh.algorithms.delta_fl(WORK, theta=0.5), a_report_before_the_work) == {"reported"}


class Replays:
    """Begins the first sum of a round anew, once the second has begun."""

    def __init__(self):
        self.first, self.done = {}, set()

    def __call__(self, client, message):
        if message.kind != "sum":
            return
        number, kind = message.fields["number"], message.fields["inner"]["kind"]
        if number == 0 and kind == OFFER:
            self.first[client] = message
        if number == 1 and kind == NUMBERS and client not in self.done:
            self.done.add(client)
            first = self.first[client]
            yield first._replace(fields={**first.fields, "tag": message.fields["tag"]})


def test_a_client_begins_no_sum_anew_once_another_has_begun():
    (sentence,) = refusals(averaging(eh.aggregators.secure(MEDIAN)), Replays())
    assert "this client takes part in one sum of each, in their order" in sentence


def a_pass_that_there_is_not(client, message):
    """Another sum of the same upload: of the others too, the difference of both would be this client's."""
    if is_offer(message):
        inner = message.fields["inner"]
        number = message.fields["number"] + 1
        more = {"number": number, "inner": {**inner, "fields": {**inner["fields"], "number": number}}}
        yield message._replace(fields={**message.fields, **more})


@pytest.mark.parametrize("then", [MEAN, MEDIAN])
def test_a_client_is_in_one_sum_of_each_pass(then):
    (sentence, *_) = refusals(averaging(eh.aggregators.secure(then)), a_pass_that_there_is_not)
    assert "this client takes part in one sum of each, in their order" in sentence


class Isolates:
    """Gives one client another centre, or another model, than it gives to all others."""

    def __init__(self, kind, victim=2):
        self.kind, self.victim = kind, victim

    def __call__(self, client, message):
        return ()

    def changed(self, client, message):
        if client != self.victim or message.kind != self.kind:
            return message
        if self.kind == "sum" and not (is_offer(message) and message.fields["number"] == 1):
            return message
        last = message.arrays[-1] + np.asarray(1, message.arrays[-1].dtype)
        return message._replace(arrays=(*message.arrays[:-1], last))


@pytest.mark.parametrize(("kind", "then"), [("work", MEAN), ("sum", MEDIAN)])
def test_clients_that_were_given_different_numbers_are_in_no_sum_together(kind, then):
    """Else the weights of all others could be made to vanish, and the sum would be one client's numbers."""
    listener, lies = Listener(averaging(eh.aggregators.secure(then))), Isolates(kind)
    carrier: Any = listener.server.caller._carrier
    handlers = carrier.handlers
    for client, handler in list(handlers.items()):
        handlers[client] = lambda data, k=client, h=handler: h(encode(lies.changed(k, decode(data))))
    for _ in listener.server.run():
        pass
    assert listener.server.progress.per_round["absent"][0] >= 1
    assert listener.server.progress.per_round["reported"][0] == DATA.num_clients - 1
    control = Listener(averaging(eh.aggregators.secure(then))).run()
    assert control.server.progress.per_round["absent"][0] == 0


class Ended(Exception):
    """The end of the server's process."""


@pytest.mark.parametrize("then", [MEAN, MEDIAN])
def test_a_server_that_ends_while_shares_are_revealed_loses_that_round_and_no_more(then):
    """Clients would refuse the same sum again, for ever: the run goes on with the next round."""
    method, rounds = averaging(eh.aggregators.secure(then)), 3
    job = Job(algorithm=method, data=DATA, rounds=rounds)
    server, _ = federation(job, job.slots)
    store, carrier, ask = server._store, server.caller._carrier, server.caller._carrier.ask

    def killed(asks, deadline):
        came = ask(asks, deadline)
        messages = [decode(data) for data in asks.values()]
        if any(
            m.kind == "sum" and m.fields["inner"]["kind"] == REVEAL and m.fields["round"] == 1
            for m in messages
        ):
            raise Ended
        return came

    carrier.ask = killed
    with pytest.raises(Ended):
        list(server.run())
    carrier.ask = ask
    setting = server._setting
    resumed = Server(
        server.agreed,
        carrier,
        store,
        keys=server._keys,
        sizes=server.sizes,
        start=server._start,
        eval_every=10,
        patience=setting.patience,
        authority=setting.authority,
    )
    assert resumed.progress.done == 1 and resumed.progress.revealing
    list(resumed.run())
    assert resumed.progress.per_round["reported"] == [DATA.num_clients, 0.0, DATA.num_clients]
    assert resumed.progress.per_round["absent"] == [0.0, DATA.num_clients, 0.0]


# --- noise of clients -------------------------------------------------------------------------------------------------


def a_larger_scale(client, message):
    """Uploads beside which the noise is nothing: the scale is the last array."""
    if is_offer(message):
        yield message._replace(arrays=(*message.arrays[:-1], 1000 * message.arrays[-1]))


def test_a_server_cannot_publish_a_scale_that_makes_a_clients_noise_too_small():
    (sentence,) = refusals(private(fewest=3), a_larger_scale)
    assert "another scale of uploads than that of the method" in sentence


def two_of_them(client, message):
    """A sum of this client and one more."""
    if is_offer(message):
        inner = message.fields["inner"]
        fields = {**inner["fields"], "threshold": 2}
        pair = np.array(sorted({client, (client + 1) % DATA.num_clients}), np.int64)
        yield message._replace(
            fields={**message.fields, "inner": {**inner, "fields": fields}},
            arrays=(pair, *message.arrays[1:]),
        )


def test_a_sum_of_fewer_than_the_noise_is_for_is_refused():
    sentences = refusals(private(fewest=3), two_of_them)
    assert all(
        "2 clients are asked, and it takes part in no sum of fewer than 3" in text for text in sentences
    )
    assert obeyed(private(fewest=2), two_of_them) == {"summed"}
