"""DP-SGD whose noisy gradients are divided by moments of public ones: the wrong way round, as a baseline."""

from __future__ import annotations

import optax

from evenhand.local import Work
from evenhand.privacy._moments import divide
from evenhand.privacy._side import side_information
from evenhand.privacy._work import Query, Rule, check_clip, optimiser_of, private_work
from evenhand.types import Array, Key, Model, Params, PyTree

__all__ = ["dp_r_pub"]


def dp_r_pub(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: tuple[Array, Array],
    public_batch_size: int | None = None,
    decay: float = 0.9,
    eps: float = 1e-3,
    refresh_every: int | None = None,
) -> Work:
    r"""DP-R-Pub: RMSProp with the second moment of public gradients, on gradients that already have their noise.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}(g_i, C) + \mathcal N(0, z^2 C^2 I) \Big), \qquad
        w^{t+1} = w^t + \text{optimiser}\Big(\frac{\tilde g^t}{\sqrt{v^t} + \epsilon}\Big), \qquad
        v^t = \beta v^{t-1} + (1 - \beta) (\hat g^t)^2

    with :math:`\hat g^t` the gradient on public examples.  Unlike in :func:`evenhand.privacy.adadps`, the noise grows
    where :math:`v` is small.

    Args:
      model, optimiser, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`, with the same promise.
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
    chosen, clip = optimiser_of("dp_r_pub", optimiser), check_clip("dp_r_pub", clip)
    side = side_information(
        "dp_r_pub",
        model,
        divided_by=None,
        public=public,
        public_batch_size=public_batch_size,
        kind="rmsprop",
        decay=decay,
        eps=eps,
        refresh_every=refresh_every,
    )

    def init(params: Params) -> PyTree:
        return chosen.init(params), side.init(params)

    def step(params: Params, state: PyTree, query: Query, key: Key) -> tuple[Params, PyTree]:
        known = side.refresh(params, state[1], key)
        noisy = query(params, clip=clip)
        updates, after = chosen.update(divide(noisy, side.divisor(known)), state[0], params)
        return optax.apply_updates(params, updates), (after, known)

    rule = Rule(init, step)
    return private_work(
        model, rule, who="dp_r_pub", noise_multiplier=noise_multiplier, rate=rate, steps=steps
    )
