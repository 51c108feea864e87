"""One run in progress: its rounds, its evaluations, its checkpoints.

A session asks for rounds and for evaluations, and whoever drives it answers: :meth:`Session.run` does so for a run
alone, :mod:`evenhand.simulation._together` for several at once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.devices import everywhere, here
from evenhand.errors import EvenhandError
from evenhand.evaluation import Metric, of_global
from evenhand.report import latest
from evenhand.rounds import RoundState
from evenhand.simulation import engine
from evenhand.simulation._ahead import drawn_last
from evenhand.simulation._checkpoint import Checkpoints, Snapshot
from evenhand.simulation._checks import check_first_losses
from evenhand.simulation._evaluation import Evaluation
from evenhand.simulation._progress import Progress
from evenhand.simulation._run import Run
from evenhand.simulation._served import Served
from evenhand.simulation.program import EXECUTED, ROWS, USEFUL, WORK
from evenhand.simulation.setup import Setup
from evenhand.simulation.store import Kept
from evenhand.types import Sampling

__all__ = ["Measure", "Request", "Session", "Train", "Trained"]

NDArray = npt.NDArray[Any]


class Train(NamedTuple):
    """A request for rounds ``first .. first + rounds - 1``; it is answered by :class:`Trained`.

    The memory of ``state`` may go to the result.
    """

    state: RoundState
    first: int
    rounds: int


class Trained(NamedTuple):
    """Rounds done, at most as many as were asked for.

    Attributes:
      state: after them.
      infos: what they report, ``(rounds,)`` each.
      rounds: how many they are.
      seconds: spent waiting for rows (``"data"``) and training (``"train"``).
    """

    state: RoundState
    infos: Mapping[str, NDArray]
    rounds: int
    seconds: Mapping[str, float]


class Measure(NamedTuple):
    """A request for an evaluation; it is answered by :class:`Served`."""

    state: RoundState


Request: TypeAlias = Train | Measure
Steps: TypeAlias = Generator[Request | Run, Any, None]


class Session:
    """A program with its data, and what has been measured so far; ``metrics`` are measured after the last round."""

    def __init__(
        self,
        setup: Setup,
        data: FederatedDataset,
        seed: int,
        evaluation: Evaluation,
        metrics: Sequence[Metric] = (),
    ) -> None:
        self.setup, self.program, self.data, self.seed = setup, setup.program, data, seed
        self.evaluation, self.metrics = evaluation, tuple(metrics)
        self.seconds = {"compile": 0.0, "data": 0.0, "train": 0.0, "evaluate": 0.0}
        self.history: list[dict[str, float]] = []
        self.per_round: dict[str, NDArray] = {}
        self.initial_loss: NDArray = np.zeros(0)
        self._handed_out: weakref.ref[Kept] | None = None

    def run(
        self,
        state: RoundState,
        rounds: int,
        eval_every: int,
        checkpoints: Checkpoints | None,
        progress: Progress,
    ) -> Iterator[Run]:
        """Yields the run so far at each evaluation, after saving it where that is due."""
        steps, answer = self.steps(state, rounds, eval_every, checkpoints, progress), None
        del state
        while True:
            try:
                found = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(found, Run):
                yield found
            else:
                answer = self.answer(found)
            del found

    def answer(self, request: Request) -> Trained | Served:
        """What is asked for, for this run alone."""
        if isinstance(request, Measure):
            return self.evaluation.served(request.state)
        begin = time.perf_counter()
        rows, count = self.setup.source.block(request.first, request.rounds)
        state, offloaded, block = request.state, self.setup.offloaded, None
        if offloaded is not None:
            block = offloaded.block(request.first, count)
            count, rows = block.rounds, rows._replace(slots=block.slots)
            state = state._replace(clients=block.states)
        received = time.perf_counter()
        state, infos = engine.run_rounds(self.program, state, rows, self.setup.keys, request.first, count)
        jax.block_until_ready(state)
        if offloaded is not None and block is not None:
            offloaded.take_back(block, state.clients)
            state = state._replace(clients=())
        found = {name: np.asarray(info)[:count] for name, info in infos.items()}
        seconds = {"data": received - begin, "train": time.perf_counter() - received}
        return Trained(state, found, count, seconds)

    def steps(
        self,
        state: RoundState,
        rounds: int,
        eval_every: int,
        checkpoints: Checkpoints | None,
        progress: Progress,
    ) -> Steps:
        """Yields requests, to be answered by ``send``, and the run so far at each evaluation."""
        done, found = 0, None
        if checkpoints is not None:
            # Before the first round all clients' states are equal.
            found = checkpoints.load(jax.tree.map(lambda leaf: np.asarray(leaf[0]), here(state).clients))
        is_new = found is None
        if found is not None:
            if found.done > rounds:
                raise EvenhandError(
                    f"The checkpoint has {found.done} rounds done, more than rounds={rounds}: "
                    f"ask for at least as many, or give another folder."
                )
            self.initial_loss = self.evaluation.initial_loss(state)
            last, done = found.last_round, found.done
            self.history, self.per_round, self.seconds = found.history, found.per_round, found.seconds
            if last is None:
                last = drawn_last(self.program, self.setup.rows, self.setup.keys, done)
            state = everywhere(self.program.mesh, found.state._replace(last_round=last))
        del found  # its clients' states may be most of the memory
        served = yield from self._evaluate(state, done, record=is_new, last=done == rounds)
        progress.update(done, self._latest())
        yield self._snapshot(state, done, served, None)
        if done < rounds:
            state = yield from self._train("compile", state, done, 0)
        while done < rounds:
            until = min(rounds, (done // eval_every + 1) * eval_every)
            while done < until:
                count = min(until - done, progress.next_count(), self.program.buffer)
                state = yield from self._train("train", state, done, count)
                done += count
                progress.update(done, self._latest())
            served = yield from self._evaluate(state, done, record=True, last=done == rounds)
            progress.update(done, self._latest())
            due = checkpoints is not None and checkpoints.due(last=done == rounds)
            yield self._snapshot(state, done, served, checkpoints if due else None)

    def _train(
        self, activity: str, state: RoundState, first: int, count: int
    ) -> Generator[Train, Trained, RoundState]:
        """Rounds ``first .. first + count - 1``, as many at a time as there are rows for."""
        if self._handed_out is not None and (kept := self._handed_out()) is not None:
            kept.move_on()
        self._handed_out, done = None, 0
        while True:
            state, infos, some, seconds = yield Train(state, first + done, count - done)
            self._keep(infos)
            done += some
            self.seconds["data"] = self.seconds.get("data", 0.0) + seconds["data"]
            self.seconds[activity] += seconds["train"]
            if done >= count:
                return state

    def _keep(self, new: Mapping[str, NDArray]) -> None:
        before = self.per_round
        self.per_round = {
            name: np.concatenate([before[name], values]) if name in before else values
            for name, values in new.items()
        }

    def _evaluate(
        self, state: RoundState, done: int, *, record: bool, last: bool
    ) -> Generator[Measure, Served, Served]:
        begin = time.perf_counter()
        served = yield Measure(state)
        if done == 0:
            adapted = self.program.algorithm.adapt is not None
            check_first_losses(served.clients, self.data, self.evaluation.drawn, adapted)
            self.initial_loss = served.clients["train"].get(of_global("loss"), self.initial_loss)
        if record:
            reported = {
                name: float(info[-1])
                for name, info in self.per_round.items()
                if len(info) and name not in WORK
            }
            self.history.append({"round": done, **self.evaluation.columns(served), **reported})
        if last and self.metrics:  # after the history, whose columns have a value for each evaluation
            served = served.with_metrics(self.evaluation.measured(state, self.metrics))
        self.seconds["evaluate"] += time.perf_counter() - begin
        return served

    def _snapshot(
        self,
        state: RoundState,
        done: int,
        served: Served,
        checkpoints: Checkpoints | None,
    ) -> Run:
        if checkpoints is not None:
            begin = time.perf_counter()
            whole = here(state)
            last = np.asarray(whole.last_round)
            others = self.history, self.per_round, self.seconds, last
            checkpoints.save(Snapshot(whole._replace(last_round=()), done, *others))
            self.seconds["checkpoint"] = self.seconds.get("checkpoint", 0.0) + time.perf_counter() - begin
        info = {
            "rounds": done,
            "cohort": _cohort(self.program.algorithm.sampling, self.data.num_clients, self.program.cohort),
            "lanes": self.program.lanes,
            "devices": self.program.devices.size,
            "floats": dict(self.setup.traffic),
            "restarts": self.setup.restarts,
            "seconds": dict(self.seconds),
            **self._work(),
        }
        per_round = {
            name: values for name, values in self.per_round.items() if len(values) and name not in WORK
        }
        kept = Kept(state, self.setup.store)
        self._handed_out = weakref.ref(kept)
        return Run(
            algorithm=self.program.algorithm,
            data=self.data,
            seed=self.seed,
            history=self._columns(),
            per_round=per_round,
            info=info,
            kept=kept,
            clients=served.clients,
            evaluated=self.evaluation.drawn,
            classes=served.classes,
            malicious=self.evaluation.malicious,
            metrics=self.metrics,
            last_round=np.asarray(here(state.last_round), np.int64),
            untrained=self.evaluation.untrained,
            initial_loss=self.initial_loss,
        )

    def _work(self) -> dict[str, Any]:
        """How much was trained, how fast, and which share of the executed steps was padding."""
        sums = {name: float(np.sum(self.per_round.get(name, 0.0), dtype=np.float64)) for name in WORK}
        return {
            "steps": {"useful": sums[USEFUL], "executed": sums[EXECUTED]},
            "padded": 1.0 - sums[USEFUL] / sums[EXECUTED] if sums[EXECUTED] else 0.0,
            "examples": sums[ROWS],
            "examples_per_second": sums[ROWS] / self.seconds["train"] if self.seconds["train"] else 0.0,
        }

    def _latest(self) -> str:
        malicious = self.evaluation.malicious
        return latest(self.history[-1], honest=bool(0 < malicious.sum() < len(malicious)))

    def _columns(self) -> dict[str, NDArray]:
        names = dict.fromkeys(name for row in self.history for name in row)
        columns = {name: np.array([row.get(name, np.nan) for row in self.history]) for name in names}
        return columns | {"round": columns["round"].astype(np.int64)}


def _cohort(sampling: Sampling, clients: int, slots: int) -> int:
    """How many clients are drawn, where their number is random on average: it has more slots than that."""
    return round((sampling.rate or 0.0) * clients) if sampling.independent else slots
