"""How many uploads each robust aggregator needs, and what a run says or refuses that has fewer."""

from __future__ import annotations

import warnings
from math import ceil

import numpy as np
import pytest

import evenhand as eh
from evenhand import aggregators as agg
from evenhand.errors import EvenhandError
from evenhand.evaluation import no_guarantee
from evenhand.sampling import poisson
from evenhand.types import Need

DATA, WORK = eh.testing.toy_data(), eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4)
COUNTS = range(1, 40)


def sentence_of(needs, cohort, reported):
    finding = no_guarantee(needs, cohort, reported)
    assert finding is not None
    return finding.sentence


def holds(aggregator, m):
    return all(need.holds(m) for need in aggregator.needs)


@pytest.mark.parametrize(
    ("make", "condition"),
    [
        (agg.krum, lambda f, m: m > 2 * f + 2),
        (agg.multi_krum, lambda f, m: m > 2 * f + 2),
        (agg.bulyan, lambda f, m: m >= 4 * f + 3),
        (agg.mda, lambda f, m: m > 2 * f),
        (agg.meamed, lambda f, m: m > 2 * f),
        (agg.caf, lambda f, m: m > 2 * f),
        (lambda f: agg.nnm(f, then=agg.mean()), lambda f, m: m > 2 * f),
        (lambda f: agg.arc(f, then=agg.mean()), lambda f, m: m > 2 * f),
        (agg.norm_filter, lambda f, m: m > f),
        (agg.loss_filter, lambda f, m: m > f),
        (lambda f: agg.trimmed_mean(f / 10), lambda f, m: 2 * ceil(f * m / 10) < m),
        (lambda f: agg.trimmed_mean(0.1 * f, weighted=True), lambda f, m: 2 * ceil(f * m / 10) < m),
        # Through wrappers, the conditions of all of them.
        (lambda f: agg.nnm(f, then=agg.krum(f)), lambda f, m: m > 2 * f + 2),
        (lambda f: agg.nnm(2 * f, then=agg.krum(f)), lambda f, m: m > max(2 * f + 2, 4 * f)),
        (lambda f: agg.bucketing(3, then=agg.krum(f)), lambda f, m: ceil(m / 3) > 2 * f + 2),
        (lambda f: agg.clip(then=agg.bulyan(f)), lambda f, m: m >= 4 * f + 3),
        (lambda f: agg.clip(1.0, then=agg.bulyan(f)), lambda f, m: m >= 4 * f + 3),
        (lambda f: agg.normalize(then=agg.krum(f)), lambda f, m: m > 2 * f + 2),
        (lambda f: agg.reject(9.0, then=agg.mda(f)), lambda f, m: m > 2 * f),
        (lambda f: agg.bounded_weights(2.0, then=agg.krum(f)), lambda f, m: m > 2 * f + 2),
    ],
)
def test_the_guarantee_holds_where_the_source_says(make, condition):
    for f in range(5):
        assert [holds(make(f), m) for m in COUNTS] == [condition(f, m) for m in COUNTS]


def test_rules_that_hold_with_any_number_need_none():
    for rule in (agg.mean(), agg.geometric_median(), agg.coordinate_median(), agg.centered_clipping(1.0)):
        assert rule.needs == ()
    assert agg.secure(agg.geometric_median()).needs == ()


def test_the_least_number_is_the_next_that_holds():
    (krum,) = agg.krum(5).needs
    assert (krum.name, krum.least(4), krum.least(20)) == ("krum(5)", 13, 20)
    (trimmed,) = agg.trimmed_mean(0.4).needs
    assert [trimmed.least(m) for m in (4, 5, 6, 8)] == [5, 5, 7, 9]
    assert Need("never", lambda m: False, lambda m: True).least(1, most=50) is None


def test_a_finding_says_what_is_needed_and_what_there_is():
    needs = agg.krum(5).needs
    finding = no_guarantee(needs, 4, None)
    assert finding is not None and finding.kind == "no_guarantee"
    assert finding.sentence.startswith("krum(5) needs 13 uploads, but the cohort has 4: ")
    assert sentence_of(needs, 12, None).startswith("krum(5) needs 13 uploads, but the cohort has 12: ")
    assert no_guarantee(needs, 13, np.array([13.0, 13.0])) is None
    assert no_guarantee(agg.mean().needs, 1, np.array([1.0])) is None
    both = sentence_of(agg.nnm(3, then=agg.krum(3)).needs, 6, None)
    assert both.startswith(
        "nnm(3) needs 7 uploads, but the cohort has 6; krum(3) needs 9 uploads, but the cohort has 6: "
    )


def test_rounds_that_became_too_small_are_counted_without_empty_ones():
    counts = np.array([13.0, 12.0, 4.0, 0.0, 20.0])
    for cohort in (20, None):
        sentence = sentence_of(agg.krum(5).needs, cohort, counts)
        assert sentence.startswith(
            "krum(5) needs 13 uploads, but fewer arrived in 2 of 5 rounds (at worst 4): "
        )
    assert no_guarantee(agg.krum(5).needs, 20, np.array([0.0, 13.0])) is None
    uneven = sentence_of(agg.trimmed_mean(0.4).needs, None, np.array([8.0, 9.0]))
    assert uneven.startswith(
        "trimmed_mean(0.4) needs 9 uploads, but fewer arrived in 1 of 2 rounds (at worst 8): "
    )
    never = Need("never", lambda m: m == 0, lambda m: True)
    assert "but too few arrived in 1 of 1 round" in sentence_of([never], None, np.array([3.0]))


def trained(aggregator, **options):
    method = eh.algorithms.fedavg(WORK, aggregator=aggregator)
    if options.pop("random", False):
        method = method._replace(sampling=poisson(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eh.simulate(method, DATA, **{"rounds": 3, "eval_every": 3, "devices": 1, **options})


def guarantees(run):
    return [finding.sentence for finding in run.findings if finding.kind == "no_guarantee"]


def test_a_run_says_so_for_its_cohort_and_for_rounds_that_lost_clients():
    clients = DATA.num_clients
    assert guarantees(trained(agg.krum(1), cohort=5)) == []
    (small,) = guarantees(trained(agg.krum(1), cohort=4))
    assert small.startswith("krum(1) needs 5 uploads, but the cohort has 4")
    run = trained(agg.krum(1), systems=eh.systems.dropouts(0.6))
    few = int(np.sum((run.per_round["reported"] < 5) & (run.per_round["reported"] > 0)))
    assert few > 0
    (lost,) = guarantees(run)
    assert lost.startswith(f"krum(1) needs 5 uploads, but fewer arrived in {few} of 3 rounds")
    spoil = eh.attacks.non_finite(0.5)
    (rejected,) = guarantees(trained(agg.krum(1), attack=spoil))
    assert "but fewer arrived in 3 of 3 rounds" in rejected
    drawn = trained(agg.krum(1), random=True)
    assert drawn.per_round["reported"].min() < clients
    (poissons,) = guarantees(drawn)
    assert "but fewer arrived in" in poissons


@pytest.mark.parametrize(
    "rule", [agg.krum(4), agg.nnm(4, then=agg.mean()), agg.bucketing(2, then=agg.mda(2))]
)
def test_a_cohort_of_which_nothing_would_be_left_is_refused_in_a_sentence(rule):
    (need,) = rule.needs
    with pytest.raises(EvenhandError, match="the cohort has 4: that many malicious") as raised:
        trained(rule, cohort=4)
    assert str(raised.value).startswith(f"{need.name} needs {need.least(4)} uploads, ")
    assert trained(rule, cohort=5, rounds=0).info["cohort"] == 5
