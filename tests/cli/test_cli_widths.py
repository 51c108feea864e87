"""Help and tables in terminals of 80 and 140 columns: no line is cut, so that no word is broken."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from rich.console import Console

from evenhand.cli import main
from evenhand.cli._terminal import Expression, new_table
from evenhand_command.overview import fitted

PAGES = (
    *(
        "",
        "run",
        "run fedprox",
        "run delta-fl-levels",
        "run composed",
        "study",
        "fit",
        "resume",
        "compare",
        "predict",
    ),
    *("report", "figures", "list", "deploy", "completion"),
)


def shown(
    words: list[str], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    with suppress(SystemExit):
        main(words)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_help_is_wider_than_the_terminal(
    page: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown([*page.split(), "--help"], width, monkeypatch, capsys)
    lines = text.splitlines()
    assert (
        "examples:" in lines
        and lines[0].startswith("usage: evenhand")
        and not re.search(r"{([\w-]+,){5}", lines[0])
    )
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_of_a_list_is_wider_than_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(["list"], width, monkeypatch, capsys)
    assert "fedprox(" in text and max(map(len, text.splitlines())) <= width


def test_a_page_is_fitted_between_words_and_boxes_stay_as_they_are() -> None:
    box = "╭─ options ─╮"
    page = f"usage: evenhand [-h] {{run,list,a,b,c,d,e}} [A OPTIONS]\n\n{'word ' * 9}end\n{box}\n"
    assert fitted(page, 30, "COMMAND").splitlines() == [
        "usage: evenhand [-h] COMMAND",
        "  [A OPTIONS]",
        "",
        "word word word word word word",
        "word word word end",
        box,
    ]
    assert fitted(page, 200, "COMMAND").count("\n") == page.count("\n")
    assert fitted("--untrained {global,initial}", 80, "X") == "--untrained {global,initial}"


def test_colours_take_no_room() -> None:
    page = "\x1b[1musage\x1b[0m: evenhand one two"
    assert fitted(page, len("usage: evenhand one two"), "X") == page
    assert fitted(page, 18, "X") == "usage: evenhand\n  one two"
    assert fitted("usage: evenhand \x1b[m[--width FLOAT]", 20, "X") == "usage: evenhand\n  [--width FLOAT]"


def test_a_word_that_is_longer_than_a_line_stays_one_word() -> None:
    assert fitted("aaaaaaaaaaaa bb", 5, "X") == "aaaaaaaaaaaa\nbb"


def test_names_of_methods_are_broken_between_arguments_first(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table()
    table.add_column("method")
    table.add_row(
        Expression("fedprox(mu=0.1, server_opt=fedadam(0.1), aggregator=risk_weighted(superquantile(0.5)))")
    )
    Console(width=50).print(table)
    cells = [line.strip() for line in capsys.readouterr().out.splitlines()[3:] if line.strip()]
    assert cells == [
        "fedprox(mu=0.1, server_opt=fedadam(0.1),",
        "aggregator=risk_weighted(superquantile(0.5)))",
    ]
    assert not [cell for cell in cells if re.search(r"\($", cell)]
