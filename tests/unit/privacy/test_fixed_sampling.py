"""Cohorts of a fixed size: exactly so many clients, and a bound for one client that is replaced by another."""

import math
from decimal import Decimal, localcontext
from typing import Any, Literal

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import evenhand as eh
from evenhand.privacy import amplified, noisy_mean, private, rdp, spent
from evenhand.privacy._renyi import _log_central_moments
from evenhand.sampling import fixed, poisson
from evenhand.types import Release

logsumexp: Any = special.logsumexp  # SciPy declares no type of what it returns

WORK = eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1)
DATA = eh.testing.toy_data()


def method(z=1.0, rate=0.5, sampling: Any = "fixed", drawn=fixed, clip=0.5):
    noisy = noisy_mean(clip, noise_multiplier=z, rate=rate, sampling=sampling)
    return private(eh.algorithms.fedavg(WORK, aggregator=noisy, sampling=drawn(rate)))


@pytest.mark.parametrize(("rate", "clients", "m"), [(0.29, 100, 29), (0.1, 39, 3), (1.0, 7, 7)])
def test_a_cohort_has_exactly_the_asked_for_part_each_client_once(rate, clients, m):
    sampling = fixed(rate)
    assert sampling.slots is not None and sampling.slots(clients) == m
    cohorts = [sampling.draw(jax.random.key(seed), jnp.ones(clients), 0) for seed in range(3)]
    for cohort in cohorts:
        assert len(set(cohort.ids.tolist())) == m and bool(cohort.present.all())
    assert m == clients or len({tuple(sorted(cohort.ids.tolist())) for cohort in cohorts}) > 1


