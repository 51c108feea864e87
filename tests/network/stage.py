"""Starts and ends the processes of a network by their handles, and talks to them."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evenhand.network import certificates

PARTY = Path(__file__).with_name("party.py")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def alive(pid):
    """Whether a process that need not be our child runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds, what):
    """Waits until the condition holds, and returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} seconds: {what}"
        time.sleep(0.1)
    return value


def events(path, *kinds):
    """The events of a log, a line of JSON each."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if not kinds or entry["event"] in kinds]


def await_events(path, kind, seconds=60, count=1):
    return until(lambda: len(some := events(path, kind)) >= count and some, seconds, f"{kind} in {path}")


class Program:
    """A process of Python, with its output in a file; one that talks takes and gives lines of JSON.

    Its events are read from the file ``log``.
    """

    def __init__(self, *arguments, output, log=None, talks=False, environment=None, file_size: Any = None):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))

        self.log, self.output = log, output.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else self.output,
            stderr=self.output,
            env=os.environ | (environment or {}),
            preexec_fn=None if file_size is None else limit,
        )

    def tell(self, order):
        orders = self.process.stdin
        assert orders is not None
        orders.write(json.dumps(order).encode() + b"\n")
        orders.flush()

    def reply(self):
        replies = self.process.stdout
        assert replies is not None
        line = replies.readline()
        assert line, f"the process ended: {Path(self.output.name).read_text()[-3000:]}"
        return json.loads(line)

    def ask(self, order):
        self.tell(order)
        return self.reply()

    def events(self, *kinds):
        return events(self.log, *kinds)

    def children(self):
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in threads for pid in path.read_text().split()]

    def send(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        return self.end()

    def end(self, seconds=20):
        """Ends it, and returns its exit code."""
        self.send(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.output):
            if pipe is not None:
                pipe.close()
        return self.process.returncode


class Programs:
    """Processes that end together, whatever happens to a test."""

    def __init__(self):
        self.running = []

    def start(self, *arguments, **options):
        self.running.append(Program(*arguments, **options))
        return self.running[-1]

    def close(self):
        for program in reversed(self.running):
            program.send(signal.SIGTERM)
        for program in reversed(self.running):
            program.end()


class Network:
    """A server and clients on the loopback address, once they were started."""

    server: Program
    clients: list[Program]

    def __init__(self, folder, clients):
        self.folder, self.port, self.programs = folder, free_port(), Programs()
        certificates.make_authority(folder)
        certificates.server_certificate(folder, ["localhost"])
        self.roster = {number: str(self.key(number)) for number in range(clients)}

    def key(self, number):
        home = self.folder / f"client{number}"
        key = certificates.node_key(home)
        shutil.copy(self.folder / "authority.crt", home)
        return key

    def start(self, role, home, settings, **options):
        files = {"output": home / "output.txt", "log": home / "events.jsonl"}
        return self.programs.start(PARTY, role, json.dumps(settings), **files, **options)

    def start_server(self):
        settings = {"folder": str(self.folder), "port": self.port, "roster": self.roster}
        self.server = self.start("server", self.folder, settings, talks=True)

    def ready(self):
        assert self.server.reply() == "ready"

    def start_client(self, number, host="localhost", environment=None):
        home = self.folder / f"client{number}"
        settings = {"number": number, "folder": str(home), "port": self.port, "host": host, "poll": 0.25}
        return self.start("client", home, settings, environment=environment)

    def order(self, order):
        return self.server.ask(order)

    def tell(self, asks, deadline=60.0):
        """Has the server ask; :meth:`reply` waits for it."""
        self.server.tell({"asks": asks, "deadline": deadline})

    def reply(self):
        """The answers, the reasons of those that gave none, and the seconds that it took."""
        reply = self.server.reply()
        answers, absent = ({int(k): v for k, v in reply[part].items()} for part in ("answers", "absent"))
        return answers, absent, reply["seconds"]

    def ask(self, asks, deadline=60.0):
        self.tell(asks, deadline)
        return self.reply()

    def await_clients(self, *numbers, seconds=120):
        until(lambda: set(self.order("connected")) >= set(numbers), seconds, f"clients {numbers} connected")

    def close(self):
        self.programs.close()
