"""Writing a study's files."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import numpy as np

from evenhand.errors import EvenhandError, StorageError
from evenhand.evaluation import Finding
from evenhand.records import SHA256, NewerFormat, check_format, is_sealed, resealed, stamped, write_text
from evenhand.report import RunView
from evenhand.simulation.folder import CONFIG
from evenhand.studies._selection import Outcome, Rule, Setting, Status, shown

_STUDY, _PLAN, _RESULT = "study.json", "plan.json", "result.json"
_CHECKPOINT, _NOTES = "checkpoint", "measures.json"
_UNSEALED = {
    _STUDY: {"rule", "baseline", "metric", "notes", "about", "runs"},
    _RESULT: {"identity", "setting", "seed", "status", "reason", "measures", "view"},
}
"""What the files of earlier versions have in them, at most."""
_LATER = {"attack", "data (every row, and the clients' names)"}
"""What earlier versions did not save of a run's identity."""
_NEWER = {
    "model (its first parameters and its metrics)",
    "attack (its fraction and clients)",
    "method (the states that it begins with)",
}
"""What version 0.2 did not save of it."""
UNASKED = {"untrained": "global", "start": "the model's own"}
"""What runs do unasked, of their identity: results of earlier versions do not say so."""
_IN_COMMON = ("examples", "rounds")
"""What studies of one folder have in common, of what a study says about its runs; the user may name the data."""
_REPEATED = "delete it, and the run is repeated"
_T = TypeVar("_T")


class _Damaged(Exception):
    """What is wrong with a file, to go into brackets."""


