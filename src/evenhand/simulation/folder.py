"""The run folder: files that say what was run, how it went, and what each client got.

* ``config.json``: the method, every option, the versions and a fingerprint of the data;
  ``evenhand run --config`` repeats the run from it.  A folder of :meth:`evenhand.simulation.Run.save` names the
  method, and no command repeats it.
* ``features.json``: only for tables: how their columns became the inputs of the model;
  :func:`evenhand.data.load_features` reads it.
* ``metrics.jsonl``: one JSON object per evaluation, appended as the run goes.
* ``clients.csv``: one line per client.
* ``params.npz``: the parameters of the global model, by names such as ``dense/kernel``;
  ``flax.traverse_util.unflatten_dict(dict(numpy.load(path)), sep="/")`` is what ``Model.apply`` takes.
* ``personal/``: the models of clients, where the method gives them personal models; see
  :func:`write_personal`.
* ``results.npz``: every measured number of the round that the results describe, bit for bit, which the texts round or
  leave out.
* ``best/``: the best round so far, under ``--keep best:SPLIT:STATISTIC``; see :mod:`evenhand.cli._keep`.
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

From top to bottom: the names of the files; the metrics by round; checksums, and what state a folder is in; the
parameters of the global and of personal models.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import jax
import numpy as np
import numpy.typing as npt

from evenhand import records
from evenhand.errors import EvenhandError
from evenhand.records import CHECKSUMS, LOCK, Checksum
from evenhand.text import quoted, spreadsheet_cell, spreadsheet_name
from evenhand.types import Params

# What other packages take; the other names are for this package.
__all__ = [
    "BEST",
    "CHECKPOINT",
    "CLIENTS",
    "CONFIG",
    "FEATURES",
    "FILES",
    "METRICS",
    "PARAMS",
    "PERSONAL",
    "REPORT",
    "RESULTS",
    "SUMMARY",
    "Condition",
    "append_metrics",
    "begin_checksums",
    "condition_of",
    "damaged_model",
    "dict_in",
    "is_whole",
    "last_round",
    "metrics_text",
    "personal_models",
    "reopen_checksums",
    "seal",
    "seal_part",
]

NDArray = npt.NDArray[Any]
Arrays = Mapping[str, NDArray]

CONFIG = "config.json"
FEATURES = "features.json"
METRICS = "metrics.jsonl"
CLIENTS = "clients.csv"
PARAMS = "params.npz"
RESULTS = "results.npz"
SUMMARY = "summary.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
PERSONAL, INDEX = "personal", "index.csv"
BEST = "best"
FILES = (CONFIG, CHECKSUMS, FEATURES, METRICS, CLIENTS, PARAMS, RESULTS, SUMMARY, REPORT)
OWN = {*FILES, CHECKPOINT, PERSONAL, BEST, LOCK}
"""What a run puts into its folder."""


# --- metrics.jsonl --------------------------------------------------------------------------------------------


def metrics_text(history: Arrays) -> str:
    """All evaluations so far, each as :func:`append_metrics` writes it."""
    return "".join(_line(history, i) for i in range(len(history["round"])))


def append_metrics(folder: Path, history: Arrays) -> None:
    """Appends the last evaluation as one line, which is in the file when this returns."""
    path = folder / METRICS
    # The one file that is not replaced in one step: each evaluation would write all earlier lines again.
    with records.writing(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(_line(history, -1))


def _line(history: Arrays, index: int) -> str:
    row = {name: values[index] for name, values in history.items()}
    if row["round"] == 0:
        row = {name: value for name, value in row.items() if not np.isnan(value)}
    return json.dumps(records.as_json(row), allow_nan=False) + "\n"


def read_metrics(folder: Path, length: int | None = None) -> dict[str, npt.NDArray[np.float64]]:
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
    numbered = [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    rows = [records.json_object(line, where) for where, line in numbered]
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
            round = records.json_object(line, str(path)).get("round")
            if isinstance(round, int):
                return round
    return 0


def _number(value: Any, where: str) -> float:
    if value is None:
        return float("nan")
    # JSON spells integers that no float holds, and Python reads 1e999 as infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        raise EvenhandError(f"{where} is not a number ({value!s:.40}): restore it or repeat the run.")
    return float(value)


def dict_in(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object under ``name``, empty if there is none."""
    value = content.get(name)
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


# --- checksums: whether the files are those that the run wrote ------------------------------------------------

