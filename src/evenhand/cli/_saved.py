"""A run folder read back, as what reports and comparisons show."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.cli._folder import CLIENTS, CONFIG, SUMMARY, read_json, read_metrics
from evenhand.errors import EvenhandError
from evenhand.evaluation import RunView
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
    """

    folder: Path
    view: RunView
    interrupted: bool
    fingerprint: str


def load_run(folder: Path) -> SavedRun:
    """The run in ``folder``.

    Raises:
      EvenhandError: a file is missing or damaged.
    """
    config, summary = read_json(folder / CONFIG), read_json(folder / SUMMARY)
    history = read_metrics(folder)
    ids, columns = _read_clients(folder / CLIENTS)
    try:
        method, options, data = config["method"], config["options"], config["data"]
        info = {
            "method": method["name"],
            "data": data["name"],
            "rounds": summary["rounds"],
            "cohort": summary["cohort"],
            "seed": options["seed"],
            "fingerprint": str(data["fingerprint"]),
            "seconds": summary["seconds"],
            "examples_per_second": summary.get("examples_per_second"),
            "padded": summary.get("padded"),
            "command": f"evenhand run --config {shlex.quote(str(folder / CONFIG))}",
            "versions": config["versions"],
        }
        view = RunView(
            title=_title(method),
            history=history,
            sizes={split: columns[f"{split}_rows"] for split in SPLITS if f"{split}_rows" in columns},
            client_ids=ids,
            clients={split: _metrics(columns, split) for split in SPLITS},
            info=info,
            config={"method": method, **options},
            classes={split: found for split in SPLITS if (found := _classes(columns, split))},
        )
        return SavedRun(folder, view, bool(summary["interrupted"]), str(data["fingerprint"]))
    except (KeyError, TypeError):
        raise EvenhandError(
            f"{folder}: {CONFIG} or {SUMMARY} is not what `evenhand run` writes: repeat the run."
        ) from None


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
    if not path.exists():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
        header, *lines = list(csv.reader(file)) or [[]]
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
        raise EvenhandError(f"{path} holds a field that is no number ({error}): repeat the run.") from None
    columns = table.reshape(len(lines), len(header) - 1).T
    return tuple(spreadsheet_name(line[0]) for line in lines), dict(
        zip(map(spreadsheet_name, header[1:]), columns, strict=True)
    )
