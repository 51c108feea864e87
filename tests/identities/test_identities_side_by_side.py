"""Methods trained side by side give what each gives alone: models, states, infos, and what clients are served."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fair_runs import EQUAL_WEIGHTS, METHODS, STEP, WORK
from identity_runs import DATA, flat, gap

import evenhand as eh
from evenhand.types import Algorithm

NAMES = ("fedavg", "theta 0.5", "t 0, running", "tilts 0", "q 1, uniform")
"""Without losses, with them, with a state at the server, with personal models, with losses in the upload."""
ALL = METHODS | {"q 1, uniform": eh.algorithms.qfedavg(STEP, q=1.0, lipschitz=10.0, sampling=EQUAL_WEIGHTS)}
METHOD = eh.algorithms.side_by_side({name: ALL[name] for name in NAMES})
ROUNDS, COHORT = 3, 4


HOW = {"rounds": ROUNDS, "cohort": COHORT, "seed": 0, "untrained": "initial"}
"""One client never trains: its initial personal model is served, which suits it less than another method's model."""


@cache
def together() -> eh.Run:
    return eh.simulate(METHOD, DATA, **HOW)


@cache
def alone(name: str) -> eh.Run:
    return eh.simulate(ALL[name], DATA, **HOW)


@pytest.mark.parametrize("name", NAMES)
def test_each_model_is_the_one_of_a_run_alone(name: str) -> None:
    j, joint, single = NAMES.index(name), together(), alone(name)
    assert gap(flat(joint.params[j]), flat(single.params)) < 1e-6
    assert gap(flat(joint.params[j]), flat(joint.params[j - 1])) > 1e-3
    for k in range(DATA.num_clients):
        assert gap(flat(joint.personal_params(k)[j]), flat(single.personal_params(k))) < 1e-6
    for metric in ("loss", "accuracy"):
        found = joint.client_metrics("test")[f"{metric} ({name})"]
        np.testing.assert_allclose(found, single.client_metrics("test")[metric], rtol=1e-5)
    for what, values in single.per_round.items():
        if what not in ("reported", "rejected", "effective_cohort"):
            np.testing.assert_allclose(joint.per_round[f"{what} ({name})"], values, rtol=1e-4)


def test_metrics_without_a_name_are_those_of_the_first_method() -> None:
    for metric in ("loss", "accuracy"):
        joint, single = together().client_metrics("test"), alone(NAMES[0]).client_metrics("test")
        np.testing.assert_allclose(joint[metric], single[metric], rtol=1e-5)
    assert together().history["test_accuracy"][-1] == together().history[f"test_accuracy ({NAMES[0]})"][-1]


def test_the_effective_cohort_is_the_mean_over_the_methods() -> None:
    """FedAvg is not among them: it reports none, since its server sees no weights."""
    pair = eh.algorithms.side_by_side({name: METHODS[name] for name in ("theta 0.5", "theta 0.01")})
    found = eh.simulate(pair, DATA, rounds=ROUNDS, seed=0).per_round["effective_cohort"]
    each = [
        eh.simulate(METHODS[name], DATA, rounds=1, seed=0).per_round["effective_cohort"][0]
        for name in ("theta 0.5", "theta 0.01")
    ]
    assert found[0] == pytest.approx(np.mean(each), rel=1e-6)
    assert each[0] != pytest.approx(each[1])


def test_clients_are_served_by_level_as_from_separate_runs() -> None:
    runs = [alone(name) for name in NAMES]
    one = eh.evaluation.serve_by_level(together(), choose_on="train", metric="loss")
    several = eh.evaluation.serve_by_level(runs, choose_on="train", metric="loss")
    assert one.level.tolist() == several.level.tolist()
    assert len(set(one.level.tolist())) > 1
    for metric in ("loss", "accuracy"):
        np.testing.assert_allclose(one.metrics[metric], several.metrics[metric], rtol=1e-5)
    assert set(one.metrics) == {"loss", "accuracy"}
    with pytest.raises(ValueError, match="several methods side by side"):
        eh.evaluation.serve_by_level(alone("fedavg"))


def test_each_method_adapts_its_own_model() -> None:
    tuned = METHODS["fedavg"]._replace(adapt=lambda params, data, key: jax.tree.map(lambda w: w + 1, params))
    method = eh.algorithms.side_by_side({"plain": METHODS["fedavg"], "tuned": tuned})
    plain, adapted = eh.simulate(method, DATA, rounds=0).personal_params(0)
    assert gap(flat(adapted), flat(plain) + 1) < 1e-6


def test_methods_side_by_side_obey_the_contract() -> None:
    pair = {name: METHODS[name] for name in ("fedavg", "theta 0.5")}
    eh.testing.check_algorithm(eh.algorithms.side_by_side(pair), lanes=(2,), rounds=2)


