"""One client of the federation in a process of its own: it has its rows, its state and a pipe, and no engine.

``python pipe_client.py K`` answers one request after the other, each a pickled tuple, until its input ends.
"""

from __future__ import annotations

import pickle
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import evenhand as eh
from evenhand import rounds
from evenhand.streams import keys_of
from evenhand.types import Algorithm, ClientData, Key, Phase, Sum, Upload

SEED = 4
DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
_WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4, schedule=eh.local.steps(0.5, every=1))
METHOD: Algorithm = eh.personalization.ditto(
    eh.algorithms.feddane(
        _WORK, mu=0.1, aggregator=eh.aggregators.geometric_median(3, start="mean"), fresh_cohort=False
    ),
    _WORK,
    lam=0.5,
)


class Client:
    """What a device holds between requests."""

    def __init__(self, k: int) -> None:
        x, y = DATA.train.client(k)
        self.k, self.keys, self.memory = jnp.int32(k), keys_of(SEED), METHOD.init_client(_initial())
        capacity = int(DATA.train.sizes.max())
        self.data = ClientData(
            jnp.asarray(x), jnp.asarray(y), jnp.int32(0), jnp.int32(len(y)), jnp.float32(1.0), capacity
        )
        self.works = [jax.jit(partial(self._work, phase)) for phase in METHOD.phases]

    def _work(self, phase: Phase, message: Any, memory: Any, key: Key, number: Any) -> tuple[Any, Any]:
        return phase.work(message, memory, self.data._replace(round=number), key)

    def train(self, number: int, index: int, message: Any) -> tuple[Any, Any]:
        """The report, and whether the upload is fit to be summed; the upload stays here."""
        phase, streams = METHOD.phases[index], rounds.phase_stream(METHOD, index)
        key = rounds.work_key(self.keys, number, streams, self.k)
        report = phase.report(message, self.memory, self.data)
        delta, self.memory = self.works[index](message, self.memory, key, jnp.int32(number))
        self.upload = Upload(delta, report.weight, report.loss)
        return report, rounds.accepts_delta(delta)

    def lift(self, number: int, index: int, step: int, public: Any) -> Any:
        """What it sends in one pass of the sum."""
        aggregator, streams = METHOD.phases[index].aggregator, rounds.phase_stream(METHOD, index)
        assert isinstance(aggregator, Sum)
        key = jax.random.fold_in(rounds.lift_key(self.keys, number, streams, self.k), step)
        return aggregator.lift(self.upload, public, key)

    def personal(self, server: Any) -> Any:
        """The model that it is served."""
        assert METHOD.personal_params is not None
        return METHOD.personal_params(server, self.memory)


def _initial() -> Any:
    return MODEL.init(eh.streams.stream(keys_of(SEED).shared, eh.streams.Purpose.INIT))


def main() -> None:
    client = Client(int(sys.argv[1]))
    # Named one by one: a request is data, and chooses among these.
    answers = {"train": client.train, "lift": client.lift, "personal": client.personal}
    while True:
        try:
            name, *request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer = jax.tree.map(np.asarray, answers[name](*request))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
