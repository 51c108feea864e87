"""Private local work: an update rule, and the noise under which it sees examples.

An :class:`UpdateRule` is what a private optimiser does before gradients are clipped and after noise was added; it sees
examples through its queries alone.  :func:`private_work` runs it on Poisson samples and guarantees privacy;
:func:`clean_work` and :func:`oracle_work` are for comparisons, and guarantee nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy._checks import check_sampled_noise, checked_clip, checked_step
from evenhand.privacy.gaussian import with_gaussian
from evenhand.privacy.per_example import clipped_sum
from evenhand.sampling import included, slots_for
from evenhand.streams import Purpose, stream
from evenhand.types import Array, ClientData, Effort, Key, Model, Params, Privacy, PyTree, Release

__all__ = ["Iteration", "Noise", "Query", "UpdateRule", "clean_work", "oracle_work", "private_work"]


# --- noise, queries and rules ----------------------------------------------------------------------------


class Noise(NamedTuple):
    """How a private optimiser samples examples, and the noise that hides each of them.

    Attributes:
      clip: the largest norm of an example's gradient; a tuple of them for a rule whose queries choose among several.
      noise_multiplier: the noise's standard deviation over the clip, of each query.
      rate: the probability with which an example is in a batch, independently of all others.
      steps: in a round.
    """

    clip: float | tuple[float, ...]
    noise_multiplier: float
    rate: float
    steps: int

    def check(self, method: str) -> None:
        """Checks all four.

        Raises:
          EvenhandError: a number out of range; the sentence names the ``method``.
        """
        name, clips = ("clips", self.clip) if isinstance(self.clip, tuple) else ("clip", (self.clip,))
        for clip in clips:
            checked_clip(f"{method}({name}=)", clip)
        whole_number("steps", self.steps, 1, 10**6)
        check_sampled_noise(method, self.noise_multiplier, self.rate)


class Query(NamedTuple):
    r"""A question about a step's batch, answered by the mean of clipped gradients under noise.

    .. math::
        \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i + M}{D}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big)

    Attributes:
      clip: :math:`C`; None: that of :class:`Noise`, if there is one only.
      divided_by: :math:`D`, a tree like the parameters; None: ones.
      plus: :math:`M`, another one; None: zeros.
    """

    clip: Array | float | None = None
    divided_by: Params | None = None
    plus: Params | None = None


_Queries: TypeAlias = Query | tuple[Query, ...]


class Iteration(NamedTuple):
    """What an update rule may use in a step, besides its state and the answers.

    Attributes:
      params: before the step.
      key: of the rule's own draws, such as of public examples.
      deviation: ``clip -> standard deviation`` of the noise on each coordinate of an answer.
      gradient: ``() -> gradient``, the mean over the batch, neither clipped nor noisy.  It is for comparisons: private
        work refuses it.
    """

    params: Params
    key: Key
    deviation: Callable[[Array | float], Array]
    gradient: Callable[[], Params]


class UpdateRule(NamedTuple):
    """How a private optimiser takes its steps; one with the optimiser alone is DP-SGD.

    Attributes:
      method: its name, for errors.
      optimiser: a step size or an optax optimiser, which steps along the direction of ``after``.
      init: ``params -> state``; the state holds only what follows from answers and public data.
      before: ``(state, iteration) -> (query, state)``, before the clip; or a tuple of queries of one batch.
      after: ``(answer, state, iteration) -> (direction, state)``, after the noise; a tuple of answers where ``before``
        gave one of queries.
      queries: ``steps -> {queries in a step: number of such steps}``, for so many steps one after another; the same
        number of steps that begin anew every now and then must not cost more.
    """

    method: str
    optimiser: optax.GradientTransformation | float
    init: Callable[[Params], PyTree] = lambda params: ()
    before: Callable[[Any, Iteration], tuple[_Queries, PyTree]] = lambda state, _: (Query(), state)
    after: Callable[[Any, Any, Iteration], tuple[Params, PyTree]] = lambda answer, state, _: (answer, state)
    queries: Callable[[int], Mapping[int, int]] = lambda steps: {1: steps}


# --- private work ----------------------------------------------------------------------------------------


def private_work(model: Model, rule: UpdateRule, noise: Noise) -> local.Work:
    r"""Private local work: an update rule on Poisson samples of a client's examples, with noise.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i + M^t}{D^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad
        w^{t+1} = w^t + \text{optimiser}\big(\text{after}(\tilde g^t)\big),

    where ``before`` chooses :math:`C, D^t, M^t` from the parameters, the state and public data, and an example is in a
    batch :math:`B` with probability :math:`q`, independently of all others.  Whatever ``before`` and ``after`` do
    costs no privacy: the guarantee is that of one Gaussian mechanism on a Poisson sample for each query.

    Args:
      model: what is trained.
      rule: what happens before the clip and after the noise.
      noise: the clip :math:`C`, the noise multiplier :math:`z`, the rate :math:`q`, and the steps in a round.

    Returns:
      Work that guarantees privacy for examples, for :func:`evenhand.algorithms.alone` and
      :func:`evenhand.algorithms.fedavg`.

    Raises:
      EvenhandError: a number out of range.  When a run starts: a rule that uses the gradient without noise, or asks
        more often than its ``queries`` say.

    Edge cases: an empty batch gives noise alone.  An example whose gradient is not finite counts as zero.  What a rule
    has from private data without a query, such as scales of gradients, is not accounted for.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> from evenhand.privacy import Noise, UpdateRule, private_work
      >>> def dp_signsgd(model, step_size, *, clip, noise_multiplier, rate, steps):
      ...     def after(answer, state, iteration):
      ...         return jax.tree.map(jnp.sign, answer), state
      ...     rule = UpdateRule(method="dp_signsgd", optimiser=step_size, after=after)
      ...     noise = Noise(clip=clip, noise_multiplier=noise_multiplier, rate=rate, steps=steps)
      ...     return private_work(model, rule, noise)
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp_signsgd(model, 0.01, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.5), round(run.privacy.epsilon, 2)
      (True, 3.39)

    Source: Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016, algorithm 1.
    """

    def refused(params: Params, batch: local.Batch, key: Key) -> Params:
        raise EvenhandError(
            f"{rule.method}(): private work sees examples through its queries alone, and the rule uses the gradient "
            "without noise: leave iteration.gradient out."
        )

    def releases(rounds: int) -> tuple[Release, ...]:
        # Several queries of one sample are one query with less noise.
        return tuple(
            Release(noise.noise_multiplier / asked**0.5, noise.rate, times=times)
            for asked, times in rule.queries(rounds * noise.steps).items()
            if times > 0
        )

    promise = Privacy(
        unit="example",
        releases=releases,
        neighbours="one example added or removed",
        released=("the model that a client sends after every round",),
        public=("the number of examples of each client", "the settings of the method"),
        unprotected=(
            "which clients take part",
            "the seed, from which a simulation draws its noise",
            "metrics of a simulation, such as the accuracy of a client and the training loss",
            "hyper-parameter tuning, if it uses the same examples",
        ),
    )
    work = _work(model, rule, _poisson_batches(model, rule, noise), _noisy_answers(model, noise, refused))
    return work._replace(privacy=promise)


def oracle_work(model: Model, rule: UpdateRule, noise: Noise) -> local.Work:
    """Work like :func:`private_work` whose rule also sees gradients without noise, so that it guarantees nothing.

    It is for :func:`evenhand.algorithms.alone` only: federated methods may want to correct gradients that it clips.
    """

    def solve(params: Params, data: ClientData, key: Key, correction: _Correction) -> tuple[Params, PyTree]:
        raise EvenhandError(
            f"{rule.method}() is for comparisons in one place: give it to eh.algorithms.alone."
        )

    answers = _noisy_answers(model, noise, local.batch_gradient(model))
    return _work(model, rule, _poisson_batches(model, rule, noise), answers)._replace(solve=solve)


def clean_work(
    model: Model, rule: UpdateRule, *, epochs: int | None, steps: int | None, batch_size: int | None
) -> local.Work:
    """Local work that takes the steps of a rule on ordinary mini-batches, without clipping or noise.

    Args:
      model: what is trained.
      rule: what happens to gradients before they would be clipped, and after.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.
    """
    local.check_model(model)
    schedule = local.batches(epochs=epochs, steps=steps, batch_size=batch_size)
    return _work(model, rule, schedule, _clean_answers(model))


# --- the loop of all three, and how queries are answered -------------------------------------------------


class _Carry(NamedTuple):
    """The parameters, the states of the optimiser and of the rule, and that of what a method adds to gradients."""

    params: Params
    state: tuple[optax.OptState, PyTree]
    correction: optax.OptState


_Correction: TypeAlias = optax.GradientTransformation
_Answers: TypeAlias = Callable[
    [_Carry, local.Batch, Key, _Correction], tuple[Iteration, Callable[[Query, int], Params], optax.OptState]
]
"""``(carry, batch, key, correction) -> (iteration, (query, its index in the step) -> answer, correction's state)``."""


def _work(model: Model, rule: UpdateRule, schedule: local.Batches, answers: _Answers) -> local.Work:
    local.check_rows_apart(
        model,
        rule.method,
        "the gradient of each example is clipped by itself, and a batch would normalise it",
    )
    optimiser = rule.optimiser
    if not isinstance(optimiser, optax.GradientTransformation):
        optimiser = optax.sgd(checked_step(rule.method, optimiser))
    optimiser = local.marked(optimiser)

    def init(params: Params) -> PyTree:
        return optimiser.init(params), rule.init(params)

    def train(params: Params, state: PyTree, data: ClientData, key: Key, correction: _Correction) -> _Carry:
        def step(carry: _Carry, batch: local.Batch, key: Key) -> _Carry:
            iteration, answered, correction_state = answers(carry, batch, key, correction)
            query, state = rule.before(carry.state[1], iteration)
            queries = (query,) if isinstance(query, Query) else query
            if len(queries) > max(rule.queries(1)):  # the guarantee counts those that the rule says
                raise EvenhandError(
                    f"{rule.method}(): the rule has {len(queries)} queries in a step, more than are accounted for: "
                    "give it queries= that says so."
                )
            given = tuple(answered(single, index) for index, single in enumerate(queries))
            direction, state = rule.after(given[0] if isinstance(query, Query) else given, state, iteration)
            updates, moments = optimiser.update(direction, carry.state[0], carry.params)
            return _Carry(optax.apply_updates(carry.params, updates), (moments, state), correction_state)

        return local.over_batches(schedule, step, _Carry(params, state, correction.init(params)), data, key)

    def solve(params: Params, data: ClientData, key: Key, correction: _Correction) -> tuple[Params, PyTree]:
        end = train(params, init(params), data, key, correction)
        return end.params, end.correction

    def resume(params: Params, state: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        end = train(params, state, data, key, optax.identity())
        return end.params, end.state

    return local.Work(model, solve, schedule.effort, continued=local.Continued(init, resume))


def _noisy_answers(model: Model, noise: Noise, estimate: local.Estimator) -> _Answers:
    """Answers under noise, which know nothing of a correction; ``estimate`` is the gradient without noise."""

    def answers(carry: _Carry, batch: local.Batch, key: Key, correction: _Correction) -> Any:
        params = carry.params
        # The expected number of examples in a batch is public; the number that there are is not.
        expected = noise.rate * jnp.maximum(batch.data.size, 1).astype(jnp.float32)

        def answered(query: Query, index: int) -> Params:
            x, y, inside = batch.read()
            # Each query has a key of its own: the noise of two with one key would cancel in their difference.
            masks, of_noise = stream(key, Purpose.WORK, index), stream(key, Purpose.NOISE, index)
            clip = noise.clip if query.clip is None else query.clip
            if isinstance(clip, tuple):
                raise EvenhandError(f"clip={clip}: a query takes one of these: give Query(clip=...).")
            query = query._replace(clip=clip)
            total, _ = clipped_sum(model, params, x, y, inside, masks, **query._asdict())
            # One example moves the sum by at most the clip, whatever divides its gradient before.
            noisy = with_gaussian(of_noise, total, noise.noise_multiplier * clip)
            mean = tree.scale(1.0 / expected, noisy)
            return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), mean, params)

        iteration = Iteration(
            params,
            key=stream(key, Purpose.SERVER),
            deviation=lambda clip: noise.noise_multiplier * clip / expected,
            gradient=lambda: estimate(params, batch, stream(key, Purpose.WORK, 0)),
        )
        return iteration, answered, carry.correction

    return answers


