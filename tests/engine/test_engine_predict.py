"""``run.predict`` and ``run.personal_models``: what a run's models make of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand import tree

CLIENTS = ("anna", "bert", "cleo", "dora")


@pytest.fixture(scope="module")
def data() -> eh.data.FederatedDataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (x.sum(axis=1) + np.repeat([0.0, 1.0, -1.0, 0.0], 20) > 0).astype(int)
    return eh.data.from_arrays(x, y, np.repeat(CLIENTS, 20))


@pytest.fixture(scope="module")
def work() -> eh.local.Work:
    return eh.local.sgd(eh.models.softmax_regression(3, classes=2), 0.5, epochs=1, batch_size=4)


def ditto(work: eh.local.Work) -> eh.Algorithm:
    return eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)


@pytest.fixture(scope="module")
def runs(data: eh.data.FederatedDataset, work: eh.local.Work) -> dict[str, eh.Run]:
    methods = {
        "global": eh.algorithms.fedavg(work),
        "kept": ditto(work),
        "adapted": eh.personalization.finetune(eh.algorithms.fedavg(work), work),
        "both": eh.personalization.finetune(eh.personalization.fedsim(work, personal="bias"), work),
    }
    return {name: eh.simulate(method, data, rounds=3, devices=2) for name, method in methods.items()}


def by_hand(params: Any, x: np.ndarray) -> np.ndarray:
    """Softmax regression in NumPy and float64."""
    kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
    return x.astype(np.float64) @ kernel + bias


@pytest.mark.parametrize("name", ["global", "kept", "adapted", "both"])
def test_predictions_are_those_of_the_parameters(name: str, runs: dict[str, eh.Run]) -> None:
    run = runs[name]
    x = np.random.default_rng(1).normal(size=(9000, 3)).astype(np.float32)  # more than two chunks
    found = run.predict(x)
    assert isinstance(found, np.ndarray) and found.shape == (9000, 2)
    np.testing.assert_allclose(found, by_hand(run.params, x), atol=1e-5)
    for k, client in enumerate(CLIENTS):
        own = run.predict(x, client=client)
        np.testing.assert_allclose(own, by_hand(run.personal_params(k), x), atol=1e-5)
        assert np.allclose(own, found, atol=1e-3) == (name == "global")


@pytest.mark.parametrize("name", ["kept", "adapted", "both"])
def test_a_clients_predictions_have_the_accuracy_that_it_was_measured_with(
    name: str, runs: dict[str, eh.Run], data: eh.data.FederatedDataset
) -> None:
    """The evaluation makes the same models by other programs: spread over devices, several clients at a time."""
    run = runs[name]
    accuracy, loss = (run.client_metrics("train")[metric] for metric in ("accuracy", "loss"))
    for k, client in enumerate(CLIENTS):
        x, y = data.train.client(k)
        found = run.predict(x, client=client).astype(np.float64)
        assert np.mean(found.argmax(axis=1) == y) == pytest.approx(accuracy[k])
        shares = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
        assert -np.log(shares[np.arange(len(y)), y]).mean() == pytest.approx(loss[k], rel=1e-5)


@pytest.mark.parametrize("name", ["kept", "adapted", "both"])
def test_all_personal_models_come_block_by_block(
    name: str, runs: dict[str, eh.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block holds as many clients as fit into the given room: 3 * (8 parameters + 3 * 16 rows) here."""
    monkeypatch.setattr("evenhand.simulation.evaluating._ROOM", 3 * 56)
    blocks = list(runs[name].personal_models())
    assert [(window.start, window.stop) for window, _ in blocks] == [(0, 3), (3, 4)]
    for window, params in blocks:
        assert all(isinstance(leaf, np.ndarray) for leaf in params.values())
        for place, k in enumerate(range(window.start, window.stop)):
            for leaf, own in runs[name].personal_params(k).items():
                np.testing.assert_allclose(params[leaf][place], np.asarray(own), atol=1e-6)


@pytest.mark.parametrize("offload", [False, True, "files"])
def test_states_on_the_device_on_the_host_and_in_files_give_the_same_models(
    offload: bool | str, data: eh.data.FederatedDataset, work: eh.local.Work, tmp_path: Path
) -> None:
    where = tmp_path if offload == "files" else offload
    run = eh.simulate(ditto(work), data, rounds=3, offload=where)
    expected = eh.simulate(ditto(work), data, rounds=3, offload=False)
    (_, params), *others = run.personal_models()
    assert not others
    for k in range(len(CLIENTS)):
        for name, leaf in expected.personal_params(k).items():
            np.testing.assert_array_equal(params[name][k], np.asarray(leaf))


def test_no_rows_have_no_predictions(runs: dict[str, eh.Run]) -> None:
    assert runs["global"].predict(np.zeros((0, 3))).shape == (0, 2)


