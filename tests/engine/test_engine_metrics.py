"""``simulate(metrics=...)``: the metrics of the models that clients are served, however a run is made and evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.data import FederatedDataset, Split
from evenhand.errors import EvenhandError
from evenhand.evaluation import _evaluate, _outputs
from evenhand.evaluation.metrics import auc, from_function, measure
from evenhand.report import statistics
from evenhand.simulation import Job, Run, evaluating, iterate, iterate_many
from evenhand.testing import toy_data, toy_model

# Client 2 has no test examples, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:1 of .* has no test examples:evenhand.errors.EvenhandWarning")

MODEL = toy_model()
WORK = eh.local.sgd(MODEL, 0.3, epochs=2, batch_size=4)
FEDAVG = eh.algorithms.fedavg(WORK)
DITTO = eh.personalization.ditto(FEDAVG, WORK, lam=0.1)
METHODS = {"global": FEDAVG, "personal": DITTO, "adapted": eh.personalization.finetune(DITTO, WORK)}
NAMES = ("auc", "average_precision", "macro_f1", "balanced_accuracy", "brier", "calibration_error")


def uneven() -> FederatedDataset:
    """The toy clients with other test examples: client 1 has those of one class, client 2 has none."""
    split = toy_data(seed=1).train
    client = np.repeat(np.arange(len(split.sizes)), split.sizes)
    keep = (client != 2) & ((client != 1) | (split.y == split.y[client == 1][0]))
    sizes = np.bincount(client[keep], minlength=len(split.sizes))
    test = Split(split.x[keep], split.y[keep], np.concatenate([[0], np.cumsum(sizes)]))
    return replace(toy_data(), test=test)


def relabelled(labels: Callable[[np.ndarray], np.ndarray]) -> FederatedDataset:
    """The same examples with labels made of theirs."""
    train, valid, test = (split._replace(y=labels(split.y)) for split in (DATA.train, DATA.valid, DATA.test))
    return replace(DATA, train=train, valid=valid, test=test)


DATA = uneven()


def run(method: Any, data: FederatedDataset = DATA, **how: Any) -> Run:
    return eh.simulate(method, data, rounds=2, cohort=3, seed=4, **{"metrics": NAMES, **how})


def looped(of: Run, split: str = "test") -> dict[str, np.ndarray]:
    """Each metric of each client with its own model, and with the global one, one client after the other."""
    rows = {"train": of.data.train, "test": of.data.test}[split]
    prefixes = {"": of.personal_params} | ({} if of.algorithm is FEDAVG else {"global_": lambda k: of.params})
    values: dict[str, list[float]] = {f"{prefix}{name}": [] for prefix in prefixes for name in NAMES}
    for k in range(of.data.num_clients):
        x, y = rows.client(k)
        for prefix, params_of in prefixes.items():
            outputs = np.asarray(MODEL.apply(params_of(k), jnp.asarray(x)))
            for name, value in measure(NAMES, outputs, y).items():
                values[f"{prefix}{name}"].append(value)
    return {name: np.array(column) for name, column in values.items()}


def assert_same(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module", params=METHODS)
def plain(request: pytest.FixtureRequest) -> Run:
    return run(METHODS[request.param])


def test_metrics_are_those_of_each_clients_model(plain: Run) -> None:
    for split in ("train", "test"):
        expected = looped(plain, split)
        assert_same(plain.client_metrics(split), expected)
    assert np.isnan(expected["auc"]).sum() == 3 and len(np.unique(expected["macro_f1"])) > 3
    if plain.algorithm is not FEDAVG:
        assert not np.allclose(expected["auc"], expected["global_auc"], equal_nan=True)


WAYS: dict[str, dict[str, Any]] = {
    "devices": {"devices": 4},
    "lanes": {"lanes": 2},
    "streamed": {"stream": True},
    "states on the host": {"offload": True},
    "some clients": {"eval_clients": 4},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_gives_the_same_metrics(
    way: str, plain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows, outputs and models at a time, so that a client's rows come in several parts, and clients in groups."""
    monkeypatch.setattr(_evaluate, "_CHUNK_ROWS", (8, 8))
    monkeypatch.setattr(_outputs, "_NUMBERS", 60)
    monkeypatch.setattr(evaluating, "_ROOM", 40)
    other = run(plain.algorithm, **WAYS[way])
    who = np.arange(DATA.num_clients) if other.evaluated is None else other.evaluated
    assert len(who) == (4 if way == "some clients" else DATA.num_clients)
    for split in ("train", "test"):
        whole, some = plain.client_metrics(split), other.client_metrics(split)
        assert set(whole) == set(some)
        for name, values in whole.items():
            np.testing.assert_allclose(some[name][who], values[who], rtol=1e-4, atol=1e-5, err_msg=name)
            assert np.isnan(np.delete(some[name], who)).all()


