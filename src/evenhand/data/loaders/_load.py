"""One door for every source of data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.data._dataset import FederatedDataset
from evenhand.data._split import check_fractions
from evenhand.data.loaders._csv import load_csv
from evenhand.data.loaders._digits import load_digits
from evenhand.data.loaders._download import SOURCES, download
from evenhand.data.loaders._idx import is_idx, load_idx, load_idx_folder
from evenhand.data.loaders._leaf import holds_leaf, leaf_dataset
from evenhand.data.loaders._npz import load_npz
from evenhand.data.loaders._options import Encode, Options
from evenhand.data.loaders._parquet import load_parquet
from evenhand.errors import EvenhandError, nearest

__all__ = ["NAMES", "load"]

NAMES = ("digits", *SOURCES)
"""The names that :func:`load` knows beside files and folders."""


def load(
    source: str | Path,
    *,
    client: str = "client",
    label: str = "label",
    features: Sequence[str] | None = None,
    regression: bool = False,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    clients: int | None = None,
    alpha: float = 0.5,
    encode: Encode | None = None,
) -> FederatedDataset:
    """A federated data set from a built-in name, a file or a folder.

    ==================================
    ========================================================================= ``"digits"``
       1,797 real handwritten digits, ``x`` (64,); ships with scikit-learn ``"mnist"``, ``"fashion-mnist"``
       downloaded once, checked and cached, ``x`` (28, 28)
    ``*.csv``, ``*.parquet``            a header; a client column, a label column, all others numeric features
    ``*.npz``                           arrays ``x``, ``y``, ``client``, or ``x_train`` ... and ``x_test`` ...
    ``*.json``, a folder of them        LEAF, see :func:`evenhand.data.load_leaf`; ``train/`` and ``test/``
                                        may be sub-folders
    ``*-images-idx3-ubyte[.gz]``        IDX with its labels file beside it, or a folder with train and t10k
    files ==================================
    =========================================================================

    Rows without client ids (the built-in names, IDX, and others when ``clients`` is given) are spread over
    clients by :func:`evenhand.data.partition.dirichlet`, real targets evenly.  Test rows that the source
    keeps apart stay test rows, pooled ones in the class shares of each client's training rows.

    Class labels are whole numbers from 0 (4.0 counts as 4) or text, which is numbered in sorted order and
    kept in ``classes``.

    Args:
      source: what to load.
      client: column or array of client ids.
      label: column or array of labels; in ``.npz`` files ``y`` serves, too.
      features: the table columns to use; None: all others.
      regression: labels are real-valued targets.
      test_fraction: share of each client's rows for testing, where the source has no test part of its own.
      valid_fraction: share of each client's rows, or training rows, for validation.
      seed: of the split and the partition.
      clients: over how many clients to spread rows that have no client ids; None: 30 for the digits, 100 for
        MNIST and its family, and an error for files that should name their clients.
      alpha: concentration of that partition.
      encode: LEAF only, one entry of ``x`` -> numbers, for text.

    Raises:
      EvenhandError: one sentence with the file, the place in it and the cure; nothing is returned
        half-loaded.

    Example:
      >>> from evenhand.data import load
      >>> load("digits", clients=10)
      <FederatedDataset 'digits': 10 clients, ... rows, x float32 (64,), 10 classes>
    """
    check_fractions(test_fraction, valid_fraction)
    if clients is not None and clients < 1:
        raise EvenhandError(f"clients must be at least 1, not {clients}.")
    options = Options(
        client, label, features, regression, test_fraction, valid_fraction, seed, clients, alpha, encode
    )
    name = str(source)
    if name == "digits":
        return load_digits(options)
    if name in SOURCES:
        return load_idx_folder(download(name, SOURCES[name]), options)
    path = Path(source)
    if not path.exists():
        raise EvenhandError(
            f"{path}: no such file or folder{_perhaps(path)}, nor one of the built-in names {', '.join(NAMES)}: check "
            "the spelling."
        )
    try:
        return _folder(path, options) if path.is_dir() else _file(path, options)
    except OSError as error:
        raise EvenhandError(f"{path}: cannot be read ({error.strerror}): check its permissions.") from None


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
    if is_idx(path.name):
        return load_idx(path, options)
    match path.suffix.lower():
        case ".csv":
            return load_csv(path, options)
        case ".parquet" | ".pq":
            return load_parquet(path, options)
        case ".npz":
            return load_npz(path, options)
        case ".json":
            return leaf_dataset(path, None, options)
        case suffix:
            raise EvenhandError(
                f"{path}: the suffix {suffix!r} is unknown: give .csv, .parquet, .npz, LEAF .json or IDX "
                "(*-images-idx3-ubyte, with or without .gz)."
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
