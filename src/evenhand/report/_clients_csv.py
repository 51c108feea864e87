"""``clients.csv``, one line per client: written and read back."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.evaluation import CLASS_COLUMNS, SPLITS, column
from evenhand.report._view import RunView
from evenhand.text import spreadsheet_cell, spreadsheet_name

__all__ = ["ClientTable", "read_clients_csv", "write_clients_csv"]

NDArray = npt.NDArray[Any]

_ROWS = "rows"
_MALICIOUS = "malicious"
_UNSEEN = "unseen"
_LAST_ROUND = "last_round"


class ClientTable(NamedTuple):
    """What a ``clients.csv`` holds, in the terms of a :class:`RunView`.

    Attributes:
      client_ids: the clients' names, ``K`` of them.
      sizes: split -> examples per client, ``(K,)``.
      clients: split -> metric -> ``(K,)``; NaN for a client without examples.
      classes: split -> what :func:`~evenhand.evaluation.class_spread` gives, where the file has it.
      malicious: which clients are, bool ``(K,)``; None: nobody attacked.
      unseen: which clients took no part in the training, bool ``(K,)``; None: all did.
      last_round: the last round in which each client trained, int ``(K,)``, 0 for never; None: it was not recorded.
    """

    client_ids: tuple[str, ...]
    sizes: Mapping[str, NDArray]
    clients: Mapping[str, Mapping[str, NDArray]]
    classes: Mapping[str, Mapping[str, NDArray]]
    malicious: NDArray | None = None
    unseen: NDArray | None = None
    last_round: NDArray | None = None

    def of(self, chosen: NDArray) -> ClientTable:
        """The table of some clients."""
        clients = {
            split: {name: of[chosen] for name, of in found.items()} for split, found in self.clients.items()
        }
        classes = {
            split: {name: of[chosen] for name, of in found.items()} for split, found in self.classes.items()
        }
        return ClientTable(
            tuple(name for name, one in zip(self.client_ids, chosen, strict=True) if one),
            {split: rows[chosen] for split, rows in self.sizes.items()},
            clients,
            classes,
            None if self.malicious is None else self.malicious[chosen],
            last_round=None if self.last_round is None else self.last_round[chosen],
        )


def write_clients_csv(path: str | Path, view: RunView) -> None:
    """Writes one line per client: its id, its examples in each split (``"test_rows"``), and each metric in each split.

    Where examples have classes, also how many classes a client has in each split (``"test_classes"``), the spread of
    its accuracies over them and the lowest, as in :func:`~evenhand.evaluation.class_spread`; ``"last_round"``, the
    last round in which the client trained, 0 if it never did; under an attack, ``"malicious"``, 1 or 0; with clients
    that took no part in the training, which come last, ``"unseen"``.  A metric is an empty field for a client without
    examples in that split.  A name that a spreadsheet would take for a formula is preceded by ``'``, and hidden
    characters in names are codes: :func:`evenhand.text.spreadsheet_name` undoes both.
    """
    columns = _columns(view)
    if view.malicious is not None:
        columns[_MALICIOUS] = [str(int(one)) for one in view.malicious]
    names = [*view.client_ids]
    if view.unseen is not None:
        further, count = _columns(view.unseen), len(view.unseen.client_ids)
        columns = {name: of + further.get(name, [""] * count) for name, of in columns.items()}
        columns[_UNSEEN] = ["0"] * len(names) + ["1"] * count
        names += view.unseen.client_ids
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *map(spreadsheet_cell, columns)])
        writer.writerows(zip(map(spreadsheet_cell, names), *columns.values(), strict=True))


def _columns(view: RunView) -> dict[str, list[str]]:
    """Examples and metrics of each client, as text."""
    splits = [split for split in SPLITS if split in view.sizes or split in view.clients]
    columns = {
        column(split, _ROWS): [str(int(n)) for n in view.sizes[split]]
        for split in splits
        if split in view.sizes
    }
    for split in splits:
        by_class = view.classes.get(split, {})
        known = {name: by_class[name] for name in CLASS_COLUMNS if name in by_class}
        for metric, values in {**view.clients.get(split, {}), **known}.items():
            columns[column(split, metric)] = ["" if np.isnan(v) else format(v, ".9g") for v in values]
    if view.last_round is not None:
        columns[_LAST_ROUND] = [str(int(number)) for number in view.last_round]
    return columns


def read_clients_csv(path: str | Path) -> ClientTable:
    """Reads what :func:`write_clients_csv` wrote.

    Raises:
      EvenhandError: there is no such file, or it is not such a table.
    """
    client_ids, columns = _read(Path(path))
    sizes = {split: columns[column(split, _ROWS)] for split in SPLITS if column(split, _ROWS) in columns}
    classes, clients = dict[str, Mapping[str, NDArray]](), dict[str, Mapping[str, NDArray]]()
    for split in sizes:
        prefix = column(split, _ROWS).removesuffix(_ROWS)
        of_split = {
            name.removeprefix(prefix): values for name, values in columns.items() if name.startswith(prefix)
        }
        of_split.pop(_ROWS)
        known = CLASS_COLUMNS if all(name in of_split for name in CLASS_COLUMNS) else ()
        clients[split] = {name: values for name, values in of_split.items() if name not in known}
        if known:
            classes[split] = {name: of_split[name] for name in known}
    malicious = columns[_MALICIOUS] == 1 if _MALICIOUS in columns else None
    unseen = columns[_UNSEEN] == 1 if _UNSEEN in columns else None
    last_round = columns.get(_LAST_ROUND)
    if last_round is not None:
        last_round = np.nan_to_num(last_round).astype(np.int64)
    return ClientTable(client_ids, sizes, clients, classes, malicious, unseen, last_round)


def _read(path: Path) -> tuple[tuple[str, ...], dict[str, NDArray]]:
    """The clients' ids, and each other column as ``(K,)`` float64 with NaN for an empty field."""
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
            header, *lines = list(csv.reader(file, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise EvenhandError(f"{path} is not a table in UTF-8 ({error}): repeat the run.") from None
    if not lines:
        raise EvenhandError(f"{path} holds no clients: repeat the run.")
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise EvenhandError(
                f"{path}, line {number} has {len(line)} fields, but the header {len(header)}: repeat the run."
            )
    try:
        table = np.array([[float(field or "nan") for field in line[1:]] for line in lines], np.float64)
    except ValueError as error:
        raise EvenhandError(f"{path} holds a field that is not a number ({error}): repeat the run.") from None
    columns = table.reshape(len(lines), len(header) - 1).T
    return tuple(spreadsheet_name(line[0]) for line in lines), dict(
        zip(map(spreadsheet_name, header[1:]), columns, strict=True)
    )
