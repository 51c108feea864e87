"""DP^2, its ablations and delayed RMSProp against NumPy loops; schedules, reductions and what they cost."""

import itertools
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from private_oracle import (
    COMMON,
    KEYS,
    MODEL,
    NOISE,
    RATE,
    ROUNDS,
    STEPS,
    N,
    X,
    Y,
    begin,
    centred,
    client,
    descend,
    examples,
    far,
    loop,
    mean_of,
    near,
    parabola,
    promised,
    trained,
    tree_map,
    zeros,
)

import evenhand as eh
from evenhand import local
from evenhand._jaxpr.programs import opened, within
from evenhand.errors import EvenhandError
from evenhand.privacy import Iteration
from evenhand.privacy._preconditioners import Moment, delayed_rule
from evenhand.privacy.dp2 import _observed
from evenhand.privacy.update_rules import Noise, oracle_work

SIZES, CLIPS, EPS, BETA = (0.3, 0.1), (2.0, 5.0), 0.1, 0.9


def dp2(**settings):
    return eh.privacy.dp2(MODEL, SIZES, **{"clips": CLIPS, "delay": (3, 2), "eps": EPS, **COMMON, **settings})


# --- Algorithm 11 ----------------------------------------------------------------------------------------------------


def rmsprop(v, square):
    return BETA * v + (1 - BETA) * square


def adagrad(v, square):
    return v + square


def yogi(v, square):
    return v + (1 - BETA) * np.sign(square - v) * square


def algorithm(s1=3, s2=2, follow=rmsprop, unbiased=False, noise_first=False, adaptive_first=False):
    """As printed, with its ``G`` and ``v``; ``adaptive_first``: after ``s2`` steps of SGD that teach nothing."""

    def step(w, ask, at):
        kept, t = at.kept, at.t - (s2 if adaptive_first else 0)
        if t < 0:
            return descend(w, ask(w, CLIPS[0]), SIZES[0])
        r = t % (s1 + s2)
        v = kept.setdefault("v", zeros())
        if r == 0:
            kept["G"] = zeros()
        if r == s1:
            bias = (NOISE * CLIPS[0] / (RATE * N)) ** 2 / s1 if unbiased else 0.0
            square = tree_map(
                lambda g: np.maximum((g / s1) ** 2 - bias, 0.0 if unbiased else -1.0), kept["G"]
            )
            v = kept["v"] = tree_map(follow, v, square)
        if r < s1:
            g = ask(w, CLIPS[0])
            kept["G"] = tree_map(np.add, kept["G"], g)
            return descend(w, g, SIZES[0])
        scales = tree_map(lambda v: np.sqrt(v) + EPS, v)
        if noise_first:
            return descend(w, tree_map(np.divide, ask(w, CLIPS[1]), scales), SIZES[1])
        return descend(w, ask(w, CLIPS[1], scales), SIZES[1])

    return step


def extra_query(s):
    """Algorithm 12 with the number of summed gradients in place of ``s``."""

    def step(w, ask, at):
        kept = at.kept
        g = ask(w, CLIPS[0])
        kept["G"], kept["n"] = tree_map(np.add, kept.get("G", zeros()), g), kept.get("n", 0) + 1
        if at.t % s == 0:
            mean = tree_map(lambda total: total / kept["n"], kept["G"])
            kept["v"] = tree_map(lambda v, m: rmsprop(v, m * m), kept.get("v", zeros()), mean)
            kept["G"], kept["n"] = zeros(), 0
            return descend(w, g, SIZES[0])
        scales = tree_map(lambda v: np.sqrt(v) + EPS, kept["v"])
        return descend(w, ask(w, CLIPS[1], scales, number=1), SIZES[1])

    return step


def falling(size):
    return lambda t: size / (1.0 + 0.2 * t)


def by_step(step):
    """The same step, shortened as :func:`falling` shortens step sizes; what it takes before is as long as without."""

    def shortened(w, ask, at):
        end = step(w, ask, at)
        return tree_map(lambda before, after: before + (after - before) / (1.0 + 0.2 * at.t), w, end)

    return shortened


