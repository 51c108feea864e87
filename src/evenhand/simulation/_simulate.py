"""Running a method on data: ``simulate`` and the generator under it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from evenhand._platform import check_process
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandWarning
from evenhand.evaluation import Metrics, check_metrics
from evenhand.evaluation.metrics import resolved
from evenhand.report import may_win
from evenhand.simulation._checkpoint import Checkpoint, Checkpoints
from evenhand.simulation._checks import check_model, check_numbers
from evenhand.simulation._evaluation import Evaluation
from evenhand.simulation._identity import identity
from evenhand.simulation._progress import Progress
from evenhand.simulation._run import Run
from evenhand.simulation._served import Untrained
from evenhand.simulation._session import Session
from evenhand.simulation.setup import set_up
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack
from evenhand.watch import Watch, Watcher, Watching, watchers

__all__ = ["iterate", "simulate"]


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
    session = Session(setup, data, seed, Evaluation(setup, data, seed, eval_clients, untrained), measured)
    same, checkpoints = partial(identity, setup, data, seed, eval_clients, untrained), None
    if checkpoint is not None:
        checkpoints = Checkpoints(checkpoint, setup.like, same, setup.store)
    alone = nullcontext() if checkpoints is None else checkpoints.held()
    with alone, Progress(rounds, progress) as bar:
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
