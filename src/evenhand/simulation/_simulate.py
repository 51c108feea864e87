"""Running a method on data: ``simulate``, the generator under it, and the session that it drives.

A session asks for rounds and for evaluations, and whoever drives it answers: :func:`runs_of` does so for a run alone,
:mod:`evenhand.simulation._many` for several at once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from evenhand._platform import check_process, without_collections
from evenhand.data import FederatedDataset
from evenhand.devices import everywhere, here
from evenhand.errors import EvenhandWarning
from evenhand.evaluation import Metrics, check_metrics, of_global
from evenhand.live import line
from evenhand.privacy.client_level import beyond
from evenhand.report import latest, may_win
from evenhand.rounds import RoundState, unattacked
from evenhand.simulation import engine
from evenhand.simulation._checkpoint import Checkpoints, Snapshot
from evenhand.simulation._communication import Meter
from evenhand.simulation._job import Checkpoint, Job, Untrained, check_first_losses, check_job, check_model
from evenhand.simulation._run import Run
from evenhand.simulation.evaluating import Evaluation, Served
from evenhand.simulation.program import EXECUTED, ROWS, SECONDS, USEFUL, WORK
from evenhand.simulation.setup import Setup, attendance, drawn_last, set_up
from evenhand.simulation.store import Kept, NDArray
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Params
from evenhand.watch import Watch, Watcher, Watching, watchers


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
    start: Params | None = None,
    masks: bool = False,
) -> Run:
    """Runs a federated method over simulated clients, on whatever device JAX finds.

    Args:
      algorithm: the method, e.g. ``eh.algorithms.fedavg(...)``.
      data: the clients' examples.
      rounds: number of rounds; 0 gives the initial model.
      cohort: clients drawn per round.  A number above that of the clients counts as the number of clients, which is
        also the default: all of them, unless the method samples with replacement.
      seed: of all randomness.  The same seed gives every method the same initial model, cohorts,
        stragglers and mini-batches, and the same run again bit for bit on the same hardware.
      eval_every: rounds between two evaluations of all clients; round 0 and the last one are always evaluated.
      attack: what malicious clients do.
      systems: stragglers and dropouts, e.g. ``eh.systems.stragglers(0.9)``.
      checkpoint: a folder that keeps the run's latest state, saved at each evaluation after round 0; or a
        :class:`evenhand.simulation.Checkpoint`, to save less often.  A run that finds a state in it continues from
        that state and ends with the same bits as an uninterrupted run; ask for more rounds to train further.  The
        checkpoint of another run is refused, and so is a folder in which another run is in progress.
      progress: show a live bar.
      lanes: clients trained side by side on a device; None: chosen from device, model and clients' sizes.
      devices: the number of devices that share a cohort; None: all.  The result depends on ``lanes`` and
        ``devices`` by rounding only.
      eval_clients: number of clients to evaluate, drawn once before the first round; None: all.
      untrained: the model for clients whose personal model never trained: ``"global"``, the current global model;
        or ``"initial"``, the personal model as the method initialises it, which in most methods is the initial model of
        the run.  It changes no bit of the training.
      stream: keep the training rows on the host, or in their file, and send those of the next rounds' clients ahead
        of the training, which changes no bit of the result; False: keep all of them on the device; None: stream a
        ``numpy.memmap``, or rows that would fill more than a third of an accelerator's memory.
      offload: keep the clients' states between rounds, such as personal models, in host memory (True) or in files
        in this folder, and send the states of the next rounds' clients ahead of the training, which changes no bit of
        the result; False: keep all of them on the device; None: in memory where they take more than 1 GB on a CPU, or
        a third of an accelerator's memory.  A checkpoint then saves only what has changed since the last one.
      watch: an experiment tracker, or a list of several, to log to (:mod:`evenhand.watch`), such as
        ``eh.watch.tensorboard("logs")``; it changes no bit of the result, and one that fails only warns.
      metrics: metrics of a set of examples, such as ``("auc", "macro_f1")``: names or values of
        :mod:`evenhand.evaluation.metrics`.  They are measured after the last round, at each client in each split, which
        takes about the time of one more evaluation; they change no bit of the training.
      start: the parameters to start training from, such as another run's ``params``: a tree of the shapes of the
        model's own.  Personal models begin from it, too.  None: ``model.init``.
      masks: draw the masks of secure sums, such as those of :func:`evenhand.aggregators.secure`, which cancel.  They
        change no bit of the result, and take time and memory: a test of the sums needs them, an experiment does not.
        A deployment always masks.

    Raises:
      EvenhandError: a number out of range, or parts that do not go together.

    Warns:
      EvenhandWarning: before the first round, that features are on different scales, a schedule restarts or an attack
        has no malicious client; after the last one, each other of :attr:`Run.findings` except ``"untrained"``,
        ``"unaccounted"`` and ``"few_expected"``: training diverged, nothing changed, or the model only guesses.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=10))
      >>> run = simulate(method, data, rounds=4, cohort=5, eval_every=2)
      >>> run.history["round"].tolist()
      [0, 2, 4]
    """
    # In the first line, while locals() are the arguments and nothing else.
    job, last = Job.from_arguments(locals()), None
    for run in runs_of(job):
        if last is None:
            _warn(run, before=True)
        last = run
        if run.info["rounds"] < rounds:
            run.release()  # only the last run is handed out: the states of the others need no copy
    assert last is not None
    _warn(last, before=False)
    return last


def _warn(run: Run, *, before: bool) -> None:
    """Warns of the data and the optimiser before the first round, and of the run after the last."""
    for finding in run.findings:
        # Data without any test examples were meant to have none, and their test numbers are NaN.  That some clients
        # never trained is usual where cohorts are small, and no fault of the run; that some cannot choose, of the data.
        # What there is to say of noise is known of the method, and true of many simulations that study noise.
        is_meant = finding.kind in ("untrained", "unaccounted", "few_expected")
        is_meant |= finding.kind == "unmeasured" and not run.data.test.rows
        is_meant |= finding.kind == "unchosen" and run.data.valid.rows > 0
        if (finding.kind in ("scales", "schedule", "unattacked")) == before and not is_meant:
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
    start: Params | None = None,
    masks: bool = False,
) -> Generator[Run]:
    """As :func:`simulate`, but yields the :class:`Run` so far at each evaluation, the first at round 0.

    Use it to watch a run, to stop it early, or to keep its results when it is interrupted.  It does not warn: see
    :attr:`Run.findings`.

    When training continues, clients' states of more than 64 MB, and those that ``offload`` keeps on the host, are no
    longer those of the runs before: ask for their personal models first, or call :meth:`Run.keep`.

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
    return runs_of(Job.from_arguments(locals()))


