"""LEAF JSON: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evenhand.data import _validation as validation
from evenhand.data._dataset import FederatedDataset, PooledRows, build
from evenhand.data._features import Encode
from evenhand.data._text import encode_counts, encode_hashed, most_frequent
from evenhand.data._validation import NDArray
from evenhand.data.loaders._source import Options, check_file, kind_of, open_text, readable
from evenhand.errors import EvenhandError, truth_value


def load_leaf(
    train: str | Path,
    test: str | Path | None = None,
    *,
    regression: bool = False,
    test_fraction: float = 0.2,
    valid_fraction: float = 0.0,
    seed: int = 0,
    encode: Encode | None = None,
) -> FederatedDataset:
    """Loads a data set in the JSON layout of LEAF, from one file or from all ``.json`` files of a folder.

    Users are matched and ordered by name; files and users may come in any order.  With ``test``, both
    parts must hold the same users.

    Args:
      train: a file, or a folder of files; a folder with sub-folders ``train`` and perhaps ``test`` stands for
        those.
      test: likewise; None: each user's examples are split at random.
      regression: labels are real-valued targets; by default 4.0 is class 4, and text is numbered in sorted
        order.
      test_fraction: share of each user's examples for testing, where there is no test part.
      valid_fraction: share of each user's (training) examples for validation.
      seed: of the split.
      encode: turns one entry of ``x`` into an array of numbers; integers are kept as tokens.  Without it ``x``
        must be numbers, which become float32.  For LEAF's Shakespeare:
        :func:`evenhand.data.encode_characters`.

    Raises:
      EvenhandError: something is wrong with a file; one sentence gives the file, the user and the cure.

    Source: Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018.

    Example:
      >>> import json, pathlib, tempfile
      >>> from evenhand.data import load_leaf
      >>> file = pathlib.Path(tempfile.mkdtemp(), "all.json")
      >>> rows = {"x": [[0.5, 1.0], [1.5, 2.0]], "y": [0.0, 4.0]}
      >>> _ = file.write_text(json.dumps({"users": ["ann"], "num_samples": [2], "user_data": {"ann": rows}}))
      >>> data = load_leaf(file, test_fraction=0.5)
      >>> data.client_ids, data.train.sizes, data.num_classes
      (('ann',), array([1]), 5)
    """
    regression = truth_value("regression", regression)
    # In the first line, while locals() are the arguments and nothing else.
    options = Options.from_arguments(locals())
    with readable(Path(train)):
        return leaf_dataset(Path(train), None if test is None else Path(test), options)


def holds_leaf(folder: Path) -> bool:
    """Whether a folder has JSON files, or a sub-folder ``train`` that has."""
    return bool(_json_files(folder)) or ((folder / "train").is_dir() and bool(_json_files(folder / "train")))


def leaf_dataset(train: Path, test: Path | None, options: Options) -> FederatedDataset:
    """As :func:`load_leaf`."""
    source = train
    if test is None and (train / "train").is_dir() and not _json_files(train):
        test = train / "test" if (train / "test").is_dir() else None
        train = train / "train"
    if options.vocabulary is not None and options.encode is None:
        options = options._replace(encode=encode_counts(most_frequent(_texts(train), options.vocabulary)))
    if options.buckets is not None:
        options = options._replace(encode=encode_hashed(options.buckets))
    users = _read(train, options.encode)
    for user in users.values():
        if not len(user.y):
            raise EvenhandError(
                f"{user.file}: user {user.name!r} has no examples: drop the user or give it some."
            )
    parts = [list(users.values())]
    if test is not None:
        tested = _read(test, options.encode)
        _check_same_users(train, users, test, tested)
        parts.append([user for user in tested.values() if len(user.y)])
        if not parts[1]:
            raise EvenhandError(f"{test}: no user has examples: give them some, or leave the test part out.")
    everyone = list(chain.from_iterable(parts))
    _check_same_form(everyone)
    labels, classes = _labels(everyone, options.regression, source)
    cut = sum(len(user.y) for user in parts[0])
    rows = [_rows(*part) for part in zip(parts, np.split(labels, [cut]), strict=False)]
    data = build(rows, options.splitting, name=str(source), classes=classes)
    # The characters of a text need not all occur.
    remark = validation.remark_on_gaps(labels, classes) if options.encode is None else ()
    return replace(data, notes=(*data.notes, *remark))


def _texts(path: Path) -> list[Any]:
    """The examples of all users of a file or folder, as they are written."""
    trees = [_parse(file)["user_data"] for file in (_json_files(path) if path.is_dir() else [path])]
    rows = (user.get("x") for tree in trees for user in tree.values() if isinstance(user, dict))
    return list(chain.from_iterable(x for x in rows if isinstance(x, list)))


def _json_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def _read(path: Path, encode: Encode | None) -> dict[str, User]:
    """All users of a file or folder, by name."""
    kind = kind_of(path)
    if not kind:
        raise EvenhandError(f"{path}: no such file or folder: check the spelling.")
    files = _json_files(path) if kind == "a folder" else [path]
    if not files:
        raise EvenhandError(f"{path}: the folder holds no .json files: name one that does.")
    users: dict[str, User] = {}
    for file in files:
        for user in read_users(file, encode):
            if user.name in users:
                raise EvenhandError(
                    f"{file}: user {user.name!r} is also in {users[user.name].file.name}: merge the two, or "
                    "rename one."
                )
            users[user.name] = user
    return users


def _check_same_users(train: Path, users: dict[str, User], test: Path, tested: dict[str, User]) -> None:
    for users_here, other, path, other_path in ((users, tested, train, test), (tested, users, test, train)):
        for name in sorted(users_here.keys() - other.keys()):
            raise EvenhandError(
                f"{other_path}: user {name!r} of {path} is missing: give both parts the same users, or only a training "
                "part, which is then split."
            )


def _check_same_form(users: list[User]) -> None:
    """Checks that all rows have one shape, and all labels one kind."""
    first = users[0]
    for user in users:
        where, shape = f"{user.file}: user {user.name!r} has", user.x.shape[1:]
        if shape != first.x.shape[1:]:
            fault = f"rows of shape {shape} but user {first.name!r} of {first.x.shape[1:]}"
            raise EvenhandError(f"{where} {fault}: give all rows the same number of features.")
        if (user.y.dtype.kind == "U") != (first.y.dtype.kind == "U") or user.y.shape[1:] != first.y.shape[1:]:
            fault = f"labels of another kind than user {first.name!r}"
            raise EvenhandError(f"{where} {fault}: write all as numbers, or all as text.")


def _labels(users: list[User], regression: bool, source: Path) -> tuple[NDArray, tuple[str, ...] | None]:
    """The labels of all users one after the other, so that a class has one number everywhere."""
    ends = np.cumsum([len(user.y) for user in users])

    def place(row: int) -> str:
        k = int(np.searchsorted(ends, row, side="right"))
        file = users[k].file
        where = "" if file == source else f"{file.parent.name}/{file.name}, "
        return f"{where}user {users[k].name!r}, y[{row - ends[k] + len(users[k].y)}]"

    values = np.concatenate([user.y for user in users])
    if not regression:
        validation.check_sampled_classes(values, str(source), "y")
    return validation.class_labels(values, str(source), place, regression=regression)


def _rows(users: list[User], labels: NDArray) -> PooledRows:
    names = np.repeat(np.array([user.name for user in users], object), [len(user.y) for user in users])
    return PooledRows(np.concatenate([user.x for user in users]), labels, names)


# --- one file, checked user by user -------------------------------------------------------------------------


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
    features, labels = np.empty((0,), np.float32), np.empty((0,))
    if y:
        features, labels = _features(source, x, encode), validation.as_array(y, source, "y")
    return User(validation.canonical(name), file, features, labels)


def _features(source: str, x: list[Any], encode: Encode | None) -> NDArray:
    if encode is not None:
        try:
            encoded = [np.asarray(encode(entry)) for entry in x]
        except EvenhandError as error:
            raise EvenhandError(f"{source}: {error}") from None
        return validation.as_features(encoded, source)
    # Texts may be of any length: they must not become an array.
    text = next((entry for entry in x if isinstance(entry, str)), None)
    if text is not None:
        raise EvenhandError(
            f"{source}: x holds text such as {text[:20]!r}: say how to turn it into numbers with encode=FUNCTION, for "
            "LEAF's Shakespeare encode=evenhand.data.encode_characters."
        )
    values = validation.as_array(x, source, "x")
    return validation.as_features(values.astype(np.float32) if values.dtype.kind in "iu" else values, source)


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
        fault = "is not a client id" if validation.is_missing(name) else validation.name_fault(name)
        if fault is not None:
            raise EvenhandError(f"{file}: user {name[:40]!r} {fault}: give the user another name.")
    twice = validation.first_repeated(map(validation.canonical, names))
    if twice is not None:
        raise EvenhandError(f"{file}: user {twice!r} is listed twice in users: merge the two, or rename one.")
    for name in sorted(data.keys() - set(names)):
        raise EvenhandError(f"{file}: user {name!r} is in user_data but not in users: list it, or drop it.")
    return tree


def _json(file: Path) -> Any:
    def distinct(pairs: list[tuple[str, Any]]) -> Json:
        """An object, in which Python would silently accept a key twice."""
        twice = validation.first_repeated(key for key, _ in pairs)
        if twice is not None:
            raise EvenhandError(f"{file}: key {twice[:40]!r} occurs twice: merge the two, or rename one.")
        return dict(pairs)

    check_file(file)
    try:
        with open_text(file, "JSON") as text:
            return json.load(text, object_pairs_hook=distinct)
    except EvenhandError:
        raise
    except json.JSONDecodeError as error:
        fault = f"{file}: line {error.lineno}, column {error.colno} is not JSON, or the file is truncated"
        raise EvenhandError(f"{fault}: write or copy it again.") from None
    except RecursionError:
        raise EvenhandError(f"{file}: lists are nested too deeply: write one list per row.") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise EvenhandError(f"{file}: a number has thousands of digits: write a shorter one.") from None
