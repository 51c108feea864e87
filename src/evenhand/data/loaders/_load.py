"""One entry point for all sources of data, and one for tables in memory.

:func:`load` looks at what it is given: a built-in name, a folder, or a file, which its suffix leads to a reader.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.data._dataset import FederatedDataset, Split
from evenhand.data._features import Encode, Fill, Series
from evenhand.data._synthetic import is_synthetic, synthetic_of
from evenhand.data._validation import as_features
from evenhand.data.loaders._archive import files_in, is_archive, unpacked
from evenhand.data.loaders._arrays import is_idx, load_idx, load_idx_folder, load_npz
from evenhand.data.loaders._collections import (
    BATCHES,
    DRAWING,
    RATINGS,
    load_cifar,
    load_digits,
    load_movielens,
    load_omniglot,
)
from evenhand.data.loaders._download import Remote, cache_folder, fetch
from evenhand.data.loaders._frames import Frame, array_cells, array_column, open_frame
from evenhand.data.loaders._leaf import holds_leaf, leaf_dataset
from evenhand.data.loaders._source import Options, bare_suffix, check_file, kind_of, readable
from evenhand.data.loaders._sparse import LIBSVM, libsvm_files, load_cells, load_libsvm
from evenhand.data.loaders._table import in_memory, open_table, table_dataset
from evenhand.data.loaders._texts import (
    HDF5,
    REVIEW,
    TWEETS,
    holds_hdf5,
    load_hdf5,
    load_imdb,
    load_sent140,
)
from evenhand.errors import Argument, EvenhandError, nearest, whole_number

_MOST_ROWS = 2**24  # up to which float32 holds each row number exactly
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
    text: str | Sequence[str] = (),
    encode: Encode | None = None,
    vocabulary: int | None = None,
    buckets: int | None = None,
    min_examples: int = 1,
    features_array: str | None = None,
) -> FederatedDataset:
    """Loads a federated data set from a built-in name, a file or a folder.

    * ``"digits"``: 1,797 real handwritten digits, ``x`` (64,); they ship with scikit-learn.
    * ``"synthetic:1,1"``, ``"synthetic:iid"``: :func:`evenhand.data.synthetic`, which has further options.
    * ``"mnist"``, ``"fashion-mnist"``, ``"cifar10"``, ``"omniglot"``, ``"imdb"``, ``"movielens"``, ``"sent140"``,
      ``"femnist"``, ``"shakespeare"``, ``"stackoverflow"``: downloaded once, checked and kept, see below.
    * ``*.csv``, ``*.tsv``, ``*.parquet``: a table with a header, see below.
    * ``*.data``: the same, also with blanks between the cells; where the first line does not hold the name of the label
      or of a client column, there is no header, and the columns are called ``"1"``, ``"2"``, ...
    * ``*.jsonl``, ``*.ndjson``: a table of one JSON object per line.  All these may be packed, as in ``*.csv.gz``.
    * ``*.npz``: arrays ``x``, ``y``, ``client``, or ``x_train``, ... and ``x_test``, ...
    * ``*.json`` or a folder of them: LEAF, see :func:`evenhand.data.load_leaf`; ``train/`` and ``test/`` may be
      sub-folders.
    * ``*-images-idx3-ubyte[.gz]``: IDX with its labels file beside it; or a folder with train and t10k files.
    * ``*.libsvm``, ``*.svm``: LIBSVM, or a folder with such a file for each client.
    * ``*.mat``: cells ``X`` and ``Y`` of features and labels, one of each for each client, as Vehicle comes; every
      client standardises its own features.
    * ``*.h5``: TensorFlow Federated's EMNIST, Shakespeare or Stack Overflow, or a folder with ``*_train.h5`` and
      ``*_test.h5``; needs ``pip install 'evenhand[hdf5]'``.
    * ``*.bin``: a batch of CIFAR-10; and a folder or an archive, ``*.zip`` or ``*.tar.gz``, with the files of CIFAR-10,
      Omniglot, IMDB, MovieLens or Sentiment140 as they are published.

    Downloads are kept in ``$XDG_CACHE_HOME/evenhand``, or else ``evenhand`` in the platform's folder for caches:
    ``~/.cache``, ``~/Library/Caches`` or ``%LOCALAPPDATA%``.  Each must have its published SHA-256, and one that breaks
    off goes on where it ended.

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
    Those of LEAF, LIBSVM and MATLAB files may start as high as 10 and leave out nine in ten: few users lack classes.

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
        MNIST and its family, CIFAR-10 and IMDB, and an error for files that should name their clients.  For HDF5: how
        many clients to read, the first ones; None: all.  For Omniglot: how many tasks; None: 400.  Synthetic: how many
        to draw; None: 30.
      alpha: concentration of that partition.
      text: columns of a table that hold free text, such as reviews, from whose words a model learns: they are hashed
        into 1,024 inputs, unless one of the next three options is given.
      encode: text only: turns a text, or an entry of LEAF's ``x``, into numbers, such as
        :func:`evenhand.data.encode_words`.
      vocabulary: text only, in place of ``encode``: ``x`` is the share of each of so many words among the words of the
        text, the most frequent ones of all training texts.
      buckets: text only, in place of ``encode``: words are hashed into so many inputs, as by
        :func:`evenhand.data.encode_hashed`.
      min_examples: keep the clients with at least so many examples, as :meth:`FederatedDataset.min_examples`; texts of
        the others are never encoded.

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
    min_examples = whole_number("min_examples", min_examples, 1)
    data = _from(source, options)
    return data if min_examples == 1 else data.min_examples(min_examples)


