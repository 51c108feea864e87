"""Random weights: a baseline that shows whether a rule for weights does better than chance."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evenhand.centralized._weighting import Weighed, Weighting, normalised, stateless
from evenhand.types import Array, Model, PyTree

__all__ = ["random_weights"]


def random_weights() -> Weighting:
    r"""Rectified Gaussian weights, drawn anew for each batch (RandomRect).

    .. math::
        w_i = \frac{m \max(0, z_i)}{\sum_{j \le m} \max(0, z_j)}, \qquad z_i \sim \mathcal N(0, 1)

    Half of the examples have no weight on average; the weights of a batch have a mean of 1.

    Edge cases: if no :math:`z_i` is above 0 (probability :math:`2^{-m}`), all weights are 0.

    Differs from the paper's code, which normalises to a sum of 1 and sums the losses: the same step.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> key = jax.random.key(0)
      >>> batch = eh.centralized.Weighed((), x=None, y=None, losses=jnp.ones(1000), progress=0.0, key=key)
      >>> weights, _ = random_weights().weigh(None, (), batch)
      >>> round(float(weights.mean()), 3), round(float((weights == 0).mean()), 1)
      (1.0, 0.5)

    Source: Ren et al., *Learning to Reweight Examples for Robust Deep Learning*, ICML 2018, the random baseline; Li et
    al., *On Tilted Losses in Machine Learning*, JMLR 2023, table 7.4.
    """

    def weigh(model: Model, state: PyTree, batch: Weighed) -> tuple[Array, PyTree]:
        draws = jax.random.normal(batch.key, batch.losses.shape, batch.losses.dtype)
        return normalised(jnp.maximum(draws, 0.0)), state

    return Weighting(stateless, weigh, "random_weights()")
