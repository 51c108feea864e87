"""Files that prove who is who in a federation: the server's certificate and the keys of the clients.

Clients trust a certificate authority and hold a private key each; the server holds a certificate for its host names and
the clients' public keys.  A test authority is enough for one machine or one's own network; otherwise send the signing
request of :func:`signing_request` to an authority that all clients trust.

Needs the package ``cryptography``, which ``pip install 'evenhand[flower]'`` brings.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.errors import EvenhandError
from evenhand.records import replacing

__all__ = [
    "Certificates",
    "authority_file",
    "certificate_names",
    "fingerprint",
    "make_authority",
    "node_key",
    "public_pem",
    "server_certificate",
    "signing_request",
]

_DAYS = 365
_AUTHORITY_DAYS = 3650


class Certificates(NamedTuple):
    """Where the server's files lie.

    Attributes:
      authority: the certificate of the authority that signed the server's; clients get a copy.
      certificate: the server's certificate, with those of authorities in between, if there are any.
      key: its private key, which no other machine needs.
    """

    authority: Path
    certificate: Path
    key: Path


def authority_file(folder: Path) -> Path:
    """Where :func:`make_authority` puts the certificate that clients trust."""
    return folder / "authority.crt"


def make_authority(folder: Path) -> Path:
    """Makes a certificate authority of one's own, for tests and for networks of one's own; an existing one is kept.

    Returns:
      its certificate, ``authority.crt``; whoever has the file ``authority.key`` beside it can pass for the server.

    Raises:
      EvenhandError: the package ``cryptography`` is not installed.
    """
    x509, hashes, _ = _cryptography()
    place = authority_file(folder)
    if place.exists() and _authority_key(folder).exists():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Evenhand test authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _dated(x509.CertificateBuilder(), _AUTHORITY_DAYS)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(x509, signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_secret(_authority_key(folder), _private_pem(key))
    _write(place, _pem(certificate))
    return place


def server_certificate(folder: Path, names: Sequence[str], *, authority: Path | None = None) -> Certificates:
    """Makes the server's key and a certificate for its host names, signed by the test authority.

    To rotate them, call it again: clients trust the authority and notice nothing.  The server reads the files when it
    starts.

    Args:
      folder: where ``server.crt`` and ``server.key`` go.
      names: host names and IP addresses under which clients reach the server.
      authority: the folder of :func:`make_authority`; ``folder`` if it is left out.

    Raises:
      EvenhandError: the authority's key is missing, ``names`` is empty, or ``cryptography`` is not installed.
    """
    x509, hashes, serialization = _cryptography()
    home = authority or folder
    if not (authority_file(home).exists() and _authority_key(home).exists()):
        raise EvenhandError(
            f"{home} has no authority.crt and authority.key: only the test authority's owner can sign a certificate; "
            "else send a signing request to your authority."
        )
    signer = serialization.load_pem_private_key(_authority_key(home).read_bytes(), password=None)
    issuer = x509.load_pem_x509_certificate(authority_file(home).read_bytes())
    key = _new_key()
    certificate = (
        _dated(x509.CertificateBuilder(), _DAYS)
        .subject_name(_subject(x509, names))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .add_extension(_alternatives(x509, names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(x509, signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_secret(folder / "server.key", _private_pem(key))
    _write(folder / "server.crt", _pem(certificate))
    return Certificates(authority_file(home), folder / "server.crt", folder / "server.key")


def signing_request(folder: Path, names: Sequence[str]) -> Path:
    """Makes the server's key and a request that an authority answers with a certificate.

    Returns:
      ``server.csr``; put the authority's answer beside it as ``server.crt``, and the authority's own certificate as
      ``authority.crt``.

    Raises:
      EvenhandError: ``names`` is empty, or ``cryptography`` is not installed.
    """
    x509, hashes, _ = _cryptography()
    key = _new_key()
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(x509, names))
        .add_extension(_alternatives(x509, names), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_secret(folder / "server.key", _private_pem(key))
    _write(folder / "server.csr", _pem(request))
    return folder / "server.csr"


def node_key(folder: Path, *, replace: bool = False) -> Path:
    """Makes the key pair by which the server knows a client.

    To rotate it, make a new pair with ``replace``, and register its public half in place of the old one.

    Args:
      folder: where ``node.key``, which never leaves the client, and ``node.pub`` go.
      replace: overwrite a pair that is there; otherwise it is kept.

    Returns:
      the public half, ``node.pub``, which the server needs.

    Raises:
      EvenhandError: the package ``cryptography`` is not installed.
    """
    _, _, serialization = _cryptography()
    public, private = folder / "node.pub", folder / "node.key"
    if public.exists() and private.exists() and not replace:
        return public
    folder.mkdir(parents=True, exist_ok=True)
    key = _new_key()
    # Flower's nodes read the format of OpenSSH, and no other.
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_secret(private, secret)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(public, line + b"\n")
    return public


def public_pem(path: Path) -> bytes:
    """A client's public key as PEM, from a file in that format or in that of OpenSSH.

    Raises:
      EvenhandError: the file is missing or holds no public key on a NIST curve.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    _, _, serialization = _cryptography()
    try:
        text = path.read_bytes()
        ssh = text.lstrip().startswith(b"ecdsa-")
        key = (serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key)(text.strip())
    except (OSError, ValueError) as error:
        raise EvenhandError(f"{path} holds no public key: give the client's node.pub.") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise EvenhandError(f"{path} holds another kind of key than node.pub: make one with evenhand deploy.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: Path | bytes) -> str:
    """A short name for a public key, as in ``ssh-keygen -l``: two people can compare it over the telephone.

    Args:
      key: its file, or the key itself as PEM.

    Raises:
      EvenhandError: it is no public key.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, ssh_key_fingerprint

    _, hashes, _ = _cryptography()
    pem = public_pem(key) if isinstance(key, Path) else key
    public: Any = load_pem_public_key(pem)
    return "SHA256:" + b64encode(ssh_key_fingerprint(public, hashes.SHA256())).decode().rstrip("=")


def certificate_names(certificate: bytes) -> list[str]:
    """The host names and IP addresses for which a certificate holds.

    Args:
      certificate: as PEM.
    """
    x509, _, _ = _cryptography()
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


# --- parts --------------------------------------------------------------------------------------------------------


def _cryptography() -> tuple[Any, Any, Any]:
    """The package's modules for certificates, hashes and formats of keys."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
    except ImportError as error:
        raise EvenhandError(
            "Certificates and keys need the package cryptography, which is not installed: "
            "pip install 'evenhand[flower]'."
        ) from error
    return x509, hashes, serialization


def _authority_key(folder: Path) -> Path:
    """Where the test authority keeps its private key."""
    return folder / "authority.key"


def _new_key() -> Any:
    """A private key on the curve that is fastest: a node signs each of its requests."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(x509: Any, names: Sequence[str]) -> Any:
    """The name of a certificate; TLS reads the alternatives only, so it may be shortened to what the field holds."""
    if isinstance(names, str) or not names or not all(names):
        raise EvenhandError(
            "names: give the host names or IP addresses under which clients reach the server."
        )
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])


def _alternatives(x509: Any, names: Sequence[str]) -> Any:
    """Host names and IP addresses, which TLS tells apart: a certificate for localhost is none for 127.0.0.1."""

    def alternative(name: str) -> Any:
        try:
            return x509.IPAddress(ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    return x509.SubjectAlternativeName([alternative(name) for name in dict.fromkeys(names)])


def _usage(x509: Any, *, signs: bool) -> Any:
    """What a key may be used for: to sign certificates, or to serve TLS."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _dated(builder: Any, days: int) -> Any:
    """Valid from an hour ago, for clients whose clocks are behind."""
    from cryptography.x509 import random_serial_number

    start = datetime.now(UTC) - timedelta(hours=1)
    return (
        builder.serial_number(random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
    )


def _pem(certificate: Any) -> bytes:
    """A certificate or a request as text."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private_pem(key: Any) -> bytes:
    """A private key as text, without a password: the server starts without a person."""
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Replaces a file in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _write_secret(path: Path, content: bytes) -> None:
    """Replaces a file in one step; nobody else on this machine can read it at any time."""
    with replacing(path) as temporary:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
