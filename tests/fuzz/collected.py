"""Odd and damaged files of LIBSVM, and of data sets as they are published."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import published
from fuzz.bytes_and_cells import CELLS, damage

_PAIRS = [
    "1:1",
    "2:0.5",
    "1:nan",
    "0:1",
    "-1:2",
    "3:",
    ":3",
    "1:1:1",
    "9999999999999999999:1",
    "900000:1",
    "qid:2",
    "# x",
]


def libsvm(rng: random.Random, folder: Path) -> Path:
    """Clients in files, or rows in one, with changes to their labels, pairs or bytes."""
    published.libsvm(folder / "nodes")
    files = sorted((folder / "nodes").iterdir())
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        path = rng.choice(files)
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        place = rng.randrange(len(lines))
        cells = lines[place].split(" ")
        edited = rng.randrange(len(cells))
        odd = ["0.5", "1e30", "7", "-2"] if edited == 0 else _PAIRS
        cells[edited] = rng.choice(CELLS if rng.random() < 0.3 else odd)
        lines[place] = " ".join(cells)
        path.write_text(
            "\n".join(lines), encoding="utf-8", errors="surrogateescape" if rng.random() < 0.5 else "replace"
        )
    if rng.random() < 0.2:
        path = rng.choice(files)
        path.write_bytes(damage(rng, path.read_bytes()) if rng.random() < 0.5 else b"# nothing")
    return rng.choice([folder / "nodes", *files])


def collected(rng: random.Random, folder: Path) -> Path:
    """A folder or an archive of a published data set, with changes to the bytes of a file or of the archive."""
    builders: list[Callable[[Path], Path]] = [
        published.cifar,
        published.movielens,
        published.imdb,
        published.vehicle,
    ]
    made = rng.choice(builders)(folder / "made")
    files = [made] if made.is_file() else sorted(entry for entry in made.rglob("*") if entry.is_file())
    if rng.random() < 0.5:
        path = rng.choice(files)
        path.write_bytes(damage(rng, path.read_bytes()))
    if made.is_file():
        return made
    if rng.random() < 0.3:
        rng.choice(files).unlink()
    if rng.random() < 0.4:
        return made
    suffix = rng.choice([".zip", ".tar.gz", ".tar.bz2", ".tar.xz"])
    archive = published.packed(made, folder / f"made{suffix}", rng.choice(["", "inside"]))
    if rng.random() < 0.5:
        archive.write_bytes(damage(rng, archive.read_bytes()))
    return archive
