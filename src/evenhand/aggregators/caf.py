"""The covariance-bound agnostic filter."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from evenhand.aggregators.stacked import mean_of, products, robust
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["caf"]

_SQUARES = 24
"""A matrix to the power ``2^24`` has only its first eigenvector left, even of eigenvalues a millionth apart."""


class _Weights(NamedTuple):
    """The weights now, and those with the least largest eigenvalue so far."""

    now: Array
    best: Array
    least: Array


def caf(malicious: int) -> Stack:
    r"""CAF: covariance-based filter; lowers the weights of uploads far out in the direction of largest variance.

    .. math::
        \mu_c = \frac{\sum_k c_k \Delta_k}{\sum_k c_k}, \qquad
        \Sigma_c = \frac{\sum_k c_k (\Delta_k - \mu_c)(\Delta_k - \mu_c)^\top}{\sum_k c_k}, \qquad
        c_k \leftarrow c_k \Big(1 - \frac{\tau_k}{\max_j \tau_j}\Big), \quad
        \tau_k = \langle v, \Delta_k - \mu_c \rangle^2

    from :math:`c_k = 1`, while :math:`\sum_k c_k > m - 2f`; :math:`v` is the first eigenvector of :math:`\Sigma_c`,
    :math:`\lambda_c` its eigenvalue.  The direction is the :math:`\mu_c` with the least :math:`\lambda_c`.

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: withstands :math:`f < m / 2`, with an error near the best possible for the honest uploads' covariance,
    whose size need not be known.  Reported weights are ignored, so that none can be gained by lying; the price is that
    a client with 0.6 % of the examples counts as much as one with 30 %.

    Edge cases: ``malicious=0`` and uploads that all agree give the mean; without any upload, zeros.  :math:`m` counts
    the accepted uploads.

    Differs from the paper: none known.  The eigenvector comes from the inner products of the uploads, by squaring
    their matrix until only the first is left, without a random start.

    Cost: the inner products, :math:`m^2 d`, and products of the size :math:`m^3` in each of at most :math:`m` steps.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> [round(x, 3) for x in eh.aggregators.aggregate(caf(1), jnp.array([[0.0], [1.0], [2.0], [90.0]])).tolist()]
      [1.007]

    Source: Allouah, Guerraoui and Stephan, *Towards Trustworthy Federated Learning with Untrusted Participants*, ICML
    2025, algorithm 2.
    """

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        inner, accepted = products(uploads.delta, present, key), present.astype(jnp.float32)
        enough = jnp.maximum(jnp.sum(accepted) - 2.0 * malicious, 0.0)

        def goes_on(weights: _Weights) -> Array:
            return (jnp.sum(weights.now) > enough) & (weights.least > 0)

        def step(weights: _Weights) -> _Weights:
            largest, tau = _first(inner, weights.now)
            tau = jnp.where(weights.now > 0, tau, 0.0)
            better, top = largest < weights.least, jnp.max(tau)
            fewer = weights.now * (1.0 - tau / jnp.where(top > 0, top, 1.0))
            # 1 - x / x need not be 0, and far uploads show every remainder.
            fewer = jnp.where(tau >= top, 0.0, fewer)
            best = jnp.where(better, weights.now, weights.best)
            return _Weights(fewer, best, jnp.minimum(largest, weights.least))

        begin = step(_Weights(accepted, accepted, jnp.float32(jnp.inf)))
        return mean_of(uploads, lax.while_loop(goes_on, step, begin).best)

    return robust("caf", malicious, lambda m: m > 2 * malicious, reduced)


def _first(inner: Array, weights: Array) -> tuple[Array, Array]:
    """The largest eigenvalue of the weighted covariance, and the squared coordinates along its eigenvector, ``(m,)``.

    With the deviations as rows of ``X`` and the weights ``c`` on the diagonal of ``C``, the covariance ``X' C X`` has
    the eigenvalues of ``A = C^(1/2) X X' C^(1/2)``, and an eigenvector ``u`` of that one gives ``v = X' C^(1/2) u``.
    """
    # Without those that have no weight left, which may be far larger, and to a size whose squares float32 can hold.
    inside = jnp.where((weights[:, None] > 0) & (weights[None, :] > 0), inner, 0.0)
    scale = jnp.maximum(jnp.max(jnp.abs(inside)), 1e-30)
    inner = inside / scale
    share = weights / jnp.maximum(jnp.sum(weights), 1e-30)
    root, mean = jnp.sqrt(share), inner @ share
    around = inner - mean[:, None] - mean[None, :] + jnp.dot(share, mean)
    matrix = root[:, None] * around * root[None, :]

    def square(_: int, power: Array) -> Array:
        power = power / jnp.maximum(jnp.max(jnp.diagonal(power)), 1e-30)
        return jnp.matmul(power, power, precision="highest")

    power = lax.fori_loop(0, _SQUARES, square, matrix)
    first = power[:, jnp.argmax(jnp.diagonal(power))]
    first = first / jnp.maximum(jnp.linalg.norm(first), 1e-30)
    largest = jnp.maximum(jnp.dot(first, matrix @ first), 0.0)
    return scale * largest, jnp.square(around @ (root * first)) / jnp.maximum(largest, 1e-30)
