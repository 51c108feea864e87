"""Local work made of a rule, which says how a private optimiser takes its steps.

A :class:`Rule` sees examples through a :class:`Query` alone: a sum of clipped gradients under noise.
:func:`private_work` runs it on Poisson samples and promises privacy; :func:`clean_work` and :func:`looking_work` are
for comparisons, and promise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from numbers import Real
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.local import Batch, Batches
from evenhand.privacy.gaussian import with_gaussian
from evenhand.privacy.per_example import clipped_sum
from evenhand.privacy.preconditioners import divide
from evenhand.sampling import included, slots_for
from evenhand.streams import Purpose, stream
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, Privacy, PyTree, Release

__all__ = [
    "Look",
    "LookingRule",
    "PoissonQuery",
    "Query",
    "Rule",
    "check_clip",
    "check_step",
    "clean_work",
    "looking_work",
    "once",
    "optimiser_of",
    "poisson_batches",
    "private_work",
]


# --- queries and rules -----------------------------------------------------------------------------------


class Query(Protocol):
    """A look at a step's batch, which is accounted for."""

    def __call__(
        self,
        params: Params,
        *,
        clip: Array | float,
        divided_by: Params | None = None,
        plus: Params | None = None,
        number: int = 0,
    ) -> Params:
        r"""The mean of clipped gradients under noise.

        .. math::
            \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i + M}{D}, C\Big)
            + \mathcal N(0, z^2 C^2 I) \Big)

        Args:
          params: where the gradients are taken.
          clip: :math:`C`.
          divided_by: :math:`D`, a tree like the parameters; None: ones.
          plus: :math:`M`, another one; None: zeros.
          number: which of the step's queries this is, from 0: each has noise of its own.
        """
        ...

    def deviation(self, clip: Array | float) -> Array:
        r"""The noise of an answer: its standard deviation :math:`z C / (q n)`, on every coordinate."""
        ...


def once(steps: int) -> Mapping[int, int]:
    """One query in each step."""
    return {1: steps}


class Rule(NamedTuple):
    """How a private method takes its steps.

    Attributes:
      init: ``params -> state``.
      step: ``(params, state, query, key) -> (params, state)``; it sees examples through the query alone, and the state
        holds only what follows from queries and public data.
      queries: ``steps -> {how often a step asks: how many of the steps ask that often}``, for so many steps on end; the
        same number of steps that begin anew every now and then must not cost more.
    """

    init: Callable[[Params], PyTree]
    step: Callable[[Params, PyTree, Query, Key], tuple[Params, PyTree]]
    queries: Callable[[int], Mapping[int, int]] = once


class PoissonQuery(NamedTuple):
    """The :class:`Query` of one step, on a batch in which each example is with the same chance.

    Attributes:
      model: gives the gradients.
      batch: of this step.
      key: of this step.
      noise_multiplier: of each query.
      rate: the chance with which an example is in a batch.
    """

    model: Model
    batch: Batch
    key: Key
    noise_multiplier: float
    rate: float

    def __call__(
        self,
        params: Params,
        *,
        clip: Array | float,
        divided_by: Params | None = None,
        plus: Params | None = None,
        number: int = 0,
    ) -> Params:
        """As :class:`Query` says."""
        x, y, inside = self.batch.read()
        masks, noise = stream(self.key, Purpose.WORK, number), stream(self.key, Purpose.NOISE, number)
        total, _ = clipped_sum(
            self.model, params, x, y, inside, masks, clip=clip, divided_by=divided_by, plus=plus
        )
        noisy = with_gaussian(noise, total, self.noise_multiplier * clip)
        mean = tree.scale(1.0 / self.expected(), noisy)
        return jax.tree.map(lambda leaf, of: leaf.astype(of.dtype), mean, params)

    def deviation(self, clip: Array | float) -> Array:
        """As :class:`Query` says."""
        return self.noise_multiplier * clip / self.expected()

    def expected(self) -> Array:
        """The expected number of examples in a batch: public, unlike the number that there are."""
        return self.rate * jnp.maximum(self.batch.data.size, 1).astype(jnp.float32)


# --- private work ----------------------------------------------------------------------------------------


