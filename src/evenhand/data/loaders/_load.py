"""One entry point for all sources of data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.data._dataset import FederatedDataset
from evenhand.data._features import Fill
from evenhand.data._split import check_fractions
from evenhand.data.loaders._csv import load_csv
from evenhand.data.loaders._digits import load_digits
from evenhand.data.loaders._download import SOURCES, download
from evenhand.data.loaders._files import bare_suffix, check_file, kind_of, readable
from evenhand.data.loaders._idx import is_idx, load_idx, load_idx_folder
from evenhand.data.loaders._jsonl import load_jsonl
from evenhand.data.loaders._leaf import holds_leaf, leaf_dataset
from evenhand.data.loaders._npz import load_npz
from evenhand.data.loaders._options import Encode, Options, several
from evenhand.data.loaders._parquet import load_parquet
from evenhand.errors import EvenhandError, nearest, whole_number

__all__ = ["NAMES", "load"]

NAMES = ("digits", *SOURCES)
"""The names that :func:`load` knows beside files and folders."""

_TABLES = (".csv", ".tsv", ".data", ".jsonl", ".ndjson", ".parquet", ".pq")


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
    check_fractions(test_fraction, valid_fraction)
    if clients is not None:
        whole_number("clients", clients, 1)
    if not isinstance(source, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  (people try)
        raise EvenhandError(
            f"load reads files, not {type(source).__name__} objects: give a table in memory to "
            "evenhand.data.from_frame, and arrays to evenhand.data.from_arrays."
        )
    together = several(client)
    options = Options(
        client=together[0] if together else "",
        label=label,
        features=features,
        regression=regression,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
        clients=clients,
        alpha=alpha,
        encode=encode,
        features_array=features_array,
        together=together,
        drop=drop,
        categorical=categorical,
        fill=fill,
        standardize=standardize,
        standardize_target=standardize_target,
        drop_empty=drop_empty,
        na=several(na),
        weight=weight,
    )
    return _from(source, options)


def _from(source: str | Path, options: Options) -> FederatedDataset:
    if bare_suffix(Path(source)) not in _TABLES:
        _check_no_table(Path(source), options)
    name = str(source)
    if options.features_array is not None and not name.lower().endswith(".npz"):
        raise EvenhandError(
            f"{name}: only .npz files have arrays to choose from: "
            f"leave features_array={options.features_array!r} out."
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
        try:
            meant = nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))
        except OSError:
            return ""
        meant = None if meant is None else str(path.parent / meant)
    return "" if meant is None else f" (perhaps you meant {meant})"


def _file(path: Path, options: Options) -> FederatedDataset:
    check_file(path)
    if is_idx(path.name):
        return load_idx(path, options)
    suffix = path.suffix.lower()
    match bare_suffix(path) if suffix == ".gz" else suffix:
        case ".csv" | ".tsv" | ".data":
            return load_csv(path, options)
        case ".jsonl" | ".ndjson":
            return load_jsonl(path, options)
        case ".parquet" | ".pq" if suffix != ".gz":
            return load_parquet(path, options)
        case ".npz" if suffix != ".gz":
            return load_npz(path, options)
        case ".json" if suffix != ".gz":
            return leaf_dataset(path, None, options)
        case _:
            raise EvenhandError(
                f"{path}: the suffix {suffix!r} is unknown: give .csv, .tsv, .data, .jsonl, .parquet, .npz, LEAF "
                ".json or IDX (*-images-idx3-ubyte); text may be packed as .gz."
            )


def _check_no_table(source: Path, options: Options) -> None:
    """Refuses options that are only for tables; the labels of an .npz file may be declared as categories, too."""
    labels = (
        {options.label, f"{options.label}_train", "y", "y_train"}
        if source.suffix.lower() == ".npz"
        else set[str]()
    )
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
        "several client columns": len(options.together) != 1,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise EvenhandError(
            f"{source}: {name} is for tables (.csv, .tsv, .data, .jsonl, .parquet), and this is not one: leave it out."
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
