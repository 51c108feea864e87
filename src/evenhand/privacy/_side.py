"""Side information: what gradients are divided by before they are clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import local, tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy._moments import Kind, check_moments, root, second_moment, squares
from evenhand.privacy._public import Public, public_examples
from evenhand.privacy._work import Query, Rule
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["PublicKind", "Side", "fitting_scales", "preconditioned", "side_information"]

PublicKind = Literal["rmsprop", "adam", "adagrad"]


class Side(NamedTuple):
    """What is known of the geometry of gradients without looking at private examples.

    Attributes:
      init: ``params -> state``.
      refresh: ``(params, state, key) -> state``, before each step.
      divisor: ``state -> D``.
      plus: ``state -> M`` where a momentum is added before the division, or None.
    """

    init: Callable[[Params], PyTree]
    refresh: Callable[[Params, PyTree, Key], PyTree]
    divisor: Callable[[PyTree], Params]
    plus: Callable[[PyTree], Params | None]


class _Moments(NamedTuple):
    """Of public gradients; ``second`` is the second one, ``first`` None where it is not needed."""

    step: Array
    first: Params | None
    second: Params


def side_information(
    who: str,
    model: Model,
    *,
    divided_by: Params | None,
    public: tuple[Array, Array] | None,
    public_batch_size: int | None,
    kind: PublicKind,
    decay: float,
    eps: float,
    refresh_every: int | None,
) -> Side:
    """Fixed scales, or moments of public gradients.

    Raises:
      EvenhandError: both or none of them are given, or an argument is out of range.
    """
    local.check_model(model)
    if (divided_by is None) == (public is None):
        raise EvenhandError(f"{who}() needs exactly one of public= and divided_by=: give one of them.")
    if public is None:
        scales = fitting_scales(who, model, divided_by)
        return Side(
            lambda params: (), lambda params, state, key: (), lambda state: scales, lambda state: None
        )
    check_moments(who, kind, ("rmsprop", "adam", "adagrad"), decay, eps)
    if kind == "adam" and decay == 0.0:
        raise EvenhandError(f"{who}(kind='adam', decay=0): nothing would be left of private gradients.")
    examples = public_examples(who, model, public, public_batch_size)
    if refresh_every is not None:
        whole_number("refresh_every", refresh_every, 1)
        if kind == "adagrad":
            raise EvenhandError(
                f"{who}(kind='adagrad', refresh_every={refresh_every}): AdaGrad never starts over."
            )
    return _of_public(examples, kind, decay, eps, refresh_every)


def fitting_scales(who: str, model: Model, divided_by: Params) -> Params:
    """Scales, checked to be above 0 and a tree like the parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    scales = jax.tree.map(jnp.asarray, divided_by)
    same = jax.tree.structure(scales) == jax.tree.structure(shapes)
    if not same or not jax.tree.all(jax.tree.map(lambda a, b: a.shape == b.shape, scales, shapes)):
        raise EvenhandError(
            f"{who}(divided_by=...): give a tree like the parameters, with arrays of their shapes."
        )
    if not all(bool(jnp.all((leaf > 0) & jnp.isfinite(leaf))) for leaf in jax.tree.leaves(scales)):
        raise EvenhandError(f"{who}(divided_by=...): give finite numbers above 0 only.")
    return jax.tree.map(lambda leaf, of: leaf.astype(of.dtype), scales, shapes)


def preconditioned(chosen: optax.GradientTransformation, side: Side, clip: float) -> Rule:
    """One query per step, of gradients that are divided before they are clipped."""

    def init(params: Params) -> PyTree:
        return chosen.init(params), side.init(params)

    def step(params: Params, state: PyTree, query: Query, key: Key) -> tuple[Params, PyTree]:
        known = side.refresh(params, state[1], key)
        gradient = query(params, clip=clip, divided_by=side.divisor(known), plus=side.plus(known))
        updates, after = chosen.update(gradient, state[0], params)
        return optax.apply_updates(params, updates), (after, known)

    return Rule(init, step)


def _of_public(public: Public, kind: Kind, decay: float, eps: float, refresh_every: int | None) -> Side:
    momentum = kind == "adam"

    def init(params: Params) -> _Moments:
        zeros = tree.zeros_like(params)
        return _Moments(jnp.int32(0), zeros if momentum else None, zeros)

    def follow(params: Params, state: _Moments, key: Key) -> tuple[Params | None, Params]:
        gradient = public.gradient(params, key)
        first = tree.mix(decay, state.first, gradient) if momentum else None
        return first, second_moment(kind, decay, state.second, squares(gradient))

    def afresh(params: Params, state: _Moments, key: Key) -> tuple[Params | None, Params]:
        gradient, second = public.moments(params, key)
        return tree.mix(decay, state.first, gradient) if momentum else None, second

    def refresh(params: Params, state: _Moments, key: Key) -> _Moments:
        if refresh_every is None:
            first, second = follow(params, state, key)
        else:
            first, second = lax.cond(
                state.step % refresh_every == 0,
                lambda: afresh(params, state, key),
                lambda: (state.first, state.second),
            )
        return _Moments(state.step + 1, first, second)

    def divisor(state: _Moments) -> Params:
        if refresh_every is None:
            scales = root(state.second, eps)
        else:
            scales = jax.tree.map(lambda v: jnp.sqrt(v + eps), state.second)
        # (decay g + (1 - decay) M) / A is (g + (1 - decay) / decay M) / (A / decay).
        return tree.scale(1.0 / decay, scales) if momentum else scales

    def plus(state: _Moments) -> Params | None:
        return tree.scale((1.0 - decay) / decay, state.first) if momentum else None

    return Side(init, refresh, divisor, plus)
