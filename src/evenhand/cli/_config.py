"""``config.json``, written and read back: the method's expression and the options of a run."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import jax
import numpy

from evenhand._version import __version__
from evenhand.cli._data import fingerprint
from evenhand.cli._expression import called
from evenhand.cli._folder import CONFIG, dict_in, read_json
from evenhand.cli._methods import METHODS, Composed
from evenhand.cli._spelling import options_of
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError

__all__ = ["Recorded", "changes", "configuration", "continued", "filled", "flat", "recorded", "with_method"]

_T = TypeVar("_T")

_ELSEWHERE = {"method", "out", "overwrite", "quiet", "config"}
"""Fields that are recorded separately, or that say where numbers go and not what they are."""

_EITHER = {"epochs": "steps", "steps": "epochs", "stragglers": "systems", "systems": "stragglers"}


class Recorded(NamedTuple):
    """What a ``config.json`` says of a run.

    Attributes:
      path: the file.
      method: an expression.
      options: name -> value.
    """

    path: Path
    method: str
    options: dict[str, Any]


def configuration(method: str, options: Any, data: FederatedDataset) -> dict[str, Any]:
    """What ``config.json`` holds.

    Args:
      method: the expression of the method.
      options: the dataclass of all options; its fields without a value are left out.
      data: the data set that they led to.
    """
    return {
        "method": method,
        "options": {name: value for name, value in flat(options).items() if name not in _ELSEWHERE},
        "data": {"name": data.name, "clients": data.num_clients, "fingerprint": fingerprint(data)},
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
        if dataclasses.is_dataclass(item) and name != "method":
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
    return Recorded(path, method, options)


def with_method(words: Sequence[str], before: Recorded) -> list[str]:
    """``run --config FILE --mu 1`` with the method of the file, whose options these are."""
    name = called(before.method)[0].replace("_", "-")
    method = [name] if name in METHODS else [Composed.name, f"--expression={before.method}"]
    return ["run", *method, *words[1:]]


def continued(run: _T, words: Sequence[str], before: Recorded) -> _T:
    """``run``, with the options that ``words`` leave out as they were ``before``.

    Raises:
      EvenhandError: the file has a setting that no run has, or a value of another kind.
    """
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    dropped = {other for name, other in _EITHER.items() if name in given}
    options = {name: value for name, value in before.options.items() if name not in dropped}
    options |= {name: value for name, value in flat(run).items() if name in given - _ELSEWHERE}
    apart = {name: value for name, value in vars(run).items() if name in _ELSEWHERE}
    return filled(type(run), options, before.path, apart)


def filled(kind: type[_T], options: Mapping[str, Any], path: Path, apart: Mapping[str, Any]) -> _T:
    """A dataclass with these options, in it or in the dataclasses that it contains; all others keep their defaults.

    Args:
      kind: its type.
      options: name -> value.
      path: the file that they come from.
      apart: name -> value, for fields of ``kind`` that are not checked.

    Raises:
      EvenhandError: there is no such option, or the value is of another kind.
    """
    known = options_of(kind)
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if option not in known or "-" in name:
            raise EvenhandError(f"{path}: run has no option {option}: leave {name!r:.40} out.")
        if not known[option].holds(value):
            takes = known[option] if known[option].kinds else "true or false"
            raise EvenhandError(f"{path}: {option} takes {takes}, not {value!r:.40}.")
    return _filled(kind, options, apart)


def _filled(kind: type[_T], options: Mapping[str, Any], apart: Mapping[str, Any]) -> _T:
    hints, values = get_type_hints(kind), dict(apart)
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]  (it is a dataclass)
        hint = hints[field.name]
        if field.name not in apart and dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[field.name] = _filled(hint, options, {})
        elif field.name in options and field.name not in apart:
            values[field.name] = options[field.name]
    return kind(**values)
