"""Methods that train several models: which one each client is served, in a run, its folder and for newcomers."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand.report import by_level
from evenhand.simulation.evaluating import Served

MODEL = eh.models.softmax_regression(6, classes=3)
WORK = eh.local.sgd(MODEL, 0.5, epochs=2, batch_size=4)
THETA = (0.2, 1.0)
NAMES = ("theta=1", "theta=0.2")
METHOD = eh.algorithms.delta_fl_levels(WORK, theta=THETA)
HOW: dict[str, Any] = {"rounds": 4, "seed": 1}


def federation(valid: tuple[int, ...] = (6, 6, 0, 6, 6, 6, 6, 6)) -> eh.data.FederatedDataset:
    """Eight clients of three kinds, whose labels depend on different features; one has no validation examples."""

    def split(sizes: tuple[int, ...], seed: int) -> eh.data.Split:
        client = np.repeat(np.arange(8), sizes)
        x = np.random.default_rng(seed).normal(size=(len(client), 6)).astype(np.float32)
        kind = np.array([0, 0, 0, 0, 0, 1, 1, 2])[client]
        y = np.argmax(x[np.arange(len(x))[:, None], (kind[:, None] + np.arange(3)) % 6], axis=1)
        return eh.data.Split(x, y.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))

    return eh.data.FederatedDataset(
        train=split((20, 24, 12, 9, 16, 8, 7, 10), 0),
        valid=split(valid, 1),
        test=split((9,) * 8, 2),
        client_ids=tuple("abcdefgh"),
    )


DATA = federation()


@cache
def run() -> eh.Run:
    return eh.simulate(METHOD, DATA, **HOW)


@cache
def alone(theta: float) -> eh.Run:
    return eh.simulate(eh.algorithms.delta_fl(WORK, theta=theta), DATA, **HOW)


def of_level(split: str, metric: str, k: int) -> float:
    """What the model that is best on the client's validation examples gives it, from runs of one level each."""
    singles = [alone(theta) for theta in (1.0, 0.2)]
    valid = [single.client_metrics("valid")["accuracy"][k] for single in singles]
    best = 1 if valid[1] > valid[0] else 0
    return float(singles[best].client_metrics(split)[metric][k])


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_metrics_without_a_name_are_those_of_the_level_that_a_client_is_served(
    split: str, metric: str
) -> None:
    served = run().client_metrics(split)
    np.testing.assert_allclose(served[metric], [of_level(split, metric, k) for k in range(8)], rtol=1e-5)
    for name, theta in zip(NAMES, (1.0, 0.2), strict=True):
        np.testing.assert_allclose(
            served[f"{metric} ({name})"], alone(theta).client_metrics(split)[metric], rtol=1e-5
        )
        if split != "valid":
            assert not np.allclose(served[metric], served[f"{metric} ({name})"])


def test_levels_are_those_of_serve_by_level_and_of_equals_the_largest() -> None:
    assert run().info["levels"] == list(NAMES)
    level = run().level
    assert level is not None
    assert level.tolist() == eh.evaluation.serve_by_level(run()).level.tolist()
    assert set(level.tolist()) == {0, 1}
    assert level[2] == 0  # without validation examples
    valid = run().client_metrics("valid")
    tied = valid[f"accuracy ({NAMES[0]})"] == valid[f"accuracy ({NAMES[1]})"]
    assert tied.any() and not level[tied].any()
    assert alone(1.0).level is None and "levels" not in alone(1.0).info


def test_the_history_is_about_what_clients_are_served() -> None:
    metrics, sizes = run().client_metrics("test"), DATA.test.sizes
    for name in ("accuracy", f"accuracy ({NAMES[1]})"):
        mean = np.average(metrics[name], weights=sizes)
        assert run().history[f"test_{name}"][-1] == pytest.approx(mean)
    assert run().history["test_accuracy_worst10"][-1] == metrics["accuracy"].min()
    assert run().summary()["mean"] == pytest.approx(metrics["accuracy"].mean())


