"""Step sizes by round and kept optimisers, against loops over rounds in float64 NumPy.

Full batches and all clients, unless a test says otherwise; each loop takes its factor of round ``t`` from a list.
"""

from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from softmax_oracle import DATA, MODEL, SIZES, average, combine, gradient, loss

import evenhand as eh
from evenhand.algorithms.averaging import training
from evenhand.errors import EvenhandError
from evenhand.rounds import cohort
from evenhand.streams import keys_of

ROUNDS, STEPS, LR, MU, LAM = 6, 3, 0.2, 0.3, 0.7
HALVED = eh.local.steps(0.5, every=2)
FACTORS = [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
ALL = range(len(SIZES))


def work(schedule=None, optimiser: Any = LR, **options):
    return eh.local.sgd(MODEL, optimiser, epochs=STEPS, schedule=schedule, **options)


@cache
def initial(seed):
    return eh.simulate(eh.algorithms.fedavg(work()), DATA, rounds=0, seed=seed).params


def begin(seed=0):
    return {name: np.array(leaf, np.float64) for name, leaf in initial(seed).items()}


def descend(w, k, lr, extra=lambda v: 0.0):
    for _ in range(STEPS):
        added = extra(w)
        slope = gradient(w, k)
        slope = slope if isinstance(added, float) else combine(np.add, slope, added)
        w = combine(lambda p, g: p - lr * g, w, slope)
    return w


def away(scale, anchor, v):
    return combine(lambda a, b: scale * (a - b), v, anchor)


def fedavg(factors, lr=LR):
    w = begin()
    for f in factors:
        w = average([descend(w, k, lr * f) for k in ALL], SIZES)
    return w


def fedprox(factors):
    w = begin()
    for f in factors:
        w = average([descend(w, k, LR * f, partial(away, MU, w)) for k in ALL], SIZES)
    return w


def feddane(factors):
    w = begin()
    for f in factors:
        slopes = [gradient(w, k) for k in ALL]
        mean = average(slopes, SIZES)

        def extra(v, k, w=w, mean=mean, slopes=slopes):
            return combine(lambda a, b, c, d: a - b + MU * (c - d), mean, slopes[k], v, w)

        w = average([descend(w, k, LR * f, partial(extra, k=k)) for k in ALL], SIZES)
    return w


def scaffold(factors):
    """Option II with the round's step size: c_k+ = c_k - c + (w - w_k) / (S lr f)."""
    w = begin()
    c, controls = combine(np.zeros_like, w), [combine(np.zeros_like, w) for _ in ALL]
    for f in factors:
        models = [
            descend(w, k, LR * f, lambda v, c_k=controls[k], c=c: combine(np.subtract, c, c_k)) for k in ALL
        ]
        after = [
            combine(
                lambda ck, cc, a, b, f=f: ck - cc + (a - b) / (STEPS * LR * f), controls[k], c, w, models[k]
            )
            for k in ALL
        ]
        changes = [combine(np.subtract, after[k], controls[k]) for k in ALL]
        w, controls = average(models, np.ones(len(SIZES))), after
        c = combine(np.add, c, average(changes, np.ones(len(SIZES))))
    return w


def qfedavg(factors, curvature=lambda f: 1.0 / (LR * f)):
    """Algorithm 2 with q = 1, L one over the round's step size; all clients, so sums are unweighted."""
    w = begin()
    for f in factors:
        up, h, lipschitz = [], 0.0, curvature(f)
        for k in ALL:
            moved = combine(lambda a, b, lip=lipschitz: lip * (a - b), w, descend(w, k, LR * f))
            square = sum(np.sum(leaf**2) for leaf in moved.values())
            value = loss(w, k)
            up.append(combine(lambda d, value=value: value * d, moved))
            h += square + lipschitz * value
        w = combine(lambda p, *ds, h=h: p - sum(ds) / h, w, *up)
    return w


UNWEIGHTED = eh.sampling.uniform(weighted=False)
CASES = {
    "fedavg": (lambda w: eh.algorithms.fedavg(w), fedavg),
    "fedprox": (lambda w: eh.algorithms.fedprox(w, mu=MU), fedprox),
    "feddane": (lambda w: eh.algorithms.feddane(w, mu=MU), feddane),
    "scaffold": (lambda w: eh.algorithms.scaffold(w), scaffold),
    "qfedavg": (lambda w: eh.algorithms.qfedavg(w, q=1.0, sampling=UNWEIGHTED), qfedavg),
}


def final(method, rounds=ROUNDS, **options):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=rounds, **options)


