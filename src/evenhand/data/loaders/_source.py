"""What every reader is given and gives back: the caller's options, a path, and the data set of what was read.

A path is looked at before anything is opened: opening a pipe may wait for ever.  Examples that were read belong to
clients already (:func:`unpooled`), or they are spread over clients (:func:`pooled`).
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.data import partition
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._features import Fill
from evenhand.data._validation import NDArray
from evenhand.errors import Argument, EvenhandError

# --- options ------------------------------------------------------------------------------------------------


Encode: TypeAlias = Callable[[Any], npt.ArrayLike]

DEFAULT_LABEL = "label"

DEFAULT_CLIENT = ("client",)


class Options(NamedTuple):
    """The keyword arguments of :func:`evenhand.data.load`.

    Where ``client`` may name several columns, ``together`` has them all and ``client`` the first.
    """

    client: str = "client"
    label: str = DEFAULT_LABEL
    features: Sequence[str] | None = None
    regression: bool = False
    test_fraction: float = 0.2
    valid_fraction: float = 0.0
    seed: int = 0
    clients: int | None = None
    alpha: float = 0.5
    encode: Encode | None = None
    features_array: str | None = None
    together: tuple[str, ...] = DEFAULT_CLIENT
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    fill: Fill | None = None
    standardize: bool = True
    standardize_target: bool = True
    drop_empty: bool = False
    na: Sequence[str] = ()
    weight: str | None = None


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names in an option that takes one name or several."""
    return (names,) if isinstance(names, str) else tuple(names)


_SHOWN = 40
"""Most characters of a name in a list of names."""


def listing(names: Sequence[str]) -> str:
    """The first few of ``names`` for an error message."""
    shown = ", ".join(repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "...") for name in names[:6])
    return shown + (", ..." if len(names) > 6 else "")


# --- files --------------------------------------------------------------------------------------------------


_LARGE = 2**28

_CHUNK = 2**20

_DENSE = 200
"""More than ``_LARGE`` bytes that compress by more than this factor are not real data."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def kind_of(path: Path) -> str:
    """``"a file"``, ``"a folder"`` or what else ``path`` leads to; ``""`` if it leads nowhere.

    Raises:
      EvenhandError: that cannot be found out, as links form a circle or a folder on the way is not accessible.
    """
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "a file")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise EvenhandError(f"{path} cannot be read ({error.strerror}): name a file that can.") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise EvenhandError(f"{str(path)!r}: no file can have this name: check the spelling.") from None


def check_file(path: Path) -> None:
    """Refuses anything but a regular file, or a link to one.

    Raises:
      EvenhandError: there is nothing, or something else; it has not been opened.
    """
    kind = kind_of(path)
    if not kind:
        raise EvenhandError(f"{path}: no such file: check the spelling.")
    if kind != "a file":
        raise EvenhandError(f"{path} is {kind}, not a file: name a file, or copy the data into one.")


def check_unpacked(path: Path, size: int, cure: str) -> None:
    """Refuses a compressed file that unpacks to implausibly much."""
    packed = path.stat().st_size
    if size > max(_LARGE, _DENSE * packed):
        raise EvenhandError(
            f"{path}: {packed / 1e6:.1f} MB unpack to {size / 1e6:.0f} MB: {cure}, if that is meant."
        )


def bare_suffix(path: Path) -> str:
    """The suffix in small letters, without ``.gz``: ``".csv"`` for ``t.CSV.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


@contextmanager
def open_text(path: Path) -> Generator[TextIO]:
    """A file of UTF-8 text, unpacked if it ends in ``.gz``.

    Raises:
      EvenhandError: it is damaged, or unpacks to implausibly much.
    """
    if path.suffix.lower() != ".gz":
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield file
        return
    _check_packed(path)
    with gzip.open(path, "rt", newline="", encoding="utf-8-sig") as file:
        yield file


def _check_packed(path: Path) -> None:
    """Unpacks a file once and keeps nothing: a damaged one, or one that would fill the memory, is found first."""
    size = 0
    try:
        with gzip.open(path) as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                check_unpacked(path, size, "unpack it")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise EvenhandError(
            f"{path}: this is not a gzip file, or a damaged one: write or copy it again."
        ) from None


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turns what the system raises while ``path``, or a file in it, is read into one sentence."""
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        raise EvenhandError(
            f"{where} cannot be read ({error.strerror or error}): check its permissions."
        ) from None
    except MemoryError:
        raise EvenhandError(f"{path} does not fit into memory: use a smaller file.") from None


# --- the data set of what was read --------------------------------------------------------------------------


class Pool(NamedTuple):
    """Checked examples that belong to no client yet."""

    x: NDArray
    y: NDArray


def unpooled(
    path: Path | str,
    train: PooledRows,
    test: PooledRows | None,
    classes: tuple[str, ...] | None,
    options: Options,
) -> FederatedDataset:
    """The data set of examples whose clients are known."""
    return build(
        train,
        test,
        name=str(path),
        classes=classes,
        test_fraction=options.test_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.seed,
    )


def pooled(
    path: Path | str,
    train: Pool,
    test: Pool | None,
    classes: tuple[str, ...] | None,
    options: Options,
    clients: int,
) -> FederatedDataset:
    """The data set of examples spread over ``clients``: Dirichlet by class, evenly for real targets."""
    for part in (train,) if test is None else (train, test):
        if len(part.x) != len(part.y):
            raise EvenhandError(
                f"{path}: there are {len(part.x)} rows but {len(part.y)} labels: give one label for each row."
            )
    owner = owners(path, train.y, clients, options)
    rows = PooledRows(train.x, train.y, owner)
    if test is None:
        return unpooled(path, rows, None, classes, options)
    # Real targets count as one class: every client gets test examples in proportion to its training examples.
    kinds = (train.y, test.y) if _by_class(train.y) else (np.zeros(len(train.y)), np.zeros(len(test.y)))
    fresh = partition.matching(kinds[0], owner, kinds[1], options.seed)
    return unpooled(path, rows, PooledRows(test.x, test.y, fresh), classes, options)


def owners(path: Path | str, y: NDArray, clients: int, options: Options) -> NDArray:
    """Clients for examples that have none, ``(n,)``: Dirichlet by class, evenly for real targets."""
    if clients > len(y):
        raise EvenhandError(
            f"{path}: {len(y)} examples are too few for {clients} clients: ask for fewer with ",
            Argument("clients", "N"),
            ".",
        )
    if _by_class(y):
        return partition.dirichlet(y, clients, options.alpha, options.seed)
    return partition.iid(y, clients, options.seed)


def _by_class(y: NDArray) -> bool:
    return y.dtype.kind == "i" and y.ndim == 1
