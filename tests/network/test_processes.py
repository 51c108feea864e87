"""Processes beside ours are heard, end when they should, and fill no disk; a missing Flower is told in a sentence."""

import importlib
import re
import stat
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from evenhand.errors import EvenhandError
from evenhand.network.carriers import _flwr, _processes, flower
from evenhand.network.certificates import Certificates


def speak(lines):
    import sys
    import time

    for number in range(int(lines)):
        print(f"line {number} of {sys.argv[1]}", flush=True)  # noqa: T201
    time.sleep(60)


def refuse_to_end(lines):
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)  # noqa: T201
    time.sleep(60)


def show_surroundings(lines):
    import os
    import sys

    names = ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")
    print(*(os.environ[name] for name in names), "jax" in sys.modules, sep=" ")  # noqa: T201


def child(body, home, heard, lines=3):
    return _processes.Child(body, [str(lines)], ["argument"], home=home, name="child", listen=heard.append)


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_child_is_heard_line_by_line_and_ends_when_told(tmp_path):
    heard = []
    process = child(speak, tmp_path, heard)
    wait_for(lambda: len(heard) == 3)
    assert process.code() is None
    process.stop()
    assert process.code() is not None
    assert heard == process.output().split("\n") == [f"line {number} of argument" for number in range(3)]
    assert (tmp_path / "child.log").read_text().split("\n")[:3] == heard


def test_a_child_that_does_not_listen_is_killed(tmp_path):
    heard = []
    process = child(refuse_to_end, tmp_path, heard)
    wait_for(lambda: heard)
    start = time.monotonic()
    process.stop(grace=0.2)
    assert process.code() is not None
    assert time.monotonic() - start < 10


def test_a_childs_log_keeps_its_end_and_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(_processes, "_MOST_LOGGED", 5000)
    heard = []
    process = child(speak, tmp_path, heard, lines=2000)
    wait_for(lambda: len(heard) == 2000)
    process.stop()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 5100
    kept = (tmp_path / "child.log.1").read_text() + (tmp_path / "child.log").read_text()
    assert kept.endswith("line 1999 of argument\n")
    assert kept.count("\n") > 200


def test_a_child_reports_to_nobody_and_does_not_load_jax(tmp_path):
    heard = []
    process = child(show_surroundings, tmp_path, heard)
    wait_for(lambda: heard)
    process.stop()
    assert heard == [f"{tmp_path / 'flwr'} 0 1 False"]


def test_a_new_secret_replaces_the_old_one_and_its_mode(tmp_path):
    path = tmp_path / "secret"
    path.write_text("readable by all")
    path.chmod(0o644)
    secrets = {_processes.secret_file(path) for _ in range(2)}
    assert len(secrets) == 2
    assert path.read_text() in secrets
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_attempts_are_made_less_and_less_often_and_never_end():
    pauses = _processes.waits(30)
    assert [next(pauses) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.fixture
def other_flower(monkeypatch):
    """Another version of Flower than is installed, or none."""

    def install(module):
        monkeypatch.setitem(sys.modules, "flwr", module)
        importlib.invalidate_caches()
        _flwr.flower_parts.cache_clear()

    yield install
    _flwr.flower_parts.cache_clear()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (None, "flwr, which is not installed: pip install 'evenhand[flower]'"),
        (SimpleNamespace(__version__="1.43.0"), "flwr 1.41 or 1.42, and 1.43.0 is installed"),
        (SimpleNamespace(__version__="1.4.2"), "flwr 1.41 or 1.42, and 1.4.2 is installed"),
        # A version of the right number whose insides are others.
        (SimpleNamespace(__version__="1.42.9", __path__=[]), "flwr 1.41 or 1.42, and 1.42.9 is installed"),
    ],
)
def test_a_missing_or_another_flower_is_told_by_both_sides(
    other_flower, tmp_path, monkeypatch, module, words
):
    for name in [name for name in sys.modules if name.startswith("flwr.")]:
        monkeypatch.delitem(sys.modules, name)
    other_flower(module)
    path = tmp_path / "file"
    with pytest.raises(EvenhandError, match=re.escape(words)):
        flower.serve(bytes, address="localhost:1", authority=path, key=path, folder=tmp_path, log=print)
    with (
        pytest.raises(EvenhandError, match=re.escape(words)),
        flower.link(tmp_path, "127.0.0.1", 1, Certificates(path, path, path), {}, log=print),
    ):
        pass
    assert threading.active_count() < 20
