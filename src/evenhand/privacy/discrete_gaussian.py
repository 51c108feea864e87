"""The discrete Gaussian: whole-number noise, its exact law, and that of its sum over clients."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Array, Key

__all__ = ["Law", "discrete_gaussian", "discrete_gaussian_error", "discrete_gaussian_law", "psi"]

NDArray = npt.NDArray[Any]

_LARGEST = 2.0**12
"""Of sigma: a table of some 100,000 numbers, which takes some seconds to compute."""
_BITS = 64
_DIGITS = 50
_MOST_TERMS = 2**20
_NEGLIGIBLE = 1e-60


class Law(NamedTuple):
    """A distribution on whole numbers.

    Attributes:
      values: int64 ``(n,)``, rising by 1; all others together have a probability below ``1e-31`` times the clients.
      probabilities: float64 ``(n,)``, which sum to 1.
    """

    values: NDArray
    probabilities: NDArray

    @property
    def variance(self) -> float:
        """Of a law that is symmetric around 0."""
        return float(np.sum(self.values.astype(np.float64) ** 2 * self.probabilities))


def discrete_gaussian(key: Key, *, sigma: float, shape: tuple[int, ...] = ()) -> Array:
    r"""Independent draws from the discrete Gaussian of scale ``sigma`` around 0.

    .. math:: P(k) = \frac{e^{-k^2 / 2\sigma^2}}{\sum_{j \in \mathbb Z} e^{-j^2 / 2\sigma^2}}, \qquad
        X = \min\{k : U < \lfloor 2^{64} P(X \le k) \rceil\}

    where :math:`U` is uniform on the whole numbers below :math:`2^{64}`.  The thresholds are computed with 50 digits
    and rounded to the nearest, when the program is traced.

    Args:
      key: of the draws; no one else may know it.
      sigma: :math:`\sigma`, a Python number from 0 to 4096; 0 draws zeros.  The variance is a little below
        :math:`\sigma^2` for :math:`\sigma < 1`, and equal to it, in float32, for any larger one.
      shape: of the draws.

    Returns:
      int32 of that shape.

    Raises:
      EvenhandError: ``sigma`` is not a number from 0 to 4096.

    Edge cases: no draw is larger than about :math:`9.2 \sigma`, because what is beyond has a probability below
    :math:`2^{-65}`.  :func:`discrete_gaussian_error` has the distance to the exact law in total variation.

    Differs from the paper: a sampler by rejection is exact, but has no fixed running time, which a compiled program
    needs, and an observer can learn from.  Bits come from JAX's generator, which is meant for simulations; a device
    that protects real data should draw them from its operating system.

    Example:
      >>> import jax
      >>> discrete_gaussian(jax.random.key(0), sigma=2.0, shape=(8,)).tolist()
      [3, 4, -1, 0, 0, -2, -1, 1]

    Source: Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020; Pillutla et
    al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023, section 4.3.
    """
    table = _thresholds(_checked(sigma, "discrete_gaussian"))
    count = len(table)
    steps = count.bit_length()
    # So many that each step of the bisection halves what is left; only U = 2**64 - 1 reaches them.
    padded = np.full((2**steps, 2), 2**32 - 1, np.uint32)
    padded[:count] = table
    high, low = jnp.asarray(padded[:, 0]), jnp.asarray(padded[:, 1])
    drawn = jax.random.bits(key, (2, *shape), jnp.uint32)
    below = jnp.zeros(shape, jnp.int32)
    for step in reversed(range(steps)):
        last = below + (2**step - 1)
        equal = drawn[0] == high[last]
        passed = (drawn[0] > high[last]) | (equal & (drawn[1] >= low[last]))
        below = jnp.where(passed, below + 2**step, below)
    return jnp.minimum(below, count) - count // 2


def discrete_gaussian_error(sigma: float) -> float:
    r"""A bound on the total variation distance between :func:`discrete_gaussian` and the exact law, for one draw.

    .. math:: \tfrac12 \sum_k |\hat P(k) - P(k)| \le (2K + 1)\, 2^{-65}, \qquad K = \lceil 12 \sigma + 5 \rceil

    because each of the :math:`2K` thresholds is off by at most :math:`2^{-65}`, and :math:`P(|X| > K) < 10^{-31}`.
    In a guarantee of :math:`(\varepsilon, \delta)`-privacy, :math:`N` draws add at most :math:`(1 + e^\varepsilon) N`
    times as much to :math:`\delta`.

    Args:
      sigma: the scale, from 0 to 4096.

    Raises:
      EvenhandError: ``sigma`` is not such a number.

    Example:
      >>> discrete_gaussian_error(2.0) < 2e-18
      True
    """
    return (2 * _reach(_checked(sigma, "discrete_gaussian_error")) + 1) * 2.0 ** -(_BITS + 1)


def discrete_gaussian_law(sigma: float, *, clients: int = 1) -> Law:
    r"""The exact law of the sum of ``clients`` independent draws of scale ``sigma``, to float64.

    .. math:: P_m = \underbrace{P * \dots * P}_{m}, \qquad P(k) \propto e^{-k^2 / 2\sigma^2}

    It is not a discrete Gaussian, only close to that of scale :math:`\sqrt m\,\sigma`; :func:`psi` says how close.

    Args:
      sigma: the scale of each draw, from 0 to 4096.
      clients: :math:`m`, how many are added; the time grows with :math:`m \sigma^2`.

    Raises:
      EvenhandError: ``sigma`` is not such a number, or ``clients`` not a whole number from 1.

    Example:
      >>> law = discrete_gaussian_law(0.5)
      >>> [round(float(law.probabilities[law.values == k][0]), 7) for k in (0, 1)], round(law.variance, 7)
      ([0.7865707, 0.1064508], 0.2150127)
      >>> round(discrete_gaussian_law(0.5, clients=4).variance, 7)
      0.8600507
    """
    reach = _reach(_checked(sigma, "discrete_gaussian_law"))
    left = whole_number("discrete_gaussian_law(clients=)", clients, 1)
    values = np.arange(-reach, reach + 1, dtype=np.float64)
    power = _trimmed(np.exp(-(values**2) / (2 * sigma**2)) if sigma > 0 else np.where(values == 0, 1.0, 0.0))
    total = np.ones(1)
    while left:
        if left % 2:
            total = _trimmed(np.convolve(total, power))
        left //= 2
        if left:
            power = _trimmed(np.convolve(power, power))
    reach = len(total) // 2
    return Law(np.arange(-reach, reach + 1), total)


def psi(sigma: float, *, clients: int) -> float:
    r"""How far the sum of clients' discrete Gaussians can be from a discrete Gaussian.

    .. math:: \psi = 10 \sum_{i=1}^{m-1} e^{-2\pi^2 \sigma^2 \frac{i}{i+1}}, \qquad
        \Big| \log \frac{P_m(k)}{\mathcal N_{\mathbb Z}(0, m\sigma^2)(k)} \Big| \le \psi \quad \text{for all } k

    Args:
      sigma: :math:`\sigma > 0`, the scale of each client's noise.
      clients: :math:`m`.

    Raises:
      EvenhandError: ``sigma`` is not above 0, or ``clients`` not a whole number from 1.

    Edge cases: 0 for one client.  For 256 clients it is 21 at :math:`\sigma = 1/2`, where it bounds nothing, ``5.5e-4``
    at 1, and ``7e-17`` at 2.

    Differs from the paper: its bound :math:`10 (m - 1) e^{-2\pi^2\sigma^2}` on this sum is below the sum, as
    :math:`i / (i + 1) < 1`; this is the sum.

    Example:
      >>> f"{psi(1.0, clients=256):.2e}"
      '5.52e-04'

    Source: Kairouz, Liu and Steinke, *The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation*, ICML 2021; Pillutla et al., 2023, theorem 6.
    """
    if not (0.0 < sigma < math.inf):
        raise EvenhandError(f"psi(sigma={sigma}): give a number above 0.")
    count = whole_number("psi(clients=)", clients, 1) - 1
    i = np.arange(1, min(count, _MOST_TERMS) + 1, dtype=np.float64)
    terms = np.exp(-2.0 * math.pi**2 * sigma**2 * i / (i + 1.0))
    # They fall, so that the last one bounds those that are not computed.
    rest = (count - len(terms)) * terms[-1] if len(terms) else 0.0
    return 10.0 * float(np.sum(terms) + rest)


def _checked(sigma: float, caller: str) -> float:
    if not 0.0 <= sigma <= _LARGEST:
        raise EvenhandError(f"{caller}(sigma={sigma}): give a number from 0 to {_LARGEST:g}.")
    return float(sigma)


def _reach(sigma: float) -> int:
    return math.ceil(12 * sigma + 5)


@lru_cache(maxsize=64)
def _thresholds(sigma: float) -> NDArray:
    """``2**64 P(X <= k)`` for those ``k`` for which it is neither 0 nor ``2**64``, uint32 ``(n, 2)``; n is even."""
    if sigma == 0.0:
        return np.zeros((0, 2), np.uint32)
    with localcontext() as context:
        context.prec = _DIGITS
        scale = 2 * Decimal(sigma) ** 2
        masses = [(-(Decimal(k) ** 2) / scale).exp() for k in range(_reach(sigma) + 1)]
        total = 2 * sum(masses[1:]) + masses[0]
        above, tails = Decimal(0), list[int]()
        for mass in reversed(masses[1:]):
            above += mass
            tails.append(int((2**_BITS * above / total).to_integral_value(ROUND_HALF_EVEN)))
    # Tails below 0, and what is left by those above 0: the rounded law is symmetric, too.
    lower = [tail for tail in tails if tail]
    words = lower + [2**_BITS - tail for tail in reversed(lower)]
    return np.array([divmod(word, 2**32) for word in words], np.uint32).reshape(-1, 2)


def _trimmed(masses: NDArray) -> NDArray:
    """Normalised, without the ends that are negligible; symmetric."""
    masses = masses / np.sum(masses)
    first = int(np.argmax(masses > _NEGLIGIBLE))
    return masses[first : len(masses) - first]
