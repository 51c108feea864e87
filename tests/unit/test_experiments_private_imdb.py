"""What the page says of private methods on film reviews is what the saved numbers say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from evenhand.privacy import spent
from evenhand.types import Release

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "imdb.json").read_text(encoding="utf-8"))
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_scaling_before_the_clip_is_at_least_ten_points_better_at_each_seed():
    accuracy = {name: np.array(each["test"]) for name, each in SAVED["accuracy"].items()}
    assert all(len(test) == 5 for test in accuracy.values())
    for name in ("AdaDPS, public", "DP2-RMSProp"):
        assert (accuracy[name] > accuracy["DP-SGD"] + 10).all()


@pytest.mark.parametrize("name", SAVED["accuracy"])
def test_the_page_has_the_saved_numbers(name):
    test = SAVED["accuracy"][name]["test"]
    label = name.replace("public", "public reviews").replace("frequencies", "token frequencies")
    row = re.search(rf"\| {re.escape(label)}[^|]*\| \**([\d.]+)\** ± ([\d.]+) \|", PAGE)
    assert row is not None, label
    assert float(row[1]) == pytest.approx(np.mean(test), abs=0.06)
    assert float(row[2]) == pytest.approx(np.std(test, ddof=1), abs=0.06)


def test_the_epsilon_is_that_of_what_was_released():
    told = SAVED["privacy"]
    releases = [Release(**release) for release in told["releases"]]
    assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(
        told["epsilon"], abs=5e-3
    )  # noise and rate are saved to three digits
    assert told["epsilon"] <= 1.501
