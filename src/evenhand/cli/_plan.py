"""A study's plan: methods and options in a TOML file, as words of the command line."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.errors import EvenhandError

__all__ = ["planned"]


def planned(words: Sequence[str]) -> list[str]:
    """The words of a study, with those that its ``--plan`` stands for before them.

    Raises:
      EvenhandError: the file cannot be read, or holds something else than options.
    """
    path = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--plan":
            path = Path(value if equals else following)
    if path is None:
        return list(words)
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise EvenhandError(f"--plan {path}: there is no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvenhandError(f"--plan {path} is not TOML ({error}).") from None
    methods = found.pop("methods", [])
    if not isinstance(methods, list) or not all(isinstance(each, str) for each in methods):
        raise EvenhandError(f"--plan {path}: methods must be a list of texts.")
    rest = [word for i, word in enumerate(words) if not _is_plan(words, i)]
    given = list(itertools.takewhile(lambda word: not word.startswith("-"), rest[1:]))
    return [words[0], *(given or methods), *_options(path, found), *rest[1 + len(given) :]]


def _options(path: Path, found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            raise EvenhandError(f"--plan {path}: {name} is a table, where an option belongs.")
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}"
        else:
            alone = name == "seeds" and isinstance(value, list) and len(value) == 1  # that seed, not so many
            yield f"{option}={','.join(map(str, value)) if isinstance(value, list) else value}{',' * alone}"


def _is_plan(words: Sequence[str], i: int) -> bool:
    """Whether a word is ``--plan``, or its value."""
    return words[i].partition("=")[0] == "--plan" or (i > 0 and words[i - 1] == "--plan")
