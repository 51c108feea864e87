"""``secure(...)``: the sums of the aggregator inside, in whole numbers, with masks and without."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import evenhand as eh
from evenhand import aggregators as agg
from evenhand import communication, rounds
from evenhand.aggregators import stacked
from evenhand.types import Upload

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
RNG = np.random.default_rng(0)
DELTAS = {
    "w": jnp.asarray(RNG.normal(size=(7, 5, 3)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=(7, 2)), jnp.float32),
}
WEIGHTS = jnp.asarray(RNG.integers(1, 200, 7), jnp.float32)
INSIDE = {
    "mean": agg.mean(),
    "geometric median": agg.geometric_median(5),
    "from the mean": agg.geometric_median(3, start="mean"),
    "centred clipping": agg.centered_clipping(0.5, passes=2),
    "clipped mean": agg.clip(0.7),
}


def simulated(rule: Any, **how: Any) -> eh.Run:
    return eh.simulate(eh.algorithms.fedavg(WORK, aggregator=rule), DATA, rounds=3, eval_every=3, **how)


@cache
def with_inside(name: str, masks: bool | None) -> eh.Run:
    """A run with one of these rules: as it is where ``masks`` is None, else in whole numbers, with masks or without."""
    return simulated(INSIDE[name]) if masks is None else simulated(agg.secure(INSIDE[name]), masks=masks)


def numbers(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("name", INSIDE)
def test_the_direction_is_that_of_real_numbers_to_a_millionth(name: str) -> None:
    plain = numbers(agg.aggregate(INSIDE[name], DELTAS, WEIGHTS))
    secure = numbers(agg.aggregate(agg.secure(INSIDE[name]), DELTAS, WEIGHTS))
    np.testing.assert_allclose(secure, plain, atol=1e-6)
    coarse = agg.secure(INSIDE[name], bits=32, largest=2.0**18, cohort=16)
    assert 2e-6 < np.abs(numbers(agg.aggregate(coarse, DELTAS, WEIGHTS)) - plain).max() < 1e-3


@cache
def lifted_in(bits: int) -> tuple[Any, Any]:
    """A secure mean's sum with masks, and what seven clients add to it."""
    rule = agg.secure(agg.mean(), bits=bits, largest=1024.0, cohort=16)
    assert rule.summation is not None and rule.summation.add is not None
    # One program; each operation by itself would be one.
    lift = jax.jit(jax.vmap(lambda one, key: rule.lift(one, (), key)))
    lifted = lift(Upload(DELTAS, WEIGHTS, WEIGHTS), jax.random.split(jax.random.key(0), 7))
    return jax.jit(rule.summation.add), lifted


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("absent", [(), (0, 4), (1, 2, 3, 5, 6)])
def test_masks_change_no_bit_of_a_sum(bits: int, absent: tuple[int, ...]) -> None:
    add, lifted = lifted_in(bits)
    present = jnp.array([k not in absent for k in range(7)])
    masked = add(lifted, present, jax.random.key(1))
    limbs = jax.tree.leaves(jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(present)], lifted))
    for leaf, total in zip(limbs, jax.tree.leaves(masked), strict=True):
        places = [1 << 16 * i for i in range(bits // 16)]
        expected = [
            sum(int(x) * p for x, p in zip(row, places, strict=True)) % 2**bits
            for row in leaf.sum(0).reshape(-1, len(places))
        ]
        found = [
            sum(int(x) * p for x, p in zip(row, places, strict=True))
            for row in np.asarray(total).reshape(-1, len(places))
        ]
        assert found == expected


@pytest.mark.parametrize("name", ["mean", "geometric median"])
def test_a_simulation_with_masks_is_that_without(name: str) -> None:
    masked, alone, plain = (numbers(with_inside(name, masks).params) for masks in (True, False, None))
    assert np.array_equal(masked, alone)
    assert np.abs(masked - plain).max() < 1e-5


@pytest.mark.parametrize("bits", [32, 64])
def test_limbs_of_large_uploads_are_added_apart_to_the_same_sum(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among whole numbers of 64 bits, negative ones fill all limbs."""
    rule = agg.secure(agg.geometric_median(2), bits=bits, largest=2.0**10, cohort=8)
    together = numbers(agg.aggregate(rule, DELTAS, WEIGHTS))
    monkeypatch.setattr(stacked, "_LARGE", 0)
    assert np.array_equal(numbers(agg.aggregate(rule, DELTAS, WEIGHTS)), together)
    assert together.min() < 0 < together.max()


def test_a_sum_beside_limbs_need_not_be_in_limbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of 16 bits, as many as a limb has, beside numbers in limbs."""
    words = agg.mean()._replace(
        lift=lambda upload, public, key: jnp.uint32(3),
        lower=lambda total, state, key: ({"w": total}, state),
        summation=eh.types.Summation(eh.secure.LIMB_BITS),
    )
    both = agg.in_parts([agg.secure(agg.mean()), words])
    deltas, twice = (DELTAS, DELTAS), jnp.stack([WEIGHTS, WEIGHTS], axis=1)
    uploads, present = Upload(deltas, twice, twice), jnp.ones(7, bool)
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), deltas)
    keys, state = jax.random.split(jax.random.key(0), 7), both.init(like, 7)
    monkeypatch.setattr(stacked, "_LARGE", 0)
    (mean, three), _ = agg.reduce_uploads(both, uploads, present, state, keys[0], keys)
    assert three["w"] == 21
    np.testing.assert_allclose(numbers(mean), numbers(agg.aggregate(agg.mean(), DELTAS, WEIGHTS)), atol=1e-6)


def test_the_engine_is_the_readable_twin() -> None:
    rule = agg.secure(agg.geometric_median(2))
    eh.testing.check_algorithm(eh.algorithms.fedavg(WORK, aggregator=rule))


def uniform(limbs: np.ndarray) -> float:
    """The p-value of equally frequent bytes in limbs of 16 bits."""
    return float(
        stats.chisquare(np.bincount(limbs.astype("<u2").view(np.uint8).ravel(), minlength=256)).pvalue
    )


@pytest.mark.parametrize("m", [2, 3, 9])
def test_what_the_server_gets_of_each_client_is_uniform_in_a_simulation_too(m: int) -> None:
    limbs = jnp.asarray(np.random.default_rng(m).integers(0, 50, (m, 3000, 4)), jnp.uint32)
    first, again = (np.asarray(eh.secure.masked_uploads(limbs, jax.random.key(seed))) for seed in (0, 1))
    assert uniform(np.asarray(limbs)) < 1e-4
    for k in range(m):
        assert uniform(first[k]) > 1e-4 < uniform(again[k])
        assert uniform((first[k] - again[k]) % 2**16) > 1e-4  # other masks with another key
        assert uniform((first[k] - first[k - 1]) % 2**16) > 1e-4  # and for another client
    # All uploads together still have the clients' own masks.
    assert uniform(first.sum(axis=0) % 2**16) > 1e-4


def test_a_round_with_one_client_or_too_many_is_lost() -> None:
    rule = agg.secure(agg.mean(), cohort=6)
    assert not numbers(agg.aggregate(rule, DELTAS, WEIGHTS)).any()
    many = agg.secure(agg.mean())
    assert not agg.aggregate(many, jnp.ones((65_540, 1))).any()  # 4, where clients are counted in one limb
    six = jax.tree.map(lambda leaf: leaf[:6], DELTAS)
    assert numbers(agg.aggregate(rule, six, WEIGHTS[:6])).any()
    for masks in (True, False):
        one = jax.tree.map(lambda leaf: leaf.at[1:].set(jnp.nan), DELTAS)
        assert not numbers(agg.aggregate(many, one, WEIGHTS, masks=masks)).any()


def test_what_is_longer_than_the_largest_is_clipped() -> None:
    rule = agg.secure(agg.mean(), largest=1.0)
    found = agg.aggregate(rule, jnp.array([[0.5], [5.0]]))
    np.testing.assert_allclose(found, [0.75], atol=1e-6)


def test_rounding_is_drawn_with_the_seed() -> None:
    def of(seed: int) -> np.ndarray:
        rule = agg.secure(agg.mean(), bits=32, largest=2.0**18, cohort=16)
        return numbers(agg.aggregate(rule, DELTAS, WEIGHTS, seed=seed))

    assert (of(0) == of(0)).all() and (of(0) != of(1)).any()


def test_numbers_on_the_wire_are_counted_in_their_bits() -> None:
    short = agg.secure(agg.mean(), bits=32, largest=1024.0, cohort=16)
    runs = (with_inside("mean", None), with_inside("mean", False), simulated(short))
    plain, wide, narrow = (run.info["floats"] for run in runs)
    count = plain["up"]
    assert narrow["up"] == count + 1  # how many clients there are is a number, too
    assert wide["up"] == 2 * (count + 1)


@pytest.mark.parametrize(
    ("rule", "sums"),
    [
        (agg.mean(), 0),
        (agg.geometric_median(4), 0),
        (agg.secure(agg.mean()), 1),
        (agg.secure(agg.geometric_median(4)), 4),
        (agg.reject(1000.0, agg.secure(agg.mean())), 1),
        # Those of a deployment, whichever way a simulation adds.
        (agg.secure(agg.geometric_median(4)).unmasked, 4),
    ],
    ids=["mean", "median", "masked mean", "masked median", "inside another", "without masks"],
)
def test_each_pass_under_masks_is_a_secure_sum(rule: Any, sums: int) -> None:
    one_phase = eh.algorithms.fedavg(WORK, aggregator=rule)
    two_phases = eh.algorithms.feddane(WORK, mu=0.1, aggregator=rule)
    for method, phases in ((one_phase, 1), (two_phases, 2)):
        rows: Any = (DATA.train.x, DATA.train.y)
        wires = rounds.wires(method, MODEL.init(jax.random.key(0)), rows, 8, DATA.num_clients)
        traffic = communication.traffic(method, wires)
        assert sum(exchange.secure_sums for exchange in traffic) == phases * sums


def test_secure_sums_are_counted_over_the_run_so_far() -> None:
    method = eh.algorithms.fedavg(
        WORK, aggregator=agg.secure(agg.geometric_median(2), bits=32, largest=1024.0, cohort=16)
    )
    runs = eh.simulation.iterate(method, DATA, rounds=3, eval_every=2)
    assert [run.info["secure_sums"] for run in runs] == [0, 4, 6]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: agg.secure(agg.krum(1)), r"must see each upload.*geometric_median\(\)"),
        (lambda: agg.secure(agg.nnm(1, then=agg.mean())), "must see each upload"),
        (lambda: agg.secure(agg.risk_weighted(eh.risks.tilted(1.0))), "in the clear"),
        (lambda: agg.secure(agg.bounded_weights(2.0, then=agg.mean())), "in the clear"),
        (lambda: agg.bounded_weights(2.0, then=agg.secure(agg.mean())), "would see the weights"),
        (lambda: agg.secure(agg.secure(agg.mean())), "secure already"),
        (lambda: agg.secure(agg.mean(), bits=32), "too little would be left"),
        (
            lambda: eh.algorithms.side_by_side(
                {
                    "a": eh.algorithms.fedavg(WORK),
                    "b": eh.algorithms.fedavg(WORK, aggregator=agg.secure(agg.mean())),
                }
            ),
            "to all of them, or to none",
        ),
        (
            lambda: agg.aggregate(agg.secure(agg.mean()), jnp.ones((65_540, 1)), masks=True),
            "65,540 clients: at most 65,536",
        ),
    ],
)
def test_what_cannot_be_secure_is_refused_with_what_to_take(make: Any, sentence: str) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        make()


