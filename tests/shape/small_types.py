"""Small but true parts of what is to come: Poisson cohorts, noise, and an attack by a coalition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from scipy import stats

from evenhand import tree
from evenhand.types import Array, Attack, Cohort, Key, PyTree, Sampling, Sum, Upload


def poisson(rate: float) -> Sampling:
    """Each client takes part with probability ``rate``, whoever else does; the cohort's size is ignored."""

    def draw(key: Key, sizes: Array, m: int) -> Cohort:
        clients = sizes.shape[0]
        return Cohort.of(jnp.arange(clients, dtype=jnp.int32), jax.random.bernoulli(key, rate, (clients,)))

    return Sampling(draw, lambda size: jnp.ones_like(size, jnp.float32))


def noisy_sum(clip: float, noise: float, expected: float, on_client: float = 0.0) -> Sum:
    """The sum of clipped uploads and of Gaussian noise, over a number of clients that anybody may know.

    ``on_client`` is the deviation of noise that each client adds to its clipped upload.
    """

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        shrink = jnp.minimum(1.0, clip / jnp.maximum(tree.norm(upload.delta), 1e-12))
        return _plus_noise(tree.scale(shrink, upload.delta), on_client, key)

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        return tree.scale(1.0 / expected, _plus_noise(total, clip * noise, key)), state

    sensitivity = clip if on_client == 0 else None
    return Sum(lambda like, clients: (), lift, lower, sensitivity=sensitivity)


def _plus_noise(values: PyTree, deviation: float, key: Key) -> PyTree:
    leaves, structure = jax.tree.flatten(values)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + deviation * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def alie(clients: tuple[int, ...], cohort: int) -> Attack:
    """A little is enough (Baruch et al., 2019): the coalition hides within the deviation of the honest uploads.

    Its z is the largest at which as many honest clients as a majority needs are still further from the mean.
    """
    malicious = len(clients)
    z = float(stats.norm.ppf((cohort - (cohort // 2 + 1)) / (cohort - malicious)))

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = (present & ~malicious).astype(jnp.float32)

        def hidden(leaf: Array) -> Array:
            mean = jnp.tensordot(honest, leaf, axes=1) / jnp.sum(honest)
            square = jnp.tensordot(honest, jnp.square(leaf - mean[None]), axes=1) / jnp.sum(honest)
            return jnp.broadcast_to(mean - z * jnp.sqrt(square), leaf.shape)

        return jax.tree.map(hidden, uploads.delta)

    return Attack(clients=clients, collude=collude)
