"""A federation of the commands' making on the loopback address, and its processes, which end by their handles."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from stage import until

from evenhand.cli._data import DataOptions
from evenhand.cli._deploy import InitCommand, SplitCommand
from evenhand.network import files
from evenhand.wire import decode

RESIDENT = Path(__file__).with_name("resident.py")
CLIENTS = 4
DATA = DataOptions(data="digits", clients=CLIENTS)


def made(folder, method, port, **options):
    """The folder of a new federation, with the examples of its clients."""
    standing = {"clients": CLIENTS, "rounds": 3, "eval_every": 1, "metrics": "numbers", "test_keys": True}
    InitCommand(folder, method=method, port=port, **(standing | options)).execute()
    SplitCommand(folder, DATA).execute()
    return folder


class Program:
    """A process of Python, with its output in a file; one that talks takes and gives lines of JSON."""

    def __init__(self, *arguments, output, talks=False, environment=None, file_size=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))

        self.output = output.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else self.output,
            stderr=self.output,
            env=os.environ | (environment or {}),
            preexec_fn=None if file_size is None else limit,
        )

    def tell(self, order):
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def reply(self):
        line = self.process.stdout.readline()
        assert line, f"the process ended: {Path(self.output.name).read_text()[-3000:]}"
        return json.loads(line)

    def ask(self, order):
        self.tell(order)
        return self.reply()

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


def events(path, *kinds):
    """The events of a log, a line of JSON each."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if not kinds or entry["event"] in kinds]


def await_events(path, kind, seconds=60, count=1):
    return until(lambda: len(some := events(path, kind)) >= count and some, seconds, f"{kind} in {path}")


def kept(folder, number):
    """What a client keeps on its disk."""
    return decode((files.client_folder(folder, number) / "state.bin").read_bytes())


def gap(ours, theirs):
    """The largest difference of two trees; NaN where one has it."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    differences = [np.ravel(np.abs(np.asarray(a, float) - np.asarray(b, float))) for a, b in pairs]
    return float(np.max(np.concatenate([*differences, np.zeros(1)])))
