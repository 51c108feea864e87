"""Odd and damaged LEAF JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fuzz.bytes_and_cells import VALUES, damage, reencoded
from malformed import good_leaf

_TEXTS = [
    "[" * 100_000,
    '{"users": ["a"], "user_data": {"a": {"x": ' + "[" * 900 + "1" + "]" * 900 + ', "y": [0]}}}',
    '{"users": ["a"], "user_data": {"a": {"x": [[' + "9" * 5000 + ']], "y": [0]}}}',
    '{"users": ["a"], "user_data": {"a": {"x": [[1e999]], "y": [0]}}}',
    '{"users": ["' + "9" * 5000 + '"], "user_data": {"' + "9" * 5000 + '": {"x": [[1]], "y": [0]}}}',
    "null",
    "1",
    '"users"',
    '{"users": {}, "user_data": []}',
    "{}",
]


def leaf(rng: random.Random, folder: Path) -> Path:
    """A file, or a folder of files with a training and a test part, of which one file is changed."""
    if rng.random() < 0.6:
        path = folder / "all_data.json"
        path.write_bytes(_content(rng))
        return path
    for part in ("train", "test"):
        (folder / part).mkdir()
        (folder / part / "data.json").write_text(json.dumps(good_leaf()))
    (folder / rng.choice(["train", "test"]) / rng.choice(["data.json", "more.json"])).write_bytes(
        _content(rng)
    )
    return folder


def _content(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.choice(_TEXTS).encode()
    tree: Any = good_leaf()
    for _ in range(rng.choice([0, 0, 0, 1, 1, 1, 2])):
        _change(rng, tree)
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.7)
    if rng.random() < 0.1:
        text = text.replace(
            rng.choice(['"bob"', '"ann"', '"x"', '"y"', "[", "1.0"]), rng.choice(['"ann"', "]", "1e5"])
        )
    content = reencoded(rng, text)
    return damage(rng, content) if rng.random() < 0.15 else content


def _change(rng: random.Random, tree: Any) -> None:
    """Replaces, drops, doubles or renames one value of the tree, at a random depth."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(tree[key], dict | list) or rng.random() < 0.25:
            break
        tree = tree[key]
    match rng.randrange(5):
        case 0:
            del tree[key]
        case 1 if isinstance(tree, list):
            tree.append(tree[key])
        case 1:
            tree[rng.choice(["ann", "nan", "", "\ud800", "\0", "9" * 5000])] = tree[key]
        case 2:
            # All of a user's numbers become one odd value, so that labels have one kind and rows one shape.
            value = rng.choice(VALUES)
            tree[key] = [value] * len(tree[key]) if isinstance(tree[key], list | dict) else value
        case _:
            tree[key] = rng.choice(VALUES)
