"""The experiment on ratings runs, and what the page says of it is what the saved numbers say."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand._jaxpr.per_example import ExampleRows, traced
from evenhand.privacy import spent
from evenhand.types import Release

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
LABELS = {
    "constant": "the mean rating for everybody",
    "PDA-DPMD": "PDA-DPMD, public ratings",
    "AdaDPS": "AdaDPS, public ratings",
    "SGD": "SGD, not private",
    "RMSProp": "RMSProp, not private",
    "DP-SGD, two steps": "DP-SGD with another step from half of the run on (ours)",
    "DP2, smaller eps": "DP2-RMSProp, smaller epsilon in the divisor (ours)",
    "DP2, two queries": "DP2, two queries (variant 1)",
    "DP2, noise first": "DP2, noise first (variant 2)",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    ids: dict[str, Any] = {"user": rng.integers(1, 944, 600), "item": rng.integers(1, 1683, 600)}
    np.savez(tmp_path / "movielens_100k.npz", **ids, rating=rng.integers(1, 6, 600).astype(np.float32))
    return tmp_path


def test_the_experiment_at_a_tiny_size(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["--public", "50", "--test", "200", "--valid", "100", "--batch", "50", "--epochs", "5"]
    options = ["--data-dir", str(data_dir), "--out", str(data_dir), *tiny, "--dimension", "4", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["", *options, "--methods", "DP-SGD"])
    monkeypatch.delitem(sys.modules, "experiments.private.movielens", raising=False)  # others import it

    runpy.run_module("experiments.private.movielens", run_name="__main__", alter_sys=True)

    saved = json.loads((data_dir / "movielens.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.movielens", *options]
    assert set(saved["error"]) == {"constant", "DP-SGD"}
    for each in saved["error"].values():
        assert [len(each[what]) for what in ("test", "users", "worst10")] == [2, 2, 2]
        assert all(worst > mean for worst, mean in zip(each["worst10"], each["users"], strict=True))
    assert len(saved["error"]["DP-SGD"]["valid"]) == 6
    assert saved["privacy"]["DP-SGD"]["epsilon"] == pytest.approx(9.8, abs=0.01)


def test_ratings_of_a_seed_are_apart_and_public_ones_are_the_same_for_all(data_dir: Path) -> None:
    from experiments.private import movielens

    config = movielens.Config(data_dir=data_dir, public=50, test=200, valid=100)
    ratings = movielens.Ratings(config)
    with np.load(data_dir / "movielens_100k.npz") as arrays:
        everything = np.stack([arrays["user"] - 1, arrays["item"] - 1, arrays["rating"]], axis=1)

    parts = [np.concatenate([np.asarray(x), np.asarray(y)[:, None]], axis=1) for x, y in [ratings.public]]
    parts += [
        np.concatenate([split.x, split.y[:, None]], axis=1)
        for split in (ratings(0).train, ratings(0).valid, ratings(0).test)
    ]
    assert [len(part) for part in parts] == [50, 250, 100, 200]
    assert ratings.rows == 250
    np.testing.assert_array_equal(in_order(np.concatenate(parts)), in_order(everything))
    assert not np.array_equal(ratings(0).test.y, ratings(1).test.y)


def in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


@pytest.mark.filterwarnings("ignore:The model is no better than a guess")  # after one round
def test_a_second_step_is_taken_from_half_of_the_run_on_as_dp2_takes_it(data_dir: Path) -> None:
    """With an epsilon of 1e5 the divisor is a constant, and the first clip of both is 1."""
    from experiments.private import movielens

    config = movielens.Config(
        data_dir=data_dir, public=50, test=200, valid=100, batch=50, epochs=4, dimension=4
    )
    ratings, eps = movielens.Ratings(config), 1e5
    every = movielens.candidates(config, ratings)

    def ended(name: str, **numbers: float) -> np.ndarray:
        algorithm = eh.algorithms.alone(every[name].make(numbers))
        with jax.numpy_dtype_promotion("standard"):  # for optax
            run = eh.simulate(algorithm, ratings(0), rounds=1, eval_every=1)
        return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(run.params)])

    two = ended("DP-SGD, two steps", first_lr=0.2, lr=0.6, clip=1.0)
    late = ended("DP2-RMSProp", first_lr=0.2, lr=0.6 * eps, clip=1.0 / eps, eps=eps)
    np.testing.assert_allclose(late, two, atol=1e-4)
    assert abs(ended("DP-SGD", lr=0.2, clip=1.0) - two).max() > 0.01


def test_users_count_alike_and_the_worst_tenth_is_their_mean() -> None:
    from experiments.private import movielens

    user = np.array([0, 0, 2, *range(3, 21)])
    squares = np.array([1.0, 3.0, 8.0, *np.zeros(18)])
    found = movielens.by_user(squares, user)
    assert found == {"users": pytest.approx(10 / 20), "worst10": pytest.approx(5.0)}

    params = {"users": jnp.ones((2, 3)), "items": jnp.ones((1, 3))}
    test = SimpleNamespace(x=np.array([[0, 0], [1, 0]]), y=np.array([3.0, 1.0]))
    run: Any = SimpleNamespace(
        params=params,
        data=SimpleNamespace(test=test),
        algorithm=SimpleNamespace(model=movielens.model_of(3)),
    )
    assert movielens.served(run) == {"users": pytest.approx(2.0), "worst10": pytest.approx(4.0)}


def test_an_example_keeps_two_rows_of_the_tables() -> None:
    from experiments.private import movielens

    model = movielens.model_of(100)
    params = model.init(jax.random.key(0))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(2, dtype=jnp.uint32))
    rows = ExampleRows(jnp.zeros((2, 2), jnp.int32), jnp.zeros(2), keys)
    assert traced(model, params, rows).numbers < 300  # of 262,500


@pytest.fixture(scope="module")
def saved() -> dict:
    return json.loads((FOLDER / "results" / "movielens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def as_printed() -> dict:
    return json.loads((FOLDER / "results" / "as_printed" / "movielens.json").read_text(encoding="utf-8"))


def test_with_the_papers_batches_dp2_is_better_than_its_rivals_at_each_seed(as_printed: dict) -> None:
    error = {name: np.array(each["test"]) for name, each in as_printed["error"].items()}
    assert (error["DP2-RMSProp"] < error["DP-SGD"]).all()
    order = ("DP2-RMSProp", "AdaDPS", "DP-SGD", "DP-RMSProp", "PDA-DPMD")
    assert all((error[a] < error[b]).all() for a, b in pairwise(order))
    assert (error["DP2-RMSProp"] > error["constant"]).all()
    plain, late, two = (error[name].mean() for name in ("DP-SGD", "DP2-RMSProp", "DP-SGD, two steps"))
    assert round(100 * (plain - two) / (plain - late)) == 98
    from experiments.private import movielens

    chosen = {name: each["chosen"] for name, each in as_printed["error"].items() if name != "constant"}
    assert all(chosen[name] == movielens.PRINTED[name] for name in chosen)
    assert (as_printed["config"]["batch"], as_printed["config"]["epochs"]) == (64, 50)


def test_privacy_costs_the_worst_served_most_and_a_constant_is_better(saved: dict) -> None:
    error = {
        name: {what: np.array(each[what]) for what in ("test", "worst10")}
        for name, each in saved["error"].items()
    }
    free = error["RMSProp"]
    private = {name: each for name, each in error.items() if name in saved["privacy"]}
    assert len(private) == 9
    for each in private.values():
        assert (each["test"] > error["constant"]["test"]).all()
        assert (each["worst10"] / free["worst10"] > 1.2 * each["test"] / free["test"]).all()
    worst, test = (
        {name: each[what].mean() / free[what].mean() for name, each in private.items()}
        for what in ("worst10", "test")
    )
    assert [round(n, 1) for n in (min(worst.values()), max(worst.values()))] == [2.2, 3.7]
    assert [round(n, 1) for n in (min(test.values()), max(test.values()))] == [1.6, 2.1]


def test_on_ratings_it_is_the_length_of_the_steps_that_counts(saved: dict) -> None:
    private = {name: saved["error"][name] for name in saved["privacy"]}
    test, worst = (
        {name: np.array(each[what]) for name, each in private.items()} for what in ("test", "worst10")
    )
    assert abs(test["AdaDPS"] - test["DP-SGD"]).max() <= 0.001
    two = test.pop("DP-SGD, two steps")
    assert all((two < each).all() for each in test.values())
    assert abs(worst["DP-SGD, two steps"] - worst["DP2-RMSProp"]).max() < 0.06
    papers = {name: each for name, each in worst.items() if saved["error"][name]["paper"] is not None}
    assert all((papers["DP2-RMSProp"] <= each).all() for each in papers.values())
    assert abs(test["DP2, smaller eps"].mean() - test["DP2-RMSProp"].mean()) < 0.005
    valid = saved["error"]["DP2, smaller eps"]["valid"]
    assert min(n for name, n in valid.items() if "1e-07" in name) > min(valid.values()) + 0.4
    assert (test["DP2, noise first"] < test["DP2-RMSProp"]).all()
    for name in ("PDA-DPMD", "DP2, two queries"):
        assert (test[name] > test["DP2-RMSProp"] + 0.1).all()
    for name in ("DP-SGD", "AdaDPS", "DP-RMSProp", "DP2, noise first"):
        assert abs(test[name].mean() - test["DP2-RMSProp"].mean()) < 0.02


@pytest.mark.parametrize("which", ["saved", "as_printed"])
def test_the_page_has_the_saved_numbers(which: str, request: pytest.FixtureRequest) -> None:
    saved: dict = request.getfixturevalue(which)
    section = PAGE.split("## Ratings of films")[1].split("\n## ")[0]
    # The mean rating for everybody is that of both; it is in the first table.
    tables = section.split("| as printed |")
    table = (
        section if which == "saved" else tables[0].split("| method |")[1].split("| DP-SGD |")[0] + tables[1]
    )
    for name, each in saved["error"].items():
        number = r"\**([\d.]+)\**"
        row = re.search(
            rf"\| {re.escape(LABELS.get(name) or name)} \| {number} ± ([\d.]+) \| {number} \| {number} ± ([\d.]+) \|",
            table,
        )
        assert row is not None, name
        test, users, worst = (np.array(each[what]) for what in ("test", "users", "worst10"))
        assert len(test) == 5
        expected = [test.mean(), test.std(ddof=1), users.mean(), worst.mean(), worst.std(ddof=1)]
        assert [float(each) for each in row.groups()] == pytest.approx(expected, abs=0.0051), name


def test_the_epsilon_is_that_of_what_was_released(saved: dict, as_printed: dict) -> None:
    for told in (*saved["privacy"].values(), *as_printed["privacy"].values()):
        releases = [Release(**release) for release in told["releases"]]
        # Noise and rate are saved to four digits.
        assert spent(releases, delta=told["delta"]).epsilon == pytest.approx(told["epsilon"], rel=0.02)
        assert told["epsilon"] <= 9.801