EXTRA = {"clips": CLIPS, "delay": 4, "eps": EPS, **COMMON}
DELAYED = {"clips": CLIPS, "delay": (3, 2), "eps": EPS}
BY_STEP = (falling(SIZES[0]), falling(SIZES[1]))
CASES = {
    "rmsprop": (dp2(), algorithm()),
    "adagrad": (dp2(kind="adagrad"), algorithm(follow=adagrad)),
    "yogi": (dp2(kind="yogi"), algorithm(follow=yogi)),
    "equal delays": (dp2(delay=2), algorithm(2, 2)),
    "unbiased": (dp2(unbiased=True), algorithm(unbiased=True)),
    "noise first": (dp2(noise_first=True), algorithm(noise_first=True)),
    "adaptive first": (dp2(adaptive_first=True), algorithm(adaptive_first=True)),
    "longer adaptive first": (dp2(adaptive_first=True, delay=(2, 4)), algorithm(2, 4, adaptive_first=True)),
    "extra query": (eh.privacy.dp2_extra_query(MODEL, SIZES, **EXTRA), extra_query(4)),
    "step sizes by step": (eh.privacy.dp2(MODEL, BY_STEP, **{**DELAYED, **COMMON}), by_step(algorithm())),
    "extra query, by step": (
        eh.privacy.dp2_extra_query(MODEL, BY_STEP, **EXTRA),
        by_step(extra_query(4)),
    ),
}


@cache
def result(name):
    return tree_map(np.asarray, trained(CASES[name][0])[0])


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_loop_of_the_paper(name):
    near(result(name), loop(CASES[name][1]), 5e-5)
    for other, (_, rival) in CASES.items():
        # The first squares are far from 0, whence RMSProp and Yogi begin alike.
        if other != name and {name, other} != {"rmsprop", "yogi"}:
            far(result(name), loop(rival), 2e-4)


def play(rule, gradients, steps):
    """The parameters, moments and divisors of a rule whose queries answer what they are told to."""
    seen, params = [], {"w": jnp.zeros(1)}
    state = rule.init(params)

    iteration, moments = Iteration(params, jax.random.key(0), lambda clip: jnp.float32(0.5), lambda: None), []
    for t in range(steps):
        query, state = rule.before(state, iteration)
        seen.append((float(query.clip), float(query.divided_by["w"][0])))
        _, state = rule.after({"w": jnp.full(1, gradients[t])}, state, iteration)
        moments.append(float(state.moment["w"][0]))
    return seen, moments


def delayed(delay=(3, 3), kind: Any = "rmsprop", unbiased=False):
    moment = Moment(kind, decay=0.5, eps=0.0)
    return delayed_rule("test", (1.0, 1.0), (1.0, 7.0), delay, moment, unbiased=unbiased)


def test_phases_of_three_and_three_alternate_and_the_moment_is_learnt_between_them():
    gradients = [1.0, 2.0, 3.0, 50.0, 60.0, 70.0, 4.0, 4.0, 4.0, 80.0, 90.0, 99.0]
    seen, moments = play(delayed(), gradients, 12)
    assert [clip for clip, _ in seen] == [1.0] * 3 + [7.0] * 3 + [1.0] * 3 + [7.0] * 3
    first, second = 0.5 * 4.0, 0.5 * 2.0 + 0.5 * 16.0  # squares of means, not means of squares
    assert moments == pytest.approx([0.0] * 3 + [first] * 6 + [second] * 3)
    assert [scale for _, scale in seen] == pytest.approx(
        [1.0] * 3 + [first**0.5] * 3 + [1.0] * 3 + [second**0.5] * 3
    )


