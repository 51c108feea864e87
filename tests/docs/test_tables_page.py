"""docs/tables.md: its shell blocks run the commands that they seem to, and these do what the page says."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from shown import absent, outputs

from evenhand.cli import main

pytestmark = pytest.mark.usefixtures("shared_programs")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
PEOPLE = ROOT / "examples" / "people.csv"


def commands(folder: Path) -> list[list[str]]:
    """The arguments of each call of ``evenhand`` in the page's shell blocks; a run makes only its folder."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    make = 'while [ "$1" != --out ]; do shift; done; mkdir -p "$2"'
    stand_in = f'evenhand() {{ printf "%q " "$@"; echo; if [ "$1" = run ]; then {make}; fi; }}\n'
    shell = subprocess.run(["bash", "-ec", stand_in + blocks], cwd=folder, capture_output=True, text=True)
    return [shlex.split(line) for line in shell.stdout.splitlines()]


def test_the_file_is_what_its_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "people.py"), run_name="__main__")
    assert (tmp_path / "people.csv").read_bytes() == PEOPLE.read_bytes()
    assert "people.csv: 1293 people" in capsys.readouterr().out
    assert PEOPLE.stat().st_size < 100_000
    head = "".join(f"{line}\n" for line in PEOPLE.read_text().splitlines()[:4])
    assert head in PAGE and "1,293" in PAGE


def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them: 21 runs, their comparison, and predictions."""
    calls = commands(tmp_path)
    runs = [words for words in calls if words[0] == "run"]
    (compare,) = [words for words in calls if words[0] == "compare"]
    (predict,) = [words for words in calls if words[0] == "predict"]
    assert len(runs) == 21
    assert {words[1] for words in runs} == {"fedavg", "qfedavg", "term"}
    assert sorted(compare[1:22]) == sorted(words[words.index("--out") + 1] for words in runs)
    _, encoding, table, predictions = outputs(PAGE)

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("COLUMNS", "80")
    with monkeypatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        for words in runs:
            assert main(words) == 0
            assert absent(encoding, capsys.readouterr().err) == []
    assert main(compare) == 0
    printed = capsys.readouterr().out
    assert absent(table, printed) == []
    assert absent(table.replace("69.6", "69.8", 1), printed), "the comparison sees other numbers"
    assert (tmp_path / "here" / "runs" / "compare.html").exists()
    assert main(predict) == 0
    written = (tmp_path / "here" / "predictions.csv").read_text()
    assert absent(predictions.replace(",", " "), written.replace(",", " ")) == []
    assert written.count("\n") == 1294
    clients = (tmp_path / "here" / "runs" / "term-0" / "clients.csv").read_text()
    assert "\nnorth / A," in clients and clients.count("\n") == 9