@pytest.mark.parametrize("name", METHODS)
def test_rows_in_a_file_are_measured_on_several_devices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_evaluate, "_CHUNK_ROWS", (8, 8))
    monkeypatch.setattr(_outputs, "_NUMBERS", 60)
    filed = dict[str, Split]()
    for part, split in (("train", DATA.train), ("test", DATA.test)):
        on_disk = np.memmap(tmp_path / part, split.x.dtype, "w+", shape=split.x.shape)
        on_disk[:] = split.x
        filed[part] = split._replace(x=on_disk)
    of = run(METHODS[name], replace(DATA, **filed), devices=3)
    assert_same(of.client_metrics("test"), looped(of))


def test_metrics_come_after_the_last_round_and_change_nothing_else(plain: Run) -> None:
    runs = list(iterate(plain.algorithm, DATA, rounds=2, cohort=3, seed=4, eval_every=1, metrics=NAMES))
    assert ["auc" in of.client_metrics() for of in runs] == [False, False, True]
    without = run(plain.algorithm, metrics=())
    assert set(plain.history) == set(without.history)
    for name, values in without.history.items():
        np.testing.assert_array_equal(plain.history[name], values)
    for k in range(DATA.num_clients):
        of_both = (jax.tree.leaves(of.personal_params(k)) for of in (plain, without))
        for one, other in zip(*of_both, strict=True):
            np.testing.assert_array_equal(one, other)
    assert set(without.client_metrics()) == set(plain.client_metrics()) - set(looped(plain))


def test_a_checkpoint_serves_runs_with_and_without_metrics(tmp_path: Path) -> None:
    run(FEDAVG, metrics=(), checkpoint=tmp_path)
    again = run(FEDAVG, checkpoint=tmp_path)
    assert_same(again.client_metrics(), looped(again))
    longer = eh.simulate(FEDAVG, DATA, rounds=3, cohort=3, seed=4, metrics="auc", checkpoint=tmp_path)
    assert_same({"auc": longer.client_metrics()["auc"]}, {"auc": looped(longer)["auc"]})


def test_runs_side_by_side_have_their_own_metrics() -> None:
    """Each run of a crew has those of its job; one that asks for what its model lacks fails alone."""
    works = [eh.local.sgd(MODEL, lr, epochs=1, batch_size=4) for lr in (0.1, 0.3, 0.5)]
    wanted = ("auc", "r2", ("macro_f1", auc()))
    jobs = [
        Job(eh.algorithms.fedavg(work), DATA, rounds=2, cohort=3, metrics=metrics)
        for work, metrics in zip(works, wanted, strict=True)
    ]
    last = dict(iterate_many(jobs))
    assert isinstance(last[1], EvenhandError)
    first, third = last[0], last[2]
    assert isinstance(first, Run) and isinstance(third, Run)
    assert_same({"auc": first.client_metrics()["auc"]}, {"auc": looped(first)["auc"]})
    assert "macro_f1" not in first.client_metrics()
    both = {name: looped(third)[name] for name in ("macro_f1", "auc")}
    assert_same(third.client_metrics(), both)


def test_clients_without_a_value_do_not_count(plain: Run) -> None:
    """By hand over the clients that have two classes; in Python, in what reports see, and for honest clients."""
    values = plain.client_metrics()["auc"]
    defined = ~np.isnan(values)
    assert defined.tolist() == [False, False, False, True, True, True]
    summary = plain.summary(metric="auc")
    assert summary["clients"] == defined.sum()
    assert summary["mean"] == pytest.approx(values[defined].mean())
    assert summary["worst10"] == values[defined].min()
    assert statistics(plain.view(), "test", "auc")["mean"] == summary["mean"]
    assert plain.summary(metric="macro_f1")["clients"] == 5
    assert plain.view().info["metrics"]["auc"] == "have examples of one class only"


def test_what_was_not_measured_names_the_cure() -> None:
    with pytest.raises(EvenhandError, match=r'metrics=\("auc",\)'):
        run(FEDAVG, metrics="macro_f1").summary(metric="auc")


