"""Odd and damaged NumPy archives and IDX files."""

from __future__ import annotations

import gzip
import io
import random
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.bytes_and_cells import CELLS, damage

_SHAPES = [
    *["()", "(6,)", "(6, 0)", "(6, 3, 0)", "(0, 2)", "(True, 2)", "(-1, 2)", "(6.0, 2)", "(1000000000,)"],
    *[
        "(6, 1000000000)",
        "(2**62, 4)",
        "(10**30,)",
        "6",
        "(6, 2,) * 40",
        "None",
        "('6', 2)",
        "(6L, 2L)",
        "(6, 2",
    ],
    "(" + "1, " * 70 + ")",
]
_DTYPES = [
    *["'<f4'", "'>f8'", "'<f2'", "'<f16'", "'|S0'", "'<U0'", "'|S5'", "'<U900000000'", "'|O'", "'<M8[ns]'"],
    *[
        "'<m8[s]'",
        "'<c8'",
        "'|V8'",
        "'|b1'",
        "'<u8'",
        "'|u1'",
        "[('a', '<f4'), ('b', '<i4')]",
        "'(2,)<f4'",
        "'x'",
    ],
    *["[('" + "a" * 3000 + "', '<f4')]", "[]", "'<f4,<f4'", "None", "1"],
]
_PLAIN = [
    "f2",
    "f4",
    "f8",
    "longdouble",
    "i1",
    "u1",
    "i8",
    "u8",
    "?",
    ">f4",
    ">i8",
    "c8",
    "M8[s]",
    "S3",
    "U3",
    "O",
]


def npz(rng: random.Random, folder: Path) -> Path:
    """An archive with changes to its arrays, to their headers, to the zip file or to its bytes."""
    n = 6
    arrays: dict[str, Any] = {"x": np.arange(2.0 * n).reshape(n, 2), "y": np.arange(n) % 2}
    arrays["client"] = np.arange(n) // 3
    if rng.random() < 0.25:
        arrays = {f"{name}_{part}": array for name, array in arrays.items() for part in ("train", "test")}
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        name = rng.choice(list(arrays))
        arrays[name] = _array(rng, arrays[name])
    if rng.random() < 0.1:
        arrays[rng.choice([cell for cell in CELLS if "\0" not in cell])] = arrays.pop(
            rng.choice(list(arrays))
        )
    raw = {name: _npy(array) for name, array in arrays.items()}
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        name = rng.choice(list(raw))
        raw[name] = _header(rng, raw[name]) if rng.random() < 0.7 else damage(rng, raw[name])
    path = folder / "arrays.npz"
    kind = rng.choice(
        [zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED] * 4 + [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    )
    with zipfile.ZipFile(path, "w", kind) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in raw.items():
            archive.writestr(f"{name[:60_000]}.npy", content)
            if rng.random() < 0.03:
                archive.writestr("x.npy", content)
    if rng.random() < 0.15:
        path.write_bytes(damage(rng, path.read_bytes()))
    return path


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def _array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    match rng.randrange(7):
        case 0:
            kind = rng.choice(_PLAIN)
            try:
                return array.astype(kind)
            except (ValueError, TypeError):
                return np.zeros(array.shape, kind)
        case 1:
            shapes = [(), (0,), (6, 0), (6, 3, 0), (5, 2), (6, 1), (6, 2, 2), (1,) * 30, (6, *(1,) * 40)]
            return np.zeros(rng.choice(shapes), array.dtype)
        case 2:
            changed = np.zeros(array.shape)
            changed.reshape(-1)[rng.randrange(changed.size) if changed.size else slice(0)] = rng.choice(
                [np.nan, np.inf, -np.inf, 1e300, -1, 0.5, 1e18, -0.0, 1e-320]
            )
            return changed
        case 3:
            return np.array(
                [rng.choice([cell for cell in CELLS if len(cell) < 5001]) for _ in range(array.size)]
            )
        case 4:
            return np.atleast_1d(array)[::-1].T[:5]
        case 5:
            return np.full(array.shape, rng.choice([2**31, 2**63, -(2**40), 255, 10_001]))
        case _:
            return np.asfortranarray(array)


def _header(rng: random.Random, content: bytes) -> bytes:
    """The array with another header, which promises another array or has another version."""
    old = content[10:].split(b"\n", 1)
    body = old[1] if len(old) > 1 else b""
    dtype = rng.choice(_DTYPES) if rng.random() < 0.6 else "'<f8'"
    shape = rng.choice(_SHAPES) if rng.random() < 0.6 else "(6, 2)"
    order = rng.choice(["False", "False", "True", "1"])
    text = rng.choice(
        [
            f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}",
            f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}",
            f"{{'descr': {dtype}, 'shape': {shape}}}",
            "{" * 300,
            "(" * 5000,
            "",
        ]
    )
    raw = text.encode() + b"\n"
    version = rng.choice([1, 1, 1, 2, 3, 0, 9])
    size = rng.choice([len(raw)] * 6 + [0, 65_000])
    packed = (
        struct.pack("<H", size) if version == 1 else struct.pack("<I", rng.choice([size, size, 2**31 - 1]))
    )
    return b"\x93NUMPY" + bytes([version, 0]) + packed + raw + body


