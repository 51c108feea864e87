"""``evenhand run``: the folder that it leaves, the numbers in it, and how it ends."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._run import Place

pytestmark = [pytest.mark.usefixtures("shared_programs"), pytest.mark.draws]

FILES = {
    "config.json",
    "metrics.jsonl",
    "clients.csv",
    "params.npz",
    "results.npz",
    "summary.json",
    "checksums.json",
    "report.html",
    "checkpoint",
}
QUICK = [
    "--data",
    "digits",
    "--clients",
    "6",
    "--rounds",
    "4",
    "--cohort",
    "3",
    "--eval-every",
    "2",
    "--quiet",
]


def run(out: Path, method: str, *words: str) -> int:
    return main(["run", method, *QUICK, *words, "--out", str(out)])


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    assert run(out, "fedprox", "--mu", "0.5", "--seed", "3", "--stragglers", "0.5", "--lr", "0.05") == 0
    return out


def test_a_run_leaves_its_files(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_the_files_hold_what_simulate_returns(folder: Path) -> None:
    data = eh.data.load("digits", clients=6)
    model = eh.models.softmax_regression(features=64, classes=10)
    method = eh.algorithms.fedprox(eh.local.sgd(model, 0.05, epochs=1, batch_size=10), mu=0.5)
    systems = eh.systems.stragglers(0.5)
    expected = eh.simulate(method, data, rounds=4, cohort=3, seed=3, eval_every=2, systems=systems)

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == expected.history["round"].tolist()
    np.testing.assert_allclose(
        [line["train_loss"] for line in lines], expected.history["train_loss"], rtol=1e-6
    )
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == list(data.client_ids)
    assert [int(row["train_rows"]) for row in rows] == data.train.sizes.tolist()
    accuracy = expected.client_metrics("test")["accuracy"]
    np.testing.assert_allclose([float(row["test_accuracy"]) for row in rows], accuracy, rtol=1e-6)
    summary = read(folder / "summary.json")
    assert summary["test"]["accuracy"]["worst10"] == pytest.approx(expected.summary()["worst10"], rel=1e-6)
    assert (summary["rounds"], summary["interrupted"]) == (4, False)


@pytest.mark.usefixtures("no_figures")
def test_the_default_folder_names_the_arguments_of_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", "synthetic:1,1", "--clients", "3", "--rounds", "0", "--checkpoint", "off", "--quiet"]
    methods = (
        ["fedavg"],
        ["fedprox", "--mu", "1"],
        ["fedprox", "--mu", "0.1"],
        ["fedprox(mu=2)", "--seed", "4"],
    )
    for method in methods:
        assert main(["run", *method, *words]) == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "fedavg-synthetic-1-1-0",
        "fedprox-mu-1-synthetic-1-1-0",
        "fedprox-mu-0.1-synthetic-1-1-0",
        "fedprox-mu-2-synthetic-1-1-4",
    }
    assert main(["run", "fedprox", "--mu", "1", *words]) == 2  # nothing is overwritten
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_was_killed_before_its_first_evaluation_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves what is there when the first evaluation ends: locks, and the folder of the checkpoint."""
    left, begin = tmp_path / "b", Place.begin

    def begun(place: Place, of: eh.Run) -> None:
        shutil.copytree(place.folder, left)
        begin(place, of)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "begin", begun)
        assert run(tmp_path / "a", "fedavg", "--rounds", "0") == 0
    assert main(["resume", str(left)]) == 2
    assert "if it was stopped, nothing is kept, so repeat its command" in capsys.readouterr().err
    (left / "checkpoint" / "notes.txt").write_text("mine")
    assert run(left, "fedavg", "--rounds", "0") == 2
    (left / "checkpoint" / "notes.txt").unlink()
    assert run(left, "fedavg", "--rounds", "0") == 0
    for name in ("metrics.jsonl", "clients.csv"):
        assert (left / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


@pytest.mark.usefixtures("no_figures")
def test_config_repeats_the_run(folder: Path, tmp_path: Path) -> None:
    config = str(folder / "config.json")
    assert main(["run", "--config", config, "--out", str(tmp_path / "again"), "--quiet"]) == 0
    for name in ("metrics.jsonl", "clients.csv", "config.json"):
        assert (tmp_path / "again" / name).read_text() == (folder / name).read_text()

    other = ["run", f"--config={config}", "--seed", "4", "--rounds", "0", "--quiet"]
    assert main([*other, "--out", str(tmp_path / "other")]) == 0
    first = (folder / "metrics.jsonl").read_text().splitlines()[0]
    assert (tmp_path / "other" / "metrics.jsonl").read_text() != f"{first}\n"
    assert read(tmp_path / "other" / "config.json")["options"]["seed"] == 4


@pytest.mark.usefixtures("no_figures")
def test_config_with_another_method_keeps_the_rest(folder: Path, tmp_path: Path) -> None:
    words = ["run", "fedavg", "--config", str(folder), "--steps", "2", "--rounds", "0", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "b")]) == 0
    old, new = read(folder / "config.json"), read(tmp_path / "b" / "config.json")
    assert new["method"] == "fedavg()"
    assert new["options"] == {**old["options"], "steps": 2, "rounds": 0}


