r"""Systems heterogeneity: who is slow in a round, and how much of the work a slow client gets done."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import permutation
from evenhand.errors import EvenhandError
from evenhand.naming import short
from evenhand.streams import Purpose, client_stream, stream
from evenhand.types import Array, Key

__all__ = ["Systems", "stragglers"]


class Systems(NamedTuple):
    """Which clients of a cohort finish in time.

    Attributes:
      fast: ``m -> how many`` of a cohort of ``m`` finish all their work; a Python int.
      draw: ``(key, ids) -> (slots, progress)``: the cohort's slots ordered so that the fast ones come first, and,
        for each slot as it stood, the share of the work done, >= 1 for the fast ones.
    """

    fast: Callable[[int], int]
    draw: Callable[[Key, Array], tuple[Array, Array]]
    __repr__ = short


def stragglers(fraction: float) -> Systems:
    r"""In each round a share of the *selected* clients is slow and does only part of its local work.

    A slow client does :math:`x \sim \mathrm{Unif}\{1, \dots, E\}` epochs; where ``E = 1``, or where local work is
    counted in steps, it does :math:`\mathrm{Unif}\{1, \dots, S\}` of its ``S`` steps.  What becomes of partial
    work is the method's affair: FedAvg drops it, FedProx keeps it.

    The draws depend on the seed, the round and the client alone, never on the method: methods run with one seed
    meet the same stragglers.

    Args:
      fraction: share of the cohort that is slow, in [0, 1]; ``round(m * (1 - fraction))`` clients are fast.

    Raises:
      EvenhandError: ``fraction`` is not a number in [0, 1].

    Differs from the reference code, which draws from ``{1, ..., E - 1}`` and fails for ``E = 1``.

    Example:
      >>> [stragglers(share).fast(10) for share in (0.0, 0.5, 0.9)]
      [10, 5, 1]

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.2.
    """
    if not (isinstance(fraction, Real) and 0.0 <= fraction <= 1.0):
        raise EvenhandError(
            f"stragglers(fraction={fraction!r}): the share of slow clients must be a number in [0, 1]."
        )

    return _stragglers(float(fraction))


@cache  # equal shares give the same object, so that the engine finds its compiled program again
def _stragglers(fraction: float) -> Systems:
    def fast(m: int) -> int:
        return round(m * (1.0 - fraction))

    def draw(key: Key, ids: Array) -> tuple[Array, Array]:
        m = ids.shape[0]
        order_key = stream(key, Purpose.COHORT)
        slots = jnp.arange(m, dtype=jnp.int32)
        order = permutation.permute(slots, jnp.int32(m), permutation.words(order_key), jnp.int32(0))
        share_key = stream(key, Purpose.WORK)
        share = jax.vmap(lambda k: jax.random.uniform(client_stream(share_key, k), dtype=jnp.float32))(ids)
        is_fast = jnp.zeros(m, bool).at[order[: fast(m)]].set(True)
        return order, jnp.where(is_fast, jnp.float32(1.0), share)

    return Systems(fast, draw)
