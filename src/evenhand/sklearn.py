"""Tilted losses as estimators of scikit-learn: linear models that converge without tuning.

They work in NumPy and float64, with SciPy's L-BFGS, rather than in JAX: a table of some thousand rows is fitted before
JAX would have compiled the first step, and pipelines, searches and cross-validation fit many times.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]  (documented for estimators of others)
    check_is_fitted,
    validate_data,
)

from evenhand.errors import EvenhandError

__all__ = ["TiltedClassifier", "TiltedRegressor"]

NDArray = npt.NDArray[Any]
Objective = Callable[[NDArray, float], tuple[float, NDArray]]
"""``(theta, t)`` -> the objective at this tilt, and its gradient."""


# scikit-learn clones and searches estimators through the base class, so that these two subclass it.
class TiltedClassifier(ClassifierMixin, BaseEstimator):
    r"""Softmax regression on the t-tilted cross-entropy, for rare and hard classes (``t > 0``) or false labels (< 0).

    .. math::
        \min_{W, b} \frac1t \log \sum_i p_i e^{t f_i(W, b)} + \frac{\alpha}{2} \|W\|^2, \qquad
        f_i = -\log \operatorname{softmax}(W^\top x_i + b)_{y_i}

    with :math:`p` the sample weights, scaled to sum to 1, and features that are standardised inside.

    Args:
      t: the tilt; 0 is logistic regression, ``t > 0`` gives examples of high loss more weight, ``t < 0`` less.
      over: ``"examples"``; or ``"classes"``, to tilt the mean losses of the classes, which evens these out.
      alpha: the penalty on the weights of standardised features, >= 0.
      max_iter: most iterations of L-BFGS from each start.
      tol: the largest component of the gradient at which it stops; it also stops at a step that lowers the objective by
        less than 1e-11, or that share of it.

    Once fitted, it has ``classes_``, ``(C,)``; ``coef_`` and ``intercept_`` for features on their own scale, ``(C,
    features)`` and ``(C,)``, or one row for two classes; ``n_iter_``; and ``objective_``, the minimum.

    Raises:
      EvenhandError: a number out of range, features above 1e150, or labels of a single class.

    Edge cases: for ``t < 0`` the problem is not convex.  The tilt is ramped from 0, and the lower of the two minima
    that this path and a start at 0 lead to is kept.

    Example:
      >>> from sklearn.datasets import make_classification
      >>> x, y = make_classification(400, weights=[0.95], flip_y=0.02, random_state=0)
      >>> rare = y == 1
      >>> [round(TiltedClassifier(t=t, over="classes").fit(x, y).score(x[rare], y[rare]), 2) for t in (0.0, 10.0)]
      [0.36, 0.8]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, sections on robust classification and on class
    imbalance.
    """

    def __init__(
        self,
        t: float = 1.0,
        *,
        over: str = "examples",
        alpha: float = 1e-4,
        max_iter: int = 5000,
        tol: float = 1e-6,
    ) -> None:
        self.t, self.over, self.alpha, self.max_iter, self.tol = t, over, alpha, max_iter, tol

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TiltedClassifier:
        """Fits the model to ``X``, ``(n, features)``, and the classes ``y``, ``(n,)``."""
        table, y = _table_and_labels(self, X, y, numeric=False)
        check_classification_targets(y)
        _check(self)
        if self.over not in ("examples", "classes"):
            raise EvenhandError(f"TiltedClassifier(over={self.over!r:.40}): give 'examples' or 'classes'.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        count, rows = len(self.classes_), np.arange(len(codes))
        if count < 2:
            raise EvenhandError("TiltedClassifier needs at least 2 classes, but all labels are of 1 class.")
        p = _shares(sample_weight, table)
        features = _Features.of(table, p)
        groups = codes if self.over == "classes" else None

        def objective(theta: NDArray, t: float) -> tuple[float, NDArray]:
            coefficients = theta.reshape(-1, count)
            logs = log_softmax(features.scores(coefficients), axis=1)
            value, weights = tilted(-logs[rows, codes], p, t, groups)
            slopes = np.exp(logs)
            slopes[rows, codes] -= 1.0
            return features.penalised(value, weights[:, None] * slopes, coefficients, self.alpha)

        theta, self.objective_, self.n_iter_ = _minimum(
            objective, np.zeros((table.shape[1] + 1) * count), self.t, self.max_iter, self.tol
        )
        coefficients, intercept = features.unscaled(theta.reshape(-1, count))
        if count == 2:  # the second class against the first
            coefficients, intercept = np.diff(coefficients, axis=0), np.diff(intercept)
        self.coef_, self.intercept_ = coefficients, intercept
        return self

    def decision_function(self, X: Any) -> NDArray:
        """Logits, ``(n, C)``; of two classes, that of the second against the first, ``(n,)``."""
        check_is_fitted(self)
        table = _new_rows(self, X)
        scores = table @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> NDArray:
        """The softmax of the logits, ``(n, C)``; a tilt makes them no estimates of the classes' probabilities."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        return np.exp(log_softmax(scores, axis=1))

    def predict(self, X: Any) -> NDArray:
        """The likeliest class of each row, ``(n,)``."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]


class TiltedRegressor(RegressorMixin, BaseEstimator):
    r"""Linear regression on the t-tilted squared error: robust to outliers for ``t < 0``, even for ``t > 0``.

    .. math::
        \min_{w, b} \frac1t \log \sum_i p_i e^{t f_i(w, b)} + \frac{\alpha}{2} \|w\|^2, \qquad
        f_i = \Big( \frac{w^\top x_i + b - y_i}{s} \Big)^2

    with :math:`p` the sample weights, scaled to sum to 1, features that are standardised inside, and :math:`s` the
    spread of the targets: 1.4826 times their median absolute deviation from the median, which outliers do not move, or
    the standard deviation where that is 0.

    Args:
      t: the tilt; 0 is least squares, ``t < 0`` gives examples of high loss less weight, ``t > 0`` more.
      alpha: the penalty on the weights of standardised features, >= 0.
      max_iter: most iterations of L-BFGS from each start.
      tol: the largest component of the gradient at which it stops; it also stops at a step that lowers the objective by
        less than 1e-11, or that share of it.

    Once fitted, it has ``coef_``, ``(features,)``, and ``intercept_`` for features and targets on their own scales;
    ``scale_``, :math:`s`; ``n_iter_``; and ``objective_``, the minimum.

    Raises:
      EvenhandError: a number out of range, or features or targets above 1e150.

    Edge cases: as for :class:`TiltedClassifier`.

    Example:
      >>> import numpy as np
      >>> x = np.arange(20.0)[:, None]
      >>> y = np.where(np.arange(20) < 16, 3.0 * x[:, 0], 200.0)  # a fifth are outliers
      >>> [round(float(TiltedRegressor(t=t).fit(x, y).coef_[0]), 2) for t in (0.0, -2.0)]
      [10.08, 3.0]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, section on robust regression.
    """

    def __init__(
        self, t: float = -2.0, *, alpha: float = 1e-6, max_iter: int = 5000, tol: float = 1e-6
    ) -> None:
        self.t, self.alpha, self.max_iter, self.tol = t, alpha, max_iter, tol

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TiltedRegressor:
        """Fits the model to ``X``, ``(n, features)``, and the targets ``y``, ``(n,)``."""
        table, y = _table_and_labels(self, X, y, numeric=True)
        _check(self)
        p = _shares(sample_weight, table)
        features, targets = _Features.of(table, p), np.asarray(y, np.float64)
        center = _median(targets, p)
        spread = 1.4826 * _median(np.abs(targets - center), p)
        self.scale_ = spread or math.sqrt(p @ np.square(targets - p @ targets)) or 1.0
        targets = (targets - center) / self.scale_

        def objective(theta: NDArray, t: float) -> tuple[float, NDArray]:
            residuals = features.scores(theta[:, None])[:, 0] - targets
            value, weights = tilted(np.square(residuals), p, t)
            return features.penalised(value, (2.0 * weights * residuals)[:, None], theta[:, None], self.alpha)

        theta, self.objective_, self.n_iter_ = _minimum(
            objective, np.zeros(table.shape[1] + 1), self.t, self.max_iter, self.tol
        )
        coefficients, intercept = features.unscaled(theta[:, None])
        self.coef_ = self.scale_ * coefficients[0]
        self.intercept_ = float(self.scale_ * intercept[0] + center)
        return self

    def predict(self, X: Any) -> NDArray:
        """The predictions, ``(n,)``."""
        check_is_fitted(self)
        table = _new_rows(self, X)
        return table @ self.coef_ + self.intercept_


# --- the tilted loss, its minimum, and features of one scale --------------------------------------------------------


def tilted(losses: NDArray, p: NDArray, t: float, groups: NDArray | None = None) -> tuple[float, NDArray]:
    """The tilted loss and its weights, which are its gradient; with ``groups``, over the mean losses of groups."""
    if groups is not None:
        masses = np.bincount(groups, p)
        safe = np.where(masses > 0, masses, 1.0)
        value, weights = tilted(np.bincount(groups, p * losses) / safe, masses, t)
        return value, (weights / safe)[groups] * p
    logs = np.log(p, where=p > 0, out=np.full_like(p, -np.inf))
    spread = np.ptp(losses[p > 0])
    if (
        abs(t) * spread < 1e-6
    ):  # where a difference of logarithms would lose the digits: the mean and half a variance
        mean = p @ losses
        return float(mean + 0.5 * t * (p @ np.square(losses - mean))), p
    powers = t * losses + logs
    total = logsumexp(powers)
    return float(total / t), np.exp(powers - total)


_STAGES = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Shares of the tilt through which it is ramped."""


