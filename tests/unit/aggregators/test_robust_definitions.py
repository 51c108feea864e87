"""Robust aggregators against their definitions, on 200 random cohorts each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from robust_rules import (
    CLIENTS,
    LOSSES,
    RULES,
    WEIGHTS,
    F,
    Rule,
    X,
    agree,
    arc,
    around_median,
    by_score,
    directions,
    expected,
    multi_krum,
    traced,
    weighted,
)

import evenhand as eh
from evenhand import aggregators as agg
from evenhand.aggregators import _reduce, reduce_uploads, stacked


@pytest.mark.parametrize("name", RULES)
def test_it_is_what_its_definition_says_in_any_order(name: str) -> None:
    rule, definition = RULES[name]
    found = directions(rule)
    assert agree(found, expected(definition)).all()
    order = np.random.default_rng(1).permutation(CLIENTS)
    assert agree(directions(rule, order), found).all(), "the order of the clients matters"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("krum", lambda x, w, s: x[by_score(x, F, neighbours=-1)[0]]),
        ("krum", lambda x, w, s: x[by_score(x, F, power=0.5)[0]]),
        ("multi_krum", lambda x, w, s: multi_krum(x, 0 * w + 1, len(x) - F - 1)),
        ("multi_krum", lambda x, w, s: multi_krum(x, w, len(x) - F)),
        ("bulyan", lambda x, w, s: around_median(x, len(x) - 4)),
        ("caf", lambda x, w, s: x.mean(axis=0)),
        ("arc", lambda x, w, s: weighted(arc(x, F - 1), w)),
        ("loss", lambda x, w, s: x[np.argsort(s)[len(x) - F]]),
        ("reject", lambda x, w, s: weighted(x, w)),
    ],
)
def test_a_wrong_convention_would_be_seen(name: str, wrong: Rule) -> None:
    assert not agree(directions(RULES[name][0]), expected(wrong)).all()


_SHORTENED = {"clip", "normalize", "centered clipping"}


@pytest.mark.parametrize("name", [*RULES, "bucketing"])
def test_it_obeys_the_contract(name: str) -> None:
    rule = agg.bucketing(2, then=agg.krum(1)) if name == "bucketing" else RULES[name][0]
    eh.testing.check_aggregator(rule, keeps_consensus=name not in _SHORTENED, tolerance=1e-4)


def _as_if_large(patch: pytest.MonkeyPatch, large: int = 0) -> None:
    """Uploads of a few numbers take the ways of large ones."""
    patch.setattr(stacked, "_LARGE", large)
    patch.setattr(stacked, "_SHORT", 0)


@pytest.mark.parametrize("name", ["geometric median", "bounded weights", "clip", "nnm"])
def test_large_uploads_are_added_one_by_one_to_the_same_sum(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With some of them absent; without any, zeros."""
    rule, together = RULES[name][0], directions(RULES[name][0])
    _as_if_large(monkeypatch)
    assert agree(directions(rule, program=traced), together).all()
    assert not np.any(agg.aggregate(rule, jnp.full((3, 5), jnp.nan)))
    scans = "scan" in str(jax.make_jaxpr(lambda x: agg.aggregate(rule, x))(X[0]))
    assert scans, "all at once"


def _passes(x: np.ndarray, rule: Any, patch: pytest.MonkeyPatch, large: int = 0) -> tuple[np.ndarray, int]:
    """The direction, and how many products with all uploads its program has."""
    _as_if_large(patch, large)
    deltas = {"a": jnp.asarray(x[:, :2]), "b": jnp.asarray(x[:, 2:]).reshape(len(x), 1, -1)}
    program = jax.make_jaxpr(lambda deltas: agg.aggregate(rule, deltas))(deltas)
    found = agg.aggregate(rule, deltas)
    return np.concatenate([np.ravel(found["a"]), np.ravel(found["b"])]), str(program).count("dot_general")


