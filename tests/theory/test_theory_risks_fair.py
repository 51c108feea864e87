"""What the papers of q-FFL and FedTilt prove about their risks.

Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020; the conjecture on entropies is that of section
4.4.1 of the first author's dissertation; Zhang et al., *FedTilt*, 2025.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from evenhand.risks import hierarchical, power, tilted

# Clients' losses a / 2 (w - c)^2 + d.
_A, _C, _D = np.array([1.0, 3.0, 2.0]), np.array([0.0, 1.0, 2.0]), np.array([0.1, 0.2, 0.5])


def _losses(w: np.ndarray, a: np.ndarray = _A, c: np.ndarray = _C, d: np.ndarray = _D) -> np.ndarray:
    return a / 2 * (w[..., None] - c) ** 2 + d


def _minimiser(p: float, a: np.ndarray = _A, c: np.ndarray = _C, d: np.ndarray = _D) -> np.ndarray:
    """Of ``sum F^p`` for each family: the root of ``sum F^(p-1) a (w - c)``, which grows with ``w``."""
    low, high = np.min(c, axis=-1), np.max(c, axis=-1)
    for _ in range(80):
        w = (low + high) / 2
        slope = np.sum(_losses(w, a, c, d) ** (p - 1) * a * (w[..., None] - c), axis=-1)
        low, high = np.where(slope > 0, low, w), np.where(slope > 0, w, high)
    return (low + high) / 2


def _entropy(x: np.ndarray) -> np.ndarray:
    share = x / x.sum(axis=-1, keepdims=True)
    return -np.sum(share * np.log(share), axis=-1)


def _families(seed: int, m: int, count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.3, 3, (count, m)), rng.normal(size=(count, m)), rng.uniform(0.05, 1, (count, m))


def test_the_library_has_the_same_minimisers() -> None:
    """The gradient of ``power(p - 1)`` vanishes where ``sum F^p`` is least: what the lemmas below are about."""
    for p in (1, 2, 3, 5, 10):
        with jax.enable_x64(True):
            slope = jax.jit(
                jax.grad(lambda w, p=p: power(p - 1.0).value(jnp.asarray(_A) / 2 * (w - _C) ** 2 + _D))
            )
            w = float(_minimiser(p))
            assert abs(float(slope(jnp.asarray(w)))) < 1e-7 < abs(float(slope(jnp.asarray(w + 0.1))))


def test_the_first_power_is_fairer_than_none() -> None:
    """Lemmas 2 and 3 on 2000 families: the variance of losses is no larger at q = 1, the cosine no smaller."""
    family = _families(0, 4)
    none, one = (_losses(_minimiser(q + 1.0, *family), *family) for q in (0, 1))
    assert np.all(one.var(axis=1) <= none.var(axis=1) + 1e-12)
    cosines = [f.mean(axis=1) / np.sqrt(np.mean(f**2, axis=1)) for f in (none, one)]
    assert np.all(cosines[1] >= cosines[0] - 1e-12)
    assert np.any(one.var(axis=1) < none.var(axis=1) - 1e-2)


def test_entropy_grows_with_the_power_where_they_agree() -> None:
    """Lemma 4: the example's numbers, 2000 families; with the other index, ``p + 1`` for ``p``, it can fall."""
    h = 1e-5
    for p, w, slope in [
        (1, 1.1666667, 0.126146),
        (2, 1.2827773, 0.043778),
        (3, 1.3102115, 0.008432),
        (5, 1.3185649, 7.31e-5),
        (10, 1.3180818, None),
    ]:
        assert float(_minimiser(p)) == pytest.approx(w, abs=6e-8)
        ends = [float(_entropy(_losses(_minimiser(p + sign * h)) ** p)) for sign in (1, -1)]
        assert slope is None or (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, abs=6e-7)
    family = _families(1, 4)
    for p in (1.0, 2.0, 4.0):
        ends = [_entropy(_losses(_minimiser(p + sign * 1e-3, *family), *family) ** p) for sign in (1, -1)]
        assert np.min(ends[0] - ends[1]) >= -1e-8


