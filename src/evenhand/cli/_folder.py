"""The run folder: files that say what was run, how it went, and what each client got.

* ``config.json``: the method, every option, the versions and a fingerprint of the data;
  ``evenhand run --config`` repeats the run from it.
* ``features.json``: only for tables: how their columns became the inputs of the model;
  :func:`evenhand.data.load_features` reads it.
* ``metrics.jsonl``: one JSON object per evaluation, appended as the run goes.
* ``clients.csv``: one line per client.
* ``params.npz``: the parameters of the global model, by names such as ``dense/kernel``;
  ``flax.traverse_util.unflatten_dict(dict(numpy.load(path)), sep="/")`` is what ``Model.apply`` takes.
* ``personal/``: the models of clients, where the method gives them models of their own; see
  :mod:`evenhand.cli._saved`.
* ``best/``: the best round so far, under ``--keep best:SPLIT:STATISTIC``; see :mod:`evenhand.cli._saved`.
* ``summary.json``: how the run ended, and the summary over clients of each metric.
* ``checksums.json``: length and SHA-256 of each file above.
* ``report.html``: the figures; it is written last, so that a folder which has it is complete.  (The page of a study is
  ``study.html``.)
* ``checkpoint/``: the latest states, with their own checksums, from which ``evenhand resume`` continues; empty or
  missing before the first save.  Every run that ends by itself saves its last state, unless ``--checkpoint off``.
* ``.lock``: held while a process trains there; a second one is refused, reading is not.

A number that is not finite is ``null`` in the JSON files, and one that does not exist before the first round is left
out at round 0.  Each file is replaced in one step: a kill at any moment leaves the old one or the new one.

``checksums.json`` lists only ``config.json`` while the first results are being made, and all files once they are
complete.  A run that is trained further keeps its old results readable, and their checksums, until the new ones are
written; the old results cover the first lines of ``metrics.jsonl``, which grows meanwhile.

Damaged results are refused, and so is a damaged ``checksums.json``; ``evenhand resume`` rebuilds them from the
checkpoint.  ``config.json`` may have been edited on purpose: that is reported, and the checkpoint refuses settings that
do not fit it.  Folders of earlier versions have no checksums, which is reported too.

From top to bottom: the names of the files; folders that are new or free; files written in one step, and read back;
checksums.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.records import LOCK, Sum, held, sum_of, sum_of_file
from evenhand.simulation import Checkpoint

__all__ = [
    "BEST",
    "CHECKPOINT",
    "CHECKSUMS",
    "CLIENTS",
    "CONFIG",
    "FEATURES",
    "INDEX",
    "METRICS",
    "PAGE",
    "PARAMS",
    "PERSONAL",
    "REPORT",
    "SUMMARY",
    "Condition",
    "append_metrics",
    "begin_checksums",
    "claim",
    "condition_of",
    "dict_in",
    "free",
    "is_whole",
    "json_text",
    "last_round",
    "metrics_text",
    "read_json",
    "read_metrics",
    "reopen_checksums",
    "replacing",
    "seal",
    "seal_part",
    "sound_condition",
    "write_text",
    "writing",
]


CONFIG = "config.json"
FEATURES = "features.json"
METRICS = "metrics.jsonl"
CLIENTS = "clients.csv"
PARAMS = "params.npz"
SUMMARY = "summary.json"
REPORT = "report.html"
PAGE = "study.html"
CHECKSUMS = "checksums.json"
CHECKPOINT = "checkpoint"
PERSONAL, INDEX = "personal", "index.csv"
BEST = "best"

_FILES = (CONFIG, CHECKSUMS, FEATURES, METRICS, CLIENTS, PARAMS, SUMMARY, REPORT)

_LONGEST_JSON = 2**24
"""Bytes; what ``evenhand run`` writes has a few thousand."""
_DEEPEST_JSON, _LONGEST_NUMBER = 20, 20

Vector = np.ndarray[Any, np.dtype[Any]]


# --- folders that are new or free ---------------------------------------------------------------------------


@contextmanager
def free(folder: Path, *, overwrite: bool) -> Generator[None]:
    """Locks a folder for a new run; one that is not empty is refused, unless it may be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise EvenhandError(f"--out {folder} is a file: name a folder that is new or empty.")
    with held(folder):
        if not overwrite and any(path.name != LOCK for path in folder.iterdir()):
            resume = f", or continue with `evenhand resume {folder}`" if (folder / CONFIG).exists() else ""
            raise EvenhandError(
                f"--out {folder} is not empty: name another folder, or add --overwrite{resume}."
            )
        if not (folder / CONFIG).exists():
            foreign = [name for name in (PERSONAL, BEST) if (folder / name).exists()]
            foreign += [CHECKPOINT] if Checkpoint(folder / CHECKPOINT).saved() else []
            if foreign:
                raise EvenhandError(f"{folder / foreign[0]} was not written by `evenhand run`: move it away.")
        yield


