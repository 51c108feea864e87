"""What a study finds: which settings were chosen, how well they serve the clients, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import PairedDifference, column, holm, paired_difference
from evenhand.report import RunView, statistics, write_report
from evenhand.studies._outcome import Outcome
from evenhand.studies._plan import Setting
from evenhand.studies._select import Choice, Rule, choose

__all__ = ["Line", "Study"]


class Line(NamedTuple):
    """One line of a study's table: a method at its chosen setting.

    Attributes:
      setting: what was chosen; None where every setting diverged or failed.
      method: its name.
      case: the condition.
      values: statistic -> its value in each run, in the order of the seeds.
      differences: statistic -> paired difference to the baseline; empty for the baseline itself.
      p: statistic -> the p value of that difference, raised for the number of comparisons (Holm).
      gains: the clients that are better served than by the baseline at every seed, and those worse served at every
        seed; None where the runs do not have the same clients.
    """

    setting: Setting | None
    method: str
    case: Mapping[str, str]
    values: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
    differences: Mapping[str, PairedDifference]
    p: Mapping[str, float]
    gains: tuple[int, int] | None = None


@dataclass(frozen=True, repr=False)
class Study:
    """The runs of a study, and what they show.

    Attributes:
      outcomes: all runs, method by method, setting by setting, seed by seed.
      rule: how each method's setting is chosen.
      baseline: the method that the others are compared with.
      metric: what the statistics are of, ``"accuracy"`` or ``"loss"``.
      notes: what a reader must know about how the study was made, in sentences.
    """

    outcomes: tuple[Outcome, ...]
    rule: Rule
    baseline: str
    metric: str
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The methods' names."""
        return list(dict.fromkeys(each.setting.method for each in self.outcomes))

    @property
    def cases(self) -> list[Mapping[str, str]]:
        """The conditions; a single empty one where nothing but methods and numbers is varied."""
        return list({str(each.setting.case): each.setting.case for each in self.outcomes}.values())

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and remarks on the choices: ties, choices at the edge of a grid, runs that diverged or failed."""
        found = list(self.notes)
        views = [each.view for each in self.outcomes if each.view is not None]
        scales = (finding.sentence for view in views for finding in view.findings if finding.kind == "scales")
        found += dict.fromkeys(scales)
        for choice in self._choices.values():
            found += [] if choice is None else choice.remarks
        for status, words in (("diverged", "diverged"), ("failed", "failed")):
            bad = [each for each in self.outcomes if each.status == status]
            if bad:
                first = f"{bad[0].setting}, seed {bad[0].seed}: {bad[0].reason}"
                found.append(f"{len(bad)} of {len(self.outcomes)} runs {words}; the first is {first}")
        return tuple(found)

    def best(self, method: str | None = None, case: Mapping[str, str] | None = None) -> Setting:
        """The chosen setting of a method; of the best of all methods, by the same rule, if none is named.

        Raises:
          EvenhandError: there is no such method, or all of its runs diverged or failed.
        """
        within = self._case(case)
        if method is not None and method not in self.methods:
            raise EvenhandError(f"best({method!r}): there is no such method{perhaps(method, self.methods)}.")
        if method is None:
            sound = [
                each.setting
                for key, each in self._choices.items()
                if each is not None and key[1] == str(within)
            ]
            choice = choose({setting: self._views(setting) for setting in sound}, self.rule, self.metric)
        else:
            choice = self._choices[method, str(within)]
        if choice is None:
            raise EvenhandError(f"best({method!r}): each of its settings diverged or failed in some run.")
        return choice.setting

    def table(self, split: str = "test", case: Mapping[str, str] | None = None) -> list[Line]:
        """A line for each method, at its chosen setting, compared with the baseline at equal seeds.

        Args:
          split: where the statistics are from.
          case: the condition; None: the first.
        """
        within, names = self._case(case), ("mean", "worst10", "best10", "variance")
        base = self._choices.get((self.baseline, str(within)))
        lines: list[Line] = []
        for method in self.methods:
            choice = self._choices[method, str(within)]
            if choice is None:
                lines.append(Line(None, method, within, {}, {}, {}))
                continue
            runs = self._views(choice.setting)
            values = {
                name: np.array([statistics(run, split, self.metric)[name] for run in runs]) for name in names
            }
            differences, gains = dict[str, PairedDifference](), None
            if base is not None and method != self.baseline:
                other = self._views(base.setting)
                for name in names:
                    reference = [statistics(run, split, self.metric)[name] for run in other]
                    differences[name] = paired_difference(values[name], reference)
                gains = _gains(runs, other, split, self.metric)
            lines.append(Line(choice.setting, method, within, values, differences, {}, gains))
        return _corrected(lines)

    def frame(self) -> Any:
        """One row per run: method, seed, status, each hyper-parameter, and ``<split>_<statistic>`` of each split.

        A pandas or polars data frame if one of them is installed, else a dict of arrays.
        """
        axes = list(dict.fromkeys(name for each in self.outcomes for name in each.setting.numbers))
        cases = list(dict.fromkeys(name for each in self.outcomes for name in each.setting.case))
        rows = [_row(each, axes, cases, self.metric) for each in self.outcomes]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name, float("nan")) for row in rows] for name in names}
        try:
            import pandas as frames
        except ImportError:
            try:
                import polars as frames
            except ImportError:
                return {name: np.array(values) for name, values in columns.items()}
        return frames.DataFrame(columns)

    def views(self, method: str, case: Mapping[str, str] | None = None) -> list[RunView]:
        """The runs of a method at its chosen setting, titled by the method's name: what reports and figures take."""
        return [run._replace(title=method) for run in self._views(self.best(method, case))]

    def report(self, path: str | Path, case: Mapping[str, str] | None = None) -> Path:
        """Writes one self-contained HTML page that compares the methods at their chosen settings; returns its path.

        Methods of which each setting diverged or failed are not on it.
        """
        within = str(self._case(case))
        sound = [method for method in self.methods if self._choices[method, within] is not None]
        if not sound:
            raise EvenhandError(
                "report(): each setting of each method diverged or failed, so there is nothing to show."
            )
        return write_report(path, {method: self.views(method, case) for method in sound})

    def __repr__(self) -> str:
        done = sum(each.status == "done" for each in self.outcomes)
        tried = len({str(each.setting) for each in self.outcomes})
        return f"Study({len(self.methods)} methods, {tried} settings, {len(self.outcomes)} runs, {done} of them sound)"

    @cached_property
    def _choices(self) -> dict[tuple[str, str], Choice | None]:
        found: dict[tuple[str, str], Choice | None] = {}
        for case in self.cases:
            for method in self.methods:
                mine = [
                    each
                    for each in self.outcomes
                    if each.setting.method == method and str(each.setting.case) == str(case)
                ]
                failed = {str(each.setting) for each in mine if each.view is None}
                runs: dict[Setting, list[RunView]] = {}
                for each in mine:
                    if each.view is not None and str(each.setting) not in failed:
                        runs.setdefault(each.setting, []).append(each.view)
                found[method, str(case)] = choose(runs, self.rule, self.metric)
        return found

    def _views(self, setting: Setting) -> list[RunView]:
        return [
            each.view for each in self.outcomes if str(each.setting) == str(setting) and each.view is not None
        ]

    def _case(self, case: Mapping[str, str] | None) -> Mapping[str, str]:
        known = self.cases
        if case is None:
            return known[0]
        if dict(case) not in [dict(each) for each in known]:
            raise EvenhandError(
                f"There is no condition {dict(case)}: choose one of {[dict(each) for each in known]}."
            )
        return dict(case)


