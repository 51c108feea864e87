r"""Systems heterogeneity: which clients are slow in a round, how much work they complete, and which drop out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, expect
from evenhand.streams import Purpose, client_stream, permutation_words, permute, stream
from evenhand.text import short
from evenhand.types import Array, Cohort, Key

__all__ = ["Systems", "chain", "dropouts", "stragglers"]


class Systems(NamedTuple):
    """Which clients of a round's cohort are slow or drop out, before they report.

    Attributes:
      draw: ``(key, cohort, keep_partial) -> Cohort``, perhaps with fewer slots; ``keep_partial``, a Python bool:
        whether the method aggregates stragglers' partial work rather than dropping it.
    """

    draw: Callable[[Key, Cohort, bool], Cohort]
    __repr__ = short


def stragglers(fraction: float) -> Systems:
    r"""In each round a share of the *selected* clients is slow and does only part of its local work.

    A slow client does :math:`x \sim \mathrm{Unif}\{1, \dots, E\}` epochs; where ``E = 1``, or where local work is
    counted in steps, it does :math:`\mathrm{Unif}\{1, \dots, S\}` of its ``S`` steps.  The method decides
    about partial work: FedAvg drops it, FedProx keeps it.

    The draws depend on the seed, the round and the client alone, never on the method: methods run with the same
    seed have the same stragglers.

    Args:
      fraction: share of the cohort that is slow, in [0, 1]; ``round(m * (1 - fraction))`` clients are fast.

    Raises:
      EvenhandError: ``fraction`` is not a number in [0, 1].

    Differs from the reference code, which draws from ``{1, ..., E - 1}`` and fails for ``E = 1``.

    Example:
      >>> cohort = Cohort.of(jnp.arange(10))
      >>> [len(stragglers(share).draw(jax.random.key(0), cohort, False).ids) for share in (0.0, 0.5, 0.9)]
      [10, 5, 1]

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.2.
    """
    return _stragglers(_share("stragglers", "slow clients", fraction))


def dropouts(fraction: float) -> Systems:
    """Each client of the cohort drops out of the round with a given probability, independently, and uploads nothing.

    Its state, where the method keeps one, stays as it was.  A client that drops out of a round drops out of all
    exchanges that the round has with the same cohort.

    Args:
      fraction: the probability, in [0, 1].

    Raises:
      EvenhandError: ``fraction`` is not a number in [0, 1].

    Example:
      >>> cohort = dropouts(0.5).draw(jax.random.key(0), Cohort.of(jnp.arange(1000)), False)
      >>> bool(450 < cohort.present.sum() < 550)
      True
    """
    return _dropouts(_share("dropouts", "clients that drop out", fraction))


def chain(*systems: Systems) -> Systems:
    """Applies several in turn: ``chain(stragglers(0.5), dropouts(0.1))``.

    Each draws what it would draw alone; a second one of the same kind draws independently.

    Args:
      systems: those, in order.

    Example:
      >>> both = chain(stragglers(0.5), dropouts(1.0))
      >>> both.draw(jax.random.key(0), Cohort.of(jnp.arange(4)), False).present.tolist()
      [False, False]
    """
    for system in systems:
        expect("systems", system, Systems, "eh.systems.stragglers(0.5)")
    return _chain(systems)


# All three are cached: equal shares give the same object, so that the engine reuses its compiled program.
@cache
def _stragglers(fraction: float) -> Systems:
    def draw(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        m = cohort.ids.shape[0]
        slots = jnp.arange(m, dtype=jnp.int32)
        words = permutation_words(stream(key, Purpose.COHORT))
        fast = permute(slots, jnp.int32(m), words, jnp.int32(0))[: round(m * (1.0 - fraction))]
        if not keep_partial:
            return jax.tree.map(lambda leaf: leaf[jnp.sort(fast)], cohort)
        share = _uniform(stream(key, Purpose.WORK), cohort.ids)
        is_fast = jnp.zeros(m, bool).at[fast].set(True)
        return cohort._replace(progress=jnp.where(is_fast, cohort.progress, share))

    return Systems(draw)


@cache
def _dropouts(fraction: float) -> Systems:
    def draw(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        stays = _uniform(stream(key, Purpose.DROPOUTS), cohort.ids) >= fraction
        return cohort._replace(present=cohort.present & stays)

    return Systems(draw)


@cache
def _chain(systems: tuple[Systems, ...]) -> Systems:
    def draw(key: Key, cohort: Cohort, keep_partial: bool) -> Cohort:
        for i, system in enumerate(systems):
            earlier = sum(_kind(other) == _kind(system) for other in systems[:i])
            system_key = jax.random.fold_in(key, earlier) if earlier else key
            cohort = system.draw(system_key, cohort, keep_partial)
        return cohort

    return Systems(draw)


def _kind(system: Systems) -> str:
    # A user's draw may be any callable, and those of one factory share this name.
    return getattr(system.draw, "__qualname__", "")


def _uniform(key: Key, ids: Array) -> Array:
    """A number in [0, 1) for each client."""
    return jax.vmap(lambda k: jax.random.uniform(client_stream(key, k), dtype=jnp.float32))(ids)


def _share(name: str, clients: str, fraction: float) -> float:
    if not (isinstance(fraction, Real) and 0.0 <= fraction <= 1.0):
        raise EvenhandError(
            f"{name}(fraction={fraction!r}): the share of {clients} must be a number in [0, 1]."
        )
    return float(fraction)
