"""The aggregators of the fair methods against the specifications' numbers and SciPy's solvers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import evenhand as eh
from evenhand.aggregators import (
    aggregate,
    ascending_mixture,
    drift_tilted,
    loss_powers,
    min_norm,
    qfedavg,
    reference_tilt,
    risk_weighted,
    running_tilt,
)
from evenhand.types import Aggregator, Cohort, Sum

ALL: dict[str, Aggregator] = {
    "worst half": risk_weighted(eh.risks.superquantile(0.5)),
    "tilted": risk_weighted(eh.risks.tilted(2.0)),
    "running tilt": running_tilt(1.0),
    "mixture": ascending_mixture(0.1),
    "drift": drift_tilted(0.7),
    "away from drift, solved": drift_tilted(-0.3, steps=30),
    "plain drift": drift_tilted(0.7, steps=5, distance="plain", start="mean"),
}
SHORTER: dict[str, Aggregator] = {
    "q 1": qfedavg(1.0, 10.0),
    "powers": loss_powers(2.0),
    "reference tilt": reference_tilt(1.0),
    "shortest": min_norm(0.5),
}


@pytest.mark.parametrize("name", ALL)
def test_aggregators_that_average_obey_the_contract(name: str) -> None:
    eh.testing.check_aggregator(ALL[name])


@pytest.mark.parametrize("name", SHORTER)
def test_aggregators_that_shorten_obey_the_contract(name: str) -> None:
    eh.testing.check_aggregator(SHORTER[name], keeps_consensus=False)
    with pytest.raises(AssertionError, match="agree"):
        eh.testing.check_aggregator(SHORTER[name])


@pytest.mark.parametrize("name", {**ALL, **SHORTER})
def test_a_client_with_an_invalid_upload_is_left_out(name: str) -> None:
    """If a loss, weight or delta is not finite, or a weight is below 0, the result is that of the other clients."""
    aggregator = {**ALL, **SHORTER}[name]
    deltas = jnp.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])
    losses = jnp.array([0.5, 2.0, 1.0])
    alone = aggregate(aggregator, deltas, losses=losses)
    invalid = [((jnp.nan, jnp.inf), 0.0, 1.0)]  # a loss of 0 has almost no weight in most
    if aggregator.needs_loss:
        bad_losses = [((9.0, 9.0), loss, 1.0) for loss in (jnp.nan, jnp.inf, -jnp.inf)]
        invalid = bad_losses
    if aggregator.needs_loss and name != "mixture":  # whose weights the server itself sets
        invalid = invalid + [((9.0, 9.0), 1.0, weight) for weight in (jnp.nan, jnp.inf, -5.0)]
    for delta, loss, weight in invalid:
        spoiled = jnp.concatenate([deltas, jnp.array([delta])])
        weights = jnp.array([1.0, 1.0, 1.0, weight])
        found = aggregate(aggregator, spoiled, weights=weights, losses=jnp.append(losses, loss))
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
    poisoned = jnp.concatenate([deltas, jnp.array([[jnp.nan, 1.0]])])
    assert jnp.all(jnp.isfinite(aggregate(aggregator, poisoned, losses=jnp.append(losses, 1.5))))
    honest = jnp.concatenate([deltas, jnp.array([[0.0, 1.0]])])
    with_it = aggregate(aggregator, honest, losses=jnp.append(losses, 3.0))
    assert float(jnp.max(jnp.abs(with_it - alone))) > 1e-3


@pytest.mark.parametrize(
    ("q", "after"),
    [
        (0, (1.05, 1.85)),
        (0.1, (1.02624184, 1.89350546)),
        (1, (0.95454545, 2.0)),
        (2, (0.91714286, 2.03428571)),
        (5, (0.91223176, 2.04377682)),
        (50, (0.98518519, 2.00740741)),
        (5000, (0.99984013, 2.00007994)),
    ],
)
def test_q_fedavg_makes_the_step_of_the_specification(q: float, after: tuple[float, float]) -> None:
    """T15: w = (1, 2), local models (.8, 2.1) and (1.3, 1.6), losses (2, .5), L = 10."""
    start = np.array([1.0, 2.0])
    deltas = jnp.asarray(np.array([[0.8, 2.1], [1.3, 1.6]]) - start, jnp.float32)
    step = eh.aggregators.aggregate(qfedavg(q, 10.0), deltas, losses=jnp.array([2.0, 0.5]))
    np.testing.assert_allclose(start + np.array(step), after, atol=2e-6)


@pytest.mark.parametrize(
    ("q", "after"), [(0, (0.95, 1.95)), (1, (0.93548387, 2.03225806)), (2, (0.92660550, 2.06422018))]
)
def test_q_fedsgd_makes_the_step_of_the_specification(q: float, after: tuple[float, float]) -> None:
    """T18: gradients (1, -1) and (0, 2), losses (2, .5), L = 10."""
    deltas = -jnp.array([[1.0, -1.0], [0.0, 2.0]]) / 10
    step = aggregate(qfedavg(q, 10.0), deltas, losses=jnp.array([2.0, 0.5]))
    np.testing.assert_allclose(np.array([1.0, 2.0]) + step, after, atol=2e-6)


def test_a_loss_below_zero_counts_as_zero_in_q_fedavg() -> None:
    deltas, honest = jnp.array([[-0.2, 0.1], [0.3, -0.4]]), jnp.array([2.0, 0.5])
    for make in (qfedavg(2.0, 10.0), loss_powers(2.0)):
        negative = aggregate(make, jnp.concatenate([deltas, deltas[:1]]), losses=jnp.append(honest, -1.0))
        zero = aggregate(make, jnp.concatenate([deltas, deltas[:1]]), losses=jnp.append(honest, 0.0))
        assert jnp.all(negative == zero) and jnp.any(negative != 0)


def test_no_finite_loss_breaks_the_mixture() -> None:
    """A false loss of 3e38 takes the whole mixture, whose sum stays 1; large honest losses are not rounded away."""
    aggregator = ascending_mixture(2.0)
    assert aggregator.weigh is not None
    report = eh.types.Report(jnp.ones(3), jnp.array([0.1, 3e38, 0.2]))
    _, state = aggregator.weigh(report, Cohort.of(jnp.arange(3)), aggregator.init(jnp.zeros(1), 3))
    np.testing.assert_allclose(jnp.sum(state), 1.0, atol=1e-6)
    report = report._replace(loss=jnp.array([1e5, 1.00001e5, 0.0]))
    _, state = aggregator.weigh(report, Cohort.of(jnp.arange(3)), aggregator.init(jnp.zeros(1), 3))
    np.testing.assert_allclose(jnp.sum(state), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "losses"),
    [
        (running_tilt(2.0), [0.1, 3e38, 0.2]),
        (running_tilt(-2.0), [0.1, 3e38, 0.2]),
        (reference_tilt(-2.0), [0.1, 3e38, 0.2]),
        (reference_tilt(-1.0), [0.1, -3e38, 3e38]),
        (loss_powers(2.0), [0.1, 3e38, 0.2]),
    ],
)
def test_a_loss_that_overflows_is_left_out(make: Sum, losses: list[float]) -> None:
    assert make.weigh is not None
    deltas, losses_of_all = jnp.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]]), jnp.array(losses)
    others = jnp.array([0, 2])
    np.testing.assert_array_equal(
        aggregate(make, deltas, losses=losses_of_all),
        aggregate(make, deltas[others], losses=losses_of_all[others]),
    )
    begin = make.init(deltas[0], 3)
    _, state = make.weigh(eh.types.Report(jnp.ones(3), losses_of_all), Cohort.of(jnp.arange(3)), begin)
    _, after = make.weigh(eh.types.Report(jnp.ones(2), losses_of_all[others]), Cohort.of(others), begin)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), state, after))


def test_only_the_cohort_climbs_on_the_simplex_of_all_clients() -> None:
    """Clients 1 and 2 of four climb by .1 and .3: (.25, .35, .55, .25) projected is that less .1."""
    aggregator = ascending_mixture(0.1)
    assert aggregator.weigh is not None
    report = eh.types.Report(jnp.ones(2), jnp.array([1.0, 3.0]))
    weights, state = aggregator.weigh(report, Cohort.of(jnp.array([1, 2])), aggregator.init(jnp.zeros(1), 4))
    np.testing.assert_allclose(weights, 0.25)
    np.testing.assert_allclose(state, [0.15, 0.25, 0.45, 0.15], atol=1e-6)


def test_an_empty_round_leaves_the_normaliser() -> None:
    for make in (running_tilt(1.0, 0.5), reference_tilt(1.0, 0.5)):
        assert make.weigh is not None
        nothing = eh.types.Report(jnp.zeros(2), jnp.zeros(2))
        both, empty = Cohort.of(jnp.arange(2)), Cohort.of(jnp.arange(2), jnp.zeros(2, bool))
        begin = make.init(jnp.zeros(1), 2)
        weights, state = make.weigh(nothing, empty, begin)
        assert jnp.all(weights == 0)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), state, begin))
        _, after = make.weigh(eh.types.Report(jnp.ones(2), jnp.ones(2)), both, begin)
        _, late = make.weigh(eh.types.Report(jnp.ones(2), jnp.ones(2)), both, state)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), after, late))
        weights, kept = make.weigh(nothing, empty, after)
        assert jnp.all(weights == 0)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), kept, after))


def test_the_references_normaliser_survives_losses_far_apart_under_either_sign() -> None:
    """With one client that counts, s = 1/2 and c = 1/4: its delta is divided by K^2 c = 1."""
    for t, step in ((2.0, 3.0), (-2.0, 7.0)):
        deltas, losses = jnp.array([3.0, 7.0]), jnp.array([500.0, 0.0])
        np.testing.assert_allclose(aggregate(reference_tilt(t, 0.5), deltas, losses=losses), step, rtol=2e-4)


def test_q_fedavg_follows_its_worst_client_ever_more_slowly() -> None:
    """T16: q (w - w+) goes to F_max / |Delta w_max|^2 Delta w_max = (.8, -.4): a huge q is not AFL."""
    deltas = jnp.array([[-0.2, 0.1], [0.3, -0.4]])
    step = aggregate(qfedavg(5000.0, 10.0), deltas, losses=jnp.array([2.0, 0.5]))
    np.testing.assert_allclose(-5000 * step, [0.79936, -0.39968], rtol=1e-4)


def test_q_fedavg_of_one_client_and_of_equal_losses() -> None:
    """T17 and T19."""
    one = aggregate(qfedavg(1.0, 10.0), jnp.array([[-0.2, 0.1]]), losses=jnp.array([2.0]))
    np.testing.assert_allclose(np.array([1.0, 2.0]) + one, [0.84, 2.08], atol=1e-6)
    deltas = np.array([[-0.2, 0.1], [0.3, -0.4]])
    same = aggregate(qfedavg(3.0, 10.0), jnp.asarray(deltas, jnp.float32), losses=jnp.array([0.7, 0.7]))
    squares = np.mean(np.sum(np.square(10 * deltas), axis=1))
    np.testing.assert_allclose(same, deltas.mean(0) / (1 + 3 * squares / (10 * 0.7)), rtol=1e-5)


def test_no_loss_of_zero_and_no_huge_loss_breaks_q_fedavg() -> None:
    deltas = jnp.array([[-0.2, 0.1], [0.3, -0.4]])
    for q in (0.0, 0.5, 1.0, 15.0):
        for losses in ([0.0, 0.0], [0.0, 1.0], [1e3, 1e-3], [1e20, 1.0]):
            assert jnp.all(jnp.isfinite(aggregate(qfedavg(q, 10.0), deltas, losses=jnp.array(losses))))


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [(0.0, 0.60355339), (0.1, 0.56213203), (0.5, 0.5), (1.0, 0.5)],
)
def test_min_norm_solves_the_specifications_case(epsilon: float, expected: float) -> None:
    deltas = jnp.array([[1.0, 0], [0, 1], [1, 1], [10, 10]])
    np.testing.assert_allclose(aggregate(min_norm(epsilon), deltas), [expected] * 2, atol=2e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 1.0])
def test_min_norm_is_as_short_as_scipy_finds(epsilon: float) -> None:
    """SLSQP on the same quadratic programme; norms are compared, since several weights can give one vector."""
    rng = np.random.default_rng(0)
    solve = jax.jit(lambda deltas: aggregate(min_norm(epsilon), deltas))
    for m, d in ((3, 2), (8, 5), (8, 20), (40, 60)):
        deltas = rng.normal(size=(m, d)) + 0.5
        unit = deltas / np.linalg.norm(deltas, axis=1, keepdims=True)
        found = minimize(
            lambda a, unit=unit: 0.5 * np.sum(np.square(a @ unit)),
            np.full(m, 1 / m),
            jac=lambda a, unit=unit: unit @ (a @ unit),
            bounds=[(max(0, 1 / m - epsilon), min(1, 1 / m + epsilon))] * m,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        ours = np.asarray(solve(jnp.asarray(deltas, jnp.float32)))
        assert abs(np.linalg.norm(ours) - np.sqrt(2 * found.fun)) < 2e-5


def test_min_norm_leaves_zeros_out_and_ignores_lengths() -> None:
    deltas = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    with_zero = jnp.concatenate([100.0 * deltas, jnp.zeros((1, 2))])
    np.testing.assert_allclose(
        aggregate(min_norm(0.1), with_zero), aggregate(min_norm(0.1), deltas), atol=1e-6
    )
    assert jnp.all(aggregate(min_norm(1.0), jnp.zeros((2, 3))) == 0)


def test_at_epsilon_one_no_client_gets_worse() -> None:
    """The shortest vector of a convex hull has a product of at least its own square with each of its points."""
    deltas = jax.random.normal(jax.random.key(0), (6, 10)) + 0.4
    step = aggregate(min_norm(1.0), deltas)
    unit = deltas / jnp.linalg.norm(deltas, axis=1, keepdims=True)
    assert jnp.all(unit @ step > jnp.sum(step**2) - 1e-4)
    assert jnp.any(unit @ aggregate(min_norm(0.0), deltas) < jnp.sum(step**2) - 1e-2)


CENTRES, START = np.array([[0.0, 0], [1, 0], [0, 2]]), np.array([0.25, 0.5])


@pytest.mark.parametrize(
    ("q", "after"),
    [
        (0.0, (0.3333333333, 0.6666666667)),
        (1.0, (0.1642516276, 1.4722494486)),
        (-1.0, (0.3482074279, 0.1553911583)),
        (5.0, (0.0005527536, 1.9988037473)),
        (-5.0, (0.0758549975, 0.0000839084)),
    ],
)
def test_one_step_against_drift_is_the_specifications(q: float, after: tuple[float, float]) -> None:
    """T17 of FedTilt."""
    step = aggregate(drift_tilted(q), jnp.asarray(CENTRES - START, jnp.float32))
    np.testing.assert_allclose(START + step, after, atol=1e-6)


@pytest.mark.parametrize(
    ("q", "centre", "furthest"),
    [
        (0.1, (1.8512750149, 0.3159195635), 4.716824232),
        (1.0, (1.9934757952, 0.0604513800), 4.029793754),
        (10.0, (2.0, 0.0), 4.0),
    ],
)
def test_drift_solved_goes_to_the_centre_of_the_smallest_ball(
    q: float, centre: tuple[float, float], furthest: float
) -> None:
    """T19: at q = 0 the mean (1.75, .375), at infinity the centre of the minimum enclosing ball."""
    clients = np.array([[0.0, 0], [4, 0], [1, 1], [2, 0.5]])
    point = np.asarray(aggregate(drift_tilted(q, steps=4000), jnp.asarray(clients, jnp.float32)))
    np.testing.assert_allclose(point, centre, atol=2e-3)
    assert abs(np.max(np.sum(np.square(clients - point), axis=1)) - furthest) < 5e-3


def test_a_negative_server_tilt_ignores_the_client_far_away() -> None:
    """T22: nine clients near 0 and one at (10, 10), from their mean."""
    clients = np.concatenate([np.random.default_rng(1).normal(size=(9, 2)) * 0.1, [[10.0, 10.0]]])
    mean = clients.mean(0)
    deltas = jnp.asarray(clients - mean, jnp.float32)
    point = mean + aggregate(drift_tilted(-0.1, steps=200), deltas)
    assert np.linalg.norm(point - clients[:9].mean(0)) < 1e-3
    shares = np.exp(-0.001 * np.sum(np.square(clients - mean), axis=1))
    once = mean + aggregate(drift_tilted(-0.001), deltas)
    np.testing.assert_allclose(once, shares @ clients / shares.sum(), atol=1e-5)
    assert np.linalg.norm(once - point) > 0.5


def _plain_drift(point: np.ndarray, clients: np.ndarray, q: float) -> float:
    lengths = np.linalg.norm(clients - point, axis=1)
    return lengths.mean() if q == 0 else np.log(np.mean(np.exp(q * lengths))) / q


@pytest.mark.parametrize("q", [0.0, 0.7, 3.0, -0.4])
def test_plain_distances_have_a_step_and_a_descent_of_their_own(q: float) -> None:
    """The other reading of FedTilt's distance; without a tilt its centre is the geometric median."""
    clients = np.random.default_rng(4).normal((2.0, 0.0, 0.0), size=(6, 3))
    deltas = jnp.asarray(clients, jnp.float32)
    rule = partial(drift_tilted, q, distance="plain")
    lengths = np.linalg.norm(clients, axis=1)
    pulls = np.exp(q * lengths) / lengths
    np.testing.assert_allclose(aggregate(rule(), deltas), pulls @ clients / pulls.sum(), rtol=1e-5)
    values = [_plain_drift(np.asarray(aggregate(rule(steps=k), deltas)), clients, q) for k in range(2, 9)]
    assert np.all(np.diff([_plain_drift(np.zeros(3), clients, q), *values]) < 1e-6), "each step goes down"
    if q >= 0:
        best = minimize(_plain_drift, clients.mean(0), args=(clients, q), tol=1e-9).x
        np.testing.assert_allclose(aggregate(rule(steps=3000), deltas), best, atol=2e-3)
        assert np.linalg.norm(np.asarray(aggregate(drift_tilted(q, steps=3000), deltas)) - best) > 0.02
    two = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    assert np.isfinite(aggregate(rule(steps=5), two)).all(), "a client at the broadcast model"