def claim(folder: Path, *, checkpoint: bool) -> None:
    """Makes the folder; an earlier run's files in it are removed, all others stay.

    Args:
      folder: the run folder.
      checkpoint: whether the run keeps a checkpoint in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place, old = folder / CHECKPOINT, folder / f".{CHECKPOINT}.old"
    if old.is_dir():
        shutil.rmtree(old)
    is_ours = (folder / CONFIG).exists()  # else no run put these folders there
    for name in (PERSONAL, f".{PERSONAL}.part", BEST) if is_ours else ():
        shutil.rmtree(folder / name, ignore_errors=True)
    if is_ours and place.is_dir():
        old.mkdir()
        for part in place.iterdir():
            if part.name != LOCK:
                os.replace(part, old / part.name)  # in one step: half a state must not pass for a state
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    if old.is_dir():
        shutil.rmtree(old)
    if checkpoint:
        place.mkdir(exist_ok=True)


# --- files written in one step ------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, whose file takes the place of ``path`` once it is complete."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            yield temporary
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns the system's error about a file that cannot be written into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        if not path.parent.is_dir():
            raise EvenhandError(
                f"{path.parent} was moved or deleted while it was being written: its results are lost, so repeat the "
                "run, or resume it where it is now."
            ) from error
        raise EvenhandError(f"{path} could not be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Replaces the file in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def json_text(value: Mapping[str, Any]) -> str:
    """``value`` as indented JSON; NaN and infinities become null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # File names may hold bytes that are not text, which Python keeps as lone surrogates: JSON has an escape for them.
    return text.encode("utf-8", "backslashreplace").decode()


def metrics_text(history: Mapping[str, Vector]) -> str:
    """All evaluations so far, each as :func:`append_metrics` writes it."""
    return "".join(_line(history, i) for i in range(len(history["round"])))


