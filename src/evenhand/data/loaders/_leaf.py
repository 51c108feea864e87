"""LEAF JSON: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.data._arrays import NDArray, class_labels
from evenhand.data._dataset import FederatedDataset
from evenhand.data._split import Rows, check_fractions
from evenhand.data.loaders._files import kind_of, readable
from evenhand.data.loaders._leaf_file import User, read_users
from evenhand.data.loaders._options import Encode, Options, unpooled
from evenhand.errors import EvenhandError

__all__ = ["holds_leaf", "leaf_dataset", "load_leaf"]


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
    """A data set in the JSON layout of LEAF, from one file or from all ``.json`` files of a folder.

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
    options = Options(
        regression=regression,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        seed=seed,
        encode=encode,
    )
    check_fractions(test_fraction, valid_fraction)
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
    users = _read(train, options.encode)
    tested = None if test is None else _read(test, options.encode)
    for user in users.values():
        if not len(user.y):
            raise EvenhandError(
                f"{user.file}: user {user.name!r} has no examples: drop the user or give it some."
            )
    all_users = list(users.values())
    if test is not None and tested is not None:
        _check_same_users(train, users, test, tested)
        all_users += [user for user in tested.values() if len(user.y)]
        if len(all_users) == len(users):
            raise EvenhandError(f"{test}: no user has examples: give them some, or leave the test part out.")
    _check_same_form(all_users)
    labels, classes = _labels(all_users, options.regression, source)
    cut = sum(len(user.y) for user in users.values())
    train_rows = _rows(all_users[: len(users)], labels[:cut])
    test_rows = None if tested is None else _rows(all_users[len(users) :], labels[cut:])
    return unpooled(source, train_rows, test_rows, classes, options)


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
    for one, other, path, other_path in ((users, tested, train, test), (tested, users, test, train)):
        missing = sorted(one.keys() - other.keys())
        if missing:
            raise EvenhandError(
                f"{other_path}: user {missing[0]!r} of {path} is missing: give both parts the same users, or only "
                "a training part, which is then split."
            )


def _check_same_form(users: list[User]) -> None:
    """Checks that all rows have one shape, and all labels one kind."""
    first = users[0]
    for user in users:
        if user.x.shape[1:] != first.x.shape[1:]:
            raise EvenhandError(
                f"{user.file}: user {user.name!r} has rows of shape {user.x.shape[1:]} but user "
                f"{first.name!r} of {first.x.shape[1:]}: give all rows the same number of features."
            )
        if (user.y.dtype.kind == "U") != (first.y.dtype.kind == "U") or user.y.shape[1:] != first.y.shape[1:]:
            raise EvenhandError(
                f"{user.file}: user {user.name!r} has labels of another kind than user {first.name!r}: write "
                "all as numbers, or all as text."
            )


def _labels(users: list[User], regression: bool, source: Path) -> tuple[NDArray, tuple[str, ...] | None]:
    """The labels of all users one after the other, so that a class has one number everywhere."""
    ends = np.cumsum([len(user.y) for user in users])

    def place(row: int) -> str:
        k = int(np.searchsorted(ends, row, side="right"))
        file = users[k].file
        where = "" if file == source else f"{file.parent.name}/{file.name}, "
        return f"{where}user {users[k].name!r}, y[{row - ends[k] + len(users[k].y)}]"

    return class_labels(np.concatenate([user.y for user in users]), str(source), place, regression=regression)


def _rows(users: list[User], labels: NDArray) -> Rows:
    names = np.repeat(np.array([user.name for user in users], object), [len(user.y) for user in users])
    return Rows(np.concatenate([user.x for user in users]), labels, names)