@pytest.mark.parametrize("delays", [(3, 3), (1, 4), (4, 1), (2, 5)])
def test_the_moment_is_learnt_as_often_as_theory_says(delays):
    s1, s2 = delays
    for steps in (s1, s1 + 1, 13):
        moments = play(delayed(delays, "adagrad"), [1.0] * 13, steps)[1]
        assert moments[-1] == pytest.approx((steps - 1 - s1) // (s1 + s2) + 1 if steps > s1 else 0)


def test_yogi_takes_a_square_away_where_the_moment_is_above_it():
    gradients = [2.0, 0.0, 1.0, 0.0]
    moments = play(delayed((1, 1), "yogi"), gradients, 4)[1]
    assert moments == pytest.approx([0.0, 2.0, 2.0, 1.5])


def test_the_noises_part_is_taken_away_down_to_zero():
    rule = delayed((2, 1), "adagrad", unbiased=True)
    moments = play(rule, [1.0, 1.0, 0.0, 0.2, 0.2, 0.0], 6)[1]
    assert moments[2] == pytest.approx(1.0 - 0.25 / 2)
    assert moments[5] == moments[2]  # 0.04 - 0.125 is below 0


def test_averaging_cuts_the_noise_of_the_moment():
    """Gradients of 0: the first moment has the mean of ``(1 - beta) z^2 C^2 / (s q^2 n^2)``."""
    size = 20_000
    flat = MODEL._replace(
        init=lambda key: {"w": jnp.zeros(size)},
        apply=lambda params, x: jnp.full(x.shape[:1], 0.0 * params["w"].sum()),
        losses=lambda out, y: out,
    )

    def moment(unbiased, s):
        common = {**COMMON, "steps": s + 1}
        work = eh.privacy.dp2(flat, (0.0, 0.0), clips=CLIPS, delay=s, unbiased=unbiased, **common)
        continued = work.continued
        assert continued is not None
        start, data = flat.init(KEYS[0]), client(X, Y)
        solve = jax.jit(lambda params, state, key: continued.solve(params, state, data, key))
        return np.asarray(solve(start, continued.init(start), KEYS[0])[1][1].moment["w"])

    unit = (1 - BETA) * (NOISE * CLIPS[0] / (RATE * N)) ** 2
    spread = 5 * np.sqrt(2 / size)
    assert moment(False, 1).mean() == pytest.approx(unit, rel=spread)
    assert moment(False, 4).mean() == pytest.approx(unit / 4, rel=spread)
    # A squared normal less 1, floored at 0, has the mean 2 phi(1): without the floor it would be 0.
    assert moment(True, 4).mean() == pytest.approx(
        unit / 4 * 2 * np.exp(-0.5) / np.sqrt(2 * np.pi), rel=2 * spread
    )


# --- reductions ------------------------------------------------------------------------------------------------------


def test_while_the_first_phase_lasts_it_is_dp_sgd():
    plain = trained(eh.privacy.dp_sgd(MODEL, SIZES[0], clip=CLIPS[0], **COMMON))[0]
    # To rounding: norms of divided gradients are found by another product.
    near(trained(dp2(delay=ROUNDS * STEPS))[0], tree_map(np.asarray, plain))
    near(trained(dp2(delay=(1, ROUNDS * STEPS), adaptive_first=True))[0], tree_map(np.asarray, plain))
    far(result("rmsprop"), tree_map(np.asarray, plain))


def test_where_the_divisor_is_a_constant_it_is_dp_sgd_with_a_second_step_size():
    """Gradients divided by 1e5 and then clipped to C / 1e5 are those clipped to C, divided by 1e5."""
    eps, (first, second), steps = 1e5, SIZES, ROUNDS * STEPS
    late = {"delay": steps // 2, "clips": (1.0, 1.0 / eps), "eps": eps}
    found = tree_map(np.asarray, trained(eh.privacy.dp2(MODEL, (first, second * eps), **late, **COMMON))[0])

    def plain(then):
        schedule = optax.piecewise_constant_schedule(first, {steps // 2: then / first})
        return tree_map(
            np.asarray, trained(eh.privacy.dp_sgd(MODEL, optax.sgd(schedule), clip=1.0, **COMMON))[0]
        )

    near(found, plain(second))
    far(found, plain(first))


def test_without_noise_and_clip_and_on_all_examples_it_is_delayed_rmsprop():
    free = {"noise_multiplier": 0.0, "rate": 1.0, "steps": STEPS, "clips": (1e9, 1e9)}
    work = eh.privacy.delayed_rmsprop(MODEL, SIZES, delay=(3, 2), eps=EPS, epochs=STEPS)
    end = tree_map(np.asarray, trained(work)[0])
    near(trained(dp2(**free))[0], end)
    near(trained(dp2(**free, noise_first=True))[0], end)  # without noise, the order is nothing
    far(result("rmsprop"), end)
    assert work.privacy is None


def test_delayed_rmsprop_is_its_loop_on_mini_batches():
    work = eh.privacy.delayed_rmsprop(MODEL, SIZES, delay=(3, 2), eps=EPS, steps=STEPS, batch_size=4)
    step, state = algorithm(), SimpleNamespace(kept={})
    w = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin())
    for t in range(ROUNDS * STEPS):
        batch = local.batches(steps=STEPS, batch_size=4).draw(client(X, Y), KEYS[t // STEPS])(
            jnp.int32(t % STEPS)
        )
        rows, state.t = np.array(batch.positions)[np.array(batch.inside)], t

        def ask(w, clip, divided_by=None, rows=rows):
            g = mean_of(examples(w, X[rows], Y[rows]))
            return g if divided_by is None else tree_map(np.divide, g, divided_by)

        w = step(w, ask, state)
    near(trained(work)[0], w, 5e-5)


def test_only_relative_scales_of_the_adaptive_phase_matter():
    """``v`` four times as large: as ``(D, C_2, alpha_2) -> (2 D, C_2 / 2, 2 alpha_2)``."""
    # With AdaGrad, one SGD phase and eps = 0, the gradient's unit is the only one: the loss times 2 doubles D.
    c = 2.0
    louder = MODEL._replace(losses=lambda out, y: c * MODEL.losses(out, y))
    common = {"delay": (5, 5), "kind": "adagrad", "eps": 1e-9, **COMMON}
    one = eh.privacy.dp2(MODEL, SIZES, clips=CLIPS, **common)
    two = eh.privacy.dp2(louder, (SIZES[0] / c, SIZES[1]), clips=(c * CLIPS[0], CLIPS[1]), **common)
    near(trained(two)[0], tree_map(np.asarray, trained(one)[0]), 1e-4)


def test_work_that_starts_afresh_begins_its_phases_anew():
    work = dp2(delay=STEPS)
    plain = eh.privacy.dp_sgd(MODEL, SIZES[0], clip=CLIPS[0], **COMMON)
    data = eh.data.from_arrays(X, Y, client=np.zeros(N))
    fed, sgd = (eh.simulate(eh.algorithms.fedavg(each), data, rounds=3).params for each in (work, plain))
    near(fed, tree_map(np.asarray, sgd))


def operands(program, primitive):
    """The shapes that equations of a kind take, wherever they are."""
    for equation in opened(program)[0].eqns:
        if equation.primitive.name == primitive:
            values: list[Any] = [operand.aval for operand in equation.invars]
            yield from (value.shape for value in values)
        for part in within(equation.params):
            yield from operands(part, primitive)


@pytest.mark.parametrize("name", CASES)
def test_no_branch_takes_the_data_of_which_runs_side_by_side_would_each_get_a_copy(name):
    work, pull = CASES[name][0], optax.identity()
    train = jax.make_jaxpr(lambda x: work.solve(begin(), client(X, Y)._replace(x=x), KEYS[0], pull)[0])
    program = train(X)
    assert X.shape in operands(program, "scan") or X.shape in operands(program, "while")
    assert X.shape not in operands(program, "cond")


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if "extra query" not in name])
def test_one_query_a_step_costs_what_dp_sgd_costs(name):
    assert promised(CASES[name][0]).releases(7) == (eh.types.Release(NOISE, RATE, times=35),)


@pytest.mark.parametrize(("delay", "single"), [(1, 35), (2, 18), (4, 9), (35, 1), (100, 1)])
def test_a_second_query_costs_more_but_in_every_delayth_step(delay, single):
    releases = promised(eh.privacy.dp2_extra_query(MODEL, SIZES, **{**EXTRA, "delay": delay})).releases(7)
    twice = eh.types.Release(NOISE / np.sqrt(2.0), RATE, times=35 - single)
    assert releases == (eh.types.Release(NOISE, RATE, times=single), twice)[: 2 if single < 35 else 1]


def test_rounds_that_start_afresh_cost_no_more_than_is_told():
    promise = promised(eh.privacy.dp2_extra_query(MODEL, SIZES, **EXTRA))
    (told, _), (each, _) = promise.releases(7), promise.releases(1)
    assert told.times <= 7 * each.times  # the fewer single queries, the dearer


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"delay": 0}, "delay"),
        ({"delay": (1, 0)}, "delay"),
        ({"kind": "adam"}, "kind"),
        ({"clips": (0.0, 1.0)}, "clips"),
        ({"clips": (1.0, np.inf)}, "clips"),
        ({"decay": -0.1}, "decay"),
        ({"eps": 0.0}, "eps"),
        ({"eps": "a"}, "eps='a'"),
        ({"decay": None}, "decay=None"),
    ],
)
def test_numbers_out_of_range_are_refused(changed, match):
    with pytest.raises(EvenhandError, match=match):
        dp2(**changed)