def test_classes_are_measured_with_the_level_that_a_client_is_served() -> None:
    cells, level = run().class_metrics(), run().level
    assert level is not None
    expected = [alone(theta).class_metrics().accuracy for theta in (1.0, 0.2)]
    np.testing.assert_allclose(cells.accuracy, np.where(level[cells.clients] == 1, expected[1], expected[0]))
    assert not np.allclose(expected[0], expected[1])


def test_metrics_of_sets_of_examples_are_of_the_level_that_a_client_is_served() -> None:
    several = eh.simulate(METHOD, DATA, metrics="macro_f1", **HOW)
    singles = [
        eh.simulate(eh.algorithms.delta_fl(WORK, theta=theta), DATA, metrics="macro_f1", **HOW)
        for theta in (1.0, 0.2)
    ]
    values = [single.client_metrics()["macro_f1"] for single in singles]
    served = several.client_metrics()
    np.testing.assert_allclose(served["macro_f1"], np.where(several.level == 1, values[1], values[0]))
    np.testing.assert_allclose(served[f"macro_f1 ({NAMES[1]})"], values[1])


def test_a_client_predicts_with_the_model_of_its_level() -> None:
    x, level = DATA.test.x, run().level
    assert level is not None
    both = run().predict(x)
    for k in range(8):
        np.testing.assert_array_equal(run().predict(x, DATA.client_ids[k]), both[level[k]])
        assert run().personal_params(k) is run().params[level[k]]
    assert not np.allclose(*both)


def test_a_finding_says_which_clients_cannot_choose() -> None:
    [sentence] = [finding.sentence for finding in run().findings if finding.kind == "unchosen"]
    assert sentence.startswith(
        "1 of 8 clients has no validation examples to choose a level on, and is served theta=1:"
    )
    assert "--valid-fraction 0.2" in sentence
    with pytest.warns(
        eh.errors.EvenhandWarning, match=r"No client has validation examples.*all are served theta=1"
    ):
        nobody = eh.simulate(METHOD, federation((0,) * 8), **HOW)
    assert nobody.level is not None and not nobody.level.any()
    everybody = eh.simulate(METHOD, federation((6,) * 8), **HOW)
    assert "unchosen" not in {finding.kind for finding in everybody.findings}


def test_newcomers_choose_on_validation_examples_or_else_on_their_training_examples() -> None:
    """No model was trained on these, so that both are new to all of them."""
    new = run().serve(federation())
    metrics = [new.client_metrics(split) for split in ("valid", "train")]
    scores = np.array([[one[f"accuracy ({name})"] for name in NAMES] for one in metrics])
    chosen = np.where(np.isnan(scores[0]), scores[1], scores[0])
    assert new.level is not None
    assert new.level.tolist() == (chosen[1] > chosen[0]).tolist()
    changed = federation((0,) * 8)
    by_train = run().serve(changed)
    level = run().level
    assert by_train.level is not None and level is not None
    assert by_train.level.tolist() == (scores[1][1] > scores[1][0]).tolist() != level.tolist()
    assert "unchosen" not in {finding.kind for finding in by_train.findings}


def test_a_saved_run_serves_the_same_levels(tmp_path: Path) -> None:
    saved = eh.load_run(run().save(tmp_path / "a", unseen=federation()), algorithm=METHOD)
    level = run().level
    assert saved.level is not None and level is not None
    assert saved.level.tolist() == level.tolist()
    view, before = saved.view(), run().view(unseen=federation())
    assert view.level is not None and view.unseen is not None and view.unseen.level is not None
    assert view.level.tolist() == [NAMES[j] for j in level]
    assert before.unseen is not None and before.unseen.level is not None
    assert view.unseen.level.tolist() == before.unseen.level.tolist()
    assert by_level(view, "test", "accuracy") == by_level(before, "test", "accuracy")
    k = int(np.argmax(level))
    np.testing.assert_array_equal(
        saved.predict(DATA.test.x, DATA.client_ids[k]), run().predict(DATA.test.x, DATA.client_ids[k])
    )
    for loaded, trained in zip(saved.predict(DATA.test.x), run().predict(DATA.test.x), strict=True):
        np.testing.assert_array_equal(loaded, trained)
    again = saved.serve(federation())
    assert again.level is not None and again.level.tolist() == run().serve(federation()).level.tolist()  # pyright: ignore
    unnamed = dataclasses.replace(saved, model=None)
    jax.tree.map(np.testing.assert_array_equal, unnamed.personal_params(k), saved.personal_params(k))


