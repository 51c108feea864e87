"""Experiment trackers: log runs while they train to TensorBoard, MLflow, Weights & Biases, or a tracker of your own.

``eh.simulate(..., watch=eh.watch.tensorboard("logs"))``, or several in a list, and the same for ``eh.study``.  A
tracker is a :class:`Watcher`, a function that begins to follow a run:

Example:
  >>> import evenhand as eh
  >>> def begin(name, config):
  ...     def log(round, numbers):
  ...         print(round, f"{numbers['train_loss']:.2f}")
  ...     return eh.watch.Watched(log, end=print)
  >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
  >>> run = eh.simulate(method, eh.testing.toy_data(), rounds=2, eval_every=2, watch=eh.watch.Watcher(begin))
  0 ...
  2 ...
  done
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from evenhand.errors import EvenhandError, EvenhandWarning, expect

__all__ = ["Watch", "Watched", "Watcher", "Watching", "mlflow", "tensorboard", "wandb", "watchers"]


# --- what a tracker is --------------------------------------------------------------------------------------------


class Watched(NamedTuple):
    """A run that a tracker follows.

    Attributes:
      log: ``(round, numbers) -> None`` takes what was measured after a round, name -> number.
      end: ``(status) -> None`` takes ``"done"``, ``"diverged"``, ``"failed"``, ``"interrupted"`` or, from a study that
        stops some of its settings early, ``"stopped"``.
    """

    log: Callable[[int, Mapping[str, float]], None]
    end: Callable[[str], None]


class Watcher(NamedTuple):
    """A tracker.

    Attributes:
      begin: ``(name, config) -> Watched`` takes a run's name and its settings, name -> bool, int, float or str.
    """

    begin: Callable[[str, Mapping[str, Any]], Watched]


Watch: TypeAlias = Watcher | Sequence[Watcher] | None


def watchers(watch: Watch) -> list[Watcher]:
    """The trackers of an argument ``watch``.

    Raises:
      EvenhandError: it holds something else.
    """
    given: Any = [] if watch is None else watch
    several = isinstance(given, list | tuple) and not isinstance(given, Watcher)  # which is a tuple as well
    trackers: list[Any] = list(given) if several else [given]
    for tracker in trackers:
        expect("watch", tracker, Watcher, 'eh.watch.tensorboard("logs")')
    return trackers


# --- a run and its trackers ---------------------------------------------------------------------------------------


class Watching:
    """A run and the trackers that follow it; one that fails is dropped with a warning, and training continues.

    Args:
      trackers: they begin now.
      name: the run's.
      config: its settings; those that are None are left out, and objects become text.
    """

    def __init__(self, trackers: Sequence[Watcher], name: str, config: Mapping[str, Any]) -> None:
        plain = {
            key: setting if isinstance(setting, bool | int | float | str) else str(setting)
            for key, setting in config.items()
            if setting is not None
        }
        self._watched: list[Watched] = []
        self._shown = 0
        for tracker in trackers:
            with _forgiving(name):
                self._watched.append(tracker.begin(name, plain))
        self._name = name

    def show(self, history: Mapping[str, Any]) -> None:
        """Logs the rows of a history that have not been logged; of a resumed run, first those from before."""
        rounds = [int(round) for round in history["round"]]

        def log(tracker: Watched) -> None:
            for i, round in enumerate(rounds[self._shown :], self._shown):
                numbers = {name: float(column[i]) for name, column in history.items() if name != "round"}
                # Before the first round, what a method reports does not exist.
                tracker.log(round, {name: x for name, x in numbers.items() if round or not math.isnan(x)})

        self._call(log)
        self._shown = len(rounds)

    def end(self, status: str) -> None:
        """Says how the run ended."""
        self._call(lambda tracker: tracker.end(status))

    def _call(self, act: Callable[[Watched], None]) -> None:
        kept: list[Watched] = []
        for tracker in self._watched:
            with _forgiving(self._name):
                act(tracker)
                kept.append(tracker)
        self._watched = kept


@contextmanager
def _forgiving(name: str) -> Generator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # whatever a tracker does, it must not end a training
        sentence = f"A tracker failed and no longer logs {name} ({type(error).__name__}: {error})."
        warnings.warn(sentence, EvenhandWarning, stacklevel=2)


# --- the trackers that are built in -------------------------------------------------------------------------------


def tensorboard(folder: str | Path) -> Watcher:
    """Logs to TensorBoard: writes event files for ``tensorboard --logdir FOLDER``, in one folder per run.

    A run that is resumed or repeated writes a further file there with all of its history, and TensorBoard shows that
    alone.

    Args:
      folder: the parent of the runs' folders.

    Raises:
      EvenhandError: ``tensorboardX`` is not installed.

    Example:
      >>> import tempfile
      >>> watched = tensorboard(tempfile.mkdtemp()).begin("fedavg, seed 0", {"lr": 0.1})
      >>> watched.log(10, {"test_accuracy": 0.8})
      >>> watched.end("done")
    """
    package = _needed("tensorboardX", "tensorboard")
    text, protos, numbered = package.summary.text, package.proto.event_pb2, package.proto.summary_pb2.Summary

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        place = Path(folder) / _folder_of(name)
        place.mkdir(parents=True, exist_ok=True)
        # Not `SummaryWriter`, whose thread may stop unnoticed, and then whoever logs waits for ever.
        writer = package.event_file_writer.EventsWriter(str(place / "events"))

        def write(round: int, summary: Any) -> None:
            writer.write_event(protos.Event(step=round, wall_time=time.time(), summary=summary))
            writer.flush()

        # At this, TensorBoard drops what earlier files have.
        start = protos.SessionLog(status=protos.SessionLog.START)
        writer.write_event(protos.Event(step=0, wall_time=time.time(), session_log=start))
        write(0, text("settings", f"```\n{json.dumps(dict(config), indent=1)}\n```"))

        def log(round: int, numbers: Mapping[str, float]) -> None:
            values = [numbered.Value(tag=metric, simple_value=x) for metric, x in numbers.items()]
            write(round, numbered(value=values))

        def end(status: str) -> None:
            write(0, text("status", status))
            writer.close()

        return Watched(log, end)

    return Watcher(begin)


def _folder_of(name: str) -> str:
    """A name as a folder's: as it is where every file system takes it."""
    plain = re.sub(r"[^\w.=+,()\[\] -]", "-", name, flags=re.ASCII)[:120].strip(" .")
    return plain if plain and plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


