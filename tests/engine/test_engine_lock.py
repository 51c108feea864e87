"""Two processes in one folder: one works; the other is refused in one sentence and changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand.errors import StorageError
from evenhand.records import LOCK, held, uninterrupted
from evenhand.simulation.folder import condition_of
from nursery import Child, Nursery

SETTINGS = "--clients 4 --cohort 2 --seed 3 --eval-every 1 --checkpoint 0 --rounds"
HOLDER = """
import os, sys, time
from pathlib import Path
from evenhand.records import held
with held(sys.argv[1]):
    Path(sys.argv[2], f"held {os.getpid()}").touch()
    while not Path(sys.argv[2], "let go").exists():
        time.sleep(0.01)
"""


class Holders:
    """Processes that hold folders until they are let go."""

    def __init__(self, nursery: Nursery, signs: Path) -> None:
        self._nursery, self._signs = nursery, signs

    def start(self, folder: Path, program: str = HOLDER) -> Child:
        child = self._nursery.start("program", source=program, arguments=[str(folder), str(self._signs)])
        while not (self._signs / f"held {child.pid}").exists():
            assert not child.is_over()
            time.sleep(0.01)
        return child

    def let_go(self) -> None:
        (self._signs / "let go").touch()


@pytest.fixture
def holders(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holders]:
    """They are let go at the end of the test, if not before."""
    found = Holders(nursery, tmp_path_factory.mktemp("signs"))
    yield found
    found.let_go()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_is_held_is_refused_and_the_lock_dies_with_its_process(
    tmp_path: Path, holders: Holders, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "a"
    run = ["run", "fedavg", *SETTINGS.split(), "1", "--quiet", "--out", str(folder)]
    other = holders.start(folder)
    for words in (run, [*run, "--overwrite"]):
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"evenhand: {folder} is in use by process {other.pid} on ")
        assert shown.err.count("\n") == 1 and shown.out == ""
    assert {path.name for path in folder.iterdir()} == {LOCK}
    assert other.kill() == -9
    assert main(run) == 0
    assert not (folder / LOCK).exists()
    before = contents(folder)
    other = holders.start(folder)
    before[Path(LOCK)] = (folder / LOCK).read_bytes()
    for words in (["resume", str(folder), "--rounds", "2"], [*run, "--overwrite"], run):
        assert main(words) == 2
        assert "is in use by process" in capsys.readouterr().err
        assert contents(folder) == before
    # Reading is still allowed.
    assert main(["compare", str(folder)]) == 0
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    holders.let_go()
    assert other.wait() == 0
    assert {path.name for path in folder.iterdir()} == {name.parts[0] for name in before} - {LOCK}


def test_a_simulation_in_a_folder_that_is_held_is_refused(tmp_path: Path, holders: Holders) -> None:
    method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=5))
    other = holders.start(tmp_path / "place")
    with pytest.raises(eh.EvenhandError, match=rf"place is in use by process {other.pid} on "):
        eh.simulate(method, eh.testing.toy_data(), rounds=1, checkpoint=tmp_path / "place")
    assert {path.name for path in (tmp_path / "place").iterdir()} == {LOCK}


def test_a_child_does_not_inherit_the_lock(tmp_path: Path, holders: Holders) -> None:
    line = "    Path(sys.argv[2], f"
    waiting = 'while not Path(sys.argv[2], "let go").exists(): time.sleep(0.01)'
    inside = f"    if not os.fork():\n        {waiting}\n        os._exit(0)\n"
    assert HOLDER.count(line) == 1
    forking = HOLDER.replace(line, inside + line)
    other = holders.start(tmp_path, forking)
    with pytest.raises(eh.EvenhandError, match="is in use"), held(tmp_path):
        pass
    assert other.kill() == -9
    with held(tmp_path):  # although the child, which waits for its input, still runs
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_made_to_be_held_is_removed_if_nothing_was_written(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="it has no limit for the size of files")
def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The name of the process cannot be written into the lock, which is then held by nobody."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with (
            pytest.raises(
                StorageError, match=r"b cannot be written to \(File too large\): name another folder"
            ),
            held(tmp_path / "a" / "b"),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "a" / "b"):
        assert f"process {os.getpid()} on" in (tmp_path / "a" / "b" / LOCK).read_text()


# --- processes that compete ---------------------------------------------------------------------------------------


def raced(nursery: Nursery, folder: Path, first: str, second: str, delay: float) -> list[int]:
    """The exit codes of two commands, the second started a while after the first."""
    children: list[Child] = [nursery.start("command", folder=str(folder), words=first.split())]
    time.sleep(delay)
    children.append(nursery.start("command", folder=str(folder), words=second.split()))
    return [child.wait() for child in children]


@pytest.mark.parametrize(
    ("first", "second", "delays"),
    [
        (
            f"run fedavg {SETTINGS} 6 --out run",
            f"run fedavg {SETTINGS} 6 --out run",
            (0.0, 0.1, 0.2, 0.3, 0.5),
        ),
        ("resume run --rounds 12", "resume run --rounds 12", (0.0, 0.05, 0.1, 0.2, 0.3)),
        ("resume run --rounds 12", "resume run --rounds 20", (0.0, 0.05, 0.1, 0.2, 0.3)),
        (
            f"run fedavg {SETTINGS} 40 --out run",
            f"run fedprox {SETTINGS} 2 --out run --overwrite",
            (0.1, 0.3, 0.5, 0.7, 1.0),
        ),
    ],
    ids=["run and run", "resume and resume", "resume further and further", "run and overwrite"],
)
def test_one_of_two_processes_works_and_the_other_is_refused(
    first: str, second: str, delays: tuple[float, ...], nursery: Nursery, tmp_path: Path, thorough: bool
) -> None:
    start = f"run fedavg {SETTINGS} 6 --out run"
    if first.startswith("resume"):
        assert main([*start.split()[:-1], str(tmp_path / "start"), "--quiet"]) == 0
    for trial, delay in enumerate(delays if thorough else delays[1:2]):
        folder = tmp_path / str(trial)
        folder.mkdir()
        if first.startswith("resume"):
            shutil.copytree(tmp_path / "start", folder / "run")
        codes = raced(nursery, folder, first, second, delay)
        assert sorted(codes) == [0, 2]
        winner = (first, second)[codes.index(0)]
        rounds = int((winner + " --rounds 6").split("--rounds ")[1].split()[0])
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == rounds + 1 == len(set(lines))
        condition = condition_of(folder / "run")
        assert condition.results == "sealed" and not condition.damaged and not condition.is_edited
        assert not list(folder.rglob(LOCK))
        assert eh.simulation.Checkpoint(folder / "run" / "checkpoint").saved() == [rounds - 1, rounds]


def test_a_place_where_no_folder_can_be_made_is_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /proc, where the system says that the folder to be made does not exist."""

    def mkdir(path: Path, **options: bool) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with (
        pytest.raises(eh.EvenhandError, match=r"runs cannot be made \(No such file"),
        held(tmp_path / "runs"),
    ):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_that_waited_is_raised_also_where_the_block_fails(fails: bool) -> None:
    """A caller that goes on after the error of the block must not go on after Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = list[bool]()

    def work() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(True)
            if fails:
                raise OSError("damaged")

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached
