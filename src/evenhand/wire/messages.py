"""Messages between server and clients as bytes: a header in JSON, and arrays.

A message comes from another machine, and nothing in it is trusted.  :func:`decode` reads no more than numbers and text:
a header of limited length, and arrays of numeric types whose sizes add up to the length of the message.  Nothing is
unpickled or evaluated.  :func:`unpacked` then checks every array against the shape that it must have.

Layout: 8 bytes ``EVENHAND``, 4 bytes length of the header, the header, and the arrays one after the other in
little-endian order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.types import PyTree

__all__ = ["Packet", "PacketError", "decode", "encode", "packed", "unpacked", "whole"]

NDArray = npt.NDArray[Any]

_MAGIC = b"EVENHAND"
_LONGEST_HEADER = 2**24
_MOST_DIMENSIONS = 32
_MOST_ARRAYS = 2**15
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_TYPES = {"bool", *_FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


class Packet(NamedTuple):
    """What one side sends to the other.

    Attributes:
      kind: what it asks for or answers, such as ``"work"``.
      fields: numbers, texts, lists and objects of JSON, by name.
      arrays: numbers of which the receiver knows the shapes.
    """

    kind: str
    fields: Mapping[str, Any] = {}
    arrays: tuple[NDArray, ...] = ()


class PacketError(EvenhandError):
    """A message that is not what it should be."""


def encode(message: Packet) -> bytes:
    """The bytes of a message; equal messages have equal bytes.

    Raises:
      PacketError: it has more arrays than :func:`decode` takes.

    Example:
      >>> decode(encode(Packet("work", {"round": 3}, (np.arange(3),)))).fields["round"]
      3
    """
    if len(message.arrays) > _MOST_ARRAYS:
        raise PacketError(_too_many(len(message.arrays)))
    arrays = [np.ascontiguousarray(array) for array in message.arrays]
    about = [[array.dtype.name, list(np.shape(array))] for array in message.arrays]
    header = json.dumps(
        {"kind": message.kind, "fields": message.fields, "arrays": about}, sort_keys=True, allow_nan=False
    ).encode()
    parts = [_MAGIC, len(header).to_bytes(4, "little"), header]
    return b"".join([*parts, *(array.tobytes() for array in map(_little_endian, arrays))])


def decode(data: bytes) -> Packet:
    """The message that some bytes are.

    Raises:
      PacketError: they are none: cut off, too long, or not of these types.
    """
    if data[:8] != _MAGIC:
        raise PacketError("A message does not begin as those of Evenhand do: it was sent by something else.")
    length = int.from_bytes(data[8:12], "little")
    if len(data) < 12 or length > min(_LONGEST_HEADER, len(data) - 12):
        raise PacketError("A message is cut off in its header.")
    try:
        header: Any = json.loads(
            data[12 : 12 + length], parse_constant=_refused, parse_float=_finite, object_pairs_hook=_entries
        )
        kind, fields, about = header["kind"], header["fields"], header["arrays"]
    # RecursionError: nested too deeply; the others: not UTF-8, not JSON, or not an object with these entries
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PacketError("The header of a message is not JSON with a kind, fields and arrays.") from None
    if not (isinstance(kind, str) and isinstance(fields, dict) and isinstance(about, list)):
        raise PacketError("The header of a message is not JSON with a kind, fields and arrays.")
    arrays, position, entries = list[NDArray](), 12 + length, cast(list[Any], about)
    # An empty array has a few bytes in a header, and hundreds in memory.
    if len(entries) > _MOST_ARRAYS:
        raise PacketError(_too_many(len(entries)))
    for entry in entries:
        dtype, shape = _form(entry)
        size = math.prod(shape) * dtype.itemsize
        if size > len(data) - position:
            raise PacketError("A message is cut off: its arrays are longer than what came.")
        flat = np.frombuffer(data, dtype, math.prod(shape), position)
        if dtype == np.bool_ and np.any(flat.view(np.uint8) > 1):
            raise PacketError("A message has numbers where true or false is expected.")
        # A copy: what came is read-only, and not aligned.
        arrays.append(flat.astype(dtype.newbyteorder("="), copy=True).reshape(shape))
        position += size
    if position != len(data):
        raise PacketError("A message is longer than its arrays.")
    return Packet(kind, cast(dict[str, Any], fields), tuple(arrays))


def _form(entry: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and the shape of an array that a header announces."""
    match entry:
        case [str(name), list(sizes)] if name in _TYPES and len(cast(list[Any], sizes)) <= _MOST_DIMENSIONS:
            shape = cast(list[Any], sizes)
            # An empty array may not be of sizes that no array can have, either.
            whole = all(type(size) is int and size >= 0 for size in shape)
            if whole and math.prod(size for size in shape if size) < 2**40:
                return jnp.dtype(name).newbyteorder("<"), tuple(shape)
        case _:
            pass
    raise PacketError("A message announces an array of an impossible type or shape.")


def _too_many(arrays: int) -> str:
    return f"A message has {arrays:,} arrays, and at most {_MOST_ARRAYS:,} are read: send a model of fewer arrays."


def _little_endian(array: NDArray) -> NDArray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _refused(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    """A number of JSON; ``1e999`` would be infinite."""
    return value if math.isfinite(value := float(text)) else _refused(text)


def _entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; two readers of one that has a name twice may disagree about it."""
    entries = dict(pairs)
    return entries if len(entries) == len(pairs) else _refused("a name twice")


def whole(fields: Mapping[str, Any], name: str) -> int:
    """A whole number of 64 bits among the fields of a message.

    Raises:
      KeyError, ValueError: there is none; a text of digits, ``true`` and ``3.0`` are none, either.
    """
    value = fields[name]
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"{name} is not a whole number")
    return value


# --- trees of arrays --------------------------------------------------------------------------------------------------


def packed(tree: PyTree) -> tuple[NDArray, ...]:
    """The leaves of a tree as NumPy arrays; random keys as the numbers that they are made of."""
    return tuple(
        np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)
    )


def unpacked(arrays: Sequence[NDArray], like: PyTree, name: str) -> PyTree:
    """The tree whose leaves were sent; ``name`` says in errors what it is.

    Args:
      arrays: as :func:`packed` gives them.
      like: a tree of the same form, of arrays or of shapes.
      name: such as ``"an upload"``.

    Raises:
      PacketError: they are not of that form.
    """
    leaves, structure = jax.tree.flatten(like)
    if len(arrays) != len(leaves):
        raise PacketError(f"The message has {len(arrays)} arrays for {name}, which has {len(leaves)}.")
    made = list[Any]()
    for array, leaf in zip(arrays, leaves, strict=True):
        expected = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise PacketError(
                f"The message has {array.dtype}{list(array.shape)} for {name}, where "
                f"{expected.dtype}{list(expected.shape)} is due."
            )
        # Of the generator of all keys of a run, whatever JAX's default is.
        made.append(
            jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32") if _is_key(leaf) else array
        )
    return jax.tree.unflatten(structure, made)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
