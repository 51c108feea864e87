"""DP^2: preconditioners from noisy gradients of the past, whose noise averages out.

:func:`dp2`, the same steps without privacy (:func:`delayed_rmsprop`), and an ablation that queries every gradient twice
(:func:`dp2_extra_query`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import whole_number
from evenhand.local import Work
from evenhand.privacy._preconditioners import Moment, clip_pair, delayed_rule, squares, step_pair
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, clean_work, private_work
from evenhand.types import Array, Model, Params

__all__ = ["delayed_rmsprop", "dp2", "dp2_extra_query"]


def dp2(
    model: Model,
    step_sizes: tuple[float, float],
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
      step_sizes: :math:`\alpha` of the SGD phase, and of the adaptive phase.
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
    moment = Moment(kind, decay, eps).checked("dp2", ("rmsprop", "adagrad", "yogi"))
    rule = delayed_rule("dp2", step_sizes, clips, delay, moment, unbiased, noise_first, adaptive_first)
    return private_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps))


def delayed_rmsprop(
    model: Model,
    step_sizes: tuple[float, float],
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
    step_sizes: tuple[float, float],
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
    whole_number("delay", delay, 1, 10**6)

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
        direction = tree.select(learns, tree.scale(sizes[0], noisy), tree.scale(sizes[1], divided))
        return direction, tree.select(learns, fresh, older)

    def queries(steps: int) -> dict[int, int]:
        single = -(-steps // delay)
        return {1: single, 2: steps - single}

    rule = UpdateRule(
        method="dp2_extra_query", optimiser=1.0, init=init, before=before, after=after, queries=queries
    )
    return private_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps))
