"""DP^2 without phases: a second query in each step, and so a second price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import whole_number
from evenhand.local import Work
from evenhand.privacy._delayed import pair_of
from evenhand.privacy._moments import check_moments, descend, root, second_moment, squares
from evenhand.privacy._work import Query, Rule, check_clip, private_work
from evenhand.types import Array, Key, Model, Params

__all__ = ["dp2_extra_query"]


class _State(NamedTuple):
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
    r"""An ablation of DP^2: every step's gradient is asked for twice, for the moment and preconditioned.

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
    check_moments("dp2_extra_query", "rmsprop", ("rmsprop",), decay, eps)
    plain, adaptive = pair_of("dp2_extra_query", step_sizes)
    first, second = (check_clip("dp2_extra_query", clip, "clips") for clip in clips)
    whole_number("delay", delay, 1, 10**6)

    def init(params: Params) -> _State:
        zeros = tree.zeros_like(params)
        return _State(jnp.int32(0), zeros, jnp.int32(0), zeros)

    def step(params: Params, state: _State, query: Query, key: Key) -> tuple[Params, _State]:
        learns = state.step % delay == 0
        noisy = query(params, clip=first)
        total, summed = tree.add(state.total, noisy), state.summed + 1
        mean = tree.scale(1.0 / summed.astype(jnp.float32), total)
        learnt = second_moment("rmsprop", decay, state.moment, squares(mean))
        # Asked in each step and seldom in vain: runs side by side would each get a copy of the data for a branch.
        divided = query(params, clip=second, divided_by=root(state.moment, eps), number=1)
        moved = tree.select(learns, descend(params, noisy, plain), descend(params, divided, adaptive))
        fresh = _State(state.step + 1, tree.zeros_like(total), jnp.zeros_like(summed), learnt)
        older = _State(state.step + 1, total, summed, state.moment)
        return moved, tree.select(learns, fresh, older)

    def queries(steps: int) -> Mapping[int, int]:
        single = -(-steps // delay)
        return {1: single, 2: steps - single}

    rule = Rule(init, step, queries)
    return private_work(
        model, rule, who="dp2_extra_query", noise_multiplier=noise_multiplier, rate=rate, steps=steps
    )