def test_several_outputs_come_as_the_model_gives_them() -> None:
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    data = eh.data.from_arrays(x, np.arange(12) % 2, ["a", "b"] * 6)
    method = eh.algorithms.fedavg(eh.local.sgd(eh.models.svm(2), 0.1, epochs=1, batch_size=4))
    found = eh.simulate(method, data, rounds=1).predict(x)
    assert found.score.shape == found.penalty.shape == (12,)


@pytest.mark.parametrize(
    ("x", "client", "sentence"),
    [
        (np.zeros((2, 3)), "bret", r"there is no client 'bret' \(perhaps you meant bert\): give an id of"),
        (np.zeros((2, 3)), 0, "there is no client '0': give an id of run.data.client_ids, or None"),
        (np.zeros(3), None, r"this is a single example, of shape \(3,\): give x\[None\]"),
        (np.zeros((2, 4)), None, r"have shape \(2, 4\).*give an array of shape \(rows, 3\)"),
        (
            [[1.0, 2.0, np.nan], [0.0, 0.0, 0.0]],
            None,
            "row 0 holds a number that is not a finite 32-bit number",
        ),
        (
            [[0.0, 0.0, 0.0], [1e300, 0.0, 0.0]],
            None,
            "row 1 holds a number that is not a finite 32-bit number",
        ),
        ([["a", "b", "c"]], None, "the model was trained on numbers"),
        ([[1.0], [1.0, 2.0]], None, "ragged"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(
    x: Any, client: str | None, sentence: str, runs: dict[str, eh.Run]
) -> None:
    with pytest.raises(eh.EvenhandError, match=sentence):
        runs["kept"].predict(x, client=client)


def test_tokens_must_be_whole_numbers() -> None:
    with pytest.raises(eh.EvenhandError, match=r"whole numbers \(tokens\)"):
        eh.evaluation.unlabelled(np.zeros((2, 5)), (5,), "int32")
    assert eh.evaluation.unlabelled(np.zeros((2, 5), np.int64), (5,), "int32").dtype == np.int32


def test_a_released_run_predicts_with_its_global_model_only(
    data: eh.data.FederatedDataset, work: eh.local.Work
) -> None:
    run = eh.simulate(ditto(work), data, rounds=1)
    before = run.predict(data.test.x)
    run.release()
    np.testing.assert_array_equal(run.predict(data.test.x), before)
    with pytest.raises(eh.EvenhandError, match="released its clients' states"):
        run.predict(data.test.x, client="anna")
    with pytest.raises(eh.EvenhandError, match="released its clients' states"):
        list(run.personal_models())


def test_the_number_of_rows_changes_nothing_but_the_last_digits(runs: dict[str, eh.Run]) -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)), jnp.float32)
    whole = runs["global"].predict(x)
    for row in range(5):
        np.testing.assert_allclose(runs["global"].predict(x[row : row + 1])[0], whole[row], rtol=1e-5)


