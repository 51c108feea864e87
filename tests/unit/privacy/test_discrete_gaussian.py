"""The discrete Gaussian has the law that it should have, and so has its sum over clients."""

import math
from decimal import Decimal, localcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evenhand import EvenhandError
from evenhand.privacy import (
    _discrete_gaussian,
    discrete_gaussian,
    discrete_gaussian_error,
    discrete_gaussian_law,
    psi,
)
from evenhand.privacy._discrete_gaussian import _thresholds

DRAWS = 100_000


def chi_square(drawn, law):
    """The probability of so large a distance from the law; values that are expected less than ten times are one."""
    edge = law.values[law.probabilities * len(drawn) >= 10].max()
    values = np.arange(-edge, edge + 1)
    seen = np.array([np.sum(drawn < -edge), *(np.sum(drawn == k) for k in values), np.sum(drawn > edge)])
    chances = [
        np.sum(law.probabilities[law.values < -edge]),
        *law.probabilities[np.abs(law.values) <= edge],
        np.sum(law.probabilities[law.values > edge]),
    ]
    expected = len(drawn) * np.array(chances) + 1e-9
    return stats.chi2.sf(np.sum((seen - expected) ** 2 / expected), len(seen) - 1)


@partial(jax.jit, static_argnames=("sigma", "shape"))
def draw(key, sigma, shape):
    return discrete_gaussian(key, sigma=sigma, shape=shape)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 5.0])
def test_draws_follow_the_exact_law_and_no_other(sigma):
    drawn = np.asarray(draw(jax.random.key(7), sigma, (DRAWS,)))
    assert drawn.dtype == np.int32
    assert chi_square(drawn, discrete_gaussian_law(sigma)) > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert chi_square(drawn, discrete_gaussian_law(wrong * sigma)) < 1e-12


@pytest.mark.parametrize(("sigma", "clients"), [(0.5, 2), (0.5, 6), (2.0, 6)])
def test_the_sum_over_clients_follows_the_exact_convolution(sigma, clients):
    keys = jax.random.split(jax.random.key(3), clients)
    drawn = np.asarray(jax.vmap(lambda key: draw(key, sigma, (DRAWS,)))(keys)).sum(axis=0)
    assert chi_square(drawn, discrete_gaussian_law(sigma, clients=clients)) > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert chi_square(drawn, discrete_gaussian_law(wrong * sigma, clients=clients)) < 1e-12
    close = chi_square(drawn, discrete_gaussian_law(sigma * clients**0.5))
    # The sum of coarse noise is no discrete Gaussian, and it shows; that of finer noise is.
    assert close < 1e-12 if sigma < 1 else close > 0.01


def test_the_law_has_the_known_values():
    known = {
        0.5: (0.7865707, 0.1064508, 0.2150127),
        1.0: (0.3989423, 0.2419707, 0.9999998),
        2.0: (0.1994711, 0.1760327, 4.0),
    }
    for sigma, (zero, one, variance) in known.items():
        law = discrete_gaussian_law(sigma)
        found = [float(law.probabilities[law.values == k][0]) for k in (0, 1)]
        assert found == pytest.approx([zero, one], abs=5e-8)
        assert law.variance == pytest.approx(variance, abs=5e-8)
        assert law.probabilities.sum() == pytest.approx(1.0, abs=1e-14)


def test_the_law_of_a_sum_is_what_convolving_one_by_one_gives():
    one = discrete_gaussian_law(0.7)
    total = one.probabilities
    for _ in range(4):
        total = np.convolve(total, one.probabilities)
    law = discrete_gaussian_law(0.7, clients=5)
    middle = len(total) // 2
    assert law.probabilities == pytest.approx(total[middle + law.values], rel=1e-12)
    assert law.variance == pytest.approx(5 * one.variance, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 0.75, 1.0, 1.5])
@pytest.mark.parametrize("clients", [2, 3, 16])
def test_the_sum_is_as_near_to_a_discrete_gaussian_as_psi_says(sigma, clients):
    law = discrete_gaussian_law(sigma, clients=clients)
    kept = law.probabilities > 1e-40
    k = law.values[kept].astype(float)
    near = np.exp(-(k**2) / (2 * clients * sigma**2))
    normaliser = np.sum(np.exp(-(np.arange(-4000, 4001.0) ** 2) / (2 * clients * sigma**2)))
    apart = np.max(np.abs(np.log(law.probabilities[kept]) - np.log(near / normaliser)))
    assert apart <= psi(sigma, clients=clients) + 1e-11
    # The bound that the paper prints on that sum does not hold.
    assert clients > 2 or sigma > 1.0 or apart > 10 * np.exp(-2 * np.pi**2 * sigma**2)


