"""Steps of fair methods against the curvature that they must follow: of q-FFL, of FedTilt's clients and its server.

Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, lemma 1; Zhang et al., *FedTilt*, 2025, with the
numbering of the specifications.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

import evenhand as eh
from evenhand import local
from evenhand.aggregators import aggregate, drift_tilted, qfedavg
from evenhand.types import Algorithm, ClientData, Model

# --- q-FFL -------------------------------------------------------------------------------------------------------

_PARABOLA = Model(
    init=lambda key: jnp.float32(0.7),
    apply=lambda w, x: 1.5 * w * w + x,
    losses=lambda outputs, y: outputs,
    metrics={},
)


def _client(x: Any, y: Any) -> ClientData:
    return ClientData(
        jnp.asarray(x), jnp.asarray(y), jnp.int32(0), jnp.int32(len(x)), jnp.float32(1.0), len(x)
    )


def _step(method: Algorithm, w: float, data: ClientData) -> float:
    """By how much one round of one client changes the model."""
    (phase,) = method.phases
    message = phase.broadcast(method.init(jnp.float32(w), 1), jnp.int32(0))

    @jax.jit
    def both(message: Any) -> Any:
        delta, _ = phase.work(message, (), data, jax.random.key(0))
        loss = phase.report(message, (), data).loss
        return aggregate(phase.aggregator, delta[None], losses=loss[None])

    return float(both(message))


def test_one_step_on_a_parabola_is_newtons_on_its_power() -> None:
    """T14 (lemma 1): slope over step is the curvature of ``f^(q+1) / (q+1)``, in both methods; not for another L."""
    data, w = _client(np.array([0.5], np.float32), np.zeros(1, np.float32)), 0.7

    def f(w: float) -> float:
        return 1.5 * w * w + 0.5

    values = {0.0: 3.0, 0.5: 5.3180694193, 1.0: 8.115, 2.0: 15.468375, 5.0: 59.9141475}
    for q, value in values.items():
        h = 1e-3
        outer, middle = f(w + h) ** (q + 1) + f(w - h) ** (q + 1), f(w) ** (q + 1)
        assert (outer - 2 * middle) / (h * h * (q + 1)) == pytest.approx(value, rel=1e-4)
        slope = f(w) ** q * 3 * w
        by_gradient = eh.algorithms.qfedsgd(_PARABOLA, q=q, lipschitz=3.0)
        assert -slope / _step(by_gradient, w, data) == pytest.approx(value, rel=1e-5)
    once = eh.algorithms.qfedavg(eh.local.sgd(_PARABOLA, 1 / 3, steps=1), q=2.0)
    assert -(f(w) ** 2) * 3 * w / _step(once, w, data) == pytest.approx(values[2.0], rel=1e-5)
    late = eh.algorithms.qfedavg(eh.local.sgd(_PARABOLA, 1 / 6, steps=1), q=2.0, lipschitz=3.0)
    assert abs(-(f(w) ** 2) * 3 * w / _step(late, w, data) / values[2.0] - 1) > 0.05


def test_denominators_bound_the_curvature_of_powers_of_any_losses() -> None:
    """T14 for logistic clients of several rows: of one and of three; not with a hundredth of L."""
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(20, 3, 8, 4)), rng.normal(size=(20, 1, 4))
    score = np.einsum("ckrd,cod->ckr", x, at)
    f = np.logaddexp(score, 0).mean(axis=2)
    g = np.einsum("ckr,ckrd->ckd", expit(score), x) / 8
    bend = np.einsum("ckr,ckrd,ckre->ckde", expit(score) * expit(-score), x, x) / 8
    smooth = float(np.linalg.eigvalsh(np.einsum("ckrd,ckre->ckde", x, x) / 32).max())
    for q in (0.5, 4.0):
        power = (f**q)[..., None, None]
        hessian = power * bend + q * (f ** (q - 1))[..., None, None] * g[..., :, None] * g[..., None, :]

        def curvatures(lipschitz: float, q: float = q) -> np.ndarray:
            """What the aggregator divides by, for the first client and for all, from the length of its step."""
            rule = qfedavg(q, lipschitz)
            cases = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])

            def step(d: Any, loss: Any, who: Any) -> Any:
                return aggregate(rule, d, weights=who, losses=loss)

            over = jax.jit(jax.vmap(jax.vmap(step, (0, 0, None)), (None, None, 0)))
            steps = over(*(jnp.asarray(part, jnp.float32) for part in (-g / lipschitz, f, cases)))
            whole = np.einsum("sc,kc,kcd->skd", cases, f**q, g)
            return np.linalg.norm(whole, axis=2) / np.linalg.norm(np.array(steps), axis=2)

        tops = np.linalg.eigvalsh(np.stack([hessian[:, 0], hessian.sum(axis=1)]))[..., -1]
        assert np.all(tops <= curvatures(smooth) * (1 + 1e-5))
        if q < 1:
            assert np.any(tops > curvatures(smooth / 100))


# --- FedTilt's clients -------------------------------------------------------------------------------------------

_RIDGE, _MU = 0.1, 0.5
_LOGISTIC = Model(
    init=lambda key: jnp.zeros(3),
    apply=lambda v, x: jnp.logaddexp(x @ v, 0.0) + _RIDGE / 2 * jnp.sum(v * v),
    losses=lambda outputs, y: outputs,
    metrics={},
)
_X = np.random.default_rng(1).normal(size=(8, 3)) * [1.0, 1.0, 0.0]
_X = _X / np.linalg.norm(_X, axis=1, keepdims=True)
_CLASSES = np.array([0, 0, 0, 0, 1, 1, 2, 2], np.int32)


def _tilted(tau: float, lam: float, losses: np.ndarray, classes: np.ndarray) -> float:
    """The two-level loss by its formula."""

    def mean(t: float, f: np.ndarray, p: np.ndarray) -> float:
        return float(p @ f if t == 0 else np.log(p @ np.exp(t * f)) / t)

    kinds, counts = np.unique(classes, return_counts=True)
    inner = [mean(lam, losses[classes == k], np.full(n, 1 / n)) for k, n in zip(kinds, counts, strict=True)]
    return mean(tau, np.array(inner), counts / len(losses))


def _descents(model: Model, x: Any, y: Any, count: int, tilts: Any, rates: Any, w: Any, v: Any) -> Any:
    """Personal models before each gradient step on FedTilt's local loss, with ``w`` fixed; one case per row."""

    def one(tilt: Any, rate: Any, w: Any, v: Any) -> Any:
        risk = eh.risks.hierarchical(eh.risks.tilted(tilt[0]), eh.risks.tilted(tilt[1]), jnp.asarray(y), 3)
        slope = jax.grad(lambda v: risk.value(model.losses(model.apply(v, jnp.asarray(x)), jnp.asarray(y))))
        pull = local.proximal(_MU, w)

        def step(v: Any, _: Any) -> Any:
            return v - rate * pull.update(slope(v), pull.init(v), v)[0], v

        return jax.lax.scan(step, v, length=count)[1]

    parts = (jnp.asarray(np.asarray(part, np.float32)) for part in (tilts, rates, w, v))
    return np.array(jax.jit(jax.vmap(one))(*parts), float)


