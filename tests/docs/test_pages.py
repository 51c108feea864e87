"""The Python blocks of the documentation and the examples run as they are, and linked files exist.

What a page shows as the output of its code or of a command is what is printed.
"""

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from shown import NUMBER, absent, is_near

import evenhand as eh
from evenhand.cli import main
from evenhand.cli._main import parse
from evenhand.evaluation._findings import Kind
from evenhand_command import doctor

pytestmark = pytest.mark.draws

ROOT = Path(__file__).parents[2]
# The page about PyTorch needs it: tests/pytorch run its blocks.
PAGES = [
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "pytorch"),
    *sorted((ROOT / "docs" / "explain").glob("*.md")),
]
MARKED = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.DOTALL)
# What needs Flower's packages runs in their environment: tests/network/test_flower_datasets.py.
ELSEWHERE = "<!-- test flwr-datasets -->\n```python"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = page.read_text(encoding="utf-8")
    blocks = MARKED.findall(text)
    assert len(blocks) + text.count(ELSEWHERE) == text.count("```python"), (
        f"{page.name} has a block that no test runs."
    )
    printed = dict[int, list[str]]()

    def note(*values: Any, **options: Any) -> None:
        printed.setdefault(sys._getframe(1).f_lineno, []).append(" ".join(map(str, values)))

    namespace: dict[str, Any] = {"print": note}
    for block in blocks:
        printed.clear()
        exec(compile(block, page.name, "exec"), namespace)
        for i, line in enumerate(block.splitlines(), 1):
            # A line in a loop prints several times, and its comment may be about any of them.
            if (comment := COMMENTED.search(line)) and len(printed.get(i, [])) == 1:
                assert agrees(comment[1], printed[i][0]), f"{line}\nprinted {printed[i][0]}"


COMMENTED = re.compile(r"^ *print\(.*\)  # (.*)$")
"""A line that prints, and what is said of its output."""


def agrees(comment: str, printed: str) -> bool:
    """Whether a comment that begins with values begins with those that were printed; one that begins with words may."""
    values = re.split(r"[:;]|(?<!\d),(?= [a-z])|, (?=[a-z])| (?=[a-z])(?!and\b|to\b|e[-+]?\d)", comment)[0]
    if re.match(r"True|False|NaN|None", values):
        return values.split()[0].lower() in printed.lower()
    if not re.match(r"[-(\[]?\d", values):
        return True
    shown, exact = NUMBER.findall(values), NUMBER.findall(printed)
    return len(shown) <= len(exact) and all(map(is_near, shown, exact))


def test_a_comment_agrees_only_with_what_is_printed() -> None:
    assert agrees("1.42, 2.84, 0.146", "1.4213 2.8409 0.14558") and not agrees(
        "1.42, 2.84, 0.146", "1.42 2.84 0.15"
    )
    assert agrees("0.78, though 0.9 is true", "0.78") and not agrees("0.78, though 0.9 is true", "0.9")
    assert agrees("True", "True") and not agrees("True", "False") and agrees("below 1e-6", "3e-8")
    assert agrees("[3 0 2 3]: the last row", "[3 0 2 3]") and not agrees(
        "[3 0 2 3]: the last row", "[3 0 2 2]"
    )


def test_private_metrics_are_shown_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_figures: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"```sh\nevenhand (run [^\n]*--private-metrics)\n```\n\n```\n(.*?)```", text, re.DOTALL
    )
    assert main(shlex.split(shown[0])) == 0
    assert absent(shown[1], capsys.readouterr().out) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "pytorch.md"], ids=lambda page: page.name)
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


def test_the_answer_for_the_worst_served_serves_them_no_worse_at_equal_rounds():
    text = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
    (answer,) = re.findall(r"^evenhand run '(\w+\(.*\))' +# 4$", text, re.MULTILINE)
    data, model = eh.data.load("digits"), eh.models.softmax_regression(64, classes=10)
    work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
    methods = (
        eh.expressions.parse(name, eh.Algorithm, model, work) for name in ("qfedavg(q=1)", "fedavg()", answer)
    )
    runs = [eh.simulate(method, data, rounds=50, eval_every=50) for method in methods]
    worst = [100 * run.summary()["worst10"] for run in runs]
    assert worst[0] < worst[1] <= worst[2]
    for method, share in zip(("`qfedavg(q=1)`", "`fedavg`", f"`{answer}`"), worst, strict=True):
        assert re.search(rf"{share:.0f} %\s+with\s+{re.escape(method)}", text), (method, share)


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MINUTES = {
    "finetune_text": {
        "rounds=10": "rounds=1",
        "rounds=6": "rounds=1",
        "eval_every=10": "eval_every=1",
        "3000, 0.05": "300, 0.05",
        "40, 0.3": "10, 0.3",
    }
}
"""Examples that take minutes, and what makes them shorter here."""


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = script.read_text(encoding="utf-8")
    for long, short in MINUTES.get(script.stem, {}).items():
        assert long in text
        text = text.replace(long, short)
    (tmp_path / script.name).write_text(text, encoding="utf-8")
    runpy.run_path(str(tmp_path / script.name), run_name="__main__")
    assert capsys.readouterr().out.count("\n") >= 3
    assert len(text.splitlines()) <= 80


def test_a_page_lists_all_kinds_of_findings():
    section = (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8").split("\n## ")[1]
    training, clients, noise, data = get_args(Kind)
    kinds = {kind for part in (training, clients, noise, data) for kind in get_args(part)}
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == kinds


def test_a_page_has_the_functions_of_an_attack():
    section = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split("\n## An attack")[1]
    functions = dict(re.findall(r"^ +(\w+): ``(\(.+?)``", eh.types.Attack.__doc__ or "", re.MULTILINE))
    assert len(functions) == 7
    assert dict(re.findall(r"^\| `(\w+)` \| `(\(.+?)` \|", section, re.MULTILINE)) == functions


def test_pages_list_all_theory_all_extras_and_all_scripts():
    diagnostics, install, contributing = (
        (ROOT / page).read_text(encoding="utf-8")
        for page in ("docs/diagnostics.md", "docs/install.md", "CONTRIBUTING.md")
    )
    functions = {name for name in eh.theory.__all__ if name.islower()}
    assert functions <= set(re.findall(r"`(\w+)`", diagnostics))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(extras) - set(doctor.DEVELOPMENT) <= set(re.findall(r"\[(\w+)\]['`]", install))
    scripts = {path.name for path in (ROOT / "scripts").iterdir() if not path.name.startswith("_")}
    assert scripts == set(re.findall(r"^scripts/(\w+)", contributing, re.MULTILINE))


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
