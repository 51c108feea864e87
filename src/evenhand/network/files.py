"""The folder of a federation: what ``evenhand deploy init`` writes, and what its server and its clients read.

::

    DIR/server.toml            what the server trains, and where it listens
    DIR/roster/K.pub           the public key of each client's node: who may come
    DIR/server/                the server's certificate, its keys and its state
    DIR/authority/             what signs certificates of the server and of clients; kept off both, once that is done
    DIR/clients/K/client.toml  what client K allows
    DIR/clients/K/             its keys, its certificate and its state: copied to the client's machine
    DIR/run/                   the results, a run folder

A file in TOML is written once, with comments for people, and only read afterwards.
"""

from __future__ import annotations

import json
import math
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenhand import records
from evenhand.errors import EvenhandError, perhaps
from evenhand.network import certificates
from evenhand.network.terms import MOST_CLASSES, MOST_EXAMPLES, Allowed
from evenhand.wire.identities import (
    Identity,
    certificate_of,
    identity_of,
    new_private_key,
    public_key_of,
)

__all__ = [
    "ClientFile",
    "ServerFile",
    "add_client",
    "client_folder",
    "client_identity",
    "make_federation",
    "read_client",
    "read_server",
    "roster",
    "rotate_client",
    "rotate_server",
    "secret_words",
]

SERVER, CLIENT, CLIENTS, ROSTER, AUTHORITY = "server.toml", "client.toml", "clients", "roster", "authority"
_SIGNER, _IDENTITY, _CERTIFICATE = "identities.key", "identity.key", "identity.certificate"
_METRICS = ("numbers", "histogram", "none")
_METHOD_NAMES = ("method", "options")
_SERVER_NAMES = {
    "": ("run", "method", "training", "network", "secrets"),
    "method": _METHOD_NAMES,
    "training": ("rounds", "cohort", "seed", "eval_every"),
    "network": ("names", "host", "port", "deadline", "min_answers", "most_examples", "most_classes"),
    "secrets": ("authority", "colluding", "test_keys"),
}
"""The names in each table of ``server.toml``; ``""`` for those above all tables."""
_CLIENT_NAMES = {
    "": ("run", "number", "server", "authority", "method", "allows", "data"),
    "method": _METHOD_NAMES,
    "allows": (
        *("metrics", "test_keys", "colluding", "cohort"),
        *("noise_multiplier", "epsilon", "clip", "most_examples"),
    ),
}
"""The names in each table of ``client.toml``; those of ``[data]`` are options of a loader."""


class ServerFile(NamedTuple):
    """What ``server.toml`` says.

    Attributes:
      run: the federation's name, which no other has.
      method: an expression, or ``package.module:factory``.
      options: of the model and of the local work, as ``evenhand run`` takes them.
      rounds: of training.
      cohort: clients drawn per round; 0: all.
      seed: of the initial model and the cohorts.
      eval_every: rounds between two evaluations.
      names: host names and addresses under which clients reach the server, the first one in their files.
      host: the address at which it listens.
      port: its port.
      deadline: seconds for each exchange.
      min_answers: clients of a cohort that must answer.
      colluding: clients that may collude with the server in secure sums.
      most_examples: of one client, to which all others pad theirs.
      test_keys: whether all keys come from the seed.
      authority: the public key, in hexadecimal, of what signs the identities of clients.
      most_classes: that a client may have, of labels or of tokens.
    """

    run: str
    method: str
    options: Mapping[str, Any]
    rounds: int
    cohort: int
    seed: int
    eval_every: int
    names: tuple[str, ...]
    host: str
    port: int
    deadline: float
    min_answers: int
    colluding: int
    test_keys: bool
    authority: str
    most_examples: int = MOST_EXAMPLES
    most_classes: int = MOST_CLASSES

    @property
    def text(self) -> str:
        """The method with its options, which server and clients compare."""
        return described(self.method, self.options)


