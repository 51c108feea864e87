"""What a release is made of: one version everywhere, a recipe that requires what the package requires, files for GitHub
that can be read, and a check of the sdist that notices what is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import evenhand as eh

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
RECIPE = ROOT / "recipe" / "recipe.yaml"
WORKFLOWS = ("docs.yml", "release.yml", "tests.yml")
TEMPLATES = ("bug.yml", "documentation.yml", "method.yml")

# An sdist has none of these files.
pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="only a clone of the repository has workflows")

# Major versions that exist; actions take fixes of their major version by themselves.
ACTIONS = {
    "actions/checkout@v4",
    "actions/setup-python@v5",
    "actions/upload-artifact@v4",
    "actions/download-artifact@v4",
    "actions/upload-pages-artifact@v3",
    "actions/deploy-pages@v4",
    "pypa/gh-action-pypi-publish@release/v1",
}
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
"""Packages that have another name there: conda's matplotlib brings a toolkit for windows."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def pythons() -> list[str]:
    """The Pythons that the package says to support."""
    prefix = "Programming Language :: Python :: "
    names = [
        line.removeprefix(prefix) for line in project()["project"]["classifiers"] if line.startswith(prefix)
    ]
    return [name for name in names if re.fullmatch(r"3\.\d+", name)]


def jobs() -> dict[str, Any]:
    return {
        f"{name}: {key}": job
        for name in WORKFLOWS
        for key, job in read(GITHUB / "workflows" / name)["jobs"].items()
    }


# --- one version, one set of Pythons ----------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    assert str(read(ROOT / "CITATION.cff")["version"]) == eh.__version__
    assert read(RECIPE)["context"]["version"] == eh.__version__


def test_a_released_version_has_a_date_in_the_changelog() -> None:
    heads = re.findall(r"(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert heads, "no versions"
    for head in heads:
        assert head == "[Unreleased]" or re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head), head


def test_the_same_pythons_are_supported_everywhere() -> None:
    supported = pythons()
    assert len(supported) >= 3
    assert project()["project"]["requires-python"] == f">={supported[0]}"
    assert jobs()["tests.yml: tests"]["strategy"]["matrix"]["python"] == supported
    release = jobs()["release.yml: check"]["steps"]
    [asked] = [step["with"]["python-version"] for step in release if "setup-python" in step.get("uses", "")]
    assert asked.split() == supported
    assert read(RECIPE)["context"]["python_min"] == supported[0]
    for script in ("scripts/release", ".ci/run"):
        [line] = re.findall(r"(?m)^supported=\((.*)\)$", (ROOT / script).read_text("utf-8"))
        assert sorted(line.split()) == sorted(supported), script


def test_the_links_of_the_package_are_there() -> None:
    links = project()["project"]["urls"]
    assert {"Documentation", "Source", "Changelog", "Issues"} <= links.keys()
    assert all(link.startswith("https://") for link in links.values())


# --- the recipe -------------------------------------------------------------------------------------------------


def differences(required: list[str], recipe: list[str]) -> list[str]:
    """How a recipe's requirements differ from those of the package."""
    wanted = {CONDA_NAMES.get(need.name, need.name): need.specifier for need in map(Requirement, required)}
    pairs = (line.partition(" ")[::2] for line in recipe)
    listed = {name: SpecifierSet(allowed) for name, allowed in pairs if name != "python"}
    return [
        f"{name}: {wanted.get(name)} in pyproject.toml, {listed.get(name)} in the recipe"
        for name in sorted(wanted.keys() | listed.keys())
        if wanted.get(name) != listed.get(name)
    ]


def test_the_recipe_requires_what_the_package_requires() -> None:
    recipe, package = read(RECIPE), project()
    assert not differences(package["project"]["dependencies"], recipe["requirements"]["run"])
    host = [line for line in recipe["requirements"]["host"] if line.startswith("hatchling")]
    assert not differences(package["build-system"]["requires"], host)
    [entry] = recipe["build"]["python"]["entry_points"]
    name, module, function = re.split(r" = |:", entry)
    assert package["project"]["scripts"] == {name: f"{module}:{function}"}
    assert callable(vars(import_module(module))[function])
    assert recipe["about"]["license"] == package["project"]["license"]


@pytest.mark.parametrize(
    ("required", "recipe"),
    [
        (["a>=1"], []),
        ([], ["a >=1"]),
        (["a>=1,<2"], ["a >=1"]),
        (["matplotlib>=1"], ["matplotlib >=1"]),
    ],
)
def test_a_recipe_that_differs_is_noticed(required: list[str], recipe: list[str]) -> None:
    assert differences(required, recipe)


