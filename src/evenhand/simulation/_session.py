"""One run in progress: its rounds, its evaluations, its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import Prepared, evaluate_personal, is_higher_better, per_client, prepare, summarize
from evenhand.simulation import _engine
from evenhand.simulation._checkpoint import Checkpoints, Snapshot
from evenhand.simulation._checks import check_first_losses
from evenhand.simulation._engine import Program
from evenhand.simulation._progress import Progress
from evenhand.simulation._round import RoundState, Rows
from evenhand.simulation._run import Run, primary_metric
from evenhand.types import Array, Params, PyTree

__all__ = ["Session"]

NDArray = npt.NDArray[Any]


class Session:
    """A program with its data, and what has been measured so far."""

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
        self.evaluation = _Evaluation(program, data, rows)
        self.traffic = traffic
        self.seconds = {"compile": 0.0, "train": 0.0, "evaluate": 0.0}
        self.history: list[dict[str, float]] = []
        self.per_round: dict[str, NDArray] = {}

    def run(
        self,
        state: RoundState,
        rounds: int,
        eval_every: int,
        checkpoints: Checkpoints | None,
        progress: Progress,
    ) -> Iterator[Run]:
        """Hands out the run so far at each evaluation, having saved it first."""
        done, found = 0, None if checkpoints is None else checkpoints.load()
        if found is not None:
            if found.done > rounds:
                raise EvenhandError(
                    f"The checkpoint has {found.done} rounds done, more than rounds={rounds}: "
                    f"ask for at least as many, or give another folder."
                )
            state, done, self.history, self.per_round, self.seconds = found
        clients = self._evaluate(state, done, record=found is None)
        yield self._snapshot(state, done, clients, None if found else checkpoints)
        if done < rounds:
            self._train("compile", state, 0, 0)
        while done < rounds:
            until = min(rounds, (done // eval_every + 1) * eval_every)
            while done < until:
                count = min(until - done, progress.next_count())
                state = self._train("train", state, done, count)
                done += count
                progress.update(done, self._loss())
            clients = self._evaluate(state, done, record=True)
            progress.update(done, self._loss())
            yield self._snapshot(state, done, clients, checkpoints)

    def _train(self, activity: str, state: RoundState, first: int, count: int) -> RoundState:
        begin = time.perf_counter()
        state, infos = _engine.run_rounds(self.program, state, self.rows, self.root, first, count)
        jax.block_until_ready(state)
        new = {name: np.asarray(info)[:count] for name, info in infos.items()}
        before = self.per_round
        self.per_round = {
            name: np.concatenate([before[name], told]) if name in before else told
            for name, told in new.items()
        }
        self.seconds[activity] += time.perf_counter() - begin
        return state

    def _evaluate(self, state: RoundState, done: int, *, record: bool) -> dict[str, dict[str, NDArray]]:
        begin = time.perf_counter()
        clients = self.evaluation.clients(state)
        if done == 0:
            check_first_losses(clients, self.data)
        if record:
            told = {name: float(info[-1]) for name, info in self.per_round.items() if len(info)}
            self.history.append({"round": done, **self.evaluation.columns(clients), **told})
        self.seconds["evaluate"] += time.perf_counter() - begin
        return clients

    def _snapshot(
        self,
        state: RoundState,
        done: int,
        clients: Mapping[str, Mapping[str, NDArray]],
        checkpoints: Checkpoints | None,
    ) -> Run:
        if checkpoints is not None:
            begin = time.perf_counter()
            checkpoints.save(Snapshot(state, done, self.history, self.per_round, self.seconds))
            self.seconds["checkpoint"] = self.seconds.get("checkpoint", 0.0) + time.perf_counter() - begin
        info = {
            "rounds": done,
            "cohort": self.program.cohort,
            "lanes": self.program.lanes,
            "floats": dict(self.traffic),
            "seconds": dict(self.seconds),
        }
        per_round = {name: values for name, values in self.per_round.items() if len(values)}
        return Run(
            self.program.algorithm, self.data, self.seed, self._columns(), per_round, info, state, clients
        )

    def _loss(self) -> float:
        return self.history[-1].get("train_loss", float("nan"))

    def _columns(self) -> dict[str, NDArray]:
        names = dict.fromkeys(name for row in self.history for name in row)
        columns = {name: np.array([row.get(name, np.nan) for row in self.history]) for name in names}
        return columns | {"round": columns["round"].astype(np.int64)}


class _Evaluation:
    """All clients on all splits, each with the model that it is served."""

    def __init__(self, program: Program, data: FederatedDataset, rows: Rows) -> None:
        self.algorithm, self.lanes = program.algorithm, program.lanes
        # Training rows lie on the device already; but liars are measured on their clean ones.
        poisoned = program.attack is not None and program.attack.rows is not None
        train = prepare(data.train) if poisoned else Prepared(rows.x, rows.y, data.train.offsets)
        self.splits = {"train": train, "valid": prepare(data.valid), "test": prepare(data.test)}

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
