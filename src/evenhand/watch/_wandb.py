"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from evenhand.watch._watcher import Watched, Watcher, needed

__all__ = ["wandb"]


def wandb(
    project: str = "evenhand",
    *,
    mode: Literal["online", "offline", "disabled"] | None = None,
    folder: str | Path | None = None,
    group: str | None = None,
) -> Watcher:
    """Makes a run of Weights & Biases for each run: settings are its config, what is measured is logged by round.

    A run that is resumed, or repeated, is another run there, with the whole history.

    Args:
      project: which the runs belong to.
      mode: ``"offline"`` writes files, which ``wandb sync`` sends later; None: as ``WANDB_MODE`` says, else online.
      folder: for these files; None: the current one.
      group: of the runs, such as the name of a study.

    Raises:
      EvenhandError: the package ``wandb`` is not installed.
    """
    package = needed("wandb", "wandb")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        place = None if folder is None else str(folder)
        run = package.init(
            project=project,
            name=name,
            config=dict(config),
            mode=mode,
            dir=place,
            group=group,
            reinit="create_new",  # runs of a study are open side by side
        )

        def log(round: int, numbers: Mapping[str, float]) -> None:
            run.log(dict(numbers), step=round)

        def end(status: str) -> None:
            run.summary["status"] = status
            run.finish(exit_code=0 if status in ("done", "stopped") else 1)

        return Watched(log, end)

    return Watcher(begin)
