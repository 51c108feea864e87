"""Adam whose gradients get their noise in the geometry of its own second moment."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.local import Work
from evenhand.privacy._moments import adam_direction, check_moments, descend, root, second_moment, squares
from evenhand.privacy._work import Query, Rule, check_clip, check_step, private_work
from evenhand.types import Array, Key, Model, Params

__all__ = ["scale_then_privatize"]


class _State(NamedTuple):
    """Steps so far, and the two moments, of noisy gradients."""

    step: Array
    first: Params
    second: Params


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

    Nothing but the :math:`\tilde g^t` is kept, so that the promise is that of :func:`evenhand.privacy.dp_sgd` with the
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
    check_clip("scale_then_privatize", clip)
    check_step("scale_then_privatize", step_size)
    for decay, number in ((b1, eps), (b2, scale_eps)):
        check_moments("scale_then_privatize", "adam", ("adam",), decay, number)

    def init(params: Params) -> _State:
        return _State(jnp.int32(0), tree.zeros_like(params), tree.zeros_like(params))

    def step(params: Params, state: _State, query: Query, key: Key) -> tuple[Params, _State]:
        scales, number = root(state.second, scale_eps), state.step + 1
        noisy = jax.tree.map(jnp.multiply, query(params, clip=clip, divided_by=scales), scales)
        first = tree.mix(b1, state.first, noisy)
        second = second_moment("adam", b2, state.second, squares(noisy))
        direction = adam_direction(first, second, number, (b1, b2), eps)
        return descend(params, direction, step_size), _State(number, first, second)

    return private_work(
        model,
        Rule(init, step),
        who="scale_then_privatize",
        noise_multiplier=noise_multiplier,
        rate=rate,
        steps=steps,
    )
