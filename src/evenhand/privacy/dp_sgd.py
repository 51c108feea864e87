"""DP-SGD, and with it every optimiser that sees noisy gradients only."""

from __future__ import annotations

import optax

from evenhand.local import Work
from evenhand.privacy._work import Query, Rule, check_clip, optimiser_of, private_work
from evenhand.types import Key, Model, Params, PyTree

__all__ = ["dp_sgd"]


def dp_sgd(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
) -> Work:
    r"""DP-SGD: descent on means of clipped gradients under noise, so that no example leaves a trace.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} g_i \min\Big(1, \frac{C}{\|g_i\|}\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t + \text{optimiser}(\tilde g^t),

    with :math:`g_i = \nabla f(x_i; w^t)` for each example :math:`i` of a batch :math:`B` that it is in with probability
    :math:`q`, independently of all others.  The norm is that of the whole gradient.  What an optimiser makes of
    :math:`\tilde g` costs no privacy:

    ==========  ==============================================================================================
    DP-SGD      a number, the step size
    DP-Adam     ``optax.adam(lr, eps=1e-8)``
    DP-RMSProp  ``optax.rmsprop(lr, decay=0.9, eps=1e-3, eps_in_sqrt=False)``
    DP-AdaGrad  ``optax.adagrad(lr, initial_accumulator_value=0.0, eps=1e-6)``
    ==========  ==============================================================================================

    RMSProp divides by :math:`\sqrt v + \epsilon`, without a correction of the bias of :math:`v`; optax's AdaGrad
    divides by :math:`\sqrt{v + \epsilon}`, so that its :math:`10^{-6}` is about a :math:`10^{-3}` outside the root.

    Args:
      model: what is trained.
      optimiser: a step size, or any optax optimiser.
      clip: :math:`C`.
      noise_multiplier: :math:`z`.
      rate: :math:`q`; a batch has :math:`q n` of a client's :math:`n` examples on average.
      steps: in one round.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: an empty batch gives a step along noise alone.  An example whose gradient is not finite counts as zero.

    Differs from the paper: the authors of AdaDPS clip means of four examples, which doubles what one example can
    change, and shuffle where their accountant assumes what is done here.  Theirs is :math:`\sqrt v + \epsilon` for
    AdaGrad, too.  An L2 penalty, which they add to the noisy gradient, is ``optax.add_decayed_weights`` here.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp_sgd(model, 0.5, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> run.privacy.unit, round(run.privacy.epsilon, 2)
      ('example', 3.39)

    Source: Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016, algorithm 1; Li et al., *Private Adaptive
    Optimization with Side Information*, ICML 2022, section 4.1 and algorithm 9.
    """
    check_clip("dp_sgd", clip)
    chosen = optimiser_of("dp_sgd", optimiser)

    def step(params: Params, state: PyTree, query: Query, key: Key) -> tuple[Params, PyTree]:
        updates, state = chosen.update(query(params, clip=clip), state, params)
        return optax.apply_updates(params, updates), state

    rule = Rule(chosen.init, step)
    return private_work(model, rule, who="dp_sgd", noise_multiplier=noise_multiplier, rate=rate, steps=steps)
