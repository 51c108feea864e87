"""``checksums.json``: whether the files of a run folder are those that the run wrote.

It lists only ``config.json`` while the first results are being made, and all files once they are complete.  A run that
is trained further keeps its old results readable, and their checksums, until the new ones are written; the old results
cover the first lines of ``metrics.jsonl``, which grows meanwhile.

Damaged results are refused, and so is a damaged ``checksums.json``; ``evenhand resume`` rebuilds them from the
checkpoint.  ``config.json`` may have been edited on purpose: that is reported, and the checkpoint refuses settings that
do not fit it.  Folders of earlier versions have no checksums, which is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from evenhand.cli._folder import (
    CHECKSUMS,
    CLIENTS,
    CONFIG,
    FEATURES,
    INDEX,
    METRICS,
    PARAMS,
    PERSONAL,
    SUMMARY,
    json_text,
    read_json,
    write_text,
)
from evenhand.errors import EvenhandError
from evenhand.records import Sum, sum_of, sum_of_file

__all__ = ["Condition", "begin", "check", "is_whole", "reopen", "seal", "seal_part", "sound"]

_RESULTS = (METRICS, CLIENTS, PARAMS, SUMMARY)
_PERHAPS = (FEATURES, f"{PERSONAL}/{INDEX}")
"""What not every run has; the index has the checksums of the other files in its folder."""


class Condition(NamedTuple):
    """The state of the files in a run folder.

    Attributes:
      results: ``"none"`` yet; ``"sealed"``: checked; ``"unchecked"``: without checksums.
      damaged: the files that are not as the run wrote them.
      is_edited: ``config.json`` is not as it was written.
      length: how many bytes of ``metrics.jsonl`` the results cover; None: all.
      is_longer: more of it has been written since.
    """

    results: Literal["none", "sealed", "unchecked"]
    damaged: tuple[str, ...] = ()
    is_edited: bool = False
    length: int | None = None
    is_longer: bool = False

    def remarks(self, folder: Path) -> list[str]:
        """What a reader of the results should know, in sentences."""
        remarks: list[str] = []
        if self.results == "unchecked":
            remarks.append(
                f"{folder} has no {CHECKSUMS} (an earlier version of Evenhand wrote it), so damage would go unnoticed."
            )
        if self.is_edited:
            remarks.append(f"{folder / CONFIG} was changed after `evenhand` wrote it.")
        if self.is_longer:
            remarks.append(
                f"{folder} is being trained further, or was stopped while it was: these are its last complete results."
            )
        return remarks


def begin(folder: Path, *, config: str, metrics: str) -> None:
    """Prepares for a new ``config.json`` and ``metrics.jsonl``; old results stay if ``metrics`` begins with theirs."""
    sums = _read(folder) or {}
    old, text = sums.get(METRICS), metrics.encode()
    if old is None or old != sum_of(text[: old.length]):
        sums = {}
    _write(folder, {**sums, CONFIG: sum_of(config.encode())})


def reopen(folder: Path) -> None:
    """Prepares for new results: there are none until they are sealed."""
    _write(folder, {CONFIG: _config_sum(folder)})


def seal(folder: Path) -> None:
    """Records the checksums of complete results."""
    names = [*_RESULTS, *(name for name in _PERHAPS if (folder / name).exists())]
    sums = {name: sum_of_file(folder / name, (folder / name).stat().st_size) for name in names}
    _write(folder, {CONFIG: _config_sum(folder), **sums})


def seal_part(folder: Path) -> None:
    """Records the checksums of results that are not yet those of a run, such as of its best round so far."""
    names = [name for name in (*_RESULTS, *_PERHAPS) if (folder / name).exists()]
    _write(folder, {name: sum_of_file(folder / name, (folder / name).stat().st_size) for name in names})


def is_whole(folder: Path) -> bool:
    """Whether the files that :func:`seal_part` has sealed are as they were."""
    sums = _parsed(folder)
    return sums is not None and not _wrong(folder, sums)


def sound(folder: Path) -> Condition:
    """The state of a run folder whose results can be used.

    Raises:
      EvenhandError: there are none yet, or they are damaged.
    """
    condition = check(folder)
    if condition.results == "none":
        raise EvenhandError(
            f"{folder} has no results yet: a run is training there, or was stopped, and "
            f"`evenhand resume {folder}` continues it."
        )
    if condition.damaged:
        raise EvenhandError(
            f"{folder / condition.damaged[0]} is damaged (it does not match {CHECKSUMS}): "
            f"`evenhand resume {folder}` rebuilds the results from the checkpoint."
        )
    return condition


def check(folder: Path) -> Condition:
    """The state of a run folder that has a ``config.json``."""
    if not (folder / CHECKSUMS).exists():
        return Condition("unchecked" if (folder / SUMMARY).exists() else "none")
    sums = _read(folder)
    if sums is None:
        return Condition("sealed", damaged=(CHECKSUMS,))
    wrong = _wrong(folder, sums)
    edited, damaged = CONFIG in wrong, tuple(name for name in sums if name in wrong - {CONFIG})
    if METRICS not in sums:
        return Condition("none", is_edited=edited)
    length = sums[METRICS].length
    return Condition("sealed", damaged, edited, length, _size(folder / METRICS) > length)


def _wrong(folder: Path, sums: Mapping[str, Sum]) -> set[str]:
    """The files that are missing or not as they were; ``metrics.jsonl`` may have grown."""
    sizes = {name: _size(folder / name) for name in sums}
    return {
        name
        for name, of in sums.items()
        if sizes[name] < of.length
        or (sizes[name] > of.length and name != METRICS)
        or sum_of_file(folder / name, of.length) != of
    }


def _size(path: Path) -> int:
    """Bytes of a file; -1 if there is none."""
    return path.stat().st_size if path.is_file() else -1


def _config_sum(folder: Path) -> Sum:
    """The checksum of ``config.json`` as it was written, even if the file was edited since."""
    sums = _read(folder)
    if sums is None:
        raise EvenhandError(
            f"{folder / CHECKSUMS} was damaged while the run was writing there: `evenhand resume {folder}` "
            "completes it."
        )
    return sums[CONFIG]


def _read(folder: Path) -> dict[str, Sum] | None:
    """The recorded checksums of a run folder; None if the file is missing or damaged."""
    sums = _parsed(folder)
    is_known = sums is not None and set(sums) - set(_PERHAPS) in ({CONFIG}, {CONFIG, *_RESULTS})
    return sums if is_known else None


def _parsed(folder: Path) -> dict[str, Sum] | None:
    """The checksums in a folder, whatever they are of."""
    try:
        found = read_json(folder / CHECKSUMS)
    except EvenhandError:
        return None
    sums: dict[str, Sum] = {}
    for name, value in found.items():
        match value:
            case {"bytes": int(length), "sha256": str(sha256)} if (
                len(cast(dict[str, Any], value)) == 2 and length >= 0
            ):
                sums[name] = Sum(length, sha256)
            case _:
                return None
    return sums


def _write(folder: Path, sums: Mapping[str, Sum]) -> None:
    value = {name: {"bytes": of.length, "sha256": of.sha256} for name, of in sums.items()}
    write_text(folder / CHECKSUMS, json_text(value))
