"""Whether an sdist holds what it should: ``scripts/_sdist.py FOLDER FILE``, the folder with what is committed.

Exit code 1 and a sentence for each fault.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("docs", "examples", "src", "tests")
FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
)
ADDED = (".gitignore", "PKG-INFO")
"""What the build adds."""
LARGEST = 10_000_000
"""Bytes of the packed file: more than that means that something has come in by mistake."""


def faults(committed: Path, names: list[str], size: int) -> Iterator[str]:
    """What is wrong with an sdist of these files, whose paths begin in its folder."""
    wanted = set(FILES)
    for folder in FOLDERS:
        paths = (committed / folder).rglob("*")
        wanted |= {path.relative_to(committed).as_posix() for path in paths if path.is_file()}
    yield from (f"{name} is missing" for name in sorted(wanted - set(names)))
    yield from (f"{name} does not belong there" for name in sorted(set(names) - wanted - set(ADDED)))
    if size > LARGEST:
        yield f"it has {size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}"


def main(folder: str, file: str) -> int:
    """Prints what is wrong with the file, and returns the exit code."""
    with tarfile.open(file) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    sentences = list(faults(Path(folder), names, Path(file).stat().st_size))
    for sentence in sentences:
        print(f"{Path(file).name}: {sentence}.")
    if not sentences:
        print(f"{Path(file).name}: {len(names)} files, {Path(file).stat().st_size / 1e6:.1f} MB")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
