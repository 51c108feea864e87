"""Robust classification: images and noisy labels, two weightings of our own, and the page against the saved numbers."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import evenhand as eh
from evenhand.types import Array, Model
from experiments.term import classification

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
FEW: dict[str, Any] = {
    "rows": 128,
    "valid": 40,
    "noise": (0.4,),
    "epochs": 10,
    "batch": 16,
    "rates": (0.03,),
    "rare_rates": (0.01,),
    "qs": (0.4,),
    "seeds": 1,
}


class Flat(nn.Module):
    """A linear model of the patches, which compiles fast."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def linear(loss: Any = "cross_entropy") -> Model:
    return eh.models.from_flax(Flat(), sample=jnp.zeros((1, 64, 75)), loss=loss)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images sorted by split and class; a class has its bright columns of pixels."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data")
    label = np.concatenate([np.repeat(np.arange(10), 40), np.repeat(np.arange(10), 5)])
    jpegs = []
    for y in label:
        pixels = rng.integers(0, 60, (32, 32, 3))
        pixels[:, 3 * y : 3 * y + 3] += 180
        with io.BytesIO() as file:
            Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
            jpegs.append(np.frombuffer(file.getvalue(), np.uint8))
    np.savez(
        path / "cifar10_jpeg.npz",
        jpeg=np.concatenate(jpegs),
        offsets=np.cumsum([0, *map(len, jpegs)]),
        label=label.astype(np.uint8),
        is_test=np.arange(450) >= 400,
        classes=np.array(CLASSES),
    )
    return path


def test_the_experiment_at_a_tiny_size(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "network", linear)
    monkeypatch.setattr(sys, "argv", ["classification.py", "--tiny"])
    classification.main(classification.Config(data_dir=folder, out=tmp_path, folder=tmp_path / "runs", **FEW))
    noisy, rare = (
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("classification", "classification_rare")
    )
    assert noisy["command"] == rare["command"] == "python -m experiments.term.classification --tiny"
    assert list(noisy["methods"]) == list(classification.METHODS)
    assert list(rare["methods"]) == list(classification.RARE_METHODS)
    assert set(rare["not run"]) == {"MentorNet", "MentorNet-DD", "MW-Net", "HAR"}
    for method, numbers in noisy["methods"].items():
        assert numbers["mean"]["40 %"] > 0.5, method
        chosen = "rate 0.03, q=0.4" if method == "GCE" else "rate 0.03"
        assert noisy["tuning"][method]["40 %"]["chosen"] == chosen
    assert all(numbers["mean"]["clean, common"] > 0.5 for numbers in rare["methods"].values())
    assert len(noisy["orderings"]) == 2 * 6 and len(rare["orderings"]) == 2 * 2 * 2
    with pytest.raises(SystemExit, match=r"no .*cifar10_jpeg\.npz: say with --data-dir"):
        classification.images(tmp_path)


def test_images_are_halved_and_standardised(folder: Path) -> None:
    content = classification.images(folder)
    assert content.train.shape == (400, 16, 16, 3) and content.test.shape == (50, 16, 16, 3)
    np.testing.assert_allclose(content.train.mean((1, 2, 3)), 0.0, atol=1e-5)
    np.testing.assert_allclose(content.train.std((1, 2, 3)), 1.0, rtol=1e-4)
    brightest = content.test.mean((1, 3)).argmax(1)
    assert (np.abs(brightest - (3 * content.test_y + 1) / 2) <= 1).all()


def test_training_and_validation_images_are_apart_and_as_noisy(folder: Path) -> None:
    config = classification.Config(data_dir=folder, **{**FEW, "rows": 300, "valid": 100})
    rows = classification.drawn(config, 0.4, 3)
    content = classification.images(folder)

    def places(x: Array) -> list[int]:
        centres = np.asarray(classification.patches(content.train))[:, 27]
        return [int(np.abs(centres - one).sum(1).argmin()) for one in np.asarray(x)[:, 27]]

    train, valid = places(rows.x), places(rows.valid_x)
    assert sorted(train + valid) == list(range(400))
    np.testing.assert_array_equal(rows.true, content.train_y[train])
    for y, true in ((rows.y, rows.true), (rows.valid_y, content.train_y[valid])):
        # Of replaced labels, a tenth is right by chance.
        assert np.mean(np.asarray(y) != np.asarray(true)) == pytest.approx(0.36, abs=0.12)
    assert (np.asarray(classification.drawn(config, 0.4, 4).y) != np.asarray(rows.y)).any()


