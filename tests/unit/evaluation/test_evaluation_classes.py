"""Accuracy by class within each client: against loops in NumPy, the published example and its own bounds."""

from __future__ import annotations

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenhand as eh
from evenhand import tree
from evenhand.data import FederatedDataset, Split
from evenhand.devices import everywhere as to_devices
from evenhand.devices import over
from evenhand.evaluation import (
    ClassMetrics,
    Prepared,
    _classes,
    class_spread,
    prepare,
    summarize,
    summarize_classes,
)
from evenhand.evaluation._classes import ClassIndex, index_classes
from evenhand.evaluation._evaluate import _personal_program, per_class, personal_per_class
from evenhand.report import write_clients_csv, write_report
from evenhand.report.formatting import spread
from evenhand.types import Algorithm

MODEL = eh.testing.toy_model()
PARAMS = MODEL.init(jax.random.key(1))
SIZES = [7, 0, 1, 130, 40, 2, 0]


def rows(sizes: list[int], seed: int = 0, number: int = 3) -> Split:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), 4)).astype(np.float32)
    y = rng.integers(0, number, len(x)).astype(np.int32)
    return Split(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def dataset(train: list[int], test: list[int]) -> FederatedDataset:
    none = Split(np.zeros((0, 4)), np.zeros(0, np.int32), np.zeros(len(train) + 1, np.int64))
    ids = tuple(f"client {k}" for k in range(len(train)))
    return FederatedDataset(rows(train), none, rows(test, 1), ids)


def hits(params: dict, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    logits = np.asarray(x, np.float64) @ np.asarray(params["w"], np.float64) + np.asarray(params["b"])
    return logits.argmax(axis=1) == y


def looped(split: Split, params_of=lambda k: PARAMS, who=None) -> list[tuple[int, int, int, float]]:
    """One entry per client and class of which it has rows."""
    found = []
    for k in range(len(split.sizes)) if who is None else who:
        x, y = split.client(k)
        right = hits(params_of(k), x, y) if len(y) else np.zeros(0)
        found += [(k, c, int((y == c).sum()), right[y == c].mean()) for c in sorted(set(y.tolist()))]
    return found


def assert_is(found: ClassMetrics | None, expected: list[tuple[int, int, int, float]]) -> None:
    assert found is not None
    clients, classes, counts, accuracy = (np.array(part) for part in zip(*expected, strict=True))
    np.testing.assert_array_equal(found.clients, clients)
    np.testing.assert_array_equal(found.classes, classes)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_allclose(found.accuracy, accuracy, rtol=1e-6)


def index_of(split: Split, number: int = 3) -> ClassIndex:
    return index_classes(split.y, split.offsets, number)


def table(accuracies: list[list[float]], counts: list[list[int]] | None = None) -> ClassMetrics:
    """Every client has every class; accuracies in percent, as papers print them."""
    a = np.array(accuracies) / 100
    clients, classes = np.indices(a.shape).reshape(2, -1)
    number = np.ones(a.size, int) if counts is None else np.array(counts).reshape(-1)
    return ClassMetrics(clients, classes, number, a.reshape(-1))


@pytest.fixture(params=[2**22, 7])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients in one table, or two at a time."""
    monkeypatch.setattr(_classes, "_TABLE", request.param)


def test_the_published_example() -> None:
    found = table([[100, 80], [90, 90], [60, 100]], [[50, 50], [50, 50], [75, 25]])
    acc = np.bincount(found.clients, found.counts * found.accuracy) / np.bincount(found.clients, found.counts)
    np.testing.assert_allclose(acc, [0.9, 0.9, 0.7])
    summary = summarize(acc)
    assert (100 * summary["mean"], 100 * summary["std"]) == pytest.approx((83.3333333, 9.4280904))
    columns = class_spread(found, 3)
    np.testing.assert_allclose(100 * columns["class_spread"], [10, 0, 20], atol=1e-9)
    np.testing.assert_array_equal(columns["classes"], [2, 2, 2])
    summary = summarize_classes(columns)
    assert 100 * summary["class_spread"] == pytest.approx(10)
    assert 100 * summary["class_spread_std"] == pytest.approx(8.1649658)
    assert summary["worst_class"] == 0.6
    sample = [np.std(found.accuracy[found.clients == n], ddof=1) for n in range(3)]
    assert 100 * np.mean(sample) == pytest.approx(14.1421356)  # the other convention, which it must not be


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=9))
def test_two_balanced_classes_bound_the_spread(pairs: list[tuple[int, int]]) -> None:
    found = table([list(pair) for pair in pairs])
    mean = np.mean([np.mean(pair) for pair in pairs])
    assert mean + 100 * summarize_classes(class_spread(found, len(pairs)))["class_spread"] <= 100 + 1e-9


def test_the_bound_needs_balance() -> None:
    accuracy = (99 * 100 + 1 * 0) / 100
    assert accuracy + 100 * summarize_classes(class_spread(table([[100, 0]]), 1))["class_spread"] > 100


def test_an_absent_class_is_left_out_and_not_zero() -> None:
    found = ClassMetrics(
        np.array([0, 0, 2]), np.array([1, 5, 5]), np.array([4, 4, 9]), np.array([1, 0.5, 0.75])
    )
    columns = class_spread(found, 4)
    np.testing.assert_array_equal(columns["classes"], [2, 0, 1, 0])
    np.testing.assert_array_equal(columns["class_spread"], [0.25, np.nan, 0, np.nan])
    np.testing.assert_array_equal(columns["worst_class"], [0.5, np.nan, 0.75, np.nan])
    stats = summarize_classes(columns)
    assert (stats["class_spread"], stats["class_spread_std"], stats["worst_class"]) == (0.125, 0.125, 0.5)
    with_zeros = class_spread(table([[100, 50, 0]]), 1)
    assert with_zeros["class_spread"][0] > 0.25


def test_equal_accuracies_have_no_spread_at_all() -> None:
    found = class_spread(table([[10, 10, 10], [70, 70, 70]]), 2)
    np.testing.assert_array_equal(found["class_spread"], [0, 0])
    even = summarize_classes(class_spread(table([[0, 20]] * 3), 3))
    assert even["class_spread_std"] == 0


def test_without_rows_there_is_no_accuracy_by_class() -> None:
    split = rows([0, 0])
    _, found = per_class(MODEL, PARAMS, prepare(split), index_of(split))
    assert found is not None
    assert [len(part) for part in found] == [0, 0, 0, 0]
    assert all(np.isnan(value) for value in summarize_classes(class_spread(found, 2)).values())


def test_divergence_is_not_hidden() -> None:
    found = table([[100, 80], [90, 90]])
    found.accuracy[2] = np.nan
    columns = class_spread(found, 2)
    assert columns["class_spread"][0] == pytest.approx(0.1) and np.isnan(columns["class_spread"][1])
    assert all(np.isnan(value) for value in summarize_classes(columns).values())


@pytest.mark.usefixtures("blocks")
def test_a_shared_model_equals_a_loop() -> None:
    split = rows(SIZES)
    metrics, found = per_class(MODEL, PARAMS, prepare(split), index_of(split))
    assert_is(found, looped(split))
    assert found is not None
    right = np.bincount(found.clients, found.counts * found.accuracy, len(SIZES))
    np.testing.assert_allclose(right / np.maximum(SIZES, 1), np.nan_to_num(metrics["accuracy"]), rtol=1e-12)
    without, none = per_class(MODEL, PARAMS, prepare(split), None)
    assert none is None
    np.testing.assert_array_equal(without["loss"], metrics["loss"])


def test_rows_go_to_their_own_class() -> None:
    split = rows(SIZES)
    turned = index_classes((split.y + 1) % 3, split.offsets, 3)
    with pytest.raises(AssertionError):
        assert_is(per_class(MODEL, PARAMS, prepare(split), turned)[1], looped(split))


def test_more_classes_than_occur_cost_no_cells() -> None:
    split = rows(SIZES)
    few, many = index_of(split), index_of(split, number=1000)
    np.testing.assert_array_equal(few.clients, many.clients)
    assert len(many.clients) <= sum(SIZES)
    assert_is(per_class(MODEL, PARAMS, prepare(split), many)[1], looped(split))


def params_of_client(k: int) -> dict:
    return tree.scale(1.0 if k % 2 else -1.0, PARAMS)


def params_of(states: dict, k: jax.Array) -> dict:
    return tree.scale(jnp.where(k % 2 == 1, 1.0, -1.0).astype(jnp.float32), states)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("host", [False, True])
def test_personal_models_equal_a_loop(lanes: int, devices: int, host: bool) -> None:
    split = rows(SIZES)
    mesh = over(devices)
    x, y = (split.x, split.y) if host else to_devices(mesh, (jnp.asarray(split.x), jnp.asarray(split.y)))
    prepared = Prepared(x, y, split.offsets, None, mesh)
    metrics, found = personal_per_class(
        MODEL, PARAMS, prepared, index_of(split), params_of=params_of, lanes=lanes
    )
    assert_is(found, looped(split, params_of_client))
    plain, _ = personal_per_class(MODEL, PARAMS, prepared, None, params_of=params_of, lanes=lanes)
    np.testing.assert_allclose(plain["loss"], metrics["loss"], rtol=1e-6)
    with pytest.raises(AssertionError):
        assert_is(found, looped(split))


def test_classes_compile_once() -> None:
    split = rows(SIZES)
    personal_per_class(MODEL, PARAMS, prepare(split), index_of(split), params_of=params_of)
    made = _personal_program.cache_info().misses
    personal_per_class(MODEL, PARAMS, prepare(split), index_of(split), params_of=params_of)
    assert _personal_program.cache_info().misses == made


def personal(method: Algorithm) -> Algorithm:
    """A method in which each client's personal model is the initial one plus all its deltas."""
    (phase,) = method.phases

    def work(message, model, data, key):
        delta, _ = phase.work(message, (), data, key)
        return delta, tree.add(model, delta)

    return method._replace(
        phases=(
            phase._replace(report=lambda message, model, data: phase.report(message, (), data), work=work),
        ),
        init_client=lambda params: params,
        personal_params=lambda server, model: model,
    )


WORK = eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4)
FEDAVG = eh.algorithms.fedavg(WORK)
pytestmark = [
    pytest.mark.filterwarnings("ignore:2 of . (evaluated )?clients have no test examples"),
    pytest.mark.draws,
]
DATA = dataset([7, 3, 1, 30, 40, 2, 5], [9, 0, 1, 12, 33, 2, 0])


@pytest.mark.parametrize("clients", [None, 4])
@pytest.mark.parametrize("method", [FEDAVG, personal(FEDAVG)], ids=["shared", "personal"])
def test_a_run_reports_the_accuracy_of_each_class(method: Algorithm, clients: int | None) -> None:
    run = eh.simulate(method, DATA, rounds=3, cohort=4, seed=1, eval_clients=clients)
    for split, part in (("train", DATA.train), ("test", DATA.test)):
        expected = looped(part, lambda k: jax.device_get(run.personal_params(k)), run.evaluated)
        assert_is(run.class_metrics(split), expected)
        spreads = {k: np.std([a for n, _, _, a in expected if n == k]) for k, *_ in expected}
        summary = run.summary(split)
        assert summary["class_spread"] == pytest.approx(np.mean(list(spreads.values())))
        assert summary["class_spread_std"] == pytest.approx(np.std(list(spreads.values())))
        assert summary["worst_class"] == pytest.approx(min(a for *_, a in expected))
        for name in ("class_spread", "worst_class"):
            assert run.history[f"{split}_{name}"][-1] == summary[name]
    assert "class_spread" not in run.summary("test", "loss")
    assert len(run.class_metrics("valid").clients) == 0
    with pytest.raises(eh.EvenhandError, match="no split 'nowhere'"):
        run.class_metrics("nowhere")


def test_the_two_models_of_a_client_differ() -> None:
    shared, personal_run = (eh.simulate(m, DATA, rounds=3, seed=1) for m in (FEDAVG, personal(FEDAVG)))
    assert shared.summary("train")["class_spread"] != personal_run.summary("train")["class_spread"]


def test_writing_to_what_a_run_returns_does_not_change_the_run() -> None:
    run = eh.simulate(FEDAVG, DATA, rounds=0)
    before = run.summary()["class_spread"]
    run.class_metrics().accuracy[:] = 0
    assert run.summary()["class_spread"] == before


def test_infinities_of_a_damaged_table_are_not_a_number() -> None:
    summary = summarize_classes(
        {"classes": np.ones(3), "class_spread": np.array([np.inf, 0.1, -np.inf]), "worst_class": np.zeros(3)}
    )
    assert np.isnan(summary["class_spread"]) and np.isnan(summary["class_spread_std"])


def test_without_classes_there_is_no_accuracy_by_class() -> None:
    work = WORK._replace(model=MODEL._replace(metrics={}))
    run = eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=0)
    assert "class_spread" not in run.summary()
    assert not any("class" in name for name in run.history)
    assert run.view().classes == {}
    with pytest.raises(eh.EvenhandError, match="no accuracy by class"):
        run.class_metrics()