def test_of_a_sample_of_clients_only_those_have_a_level(tmp_path: Path) -> None:
    sample = eh.simulate(METHOD, DATA, eval_clients=3, **HOW)
    assert sample.level is not None and sample.evaluated is not None and len(sample.level) == 3
    everybody = run().level
    assert everybody is not None
    assert sample.level.tolist() == everybody[sample.evaluated].tolist()
    inside, outside = sample.evaluated[0], next(k for k in range(8) if k not in sample.evaluated)
    sample.predict(DATA.test.x, DATA.client_ids[inside])
    saved = eh.load_run(sample.save(tmp_path / "a"))
    for one in (sample, saved):
        with pytest.raises(eh.EvenhandError, match="was not evaluated"):
            one.predict(DATA.test.x, DATA.client_ids[outside])


def test_malicious_clients_do_not_count_among_those_who_cannot_choose() -> None:
    attack = eh.attacks.by_clients(eh.attacks.sign_flip(), ("c",))
    attacked = eh.simulate(METHOD, DATA, attack=attack, **HOW)
    assert "unchosen" not in {finding.kind for finding in attacked.findings}
    assert len(by_level(attacked.view(), "test", "accuracy")[0].clients) == 7


def test_runs_of_a_study_train_side_by_side_and_are_served_by_level() -> None:
    study = eh.study(
        {"levels": METHOD, "single": eh.algorithms.delta_fl(WORK, theta=0.2)}, DATA, rounds=4, seeds=[1]
    )
    [view] = study.views("levels")
    level = run().level
    assert view.level is not None and level is not None
    assert view.level.tolist() == [NAMES[j] for j in level]
    np.testing.assert_allclose(
        view.clients["test"]["accuracy"], run().client_metrics()["accuracy"], rtol=1e-5
    )


def test_models_side_by_side_are_served_by_level_on_request() -> None:
    members = {"a": eh.algorithms.fedavg(WORK), "b": eh.algorithms.term(WORK, t=5.0)}
    plain, served = (eh.algorithms.side_by_side(members, by_level=by) for by in (False, True))
    assert not plain.levels and [level.name for level in served.levels] == ["a", "b"]
    assert plain.client_model is plain.model and served.client_model is MODEL
    personal = eh.personalization.finetune(members["a"], WORK)
    with pytest.raises(eh.EvenhandError, match=r"by_level=True.*personal models"):
        eh.algorithms.side_by_side({"a": personal}, by_level=True)


def test_the_average_of_levels_is_served_by_level() -> None:
    averaged = eh.simulate(eh.algorithms.averaged(METHOD), DATA, **HOW)
    assert averaged.level is not None and len(averaged.params) == 2


def test_a_client_chooses_on_its_validation_examples_also_where_one_model_gives_no_numbers() -> None:
    """The first client has none, and chooses on those for training; the other has some, and one accuracy of them."""

    def served(train: list[float], valid: list[float]) -> Served:
        clients = {"train": {"accuracy": np.array(train)}, "valid": {"accuracy": np.array(valid)}}
        return Served(clients, {})

    models = {"a": served([0.9, 0.9], [np.nan, np.nan]), "b": served([0.1, 0.1], [np.nan, 0.3])}
    level = Served.best_of(models, ("valid", "train")).level
    assert level is not None and level.tolist() == [0, 1]
