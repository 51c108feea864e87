"""A client's side of a network of Flower: a SuperNode beside this process, which answers its messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenhand.network.carriers import Log
from evenhand.network.carriers._flwr import (
    Headers,
    beating,
    content_of,
    flower_parts,
    pull,
    push,
    record,
    run_supernode,
)
from evenhand.network.carriers._processes import (
    Child,
    ending_on_terminate,
    free_port,
    obstacle,
    own_number,
    secret_file,
    waits,
)
from evenhand.network.certificates import fingerprint

_PATIENCE = 2.0
"""Seconds after which a SuperNode without a connection is started anew."""


def serve(
    handler: Callable[[bytes], bytes],
    *,
    address: str,
    authority: Path,
    key: Path,
    folder: Path,
    log: Log,
    poll: float = 1.0,
    stop: threading.Event | None = None,
) -> None:
    """Answers the server's messages with ``handler``, one at a time, in this thread, until it is stopped.

    A SuperNode runs beside this process.  If it ends, or the server cannot be reached, both are tried again for ever.

    Args:
      handler: from a request's bytes to its answer's.  If it raises an error, the server gets the error's type only.
      address: the server's host and port.
      authority: the certificate of the authority that signed the server's.
      key: the client's private key, as :func:`evenhand.network.certificates.node_key` makes it.
      folder: where the SuperNode's log and files go.
      log: is told when the server cannot be reached and can be again, of a key that is not registered, and of answers
        that came too late.
      poll: seconds between two questions whether there is a message; Flower's own pause is 3.
      stop: ends it, within a second, when it is set; so do SIGTERM and Ctrl-C.

    Raises:
      EvenhandError: ``flwr`` is missing or of another version, or a file or the address is not one.
    """
    flower_parts()
    folder.mkdir(parents=True, exist_ok=True)
    stop = stop or threading.Event()
    complaint, pauses, strangers = "", waits(30), 0
    with ending_on_terminate():
        while not stop.is_set():
            event, problem = "absent", obstacle(address, authority)
            if problem is None:
                try:
                    node = _Node(address, authority, key, folder, poll)
                except OSError as error:
                    event, problem = (
                        "disk",
                        f"{folder} cannot be written ({error.strerror}): free some space.",
                    )
                else:
                    try:
                        node.answer_all(handler, log, stop, recovered=bool(complaint))
                    finally:
                        node.end()
                    event, problem = node.farewell()
                    if node.connected.is_set():
                        complaint, pauses = "", waits(30)
                # A server that has just started may not have registered its clients yet.
                strangers = strangers + 1 if event == "stranger" else 0
            if problem != complaint and strangers != 1 and not stop.is_set():
                log(event, problem, {"server": address})
                complaint = problem
            stop.wait(next(pauses))


class _Node:
    """A SuperNode of ours, and the executor of its tasks in this process."""

    def __init__(self, address: str, authority: Path, key: Path, folder: Path, poll: float) -> None:
        flower, port, secret = flower_parts(), free_port(), folder / "executor.secret"
        self._address, self._public = address, fingerprint(key.with_suffix(".pub"))
        self._marker = folder / "accepted.key"
        self.connected, self._wake, self._trouble = threading.Event(), threading.Event(), 0.0
        arguments = ["--superlink", address, "--root-certificates", str(authority)]
        arguments += ["--auth-supernode-private-key", str(key), "--isolation", "process"]
        arguments += ["--host", "127.0.0.1", "--port", str(port), "--superexec-auth-secret-file", str(secret)]
        password = secret_file(secret).encode()
        self._child = Child(
            run_supernode,
            [own_number(), str(poll)],
            arguments,
            home=folder,
            name="supernode",
            listen=self._hear,
        )
        self._token = Headers({})
        auth = flower.ExecutorAuth(
            master_secret=password, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._client = flower.RuntimeClient.from_server_address(
            f"127.0.0.1:{port}", True, None, [self._token, auth]
        )

    def _hear(self, line: str) -> None:
        """Its log says at once what asking would only show after a while; not to hear it costs time alone."""
        if "SuperNode ID:" in line:
            with suppress(OSError):
                self._marker.write_text(self._public, "utf-8")
            self.connected.set()
            self._wake.set()
        elif "Received successfully" in line:
            self._wake.set()
        elif "Connection attempt failed" in line:
            self._trouble = self._trouble or time.monotonic()
        elif "Connection successful" in line:
            self._trouble = 0.0

    def answer_all(
        self, handler: Callable[[bytes], bytes], log: Log, stop: threading.Event, *, recovered: bool
    ) -> None:
        """Answers what the SuperNode receives, until it ends or ``stop`` is set."""
        flower, greeted, idle = flower_parts(), not recovered, time.monotonic()
        while self._child.code() is None and not stop.is_set():
            self._wake.wait(1.0)
            asked = self._wake.is_set() or time.monotonic() > idle + 5
            self._wake.clear()
            if self._trouble and time.monotonic() > self._trouble + _PATIENCE:
                return  # it would try again less and less often, and may be unknown to the server by now
            if not self.connected.is_set() or not asked:
                continue
            idle = time.monotonic()
            if not greeted:
                log(
                    "resumed",
                    f"The server at {self._address} can be reached again.",
                    {"server": self._address},
                )
                greeted = True
            try:
                self._answer(handler, log)
            except (flower.HTTPError, flower.Unavailable):
                continue  # it is ending, or was too busy: the loop sees which

    def _answer(self, handler: Callable[[bytes], bytes], log: Log) -> None:
        """Answers one message, if there is one."""
        flower = flower_parts()
        task = self._client.AcquireTask(
            flower.runtime.AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
        )
        if not task.token:
            return
        self._token.headers["flwr-task-token"] = task.token
        with beating(self._client):
            given = self._client.PullTaskInput(flower.runtime.PullTaskInputRequest())
            node, run = given.context.node_id, given.context.run_id
            pulled = self._client.PullMessages(flower.runtime.PullAppMessagesRequest())
            if not pulled.message_object_trees:
                return
            start = time.monotonic()
            message = pull(self._client, pulled.message_object_trees[0], node, run, seconds=60, most=2**40)
            metadata = message.metadata
            reply = self._reply(handler, message, log)
            seconds = time.monotonic() - start
            if seconds > metadata.ttl:
                reply = flower.Error(2, "too late")  # nobody waits for it: it is not worth sending
                sentence = (
                    f"The answer took {seconds:.0f} seconds, but the server waited only {metadata.ttl:.0f}."
                )
                log("late", sentence, {"seconds": round(seconds, 1)})
            push(self._client, [_reply_message(metadata, reply)], node, run)
            self._client.PushTaskOutput(flower.runtime.PushTaskOutputRequest(sub_status="completed"))

    def _reply(self, handler: Callable[[bytes], bytes], message: Any, log: Log) -> Any:
        """The handler's answer, or an error that says no more than its type: its text may hold the client's data."""
        flower = flower_parts()
        try:
            return record(handler(content_of(message)))
        except Exception as error:
            kind = type(error).__name__
            log("refused", f"This client could not answer a request ({kind}: {error}).", {"error": kind})
            return flower.Error(2, kind)

    def end(self) -> None:
        """Ends the SuperNode, which signs off."""
        self._child.stop()
        self._client.close()

    def farewell(self) -> tuple[str, str]:
        """Why it ended, as an event and a sentence."""
        output, address = self._child.output(), self._address
        was_here = self._marker.exists() and self._marker.read_text("utf-8") == self._public
        if self.connected.is_set():
            return "absent", f"The connection to the server at {address} was lost: trying again."
        if (
            "terminated gracefully" in output
        ):  # of itself, before it was connected: as Flower does at status 401
            return (
                "stranger",
                f"The server at {address} does not accept this client's signature: synchronise the clocks of this "
                f"machine and the server with a time server, and compare the key {self._public} with the roster of the "
                "server.",
            )
        if "[code: 2004]" in output and not was_here:
            return (
                "stranger",
                f"The key of this client, {self._public}, is not registered with the server at {address}: send "
                "node.pub to the server's operator, who registers it with evenhand deploy add-client.",
            )
        if "[code: 2004]" in output:
            return (
                "absent",
                f"The server at {address} still counts this client as connected from before, or its key "
                f"{self._public} is no longer registered: trying again, which succeeds within two minutes if it is.",
            )
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith("INFO")]
        last = lines[-1] if lines else "no output"
        return (
            "absent",
            f"Flower's SuperNode ended ({last:.200}): trying again; for details see supernode.log.",
        )


def _reply_message(metadata: Any, reply: Any) -> Any:
    """A reply whose times are those of the request: the server's clock alone says whether it is late."""
    flower = flower_parts()
    error = isinstance(reply, flower.Error)
    return flower.make_message(
        metadata=flower.Metadata(
            run_id=metadata.run_id,
            message_id="",
            src_node_id=metadata.dst_node_id,
            dst_node_id=metadata.src_node_id,
            reply_to_message_id=metadata.message_id,
            group_id=metadata.group_id,
            created_at=metadata.created_at,
            ttl=metadata.ttl,
            message_type=metadata.message_type,
        ),
        content=None if error else reply,
        error=reply if error else None,
    )
