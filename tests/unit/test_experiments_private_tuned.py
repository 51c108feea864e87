"""A file of results keeps what one command has found, also where its methods are run in several goes."""

import json
import shlex
import sys

import pytest

pytest.importorskip("experiments", reason="experiments are not part of the package")

from experiments.private.tuned import earlier, save


def test_methods_that_are_run_later_join_those_of_the_same_command(tmp_path, monkeypatch):
    path, config = tmp_path / "imdb.json", {"epsilon": 2.0, "methods": ("A",)}
    whole = ["python", "-m", "experiments.private.imdb", "--epsilon", "2", "--folder", "runs"]

    def given(*options):
        monkeypatch.setattr(sys, "argv", ["", *options])

    given("--epsilon", "2", "--methods", "A", "B, late", "--folder", "runs")
    assert earlier(path, ["A"]) == {}
    save(path, {"error": {"A": 1.0}}, config)
    saved = json.loads(path.read_text())
    assert shlex.split(saved["command"]) == whole and saved["config"] == {"epsilon": 2.0}

    given("--epsilon", "2", "--folder", "runs", "--methods", "C")
    assert earlier(path, ["C"])["error"] == {"A": 1.0}
    assert earlier(path, []) == {}
    given("--epsilon", "3", "--folder", "runs", "--methods", "C")
    assert earlier(path, ["C"]) == {}