def test_personal_models_converge_at_a_linear_rate() -> None:
    """FedTilt's T14, 400 steps from far away with the step of T12's constant; not three times as fast."""
    # Losses of rows of length 1 have curvature 1/4 at most, and their slopes differ by 2 at most.
    tilts = np.array([(1.0, 1.0), (5.0, 5.0), (0.5, 10.0)])
    tops = _RIDGE + 0.25 + _MU + tilts.sum(axis=1)
    w, v = np.tile([1.0, -1.0, 0.5], (3, 1)), np.tile([-3.0, 4.0, 8.0], (3, 1))
    paths = _descents(_LOGISTIC, _X.astype(np.float32), _CLASSES, 401, tilts, 1 / tops, w, v)
    t = np.arange(0, 401, 8)
    for (tau, lam), top, path in zip(tilts, tops, paths, strict=True):

        def whole(v: np.ndarray, tau: float = tau, lam: float = lam) -> float:
            losses = np.logaddexp(_X @ v, 0) + _RIDGE / 2 * v @ v
            return _tilted(tau, lam, losses, _CLASSES) + _MU / 2 * np.sum((v - w[0]) ** 2)

        gap = np.array([whole(each) for each in path[t]]) - minimize(whole, path[-1], tol=1e-9).fun
        rate = 1 - (_RIDGE + _MU) / top
        assert np.all(gap <= gap[0] * rate**t + 1e-6)
        assert abs(gap[-1]) < 1e-5
        assert np.any(gap > gap[0] * rate ** (3 * t) + 1e-5)


