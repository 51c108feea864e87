"""Certificates and keys: a real TLS connection accepts those that it should, and no others."""

import base64
import hashlib
import re
import socket
import ssl
import stat
import sys
import threading
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from evenhand.errors import EvenhandError
from evenhand.network import certificates
from evenhand.network.carriers import _processes
from evenhand.network.carriers._processes import obstacle

DATED = b"HTTP/1.0 404 Not Found\r\nDate: %s\r\n\r\n"


class Server:
    """Speaks TLS with a certificate, and tells the date."""

    def __init__(self, files):
        self.trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.trust.load_cert_chain(files.certificate, files.key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            line, _ = self.listener.accept()
            try:
                with self.trust.wrap_socket(line, server_side=True) as secure:
                    if b"stop" in secure.recv(1000):
                        return
                    date = _processes.email.utils.formatdate(usegmt=True).encode()
                    secure.sendall(DATED % date)
            except OSError:
                line.close()

    def close(self):
        anything = ssl.create_default_context()
        anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            anything.wrap_socket(plain) as line,
        ):
            line.sendall(b"stop")
        self.thread.join(5)
        self.listener.close()


@pytest.fixture
def serving():
    servers = []

    def start(files):
        servers.append(Server(files))
        return servers[-1].port

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def home(tmp_path):
    certificates.make_authority(tmp_path)
    return tmp_path


def problem(port, authority, host="localhost") -> Any:
    return obstacle(f"{host}:{port}", authority, timeout=5)


def test_a_certificate_holds_for_its_names_and_for_no_other(home, serving):
    authority = certificates.authority_file(home)
    port = serving(certificates.server_certificate(home, ["localhost"]))
    assert problem(port, authority) is None
    sentence = problem(port, authority, "127.0.0.1")
    assert sentence.startswith(
        f"The certificate of 127.0.0.1:{port} is valid for localhost, not for 127.0.0.1"
    )

    port = serving(certificates.server_certificate(home, ["example.org", "127.0.0.1"]))
    assert problem(port, authority, "127.0.0.1") is None
    assert "is valid for example.org or 127.0.0.1, not for localhost" in problem(port, authority)


def test_a_new_certificate_of_the_same_authority_needs_nothing_at_the_clients(home, serving):
    authority = certificates.authority_file(home).read_bytes()
    first = certificates.server_certificate(home, ["localhost"])
    before = first.certificate.read_bytes()
    second = certificates.server_certificate(home, ["localhost"])
    assert second.certificate.read_bytes() != before
    certificates.make_authority(home)
    assert certificates.authority_file(home).read_bytes() == authority
    assert problem(serving(second), certificates.authority_file(home)) is None


def test_a_certificate_of_another_authority_is_refused(home, tmp_path, serving):
    other = certificates.make_authority(tmp_path / "other")
    port = serving(certificates.server_certificate(home, ["localhost"]))
    assert f"was not signed by the authority in {other}" in problem(port, other)


def test_a_servers_certificate_cannot_sign_another(home, tmp_path, serving):
    """Else whoever has the server's key could pass for any machine that the authority's clients talk to."""
    files = certificates.server_certificate(home, ["localhost"])
    forger = tmp_path / "forger"
    forger.mkdir()
    for source, name in ((files.certificate, "authority.crt"), (files.key, "authority.key")):
        (forger / name).write_bytes(source.read_bytes())
    forged = certificates.server_certificate(forger, ["localhost"])
    forged.certificate.write_bytes(forged.certificate.read_bytes() + files.certificate.read_bytes())
    assert "was not signed by the authority" in problem(serving(forged), certificates.authority_file(home))


def test_an_expired_certificate_is_named_as_such(home, serving, monkeypatch):
    monkeypatch.setattr(certificates, "_DAYS", 0)
    port = serving(certificates.server_certificate(home, ["localhost"]))
    assert "is not valid today (certificate has expired)" in problem(port, certificates.authority_file(home))