def test_newcomers_have_the_metrics_of_the_run(plain: Run) -> None:
    served = plain.serve(DATA)
    assert_same(served.client_metrics(), looped(served))
    assert served.view().info["metrics"].keys() == plain.view().info["metrics"].keys()


def test_metrics_under_attack_can_be_summarised_for_honest_clients() -> None:
    of = run(FEDAVG, attack=eh.attacks.sign_flip(0.3))
    values = of.client_metrics()["auc"][~of.malicious]
    assert of.summary(metric="auc", who="honest")["mean"] == pytest.approx(np.nanmean(values))


def test_models_of_numbers_and_margins() -> None:
    """Linear regression sees class numbers as targets; a support vector machine has scores, but no probabilities."""
    x = DATA.train.x.shape[1]
    linear, svm = eh.models.linear_regression(x), eh.models.svm(x)
    two = relabelled(lambda y: (y > 0).astype(np.int32))
    own = from_function("top_error", lambda outputs, y: np.abs(outputs - y).max(), higher_is_better=False)
    of = eh.simulate(
        eh.algorithms.fedavg(eh.local.sgd(linear, 0.1, epochs=3, batch_size=4)),
        two,
        rounds=1,
        metrics=("r2", "mae", own),
    )
    got = of.client_metrics()
    np.testing.assert_allclose(got["mae"], got["absolute_error"], rtol=1e-5)
    assert (got["top_error"][two.test.sizes > 0] >= got["mae"][two.test.sizes > 0]).all()
    method = eh.algorithms.fedavg(eh.local.sgd(svm, 0.1, epochs=3, batch_size=4))
    *_, of = iterate(method, two, rounds=1, metrics=("auc", "balanced_accuracy"))
    for k in (3, 5):
        rows, y = two.test.client(k)
        score = np.asarray(svm.apply(of.params, jnp.asarray(rows)).score)
        assert of.client_metrics()["auc"][k] == pytest.approx(measure("auc", score, y)["auc"], abs=1e-6)
    assert len(np.unique(of.client_metrics()["auc"])) > 2
    with pytest.raises(EvenhandError, match="margins"):
        eh.simulate(method, two, rounds=1, metrics="calibration_error")
    with pytest.raises(EvenhandError, match="auc needs classes"):
        eh.simulate(
            eh.algorithms.fedavg(eh.local.sgd(linear, 0.1, epochs=3, batch_size=4)),
            two,
            rounds=1,
            metrics="auc",
        )


def test_a_metric_that_fails_does_so_before_the_training() -> None:
    runs = iterate(
        FEDAVG, DATA, rounds=1, metrics=(from_function("own", lambda outputs, y: outputs.argmax(1) == y),)
    )
    with pytest.raises(EvenhandError, match="metric 'own' gives an array"):
        next(iter(runs))


def test_a_metric_may_need_outputs_that_only_the_model_gives() -> None:
    def least(outputs: Any, y: Any) -> float:
        if not np.allclose(outputs.sum(axis=1), 1.0, atol=1e-5):
            raise ValueError("these are no probabilities")
        return float(outputs.min())

    model = eh.testing.toy_model()
    model = model._replace(apply=lambda params, x, of=model.apply: jax.nn.softmax(of(params, x)))
    method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))
    trained = eh.simulate(method, DATA, rounds=1, metrics=(from_function("least", least),))
    assert (np.asarray(trained.client_metrics("train")["least"]) > 0).all()


def test_what_the_model_measures_or_cannot_give_is_refused() -> None:
    with pytest.raises(EvenhandError, match="already measures 'accuracy'"):
        run(FEDAVG, metrics=(from_function("accuracy", lambda outputs, y: 0.0),))
    both = eh.algorithms.side_by_side({"a": FEDAVG, "b": FEDAVG})
    with pytest.raises(EvenhandError, match="several arrays"):
        run(both)
    pairs = relabelled(lambda y: np.stack([y, y], axis=1))
    twice = MODEL._replace(
        apply=lambda params, x: jnp.stack([MODEL.apply(params, x)] * 2, axis=1),
        losses=eh.models.cross_entropy,
        metrics={},
    )
    sentence = r"are class numbers of shape \(2,\), and .* one class number per example: leave out r2\."
    with pytest.raises(EvenhandError, match=sentence):
        run(eh.algorithms.fedavg(eh.local.sgd(twice, 0.1, steps=1)), pairs, metrics="r2")