def test_replaced_labels_are_uniform() -> None:
    y = np.full(50_000, 3, np.int32)
    counts = np.bincount(classification.replaced(y, 0.4, np.random.default_rng(0)), minlength=10)
    np.testing.assert_allclose(counts / 50_000, [0.04] * 3 + [0.64] + [0.04] * 6, atol=0.01)


def test_look_alike_classes_are_rare_and_exchanged(folder: Path) -> None:
    config = classification.Config(data_dir=folder, **{**FEW, "thinned": 0.5})
    rows = classification.drawn(config, "rare", 0)
    y, true = np.asarray(rows.y), np.asarray(rows.true)
    assert np.bincount(true).tolist() == [16, 8, 16, 8, 16, 8, 16, 16, 16, 8]
    for a, b in ((3, 5), (1, 9)):
        for one, other in ((a, b), (b, a)):
            assert np.bincount(y[true == one], minlength=10)[[one, other]].tolist() == [5, 3]
    common = ~np.isin(true, [1, 3, 5, 9])
    np.testing.assert_array_equal(y[common], true[common])
    assert rows.valid_x.shape[0] == 40
    assert np.bincount(np.asarray(rows.valid_y)).tolist() == [4] * 10


def test_the_full_size_of_the_table_with_rare_classes() -> None:
    content = classification.Images(
        np.empty(0), np.repeat(np.arange(10), 5000), np.empty(0), np.empty(0), CLASSES
    )
    config = classification.Config()
    train, valid = classification._thinned(config, content, np.random.default_rng(0).permutation(50_000))
    counts = np.bincount(content.train_y[train])
    assert counts[[1, 3, 5, 9]].tolist() == [157] * 4
    assert sorted(set(counts)) == [157, 1562] and len(train) == 10_000
    assert len(valid) == 5000 and not set(train) & set(valid)


def weighed(losses: Array, y: Array, progress: float) -> eh.centralized.Weighed:
    return eh.centralized.Weighed(
        (), x=jnp.zeros(0), y=y, losses=losses, progress=jnp.float32(progress), key=jax.random.key(0)
    )


def test_tilted_classes_are_the_gradient_of_the_hierarchical_risk() -> None:
    rng = np.random.default_rng(0)
    losses, y = jnp.asarray(rng.random(40), jnp.float32), jnp.asarray(np.arange(40) % 7)
    weighting = classification.tilted_classes(3.0, -2.0, 0.2)
    state = weighting.init(linear(), jnp.zeros((40, 1)), y)
    for progress in (0.0, 0.5, 1.0):  # a first batch replaces the estimates
        weights, after = weighting.weigh(linear(), state, weighed(losses, y, progress))
        t, tau = 3.0 * progress or 1e-4, -2.0 * progress or -1e-4

        def risk(f: np.ndarray, t: float = t, tau: float = tau) -> float:
            groups = [f[np.asarray(y) == g] for g in range(7)]
            inside = [np.log(np.mean(np.exp(tau * group))) / tau for group in groups]
            sizes = np.array([len(group) for group in groups])
            return float(np.log(sizes / 40 @ np.exp(t * np.array(inside))) / t)

        f = np.asarray(losses, np.float64)
        gradient = [(risk(f + 1e-5 * e) - risk(f - 1e-5 * e)) / 2e-5 for e in np.eye(40)]
        np.testing.assert_allclose(weights, 40 * np.array(gradient), rtol=2e-3)
    # The next batch mixes: a class that it lacks keeps its estimate.
    few = weighed(losses[:2] + 1.0, y[:2], 1.0)
    _, (risks, seen, _) = weighting.weigh(linear(), after, few)
    old, new = np.asarray(after[0], np.float64), np.asarray(losses[:2], np.float64) + 1.0
    expected = np.log(0.8 * np.exp(-2.0 * old[:2]) + 0.2 * np.exp(-2.0 * new)) / -2.0
    np.testing.assert_allclose(risks[:2], expected, rtol=1e-4)
    np.testing.assert_array_equal(risks[2:], after[0][2:])
    assert np.asarray(seen).tolist() == [True] * 7 + [False] * 3


