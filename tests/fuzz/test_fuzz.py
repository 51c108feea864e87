"""Whatever is in a file, ``load`` gives a data set or one sentence: nothing else, not slowly, not in gigabytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fuzz
from evenhand.cli import main

_SECONDS, _MEGABYTES = 10, 1000


@pytest.fixture(scope="module")
def found(thorough: bool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each file, in a process of its own."""
    last = 1000 if thorough else 60
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    child = subprocess.run(
        [sys.executable, "-m", "fuzz", "0", str(last), str(tmp_path_factory.mktemp("fuzz"))],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    rows = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"died on file {len(rows)}: {child.stderr[-2000:]}"
    assert len(rows) == last
    return rows


def test_a_data_set_or_one_sentence(found: list[dict[str, Any]]) -> None:
    assert [row for row in found if row["outcome"] == "traceback"] == []
    for row in found:
        if row["outcome"] == "refused":
            assert row["said"].endswith("."), row
            assert row["said"].isprintable(), row
            assert len(row["said"]) < 500, row


def test_neither_slow_nor_large(found: list[dict[str, Any]]) -> None:
    assert [row for row in found if row["seconds"] > _SECONDS or row["megabytes"] > _MEGABYTES] == []


def test_the_files_are_neither_all_good_nor_all_bad(found: list[dict[str, Any]]) -> None:
    """The control: where all of a format are refused for one reason, nothing behind it has been tried."""
    for name in fuzz.FORMATS:
        rows = [row for row in found if row["format"] == name]
        assert {row["outcome"] for row in rows} == {"loaded", "refused"}
        assert len({row["said"].split(": ")[-1] for row in rows}) > 5


def test_what_is_loaded_can_be_trained_on(
    found: list[dict[str, Any]], thorough: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in found if row["outcome"] == "loaded"][:: 4 if thorough else 100]
    for row in rows:
        _, path, options = fuzz.write(row["seed"], tmp_path / f"file{row['seed']}")
        words = [
            "run",
            "fedavg",
            "--data",
            str(path),
            "--rounds",
            "1",
            "--out",
            str(tmp_path / f"out{row['seed']}"),
        ]
        words += ["--checkpoint", "off"]
        words += ["--clients", "3"] if "clients" in options else []
        words += ["--regression"] if "regression" in options else []
        code = main(words)
        said = capsys.readouterr().err
        assert code == 0 or (code == 2 and said.count("\n") == 1), (row, said)
