"""Personal methods in degenerate cases, each with a value at which the two must differ; and the specified traces."""

import importlib
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh

MODEL, DATA = eh.testing.toy_model(), eh.testing.toy_data()
WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
PRIVATE = eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=2)
FULL = eh.local.sgd(MODEL, 0.1, epochs=2)
COUNT, ROUNDS, CLIENTS = 3, 4, range(DATA.num_clients)
P = eh.personalization
GLOBAL = {
    "fedavg": eh.algorithms.fedavg(WORK),
    "scaffold": eh.algorithms.scaffold(WORK),
    "feddane": eh.algorithms.feddane(WORK, mu=0.1),
    "median": eh.algorithms.fedavg(WORK, aggregator=eh.aggregators.coordinate_median()),
    "fedadam": eh.algorithms.fedavg(WORK, server_opt=eh.server_opt.fedadam(0.1)),
    "qfedavg": eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=10.0, sampling=eh.sampling.uniform()),
}


def run(method, rounds=ROUNDS, cohort: int | None = COUNT, data=DATA, **more):
    return eh.simulate(method, data, rounds=rounds, cohort=cohort, eval_every=rounds, **more)


def leaves(*trees):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trees)])


def served(found):
    return leaves([found.personal_params(k) for k in CLIENTS])


def same(a, b):
    return np.array_equal(leaves(a), leaves(b))


@cache
def plain(name):
    return run(GLOBAL[name])


@cache
def without_a_penalty():
    return served(run(P.ditto(GLOBAL["fedavg"], WORK, lam=0.0)))


