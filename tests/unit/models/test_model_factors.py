"""Principal components, autoencoders and matrix factorisation against NumPy, and fair PCA's excess loss."""

from __future__ import annotations

import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenhand as eh
from evenhand import models
from evenhand.errors import EvenhandError

KEY = jax.random.key(3)
RNG = np.random.default_rng(2)


def size(model: eh.Model) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


# --- principal components -----------------------------------------------------------------------------------


def leading(x: np.ndarray, components: int) -> np.ndarray:
    """The eigenvectors of the largest eigenvalues of ``x^T x``."""
    return np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :components]


def test_pca_is_the_distance_to_the_projection_less_the_label() -> None:
    model = models.pca(6, components=2)
    basis, x = RNG.normal(size=(6, 2)), RNG.normal(size=(5, 3, 2))  # not orthonormal
    y = RNG.normal(size=5)
    rows = x.reshape(5, 6)
    errors = np.square(rows - rows @ basis @ basis.T).sum(axis=1)
    params, labels = {"basis": jnp.asarray(basis, jnp.float32)}, jnp.asarray(y, jnp.float32)
    outputs = model.apply(params, jnp.asarray(x))
    np.testing.assert_allclose(outputs.output, rows @ basis @ basis.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs.example, rows, rtol=1e-6)
    np.testing.assert_allclose(model.losses(outputs, labels), errors - y, rtol=1e-4)
    np.testing.assert_allclose(model.losses(outputs, labels[:, None]), errors - y, rtol=1e-4)
    np.testing.assert_allclose(model.metrics["reconstruction_error"](outputs, labels), errors, rtol=1e-4)
    assert size(model) == 12
    for wrong in (labels[:4], jnp.zeros((5, 2))):
        with pytest.raises(EvenhandError, match="one label per row"):
            model.losses(outputs, wrong)


def test_pca_begins_orthonormal_and_with_all_components_makes_no_error() -> None:
    basis = np.asarray(models.pca(7, components=3).init(KEY)["basis"])
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-6)
    assert abs(basis - np.asarray(models.pca(7, components=3).init(jax.random.key(4))["basis"])).max() > 0.1
    whole, x = models.pca(4, components=4), jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    np.testing.assert_allclose(whole.losses(whole.apply(whole.init(KEY), x), jnp.zeros(3)), 0.0, atol=1e-10)
    with pytest.raises(EvenhandError, match="at most 4 components"):
        models.pca(4, components=5)


def test_the_mean_loss_of_a_group_is_fair_pcas_excess() -> None:
    x, components = RNG.normal(size=(40, 5)) * [3.0, 2.0, 1.0, 0.5, 0.1], 2
    groups = np.repeat([0, 1], [25, 15])
    x[groups == 1] = x[groups == 1][:, ::-1]
    model, y, optima = models.pca(5, components=components), np.zeros(40), []
    for group in (0, 1):
        own = x[groups == group]
        values = np.linalg.eigvalsh(own.T @ own)
        y[groups == group] = values[: 5 - components].sum() / len(own)  # what its best projection leaves
        optima.append(leading(own, components))
    labels, rows = jnp.asarray(y, jnp.float32), jnp.asarray(x, jnp.float32)
    for group in (0, 1):
        losses = np.asarray(
            model.losses(model.apply({"basis": jnp.asarray(optima[group], jnp.float32)}, rows), labels)
        )
        np.testing.assert_allclose(losses[groups == group].mean(), 0.0, atol=1e-5)
        assert losses[groups != group].mean() > 0.5
        assert losses.min() < 0.0  # of single examples