class Store:
    """Reads and writes the results of a study's runs.

    Args:
      folder: the study's folder; it is made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unsealed = 0
        # Of the results that were read or written, by the names of the runs' folders.
        self._checksums: dict[str, str | None] = {}

    def check_free(self, runs: Iterable[tuple[Setting, int]], about: Mapping[str, Any]) -> None:
        """Refuses the folder of a run, or of a study of other data, whose list of runs this study would replace.

        A study that has one of the ``runs`` is compared by its result.
        """
        if (self.folder / CONFIG).is_file():
            raise EvenhandError(f"{self.folder} is the folder of a run: give another one.")
        path = self.folder / _STUDY
        if not path.is_file() or any(self.has(*run) for run in runs):
            return
        try:
            saved = dict(json.loads(path.read_text(encoding="utf-8"))["about"])
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
        ):  # damaged, or of an earlier version: it is written anew
            return
        for name in _IN_COMMON:
            value = about.get(name)
            if value is not None and saved.get(name, value) != value:
                raise EvenhandError(
                    f"{path} is of another study (its {name} is {saved[name]}, not {value}): give another folder, or "
                    "delete that file."
                )

    def checkpoint(self, setting: Setting, seed: int) -> Path:
        """Where a run keeps its state until it has a result; whole, as workers may be in other working directories."""
        return (self._place(setting, seed) / _CHECKPOINT).absolute()

    def has(self, setting: Setting, seed: int) -> bool:
        """Whether there is a result of a run, whatever it is."""
        return (self._place(setting, seed) / _RESULT).is_file()

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

        def parts(content: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], str | None], Outcome]:
            place = {"setting": content["setting"], "seed": content["seed"]}
            saved = UNASKED | content["identity"] | place
            return (saved, content.get(SHA256)), _outcome(setting, seed, content)

        ((saved, checksum), outcome), is_old = self._read(path, _UNSEALED[_RESULT], _REPEATED, parts)
        if outcome.status == "failed" and "data" not in saved:
            # The method could not be set up, so that nothing says which run it was: it is tried again once it can be.
            if "data" in identity:
                return None
            identity = {}
        later = (_NEWER | _LATER if is_old else _NEWER) - set(saved)
        for name, value in {"setting": str(setting), "seed": seed, **identity}.items():
            if name not in later and saved.get(name) != value:
                raise EvenhandError(
                    f"{path} is of another run (its {name} is {saved.get(name)}, not {value}): give another folder, or "
                    f"delete that file."
                )
        if rung is None:
            self._checksums[path.parent.name] = checksum
        return outcome

    def save(
        self,
        outcome: Outcome,
        identity: Mapping[str, Any],
        rung: int | None = None,
        *,
        keeps_state: bool = False,
    ) -> None:
        """Writes a result in one step, and drops the checkpoint of a run that goes no further, unless it is kept."""
        place = self._place(outcome.setting, outcome.seed)
        value = resealed(stamped({"identity": dict(identity), **_plain(outcome)}))
        text = json.dumps(value, allow_nan=True) + "\n"
        write(place / _named(rung), text, f"The result of {outcome.setting}, seed {outcome.seed},")
        if rung is None:
            self._checksums[place.name] = value[SHA256]
            if not keeps_state:
                shutil.rmtree(place / _CHECKPOINT, ignore_errors=True)
            (place / _NOTES).unlink(missing_ok=True)

    def notes(self, setting: Setting, seed: int) -> dict[int, dict[str, float]]:
        """What :meth:`note` wrote of a run that has not ended."""
        path = self._place(setting, seed) / _NOTES
        if not path.is_file():
            return {}

        def parts(content: Mapping[str, Any]) -> dict[int, dict[str, float]]:
            if SHA256 in content and (content["setting"], content["seed"]) != (str(setting), seed):
                raise _Damaged("it is of another run")
            numbers = content["measures"] if SHA256 in content else content
            return {int(now): {str(k): float(v) for k, v in row.items()} for now, row in numbers.items()}

        return self._read(path, None, "delete the folder that it is in, and the run is repeated", parts)[0]

    def note(self, setting: Setting, seed: int, measured: Mapping[int, Mapping[str, float]]) -> None:
        """Keeps what was measured of a run by each of its evaluations until it ends."""
        measures = {str(now): dict(row) for now, row in measured.items()}
        text = json.dumps(resealed({"setting": str(setting), "seed": seed, "measures": measures}))
        write(self._place(setting, seed) / _NOTES, text, f"What was measured of {setting}")

    def plan(self, runs: Sequence[tuple[Setting, int]]) -> list[list[int]]:
        """Positions of runs that train together, batch by batch.

        A run that the folder has planned before stays in its batch, whether or not it has ended since: the columns in
        which runs train decide how their numbers are rounded.  The others become a new batch, those of them that have
        a result apart.
        """
        path, position = self.folder / _PLAN, {self._place(*run).name: i for i, run in enumerate(runs)}
        recorded: list[list[str]] = []
        if path.is_file():
            words = "delete it; finished runs are kept, and the last bits of the others may differ"

            def parts(content: Mapping[str, Any]) -> list[list[str]]:
                return [[str(name) for name in batch] for batch in content["batches"]]

            recorded = self._read(path, set(), words, parts)[0]
        old = {name for batch in recorded for name in batch}
        fresh = [name for name in position if name not in old]
        ended = [name for name in fresh if self.has(*runs[position[name]])]
        batches = [*recorded, ended, [name for name in fresh if name not in set(ended)]]
        if fresh:
            text = json.dumps(resealed({"batches": [batch for batch in batches if batch]}), indent=1) + "\n"
            write(path, text, "The plan of the runs")
        positions = [[position[name] for name in names if name in position] for names in batches]
        return [batch for batch in positions if batch]

    def describe(self, outcomes: Sequence[Outcome], fields: Mapping[str, Any]) -> None:
        """Writes which runs the study has, and its other ``fields``: rule, baseline, metric, notes, ..."""
        runs = [
            {
                "method": outcome.setting.method,
                "numbers": {name: _constant(value) for name, value in outcome.setting.numbers.items()},
                "case": dict(outcome.setting.case),
                "name": str(outcome.setting),
                "seed": outcome.seed,
                SHA256: self._checksums.get(self._place(outcome.setting, outcome.seed).name),
            }
            for outcome in outcomes
        ]
        about = {name: _constant(value) for name, value in fields["about"].items()}
        value = resealed(stamped({**fields, "rule": fields["rule"]._asdict(), "about": about, "runs": runs}))
        write(self.folder / _STUDY, json.dumps(value, indent=1) + "\n", "The list of runs")

    def remark(self) -> str:
        """A sentence on the files that an earlier version wrote; empty where none was read."""
        if not self._unsealed:
            return ""
        are = "file has no checksum" if self._unsealed == 1 else "files have no checksums"
        return (
            f"{self._unsealed} of the study's {are} (an earlier version of Evenhand wrote them), so damage to them "
            "would go unnoticed."
        )

    def described(self) -> dict[str, Any]:
        """What :meth:`describe` wrote, by name, with the results as ``outcomes``.

        Raises:
          EvenhandError: there is none, some results are missing, or a file is damaged.
        """
        if not (self.folder / _STUDY).is_file():
            raise EvenhandError(f"{self.folder} has no {_STUDY}: name the folder of a finished study.")

        def parts(content: Mapping[str, Any]) -> tuple[list[tuple[Setting, int, Any]], dict[str, Any]]:
            runs: list[tuple[Setting, int, Any]] = []
            for run in content["runs"]:
                setting = Setting(str(run["method"]), dict(run["numbers"]), dict(run["case"]))
                checksum = run.get(SHA256) if SHA256 in content else None  # earlier versions did not list it
                runs.append((setting, int(run["seed"]), checksum))
            if content["baseline"] not in {setting.method for setting, *_ in runs}:
                raise _Damaged("it has no runs of its baseline")
            if not isinstance(content["metric"], str):
                raise _Damaged("its metric is not a name")
            return runs, {
                "rule": Rule(**content["rule"]).checked(),
                "baseline": content["baseline"],
                "metric": content["metric"],
                "notes": tuple(str(note) for note in content["notes"]),
                "about": dict(content.get("about", {})),
                "tuning_seeds": tuple(int(seed) for seed in content.get("tuning_seeds", ())),
            }

        words = "start the study again, which repeats no finished run"
        (runs, fields), _ = self._read(self.folder / _STUDY, _UNSEALED[_STUDY], words, parts)
        outcomes = [self._listed(*run) for run in runs]
        whole = tuple(outcome for outcome in outcomes if outcome is not None)
        if lost := len(outcomes) - len(whole):
            raise EvenhandError(
                f"{self.folder} lacks {lost} of its {len(outcomes)} results: start the study again for them."
            )
        return {"outcomes": whole, **fields}

    def _listed(self, setting: Setting, seed: int, checksum: object) -> Outcome | None:
        """A result, which must be the one whose checksum the study lists, if it lists any."""
        outcome, place = self.load(setting, seed, {}), self._place(setting, seed)
        if outcome is not None and checksum is not None and checksum != self._checksums[place.name]:
            raise EvenhandError(
                f"{place / _RESULT} is not the result that {_STUDY} lists: start the study again, which checks "
                "whether it belongs to this study."
            )
        return outcome

    def _read(
        self, path: Path, unsealed: set[str] | None, advice: str, parts: Callable[[Mapping[str, Any]], _T]
    ) -> tuple[_T, bool]:
        """The parts of a JSON file, and whether an earlier version wrote it, without a checksum.

        Such a file has at most the names in ``unsealed``, so that one whose checksum is damaged does not pass for it;
        None: it has rounds for names.
        """
        try:
            text = path.read_text("utf-8")
            content = json.loads(text)
            check_format(path, content)
            is_old = SHA256 not in content
            names = set(filter(str.isdecimal, content)) if unsealed is None else unsealed
            # A digit that changes no value, such as a seventeenth, is noticed by the text.
            layouts = (json.dumps(content), json.dumps(content, indent=1))
            if set(content) - names if is_old else not (is_sealed(content) and text.rstrip("\n") in layouts):
                raise _Damaged("it does not match its checksum")
            value = parts(content)
        except NewerFormat:
            raise
        except OSError as error:
            raise EvenhandError(f"{path} cannot be read ({error.strerror or error}).") from None
        except Exception as error:  # a damaged file may hold anything, nested however deep
            words = error if isinstance(error, _Damaged) else type(error).__name__
            raise EvenhandError(f"{path} is damaged ({words}): {advice}.") from None
        self._unsealed += is_old
        return value, is_old

    def _place(self, setting: Setting, seed: int) -> Path:
        text = str(setting)
        slug = re.sub(r"[^\w.=-]+", "-", text).strip("-")
        # A file system counts bytes, of which a name has at most 255.
        slug = slug[:80].encode()[:220].decode(errors="ignore")
        return self.folder / "runs" / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-seed-{seed}"


def _named(rung: int | None) -> str:
    return _RESULT if rung is None else f"rounds-{rung}.json"


def _constant(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else shown(value)


# --- an outcome as JSON ---------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """An outcome, or a part of one, in the types of JSON."""
    if isinstance(value, Setting):
        return str(value)
    parts = value._asdict() if isinstance(value, Outcome | RunView | Finding) else value
    if isinstance(parts, Mapping):
        return {name: _plain(part) for name, part in cast(Mapping[str, Any], parts).items()}
    if isinstance(parts, list | tuple):
        return [_plain(part) for part in cast(Sequence[Any], parts)]
    return np.asarray(parts).tolist() if hasattr(parts, "tolist") else parts


def _outcome(setting: Setting, seed: int, content: Mapping[str, Any]) -> Outcome:
    saved = content["view"]
    view = saved and RunView(
        title=saved["title"],
        history=_arrays(saved["history"]) | {"round": np.array(saved["history"]["round"], np.int64)},
        sizes={split: np.array(rows, np.int64) for split, rows in saved["sizes"].items()},
        client_ids=tuple(saved["client_ids"]),
        clients={split: _arrays(metrics) for split, metrics in saved["clients"].items()},
        info=saved["info"],
        config=saved["config"],
        classes={split: _arrays(columns) for split, columns in saved["classes"].items()},
        findings=tuple(Finding(**finding) for finding in saved["findings"]),
        malicious=None if saved.get("malicious") is None else np.array(saved["malicious"], bool),
        last_round=None if saved.get("last_round") is None else np.array(saved["last_round"], np.int64),
        level=None if saved.get("level") is None else np.array(saved["level"], np.str_),
        availability=None
        if saved.get("availability") is None
        else np.array(saved["availability"], np.float64),
    )
    if view is not None:
        _check_form(view)
    if content["status"] not in get_args(Status) or not isinstance(content["reason"], str):
        raise _Damaged("it has no status")
    measures = _arrays(content.get("measures", {}))
    return Outcome(
        setting=setting,
        seed=seed,
        status=content["status"],
        reason=content["reason"],
        view=view,
        measures=measures,
    )


def _check_form(view: RunView) -> None:
    """Refuses a file without a checksum whose columns do not fit together, which would fail later, without its name."""
    clients, rows = (len(view.client_ids),), view.history["round"].shape
    columns = (view.malicious, view.last_round, view.level, view.availability)
    per_client = [values for values in columns if values is not None]
    for columns in (view.sizes, *view.clients.values(), *view.classes.values()):
        per_client += columns.values()
    fit = all(values.shape == clients for values in per_client) and len(rows) == 1 and rows[0] > 0
    fit = fit and all(values.shape == rows for values in view.history.values())
    if not (fit and isinstance(view.info, dict) and isinstance(view.config, dict)):
        raise _Damaged("its columns do not fit together")


def _arrays(columns: Mapping[str, list[Any]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    return {name: np.array(values, np.float64) for name, values in columns.items()}


# --- files ----------------------------------------------------------------------------------------------------


def write(path: Path, text: str, subject: str) -> None:
    """Writes a file in one step, so that none is ever half there.

    Args:
      path: the file; its folder is made.
      text: what is written.
      subject: what that is, to begin a sentence with.

    Raises:
      StorageError: it could not be written, as on a full disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise StorageError(
            f"{subject} could not be written in {path.parent} ({error.strerror or error}): {remedy(error)} and start "
            f"again; finished runs are kept."
        ) from error


def remedy(error: OSError) -> str:
    """What to do about a folder that takes no file."""
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return "make the folder writable"
    return "make room"
