"""Server optimisers against the formulas of Reddi et al., algorithm 2, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.server_opt import fedadagrad, fedadam, fedavgm, fedyogi

_RATE, _B1, _B2, _TAU = 0.3, 0.8, 0.95, 0.05
_DELTAS = np.random.default_rng(0).normal(size=(6, 4)) * np.array([1.0, 0.1, 0.01, 3.0])


def _expected(second: Callable[[Any, Any], Any], b1: float) -> np.ndarray:
    w, m, v = np.zeros(4), np.zeros(4), np.full(4, _TAU**2)
    path = []
    for delta in _DELTAS:
        m = b1 * m + (1 - b1) * delta
        v = second(v, delta**2)
        w = w + _RATE * m / (np.sqrt(v) + _TAU)
        path.append(w)
    return np.array(path)


def _path(optimiser: optax.GradientTransformation) -> np.ndarray:
    """The server's parameters under the averaged changes ``_DELTAS``; their negative is the gradient."""
    params = {"w": jnp.zeros(4)}
    state = optimiser.init(params)
    path = []
    for delta in _DELTAS.astype(np.float32):
        updates, state = optimiser.update({"w": -jnp.asarray(delta)}, state, params)
        params = cast(Any, optax.apply_updates(params, updates))
        path.append(np.asarray(params["w"]))
    return np.array(path)


_CASES: dict[str, tuple[optax.GradientTransformation, Callable[[Any, Any], Any], float]] = {
    "fedadagrad": (fedadagrad(_RATE, b1=_B1, tau=_TAU), lambda v, s: v + s, _B1),
    "fedadagrad without momentum": (fedadagrad(_RATE, tau=_TAU), lambda v, s: v + s, 0.0),
    "fedadam": (fedadam(_RATE, b1=_B1, b2=_B2, tau=_TAU), lambda v, s: _B2 * v + (1 - _B2) * s, _B1),
    "fedyogi": (
        fedyogi(_RATE, b1=_B1, b2=_B2, tau=_TAU),
        lambda v, s: v - (1 - _B2) * s * np.sign(v - s),
        _B1,
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_each_optimiser_equals_its_formula(name: str) -> None:
    optimiser, second, b1 = _CASES[name]
    np.testing.assert_allclose(_path(optimiser), _expected(second, b1), rtol=2e-5)


@pytest.mark.parametrize("name", _CASES)
def test_the_formulas_differ_between_the_optimisers(name: str) -> None:
    for other, (_, second, b1) in _CASES.items():
        gap = np.abs(_path(_CASES[name][0]) - _expected(second, b1)).max()
        assert (gap > 1e-2) == (other != name)


def test_fedadam_is_not_adam() -> None:
    with jax.numpy_dtype_promotion("standard"):
        adam = _path(optax.adam(_RATE, b1=_B1, b2=_B2, eps=_TAU))
    assert np.abs(adam - _path(_CASES["fedadam"][0])).max() > 0.1


def test_defaults_are_those_of_the_paper() -> None:
    np.testing.assert_array_equal(_path(fedadam(_RATE)), _path(fedadam(_RATE, b1=0.9, b2=0.99, tau=1e-3)))
    np.testing.assert_array_equal(_path(fedyogi(_RATE)), _path(fedyogi(_RATE, b1=0.9, b2=0.99, tau=1e-3)))
    np.testing.assert_array_equal(_path(fedadagrad(_RATE)), _path(fedadagrad(_RATE, b1=0.0, tau=1e-3)))


def test_fedavgm_equals_its_formula() -> None:
    w, v, expected = np.zeros(4), np.zeros(4), []
    for delta in _DELTAS:
        v = 0.7 * v + delta
        w = w + _RATE * v
        expected.append(w)
    np.testing.assert_allclose(_path(fedavgm(_RATE, momentum=0.7)), np.array(expected), rtol=1e-5)
    assert np.abs(_path(fedavgm(_RATE, momentum=0.6)) - np.array(expected)).max() > 1e-2


@pytest.mark.parametrize("name", _CASES)
def test_moments_of_half_precision_are_in_float32(name: str) -> None:
    """Steps are those of float32, rounded."""
    optimiser, deltas = _CASES[name][0], jnp.asarray(_DELTAS, jnp.bfloat16)
    state, exact = (optimiser.init(jnp.zeros(4, kind)) for kind in (jnp.bfloat16, jnp.float32))
    for delta in deltas:
        step, state = optimiser.update(delta, state)
        wide, exact = optimiser.update(delta.astype(jnp.float32), exact)
        rounded = jnp.asarray(cast(Any, wide), jnp.bfloat16)
        assert cast(Any, step).dtype == jnp.bfloat16 and jnp.all(step == rounded)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: fedadam(0.0), "learning_rate"),
        (lambda: fedadam(float("nan")), "learning_rate"),
        (lambda: fedyogi(0.1, b1=1.0), "b1"),
        (lambda: fedadam(0.1, b2=-0.1), "b2"),
        (lambda: fedadagrad(0.1, tau=0.0), "tau"),
        (lambda: fedadagrad(0.1, tau=1e-46), "tau is 1e-46"),
        (lambda: fedadam(0.1, tau=float("inf")), "tau is inf"),
        (lambda: fedadam(cast(Any, "0.1")), "learning_rate is '0.1'"),
        (lambda: fedyogi(0.1, b1=cast(Any, None)), "is None"),
        (lambda: fedavgm(0.1, momentum=1.0), "momentum"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(eh.EvenhandError, match=word):
        make()