def test_unnormalised_weights_ramp_from_1() -> None:
    losses = jnp.array([0.0, 1.0, 2.0])
    weighting = classification.unnormalised(-2.0)
    for progress in (0.0, 0.5, 1.0):
        weights, _ = weighting.weigh(linear(), (), weighed(losses, jnp.zeros(3), progress))
        np.testing.assert_allclose(weights, np.exp(-2.0 * progress * np.arange(3)), rtol=1e-6)


def test_genie_trains_on_right_labels_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = classification.Config(data_dir=folder, **FEW)
    seen: list[tuple[str, classification.Rows]] = []
    solver_of = classification.solver_of

    def watched(config: Any, method: str, q: float, noise: Any, rate: Any, rows: Any) -> Any:
        seen.append((method, rows))
        return solver_of(config, method, q, noise, rate, rows)

    monkeypatch.setattr(classification, "network", linear)
    monkeypatch.setattr(classification, "solver_of", watched)
    for method in ("Genie ERM", "ERM"):
        classification.trained(config, method, classification.Setting(0.03), 0.4, 0)
    sizes = {method: rows.y.shape[0] for method, rows in seen}
    (genie,) = {id(rows): rows for method, rows in seen[:1]}.values()
    np.testing.assert_array_equal(genie.y, genie.true)
    whole = classification.drawn(config, 0.4, 0)
    assert sizes == {"Genie ERM": int((whole.y == whole.true).sum()), "ERM": 128}


def test_the_setting_is_that_of_the_highest_validation_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = classification.Config(rates=(0.1, 0.2), rare_rates=(0.3,), qs=(0.4, 1.0))
    valid = {(0.1, 0.4): 0.3, (0.2, 0.4): 0.5, (0.1, 1.0): 0.6, (0.2, 1.0): 0.2}

    def trained(config: Any, method: str, setting: Any, noise: Any, seed: int) -> dict[str, Any]:
        assert seed == classification.TUNING_SEED
        return {"valid": valid.get((setting.rate, setting.q), setting.rate), "test": 1.0 - setting.rate}

    monkeypatch.setattr(classification, "trained", trained)
    setting, accuracies = classification.chosen(config, "GCE", 0.2)
    assert setting == classification.Setting(0.1, 1.0)
    assert accuracies["rate 0.2, q=0.4"] == 0.5 and len(accuracies) == 4
    assert classification.chosen(config, "ERM", 0.2)[0] == classification.Setting(0.2)
    assert classification.chosen(config, "ERM", "rare")[0] == classification.Setting(0.3)


def test_the_network_is_two_convolutions() -> None:
    x = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype(np.float32)
    model = classification.network()
    params = model.init(jax.random.key(0))
    layers = params.get("params", params)
    numbers = ("NHWC", "HWIO", "NHWC")
    second = layers["second"]["kernel"].reshape(2, 2, 16, 48)
    first = layers["first"]["kernel"].reshape(3, 5, 5, 16).transpose(1, 2, 0, 3)
    images = jnp.asarray(x)
    h = nn.relu(jax.lax.conv_general_dilated(images, first, (2, 2), "SAME", dimension_numbers=numbers))
    h = nn.relu(jax.lax.conv_general_dilated(h, second, (2, 2), "VALID", dimension_numbers=numbers))
    h = nn.relu(h.reshape(2, 768) @ layers["dense"]["kernel"])
    expected = h @ layers["output"]["kernel"]
    np.testing.assert_allclose(model.apply(params, classification.patches(x)), expected, atol=1e-4)


# --- the saved numbers -------------------------------------------------------------------------------------------

LEVELS = ("20 %", "40 %", "80 %")
PARTS = ("noisy, rare", "clean, common")


@pytest.fixture(scope="module")
def saved() -> tuple[dict[str, Any], dict[str, Any]]:
    noisy, rare = (
        json.loads((FOLDER / "results" / f"{name}.json").read_text())
        for name in ("classification", "classification_rare")
    )
    return noisy, rare