def _clean_answers(model: Model) -> _Answers:
    """Answers that are the corrected mean gradient of the batch, shifted and divided but not clipped, without noise."""
    estimate = local.batch_gradient(model)

    def answers(carry: _Carry, batch: local.Batch, key: Key, correction: _Correction) -> Any:
        params = carry.params
        gradient, after = correction.update(estimate(params, batch, key), carry.correction, params)

        def answered(query: Query, index: int) -> Params:
            shifted = gradient if query.plus is None else tree.add(gradient, query.plus)
            return shifted if query.divided_by is None else tree.divide(shifted, query.divided_by)

        rest = stream(key, Purpose.SERVER), lambda clip: jnp.float32(0.0), lambda: gradient
        return Iteration(params, *rest), answered, after

    return answers


def _poisson_batches(model: Model, rule: UpdateRule, noise: Noise) -> local.Batches:
    """Batches in each of which every example is with the same probability, independently of all else."""
    local.check_model(model)
    noise.check(rule.method)

    def effort(data: ClientData) -> Effort:
        taken = jnp.where(data.size > 0, noise.steps, 0)
        rows = taken.astype(jnp.float32) * noise.rate * data.size.astype(jnp.float32)
        return Effort(taken, jnp.round(rows).astype(jnp.int32))

    def draw(data: ClientData, key: Key) -> Callable[[Array], local.Batch]:
        slots = slots_for(noise.rate, data.capacity)

        def batch(i: Array) -> local.Batch:
            drawn = jax.random.fold_in(stream(key, Purpose.COHORT), i)
            return local.Batch(data, *included(drawn, noise.rate, data.size, data.capacity, slots))

        return batch

    return local.Batches(effort, draw)
