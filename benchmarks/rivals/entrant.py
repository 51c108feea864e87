"""A worker of a library that is not ours: it may fail or hang, and must not take the others with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from environments import Failure, last_error
from worker import Worker

__all__ = ["Entrant"]

# The scripts import the tasks and the PyTorch loop. Without the others, Flower and Ray send reports over the network.
_VARIABLES = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Entrant(Worker):
    """A process that answers within ``patience`` seconds, or fails with what it wrote to its log."""

    def __init__(
        self, python: str | Path, script: str, *arguments: str, threads: int | None, patience: float
    ) -> None:
        self.patience = patience
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        super().__init__(
            str(python),
            script,
            *arguments,
            threads=threads,
            environment=_VARIABLES,
            stderr=self.log,
            start_new_session=True,
        )

    def ask(self, command: str) -> dict[str, float]:
        """The answer to one command."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(self.patience, stop)
        timer.start()
        try:
            return super().ask(command)
        except (SystemExit, OSError, json.JSONDecodeError):
            if late.is_set():
                raise Failure(f"no answer to {command!r} within {self.patience:.0f} s") from None
            self.log.seek(0)
            raise Failure(last_error(self.log.read())) from None
        finally:
            timer.cancel()

    def kill(self) -> None:
        """Ends the process and those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process, and what it leaves running."""
        with contextlib.suppress(OSError):
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            print(f"{self.process.args} did not end by itself", file=sys.stderr)
        self.kill()
        self.process.wait()
        self.log.close()
