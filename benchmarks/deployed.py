"""``python benchmarks/deployed.py``: what a round costs on a network of Flower, beside a plain Flower app.

In the environment of ``scripts/network``.  One server and four clients on this machine, with TLS and keys of nodes;
digits and softmax regression, one epoch a round.  Prints a table: seconds of a round, the median after the first one;
exchanges, and kilobytes of messages to and from a client, in a round.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path

from evenhand.cli._data import DataOptions
from evenhand.cli._deploy import InitCommand, SplitCommand, builder
from evenhand.network import certificates, files
from evenhand.network.carriers import Answers, Carrier
from evenhand.network.carriers.flower import link
from evenhand.network.deployed import serve_run
from evenhand.wire import decode

CLIENTS, ROUNDS = 4, 12
METHODS = {
    "FedAvg": "fedavg()",
    "SCAFFOLD": "scaffold()",
    "Ditto around Delta-FL": "ditto(delta_fl(theta=0.7), lam=1)",
    "geometric median, 3 passes": "fedavg(aggregator=geometric_median(passes=3))",
    "DP-FedAvg": "dp_fedavg(clip=1.0, noise_multiplier=0.2, rate=1.0)",
    "secure mean": "fedavg(aggregator=secure(mean()))",
}
_TRAINING = ("report", "work", "pass", "sum")


# --- Evenhand ---------------------------------------------------------------------------------------------------------


class Counter:
    """A carrier that counts exchanges and bytes of training; not those of evaluations."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier, self.asked, self.down, self.up = carrier, 0, 0, 0

    def ask(self, asks: Mapping[int, bytes], deadline: float) -> Answers:
        came = self.carrier.ask(asks, deadline)
        if decode(next(iter(asks.values()))).kind in _TRAINING:
            self.asked += 1
            self.down += sum(map(len, asks.values()))
            self.up += sum(map(len, came.answers.values()))
        return came

    def connected(self) -> frozenset[int]:
        return self.carrier.connected()


def evenhand(method: str, home: Path, poll: float) -> tuple[float, float, float, float]:
    """Seconds, exchanges, and kilobytes down and up of a round."""
    folder, port = home / "federation", free_port()
    make(folder, method, port)
    file, place = files.read_server(folder), folder / "server"
    own = certificates.Certificates(
        certificates.authority_file(folder / files.AUTHORITY), place / "server.crt", place / "server.key"
    )
    with (
        processes(
            [*client_command(files.client_folder(folder, number)), "--poll", str(poll)]
            for number in range(CLIENTS)
        ),
        link(place / "flower", "127.0.0.1", port, own, files.roster(folder), log=lambda *_: None) as carrier,
    ):
        counter, marks = Counter(carrier), list[float]()
        for run in serve_run(
            folder, builder(file.method, file.options), counter, lambda event, sentence, fields: None
        ):
            marks.append(run.info["seconds"]["train"])
    return (
        seconds_of(marks),
        counter.asked / ROUNDS,
        *(part / ROUNDS / CLIENTS / 1000 for part in (counter.down, counter.up)),
    )


def client_command(place: Path) -> list[str]:
    words = ["deploy", "client", str(place), "--data", str(place / "data.npz"), "--quiet"]
    return [sys.executable, "-m", "evenhand", *words]


# --- a plain Flower app -----------------------------------------------------------------------------------------------

PROJECT = """\
[project]
name = "plain"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43", "numpy"]
[tool.flwr.app]
publisher = "plain"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
rounds = ROUNDS
marks = "MARKS"
"""

SERVER = """\
import json, time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord
from flwr.common.serde import message_to_proto
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    marks, sizes = [], {"down": 0, "up": 0}
    send = grid.send_and_receive

    def counted(messages, **words):
        messages = list(messages)
        sizes["down"] += sum(message_to_proto(message).ByteSize() for message in messages)
        replies = list(send(messages, **words))
        sizes["up"] += sum(message_to_proto(reply).ByteSize() for reply in replies)
        return replies

    grid.send_and_receive = counted

    def mark(number, arrays):
        marks.append(time.perf_counter())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    start = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
    strategy.start(grid, initial_arrays=start, num_rounds=context.run_config["rounds"], evaluate_fn=mark)
    Path(context.run_config["marks"]).write_text(json.dumps({"marks": marks, **sizes}))
"""

