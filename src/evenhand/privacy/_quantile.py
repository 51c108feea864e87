"""A quantile of the clients' losses, from one private sum of their histograms.

The histogram, which clients encode and the server decodes; how private the sum of clients' discrete Gaussian noise
makes it, and which histogram fits a budget; and the quantile as an aggregator, so that rounds, secure sums and networks
carry it like any other sum.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand._platform import check_process
from evenhand.errors import EvenhandError, EvenhandWarning, real_number, truth_value, whole_number
from evenhand.privacy._discrete_gaussian import NDArray, checked_sigma, discrete_gaussian, psi
from evenhand.secure import masked_words
from evenhand.types import Array, Key, PyTree, Release, Sum, Summation, Upload

Sensitivity: TypeAlias = Literal["paper", "tight"]


# --- the histogram ---------------------------------------------------------------------------------------


_MOST_BINS = 2**16


class Histogram(NamedTuple):
    """A private histogram of the clients' losses: clients call :meth:`encode`, the server :meth:`decode`.

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
        nodes = [jnp.arange(self.bins >> r, dtype=jnp.int32) == (leaf >> r) for r in range(self.levels)]
        path = jnp.concatenate(nodes)
        noise = discrete_gaussian(key, sigma=self.sigma, shape=(self.nodes,))
        sent = path.astype(jnp.int32) * jnp.int32(self.scale) + noise
        return self.modulo(lax.bitcast_convert_type(sent, jnp.uint32))

    def modulo(self, numbers: Array) -> Array:
        """The same uint32 numbers modulo ``M``; sums modulo ``2**32`` become sums modulo ``M``."""
        return numbers & jnp.uint32(2**self.bits - 1)

    def add(self, sent: Array, present: Array) -> Array:
        """The sum modulo ``M`` of what those present send: uint32 ``(m, nodes)`` and bool ``(m,)`` to ``(nodes,)``."""
        numbers = jnp.where(present[:, None], sent, jnp.uint32(0))
        return self.modulo(jnp.sum(numbers, axis=0, dtype=jnp.uint32))

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
        below, start = jnp.zeros(self.bins - 1, jnp.int32), 0
        for level in range(self.levels):
            # Each bit of j is one node of the partition, the last that ends within the bins 1 to j.
            last = ends >> level
            below = below + jnp.where(last & 1 == 1, counts[start + last - 1], 0)
            start += self.bins >> level
        everyone = jnp.sum(counts[-2:], dtype=jnp.int32, keepdims=True)
        return jnp.concatenate([below, everyone])

    def decode(self, total: Array, clients: Array | int | None, *, theta: float | Sequence[float]) -> Array:
        r"""The upper edge below which there is nearest to ``1 - theta`` of the clients, float32.

        .. math:: j^* = \arg\min_{j \in \{1, \dots, b\}} \big| \hat H(j) - (1 - \theta) m \big|,
            \qquad \hat Q_\theta = l_{j^*}

        Args:
          total: the sum of what clients sent, uint32 ``(nodes,)``.
          clients: how many they are, where that is public, so that it stands for the noisy count below the last edge;
            None: that count stands for them.
          theta: the fraction in (0, 1] of clients whose loss is to be at least the quantile; or several of them, which
            cost no more privacy than one, since all are read off the same total.

        Returns:
          The smallest such edge on ties; 0 if ``theta`` is 1, whatever the total, or if there are no clients.  It is a
          scalar, or ``(r,)`` for several fractions.

        Raises:
          EvenhandError: ``theta`` outside (0, 1].
        """
        check_tails("decode", theta)
        counted = self.below(total)
        if isinstance(theta, Sequence):
            return jnp.stack([self._edge(counted, clients, fraction) for fraction in theta])
        return self._edge(counted, clients, theta)

    def _edge(self, counted: Array, clients: Array | int | None, theta: float) -> Array:
        """The edge for one fraction, given the counts :meth:`below` the edges."""
        if theta == 1.0:
            return jnp.float32(0)
        total = counted[-1] if clients is None else jnp.asarray(clients, jnp.int32) * jnp.int32(self.scale)
        below, everyone = counted.at[-1].set(total).astype(jnp.float32), total.astype(jnp.float32)
        distance = jnp.abs(below - jnp.float32(1.0 - theta) * everyone)
        # Counts that are equally far from a target such as 0.9 m must stay so after it was rounded.
        nearest = distance <= jnp.min(distance) + 4 * jnp.finfo(jnp.float32).eps * everyone
        edge = jnp.asarray(self.edges[1:])[jnp.argmax(nearest)]
        return jnp.where(everyone > 0, edge, jnp.float32(0))


