"""What a run folder keeps of the training: models, the best round, and the results, read back for reports.

From top to bottom:

* The global model in ``params.npz``, and those of clients in ``personal/``.  ``personal/index.csv`` has a line for each
  client that has a model of its own: its id, the file with its parameters, its row in that file, and the file's
  SHA-256.  Up to 1,000 clients have a file each, with the arrays of ``params.npz`` (an empty row); of more clients,
  many share a file, whose arrays have a leading axis.  The index is among the files of ``checksums.json``, so damage to
  any of them is noticed.
* ``--keep``: which evaluated round the results describe, the last one or the best so far.  ``best/ROUND/`` holds
  ``clients.csv``, ``params.npz``, perhaps ``personal/``, and what ``summary.json`` says about that round, under
  checksums of their own.  It is written as soon as a round is the best so far, so that a killed run finds it again; at
  the end its files are copied into the run folder.
* Run folders, and folders of studies, read back for reports and comparisons.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from evenhand.cli._folder import (
    BEST,
    CLIENTS,
    CONFIG,
    INDEX,
    PARAMS,
    PERSONAL,
    SUMMARY,
    dict_in,
    is_whole,
    json_text,
    read_json,
    read_metrics,
    replacing,
    seal_part,
    sound_condition,
    write_text,
    writing,
)
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import SPLIT_NAMES, Finding, primary_metric, summarize
from evenhand.report import RunView, honest, read_clients_csv, statistics
from evenhand.studies import direction, load
from evenhand.text import spreadsheet_cell, spreadsheet_name
from evenhand.types import Params

__all__ = [
    "BestRound",
    "Personal",
    "Results",
    "Rule",
    "SavedRun",
    "best_so_far",
    "copied",
    "damaged_model",
    "load_run",
    "load_saved",
    "load_views",
    "personal_models",
    "read_index",
    "read_params",
    "rule_of",
    "study_in",
    "with_best",
    "write_params",
    "write_personal",
]


NDArray = npt.NDArray[Any]
Arrays = Mapping[str, NDArray]

_MOST_FILES = 1000
"""Most clients with a file each, whose name shows the client's id."""
_BLOCK = 2**24
"""Bytes of parameters in a file of several clients, about."""
_HEADER = ["client", "file", "row", "sha256"]


# --- the models ---------------------------------------------------------------------------------------------


class Personal(NamedTuple):
    """Where the model of one client is.

    Attributes:
      client: its id.
      file: the name of the file in ``personal/``.
      row: its place along the leading axis of the arrays; None: they are of this client alone.
      sha256: of the file.
    """

    client: str
    file: str
    row: int | None
    sha256: str


def write_params(path: Path, params: Params) -> None:
    """Writes the arrays of a model under slash-joined names; a single array is called ``params``."""
    with replacing(path) as temporary:
        _save(temporary, _named(params))


def read_params(path: Path, like: Params) -> Params:
    """The parameters in a file, in the structure of ``like``.

    Raises:
      EvenhandError: the file does not fit.
    """
    return _fitted(path, _load(path), like)


def write_personal(
    folder: Path, ids: Sequence[str], models: Iterable[tuple[slice, Params]], own: NDArray
) -> None:
    """Writes ``personal/``, in place of an earlier one.

    Args:
      folder: the run folder.
      ids: of all clients.
      models: the positions of some clients, and their parameters with a leading axis, until all have come.
      own: which clients have a model of their own, ``(num_clients,)``; the others are left out.
    """
    part = folder / f".{PERSONAL}.part"
    shutil.rmtree(part, ignore_errors=True)
    with writing(folder / PERSONAL):
        part.mkdir()
        # A lone surrogate, which no text should hold but which JSON can spell, is kept.
        with (part / INDEX).open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            writer = csv.writer(file)
            writer.writerow(_HEADER)
            for window, params in models:
                chosen = np.flatnonzero(own[window])
                arrays = {key: array[chosen] for key, array in _named(params).items()}
                writer.writerows(_write_models(part, ids, window.start + chosen, arrays))
        shutil.rmtree(folder / PERSONAL, ignore_errors=True)
        part.rename(folder / PERSONAL)