def _from(source: str | Path, options: Options) -> FederatedDataset:
    if bare_suffix(Path(source)) not in _TABLES:
        _check_no_table(Path(source), options)
    name = str(source)
    if options.features_array is not None and not name.lower().endswith(".npz"):
        raise EvenhandError(
            f"{name}: only .npz files have arrays to choose from: leave features_array={options.features_array!r} out."
        )
    if is_name(name):
        return load_published(name, options)
    if is_synthetic(name):
        return synthetic_of(name, options.clients, options.splitting)
    path = Path(source)
    kind = kind_of(path)
    if not kind and name == "vehicle":
        raise EvenhandError(
            "vehicle: there is no address to download it from: get vehicle.mat from the page of q-FFL's authors, and "
            "name that file."
        )
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
    if TWEETS.search(path.name):
        return load_sent140(path, options)
    if bare_suffix(path) in LIBSVM:
        return load_libsvm(path, options)
    readers = {".npz": load_npz, ".mat": load_cells, ".bin": load_cifar, **dict.fromkeys(HDF5, load_hdf5)}
    if suffix in readers:
        return readers[suffix](path, options)
    if suffix == ".json":
        return leaf_dataset(path, None, options)
    if suffix in _TABLES or (suffix == ".gz" and bare_suffix(path) in _TEXTS):
        header = [options.label, *options.client]
        amounts = {options.label} if options.regression else set[str]()
        categorical = [name for name in options.categorical if name not in amounts]
        table = open_table(path, header, categorical, options.na, text=options.text, is_trained=False)
        return table_dataset(str(path), table, options)
    if is_archive(path):
        return _published_files(path, options, "the archive")
    raise EvenhandError(
        f"{path}: the suffix {suffix!r} is unknown: give .csv, .tsv, .data, .jsonl, .parquet, .npz, .libsvm, .mat, "
        ".h5, .bin, LEAF .json or IDX (*-images-idx3-ubyte); text may be packed as .gz."
    )


def _check_ways(source: str, options: Options) -> None:
    """Checks that columns of text are named where a way to encode them is given."""
    ways = {"encode": options.encode, "vocabulary": options.vocabulary, "buckets": options.buckets}
    for way, value in ways.items():
        if value is not None and not options.text:
            fault = f"{source}: {way} is for columns of free text, and none is named: name them with "
            raise EvenhandError(fault, Argument("text", "NAMES"), ".")


