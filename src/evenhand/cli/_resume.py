"""``evenhand resume``: a run that was stopped goes on, and ends as if it had not been."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from evenhand.cli._config import changes, spelled
from evenhand.cli._data import fingerprint
from evenhand.cli._folder import CHECKPOINT, CONFIG, REPORT, SUMMARY, read_json
from evenhand.cli._record import Place
from evenhand.cli._run import Run
from evenhand.cli._words import STYLE, in_one_sentence
from evenhand.errors import EvenhandError
from evenhand.text import visible

__all__ = ["Resume"]


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped or killed, to the same numbers in the end."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run`"""
    rounds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as asked at first)")] = (
        None
    )
    """rounds in all, those done included; more than before trains further"""
    quiet: bool = False
    """print nothing but errors"""

    def execute(self) -> int:
        """Trains on, completes the run folder and returns the exit code."""
        path = self.run / CONFIG
        if not path.is_file():
            raise EvenhandError(f"{self.run} is no run folder: name one that `evenhand run` wrote.")
        before = _restored(path)
        run = replace(before, quiet=self.quiet)
        if self.rounds is not None and self.rounds != before.rounds:
            # Evaluated as often as before, whatever that number would have led to.
            run = replace(run, rounds=self.rounds, eval_every=before.every)
        done = _finished(self.run)
        if done is not None and done == run.rounds:
            if not self.quiet:
                print(
                    f"{visible(self.run)} is finished, with {done} rounds done: --rounds {2 * done} trains further."
                )
            return 0
        if run.checkpoint == "off" or not (self.run / CHECKPOINT).is_dir():
            raise EvenhandError(
                f"{self.run} has no checkpoint to go on from: repeat the run by "
                f"`evenhand run --config {self.run} --out NEW`."
            )
        return self._train(path, run)

    def _train(self, path: Path, run: Run) -> int:
        data = run.data.load()
        if read_json(path).get("data", {}).get("fingerprint") != fingerprint(data):
            raise EvenhandError(
                f"The data {run.data.data} are not those that {self.run} was trained on: restore them, or begin "
                f"anew by `evenhand run --config {self.run} --out NEW`."
            )
        config = run.recorded(data)
        if not self.quiet:
            for sentence in changes(path, config):
                print(f"evenhand: {visible(sentence)}", file=sys.stderr)
        return run.train(data, Place(self.run, config, resumed=True))


def _restored(path: Path) -> Run:
    """The command that a ``config.json`` stands for."""
    words = spelled(path)
    try:
        with in_one_sentence():
            return tyro.cli(Run, prog="evenhand run", args=words, config=STYLE)
    except EvenhandError as error:
        raise EvenhandError(f"{path} is damaged: {error}") from None


def _finished(folder: Path) -> int | None:
    """How many rounds the run was finished with, or None if it was not."""
    if not (folder / REPORT).exists():
        return None
    try:
        summary = read_json(folder / SUMMARY)
    except EvenhandError:
        return None  # it will be written again
    return None if summary.get("interrupted") else summary.get("rounds")
