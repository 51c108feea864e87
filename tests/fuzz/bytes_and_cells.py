"""Damage that files of every format can have: odd values and corrupted bytes."""

from __future__ import annotations

import random
from typing import Any

CELLS = [
    *["", " ", "nan", "NaN", "NA", "null", "None", "<NA>", "inf", "-Infinity", "1e400", "-0", "0x10", "1,5"],
    *["1_000", "٣", "1\xa0", "9" * 5000, "-1", "2147483648", "1e30", "0.5", "1e-400", "True", "a,b", "a\nb"],
    *['"', '""', "'", "\0", "a\0", "\x1b[31mred", "[/]", "=1+1", "\u202eabc", "\ufeff", "é", "x" * 2000],
    *["x" * 140_000, "\U0001f600", "1;2", "\t", "c0", "0", "1"],
]
"""What people and programs leave in cells."""

VALUES: list[Any] = [
    *[None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), -float("inf"), 2**31, 2**63, 2**64],
    *[
        10**40,
        "",
        "a",
        "nan",
        "1_000",
        "\ud800",
        "\0",
        "x" * 3000,
        [],
        {},
        [[]],
        [0],
        [[0.0]],
        {"x": [1]},
        "0",
    ],
]
"""What programs write into JSON; some of it is not JSON at all."""


def damage(rng: random.Random, content: bytes) -> bytes:
    """``content`` with some of its bytes flipped, cut off, repeated, moved or replaced."""
    if not content:
        return b"\0"
    at = rng.randrange(len(content))
    other = rng.randrange(len(content))
    low, high = min(at, other), max(at, other)
    match rng.randrange(9):
        case 0:
            changed = bytearray(content)
            for _ in range(rng.choice([1, 1, 2, 20])):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return content[:at]
        case 2:
            return content[at:]
        case 3:
            return content[:high] + content[low:]
        case 4:
            return content[:low] + content[high:]
        case 5:
            return content[:at] + rng.randbytes(rng.choice([1, 4, 100])) + content[at:]
        case 6:
            return content[:low] + bytes(high - low) + content[high:]
        case 7:
            return content[at:] + content[:at]
        case _:
            return content[:at] + b"\xff" * 8 + content[at + 8 :]


def reencoded(rng: random.Random, text: str) -> bytes:
    """Text as bytes, most often in UTF-8."""
    name = rng.choice(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "latin-1", "utf-32"])
    return text.encode(name, "surrogatepass" if name.startswith("utf") else "replace")
