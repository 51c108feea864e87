r"""Step sizes that change from round to round: factors of a round's updates, and the optimiser that they make.

A schedule inside an optax optimiser counts the steps of one round and begins again in the next one.  A
:class:`Schedule` counts rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.text import short
from evenhand.types import Array, ClientData, Params, PyTree

_MOST = 10**6
"""Most rounds: float32 counts them, and their fractions, exactly."""


class Schedule(NamedTuple):
    """By what the local updates of each round are multiplied.

    Attributes:
      factor: ``round -> factor``; the round is an int32 scalar, counted from 0, and may be a tracer.
      name: shown to users, such as ``"steps(0.5, every=20)"``.
    """

    factor: Callable[[Array], Any]
    name: str = ""
    __repr__ = short

    def __call__(self, round: Array) -> Array:
        """The factor of a round, a float32 scalar."""
        with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types inside
            return jnp.asarray(self.factor(round), jnp.float32)


ClientOpt: TypeAlias = Callable[[ClientData], optax.GradientTransformation]
"""``data -> optimiser``, the one that takes a client's steps in the round of ``data``."""


# --- schedules ---------------------------------------------------------------------------------------------------


def steps(factor: float, *, every: int) -> Schedule:
    r"""Multiplies the step size by a factor every so many rounds.

    .. math:: f(t) = c^{\lfloor t / t_0 \rfloor}

    Args:
      factor: :math:`c > 0`; 0.5 halves the step size.
      every: :math:`t_0`, in rounds; 1 is exponential decay.

    Raises:
      EvenhandError: ``factor`` not a finite number above 0, or ``every`` not a whole number from 1 to a million.

    Edge cases: rounds count from 0, so ``every=20`` first changes the 21st round.

    Differs from the paper, which prints the exponent :math:`-\lfloor t / t_0 \rfloor`; its code has this one.

    Example:
      >>> import jax.numpy as jnp
      >>> [float(steps(0.5, every=2)(jnp.int32(t))) for t in range(5)]
      [1.0, 1.0, 0.5, 0.5, 0.25]

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, appendix on hyper-parameters.
    """
    if not 0.0 < real_number(factor) < math.inf:
        raise EvenhandError(f"steps({factor!s:.40}, every={every!s:.40}): give a finite factor above 0.")
    return _steps(float(factor), whole_number("steps(every=)", every, 1, _MOST))


def cosine(rounds: int, *, end: float = 0.0) -> Schedule:
    r"""Lowers the step size along half a cosine, over so many rounds.

    .. math:: f(t) = e + (1 - e) \, \frac{1 + \cos(\pi \min(t / T, 1))}{2}

    Args:
      rounds: :math:`T`, as many as the run has.
      end: :math:`e \ge 0`, the factor from round ``rounds`` on.

    Raises:
      EvenhandError: ``rounds`` not a whole number from 1 to a million, or ``end`` not a finite number >= 0.

    Example:
      >>> import jax.numpy as jnp
      >>> [round(float(cosine(4)(jnp.int32(t))), 3) for t in range(5)]
      [1.0, 0.854, 0.5, 0.146, 0.0]

    Source: Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, ICLR 2017, equation 5,
    without restarts.
    """
    if not 0.0 <= real_number(end) < math.inf:
        raise EvenhandError(f"cosine({rounds!s:.40}, end={end!s:.40}): give a finite end of 0 or more.")
    return _cosine(whole_number("cosine(rounds)", rounds, 1, _MOST), float(end))


def warm_up(rounds: int, *, share: float = 0.1) -> Schedule:
    r"""Raises the step size linearly from 0 over the first rounds, and then lowers it linearly to 0.

    .. math::
        f(t) = \max\Big( 0, \min\Big( \frac{t}{s T}, \frac{T - t}{T - s T} \Big) \Big)

    Args:
      rounds: :math:`T`, as many as the run has.
      share: :math:`s`, the share of the rounds in which the step size rises, above 0 and below 1.

    Raises:
      EvenhandError: ``rounds`` not a whole number from 1 to a million, or ``share`` not between 0 and 1.

    Edge cases: the first round has factor 0 and changes no model, as in the authors' code.

    Example:
      >>> import jax.numpy as jnp
      >>> [round(float(warm_up(10, share=0.2)(jnp.int32(t))), 3) for t in (0, 1, 2, 6, 10)]
      [0.0, 0.5, 1.0, 0.5, 0.0]

    Source: Pillutla et al., *Federated Learning with Partial Model Personalization*, ICML 2022, appendix on
    hyper-parameters, and its code.
    """
    if not 0.0 < real_number(share) < 1.0:
        raise EvenhandError(f"warm_up({rounds!s:.40}, share={share!s:.40}): give a share between 0 and 1.")
    return _warm_up(whole_number("warm_up(rounds)", rounds, 1, _MOST), float(share))


