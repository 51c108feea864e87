"""``evenhand run --dry-run`` and ``eh.simulation.estimate``: what a run will take, and that nothing is written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._terminal import duration, show_estimate
from evenhand.simulation import Expectation, estimate

DATA, MODEL = eh.testing.toy_data(), eh.testing.toy_model()
METHOD = eh.algorithms.fedavg(eh.local.sgd(MODEL, 0.1, epochs=2, batch_size=4))
EXPECTED = Expectation(
    rounds=1000,
    evaluations=21,
    clients=10,
    parameters=650,
    steps=12.5,
    examples=480.0,
    sent={"down": 2600.0, "up": 2604.0},
    timed=200,
    compiling=2.0,
    per_round=(0.01, 0.02, 0.05),
    per_evaluation=0.1,
    memory={"process": 600_000_000},
)


def test_work_and_traffic_are_those_of_the_run() -> None:
    """With all clients in each round, exactly: a run does what was expected of it."""
    options: dict[str, Any] = {"rounds": 40, "eval_every": 3}
    expected, run = estimate(METHOD, DATA, **options), eh.simulate(METHOD, DATA, **options)
    assert math.isclose(expected.steps * 40, run.info["steps"]["useful"])
    assert math.isclose(expected.examples * 40, run.info["examples"])
    assert expected.evaluations == len(run.history["round"])
    once = run.info["communication"]["per_client_and_round"]
    assert expected.sent == {way: once[way]["bytes"] for way in ("down", "up")}
    assert expected.parameters == sum(leaf.size for leaf in jax.tree.leaves(run.params))
    assert expected.clients == DATA.num_clients
    assert expected.timed == 8, "a fifth of the run"
    assert 0 < expected.per_round[0] <= expected.per_round[1] <= expected.per_round[2]


def test_a_short_run_and_one_of_slow_rounds_are_timed_as_far_as_they_go() -> None:
    assert estimate(METHOD, DATA, rounds=3).timed == 3
    slow = estimate(METHOD, DATA, rounds=100, budget=0.0)
    assert slow.timed == 1 and math.isnan(slow.per_round[2]) and math.isfinite(slow.seconds[1])


def test_metrics_are_one_more_evaluation() -> None:
    plain, more = (estimate(METHOD, DATA, rounds=4, metrics=metrics) for metrics in ((), ("macro_f1",)))
    assert more.evaluations == plain.evaluations + 1


def test_an_estimate_changes_no_bit_of_the_run() -> None:
    before = eh.simulate(METHOD, DATA, rounds=4, seed=3)
    estimate(METHOD, DATA, rounds=4, seed=3)
    after = eh.simulate(METHOD, DATA, rounds=4, seed=3)
    for name, values in before.history.items():
        np.testing.assert_array_equal(values, after.history[name])


def test_what_a_run_refuses_is_refused() -> None:
    with pytest.raises(eh.EvenhandError, match="at least one round"):
        estimate(METHOD, DATA, rounds=0)
    with pytest.raises(eh.EvenhandError, match="cohort"):
        estimate(METHOD, DATA, rounds=2, cohort=0)


def test_the_time_of_a_run_is_made_of_its_parts() -> None:
    assert np.allclose(EXPECTED.seconds, (2 + 2.1 + 10, 2 + 2.1 + 20, 2 + 2.1 + 50))


def printed(expected: Expectation, capsys: pytest.CaptureFixture[str], width: int = 80) -> list[str]:
    show_estimate(expected, 30, Console(width=width, force_terminal=True, color_system=None, highlight=False))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_what_is_printed_says_how_it_was_measured_and_how_sure_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(EXPECTED, capsys)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for part in (
        "rounds 1,000, evaluated 21 times",
        "clients 10 of 30 in each round",
        "12.5 steps on 480 examples a round, all clients together; 12,500 steps in all",
        "650 parameters; a client receives 2.60 kB and sends 2.60 kB in a round",
        "memory 600 MB of the process",
        "about 24 s (14 s to 54 s): 2 s to set up and compile, 0.02 s a round, 0.1 s an evaluation",
        "200 rounds of this run were trained, timed and discarded. Nothing was written.",
        "fastest and the slowest",
    ):
        assert part in text
    alike = EXPECTED._replace(per_round=(0.02, 0.02, 0.02))
    text = " ".join(" ".join(printed(alike, capsys)).split())
    assert "about 24 s: " in text and "The range is" not in text and "can take longer" in text
    unsure = EXPECTED._replace(per_round=(0.01, 0.02, math.nan), memory={})
    text = " ".join(" ".join(printed(unsure, capsys)).split())
    assert "about 24 s: " in text and "its range is unknown" in text and "memory unknown" in text


def test_durations_have_a_unit_that_suits_them() -> None:
    assert [duration(x) for x in (0.00012, 59, 90, 5400)] == ["0.00012 s", "59 s", "1.5 min", "1.5 h"]


WORDS = ["run", "fedprox", "--mu", "0.1", "--rounds", "30", "--cohort", "5", "--clients", "10", "--dry-run"]


def test_the_command_prints_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for more in ([], ["--out", "full"], ["--unseen", "0.2", "--metrics", "macro_f1"]):
        assert main([*WORDS, *more]) == 0
        shown = capsys.readouterr().out
        assert "30, evaluated" in shown and "5 of " in shown and "Nothing was written." in shown
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_the_command_refuses_what_the_run_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--keep", "best:valid:worst10"]) == 2
    assert "valid" in capsys.readouterr().err
    assert main([*WORDS, "--epsilon", "3"]) == 2
    assert "privacy" in capsys.readouterr().err


def test_a_run_does_not_record_that_another_one_was_dry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*WORDS[:-1], "--rounds", "2", "--out", str(out), "--quiet"]) == 0
    assert "dry_run" not in json.loads((out / "config.json").read_text())["options"]
    assert main(["run", "--config", str(out), "--dry-run"]) == 0
    assert "rounds   2, evaluated 3 times" in capsys.readouterr().out
