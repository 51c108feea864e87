"""What a tracker is, and how runs tell it what they measure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from evenhand.errors import EvenhandError, EvenhandWarning, expect

__all__ = ["Watch", "Watched", "Watcher", "Watching", "needed"]


class Watched(NamedTuple):
    """A run that a tracker follows.

    Attributes:
      log: takes the round, and name -> number of what was measured after it.
      end: takes ``"done"``, ``"diverged"``, ``"failed"``, ``"stopped"`` or ``"interrupted"``.
    """

    log: Callable[[int, Mapping[str, float]], None]
    end: Callable[[str], None]


class Watcher(NamedTuple):
    """A tracker.

    Attributes:
      begin: takes the name and the settings of a run, and gives what follows it.
    """

    begin: Callable[[str, Mapping[str, Any]], Watched]


Watch: TypeAlias = Watcher | Sequence[Watcher] | None


class Watching:
    """A run and its trackers; one that fails is dropped with a warning, and the run goes on.

    Args:
      watch: the trackers.
      name: of the run.
      config: its settings.
    """

    def __init__(self, watch: Watch, name: str, config: Mapping[str, Any]) -> None:
        watchers = [] if watch is None else [watch] if isinstance(watch, Watcher) else list(watch)
        for each in watchers:
            expect("watch", each, Watcher, 'eh.watch.tensorboard("logs")')
        self._watched: list[Watched] = []
        for each in watchers:
            self._try(lambda each=each: self._watched.append(each.begin(name, config)))
        self._rows = 0

    def show(self, history: Mapping[str, Any]) -> None:
        """Logs the rows of a history that have not been logged."""
        for i in range(self._rows, len(history["round"])):
            numbers = {name: float(column[i]) for name, column in history.items() if name != "round"}
            for each in list(self._watched):
                self._try(
                    lambda i=i, each=each, numbers=numbers: each.log(int(history["round"][i]), numbers), each
                )
        self._rows = len(history["round"])

    def end(self, status: str) -> None:
        """Says how the run has ended, once."""
        for each in list(self._watched):
            self._try(lambda each=each: each.end(status), each)
        self._watched = []

    def _try(self, act: Callable[[], None], each: Watched | None = None) -> None:
        try:
            act()
        except Exception as error:  # whatever a tracker does, it must not end a training
            self._watched = [other for other in self._watched if other is not each]
            sentence = f"A watcher failed ({type(error).__name__}: {error}): the run goes on without it."
            warnings.warn(sentence, EvenhandWarning, stacklevel=2)


def needed(module: str, extra: str) -> Any:
    """A module that only a tracker needs.

    Raises:
      EvenhandError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise EvenhandError(
            f"eh.watch.{extra} needs {module}, which is not installed: pip install 'evenhand[{extra}]'."
        ) from None
