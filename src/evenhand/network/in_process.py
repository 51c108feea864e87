"""A federation in one process, in which every message becomes bytes and is parsed again: what deployment means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from evenhand._platform import check_process
from evenhand.data import FederatedDataset
from evenhand.network.carriers import Answers
from evenhand.network.compiled import methods_of
from evenhand.network.exchanging import Patience
from evenhand.network.keeping import MemoryStore
from evenhand.network.node import Node
from evenhand.network.server import Server, run_from
from evenhand.network.terms import Allowed, Terms, is_masked
from evenhand.rounds import RoundState
from evenhand.simulation import Job, Run, check_job
from evenhand.streams import Purpose, keys_of, stream
from evenhand.types import Algorithm
from evenhand.wire.identities import (
    Identity,
    certificate_of,
    identity_of,
    new_private_key,
    public_key_of,
)

__all__ = ["LocalCarrier", "federation", "local", "states_of"]


def local(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
) -> Run:
    """Trains over a network within one process: a server, and one client for each client of the data set.

    What crosses is bytes, which are parsed and checked as those of strangers.  The result is that of
    :func:`evenhand.simulate` with the same arguments, up to rounding: a method that works here works on machines.  It
    is slow; use it to test a method before it is deployed, and to see what is sent.

    Args:
      algorithm: the method.
      data: the clients' examples.
      rounds: as for :func:`evenhand.simulate`, like the arguments that follow.
      cohort: likewise.
      seed: likewise; server and clients derive all keys from it, as in a simulation and never on real machines.
      eval_every: likewise.

    Returns:
      A run as of :func:`evenhand.simulate`; ``info["bytes"]`` has the bytes of all messages, ``"up"`` and ``"down"``.

    Raises:
      EvenhandError: the method cannot be deployed; the sentence says why.

    Example:
      >>> import evenhand as eh
      >>> data = eh.testing.toy_data()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> run = local(method, data, rounds=2, cohort=3)
      >>> simulated = eh.simulate(method, data, rounds=2, cohort=3)
      >>> bool(abs(run.params["w"] - simulated.params["w"]).max() < 1e-6)
      True
    """
    check_process()
    job = Job(algorithm=algorithm, data=data, rounds=rounds, cohort=cohort, seed=seed, eval_every=eval_every)
    check_job(job)
    server, nodes = federation(job, job.slots)
    for _ in server.run():
        pass
    return run_from(server, server.progress, data, states_of(server, nodes))


def federation(job: Job, slots: int) -> tuple[Server, list[Node]]:
    """A server and its clients in one process, before the first round."""
    algorithm, data, name = job.algorithm, job.data, job.algorithm.name or "a method"
    terms = Terms(
        run="local",
        method=name,
        form=data.form,
        label=tuple(data.train.y.shape[1:]),
        clients=data.num_clients,
        capacity=int(data.train.sizes.max()),
        rounds=job.rounds,
        slots=slots,
        seed=job.seed,
    )
    methods = methods_of(lambda form: algorithm)
    allowed = Allowed(metrics=True, test_keys=True)
    authority, identities = _identities(algorithm, terms)
    own = data
    if data.features is not None:  # its columns are on their scale, so that clients have none to agree on
        own = replace(data, features=data.features._replace(standardized=False))
    nodes = [
        Node(name, methods, own.select([client]), allowed, MemoryStore(), identity=identity)
        for client, identity in zip(data.client_ids, identities, strict=True)
    ]
    keys = keys_of(job.seed)
    server = Server(
        methods(terms).agreed,
        LocalCarrier({k: node.answer for k, node in enumerate(nodes)}),
        MemoryStore(),
        keys=keys,
        sizes={"train": data.train.sizes, "valid": data.valid.sizes, "test": data.test.sizes},
        start=algorithm.model.init(stream(keys.shared, Purpose.INIT)) if job.start is None else job.start,
        eval_every=job.eval_every,
        patience=Patience(attempts=1),
        authority=authority,
    )
    return server, nodes


def _identities(algorithm: Algorithm, terms: Terms) -> tuple[bytes, list[Identity | None]]:
    """The public key of an authority, and the identities of all clients, for methods that take part in secure sums."""
    if not any(is_masked(phase.aggregator) for phase in algorithm.phases):
        return b"", [None] * terms.clients
    authority = new_private_key()
    public, made = public_key_of(authority), list[Identity | None]()
    for client in range(terms.clients):
        private = new_private_key()
        certificate = certificate_of(authority, terms.run, client, public_key_of(private))
        made.append(identity_of(terms.run, client, private, certificate, public))
    return public, made


def states_of(server: Server, nodes: Sequence[Node]) -> RoundState:
    """The state of the server, with those of all clients, ``(N, ...)``."""
    server.caller.introduce(range(len(nodes)))  # whoever was never asked begins now
    counted = server.caller.counted
    states = [jax.tree.map(jnp.asarray, node.latest(int(counted[k]))) for k, node in enumerate(nodes)]
    return server.progress.state._replace(clients=jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))


# --- all clients in one process ---------------------------------------------------------------------------------------


class LocalCarrier:
    """A carrier to functions from bytes to bytes.

    Args:
      handlers: client -> what answers its messages; None: the client is absent.
    """

    def __init__(self, handlers: Mapping[int, Callable[[bytes], bytes] | None]) -> None:
        self.handlers = dict(handlers)

    def ask(self, asks: Mapping[int, bytes], deadline: float) -> Answers:
        """The answers of the clients that are there, one after the other."""
        answers, absent = dict[int, bytes](), dict[int, str]()
        for client, data in asks.items():
            handler = self.handlers.get(client)
            if handler is None:
                absent[client] = "it is not connected."
            else:
                answers[client] = handler(data)
        return Answers(answers, absent)

    def connected(self) -> frozenset[int]:
        """The clients that are there."""
        return frozenset(client for client, handler in self.handlers.items() if handler is not None)
