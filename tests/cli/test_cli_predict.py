"""``evenhand predict``: the models of a run folder applied to new rows, against NumPy."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)

import evenhand as eh
from evenhand.cli import main
from evenhand.simulation.folder import read_index

HEADER = "region,group,age,work,label"
NAMES = ("north / A", "north / B", "south / A")


pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


def people(count: int) -> list[str]:
    """Rows of a table with two client columns, a number and a category, both with empty cells, and named classes."""
    rng = np.random.default_rng(0)
    return [
        f"{NAMES[i % 3].replace(' / ', ',')},{'' if i % 7 == 0 else rng.integers(20, 80)},"
        f"{('', 'job', 'school')[i % 5 % 3]},{('no', '=yes')[rng.integers(2)]}"
        for i in range(count)
    ]


def train(folder: Path, data: Path, method: str, *words: str) -> Path:
    given = ["--data", str(data), "--rounds", "3", "--lr", "0.5", "--out", str(folder / "run"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        assert main(["run", method, *given, *words]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "people.csv"
    path.write_text("\n".join([HEADER, *people(60)]))
    return path


@pytest.fixture(scope="module")
def ditto(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["--client-column", "region,group", "--fill", "median"]
    return train(tmp_path_factory.mktemp("ditto"), table, "ditto(fedavg(), lam=0.1)", *words)


def predicted(
    folder: Path, data: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[list[dict[str, str]], str]:
    """The lines that the command prints, and what it says on the error stream."""
    capsys.readouterr()
    assert main(["predict", str(folder), "--data", str(data), *words]) == 0
    shown = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(shown.out))), shown.err


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["predict", *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def by_hand(folder: Path, client: str, age: str, work: str) -> np.ndarray:
    """Softmax regression in NumPy, from ``features.json`` and the arrays alone; ``client`` "" is the global model."""
    entries = {entry.client: entry.file for entry in read_index(folder)}
    path = folder / "personal" / entries[client] if client in entries else folder / "params.npz"
    columns = {
        column["name"]: column for column in json.loads((folder / "features.json").read_text())["columns"]
    }
    number, texts = columns["age"], columns["work"]
    x = [((float(age) if age else number["fill"]) - number["mean"]) / number["deviation"]]
    x += [float((work or texts["fill"]) == category) for category in texts["categories"]]
    with np.load(path) as arrays:
        logits = np.array(x) @ arrays["kernel"].astype(np.float64) + arrays["bias"]
    return np.exp(logits) / np.exp(logits).sum()


def test_a_table_goes_through_the_runs_own_encoding_to_each_clients_model(
    ditto: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns in another order and one more; empty cells, an unseen text, unknown and nameless clients."""
    new = tmp_path / "new.csv"
    new.write_text(
        "extra,work,age,group,region\n"
        "1,job,30,A,north\n"
        "1,,,B,north\n"
        "1,school,,A,south\n"
        "1,astronaut,50,A,north\n"
        "1,job,30,A,mars\n"
        "1,job,30,,north\n"
        "1,job,30,A,=1+1\n"
    )
    lines, said = predicted(ditto, new, capsys)
    assert list(lines[0]) == ["row", "client", "prediction", "probability_=yes", "probability_no", "model"]
    assert [line["row"] for line in lines] == list("1234567")
    assert [line["client"] for line in lines] == [
        "north / A",
        "north / B",
        "south / A",
        "north / A",
        "mars / A",
        "",
        "'=1+1 / A",
    ]
    assert [line["model"] for line in lines] == ["personal"] * 4 + ["global"] * 3
    cells = [
        ("30", "job"),
        ("", ""),
        ("", "school"),
        ("50", "astronaut"),
        ("30", "job"),
        ("30", "job"),
        ("30", "job"),
    ]
    for line, (age, work) in zip(lines, cells, strict=True):
        shares = by_hand(ditto, line["client"], age, work)
        found = [float(line["probability_=yes"]), float(line["probability_no"])]
        np.testing.assert_allclose(found, shares, atol=1e-5)
        assert line["prediction"] == ("'=yes" if shares[0] > shares[1] else "no")
    alone = by_hand(ditto, "", "30", "job")
    assert not np.allclose(by_hand(ditto, "north / A", "30", "job"), alone, atol=1e-2)
    assert "7 rows: 4 predicted by the client's personal model, 3 by the global model." in said
    assert "2 clients have no model in personal/: 'mars / A', '=1+1 / A'." in said
    assert "1 row without a client id." in said
    assert "1 row with a 'work' that no training row had, such as 'astronaut'" in said
    assert "known label" not in said


