"""Class imbalance: the images drawn, the settings chosen, exact class means, and the page against the saved numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.types import Array, Model
from experiments.term import imbalance

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
FEW: dict[str, Any] = {
    "rows": 60,
    "first": 300,
    "held": 10,
    "batch": 8,
    "rare": (12, 6),
    "mined_batch": 16,
    "clean": 4,
    "tilts": (50.0,),
    "gammas": (2.0,),
    "adam_rates": (0.02,),
    "momentum_rates": (),
    "steps": 40,
    "mined_steps": 40,
    "exact_steps": 40,
    "every": 5,
    "seeds": 2,
}


class Flat(nn.Module):
    """A linear model of the patches, which compiles fast."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(2)(x.reshape(x.shape[0], -1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that are brighter on the left for a 4 and on the right for a 9, with other digits between."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data")

    def images(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice([1, 4, 9], count).astype(np.uint8)
        x = rng.integers(0, 100, (count, 28, 28))
        x[y == 4, :, :14] += 100
        x[y == 9, :, 14:] += 100
        return x.astype(np.uint8), y

    (x, y), (test_x, test_y) = images(400), images(100)
    np.savez(path / "mnist.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    return path


def test_the_experiment_at_a_tiny_size(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(config: imbalance.Config, loss: Any = "cross_entropy") -> Model:
        return eh.models.from_flax(Flat(), sample=jnp.zeros((1, 49, 25)), loss=loss)

    monkeypatch.setattr(imbalance, "network", linear)
    monkeypatch.setattr(sys, "argv", ["imbalance.py", "--tiny"])
    with jax.numpy_dtype_promotion("standard"):  # for optax
        imbalance.main(imbalance.Config(data_dir=folder, out=tmp_path, folder=tmp_path / "runs", **FEW))

    saved = json.loads((tmp_path / "imbalance.json").read_text())
    assert saved["command"] == "python -m experiments.term.imbalance --tiny"
    assert list(saved["methods"]) == list(imbalance.METHODS)
    assert len(saved["orderings"]) == 6 * 2
    assert list(saved["variants"]["estimates from 0"]) == [
        "80 %",
        "80 %, at the end",
        "90 %",
        "90 %, at the end",
    ]
    for method in imbalance.METHODS:
        assert saved["tuning"][method]["chosen"].startswith("Adam 0.02")
        mean = saved["methods"][method]["mean"]
        assert list(mean)[:4] == ["80 %", "90 %", "rare, 80 %", "rare, 90 %"]
        assert mean["80 %"] > 0.8
        assert 5 <= mean["steps, 80 %"] <= 40
    with pytest.raises(SystemExit, match=r"no .*mnist\.npz: say with --data-dir"):
        imbalance.digits(tmp_path, 10)


def test_images_of_a_run(folder: Path) -> None:
    config = imbalance.Config(data_dir=folder, **FEW)
    rows, apart = (imbalance.drawn(config, 6, 3, clean=clean) for clean in (False, True))
    with np.load(folder / "mnist.npz") as file:
        x, y, test_x, test_y = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))

    def places(found: Array, images: np.ndarray) -> list[int]:
        halves = imbalance.patches(images.astype(np.float64).reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255)
        # The image with the same middle patch.
        gaps = np.abs(halves[:, 24] - np.asarray(found)[:, None, 24]).max(2)
        assert gaps.min(1).max() < 1e-6
        return [int(place) for place in gaps.argmin(1)]

    train = places(rows.x, x)
    assert len(set(train)) == 60 and max(train) < 300
    assert list(y[train]) == [4] * 6 + [9] * 54
    np.testing.assert_array_equal(rows.y, [0] * 6 + [1] * 54)
    valid, test = places(rows.held_x[:20], x), places(rows.held_x[20:], test_x)
    assert min(valid) >= 300
    assert list(y[valid]) == list(test_y[test]) == [4] * 10 + [9] * 10
    np.testing.assert_array_equal(rows.held_y, ([0] * 10 + [1] * 10) * 2)
    # LearnReweight's clean images are taken out of the same training images.
    assert places(apart.clean_x, x) == [*train[:2], *train[6:8]]
    assert places(apart.x, x) == [*train[2:6], *train[8:]]
    np.testing.assert_array_equal(apart.clean_y, [0, 0, 1, 1])
    assert rows.clean_x.shape[0] == 0
    assert places(imbalance.drawn(config, 6, 4, clean=False).x, x) != train


def test_exact_means_take_the_place_of_estimates() -> None:
    model = eh.models.softmax_regression(features=1, classes=2)
    x = jnp.linspace(-1.0, 1.0, 10)[:, None]
    y = jnp.array([0] * 3 + [1] * 7)
    config = imbalance.Config(rows=10, batch=4)
    solver = eh.centralized.grouped(
        model,
        groups=np.array(y),
        t=30.0,
        tau=0.0,
        rate=config.share,
        batch_size=4,
        optimiser=optax.sgd(0.1),
    )
    params = model.init(jax.random.key(0))
    losses = np.asarray(model.losses(model.apply(params, x), y))
    state = solver.init(params, x, y)._replace(risks=jnp.array([100.0, -100.0]))
    known = state._replace(risks=jnp.array([losses[:3].mean(), losses[3:].mean()]))
    of = (x, y, jnp.int32(0), jax.random.key(1))
    after, expected = imbalance.exact(solver, 3).step(state, *of), solver.step(known, *of)
    np.testing.assert_allclose(after.risks, expected.risks, rtol=1e-6)
    assert float(jnp.abs(solver.step(state, *of).risks - expected.risks).max()) > 1.0


def test_settings_and_steps_are_those_of_the_highest_validation_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = imbalance.Config(rare=(2, 1), steps=300, adam_rates=(0.1, 0.2, 0.3), momentum_rates=())
    valid: dict[Any, tuple[float, ...]] = {
        (0.1, 2): (0.5, 0.9, 0.8),
        (0.1, 1): (0.6, 0.5, 0.5),
        (0.2, 2): (0.7, 0.8, 0.8),
        (0.2, 1): (0.8, 0.7, 0.8),
        (0.3, 2): (0.8, 0.8, 0.8),
        (0.3, 1): (0.7, 0.7, 0.7),
    }

    def trained(
        config: imbalance.Config, method: str, setting: imbalance.Setting, rare: int, seed: int, steps: int
    ) -> dict[str, float]:
        assert (method, steps) == ("ERM", 300)
        path: dict[str, float] = {}
        for number, value in enumerate(valid[setting.rate, rare]):
            done = 100 * (number + 1)
            path |= {f"valid {done}": value, f"test {done}": done + seed}
            path |= {f"rare {done}": rare, f"common {done}": 0.0}
        return path

    monkeypatch.setattr(imbalance, "trained", trained)
    setting, means = imbalance.chosen(config, "ERM")
    assert setting == imbalance.Setting(True, 0.2)
    assert means == pytest.approx({"Adam 0.1": 0.75, "Adam 0.2": 0.8, "Adam 0.3": 0.75})
    numbers = imbalance.row(config, "ERM", setting)(7)
    assert numbers["99.96 %"] == 200 + 7  # of equals, the fewest steps
    assert numbers["99.98 %"] == 100 + 7
    assert numbers["rare, 99.98 %"] == 1


def test_each_method_has_as_many_optimisers() -> None:
    config = imbalance.Config()
    optimisers = {
        method: {(setting.is_adam, setting.rate) for setting in imbalance.candidates(config, method)}
        for method in imbalance.METHODS
    }
    assert all(tries == optimisers["ERM"] for tries in optimisers.values())
    assert len(imbalance.candidates(config, "TERM")) == len(imbalance.candidates(config, "FocalLoss"))


def test_patches_and_a_layer_are_a_convolution() -> None:
    images = np.random.default_rng(0).random((2, 14, 14)).astype(np.float32)
    kernel = np.random.default_rng(1).random((25, 3)).astype(np.float32)
    expected = jax.lax.conv_general_dilated(
        jnp.asarray(images[..., None]),
        jnp.asarray(kernel.reshape(5, 5, 1, 3)),
        (2, 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(imbalance.patches(images) @ kernel, expected.reshape(2, 49, 3), rtol=1e-5)


@pytest.mark.parametrize("is_adam", [True, False])
def test_the_flag_chooses_the_optimiser(is_adam: bool) -> None:
    theirs = optax.adam(0.1) if is_adam else optax.sgd(0.1, momentum=0.9)
    ours = imbalance.optimiser_of(imbalance.Setting(is_adam, 0.1))
    params, updates = jnp.array([1.0, -2.0]), []
    with jax.numpy_dtype_promotion("standard"):  # for optax
        for optimiser in (theirs, ours):
            state = optimiser.init(params)
            for gradient in (params, 3.0 * params):
                update, state = optimiser.update(gradient, state)
            updates.append(update)
    np.testing.assert_allclose(updates[0], updates[1], rtol=1e-6)


def test_the_small_network_and_the_papers() -> None:
    model = imbalance.network(imbalance.Config())
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 208 + 19_650 + 102
    papers = imbalance.network(imbalance.Config(papers_network=True))
    assert papers.name.startswith("lenet(2")


# --- the saved numbers -------------------------------------------------------------------------------------------

SHARES = ("98 %", "99 %", "99.5 %")


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    return json.loads((FOLDER / "results" / "imbalance.json").read_text())


def test_the_page_has_the_saved_numbers(saved: dict[str, Any]) -> None:
    page = (FOLDER / "imbalance.md").read_text(encoding="utf-8")
    for method in imbalance.METHODS:
        (row,) = re.findall(rf"^\| {re.escape(method)} \|(.*)\|$", page, flags=re.MULTILINE)
        numbers = saved["methods"][method]
        for name, cell in zip((*SHARES, "rare, 99.5 %"), row.split("|"), strict=True):
            mean, error, *paper = map(float, re.findall(r"[\d.]+", cell))
            assert mean == pytest.approx(100 * numbers["mean"][name], abs=0.051)
            assert error == pytest.approx(100 * numbers["error"][name], abs=0.051)
            theirs = imbalance.PAPER.get(method, {}).get(name)
            assert paper == ([] if theirs is None else [pytest.approx(100 * theirs, abs=0.051)])
    for rival, *counts in re.findall(r"^\* (\w+): (\d), (\d), (\d)", page, flags=re.MULTILINE):
        expected = [saved["orderings"][f"TERM is above {rival} at {name}"] for name in SHARES]
        assert [f"{count} of 5 seeds" for count in counts] == expected
    for method in imbalance.METHODS[:-1]:
        assert f"{method}: {saved['tuning'][method]['chosen']}" in re.sub(r"\s+", " ", page)
    for name, numbers in saved["variants"].items():
        (row,) = re.findall(rf"^\| {name} \|(.*)\|$", page, flags=re.MULTILINE)
        expected = [numbers[share + end] for end in ("", ", at the end") for share in SHARES]
        assert [float(number) for number in re.findall(r"[\d.]+", row)] == pytest.approx(
            [100 * number for number in expected], abs=0.051
        )


def test_the_verdict_follows_from_the_saved_numbers(saved: dict[str, Any]) -> None:
    means = {
        method: np.array([numbers["mean"][name] for name in SHARES])
        for method, numbers in saved["methods"].items()
    }
    errors = np.array([saved["methods"]["TERM"]["error"][name] for name in SHARES])
    gains = {rival: 100 * (means["TERM"] - means[rival]) for rival in means}
    assert gains["ERM"].round(1).tolist() == [1.5, 3.8, 8.1]
    assert gains["FocalLoss"].round(1).tolist() == [0.2, 1.4, 0.8]
    assert gains["FocalLoss"][0] < 100 * errors[0]
    assert (gains["HardMine"] > gains["ERM"]).all()
    assert (np.abs(gains["LearnReweight"]) < 200 * errors).all()
    assert (np.abs(gains["InverseRatio"]) < 100 * errors).all()
    paper = {method: np.array(list(numbers.values())) for method, numbers in imbalance.PAPER.items()}
    for method in ("ERM", "FocalLoss"):
        assert np.abs(means[method] - paper[method]).max() < 0.015
    for method in ("TERM", "LearnReweight"):
        below = paper[method] - means[method]
        assert below.min() > 0.018 and below.max() < 0.0601
    seeds = (saved["methods"][method]["seeds"] for method in ("FocalLoss", "TERM"))
    focal, term = ([seed["98 %"] for seed in each] for each in seeds)
    assert np.sign(np.subtract(focal, term)).tolist() == [0, 1, 1, -1, 1]
    accuracies = saved["tuning"]["TERM"]["accuracies"]
    assert {name for name, value in accuracies.items() if value == 0.5} == {
        "momentum 0.1, t=50",
        "momentum 0.1, t=100",
    }
    assert saved["methods"]["ERM"]["mean"]["steps, 99.5 %"] == 1540
    assert saved["methods"]["TERM"]["mean"]["steps, 99.5 %"] == 480
