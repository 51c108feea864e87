"""What every reader is given: the caller's options, and a path.

A path is looked at before anything is opened: opening a pipe may wait for ever.
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from evenhand.data._features import Encode, Fill, few
from evenhand.data._validation import Splitting
from evenhand.errors import EvenhandError, expect, truth_value

# --- options ------------------------------------------------------------------------------------------------


DEFAULT_LABEL = "label"

DEFAULT_CLIENT = ("client",)


class Options(NamedTuple):
    """The keyword arguments of :func:`evenhand.data.load`; options that take one name or several have a tuple."""

    client: tuple[str, ...] = DEFAULT_CLIENT
    label: str = DEFAULT_LABEL
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    fill: Fill | None = None
    standardize: bool = True
    standardize_target: bool = True
    drop_empty: bool = False
    na: tuple[str, ...] = ()
    weight: str | None = None
    regression: bool = False
    test_fraction: float = 0.2
    valid_fraction: float = 0.0
    seed: int = 0
    clients: int | None = None
    alpha: float = 0.5
    text: tuple[str, ...] = ()
    encode: Encode | None = None
    vocabulary: int | None = None
    buckets: int | None = None
    min_examples: int = 1
    features_array: str | None = None

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> Options:
        """The options among the arguments of a function, by name; its others are no options.

        Raises:
          EvenhandError: the fractions leave nothing for training, several options say what a text becomes, or a list
            of names is one piece of text.
        """
        named = {name: _in_text(value) if name in _NAMES else value for name, value in arguments.items()}
        for name in ("features", "drop", "categorical"):
            if isinstance(value := named.get(name), str):
                raise EvenhandError(
                    f"{name}={value!r} is one piece of text: give a list of names, [{value!r}]."
                )
        for name in ("client", "features", "drop", "categorical", "text"):
            value = named.get(name, ())
            is_left_out = name == "features" and value is None
            if not is_left_out and not (
                isinstance(value, Collection) and all(isinstance(x, str) for x in value)
            ):
                raise EvenhandError(f"{name}={value!r:.60}: give names of columns, such as ['age', 'sex'].")
        options = Options(**{name: value for name, value in named.items() if name in Options._fields})
        for name in ("standardize", "standardize_target", "drop_empty", "regression"):
            truth_value(name, named.get(name, False))
        options.splitting.check()
        ways = {"encode": options.encode, "vocabulary": options.vocabulary, "buckets": options.buckets}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise EvenhandError(
                f"{given[0]} and {given[1]} exclude each other, as each says what a text becomes: give one of them."
            )
        features = None if options.features is None else several(options.features)
        lists = {"client": options.client, "na": options.na, "text": options.text}
        for name, value in lists.items():
            expect(name, value, Collection, "['?', '-999']" if name == "na" else "['site', 'year']")
        return options._replace(features=features, **{name: several(value) for name, value in lists.items()})

    @property
    def splitting(self) -> Splitting:
        """How each client's examples are divided."""
        return Splitting(self.test_fraction, self.valid_fraction, self.seed)


_NAMES = {"client", "label", "weight", "features", "drop", "categorical", "text"}
"""The options that name columns."""


def _in_text(names: Any) -> Any:
    """Names of columns as text, where they are numbers, as in a pandas table that was read without a header."""
    if isinstance(names, list | tuple):
        return type(names)(map(_in_text, cast(Sequence[Any], names)))
    return str(names) if isinstance(names, Integral) else names


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names in an option that takes one name or several; those of a set, which has no fixed order, sorted."""
    if isinstance(names, str):
        return (names,)
    return tuple(sorted(names) if isinstance(names, set | frozenset) else names)


_SHOWN = 40
"""Most characters of a name in a list of names."""


def listing(names: Sequence[str]) -> str:
    """The first few of ``names`` for an error message."""
    return few([repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "...") for name in names])


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
def open_text(path: Path, form: str) -> Generator[TextIO]:
    """A file of UTF-8 text in this form, such as ``"CSV"``, unpacked if it ends in ``.gz``.

    Raises:
      EvenhandError: it is damaged, or unpacks to implausibly much.
    """
    is_packed = path.suffix.lower() == ".gz"
    if is_packed:
        _check_packed(path)
    try:
        opened = gzip.open if is_packed else Path.open
        with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError:
        raise EvenhandError(f"{path}: the file is not UTF-8 text: save it as {form} in UTF-8.") from None


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