_LONGEST_PARAMETER = 500
"""Characters of a parameter that every store takes."""
_MOST_PARAMETERS = 100
"""Parameters that a server takes at once."""
_LONGEST_NAME = 250
"""Characters of a name that MLflow takes."""
_MLFLOW_STATUS = {"failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}


def mlflow(uri: str | None = None, *, experiment: str = "evenhand") -> Watcher:
    """Logs each run to MLflow: settings as parameters, measurements as metrics by round.

    The tag ``"status"`` says how it ended.  A name that MLflow refuses loses the characters that it does not take:
    ``"test_loss (theta=0.5)"`` is ``"test_loss theta 0.5"``.  A run that is resumed or repeated is another run there,
    with all of its history.

    Args:
      uri: a tracking server or a database, such as ``"sqlite:///runs.db"``; None: what ``MLFLOW_TRACKING_URI`` names,
        else ``mlflow.db`` in the current folder.
      experiment: what the runs belong to; it is made where there is none.

    Raises:
      EvenhandError: MLflow is not installed.
    """
    package = _needed("mlflow", "mlflow")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        client, entities = package.MlflowClient(uri), package.entities
        existing = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if existing is None else existing.experiment_id
        run = client.create_run(place, run_name=name).info.run_id
        parameters = [
            entities.Param(_mlflow_name(key), str(x)[:_LONGEST_PARAMETER]) for key, x in config.items()
        ]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            client.log_batch(run, params=parameters[first : first + _MOST_PARAMETERS])

        def log(round: int, numbers: Mapping[str, float]) -> None:
            now = int(time.time() * 1000)
            metrics = [entities.Metric(_mlflow_name(metric), x, now, round) for metric, x in numbers.items()]
            client.log_batch(run, metrics=metrics)

        def end(status: str) -> None:
            client.set_tag(run, "status", status)
            client.set_terminated(run, _MLFLOW_STATUS.get(status, "FINISHED"))

        return Watched(log, end)

    return Watcher(begin)


def _mlflow_name(name: str) -> str:
    """A name with spaces in place of the characters that MLflow refuses."""
    plain = re.sub(r"[^/\w.\- ]", " ", name)
    return name if plain == name else " ".join(plain.split())[:_LONGEST_NAME]


def wandb(
    project: str = "evenhand",
    *,
    mode: Literal["online", "offline", "disabled"] | None = None,
    folder: str | Path = ".",
    group: str | None = None,
) -> Watcher:
    """Logs each run to Weights & Biases: settings as the config, measurements by round.

    ``"status"`` in the summary says how it ended.  A run that is resumed or repeated is another run there, with all of
    its history.

    Args:
      project: what the runs belong to.
      mode: ``"offline"`` only writes files, which ``wandb sync`` sends later; None: as in ``WANDB_MODE``, else online.
      folder: where the files go, below ``wandb/``.
      group: under which the runs are shown together, such as the name of a study.

    Raises:
      EvenhandError: ``wandb`` is not installed.
    """
    package = _needed("wandb", "wandb")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        Path(folder).mkdir(parents=True, exist_ok=True)  # else the files go to a temporary one
        run = package.init(
            project=project,
            name=name,
            config=dict(config),
            mode=mode,
            dir=str(folder),
            group=group,
            reinit="create_new",  # the runs of a study are open side by side
        )

        def log(round: int, numbers: Mapping[str, float]) -> None:
            run.log(dict(numbers), step=round)

        def end(status: str) -> None:
            run.summary["status"] = status
            run.finish(exit_code=0 if status in ("done", "stopped") else 1)

        return Watched(log, end)

    return Watcher(begin)


def _needed(module: str, extra: str) -> Any:
    """A module that only one tracker needs.

    Raises:
      EvenhandError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise EvenhandError(
            f"watch: {extra} needs the package {package}, which is not installed: pip install 'evenhand[{extra}]'."
        ) from None
