"""AdaDPS with the moments of the private gradients themselves: what side information could bring at best."""

from __future__ import annotations

import optax

from evenhand import tree
from evenhand.local import Work
from evenhand.privacy._clean import Look, LookingRule, looking_work
from evenhand.privacy._moments import check_moments, root, second_moment, squares
from evenhand.privacy._work import check_clip, optimiser_of
from evenhand.types import Model, Params, PyTree

__all__ = ["ideal_adadps"]


def ideal_adadps(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    decay: float = 0.9,
    eps: float = 1e-3,
) -> Work:
    r"""AdaDPS-RMSProp whose second moment is that of clean private gradients.  **It is not private**, noise or not.

    .. math::
        v^t = \beta v^{t-1} + (1 - \beta) \Big(\frac1{|B|} \sum_{i \in B} g_i\Big)^2, \qquad
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{\sqrt{v^t} + \epsilon}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t + \text{optimiser}(\tilde g^t)

    It is the upper bound, "ideal", that :func:`evenhand.privacy.adadps` is compared with, and makes no promise.

    Args:
      model, optimiser, clip, noise_multiplier, rate, steps, decay, eps: as in :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: a number out of range, or a method other than :func:`evenhand.algorithms.alone`.

    Edge cases: an empty batch has a gradient of 0.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> ideal_adadps(model, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20).privacy is None
      True

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, table 3.
    """
    chosen, clip = optimiser_of("ideal_adadps", optimiser), check_clip("ideal_adadps", clip)
    check_moments("ideal_adadps", "rmsprop", ("rmsprop",), decay, eps)

    def init(params: Params) -> PyTree:
        return chosen.init(params), tree.zeros_like(params)

    def step(params: Params, state: PyTree, look: Look) -> tuple[Params, PyTree]:
        moment = second_moment("rmsprop", decay, state[1], squares(look.clean(params)))
        gradient = look.query(params, clip=clip, divided_by=root(moment, eps))
        updates, after = chosen.update(gradient, state[0], params)
        return optax.apply_updates(params, updates), (after, moment)

    rule = LookingRule(init, step)
    return looking_work(
        model, rule, who="ideal_adadps", noise_multiplier=noise_multiplier, rate=rate, steps=steps
    )
