"""SIGKILL at random moments, then the run goes on: it ends with the bits of one that was never touched."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from nursery import Child, Nursery

# Kept between test runs, and apart: an entry that a kill left half-written is nobody else's.
CACHE = Path(__file__).parents[2] / ".jax_cache" / "nursery"
START, SAVE = 1.0, 0.05  # seconds, about: from a new process to its first save, and that save
STAGES = {"before the first save", "before the next save", "in a save", "between saves"}
ROUNDS = 12
COMMAND = (
    "run fedprox --mu 0.1 --clients 4 --cohort 2 --stragglers 0.5 --seed 3 "
    f"--rounds {ROUNDS} --eval-every 1 --checkpoint 0 --overwrite --out run"
).split()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery(CACHE)
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole.npz`` and ``run/``, which nobody touched."""
    folder = tmp_path_factory.mktemp("whole")
    children = (
        nursery.start("simulate", folder="", result=str(folder / "whole.npz")),
        nursery.start("command", folder=str(folder), words=COMMAND),
    )
    assert [child.wait() for child in children] == [0, 0]
    return folder


@pytest.fixture(scope="module")
def chains(nursery: Nursery, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Chain]:
    """Two chains of killed simulations and one of killed commands, all at once."""
    folders = [tmp_path_factory.mktemp("chain") for _ in range(3)]
    jobs = (
        lambda: killed_simulations(nursery, folders[0], 10, random.Random(0)),
        lambda: killed_simulations(nursery, folders[1], 10, random.Random(1)),
        lambda: killed_commands(nursery, folders[2], 4, random.Random(2)),
    )
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [job.result() for job in [pool.submit(job) for job in jobs]]


class Chain(NamedTuple):
    """What kills hit, how often, and what was there when the last child had ended by itself."""

    hit: Counter[str]
    results: list[Path]


def newest(checkpoint: Path) -> int:
    """Rounds done in the latest whole checkpoint."""
    return max((int(path.name) for path in checkpoint.glob("*") if path.name.isdigit()), default=0)


def unfinished(checkpoint: Path) -> set[int]:
    """Checkpoints that somebody was writing, told apart from those of earlier kills."""
    return {path.stat().st_ino for path in checkpoint.glob("*tmp*")}


def until(child: Child, is_so: Callable[[], bool]) -> None:
    while not is_so() and not child.is_over():
        time.sleep(0.004)


def kill_again_and_again(
    start: Callable[[], Child], checkpoint: Path, kills: int, rng: random.Random
) -> Counter[str]:
    """What each kill hit; fewer than asked for if the run ended before."""
    hit: Counter[str] = Counter()
    while hit.total() < kills:
        before, torn = newest(checkpoint), unfinished(checkpoint)
        child = start()
        aim = rng.choice(("start", "start", "save", "rounds")) if hit else "start"
        if aim == "start":
            time.sleep(rng.uniform(0.0, START))
        else:
            until(child, lambda before=before: newest(checkpoint) > before)
            if aim == "save":
                until(child, lambda torn=torn: bool(unfinished(checkpoint) - torn))
            time.sleep(rng.uniform(0.0, SAVE if aim == "save" else SAVE / 2))
        if child.kill() == 0:
            break
        saved = newest(checkpoint)
        if unfinished(checkpoint) - torn:
            hit["in a save"] += 1
        elif saved > before:
            hit["between saves"] += 1
        else:
            hit["before the next save" if saved else "before the first save"] += 1
    return hit


def killed_simulations(nursery: Nursery, folder: Path, kills: int, rng: random.Random) -> Chain:
    """Kills runs until there were enough kills; each run is allowed to end after its last one."""
    hit, results = Counter[str](), list[Path]()
    while hit.total() < kills:
        checkpoint, result = folder / f"checkpoint {len(results)}", folder / f"{len(results)}.npz"

        def start(checkpoint: Path = checkpoint, result: Path = result) -> Child:
            return nursery.start("simulate", folder=str(checkpoint), result=str(result))

        hit += kill_again_and_again(start, checkpoint, kills - hit.total(), rng)
        assert start().wait() == 0
        results.append(result)
    return Chain(hit, results)


def killed_commands(nursery: Nursery, folder: Path, kills: int, rng: random.Random) -> Chain:
    """Kills ``evenhand`` some times in training and once while it writes its results, then lets it end."""
    run = folder / "run"

    def start() -> Child:
        words = ["resume", "run"] if (run / "config.json").exists() else COMMAND
        return nursery.start("command", folder=str(folder), words=words)

    hit = kill_again_and_again(start, run / "checkpoint", kills, rng)
    child = start()
    until(child, lambda: newest(run / "checkpoint") == ROUNDS)
    time.sleep(rng.uniform(0.0, START))
    if child.kill() != 0:
        hit["after the last round"] += 1
    assert start().wait() == 0
    return Chain(hit, [run])


def assert_same_arrays(one: Path, other: Path) -> None:
    with np.load(one) as a, np.load(other) as b:
        assert a.files == b.files
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name], strict=True)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run folder, clocks aside."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    summary = json.loads(found["summary.json"])
    del summary["seconds"], summary["examples_per_second"]
    time_section = re.compile(rb"<section>\n<h2>Where the time went</h2>.*?</section>", re.DOTALL)
    found["report.html"], count = time_section.subn(b"", found["report.html"])
    assert count == 1
    return found | {"summary.json": json.dumps(summary).encode()}


def test_twenty_kills_leave_every_bit_of_a_simulation(chains: list[Chain], whole: Path) -> None:
    for chain in chains[:2]:
        for result in chain.results:
            assert_same_arrays(result, whole / "whole.npz")
    hit = chains[0].hit + chains[1].hit
    assert hit.total() >= 20
    assert set(hit) == STAGES


def test_a_command_that_is_killed_leaves_the_folder_of_one_that_was_not(
    chains: list[Chain], whole: Path
) -> None:
    hit, [folder] = chains[2]
    assert contents(folder) == contents(whole / "run")
    assert hit.total() >= 4
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(ROUNDS + 1))


def test_the_comparisons_see_a_bit(whole: Path, tmp_path: Path) -> None:
    with np.load(whole / "whole.npz") as file:
        arrays = dict(file)
    arrays["leaf 0"] = np.nextafter(arrays["leaf 0"], np.float32(np.inf))
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(AssertionError):
        assert_same_arrays(tmp_path / "other.npz", whole / "whole.npz")
    for name in ("config.json", "metrics.jsonl", "clients.csv", "params.npz", "summary.json", "report.html"):
        folder = tmp_path / name
        shutil.copytree(whole / "run", folder)
        changed = (folder / name).read_bytes().replace(b"3", b"4")
        (folder / name).write_bytes(changed)
        assert contents(folder) != contents(whole / "run"), name
