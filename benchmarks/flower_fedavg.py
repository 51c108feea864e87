"""Plain FedAvg as an app of Flower, four nodes on this machine: what a round costs without Evenhand.

``python benchmarks/flower_fedavg.py``, in an environment with flwr (``scripts/network`` makes ``.venv-flower``).  The
model has as many numbers as softmax regression on the digits (650); clients train in NumPy.  Each message starts a
process of Flower's at the node, as ``flwr run`` does.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES, ROUNDS = 4, 5

PROJECT = """
[project]
name = "plain"
version = "1.0.0"
description = "FedAvg"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "evenhand"

[tool.flwr.app.components]
serverapp = "plain.server:app"
clientapp = "plain.client:app"

[tool.flwr.app.config]

[tool.flwr.federations]
default = "local"

[tool.flwr.federations.local]
address = "127.0.0.1:PORT"
insecure = true
"""

SERVER = """
import time

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    weights = [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.2)
    for number in range(ROUNDS):
        begin = time.perf_counter()
        content = RecordDict({"arrays": ArrayRecord(weights)})
        asked = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        replies = [reply.content["arrays"].to_numpy_ndarrays() for reply in grid.send_and_receive(asked)]
        weights = [np.mean(layers, axis=0) for layers in zip(*replies)]
        print(f"ROUND {number} {len(replies)} {time.perf_counter() - begin:.3f}", flush=True)
"""

CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    kernel, bias = message.content["arrays"].to_numpy_ndarrays()
    random = np.random.default_rng(message.metadata.dst_node_id % 2**32)
    x, y = random.normal(size=(360, 64)).astype(np.float32), random.integers(0, 10, 360)
    for rows in np.array_split(np.arange(360), 36):
        logits = x[rows] @ kernel + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(rows)), y[rows]] -= 1
        kernel = kernel - 0.1 * x[rows].T @ shares / len(rows)
        bias = bias - 0.1 * shares.mean(axis=0)
    arrays = ArrayRecord([kernel.astype(np.float32), bias.astype(np.float32)])
    return Message(RecordDict({"arrays": arrays}), reply_to=message)
"""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Prints the seconds of each round, and the processor seconds of all processes for a round."""
    home, programs = Path(tempfile.mkdtemp()), list[subprocess.Popen[bytes]]()
    port = free_port()
    place = Path(sys.executable).parent
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home / "flwr")}
    environment = {**os.environ, **quiet, "PATH": f"{place}:{os.environ['PATH']}"}
    package = home / "app" / "plain"
    package.mkdir(parents=True)
    (home / "app" / "pyproject.toml").write_text(PROJECT.replace("PORT", str(port)))
    (home / "app" / "LICENSE").write_text("None\n")
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER.replace("NODES", str(NODES)).replace("ROUNDS", str(ROUNDS)))
    (package / "client.py").write_text(CLIENT)

    def start(*words: str) -> None:
        log = (home / f"{len(programs)}.txt").open("wb")
        programs.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))

    try:
        start(str(place / "flower-superlink"), "--insecure", "--port", str(port))
        time.sleep(8)
        for _ in range(NODES):
            node = (str(place / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}")
            start(*node, "--port", str(free_port()))
        time.sleep(8)
        words = (str(place / "flwr"), "run", ".", "local", "--stream")
        done = subprocess.run(
            words, cwd=home / "app", env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        seconds = [float(text) for text in re.findall(r"ROUND \d+ 4 ([\d.]+)", done.stdout)]
        print(
            done.stdout[-3000:] if not seconds else f"seconds of each round: {seconds}", done.stderr[-2000:]
        )
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