@pytest.mark.parametrize("lam", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("name", GLOBAL)
def test_the_global_model_is_the_same_to_the_bit_with_ditto_and_without(name, lam):
    found = run(P.ditto(GLOBAL[name], WORK, lam=lam))
    assert same(found.params, plain(name).params)
    assert (found.history["train_loss"][-1] == plain(name).history["train_loss"][-1]) == (lam == math.inf)
    # Without a penalty the personal models know nothing of the method: one pass a round, however many exchanges.
    assert (np.abs(served(found) - without_a_penalty()).max() < 1e-6) == (lam == 0.0)


def of_a_fixed_size(clients):
    """Methods that begin with no other number of clients, or not with a single one."""
    turns = {"noise_multiplier": 1.0, "cohort": 3, "clients": clients}
    halves = {"noise_multiplier": 2.0, "rate": 0.5, "at_server": False, "fewest": 3}
    return {
        "dp_ftrl": eh.privacy.dp_ftrl(WORK, clip=0.5, **turns),
        "dp_fed2": eh.privacy.dp_fed2(WORK, step_sizes=(1.0, 0.1), clips=(0.5, 5.0), delay=2, **turns),
        "dp_delta_fl": eh.privacy.dp_delta_fl(WORK, theta=0.5, largest_loss=3.0, clip=0.5, **halves),
    }


@pytest.mark.parametrize("name", ["dp_ftrl", "dp_fed2", "dp_delta_fl"])
def test_ditto_goes_around_a_method_of_a_fixed_size(name):
    method = of_a_fixed_size(len(CLIENTS))[name]
    found = [eh.simulate(each, DATA, rounds=0) for each in (method, P.ditto(method, WORK))]
    assert same(found[0].state.server, found[1].state.server)


def test_another_number_of_clients_is_refused_when_the_run_begins():
    with pytest.raises(eh.EvenhandError, match=r"dp_ftrl\(clients=7\): there are 6"):
        eh.simulate(P.ditto(of_a_fixed_size(7)["dp_ftrl"], WORK), DATA, rounds=0)


def test_the_global_model_is_the_same_with_dynamic_penalties():
    for per_run in (False, True):
        found = run(P.dynamic_ditto(GLOBAL["scaffold"], WORK, per_run=per_run))
        assert same(found.params, plain("scaffold").params)


def test_ditto_without_a_penalty_on_the_same_batches_is_local_training():
    alone = served(run(P.local_only(WORK)))
    assert same(served(run(P.ditto(GLOBAL["fedavg"], WORK, lam=0.0, same_batches=True))), alone)
    assert not same(served(run(P.ditto(GLOBAL["fedavg"], WORK, lam=0.0))), alone)  # its own batches
    assert not same(served(run(P.ditto(GLOBAL["fedavg"], WORK, lam=0.1, same_batches=True))), alone)


def test_where_all_clients_begin_in_the_first_round_the_model_received_is_the_initial_one():
    for work in (
        WORK,
        eh.local.sgd(MODEL, optax.sgd(0.1, momentum=0.9), epochs=2, batch_size=4, keep_optimiser=True),
    ):
        late, early = (
            P.ditto(GLOBAL["fedavg"], work, lam=0.5, origin=origin) for origin in ("received", "initial")
        )
        assert same(served(run(late, cohort=6)), served(run(early, cohort=6)))
        assert not same(served(run(late)), served(run(early)))  # some begin later


def test_ditto_with_an_infinite_penalty_serves_the_global_model():
    found = run(P.ditto(GLOBAL["scaffold"], WORK, lam=math.inf))
    for k in CLIENTS:
        assert same(found.personal_params(k), plain("scaffold").params)


def test_an_implicit_penalty_may_be_huge_and_leads_to_the_model_received():
    before = run(GLOBAL["fedavg"], rounds=ROUNDS - 1, cohort=6).params
    for lam, near in ((1e7, True), (1.0, False)):
        found = run(P.ditto(GLOBAL["fedavg"], WORK, lam=lam, implicit=True), cohort=6)
        for k in CLIENTS:
            assert (np.abs(leaves(found.personal_params(k)) - leaves(before)).max() < 1e-5) == near


def test_nothing_personal_is_fedavg_to_the_bit_and_everything_is_local_training():
    for make in (P.fedalt, P.fedsim):
        found = run(make(WORK, personal=()))
        assert same(found.params, plain("fedavg").params)
        assert same(found.personal_params(0), found.params)
        assert not same(run(make(WORK, personal="b")).params, plain("fedavg").params)
    alone = served(run(P.local_only(FULL)))
    assert same(served(run(P.fedsim(FULL, personal="*"))), alone)
    np.testing.assert_allclose(served(run(P.fedalt(FULL, personal="*"))), alone, atol=1e-6)
    assert not same(served(run(P.fedsim(FULL, personal="w"))), alone)


def test_nothing_personal_is_fedavg_for_fedbabu_too():
    assert same(run(P.fedbabu(WORK, head=())).params, plain("fedavg").params)


def test_a_function_may_choose_the_personal_parameters():
    by_path = run(P.fedalt(WORK, personal="b"))
    by_mask = run(P.fedalt(WORK, personal=lambda params: {"w": False, "b": True}))
    assert same(by_mask.params, by_path.params) and same(served(by_mask), served(by_path))
    wrong = run(P.fedalt(WORK, personal=lambda params: {"w": True, "b": False}))
    assert not same(served(wrong), served(by_path))


def test_apfl_of_one_is_local_training_and_of_zero_fedavg():
    local, ends = (
        run(P.local_only(WORK)),
        {alpha: run(P.apfl(WORK, alpha=alpha)) for alpha in (0.0, 0.5, 1.0)},
    )
    np.testing.assert_allclose(served(ends[1.0]), served(local), atol=1e-6)
    assert np.abs(served(ends[0.5]) - served(local)).max() > 1e-3
    for found in ends.values():
        np.testing.assert_allclose(leaves(found.params), leaves(plain("fedavg").params), atol=1e-6)
    for k in CLIENTS:
        assert same(ends[0.0].personal_params(k), ends[0.0].params)


def test_each_model_of_apfl_has_an_optimiser_of_its_own():
    work = eh.local.sgd(MODEL, optax.sgd(0.1, momentum=0.9), epochs=2, batch_size=4)
    found = run(P.apfl(work, alpha=1.0))
    np.testing.assert_allclose(served(found), served(run(P.local_only(work))), atol=1e-6)
    np.testing.assert_allclose(
        leaves(found.params), leaves(run(eh.algorithms.fedavg(work)).params), atol=1e-6
    )


def test_per_fedavg_without_an_inner_step_is_fedavg_on_other_batches():
    found = run(P.per_fedavg(FULL, alpha=0.0))
    assert np.allclose(leaves(found.params), leaves(run(eh.algorithms.fedavg(FULL)).params), atol=1e-6)
    moved = run(P.per_fedavg(FULL, alpha=0.3))
    assert not np.allclose(leaves(moved.params), leaves(found.params), atol=1e-4)


def test_the_three_batches_of_per_fedavg_are_independent_and_each_a_pass_over_the_examples():
    """F_i = h_i w^2 / 2, h in (1, 3), one example a batch: w <- w - b h_2 (1 - a h_1) (1 - a h_3) w.

    Two batches that were the same would leave out some of the six values; where gradients do not depend on w, an
    epoch must give what FedAvg's does.
    """

    def model(losses):
        return eh.models.from_functions(
            init=lambda key: jnp.ones(()),
            apply=lambda w, x: losses(w, x[:, 0]),
            losses=lambda z, y: z + 0.0 * y,
        )

    data = eh.data.from_arrays(np.array([[1.0], [3.0]]), np.zeros(2), np.zeros(2), test_fraction=0.0)
    one = eh.local.sgd(model(lambda w, x: x * jnp.square(w) / 2), 0.5, steps=1, batch_size=1)
    method = P.per_fedavg(one, alpha=0.1)
    found = {round(2.0 * (1.0 - float(run(method, 1, 1, data, seed=seed).params)), 2) for seed in range(40)}
    assert found == {round(h * rest, 2) for h in (1, 3) for rest in (0.81, 0.63, 0.49)}
    epoch = eh.local.sgd(model(lambda w, x: x * w), 0.5, epochs=1, batch_size=1)
    assert abs(float(run(P.per_fedavg(epoch, alpha=0.1), 1, 1, data).params) - (1.0 - 0.5 * 4.0)) < 1e-6


@pytest.mark.parametrize("name", ["per_fedavg", "mapper"])
def test_two_gradients_in_a_row_have_noise_of_their_own(name):
    """F = (w + noise)^2, in steps that lead to minus the noise: there the same noise has no slope."""
    model = eh.models.from_functions(
        init=lambda key: jnp.ones(()), apply=lambda w, x: w + x[:, 0], losses=lambda z, y: jnp.square(z)
    )
    noisy = model._replace(apply_train=lambda w, x, key: w + jax.random.normal(key, x.shape[:1]))
    data = eh.data.from_arrays(np.zeros((1, 1)), np.zeros(1), np.zeros(1), test_fraction=0.0)
    method = {
        "per_fedavg": P.per_fedavg(eh.local.sgd(noisy, 0.1, steps=1), alpha=0.5, first_order=True),
        "mapper": P.mapper(eh.local.sgd(noisy, 2.0, steps=1), gammas=(0.5,)),
    }[name]
    assert abs(float(run(method, 1, 1, data).params) - 1.0) > 1e-3


def test_l2sgd_keeps_the_exact_mean_of_all_models_and_the_authors_form_does_not():
    for exact in (True, False):
        for rounds in (1, 5):
            # The mean is over all stored models, those of clients that never trained among them.
            found = run(P.l2sgd(WORK, lam=0.5, exact=exact), rounds=rounds, untrained="initial")
            mean = np.mean([leaves(found.personal_params(k)) for k in CLIENTS], axis=0)
            near = np.abs(mean - leaves(found.params)).max() < 1e-6
            assert near == (exact or rounds == 1)  # all begin at the mean


def test_l2gd_keeps_the_mean_of_all_models_with_smaller_cohorts():
    found = run(P.l2gd(MODEL, lam=0.5, p=0.3, step_size=1.0), rounds=5)
    mean = np.mean([leaves(found.personal_params(k)) for k in CLIENTS], axis=0)
    np.testing.assert_allclose(leaves(found.params), mean, atol=1e-6)
    assert np.abs(mean - leaves(found.personal_params(0))).max() > 1e-3


def test_finetuning_follows_what_clients_are_served():
    base = P.fedalt(FULL, personal="b")
    method = P.finetune(base, FULL)
    found, before = run(method), run(base)
    for k in (1, 3):
        on_own = run(P.local_only(FULL), rounds=1, cohort=6)  # steps from the beginning: not those
        moved = leaves(found.personal_params(k))
        assert not np.allclose(moved, leaves(before.personal_params(k)), atol=1e-4)
        assert not np.allclose(moved, leaves(on_own.personal_params(k)), atol=1e-4)
    assert same(found.params, before.params)


def test_finetuning_around_finetuning_goes_on_from_there():
    twice, longer, once = (
        served(run(method, rounds=1))
        for method in (
            P.finetune(P.finetune(GLOBAL["fedavg"], FULL), FULL),
            P.finetune(GLOBAL["fedavg"], eh.local.sgd(MODEL, 0.1, epochs=4)),
            P.finetune(GLOBAL["fedavg"], FULL),
        )
    )
    np.testing.assert_allclose(twice, longer, atol=1e-6)
    assert np.abs(twice - once).max() > 1e-3


def test_finetuning_around_finetuning_draws_batches_of_its_own():
    """Steps on one of two examples, 1 and 3: the same batch twice would never move the model by 4."""
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(()), apply=lambda w, x: w * x[:, 0], losses=lambda z, y: z + 0.0 * y
    )
    data = eh.data.from_arrays(
        np.array([[1.0], [3.0]] * 20), np.zeros(40), np.arange(40) // 2, test_fraction=0.0
    )
    work = eh.local.sgd(model, 1.0, steps=1, batch_size=1)
    method = P.finetune(P.finetune(eh.algorithms.fedavg(work), work), work)
    result = eh.simulate(method, data, rounds=0)
    assert {-round(float(result.personal_params(k))) for k in range(20)} == {2, 4, 6}
    # The first, both and all of three: a third that repeats the second moves as far as it.
    thrice = eh.simulate(P.finetune(method, work), data, rounds=0)
    once = eh.simulate(P.finetune(eh.algorithms.fedavg(work), work), data, rounds=0)
    ends = np.array(
        [[-float(run.personal_params(k)) for k in range(20)] for run in (once, result, thrice)]
    ).round()
    second, third = np.diff(ends, axis=0)
    assert 0 < np.sum(second != third) < 20


