"""TensorBoard."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.watch._watcher import Watched, Watcher, needed

__all__ = ["tensorboard"]


def tensorboard(folder: str | Path) -> Watcher:
    """Writes event files, which ``tensorboard --logdir FOLDER`` shows, in a folder for each run.

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
    package, protos = (
        needed("tensorboardX", "tensorboard"),
        needed("tensorboardX.proto.summary_pb2", "tensorboard"),
    )

    def begin(name: str, config: Mapping[str, Any]) -> Watched:
        writer = package.SummaryWriter(str(Path(folder) / _folder_of(name)), purge_step=0)
        writer.add_text("settings", f"```\n{json.dumps(dict(config), indent=1)}\n```", 0)

        def log(round: int, numbers: Mapping[str, float]) -> None:
            # Not `add_scalar`, which prints a line for each loss that is not finite.
            values = [protos.Summary.Value(tag=metric, simple_value=x) for metric, x in numbers.items()]
            writer.file_writer.add_summary(protos.Summary(value=values), round)
            writer.flush()

        def end(status: str) -> None:
            writer.add_text("status", status, 0)
            writer.close()

        return Watched(log, end)

    return Watcher(begin)


def _folder_of(name: str) -> str:
    """A name as a folder's: as it is where every file system takes it."""
    plain = re.sub(r"[^\w.=+,()\[\] -]", "-", name, flags=re.ASCII)[:120].strip(" .")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
