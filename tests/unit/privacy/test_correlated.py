"""Correlated noise against matrices in NumPy: what each round adds, what a sum carries, and what a client moves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.privacy import dp_ftrl, streamed_noise, toeplitz_noise, tree_noise
from evenhand.types import Release, Sum

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1)
N = DATA.num_clients


def streamed(correlated, fresh):
    """The noise of all rounds from independent noise ``(rounds, d)``, as a run computes it; in two leaves."""
    split = {
        "w": jnp.asarray(fresh[:, :2], jnp.float32).reshape(-1, 2, 1),
        "b": jnp.asarray(fresh[:, 2:], jnp.float32),
    }
    like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), split)

    def step(state, row):
        noise, state = correlated.step(row, state)
        return state, noise

    _, found = jax.lax.scan(step, correlated.init(like), split)
    return np.concatenate([np.asarray(found["w"]).reshape(len(fresh), -1), np.asarray(found["b"])], axis=1)


def square_root(rounds, bands=None):
    """Of the matrix that adds up rounds, with constant diagonals, which convolve with themselves to ones."""
    diagonals = np.zeros(rounds)
    diagonals[0] = 1.0
    for k in range(1, rounds):
        diagonals[k] = (1.0 - diagonals[1:k] @ diagonals[1:k][::-1]) / 2.0
    diagonals[rounds if bands is None else bands :] = 0.0
    return np.array([[diagonals[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])


def test_the_square_root_is_one():
    root = square_root(9)
    np.testing.assert_allclose(root @ root, np.tril(np.ones((9, 9))), atol=1e-12)


@pytest.mark.parametrize("bands", [None, 1, 3, 50])
@pytest.mark.parametrize("rounds", [1, 2, 13])
def test_toeplitz_noise_is_the_inverse_of_the_banded_square_root_times_fresh_noise(rounds, bands):
    fresh = np.random.default_rng(0).normal(size=(rounds, 5))
    correlated, matrix = toeplitz_noise(bands)(rounds), square_root(rounds, bands)
    np.testing.assert_allclose(
        streamed(correlated, fresh), np.linalg.solve(matrix, fresh), rtol=2e-5, atol=2e-5
    )
    assert correlated.sensitivity == pytest.approx(np.linalg.norm(matrix, axis=0).max(), rel=1e-12)
    assert bands != 1 or np.array_equal(streamed(correlated, fresh), fresh.astype(np.float32))


@pytest.mark.parametrize("rounds", [1, 6, 8])
def test_the_trees_noise_is_that_of_the_nodes_that_make_up_a_prefix(rounds):
    """Each node is a fresh row: that of the round at which it ends."""
    fresh = np.random.default_rng(0).normal(size=(rounds, 5))
    correlated = tree_noise()(rounds)
    prefixes = np.zeros((rounds, 5))
    for t in range(1, rounds + 1):
        end = 0
        for level in reversed(range(8)):
            if t >> level & 1:
                end += 1 << level
                prefixes[t - 1] += fresh[end - 1]
    np.testing.assert_allclose(np.cumsum(streamed(correlated, fresh), axis=0), prefixes, rtol=1e-4, atol=1e-5)
    assert correlated.sensitivity == pytest.approx(np.floor(np.log2(rounds) + 1) ** 0.5)


def test_at_equal_privacy_the_square_root_leaves_half_of_the_noise_of_the_tree():
    """The noise in the sum of 100 rounds over what hides a client: 2.53, 4.58 and 10 for independent noise."""
    fresh, left = np.eye(100, 105), {}
    for name, correlation in (
        ("root", toeplitz_noise()),
        ("tree", tree_noise()),
        ("none", toeplitz_noise(1)),
        ("bands", toeplitz_noise(10)),
    ):
        correlated = correlation(100)
        left[name] = np.linalg.norm(streamed(correlated, fresh).sum(axis=0)) * correlated.sensitivity
    assert left["root"] == pytest.approx(2.5314, abs=1e-3)
    assert left["tree"] == pytest.approx(21**0.5, abs=1e-3)
    assert left["none"] == pytest.approx(10.0, abs=1e-3)
    assert left["root"] < left["bands"] < left["none"]


class Matrix(NamedTuple):
    """A streaming matrix of one's own: each row is the fresh one minus half of the last."""

    init_multiply = staticmethod(lambda like: jax.tree.map(jnp.zeros_like, like))

    @staticmethod
    def multiply_next(row, last):
        found = jax.tree.map(lambda new, old: new - 0.5 * old, row, last)
        return found, row