def append_metrics(folder: Path, history: Mapping[str, Vector]) -> None:
    """Appends the last evaluation as one line, which is in the file when this returns."""
    path = folder / METRICS
    with writing(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(_line(history, -1))


def _line(history: Mapping[str, Vector], index: int) -> str:
    row = {name: values[index] for name, values in history.items()}
    if row["round"] == 0:
        row = {name: value for name, value in row.items() if not np.isnan(value)}
    return json.dumps(_plain(row), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """``value`` in the types that JSON knows; NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


# --- files read back ----------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``."""
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    if path.stat().st_size > _LONGEST_JSON:
        raise EvenhandError(f"{path} is not what `evenhand run` writes (it is too long): restore it.")
    value = _object(path.read_bytes(), str(path), parse_int=_short, parse_float=_finite)
    if _is_deeper(value, _DEEPEST_JSON):
        raise EvenhandError(
            f"{path} is not what `evenhand run` writes (it is nested too deeply): restore it."
        )
    return value


def read_metrics(folder: Path, length: int | None = None) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """The columns of ``metrics.jsonl``, ``(evaluations,)`` each; NaN where a value is null or absent.

    Args:
      folder: the run folder.
      length: how many bytes of the file count; None: all.
    """
    path = folder / METRICS
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    with path.open("rb") as file:
        lines = file.read(-1 if length is None else length).splitlines()
    rows = [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise EvenhandError(f"{path} holds no evaluations: repeat the run.")
    names = dict.fromkeys(name for row in rows for name in row)
    if "round" not in names:
        raise EvenhandError(f"{path} names no rounds: restore it or repeat the run.")
    return {
        name: np.array([_number(row.get(name), f"{path}: {name}") for row in rows], np.float64)
        for name in names
    }


def last_round(folder: Path) -> int:
    """The last round that has metrics, 0 if there is none; a line that a kill cut short does not count."""
    path = folder / METRICS
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for line in reversed(lines):
        with suppress(EvenhandError):
            match _object(line, str(path)):
                case {"round": int(number)}:
                    return number
                case _:
                    pass
    return 0


def _number(value: Any, where: str) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        raise EvenhandError(f"{where} is not a number ({value!s:.40}): restore it or repeat the run.")
    return float(value)


def _object(
    text: bytes,
    where: str,
    parse_int: Callable[[str], int] | None = None,
    parse_float: Callable[[str], float] | None = None,
) -> dict[str, Any]:
    try:
        value = json.loads(
            text.decode(), parse_constant=_finite, parse_int=parse_int, parse_float=parse_float
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not JSON, not UTF-8, or numbers of 5,000 digits
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


def dict_in(of: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object under ``name``, empty if there is none."""
    value = of.get(name)
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


# --- checksums: whether the files are those that the run wrote ----------------------------------------------


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


def begin_checksums(folder: Path, *, config: str, metrics: str) -> None:
    """Prepares for a new ``config.json`` and ``metrics.jsonl``; old results stay if ``metrics`` begins with theirs."""
    sums = _known_sums(folder) or {}
    old, text = sums.get(METRICS), metrics.encode()
    if old is None or old != sum_of(text[: old.length]):
        sums = {}
    _write_sums(folder, {**sums, CONFIG: sum_of(config.encode())})


def reopen_checksums(folder: Path) -> None:
    """Prepares for new results: there are none until they are sealed."""
    _write_sums(folder, {CONFIG: _config_sum(folder)})


def seal(folder: Path) -> None:
    """Records the checksums of complete results."""
    names = [*_RESULTS, *(name for name in _PERHAPS if (folder / name).exists())]
    sums = {name: sum_of_file(folder / name, (folder / name).stat().st_size) for name in names}
    _write_sums(folder, {CONFIG: _config_sum(folder), **sums})


def seal_part(folder: Path) -> None:
    """Records the checksums of results that are not yet those of a run, such as of its best round so far."""
    names = [name for name in (*_RESULTS, *_PERHAPS) if (folder / name).exists()]
    _write_sums(folder, {name: sum_of_file(folder / name, (folder / name).stat().st_size) for name in names})


def is_whole(folder: Path) -> bool:
    """Whether the files that :func:`seal_part` has sealed are as they were."""
    sums = _parsed_sums(folder)
    return sums is not None and not _damaged(folder, sums)


def sound_condition(folder: Path) -> Condition:
    """The state of a run folder whose results can be used.

    Raises:
      EvenhandError: there are none yet, or they are damaged.
    """
    condition = condition_of(folder)
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


def condition_of(folder: Path) -> Condition:
    """The state of a run folder that has a ``config.json``."""
    if not (folder / CHECKSUMS).exists():
        return Condition("unchecked" if (folder / SUMMARY).exists() else "none")
    sums = _known_sums(folder)
    if sums is None:
        return Condition("sealed", damaged=(CHECKSUMS,))
    wrong = _damaged(folder, sums)
    edited, damaged = CONFIG in wrong, tuple(name for name in sums if name in wrong - {CONFIG})
    if METRICS not in sums:
        return Condition("none", is_edited=edited)
    length = sums[METRICS].length
    return Condition("sealed", damaged, edited, length, _size(folder / METRICS) > length)


def _damaged(folder: Path, sums: Mapping[str, Sum]) -> set[str]:
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
    sums = _known_sums(folder)
    if sums is None:
        raise EvenhandError(
            f"{folder / CHECKSUMS} was damaged while the run was writing there: `evenhand resume {folder}` "
            "completes it."
        )
    return sums[CONFIG]


def _known_sums(folder: Path) -> dict[str, Sum] | None:
    """The recorded checksums of a run folder; None if the file is missing or damaged."""
    sums = _parsed_sums(folder)
    is_known = sums is not None and set(sums) - set(_PERHAPS) in ({CONFIG}, {CONFIG, *_RESULTS})
    return sums if is_known else None


def _parsed_sums(folder: Path) -> dict[str, Sum] | None:
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


def _write_sums(folder: Path, sums: Mapping[str, Sum]) -> None:
    value = {name: {"bytes": of.length, "sha256": of.sha256} for name, of in sums.items()}
    write_text(folder / CHECKSUMS, json_text(value))
