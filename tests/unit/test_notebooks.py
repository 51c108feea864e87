"""The tutorials in ``docs/tutorials`` are valid notebooks without outputs, and what they say can be followed.

They are executed when the site is built; here nothing is trained.  ``nbformat`` is not needed: a notebook is JSON.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from evenhand.cli._main import parse

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
LONGEST = 85  # longer lines of code scroll on the site
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"},
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_there_are_five_tutorials() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_valid_and_has_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert faults(notebook) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_begins_with_a_title_and_ends_with_what_comes_next(path: Path) -> None:
    text = markdown(path)
    assert re.match(r"# \w", text) and len(re.findall("^# ", text, re.MULTILINE)) == 1
    last = re.findall("^## (.*)$", text, re.MULTILINE)[-1]
    assert last == "Next"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_files_and_headings_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#([^)]+))?\)", markdown(path))
    assert links
    for name, heading in links:
        target = path.parent / name
        assert target.exists(), f"{path.name} links to {name}, which does not exist."
        if heading:
            titles = re.findall("^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_commands_can_be_parsed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in FENCED.findall(markdown(path)):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else []:
            words = shlex.split(line, comments=True)
            if (
                words[:1] == ["evenhand"] and "--config" not in words
            ):  # which reads a file that another command writes
                parse(words[1:])


def test_the_table_of_a_tutorial_is_that_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has only installed the package gets the file from the notebook, and the page about tables describes it."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs/tutorials/my-table.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {}
    for name in ("imports", "make-table"):
        source = next(cell["source"] for cell in cells if cell["id"] == name)
        exec(compile("".join(source), name, "exec"), namespace)
    assert (tmp_path / "people.csv").read_bytes() == (ROOT / "examples/people.csv").read_bytes()


def test_faults_are_noticed() -> None:
    """The rules above, on cells that break them."""
    good = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["x = 1"]}
    good |= {"execution_count": None, "outputs": []}

    def faults_with(**changes: Any) -> list[str]:
        kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        head = {"metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        return faults(head | {"cells": [good, good | {"id": "b"} | changes]})

    assert faults_with() == []
    assert faults_with(id="a") == ["two cells are called a"]
    assert faults_with(id="no blank") == ["'no blank' is no id of a cell"]
    assert faults_with(execution_count=3) == ["b has been executed"]
    assert faults_with(outputs=[{}]) == ["b has been executed"]
    assert faults_with(metadata={"collapsed": True}) == ["b has metadata ['collapsed']"]
    assert faults_with(source=["x ="]) == ["b: invalid syntax"]
    assert faults_with(source=["# " + "x" * LONGEST]) == [f"b has a line over {LONGEST} characters"]
    assert faults_with(attachments={}) == ["b has other keys than a code cell"]


def markdown(path: Path) -> str:
    """The text of a notebook between its cells of code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def faults(notebook: dict[str, Any]) -> list[str]:
    """What is wrong with a notebook that is to be committed."""
    problems = list[str]()
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        problems.append("its format is not 4.5")
    if notebook["metadata"]["kernelspec"]["name"] != "python3":
        problems.append("its kernel is not python3")
    if more := set(notebook["metadata"]) - {"kernelspec", "language_info"}:
        problems.append(f"it has metadata {sorted(more)}")
    names = set[str]()
    for cell in notebook["cells"]:
        name = cell["id"]
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            problems.append(f"{name!r} is no id of a cell")
        if name in names:
            problems.append(f"two cells are called {name}")
        names.add(name)
        problems += faults_of_cell(cell)
    return problems


def faults_of_cell(cell: dict[str, Any]) -> list[str]:
    """What is wrong with a cell by itself."""
    name, kind, source = cell["id"], cell["cell_type"], "".join(cell["source"])
    problems = list[str]()
    if set(cell) != KEYS[kind]:
        problems.append(f"{name} has other keys than a {kind} cell")
    if more := set(cell["metadata"]) - {"tags"}:
        problems.append(f"{name} has metadata {sorted(more)}")
    code = [text for _, text in FENCED.findall(source)]
    if kind == "code":
        if cell.get("outputs") or cell.get("execution_count") is not None:
            problems.append(f"{name} has been executed")
        code = [source]
        try:
            compile(source, name, "exec")
        except SyntaxError as error:
            problems.append(f"{name}: {error.msg}")
    if any(len(line) > LONGEST for block in code for line in block.splitlines()):
        problems.append(f"{name} has a line over {LONGEST} characters")
    return problems
