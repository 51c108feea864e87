"""Private training with public examples, as baselines of AdaDPS and DP^2.

Start from public examples (:func:`warm_start`); divide noisy gradients by public moments (:func:`dp_r_pub`); mix public
gradients into the moments (:func:`dp_adam_pub`) or into the step (:func:`pda_dpmd`); and project the preconditioner
(:func:`projected_adagrad`, which is not private).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from evenhand import local, tree
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.privacy._checks import check_decay, checked_step, pair
from evenhand.privacy._preconditioners import (
    Adam,
    Moment,
    Moments,
    PublicExamples,
    public_examples,
    side_information,
)
from evenhand.privacy.gaussian import with_gaussian
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, oracle_work, private_work
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["dp_adam_pub", "dp_r_pub", "pda_dpmd", "projected_adagrad", "warm_start"]


def warm_start(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    public: PublicExamples,
    epochs: int = 10,
    batch_size: int | None = 64,
) -> Model:
    r"""The same model, whose initial parameters have been trained on public examples alone.

    .. math:: w^0 \leftarrow w^0 + \text{optimiser}(\nabla \hat F(w^0; b)), \qquad \hat F \text{ the mean public loss}

    Private examples have no part in it, so that the model's private training guarantees what it would guarantee anyway.

    Args:
      model: what is trained.
      optimiser: a step size, or any optax optimiser; the paper's is
        ``optax.rmsprop(lr, decay=0.9, eps=1e-3, eps_in_sqrt=False)``.
      public: ``(x, y)``, examples that are not among the private ones.
      epochs: passes over them.
      batch_size: of a step; None: all.

    Returns:
      A model like ``model``, but for ``init``.

    Raises:
      EvenhandError: as :func:`evenhand.local.sgd`, or ``public`` is not as many inputs as labels.

    Example:
      >>> import evenhand as eh, optax
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> rmsprop = optax.rmsprop(0.01, decay=0.9, eps=1e-3, eps_in_sqrt=False)
      >>> warm = warm_start(model, rmsprop, public=(x[:100], y[:100]))
      >>> work = eh.privacy.dp_sgd(warm, 0.5, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, appendix, "DP-SGD with warm
    start".
    """
    examples = public_examples("warm_start", model, public, batch_size)
    work = local.sgd(model, optimiser, epochs=epochs, batch_size=batch_size)

    def init(key: Key) -> Params:
        return work.solve(model.init(key), examples.data(), stream(key, Purpose.WORK), optax.identity())[0]

    return model._replace(init=jax.jit(init), name=f"warm_start({model.name})")


def dp_r_pub(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: PublicExamples,
    public_batch_size: int | None = None,
    decay: float = 0.9,
    eps: float = 1e-3,
    refresh_every: int | None = None,
) -> local.Work:
    r"""DP-R-Pub: RMSProp with the second moment of public gradients, on gradients that already have their noise.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}(g_i, C) + \mathcal N(0, z^2 C^2 I) \Big), \qquad
        w^{t+1} = w^t + \text{optimiser}\Big(\frac{\tilde g^t}{\sqrt{v^t} + \epsilon}\Big), \qquad
        v^t = \beta v^{t-1} + (1 - \beta) (\hat g^t)^2

    with :math:`\hat g^t` the gradient on public examples.  Unlike in :func:`evenhand.privacy.adadps`, the noise grows
    where :math:`v` is small.

    Args:
      model, optimiser, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same guarantee.
      clip: :math:`C`, in the units of a gradient.
      public, public_batch_size, decay, eps, refresh_every: as in :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: as :func:`evenhand.privacy.adadps`.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp_r_pub(model, 0.1, public=(x[:20], y[:20]), clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> work.privacy.unit
      'example'

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, section 6.
    """
    moment = Moment("rmsprop", decay, eps)
    side = side_information("dp_r_pub", model, None, public, public_batch_size, moment, refresh_every, steps)

    def before(state: PyTree, iteration: Iteration) -> tuple[Query, PyTree]:
        return Query(), side.refresh(state, iteration)

    def after(answer: Params, state: PyTree, iteration: Iteration) -> tuple[Params, PyTree]:
        return tree.divide(answer, side.query(state).divided_by), state

    rule = UpdateRule(method="dp_r_pub", optimiser=optimiser, init=side.init, before=before, after=after)
    return private_work(model, rule, Noise(clip, noise_multiplier, rate, steps))


def dp_adam_pub(
    model: Model,
    step_size: float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: PublicExamples,
    public_batch_size: int | None = None,
    betas: tuple[float, float, float] = (0.9, 0.9, 0.999),
    eps: float = 1e-8,
) -> local.Work:
    r"""DP-Adam-Pub: Adam with the second moment of public gradients; its first moment mixes public and private ones.

    .. math::
        m^t = \beta_2 m^{t-1} + (1 - \beta_2) \big(\beta_1 \tilde g^t + (1 - \beta_1) \hat g^t\big), \quad
        v^t = \beta_3 v^{t-1} + (1 - \beta_3) (\hat g^t)^2, \quad
        w^{t+1} = w^t - \alpha \frac{m^t / (1 - \beta_2^t)}{\sqrt{v^t / (1 - \beta_3^t)} + \epsilon}

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, and :math:`\hat g^t` the gradient on
    public examples.

    Args:
      model, clip, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same guarantee.
      step_size: :math:`\alpha`.
      public, public_batch_size: as in :func:`evenhand.privacy.adadps`.
      betas: :math:`(\beta_1, \beta_2, \beta_3)`.
      eps: :math:`\epsilon`.

    Raises:
      EvenhandError: a number out of range.

    Differs from the paper: it prints :math:`\sqrt{v + \epsilon}`, and its code has :math:`\sqrt v + \epsilon`; it does
    not say which :math:`\beta` it took.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp_adam_pub(model, 0.1, public=(x[:20], y[:20]), clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> work.privacy.unit
      'example'

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, appendix.
    """
    if len(betas) != 3 or not 0.0 <= real_number(betas[0]) <= 1.0 or not 0.0 <= real_number(betas[1]) < 1.0:
        raise EvenhandError(f"dp_adam_pub(betas={betas}): give three, the last two below 1.")
    check_decay("dp_adam_pub", betas[2], eps)
    adam = Adam(betas[1], betas[2], eps)
    examples = public_examples("dp_adam_pub", model, public, public_batch_size)

    def after(answer: Params, state: Moments, iteration: Iteration) -> tuple[Params, Moments]:
        public_gradient = examples.gradient(iteration.params, iteration.key)
        return adam.step(state, tree.mix(betas[0], answer, public_gradient), public_gradient)

    rule = UpdateRule(
        method="dp_adam_pub", optimiser=checked_step("dp_adam_pub", step_size), init=adam.init, after=after
    )
    return private_work(model, rule, Noise(clip, noise_multiplier, rate, steps))


def pda_dpmd(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: PublicExamples,
    total_steps: int,
    public_batch_size: int | None = None,
) -> local.Work:
    r"""PDA-DPMD with the Euclidean mirror map: DP-SGD with a share of the public gradient that grows over the run.

    .. math::
        w^{t+1} = w^t + \text{optimiser}\big(\alpha_t \tilde g^t + (1 - \alpha_t) \hat g^t\big), \qquad
        \alpha_t = \cos\frac{\pi t}{2 T}, \qquad t = 0, 1, \dots

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, and :math:`\hat g^t` the gradient on
    public examples, neither clipped nor noisy.

    Args:
      model, optimiser, clip, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same
        guarantee.
      public, public_batch_size: as in :func:`evenhand.privacy.adadps`; all public examples by default.
      total_steps: :math:`T`, of all rounds together.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: from step :math:`T` on, :math:`\alpha_t = 0`.

    Differs from the paper: the method has other mirror maps; this is the one that AdaDPS and DP^2 are compared with.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model, public = eh.models.softmax_regression(features=64, classes=10), (x[:20], y[:20])
      >>> work = pda_dpmd(
      ...     model, 0.5, public=public, total_steps=100, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> work.privacy.unit
      'example'

    Source: Amid et al., *Public Data-Assisted Mirror Descent for Private Model Training*, ICML 2022, as in Li et al.,
    *Private Adaptive Optimization with Side Information*, ICML 2022, section 6.
    """
    total_steps = whole_number("total_steps", total_steps, 1)
    examples = public_examples("pda_dpmd", model, public, public_batch_size)

    def after(answer: Params, state: Array, iteration: Iteration) -> tuple[Params, Array]:
        done = jnp.minimum(state.astype(jnp.float32) / total_steps, 1.0)
        share = jnp.cos(jnp.pi / 2.0 * done)
        return tree.mix(share, answer, examples.gradient(iteration.params, iteration.key)), state + 1

    rule = UpdateRule(method="pda_dpmd", optimiser=optimiser, init=lambda params: jnp.int32(0), after=after)
    return private_work(model, rule, Noise(clip, noise_multiplier, rate, steps))


def projected_adagrad(
    model: Model,
    step_size: float,
    *,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: PublicExamples,
    rank: int = 50,
    eps: float = 1e-3,
) -> local.Work:
    r"""Noisy diagonal AdaGrad with projection on public gradients.  **It guarantees no privacy.**

    .. math::
        S^t = S^{t-1} + \Big(\frac1{|B|} \sum_{i \in B} g_i\Big)^2, \qquad
        H^t = V V^\top \big( \mathrm{clip}(\sqrt{S^t}, C_2) + \mathcal N(0, z^2 C_2^2 I) \big), \qquad
        w^{t+1} = w^t - \alpha \frac{\tilde g^t}{H^t + \epsilon}

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, clipped at :math:`C_1`, and
    :math:`V` the top right singular vectors of the matrix whose rows are the gradients of the public examples.

    :math:`S` keeps clean squares of all steps, so that an example in one batch has a part in every later :math:`H`.
    The accountant's credit for sampling anew in each step does not hold for it, nor, given :math:`H`, for
    :math:`\tilde g`; and the noise is not that of the sensitivity :math:`2 C_2` of :math:`H`.

    Args:
      model, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`.
      step_size: :math:`\alpha`.
      clips: :math:`(C_1, C_2)`.
      public: ``(x, y)``, examples that are not among the private ones.
      rank: how many singular vectors; at most as many as there are public examples.
      eps: :math:`\epsilon`.

    Raises:
      EvenhandError: a number out of range, or a method other than :func:`evenhand.algorithms.alone`.

    Edge cases: :math:`H + \epsilon` may be close to 0, or negative, and the step then is as long as that makes it.

    Differs from the paper: the authors' code takes the *last* singular vectors, and divides by the wrong number of
    examples, which does not change them; expect other results than in the figure.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model, public = eh.models.softmax_regression(features=64, classes=10), (x[:20], y[:20])
      >>> work = projected_adagrad(
      ...     model, 0.1, clips=(1.0, 1.0), noise_multiplier=1.0, rate=0.05, steps=20, public=public, rank=10)
      >>> work.privacy is None
      True

    Source: Asi et al., *Private Adaptive Gradient Methods for Convex Optimization*, ICML 2021, and Kairouz et al.,
    *(Nearly) Dimension Independent Private ERM with AdaGrad Rates*, COLT 2021, as in Li et al., *Differentially Private
    Adaptive Optimization with Delayed Preconditioners*, ICLR 2023, appendix.
    """
    optimiser = checked_step("projected_adagrad", step_size)
    first, second = pair("projected_adagrad(clips", clips, "of the gradients and of their projections")
    examples = public_examples("projected_adagrad", model, public, 1)
    rank = whole_number("rank", rank, 1, len(examples.x))
    if not 0.0 <= real_number(eps) < float("inf"):
        raise EvenhandError(f"projected_adagrad(eps={eps}): give a finite number of at least 0.")

    def basis(params: Params, key: Key) -> Array:
        """The top right singular vectors of the public gradients, as rows."""

        def gradient(i: Array) -> Array:
            batch = examples.schedule.draw(examples.data(), key)(i)
            return ravel_pytree(examples.estimate(params, batch, key))[0]

        gradients = jax.lax.map(gradient, jnp.arange(len(examples.x)))
        return jnp.linalg.svd(gradients, full_matrices=False)[2][:rank]

    def before(state: Params, iteration: Iteration) -> tuple[Query, Params]:
        return Query(first), tree.add(state, jax.tree.map(jnp.square, iteration.gradient()))

    def after(answer: Params, state: Params, iteration: Iteration) -> tuple[Params, Params]:
        size = tree.norm(roots := jax.tree.map(jnp.sqrt, state))
        clipped = tree.scale(jnp.minimum(1.0, second / jnp.maximum(size, 1e-30)), roots)
        noisy = with_gaussian(stream(iteration.key, Purpose.NOISE), clipped, noise_multiplier * second)
        flat, tree_of = ravel_pytree(noisy)
        rows = basis(iteration.params, iteration.key)
        scales = jax.tree.map(lambda h: h + eps, tree_of((flat @ rows.T) @ rows))
        return tree.divide(answer, scales), state

    rule = UpdateRule(
        method="projected_adagrad", optimiser=optimiser, init=tree.zeros_like, before=before, after=after
    )
    return oracle_work(model, rule, Noise(tuple(clips), noise_multiplier, rate, steps))