# All three are cached: equal arguments give the same object, so that the engine reuses its compiled program.
@cache
def _steps(factor: float, every: int) -> Schedule:
    # Whole numbers as floats, which the engine makes arguments of its program: another schedule compiles nothing.
    return Schedule(
        # Half a round more: where XLA multiplies by 1 / every instead, a whole quotient may come out a little smaller.
        lambda round: jnp.float32(factor) ** jnp.floor((_real(round) + 0.5) / float(every)),
        f"steps({factor:g}, every={every})",
    )


@cache
def _cosine(rounds: int, end: float) -> Schedule:
    def factor(round: Array) -> Array:
        done = jnp.minimum(_real(round) / float(rounds), 1.0)
        return end + (1.0 - end) * 0.5 * (1.0 + jnp.cos(math.pi * done))

    return Schedule(factor, f"cosine({rounds}{f', end={end:g}' if end else ''})")


@cache
def _warm_up(rounds: int, share: float) -> Schedule:
    peak = share * rounds

    def factor(round: Array) -> Array:
        rise, fall = _real(round) / peak, (float(rounds) - _real(round)) / (rounds - peak)
        return jnp.maximum(jnp.minimum(rise, fall), 0.0)

    return Schedule(factor, f"warm_up({rounds}{f', share={share:g}' if share != 0.1 else ''})")


def _real(round: Array) -> Array:
    return jnp.asarray(round).astype(jnp.float32)


# --- what they make of an optimiser ------------------------------------------------------------------------------


def schedule_from(value: object) -> Schedule | None:
    """``schedule=`` as a :class:`Schedule`: one, any function of a round, or None.

    Raises:
      EvenhandError: it is none of these, or gives no single number for a round.
    """
    if value is None or isinstance(value, Schedule):
        return value
    advice = (
        "give eh.local.steps(0.5, every=20), an optax schedule, or a traceable function of an int32 scalar"
    )
    if not callable(value):
        raise EvenhandError(f"schedule={value!r:.60} is no function of the round: {advice}.")
    # A partial function or an object that can be called has no name.
    made = Schedule(value, str(getattr(value, "__name__", "")))
    try:
        shape = jax.eval_shape(lambda round: made(round), jax.ShapeDtypeStruct((), jnp.int32)).shape
    except Exception as error:
        shown = made.name or "a function"
        raise EvenhandError(f"schedule={shown} fails on a round ({error!s:.200}): {advice}.") from None
    if shape != ():
        raise EvenhandError(
            f"schedule={made.name or 'a function'} gives an array of shape {shape}: {advice}."
        )
    return made


def by_round(
    optimiser: optax.GradientTransformation, step_size: float | None, schedule: Schedule | None
) -> ClientOpt:
    """The optimiser of each round, whose updates a schedule multiplies.

    Args:
      optimiser: that of a round of factor 1.
      step_size: its step size, if it is plain gradient descent.
      schedule: the factors; None: all are 1.
    """

    def optimiser_of(data: ClientData) -> optax.GradientTransformation:
        if schedule is None or data.round is None:
            return optimiser
        factor = schedule(data.round)
        if step_size is not None:
            # One product with the gradient, as without a schedule: a factor of 1 then changes no bit.
            return optax.sgd(step_size * factor)

        def update(
            updates: Params, state: optax.OptState, params: Params | None = None
        ) -> tuple[PyTree, optax.OptState]:
            updates, state = optimiser.update(updates, state, params)
            return tree.scale(factor, updates), state

        return optax.GradientTransformation(optimiser.init, update)

    return optimiser_of
