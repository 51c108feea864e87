"""``evenhand figures``: the figures of saved runs, or of a study, as files for a paper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from evenhand.cli._results import load_views, study_in
from evenhand.cli._terminal import remark
from evenhand.errors import EvenhandError
from evenhand.report import figures
from evenhand.studies import load
from evenhand.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Figures"]

_NARROWEST, _WIDEST = 1.0, 20.0


@dataclass(frozen=True)
class Figures:
    """Write the figures of runs, or of a study, as files, and print their paths."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR DIR ...")] = ()
    """a folder written by `evenhand study`, or folders written by `evenhand run`"""
    format: Literal["pdf", "svg", "png"] = "pdf"
    """the kind of file"""
    width: float = 3.3
    """inches; 3.3 is a column of most papers, 6.8 a page"""
    out: Annotated[
        Path | None, arg(metavar="DIR", help_behavior_hint="(default: figures in the first folder)")
    ] = None
    """where to write them"""

    def execute(self) -> int:
        """Writes the files and returns the exit code."""
        if not self.runs:
            raise EvenhandError("There is nothing to draw: name folders, e.g. `evenhand figures studies/a`.")
        if not _NARROWEST <= self.width <= _WIDEST:
            raise EvenhandError(f"--width {self.width}: give inches, from {_NARROWEST:g} to {_WIDEST:g}.")
        out = self.runs[0] / "figures" if self.out is None else self.out
        from evenhand.report.draw import fit  # matplotlib takes long to load

        drawn = self._drawn()
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            fit(figure, self.width)
            path = out / f"{name}.{self.format}"
            dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[self.format]
            figure.savefig(path, dpi=300, metadata=dated)
            print(visible(path))
        return 0

    def _drawn(self) -> dict[str, Figure]:
        """File name without its ending -> figure."""
        if len(self.runs) == 1 and study_in(self.runs[0]):
            found = load(self.runs[0])
            return {
                re.sub(r"[^\w.=+-]+", "-", "-".join([name, *case.values()])): figure
                for case in found.cases
                for name, figure in found.under(case).figures.all().items()
            }
        views, remarks = load_views(self.runs)
        for sentence in remarks:
            remark(sentence)
        return {
            "learning_curve": figures.learning_curve(views),
            "client_curve": figures.client_curve(views),
            "client_histogram": figures.client_histogram(views),
            "size_scatter": figures.size_scatter(views),
        }