def test_any_streaming_matrix_does_and_its_sensitivity_is_that_of_its_inverse():
    correlated = streamed_noise(Matrix())(4)
    whole = np.eye(4) - 0.5 * np.eye(4, k=-1)
    assert correlated.sensitivity == pytest.approx(
        np.linalg.norm(np.linalg.inv(whole), axis=0).max(), rel=1e-6
    )
    fresh = np.random.default_rng(0).normal(size=(4, 5))
    np.testing.assert_allclose(streamed(correlated, fresh), whole @ fresh, rtol=1e-5, atol=1e-6)


def test_the_sensitivity_is_that_of_a_column_where_rows_are_of_other_lengths():
    """Each round's fresh noise is divided by its number."""

    class Falling(NamedTuple):
        init_multiply = staticmethod(lambda like: (jnp.float32(1.0), jnp.zeros_like(like)))
        multiply_next = staticmethod(
            lambda row, state: (row / state[0] - 0.5 * state[1], (state[0] + 1.0, row))
        )

    whole = np.diag(1 / np.arange(1.0, 5.0)) - 0.5 * np.eye(4, k=-1)
    columns, lines = (np.linalg.norm(np.linalg.inv(whole), axis=axis).max() for axis in (0, 1))
    assert abs(columns / lines - 1) > 0.1
    assert streamed_noise(Falling())(4).sensitivity == pytest.approx(columns, rel=1e-6)


def test_a_matrix_without_an_inverse_is_refused():
    class Zero(NamedTuple):
        init_multiply = staticmethod(lambda like: ())
        multiply_next = staticmethod(lambda row, state: (0.0 * row, state))

    with pytest.raises(eh.EvenhandError, match="hides nothing"):
        streamed_noise(Zero())(3)
    with pytest.raises(eh.EvenhandError, match="bands"):
        toeplitz_noise(0)


def test_the_matrices_of_jax_privacy_fit():
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    coefficients = toeplitz.optimal_max_error_strategy_coefs(7)
    theirs, ours = streamed_noise(toeplitz.inverse_as_streaming_matrix(coefficients))(7), toeplitz_noise()(7)
    fresh = np.random.default_rng(0).normal(size=(7, 5))
    np.testing.assert_allclose(streamed(theirs, fresh), streamed(ours, fresh), rtol=1e-4, atol=1e-5)
    assert theirs.sensitivity == pytest.approx(ours.sensitivity, rel=1e-5)


@pytest.mark.parametrize("correlation", [toeplitz_noise(), toeplitz_noise(2), streamed_noise(Matrix())])
def test_dp_ftrl_takes_it_and_begins_anew_with_each_turn(correlation):
    turn = -(-N // 2)
    method = dp_ftrl(WORK, clip=0.5, noise_multiplier=2.0, cohort=2, clients=N, correlation=correlation)
    correlated = correlation(turn)
    assert method.privacy is not None
    assert method.privacy.releases(turn + 1) == (Release(2.0 / correlated.sensitivity, times=2),)
    rule = method.phases[0].aggregator
    assert isinstance(rule, Sum) and rule.release is not None
    assert rule.release.noise_multiplier == 2.0 / correlated.sensitivity
    like = jnp.zeros(5)
    state, found = rule.init(like, N), []
    for t in range(2 * turn):
        direction, state = rule.lower((like, jnp.float32(0)), state, jax.random.key(t % turn))
        found.append(np.asarray(direction))
    np.testing.assert_allclose(found[:turn], found[turn:], rtol=1e-6)
    independent = [
        0.5 * np.asarray(jax.random.normal(jax.random.split(jax.random.key(t), 1)[0], (5,)))
        for t in range(turn)
    ]
    flat = np.concatenate([np.asarray(independent), np.zeros((turn, 0))], axis=1)
    np.testing.assert_allclose(found[:turn], streamed(correlated, flat), rtol=1e-4, atol=1e-5)


def test_it_obeys_the_contract():
    method = dp_ftrl(WORK, clip=0.5, noise_multiplier=2.0, cohort=2, clients=N, correlation=toeplitz_noise(1))
    eh.testing.check_algorithm(method, cohort=2, rounds=2)
