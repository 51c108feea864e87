"""Private mirror descent with public gradients, as a baseline."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.errors import whole_number
from evenhand.local import Work
from evenhand.privacy._public import public_examples
from evenhand.privacy._work import Query, Rule, check_clip, optimiser_of, private_work
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["pda_dpmd"]


def pda_dpmd(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: tuple[Array, Array],
    total_steps: int,
    public_batch_size: int | None = None,
) -> Work:
    r"""PDA-DPMD with the Euclidean mirror map: DP-SGD with a share of the public gradient that grows over the run.

    .. math::
        w^{t+1} = w^t + \text{optimiser}\big(\alpha_t \tilde g^t + (1 - \alpha_t) \hat g^t\big), \qquad
        \alpha_t = \cos\frac{\pi t}{2 T}, \qquad t = 0, 1, \dots

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, and :math:`\hat g^t` the gradient on
    public examples, neither clipped nor noisy.

    Args:
      model, optimiser, clip, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same
        promise.
      public, public_batch_size: as in :func:`evenhand.privacy.adadps`; all public examples by default.
      total_steps: :math:`T`, of all rounds together.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: from step :math:`T` on, :math:`\alpha_t = 0`.

    Differs from the paper: the method has other mirror maps; this is the one that AdaDPS and DP^2 are compared with.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model, known = eh.models.softmax_regression(features=64, classes=10), (x[:20], y[:20])
      >>> work = pda_dpmd(
      ...     model, 0.5, public=known, total_steps=100, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> work.privacy.unit
      'example'

    Source: Amid et al., *Public Data-Assisted Mirror Descent for Private Model Training*, ICML 2022, as in Li et al.,
    *Private Adaptive Optimization with Side Information*, ICML 2022, section 6.
    """
    chosen, clip = optimiser_of("pda_dpmd", optimiser), check_clip("pda_dpmd", clip)
    whole_number("total_steps", total_steps, 1)
    examples = public_examples("pda_dpmd", model, public, public_batch_size)

    def init(params: Params) -> PyTree:
        return jnp.int32(0), chosen.init(params)

    def step(params: Params, state: tuple[Array, PyTree], query: Query, key: Key) -> tuple[Params, PyTree]:
        done = jnp.minimum(state[0].astype(jnp.float32) / total_steps, 1.0)
        share = jnp.cos(jnp.pi / 2.0 * done)
        mixed = tree.mix(share, query(params, clip=clip), examples.gradient(params, key))
        updates, after = chosen.update(mixed, state[1], params)
        return optax.apply_updates(params, updates), (state[0] + 1, after)

    rule = Rule(init, step)
    return private_work(
        model, rule, who="pda_dpmd", noise_multiplier=noise_multiplier, rate=rate, steps=steps
    )
