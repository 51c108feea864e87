"""Whatever ends or lies, training goes on: one federation of real commands, to which everything happens in turn.

Its last parameters and its clients' states are those of clients in one process of which just those are missing whose
work could not count: lies, and all of a client that never returns.  All others lose nothing: a round is repeated until
as many as ``min_answers`` have answered.

The tests run in order.  Client 2 tells lies in the first rounds, and waits at a gate, so that a round is in progress.
"""

import json
import os
import re
import resource
import shutil
import signal
import time

import jax
import numpy as np
import pytest
from federation import CLIENTS, DATA, gap, kept, made
from stage import Programs, alive, await_events, events, free_port, until

from evenhand import records
from evenhand.cli._deploy import builder
from evenhand.network import certificates, files, in_process
from evenhand.network.carriers import Answers
from evenhand.simulation import Job
from evenhand.wire import decode

ROUNDS, SEED, DEADLINE = 14, 5, 8.0
LIES = {1: "shape", 2: "nan", 3: "huge", 4: "replay"}
SHIFTED = """
import datetime
import flwr.supernode.node_auth_http_interceptor as signing
now = signing.now
signing.now = lambda: now() - datetime.timedelta(seconds=400)
"""


class Federation:
    """The commands of one federation, and where it is."""

    def __init__(self, home, programs):
        self.home, self.programs, self.clients = home, programs, {}
        options = {"rounds": ROUNDS, "seed": SEED, "deadline": DEADLINE, "min_answers": CLIENTS}
        options["eval_every"] = ROUNDS  # an evaluation would settle what a round leaves pending
        self.folder = made(home / "federation", "scaffold()", free_port(), **options)
        self.log, self.gate = self.folder / "server.log", home / "gate"
        self.gone = None

    def start_server(self):
        self.server = self.programs.start(
            "-m", "evenhand", "deploy", "server", self.folder, output=self.home / "server.txt"
        )

    def start_client(self, number, place=None, environment=None):
        place = place or files.client_folder(self.folder, number)
        start = ["-m", "evenhand"]
        if number == 2:
            plan = {"lies": LIES, "gate": str(self.gate)}
            start = [os.path.join(os.path.dirname(__file__), "liar.py"), json.dumps(plan)]
        return self.programs.start(
            *start,
            "deploy",
            "client",
            place,
            "--data",
            place / "data.npz",
            "--poll",
            0.25,
            output=place / "output.txt",
            environment=environment,
        )

    def client_log(self, number):
        return files.client_folder(self.folder, number) / "client.log"

    def done(self):
        """Rounds that are done, as the server has them on its disk."""
        path = self.folder / "server" / "state.bin"
        return decode(path.read_bytes()).fields["done"] if path.exists() else 0

    def allow(self, rounds):
        """Lets the federation train until so many rounds are done."""
        with records.replacing(self.gate) as temporary:
            temporary.write_text(str(rounds))

    def await_rounds(self, rounds, seconds=90):
        until(lambda: self.done() >= rounds, seconds, f"{rounds} rounds are done")

    def await_gate(self, rounds, seconds=90):
        """Returns in the middle of the round after so many."""
        waiting = self.gate.with_suffix(".waiting")
        until(
            lambda: waiting.exists() and waiting.read_text() == str(rounds),
            seconds,
            "client 2 is at the gate",
        )
        assert self.done() == rounds

    def go_on(self, rounds):
        """Lets the federation train, and returns in the middle of the round after so many."""
        self.allow(rounds)
        self.await_gate(rounds)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    programs = Programs()
    try:
        federation = Federation(tmp_path_factory.mktemp("faults"), programs)
        federation.allow(len(LIES) + 1)
        federation.start_server()
        for number in range(CLIENTS):
            federation.clients[number] = federation.start_client(number)
        yield federation
    finally:
        programs.close()


def of_client(path, kind, number):
    return [event for event in events(path, kind) if event.get("client") == number]


def await_more(path, kind, number, before, seconds=60):
    """Returns when a log has more events of a kind and of a client than before."""
    until(lambda: len(of_client(path, kind, number)) > before, seconds, f"{kind} of client {number}")


def test_lies_do_not_count_and_are_told(federation):
    federation.await_gate(len(LIES) + 1, 180)
    refused = [event["sentence"] for event in of_client(federation.log, "refused", 2)]
    assert len([sentence for sentence in refused if "float32[63, 10]" in sentence]) >= 1
    assert len([sentence for sentence in refused if "not finite" in sentence]) >= 2
    for path in (federation.log, federation.client_log(2)):
        assert any("late or replayed" in event["sentence"] for event in events(path, "replayed"))


def test_a_client_that_is_killed_in_a_round_comes_back_and_strangers_do_not(federation, tmp_path):
    """While it is away, the round waits for it; others try to take its place: one with another key, one whose clock
    is wrong."""
    home = files.client_folder(federation.folder, 1)
    federation.clients[1].kill()
    state = (home / "state.bin").read_bytes()
    unknown, shifted = (shutil.copytree(home, tmp_path / name) for name in ("unknown", "shifted"))
    for place in (unknown, shifted):
        shutil.rmtree(place / "flower")
        (place / "client.log").unlink(missing_ok=True)
    for key in ("node.key", "node.pub"):
        (unknown / key).unlink()
    public = certificates.node_key(unknown)
    (tmp_path / "sitecustomize.py").write_text(SHIFTED)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    strangers = [
        federation.start_client(1, unknown),
        federation.start_client(1, shifted, environment={"PYTHONPATH": paths}),
    ]
    federation.allow(7)
    print_of_key = certificates.fingerprint(public)
    [event] = await_events(unknown / "client.log", "stranger")
    assert "not registered" in event["sentence"]
    assert print_of_key in event["sentence"]
    [event] = await_events(shifted / "client.log", "stranger")
    assert "clock" in event["sentence"]
    told = until(
        lambda: len(some := events(federation.log, "stranger")) > 1 and some, 30, "the server is told"
    )
    assert {event.get("key") for event in told} >= {print_of_key}
    assert any("clock" in event["sentence"] for event in told)
    for stranger, place in zip(strangers, (unknown, shifted), strict=True):
        stranger.end()
        assert (place / "state.bin").read_bytes() == state  # no message has reached it
    assert of_client(federation.log, "absent", 1)
    assert federation.done() < 7  # a round waits: this one, or the next if its answer had arrived
    federation.clients[1] = federation.start_client(1)
    federation.await_gate(7, 180)


