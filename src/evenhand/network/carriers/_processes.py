"""Processes beside ours, and what can be found out about a server before one is started for it.

Nothing here knows Flower: a child runs the source of a function in a bare interpreter, so that it need not import
Evenhand and with it JAX.
"""

from __future__ import annotations

import email.utils
import inspect
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from evenhand.errors import EvenhandError
from evenhand.network.certificates import certificate_names

_MOST_LOGGED = 20_000_000
"""Bytes of a child's output after which its log begins anew; the part before is kept."""


class Child:
    """A process of ours whose output goes to a file and, line by line, to a function.

    Attributes:
      pid: its number.
      last: its last lines.
    """

    def __init__(
        self,
        body: Callable[..., None],
        values: Sequence[str],
        arguments: Sequence[str],
        *,
        home: Path,
        name: str,
        listen: Callable[[str], None],
    ) -> None:
        """Starts it.

        Args:
          body: a function of the values, all text, that imports what it needs itself.
          values: what it is called with.
          arguments: what it finds in ``sys.argv``.
          home: the folder of its files and of its log.
          name: of the log, and of the program in ``sys.argv``.
          listen: takes each line of its output, in a thread.
        """
        script = f"{inspect.getsource(body)}\n{body.__name__}({', '.join(map(repr, values))})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(home),
            # Ctrl-C in a terminal reaches us alone: we end our children, in order.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.last: deque[str] = deque(maxlen=60)
        self._listen = listen
        self._log = home / f"{name}.log"
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip()
                self.last.append(text)
                # A full disk must not stop the child, which waits for its output to be read.
                with suppress(OSError):
                    self._write(line)
                with suppress(Exception):  # nor must one who cannot write down what is heard
                    self._listen(text)

    def _write(self, line: bytes) -> None:
        with open(self._log, "ab") as log:
            log.write(line)
            full = log.tell() > _MOST_LOGGED
        if full:
            os.replace(self._log, self._log.with_suffix(".log.1"))

    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Its last lines, all of them once it has ended."""
        if self.code() is not None:
            self._reader.join(5)
        return "\n".join(self.last)

    def stop(self, grace: float = 8.0) -> None:
        """Ends it: politely, so that a node signs off, and by force after ``grace`` seconds."""
        if self.code() is None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(5)


def _environment(home: Path) -> dict[str, str]:
    """What a child sees: nothing is reported to anybody, and Flower's own files stay in the federation's folder."""
    return os.environ | {
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "500",  # long lines are read one by one, and must not be folded
    }


@contextmanager
def ending_on_terminate() -> Generator[None]:
    """Turns SIGTERM into an exit that runs what has to be run at the end, as Ctrl-C is; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def secret_file(path: Path) -> str:
    """Writes a new random secret to a file that nobody else can read, and returns it."""
    path.unlink(missing_ok=True)
    secret = secrets.token_hex(32)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)
    return secret


def own_number() -> str:
    """The number of this process, by which its children see whether it is there."""
    return str(os.getpid())


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def waits(most: float) -> Generator[float]:
    """How long to wait before each new attempt, in seconds: 1, 2, 4 and so on, up to ``most``."""
    wait = 1.0
    while True:
        yield min(wait, most)
        wait *= 2


# --- the other side -----------------------------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, or of ``[host]:port`` for IPv6.

    Raises:
      EvenhandError: it is neither.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EvenhandError(f"address={address!r}: give host:port, such as fl.example.org:9092.")
    return host, int(port)


def obstacle(address: str, authority: Path, *, timeout: float = 10.0) -> str | None:
    """Why no client could talk to the server at ``address`` now, in one sentence; None if nothing stands in the way.

    Args:
      address: host and port.
      authority: the certificate of the authority that signed the server's.
      timeout: seconds for each step.

    Raises:
      EvenhandError: the address or the authority's file is not one.
    """
    host, port = split_address(address)
    try:
        trust = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise EvenhandError(
            f"{authority} holds no certificate: copy authority.crt from the server."
        ) from error
    try:
        with (
            socket.create_connection((host, port), timeout) as plain,
            trust.wrap_socket(plain, server_hostname=host) as line,
        ):
            ahead = _clock_ahead(line, host)
    except ssl.SSLCertVerificationError as error:
        return _mistrust(error, host, port, authority)
    except ssl.SSLError as error:
        return f"{address} does not answer with TLS ({error.reason}): is it the address of another program?"
    except OSError as error:
        return f"No server answers at {address} ({error.strerror or error}): is it running, and is the port open?"
    if ahead is not None and abs(ahead) > 300:
        side = "ahead of" if ahead > 0 else "behind"
        return (
            f"This machine's clock is {abs(ahead):.0f} seconds {side} that of {address}, but signatures are valid for "
            "300 seconds: synchronise both clocks with a time server."
        )
    return None


def _clock_ahead(line: ssl.SSLSocket, host: str) -> float | None:
    """By how many seconds our clock is ahead of the date in the server's answer, if it gives one."""
    with suppress(OSError, ValueError):
        line.sendall(f"GET / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        head = line.makefile("rb").read(8000)
        for field in head.splitlines():
            if field.lower().startswith(b"date:"):
                date = email.utils.parsedate_to_datetime(field[5:].decode("ascii", "replace").strip())
                return _now() - date.timestamp()
    return None


def _now() -> float:
    """This machine's clock."""
    return time.time()


def _mistrust(error: ssl.SSLCertVerificationError, host: str, port: int, authority: Path) -> str:
    """Which of the reasons for which a certificate is not trusted it was, and what to do."""
    place = f"The certificate of {host}:{port}"
    match error.verify_code:
        case 62 | 64:  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            names: list[str] = []
            with suppress(OSError, ssl.SSLError, ValueError):
                names = certificate_names(ssl.get_server_certificate((host, port), timeout=10).encode())
            good = " or ".join(names) or "another name"
            return (
                f"{place} is valid for {good}, not for {host}: connect to that name, or have a certificate made for "
                f"{host}, too."
            )
        case 9 | 10:  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
            return (
                f"{place} is not valid today ({error.verify_message}): have a new one made, or set this machine's "
                "clock."
            )
        case _:
            return (
                f"{place} was not signed by the authority in {authority} ({error.verify_message}): copy authority.crt "
                "from the server again, by a channel that you trust."
            )
