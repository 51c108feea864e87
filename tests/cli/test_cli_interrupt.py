"""Ctrl-C and SIGTERM end a run with exit code 130 or 143 and a folder that can be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evenhand
from evenhand.cli import main
from nursery import Nursery

pytestmark = pytest.mark.usefixtures("shared_programs")

COMMAND = "import sys; from evenhand_command import main; print('ready', flush=True); sys.exit(main())"
FILES = {
    "config.json",
    "metrics.jsonl",
    "clients.csv",
    "params.npz",
    "results.npz",
    "summary.json",
    "checksums.json",
    "report.html",
    "checkpoint",
}


def _interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Presses Ctrl-C, and again if nothing happens: Python drops one that arrives inside a destructor."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            pass
    raise AssertionError("Ctrl-C had no effect, three times.")


def _wait_for_numpy(process: subprocess.Popen[str]) -> None:
    """Until Python itself has started, and the first package after Evenhand's own lines is being imported."""
    maps = Path(f"/proc/{process.pid}/maps")
    if not maps.exists():  # not Linux
        time.sleep(0.5)
    while maps.exists() and process.poll() is None and "numpy" not in maps.read_text():
        time.sleep(0.01)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_usable_folder(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    out = tmp_path / "a"
    words = [
        "run",
        "fedavg",
        "--clients",
        "5",
        "--rounds",
        "1000000",
        "--eval-every",
        "1",
        "--checkpoint",
        "0",
    ]
    words += ["--out", str(out)]
    shown, complaints = tmp_path / "shown", tmp_path / "complaints"
    # One device, as in this process.
    child = nursery.start("command", shown, complaints, folder=str(tmp_path), words=words, devices=1)
    metrics = out / "metrics.jsonl"
    until = time.monotonic() + 200
    while not (metrics.exists() and metrics.read_text().count("\n") >= 5) and time.monotonic() < until:
        time.sleep(0.05)
    # Again if nothing happens: Python drops a signal that arrives inside a destructor.
    for _ in range(3):
        child.signal(number)
        until = time.monotonic() + 90
        while not child.is_over() and time.monotonic() < until:
            time.sleep(0.05)
    assert child.kill() == code
    assert "Traceback" not in complaints.read_text()
    assert (
        "Stopped after round" in shown.read_text()
        and f"`evenhand resume {out}` continues" in shown.read_text()
    )

    assert {path.name for path in out.iterdir()} == FILES
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["rounds"] == lines[-1]["round"] == summary["last"]["round"] >= 4

    assert main(["compare", str(out)]) == 0
    assert "Interrupted before the last round" in capsys.readouterr().out
    # What was done before Ctrl-C is exactly what a run of that many rounds does.
    words = [
        "run",
        "--config",
        str(out),
        "--rounds",
        str(lines[3]["round"]),
        "--out",
        str(tmp_path / "b"),
        "--quiet",
    ]
    assert main(words) == 0
    assert [
        json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    ] == lines[:4]
    # It continues from that round; this process orders its sets and hashes otherwise than the one that was stopped.
    assert main(["resume", str(out), "--rounds", str(summary["rounds"] + 2), "--quiet"]) == 0
    longer = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert longer[:-2] == lines
    ended = json.loads((out / "summary.json").read_text())
    assert (ended["rounds"], ended["interrupted"]) == (summary["rounds"] + 2, False)


@pytest.mark.parametrize(
    "start", [["-c", COMMAND], ["-m", "evenhand"]], ids=["evenhand", "python -m evenhand"]
)
def test_ctrl_c_while_importing_is_quiet(start: list[str], thorough: bool) -> None:
    words = ["run", "fedavg", "--rounds", "0", "--out", "/dev/null"]
    environment = {**os.environ, "PYTHONPATH": str(Path(evenhand.__file__).parents[1])}
    for seconds in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0) if thorough else (0.1, 0.6):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(
            [sys.executable, *start, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        signal.signal(signal.SIGINT, before)
        try:
            if start[0] == "-c":
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
            else:
                _wait_for_numpy(process)
            time.sleep(seconds)
            shown, complaints = _interrupt(process)
        finally:
            process.kill()
        assert shown == ""
        # A fast machine may have finished importing, and have refused the folder.
        assert (process.returncode, complaints.count("\n")) in {(130, 0), (2, 1)}
        assert "Traceback" not in complaints


def test_python_m_evenhand_is_the_command() -> None:
    for module in ("evenhand", "evenhand.cli"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"evenhand {evenhand.__version__}\n"


def test_importing_the_package_leaves_ctrl_c_alone() -> None:
    # Set first: a process that a shell starts in the background ignores Ctrl-C, and so does what it starts.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import evenhand; "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-m", "evenhand"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
