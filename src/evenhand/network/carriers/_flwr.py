"""What is used of Flower: its clients of a SuperLink's and a SuperNode's interfaces, and messages of bytes.

This is the only module that imports Flower, and only when it is needed.  The clients are not public and may change
with the next minor version, so that two are supported: 1.41 and 1.42.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from evenhand.errors import EvenhandError

_VERSIONS = ("1.41", "1.42")
LINK_NODE = 1  # how Flower numbers the SuperLink among the nodes
_FEW = 1_000_000
HEARTBEAT = 15.0  # seconds; Flower gives up a task after 30 to 60 without one


@cache
def flower_parts() -> Any:
    """The parts of Flower that are used here.

    Raises:
      EvenhandError: it is not installed, or in a version that these parts are not known of.
    """
    try:
        with _quiet():
            version = str(import_module("flwr").__version__)
    except ImportError as error:
        raise EvenhandError(
            "A deployment needs the package flwr, which is not installed: pip install 'evenhand[flower]'."
        ) from error
    wrong = EvenhandError(
        f"A deployment needs flwr {' or '.join(_VERSIONS)}, and {version} is installed: pip install 'evenhand[flower]'."
    )
    if ".".join(version.split(".")[:2]) not in _VERSIONS:
        raise wrong
    # It writes to the terminal; what matters is said in sentences here.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        with _quiet():
            return _parts()
    except (ImportError, AttributeError) as error:
        raise wrong from error


@contextmanager
def _quiet() -> Generator[None]:
    """Lets pass that Flower uses what is out of date in other packages, which is not for our users to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _parts() -> SimpleNamespace:
    """Each part by the name that it has here."""
    app, message = import_module("flwr.app"), import_module("flwr.app.message")
    objects = import_module("flwr.supercore.inflatable.inflatable_object")
    transfer = import_module("flwr.supercore.inflatable.inflatable_utils")
    calls = import_module("flwr.supercore.inflatable.inflatable_protobuf_utils")
    return SimpleNamespace(
        control=import_module("flwr.proto.control_pb2"),
        fab=import_module("flwr.proto.fab_pb2"),
        messages=import_module("flwr.proto.message_pb2"),
        node=import_module("flwr.proto.node_pb2"),
        runtime=import_module("flwr.proto.runtime_pb2"),
        ControlClient=import_module("flwr.supercore.control.control_http_client").ControlHttpClient,
        RuntimeClient=import_module("flwr.supercore.runtime").RuntimeHttpClient,
        ExecutorAuth=import_module("flwr.supercore.interceptors").SuperExecAuthHttpInterceptor,
        Array=app.Array,
        ArrayRecord=app.ArrayRecord,
        ConfigRecord=app.ConfigRecord,
        Error=app.Error,
        Message=app.Message,
        Metadata=app.Metadata,
        RecordDict=app.RecordDict,
        make_message=message.make_message,
        without_content=message.remove_content_from_message,
        to_proto=import_module("flwr.common.serde").message_to_proto,
        nested=objects.get_all_nested_objects,
        tree=objects.get_object_tree,
        leaves=objects.iterate_object_tree,
        hashed_once=objects.no_object_id_recompute,
        inflate=transfer.inflate_object_from_contents,
        pull_objects=transfer.pull_objects,
        push_objects=transfer.push_objects,
        Unavailable=transfer.ObjectUnavailableError,
        pulling=calls.make_pull_object_fn_protobuf,
        pushing=calls.make_push_object_fn_protobuf,
        HTTPError=import_module("httpx").HTTPError,
        HTTPStatusError=import_module("httpx").HTTPStatusError,
    )


# --- what the child processes run: without Evenhand, which would load JAX -------------------------------------------


def run_superlink(parent: str, token_file: str) -> None:
    """Runs ``flower-superlink`` so that it ends with its parent and obeys its parent alone.

    Flower's server takes orders over its one port, such as to register a node, from everybody: here they need a token.
    """
    import hmac
    import os
    import signal
    import threading
    import time
    from importlib import import_module
    from pathlib import Path

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    entry: Any = import_module("flwr.superlink.cli.flower_superlink")
    plugin = import_module("flwr.superlink.auth_plugin").NoOpControlAuthnPlugin()
    accept = plugin.validate_tokens_in_metadata
    token = Path(token_file).read_bytes()

    def validate(metadata):  # type: ignore  # runs in a bare interpreter
        sent = str(dict(metadata).get("flwr-oidc-access-token", "")).encode()
        return accept(metadata) if hmac.compare_digest(sent, token) else (False, None)

    plugin.validate_tokens_in_metadata = validate
    entry.load_control_authn_plugin = lambda: plugin
    threading.Thread(target=watch, daemon=True).start()
    entry.flower_superlink()