def test_step_sizes_are_two():
    refused: list[Any] = [(0.1,), (0.1, -1.0), (np.nan, 0.1), (lambda t: -1.0, 0.1)]
    for sizes in refused:
        with pytest.raises(EvenhandError, match="step"):
            eh.privacy.dp2(MODEL, sizes, clips=CLIPS, delay=3, **COMMON)


def test_the_moment_is_bounded_as_in_lemma_21():
    """``E[v_j] <= C^2 + z^2 C^2 / (s q^2 n^2)``."""
    moment = trained(CASES["rmsprop"][0])[1][1].moment
    bound = CLIPS[0] ** 2 * (1 + (NOISE / (RATE * N)) ** 2 / 3)
    assert 0 < max(float(leaf.max()) for leaf in moment.values()) < bound


def test_gradients_of_a_quadratic_are_as_short_as_theorem_22_says():
    """``2 (sqrt(M) + 1) (F(w) / (alpha T) + alpha L (tau^2 / (2 eps^2 b) + d z^2 C^2 / (2 b^2)))``: 29; 1.4 found."""
    d, b, clip, s, eps, size, spread, steps = 10, 4.0, 5.0, 5, 0.5, 0.3, 0.5, 400
    bends, x = jnp.linspace(0.1, 1.0, d), centred(40, d, spread)
    model = parabola(bends)
    work = eh.privacy.dp2(
        model, (size, size), clips=(clip, clip), delay=s, eps=eps, noise_multiplier=1.0, rate=b / 40, steps=1
    )
    continued, data = work.continued, client(x, np.zeros(40, np.float32))
    assert continued is not None

    def step(carry, key):
        params, state = carry
        squared = jnp.sum(jnp.square(bends * params))
        return continued.solve(params, state, data, key), squared

    begin = jnp.ones(d), continued.init(jnp.ones(d))
    path = jax.jit(lambda key: jax.lax.scan(step, begin, jax.random.split(key, steps))[1])
    found = np.mean([path(jax.random.key(seed)) for seed in range(5)])
    root = np.sqrt(clip**2 * (1 + 1 / (s * b**2)))
    start, noise = 0.5 * float(bends.sum()), d * clip**2 / (2 * b**2)
    bound = 2 * (root + 1) * (start / (size * steps) + size * (spread**2 / (2 * eps**2 * b) + noise))
    assert 28.9 < bound < 29.1 and 1.0 < found < 2.0


