"""A file of results keeps what one command has found, also where its methods are run in several goes."""

import json
import shlex
import sys

import pytest

from experiments.private.table import earlier, save, wanted


def config(epsilon=2.0, methods=(), folder="runs"):
    return {
        "epsilon": epsilon,
        "methods": methods,
        "folder": folder,
        "imdb": {"batch": 8, "data_dir": folder},
    }


def test_methods_that_are_run_later_join_the_others(tmp_path, monkeypatch):
    path, first = tmp_path / "imdb.json", config(methods=("A", "B, late"))
    monkeypatch.setattr(sys, "argv", ["", "--epsilon", "2", "--methods", "A", "B, late", "--folder", "runs"])
    assert earlier(path, first) == {}
    save(path, {"error": {"A": 1.0}}, first)

    later = config(methods=("C",), folder="elsewhere")
    monkeypatch.setattr(sys, "argv", ["", "--epsilon", "2", "--folder", "elsewhere", "--methods", "C"])
    save(path, {"error": {**earlier(path, later)["error"], "C": 2.0}}, later)

    saved = json.loads(path.read_text())
    assert saved["error"] == {"A": 1.0, "C": 2.0}
    assert saved["config"] == {name: value for name, value in later.items() if name != "methods"}
    whole = ["python", "-m", "experiments.private.imdb", "--epsilon", "2", "--folder", "elsewhere"]
    assert shlex.split(saved["command"]) == whole
    assert earlier(path, config()) == {}  # all are run again


def test_numbers_of_other_settings_are_not_mixed_and_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [""])
    save(tmp_path / "imdb.json", {"error": {"A": 1.0}}, config())
    with pytest.raises(SystemExit, match="give another --out"):
        earlier(tmp_path / "imdb.json", config(3.0, methods=("C",)))


def test_methods_that_do_not_exist_are_refused():
    assert wanted({"A": 1, "B": 2}, ()) == ["A", "B"] and wanted({"A": 1, "B": 2}, ("B",)) == ("B",)
    with pytest.raises(SystemExit, match="no 'C' here: choose from A, B"):
        wanted({"A": 1, "B": 2}, ("C",))
