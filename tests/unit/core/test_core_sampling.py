"""How cohorts are drawn: frequencies against exact probabilities, and what the average estimates."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.aggregators import aggregate, mean
from evenhand.errors import EvenhandError
from evenhand.sampling import _distinct_owners, cyclic, fixed, poisson, proportional, stratified, uniform
from evenhand.streams import Purpose, stream
from evenhand.types import Sampling

_SIZES = np.array([1, 3, 8, 17, 5, 12])
_P = _SIZES / _SIZES.sum()
_N, _M, _ROUNDS = len(_SIZES), 3, 20_000
_SCHEMES: dict[str, Sampling] = {
    "uniform": uniform(),
    "uniform with replacement": uniform(replace=True),
    "proportional": proportional(),
    "proportional without replacement": proportional(replace=False),
}


@cache
def _cohorts(name: str) -> np.ndarray:
    """The cohorts of all rounds, ``(rounds, m)``."""
    sizes = jnp.asarray(_SIZES, jnp.int32)
    root = jax.random.key(11)
    draw = jax.vmap(lambda t: _SCHEMES[name].draw(stream(root, Purpose.COHORT, t), sizes, _M).ids)
    return np.asarray(jax.jit(draw)(jnp.arange(_ROUNDS)))


def _ordered_draws(p: np.ndarray, m: int) -> dict[tuple[int, ...], float]:
    """The exact probability of each sequence of ``m`` successive draws without replacement."""
    draws: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(p)), m):
        probability, left = 1.0, 1.0
        for k in order:
            probability *= p[k] / left
            left -= p[k]
        draws[order] = probability
    return draws


def _inclusion(p: np.ndarray, m: int) -> np.ndarray:
    chance = np.zeros(len(p))
    for order, probability in _ordered_draws(p, m).items():
        chance[list(order)] += probability
    return chance


def _agrees(counts: np.ndarray, trials: int, p: np.ndarray) -> bool:
    """Whether binomial counts lie within 4.5 standard deviations of their expectation."""
    return bool((np.abs(counts - trials * p) <= 4.5 * np.sqrt(trials * p * (1 - p)) + 1e-9).all())


def _counts(clients: np.ndarray) -> np.ndarray:
    return np.bincount(clients.ravel(), minlength=_N)


@pytest.mark.parametrize("name", _SCHEMES)
def test_cohorts_have_the_right_form(name: str) -> None:
    cohorts = _cohorts(name)
    assert cohorts.dtype == np.int32
    assert cohorts.min() >= 0
    assert cohorts.max() < _N
    distinct = np.array([len(set(cohort)) == _M for cohort in cohorts.tolist()])
    assert distinct.all() == ("without" in name or name == "uniform")
    assert _SCHEMES[name].repeats != distinct.all()


@pytest.mark.parametrize(
    ("name", "each_draw"),
    [("uniform with replacement", np.full(_N, 1 / _N)), ("proportional", _P)],
)
def test_draws_with_replacement(name: str, each_draw: np.ndarray) -> None:
    cohorts = _cohorts(name)
    for slot in range(_M):
        assert _agrees(_counts(cohorts[:, slot]), _ROUNDS, each_draw)
    pairs = np.bincount(cohorts[:, 0] * _N + cohorts[:, 1], minlength=_N * _N)
    assert _agrees(pairs, _ROUNDS, np.outer(each_draw, each_draw).ravel()), (
        "the draws of a round are independent"
    )
    wrong = _P if name == "uniform with replacement" else np.full(_N, 1 / _N)
    assert not _agrees(_counts(cohorts[:, 0]), _ROUNDS, wrong)


def test_uniform_without_replacement() -> None:
    cohorts = _cohorts("uniform")
    assert _agrees(_counts(cohorts), _ROUNDS, np.full(_N, _M / _N))
    subsets = list(itertools.combinations(range(_N), _M))
    place = {subset: i for i, subset in enumerate(subsets)}
    counts = np.bincount([place[tuple(sorted(c))] for c in cohorts.tolist()], minlength=len(subsets))
    assert _agrees(counts, _ROUNDS, np.full(len(subsets), 1 / len(subsets))), "all subsets are equally likely"
    assert not _agrees(_counts(cohorts), _ROUNDS, _inclusion(_P, _M))


def test_proportional_without_replacement() -> None:
    cohorts = _cohorts("proportional without replacement")
    exact = _ordered_draws(_P, _M)
    assert _agrees(_counts(cohorts), _ROUNDS, _inclusion(_P, _M))
    assert _agrees(_counts(cohorts[:, 0]), _ROUNDS, _P), "the first draw is proportional"
    place = {order: i for i, order in enumerate(exact)}
    counts = np.bincount([place[tuple(c)] for c in cohorts.tolist()], minlength=len(exact))
    assert _agrees(counts, _ROUNDS, np.array(list(exact.values())))
    naive = np.minimum(_M * _P, 1.0)
    assert not _agrees(_counts(cohorts), _ROUNDS, naive), "the chance to take part is not proportional"


@pytest.mark.parametrize("name", _SCHEMES)
def test_rounds_are_independent(name: str) -> None:
    first = _cohorts(name)[:, 0]
    marginal = _P if name.startswith("proportional") else np.full(_N, 1 / _N)
    joint = np.outer(marginal, marginal).ravel()
    assert _agrees(np.bincount(first[:-1] * _N + first[1:], minlength=_N * _N), _ROUNDS - 1, joint)
    assert not _agrees(np.bincount(first * _N + first, minlength=_N * _N), _ROUNDS, joint)


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (uniform(), _SIZES),
        (uniform(weighted=False), np.ones(_N)),
        (proportional(), np.ones(_N)),
        (proportional(weighted=True), _SIZES),
    ],
)
def test_weights_are_sizes_or_equal(sampling: Sampling, weights: np.ndarray) -> None:
    found = sampling.weight(jnp.asarray(_SIZES, jnp.int32))
    assert found.dtype == jnp.float32
    assert found.tolist() == weights.tolist()


_VALUES = np.array([4.0, -1.0, 0.5, 2.0, 10.0, -3.0])


def _averages(name: str) -> np.ndarray:
    """The server's average of ``_VALUES`` in each round."""
    cohorts = _cohorts(name)
    weights = np.asarray(_SCHEMES[name].weight(jnp.asarray(_SIZES, jnp.int32)))[cohorts]
    average = jax.vmap(lambda value, weight: aggregate(mean(), value, weight))
    return np.asarray(average(jnp.asarray(_VALUES[cohorts], jnp.float32), jnp.asarray(weights)), np.float64)


def _close_in_the_mean(averages: np.ndarray, expected: float) -> bool:
    return abs(averages.mean() - expected) <= 4.5 * averages.std() / np.sqrt(len(averages))


def test_scheme_a_is_unbiased() -> None:
    averages = _averages("proportional")
    assert _close_in_the_mean(averages, float(_P @ _VALUES))
    assert not _close_in_the_mean(averages, float(_VALUES.mean()))


def test_scheme_b_is_a_ratio_estimate() -> None:
    subsets = [list(subset) for subset in itertools.combinations(range(_N), _M)]
    exact = float(np.mean([np.average(_VALUES[s], weights=_SIZES[s]) for s in subsets]))
    averages = _averages("uniform")
    assert _close_in_the_mean(averages, exact)
    # Its expectation is sum p_k v_k only where sizes are equal or all clients take part...
    assert not _close_in_the_mean(averages, float(_P @ _VALUES))
    # ... but numerator and denominator are each unbiased.
    sums = (_SIZES * _VALUES)[_cohorts("uniform")].sum(axis=1)
    assert _close_in_the_mean(sums, _M / _N * float(_SIZES @ _VALUES))
    all_clients = aggregate(mean(), jnp.asarray(_VALUES, jnp.float32), uniform().weight(jnp.asarray(_SIZES)))
    assert float(all_clients) == pytest.approx(float(_P @ _VALUES), rel=1e-6)


def test_scheme_b_with_equal_sizes_is_unbiased() -> None:
    values = _VALUES[_cohorts("uniform")].mean(axis=1)
    assert _close_in_the_mean(values, float(_VALUES.mean()))
    assert not _close_in_the_mean(values, float(_P @ _VALUES))


@pytest.mark.parametrize("sampling", [uniform(), proportional(replace=False)])
def test_a_cohort_of_all_clients_holds_each_once_in_order(sampling: Sampling) -> None:
    cohort = sampling.draw(jax.random.key(0), jnp.asarray(_SIZES, jnp.int32), _N).ids
    assert cohort.tolist() == list(range(_N))


@pytest.mark.parametrize("sampling", [uniform(replace=True), proportional()])
def test_as_many_draws_as_clients_with_replacement_miss_some(sampling: Sampling) -> None:
    cohorts = [
        sampling.draw(jax.random.key(seed), jnp.asarray(_SIZES, jnp.int32), _N).ids.tolist()
        for seed in range(5)
    ]
    assert any(len(set(cohort)) < _N for cohort in cohorts)


