"""Masks of secure sums: a run draws them only if asked, and they change no bit of what it computes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand import aggregators as agg
from evenhand.attacks import by_clients, false_sum
from evenhand.errors import EvenhandError
from evenhand.expressions import parse
from evenhand.network.terms import is_masked
from evenhand.personalization._dual_ascent import by_client
from evenhand.simulation import Execution, Job, engine, identify, twin
from evenhand.simulation.program import Program
from evenhand.simulation.setup import set_up

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
RATE = 0.8
FIXED = eh.sampling.fixed(RATE)


def fedavg(rule: Any, **how: Any) -> eh.types.Algorithm:
    return eh.algorithms.fedavg(WORK, aggregator=rule, **how)


METHODS = {
    "mean": fedavg(agg.secure(agg.mean())),
    "geometric median": fedavg(agg.secure(agg.geometric_median(3))),
    "centered clipping": fedavg(agg.secure(agg.centered_clipping(0.5, passes=2))),
    "discrete mean": fedavg(
        eh.privacy.discrete_mean(0.5, noise_multiplier=1.0, rate=RATE, fewest=3), sampling=FIXED
    ),
    "secure Delta-FL": eh.privacy.secure_delta_fl(WORK, theta=0.5, largest_loss=4.0, bins=64),
    "private Delta-FL": eh.privacy.dp_delta_fl(
        WORK,
        theta=0.5,
        largest_loss=4.0,
        clip=0.5,
        noise_multiplier=1.0,
        rate=RATE,
        at_server=False,
        fewest=3,
    ),
    "side by side": eh.algorithms.side_by_side(
        {
            "a": fedavg(agg.secure(agg.mean())),
            "b": fedavg(agg.secure(agg.mean(), bits=32, largest=64.0, cohort=8)),
        }
    ),
}
SUMS = {"geometric median": 3, "centered clipping": 2, "secure Delta-FL": 2, "private Delta-FL": 2}
"""Secure sums of a round; others have one."""


def cohort(name: str) -> int | None:
    """Fewer than all clients, unless the method draws its own cohorts."""
    return 4 if METHODS[name].sampling.rate is None else None


def expect_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def simulated(name: str, masks: bool, **how: Any) -> eh.Run:
    return eh.simulate(METHODS[name], DATA, rounds=3, eval_every=3, cohort=cohort(name), masks=masks, **how)


@pytest.mark.parametrize(
    ("name", "lanes", "devices"),
    [*((name, 2, 2) for name in METHODS), ("mean", 3, 1), ("geometric median", 3, 1)],
)
def test_masks_change_no_bit_of_a_run(name: str, lanes: int, devices: int) -> None:
    bare, masked = (simulated(name, masks, lanes=lanes, devices=devices) for masks in (False, True))
    expect_same(bare.state, masked.state)
    expect_same(dict(bare.per_round), dict(masked.per_round))
    expect_same(dict(bare.history), dict(masked.history))
    assert bare.info["communication"] == masked.info["communication"]
    assert bare.info["secure_sums"] == 3 * SUMS.get(name, 1)


@pytest.mark.parametrize("name", METHODS)
def test_masks_change_no_bit_of_the_readable_twin(name: str) -> None:
    def state(masks: bool) -> Any:
        job = Job(
            METHODS[name], DATA, rounds=2, cohort=cohort(name), execution=Execution(devices=1, masks=masks)
        )
        setup = set_up(job)
        return twin.run_rounds(setup.program, setup.state, setup.rows, setup.keys, 0, 2)[0]

    expect_same(state(False), state(True))


def traced(method: eh.types.Algorithm, masks: bool) -> str:
    """The program of a round."""
    clients = None if method.sampling.rate is not None else 4
    setup = set_up(Job(method, DATA, rounds=1, cohort=clients, execution=Execution(devices=1, masks=masks)))
    one_round = partial(engine.one_round, setup.program)
    program = jax.make_jaxpr(one_round)(setup.state, setup.rows, setup.keys, jax.numpy.int32(0))
    return re.sub("0x[0-9a-f]+", "", str(program))


def stripped(method: eh.types.Algorithm) -> eh.types.Algorithm:
    """The method with sums that have no masks to draw."""
    return method._replace(
        phases=tuple(phase._replace(aggregator=phase.aggregator.unmasked) for phase in method.phases)
    )


@pytest.mark.parametrize("name", METHODS)
def test_masks_are_drawn_only_if_the_run_asks_for_them(name: str) -> None:
    method = METHODS[name]
    bare, masked = (traced(method, masks) for masks in (False, True))
    assert bare == traced(stripped(method), True)
    assert masked.count("random_bits") > bare.count("random_bits")


def test_only_secure_sums_have_masks_to_leave_out() -> None:
    plain, stacked, at_server = agg.mean(), agg.krum(1), by_client()
    assert plain.unmasked is plain and stacked.unmasked is stacked and at_server.unmasked is at_server
    rule = agg.secure(agg.mean())
    bare = rule.unmasked
    assert not rule.streams and bare.streams and bare.unmasked is bare
    assert bare.summation is not None and bare.summation.is_secure


@pytest.mark.parametrize(
    "how",
    [
        {"attack": by_clients(false_sum(scale=-2.0), (0, 2))},
        {"attack": eh.attacks.alie(0.4, z=1.0)},
        {"systems": eh.systems.dropouts(0.5)},
    ],
    ids=["false sums", "a coalition", "dropouts"],
)
@pytest.mark.parametrize("name", ["mean", "geometric median"])
def test_attacks_and_dropouts_act_alike_with_masks_and_without(name: str, how: dict[str, Any]) -> None:
    bare, masked = (simulated(name, masks, **how) for masks in (False, True))
    expect_same(bare.state, masked.state)
    assert not np.array_equal(bare.params["w"], simulated(name, masks=False).params["w"])


def test_a_run_continues_with_masks_or_without(tmp_path: Any) -> None:
    how: dict[str, Any] = {"eval_every": 2, "cohort": 4, "checkpoint": tmp_path}
    method = METHODS["geometric median"]
    eh.simulate(method, DATA, rounds=2, masks=True, **how)
    seen = [run.info["rounds"] for run in eh.simulation.iterate(method, DATA, rounds=4, **how)]
    assert seen == [2, 4]
    job = Job(method, DATA, rounds=4, cohort=4)
    assert identify(job) == identify(job._replace(execution=Execution(masks=True)))


def test_a_result_has_the_method_that_was_given() -> None:
    assert simulated("mean", masks=False).algorithm is METHODS["mean"]


def test_an_aggregator_that_sees_uploads_adds_whole_numbers_without_masks() -> None:
    deltas = jax.random.normal(jax.random.key(0), (6, 5))
    rule = agg.bucketing(2, then=agg.secure(agg.mean()))
    found = agg.aggregate(rule, deltas, masks=True)
    program = str(jax.make_jaxpr(partial(agg.aggregate, rule))(deltas))
    bare = str(
        jax.make_jaxpr(partial(agg.aggregate, agg.bucketing(2, then=agg.secure(agg.mean()).unmasked)))(deltas)
    )
    np.testing.assert_allclose(found, agg.aggregate(agg.bucketing(2, then=agg.mean()), deltas), atol=1e-6)
    assert program.count("random_bits") == bare.count("random_bits")


def test_a_study_and_an_estimate_draw_masks_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    aggregator = Program.aggregator

    def noted(program: Program, phase: int) -> Any:
        asked.append(program.masks)
        return aggregator(program, phase)

    monkeypatch.setattr(Program, "aggregator", noted)
    for masks in (False, True):
        study = partial(eh.study, seeds=1, eval_every=1, rounds=1)
        study({"secure": fedavg(agg.secure(agg.mean()))}, DATA, masks=masks)
        assert asked and (True in asked) == masks
        asked.clear()
        eh.simulation.estimate(fedavg(agg.secure(agg.mean())), DATA, rounds=1, masks=masks, budget=0.0)
        assert set(asked) == {masks}
        asked.clear()


def test_an_expression_of_an_earlier_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(EvenhandError, match=r"no longer has integers_only: leave it out.*--masks"):
        parse(
            "fedavg(aggregator=secure(mean(), integers_only=True))", eh.types.Algorithm, MODEL, lambda: WORK
        )


def test_a_network_masks_every_secure_sum_however_a_simulation_adds() -> None:
    rule = agg.secure(agg.mean())
    assert is_masked(rule) and is_masked(rule.unmasked)
    assert not is_masked(agg.mean()) and not is_masked(agg.krum(1)) and not is_masked(by_client())


def test_methods_side_by_side_obey_the_laws_under_masks_and_on_a_network() -> None:
    methods = {name: fedavg(agg.secure(agg.mean())) for name in "ab"}
    eh.testing.check_algorithm(eh.algorithms.side_by_side(methods), rounds=2)
