"""TERM's weights with a normaliser that is averaged over rounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.types import Array, Cohort, Key, PyTree, Report, Sum, Upload

__all__ = ["reference_tilt", "running_tilt"]


class _Normaliser(NamedTuple):
    """``log`` of the running mean of ``exp(t F)``, and whether any round is in it."""

    log: Array
    seen: Array


def running_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""TERM's stochastic weights: each round's losses against a normaliser averaged, in log space, over rounds.

    .. math::
        a \leftarrow \log\big( (1 - \rho) e^a + \rho \sum_k p_k e^{t F_k} \big), \qquad
        \Delta = \sum_k p_k e^{t F_k - a} \Delta_k, \qquad p_k = \frac{\omega_k}{\sum_j \omega_j}

    The first round's normaliser is its own.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`; 1 is ``risk_weighted(eh.risks.tilted(t))``.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: where losses fall, ``a`` lags: it falls by at most :math:`\log\frac{1}{1-\rho}` a round, so that for
    ``t`` times the fall well above that all weights go to 0 and training stalls; the info of a run does not tell, the
    norm of its updates does.

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the stochastic solver over devices.
    """
    _check(t, rate, "running_tilt")

    def init(like: PyTree, clients: int) -> _Normaliser:
        return _Normaliser(jnp.float32(0.0), jnp.bool_(False))

    def weigh(reports: Report, cohort: Cohort, state: _Normaliser) -> tuple[Array, _Normaliser]:
        weights = reports.weight
        whole = jnp.sum(weights)
        anybody = whole > 0
        base = jnp.log(jnp.where(weights > 0, weights / jnp.where(anybody, whole, 1.0), 1.0))
        logs = jnp.where(weights > 0, t * reports.loss + base, -jnp.inf)
        own = jax.scipy.special.logsumexp(logs)
        mixed = jnp.where(state.seen, _mixed(state.log, own, rate), own)
        log = jnp.where(anybody, mixed, state.log)
        return jnp.exp(logs - log), _Normaliser(log, state.seen | anybody)

    return Sum(init, _lift, _whole, weigh=weigh, needs_loss=True)


def reference_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""What the reference code of TERM does over devices, for comparisons with its numbers.

    .. math::
        m = \max_k F_k, \quad s = \frac1K \sum_k e^{t (F_k - m)}, \quad c \leftarrow (1 - \rho) c + \rho s, \quad
        \Delta = \frac1K \sum_k \frac{e^{t (F_k - m)}}{K c} \Delta_k

    with :math:`c` from 0.  Against :func:`running_tilt` the normaliser mixes rounds that were shifted by different
    ``m``, and the sum is divided by ``K`` twice; the weights of the sampling scheme are ignored.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: for ``t < 0``, losses far apart make a :math:`c` so large that all weights are 0 for many rounds.

    Source: T. Li et al., code of *Tilted Empirical Risk Minimization*, the federated trainer.
    """
    _check(t, rate, "reference_tilt")

    # c in log space: for t < 0 the powers themselves overflow, since the largest loss is not what dominates.
    def weigh(reports: Report, cohort: Cohort, state: Array) -> tuple[Array, Array]:
        there = cohort.present & (reports.weight > 0)
        log_count = jnp.log(jnp.sum(there.astype(jnp.float32)))
        anybody = jnp.any(there)
        largest = jnp.max(jnp.where(there, reports.loss, -jnp.inf))
        logs = jnp.where(there, t * jnp.where(there, reports.loss - largest, 0.0), -jnp.inf)
        own = jax.scipy.special.logsumexp(logs) - log_count
        log = jnp.where(anybody, _mixed(state, own, rate), state)
        return jnp.where(there, jnp.exp(logs - 2.0 * log_count - log), 0.0), log

    return Sum(lambda like, clients: jnp.float32(-jnp.inf), _lift, _whole, weigh=weigh, needs_loss=True)


def _mixed(old: Array, new: Array, rate: float) -> Array:
    """``log((1 - rate) e^old + rate e^new)``."""
    return jnp.logaddexp(old + math.log1p(-rate), new + math.log(rate)) if rate < 1 else new


def _lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
    return tree.scale(upload.weight, upload.delta)


def _whole(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
    return total, state


def _check(t: float, rate: float, name: str) -> None:
    if not math.isfinite(t):
        raise EvenhandError(f"{name}(t={t}): the tilt must be finite.")
    if not 0.0 < rate <= 1.0:
        raise EvenhandError(f"{name}(rate={rate}): the share of the newest round must lie in (0, 1].")
