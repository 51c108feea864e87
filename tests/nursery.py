"""Other processes, many of them to be killed, each at a small fraction of the cost of a new interpreter.

The nursery is one process that has imported everything and forks a child per job.  It never touches a device, so that
neither a JAX backend nor its threads exist when it forks; each child then starts a backend of its own, traces and
compiles as every new process does (the persistent cache saves most of XLA's work).
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

SETTINGS = {"rounds": 30, "cohort": 4, "eval_every": 2, "seed": 3, "lanes": 1}


class Nursery:
    """The test's end of the pipe to the process; several threads may use it."""

    def __init__(self, cache: Path) -> None:
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2"),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OPENBLAS_NUM_THREADS": "1",  # else its threads would be the only others at a fork
            "COLUMNS": "80",
        }
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        assert self.ask("threads") == 1

    def start(
        self, job: str, shown: str | Path = os.devnull, complaints: str | Path = "", **arguments: object
    ) -> "Child":
        files = {"shown": str(shown), "complaints": str(complaints)}
        return Child(self, self.ask("start", job=job, arguments=arguments, **files))

    def close(self) -> None:
        self._requests.close()
        self._process.wait(30)
        self._answers.close()

    def ask(self, what: str, **arguments: object) -> Any:
        with self._lock:
            self._requests.write(json.dumps({"do": what, **arguments}) + "\n")
            self._requests.flush()
            return json.loads(self._answers.readline())


class Child(NamedTuple):
    """A process that does one job."""

    nursery: Nursery
    pid: int

    def is_over(self) -> bool:
        return self.nursery.ask("poll", pid=self.pid) is not None

    def signal(self, number: int) -> None:
        """Nothing happens to a child that has ended."""
        self.nursery.ask("signal", pid=self.pid, number=number)

    def kill(self) -> int:
        """SIGKILL; the exit status, -9 unless the child had ended before."""
        return self.nursery.ask("kill", pid=self.pid)

    def wait(self) -> int:
        while (status := self.nursery.ask("poll", pid=self.pid)) is None:
            time.sleep(0.02)
        return status


METHODS = ("scaffold", "median", "fedtilt", "fedadam", "qmaml", "afl", "ditto", "dp_fedavg")
"""They differ in the state that they keep: a state at each client, the point of a secure median, personal models,
moments of the server, an adaptation to each client, weights of all clients, personal models in files, and none but
the secret root of a noise."""


def _method(name: str) -> Any:
    model = eh.testing.toy_model()
    work = eh.local.sgd(model, 0.1, epochs=100, batch_size=4)
    match name:
        case "scaffold":
            return eh.algorithms.scaffold(work)
        case "fedtilt":
            return eh.algorithms.fedtilt(work, tilt_server=0.5, tilt_sample=0.5)
        case "fedadam":
            return eh.algorithms.fedavg(work, server_opt=eh.server_opt.fedadam(0.01))
        case "qmaml":
            return eh.algorithms.qmaml(model, q=1.0, step_size=0.05)
        case "ditto":
            return eh.personalization.ditto(eh.algorithms.scaffold(work), work, lam=0.5)
        case "median":
            return eh.algorithms.fedavg(
                work, aggregator=eh.aggregators.secure(eh.aggregators.geometric_median(2))
            )
        case "dp_fedavg":
            return eh.privacy.dp_fedavg(work, clip=0.5, noise_multiplier=0.5, rate=0.5)
        case "afl":
            return eh.algorithms.afl(model, gamma_w=0.05, gamma_lambda=0.01)


def _simulate(folder: str, result: str, method: str = "scaffold", rounds: int = SETTINGS["rounds"]) -> int:
    """One run to its end; all its numbers go to the file ``result``."""
    settings: dict[str, Any] = {**SETTINGS, "rounds": rounds} | (
        {"cohort": None} if method == "dp_fedavg" else {}
    )
    offload = f"{result}-states" if method == "ditto" else None
    run = eh.simulate(
        _method(method), eh.testing.toy_data(), checkpoint=folder or None, offload=offload, **settings
    )
    arrays: dict[str, Any] = {
        f"leaf {i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(run.state))
    }
    arrays |= {f"history {name}": values for name, values in run.history.items()}
    assert run.info["devices"] == 2
    arrays |= {f"round {name}": values for name, values in run.per_round.items()}
    np.savez(result, **arrays)
    return 0


def _command(folder: str, words: list[str], devices: int = 2) -> int:
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("device_count=2", f"device_count={devices}")
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    return main(words)


def _program(source: str, arguments: tuple[str, ...] = ()) -> int:
    sys.argv[1:] = arguments
    exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    return 0


def _child(job: str, arguments: dict, shown: str, complaints: str) -> int:
    """Does a job; what it prints goes to two files, the complaints of one without a file to those of the tests."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(shown, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY), 1)
    if complaints:
        os.dup2(os.open(complaints, os.O_WRONLY | os.O_CREAT), 2)
    try:
        return {"simulate": _simulate, "command": _command, "program": _program}[job](**arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _serve() -> None:
    statuses: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "threads":
            answer = len(os.listdir("/proc/self/task"))
        elif request["do"] == "start":
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    code = _child(*(request[name] for name in ("job", "arguments", "shown", "complaints")))
                finally:
                    os._exit(code)
        else:
            # Reaped only here, so that the id still belongs to this child when it is killed.
            pid = request["pid"]
            if pid not in statuses and request["do"] in ("kill", "signal"):
                os.kill(pid, request.get("number", signal.SIGKILL))
            if pid not in statuses:
                done, status = os.waitpid(pid, 0 if request["do"] == "kill" else os.WNOHANG)
                if done:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
            answer = statuses.get(pid)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    import jax
    import matplotlib.pyplot as plt
    import numpy as np
    import orbax.checkpoint as ocp

    # Else scikit-learn would import it, with a thread of Arrow's.
    sys.modules["pandas"] = None  # pyright: ignore[reportArgumentType]
    import sklearn.datasets

    import evenhand as eh
    from evenhand.cli import main
    from evenhand.report import _plots, page

    gc.disable()  # a quarter of the time that tracing takes, and no child lives long
    assert all((plt, ocp, sklearn.datasets, _plots, page))  # used by what the children do
    _serve()