def histogram(
    bins: int, *, largest: float, sigma: float = 2.0, scale: int = 1, bits: int = 32, flat: bool = False
) -> Histogram:
    """A private histogram with given parameters; :func:`histogram_for` finds them for a privacy budget.

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
    flat = truth_value("flat", flat)
    bins = whole_number("histogram(bins=)", bins, 2, _MOST_BINS)
    if bins & (bins - 1):
        raise EvenhandError(f"histogram(bins={bins}): give a power of two.")
    if not 0.0 < real_number(largest) < math.inf:
        raise EvenhandError(f"histogram(largest={largest}): give a finite number above 0.")
    sigma = checked_sigma(sigma, "histogram")
    scale = whole_number("histogram(scale=)", scale, 1)
    bits = whole_number("histogram(bits=)", bits, 2, 32)
    return Histogram(bins=bins, largest=float(largest), sigma=sigma, scale=scale, bits=bits, flat=flat)


def quantile(
    counting: Histogram,
    losses: Array,
    keys: Key,
    *,
    theta: float | Sequence[float],
    present: Array | None = None,
) -> Array:
    r"""The private quantile of clients' losses, or several, that a server finds from one private sum.

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
      theta: the tail fraction in (0, 1]; 1 skips the quantile, and the result is 0.  Several fractions are read off the
        same sum, so that :func:`concentrated` holds for all of their quantiles together.
      present: bool :math:`(m,)`, who takes part; None: all.  What the others hold does not matter.

    Returns:
      A float32 scalar, one of the bins' upper edges; ``(r,)`` for several fractions.  Filter with
      ``counting.clip(losses) >= quantile``, which keeps about :math:`\theta m` clients.

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
      >>> float(quantile(exact, losses, keys, theta=0.5))
      3.0
      >>> quantile(exact, losses, keys, theta=(0.75, 0.5, 0.25)).tolist()
      [1.0, 3.0, 5.0]

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 2 and section 4.3; the flat histogram is in the authors' slides on it.
    """
    check_process()
    present = jnp.ones(losses.shape, bool) if present is None else present
    total = counting.add(jax.vmap(counting.encode)(losses, keys), present)
    return counting.decode(total, jnp.sum(present, dtype=jnp.int32), theta=theta)


def check_tails(caller: str, theta: float | Sequence[float]) -> None:
    """Refuses tail fractions outside (0, 1], and none at all."""
    fractions = theta if isinstance(theta, Sequence) else (theta,)
    if not fractions or not all(0.0 < real_number(fraction) <= 1.0 for fraction in fractions):
        raise EvenhandError(f"{caller}(theta={theta}): the tail fraction must lie in (0, 1].")


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
    j = whole_number("dyadic_partition(j=)", j, 1, bins)
    top = bins.bit_length() - 1
    if j == bins:
        return ((top - 1, 1), (top - 1, 2))
    return tuple((level, j >> level) for level in reversed(range(top)) if j >> level & 1)


# --- its privacy -----------------------------------------------------------------------------------------


_LEAST_SIGMA = 2.0
"""Where psi is below 1e-15 for any cohort."""


def concentrated_epsilon(sensitivity: float, *, sigma: float, clients: int, dimension: int) -> float:
    r"""The :math:`\varepsilon` of :math:`\tfrac12 \varepsilon^2`-concentrated privacy of a sum of vectors.

    .. math:: \varepsilon = \min\Big\{ \sqrt{\frac{S^2}{m \sigma^2} + \frac{\psi d}{2}},\
        \frac{S}{\sqrt m\,\sigma} + \psi \sqrt d \Big\}

    of whole numbers, to each of which each of :math:`m` clients adds a discrete Gaussian of scale :math:`\sigma`:
    Renyi divergences of order :math:`\alpha` are at most :math:`\alpha \varepsilon^2 / 2`.  It is the privacy of the
    sum alone, for who sees nothing else: behind a secure sum.

    Args:
      sensitivity: :math:`S`, the Euclidean norm of one client's vector before the noise.
      sigma: :math:`\sigma` of each client's noise.
      clients: :math:`m`, the fewest clients that add noise; not those that tell theirs to the server.
      dimension: :math:`d`, numbers in the vector.

    Raises:
      EvenhandError: ``sigma`` below 1/2, where the bound does not hold; or another argument that is not above 0.

    Edge cases: an :class:`EvenhandWarning` for ``sigma`` below 1, where :math:`\psi` is no longer negligible.

    Differs from the paper: :math:`\psi` is the sum itself (:func:`psi`), not the printed bound on it, which is wrong.
    A client that is removed leaves its noise behind, as if its vector were zeros: without it there would be less noise,
    a difference of order :math:`1 / m` that the theorem does not count.

    Example:
      >>> round(concentrated_epsilon(6.0, sigma=1.0, clients=256, dimension=128), 5)
      0.38125

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, lemma 18, after Kairouz, Liu and Steinke, ICML 2021.
    """
    if not 0.5 <= real_number(sigma) < math.inf:
        raise EvenhandError(
            f"concentrated_epsilon(sigma={sigma}): there is no guarantee below 1/2: give at least 1/2, better 2."
        )
    if not 0.0 < real_number(sensitivity) < math.inf:
        raise EvenhandError(f"concentrated_epsilon(sensitivity={sensitivity}): give a number above 0.")
    clients = whole_number("concentrated_epsilon(clients=)", clients, 1)
    dimension = whole_number("concentrated_epsilon(dimension=)", dimension, 1)
    apart = psi(sigma, clients=clients)
    if sigma < 1.0:
        warnings.warn(
            f"With sigma={sigma:g} at each client, the sum of their noise is far from a discrete Gaussian "
            f"(psi={apart:.2g}), which costs privacy: give at least 1, better 2, and a larger scale.",
            EvenhandWarning,
            stacklevel=2,
        )
    alone = sensitivity / (math.sqrt(clients) * sigma)
    return min(math.sqrt(alone**2 + apart * dimension / 2), alone + apart * math.sqrt(dimension))


def concentrated(counting: Histogram, *, clients: int, sensitivity: Sensitivity = "paper") -> Release:
    r"""The privacy loss of the sum of one private histogram, as a release for the accountant.

    .. math:: \rho = \tfrac12 \varepsilon^2, \qquad \text{noise multiplier} = \frac{1}{\sqrt{2\rho}} = \frac1\varepsilon

    with :math:`\varepsilon` from :func:`concentrated_epsilon`, where :math:`S` is ``counting.sensitivity(...)``, and
    :math:`d = 2b`, as in the paper, where there are :math:`2b - 2` numbers; :math:`S = c` and :math:`d = b` for a flat
    histogram.  All quantiles that are decoded from the same sum are covered.

    Args:
      counting: the histogram.
      clients: the fewest clients whose histograms are in a sum.
      sensitivity: ``"paper"``: :math:`S = c \log_2 b`, which the paper's figures need; ``"tight"``:
        :math:`c \sqrt{\log_2 b}`, the Euclidean norm of :math:`\log_2 b` numbers :math:`c`, valid as well.

    Returns:
      One release in which all clients take part: ``_replace`` its rate, sampling and count.

    Raises:
      EvenhandError: the histogram's ``sigma`` is below 1/2; or an argument is wrong.

    Edge cases: an :class:`EvenhandWarning` for ``sigma`` below 1.  The protected unit is one client, added or removed;
    for one that is replaced, multiply :math:`\varepsilon` by :math:`\sqrt 2` (tight), or by 2.

    Example:
      >>> from evenhand.privacy import histogram
      >>> release = concentrated(histogram(64, largest=10.0, sigma=2.0, scale=5), clients=256)
      >>> release.mechanism, round(1 / release.noise_multiplier, 5)
      ('concentrated', 0.9375)

    Source: Pillutla et al., 2023, theorem 6 (a).
    """
    dimension = counting.bins if counting.flat else 2 * counting.bins
    moved = counting.sensitivity(sensitivity)
    epsilon = concentrated_epsilon(moved, sigma=counting.sigma, clients=clients, dimension=dimension)
    return Release(1.0 / epsilon, mechanism="concentrated")


def no_wrap_modulus(counting: Histogram, *, clients: int, delta: float) -> float:
    r"""The smallest modulus with which no sum wraps around, with probability at least ``1 - delta / 4``.

    .. math:: M \ge 2 + 2 c m + 2 m \sqrt{2 \sigma^2 \log(16 m b / \delta)}

    Args:
      counting: the histogram; its own modulus plays no role.
      clients: :math:`m`, the most that are added.
      delta: in (0, 1).

    Raises:
      EvenhandError: ``delta`` or ``clients`` is not as above.

    Example:
      >>> from evenhand.privacy import histogram
      >>> counting = histogram(64, largest=10.0, sigma=2.0, scale=5)
      >>> round(no_wrap_modulus(counting, clients=256, delta=0.01), 1)
      8547.2

    Source: Pillutla et al., 2023, theorem 6.
    """
    _check("no_wrap_modulus", clients, delta)
    noise = counting.sigma * math.sqrt(2.0 * math.log(16.0 * clients * counting.bins / delta))
    return 2.0 + 2.0 * counting.scale * clients + 2.0 * clients * noise


def quantile_error(counting: Histogram, *, clients: int, delta: float) -> float:
    r"""How far the fraction of losses below the returned edge can be from ``1 - theta`` because of the noise.

    .. math:: \Big| \frac{H(j^*)}{m} - (1 - \theta) \Big| \le \min_j \Big| \frac{\hat H(j)}{m} - (1 - \theta) \Big|
        + \sqrt{\frac{4 \sigma^2}{c^2 m} \log_2 b\, \log \frac{4b}{\delta}}

    with probability at least ``1 - delta`` where no sum wraps around; this is the second term.  A flat histogram adds
    up to ``b`` counts, not ``log2(b)``: ``b`` stands in the place of its logarithm.

    Args:
      counting: the histogram.
      clients: :math:`m`.
      delta: in (0, 1).

    Raises:
      EvenhandError: ``delta`` or ``clients`` is not as above.

    Example:
      >>> from evenhand.privacy import histogram
      >>> round(quantile_error(histogram(64, largest=10.0, sigma=1.0), clients=256, delta=0.01), 4)
      0.9755

    Source: Pillutla et al., 2023, theorem 6 (b).
    """
    _check("quantile_error", clients, delta)
    added = counting.bins if counting.flat else counting.levels
    variance = 4.0 * counting.sigma**2 / (counting.scale**2 * clients)
    return math.sqrt(variance * added * math.log(4.0 * counting.bins / delta))


def histogram_for(
    rho: float,
    *,
    clients: int,
    bins: int,
    largest: float,
    sensitivity: Sensitivity = "paper",
    flat: bool = False,
    bits: int | None = None,
    delta: float = 1e-5,
) -> Histogram:
    r"""The private histogram for a budget of concentrated privacy, with noise of about 2 at each client.

    .. math:: c = \max\Big(1, \Big\lfloor \frac{2 \sqrt m \sqrt{2\rho}}{S_1} \Big\rceil\Big), \qquad
        \sigma = \frac{c\, S_1}{\sqrt m \sqrt{2\rho}}, \qquad S_1 = \log_2 b \text{ or } \sqrt{\log_2 b}

    and then :math:`\sigma` as much larger as :math:`\psi` asks for, so that :func:`concentrated` is within the budget.

    Args:
      rho: :math:`\rho > 0`, of one sum; :math:`\varepsilon^2 / 2` in the paper's words.
      clients: :math:`m`, in each sum; fewer are less private.
      bins: a power of two; more bins than clients make the error larger.
      largest: to which losses are clipped.
      sensitivity: as for :func:`concentrated`; ``"tight"`` has :math:`\sqrt{\log_2 b}` times less noise.
      flat: as for :func:`histogram`, where both sensitivities are 1.
      bits: of the modulus; None: as many as :func:`no_wrap_modulus` asks for.
      delta: four times the probability with which a sum may wrap around.

    Raises:
      EvenhandError: an argument is wrong, or the modulus would need more than 32 bits.

    Example:
      >>> counting = histogram_for(0.1066, clients=100, bins=32, largest=1.1)
      >>> counting.scale, round(counting.sigma, 3), counting.bits
      (2, 2.166, 12)

    Source: Pillutla et al., 2023, theorem 6; how ``c`` and ``sigma`` are chosen is ours.
    """
    flat = truth_value("flat", flat)
    if not 0.0 < real_number(rho) < math.inf:
        raise EvenhandError(f"histogram_for(rho={rho}): give a number above 0.")
    clients = whole_number("histogram_for(clients=)", clients, 1)
    plain = histogram(bins, largest=largest, flat=flat)
    unit = plain.sensitivity(sensitivity)
    epsilon, spread = math.sqrt(2.0 * rho), math.sqrt(clients)
    scale = max(1, round(_LEAST_SIGMA * spread * epsilon / unit))
    counting = plain._replace(sigma=scale * unit / (spread * epsilon), scale=scale)
    while (
        spent := 1.0 / concentrated(counting, clients=clients, sensitivity=sensitivity).noise_multiplier
    ) > epsilon:
        counting = counting._replace(sigma=counting.sigma * (spent / epsilon) * (1.0 + 1e-12))
    needed = math.ceil(math.log2(no_wrap_modulus(counting, clients=clients, delta=delta)))
    if bits is None and needed > 32:
        raise EvenhandError(
            f"histogram_for(): sums of {clients} clients could wrap around modulo 2**32: give a smaller rho, or fewer "
            "clients."
        )
    bits = needed if bits is None else bits
    return histogram(bins, largest=largest, sigma=counting.sigma, scale=scale, bits=bits, flat=flat)


def _check(caller: str, clients: int, delta: float) -> None:
    whole_number(f"{caller}(clients=)", clients, 1)
    if not 0.0 < real_number(delta) < 1.0:
        raise EvenhandError(f"{caller}(delta={delta}): give a probability in (0, 1).")


# --- the quantile as an aggregator -----------------------------------------------------------------------


def quantile_sum(
    counting: Histogram,
    *,
    theta: float | tuple[float, ...],
    fewest: int = 2,
    at_server: bool = False,
) -> Sum:
    r"""Reduces clients' losses to their private quantile, or to several, through a masked sum of noisy histograms.

    .. math:: \text{lift: } \ell_k \mapsto \big((c\, x_k + \xi_k) \bmod M,\ 1\big), \qquad
        \text{lower: } (s, m) \mapsto l_{j^*}

    in the symbols of :func:`quantile`.  What a client uploads is its loss, a scalar, as ``Upload.delta``: it is lifted
    on the client, and neither the report nor the sum shows it.

    Args:
      counting: from :func:`histogram` or :func:`histogram_for`.
      theta: the tail fraction in (0, 1]; with 1 clients send zeros, and the direction is 0, below every loss.  A tuple
        of them gives as many quantiles from the same sum, at the same cost in privacy.
      fewest: clients below which a sum is given up, and the direction is 0; what :func:`concentrated` was given.
      at_server: the server adds Gaussian noise of ``counting.sigma`` to the sum, rounded to whole numbers, and clients
        add none.  It must then be trusted with the sum, and nothing rests on how many clients there are: the noisy
        count stands for them, and ``fewest`` has no effect.

    Returns:
      A sum whose direction is a float32 scalar; for a tuple of fractions, ``(r,)``.

    Raises:
      EvenhandError: ``theta`` outside (0, 1], or ``fewest`` not a whole number from 1.  When a run starts: uploads are
        not scalars.

    Edge cases: a loss that is not finite is rejected by the engine before it is counted.  The server learns how many
    clients take part.  Filtering with a direction of 0 keeps all of them.

    Differs from the paper: sums are taken modulo :math:`2^{32}` and then modulo :math:`M`, which is the same number; on
    a network the masks are modulo :math:`M`, so that the server sees no more than that.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> from evenhand.privacy import histogram
      >>> rule = quantile_sum(histogram(8, largest=8.0, sigma=0.0), theta=0.5)
      >>> losses = jnp.array([0.5, 1.5, 1.7, 2.2, 3.3, 4.1, 5.0, 7.9])
      >>> float(eh.aggregators.aggregate(rule, losses))
      3.0

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 2.
    """
    at_server = truth_value("at_server", at_server)
    check_tails("quantile_sum", theta)
    fewest = whole_number("quantile_sum(fewest=)", fewest, 1)
    everybody = theta == 1.0 or (isinstance(theta, tuple) and min(theta) == 1.0)
    clean = counting._replace(sigma=0.0) if at_server else counting

    def init(like: PyTree, num_clients: int) -> PyTree:
        if [leaf.shape for leaf in jax.tree.leaves(like)] != [()]:
            raise EvenhandError("quantile_sum(): clients must upload one number each, their loss.")
        return ()

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        (loss,) = jax.tree.leaves(upload.delta)
        numbers = jnp.zeros(counting.nodes, jnp.uint32) if everybody else clean.encode(loss, key)
        return numbers, jnp.uint32(1)

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        numbers, clients = total
        if at_server:
            # To round what is noisy costs nothing: the sum gives away what a Gaussian mechanism does.
            noise = jnp.round(counting.sigma * jax.random.normal(key, (counting.nodes,), jnp.float32))
            noisy = numbers.astype(jnp.uint32) + lax.bitcast_convert_type(noise.astype(jnp.int32), jnp.uint32)
            return counting.decode(counting.modulo(noisy), None, theta=theta), state
        edge = counting.decode(counting.modulo(numbers.astype(jnp.uint32)), clients, theta=theta)
        return jnp.where(clients >= jnp.uint32(fewest), edge, jnp.float32(0)), state

    add = None if at_server else masked_words
    # A server that adds the noise itself needs no number of clients for it.
    least = 2 if at_server else max(fewest, 2)
    summation = Summation(counting.bits, add, is_secure=not at_server, fewest=least, clip=0.0)
    return Sum(init, lift, lower, summation=summation)