def test_the_step_sizes_of_theorem_21_fall_by_a_factor_at_each_change_of_phase():
    """``alpha^(floor(t / 2s) + floor((t + s) / 2s) + 1) / sqrt(t)``; read as a factor, they would grow."""
    s, alpha = 3, 0.5

    def size(step):
        t = step + 1
        return alpha ** (t // (2 * s) + (t + s) // (2 * s) + 1) / np.sqrt(t)

    table = jnp.asarray([size(step) for step in range(4 * s)])
    sizes = (lambda t: table[t], lambda t: table[t])
    rule = delayed_rule("test", sizes, (1.0, 1.0), (s, s), Moment("rmsprop", 0.5, 1.0))
    state, taken = rule.init({"w": jnp.zeros(1)}), []
    iteration = Iteration({"w": jnp.zeros(1)}, jax.random.key(0), lambda clip: jnp.float32(0.5), lambda: None)
    for _ in range(4 * s):
        _, state = rule.before(state, iteration)
        direction, state = rule.after({"w": jnp.ones(1)}, state, iteration)
        taken.append(float(direction["w"][0]))
    np.testing.assert_allclose(taken, [size(step) for step in range(4 * s)], rtol=1e-6)
    assert np.all(np.diff(taken) < 0)
    # t counts from 1: without the root, each s-th step is shorter by alpha and all others are as long.
    ratios = np.diff(np.log(np.array(taken) * np.sqrt(np.arange(1, 4 * s + 1)))) / np.log(alpha)
    np.testing.assert_allclose(ratios, [float((t + 1) % s == 0) for t in range(1, 4 * s)], atol=1e-5)


# --- how far the delay takes the preconditioner from the gradients ---------------------------------------------------


def norm1(values):
    return sum(np.abs(leaf).sum() for leaf in values.values())


def seen(s):
    """Of each step of Algorithm 11: its clean gradient, and the last mean of ``s`` answers that ``v`` is made of."""
    inner, gradients, means = algorithm(s, s), [], []

    def step(w, ask, at):
        kept, answers = at.kept, []

        def asked(*arguments):
            answers.append(ask(*arguments))
            return answers[-1]

        if at.t % (2 * s) == s:
            kept["mean"] = tree_map(lambda total: total / s, kept["G"])
        gradients.append(mean_of(examples(w, X[at.rows], Y[at.rows])))
        means.append(kept.get("mean"))
        return inner(w, asked, at)

    loop(step)
    return gradients, means


def test_staleness_is_the_ratio_of_the_norms_of_the_loop():
    s = 3
    rule = _observed(
        delayed_rule("test", SIZES, CLIPS, s, Moment("rmsprop", BETA, EPS)), ROUNDS * STEPS, s, EPS
    )
    norms = trained(oracle_work(MODEL, rule, Noise(CLIPS, **COMMON)))[1][1].norms
    gradients, means = seen(s)
    wanted = [
        [norm1(g) for g in gradients],
        [np.nan if m is None else norm1(tree_map(lambda leaf: np.abs(leaf) + EPS, m)) for m in means],
    ]
    np.testing.assert_allclose(norms, wanted, rtol=1e-3)
    assert np.isnan(norms[1]).sum() == s


def test_staleness_is_bounded_as_in_its_proof():
    """``h(s) <= |b| / (|a + b| + d eps) + s M' / (d eps)``: ``b`` the mean of gradients, ``a`` that of their noise."""
    s, d = 3, sum(leaf.size for leaf in begin().values())
    gradients, means = seen(s)
    change = max(norm1(tree_map(np.subtract, a, b)) for a, b in itertools.pairwise(gradients))
    for t in range(s, ROUNDS * STEPS):
        first = (t - s) // (2 * s) * 2 * s
        clean = tree_map(lambda *leaves: sum(leaves) / s, *gradients[first : first + s])
        noisy = norm1(means[t]) + d * EPS
        # Of the last sum, the youngest gradient is 2 s steps old at most.
        assert norm1(gradients[t]) / noisy <= norm1(clean) / noisy + 3 * s * change / (d * EPS)


@pytest.mark.parametrize("name", ["decay", "eps"])
def test_numbers_of_moments_that_know_no_step_are_no_schedules(name):
    settings: Any = {"clips": CLIPS, "delay": 2, **COMMON}
    scheduled: Any = {name: optax.constant_schedule(0.5)}
    for method in (eh.privacy.dp2, eh.privacy.dp2_extra_query):
        with pytest.raises(eh.EvenhandError, match=rf"{name}=\): give a number, not a schedule"):
            method(MODEL, SIZES, **settings, **scheduled)
    takes_no_step: Any = float
    with pytest.raises(
        eh.EvenhandError, match=r"^dp2\(step_sizes=\): the schedule fails at step 0 \(.*\): give"
    ):
        eh.privacy.dp2(MODEL, (lambda step: takes_no_step(step, step), 0.1), **settings)


def test_staleness_grows_with_the_delay_and_has_known_values_without_noise():
    """On a parabola, ``|g| / (|mean of g| + d eps)`` by hand; gradients shrink, so the first ratio is the largest."""
    bends, size, eps, s = np.linspace(0.1, 1.0, 5), 0.3, 0.1, 4
    settings = {"clips": (1e3, 1e3), "noise_multiplier": 0.0, "rate": 1.0, "steps": 12, "runs": 1, "eps": eps}
    public = np.zeros((3, 5), np.float32), np.zeros(3, np.float32)
    ratio = eh.privacy.staleness(parabola(bends), (size, 0.0), public=public, delay=s, **settings)
    path = np.array([bends * (1 - size * bends) ** t for t in range(s + 1)])
    np.testing.assert_allclose(ratio.gradients[: s + 1], path.sum(axis=1), rtol=1e-5)
    wanted = path[s].sum() / (path[:s].mean(axis=0).sum() + 5 * eps)
    assert ratio.largest == pytest.approx(wanted, rel=1e-5)
    # Noise that is longer than the gradients falls with the root of the delay.
    noisy = {**settings, "noise_multiplier": 1.0, "clips": (1e2, 1e2), "runs": 20, "steps": 34}
    short, long = (
        eh.privacy.staleness(parabola(bends), (1e-4, 1e-4), public=public, delay=s, **noisy).largest
        for s in (1, 16)
    )
    assert 3.0 < long / short < 4.5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 3}, "nothing is divided before step 4"),
        ({"runs": 0}, "runs"),
        ({"public": (X, Y[:-1])}, "as many inputs as labels"),
        ({"delay": (3, 3)}, "delay"),
        ({"kind": "adam"}, "kind"),
    ],
)
def test_a_staleness_that_cannot_be_measured_is_refused(changed: dict[str, Any], words: str):
    usual: dict[str, Any] = {"public": (X, Y), "clips": CLIPS, "delay": 3, **COMMON}
    with pytest.raises(EvenhandError, match=words):
        eh.privacy.staleness(MODEL, SIZES, **{**usual, **changed})


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("dp2", {"clips": 1.0}, r"dp2\(clips=1.0\): give two"),
        ("dp2", {"clips": (1.0,)}, r"dp2\(clips=\(1.0,\)\): give two"),
        ("dp2", {"step_sizes": 0.5}, r"dp2\(step_sizes=0.5\): give two"),
        ("dp2", {"delay": (1, 2, 3)}, r"dp2\(delay=\(1, 2, 3\)\): give two"),
        ("dp2_extra_query", {"clips": (1.0,)}, r"dp2_extra_query\(clips=\(1.0,\)\): give two"),
    ],
)
def test_pairs_of_another_length_are_one_sentence(name: str, settings: dict[str, Any], words: str):
    usual: dict[str, Any] = {"step_sizes": (0.5, 0.1), "clips": (1.0, 1.0), "delay": 2}
    usual |= {"noise_multiplier": 1.0, "rate": 0.1, "steps": 2}
    make = {"dp2": eh.privacy.dp2, "dp2_extra_query": eh.privacy.dp2_extra_query}[name]
    with pytest.raises(EvenhandError, match=words):
        make(MODEL, **{**usual, **settings})
