"""States on several devices: each is saved whole, and a run continues from it to the same bits."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import evenhand as eh
from evenhand.devices import everywhere, here, over
from evenhand.expressions import factories, parse
from evenhand.expressions.kinds import parameters
from evenhand.simulation import Checkpoint, Job, engine
from evenhand.simulation._checkpoint import Checkpoints
from evenhand.simulation.setup import set_up
from evenhand.types import Algorithm, Sum

DATA = eh.testing.toy_data()
# Two devices can divide the four features, so that each of them holds a part of the coordinates.
MODEL = eh.models.softmax_regression(features=4, classes=3)
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
ROUNDS, SAVED = 4, 2
HOW: dict[str, Any] = {"cohort": 6, "eval_every": SAVED, "seed": 3, "lanes": 2}

PLAIN = [
    "ascending_mixture(0.1)",
    "bucketing(2, centered_clipping(1.0))",
    "centered_clipping(1.0)",
    "discrete_mean(0.5, noise_multiplier=0.5, rate=0.5, fewest=2)",
    "geometric_median()",
    "noisy_mean(adaptive_clip(0.5, noise=3.0), noise_multiplier=2.0, rate=0.5)",
    "reference_tilt(1.0)",
    "running_tilt(1.0)",
]
"""The aggregators that keep a state from round to round, and what lies around one."""
SECURE = ["secure(centered_clipping(1.0))", "secure(geometric_median())"]
ATTACKED = ["bucketing(2, centered_clipping(1.0))", "centered_clipping(1.0)", "geometric_median()"]
CASES = [*((rule, None) for rule in [*PLAIN, *SECURE]), *((rule, "alie") for rule in ATTACKED)]


def aggregator_of(rule: str) -> Any:
    return parse(rule, Sum, MODEL, lambda: WORK)


def method_of(rule: str) -> Algorithm:
    """FedAvg with this aggregator, and with the cohorts that it needs."""
    sampling = eh.sampling.poisson(0.5) if "rate=" in rule else eh.sampling.uniform()
    return eh.algorithms.fedavg(WORK, aggregator=aggregator_of(rule), sampling=sampling)


def settings(rule: str, attack: str | None) -> dict[str, Any]:
    how = {name: value for name, value in HOW.items() if name != "cohort" or "rate=" not in rule}
    return how | ({} if attack is None else {"attack": eh.attacks.alie(0.2, z=1.0)})


def stopped(method: Algorithm, folder: Path, **how: Any) -> eh.Run:
    """A run after :data:`SAVED` rounds, of which a checkpoint remains."""
    runs = list(
        itertools.islice(eh.simulation.iterate(method, DATA, rounds=ROUNDS, checkpoint=folder, **how), 2)
    )
    assert runs[-1].info["rounds"] == SAVED
    return runs[-1]


def arrays(run: eh.Run) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run.state)]


def assert_same(a: eh.Run, b: eh.Run) -> None:
    for one, other in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    for name, values in a.history.items():
        np.testing.assert_array_equal(values, b.history[name])


@pytest.mark.filterwarnings("ignore:The model is no better than a guess", "ignore:Training diverged")
@pytest.mark.parametrize(("rule", "attack"), CASES)
def test_a_run_continues_from_two_devices_to_the_same_bits(
    rule: str, attack: str | None, tmp_path: Path
) -> None:
    how: dict[str, Any] = {**settings(rule, attack), "devices": 2}
    method = method_of(rule)
    first = stopped(method, tmp_path, **how)
    assert first.info["devices"] == 2 and jax.tree.leaves(first.state.aggregators)
    for leaf, one in zip(
        jax.tree.leaves(first.state.aggregators), jax.tree.leaves(form_of(method)), strict=True
    ):
        assert leaf.shape == one.shape, "a part of the state is not the state"
    resumed = eh.simulate(method, DATA, rounds=ROUNDS, checkpoint=tmp_path, **how)
    whole = eh.simulate(method, DATA, rounds=ROUNDS, **how)
    assert_same(resumed, whole)
    assert any(not np.array_equal(a, b) for a, b in zip(arrays(first), arrays(whole), strict=True))


def test_rounds_give_whole_states_as_they_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided ones would be the input of another program, with other rounding, than those that come from a file."""
    run_rounds, whole = engine.run_rounds, list[bool]()

    def spy(*arguments: Any) -> Any:
        results = run_rounds(*arguments)
        whole.extend(leaf.is_fully_replicated for leaf in jax.tree.leaves(results[0]))
        return results

    monkeypatch.setattr(engine, "run_rounds", spy)
    method, how = method_of("centered_clipping(1.0)"), settings("", "alie")
    eh.simulate(method, DATA, rounds=ROUNDS, devices=2, **how)
    assert len(whole) > 6 and all(whole)


