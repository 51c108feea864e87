"""Risks of losses that are computed in the same compiled program, many at a time, as local work does.

XLA may compute a loss anew wherever it is used, and round it differently each time.  This must not affect risks that
compare losses with each other (a quantile, a rank, a maximum).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evenhand import local, risks
from evenhand.models import from_functions
from evenhand.types import Array, ClientData, Risk

_ROWS = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
_GROUPS = jnp.array([0, 0, 1, 1, 2, 2, 2])
RISKS: dict[str, Risk] = {
    "mean": risks.mean(),
    "power": risks.power(0.5),
    "mixture": risks.mixture(jnp.arange(1.0, 8.0)),
    "tilted": risks.tilted(2.0),
    "tilted, inf": risks.tilted(float("inf")),
    "tilted, -inf": risks.tilted(-float("inf")),
    "superquantile": risks.superquantile(0.45),
    "inverse_superquantile": risks.inverse_superquantile(0.3),
    "smoothed_superquantile": risks.smoothed_superquantile(0.5, 0.4),
    "squared_superquantile": risks.squared_superquantile(0.5, 1.0),
    "chi_square_ball": risks.chi_square_ball(0.3),
    "human_risk": risks.human_risk(0.4, 0.3),
    "value_at_risk": risks.value_at_risk(0.5),
    "kth_smallest": risks.kth_smallest(3),
    "tail_mean": risks.tail_mean(0.5),
    "tail_mean, strict": risks.tail_mean(0.5, strict=True),
    "entropic_value_at_risk": risks.entropic_value_at_risk(0.5),
    "tilted_value_at_risk": risks.tilted_value_at_risk(0.4, floor=-20.0),
    "hierarchical": risks.hierarchical(risks.superquantile(0.5), risks.tail_mean(0.7), _GROUPS, 3),
}
_POINTS = jnp.linspace(-3.0, 3.2, 100)


def losses_at(u: Array) -> Array:
    return jnp.asarray(_ROWS[:, 0]) * jnp.cos(u) + jnp.asarray(_ROWS[:, 1]) * jnp.exp(0.1 * u) + 0.05 * u * u


@pytest.mark.parametrize("name", RISKS)
def test_weights_values_and_gradients_are_those_of_losses_computed_before(name: str) -> None:
    risk = RISKS[name]
    losses, slopes = jax.jit(lambda u: jax.vmap(lambda u: jax.jvp(losses_at, (u,), (1.0,)))(u))(_POINTS)
    weights, values = (np.array(jax.jit(jax.vmap(part))(losses)) for part in (risk.weights, risk.value))
    length = np.array(jax.jit(jax.vmap(jax.grad(risk.value)))(losses))
    fused = [
        np.array(jax.jit(jax.vmap(part))(_POINTS))
        for part in (
            lambda u: risk.weights(losses_at(u)),
            lambda u: risk.value(losses_at(u)),
            jax.grad(lambda u: risk.value(losses_at(u))),
        )
    ]
    for found, expected in zip(
        fused, (weights, values, np.sum(length * np.array(slopes), axis=1)), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=2e-4)


def test_descent_on_a_risk_is_the_same_alone_and_side_by_side() -> None:
    waves = from_functions(
        init=lambda key: jnp.float32(0.0),
        apply=lambda w, x: x[:, 0] * jnp.cos(w) + x[:, 1] * jnp.exp(0.1 * w) + 0.05 * w * w,
        losses=lambda outputs, y: outputs,
    )
    data = ClientData(jnp.asarray(_ROWS), jnp.zeros(7), jnp.int32(0), jnp.int32(7), jnp.float32(1.0), 7)
    work = local.sgd(waves, 0.02, steps=20, risk=RISKS["smoothed_superquantile"])

    def end(start: Array) -> Array:
        return work.solve(start, data, jax.random.key(0), local.proximal(2.0, start))[0]

    together = np.array(jax.jit(jax.vmap(end))(_POINTS[::10]))
    np.testing.assert_allclose(together, [float(jax.jit(end)(start)) for start in _POINTS[::10]], atol=1e-5)


def test_no_risk_is_missing() -> None:
    assert {name.partition(",")[0] for name in RISKS} == set(risks.__all__) - {"project_simplex"}
