"""TensorBoard."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.watch._watcher import Watched, Watcher, needed

__all__ = ["tensorboard"]


def tensorboard(folder: str | Path) -> Watcher:
    """Writes event files, which ``tensorboard --logdir FOLDER`` shows: a folder for each run.

    A run that is resumed, or repeated, writes another file into the same folder.

    Args:
      folder: that of all runs.

    Raises:
      EvenhandError: the package ``tensorboardX`` is not installed.

    Example:
      >>> import tempfile
      >>> watched = tensorboard(tempfile.mkdtemp()).begin("fedavg, seed 0", {"lr": 0.1})
      >>> watched.log(10, {"test_accuracy": 0.8})
      >>> watched.end("done")
    """
    package = needed("tensorboardX", "tensorboard")

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        place = Path(folder) / (re.sub(r"[^\w.=-]+", "-", name).strip("-.") or "run")
        writer = package.SummaryWriter(str(place), write_to_disk=True)
        writer.add_text("settings", f"```\n{json.dumps(dict(config), indent=1, default=str)}\n```", 0)

        def log(round: int, numbers: Mapping[str, float]) -> None:
            for metric, number in numbers.items():
                writer.add_scalar(metric, number, round)
            writer.flush()

        def end(status: str) -> None:
            writer.add_text("status", status, 0)
            writer.close()

        return Watched(log, end)

    return Watcher(begin)
