"""docs/sources.md is what docs/sources.toml gives, and the file names only what exists."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from experiments.sources import DOCS, KINDS, ROOT, VERDICTS, load, numbers, page, problems

DATA = load()
PAGE = (DOCS / "sources.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (Algorithm|Table|Figure) [\dIV]", line)]


def test_the_page_is_made_from_the_file() -> None:
    assert page(DATA) == PAGE, "run python -m experiments.sources"


def test_nothing_is_wrong_with_the_file() -> None:
    """Names import, files exist, all results are used, verdicts are of four words, and no number is left out."""
    assert problems(DATA) == []


def test_the_saved_command_of_each_result_runs_a_module_that_exists() -> None:
    results = sorted(ROOT.glob("experiments/*/results/**/*.json"))
    assert results
    for path in results:
        python, flag, module, *_ = shlex.split(json.loads(path.read_text(encoding="utf-8"))["command"])
        assert (python, flag) == ("python", "-m"), path
        spec = find_spec(module)
        assert spec, f"{path}: {module} does not exist"
        # A package runs by its __main__ alone.
        assert not spec.submodule_search_locations or find_spec(f"{module}.__main__"), f"{path}: {module}"


def test_the_sources_have_as_many_entries_as_were_counted() -> None:
    """Counted in the documents by their captions; the numbers of the slides are ours."""
    counts = {source["key"]: tuple(source[f"{kind}s"] for kind in KINDS) for source in DATA["sources"]}
    assert counts == {
        "thesis": (17, 50, 69),
        "delta_fl": (4, 9, 10),
        "ditto": (2, 12, 8),
        "fedtilt": (1, 7, 7),
        "slides": (11, 1, 17),
    }
    assert len(ROWS) == sum(map(sum, counts.values()))


def test_each_row_has_all_its_cells() -> None:
    for row in ROWS:
        cells = re.split(r" \| ", row.strip("| "))
        assert len(cells) == 6, row
        assert all(cell.strip() for cell in cells), row
        assert cells[4].strip("*") in VERDICTS, row


def test_links_within_the_page_lead_to_its_headings() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_-]", "", heading.lower().replace(" ", "-")) for heading in headings}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert len(links) == len(set(links)) >= len(DATA["sources"])
    assert set(links) <= anchors


def test_links_to_parts_of_other_pages_lead_to_their_headings() -> None:
    links = re.findall(r"\]\((\.\./[^)#]+)#([^)]+)\)", PAGE)
    assert links
    for path, anchor in links:
        text = (DOCS / path).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^a-z0-9_-]", "", line.lower().replace(" ", "-")) for line in headings}


def test_spans_of_numbers() -> None:
    assert numbers("3 to 5") == ["3", "4", "5"]
    assert numbers("4.9 to 4.11") == ["4.9", "4.10", "4.11"]
    assert numbers("II to IV") == ["II", "III", "IV"]
    assert numbers("") == []


def _first(data: Any) -> dict[str, Any]:
    return data["parts"][1]["entries"][0]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda data: _first(data).update(code=["evenhand.algorithms.fedmax"]), "fedmax does not exist"),
        (lambda data: _first(data).update(code=["evenhand.nowhere.fedavg"]), "nowhere.fedavg does not exist"),
        (lambda data: _first(data).update(code=["json.loads"]), "json.loads is not in the library"),
        (lambda data: _first(data).update(code=[]), "code is empty"),
        (lambda data: _first(data).update(reason=""), "reason is empty"),
        (lambda data: _first(data).update(verdict="maybe"), "verdict 'maybe'"),
        (lambda data: _first(data).update(verdict="not run"), "not run, but has results"),
        (lambda data: _first(data).update(runs=[], tests=[]), "has neither results nor a test"),
        (lambda data: _first(data).update(runs=["experiments/none.json"]), "none.json does not exist"),
        (lambda data: _first(data).update(tests=["README.md"]), "README.md is not in tests/"),
        (lambda data: _first(data).pop("title"), "has no title"),
        (lambda data: data["parts"][1]["entries"].pop(5), "figures .*, not '3.1 to 3.12'"),
        (lambda data: data["parts"][1].update(figures="3.2 to 3.12"), "3.2 does not follow the one before"),
        (lambda data: data["parts"][2].update(algorithms="4 to 5"), "16 algorithms in spans, not 17"),
        (lambda data: data["others"].pop(0), "is in no entry, and not among the others"),
        (lambda data: data["others"].append("experiments/none.json"), "experiments/none.json does not exist"),
    ],
)
def test_what_is_wrong_is_seen(spoil: Callable[[Any], Any], sentence: str) -> None:
    data = copy.deepcopy(DATA)
    spoil(data)
    assert any(re.search(sentence, problem) for problem in problems(data))