def row_of(part: str, title: str) -> list[str]:
    (row,) = re.findall(rf"^\| {re.escape(title)} \|(.*)\|$", part, flags=re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def test_the_page_has_the_saved_numbers(saved: tuple[dict[str, Any], dict[str, Any]]) -> None:
    page = (FOLDER / "classification.md").read_text(encoding="utf-8")
    parts = page.split("\n## ")[1:]
    for content, part, names, papers in zip(
        saved, parts[:2], (LEVELS, PARTS), (classification.PAPER, classification.RARE_PAPER), strict=True
    ):
        accuracies, counts = part.split("### In how many seeds")
        for method, numbers in content["methods"].items():
            for name, cell in zip(names, row_of(accuracies, method), strict=True):
                mean, error, *paper = map(float, re.findall(r"[\d.]+", cell))
                assert mean == pytest.approx(100 * numbers["mean"][name], abs=0.051)
                assert error == pytest.approx(100 * numbers["error"][name], abs=0.051)
                assert paper == [pytest.approx(100 * papers[method][name], abs=0.051)]
        for claim, seeds in content["orderings"].items():
            words = re.fullmatch(r"(.*) is above (.*) (?:at|on) (.*)", claim)
            assert words is not None
            better, other, name = words.groups()
            column = [term for term in content["methods"] if term.startswith("TERM")].index(better)
            cell = row_of(counts, f"above {other}")[column]
            assert f"{cell.split('; ')[names.index(name)]} of {len(numbers['seeds'])} seeds" == seeds
    noisy, rare = (content["tuning"] for content in saved)
    for method in classification.METHODS:
        assert row_of(parts[2], method) == [noisy[method][level]["chosen"] for level in LEVELS]
    for method in classification.RARE_METHODS:
        assert f"{method}: {rare[method]['rare']['chosen']}\n" in parts[2]
    for method in classification.NOT_RUN:
        assert re.search(rf"\*\*.*\b{method}\b.*not run", page)


def test_the_verdicts_follow_from_the_saved_numbers(saved: tuple[dict[str, Any], dict[str, Any]]) -> None:
    noisy, rare = saved
    means = {
        method: np.array([numbers["mean"][level] for level in LEVELS])
        for method, numbers in noisy["methods"].items()
    }
    beaten = ("ERM", "RandomRect", "SelfPaced", "MentorNet-PD")
    for rival in beaten:
        for level in LEVELS:
            assert noisy["orderings"][f"TERM is above {rival} at {level}"] == "5 of 5 seeds"
    assert (100 * (means["TERM"] - means["ERM"])).round(1).tolist() == [1.3, 1.9, 2.4]
    assert noisy["orderings"]["TERM is above GCE at 80 %"] == "0 of 5 seeds"
    gaps = means["GCE"] - means["TERM"]
    errors = [noisy["methods"]["GCE"]["error"][level] for level in LEVELS]
    assert (np.abs(gaps[:2]) < errors[:2]).all()
    assert (100 * gaps[2]).round(1) == 2.0
    assert (means["SelfPaced"] < means["ERM"]).all() and means["RandomRect"][2] < means["ERM"][2]
    assert means["MentorNet-PD"][2] < means["ERM"][2]
    assert (100 * (means["Genie ERM"] - means["TERM"])[2]).round() == 12
    above = 100 * (means["Genie ERM"] - means["ERM"])
    assert above.round().tolist()[:2] == [2, 4]
    below = [
        100 * (number - means[method][LEVELS.index(level)])
        for method, numbers in classification.PAPER.items()
        for level, number in numbers.items()
    ]
    assert [round(min(below)), round(max(below))] == [2, 38]

    on_rare, common = (
        {method: numbers["mean"][name] for method, numbers in rare["methods"].items()} for name in PARTS
    )
    assert on_rare["TERM_sc"] > on_rare["ERM"] > on_rare["GCE"]
    assert rare["orderings"]["TERM_sc is above ERM on noisy, rare"] == "3 of 5 seeds"
    assert rare["orderings"][f"{classification.IN_BATCH} is above ERM on noisy, rare"] == "5 of 5 seeds"
    costs = [common["ERM"] - common[term] for term in ("TERM_sc", classification.IN_BATCH)]
    assert (100 * np.array(costs)).round().tolist() == [23, 19]
    assert common["GCE"] == pytest.approx(common["ERM"], abs=0.005)
    accuracies = rare["tuning"]["TERM_sc"]["rare"]["accuracies"]
    assert accuracies["rate 0.03"] == accuracies["rate 0.1"] == 0.1
