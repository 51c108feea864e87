"""``evenhand list``: what there is to choose from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import optax
from rich import box
from rich.console import Console, Group
from rich.table import Table
from tyro.conf import Positional

from evenhand.cli._data import SOURCES
from evenhand.cli._methods import METHODS
from evenhand.cli._models import MODELS
from evenhand.cli._rooms import Room, factories, room_of, signature
from evenhand.types import Algorithm, Risk, Sampling, Sum

__all__ = ["TOPICS", "Entry", "List"]


class Entry(NamedTuple):
    """One line of a table."""

    name: str
    line: str
    paper: str


_SYMBOLS = {
    r"\leftarrow": "←",
    r"\beta": "β",
    r"\eta": "η",
    r"\Delta": "Δ",
    r"\theta": "θ",
    r"\tau": "τ",
    r"\mu": "μ",
}


def _first_line(doc: str | None) -> str:
    """The first sentence of a docstring, as a terminal can show it."""
    line = re.sub(r":math:`([^`]*)`", r"\1", (doc or "").strip().splitlines()[0].replace("``", ""))
    for name, symbol in _SYMBOLS.items():
        line = line.replace(name, symbol)
    return line


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


_PARTS = {"aggregators": (Sum,), "risks": (Risk,), "parts": (optax.GradientTransformation, Sampling)}
"""Which values each table of parts has the factories of; the last one has the rest."""

TOPICS: dict[str, tuple[Entry, ...]] = {
    "methods": _methods(),
    **{
        name: tuple(entry for kind in kinds for entry in _parts(room_of(kind)))
        for name, kinds in _PARTS.items()
    },
    "attacks": (),
    "data": tuple(Entry(*source) for source in SOURCES),
    "models": tuple(Entry(choice.name, choice.line, choice.paper) for choice in MODELS),
}


@dataclass(frozen=True)
class List:
    """Show the methods, the parts that compose them, data sets and models."""

    topic: Positional[
        Literal["all", "methods", "aggregators", "risks", "parts", "attacks", "data", "models"]
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