def test_a_link_that_is_killed_in_a_round_comes_back_and_so_do_the_clients(federation):
    [link] = federation.server.children()
    os.kill(link, signal.SIGKILL)
    federation.allow(8)
    await_events(federation.log, "resumed")
    federation.await_gate(8)
    for number in range(CLIENTS):
        assert events(federation.client_log(number), "resumed")


def test_a_client_that_is_too_slow_is_asked_again(federation):
    before = len(of_client(federation.log, "absent", 2))
    await_more(federation.log, "absent", 2, before)  # it waits at the gate for longer than the deadline
    time.sleep(3)  # longer by its own clock, too, which has started later
    assert federation.done() == 8
    federation.go_on(9)
    assert events(federation.client_log(2), "late")
    assert of_client(federation.log, "late", 2)


def test_a_client_whose_disk_is_full_is_asked_again(federation):
    process = federation.clients[0].process.pid
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (3000, hard))
    before = (files.client_folder(federation.folder, 0) / "state.bin").read_bytes()
    assert len(before) > 3000
    federation.allow(11)
    for path in (federation.client_log(0), federation.log):
        [event, *_] = await_events(path, "disk")
        assert "free some space on its disk" in event["sentence"]
    assert federation.done() < 11
    resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))
    federation.await_gate(11)


def test_a_server_that_is_killed_in_a_round_goes_on_and_so_it_does_without_one_client(federation):
    """Client 3 never returns: with ``min_answers = 3`` nobody waits for it.

    Client 2 is killed, too, at the gate: the server that has resumed tells it that its work before that has counted.
    """
    [link] = federation.server.children()
    federation.server.kill()
    for number in (2, 3):
        federation.clients[number].kill()
    assert kept(federation.folder, 2).fields["pending"] is not None
    until(lambda: not alive(link), 20, "the SuperLink ends with its server")
    federation.gone = federation.done()
    assert federation.gone == 11
    file = federation.folder / files.SERVER
    file.write_text(re.sub(r"min_answers = \d", "min_answers = 3", file.read_text()))
    absent = len(of_client(federation.log, "absent", 3))
    federation.allow(ROUNDS)
    federation.start_server()
    federation.clients[2] = federation.start_client(2)
    resumed = until(
        lambda: [
            event for event in events(federation.log, "resumed") if "after round 11" in event["sentence"]
        ],
        90,
        "the server says that it has resumed",
    )
    assert len(resumed) == 1
    federation.await_rounds(ROUNDS, 120)
    assert federation.server.process.wait(60) == 0
    assert len(of_client(federation.log, "absent", 3)) > absent


def test_nothing_was_lost(federation, monkeypatch):
    """The oracle: the same clients in one process, without those that could not count."""
    lost = {(round, 2) for round, lie in LIES.items() if lie != "replay"}
    lost |= {(round, 3) for round in range(federation.gone, ROUNDS)}
    server, states = undisturbed(federation.folder, lost, monkeypatch)
    assert gap(server_state(federation, server), server) < 1e-6
    for number in (0, 1, 2):
        assert len(states[number]) == 2
        assert gap(kept(federation.folder, number).arrays, states[number]) < 1e-6


def test_the_lies_would_have_been_seen(federation, monkeypatch):
    """The control: with the work that did not count, the model is another."""
    server, _ = undisturbed(federation.folder, set(), monkeypatch)
    assert gap(server_state(federation, server), server) > 1e-3


def server_state(federation, like):
    """The server's state on its disk, the leaves of a tree."""
    record = decode((federation.folder / "server" / "state.bin").read_bytes())
    return record.arrays[: len(jax.tree.leaves(like))]


def undisturbed(folder, lost, monkeypatch):
    """The state of the server and those of the clients, of whom some are lost in some rounds."""

    class Carrier(in_process.LocalCarrier):
        def ask(self, asks, deadline):
            messages = {client: decode(data) for client, data in asks.items()}
            away = {
                client
                for client, message in messages.items()
                if (message.fields.get("round"), client) in lost
            }
            came = super().ask(
                {client: data for client, data in asks.items() if client not in away}, deadline
            )
            return Answers(came.answers, came.absent | dict.fromkeys(away, "it is lost."))

    monkeypatch.setattr(in_process, "LocalCarrier", Carrier)
    file, data = files.read_server(folder), DATA.load()
    algorithm = builder(file.method, file.options)(data.form)
    job = Job(algorithm=algorithm, data=data, rounds=file.rounds, seed=file.seed, eval_every=file.rounds)
    server, nodes = in_process.federation(job, CLIENTS)
    for _ in server.run():
        pass
    state = in_process.states_of(server, nodes)
    states = [[np.asarray(leaf[k]) for leaf in jax.tree.leaves(state.clients)] for k in range(CLIENTS)]
    return state._replace(clients=()), states