def test_methods_that_cannot_share_rounds_are_refused() -> None:
    alg = eh.algorithms
    refused = "cannot share their rounds"
    stacking = (
        METHODS["fedavg"]
        .phases[0]
        ._replace(
            aggregator=eh.types.Stack(
                lambda like, n: (), lambda uploads, present, state, key: (uploads.delta, state)
            )
        )
    )
    for other in (
        alg.feddane(WORK, mu=0.1),
        alg.fedavg(STEP, keep_partial=True),
        alg.fedprox_adaptive(STEP, mu0=0.1),
        METHODS["fedavg"]._replace(phases=(stacking,)),
    ):
        with pytest.raises(eh.EvenhandError, match=refused):
            alg.side_by_side({"a": METHODS["fedavg"], "b": other})
    with pytest.raises(eh.EvenhandError, match="different schemes"):
        alg.side_by_side({"a": METHODS["fedavg"], "b": alg.qfedavg(STEP, q=1.0, lipschitz=10.0)})
    perceptron = eh.models.mlp(4, classes=3)
    another_model = alg.fedavg(eh.local.sgd(perceptron, 0.1, epochs=1), sampling=EQUAL_WEIGHTS)
    with pytest.raises(eh.EvenhandError, match="different models"):
        alg.side_by_side({"a": METHODS["fedavg"], "b": another_model})
    with pytest.raises(eh.EvenhandError, match="no method"):
        alg.side_by_side({})
    for nameless in ([METHODS["fedavg"]], METHODS["fedavg"]):
        methods: Any = nameless
        with pytest.raises(eh.EvenhandError, match=r"^methods=.*: give a value such as \{\"fedavg\": "):
            alg.side_by_side(methods)


def test_methods_that_promise_privacy_are_refused() -> None:
    """All models are released, and what that costs is told by none of the methods; with one key, noise cancels."""
    private = eh.algorithms.fedavg(
        eh.privacy.dp_sgd(STEP.model, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=1),
        sampling=EQUAL_WEIGHTS,
    )
    for pair in ({"a": private, "b": METHODS["fedavg"]}, {"a": METHODS["fedavg"], "b": private}):
        with pytest.raises(eh.EvenhandError, match=r"guarantees privacy.*run each separately"):
            eh.algorithms.side_by_side(pair)


def test_a_level_is_measured_as_its_metric_says_whatever_its_name() -> None:
    method = eh.algorithms.side_by_side({"plain": METHODS["fedavg"], "max loss": METHODS["theta 0.5"]})
    run = eh.simulate(method, DATA, rounds=1, cohort=COHORT)
    summary = run.summary("test", "accuracy (max loss)")
    assert summary["worst10"] == summary["min"] <= summary["best10"]
    assert run.summary("test", "loss (max loss)")["worst10"] >= run.summary("test", "loss (max loss)")["mean"]


def test_two_exchanges_side_by_side_draw_two_cohorts() -> None:
    """FedDane draws a second cohort to train, the same one for both methods."""
    pair = {mu: eh.algorithms.feddane(WORK, mu=mu, fresh_cohort=True) for mu in (0.1, 1.0)}
    run = eh.simulate(
        eh.algorithms.side_by_side({f"mu {mu}": method for mu, method in pair.items()}),
        DATA,
        rounds=2,
        cohort=3,
    )
    for j, method in enumerate(pair.values()):
        assert gap(flat(run.params[j]), flat(eh.simulate(method, DATA, rounds=2, cohort=3).params)) < 1e-6


def test_scheduled_qfedavg_shares_its_rounds() -> None:
    """With methods that need no count of rounds, too, whose servers rest where nobody answers."""
    schedule = eh.local.steps(0.5, every=1)
    halved = eh.local.sgd(STEP.model, 0.1, epochs=1, batch_size=8, schedule=schedule)
    members = {f"q {q}": eh.algorithms.qfedavg(halved, q=q) for q in (0.0, 1.0)}
    alike, momentum = eh.sampling.proportional(replace=False), optax.sgd(1.0, momentum=0.5)
    members["momentum"] = eh.algorithms.fedavg(halved, sampling=alike, server_opt=momentum)
    how: dict[str, Any] = {"rounds": 4, "cohort": 2, "systems": eh.systems.dropouts(0.5)}
    run = eh.simulate(eh.algorithms.side_by_side(members), DATA, **how)
    assert (run.per_round["reported"] == 0).any()
    for params, method in zip(run.params, members.values(), strict=True):
        assert gap(flat(params), flat(eh.simulate(method, DATA, **how).params)) < 1e-6
    members["running"] = eh.algorithms.term(halved, t=1.0, running=0.5, sampling=alike)
    with pytest.raises(eh.EvenhandError, match="rounds without uploads alike"):
        eh.algorithms.side_by_side(members)