def test_the_report_and_the_table_of_clients_show_the_spread_over_classes(tmp_path: Path) -> None:
    run = eh.simulate(FEDAVG, DATA, rounds=1, seed=1)
    view = run.view("new")
    old = view._replace(title="old", classes={})
    write_clients_csv(tmp_path / "clients.csv", view)
    with (tmp_path / "clients.csv").open() as file:
        lines = list(csv.DictReader(file))
    columns = class_spread(run.class_metrics(), DATA.num_clients)
    assert [line["test_classes"] for line in lines] == [f"{n:.0f}" for n in columns["classes"]]
    for name in ("class_spread", "worst_class"):
        found = [float(line[f"test_{name}"] or "nan") for line in lines]
        np.testing.assert_allclose(found, columns[name], rtol=1e-8)
    names = ("Spread over a client&#x27;s classes", "Its spread over clients", "Worst class of a client")
    new, both, without = (
        write_report(tmp_path / "report.html", views).read_text() for views in ([view], [view, old], [old])
    )
    for name in names:
        assert f'<th scope="row">{name}</th>' in new and f"<dt>{name}</dt>" in new
        assert f'<th scope="row">{name}</th>' in both
        assert name not in without
    shown = spread(run.summary()["class_spread"], "accuracy")
    assert f'{names[0]}</th>\n<td class="number">{shown}</td>' in new
    assert f'{names[0]}</th>\n<td class="number">{shown}</td>\n<td class="number">–</td>' in both
