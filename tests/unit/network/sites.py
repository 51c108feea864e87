"""Clients of a federation and what a server sends them, without a server."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import evenhand as eh
from evenhand import rounds
from evenhand._version import __version__
from evenhand.network.compiled import methods_of
from evenhand.network.keeping import MemoryStore
from evenhand.network.measuring import shown_state
from evenhand.network.node import Allowed, Node
from evenhand.network.terms import Terms
from evenhand.wire.messages import Packet as Message
from evenhand.wire.messages import decode, encode, packed, unpacked
from evenhand.wire.secure_sums import Protection

DATA = eh.testing.toy_data()
MODEL = eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
SCAFFOLD = eh.algorithms.scaffold(WORK, aggregator=eh.aggregators.geometric_median(3, start="mean"))
"""Clients keep a state, and are asked for three sums in each exchange."""

CENTRAL = eh.privacy.dp_fedavg(WORK, clip=0.01, noise_multiplier=1.0, rate=0.5)
"""Uploads are clipped, with a clip that the server publishes; the server adds noise."""

NOISY = eh.algorithms.fedavg(
    eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.25, steps=2)
)
"""Each client adds noise to its own gradients."""


def epsilon_of_central(rounds):
    """What so many rounds of it spend."""
    assert CENTRAL.privacy is not None
    return eh.privacy.account(CENTRAL.privacy, rounds=rounds, units=6).epsilon


def terms(algorithm, **changes):
    usual = Terms(
        run="first",
        method=algorithm.name,
        form=DATA.form,
        label=(),
        clients=DATA.num_clients,
        capacity=int(DATA.train.sizes.max()),
        rounds=4,
        slots=3,
    )
    return usual._replace(**changes)


_COMPILED = {}


def methods(algorithm):
    """As :func:`methods_of`, with one cache for all tests."""

    def method(agreed_terms):
        key = id(algorithm), agreed_terms
        if key not in _COMPILED:
            _COMPILED[key] = methods_of(lambda form: algorithm)(agreed_terms)
        return _COMPILED[key]

    return method


class BrokenStore(MemoryStore):
    """A store on a disk that may be full."""

    def __init__(self):
        super().__init__()
        self.is_full, self.writes = False, 0

    def write(self, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.writes += 1
        super().write(data)


def random_bytes(seed):
    return np.random.default_rng(seed).bytes


class Site:
    """A client, its store and its log, and a server's messages to it.

    Messages are those of an honest server, but for the fields that a test gives.
    """

    def __init__(
        self, algorithm=SCAFFOLD, *, allowed=None, store=None, random=0, client=2, colluding=0, **changes
    ):
        self.algorithm, self.terms, self.client = algorithm, terms(algorithm, **changes), client
        self.allowed = Allowed(metrics=True) if allowed is None else allowed
        self.protection = Protection(colluding=colluding)
        self.store, self.log, self.tag = store or BrokenStore(), [], 0
        self.random: Callable[..., bytes] = random_bytes(random)
        self.method = methods(algorithm)(self.terms)
        self.agreed = self.method.agreed
        self.params = MODEL.init(jax.random.key(5))
        begun = rounds.begin(
            self.agreed.algorithm, self.params, self.terms.clients, self.agreed.wires, self.terms.capacity
        )
        self.server, self.memory = begun.server, begun.aggregators[0]
        self.node = self.restarted()

    def restarted(self):
        """A new process on the same store."""
        own = DATA.select([DATA.client_ids[self.client]])
        self.node = Node(
            self.algorithm.name,
            methods(self.algorithm),
            own,
            self.allowed,
            self.store,
            protection=self.protection,
            log=lambda event, sentence, fields: self.log.append((event, sentence)),
            random=lambda count: self.random(count),
        )
        return self.node

    def send(self, kind, fields, arrays=()):
        return decode(self.node.answer(encode(Message(kind, fields, tuple(arrays)))))

    def begin(self, arrays=None, **fields):
        """Announces the run."""
        announced = {
            "version": __version__,
            "method": self.terms.method,
            "terms": self.terms.to_json(),
            "client": self.client,
            **fields,
        }
        return self.send("terms", announced, packed(self.params) if arrays is None else arrays)

    def begun(self):
        assert self.begin().kind == "agreed"
        return self

    def usual(self, **fields):
        """The fields of each message of a run."""
        self.tag += 1
        common = {"run": self.terms.run, "schema": self.agreed.schema, "tag": self.tag, "counted": -1}
        return {**common, **fields}

    def exchange(self, **fields):
        """The fields of a message of an exchange."""
        key = [0, 7] if self.algorithm.privacy is None else None
        more = {"phase": 0, "round": 0, "cohort": 3, "progress": 1.0}
        return self.usual(**more, **({"key": key} if key else {}), **fields)

    def work(self, arrays=None, **fields):
        return self.send(
            "work", {**self.exchange(), **fields}, self.broadcast() if arrays is None else arrays
        )

    def broadcast(self):
        phase = self.agreed.algorithm.phases[0]
        message = packed(phase.broadcast(self.server, jnp.int32(self.client)))
        return (*message, *self.public())

    def public(self):
        aggregator = self.agreed.algorithm.phases[0].aggregator
        return packed(aggregator.publish(self.memory)) if isinstance(aggregator, eh.types.Sum) else ()

    def evaluate(self, **fields):
        return self.send(
            "evaluate",
            {**self.usual(), "own": False, "key": [0, 7], "round": 0, "split": "test", **fields},
            shown_state(self.agreed, self.server),
        )

    def settle(self, **fields):
        return self.send("settle", {**self.usual(), **fields})

    def lifted(self, answer):
        """What an answer adds to the sum."""
        wire = self.agreed.wires[0]
        like = (wire.report, wire.delta if wire.lifted == () else wire.lifted)
        return unpacked(answer.arrays, like, "an answer")[1]

    @property
    def kept(self):
        """What is in the store, once something was written."""
        data = self.store.read()
        assert data is not None
        return data

    def state(self, counted=-1):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.node.latest(counted))]


def equal(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), one, other))
