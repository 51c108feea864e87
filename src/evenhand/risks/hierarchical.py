"""A risk over the risks of groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.risks._population import at, risk
from evenhand.types import Array, Risk

__all__ = ["hierarchical"]


def hierarchical(outer: Risk, inner: Risk, groups: Array | np.ndarray, num_groups: int) -> Risk:
    r"""A risk, over groups, of the risk within each group; groups are weighted by their total weight.

    .. math::
        R(f; p) = R_{\text{outer}}\big( (R_{\text{inner}}(f_g; p_g))_g ;\ (\textstyle\sum_{i \in g} p_i)_g \big), \qquad
        w_i = w_{g(i)} \, w_{i | g(i)}

    With tilted risks on both levels this is hierarchical TERM, and FedTilt's loss if the groups are a client's classes.

    Args:
      outer: the risk over groups.
      inner: the risk over the losses of a group; may be hierarchical itself, over finer groups, to any depth.
      groups: ``(n,)`` whole numbers, the group of each loss, 0 up to ``num_groups - 1``; may be a tracer.
      num_groups: the number of groups; empty ones do not count.

    Raises:
      EvenhandError: ``num_groups`` is not a whole number from 1, there is not one group per loss, or a group is out of
        range; where groups are known only while a program runs, a group out of range makes the value, its gradient
        and the weights NaN instead.

    Edge cases: equal tilts on both levels give that tilted risk of all losses, whatever the groups.  With an inner risk
    whose gradient is only a multiple of its weights (``power``, ``tilted_value_at_risk``) the weights are still the
    product above, but not the direction of the gradient.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand.risks import mean, superquantile
      >>> worst_group = hierarchical(superquantile(0.1), mean(), jnp.array([0, 0, 1, 1, 1]), 2)
      >>> float(worst_group.value(jnp.array([1.0, 9.0, 2.0, 3.0, 4.0])))
      5.0

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, section on hierarchical multi-objective
    tilting; Zhang et al., *FedTilt*, 2025, footnote 3.
    """
    for name, risk_of in (("outer", outer), ("inner", inner)):
        expect(f"hierarchical({name}=)", risk_of, Risk, "eh.risks.tilted(1.0)")
    num_groups = whole_number("num_groups", num_groups, 1)
    if not isinstance(groups, Tracer):
        labels = np.asarray(groups)  # concrete even where the risk is made inside a compiled function
        if labels.dtype.kind not in "biu":
            raise EvenhandError(
                f"hierarchical() has groups of type {labels.dtype}: give the number of each loss's group, a whole "
                "number from 0."
            )
        if np.any((labels < 0) | (labels >= num_groups)):
            raise EvenhandError(
                f"hierarchical() has groups from {labels.min()} to {labels.max()}, but num_groups={num_groups}: "
                "number the groups from 0 and set num_groups to how many there are."
            )
    groups = jnp.asarray(groups)
    if not jnp.issubdtype(groups.dtype, jnp.floating):
        groups = groups.astype(jnp.int32)  # a type of 8 bits may not hold num_groups

    def split(losses: Array, p: Array) -> Array:
        """Each group's weights, ``(num_groups, n)``."""
        if groups.shape != losses.shape:
            raise EvenhandError(
                f"hierarchical() has groups of shape {groups.shape} for losses of shape {losses.shape}: "
                "give the group of each loss."
            )
        member = groups[None] == jnp.arange(num_groups, dtype=groups.dtype)[:, None]
        return jnp.where(member, p[None], 0.0)

    def lost(losses: Array, p: Array) -> Array:
        """For each loss, NaN if some loss is in no group, else 0."""
        outside = jnp.any((p > 0) & ((groups < 0) | (groups >= num_groups)))
        return jnp.full_like(losses, jnp.where(outside, jnp.nan, 0.0))

    def value(losses: Array, p: Array) -> Array:
        parts, nothing = split(losses, p), lost(losses, p)
        whole = outer.value(jax.vmap(inner.value, in_axes=(None, 0))(losses, parts), jnp.sum(parts, axis=1))
        # Added: a NaN that is chosen instead has the gradient 0.
        return whole + at(nothing[0], nothing, losses)

    def weigh(losses: Array, p: Array) -> Array:
        parts = split(losses, p)
        within = jax.vmap(inner.weights, in_axes=(None, 0))(losses, parts)
        risks = jax.vmap(inner.value, in_axes=(None, 0))(losses, parts)
        return outer.weights(risks, jnp.sum(parts, axis=1)) @ within + lost(losses, p)

    return risk(value, weigh)