def _minimum(
    objective: Objective, zeros: NDArray, t: float, max_iter: int, tol: float
) -> tuple[NDArray, float, int]:
    """``(theta, value, iterations)``: the lower of the minima that a ramp of the tilt and a start at 0 lead to."""
    theta, iterations = zeros, 0
    for share in _STAGES if t != 0.0 else ():
        # A stage only gives the next one its start: it need not be exact.
        stage = minimize(
            objective, theta, args=(share * t,), jac=True, method="L-BFGS-B", options={"maxiter": 100}
        )
        theta, iterations = stage.x, iterations + stage.nit
    options = {"maxiter": max_iter, "gtol": tol, "ftol": 1e-11, "maxfun": 20 * max_iter}
    ends = [
        minimize(objective, start, args=(t,), jac=True, method="L-BFGS-B", options=options)
        for start in ((theta, zeros) if t < 0 else (theta,))
    ]
    best = min(ends, key=lambda end: end.fun)
    if best.status == 1:
        warnings.warn(
            f"The fit stopped after max_iter={max_iter} iterations: raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return best.x, float(best.fun), int(iterations + sum(end.nit for end in ends))


class _Features(NamedTuple):
    """Features with mean 0 and deviation 1 under the sample weights, and a column of ones; constant ones are 0."""

    rows: NDArray
    means: NDArray
    scales: NDArray

    @staticmethod
    def of(table: NDArray, p: NDArray) -> _Features:
        means = p @ table
        centred = table - means
        deviations = np.sqrt(p @ np.square(centred))
        # A mean is rounded, so that the deviation of a constant may not be exactly 0.
        scales = np.where(deviations > 1e-12 * np.abs(means), deviations, np.inf)
        return _Features(np.hstack([centred / scales, np.ones((len(table), 1))]), means, scales)

    def scores(self, theta: NDArray) -> NDArray:
        """``(n, outputs)``, from ``(features + 1, outputs)`` with the intercepts last."""
        return self.rows @ theta

    def penalised(self, value: float, slopes: NDArray, theta: NDArray, alpha: float) -> tuple[float, NDArray]:
        """An objective with its penalty, and the gradient, from the slopes of the scores."""
        gradient = self.rows.T @ slopes
        gradient[:-1] += alpha * theta[:-1]
        return value + 0.5 * alpha * float(np.sum(np.square(theta[:-1]))), gradient.ravel()

    def unscaled(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        """``(coefficients, intercepts)`` for features on their own scale: ``(outputs, features)``, ``(outputs,)``."""
        coefficients = theta[:-1].T / self.scales
        return coefficients, theta[-1] - coefficients @ self.means


def _shares(sample_weight: Any, table: NDArray) -> NDArray:
    """The sample weights, scaled to sum to 1."""
    weights = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
    if not (total := weights.sum()) > 0:
        raise EvenhandError("All sample weights are zero: give at least one example some weight.")
    return weights / total


def _median(values: NDArray, p: NDArray) -> float:
    """The smallest value up to which half of the weight lies: the same if examples are repeated or weighted."""
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(p[order]), 0.5 - 1e-12)])


