"""What a terminal of 80 columns shows: sentences and names of methods are broken between words."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from evenhand.cli._terminal import Expression, difference_table, new_table, overview, say
from evenhand.report import RunView, compare, differences
from evenhand.report.tables import difference_text

NAME = "ditto(fedprox(mu=0.1, aggregator=geometric_median(passes=5)), lam=1)"
SENTENCE = (
    "The average client is served best by a method whose name is longer than what is left of this line."
)


def printed(what: object, *, terminal: bool, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False)
    if isinstance(what, str):
        say(console, what)
    else:
        console.print(what)
    return out.getvalue()


def test_a_terminal_gets_sentences_broken_between_words_and_a_file_gets_one_line() -> None:
    lines = printed(SENTENCE, terminal=True).splitlines()
    assert len(lines) == 2 and " ".join(line.rstrip() for line in lines) == SENTENCE
    assert printed(SENTENCE, terminal=False) == SENTENCE + "\n"
    path = "Report: /" + "a" * 100
    assert "/" + "a" * 100 in printed(path, terminal=True)  # a path stays one word


@pytest.mark.parametrize("width", [28, 30, 40, 200])
def test_names_of_methods_are_broken_where_arguments_begin(width: int) -> None:
    table = new_table()
    table.add_column("method")
    table.add_column("mean", no_wrap=True)
    table.add_row(Expression(NAME), "41.4")
    shown = printed(table, terminal=True, width=width).partition("─ \n")[2]
    cells = [line.replace("41.4", "").strip() for line in shown.splitlines() if line.strip()]
    assert "".join(cells).replace(" ", "") == NAME.replace(" ", "")
    assert all(cell.endswith(("(", ",", "=", ")")) for cell in cells)
    assert (len(cells) == 1) == (width == 200)


def test_a_part_that_is_longer_than_its_column_is_folded() -> None:
    table = new_table()
    table.add_column("method", width=6)
    table.add_row(Expression("x" * 14))
    assert printed(table, terminal=True, width=20).count("x") == 14


CLIENTS = 12


def seeds_of(name: str, scale: float, metric: str, seeds: int = 7) -> list[RunView]:
    """Runs of a method whose clients get about ``scale``, one for each seed."""
    runs = list[RunView]()
    for seed in range(seeds):
        noise = np.random.default_rng([seed, len(name)]).normal(size=CLIENTS)
        values = {metric: scale * (1 + 0.01 * len(name) + 0.05 * noise)}
        info = {"seed": seed, "rounds": 1, "fingerprint": "same"}
        names = tuple(f"c{i}" for i in range(CLIENTS))
        sizes = {"test": np.full(CLIENTS, 9)}
        runs.append(RunView(name, {"round": np.zeros(1)}, sizes, names, {"test": values}, info, {}))
    return runs


NAMES = ("fedavg", "fedprox(mu=0.1)", "risk_weighted(superquantile(0.5))")


@pytest.mark.parametrize(
    ("metric", "scale"), [("auc", 0.1), ("loss", 1.0), ("loss", 1e-5), ("loss", 12345.0), ("accuracy", 0.8)]
)
def test_tables_of_wide_numbers_keep_the_methods_and_cut_no_number(metric: str, scale: float) -> None:
    runs = {name: seeds_of(name, scale, metric) for name in NAMES}
    paired = differences(runs, NAMES[0], "test", metric)
    for table in (difference_table, overview):
        shown = printed(table(compare(runs, metric)), terminal=True)
        lines = shown.splitlines()
        assert max(map(len, lines)) <= 80 and "…" not in shown
        assert "clients" in shown if table is difference_table else "angle" in shown
        cells = [re.match(r" (?:\d +)?(\S+(?: \S+)*)", line) for line in lines]
        names = "".join(cell[1] for cell in cells if cell)
        assert all(name in names for name in NAMES[1:]), shown
    words = " ".join(printed(difference_table(compare(runs, metric)), terminal=True).split())
    for by in paired.values():
        assert difference_text(by.by["worst10"], "worst10", metric).partition(" ")[0] in words
        assert difference_text(by.by["mean"], "mean", metric).partition(" ")[2] in words


@pytest.mark.parametrize("seeds", [1, 7])
def test_names_have_room_beside_numbers_with_exponents(seeds: int) -> None:
    runs = {name: seeds_of(name, 3.3e11, "loss", seeds) for name in NAMES}
    shown = printed(overview(compare(runs, "loss")), terminal=True)
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    names = [re.match(r" (?:\d +)?(\S*)", line) for line in shown.splitlines()]
    cells = [name[1] for name in names if name]
    assert {"fedavg", "fedprox(mu=", "risk_weighted("} <= set(cells)


def test_intervals_stay_beside_their_means_where_there_is_room() -> None:
    runs = {name: seeds_of(name, 0.8, "accuracy") for name in NAMES[:2]}
    by = differences(runs, NAMES[0], "test", "accuracy")[NAMES[1]].by["mean"]
    for width, beside in ((120, True), (60, False)):
        shown = printed(difference_table(compare(runs, "accuracy")), terminal=True, width=width)
        assert (difference_text(by, "mean", "accuracy") in shown) == beside