def test_every_client_is_drawn_equally_often():
    draws = jax.vmap(lambda key: fixed(0.3).draw(key, jnp.ones(20), 0).ids)(
        jax.random.split(jax.random.key(0), 2000)
    )
    counts = np.bincount(np.asarray(draws).reshape(-1), minlength=20)
    assert abs(counts - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_the_mean_divides_by_the_size_of_the_cohort_and_not_by_its_exact_part_of_all():
    """Of 39 clients 3 are drawn, and not 3.9."""
    uploads = jnp.eye(3)
    counts: dict[Literal["fixed", "poisson"], float] = {"fixed": 3.0, "poisson": 3.9}
    for sampling, count in counts.items():
        rule = noisy_mean(1.0, noise_multiplier=0.0, rate=0.1, sampling=sampling)
        state = rule.init(uploads[0], 39)
        found, _ = rule.lower((jnp.ones(3), jnp.float32(0)), state, jax.random.key(0))
        np.testing.assert_allclose(found, 1.0 / count, rtol=1e-6)
    whole = noisy_mean(1.0, noise_multiplier=0.0, rate=0.29, sampling="fixed")
    assert whole.init(uploads[0], 100).expected == 29 > 0.29 * 100, "whole but for rounding"


def test_replacing_a_client_moves_the_sum_twice_as_far_and_costs_what_the_bound_for_fixed_samples_says():
    promise = method(z=2.0, rate=0.1).privacy
    assert promise is not None
    assert promise.neighbours == "one client, with all its examples, replaced by another"
    assert promise.releases(30) == (Release(1.0, 0.1, "fixed", 30),)
    found = eh.privacy.account(promise, rounds=30, units=1000).epsilon
    assert found == spent([Release(1.0, 0.1, "fixed", 30)], delta=1e-3).epsilon
    independent = method(z=2.0, rate=0.1, sampling="poisson", drawn=poisson).privacy
    assert independent is not None and "added or removed" in independent.neighbours
    assert found > 2 * eh.privacy.account(independent, rounds=30, units=1000).epsilon


def test_a_run_trains_with_it_and_says_so():
    run = eh.simulate(method(rate=0.5), DATA, rounds=4)
    assert run.per_round["reported"].tolist() == [DATA.num_clients // 2] * 4
    assert run.privacy is not None and "without replacement" in str(run.privacy.in_words()["releases"])
    exact = eh.simulate(method(z=0.0, rate=1.0, clip=1e6), DATA, rounds=2)
    plain = eh.algorithms.fedavg(WORK, sampling=eh.sampling.uniform(weighted=False))
    for a, b in zip(
        *(jax.tree.leaves(r.params) for r in (exact, eh.simulate(plain, DATA, rounds=2))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("sampling", "drawn"), [("poisson", fixed), ("fixed", poisson)], ids=["noise", "cohorts"]
)
def test_noise_for_one_way_to_draw_clients_is_refused_with_another(sampling, drawn):
    with pytest.raises(eh.EvenhandError, match="its sampling differs"):
        method(sampling=sampling, drawn=drawn)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(eh.EvenhandError, match="that is none"):
        eh.simulate(method(rate=0.001), DATA, rounds=1)
    with pytest.raises(eh.EvenhandError, match="part above 0"):
        fixed(0.0)
    with pytest.raises(eh.EvenhandError, match="'poisson' or 'fixed'"):
        noisy_mean(1.0, noise_multiplier=1.0, rate=0.1, sampling="shuffled")  # pyright: ignore[reportArgumentType]
    with pytest.raises(eh.EvenhandError, match="its own cohorts, at a rate"):
        eh.simulate(method(rate=0.5), DATA, rounds=1, cohort=3)


# --- what a sample of a fixed size gives away -------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 5.0])
def test_dp_accounting_has_the_same_bound_for_samples_of_a_fixed_size(sigma):
    orders = [2.0, 3.0, 8.5, 40.0]
    theirs = dp_accounting.rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.GaussianDpEvent(sigma)
    theirs.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, event))
    unsampled = np.asarray(orders) / (2.0 * sigma**2)
    found = rdp(noise_multiplier=sigma, rate=0.02, sampling="fixed", orders=orders)
    np.testing.assert_allclose(found, np.minimum(theirs._rdp, unsampled), rtol=1e-9)
    generic = amplified(lambda alpha: alpha / (2.0 * sigma**2), rate=0.02, sampling="fixed", orders=orders)
    assert np.all(found <= generic * (1.0 + 1e-12))


@pytest.mark.parametrize("sigma", [1.0, 20.0, 100.0, 1e4])
def test_central_moments_are_those_of_the_binomial_sum(sigma):
    """E (Z - 1)^k as a sum of moments of Z, in so many digits that terms may cancel."""
    found = _log_central_moments(sigma, 256)
    with localcontext() as context:
        context.prec = 1000
        ratio = (1 / Decimal(sigma) ** 2).exp()
        moments = [ratio ** (j * (j - 1) // 2) for j in range(257)]
        for power in (2, 64, 256):
            terms = ((-1) ** j * math.comb(power, j) * moments[j] for j in range(power + 1))
            assert found[power // 2 - 1] == pytest.approx(
                float(sum(terms, Decimal(0)).ln()), rel=1e-12, abs=1e-11
            )


def test_a_release_that_gives_nothing_away_may_have_another_sampling():
    alone = [Release(2.0, 0.1, "fixed", times=5)]
    for nothing in (Release(1.0, 0.1, times=0), Release(1.0, 0.0)):
        assert spent([*alone, nothing], delta=1e-5) == spent(alone, delta=1e-5)
    with pytest.raises(eh.EvenhandError, match="the same sampling"):
        spent([*alone, Release(1.0, 0.1)], delta=1e-5)


def test_a_fixed_sample_bounds_what_a_sum_of_few_numbers_gives_away():
    """Two units of which one is drawn, one replaced by its negative: mixtures of normals, integrated."""
    sigma, q, orders = 1.5, 0.5, [1.5, 2.0, 4.0, 7.0]
    x = np.arange(-30.0, 30.0, 0.01)

    def density(*centres):
        each = [-((x - centre) ** 2) / (2.0 * sigma**2) for centre in centres]
        return logsumexp(each, axis=0) - math.log(len(centres) * sigma * math.sqrt(2.0 * math.pi))

    # Sensitivity 1: what a unit gives moves from -1/2 to 1/2; the other one's is 0.
    p, r = density(0.5, 0.0), density(-0.5, 0.0)
    for order, bound in zip(
        orders, rdp(noise_multiplier=sigma, rate=q, sampling="fixed", orders=orders), strict=True
    ):
        true = float(logsumexp(order * p + (1.0 - order) * r) + math.log(0.01)) / (order - 1.0)
        assert 0.0 < true <= bound <= order / (2.0 * sigma**2)
