"""What is in the files of a folder: JSON, named arrays, checksums, and the version of the format.

From top to bottom: JSON, written so that equal values are equal texts, and read with limits, since a damaged file may
hold anything; arrays by name; the format of a folder, so that a newer one is refused; checksums of bytes and files;
the file ``checksums.json``, which lists those of a folder; and the checksum inside a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from evenhand._version import __version__
from evenhand.errors import EvenhandError
from evenhand.records._folder import write_text, writing

NDArray = npt.NDArray[Any]


# --- JSON ---------------------------------------------------------------------------------------------------

_LONGEST_JSON = 2**24
"""Bytes; what ``evenhand run`` writes has a few thousand."""
_DEEPEST_JSON, _LONGEST_NUMBER = 20, 20


def json_text(value: Mapping[str, Any]) -> str:
    """``value`` as indented JSON; NaN and infinities become null."""
    text = json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # File names may hold bytes that are not text, which Python keeps as lone surrogates: JSON has an escape for them.
    return text.encode("utf-8", "backslashreplace").decode()


def as_json(value: Any) -> Any:
    """``value`` in the types of JSON; NaN and infinities become None."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        return {str(key): as_json(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in cast(Iterable[Any], value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return as_json(cast(Any, value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
      EvenhandError: there is no such file, or it is not JSON, too long or nested too deeply.
    """
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    if path.stat().st_size > _LONGEST_JSON:
        raise foreign(path, "it is too long")
    value = json_object(path.read_bytes(), str(path), parse_int=_short, parse_float=_finite)
    if _is_deeper(value, _DEEPEST_JSON):
        raise foreign(path, "it is nested too deeply")
    return value


def foreign(path: Path, reason: str) -> EvenhandError:
    """The error about a file that no run has written as it is."""
    return EvenhandError(
        f"{path} is not what `evenhand run` writes ({reason}): restore it or repeat the run."
    )


def json_object(
    text: bytes,
    where: str,
    parse_int: Callable[[str], int] | None = None,
    parse_float: Callable[[str], float] | None = None,
) -> dict[str, Any]:
    """The JSON object that ``text`` spells; ``where`` it is begins the sentence about one that does not."""
    try:
        value = json.loads(
            text.decode(), parse_constant=_finite, parse_int=parse_int, parse_float=parse_float
        )
    # ValueError: not JSON, not UTF-8, or numbers of 5,000 digits
    except (ValueError, RecursionError) as error:
        raise EvenhandError(f"{where} is not JSON ({error}): restore it or repeat the run.") from None
    if not isinstance(value, dict):
        raise EvenhandError(f"{where} holds no JSON object: restore it or repeat the run.")
    return cast(dict[str, Any], value)


def _is_deeper(value: Any, levels: int) -> bool:
    parts: Iterable[Any] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _short(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"{digits[:20]}... is too long")
    return int(digits)


def _finite(text: str) -> float:
    """A finite number; Python alone would accept NaN and Infinity, which are not JSON, and read 1e999 as infinity."""
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.20} is not a finite number")
    return float(text)


# --- arrays by name -----------------------------------------------------------------------------------------


def write_arrays(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """Writes an ``.npz`` file, whatever the ending of its name."""
    # Not numpy.savez, which takes the names as keywords: an array may have the name of one of its own arguments.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, NDArray]:
    """The arrays in an ``.npz`` file, by name.

    Raises:
      EvenhandError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise EvenhandError(f"{path} cannot be read ({error}): restore it or repeat the run.") from None


# --- the format of a folder ---------------------------------------------------------------------------------

FORMAT = 2
"""Of run folders and studies.  1, which no file names: without ``results.npz``, and without this number."""


class NewerFormat(EvenhandError):
    """What a later version of Evenhand wrote, in a format that this one does not know."""


def stamped(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the format that it is in, and the version of Evenhand that reads it."""
    return {"format": FORMAT, "evenhand": __version__, **value}


def check_format(path: Path, value: Mapping[str, Any]) -> None:
    """Refuses a JSON object that a later version of Evenhand wrote in a format of its own.

    Raises:
      NewerFormat: it did.
      EvenhandError: its ``"format"`` is none.
    """
    kind = value.get("format", 1)
    if type(kind) is not int or kind < 1:
        raise EvenhandError(f"{path} is damaged (its format is {kind!r:.40}): restore it or repeat the run.")
    if kind > FORMAT:
        writer = value.get("evenhand")
        version = f"Evenhand {writer:.40}" if isinstance(writer, str) else "the version that wrote it"
        raise NewerFormat(
            f"{path} has format {kind}, which Evenhand {__version__} does not know: read it with {version} or later."
        )


# --- checksums of bytes and files ---------------------------------------------------------------------------


class Checksum(NamedTuple):
    """The length of some bytes, and their SHA-256 in hexadecimal."""

    length: int
    sha256: str


def sum_of(data: bytes) -> Checksum:
    """The checksum of bytes."""
    return Checksum(len(data), hashlib.sha256(data).hexdigest())


def sum_of_file(path: Path, length: int | None = None) -> Checksum:
    """The checksum of the first ``length`` bytes of a file, or of all, which is read in blocks."""
    length = path.stat().st_size if length is None else length
    digest, left = hashlib.sha256(), length
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    return Checksum(length, digest.hexdigest())


# --- checksums.json, which lists those of the files beside it -----------------------------------------------

CHECKSUMS = "checksums.json"


def sums_of(folder: Path, names: Iterable[str]) -> dict[str, Checksum]:
    """The checksums of files in a folder."""
    return {name: sum_of_file(folder / name) for name in names}


def write_sums(folder: Path, sums: Mapping[str, Checksum]) -> None:
    """Writes ``checksums.json``: after the files that it lists, so that it never vouches for what is not there."""
    value = {name: {"bytes": entry.length, "sha256": entry.sha256} for name, entry in sums.items()}
    with writing(folder / CHECKSUMS):
        write_text(folder / CHECKSUMS, json_text(value))


def read_sums(folder: Path) -> dict[str, Checksum] | None:
    """The checksums that a folder lists; None if the list is missing or damaged."""
    try:
        listed = read_json(folder / CHECKSUMS)
    except EvenhandError:
        return None
    sums: dict[str, Checksum] = {}
    for name, value in listed.items():
        match value:
            case {"bytes": int(length), "sha256": str(sha256)} if (
                len(cast(dict[str, Any], value)) == 2 and length >= 0
            ):
                sums[name] = Checksum(length, sha256)
            case _:
                return None
    return sums


def changed_files(folder: Path, sums: Mapping[str, Checksum], growing: str = "") -> set[str]:
    """The files that are missing or not as listed; the one that is ``growing`` may have become longer."""
    return {name for name, entry in sums.items() if not _matches(folder / name, entry, grows=name == growing)}


def _matches(path: Path, entry: Checksum, *, grows: bool) -> bool:
    size = path.stat().st_size if path.is_file() else -1
    has_length = size == entry.length or (grows and size > entry.length)
    return has_length and sum_of_file(path, entry.length) == entry


def fits_its_list(path: Path) -> bool:
    """Whether a file is as the ``checksums.json`` beside it says; True where none says anything about it."""
    try:
        listed = json.loads((path.parent / CHECKSUMS).read_text("utf-8"))[path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return True
    length, sha256 = sum_of(path.read_bytes())
    return bool(listed == {"bytes": length, "sha256": sha256})


# --- the checksum inside a JSON object ----------------------------------------------------------------------

SHA256 = "sha256"
"""The name under which a JSON object keeps the checksum of everything else in it."""


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
