"""A quantile of the clients' losses, from one private sum of their histograms."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand._platform import check_process
from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy.discrete_gaussian import discrete_gaussian
from evenhand.types import Array, Key

__all__ = ["Histogram", "Sensitivity", "dyadic_partition", "histogram", "quantile"]

NDArray = npt.NDArray[Any]
Sensitivity: TypeAlias = Literal["paper", "tight"]

_MOST_BINS = 2**16


class Histogram(NamedTuple):
    """How clients count their losses together: the client's half is :meth:`encode`, the server's :meth:`decode`.

    Attributes:
      bins: ``b``, a power of two; all of the same width.
      largest: ``B``: losses are clipped to ``[0, B]``.
      sigma: of the discrete Gaussian noise that each client adds to each of its numbers; 0: none, and no privacy.
      scale: ``c``, what a client adds to a node that its loss is in, before the noise.
      bits: all is modulo ``M = 2**bits``, up to 32.
      flat: whether there are the bins alone, without the tree above them.
    """

    bins: int
    largest: float
    sigma: float
    scale: int
    bits: int
    flat: bool

    @property
    def levels(self) -> int:
        """Nodes that a loss is in: ``log2(b)``, or 1 in a flat histogram."""
        return 1 if self.flat else self.bins.bit_length() - 1

    @property
    def nodes(self) -> int:
        """Numbers that a client sends: ``2 b - 2``, or ``b`` in a flat histogram; the root is not among them."""
        return self.bins if self.flat else 2 * self.bins - 2

    @property
    def edges(self) -> NDArray:
        """The bins' edges ``l_0 = 0, ..., l_b = B``, float32 ``(b + 1,)``."""
        return np.linspace(0.0, self.largest, self.bins + 1).astype(np.float32)

    def sensitivity(self, kind: Sensitivity = "paper") -> float:
        """How far one client moves the sum: ``c log2(b)`` in the paper, ``c sqrt(log2(b))`` in the Euclidean norm."""
        if kind not in ("paper", "tight"):
            raise EvenhandError(f'sensitivity={kind!r}: give "paper" or "tight".')
        return self.scale * (self.levels if kind == "paper" else math.sqrt(self.levels))

    def traffic(self, clients: int) -> int:
        """Bits that all clients send, ``m (2 b - 2) log2(M)``, without keys and shares of a secure sum."""
        return clients * self.nodes * self.bits

    def clip(self, loss: Array) -> Array:
        """The loss that is counted, in ``[0, B]``: what a filter compares with the quantile; NaN counts as ``B``."""
        loss = jnp.asarray(loss, jnp.float32)
        largest = jnp.float32(self.largest)
        return jnp.where(jnp.isnan(loss), largest, jnp.clip(loss, jnp.float32(0), largest))

    def encode(self, loss: Array, key: Key) -> Array:
        """What a client sends, ``(c x + noise) mod M`` for the nodes ``x`` that its loss is in, uint32 ``(nodes,)``.

        Args:
          loss: of one client, a scalar.
          key: of the client's noise, which only this client knows.
        """
        # By comparison, as a product would round a loss at an edge to the wrong bin now and then.
        inner = jnp.asarray(self.edges[1:-1])
        leaf = jnp.searchsorted(inner, self.clip(loss), side="right").astype(jnp.int32)
        path = jnp.concatenate(
            [
                jnp.arange(self.bins >> level, dtype=jnp.int32) == (leaf >> level)
                for level in range(self.levels)
            ]
        )
        noise = discrete_gaussian(key, sigma=self.sigma, shape=(self.nodes,))
        sent = path.astype(jnp.int32) * jnp.int32(self.scale) + noise
        return self.modulo(lax.bitcast_convert_type(sent, jnp.uint32))

    def modulo(self, numbers: Array) -> Array:
        """The same uint32 numbers modulo ``M``; sums modulo ``2**32`` become sums modulo ``M``."""
        return numbers & jnp.uint32(2**self.bits - 1)

    def add(self, sent: Array, present: Array) -> Array:
        """The sum modulo ``M`` of what those present send: uint32 ``(m, nodes)`` and bool ``(m,)`` to ``(nodes,)``."""
        return self.modulo(
            jnp.sum(jnp.where(present[:, None], sent, jnp.uint32(0)), axis=0, dtype=jnp.uint32)
        )

    def counts(self, total: Array) -> Array:
        """``c`` times the noisy count in each node, int32 ``(nodes,)``: a sum from ``M / 2`` on is negative."""
        unused = 32 - self.bits
        return lax.bitcast_convert_type(total << unused, jnp.int32) >> unused

    def below(self, total: Array) -> Array:
        """``c`` times the noisy count of losses below each upper edge ``l_1, ..., l_b``, int32 ``(b,)``."""
        counts = self.counts(total)
        if self.flat:
            return jnp.cumsum(counts, dtype=jnp.int32)
        ends = np.arange(1, self.bins)
        found, start = jnp.zeros(self.bins - 1, jnp.int32), 0
        for level in range(self.levels):
            # Each bit of j is one node of the partition, the last that ends within the bins 1 to j.
            last = ends >> level
            found = found + jnp.where(last & 1 == 1, counts[start + last - 1], 0)
            start += self.bins >> level
        everyone = jnp.sum(counts[-2:], dtype=jnp.int32, keepdims=True)
        return jnp.concatenate([found, everyone])

    def decode(self, total: Array, clients: Array | int | None, *, theta: float) -> Array:
        r"""The upper edge below which there is nearest to ``1 - theta`` of the clients, float32.

        .. math:: j^* = \arg\min_{j \in \{1, \dots, b\}} \big| \hat H(j) - (1 - \theta) m \big|,
            \qquad \hat Q_\theta = l_{j^*}

        Args:
          total: the sum of what clients sent, uint32 ``(nodes,)``.  It may be decoded for several ``theta``.
          clients: how many they are, where that is public, so that it stands for the noisy count below the last edge;
            None: that count stands for them.
          theta: the fraction in (0, 1] of clients whose loss is to be at least the quantile.

        Returns:
          The smallest such edge on ties; 0 if ``theta`` is 1, whatever the total, or if there are no clients.

        Raises:
          EvenhandError: ``theta`` outside (0, 1].
        """
        if not 0.0 < theta <= 1.0:
            raise EvenhandError(f"decode(theta={theta}): the tail fraction must lie in (0, 1].")
        if theta == 1.0:
            return jnp.float32(0)
        counted = self.below(total)
        known = counted[-1] if clients is None else jnp.asarray(clients, jnp.int32) * jnp.int32(self.scale)
        below, everyone = counted.at[-1].set(known).astype(jnp.float32), known.astype(jnp.float32)
        distance = jnp.abs(below - jnp.float32(1.0 - theta) * everyone)
        # Counts that are equally far from a target such as 0.9 m must stay so after it was rounded.
        nearest = distance <= jnp.min(distance) + 4 * jnp.finfo(jnp.float32).eps * everyone
        edge = jnp.asarray(self.edges[1:])[jnp.argmax(nearest)]
        return jnp.where(everyone > 0, edge, jnp.float32(0))


