"""Power means, mixtures and the projection onto the simplex, by hand and against their definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from risk_measures import measure, normal

import evenhand as eh
from evenhand.risks import mixture, power, project_simplex


@pytest.mark.parametrize(
    ("q", "value"),
    [(0.0, 1.1666667), (1.0, 1.3228757), (4.0, 1.6157001), (50.0, 1.9573779), (5000.0, 1.99956)],
)
def test_power_means_of_three_losses(q: float, value: float) -> None:
    """The numbers of the specification, and ``2 * 3 ** (-1 / 5001)`` for a power that would overflow."""
    for dtype in (np.float64, np.float32):
        found = measure(power(q), [2.0, 0.5, 1.0], dtype=dtype)
        assert float(found.value) == pytest.approx(value, rel=1e-6)
        np.testing.assert_allclose(
            found.weights, normal(np.array([2.0, 0.5, 1.0]) ** min(q, 900)), rtol=1e-4, atol=1e-30
        )


def test_power_means_of_any_losses() -> None:
    """The definition, on random weighted losses; the weights are the direction of the gradient."""
    rng = np.random.default_rng(0)
    f, p = rng.uniform(0.1, 3.0, (50, 6)), rng.uniform(0.1, 2.0, (50, 6))
    values = []
    for q in (0.0, 0.3, 2.0, 9.0):
        found = measure(power(q), f, p)
        np.testing.assert_allclose(
            found.value, np.sum(normal(p) * f ** (q + 1), axis=1) ** (1 / (q + 1)), rtol=1e-8
        )
        np.testing.assert_allclose(found.weights, normal(p * f**q), rtol=1e-8)
        np.testing.assert_allclose(normal(found.gradient), found.weights, rtol=1e-6)
        length = found.gradient.sum(axis=1)
        assert np.all(length <= 1 + 1e-9) and (q == 0 or length.min() < 0.99)
        values.append(found.value)
    assert np.all(np.diff(values, axis=0) > 0), "grows with the power"


def test_losses_of_zero_have_a_power() -> None:
    """The limit: no weight for a loss of 0, equal weights where all are 0."""
    found = measure(power(2.0), [0.0, 1.0, 2.0])
    np.testing.assert_allclose(found.weights, [0, 0.2, 0.8], atol=1e-9)
    assert np.isfinite(found.gradient).all()
    np.testing.assert_allclose(measure(power(2.0), [0.0, 0.0, 0.0]).weights, 1 / 3)


def test_wrong_powers_are_refused() -> None:
    """A sentence with the number."""
    for q in (-1.0, float("nan"), float("inf")):
        with pytest.raises(eh.EvenhandError, match=f"q={q}"):
            power(q)


def test_mixtures_are_means_with_their_shares() -> None:
    """By hand; of the weights that it is called with, only whether they are 0 counts."""
    risk = mixture(jnp.array([1.0, 3.0, 4.0]))
    found = measure(risk, [8.0, 1.0, 2.0], [9.0, 1.0, 1.0])
    assert float(found.value) == pytest.approx(19 / 8)
    np.testing.assert_allclose(found.gradient, [1 / 8, 3 / 8, 4 / 8])
    absent = measure(risk, [np.nan, 1.0, 2.0], [0.0, 1.0, 1.0])
    assert float(absent.value) == pytest.approx(11 / 7)
    for shares in ([1.0, -1.0], [0.0, 0.0], [np.nan, 1.0], [[1.0]]):
        with pytest.raises(eh.EvenhandError, match="shares"):
            mixture(jnp.array(shares))


@pytest.mark.parametrize(
    ("point", "nearest"),
    [
        ([0.5, 0.5], [0.5, 0.5]),
        ([1.2, 0.1], [1.0, 0.0]),
        ([0.4, 0.4, 0.4], [1 / 3, 1 / 3, 1 / 3]),
        ([2.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
        ([-1.0, -1.0], [0.5, 0.5]),
        ([0.9, 0.3, -0.2], [0.8, 0.2, 0.0]),
        ([0.5 + 0.1 * 2, 0.5 + 0.1 * 0.5], [0.575, 0.425]),
        ([0.5 + 2.0, 0.5 + 0.5], [1.0, 0.0]),
    ],
)
def test_projections_onto_the_simplex(point: list[float], nearest: list[float]) -> None:
    """The numbers of the specification, two steps of AFL among them."""
    np.testing.assert_allclose(project_simplex(jnp.array(point)), nearest, atol=1e-6)


def test_projections_satisfy_the_variational_inequality() -> None:
    """``(y - x) @ (e_i - x) <= 0`` for every vertex: what characterises the nearest point."""
    y = np.random.default_rng(1).normal(size=(200, 7))
    with jax.enable_x64(True):
        x = np.array(jax.jit(jax.vmap(project_simplex))(jnp.asarray(y)))
    np.testing.assert_allclose(x.sum(axis=1), 1.0, atol=1e-12)
    assert (x >= 0).all()
    assert np.max((y - x) - np.sum((y - x) * x, axis=1, keepdims=True)) <= 1e-12
