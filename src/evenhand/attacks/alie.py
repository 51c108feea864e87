"""A Little Is Enough: uploads that hide within the spread of the honest ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from evenhand import tree
from evenhand.attacks._coalition import Honest, everyone, strongest
from evenhand.errors import EvenhandError
from evenhand.types import Aggregator, Array, Attack, Key, PyTree, Sum, Upload

__all__ = ["alie", "check_against"]


def alie(fraction: float = 0.0, *, z: float | None = None, against: Aggregator | None = None) -> Attack:
    r"""Each malicious client sends the honest mean, less some standard deviations of each coordinate.

    .. math:: \Delta_k = \mu - z \sigma, \qquad
        z = \Phi^{-1}\Big(\frac{m - f - s}{m - f}\Big), \quad s = \Big\lfloor \frac m2 + 1 \Big\rfloor - f

    with :math:`m` clients in the cohort, :math:`f` of them malicious.  So many honest uploads are farther out than
    these that a majority seems to stand with them.

    Args:
      fraction: share of the clients that are malicious.
      z: :math:`z`; None: as above, and at least 0.
      against: the aggregator to be deceived: of 16 values of ``z``, from 1/16 to 16, the one that moves it farthest.

    Raises:
      EvenhandError: both ``z`` and ``against`` are given, or an aggregator that weighs clients by their reports.

    Differs from the paper: its coalition estimates :math:`\mu` and :math:`\sigma` from its own updates; here it knows
    those of the honest clients.  Here :math:`\sigma^2` is the mean square over the :math:`h = m - f` honest uploads;
    implementations that divide by :math:`h - 1` get a :math:`\sigma` longer by a factor :math:`\sqrt{h / (h - 1)}`.

    Example:
      >>> import jax, jax.numpy as jnp, evenhand as eh
      >>> uploads = eh.types.Upload(jnp.array([[1.0], [3.0], [9.0]]), jnp.ones(3), jnp.ones(3))
      >>> malicious, present = jnp.array([False, False, True]), jnp.ones(3, bool)
      >>> alie(0.3, z=1.5).collude(uploads, malicious, present, jax.random.key(0))[2].tolist()
      [0.5]

    Source: Baruch, Baruch and Goldberg, *A Little Is Enough: Circumventing Defenses for Distributed Learning*, NeurIPS
    2019, algorithm 3; against a named aggregator: Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021.
    """
    check_against("alie", "z", z, against)

    def collude(uploads: Upload, malicious: Array, present: Array, key: Key) -> PyTree:
        honest = Honest.of(uploads, malicious, present)
        direction = tree.scale(-1.0, honest.deviation())
        if against is not None:
            tried = jnp.asarray(np.geomspace(1 / 16, 16, 16), jnp.float32)
            factor = strongest(against, honest, direction, uploads, present, key, tried)
        else:
            factor = _largest(present, malicious) if z is None else jnp.float32(z)
        return everyone(tree.add(honest.mean, tree.scale(factor, direction)), uploads.delta)

    return Attack(fraction, collude=collude)


def check_against(name: str, argument: str, value: float | None, against: Aggregator | None) -> None:
    """One of the two at most, and an aggregator that can be tried on uploads alone."""
    if value is not None and against is not None:
        raise EvenhandError(f"{name}() got both {argument}= and against=: give one of them.")
    if isinstance(against, Sum) and against.weigh is not None:
        raise EvenhandError(
            f"{name}(against=): this aggregator weighs clients by their reports before they train: give {argument}=."
        )


def _largest(present: Array, malicious: Array) -> Array:
    m, f = jnp.sum(present), jnp.sum(present & malicious)
    supporters = m // 2 + 1 - f
    honest = jnp.maximum(m - f, 1).astype(jnp.float32)
    share = (m - f - supporters).astype(jnp.float32) / honest
    return jnp.maximum(ndtri(jnp.clip(share, 1e-4, 1 - 1e-4)), 0.0)
