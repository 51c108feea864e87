"""``config.json``, written and read back: the method's expression and the options of a run."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy

from evenhand._version import __version__
from evenhand.cli._arguments import METHODS, Composed, options_of
from evenhand.cli._folder import CONFIG, dict_in, read_json
from evenhand.cli._options import Form
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.expressions import ExpressionError, called, canonical

__all__ = [
    "Recorded",
    "changes",
    "configuration",
    "continued",
    "filled",
    "flat",
    "naming",
    "recorded",
    "with_method",
]

_T = TypeVar("_T")

_ELSEWHERE = {"method", "out", "overwrite", "quiet", "config"}
"""Fields that are recorded separately, or that say where numbers go and not what they are."""

_EITHER = {"epochs": "steps", "steps": "epochs", "stragglers": "systems", "systems": "stragglers"}


class Recorded(NamedTuple):
    """What a ``config.json`` says of a run.

    Attributes:
      path: the file.
      method: an expression, canonical.
      options: name -> value.
    """

    path: Path
    method: str
    options: dict[str, Any]


def configuration(
    method: str, options: Any, data: FederatedDataset, without_effect: Collection[str] = ()
) -> dict[str, Any]:
    """What ``config.json`` holds.

    Args:
      method: the expression of the method.
      options: the dataclass of all options; its fields without a value are left out.
      data: the data set that they led to.
      without_effect: the options that have none in this run: the file keeps them, and reports leave them out.
    """
    kept = {name: value for name, value in flat(options).items() if name not in _ELSEWHERE}
    return {
        "method": method,
        "options": kept,
        "without_effect": [name for name in kept if name in without_effect],
        "data": {
            "name": data.name,
            "clients": data.num_clients,
            "client_column": data.client_column,
            "fingerprint": data.fingerprint,
            "form": Form.of(data).to_json(),
        },
        "versions": {
            "evenhand": __version__,
            "jax": jax.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def changes(path: Path, config: Mapping[str, Any]) -> list[str]:
    """Why a run with ``config``, made from the file ``path``, may give other numbers than the run of that file."""
    old = read_json(_file(path))
    if dict_in(old, "data").get("fingerprint") != config["data"]["fingerprint"]:
        return [f"The data are not those of {path}, so the numbers will differ."]
    versions = dict_in(old, "versions")
    moved = [name for name, version in config["versions"].items() if versions.get(name) != version]
    if moved:
        return [f"{', '.join(moved)} changed since {path} was written: the last digits may differ."]
    return []


def flat(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that have a value, those of the dataclasses in it included."""
    options: dict[str, Any] = {}
    for name, item in vars(value).items():
        if _is_group(name, item):
            options.update(flat(item))
        elif item is not None:
            options[name] = item
    return options


def _file(path: Path) -> Path:
    """A run folder stands for its ``config.json``; anything but a file is refused, as reading a pipe would wait."""
    if path.is_dir():
        path = path / CONFIG
    if path.exists() and not path.is_file():
        raise EvenhandError(f"{path} is not a file: name a run folder or the config.json of one.")
    return path


def recorded(path: Path) -> Recorded:
    """What a run folder or its ``config.json`` says.

    Raises:
      EvenhandError: the file is missing, not JSON, or not the configuration of a run.
    """
    path = _file(path)
    config = read_json(path)
    method, options = config.get("method"), config.get("options")
    if not isinstance(method, str) or not isinstance(options, dict):
        raise EvenhandError(
            f"{path} is not the configuration of a run: name the config.json of a run folder."
        )
    with naming(path):
        return Recorded(path, canonical(method), options)


@contextmanager
def naming(path: Path | None) -> Generator[None]:
    """Names the file that a faulty expression comes from; None: it comes from the command line."""
    try:
        yield
    except ExpressionError as error:
        if path is None:
            raise
        raise EvenhandError(f"{path}: {error}") from None


def with_method(words: Sequence[str], before: Recorded) -> list[str]:
    """``run --config FILE --mu 1`` with the method of the file, whose options these are."""
    name = called(before.method)[0].replace("_", "-")
    method = [name] if name in METHODS else [Composed.name, f"--expression={before.method}"]
    return ["run", *method, *words[1:]]


def continued(run: _T, given: Collection[str], before: Recorded) -> _T:
    """``run``, with the options that were not ``given`` as they were ``before``.

    Raises:
      EvenhandError: the file has a setting that no run has, or a value of another kind.
    """
    dropped = {other for name, other in _EITHER.items() if name in given}.union(given)
    kept = {name: value for name, value in before.options.items() if name not in dropped}
    return filled(run, before._replace(options=kept))


def filled(run: _T, before: Recorded) -> _T:
    """``run``, with the options that a file records.

    Raises:
      EvenhandError: there is no such option, or the value is of another kind.
    """
    known = options_of(type(run))
    for name, value in before.options.items():
        option = f"--{name.replace('_', '-')}"
        if option not in known or "-" in name:
            raise EvenhandError(f"{before.path}: run has no option {option}: leave {name!r:.40} out.")
        if known[option].inverts:
            switch = name.removeprefix("no_")
            raise EvenhandError(f"{before.path}: write {switch!r}, true or false, in place of {name!r}.")
        if not known[option].holds(value):
            takes = known[option] if known[option].kinds else "true or false"
            raise EvenhandError(f"{before.path}: {option} takes {takes}, not {value!r:.40}.")
    return _filled(run, before.options)


def _filled(options: _T, values: Mapping[str, Any]) -> _T:
    changed = {
        name: _filled(value, values) if _is_group(name, value) else values[name]
        for name, value in vars(options).items()
        if _is_group(name, value) or (name in values and name not in _ELSEWHERE)
    }
    return dataclasses.replace(options, **changed)  # pyright: ignore[reportArgumentType]  (it is a dataclass)


def _is_group(name: str, value: Any) -> bool:
    """Whether a field holds options, rather than one."""
    return dataclasses.is_dataclass(value) and name != "method"