CLIENT = """\
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    with np.load(context.node_config["data"]) as data:
        x, y = data["x_train"], data["y_train"]
    w, b = message.content["arrays"].to_numpy_ndarrays()
    order = np.random.default_rng().permutation(len(x))
    for rows in np.array_split(order, -(-len(x) // 10)):
        logits = x[rows] @ w + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(rows)), y[rows]] -= 1
        w, b = w - 0.1 * x[rows].T @ p / len(rows), b - 0.1 * p.mean(0)
    arrays = ArrayRecord([w.astype(np.float32), b.astype(np.float32)])
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""


def plain(home: Path) -> tuple[float, float, float, float]:
    """The same for a Flower app that users write, started with ``flwr run``."""
    folder, app, port = home / "federation", home / "app", free_port()
    make(folder, "fedavg()", port)
    app.mkdir()
    marks = home / "marks.json"
    texts = {
        "pyproject.toml": PROJECT.replace("ROUNDS", str(ROUNDS)).replace("MARKS", str(marks)),
        "server_app.py": SERVER.replace("CLIENTS", str(CLIENTS)),
        "client_app.py": CLIENT,
        "LICENSE": "",
    }
    for name, text in texts.items():
        (app / name).write_text(text)
    authority = certificates.authority_file(folder / files.AUTHORITY)
    os.environ |= {
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    (home / "flwr").mkdir()
    (home / "flwr" / "config.toml").write_text(
        f'[superlink.bench]\naddress = "localhost:{port}"\nroot-certificates = "{authority}"\n'
    )
    tools = Path(sys.executable).parent
    server = folder / "server"
    superlink = [str(tools / "flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
    superlink += ["--ssl-ca-certfile", str(authority), "--ssl-certfile", str(server / "server.crt")]
    superlink += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
    superlink += ["--disable-runtime-dependency-installation"]
    nodes = list[list[str]]()
    for number in range(CLIENTS):
        place = files.client_folder(folder, number)
        node = [str(tools / "flower-supernode"), "--superlink", f"localhost:{port}"]
        node += ["--root-certificates", str(authority), "--port", str(free_port())]
        node += ["--auth-supernode-private-key", str(place / "node.key")]
        node += ["--node-config", f"data='{place / 'data.npz'}'"]
        nodes.append(node)
    flwr = str(tools / "flwr")
    with processes([superlink]):
        time.sleep(10)
        for number in range(CLIENTS):
            key = folder / files.ROSTER / f"{number}.pub"
            subprocess.run([flwr, "supernode", "register", str(key), "bench"], check=True, stdout=sys.stderr)
        with processes(nodes):
            subprocess.run([flwr, "run", str(app), "bench"], check=True, stdout=sys.stderr)
            until = time.monotonic() + 60 + 40 * ROUNDS
            while not marks.exists() and time.monotonic() < until:
                time.sleep(1)
    measured = json.loads(marks.read_text())
    return (
        seconds_of(measured["marks"]),
        1.0,
        *(measured[way] / ROUNDS / CLIENTS / 1000 for way in ("down", "up")),
    )


# --- both -------------------------------------------------------------------------------------------------------------


def make(folder: Path, method: str, port: int) -> None:
    """The folder of a federation, with the examples of its clients."""
    with redirect_stdout(sys.stderr):
        InitCommand(
            folder,
            method=method,
            clients=CLIENTS,
            rounds=ROUNDS,
            eval_every=1,
            port=port,
            metrics="numbers",
        ).execute()
        SplitCommand(folder, DataOptions(data="digits", clients=CLIENTS)).execute()


def seconds_of(marks: list[float]) -> float:
    """The median of the rounds after the first one."""
    return statistics.median(after - before for before, after in pairwise(marks[1:]))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def processes(commands: Iterable[list[str]]) -> Generator[None]:
    """Processes that end with the block."""
    quiet = subprocess.DEVNULL
    running = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def show(name: str, row: tuple[float, float, float, float]) -> None:
    seconds, asked, down, up = row
    print(f"| {name} | {seconds:.2f} | {asked:.0f} | {down:.1f} | {up:.1f} |", flush=True)


def main() -> None:
    """Measures those whose names hold one of the arguments, or all."""
    print("| | seconds | exchanges | kB down | kB up |\n|---|---:|---:|---:|---:|")
    rows = {name: (method, 1.0) for name, method in METHODS.items()}
    rows["FedAvg with --poll 0.25"] = METHODS["FedAvg"], 0.25
    wanted = sys.argv[1:]
    for name, (method, poll) in rows.items():
        if not wanted or any(word in name for word in wanted):
            with tempfile.TemporaryDirectory() as home:
                show(name, evenhand(method, Path(home), poll))
    if not wanted or "plain" in wanted:
        with tempfile.TemporaryDirectory() as home:
            show("a plain Flower app", plain(Path(home)))


if __name__ == "__main__":
    main()
