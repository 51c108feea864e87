"""DP2 over its delay and over budgets: the experiment runs, and the page says what the saved numbers say."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_reviews import tiny_reviews

from evenhand.privacy import spent
from evenhand.types import Release
from experiments.private import imdb, imdb_sweeps, movielens, movielens_sweeps, sweeps

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
_CONTENT = json.loads((FOLDER / "results" / "imdb_sweeps.json").read_text(encoding="utf-8"))
SAVED, SAVED_PRIVACY = _CONTENT["accuracy"], _CONTENT["privacy"]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings(  # the data are too few to learn from
    "ignore:(The model|Training diverged):evenhand.errors.EvenhandWarning"
)
def test_the_experiment_at_a_tiny_size(tmp_path):
    tiny_reviews(tmp_path)
    small = imdb.Config(data_dir=tmp_path, batch=8, epochs=2, public=10, valid=10, test=20, seeds=2)
    chosen = {"DP-SGD": {"lr": 3.0}, "DP-RMSProp": {"lr": 0.1}, "DP2-RMSProp": {"lr": 10.0}}
    settings = {name: {"chosen": {**numbers, "clip": 0.5}} for name, numbers in chosen.items()}
    (tmp_path / "imdb.json").write_text(json.dumps({"accuracy": settings}))
    config = imdb_sweeps.Config(
        imdb=small,
        chosen=tmp_path / "imdb.json",
        out=tmp_path,
        epsilons=(2.0,),
        delays=(1, 2),
        step_sizes=(0.1, 1.0),
    )

    imdb_sweeps.main(config)

    found = json.loads((tmp_path / "imdb_sweeps.json").read_text())["accuracy"]
    assert {key: len(each) for key, each in found["delays"].items()} == dict.fromkeys("12", 2)
    assert {name: list(each) for name, each in found["budgets"].items()} == {key: ["2"] for key in chosen}
    assert {name: np.shape(each) for name, each in found["epochs"].items()} == dict.fromkeys(chosen, (2, 3))
    without = found["delayed RMSProp"]
    assert list(without) == ["RMSProp", "delay 2"]
    for each in without.values():
        assert np.shape(each["train"]) == (2, 3) and np.shape(each["test"]) == (2,)
        assert each["valid"][str(each["chosen"])] == min(each["valid"].values())
    assert (tmp_path / "imdb_sweeps.png").read_bytes().startswith(b"\x89PNG")


def test_ratings_are_swept_with_a_delay_of_half_a_run(tmp_path):
    random = np.random.default_rng(0)
    ids: dict[str, Any] = {"user": random.integers(1, 944, 600), "item": random.integers(1, 1683, 600)}
    np.savez(tmp_path / "movielens_100k.npz", **ids, rating=random.integers(1, 6, 600).astype(np.float32))
    small = movielens.Config(
        data_dir=tmp_path, public=50, test=200, valid=100, batch=50, epochs=4, dimension=4, seeds=2
    )
    settings = {name: {"chosen": {"lr": 0.1, "clip": 1.0, "first_lr": 0.1}} for name in sweeps.COLORS}
    (tmp_path / "movielens.json").write_text(json.dumps({"error": settings}))
    config = movielens_sweeps.Config(
        movielens=small,
        chosen=tmp_path / "movielens.json",
        out=tmp_path,
        delays=(3,),
        epsilons=(5.0,),
        parts=("delays",),
    )

    movielens_sweeps.main(config)

    saved = json.loads((tmp_path / "movielens_sweeps.json").read_text())
    (errors,) = saved["squared_error"]["delays"].values()
    assert len(errors) == 2 and errors[0] != errors[1]  # each seed has a split of its own
    assert saved["privacy"]["5"]["epsilon"] == pytest.approx(5.0, abs=0.01)
    assert movielens_sweeps.task_of(config).chosen["DP2-RMSProp"]["delay"] == 10  # of 20 steps


def test_a_model_that_was_not_finite_gets_a_large_number_from_then_on(tmp_path, monkeypatch):
    """The engine rejects it and keeps the model before it, whose loss may be the best of all."""
    tiny_reviews(tmp_path)
    (tmp_path / "imdb.json").write_text(
        json.dumps({"accuracy": {name: {"chosen": {}} for name in sweeps.COLORS}})
    )
    small = imdb.Config(data_dir=tmp_path, batch=8, epochs=3, public=10, valid=10, test=20, seeds=1)
    task = imdb_sweeps.task_of(imdb_sweeps.Config(imdb=small, chosen=tmp_path / "imdb.json"))
    numbers = np.array([4.0, 3.0, 1.0, 1.0])
    history: dict[str, Any] = dict.fromkeys(("train_loss", "valid_loss", "test_accuracy"), numbers)
    history["rejected"] = np.array([np.nan, 0.0, 1.0, 0.0])
    monkeypatch.setattr(sweeps.eh, "simulate", lambda *_, **__: SimpleNamespace(history=history))
    work = sweeps.eh.local.sgd(task.model, 0.1, epochs=1, batch_size=8)
    found = sweeps._curves(task, work, seed=0)
    assert found == {key: [4.0, 3.0, 1e6, 1e6] for key in ("train", "valid", "test")}


def test_an_epoch_has_the_noise_of_a_run_of_all(tmp_path):
    tiny_reviews(tmp_path)
    whole = imdb.Config(data_dir=tmp_path, batch=8, epochs=3, public=10, valid=10, test=20)

    def release(config):
        work = imdb.candidates(config)["DP2-RMSProp"].make({"lr": 1.0, "clip": 1.0})
        assert work.privacy is not None
        (found,) = work.privacy.releases(1)
        return found

    chosen = {name: {"chosen": {"lr": 1.0, "clip": 1.0}} for name in sweeps.COLORS}
    (tmp_path / "imdb.json").write_text(json.dumps({"accuracy": chosen}))
    task = imdb_sweeps.task_of(imdb_sweeps.Config(imdb=whole, chosen=tmp_path / "imdb.json"))
    all_three, one = release(whole), release(sweeps.one_epoch(task))
    np.testing.assert_allclose(one.noise_multiplier, all_three.noise_multiplier, rtol=1e-3)
    assert 3 * one.times <= all_three.times < 3 * (one.times + 1) and one.rate == all_three.rate


def test_the_budgets_are_those_of_what_was_released():
    for epsilon, told in SAVED_PRIVACY.items():
        assert told["epsilon"] == pytest.approx(float(epsilon), rel=2e-3)
        releases = [Release(**each) for each in told["releases"]]
        # Noise and rate are saved to four digits.
        assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(told["epsilon"], rel=0.02)


def _row(first: str, after: str) -> str:
    """The line of a table that begins so, below a text."""
    return next(line for line in PAGE[PAGE.index(after) :].splitlines() if line.startswith(f"| {first} |"))


def _told(row: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+\.\d+", row)]


def _table() -> dict[str, dict[str, list[float]]]:
    return {"ours, 16 epochs": SAVED["delays"], **SAVED["budgets"]}


@pytest.mark.parametrize("name", _table())
def test_the_page_has_the_saved_accuracies(name):
    seeds = np.array(list(_table()[name].values()))
    assert seeds.shape in ((6, 5), (4, 5))
    told = np.array(_told(_row(name, "DP2's delay should"))).reshape(-1, 2)
    np.testing.assert_allclose(told, np.stack([seeds.mean(1), seeds.std(1, ddof=1)], axis=1), atol=0.051)


def test_the_page_has_what_came_without_privacy():
    found = list(SAVED["delayed RMSProp"].values())
    after = "**Without privacy, delayed"

    def told(row):
        return _told(_row(row, after))

    lowest = [np.mean([min(seed) for seed in each["train"]]) for each in found]
    np.testing.assert_allclose(told("lowest training loss after an epoch"), lowest, atol=6e-4)
    last = [np.mean([seed[-1] for seed in each["train"]]) for each in found]
    np.testing.assert_allclose(told("training loss after 16 epochs"), last, atol=6e-4)
    tests = [np.mean(each["test"]) for each in found]
    np.testing.assert_allclose(told("test accuracy after 16 epochs"), tests, atol=0.051)
    assert [round(max(np.mean(each["train"], axis=0))) for each in found[2:]] == [176, 279]


def test_the_best_delay_is_neither_the_shortest_nor_the_longest():
    mean = {int(delay): np.mean(each) for delay, each in SAVED["delays"].items()}
    assert max(mean, key=mean.__getitem__) == 195
    assert mean[1] < mean[30] < mean[195] > mean[348] > mean[1043] > mean[2781]


def test_dp2_gains_at_every_budget_and_from_the_second_epoch_on():
    plain, noisy, late = (np.mean(list(SAVED["budgets"][name].values()), axis=1) for name in sweeps.COLORS)
    assert np.all(late > noisy) and np.all(noisy > plain) and late[0] > noisy[-1] + 10
    plain, noisy, late = (np.mean(SAVED["epochs"][name], axis=0) for name in sweeps.COLORS)
    assert np.all(late[2:] > np.maximum(noisy, plain)[2:])
    assert (round(late[3], 1), round(noisy[-1], 1)) == (69.4, 67.3) and late[3] > noisy.max()


# --- ratings ----------------------------------------------------------------------------------------------------------

_RATINGS = json.loads((FOLDER / "results" / "movielens_sweeps.json").read_text(encoding="utf-8"))
ERRORS = _RATINGS["squared_error"]
BEFORE = "**Over budgets, the order follows"


@pytest.mark.parametrize(("name", "found"), [*ERRORS["budgets"].items(), ("ours", ERRORS["delays"])])
def test_the_page_has_the_saved_errors(name, found):
    seeds = np.array(list(found.values()))
    assert seeds.shape in ((7, 5), (4, 5))
    told = np.array(_told(_row(name, BEFORE))).reshape(-1, 2)
    np.testing.assert_allclose(told, np.stack([seeds.mean(1), seeds.std(1, ddof=1)], axis=1), atol=6e-4)


def test_what_the_page_says_of_budgets_and_delays_on_ratings():
    over = {int(delay): np.mean(each) for delay, each in ERRORS["delays"].items()}
    assert min(over, key=over.__getitem__) == 1101 and max(over.values()) - min(over.values()) < 0.04
    budgets = {name: [np.array(seeds) for seeds in each.values()] for name, each in ERRORS["budgets"].items()}
    plain, noisy, late = (budgets[name] for name in sweeps.COLORS)
    assert np.all(late[0] > np.maximum(plain[0], noisy[0]))
    assert all(np.all(late[i] < plain[i]) for i in (2, 3))
    mean = json.loads((FOLDER / "results" / "movielens.json").read_text(encoding="utf-8"))["error"][
        "constant"
    ]
    assert all(np.all(each[i] < mean["test"]) for each in budgets.values() for i in (2, 3))


def test_the_budgets_on_ratings_are_those_of_what_was_released():
    for epsilon, told in _RATINGS["privacy"].items():
        assert told["epsilon"] == pytest.approx(float(epsilon), rel=2e-3)
        releases = [Release(**each) for each in told["releases"]]
        assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(told["epsilon"], rel=0.02)


def test_dp2_learns_no_faster_on_ratings():
    plain, _, late = (np.mean(ERRORS["epochs"][name], axis=0) for name in sweeps.COLORS)
    assert np.all(late[1:18] > plain[1:18]) and np.all(late[18:24] < plain[18:24])
    assert 0.015 < (plain - late)[18:].max() < 0.025 and abs(late[-1] - plain[-1]) < 0.006


def test_the_page_has_what_came_of_ratings_without_privacy():
    found, after = (
        list(ERRORS["delayed RMSProp"].values()),
        "**Without privacy, delayed RMSProp comes near RMSProp** (",
    )
    trained = [np.mean([seed[-1] for seed in each["train"]]) for each in found]
    np.testing.assert_allclose(_told(_row("training loss after 25 epochs", after)), trained, atol=6e-4)
    tests = [np.mean(each["test"]) for each in found]
    np.testing.assert_allclose(_told(_row("test error after 25 epochs", after)), tests, atol=6e-4)
    assert [round(100 * (n / trained[0] - 1)) for n in (min(trained[1:]), max(trained))] == [16, 29]
    assert max(abs(n - tests[0]) for n in tests) < 0.0141
