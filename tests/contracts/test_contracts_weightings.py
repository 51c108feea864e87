"""Every weighting of the package obeys the laws of the type, and a weighting that breaks one is caught."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.centralized import Weighed, Weighting
from evenhand.types import Array, Model, PyTree

C = eh.centralized
ROWS = 8
MODEL = eh.models.softmax_regression(features=3, classes=2)
PARAMS = MODEL.init(jax.random.key(4))
X = jax.random.normal(jax.random.key(0), (40, 3))
Y = (jnp.arange(40, dtype=jnp.int32) % 5 == 0).astype(jnp.int32)

WEIGHTINGS = {
    "inverse_ratio": C.inverse_ratio(),
    "hard_mine": C.hard_mine(),
    "hard_mine, a class": C.hard_mine(rare=1),
    "self_paced": C.self_paced(),
    "self_paced, no momentum": C.self_paced(50.0, momentum=0.0),
    "mentornet_pd": C.mentornet_pd(),
    "mentornet_pd, no drop-out": C.mentornet_pd(early_dropout=0.0, late_dropout=0.0),
    "random_weights": C.random_weights(),
    "learn_to_reweight": C.learn_to_reweight(X[:4], Y[:4]),
    "learn_to_reweight, from plain": C.learn_to_reweight(X[:4], Y[:4], step=0.1, kappa=0.1),
}
RANDOM = ("mentornet_pd", "random_weights")


def rows_of(number: int) -> tuple[Array, Array]:
    return X[ROWS * number : ROWS * (number + 1)], Y[ROWS * number : ROWS * (number + 1)]


def losses_of(x: Array, y: Array) -> Array:
    return MODEL.losses(MODEL.apply(PARAMS, x), y)


def seen(number: int = 0, *, progress: float = 0.5, seed: int = 0, losses: Array | None = None) -> Weighed:
    x, y = rows_of(number)
    losses = losses_of(x, y) if losses is None else losses
    share, key = jnp.float32(progress), jax.random.key(seed)
    return Weighed(PARAMS, x=x, y=y, losses=losses, progress=share, key=key)


Weigh = Callable[[PyTree, Weighed], tuple[Array, PyTree]]


@lru_cache(maxsize=1)  # the laws of a weighting share its program
def compiled(weighting: Weighting) -> tuple[Weigh, PyTree]:
    weigh = jax.jit(lambda state, batch: weighting.weigh(MODEL, state, batch))
    return weigh, weighting.init(MODEL, X, Y)


def run(weighting: Weighting, batches: list[Weighed]) -> list[np.ndarray]:
    """The weights of batches that come one after the other."""
    weigh, state = compiled(weighting)
    weights = []
    for batch in batches:
        newest, state = weigh(state, batch)
        weights.append(np.asarray(newest))
    return weights


# --- the laws -----------------------------------------------------------------------------------------------------


def weights_are_finite_and_nonnegative(weighting: Weighting) -> None:
    weigh, state = compiled(weighting)
    lists = (
        jnp.zeros(ROWS),
        jnp.ones(ROWS),
        1e30 * jnp.arange(ROWS, dtype=jnp.float32),
        1e-30 * jnp.arange(ROWS, dtype=jnp.float32),
        jnp.full(ROWS, 2.0).at[3].set(jnp.inf),
    )
    for progress in (0.0, 0.5, 0.95, 1.0):
        for losses in (None, *lists):
            weights, _ = weigh(state, seen(progress=progress, losses=losses))
            assert weights.shape == (ROWS,), "one weight per example"
            assert weights.dtype == jnp.float32, "weights are float32"
            assert bool(jnp.all(jnp.isfinite(weights))), "weights are finite"
            assert bool(jnp.all(weights >= 0)), "weights are nonnegative"


def the_state_is_closed(weighting: Weighting) -> None:
    weigh, state = compiled(weighting)
    before, after = (jax.eval_shape(lambda tree: tree, tree) for tree in (state, weigh(state, seen())[1]))
    assert jax.tree.structure(before) == jax.tree.structure(after), "the state keeps its tree"
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype), "the state keeps its shapes"


def keys_decide_the_draws(weighting: Weighting) -> None:
    weigh, state = compiled(weighting)
    results = [np.asarray(weigh(state, seen(progress=0.1, seed=seed))[0]) for seed in (0, 0, 1)]
    assert np.array_equal(results[0], results[1]), "the same key draws the same"
    eager, _ = weighting.weigh(MODEL, state, seen(progress=0.1))
    np.testing.assert_allclose(eager, results[0], rtol=1e-4, atol=1e-6, err_msg="compiled as not compiled")


def the_future_has_no_part(weighting: Weighting) -> None:
    """The weights of a batch are the same whatever comes after it."""
    first = [seen(number, progress=number / 5, seed=number) for number in range(5)]
    other = [*first[:3], seen(0, progress=0.9, seed=9), seen(2, progress=0.95, seed=8)]
    both = run(weighting, first), run(weighting, other)
    for ours, theirs in zip(both[0][:3], both[1][:3], strict=True):
        assert np.array_equal(ours, theirs), "the past decides"
    again = run(weighting, first)
    assert all(map(np.array_equal, both[0], again)), "nothing is kept outside the state"


def nothing_is_known_of_positions(weighting: Weighting) -> None:
    """Examples in another order have their weights in that order."""
    weigh, state = compiled(weighting)
    batch, order = seen(), jnp.array([3, 1, 7, 0, 2, 6, 5, 4])
    moved = batch._replace(x=batch.x[order], y=batch.y[order], losses=batch.losses[order])
    weights, shuffled = weigh(state, batch)[0], weigh(state, moved)[0]
    np.testing.assert_allclose(shuffled, weights[order], rtol=1e-4, atol=1e-6, err_msg="order")


def the_step_is_along_the_weighted_mean(weighting: Weighting) -> None:
    """Gradients of single examples, weighted and averaged; the gradient does not pass through the weights."""
    solver = C.weighted(MODEL, weighting, batch_size=None, optimiser=optax.sgd(1.0), steps=2)
    x, y = rows_of(1)
    state = solver.init(PARAMS, x, y)
    key = jax.random.key(5)
    moved = jax.jit(solver.step)(state, x, y, jnp.int32(1), key)

    batch = seen(1)._replace(key=jax.random.split(key, 3)[1])
    weights, _ = weighting.weigh(MODEL, weighting.init(MODEL, x, y), batch)
    gradients = jax.vmap(jax.grad(lambda params, x, y: losses_of_params(params, x, y)), (None, 0, 0))(
        PARAMS, x, y
    )
    for name, leaf in gradients.items():
        step = np.tensordot(np.asarray(weights), np.asarray(leaf), 1) / ROWS
        np.testing.assert_allclose(
            np.asarray(PARAMS[name] - moved.params[name]), step, rtol=1e-3, atol=1e-6, err_msg="the step"
        )


def losses_of_params(params: Any, x: Array, y: Array) -> Array:
    return MODEL.losses(MODEL.apply(params, x[None]), y[None])[0]


LAWS = [
    weights_are_finite_and_nonnegative,
    the_state_is_closed,
    keys_decide_the_draws,
    the_future_has_no_part,
    nothing_is_known_of_positions,
    the_step_is_along_the_weighted_mean,
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weightings_obey_the_laws(name: str, law: Callable[[Weighting], None]) -> None:
    """The oracle is the law."""
    if name in RANDOM and law is nothing_is_known_of_positions:
        with pytest.raises(AssertionError, match="order"):
            law(WEIGHTINGS[name])
    else:
        law(WEIGHTINGS[name])


def test_every_weighting_of_the_package_is_here() -> None:
    factories = {
        name
        for name in C.__all__
        if inspect.isfunction(vars(C)[name])
        and inspect.signature(vars(C)[name]).return_annotation == "Weighting"
    }
    assert factories == {name.split(",")[0] for name in WEIGHTINGS}
    for name, weighting in WEIGHTINGS.items():
        assert weighting.name.startswith(f"{name.split(',')[0]}("), "named like its factory"
        assert repr(weighting) == f"<Weighting {weighting.name}>"


@pytest.mark.parametrize(
    "name", ["inverse_ratio", "hard_mine", "self_paced", "mentornet_pd", "random_weights"]
)
def test_hyper_parameters_are_plain_numbers(name: str) -> None:
    """So an expression can make them, and the name is that expression."""
    factory = vars(C)[name]
    for parameter in inspect.signature(factory).parameters.values():
        assert parameter.annotation in ("float", "int | None"), parameter
    assert eval(factory().name, {name: factory}).name == factory().name


def test_names_tell_settings_apart() -> None:
    assert C.self_paced(60.0).name == "self_paced(percentile=60)"
    assert C.self_paced(60.0, momentum=0.9).name == "self_paced(percentile=60, momentum=0.9)"
    assert C.hard_mine(rare=3).name == "hard_mine(rare=3)"
    assert len({weighting.name for weighting in WEIGHTINGS.values()}) == len(WEIGHTINGS)


@pytest.mark.parametrize("name", RANDOM)
def test_other_seeds_draw_other_weights(name: str) -> None:
    weigh, state = compiled(WEIGHTINGS[name])
    weights = {np.asarray(weigh(state, seen(progress=0.1, seed=seed))[0]).tobytes() for seed in range(4)}
    assert len(weights) > 2


@pytest.mark.parametrize("name", [name for name in WEIGHTINGS if name not in RANDOM])
def test_weightings_without_draws_use_no_key(name: str) -> None:
    weigh, state = compiled(WEIGHTINGS[name])
    weights = {np.asarray(weigh(state, seen(progress=0.1, seed=seed))[0]).tobytes() for seed in range(4)}
    assert len(weights) == 1


# --- broken weightings --------------------------------------------------------------------------------------------


def broken(weigh: Callable[[Model, PyTree, Weighed], tuple[Array, PyTree]], state: Any = ()) -> Weighting:
    return Weighting(lambda model, x, y: state, weigh, "broken()")


_CALLS: list[int] = []


def _counting(batch: Weighed) -> Array:
    """Weights that depend on the calls before, outside the state."""

    def count() -> np.ndarray:
        _CALLS.append(1)
        return np.full(ROWS, len(_CALLS), np.float32)

    return jax.pure_callback(count, jax.ShapeDtypeStruct((ROWS,), jnp.float32))


@pytest.mark.parametrize(
    ("weighting", "law", "words"),
    [
        (
            broken(lambda model, state, batch: (batch.losses - 1.0, state)),
            weights_are_finite_and_nonnegative,
            "nonnegative",
        ),
        (
            broken(lambda model, state, batch: (batch.losses, state)),
            weights_are_finite_and_nonnegative,
            "finite",
        ),
        (
            broken(lambda model, state, batch: (jnp.ones(()), state)),
            weights_are_finite_and_nonnegative,
            "one weight",
        ),
        (
            broken(lambda model, state, batch: (batch.losses, batch.losses), jnp.float32(0.0)),
            the_state_is_closed,
            "shapes",
        ),
        (broken(lambda model, state, batch: (batch.losses, (state,))), the_state_is_closed, "tree"),
        (broken(lambda model, state, batch: (_counting(batch), state)), keys_decide_the_draws, "same key"),
        (broken(lambda model, state, batch: (_counting(batch), state)), the_future_has_no_part, "past"),
        (
            broken(lambda model, state, batch: (jnp.arange(8, dtype=jnp.float32), state)),
            nothing_is_known_of_positions,
            "order",
        ),
    ],
)
def test_a_broken_weighting_is_caught(weighting: Weighting, law: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        law(weighting)


def test_steps_through_the_weights_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights that are differentiated, too, the law of the step fails."""
    monkeypatch.setattr("evenhand.centralized._fit.lax.stop_gradient", lambda values: values)
    with pytest.raises(AssertionError, match="the step"):
        the_step_is_along_the_weighted_mean(
            broken(lambda model, state, batch: (batch.losses, state)),
        )
