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
    folder: str | Path = ".",
    group: str | None = None,
) -> Watcher:
    """Follows each run as a run of Weights & Biases: its settings are the config, what is measured is logged by round.

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
    package = needed("wandb", "wandb")

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