def private_work(
    model: Model, rule: Rule, *, name: str, noise_multiplier: float, rate: float, steps: int
) -> local.Work:
    r"""Local work that takes the steps of a private rule, and the promise of example-level privacy that it keeps.

    Each step's batch has each of the client's :math:`n` examples with probability :math:`q`, independently of all else,
    and each answer of a :class:`Query` has noise of standard deviation :math:`z C / (q n)`.

    Args:
      model: what is trained.
      rule: how a step is taken; a :class:`Rule` sees examples through its query alone.
      name: the factory that calls this, for errors.
      noise_multiplier: :math:`z`, of each query; 0: no noise, and no guarantee.
      rate: :math:`q`, in (0, 1].
      steps: in one round.

    Returns:
      Work for ``eh.algorithms.fedavg`` and ``eh.algorithms.alone``; methods that would break its promise refuse it.
      What it releases follows from ``rule.queries``: several queries of one batch count as one with less noise.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: an empty batch gives a step along noise alone; an example whose gradient is not finite counts as zero.
    The promise holds if the rule keeps nothing but what follows from queries and public data: no test can show that.

    Example:
      >>> import evenhand as eh
      >>> def step(params, state, query, key):
      ...     return eh.tree.subtract(params, eh.tree.scale(0.5, query(params, clip=1.0))), state
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> rule = Rule(init=lambda params: (), step=step)
      >>> work = private_work(model, rule, name="mine", noise_multiplier=1.0, rate=0.05, steps=20)
      >>> run = eh.simulate(eh.algorithms.alone(work), eh.data.load("digits", clients=1), rounds=5)
      >>> run.privacy.unit, round(run.privacy.epsilon, 2)
      ('example', 3.39)
    """
    schedule = poisson_batches(model, name=name, noise_multiplier=noise_multiplier, rate=rate, steps=steps)

    class Carry(NamedTuple):
        params: Params
        state: PyTree

    def train(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        def step(carry: Carry, batch: Batch, key: Key) -> Carry:
            query = PoissonQuery(model, batch, key, noise_multiplier, rate)
            return Carry(*rule.step(carry.params, carry.state, query, stream(key, Purpose.SERVER)))

        return tuple(local.over_batches(schedule, step, Carry(params, state), data, key))

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        return train(params, rule.init(params), data, key)[0], correction.init(params)

    def releases(rounds: int) -> tuple[Release, ...]:
        # Several queries of one sample are one query of less noise.
        return tuple(
            Release(noise_multiplier / asked**0.5, rate, times=times)
            for asked, times in rule.queries(rounds * steps).items()
            if times > 0
        )

    promise = Privacy(
        "example",
        releases,
        "one example added or removed",
        ("the model that a client sends after every round",),
        ("how many examples each client has", "the settings of the method"),
        (
            "which clients take part",
            "the seed, from which a simulation draws its noise",
            "what is measured in a simulation, such as the accuracy of a client and the training loss",
            "the choice of settings, where it looks at the same examples",
        ),
    )
    return local.Work(
        model, solve, schedule.effort, continued=local.Continued(rule.init, train), privacy=promise
    )


def poisson_batches(model: Model, *, name: str, noise_multiplier: float, rate: float, steps: int) -> Batches:
    """The batches of :func:`private_work`, after a check of its arguments."""
    local.check_model(model)
    whole_number("steps", steps, 1, 10**6)
    if not 0.0 <= noise_multiplier < inf or not 0.0 < rate <= 1.0:
        raise EvenhandError(
            f"{name}(noise_multiplier={noise_multiplier}, rate={rate}): give a finite noise of at least 0, and a "
            "probability above 0 and at most 1."
        )
    return _poisson(rate, steps)


def _poisson(rate: float, steps: int) -> Batches:
    """So many batches, in each of which every example is with the same chance, independently of all else."""

    def effort(data: ClientData) -> Effort:
        taken = jnp.where(data.size > 0, steps, 0)
        rows = taken.astype(jnp.float32) * rate * data.size.astype(jnp.float32)
        return Effort(taken, jnp.round(rows).astype(jnp.int32))

    def draw(data: ClientData, key: Key) -> Callable[[Array], Batch]:
        slots = slots_for(rate, data.capacity)

        def batch(i: Array) -> Batch:
            of = jax.random.fold_in(stream(key, Purpose.COHORT), i)
            return Batch(data, *included(of, rate, data.size, data.capacity, slots))

        return batch

    return Batches(effort, draw)


# --- work that promises nothing --------------------------------------------------------------------------


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
    model: Model, rule: LookingRule, *, name: str, noise_multiplier: float, rate: float, steps: int
) -> local.Work:
    """Local work with the steps, the batches and the noise of private work, and without its promise.

    It is for :func:`evenhand.algorithms.alone` only: federated methods may want to correct gradients that it clips.
    """
    schedule = poisson_batches(model, name=name, noise_multiplier=noise_multiplier, rate=rate, steps=steps)
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
        raise EvenhandError(f"{name}() is for comparisons in one place: give it to eh.algorithms.alone.")

    return local.Work(model, solve, schedule.effort, continued=local.Continued(rule.init, train))


# --- checks of arguments ---------------------------------------------------------------------------------


def optimiser_of(who: str, optimiser: optax.GradientTransformation | float) -> optax.GradientTransformation:
    """The optimiser, or plain descent with that step size."""
    if isinstance(optimiser, optax.GradientTransformation):
        return local.marked(optimiser)
    return optax.sgd(check_step(who, optimiser))


def check_step(who: str, step_size: float) -> float:
    """``step_size``, checked to be finite and at least 0."""
    if not isinstance(step_size, Real) or not 0.0 <= step_size < inf:
        raise EvenhandError(f"{who}() got the step {step_size!s:.40}: give a finite number >= 0.")
    return float(step_size)


def check_clip(who: str, clip: float, name: str = "clip") -> float:
    """``clip``, checked to be finite and above 0."""
    if not 0.0 < clip < inf:
        raise EvenhandError(f"{who}({name}={clip}): give a finite number above 0.")
    return clip
