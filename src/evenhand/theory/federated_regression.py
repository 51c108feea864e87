"""Federated linear regression: the best penalty, the models at any penalty, and the best estimate of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, whole_number
from evenhand.theory.point_estimation import (
    LARGEST,
    NDArray,
    PointEstimation,
    in_range,
    penalty,
    point_estimation,
)

__all__ = ["FederatedRegression", "federated_regression", "posterior_means", "ridge"]


class FederatedRegression(NamedTuple):
    """A federation of linear regressions with like features; made by :func:`federated_regression`.

    Attributes:
      coordinate: what each coordinate of the models is: a point estimation, whose penalty is ``1 / scale`` of this one.
      scale: :math:`\\beta / n`.
      features: :math:`d`.
    """

    coordinate: PointEstimation
    scale: float
    features: int

    @property
    def best_lambda(self) -> float:
        """The penalty with the smallest error."""
        return self.scale * self.coordinate.best_lambda

    def error(self, lam: float) -> float:
        """The expected squared distance of a benign client's model from its true one, at any penalty."""
        return self.features * self.coordinate.error(penalty(lam) / self.scale)

    def pooled_variance(self, lam: float) -> float:
        """The variance of that squared distance over draws of everything."""
        return self.features * self.coordinate.pooled_variance(penalty(lam) / self.scale)


def federated_regression(
    *,
    sigma: float,
    examples: int,
    tau: float,
    clients: int,
    features: int,
    beta: float,
    malicious: int = 0,
    malicious_tau: float | None = None,
) -> FederatedRegression:
    r"""Federated linear regression: clients with related models and orthogonal features.

    .. math::
        w_k = \theta + \mathcal N(0, \tau^2 I_d), \qquad y_k = X_k w_k + \mathcal N(0, \sigma^2 I_n), \qquad
        X_k^\top X_k = \beta I_d, \qquad F_k(v) = \frac{1}{2 n} \|X_k v - y_k\|^2

    .. math::
        \lambda^* = \frac{\sigma^2}{n} \cdot \frac{K}{K \tau^2 + \frac{K_a}{K - 1} (\tau_a^2 - \tau^2)}

    which depends neither on :math:`\beta` nor on :math:`d`; without malicious clients it is
    :math:`\sigma^2 / (n \tau^2)`, and Ditto's model there is the best estimate that any method could make of the data.

    Args:
      sigma, examples, tau, clients, malicious, malicious_tau: as for :func:`evenhand.theory.point_estimation`.
      features: :math:`d`, at most ``examples``: the columns of :math:`X_k` are orthogonal.
      beta: :math:`\beta > 0`.

    Raises:
      EvenhandError: a number out of range.

    Differs from the paper, which prints :math:`F_k = \frac1n \|X_k v - y_k\|^2`: its formulas hold for half of
    that, and all best penalties double otherwise.

    Example:
      >>> problem = federated_regression(sigma=1.0, examples=20, tau=0.1, clients=20, features=5, beta=7.0)
      >>> round(problem.best_lambda, 6)
      5.0

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, section 3.3 and
    appendix A.2.
    """
    features = whole_number("features", features, 1)
    examples = whole_number("examples", examples, 1)
    if features > examples:
        raise EvenhandError(
            f"features={features}, examples={examples}: orthogonal features need at least as many examples: give fewer "
            "features, or more examples."
        )
    if not in_range(sigma, beta):
        raise EvenhandError(
            f"sigma={sigma}, beta={beta}: give finite numbers, beta and sigma above 0, from 1e-50 to 1e50."
        )
    per_unit = point_estimation(
        sigma=sigma * math.sqrt(examples / beta),
        examples=examples,
        tau=tau,
        clients=clients,
        malicious=malicious,
        malicious_tau=malicious_tau,
    )
    return FederatedRegression(per_unit, beta / examples, features)


def ridge(xs: Sequence[npt.ArrayLike], ys: Sequence[npt.ArrayLike], lam: float) -> tuple[NDArray, NDArray]:
    r"""Ditto in closed form: the global model and all personal models, on any linear regressions.

    .. math::
        w^* = \Big(\sum_k X_k^\top X_k\Big)^{-1} \sum_k X_k^\top y_k, \qquad
        \hat w_k = \Big(\tfrac{1}{n_k} X_k^\top X_k + \lambda I\Big)^{-1}
        \Big(\tfrac{1}{n_k} X_k^\top y_k + \lambda w^*\Big)

    Args:
      xs: features of each client, ``(n_k, d)``.
      ys: its targets, ``(n_k,)``.
      lam: :math:`\lambda \ge 0`, which may be infinite.

    Returns:
      :math:`w^*`, ``(d,)``, and :math:`\hat w`, ``(K, d)``.

    Raises:
      EvenhandError: the arrays do not go together; ``lam`` is negative or NaN; or examples do not determine a model:
        those of all clients together, or, for ``lam=0``, of one client.

    Example:
      >>> center, own = ridge([[[1.0]], [[1.0]]], [[0.0], [2.0]], lam=1.0)
      >>> center.tolist(), own.tolist()
      ([1.0], [[0.5], [1.5]])
    """
    pairs, lam = _regressions(xs, ys), penalty(lam)
    squares, products = [x.T @ x for x, _ in pairs], [x.T @ y for x, y in pairs]
    total = sum(squares, np.zeros_like(squares[0]))
    _check_rank(total, "all clients together")
    for k, square in enumerate(squares if lam == 0.0 else ()):
        _check_rank(square, f"client {k} alone")
    center = np.linalg.solve(total, sum(products, np.zeros_like(products[0])))
    if lam == math.inf:
        return center, np.stack([center] * len(pairs))
    own = [
        np.linalg.solve(square / len(y) + lam * np.eye(len(center)), product / len(y) + lam * center)
        for square, product, (_, y) in zip(squares, products, pairs, strict=True)
    ]
    return center, np.stack(own)


