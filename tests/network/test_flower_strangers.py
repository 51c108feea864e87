"""Who may talk to the server, and what everybody else is told."""

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from stage import Network, free_port, until

from evenhand.errors import EvenhandError
from evenhand.network import certificates
from evenhand.network.carriers import flower


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = Network(tmp_path_factory.mktemp("strangers"), clients=1)
    try:
        network.start_server()
        network.ready()
        yield network
    finally:
        network.close()


SHIFTED = """
import datetime
import flwr.supernode.node_auth_http_interceptor as signing
now = signing.now
signing.now = lambda: now() - datetime.timedelta(seconds=400)
"""


def test_strangers_are_turned_away_and_told_why(network, tmp_path):
    """Three at once, since each waits for its second attempt: an unknown key, a false clock, a wrong host name."""
    key = network.key(7)
    network.key(0)
    (tmp_path / "sitecustomize.py").write_text(SHIFTED)
    unknown = network.start_client(7)
    shifted = network.start_client(0, environment={"PYTHONPATH": str(tmp_path)})
    network.key(8)
    misnamed = network.start_client(8, host="127.0.0.1")

    [event] = until(lambda: unknown.events("stranger"), 120, "the unknown key is told")
    assert certificates.fingerprint(key) in event["sentence"]
    assert "not registered" in event["sentence"]
    [event] = until(lambda: shifted.events("stranger"), 120, "the shifted clock is told")
    assert "clock" in event["sentence"]
    assert "not registered" not in event["sentence"]
    [event] = until(lambda: misnamed.events("absent"), 120, "the wrong name is told")
    assert "is valid for localhost, not for 127.0.0.1" in event["sentence"]

    assert network.order("connected") == []
    _, absent, seconds = network.ask({0: "a", 7: "b"})
    assert absent == {0: "it is not connected", 7: "none of its keys is registered"}
    assert seconds < 20
    strangers = network.server.events("stranger")
    assert certificates.fingerprint(key) in {event.get("key") for event in strangers}
    assert any("clock" in event["sentence"] for event in strangers)
    for party in (unknown, shifted, misnamed):
        assert not party.events("request")
        party.end()


def test_a_client_is_added_and_its_key_replaced_while_the_server_runs(network):
    key = network.key(5)
    party = network.start_client(5)
    assert network.order({"register": 5, "key": str(key)}) is None
    network.await_clients(5)
    assert network.ask({5: "hello"})[0] == {5: "5:hello"}

    other = certificates.node_key(network.folder / "new")
    assert network.order({"register": 5, "key": str(other)}) is None
    until(lambda: party.events("absent", "stranger"), 120, "the old key is turned away")
    assert 5 not in network.order("connected")
    home = network.folder / "client5"
    party.end()
    for file in ("node.key", "node.pub"):
        (network.folder / "new" / file).replace(home / file)
    party = network.start_client(5)
    network.await_clients(5)
    assert network.ask({5: "new"})[0] == {5: "5:new"}
    party.end()


def test_the_link_takes_orders_from_its_server_alone(network):
    """Anybody who can reach the port could otherwise register a node of their own, or stop the run."""
    trust = ssl.create_default_context(cafile=str(network.folder / "authority.crt"))
    for call in ("list-nodes", "register-node", "start-run", "stop-run", "unregister-node"):
        for token in (None, "Bearer guessed"):
            request = urllib.request.Request(
                f"https://localhost:{network.port}/v1/control/{call}",
                data=b"",
                headers={"content-type": "application/protobuf"}
                | ({"authorization": token} if token else {}),
            )
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, context=trust)
            assert error.value.code == 401
            error.value.close()
    secret = (network.folder / "flower" / "control.secret").read_text()
    request.headers["Authorization"] = f"Bearer {secret}"
    request.full_url = f"https://localhost:{network.port}/v1/control/list-nodes"
    with urllib.request.urlopen(request, context=trust) as answer:
        assert answer.status == 200


def test_a_port_in_use_is_told(network, tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "_LEAVING", 0.0)
    home = network.folder
    files = certificates.Certificates(home / "authority.crt", home / "server.crt", home / "server.key")
    with (
        pytest.raises(EvenhandError, match=f"Port {network.port} of 127.0.0.1 is in use"),
        flower.link(tmp_path, "127.0.0.1", network.port, files, {}, log=lambda *_: None),
    ):
        pass


def test_two_clients_cannot_share_a_key(network):
    sentence = network.order({"register": 9, "key": network.roster[0]})
    assert "Clients 0 and 9 have the same key" in sentence


def test_a_node_without_a_key_cannot_register_itself(network):
    """Flower lets any node in unless it is told otherwise."""
    command = [
        str(Path(sys.executable).with_name("flower-supernode")),
        "--superlink",
        f"localhost:{network.port}",
    ]
    command += ["--root-certificates", str(network.folder / "authority.crt"), "--isolation", "process"]
    node = subprocess.run(
        [*command, "--port", str(free_port())],
        env=os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(network.folder / "keyless")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert node.returncode != 0
    assert "SuperNode ID" not in node.stderr + node.stdout
    assert "must be registered" in node.stderr
