"""``evenhand compare``: saved runs side by side, over all clients and client by client."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli._saved import SavedRun, load_run
from evenhand.cli._tables import client_table, overview, subject, tally
from evenhand.errors import EvenhandError, whole_number
from evenhand.evaluation import RunView, write_report

__all__ = ["Compare"]


@dataclass(frozen=True)
class Compare:
    """Put saved runs side by side: how well, and how evenly, each serves its clients."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN RUN ...")] = ()
    """folders written by `evenhand run`"""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: no page)")] = None
    """write a page with figures here, e.g. compare.html"""
    clients: int = 10
    """how many of the worst-off clients to show one by one"""

    def execute(self) -> int:
        """Prints the tables and returns the exit code."""
        whole_number("clients", self.clients, 0)
        if not self.runs:
            raise EvenhandError(
                "There is nothing to compare: name run folders, e.g. `evenhand compare runs/a runs/b`."
            )
        saved = [load_run(folder) for folder in self.runs]
        for remark in (remark for run in saved for remark in run.remarks):
            print(f"evenhand: {remark}", file=sys.stderr)
        views = _distinct(saved)
        of = subject(views)
        console = Console(highlight=False)
        for name, view in zip(of.names, views, strict=True):
            for finding in view.findings:
                console.print(f"{name}: {finding.sentence}", style="yellow", soft_wrap=True, markup=False)
        console.print(overview(of))
        for sentence in _remarks(saved):
            console.print(sentence, soft_wrap=True)
        if self.clients > 0 and len({tuple(view.client_ids) for view in views}) == 1:
            console.print(client_table(of, self.clients))
            if len(views) == 2:
                console.print(tally(of), soft_wrap=True)
        if self.out is not None:
            console.print(f"Report: {write_report(self.out, views)}", soft_wrap=True, markup=False)
        return 0


def _distinct(saved: Sequence[SavedRun]) -> list[RunView]:
    """The views under titles that tell them apart: the folders' names where the methods are alike."""
    titles = [run.view.title for run in saved]
    if len(set(titles)) == len(titles):
        return [run.view for run in saved]
    return [run.view._replace(title=str(run.folder)) for run in saved]


def _remarks(saved: Sequence[SavedRun]) -> list[str]:
    remarks = ["* best of its column"] if len(saved) > 1 else []
    if len({run.fingerprint for run in saved}) > 1:
        remarks.append("[yellow]These runs were not made on the same data: their numbers do not compare.[/]")
    stopped = [str(run.folder) for run in saved if run.interrupted]
    if stopped:
        remarks.append(f"[yellow]Interrupted before its last round: {', '.join(stopped)}.[/]")
    return remarks
