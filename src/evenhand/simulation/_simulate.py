"""Running a method on data: ``simulate`` and the generator under it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.evaluation import Prepared, evaluate_personal, is_higher_better, per_client, prepare, summarize
from evenhand.simulation import _engine, _round
from evenhand.simulation._checks import check_first_losses, check_model, check_numbers
from evenhand.simulation._engine import Program
from evenhand.simulation._progress import Progress
from evenhand.simulation._round import RoundState, Rows
from evenhand.simulation._run import Run, primary_metric
from evenhand.streams import Purpose, stream
from evenhand.systems import Systems
from evenhand.types import Algorithm, Array, Attack, Params, PyTree

__all__ = ["iterate", "simulate"]

NDArray = npt.NDArray[Any]


def simulate(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
    attack: Attack | None = None,
    systems: Systems | None = None,
    progress: bool = False,
    lanes: int | None = None,
) -> Run:
    """Runs a federated method over simulated clients, on whatever device JAX finds.

    Args:
      algorithm: the method, e.g. ``eh.algorithms.fedavg(...)``.
      data: the clients' rows.
      rounds: how many rounds; 0 gives the untouched initial model.
      cohort: clients drawn per round, at most all of them; None: everybody.
      seed: decides everything random.  The same seed gives every method the same initial model, cohorts,
        stragglers and mini-batches, and the same run again bit for bit on the same hardware.
      eval_every: rounds between two evaluations of all clients; round 0 and the last one are always evaluated.
      attack: what liars among the clients do.
      systems: stragglers, e.g. ``eh.systems.stragglers(0.9)``.
      progress: show a live bar.
      lanes: clients trained side by side; None: one on a CPU, up to 64 on an accelerator.  The result does not
        depend on it beyond rounding.

    Raises:
      EvenhandError: a number out of range, or parts that do not go together.

    Example:
      >>> import evenhand as eh, optax
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(model, client_opt=optax.sgd(0.1), epochs=1, batch_size=10)
      >>> run = simulate(method, data, rounds=4, cohort=5, eval_every=2)
      >>> run.history["round"].tolist()
      [0, 2, 4]
    """
    run = None
    for run in iterate(  # noqa: B007  (the last one is the result)
        algorithm,
        data,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        eval_every=eval_every,
        attack=attack,
        systems=systems,
        progress=progress,
        lanes=lanes,
    ):
        pass
    assert run is not None
    return run


def iterate(
    algorithm: Algorithm,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    eval_every: int = 10,
    attack: Attack | None = None,
    systems: Systems | None = None,
    progress: bool = False,
    lanes: int | None = None,
) -> Iterator[Run]:
    """As :func:`simulate`, but hands out the :class:`Run` so far at each evaluation, the first at round 0.

    Use it to watch a run, to stop it early, or to keep what there is when it is interrupted.

    Example:
      >>> import evenhand as eh, optax
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(model, client_opt=optax.sgd(0.1), epochs=1, batch_size=10)
      >>> for run in iterate(method, data, rounds=100, eval_every=2):
      ...     if run.history["test_accuracy"][-1] > 0.5:
      ...         break
      >>> run.info["rounds"] < 100
      True
    """
    cohort = check_numbers(algorithm, data, rounds, cohort, eval_every, lanes)
    check_model(algorithm.model, data)
    root = jax.random.key(seed)
    rows = device_rows(data, attack, seed)
    program = Program(
        algorithm=algorithm,
        cohort=cohort,
        capacity=int(data.train.sizes.max()),
        lanes=_default_lanes(cohort or data.num_clients) if lanes is None else lanes,
        systems=systems,
        attack=attack,
        buffer=max(1, min(eval_every, rounds)),
    )
    params = algorithm.model.init(stream(root, Purpose.INIT))
    wires = _round.wires(algorithm, params, rows)
    state = _round.begin(algorithm, params, rows, wires)
    traffic = _round.traffic(algorithm, wires)
    yield from _Simulation(program, data, rows, root, seed, traffic).run(state, rounds, eval_every, progress)


class _Simulation:
    """One run in progress: what is measured along the way."""

    def __init__(
        self,
        program: Program,
        data: FederatedDataset,
        rows: Rows,
        root: Array,
        seed: int,
        traffic: Mapping[str, int],
    ) -> None:
        self.program, self.data, self.rows, self.root, self.seed = program, data, rows, root, seed
        self.evaluation = _Evaluation(program.algorithm, data, program.lanes)
        self.traffic = traffic
        self.seconds = {"compile": 0.0, "train": 0.0, "evaluate": 0.0}
        self.history: list[dict[str, float]] = []
        self.per_round: list[dict[str, NDArray]] = []

    def run(self, state: RoundState, rounds: int, eval_every: int, show: bool) -> Iterator[Run]:
        with Progress(rounds, show) as progress:
            yield self._evaluate(state, 0)
            done = 0
            if rounds:
                self._timed("compile", state, 0, 0)
            while done < rounds:
                until = min(rounds, (done // eval_every + 1) * eval_every)
                while done < until:
                    count = min(until - done, progress.next_count())
                    state = self._timed("train", state, done, count)
                    done += count
                    progress.update(done, self.history[-1].get("train_loss", np.nan))
                run = self._evaluate(state, done)
                progress.update(done, self.history[-1].get("train_loss", np.nan))
                yield run

    def _timed(self, activity: str, state: RoundState, first: int, count: int) -> RoundState:
        begin = time.perf_counter()
        state, infos = _engine.run_rounds(self.program, state, self.rows, self.root, first, count)
        jax.block_until_ready(state)
        if count:
            self.per_round.append({name: np.asarray(info)[:count] for name, info in infos.items()})
        self.seconds[activity] += time.perf_counter() - begin
        return state

    def _evaluate(self, state: RoundState, done: int) -> Run:
        begin = time.perf_counter()
        clients = self.evaluation.clients(state)
        if done == 0:
            check_first_losses(clients, self.data)
        row = {"round": done, **self.evaluation.columns(clients)}
        if self.per_round:
            row |= {name: float(info[-1]) for name, info in self.per_round[-1].items()}
        self.history.append(row)
        self.seconds["evaluate"] += time.perf_counter() - begin
        names = list(self.per_round[0]) if self.per_round else []
        per_round = {name: np.concatenate([part[name] for part in self.per_round]) for name in names}
        info = {
            "rounds": done,
            "cohort": self.program.cohort or self.data.num_clients,
            "lanes": self.program.lanes,
            "floats": self.traffic,
            "seconds": dict(self.seconds),
        }
        return Run(
            self.program.algorithm, self.data, self.seed, self._columns(), per_round, info, state, clients
        )

    def _columns(self) -> dict[str, NDArray]:
        names = dict.fromkeys(name for row in self.history for name in row)
        columns = {name: np.array([row.get(name, np.nan) for row in self.history]) for name in names}
        return columns | {"round": columns["round"].astype(np.int64)}


class _Evaluation:
    """All clients on all splits, each with the model that it is served."""

    def __init__(self, algorithm: Algorithm, data: FederatedDataset, lanes: int) -> None:
        self.algorithm, self.lanes = algorithm, lanes
        splits = {"train": data.train, "valid": data.valid, "test": data.test}
        self.splits: dict[str, Prepared] = {name: prepare(split) for name, split in splits.items()}

    def _personal(self, states: PyTree, k: Array) -> Params:
        server, clients = states
        assert self.algorithm.personal_params is not None
        return self.algorithm.personal_params(server, jax.tree.map(lambda leaf: leaf[k], clients))

    def clients(self, state: RoundState) -> dict[str, dict[str, NDArray]]:
        model = self.algorithm.model
        if self.algorithm.personal_params is None:
            params = self.algorithm.global_params(state.server)
            return {name: per_client(model, params, split) for name, split in self.splits.items()}
        states = (state.server, state.clients)
        return {
            name: evaluate_personal(model, states, split, params_of=self._personal, lanes=self.lanes)
            for name, split in self.splits.items()
        }

    def columns(self, clients: Mapping[str, Mapping[str, NDArray]]) -> dict[str, float]:
        columns: dict[str, float] = {}
        for split, metrics in clients.items():
            sizes = self.splits[split].sizes
            if not sizes.any():
                continue
            for name, values in metrics.items():
                has = sizes > 0
                columns[f"{split}_{name}"] = float(np.average(values[has], weights=sizes[has]))
            name = primary_metric(metrics)
            spread = summarize(metrics[name], sizes, higher_is_better=is_higher_better(name))
            columns |= {f"{split}_{name}_{what}": spread[what] for what in ("worst10", "best10", "variance")}
        return columns


def device_rows(data: FederatedDataset, attack: Attack | None, seed: int) -> Rows:
    """The training rows on the device, those of liars poisoned."""
    x, y = data.train.x, data.train.y
    liars = np.zeros(data.num_clients, bool)
    if attack is not None:
        rng = np.random.default_rng((seed, int(Purpose.LIARS)))
        count = int(attack.fraction * data.num_clients + 1e-9)  # 29 % of 100 are 29, not 28.999999999999996
        liars[rng.choice(data.num_clients, count, replace=False)] = True
        if attack.rows is not None:
            x, y = x.copy(), y.copy()
            for k in np.flatnonzero(liars):
                own = slice(int(data.train.offsets[k]), int(data.train.offsets[k + 1]))
                poison = np.random.default_rng((seed, int(Purpose.ATTACK), int(k)))
                x[own], y[own] = attack.rows(x[own], y[own], poison)
    starts, sizes = data.train.offsets[:-1].astype(np.int32), data.train.sizes.astype(np.int32)
    return Rows(jnp.asarray(x), jnp.asarray(y), jnp.asarray(starts), jnp.asarray(sizes), jnp.asarray(liars))


def _default_lanes(cohort: int) -> int:
    return 1 if jax.default_backend() == "cpu" else min(cohort, 64)
