"""Robust aggregators in federated rounds: they keep a model that learns where the mean collapses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_digits

import evenhand as eh
from evenhand import aggregators as agg
from evenhand import attacks
from evenhand.errors import EvenhandWarning

CLIENTS, NUMBERS = 20, 650
_X, _Y = load_digits(return_X_y=True)
DATA = eh.data.from_arrays((_X / 16).astype(np.float32), _Y, np.arange(len(_Y)) % CLIENTS, seed=0)
WORK = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.2, steps=5, batch_size=8)
HOW: dict[str, Any] = {"rounds": 12, "seed": 1, "eval_every": 12, "lanes": 2, "devices": 1}
FAR = attacks.gaussian(0.45, std=1e6 / np.sqrt(NUMBERS))


def trained(aggregator: Any, attack: Any) -> eh.Run:
    return eh.simulate(eh.algorithms.fedavg(WORK, aggregator=aggregator), DATA, attack=attack, **HOW)


@pytest.mark.parametrize(
    "aggregator",
    [
        pytest.param(agg.geometric_median(), id="geometric_median"),
        pytest.param(agg.coordinate_median(), id="median"),
        pytest.param(agg.trimmed_mean(0.45), id="trimmed_mean"),
        pytest.param(agg.krum(8), id="krum"),  # whose guarantee ends there, with 20 uploads
        pytest.param(agg.caf(9), id="caf"),
    ],
)
def test_updates_of_norm_a_million_from_almost_half_of_the_clients_do_not_stop_learning(
    aggregator: Any,
) -> None:
    run = trained(aggregator, FAR)
    loss = run.history["train_loss"]
    assert np.isfinite(loss).all() and loss[-1] < 0.7 * loss[0], loss
    assert run.malicious.sum() == 9 and run.per_round["rejected"].sum() == 0
    assert run.summary(who="honest")["mean"] > 0.7


def test_they_stop_the_mean_and_a_median_that_begins_at_it() -> None:
    for aggregator in (agg.mean(), agg.geometric_median(3, start="mean")):
        with pytest.warns(EvenhandWarning, match="diverged"):
            run = trained(aggregator, FAR)
        assert not run.history["train_loss"][-1] < 100


def test_uploads_that_are_not_numbers_are_left_out_and_counted() -> None:
    with pytest.warns(EvenhandWarning, match="rejected"):
        run = trained(agg.geometric_median(), attacks.non_finite(0.3))
    loss = run.history["train_loss"]
    assert loss[-1] < 0.7 * loss[0] and set(run.per_round["rejected"].tolist()) == {6.0}


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_krum_chooses_exactly_among_small_updates_of_many_parameters(size: int, thorough: bool) -> None:
    """Updates of 1e-4 of the weights, nearly parallel: in float32, products around 0 lose what tells them apart."""
    if size > 20_000 and not thorough:
        pytest.skip("minutes; with --thorough")
    choose, wrong = jax.jit(lambda x: agg.aggregate(agg.krum(3), x)), 0
    for trial in range(100):
        rng = np.random.default_rng(trial)
        common = 1e-4 * rng.normal(size=size)
        x = (common + 1e-8 * (1 + np.arange(10))[:, None] * rng.normal(size=(10, size))).astype(np.float32)
        apart = (
            ((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1)
            if size < 100_000
            else np.array([[np.sum((a.astype(np.float64) - b) ** 2) for b in x] for a in x])
        )
        best = int(np.argmin(np.sort(apart, axis=1)[:, 1:6].sum(axis=1)))
        assert np.array_equal(choose(jnp.asarray(x)), x[best]), trial
        flat = x @ x.T
        squares = np.diag(flat)
        around_zero = np.maximum(squares[:, None] + squares[None] - 2 * flat, 0)
        np.fill_diagonal(around_zero, -1.0)
        wrong += int(np.argmin(np.sort(around_zero, axis=1)[:, 1:6].sum(axis=1))) != best
    assert wrong > 10, "such distances would be good enough"


# --- the geometric median against an independent minimiser ---------------------------------------------------------


def _cases() -> Any:
    rng = np.random.default_rng(9)
    for case in range(500):
        x, w = rng.normal(size=(9, 3)), rng.uniform(0.2, 3.0, 9)
        kind = case % 5
        if kind == 1:  # on a line; weights that are not equal make the median unique
            x = np.outer(rng.normal(size=9), rng.normal(size=3))
        if kind == 2:  # several at one place, some of which hold more than half of the weight
            x[: 2 + case % 4] = x[0]
        if kind == 3:
            x[:3] *= 10.0 ** rng.uniform(2, 6)
        if kind == 4:
            w[rng.integers(9)] = 20.0
        yield x, w


def test_the_geometric_median_is_the_minimiser_of_the_sum_of_distances() -> None:
    """Of a convex function: by Nelder and Mead from the best of the points, polished, and by its subgradient there."""
    xs, ws = (np.array(part) for part in zip(*_cases(), strict=True))

    def converged(x: Any, w: Any) -> Any:
        return agg.aggregate(agg.geometric_median(20_000, nu=1e-9), x, w)

    found = np.asarray(jax.jit(jax.vmap(converged))(xs.astype(np.float32), ws.astype(np.float32)), np.float64)
    for x, w, z in zip(xs, ws, found, strict=True):
        x = x.astype(np.float32).astype(np.float64)

        def total(at: np.ndarray, x: np.ndarray = x, w: np.ndarray = w) -> float:
            return float(w @ np.linalg.norm(x - at, axis=1))

        begin = min([*x, z], key=total)
        how = {"xatol": 1e-11, "fatol": 1e-13, "maxiter": 4000, "maxfev": 4000}
        best = minimize(total, begin, method="Nelder-Mead", options=how).x
        scale = max(1.0, float(np.median(np.linalg.norm(x, axis=1))))
        near = np.linalg.norm(best - z) <= 1e-5 * scale
        assert near or total(z) - total(best) <= 1e-6 * total(best) * 1e-1, (best, z, total(z) - total(best))


def test_a_coalition_acts_in_its_rounds_only_and_draws_anew_in_each() -> None:
    def collude(uploads: Any, malicious: Any, present: Any, key: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jnp.full_like(leaf, 1e3 + 100 * jax.random.normal(key)), uploads.delta
        )

    everybody = eh.types.Attack(clients=tuple(range(CLIENTS)), collude=collude)
    steps = []
    for attack in (everybody, attacks.during(everybody, first=2, last=3)):
        runs = eh.simulation.iterate(
            eh.algorithms.fedavg(WORK), DATA, attack=attack, **{**HOW, "rounds": 4, "eval_every": 1}
        )
        at = [float(jax.tree.leaves(run.params)[0].ravel()[0]) for run in runs]
        steps.append(np.diff(at))
    assert (steps[0] > 500).all() and len(set(np.round(steps[0], 2).tolist())) == 4, steps
    assert (np.abs(steps[1]) > 500).tolist() == [False, True, True, False], steps


def test_what_a_coalition_agrees_on_is_left_out_where_it_is_no_number() -> None:
    def collude(uploads: Any, malicious: Any, present: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), uploads.delta)

    attack = eh.types.Attack(clients=(1, 4), collude=collude)
    with pytest.warns(EvenhandWarning, match="rejected"):
        run = eh.simulate(eh.algorithms.fedavg(WORK), DATA, attack=attack, **{**HOW, "rounds": 2})
    assert run.per_round["rejected"].tolist() == [2.0, 2.0] and np.isfinite(run.history["train_loss"]).all()


def test_uploads_of_zeros_hold_a_median_from_zero_back_unless_nu_is_about_an_update() -> None:
    """Their weight is 1 / nu in the first pass; the median itself, of 80 % honest uploads, is not zero."""
    loss = {
        name: trained(rule, attacks.zero(0.2)).history["train_loss"]
        for name, rule in {
            "as in the paper": agg.geometric_median(),
            "from the mean": agg.geometric_median(start="mean"),
            "nu": agg.geometric_median(nu=0.05),
        }.items()
    }
    assert loss["as in the paper"][-1] > 0.95 * loss["as in the paper"][0]
    assert all(loss[name][-1] < 0.7 * loss[name][0] for name in ("from the mean", "nu")), loss
    assert np.isfinite(trained(agg.geometric_median(nu=0.05), FAR).history["train_loss"]).all()
