"""What a study finds: which settings were chosen, how well they serve the clients, and which differences are real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import OF_THE_DATA, Finding, least_pairs, unmeasured
from evenhand.report import RunView, headline_split, undefined_sentence
from evenhand.studies._selection import Choice, Outcome, Rule, Setting, choose
from evenhand.studies._store import Store, write
from evenhand.studies._tables import (
    Line,
    Tried,
    alike,
    as_csv,
    as_latex,
    as_markdown,
    method_lines,
    methods_csv,
    methods_latex,
    methods_markdown,
    row,
    summed_up,
)

if TYPE_CHECKING:
    from evenhand.studies._report import Figures

__all__ = ["Study", "load", "save"]


@dataclass(frozen=True, repr=False)
class Study:
    """The runs of a study, and what they show.

    Attributes:
      outcomes: all runs, method by method, setting by setting, seed by seed.
      rule: how each method's setting is chosen.
      baseline: the method that the others are compared with.
      metric: what the statistics are of, ``"accuracy"`` or ``"loss"``.
      notes: what a reader must know about how the study was made, in sentences.
      about: what all runs have in common, such as the number of rounds, by name.
      tuning_seeds: the seeds whose runs choose, and are not reported; none: all runs choose, and all are reported.
    """

    outcomes: tuple[Outcome, ...]
    rule: Rule
    baseline: str
    metric: str
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = ()

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
        seen = [each.seen for each in self.outcomes if each.seen is not None]
        chooses = len(self.tried) > len(self.methods) * len(self.cases)
        reader = "by which settings were chosen"
        missing = undefined_sentence(seen, self.rule.split, self.metric, reader) if seen and chooses else ""
        return (
            *self.notes,
            *filter(None, [missing]),
            *_remarks(self.outcomes, self.baseline, self.choices, self.rule.split, self.tuning_seeds),
        )

    def under(self, case: Mapping[str, str]) -> Study:
        """The part of the study under one of its conditions, such as ``{"attack": "flip"}``.

        Raises:
          EvenhandError: there is no such condition.
        """
        if dict(case) not in [dict(each) for each in self.cases]:
            raise EvenhandError(
                f"There is no condition {dict(case)}: choose one of {[dict(each) for each in self.cases]}."
            )
        inside = tuple(each for each in self.outcomes if dict(each.setting.case) == dict(case))
        return replace(self, outcomes=inside)

    def at(self, seed: int) -> Study:
        """The part of the study with one of its seeds, where settings are chosen by that seed alone.

        With seeds for tuning, settings are chosen by these as before.

        Raises:
          EvenhandError: there is no such seed, or it is one for tuning.
        """
        seeds = sorted({each.seed for each in self._reported})
        if seed not in seeds:
            raise EvenhandError(f"at({seed}): choose one of {seeds}.")
        inside = (each for each in self.outcomes if each.seed == seed or each.seed in self.tuning_seeds)
        return replace(self, outcomes=tuple(inside))

    def best(self, method: str | None = None) -> Setting:
        """The chosen setting of a method; of the best of all methods, by the same rule, if none is named.

        Raises:
          EvenhandError: there is no such method, all of its runs diverged or failed, or the study has several
            conditions.
        """
        within = self._condition()
        if method is not None and method not in self.methods:
            raise EvenhandError(f"best({method!r}): there is no such method{perhaps(method, self.methods)}.")
        if method is None:
            sound = [each.setting for each in self.choices.values() if each is not None]
            runs = {setting: _seen(setting, self._tuning) for setting in sound}
            choice = choose(runs, self.rule, self.metric, self._near(within))
        else:
            choice = self.choices[method, within]
        if choice is None and method is None and any(self.choices.values()):
            raise EvenhandError(
                "best(): there were no examples by which the methods could be compared: name one of them."
            )
        if choice is None:
            raise EvenhandError(
                f"best({method!r}): each of its settings diverged or failed in some run, or has no {self.rule.split} "
                f"{self.metric} to be chosen by."
            )
        return choice.setting

    def table(self, split: str | None = None) -> list[Line]:
        """A line for each method, at its chosen setting, compared with the baseline at equal seeds.

        Where there are several conditions, it has the lines of each of them.

        Args:
          split: where the statistics are from; None: the test examples, where there are any.
        """
        if split is None:
            split = headline_split([each.seen for each in self._reported if each.seen], self.metric)
        return [
            line
            for case in self.cases
            for line in method_lines(
                {
                    method: None if choice is None else (choice.setting, self._views(choice.setting))
                    for method in self.methods
                    for choice in [self.choices[method, str(case)]]
                },
                self.baseline,
                case,
                split,
                self.metric,
            )
        ]

    @cached_property
    def tried(self) -> tuple[Tried, ...]:
        """Every setting, with what its runs came to, in the order of the runs; with seeds for tuning, their runs."""
        by_setting: dict[Setting, list[Outcome]] = {}
        for each in self._tuning:
            by_setting.setdefault(each.setting, []).append(each)
        chosen = {str(each.setting) for each in self.choices.values() if each is not None}
        return tuple(
            summed_up(setting, of, str(setting) in chosen, self.metric) for setting, of in by_setting.items()
        )

    @property
    def figures(self) -> Figures:
        """Its figures: ``study.figures.plane()``, ``study.figures.sensitivity("lr")``, ...

        Raises:
          EvenhandError: the study has several conditions.
        """
        from evenhand.studies._report import Figures  # it loads matplotlib, which takes long

        self._condition()
        return Figures(self.tried, self.metric, self.rule.split, self.rule.statistic, self._chosen_runs())

    def frame(self) -> Any:
        """One row per run: method, seed, status, each hyper-parameter, and ``<split>_<statistic>`` of each split.

        For each of ``study(metrics=...)`` also ``<split>_<metric>_<statistic>``, such as ``test_auc_mean``: the mean,
        ``worst10``, ``best10`` and ``clients``, the number of clients that have the metric.  Of a study with seeds for
        tuning also ``tuning``: whether the run only chose.

        A pandas or polars data frame if one of them is installed, else a dict of arrays.
        """
        axes = list(dict.fromkeys(name for each in self.outcomes for name in each.setting.numbers))
        cases = list(dict.fromkeys(name for each in self.outcomes for name in each.setting.case))
        rows = [row(each, axes, cases, self.metric) for each in self.outcomes]
        if self.tuning_seeds:
            rows = [{**row, "tuning": row["seed"] in self.tuning_seeds} for row in rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: alike([row.get(name, float("nan")) for row in rows]) for name in names}
        try:
            import pandas as frames
        except ImportError:
            try:
                import polars as frames
            except ImportError:
                return {name: np.array(values) for name, values in columns.items()}
        return frames.DataFrame(columns)

    def views(self, method: str) -> list[RunView]:
        """The runs of a method at its chosen setting, titled by the method's name: what reports and figures take."""
        return [run._replace(title=method) for run in self._views(self.best(method))]

    def export(self, path: str | Path, of: Literal["settings", "methods"] = "settings") -> Path:
        """Writes a table: CSV, Markdown or LaTeX, by the ending ``.csv``, ``.md`` or ``.tex``.

        Args:
          path: the file.
          of: all settings; or the methods at their chosen ones, with their differences to the baseline.

        Raises:
          EvenhandError: another ending, or another table.
        """
        path = Path(path)
        tables: dict[str, tuple[Any, ...]] = {
            "settings": (self.tried, as_csv, as_markdown, as_latex),
            "methods": (self.table(), methods_csv, methods_markdown, methods_latex),
        }
        if of not in tables:
            raise EvenhandError(f"export(of={of!r}): give 'settings' or 'methods'.")
        rows, csv, markdown, latex = tables[of]
        texts = {
            ".csv": csv,
            ".md": partial(markdown, metric=self.metric),
            ".tex": partial(latex, metric=self.metric),
        }
        if (text := texts.get(path.suffix)) is None:
            raise EvenhandError(f"export({str(path)!r}): give a name that ends in .csv, .md or .tex.")
        write(path, text(rows), f"The table {path.name}")
        return path

    def report(self, path: str | Path) -> Path:
        """Writes one self-contained HTML page: what was chosen, the differences, all settings; returns its path.

        Methods of which each setting diverged or failed are in its tables only.
        """
        from evenhand.studies._report import (
            Contents,
            page,
        )  # matplotlib takes long to load; only a report needs it

        def contents(of: Study) -> Contents:
            return Contents(
                outcomes=of.outcomes,
                rule=of.rule,
                baseline=of.baseline,
                metric=of.metric,
                about=of.about,
                remarks=of.remarks,
                tuning_seeds=of.tuning_seeds,
                lines=of.table(),
                tried=of.tried,
                runs={} if of.cases[1:] else of._chosen_runs(),
            )

        text = page(contents(self), [(case, contents(self.under(case))) for case in self.cases])
        path = Path(path)
        write(path, text, "The page")
        return path

    def __repr__(self) -> str:
        done = sum(each.status == "done" for each in self.outcomes)
        tried = len({str(each.setting) for each in self.outcomes})
        return f"Study({len(self.methods)} methods, {tried} settings, {len(self.outcomes)} runs, {done} of them sound)"

    @cached_property
    def choices(self) -> Mapping[tuple[str, str], Choice | None]:
        """``(method, condition)`` -> what was chosen; None where no setting is sound."""
        found: dict[tuple[str, str], Choice | None] = {}
        for case in self.cases:
            for method in self.methods:
                near = () if method == self.rule.near else self._near(str(case))
                found[method, str(case)] = choose(self._sound(method, case), self.rule, self.metric, near)
        return found

    def _near(self, case: str) -> Sequence[RunView]:
        """The runs that the rule wants others to be close to, if it does."""
        name = self.rule.near
        of = next((each for each in self.cases if str(each) == case), {})
        choice = None if name is None else choose(self._sound(name, of), self.rule, self.metric)
        return () if choice is None else _seen(choice.setting, self._tuning)

    def _sound(self, method: str, case: Mapping[str, str]) -> dict[Setting, list[RunView]]:
        """The runs of each setting of a method; none where one of them failed or was stopped."""
        mine = [
            each
            for each in self._tuning
            if each.setting.method == method and str(each.setting.case) == str(case)
        ]
        lost = {each.setting for each in mine if each.status in ("failed", "stopped")}
        runs: dict[Setting, list[RunView]] = {each.setting: [] for each in mine}
        for each in mine:
            if each.seen is not None and each.setting not in lost:
                runs[each.setting].append(each.seen)
        return runs

    @property
    def _tuning(self) -> list[Outcome]:
        """The runs that choose."""
        apart = self.tuning_seeds
        return [each for each in self.outcomes if not apart or each.seed in apart]

    @property
    def _reported(self) -> list[Outcome]:
        """The runs that are compared."""
        return [each for each in self.outcomes if each.seed not in self.tuning_seeds]

    def _views(self, setting: Setting) -> list[RunView]:
        """The runs of a setting that are compared."""
        return _seen(setting, self._reported)

    def _chosen_runs(self) -> dict[str, list[RunView]]:
        """Method -> its runs that are compared, where a setting was chosen; of a single condition."""
        choices = {method: self.choices[method, self._condition()] for method in self.methods}
        return {name: self._views(choice.setting) for name, choice in choices.items() if choice is not None}

    def _condition(self) -> str:
        """The only condition, by which choices are known."""
        first, *others = self.cases
        if others:
            raise EvenhandError(
                f"This study has {1 + len(others)} conditions: choose one, as in study.under({dict(first)})."
            )
        return str(first)


