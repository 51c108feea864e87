"""The Python blocks of the documentation and the examples run as they are, and linked files exist."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from evenhand.cli._main import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "explain").glob("*.md")])
MARKED = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = page.read_text(encoding="utf-8")
    blocks = MARKED.findall(text)
    assert len(blocks) == text.count("```python"), f"{page.name} has a block that no test runs."
    namespace = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_exist(page):
    """But for the pages of the gallery, which scripts/docs makes, and whose links it examines."""
    links = re.findall(r"\]\((?!http|_static/gallery/)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_commands_that_answer_which_method_are_read_as_they_stand():
    text = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
    commands = re.findall(r"^evenhand (run .*)$", text, re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        parse(shlex.split(command, comments=True))


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("\n") >= 3
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 80


def test_the_map_names_files_and_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.py)`(?: \(((?:`\w+`(?:, )?)+)\))?", text)
    assert len(files) > 25
    for path, functions in files:
        root = ROOT if path.startswith("tests/") else ROOT / "src" / "evenhand"
        source = (root / path).read_text(encoding="utf-8")
        missing = set(re.findall(r"`(\w+)`", functions)) - set(re.findall(r"(?:def|class) (\w+)", source))
        assert not missing, f"{path} has no {missing}"
    packages = re.findall(r"`([\w]+)/`", text)
    assert not [name for name in packages if not (ROOT / "src" / "evenhand" / name).is_dir()]
    rooms = {path.parent.name for path in (ROOT / "src" / "evenhand").glob("*/__init__.py")}
    assert rooms <= set(packages), f"the map lacks {rooms - set(packages)}"
