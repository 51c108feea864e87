"""DP2 over its delay and over budgets: the experiment runs, and the page says what the saved numbers say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tiny_reviews import tiny_reviews

pytest.importorskip("experiments", reason="experiments are not part of the package")

from experiments.private import imdb, imdb_sweeps

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "imdb_sweeps.json").read_text(encoding="utf-8"))["accuracy"][
    "delays"
]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:The model:evenhand.errors.EvenhandWarning")  # it is too small to learn
def test_the_experiment_at_a_tiny_size(tmp_path):
    tiny_reviews(tmp_path)
    small = imdb.Config(tmp_path, batch=8, epochs=2, public=10, valid=10, test=20, seeds=2)
    chosen = {"DP-SGD": {"lr": 3.0}, "DP-RMSProp": {"lr": 0.1}, "DP2-RMSProp": {"lr": 10.0}}
    settings = {name: {"chosen": {**numbers, "clip": 0.5}} for name, numbers in chosen.items()}
    (tmp_path / "imdb.json").write_text(json.dumps({"accuracy": settings}))
    config = imdb_sweeps.Config(small, tmp_path / "imdb.json", tmp_path, epsilons=(2.0,), delays=(1, 2, 3, 4))

    imdb_sweeps.main(config)

    found = json.loads((tmp_path / "imdb_sweeps.json").read_text())["accuracy"]
    assert {key: len(each) for key, each in found["delays"].items()} == dict.fromkeys("1234", 2)
    assert {name: list(each) for name, each in found["budgets"].items()} == {key: ["2"] for key in chosen}
    losses = found["delayed RMSProp"]
    assert list(losses) == ["RMSProp", "delay 2", "delay 3", "delay 4"]
    assert all(np.shape(each) == (2, 3) for each in losses.values())
    assert (tmp_path / "imdb_sweeps.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_the_saved_numbers():
    row = next(line for line in PAGE.splitlines() if line.startswith("| ours, "))
    told = [float(cell) for cell in re.findall(r"([\d.]+)\** ±", row)]
    spread = [float(cell) for cell in re.findall(r"± ([\d.]+)", row)]
    seeds = np.array(list(SAVED.values()))
    assert seeds.shape == (6, 5)
    np.testing.assert_allclose(told, seeds.mean(axis=1), atol=0.051)
    np.testing.assert_allclose(spread, seeds.std(axis=1, ddof=1), atol=0.051)


def test_the_best_delay_is_neither_the_shortest_nor_the_longest():
    mean = {int(delay): np.mean(each) for delay, each in SAVED.items()}
    assert max(mean, key=mean.get) == 195
    assert mean[1] < mean[30] < mean[195] > mean[348] > mean[1043] > mean[2781]
