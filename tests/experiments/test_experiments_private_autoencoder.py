"""The experiment on the autoencoder runs, and what the page says of it is what the saved numbers say."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evenhand.privacy import spent
from evenhand.types import Release

FOLDER = Path(__file__).parents[2] / "experiments" / "private"


SIZES = {"train": 120, "test": 20}


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A folder with images of noise."""
    rng = np.random.default_rng(0)
    images: dict[str, Any] = {
        f"x_{part}": rng.integers(0, 256, (size, 28, 28), np.uint8) for part, size in SIZES.items()
    }
    np.savez(tmp_path / "mnist.npz", **images)
    return tmp_path


def test_the_experiment_at_a_tiny_size(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--images", "120", "--public", "70", "--valid", "10", "--widths", "3", "2", "--steps", "2"]
    options = ["--data-dir", str(made_up), "--out", str(made_up), *tiny, "--batch", "4", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["", *options, "--methods", "DP-RMSProp"])

    with jax.numpy_dtype_promotion("standard"):  # for optax
        runpy.run_module("experiments.private.autoencoder", run_name="__main__", alter_sys=True)

    saved = json.loads((made_up / "autoencoder.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.autoencoder", *options]
    (found,) = saved["error"].values()
    assert len(found["test"]) == 2 and len(found["valid"]) == 6
    assert saved["privacy"]["epsilon"] == pytest.approx(1.6, abs=0.01)


def test_every_private_method_spends_the_same(made_up: Path) -> None:
    from experiments.private import autoencoder

    config = autoencoder.Config(
        data_dir=made_up, images=120, public=70, valid=10, widths=(3, 2), steps=2, batch=4
    )
    every = autoencoder.candidates(config)
    assert set(every) == set(autoencoder.PAPER)
    for name, each in every.items():
        assert np.prod([len(values) for values in each.grid.values()]) == 6
        promise = each.make({key: values[0] for key, values in each.grid.items()}).privacy
        assert (promise is None) == (name in ("SGD", "Adam", "AdaS"))
        if promise is not None:
            assert spent(promise.releases(1), delta=1 / 40).epsilon == pytest.approx(1.6, abs=0.01)


@pytest.fixture(scope="module")
def saved() -> dict:
    return json.loads((FOLDER / "results" / "autoencoder.json").read_text(encoding="utf-8"))


def test_the_papers_order_holds_at_each_seed(saved: dict) -> None:
    order = ("DP-SGD", "DP-Adam", "DP-RMSProp", "AdaDPS, RMSProp", "AdaDPS, Adam")
    errors = np.array([saved["error"][name]["test"] for name in order])
    assert errors.shape == (5, 5) and (np.diff(errors, axis=0) < 0).all()
    papers = [saved["error"][name]["paper"] for name in order]
    assert papers == sorted(papers, reverse=True)


def test_what_else_the_page_says_of_the_order(saved: dict) -> None:
    error = {name: np.array(each["test"]) for name, each in saved["error"].items()}
    assert 0 < error["DP-SGD, warm start"].mean() - error["DP-SGD"].mean() < error["DP-SGD"].std(ddof=1) * 2
    assert (error["DP-Adam-Pub"] > error["DP-SGD"]).all()
    assert error["AdaDPS, RMSProp"].max() < error["PDA-DPMD"].min()
    assert (error["PDA-DPMD"] < error["DP-SGD"]).all()
    assert (error["Adam"] < error["AdaS"]).all() and (error["AdaS"] < error["SGD"]).all()
    assert (error["AdaS"] > error["AdaDPS, RMSProp"]).all()


@pytest.fixture(scope="module")
def at_3() -> dict:
    return json.loads((FOLDER / "results" / "epsilon_3" / "autoencoder.json").read_text(encoding="utf-8"))


def test_at_a_larger_epsilon_the_order_holds_in_part(at_3: dict) -> None:
    plain, adam, ada = (np.array(each["test"]) for each in at_3["error"].values())
    assert list(at_3["error"]) == ["DP-SGD", "DP-Adam", "AdaDPS, RMSProp"]
    assert (plain < adam).all() and (ada < plain).sum() == 4
    saved = json.loads((FOLDER / "results" / "autoencoder.json").read_text(encoding="utf-8"))["error"]
    fall = [np.mean(saved[name]["test"]) - np.mean(each["test"]) for name, each in at_3["error"].items()]
    assert fall == pytest.approx([0.62, 0.27, 0.07], abs=0.006)
    assert 1 - ada.mean() / plain.mean() == pytest.approx(0.014, abs=0.001)


@pytest.mark.parametrize("which", ["saved", "at_3"])
def test_the_page_has_the_saved_numbers(which: str, request: pytest.FixtureRequest) -> None:
    saved: dict = request.getfixturevalue(which)
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    section = page.split("## An autoencoder of digits")[1].split("\n## ")[0]
    table = section if which == "saved" else section.split("| epsilon 3 |")[1]
    for name, each in saved["error"].items():
        test = np.array(each["test"])
        row = re.search(rf"\| {re.escape(name)}[^|]*\| \**([\d.]+)\** ± ([\d.]+) \| ([\d.]+) \|", table)
        assert row is not None, name
        assert len(test) == 5
        expected = [test.mean(), test.std(ddof=1), each["paper"]]
        assert [float(number) for number in row.groups()] == pytest.approx(expected, abs=0.00051), name


def test_the_epsilon_is_that_of_what_was_released(saved: dict, at_3: dict) -> None:
    for told, epsilon in ((saved["privacy"], 1.6), (at_3["privacy"], 3.0)):
        releases = [Release(**release) for release in told["releases"]]
        # Noise and rate are saved to four digits.
        assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(told["epsilon"], rel=0.02)
        assert epsilon - 0.01 < told["epsilon"] <= epsilon + 0.001