_LARGEST = 1e150
"""The square of a difference of such numbers is finite."""


def _table_and_labels(estimator: Any, X: Any, y: Any, *, numeric: bool) -> tuple[NDArray, NDArray]:
    """Features and labels as scikit-learn checks them, with the names of columns noted."""
    table, labels = map(np.asarray, validate_data(estimator, X, y, dtype=np.float64, y_numeric=numeric))
    for name, numbers in (("X", table), ("y", labels)) if numeric else (("X", table),):
        if float(np.max(np.abs(numbers))) > _LARGEST:  # which float32 cannot be compared with
            raise EvenhandError(
                f"{type(estimator).__name__}: {name} has numbers above {_LARGEST:g}, whose squares are infinite: "
                "give them in a larger unit."
            )
    return table, labels


def _new_rows(estimator: Any, X: Any) -> NDArray:
    """Rows to predict, checked against the features of the fit."""
    return np.asarray(validate_data(estimator, X, dtype=np.float64, reset=False))


def _check(estimator: TiltedClassifier | TiltedRegressor) -> None:
    """Checks the numbers that an estimator was made with."""
    limits: dict[str, tuple[float, type]] = {
        "t": (-math.inf, Real),
        "alpha": (0.0, Real),
        "tol": (0.0, Real),
        "max_iter": (1, Integral),
    }
    for name, (least, kind) in limits.items():
        value: Any = vars(estimator)[name]
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and value >= least):
            shown = "a whole number" if kind is Integral else "a finite number"
            bound = "" if least == -math.inf else f" >= {least:g}"
            raise EvenhandError(f"{type(estimator).__name__}({name}={value!r:.40}): give {shown}{bound}.")
