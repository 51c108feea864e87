"""The run folder: files that say what was run, how it went, and what each client got.

* ``config.json``: the method, every option, the versions and a fingerprint of the data;
  ``evenhand run --config`` makes the same run from it.
* ``metrics.jsonl``: one JSON object per evaluation, appended as the run goes.
* ``clients.csv``: one line per client.
* ``params.npz``: the parameters of the global model, by names such as ``dense/kernel``;
  ``flax.traverse_util.unflatten_dict(dict(numpy.load(path)), sep="/")`` is what ``Model.apply`` takes.
* ``summary.json``: how the run ended, and the summary over clients of each metric.
* ``report.html``: the figures; it is written last, so that a folder which has it is whole.
* ``checkpoint/``: the latest state, which ``evenhand resume`` goes on from; empty before the first save.

A number that is not finite is ``null`` in the JSON files, and one that does not exist before the first round is left
out at round 0.  Each file is replaced in one step: a kill at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.errors import EvenhandError

__all__ = [
    "CHECKPOINT",
    "CLIENTS",
    "CONFIG",
    "METRICS",
    "PARAMS",
    "REPORT",
    "SUMMARY",
    "append_metrics",
    "check_free",
    "claim",
    "read_json",
    "read_metrics",
    "replacing",
    "write_json",
    "write_metrics",
]

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CLIENTS = "clients.csv"
PARAMS = "params.npz"
SUMMARY = "summary.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"

_FILES = (CONFIG, METRICS, CLIENTS, PARAMS, SUMMARY, REPORT)

Vector = np.ndarray[Any, np.dtype[Any]]


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder that holds something, unless it may be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise EvenhandError(f"--out {folder} is a file: name a folder that is new or empty.")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        resume = f", or go on with `evenhand resume {folder}`" if (folder / CHECKPOINT).is_dir() else ""
        raise EvenhandError(f"--out {folder} is not empty: name another folder, or add --overwrite{resume}.")


def claim(folder: Path, *, checkpoint: bool) -> None:
    """Makes the folder; an earlier run's files in it go, anybody else's stay.

    Args:
      folder: the run folder.
      checkpoint: whether the run keeps a checkpoint in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = folder / f".{CHECKPOINT}.old"
    if (folder / CONFIG).exists() and (folder / CHECKPOINT).is_dir():  # else it was no run that put it there
        os.replace(folder / CHECKPOINT, old)  # in one step: half a checkpoint must never be taken for one
    if old.is_dir():
        shutil.rmtree(old)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    if checkpoint:
        (folder / CHECKPOINT).mkdir(exist_ok=True)


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, whose file takes the place of ``path`` once it is whole."""
    temporary = path.with_name(f".{path.name}.part")
    yield temporary
    os.replace(temporary, path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """``value`` as indented JSON; NaN and infinities become null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def write_metrics(folder: Path, history: Mapping[str, Vector]) -> None:
    """All evaluations so far, each as :func:`append_metrics` writes it."""
    count = len(history["round"])
    with replacing(folder / METRICS) as temporary:
        temporary.write_text("".join(_line(history, i) for i in range(count)), encoding="utf-8")


def append_metrics(folder: Path, history: Mapping[str, Vector]) -> None:
    """The last evaluation as one line, on disk when this returns."""
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(_line(history, -1))


def _line(history: Mapping[str, Vector], index: int) -> str:
    row = {name: values[index] for name, values in history.items()}
    if row["round"] == 0:
        row = {name: value for name, value in row.items() if not np.isnan(value)}
    return json.dumps(_plain(row), allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``."""
    if not path.exists():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    return _object(path.read_text(encoding="utf-8", errors="replace"), str(path))


def read_metrics(folder: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """The columns of ``metrics.jsonl``, ``(evaluations,)`` each; NaN where a value is null or absent."""
    path = folder / METRICS
    if not path.exists():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise EvenhandError(f"{path} holds no evaluation: repeat the run.")
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return {name: np.array([_number(row.get(name)) for row in rows], np.float64) for name in names}
    except (TypeError, ValueError) as error:
        raise EvenhandError(f"{path} holds a value that is no number ({error}): repeat the run.") from None


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise EvenhandError(f"{where} is not JSON ({error}): restore it or repeat the run.") from None
    if not isinstance(value, dict):
        raise EvenhandError(f"{where} holds no JSON object: restore it or repeat the run.")
    return value


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
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