def test_the_predictions_of_python_are_the_same(
    ditto: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = eh.data.load(table, client=["region", "group"], fill="median")
    assert data.features is not None and data.classes is not None
    model = eh.models.softmax_regression(len(data.features.inputs), classes=2)
    work = eh.local.sgd(model, 0.5, epochs=1, batch_size=10)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1)
    run = eh.simulate(method, data, rounds=3)
    x = eh.data.encode_table(table, features=data.features)
    lines, _ = predicted(ditto, table, capsys)
    for name in NAMES:
        rows = [i for i, line in enumerate(lines) if line["client"] == name]
        logits = run.predict(x[rows], client=name).astype(np.float64)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        found = [float(lines[i]["probability_no"]) for i in rows]
        np.testing.assert_allclose(found, shares[:, data.classes.index("no")], atol=1e-5)


def test_python_gives_a_table_what_the_command_writes(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = eh.models.softmax_regression(4, classes=2)
    found = eh.load_run(ditto, model=model).predict_table(table)
    lines, _ = predicted(ditto, table, capsys)
    assert list(found) == list(lines[0])
    for name, values in found.items():
        column = [line[name].lstrip("'") for line in lines]
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, np.array(column, float), rtol=1e-8)
        else:
            assert [str(value) for value in values] == column


