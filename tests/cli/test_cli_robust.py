"""Attacks and robust aggregators from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._show import TOPICS

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = ["--data", "digits", "--clients", "6", "--rounds", "3", "--eval-every", "3", "--quiet"]
ROBUST = "fedavg(aggregator=reject(100, geometric_median(3)))"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_attack_is_an_expression_that_the_folder_keeps() -> None:
    """The numbers are those of Python; a run that is resumed is still attacked; without the attack they are others."""
    attack = "both(label_flip(0.34, classes=10), sign_flip(scale=2))"
    assert main(["run", ROBUST, "--attack", attack, "--out", "a", *QUICK]) == 0
    assert json.loads(Path("a/config.json").read_text())["options"]["attack"] == attack
    work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
    rule = eh.aggregators.reject(100.0, eh.aggregators.geometric_median(3))
    made = eh.attacks.both(eh.attacks.label_flip(0.34, classes=10), eh.attacks.sign_flip(scale=2.0))
    run = eh.simulate(
        eh.algorithms.fedavg(work, aggregator=rule),
        eh.data.load("digits", clients=6),
        rounds=3,
        eval_every=3,
        attack=made,
    )

    def loss(folder: str) -> float:
        return float(json.loads(Path(folder, "metrics.jsonl").read_text().splitlines()[-1])["train_loss"])

    summary = json.loads(Path("a/summary.json").read_text())
    for who in ("honest", "malicious"):
        wanted = run.summary("test", who=who)["mean"]  # type: ignore[arg-type]
        assert summary[f"test_{who}"]["accuracy"]["mean"] == pytest.approx(wanted, abs=1e-6)
    rows = list(csv.DictReader(Path("a/clients.csv").read_text().splitlines()))
    assert [int(row["malicious"]) for row in rows] == run.malicious.astype(int).tolist()
    page = Path("a/report.html").read_text()
    section = page.split("Honest and malicious clients")[1].split("</section>")[0]
    names = ", ".join(run.data.client_ids[k] for k in np.flatnonzero(run.malicious))
    assert f"2 malicious clients: {names}." in section and "over seeds" not in section
    assert f"{100 * run.summary('test', who='honest')['mean']:.2f}" in section
    assert loss("a") == pytest.approx(float(run.history["train_loss"][-1]), rel=1e-5)
    assert main(["resume", "a", "--rounds", "5", "--quiet"]) == 0
    assert main(["run", "--config", "a", "--rounds", "5", "--out", "b", "--quiet"]) == 0
    assert loss("a") == pytest.approx(loss("b"), rel=1e-6)
    assert main(["run", ROBUST, "--out", "c", *QUICK[:4], "--rounds", "5", "--quiet"]) == 0
    assert abs(loss("c") - loss("b")) > 1e-3


def test_a_study_tries_several_attacks() -> None:
    words = [
        "study",
        "fedavg",
        ROBUST,
        "--attack",
        "sign_flip({0, 0.34})",
        "--seeds",
        "1",
        "--out",
        "s",
        *QUICK,
    ]
    assert main(words) == 0
    found = eh.studies.load("s")
    assert [case["attack"] for case in found.cases] == ["sign_flip(0)", "sign_flip(0.34)"]
    means = [found.under(case).table()[0].values["mean"][0] for case in found.cases]
    assert np.isfinite(means).all() and means[0] != means[1]
    views = [found.under(case).outcomes[0].view for case in found.cases]
    assert views[0] and views[0].malicious is None
    assert views[1] and views[1].malicious is not None and views[1].malicious.sum() == 2
    honest = np.nanmean(views[1].clients["test"]["accuracy"][~views[1].malicious])
    assert means[1] == pytest.approx(honest) and found.frame()["test_mean"][2] == pytest.approx(honest)
    assert (
        found.tried[2].values["test_mean"][0]
        == pytest.approx(honest)
        != np.mean(views[1].clients["test"]["accuracy"])
    )
    assert any("all numbers cover honest clients only" in remark for remark in found.remarks)
    text = Path("s/study.html").read_text()
    assert text.count("Honest and malicious clients") == 1 and "2 malicious clients: " in text


def test_a_study_takes_different_attacks_with_commas_between_them() -> None:
    words = [
        "study",
        "fedavg",
        "--attack",
        "none, zero({0.17, 0.34}), alie(0.34, z=1)",
        "--seeds",
        "1",
        "--out",
        "s",
    ]
    assert main([*words, *QUICK]) == 0
    cases = [case["attack"] for case in eh.studies.load("s").cases]
    assert cases == ["none", "zero(0.17)", "alie(0.34, z=1)", "zero(0.34)"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attack", "sign_flop(0.2)"], "there is no attack 'sign_flop' (perhaps you meant sign_flip)"),
        (["--attack", "sign_flip(frac=0.2)"], "sign_flip has no 'frac'"),
        (["--attack", "krum(1)"], "krum is an aggregator, and an attack is one of alie, both,"),
        (
            ["--attack", "alie(0.2, z=1, against=krum(1))"],
            "alie() got both z= and against=: give one of them.",
        ),
        (["--attack", "gaussian(0.2, std=-1)"], "gaussian(std=-1.0): give a number of at least 0."),
    ],
)
def test_a_wrong_attack_gets_a_sentence_before_the_data_are_loaded(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["run", "fedavg"], ["study", "fedavg"]):
        assert main([*command, "--data", "no/such.csv", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_list_shows_every_attack_and_aggregator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "attacks"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}(" in shown for name in eh.attacks.__all__)
    listed = {entry.name.partition("(")[0] for entry in TOPICS["aggregators"]()}
    assert {"krum", "bulyan", "clip", "bounded_weights", "geometric_median"} <= listed
