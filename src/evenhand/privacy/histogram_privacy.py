"""How private the sum of clients' discrete Gaussian noise makes a histogram, and which histogram fits a budget."""

from __future__ import annotations

import math
import warnings

from evenhand.errors import EvenhandError, EvenhandWarning, whole_number
from evenhand.privacy.discrete_gaussian import psi
from evenhand.privacy.quantile import Histogram, Sensitivity, histogram
from evenhand.types import Release

__all__ = [
    "concentrated",
    "concentrated_epsilon",
    "histogram_for",
    "no_wrap_modulus",
    "quantile_error",
]

_SIGMA = 2.0
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
    if not 0.5 <= sigma < math.inf:
        raise EvenhandError(
            f"concentrated_epsilon(sigma={sigma}): nothing can be promised below 1/2: give a number from 1/2 on, "
            "better 2."
        )
    if not 0.0 < sensitivity < math.inf:
        raise EvenhandError(f"concentrated_epsilon(sensitivity={sensitivity}): give a number above 0.")
    whole_number("concentrated_epsilon(clients=)", clients, 1)
    whole_number("concentrated_epsilon(dimension=)", dimension, 1)
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
    r"""What the sum of one private histogram gives away, for the accountant.

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
      >>> found = concentrated(histogram(64, largest=10.0, sigma=2.0, scale=5), clients=256)
      >>> found.mechanism, round(1 / found.noise_multiplier, 5)
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
    whole_number("no_wrap_modulus(clients=)", clients, 1)
    _check_delta("no_wrap_modulus", delta)
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
    whole_number("quantile_error(clients=)", clients, 1)
    _check_delta("quantile_error", delta)
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
    r"""The histogram that spends a budget of concentrated privacy, with noise of about 2 at each client.

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
      >>> found = histogram_for(0.1066, clients=100, bins=32, largest=1.1)
      >>> found.scale, round(found.sigma, 3), found.bits
      (2, 2.166, 12)

    Source: Pillutla et al., 2023, theorem 6; how ``c`` and ``sigma`` are chosen is ours.
    """
    if not 0.0 < rho < math.inf:
        raise EvenhandError(f"histogram_for(rho={rho}): give a number above 0.")
    whole_number("histogram_for(clients=)", clients, 1)
    found = histogram(bins, largest=largest, flat=flat)
    epsilon, spread = math.sqrt(2.0 * rho), math.sqrt(clients)
    one = found.sensitivity(sensitivity)
    scale = max(1, round(_SIGMA * spread * epsilon / one))
    found = histogram(bins, largest=largest, sigma=scale * one / (spread * epsilon), scale=scale, flat=flat)
    while (
        spent := 1.0 / concentrated(found, clients=clients, sensitivity=sensitivity).noise_multiplier
    ) > epsilon:
        found = found._replace(sigma=found.sigma * (spent / epsilon) * (1.0 + 1e-12))
    needed = math.ceil(math.log2(no_wrap_modulus(found, clients=clients, delta=delta)))
    if bits is None and needed > 32:
        raise EvenhandError(
            f"histogram_for(): sums of {clients} clients could wrap around modulo 2**32: give a smaller rho, or fewer "
            "clients."
        )
    return histogram(
        bins,
        largest=largest,
        sigma=found.sigma,
        scale=scale,
        bits=needed if bits is None else bits,
        flat=flat,
    )


def _check_delta(caller: str, delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise EvenhandError(f"{caller}(delta={delta}): give a probability in (0, 1).")
