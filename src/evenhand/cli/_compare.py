"""``evenhand compare``: saved runs side by side, over all clients and client by client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli._results import load_saved
from evenhand.cli._tables import client_table, difference_table, metric_table, overview, tally
from evenhand.cli._terminal import remark, say
from evenhand.errors import EvenhandError, whole_number
from evenhand.report import Comparison, caution, compare, metric_remarks, verdict, write_report

__all__ = ["Compare"]


@dataclass(frozen=True)
class Compare:
    """Put saved runs side by side: how well, and how evenly, each serves its clients."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN RUN ...")] = ()
    """folders written by `evenhand run` or `evenhand study`"""
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
        saved = [run for folder in self.runs for run in load_saved(folder)]
        for sentence in (sentence for run in saved for sentence in run.remarks):
            remark(sentence)
        of = compare([run.view for run in saved])
        console = Console(highlight=False)
        for notice in of.notices:
            say(console, notice.text, "yellow")
        for name, run in of.named_runs:
            if (kept := run.info.get("kept")) is not None:
                say(console, f"{name}: {kept}.")
        console.print(overview(of))
        if len(of.methods) > 1:
            say(console, verdict(of), "yellow" if of.obstacles else "")
        for sentence in _remarks(of):
            say(console, sentence)
        if (table := metric_table(of)) is not None:
            console.print(table)
        for sentence in metric_remarks(of):
            say(console, sentence)
        if (table := difference_table(of)) is not None:
            console.print(table)
        stopped = [str(run.folder) for run in saved if run.interrupted]
        if stopped:
            say(console, f"Interrupted before the last round: {', '.join(stopped)}.", "yellow")
        if self.clients > 0 and of.same_clients:
            console.print(client_table(of, self.clients))
            if len(of.methods) == 2 and not of.obstacles and all(method.is_sound for method in of.methods):
                say(console, tally(of))
        elif self.clients > 0 and any(run.whole is not None for run in of.runs):
            say(console, "The honest clients differ between the runs, so that none is shown one by one.")
        if self.out is not None:
            say(console, f"Report: {write_report(self.out, [run.view for run in saved])}")
        return 0


def _remarks(of: Comparison) -> list[str]:
    noise = caution(of)
    return [f"* best of its column. {noise}" if of.seeds == 1 else f"{noise}"] if noise else []
