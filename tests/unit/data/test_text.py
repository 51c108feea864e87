"""Which texts are numbers, missing values and names."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from evenhand.data._validation import is_missing, name_fault, number, numbers

ODD = [
    "1_000",
    "1__0",
    "1,5",
    "٣",
    "３",
    "1\xa0",
    "\u20091",
    "−1",
    "0x10",
    "1e",
    "",
    " ",
    "one",
    "1\0",
    "1 2",
]


@pytest.mark.parametrize("text", ODD)
def test_odd_spellings_are_not_numbers(text: str) -> None:
    assert number(text) is None
    assert numbers([text]) is None
    assert numbers(["1", text, "2"]) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (" -1.5\t", -1.5), ("+.5", 0.5), ("1e-3", 1e-3), ("1E3", 1000), ("9" * 5000, math.inf)],
)
def test_ordinary_spellings_are_numbers(text: str, value: float) -> None:
    assert number(text) == value
    np.testing.assert_array_equal(numbers([text, "2"]), [value, 2])


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", "Infinity"])
def test_words_for_nan_and_infinity_are_numbers_that_are_not_finite(text: str) -> None:
    value = number(text)
    assert value is not None
    assert not math.isfinite(value)


@pytest.mark.parametrize("text", ["", " ", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "<NA>", " NA "])
def test_empty_text_and_words_for_nothing_are_missing_values(text: str) -> None:
    assert is_missing(text)


@pytest.mark.parametrize("text", ["0", "Nan Goldin", "na", "nullarbor", "-"])
def test_other_texts_are_not_missing_values(text: str) -> None:
    assert not is_missing(text)


@pytest.mark.parametrize(
    ("text", "fault"), [("a\0", "NUL"), ("\ud800", "surrogate"), ("x" * 256, "256 characters")]
)
def test_names_that_cannot_be_shown_have_a_fault(text: str, fault: str) -> None:
    assert fault in str(name_fault(text))


@pytest.mark.parametrize("text", ["ann", "Łódź", "[/]", "=1+1", "\U0001f600", "x" * 255])
def test_names_that_can_be_shown_have_none(text: str) -> None:
    assert name_fault(text) is None


def test_a_million_cells_take_a_second() -> None:
    cells = ["0.123456"] * 1_000_000
    start = time.process_time()
    assert numbers(cells) is not None
    assert all(number(cell) is not None for cell in cells)
    assert time.process_time() - start < 2
