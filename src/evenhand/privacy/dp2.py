"""DP^2: preconditioners from noisy gradients of the past, whose noise averages out.

:func:`dp2`, the same steps without privacy (:func:`delayed_rmsprop`), an ablation that queries every gradient twice
(:func:`dp2_extra_query`), and how far the delay takes the preconditioner from the gradients (:func:`staleness`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.errors import EvenhandError, truth_value, whole_number
from evenhand.local import Work
from evenhand.privacy._preconditioners import (
    Moment,
    PublicExamples,
    StepNumber,
    at_step,
    clip_pair,
    delayed_rule,
    public_examples,
    squares,
    step_pair,
)
from evenhand.privacy.update_rules import (
    Iteration,
    Noise,
    Query,
    UpdateRule,
    clean_work,
    oracle_work,
    private_work,
)
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["Staleness", "delayed_rmsprop", "dp2", "dp2_extra_query", "staleness"]


def dp2(
    model: Model,
    step_sizes: tuple[StepNumber, StepNumber],
    *,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    delay: int | tuple[int, int],
    kind: Literal["rmsprop", "adagrad", "yogi"] = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    unbiased: bool = False,
    noise_first: bool = False,
    adaptive_first: bool = False,
) -> Work:
    r"""DP^2 (delayed preconditioners): alternates phases of DP-SGD with phases preconditioned by its noisy gradients.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{D^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t - \alpha \tilde g^t

    For :math:`s_1` steps :math:`D = 1`, and :math:`G` sums up their :math:`\tilde g^t`.  Then :math:`v` follows:

    =============  ==========================================================================================
    ``"rmsprop"``  :math:`v \leftarrow \beta v + (1 - \beta) (G / s_1)^2`
    ``"adagrad"``  :math:`v \leftarrow v + (G / s_1)^2`
    ``"yogi"``     :math:`v \leftarrow v + (1 - \beta) \, \mathrm{sign}\big((G / s_1)^2 - v\big) \, (G / s_1)^2`
    =============  ==========================================================================================

    For :math:`s_2` steps :math:`D = \sqrt v + \epsilon`, and so on.  Each phase has a clip :math:`C` and a step size
    :math:`\alpha` of its own.  All of that follows from the :math:`\tilde g^t`, one query per step, so the guarantee
    is that of :func:`evenhand.privacy.dp_sgd` with the same :math:`q, z` and steps.

    Args:
      model: what is trained.
      step_sizes: :math:`\alpha` of the SGD phase, and of the adaptive phase; each a number, or a function of the steps
        of both so far, from 0, such as a schedule of optax.
      clips: :math:`C` of each, the second in the units of a preconditioned gradient.
      noise_multiplier: :math:`z`, the same in both.
      rate: :math:`q`.
      steps: in one round; with :func:`evenhand.algorithms.alone`, phases run on from round to round.
      delay: :math:`s_1 = s_2`, or both, ``(s1, s2)``.
      kind: how :math:`v` follows, above.
      decay: :math:`\beta`.
      eps: :math:`\epsilon`.
      unbiased: subtract the noise's part, :math:`z^2 C^2 / (s_1 q^2 n^2)`, from :math:`(G / s_1)^2`, down to 0 at most.
      noise_first: divide by :math:`D` after clipping and noise, which then grows where :math:`D < 1`: an ablation.
      adaptive_first: begin with the adaptive phase, as DP-SGD, for want of a :math:`v`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: up to :math:`s_1` steps are those of DP-SGD.  That :math:`v` begins at 0 is not corrected for.
    With an ``eps`` far above the scales the divisor is a constant, and this is DP-SGD with a second step size.

    Differs from the paper: Yogi's sign is printed as that of :math:`G / s_1 - v^2`, and is Yogi's own here.  The
    authors' code shuffles where their accountant assumes the Poisson samples of here, and adds the gradient of an L2
    penalty to the noisy one.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp2(model, (0.5, 0.05), clips=(1.0, 5.0), noise_multiplier=1.0, rate=0.05, steps=20, delay=25)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.6)
      True

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023,
    algorithm 1 and appendix; :math:`\beta` from its code.
    """
    unbiased = truth_value("unbiased", unbiased)
    noise_first = truth_value("noise_first", noise_first)
    adaptive_first = truth_value("adaptive_first", adaptive_first)
    moment = Moment(kind, decay, eps).checked("dp2", ("rmsprop", "adagrad", "yogi"))
    rule = delayed_rule("dp2", step_sizes, clips, delay, moment, unbiased, noise_first, adaptive_first)
    return private_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps))


def delayed_rmsprop(
    model: Model,
    step_sizes: tuple[StepNumber, StepNumber],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    delay: int | tuple[int, int],
    decay: float = 0.9,
    eps: float = 1e-3,
) -> Work:
    r"""Delayed RMSProp: :func:`dp2` on ordinary mini-batches, without clipping or noise.  It guarantees no privacy.

    .. math:: w^{t+1} = w^t - \frac{\alpha}{|B|} \sum_{i \in B} \frac{g_i}{D^t}

    Args:
      model, step_sizes, delay, decay, eps: as in :func:`dp2`.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.

    Raises:
      EvenhandError: as :func:`dp2` and :func:`evenhand.local.sgd`.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> delayed_rmsprop(model, (0.1, 0.01), delay=50, epochs=1, batch_size=10).privacy is None
      True

    Source: as :func:`dp2`, section 3.1.
    """
    moment = Moment("rmsprop", decay, eps).checked("delayed_rmsprop", ("rmsprop",))
    rule = delayed_rule("delayed_rmsprop", step_sizes, (1.0, 1.0), delay, moment)
    return clean_work(model, rule, epochs=epochs, steps=steps, batch_size=batch_size)


class _TwoQueryState(NamedTuple):
    """Steps so far; the sum of the noisy gradients since the last update, and their number; the second moment."""

    step: Array
    total: Params
    summed: Array
    moment: Params


def dp2_extra_query(
    model: Model,
    step_sizes: tuple[StepNumber, StepNumber],
    *,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    delay: int,
    decay: float = 0.9,
    eps: float = 1e-3,
) -> Work:
    r"""An ablation of DP^2 with two queries per step: one for the moment, and one preconditioned.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}(g_i, C_1) + \mathcal N(0, z^2 C_1^2 I) \Big), \qquad
        \hat g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{\sqrt v + \epsilon}, C_2\Big)
        + \mathcal N(0, z^2 C_2^2 I) \Big)

    In steps :math:`t = 0, s, 2 s, \dots` there is no :math:`\hat g^t`:
    :math:`v \leftarrow \beta v + (1 - \beta) (\text{mean of the } \tilde g \text{ since the last such step})^2`, and
    :math:`w \leftarrow w - \alpha_1 \tilde g^t`.  In all others :math:`w \leftarrow w - \alpha_2 \hat g^t`.

    Args:
      model: what is trained.
      step_sizes: :math:`(\alpha_1, \alpha_2)`.
      clips: :math:`(C_1, C_2)`.
      noise_multiplier: :math:`z`, of each query.
      rate: :math:`q`.
      steps: in one round; with :func:`evenhand.algorithms.alone`, :math:`t` runs on from round to round.
      delay: :math:`s`.
      decay: :math:`\beta`.
      eps: :math:`\epsilon`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: of :math:`T` steps, :math:`\lceil T / s \rceil` cost what a step of DP-SGD costs, and each of the
    others what one with a noise multiplier of :math:`z / \sqrt 2` costs, as two queries of one sample do.

    Differs from the paper: the sum of gradients is divided by their number, which is 1 and not :math:`s` at
    :math:`t = 0`, as in the authors' code.  The paper has one step size; it tunes two.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp2_extra_query(
      ...     model, (0.5, 0.05), clips=(1.0, 5.0), noise_multiplier=1.0, rate=0.05, steps=20, delay=10)
      >>> [(round(each.noise_multiplier, 3), each.times) for each in work.privacy.releases(5)]
      [(1.0, 10), (0.707, 90)]

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023, appendix,
    the first variant.
    """
    moment = Moment("rmsprop", decay, eps).checked("dp2_extra_query", ("rmsprop",))
    sizes, (first, second) = step_pair("dp2_extra_query", step_sizes), clip_pair("dp2_extra_query", clips)
    delay = whole_number("delay", delay, 1, 10**6)

    def init(params: Params) -> _TwoQueryState:
        zeros = tree.zeros_like(params)
        return _TwoQueryState(jnp.int32(0), zeros, jnp.int32(0), zeros)

    def before(state: _TwoQueryState, iteration: Iteration) -> tuple[tuple[Query, ...], _TwoQueryState]:
        # Both in each step and seldom in vain: runs side by side would each get a copy of the data for a branch.
        return (Query(first), Query(second, divided_by=moment.root(state.moment))), state

    def after(
        answers: tuple[Params, Params], state: _TwoQueryState, iteration: Iteration
    ) -> tuple[Params, _TwoQueryState]:
        noisy, divided = answers
        learns = state.step % delay == 0
        total, summed = tree.add(state.total, noisy), state.summed + 1
        mean = tree.scale(1.0 / summed.astype(jnp.float32), total)
        learnt = moment.follow(state.moment, squares(mean))
        fresh = _TwoQueryState(state.step + 1, tree.zeros_like(total), jnp.zeros_like(summed), learnt)
        older = _TwoQueryState(state.step + 1, total, summed, state.moment)
        plain, adaptive = (at_step(size, state.step) for size in sizes)
        direction = tree.select(learns, tree.scale(plain, noisy), tree.scale(adaptive, divided))
        return direction, tree.select(learns, fresh, older)

    def queries(steps: int) -> dict[int, int]:
        single = -(-steps // delay)
        return {1: single, 2: steps - single}

    rule = UpdateRule(
        method="dp2_extra_query", optimiser=1.0, init=init, before=before, after=after, queries=queries
    )
    return private_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps))


class Staleness(NamedTuple):
    """What :func:`staleness` has measured.

    Attributes:
      largest: :math:`h(s)`.
      gradients: ``(steps,)``, the norm of the gradient, the numerator.
      accumulators: ``(steps,)``, the denominator; NaN before the first phase has ended.
    """

    largest: float
    gradients: npt.NDArray[np.float32]
    accumulators: npt.NDArray[np.float32]


def staleness(
    model: Model,
    step_sizes: tuple[StepNumber, StepNumber],
    *,
    public: PublicExamples,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    delay: int,
    kind: Literal["rmsprop", "adagrad", "yogi"] = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    runs: int = 5,
    seed: int = 0,
) -> Staleness:
    r"""How far the delay of DP^2 takes its preconditioner from the gradients that it divides.  Not private.

    .. math::
        h(s) = \max_{t \ge s} \frac{\mathrm E \|g^t\|_1}{\mathrm E \big\| |G| / s + \epsilon \big\|_1}

    with :math:`g^t` the mean gradient of the batch, neither clipped nor noisy, and :math:`G` the last sum of noisy
    gradients of which :math:`v` was made.  The paper's bound for convex losses grows with :math:`h(s)`.  If a gradient
    changes by at most :math:`M'` from one step to the next, then :math:`h(s) \le c_1 + s M' / (d \epsilon)`.

    Args:
      model, step_sizes, clips, noise_multiplier, rate, kind, decay, eps: as in :func:`dp2`.
      public: ``(x, y)``, what it trains on; see below.
      steps: in a run; more than the delay.
      delay: :math:`s`, of both phases.
      runs: how many of them, each from parameters and with noise of its own, the expectations are means of.
      seed: of all runs.

    Raises:
      EvenhandError: a number out of range; examples that are not as many inputs as labels, or not finite.

    Edge cases: the result comes from gradients without noise, so it reveals something of each example, unless these are
    public.

    Differs from the paper: a first display has :math:`d \epsilon` beside the fraction; here it is in the denominator,
    as in the proof.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> settings = {"clips": (1.0, 5.0), "noise_multiplier": 1.0, "rate": 0.05, "steps": 30}
      >>> h = staleness(model, (0.5, 0.05), public=(x, y), delay=10, **settings)
      >>> 2.0 < h.largest < 4.0  # 1.8 with delay=2
      True

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023, section 4
    and appendix.
    """
    whole_number("staleness(runs=)", runs, 1)
    data = public_examples("staleness", model, public, None).data()
    if whole_number("staleness(steps=)", steps, 1) <= whole_number("staleness(delay=)", delay, 1):
        raise EvenhandError(
            f"staleness(steps={steps}, delay={delay}): nothing is divided before step {delay + 1}: give more steps."
        )
    seed = whole_number("staleness(seed=)", seed, 0)
    moment = Moment(kind, decay, eps).checked("staleness", ("rmsprop", "adagrad", "yogi"))
    rule = _observed(delayed_rule("staleness", step_sizes, clips, delay, moment), steps, delay, eps)
    continued = oracle_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps)).continued
    assert continued is not None

    def run(key: Key) -> Array:
        first, rest = jax.random.split(key)
        params = model.init(first)
        _, (_, state) = continued.solve(params, continued.init(params), data, rest)
        return state.norms

    norms = jax.lax.map(run, jax.random.split(jax.random.key(seed), runs))
    gradients, accumulators = np.asarray(norms.mean(axis=0))
    return Staleness(float((gradients / accumulators)[delay:].max()), gradients, accumulators)


class _Observed(NamedTuple):
    """The state of a rule; the last sum of which its moment was made, over the delay; both norms of each step."""

    rule: PyTree
    mean: Params
    norms: Array


def _observed(rule: UpdateRule, steps: int, delay: int, eps: float) -> UpdateRule:
    """A delayed rule that also records, in each step, the norms whose ratio is :func:`staleness`."""

    def init(params: Params) -> _Observed:
        return _Observed(rule.init(params), tree.zeros_like(params), jnp.full((2, steps), jnp.nan))

    def norm(values: Params) -> Array:
        return jnp.sum(jnp.stack([jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(values)]))

    def before(state: _Observed, iteration: Iteration) -> tuple[tuple[Query, ...] | Query, _Observed]:
        query, inner = rule.before(state.rule, iteration)
        step = inner.step
        mean = tree.select(step % (2 * delay) == delay, tree.scale(1.0 / delay, inner.total), state.mean)
        scales = jax.tree.map(lambda leaf: jnp.abs(leaf) + eps, mean)
        scale = jnp.where(step < delay, jnp.nan, norm(scales))
        norms = state.norms.at[:, step].set(jnp.stack([norm(iteration.gradient()), scale]))
        return query, _Observed(inner, mean, norms)

    def after(answer: Params, state: _Observed, iteration: Iteration) -> tuple[Params, _Observed]:
        direction, inner = rule.after(answer, state.rule, iteration)
        return direction, state._replace(rule=inner)

    return rule._replace(init=init, before=before, after=after)
