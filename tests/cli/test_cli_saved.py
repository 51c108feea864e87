"""Run folders are the same from Python and from the command line: each reads what the other wrote."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.records import sum_of
from evenhand.simulation import Run

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "age", "work", "label"])
        for row in range(120):
            age = int(rng.integers(20, 60))
            writer.writerow(
                [f"town {row % 4}", age, rng.choice(["job", "none"]), "yes" if age > 40 else "no"]
            )
    return path


def trained(data: eh.data.FederatedDataset, seed: int = 0) -> Run:
    features = data.feature_shape[0]
    work = eh.local.sgd(eh.models.softmax_regression(features, classes=2), 0.1, epochs=1, batch_size=10)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=1.0)
    return eh.simulate(method, data, rounds=3, eval_every=1, seed=seed)


@pytest.fixture(scope="module")
def run(table: Path) -> Run:
    return trained(eh.data.load(table))


def test_predict_reads_what_python_saved(
    run: Run, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.save(tmp_path / "a")
    out = tmp_path / "predictions.csv"
    assert main(["predict", str(folder), "--data", str(table), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "120 predicted by the client's personal model" in said and "accuracy" in said
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    client = run.data.client_ids[1]
    x, y = run.data.train.client(1)
    wanted = run.predict(x, client=client).argmax(axis=1)
    mine = [row for row in rows if row["client"] == client]
    assert len(mine) == 30 and {row["model"] for row in mine} == {"personal"}
    names = run.data.classes
    assert names is not None
    counts = [sum(row["prediction"] == name for row in mine) for name in names]
    assert abs(counts[0] - int(np.sum(wanted == 0))) <= 30 - len(y)  # the table has the test rows, too


def test_compare_and_report_read_what_python_saved(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = run.save(tmp_path / "a"), trained(run.data, seed=1).save(tmp_path / "b")
    assert main(["compare", str(a), str(b)]) == 0
    assert "ditto" in capsys.readouterr().out
    assert main(["report", str(a)]) == 0
    assert (a / "report.html").read_text().startswith("<!doctype html>")
    assert eh.load_run(a).summary() == run.summary()  # the page is in nobody's way


@pytest.mark.parametrize("words", [["resume", "A"], ["run", "--config", "A", "--out", "B"]])
def test_no_command_repeats_or_continues_it(
    words: list[str], run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.save(tmp_path / "a")
    named = {"A": str(folder), "B": str(tmp_path / "b")}
    assert main([named.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert "was saved from Python, so no command can repeat or continue it" in said and said.count("\n") == 1
    assert "damaged" not in said
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("words", [["resume", "A"], ["run", "--config", "A", "--out", "B"]])
def test_what_a_later_version_wrote_is_not_called_damaged(
    words: list[str], commanded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(commanded, tmp_path / "a")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99, "evenhand": "9.0"}))
    named = {"A": str(folder), "B": str(tmp_path / "b")}
    assert main([named.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert f"{path} has format 99, which" in said and "read it with Evenhand 9.0 or later." in said
    assert "damaged" not in said and said.count("\n") == 1


def test_a_model_that_only_python_has(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = eh.data.load(table)
    plain = eh.models.softmax_regression(data.feature_shape[0], classes=2)
    mine = plain._replace(name="")
    work = eh.local.sgd(mine, 0.1, epochs=1, batch_size=10)
    folder = eh.simulate(eh.algorithms.fedavg(work), data, rounds=1).save(tmp_path / "a")
    assert main(["predict", str(folder), "--data", str(table)]) == 2
    assert "eh.load_run(folder, model=model).predict(x)" in capsys.readouterr().err
    assert main(["compare", str(folder)]) == 0


@pytest.fixture(scope="module")
def commanded(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    words = ["run", "ditto(fedavg(), lam=1)", "--data", str(table), "--rounds", "3", "--eval-every", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        assert main([*words, "--valid-fraction", "0.2", "--lr", "0.1", "--quiet", "--out", str(out)]) == 0
    return out


def test_python_reads_what_the_command_line_wrote(commanded: Path, table: Path) -> None:
    saved = eh.load_run(commanded)
    data = eh.data.load(table, valid_fraction=0.2)
    features = data.feature_shape[0]
    work = eh.local.sgd(eh.models.softmax_regression(features, classes=2), 0.1, epochs=1, batch_size=10)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=1.0)
    run = eh.simulate(method, data, rounds=3, eval_every=1, cohort=10)
    assert saved.fingerprint == data.fingerprint and saved.is_of_command
    assert saved.summary() == run.summary() and saved.findings == run.findings
    np.testing.assert_array_equal(saved.class_metrics().accuracy, run.class_metrics().accuracy)
    for k, name in enumerate(data.client_ids):
        x = data.test.client(k)[0]
        np.testing.assert_array_equal(saved.predict(x, client=name), run.predict(x, client=name))
    assert saved.summary() != saved.summary("train")


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "A"],
        ["report", "A"],
        ["predict", "A", "--data", "A"],
        ["resume", "A"],
        ["run", "--config", "A"],
    ],
)
def test_a_newer_folder_is_refused_by_version(
    words: list[str], commanded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(commanded, tmp_path / "a"))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3, "evenhand": "9.9.9"}))
    assert main([str(folder) if word == "A" else word for word in words]) == 2
    said = capsys.readouterr().err
    assert "read it with Evenhand 9.9.9 or later" in said and said.count("\n") == 1


def begin(table: Path, out: Path, *words: str) -> int:
    options = ["--data", str(table), "--rounds", "2", "--eval-every", "1", "--lr", "0.1", "--quiet"]
    return main(["run", "fedavg", *options, "--out", str(out), *words])


def test_a_run_begins_from_a_trained_model(
    commanded: Path, run: Run, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(table, tmp_path / "a", "--start", str(commanded)) == 0
    assert begin(table, tmp_path / "b") == 0
    assert begin(table, tmp_path / "c", "--start", str(run.save(tmp_path / "python"))) == 0
    start, (a, b, c) = eh.load_run(commanded), (eh.load_run(tmp_path / name) for name in "abc")
    assert a.history["train_loss"][0] < b.history["train_loss"][0]
    assert a.history["train_loss"][0] != c.history["train_loss"][0] < b.history["train_loss"][0]
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["options"]["start"] == str(commanded)
    assert config["start"] == {"sha256": start.params_sum}
    data = eh.data.load(table)
    work = eh.local.sgd(eh.models.softmax_regression(3, classes=2), 0.1, epochs=1, batch_size=10)
    same = eh.simulate(eh.algorithms.fedavg(work), data, rounds=2, eval_every=1, start=start.params)
    np.testing.assert_array_equal(a.history["train_loss"], same.history["train_loss"])


def test_a_model_of_another_shape_is_no_start(
    table: Path, commanded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(table, tmp_path / "a", "--start", str(commanded), "--model", "mlp") == 2
    said = capsys.readouterr().err
    assert "its model differs from the one to be trained" in said and said.count("\n") == 1
    assert begin(table, tmp_path / "b", "--start", str(tmp_path / "none")) == 2
    assert "config.json does not exist" in capsys.readouterr().err
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            ",none,",
            ",leave,",
            "other.csv (work = none only there; work = leave only here)",
        ),
        (
            ",yes",
            ",maybe",
            "other.csv (yes only there; maybe only here)",
        ),
        (",work,", ",wage,", "(work = job and work = none only there; wage = job and wage = none only here)"),
    ],
)
def test_a_model_of_other_inputs_or_classes_is_no_start(
    before: str,
    after: str,
    words: str,
    table: Path,
    commanded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As many as its own, so that its arrays would fit."""
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace(before, after))
    assert begin(other, tmp_path / "a", "--start", str(commanded)) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("no_figures")
