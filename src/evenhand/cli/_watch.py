"""Trackers by name, for ``--watch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenhand import watch
from evenhand.errors import EvenhandError, perhaps
from evenhand.watch import Watched, Watcher

__all__ = ["titled", "watchers"]

_MAKERS: Mapping[str, Callable[[Path], Watcher]] = {
    "tensorboard": lambda folder: watch.tensorboard(folder / "tensorboard"),
    "mlflow": lambda folder: watch.mlflow(),
    "wandb": lambda folder: watch.wandb(folder=folder, group=folder.name),
}


def watchers(names: str | None, folder: Path) -> list[Watcher]:
    """The trackers that ``--watch`` names.

    Args:
      names: separated by commas; None: none.
      folder: of the run or study.

    Raises:
      EvenhandError: there is no such tracker, or its package is not installed.
    """
    found: list[Watcher] = []
    for name in filter(None, map(str.strip, (names or "").split(","))):
        if name not in _MAKERS:
            hint = perhaps(name, _MAKERS) or f" among {', '.join(_MAKERS)}"
            raise EvenhandError(f"--watch {name!r:.40}: there is no such tracker{hint}.")
        found.append(_MAKERS[name](folder))
    return found


def titled(watcher: Watcher, name: str, config: Mapping[str, Any]) -> Watcher:
    """The tracker, told another name and further settings of its run."""

    def begin(_: str, known: Mapping[str, Any]) -> Watched:
        return watcher.begin(name, {**known, **config})

    return Watcher(begin)
