"""The two phases that DP^2 alternates between."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy._moments import Kind, descend, divide, ones, root, second_moment, squares
from evenhand.privacy._work import Query, Rule, check_step
from evenhand.types import Array, Key, Params

__all__ = ["Settings", "delayed_rule", "delays_of", "pair_of"]


class Settings(NamedTuple):
    """What the two phases do; pairs are of the SGD phase and of the adaptive one.

    Attributes:
      step_sizes, clips, delays: of each phase.
      kind, decay, eps: of the second moment.
      unbiased: whether the noise's part is subtracted from it.
      noise_first: whether gradients are divided after the noise.
      adaptive_first: whether the cycle begins with the adaptive phase.
    """

    step_sizes: tuple[float, float]
    clips: tuple[float, float]
    delays: tuple[int, int]
    kind: Kind
    decay: float
    eps: float
    unbiased: bool = False
    noise_first: bool = False
    adaptive_first: bool = False


class _State(NamedTuple):
    """Steps so far; the sum of the cycle's noisy gradients, read where its SGD phase ends; the second moment."""

    step: Array
    total: Params
    moment: Params


def delayed_rule(of: Settings) -> Rule:
    """One query per step, whose answers in the SGD phase make the preconditioner of the next adaptive phase."""
    plain_steps, adaptive_steps = of.delays
    cycle = plain_steps + adaptive_steps
    ahead, early = (plain_steps, adaptive_steps) if of.adaptive_first else (0, 0)

    def init(params: Params) -> _State:
        return _State(jnp.int32(0), tree.zeros_like(params), tree.zeros_like(params))

    def learnt(state: _State, noise: Array) -> Params:
        square = squares(tree.scale(1.0 / plain_steps, state.total))
        if of.unbiased:
            bias = jnp.square(noise) / plain_steps
            square = jax.tree.map(lambda v: jnp.maximum(v - bias.astype(v.dtype), 0.0), square)
        return second_moment(of.kind, of.decay, state.moment, square)

    def step(params: Params, state: _State, query: Query, key: Key) -> tuple[Params, _State]:
        place = (state.step + ahead) % cycle
        total = tree.select(place == 0, tree.zeros_like(state.total), state.total)
        moment = tree.select(place == plain_steps, learnt(state, query.deviation(of.clips[0])), state.moment)
        # There is nothing to divide by before the first SGD phase has ended.
        plain = (place < plain_steps) | (state.step < early)
        scales = tree.select(plain, ones(params), root(moment, of.eps))
        clip, step_size = jnp.where(plain, *of.clips), jnp.where(plain, *of.step_sizes)
        if of.noise_first:
            direction = divide(query(params, clip=clip), scales)
        else:
            direction = query(params, clip=clip, divided_by=scales)
        after = _State(state.step + 1, tree.add(total, direction), moment)
        return descend(params, direction, step_size), after

    return Rule(init, step)


def delays_of(delay: int | tuple[int, int]) -> tuple[int, int]:
    """The steps of each phase, checked."""
    first, second = delay if isinstance(delay, tuple) else (delay, delay)
    return whole_number("delay", first, 1, 10**6), whole_number("delay", second, 1, 10**6)


def pair_of(who: str, step_sizes: tuple[float, float]) -> tuple[float, float]:
    """The step size of each phase, checked."""
    if len(step_sizes) != 2:
        raise EvenhandError(
            f"{who}(step_sizes={step_sizes!r:.40}): give two, of SGD and of the adaptive phase."
        )
    return check_step(who, step_sizes[0]), check_step(who, step_sizes[1])