def test_steps_of_the_server_may_begin_at_the_mean() -> None:
    """T22 from there, where the uploads are as they arrive; the broadcast model is near the client far away."""
    clients = np.concatenate([np.random.default_rng(1).normal(size=(9, 2)) * 0.1, [[10.0, 10.0]]])
    deltas = jnp.asarray(clients - 9.0, jnp.float32)
    ends = {
        start: 9.0 + aggregate(drift_tilted(-0.1, steps=200, start=start), deltas)
        for start in ("mean", "zero")
    }
    assert np.linalg.norm(ends["mean"] - clients[:9].mean(0)) < 1e-3
    assert np.linalg.norm(ends["zero"] - clients[9]) < 1e-3
    one = aggregate(drift_tilted(0.05, start="mean"), deltas)
    shares = np.exp(0.05 * np.sum(np.square(clients - clients.mean(0)), axis=1))
    np.testing.assert_allclose(one, shares @ (clients - 9.0) / shares.sum(), rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"distance": "euclid"}, {"start": "broadcast"}])
def test_other_distances_and_starts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(eh.EvenhandError, match=f"{next(iter(wrong))}=.*: give '"):
        drift_tilted(1.0, **wrong)


def test_an_empty_slot_does_not_slow_the_descent() -> None:
    """Three clients far from the broadcast model, where an empty slot lies, within a small distance of each other."""
    rule, deltas = drift_tilted(1.0, steps=3), jnp.array([[10.0, 0.0], [11.0, 0.0], [10.0, 2.0]])
    beside = aggregate(rule, jnp.concatenate([deltas, jnp.full((1, 2), jnp.nan)]))
    np.testing.assert_allclose(beside, aggregate(rule, deltas), rtol=1e-5)
    assert np.linalg.norm(aggregate(rule, deltas - 10.0) + 10.0 - beside) > 0.1, "steps are not over by then"


