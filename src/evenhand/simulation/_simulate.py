"""Running a method on data: ``simulate``, the generator under it, and the session that it drives.

A session asks for rounds and for evaluations, and whoever drives it answers: :meth:`Session.run` does so for a run
alone, :mod:`evenhand.simulation._many` for several at once.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from evenhand._platform import check_process
from evenhand.data import FederatedDataset
from evenhand.devices import everywhere, here
from evenhand.errors import EvenhandError, EvenhandWarning
from evenhand.evaluation import Metric, Metrics, check_metrics, of_global
from evenhand.evaluation.metrics import resolved
from evenhand.live import line
from evenhand.report import latest, may_win
from evenhand.rounds import RoundState
from evenhand.simulation import engine
from evenhand.simulation._checkpoint import Checkpoints, Snapshot, identity
from evenhand.simulation._evaluation import Evaluation, Served
from evenhand.simulation._job import Checkpoint, Untrained, check_first_losses, check_model, check_numbers
from evenhand.simulation._run import Run
from evenhand.simulation.program import EXECUTED, ROWS, USEFUL, WORK
from evenhand.simulation.setup import Setup, drawn_last, set_up
from evenhand.simulation.store import Kept
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Sampling
from evenhand.watch import Watch, Watcher, Watching, watchers

__all__ = ["Measure", "Progress", "Request", "Session", "Steps", "Train", "Trained", "iterate", "simulate"]

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
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool = False,
    lanes: int | None = None,
    devices: int | None = None,
    eval_clients: int | None = None,
    untrained: Untrained = "global",
    stream: bool | None = None,
    offload: bool | str | Path | None = None,
    watch: Watch = None,
    metrics: Metrics = (),
) -> Run:
    """Runs a federated method over simulated clients, on whatever device JAX finds.

    Args:
      algorithm: the method, e.g. ``eh.algorithms.fedavg(...)``.
      data: the clients' rows.
      rounds: how many rounds; 0 gives the untouched initial model.
      cohort: clients drawn per round, at most the number of clients, which is also the default: all of them, unless the
        method samples with replacement.
      seed: decides everything random.  The same seed gives every method the same initial model, cohorts,
        stragglers and mini-batches, and the same run again bit for bit on the same hardware.
      eval_every: rounds between two evaluations of all clients; round 0 and the last one are always evaluated.
      attack: what malicious clients do.
      systems: stragglers and dropouts, e.g. ``eh.systems.stragglers(0.9)``.
      checkpoint: a folder that keeps the run's latest state, saved at each evaluation after round 0; or a
        :class:`evenhand.simulation.Checkpoint`, to save less often.  A run that finds a state in it continues from
        that state and ends with the same bits as an uninterrupted run; ask for more rounds to train further.  The
        checkpoint of another run is refused, and so is a folder in which another process is running.
      progress: show a live bar.
      lanes: clients trained side by side on a device; None: chosen from device, model and clients' sizes.
      devices: the number of devices over which a cohort is spread; None: all.  The result depends on ``lanes`` and
        ``devices`` by rounding only.
      eval_clients: how many clients are evaluated; they are drawn once, before the first round.  None: all.
      untrained: what a client is served whose personal model has never trained: ``"global"``, the current global model;
        or ``"initial"``, the personal model as the method initialises it, which in most methods is the initial model of
        the run.  It changes no bit of the training.
      stream: keep the training rows on the host, or in their file, and send those of the next rounds' clients ahead
        of the training, which changes no bit of the result; False: keep all of them on the device; None: stream a
        ``numpy.memmap``, or rows that would fill more than a third of an accelerator's memory.
      offload: keep what clients keep between rounds, such as personal models, in the host's memory (True) or in files
        in this folder, and send the states of the next rounds' clients ahead of the training, which changes no bit of
        the result; False: keep all of them on the device; None: in memory where they take more than 1 GB on a CPU, or
        a third of an accelerator's memory.  A checkpoint then saves only what has changed since the last one.
      watch: a tracker, or several in a list, that follow the run (:mod:`evenhand.watch`), such as
        ``eh.watch.tensorboard("logs")``; it changes no bit of the result, and one that fails only warns.
      metrics: metrics of a set of examples, such as ``("auc", "macro_f1")``: names or values of
        :mod:`evenhand.evaluation.metrics`.  They are measured after the last round, at each client in each split, which
        takes about the time of one more evaluation; they change no bit of the training.

    Raises:
      EvenhandError: a number out of range, or parts that do not go together.

    Warns:
      EvenhandWarning: before the first round, that features are on different scales or a schedule restarts; after the
        last one, each other of :attr:`Run.findings` except ``"untrained"``: training diverged, nothing changed, or the
        model only guesses.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
      >>> run = simulate(method, data, rounds=4, cohort=5, eval_every=2)
      >>> run.history["round"].tolist()
      [0, 2, 4]
    """
    runs = iterate(
        algorithm,
        data,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        eval_every=eval_every,
        attack=attack,
        systems=systems,
        checkpoint=checkpoint,
        progress=progress,
        lanes=lanes,
        devices=devices,
        eval_clients=eval_clients,
        untrained=untrained,
        stream=stream,
        offload=offload,
        watch=watch,
        metrics=metrics,
    )
    _warn(first := next(runs), before=True)
    result = first if first.info["rounds"] == rounds else None
    del first
    for run in runs:
        if run.info["rounds"] == rounds:
            result = run
        del run  # its memory goes to the next rounds
    assert result is not None
    _warn(result, before=False)
    return result


def _warn(run: Run, *, before: bool) -> None:
    """Warns of the data and the optimiser before the first round, and of the run after the last."""
    for finding in run.findings:
        # Data without any test examples were meant to have none, and their test numbers are NaN.  That some clients
        # never trained is usual where cohorts are small, and no fault of the run.
        is_meant = (finding.kind == "unmeasured" and not run.data.test.rows) or finding.kind == "untrained"
        if (finding.kind in ("scales", "schedule")) == before and not is_meant:
            warnings.warn(finding.sentence, EvenhandWarning, stacklevel=3)


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
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool = False,
    lanes: int | None = None,
    devices: int | None = None,
    eval_clients: int | None = None,
    untrained: Untrained = "global",
    stream: bool | None = None,
    offload: bool | str | Path | None = None,
    watch: Watch = None,
    metrics: Metrics = (),
) -> Iterator[Run]:
    """As :func:`simulate`, but yields the :class:`Run` so far at each evaluation, the first at round 0.

    Use it to watch a run, to stop it early, or to keep its results when it is interrupted.  It does not warn: see
    :attr:`Run.findings`.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
      >>> for run in iterate(method, data, rounds=100, eval_every=2):
      ...     if run.history["test_accuracy"][-1] > 0.5:
      ...         break
      >>> run.info["rounds"] < 100
      True
    """
    check_process()
    trackers = watchers(watch)
    cohort = check_numbers(
        algorithm,
        data,
        rounds,
        seed,
        cohort,
        eval_every,
        lanes,
        devices,
        eval_clients,
        systems,
        attack,
        untrained,
    )
    check_model(algorithm.model, data)
    check_metrics(measured := resolved(metrics), algorithm.model, data)
    setup = set_up(
        algorithm,
        data,
        cohort=cohort,
        seed=seed,
        attack=attack,
        systems=systems,
        lanes=lanes,
        devices=devices,
        stream=stream,
        offload=offload,
    )
    evaluated = data, seed, eval_clients, untrained
    evaluation = Evaluation(setup.program, setup.keys, *evaluated, rows=setup.on_device, store=setup.store)
    session = Session(setup, data, seed, evaluation, measured)
    same = partial(identity, setup, *evaluated)
    checkpoints = None if checkpoint is None else Checkpoints(checkpoint, setup.like, same, setup.store)
    with nullcontext() if checkpoints is None else checkpoints.held(), Progress(rounds, progress) as bar:
        runs = session.run(setup.state, rounds, eval_every, checkpoints, bar)
        config = {"rounds": rounds, "seed": seed, "cohort": cohort, "eval_every": eval_every}
        yield from _watched(runs, rounds, trackers, config) if trackers else runs


def _watched(
    runs: Iterator[Run], rounds: int, trackers: Sequence[Watcher], config: Mapping[str, Any]
) -> Iterator[Run]:
    """The runs, each after its trackers have seen it."""
    watching, status = None, "interrupted"
    try:
        for run in runs:
            if watching is None:
                method, data = run.algorithm.name, run.data
                about = {"method": method or None, "data": data.name, "clients": data.num_clients, **config}
                watching = Watching(
                    trackers, f"{method or 'a method'} on {data.name}, seed {run.seed}", about
                )
            watching.show(run.history)
            if run.info["rounds"] == rounds:
                status = "done" if may_win(run.view(), ("train", "valid")) else "diverged"
            yield run
            del run  # its memory goes to the next rounds
    except Exception:
        status = "failed"
        raise
    finally:
        if watching is not None:
            watching.end(status)


# --- one run in progress: its rounds, its evaluations, its checkpoints ------------------------------------------------


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


# --- the live bar, and how many rounds to run before it moves again ---------------------------------------------------

_BAR_SECONDS = 0.5


class Progress:
    """Shows round, rate, time left and the latest loss and accuracy; does nothing where ``show`` is false."""

    def __init__(self, rounds: int, show: bool) -> None:
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rate]:.1f} rounds/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
        )
        self._bar = line(*columns, show=show)
        self._task = self._bar.add_task("rounds", total=rounds, rate=0.0, latest="")
        self._show = not self._bar.disable
        self._begin = time.perf_counter()
        self._first: int | None = None
        self._done = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def next_count(self) -> int:
        """Rounds worth about half a second, so that the bar lives; without a bar, as many as can be."""
        if not self._show:
            return 2**31
        return max(1, int(self._rate() * _BAR_SECONDS))

    def update(self, done: int, latest: str) -> None:
        """Moves the bar; the first call says where the run begins, and ``latest`` what was last measured."""
        if self._first is None:
            self._first, self._begin = done, time.perf_counter()
        self._done = done
        self._bar.update(self._task, completed=done, rate=self._rate(), latest=latest)

    def _rate(self) -> float:
        return (self._done - (self._first or 0)) / max(time.perf_counter() - self._begin, 1e-9)
