"""Norm clipping and normalisation before another aggregator, and the rejection of a direction that is too long."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators._reduce import check_then, rescaled
from evenhand.aggregators.mean import mean
from evenhand.aggregators.stacked import norms
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Aggregator, Array, Key, Need, PyTree, Stack, Sum, Upload

__all__ = ["arc", "check_length", "clip", "normalize", "reject"]


def clip(longest: float | None = None, *, then: Aggregator = mean()) -> Aggregator:
    r"""Norm clipping: shortens long uploads, before another aggregator.

    .. math:: \Delta_k \leftarrow \Delta_k \min\Big(1, \frac{c}{\|\Delta_k\|}\Big)

    Args:
      longest: :math:`c`; None: the median norm of the cohort's uploads.
      then: reduces the shortened uploads.

    Raises:
      EvenhandError: ``longest`` not above 0; without ``longest``, a ``then`` that weighs clients by their reports.

    Robustness: with the mean, no breakdown for a fixed :math:`c`, but a share :math:`\delta` of the weight moves the
    direction by up to :math:`2 \delta c`.  The median withstands less than half of the cohort; with more, :math:`c`
    itself is theirs.  Reported weights go to ``then``.

    Edge cases: an upload of norm 0 stays; with an even number of accepted uploads, the median is the mean of the
    middle two.

    Differs from the paper: its code divides by :math:`\|\Delta_k\| + 10^{-10}`.

    Cost: with ``longest``, clients clip, and sums stay sums, under secure summation as well; the median needs all
    uploads in memory.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas = jnp.array([[0.0, 1.0], [0.0, 2.0], [30.0, 40.0]])
      >>> [round(x, 3) for x in eh.aggregators.aggregate(clip(), deltas).tolist()]
      [0.4, 1.533]

    Source: Sun et al., *Can You Really Backdoor Federated Learning?*, 2019 (fixed); Li et al., *Ditto*, ICML 2021,
    appendix D.4 (median).
    """
    check_then("clip", then)
    if longest is None:

        def to_median(deltas: PyTree, present: Array) -> Array:
            lengths = norms(deltas)
            ascending, m = jnp.sort(jnp.where(present, lengths, jnp.inf)), jnp.sum(present)
            middle = 0.5 * (ascending[jnp.maximum(m - 1, 0) // 2] + ascending[m // 2])
            return _shortening(lengths, jnp.where(m > 0, middle, 0.0))

        return rescaled(then, to_median, "clip")
    check_length("clip(longest", longest)
    return _rescaled(then, lambda norm: longest / jnp.maximum(norm, longest), "clip")


def normalize(length: float = 1.0, *, then: Aggregator = mean()) -> Aggregator:
    r"""Normalises all uploads to the same length, before another aggregator.

    .. math:: \Delta_k \leftarrow c \, \frac{\Delta_k}{\|\Delta_k\|}

    Args:
      length: :math:`c`.
      then: reduces the uploads.

    Raises:
      EvenhandError: ``length`` not above 0.

    Robustness: as :func:`clip` with a fixed length; a short honest upload counts as much as a long one.

    Edge cases: an upload of norm 0 stays.

    Cost: as :func:`clip` with a fixed length.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> step = eh.aggregators.aggregate(normalize(), jnp.array([[3.0, 4.0], [0.0, 50.0]]))
      >>> [round(x, 3) for x in step.tolist()]
      [0.3, 0.9]

    Source: Hu et al., *Federated Learning Meets Multi-Objective Optimization*, 2022, algorithm 1, its first step.
    """
    check_length("normalize(length", length)
    check_then("normalize", then)

    def factor(norm: Array) -> Array:
        return jnp.where(norm > 0, length / jnp.where(norm > 0, norm, 1.0), 0.0)

    return _rescaled(then, factor, "normalize")


def arc(malicious: int, then: Aggregator) -> Stack:
    r"""Adaptive robust clipping (ARC): shortens the longest uploads to the next longest, before another aggregator.

    .. math:: \Delta_k \leftarrow \Delta_k \min\Big(1, \frac{c}{\|\Delta_k\|}\Big), \qquad
        c \text{ the } (l + 1)\text{-th largest norm}, \quad l = \Big\lfloor \frac{2 f}{m} (m - f) \Big\rfloor

    Args:
      malicious: :math:`f`, how many uploads of a cohort may be malicious.
      then: reduces the shortened uploads.

    Raises:
      EvenhandError: ``malicious`` below 0, or a ``then`` that weighs clients by their reports.

    Robustness: that of ``then``, for :math:`f < m / 2`; malicious uploads can then not be much longer than honest ones.
    Reported weights go to ``then``.

    Edge cases: ``malicious=0`` changes nothing; :math:`m` counts the accepted uploads, and at least one keeps its norm.

    Cost: each upload is read twice.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = arc(1, then=eh.aggregators.mean())
      >>> [round(x, 3) for x in eh.aggregators.aggregate(rule, jnp.array([[1.0], [4.0], [90.0]])).tolist()]
      [3.0]

    Source: Allouah et al., *Adaptive Gradient Clipping for Robust Federated Learning*, ICLR 2025, algorithm 2.
    """
    malicious = whole_number("arc(malicious=)", malicious, 0)
    check_then("arc", then)

    def to_next(deltas: PyTree, present: Array) -> Array:
        lengths, m = norms(deltas), jnp.sum(present)
        # Whole numbers: 2 f (m - f) / m in float32 may fall just below one.
        shortened = jnp.clip(2 * malicious * (m - malicious) // jnp.maximum(m, 1), 0, jnp.maximum(m - 1, 0))
        ascending = jnp.sort(jnp.where(present, lengths, jnp.inf))
        return _shortening(lengths, ascending[jnp.maximum(m - 1 - shortened, 0)])

    own = Need.over(f"arc({malicious})", malicious, lambda m: m > 2 * malicious)
    return rescaled(then, to_next, "arc", (own, *then.needs))


def reject(longest: float, then: Aggregator) -> Aggregator:
    r"""The direction of another aggregator, or zeros if it is too long.

    .. math:: \Delta = \Delta' \ \text{ if } \|\Delta'\| < L, \ \text{ else } 0

    Args:
      longest: :math:`L`; RFA's authors use 1000, and 100,000 on Sent140.
      then: reduces the uploads.

    Raises:
      EvenhandError: ``longest`` not above 0.

    Robustness: a last resort that keeps a model finite: whoever can make the direction too long can also stop the
    training.

    Edge cases: the server still steps, along zeros: an optimiser with momentum continues in its old direction.

    Differs from the paper: the authors' code also ends the run after 20 rejections in a row.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = reject(1000.0, then=eh.aggregators.mean())
      >>> [float(eh.aggregators.aggregate(rule, jnp.array([1.0, last]))) for last in (3.0, 3000.0)]
      [2.0, 0.0]

    Source: the code of Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, IEEE Transactions
    on Signal Processing 2022.
    """
    check_length("reject(longest", longest)
    check_then("reject", then)

    def checked(result: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        direction, state = result
        return tree.select(tree.norm(direction) < longest, direction, tree.zeros_like(direction)), state

    if isinstance(then, Sum):
        return then._replace(lower=lambda total, state, key: checked(then.lower(total, state, key)))
    return then._replace(
        apply=lambda uploads, present, state, key: checked(then.apply(uploads, present, state, key))
    )


def _rescaled(then: Aggregator, factor: Callable[[Array], Array], name: str) -> Aggregator:
    """``then`` on uploads that are made longer or shorter, by a factor that depends on the norm."""
    if not isinstance(then, Sum):
        return rescaled(then, lambda deltas, present: factor(norms(deltas)), name)

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        delta = tree.scale(factor(tree.norm(upload.delta)), upload.delta)
        return then.lift(upload._replace(delta=delta), public, key)

    # A sum stays a sum, and clients do it.
    return then._replace(lift=lift, sensitivity=None)


def _shortening(lengths: Array, longest: Array) -> Array:
    """By what uploads of these lengths are multiplied, so that none is longer."""
    return jnp.where(lengths > longest, longest / jnp.where(lengths > longest, lengths, 1.0), 1.0)


def check_length(call: str, length: float) -> None:
    """Checks that a length is above 0; ``call`` is the factory's, up to the name of the argument."""
    if not 0.0 < real_number(length) < math.inf:
        raise EvenhandError(f"{call}={length!r:.40}): give a length above 0.")
