"""Many runs at once give the numbers of each alone, and share programs where they can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.personalization.methods import mocha
from evenhand.simulation import Execution, Job, Run, iterate_many
from evenhand.simulation._many import Together
from evenhand.simulation._simulate import Session, runs_of
from evenhand.types import Algorithm

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
STEPS = (0.05, 0.1, 0.3)
A = eh.algorithms
SLOW = eh.systems.stragglers(0.5)


def work(step: float) -> eh.local.Work:
    return eh.local.sgd(MODEL, step, epochs=2, batch_size=4)


METHODS: dict[str, Callable[[float], Algorithm]] = {
    "fedavg": lambda step: A.fedavg(work(step), server_opt=eh.server_opt.fedadam(step)),
    "scaffold": lambda step: A.scaffold(work(step)),
    "fedtilt": lambda step: A.fedtilt(work(step), tilt_sample=2 * step, prox_mu=step),
    "delta_fl": lambda step: A.delta_fl(work(step), theta=0.2 + step),
    "afl": lambda step: A.afl(MODEL, gamma_w=step, gamma_lambda=0.2 * step),
    "qmaml": lambda step: A.qmaml(MODEL, q=7 * step, step_size=step),
}


@pytest.fixture(autouse=True)
def _two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have four, and use one by default."""
    monkeypatch.setattr("evenhand.simulation._many._devices", lambda: 2)


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lengths of the columns of each program that trained several runs."""
    found: list[list[int]] = []
    answer = Together.answer

    def counted(self: Together, requests: Sequence[Sequence[Any]]) -> Any:
        if requests[0][0].rounds:
            found.append([len(column) for column in requests])
        return answer(self, requests)

    monkeypatch.setattr(Together, "answer", counted)
    return found


def finished(jobs: Sequence[Job]) -> list[Run]:
    """The last run of each job."""
    found: dict[int, Run] = {}
    for position, run in iterate_many(jobs):
        assert isinstance(run, Run), run
        found[position] = run
    return [found[position] for position in range(len(jobs))]


def alone(job: Job) -> Run:
    return list(runs_of(job._replace(checkpoint=None, execution=Execution(devices=1))))[-1]


def apart(one: Run, other: Run) -> float:
    """How far two runs are apart: in their histories, what each round reported, their states, and each client."""
    assert set(one.history) == set(other.history) and set(one.per_round) == set(other.per_round)
    np.testing.assert_array_equal(one.malicious, other.malicious)
    assert one.info["rounds"] == other.info["rounds"]
    if one.info["steps"] != other.info["steps"]:
        return float("inf")
    pairs = [
        *((one.history[name], other.history[name]) for name in one.history),
        *((one.per_round[name], other.per_round[name]) for name in one.per_round),
        *zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True),
        *((one.client_metrics()[name], other.client_metrics()[name]) for name in one.client_metrics()),
    ]
    return max(float(np.max(np.nan_to_num(np.abs(np.subtract(a, b))), initial=0.0)) for a, b in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_runs_that_train_together_give_the_numbers_of_each_alone(name: str, columns: list[list[int]]) -> None:
    """Two seeds and three numbers, so that a swapped number, state or key would show."""
    methods = [METHODS[name](step) for step in STEPS]
    jobs = [Job(method, DATA, 4, seed, cohort=4, eval_every=2) for method in methods for seed in (0, 1)]
    together, single = finished(jobs), [alone(job) for job in jobs]
    assert columns == [[3, 3]] * 2
    for i, run in enumerate(together):
        assert run.algorithm is jobs[i].algorithm and run.seed == jobs[i].seed
        assert apart(run, single[i]) < 2e-5
        assert all(apart(run, other) > 1e-3 for j, other in enumerate(single) if j != i)


def test_stragglers_attackers_and_samples_of_clients(columns: list[list[int]]) -> None:
    """Liars differ from seed to seed, so that under an attack each program has one seed, on both devices."""
    shout = eh.types.Attack(
        0.34, upload=lambda delta, key: eh.tree.scale(-2.0, delta), rows=lambda x, y, rng: (x[::-1], y)
    )
    jobs = [
        Job(
            A.fedavg(work(step)),
            DATA,
            4,
            seed,
            cohort=4,
            eval_every=2,
            attack=attack,
            systems=systems,
            eval_clients=k,
        )
        for step in STEPS
        for seed in (0, 1)
        for attack, systems, k in ((shout, None, None), (None, SLOW, 3))
    ]
    together, single = finished(jobs), [alone(job) for job in jobs]
    assert sorted(columns) == [[2, 1]] * 4 + [[3, 3]] * 2
    for i, run in enumerate(together):
        assert apart(run, single[i]) < 2e-5
    assert any((a.malicious != b.malicious).any() for a in together for b in together)


def test_one_method_on_data_of_several_sizes(columns: list[list[int]]) -> None:
    """Each size is a program of its own, though the methods are the same objects; so is each size of the cohort."""
    methods = [A.fedavg(work(step)) for step in STEPS[:2]]
    data = [DATA, eh.data.hold_out(DATA, 0.5)]
    jobs = [Job(method, of, 2, 0, cohort=4, eval_every=2) for of in data for method in methods]
    jobs += [job._replace(cohort=2) for job in jobs[:2]]
    together, single = finished(jobs), [alone(job) for job in jobs]
    assert columns == [[1, 1]] * 3
    for i, run in enumerate(together):
        assert apart(run, single[i]) < 2e-5


def test_arrays_that_methods_close_over(columns: list[list[int]]) -> None:
    """Of two arrays, one is shared and one is not; whether such programs are one depends on the version of JAX."""

    def pulled(value: float) -> Algorithm:
        method = A.fedavg(work(0.1))
        [phase] = method.phases
        shared, own = jnp.arange(3.0), jnp.full(3, value)

        def train(message: Any, state: Any, data: Any, key: Any) -> Any:
            delta, state = phase.work(message, state, data, key)
            return delta | {"b": delta["b"] + shared * own}, state

        return method._replace(phases=(phase._replace(work=train),))

    assert MODEL.init(jax.random.key(0))["b"].shape == (3,)
    jobs = [
        Job(pulled(value), DATA, 2, seed, cohort=4, eval_every=2) for value in (0.1, 0.2) for seed in (0, 1)
    ]
    together, single = finished(jobs), [alone(job) for job in jobs]
    assert columns in ([[2, 2]], [[1, 1]] * 2)
    for i, run in enumerate(together):
        assert [apart(run, other) < 1e-5 for other in single] == [i == j for j in range(len(jobs))]


def test_other_programs_large_models_and_single_runs_train_alone(
    columns: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bits of ``iterate``."""
    monkeypatch.setattr("evenhand.simulation._many.SMALL_MODEL", 10)
    jobs = [Job(A.fedavg(work(step)), DATA, 2, cohort=4, eval_every=2) for step in STEPS[:2]]
    single = [list(runs_of(job))[-1] for job in jobs]
    assert [apart(a, b) for a, b in zip(finished(jobs), single, strict=True)] == [0.0, 0.0]
    monkeypatch.undo()
    monkeypatch.setattr("evenhand.simulation._many._devices", lambda: 1)
    jobs = [Job(A.fedavg(eh.local.sgd(MODEL, 0.1, steps=n)), DATA, 2, cohort=4, eval_every=2) for n in (1, 2)]
    single = [list(runs_of(job))[-1] for job in jobs]
    assert [apart(a, b) for a, b in zip(finished(jobs), single, strict=True)] == [0.0, 0.0]
    assert columns == []