def _seen(setting: Setting, outcomes: Sequence[Outcome]) -> list[RunView]:
    """The runs of a setting among these, except for those that failed."""
    return [each.seen for each in outcomes if str(each.setting) == str(setting) and each.seen is not None]


# --- what a reader must know ----------------------------------------------------------------------------------


def _remarks(
    outcomes: Sequence[Outcome],
    baseline: str,
    choices: Mapping[tuple[str, str], Choice | None],
    split: str,
    tuning_seeds: Sequence[int],
) -> Iterator[str]:
    """Remarks, in sentences.

    Args:
      outcomes: all runs.
      baseline: the method that the others are compared with.
      choices: ``(method, condition)`` -> what was chosen.
      split: the examples by which settings are chosen.
      tuning_seeds: the seeds that only choose.
    """
    views = [each.view for each in outcomes if each.view is not None]
    for kind in OF_THE_DATA:
        yield from _once([next((x for x in view.findings if x.kind == kind), None) for view in views])
    if len({str(each.setting) for each in outcomes}) > len(choices):
        yield from _once([_without_a_say(each, split) for each in outcomes if each.view is not None])
    if any(view.malicious is not None for view in views):
        yield "Under attack, clients are the honest ones, also for the choice and in curves by round."
    yield from _on_the_comparison(outcomes, baseline, choices, tuning_seeds)
    for choice in choices.values():
        yield from () if choice is None else choice.remarks
    for words in ("diverged", "failed"):
        if bad := [each for each in outcomes if each.status == words]:
            yield f"{len(bad)} of {len(outcomes)} runs {words}; the first is {_first(bad)}"
    if bad := [each for each in outcomes if each.status == "done" and each.reason]:
        runs = f"{len(bad)} of {len(outcomes)} runs have test numbers that are not finite"
        yield f"{runs}, which has no say in the choice; the first is {_first(bad)}"
    if stopped := sum(each.status == "stopped" for each in outcomes):
        yield f"{stopped} of {len(outcomes)} runs were stopped early, as asked; none of them can be chosen."