_ALWAYS = (METRICS, CLIENTS, PARAMS, SUMMARY)
_PERHAPS = (RESULTS, FEATURES, f"{PERSONAL}/{INDEX}")
"""What not every run has, or had in earlier versions; the index has the checksums of the other files in its folder."""


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

    def remarks(self, folder: Path) -> Iterator[str]:
        """What a reader of the results should know, in sentences."""
        if self.results == "unchecked":
            yield (
                f"{folder} has no {CHECKSUMS} (an earlier version of Evenhand wrote it), so damage would go unnoticed."
            )
        if self.is_edited:
            yield f"{folder / CONFIG} was changed after `evenhand` wrote it."
        if self.is_longer:
            yield (
                f"{folder} is being trained further, or was stopped while it was: these are its last complete results."
            )


def begin_checksums(folder: Path, *, config: str, metrics: str) -> None:
    """Prepares for a new ``config.json`` and ``metrics.jsonl``; old results stay if ``metrics`` begins with theirs."""
    # While a run trains on, its old results are the first lines of the longer file, and stay readable.
    sums = _known_sums(folder) or {}
    old, text = sums.get(METRICS), metrics.encode()
    if old is None or old != records.sum_of(text[: old.length]):
        sums = {}
    records.write_sums(folder, {**sums, CONFIG: records.sum_of(config.encode())})


def reopen_checksums(folder: Path) -> None:
    """Prepares for new results: there are none until they are sealed."""
    records.write_sums(folder, {CONFIG: _config_sum(folder)})


def seal(folder: Path) -> None:
    """Records the checksums of complete results."""
    names = [*_ALWAYS, *(name for name in _PERHAPS if (folder / name).exists())]
    records.write_sums(folder, {CONFIG: _config_sum(folder), **records.sums_of(folder, names)})


def seal_part(folder: Path) -> None:
    """Records the checksums of results that are not yet those of a run, such as of its best round so far."""
    names = [name for name in (*_ALWAYS, *_PERHAPS) if (folder / name).exists()]
    records.write_sums(folder, records.sums_of(folder, names))


def is_whole(folder: Path) -> bool:
    """Whether the files that :func:`seal_part` has sealed are as they were."""
    sums = records.read_sums(folder)
    return sums is not None and not records.changed_files(folder, sums)


def sound_condition(folder: Path) -> Condition:
    """The state of a run folder whose results can be used.

    Raises:
      EvenhandError: there are none yet, or they are damaged.
    """
    condition = condition_of(folder)
    if condition.results == "none":
        raise EvenhandError(
            f"{folder} has no results yet: a run is in progress there, or was stopped; "
            f"`evenhand resume {quoted(folder)}` continues it."
        )
    if condition.damaged:
        raise EvenhandError(
            f"{folder / condition.damaged[0]} is damaged (it does not match {CHECKSUMS}): {_repair(folder)}."
        )
    return condition


def _repair(folder: Path) -> str:
    """What to do about damaged results."""
    if not (folder / CHECKPOINT).is_dir():
        return "restore it, repeat the run, or save it again"
    return f"`evenhand resume {quoted(folder)}` rebuilds the results from the checkpoint"


def condition_of(folder: Path) -> Condition:
    """The state of a run folder that has a ``config.json``."""
    if not (folder / CHECKSUMS).exists():
        # A version without checksums wrote here: there are results if there is a summary.
        return Condition("unchecked" if (folder / SUMMARY).exists() else "none")
    sums = _known_sums(folder)
    if sums is None:
        return Condition("sealed", damaged=(CHECKSUMS,))
    # A run that is trained further appends evaluations, and the results are of the first lines only.
    wrong = records.changed_files(folder, sums, growing=METRICS)
    edited, damaged = CONFIG in wrong, tuple(name for name in sums if name in wrong - {CONFIG})
    if METRICS not in sums:
        return Condition("none", is_edited=edited)
    length = sums[METRICS].length
    is_longer = METRICS not in damaged and (folder / METRICS).stat().st_size > length
    return Condition("sealed", damaged, edited, length, is_longer)


def _config_sum(folder: Path) -> Checksum:
    """The checksum of ``config.json`` as it was written, even if the file was edited since."""
    sums = _known_sums(folder)
    if sums is None:
        raise EvenhandError(
            f"{folder / CHECKSUMS} was damaged while the run was writing there: `evenhand resume {quoted(folder)}` "
            "completes it."
        )
    return sums[CONFIG]


def _known_sums(folder: Path) -> dict[str, Checksum] | None:
    """The recorded checksums of a run folder; None if the file is missing or damaged."""
    sums = records.read_sums(folder)
    # No other list is ever written: one that has lost an entry would leave that file unchecked.
    is_known = sums is not None and set(sums) - set(_PERHAPS) in ({CONFIG}, {CONFIG, *_ALWAYS})
    return sums if is_known else None


# --- the models ---------------------------------------------------------------------------------------------

