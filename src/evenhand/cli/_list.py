"""``evenhand list``: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console, Group
from rich.table import Table
from tyro.conf import Positional

from evenhand.cli._data import SOURCES
from evenhand.cli._methods import METHODS
from evenhand.cli._models import MODELS

__all__ = ["TOPICS", "Entry", "List"]


class Entry(NamedTuple):
    """One line of a table."""

    name: str
    line: str
    paper: str


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0]


TOPICS: dict[str, tuple[Entry, ...]] = {
    "methods": tuple(Entry(method.name, _first_line(method.__doc__), method.paper) for method in METHODS),
    "aggregators": (
        Entry("mean", "The weighted mean of the uploads.", "McMahan et al., AISTATS 2017"),
        Entry("risk_weighted", "Weights that a risk makes of the losses.", "Pillutla et al., 2023"),
        Entry("qfedavg", "Powers of the losses; a step that follows them.", "Li et al., ICLR 2020"),
        Entry("running_tilt", "TERM's weights, normaliser averaged over rounds.", "Li et al., JMLR 2023"),
        Entry("ascending_mixture", "A mixture of clients that climbs the losses.", "Mohri et al., ICML 2019"),
        Entry("min_norm", "The shortest combination of unit uploads.", "Hu et al., 2022"),
        Entry("drift_tilted", "Weights by distance from the broadcast model.", "Zhang et al., 2025"),
    ),
    "attacks": (),
    "data": tuple(Entry(*source) for source in SOURCES),
    "models": tuple(Entry(choice.name, choice.line, choice.paper) for choice in MODELS),
}


@dataclass(frozen=True)
class List:
    """Show the methods, aggregators, attacks, data sets and models that are built in."""

    topic: Positional[Literal["all", "methods", "aggregators", "attacks", "data", "models"]] = "all"
    """which table to show"""

    def execute(self) -> int:
        """Prints the tables and returns the exit code."""
        console = Console()
        for name, entries in TOPICS.items():
            if self.topic in ("all", name):
                console.print(_table(name, entries))
        return 0


def _table(title: str, entries: tuple[Entry, ...]) -> Group | str:
    if not entries:
        return f"{title}: none is built in yet.\n"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it is")
    table.add_column("source")
    for entry in entries:
        table.add_row(*entry)
    return Group(f"[bold]{title}", table)
