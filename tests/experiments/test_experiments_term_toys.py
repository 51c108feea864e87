"""The toys: their solvers against searches, their data, and the page against the saved numbers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

from experiments.term import toy_risks, toys

FOLDER = Path(__file__).parents[2] / "experiments" / "term"
TABLE_2 = {
    0: (0.4, 0.38),
    0.1: (0.408412, 0.382020),
    1: (0.453868, 0.395899),
    5: (0.494523, 0.429896),
    20: (0.499982, 0.469789),
    100: (0.5, 0.485945),
    -0.1: (0.390488, 0.377825),
    -0.5: (0.337400, 0.366915),
    -1: (0.224506, 0.344596),
    -2: (0.030156, 0.273207),
    -5: (-0.076083, 0.161083),
    -20: (-0.197725, 0.054651),
    -100: (-0.2, 0.010986),
}
"""Minimisers and least values along the path from t = 0, by minimisation outside of this library."""


def test_some_figures_at_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: toys.FIGURES[name] for name in ("7.2", "7.5", "7.6 to 7.8", "7.15")}
    monkeypatch.setattr(toys, "FIGURES", few)
    monkeypatch.setattr(sys, "argv", ["toys.py", "--tiny"])
    toys.main(toys.Config(out=tmp_path, folder=tmp_path / "runs", seeds=1, steps=400))

    saved = json.loads((tmp_path / "toys.json").read_text())
    assert list(saved["figures"]) == list(few)
    assert saved["command"] == "python -m experiments.term.toys --tiny"
    for numbers in saved["figures"].values():
        assert Path(numbers["picture"]).stat().st_size > 2000
    assert saved["figures"]["7.2"]["t=1"]["minimiser"] == pytest.approx(TABLE_2[1][0], abs=1e-5)
    assert saved["figures"]["7.6 to 7.8"]["elsewhere, 40 %"][0]["t=-2"] < 0.2

    monkeypatch.setattr(toys, "FIGURES", dict.fromkeys(few, pytest.fail))  # kept figures are not made again
    toys.main(toys.Config(out=tmp_path, folder=tmp_path / "runs", seeds=1, steps=400))
    assert json.loads((tmp_path / "toys.json").read_text()) == saved


@pytest.mark.parametrize("t", [-2.0, 2.0])
def test_a_path_ends_at_a_minimiser(t: float) -> None:
    x, y = toys.line(3)
    params = toys.path("regression", x, y, (0.0, t / 4, t), toys._zeros(1, 1), rate=0.05, steps=2000)[-1]

    def risk(line: np.ndarray) -> float:
        return cast(float, logsumexp(t * np.square(line[0] * x[:, 0] + line[1] - y), b=1 / len(y))) / t

    ours = np.array([params["kernel"][0, 0], params["bias"][0]])
    near = minimize(risk, ours, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    np.testing.assert_allclose(ours, near.x, atol=2e-3)
    assert abs(ours[0] - (-1.0 if t < 0 else 0.0)) < 0.6


def test_the_constant_of_a_loss_decides_where_a_tilt_goes() -> None:
    x = toys.points(0)
    constant = np.square(x).sum(axis=1)
    theta = jnp.array([0.3, -0.2])
    whole = toys.losses_of("point", theta, x, constant)
    without = toys.losses_of("point without constant", theta, x, constant)
    np.testing.assert_allclose(whole, np.square(x - np.asarray(theta)).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(without, whole - constant, atol=1e-5)


def test_curves_are_ordered_as_the_theorem_says() -> None:
    losses = np.random.default_rng(0).exponential(size=(30, 20))
    curves = toy_risks.curves(losses, np.array([0.25, 0.5, 0.75]))
    ranked = np.sort(losses, axis=1)
    np.testing.assert_allclose(curves.least["VaR"], ranked[:, [14, 9, 4]].min(axis=0), rtol=1e-5)
    tails = [ranked[:, 20 - n :].mean(axis=1).min() for n in (5, 10, 15)]
    np.testing.assert_allclose(curves.least["CVaR"], tails, rtol=1e-5)
    for lower, upper in (("VaR", "TiVaR"), ("TiVaR", "EVaR"), ("VaR", "CVaR"), ("CVaR", "EVaR")):
        assert (curves.least[lower] <= curves.least[upper] + 1e-5).all()
    for name, values in curves.quantile.items():
        assert (values >= curves.quantile["VaR"] - 1e-6).all(), name
    assert (curves.quantile["path"] <= curves.quantile["TiVaR"] + 1e-6).all()

    tilts = np.concatenate([-np.logspace(2, -3, 300), np.logspace(-3, 1, 300)])
    whole = np.asarray(logsumexp(tilts * (losses[..., None] - losses.min()), b=1 / 20, axis=1))
    for alpha, value, at in zip(curves.alphas, curves.least["TiVaR"], curves.quantile["TiVaR"], strict=True):
        bracket = np.maximum(np.exp(whole) - (1 - alpha), 1e-300) / alpha
        bounds = losses.min() + np.where(bracket > 1e-6, np.log(bracket) / tilts, np.inf).min(axis=1)
        assert value == pytest.approx(bounds.min(), rel=1e-2)
        ours = bounds[np.isclose(ranked[:, 19 - round(20 * alpha)], at, rtol=1e-5)]
        assert ours.min() < bounds.min() + 0.01 * np.ptp(bounds)


@pytest.mark.parametrize(
    ("variable", "density", "end"),
    [
        (toy_risks.uniform(), lambda x: 0.5, 2.0),
        (toy_risks.half_normal(), lambda x: 2 / np.pi * np.exp(-(x**2) / np.pi), 12.0),
    ],
)
def test_chernoff_bounds_hold_and_are_the_least(
    variable: toy_risks.Chernoff, density: Callable[[float], float], end: float
) -> None:
    assert quad(density, 0, end)[0] == pytest.approx(1.0)
    assert quad(lambda x: x * density(x), 0, end)[0] == pytest.approx(variable.mean)
    negative, positive = (quad(lambda x: np.exp(t * x) * density(x), 0, end)[0] for t in (-3.0, 0.5))  # noqa: B023
    assert variable.moment(-3.0) == pytest.approx(negative)
    assert variable.moment(0.5) == pytest.approx(positive)
    bounds = toy_risks.chernoff(variable, 0.5)
    assert bounds["true"] == pytest.approx(quad(density, 0.5, end)[0])

    def either(t: float) -> float:
        return (variable.moment(t) - 1) / float(np.expm1(0.5 * t))

    least = cast(Any, minimize_scalar(either, bounds=(-50, -0.01), method="bounded"))
    assert bounds["either sign"] == pytest.approx(least.fun, rel=1e-5)
    assert bounds["true"] < bounds["either sign"] < bounds["classical"] == 1.0


@pytest.mark.parametrize("kind", ["elsewhere", "same mean", "narrow", "line"])
def test_outliers_replace_a_share_of_the_points(kind: str) -> None:
    x, y, is_noise = toys.outliers(kind, 0.4, 0)
    clean, _, none = toys.outliers(kind, 0.0, 0)
    assert is_noise.mean() == 0.4
    assert not none.any()
    np.testing.assert_array_equal(x[~is_noise], clean[~is_noise])
    assert np.abs(y - x[:, 0])[~is_noise].max() < 0.5
    assert np.abs(y - x[:, 0])[is_noise].mean() > 1.0
    away = np.hypot(x[is_noise].mean(), y[is_noise].mean())
    assert (away > 3.0) == (kind in ("elsewhere", "narrow"))


# --- the saved numbers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved() -> dict:
    return json.loads((FOLDER / "results" / "toys.json").read_text(encoding="utf-8"))["figures"]


def test_saved_point_line_and_classes(saved: dict) -> None:
    numbers = saved["7.1"]["seeds"]
    assert len(numbers) == 5
    for one in numbers:
        at = [one[f"(a) distance to the inliers' mean, t={t}"] for t in (-2, 0, 10)]
        assert at[0] < 0.1 < at[1] < at[2]
        assert one["(a) largest loss, t=50"] < one["(a) largest loss, t=0"]
        assert abs(one["(b) slope, t=-2"] + 1) < 0.05 < abs(one["(b) slope, t=0"] + 1)
        largest = [one[f"(b) largest loss, t={t}"] for t in (-2, 0, 50)]
        assert largest[0] > largest[1] > largest[2]
        assert 0.3 < one["(a) the same without the constant, t=-2"] < 0.56
    losses = np.array([[one[f"(c) largest loss, t={t}"] for t in (-2, 0, 50)] for one in numbers])
    is_separable = losses[:, 1] < 0.1
    assert is_separable.sum() == 1
    assert (np.diff(losses[~is_separable]) < 0).all()
    assert (losses[~is_separable, 2] < 0.75).all()


def test_saved_weights(saved: dict) -> None:
    weights = saved["7.3 and 7.18"]
    assert weights["outliers' weight, t=-2"] < 1e-5
    assert weights["outliers' weight, t=0"] == pytest.approx(10 / 300, abs=1e-6)
    assert weights["outliers' weight, t=2"] > 0.18
    rare = [weights[f"rare class's weight, t={t}"] for t in (-10, 0, 50)]
    assert rare == sorted(rare)
    assert rare[2] > 0.48


@pytest.mark.parametrize(("problem", "tighter"), [("mean", 0.35), ("regression", 0.15)])
def test_saved_bounds_on_quantiles(saved: dict, problem: str, tighter: float) -> None:
    alphas = np.array(saved["7.4 and 7.16"]["alphas"])
    least, at = (
        {risk: np.array(values) for risk, values in saved["7.4 and 7.16"][problem][part].items()}
        for part in ("least", "quantile")
    )
    assert len(alphas) == 10
    for bound in ("TiVaR", "CVaR"):
        assert (least["VaR"] < least[bound]).all()
        assert (least[bound] < least["EVaR"] + 1e-5).all()
    assert ((least["TiVaR"] < least["CVaR"]) == (alphas > tighter - 1e-6)).all()
    assert (at["TiVaR"] <= at["EVaR"] + 1e-6).all()
    is_small = alphas < (0.2 if problem == "mean" else 0.1)
    assert (at["TiVaR"][is_small] > 0.9 * at["EVaR"][is_small]).all()
    if problem == "regression":
        assert (at["TiVaR"][1:] < 1.5 * at["VaR"][1:]).all()
        assert (at["EVaR"][1:] > 19 * at["VaR"][1:]).all()
        assert (at["TiVaR"] < at["inverse CVaR"]).sum() == 2


def test_saved_regression_with_outliers(saved: dict) -> None:
    errors = {
        name: {method: np.array([one[method] for one in seeds]) for method in seeds[0]}
        for name, seeds in saved["7.6 to 7.8"].items()
        if name != "picture"
    }
    assert all(len(values) == 5 for error in errors.values() for values in error.values())
    for share in (0, 20, 40):
        assert errors[f"elsewhere, {share} %"]["t=-2"].max() < 0.03
        assert errors[f"same mean, {share} %"]["t=-2"].max() < 0.05
        assert errors[f"line, {share} %"]["t=-2"].max() < 0.02
        assert errors[f"narrow, {share} %"]["t=-2"].max() < 0.03
    elsewhere, same, line = (errors[f"{kind}, 80 %"] for kind in ("elsewhere", "same mean", "line"))
    assert 0.05 < elsewhere["t=-2"].min() < elsewhere["t=-2"].max() < 0.31
    assert 2.8 < elsewhere["t=0"].min() < elsewhere["t=0"].max() < 3.5
    assert 1.5 < elsewhere["t=-2, ramped"].min() < elsewhere["t=-2, ramped"].max() < 5.4
    assert (same["t=-2"] < same["t=0"]).sum() == 4
    assert (line["t=-2"] > 3).sum() == 3
    assert (line["t=-2, ramped"] > 3).all()


def test_saved_batches(saved: dict) -> None:
    for t in ("-0.5", "0.1"):
        last = {
            (share, batches): np.mean(saved["7.17"][f"t={t}, share {share}, {batches}"]["last"])
            for share in ("0.82", "0.1")
            for batches in ("one batch", "two batches")
        }
        assert last["0.82", "one batch"] > 5 * last["0.82", "two batches"]
        assert 1 / 3 < last["0.1", "one batch"] / last["0.1", "two batches"] < 3


def test_saved_noisy_labels(saved: dict) -> None:
    mean = {
        noise: {method: np.mean([one[method] for one in seeds]) for method in seeds[0]}
        for noise, seeds in saved["7.19"].items()
        if noise != "picture"
    }
    assert all(min(mean[noise].values()) > 0.98 for noise in ("20 %", "40 %"))
    expected = {"TERM": 0.984, "GCE": 0.967, "ERM": 0.956}
    assert mean["80 %"] == pytest.approx(expected, abs=6e-4)


def test_saved_path_of_three_functions(saved: dict) -> None:
    assert len(saved["7.2"]) == len(TABLE_2) + 1
    for t, (theta, least) in TABLE_2.items():
        assert saved["7.2"][f"t={t:g}"]["minimiser"] == pytest.approx(theta, abs=2e-6)
        assert saved["7.2"][f"t={t:g}"]["least"] == pytest.approx(least, abs=2e-6)


def test_saved_steps_grow_with_the_tilt(saved: dict) -> None:
    steps = {name: entry["steps"] for name, entry in saved["7.5"].items() if name != "picture"}
    rising = [steps[f"t={t}"] for t in (1, 5, 20, 100, 500)]
    assert rising == sorted(rising)
    assert rising[-1] > 100
    assert max(steps[f"t={t}"] for t in (-20, -5, -1)) <= 3


def test_saved_chernoff(saved: dict) -> None:
    expected = {
        "uniform on [0, 2]": [0.993753, 0.981280, 0.954792, 0.872154, 0.629017],
        "half normal": [0.991698, 0.974781, 0.938108, 0.830263, 0.664811],
    }
    for name, values in expected.items():
        bounds = list(saved["7.15"][name].values())
        assert [bound["either sign"] for bound in bounds] == pytest.approx(values, abs=2e-6)
        assert all(bound["true"] < bound["either sign"] < bound["classical"] for bound in bounds)


def test_the_page_names_each_figure_and_picture(saved: dict) -> None:
    page = (FOLDER / "toys.md").read_text(encoding="utf-8")
    for numbers in saved.values():
        assert f"(results/{Path(numbers['picture']).name})" in page
    named = set(re.findall(r"^\| (7\.\d+)", page, flags=re.MULTILINE))
    assert named == {f"7.{n}" for n in (*range(1, 9), *range(15, 20))}