def _largest_intermediate(sampling: Sampling, clients: int, m: int) -> int:
    """The largest array that drawing a cohort makes, in numbers."""
    sizes = jax.ShapeDtypeStruct((clients,), jnp.int32)
    program = jax.make_jaxpr(lambda key, sizes: sampling.draw(key, sizes, m))(jax.random.key(0), sizes)
    pending, largest = [program.jaxpr], 0
    while pending:
        jaxpr = pending.pop()
        for equation in jaxpr.eqns:
            largest = max([largest, *(variable.aval.size for variable in equation.outvars)])
            pending += [sub.jaxpr for sub in equation.params.values() if hasattr(sub, "jaxpr")]
    return largest


def test_a_uniform_cohort_costs_nothing_per_client() -> None:
    assert _largest_intermediate(uniform(), 3_000_000, 10) <= 32
    assert _largest_intermediate(uniform(replace=True), 3_000_000, 10) <= 32
    assert _largest_intermediate(proportional(replace=False), 3_000_000, 10) >= 3_000_000, "the measure works"


@pytest.mark.parametrize("sampling", [proportional(), proportional(replace=False)])
@pytest.mark.parametrize(("clients", "m"), [(6, 3), (6, 6), (5000, 20)])
def test_looking_up_in_the_table_is_drawing(sampling: Sampling, clients: int, m: int) -> None:
    sizes = jnp.asarray(np.resize(_SIZES, clients), jnp.int32)
    assert sampling.tabulate is not None and sampling.look_up is not None
    table = sampling.tabulate(sizes)
    for seed in range(5):
        key = jax.random.key(seed)
        assert sampling.look_up(key, table, m).ids.tolist() == sampling.draw(key, sizes, m).ids.tolist()
    moved = sampling.tabulate(sizes[::-1])
    assert (
        m == clients
        or sampling.look_up(key, moved, m).ids.tolist() != sampling.draw(key, sizes, m).ids.tolist()
    )


def test_distinct_draws_of_many_clients_are_successive_draws() -> None:
    """With few clients the two ways to draw without replacement have the same exact probabilities."""
    last, p = jnp.cumsum(jnp.asarray(_SIZES, jnp.int32)), _P
    keys = jax.random.split(jax.random.key(4), _ROUNDS)
    cohorts = np.asarray(jax.jit(jax.vmap(lambda key: _distinct_owners(key, last, 2)))(keys))
    exact = _ordered_draws(p, 2)
    assert len(exact) == 30
    for order, chance in exact.items():
        assert _agrees(np.array([(cohorts == order).all(axis=1).sum()]), _ROUNDS, np.array([chance])), order
    evenly = _ordered_draws(np.full(_N, 1 / _N), 2)
    assert not all(
        _agrees(np.array([(cohorts == order).all(axis=1).sum()]), _ROUNDS, np.array([chance]))
        for order, chance in evenly.items()
    )


def test_distinct_draws_are_distinct_even_where_one_client_has_nearly_all_rows() -> None:
    sizes = jnp.ones(5000, jnp.int32).at[17].set(2**20)
    cohort = proportional(replace=False).draw(jax.random.key(0), sizes, 100).ids.tolist()
    assert len(set(cohort)) == 100 and 17 in cohort and max(cohort) < 5000


