"""TensorBoard."""

from __future__ import annotations

import hashlib
import json
import re
import time
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
    package = needed("tensorboardX", "tensorboard")
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