def read_index(folder: Path) -> list[Personal]:
    """The clients that have a model of their own in a run folder, and where it is; none without ``personal/``.

    Raises:
      EvenhandError: the index is not one that a run wrote.
    """
    path = folder / PERSONAL / INDEX
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    try:
        if header != _HEADER:
            raise ValueError
        return [_entry(*line) for line in lines]
    except (TypeError, ValueError):  # lines of unequal lengths, or rows that are not numbers
        raise EvenhandError(
            f"{path} is not what `evenhand run` writes: restore it or repeat the run."
        ) from None


def _entry(client: str, file: str, row: str, sha256: str) -> Personal:
    """A line of the index; its file lies in the same folder."""
    if Path(file).name != file:
        raise ValueError
    return Personal(spreadsheet_name(client), file, int(row) if row else None, sha256)


def personal_models(
    folder: Path, chosen: Sequence[Personal], like: Params
) -> Iterator[tuple[Personal, Params]]:
    """The models of some clients, each with its parameters in the structure of ``like``; a file is read once.

    Raises:
      EvenhandError: a file is missing or damaged.
    """
    name, arrays = "", dict[str, NDArray]()
    for entry in sorted(chosen, key=lambda entry: entry.file):
        path = folder / PERSONAL / entry.file
        if entry.file != name:
            if not _matches(path, entry):
                raise EvenhandError(
                    f"{path} is damaged (it does not match {PERSONAL}/{INDEX}): `evenhand resume {folder}` rebuilds "
                    "the results from the checkpoint."
                )
            name, arrays = entry.file, _load(path)
        row = entry.row
        own = arrays if row is None else {key: array[row] for key, array in arrays.items()}
        yield entry, _fitted(path, own, like)


def damaged_model(folder: Path) -> str | None:
    """The first file of ``personal/`` that is not as the run wrote it; None if all are whole."""
    entries = {entry.file: entry for entry in read_index(folder)}
    files = (name for name, entry in entries.items() if not _matches(folder / PERSONAL / name, entry))
    name = next(files, None)
    return None if name is None else f"{PERSONAL}/{name}"


