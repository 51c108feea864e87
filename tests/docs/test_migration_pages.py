"""The pages for those who come from another library: our programs run, theirs can be parsed, and links hold."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.cli._main import parse
from evenhand.cli._run import RunCommand

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "migrate").glob("*.md"))
OURS = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.DOTALL)
THEIRS = re.compile(r"```py\n(.*?)```", re.DOTALL)
LIBRARIES = {"fedjax", "flower", "nvflare", "opacus", "pfl", "pfllib"}


def programs(page: Path) -> dict[str, Any]:
    """What the page's programs define, after they have run one after the other."""
    text = page.read_text(encoding="utf-8")
    blocks = OURS.findall(text)
    assert len(blocks) == text.count("```python"), f"{page.name} has a block that no test runs."
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_our_programs_run_and_theirs_are_python(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = programs(page)
    assert ("eh" in namespace) == (page.stem != "index")
    theirs = THEIRS.findall(page.read_text(encoding="utf-8"))
    assert bool(theirs) == (page.stem in LIBRARIES - {"pfllib"})  # whose program is a command
    for block in theirs:
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_which_version_was_looked_at_and_when(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.search(r"ooked\s+at.*?26 November\s+2026", text, re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, DOCS / "faq.md", DOCS / "glossary.md"], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(
        r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")
    ):
        file = (page.parent / target).resolve()
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{target}#{anchor}"


def test_there_is_a_page_for_each_library_in_the_comparison() -> None:
    text = (DOCS / "migrate" / "index.md").read_text(encoding="utf-8")
    assert {page.stem for page in PAGES} == LIBRARIES | {"index"}
    assert {link for link in LIBRARIES if f"({link}.md)" in text} == LIBRARIES


def test_a_partition_of_pfllib_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    sizes = {"train": (3, 5), "test": (2, 0)}
    images = {part: [random.random((n, 1, 4, 4)) for n in sizes[part]] for part in sizes}
    for part, clients in images.items():
        (tmp_path / part).mkdir()
        for k, x in enumerate(clients):
            np.savez_compressed(
                tmp_path / part / f"{k}.npz", data=np.array({"x": x, "y": np.arange(len(x)) % 2})
            )
    data = programs(DOCS / "migrate" / "pfllib.md")["from_pfllib"](str(tmp_path), 2)
    assert data.train.sizes.tolist() == [3, 5]
    assert data.test.sizes.tolist() == [2, 0]
    x, y = data.train.client(1)
    np.testing.assert_allclose(x, images["train"][1].reshape(5, 16), rtol=1e-6)
    assert y.tolist() == [0, 1, 0, 1, 0]


def test_the_command_beside_pfllib_can_be_read() -> None:
    text = (DOCS / "migrate" / "pfllib.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^evenhand (run .*?)\n```", text, re.DOTALL | re.MULTILINE)
    assert isinstance(parse(shlex.split(command.replace("\\\n", " "))), RunCommand)


def slug(heading: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
