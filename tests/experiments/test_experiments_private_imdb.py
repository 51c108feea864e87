"""What the page says of private methods on film reviews is what the saved numbers say, and the experiment runs."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_reviews import tiny_reviews

from evenhand.privacy import spent
from evenhand.types import Release
from experiments.private import imdb_more

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "imdb.json").read_text(encoding="utf-8"))
TFIDF = json.loads((FOLDER / "results" / "tfidf" / "imdb.json").read_text(encoding="utf-8"))
NAME = "AdaDPS, frequencies with padding"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
PARTS = ((SAVED, PAGE), (TFIDF, PAGE.split("| TF-IDF | ours | paper |")[1]))


@pytest.mark.parametrize(
    ("features", "name"), [(("--features", "counts"), NAME), (("--features", "tfidf"), "AdaDPS, TF-IDF")]
)
def test_the_experiment_at_a_tiny_size(tmp_path, monkeypatch, features, name):
    tiny_reviews(tmp_path)
    tiny = [
        "--batch",
        "8",
        "--epochs",
        "1",
        "--public",
        "10",
        "--valid",
        "10",
        "--test",
        "20",
        "--seeds",
        "2",
    ]
    options = ["--data-dir", str(tmp_path), "--out", str(tmp_path), *tiny, *features, "--methods", name]
    monkeypatch.setattr(sys, "argv", ["", *options])
    monkeypatch.delitem(sys.modules, "experiments.private.imdb", raising=False)  # others import it

    runpy.run_module("experiments.private.imdb", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / ("tfidf" if "tfidf" in features else "") / "imdb.json").read_text())
    assert list(saved["accuracy"]) == [name]
    assert len(saved["accuracy"][name]["valid"]) == 6
    assert saved["privacy"][name]["epsilon"] == pytest.approx(1.5, abs=1e-2)


def test_two_queries_in_most_steps_cost_no_more_than_one_in_each():
    common = {"noise_multiplier": 1.0, "rate": 0.01, "steps": 100}
    given = imdb_more.twice(common, delay=10, delta=1e-5)
    noise = given["noise_multiplier"]
    two = [Release(noise, 0.01, times=10), Release(noise / 2**0.5, 0.01, times=90)]
    assert 1.0 < noise < 2**0.5
    one = spent([Release(1.0, 0.01, times=100)], delta=1e-5).epsilon
    assert spent(two, delta=1e-5).epsilon == pytest.approx(one, abs=1e-6)
    assert spent(two, delta=1e-5).epsilon <= one


def test_scaling_before_the_clip_is_at_least_ten_points_better_at_each_seed():
    accuracy = {name: np.array(each["test"]) for name, each in SAVED["accuracy"].items()}
    assert all(len(test) == 5 for test in accuracy.values())
    for name in ("AdaDPS, public", "DP2-RMSProp"):
        assert (accuracy[name] > accuracy["DP-SGD"] + 10).all()


def test_what_the_page_says_of_the_others_is_what_was_measured():
    accuracy = {name: np.mean(each["test"]) for name, each in SAVED["accuracy"].items()}
    ahead = {name: each - accuracy["DP-SGD"] for name, each in accuracy.items()}
    assert ahead["AdaDPS, frequencies with padding"] == pytest.approx(17, abs=0.5)
    assert ahead["DP2, noise first"] == pytest.approx(6, abs=0.5)
    assert ahead["AdaDPS, frequencies of other reviews"] < ahead["AdaDPS, frequencies"] < 0
    with_public = ("DP-SGD, warm start", "PDA-DPMD", "DP-Adam-Pub")
    assert all(6 < ahead[name] < 11 for name in with_public)
    for name in ("AdaDPS, 50 public", "AdaDPS, 10 public", "ideal"):
        assert abs(accuracy[name] - accuracy["AdaDPS, public"]) < 1.7
    lost = accuracy["DP2-RMSProp"] - accuracy["DP2, two queries"]
    assert lost / ahead["DP2-RMSProp"] == pytest.approx(1 / 3, abs=0.02)
    noise = SAVED["privacy"]["DP2, two queries"]["releases"][0]["noise_multiplier"]
    assert noise / SAVED["privacy"]["DP-SGD"]["releases"][0]["noise_multiplier"] == pytest.approx(
        1.4, abs=0.05
    )


def test_without_privacy_sgd_is_hardly_better_and_adas_is_short_of_the_paper():
    accuracy = {name: np.mean(each["test"]) for name, each in SAVED["accuracy"].items()}
    assert 0 < accuracy["SGD"] - accuracy["DP-SGD"] < 3
    for name in ("AdaS, public", "AdaS, frequencies with padding"):
        assert 5.5 < SAVED["accuracy"][name]["paper"] - accuracy[name] < 8
    assert 0 < accuracy["AdaS, public"] - accuracy["AdaDPS, public"] < 2.5
    assert accuracy["Adam"] - accuracy["AdaDPS, public"] == pytest.approx(8, abs=0.5)


ROWS = [(saved, page, name) for saved, page in PARTS for name in saved["accuracy"]]


@pytest.mark.parametrize(("saved", "page", "name"), ROWS)
def test_the_page_has_the_saved_numbers(saved, page, name):
    test = saved["accuracy"][name]["test"]
    row = re.search(rf"\| {re.escape(name)}[^|]*\| \**([\d.]+)\** ± ([\d.]+) \|", page)
    assert row is not None, name
    assert float(row[1]) == pytest.approx(np.mean(test), abs=0.051)
    assert float(row[2]) == pytest.approx(np.std(test, ddof=1), abs=0.051)


def test_scales_by_tfidf_help_on_such_features_as_on_counts():
    accuracy = {name: np.array(each["test"]) for name, each in TFIDF["accuracy"].items()}
    ahead = accuracy["AdaDPS, TF-IDF"] - accuracy["DP-SGD"]
    assert (ahead > 10).all()
    assert ahead.mean() == pytest.approx(24, abs=0.5)


@pytest.mark.parametrize(("saved", "page", "name"), ROWS)
def test_the_epsilon_is_that_of_what_was_released(saved, page, name):
    told = saved["privacy"][name]
    if told is None:
        assert name in ("ideal", "SGD", "Adam", "AdaS, public", "AdaS, frequencies with padding")
        return
    releases = [Release(**release) for release in told["releases"]]
    assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(
        told["epsilon"], abs=5e-3
    )  # noise and rate are saved to three digits
    assert told["epsilon"] <= 1.501