def runs_of(job: Job) -> Generator[Run]:
    """As :func:`iterate`."""
    check_process()
    trackers = watchers(job.execution.watch)
    check_job(job)
    check_model(job.algorithm.model, job.data)
    check_metrics(job.measured, job.algorithm.client_model, job.data)
    with without_collections():
        setup = set_up(job)
        evaluation = Evaluation(job, setup.program, setup.keys, setup.source, setup.store)
    session = Session(setup, job, evaluation)
    with ExitStack() as stack:
        steps, answer = session.begin(stack), None
        show = stack.enter_context(_followed(job, trackers))
        while True:
            try:
                request = steps.send(answer)
            except StopIteration:
                return
            if isinstance(request, Run):
                answer = None
                show(request)
                yield request
            else:
                answer = session.answer(request)


@contextmanager
def _followed(job: Job, trackers: Sequence[Watcher]) -> Generator[Callable[[Run], None]]:
    """A function that shows a run so far to its trackers, which begin with the first one."""
    watching, status = None, "interrupted"

    def show(run: Run) -> None:
        nonlocal watching, status
        if not trackers:
            return
        if watching is None:
            method, data = run.algorithm.name, run.data
            about = {
                "method": method or None,
                "data": data.name,
                "clients": data.num_clients,
                "rounds": job.rounds,
                "seed": job.seed,
                "cohort": job.slots,
                "eval_every": job.eval_every,
            }
            watching = Watching(trackers, f"{method or 'a method'} on {data.name}, seed {run.seed}", about)
        watching.show(run.history)
        if run.info["rounds"] == job.rounds:
            status = "done" if may_win(run.view(), ("train", "valid")) else "diverged"

    try:
        yield show
    # Not BaseException: after Ctrl-C, or where the caller stops asking, a run is interrupted, not failed.
    except Exception:
        status = "failed"
        raise
    finally:
        if watching is not None:
            watching.end(status)


