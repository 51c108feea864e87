"""The estimators of scikit-learn: its own checks, minima by another way, and the risk that the rest of Evenhand has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import evenhand as eh
from evenhand.sklearn import TiltedClassifier, TiltedRegressor, tilted

RNG = np.random.default_rng(1)
X = RNG.normal(size=(80, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 100.0]
Y = (X - [0.0, 5.0, 100.0]) @ [2.0, 0.3, -20.0] + 7.0 + RNG.normal(size=80)
LABELS = np.array(["b", "a", "c"])[np.argmax((X - X.mean(0)) / X.std(0) + RNG.normal(size=(80, 3)), axis=1)]


# The array API needs a setting of SciPy at its import; that check skips itself.
@pytest.mark.filterwarnings("ignore:Skipping check:sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([TiltedClassifier(), TiltedRegressor()])
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    if getattr(check.func, "__name__", "") != "check_array_api_input":
        check(estimator)


@given(
    arrays.arrays(np.float64, 5, elements=st.floats(-5, 5)),
    st.sampled_from([-30.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 30.0]),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_the_tilted_loss_is_that_of_the_risk(losses: np.ndarray, t: float, seed: int) -> None:
    p = np.random.default_rng(seed).dirichlet(np.ones(len(losses)))
    value, weights = tilted(losses, p, t)
    with jax.enable_x64(True):
        risk = eh.risks.tilted(t)
        assert value == pytest.approx(float(risk.value(jnp.asarray(losses), jnp.asarray(p))), abs=1e-6)
        np.testing.assert_allclose(weights, risk.weights(jnp.asarray(losses), jnp.asarray(p)), atol=1e-6)


def test_a_tilt_over_groups_is_that_of_the_hierarchical_risk() -> None:
    losses, p, groups = RNG.random(7), RNG.dirichlet(np.ones(7)), np.array([0, 1, 1, 2, 0, 2, 2])
    value, weights = tilted(losses, p, 3.0, groups)
    with jax.enable_x64(True):
        risk = eh.risks.hierarchical(eh.risks.tilted(3.0), eh.risks.mean(), jnp.asarray(groups), 3)
        assert value == pytest.approx(float(risk.value(jnp.asarray(losses), jnp.asarray(p))))
        np.testing.assert_allclose(weights, risk.weights(jnp.asarray(losses), jnp.asarray(p)), rtol=1e-9)


@pytest.mark.parametrize("t", [-0.5, 0.5, 5.0])
def test_the_regressor_finds_the_minimum(t: float) -> None:
    fitted = TiltedRegressor(t=t, alpha=0.0).fit(X, Y)
    median = np.sort(Y)[39]
    scale = 1.4826 * np.sort(np.abs(Y - median))[39]
    assert fitted.scale_ == pytest.approx(scale)
    Z = (X - X.mean(0)) / X.std(0)

    def objective(theta: np.ndarray) -> float:
        losses = ((Z @ theta[:3] + theta[3] - Y) / scale) ** 2
        return float((logsumexp(t * losses) - np.log(80)) / t)

    # From the least squares, which is near enough for this tilt.
    start = np.linalg.lstsq(np.hstack([Z, np.ones((80, 1))]), Y, rcond=None)[0]
    expected = minimize(
        objective, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 8000}
    )
    assert fitted.objective_ == pytest.approx(expected.fun, abs=1e-7)
    np.testing.assert_allclose(fitted.predict(X), Z @ expected.x[:3] + expected.x[3], atol=1e-3)
    assert np.abs(fitted.predict(X) - LinearRegression().fit(X, Y).predict(X)).max() > 1e-2


def test_without_a_tilt_they_are_the_usual_regressions() -> None:
    np.testing.assert_allclose(
        TiltedRegressor(t=0.0, alpha=0.0).fit(X, Y).predict(X),
        LinearRegression().fit(X, Y).predict(X),
        atol=1e-4,
    )
    usual = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (0.1 * 80), tol=1e-8)).fit(X, LABELS)
    fitted = TiltedClassifier(t=0.0, alpha=0.1, tol=1e-8).fit(X, LABELS)
    np.testing.assert_allclose(fitted.predict_proba(X), usual.predict_proba(X), atol=1e-3)
    assert (
        np.abs(
            TiltedClassifier(t=3.0, alpha=0.1).fit(X, LABELS).predict_proba(X) - usual.predict_proba(X)
        ).max()
        > 0.02
    )


def test_the_classifier_finds_the_minimum_that_l_bfgs_in_jax_finds() -> None:
    Z = ((X - X.mean(0)) / X.std(0)).astype(np.float32)
    codes = np.unique(LABELS, return_inverse=True)[1].astype(np.int32)
    model = eh.models.softmax_regression(3, classes=3)
    central = eh.centralized.fit(model, Z, codes, risk=eh.risks.tilted(2.0))
    fitted = TiltedClassifier(t=2.0, alpha=0.0).fit(X, LABELS)
    assert fitted.objective_ == pytest.approx(central.history["train_risk"][-1], abs=1e-4)
    over = eh.centralized.fit(model, Z, codes, risk=eh.risks.tilted(2.0), inner=eh.risks.mean(), groups=codes)
    classes = TiltedClassifier(t=2.0, over="classes", alpha=0.0).fit(X, LABELS)
    assert classes.objective_ == pytest.approx(over.history["train_risk"][-1], abs=1e-4)
    assert abs(classes.objective_ - fitted.objective_) > 1e-2


def test_outliers_do_not_move_a_negative_tilt() -> None:
    spoiled = Y.copy()
    spoiled[:16] = 500.0
    clean = LinearRegression().fit(X[16:], Y[16:]).predict(X)
    robust = TiltedRegressor().fit(X, spoiled).predict(X)
    assert np.abs(robust - clean).max() < 1.5
    assert np.abs(TiltedRegressor(t=0.0).fit(X, spoiled).predict(X) - clean).max() > 20


def test_a_weight_is_a_repetition() -> None:
    weights = RNG.integers(0, 4, 80)
    rows = np.repeat(np.arange(80), weights)
    for make, target in ((TiltedRegressor, Y), (TiltedClassifier, LABELS)):
        weighted = make(t=-0.3).fit(X, target, sample_weight=weights)
        repeated = make(t=-0.3).fit(X[rows], target[rows])
        assert weighted.objective_ == pytest.approx(repeated.objective_, abs=1e-6)


def test_the_unit_of_a_feature_does_not_matter() -> None:
    """Farads instead of picofarads, say."""
    usual = TiltedRegressor(t=0.0).fit(X, Y).predict(X)
    np.testing.assert_allclose(TiltedRegressor(t=0.0).fit(1e-14 * X, Y).predict(1e-14 * X), usual, atol=1e-5)


def test_they_are_searched_and_refuse_with_a_sentence() -> None:
    search = GridSearchCV(TiltedClassifier(max_iter=50, alpha=0.1), {"t": [0.0, 2.0]}, cv=2).fit(X, LABELS)
    assert search.best_params_["t"] in (0.0, 2.0)
    for estimator, fault in (
        (TiltedClassifier(t=np.inf), "t=inf.*give a finite number"),
        (TiltedClassifier(t="a"), "t='a'.*give a finite number"),  # pyright: ignore[reportArgumentType]
        (TiltedClassifier(max_iter=0), "max_iter=0.*whole number >= 1"),
        (TiltedClassifier(tol=-1.0), "tol=-1.0.*>= 0"),
        (TiltedClassifier(over="groups"), "give 'examples' or 'classes'"),
        (TiltedClassifier(alpha=-1.0), "alpha=-1.0.*>= 0"),
    ):
        with pytest.raises(eh.EvenhandError, match=fault):
            estimator.fit(X, LABELS)
    with pytest.raises(eh.EvenhandError, match="at least 2 classes"):
        TiltedClassifier().fit(X, np.zeros(80, int))
    with pytest.raises(eh.EvenhandError, match="X has numbers above 1e"):
        TiltedClassifier().fit(1e200 * X, LABELS)
    with pytest.raises(eh.EvenhandError, match="y has numbers above 1e"):
        TiltedRegressor().fit(X, 1e200 * Y)
    assert (
        TiltedRegressor().fit(X, np.float32(Y)).n_iter_ > 0
    )  # a type that has no number as large as the bound
    with pytest.raises(ValueError, match="zero"):  # scikit-learn's own sentence, in later versions
        TiltedRegressor().fit(X, Y, sample_weight=np.zeros(80))


def test_the_package_imports_them_when_they_are_asked_for() -> None:
    assert eh.sklearn.TiltedClassifier is TiltedClassifier
    with pytest.raises(AttributeError, match="no attribute 'sckit'"):
        eh.sckit  # noqa: B018  # pyright: ignore
