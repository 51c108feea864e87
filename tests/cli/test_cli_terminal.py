"""What a terminal of 80 columns shows: sentences and names of methods are broken between words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from evenhand.cli._terminal import Expression, new_table, say

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