def histogram(
    bins: int,
    *,
    largest: float,
    sigma: float = 2.0,
    scale: int = 1,
    bits: int = 32,
    flat: bool = False,
) -> Histogram:
    """A private histogram with numbers of one's own; :func:`histogram_for` finds them for a budget.

    Args:
      bins: a power of two from 2 to 65,536.
      largest: above 0; losses are clipped to it.
      sigma: of each client's noise; at least 1/2 for any guarantee, better 2.
      scale: a whole number from 1.
      bits: of the modulus, from 2 to 32; :func:`no_wrap_modulus` says how many it takes.
      flat: the bins alone, without the tree above them: a client moves one number and not ``log2(b)``, but the error
        grows with ``sqrt(b)``.

    Raises:
      EvenhandError: an argument is not as above.

    Example:
      >>> import jax
      >>> counting = histogram(8, largest=8.0, sigma=0.0)
      >>> counting.encode(2.2, jax.random.key(0)).tolist()
      [0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    """
    whole_number("histogram(bins=)", bins, 2, _MOST_BINS)
    if bins & (bins - 1):
        raise EvenhandError(f"histogram(bins={bins}): give a power of two.")
    if not 0.0 < largest < math.inf:
        raise EvenhandError(f"histogram(largest={largest}): give a finite number above 0.")
    if not 0.0 <= sigma <= 4096.0:
        raise EvenhandError(f"histogram(sigma={sigma}): give a number from 0 to 4096.")
    whole_number("histogram(scale=)", scale, 1)
    whole_number("histogram(bits=)", bits, 2, 32)
    return Histogram(bins, float(largest), float(sigma), scale, bits, flat)


