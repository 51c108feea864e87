"""Clients set aside on the command line: ``--unseen``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.report import read_clients_csv

pytestmark = pytest.mark.usefixtures("shared_programs")

METHOD = "finetune(ditto(fedavg(), lam=0.5), lam=0.5)"
QUICK = ["--data", "digits", "--clients", "8", "--rounds", "2", "--eval-every", "2", "--unseen", "0.25"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_unseen_clients_are_served_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers are those of Python; all files have the unseen clients apart, and a page written anew does, too."""
    assert main(["run", METHOD, "--out", "a", *QUICK]) == 0
    assert "unseen clients" in " ".join(capsys.readouterr().out.split())
    seen, unseen = eh.data.hold_out_clients(eh.data.load("digits", clients=8), 0.25)
    work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
    ditto = eh.personalization.ditto(eh.algorithms.fedavg(work), work, lam=0.5)
    run = eh.simulate(eh.personalization.finetune(ditto, work, lam=0.5), seen, rounds=2, eval_every=2)
    new = run.serve(unseen)
    summary = json.loads(Path("a/summary.json").read_text())
    assert summary["test_unseen"]["loss"]["mean"] == pytest.approx(
        new.summary(metric="loss")["mean"], rel=1e-5
    )
    assert summary["test"]["loss"]["mean"] == pytest.approx(run.summary(metric="loss")["mean"], rel=1e-5)
    table = read_clients_csv(Path("a/clients.csv"))
    assert table.unseen is not None
    assert table.unseen.client_ids == unseen.client_ids
    page = Path("a/report.html").read_text(encoding="utf-8")
    assert "unseen in training" in page
    assert main(["report", "a", "--out", "again.html"]) == 0
    assert Path("again.html").read_text(encoding="utf-8") == page


def test_of_a_method_with_one_model_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The mean and the worst tenth stand in the terminal and on the page, beside those of the clients that trained."""
    assert main(["run", "fedavg", "--out", "a", *QUICK]) == 0
    new, old = (
        json.loads(Path("a/summary.json").read_text())[part]["accuracy"] for part in ("test_unseen", "test")
    )
    shown = " ".join(capsys.readouterr().out.split())
    mean, worst = (f"{100 * new[key]:.1f} %" for key in ("mean", "worst10"))
    assert f"Unseen in training: 2 clients with test examples, mean {mean}, worst 10 % {worst}." in shown
    page = Path("a/report.html").read_text(encoding="utf-8")
    section = page.split("Clients unseen in training")[1].split("</section>")[0]
    assert "in percent" in section and "over seeds" not in section
    assert new["mean"] != old["mean"]
    for numbers, name in ((old, "in training"), (new, "unseen in training")):
        row = next(row for row in section.split("<tr") if f">{name}<" in row)
        assert f"{100 * numbers['mean']:.2f}" in row and f"{100 * numbers['worst10']:.2f}" in row


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_goes_on_has_the_same_clients() -> None:
    assert main(["run", METHOD, "--out", "whole", *QUICK, "--quiet", "--checkpoint", "0"]) == 0
    short = [*QUICK, "--quiet", "--checkpoint", "0"]
    assert main(["run", METHOD, "--out", "part", *short]) == 0
    Path("part/summary.json").unlink()
    assert main(["resume", "part", "--quiet"]) == 0
    assert Path("part/clients.csv").read_text() == Path("whole/clients.csv").read_text()


@pytest.mark.usefixtures("no_figures")
def test_of_a_method_for_the_clients_that_train_alone() -> None:
    """There are fewer unseen clients, and nothing is trained on them."""
    method = "dp_ftrl(clip=0.5, noise_multiplier=4, cohort=3, clients=6)"
    assert main(["run", method, "--out", "a", *QUICK, "--quiet"]) == 0
    assert "test_unseen" in json.loads(Path("a/summary.json").read_text())


def test_a_share_out_of_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", "--unseen", "1.5", "--out", "b", "--quiet", "--rounds", "1"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err
    assert not Path("b").exists()
