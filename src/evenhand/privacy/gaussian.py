"""The Gaussian mechanism: noise on trees of arrays, and the noisy mean of clipped uploads, whose clip may adapt."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.privacy._checks import (
    LARGEST_CLIP,
    SMALLEST_CLIP,
    Scheme,
    check_sampled_noise,
    checked_clip,
    one_of,
    positive,
    probability,
)
from evenhand.privacy._checks import noise as checked_noise
from evenhand.types import Array, Key, PyTree, Release, Sum, Upload

__all__ = ["AdaptiveClip", "adaptive_clip", "noisy_mean", "with_gaussian"]


def with_gaussian(key: Key, tree: PyTree, deviation: Array | float) -> PyTree:
    """The tree plus independent normal noise of this standard deviation on every number of it."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))  # each leaf has a key of its own: equal shapes get other noise

    def noisy(key: Key, leaf: Array) -> Array:
        return leaf + (deviation * jax.random.normal(key, jnp.shape(leaf), jnp.float32)).astype(leaf.dtype)

    return jax.tree.unflatten(structure, map(noisy, keys, leaves))


class AdaptiveClip(NamedTuple):
    """A clip that follows a quantile of the norms; made by :func:`adaptive_clip`."""

    initial: float
    quantile: float
    step: float
    noise: float


_FARTHEST = 1e6
"""An adaptive clip stays within so many times its first value, up and down."""


class _State(NamedTuple):
    """The size of a cohort that is expected, and the present clip; float32 scalars."""

    expected: Array
    clip: Array


def noisy_mean(
    clip: float | AdaptiveClip, *, noise_multiplier: float, rate: float, sampling: Scheme = "poisson"
) -> Sum:
    r"""DP mean: mean of clipped uploads with Gaussian noise, which hides whether any one client took part.

    .. math::
        \Delta = \frac1{q N} \Big( \sum_k \Delta_k \min\Big(1, \frac{C}{\|\Delta_k\|}\Big)
        + \mathcal N(0, z^2 C^2 I) \Big)

    The norm is that of all numbers of an upload together.  The denominator is public: the expected size of a cohort,
    never the size of this one.  One client moves the sum by at most :math:`C`, so that each round is a Gaussian
    mechanism with noise multiplier :math:`z` on a Poisson sample of the clients.  With cohorts of a fixed size
    neighbours have one client *replaced*, which moves the sum by up to :math:`2 C`: noise multiplier :math:`z / 2`.

    Args:
      clip: :math:`C`, or :func:`adaptive_clip`.
      noise_multiplier: :math:`z \ge 0`.
      rate: :math:`q`, the part of the clients that is drawn: that of the sampling.
      sampling: how: ``"poisson"`` or ``"fixed"``, as in :mod:`evenhand.sampling`.

    Raises:
      EvenhandError: a number out of range; a count of clips that takes more noise than there is.  When a run starts:
        uploads in half precision.

    Privacy: an aggregator alone guarantees nothing: :func:`evenhand.privacy.private` checks what the method around it
    does with its clients' examples.

    Robustness: malicious clients of share :math:`\delta` move the mean by at most :math:`2 \delta C`.

    Edge cases: reported weights have no effect.  An upload that is not finite counts as zero, and one of norm 0 stays
    0.  A cohort without clients gives noise.  Noise is drawn in float32, whose gaps in principle tell something about
    the sum; whole numbers under :func:`evenhand.privacy.discrete_gaussian` do not have that flaw.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = noisy_mean(1.0, noise_multiplier=0.0, rate=0.5)
      >>> [round(x, 3) for x in eh.aggregators.aggregate(rule, jnp.array([[3.0, 4.0], [0.0, 0.5]])).tolist()]
      [0.6, 1.3]

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, the estimator with a
    fixed denominator; the adaptive clip: Andrew et al., *Differentially Private Learning with Adaptive Clipping*,
    NeurIPS 2021, algorithm 1.
    """
    check_sampled_noise("noisy_mean", noise_multiplier, rate)
    one_of("sampling", sampling, ("poisson", "fixed"))
    adapt, given = (clip, clip.initial) if isinstance(clip, AdaptiveClip) else (None, clip)
    first = checked_clip("noisy_mean(clip=)", given)
    mean_noise = noise_multiplier if adapt is None else _mean_noise(noise_multiplier, adapt)

    def init(like: PyTree, clients: int) -> _State:
        if any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(like)):
            raise EvenhandError(
                "noisy_mean(): in half precision a sum is rounded by more than one upload may change it: keep the "
                "model's parameters in float32."
            )
        # The denominator is public, and the same whoever takes part.
        expected = rate * clients if sampling == "poisson" else int(rate * clients + 1e-9)
        return _State(jnp.float32(expected), jnp.float32(first))

    def lift(upload: Upload, clip: Array, key: Key) -> tuple[PyTree, Array]:
        norm = tree.norm(upload.delta)
        clipped = tree.scale(clip / jnp.maximum(norm, clip), upload.delta)
        small = jnp.where(norm <= clip, 0.5, -0.5) if adapt is not None else jnp.float32(0.0)
        lifted = (clipped, small)
        return tree.select(jnp.isfinite(norm), lifted, tree.zeros_like(lifted))

    def lower(total: tuple[PyTree, Array], state: _State, key: Key) -> tuple[PyTree, _State]:
        (deltas, small), expected = total, state.expected
        mean_key, count_key = jax.random.split(key)
        mean = tree.scale(1.0 / expected, with_gaussian(mean_key, deltas, mean_noise * state.clip))
        if adapt is None:
            return mean, state
        share = (small + adapt.noise * jax.random.normal(count_key)) / expected + 0.5
        moved = state.clip * jnp.exp(-adapt.step * (share - adapt.quantile))
        return mean, state._replace(clip=jnp.clip(moved, *_bounds(first)))

    return Sum(
        init=init,
        lift=lift,
        lower=lower,
        publish=lambda state: state.clip,
        sensitivity=None if adapt is not None else first,
        release=Release(noise_multiplier / (1.0 if sampling == "poisson" else 2.0), rate, sampling),
    )