def test_methods_that_factorise_matrices_train_alone(columns: list[list[int]]) -> None:
    """Fifteen runs of MOCHA as one program waited for each other's threads, and never ended."""
    jobs = [Job(mocha(MODEL, lam=lam), DATA, 2, cohort=4, eval_every=2) for lam in (0.01, 0.1)]
    single = [list(runs_of(job))[-1] for job in jobs]
    assert [apart(a, b) for a, b in zip(finished(jobs), single, strict=True)] == [0.0, 0.0]
    assert columns == []


@pytest.mark.parametrize("ahead", [2, 4])
def test_runs_that_were_interrupted_at_different_rounds_go_on(tmp_path: Path, ahead: int) -> None:
    """The one that is behind catches up first, and all end with the numbers of uninterrupted runs."""
    methods = [A.scaffold(work(step)) for step in STEPS]
    jobs = [
        Job(method, DATA, 6, cohort=4, eval_every=2, checkpoint=tmp_path / str(i))
        for i, method in enumerate(methods)
    ]
    eh.simulate(methods[1], DATA, rounds=ahead, cohort=4, eval_every=2, checkpoint=tmp_path / "1", devices=1)
    seen: list[tuple[int, int]] = []
    last: dict[int, Run] = {}
    for position, run in iterate_many(jobs):
        assert isinstance(run, Run)
        seen.append((position, run.info["rounds"]))
        last[position] = run
    assert (1, 0) not in seen and (1, ahead) in seen and (0, 0) in seen
    for position, job in enumerate(jobs):
        assert apart(last[position], alone(job)) < 2e-5
    again = [(position, run.info["rounds"]) for position, run in iterate_many(jobs) if isinstance(run, Run)]
    assert again == [(0, 6), (1, 6), (2, 6)]


