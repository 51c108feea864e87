"""The discrete Gaussian: whole-number noise, its exact law, that of its sum over clients, and the mean under it."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand.errors import EvenhandError, expect, real_number, whole_number
from evenhand.privacy._checks import check_sampled_noise, checked_clip, positive
from evenhand.sampling import fixed
from evenhand.secure import masked_words
from evenhand.types import Array, Key, PyTree, Release, Sum, Summation, Upload

NDArray = npt.NDArray[Any]


# --- the distribution ------------------------------------------------------------------------------------


_LARGEST = 2.0**12
"""Of sigma: a table of some 100,000 numbers, which takes some seconds to compute."""


_BITS = 64
"""Of the uniform numbers that draws are made from."""


_DIGITS = 50
"""Decimal ones, with which the thresholds are computed."""


_MOST_TERMS = 2**20
"""Of the sum of :func:`psi` that are computed; the last bounds the others."""


_NEGLIGIBLE = 1e-60
"""The largest probability at the ends of a law that is left out."""


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
    expect("discrete_gaussian(shape=)", shape, tuple | list, "shape=(8,)")
    table = _thresholds(checked_sigma(sigma, "discrete_gaussian"))
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
    return (2 * _reach(checked_sigma(sigma, "discrete_gaussian_error")) + 1) * 2.0 ** -(_BITS + 1)


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
    reach = _reach(checked_sigma(sigma, "discrete_gaussian_law"))
    left = whole_number("discrete_gaussian_law(clients=)", clients, 1)
    values = np.arange(-reach, reach + 1, dtype=np.float64)
    # Of smaller scales, 0 alone has a probability that is a float; the square of the least ones is none.
    is_spread = sigma > 1e-3
    power = _trimmed(np.exp(-(values**2) / (2 * sigma**2)) if is_spread else np.where(values == 0, 1.0, 0.0))
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
    # The terms of larger ones are 0, too.
    sigma = min(positive("psi(sigma=)", sigma), 1e3)
    count = whole_number("psi(clients=)", clients, 1) - 1
    i = np.arange(1, min(count, _MOST_TERMS) + 1, dtype=np.float64)
    terms = np.exp(-2.0 * math.pi**2 * sigma**2 * i / (i + 1.0))
    # They fall, so that the last one bounds those that are not computed.
    rest = (count - len(terms)) * terms[-1] if len(terms) else 0.0
    return 10.0 * float(np.sum(terms) + rest)


def checked_sigma(sigma: float, caller: str) -> float:
    """``sigma`` as a float, if it is one that the table of thresholds can be computed for."""
    if not 0.0 <= real_number(sigma) <= _LARGEST:
        raise EvenhandError(f"{caller}(sigma={sigma!r:.40}): give a number from 0 to {_LARGEST:g}.")
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
        parts = (2**_BITS * above / total for above in accumulate(reversed(masses[1:])))
        tails = [int(part.to_integral_value(ROUND_HALF_EVEN)) for part in parts]
    # Tails below 0, and what is left by those above 0: the rounded law is symmetric, too.
    lower = [tail for tail in tails if tail]
    words = lower + [2**_BITS - tail for tail in reversed(lower)]
    return np.array([divmod(word, 2**32) for word in words], np.uint32).reshape(-1, 2)


def _trimmed(masses: NDArray) -> NDArray:
    """Normalised, without the ends that are negligible; symmetric."""
    masses = masses / np.sum(masses)
    first = int(np.argmax(masses > _NEGLIGIBLE))
    return masses[first : len(masses) - first]


# --- the mean of uploads ---------------------------------------------------------------------------------


_UPLOAD_SIGMA = 1024.0
"""Of each client's noise.  Large, so that rounding is small beside it, and the sum as good as a discrete Gaussian."""


class _MeanState(NamedTuple):
    """The size of a cohort, float32, and how many whole numbers one is, float32."""

    cohort: Array
    scale: Array