_SQUARE = Model(
    init=lambda key: jnp.float32(0.0),
    apply=lambda v, x: 0.5 * jnp.square(v - x),
    losses=lambda outputs, y: outputs,
    metrics={},
)
_POINTS, _KINDS = np.array([-2.0, 0.0, 1.0, 3.0], np.float32), np.array([0, 0, 1, 1], np.int32)


def test_personal_models_move_less_than_the_global_one() -> None:
    """T15: by ``mu / (beta + mu)``, here a third, as far as ``w``; just that without tilts; more with tilts below 0."""
    w = np.linspace(-4, 5, 10)
    tilts = np.repeat([(0.0, 0.0), (2.0, 5.0), (-4.0, -4.0)], 10, axis=0)
    args = tilts, np.full(30, 0.06), np.tile(w, 3), np.zeros(30)
    ends = _descents(_SQUARE, _POINTS, _KINDS, 401, *args)[:, -1].reshape(3, 10)
    plain, above, below = np.diff(ends, axis=1) / np.diff(w)
    np.testing.assert_allclose(plain, 1 / 3, atol=1e-5)
    assert np.all(above <= 1 / 3 + 1e-5) and above.min() < 0.3
    assert below.max() > 0.4


def test_personal_models_follow_the_global_one_to_their_optimum() -> None:
    """T15's recursion and T16's conclusion, round by round; personal models that begin anew each round never arrive."""
    tau, lam, size = 1.0, 0.5, 0.02
    points = np.stack([_POINTS, _POINTS[::-1] + 1.5, 2 * _POINTS])
    tilts = {"classes": 2, "tilt_class": tau, "tilt_sample": lam, "prox_mu": 0.5}
    method = eh.algorithms.fedtilt(eh.local.sgd(_SQUARE, size, steps=1), **tilts)
    (phase,), personal_params = method.phases, method.personal_params
    assert personal_params is not None

    def one(carry: Any, _: Any) -> Any:
        state, kept = carry
        message = phase.broadcast(state, jnp.int32(0))
        delta, new = jax.vmap(
            lambda own, x: phase.work(message, own, _client(x, _KINDS), jax.random.key(0)), (0, 0)
        )(kept, jnp.asarray(points))
        direction = aggregate(phase.aggregator, delta)
        after, _ = phase.server(state, direction, jnp.int32(3), jax.random.key(0))
        return (after, new), (method.global_params(state), personal_params(state, kept))

    begin = method.init(jnp.float32(6.0), 3), jax.vmap(method.init_client)(jnp.array([5.0, -5.0, 9.0]))
    w, v = (
        np.array(part, float)
        for part in jax.jit(lambda begin: jax.lax.scan(one, begin, length=801))(begin)[1]
    )

    def best(x: np.ndarray, w: Any) -> float:
        def whole(v: np.ndarray) -> float:
            return _tilted(tau, lam, 0.5 * (v[0] - x) ** 2, _KINDS) + 0.25 * (v[0] - w) ** 2

        return float(minimize(whole, [w], tol=1e-10).x[0])

    rounds = np.array([0, 1, 5, 60, 800])
    for x, path in zip(points.astype(float), v.T, strict=True):
        for t in rounds[:-1]:
            distance, next_distance = (abs(path[t + k] - best(x, w[t + k])) for k in (0, 1))
            assert next_distance <= (1 - size * 1.5) * distance + abs(w[t + 1] - w[t]) / 3 + 1e-5
        assert abs(path[-1] - best(x, w[-1])) < 1e-4
        assert abs(path[0] - size * 1.5 * (path[0] - best(x, w[-1])) - best(x, w[-1])) > 0.5