def test_personal_models_around_personal_models_are_those_around_the_method_itself():
    """Both are trained on the same batches; clients are served the outer ones, to which the inner ones are nothing."""
    once, twice = (
        run(P.ditto(method, WORK, lam=1.0))
        for method in (GLOBAL["fedavg"], P.ditto(GLOBAL["fedavg"], WORK, lam=0.3))
    )
    assert same(served(twice), served(once))


def test_finetuning_goes_around_ditto_and_is_left_out_within():
    """Whatever clients would do to the global model, they are served their own."""
    alone = run(P.ditto(GLOBAL["fedavg"], WORK))
    for lam, same_as in ((1.0, alone), (math.inf, plain("fedavg"))):
        assert same(served(run(P.ditto(P.finetune(GLOBAL["fedavg"], WORK), WORK, lam=lam))), served(same_as))
    assert not same(served(run(P.finetune(P.ditto(GLOBAL["fedavg"], WORK), WORK))), served(alone))


def test_a_method_that_sends_a_part_only_cannot_be_listened_to():
    with pytest.raises(eh.EvenhandError, match=r"put finetune\(\) around it"):
        run(P.ditto(P.fedalt(WORK, personal="b"), WORK))


# --- on a line: F_k(v) = (v - c_k)^2 / 2 ---------------------------------------------------------------------------


