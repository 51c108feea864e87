"""Shamir's secret sharing: any ``threshold`` of the shares give the secret, fewer say nothing about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evenhand.errors import EvenhandError

__all__ = ["SHARE_BYTES", "join", "split"]

_PRIME = 2**521 - 1
"""A Mersenne prime that leaves room for secrets of 64 bytes."""
_MOST_BYTES = 64
SHARE_BYTES = 66


def split(
    secret: bytes, points: Sequence[int], threshold: int, random: Callable[[int], bytes]
) -> dict[int, bytes]:
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
    found: dict[int, bytes] = {}
    for x in points:
        value = 0
        for each in (*reversed(coefficients), int.from_bytes(secret, "little")):
            value = (value * x + each) % _PRIME
        found[x] = value.to_bytes(SHARE_BYTES, "little")
    return found


def join(shares: Mapping[int, bytes], size: int) -> bytes:
    """The secret of ``size`` bytes from enough shares, by their points.

    Raises:
      EvenhandError: the shares do not fit together, or are too few: mostly seen, as what comes out is too long.
    """
    total = 0
    for x, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != x:
                above = above * other % _PRIME
                below = below * (other - x) % _PRIME
        total = (total + int.from_bytes(share, "little") * above * pow(below, -1, _PRIME)) % _PRIME
    if total >= 256**size:
        raise EvenhandError("join(): these shares do not give a secret: some are wrong, or they are too few.")
    return total.to_bytes(size, "little")