# --- one run in progress: its rounds, its evaluations, its checkpoints ------------------------------------------------


class Train(NamedTuple):
    """A request for rounds ``first .. first + rounds - 1``; it is answered by :class:`Stretch`.

    The memory of ``state`` may go to the result.
    """

    state: RoundState
    first: int
    rounds: int


class Stretch(NamedTuple):
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
    """A run in progress: what is set up, and what has been measured so far.

    It owns the clients' states, and lends them to the :class:`Run` of the latest evaluation until training continues.
    """

    def __init__(self, setup: Setup, job: Job, evaluation: Evaluation) -> None:
        self.setup, self.program, self.job, self.evaluation = setup, setup.program, job, evaluation
        self.metrics, self.meter = job.measured, Meter(setup)
        self.seconds = {"compile": 0.0, "data": 0.0, "train": 0.0, "evaluate": 0.0}
        self.history: list[dict[str, float]] = []
        self.per_round: dict[str, NDArray] = {}
        self.initial_loss: NDArray = np.zeros(0)
        self._lent: Kept | None = None
        self._attended = attendance(self.program, setup.keys, job.data.num_clients)
        self._counted = 0, np.zeros(0 if self._attended is None else job.data.num_clients, np.int64)

    def answer(self, request: Request) -> Stretch | Served:
        """What is asked for, for this run alone."""
        if isinstance(request, Measure):
            with without_collections():
                return self.evaluation.served(request.state)
        begin = time.perf_counter()
        rows, count = self.setup.source.block(request.first, request.rounds)
        state, offloaded, block = request.state, self.setup.offloaded, None
        if offloaded is not None:
            block = offloaded.block(request.first, count)
            # Rows and states may be there for unequal numbers of rounds: the fewer are trained.
            count, rows = block.rounds, rows._replace(slots=block.slots)
            state = state._replace(clients=block.states)
        received = time.perf_counter()
        # For no rounds, the call traces and compiles.
        with nullcontext() if request.rounds > 0 else without_collections():
            state, infos = engine.run_rounds(self.program, state, rows, self.setup.keys, request.first, count)
        # Waited for, so that the seconds are those of the training, and not of whoever asks for its result first.
        jax.block_until_ready(state)
        if offloaded is not None and block is not None:
            offloaded.take_back(block, state.clients)
            state = state._replace(clients=())  # the store has them again
        reported = {name: np.asarray(info)[:count] for name, info in infos.items()}
        seconds = {"data": received - begin, "train": time.perf_counter() - received}
        return Stretch(state, reported, count, seconds)

    def begin(self, stack: ExitStack) -> Steps:
        """As :meth:`steps`; the folder of the checkpoint is held, and the bar is live, until the stack is closed."""
        checkpoints = None
        if self.job.checkpoint is not None:
            checkpoints = Checkpoints(self.setup, self.job, self.job.checkpoint)
            # Held before steps() loads the checkpoint, so that no other process writes between reading and training.
            stack.enter_context(checkpoints.held())
        bar = stack.enter_context(Progress(self.job.rounds, self.job.execution.progress))
        return self.steps(checkpoints, bar)

    def steps(self, checkpoints: Checkpoints | None, progress: Progress) -> Steps:
        """Yields requests, to be answered by ``send``, and the run so far at each evaluation, after saving it."""
        rounds, eval_every = self.job.rounds, self.job.eval_every
        state, done, is_new = self._begun(checkpoints)
        served = yield from self._evaluate(state, done, record=is_new, last=done == rounds)
        progress.update(done, self._latest())
        yield self._snapshot(state, done, served, None)
        if done < rounds:
            # No rounds: the call compiles the program, so that the time of training is that of training.
            state = yield from self._train("compile", state, done, 0)
        while done < rounds:
            until = min(rounds, (done // eval_every + 1) * eval_every)
            while done < until:
                # At most as many as the buffer of infos holds, whose length is a shape of the compiled program.
                count = min(until - done, progress.next_count(), self.program.buffer)
                state = yield from self._train("train", state, done, count)
                done += count
                progress.update(done, self._latest())
            served = yield from self._evaluate(state, done, record=True, last=done == rounds)
            progress.update(done, self._latest())
            due = checkpoints is not None and checkpoints.due(last=done == rounds)
            yield self._snapshot(state, done, served, checkpoints if due else None)
        if checkpoints is not None:
            checkpoints.end()

    def _begun(self, checkpoints: Checkpoints | None) -> tuple[RoundState, int, bool]:
        """The state to begin with, the rounds done, and whether these are none."""
        state = self.setup.state
        # Before the first round all clients' states are equal.
        newcomer = jax.tree.map(lambda leaf: np.asarray(leaf[0]), here(state).clients) if checkpoints else ()
        snapshot = None if checkpoints is None else checkpoints.load(newcomer)
        if snapshot is None:
            return state, 0, True
        done, last = snapshot.done, snapshot.last_round
        # Not in the checkpoint: the state before the first round has been made again, and is measured.
        self.initial_loss = self.evaluation.initial_loss(state)
        self.history, self.per_round, self.seconds = snapshot.history, snapshot.per_round, snapshot.seconds
        if last is None:
            # An earlier version did not save it: the cohorts are drawn again, which misses rejected uploads only.
            last = drawn_last(self.program, self.setup.rows, self.setup.keys, done)
        # Placed anew: the devices of this run need not be those of the one that saved it.
        return everywhere(self.program.mesh, snapshot.state._replace(last_round=last)), done, False

    def _train(
        self, activity: str, state: RoundState, first: int, count: int
    ) -> Generator[Train, Stretch, RoundState]:
        """Rounds ``first .. first + count - 1``, as many at a time as there are rows for."""
        # Before the request, whose answer takes over the memory of the state that the last result has on loan.
        if self._lent is not None:
            self._lent.take_back()
        self._lent, done = None, 0
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
            algorithm, drawn = self.program.algorithm, self.evaluation.drawn
            adapted = algorithm.adapt is not None
            check_first_losses(served.clients, self.job.data, algorithm.client_model, drawn, adapted)
            self.initial_loss = served.clients["train"].get(of_global("loss"), self.initial_loss)
        # The history of a run that continues has this evaluation already.
        if record:
            reported = {name: float(info[-1]) for name, info in self._reported.items()}
            sent = self.meter.course(self.per_round, done)
            clock = {} if self.program.systems is None or self.program.systems.pace is None else self._clock()
            self.history.append(
                {"round": done, **self.evaluation.columns(served), **sent, **reported, **clock}
            )
        if last and self.metrics:  # after the history, whose columns have a value for each evaluation
            served = served.with_metrics(self.evaluation.measured(state, self.metrics, served.level))
        self.seconds["evaluate"] += time.perf_counter() - begin
        return served

    def _clock(self) -> dict[str, float]:
        """The simulated seconds of all rounds so far; those of no round are none."""
        return {"time": float(np.sum(self.per_round.get(SECONDS, 0.0), dtype=np.float64))}

    @property
    def _reported(self) -> dict[str, NDArray]:
        """What the method has reported about each round so far, without the engine's own counts."""
        return {name: values for name, values in self.per_round.items() if len(values) and name not in WORK}

    def _snapshot(self, state: RoundState, done: int, served: Served, checkpoints: Checkpoints | None) -> Run:
        if checkpoints is not None:
            begin = time.perf_counter()
            whole = here(state)
            last = np.asarray(whole.last_round)
            others = self.history, self.per_round, self.seconds, last
            checkpoints.save(Snapshot(whole._replace(last_round=()), done, *others))
            self.seconds["checkpoint"] = self.seconds.get("checkpoint", 0.0) + time.perf_counter() - begin
        sampling, drawn = self.program.algorithm.sampling, self.program.cohort
        if sampling.independent:
            # How many clients are drawn on average: the cohort has more slots than that.
            drawn = round((sampling.rate or 0.0) * self.job.data.num_clients)
        communication = self.meter.read(self.per_round, done)
        info = {
            "rounds": done,
            "cohort": drawn,
            "lanes": self.program.lanes,
            "devices": self.program.devices.size,
            "floats": {name: sent["numbers"] for name, sent in communication["per_client_and_round"].items()},
            "secure_sums": communication["secure_sums"],
            "communication": communication,
            "restarts": self.setup.restarts,
            # A copy: what has been handed out must not change while training continues.
            "seconds": dict(self.seconds),
            **self._work(),
        }
        if levels := self.program.algorithm.levels:
            info["levels"] = [level.name for level in levels]
        if sentence := unattacked(self.job.attack, self.job.data.num_clients):
            info["unattacked"] = sentence
        attack, privacy = self.job.attack, self.program.algorithm.privacy
        copied = attack is not None and attack.collude is not None and bool(self.evaluation.malicious.any())
        if unprotected := beyond(privacy, started=self.job.start is not None, copied=copied):
            info["unprotected"] = unprotected
        self._lent = Kept(state, self.setup.store)
        return Run(
            algorithm=self.program.algorithm,
            data=self.job.data,
            seed=self.job.seed,
            history=self._columns(),
            per_round=self._reported,
            info=info,
            kept=self._lent,
            clients=served.clients,
            evaluated=self.evaluation.drawn,
            classes=served.classes,
            malicious=self.evaluation.malicious,
            metrics=self.metrics,
            last_round=self._last_round(state),
            untrained=self.job.untrained,
            initial_loss=self.initial_loss,
            level=served.level,
            trigger=None if self.job.attack is None else self.job.attack.trigger,
            availability=self._availability(done),
        )

    def _availability(self, done: int) -> NDArray:
        """The share of the rounds so far in which each client was available; empty where all always are."""
        before, counts = self._counted
        if self._attended is not None and done > before:
            self._counted = done, counts + self._attended(before, done - before)
        return self._counted[1] / done if done else np.full(len(counts), np.nan)

    def _last_round(self, state: RoundState) -> NDArray:
        """When each client last trained: where the examples of all are pooled, all at once."""
        last = np.asarray(here(state.last_round), np.int64)
        return last if self.program.algorithm.pooled is None else np.repeat(last, self.job.data.num_clients)

    def _work(self) -> dict[str, Any]:
        """How much was trained, how fast, and which share of the executed steps was padding."""
        # In float64: beyond 2**24, a sum in float32 no longer counts single steps.
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


# --- the live bar, and how many rounds to run before it moves again ---------------------------------------------------

_BAR_SECONDS = 0.5


class Progress:
    """Shows round, rate, time left and the latest loss and accuracy; does nothing where ``show`` is false."""

    def __init__(self, rounds: int, show: bool) -> None:
        self._bar = line("round", rounds, show=show)
        self._begin = time.perf_counter()
        self._first: int | None = None
        self._done = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def next_count(self) -> int:
        """Rounds worth about half a second, so that the bar lives; without a bar, as many as can be."""
        if not self._bar.is_shown:
            return 2**31
        return max(1, int(self._rate() * _BAR_SECONDS))

    def update(self, done: int, latest: str) -> None:
        """Moves the bar; the first call says where the run begins, and ``latest`` what was last measured."""
        # A run that continues has rounds done that took none of this process's time: they are no part of its rate.
        if self._first is None:
            self._first, self._begin = done, time.perf_counter()
        self._done = done
        self._bar.update(done, rate=f"{self._rate():.1f} rounds/s", latest=latest)

    def _rate(self) -> float:
        return (self._done - (self._first or 0)) / max(time.perf_counter() - self._begin, 1e-9)
