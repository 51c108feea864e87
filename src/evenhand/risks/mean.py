"""Fixed weights: the mean, mixtures with given shares, and the projection of a vector onto the mixtures."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError
from evenhand.risks._population import among, linear
from evenhand.types import Array, Risk

__all__ = ["mean", "mixture", "project_simplex"]


def mean() -> Risk:
    r"""The weighted mean, which ordinary empirical risk minimisation minimises.

    .. math:: R(f; p) = \sum_i p_i f_i

    Example:
      >>> import jax.numpy as jnp
      >>> float(mean().value(jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0])))
      2.0
    """
    return linear(lambda losses, p: p)


def mixture(shares: Array | np.ndarray) -> Risk:
    r"""A mixture with fixed shares, :math:`\sum_i \lambda_i f_i`; AFL updates them with :func:`project_simplex`.

    Args:
      shares: :math:`\lambda`, ``(n,)``, none negative; scaled to sum to 1.  Weights passed to the risk itself only
        mark which losses are present.

    Raises:
      EvenhandError: a share is negative or not finite, or all are 0; when called, there is not one share per loss.

    Example:
      >>> import jax.numpy as jnp
      >>> float(mixture(jnp.array([0.0, 1.0, 3.0])).value(jnp.array([9.0, 1.0, 2.0])))
      1.75

    Source: Mohri et al., *Agnostic Federated Learning*, ICML 2019.
    """
    given = np.asarray(shares, np.float64)
    if given.ndim != 1 or not np.all(np.isfinite(given)) or np.any(given < 0) or not given.sum() > 0:
        raise EvenhandError(
            f"mixture(): shares must be a vector of numbers >= 0 that are not all 0, not {shares}."
        )

    def weigh(losses: Array, p: Array) -> Array:
        if losses.shape != given.shape:
            raise EvenhandError(f"mixture() has {given.size} shares, but got {losses.shape[0]} losses.")
        return among(p > 0, jnp.asarray(given / given.sum(), losses.dtype))

    return linear(weigh)


def project_simplex(y: Array) -> Array:
    r"""The point of the simplex :math:`\{\lambda \ge 0, \sum_i \lambda_i = 1\}` that is closest to ``y``, ``(n,)``.

    .. math::
        \lambda_i = \max(y_i + \tau, 0), \quad \tau = \frac1\rho \Big(1 - \sum_{j \le \rho} u_j\Big), \quad
        \rho = \max\Big\{i : u_i + \frac1i \Big(1 - \sum_{j \le i} u_j\Big) > 0 \Big\}

    with ``u`` the entries of ``y``, largest first.

    Example:
      >>> import jax.numpy as jnp
      >>> [round(x, 4) for x in project_simplex(jnp.array([0.9, 0.3, -0.2])).tolist()]
      [0.8, 0.2, 0.0]

    Source: Duchi et al., *Efficient Projections onto the l1-Ball for Learning in High Dimensions*, ICML 2008.
    """
    # A shift changes nothing, and entries more than 1 below the largest become 0: large entries keep their digits.
    y = jnp.maximum(y - jnp.max(y), -2.0)
    u = jnp.sort(y)[::-1]
    rank = jnp.arange(1, y.shape[0] + 1, dtype=y.dtype)
    tau = (1.0 - jnp.cumsum(u)) / rank
    rho = jnp.maximum(jnp.sum((u + tau > 0).astype(jnp.int32)), 1)
    return jnp.maximum(y + tau[rho - 1], 0.0)