def _write_models(part: Path, ids: Sequence[str], positions: NDArray, arrays: Arrays) -> Iterator[list[str]]:
    """Writes the models of the clients at these positions, and gives their lines of the index."""
    alone, digits = len(ids) <= _MOST_FILES, len(str(len(ids) - 1))
    bytes_each = sum(array.nbytes for array in arrays.values()) // max(1, len(positions))
    step = 1 if alone else max(1, _BLOCK // max(1, bytes_each))
    for start in range(0, len(positions), step):
        together: list[int] = positions[start : start + step].tolist()
        first, last = together[0], together[-1]
        name = f"{first:0{digits}}-{_safe(ids[first]) if alone else f'{last:0{digits}}'}.npz"
        chosen = start if alone else slice(start, start + step)
        _save(part / name, {key: array[chosen] for key, array in arrays.items()})
        digest = _digest(part / name)
        for row, k in enumerate(together):
            yield [spreadsheet_cell(ids[k]), name, "" if alone else str(row), digest]


def _leaves(params: Params) -> dict[str, Any]:
    """The leaves of a tree under slash-joined names."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(keys, simple=True, separator="/") or "params": leaf for keys, leaf in leaves}


def _named(params: Params) -> dict[str, NDArray]:
    return {name: np.asarray(leaf) for name, leaf in _leaves(params).items()}


def _fitted(path: Path, arrays: Arrays, like: Params) -> Params:
    """The arrays in the structure of ``like``."""
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(like).items()}
    if {name: (array.shape, array.dtype) for name, array in arrays.items()} != wanted:
        raise EvenhandError(
            f"{path} does not hold the parameters of the model that config.json describes: repeat the run, or restore "
            "config.json if it was edited."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _save(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:  # a path would get the suffix .npz
        np.savez(file, allow_pickle=False, **arrays)


def _load(path: Path) -> dict[str, NDArray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise EvenhandError(f"{path} cannot be read ({error}): restore it or repeat the run.") from None


def _matches(path: Path, entry: Personal) -> bool:
    return path.is_file() and _digest(path) == entry.sha256


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _safe(name: str) -> str:
    """A part of a file's name that shows the client's id."""
    return re.sub(r"[^\w.-]+", "-", name)[:40].strip("-.") or "client"


# --- the best round -----------------------------------------------------------------------------------------


Results = Callable[[Path], Mapping[str, Any]]
"""Writes the results of a round into a folder, and returns what the summary says about that round."""

_WORDS = {
    "mean": "mean over clients",
    "weighted_mean": "mean over examples",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
}


class Rule(NamedTuple):
    """What makes an evaluated round the best.

    Attributes:
      split: ``"valid"`` or ``"train"``; the test examples choose nothing.
      statistic: over clients, a name from :func:`evenhand.evaluation.summarize`.
      metric: of each client; None: the accuracy where the model has one, else the loss.
      text: the rule as the option spells it.
    """

    split: str
    statistic: str
    metric: str | None
    text: str

    @property
    def words(self) -> str:
        """The rule as a sentence names it."""
        of = "" if self.metric is None else f"{self.metric}, "
        return f"best {SPLIT_NAMES[self.split]} {of}{_WORDS.get(self.statistic, self.statistic)}"

    def check_metric(self, last: Collection[str]) -> None:
        """Refuses a metric that is measured after the ``last`` round only."""
        if self.metric in last:
            raise EvenhandError(
                f"--keep {self.text:.60}: {self.metric} of --metrics is measured after the last round only: choose by "
                "a metric that each evaluation measures, such as accuracy or loss."
            )

    def check(self, data: FederatedDataset) -> None:
        """Refuses data without examples to choose by."""
        if self.split == "valid" and not data.valid.rows:
            raise EvenhandError(
                f"--keep {self.text} needs validation examples, and {data.name} has none: set some aside with "
                f"--valid-fraction 0.2, or choose by training examples with --keep best:train:{self.statistic}."
            )

    def value(self, view: RunView) -> float:
        """How good a round is, more being better, over the honest clients; NaN where that is unknown."""
        if self.split not in view.clients:  # none of the evaluated clients has examples there
            return math.nan
        metrics = view.clients[self.split]
        metric = primary_metric(metrics) if self.metric is None else self.metric
        if metric not in metrics:
            raise EvenhandError(
                f"--keep {self.text}: there is no metric {metric!r:.40} among {', '.join(sorted(metrics))}."
            )
        value = statistics(honest(view), self.split, metric)[self.statistic]
        return direction(self.statistic, metric) * value


class BestRound(NamedTuple):
    """The best round so far.

    Attributes:
      round: which it is.
      score: how good it is, more being better.
      place: the folder of its results.
    """

    round: int
    score: float
    place: Path


def rule_of(text: str) -> Rule | None:
    """The rule that an option spells; None for the last round.

    Raises:
      EvenhandError: it spells none, or names the test examples.
    """
    if text == "last":
        return None
    kind, *parts = text.split(":")
    if kind != "best" or len(parts) not in (2, 3):
        raise EvenhandError(
            f"--keep {text:.60} is not understood: write last, or best:SPLIT:STATISTIC, such as best:valid:worst10."
        )
    split, statistic = parts[:2]
    if split == "test":
        raise EvenhandError(
            f"--keep {text:.60}: the test examples must not choose the round that they judge: write "
            f"best:valid:{statistic:.40} or best:train:{statistic:.40}."
        )
    if split not in SPLIT_NAMES:
        raise EvenhandError(f"--keep {text:.60}: there is no split {split!r:.40}: write valid or train.")
    known = set(summarize([0.5, 1.0]))
    if statistic not in known:
        raise EvenhandError(
            f"--keep {text:.60}: there is no statistic {statistic!r:.40}{perhaps(statistic, known)}: write mean, "
            "worst10, variance or another that summary.json lists."
        )
    return Rule(split, statistic, parts[2] if len(parts) == 3 else None, text)


def best_so_far(folder: Path, rule: Rule) -> BestRound | None:
    """The best round of a run that was stopped, by the same rule; that of another rule is removed.

    Raises:
      EvenhandError: its files are damaged.
    """
    places = {int(place.name): place for place in (folder / BEST).glob("*") if place.name.isdigit()}
    if not places:
        return None
    place = places[max(places)]  # a later one was better
    if not is_whole(place) or damaged_model(place) is not None:
        raise EvenhandError(
            f"{place} is damaged, and with it the best round so far: repeat the run with "
            f"`evenhand run --config {folder} --out NEW`."
        )
    kept = read_json(place / SUMMARY)["kept"]
    if kept["rule"] != rule.text:
        shutil.rmtree(folder / BEST)
        return None
    return BestRound(kept["round"], kept["score"], place)


def with_best(
    folder: Path, rule: Rule, best: BestRound | None, view: RunView, results: Results
) -> BestRound | None:
    """The best round, once another has been evaluated; of equally good rounds the first.

    Args:
      folder: the run folder.
      rule: what makes a round the best.
      best: the best of the rounds before; None: none had a finite value.
      view: the round that was evaluated.
      results: writes its results into a folder.
    """
    done, value = int(view.history["round"][-1]), rule.value(view)
    if not math.isfinite(value) or (best is not None and value <= best.score):
        return best
    place = folder / BEST / str(done)
    part = folder / BEST / f".{done}.part"
    for old in (part, place):  # of a run that was killed here, and trains these rounds again
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    kept = {"round": done, "rule": rule.text, "score": value}
    write_text(part / SUMMARY, json_text({**results(part), "kept": kept}))
    seal_part(part)
    os.replace(part, place)
    for other in (folder / BEST).iterdir():
        if other != place:
            shutil.rmtree(other)
    return BestRound(done, value, place)


def copied(folder: Path, *, best: BestRound, rule: Rule, rounds: int) -> dict[str, Any]:
    """Copies the files of the best round into the run folder, and returns what the summary says about it."""
    for name in (CLIENTS, PARAMS):
        with replacing(folder / name) as temporary:
            shutil.copyfile(best.place / name, temporary)
    shutil.rmtree(folder / PERSONAL, ignore_errors=True)
    if (best.place / PERSONAL).is_dir():
        part = folder / f".{PERSONAL}.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(best.place / PERSONAL, part)
        part.rename(folder / PERSONAL)
    about = read_json(best.place / SUMMARY)
    about["kept"]["words"] = f"kept round {best.round} of {rounds}: {rule.words}"
    return about


# --- run folders and study folders, read back ---------------------------------------------------------------


class SavedRun(NamedTuple):
    """What a run folder holds.

    Attributes:
      folder: where it is.
      view: what reports show of it.
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
    condition = sound_condition(folder)
    summary = _known(folder / SUMMARY, read_json(folder / SUMMARY), _SUMMARY)
    history = read_metrics(folder, condition.length)
    view = read_clients_csv(folder / CLIENTS)
    unused = {name for name in config.get("without_effect") or [] if isinstance(name, str)}
    options = {name: value for name, value in config["options"].items() if name not in unused}
    facts: dict[str, Any] = {
        "title": config["method"].removesuffix("()"),
        "history": history,
        "info": _info(folder, config, summary),
        "config": {"method": config["method"], **options},
        "findings": _findings(folder / SUMMARY, summary.get("findings", [])),
    }
    unseen = None if view.unseen is None else view.unseen._replace(**facts)
    view = view._replace(**facts, unseen=unseen)
    remarks = tuple(condition.remarks(folder))
    return SavedRun(folder, view, summary["interrupted"], config["data"]["fingerprint"], remarks)


def _info(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": config["method"].partition("(")[0],
        "data": config["data"]["name"],
        "client_column": config["data"].get("client_column", ""),
        "rounds": summary["rounds"],
        "cohort": summary["cohort"],
        "clients": summary.get("clients"),
        "seed": config["options"]["seed"],
        "fingerprint": config["data"]["fingerprint"],
        "seconds": summary["seconds"],
        "examples_per_second": summary.get("examples_per_second"),
        "padded": summary.get("padded"),
        "by_class": summary.get("by_class"),
        "privacy": summary.get("privacy"),
        "constant": summary.get("constant"),
        "metrics": {name: str(reason) for name, reason in dict_in(summary, "metrics").items()},
        "adapts": summary.get("adapts"),
        "kept": dict_in(summary, "kept").get("words"),
        "command": f"evenhand run --config {shlex.quote(str(folder / CONFIG))}",
        "versions": config["versions"],
    }


def _findings(path: Path, found: Any) -> tuple[Finding, ...]:
    """The recorded findings; none in a folder of a version that looked for none."""
    try:
        return tuple(
            Finding(each["kind"], str(each["sentence"]), str(each.get("split", ""))) for each in found
        )
    except (AttributeError, KeyError, TypeError):
        raise EvenhandError(
            f"{path} is not what `evenhand run` writes (findings): restore it or repeat the run."
        ) from None


_CONFIG = {
    "method": (str,),
    "options": (dict,),
    "options.seed": (int,),
    "data": (dict,),
    "data.name": (str,),
    "data.client_column": (str, NoneType),  # earlier versions did not say
    "data.fingerprint": (str,),
    "versions": (dict,),
    "versions.*": (str,),
    "without_effect": (list, NoneType),  # earlier versions did not say
}
_SUMMARY = {
    "rounds": (int,),
    "cohort": (int,),
    "clients": (int, NoneType),
    "interrupted": (bool,),
    "seconds": (dict,),
    "seconds.*": (int, float),
    "examples_per_second": (int, float, NoneType),
    "padded": (int, float, NoneType),
    "by_class": (dict, NoneType),
    "privacy": (dict, NoneType),
    "adapts": (bool, NoneType),
    "kept": (dict, NoneType),
}
"""What these files must hold, and of which type; ``*`` stands for every name."""


def _known(path: Path, of: dict[str, Any], expected: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """``of``, once its values are checked to have the expected types."""
    for name, kinds in expected.items():
        outer, _, inner = name.rpartition(".")
        within = of[outer] if outer else of
        for value in within.values() if inner == "*" else [within.get(inner)]:
            if type(value) not in kinds:
                raise EvenhandError(
                    f"{path} is not what `evenhand run` writes ({name} is {value!r:.40}): restore it or repeat the run."
                )
    return of


def study_in(folder: Path) -> bool:
    """Whether a folder was written by ``evenhand study``, rather than by ``evenhand run``.

    Raises:
      EvenhandError: there is no such folder, or it is that of a study that has not ended.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise EvenhandError(f"{folder} {what}: name a folder that `evenhand run` or `evenhand study` wrote.")
    if (folder / "study.json").is_file():
        return True
    if (folder / "runs").is_dir() and not (folder / CONFIG).is_file():
        raise EvenhandError(
            f"{folder} is a study that is still running or was stopped, so it has no results yet: wait until it ends, "
            "or run the same `evenhand study` command again to finish it."
        )
    return False


def load_saved(folder: Path) -> list[SavedRun]:
    """The run in a folder; the runs of a study at the chosen setting of each method.

    Raises:
      EvenhandError: there are no results, or the study has several conditions.
    """
    if not study_in(folder):
        return [load_run(folder)]
    found = load(folder)
    if len(found.cases) > 1:
        raise EvenhandError(
            f"{folder} is a study under {len(found.cases)} conditions, which are not comparable: see its study.html."
        )
    methods = [line.method for line in found.table() if line.setting is not None]
    methods.sort(key=lambda method: method != found.baseline)  # the others are compared with the first
    return [
        SavedRun(folder, view, interrupted=False, fingerprint=str(view.info.get("fingerprint", "")))
        for method in methods
        for view in found.views(method)
    ]


def load_views(folders: Sequence[Path]) -> tuple[list[RunView], list[str]]:
    """The runs in these folders, and what a reader of the numbers should know about them."""
    saved = [run for folder in folders for run in load_saved(folder)]
    return [run.view for run in saved], [sentence for run in saved for sentence in run.remarks]