def posterior_means(
    xs: Sequence[npt.ArrayLike], ys: Sequence[npt.ArrayLike], *, sigma: float, tau: float
) -> NDArray:
    r"""Posterior mean of each client's model given the data of all benign clients, ``(K, d)``.

    With :math:`\Sigma_i = \sigma^2 (X_i^\top X_i)^{-1} + \tau^2 I`, what the others say of :math:`\theta` is
    :math:`\mathcal N(\mu, \Sigma_\theta)`, where :math:`\Sigma_\theta = (\sum_{i \ne k} \Sigma_i^{-1})^{-1}`
    and :math:`\mu = \Sigma_\theta \sum_{i \ne k} \Sigma_i^{-1} \hat w_i`; it is weighed with client ``k``'s own least
    squares :math:`\hat w_k` by the inverse covariances :math:`(\Sigma_\theta + \tau^2 I)^{-1}` and
    :math:`X_k^\top X_k / \sigma^2`.

    Args:
      xs, ys: as for :func:`ridge`; each :math:`X_k^\top X_k` must have an inverse.
      sigma, tau: as above, both above 0.

    Raises:
      EvenhandError: the arrays do not go together; there is one client only; a number is out of range; or the examples
        of a client do not determine a model.

    Source: Li et al. (2021), appendix A.2, lemmas 5 and 6.
    """
    pairs = _regressions(xs, ys)
    if len(pairs) < 2:
        raise EvenhandError("posterior_means() got one client: give at least two, who are related.")
    if not in_range(sigma, tau):
        raise EvenhandError(f"sigma={sigma}, tau={tau}: give numbers above 0, from 1e-50 to 1e50.")
    for k, (x, _) in enumerate(pairs):
        _check_rank(x.T @ x, f"client {k} alone")
    unit = np.eye(pairs[0][0].shape[1])
    own = [x.T @ x / sigma**2 for x, _ in pairs]
    fits = [np.linalg.solve(x.T @ x, x.T @ y) for x, y in pairs]
    says = [np.linalg.inv(np.linalg.inv(information) + tau**2 * unit) for information in own]
    models: list[NDArray] = []
    for k, information in enumerate(own):
        others = [i for i in range(len(pairs)) if i != k]
        covariance = np.linalg.inv(sum((says[i] for i in others), np.zeros_like(unit)))
        center = covariance @ sum((says[i] @ fits[i] for i in others), np.zeros(len(unit)))
        prior = np.linalg.inv(covariance + tau**2 * unit)
        models.append(np.linalg.solve(prior + information, prior @ center + information @ fits[k]))
    return np.stack(models)


def _regressions(xs: Sequence[npt.ArrayLike], ys: Sequence[npt.ArrayLike]) -> list[tuple[NDArray, NDArray]]:
    """Features and targets of each client, checked."""
    try:
        pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in zip(xs, ys, strict=True)]
    except (TypeError, ValueError):
        pairs = []
    width = pairs[0][0].shape[-1:] if pairs else ()
    fit = all(x.size and y.ndim == 1 and x.shape == (len(y), *width) for x, y in pairs)
    if not (pairs and fit and all(np.abs(part).max() <= LARGEST for pair in pairs for part in pair)):
        raise EvenhandError(
            "xs, ys: give for each client an array of features, (examples, features), and one of as many targets, of "
            "numbers up to 1e50; all clients have the same features, and at least one example."
        )
    return pairs


def _check_rank(square: NDArray, whose: str) -> None:
    """Checks that :math:`X^\\top X` has an inverse, whatever the units of the features are."""
    squares = np.diagonal(square)
    lengths = np.sqrt(np.where(squares > 0.0, squares, 1.0))
    if np.linalg.matrix_rank(square / np.outer(lengths, lengths), hermitian=True) < len(square):
        raise EvenhandError(
            f"xs: the examples of {whose} do not determine a model of {len(square)} features: give more examples, or "
            "leave out features that are combinations of others."
        )
