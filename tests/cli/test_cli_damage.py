"""Run folders that are damaged, edited or old: no damaged number is used, and nothing raises a traceback."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import evenhand
import evenhand as eh
from evenhand.cli import main
from evenhand.simulation import Job
from evenhand.simulation import folder as folder_module
from evenhand.studies import _columns

RESULTS = ("metrics.jsonl", "clients.csv", "params.npz", "results.npz", "summary.json")
READ = ("config.json", "metrics.jsonl", "clients.csv", "summary.json")
ODD = ["5", "null", "NaN", "1e999", "[]", "{}", '"x"', "true", "9" * 5000, "[" * 3000, "-1", "[1, [2]]"]
ODD += ['{"a":' * 900 + "1" + "}" * 900, "9" * 19]
RUN = ["run", "fedavg", "--data", "synthetic:1,1", "--clients", "3", "--cohort", "2", "--eval-every", "2"]
RUN += ["--checkpoint", "0", "--quiet"]


pytestmark = pytest.mark.usefixtures("no_figures", "shared_programs")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
        out = tmp_path_factory.mktemp("finished") / "run"
        assert main([*RUN, "--rounds", "4", "--out", str(out)]) == 0
    return out


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def old(folder: Path) -> Path:
    """A folder of an earlier version."""
    (folder / "checksums.json").unlink()
    return folder


def results(folder: Path) -> dict[str, bytes]:
    """The result files, without what depends on the clock."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"], summary["examples_per_second"]
    found = {name: (folder / name).read_bytes() for name in RESULTS}
    return found | {"summary.json": json.dumps(summary).encode()}


def answer(words: list[str], capsys: pytest.CaptureFixture[str], code: int) -> str:
    """What the command prints on stderr, at most one sentence, as it ends with this exit code."""
    capsys.readouterr()
    assert main(words) == code
    shown = capsys.readouterr().err
    assert shown.count("\n") <= 1 and len(shown) < 800
    return shown


