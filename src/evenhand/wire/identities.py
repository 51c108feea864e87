"""Who a client is: a key pair, and a certificate of the federation's authority for its public key and its number.

The authority signs ``(federation, client, public key)``, and each client knows the authority's public key only.  So a
client can be added without a change to the others, and a client that the authority has not signed is none.  Keys and
signatures are Ed25519, of the package ``cryptography``.

Whoever holds the authority's private key can invent clients.  Where clients do not trust the server's operator, that
key must be elsewhere.  A certificate has no end: a client is removed by leaving it out of cohorts, and a stolen key is
the key of a client that colludes, until the federation has another authority.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.wire.messages import Packet, encode

__all__ = [
    "CERTIFICATE_BYTES",
    "KEY_BYTES",
    "SIGNATURE_BYTES",
    "Identity",
    "certificate_of",
    "identity_of",
    "is_certified",
    "is_signed",
    "new_private_key",
    "public_key_of",
    "signature_of",
]

KEY_BYTES = 32
"""Of a private key, and of a public one."""

SIGNATURE_BYTES = 64
"""Of a signature."""

CERTIFICATE_BYTES = SIGNATURE_BYTES
"""Of a certificate, which is a signature."""


class Identity(NamedTuple):
    """What a client knows of itself and of its federation.

    Attributes:
      federation: its id.
      client: the client's number.
      private: its private key, 32 bytes, which nobody else has.
      certificate: the authority's signature of the number and the public key.
      authority: the authority's public key.
    """

    federation: str
    client: int
    private: bytes
    certificate: bytes
    authority: bytes

    @property
    def public(self) -> bytes:
        """The client's public key."""
        return public_key_of(self.private)

    # A private key is not to appear in a log.
    def __repr__(self) -> str:
        return f"Identity(federation={self.federation!r}, client={self.client})"


def identity_of(
    federation: str, client: int, private: bytes, certificate: bytes, authority: bytes
) -> Identity:
    """The identity of a client, once its certificate is checked.

    Raises:
      EvenhandError: the certificate is not that of this client, key, federation and authority.

    Example:
      >>> authority, private = new_private_key(), new_private_key()
      >>> certificate = certificate_of(authority, "clinics", 3, public_key_of(private))
      >>> identity_of("clinics", 3, private, certificate, public_key_of(authority))
      Identity(federation='clinics', client=3)
    """
    if not is_certified(authority, federation, client, public_key_of(private), certificate):
        raise EvenhandError(
            f"The certificate of client {client} does not fit its key in the federation {federation!r}: ask the "
            "federation's authority for one of this client's public key and number."
        )
    return Identity(federation, client, private, certificate, authority)


def new_private_key() -> bytes:
    """A private key of a client or an authority, from the operating system's randomness."""
    return _ed25519().Ed25519PrivateKey.generate().private_bytes_raw()


def public_key_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return _ed25519().Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def certificate_of(authority: bytes, federation: str, client: int, public: bytes) -> bytes:
    """The certificate of a client's public key.

    Args:
      authority: the authority's *private* key.
      federation: its id.
      client: the client's number.
      public: the client's public key; its private key does not have to leave the client.
    """
    return signature_of(authority, _certified(federation, client, public))


def is_certified(authority: bytes, federation: str, client: int, public: bytes, certificate: bytes) -> bool:
    """Whether the authority, given by its public key, has signed this client's number and public key."""
    return is_signed(authority, _certified(federation, client, public), certificate)


def signature_of(private: bytes, statement: Packet) -> bytes:
    """The signature of a statement; its kind says what it is, so that no signature serves two purposes."""
    return _ed25519().Ed25519PrivateKey.from_private_bytes(private).sign(encode(statement))


def is_signed(public: bytes, statement: Packet, signature: bytes) -> bool:
    """Whether the owner of a public key has signed exactly this statement."""
    return _is_signed(public, encode(statement), signature)


# Kept, as the clients of one process (a simulated network) all check the same signatures.
@lru_cache(maxsize=2**12)
def _is_signed(public: bytes, text: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):  # the latter: no public key
        return False
    return True


def _certified(federation: str, client: int, public: bytes) -> Packet:
    """The statement of a certificate."""
    fields: Mapping[str, Any] = {"federation": federation, "client": client}
    return Packet("evenhand client", fields, (np.frombuffer(public, np.uint8),))


def _ed25519() -> Any:
    """The module of the package ``cryptography``, which an installation without secure sums does not have."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise EvenhandError(
            "Signatures need the package cryptography, which is not installed: pip install 'evenhand[secure]'."
        ) from error
    return ed25519
