"""The solvers of TERM: gradient descent on all examples, on batches, and on batches of groups.

Each is a :class:`Solver` that weighs losses by a tilted risk: :func:`batch` by that of all examples (or any other
risk), :func:`stochastic` against a running estimate of it, :func:`grouped` within a group that is drawn by its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from evenhand import tree
from evenhand.centralized._solver import Solver, check_parts, check_risk, weighted_gradient
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.risks import tilted
from evenhand.types import Array, Key, Model, Params, PyTree, Risk


class _Descent(NamedTuple):
    params: Params
    optimiser: optax.OptState


def batch(
    model: Model, risk: Risk | Callable[[Array], Risk], *, optimiser: optax.GradientTransformation
) -> Solver:
    r"""Gradient descent on a risk of all examples: batch TERM, flat or hierarchical, or any other risk.

    .. math::
        \theta \leftarrow \theta - \alpha \sum_i w_i \nabla f_i(\theta), \qquad w = \texttt{risk.weights}(f(\theta))

    Args:
      model: what is trained.
      risk: over all examples, such as ``eh.risks.tilted(t)`` or ``eh.risks.hierarchical(outer, inner, groups, n)``;
        or a function of the step number that gives one, to ramp a tilt:
        ``lambda step: eh.risks.tilted(jnp.minimum(step / 1000, 1.0) * -2.0)``.
      optimiser: takes that gradient, e.g. ``optax.sgd(0.1)``.

    Edge cases: for ``t < 0`` the tilted risk is not convex even if the losses are: if they are large at the start, ramp
    the tilt from ``t = 0``.

    Where a risk's weights are only the direction of its gradient (``power``, TiVaR), the step uses the weights, which
    sum to 1, and not the gradient's length.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.array([[0.0], [0.0], [1.0]]), jnp.array([0.0, 0.0, 3.0])
      >>> worst = batch(model, eh.risks.tilted(50.0), optimiser=optax.sgd(0.05))
      >>> params = eh.centralized.fit(worst, x, y, steps=2000).params
      >>> losses = model.losses(model.apply(params, x), y)
      >>> bool(losses.max() < 0.01)
      True

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the batch solvers of TERM and of hierarchical
    TERM.
    """
    check_parts(model, optimiser)
    check_risk(risk)

    def init(params: Params, x: Array, y: Array) -> _Descent:
        return _Descent(params, optimiser.init(params))

    def step(state: _Descent, x: Array, y: Array, number: Array, key: Key) -> _Descent:
        now = risk if isinstance(risk, Risk) else risk(number.astype(jnp.float32))

        def weigh(losses: Array) -> tuple[Array, PyTree]:
            return losses.shape[0] * now.weights(losses), ()

        gradient, _ = weighted_gradient(model, state.params, x, y, weigh, key)
        return descended(optimiser, state, gradient)

    return Solver(model, init, step, lambda state: state.params)


class _Tilted(NamedTuple):
    """``risk`` is :math:`\\tilde R_t`, a loss; ``weight`` the mean weight of the last batch, which hovers around 1."""

    params: Params
    optimiser: optax.OptState
    risk: Array
    weight: Array


def stochastic(
    model: Model,
    *,
    t: float | Callable[[Array], Array],
    rate: float,
    batch_size: int,
    optimiser: optax.GradientTransformation,
    two_batches: bool = False,
) -> Solver:
    r"""Stochastic TERM: each batch is weighted against an estimate of the tilted risk that is averaged over the steps.

    .. math::
        \tilde R \leftarrow \frac1t \log\Big( (1 - \lambda) e^{t \tilde R}
        + \frac{\lambda}{|B|} \sum_{x \in B} e^{t f(x)} \Big), \qquad
        \theta \leftarrow \theta - \frac{\alpha}{|B|} \sum_{x \in B} e^{t (f(x) - \tilde R)} \nabla f(x)

    where :math:`\tilde R` starts as the tilted risk of all examples; at ``t = 0`` it is a running mean of losses.

    Args:
      model: what is trained.
      t: the tilt, finite; 0 is stochastic gradient descent.  Or a function of the step number that gives one, to ramp
        it: ``lambda step: -2.0 * jnp.minimum(step / 1000, 1.0)``.
      rate: :math:`\lambda \in (0, 1]`, the share of the newest batch; 1 normalises each batch by itself; the paper's
        theory has :math:`1 - 1/(2e)`.
      batch_size: examples per batch, drawn uniformly with replacement.
      optimiser: takes that gradient.
      two_batches: the variant that the paper analyses: the normaliser has a second, independent batch.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: where losses fall and ``t > 0``, :math:`t \tilde R` follows by at most
    :math:`\log \frac{1}{1 - \lambda}` a step; for large ``t``, weights then go to 0 and training stalls.  The state's
    ``weight`` shows this; ``rate=1`` avoids it.  Under a ramp :math:`\tilde R`, which is a loss, is kept from tilt to
    tilt, also through 0.  Weights are at most :math:`|B| / \lambda`, except with ``two_batches``: there one may
    overflow.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x, y = jnp.array([[0.0], [0.0], [1.0]]), jnp.array([0.0, 0.0, 3.0])
      >>> solver = stochastic(model, t=1.0, rate=0.5, batch_size=2, optimiser=optax.sgd(0.05))
      >>> params = eh.centralized.fit(solver, x, y, steps=3000).params
      >>> bool(abs(model.apply(params, x)[2] - 3.0) < 0.1)
      True

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the stochastic solver of TERM and its
    two-batch variant.
    """
    two_batches = truth_value("two_batches", two_batches)
    check_parts(model, optimiser)
    tilt = ramped("t", t, "stochastic")
    check_batches("stochastic", rate, batch_size)

    def init(params: Params, x: Array, y: Array) -> _Tilted:
        losses = model.losses(model.apply(params, x), y)
        risk = tilted(tilt(jnp.int32(0))).value(losses)
        return _Tilted(params, optimiser.init(params), risk, jnp.float32(1.0))

    def step(state: _Tilted, x: Array, y: Array, number: Array, key: Key) -> _Tilted:
        first, second, work_key = jax.random.split(key, 3)
        rows = jax.random.randint(first, (batch_size,), 0, x.shape[0])

        def weigh(losses: Array) -> tuple[Array, PyTree]:
            seen = losses
            if two_batches:
                others = jax.random.randint(second, (batch_size,), 0, x.shape[0])
                seen = model.losses(model.apply(state.params, x[others]), y[others])
            now = tilt(number)
            # Unless there are two batches, the estimate includes this one, which keeps its weights from overflowing.
            risk = mixed(state.risk, seen, now, rate)
            weights = jnp.exp(now * (losses - risk))
            return weights, (risk, jnp.mean(weights))

        gradient, (risk, weight) = weighted_gradient(model, state.params, x[rows], y[rows], weigh, work_key)
        return descended(optimiser, state, gradient)._replace(risk=risk, weight=weight)

    return Solver(model, init, step, lambda state: state.params)


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
    check_batches("grouped", rate, batch_size)
    sizes = np.bincount(member)
    # Rows sorted by group: the examples of a group lie side by side, so that a batch of them is drawn by positions.
    order, begins = np.argsort(member, kind="stable"), np.concatenate([[0], np.cumsum(sizes)[:-1]])
    many = jnp.asarray(sizes, jnp.float32)
    logs = jnp.where(many > 0, jnp.log(jnp.maximum(many, 1.0)), -jnp.inf)

    def init(params: Params, x: Array, y: Array) -> _Groups:
        if x.shape[0] != member.size:
            raise EvenhandError(f"grouped() has the groups of {member.size} rows, but got {x.shape[0]} rows.")
        seen = jnp.full(sizes.size, start is not None)
        return _Groups(params, optimiser.init(params), jnp.full(sizes.size, start or 0.0, jnp.float32), seen)

    def step(state: _Groups, x: Array, y: Array, number: Array, key: Key) -> _Groups:
        noise, draw, work_key = jax.random.split(key, 3)
        # The largest of scores with Gumbel noise is a draw from their softmax, without an overflow of their exponents.
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
        state = descended(optimiser, state, gradient)
        return state._replace(risks=state.risks.at[g].set(risk), seen=state.seen.at[g].set(True))

    return Solver(model, init, step, lambda state: state.params)


# --- shared by the solvers ------------------------------------------------------------------------------------


def descended(optimiser: optax.GradientTransformation, state: Any, gradient: Params) -> Any:
    """The state of a solver after the optimiser's step along a gradient."""
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
        updates, memory = optimiser.update(gradient, state.optimiser, state.params)
    return state._replace(params=tree.add(state.params, updates), optimiser=memory)


def ramped(
    name: str, tilt: float | Callable[[Array], Array], solver: str
) -> Callable[[Array], Array | float]:
    """``step number -> tilt``, from a finite tilt or a function of the step number."""
    if callable(tilt):
        return lambda number: tilt(number.astype(jnp.float32))
    if not math.isfinite(real_number(tilt)):
        raise EvenhandError(f"{solver}({name}={tilt}): a tilt must be finite.")
    return lambda number: tilt


def check_batches(solver: str, rate: float, batch_size: int) -> None:
    """Checks that the share of the newest batch is in (0, 1], and that a batch has examples."""
    if not 0.0 < real_number(rate) <= 1.0:
        raise EvenhandError(f"{solver}(rate={rate}): the share of the newest batch must lie in (0, 1].")
    whole_number("batch_size", batch_size, 1, 10**6)


def mixed(old: Array, losses: Array, t: Array | float, rate: float) -> Array:
    """The tilted mean of an old estimate, with weight ``1 - rate``, and of a batch's losses, with ``rate``."""
    newest = tilted(t).value(losses)
    return tilted(t).value(jnp.stack([old, newest]), jnp.array([1.0 - rate, rate], losses.dtype))