def test_two_clients_become_more_alike_with_any_power() -> None:
    """Lemma 5 on 2000 families of two clients."""
    family = _families(2, 2)
    for q in (0.5, 2.0):
        entropies = [_entropy(_losses(_minimiser(p, *family), *family) ** q) for p in (1.0, 1.5, 3.0, 6.0)]
        assert np.all(np.diff(entropies, axis=0) >= -1e-9) and np.max(np.diff(entropies, axis=0)) > 1e-3


def test_three_clients_need_not_become_more_alike() -> None:
    """The counter-example: the variance of the losses falls up to the power 5 and then rises."""
    variances = [float(_losses(_minimiser(p)).var()) for p in (1, 2, 3, 5, 10)]
    np.testing.assert_allclose(variances, [0.15217, 0.09490, 0.08622, 0.08395, 0.08407], atol=6e-6)
    assert np.all(np.diff(variances[:4]) < 0) and variances[4] > variances[3]


# --- the conjecture that entropies grow: for any q, and for any number of clients ----------------------------------

_POWERS = (1.5, 2.0, 3.0, 5.0, 10.0)


def _entropy_slope(p: float, q: float, a: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The derivative of ``H(F^q(w_p))`` in ``p``, with that of the minimiser ``w_p`` of ``sum F^p`` by its equation."""
    w = _minimiser(p, a, c, d)
    f, slopes = _losses(w, a, c, d), a * (w[..., None] - c)
    bend = np.sum((p - 1) * f ** (p - 2) * slopes**2 + f ** (p - 1) * a, axis=-1)
    moved = -np.sum(f ** (p - 1) * np.log(f) * slopes, axis=-1) / bend
    share = f**q / np.sum(f**q, axis=-1, keepdims=True)
    grown = q * slopes / f
    grown = share * (grown - np.sum(share * grown, axis=-1, keepdims=True))
    return -np.sum(grown * np.log(share), axis=-1) * moved


def _falls(m: int, qs: tuple[float, ...]) -> np.ndarray:
    """Which of 2000 families have an ``H(F^q(w_p))`` that falls by more than 1e-6 between two of the powers ``p``."""
    family = _families(6, m)
    losses = [_losses(_minimiser(p, *family), *family) for p in _POWERS]
    entropies = np.array([[_entropy(f**q) for f in losses] for q in qs])
    return np.any(np.diff(entropies, axis=1) < -1e-6, axis=(0, 1))


def test_three_quadratics_whose_losses_have_less_entropy_at_larger_powers() -> None:
    """SciPy's minimisers in float64: the entropies of square roots and of the losses themselves fall as ``p`` grows."""
    a, c, b = (
        np.array([1.186, 0.314, 2.952]),
        np.array([-1.597, 0.568, -2.667]),
        np.array([0.316, 1.599, 0.346]),
    )
    entropies = dict[float, list[float]]()
    for p in (*_POWERS, 20.0):

        def objective(w: float, p: float = p) -> float:
            return float(np.sum((a * (w - c) ** 2 + b) ** p) ** (1 / p))

        found = minimize_scalar(objective, bounds=(-2.667, 0.568), method="bounded", options={"xatol": 1e-9})
        w = cast(Any, found).x
        assert float(_minimiser(p, 2 * a, c, b)) == pytest.approx(w, abs=2e-8)
        entropies[p] = [float(_entropy((a * (w - c) ** 2 + b) ** q)) for q in (0.5, 1.0)]
    roots, plain = np.array(list(entropies.values())).T
    np.testing.assert_allclose(roots, [1.02801, 1.02587, 1.01911, 1.01086, 1.00438, 1.00128], atol=6e-6)
    np.testing.assert_allclose(plain, [0.85020, 0.86151, 0.86867, 0.86679, 0.86134, 0.85766], atol=6e-6)
    assert (
        np.all(np.diff(roots) < -1e-3)
        and np.all(np.diff(plain)[:2] > 1e-3)
        and np.all(np.diff(plain)[2:] < -1e-3)
    )


def test_entropy_falls_in_many_families_and_never_in_pairs_or_at_equal_powers() -> None:
    """2000 families a number of clients: the shares that docs/fairness.md quotes; lemmas 4 and 5 without a step."""
    for m, share, plain in ((2, 0.0, 0.0), (3, 0.354, 0.328), (4, 0.452, 0.408)):
        assert np.mean(_falls(m, (0.5, 1.0, 2.0))) == pytest.approx(share, abs=1e-3 if share else 0)
        assert np.mean(_falls(m, (1.0,))) == pytest.approx(plain, abs=1e-3 if plain else 0)
    for m in (2, 3, 4, 6):
        family = _families(7, m)
        for p in _POWERS:
            assert np.min(_entropy_slope(p, p, *family)) >= -1e-12
            assert (np.min(_entropy_slope(p, 0.5, *family)) >= -1e-12) == (m == 2)
    ends = [_entropy(_losses(_minimiser(3 + h, *family), *family) ** 0.5) for h in (1e-4, -1e-4)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, _entropy_slope(3.0, 0.5, *family), atol=1e-6)


def test_power_means_bound_mixtures() -> None:
    """Hoelder: ``sum l F <= ||l||_p ||F||_{q+1}``, with equality for the mean at q = 0 and not with a smaller norm."""
    f, rng = np.array([2.0, 0.5, 1.0]), np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(3), 200)
    for q, mean in ((1.0, 1.3228757), (4.0, 1.6157001), (50.0, 1.9573779)):
        whole = float(power(q).value(jnp.asarray(f))) * 3 ** (1 / (q + 1))
        norms = np.sum(shares ** ((q + 1) / q), axis=1) ** (q / (q + 1))
        assert np.all(shares @ f <= norms * whole + 1e-5)
        assert np.any(shares @ f > 0.9 * norms * whole)
        assert whole / 3 ** (1 / (q + 1)) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(("alpha", "x", "value"), [(0, 3, 3), (0.5, 4, 4), (1, np.e, 1), (2, 2, -0.5)])
