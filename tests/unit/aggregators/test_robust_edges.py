"""Robust aggregators where little is left, much is equal, or a number is huge; and what wrappers hand on."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from robust_rules import CASES, CLIENTS, RULES, F, X, agree, caf, directions, expected

import evenhand as eh
from evenhand import aggregators as agg
from evenhand.aggregators._reduce import before
from evenhand.types import Report, Stack, Sum, Upload

KEY = jax.random.key(0)
NEEDS_MORE = ("mda", "norm,", "loss")
"""With at most ``F`` uploads, these keep none."""


def with_only(count: int) -> np.ndarray:
    """The 200 cohorts with so many clients, at random places; the others send a NaN."""
    rng, updates = np.random.default_rng(count), np.array(X)
    for case in range(CASES):
        updates[case] = rng.normal(size=updates[case].shape) * 3 + 1
        updates[case, rng.choice(CLIENTS, CLIENTS - count, replace=False), 0] = np.nan
    return updates


@pytest.mark.parametrize("name", RULES)
def test_it_is_what_its_definition_says_of_a_few_uploads(name: str) -> None:
    rule, definition = RULES[name]
    for count in (3, 4, 5):
        if (name.startswith("mda") and count == 3) or (name == "bulyan" and count == 4):
            continue  # one upload of several, or one value of two, that are as near as each other
        updates = with_only(count)
        assert agree(directions(rule, updates=updates), expected(definition, updates)).all(), count
    for count in (1, 2):
        updates = with_only(count)
        found, here = directions(rule, updates=updates), np.isfinite(updates[..., :1])
        if f"{name},".startswith(NEEDS_MORE):
            assert not found.any()
        else:
            least, most = (
                side(np.where(here, updates, fill), axis=1)
                for side, fill in ((np.min, np.inf), (np.max, -np.inf))
            )
            inside = (found >= np.minimum(least, 0) - 1e-4) & (found <= np.maximum(most, 0) + 1e-4)
            assert np.isfinite(found).all() and (found.any(axis=1) | (name.startswith("reject"))).all()
            assert inside.all() or name == "normalize"
        if name in ("multi_krum, keep", "median", "trimmed"):
            both = np.where(here, updates, 0).sum(axis=1) / count
            assert agree(found, both).all()
    assert not directions(rule, updates=np.full_like(X, np.nan)).any()


@pytest.mark.parametrize(
    "name", ["median", "trimmed", "meamed", "meamed, weighted", "bulyan", "trimmed, weighted"]
)
def test_equal_values_are_no_matter(name: str) -> None:
    """Whole numbers from -1 to 1, of which many are equal, and half of them 0."""
    rng = np.random.default_rng(0)
    updates = rng.integers(-1, 2, X.shape) * rng.integers(0, 2, X.shape)
    rule, definition = RULES[name]
    found, wanted = directions(rule, updates=updates.astype(np.float32)), expected(definition, updates)
    if name == "trimmed, weighted":  # its definition drops the first of equal values
        assert (found[(updates == 0).all(axis=1)] == 0).all() and (np.abs(found - wanted) < 1).all()
    elif name != "bulyan":  # whose choice among equals is by place
        assert agree(found, wanted).all()
    zeros = directions(rule, updates=np.zeros_like(X))
    assert not zeros.any(), "zeros must give exactly 0"


CLOSE = {
    "krum": agg.krum(2),
    "multi_krum": agg.multi_krum(2),
    "bulyan": agg.bulyan(2),
    "mda": agg.mda(2),
    "caf": agg.caf(2),
    "nnm": agg.nnm(2, then=agg.coordinate_median()),
}


@pytest.mark.parametrize("name", CLOSE)
def test_one_huge_number_among_many_does_not_hide_other_liars(name: str) -> None:
    """One malicious upload is the honest mean but for one coordinate, the other lies 1e6 away from it.

    Were the first taken for the middle, around which distances are computed, all of them would drown in 1e15.
    """
    clients, size, far = 12, 20_000, 0.0
    direction = jax.jit(lambda x: agg.aggregate(CLOSE[name], {"a": x[:, :50], "b": x[:, 50:]}))
    for case in range(8):
        rng = np.random.default_rng(case)
        x = (rng.normal(size=(clients, size)) * 1e-3).astype(np.float32)
        one, other = rng.choice(clients, 2, replace=False)
        x[[one, other]] = np.delete(x, [one, other], axis=0).mean(axis=0)
        x[one, rng.integers(size)] = 1e15
        x[other] += 1e6 / np.sqrt(size)
        found = np.concatenate([np.asarray(leaf, np.float64) for leaf in direction(x).values()])
        far = max(far, np.linalg.norm(found))
    assert far < 0.2, "honest uploads have a norm of 0.14"


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", CLOSE)
def test_no_upload_whose_norm_is_finite_is_too_long_for_it(name: str, sign: float) -> None:
    rng, direction = np.random.default_rng(1), jax.jit(lambda x: agg.aggregate(CLOSE[name], x))
    for norm in (1e6, 1e12, 1e17, 5e18, 1.8e19):
        x = rng.normal(size=(12, 4)).astype(np.float32)
        x[:2] = 0
        x[:2, 0] = norm, sign * norm
        assert np.abs(direction(x)).max() < 4, norm


def test_medians_of_weights_that_are_not_whole() -> None:
    for weight in (0.1, 0.3, 1 / 3, 0.7, 12.0):
        for clients in (4, 8, 20, 50):
            x = np.random.default_rng(clients).permutation(clients).astype(np.float32)[:, None]
            found = agg.aggregate(
                agg.coordinate_median(weighted=True), x, jnp.full(clients, weight, jnp.float32)
            )
            assert float(found[0]) == (clients - 1) / 2, (weight, clients)


def test_caf_tells_directions_apart_in_which_uploads_vary_almost_alike() -> None:
    """Two pairs of outliers at right angles, one a hundredth farther out: it is the one that loses weight."""
    x = np.array(
        [[10.1, 0], [-10.1, 0], [0, 10.0], [0, -10.0], [0.2, 0.1], [0.1, -0.3], [-0.2, 0.1], [0, 0.2]]
    )
    x = np.concatenate([x, np.random.default_rng(0).normal(size=(4, 2))])
    np.testing.assert_allclose(
        agg.aggregate(agg.caf(1), jnp.asarray(x, jnp.float32)), caf(x, 1), rtol=1e-3, atol=1e-4
    )


def test_a_trimmed_share_of_whole_numbers_is_not_one_more() -> None:
    """7 % of 100 uploads are 7, though their product is 7.000000000000001."""
    x = np.arange(100.0) ** 2
    wanted = x[7:93].mean()
    assert 0.07 * 100 > 7 and abs(wanted - x[8:92].mean()) > 5
    np.testing.assert_allclose(agg.aggregate(agg.trimmed_mean(0.07), jnp.asarray(x)), wanted, rtol=1e-6)


def test_mda_of_nobody_malicious_is_the_mean() -> None:
    assert agg.aggregate(agg.mda(0), jnp.array([[1.0], [2.0], [6.0]])).tolist() == [3.0]


def test_states_begin_anew_or_go_on() -> None:
    uploads = Upload(jnp.array([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]]), jnp.ones(3), jnp.ones(3))
    here, noise = jnp.ones(3, bool), jax.random.split(KEY, 3)
    for start in ("zero", "mean"):
        rule = agg.geometric_median(3, start=start)  # type: ignore[arg-type]
        first, state = agg.reduce_uploads(rule, uploads, here, rule.init(jnp.zeros(2), 3), KEY, noise)
        again, after = agg.reduce_uploads(rule, uploads, here, state, KEY, noise)
        assert np.array_equal(first, again)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves((state, after)))
    rule = agg.centered_clipping(1.0)
    _, state = agg.reduce_uploads(rule, uploads, here, rule.init(jnp.zeros(2), 3), KEY, noise)
    found, after = agg.reduce_uploads(rule, uploads, jnp.zeros(3, bool), state, KEY, noise)
    assert not np.any(found) and np.array_equal(after, state) and np.any(state)


@pytest.mark.parametrize(
    "rule",
    [
        agg.multi_krum(1),
        agg.nnm(1, then=agg.coordinate_median()),
        agg.mda(1),
        agg.caf(1),
        agg.bulyan(1),
        agg.min_norm(1.0),
        agg.bucketing(1, then=agg.krum(1)),
    ],
    ids=["krum", "nnm", "mda", "caf", "bulyan", "min_norm", "bucketing"],
)
def test_arrays_without_numbers_do_not_count(rule: Stack) -> None:
    deltas = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)}
    direction = agg.aggregate(rule, {"none": jnp.zeros((7, 0, 2)), **deltas})
    assert direction["none"].shape == (0, 2)
    np.testing.assert_allclose(direction["w"], agg.aggregate(rule, deltas)["w"], rtol=1e-5)


def test_what_wrappers_hand_on() -> None:
    zero = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(agg.aggregate(agg.normalize(), zero), [0.3, 0.4], rtol=1e-6)
    broken = Stack(
        lambda like, clients: (), lambda uploads, present, state, key: (jnp.full(2, jnp.nan), state)
    )
    assert agg.aggregate(agg.reject(8.0, then=broken), zero).tolist() == [0.0, 0.0]
    for longest, kept in ((5.0, [0.0, 0.0]), (5.1, [3.0, 4.0])):
        assert agg.aggregate(agg.reject(longest, then=agg.mean()), zero[1:]).tolist() == kept
    assert agg.nnm(1, then=agg.loss_filter(1)).needs_loss and not agg.nnm(1, then=agg.krum(1)).needs_loss
    bounded = agg.mean()._replace(sensitivity=lambda *_: 1.0)  # type: ignore[arg-type]
    clipped = agg.clip(1.0, then=bounded)
    assert isinstance(clipped, Sum) and clipped.sensitivity is None
    half = jnp.arange(12, dtype=jnp.float16).reshape(4, 3)
    for rule in (agg.coordinate_median(), agg.trimmed_mean(0.3), agg.meamed(1)):
        assert agg.aggregate(rule, half).dtype == jnp.float16
    tilted = agg.risk_weighted(eh.risks.tilted(1.0))
    x, w, s = jnp.array([[1.0], [2.0], [9.0]]), jnp.array([1.0, 1.0, 1000.0]), jnp.array([0.1, 0.5, 0.2])
    found = agg.aggregate(agg.bounded_weights(1.0, then=tilted), x, w, s)
    assert found.tolist() == agg.aggregate(tilted, x, jnp.ones(3), s).tolist()
    assert abs(float(found[0] - agg.aggregate(tilted, x, w, s)[0])) > 1


def test_a_wrapper_the_rule_after_it_and_its_clients_draw_by_themselves() -> None:
    def bits(key: Any) -> Any:
        return jax.random.bits(key).astype(jnp.float32)

    def change(uploads: Upload, present: Any, key: Any) -> Any:
        return uploads._replace(weight=jnp.full(3, bits(key))), present

    def lift(upload: Upload, public: Any, key: Any) -> Any:
        return jnp.stack([upload.weight, bits(key), jnp.float32(1.0)])

    def lower(total: Any, state: Any, key: Any) -> Any:
        return jnp.concatenate([total, bits(key)[None]]), state

    rule = before(Sum(lambda like, clients: (), lift, lower, publish=lambda state: state), change, "test()")
    uploads = Upload(jnp.ones((3, 1)), jnp.ones(3), jnp.ones(3))
    found = np.asarray(rule.apply(uploads, jnp.array([True, False, False]), (), KEY)[0])
    assert len(set(found[[0, 1, 3]].tolist())) == 3 and found[2] == 1.0


def test_each_pass_has_noise_of_its_own_and_absent_clients_lift_nothing() -> None:
    def lift(upload: Upload, public: Any, key: Any) -> Any:
        return jnp.stack([jax.random.normal(key), jnp.float32(1.0)])

    def lower(total: Any, state: Any, key: Any) -> Any:
        return state, jnp.concatenate([state[2:], total])

    rule = Sum(lambda like, clients: jnp.zeros(4), lift, lower, publish=lambda state: (), passes=3)
    uploads = Upload(jnp.ones((5, 1)), jnp.ones(5), jnp.ones(5))
    here = jnp.array([True, False, True, True, False])
    found, state = agg.reduce_uploads(rule, uploads, here, jnp.zeros(4), KEY, jax.random.split(KEY, 5))
    assert found[1] == found[3] == state[3] == 3.0
    assert len({float(found[0]), float(found[2]), float(state[2])}) == 3


def test_uploads_with_impossible_reports_are_left_out() -> None:
    x = jnp.array([[1.0], [2.0], [9.0]])
    assert agg.aggregate(agg.mean(), x, jnp.array([1.0, 1.0, -1.0])).tolist() == [1.5]
    assert agg.aggregate(agg.coordinate_median(), x, jnp.array([1.0, 1.0, -1.0])).tolist() == [1.5]
    assert agg.aggregate(agg.coordinate_median(), x, jnp.array([1.0, 1.0, 0.0])).tolist() == [2.0]
    filtered = agg.loss_filter(0, several=True)
    assert agg.aggregate(filtered, x, losses=jnp.array([1.0, 2.0, jnp.nan])).tolist() == [1.5]
    tilted = agg.risk_weighted(eh.risks.tilted(1.0))
    assert float(agg.aggregate(tilted, x, losses=jnp.array([1.0, 1.0, jnp.nan]))[0]) == pytest.approx(1.5)


# --- bucketing -------------------------------------------------------------------------------------------------------

BUCKETS = Stack(lambda like, clients: (), lambda uploads, present, state, key: (uploads, state))
"""Hands out the buckets themselves."""


@partial(jax.jit, static_argnames="size")  # its loops would be compiled at each call
def buckets(uploads: Upload, key: Any, size: int = 2) -> Upload:
    clients = uploads.weight.shape[0]
    return agg.bucketing(size, then=BUCKETS).apply(uploads, jnp.ones(clients, bool), (), key)[0]


def test_the_deal_depends_on_the_key_and_losses_and_weights_follow_the_uploads() -> None:
    x = jnp.arange(8.0)[:, None]
    deals = set()
    for case in range(20):
        found = buckets(Upload(x, 2 * x[:, 0], 3 * x[:, 0] + 1), jax.random.key(case))
        means = np.asarray(found.delta)[:, 0]
        np.testing.assert_allclose(found.loss, 3 * means + 1, rtol=1e-6)
        np.testing.assert_allclose(found.weight, 4 * means, rtol=1e-6)
        deals.add(tuple(sorted(means.tolist())))
    assert len(deals) > 10


def test_uploads_of_the_same_numbers_at_other_places_are_dealt_in_any_order() -> None:
    x, order = np.array([[1.0, 2], [2, 1], [3, 0], [0, 3]], np.float32), np.array([2, 0, 3, 1])

    def dealt(x: np.ndarray, key: Any) -> list[list[float]]:
        uploads = Upload({"a": jnp.asarray(x[:, :1]), "b": jnp.asarray(x[:, 1:])}, jnp.ones(4), jnp.ones(4))
        return sorted(np.concatenate(list(buckets(uploads, key).delta.values()), axis=1).tolist())

    for case in range(20):
        key = jax.random.key(case)
        assert dealt(x, key) == dealt(x[order], key), case


def test_copies_are_dealt_like_other_uploads() -> None:
    """Six equal uploads of 20 touch 5.2 of 10 buckets on average, not 3."""
    x = jnp.concatenate([jnp.arange(14.0), jnp.full(6, 1e4)])[:, None]
    deal = jax.jit(lambda key: buckets(Upload(x, jnp.ones(20), jnp.ones(20)), key).delta[:, 0])
    touched = [int((np.asarray(deal(jax.random.key(case))) > 1e3).sum()) for case in range(200)]
    pairs = 1 - (14 * 13) / (20 * 19)
    assert abs(np.mean(touched) - 10 * pairs) < 0.3, np.bincount(touched)


def test_reports_are_bounded_before_a_rule_that_weighs_by_them() -> None:
    cohort = eh.types.Cohort.of(jnp.arange(3), jnp.ones(3, bool))
    rule = agg.bounded_weights(2.0, then=agg.mean())
    assert isinstance(rule, Sum) and rule.weigh is not None
    weights, _ = rule.weigh(
        Report(jnp.array([1.0, 3.0, 50.0]), jnp.ones(3)), cohort, rule.init(jnp.zeros(1), 3)
    )
    assert weights.tolist() == [1.0, 3.0, 6.0]


def test_clipping_by_arc_beyond_its_bound_still_keeps_a_norm() -> None:
    x = jnp.array([[1.0], [2.0], [3.0], [90.0]])
    for malicious in range(8):
        assert float(agg.aggregate(agg.arc(malicious, then=agg.mean()), x)[0]) >= 1.0
    assert CLIENTS > 2 * F


SKIPPING = {
    "clip": agg.clip(),
    "clip, then a median": agg.clip(then=agg.coordinate_median()),
    "arc": agg.arc(1, then=agg.geometric_median(3)),
    "normalize": agg.normalize(2.0, then=agg.krum(1)),
    "bucketing": agg.bucketing(2, then=agg.coordinate_median()),
    "bucketing, then a sum": agg.bucketing(3, then=agg.mean()),
    "Krum": agg.krum(1),
    "multi-Krum": agg.multi_krum(1, weighted=True),
    "NNM": agg.nnm(1, then=agg.coordinate_median()),
}


@pytest.mark.parametrize("name", SKIPPING)
def test_rules_that_skip_empty_slots_do_not_read_them(name: str) -> None:
    """Whatever these hold: nothing, NaN, a copy of an upload, or an upload that is longer than all others."""
    rule = SKIPPING[name]
    assert isinstance(rule, Stack) and rule.skips_absent
    present = jnp.array([True, False, True, True, False, True, True])
    deltas = jax.random.normal(KEY, (7, 5))
    weights = jnp.arange(1.0, 8.0)
    whole = Upload(deltas, weights, weights)

    @jax.jit
    def direction(uploads: Upload) -> jax.Array:
        noise = jax.random.split(KEY, 7)
        state = rule.init(jnp.zeros(5), 7)
        return agg.reduce_uploads(rule, uploads, present, state, KEY, noise)[0]

    def holding(uploads: Upload) -> Upload:
        return eh.tree.among(present, whole, uploads)

    expected = direction(holding(eh.tree.zeros_like(whole)))
    assert np.isfinite(expected).all()
    for garbage in (jnp.nan, jnp.inf, 1e6):
        filled = jax.tree.map(partial(jnp.full_like, fill_value=garbage), whole)
        np.testing.assert_allclose(direction(holding(filled)), expected, rtol=1e-6)
    # Each empty slot holds a copy of the upload after it.
    copies = eh.tree.take(whole, jnp.array([0, 2, 2, 3, 5, 5, 6]))
    np.testing.assert_allclose(direction(holding(copies)), expected, rtol=1e-6)
    assert not np.allclose(direction(whole._replace(delta=2 * deltas - 1)), expected)
