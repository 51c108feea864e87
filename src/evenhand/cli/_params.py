"""The models in a run folder: the global one in ``params.npz``, and those of clients in ``personal/``.

``personal/index.csv`` has a line for each client that has a model of its own: its id, the file with its parameters, its
row in that file, and the file's SHA-256.  Up to 1,000 clients have a file each, with the arrays of ``params.npz`` (an
empty row); of more clients, many share a file, whose arrays have a leading axis.  The index is among the files of
``checksums.json``, so damage to any of them is noticed.
"""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from evenhand.cli._folder import INDEX, PERSONAL, replacing, writing
from evenhand.errors import EvenhandError
from evenhand.text import spreadsheet_cell, spreadsheet_name
from evenhand.types import Params

__all__ = [
    "Personal",
    "damaged_model",
    "personal_models",
    "read_index",
    "read_params",
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
