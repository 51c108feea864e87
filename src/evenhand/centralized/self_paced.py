"""Self-paced learning: examples whose loss is below a moving percentile count, the others do not."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.centralized._weighting import Weighed, Weighting, check_moving, moved_percentile
from evenhand.types import Array, Model

__all__ = ["self_paced"]


def self_paced(percentile: float = 70.0, *, momentum: float = 0.5) -> Weighting:
    r"""Weight 1 on examples whose loss is at most a moving percentile of the batches' losses, else 0.

    With :math:`\bar L = 0` before the first step and :math:`\operatorname{pct}_p` the percentile of a batch's losses,

    .. math::
        \bar L \leftarrow \beta \bar L + (1 - \beta) \operatorname{pct}_p(f_1, \dots, f_m), \qquad
        w_i = \mathbb 1[f_i \le \bar L]

    Weights are not normalised: with many examples left out the step is short.

    Args:
      percentile: :math:`p \in [0, 100]`, 70 in the paper; about the share of examples that count.
      momentum: :math:`\beta \in [0, 1)`, the share of the earlier batches, 0.5 in the paper.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: :math:`\bar L` starts at 0, so the first steps leave out more examples; if losses are about equal, they
    leave out all.  ``percentile=100, momentum=0`` is plain training.

    Differs from the paper, in which a network that was trained on this rule gives the weights: here the rule itself
    does.  The percentile is interpolated between two losses; the reference code takes the nearer of them.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> losses = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0])
      >>> paced = self_paced(percentile=75)
      >>> batch = eh.centralized.Weighed((), x=None, y=None, losses=losses, progress=0.0, key=None)
      >>> weights, average = paced.weigh(None, paced.init(None, None, None), batch)
      >>> weights.tolist(), float(average)
      ([1.0, 1.0, 0.0, 0.0, 0.0], 1.5)

    Source: Kumar et al., *Self-Paced Learning for Latent Variable Models*, NIPS 2010, as in Jiang et al., *MentorNet*,
    ICML 2018; Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, table 7.4.
    """
    check_moving("self_paced", percentile, momentum)

    def init(model: Model, x: Array, y: Array) -> Array:
        return jnp.float32(0.0)

    def weigh(model: Model, state: Array, batch: Weighed) -> tuple[Array, Array]:
        average = moved_percentile(state, batch.losses, percentile, momentum)
        return (batch.losses <= average).astype(batch.losses.dtype), average.astype(state.dtype)

    moving = "" if momentum == 0.5 else f", momentum={momentum:g}"
    return Weighting(init, weigh, f"self_paced(percentile={percentile:g}{moving})")
