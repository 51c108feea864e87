"""MentorNet-PD: a predefined curriculum from all examples to those of small loss, with example drop-out."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evenhand.centralized._weighting import Weighed, Weighting, check_moving, moved_percentile
from evenhand.errors import EvenhandError, real_number
from evenhand.types import Array, Model

__all__ = ["mentornet_pd"]

_BURN_IN, _SOFT = 18, 90
"""The last percent of training with weights of 1, and the first with weights between 0 and 1."""
_EARLY = 17
"""The percents of training with the early drop-out."""


def mentornet_pd(
    percentile: float = 75.0,
    *,
    gamma: float = 1.0,
    momentum: float = 0.5,
    early_dropout: float = 0.5,
    late_dropout: float = 0.05,
) -> Weighting:
    r"""The predefined curriculum of MentorNet: all examples, then those of small loss, then weights in proportion.

    With :math:`e = \lfloor 100 \cdot \text{progress} \rfloor`, the percent of training that is done, and
    :math:`\bar L = 0` before the first step,

    .. math::
        \bar L \leftarrow \beta \bar L + (1 - \beta) \operatorname{pct}_p(f_1, \dots, f_m), \qquad
        v_i = \begin{cases}
          1 & e \le 18 \\
          \mathbb 1[f_i \le \bar L] & 18 < e < 90 \\
          \operatorname{clip}\big(1 - (f_i - \bar L) / \gamma,\ 0,\ 1\big) & e \ge 90
        \end{cases}

    Then example drop-out keeps the weights :math:`w_i = v_i` of :math:`\lfloor m (1 - r) \rfloor` examples of the
    batch, chosen at random, and sets the others to 0; :math:`r` is ``early_dropout`` for :math:`e < 17`, then
    ``late_dropout``.  Weights are not normalised.

    Args:
      percentile: :math:`p \in [0, 100]`; in the paper 75 for 20 and 40 % noisy labels, 50 for 80 %.
      gamma: :math:`\gamma > 0`, in units of loss, 1 in the paper.
      momentum: :math:`\beta \in [0, 1)`, the share of the earlier batches, 0.5 in the paper.
      early_dropout: the rate :math:`r \in [0, 1)` in the first 17 % of training, 0.5 in the paper.
      late_dropout: the rate afterwards, 0.05 in the paper.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: without drop-out, the part between 19 and 89 % is :func:`evenhand.centralized.self_paced`.  Progress is
    measured by the ``steps`` of :func:`evenhand.centralized.weighted`; steps beyond these are like the last one.  A
    batch may lose all of its examples: a batch of one does whenever :math:`r > 0`.

    Differs from the paper, in which a network that was trained on these rules gives the weights: here the rules
    themselves do.  The percentile is interpolated between two losses; the reference code takes the nearer of them.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> losses, key = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0]), jax.random.key(0)
      >>> mentor = mentornet_pd(percentile=75, gamma=2.0, early_dropout=0.0, late_dropout=0.0)
      >>> def weights(progress):
      ...     batch = eh.centralized.Weighed((), x=None, y=None, losses=losses, progress=progress, key=key)
      ...     return mentor.weigh(None, mentor.init(None, None, None), batch)[0].tolist()
      >>> weights(0.0), weights(0.5), weights(0.9)
      ([1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.75, 0.25, 0.0])

    Source: Jiang et al., *MentorNet: Learning Data-Driven Curriculum for Very Deep Neural Networks on Corrupted
    Labels*, ICML 2018; Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, table 7.4.
    """
    check_moving("mentornet_pd", percentile, momentum)
    if not 0.0 < real_number(gamma) < math.inf:
        raise EvenhandError(f"mentornet_pd(gamma={gamma}): give a finite number above 0.")
    for rate in (early_dropout, late_dropout):
        if not 0.0 <= real_number(rate) < 1.0:
            raise EvenhandError(f"mentornet_pd(): a drop-out rate must lie in [0, 1), but one is {rate}.")

    def init(model: Model, x: Array, y: Array) -> Array:
        return jnp.float32(0.0)

    def weigh(model: Model, state: Array, batch: Weighed) -> tuple[Array, Array]:
        losses, size = batch.losses, batch.losses.shape[0]
        # In float32, 100 times a share such as 0.29 is a little less than 29.
        percent = jnp.floor(100.0 * batch.progress + 2.0**-15)
        average = moved_percentile(state, losses, percentile, momentum)
        easy = (losses <= average).astype(losses.dtype)
        soft = jnp.clip(1.0 - (losses - average) / gamma, 0.0, 1.0)
        weights = jnp.where(percent <= _BURN_IN, 1.0, jnp.where(percent < _SOFT, easy, soft))
        early, late = (math.floor(size * (1.0 - rate) + 1e-9) for rate in (early_dropout, late_dropout))
        places = jax.random.permutation(batch.key, size)
        kept = places < jnp.where(percent < _EARLY, early, late)
        return jnp.where(kept, weights, 0.0), average.astype(state.dtype)

    rates = f"early_dropout={early_dropout:g}, late_dropout={late_dropout:g}"
    name = f"mentornet_pd(percentile={percentile:g}, gamma={gamma:g}, momentum={momentum:g}, {rates})"
    return Weighting(init, weigh, name)