def test_equal_requirements_are_equal_however_they_are_written() -> None:
    assert not differences(["a>=1,<2", "matplotlib>=3"], ["python >=3", "matplotlib-base >=3", "a <2,>=1"])


# --- workflows and templates ------------------------------------------------------------------------------------


def test_there_are_these_workflows() -> None:
    assert sorted(path.name for path in (GITHUB / "workflows").iterdir()) == sorted(WORKFLOWS)
    for name in WORKFLOWS:
        workflow = read(GITHUB / "workflows" / name)
        # YAML 1.1 reads the key `on` as true.
        assert workflow.keys() >= {"name", True, "permissions", "jobs"}, name
        assert workflow["permissions"] == {"contents": "read"}, "a job asks for more where it needs more"


@pytest.mark.parametrize("job", jobs() if GITHUB.is_dir() else ())
def test_jobs_end_use_pinned_actions_and_run_scripts_that_exist(job: str) -> None:
    steps = jobs()[job]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    assert {step["uses"] for step in steps if "uses" in step} <= ACTIONS
    for step in steps:
        for script in re.findall(r"scripts/\w+", step.get("run", "")):
            assert (ROOT / script).is_file(), script
    if any("scripts/" in step.get("run", "") for step in steps):
        assert jobs()[job]["timeout-minutes"] <= 120


def test_three_pythons_are_tested_on_two_systems() -> None:
    matrix = jobs()["tests.yml: tests"]["strategy"]["matrix"]
    assert matrix["system"] == ["ubuntu-latest", "macos-latest"]


def test_a_release_is_trusted_and_only_after_it_was_checked() -> None:
    workflow = read(GITHUB / "workflows" / "release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["needs"] == "check"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text("utf-8")
    assert any(step.get("run") == "scripts/release --check" for step in workflow["jobs"]["check"]["steps"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_issue_form_is_one_that_github_takes(name: str) -> None:
    form = read(GITHUB / "ISSUE_TEMPLATE" / name)
    assert (
        {"name", "description", "body"} <= form.keys() <= {"name", "description", "labels", "body", "title"}
    )
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names)) >= 2
    for field in form["body"]:
        assert field["type"] in ("input", "textarea", "dropdown")
        assert field["attributes"]["label"]
        options = field["attributes"].get("options", [])
        assert all(isinstance(option, str) for option in options), "yes and no are words here"
        assert bool(options) == (field["type"] == "dropdown")


def test_a_bug_report_asks_for_the_installation() -> None:
    assert "evenhand doctor --json" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")


# --- the sdist --------------------------------------------------------------------------------------------------


@pytest.fixture
def sdist(tmp_path: Path) -> Any:
    """Checks an sdist of a small project, with files left out or added: its exit code and what it printed."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        module = import_module("_sdist")
    finally:
        sys.path.pop(0)
    folder = tmp_path / "committed"
    paths = [*module.FILES, "src/evenhand/__init__.py", "docs/page.md", "experiments/a/README.md"]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    good = {*paths, *module.ADDED} - {"experiments/a/README.md"}

    def check(names: set[str]) -> tuple[int, str]:
        (tmp_path / "file").write_text("x")
        with tarfile.open(tmp_path / "a-1.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(tmp_path / "file", f"a-1/{name}")
        words = [sys.executable, ROOT / "scripts" / "_sdist.py", folder, tmp_path / "a-1.tar.gz"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return good, check


def test_an_sdist_has_what_was_committed_and_nothing_else(sdist: Any) -> None:
    good, check = sdist
    code, shown = check(good)
    assert (code, len(shown.splitlines())) == (0, 1)
    for missing in ("constraints.txt", "src/evenhand/__init__.py", "docs/page.md"):
        assert check(good - {missing}) == (1, f"a-1.tar.gz: {missing} is missing.\n")
    for extra in ("experiments/a/README.md", ".venv/pyvenv.cfg", "src/evenhand/notes.txt"):
        assert check(good | {extra}) == (1, f"a-1.tar.gz: {extra} does not belong there.\n")


def test_patterns_of_the_sdist_are_anchored() -> None:
    # README.md alone would match the README.md of every experiment, too.
    assert all(
        path.startswith("/") for path in project()["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    )


def test_without_check_the_script_only_says_how_to_release() -> None:
    done = subprocess.run([ROOT / "scripts" / "release"], capture_output=True, text=True, check=True)
    assert f"git push origin v{eh.__version__}" in done.stdout
    done = subprocess.run([ROOT / "scripts" / "release", "now"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