@pytest.mark.parametrize("untrained", ["global", "initial"])
def test_clients_that_never_trained_predict_as_they_are_measured(
    untrained: Literal["global", "initial"], work: eh.local.Work
) -> None:
    """Two of twelve clients train in the only round: the metrics, in NumPy, are those of each client's model."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    data = eh.data.from_arrays(x, (x.sum(axis=1) > 0).astype(int), np.repeat(np.arange(12), 10))
    run = eh.simulate(ditto(work), data, rounds=1, cohort=2, untrained=untrained)
    trained = run.last_round > 0
    assert trained.sum() == 2
    np.testing.assert_array_equal(run.personal_clients, trained | (untrained == "initial"))
    ((_, blocks),) = run.personal_models()
    for k in range(12):
        x, y = data.train.client(k)
        logits = run.predict(x, client=str(k)).astype(np.float64)
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
        assert losses.mean() == pytest.approx(run.client_metrics("train")["loss"][k], rel=1e-5)
        for name, leaf in run.personal_params(k).items():
            np.testing.assert_array_equal(blocks[name][k], np.asarray(leaf))
        is_global = np.array_equal(run.personal_params(k)["kernel"], run.params["kernel"])
        assert is_global == (untrained == "global" and not trained[k])
        if untrained == "initial" and not trained[k]:
            kept = run.algorithm.personal_params
            assert kept is not None
            own = kept(run.state.server, tree.take(run.state.clients, jnp.int32(k)))
            np.testing.assert_array_equal(own["kernel"], run.personal_params(k)["kernel"])


# --- tables ---------------------------------------------------------------------------------------------------

PEOPLE = {
    "place": ["north", "south", "east"] * 20,
    "ward": ["A", "B", "A", "B"] * 15,
    "age": [20.5 + k // 2 for k in range(60)],
    "work": ["job", "school"] * 30,
    "ill": ["no" if k % 7 < 4 else "yes" for k in range(60)],
    "cost": [3.5 * k for k in range(60)],
}
NEW = {
    "work": ["school", "astronaut", "job", "job"],
    "ward": ["A", "B", "A", ""],
    "age": [30, 40, 50, 60],
    "place": ["north", "south", "mars", "north"],
}


def people(**options: Any) -> eh.data.FederatedDataset:
    pyarrow = pytest.importorskip("pyarrow")
    return eh.data.from_frame(pyarrow.table(PEOPLE), client=["place", "ward"], **options)


def trained_on_people(around: Any = ditto, **options: Any) -> eh.Run:
    data = people(**{"label": "ill", "drop": ["cost"], **options})
    assert data.features is not None
    model = eh.models.softmax_regression(len(data.features.inputs), classes=2)
    return eh.simulate(around(eh.local.sgd(model, 0.5, epochs=2, batch_size=4)), data, rounds=3)


@pytest.mark.parametrize(
    "around", [ditto, lambda work: eh.personalization.finetune(eh.algorithms.fedavg(work), work)]
)
def test_a_table_is_predicted_by_the_models_of_its_clients(around: Any, tmp_path: Path) -> None:
    """Known and unknown clients, one without a name, and a text that no training row had; a loaded run agrees."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    run = trained_on_people(around)
    frame = pandas.DataFrame(NEW, index=list("wxyz"))
    found = run.predict_table(frame)
    assert list(found) == ["row", "client", "prediction", "probability_no", "probability_yes", "model"]
    assert list(found.index) == list("wxyz") and found["row"].tolist() == [1, 2, 3, 4]
    assert found["client"].tolist() == ["north / A", "south / B", "mars / A", ""]
    assert found["model"].tolist() == ["personal", "personal", "global", "global"]
    assert run.data.features is not None
    x = eh.data.encode_table(frame, features=run.data.features)
    for k, client in enumerate(("north / A", "south / B", None, None)):
        logits = run.predict(x[k : k + 1], client=client)[0].astype(np.float64)
        shares = np.exp(logits) / np.exp(logits).sum()
        assert found["probability_yes"].iloc[k] == pytest.approx(shares[1], rel=1e-5)
        assert found["prediction"].iloc[k] == ("no", "yes")[shares.argmax()]
    as_polars = run.predict_table(polars.DataFrame(NEW))
    assert isinstance(as_polars, polars.DataFrame) and as_polars.to_dict(as_series=False) == found.to_dict(
        "list"
    )
    frame.to_csv(tmp_path / "new.csv", index=False)
    saved = eh.load_run(run.save(tmp_path / "run"))
    of_file = saved.predict_table(tmp_path / "new.csv")
    assert isinstance(of_file, dict) and of_file["model"].tolist() == found["model"].tolist()
    np.testing.assert_allclose(of_file["probability_yes"], found["probability_yes"], rtol=1e-5)


def test_amounts_margins_and_numbered_classes_are_predicted_for_a_table() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    data = people(label="cost", regression=True, drop=["ill"])
    assert data.features is not None
    inputs, target = len(data.features.inputs), data.features.target
    assert target is not None
    model = eh.models.standardized(
        eh.models.linear_regression(inputs), mean=target.mean, deviation=target.deviation
    )
    work = eh.local.sgd(model, 0.3, epochs=5, batch_size=4)
    found = eh.simulate(eh.algorithms.fedavg(work), data, rounds=5).predict_table(pyarrow.table(PEOPLE))
    assert list(found) == ["row", "client", "prediction", "model"]
    assert np.corrcoef(found["prediction"], PEOPLE["cost"])[0, 1] > 0.95 and max(found["prediction"]) > 100

    numbered = {**PEOPLE, "ill": [int(label == "yes") for label in PEOPLE["ill"]]}
    data = eh.data.from_frame(pyarrow.table(numbered), client="place", label="ill", drop=["cost", "ward"])
    for model, further in (
        (eh.models.softmax_regression(3, classes=2), ["probability_0", "probability_1"]),
        (eh.models.svm(3), ["score"]),
    ):
        run = eh.simulate(
            eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=4)), data, rounds=1
        )
        found = run.predict_table(pyarrow.table(NEW).drop_columns(["place"]))
        assert list(found) == ["row", "prediction", *further, "model"]
        assert found["prediction"].dtype.kind == "i" and set(found["model"].tolist()) == {"global"}
        if further == ["score"]:
            np.testing.assert_array_equal(found["prediction"], found["score"] > 0)


def test_a_table_that_cannot_be_predicted_is_one_sentence(runs: dict[str, eh.Run]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    run = trained_on_people()
    for table, sentence in (
        ({"age": [1.0]}, "there is no column 'work'"),
        ({name: values[:0] for name, values in PEOPLE.items()}, "has no rows"),
    ):
        with pytest.raises(eh.EvenhandError, match=sentence):
            run.predict_table(pyarrow.table(table))
    with pytest.raises(eh.EvenhandError, match=r"trained on arrays.*run\.predict"):
        runs["global"].predict_table(pyarrow.table({"age": [1.0]}))