def test_cohorts_of_millions_of_clients_are_distinct_and_spread() -> None:
    clients, m = 2**21 + 11, 1000
    ones = jnp.ones(clients, jnp.int32)
    for sampling in (uniform(), proportional(), proportional(replace=False)):
        cohort = np.asarray(sampling.draw(jax.random.key(1), ones, m).ids)
        assert len(np.unique(cohort)) >= (m if not sampling.repeats else 0.99 * m)
        assert cohort.min() >= 0
        assert cohort.max() < clients
        quarters = np.bincount(cohort * 4 // clients, minlength=4)
        assert _agrees(quarters, m, np.full(4, 0.25))


def test_sizes_may_sum_to_as_much_as_int32_can_count() -> None:
    sizes = jnp.array([2**30, 1, 2**30 - 2], jnp.int32)
    cohort = np.asarray(proportional().draw(jax.random.key(2), sizes, 4000).ids)
    assert _agrees(np.bincount(cohort, minlength=3)[[0, 2]], 4000, np.array([0.5, 0.5]))


# --- drawn among the clients that are present ---------------------------------------------------------------------

_THERE = np.array([True, False, True, True, False, True])
_KINDS = {**_SCHEMES, "poisson": poisson(0.4)}


def _among(sampling: Sampling, present: np.ndarray, m: int, rounds: int = _ROUNDS) -> tuple[np.ndarray, ...]:
    """``(ids, present)`` of many rounds."""
    among = sampling.among
    assert among is not None
    root, sizes = jax.random.key(11), jnp.asarray(_SIZES, jnp.int32)
    draw = jax.vmap(lambda t: among(stream(root, Purpose.COHORT, t), sizes, jnp.asarray(present), m))
    cohort = jax.jit(draw)(jnp.arange(rounds))
    return np.asarray(cohort.ids), np.asarray(cohort.present)


@pytest.mark.parametrize("name", _KINDS)
@pytest.mark.parametrize(("clients", "m"), [(6, 3), (6, 6), (5000, 20)])
def test_with_everybody_present_the_cohort_is_the_usual_one(name: str, clients: int, m: int) -> None:
    sampling, sizes = _KINDS[name], jnp.asarray(np.resize(_SIZES, clients), jnp.int32)
    assert sampling.among is not None
    for seed in range(3):
        key = jax.random.key(seed)
        usual, among = sampling.draw(key, sizes, m), sampling.among(key, sizes, jnp.ones(clients, bool), m)
        assert usual.ids.tolist() == among.ids.tolist()
        assert usual.present.tolist() == among.present.tolist()
    lone = sampling.among(key, sizes, jnp.arange(clients) == 1, m)
    assert set(lone.ids[lone.present].tolist()) <= {1}


@pytest.mark.parametrize("name", _SCHEMES)
def test_a_cohort_among_those_present_is_that_of_a_federation_of_them(name: str) -> None:
    """Each ordered cohort has its exact probability; that of all clients would have another."""
    m, here = 2, np.flatnonzero(_THERE)
    ids, there = _among(_SCHEMES[name], _THERE, m)
    assert there.all() and _THERE[ids].all()
    p = np.where(_THERE, _SIZES if "proportional" in name else 1.0, 0.0)
    p = p / p.sum()
    if _SCHEMES[name].repeats:
        exact = {(i, j): p[i] * p[j] for i in here for j in here}
    else:
        exact = _ordered_draws(p[here], m)
        exact = {(here[i], here[j]): chance for (i, j), chance in exact.items()}
    counts = np.array([((ids[:, 0] == i) & (ids[:, 1] == j)).sum() for i, j in exact])
    assert _agrees(counts, _ROUNDS, np.array(list(exact.values())))
    assert not _agrees(
        counts, _ROUNDS, np.roll(list(exact.values()), 1) * (1 + 0.3 * np.sin(range(len(exact))))
    )


@pytest.mark.parametrize("name", _SCHEMES)
def test_fewer_present_than_the_cohort_leave_slots_empty_and_nobody_leaves_all(name: str) -> None:
    lone = np.arange(_N) == 4
    for present, m in ((lone, 3), (lone, _N), (np.zeros(_N, bool), 3)):
        ids, there = _among(_SCHEMES[name], present, m, rounds=20)
        assert ids.min() >= 0 and ids.max() < _N
        assert all(present[cohort[filled]].all() for cohort, filled in zip(ids, there, strict=True))
        if _SCHEMES[name].repeats:
            assert (there == present.any()).all(), "those that are there fill all slots"
        else:
            assert (there.sum(axis=1) == min(m, present.sum())).all()
            assert all(len(set(c[f])) == f.sum() for c, f in zip(ids, there, strict=True))


def test_few_present_of_many_clients_are_found_without_end() -> None:
    """Drawing until 20 of 5000 clients differ would never end with 3 there, nor if two draws are one program."""
    sampling, sizes = proportional(replace=False), jnp.ones(5000, jnp.int32)
    among = sampling.among
    assert among is not None
    present = jnp.stack([jnp.arange(5000) % 2000 == 7, jnp.arange(5000) % 2 == 0])
    draw = jax.jit(jax.vmap(lambda there: among(jax.random.key(0), sizes, there, 20)))
    cohort = draw(present)
    assert cohort.present.sum(axis=1).tolist() == [3, 20]
    assert np.take_along_axis(np.asarray(present), np.asarray(cohort.ids), axis=1)[cohort.present].all()


def test_each_client_that_is_present_has_its_chance_under_poisson() -> None:
    ids, there = _among(poisson(0.4), _THERE, 0)
    counts = np.bincount(ids[there], minlength=_N)
    assert not counts[~_THERE].any()
    assert _agrees(counts[_THERE], _ROUNDS, np.full(4, 0.4))
    assert not _agrees(counts[_THERE], _ROUNDS, np.full(4, 0.4 * _N / 4)), "no more often than with all there"
    both = ((ids == 0) & there).any(1) & ((ids == 2) & there).any(1)
    assert _agrees(np.array([both.sum()]), _ROUNDS, np.array([0.16]))


def test_samplings_whose_promise_counts_on_all_clients_cannot_draw_among_some() -> None:
    assert fixed(0.5).among is None
    assert cyclic().among is None and cyclic().scheduled is not None


def test_a_draw_among_many_clients_makes_no_array_larger_than_they_are() -> None:
    for sampling in _KINDS.values():
        among = sampling.among
        assert among is not None
        whole = sampling._replace(draw=lambda key, sizes, m, among=among: among(key, sizes, sizes > 1, m))
        assert _largest_intermediate(whole, 100_000, 10) <= 2 * 100_000


# --- groups -------------------------------------------------------------------------------------------------

_GROUPS = ("a", "b", "a", "a", "b", "c")


@pytest.mark.parametrize(("m", "places"), [(4, (2, 1, 1)), (5, (2, 2, 1)), (6, (3, 2, 1))])
def test_each_group_has_its_places_and_its_clients_equal_chances(m: int, places: tuple[int, ...]) -> None:
    """Of 3, 2 and 1 clients; of 5 places they would have 2.5, 1.67 and 0.83."""
    sampling, sizes = stratified(_GROUPS), jnp.asarray(_SIZES, jnp.int32)
    draw = jax.vmap(lambda t: sampling.draw(stream(jax.random.key(5), Purpose.COHORT, t), sizes, m))
    ids, present, _ = (np.asarray(leaf) for leaf in jax.jit(draw)(jnp.arange(_ROUNDS)))
    assert present.all() and all(len(set(cohort)) == m for cohort in ids[:200].tolist())
    for group, count in zip("abc", places, strict=True):
        members = np.flatnonzero(np.array(_GROUPS) == group)
        assert (np.isin(ids, members).sum(axis=1) == count).all()
        shares = np.bincount(ids.ravel(), minlength=_N)[members]
        assert _agrees(shares, _ROUNDS, np.full(len(members), count / len(members)))
    if m == 4:
        both = np.isin(ids, [0, 2]).sum(axis=1) == 2  # of a group, each pair is as likely
        assert _agrees(np.array([both.sum()]), _ROUNDS, np.array([1 / 3]))
        assert not _agrees(np.array([both.sum()]), _ROUNDS, np.array([4 / 6 * 3 / 5])), "as drawn of all"


def test_groups_keep_their_places_among_the_clients_that_are_present() -> None:
    sampling, sizes = stratified(_GROUPS), jnp.asarray(_SIZES, jnp.int32)
    assert sampling.among is not None
    cohort = sampling.among(jax.random.key(3), sizes, jnp.ones(_N, bool), 4)
    drawn = sampling.draw(jax.random.key(3), sizes, 4)
    assert cohort.ids.tolist() == drawn.ids.tolist() and cohort.present.all()
    present = jnp.array([True, False, False, True, False, True])
    cohort = sampling.among(jax.random.key(3), sizes, present, 4)
    assert sorted(np.asarray(cohort.ids)[np.asarray(cohort.present)].tolist()) == [0, 3, 5]
    assert cohort.present.sum() == 3, "nobody of the second group is there, and nobody takes its place"


def test_groups_that_fit_no_cohort_or_no_data_are_refused() -> None:
    draw = stratified(_GROUPS).draw
    with pytest.raises(
        EvenhandError, match="a cohort of 2 has no place for group 'c', which has 1 of 6 clients"
    ):
        draw(jax.random.key(0), jnp.ones(6), 2)
    with pytest.raises(EvenhandError, match="the data have 7 clients, but there are groups for 6"):
        draw(jax.random.key(0), jnp.ones(7), 3)
    wrong: list[Any] = [(), "abc", None, ((0, 1), (1, 0)), (0.5, 1.0), tuple(range(300))]
    for groups in wrong:
        with pytest.raises(EvenhandError, match="number or the name of its group"):
            stratified(groups)
    assert stratified([0, 0, 1]).draw is stratified((0, 0, 1)).draw  # pyright: ignore[reportArgumentType]
    sizes = jnp.array([1, 2])
    assert stratified((0, 1)).weight(sizes).tolist() == [1.0, 2.0]
    assert stratified((0, 1), weighted=False).weight(sizes).tolist() == [1.0, 1.0]


def test_a_method_that_draws_by_groups_obeys_the_contract() -> None:
    model = eh.testing.toy_model()
    clients = eh.testing.toy_data().num_clients
    groups = tuple(k % 2 for k in range(clients))
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=4)
    eh.testing.check_algorithm(eh.algorithms.fedavg(work, sampling=stratified(groups)))
