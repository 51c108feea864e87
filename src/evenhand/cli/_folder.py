"""The folders that commands write and read: a new one for a run, and those of runs and studies read back.

What is in a run folder is in :mod:`evenhand.simulation.folder`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from evenhand.cli._terminal import remark
from evenhand.errors import EvenhandError
from evenhand.records import LOCK, held
from evenhand.report import RunView
from evenhand.simulation import Checkpoint, load_run
from evenhand.simulation import folder as files
from evenhand.studies import load
from evenhand.text import quoted

PAGE = "study.html"


# --- folders that are new or free ---------------------------------------------------------------------------


def default_folder(root: str, *names: str) -> Path:
    """A folder that is called after a method, its data and the like."""
    return Path(root) / "-".join(re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names)


@contextmanager
def free(folder: Path, *, overwrite: bool) -> Generator[None]:
    """Locks a folder for a new run; one that is not empty is refused, unless it may be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise EvenhandError(f"--out {folder} is a file: name a folder that is new or empty.")
    with held(folder):
        if not overwrite and not _has_nothing(folder):
            is_run = (folder / files.CONFIG).exists()
            resume = f", or continue with `evenhand resume {quoted(folder)}`" if is_run else ""
            raise EvenhandError(
                f"--out {folder} is not empty: name another folder, or add --overwrite{resume}."
            )
        if not (folder / files.CONFIG).exists():
            foreign = [name for name in (files.PERSONAL, files.BEST) if (folder / name).exists()]
            foreign += [files.CHECKPOINT] if Checkpoint(folder / files.CHECKPOINT).saved() else []
            if foreign:
                raise EvenhandError(f"{folder / foreign[0]} was not written by `evenhand run`: move it away.")
        yield


def _has_nothing(folder: Path) -> bool:
    """Whether a folder has no more than a run makes before its first evaluation, which a kill leaves there."""
    place = folder / files.CHECKPOINT
    return all(path.name == LOCK or (path == place and path.is_dir()) for path in folder.rglob("*"))


def claim(folder: Path, *, checkpoint: bool) -> None:
    """Makes the folder; an earlier run's files in it are removed, all others stay.

    Args:
      folder: the run folder.
      checkpoint: whether the run keeps a checkpoint in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place, old = folder / files.CHECKPOINT, folder / f".{files.CHECKPOINT}.old"
    if old.is_dir():
        shutil.rmtree(old)
    is_ours = (folder / files.CONFIG).exists()  # else no run put these folders there
    personal = (files.PERSONAL, f".{files.PERSONAL}.part", f".{files.PERSONAL}.old")
    for name in (*personal, files.BEST) if is_ours else ():
        shutil.rmtree(folder / name, ignore_errors=True)
    if is_ours and place.is_dir():
        old.mkdir()
        for part in place.iterdir():
            if part.name != LOCK:
                os.replace(part, old / part.name)  # in one step: half a state must not pass for a state
    for name in files.FILES:
        (folder / name).unlink(missing_ok=True)
    if old.is_dir():
        shutil.rmtree(old)
    if checkpoint:
        place.mkdir(exist_ok=True)
    elif is_ours:
        shutil.rmtree(place, ignore_errors=True)


def refuse_file_of_run(path: Path) -> None:
    """Refuses to write something else over one of a run's own files."""
    if path.name in files.OWN and (path.parent / files.CONFIG).is_file():
        raise EvenhandError(f"--out {path} belongs to the run in {path.parent}: name another file.")


def check_page(path: Path) -> None:
    """Refuses to write a page over a file that is no page, or over one of a run's own files."""
    refuse_file_of_run(path)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(15).lower() != b"<!doctype html>":
                raise EvenhandError(f"--out {path} is there already, and is not a page: name another file.")


# --- run folders and study folders, read back ---------------------------------------------------------------


class Shown(NamedTuple):
    """A run of a run folder or of a study, to be shown.

    Attributes:
      folder: where it is.
      view: what reports show of it.
      interrupted: whether Ctrl-C ended it before its last round.
      remarks: what a reader of the numbers should know about the folder, in sentences.
    """

    folder: Path
    view: RunView
    interrupted: bool = False
    remarks: tuple[str, ...] = ()


def seed_folders(folder: Path) -> list[Path]:
    """The runs in the folder of a fit with several seeds, in the order of the seeds."""
    runs = [path for path in folder.glob("seed-*") if (path / files.CONFIG).is_file()]
    return sorted(runs, key=lambda path: (len(path.name), path.name))


def refuse_other(folder: Path, study: str) -> None:
    """Refuses a folder without a run; for a study's, the sentence says ``study``."""
    if not (folder / files.CONFIG).is_file():
        seeds = seed_folders(folder)
        other = "is not a run folder: name one that `evenhand run` wrote"
        if seeds:
            other = f"holds a run for each seed: name one, such as {seeds[0]}"
        elif folder.is_dir() and any(folder.iterdir()) and _has_nothing(folder):
            other = "is of a run before its first evaluation: if it was stopped, nothing is kept, so repeat its command"
        raise EvenhandError(f"{folder} {study if (folder / 'runs').is_dir() else other}.")


def study_in(folder: Path) -> bool:
    """Whether a folder was written by ``evenhand study``, rather than by ``evenhand run``.

    Raises:
      EvenhandError: there is no such folder, or it is that of a study that has not ended.
    """
    if not folder.is_dir():
        fault = "is not a folder" if folder.exists() else "does not exist"
        raise EvenhandError(f"{folder} {fault}: name a folder that `evenhand run` or `evenhand study` wrote.")
    if (folder / "study.json").is_file():
        return True
    if (folder / "runs").is_dir() and not (folder / files.CONFIG).is_file():
        raise EvenhandError(
            f"{folder} is a study that is still running or was stopped, so it has no results yet: wait until it ends, "
            "or run the same `evenhand study` command again to finish it."
        )
    return False


def load_saved(folders: Sequence[Path]) -> list[Shown]:
    """The runs in these folders; prints what a reader of the numbers should know about them.

    Raises:
      EvenhandError: there are no results, or a study has several conditions.
    """
    saved = [run for folder in folders for run in _saved(folder)]
    remark(*(sentence for run in saved for sentence in run.remarks))
    return saved


def _saved(folder: Path) -> list[Shown]:
    """The run in a folder; of a fit, that of each seed; of a study, those at the chosen setting of each method."""
    if not study_in(folder):
        if not (folder / files.CONFIG).is_file() and (seeds := seed_folders(folder)):
            return [run for seed in seeds for run in _saved(seed)]
        run = load_run(folder)
        return [Shown(folder, run.view(), run.interrupted, run.remarks)]
    study = load(folder)
    if len(study.cases) > 1:
        raise EvenhandError(
            f"{folder} is a study under {len(study.cases)} conditions, which are not comparable: see its study.html."
        )
    methods = [line.method for line in study.table() if line.setting is not None]
    methods.sort(key=lambda method: method != study.baseline)  # the others are compared with the first
    return [Shown(folder, view) for method in methods for view in study.views(method)]
