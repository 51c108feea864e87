"""What a sum in several passes costs per round, and how much memory client states take.

    python benchmarks/passes.py [--repeats 7] [--clients 1000] [--passes 5]
    JAX_NUM_CPU_DEVICES=1 python benchmarks/passes.py --states 100000

The first prints median milliseconds per round of all of so many clients with one row each, which train a
softmax regression of 7,850 numbers for one step: reduced by the mean, by a smoothed geometric median in passes, by
the same median over stacked uploads, and by the median of each coordinate, which takes stacked uploads; and the ratios
to the mean's round.  The methods take turns.  The second trains
SCAFFOLD, which keeps a state at each client, and prints the peak memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import evenhand as eh
from evenhand import tree
from evenhand.aggregators import in_passes
from evenhand.simulation import Execution, Job, engine
from evenhand.simulation.setup import set_up
from evenhand.types import Array, Key, PyTree, Stack, Sum, Upload


class _Median(NamedTuple):
    point: PyTree
    number: Array


def geometric_median(passes: int) -> Sum:
    """Smoothed Weiszfeld (Pillutla et al., 2022): the mean first, then means weighted by closeness to the last."""

    def lift(upload: Upload, public: _Median, key: Key) -> PyTree:
        distance = tree.norm(tree.subtract(upload.delta, public.point))
        closeness = jnp.where(public.number == 0, 1.0, 1.0 / jnp.maximum(distance, 1e-5))
        return tree.scale(upload.weight * closeness, upload.delta), upload.weight * closeness

    def lower(total: PyTree, state: _Median, key: Key) -> tuple[PyTree, _Median]:
        deltas, weight = total
        point = tree.scale(1.0 / jnp.maximum(weight, 1e-12), deltas)
        return point, _Median(point, (state.number + 1) % passes)

    def init(like: PyTree, clients: int) -> _Median:
        return _Median(like, jnp.int32(0))

    return Sum(init, lift, lower, publish=lambda state: state, passes=passes)


def stacked(aggregator: Sum) -> Stack:
    """The same aggregator over all uploads at once."""

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        def sum_of(public: PyTree, number: int) -> PyTree:
            lifted = jax.vmap(lambda upload: aggregator.lift(upload, public, key))(uploads)
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), tree.among(present, lifted))

        return in_passes(aggregator, state, key, sum_of)

    return Stack(aggregator.init, apply)


def coordinate_median() -> Stack:
    """The median of each coordinate over the clients in the slots that are filled."""

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        def median(leaf: Array) -> Array:
            filled = present.reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.nan_to_num(jnp.nanmedian(jnp.where(filled, leaf, jnp.nan), axis=0))

        return jax.tree.map(median, uploads.delta), state

    return Stack(lambda like, clients: (), apply)


def federation(clients: int) -> tuple[eh.data.FederatedDataset, eh.Model]:
    """Clients of one row each, and a model of 7,850 numbers."""
    x = np.random.default_rng(0).normal(size=(clients, 784)).astype(np.float32)
    y, offsets = (np.arange(clients) % 10).astype(np.int32), np.arange(clients + 1)
    nothing = eh.data.Split(x[:0], y[:0], np.zeros(clients + 1, np.int64))
    data = eh.data.FederatedDataset(
        train=eh.data.Split(x, y, offsets),
        valid=nothing,
        test=nothing,
        client_ids=tuple(map(str, range(clients))),
    )
    return data, eh.models.softmax_regression(features=784, classes=10)


class Rounds:
    """A method, ready to run."""

    def __init__(self, method: eh.Algorithm, data: eh.data.FederatedDataset) -> None:
        self.setup = set_up(Job(method, data, rounds=1, execution=Execution(stream=False)))
        self.state, self.number = self.setup.state, 0
        self.run(1)

    def run(self, count: int) -> float:
        """Seconds per round."""
        begin = time.perf_counter()
        setup = self.setup
        self.state, _ = engine.run_rounds(
            setup.program, self.state, setup.rows, setup.keys, self.number, count
        )
        jax.block_until_ready(self.state)
        self.number += count
        return (time.perf_counter() - begin) / count


def compare(clients: int, passes: int, repeats: int) -> None:
    """Prints the ratios."""
    data, model = federation(clients)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    median = geometric_median(passes)
    reduced: dict[str, Any] = {
        "mean": eh.aggregators.mean(),
        f"{passes} passes": median,
        f"{passes} passes, stacked": stacked(median),
        "median of coordinates": coordinate_median(),
    }
    runs = {name: Rounds(eh.algorithms.fedavg(work, aggregator=each), data) for name, each in reduced.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, rounds in runs.items():
            seconds[name].append(rounds.run(3))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:24} {1e3 * value:9.1f} ms {value / medians['mean']:7.1f} x")


def client_states(clients: int) -> None:
    """Prints the peak memory of training with a state at each client."""
    data, model = federation(clients)
    method = eh.algorithms.scaffold(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
    eh.simulate(method, data, rounds=20, cohort=10, eval_every=5, eval_clients=100)
    peak, store = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, clients * 7850 * 4 / 2**30
    print(f"{clients:,} states of 7,850 numbers: one store is {store:.1f} GiB, the peak {peak:.1f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--states", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.states:
        client_states(chosen.states)
    else:
        compare(chosen.clients, chosen.passes, chosen.repeats)


if __name__ == "__main__":
    main()
