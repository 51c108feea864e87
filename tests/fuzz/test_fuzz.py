"""Whatever is in a file, ``load`` gives a data set or an error of one sentence, fast and without gigabytes of memory.

Two processes read the files, so that their peak memory is that of the files; most of the test's
ten seconds go into starting them, and into the one training run.
"""

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
from fuzz.hostile import HOSTILE

_SECONDS, _MEGABYTES = 10, 1000


def outcomes(folder: Path, *numbers: int) -> list[dict[str, Any]]:
    """The outcome of each file, read in a separate process."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    child = subprocess.run(
        [sys.executable, "-m", "fuzz", str(folder), *map(str, numbers)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    rows = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"died after {len(rows)} files: {child.stderr[-2000:]}"
    return rows


@pytest.fixture(scope="module")
def found(thorough: bool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcomes of the fuzzed files."""
    last = 1000 if thorough else 60
    rows = outcomes(tmp_path_factory.mktemp("fuzz"), 0, last, fuzz.LATER, fuzz.LATER + last)
    assert len(rows) == 2 * last
    return rows


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The outcomes of the hostile files."""
    return {row["file"]: row for row in outcomes(tmp_path_factory.mktemp("hostile"))}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(hostile: dict[str, dict[str, Any]], name: str) -> None:
    row = hostile[name]
    assert row["outcome"] == "refused", row["words"]
    assert HOSTILE[name][1] in row["words"]
    assert row["words"].isprintable() and row["words"].endswith(".") and len(row["words"]) < 300
    assert row["seconds"] < 2
    assert row["megabytes"] < 100


def test_each_file_gives_a_data_set_or_one_sentence(found: list[dict[str, Any]]) -> None:
    assert [row for row in found if row["outcome"] == "traceback"] == []
    for row in found:
        if row["outcome"] == "refused":
            assert row["words"].endswith("."), row
            assert row["words"].isprintable(), row
            assert len(row["words"]) < 500, row


def test_no_file_takes_long_or_much_memory(found: list[dict[str, Any]]) -> None:
    assert [row for row in found if row["seconds"] > _SECONDS or row["megabytes"] > _MEGABYTES] == []


def test_the_files_are_neither_all_good_nor_all_bad(found: list[dict[str, Any]]) -> None:
    """The control: if all files of a format were refused for one reason, no later check would have been tested."""
    for name in fuzz.FORMATS:
        rows = [row for row in found if row["name"] == name]
        assert {row["outcome"] for row in rows} == {"loaded", "refused"}
        assert len({row["words"].split(": ")[-1] for row in rows}) >= 5


def test_what_is_loaded_can_be_trained_on(
    found: list[dict[str, Any]], thorough: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in found if row["outcome"] == "loaded"][:: 4 if thorough else 100]
    for row in rows:
        folder = tmp_path / str(row["file"])
        folder.mkdir()
        _, path, options = fuzz.write(row["file"], folder)
        words = [
            "run",
            "fedavg",
            "--data",
            str(path),
            "--rounds",
            "1",
            "--out",
            str(folder / "out"),
        ]
        words += ["--checkpoint", "off"]
        words += ["--clients", "3"] if "clients" in options else []
        words += ["--regression"] if "regression" in options else []
        code = main(words)
        printed = capsys.readouterr().err
        assert code == 0 or (code == 2 and printed.count("\n") == 1), (row, printed)