@cache
def trained(name, schedule):
    return final(CASES[name][0](work(schedule))).params


def distance(a, b):
    return max(np.max(np.abs(np.asarray(a[leaf]) - np.asarray(b[leaf]))) for leaf in ("w", "b"))


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_equals_a_loop_over_rounds_with_that_step_size(name):
    loop = CASES[name][1]
    assert distance(trained(name, HALVED), loop(FACTORS)) < 2e-6
    # Neither the constant step size nor a schedule that is one round late does.
    assert distance(trained(name, HALVED), loop([1.0] * ROUNDS)) > 1e-3
    assert distance(trained(name, HALVED), loop([1.0, *FACTORS[:-1]])) > 1e-3


def test_the_curvature_of_qfedavg_is_one_over_the_step_size_of_each_round():
    fixed = qfedavg(FACTORS, lambda f: 1.0 / LR)
    assert distance(qfedavg(FACTORS), fixed) > 1e-4
    method = eh.algorithms.qfedavg(work(HALVED), q=1.0, lipschitz=1 / LR, sampling=UNWEIGHTED)
    assert distance(final(method).params, fixed) < 2e-6, "a curvature that is given holds for all rounds"


def test_rounds_without_uploads_count_in_the_curvature_of_qfedavg():
    """In every second round all clients drop out, so a count of the rounds with uploads would be wrong."""

    def draw(key, drawn, keep_partial):
        # The only odd thing about a round that its cohort can show is its key.
        return drawn._replace(present=drawn.present & (jax.random.bits(key, dtype=jnp.uint32) % 2 == 0))

    systems, method = eh.systems.Systems(draw), CASES["qfedavg"][0](work(HALVED))
    sizes = jnp.asarray(SIZES, jnp.int32)
    there = [
        bool(cohort(method, systems, sizes, 6, keys_of(0), number, 0).present.all())
        for number in range(ROUNDS)
    ]
    assert 0 < sum(there) < ROUNDS and not all(there[:2])
    run = final(method, systems=systems)
    np.testing.assert_array_equal(run.per_round["reported"] > 0, there)
    expected = qfedavg([f for f, came in zip(FACTORS, there, strict=True) if came])
    assert distance(run.params, expected) < 2e-6
    assert distance(run.params, qfedavg(FACTORS[: sum(there)])) > 1e-4
    # Nothing else changes in a round without uploads: the server's momentum takes no step.
    method = eh.algorithms.qfedavg(work(HALVED), q=1.0, server_opt=optax.sgd(1.0, momentum=0.5))
    runs = eh.simulation.iterate(method, DATA, rounds=ROUNDS, systems=systems, eval_every=1)
    moves = [distance(after.params, before.params) > 0 for before, after in pairwise(runs)]
    assert moves == there and not all(there[there.index(True) :])


@pytest.mark.parametrize("name", ["fedavg", "qfedavg"])
def test_a_schedule_of_one_changes_no_bit_and_a_constant_is_a_step_size(name):
    make = CASES[name][0]
    plain = trained(name, None)
    for one in (optax.constant_schedule(1.0), lambda round: 1.0 + 0.0 * round.astype(jnp.float32)):
        jax.tree.map(np.testing.assert_array_equal, final(make(work(one))).params, plain)
    third = final(make(work(optax.constant_schedule(0.3)))).params
    assert distance(third, final(make(work(None, 0.3 * LR))).params) < 1e-6
    assert distance(third, plain) > 1e-3


def test_a_schedule_of_rounds_is_not_one_that_restarts_in_each_round():
    falling = optax.cosine_decay_schedule(1.0, ROUNDS)
    with jax.numpy_dtype_promotion("standard"):
        restarting = work(None, optax.sgd(lambda count: LR * falling(count)))
        with pytest.warns(eh.errors.EvenhandWarning, match="schedule="):
            run = final(eh.algorithms.fedavg(restarting))
    assert [finding.kind for finding in run.findings] == ["schedule"]
    scheduled = final(eh.algorithms.fedavg(work(falling)))
    assert scheduled.findings == ()
    factors = [0.5 * (1 + np.cos(np.pi * t / ROUNDS)) for t in range(ROUNDS)]
    assert distance(scheduled.params, fedavg(factors)) < 2e-6
    assert distance(scheduled.params, trained("fedavg", eh.local.cosine(ROUNDS))) == 0.0
    assert distance(scheduled.params, run.params) > 1e-3


