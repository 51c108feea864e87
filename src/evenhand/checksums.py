"""Checksums of what is kept on disk: of bytes, of a file's first bytes, and inside a JSON object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SHA256", "Sum", "fits_its_list", "is_sealed", "resealed", "sum_of", "sum_of_file"]

SHA256 = "sha256"
"""The name under which a JSON object keeps the checksum of everything else in it."""


class Sum(NamedTuple):
    """The length of some bytes, and their SHA-256 in hexadecimal."""

    length: int
    sha256: str


def sum_of(data: bytes) -> Sum:
    """The checksum of bytes."""
    return Sum(len(data), hashlib.sha256(data).hexdigest())


def sum_of_file(path: Path, length: int) -> Sum:
    """The checksum of the first ``length`` bytes of a file, which is read in blocks."""
    digest, left = hashlib.sha256(), length
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    return Sum(length, digest.hexdigest())


def fits_its_list(path: Path) -> bool:
    """Whether a file is as the ``checksums.json`` beside it says; True where none says anything about it."""
    try:
        listed = json.loads((path.parent / "checksums.json").read_text("utf-8"))[path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return True
    length, sha256 = sum_of(path.read_bytes())
    return bool(listed == {"bytes": length, "sha256": sha256})


def resealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the checksum that it must have, so that one write puts both on disk.

    The checksum is of the values, not of the text: it survives another layout, and no change of a value.

    Example:
      >>> is_sealed(resealed({"accuracy": 0.5}))
      True
      >>> is_sealed({**resealed({"accuracy": 0.5}), "accuracy": 0.6})
      False
    """
    rest = {name: part for name, part in value.items() if name != SHA256}
    return {**rest, SHA256: hashlib.sha256(json.dumps(rest).encode()).hexdigest()}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Whether an object is as :func:`resealed` made it."""
    return value.get(SHA256) == resealed(value)[SHA256]
