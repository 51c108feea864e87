"""Run folders and study folders read back alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.cli._folder import CONFIG
from evenhand.cli._saved import SavedRun, load_run
from evenhand.errors import EvenhandError
from evenhand.report import RunView
from evenhand.studies import load

__all__ = ["load_saved", "load_views", "study_in"]


def study_in(folder: Path) -> bool:
    """Whether a folder was written by ``evenhand study``, rather than by ``evenhand run``.

    Raises:
      EvenhandError: there is no such folder, or it is that of a study that has not ended.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise EvenhandError(f"{folder} {what}: name a folder that `evenhand run` or `evenhand study` wrote.")
    if (folder / "study.json").is_file():
        return True
    if (folder / "runs").is_dir() and not (folder / CONFIG).is_file():
        raise EvenhandError(
            f"{folder} is a study that is still running or was stopped, so it has no results yet: wait until it ends, "
            "or run the same `evenhand study` command again to finish it."
        )
    return False


def load_saved(folder: Path) -> list[SavedRun]:
    """The run in a folder; the runs of a study at the chosen setting of each method.

    Raises:
      EvenhandError: there are no results, or the study has several conditions.
    """
    if not study_in(folder):
        return [load_run(folder)]
    found = load(folder)
    if len(found.cases) > 1:
        raise EvenhandError(
            f"{folder} is a study under {len(found.cases)} conditions, which are not comparable: see its study.html."
        )
    methods = [line.method for line in found.table() if line.setting is not None]
    methods.sort(key=lambda method: method != found.baseline)  # the others are compared with the first
    return [
        SavedRun(folder, view, interrupted=False, fingerprint=str(view.info.get("fingerprint", "")))
        for method in methods
        for view in found.views(method)
    ]


def load_views(folders: Sequence[Path]) -> tuple[list[RunView], list[str]]:
    """The runs in these folders, and what a reader of the numbers should know about them."""
    saved = [run for folder in folders for run in load_saved(folder)]
    return [run.view for run in saved], [sentence for run in saved for sentence in run.remarks]