@pytest.mark.parametrize("implicit", [False, True])
def test_ditto_takes_the_step_size_of_the_round_for_both_models(implicit):
    method = eh.personalization.ditto(
        eh.algorithms.fedavg(work(HALVED)), work(HALVED), lam=LAM, implicit=implicit
    )
    run, own, w = final(method), [begin() for _ in ALL], begin()
    for f in FACTORS:
        lr = LR * f
        for k in ALL:
            for _ in range(STEPS):
                step = combine(lambda g, v, a: g + LAM * (v - a), gradient(own[k], k), own[k], w)
                shrink = 1.0 / (1.0 + lr * LAM) if implicit else 1.0
                own[k] = combine(lambda v, g, s=lr * shrink: v - s * g, own[k], step)
        w = average([descend(w, k, lr) for k in ALL], SIZES)
    for k in ALL:
        assert distance(run.personal_params(k), own[k]) < 2e-6


def test_dynamic_ditto_tries_its_candidates_with_the_step_size_of_the_round():
    """At a third of the step size, a penalty of 15 leads to the received model, and at all of it far beyond."""
    make = partial(eh.personalization.dynamic_ditto, lams=(0.1, 15.0), held_out=0.5, few=0)
    third = optax.constant_schedule(1 / 3)
    scheduled, smaller, plain = (
        served(final(make(eh.algorithms.fedavg(one), one)))
        for one in (work(third), work(None, LR / 3), work())
    )
    np.testing.assert_allclose(scheduled, smaller, atol=1e-6)
    assert np.abs(scheduled - plain).max() > 1e-3


# The methods with a loop of their own: a constant factor is a step size, in each of them.
P = eh.personalization
OWN_LOOPS = {
    "apfl": lambda w: P.apfl(w, alpha=0.5, alpha_step=0.1),
    "fedalt": lambda w: P.fedalt(w, personal="b"),
    "fedbabu": lambda w: P.fedbabu(w, head="b"),
    "l2sgd": lambda w: P.l2sgd(w, lam=0.5),
    "local_only": lambda w: P.local_only(w),
    "mapper": lambda w: P.mapper(w, gammas=(0.25, 0.75)),
    "per_fedavg": lambda w: P.per_fedavg(w, alpha=0.1),
    "pfedme": lambda w: P.pfedme(w, lam=2.0, inner_step=0.1, inner_steps=2),
    "fedtilt": lambda w: eh.algorithms.fedtilt(w, tilt_class=1.0, prox_mu=0.5),
    "adadps_fl": lambda w: eh.privacy.adadps_fl(
        w,
        divided_by={"w": np.full((4, 3), 2.0, np.float32), "b": np.ones(3, np.float32)},
        clip=9.0,
        noise_multiplier=1e-6,
        rate=1.0,
    ),
}


def served(run):
    models = [run.personal_params(k) if run.has_personal_models else run.params for k in ALL]
    return np.concatenate([np.ravel(leaf) for model in models for leaf in jax.tree.leaves(model)])


@pytest.mark.parametrize("name", OWN_LOOPS)
def test_methods_with_a_loop_of_their_own_follow_the_schedule(name):
    make = OWN_LOOPS[name]
    scheduled = served(final(make(work(optax.constant_schedule(0.5))), rounds=2))
    np.testing.assert_allclose(scheduled, served(final(make(work(None, LR / 2)), rounds=2)), atol=2e-6)
    assert np.abs(scheduled - served(final(make(work()), rounds=2))).max() > 1e-3


def test_alone_follows_the_schedule():
    one = eh.data.from_arrays(DATA.train.x, DATA.train.y, client=np.zeros(DATA.train.rows, int))
    ends = [
        eh.simulate(eh.algorithms.alone(work(schedule, lr)), one, rounds=2).params
        for schedule, lr in ((optax.constant_schedule(0.5), LR), (None, LR / 2), (None, LR))
    ]
    assert distance(ends[0], ends[1]) < 1e-6 < 1e-3 < distance(ends[0], ends[2])


