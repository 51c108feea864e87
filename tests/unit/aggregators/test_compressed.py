"""``quantized(...)`` and ``top_k(...)``: what clients send, what they keep, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import evenhand as eh
from evenhand import aggregators as agg
from evenhand import communication, rounds
from evenhand.aggregators import aggregate
from evenhand.simulation import Checkpoint
from evenhand.streams import Purpose, keys_of, stream
from evenhand.types import Aggregator, Attack, Compression

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=8)
ROWS: Any = (DATA.train.x, DATA.train.y)
RNG = np.random.default_rng(0)
DELTAS = {
    "w": jnp.asarray(RNG.normal(size=(7, 5, 3)), jnp.float32),
    "b": jnp.asarray(0.01 * RNG.normal(size=(7, 4)), jnp.float32),
}
WEIGHTS = jnp.asarray(RNG.integers(1, 20, 7), jnp.float32)
THEN = {
    "mean": agg.mean(),
    "median": agg.geometric_median(3),
    "clip": agg.clip(0.5),
    "krum": agg.krum(1),
    "nnm": agg.nnm(1, then=agg.trimmed_mean(0.2)),
    "momentum": agg.centered_clipping(1.0),
    "losses": agg.risk_weighted(eh.risks.tilted(1.0)),
}


def numbers(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def compression_of(rule: Aggregator) -> Compression:
    assert rule.compression is not None
    return rule.compression


def shorten_of(rule: Aggregator) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    shorten = compression_of(rule).shorten
    assert shorten is not None
    return shorten


def direction(rule: Any, seed: int = 0) -> np.ndarray:
    return numbers(aggregate(rule, DELTAS, WEIGHTS, jnp.ones(7), seed=seed))


# --- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THEN)
def test_everything_sent_is_what_follows_alone(name: str) -> None:
    then = THEN[name]
    whole = agg.top_k(1.0, then=then)
    np.testing.assert_array_equal(direction(whole), direction(then))
    fine, coarse = (direction(agg.quantized(bits, then=then)) for bits in (16, 3))
    np.testing.assert_allclose(fine, direction(then), atol=3e-3 if name == "krum" else 1e-3)
    if name != "losses":  # all the same losses, so that it is the mean
        assert np.abs(coarse - direction(then)).max() > 3e-3
        assert np.abs(direction(agg.top_k(0.3, then=then)) - direction(then)).max() > 3e-3


def test_a_compression_may_stand_before_or_behind_what_the_server_does() -> None:
    """Clients shorten their uploads first, wherever it stands in the expression."""
    for make in (lambda then: agg.quantized(4, then=then), lambda then: agg.top_k(0.3, then=then)):
        for wrap in (lambda then: agg.nnm(1, then=then), lambda then: agg.clip(0.5, then=then)):
            outside, inside = make(wrap(agg.mean())), wrap(make(agg.mean()))
            np.testing.assert_array_equal(direction(outside), direction(inside))


@pytest.mark.parametrize("rule", [agg.quantized(4), agg.top_k(0.3)], ids=["quantized", "top_k"])
@pytest.mark.parametrize("then", ["mean", "krum"])
def test_they_obey_the_contract_of_aggregators(rule: Any, then: str) -> None:
    short = THEN[then]._replace(compression=rule.compression)
    eh.testing.check_aggregator(short, keeps_consensus=False)


def test_a_noisy_mean_of_short_uploads_keeps_its_bound_and_its_promise() -> None:
    """The server clips what it has read off, so that what one client changes is bounded as before."""
    noisy = eh.privacy.noisy_mean(0.5, noise_multiplier=1.0, rate=0.5)
    for short in (agg.quantized(4, then=noisy), agg.top_k(0.3, then=noisy)):
        eh.testing.check_aggregator(short, keeps_consensus=False)
        plain, other = (
            eh.privacy.private(eh.algorithms.fedavg(WORK, aggregator=rule, sampling=eh.sampling.poisson(0.5)))
            for rule in (noisy, short)
        )
        assert plain.privacy is not None and other.privacy is not None
        assert other.privacy.releases(3) == plain.privacy.releases(3)


@pytest.mark.parametrize(
    ("words", "compression"),
    [
        (
            "look like a delta",
            compression_of(agg.quantized(4))._replace(
                shorten=lambda delta, memory, key: (delta["w"], memory)
            ),
        ),
        ("form", compression_of(agg.top_k(0.3))._replace(shorten=lambda delta, memory, key: (delta, ()))),
        (
            "not finite",
            compression_of(agg.quantized(4))._replace(
                shorten=lambda delta, memory, key: (jax.tree.map(jnp.nan_to_num, delta), memory)
            ),
        ),
        ("bits", compression_of(agg.quantized(4))._replace(bits=lambda like: 0)),
    ],
)
def test_a_broken_compression_is_caught(words: str, compression: Any) -> None:
    with pytest.raises(AssertionError, match=words):
        eh.testing.check_aggregator(agg.mean()._replace(compression=compression), keeps_consensus=False)


# --- quantisation: on a grid, right on average, with the variance that theory gives it -------------------------------


def draws(bits: int, values: np.ndarray, count: int) -> np.ndarray:
    """``(count, d)`` quantised copies of an array."""
    shorten = shorten_of(agg.quantized(bits))
    keys = jax.random.split(jax.random.key(3), count)
    sent = jax.jit(jax.vmap(lambda key: shorten(jnp.asarray(values, jnp.float32), (), key)[0]))(keys)
    return np.asarray(sent, np.float64)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_numbers_are_on_the_grid_and_right_on_average(bits: int) -> None:
    values = np.array([0.8, -0.31, 0.017, 0.0, -0.8, 0.5], np.float32).astype(np.float64)
    levels, largest, count = 2 ** (bits - 1) - 1, np.abs(values).max(), 40_000
    sent = draws(bits, values, count)
    places = sent * levels / largest
    np.testing.assert_allclose(places, np.round(places), atol=1e-4)
    assert np.abs(places).max() <= levels + 1e-4 and (sent[:, 3] == 0).all()
    exact = values * levels / largest
    share = np.abs(exact) - np.floor(np.abs(exact) + 1e-6)
    std = np.sqrt(np.clip(share * (1 - share), 0, None)) * largest / levels
    error = np.abs(sent.mean(0) - values)
    bound = stats.norm.ppf(1 - 1e-6) * std / math.sqrt(count) + 1e-6
    assert (error <= bound).all()
    # The control: with a scale that is 2 % off, the mean is, too.
    wrong = np.abs(1.02 * sent.mean(0) - values)
    assert (wrong > bound)[np.abs(values) > 0.4].all()


def test_rounding_is_right_on_average_in_half_precision() -> None:
    """Uniform numbers in bfloat16, multiples of 1/128, would round this up six times too often."""
    values = jnp.full(10_000, 1e-5, jnp.bfloat16).at[0].set(1)
    sent, _ = shorten_of(agg.quantized(8))(values, (), jax.random.key(0))
    assert sent.dtype == jnp.bfloat16
    # Of 127 levels, 1e-5 is 0.00127 of a step.
    assert 4 <= np.count_nonzero(numbers(sent[1:])) <= 24


def test_the_variance_is_what_rounding_at_random_has_and_below_its_bound() -> None:
    values = RNG.normal(size=200)
    bits, count = 4, 4_000
    levels, largest = 2 ** (bits - 1) - 1, np.abs(values).max()
    squares = np.sum((draws(bits, values, count) - values) ** 2, axis=1)
    place = np.abs(values) * levels / largest
    share = place - np.floor(place)
    expected = float(np.sum(share * (1 - share)) * (largest / levels) ** 2)
    spread = 5 * squares.std() / math.sqrt(count)
    assert abs(squares.mean() - expected) < spread
    bound = values.size * (largest / (2 * levels)) ** 2
    assert 0.4 * bound < squares.mean() < bound
    # The control: one level fewer has a larger variance than that.
    place = np.abs(values) * (levels - 1) / largest
    share = place - np.floor(place)
    other = float(np.sum(share * (1 - share)) * (largest / (levels - 1)) ** 2)
    assert abs(squares.mean() - other) > spread


SHORTEN = {bits: jax.jit(shorten_of(agg.quantized(bits))) for bits in (2, 5, 16)}


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8),
    bits=st.sampled_from([2, 5, 16]),
    seed=st.integers(0, 2**31 - 1),
)
def test_no_number_moves_further_than_a_step_or_beyond_the_largest(
    values: list[float], bits: int, seed: int
) -> None:
    sent, _ = shorten_of(agg.quantized(bits))(jnp.array(values, jnp.float32), (), jax.random.key(seed))
    largest = max(map(abs, values))
    step = largest / (2 ** (bits - 1) - 1)
    assert np.all(np.abs(np.asarray(sent) - np.array(values, np.float32)) <= step * 1.001 + 1e-30)
    assert np.max(np.abs(sent)) <= largest * (1 + 1e-6)


def test_each_array_has_a_scale_of_its_own() -> None:
    """``b`` is a hundred times smaller than ``w``: on one grid, all of it would be 0."""
    delta = jax.tree.map(lambda leaf: leaf[0], DELTAS)
    sent, _ = shorten_of(agg.quantized(6))(delta, (), jax.random.key(0))
    for name in ("w", "b"):
        assert np.abs(sent[name]).max() == pytest.approx(float(np.abs(DELTAS[name][0]).max()), rel=1e-6)


# --- the largest numbers, and the memory of the others ---------------------------------------------------------------


KEEP = {share: jax.jit(shorten_of(agg.top_k(share))) for share in (0.01, 0.3, 0.5, 0.99)}


@settings(max_examples=25, deadline=None)
@given(
    updates=st.lists(st.lists(st.integers(-50, 50), min_size=6, max_size=6), min_size=1, max_size=6),
    fraction=st.sampled_from([*KEEP]),
)
def test_what_was_sent_and_the_memory_are_the_sum_of_the_updates(
    updates: list[list[int]], fraction: float
) -> None:
    """Exactly: the updates are whole numbers, whose sums have no rounding."""
    compression, shorten = compression_of(agg.top_k(fraction)), KEEP[fraction]
    like = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    memory, total = compression.begin(like), np.zeros(6)
    for update in updates:
        delta = {
            "a": jnp.array(update[:4], jnp.float32).reshape(2, 2),
            "b": jnp.array(update[4:], jnp.float32),
        }
        owed = numbers(memory) + np.array(update)
        sent, memory = shorten(delta, memory, jax.random.key(0))
        count = math.ceil(fraction * 6)
        assert np.count_nonzero(numbers(sent)) <= count
        # Those that are sent are no smaller than those that are kept.
        assert np.abs(numbers(memory)).max() <= np.sort(np.abs(owed))[-count]
        total += numbers(sent)
    np.testing.assert_array_equal(total + numbers(memory), np.sum(updates, axis=0))


def test_of_a_tiny_share_one_number_is_sent() -> None:
    sent, memory = shorten_of(agg.top_k(1e-12))(jnp.array([5.0, -1.0]), jnp.zeros(2), jax.random.key(0))
    assert sent.tolist() == [5.0, 0.0] and memory.tolist() == [0.0, -1.0]
    assert compression_of(agg.top_k(1e-12)).bits(jnp.zeros(100)) == 64
    assert compression_of(agg.top_k(1e-12)).bits(jnp.zeros(100, jnp.float16)) == 48


@pytest.mark.parametrize(("fraction", "size", "count"), [(0.28, 100, 28), (0.07, 100, 7), (0.281, 100, 29)])
def test_a_share_of_whole_numbers_is_not_one_more(fraction: float, size: int, count: int) -> None:
    """28 % of 100 numbers are 28, though their product is 28.000000000000004; what is left of a number is one more."""
    assert fraction * size > count or fraction == 0.281
    assert compression_of(agg.top_k(fraction)).bits(jnp.zeros(size)) == count * 64


def test_outside_of_training_each_upload_is_rounded_by_itself() -> None:
    """A half between 0 and 1, from a hundred clients: rounded alike, their mean would be one of the two."""
    direction = agg.aggregate(agg.quantized(2), jnp.tile(jnp.array([1.0, 0.5]), (100, 1)))
    assert direction[0] == 1.0 and 0.3 < direction[1] < 0.7


def test_of_real_numbers_none_is_changed_on_the_way() -> None:
    memory = DELTAS
    sent, kept = shorten_of(agg.top_k(0.3))(DELTAS, memory, jax.random.key(0))
    np.testing.assert_array_equal(
        numbers(sent) + numbers(kept), numbers(jax.tree.map(jnp.add, DELTAS, memory))
    )
    assert np.count_nonzero(numbers(sent)) == math.ceil(0.3 * numbers(DELTAS).size)


# --- what it costs ---------------------------------------------------------------------------------------------------


def sent_by(rule: Any) -> Any:
    method = eh.algorithms.fedavg(WORK, aggregator=rule)
    wires = rounds.wires(method, MODEL.init(jax.random.key(0)), ROWS, 8, 6)
    ((down, up, secure),) = communication.traffic(method, wires)
    assert secure == 0
    return down.bytes, up.bytes


def test_short_uploads_are_counted_as_they_cross_the_wire() -> None:
    """The model has 12 weights and 3 biases; an upload has a weight besides, and the loss where it is asked for."""
    plain = 4 * 15
    assert sent_by(agg.mean()) == (plain, plain + 4)
    assert sent_by(agg.quantized(8)) == (plain, 15 + 2 * 4 + 4)
    assert sent_by(agg.quantized(3)) == (plain, math.ceil(3 * 15 / 8) + 2 * 4 + 4)
    assert sent_by(agg.top_k(0.3)) == (plain, 5 * 8 + 4)
    assert (
        sent_by(agg.top_k(0.9)) == sent_by(agg.top_k(1.0)) == sent_by(agg.mean())
    )  # less than with positions
    # The server lifts the uploads that it has, in all passes.
    assert sent_by(agg.quantized(8, then=agg.geometric_median(5))) == sent_by(agg.quantized(8))
    weighs = agg.risk_weighted(eh.risks.tilted(1.0))
    assert sent_by(agg.quantized(8, then=weighs)) == (plain + 4, 15 + 2 * 4 + 4 + 4)


def test_the_run_counts_them() -> None:
    run = eh.simulate(eh.algorithms.fedavg(WORK, aggregator=agg.quantized(8)), DATA, rounds=2)
    sent = run.info["communication"]
    assert sent["per_client_and_round"]["up"] == {"numbers": 7, "bytes": 27} and run.info["floats"]["up"] == 7
    assert sent["total"]["up"]["bytes"] == 2 * 6 * 27 == run.history["bytes_up"][-1]


# --- over rounds: NumPy, the twin, absences, rejections, checkpoints -------------------------------------------------

STEP = 0.3
PLAIN = eh.local.sgd(MODEL, STEP, steps=1, batch_size=10**6)
"""One step on all examples of a client, so that NumPy needs no batches."""


def softmax_gradient(
    w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0)


def by_numpy(compress: Any, count: int, cohorts: list[list[int]]) -> np.ndarray:
    """FedAvg of one full step a round; ``compress(round, client, {"b", "w"}) -> sent``."""
    params = {
        k: np.asarray(v, np.float64) for k, v in MODEL.init(stream(keys_of(0).shared, Purpose.INIT)).items()
    }
    for number in range(count):
        total, weights = {k: np.zeros_like(v) for k, v in params.items()}, 0.0
        for k in cohorts[number]:
            x, y = DATA.train.client(k)
            w, b = softmax_gradient(params["w"], params["b"], np.asarray(x, np.float64), np.asarray(y))
            sent = compress(number, k, {"b": -STEP * b, "w": -STEP * w})
            total = {name: total[name] + len(y) * sent[name] for name in total}
            weights += len(y)
        params = {name: params[name] + total[name] / weights for name in params}
    return np.concatenate([params["b"].ravel(), params["w"].ravel()])


def cohorts_of(method: Any, count: int, size: int) -> list[list[int]]:
    sizes = jnp.asarray(DATA.train.sizes, jnp.int32)
    return [
        rounds.cohort(method, None, sizes, size, keys_of(0), number, 0).ids.tolist()
        for number in range(count)
    ]


def test_error_feedback_over_rounds_is_that_of_a_loop_in_numpy() -> None:
    method = eh.algorithms.fedavg(PLAIN, aggregator=agg.top_k(0.2))
    cohorts = cohorts_of(method, 6, 3)
    memory = {k: np.zeros(15) for k in range(6)}

    def largest(number: int, k: int, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        owed = memory[k] + np.concatenate([delta["b"].ravel(), delta["w"].ravel()])
        sent = np.zeros(15)
        chosen = np.argsort(-np.abs(owed), kind="stable")[:3]
        sent[chosen] = owed[chosen]
        memory[k] = owed - sent
        return {"b": sent[:3], "w": sent[3:].reshape(4, 3)}

    run = eh.simulate(method, DATA, rounds=6, cohort=3)
    np.testing.assert_allclose(numbers(run.params), by_numpy(largest, 6, cohorts), atol=2e-6)
    kept = run.state.clients.unsent[0]
    flat = np.concatenate([np.asarray(kept["b"]), np.asarray(kept["w"]).reshape(6, -1)], axis=1)
    np.testing.assert_allclose(flat, np.stack([memory[k] for k in range(6)]), atol=2e-6)
    assert np.abs(flat).max() > 1e-2

    def forgets(number: int, k: int, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        memory[k] = np.zeros(15)
        return largest(number, k, delta)

    assert np.abs(numbers(run.params) - by_numpy(forgets, 6, cohorts)).max() > 1e-2


def test_rounding_over_rounds_is_that_of_a_loop_in_numpy() -> None:
    method = eh.algorithms.fedavg(PLAIN, aggregator=agg.quantized(4))
    cohorts = cohorts_of(method, 4, 3)

    def rounded(number: int, k: int, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        key = stream(rounds.work_key(keys_of(0), number, 0, jnp.int32(k)), Purpose.COMPRESSION)
        sent = {}
        for i, name in enumerate(("b", "w")):
            u = np.asarray(jax.random.uniform(jax.random.fold_in(key, i), delta[name].shape))
            largest = np.abs(delta[name]).max()
            sent[name] = np.sign(delta[name]) * np.ceil(7 * np.abs(delta[name]) / largest - u) * largest / 7
        return sent

    run = eh.simulate(method, DATA, rounds=4, cohort=3)
    np.testing.assert_allclose(numbers(run.params), by_numpy(rounded, 4, cohorts), atol=2e-6)
    exact = by_numpy(lambda number, k, delta: delta, 4, cohorts)
    assert np.abs(numbers(run.params) - exact).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (
            "quantized median",
            eh.algorithms.fedavg(WORK, aggregator=agg.quantized(4, then=agg.geometric_median(2))),
        ),
        ("two exchanges", eh.algorithms.feddane(WORK, mu=0.1, aggregator=agg.top_k(0.3))),
        (
            "personal, scaffold",
            eh.personalization.ditto(
                eh.algorithms.scaffold(WORK, aggregator=agg.top_k(0.3, then=agg.krum(1))), WORK, lam=0.5
            ),
        ),
    ],
)
def test_methods_obey_the_contract_with_short_uploads(name: str, method: Any) -> None:
    """The engine is its readable twin, absent clients keep what they had, and the others keep the form of theirs."""
    eh.testing.check_algorithm(method, rounds=2, lanes=(2,))


def test_the_memory_of_rejected_uploads_and_absent_clients_stays() -> None:
    from_second = Attack(
        clients=(0, 1), first=2, upload=lambda delta, key: jax.tree.map(lambda leaf: leaf * jnp.nan, delta)
    )
    method = eh.algorithms.fedavg(WORK, aggregator=agg.top_k(0.3))
    runs = []
    for run in eh.simulation.iterate(method, DATA, rounds=2, eval_every=1, attack=from_second):
        run.keep()
        runs.append(run)
    assert runs[-1].per_round["rejected"].tolist() == [0.0, 2.0]
    one, two = (numbers_by_client(run) for run in runs[1:])
    np.testing.assert_array_equal(one[:2], two[:2])
    assert (np.abs(one[2:] - two[2:]).max(axis=1) > 0).all() and np.abs(one[:2]).max() > 0
    few = eh.simulate(method, DATA, rounds=1, cohort=2)
    drawn = cohorts_of(method, 1, 2)[0]
    touched = np.abs(numbers_by_client(few)).max(axis=1) > 0
    assert sorted(np.flatnonzero(touched)) == sorted(drawn)


def numbers_by_client(run: Any) -> np.ndarray:
    leaves = jax.tree.leaves(run.state.clients.unsent)
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves], axis=1)


def test_the_memory_is_in_checkpoints_and_may_be_kept_on_the_host(tmp_path: Any) -> None:
    method = eh.algorithms.fedavg(WORK, aggregator=agg.top_k(0.3))
    whole = eh.simulate(method, DATA, rounds=4, cohort=3, eval_every=2)
    place = Checkpoint(tmp_path, seconds=0)
    eh.simulate(method, DATA, rounds=2, cohort=3, eval_every=2, checkpoint=place)
    later = eh.simulate(method, DATA, rounds=4, cohort=3, eval_every=2, checkpoint=place)
    for run in (later, eh.simulate(method, DATA, rounds=4, cohort=3, eval_every=2, offload=True)):
        np.testing.assert_array_equal(numbers(run.params), numbers(whole.params))
        np.testing.assert_array_equal(numbers_by_client(run), numbers_by_client(whole))


def test_personal_models_and_newcomers_are_served_as_without(tmp_path: Any) -> None:
    method = eh.personalization.ditto(eh.algorithms.fedavg(WORK, aggregator=agg.top_k(1.0)), WORK, lam=1.0)
    plain = eh.personalization.ditto(eh.algorithms.fedavg(WORK), WORK, lam=1.0)
    run, other = (eh.simulate(m, DATA, rounds=2) for m in (method, plain))
    np.testing.assert_allclose(numbers(run.personal_params(1)), numbers(other.personal_params(1)), atol=1e-6)
    new = eh.testing.toy_data(seed=1)
    served, expected = (r.serve(new).clients["test"]["loss"] for r in (run, other))
    np.testing.assert_allclose(served, expected, atol=1e-6)
    saved = eh.load_run(run.save(tmp_path / "a"), algorithm=method)
    np.testing.assert_allclose(saved.serve(new).clients["test"]["loss"], expected, atol=1e-6)


def test_a_method_is_shortened_once() -> None:
    method = eh.algorithms.fedavg(WORK, aggregator=agg.top_k(0.3))
    fixed = (MODEL.init(jax.random.key(0)), ROWS, 17, 6)
    short = communication.compressed(method, *fixed)
    assert short is not method and communication.compressed(short, *fixed) is short
    plain = eh.algorithms.fedavg(WORK)
    assert communication.compressed(plain, *fixed) is plain


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: agg.quantized(1), r"quantized\(bits=\)"),
        (lambda: agg.quantized(17), r"quantized\(bits=\)"),
        (lambda: agg.top_k(0.0), "above 0 and at most 1"),
        (lambda: agg.top_k(1.1), "above 0 and at most 1"),
        (lambda: agg.top_k(math.nan), "above 0 and at most 1"),
        (lambda: agg.quantized(8, then=agg.top_k(0.1)), "compresses uploads already"),
        (lambda: agg.quantized(8, then=agg.secure(agg.mean())), r"secure\(mean\(\), bits=32\)"),
        (
            lambda: agg.top_k(0.1, then=agg.secure(agg.mean())),
            "uploads cannot be compressed",
        ),
        (lambda: agg.secure(agg.quantized(8)), "uploads cannot be compressed"),
        (
            lambda: eh.algorithms.side_by_side(
                {name: eh.algorithms.fedavg(WORK, aggregator=agg.quantized(8)) for name in "ab"}
            ),
            "no upload can be compressed alone",
        ),
        (
            lambda: eh.simulate(
                eh.algorithms.fedavg(WORK, aggregator=agg.top_k(0.1), sampling=eh.sampling.proportional()),
                DATA,
                rounds=1,
            ),
            "draw a client twice",
        ),
        (
            lambda: eh.simulate(
                eh.algorithms.fedavg(WORK, aggregator=agg.quantized(8)),
                DATA,
                rounds=1,
                attack=eh.attacks.false_sum(0.2),
            ),
            "which the server sums",
        ),
    ],
)
def test_what_cannot_be_shortened_is_refused_with_what_to_take(make: Any, sentence: str) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        make()


def test_without_a_memory_clients_may_be_drawn_twice() -> None:
    method = eh.algorithms.fedavg(WORK, aggregator=agg.quantized(8), sampling=eh.sampling.proportional())
    assert np.isfinite(eh.simulate(method, DATA, rounds=1).history["train_loss"]).all()