_MOST_FILES = 1000
"""Most clients with a file each, whose name shows the client's id."""
_BLOCK = 2**24
"""Bytes of parameters in a file of several clients, about."""
_HEADER = ["client", "file", "row", "sha256"]


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
    with records.writing(path), records.replacing(path) as temporary:
        records.write_arrays(temporary, _named(params))


def read_params(path: Path, like: Params) -> Params:
    """The parameters in a file, in the structure of ``like``.

    Raises:
      EvenhandError: the file does not fit.
    """
    return _fitted(path, records.read_arrays(path), like)


def write_personal(
    folder: Path, ids: Sequence[str], models: Iterable[tuple[slice, Params]], own: NDArray
) -> None:
    """Writes ``personal/``, in place of an earlier one.

    Args:
      folder: the run folder.
      ids: of all clients.
      models: the positions of some clients, and their parameters with a leading axis, until all have come.
      own: which clients have a personal model, ``(num_clients,)``; the others are left out.
    """
    with (
        records.writing(folder / PERSONAL),
        records.replacing_folder(folder / PERSONAL) as part,
        # A lone surrogate, which no text should hold but which JSON can spell, is kept.
        (part / INDEX).open("w", newline="", encoding="utf-8", errors="surrogatepass") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        for window, params in models:
            chosen = np.flatnonzero(own[window])
            arrays = {key: array[chosen] for key, array in _named(params).items()}
            writer.writerows(_write_models(part, ids, window.start + chosen, arrays))


def read_index(folder: Path) -> list[Personal]:
    """The clients that have a personal model in a run folder, and where it is; none without ``personal/``.

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
    # The index may come from anywhere: no path in it may lead out of the folder.
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
    # By file, so that the arrays of one file at a time are in memory.
    for entry in sorted(chosen, key=lambda entry: entry.file):
        path = folder / PERSONAL / entry.file
        if entry.file != name:
            if not _matches(path, entry):
                raise EvenhandError(
                    f"{path} is damaged (it does not match {PERSONAL}/{INDEX}): {_repair(folder)}."
                )
            name, arrays = entry.file, records.read_arrays(path)
        row = entry.row
        own = arrays if row is None else {key: array[row] for key, array in arrays.items()}
        yield entry, _fitted(path, own, like)


def damaged_model(folder: Path) -> str | None:
    """The first file of ``personal/`` that is not as the run wrote it; None if all are whole."""
    # By file: many clients share one, which is read once for its checksum.
    entries = {entry.file: entry for entry in read_index(folder)}
    files = (name for name, entry in entries.items() if not _matches(folder / PERSONAL / name, entry))
    name = next(files, None)
    return None if name is None else f"{PERSONAL}/{name}"


def _write_models(part: Path, ids: Sequence[str], positions: NDArray, arrays: Arrays) -> Iterator[list[str]]:
    """Writes the models of the clients at these positions, and gives their lines of the index."""
    # Names with leading zeros, so that a listing of the folder is in the order of the clients.
    alone, digits = len(ids) <= _MOST_FILES, len(str(len(ids) - 1))
    bytes_each = sum(array.nbytes for array in arrays.values()) // max(1, len(positions))
    step = 1 if alone else max(1, _BLOCK // max(1, bytes_each))
    for start in range(0, len(positions), step):
        together: list[int] = positions[start : start + step].tolist()
        first, last = together[0], together[-1]
        # The position keeps names apart: two ids may be the same text once they are safe in the name of a file.
        name = f"{first:0{digits}}-{_safe(ids[first]) if alone else f'{last:0{digits}}'}.npz"
        chosen = start if alone else slice(start, start + step)
        records.write_arrays(part / name, {key: array[chosen] for key, array in arrays.items()})
        digest = records.sum_of_file(part / name).sha256
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
    arrays = {
        name: _typed(array, wanted[name][1]) if name in wanted else array for name, array in arrays.items()
    }
    if {name: (array.shape, array.dtype) for name, array in arrays.items()} != wanted:
        raise EvenhandError(
            f"{path} does not hold the parameters of the model that config.json describes or that was given: give the "
            "one that was trained, repeat the run, or restore config.json if it was edited."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def _typed(array: NDArray, dtype: Any) -> NDArray:
    """The array; as of ``dtype``, where the file does not have its type, like that of bfloat16, but only its bytes."""
    is_typed = array.dtype.kind != "V" or array.dtype.itemsize != dtype.itemsize
    return array if is_typed else array.view(dtype)


def _matches(path: Path, entry: Personal) -> bool:
    return path.is_file() and records.sum_of_file(path).sha256 == entry.sha256


def _safe(name: str) -> str:
    """A part of a file's name that shows the client's id."""
    return re.sub(r"[^\w.-]+", "-", name)[:40].strip("-.") or "client"