def test_a_start_on_columns_of_another_scale_is_said(
    table: Path, commanded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = list[str]()
    for name, share in (("a", "0.2"), ("b", "0.1")):  # the first as in the run that it begins from
        words = [
            "--start",
            str(commanded),
            "--valid-fraction",
            share,
            "--rounds",
            "0",
            "--out",
            str(tmp_path / name),
        ]
        assert main(["run", "fedavg", "--data", str(table), *words]) == 0
        said.append(" ".join(capsys.readouterr().err.split()))
    assert [f"Other training rows than those of {commanded}" in text for text in said] == [False, True]


def test_a_resumed_run_has_the_start_that_it_began_from(
    table: Path, commanded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Path(shutil.copytree(commanded, tmp_path / "start"))
    assert begin(table, tmp_path / "a", "--start", str(start), "--checkpoint", "0") == 0
    assert begin(table, tmp_path / "b", "--start", str(start), "--rounds", "4") == 0
    assert main(["resume", str(tmp_path / "a"), "--rounds", "4", "--quiet"]) == 0
    a, b = (eh.load_run(tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(a.history["train_loss"], b.history["train_loss"])
    shutil.rmtree(start)
    shutil.copytree(tmp_path / "b", start)
    assert main(["resume", str(tmp_path / "a"), "--rounds", "6", "--quiet"]) == 2
    assert "is not the one from which" in capsys.readouterr().err


def test_an_older_folder_is_read(commanded: Path, tmp_path: Path) -> None:
    """As version 0.1 wrote them: no results.npz, no format, and a summary without what came later."""
    old = Path(shutil.copytree(commanded, tmp_path / "old"))
    (old / "results.npz").unlink()
    for name, later in (
        ("config.json", ("format", "evenhand")),
        ("summary.json", ("model", "info", "account")),
    ):
        value = json.loads((old / name).read_text())
        (old / name).write_text(json.dumps({key: part for key, part in value.items() if key not in later}))
    sums = json.loads((old / "checksums.json").read_text())
    del sums["results.npz"]
    for name in ("config.json", "summary.json"):
        entry = sum_of((old / name).read_bytes())
        sums[name] = {"bytes": entry.length, "sha256": entry.sha256}
    (old / "checksums.json").write_text(json.dumps(sums))
    new, saved = eh.load_run(commanded), eh.load_run(old)
    assert saved.remarks == ()
    for name, value in new.summary().items():
        assert saved.summary()[name] == pytest.approx(value, rel=1e-6), name
    np.testing.assert_array_equal(saved.last_round, new.last_round)
    assert saved.info["rounds"] == 3 and saved.findings == new.findings
    with pytest.raises(eh.EvenhandError, match="model=model"):
        saved.predict(np.zeros((1, 3)))
    model = eh.models.softmax_regression(3, classes=2)
    x = np.zeros((1, 3), np.float32)
    np.testing.assert_array_equal(eh.load_run(old, model=model).predict(x), new.predict(x))