def quantile(
    counting: Histogram,
    losses: Array,
    keys: Key,
    *,
    theta: float,
    present: Array | None = None,
) -> Array:
    r"""The quantile of clients' losses that a server finds from one private sum.

    .. math::
        y_k = (c\, x_k + \xi_k) \bmod M, \quad \xi_k \sim \mathcal N_{\mathbb Z}(0, \sigma^2)^{2b-2}, \qquad
        s = \sum_k y_k \bmod M, \qquad \hat h = s / c \text{ with } s \in [-M/2, M/2)

    .. math::
        \hat H(j) = \sum_{(r, o) \in \mathcal P_j} \hat h(r, o), \qquad
        j^* = \arg\min_{j} \big|\hat H(j) - (1 - \theta) m\big|, \qquad \hat Q_\theta = l_{j^*}

    where :math:`x_k` is 1 for the :math:`\log_2 b` nodes that the loss is in, of a tree above the ``b`` bins, and
    :math:`\mathcal P_j` the fewest nodes that make up the bins 1 to ``j`` (:func:`dyadic_partition`).  It composes
    :meth:`Histogram.encode` at each client, :meth:`Histogram.add`, which a secure sum stands for, and
    :meth:`Histogram.decode`.  :func:`concentrated` says how private that is.

    Args:
      counting: from :func:`histogram` or :func:`histogram_for`.
      losses: :math:`(m,)`.
      keys: :math:`(m,)`, one for each client.
      theta: the tail fraction in (0, 1]; 1 skips the quantile, and the result is 0.
      present: bool :math:`(m,)`, who takes part; None: all.  What the others hold does not matter.

    Returns:
      A float32 scalar, one of the bins' upper edges.  Filter with ``counting.clip(losses) >= quantile``, which keeps
      about :math:`\theta m` clients.

    Raises:
      EvenhandError: ``theta`` outside (0, 1].

    Edge cases: a loss of NaN counts as the largest, a negative one as 0; a loss at an edge is in the bin above it, and
    ``B`` in the last one.  Without any client the result is 0.  With :math:`\theta` just below 1 it is :math:`l_1` at
    the least, so that losses in the first bin are below it.

    Differs from the paper: as printed, the condition for a loss to be in a bin is off by one (no loss would be in any),
    and the vector has :math:`2(b-2)` entries, not :math:`2b-2`; the count below the last edge is :math:`m`, which is
    public, and not its noisy sum.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> losses = jnp.array([0.5, 1.5, 1.7, 2.2, 3.3, 4.1, 5.0, 7.9])
      >>> keys = jax.random.split(jax.random.key(0), 8)
      >>> exact = histogram(8, largest=8.0, sigma=0.0)
      >>> [float(quantile(exact, losses, keys, theta=theta)) for theta in (0.75, 0.5, 0.25)]
      [1.0, 3.0, 5.0]

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 2 and section 4.3; the flat histogram is in the authors' slides on it.
    """
    check_process()
    present = jnp.ones(losses.shape, bool) if present is None else present
    total = counting.add(jax.vmap(counting.encode)(losses, keys), present)
    return counting.decode(total, jnp.sum(present, dtype=jnp.int32), theta=theta)


def dyadic_partition(j: int, *, bins: int) -> tuple[tuple[int, int], ...]:
    """The fewest nodes ``(level, place)`` that make up the bins 1 to ``j``, largest first; places count from 1.

    Node ``(r, o)`` is made of the bins from ``2**r (o - 1) + 1`` to ``2**r o``.  The root is not used.

    Args:
      j: from 1 to ``bins``.
      bins: a power of two from 2 on.

    Raises:
      EvenhandError: ``j`` is not such a number.

    Example:
      >>> dyadic_partition(15, bins=16)
      ((3, 1), (2, 3), (1, 7), (0, 15))
    """
    whole_number("dyadic_partition(j=)", j, 1, bins)
    top = bins.bit_length() - 1
    if j == bins:
        return ((top - 1, 1), (top - 1, 2))
    return tuple((level, j >> level) for level in reversed(range(top)) if j >> level & 1)
