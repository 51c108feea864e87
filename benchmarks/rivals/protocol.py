"""What the workers of other libraries share: they read commands, one a line, and answer each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Protocol

from tasks import TASKS, Task

__all__ = ["Rounds", "serve"]


class Rounds(Protocol):
    """One task in one library."""

    def run(self, first: int, count: int) -> float:
        """Trains for ``count`` rounds, at least two, and returns the seconds of all rounds but the first."""
        ...

    def loss(self) -> float:
        """The loss of the global model on the task's probe."""
        ...


def serve(make: Callable[[Task], Rounds]) -> None:
    """Answers ``load TASK``, ``learn ROUNDS`` and ``time ROUNDS`` until the input ends."""
    # Ray, pfl and their child processes print to standard output, which belongs to the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop: Rounds | None = None
    number = 0
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        answer: dict[str, float] = {}
        if verb == "load":
            loop = make(TASKS[argument])
        elif loop is not None:
            before = loop.loss() if verb == "learn" else 0.0
            # The first of the timed rounds warms the caches, and does not count.
            count = int(argument) + (verb == "time")
            seconds = loop.run(number, count)
            number += count
            if verb == "learn":
                answer = {"before": before, "after": loop.loss()}
            else:
                answer = {"wall": seconds / (count - 1)}
        print(json.dumps(answer), file=answers, flush=True)
