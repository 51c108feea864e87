"""The characters of LEAF's Shakespeare task as tokens."""

from __future__ import annotations

import numpy as np

from evenhand.data._arrays import NDArray
from evenhand.errors import EvenhandError

__all__ = ["ALPHABET", "encode_characters"]

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare task; a character's token is its place here."""

_TOKENS = {character: token for token, character in enumerate(ALPHABET)}


def encode_characters(text: str) -> NDArray:
    """The int32 tokens of ``text``, one per character of :data:`ALPHABET`.

    Args:
      text: any string.

    Raises:
      EvenhandError: ``text`` is not a string, or a character is not among the 80.

    Source: Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018.

    Example:
      >>> encode_characters("Ay, me")
      array([25, 77,  8,  1, 65, 57], dtype=int32)
    """
    try:
        return np.array([_TOKENS[character] for character in text], np.int32)
    except KeyError as error:
        raise EvenhandError(
            f"character {error.args[0]!r} is not among the {len(ALPHABET)} of the LEAF Shakespeare alphabet: "
            "replace it, or encode with another function."
        ) from None
    except TypeError:
        raise EvenhandError(
            f"an example of type {type(text).__name__} is not text: leave the encoding out where examples are numbers."
        ) from None
