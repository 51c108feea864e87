"""A network of Flower: one SuperLink at the server, a SuperNode beside each client, TLS, and keys for both sides.

:func:`link` runs the server's side and yields a :class:`FlowerCarrier`; :func:`serve` runs a client's.  Messages are
answered in the resident process that called :func:`serve`: Flower's own way, a new process for every message and node,
costs seconds of processor time each.  Code that a server ships is never run: a node hands bytes to its own handler.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from evenhand.errors import EvenhandError
from evenhand.network.carriers import Answers, Log
from evenhand.network.carriers._flwr import (
    HEARTBEAT,
    LINK_NODE,
    Headers,
    content_of,
    empty_app,
    flower_parts,
    pull,
    push,
    record,
    run_superlink,
)
from evenhand.network.carriers._node import serve
from evenhand.network.carriers._processes import Child, ending_on_terminate, own_number, secret_file, waits
from evenhand.network.certificates import Certificates, fingerprint, public_pem

__all__ = ["FlowerCarrier", "link", "serve"]

_T = TypeVar("_T")
_REMINDER = 600.0  # seconds
_LEAVING = 15.0  # seconds that a SuperLink may take to end after its server


@contextmanager
def link(
    folder: Path,
    host: str,
    port: int,
    certificates: Certificates,
    roster: Mapping[int, Path],
    *,
    log: Log,
    largest: int = 2**30,
) -> Generator[FlowerCarrier]:
    """Runs a SuperLink for the clients of a roster, and yields the carrier that talks to them.

    The SuperLink is started again if it ends, and after the end of this process a new one on the same folder takes its
    place.  It keeps nothing on disk: the roster says who may come, and the nodes come back by themselves.

    Args:
      folder: where Flower's log and files are kept.
      host: the address that it listens at, such as ``0.0.0.0`` for all of this machine.
      port: its port.
      certificates: the server's.
      roster: from a client's number to the file of its public key.
      log: is told of clients that answer too late, of strangers, and of a SuperLink that ended.
      largest: bytes of an answer; a larger one counts as none.

    Raises:
      EvenhandError: ``flwr`` is missing or of another version, a key is not one, or the port is in use.
    """
    flower_parts()
    folder.mkdir(parents=True, exist_ok=True)
    with ending_on_terminate():
        carrier = FlowerCarrier(folder, host, port, certificates, log, largest)
        try:
            carrier.open(roster)
            yield carrier
        finally:
            carrier.close()


class _Session(NamedTuple):
    """A run of Flower's that this process acts in."""

    run: int
    client: Any


_REASONS = {
    "offline": "it is not connected",
    "silent": "no answer within {seconds:.0f} seconds",
    "lost": "its connection was lost",
    "failed": "its process failed ({reason})",
    "link": "the SuperLink did not answer",
    "new link": "the SuperLink was started again",
    "unreadable": "its answer could not be read ({reason})",
    "unregistered": "none of its keys is registered",
}