def test_alpha_fair_utilities(alpha: float, x: float, value: float) -> None:
    """T28 by hand; q-FFL's weights are in the ratio of the derivatives of the utility of ``alpha = -q``, ``x^q``."""

    def utility(x: Any) -> Any:
        return np.log(x) if alpha == 1 else x ** (1 - alpha) / (1 - alpha)

    assert utility(x) == pytest.approx(value)
    assert (utility(x + 1e-6) - utility(x - 1e-6)) / 2e-6 == pytest.approx(x**-alpha, rel=1e-6)
    weights = power(float(alpha)).weights(jnp.array([x, 1.0], jnp.float32))
    assert float(weights[1] / weights[0]) == pytest.approx(x**-alpha, rel=1e-5)


# --- two levels of tilts -----------------------------------------------------------------------------------------

_Z = np.random.default_rng(4).normal(size=(7, 3))
_GROUPS = np.array([0, 0, 0, 1, 1, 2, 2])
_RIDGE = 0.4


def _each(v: Any) -> Any:
    return jnp.logaddexp(jnp.asarray(_Z) @ v, 0.0) + _RIDGE / 2 * jnp.sum(v**2)


@jax.jit
def _curvature(tau: Any, lam: Any, v: Any) -> Any:
    def risk(v: Any) -> Any:
        return hierarchical(tilted(tau), tilted(lam), jnp.asarray(_GROUPS), 3).value(_each(v))

    weights = hierarchical(tilted(tau), tilted(lam), jnp.asarray(_GROUPS), 3).weights(_each(v))
    return (
        risk(v),
        jax.grad(risk)(v),
        jax.hessian(risk)(v),
        weights,
        jax.jacobian(_each)(v),
        jax.hessian(_each)(v),
    )