def line(loss):
    return eh.models.from_functions(
        init=lambda key: {"u": jnp.zeros(()), "v": jnp.zeros(())},
        apply=lambda params, x: jnp.broadcast_to(loss(params), x.shape[:1]),
        losses=lambda outputs, y: 0.5 * jnp.square(outputs - y),
    )


def points(*values):
    return eh.data.from_arrays(
        np.ones((len(values), 1)), np.array(values), np.arange(len(values)), test_fraction=0.0
    )


def test_the_trace_of_ditto_over_three_rounds():
    """F_k = (v - c_k)^2 / 2, c = (0, 2), lam = .5, steps of .2, two a round.

    Moving the anchor along with the client's own copy of the global model would give other numbers.
    """
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(()),
        apply=lambda params, x: jnp.broadcast_to(params, x.shape[:1]),
        losses=lambda outputs, y: 0.5 * jnp.square(outputs - y),
    )
    work, data = eh.local.sgd(model, 0.2, steps=2), points(0.0, 2.0)
    trace = [(0.0, 0.68, 0.36), (0.0612, 1.0744, 0.5904), (0.130356, 1.306824, 0.737856)]
    moving = [(0.0, 0.72), (0.054, 1.1268), (0.11502, 1.360692)]
    for rounds, (expected, wrong) in enumerate(zip(trace, moving, strict=True), 1):
        found = run(P.ditto(eh.algorithms.fedavg(work), work, lam=0.5), rounds, None, data)
        values = [*(float(found.personal_params(k)) for k in (0, 1)), float(found.params)]
        np.testing.assert_allclose(values, expected, atol=1e-6)
        assert np.abs(np.subtract(values[:2], wrong)).max() > 1e-3


