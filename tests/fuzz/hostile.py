"""Files made to hang a reader, to fill its memory, or to crash what comes after it; each with words of its refusal."""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from malformed import GOOD_ARRAYS, GOOD_CSV, good_leaf, idx, write_idx

Builder = Callable[[Path], Path]

_BLOCK = 2**24


def _zeros(blocks: int) -> bytes:
    """Deflated zeros, ``blocks`` times 16 MiB, made from one block."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (packer.compress(bytes(_BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)) * blocks


def _gzip_bomb(head: bytes, blocks: int) -> bytes:
    """One gzip member of ``head`` and zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + first + _zeros(blocks) + b"\x03\0" + bytes(8)


def _images(content: Callable[[bytes], bytes]) -> Builder:
    """Good labels beside images whose file is ``content`` of good ones."""

    def build(folder: Path) -> Path:
        path = write_idx(folder)
        path.write_bytes(content(path.read_bytes()))
        return path

    return build


def _idx_head(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def _npy_head(descr: str, shape: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _append(path: Path, name: str, head: bytes, body: int) -> None:
    """Adds an array to an archive: a header and ``body`` MiB of zeros."""
    kind = zipfile.ZIP_DEFLATED
    with (
        zipfile.ZipFile(path, "a", kind, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w") as file,
    ):
        file.write(head)
        for _ in range(body):
            file.write(bytes(2**20))


def _npz_member(name: str, head: bytes, body: int = 0) -> Builder:
    """The good archive with one array of this header and ``body`` MiB of zeros."""

    def build(folder: Path) -> Path:
        path = folder / "arrays.npz"
        np.savez(path, **{key: array for key, array in GOOD_ARRAYS.items() if key != name})
        _append(path, name, head, body)
        return path

    return build


def _npz(**changes: np.ndarray) -> Builder:
    def build(folder: Path) -> Path:
        np.savez(folder / "arrays.npz", **{**GOOD_ARRAYS, **changes})
        return folder / "arrays.npz"

    return build


def _all_large(folder: Path) -> Path:
    """An archive whose arrays fit together: a data set of zeros, 300 MiB from 1.3 MB."""
    path = folder / "arrays.npz"
    n = 100 * 2**17
    for name in ("x", "y", "client"):
        _append(path, name, _npy_head("'<i8'", f"({n},)"), 100)
    return path


def _fifo(name: str) -> Builder:
    def build(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name

    return build


def _socket(folder: Path) -> Path:
    path = folder / "s.csv"
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket has at most 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("s.csv")
    finally:
        os.chdir(here)
    return path


def _link(name: str, target: str) -> Builder:
    def build(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name

    return build


def _folder(name: str) -> Builder:
    def build(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return build


def _leaf_folder_with_a_pipe(folder: Path) -> Path:
    (folder / "train").mkdir()
    (folder / "train" / "a.json").write_text(json.dumps(good_leaf()))
    os.mkfifo(folder / "train" / "b.json")
    return folder


def _labels_are_a_pipe(folder: Path) -> Path:
    path = write_idx(folder)
    labels = folder / "train-labels-idx1-ubyte"
    labels.unlink()
    os.mkfifo(labels)
    return path


def _leaf_text(old: str, new: str) -> Builder:
    """The good LEAF file with each ``old`` replaced."""

    def build(folder: Path) -> Path:
        text = json.dumps(good_leaf())
        assert old in text
        (folder / "all_data.json").write_text(text.replace(old, new))
        return folder / "all_data.json"

    return build


def _csv(old: str, new: str) -> Builder:
    def build(folder: Path) -> Path:
        assert old in GOOD_CSV
        (folder / "table.csv").write_text(GOOD_CSV.replace(old, new), encoding="utf-8")
        return folder / "table.csv"

    return build


_GOOD_IMAGES = idx(np.zeros((120, 4, 4)))

HOSTILE: dict[str, tuple[Builder, str]] = {
    "gzip longer than its header": (_images(lambda good: _gzip_bomb(good, 94)), "more follow"),
    "gzip labels longer than their header": (
        lambda f: write_idx(f, labels=_gzip_bomb(idx(np.arange(120) % 10), 94)),
        "more follow",
    ),
    "gzip that keeps a large promise": (
        lambda f: write_idx(f, images=_gzip_bomb(_idx_head(120, 4096, 4096), 120)),
        "gunzip it first",
    ),
    "header that promises terabytes": (
        _images(lambda good: _idx_head(120, 2**32 - 1, 2**32 - 1) + good[16:]),
        "than the",
    ),
    "gzipped header that promises terabytes": (
        _images(lambda good: gzip.compress(_idx_head(120, 2**32 - 1, 2**32 - 1) + good[16:])),
        "than the",
    ),
    "images without pixels": (lambda f: write_idx(f, images=_idx_head(120, 0, 2**31)), "rows are empty"),
    "npz bomb": (_npz_member("x", _npy_head("'<f8'", "(39321600, 1)"), 300), "x has 39321600 rows, y 6"),
    "npz bomb that fits together": (_all_large, "save it with numpy.savez"),
    "npz header that promises terabytes": (_npz_member("x", _npy_head("'<f8'", "(6, 10**12)")), "damaged"),
    "npz header that promises gigabytes": (
        _npz_member("x", _npy_head("'<f8'", "(6, 1000000000)")),
        "declares",
    ),
    "npz of |S0": (_npz_member("client", _npy_head("'|S0'", "(1000000000,)")), "only empty texts"),
    "npz of <U0": (_npz_member("y", _npy_head("'<U0'", "(1000000000,)")), "only empty texts"),
    "npz of a long text": (_npz_member("y", _npy_head("'<U100000000'", "(6,)")), "a text of 100000000"),
    "npz of objects": (_npz_member("y", _npy_head("'|O'", "(6,)")), "Python objects"),
    "npz of records": (_npz_member("x", _npy_head("[('a', '<f4')]", "(6,)")), "values of dtype"),
    "npz of dates": (_npz(client=np.arange(6).astype("M8[D]")), "datetime64[D]"),
    "npz of complex numbers": (_npz(y=np.zeros(6, complex)), "complex128"),
    "npz of void": (_npz(y=np.zeros(6, "V8")), "values of dtype |V8"),
    "npz with True as a length": (_npz_member("x", _npy_head("'<f8'", "(True, 72)") + bytes(576)), "damaged"),
    "npz with a negative length": (_npz_member("x", _npy_head("'<f8'", "(-6, -2)") + bytes(96)), "damaged"),
    "npz without columns": (_npz(x=np.zeros((6, 0))), "rows are empty"),
    "npz without columns in the middle": (_npz(x=np.zeros((6, 3, 0))), "rows are empty"),
    "npz with labels without columns": (_npz(y=np.zeros((6, 0), int)), "rows are empty"),
    "csv that is a pipe": (_fifo("t.csv"), "is a named pipe"),
    "parquet that is a pipe": (_fifo("t.parquet"), "is a named pipe"),
    "npz that is a pipe": (_fifo("t.npz"), "is a named pipe"),
    "json that is a pipe": (_fifo("t.json"), "is a named pipe"),
    "images that are a pipe": (_fifo("t-images-idx3-ubyte"), "is a named pipe"),
    "leaf folder with a pipe": (_leaf_folder_with_a_pipe, "is a named pipe"),
    "labels that are a pipe": (_labels_are_a_pipe, "is a named pipe"),
    "csv that is a socket": (_socket, "is a socket"),
    "csv that is a device": (_link("t.csv", "/dev/zero"), "is a device"),
    "json that is a device": (_link("t.json", "/dev/zero"), "is a device"),
    "npz that is a device": (_link("t.npz", "/dev/zero"), "is a device"),
    "images that are a device": (_link("t-images-idx3-ubyte", "/dev/zero"), "is a device"),
    "csv that is a folder": (_folder("t.csv"), "the folder holds neither"),
    "csv that links to itself": (_link("t.csv", "t.csv"), "cannot be read"),
    "json of brackets": (_leaf_text('"x"', '"z": ' + "[" * 200_000 + ', "x"'), "nested too deeply"),
    "json with rows of 500 axes": (_leaf_text("1.0", "[" * 500 + "1" + "]" * 500), "nested too deeply"),
    "json with 5,000 digits": (_leaf_text("1.0", "9" * 5000), "thousands of digits"),
    "json with 400 digits": (_leaf_text("1.0", "9" * 400), "holds"),
    "json with half a surrogate pair in a name": (_leaf_text("ann", "\\ud800"), "surrogate"),
    "npz with half a surrogate pair in a label": (_npz(y=np.array(["\ud800", "b"] * 3)), "surrogate"),
    "json with NUL in a name": (_leaf_text("ann", "a\\u0000"), "NUL"),
    "json with a name of 5,000 digits": (_leaf_text("ann", "9" * 5000), "5000 characters"),
    "json with a name that is null": (_leaf_text("ann", "null"), "not a client id"),
    "json with numbers and texts as labels": (_leaf_text("[0.0, 1.0]", '[0.0, "1"]'), "mixed"),
    "csv with clients of 5,000 digits": (_csv("bob", "9" * 5000), "5000 characters"),
    "csv with nan as a client": (_csv("bob", "nan"), "not a client id"),
    "csv with NULL as a client": (_csv("bob", "NULL"), "not a client id"),
    "csv with <NA> as a client": (_csv("bob", "<NA>"), "not a client id"),
    "csv with underscores among numbers": (_csv("bob,5,6,1", "bob,5,6,1_0"), "'1_0' where other rows"),
}
"""Name -> what writes it, and words that its refusal must contain."""
