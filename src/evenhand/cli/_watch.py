"""Trackers by name, for ``--watch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenhand import watch
from evenhand.errors import EvenhandError, perhaps
from evenhand.watch import Watched, Watcher

__all__ = ["check_trackers", "of_run", "trackers"]

_MAKERS: Mapping[str, Callable[[Path], Watcher]] = {
    "tensorboard": lambda folder: watch.tensorboard(folder / "tensorboard"),
    "mlflow": lambda folder: watch.mlflow(),
    "wandb": lambda folder: watch.wandb(folder=folder, group=folder.name),
}


def check_trackers(text: str | None) -> list[str]:
    """The names in ``--watch``.

    Raises:
      EvenhandError: there is no such tracker.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _MAKERS:
            hint = perhaps(name, _MAKERS) or f" among {', '.join(_MAKERS)}"
            raise EvenhandError(f"--watch {name!r:.40}: there is no such tracker{hint}.")
    return list(dict.fromkeys(names))


def trackers(text: str | None, folder: Path) -> list[Watcher]:
    """What ``--watch`` names.

    Args:
      text: names with commas between them; None: none.
      folder: of the run or study, for their files.

    Raises:
      EvenhandError: there is no such tracker, or its package is not installed.
    """
    return [_MAKERS[name](folder) for name in check_trackers(text)]


def of_run(tracker: Watcher, folder: Path, config: Mapping[str, Any]) -> Watcher:
    """The tracker, told the run's folder as its name, and what ``config.json`` holds as its settings."""

    def begin(name: str, known: Mapping[str, Any]) -> Watched:
        return tracker.begin(folder.name, {**config["options"], **known, "method": config["method"]})

    return Watcher(begin)