def test_the_trace_of_fedalt_and_fedsim():
    """F = (u + v - 1)^2 / 2 and steps of .1: FedAlt moves v first, and u from there."""
    model, data = line(lambda params: params["u"] + params["v"]), points(1.0)
    for steps, alt, sim in ((1, (0.1, 0.09), (0.1, 0.1)), (3, (0.271, 0.197559), (0.244, 0.244))):
        work = eh.local.sgd(model, 0.1, steps=steps)
        for make, expected in ((P.fedalt, alt), (P.fedsim, sim)):
            found = run(make(work, personal="v"), 1, None, data)
            own = found.personal_params(0)
            np.testing.assert_allclose([own["v"], own["u"]], expected, atol=1e-6)
            assert found.params["u"] == own["u"] and found.params["v"] == 0.0


def test_pfedme_descends_the_envelope():
    """Of F = (t - c)^2 / 2: t* = (c + lam w) / (1 + lam), and its gradient is lam / (1 + lam) (w - c)."""
    model = line(lambda params: params["u"])
    work, lam, c = eh.local.sgd(model, 0.3, steps=1), 2.0, 1.5
    found = run(P.pfedme(work, lam=lam, inner_step=1 / (1 + lam), inner_steps=40), 2, None, points(c))
    w = 0.0
    for _ in range(2):
        theta, w = (c + lam * w) / (1 + lam), w - 0.3 * lam / (1 + lam) * (w - c)
    np.testing.assert_allclose([found.params["u"], found.personal_params(0)["u"]], [w, theta], atol=1e-6)


def test_the_value_of_the_symmetrised_divergence():
    """Of (.7, .2, .1) and (.5, .3, .2): half the sum of .08512283 and .09203285 both ways is not the sum."""
    finetuning = importlib.import_module("evenhand.personalization.finetune")
    p, q = jnp.array([[0.7, 0.2, 0.1]]), jnp.array([[0.5, 0.3, 0.2]])
    np.testing.assert_allclose(finetuning.divergence(jnp.log(p), jnp.log(q)), [0.17715568], atol=1e-6)
    gradient = jax.grad(lambda z: finetuning.divergence(z, jnp.log(q))[0])
    assert np.abs(gradient(jnp.log(q))).max() < 1e-6 < np.abs(gradient(jnp.log(p))).max()


def test_joint_training_and_finetuning_agree_on_strongly_convex_losses():
    model = eh.models.from_functions(
        init=lambda key: jnp.zeros(()),
        apply=lambda params, x: jnp.broadcast_to(params, x.shape[:1]),
        losses=lambda outputs, y: 0.5 * jnp.square(outputs - y),
    )
    work, data = eh.local.sgd(model, 0.3, steps=10), points(0.0, 2.0, 5.0)
    joint = run(P.ditto(eh.algorithms.fedavg(work), work, lam=0.5), 40, None, data)
    after = run(
        P.finetune(eh.algorithms.fedavg(work), eh.local.sgd(model, 0.3, steps=100), lam=0.5), 40, None, data
    )
    w = float(joint.params)
    for k, c in enumerate((0.0, 2.0, 5.0)):
        for found in (joint, after):
            assert abs(float(found.personal_params(k)) - (c + 0.5 * w) / 1.5) < 1e-4
    assert optax.tree.norm(joint.params) > 1.0


# --- what is refused -----------------------------------------------------------------------------------------------

AVERAGE = GLOBAL["fedavg"]
OTHER = eh.local.sgd(eh.models.softmax_regression(features=4, classes=3), 0.1, epochs=1)
LAYERS = eh.local.sgd(eh.models.mlp(4, classes=3, hidden=(5,)), 0.1, epochs=1)
ADAM = eh.local.sgd(MODEL, optax.adam(0.1), epochs=1)