def adaptive_clip(
    initial: float = 0.1, *, quantile: float = 0.5, step: float = 0.2, noise: float
) -> AdaptiveClip:
    r"""A clip that follows a quantile of the norms of the uploads, found by counting under noise.

    .. math::
        C \leftarrow C \exp\big(-\eta (\tilde b - \gamma)\big), \qquad
        \tilde b = \frac1{q N} \Big( \sum_k \big(\mathbb 1[\|\Delta_k\| \le C] - \tfrac12\big)
        + \mathcal N(0, \sigma_b^2) \Big) + \tfrac12

    The count takes a part of the round's noise: with a noise multiplier :math:`z` for both together, the mean gets
    :math:`(z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`.  The clip stays between a millionth of the first one and a million
    times as much.

    Args:
      initial: :math:`C` in the first round.
      quantile: :math:`\gamma`, the share of uploads that should stay unclipped.
      step: :math:`\eta`.
      noise: :math:`\sigma_b`; the paper takes a twentieth of the expected size of a cohort.

    Raises:
      EvenhandError: a number out of range.

    Example:
      >>> adaptive_clip(noise=5.0).quantile
      0.5

    Source: Andrew et al., *Differentially Private Learning with Adaptive Clipping*, NeurIPS 2021, section 2.
    """
    checked_clip("adaptive_clip(initial=)", initial)
    positive("adaptive_clip(step=)", step)
    positive("adaptive_clip(noise=)", checked_noise("adaptive_clip(noise=)", noise))
    probability("adaptive_clip(quantile=)", quantile)
    return AdaptiveClip(initial, quantile, step, noise)


def _bounds(first: float) -> tuple[float, float]:
    """Between which a clip may adapt: noise alone would move it to 0 or infinity where uploads teach nothing."""
    return max(first / _FARTHEST, SMALLEST_CLIP), min(first * _FARTHEST, LARGEST_CLIP)


def _mean_noise(noise_multiplier: float, adapt: AdaptiveClip) -> float:
    """The noise multiplier of the mean, where the count of clips has its part."""
    if noise_multiplier == 0.0:
        return 0.0
    left = noise_multiplier**-2 - (2.0 * adapt.noise) ** -2
    if left <= 0.0:
        raise EvenhandError(
            f"adaptive_clip(noise={adapt.noise}): counting alone gives away more than noise_multiplier="
            f"{noise_multiplier:g} allows for a whole round: give more than {noise_multiplier / 2:g}, such as a "
            "twentieth of the clients in a cohort."
        )
    return left**-0.5