def test_alone_keeps_the_optimiser_whether_the_work_says_so_or_not():
    one = eh.data.from_arrays(DATA.train.x, DATA.train.y, client=np.zeros(DATA.train.rows, int))
    ends = [eh.simulate(eh.algorithms.alone(momentum(keep)), one, rounds=2).params for keep in (True, False)]
    assert distance(*ends) == 0.0


@pytest.mark.filterwarnings("ignore:The model did not change")
def test_finetuning_before_an_evaluation_is_no_round():
    """It takes the step size itself: at the end of a cosine the step size is 0, and nothing would be tuned."""
    stopped = optax.constant_schedule(0.0)
    frozen = final(P.finetune(eh.algorithms.fedavg(work(stopped)), work(stopped)))
    assert distance(frozen.params, begin()) < 1e-7
    tuned = final(P.finetune(eh.algorithms.fedavg(work(stopped)), work()))
    losses = [run.client_metrics("train") for run in (frozen, tuned)]
    np.testing.assert_array_equal(losses[0]["loss"], losses[1]["loss"])
    assert np.all(losses[0]["loss"] < losses[0]["global_loss"] - 1e-3)


# --- the schedules themselves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (eh.local.steps(0.3, every=7), lambda t: 0.3 ** (t // 7)),
        (eh.local.steps(2.0, every=1), lambda t: 2.0**t),
        (eh.local.cosine(30, end=0.1), lambda t: 0.1 + 0.9 * (1 + np.cos(np.pi * min(t / 30, 1))) / 2),
        (eh.local.warm_up(20), lambda t: max(0.0, t / 2 if t < 2 else (20 - t) / 18)),
        (eh.local.warm_up(20, share=0.5), lambda t: max(0.0, t / 10 if t < 10 else (20 - t) / 10)),
    ],
)
def test_schedules_equal_their_formulas(schedule, expected):
    values = [float(schedule(jnp.int32(t))) for t in range(40)]
    np.testing.assert_allclose(values, [expected(t) for t in range(40)], rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("every", [41, 47, 55])
def test_steps_are_on_time_in_a_program_that_holds_their_length(every):
    """A deployed client compiles the length in, and XLA may then multiply by its inverse, which rounds."""
    factor = jax.jit(lambda t: eh.local.steps(0.5, every=every)(t))
    assert [float(factor(jnp.int32(t))) for t in (every - 1, every, 2 * every)] == [1.0, 0.5, 0.25]


def test_schedules_of_equal_arguments_are_one():
    assert eh.local.steps(0.5, every=2) is eh.local.steps(0.5, every=2)
    assert eh.local.cosine(5) is eh.local.cosine(5) and eh.local.warm_up(5) is eh.local.warm_up(5)
    assert eh.local.steps(0.5, every=2) != eh.local.steps(0.5, every=3)
    assert repr(eh.local.warm_up(5)) == "<Schedule warm_up(5)>"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: eh.local.steps(0.0, every=2), "finite factor above 0"),
        (lambda: eh.local.steps(0.5, every=0), "every"),
        (lambda: eh.local.cosine(0), "rounds"),
        (lambda: eh.local.cosine(5, end=-1.0), "end of 0 or more"),
        (lambda: eh.local.warm_up(5, share=1.0), "between 0 and 1"),
        (lambda: work(0.5), "no function of the round"),
        (lambda: work(lambda round: jnp.ones(2)), "an array of shape"),
        (lambda: work(lambda round: [1, 2][round]), "fails on a round"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(EvenhandError, match=sentence):
        make()


# --- optimisers that clients keep --------------------------------------------------------------------------------

BETA = 0.8


def momentum(keep=True, schedule=None):
    return work(schedule, optax.sgd(LR, momentum=BETA), keep_optimiser=keep)


def heavy_ball(there, *, keep=True, factors=FACTORS):
    """FedAvg of heavy-ball clients; ``there``: of each round, the clients whose work counts."""
    w = begin()
    traces = [combine(np.zeros_like, w) for _ in ALL]
    for f, drawn in zip(factors, there, strict=True):
        models = []
        for k in drawn:
            v, trace = w, traces[k] if keep else combine(np.zeros_like, w)
            for _ in range(STEPS):
                trace = combine(lambda g, m: g + BETA * m, gradient(v, k), trace)
                v = combine(lambda p, m, f=f: p - LR * f * m, v, trace)
            models.append(v)
            traces[k] = trace
        w = average(models, SIZES[list(drawn)]) if models else w
    return w


def test_kept_momentum_equals_a_loop_in_which_it_lives_on():
    run = final(eh.algorithms.fedavg(momentum(schedule=HALVED)))
    assert distance(run.params, heavy_ball([ALL] * ROUNDS)) < 5e-6
    fresh = final(eh.algorithms.fedavg(momentum(keep=False, schedule=HALVED))).params
    assert distance(fresh, heavy_ball([ALL] * ROUNDS, keep=False)) < 5e-6
    assert distance(run.params, fresh) > 1e-2


@pytest.mark.filterwarnings("ignore:The server rejected")
@pytest.mark.parametrize("kind", ["dropouts", "stragglers", "rejected"])
def test_clients_whose_work_does_not_count_keep_the_momentum_that_they_had(kind):
    method = eh.algorithms.fedavg(momentum(schedule=HALVED))
    share = {"dropouts": eh.systems.dropouts(0.5), "stragglers": eh.systems.stragglers(0.5)}.get(kind)
    attack = eh.attacks.by_clients(eh.attacks.non_finite(), (1, 4)) if kind == "rejected" else None
    run = final(method, systems=share, attack=attack)
    drawn = [
        cohort(method, share, jnp.asarray(SIZES, jnp.int32), 6, keys_of(0), number, 0)
        for number in range(ROUNDS)
    ]
    there = [np.sort(np.asarray(each.ids)[np.asarray(each.present)]) for each in drawn]
    if kind == "rejected":
        there = [[k for k in ALL if k not in (1, 4)]] * ROUNDS
    assert any(0 < len(clients) < 6 for clients in there)
    assert distance(run.params, heavy_ball(there)) < 5e-6


def test_work_without_an_optimisers_state_may_be_kept_and_changes_nothing():
    kept = final(eh.algorithms.fedavg(work(HALVED, keep_optimiser=True))).params
    assert distance(kept, trained("fedavg", HALVED)) == 0.0


KEEPING = {
    "fedprox": lambda w: eh.algorithms.fedprox(w, mu=MU),
    "fedprox_adaptive": lambda w: eh.algorithms.fedprox_adaptive(w, mu0=0.1),
    "feddane": lambda w: eh.algorithms.feddane(w, mu=MU),
    "scaffold": lambda w: eh.algorithms.scaffold(w),
    "qfedavg": lambda w: eh.algorithms.qfedavg(w, q=1.0, lipschitz=5.0),
    "term": lambda w: eh.algorithms.term(w, t=1.0),
    "delta_fl": lambda w: eh.algorithms.delta_fl(w, theta=0.5),
    "fedmgda": lambda w: eh.algorithms.fedmgda(w),
    "dp_fedavg": lambda w: eh.privacy.dp_fedavg(w, clip=1.0, noise_multiplier=0.1, rate=0.9),
    "ditto": lambda w: P.ditto(eh.algorithms.fedavg(w), w, lam=LAM),
    "finetune": lambda w: P.finetune(eh.algorithms.fedavg(w), w),
}


@pytest.mark.parametrize("name", KEEPING)
def test_clients_of_these_methods_keep_the_momentum(name):
    def state(keep):
        return jax.eval_shape(KEEPING[name](momentum(keep)).init_client, begin())

    extra = [leaf.shape for leaf in jax.tree.leaves(state(True))]
    for leaf in jax.tree.leaves(state(False)):
        extra.remove(leaf.shape)
    assert sorted(extra) == sorted([(3,), (4, 3)] * (2 if name == "ditto" else 1))


@pytest.mark.parametrize("name", ["scaffold", "finetune"])
def test_methods_that_keep_momentum_differ_from_those_that_do_not_from_round_two_on(name):
    def after(keep, rounds):
        return served(final(KEEPING[name](momentum(keep)), rounds=rounds))

    np.testing.assert_allclose(after(True, 1), after(False, 1), atol=1e-6)
    assert np.abs(after(True, 3) - after(False, 3)).max() > 1e-3


def test_a_method_of_parts_keeps_the_momentum():
    method = eh.types.Algorithm(
        model=MODEL,
        init=lambda params, clients: eh.build.server_init(optax.sgd(1.0), params),
        phases=(training(momentum(), keeps=True),),
        global_params=eh.build.global_params,
        sampling=eh.sampling.uniform(),
        init_client=eh.build.kept_state(momentum()),
    )
    assert distance(final(method).params, final(eh.algorithms.fedavg(momentum())).params) == 0.0


def test_personal_momentum_of_ditto_equals_a_loop():
    """The personal models' momentum lives on beside them; the global model has plain steps."""
    run = final(P.ditto(eh.algorithms.fedavg(work()), momentum(), lam=LAM))
    w, own = begin(), [begin() for _ in ALL]
    traces = [combine(np.zeros_like, w) for _ in ALL]
    for _ in range(ROUNDS):
        for k in ALL:
            for _ in range(STEPS):
                step = combine(lambda g, v, a: g + LAM * (v - a), gradient(own[k], k), own[k], w)
                traces[k] = combine(lambda g, m: g + BETA * m, step, traces[k])
                own[k] = combine(lambda v, m: v - LR * m, own[k], traces[k])
        w = average([descend(w, k, LR) for k in ALL], SIZES)
    for k in ALL:
        assert distance(run.personal_params(k), own[k]) < 5e-6


@pytest.mark.parametrize(
    "make",
    [
        *(OWN_LOOPS[name] for name in OWN_LOOPS),
        lambda w: P.dynamic_ditto(eh.algorithms.fedavg(work()), w),
        lambda w: P.fedsim(w, personal="b"),
        lambda w: eh.privacy.dp_delta_fl(
            w, theta=0.5, largest_loss=9.0, clip=1.0, noise_multiplier=1.0, rate=0.5
        ),
        training,
    ],
)
def test_methods_whose_clients_keep_no_optimiser_refuse_one(make):
    with pytest.raises(EvenhandError, match="keep_optimiser=True, but the clients of this method"):
        make(momentum())


# --- twin, devices, checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        eh.algorithms.qfedavg(work(HALVED), q=1.0),
        eh.algorithms.scaffold(momentum(schedule=HALVED)),
        P.ditto(eh.algorithms.feddane(momentum(), mu=MU), momentum(schedule=eh.local.cosine(4)), lam=LAM),
    ],
    ids=["qfedavg", "scaffold", "ditto"],
)
def test_scheduled_and_kept_work_obeys_the_contract(method):
    """The twin equals the engine, with several lanes and devices."""
    eh.testing.check_algorithm(method)