def run_supernode(parent: str, poll: str) -> None:
    """Runs ``flower-supernode`` so that it ends with its parent and asks for messages every ``poll`` seconds.

    The server misses it after half a minute without a sign of life, where it would take Flower's own twice as long.
    """
    import os
    import signal
    import threading
    import time
    from importlib import import_module
    from types import SimpleNamespace

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    loop: Any = import_module("flwr.supernode.start_client_internal")
    # Flower's own pause of 3 seconds has no option.
    pause = {"sleep": lambda seconds: time.sleep(min(seconds, float(poll)))}
    loop.time = SimpleNamespace(**(vars(time) | pause))
    for name in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        module: Any = import_module(name)
        module.HEARTBEAT_DEFAULT_INTERVAL = 15
    threading.Thread(target=watch, daemon=True).start()
    import_module("flwr.supernode.cli.flower_supernode").flower_supernode()


# --- messages -------------------------------------------------------------------------------------------------------


class Headers(NamedTuple):
    """Adds headers to each request of one of Flower's clients; they may change between requests."""

    headers: dict[str, str]

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers.update(self.headers)
        return call_next(context)


def flower_message() -> Any:
    """Flower's class of messages, which is public."""
    return import_module("flwr.app").Message


def record(content: bytes) -> Any:
    """Bytes as Flower carries them: in parts of 5 MB, each of which is stored once, however many clients get it.

    Few bytes go in one part: each costs several requests.
    """
    app = import_module("flwr.app")
    if len(content) <= _FEW:
        return app.RecordDict({"message": app.ConfigRecord({"bytes": content})})
    array = app.Array("uint8", (len(content),), "evenhand", content)
    return app.RecordDict({"message": app.ArrayRecord({"bytes": array})})


def content_of(message: Any) -> bytes:
    """The bytes of a message.

    Raises:
      ValueError: it is not one of ours.
    """
    try:
        content = message.content["message"]["bytes"]
    except KeyError:
        raise ValueError("its message is not one of Evenhand's") from None
    if isinstance(content, import_module("flwr.app").Array) and content.dtype == "uint8":
        content = content.data
    if not isinstance(content, bytes):
        raise ValueError("its message holds no bytes")
    return content


def push(client: Any, messages: list[Any], node: int, run: int) -> list[str]:
    """Sends messages, and of their parts those that are not there yet; the messages' ids."""
    flower = flower_parts()
    headers, trees, parts = [], [], {}
    with flower.hashed_once():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            headers.append(flower.to_proto(flower.without_content(message)))
            trees.append(flower.tree(message))
            parts.update(flower.nested(message))
        receipt = client.PushMessages(
            flower.runtime.PushAppMessagesRequest(messages_list=headers, message_object_trees=trees)
        )
        part_push = flower.pushing(
            client.PushObject, flower.node.Node(node_id=node), run_id=run, session_id=receipt.session_id
        )
        flower.push_objects(parts, part_push, object_ids_to_push=set(receipt.objects_to_push))
    return list(receipt.message_ids)


def pull(client: Any, tree: Any, node: int, run: int, *, seconds: float, most: int) -> Any:
    """The message whose parts a tree lists, waiting for those that are still on their way."""
    flower = flower_parts()
    request = flower.pulling(client.PullObject, flower.node.Node(node_id=node), run)
    lock, room = threading.Lock(), [most]

    def part(name: str) -> bytes:
        try:
            content = request(name)
        except flower.HTTPError as error:  # the link may come back in time
            raise flower.Unavailable(name) from error
        with lock:
            room[0] -= len(content)
            if room[0] < 0:
                raise ValueError(f"an answer of more than {most:,} bytes")
        return content

    contents = flower.pull_objects(
        [leaf.object_id for leaf in flower.leaves(tree)],
        part,
        max_time=seconds,
        max_tries_per_object=None,
        initial_backoff=0.1,
        backoff_cap=1.0,
    )
    received = flower.messages.ConfirmMessageReceivedRequest(
        node=flower.node.Node(node_id=node), run_id=run, message_object_id=tree.object_id
    )
    client.ConfirmMessageReceived(received)
    message = flower.inflate(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


@contextmanager
def beating(client: Any) -> Generator[None]:
    """Says every quarter of a minute that the task is being worked at."""
    flower, done = flower_parts(), threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            with suppress(flower.HTTPError):
                client.SendTaskHeartbeat(flower.runtime.SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


@cache
def empty_app() -> bytes:
    """The app that a run of Flower's needs, with no code in it: no node runs any that it is sent."""
    text = """
[project]
name = "evenhand"
version = "1.0.0"
description = "Carries Evenhand's messages; holds no code."
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "evenhand"

[tool.flwr.app.components]
serverapp = "evenhand_runs_its_own_code:app"
clientapp = "evenhand_runs_its_own_code:app"
"""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), text)
        archive.writestr(zipfile.ZipInfo("LICENSE"), "Apache-2.0\n")
    return buffer.getvalue()
