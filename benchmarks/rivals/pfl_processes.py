"""pfl in several processes, which share each cohort: ``python pfl_processes.py 2`` passes on to them what it is asked.

They find each other as pfl's documentation of distributed simulations says.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

# Seconds that a process has for its end. A process of PyTorch's that has lost the others can wait for them for minutes.
_PATIENCE = 5


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("localhost", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def start(count: int) -> list[subprocess.Popen[str]]:
    """The processes; only the first one answers."""
    addresses = ",".join(f"localhost:{port}" for port in free_ports(count))
    return [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("pfl_rounds.py"))],
            env={**os.environ, "PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if rank else None,
            text=True,
        )
        for rank in range(count)
    ]


def main() -> None:
    processes = start(int(sys.argv[1]))
    pipes = [process.stdin for process in processes if process.stdin is not None]
    for line in sys.stdin:
        for pipe in pipes:
            print(line, end="", file=pipe, flush=True)
    for pipe in pipes:
        pipe.close()
    for process in processes:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main()