def _row(outcome: Outcome, axes: Sequence[str], cases: Sequence[str], metric: str) -> dict[str, Any]:
    setting, view = outcome.setting, outcome.view
    row: dict[str, Any] = {"method": setting.method, "seed": outcome.seed, "status": outcome.status}
    row |= {name: setting.case.get(name, "") for name in cases}
    row |= {name: setting.numbers.get(name, float("nan")) for name in axes}
    if view is not None:
        for split in view.clients:
            row |= {column(split, name): value for name, value in statistics(view, split, metric).items()}
    return row


def _gains(
    runs: Sequence[RunView], base: Sequence[RunView], split: str, metric: str
) -> tuple[int, int] | None:
    """How many clients are better served at every seed, and how many worse."""
    if len({tuple(run.client_ids) for run in (*runs, *base)}) > 1:
        return None
    pairs = [
        (run.clients[split][metric], other.clients[split][metric])
        for run, other in zip(runs, base, strict=True)
    ]
    differences = np.array([np.subtract(*pair) for pair in pairs])
    return int(np.sum(np.all(differences > 0, axis=0))), int(np.sum(np.all(differences < 0, axis=0)))


def _corrected(lines: Sequence[Line]) -> list[Line]:
    """The lines with p values for as many comparisons as there are."""
    names = {name for line in lines for name in line.differences}
    raised = {
        name: holm({line.method: line.differences[name].p for line in lines if name in line.differences})
        for name in names
    }
    return [line._replace(p={name: raised[name][line.method] for name in line.differences}) for line in lines]
