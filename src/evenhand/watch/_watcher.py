"""What a tracker is, and how a run tells its trackers what is measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from evenhand.errors import EvenhandError, EvenhandWarning, expect

__all__ = ["Watch", "Watched", "Watcher", "Watching", "needed", "watchers"]


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
    several = isinstance(given, list | tuple) and not isinstance(given, Watcher)
    found: list[Any] = list(given) if several else [given]
    for each in found:
        expect("watch", each, Watcher, 'eh.watch.tensorboard("logs")')
    return found


class Watching:
    """A run and the trackers that follow it; one that fails is dropped with a warning, and the training goes on.

    Args:
      trackers: they begin now.
      name: the run's.
      config: its settings; those that are None are left out, and objects become text.
    """

    def __init__(self, trackers: Sequence[Watcher], name: str, config: Mapping[str, Any]) -> None:
        given = {key: setting for key, setting in config.items() if setting is not None}
        plain = {
            key: setting if isinstance(setting, bool | int | float | str) else str(setting)
            for key, setting in given.items()
        }
        self._watched: list[Watched] = []
        self._shown = 0
        for each in trackers:
            with _forgiving(name):
                self._watched.append(each.begin(name, plain))
        self._name = name

    def show(self, history: Mapping[str, Any]) -> None:
        """Logs the rows of a history that have not been logged; of a resumed run, first those from before."""
        rounds = [int(round) for round in history["round"]]
        rows = [
            (round, {name: float(column[i]) for name, column in history.items() if name != "round"})
            for i, round in enumerate(rounds)
        ]

        def log(each: Watched) -> None:
            for round, numbers in rows[self._shown :]:
                # Before the first round, what a method reports does not exist.
                known = {name: x for name, x in numbers.items() if round or not math.isnan(x)}
                each.log(round, known)

        self._tell(log)
        self._shown = len(rows)

    def end(self, status: str) -> None:
        """Says how the run ended."""
        self._tell(lambda each: each.end(status))

    def _tell(self, act: Callable[[Watched], None]) -> None:
        kept: list[Watched] = []
        for each in self._watched:
            with _forgiving(self._name):
                act(each)
                kept.append(each)
        self._watched = kept


@contextmanager
def _forgiving(name: str) -> Generator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # whatever a tracker does, it must not end a training
        sentence = f"A tracker failed and no longer follows {name} ({type(error).__name__}: {error})."
        warnings.warn(sentence, EvenhandWarning, stacklevel=2)


def needed(module: str, extra: str) -> Any:
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
