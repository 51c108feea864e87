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
    """``log`` of the running mean of ``exp(t F)``, and whether any round has entered it."""

    log: Array
    seen: Array


def running_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""TERM's stochastic weights: losses are normalised by an average over rounds, taken in log space.

    .. math::
        a \leftarrow \log\big( (1 - \rho) e^a + \rho \sum_k p_k e^{t F_k} \big), \qquad
        \Delta = \sum_k p_k e^{t F_k - a} \Delta_k, \qquad p_k = \frac{\omega_k}{\sum_j \omega_j}

    The first round is normalised by its own losses.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`; 1 is ``risk_weighted(eh.risks.tilted(t))``.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: where losses fall, ``a`` lags: it falls by at most :math:`\log\frac{1}{1-\rho}` a round.  If ``t`` times
    the fall in loss is well above that, all weights go to 0 and training stalls, which shows only in the norm of the
    updates.

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, the stochastic solver over devices.
    """
    _check(t, rate, "running_tilt")

    def init(like: PyTree, clients: int) -> _Normaliser:
        return _Normaliser(jnp.float32(0.0), jnp.bool_(False))

    def weigh(reports: Report, cohort: Cohort, state: _Normaliser) -> tuple[Array, _Normaliser]:
        weights = reports.weight
        total = jnp.sum(weights)
        nonempty = total > 0
        base = jnp.log(jnp.where(weights > 0, weights / jnp.where(nonempty, total, 1.0), 1.0))
        logs = jnp.where(weights > 0, t * reports.loss + base, -jnp.inf)
        newest = jax.scipy.special.logsumexp(logs)
        mixed = jnp.where(state.seen, _mixed(state.log, newest, rate), newest)
        log = jnp.where(nonempty, mixed, state.log)
        return jnp.exp(logs - log), _Normaliser(log, state.seen | nonempty)

    return Sum(init, _lift, _whole, weigh=weigh, needs_loss=True)


def reference_tilt(t: float, rate: float = 0.5) -> Sum:
    r"""The weights of TERM's reference code, over devices, for comparison with its numbers.

    .. math::
        m = \max_k F_k, \quad s = \frac1K \sum_k e^{t (F_k - m)}, \quad c \leftarrow (1 - \rho) c + \rho s, \quad
        \Delta = \frac1K \sum_k \frac{e^{t (F_k - m)}}{K c} \Delta_k

    with :math:`c` starting at 0.  Unlike in :func:`running_tilt`, the normaliser mixes rounds shifted by different
    ``m``, the sum is divided by ``K`` twice, and the weights of the sampling scheme are ignored.

    Args:
      t: the tilt.
      rate: :math:`\rho \in (0, 1]`.

    Raises:
      EvenhandError: ``t`` not finite, or ``rate`` outside (0, 1].

    Edge cases: for ``t < 0``, losses far apart make :math:`c` so large that all weights are 0 for many rounds.

    Source: T. Li et al., code of *Tilted Empirical Risk Minimization*, the federated trainer.
    """
    _check(t, rate, "reference_tilt")

    # c in log space: for t < 0 the powers themselves overflow, since the largest loss does not dominate.
    def weigh(reports: Report, cohort: Cohort, state: Array) -> tuple[Array, Array]:
        counts = cohort.present & (reports.weight > 0)
        log_count = jnp.log(jnp.sum(counts.astype(jnp.float32)))
        largest = jnp.max(jnp.where(counts, reports.loss, -jnp.inf))
        logs = jnp.where(counts, t * jnp.where(counts, reports.loss - largest, 0.0), -jnp.inf)
        newest = jax.scipy.special.logsumexp(logs) - log_count
        log = jnp.where(jnp.any(counts), _mixed(state, newest, rate), state)
        return jnp.where(counts, jnp.exp(logs - 2.0 * log_count - log), 0.0), log

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
