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
from evenhand.cli._rooms import ROOMS, Room, factories, room_of, signature
from evenhand.types import Algorithm

__all__ = ["TOPICS", "Entry", "List"]


class Entry(NamedTuple):
    """One line of a table."""

    name: str
    line: str
    paper: str


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0].replace("``", "")


def _parts(room: Room) -> tuple[Entry, ...]:
    """What an expression can call there: signatures, and the first sentence of each docstring."""
    found = factories(room).items()
    return tuple(Entry(signature(name, factory), _first_line(factory.__doc__), "") for name, factory in found)


def _methods() -> tuple[Entry, ...]:
    """Those with options of their own, then those that are expressions only."""
    plain = tuple(Entry(method.name, _first_line(method.__doc__), method.paper) for method in METHODS)
    named = {entry.name.replace("-", "_") for entry in plain}
    rest = {name: made for name, made in factories(room_of(Algorithm)).items() if name not in named}
    return plain + tuple(Entry(f"{name}()", _first_line(made.__doc__), "") for name, made in rest.items())


_PLURALS = {
    "aggregator": "aggregators",
    "risk": "risks",
    "server optimiser": "server-optimisers",
    "sampling": "samplings",
}

TOPICS: dict[str, tuple[Entry, ...]] = {
    "methods": _methods(),
    **{_PLURALS[room.what]: _parts(room) for room in ROOMS if room.what in _PLURALS},
    "attacks": (),
    "data": tuple(Entry(*source) for source in SOURCES),
    "models": tuple(Entry(choice.name, choice.line, choice.paper) for choice in MODELS),
}


@dataclass(frozen=True)
class List:
    """Show what is built in: methods and the parts that they are composed of, data sets and models."""

    topic: Positional[
        Literal[
            "all",
            "methods",
            "aggregators",
            "risks",
            "server-optimisers",
            "samplings",
            "attacks",
            "data",
            "models",
        ]
    ] = "all"
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
    if has_source := any(entry.paper for entry in entries):
        table.add_column("source")
    for entry in entries:
        table.add_row(*entry if has_source else entry[:2])
    return Group(f"[bold]{title}", table)