class FlowerCarrier:
    """The server's way to its clients over a SuperLink; a :class:`evenhand.network.carriers.Carrier`."""

    def __init__(
        self, folder: Path, host: str, port: int, certificates: Certificates, log: Log, largest: int
    ) -> None:
        self._folder, self._host, self._port = folder, host, port
        self._certificates, self._log, self._largest = certificates, log, largest
        self._keys: dict[int, bytes] = {}
        self._nodes: dict[int, int] = {}
        self._session: _Session | None = None
        self._sender, self._strangers = "", dict[str, float]()
        self._registering = threading.Lock()
        self._lock, self._wake, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[Any] = []
        self._child: Child | None = None

    # -- the SuperLink

    def open(self, roster: Mapping[int, Path]) -> None:
        """Starts the SuperLink, and registers the clients' keys."""
        self._token = secret_file(self._folder / "control.secret")
        self._secret = secret_file(self._folder / "executor.secret")
        self._control = self._connect(
            flower_parts().ControlClient, {"authorization": f"Bearer {self._token}"}
        )
        self._start_alone()
        for number, path in roster.items():
            self.register(number, path)
        for body in (self._supervise, self._beat):
            thread = threading.Thread(target=body, name="evenhand link", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Ends the SuperLink."""
        self._closed.set()
        self._wake.set()
        if self._child is not None:
            self._child.stop()
        for thread in self._threads:
            thread.join(5)
        for client in self._clients:
            client.close()

    def process(self) -> int:
        """The number of the SuperLink's process."""
        assert self._child is not None
        return self._child.pid

    def _start_alone(self) -> None:
        """Starts the SuperLink, if need be when that of an earlier server, which was killed, has left the port."""
        until = time.monotonic() + _LEAVING
        while True:
            self._child = self._start()
            try:
                return self._await_start(60)
            except EvenhandError:
                if "address already in use" not in self._child.output() or time.monotonic() > until:
                    raise
            time.sleep(1)

    def _start(self) -> Child:
        files, folder = self._certificates, self._folder
        arguments = ["--host", self._host, "--port", str(self._port)]
        arguments += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
        arguments += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth"]
        arguments += ["--database", ":flwr-in-memory:", "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(folder / "executor.secret")]
        arguments += ["--disable-runtime-dependency-installation"]
        return Child(
            run_superlink,
            [own_number(), str(folder / "control.secret")],
            arguments,
            home=folder,
            name="superlink",
            listen=self._hear,
        )

    def _connect(self, kind: Any, headers: dict[str, str], *more: Any) -> Any:
        """One of Flower's clients of our own SuperLink, which must have exactly our certificate, for whatever name."""
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname = False
        trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        trust.load_verify_locations(cafile=str(self._certificates.certificate))
        local = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
        host = local.get(self._host, f"[{self._host}]" if ":" in self._host else self._host)
        client = kind(
            f"https://{host}:{self._port}", interceptors=[Headers(headers), *more], verify=trust, timeout=15.0
        )
        self._clients.append(client)
        return client

    def _await_start(self, seconds: float) -> None:
        """Returns when the SuperLink answers.

        Raises:
          EvenhandError: it ended, or does not answer.
        """
        flower, until = flower_parts(), time.monotonic() + seconds
        while not self._closed.is_set():
            child = self._child
            assert child is not None
            if child.code() is not None:
                output = child.output()
                if "address already in use" in output:
                    raise EvenhandError(
                        f"Port {self._port} of {self._host} is in use: stop the program that uses it, such as another "
                        "server of this federation."
                    )
                last = next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
                raise EvenhandError(
                    f"Flower's SuperLink ended ({last:.300}): for details see {self._folder / 'superlink.log'}."
                )
            with suppress(flower.HTTPError):
                self._nodes_now()
                return
            if time.monotonic() > until:
                raise EvenhandError(
                    f"Flower's SuperLink does not answer at port {self._port} after {seconds:.0f} seconds: "
                    f"see {self._folder / 'superlink.log'}."
                )
            time.sleep(0.1)

    def _supervise(self) -> None:
        """Starts the SuperLink again when it ends."""
        pauses = waits(30)
        while not self._closed.wait(0.2):
            assert self._child is not None
            if self._child.code() is None:
                continue
            self._log("absent", "Flower's SuperLink ended: restarting it.", {"code": self._child.code()})
            while not self._closed.is_set():
                self._child = self._start()
                try:
                    self._await_start(60)
                    self._session = None
                    self._present()
                except (EvenhandError, flower_parts().HTTPError) as error:
                    self._child.stop()
                    self._log("absent", str(error), {})
                    self._closed.wait(next(pauses))
                    continue
                self._log("resumed", "Flower's SuperLink is running again.", {})
                pauses = waits(30)
                break

    def _beat(self) -> None:
        """Tells the SuperLink that this process is there; a run that it gave up is begun anew at the next request."""
        flower = flower_parts()
        while not self._closed.wait(HEARTBEAT):
            session = self._session
            if session is None:
                continue
            try:
                if session.client.SendTaskHeartbeat(flower.runtime.SendTaskHeartbeatRequest()).success:
                    continue
                self._session = None
            except flower.HTTPStatusError as error:
                if error.response.status_code in (401, 403):
                    self._session = None
            except flower.HTTPError:
                continue

    def _hear(self, line: str) -> None:
        """What the SuperLink's log says: that an answer came, came too late, or that a stranger was turned away."""
        if "[Fleet.PushMessages]" in line:
            self._sender = line.rpartition("=")[2].strip()
            self._wake.set()
        elif "does not exist or has expired" in line or "Message TTL has expired" in line:
            number = next((number for number, node in self._nodes.items() if str(node) == self._sender), None)
            if number is not None:
                self._log(
                    "late", f"Client {number} answered too late: its answer was dropped.", {"client": number}
                )
        elif "No SuperNode found with the given public key" in line:
            key = _key_in(line)
            self._turned_away(key, f"A node whose key {key} is not registered was turned away.", {"key": key})
        elif "/v1/fleet/activate-node" in line and " 401" in line:
            place = line.split(" - ")[0].split()[-1].rpartition(":")[0]
            self._turned_away(
                place,
                f"A node at {place} was turned away: its signature is wrong, or that machine's clock differs from this "
                "one's by more than 300 seconds.",
                {"address": place},
            )

    def _turned_away(self, name: str, sentence: str, fields: dict[str, object]) -> None:
        """Logs a stranger, who may try every few seconds, once in ten minutes."""
        now = time.monotonic()
        if now > self._strangers.get(name, -_REMINDER) + _REMINDER:
            if len(self._strangers) > 1000:
                self._strangers.clear()
            self._strangers[name] = now
            self._log("stranger", sentence, fields)

    # -- the clients

    def register(self, number: int, key: Path) -> None:
        """Lets in the client of this number by this public key, in place of an older one of the same number.

        Raises:
          EvenhandError: the file holds no key, or another client has the same one.
        """
        flower, pem = flower_parts(), public_pem(key)
        twin = next((other for other in self._keys if self._keys[other] == pem and other != number), None)
        if twin is not None:
            raise EvenhandError(
                f"Clients {twin} and {number} have the same key ({key}): make a new key for each."
            )
        before = self._keys.get(number)
        self._keys[number] = pem
        # Where the SuperLink is being started again, this is done when it is there.
        with suppress(flower.HTTPError):
            nodes = self._present()
            if before in nodes and before != pem:
                self._control.UnregisterNode(flower.control.UnregisterNodeRequest(node_id=nodes[before][0]))

    def _present(self) -> dict[bytes, tuple[int, bool]]:
        """By public key: the number of the node, and whether it is there.

        Keys of the roster that are missing are added: a new SuperLink knows none.
        """
        flower = flower_parts()
        with self._registering:
            nodes = self._nodes_now()
            for pem in [pem for pem in self._keys.values() if pem not in nodes]:
                answer = self._control.RegisterNode(flower.control.RegisterNodeRequest(public_key=pem))
                nodes[pem] = answer.node_id, False
            self._nodes = {number: nodes[pem][0] for number, pem in self._keys.items()}
        return nodes

    def _nodes_now(self) -> dict[bytes, tuple[int, bool]]:
        """The nodes that the SuperLink knows."""
        now = time.time()
        answer = self._control.ListNodes(flower_parts().control.ListNodesRequest())
        return {
            node.public_key: (node.node_id, node.status == "online" and node.online_until > now)
            for node in answer.nodes_info
            if node.status != "unregistered"
        }

    def connected(self) -> frozenset[int]:
        """The clients that are there now; one that lost its power may be counted for half a minute."""
        try:
            nodes = self._present()
        except flower_parts().HTTPError:
            return frozenset()
        return frozenset(number for number, pem in self._keys.items() if nodes.get(pem, (0, False))[1])

    # -- exchanges

    def ask(self, asks: Mapping[int, bytes], deadline: float) -> Answers:
        """Sends to each client its bytes, and waits for the answers, for at most ``deadline`` seconds.

        A client that is not connected is absent at once.
        """
        with self._lock:
            until = time.monotonic() + deadline
            return Answers(*self._exchange(asks, deadline, until))

    def _exchange(
        self, asks: Mapping[int, bytes], deadline: float, until: float
    ) -> tuple[dict[int, bytes], dict[int, str]]:
        flower = flower_parts()
        absent = {number: _REASONS["unregistered"] for number in asks if number not in self._keys}
        try:
            nodes = _patiently(self._present, until)
            online = {number for number in asks if nodes.get(self._keys.get(number, b""), (0, False))[1]}
            absent = {number: _REASONS["offline"] for number in asks if number not in online} | absent
            if not online:
                return {}, absent
            session, posted = _patiently(
                lambda: self._post({number: asks[number] for number in asks if number in online}, until),
                until,
            )
        except flower.HTTPError:
            return {}, {number: absent.get(number, _REASONS["link"]) for number in asks}
        answers, others = self._gather(session, posted, deadline, until)
        absent |= others
        return answers, absent | {
            number: _REASONS["silent"].format(seconds=deadline)
            for number in asks
            if number not in answers and number not in absent
        }

    def _session_now(self) -> _Session:
        """The run that this process acts in: a new one, where there is none or the SuperLink gave it up."""
        flower = flower_parts()
        if self._session is not None:
            return self._session
        fab = flower.fab.Fab(content=empty_app())
        run = self._control.StartRun(flower.control.StartRunRequest(fab=fab)).run_id
        auth = flower.ExecutorAuth(
            master_secret=self._secret.encode(), protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        headers: dict[str, str] = {}
        client = self._connect(flower.RuntimeClient, headers, auth)
        while True:
            task = client.AcquireTask(
                flower.runtime.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
            )
            if not task.token:
                raise flower.HTTPError("the run of this server was not found")
            headers["flwr-task-token"] = task.token
            if task.task.run_id == run:
                break
            # Left by an earlier process of ours that was killed between two steps.
            client.PushTaskOutput(flower.runtime.PushTaskOutputRequest(sub_status="failed"))
        client.PullTaskInput(flower.runtime.PullTaskInputRequest())
        self._session = _Session(run, client)
        return self._session

    def _post(self, asks: Mapping[int, bytes], until: float) -> tuple[_Session, dict[str, int]]:
        """Sends the messages; by the name of each, the number of the client that it goes to."""
        flower, session = flower_parts(), self._session_now()
        records: dict[int, Any] = {id(content): record(content) for content in asks.values()}
        messages = [
            flower.make_message(
                metadata=flower.Metadata(
                    run_id=session.run,
                    message_id="",
                    src_node_id=LINK_NODE,
                    dst_node_id=self._nodes[number],
                    reply_to_message_id="",
                    group_id="",
                    created_at=time.time(),
                    ttl=max(until - time.monotonic(), 0.1),
                    message_type="query",
                ),
                content=records[id(content)],
            )
            for number, content in asks.items()
        ]
        try:
            names = push(session.client, messages, LINK_NODE, session.run)
        except flower.HTTPStatusError:
            self._session = None  # given up by the SuperLink: the next attempt begins a new run
            raise
        return session, {name: number for name, number in zip(names, asks, strict=True) if name}

    def _gather(
        self, session: _Session, posted: Mapping[str, int], deadline: float, until: float
    ) -> tuple[dict[int, bytes], dict[int, str]]:
        """The answers to the messages that were sent, as they come; each is fetched in a thread of its own."""
        flower, pending = flower_parts(), dict(posted)
        absent: dict[int, str] = {}
        fetched: dict[int, Future[bytes]] = {}
        pool = ThreadPoolExecutor(8, "evenhand answer")
        while pending and (left := until - time.monotonic()) > 0 and not self._closed.is_set():
            self._wake.clear()
            try:
                arrived = session.client.PullMessages(
                    flower.runtime.PullAppMessagesRequest(message_ids=list(pending))
                )
            except flower.HTTPStatusError:  # another SuperLink, which knows nothing of this run
                self._session = None
                absent |= dict.fromkeys(pending.values(), _REASONS["new link"])
                break
            except flower.HTTPError:
                self._wake.wait(min(0.5, left))
                continue
            for header, tree in zip(arrived.messages_list, arrived.message_object_trees, strict=True):
                number = pending.pop(header.metadata.reply_to_message_id, None)
                if number is None:
                    continue
                if header.HasField("error"):
                    absent[number] = _reason(header.error.code, header.error.reason)
                else:
                    fetched[number] = pool.submit(self._fetch, session, tree, number, until)
            if pending:
                self._wake.wait(min(1.0, left))
        wait(fetched.values(), max(0.0, until - time.monotonic()))
        pool.shutdown(wait=False, cancel_futures=True)
        answers: dict[int, bytes] = {}
        for number, future in fetched.items():
            if not future.done() or future.cancelled():
                absent[number] = _REASONS["silent"].format(seconds=deadline)
            elif (error := future.exception()) is not None:
                absent[number] = _REASONS["unreadable"].format(
                    reason=str(error)[:200] or type(error).__name__
                )
            else:
                answers[number] = future.result()
        self._forget(session, [name for name, number in posted.items() if number not in answers])
        return answers, absent

    def _forget(self, session: _Session, names: list[str]) -> None:
        """Has the SuperLink drop messages that were not answered, which it would keep with all their bytes."""
        flower = flower_parts()
        node = flower.node.Node(node_id=LINK_NODE)
        with suppress(flower.HTTPError):
            if names and self._session is session:
                late = session.client.PullMessages(flower.runtime.PullAppMessagesRequest(message_ids=names))
                for name in [*names, *(tree.object_id for tree in late.message_object_trees)]:
                    session.client.ConfirmMessageReceived(
                        flower.messages.ConfirmMessageReceivedRequest(
                            node=node, run_id=session.run, message_object_id=name
                        )
                    )

    def _fetch(self, session: _Session, tree: Any, number: int, until: float) -> bytes:
        """One answer's bytes, if the answer is from the client that was asked."""
        seconds = until - time.monotonic()
        message = pull(session.client, tree, LINK_NODE, session.run, seconds=seconds, most=self._largest)
        if message.metadata.src_node_id != self._nodes[number]:
            raise ValueError("it came from another node")
        return content_of(message)


def _patiently(call: Callable[[], _T], until: float) -> _T:
    """What a call of the SuperLink returns, tried again until then while the SuperLink cannot be reached."""
    flower = flower_parts()
    while True:
        try:
            return call()
        except flower.HTTPError:
            if time.monotonic() > until - 0.3:
                raise
            time.sleep(0.3)


def _reason(code: int, text: str) -> str:
    """Why there is no answer, from the error that Flower sends in its place."""
    match code:
        case 2:  # CLIENT_APP_RAISED_EXCEPTION, which is ours
            return _REASONS["failed"].format(reason=text[:80])
        case 5:  # NODE_UNAVAILABLE
            return _REASONS["lost"]
        case 8:  # CLIENT_APP_CRASHED
            return _REASONS["failed"].format(reason="it ended")
        case _:
            return f"Flower reports error {code} ({text[:200]})"


def _key_in(line: str) -> str:
    """The fingerprint of the public key that a line of the SuperLink's log quotes."""
    start, end = line.find("-----BEGIN"), line.find("-----END PUBLIC KEY-----")
    try:
        pem = line[start:end].replace("\\n", "\n") + "-----END PUBLIC KEY-----\n"
        return fingerprint(pem.encode())
    except ValueError:
        return "(unreadable)"