@pytest.mark.parametrize("start", ["zero", "mean"])
def test_products_find_the_geometric_median_of_large_uploads(
    start: Literal["zero", "mean"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against Weiszfeld's steps in float64; the same without products, which are not those of a wrapped lift."""
    rule, x = agg.geometric_median(6, start=start), np.random.default_rng(0).normal(size=(9, 7))
    x = (x + 0.3).astype(np.float32)
    z = x.mean(axis=0, dtype=np.float64) if start == "mean" else np.zeros(7)
    for _ in range(6 - (start == "mean")):
        beta = 1 / np.linalg.norm(x - z, axis=1)
        z = beta @ x / beta.sum()
    found, products = _passes(x, rule, monkeypatch)
    assert products == 4, "one for distances and one for the sum, with each leaf"
    np.testing.assert_allclose(found, z, rtol=1e-5, atol=1e-6)
    assert np.abs(found - x.mean(axis=0)).max() > 0.01
    small, none = _passes(x, rule, monkeypatch, large=2**20)
    np.testing.assert_allclose(small, z, rtol=1e-5, atol=1e-6)
    assert none == 0
    assert _passes(x, agg.clip(1.0, then=rule), monkeypatch)[1] == 0, "its lift is another"


@pytest.mark.parametrize("place", ["alike", "a cluster", "long"])
def test_distances_that_drown_in_a_product_are_those_of_the_differences(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads that are alike, all or some, and such whose squares leave float32; another is not finite."""
    rule, x = agg.geometric_median(20), np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    if place == "alike":
        x = 1 + 1e-4 * x
    elif place == "a cluster":
        x[:6] = x[0] + 3e-3 * x[:6]
    else:
        x = 5e18 + 1e17 * x
    x = np.concatenate([x, np.full((1, 7), np.inf, np.float32)])
    one_by_one, _ = _passes(x, rule, monkeypatch, large=2**20)
    assert np.isfinite(one_by_one).all()
    np.testing.assert_allclose(_passes(x, rule, monkeypatch)[0], one_by_one, rtol=3e-6)
    if place != "long":  # infinity less infinity is no number, and passes no bound
        monkeypatch.setattr(_reduce, "_NEAR", -np.inf)
        trusted = _passes(x, agg.geometric_median(20), monkeypatch)[0]  # the other's program is compiled
        assert not np.allclose(trusted, one_by_one, rtol=3e-6, atol=0)


def test_products_are_left_where_they_would_round_more() -> None:
    """Rows of 2**20 numbers, near the bound of what a product may find, against float64; of longer ones, and of other
    numbers than float32, the differences are taken."""
    rule, rng = agg.geometric_median(3), np.random.default_rng(3)
    x = rng.standard_normal(2**20, np.float32) + 0.35 * rng.standard_normal((3, 2**20), np.float32)
    x *= np.array([[1.0], [1.1], [1.3]], np.float32)

    def products(leaf: Any) -> int:
        return str(jax.make_jaxpr(lambda x: agg.aggregate(rule, x))(leaf)).count("dot_general")

    assert products(x) == 2
    z, exact = np.zeros(2**20), x.astype(np.float64)
    for _ in range(3):
        beta = 1 / np.linalg.norm(exact - z, axis=1)
        z = beta @ exact / beta.sum()
    found = np.asarray(agg.aggregate(rule, x))
    assert np.linalg.norm(found - z) < 2e-5 * np.linalg.norm(z)
    assert np.linalg.norm(found - x.mean(axis=0)) > 1e-3 * np.linalg.norm(z)
    longer = jax.ShapeDtypeStruct((3, 2**20 + 1), jnp.float32)
    assert products(longer) == 0
    of_type = {
        kind: stacked.suits_products({"a": jnp.zeros((16, 2**16), kind)}) for kind in ("f4", "f2", "i4")
    }
    assert of_type == {"f4": True, "f2": False, "i4": False}


@pytest.mark.parametrize("name", ["krum", "multi_krum", "nnm"])
def test_large_uploads_have_the_neighbours_of_the_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a product of the uploads as they are, some of them absent."""
    rule, definition = RULES[name]
    _as_if_large(monkeypatch)
    assert agree(directions(rule, program=traced), expected(definition)).all()
    assert not np.any(agg.aggregate(rule, jnp.full((3, 5), jnp.nan)))
    program = str(jax.make_jaxpr(lambda x: agg.aggregate(rule, x))(X[0]))
    assert "cond[" in program, "always around the middle"


@pytest.mark.parametrize("name", ["krum", "multi_krum", "nnm"])
@pytest.mark.parametrize("anything", [np.nan, np.inf, 7.0])
def test_empty_slots_of_large_uploads_may_hold_anything(
    name: str, anything: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also their weights and losses; with every slot empty, zeros."""
    x = np.random.default_rng(6).normal(size=(9, 4)).astype(np.float32)
    x[:2] = x.mean(axis=0) + np.array([[0.0], [0.01]])  # nearest to the others, where these two are present
    rule, weights = RULES[name][0], np.arange(1.0, 10.0, dtype=np.float32)
    expected = np.asarray(agg.aggregate(rule, x[2:], weights[2:]))
    _as_if_large(monkeypatch)

    def direction(present: np.ndarray) -> np.ndarray:
        delta, weight = (np.where(present[:, None], x, anything), np.where(present, weights, anything))
        uploads = eh.types.Upload(jnp.asarray(delta), jnp.asarray(weight), jnp.asarray(weight))
        keys = jax.random.split(jax.random.key(0), 9)
        return np.asarray(reduce_uploads(rule, uploads, jnp.asarray(present), (), keys[0], keys)[0])

    here = np.arange(9) >= 2
    np.testing.assert_allclose(direction(here), expected, rtol=1e-5)
    assert not np.any(direction(np.zeros(9, bool)))
    assert not np.allclose(direction(np.ones(9, bool)), expected, rtol=1e-2)


_PLACES = {
    "apart": lambda x: x,
    "colluding": lambda x: np.where(np.arange(9)[:, None] < 3, x[:1], x),
    "alike": lambda x: 1 + 1e-4 * x,
    "one alike": lambda x: np.where(np.arange(9)[:, None] < 6, x[:1] + 3e-4 * x, x),
    "long": lambda x: 5e18 + 1e18 * x,
}


@pytest.mark.parametrize("place", _PLACES)
def test_neighbours_of_uploads_that_are_close_are_found_around_the_middle(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five neighbours, by products of the uploads only where these are far above rounding, against float64."""
    x = _PLACES[place](np.random.default_rng(5).normal(size=(9, 50))).astype(np.float32)
    deltas, present = {"a": jnp.asarray(x[:, :20]), "b": jnp.asarray(x[:, 20:])}, jnp.ones(9, bool)
    _as_if_large(monkeypatch)
    key, wide = jax.random.key(0), x.astype(np.float64)
    exact = np.sum((wide[:, None] - wide[None]) ** 2, axis=2) / 64
    middle, near = stacked.distances(deltas, present, key), stacked.distances(deltas, present, key, 5)
    is_plain = place in ("apart", "colluding")
    assert np.array_equal(middle, near) != is_plain
    bound = np.sort(exact, axis=1)[:, 5:6]  # the first is an upload's own
    assert np.all(np.abs(near - exact) <= 1e-5 * np.maximum(exact, bound))
    each = stacked.distances(deltas, present, key, 1)
    assert np.array_equal(middle, each) != (place == "apart"), "of colluders, the nearest is at no distance"
    if place in ("alike", "one alike"):
        monkeypatch.setattr(stacked, "_NEAR", -np.inf)
        trusted = np.asarray(stacked.distances(deltas, present, key, 5))
        assert not np.all(np.abs(trusted - exact) <= 1e-5 * np.maximum(exact, bound))


def test_neighbours_by_products_of_long_uploads_are_as_exact_as_documented() -> None:
    """Rows of 2**20 numbers near the bound of what a product may find, against float64."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(2**20, np.float32) + 0.27 * rng.standard_normal((6, 2**20), np.float32)
    present, key, wide = jnp.ones(6, bool), jax.random.key(0), x.astype(np.float64)
    exact = np.array([[np.sum((a - b) ** 2) for b in wide] for a in wide]) / 64
    near = stacked.distances(jnp.asarray(x), present, key, 3)
    assert not np.array_equal(near, stacked.distances(jnp.asarray(x), present, key)), "around the middle"
    bound = np.sort(exact, axis=1)[:, 3:4]
    assert np.all(np.abs(near - exact) <= 5e-5 * np.maximum(exact, bound))
    assert np.any(np.abs(near - exact) > 1e-7 * exact)


def test_a_large_upload_makes_no_choice_where_each_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of such models, several runs train side by side, and a choice would go both ways."""
    x = np.random.default_rng(8).normal(size=(9, 5)).astype(np.float32)

    def choices(rule: Any) -> int:
        program = jax.make_jaxpr(lambda x: agg.aggregate(rule, x))(x)
        return str(program).count("cond[")

    for make in (
        lambda: agg.krum(1),
        lambda: agg.multi_krum(1),
        lambda: agg.nnm(1, then=agg.krum(1)),
        lambda: agg.geometric_median(3),
    ):
        small = choices(make())
        monkeypatch.setattr(stacked, "_LARGE", 0)
        monkeypatch.setattr(stacked, "_SHORT", 5)
        assert choices(make()) == small
        monkeypatch.setattr(stacked, "_SHORT", 4)
        assert choices(make()) > small
        monkeypatch.undo()


def test_an_aggregator_of_large_uploads_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a program, too, and also one that does not hash."""
    _as_if_large(monkeypatch)
    x, traced = np.random.default_rng(9).normal(size=(9, 5)).astype(np.float32), list[int]()
    krum = agg.krum(1)

    def apply(uploads: Any, present: Any, state: Any, key: Any) -> Any:
        traced.append(len(traced))
        return krum.apply(uploads, present, state, key)

    rule = krum._replace(apply=apply)
    for _ in range(3):
        found = agg.aggregate(rule, x)
    assert traced == [0]
    listed: Any = [*rule.needs]
    np.testing.assert_array_equal(agg.aggregate(rule._replace(needs=listed), x), found)


def test_an_infinite_empty_slot_is_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round's uploads stand in slots, of which some are empty and hold anything."""
    x = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    rule, ones, keys = agg.geometric_median(3), jnp.ones(6), jax.random.split(jax.random.key(0), 6)
    _as_if_large(monkeypatch)

    def direction(x: np.ndarray, present: list[bool]) -> np.ndarray:
        uploads = eh.types.Upload(jnp.asarray(x), ones[: len(x)], ones[: len(x)])
        state = rule.init(jnp.zeros(4), len(x))
        here = jnp.asarray(present)
        return np.asarray(reduce_uploads(rule, uploads, here, state, keys[0], keys[: len(x)])[0])

    expected = direction(x[:5], [True] * 5)
    for filled in (np.inf, np.nan, 1e30, 7.0):
        x[5] = filled
        np.testing.assert_allclose(direction(x, [True] * 5 + [False]), expected, rtol=2e-6)
    assert not np.allclose(direction(x, [True] * 6), expected, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_buckets_are_means_of_so_many_uploads_dealt_at_random_in_any_order(size: int) -> None:
    """Bucketing before a rule that hands out the buckets themselves: each upload is in one, and few are equal."""
    buckets = eh.types.Stack(
        lambda like, clients: (),
        lambda uploads, present, state, key: (uploads._replace(loss=present.astype(jnp.float32)), state),
    )
    rule, deals = agg.bucketing(size, then=buckets), set[tuple[float, ...]]()
    dealt = jax.jit(rule.apply)
    for case in range(40):
        x, w, s = X[case], WEIGHTS[case].astype(np.float32), LOSSES[case].astype(np.float32)
        here = np.isfinite(x).all(axis=1)
        uploads = eh.types.Upload(np.where(here[:, None], x, 0), w, s)
        for order in (np.arange(CLIENTS), np.random.default_rng(case).permutation(CLIENTS)):
            shuffled = jax.tree.map(lambda leaf, order=order: leaf[order], uploads)
            found = dealt(shuffled, jnp.asarray(here[order]), (), jax.random.key(case))[0]
            if order[0] == 0 and (np.diff(order) == 1).all():
                first = found
        for a, b in zip(first, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        means, weight, full = (np.asarray(part) for part in first)
        count = int(here.sum())
        assert full.sum() == -(-count // size) and (full[: int(full.sum())] == 1).all()
        sums = [np.array(kept) for kept in combinations(np.flatnonzero(here), min(size, count))]
        whole = count // size
        for bucket in range(whole):
            gaps = [np.abs(x[kept].mean(axis=0) - means[bucket]).max() for kept in sums]
            best = sums[int(np.argmin(gaps))]
            assert min(gaps) < 1e-4 * max(1, np.abs(means[bucket]).max())
            assert weight[bucket] == pytest.approx(w[best].sum())
            deals.add(tuple(best))
        assert weight.sum() == pytest.approx(w[here].sum())
    assert len(deals) > {1: 8, 2: 25, 4: 40}[size], "the deal is the same everywhere"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: agg.krum(-1), r"krum\(malicious=\)"),
        (lambda: agg.multi_krum(1, keep=0), r"multi_krum\(keep=\)"),
        (lambda: agg.trimmed_mean(0.5), "share from 0 to below 0.5"),
        (lambda: agg.geometric_median(0), r"geometric_median\(passes=\)"),
        (lambda: agg.geometric_median(nu=0.0), "distance of at least 1e-20"),
        (lambda: agg.geometric_median(start="middle"), "give 'zero' or 'mean'"),  # type: ignore[arg-type]
        (lambda: agg.centered_clipping(0.0), "length above 0"),
        (lambda: agg.trimmed_mean("0.1"), r"fraction='0.1'\): give a share"),  # type: ignore[arg-type]
        (lambda: agg.clip("1"), r"longest='1'\): give a length"),  # type: ignore[arg-type]
        (lambda: agg.clip(10**400), "give a length"),
        (lambda: agg.clip(-1.0), r"clip\(longest=-1.0\): give a length above 0"),
        (lambda: agg.normalize(0.0), r"normalize\(length=0.0\)"),
        (lambda: agg.reject(0.0, agg.mean()), "length above 0"),
        (lambda: agg.bounded_weights(0.5, agg.mean()), "at least 1"),
        (lambda: agg.bucketing(0, agg.mean()), r"bucketing\(size=\)"),
        (
            lambda: agg.nnm(1, agg.risk_weighted(eh.risks.superquantile(0.5))),
            r"nnm\(then=\): this aggregator weights",
        ),
        (lambda: agg.aggregate(agg.mda(10), jnp.ones((30, 2))), "has 30,045,015 sets to try"),
    ],
)
def test_wrong_arguments_get_a_sentence(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(eh.EvenhandError, match=words):
        make()


def test_the_fixtures_of_the_specification() -> None:
    """Ditto's: five updates, one of them malicious."""
    deltas = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
    for rule, wanted in (
        (agg.krum(1), (0, 0)),
        (agg.multi_krum(1), (0.75, 1)),
        (agg.coordinate_median(), (1, 2)),
        (agg.norm_filter(1), (0.75, 1)),
    ):
        assert agg.aggregate(rule, deltas).tolist() == list(wanted)
    longest = jnp.linalg.norm(
        agg.aggregate(agg.clip(then=agg.loss_filter(0)), deltas, losses=jnp.arange(5.0))
    )
    assert float(longest) == pytest.approx(2.0, rel=1e-6)
    chosen = agg.aggregate(agg.loss_filter(1), jnp.eye(4), losses=jnp.array([0.5, 2.0, 1.0, 3.0]))
    assert chosen.tolist() == [0, 1, 0, 0]


def test_the_geometric_median_has_the_numbers_of_the_specification() -> None:
    """RFA's: from the mean a far upload is shed by a factor per pass; from zero it counts for no more than others."""
    corner = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    line = jnp.array([[0.0], [1.0], [10.0]])
    far = jnp.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [1e6, 1e6]])
    paths = (
        (corner, None, (1 / 3, 0.27924078, 0.25269566, 0.23767284)),
        (line, None, (3.6666667, 2.4253898, 1.6227490, 1.1956527, 1.0306645, 1.0009845)),
        (jnp.concatenate([corner, jnp.full((1, 2), 10.0)]), (3, 3, 3, 1), (1.3, 0.49295289, 0.38764956, 0.35263386)),
        (far, None, (250000.0, 100000.0, 35714.3, 12195.1, 4098.4)),
    )  # fmt: skip
    for deltas, weights, path in paths:
        for passes, point in enumerate(path, start=1):
            rule = agg.geometric_median(passes, start="mean")
            given = None if weights is None else jnp.asarray(weights, jnp.float32)
            found = agg.aggregate(rule, deltas, weights=given)
            np.testing.assert_allclose(found, np.full(deltas.shape[1], point), rtol=2e-4)
    for deltas, median in ((corner, (3 - 3**0.5) / 6), (line, 1.0)):
        found = agg.aggregate(agg.geometric_median(60, start="mean"), deltas)
        np.testing.assert_allclose(found, np.full(deltas.shape[1], median), atol=1e-4)
    assert float(jnp.abs(agg.aggregate(agg.geometric_median(2), far)).max()) < 0.2
    heavy = agg.aggregate(agg.geometric_median(200, nu=1e-6), far, weights=jnp.array([1.0, 4.0, 1.0, 2.0]))
    np.testing.assert_allclose(heavy, far[1], atol=1e-3, err_msg="half of the weight")


def test_one_step_of_the_geometric_median_is_no_longer_than_the_harmonic_mean_of_lengths() -> None:
    deltas = jnp.array([[1.0, 0.0], [0.0, 2.0], [100.0, 0.0]])
    one = agg.geometric_median(1)
    for weights, step in (((1, 1, 1), (1.32450331, 0.66225166)), ((0.2, 0.3, 0.5), (1.97183099, 0.84507042))):
        found = agg.aggregate(one, deltas, weights=jnp.asarray(weights, jnp.float32))
        np.testing.assert_allclose(found, step, rtol=1e-5)
        shares = np.asarray(weights) / sum(weights)
        assert np.linalg.norm(found) <= 1.0 / np.sum(shares / np.array([1.0, 2.0, 100.0]))
    longer = agg.aggregate(one, deltas.at[2].multiply(1e4))
    assert float(jnp.linalg.norm(longer - agg.aggregate(one, deltas))) < 0.05
    circle = jnp.array([[3.0, 4.0], [5.0, 0.0], [0.0, -5.0]])
    np.testing.assert_allclose(agg.aggregate(one, circle), circle.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("malicious", [1, 3, 4])
def test_liars_move_the_geometric_median_no_farther_than_its_breakdown_allows(malicious: int) -> None:
    """By 2 (1 - kappa) r / (1 - 2 kappa) from the centre of honest uploads within r, for a share kappa of liars."""
    rng, clients, rule = np.random.default_rng(8), 9, agg.geometric_median(80)
    median = jax.jit(lambda deltas: agg.aggregate(rule, deltas))
    kappa, farthest = malicious / clients, 0.0
    for _ in range(30):
        honest = rng.normal(size=(clients - malicious, 4))
        honest *= rng.random((len(honest), 1)) / np.linalg.norm(honest, axis=1, keepdims=True)
        lies = rng.normal(size=(1, 4)) * 10 ** rng.uniform(-1, 4) + rng.normal(size=(malicious, 4)) * 0.1
        point = median(jnp.asarray(np.concatenate([honest, lies]), jnp.float32))
        farthest = max(farthest, float(np.linalg.norm(point)))
    assert farthest <= 2 * (1 - kappa) / (1 - 2 * kappa)