class ClientFile(NamedTuple):
    """What ``client.toml`` says.

    Attributes:
      run: the federation's name.
      number: the client's.
      method: as in :class:`ServerFile`, like the options.
      options: likewise.
      server: host and port.
      authority: likewise.
      allowed: what the client does, and what may leave it.
      metrics: ``"numbers"``, ``"histogram"`` or ``"none"``.
      colluding: other clients that may collude with the server in secure sums.
      data: options of the loader.
    """

    run: str
    number: int
    method: str
    options: Mapping[str, Any]
    server: str
    authority: str
    allowed: Allowed
    metrics: str
    colluding: int
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The method with its options, which server and clients compare."""
        return described(self.method, self.options)


def described(method: str, options: Mapping[str, Any]) -> str:
    """A method and its options in one line."""
    words = ", ".join(f"{name}={options[name]}" for name in sorted(options))
    return f"{method} with {words}" if words else method


# --- writing ----------------------------------------------------------------------------------------------------------


def make_federation(
    folder: Path, server: ServerFile, clients: int, allows: Mapping[str, Any], test: bool
) -> Path:
    """Writes the folder of a new federation, and returns it.

    Args:
      folder: new or empty.
      server: what it trains; its name and its authority are made here.
      clients: how many there are.
      allows: the table ``[allows]`` of each client's file.
      test: whether an authority of the federation's own signs the server's certificate; else a signing request is
        written for another one.

    Raises:
      EvenhandError: the folder is not empty, or the package ``cryptography`` is missing.
    """
    if folder.exists() and any(folder.iterdir()):
        raise EvenhandError(f"{folder} is not empty: name a new folder for the federation.")
    signer = new_private_key()
    server = server._replace(run=secrets.token_hex(4), authority=public_key_of(signer).hex())
    (folder / AUTHORITY).mkdir(parents=True)
    _write_secret(folder / AUTHORITY / _SIGNER, signer.hex())
    names = list(server.names)
    if test:
        certificates.make_authority(folder / AUTHORITY)
        certificates.server_certificate(folder / "server", names, authority=folder / AUTHORITY)
    else:
        certificates.signing_request(folder / "server", names)
    if not server.test_keys:
        _write_secret(folder / "server" / "secret.key", secrets.token_hex(8))
    (folder / SERVER).write_text(_server_text(server), "utf-8")
    for _ in range(clients):
        add_client(folder, allows)
    return folder


def add_client(folder: Path, allows: Mapping[str, Any]) -> int:
    """Makes the folder and the keys of one more client, and returns its number; nothing of the others is touched.

    Raises:
      EvenhandError: there is no federation, or its authority's key is elsewhere.
    """
    server, number, signer = read_server(folder), len(roster(folder)), _signer(folder)
    place = client_folder(folder, number)
    public = certificates.node_key(place)
    for home in (folder / AUTHORITY, folder / "server"):  # the latter, once another authority has signed
        if (authority := certificates.authority_file(home)).is_file():
            certificates.authority_file(place).write_bytes(authority.read_bytes())
            break
    _identify(place, server.run, number, signer)
    (place / CLIENT).write_text(_client_text(server, number, allows), "utf-8")
    _enrol(folder, number, public)
    return number


def rotate_server(folder: Path, request: bool) -> Path:
    """Makes a new key of the server, with a certificate for the names in ``server.toml``.

    Args:
      folder: that of the federation.
      request: write a signing request instead, for an authority elsewhere.

    Returns:
      the certificate, which is in its place; or the request, in a folder of its own with the new key: the old pair
      serves until both of the new one are there.

    Raises:
      EvenhandError: there is no federation, or its authority's key is elsewhere.
    """
    names, place = list(read_server(folder).names), folder / "server"
    if request:
        return certificates.signing_request(place / "next", names)
    if not (folder / AUTHORITY / "authority.key").is_file():
        raise EvenhandError(
            f"{folder / AUTHORITY} has no authority.key: run this where the key is, or give --signing-request for the "
            "authority that signs this server's certificates."
        )
    return certificates.server_certificate(place, names, authority=folder / AUTHORITY).certificate


def rotate_client(folder: Path, number: int) -> list[Path]:
    """Makes new keys of a client: that of its node, and its identity in secure sums with the certificate.

    Returns:
      the files that its machine needs; the roster has the new public key in place of the old one.

    Raises:
      EvenhandError: there is no such client, or the authority's key is elsewhere.
    """
    server, signer = read_server(folder), _signer(folder)
    if number not in roster(folder):
        raise EvenhandError(
            f"{folder} has no client {number}: its clients are 0 to {len(roster(folder)) - 1}."
        )
    place = client_folder(folder, number)
    public = certificates.node_key(place, replace=True)
    _identify(place, server.run, number, signer)
    # Last: from now on a server that runs turns the old key away, and all of the new ones must be at hand.
    _enrol(folder, number, public)
    return [place / "node.key", public, place / _IDENTITY, place / _CERTIFICATE]


def _signer(folder: Path) -> Path:
    """The key that signs identities of clients.

    Raises:
      EvenhandError: it is elsewhere.
    """
    path = folder / AUTHORITY / _SIGNER
    if not path.is_file():
        raise EvenhandError(
            f"{path} is missing: clients can be certified only where the authority's key is kept."
        )
    return path


def _identify(place: Path, run: str, number: int, signer: Path) -> None:
    """Writes a new identity of a client into its folder."""
    private = new_private_key()
    certificate = certificate_of(
        bytes.fromhex(signer.read_text("utf-8")), run, number, public_key_of(private)
    )
    _write_secret(place / _IDENTITY, private.hex())
    (place / _CERTIFICATE).write_text(certificate.hex(), "utf-8")


def _enrol(folder: Path, number: int, public: Path) -> None:
    """Puts a client's public key into the roster in one step, since a server that runs may be reading it."""
    (folder / ROSTER).mkdir(exist_ok=True)
    records.write_text(folder / ROSTER / f"{number}.pub", public.read_text("utf-8"))


