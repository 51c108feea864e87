"""Starts and ends the processes of a network by their handles, and talks to them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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


class Party:
    """A process whose events are read from a file."""

    def __init__(self, role, home, settings, environment=None, talks=False):
        self.home = home
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        self.output = (home / "output.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(PARTY), role, json.dumps(settings)],
            stdin=pipe,
            stdout=pipe if talks else self.output,
            stderr=self.output,
            env=os.environ | (environment or {}),
        )

    def events(self, *kinds):
        path = self.home / "events.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if not kinds or entry["event"] in kinds]

    def children(self):
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in threads for pid in path.read_text().split()]

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.output):
            if pipe is not None:
                pipe.close()
        return self.process.returncode


class Network:
    """A server and clients on the loopback address."""

    def __init__(self, folder, clients):
        self.folder, self.port, self.parties = folder, free_port(), []
        certificates.make_authority(folder)
        certificates.server_certificate(folder, ["localhost"])
        self.roster = {number: str(self.key(number)) for number in range(clients)}
        self.server = self.clients = None

    def key(self, number):
        home = self.folder / f"client{number}"
        key = certificates.node_key(home)
        shutil.copy(self.folder / "authority.crt", home)
        return key

    def started(self, party):
        self.parties.append(party)
        return party

    def start_server(self):
        settings = {"folder": str(self.folder), "port": self.port, "roster": self.roster}
        self.server = self.started(Party("server", self.folder, settings, talks=True))

    def ready(self):
        assert json.loads(self.server.process.stdout.readline() or '"it ended"') == "ready"

    def start_client(self, number, host="localhost", environment=None):
        home = self.folder / f"client{number}"
        settings = {"number": number, "folder": str(home), "port": self.port, "host": host, "poll": 0.25}
        return self.started(Party("client", home, settings, environment))

    def order(self, order):
        self.server.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.server.process.stdin.flush()
        return json.loads(self.server.process.stdout.readline())

    def tell(self, asks, deadline=60.0):
        """Has the server ask; :meth:`reply` waits for it."""
        self.server.process.stdin.write(json.dumps({"asks": asks, "deadline": deadline}).encode() + b"\n")
        self.server.process.stdin.flush()

    def reply(self):
        """The answers, the reasons of those that gave none, and the seconds that it took."""
        reply = json.loads(self.server.process.stdout.readline())
        return *({int(k): v for k, v in reply[part].items()} for part in ("answers", "absent")), reply[
            "seconds"
        ]

    def ask(self, asks, deadline=60.0):
        self.tell(asks, deadline)
        return self.reply()

    def await_clients(self, *numbers, seconds=120):
        until(lambda: set(self.order("connected")) >= set(numbers), seconds, f"clients {numbers} connected")

    def close(self):
        for party in reversed(self.parties):
            party.process.send_signal(signal.SIGTERM) if party.process.poll() is None else None
        for party in reversed(self.parties):
            party.end()
