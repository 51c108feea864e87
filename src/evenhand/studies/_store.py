"""The folder of a study: one folder per run, which holds its result or the checkpoint from which it resumes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.evaluation import Finding
from evenhand.report import RunView
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting

__all__ = ["Store"]

_RESULT = "result.json"
_CHECKPOINT = "checkpoint"


class Store:
    """Reads and writes the results of a study's runs.

    Args:
      folder: the study's folder; it is made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(self, setting: Setting, seed: int) -> Path:
        """Where a run keeps its state until it has a result."""
        return self._place(setting, seed) / _CHECKPOINT

    def load(self, setting: Setting, seed: int, identity: Mapping[str, Any]) -> Outcome | None:
        """The result of a run that has ended, or None.

        Raises:
          EvenhandError: the folder has the result of another run under this name, or the file is damaged.
        """
        path = self._place(setting, seed) / _RESULT
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            known, outcome = found["identity"], _outcome(setting, seed, found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EvenhandError(
                f"{path} is damaged ({type(error).__name__}): delete it, and the run is repeated."
            ) from None
        for name, value in identity.items():
            if known.get(name) != value:
                raise EvenhandError(
                    f"{path} is of another run (its {name} is {known.get(name)}, not {value}): give another folder, or "
                    f"delete that file."
                )
        return outcome

    def save(self, outcome: Outcome, identity: Mapping[str, Any]) -> None:
        """Writes a result in one step, and drops the run's checkpoint."""
        place = self._place(outcome.setting, outcome.seed)
        text = json.dumps({"identity": dict(identity), **_plain(outcome)}, indent=None, allow_nan=True) + "\n"
        temporary = place / f".{_RESULT}.part"
        try:
            place.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, "utf-8")
            os.replace(temporary, place / _RESULT)
        except OSError as error:
            raise EvenhandError(
                f"The result of {outcome.setting}, seed {outcome.seed}, could not be written in {place} "
                f"({error.strerror or error}): make room and start again; finished runs are kept."
            ) from error
        shutil.rmtree(place / _CHECKPOINT, ignore_errors=True)

    def _place(self, setting: Setting, seed: int) -> Path:
        text = str(setting)
        slug = re.sub(r"[^\w.=-]+", "-", text).strip("-")[:80]
        return self.folder / "runs" / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-seed-{seed}"


def _plain(outcome: Outcome) -> dict[str, Any]:
    view = outcome.view
    return {
        "setting": str(outcome.setting),
        "seed": outcome.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "view": None
        if view is None
        else {
            "title": view.title,
            "history": _lists(view.history),
            "sizes": _lists(view.sizes),
            "client_ids": list(view.client_ids),
            "clients": {split: _lists(metrics) for split, metrics in view.clients.items()},
            "classes": {split: _lists(columns) for split, columns in view.classes.items()},
            "info": view.info,
            "config": view.config,
            "findings": [finding._asdict() for finding in view.findings],
        },
    }


def _outcome(setting: Setting, seed: int, found: Mapping[str, Any]) -> Outcome:
    of = found["view"]
    view = of and RunView(
        of["title"],
        _arrays(of["history"]) | {"round": np.array(of["history"]["round"], np.int64)},
        {split: np.array(rows, np.int64) for split, rows in of["sizes"].items()},
        tuple(of["client_ids"]),
        {split: _arrays(metrics) for split, metrics in of["clients"].items()},
        of["info"],
        of["config"],
        {split: _arrays(columns) for split, columns in of["classes"].items()},
        tuple(Finding(**finding) for finding in of["findings"]),
    )
    return Outcome(setting, seed, found["status"], found["reason"], view)


def _lists(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: np.asarray(values).tolist() for name, values in columns.items()}


def _arrays(columns: Mapping[str, list[Any]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    return {name: np.array(values, np.float64) for name, values in columns.items()}