def test_methods_side_by_side_may_share_secure_sums() -> None:
    rule = agg.secure(agg.mean())
    both = eh.algorithms.side_by_side({name: eh.algorithms.fedavg(WORK, aggregator=rule) for name in "ab"})
    run = eh.simulate(both, DATA, rounds=3, eval_every=3)
    alone = with_inside("mean", False)
    np.testing.assert_array_equal(numbers(run.params[0]), numbers(run.params[1]))  # the same keys
    np.testing.assert_allclose(numbers(run.params[0]), numbers(alone.params), atol=1e-6)
    assert run.info["floats"]["up"] == 2 * alone.info["floats"]["up"]


def test_parts_that_share_a_sum_need_as_many_clients_as_any_of_them() -> None:
    """Fewer would add too little noise for one of them."""
    parts = [
        eh.privacy.discrete_mean(1.0, noise_multiplier=1.0, rate=0.5, fewest=fewest) for fewest in (3, 6, 4)
    ]
    summation = agg.in_parts(parts).summation
    assert summation is not None and summation.fewest == 6


@pytest.mark.parametrize(
    "part",
    [
        eh.privacy.noisy_mean(1.0, noise_multiplier=1.0, rate=0.5),
        eh.privacy.discrete_mean(1.0, noise_multiplier=1.0, rate=0.5, fewest=3),
    ],
    ids=["the server's", "the clients'"],
)
def test_parts_of_a_sum_have_noise_of_their_own(part: Any) -> None:
    """With the same noise, the difference of two parts would give away that of what clients send."""
    rule, key, zeros = agg.in_parts([part, part]), jax.random.key(0), jnp.zeros((4, 20))
    uploads = Upload((zeros, zeros), jnp.ones((4, 2)), jnp.ones((4, 2)))
    state = rule.init((zeros[0], zeros[0]), 8)
    (one, other), _ = agg.reduce_uploads(
        rule, uploads, jnp.ones(4, bool), state, key, jax.random.split(key, 4)
    )
    assert np.all(one != 0) and abs(np.corrcoef(one, other)[0, 1]) < 0.7