def test_psi_is_the_sum_and_not_the_printed_bound_on_it():
    assert psi(0.5, clients=256) == pytest.approx(21.258, abs=1e-3)
    assert psi(1.0, clients=256) == pytest.approx(5.5e-4, rel=0.01)
    assert psi(2.0, clients=256) == pytest.approx(7.16e-17, rel=0.01)
    for sigma in (0.5, 1.0, 2.0):
        assert psi(sigma, clients=256) > 10 * 255 * np.exp(-2 * np.pi**2 * sigma**2)
        assert psi(sigma, clients=256) <= 10 * 255 * np.exp(-(np.pi**2) * sigma**2)
    assert psi(1.0, clients=1) == 0.0


def test_terms_of_psi_that_are_not_computed_are_bounded(monkeypatch):
    exact = psi(0.2, clients=100)
    monkeypatch.setattr(_discrete_gaussian, "_MOST_TERMS", 10)
    assert exact < psi(0.2, clients=100) < 1.1 * exact


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 2.0, 7.5])
def test_the_table_is_as_near_to_the_exact_law_as_it_says(sigma):
    table = _thresholds(sigma).astype(object)
    words = [int(high) * 2**32 + int(low) for high, low in table]
    assert words == sorted(words) and words[0] > 0 and words[-1] < 2**64
    assert [2**64 - word for word in reversed(words)] == words  # symmetric, as the law
    half = len(words) // 2
    rounded = np.diff([0, *words, 2**64])
    with localcontext() as context:
        context.prec = 60
        masses = {k: (-(Decimal(k) ** 2) / (2 * Decimal(sigma) ** 2)).exp() for k in range(-200, 201)}
        total = sum(masses.values())
        chances = {k - half: Decimal(int(mass)) / 2**64 for k, mass in enumerate(rounded)}
        apart = sum(abs(masses[k] / total - chances.get(k, 0)) for k in masses) / 2
    assert 0 < apart <= discrete_gaussian_error(sigma) < 1e-17


def test_each_word_of_64_bits_is_looked_up_exactly(monkeypatch):
    table = _thresholds(2.0)
    words = [int(high) * 2**32 + int(low) for high, low in table]
    tried = sorted({0, 2**64 - 1, *words, *(word - 1 for word in words), *(word + 1 for word in words)})
    bits = jnp.array([divmod(word, 2**32) for word in tried], jnp.uint32).T
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: bits)
    drawn = discrete_gaussian(jax.random.key(0), sigma=2.0, shape=(len(tried),))
    expected = [sum(word >= each for each in words) - len(words) // 2 for word in tried]
    assert drawn.tolist() == expected


def test_no_scale_draws_zeros_and_the_key_alone_decides():
    assert not draw(jax.random.key(0), 0.0, (9,)).any()
    assert discrete_gaussian_law(0.0).variance == 0.0
    first, again = (draw(jax.random.key(5), 2.0, (4, 50)) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != draw(jax.random.key(6), 2.0, (4, 50)).tolist()
    assert discrete_gaussian(jax.random.key(0), sigma=2.0).shape == ()


def test_scales_whose_squares_are_no_floats():
    for sigma in (1e-200, 1e-160, 1e-4):
        law = discrete_gaussian_law(sigma)
        assert law.values.tolist() == [0] and law.probabilities.tolist() == [1.0]
        assert not draw(jax.random.key(0), sigma, (9,)).any()
    assert psi(1e200, clients=5) == psi(1e3, clients=5) == 0.0
    assert psi(1e-200, clients=5) == 40.0


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf"), 5000.0, "2"])
def test_a_scale_that_makes_no_sense_is_refused(sigma):
    with pytest.raises(EvenhandError, match="from 0 to 4096"):
        discrete_gaussian(jax.random.key(0), sigma=sigma)
    with pytest.raises(EvenhandError, match="from 0 to 4096"):
        discrete_gaussian_law(sigma)


def test_psi_refuses_what_makes_no_sense():
    for sigma in (0.0, math.nan, math.inf):
        with pytest.raises(EvenhandError, match="above 0"):
            psi(sigma, clients=4)
    with pytest.raises(EvenhandError, match="from 1"):
        psi(1.0, clients=0)