def test_descent_on_orthonormal_columns_ends_at_the_leading_eigenvectors() -> None:
    x = (RNG.normal(size=(60, 4)) * [2.0, 1.5, 0.7, 0.3]).astype(np.float32)
    model = models.pca(4, components=2)
    solver = eh.centralized.batch(
        model, eh.risks.tilted(0.0), optimiser=models.on_orthonormal(optax.sgd(0.05))
    )
    fitted = eh.centralized.fit(solver, x, np.zeros(60, np.float32), steps=600)
    basis, best = np.asarray(fitted.params["basis"]), leading(x, 2)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(basis @ basis.T, best @ best.T, atol=1e-3)
    plain = eh.centralized.batch(model, eh.risks.tilted(0.0), optimiser=optax.sgd(0.05))
    once = eh.centralized.fit(plain, x, np.zeros(60, np.float32), steps=1).params["basis"]
    assert abs(once.T @ once - np.eye(2)).max() > 1e-3


def test_the_papers_step_gives_the_subspace_of_half_the_step() -> None:
    """The authors descend along ``-S U``, and this model's gradient is ``-2 (I - U U^T) S U``."""
    x, step = RNG.normal(size=(30, 5)), 1e-4
    spread = x.T @ x / len(x)
    model, basis = models.pca(5, components=2), leading(RNG.normal(size=(9, 5)), 2)

    def loss(params: Any) -> Any:
        return jnp.mean(model.losses(model.apply(params, jnp.asarray(x, jnp.float32)), jnp.zeros(30)))

    gradient = np.asarray(jax.grad(loss)({"basis": jnp.asarray(basis, jnp.float32)})["basis"])
    np.testing.assert_allclose(
        gradient, -2 * (np.eye(5) - basis @ basis.T) @ spread @ basis, rtol=1e-4, atol=1e-5
    )
    theirs, ours = (np.linalg.qr(basis + step * d)[0] for d in (spread @ basis, -gradient / 2))
    moved = abs(theirs @ theirs.T - basis @ basis.T).max()
    assert abs(theirs @ theirs.T - ours @ ours.T).max() < 1e-2 * moved


@given(st.sampled_from([(3, 1), (3, 3), (5, 2)]), st.integers(0, 100))
def test_orthonormal_keeps_the_subspace_and_what_is_orthonormal(shape: tuple[int, int], seed: int) -> None:
    columns, matrix = shape[1], np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    once = np.asarray(models.orthonormal({"basis": jnp.asarray(matrix)})["basis"])
    np.testing.assert_allclose(once.T @ once, np.eye(columns), atol=1e-5)
    triangle = once.T @ matrix
    np.testing.assert_allclose(once @ triangle, matrix, atol=1e-5)
    np.testing.assert_allclose(np.tril(triangle, -1), 0.0, atol=1e-5)
    assert (np.diag(triangle) > 0).all()
    again = np.asarray(models.orthonormal({"basis": jnp.asarray(once)})["basis"])
    np.testing.assert_allclose(again, once, atol=1e-5)


def test_a_step_on_orthonormal_columns_keeps_the_optimisers_state() -> None:
    params = models.pca(4, components=2).init(KEY)
    plain, kept = optax.trace(0.9), models.on_orthonormal(optax.trace(0.9))
    gradient, state = {"basis": jnp.ones((4, 2))}, plain.init(params)
    updates, after = plain.update(gradient, state, params)
    found, kept_after = kept.update(gradient, kept.init(params), params)
    expected = models.orthonormal(optax.apply_updates(params, updates))
    moved = cast(Any, optax.apply_updates(params, found))
    np.testing.assert_allclose(moved["basis"], expected["basis"], atol=1e-6)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), after, kept_after))
    with pytest.raises(EvenhandError, match="needs the parameters"):
        kept.update(gradient, state)


# --- autoencoders -------------------------------------------------------------------------------------------


