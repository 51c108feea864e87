"""``evenhand report``: the page of a saved run, written again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from evenhand.cli._folder import PAGE, REPORT, replacing
from evenhand.cli._results import study_in
from evenhand.cli._saved import load_run
from evenhand.cli._terminal import remark
from evenhand.report import write_report
from evenhand.studies import load
from evenhand.text import visible

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Write the page of a saved run, or of a study, again, and print its path."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run` or `evenhand study`"""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: in that folder)")] = None
    """write the page here instead"""

    def execute(self) -> int:
        """Writes the page and returns the exit code."""
        if study_in(self.run):
            print(visible(load(self.run).report(self.run / PAGE if self.out is None else self.out)))
            return 0
        path = self.run / REPORT if self.out is None else self.out
        saved = load_run(self.run)
        for sentence in saved.remarks:
            remark(sentence)
        with replacing(path) as temporary:
            write_report(temporary, [saved.view])
        print(visible(path))
        return 0