def _published_files(path: Path, options: Options, kind: str) -> FederatedDataset:
    """The data set in a folder or an archive of files as they are published."""
    reader = _reader_of(path)
    if reader is None:
        raise EvenhandError(
            f"{path}: {kind} holds neither LEAF .json files (in it, or in train/ and test/) nor IDX, HDF5 or LIBSVM "
            "files, nor those of CIFAR-10, Omniglot, IMDB, MovieLens or Sent140: name a file in it."
        )
    return reader(path, options)


def _check_no_table(source: Path, options: Options) -> None:
    """Refuses options that are only for tables; the labels of an .npz file may be declared as categories, too."""
    is_archive = source.suffix.lower() == ".npz"
    labels = {options.label, f"{options.label}_train", "y", "y_train"} if is_archive else set[str]()
    given = {
        "features": options.features is not None,
        "drop": bool(options.drop),
        "categorical": not labels.issuperset(options.categorical),
        "fill": options.fill is not None,
        "standardize": not options.standardize and source.suffix.lower() != ".mat",
        "standardize_target": not options.standardize_target,
        "drop_empty": options.drop_empty,
        "na": bool(options.na),
        "weight": options.weight is not None,
        "text": bool(options.text),
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
    if holds_hdf5(path):
        return load_hdf5(path, options)
    return load_libsvm(path, options) if libsvm_files(path) else _published_files(path, options, "the folder")


# --- files as others publish them ----------------------------------------------------------------------------


_PICKLED = re.compile(r"(^|/)(data_batch_\d+|test_batch)$")

_FIRST = 20_000
"""How many names are looked at to recognise an archive."""

_READERS: Sequence[tuple[re.Pattern[str], Callable[[Path, Options], FederatedDataset]]] = (
    (BATCHES, load_cifar),
    (DRAWING, load_omniglot),
    (re.compile(r"(^|/)images_(background|evaluation)\.zip$"), load_omniglot),
    (REVIEW, load_imdb),
    (TWEETS, load_sent140),
    (RATINGS, load_movielens),
)


def _reader_of(path: Path) -> Callable[[Path, Options], FederatedDataset] | None:
    """The reader of the data set that a folder or an archive holds; None: it holds none that is known.

    Raises:
      EvenhandError: it holds CIFAR-10 in the version that runs code when it is read.
    """
    for _, file in zip(range(_FIRST), files_in(path), strict=False):
        for pattern, reader in _READERS:
            if pattern.search(file.name):
                return reader
        if not path.is_dir() and file.name.endswith(".h5"):
            raise EvenhandError(f"{path}: HDF5 is read from files only: unpack it, and name the folder.")
        if _PICKLED.search(file.name):
            raise EvenhandError(
                f"{path}: {file.name[-60:]} is a pickle, which may run any code when it is read: use CIFAR-10's binary "
                "version, which the name cifar10 stands for."
            )
    return None


def spreads(path: Path) -> bool | None:
    """Whether the examples of a source are spread over clients, as they name none; None: its columns or keys tell."""
    if bare_suffix(path) in (*_TABLES, ".npz", ".json") and not TWEETS.search(path.name):
        return None
    if path.is_dir():
        if holds_leaf(path):
            return None
        if holds_hdf5(path) or libsvm_files(path):
            return False
    elif TWEETS.search(path.name) or path.suffix.lower() in (".mat", *HDF5):
        return False
    elif path.suffix.lower() == ".bin" or bare_suffix(path) in LIBSVM:
        return True
    if not (path.is_dir() or (path.is_file() and is_archive(path))):
        return None
    reader = _reader_of(path)
    return None if reader is None else reader in (load_cifar, load_imdb)


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
    text: str | Sequence[str] = (),
    encode: Encode | None = None,
    vocabulary: int | None = None,
    buckets: int | None = None,
    name: str = "frame",
) -> FederatedDataset:
    """Reads a federated data set from a pandas, polars or pyarrow table, or from a Hugging Face data set.

    The table is read as :func:`evenhand.data.load` reads a file: one row per example, columns of client ids, a
    column with the label, and features in the others.  The types of its columns decide what is text and what
    is a number; categories are text.  Names of columns are turned into text.  The index of a pandas table is not read.
    If the only feature is a column of arrays, such as pictures of Hugging Face or lists of tokens, the inputs are these
    arrays: floats, or integers as tokens; bytes of pictures are divided by 255.

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
      text: columns of free text; their words are hashed, unless one of the next three options is given.
      encode: a function from a text to numbers, such as :func:`evenhand.data.encode_tokens`.  A column of integers
        (tokens), or of several axes, must be the only feature.
      vocabulary: in place of ``encode``: count so many words, as in :func:`evenhand.data.load`.
      buckets: in place of ``encode``: hash the words into so many inputs, as in :func:`evenhand.data.load`.
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
    if clients is not None:
        whole_number("clients", clients, 1)
    _check_ways(name, options)
    opened = open_frame(frame, name, options.na)
    for column in (label, *options.client):
        if column in opened.hidden:
            raise EvenhandError(
                f"{name}: {column!r} is in the index and not a column: give frame.reset_index() instead."
            )
    arrays = _array_feature(frame, opened, options)
    if arrays is not None:
        return _array_dataset(frame, opened, arrays, name, options)
    return table_dataset(name, in_memory(opened), options)


def _array_feature(frame: Any, opened: Frame, options: Options) -> str | None:
    """The column that a model learns from, if it is a single one and may hold arrays."""
    others = {options.label, options.weight, *options.client, *options.drop}
    columns = (
        [name for name in opened.names if name not in others]
        if options.features is None
        else options.features
    )
    return columns[0] if len(columns) == 1 and array_cells(frame, columns[0]) is not None else None


def _array_dataset(frame: Any, opened: Frame, column: str, source: str, options: Options) -> FederatedDataset:
    """The data set of a table whose only feature is a column of arrays.

    The table is read with the numbers of the rows in the place of that column, so that labels, clients and splits are
    those of any other table.
    """
    arrays = as_features(array_column(frame, column, source), source)
    if len(arrays) > _MOST_ROWS:
        fault = f"{source} has {len(arrays):,} rows, and with a column of arrays at most {_MOST_ROWS:,} can be read"
        raise EvenhandError(f"{fault}: give eh.data.from_arrays(x, y, client).")

    def series(name: str) -> Series:
        return (
            Series(column, np.arange(len(arrays), dtype=np.float64))
            if name == column
            else opened.series(name)
        )

    numbers = options._replace(features=(column,), standardize=False, standardize_target=False)
    data = table_dataset(source, in_memory(opened._replace(series=series)), numbers)

    def filled(split: Split) -> Split:
        return split._replace(x=arrays[split.x[:, 0].astype(np.int64)])

    train, valid, test = map(filled, (data.train, data.valid, data.test))
    # The numbers of rows have no unit.
    notes = tuple(note for note in data.notes if not note.startswith(f"Column {column!r} may be in"))
    return replace(data, train=train, valid=valid, test=test, features=None, notes=notes)


# --- data sets by name: the digits, and those that are downloaded once and checked ----------------------------


class Published(NamedTuple):
    """A data set that others publish.

    Attributes:
      files: what is downloaded.
      read: its reader, of the folder with these files, or of the file if it is the only one.
      names_clients: whether each example belongs to a client; otherwise they are spread.
      has_test: whether some of the examples are for testing.
      has_reals: whether labels are real-valued targets, not classes.
    """

    files: tuple[Remote, ...]
    read: Callable[[Path, Options], FederatedDataset]
    names_clients: bool = False
    has_test: bool = True
    has_reals: bool = False


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python"
_TFF = "https://storage.googleapis.com/tff-datasets-public"


def _idx_files(site: str, checksums: Mapping[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{site}/{file}-ubyte.gz", checksum) for file, checksum in checksums.items())


PUBLISHED: Mapping[str, Published] = {
    "mnist": Published(
        _idx_files(
            _MNIST,
            {
                "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
        ),
        load_idx_folder,
    ),
    "fashion-mnist": Published(
        _idx_files(
            _FASHION,
            {
                "train-images-idx3": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ),
        load_idx_folder,
    ),
    # Sizes and checksums of the next five are those of TensorFlow Datasets, as of 2022: url_checksums/cifar10.txt,
    # omniglot.txt, imdb_reviews.txt, movielens.txt, and text/sentiment140/checksums.tsv.
    "cifar10": Published(
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
        load_cifar,
    ),
    "omniglot": Published(
        (
            Remote(
                f"{_OMNIGLOT}/images_background.zip",
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                9_464_212,
            ),
            Remote(
                f"{_OMNIGLOT}/images_evaluation.zip",
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                6_462_886,
            ),
        ),
        load_omniglot,
        names_clients=True,
    ),
    "imdb": Published(
        (
            Remote(
                "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                84_125_825,
            ),
        ),
        load_imdb,
    ),
    "movielens": Published(
        (
            Remote(
                "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
                "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
                4_924_029,
            ),
        ),
        load_movielens,
        names_clients=True,
        has_test=False,
        has_reals=True,
    ),
    "sent140": Published(
        (
            Remote(
                "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
                81_363_704,
            ),
        ),
        load_sent140,
        names_clients=True,
        has_test=False,
    ),
    # Checksums of the rest are those of TensorFlow Federated while it read these files: file_hash in
    # tensorflow_federated/python/simulation/datasets/{emnist,shakespeare,stackoverflow}.py.  It gives no sizes.
    "femnist": Published(
        (
            Remote(
                f"{_TFF}/fed_emnist.tar.bz2",
                "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
            ),
        ),
        load_hdf5,
        names_clients=True,
    ),
    "shakespeare": Published(
        (
            Remote(
                f"{_TFF}/shakespeare.tar.bz2",
                "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
            ),
        ),
        load_hdf5,
        names_clients=True,
    ),
    "stackoverflow": Published(
        (
            Remote(
                f"{_TFF}/stackoverflow.tar.bz2",
                "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
            ),
            Remote(
                f"{_TFF}/stackoverflow.tag_count.tar.bz2",
                "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
            ),
        ),
        load_hdf5,
        names_clients=True,
    ),
}
"""The data sets that :func:`evenhand.data.load` downloads, by name."""

NAMES = ("digits", *PUBLISHED)
"""The names that :func:`evenhand.data.load` knows beside files and folders."""


_FIRST_NAMES = ("digits", "mnist", "fashion-mnist")


def is_name(source: str) -> bool:
    """Whether a source is a built-in name; a file or folder of the name is meant where there is one.

    The oldest names are always names.
    """
    return source in _FIRST_NAMES or (source in NAMES and not Path(source).exists())


def load_published(name: str, options: Options, published: Published | None = None) -> FederatedDataset:
    """The data set of a name, whose files are kept in a folder of that name among the platform's caches.

    Args:
      name: one of :data:`NAMES`.
      options: what the caller asked for.
      published: where it is from; None: as listed above.
    """
    if name == "digits":
        return load_digits(options)
    entry = PUBLISHED[name] if published is None else published
    folder = cache_folder() / name
    files = [fetch(remote, folder) for remote in entry.files]
    place = folder if len(files) > 1 else files[0]
    if entry.read is load_hdf5:
        place = unpacked(files, folder)
    try:
        return replace(entry.read(place, options), name=name)
    except MemoryError:
        raise EvenhandError(f"{name} does not fit into memory: read fewer clients.") from None
