"""A run that is killed at random moments and continued ends with the bits of one that was never killed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nursery import METHODS, Child, Nursery

START, SAVE = 1.0, 0.05  # seconds, about: from a new process to its first save, and that save
AIMS = ("start", "save", "rounds")
STAGES = {"before the first save", "before the next save", "in a save", "between saves"}
ROUNDS = 12
FURTHER = 12
"""Rounds of a simulation that has ended before it is trained further."""
COMMAND = (
    "run fedprox --mu 0.1 --clients 4 --cohort 2 --stragglers 0.5 --seed 3 "
    f"--rounds {ROUNDS} --eval-every 1 --checkpoint 0 --overwrite --out run"
).split()
STUDY = (
    "study fedavg scaffold --clients 4 --cohort 2 --seeds 1 "
    f"--rounds {ROUNDS - 4} --eval-every 1 --checkpoint 0 --out study"
).split()


@pytest.fixture(scope="module")
def methods(thorough: bool) -> tuple[str, ...]:
    return METHODS if thorough else METHODS[:2]


@pytest.fixture(scope="module")
def whole(nursery: Nursery, methods: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``METHOD.npz`` of each method, and the folders ``run/`` and ``study/``, all of runs that were never killed."""
    folder = tmp_path_factory.mktemp("whole")
    children = [nursery.start("command", folder=str(folder), words=words) for words in (COMMAND, STUDY)]
    for method in methods:
        result = str(folder / f"{method}.npz")
        children.append(nursery.start("simulate", folder="", result=result, method=method))
    assert {child.wait() for child in children} == {0}
    return folder


@pytest.fixture(scope="module")
def chains(
    nursery: Nursery, whole: Path, methods: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Chain]:
    """Chains of killed simulations and commands, three at a time: of new runs, and of runs that are trained further."""
    sampled = len(methods) < len(METHODS)
    kills = 3 if sampled else 5
    jobs: dict[str, Callable[[Path, random.Random], Chain]] = {}
    for method in methods:
        for further in (0, FURTHER):
            jobs[f"{method} after {further}"] = partial(killed_simulations, nursery, method, kills, further)
    jobs["command"] = partial(killed_commands, nursery, COMMAND)
    jobs["command further"] = partial(killed_commands, nursery, [*COMMAND, "--rounds", str(ROUNDS // 2)])
    jobs["study"] = partial(killed_studies, nursery, 2 if sampled else 5)
    with ThreadPoolExecutor(3) as pool:
        running = {
            name: pool.submit(job, tmp_path_factory.mktemp("chain"), random.Random(seed))
            for seed, (name, job) in enumerate(jobs.items())
        }
        return {name: job.result() for name, job in running.items()}


class Chain(NamedTuple):
    """What the kills hit, how often, and the results once the last child had ended by itself."""

    hit: Counter[str]
    results: list[Path]


def newest(checkpoint: Path) -> int:
    """Rounds done in the latest whole checkpoint."""
    return max((int(path.name) for path in checkpoint.glob("*") if path.name.isdigit()), default=0)


def unfinished(checkpoint: Path) -> set[int]:
    """The inodes of incomplete checkpoints, by which those of earlier kills can be recognised."""
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
        aim = AIMS[hit.total() % len(AIMS)]
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


def killed_simulations(
    nursery: Nursery, method: str, kills: int, further: int, folder: Path, rng: random.Random
) -> Chain:
    """Kills runs until there are enough kills; each run may end after its last one.

    With ``further``, each run has already ended after that many rounds, and is killed while it is trained further.
    """
    hit, results = Counter[str](), list[Path]()
    while hit.total() < kills:
        checkpoint, result = folder / f"checkpoint {len(results)}", folder / f"{len(results)}.npz"
        names = {"folder": str(checkpoint), "result": str(result), "method": method}
        if further:
            assert nursery.start("simulate", rounds=further, **names).wait() == 0

        def start(names: dict[str, str] = names) -> Child:
            return nursery.start("simulate", **names)

        hit += kill_again_and_again(start, checkpoint, kills - hit.total(), rng)
        assert start().wait() == 0
        results.append(result)
    return Chain(hit, results)


def killed_commands(nursery: Nursery, command: list[str], folder: Path, rng: random.Random) -> Chain:
    """Kills ``evenhand`` three times in training and once while it writes its results, then lets it end.

    A command of fewer rounds first ends by itself, and is then killed while it is trained further.
    """
    run, resume = folder / "run", ["resume", "run", "--rounds", str(ROUNDS)]
    if command is not COMMAND:
        assert nursery.start("command", folder=str(folder), words=command).wait() == 0

    def start() -> Child:
        words = resume if (run / "config.json").exists() else command
        return nursery.start("command", folder=str(folder), words=words)

    hit = kill_again_and_again(start, run / "checkpoint", len(AIMS), rng)
    child = start()
    until(child, lambda: newest(run / "checkpoint") == ROUNDS)
    time.sleep(rng.uniform(0.0, START))
    if child.kill() != 0:
        hit["after the last round"] += 1
    assert start().wait() == 0
    return Chain(hit, [run])


def killed_studies(nursery: Nursery, kills: int, folder: Path, rng: random.Random) -> Chain:
    """Kills a study each time that it has saved something more, then lets it end."""

    def progress() -> int:
        total = 100 * len(list(folder.glob("study/runs/*/result.json")))
        for checkpoint in folder.glob("study/runs/*/checkpoint"):
            with suppress(FileNotFoundError):  # a run has ended, and its checkpoint goes
                total += newest(checkpoint)
        return total

    hit = Counter[str]()
    while hit.total() < kills:
        before, child = progress(), nursery.start("command", folder=str(folder), words=STUDY)
        until(child, lambda before=before: progress() > before)
        time.sleep(rng.uniform(0.0, SAVE))
        if child.kill() == 0:
            break
        hit["in a study"] += 1
    assert nursery.start("command", folder=str(folder), words=STUDY).wait() == 0
    return Chain(hit, [folder / "study"])


def assert_same_arrays(one: Path, other: Path) -> None:
    with np.load(one) as a, np.load(other) as b:
        assert a.files == b.files
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name], strict=True)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run folder without the times in them."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    summary, sums = json.loads(found["summary.json"]), json.loads(found["checksums.json"])
    assert sums.pop("summary.json")["sha256"] == hashlib.sha256(found["summary.json"]).hexdigest()
    del summary["seconds"], summary["examples_per_second"]
    time_section = re.compile(rb"<section>\n<h2>Where the time went</h2>.*?</section>", re.DOTALL)
    found["report.html"], count = time_section.subn(b"", found["report.html"])
    assert count == 1
    return found | {"summary.json": json.dumps(summary).encode(), "checksums.json": json.dumps(sums).encode()}


def test_kills_change_no_bit_of_a_simulation(
    chains: dict[str, Chain], whole: Path, methods: tuple[str, ...]
) -> None:
    hit = Counter[str]()
    for name, chain in chains.items():
        method = name.split()[0]
        if method in methods:
            hit += chain.hit
            for result in chain.results:
                assert_same_arrays(result, whole / f"{method}.npz")
    assert hit.total() >= (12 if len(methods) < len(METHODS) else 80)
    assert set(hit) == STAGES


@pytest.mark.parametrize("name", ["command", "command further"])
def test_a_killed_command_leaves_the_folder_of_one_that_was_never_killed(
    name: str, chains: dict[str, Chain], whole: Path
) -> None:
    hit, [folder] = chains[name]
    assert contents(folder) == contents(whole / "run")
    assert hit.total() >= len(AIMS)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(ROUNDS + 1))


