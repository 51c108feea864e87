"""Fixed point: whole numbers as Python computes them, sums that cannot wrap, rounding that keeps the mean."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand import EvenhandError
from evenhand.secure import fixed_point, from_limbs, to_limbs

POINTS = {
    "64 bits": fixed_point(),
    "32 bits": fixed_point(32, largest=8.0, cohort=100),
    "64 bits, nearest": fixed_point(stochastic=False),
    "32 bits, nearest": fixed_point(32, largest=8.0, cohort=100, stochastic=False),
}
encode = jax.jit(lambda point, x, key: POINTS[point].encode(x, key), static_argnums=0)
decode = jax.jit(lambda point, limbs: POINTS[point].decode(limbs), static_argnums=0)


def wholes(name, x, seed=0):
    """What is encoded, as Python integers from half of the modulus below 0 to half above."""
    point = POINTS[name]
    words = from_limbs(np.asarray(encode(name, jnp.asarray(x, jnp.float32), jax.random.key(seed))))
    half = 2 ** (point.bits - 1)
    return [(int(word) + half) % (2 * half) - half for word in words]


def exact(name, value):
    """The number of steps in exact arithmetic, before rounding."""
    point = POINTS[name]
    clipped = min(abs(float(np.float32(value))), point.largest)
    return int(math.copysign(1, value)) * Fraction(clipped) * Fraction(2) ** point.fraction


FLOATS = st.lists(st.floats(-2e6, 2e6, width=32), min_size=16, max_size=16)


@pytest.mark.parametrize("name", POINTS)
@given(FLOATS)
def test_a_number_becomes_the_whole_number_next_to_it_on_one_side_or_the_other(name, x):
    nearest = "nearest" in name
    for value, whole in zip(x, wholes(name, x), strict=True):
        steps = exact(name, value)
        assert abs(whole - steps) <= Fraction(1, 2) if nearest else abs(whole - steps) < 1


def test_numbers_that_need_no_rounding_are_encoded_to_the_bit():
    point = POINTS["64 bits"]
    x = [1.0, -1.0, 0.0, 2.0**-point.fraction, -(2.0**-point.fraction), 3.5, -1000.25, 16777215.0 / 64]
    assert wholes("64 bits", x) == [int(each * 2**point.fraction) for each in x]


def test_a_draw_of_zero_rounds_no_whole_number_up():
    x, point = jnp.array([1.0, -3.5, 0.0, 2.0**-40]), POINTS["64 bits"]
    least, middle = (np.asarray(point._encoded(x, jnp.full(4, draw))) for draw in (0.0, 0.5))
    assert np.array_equal(least[:3], middle[:3]) and not np.array_equal(least[3], middle[3])


def test_what_is_too_long_is_clipped_and_what_is_not_a_number_counts_as_nothing():
    largest = POINTS["32 bits"].largest
    top = int(largest * 2 ** POINTS["32 bits"].fraction)
    assert wholes("32 bits", [np.inf, -np.inf, 1e30, -9.0, np.nan]) == [top, -top, top, -top, 0]


@pytest.mark.parametrize("name", ["64 bits", "32 bits"])
def test_the_largest_sum_of_a_cohort_does_not_wrap_and_a_larger_one_does(name):
    point = POINTS[name]
    one = np.asarray(encode(name, jnp.array([point.largest, -point.largest]), jax.random.key(0)))
    total = decode(name, jnp.asarray(point.cohort * one, jnp.uint32))
    np.testing.assert_allclose(total, point.cohort * point.largest * np.array([1, -1]), rtol=1e-6)
    fewest = 2 ** (point.bits - 1) // int(point.largest * 2.0**point.fraction) + 1
    beyond = decode(name, jnp.asarray(fewest * one, jnp.uint32))
    assert fewest < 4 * point.cohort
    assert beyond[0] < 0 < beyond[1]


@pytest.mark.parametrize("name", POINTS)
def test_sums_are_those_of_the_encoded_numbers_whatever_their_signs(name):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((50, 300)) * 0.1).astype(np.float32)
    limbs = np.stack([encode(name, jnp.asarray(row), jax.random.key(i)) for i, row in enumerate(x)])
    expected = (
        np.sum([wholes(name, row, i) for i, row in enumerate(x)], axis=0) / 2.0 ** POINTS[name].fraction
    )
    np.testing.assert_allclose(decode(name, jnp.asarray(limbs.sum(0, dtype=np.uint32))), expected, rtol=3e-7)


def test_random_rounding_keeps_the_mean_and_rounding_to_the_nearest_does_not():
    """0.3 steps: 30 % round up.  The mean of 40,000 has a standard deviation of 0.0023 steps."""
    x = np.full(40_000, 0.3 * 2.0 ** -POINTS["32 bits"].fraction, np.float32)
    assert abs(np.mean(wholes("32 bits", x)) - 0.3) < 0.01
    assert abs(np.mean(wholes("32 bits", -x)) + 0.3) < 0.01
    assert np.mean(wholes("32 bits, nearest", x)) == 0


def test_other_keys_round_otherwise():
    x = np.full(1000, 0.5 * 2.0 ** -POINTS["32 bits"].fraction, np.float32)
    assert wholes("32 bits", x, 0) != wholes("32 bits", x, 1)
    assert wholes("32 bits", x, 0) == wholes("32 bits", x, 0)


@pytest.mark.parametrize("bits", [32, 64])
def test_limbs_and_words_are_the_same_numbers(bits):
    kind = np.uint32 if bits == 32 else np.uint64
    words = np.random.default_rng(0).integers(0, 2**bits, 100, dtype=kind)
    limbs = to_limbs(words, bits // 16)
    assert limbs.dtype == np.uint32
    assert limbs.max() < 2**16
    assert [sum(int(limb) << 16 * i for i, limb in enumerate(row)) for row in limbs] == words.tolist()
    assert (from_limbs(limbs) == words).all()


def test_the_fraction_is_as_fine_as_it_can_be():
    for bits, largest, cohort in [(32, 1.0, 100), (64, 2.0**20, 8192), (32, 0.3, 7), (64, 1e-3, 65_535)]:
        point = fixed_point(bits, largest=largest, cohort=cohort)
        sum_of = cohort * math.ceil(Fraction(point.largest) * Fraction(2) ** point.fraction)
        twice = cohort * math.ceil(Fraction(point.largest) * Fraction(2) ** (point.fraction + 1))
        assert sum_of < 2 ** (bits - 1) <= twice


def test_the_probability_of_a_wrap_is_that_of_noise_beyond_what_is_left():
    point = fixed_point(32, largest=1.0, cohort=100)
    assert point.wrap_probability(0.0) == 0.0
    room = 2.0 ** (31 - point.fraction) - 100.0
    noise = np.random.default_rng(0).standard_normal(100_000) * room / 2
    assert abs(point.wrap_probability(room / 2) - np.mean(noise > room)) < 0.003
    assert point.wrap_probability(room / 8) < 1e-14
    huge = np.random.default_rng(1).standard_normal(100_000) * 10 * room  # beyond both ends
    beyond = np.mean((huge > room) | (huge < -room - 200.0))
    assert abs(point.wrap_probability(10 * room) - beyond) < 0.003


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"bits": 31}, "give 32 or 64"),
        ({"cohort": 0}, "cohort"),
        ({"cohort": 70_000}, "at most 65,535"),
        ({"largest": 0.0}, r"from 2\*\*-60"),
        ({"largest": float("nan")}, r"from 2\*\*-60"),
        ({"largest": 1e-30}, r"from 2\*\*-60"),  # its fraction, 2**161, is infinite in float32
        ({"bits": 32}, "too little would be left"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(EvenhandError, match=sentence):
        fixed_point(**arguments)


def test_the_smallest_and_largest_numbers_that_are_allowed_come_back():
    for largest, cohort in ((2.0**-60, 1), (2.0**-60, 65_535), (2.0**50, 2)):
        point = fixed_point(64, largest=largest, cohort=cohort)
        values = jnp.array([1.0, -0.5, 0.25, 0.0]) * largest
        found = point.decode(point.encode(values, jax.random.key(0)))
        np.testing.assert_allclose(found, values, rtol=2**-7)
