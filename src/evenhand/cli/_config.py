"""``config.json`` and back: the options of a run as JSON, and JSON as command-line words."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy

from evenhand._version import __version__
from evenhand.cli._data import fingerprint
from evenhand.cli._folder import CONFIG, dict_in, read_json
from evenhand.cli._methods import METHODS, Method
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError

__all__ = ["changes", "configuration", "flat", "spelled", "with_config"]

_ELSEWHERE = {"method", "out", "overwrite", "quiet", "config"}
"""Fields that are told apart, or that say where numbers go and not what they are."""

_EITHER = {"--epochs": "--steps", "--steps": "--epochs"}


def configuration(method: Method, options: Any, data: FederatedDataset) -> dict[str, Any]:
    """What ``config.json`` holds.

    Args:
      method: the method and its hyper-parameters.
      options: the dataclass of all options; its fields without a value are left out.
      data: what they led to.
    """
    return {
        "method": {"name": method.name, **dataclasses.asdict(method)},
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
    """Why a run of ``config``, made from the file ``path``, may give other numbers than that file's."""
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
    """A run folder stands for its ``config.json``; what is neither is refused: a pipe would be waited for."""
    if path.is_dir():
        path = path / CONFIG
    if path.exists() and not path.is_file():
        raise EvenhandError(f"{path} is not a file: name a run folder or the config.json of one.")
    return path


def with_config(words: Sequence[str]) -> list[str]:
    """``run [METHOD] --config FILE ...`` with the file's settings spelled out before what is given beside it.

    The last of two equal options counts, so that a word on the command line beats the file; another METHOD
    leaves the file's hyper-parameters of its own method out.

    Raises:
      EvenhandError: the file is missing, no JSON, or no configuration of a run.
    """
    path, rest = _take_config(words)
    if path is None:
        return list(words)
    path = _file(path)
    method, options = _recorded(path)
    given = rest[1] if len(rest) > 1 and rest[1] in {known.name for known in METHODS} else None
    rest = rest[2:] if given else rest[1:]
    if given in (None, method["name"]):
        options = {**_settings(method), **options}
    named = {word.split("=", 1)[0] for word in rest}
    dropped = {other for option, other in _EITHER.items() if option in named}
    words = [word for word in _words(options) if word.split("=", 1)[0] not in dropped]
    return ["run", given or str(method["name"]), *words, *rest, f"--config={path}"]


def _recorded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """``(method, options)`` of a ``config.json``.

    Raises:
      EvenhandError: the file is missing, no JSON, or no configuration of a run.
    """
    config = read_json(path)
    method, options = dict_in(config, "method"), config.get("options")
    is_method = isinstance(name := method.get("name"), str) and not name.startswith("-")
    # A call for help would be answered, and the process would end as if all were well.
    if not is_method or not isinstance(options, dict) or "help" in {*method, *options}:
        raise EvenhandError(
            f"{path} is not the configuration of a run: name the config.json of a run folder."
        )
    return method, options


def _take_config(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    rest = list(words)
    if not rest or rest[0] != "run":
        return None, rest
    for index, word in enumerate(rest):
        if word.startswith("--config="):
            return Path(word.removeprefix("--config=")), rest[:index] + rest[index + 1 :]
        if word == "--config" and index + 1 < len(rest):
            return Path(rest[index + 1]), rest[:index] + rest[index + 2 :]
    return None, rest


def spelled(path: Path) -> list[str]:
    """The words after ``run`` that stand for a ``config.json``."""
    method, options = _recorded(path)
    return [str(method["name"]), *_words({**_settings(method), **options})]


def _settings(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in method.items() if name != "name"}


def _words(options: Mapping[str, Any]) -> list[str]:
    """``{"batch_size": 10, "regression": True}`` as ``--batch-size=10 --regression``."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not False and value is not None:
            words.append(f"{option}={value}")
    return words
