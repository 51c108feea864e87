"""A federation in one process, in which every message becomes bytes and is parsed again: what deployment means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import communication
from evenhand._platform import check_process
from evenhand.data import FederatedDataset
from evenhand.network.carriers import Answers
from evenhand.network.identities import (
    Identity,
    certificate_of,
    identity_of,
    new_private_key,
    public_key_of,
)
from evenhand.network.node import Allowed, MemoryStore, Node, methods_of
from evenhand.network.server import Patience, Server, ServerRecord
from evenhand.network.terms import Terms, is_masked
from evenhand.rounds import RoundState
from evenhand.simulation import Job, Run, check_job
from evenhand.simulation.program import EXECUTED, ROWS, USEFUL, WORK
from evenhand.simulation.store import Kept
from evenhand.streams import Purpose, keys_of, stream
from evenhand.types import Algorithm

__all__ = ["federation", "local", "run_from", "states_of"]

NDArray = npt.NDArray[Any]


def local(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
) -> Run:
    """Trains over a network that is one process: a server and a client for each of the data set's.

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
    methods = methods_of(algorithm)
    allowed = Allowed(metrics=True, test_keys=True)
    authority, identities = _identities(algorithm, terms)
    nodes = [
        Node(name, methods, data.select([client]), allowed, MemoryStore(), identity=identity)
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
    server.introduce(range(len(nodes)))  # whoever was never asked begins now
    counted = server.progress.counted
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


# --- a run on a network as a result -----------------------------------------------------------------------------------


def run_from(server: Server, progress: ServerRecord, data: FederatedDataset, state: RoundState) -> Run:
    """The result of a run on a network, with the clients' states where they are at hand."""
    agreed, columns = server.agreed, dict[str, NDArray]()
    for name in dict.fromkeys(name for row in progress.history for name in row):
        columns[name] = np.array([row.get(name, np.nan) for row in progress.history])
    columns["round"] = columns["round"].astype(np.int64)
    return Run(
        algorithm=agreed.algorithm,
        data=data,
        seed=agreed.terms.seed or 0,
        history={name: values for name, values in columns.items() if name not in WORK},
        per_round={name: np.array(values) for name, values in progress.per_round.items() if name not in WORK},
        info=_info(server, progress),
        kept=Kept(state),
        clients=progress.last.clients,
        classes=progress.last.classes,
        malicious=np.zeros(agreed.terms.clients, bool),
        last_round=np.asarray(state.last_round, np.int64),
        initial_loss=progress.initial_loss,
        level=progress.last.level,
    )


def _info(server: Server, progress: ServerRecord) -> dict[str, Any]:
    agreed, sums = server.agreed, {name: sum(progress.per_round.get(name, [])) for name in WORK}
    traffic = communication.traffic(agreed.algorithm, agreed.wires)
    secure_sums = progress.done * sum(load.secure_sums for load in traffic)
    down, up = (
        communication.added(*loads) for loads in zip(*((load.down, load.up) for load in traffic), strict=True)
    )
    took_part = round(sum(progress.per_round.get("reported", [])))
    sent = {"down": progress.bytes[0], "up": progress.bytes[1]}
    info: dict[str, Any] = {
        "rounds": progress.done,
        "charged": progress.attempts,
        "cohort": agreed.terms.slots,
        "lanes": 1,
        "devices": 1,
        "floats": {"down": down.numbers, "up": up.numbers},
        "bytes": sent,
        "secure_sums": secure_sums,
        "communication": {
            "rounds": progress.done,
            "secure_sums": secure_sums,
            "per_client_and_round": {
                name: {"numbers": load.numbers, "bytes": load.bytes}
                for name, load in (("down", down), ("up", up))
            },
            "total": {
                name: {"numbers": took_part * load.numbers, "bytes": sent[name]}
                for name, load in (("down", down), ("up", up))
            },
            "took_part": took_part,
            "left_out": round(sum(progress.per_round.get("absent", []))),
            "covers": "All messages between the server and all clients, with headers, keys, shares and evaluations.",
        },
        "restarts": any(wire.restarts for wire in agreed.wires),
        "seconds": dict(server.seconds),
        "steps": {"useful": sums[USEFUL], "executed": sums[EXECUTED]},
        "padded": 0.0,
        "examples": sums[ROWS],
        "examples_per_second": sums[ROWS] / server.seconds["train"] if server.seconds["train"] else 0.0,
    }
    if levels := agreed.algorithm.levels:
        info["levels"] = [level.name for level in levels]
    return info
