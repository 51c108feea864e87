"""A command as a person types it, from its options."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

__all__ = ["command"]


def command(name: str, words: Sequence[str], options: Sequence[Any], without: Collection[str] = ()) -> str:
    """``evenhand NAME WORDS --OPTION VALUE ...``, with the options that differ from their defaults.

    Args:
      name: the command.
      words: its positional arguments.
      options: data classes of options.
      without: options that are left out.
    """
    found = ["evenhand", name, *words]
    for each in options:
        for field in fields(each):
            value = vars(each)[field.name]
            if field.name in without or value == field.default:
                continue
            option = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                found.append(option if value else f"--no-{option[2:]}")
            else:
                values = value if isinstance(value, list | tuple) else [value]
                found += [option, *map(str, values)]
    return shlex.join(found)