SEVERAL = eh.algorithms.side_by_side({"a": AVERAGE, "b": AVERAGE})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: P.ditto(AVERAGE, WORK, lam=-1.0), "give a number >= 0, or infinite"),
        (lambda: P.ditto(AVERAGE, WORK, lam=math.nan), "lam=nan"),
        (lambda: run(P.ditto(P.fedsim(WORK, personal="b"), WORK, lam=math.inf)), "Only a part of"),
        (lambda: P.ditto(AVERAGE, OTHER), "different models"),
        (lambda: P.ditto(WORK, WORK), "method"),  # pyright: ignore[reportArgumentType]
        (lambda: P.ditto(AVERAGE, AVERAGE), "work"),  # pyright: ignore[reportArgumentType]
        (lambda: P.ditto(AVERAGE, ADAM, implicit=True), "plain step size"),
        (lambda: P.ditto(AVERAGE, WORK, origin="global"), "'initial' or 'received'"),  # pyright: ignore[reportArgumentType]
        (lambda: P.dynamic_ditto(AVERAGE, ADAM), "or per_run=True"),
        (lambda: P.dynamic_ditto(AVERAGE, WORK, lams=()), "at least one candidate"),
        (lambda: P.dynamic_ditto(AVERAGE, WORK, lams=(1.0, -1.0)), "lams=-1.0"),
        (lambda: P.dynamic_ditto(AVERAGE, WORK, few_lam=-1.0), "few_lam=-1.0"),
        (lambda: P.dynamic_ditto(AVERAGE, WORK, held_out=1.0), "a share in"),
        (lambda: P.finetune(AVERAGE, WORK, lam=math.inf), "give a finite number"),
        (
            lambda: P.finetune(AVERAGE, WORK, personal="head"),
            "no parameter has that path; the model has b, w",
        ),
        (lambda: P.fedalt(LAYERS, personal="outptu"), "perhaps you meant output"),
        (lambda: P.fedalt(WORK, personal=lambda params: [True]), "a tree of bools"),
        (lambda: P.fedbabu(WORK, head=3), "3 does not say which parameters: give paths"),  # pyright: ignore[reportArgumentType]
        (lambda: P.fedsim(WORK, personal=("b", 1)), r"\('b', 1\) does not say which parameters"),  # pyright: ignore[reportArgumentType]
        (lambda: P.finetune(AVERAGE, WORK, personal=b"b"), "does not say which parameters"),  # pyright: ignore[reportArgumentType]
        (lambda: P.finetune(SEVERAL, WORK), r"put finetune\(\) around each of its methods instead"),
        (lambda: P.ditto(SEVERAL, WORK, lam=1.0), r"put ditto\(\) around each of its methods instead"),
        # Methods of users whose broadcast is no Message, and whose ``received`` does not fit it.
        (lambda: P.ditto(AVERAGE._replace(received=lambda sent: sent.model), WORK), "received= of .*'model'"),
        (lambda: P.dynamic_ditto(AVERAGE._replace(received=lambda sent: sent), WORK), "gives something else"),
        (lambda: P.fedalt(WORK, personal="b", personal_work=OTHER), "different models"),
        (lambda: P.fedsim(WORK, personal="b", ridge=-1.0), "ridge=-1.0"),
        (lambda: P.fedsim(PRIVATE, personal="b", ridge=2.0), r"ridge=2\): .* guarantees privacy"),
        (lambda: P.apfl(WORK, alpha=1.1), "a share in"),
        (lambda: P.mapper(WORK, gammas=()), "at least one number"),
        (lambda: P.pfedme(WORK, lam=0.0, inner_step=0.1), "above 0"),
        (lambda: P.pfedme(WORK, lam=1.0, inner_step=0.1, inner_steps=0), "inner_steps"),
        (lambda: P.per_fedavg(WORK, alpha=0.1, delta=0.0), "delta > 0"),
        (lambda: P.l2gd(MODEL, lam=1.0, p=1.0, step_size=0.1), "between 0 and 1"),
        (lambda: P.l2sgd(WORK, lam=-1.0), "lam=-1.0"),
        (lambda: P.ewc(AVERAGE, WORK, lam=1.0, batches=0), "batches"),
        (
            lambda: P.skl(AVERAGE, eh.local.sgd(MODEL, 0.1, epochs=1, risk=eh.risks.tilted(1.0)), lam=1.0),
            "risk",
        ),
        (
            lambda: P.apfl(eh.local.Work(MODEL, WORK.solve)),
            r"not mini-batch descent: make it with eh.local.sgd\(model",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(eh.EvenhandError, match=sentence):
        make()


@pytest.mark.parametrize(
    "aggregator",
    [
        eh.aggregators.min_norm(0.1),
        eh.aggregators.drift_tilted(1.0),
        eh.aggregators.clip(),
        eh.aggregators.arc(1, eh.aggregators.mean()),
    ],
    ids=["min_norm", "drift_tilted", "clip", "arc"],
)
def test_where_all_of_the_model_is_personal_any_rule_has_nothing_to_do(aggregator):
    assert same(
        served(run(P.fedsim(FULL, personal="*", aggregator=aggregator))), served(run(P.local_only(FULL)))
    )
