"""The README's Python blocks run as they are, one after the other, and so do its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from evenhand.cli import main
from evenhand.cli._main import parse
from evenhand.cli._study import StudyCommand

pytestmark = pytest.mark.draws

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARKED = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.DOTALL)


def test_python_blocks_and_the_command_on_their_file_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = MARKED.findall(README)
    assert len(blocks) == README.count("```python") >= 4
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert (tmp_path / "report.html").exists()
    accuracy, worst = map(float, capsys.readouterr().out.split("\n")[0].split())
    assert 0.5 < worst < accuracy < 1

    command = next(
        line for line in README.splitlines() if line.startswith("evenhand run") and "people.csv" in line
    )
    assert main([*shlex.split(command)[1:], "--rounds", "3", "--quiet"]) == 0
    assert (tmp_path / "runs" / "people" / "report.html").exists()


def test_the_study_of_the_file_is_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer rounds, seeds and step sizes; of those that the README names, it is known that they can be read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = next(block for block in README.split("```sh\n") if block.startswith("evenhand study")).split(
        "```"
    )[0]
    words = shlex.split(command.replace("\\\n", " "))[1:]
    assert isinstance(parse(words), StudyCommand)
    assert main([*words, "--rounds", "2", "--seeds", "2", "--lr", "0.1", "--quiet"]) == 0
    text = (tmp_path / "studies" / "people" / "study.html").read_text()
    assert "Is the difference real?" in text and "All settings" in text


@pytest.mark.usefixtures("no_figures")
def test_the_second_step_compares_runs_that_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quickstart = (ROOT / "scripts" / "quickstart").read_text(encoding="utf-8")
    settings = re.search(r"settings=\((.*)\)", quickstart)
    assert settings
    first = [
        "run",
        "fedavg",
        *shlex.split(settings[1]),
        "--out",
        "runs/quickstart/fedavg",
        "--rounds",
        "1",
        "--quiet",
    ]
    assert main(first) == 0
    start = README[README.index("## Start") : README.index("## Your own data")]
    steps = [shlex.split(line, comments=True) for line in start.splitlines() if "runs/quickstart" in line]
    assert [step[1] for step in steps] == ["run", "compare"]
    for step in steps:
        assert main([*step[1:], *(["--quiet"] if step[1] == "run" else [])]) == 0
    assert "clients better than fedavg" in capsys.readouterr().out


_REPOSITORY = re.compile(
    r"https://(?:github\.com/evenhand/evenhand/blob|raw\.githubusercontent\.com/evenhand/evenhand)/main/"
)


def test_links_are_absolute_and_lead_to_files_of_the_repository() -> None:
    """A package index shows the README without the repository, so that relative links and images are dead there."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [_REPOSITORY.sub("", link).partition("#")[0] for link in links if _REPOSITORY.match(link)]
    assert len(ours) > 20 and "docs/images/quickstart.png" in ours
    assert [path for path in ours if not (ROOT / path).exists()] == []


def test_the_first_screen_says_how_to_install_it_and_shows_python() -> None:
    first = README.splitlines()[:30]
    assert first.index("pip install evenhand") < first.index("import evenhand as eh")