def test_a_run_that_fails_is_told_and_the_others_go_on(columns: list[list[int]]) -> None:
    huge = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) * jnp.inf)
    broken = A.fedavg(eh.local.sgd(huge, 0.1, epochs=2, batch_size=4))
    good = [A.fedavg(work(step)) for step in STEPS]
    jobs = [Job(method, DATA, 2, cohort=4, eval_every=2) for method in (*good, broken)]
    jobs += [Job(good[0], DATA, -1), Job(good[0], DATA, 2, cohort=4, eval_every=2, checkpoint="/dev/null/x")]
    found: dict[int, Any] = dict(iterate_many(jobs))
    assert all(isinstance(found[i], Run) and found[i].info["rounds"] == 2 for i in range(3))
    assert all(isinstance(found[i], eh.EvenhandError) for i in (3, 4, 5)), found
    assert "rounds" in str(found[4]) and "checkpoint" in str(found[5])
    assert apart(found[1], alone(jobs[1])) < 2e-5


def test_a_run_that_fails_halfway_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch, columns: list[list[int]]
) -> None:
    jobs = [Job(A.fedavg(work(step)), DATA, 4, cohort=4, eval_every=2) for step in STEPS]
    found: dict[int, Any]
    runs = iterate_many(jobs)
    columns_of = Session._keep

    def keep(self: Any, new: Any) -> None:
        if self.setup.program.algorithm is jobs[1].algorithm and len(next(iter(new.values()))):
            raise RuntimeError("a device is gone")
        columns_of(self, new)

    monkeypatch.setattr(Session, "_keep", keep)
    found = dict(runs)
    assert repr(found[1]) == "RuntimeError('a device is gone')"
    assert columns == [[2, 1], [2, 1]]  # its place stays, so that the bits of the others do
    for i in (0, 2):
        assert apart(found[i], alone(jobs[i])) < 2e-5


@pytest.mark.parametrize("fails", ["training together", "evaluating together", "training and evaluating"])
def test_where_no_program_serves_all_each_runs_alone(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where a run's own program fails as well, that is the run's result."""

    def full(*given: Any) -> Any:
        raise MemoryError("out of memory")

    jobs = [Job(A.fedavg(work(step)), DATA, 4, cohort=4, eval_every=2) for step in STEPS]
    if fails != "evaluating together":
        monkeypatch.setattr(Together, "answer", full)
    if fails != "training together":
        monkeypatch.setattr("evenhand.evaluation.per_class_of_each", full)
    together = finished(jobs)
    assert [apart(run, alone(job)) < 2e-5 for run, job in zip(together, jobs, strict=True)] == [True] * 3
    monkeypatch.setattr(Together, "answer", full)
    monkeypatch.setattr("evenhand.simulation.engine.run_rounds", full)
    assert {repr(run) for run in dict(iterate_many(jobs)).values()} == {"MemoryError('out of memory')"}


def test_without_hoisting_runs_train_alone(monkeypatch: pytest.MonkeyPatch, columns: list[list[int]]) -> None:
    monkeypatch.setenv("EVENHAND_HOIST", "off")
    jobs = [Job(A.fedavg(work(step)), DATA, 2, cohort=4, eval_every=2) for step in STEPS[:2]]
    finished(jobs)
    assert columns == []


def test_one_evaluation_of_several_models_is_that_of_each() -> None:
    """Where examples stay on the host, too, and for a split without examples."""
    params = [MODEL.init(jax.random.key(seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    prepared = eh.evaluation.prepare(DATA.test)
    host = prepared._replace(x=np.asarray(prepared.x), y=np.asarray(prepared.y))
    index = eh.evaluation.index_classes(DATA.test.y, DATA.test.offsets, 3)
    for rows in (prepared, host):
        found = eh.evaluation.per_class_of_each(MODEL, stacked, rows, index)
        for of, (metrics, classes) in zip(params, found, strict=True):
            expected, by_class = eh.evaluation.per_class(MODEL, of, rows, index)
            assert classes is not None and by_class is not None
            np.testing.assert_allclose(classes.accuracy, by_class.accuracy)
            for name in expected:
                np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-6)
    assert not np.allclose(found[0][0]["loss"], found[1][0]["loss"])
    nobody = eh.data.Split(x=DATA.test.x[:0], y=DATA.test.y[:0], offsets=0 * DATA.test.offsets)
    empty = eh.evaluation.per_class_of_each(MODEL, stacked, eh.evaluation.prepare(nobody), None)
    assert len(empty) == 3 and all(np.isnan(metrics["loss"]).all() for metrics, _ in empty)
