"""Private optimisers without side information: DP-SGD with any optimiser, and Adam with noise in its own geometry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from evenhand.local import Work
from evenhand.privacy._checks import check_decay, checked_step
from evenhand.privacy._preconditioners import Adam, Moment, Moments
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, private_work
from evenhand.types import Model, Params

__all__ = ["dp_sgd", "scale_then_privatize"]


def dp_sgd(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
) -> Work:
    r"""DP-SGD: gradient descent on clipped per-example gradients with Gaussian noise, which hides each example.

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
    return private_work(model, UpdateRule("dp_sgd", optimiser), Noise(clip, noise_multiplier, rate, steps))


def scale_then_privatize(
    model: Model,
    step_size: float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    scale_eps: float = 1e-3,
) -> Work:
    r"""Scale-then-privatize: DP-Adam whose clip and noise are small where its second moment is.

    .. math::
        D^t = \sqrt{v^{t-1}} + \epsilon_s, \qquad
        \tilde g^t = \frac{D^t}{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{D^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big),

    and a step of Adam on :math:`\tilde g^t`, which makes :math:`v^t`:

    .. math::
        m^t = \beta_1 m^{t-1} + (1 - \beta_1) \tilde g^t, \quad
        v^t = \beta_2 v^{t-1} + (1 - \beta_2) (\tilde g^t)^2, \quad
        w^{t+1} = w^t - \alpha \frac{m^t / (1 - \beta_1^t)}{\sqrt{v^t / (1 - \beta_2^t)} + \epsilon}

    Nothing but the :math:`\tilde g^t` is kept, so the guarantee is that of :func:`evenhand.privacy.dp_sgd` with the
    same :math:`q, z` and steps.  No public examples are needed.

    Args:
      model, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`.
      step_size: :math:`\alpha`.
      clip: :math:`C`, in the units of a scaled gradient.
      b1, b2, eps: :math:`\beta_1, \beta_2, \epsilon` of Adam.
      scale_eps: :math:`\epsilon_s`, to be tuned.  If it is large, all coordinates are scaled alike, as in DP-Adam; if
        it is small, :math:`v` takes long to grow from 0, as no step may be longer than :math:`C D^t`.

    Raises:
      EvenhandError: a number out of range.

    Differs from the paper: it treats any adaptive optimiser and correlated noise; this is Adam and independent noise.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = scale_then_privatize(model, 0.01, clip=5.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.5)
      True

    Source: Ganesh, McMahan and Thakurta, *On Design Principles for Private Adaptive Optimizers*, 2025, algorithm 8.
    """
    name = "scale_then_privatize"
    for decay, constant in ((b1, eps), (b2, scale_eps)):
        check_decay(name, decay, constant)
    adam, scaled = Adam(b1, b2, eps), Moment("adam", b2, scale_eps)

    def before(state: Moments, iteration: Iteration) -> tuple[Query, Moments]:
        return Query(divided_by=scaled.root(state.second)), state

    def after(answer: Params, state: Moments, iteration: Iteration) -> tuple[Params, Moments]:
        # The scales of the query again: the state has not moved since.
        noisy = jax.tree.map(jnp.multiply, answer, scaled.root(state.second))
        return adam.step(state, noisy, noisy)

    rule = UpdateRule(
        method=name, optimiser=checked_step(name, step_size), init=adam.init, before=before, after=after
    )
    return private_work(model, rule, Noise(clip, noise_multiplier, rate, steps))
