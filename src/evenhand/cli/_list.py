"""``evenhand list``: the methods, parts, data sets and models to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import optax
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from evenhand.cli._arguments import first_line
from evenhand.cli._data import SOURCES
from evenhand.cli._options import MODELS
from evenhand.evaluation.metrics import BUILT_IN
from evenhand.expressions import factories, room_of, signature
from evenhand.local import Work
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Risk, Sampling, Sum

__all__ = ["TOPICS", "Entry", "List"]


class Entry(NamedTuple):
    """Something to choose.

    Attributes:
      name: its name; for what an expression can call, its signature.
      line: what it is.
      source: where it comes from.
    """

    name: str
    line: str
    source: str


def _callable(*kinds: type) -> tuple[Entry, ...]:
    """What an expression can call to make such values, with the first sentence of each docstring."""
    found = (pair for kind in kinds for pair in factories(room_of(kind)).items())
    return tuple(Entry(signature(name, factory), first_line(factory), "") for name, factory in found)


TOPICS: dict[str, tuple[Entry, ...]] = {
    "methods": _callable(Algorithm),
    "aggregators": _callable(Sum),
    "risks": _callable(Risk),
    "parts": _callable(optax.GradientTransformation, Sampling, Systems, Work),
    "attacks": _callable(Attack),
    "metrics": tuple(Entry(name, first_line(factory), "") for name, factory in BUILT_IN.items()),
    "data": tuple(Entry(*source) for source in SOURCES),
    "models": tuple(Entry(choice.name, choice.line, choice.paper) for choice in MODELS),
}


@dataclass(frozen=True)
class List:
    """Show methods, the parts they are composed of, metrics, data sets and models."""

    topic: Positional[
        Literal["all", "methods", "aggregators", "risks", "parts", "attacks", "metrics", "data", "models"]
    ] = "all"
    """what to show"""

    def execute(self) -> int:
        """Prints them and returns the exit code."""
        console = Console(highlight=False)
        for name, entries in TOPICS.items():
            if self.topic in ("all", name):
                console.print(_shown(name, entries))
        return 0


def _shown(title: str, entries: tuple[Entry, ...]) -> Group:
    heading = Text(title, style="bold")
    return Group(heading, *(_signatures(entries) if "(" in entries[0].name else [_table(entries)]))


def _signatures(entries: tuple[Entry, ...]) -> Iterable[Padding]:
    for entry in entries:
        name, _, arguments = entry.name.partition("(")
        yield Padding(Text.assemble((name, "bold"), f"({arguments}"), (1, 0, 0, 2))
        yield Padding(Text(entry.line), (0, 0, 0, 6))
    yield Padding("", 0)


def _table(entries: tuple[Entry, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it is")
    table.add_column("source")
    for entry in entries:
        table.add_row(*entry)
    return table