def _at(tau: float, lam: float, v: np.ndarray) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.array(part) for part in _curvature(*(jnp.asarray(x) for x in (tau, lam, v)))]


def _covariance(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    away = x - w @ x
    return (away * w[:, None]).T @ away


_V = np.array([0.5, -1.0, 0.3])


@pytest.mark.parametrize(("tau", "lam"), [(2.0, -3.0), (-3.0, 2.0), (1.0, 1.0), (0.0, 1.5), (1.5, 0.0)])
def test_the_hessian_of_two_levels(tau: float, lam: float) -> None:
    """FedTilt's T10: covariances within and between groups, by their tilts, on top of the weighted Hessians."""
    _, gradient, hessian, w, slopes, bends = _at(tau, lam, _V)
    np.testing.assert_allclose(gradient, w @ slopes, atol=1e-12)
    omega = np.array([w[g == _GROUPS].sum() for g in range(3)])
    within = np.array([w[g == _GROUPS] @ slopes[g == _GROUPS] / omega[g] for g in range(3)])
    expected = tau * _covariance(omega, within) + np.einsum("i,ijk->jk", w, bends)
    for g in range(3):
        members = g == _GROUPS
        expected = expected + omega[g] * lam * _covariance(w[members] / omega[g], slopes[members])
    np.testing.assert_allclose(hessian, expected, atol=1e-9)


def test_positive_tilts_keep_curvature_and_bound_it() -> None:
    """T11, T12: from the losses' curvature to that plus tilt / 4 times squared differences; negative tilts lose it."""
    least = np.inf
    for tau, lam in [(0.0, 0.0), (1.0, 5.0), (10.0, 0.5), (30.0, 30.0), (-40.0, -40.0)]:
        for v in np.random.default_rng(5).normal(size=(5, 3)):
            _, _, hessian, w, slopes, bends = _at(tau, lam, v)
            eigen = np.linalg.eigvalsh(hessian)
            top = np.linalg.eigvalsh(bends).max()
            omega = np.array([w[g == _GROUPS].sum() for g in range(3)])
            centres = [w[g == _GROUPS] @ slopes[g == _GROUPS] / max(omega[g], 1e-300) for g in range(3)]
            inner = max(_diameter(slopes[g == _GROUPS]) for g in range(3))
            slack = max(tau, 0) / 4 * _diameter(np.array(centres)) ** 2 + max(lam, 0) / 4 * inner**2
            assert eigen.max() <= top + slack + 1e-10
            if tau >= 0:
                assert eigen.min() >= _RIDGE - 1e-10
            else:
                least = min(least, eigen.min())
    assert least < _RIDGE - 0.05


def _diameter(x: np.ndarray) -> float:
    return float(np.max(np.linalg.norm(x[:, None] - x[None], axis=-1)))


@pytest.mark.parametrize(("tau", "lam"), [(0.0, 0.0), (1.0, 5.0), (10.0, 0.5)])
def test_gradients_are_long_away_from_the_minimum(tau: float, lam: float) -> None:
    """FedTilt's T13: ``|grad|^2 / 2 >= m (f - f*)`` with the ridge for ``m``, not with ten times the ridge."""
    v = np.zeros(3)
    for _ in range(60):
        _, gradient, hessian, *_ = _at(tau, lam, v)
        v = v - 0.7 * np.linalg.solve(hessian, gradient)
    least = float(_at(tau, lam, v)[0])
    far = [_at(tau, lam, v + step) for step in np.random.default_rng(6).normal(size=(10, 3))]
    ratios = [0.5 * np.sum(gradient**2) / (value - least) for value, gradient, *_ in far]
    assert min(ratios) >= _RIDGE and min(ratios) < 10 * _RIDGE
