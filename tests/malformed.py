"""Malformed inputs: each builder writes one into a folder and returns the path that ``load`` must refuse.

``VARIANTS`` maps a variant's name to its builder, ``CURES`` to words that the error sentence must contain.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import published

Builder = Callable[[Path], Path]

GOOD_CSV = "client,a,b,label\nann,1,2,0\nann,3,4,1\nbob,5,6,1\nbob,7,8,0\n"
GOOD_ARRAYS = {
    "x": np.arange(12, dtype=np.float32).reshape(6, 2),
    "y": np.array([0, 1, 0, 1, 0, 1]),
    "client": np.array([0, 0, 0, 1, 1, 1]),
}


def good_leaf() -> dict:
    """Two users with two rows each."""
    return {
        "users": ["ann", "bob"],
        "num_samples": [2, 2],
        "user_data": {
            "ann": {"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0.0, 1.0]},
            "bob": {"x": [[5.0, 6.0], [7.0, 8.0]], "y": [1.0, 0.0]},
        },
    }


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    """``array`` as the content of an IDX file of bytes."""
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, images: bytes | None = None, labels: bytes | None = None) -> Path:
    """An images file and its labels file, 120 rows unless contents are given; the path of the images."""
    y = np.arange(120) % 10
    x = np.repeat(y, 16).reshape(120, 4, 4)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(idx(x) if images is None else images)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(y) if labels is None else labels)
    return path


def _text(name: str, content: str) -> Builder:
    def build(folder: Path) -> Path:
        path = folder / name
        path.write_text(content, encoding="utf-8")
        return path

    return build


def _bytes(name: str, content: bytes) -> Builder:
    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return build


def _csv(old: str, new: str) -> Builder:
    """The good table with its first ``old`` replaced by ``new``."""
    assert old in GOOD_CSV
    return _text("table.csv", GOOD_CSV.replace(old, new, 1))


def _leaf(change: Callable[[dict], object]) -> Builder:
    """The good LEAF file after ``change``."""

    def build(folder: Path) -> Path:
        content = good_leaf()
        change(content)
        return _text("all_data.json", json.dumps(content))(folder)

    return build


def _leaf_folder(change: Callable[[dict], object]) -> Builder:
    """A folder with a good training part and a test part after ``change``."""

    def build(folder: Path) -> Path:
        root = folder / "leaf_folder"
        for part, edit in (("train", lambda content: None), ("test", change)):
            content = good_leaf()
            edit(content)
            (root / part).mkdir(parents=True)
            (root / part / "data.json").write_text(json.dumps(content))
        return root

    return build


def _npz(**changes: np.ndarray | None) -> Builder:
    """The good archive with arrays replaced, or left out where None."""

    def build(folder: Path) -> Path:
        path = folder / "arrays.npz"
        arrays = {**GOOD_ARRAYS, **changes}
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        return path

    return build


def _npz_split(**changes: np.ndarray | None) -> Builder:
    """An archive with a training and a test part, with arrays replaced."""
    arrays = {f"{name}_{part}": array for part in ("train", "test") for name, array in GOOD_ARRAYS.items()}
    return _npz(x=None, y=None, client=None, **{**arrays, **changes})


def _damaged_npz(folder: Path) -> Path:
    path = _npz(x=np.zeros((500, 2)), y=np.zeros(500, int), client=np.zeros(500, int))(folder)
    content = bytearray(path.read_bytes())
    content[2000:2040] = b"\xff" * 40
    path.write_bytes(bytes(content))
    return path


def _truncated(builder: Builder, keep: float) -> Builder:
    def build(folder: Path) -> Path:
        path = builder(folder)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        return path

    return build


def _parquet(**changes: list | None) -> Builder:
    """A good Parquet table with columns replaced, or left out where None."""

    def build(folder: Path) -> Path:
        path = folder / "table.parquet"
        columns = {
            "client": ["a", "a", "b", "b"],
            "v": [1.0, 2.0, 3.0, 4.0],
            "label": [0, 1, 1, 0],
            **changes,
        }
        parquet.write_table(
            pa.table({name: column for name, column in columns.items() if column is not None}), path
        )
        return path

    return build


def _bad_labels(labels: bytes) -> Builder:
    """Good images beside these labels; the path of the labels."""

    def build(folder: Path) -> Path:
        return write_idx(folder, labels=labels).with_name("train-labels-idx1-ubyte")

    return build


def _idx_without_labels(folder: Path) -> Path:
    path = write_idx(folder)
    (folder / "train-labels-idx1-ubyte").unlink()
    return path


def _damaged_gz(folder: Path) -> Path:
    path = write_idx(folder)
    zipped = path.with_name(path.name + ".gz")
    zipped.write_bytes(gzip.compress(path.read_bytes())[:-12])
    path.unlink()
    return zipped


def _empty_folder(folder: Path) -> Path:
    path = folder / "nothing_here"
    path.mkdir()
    return path


def _drop(content: dict, user: str) -> None:
    position = content["users"].index(user)
    del content["users"][position], content["num_samples"][position], content["user_data"][user]


def _add(content: dict, user: str) -> None:
    content["users"].append(user)
    content["num_samples"].append(1)
    content["user_data"][user] = {"x": [[0.0, 0.0]], "y": [0]}


def _rows(content: dict, user: str, x: list, y: list) -> None:
    content["user_data"][user] = {"x": x, "y": y}
    content["num_samples"][content["users"].index(user)] = len(y)


def _promising_parquet(rows: bytes) -> Builder:
    """A file of 4 rows whose metadata count ``rows``, a Thrift number, of them."""

    def build(folder: Path) -> Path:
        path = _parquet()(folder)
        content = path.read_bytes()
        length = int.from_bytes(content[-8:-4], "little")
        footer = content[-8 - length : -8].replace(b"\x16\x08", b"\x16" + rows, 1)
        path.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        return path

    return build


def _published(builder: Builder, name: str, content: bytes | Callable[[bytes], bytes]) -> Builder:
    """A folder of a good data set in which one file has other bytes."""

    def build(folder: Path) -> Path:
        root = builder(folder / "published")
        root = root if root.is_dir() else root.parent
        path = root / name
        path.write_bytes(content if isinstance(content, bytes) else content(path.read_bytes()))
        return root

    return build


def _hdf5(**fields: object) -> Builder:
    """An HDF5 file of a client ann with these fields."""
    return lambda folder: published.hdf5(folder / "made_train.h5", {"ann": fields})


def _cells(xs: list, ys: list) -> Builder:
    return lambda folder: published.vehicle(folder / "cells", xs, ys)


def _matlab_bomb(folder: Path) -> Path:
    """A variable that declares 2 GiB."""
    packed = zlib.compress(struct.pack("<II", 14, 2**31 - 8) + bytes(10**5))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    return _bytes("made.mat", header + struct.pack("<II", 15, len(packed)) + packed)(folder)


def _archive(suffix: str, keep: float) -> Builder:
    """An archive of reviews, cut short."""

    def build(folder: Path) -> Path:
        path = published.packed(published.imdb(folder / "reviews"), folder / f"reviews{suffix}")
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        return path

    return build


_ONES = np.ones((3, 2))

_WITH_CURE: dict[str, tuple[Builder, str]] = {
    # CSV
    "csv without client column": (_csv("client,", "who,"), "client column 'client'"),
    "csv without label column": (_csv("label", "target"), "label column 'label'"),
    "csv with a short line": (_csv("bob,5,6,1", "bob,5,6"), "line 4 has 3 cells"),
    "csv with a long line": (_csv("ann,3,4,1", "ann,3,4,1,9"), "line 3 has 5 cells"),
    "csv with an empty cell": (_csv("3,4", "3,"), "line 3, column 'b' is empty"),
    "csv with text as a feature": (_csv("5,6", "five,6"), "line 4, column 'a' holds 'five'"),
    "csv with nan": (_csv("7,8", "7,nan"), "line 5, column 'b' is empty or NaN"),
    "csv with infinity": (_csv("7,8", "inf,8"), "line 5, column 'a' holds inf"),
    "csv with a number beyond 32 bits": (_csv("7,8", "7e99,8"), "line 5, column 'a' holds 7e+99"),
    "csv with a negative label": (
        _csv("ann,3,4,1", "ann,3,4,-12345"),
        "line 3, column 'label' is the negative label -1",
    ),
    "csv with a fractional label": (_csv("ann,3,4,1", "ann,3,4,1.5"), "regression=True"),
    "csv with a label out of range": (
        _csv("ann,3,4,1", "ann,3,4,123456"),
        "line 3, column 'label' is 123456",
    ),
    "csv with a huge label": (_csv("ann,3,4,1", "ann,3,4,1e30"), "out of range"),
    "csv with mixed labels": (_csv("ann,3,4,1", "ann,3,4,cat"), "line 3, column 'label' holds 'cat'"),
    "csv with an empty label": (_csv("ann,3,4,1", "ann,3,4,"), "line 3, column 'label' is empty"),
    "csv with an empty client": (_csv("bob,5", ",5"), "line 4, column 'client' is empty"),
    "csv with a repeated column": (_csv("a,b", "a,a"), "column 'a' twice"),
    "csv with a nameless column": (_csv("a,b", ",b"), "column 2 has no name"),
    "csv without features": (_text("table.csv", "client,label\nann,0\n"), "no feature columns"),
    "csv with only a header": (_text("table.csv", "client,a,label\n"), "no rows"),
    "csv that is empty": (_text("table.csv", ""), "the file is empty"),
    "csv with an open quote": (_csv("bob,7", '"bob,7'), "quotes"),
    "csv with an underscore in a number": (_csv("5,6", "1_000,6"), "line 4, column 'a' holds '1_000'"),
    "csv with decimal commas": (
        _text("table.csv", "client;a;label\nann;1,5;0\nbob;2,5;1\n"),
        "line 2, column 'a' holds '1,5': write a point",
    ),
    "csv with a decimal comma among numbers": (
        _text("table.csv", 'client,a,label\nann,1,0\nbob,"2,5",1\n'),
        "line 3, column 'a' holds '2,5': write a point",
    ),
    "csv with dates": (
        _text("table.csv", "client,a,label\nann,2020-01-31,0\nbob,2020-02-29 10:00,1\n"),
        "column 'a' holds dates such as '2020-01-31'",
    ),
    "csv with an id as a feature": (
        _text("table.csv", "client,a,label\n" + "".join(f"ann,row{i},{i % 2}\n" for i in range(50))),
        "column 'a' holds 50 different texts such as 'row0'",
    ),
    "csv with free text over many lines": (
        _text("table.csv", "client,a,label\n" + "".join(f"ann,row{i % 2500},0\n" for i in range(20_000))),
        "different texts such as 'row0'",
    ),
    "csv with a number among text": (
        _text("table.csv", "client,a,label\nann,x,0\nbob,7,1\n"),
        "line 2, column 'a' holds 'x' where other rows hold numbers",
    ),
    "csv with a number after much text": (
        _text("table.csv", "client,a,label\n" + "ann,x,0\n" * 9000 + "bob,7,1\n"),
        "line 9002, column 'a' holds '7' where other rows hold text",
    ),
    "csv with NUL characters": (_text("table.csv", GOOD_CSV.replace("bob,5", "b\0b,5")), "NUL characters"),
    "csv in UTF-16": (_bytes("table.csv", GOOD_CSV.encode("utf-16-le")), "NUL characters"),
    "csv in UTF-16 with its mark": (_bytes("table.csv", GOOD_CSV.encode("utf-16")), "not UTF-8"),
    "csv with a quote that is never closed": (
        _text("table.csv", GOOD_CSV + '"' + "ann,1,2,0\n" * 50_000),
        "what begins in line 6 is not CSV",
    ),
    "csv with a cell of a megabyte": (_csv("3,4", "3" * 10**6 + ",4"), "what begins in line 3 is not CSV"),
    "csv with a client called null": (_csv("bob,5", "null,5"), "line 4, column 'client' is 'null'"),
    "csv with a column that is empty throughout": (
        _text("table.csv", "client,a,label\nann,,0\nbob,,1\n"),
        "line 2, column 'a' is empty",
    ),
    "csv in another encoding": (
        _bytes("table.csv", GOOD_CSV.replace("ann", "anné").encode("latin-1")),
        "UTF-8",
    ),
    # Parquet
    "parquet without client column": (_parquet(client=None), "client column 'client'"),
    "parquet with dates as a feature": (
        _parquet(v=[date(2020, 1, i) for i in range(1, 5)]),
        "column 'v' holds dates",
    ),
    "parquet with a gap": (_parquet(v=[1.0, None, 3.0, 4.0]), "row 1, column 'v' is empty"),
    "parquet with nan": (_parquet(v=[1.0, 2.0, float("nan"), 4.0]), "row 2, column 'v' is empty or NaN"),
    "parquet with lists": (_parquet(v=[[1.0], [2.0], [3.0], [4.0]]), "column 'v' holds list"),
    "parquet with a client that is NaN": (
        _parquet(client=[1.0, float("nan"), 2.0, 2.0]),
        "row 1, column 'client' is",
    ),
    "parquet that promises more rows": (_promising_parquet(b"\x0a"), "declares 5 rows but holds 4"),
    "parquet that promises 500 billion rows": (
        _promising_parquet(b"\x80\x80\x80\x80\x80\x20"),
        "do not fit into the memory",
    ),
    "parquet that is truncated": (_truncated(_parquet(), 0.5), "not a Parquet file"),
    "parquet that is text": (_text("table.parquet", GOOD_CSV), "not a Parquet file"),
    # npz
    "npz without x": (_npz(x=None), "array 'x'"),
    "npz without y": (_npz(y=None), "array 'y'"),
    "npz without clients": (_npz(client=None), "evenhand.data.partition"),
    "npz with too few labels": (_npz(y=np.array([0, 1, 0])), "x has 6 rows, y 3 and client 6"),
    "npz with nan": (_npz(x=np.where(np.arange(12) == 7, np.nan, 0.0).reshape(6, 2)), "x[3] holds nan"),
    "npz with objects": (_npz(client=np.array([None, "a"] * 3, dtype=object)), "Python objects"),
    "npz with text as features": (_npz(x=np.array([["a", "b"]] * 6)), "holds text"),
    "npz with complex numbers": (_npz(x=np.ones((6, 2), complex)), "complex128"),
    "npz with a single number as x": (_npz(x=np.array(1.0)), "one entry per row"),
    "npz with negative labels": (_npz(y=np.array([0, 1, -1, 1, 0, 1])), "y[2] is the negative label -1"),
    "npz with an id as label": (_npz(y=np.array([0, 1, 2**40, 1, 0, 1])), "y[2] is 1099511627776"),
    "npz with a missing client": (_npz(client=np.array([0, 0, np.nan, 1, 1, 1])), "not a client id"),
    "npz with a table of clients": (_npz(client=np.zeros((6, 2), int)), "one client id per row"),
    "npz without rows": (
        _npz(x=np.zeros((0, 2)), y=np.zeros(0, int), client=np.zeros(0, int)),
        "there are no examples",
    ),
    "npz with an unknown test client": (_npz_split(client_test=np.array([0, 0, 0, 1, 1, 7])), "client '7'"),
    "npz with a wider test part": (_npz_split(x_test=np.zeros((6, 3), np.float32)), "test.x"),
    "npz with test rows but no test labels": (_npz_split(y_test=None), "array 'y_test'"),
    "npz that is damaged": (_damaged_npz, "damaged"),
    "npz that is truncated": (_truncated(_npz(), 0.5), "truncated"),
    "npz that is a text file": (_text("arrays.npz", GOOD_CSV), "numpy.savez"),
    "npz that is empty": (_bytes("arrays.npz", b""), "the file is empty"),
    # LEAF
    "leaf that is truncated": (_truncated(_leaf(lambda c: None), 0.6), "truncated"),
    "leaf that is a list": (_text("all_data.json", "[1, 2]"), "users, num_samples and user_data"),
    "leaf without users": (_leaf(lambda c: c.pop("users")), "users, num_samples and user_data"),
    "leaf with no user at all": (_text("all_data.json", '{"users": [], "user_data": {}}'), "at least one"),
    "leaf with a user twice": (_leaf(lambda c: c["users"].append("ann")), "'ann' is listed twice"),
    "leaf with a user unlisted": (_leaf(lambda c: c["users"].remove("bob")), "'bob' is in user_data"),
    "leaf with a user without data": (_leaf(lambda c: c["user_data"].pop("bob")), "'bob' is in users"),
    "leaf with a key twice": (
        _text("all_data.json", json.dumps(good_leaf()).replace('"bob": {', '"ann": {')),
        "'ann' occurs twice",
    ),
    "leaf with wrong num_samples": (
        _leaf(lambda c: c["num_samples"].__setitem__(1, 5)),
        "num_samples says 5",
    ),
    "leaf with too few num_samples": (_leaf(lambda c: c["num_samples"].pop()), "num_samples does not have"),
    "leaf with an empty user": (_leaf(lambda c: _rows(c, "bob", [], [])), "'bob' has no examples"),
    "leaf with too few labels": (_leaf(lambda c: c["user_data"]["bob"]["y"].pop()), "different lengths"),
    "leaf without y": (_leaf(lambda c: c["user_data"]["bob"].pop("y")), "'bob' has no x and y"),
    "leaf with ragged rows": (_leaf(lambda c: _rows(c, "bob", [[1.0], [2.0, 3.0]], [0, 1])), "ragged"),
    "leaf with unlike widths": (_leaf(lambda c: _rows(c, "bob", [[1.0]], [0])), "same number of features"),
    "leaf with nan": (_leaf(lambda c: _rows(c, "bob", [[float("nan"), 1.0]], [0])), "x[0] holds nan"),
    "leaf with null": (_leaf(lambda c: _rows(c, "bob", [[None, 1.0]], [0])), "mixed or missing"),
    "leaf with text": (_leaf(lambda c: _rows(c, "bob", ["to be, or not"], [0])), "encode="),
    "leaf with a negative label": (
        _leaf(lambda c: _rows(c, "bob", [[1.0, 2.0]], [-1.0])),
        "negative label -1",
    ),
    "leaf with a fractional label": (
        _leaf(lambda c: _rows(c, "bob", [[1.0, 2.0]], [0.5])),
        "regression=True",
    ),
    "leaf with labels of two kinds": (
        _leaf(lambda c: _rows(c, "bob", [[1.0, 2.0]], ["cat"])),
        "another kind",
    ),
    "leaf with a test user unknown in train": (_leaf_folder(lambda c: _add(c, "eve")), "user 'eve'"),
    "leaf with a train user unknown in test": (_leaf_folder(lambda c: _drop(c, "bob")), "user 'bob'"),
    "leaf with a wider test part": (
        _leaf_folder(lambda c: _rows(c, "bob", [[1.0, 2.0, 3.0]], [0])),
        "same number of features",
    ),
    # IDX
    "idx with a wrong magic number": (lambda f: write_idx(f, images=b"\x89PNG" + bytes(200)), "magic number"),
    "idx that is truncated": (_truncated(write_idx, 0.9), "header declares"),
    "idx with bytes to spare": (
        _bad_labels(idx(np.zeros(120)) + b"extra"),
        "header declares 120 bytes",
    ),
    "idx that is empty": (lambda f: write_idx(f, images=b""), "magic number"),
    "idx cut in its header": (
        lambda f: write_idx(f, images=idx(np.zeros((3, 2, 2)))[:9]),
        "middle of its header",
    ),
    "idx with fewer labels": (lambda f: write_idx(f, labels=idx(np.zeros(60))), "120 images but 60 labels"),
    "idx with images as labels": (_bad_labels(idx(np.zeros((120, 2)))), "idx1"),
    "idx without labels": (_idx_without_labels, "train-labels-idx1-ubyte"),
    "idx with damaged gzip": (_damaged_gz, "cannot be read to its end"),
    "idx with fewer rows than clients": (
        lambda f: write_idx(f, idx(np.zeros((9, 2, 2))), idx(np.zeros(9))),
        "too few for 100 clients",
    ),
    # LIBSVM
    "libsvm with text": (_text("rows.libsvm", "1 1:0.5\n1 2:x\n"), "line 2 is not a label and pairs"),
    "libsvm without a label": (_text("rows.svm", "1:0.5 2:1\n"), "line 1 is not a label and pairs"),
    "libsvm with infinity": (_text("rows.svm", "1 1:inf\n"), "pairs INDEX:VALUE of finite numbers"),
    "libsvm with index 0": (_text("rows.svm", "1 0:1\n"), "indices that begin at 1"),
    "libsvm with an index twice": (_text("rows.svm", "1 2:1 2:3\n"), "write each feature once"),
    "libsvm with a huge index": (_text("rows.svm", "1 2:1 999999999:3\n"), "index 999999999 is out of range"),
    "libsvm that is empty": (_text("rows.svm", "# nothing\n"), "there are no rows"),
    "libsvm with too many zeros": (
        _text("rows.svm", "1 1000000:1\n" * 1000),
        "1,000 rows of 1,000,000 features do not fit",
    ),
    "libsvm without clients": (_text("rows.svm", "1 2:1\n0 1:1\n"), "the rows have no client ids"),
    # MATLAB
    "mat that is text": (_text("cells.mat", GOOD_CSV), "not a MATLAB file"),
    "mat that is empty": (_bytes("cells.mat", b""), "not a MATLAB file"),
    "mat that is truncated": (_truncated(lambda f: published.vehicle(f), 0.5), "not a MATLAB file"),
    "mat with fewer labels": (
        _cells([_ONES, _ONES], [np.ones((3, 1)), np.ones((2, 1))]),
        "sensor 1 has features",
    ),
    "mat with fewer cells": (_cells([_ONES, _ONES], [np.ones((3, 1))]), "X has 2 cells and Y 1"),
    "mat with unlike widths": (
        _cells([_ONES, np.ones((3, 3))], [np.ones((3, 1))] * 2),
        "clients differ in their number of features",
    ),
    "mat with text": (_cells(["abc", _ONES], [np.ones((3, 1))] * 2), "sensor 0 has features of shape"),
    "mat with nan": (_cells([_ONES, _ONES * np.nan], [np.ones((3, 1))] * 2), "holds nan"),
    "mat that unpacks to gigabytes": (_matlab_bomb, "unpack to 2147 MB"),
    # HDF5
    "hdf5 that is text": (_text("made.h5", GOOD_CSV), "not an HDF5 file"),
    "hdf5 that is empty": (_bytes("made.h5", b""), "not an HDF5 file"),
    "hdf5 that is truncated": (
        _truncated(lambda f: published.emnist(f) / "fed_emnist_train.h5", 0.6),
        "not an HDF5 file",
    ),
    "hdf5 of other fields": (_hdf5(x=_ONES, label=np.ones(3, int)), "the fields 'label', 'x'"),
    "hdf5 with fewer labels": (_hdf5(pixels=_ONES, label=np.ones(2, int)), "fields of different lengths"),
    "hdf5 with a single number": (_hdf5(pixels=_ONES, label=np.int32(1)), "one entry per example"),
    "hdf5 with nan": (_hdf5(pixels=_ONES * np.nan, label=np.ones(3, int)), "x[0] holds nan"),
    "hdf5 with real labels": (_hdf5(pixels=_ONES, label=np.ones(3)), "labels that are no whole numbers"),
    "hdf5 with wide images": (
        _hdf5(pixels=_ONES.astype(np.uint16), label=np.ones(3, int)),
        "not bytes or floats",
    ),
    "hdf5 with negative labels": (_hdf5(pixels=_ONES, label=-np.ones(3, int)), "negative label -1"),
    "hdf5 without examples": (_hdf5(pixels=_ONES[:0], label=np.ones(0, int)), "no client has examples"),
    "hdf5 with short plays": (_hdf5(snippets=[b"To be"]), "no role speaks more than 80 characters"),
    "hdf5 with numbers as plays": (_hdf5(snippets=_ONES), "has no text 'snippets'"),
    # CIFAR-10
    "cifar that is truncated": (
        _published(published.cifar, "data_batch_2.bin", lambda content: content[:-1]),
        "data_batch_2.bin: 61,459 bytes are no images",
    ),
    "cifar that is empty": (_published(published.cifar, "test_batch.bin", b""), "0 bytes are no images"),
    "cifar with label 10": (
        _published(published.cifar, "data_batch_1.bin", lambda content: b"\x0a" + content[1:]),
        "image 0 has the label 10",
    ),
    # Others as they are published
    "omniglot that is no picture": (
        _published(
            lambda f: published.omniglot(f) / "unpacked/images_background",
            "Alphabet_0/character01/0000_01.png",
            b"GIF",
        ),
        "is no drawing of Omniglot",
    ),
    "imdb that is not UTF-8": (
        _published(published.imdb, "train/pos/0_9.txt", b"\xff"),
        "0_9.txt is not UTF-8",
    ),
    "zip that is truncated": (_archive(".zip", 0.7), "the archive is damaged"),
    "tar that is truncated": (_archive(".tar.gz", 0.5), "the archive is damaged"),
    "tar that is text": (_text("reviews.tar.gz", GOOD_CSV), "the archive is damaged"),
    "movielens with a short line": (
        _published(published.movielens, "u.data", lambda content: content + b"1\t2\t3\n"),
        "line 13 is not a user, a film, a rating and a time",
    ),
    "movielens with a rating of nan": (
        _published(published.movielens, "u.data", b"1\t2\tnan\t3\n"),
        "a rating is no finite number",
    ),
    "movielens that is empty": (_published(published.movielens, "u.data", b"\n"), "there are no ratings"),
    "tweets with a short line": (
        _published(published.tweets, published.TWEETS, lambda content: content + b'\n"4","1","Mon"'),
        "line 10 is not a polarity",
    ),
    "tweets with an open quote": (
        _published(published.tweets, published.TWEETS, lambda content: content + b'\n"4","1","Mon'),
        "is not CSV",
    ),
    # Paths
    "a path that does not exist": (lambda f: f / "no_such_file.csv", "no such file"),
    "a folder without data": (_empty_folder, "LEAF"),
    "an unknown suffix": (_text("table.xlsx", GOOD_CSV), "suffix '.xlsx'"),
}

VARIANTS: dict[str, Builder] = {name: builder for name, (builder, _) in _WITH_CURE.items()}
CURES: dict[str, str] = {name: cure for name, (_, cure) in _WITH_CURE.items()}
