"""``evenhand resume``: a stopped run continues, and ends as if it had never been stopped.

It never replaces more rounds by fewer, and it rebuilds damaged results from the checkpoint.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from evenhand.cli._checksums import Condition, check
from evenhand.cli._config import changes, filled, recorded
from evenhand.cli._folder import (
    CHECKPOINT,
    CHECKSUMS,
    CONFIG,
    REPORT,
    SUMMARY,
    dict_in,
    last_round,
    read_json,
)
from evenhand.cli._methods import Composed
from evenhand.cli._params import damaged_model
from evenhand.cli._record import Place
from evenhand.cli._run import Run
from evenhand.errors import EvenhandError
from evenhand.records import held
from evenhand.simulation import Checkpoint
from evenhand.text import visible

__all__ = ["Resume"]


@dataclass(frozen=True)
class Resume:
    """Continue a run that was stopped or killed; it ends with the same numbers."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run`"""
    rounds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as before)")] = None
    """rounds in total, including those done; more than before trains further"""
    quiet: bool = False
    """print nothing but errors"""

    def execute(self) -> int:
        """Trains on, completes the run folder and returns the exit code."""
        if (self.run / "runs").is_dir() and not (self.run / CONFIG).is_file():
            raise EvenhandError(
                f"{self.run} is a study: run the `evenhand study` command that made it again to finish it."
            )
        if not (self.run / CONFIG).is_file():
            raise EvenhandError(f"{self.run} is not a run folder: name one that `evenhand run` wrote.")
        with held(self.run):
            return self._resume()

    def _resume(self) -> int:
        path = self.run / CONFIG
        before = _restored(path)
        options = replace(before.training, quiet=self.quiet)
        if self.rounds is not None and self.rounds != options.rounds:
            # Evaluated as often as before, whatever the new number of rounds would have led to.
            options = replace(options, rounds=self.rounds, eval_every=options.every)
        run = replace(before, training=options)
        condition = check(self.run)
        if not condition.damaged and (name := damaged_model(self.run)) is not None:
            condition = condition._replace(damaged=(name,))
        ended = _ended(self.run, condition)
        # A run that has not ended has done no more rounds than were asked for, whatever a damaged line says; an edited
        # configuration no longer says how many that were.
        limit = before.training.rounds if not condition.is_edited else sys.maxsize
        most = max(ended or 0, min(last_round(self.run), limit))
        if options.rounds < most:
            raise EvenhandError(
                f"{self.run} has already done {most} rounds, more than the {options.rounds} asked for: ask for more, "
                f"or train fewer in another folder with "
                f"`evenhand run --config {self.run} --rounds {options.rounds} --out NEW`."
            )
        if (
            ended is not None
            and ended == options.rounds
            and (self.run / REPORT).exists()
            and not condition.damaged
        ):
            if not self.quiet:
                print(
                    f"{visible(self.run)} is finished after {ended} rounds: --rounds {2 * ended} trains further."
                )
            return 0
        saved = Checkpoint(self.run / CHECKPOINT).saved()
        if options.checkpoint == "off" or (not saved and (ended is not None or condition.damaged)):
            raise EvenhandError(
                f"{self.run} has no checkpoint to continue from: repeat the run with "
                f"`evenhand run --config {self.run} --rounds {options.rounds} --out NEW`."
            )
        remarks = self._remarks(condition)
        if not (saved or self.quiet):
            remarks.append(f"{self.run} was stopped before its first state was saved: the run starts over.")
        return self._train(path, run, remarks)

    def _remarks(self, condition: Condition) -> list[str]:
        path, remarks = self.run / CONFIG, list[str]()
        if condition.is_edited and not self.quiet:
            remarks.append(f"{path} was changed since it was written: the new settings apply.")
        for name in condition.damaged[:1]:
            remarks.append(f"{self.run / name} is damaged: the results are rebuilt from the checkpoint.")
        return remarks

    def _train(self, path: Path, run: Run, remarks: list[str]) -> int:
        data = run.data.load()
        if dict_in(read_json(path), "data").get("fingerprint") != data.fingerprint:
            raise EvenhandError(
                f"The data {run.data.data} are not those that {self.run} was trained on: restore them, or start "
                f"over with `evenhand run --config {self.run} --out NEW`."
            )
        config = run.recorded(data)
        if not self.quiet:
            remarks = [*remarks, *changes(path, config)]
        return run.train(data, Place(self.run, config, resumed=True, remarks=tuple(remarks)))


def _restored(path: Path) -> Run:
    """The command that a ``config.json`` records."""
    try:
        before = recorded(path)
        run = filled(Run(Composed(before.method)), before)
        run.check()
    except EvenhandError as error:
        raise EvenhandError(f"{path} is damaged: {str(error).removeprefix(f'{path}: ')}") from None
    return run


def _ended(folder: Path, condition: Condition) -> int | None:
    """How many rounds the run finished with, or None if it did not finish."""
    if condition.results == "none" or {SUMMARY, CHECKSUMS} & set(condition.damaged):
        return None
    try:
        summary = read_json(folder / SUMMARY)
    except EvenhandError:
        return None  # it will be written again
    rounds = summary.get("rounds")
    return None if summary.get("interrupted") or not isinstance(rounds, int) else rounds
