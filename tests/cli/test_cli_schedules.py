"""``--schedule`` of a run and of a study, kept optimisers in expressions, and a backdoor by ``--attack``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import _study, main
from evenhand.cli._options import schedules
from evenhand.errors import EvenhandError

pytestmark = pytest.mark.usefixtures("shared_programs")

DIGITS = ["--data", "digits", "--clients", "5", "--eval-every", "2", "--quiet"]
HALVED = "steps(0.5, every=1)"


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def run(folder: str, *words: str, rounds: int = 4) -> eh.simulation.SavedRun:
    assert main(["run", *words, "--rounds", str(rounds), *DIGITS, "--out", folder]) == 0
    return eh.load_run(folder)


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(a[leaf], b[leaf]) for leaf in ("kernel", "bias"))


def test_a_scheduled_run_is_the_one_from_python_and_of_its_expression() -> None:
    ours = run("a", "fedavg", "--schedule", HALVED)
    model, data = eh.models.softmax_regression(features=64, classes=10), eh.data.load("digits", clients=5)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10, schedule=eh.local.steps(0.5, every=1))
    python = eh.simulate(eh.algorithms.fedavg(work), data, rounds=4, eval_every=2)
    assert same(ours.params, python.params)
    written = "fedavg(sgd(0.1, epochs=1, batch_size=10, schedule=steps(0.5, every=1)))"
    assert same(ours.params, run("b", written).params)
    assert not same(ours.params, run("c", "fedavg").params)
    config = json.loads(Path("a/config.json").read_text())
    assert config["options"]["schedule"] == HALVED
    assert same(ours.params, run("d", "--config", "a/config.json").params)
    assert same(run("e", "fedavg", "--schedule", "none").params, eh.load_run("c").params)


def test_a_scheduled_run_that_is_trained_further_is_the_whole_run() -> None:
    whole = run("whole", "fedavg", "--schedule", HALVED)
    run("part", "fedavg", "--schedule", HALVED, "--checkpoint", "0", rounds=2)
    assert main(["resume", "part", "--rounds", "4", "--quiet"]) == 0
    assert same(eh.load_run("part").params, whole.params)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepz(0.5, every=2)", "no schedule 'stepz' (perhaps you meant steps)"),
        ("steps(0.5)", "steps needs every="),
        ("steps(0, every=2)", "finite factor above 0"),
        ("0.5", "a schedule belongs here"),
    ],
)
def test_what_is_no_schedule_is_one_sentence(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fedavg", "--schedule", text, *DIGITS]) == 2
    assert sentence in capsys.readouterr().err
    assert main(["study", "fedavg", "--schedule", text, *DIGITS]) == 2
    assert sentence in capsys.readouterr().err


def test_the_schedules_of_a_study() -> None:
    assert schedules(HALVED) == [HALVED]
    assert schedules("none, cosine(5)") == ["none", "cosine(5)"]
    assert schedules("{none, steps(0.5,every=2)}") == ["none", "steps(0.5, every=2)"]
    assert schedules("steps({0.5, 0.1}, every={1, 2})") == [
        f"steps({factor}, every={every})" for factor in (0.5, 0.1) for every in (1, 2)
    ]
    for text in ("none, none", "none, epochs=3", "steps(0.5, every=2", "steps({0.5}, every=2), none"):
        with pytest.raises(EvenhandError):
            schedules(text)


def test_a_study_tunes_the_schedule() -> None:
    words = ["study", "fedavg", "--lr", "0.1,0.3", "--schedule", f"none, {HALVED}", "--seeds", "1"]
    assert main([*words, "--rounds", "2", *DIGITS, "--out", "s"]) == 0
    study = eh.load_study("s")
    frame = study.frame()
    tried = sorted({(row.lr, row.schedule) for row in frame.itertuples()})
    assert tried == [(lr, schedule) for lr in (0.1, 0.3) for schedule in ("none", HALVED)]
    losses = frame.set_index(["lr", "schedule"])["train_mean"]
    assert losses.nunique() > 1
    assert HALVED in next(Path("s").glob("*.html")).read_text()
    assert HALVED in Path("s/settings.md").read_text()


def test_a_plan_may_list_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plan.toml").write_text(f'methods = ["fedavg"]\nschedule = ["none", "{HALVED}"]\n')
    asked: list[Any] = []
    monkeypatch.setattr(_study, "study", lambda *places, **given: asked.append(given) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["study", "--plan", "plan.toml", *DIGITS])
    assert asked[0]["grid"]["fedavg"]["schedule"] == ["none", HALVED]


def test_an_expression_may_keep_the_optimiser() -> None:
    text = "fedavg(sgd(fedavgm(learning_rate=0.1), epochs=1, batch_size=10{}))"
    kept, fresh = (run(name, text.format(more)) for name, more in (("k", ", keep_optimiser=True"), ("f", "")))
    assert not same(kept.params, fresh.params)


def test_the_list_shows_the_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "schedules"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("steps(factor=, every=)", "cosine(rounds=", "warm_up(rounds="))


def test_a_backdoor_is_in_the_terminal_the_folder_and_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in DIGITS if word != "--quiet"]
    attack = ["--attack", "trigger(fraction=0.4, label=3)"]
    assert main(["run", "fedavg", "--rounds", "4", *attack, *words, "--out", "t"]) == 0
    shown = capsys.readouterr().out
    summary = json.loads(Path("t/summary.json").read_text())
    success = f"{100 * summary['backdoor']['success']:.1f}"
    assert f"Backdoor: with the trigger, {success}" in shown and "backdoor_success" in shown
    assert summary["backdoor"]["label"] == 3
    assert "get class 3, the attacker" in Path("t/report.html").read_text()
    assert main(["run", "fedavg", "--rounds", "4", *attack, *DIGITS, "--seed", "1", "--out", "u"]) == 0
    assert main(["compare", "t", "u"]) == 0
    assert "backdoor_success" in capsys.readouterr().out