@pytest.mark.usefixtures("no_figures")
def test_config_says_when_the_data_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{'ab'[i % 2]},{i % 3},{i % 2}" for i in range(20)]
    table.write_text("\n".join(["client,size,label", *rows]))
    words = ["run", "fedavg", "--data", str(table), "--rounds", "0", "--out", str(tmp_path / "a"), "--quiet"]
    assert main(words) == 0
    again = ["run", "--config", str(tmp_path / "a"), "--rounds", "0"]
    assert main([*again, "--out", str(tmp_path / "b")]) == 0
    assert "The data" not in capsys.readouterr().err
    table.write_text("\n".join(["client,size,label", *rows, "a,2,1"]))
    assert main([*again, "--out", str(tmp_path / "c")]) == 0
    assert "The data are not those of" in capsys.readouterr().err


def test_a_full_folder_is_refused_until_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "summary.json").write_text("old")
    assert run(out, "fedavg") == 2
    assert "is not empty" in capsys.readouterr().err
    assert (out / "summary.json").read_text() == "old"
    assert run(out, "fedavg", "--overwrite", "--rounds", "0") == 0
    assert read(out / "summary.json")["rounds"] == 0
    assert (out / "notes.txt").read_text() == "mine"


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in QUICK if word != "--quiet"]
    assert main(["run", "fedavg", *words, "--out", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr()
    assert "worst" in shown.out
    assert f"Report: {tmp_path / 'a' / 'report.html'}" in shown.out
    assert re.search(r"round 4 of 4, loss \d\S*, test accuracy \d+\.\d %\n", shown.err)
    assert "digits: 6 clients, 1,435 training and 362 test examples" in shown.out
    assert run(tmp_path / "b", "fedavg", "--rounds", "0") == 0
    assert capsys.readouterr() == ("", "")


def test_divergence_is_printed_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in QUICK if word != "--quiet"]
    out, sound = tmp_path / "a", tmp_path / "b"
    assert main(["run", "fedavg", *words, "--lr", "1e9", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Training diverged: the training loss rose from 2.3")
    (finding,) = read(out / "summary.json")["findings"]
    assert finding["kind"] == "diverged"
    page = (out / "report.html").read_text()
    assert page.index(finding["sentence"]) < page.index("The average client")
    assert main(["run", "fedavg", *words, "--lr", "0.01", "--out", str(sound)]) == 0
    assert "diverged" not in capsys.readouterr().out
    assert read(sound / "summary.json")["findings"] == []
    assert "notice" not in (sound / "report.html").read_text().split("</style>")[1]
    assert main(["compare", str(out), str(sound), "--out", str(tmp_path / "both.html")]) == 0
    shown = capsys.readouterr().out
    assert finding["sentence"] in shown
    assert "*" not in next(line for line in shown.splitlines() if line.startswith(" fedavg lr=1000000000"))
    assert finding["sentence"] in (tmp_path / "both.html").read_text()


@pytest.mark.usefixtures("no_figures")
def test_an_accuracy_that_is_not_a_number_is_none_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in QUICK if word != "--quiet"]
    out = tmp_path / "a"
    assert main(["run", "fedavg", *words, "--server-opt", "sgd(3e38)", "--lr", "1e3", "--out", str(out)]) == 0
    assert "Training diverged: the training loss is not a finite number" in capsys.readouterr().out
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train_loss"] is None
    assert last["test_accuracy"] is None
    assert read(out / "summary.json")["test"]["accuracy"]["mean"] is None


@pytest.mark.usefixtures("no_figures")
def test_unlike_scales_are_reported_first_and_a_guess_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(
        tmp_path / "raw.npz",
        x=np.stack([np.linspace(3e4, 9e4, 240), np.linspace(0, 1, 240)], axis=1),
        y=np.arange(240) % 4 // 3,
        client=np.arange(240) // 60,
    )
    words = ["--data", str(tmp_path / "raw.npz"), "--rounds", "1", "--lr", "1e-9"]
    assert main(["run", "fedavg", *words, "--out", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("Features are on very different scales, from column 1 (about")
    assert "Features are" not in shown.out
    assert shown.out.startswith("The model ")
    kinds = [finding["kind"] for finding in read(tmp_path / "a" / "summary.json")["findings"]]
    assert kinds[1:] == ["scales"]
    assert kinds[0] in {"guessing", "unmoved"}


@pytest.mark.usefixtures("no_figures")
def test_regression_is_summarised_by_its_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{'abc'[i % 3]},{i / 30},{2 * i / 30 + 1}" for i in range(30)]
    table.write_text("\n".join(["who,x,y", *rows]))
    words = ["--data", str(table), "--client-column", "who", "--label-column", "y", "--regression"]
    assert main(["run", "fedavg", *words, "--rounds", "5", "--out", str(tmp_path / "a")]) == 0
    assert "test loss over 3 clients" in capsys.readouterr().out
    summary, lines = read(tmp_path / "a" / "summary.json"), (tmp_path / "a" / "metrics.jsonl").read_text()
    assert "accuracy" not in summary["test"]
    assert json.loads(lines.splitlines()[0])["train_loss"] > json.loads(lines.splitlines()[-1])["train_loss"]
