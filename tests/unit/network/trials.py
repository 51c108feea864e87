"""A server and its clients in one process, in which messages are lost and clients and servers end at any time."""

from collections.abc import Callable

import jax
import numpy as np

from evenhand.network import server as server_module
from evenhand.network.carriers import Answers
from evenhand.network.exchanging import Patience, phase_of_server
from evenhand.network.in_process import states_of
from evenhand.network.keeping import MemoryStore
from evenhand.network.node import Allowed, Node
from evenhand.network.server import Server, run_from
from evenhand.streams import Purpose, keys_of, stream
from evenhand.wire.messages import Packet, decode, encode
from tests.unit.network.sites import DATA, methods, terms

SIZES = {"train": DATA.train.sizes, "valid": DATA.valid.sizes, "test": DATA.test.sizes}
_PHASES = {}


def shared_phase(half):
    """As :func:`phase_of_server`, compiled once for all servers of a method."""
    key = id(half.algorithm), half.number
    if key not in _PHASES:
        _PHASES[key] = half, phase_of_server(half)
    return _PHASES[key][1]


class Killed(Exception):
    """The end of the server's process."""


class Lost(Exception):
    """A message, or its answer, that does not arrive."""


class Trial:
    """A federation.

    Attributes:
      server: the latest process of it; missing before the first.
      through: ``(client, message, answer) -> bytes``, what happens on the way: ``answer()`` gives the client's bytes;
        it may raise :class:`Lost` before or after that, or :class:`Killed`.
      tags: of all messages, with their kinds, in the order in which they were sent.
      down, up: bytes that went to clients and came from them.
    """

    server: Server

    def __init__(
        self,
        algorithm,
        *,
        rounds=4,
        cohort=3,
        seed=1,
        eval_every=10,
        patience=None,
        allowed=None,
        random=None,
    ):
        self.algorithm, self.eval_every = algorithm, eval_every
        slots = algorithm.sampling.slots(DATA.num_clients) if algorithm.sampling.slots else cohort
        # A run without a seed has keys of the operating system, whose bytes are then the test's.
        self.terms = terms(algorithm, rounds=rounds, slots=slots, seed=seed if random is None else None)
        self.keys, self.log, self.client_log = keys_of(seed), [], []
        self.patience = patience or Patience(attempts=1, pause=0.0)
        self.store, self.tags, self.down, self.up = MemoryStore(), [], 0, 0
        self.stores = [MemoryStore() for _ in DATA.client_ids]
        self.allowed = allowed or Allowed(metrics=True, test_keys=True)
        self.random = random or (lambda count: bytes(count))
        self.nodes = [self._node(client) for client in range(DATA.num_clients)]
        self.through: Callable[..., bytes] = lambda client, message, answer: answer()

    def _node(self, client):
        own = DATA.select([DATA.client_ids[client]])
        log = lambda event, sentence, fields: self.client_log.append((client, event, sentence))  # noqa: E731
        method = methods(self.algorithm)
        return Node(
            self.algorithm.name, method, own, self.allowed, self.stores[client], log=log, random=self.random
        )

    def restart(self, client):
        self.nodes[client] = self._node(client)

    # What the server calls.

    def ask(self, asks, deadline):
        answers, absent = {}, {}
        for client, data in asks.items():
            message = decode(data)
            self.down += len(data)
            if message.kind != "terms":
                self.tags.append((client, message.fields["tag"], message.kind))

            def answer(client=client, data=data):
                return self.nodes[client].answer(data)

            try:
                answers[client] = self.through(client, message, answer)
                self.up += len(answers[client])
            except Lost as error:
                absent[client] = str(error) or "it is not connected."
        return Answers(answers, absent)

    def connected(self):
        return frozenset(range(DATA.num_clients))

    def serve(self):
        """A new process of the server."""
        self.server = Server(
            methods(self.algorithm)(self.terms).agreed,
            self,
            self.store,
            keys=self.keys,
            sizes=SIZES,
            start=self.algorithm.model.init(stream(self.keys.shared, Purpose.INIT)),
            eval_every=self.eval_every,
            patience=self.patience,
            log=lambda event, sentence, fields: self.log.append((fields.get("client"), event, sentence)),
        )
        return self.server

    def run(self):
        """To the end, by a new process."""
        for _ in self.serve().run():
            pass
        return self

    @property
    def result(self):
        return run_from(self.server, self.server.progress, DATA, self.state)

    @property
    def epsilon(self):
        """What the run has spent."""
        privacy = self.result.privacy
        assert privacy is not None
        return privacy.epsilon

    @property
    def state(self):
        """Of server, aggregators and all clients."""
        through, self.through = self.through, lambda client, message, answer: answer()
        state = states_of(self.server, self.nodes)
        self.through = through
        return state

    def events(self, client):
        return [(event, sentence) for k, event, sentence in self.log if k == client]


def share_phases(monkeypatch):
    monkeypatch.setattr(server_module, "phase_of_server", shared_phase)


def assert_same(one, other, rtol=0.0, atol=0.0):
    """Of two trees, all numbers."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, its in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(its), rtol=rtol, atol=atol)


def differ(one, other):
    return any(
        not np.array_equal(mine, its)
        for mine, its in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def damaged(answer, change):
    """An answer whose message was changed."""
    return encode(change(decode(answer)))


def packet(kind, fields=None, arrays=()):
    return encode(Packet(kind, fields or {}, tuple(arrays)))
