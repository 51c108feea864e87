"""Stochastic hierarchical TERM: groups drawn by their tilted risk, examples tilted within."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from evenhand.centralized._fit import Solver, check_parts, weighted_gradient
from evenhand.centralized.stochastic import check_rate, mixed, ramped
from evenhand.errors import EvenhandError, whole_number
from evenhand.risks import tilted
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["grouped"]


class _Groups(NamedTuple):
    """``risks``: the estimate :math:`\\tilde R_g` of each group; ``seen``: whether it was ever drawn."""

    params: Params
    optimiser: optax.OptState
    risks: Array
    seen: Array


def grouped(
    model: Model,
    *,
    groups: npt.ArrayLike,
    t: float | Callable[[Array], Array],
    tau: float | Callable[[Array], Array],
    rate: float,
    batch_size: int,
    optimiser: optax.GradientTransformation,
    start: float | None = None,
) -> Solver:
    r"""Stochastic hierarchical TERM: each step draws a group, then a batch of its examples.

    .. math::
        P(g) \propto |g| e^{t \tilde R_g}, \qquad
        \tilde R_g \leftarrow \frac1\tau \log\Big( (1 - \lambda) e^{\tau \tilde R_g}
        + \frac{\lambda}{|B|} \sum_{x \in B} e^{\tau f(x)} \Big), \qquad
        \theta \leftarrow \theta - \frac{\alpha}{|B|} \sum_{x \in B} e^{\tau (f(x) - \tilde R_g)} \nabla f(x)

    Only the drawn group's estimate is updated; the group's weight is in the probability of drawing it.

    Args:
      model: what is trained.
      groups: ``(n,)``, the group of each example, whole numbers from 0.
      t: the tilt over groups, finite; below 0, groups of high loss are avoided.  Or a function of the step number that
        gives one, to ramp it.
      tau: the tilt over the examples of a group, finite; 0: their mean, with :math:`\tilde R_g` a running mean.
        Or a function of the step number, like ``t``; the estimates, which are losses, stay as they are.
      rate: :math:`\lambda \in (0, 1]`, the share of the newest batch in :math:`\tilde R_g`.
      batch_size: examples per batch, drawn uniformly with replacement.
      optimiser: takes that gradient.
      start: a group's estimate before it is first drawn, 0 in the paper; None: 0 too, but its first batch replaces it.

    Raises:
      EvenhandError: a number out of range, or groups that are not whole numbers from 0.

    Edge cases: groups are drawn by adding Gumbel noise to :math:`t \tilde R_g + \log |g|`, which works for any sign
    of ``t``; groups without rows are never drawn.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.ones((10, 1)), jnp.where(jnp.arange(10) < 9, 0.0, 1.0)  # nine rows against one
      >>> even = dict(groups=y.astype(int), tau=0.0, rate=0.5, batch_size=4, optimiser=optax.sgd(0.02))
      >>> params = eh.centralized.fit(grouped(model, t=20.0, **even), x, y, steps=4000).params
      >>> bool(abs(model.apply(params, x)[0] - 0.5) < 0.1)
      True

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the stochastic solver of hierarchical TERM.
    """
    check_parts(model, optimiser)
    member = np.asarray(groups)
    if member.ndim != 1 or not np.issubdtype(member.dtype, np.integer) or member.min(initial=0) < 0:
        raise EvenhandError(
            f"grouped(): groups must be whole numbers from 0, one per row, not {groups!r:.60}."
        )
    outer, inner = ramped("t", t, "grouped"), ramped("tau", tau, "grouped")
    check_rate(rate, "grouped")
    whole_number("batch_size", batch_size, 1, 10**6)
    sizes = np.bincount(member)
    order, begins = np.argsort(member, kind="stable"), np.concatenate([[0], np.cumsum(sizes)[:-1]])
    logs = jnp.where(
        jnp.asarray(sizes > 0), jnp.log(jnp.maximum(jnp.asarray(sizes, jnp.float32), 1.0)), -jnp.inf
    )

    def init(params: Params, x: Array, y: Array) -> _Groups:
        if x.shape[0] != member.size:
            raise EvenhandError(f"grouped() has the groups of {member.size} rows, but got {x.shape[0]} rows.")
        seen = jnp.full(sizes.size, start is not None)
        return _Groups(params, optimiser.init(params), jnp.full(sizes.size, start or 0.0, jnp.float32), seen)

    def step(state: _Groups, x: Array, y: Array, number: Array, key: Key) -> _Groups:
        noise, draw, work_key = jax.random.split(key, 3)
        scores = outer(number) * state.risks + logs
        g = jnp.argmax(scores + jax.random.gumbel(noise, scores.shape, scores.dtype))
        place = jax.random.randint(draw, (batch_size,), 0, jnp.asarray(sizes, jnp.int32)[g])
        rows = jnp.asarray(order, jnp.int32)[jnp.asarray(begins, jnp.int32)[g] + place]

        def weigh(losses: Array) -> tuple[Array, PyTree]:
            now = inner(number)
            risk = jnp.where(
                state.seen[g], mixed(state.risks[g], losses, now, rate), tilted(now).value(losses)
            )
            return jnp.exp(now * (losses - risk)), risk

        gradient, risk = weighted_gradient(model, state.params, x[rows], y[rows], weigh, work_key)
        updates, memory = optimiser.update(gradient, state.optimiser, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        return _Groups(params, memory, state.risks.at[g].set(risk), state.seen.at[g].set(True))

    return Solver(model, init, step, lambda state: state.params)
