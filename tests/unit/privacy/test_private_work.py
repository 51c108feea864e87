"""The base of private local work: its batches, its noise, what it promises; and DP-SGD with four optimisers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from private_oracle import (
    CLIP,
    COMMON,
    MODEL,
    NOISE,
    RATE,
    STEPS,
    N,
    X,
    Y,
    begin,
    client,
    descend,
    draws,
    examples,
    far,
    loop,
    near,
    norms,
    promised,
    same,
    trained,
    tree_map,
    zeros,
)
from scipy import stats

import evenhand as eh
from evenhand.errors import EvenhandError
from evenhand.privacy import Noise, Query, UpdateRule, private_work

LR = 0.3
chi2_contingency: Any = stats.chi2_contingency  # SciPy declares no type of what it returns


# --- DP-SGD, DP-RMSProp, DP-AdaGrad and DP-Adam are what the papers say ----------------------------------------------


def sgd(w, ask, at):
    return descend(w, ask(w, CLIP), LR)


def rmsprop(w, ask, at):
    g = ask(w, CLIP)
    v = at.kept["v"] = tree_map(lambda v, g: 0.9 * v + 0.1 * g * g, at.kept.get("v", zeros()), g)
    return descend(w, tree_map(lambda g, v: g / (np.sqrt(v) + 1e-3), g, v), 0.05)


def adagrad(w, ask, at):
    g = ask(w, CLIP)
    v = at.kept["v"] = tree_map(lambda v, g: v + g * g, at.kept.get("v", zeros()), g)
    return descend(w, tree_map(lambda g, v: g / np.sqrt(v + 1e-6), g, v), 0.2)


def adam(w, ask, at):
    g, t = ask(w, CLIP), at.t + 1
    m = at.kept["m"] = tree_map(lambda m, g: 0.9 * m + 0.1 * g, at.kept.get("m", zeros()), g)
    v = at.kept["v"] = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, at.kept.get("v", zeros()), g)
    ratio = tree_map(lambda m, v: m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v)
    return descend(w, ratio, 0.1)


OPTIMISERS = {
    "DP-SGD": (LR, sgd),
    "DP-RMSProp": (optax.rmsprop(0.05, decay=0.9, eps=1e-3, eps_in_sqrt=False), rmsprop),
    "DP-AdaGrad": (optax.adagrad(0.2, initial_accumulator_value=0.0, eps=1e-6), adagrad),
    "DP-Adam": (optax.adam(0.1, eps=1e-8), adam),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_optimiser_of_the_table_is_the_papers_update(name):
    optimiser, step = OPTIMISERS[name]
    params, _ = trained(eh.privacy.dp_sgd(MODEL, optimiser, clip=CLIP, **COMMON))
    near(params, loop(step))
    for other, (_, rival) in OPTIMISERS.items():
        if other != name:
            far(params, loop(rival))


def test_the_clip_cuts_some_gradients_and_leaves_others():
    gradients = norms(examples(tree_map(np.asarray, MODEL.init(jax.random.key(1)))))
    assert gradients.min() < CLIP < gradients.max()


def test_work_that_starts_afresh_is_the_first_round_of_work_that_goes_on():
    work = eh.privacy.dp_sgd(MODEL, optax.adam(0.1), clip=CLIP, **COMMON)
    key, start = jax.random.key(3), MODEL.init(jax.random.key(1))
    with jax.numpy_dtype_promotion("standard"):
        once = jax.jit(lambda p, k: work.solve(p, client(X, Y), k, optax.identity())[0])(start, key)
    assert same(once, trained(work, [key])[0])


# --- noise -----------------------------------------------------------------------------------------------------------

ROWS, DIM = 30, 20


def table(touched):
    """A model with a table of which each example moves row 0 only, or nothing, and two leaves of one shape."""

    def apply(params, x):
        moved = params["a"][0].sum() if touched else 0.0 * params["a"][0].sum()
        return jnp.full(x.shape[:1], moved)

    def init(key):
        return {"a": jnp.zeros((ROWS, DIM)), "b": jnp.zeros((ROWS, DIM))}

    return eh.testing.toy_model()._replace(init=init, apply=apply, losses=lambda out, y: out, metrics={})


def answers(model, ask, steps, rate=RATE, noise=NOISE, size=N, x=None):
    """What is answered at the initial parameters in each step to a query, or to a tuple of them."""
    shape, several = jax.eval_shape(model.init, jax.random.key(0)), not isinstance(ask, Query)

    def init(params):
        like = jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape)), shape)
        return jnp.int32(0), (like,) * len(ask) if several else like

    def after(answer, state, iteration):
        t, seen = state
        seen = jax.tree.map(lambda all, now: all.at[t].set(now), seen, answer)
        return jax.tree.map(jnp.zeros_like, iteration.params), (t + 1, seen)

    rule = UpdateRule(
        method="test",
        optimiser=1.0,
        init=init,
        before=lambda state, iteration: (ask, state),
        after=after,
        queries=lambda steps: {len(ask) if several else 1: steps},
    )
    spread = Noise(clip=CLIP, noise_multiplier=noise, rate=rate, steps=steps)
    work = private_work(model, rule, spread)
    continued = work.continued
    assert continued is not None
    params = model.init(jax.random.key(0))
    data = client(np.arange(size, dtype=np.int32) if x is None else x, np.zeros(size, np.int32))
    solve = jax.jit(lambda params, state, key: continued.solve(params, state, data, key))
    state = solve(params, continued.init(params), jax.random.key(8))[1]
    return jax.tree.map(np.asarray, state[1][1])


@pytest.fixture(scope="module")
def noises():
    """Two queries a step of a model without gradients: ``{query: {leaf: (steps, rows, dim)}}``."""
    return dict(enumerate(answers(table(False), (Query(0.5), Query(2.0)), steps=4)))


def test_noise_has_the_scale_that_is_accounted_for(noises):
    for query, clip in enumerate((0.5, 2.0)):
        drawn = np.concatenate([leaf.ravel() for leaf in noises[query].values()]) / (
            NOISE * clip / (RATE * N)
        )
        assert stats.kstest(drawn, "norm").pvalue > 1e-3
        assert stats.kstest(drawn * 2 / 3, "norm").pvalue < 1e-12
        assert stats.kstest(drawn * 3 / 2, "norm").pvalue < 1e-12


def test_noise_is_fresh_in_each_step_query_and_leaf(noises):
    streams = [leaf[t].ravel() for by_leaf in noises.values() for leaf in by_leaf.values() for t in range(4)]
    together = np.corrcoef(streams)
    off = together[~np.eye(len(streams), dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(ROWS * DIM)


def test_noise_is_on_coordinates_that_no_example_touches():
    drawn = answers(table(True), Query(), steps=4)
    unit = NOISE * CLIP / (RATE * N)
    untouched = np.concatenate([drawn["a"][:, 1:].ravel(), drawn["b"].ravel()]) / unit
    assert stats.kstest(untouched, "norm").pvalue > 1e-3
    assert drawn["a"][:, 0].mean() > 5 * unit / np.sqrt(4 * DIM)  # the touched row moves, too


def test_the_noise_of_an_answer_is_told():
    def before(state, iteration):
        return Query(), iteration.deviation(2.0)

    rule = UpdateRule(method="test", optimiser=0.0, init=lambda params: jnp.float32(0.0), before=before)
    work = private_work(MODEL, rule, Noise(clip=CLIP, **COMMON))
    np.testing.assert_allclose(trained(work)[1][1], NOISE * 2.0 / (RATE * N), rtol=1e-6)


# --- batches ---------------------------------------------------------------------------------------------------------


def ids(size):
    """A model whose example ``i`` has the gradient ``e_i``: unclipped answers say who is in a batch."""
    return eh.testing.toy_model()._replace(
        init=lambda key: {"w": jnp.zeros(size)},
        apply=lambda params, x: params["w"][x],
        losses=lambda out, y: out,
        metrics={},
    )


SIZE, MANY, SHARE = 8, 4000, 0.3


@pytest.fixture(scope="module")
def batches():
    """Who is in the batch of each step, times ``1 / (q n)``."""
    return answers(ids(SIZE), Query(1e9), MANY, SHARE, 0.0, SIZE)["w"]


def test_the_denominator_is_the_expected_size_whoever_is_there(batches):
    np.testing.assert_allclose(np.unique(batches.round(6)), [0.0, round(1 / (SHARE * SIZE), 6)], atol=1e-5)
    assert len(np.unique((batches > 0).sum(axis=1))) > 5  # the realised size varies


def test_each_example_is_in_a_batch_with_the_rate_and_independently_of_all_others(batches):
    inside = batches > 0
    sizes = inside.sum(axis=1)
    assert sizes.mean() == pytest.approx(SHARE * SIZE, abs=4 * np.sqrt(SHARE * (1 - SHARE) * SIZE / MANY))
    assert sizes.var() == pytest.approx(SHARE * (1 - SHARE) * SIZE, rel=0.1)  # a fixed size would have 0
    for i in range(SIZE):
        assert stats.binomtest(int(inside[:, i].sum()), MANY, SHARE).pvalue > 1e-4
        for j in range(i):
            counts = np.histogram2d(inside[:, i], inside[:, j], bins=2)[0]
            assert chi2_contingency(counts, correction=False).pvalue > 1e-4
        steps = np.histogram2d(inside[1:, i], inside[:-1, i], bins=2)[0]
        assert chi2_contingency(steps, correction=False).pvalue > 1e-4


def test_an_empty_batch_steps_along_noise_alone():
    def plain(noise):
        return eh.privacy.dp_sgd(MODEL, LR, clip=CLIP, noise_multiplier=noise, rate=1e-7, steps=1)

    start = MODEL.init(jax.random.key(1))
    still, moved = (trained(plain(noise), [jax.random.key(0)])[0] for noise in (0.0, 1e-6))
    assert same(still, start)
    assert all((np.asarray(moved[name]) != np.asarray(start[name])).all() for name in start)


def test_a_client_without_examples_takes_no_steps():
    work, start = eh.privacy.dp_sgd(MODEL, LR, clip=CLIP, **COMMON), MODEL.init(jax.random.key(1))
    nobody = client(X, Y)._replace(size=jnp.int32(0))
    assert work.effort(client(X, Y)).steps == STEPS and work.effort(nobody) == (0, 0)
    assert same(work.solve(start, nobody, jax.random.key(0), optax.identity())[0], start)


def test_a_rate_of_one_takes_all():
    whole = answers(ids(SIZE), Query(1e9), 3, 1.0, 0.0, SIZE)["w"]
    np.testing.assert_allclose(whole, 1 / SIZE, rtol=1e-6)


def test_both_looks_of_a_step_see_the_same_batch():
    seen = answers(ids(SIZE), (Query(1e9), Query(1e9)), 20, SHARE, 0.0, SIZE)
    np.testing.assert_array_equal(seen[0]["w"], seen[1]["w"])


def test_the_oracle_draws_different_batches():
    assert len({tuple(draws(round_, i)[0]) for round_ in range(2) for i in range(STEPS)}) > 5


# --- methods that run it, and what they promise ---------------------------------------------------------------------

WORK = eh.privacy.dp_sgd(MODEL, optax.rmsprop(0.05), clip=CLIP, **COMMON)
DATA = eh.data.from_arrays(X, Y, client=np.zeros(N))


def test_ten_rounds_of_central_training_are_five_and_five_more(tmp_path):
    whole = eh.simulate(eh.algorithms.alone(WORK), DATA, rounds=10, eval_every=5)
    eh.simulate(eh.algorithms.alone(WORK), DATA, rounds=5, eval_every=5, checkpoint=tmp_path)
    parts = eh.simulate(eh.algorithms.alone(WORK), DATA, rounds=10, eval_every=5, checkpoint=tmp_path)
    assert same(whole.params, parts.params)
    # Where the optimiser starts afresh in each round, as in federated averaging, the end is another one.
    far(whole.params, tree_map(np.asarray, eh.simulate(eh.algorithms.fedavg(WORK), DATA, rounds=10).params))


def test_the_usual_delta_of_a_promise_to_examples_is_for_their_number():
    found = promised(eh.simulate(eh.algorithms.alone(WORK), DATA, rounds=1))
    assert DATA.num_clients < 10 <= DATA.train.rows
    assert found.delta == eh.privacy.usual_delta(DATA.train.rows) < eh.privacy.usual_delta(DATA.num_clients)
    assert found.unit == "example"


def test_central_training_is_for_one_client():
    with pytest.raises(EvenhandError, match="for one client, and there are 6"):
        eh.simulate(eh.algorithms.alone(WORK), eh.testing.toy_data(), rounds=1)


def test_methods_that_may_look_at_examples_otherwise_refuse_private_work():
    for make in (
        lambda: eh.algorithms.fedprox(WORK, mu=0.1),
        lambda: eh.algorithms.scaffold(WORK),
        lambda: eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=1.0),
        lambda: eh.personalization.ditto(
            eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, steps=1)), WORK, lam=1.0
        ),
    ):
        with pytest.raises(EvenhandError, match="guarantees privacy"):
            make()
    with pytest.raises(EvenhandError, match="report without noise"):
        eh.algorithms.term(WORK, t=1.0)
    ordinary = eh.local.sgd(MODEL, 0.1, steps=1)
    with pytest.raises(EvenhandError, match=r"personal models.*as in finetune\(fedavg\(dp_sgd\("):
        eh.personalization.finetune(eh.algorithms.fedavg(ordinary), WORK)
    for around in (eh.personalization.finetune, eh.personalization.ditto):
        promise = around(eh.algorithms.fedavg(WORK), ordinary).privacy
        assert (
            promise is not None and promise.unit == "example" and "personal models" in promise.unprotected[0]
        )
    assert eh.algorithms.fedavg(WORK).privacy is WORK.privacy
    assert eh.algorithms.alone(WORK).privacy is WORK.privacy


def test_the_promise_counts_all_steps():
    (release,) = promised(WORK).releases(3)
    assert release == eh.types.Release(NOISE, RATE, times=3 * STEPS)
    assert promised(WORK).releases(0) == ()


def test_two_queries_of_one_sample_are_one_of_less_noise():
    rule = UpdateRule(method="test", optimiser=1.0, queries=lambda steps: {1: 2, 2: steps - 2})
    work = private_work(MODEL, rule, Noise(clip=1.0, noise_multiplier=2.0, rate=0.1, steps=6))
    assert promised(work).releases(2) == (
        eh.types.Release(2.0, 0.1, times=2),
        eh.types.Release(2.0 / np.sqrt(2.0), 0.1, times=10),
    )


def test_a_rule_that_asks_more_often_than_it_says_is_refused():
    def before(state, iteration):
        return (Query(), Query()), state

    rule = UpdateRule(
        method="twice",
        optimiser=1.0,
        before=before,
        after=lambda answers, state, iteration: (answers[0], state),
    )
    with pytest.raises(EvenhandError, match=r"twice\(\).*2 queries in a step, more than are accounted for"):
        trained(private_work(MODEL, rule, Noise(clip=CLIP, **COMMON)))
    accounted = rule._replace(queries=lambda steps: {2: steps})
    params, _ = trained(private_work(MODEL, accounted, Noise(CLIP, **COMMON)))
    assert all((params[name] != leaf).any() for name, leaf in begin().items())


def test_a_step_size_may_be_an_array_of_one_number_without_axes():
    steps: list[Any] = [0.5, np.array(0.5), jnp.float32(0.5)]
    plain, *others = [trained(eh.privacy.dp_sgd(MODEL, step, clip=CLIP, **COMMON))[0] for step in steps]
    assert all(same(plain, other) for other in others)
    several: Any = np.array([0.5, 0.5])
    with pytest.raises(EvenhandError, match="got the step"):
        eh.privacy.dp_sgd(MODEL, several, clip=CLIP, **COMMON)


def test_a_query_chooses_among_several_clips():
    rule = UpdateRule(method="test", optimiser=1.0)
    with pytest.raises(EvenhandError, match="a query takes one of these"):
        trained(private_work(MODEL, rule, Noise(clip=(1.0, 2.0), **COMMON)))
    second = rule._replace(before=lambda state, iteration: (Query(2.0), state))
    chosen = trained(private_work(MODEL, second, Noise(clip=(1.0, 2.0), **COMMON)))[0]
    assert same(chosen, trained(private_work(MODEL, rule, Noise(clip=2.0, **COMMON)))[0])


def test_a_rule_that_looks_at_gradients_without_noise_is_refused():
    def before(state, iteration):
        return Query(divided_by=iteration.gradient()), state

    rule = UpdateRule(method="looks", optimiser=1.0, before=before)
    with pytest.raises(EvenhandError, match=r"looks\(\).*sees examples through its queries alone"):
        trained(private_work(MODEL, rule, Noise(clip=CLIP, **COMMON)))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": np.inf}, "clip"),
        ({"noise_multiplier": -1.0}, "noise"),
        ({"noise_multiplier": np.inf}, "noise"),
        ({"rate": 0.0}, "rate=.*the chance"),
        ({"rate": 1.1}, "rate=.*the chance"),
        ({"steps": 0}, "steps"),
    ],
)
def test_numbers_out_of_range_are_refused(changed, match):
    with pytest.raises(EvenhandError, match=match):
        eh.privacy.dp_sgd(MODEL, 0.1, **{**COMMON, "clip": CLIP, **changed})


def test_a_step_size_that_is_no_number_is_refused():
    refused: list[Any] = [-1.0, np.nan, "0.1"]
    for step in refused:
        with pytest.raises(EvenhandError, match="finite number"):
            eh.privacy.dp_sgd(MODEL, step, clip=CLIP, **COMMON)
