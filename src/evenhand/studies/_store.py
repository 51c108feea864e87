"""The folder of a study: one folder per run, which holds its result or the checkpoint from which it resumes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.evaluation import Finding
from evenhand.report import RunView
from evenhand.studies._files import write
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting, shown
from evenhand.studies._select import Rule
from evenhand.studies._study import Study

__all__ = ["Store", "load"]

_STUDY, _RESULT = "study.json", "result.json"
_CHECKPOINT, _NOTES = "checkpoint", "measures.json"


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

    def load(
        self, setting: Setting, seed: int, identity: Mapping[str, Any], rung: int | None = None
    ) -> Outcome | None:
        """The result of a run that has ended, or that has come to a rung of :class:`Halving`; None where there is none.

        Raises:
          EvenhandError: the folder has the result of another run under this name, or the file is damaged.
        """
        path = self._place(setting, seed) / _named(rung)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            # Results of earlier versions do not say what untrained clients are served.
            known, outcome = {"untrained": "global", **found["identity"]}, _outcome(setting, seed, found)
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

    def save(self, outcome: Outcome, identity: Mapping[str, Any], rung: int | None = None) -> None:
        """Writes a result in one step, and drops the checkpoint of a run that goes no further."""
        place = self._place(outcome.setting, outcome.seed)
        text = json.dumps({"identity": dict(identity), **_plain(outcome)}, indent=None, allow_nan=True) + "\n"
        write(place / _named(rung), text, f"The result of {outcome.setting}, seed {outcome.seed},")
        if rung is None:
            shutil.rmtree(place / _CHECKPOINT, ignore_errors=True)
            (place / _NOTES).unlink(missing_ok=True)

    def notes(self, setting: Setting, seed: int) -> dict[int, dict[str, float]]:
        """What :meth:`note` wrote of a run that has not ended."""
        path = self._place(setting, seed) / _NOTES
        try:
            return {int(now): told for now, told in json.loads(path.read_text("utf-8")).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise EvenhandError(
                f"{path} is damaged ({type(error).__name__}): delete the folder that it is in, and the run is repeated."
            ) from None

    def note(self, setting: Setting, seed: int, told: Mapping[int, Mapping[str, float]]) -> None:
        """Keeps what was measured of a run by each of its evaluations until it ends."""
        write(self._place(setting, seed) / _NOTES, json.dumps(told), f"What was measured of {setting}")

    def describe(self, study: Study) -> None:
        """Writes which runs the study has, and how it chooses, so that :func:`load` finds them."""
        runs = [
            {
                "method": each.setting.method,
                "numbers": {name: _constant(value) for name, value in each.setting.numbers.items()},
                "case": dict(each.setting.case),
                "name": str(each.setting),
                "seed": each.seed,
            }
            for each in study.outcomes
        ]
        how = {"baseline": study.baseline, "metric": study.metric, "notes": study.notes}
        how |= {"about": {name: _constant(value) for name, value in study.about.items()}}
        text = json.dumps({"rule": study.rule._asdict(), **how, "runs": runs}, indent=1) + "\n"
        write(self.folder / _STUDY, text, "The list of runs")

    def _place(self, setting: Setting, seed: int) -> Path:
        text = str(setting)
        slug = re.sub(r"[^\w.=-]+", "-", text).strip("-")[:80]
        return self.folder / "runs" / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-seed-{seed}"


def load(folder: str | Path) -> Study:
    """The study that ``study(..., folder=...)`` has written; hyper-parameters that are no constants come as text.

    Raises:
      EvenhandError: there is no study, it has not ended, or a file is damaged.
    """
    path = Path(folder) / _STUDY
    if not path.is_file():
        raise EvenhandError(f"{folder} has no {_STUDY}: name the folder of a study that has ended.")
    store = Store(Path(folder))
    try:
        found = json.loads(path.read_text("utf-8"))
        outcomes = [
            store.load(Setting(each["method"], each["numbers"], each["case"]), each["seed"], {})
            for each in found["runs"]
        ]
        how = Rule(**found["rule"]), found["baseline"], found["metric"], tuple(found["notes"])
        about = dict(found.get("about", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise EvenhandError(
            f"{path} is damaged ({type(error).__name__}): start the study again, which repeats no finished run."
        ) from None
    known = tuple(each for each in outcomes if each is not None)
    if lost := len(outcomes) - len(known):
        raise EvenhandError(
            f"{folder} lacks {lost} of its {len(outcomes)} results: start the study again for them."
        )
    return Study(known, *how, about)


def _named(rung: int | None) -> str:
    return _RESULT if rung is None else f"rounds-{rung}.json"


def _constant(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else shown(value)


def _plain(outcome: Outcome) -> dict[str, Any]:
    view = outcome.view
    return {
        "setting": str(outcome.setting),
        "seed": outcome.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "measures": _lists(outcome.measures),
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
            "malicious": None if view.malicious is None else view.malicious.tolist(),
            "last_round": None if view.last_round is None else view.last_round.tolist(),
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
        None if of.get("malicious") is None else np.array(of["malicious"], bool),
        last_round=None if of.get("last_round") is None else np.array(of["last_round"], np.int64),
    )
    measures = _arrays(found.get("measures", {}))
    return Outcome(setting, seed, found["status"], found["reason"], view, measures)


def _lists(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: np.asarray(values).tolist() for name, values in columns.items()}


def _arrays(columns: Mapping[str, list[Any]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    return {name: np.array(values, np.float64) for name, values in columns.items()}