def measured(study: Path) -> dict[str, Any]:
    """What a study's folder holds of its runs, without the times in it and the checksums, which cover the times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: timeless(one)
                for name, one in value.items()
                if not ("second" in name or name == "sha256")
            }
        return [timeless(one) for one in value] if isinstance(value, list) else value

    runs = {
        path.parent.name: timeless(json.loads(path.read_text())) for path in study.glob("runs/*/result.json")
    }
    return {"runs": runs} | {path.name: path.read_bytes() for path in study.glob("*.csv")}


def test_a_killed_study_ends_with_the_numbers_of_one_that_was_never_killed(
    chains: dict[str, Chain], whole: Path
) -> None:
    """Its runs are of two programs, so that each trains alone."""
    hit, [folder] = chains["study"]
    assert hit.total() >= 2
    results = measured(folder)
    assert len(results["runs"]) == 2 and "methods.csv" in results
    assert results == measured(whole / "study")


def test_the_comparisons_see_one_changed_bit(whole: Path, tmp_path: Path) -> None:
    with np.load(whole / "scaffold.npz") as file:
        arrays = dict(file)
    arrays["leaf 0"] = np.nextafter(arrays["leaf 0"], np.float32(np.inf))
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(AssertionError):
        assert_same_arrays(tmp_path / "other.npz", whole / "scaffold.npz")
    # The summary holds times, so that only its checksum is compared, with the file itself.
    for name in ("config.json", "metrics.jsonl", "clients.csv", "params.npz", "results.npz", "report.html"):
        folder = tmp_path / name
        shutil.copytree(whole / "run", folder)
        changed = (folder / name).read_bytes().replace(b"3", b"4")
        (folder / name).write_bytes(changed)
        assert contents(folder) != contents(whole / "run"), name