def idx(rng: random.Random, folder: Path) -> Path:
    """Images and labels, with a change to a header, a content, the gzip members or a name, or with a file missing."""
    n = rng.choice([100, 120, 150])
    files = {}
    for part in ("train", "t10k") if rng.random() < 0.3 else ("train",):
        files[f"{part}-images-idx3-ubyte"] = (bytes([0, 0, 8, 3]), (n, 2, 2), rng.randbytes(4 * n))
        files[f"{part}-labels-idx1-ubyte"] = (bytes([0, 0, 8, 1]), (n,), bytes(i % 10 for i in range(n)))
    target = rng.choice(list(files))
    for name, (magic, shape, body) in files.items():
        if name == target:
            magic, shape, body = _idx_parts(rng, magic, shape, body)
        content = magic + struct.pack(f">{len(shape)}I", *shape) + body
        if name == target and rng.random() < 0.2:
            content = damage(rng, content)
        zipped = rng.random() < 0.5
        if zipped:
            content = _zipped(rng, content) if name == target else gzip.compress(content)
        if name == target and rng.random() < 0.05:
            continue
        (folder / (name + (".gz" if zipped != (rng.random() < 0.03) else ""))).write_bytes(content)
    written = sorted(folder.iterdir())
    return folder if rng.random() < 0.3 or not written else rng.choice(written)


def _idx_parts(
    rng: random.Random, magic: bytes, shape: tuple[int, ...], body: bytes
) -> tuple[bytes, tuple[int, ...], bytes]:
    match rng.randrange(7):
        case 0:
            return bytes([0, 0, rng.choice([8, 9, 11, 12, 13, 14, 10, 255]), magic[3]]), shape, body
        case 1:
            return magic[:3] + bytes([rng.choice([0, 1, 2, 3, 4, 5, 255])]), shape, body
        case 2:
            changed = list(shape)
            changed[rng.randrange(len(shape))] = rng.choice([0, 1, 99, 2**16, 2**31, 2**32 - 1])
            return magic, tuple(changed), body
        case 3:
            return magic, shape, body[: rng.randrange(len(body))]
        case 4:
            return magic, shape, body + rng.randbytes(rng.choice([1, 1000, 100_000]))
        case 5:
            return bytes([0, 0, 13, magic[3]]), shape, rng.randbytes(4 * len(body))
        case _:
            return magic, (2**32 - 1,) * len(shape), body


def _zipped(rng: random.Random, content: bytes) -> bytes:
    match rng.randrange(6):
        case 0:
            return gzip.compress(content + bytes(rng.choice([1, 30_000_000])))
        case 1:
            half = len(content) // 2
            return gzip.compress(content[:half]) + gzip.compress(content[half:])
        case 2:
            return gzip.compress(content) + rng.randbytes(20)
        case 3:
            return gzip.compress(gzip.compress(content))
        case 4:
            return damage(rng, gzip.compress(content))
        case _:
            return gzip.compress(content)
