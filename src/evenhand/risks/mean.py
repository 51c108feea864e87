"""The mean: every loss counts by its weight."""

from __future__ import annotations

from evenhand.risks._population import linear
from evenhand.types import Risk

__all__ = ["mean"]


def mean() -> Risk:
    r"""The weighted mean, which ordinary empirical risk minimisation minimises.

    .. math:: R(f; p) = \sum_i p_i f_i

    Example:
      >>> import jax.numpy as jnp
      >>> float(mean().value(jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0])))
      2.0
    """
    return linear(lambda losses, p: p)
