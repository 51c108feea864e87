r"""Server optimisers of the adaptive federated methods, as optax transformations.

With :math:`\Delta_t` the averaged client update:

.. math::
    m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad
    w^{t+1} = w^t + \eta \, \frac{m_t}{\sqrt{v_t} + \tau}, \qquad v_{-1} = \tau^2,

.. math::
    \text{FedAdagrad: } & v_t = v_{t-1} + \Delta_t^2 \\
    \text{FedYogi: }    & v_t = v_{t-1} - (1 - \beta_2) \Delta_t^2 \, \mathrm{sign}(v_{t-1} - \Delta_t^2) \\
    \text{FedAdam: }    & v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2.

Unlike ``optax.adam`` there is no bias correction, and :math:`v` starts at :math:`\tau^2`.

Use them as ``eh.algorithms.fedavg(work, server_opt=eh.server_opt.fedadam(0.1))``.

Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, algorithm 2; server momentum: Hsu et al.,
*Measuring the Effects of Non-Identical Data Distribution*, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.errors import EvenhandError, real_number
from evenhand.types import Array, Params

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi", "sgd"]


class _Moments(NamedTuple):
    first: Params
    second: Params


def fedadagrad(learning_rate: float, *, b1: float = 0.0, tau: float = 1e-3) -> optax.GradientTransformation:
    r"""FedAdagrad's server optimiser.

    Args:
      learning_rate: :math:`\eta`.
      b1: :math:`\beta_1` in [0, 1).
      tau: :math:`\tau`, the degree of adaptivity, at least 1e-15.
    """
    return _adaptive(learning_rate, b1, 0.0, tau, lambda v, d2: v + d2)


def fedadam(
    learning_rate: float, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    r"""FedAdam's server optimiser.

    Args:
      learning_rate: :math:`\eta`.
      b1: :math:`\beta_1` in [0, 1).
      b2: :math:`\beta_2` in [0, 1).
      tau: :math:`\tau`, the degree of adaptivity, at least 1e-15.
    """
    return _adaptive(learning_rate, b1, b2, tau, lambda v, d2: b2 * v + (1.0 - b2) * d2)


def fedyogi(
    learning_rate: float, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    r"""FedYogi's server optimiser.

    Args:
      learning_rate: :math:`\eta`.
      b1: :math:`\beta_1` in [0, 1).
      b2: :math:`\beta_2` in [0, 1).
      tau: :math:`\tau`, the degree of adaptivity, at least 1e-15.
    """
    return _adaptive(learning_rate, b1, b2, tau, lambda v, d2: v - (1.0 - b2) * d2 * jnp.sign(v - d2))


def fedavgm(learning_rate: float = 1.0, *, momentum: float = 0.9) -> optax.GradientTransformation:
    r"""FedAvgM's server optimiser: :math:`v \leftarrow \beta v + \Delta`, :math:`w \leftarrow w + \eta v`.

    Args:
      learning_rate: :math:`\eta`.
      momentum: :math:`\beta` in [0, 1); 0 is FedAvg.
    """
    _check(learning_rate, momentum, 0.0, 1.0)
    return optax.sgd(learning_rate, momentum=momentum)


def sgd(learning_rate: float = 1.0) -> optax.GradientTransformation:
    r"""FedAvg's server optimiser: :math:`w \leftarrow w + \eta \Delta`; ``optax.sgd``, for the command line.

    Args:
      learning_rate: :math:`\eta`; 1 is plain averaging.
    """
    _check(learning_rate, 0.0, 0.0, 1.0)
    return optax.sgd(learning_rate)


def _adaptive(
    learning_rate: float, b1: float, b2: float, tau: float, second: Callable[[Array, Array], Array]
) -> optax.GradientTransformation:
    """``second`` gives :math:`v_t` from :math:`v_{t-1}` and :math:`\\Delta_t^2`."""
    _check(learning_rate, b1, b2, tau)

    # A moment in half precision would lose what changes it by less than a few thousandths.
    def init(params: Params) -> _Moments:
        wide = tree.widened(params)
        return _Moments(tree.zeros_like(wide), jax.tree.map(lambda p: jnp.full_like(p, tau**2), wide))

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, _Moments]:
        wide = tree.widened(updates)
        m = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.first, wide)
        v = jax.tree.map(lambda v, g: second(v, jnp.square(g)), state.second, wide)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + tau), m, v)
        return jax.tree.map(lambda s, g: s.astype(g.dtype), step, updates), _Moments(m, v)

    return optax.GradientTransformation(init, update)


def _check(learning_rate: float, b1: float, b2: float, tau: float) -> None:
    if not 0.0 < real_number(learning_rate) < math.inf:
        raise EvenhandError(
            f"The server's learning_rate is {learning_rate!r:.40}: it must be a finite number above 0."
        )
    for name, value in (("first decay rate (b1, momentum)", b1), ("b2", b2)):
        if not 0.0 <= real_number(value) < 1.0:
            raise EvenhandError(f"The server optimiser's {name} is {value!r:.40}: it must lie in [0, 1).")
    if not 1e-15 <= real_number(tau) < math.inf:
        raise EvenhandError(
            f"The server optimiser's tau is {tau!r:.40}: it must be finite, and at least 1e-15: float32 has no "
            "square of much less."
        )
