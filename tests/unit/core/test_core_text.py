"""Names made safe: no hidden character remains, no visible one is lost, and spreadsheets give every name back."""

from __future__ import annotations

import csv
import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.text import isolated, spreadsheet_cell, spreadsheet_name, visible

ANY = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[/][bold]b :smile: $x$", "[/][bold]b :smile: $x$"),
        ("\x1b[31m\x07\x7f\x9b", r"\x1b[31m\x07\x7f\x9b"),
        ("a\nb\tc\r\u2028", r"a\nb\tc\r\u2028"),
        ("\u202eab\u2068\ufeff\u200b\u00ad", r"\u202eab\u2068\ufeff\u200b\xad"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("👩\u200d👧 ❤\ufe0f שלום 数 می\u200cخواهم é", "👩\u200d👧 ❤\ufe0f שלום 数 می\u200cخواهم é"),
        (5, "5"),
    ],
)
def test_what_is_hidden_is_written_out(text: object, shown: str) -> None:
    assert visible(text) == shown


@given(ANY)
def test_no_control_character_remains(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert visible(shown) == shown


def test_only_text_from_right_to_left_is_isolated() -> None:
    assert isolated("north\n") == r"north\n"
    assert isolated("a שלום") == "\u2068a שלום\u2069"


SPECIAL = st.text("'=+-@\t\r\n1.,\"", max_size=5)
PIECES = ("\\", r"\x1b", r"\x41", r"\u202e", "x1b", "\x1b", "\u202e", "\ud800", "'", "=", "n")
CODES = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@given(st.lists(st.one_of(ANY, SPECIAL, CODES), min_size=1))
def test_spreadsheets_give_every_name_back(names: list[str]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([spreadsheet_cell(name), "1"] for name in names)
    cells = [row[0] for row in csv.reader(io.StringIO(file.getvalue(), newline=""))]
    assert [spreadsheet_name(cell) for cell in cells] == names


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@cmd", "'=1", "-1-1", "--5", "+1e5"])
def test_formulas_are_quoted(name: str) -> None:
    assert spreadsheet_cell(name) == "'" + name


@given(st.one_of(ANY, CODES))
def test_no_hidden_character_reaches_a_spreadsheet_or_a_terminal(name: str) -> None:
    assert visible(spreadsheet_cell(name)) == spreadsheet_cell(name)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202eabc", r"\u202eabc"),
        ("\t=1", r"\x09=1"),
        (r"\x1b", r"\\x1b"),  # a name that reads like a code
        ("\\\x1b", r"\\\x1b"),
        (r"C:\new\x41", r"C:\new\x41"),  # no code of a hidden character
    ],
)
def test_hidden_characters_become_codes(name: str, cell: str) -> None:
    assert spreadsheet_cell(name) == cell
    assert spreadsheet_name(cell) == name


def test_cells_of_earlier_versions_are_read() -> None:
    assert spreadsheet_name("'\t=1") == "\t=1"
    assert spreadsheet_name("\x1b[31m") == "\x1b[31m"


@pytest.mark.parametrize("name", ["-5", "+5", "-0.25", "5", "a=b", "'tis", "", "'"])
def test_numbers_and_other_names_are_not_quoted(name: str) -> None:
    assert spreadsheet_cell(name) == name