@pytest.mark.parametrize(("tilt", "goal"), [(1e3, 1e18), (-1e3, -8e17)])
def test_drifts_whose_squares_overflow_have_weights(tilt: float, goal: float) -> None:
    """All the weight is that of the farthest client, or of the nearest."""
    deltas = jnp.array([[1e18], [-8e17], [9e17]])
    np.testing.assert_allclose(aggregate(drift_tilted(tilt), deltas), [goal], rtol=1e-6)
    equal = jnp.array([[1e18, 0.0], [0.0, 1e18]])
    np.testing.assert_allclose(aggregate(drift_tilted(tilt), equal), [5e17, 5e17], rtol=1e-6)


@pytest.mark.parametrize("tilt", [1.0, -1.0])
def test_drifts_infinitely_far_apart_have_weights(tilt: float) -> None:
    """Each alone has a length in float32, and their distance has none."""
    assert np.isfinite(aggregate(drift_tilted(tilt, steps=3), jnp.array([[1.8e19], [-1.8e19]]))).all()


def test_the_normaliser_lags_where_losses_fall() -> None:
    """From losses of 5 to losses of 1 at t = 10, exp(a) halves at most: all weights go to about 0."""
    aggregator = running_tilt(10.0, 0.5)
    state = aggregator.init(jnp.zeros(1), 2)
    assert aggregator.weigh is not None
    cohort = eh.types.Cohort.of(jnp.arange(2))
    high, state = aggregator.weigh(eh.types.Report(jnp.ones(2), jnp.array([5.0, 4.9])), cohort, state)
    low, _ = aggregator.weigh(eh.types.Report(jnp.ones(2), jnp.array([1.0, 0.9])), cohort, state)
    np.testing.assert_allclose(jnp.sum(high), 1.0, rtol=5e-6)
    assert float(jnp.sum(low)) < 1e-15


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: qfedavg(-1.0, 1.0), "q must"),
        (lambda: qfedavg(1.0, 0.0), "step size"),
        (lambda: loss_powers(math.inf), "q must"),
        (lambda: running_tilt(math.nan), "finite"),
        (lambda: running_tilt(1.0, 0.0), "share of the newest round"),
        (lambda: reference_tilt(math.inf), "finite"),
        (lambda: ascending_mixture(-0.1), ">= 0"),
        (lambda: min_norm(1.5), "[0, 1]"),
        (lambda: drift_tilted(math.inf), "finite"),
        (lambda: drift_tilted(1.0, steps=0), "steps"),
        (lambda: running_tilt("1"), "t='1'"),  # type: ignore[arg-type]
        (lambda: qfedavg([1.0], 1.0), "q=[1.0]"),  # type: ignore[arg-type]
    ],
)
def test_a_number_out_of_range_gets_a_sentence(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(eh.EvenhandError) as caught:
        make()
    assert words in str(caught.value)


def test_without_a_tilt_one_huge_upload_leaves_the_median_where_it_is():
    """Its distance overflows in float32; the median of the four is between the others."""
    uploads = eh.types.Upload(
        jnp.array([[1e20, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 1.0]]), jnp.ones(4), jnp.ones(4)
    )
    for rule, expected in (
        (eh.aggregators.drift_tilted(0.0, distance="plain", steps=5), [0.5, 1.0]),
        (eh.aggregators.drift_tilted(0.0, steps=5), [2.5e19, 0.75]),
    ):
        direction, _ = rule.apply(uploads, jnp.ones(4, bool), (), jax.random.key(0))
        np.testing.assert_allclose(direction, expected, rtol=1e-5)