def with_one_digit_changed(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    place = rng.choice([i for i, byte in enumerate(data) if byte in b"0123456789"])
    data[place] = ord("0") + (data[place] - ord("0") + rng.randint(1, 9)) % 10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", RESULTS)
def test_results_with_a_changed_digit_are_refused_and_rebuilt(
    name: str, finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_one_digit_changed(folder / name, random.Random(0))
    for command in ("compare", "report"):
        sentence = answer([command, str(folder)], capsys, 2)
        assert f"{folder / name} is damaged" in sentence and f"`evenhand resume {folder}`" in sentence
    assert f"{folder / name} is damaged: the results are rebuilt" in answer(
        ["resume", str(folder), "--quiet"], capsys, 0
    )
    assert results(folder) == results(finished)
    assert answer(["compare", str(folder)], capsys, 0) == ""


@pytest.mark.parametrize("damage", ["{", "{}", '{"config.json": 5}', None])
def test_damaged_checksums(
    damage: str | None, finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "checksums.json"
    if damage is None:
        sums = json.loads(path.read_text())
        del sums["params.npz"]
        damage = json.dumps(sums)
    path.write_text(damage)
    assert "checksums.json is damaged" in answer(["compare", str(folder)], capsys, 2)
    assert "checksums.json is damaged" in answer(["resume", str(folder), "--quiet"], capsys, 0)
    assert results(folder) == results(finished)


def test_an_edited_configuration_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 6'))
    assert f"{path} was changed after" in answer(["compare", str(folder)], capsys, 0)
    assert f"{path} was changed" in answer(["report", str(folder), "--out", str(folder / "x")], capsys, 0)
    assert main(["resume", str(folder)]) == 0
    assert f"{path} was changed since it was written: the new settings apply." in capsys.readouterr().err
    assert answer(["compare", str(folder)], capsys, 0) == ""


def test_a_folder_of_an_earlier_version_is_read_with_a_remark(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no checksums.json (an earlier version" in answer(["compare", str(old)], capsys, 0)
    assert answer(["resume", str(old), "--rounds", "6", "--quiet"], capsys, 0) == ""
    assert answer(["compare", str(old)], capsys, 0) == ""


def test_a_run_without_results_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sums = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({"config.json": sums["config.json"]}))
    assert "has no results yet" in answer(["compare", str(folder)], capsys, 2)
    (folder / "checksums.json").unlink()
    (folder / "summary.json").unlink()
    assert "has no results yet" in answer(["report", str(folder)], capsys, 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("clients.csv", b"client,train_rows\n\xff\xfe,3\n"),
        ("clients.csv", b"\0"),
        ("clients.csv", b"client,train_rows\n" + b'"' + b"x" * 200_000),
        ("config.json", b"\xff"),
        ("config.json", b" " * 2**24 + b"{}"),
        ("metrics.jsonl", b"[1, 2]\n"),
        ("metrics.jsonl", b'{"round": [0]}\n'),
        ("metrics.jsonl", b'{"round": 0, "train_loss": NaN}\n'),
        ("metrics.jsonl", b'{"train_loss": 1}\n'),
        ("metrics.jsonl", b'{"round": 1' + b"0" * 400 + b"}\n"),
        ("summary.json", b'{"rounds": ' + b"[" * 100_000),
    ],
)
def test_malformed_files(name: str, damage: bytes, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (old / name).write_bytes(damage)
    for command in ("compare", "report"):
        assert name in answer([command, str(old)], capsys, 2)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("config.json", "versions"),
        ("config.json", "versions.jax"),
        ("config.json", "method"),
        ("config.json", "options"),
        ("config.json", "options.seed"),
        ("config.json", "data"),
        ("config.json", "data.name"),
        ("config.json", "data.fingerprint"),
        ("summary.json", "rounds"),
        ("summary.json", "cohort"),
        ("summary.json", "interrupted"),
        ("summary.json", "seconds"),
        ("summary.json", "seconds.train"),
        ("summary.json", "examples_per_second"),
        ("summary.json", "padded"),
    ],
)
def test_values_of_another_type(name: str, path: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads((old / name).read_text())
    *outer, last = path.split(".")
    within = value[outer[0]] if outer else value
    within[last] = [5]
    (old / name).write_text(json.dumps(value))
    sentence = answer(["compare", str(old)], capsys, 2)
    assert f"{old / name} is not what `evenhand run` writes ({path.replace('.jax', '.*')} is [5])" in (
        sentence.replace(f"{path} is", f"{path.replace('.jax', '.*')} is").replace(
            "seconds.* is", f"{path} is"
        )
    )


def damaged(path: Path, rng: random.Random) -> None:
    """Changes a bit, a digit or a value of the file, cuts off its end, or removes it."""
    data = path.read_bytes()
    match rng.choice(("bit", "digit", "end", "value", "all")):
        case "bit":
            place = rng.randrange(len(data))
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :])
        case "digit" if re.search(rb"\d", data):
            with_one_digit_changed(path, rng)
        case "value" if found := list(
            re.finditer(rb'"[^"]*"|-?\d+(\.\d+)?|true|false|null|\{[^{}]*\}', data)
        ):
            match = rng.choice(found)
            path.write_bytes(data[: match.start()] + rng.choice(ODD).encode() + data[match.end() :])
        case "all":
            path.unlink()
        case _:
            path.write_bytes(data[: rng.randrange(len(data))])


def test_whatever_is_damaged_no_other_numbers_are_shown_or_written(
    finished: Path, tmp_path: Path, thorough: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path.relative_to(finished) for path in finished.rglob("*") if path.is_file())
    files.remove(Path("report.html"))
    assert main(["compare", str(finished)]) == 0
    table = capsys.readouterr().out
    for seed in range(300 if thorough else 12):
        rng = random.Random(seed)
        folder = Path(shutil.copytree(finished, tmp_path / str(seed) / "run"))
        (folder / "report.html").unlink()  # so that resume reads the checkpoint
        name = rng.choice(files)
        damaged(folder / name, rng)
        is_config = name == Path("config.json")
        code = main(["compare", str(folder)])
        shown = capsys.readouterr()
        assert code in (0, 2) and shown.err.count("\n") == (1 if code else len(shown.err) > 0), (seed, name)
        assert code or is_config or shown.out == table, (seed, name)
        assert code or not is_config or "was changed after" in shown.err, (seed, name)
        code = main(["resume", str(folder), "--quiet"])
        shown = capsys.readouterr().err
        assert code in (0, 2) and shown.count("\n") <= 1, (seed, name, shown)
        assert code or is_config or results(folder) == results(finished), (seed, name)
        shutil.rmtree(folder)


def test_whatever_is_damaged_in_an_old_folder_is_one_sentence(
    finished: Path, tmp_path: Path, thorough: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(300 if thorough else 20):
        rng = random.Random(seed)
        folder = Path(shutil.copytree(finished, tmp_path / str(seed) / "run"))
        (folder / "checksums.json").unlink()
        damaged(folder / rng.choice(READ), rng)
        for words in (["compare", str(folder)], ["resume", str(folder), "--rounds", "1"]):
            code = main(words)
            shown = capsys.readouterr().err
            assert code in (0, 2) and shown.count("\n") == (1 if code else len(shown) > 0), (seed, shown)
        shutil.rmtree(folder)


STUDY = [
    "study",
    "fedavg",
    "--data",
    "synthetic:1,1",
    "--clients",
    "3",
    "--cohort",
    "2",
    "--rounds",
    "4",
    "--quiet",
]
STUDY += ["--seeds", "2", "--lr", "0.1,0.2,0.3", "--halving", "2", "--eval-every", "2", "--checkpoint", "0"]
DERIVED = {".html", ".csv", ".md", ".tex"}
"""Endings of what a study writes anew at each start, and never reads."""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a study that has ended, and one that was interrupted in its last rounds."""
    place = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenhand.studies._report.page", lambda *contents: "page")
        assert main([*STUDY, "--out", str(place / "whole")]) == 0
        iterate, seen = _columns.iterate_many, iter(range(1000))

        def stopped(jobs: Sequence[Job], wanted: Sequence[int]) -> Iterator[Any]:
            for result in iterate(jobs, wanted):
                if next(seen) == 14:
                    raise KeyboardInterrupt
                yield result

        patch.setattr(_columns, "iterate_many", stopped)
        assert main([*STUDY, "--out", str(place / "half")]) == 130
    assert list((place / "half").glob("runs/*/checkpoint/[0-9]*"))
    return place / "whole", place / "half"


def of_study(folder: Path) -> dict[str, Any]:
    """Its results, without what depends on the clock."""
    found = {}
    for path in folder.glob("runs/*/result.json"):
        value = json.loads(path.read_text())
        for name in ("seconds", "examples_per_second"):
            del value["view"]["info"][name]
        found[path.parent.name] = {name: part for name, part in value.items() if name != "sha256"}
    return found


def _outcome(
    path: Path, words: list[str], same: Callable[[], bool], capsys: pytest.CaptureFixture[str]
) -> str:
    """What becomes of a command after damage: it is refused, or reported, or changes no number."""
    capsys.readouterr()
    code = main(words)
    shown = capsys.readouterr().err
    assert code in (0, 2) and "Traceback" not in shown, (path, shown)
    if code == 2:
        assert "damaged" in shown.splitlines()[-1], (path, shown)
        return "refused"
    if path.name == "config.json":
        assert "was changed" in shown, path
        return "reported"
    assert same(), f"a digit of {path} changed a number, and nothing was said"
    return "the same numbers"


def test_one_changed_digit_in_a_folder_changes_no_number_silently(
    finished: Path,
    studies: tuple[Path, Path],
    tmp_path: Path,
    thorough: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 digits over all files that are read, a sample of them in the usual suite: three folders, file by file in turn.

    A run is compared and resumed from its checkpoint; a study is loaded, if it has ended, and started again.  What a
    command shows or writes afterwards is what it was, or a sentence says what is damaged or was changed.
    """
    monkeypatch.setattr("evenhand.studies._report.page", lambda *contents: "page")
    whole, half = studies
    assert main(["compare", str(finished)]) == 0
    table, numbers, settings = capsys.readouterr().out, of_study(whole), (whole / "settings.csv").read_text()
    rng, outcomes = random.Random(36), Counter[tuple[str, str]]()
    folders = {"run": finished, "whole": whole, "half": half}
    files = {kind: _files(folder, rng) for kind, folder in folders.items()}
    order = [
        (kind, path)
        for row in zip_longest(*([(k, p) for p in f] for k, f in files.items()))
        for kind, path in filter(None, row)
    ]
    picked = [order[i % len(order)] for i in range(60)]
    for number, (kind, name) in enumerate(picked if thorough else rng.sample(picked, 12)):
        folder = Path(shutil.copytree(folders[kind], tmp_path / str(number) / "run"))
        with_one_digit_changed(folder / name, rng)
        path = folder / name
        if kind == "run":
            (folder / "report.html").unlink()  # so that resume reads the checkpoint
            capsys.readouterr()
            code = main(["compare", str(folder)])
            shown = capsys.readouterr()
            assert code == 2 or name.name == "config.json" or shown.out == table, name
            before = "refused" if code == 2 else ""
            words = ["resume", str(folder), "--quiet"]
            after = _outcome(path, words, lambda of=folder: results(of) == results(finished), capsys)
            outcome = f"{before or 'shown'}, then {after if after != 'the same numbers' or not before else 'rebuilt'}"
        else:
            if kind == "whole" and _loads(folder):
                assert eh.studies.load(folder).export(folder / "x.csv").read_text() == settings, name
            words = [*STUDY, "--out", str(folder)]
            outcome = _outcome(path, words, lambda of=folder: of_study(of) == numbers, capsys)
        outcomes[(f"{kind}: {re.sub(r'[0-9a-f]{8,}|[0-9]+', 'N', name.name)}", outcome)] += 1
        shutil.rmtree(folder)
    lines = [f"{file}: {outcome}: {count}\n" for (file, outcome), count in sorted(outcomes.items())]
    (tmp_path / "outcomes.txt").write_text("".join(lines))
    assert sum("refused" in outcome for _, outcome in outcomes) >= 2


def _files(folder: Path, rng: random.Random) -> list[Path]:
    """Those in which there is a digit and which are read again, in some order."""
    paths = [path for path in folder.rglob("*") if path.is_file() and re.search(rb"\d", path.read_bytes())]
    kept = [path.relative_to(folder) for path in sorted(paths)]
    derived = {folder / name for name in kept if name.suffix in DERIVED and name.name != "clients.csv"}
    kept = [name for name in kept if folder / name not in derived]
    rng.shuffle(kept)
    return kept


def _loads(folder: Path) -> bool:
    try:
        eh.studies.load(folder)
    except eh.EvenhandError as error:
        words = str(error)
    else:
        return True
    assert "damaged" in words
    return False


@pytest.mark.parametrize("name", ["config.json", "clients.csv", "params.npz", "results.npz", "summary.json"])
def test_a_full_disk_is_named_and_the_run_resumes(
    name: str,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    out = tmp_path / "run"
    monkeypatch.setattr(os, "replace", full)
    sentence = answer([*RUN, "--rounds", "4", "--out", str(out)], capsys, 2)
    assert sentence == f"evenhand: {out / name} could not be written: No space left on device.\n"
    assert not list(out.glob(".*"))
    monkeypatch.setattr(os, "replace", replace)
    if name != "config.json":
        assert answer(["resume", str(out), "--quiet"], capsys, 0) == ""
        assert results(out) == results(finished)


def test_a_full_disk_names_the_page_and_not_its_temporary_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, out = os.replace, tmp_path / "run"

    def full(source: Path, target: Path) -> None:
        if "report.html" in Path(target).name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr("evenhand.cli._run.write_report", eh.report.write_report)
    monkeypatch.setattr("evenhand.report.page.page", lambda *subject: "page")
    monkeypatch.setattr(os, "replace", full)
    sentence = answer([*RUN, "--rounds", "2", "--out", str(out)], capsys, 2)
    place = f"could not be written to {out / 'report.html'} (No space left on device)."
    assert sentence == f"evenhand: The page {place}\n"
    assert not list(out.glob(".*"))
    monkeypatch.setattr(os, "replace", replace)
    assert answer(["resume", str(out), "--quiet"], capsys, 0) == ""
    assert (out / "report.html").read_text() == "page"


def test_files_that_may_not_grow(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The system itself refuses: in a separate process, no file may grow to the size of a checkpoint."""
    program = (
        "import resource, sys; from evenhand.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2500, resource.RLIM_INFINITY)); sys.exit(main(sys.argv[1:]))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(evenhand.__file__).parents[1]),
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1"),
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # which would be a file that may not grow, too
    }
    out = tmp_path / "run"
    words = [sys.executable, "-c", program, *RUN, "--rounds", "4", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"evenhand: The state after round 2 could not be saved in {out}")
    assert done.stderr.count("\n") == 1
    assert answer(["resume", str(out), "--quiet"], capsys, 0) == ""
    assert results(out) == results(finished)


def test_a_folder_that_is_deleted_during_a_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a"

    def deleted(folder: Path, history: Any) -> None:
        shutil.rmtree(folder)
        append(folder, history)

    append = folder_module.append_metrics
    monkeypatch.setattr("evenhand.simulation.folder.append_metrics", deleted)
    words = ["--data", "digits", "--rounds", "2", "--quiet", "--checkpoint", "off", "--out", str(out)]
    assert main(["run", "fedavg", *words]) == 2
    assert capsys.readouterr().err.startswith(
        f"evenhand: {out} was moved or deleted while it was being written"
    )
