"""A family of levels, and MOCHA, on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main

pytestmark = pytest.mark.usefixtures("shared_programs")

METHOD = "delta_fl_levels(theta=(0.3, 0.5, 0.8))"
QUICK = ["--data", "digits", "--clients", "8", "--rounds", "4", "--eval-every", "4", "--lr", "0.3"]
NAMES = ["theta=0.8", "theta=0.5", "theta=0.3"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_says_which_level_each_client_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", METHOD, *QUICK, "--valid-fraction", "0.3", "--unseen", "0.25", "--out", "a"]
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Of 6 clients with test examples, each is served its best level: theta=0.8 to" in printed
    assert "Of 2 unseen clients with test examples, each is served its best level" in printed
    summary = json.loads(Path("a/summary.json").read_text())
    assert list(summary["levels"]) == summary["info"]["levels"] == NAMES
    saved = eh.load_run("a")
    assert saved.level is not None
    for j, name in enumerate(NAMES):
        level, takes = summary["levels"][name], saved.level == j
        assert level["clients"] == takes.sum()
        alone = saved.client_metrics()[f"accuracy ({name})"]
        assert level["test"]["mean_if_served_to_all"] == pytest.approx(alone.mean())
        assert level["test"]["worst10_if_served_to_all"] == pytest.approx(alone.min())
        if takes.any():
            assert level["test"]["mean"] == pytest.approx(saved.client_metrics()["accuracy"][takes].mean())
    assert sum(level["clients"] for level in summary["levels_unseen"].values()) == 2
    assert summary["test"]["accuracy"]["mean"] == pytest.approx(saved.client_metrics()["accuracy"].mean())
    with Path("a/clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["level"] for row in rows[:6]] == [NAMES[j] for j in saved.level]
    page = Path("a/report.html").read_text(encoding="utf-8")
    assert "Which level each client is served" in page and "theta=0.5, unseen in training" in page
    assert main(["report", "a", "--out", "again.html"]) == 0
    assert Path("again.html").read_text(encoding="utf-8") == page


def test_rows_are_predicted_by_the_level_of_their_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", METHOD, *QUICK, "--valid-fraction", "0.3", "--out", "b", "--quiet"]) == 0
    data, saved = eh.data.load("digits", clients=8, valid_fraction=0.3), eh.load_run("b")
    k = 0 if saved.level is None else int(np.argmax(saved.level))
    x = data.test.x[:3]
    np.savez("new.npz", x=x, client=np.array([data.client_ids[k], "nobody", data.client_ids[k]]))
    capsys.readouterr()
    assert main(["predict", "b", "--data", "new.npz", "--out", "p.csv"]) == 0
    printed = capsys.readouterr().out
    assert "3 rows: 2 predicted by the model of the client's level." in printed
    assert "1 row of clients that the run did not serve" in printed and "predicted by theta=0.8" in printed
    with Path("p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert saved.level is not None
    assert [row["model"] for row in rows] == [NAMES[saved.level[k]], NAMES[0], NAMES[saved.level[k]]]
    scores = saved.predict(x, data.client_ids[k])
    assert rows[2]["prediction"] == str(np.argmax(scores[2]))


def test_without_validation_examples_a_sentence_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", METHOD, *QUICK, "--out", "c"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "No client has validation examples to choose a level on, and all are served theta=0.8" in printed
    assert "--valid-fraction 0.2" in printed and "each is served its best level" not in printed


def test_a_study_compares_a_family_of_levels_by_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "study",
        "fedavg",
        METHOD,
        *QUICK,
        "--valid-fraction",
        "0.3",
        "--seeds",
        "2",
        "--out",
        "s",
        "--quiet",
    ]
    assert main(words) == 0
    capsys.readouterr()
    study = eh.load_study("s")
    name = next(name for name in study.methods if name.startswith("delta"))
    for view in study.views(name):
        assert view.level is not None and set(view.level) <= set(NAMES)
        own = view.clients["test"]["accuracy"]
        for k, level in enumerate(view.level):
            assert own[k] == view.clients["test"][f"accuracy ({level})"][k]
    page = study.report("page.html").read_text(encoding="utf-8")
    assert "Which level each client is served" in page and "as served" in page


def test_mocha_runs_like_any_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mocha", *QUICK, "--lam", "0.001", "--inner", "2", "--out", "m"]) == 0
    assert "served better by their personal model" in " ".join(capsys.readouterr().out.split())
    summary = json.loads(Path("m/summary.json").read_text())
    assert summary["test"]["accuracy"]["mean"] > 0.5 and summary["personal"]
    assert Path("m/report.html").is_file()
    assert main(["list", "methods"]) == 0
    assert "mocha(lam=0.01, inner=5, share=0.5" in " ".join(capsys.readouterr().out.split())
    assert main(["run", "mocha", "--data", "digits", "--model", "mlp", "--rounds", "1", "--out", "n"]) == 2
    assert "mocha() trains linear models" in capsys.readouterr().err
