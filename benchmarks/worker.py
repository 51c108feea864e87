"""Processes that are measured in turns, each with the libraries of its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["HEAP", "Worker"]

# XLA and PyTorch both return scratch memory at every call, and get it back page by page, unless the heap is kept.
HEAP = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


class Worker:
    """A process that answers commands."""

    def __init__(
        self,
        python: str,
        script: str,
        *arguments: str,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Starts a script of this folder, with variables and ``Popen``'s options beyond the usual ones."""
        variables = {**os.environ, **HEAP, **(environment or {})}
        if threads is not None:
            variables["OMP_NUM_THREADS"] = str(threads)
        self.process = subprocess.Popen(
            [python, str(Path(__file__).parent / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            **options,
        )

    def ask(self, command: str) -> dict[str, float]:
        """The answer to one command."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        print(command, file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise SystemExit(f"The worker died at {command!r}.")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        pipes: tuple[IO[str] | None, ...] = (self.process.stdin, self.process.stdout)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        self.process.wait()
