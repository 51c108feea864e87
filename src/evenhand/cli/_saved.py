"""A run folder read back, as what reports and comparisons show."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from evenhand.cli._checksums import check
from evenhand.cli._folder import CHECKSUMS, CLIENTS, CONFIG, SUMMARY, read_json, read_metrics
from evenhand.errors import EvenhandError
from evenhand.evaluation import Finding, RunView
from evenhand.evaluation._classes import CLASS_COLUMNS
from evenhand.evaluation._view import SPLITS
from evenhand.text import spreadsheet_name

__all__ = ["SavedRun", "load_run"]

Vector = np.ndarray[Any, np.dtype[np.float64]]


class SavedRun(NamedTuple):
    """What a run folder holds.

    Attributes:
      folder: where it is.
      view: what is shown of it.
      interrupted: whether Ctrl-C ended it before its last round.
      fingerprint: of the data; runs with equal fingerprints had equal data.
      remarks: what a reader of the numbers should know about the folder, in sentences.
    """

    folder: Path
    view: RunView
    interrupted: bool
    fingerprint: str
    remarks: tuple[str, ...] = ()


def load_run(folder: Path) -> SavedRun:
    """The run in ``folder``.

    Raises:
      EvenhandError: there are no results yet, or a file is missing or damaged.
    """
    config = _known(folder / CONFIG, read_json(folder / CONFIG), _CONFIG)
    condition = check(folder)
    if condition.results == "none":
        raise EvenhandError(
            f"{folder} has no results yet: a run trains there, or was stopped, and `evenhand resume {folder}` "
            f"continues it."
        )
    if condition.damaged:
        raise EvenhandError(
            f"{folder / condition.damaged[0]} is damaged, for it does not match {CHECKSUMS}: "
            f"`evenhand resume {folder}` makes the results again from the checkpoint."
        )
    summary = _known(folder / SUMMARY, read_json(folder / SUMMARY), _SUMMARY)
    history = read_metrics(folder, condition.length)
    ids, columns = _read_clients(folder / CLIENTS)
    view = RunView(
        title=_title(config["method"]),
        history=history,
        sizes={split: columns[f"{split}_rows"] for split in SPLITS if f"{split}_rows" in columns},
        client_ids=ids,
        clients={split: _metrics(columns, split) for split in SPLITS},
        info=_info(folder, config, summary),
        config={"method": config["method"], **config["options"]},
        classes={split: found for split in SPLITS if (found := _classes(columns, split))},
        findings=_findings(folder / SUMMARY, summary.get("findings", [])),
    )
    remarks = tuple(condition.remarks(folder))
    return SavedRun(folder, view, summary["interrupted"], config["data"]["fingerprint"], remarks)


def _info(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": config["method"]["name"],
        "data": config["data"]["name"],
        "rounds": summary["rounds"],
        "cohort": summary["cohort"],
        "seed": config["options"]["seed"],
        "fingerprint": config["data"]["fingerprint"],
        "seconds": summary["seconds"],
        "examples_per_second": summary.get("examples_per_second"),
        "padded": summary.get("padded"),
        "by_class": summary.get("by_class"),
        "command": f"evenhand run --config {shlex.quote(str(folder / CONFIG))}",
        "versions": config["versions"],
    }


def _findings(path: Path, found: Any) -> tuple[Finding, ...]:
    """None in a folder that was written before they were looked for."""
    try:
        return tuple(Finding(each["kind"], str(each["sentence"])) for each in found)
    except (KeyError, TypeError):
        raise EvenhandError(
            f"{path} is not what `evenhand run` writes (findings): restore it or repeat the run."
        ) from None


_CONFIG = {
    "method": (dict,),
    "method.name": (str,),
    "options": (dict,),
    "options.seed": (int,),
    "data": (dict,),
    "data.name": (str,),
    "data.fingerprint": (str,),
    "versions": (dict,),
    "versions.*": (str,),
}
_SUMMARY = {
    "rounds": (int,),
    "cohort": (int,),
    "interrupted": (bool,),
    "seconds": (dict,),
    "seconds.*": (int, float),
    "examples_per_second": (int, float, NoneType),
    "padded": (int, float, NoneType),
    "by_class": (dict, NoneType),
}
"""What these files must hold, and of which type; ``*`` stands for every name."""


def _known(path: Path, of: dict[str, Any], expected: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """``of``, whose values are of the types that are relied on."""
    for name, kinds in expected.items():
        outer, _, inner = name.rpartition(".")
        within = of[outer] if outer else of
        for value in within.values() if inner == "*" else [within.get(inner)]:
            if type(value) not in kinds:
                raise EvenhandError(
                    f"{path} is not what `evenhand run` writes ({name} is {value!r:.40}): restore it or repeat the run."
                )
    return of


_SILENT = {("server_lr", 1.0), ("nu", 0.0), ("tilt_server", 0.0)}


def _title(method: dict[str, Any]) -> str:
    """``fedprox mu=1.0``; a server step of 1 goes without saying, and so does what is switched off."""
    settings = (
        f" {name}" if value is True else f" {name}={value}"
        for name, value in method.items()
        if name != "name" and value is not None and value is not False and (name, value) not in _SILENT
    )
    return method["name"] + "".join(settings)


def _metrics(columns: dict[str, Vector], split: str) -> dict[str, Vector]:
    prefix = f"{split}_"
    return {
        name.removeprefix(prefix): values
        for name, values in columns.items()
        if name.startswith(prefix) and name != f"{split}_rows" and name not in _class_columns(columns, split)
    }


def _classes(columns: dict[str, Vector], split: str) -> dict[str, Vector]:
    """What is known about classes; nothing in a folder that was written before it was measured."""
    return {name.removeprefix(f"{split}_"): columns[name] for name in _class_columns(columns, split)}


def _class_columns(columns: dict[str, Vector], split: str) -> tuple[str, ...]:
    names = tuple(f"{split}_{name}" for name in CLASS_COLUMNS)
    return names if all(name in columns for name in names) else ()


def _read_clients(path: Path) -> tuple[tuple[str, ...], dict[str, Vector]]:
    """The clients' ids, and each other column as ``(K,)`` float64 with NaN for an empty field."""
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
            header, *lines = list(csv.reader(file, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise EvenhandError(f"{path} is not a table in UTF-8 ({error}): repeat the run.") from None
    if not lines:
        raise EvenhandError(f"{path} holds no client: repeat the run.")
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise EvenhandError(
                f"{path}, line {number} has {len(line)} fields and the header {len(header)}: repeat the run."
            )
    try:
        table = np.array([[float(field or "nan") for field in line[1:]] for line in lines], np.float64)
    except ValueError as error:
        raise EvenhandError(f"{path} holds a field that is not a number ({error}): repeat the run.") from None
    columns = table.reshape(len(lines), len(header) - 1).T
    return tuple(spreadsheet_name(line[0]) for line in lines), dict(
        zip(map(spreadsheet_name, header[1:]), columns, strict=True)
    )