def _once(findings: Sequence[Finding | None]) -> Iterator[str]:
    """What several runs have found, in one sentence: the first, and how many have it where not all of them do."""
    sentences = [finding.sentence for finding in findings if finding is not None]
    if sentences:
        is_same = len(set(sentences)) == 1 and len(sentences) == len(findings)
        runs = (
            f"{len(sentences)} of {len(findings)}"
            if len(sentences) < len(findings)
            else f"all {len(findings)}"
        )
        yield sentences[0] + ("" if is_same else f" (In {runs} runs; the numbers are those of the first.)")


def _without_a_say(outcome: Outcome, split: str) -> Finding | None:
    """The clients that have no examples by which settings are chosen."""
    seen = outcome.seen
    if split != "valid" or seen is None:
        return None
    return unmeasured(seen.sizes, split=split, noun="client" if seen.whole is None else "honest client")


def _first(outcomes: Sequence[Outcome]) -> str:
    return f"{outcomes[0].setting}, seed {outcomes[0].seed}: {outcomes[0].reason}"


def _on_the_comparison(
    outcomes: Sequence[Outcome],
    baseline: str,
    choices: Mapping[tuple[str, str], Choice | None],
    tuning_seeds: Sequence[int],
) -> Iterator[str]:
    """Where it is less than it seems."""
    tried: dict[str, set[str]] = {}
    for each in outcomes:
        tried.setdefault(each.setting.method, set()).add(str(each.setting))
    if len(set(map(len, tried.values()))) > 1:
        counts = ", ".join(f"{method} {len(of)}" for method, of in tried.items())
        yield f"The methods were not tuned equally: settings tried were {counts}."
    sound = {method for (method, _), choice in choices.items() if choice is not None}
    if sound and baseline in tried and baseline not in sound:
        yield f"{baseline}, which the others are compared with, has no sound setting: name another baseline."
    if len(tried) > 1 and len({each.seed for each in outcomes} - set(tuning_seeds)) == 1:
        yield f"One seed each proves little: give at least {least_pairs()}."


# --- its folder -----------------------------------------------------------------------------------------------


def save(study: Study, store: Store) -> Study:
    """Lists the study's runs in its folder; returns it with a note on files of an earlier version that were read."""
    study = _with_remark(study, store)
    how: dict[str, Any] = {"rule": study.rule, "baseline": study.baseline, "metric": study.metric}
    how |= {"notes": study.notes, "about": study.about}
    how |= {"tuning_seeds": study.tuning_seeds} if study.tuning_seeds else {}
    store.describe(study.outcomes, how)
    return study


def load(folder: str | Path) -> Study:
    """The study that ``study(..., folder=...)`` has written; hyper-parameters that are no constants come as text.

    Raises:
      EvenhandError: there is no study, it has not ended, or a file is damaged.
    """
    store = Store(Path(folder))
    return _with_remark(Study(**store.described()), store)


def _with_remark(study: Study, store: Store) -> Study:
    remark = store.remark()
    return replace(study, notes=tuple(dict.fromkeys((*study.notes, remark)))) if remark else study