def test_a_lost_round_leaves_the_state_of_the_rule_as_it_was():
    rule = agg.secure(agg.centered_clipping(1.0))
    state, key = jnp.full(2, 0.5), jax.random.key(0)
    uploads = Upload(jnp.ones((3, 2)), jnp.ones(3), jnp.ones(3))
    for here, changes in ((jnp.array([True, False, False]), False), (jnp.ones(3, bool), True)):
        found, after = agg.reduce_uploads(rule, uploads, here, state, key, jax.random.split(key, 3))
        assert np.array_equal(after, state) != changes and np.any(found) == changes


def test_rounding_draws_by_itself_and_no_bound_on_a_client_is_kept():
    """Numbers below one step, equal to the draws of the rule inside: by the same draws, none would be rounded up."""
    step = 2.0 ** -eh.secure.fixed_point().fraction
    inside = eh.types.Sum(
        lambda like, clients: (),
        lambda upload, public, key: step * jax.random.uniform(key, (1,)),
        lambda total, state, key: (total, state),
        publish=lambda state: (),
    )
    found = agg.aggregate(agg.secure(inside), jnp.zeros((200, 1)))
    assert 60 < float(found[0]) / step < 140
    assert agg.secure(agg.mean()._replace(sensitivity=lambda *_: 1.0)).sensitivity is None
