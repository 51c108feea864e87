"""Clients that never trained, on the command line: ``--untrained``, the files and what is printed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.simulation import load_run

pytestmark = pytest.mark.usefixtures("shared_programs")

METHOD = "ditto(fedavg(), lam=0.5)"
QUICK = ["--data", "digits", "--clients", "8", "--cohort", "2", "--rounds", "2", "--eval-every", "2"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def rows(folder: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(folder, "clients.csv").read_text().splitlines()))


def test_the_files_and_the_screen_say_who_never_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", METHOD, "--out", "a", *QUICK, "--checkpoint", "0"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
    method = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.5)
    run = eh.simulate(method, eh.data.load("digits", clients=8), rounds=2, cohort=2, eval_every=2)
    never = int((run.last_round == 0).sum())
    assert 0 < never < 8
    assert (
        f"{never} of 8 clients never trained in 2 rounds, and are served the current global model" in printed
    )
    assert f"Of {8 - never} clients that trained," in printed
    assert f"{never} clients never trained and are left out." in printed
    table = rows("a")
    assert [int(row["last_round"]) for row in table] == run.last_round.tolist()
    assert all(
        (row["test_accuracy"] == row["test_global_accuracy"]) for row in table if row["last_round"] == "0"
    )
    summary = json.loads(Path("a/summary.json").read_text())
    assert [each["kind"] for each in summary["findings"]] == ["untrained"] and summary["adapts"] is False
    view = load_run(Path("a")).view()
    assert view.last_round is not None
    np.testing.assert_array_equal(view.last_round, run.last_round)
    assert "never trained" in Path("a/report.html").read_text(encoding="utf-8")
    # A folder of an earlier version has neither.
    assert main(["resume", "a", "--rounds", "3", "--quiet"]) == 0
    assert max(int(row["last_round"]) for row in rows("a")) == 3


@pytest.mark.usefixtures("no_figures")
def test_the_initial_models_are_served_on_request_and_when_the_run_is_resumed() -> None:
    how = [*QUICK, "--quiet", "--checkpoint", "0"]
    assert main(["run", METHOD, "--out", "plain", *how]) == 0
    assert main(["run", METHOD, "--out", "initial", *how, "--untrained", "initial"]) == 0
    assert json.loads(Path("initial/config.json").read_text())["options"]["untrained"] == "initial"
    differ = [a["test_loss"] != b["test_loss"] for a, b in zip(rows("plain"), rows("initial"), strict=True)]
    assert differ == [row["last_round"] == "0" for row in rows("plain")]
    short = ["run", METHOD, "--out", "more", *how[:6], "--rounds", "1", *how[8:], "--untrained", "initial"]
    assert main(short) == 0 and main(["resume", "more", "--rounds", "2", "--quiet"]) == 0
    assert Path("more/clients.csv").read_bytes() == Path("initial/clients.csv").read_bytes()
    assert main(["run", METHOD, "--untrained", "none", "--out", "bad", *QUICK]) == 2