@pytest.mark.parametrize(("seconds", "words"), [(400, "seconds ahead of"), (-400, "seconds behind")])
def test_a_clock_that_is_wrong_is_told(home, serving, monkeypatch, seconds, words):
    port = serving(certificates.server_certificate(home, ["localhost"]))
    authority = certificates.authority_file(home)
    now = _processes.time.time
    monkeypatch.setattr(_processes, "_now", lambda: now() + seconds)
    sentence = problem(port, authority)
    assert words in sentence
    clock = re.search(r"clock is (\d+)", sentence)
    assert clock is not None and abs(int(clock[1]) - 400) <= 2
    monkeypatch.setattr(_processes, "_now", lambda: now() + seconds / 2)
    assert problem(port, authority) is None


def test_a_server_that_is_not_there_and_one_that_speaks_no_tls(home):
    authority = certificates.authority_file(home)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def greet():
            line, _ = listener.accept()
            with line:
                line.sendall(b"220 mail.example.org ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert "does not answer with TLS" in problem(port, authority)
        thread.join(5)
    assert problem(port, authority).startswith(f"No server answers at localhost:{port}")


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":80", "localhost:http", "localhost:70000", ""]
)
def test_an_address_has_a_host_and_a_port(home, address):
    with pytest.raises(EvenhandError, match=re.escape("give host:port")):
        obstacle(address, certificates.authority_file(home))


def test_a_file_that_holds_no_certificate_is_named(tmp_path):
    (tmp_path / "authority.crt").write_text("nothing")
    for name in ("authority.crt", "missing.crt"):
        with pytest.raises(EvenhandError, match=f"{name} holds no certificate"):
            obstacle("localhost:1", tmp_path / name)


def test_secrets_are_readable_by_their_owner_alone(home):
    files = certificates.server_certificate(home, ["localhost"])
    public = certificates.node_key(home)
    certificates.signing_request(home / "request", ["localhost"])
    _processes.secret_file(home / "secret")
    secret = [
        files.key,
        home / "authority.key",
        home / "node.key",
        home / "request/server.key",
        home / "secret",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    for path in (public, files.certificate, files.authority):
        assert b"PRIVATE" not in path.read_bytes()


def test_a_signing_request_names_the_hosts_and_proves_the_key(tmp_path):
    request = x509.load_pem_x509_csr(
        certificates.signing_request(tmp_path, ["a.example.org", "10.0.0.1"]).read_bytes()
    )
    assert request.is_signature_valid
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    key = serialization.load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    assert key.public_key() == request.public_key()


def test_a_clients_keys_are_a_pair_and_are_replaced_only_on_request(tmp_path):
    public = certificates.node_key(tmp_path)
    private = serialization.load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert serialization.load_pem_public_key(certificates.public_pem(public)) == private.public_key()
    before = public.read_bytes()
    assert certificates.node_key(tmp_path).read_bytes() == before
    assert certificates.node_key(tmp_path, replace=True).read_bytes() != before


def test_a_fingerprint_is_that_of_openssh(tmp_path):
    public = certificates.node_key(tmp_path)
    blob = base64.b64decode(public.read_text().split()[1])
    expected = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    assert certificates.fingerprint(public) == expected
    assert certificates.fingerprint(certificates.public_pem(public)) == expected


def test_a_public_key_may_be_in_either_format_and_is_nothing_else(tmp_path):
    public = certificates.node_key(tmp_path)
    pem = tmp_path / "key.pem"
    pem.write_bytes(certificates.public_pem(public))
    assert certificates.public_pem(pem) == certificates.public_pem(public)
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    pem.write_bytes(
        other.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(EvenhandError, match="another kind of key"):
        certificates.public_pem(pem)
    for path in (tmp_path / "node.key", tmp_path / "missing.pub"):
        with pytest.raises(EvenhandError, match="holds no public key"):
            certificates.public_pem(path)


@pytest.mark.parametrize("names", [[], "localhost", [""]])
def test_names_are_a_list_of_names(home, names):
    for make in (certificates.server_certificate, certificates.signing_request):
        with pytest.raises(EvenhandError, match="give the host names"):
            make(home, names)


def test_only_the_authority_can_sign(tmp_path):
    with pytest.raises(EvenhandError, match="only the test authority's owner can sign"):
        certificates.server_certificate(tmp_path, ["localhost"])


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(EvenhandError, match=re.escape("pip install 'evenhand[flower]'")):
        certificates.make_authority(tmp_path)
