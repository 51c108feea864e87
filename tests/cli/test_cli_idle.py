"""Options without an effect on the data at hand: a line reports each, with the reason, and no other option."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli_errors import refused

from evenhand.cli import main
from evenhand.cli._run import RunCommand
from evenhand.simulation import load_run


@pytest.fixture
def reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """``words -> {option: why it has no effect}`` of a run that stops before it trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunCommand, "train", lambda *_: 0)

    def of(words: str) -> dict[str, str]:
        assert main(["run", "fedavg", *words.split()]) == 0
        shown = capsys.readouterr()
        assert not shown.out
        lines = [
            line.removeprefix("evenhand: ").partition(" has no effect: ")
            for line in shown.err.splitlines()
            if not line.startswith("Features: ")
        ]
        assert all(why.endswith(".") for _, _, why in lines)
        return {option: why for option, _, why in lines}

    return of


def table(folder: Path) -> None:
    rows = [f"{client},{i},{i % 2}" for client in "abc" for i in range(6)]
    (folder / "t.csv").write_text("\n".join(["client,x,label", *rows]))


def test_pictures_without_columns(reasons) -> None:
    found = reasons(
        "--client-column a --label-column b --text --hidden 3 --cohort 1000 --eval-clients 99 --lanes 31"
    )
    assert found == {
        "--client-column a": "digits has no columns to choose from.",
        "--label-column b": "digits has no columns to choose from.",
        "--text": "digits is not LEAF data, whose characters become tokens.",
        "--hidden 3": "it is for --model mlp only.",
        "--cohort 1000": "there are 30 clients, all of which take part in each round.",
        "--eval-clients 99": "there are 30 clients, all of which are evaluated.",
        "--lanes 31": "a round trains at most 30 clients.",
    }
    assert reasons("--cohort 5 --lanes 6 --stragglers 0.05") == {
        "--lanes 6": "a round trains at most 5 clients.",
        "--stragglers 0.05": "0.05 of a cohort of 5 rounds to no client.",
    }


def test_options_with_an_effect_are_not_reported(reasons) -> None:
    assert reasons("") == {}
    assert reasons("--cohort 30 --eval-clients 30 --lanes 30 --stragglers 0.5 --hidden 9 --model mlp") == {}
    assert (
        reasons("--clients 12 --alpha 0.2 --test-fraction 0.3 --data-seed 4 --seed 3 --lr 1 --steps 2") == {}
    )
    assert reasons("--data synthetic:1,1 --clients 5 --test-fraction 0.3 --data-seed 4") == {}
    assert reasons("--cohort 1000 --quiet") == {}


def test_tables(reasons, tmp_path: Path) -> None:
    table(tmp_path)
    whose = "t.csv has client ids"
    assert reasons("--data t.csv --clients 7 --alpha 0.3") == {
        "--clients 7": f"{whose}, of 3 clients.",
        "--alpha 0.3": f"{whose}.",
    }
    assert reasons("--data t.csv --test-fraction 0.3 --data-seed 2") == {}
    # Without a client column the examples are spread over clients, evenly if their labels are real numbers.
    rows = [f"{i},{i % 2}" for i in range(18)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,label", *rows]))
    assert reasons("--data rows.csv --clients 2 --alpha 0.3 --data-seed 2") == {}
    assert reasons("--data rows.csv --clients 2 --alpha 0.3 --regression") == {
        "--alpha 0.3": "examples with real-valued labels, as in rows.csv, are divided evenly."
    }


def test_data_that_come_with_a_test_part(reasons, tmp_path: Path) -> None:
    arrays = {"x": np.ones((6, 2)), "y": np.array([0, 1] * 3), "client": np.arange(6) // 2}
    np.savez(tmp_path / "one.npz", **arrays)
    np.savez(
        tmp_path / "two.npz", **{name + part: a for name, a in arrays.items() for part in ("_train", "_test")}
    )
    assert reasons("--data one.npz --test-fraction 0.3 --data-seed 2") == {}
    assert reasons("--data two.npz --test-fraction 0.3 --data-seed 2") == {
        "--test-fraction 0.3": "two.npz comes with a test part.",
        "--data-seed 2": "two.npz comes with clients and a test part, so nothing is drawn at random.",
    }
    users = {
        "users": ["a"],
        "num_samples": [4],
        "user_data": {"a": {"x": [[0.0], [1.0]] * 2, "y": [0, 1] * 2}},
    }
    for part in ("train", "test"):
        (tmp_path / "leaf" / part).mkdir(parents=True)
        (tmp_path / "leaf" / part / "u.json").write_text(json.dumps(users))
    assert list(reasons("--data leaf --test-fraction 0.3 --alpha 2 --client-column x")) == [
        "--client-column x",
        "--alpha 2.0",
        "--test-fraction 0.3",
    ]
    assert reasons("--data leaf/train --test-fraction 0.3") == {}


def test_synthetic_data_take_alpha_from_their_name(reasons) -> None:
    assert reasons("--data synthetic:1,1 --alpha 2") == {
        "--alpha 2.0": "it is part of the name of synthetic data, --data synthetic:ALPHA,BETA."
    }


@pytest.mark.parametrize("data", ["digits", "mnist", "synthetic:1,1"])
def test_regression_on_classes_is_refused(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = refused(["run", "fedavg", "--regression", "--data", data], capsys)
    assert f"those of {data} are classes: leave it out" in sentence
    assert not list(tmp_path.iterdir())


def test_reports_list_no_option_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stay in config.json, which repeats the run; what has an effect stays on the page."""
    table(tmp_path)
    own = "fedavg(sgd(0.3, epochs=2))"
    cases = {
        ("fedavg", "digits"): {"client_column", "label_column", "standardize", "text", "hidden"},
        (own, "digits"): {"client_column", "standardize", "lr", "batch_size"},
        ("fedavg", str(tmp_path / "t.csv")): {"alpha", "text", "hidden"},
    }
    for number, ((method, data), unused) in enumerate(cases.items()):
        out = tmp_path / str(number)
        words = ["--data", data, "--rounds", "1", "--quiet", "--checkpoint", "off", "--out", str(out)]
        assert main(["run", method, *words]) == 0
        config = json.loads((out / "config.json").read_text())
        assert unused <= set(config["without_effect"]) <= set(config["options"])
        shown = set(load_run(out).view().config)
        assert not shown & set(config["without_effect"])
        assert shown == {"method", *config["options"]} - set(config["without_effect"])
        assert {"rounds", "seed", "data"} <= shown
        assert ("lr" in shown) == (method != own) and ("alpha" in shown) == (data == "digits")
    capsys.readouterr()