def _write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, "utf-8")


def _server_text(server: ServerFile) -> str:
    return f"""\
# What the server of this federation trains, and where it listens: `evenhand deploy server` reads it.
run = {_toml(server.run)}

[method]  # the same as in each client's file
method = {_toml(server.method)}
{_table("method.options", server.options)}
[training]
rounds = {server.rounds}
cohort = {server.cohort}  # clients drawn in each round; 0: all
seed = {server.seed}
eval_every = {server.eval_every}

[network]
names = {_toml(list(server.names))}  # under which clients reach the server; its certificate names them
host = {_toml(server.host)}  # where it listens
port = {server.port}
deadline = {_toml(server.deadline)}  # seconds for each exchange
min_answers = {server.min_answers}  # with fewer answers of a cohort, the exchange is repeated
most_examples = {server.most_examples}  # of one client: all others pad theirs to as many
most_classes = {server.most_classes}  # of labels, or of tokens: the model has weights for each

[secrets]
authority = {_toml(server.authority)}  # signs the identities of clients
colluding = {server.colluding}  # clients that may collude with the server in secure sums
test_keys = {_toml(server.test_keys)}  # true: all keys come from the seed, as in a simulation; for tests only
"""


def _client_text(server: ServerFile, number: int, allows: Mapping[str, Any]) -> str:
    metrics = allows.get("metrics", "histogram")
    limits = {
        "cohort": 1,
        "most_examples": server.most_examples,
        **{name: value for name, value in allows.items() if name != "metrics"},
    }
    data = {"test_fraction": 0.2}
    return f"""\
# What client {number} does in this federation: `evenhand deploy client` reads it, and no message overrides it.
run = {_toml(server.run)}
number = {number}
server = {_toml(f"{server.names[0]}:{server.port}")}
authority = {_toml(server.authority)}

[method]  # the same as in the server's file
method = {_toml(server.method)}
{_table("method.options", server.options)}
[allows]
metrics = {_toml(metrics)}  # numbers: its losses and metrics may leave it; histogram: only in a secure sum; none
test_keys = {_toml(server.test_keys)}  # true: the server may know all keys, those of noise included
colluding = {server.colluding}  # other clients that may collude with the server in secure sums
{_lines(limits)}# noise_multiplier = 1.0 asks for at least so much noise in each release, over its sensitivity
# epsilon = 8.0 and clip = 1.0 ask for at most so much; epsilon is against the server if clients add the noise

[data]  # options of the loader, as `evenhand run` has them
{_lines(data)}"""


def _table(name: str, values: Mapping[str, Any]) -> str:
    return f"[{name}]\n{_lines(values)}"


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items() if value is not None)


