"""Masks of any length from short secrets: X25519 agreements, HKDF and AES in counter mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

__all__ = ["SEED_BYTES", "Random", "add", "agreed", "public", "seal", "unseal"]

NDArray: TypeAlias = npt.NDArray[Any]
Random: TypeAlias = Callable[[int], bytes]
"""``n -> n`` random bytes, such as ``secrets.token_bytes``."""

SEED_BYTES = 16
_NONCE_BYTES = 12
_CHUNK = 2**18
_ZEROS = bytes(_CHUNK)


def public(private: bytes) -> bytes:
    """The public key of a private one, 32 bytes each.

    Raises:
      EvenhandError: the package ``cryptography`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise EvenhandError(
            "Masks need the package cryptography, which is not installed: pip install 'evenhand[secure]'."
        ) from error
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other: bytes, purpose: bytes) -> bytes:
    """What two clients know and nobody else: 16 bytes from one's private key and the other's public key.

    Raises:
      EvenhandError: the other's key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(other)
        )
    except ValueError as error:
        raise EvenhandError("A client's public key is not valid: leave this client out.") from error
    return HKDF(SHA256(), SEED_BYTES, None, b"evenhand secure sum " + purpose).derive(shared)


def seal(key: bytes, text: bytes, random: Random) -> bytes:
    """Encrypts and authenticates."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = random(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """What :func:`seal` has sealed.

    Raises:
      EvenhandError: somebody has changed it, or the key is another.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:  # the latter: too short for a tag
        raise EvenhandError(
            "Shares of a client do not open: they were changed on their way, or are another's."
        ) from error


def add(total: NDArray, plus: Sequence[bytes], minus: Sequence[bytes], threads: int = 1) -> None:
    """Adds to ``total``, in place, the masks of some seeds, and takes those of others from it.

    Args:
      total: uint32 or uint64 ``(n,)``, contiguous; sums wrap around.
      plus: seeds whose masks are added.
      minus: seeds whose masks are subtracted.
      threads: parts of ``total`` that are done at the same time.
    """
    step = _CHUNK // total.itemsize
    share = max(step, -(-len(total) // (threads * step)) * step)
    starts = range(0, len(total), share)
    if len(starts) <= 1:
        _add(total, 0, plus, minus)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: _add(total[start : start + share], start, plus, minus), starts))


def _add(part: NDArray, start: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """As :func:`add`, for the part of the numbers from ``start`` on; a multiple of a block's."""
    counter = (start * part.itemsize // 16).to_bytes(16, "big")
    streams = [(_stream(seed, counter), np.add) for seed in plus]
    streams += [(_stream(seed, counter), np.subtract) for seed in minus]
    buffer = bytearray(_CHUNK + 16)
    kind, step = part.dtype.newbyteorder("<"), _CHUNK // part.itemsize
    for begin in range(0, len(part), step):
        some = part[begin : begin + step]
        for stream, change in streams:
            size = some.nbytes
            stream.update_into(_ZEROS if size == _CHUNK else _ZEROS[:size], buffer)
            change(some, np.frombuffer(buffer, kind, len(some)), out=some)


def _stream(seed: bytes, counter: bytes) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
