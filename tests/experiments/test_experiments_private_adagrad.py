"""AdaGrad on film reviews: the experiment runs, and the page says what the saved numbers say."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_reviews import tiny_reviews

from evenhand.privacy import spent
from evenhand.types import Release
from experiments.private import imdb, imdb_adagrad
from experiments.private.table import Candidate

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "imdb_adagrad.json").read_text(encoding="utf-8"))["accuracy"]
OTHERS = json.loads((FOLDER / "results" / "imdb_sweeps.json").read_text(encoding="utf-8"))["accuracy"][
    "epochs"
]
GRID = imdb_adagrad.GRIDS["DP-AdaGrad"]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_experiment_at_a_tiny_size(tmp_path, monkeypatch):
    tiny_reviews(tmp_path)
    small = imdb.Config(data_dir=tmp_path, batch=8, epochs=1, public=10, valid=10, test=20, seeds=1)
    every = imdb_adagrad.candidates(small)
    assert [np.prod([len(values) for values in each.grid.values()]) for each in every.values()] == [6, 6]
    late = Candidate(every["DP2-AdaGrad"].make, {"lr": (10.0,), "clip": (2.0,), "delay": (2,)})
    monkeypatch.setattr(imdb_adagrad, "candidates", lambda config: {"DP2-AdaGrad": late})

    imdb_adagrad.main(imdb_adagrad.Config(imdb=small, out=tmp_path, parts=("table",)))

    saved = json.loads((tmp_path / "imdb_adagrad.json").read_text())["accuracy"]
    found = saved["table"]["DP2-AdaGrad"]
    assert len(found["test"]) == 1 and found["chosen"] == {"lr": 10.0, "clip": 2.0, "delay": 2}
    assert found["privacy"]["epsilon"] == pytest.approx(1.5, abs=1e-2)


@pytest.mark.parametrize("name", SAVED["table"])
def test_the_page_has_the_saved_accuracies(name):
    test = SAVED["table"][name]["test"]
    assert len(test) == 5 and len(SAVED["table"][name]["valid"]) == 6
    curve = np.mean(SAVED["epochs"][name], axis=0)
    cells = " | ".join(f"{curve[i]:.1f}" for i in (1, 2, 3, 8, 16))
    assert f"| {name} | {np.mean(test):.1f} ± {np.std(test, ddof=1):.1f} | {cells} |" in PAGE


@pytest.mark.parametrize("name", OTHERS)
def test_the_page_has_the_others_over_epochs(name):
    cells = " | ".join(f"{np.mean(OTHERS[name], axis=0)[i]:.1f}" for i in (1, 2, 3, 8, 16))
    assert f"| {name} | " in PAGE and f" | {cells} |" in PAGE


@pytest.mark.parametrize("name", SAVED["table"])
def test_the_epsilon_is_that_of_what_was_released(name):
    told = SAVED["table"][name]["privacy"]
    releases = [Release(**each) for each in told["releases"]]
    # Noise and rate are saved to four digits.
    assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(told["epsilon"], abs=5e-3)


def test_dp2_gains_with_adagrad_as_well_and_from_the_third_epoch_on():
    plain, late = (np.array(each["test"]) for each in SAVED["table"].values())
    assert np.all(late > plain + 10)
    rivals = json.loads((FOLDER / "results" / "imdb.json").read_text(encoding="utf-8"))["accuracy"]
    ahead = {name: late.mean() - np.mean(rivals[name]["test"]) for name in OTHERS}
    assert late.mean() - plain.mean() == pytest.approx(14, abs=0.5)
    assert (round(ahead["DP-SGD"]), round(ahead["DP2-RMSProp"])) == (19, -2)
    curves = {name: np.mean(seeds, axis=0) for name, seeds in {**OTHERS, **SAVED["epochs"]}.items()}
    for name in ("DP-SGD", "DP-RMSProp", "DP-AdaGrad"):
        assert np.all(curves["DP2-AdaGrad"][3:] > curves[name][3:])


def test_the_best_setting_of_adagrad_after_the_noise_is_at_a_corner():
    chosen = SAVED["table"]["DP-AdaGrad"]["chosen"]
    assert chosen == {"lr": max(GRID["lr"]), "clip": min(GRID["clip"])}
