"""MOCHA against independent support vector machines and its own duality gap.

With ``Sigma = I / K`` the clients do not meet: client ``k`` minimises
``mean_i max(0, 1 - y_i x_i w) + (lam K / 2) |w|^2``, a support vector machine that SciPy solves in its
dual variables.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg, optimize

import evenhand as eh
from evenhand.personalization import mocha

LAM, CLIENTS = 0.05, 3


def federation(sizes: tuple[int, ...] = (12, 30, 21)) -> eh.data.FederatedDataset:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), 4))
    truth = rng.normal(size=4) + 0.7 * rng.normal(size=(len(sizes), 4))
    y = (np.sum(x * truth[client], axis=1) + 0.3 * rng.normal(size=len(client)) > 0).astype(int)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    split = eh.data.Split(x, y, offsets)
    return eh.data.FederatedDataset(
        split, eh.data.Split(x[:0], y[:0], 0 * offsets), split, tuple("abcdef"[: len(sizes)])
    )


DATA = federation()


def signs(k: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = DATA.train.client(k)
    return np.asarray(x, np.float64), np.where(y == 1, 1.0, -1.0)


def alone(k: int) -> tuple[np.ndarray, float]:
    """The support vector machine of one client, and its objective, by SciPy on the dual problem."""
    x, y = signs(k)
    scale = LAM * CLIENTS

    def negative_dual(beta: np.ndarray) -> float:
        w = x.T @ (beta * y) / (scale * len(y))
        return float(scale / 2 * w @ w - beta.mean())

    start = np.full(len(y), 0.5)
    beta = optimize.minimize(
        negative_dual,
        start,
        bounds=[(0, 1)] * len(y),
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-10},
    ).x
    w = x.T @ (beta * y) / (scale * len(y))
    return w, float(np.maximum(0, 1 - y * (x @ w)).mean() + scale / 2 * w @ w)


def test_without_relations_each_client_solves_its_own_machine() -> None:
    found = mocha(DATA.train, lam=LAM, outer=0, inner=400)
    solved = [alone(k) for k in range(CLIENTS)]
    assert found.primal[-1] == pytest.approx(sum(value for _, value in solved), rel=1e-4)
    np.testing.assert_allclose(found.weights, [w for w, _ in solved], atol=5e-3)
    np.testing.assert_allclose(found.relations, np.eye(CLIENTS) / CLIENTS)


def test_the_dual_rises_to_the_primal_for_fixed_relations() -> None:
    found = mocha(DATA.train, lam=LAM, outer=1, inner=300)
    for part in (slice(0, 300), slice(300, 600)):
        primal, dual = found.primal[part], found.dual[part]
        assert (np.diff(dual) > -1e-5).all()
        assert (primal - dual > -1e-5).all()
        assert primal[-1] - dual[-1] < 2e-3 * primal[-1] < primal[0] - dual[0]


def test_relations_are_the_root_of_the_models_products() -> None:
    before, after = (mocha(DATA.train, lam=LAM, outer=outer, inner=40) for outer in (0, 1))
    root = np.real(linalg.sqrtm(before.weights.astype(np.float64) @ before.weights.T))
    np.testing.assert_allclose(after.relations, root / np.trace(root), atol=1e-3)
    assert np.abs(after.relations - before.relations).max() > 0.05


def test_the_primal_is_that_of_the_weights() -> None:
    found = mocha(DATA.train, lam=LAM, outer=2, inner=30)
    w = found.weights.astype(np.float64)
    losses = [np.maximum(0, 1 - y * (x @ w[k])).mean() for k in range(CLIENTS) for x, y in [signs(k)]]
    penalty = LAM / 2 * np.trace(w.T @ np.linalg.inv(found.relations.astype(np.float64)) @ w)
    assert found.primal[-1] == pytest.approx(sum(losses) + penalty, rel=1e-3)


def test_shares_and_seeds_count() -> None:
    short, long, other = (
        mocha(DATA.train, lam=LAM, outer=0, inner=1, share=share, seed=seed).dual[-1]
        for share, seed in ((0.1, 0), (3.0, 0), (0.1, 1))
    )
    assert long > short != other


def test_accuracy_counts_zero_scores_as_wrong() -> None:
    found = mocha(DATA.train, lam=LAM, outer=1, inner=50)
    expected = [np.mean(y * (x @ found.weights[k]) > 0) for k in range(CLIENTS) for x, y in [signs(k)]]
    np.testing.assert_allclose(found.accuracy(DATA.test), expected)
    assert (found._replace(weights=0 * found.weights).accuracy(DATA.test) == 0).all()
    assert np.isnan(found.accuracy(DATA.valid)).all()


@pytest.mark.parametrize("how", [{"lam": 0.0}, {"lam": 1.0, "share": 0.0}, {"lam": 1.0, "inner": 0}])
def test_numbers_out_of_range_are_refused(how: dict[str, float]) -> None:
    with pytest.raises(eh.errors.EvenhandError):
        mocha(DATA.train, **how)  # pyright: ignore[reportArgumentType]


def test_more_than_two_classes_are_refused() -> None:
    with pytest.raises(eh.errors.EvenhandError, match="two classes"):
        mocha(eh.data.synthetic(clients=3).train, lam=1.0)