@pytest.mark.parametrize("name", ["fedavg", "qfedavg", "scaffold"])
def test_a_resumed_run_is_the_whole_run(name, tmp_path):
    make = {
        "fedavg": eh.algorithms.fedavg,
        "scaffold": eh.algorithms.scaffold,
        "qfedavg": CASES["qfedavg"][0],
    }
    method = make[name](work(HALVED) if name == "qfedavg" else momentum(schedule=HALVED))
    whole = final(method)
    final(method, rounds=3, checkpoint=tmp_path / "a")
    resumed = final(method, checkpoint=tmp_path / "a")
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    other = make[name](work(eh.local.steps(0.4, every=2)) if name == "qfedavg" else momentum())
    with pytest.raises(EvenhandError):
        final(other, rounds=9, checkpoint=tmp_path / "a")


def test_another_schedule_of_a_kind_compiles_nothing():
    from evenhand.simulation import engine

    def keys(schedule):
        return final(eh.algorithms.fedavg(work(schedule)), rounds=1)

    keys(eh.local.steps(0.5, every=2))
    before = engine._compiled.cache_info().misses
    keys(eh.local.steps(0.7, every=3))
    assert engine._compiled.cache_info().misses == before


def test_kept_optimisers_may_stay_on_the_host():
    method = eh.algorithms.fedavg(momentum(schedule=HALVED))
    on_host, on_device = (final(method, cohort=3, offload=offload) for offload in (True, False))
    assert distance(on_host.params, on_device.params) < 1e-6
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        on_host.state.clients,
        on_device.state.clients,
    )
