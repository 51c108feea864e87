"""What clients receive and send: in each round by shapes and bits, and in a whole run over those who took part."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import communication, rounds
from evenhand.simulation import Checkpoint
from evenhand.streams import keys_of
from evenhand.types import Attack

pytestmark = pytest.mark.draws

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=8)
FEDAVG, FEDDANE = eh.algorithms.fedavg(WORK), eh.algorithms.feddane(WORK, mu=0.1)
P, N = 15, 6
"""Parameters of the model, and clients."""
ROWS: Any = (DATA.train.x, DATA.train.y)
DROPS = eh.systems.dropouts(0.5)
NAN = Attack(clients=(0, 1), upload=lambda delta, key: jax.tree.map(lambda leaf: leaf * jnp.nan, delta))


def once(method: Any) -> Any:
    """What crosses the wire for one client in one round."""
    wires = rounds.wires(method, MODEL.init(jax.random.key(0)), ROWS, 8, N)
    phases = communication.traffic(method, wires)
    return communication.added(*[phase.down for phase in phases]), communication.added(
        *[phase.up for phase in phases]
    )


def test_bytes_follow_from_what_each_number_takes_on_the_wire() -> None:
    aggregators = eh.aggregators
    median = aggregators.geometric_median(3)
    counting = eh.privacy.histogram(8, largest=8.0, sigma=2.0, bits=12)
    loss = eh.algorithms.fedavg(WORK)
    (phase,) = loss.phases

    def of_losses(message: Any, state: Any, data: Any, key: Any) -> Any:
        return eh.local.full_loss(MODEL, message.params, data), state

    quantile = eh.privacy.quantile_sum(counting, theta=0.5)
    counted = loss._replace(phases=(phase._replace(work=of_losses, aggregator=quantile),))
    for method, down, up in (
        (FEDAVG, 4 * P, 4 * (P + 1)),
        (FEDDANE, 4 * P + 4 * (2 * P + 1), 2 * 4 * (P + 1)),  # a number says whether the gradient is known
        (eh.algorithms.fedavg(WORK, aggregator=median), 4 * P + 3 * 4 * (P + 1), 3 * 4 * (P + 1)),
        (eh.algorithms.fedavg(WORK, aggregator=aggregators.krum(1)), 4 * P, 4 * (P + 1)),
        # 64 and 32 bits for each number, the weight and the count
        (eh.algorithms.fedavg(WORK, aggregator=aggregators.secure(aggregators.mean())), 4 * P, 8 * (P + 2)),
        (counted, 4 * P, -(-12 * (2 * 8 - 2 + 1) // 8)),
    ):
        received, sent = once(method)
        assert (received.bytes, sent.bytes) == (down, up), method.name


_TYPES = ("float32", "int32", "uint8", "bool")


def counting(aggregator: Any) -> Any:
    """FedAvg whose clients also upload, in several types, whether they have more than five examples."""
    method = eh.algorithms.fedavg(WORK, aggregator=aggregator)
    (phase,) = method.phases

    def work(message: Any, state: Any, data: Any, key: Any) -> Any:
        delta, state = phase.work(message, state, data, key)
        return (delta, {name: (data.size > 5).astype(name) for name in _TYPES}), state

    def server(state: Any, direction: Any, reported: Any, key: Any) -> Any:
        delta, large = direction
        state, info = phase.server(state, delta, reported, key)
        return state, {**info, **large}

    return method._replace(phases=(phase._replace(work=work, server=server),))


@pytest.mark.parametrize(
    "aggregator",
    [
        eh.aggregators.mean(),
        eh.aggregators.secure(eh.aggregators.mean()),
        eh.aggregators.trimmed_mean(0.2),
        eh.aggregators.quantized(4),
    ],
    ids=["mean", "secure", "stacked", "compressed"],
)
def test_whole_numbers_and_truth_values_of_an_upload_are_sent_as_real_numbers(aggregator: Any) -> None:
    method = counting(aggregator)
    run = eh.simulate(method, DATA, rounds=2)
    large = {name: run.per_round[name] for name in _TYPES}
    assert np.all((large["float32"] > 0.1) & (large["float32"] < 0.9))
    assert all(np.array_equal(shares, large["float32"]) for shares in large.values())


def test_whole_numbers_are_sent_alike_by_the_engine_its_twin_and_a_network() -> None:
    method = counting(eh.aggregators.mean())
    names = ("the engine is its readable twin", "a network gives the same numbers")
    for check in eh.testing.algorithm_checks(method):
        if check.name in names:
            check()
    received, sent = once(method)
    assert (received.bytes, sent.bytes) == (4 * P, 4 * (P + 1 + len(_TYPES)))


def test_a_run_counts_every_client_that_took_part_in_every_round() -> None:
    run = eh.simulate(FEDAVG, DATA, rounds=5, cohort=4, eval_every=2)
    sent = run.info["communication"]
    assert sent["per_client_and_round"] == {
        "down": {"numbers": P, "bytes": 4 * P},
        "up": {"numbers": P + 1, "bytes": 4 * P + 4},
    }
    assert sent["total"] == {
        "down": {"numbers": 20 * P, "bytes": 20 * 4 * P},
        "up": {"numbers": 20 * (P + 1), "bytes": 20 * 4 * (P + 1)},
    }
    assert (sent["rounds"], sent["took_part"], sent["left_out"], sent["secure_sums"]) == (5, 20, 0, 0)
    assert "20 uploads" in sent["covers"] and "dropped out" not in sent["covers"]
    assert run.info["floats"] == {"down": P, "up": P + 1}
    history = 4 * np.array([0, 2, 4, 5]) * 4
    np.testing.assert_array_equal(run.history["bytes_down"], history * P)
    np.testing.assert_array_equal(run.history["bytes_up"], history * (P + 1))


@pytest.mark.parametrize("method", [FEDAVG, FEDDANE], ids=["one exchange", "two exchanges"])
@pytest.mark.parametrize("systems", [DROPS, eh.systems.stragglers(0.5)], ids=["dropouts", "stragglers"])
def test_who_drops_out_is_not_counted_and_the_run_says_so(method: Any, systems: Any) -> None:
    run = eh.simulate(method, DATA, rounds=4, cohort=4, systems=systems, eval_every=4)
    sent, part = run.info["communication"], list[int]()
    sizes = jnp.asarray(DATA.train.sizes, jnp.int32)
    for phase in range(len(method.phases)):
        drawn = [
            rounds.cohort(method, systems, sizes, 4, keys_of(0), number, phase).present.sum()
            for number in range(4)
        ]
        part.append(int(sum(drawn)))
    wires = rounds.wires(method, MODEL.init(jax.random.key(0)), ROWS, 8, N)
    traffic = communication.traffic(method, wires)
    assert sent["took_part"] == part[-1] and sent["left_out"] == 16 - part[-1]
    # FedDane keeps what stragglers have done, so that they take part.
    assert (part[-1] < 16) == (systems is DROPS or method is FEDAVG)
    up = sum(count * load.up.bytes for count, load in zip(part, traffic, strict=True))
    assert sent["total"]["up"]["bytes"] == up == run.history["bytes_up"][-1]
    assert (f"Left out are {16 - part[-1]} times" in sent["covers"]) == (part[-1] < 16)


def test_rejected_uploads_have_crossed_the_wire() -> None:
    with pytest.warns(eh.errors.EvenhandWarning, match="rejected"):
        run = eh.simulate(FEDAVG, DATA, rounds=2, attack=NAN)
    assert run.per_round["rejected"].tolist() == [2, 2]
    assert run.info["communication"]["took_part"] == 2 * N


def test_cohorts_of_random_sizes_are_counted_as_they_were() -> None:
    poisson = eh.sampling.poisson(0.5)
    for method in (
        eh.algorithms.fedavg(WORK, sampling=poisson),
        eh.algorithms.feddane(WORK, mu=0.1, sampling=poisson),
    ):
        run = eh.simulate(method, DATA, rounds=5)
        took_part = run.info["communication"]["took_part"]
        assert took_part == run.per_round["reported"].sum() != 15


def test_a_run_that_continues_counts_as_one_that_was_not_interrupted(tmp_path: Any) -> None:
    whole = eh.simulate(FEDDANE, DATA, rounds=4, cohort=4, systems=DROPS, eval_every=2)
    place = Checkpoint(tmp_path, seconds=0)
    eh.simulate(FEDDANE, DATA, rounds=2, cohort=4, systems=DROPS, eval_every=2, checkpoint=place)
    later = eh.simulate(FEDDANE, DATA, rounds=4, cohort=4, systems=DROPS, eval_every=2, checkpoint=place)
    assert later.info["communication"] == whole.info["communication"]
    np.testing.assert_array_equal(later.history["bytes_down"], whole.history["bytes_down"])


def test_what_was_sent_is_in_the_summary_and_comes_back(tmp_path: Any) -> None:
    run = eh.simulate(FEDAVG, DATA, rounds=2, cohort=4)
    folder = run.save(tmp_path / "a")
    assert json.loads((folder / "summary.json").read_text())["communication"] == run.info["communication"]
    saved = eh.load_run(folder)
    assert saved.info["communication"] == run.info["communication"]
    np.testing.assert_array_equal(saved.history["bytes_up"], run.history["bytes_up"])
    page = saved.report(tmp_path / "page.html").read_text()
    assert "8 uploads" in page and "Test accuracy against communication" in page


def test_runs_that_train_together_count_as_they_do_alone() -> None:
    job = eh.simulation.Job(FEDAVG, DATA, rounds=2, cohort=4)
    runs = dict(eh.simulation.iterate_many([job, job._replace(seed=1)]))
    for run in runs.values():
        assert isinstance(run, eh.simulation.Run)
        assert run.info["communication"]["took_part"] == 8 and run.history["bytes_up"][-1] > 0


def test_secure_sums_name_what_is_not_counted() -> None:
    rule = eh.aggregators.secure(eh.aggregators.mean(), bits=32, largest=1024.0, cohort=16)
    sent = eh.simulate(eh.algorithms.fedavg(WORK, aggregator=rule), DATA, rounds=0).info["communication"]
    assert "keys and shares" in sent["covers"]
    asking = eh.simulate(eh.algorithms.fedprox_adaptive(WORK, mu0=0.1), DATA, rounds=0).info["communication"]
    assert "training losses" in asking["covers"] and "keys" not in asking["covers"]


def test_a_method_on_pooled_examples_sends_nothing() -> None:
    method = eh.expressions.parse("fit(batch_size=4)", eh.types.Algorithm, MODEL, lambda: WORK)
    run = eh.simulate(method, DATA, rounds=2)
    sent = run.info["communication"]
    assert sent["took_part"] == sent["total"]["up"]["bytes"] == sent["total"]["down"]["bytes"] == 0
    assert "in one place" in sent["covers"] and not run.history["bytes_up"].any()