def test_known_labels_are_scored_and_strange_ones_listed(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    rows = people(20)
    labels = ["maybe" if i == 0 else "" if i == 1 else row.rsplit(",", 1)[1] for i, row in enumerate(rows)]
    rows = [f"{row.rsplit(',', 1)[0]},{label}" for row, label in zip(rows, labels, strict=True)]
    new.write_text("\n".join([HEADER, *rows]))
    lines, said = predicted(ditto, new, capsys)
    right, losses = [], []
    for line, label in zip(lines, labels, strict=True):
        if label in ("no", "=yes"):
            right.append(line["prediction"].lstrip("'") == label)
            losses.append(-np.log(float(line[f"probability_{label}"])))
    assert len(right) == 18 and 0 < np.mean(right) < 1
    expected = f"accuracy {100 * np.mean(right):.1f} %, loss {np.mean(losses):.4g}."
    assert f"Over the 18 rows with a known label: {expected}" in said
    assert "1 row with a label that the model does not know: 'maybe'." in said


def test_a_file_and_quiet(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = predicted(ditto, table, capsys)
    assert main(["predict", str(ditto), "--data", str(table), "--out", str(tmp_path / "p.csv")]) == 0
    shown = capsys.readouterr()
    assert f"Predictions: {tmp_path / 'p.csv'}" in shown.out and "60 rows: 60" in shown.out and not shown.err
    with (tmp_path / "p.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == lines
    assert predicted(ditto, table, capsys, "--quiet") == (lines, "")


def test_rows_without_the_client_column_get_the_global_model(
    ditto: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    new.write_text("age,work,group\n30,job,A\n")
    lines, said = predicted(ditto, new, capsys)
    assert "client" not in lines[0] and lines[0]["model"] == "global"
    assert float(lines[0]["probability_no"]) == pytest.approx(by_hand(ditto, "", "30", "job")[1], abs=1e-5)
    assert "add the column region,group to use personal models" in said


def test_parquet_names_the_same_clients(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(reader.read_csv(table), tmp_path / "p.parquet")
    assert predicted(ditto, tmp_path / "p.parquet", capsys) == predicted(ditto, table, capsys)


def test_numbered_clients_and_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids and classes that are numbers, and classes that do not begin at 0, keep their names."""
    table = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    rows = [f"{7 + i % 2},{rng.normal():.3f},{-1 if i % 3 else 1}" for i in range(40)]
    table.write_text("\n".join(["client,size,label", *rows]))
    folder = train(tmp_path, table, "finetune(fedavg(), lam=0.1)")
    lines, said = predicted(folder, table, capsys)
    assert {line["client"] for line in lines} == {"7", "8"} and {line["model"] for line in lines} == {
        "personal"
    }
    assert list(lines[0])[3:5] == ["probability_-1", "probability_1"]
    assert {line["prediction"] for line in lines} <= {"-1", "1"}
    assert "Over the 40 rows with a known label" in said
    table.write_text("client,size,label\n7,1,1.0\n8,2,-1.0\n8,2,0.5\n")  # 1.0 counts as 1
    _, said = predicted(folder, table, capsys)
    assert "Over the 2 rows with a known label" in said and "does not know: '0.5'" in said


def test_huge_logits_are_no_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exponential of a number above 709 is no 64-bit number."""
    table = tmp_path / "t.csv"
    table.write_text("client,size,label\n" + "a,1,0\na,-1,1\n" * 10)
    folder = train(tmp_path, table, "fedavg()", "--lr", "1e5")
    with np.load(folder / "params.npz") as arrays:
        assert np.abs(arrays["kernel"]).max() > 1e4
    lines, _ = predicted(folder, table, capsys)
    assert [(line["probability_0"], line["probability_1"]) for line in lines[:2]] == [("1", "0"), ("0", "1")]


def test_regression_predicts_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    rows = [f"{'ab'[i % 2]},{(x := rng.normal()):.3f},{2 * x + 1:.3f}" for i in range(40)]
    table.write_text("\n".join(["client,size,label", *rows]))
    words = ["--regression", "--no-standardize", "--no-standardize-target", "--lr", "0.1"]
    folder = train(tmp_path, table, "fedavg()", *words)
    lines, said = predicted(folder, table, capsys)
    assert list(lines[0]) == ["row", "client", "prediction", "model"]
    with np.load(folder / "params.npz") as arrays:
        slope, offset = arrays["kernel"].item(), arrays["bias"].item()
    sizes = np.array([float(row.split(",")[1]) for row in rows])
    found = np.array([float(line["prediction"]) for line in lines])
    np.testing.assert_allclose(found, slope * sizes + offset, atol=1e-5)
    targets = np.array([float(row.split(",")[2]) for row in rows])
    error = np.mean((found - targets) ** 2)
    assert f"squared_error {error:.4g}" in said and "40 rows, predicted by the global model." in said


def test_large_targets_are_predicted_in_their_own_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prices around 300,000, which the run standardises: the table, ``run.predict`` and the reported error agree."""
    table = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    rows = [f"{'ab'[i % 2]},{(x := rng.normal()):.3f},{300_000 + 50_000 * x:.0f}" for i in range(60)]
    table.write_text("\n".join(["client,size,price", *rows]))
    words = ["--regression", "--label-column", "price", "--lr", "0.1", "--batch-size", "10"]
    folder = train(tmp_path, table, "ditto(fedavg(), lam=0.1)", *words)
    lines, said = predicted(folder, table, capsys, "--metrics", "mae,r2")
    found = np.array([float(line["prediction"]) for line in lines])
    data = eh.data.load(table, label="price", regression=True)
    assert data.features is not None and data.features.target is not None
    _, mean, deviation = data.features.target
    model = eh.models.standardized(eh.models.linear_regression(1), mean=mean, deviation=deviation)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    run = eh.simulate(eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.1), data, rounds=3)
    x = eh.data.encode_table(table, features=data.features)
    expected = np.empty(60)
    for k, client in enumerate("ab"):
        expected[k::2] = run.predict(x[k::2], client=client)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    targets = np.array([float(row.split(",")[2]) for row in rows])
    assert np.abs(found - targets).mean() < 50_000
    assert f"squared_error {np.mean((found - targets) ** 2):.4g}" in said
    assert f"mae {mean_absolute_error(targets, found):.4g}, r2 {r2_score(targets, found):.4g}." in said


def test_further_metrics_of_labelled_rows(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against scikit-learn, without the row whose label the model does not know."""
    new = tmp_path / "new.csv"
    new.write_text(table.read_text() + "\nnorth,A,30,job,perhaps\n")
    lines, said = predicted(ditto, new, capsys, "--metrics", "auc,macro_f1,balanced_accuracy")
    labels = [line.split(",")[-1] for line in table.read_text().splitlines()[1:]]
    answers = [line["prediction"].lstrip("'") for line in lines[:-1]]
    auc = roc_auc_score(np.array(labels) == "no", [float(line["probability_no"]) for line in lines[:-1]])
    f1, recall = f1_score(labels, answers, average="macro"), balanced_accuracy_score(labels, answers)
    expected = f"auc {auc:.4g}, macro_f1 {100 * f1:.1f} %, balanced_accuracy {100 * recall:.1f} %."
    assert "Over the 60 rows with a known label: " in said and expected in said
    one = tmp_path / "one.csv"
    one.write_text("\n".join(table.read_text().splitlines()[:2]))
    assert "auc undefined." in predicted(ditto, one, capsys, "--metrics", "auc")[1]
    one.write_text("age,work\n5,job\n")
    path = str(one)
    assert "needs labels, and" in refused([str(ditto), "--data", path, "--metrics", "auc"], capsys)
    one.write_text("age,work,label\n5,job,no\n")
    assert "There is no metric 'ouc'" in refused([str(ditto), "--data", path, "--metrics", "ouc"], capsys)
    assert "r2 needs targets" in refused([str(ditto), "--data", path, "--metrics", "r2"], capsys)


def test_a_folder_without_personal_models_says_so(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As earlier versions left it: without the models, and without ``last_round`` in ``clients.csv``."""
    folder = Path(shutil.copytree(ditto, tmp_path / "run"))
    shutil.rmtree(folder / "personal")
    (folder / "checksums.json").unlink()
    lines, said = predicted(folder, table, capsys)
    assert {line["model"] for line in lines} == {"global"}
    assert f"{folder} has no personal/, and so no personal models" in said
    assert "has no personal/" not in predicted(ditto, table, capsys)[1]


def test_a_support_vector_machine_gives_a_score_and_no_probability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    rows = [f"{'ab'[i % 2]},{rng.normal() + i % 3:.3f},{'no' if i % 3 else 'yes'}" for i in range(40)]
    table.write_text("\n".join(["client,size,label", *rows]))
    folder = train(tmp_path, table, "fedavg()", "--model", "svm")
    lines, said = predicted(folder, table, capsys, "--metrics", "auc")
    scores, labels = [float(line["score"]) for line in lines], [row.split(",")[2] == "yes" for row in rows]
    assert f"auc {roc_auc_score(labels, scores):.4g}." in said
    refusal = "calibration_error needs probabilities"
    given = [str(folder), "--data", str(table), "--metrics", "calibration_error"]
    assert refusal in refused(given, capsys)
    assert list(lines[0]) == ["row", "client", "prediction", "score", "model"]
    assert {(float(line["score"]) > 0, line["prediction"]) for line in lines} == {
        (True, "yes"),
        (False, "no"),
    }


@pytest.mark.parametrize("model", ["mlp", "softmax"])
def test_arrays(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With clients and labels, or without; pixels are scaled as for training; the training data may be gone."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 3, 2, 1)).astype(np.uint8), np.arange(40) % 3
    client = np.array(["a", "b"])[np.arange(40) % 2]
    np.savez(tmp_path / "old.npz", x=x, y=y, client=client)
    words = ["--model", model, "--hidden", "4"]
    folder = train(tmp_path, tmp_path / "old.npz", "ditto(fedavg(), lam=0.1)", *words)
    (tmp_path / "old.npz").unlink()
    np.savez(tmp_path / "new.npz", x=x, y=y, client=np.where(client == "b", "c", client))
    lines, said = predicted(folder, tmp_path / "new.npz", capsys)
    assert [line["model"] for line in lines] == ["personal", "global"] * 20
    assert (
        "Over the 40 rows with a known label" in said and "1 client has no model in personal/: 'c'." in said
    )
    np.savez(tmp_path / "new.npz", x=x.astype(np.float32) / 255)
    plain, said = predicted(folder, tmp_path / "new.npz", capsys)
    assert "client" not in plain[0] and "known label" not in said
    columns = [f"probability_{k}" for k in range(3)]
    assert [plain[1][name] for name in columns] == pytest.approx([lines[1][name] for name in columns])
    assert plain[0]["probability_0"] != lines[0]["probability_0"]
    np.savez(tmp_path / "bad.npz", x=np.zeros((2, 5)))
    assert "have shape (2, 5), but the model was trained on rows of shape (3, 2, 1)" in refused(
        [str(folder), "--data", str(tmp_path / "bad.npz")], capsys
    )
    np.savez(tmp_path / "bad.npz", pixels=x)
    assert "there is no array 'x' among 'pixels', which the model was trained with" in refused(
        [str(folder), "--data", str(tmp_path / "bad.npz")], capsys
    )
    # Booleans are the classes 0 and 1, as in training.
    np.savez(tmp_path / "new.npz", x=x, y=y > 0)
    assert "Over the 40 rows with a known label" in predicted(folder, tmp_path / "new.npz", capsys)[1]
    (tmp_path / "t.csv").write_text("a\n1\n")
    assert "trained on arrays: give an .npz file with the array 'x'" in refused(
        [str(folder), "--data", str(tmp_path / "t.csv")], capsys
    )


def test_tokens_and_built_in_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of tokens is as large as the vocabulary of its training data, which may be larger than its classes."""
    rng = np.random.default_rng(0)
    x, client = rng.integers(0, 9, (12, 4)), np.arange(12) % 2
    x[0, 0] = 9
    np.savez(tmp_path / "old.npz", x=x, y=np.arange(12) % 3, client=client)
    folder = train(tmp_path, tmp_path / "old.npz", "fedavg()", "--model", "lstm", "--rounds", "1")
    np.savez(tmp_path / "new.npz", x=x[:, :4] % 3)
    lines, _ = predicted(folder, tmp_path / "new.npz", capsys)
    assert sum(name.startswith("probability_") for name in lines[0]) == 10
    assert sum(float(lines[0][f"probability_{k}"]) for k in range(10)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["RUN"], "predict needs rows: `evenhand predict"),
        (["RUN", "--data", "nowhere.csv"], "no such file"),
        (["RUN", "--data", "empty.csv"], "empty.csv has no rows"),
        (
            ["RUN", "--data", "short.csv"],
            "there is no column 'work' among 'age', which the model was trained with",
        ),
        (
            ["RUN", "--data", "text.csv"],
            "line 2, column 'age' holds 'old', but the model was trained with numbers",
        ),
        (["RUN", "--data", "short.csv", "--out", "short.csv"], "is the file of --data: name another file"),
        (["nowhere", "--data", "short.csv"], "is not a run folder: name one"),
        (["study", "--data", "short.csv"], "is the folder of a study: name a run folder"),
        (["damaged", "--data", "short.csv"], "params.npz is damaged (it does not match checksums.json)"),
        (
            ["edited", "--data", "full.csv"],
            "does not hold the parameters of the model that config.json describes",
        ),
        (["old", "--data", "full.csv"], "an earlier version of Evenhand wrote it"),
        (["unfinished", "--data", "full.csv"], "has no results yet"),
    ],
)
def test_one_sentence(
    words: list[str],
    sentence: str,
    ditto: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.csv").write_text("age,work\n")
    Path("short.csv").write_text("age\n5\n")
    Path("text.csv").write_text("age,work\nold,job\n")
    Path("full.csv").write_text("age,work\n5,job\n")
    Path("study/runs").mkdir(parents=True)
    if words[0] in ("damaged", "edited", "old", "unfinished"):
        shutil.copytree(ditto, words[0])
    path = Path(words[0]) / "config.json"
    match words[0]:
        case "damaged":
            Path("damaged/params.npz").write_bytes(b"x")
        case "edited":
            path.write_text(path.read_text().replace('"options": {', '"options": {"model": "mlp",'))
            words = [*words, "--quiet"]
        case "old":
            config = json.loads(path.read_text())
            del config["data"]["form"]
            path.write_text(json.dumps(config))
            words = [*words, "--quiet"]
        case "unfinished":
            Path("unfinished/checksums.json").unlink()
            Path("unfinished/summary.json").unlink()
        case _:
            pass
    words = [str(ditto) if word == "RUN" else word for word in words]
    assert sentence in refused(words, capsys)


def test_an_edited_configuration_is_reported(
    ditto: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(ditto, tmp_path / "run"))
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 5'))
    lines, said = predicted(folder, table, capsys)
    assert f"{path} was changed after `evenhand` wrote it." in said
    assert lines == predicted(ditto, table, capsys)[0]


def test_a_folder_that_does_not_exist_is_made(ditto: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "er" / "p.csv"
    assert main(["predict", str(ditto), "--data", str(table), "--out", str(out), "--quiet"]) == 0
    assert len(out.read_text().splitlines()) == 61


def test_weights_of_rows_do_not_count_and_it_is_said(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = table.read_text().splitlines()
    weighted = tmp_path / "weighted.csv"
    weighted.write_text("\n".join([f"{header},n", *(f"{row},{1 + i % 3}" for i, row in enumerate(rows))]))
    columns = ["--client-column", "region,group", "--fill", "mean"]
    folder = train(tmp_path / "run", weighted, "fedavg", *columns, "--weight-column", "n")
    capsys.readouterr()
    assert "Here each row counts once, whatever column n says." in predicted(folder, weighted, capsys)[1]
    plain = tmp_path / "plain.csv"
    plain.write_text("\n".join([header, *rows]))
    folder = train(tmp_path / "other", plain, "fedavg", *columns)
    capsys.readouterr()
    assert "counts once" not in predicted(folder, plain, capsys)[1]
