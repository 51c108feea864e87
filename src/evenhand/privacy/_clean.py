"""Local work that promises nothing: for what private methods are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.errors import EvenhandError
from evenhand.local import Batch
from evenhand.privacy._moments import divide
from evenhand.privacy._work import PoissonQuery, Query, Rule, poisson_batches
from evenhand.streams import Purpose, stream
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree

__all__ = ["Look", "LookingRule", "clean_work", "looking_work"]


class _Clean(NamedTuple):
    """Answers with the mean gradient of the batch at the current model, divided but not clipped, without noise."""

    gradient: Params

    def __call__(
        self,
        params: Params,
        *,
        clip: Array | float,
        divided_by: Params | None = None,
        plus: Params | None = None,
        number: int = 0,
    ) -> Params:
        leaning = self.gradient if plus is None else tree.add(self.gradient, plus)
        return leaning if divided_by is None else divide(leaning, divided_by)

    def deviation(self, clip: Array | float) -> Array:
        return jnp.float32(0.0)


def clean_work(
    model: Model, rule: Rule, *, epochs: int | None, steps: int | None, batch_size: int | None
) -> local.Work:
    """Local work that takes the steps of a private rule on ordinary mini-batches, without clipping or noise.

    Args:
      model: what is trained.
      rule: it may ask for gradients at the current model only.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.
    """
    local.check_model(model)
    schedule, estimate = (
        local.batches(epochs=epochs, steps=steps, batch_size=batch_size),
        local.batch_gradient(model),
    )

    class Carry(NamedTuple):
        params: Params
        state: PyTree
        correction: optax.OptState

    def train(
        params: Params, state: PyTree, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> Carry:
        def step(carry: Carry, batch: Batch, key: Key) -> Carry:
            gradient = estimate(carry.params, batch, key)
            corrected, after = correction.update(gradient, carry.correction, carry.params)
            query = _Clean(corrected)
            return Carry(*rule.step(carry.params, carry.state, query, stream(key, Purpose.SERVER)), after)

        return local.over_batches(schedule, step, Carry(params, state, correction.init(params)), data, key)

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        end = train(params, rule.init(params), data, key, correction)
        return end.params, end.correction

    def go_on(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        end = train(params, state, data, key, optax.identity())
        return end.params, end.state

    return local.Work(model, solve, schedule.effort, continued=local.Continued(rule.init, go_on))


class Look(NamedTuple):
    """A private query, and a look past it.

    Attributes:
      query: as private methods have it.
      clean: ``params -> gradient``, the mean over the batch, without clipping or noise.
      key: of the step.
    """

    query: Query
    clean: Callable[[Params], Params]
    key: Key


class LookingRule(NamedTuple):
    """A rule that also looks at gradients without noise: nothing about it is private.

    Attributes:
      init: ``params -> state``.
      step: ``(params, state, look) -> (params, state)``.
    """

    init: Callable[[Params], PyTree]
    step: Callable[[Params, PyTree, Look], tuple[Params, PyTree]]


def looking_work(
    model: Model, rule: LookingRule, *, who: str, noise_multiplier: float, rate: float, steps: int
) -> local.Work:
    """Local work with the steps, the batches and the noise of private work, and without its promise.

    It is for :func:`evenhand.algorithms.alone` only: federated methods may want to correct gradients that it clips.
    """
    schedule = poisson_batches(model, who=who, noise_multiplier=noise_multiplier, rate=rate, steps=steps)
    estimate = local.batch_gradient(model)

    class Carry(NamedTuple):
        params: Params
        state: PyTree

    def train(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        def step(carry: Carry, batch: Batch, key: Key) -> Carry:
            query = PoissonQuery(model, batch, key, noise_multiplier, rate)
            masks = stream(key, Purpose.WORK, 0)
            look = Look(query, lambda params: estimate(params, batch, masks), stream(key, Purpose.SERVER))
            return Carry(*rule.step(carry.params, carry.state, look))

        return tuple(local.over_batches(schedule, step, Carry(params, state), data, key))

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        raise EvenhandError(f"{who}() is for comparisons in one place: give it to eh.algorithms.alone.")

    return local.Work(model, solve, schedule.effort, continued=local.Continued(rule.init, train))