def test_an_autoencoder_has_sigmoids_around_a_linear_code() -> None:
    model = models.autoencoder(6, widths=(5, 4, 2))
    params, x = model.init(KEY), RNG.random((3, 2, 3))
    assert [params[f"dense_{i}"]["kernel"].shape for i in range(6)] == [
        (6, 5),
        (5, 4),
        (4, 2),
        (2, 4),
        (4, 5),
        (5, 6),
    ]
    params = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32), params)
    rows = hidden = x.reshape(3, 6)
    for layer in range(6):
        hidden = hidden @ np.asarray(params[f"dense_{layer}"]["kernel"]) + np.asarray(
            params[f"dense_{layer}"]["bias"]
        )
        hidden = hidden if layer == 2 else 1 / (1 + np.exp(-hidden))
    outputs, labels = model.apply(params, jnp.asarray(x)), jnp.array([7, 1, 0])
    np.testing.assert_allclose(outputs.output, hidden, rtol=1e-4, atol=1e-5)
    expected = np.square(hidden - rows).mean(axis=1)
    np.testing.assert_allclose(model.losses(outputs, labels), expected, rtol=1e-4)
    np.testing.assert_allclose(model.metrics["squared_error"](outputs, labels), expected, rtol=1e-4)


def test_autoencoders_have_the_published_number_of_parameters() -> None:
    ends = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
    layers = sum((a + 1) * b for a, b in itertools.pairwise(ends))
    assert size(models.autoencoder(784)) == layers == 2_837_314
    assert size(models.autoencoder(3, widths=(2,))) == (3 + 1) * 2 + (2 + 1) * 3
    for wrong in ((), 30):
        with pytest.raises(EvenhandError, match="the code last"):
            models.autoencoder(784, widths=wrong)  # pyright: ignore[reportArgumentType]


def test_the_initial_values_of_factors_have_not_changed() -> None:
    # The numbers date from before these models came from the experiments.
    kernel = models.autoencoder(784, widths=(24, 8)).init(jax.random.key(7))["dense_0"]["kernel"]
    factors = models.matrix_factorisation(943, 1682).init(jax.random.key(7))
    np.testing.assert_allclose(kernel[0, :2], [-0.013208087533712387, -0.013599863275885582], rtol=1e-6)
    np.testing.assert_allclose(
        factors["users"][0, :2], [0.010392467491328716, 0.001351466285996139], rtol=1e-6
    )
    np.testing.assert_allclose(
        factors["items"][-1, -2:], [-0.0005687215598300099, 0.00955346692353487], rtol=1e-6
    )


# --- matrix factorisation -----------------------------------------------------------------------------------


def test_a_rating_is_the_product_of_two_rows() -> None:
    model = models.matrix_factorisation(4, 3, dimension=5)
    users, items = RNG.normal(size=(4, 5)), RNG.normal(size=(3, 5))
    params = {"users": jnp.asarray(users, jnp.float32), "items": jnp.asarray(items, jnp.float32)}
    x, y = np.array([[0, 2], [3, 0], [1, 1]]), np.array([1.0, 5.0, 3.0])
    table = users @ items.T
    ratings = np.array([table[0, 2], table[3, 0], table[1, 1]])
    outputs, labels = model.apply(params, jnp.asarray(x)), jnp.asarray(y, jnp.float32)
    np.testing.assert_allclose(outputs, ratings, rtol=1e-5)
    np.testing.assert_allclose(model.losses(outputs, labels), 0.5 * (ratings - y) ** 2, rtol=1e-5)
    np.testing.assert_allclose(model.metrics["squared_error"](outputs, labels), (ratings - y) ** 2, rtol=1e-5)
    for column in (model.losses, model.metrics["squared_error"]):
        np.testing.assert_array_equal(column(outputs, labels[:, None]), column(outputs, labels))
    assert size(model) == 7 * 5
    beyond = model.apply(params, jnp.array([[4, 0], [0, 3], [-1, 0], [0, -1], [0, 0]]))
    assert np.isnan(beyond).tolist() == [True, True, True, True, False]
    for wrong in (jnp.zeros((2, 3), jnp.int32), jnp.zeros((2, 2))):
        with pytest.raises(EvenhandError, match="a user and an item"):
            model.apply(params, wrong)


def test_factors_begin_small() -> None:
    factors = models.matrix_factorisation(200, 100, dimension=50).init(KEY)
    for leaf in factors.values():
        np.testing.assert_allclose(leaf.std(), 0.00880, atol=2e-4)
        assert abs(leaf).max() <= 0.02
    assert abs(factors["users"][:100] - factors["items"]).max() > 0.01
