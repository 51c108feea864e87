"""The mean of clipped uploads under noise that the clients add themselves, in whole numbers, beneath a secure sum."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy.discrete_gaussian import discrete_gaussian
from evenhand.sampling import fixed
from evenhand.secure import masked_words
from evenhand.types import Array, Key, PyTree, Release, Sum, Summation, Upload

__all__ = ["discrete_mean"]

_SIGMA = 1024.0
"""Of each client's noise.  Large, so that rounding is small beside it, and the sum as good as a discrete Gaussian."""


class _State(NamedTuple):
    """The size of a cohort, float32, and how many whole numbers one is, float32."""

    cohort: Array
    scale: Array


def discrete_mean(
    clip: float, *, noise_multiplier: float, rate: float, fewest: int, integers_only: bool = False
) -> Sum:
    r"""The mean of clipped uploads, of which even the server sees no more than a noisy sum.

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
      integers_only: leave out the masks, which cancel, as for :func:`evenhand.aggregators.secure`: the same to the bit.

    Raises:
      EvenhandError: a number out of range.  When a run starts: fewer clients in a cohort than ``fewest``; so many
        numbers, or so much noise, that nothing is left of an upload; or so little noise that a sum could wrap around.

    Privacy: cohorts must be of a fixed size, and neighbours have one client *replaced*, because the noise depends on
    how many clients add some.  The sum of discrete Gaussians is within :func:`evenhand.privacy.psi` of one, which is 0
    here to float64.  ``run.privacy`` counts on the secrecy of who takes part; a server knows that, and to it each round
    is a release of its own with noise multiplier :math:`z / 2`.

    Robustness: malicious clients of share :math:`\delta` move the mean as they please: nobody sees that they did not
    clip.

    Edge cases: reported weights have no effect.  An upload that is not finite counts as zero; where a simulation has
    rejected it before, its client counts as one that does not answer.

    Differs from the paper: rounding is bounded for the worst case, not again and again until it is shorter; there is no
    rotation, as 32 bits are enough for numbers as they are.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=100)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> noisy = discrete_mean(0.5, noise_multiplier=2.0, rate=0.2, fewest=15, integers_only=True)
      >>> method = eh.privacy.private(eh.algorithms.fedavg(work, aggregator=noisy, sampling=eh.sampling.fixed(0.2)))
      >>> run = eh.simulate(method, data, rounds=4)
      >>> run.privacy.neighbours
      'one client, with all its examples, replaced by another'

    Source: Kairouz, Liu and Steinke, *The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation*, ICML 2021, algorithm 1.
    """
    if not (0.0 < clip < math.inf and 0.0 < noise_multiplier < math.inf and 0.0 < rate <= 1.0):
        raise EvenhandError(
            f"discrete_mean({clip}, noise_multiplier={noise_multiplier}, rate={rate}): give finite numbers above 0, "
            "and a part of at most 1."
        )
    whole_number("discrete_mean(fewest=)", fewest, 2)
    longest = math.sqrt(fewest) * _SIGMA / noise_multiplier

    def init(like: PyTree, clients: int) -> _State:
        slots = fixed(rate).slots
        assert slots is not None
        cohort, numbers = slots(clients), sum(leaf.size for leaf in jax.tree.leaves(like))
        left = longest - math.sqrt(numbers)
        _check(cohort, fewest, left, longest)
        return _State(jnp.float32(cohort), jnp.float32(left / clip))

    def publish(state: _State) -> Array:
        return state.scale

    def lift(upload: Upload, scale: Array, key: Key) -> tuple[PyTree, Array]:
        norm = tree.norm(upload.delta)
        clipped = tree.scale(scale * clip / jnp.maximum(norm, clip), upload.delta)
        clipped = tree.select(jnp.isfinite(norm), clipped, tree.zeros_like(clipped))
        leaves, structure = jax.tree.flatten(clipped)
        keys = jax.random.split(key, len(leaves))
        words = [_noisy_words(leaf, of) for leaf, of in zip(leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, words), jnp.uint32(1)

    def lower(total: tuple[PyTree, Array], state: _State, key: Key) -> tuple[PyTree, _State]:
        words, answered = total
        enough = (answered >= jnp.uint32(fewest)).astype(jnp.float32)
        return tree.scale(enough / (state.scale * state.cohort), jax.tree.map(_number, words)), state

    return Sum(
        init,
        lift,
        lower,
        publish,
        summation=Summation(32, None if integers_only else masked_words),
        release=Release(noise_multiplier / 2.0, rate, "fixed", mechanism="concentrated"),
    )


def _noisy_words(numbers: Array, key: Key) -> Array:
    """Rounded at random, under noise, modulo ``2**32``; uint32."""
    rounding, noise = jax.random.split(key)
    drawn = jax.random.uniform(rounding, numbers.shape, jnp.float32)
    whole = jnp.floor(numbers.astype(jnp.float32) + drawn).astype(jnp.int32)
    noisy = whole + discrete_gaussian(noise, sigma=_SIGMA, shape=numbers.shape)
    return lax.bitcast_convert_type(noisy, jnp.uint32)


def _number(word: Array) -> Array:
    return lax.bitcast_convert_type(word.astype(jnp.uint32), jnp.int32).astype(jnp.float32)


def _check(cohort: int, fewest: int, left: float, longest: float) -> None:
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
    if cohort * (longest + 10.0 * _SIGMA) >= 2.0**31:
        raise EvenhandError(
            f"discrete_mean(): the sum of {cohort} uploads could wrap around modulo 2**32: give a larger "
            "noise_multiplier, or a smaller rate."
        )
