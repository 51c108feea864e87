"""The cryptography of a secure sum: shares of a secret, keys that two clients agree on, sealed messages, and masks.

Shamir's secret sharing is whole-number arithmetic; keys, seals and masks are X25519, HKDF and AES of the package
``cryptography``, which is imported where it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError

NDArray: TypeAlias = npt.NDArray[Any]


Random: TypeAlias = Callable[[int], bytes]
"""``n -> n`` random bytes, such as ``secrets.token_bytes``."""


# --- shares: any `threshold` of them give the secret, fewer say nothing about it -------------------------


_PRIME = 2**521 - 1
"""A Mersenne prime that leaves room for secrets of 64 bytes."""


_MOST_BYTES = 64


SHARE_BYTES = 66


def split(secret: bytes, points: Sequence[int], threshold: int, random: Random) -> dict[int, bytes]:
    r"""A share for each point: values of a random polynomial of degree ``threshold - 1`` whose constant is the secret.

    .. math:: s(x) = S + a_1 x + \dots + a_{t - 1} x^{t - 1} \pmod{2^{521} - 1}

    Args:
      secret: up to 64 bytes.
      points: different whole numbers from 1 on.
      threshold: :math:`t`, how many shares give the secret.
      random: ``n -> n`` random bytes, such as ``secrets.token_bytes``.

    Raises:
      EvenhandError: there are fewer points than ``threshold``, two are equal, or the secret is too long.

    Example:
      >>> import secrets
      >>> shares = split(b"pi is 3.14159", (1, 2, 3, 4, 5), 3, secrets.token_bytes)
      >>> join({1: shares[1], 4: shares[4], 5: shares[5]}, 13)
      b'pi is 3.14159'

    Source: Shamir, *How to Share a Secret*, Communications of the ACM 1979.
    """
    if not 1 <= threshold <= len(points):
        raise EvenhandError(f"split(threshold={threshold}): give 1 to {len(points)}, the number of shares.")
    if len(set(points)) < len(points) or min(points) < 1:
        raise EvenhandError("split(points=): give different whole numbers from 1 on.")
    if len(secret) > _MOST_BYTES:
        raise EvenhandError(f"split(): the secret has {len(secret)} bytes, more than {_MOST_BYTES}.")
    # 74 bytes modulo a prime of 521 bits: uniform to 2**-71.
    coefficients = [int.from_bytes(random(74), "little") % _PRIME for _ in range(threshold - 1)]
    shares = dict[int, bytes]()
    for x in points:
        value = 0
        for coefficient in (*reversed(coefficients), int.from_bytes(secret, "little")):
            value = (value * x + coefficient) % _PRIME
        shares[x] = value.to_bytes(SHARE_BYTES, "little")
    return shares


def join(shares: Mapping[int, bytes], size: int) -> bytes:
    """The secret of ``size`` bytes from enough shares, by their points.

    Raises:
      EvenhandError: the shares do not fit together, or are too few: mostly seen, as what comes out is too long.
    """
    total = 0
    for x, share in shares.items():
        others = [other for other in shares if other != x]
        weight = math.prod(others) * pow(math.prod(other - x for other in others), -1, _PRIME)
        total = (total + int.from_bytes(share, "little") * weight) % _PRIME
    if total >= 256**size:
        raise EvenhandError("join(): these shares do not give a secret: some are wrong, or they are too few.")
    return total.to_bytes(size, "little")


# --- keys and seals --------------------------------------------------------------------------------------


SEED_BYTES = 16


_NONCE_BYTES = 12


def public_key(private: bytes) -> bytes:
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


def agreed_secret(private: bytes, other: bytes, purpose: bytes) -> bytes:
    """What two clients know and nobody else: 16 bytes from one's private key and the other's public key.

    Raises:
      EvenhandError: the other's key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        public = X25519PublicKey.from_public_bytes(other)
        shared = X25519PrivateKey.from_private_bytes(private).exchange(public)
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


# --- masks of any length from short seeds ----------------------------------------------------------------


_CHUNK = 2**18


_ZEROS = bytes(_CHUNK)


def add_masks(total: NDArray, plus: Sequence[bytes], minus: Sequence[bytes], threads: int = 1) -> None:
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
        _add_part(total, 0, plus, minus)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: _add_part(total[start : start + share], start, plus, minus), starts))


def _add_part(part: NDArray, start: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """As :func:`add_masks`, for the part of the numbers from ``start`` on; a multiple of a block's."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    counter = modes.CTR((start * part.itemsize // 16).to_bytes(16, "big"))
    changes = [*((seed, np.add) for seed in plus), *((seed, np.subtract) for seed in minus)]
    streams = [(Cipher(algorithms.AES(seed), counter).encryptor(), change) for seed, change in changes]
    buffer = bytearray(_CHUNK + 16)
    kind, step = part.dtype.newbyteorder("<"), _CHUNK // part.itemsize
    for begin in range(0, len(part), step):
        some = part[begin : begin + step]
        for stream, change in streams:
            stream.update_into(_ZEROS[: some.nbytes], buffer)
            change(some, np.frombuffer(buffer, kind, len(some)), out=some)
