"""What a study has found, for a terminal."""

from __future__ import annotations

from rich.console import Console

from evenhand import studies
from evenhand.cli._tables import difference_table, metric_table, overview
from evenhand.cli._terminal import say
from evenhand.evaluation import OF_THE_DATA
from evenhand.report import caution, compare, metric_remarks, verdict

__all__ = ["show_study"]


def show_study(found: studies.Study, console: Console) -> None:
    """Prints the methods at their chosen settings under one condition, and how far they differ."""
    case = ", ".join(f"{name} {value}" for name, value in found.cases[0].items())
    chosen = [line.setting for line in found.table() if line.setting is not None]
    if case:
        console.print()
        say(console, case, "bold")
    say(console, f"Chosen: {'; '.join(str(each._replace(case={})) for each in chosen) or 'nothing'}.")
    if not chosen:
        return
    of = compare({each.method: found.views(each.method) for each in chosen}, found.metric)
    for notice in of.notices:
        if notice.finding.kind not in OF_THE_DATA:  # those are among the study's remarks
            say(console, notice.text, "yellow")
    console.print(overview(of))
    if len(chosen) > 1:
        say(console, verdict(of))
    if noise := caution(of):
        say(console, noise)
    if (table := metric_table(of)) is not None:
        console.print(table)
    for sentence in metric_remarks(of):
        say(console, sentence)
    if (table := difference_table(of, found.baseline)) is not None:
        console.print(table)
