"""Adam on noisy private gradients and public ones, as a baseline."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.local import Work
from evenhand.privacy._moments import adam_direction, check_moments, descend, second_moment, squares
from evenhand.privacy._public import public_examples
from evenhand.privacy._work import Query, Rule, check_clip, check_step, private_work
from evenhand.types import Array, Key, Model, Params

__all__ = ["dp_adam_pub"]


class _State(NamedTuple):
    """Steps so far, and the two moments."""

    step: Array
    first: Params
    second: Params


def dp_adam_pub(
    model: Model,
    step_size: float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: tuple[Array, Array],
    public_batch_size: int | None = None,
    betas: tuple[float, float, float] = (0.9, 0.9, 0.999),
    eps: float = 1e-8,
) -> Work:
    r"""DP-Adam-Pub: Adam whose second moment is of public gradients, and whose first is of a mix of both.

    .. math::
        m^t = \beta_2 m^{t-1} + (1 - \beta_2) \big(\beta_1 \tilde g^t + (1 - \beta_1) \hat g^t\big), \quad
        v^t = \beta_3 v^{t-1} + (1 - \beta_3) (\hat g^t)^2, \quad
        w^{t+1} = w^t - \alpha \frac{m^t / (1 - \beta_2^t)}{\sqrt{v^t / (1 - \beta_3^t)} + \epsilon}

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, and :math:`\hat g^t` the gradient on
    public examples.

    Args:
      model, clip, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same promise.
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
    check_clip("dp_adam_pub", clip)
    check_step("dp_adam_pub", step_size)
    if len(betas) != 3 or not 0.0 <= betas[0] <= 1.0 or not 0.0 <= betas[1] < 1.0:
        raise EvenhandError(f"dp_adam_pub(betas={betas}): give three, the last two below 1.")
    mix, momentum, decay = betas
    check_moments("dp_adam_pub", "adam", ("adam",), decay, eps)
    examples = public_examples("dp_adam_pub", model, public, public_batch_size)

    def init(params: Params) -> _State:
        return _State(jnp.int32(0), tree.zeros_like(params), tree.zeros_like(params))

    def step(params: Params, state: _State, query: Query, key: Key) -> tuple[Params, _State]:
        public_gradient, number = examples.gradient(params, key), state.step + 1
        mixed = tree.mix(mix, query(params, clip=clip), public_gradient)
        first = tree.mix(momentum, state.first, mixed)
        second = second_moment("adam", decay, state.second, squares(public_gradient))
        direction = adam_direction(first, second, number, (momentum, decay), eps)
        return descend(params, direction, step_size), _State(number, first, second)

    rule = Rule(init, step)
    return private_work(
        model, rule, who="dp_adam_pub", noise_multiplier=noise_multiplier, rate=rate, steps=steps
    )
