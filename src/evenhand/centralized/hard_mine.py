"""Hard example mining: all rare examples, and as many of the hardest common ones."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.centralized._weighting import Weighed, Weighting, normalised, one_class_each
from evenhand.errors import whole_number
from evenhand.types import Array, Model

__all__ = ["hard_mine"]


def hard_mine(*, rare: int | None = None) -> Weighting:
    r"""Equal weights on all rare examples of a batch and on as many common ones, those of highest loss (HardMine).

    With :math:`r` rare examples in a batch of :math:`m`,

    .. math::
        w_i = \begin{cases}
          m / |K| & i \in K \\
          0 & \text{otherwise,}
        \end{cases}
        \qquad
        K = \{\text{rare}\} \cup \{\text{the } \max(1, r) \text{ common ones of highest loss}\}

    so a step is along the mean gradient of :math:`K`.

    Args:
      rare: the label of the rare class; examples of all other classes are common.  None: the class with the fewest
        training examples, the smallest label of equally rare ones.

    Raises:
      EvenhandError: labels that are not one class per example, or ``rare`` not a whole number.

    Edge cases: a batch without a rare example trains on its hardest common one alone.  If :math:`r` is more than the
    number of common examples, all examples are kept.  Of equal losses the first ones of the batch are kept.

    Differs from the reference code, which ranks common examples by the *mean* loss of the batch times their label, the
    same number for each of them, and so keeps the first ones: here each has its own loss.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> y, losses = jnp.array([0, 0, 0, 1]), jnp.array([1.0, 3.0, 2.0, 0.0])
      >>> mine = hard_mine(rare=1)
      >>> batch = eh.centralized.Weighed((), x=None, y=y, losses=losses, progress=0.0, key=None)
      >>> mine.weigh(None, mine.init(None, None, y), batch)[0].tolist()
      [0.0, 2.0, 0.0, 2.0]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, experiments on class imbalance.
    """
    if rare is not None:
        rare = whole_number("rare", rare, -(2**31))

    def init(model: Model, x: Array, y: Array) -> Array:
        labels = jnp.sort(one_class_each("hard_mine", y))
        if rare is not None:
            return jnp.asarray(rare, labels.dtype)
        begins, ends = (jnp.searchsorted(labels, labels, side=side) for side in ("left", "right"))
        return labels[jnp.argmin(ends - begins)]

    def weigh(model: Model, state: Array, batch: Weighed) -> tuple[Array, Array]:
        is_rare = one_class_each("hard_mine", batch.y) == state
        order = jnp.argsort(jnp.where(is_rare, jnp.inf, -batch.losses))
        ranks = jnp.zeros(order.size, order.dtype).at[order].set(jnp.arange(order.size, dtype=order.dtype))
        # Rare examples rank last, so even where they outnumber the common ones this adds none of them twice.
        kept = is_rare | (ranks < jnp.maximum(jnp.sum(is_rare), 1))
        return normalised(kept.astype(batch.losses.dtype)), state

    name = "hard_mine()" if rare is None else f"hard_mine(rare={rare})"
    return Weighting(init, weigh, name)
