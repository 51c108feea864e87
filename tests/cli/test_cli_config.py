"""``config.json``: what it records, and how a run starts from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._data import DataOptions, fingerprint
from evenhand.cli._main import parse
from evenhand.cli._run import Run

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


def run(*words: str) -> Run:
    command = parse(["run", *words])
    assert isinstance(command, Run)
    return command


def test_what_is_not_given_is_as_it_was(config: Path) -> None:
    same = run("--config", str(config))
    assert same.method.text() == "fedprox(mu=0.1, server_opt=sgd(0.5))"
    assert (same.local.lr, same.local.epochs, same.data.regression, same.cohort) == (1e-05, 3, True, "all")
    assert (same.rounds, same.data.alpha, same.seed, same.config) == (7, 1.0, 0, config)


def test_what_is_given_counts_more_even_where_it_is_the_default(config: Path) -> None:
    other = run("--seed", "3", f"--config={config}", "--lr", "0.1", "--rounds=50", "--cohort", "2", "--quiet")
    assert (other.seed, other.local.lr, other.rounds, other.cohort, other.quiet) == (3, 0.1, 50, 2, True)
    assert (other.local.epochs, other.data.alpha) == (3, 1.0)


def test_options_of_the_method_join_those_of_the_file(config: Path) -> None:
    """With and without the method's name."""
    for words in (["--mu", "2"], ["fedprox", "--mu", "2"]):
        assert run(*words, "--config", str(config)).method.text() == "fedprox(mu=2, server_opt=sgd(0.5))"
    longer = run("--aggregator", "mean()", "--config", str(config)).method.text()
    assert longer == "fedprox(mu=0.1, server_opt=sgd(0.5), aggregator=mean())"


def test_another_method_has_arguments_of_its_own(config: Path) -> None:
    assert run("fedavg", "--config", str(config)).method.text() == "fedavg()"
    assert run("averaged( fedavg() )", "--config", str(config)).method.text() == "averaged(fedavg())"
    assert run("fedavg", "--config", str(config)).local.epochs == 3


def test_an_expression_comes_back_as_it_is(tmp_path: Path) -> None:
    text = "averaged(fedprox(mu=1e-05, aggregator=risk_weighted(superquantile(0.5))), growth=2)"
    again = run("--config", str(written(tmp_path, text)))
    assert again.method.text() == text
    more = run("--no-initial", "--config", str(tmp_path)).method.text()
    assert more == text.replace("averaged(", "averaged(method=")[:-1] + ", initial=False)"
    other = run("--method", "fedavg()", "--config", str(tmp_path)).method.text()
    assert other == "averaged(method=fedavg(), growth=2)"
    text = "nothing_like_it(1)(2)"
    assert run("--config", str(written(tmp_path, text))).method.text() == text


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
        assert (bool(again.stragglers), bool(again.systems)) == (given == "stragglers", given == "systems")


def test_a_folder_stands_for_its_config(config: Path) -> None:
    one, other = (run("--config", str(path)) for path in (config.parent, config))
    assert dataclasses.replace(one, config=None) == dataclasses.replace(other, config=None)


@pytest.mark.parametrize(
    "content",
    ["{}", '{"method": {"name": "fedavg"}, "options": {}}', '{"method": "fedavg()", "options": []}'],
)
def test_json_that_is_no_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(eh.EvenhandError, match="not the configuration of a run"):
        run("--config", str(tmp_path))


def test_paths_are_recorded_from_the_root_and_names_as_they_are(
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
        fingerprint(eh.data.from_arrays(*arrays, seed=seed))
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
    """However they are spelt: else the seeds of one method would count as several methods."""
    texts = {
        run(*words).method.text()
        for words in (["fedprox", "--mu", "1"], ["fedprox( mu = 1.0 )"], ["fedprox(mu=1)"])
    }
    assert texts == {"fedprox(mu=1)"}
    assert run("fedprox(mu=1.5, server_opt=sgd(2.0))").method.text() == "fedprox(mu=1.5, server_opt=sgd(2))"
    assert main(["run", "fedprox(mu=" + "-" * 600 + "1)"]) == 2
    assert "is nested too deeply" in capsys.readouterr().err
