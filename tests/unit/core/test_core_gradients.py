"""Full passes over a client's rows, and what methods add to its gradients."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import local
from evenhand.types import Array, ClientData, Key, Model, Params

_CAPACITY, _START = 1100, 7
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(_START + _CAPACITY + 9, 3)).astype(np.float32)
_Y = _RNG.normal(size=len(_X)).astype(np.float32)
_MODEL = Model(
    init=lambda key: {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.float32(0.3)},
    apply=lambda params, x: x @ params["w"] + params["b"][None],
    losses=lambda outputs, y: (outputs - y) ** 2,
    metrics={},
)
_PARAMS = _MODEL.init(jax.random.key(0))


@jax.jit
def _passes(x: Array, y: Array, size: Array) -> tuple[Array, Params]:
    data = ClientData(x, y, jnp.int32(_START), size, jnp.float32(1.0), _CAPACITY)
    return local.full_loss(_MODEL, _PARAMS, data), local.full_gradient(_MODEL, _PARAMS, data)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1024, 1100])
def test_passes_equal_numpy(size: int) -> None:
    x, y = np.full_like(_X, np.nan), np.full_like(_Y, np.nan)
    window = slice(_START, _START + size)
    x[window], y[window] = _X[window], _Y[window]
    loss, gradient = _passes(jnp.asarray(x), jnp.asarray(y), jnp.int32(size))
    residual = _X[window].astype(np.float64) @ [0.5, -1.0, 2.0] + 0.3 - _Y[window]
    assert float(loss) == pytest.approx(np.mean(residual**2), rel=1e-5)
    np.testing.assert_allclose(gradient["w"], 2 * _X[window].T @ residual / size, rtol=1e-4, atol=1e-5)
    assert float(gradient["b"]) == pytest.approx(2 * residual.mean(), rel=1e-4)


def test_the_last_row_counts() -> None:
    before = _passes(jnp.asarray(_X), jnp.asarray(_Y), jnp.int32(513))[0]
    y = _Y.copy()
    y[_START + 512] += 100.0
    y[_START + 513] = np.nan
    after = _passes(jnp.asarray(_X), jnp.asarray(y), jnp.int32(513))[0]
    assert float(after) - float(before) > 10.0


def test_a_training_pass_needs_a_key() -> None:
    noisy = _MODEL._replace(
        apply_train=lambda params, x, key: _MODEL.apply(params, x) + jax.random.normal(key)
    )
    data = ClientData(
        jnp.asarray(_X), jnp.asarray(_Y), jnp.int32(_START), jnp.int32(1100), jnp.float32(1.0), _CAPACITY
    )

    @jax.jit
    def gradients(key: Key) -> tuple[Params, Params, Params]:
        plain = local.full_gradient(noisy, _PARAMS, data)
        return (
            plain,
            local.full_gradient(noisy, _PARAMS, data, key),
            local.full_gradient(_MODEL, _PARAMS, data, key),
        )

    plain, trained, keyless = gradients(jax.random.key(1))
    exact = _passes(jnp.asarray(_X), jnp.asarray(_Y), jnp.int32(1100))[1]
    assert float(plain["b"]) == pytest.approx(float(exact["b"]), rel=1e-5)
    assert float(keyless["b"]) == pytest.approx(float(exact["b"]), rel=1e-5)
    assert abs(float(trained["b"]) - float(exact["b"])) > 1e-2
    assert float(gradients(jax.random.key(2))[1]["b"]) != float(trained["b"])


def test_slices_of_a_training_pass_have_different_keys() -> None:
    size = 600
    telltale = Model(
        init=lambda key: jnp.zeros(size),
        apply=lambda w, x: w[x],
        losses=lambda outputs, y: outputs,
        metrics={},
        apply_train=lambda w, x, key: w[x] * jax.random.uniform(key),
    )
    rows = jnp.arange(size)
    data = ClientData(rows, rows, jnp.int32(0), jnp.int32(size), jnp.float32(1.0), size)
    gradient = np.asarray(local.full_gradient(telltale, jnp.zeros(size), data, jax.random.key(0)))
    assert len(set(gradient[:512].tolist())) == 1
    assert len(set(gradient.tolist())) == 2


# --- corrections -------------------------------------------------------------------------------------------------


def _leaves(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "bias": jnp.asarray(rng.normal(size=3), jnp.float32),
        "layer": {
            "table": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32),
            "scale": jnp.float32(rng.normal()),
        },
    }


def _apply(correction: optax.GradientTransformation, grads: Any, params: Any) -> Any:
    return correction.update(grads, correction.init(params), params)[0]


def test_proximal_adds_mu_times_the_distance_on_every_leaf() -> None:
    grads, params, anchor = _leaves(0), _leaves(1), _leaves(2)
    pulled = _apply(local.proximal(0.7, anchor), grads, params)
    assert jax.tree.structure(pulled) == jax.tree.structure(grads)
    for p, g, w, a in zip(*map(jax.tree.leaves, (pulled, grads, params, anchor)), strict=True):
        np.testing.assert_allclose(p, g + 0.7 * (w - a), rtol=1e-5, atol=1e-6)
        assert np.abs(p - (g + 2 * 0.7 * (w - a))).max() > 1e-2, "mu, not 2 mu"


def test_proximal_is_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    params, anchor = _leaves(1), _leaves(2)

    def penalty(params: Any) -> Any:
        squares = jax.tree.map(lambda w, a: jnp.sum((w - a) ** 2), params, anchor)
        return 0.5 * 0.7 * sum(jax.tree.leaves(squares), jnp.float32(0.0))

    zeros = jax.tree.map(jnp.zeros_like, params)
    pulled = _apply(local.proximal(0.7, anchor), zeros, params)
    for p, g in zip(jax.tree.leaves(pulled), jax.tree.leaves(jax.grad(penalty)(params)), strict=True):
        np.testing.assert_allclose(p, g, rtol=1e-5)


def test_proximal_at_the_anchor_and_with_mu_zero_changes_no_bit() -> None:
    grads, params, anchor = _leaves(0), _leaves(1), _leaves(2)
    for correction, at in ((local.proximal(0.7, anchor), anchor), (local.proximal(0.0, anchor), params)):
        for p, g in zip(jax.tree.leaves(_apply(correction, grads, at)), jax.tree.leaves(grads), strict=True):
            assert np.array_equal(p, g)


def test_proximal_takes_a_traced_mu() -> None:
    grads, params, anchor = _leaves(0), _leaves(1), _leaves(2)
    traced = jax.jit(lambda mu: _apply(local.proximal(mu, anchor), grads, params))(jnp.float32(0.7))
    fixed = _apply(local.proximal(0.7, anchor), grads, params)
    for a, b in zip(jax.tree.leaves(traced), jax.tree.leaves(fixed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_shift_adds_the_same_everywhere() -> None:
    grads, offset = _leaves(0), _leaves(1)
    for at in (_leaves(2), _leaves(3)):
        shifted = _apply(local.shift(offset), grads, at)
        for s, g, o in zip(*map(jax.tree.leaves, (shifted, grads, offset)), strict=True):
            assert np.array_equal(s, g + o)


def test_mean_gradient_keeps_the_mean_and_passes_gradients_on() -> None:
    correction = cast(Any, local.mean_gradient())
    state = correction.init(_leaves(0))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.mean))
    for seed in range(5):
        passed, state = correction.update(_leaves(seed), state, None)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), passed, _leaves(seed)))
    assert int(state.seen) == 5
    stacks = [
        np.stack(leaves) for leaves in zip(*(jax.tree.leaves(_leaves(s)) for s in range(5)), strict=True)
    ]
    for mean, stack in zip(jax.tree.leaves(state.mean), stacks, strict=True):
        np.testing.assert_allclose(mean, stack.mean(axis=0), rtol=1e-5, atol=1e-6)
        assert np.abs(np.asarray(mean) - stack[-1]).max() > 1e-2


def test_corrections_see_the_order_of_the_chain() -> None:
    # SCAFFOLD records the gradient of the loss before anything is added to it.
    grads, offset = _leaves(0), _leaves(1)
    chain = cast(Any, optax.chain(local.mean_gradient(), local.shift(offset)))
    _, (seen, _) = chain.update(grads, chain.init(grads), grads)
    assert np.array_equal(seen.mean["bias"], grads["bias"])


# --- solvers that users write ------------------------------------------------------------------------------------

_QUADRATIC = Model(
    init=lambda key: jnp.array([3.0, -2.0]),
    apply=lambda w, x: 0.5 * jnp.sum(x[:, 0] * (w[None] - x[:, 1]) ** 2, axis=1),
    losses=lambda outputs, y: outputs,
    metrics={},
)


def _newton(params: Array, data: ClientData, key: Key, correction: Any) -> Any:
    """Minimises a quadratic with a diagonal Hessian, whatever affine correction there is, from two gradients."""
    state = correction.init(params)
    slope, state = correction.update(local.full_gradient(_QUADRATIC, params, data), state, params)
    further, state = correction.update(
        local.full_gradient(_QUADRATIC, params + 1.0, data), state, params + 1.0
    )
    return params - slope / (further - slope), state


_CURVATURE = _RNG.uniform(0.5, 3.0, size=(9, 2))
_CENTRE = _RNG.normal(size=(9, 2))


def _quadratic_clients() -> eh.data.FederatedDataset:
    rows = np.stack([_CURVATURE, _CENTRE], axis=1).astype(np.float32)
    train = eh.data.Split(rows, np.zeros(9, np.float32), np.array([0, 2, 9]))
    none = eh.data.Split(rows[:0], np.zeros(0, np.float32), np.array([0, 0, 0]))
    return eh.data.FederatedDataset(train, none, none, ("few", "many"))


def _exact_prox(mu: float, start: np.ndarray, rounds: int) -> np.ndarray:
    w = start
    for _ in range(rounds):
        solutions = []
        for members in (slice(0, 2), slice(2, 9)):
            a, ac = _CURVATURE[members].mean(axis=0), (_CURVATURE[members] * _CENTRE[members]).mean(axis=0)
            solutions.append((ac + mu * w) / (a + mu))
        w = (2 * solutions[0] + 7 * solutions[1]) / 9
    return w


@pytest.mark.parametrize("mu", [0.0, 1.5])
def test_a_solver_that_a_user_writes_solves_the_proximal_problem(mu: float) -> None:
    method = eh.algorithms.fedprox(eh.local.Work(_QUADRATIC, _newton), mu=mu)
    run = eh.simulate(method, _quadratic_clients(), rounds=3, eval_every=3)
    np.testing.assert_allclose(run.params, _exact_prox(mu, np.array([3.0, -2.0]), 3), rtol=1e-4, atol=1e-5)
    assert np.abs(_exact_prox(1.0, np.array([3.0, -2.0]), 3) - np.asarray(run.params)).max() > 1e-2