def form_of(method: Algorithm) -> Any:
    """The aggregator's state as the method itself makes it."""
    params = MODEL.init(jax.random.key(0))
    return method.phases[0].aggregator.init(params, DATA.num_clients)


def test_no_stateful_aggregator_is_forgotten() -> None:
    """Each public factory, with the smallest arguments that it takes; those around another one keep its state."""
    texts = {
        "then": "mean()",
        "risk": "tilted(1.0)",
        "malicious": "1",
        "size": "2",
        "fewest": "2",
        "ratio": "2.0",
    }
    keeps: set[str] = set()
    for name, factory in factories(Sum).items():
        needed = [p for p in parameters(factory).values() if p.default is p.empty]
        arguments = ", ".join(f"{p.name}={texts.get(p.name, '0.4')}" for p in needed)
        if jax.tree.leaves(aggregator_of(f"{name}({arguments})").init(jnp.zeros(4), 10)):
            keeps.add(name)
    assert keeps - {rule.partition("(")[0] for rule in PLAIN} == set()
    assert len(keeps) >= 5


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_run_continues_on_another_number_of_devices(before: int, after: int, tmp_path: Path) -> None:
    """From the very state that was saved; what follows differs by rounding only."""
    method = method_of("geometric_median()")
    first = stopped(method, tmp_path, devices=before, **HOW)
    runs = list(eh.simulation.iterate(method, DATA, rounds=ROUNDS, checkpoint=tmp_path, devices=after, **HOW))
    assert [run.info["rounds"] for run in runs] == [SAVED, ROUNDS] and runs[0].info["devices"] == after
    for one, other in zip(arrays(first), arrays(runs[0]), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    whole = eh.simulate(method, DATA, rounds=ROUNDS, devices=before, **HOW)
    for one, other in zip(arrays(whole), arrays(runs[-1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_that_lacks_half_of_a_state_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first version wrote it: the kernel's part on the first of two devices, with a checksum that fits."""
    method = method_of("geometric_median()")
    name = "evenhand.simulation._simulate.here"

    def halved(state: Any) -> Any:
        whole = here(state)
        if not isinstance(whole, eh.rounds.RoundState):
            return whole
        (point,) = whole.aggregators
        return whole._replace(
            aggregators=(jax.tree.map(lambda leaf: leaf[:2] if leaf.ndim == 2 else leaf, point),)
        )

    with monkeypatch.context() as patch:
        patch.setattr(name, halved)
        stopped(method, tmp_path, **HOW)
    with pytest.raises(
        eh.EvenhandError, match=r"lacks a part of the aggregator's state.*on 2 devices.*start over"
    ):
        eh.simulate(method, DATA, rounds=ROUNDS, checkpoint=tmp_path, **HOW)
    fresh = eh.simulate(method, DATA, rounds=ROUNDS, checkpoint=Checkpoint(tmp_path, fresh=True), **HOW)
    assert fresh.info["rounds"] == ROUNDS


def test_a_state_that_rounds_leave_divided_is_saved_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it came from rounds once: each device had a part of the kernel's coordinates."""
    run_rounds, newest, mesh = engine.run_rounds, list[Any](), over(2)
    assert mesh is not None

    def divided(*arguments: Any) -> Any:
        state, *others = run_rounds(*arguments)
        if not arguments[-1]:  # no round, but compiled: the next ones get this state
            return state, *others
        place = NamedSharding(mesh, PartitionSpec("clients"))
        parts = jax.tree.map(
            lambda leaf: jax.device_put(leaf, place) if leaf.ndim == 2 else leaf, state.aggregators
        )
        newest[:] = jax.tree.leaves(parts)
        return state._replace(aggregators=parts), *others

    monkeypatch.setattr(engine, "run_rounds", divided)
    first = stopped(method_of("geometric_median()"), tmp_path, devices=2, **HOW)
    job = Job.from_arguments(
        {"algorithm": first.algorithm, "data": DATA, "rounds": ROUNDS, "devices": 2, **HOW}
    )
    saved = Checkpoints(set_up(job), job, tmp_path).load()
    assert saved is not None and not all(leaf.is_fully_replicated for leaf in newest)
    for home, leaf in zip(jax.tree.leaves(saved.state.aggregators), newest, strict=True):
        np.testing.assert_array_equal(home, leaf)


def test_a_divided_array_comes_home_whole() -> None:
    mesh = over(2)
    assert mesh is not None
    values = jnp.arange(12.0).reshape(4, 3)
    divided = jax.device_put(values, NamedSharding(mesh, PartitionSpec("clients")))
    assert divided.addressable_data(0).shape == (2, 3)
    for home in (here(divided), everywhere(mesh, divided)):
        np.testing.assert_array_equal(home, values)
    assert here(divided).devices() == {jax.devices()[0]}