# --- FedTilt's server --------------------------------------------------------------------------------------------


def test_server_steps_of_any_size_on_plain_distances_approach_the_mean() -> None:
    """T18: towards the mean by ``2 eta``, so .98 of the way is left at eta = .01, and .98^5 after five such steps."""
    clients, start = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), np.array([0.25, 0.5])

    @jax.jit
    def path(eta: Any, start: Any, clients: Any) -> Any:
        work = eh.local.sgd(_SQUARE, 0.1, steps=1)
        server_opt = optax.sgd(2 * eta)
        method = eh.algorithms.fedavg(work, server_opt=server_opt, aggregator=drift_tilted(0.0, steps=7))
        (phase,) = method.phases

        def one(state: Any, _: Any) -> Any:
            here = method.global_params(state)
            step = aggregate(phase.aggregator, clients - here[None])
            return phase.server(state, step, jnp.int32(3), jax.random.key(0))[0], here

        return jax.lax.scan(one, method.init(start, 3), length=6)[1]

    mean = clients.mean(axis=0)
    for eta, left in [(0.5, 0.0), (0.01, 0.98), (0.3, 0.4)]:
        found = path(*(jnp.asarray(part, jnp.float32) for part in (eta, start, clients)))
        expected = mean + left ** np.arange(6)[:, None] * (start - mean)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_two_clients_meet_half_way() -> None:
    """T20: descent meets at 1 for any q > 0 and q > -1/2, not below -2/D^2; steps of 1/2 only for |q| < 1/2 either."""
    clients = jnp.array([0.0, 2.0])

    @jax.jit
    def ends() -> Any:
        def halves(q: float) -> Any:
            one = drift_tilted(q)
            return jax.lax.fori_loop(0, 400, lambda _, w: w + aggregate(one, clients - w), jnp.float32(0.9))

        return {
            "halves": [halves(q) for q in (0.1, 0.25, 0.4, 0.6, 1.0, 2.0)],
            "descent": [
                0.9 + aggregate(drift_tilted(q, steps=400), clients - 0.9) for q in (0.1, 0.6, 2.0, -0.4)
            ],
            "away": [0.9 + aggregate(drift_tilted(q, steps=400), clients - 0.9) for q in (-0.6, -2.0)],
            "still": aggregate(drift_tilted(-0.6, steps=3), clients - 1.0),
        }

    found = jax.tree.map(float, ends())
    np.testing.assert_allclose(found["halves"][:3], 1.0, atol=1e-4)
    assert np.all(np.abs(np.array(found["halves"][3:]) - 1) > 0.3)
    np.testing.assert_allclose(found["descent"], 1.0, atol=1e-4)
    assert np.all(np.abs(np.array(found["away"]) - 1) > 0.3) and abs(found["still"]) < 1e-6


def test_steps_of_the_descent_decrease_the_objective() -> None:
    """T21: from step to step for tilts of either sign; single steps of 1/2 may increase it for a positive tilt."""
    rng = np.random.default_rng(2)
    clients = rng.normal(size=(40, 5, 2)) * 2
    for q in (0.7, -0.7):

        @jax.jit
        @jax.vmap
        def moved(deltas: Any, q: float = q) -> Any:
            return [aggregate(drift_tilted(q, steps=k), deltas) for k in (1, 2, 3)]

        points = [np.zeros((40, 2)), *(np.array(p, float) for p in moved(jnp.asarray(clients, jnp.float32)))]
        squares = [((clients - p[:, None]) ** 2).sum(2) for p in points]
        values = [np.asarray(logsumexp(q * each, axis=1, b=0.2)) / q for each in squares]
        start, once, twice, thrice = values
        assert np.all(twice <= start + 1e-5) and np.all(thrice <= twice + 1e-5)
        assert np.max(start - twice) > 0.1
        assert np.any(once > start + 0.1) == (q > 0)
