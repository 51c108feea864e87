"""Unusual inputs on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from evenhand.cli import main
from malformed import GOOD_ARRAYS, GOOD_CSV

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_a_configuration_that_is_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert main(["run", "--config", str(tmp_path / "config.json")]) == 2
    assert "is not a file" in capsys.readouterr().err


def test_a_run_folder_whose_configuration_is_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert main(["run", "--config", str(tmp_path)]) == 2
    assert "is not a file" in capsys.readouterr().err


def test_features_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", pixels=GOOD_ARRAYS["x"], y=GOOD_ARRAYS["y"], client=GOOD_ARRAYS["client"])
    words = [
        "run",
        "fedavg",
        "--data",
        str(tmp_path / "d.npz"),
        "--rounds",
        "1",
        "--checkpoint",
        "off",
        "--quiet",
    ]
    assert main([*words, "--out", str(tmp_path / "a")]) == 2
    assert "--features-array NAME" in capsys.readouterr().err
    assert main([*words, "--features-array", "pixels", "--out", str(tmp_path / "a")]) == 0
    options = json.loads((tmp_path / "a/config.json").read_text())["options"]
    assert options["features_array"] == "pixels"


def test_a_file_whose_name_is_not_unicode(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.csv")
    path.write_text(GOOD_CSV)
    words = ["run", "fedavg", "--data", str(path), "--rounds", "1", "--checkpoint", "off", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    # The name in config.json is that of the file, so that the run can be repeated.
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert Path(config["options"]["data"]) == path.resolve()
    assert "caf\\udce9.csv" in (tmp_path / "a/report.html").read_text()
