"""Outliers among the training examples of malicious clients, anew in each round."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Array, Attack, Key

__all__ = ["persistent_outliers"]


def persistent_outliers(
    fraction: float = 0.0,
    *,
    examples: float = 0.3,
    pixels: float = 0.3,
    low: float = 0.0,
    high: float = 1.0,
    std: float | None = None,
    label: int | None = None,
) -> Attack:
    r"""Disturbs some of a client's examples in each round that it takes part in, others every time.

    .. math:: x_{ij} \leftarrow \mathcal U(l, h), \quad i \in S^t, \; j \in P^t_i, \qquad \text{or} \qquad
        x_i \leftarrow x_i + \mathcal N(0, \sigma^2 I), \quad i \in S^t

    where :math:`S^t` are the examples that are hit in round :math:`t` and :math:`P^t_i` their pixels.

    Args:
      fraction: share of the clients that are malicious.
      examples: share of a client's examples that are hit, rounded down to whole examples.
      pixels: share of an example's pixels that are replaced, to the nearest; all channels of a pixel are.
      low: :math:`l`, in the units of the features.
      high: :math:`h`.
      std: :math:`\sigma`, of noise on all features in place of new pixels; None: pixels are replaced.
      label: only examples of this class are hit, and the share is of those; None: all classes.

    Raises:
      EvenhandError: a share outside [0, 1], ``low`` not below ``high``, or ``std`` not above 0.

    Edge cases: the disturbed examples are made from the clean ones, so that nothing accumulates, and depend on the
    seed, the round and the client alone, so that every method meets the same.  Labels and evaluation stay clean.
    Features are an axis of pixels, or two, and then perhaps one of channels.

    Differs from the paper: it does not say how many examples its noise hits, nor by what pixels are replaced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x, y = jnp.zeros((10, 4)), jnp.zeros(10, jnp.int32)
      >>> found, _ = persistent_outliers(0.2, pixels=0.5).fresh(x, y, jnp.int32(10), jax.random.key(0))
      >>> sorted(jnp.sum(found > 0, axis=1).tolist())
      [0, 0, 0, 0, 0, 0, 0, 2, 2, 2]

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    section IV-B.
    """
    for name, share in (("examples", examples), ("pixels", pixels)):
        if not 0.0 <= share <= 1.0:
            raise EvenhandError(f"persistent_outliers({name}={share}): give a share from 0 to 1.")
    if std is None and not -math.inf < low < high < math.inf:
        raise EvenhandError(
            f"persistent_outliers(low={low}, high={high}): give two numbers, the lower one first."
        )
    if std is not None and not 0.0 < std < math.inf:
        raise EvenhandError(f"persistent_outliers(std={std}): give a number above 0.")
    if label is not None:
        whole_number("persistent_outliers(label=)", label, 0)

    def change(x: Array, key: Key) -> Array:
        return (
            _replaced(x, pixels, low, high, key) if std is None else x + std * jax.random.normal(key, x.shape)
        )

    def fresh(x: Array, y: Array, size: Array, key: Key) -> tuple[Array, Array]:
        choice, what = jax.random.split(key)
        capacity = x.shape[0]
        eligible = jnp.arange(capacity) < size
        if label is not None:
            eligible &= y == label
        # For each number of examples, in Python: 0.3 of 10 is 3, not the 2 that float32 makes of it.
        counts = np.floor(np.arange(capacity + 1) * examples + 1e-9).astype(np.int32)
        order = jnp.argsort(jnp.where(eligible, jax.random.uniform(choice, (capacity,)), jnp.inf))
        # As many as there can be at most; those that are too many stay as they were.
        hit = order[: counts[-1]]
        chosen = jnp.arange(hit.shape[0]) < jnp.asarray(counts)[jnp.sum(eligible)]
        chosen = chosen.reshape(-1, *[1] * (x.ndim - 1))
        return x.at[hit].set(jnp.where(chosen, change(x[hit], what), x[hit])), y

    return Attack(fraction, fresh=fresh)


def _replaced(x: Array, share: float, low: float, high: float, key: Key) -> Array:
    """Uniform numbers in place of this share of the pixels of each example."""
    choice, what = jax.random.split(key)
    flat = x.reshape(x.shape[0], -1, x.shape[-1] if x.ndim > 3 else 1)
    order = jnp.argsort(jax.random.uniform(choice, flat.shape[:2]), axis=1)[:, : round(share * flat.shape[1])]
    new = jax.random.uniform(what, (*order.shape, flat.shape[2]), minval=low, maxval=high)
    return jax.vmap(lambda one, places, values: one.at[places].set(values))(flat, order, new).reshape(x.shape)