def _toml(value: Any) -> str:
    """A value of TOML: for texts, numbers, booleans and lists, JSON is that."""
    return json.dumps(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_server(folder: Path) -> ServerFile:
    """What ``server.toml`` says.

    Raises:
      EvenhandError: it is missing or not as it should be.
    """
    path = folder / SERVER
    tables = _read(path, "evenhand deploy init", _SERVER_NAMES)
    try:
        method, training = tables["method"], tables["training"]
        network, keys = tables["network"], tables["secrets"]
        return ServerFile(
            run=str(tables["run"]),
            method=str(method["method"]),
            options=dict(method.get("options", {})),
            rounds=_whole(training["rounds"]),
            cohort=_whole(training["cohort"]),
            seed=_whole(training["seed"]),
            eval_every=max(1, _whole(training["eval_every"])),
            names=tuple(map(str, network["names"])),
            host=str(network["host"]),
            port=_whole(network["port"]),
            deadline=_seconds(network["deadline"]),
            min_answers=_whole(network["min_answers"], 1),
            most_examples=_whole(network.get("most_examples", MOST_EXAMPLES)),
            most_classes=_whole(network.get("most_classes", MOST_CLASSES)),
            colluding=_whole(keys["colluding"]),
            test_keys=keys["test_keys"] is True,
            authority=str(keys["authority"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(path, error) from None


def read_client(folder: Path) -> ClientFile:
    """What ``client.toml`` says.

    Raises:
      EvenhandError: it is missing or not as it should be.
    """
    path = folder / CLIENT
    tables = _read(path, "evenhand deploy add-client", _CLIENT_NAMES)
    try:
        allows, method = dict(tables["allows"]), tables["method"]
        metrics = allows.get("metrics", "none")
        if metrics not in _METRICS:
            raise ValueError(f"metrics = {metrics!r}; give one of {', '.join(_METRICS)}")
        allowed = Allowed(
            cohort=_whole(allows.get("cohort", 1)),
            noise_multiplier=_limit(allows, "noise_multiplier", 0.0),
            epsilon=_limit(allows, "epsilon", math.inf),
            clip=_limit(allows, "clip", math.inf),
            most_examples=_whole(allows.get("most_examples", MOST_EXAMPLES)),
            metrics=metrics == "numbers",
            histogram=metrics == "histogram",
            test_keys=allows.get("test_keys", False) is True,
        )
        return ClientFile(
            run=str(tables["run"]),
            number=_whole(tables["number"]),
            method=str(method["method"]),
            options=dict(method.get("options", {})),
            server=str(tables["server"]),
            authority=str(tables["authority"]),
            allowed=allowed,
            metrics=metrics,
            colluding=_whole(allows.get("colluding", 0)),
            data=dict(tables.get("data", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(path, error) from None


def _read(path: Path, command: str, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The tables of a file, with no other ``names`` in them: a limit that is misspelt would limit nothing."""
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `{command}` wrote.")
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvenhandError(f"{path} is not TOML ({error}): correct that line.") from None
    for table, choices in names.items():
        entries = tables if table == "" else tables.get(table)
        for name in entries if isinstance(entries, dict) else ():
            if name not in choices:
                place = f"[{table}] {name}" if table else name
                raise EvenhandError(
                    f"{path}: {place} is unknown{perhaps(name, choices)}: correct it; there are {', '.join(choices)}."
                )
    return tables


def _foreign(path: Path, error: Exception) -> EvenhandError:
    fault = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return EvenhandError(f"{path} is not as `evenhand deploy` writes it ({fault}): correct it.")


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return value


def _limit(allows: Mapping[str, Any], name: str, default: float) -> float:
    """A limit of ``[allows]``; NaN would limit nothing."""
    value = allows.get(name, default)
    if not float(value) >= 0:
        raise ValueError(f"{name} = {value!r} is not a number of at least 0")
    return float(value)


def _seconds(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"deadline = {value!r} is not a number of seconds above 0")
    return float(value)


def client_folder(folder: Path, number: int) -> Path:
    """Where client ``number`` of a federation is made."""
    return folder / CLIENTS / str(number)


def roster(folder: Path) -> dict[int, Path]:
    """The public key of each client's node, by the client's number."""
    place = folder / ROSTER
    keys = {path.stem: path for path in place.glob("*.pub")} if place.is_dir() else {}
    return {number: keys[str(number)] for number in range(len(keys)) if str(number) in keys}


def client_identity(folder: Path, file: ClientFile) -> Identity:
    """What a client signs its offers in secure sums with.

    Raises:
      EvenhandError: a file is missing, or the certificate is not this client's.
    """
    try:
        private, certificate = (
            bytes.fromhex((folder / name).read_text("utf-8")) for name in (_IDENTITY, _CERTIFICATE)
        )
        authority = bytes.fromhex(file.authority)
    except (OSError, ValueError) as error:
        raise EvenhandError(
            f"{folder} has no identity to sign with ({error}): copy the whole folder that `evenhand deploy` made."
        ) from None
    return identity_of(file.run, file.number, private, certificate, authority)


def secret_words(folder: Path) -> Sequence[int]:
    """The words of the server's secret root, which only it knows.

    Raises:
      EvenhandError: the file is missing.
    """
    path = folder / "server" / "secret.key"
    try:
        text = path.read_text("utf-8")
        return int(text[:8], 16), int(text[8:16], 16)
    except (OSError, ValueError) as error:
        raise EvenhandError(f"{path} cannot be read ({error}): restore it from a backup.") from None