def test_work_and_traffic_are_sums_over_the_methods() -> None:
    info, each = together().info, [alone(name).info for name in NAMES]
    assert info["steps"]["useful"] == sum(one["steps"]["useful"] for one in each)
    assert info["examples"] == sum(one["examples"] for one in each)
    # If the weights of any method depend on losses, all methods report a weight and a loss and get a weight back.
    silent = sum(not ALL[name].phases[0].aggregator.needs_loss for name in NAMES)
    assert silent == 2
    assert info["floats"]["down"] == sum(one["floats"]["down"] for one in each) + silent
    assert info["floats"]["up"] == sum(one["floats"]["up"] for one in each) + 2 * silent


def test_one_method_side_by_side_is_that_method() -> None:
    run = eh.simulate(
        eh.algorithms.side_by_side({"a": METHODS["theta 0.5"]}), DATA, rounds=ROUNDS, cohort=COHORT
    )
    assert gap(flat(run.params[0]), flat(alone("theta 0.5").params)) < 1e-6
    assert jnp.ndim(run.per_round["effective_cohort"]) == 1


# --- Delta-FL at several levels --------------------------------------------------------------------------------------


LEVELS = eh.algorithms.delta_fl_levels(STEP, theta=(0.01, 1.0, 0.5))


@cache
def of_levels() -> eh.Run:
    return last_of(LEVELS, cohort=COHORT)


def last_of(method: Algorithm, cohort: int | None = None) -> eh.Run:
    """Without the warning that the toy clients have no validation examples to choose a level on."""
    *_, last = eh.simulation.iterate(method, DATA, rounds=ROUNDS, cohort=cohort, seed=0)
    return last


def test_the_model_of_each_level_is_that_of_delta_fl_alone() -> None:
    models = [flat(params) for params in of_levels().params]
    for j, name in enumerate(("theta 1", "theta 0.5", "theta 0.01")):
        assert gap(models[j], flat(alone(name).params)) < 1e-6
        assert gap(models[j], models[j - 1]) > 1e-3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"nu": 1.0}, "theta 0.01, nu 1"),
        ({"filtered": True, "sampling": EQUAL_WEIGHTS}, "theta 0.6, filtered, equal weights"),
        (
            {"filtered": True, "strict": False, "sampling": EQUAL_WEIGHTS},
            "theta 0.5, as printed, equal weights",
        ),
    ],
)
def test_the_options_of_delta_fl_hold_at_every_level(options: dict[str, Any], name: str) -> None:
    theta = float(name.split()[1].strip(","))
    changed, plain = (
        last_of(eh.algorithms.delta_fl_levels(STEP, theta=(1.0, theta), **how)) for how in (options, {})
    )
    single = eh.simulate(METHODS[name], DATA, rounds=ROUNDS)
    assert gap(flat(changed.params[1]), flat(single.params)) < 1e-6
    assert gap(flat(plain.params[1]), flat(single.params)) > 1e-4


def test_the_server_s_step_and_partial_work_are_those_of_every_level() -> None:
    kept = eh.algorithms.delta_fl_levels(STEP, server_opt=eh.server_opt.fedavgm(0.5), keep_partial=True)
    assert kept.partial_work and not LEVELS.partial_work
    alone_with = eh.algorithms.delta_fl(STEP, theta=0.5, server_opt=eh.server_opt.fedavgm(0.5))
    models = last_of(kept, COHORT).params
    single = eh.simulate(alone_with, DATA, rounds=ROUNDS, cohort=COHORT).params
    assert gap(flat(models[1]), flat(single)) < 1e-6
    assert gap(flat(models[1]), flat(of_levels().params[1])) > 1e-3


@pytest.mark.parametrize(
    ("theta", "sentence"),
    [
        ((), "one or more different levels"),
        ((0.5, 0.5), "different levels"),
        ((0.5, 1.5), r"levels in \(0, 1\]"),
        ((0.0,), r"levels in \(0, 1\]"),
        (0.5, r"^theta=0.5: give a value such as \(0.3"),
        (("a",), r"^theta='a': give a value such as \(0.3"),
    ],
)
def test_levels_that_are_no_tail_fractions_are_refused(theta: Any, sentence: str) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        eh.algorithms.delta_fl_levels(STEP, theta=theta)


@pytest.mark.parametrize("first", ["equal", "by size"])
def test_methods_that_weigh_clients_unlike_reject_nobody(first: str) -> None:
    """The largest weight is that of the method that weighs by size, whichever comes first."""
    weighing = {
        "equal": eh.algorithms.fedavg(WORK, sampling=EQUAL_WEIGHTS),
        "by size": eh.algorithms.fedavg(WORK),
    }
    names = [first, *(name for name in weighing if name != first)]
    joint = eh.simulate(eh.algorithms.side_by_side({name: weighing[name] for name in names}), DATA, rounds=2)
    assert (joint.per_round["rejected"] == 0).all() and (joint.per_round["reported"] > 0).all()
    for j, name in enumerate(names):
        assert gap(flat(joint.params[j]), flat(eh.simulate(weighing[name], DATA, rounds=2).params)) < 1e-6
    assert gap(flat(joint.params[0]), flat(joint.params[1])) > 1e-4
