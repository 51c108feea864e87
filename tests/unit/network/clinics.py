"""A federation of clients in one process, with the messages between them and a server."""

from collections.abc import Mapping

import numpy as np

from evenhand import EvenhandError
from evenhand.wire.identities import Identity, certificate_of, new_private_key, public_key_of
from evenhand.wire.messages import decode, encode
from evenhand.wire.secure_sums import Protection, SumSession
from evenhand.wire.sum_messages import STEPS, Occasion, sum_terms

SIGNER = new_private_key()
"""Of the authority: the private key."""


AUTHORITY = public_key_of(SIGNER)
WHEN = Occasion("clinics", "first", 7, 0)


def identity(client, signer=SIGNER, federation="clinics"):
    private = new_private_key()
    certificate = certificate_of(signer, federation, client, public_key_of(private))
    return Identity(federation, client, private, certificate, AUTHORITY)


CLIENTS = {client: identity(client) for client in range(9)}


ASKS_LITTLE = Protection()


class Network:
    """Clients in one process: each message is encoded and decoded on its way, and kept."""

    def __init__(self, sessions, lost: Mapping[str, tuple[int, ...]] | None = None):
        self.sessions, self.lost = sessions, lost or {}
        self.up, self.down = [], []
        self.refusals = {}

    def ask(self, asks):
        answers = {}
        for client, message in asks.items():
            self.down.append((client, message.kind, encode(message)))
            # Once lost, for ever.
            gone = [k for kind in STEPS[: STEPS.index(message.kind) + 1] for k in self.lost.get(kind, ())]
            if client in gone:
                continue
            try:
                answer = encode(self.sessions[client].answer(decode(encode(message))))
            except EvenhandError as error:
                self.refusals[client] = str(error)
                continue
            self.up.append((client, message.kind, answer))
            answers[client] = decode(answer)
        return answers


def numbers_of(clients, size=5, bits=64, seed=0):
    rng = np.random.default_rng(seed)
    return {client: rng.integers(0, 2**bits, size, dtype=f"uint{bits}") for client in clients}


def sessions_of(numbers, occasion=WHEN, protection=ASKS_LITTLE, *, clients=CLIENTS):
    return {client: SumSession(clients[client], occasion, numbers[client], protection) for client in numbers}


def terms_for(numbers, occasion=WHEN, colluding=0):
    first = next(iter(numbers.values()))
    return sum_terms(occasion, numbers, bits=8 * first.dtype.itemsize, size=len(first), colluding=colluding)


def total(numbers, clients):
    return sum((numbers[client] for client in clients), start=np.zeros_like(next(iter(numbers.values()))))
