"""What privacy costs the worst-served tenth: the experiment runs, and the page says what the saved numbers say."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.private import clients
from experiments.private.budgets import over_budgets

FOLDER = Path(__file__).parents[2] / "experiments" / "private"
SAVED = json.loads((FOLDER / "results" / "worst_tenth.json").read_text(encoding="utf-8"))["places"]
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
TABLES = {
    "label shift": "| label shift, epsilon |",
    "mnist": "| MNIST, epsilon |",
    "pooled mnist": "| MNIST, private for an image, epsilon |",
}
LEAST = {"label shift": "1", "mnist": "1", "pooled mnist": "0.1"}
CELLS = [(place, method) for place, methods in SAVED.items() for method in methods]
TAIL = "DP-Delta-FL, theta=0.5"


def _digits(folder: Path) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(10, size=600, dtype=np.uint8)
    pixels = random.integers(50, size=(600, 28, 28), dtype=np.uint8)
    pixels[np.arange(600), labels] = 255
    np.savez(folder / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)


def test_the_experiment_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _digits(tmp_path)
    tiny = ["--mnist.clients", "20", "--mnist.cohort", "10", "--mnist.rounds", "3", "--seeds", "1"]
    what = ["--places", "mnist", "--methods", "DP-FedAvg", "--epsilons", "1.0", "inf"]
    options = ["--data-dir", str(tmp_path), "--out", str(tmp_path), *tiny, *what]
    monkeypatch.setattr(sys, "argv", ["", *options])
    monkeypatch.delitem(
        sys.modules, "experiments.private.worst_tenth", raising=False
    )  # another experiment imports it

    runpy.run_module("experiments.private.worst_tenth", run_name="__main__", alter_sys=True)

    saved = json.loads((tmp_path / "worst_tenth.json").read_text())
    assert shlex.split(saved["command"]) == ["python", "-m", "experiments.private.worst_tenth", *options]
    found = saved["places"]["mnist"]["DP-FedAvg"]
    assert found["1"]["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert found["inf"]["noise"] == 0.0
    assert all(len(each["valid"]) == 6 for each in found.values())
    (private,), (free,) = (found[budget]["seeds"] for budget in ("1", "inf"))
    assert private["test_worst10"] <= private["test_mean"] < free["test_mean"]
    assert (tmp_path / "worst_tenth.png").read_bytes().startswith(b"\x89PNG")


def test_the_experiment_where_all_rows_are_in_one_place(tmp_path: Path) -> None:
    from experiments.private import worst_tenth

    _digits(tmp_path)
    small = {"clients": 20, "public": 60, "rows": 450, "batch": 45, "steps": 20}
    few = {"rates": (1.0,), "clips": (1.0,), "scaled_rates": (0.1,), "scaled_clips": (10.0,)}
    pooled = dataclasses.replace(worst_tenth.POOLED, **small, **few)
    config = worst_tenth.Config(data_dir=tmp_path, pooled_mnist=pooled, seeds=1, pooled_epsilons=(1.0,))
    runs, every, budgets = worst_tenth.everything(config, "pooled mnist")

    found = over_budgets("AdaDPS", every["AdaDPS"], budgets, runs)["1"]

    assert found["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert found["seeds"][0]["test_worst10"] <= found["seeds"][0]["test_mean"]
    place, apart = runs.place(0), clients.public_images(tmp_path, 60)[0]
    assert place.data.train.rows == 450 == runs.units
    assert len(place.shares) == 20
    everything = np.concatenate([place.data.train.x, place.rows["valid"].x, apart])
    assert len(np.unique(everything, axis=0)) == 600
    assert np.array_equal(clients.public_images(tmp_path, 60)[0], apart)


def test_a_client_is_measured_on_its_own_mixture_of_labels() -> None:
    y = np.array([1, 0, 1, 1])
    rows = clients.by_label(np.arange(4.0)[:, None], y, 2)
    assert rows.y.tolist() == [0, 1, 1, 1]
    assert rows.x[:, 0].tolist() == [1, 0, 2, 3]
    assert rows.sizes.tolist() == [1, 3]


def test_clients_of_mnist_have_two_digits_each_and_no_image_is_used_twice(tmp_path: Path) -> None:
    _digits(tmp_path)
    place = clients.mnist(tmp_path, 20, 3)
    assert ((place.shares > 0).sum(axis=1) == 2).all()
    assert place.data.train.rows == 500
    assert place.rows["valid"].rows == 100
    both = np.concatenate([place.data.train.x, place.rows["valid"].x])
    assert len(np.unique(both, axis=0)) == 600


def _accuracy(place: str, method: str, budget: str, what: str) -> np.ndarray:
    return np.array([seed[f"test_{what}"] for seed in SAVED[place][method][budget]["seeds"]])


def _cost(place: str, method: str, budget: str, what: str) -> np.ndarray:
    return _accuracy(place, method, "inf", what) - _accuracy(place, method, budget, what)


def _times(place: str, method: str, budget: str) -> float:
    return _cost(place, method, budget, "worst10").mean() / _cost(place, method, budget, "mean").mean()


@pytest.mark.parametrize(("place", "method"), CELLS)
def test_the_page_has_the_saved_numbers(place: str, method: str) -> None:
    lines = PAGE[PAGE.index(TABLES[place]) :].splitlines()
    *cells, costs = next(line for line in lines if line.startswith(f"| {method} |")).split("|")[2:-1]
    for cell, budget in zip(cells, SAVED[place][method], strict=True):
        assert len(SAVED[place][method][budget]["seeds"]) == 5
        for told, what in zip(cell.split("/"), ("mean", "worst10"), strict=True):
            assert float(told) == pytest.approx(_accuracy(place, method, budget, what).mean(), abs=0.051)
    for told, what in zip(costs.split(","), ("mean", "worst10"), strict=True):
        assert float(told) == pytest.approx(_cost(place, method, LEAST[place], what).mean(), abs=0.051)


@pytest.mark.parametrize(("place", "method"), CELLS)
def test_every_budget_is_kept(place: str, method: str) -> None:
    for budget, each in SAVED[place][method].items():
        if budget != "inf":
            assert each["epsilon"] == pytest.approx(float(budget), abs=1e-3)


def test_the_worst_tenth_of_mnist_pays_about_twice_as_much() -> None:
    for method in SAVED["mnist"]:
        assert (_cost("mnist", method, "1", "worst10") > _cost("mnist", method, "1", "mean")).all()
        assert all(1.2 < _times("mnist", method, budget) < 2.65 for budget in ("1", "2", "4", "8"))
    assert max(
        _times("mnist", method, budget) for method in SAVED["mnist"] for budget in ("1", "2", "4", "8")
    ) == pytest.approx(2.6, abs=0.051)
    assert _times("mnist", "DP-FedAvg", "1") == pytest.approx(10.3 / 5.5, abs=0.05)


def test_it_pays_more_where_privacy_is_for_an_image_too() -> None:
    for method in SAVED["pooled mnist"]:
        mean, tail = (_cost("pooled mnist", method, "0.1", what) for what in ("mean", "worst10"))
        assert (tail > mean).all()
        assert 1.5 < _times("pooled mnist", method, "0.1") < 1.86
    larger = [(method, budget) for method in SAVED["pooled mnist"] for budget in ("0.3", "1", "3")]
    times = [_times("pooled mnist", *each) for each in larger]
    assert (min(times), max(times)) == pytest.approx((0.9, 2.8), abs=0.051)
    assert max(_cost("pooled mnist", *each, "mean").mean() for each in larger) < 3.0
    assert _cost("pooled mnist", "DP-SGD", "0.1", "worst10").mean() == pytest.approx(9.2, abs=0.051)
    assert SAVED["pooled mnist"]["DP-SGD"]["0.1"]["noise"] > SAVED["mnist"]["DP-FedAvg"]["1"]["noise"]


def test_where_noise_is_small_both_pay_alike() -> None:
    for method in ("DP-FedAvg", "adaptive clip", "DP-FedAdam"):
        assert max(_cost("label shift", method, "1", what).mean() for what in ("mean", "worst10")) < 1.1
    assert all(1.45 < _times("label shift", "DP-FTRL", budget) < 2.05 for budget in ("1", "2", "4", "8"))
    assert _times("label shift", TAIL, "1") == pytest.approx(1.4, abs=0.05)


def test_training_for_the_tail_costs_more_on_average_and_less_of_it_there() -> None:
    costs = [
        _cost("mnist", method, "1", what).mean()
        for method in (TAIL, "DP-FedAvg")
        for what in ("mean", "worst10")
    ]
    assert costs == pytest.approx([8.9, 11.7, 5.5, 10.3], abs=0.051)
    places = ("label shift", "mnist")
    for place in places:
        assert SAVED[place][TAIL]["1"]["noise"] == SAVED[place]["DP-FedAvg"]["1"]["noise"]
    ahead = {
        (place, budget, what): _accuracy(place, TAIL, budget, what)
        - _accuracy(place, "DP-FedAvg", budget, what)
        for place in places
        for budget in ("1", "2", "4", "8", "inf")
        for what in ("mean", "worst10")
    }
    for budget in ("1", "2", "4", "8"):
        assert abs(ahead["mnist", budget, "worst10"].mean()) < 0.4
        assert -4.95 < ahead["mnist", budget, "mean"].mean() < -2.2
    assert all(ahead["mnist", budget, "worst10"].mean() > 0 for budget in ("4", "8"))
    for budget in ("2", "4", "8"):
        assert (ahead["label shift", budget, "worst10"] > 0).all()
        assert ahead["label shift", budget, "mean"].mean() > -1.0
    told = {
        ("label shift", "2"): 0.6,
        ("label shift", "8"): 1.2,
        ("mnist", "inf"): 1.4,
        ("label shift", "inf"): 1.4,
    }
    for where, points in told.items():
        assert ahead[*where, "worst10"].mean() == pytest.approx(points, abs=0.051)