def discrete_mean(clip: float, *, noise_multiplier: float, rate: float, fewest: int) -> Sum:
    r"""Distributed differential privacy: mean of clipped uploads of which the server sees only a noisy secure sum.

    .. math::
        y_k = \Big\lfloor s\, \Delta_k \min\Big(1, \frac{C}{\|\Delta_k\|}\Big) \Big\rceil + \xi_k \bmod 2^{32},
        \quad \xi_k \sim \mathcal N_{\mathbb Z}(0, \sigma^2)^d, \qquad
        \Delta = \frac1{s\, m} \Big( \sum_k y_k \bmod 2^{32} \Big)

    with :math:`s = (\sqrt{m'} \sigma / z - \sqrt d) / C` and :math:`\sigma = 1024`, for a cohort of :math:`m` clients,
    of which at least :math:`m'` answer.  Rounding is at random, up or down, so that the mean is kept, and lengthens an
    upload by at most :math:`\sqrt d`: all of them together get noise of :math:`z` times what one client adds.

    Args:
      clip: :math:`C`.
      noise_multiplier: :math:`z > 0`, of the noise of the fewest clients over the clip.
      rate: :math:`q`, that of :func:`evenhand.sampling.fixed`: :math:`m = \lfloor q N \rfloor`.
      fewest: :math:`m'`; with fewer answers the sum is given up, and the direction is 0.

    Raises:
      EvenhandError: a number out of range.  When a run starts: fewer clients in a cohort than ``fewest``; so many
        numbers, or so much noise, that nothing is left of an upload; or so little noise that a sum could wrap around.

    Privacy: cohorts must be of a fixed size, and neighbours have one client *replaced*, because the noise depends on
    how many clients add some.  The sum of discrete Gaussians is within :func:`evenhand.privacy.psi` of one, which is 0
    here to float64.  ``run.privacy`` counts on the secrecy of who takes part; a server knows that, and to it each round
    is a release of its own with noise multiplier :math:`z / 2`.

    Robustness: malicious clients of share :math:`\delta` move the mean as they please: nobody sees that they did not
    clip.

    Edge cases: reported weights have no effect.  An upload that is not finite counts as zero, under noise; under
    :func:`evenhand.privacy.private` clients send zeros in its place.  A simulation of a method without that rejects it
    before, and its client counts as one that does not answer.

    Differs from the paper: rounding is bounded for the worst case, not again and again until it is shorter; there is no
    rotation, as 32 bits are enough for numbers as they are.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=100)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> noisy = discrete_mean(0.5, noise_multiplier=2.0, rate=0.2, fewest=15)
      >>> method = eh.privacy.private(eh.algorithms.fedavg(work, aggregator=noisy, sampling=eh.sampling.fixed(0.2)))
      >>> run = eh.simulate(method, data, rounds=4)
      >>> run.privacy.neighbours
      'one client, with all its examples, replaced by another'

    Source: Kairouz, Liu and Steinke, *The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation*, ICML 2021, algorithm 1.
    """
    checked_clip("discrete_mean(clip=)", clip)
    positive("discrete_mean(noise_multiplier=)", noise_multiplier)
    check_sampled_noise("discrete_mean", noise_multiplier, rate)
    fewest = whole_number("discrete_mean(fewest=)", fewest, 2)
    longest = math.sqrt(fewest) * _UPLOAD_SIGMA / noise_multiplier

    def init(like: PyTree, clients: int) -> _MeanState:
        slots = fixed(rate).slots
        assert slots is not None
        cohort, numbers = slots(clients), sum(leaf.size for leaf in jax.tree.leaves(like))
        left = longest - math.sqrt(numbers)
        _check_room(cohort, fewest, left, longest)
        return _MeanState(jnp.float32(cohort), jnp.float32(left / clip))

    def lift(upload: Upload, scale: Array, key: Key) -> tuple[PyTree, Array]:
        norm = tree.norm(upload.delta)
        clipped = tree.scale(scale * clip / jnp.maximum(norm, clip), upload.delta)
        clipped = tree.select(jnp.isfinite(norm), clipped, tree.zeros_like(clipped))
        leaves, structure = jax.tree.flatten(clipped)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(structure, map(_noisy_words, leaves, keys)), jnp.uint32(1)

    def lower(total: tuple[PyTree, Array], state: _MeanState, key: Key) -> tuple[PyTree, _MeanState]:
        words, answered = total
        enough = (answered >= jnp.uint32(fewest)).astype(jnp.float32)
        return tree.scale(enough / (state.scale * state.cohort), jax.tree.map(_signed, words)), state

    return Sum(
        init=init,
        lift=lift,
        lower=lower,
        publish=lambda state: state.scale,
        summation=Summation(32, masked_words, fewest=fewest, clip=clip),
        release=Release(noise_multiplier / 2.0, rate, "fixed", mechanism="concentrated"),
    )


def _noisy_words(numbers: Array, key: Key) -> Array:
    """Rounded at random, under noise, modulo ``2**32``; uint32."""
    rounding, noise = jax.random.split(key)
    drawn = jax.random.uniform(rounding, numbers.shape, jnp.float32)
    whole = jnp.floor(numbers.astype(jnp.float32) + drawn).astype(jnp.int32)
    noisy = whole + discrete_gaussian(noise, sigma=_UPLOAD_SIGMA, shape=numbers.shape)
    return jax.lax.bitcast_convert_type(noisy, jnp.uint32)


def _signed(word: Array) -> Array:
    return jax.lax.bitcast_convert_type(word.astype(jnp.uint32), jnp.int32).astype(jnp.float32)


def _check_room(cohort: int, fewest: int, left: float, longest: float) -> None:
    if cohort < fewest:
        raise EvenhandError(
            f"discrete_mean(fewest={fewest}): a cohort has {cohort} clients: give a larger rate, or fewer."
        )
    if left < longest / 10.0:
        raise EvenhandError(
            "discrete_mean(): uploads of so many numbers would be rounded by more than is left of them: give a "
            "smaller noise_multiplier, or more clients."
        )
    # No draw is larger than 9.2 sigma.
    if cohort * (longest + 10.0 * _UPLOAD_SIGMA) >= 2.0**31:
        raise EvenhandError(
            f"discrete_mean(): the sum of {cohort} uploads could wrap around modulo 2**32: give a larger "
            "noise_multiplier, or a smaller rate."
        )
