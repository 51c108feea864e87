"""One file in the JSON layout of LEAF, checked user by user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evenhand.data._arrays import NDArray, as_array, as_features
from evenhand.data._ids import canonical
from evenhand.data._text import first_repeated, is_missing, name_fault
from evenhand.data.loaders._files import check_file
from evenhand.data.loaders._options import Encode
from evenhand.errors import EvenhandError

__all__ = ["User", "read_users"]

Json: TypeAlias = dict[str, Any]


class User(NamedTuple):
    """One user's examples.

    Attributes:
      name: the user's name.
      file: the file that they are in.
      x: float32 or int32 ``(n, ...)``.
      y: ``(n, ...)`` numbers or text, not yet checked as labels.
    """

    name: str
    file: Path
    x: NDArray
    y: NDArray


def read_users(file: Path, encode: Encode | None) -> list[User]:
    """All users of a file, in its order."""
    content = _parse(file)
    names, samples, data = content["users"], content.get("num_samples"), content["user_data"]
    if samples is not None and (not isinstance(samples, list) or len(samples) != len(names)):
        raise EvenhandError(
            f"{file}: num_samples does not have one number for each of the {len(names)} users: add those "
            "that are missing."
        )
    users: list[User] = []
    for position, name in enumerate(names):
        if name not in data:
            raise EvenhandError(
                f"{file}: user {name!r} is in users but not in user_data: add its examples, or unlist it."
            )
        user = _read_user(file, name, data[name], encode)
        if samples is not None and samples[position] != len(user.y):
            raise EvenhandError(
                f"{file}: user {name!r} has {len(user.y)} examples but num_samples says {str(samples[position])[:40]}: "
                "correct num_samples, or restore the examples."
            )
        users.append(user)
    return users


def _read_user(file: Path, name: str, rows: Any, encode: Encode | None) -> User:
    source = f"{file}: user {name!r}"
    if not isinstance(rows, dict) or not {"x", "y"} <= rows.keys():
        raise EvenhandError(f"{source} has no x and y: write its examples as two lists of those names.")
    x, y = rows["x"], rows["y"]
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise EvenhandError(f"{source} has x and y of different lengths: give one label for each row of x.")
    if not y:
        return User(canonical(name), file, np.empty((0,), np.float32), np.empty((0,)))
    return User(canonical(name), file, _features(source, x, encode), as_array(y, source, "y"))


def _features(source: str, x: list[Any], encode: Encode | None) -> NDArray:
    if encode is not None:
        try:
            encoded = [np.asarray(encode(entry)) for entry in x]
        except EvenhandError as error:
            raise EvenhandError(f"{source}: {error}") from None
        return as_features(encoded, source)
    # Texts may be of any length: they must not become an array.
    text = next((entry for entry in x if isinstance(entry, str)), None)
    if text is not None:
        raise EvenhandError(
            f"{source}: x holds text such as {text[:20]!r}: say how to turn it into numbers with "
            "encode=FUNCTION, for LEAF's Shakespeare encode=evenhand.data.encode_characters."
        )
    values = as_array(x, source, "x")
    if values.dtype.kind == "U":
        raise EvenhandError(f"{source}: x holds text, not numbers: encode it as numbers first.")
    return as_features(values.astype(np.float32 if values.dtype.kind in "iu" else values.dtype), source)


def _parse(file: Path) -> Json:
    """The top level of a file, checked."""
    tree = _json(file)
    if not isinstance(tree, dict) or not {"users", "user_data"} <= tree.keys():
        raise EvenhandError(
            f"{file}: the file is not in LEAF's layout: write the keys users, num_samples and user_data."
        )
    names, data = tree["users"], tree["user_data"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EvenhandError(f"{file}: users is not a list of names: write one, such as ['ann', 'bob'].")
    if not isinstance(data, dict):
        raise EvenhandError(f"{file}: user_data is not an object: write one with an entry for each user.")
    if not names:
        raise EvenhandError(f"{file}: there are no users: list at least one, with examples.")
    for name in names:
        fault = "is not a client id" if is_missing(name) else name_fault(name)
        if fault is not None:
            raise EvenhandError(f"{file}: user {name[:40]!r} {fault}: give the user another name.")
    twice = first_repeated(map(canonical, names))
    if twice is not None:
        raise EvenhandError(f"{file}: user {twice!r} is listed twice in users: merge the two, or rename one.")
    strangers = data.keys() - set(names)
    if strangers:
        raise EvenhandError(
            f"{file}: user {min(strangers)!r} is in user_data but not in users: list it, or drop it."
        )
    return tree


def _json(file: Path) -> Any:
    check_file(file)
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_distinct)
    except _TwiceError as error:
        raise EvenhandError(
            f"{file}: key {error.args[0][:40]!r} occurs twice: merge the two, or rename one."
        ) from None
    except OSError as error:
        raise EvenhandError(f"{file}: cannot be read ({error.strerror}): check its permissions.") from None
    except UnicodeDecodeError:
        raise EvenhandError(f"{file}: the file is not UTF-8 text: save it as JSON in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise EvenhandError(
            f"{file}: line {error.lineno}, column {error.colno} is not JSON, or the file is truncated: write or "
            "copy it again."
        ) from None
    except RecursionError:
        raise EvenhandError(f"{file}: lists are nested too deeply: write one list per row.") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise EvenhandError(f"{file}: a number has thousands of digits: write a shorter one.") from None


class _TwiceError(Exception):
    """A key that occurs twice in one JSON object, which Python would silently accept."""


def _distinct(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found
