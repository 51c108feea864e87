"""One entry point for all sources of data, and one for tables in memory.

:func:`load` looks at what it is given: a built-in name, a folder, or a file, which its suffix leads to a reader.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data._dataset import FederatedDataset
from evenhand.data._features import Fill
from evenhand.data.loaders._arrays import is_idx, load_idx, load_idx_folder, load_npz, pooled
from evenhand.data.loaders._frames import open_frame
from evenhand.data.loaders._leaf import holds_leaf, leaf_dataset
from evenhand.data.loaders._source import Encode, Options, bare_suffix, check_file, kind_of, readable
from evenhand.data.loaders._table import in_memory, open_table, table_dataset
from evenhand.errors import EvenhandError, nearest, whole_number

_TEXTS = (".csv", ".tsv", ".data", ".jsonl", ".ndjson")
_TABLES = (*_TEXTS, ".parquet", ".pq")


def load(
    source: str | Path,
    *,
    client: str | Sequence[str] = "client",
    label: str = "label",
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    fill: Fill | None = None,
    standardize: bool = True,
    standardize_target: bool = True,
    drop_empty: bool = False,
    na: Sequence[str] = (),
    weight: str | None = None,
    regression: bool = False,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    clients: int | None = None,
    alpha: float = 0.5,
    encode: Encode | None = None,
    features_array: str | None = None,
) -> FederatedDataset:
    """A federated data set from a built-in name, a file or a folder.

    * ``"digits"``: 1,797 real handwritten digits, ``x`` (64,); they ship with scikit-learn.
    * ``"mnist"``, ``"fashion-mnist"``: downloaded once, checked and cached, ``x`` (28, 28).
    * ``*.csv``, ``*.tsv``, ``*.parquet``: a table with a header, see below.
    * ``*.data``: the same, also with blanks between the cells; where the first line does not hold the name of the label
      or of a client column, there is no header, and the columns are called ``"1"``, ``"2"``, ...
    * ``*.jsonl``, ``*.ndjson``: a table of one JSON object per line.  All these may be packed, as in ``*.csv.gz``.
    * ``*.npz``: arrays ``x``, ``y``, ``client``, or ``x_train``, ... and ``x_test``, ...
    * ``*.json`` or a folder of them: LEAF, see :func:`evenhand.data.load_leaf`; ``train/`` and ``test/`` may be
      sub-folders.
    * ``*-images-idx3-ubyte[.gz]``: IDX with its labels file beside it; or a folder with train and t10k files.

    A table has one row per example: one or several columns of client ids, a column with the label, and features in
    the others.  A column of text becomes one input per text, a column of numbers is standardised by the
    mean and the deviation of the training rows of all clients together (0/1 columns stay as they are), and
    ``features`` of the data set records how.  Cells are separated by commas, semicolons, tabs or bars, as in the
    header.

    Examples without client ids (the built-in names, IDX, and others when ``clients`` is given) are spread over
    clients by :func:`evenhand.data.partition.dirichlet`, real targets evenly.  Test examples that the source keeps
    apart stay test examples; pooled ones are spread by the class shares of each client's training examples.

    Class labels are whole numbers from 0 (4.0 counts as 4), or text, which is numbered in sorted order and kept in
    ``classes``; so are the whole numbers of a table that do not start at 0, such as -1 and 1.  More than 20 distinct
    whole numbers that do not start at 0 or leave gaps may be amounts: say which with ``regression`` or ``categorical``.

    Args:
      source: what to load.
      client: column or array of client ids; for several columns of a table, each combination is a client, called
        ``"north / A"``; none (``[]``), with ``clients``, leaves it to the partition.
      label: column or array of labels; in ``.npz`` files, ``y`` also works.
      features_array: the array of features in an ``.npz`` file; None: ``x``.
      features: the columns of a table to learn from; None: all others.
      drop: columns of a table to leave out.
      categorical: columns of a table whose numbers are categories, such as codes of regions; or the label, if its
        numbers are classes.
      fill: what an empty cell of a table's features counts as: the ``"mean"`` or ``"median"`` of the column's training
        rows (text: a category of its own), or their ``"most-frequent"`` value; None: it is refused.
      standardize: whether the numbers of a table get mean 0 and deviation 1.
      standardize_target: whether ``features.target`` keeps the mean and deviation of a table's training targets, for
        :func:`evenhand.models.standardized`; the targets themselves stay in their own units.
      drop_empty: whether rows of a table without a label or a client are left out; ``notes`` counts them.
      na: further spellings of an empty cell in a table, such as ``["?", "-999"]``.
      weight: the column of a table that says how many examples a row stands for, a whole number; None: one.  The row
        counts that often in training, in all means and in its client's number of examples, but is split as one row.
      regression: labels are real-valued targets.
      test_fraction: share of each client's examples for testing, where the source has no test part.
      valid_fraction: share of each client's examples for validation, taken from its training examples if there is a
        test part.
      seed: of the split and the partition.
      clients: how many clients to spread examples without client ids over; None: 30 for the digits, 100 for
        MNIST and its family, and an error for files that should name their clients.
      alpha: concentration of that partition.
      encode: LEAF only: turns one entry of ``x`` into numbers, for text.

    Raises:
      EvenhandError: something is wrong with the source; one sentence gives the file, the place in it and the cure.

    Example:
      >>> from evenhand.data import load
      >>> load("digits", clients=10)
      <FederatedDataset 'digits': 10 clients, ... rows, x float32 (64,), 10 classes>
    """
    # In the first line, while locals() are the arguments and nothing else.
    options = Options.from_arguments(locals())
    if clients is not None:
        whole_number("clients", clients, 1)
    if not isinstance(source, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  (people try)
        raise EvenhandError(
            f"load reads files, not {type(source).__name__} objects: give a table in memory to "
            "evenhand.data.from_frame, and arrays to evenhand.data.from_arrays."
        )
    return _from(source, options)


def _from(source: str | Path, options: Options) -> FederatedDataset:
    if bare_suffix(Path(source)) not in _TABLES:
        _check_no_table(Path(source), options)
    name = str(source)
    if options.features_array is not None and not name.lower().endswith(".npz"):
        raise EvenhandError(
            f"{name}: only .npz files have arrays to choose from: leave features_array={options.features_array!r} out."
        )
    if name == "digits":
        return load_digits(options)
    if name in SOURCES:
        return load_idx_folder(download(name, SOURCES[name]), options)
    path = Path(source)
    kind = kind_of(path)
    if not kind:
        raise EvenhandError(
            f"{path}: no such file or folder{_perhaps(path)}, nor one of the built-in names {', '.join(NAMES)}: check "
            "the spelling."
        )
    with readable(path):
        return _folder(path, options) if kind == "a folder" else _file(path, options)


def _perhaps(path: Path) -> str:
    """A built-in name like the path, or an entry of its folder."""
    meant = nearest(str(path), NAMES)
    if meant is None:
        with contextlib.suppress(OSError):
            entry = nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))
            meant = None if entry is None else path.parent / entry
    return "" if meant is None else f" (perhaps you meant {meant})"


def _file(path: Path, options: Options) -> FederatedDataset:
    check_file(path)
    if is_idx(path.name):
        return load_idx(path, options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return load_npz(path, options)
    if suffix == ".json":
        return leaf_dataset(path, None, options)
    if suffix in _TABLES or (suffix == ".gz" and bare_suffix(path) in _TEXTS):
        header = [options.label, *options.client]
        table = open_table(path, header, options.categorical, options.na, is_trained=False)
        return table_dataset(str(path), table, options)
    raise EvenhandError(
        f"{path}: the suffix {suffix!r} is unknown: give .csv, .tsv, .data, .jsonl, .parquet, .npz, LEAF .json or IDX "
        "(*-images-idx3-ubyte); text may be packed as .gz."
    )


def _check_no_table(source: Path, options: Options) -> None:
    """Refuses options that are only for tables; the labels of an .npz file may be declared as categories, too."""
    is_archive = source.suffix.lower() == ".npz"
    labels = {options.label, f"{options.label}_train", "y", "y_train"} if is_archive else set[str]()
    given = {
        "features": options.features is not None,
        "drop": bool(options.drop),
        "categorical": not labels.issuperset(options.categorical),
        "fill": options.fill is not None,
        "standardize": not options.standardize,
        "standardize_target": not options.standardize_target,
        "drop_empty": options.drop_empty,
        "na": bool(options.na),
        "weight": options.weight is not None,
        "several client columns": len(options.client) != 1,
    }
    for name, is_given in given.items():
        if is_given:
            raise EvenhandError(
                f"{source}: {name} is for tables (.csv, .tsv, .data, .jsonl, .parquet), and this is not one: leave it "
                "out."
            )


def _folder(path: Path, options: Options) -> FederatedDataset:
    if holds_leaf(path):
        return leaf_dataset(path, None, options)
    if any(is_idx(entry.name) for entry in path.iterdir()):
        return load_idx_folder(path, options)
    raise EvenhandError(
        f"{path}: the folder holds neither LEAF .json files (in it, or in train/ and test/) nor IDX files: "
        "name a file in it."
    )


# --- tables -------------------------------------------------------------------------------------------------


def from_frame(
    frame: Any,
    *,
    client: str | Sequence[str] = "client",
    label: str = "label",
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    fill: Fill | None = None,
    standardize: bool = True,
    standardize_target: bool = True,
    drop_empty: bool = False,
    na: Sequence[str] = (),
    weight: str | None = None,
    regression: bool = False,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    clients: int | None = None,
    alpha: float = 0.5,
    name: str = "frame",
) -> FederatedDataset:
    """A federated data set from a pandas, polars or pyarrow table, or from a Hugging Face data set.

    The table is read as :func:`evenhand.data.load` reads a file: one row per example, columns of client ids, a
    column with the label, and features in the others.  The types of its columns decide what is text and what
    is a number; categories are text.  Names of columns are turned into text.  The index of a pandas table is not read.

    Args:
      frame: a ``pandas.DataFrame``, ``polars.DataFrame``, ``pyarrow.Table`` or ``datasets.Dataset``.
      client: column of client ids; for several, each combination is a client, called ``"north / A"``.
      label: column of labels.
      features: the columns to learn from; None: all others.
      drop: columns to leave out.
      categorical: columns whose numbers are categories; or the label, if its numbers are classes.
      fill: what an empty cell of the features counts as, as in :func:`evenhand.data.load`; None: it is refused.
      standardize: whether numbers get mean 0 and deviation 1 over the training rows.
      standardize_target: whether ``features.target`` keeps the scale of the targets, as in :func:`evenhand.data.load`.
      drop_empty: whether rows without a label or a client are left out; ``notes`` counts them.
      na: further spellings of an empty cell.
      weight: the column that says how many examples a row stands for, as in :func:`evenhand.data.load`.
      regression: labels are real-valued targets.
      test_fraction: share of each client's examples for testing.
      valid_fraction: share of each client's examples for validation.
      seed: of the split and the partition.
      clients: how many clients to spread the rows of a table without a client column over.
      alpha: concentration of that partition.
      name: what the data set is called.

    Raises:
      EvenhandError: ``frame`` is not such a table, a column is missing, or cells are empty, dates, lists or a mixture.

    Example:
      >>> import pyarrow
      >>> from evenhand.data import from_frame
      >>> table = pyarrow.table(
      ...     {
      ...         "ward": ["A", "A", "B", "B"],
      ...         "age": [70, 50, 60, 40],
      ...         "sex": ["f", "m", "f", "f"],
      ...         "ill": ["no", "yes", "no", "no"],
      ...     }
      ... )
      >>> data = from_frame(table, client="ward", label="ill", test_fraction=0.0)
      >>> data.features.inputs, data.classes
      (('age', 'sex = f', 'sex = m'), ('no', 'yes'))
    """
    # In the first line, while locals() are the arguments and nothing else.
    options = Options.from_arguments(locals())
    if isinstance(frame, str | Path):
        raise EvenhandError(f"{frame}: from_frame reads tables in memory: give a file to evenhand.data.load.")
    if clients is not None and clients < 1:
        raise EvenhandError(f"clients must be at least 1, not {clients}.")
    opened = open_frame(frame, name, options.na)
    for column in (label, *options.client):
        if column in opened.hidden:
            raise EvenhandError(
                f"{name}: {column!r} is in the index and not a column: give frame.reset_index() instead."
            )
    return table_dataset(name, in_memory(opened), options)


# --- built-in data ------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """Where files are, and the SHA-256 that each must have."""

    url: str
    files: dict[str, str]


SOURCES = {
    "mnist": Site(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Site(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
}

NAMES = ("digits", *SOURCES)
"""The names that :func:`load` knows beside files and folders."""

_DIGITS_CLIENTS = 30


def load_digits(options: Options) -> FederatedDataset:
    """1,797 digits of 8 x 8 pixels in [0, 1], flattened, spread over clients."""
    # Imported late: it takes a second that no other data set should wait for.
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    examples = (np.asarray(x) / 16).astype(np.float32), np.asarray(y).astype(np.int32)
    return pooled("digits", [examples], tuple("0123456789"), options, clients=_DIGITS_CLIENTS)


def download(name: str, source: Site) -> Path:
    """The folder with ``source``'s files, downloaded if they are missing.

    They are kept under ``$XDG_CACHE_HOME/evenhand`` (``~/.cache/evenhand``).  A file gets its name only after
    its checksum was right, so an interrupted download leaves nothing behind that looks complete.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "evenhand" / name
    for file, checksum in source.files.items():
        if not (folder / file).is_file():
            _fetch(f"{source.url}/{file}", folder / file, checksum)
    return folder


def _fetch(url: str, path: Path, checksum: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != checksum:
            raise EvenhandError(
                f"{url}: the file is not the published one (SHA-256 differs): try again later."
            )
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise EvenhandError(
            f"{url}: cannot be fetched to {path.parent} ({reason}): connect to the internet, or put the file "
            "there yourself."
        ) from None
