"""Stochastic TERM: mini-batches weighted against a running normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand.centralized._fit import Solver, check_parts, weighted_gradient
from evenhand.errors import EvenhandError, whole_number
from evenhand.risks import tilted
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["check_rate", "mixed", "ramped", "stochastic"]


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
    check_parts(model, optimiser)
    tilt = ramped("t", t, "stochastic")
    check_rate(rate, "stochastic")
    whole_number("batch_size", batch_size, 1, 10**6)

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
            risk = mixed(state.risk, seen, now, rate)
            weights = jnp.exp(now * (losses - risk))
            return weights, (risk, jnp.mean(weights))

        gradient, (risk, weight) = weighted_gradient(model, state.params, x[rows], y[rows], weigh, work_key)
        updates, memory = optimiser.update(gradient, state.optimiser, state.params)
        return _Tilted(jax.tree.map(jnp.add, state.params, updates), memory, risk, weight)

    return Solver(model, init, step, lambda state: state.params)


def ramped(
    name: str, tilt: float | Callable[[Array], Array], solver: str
) -> Callable[[Array], Array | float]:
    """``step number -> tilt``, from a finite tilt or a function of the step number."""
    if callable(tilt):
        return lambda number: tilt(number.astype(jnp.float32))
    if not math.isfinite(tilt):
        raise EvenhandError(f"{solver}({name}={tilt}): a tilt must be finite.")
    return lambda number: tilt


def check_rate(rate: float, name: str) -> None:
    """Checks that the share of the newest batch is in (0, 1]."""
    if not 0.0 < rate <= 1.0:
        raise EvenhandError(f"{name}(rate={rate}): the share of the newest batch must lie in (0, 1].")


def mixed(old: Array, losses: Array, t: Array | float, rate: float) -> Array:
    """The tilted mean of an old estimate, with weight ``1 - rate``, and of a batch's losses, with ``rate``."""
    newest = tilted(t).value(losses)
    return tilted(t).value(jnp.stack([old, newest]), jnp.array([1.0 - rate, rate], losses.dtype))
