"""``config.json``: what it records, and how a run starts from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._data import DataOptions
from evenhand.cli._main import parse
from evenhand.cli._run import RunCommand

OPTIONS = {
    "lr": 1e-05,
    "epochs": 3,
    "regression": True,
    "text": False,
    "cohort": "all",
    "rounds": 7,
    "alpha": 1,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, "fedprox(mu=0.1, server_opt=sgd(0.5))")


def written(folder: Path, method: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"method": method, "options": OPTIONS}))
    return path


def run(*words: str) -> RunCommand:
    command = parse(["run", *words])
    assert isinstance(command, RunCommand)
    return command


def test_what_is_not_given_is_as_it_was(config: Path) -> None:
    same = run("--config", str(config))
    assert same.method == "fedprox(mu=0.1, server_opt=sgd(0.5))"
    assert (same.local.lr, same.local.epochs, same.data.regression) == (1e-05, 3, True)
    assert same.training.cohort == "all"
    assert (same.training.rounds, same.training.seed, same.training.config) == (7, 0, config)
    assert same.data.alpha == 1.0


def test_what_is_given_takes_precedence_even_where_it_is_the_default(config: Path) -> None:
    other = run("--seed", "3", f"--config={config}", "--lr", "0.1", "--rounds=50", "--cohort", "2", "--quiet")
    assert (other.training.seed, other.training.rounds, other.training.cohort) == (3, 50, 2)
    assert other.training.quiet
    assert (other.local.lr, other.local.epochs, other.data.alpha) == (0.1, 3, 1.0)


def test_switches_of_the_file_can_be_switched_back(config: Path) -> None:
    options = {"regression": True, "text": True, "standardize": False}
    config.write_text(json.dumps({"method": "fedavg(keep_partial=True)", "options": options}))
    words = ["--config", str(config)]
    same = run(*words).data
    assert (same.regression, same.text, same.standardize) == (True, True, False)
    other = run(*words, "--no-regression", "--standardize", "--no_text").data
    assert (other.regression, other.text, other.standardize) == (False, False, True)
    assert run(*words, "--no-regression", "--regression").data.regression  # the last one counts
    for more in ([], ["fedavg"]):
        assert run(*more, *words, "--no-keep-partial").method == "fedavg(keep_partial=False)"
        assert run(*more, *words).method == "fedavg(keep_partial=True)"


def test_options_of_the_method_join_those_of_the_file(config: Path) -> None:
    """With and without the method's name."""
    for words in (["--mu", "2"], ["fedprox", "--mu", "2"]):
        assert run(*words, "--config", str(config)).method == "fedprox(mu=2, server_opt=sgd(0.5))"
    longer = run("--aggregator", "mean()", "--config", str(config)).method
    assert longer == "fedprox(mu=0.1, server_opt=sgd(0.5), aggregator=mean())"


def test_another_method_takes_no_argument_of_the_file(config: Path) -> None:
    assert run("fedavg", "--config", str(config)).method == "fedavg()"
    assert run("averaged( fedavg() )", "--config", str(config)).method == "averaged(fedavg())"
    assert run("fedavg", "--config", str(config)).local.epochs == 3


def test_an_expression_comes_back_as_it_is(tmp_path: Path) -> None:
    text = "averaged(fedprox(mu=1e-05, aggregator=risk_weighted(superquantile(0.5))), growth=2)"
    again = run("--config", str(written(tmp_path, text)))
    assert again.method == text
    more = run("--no-initial", "--config", str(tmp_path)).method
    assert more == text.replace("averaged(", "averaged(method=")[:-1] + ", initial=False)"
    other = run("--method", "fedavg()", "--config", str(tmp_path)).method
    assert other == "averaged(method=fedavg(), growth=2)"
    with pytest.raises(eh.EvenhandError, match="column 1: a method belongs here"):
        run("--config", str(written(tmp_path, "nothing_like_it(1)(2)")))


def test_steps_replace_epochs(config: Path) -> None:
    stepped = run("--config", str(config), "--steps=5").local
    assert (stepped.steps, stepped.epochs) == (5, None)
    assert run("--config", str(config), "--lr=5").local.epochs == 3


def test_a_system_replaces_stragglers_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for before, given in (("stragglers", "systems"), ("systems", "stragglers")):
        values = {"stragglers": 0.5, "systems": "dropouts(0.1)"}
        path.write_text(json.dumps({"method": "fedavg()", "options": {before: values[before]}}))
        again = run("--config", str(path), f"--{given}={values[given]}")
        found = bool(again.training.stragglers), bool(again.training.systems)
        assert found == (given == "stragglers", given == "systems")


def test_a_folder_stands_for_its_config(config: Path) -> None:
    one, other = (run("--config", str(path)) for path in (config.parent, config))
    assert dataclasses.replace(one, training=other.training) == other
    assert dataclasses.replace(one.training, config=config) == other.training


@pytest.mark.parametrize(
    "content",
    ["{}", '{"method": {"name": "fedavg"}, "options": {}}', '{"method": "fedavg()", "options": []}'],
)
def test_json_that_is_not_a_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(eh.EvenhandError, match="not the configuration of a run"):
        run("--config", str(tmp_path))


def test_paths_are_recorded_as_absolute_and_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "my.csv").write_text("")
    assert DataOptions("digits").rooted().data == "digits"
    assert DataOptions("my.csv").rooted().data == str(tmp_path / "my.csv")
    assert DataOptions("synthetic:1,1").rooted().data == "synthetic:1,1"


def test_a_fingerprint_sees_every_number() -> None:
    x, y, client = np.arange(12.0).reshape(6, 2), np.arange(6) % 2, np.repeat([0, 1], 3)
    prints = {
        eh.data.from_arrays(*arrays, seed=seed).fingerprint
        for *arrays, seed in (
            (x, y, client, 0),
            (x, y, client, 0),
            (x + np.eye(6, 2), y, client, 0),
            (x, 1 - y, client, 0),
            (x, y, client + 1, 0),
        )
    }
    assert len(prints) == 4


def test_equal_expressions_are_equal_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """However they are spelt: otherwise the seeds of one method would count as several methods."""
    texts = {
        run(*words).method for words in (["fedprox", "--mu", "1"], ["fedprox( mu = 1.0 )"], ["fedprox(mu=1)"])
    }
    assert texts == {"fedprox(mu=1)"}
    assert run("fedprox(mu=1.5, server_opt=sgd(2.0))").method == "fedprox(mu=1.5, server_opt=sgd(2))"
    assert main(["run", "fedprox(mu=" + "-" * 600 + "1)"]) == 2
    assert "is nested too deeply" in capsys.readouterr().err
