"""What a study finds: which settings were chosen, how well they serve the clients, and which differences are real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evenhand import notebook
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import OF_THE_DATA, SPLIT_NAMES, Finding, least_pairs, unmeasured
from evenhand.report import (
    STATISTICS,
    ReportPath,
    RunView,
    covered,
    direction,
    few_sentence,
    formatting,
    headline_split,
    undefined_sentence,
    worded,
)
from evenhand.studies import _tables
from evenhand.studies._selection import (
    Choice,
    Outcome,
    Rule,
    Setting,
    choose,
    condition,
    edge_remarks,
    only_case,
    seen,
)
from evenhand.studies._store import Store, write
from evenhand.studies._tables import Line, Tried
from evenhand.text import counted, listed

if TYPE_CHECKING:
    from evenhand.studies._report import Figures


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
        return list(dict.fromkeys(outcome.setting.method for outcome in self.outcomes))

    @property
    def cases(self) -> list[Mapping[str, str]]:
        """The conditions; a single empty one where nothing but methods and numbers is varied."""
        # By their texts, since a mapping has no hash.
        return list({str(outcome.setting.case): outcome.setting.case for outcome in self.outcomes}.values())

    @property
    def chooses(self) -> bool:
        """Whether some method was tried at several settings, so that there was something to choose."""
        return len(self.tried) > len(self.methods) * len(self.cases)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and remarks on the choices: ties, choices at the edge of a grid, runs that diverged or failed."""
        return (*self.notes, *_remarks(self))

    def under(self, case: Mapping[str, str]) -> Study:
        """The part of the study under one of its conditions, such as ``{"attack": "flip"}``.

        What is varied besides need not be named where it leaves one condition.

        Raises:
          EvenhandError: there is no such condition, or there are several.
        """
        cases = [dict(within) for within in self.cases]
        meant = [within for within in cases if case.items() <= within.items()]
        if len(meant) != 1:
            if not any(cases):
                raise EvenhandError(
                    f"under({dict(case)}): the study has a single condition, without a name: use the study itself."
                )
            fault = f"{dict(case)} is several conditions" if meant else f"There is no condition {dict(case)}"
            raise EvenhandError(f"{fault}: choose one of {meant or cases}.")
        inside = tuple(outcome for outcome in self.outcomes if dict(outcome.setting.case) == meant[0])
        return replace(self, outcomes=inside)

    def at(self, seed: int) -> Study:
        """The part of the study with one of its seeds, where settings are chosen by that seed alone.

        With seeds for tuning, settings are chosen by these as before.

        Raises:
          EvenhandError: there is no such seed, or it is one for tuning.
        """
        seeds = sorted({outcome.seed for outcome in self._reported})
        if seed not in seeds:
            raise EvenhandError(f"at({seed}): choose one of {seeds}.")
        kept = {seed, *self.tuning_seeds}
        return replace(self, outcomes=tuple(outcome for outcome in self.outcomes if outcome.seed in kept))

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
            # Also among methods it is the runs for tuning that choose: those that are reported would flatter the best.
            chosen = [choice.setting for choice in self.choices.values() if choice is not None]
            runs = {setting: _seen(setting, self._tuning) for setting in chosen}
            choice = choose(runs, self.rule, self.metric, self._near(within))
        else:
            choice = self.choices[method, within]
        if choice is None and method is None and any(self.choices.values()):
            raise EvenhandError("best(): there were no examples to compare the methods on: name one of them.")
        if choice is None:
            raise EvenhandError(
                f"best({method!r}): each of its settings diverged or failed in some run, or has no {self.rule.split} "
                f"{self.metric} to choose it by."
            )
        return choice.setting

    def table(self, split: str | None = None) -> list[Line]:
        """A line for each method, at its chosen setting, compared with the baseline at equal seeds.

        Where there are several conditions, it has the lines of each of them.

        Args:
          split: where the statistics are from; None: the test examples, where there are any.
        """
        split = self.headline_split if split is None else split
        lines: list[Line] = []
        for case in self.cases:
            chosen = self._chosen(str(case))
            lines += _tables.method_lines(self.methods, chosen, self.baseline, case, split, self.metric)
        return lines

    @cached_property
    def tried(self) -> tuple[Tried, ...]:
        """Every setting, with what its runs came to, in the order of the runs; with seeds for tuning, their runs."""
        by_setting: dict[Setting, list[Outcome]] = {}
        for outcome in self._tuning:
            by_setting.setdefault(outcome.setting, []).append(outcome)
        chosen = {str(choice.setting) for choice in self.choices.values() if choice is not None}
        return tuple(
            _tables.summed_up(setting, outcomes, str(setting) in chosen, self.metric)
            for setting, outcomes in by_setting.items()
        )

    @property
    def figures(self) -> Figures:
        """Its figures: ``study.figures.plane()``, ``study.figures.sensitivity("lr")``, ...

        Of several conditions together there is ``study.figures.by_condition()`` alone, and the others are those of
        ``study.under({"attack": "flip"}).figures``; see :class:`evenhand.studies.Figures`.
        """
        from evenhand.studies._report import Figures  # it loads matplotlib, which takes long

        conditions = [
            (case, {method: views for method, (_, views) in self._chosen(str(case)).items()})
            for case in self.cases
        ]
        return Figures(self.tried, self.metric, self.rule.split, self.rule.statistic, conditions)

    def frame(self) -> Any:
        """One row per run: method, seed, status, each hyper-parameter, and ``<split>_<statistic>`` of each split.

        For each of ``study(metrics=...)`` also ``<split>_<metric>_<statistic>``, such as ``test_auc_mean``: the mean,
        ``worst10``, ``best10`` and ``clients``, the number of clients that have the metric.  Of a study with seeds for
        tuning also ``tuning``: whether the run only chose.

        A pandas or polars data frame if one of them is installed, else a dict of arrays.
        """
        cases, axes = _tables.head(self.outcomes)
        rows = [_tables.row(outcome, axes, cases, self.metric) for outcome in self.outcomes]
        if self.tuning_seeds:
            rows = [{**row, "tuning": row["seed"] in self.tuning_seeds} for row in rows]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: _tables.alike([row.get(name, float("nan")) for row in rows]) for name in names}
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
        about = {"headline": self.metric}
        return [
            run._replace(title=method, info={**run.info, **about}) for run in self._views(self.best(method))
        ]

    def export(self, path: str | Path, table: Literal["settings", "methods"] = "settings") -> Path:
        """Writes a table: CSV, Markdown or LaTeX, by the ending ``.csv``, ``.md`` or ``.tex``.

        Args:
          path: the file.
          table: all settings; or the methods at their chosen ones, with their differences to the baseline.

        Raises:
          EvenhandError: another ending, or another table.
        """
        path = Path(path)
        if table == "settings":
            files = _tables.settings_files(self.tried, self.metric)
        elif table == "methods":
            files = _tables.methods_files(self.table(), self.metric, self.covers, self.baseline)
        else:
            raise EvenhandError(f"export(table={table!r}): give 'settings' or 'methods'.")
        if path.suffix not in files:
            raise EvenhandError(f"export({str(path)!r}): give a name that ends in .csv, .md or .tex.")
        write(path, files[path.suffix], f"The table {path.name}")
        return path

    def report(self, path: str | Path) -> Path:
        """Writes one self-contained HTML page: what was chosen, the differences, all settings; returns its path.

        A notebook shows the page.  Methods of which each setting diverged or failed are in its tables only.
        """
        from evenhand.studies._report import page  # it loads matplotlib, which takes long

        write(path := ReportPath(path), page(self), "The page")
        return path

    @property
    def headline_split(self) -> str:
        """What :meth:`table` is about: test examples if all runs have results on them, else validation or training."""
        return headline_split(seen(self._reported), self.metric)

    @property
    def covers(self) -> str:
        """What the numbers of :meth:`table` are of: ``"test accuracy over 20 clients"``; empty without a run."""
        if not (views := seen(self._reported)):
            return ""
        split = self.headline_split
        return f"{SPLIT_NAMES[split]} {self.metric} over {covered(views, split, self.metric).text}"

    @property
    def facts(self) -> list[str]:
        """What was run, and how settings were chosen, in a few words each."""
        rule, tuning = self.rule, self.tuning_seeds
        seeds = {outcome.seed for outcome in self.outcomes}.difference(tuning)
        at = f" at {counted(len(tuning), 'other seed')}" if tuning else ""
        by = (
            f"chosen{at} by the {SPLIT_NAMES[rule.split]} {self.metric} ({rule.statistic}){self._tolerance()}"
        )
        if not self.chooses:
            by = "one setting each, so that nothing was chosen"
        settings = {tried.setting._replace(case={}) for tried in self.tried}
        conditions = {"condition": self.cases} if len(self.cases) > 1 else {}
        nouns = {"setting": settings, **conditions, "seed": seeds, "run": self.outcomes}
        return [*(counted(len(values), noun) for noun, values in nouns.items()), by]

    def _repr_html_(self) -> str:
        remarks, lines = notebook.remarks(self.remarks, "study.remarks"), self.table()
        views = seen(self._reported)
        named = listed([notebook.name(method) for method in self.methods])
        parts = [remarks, notebook.paragraph(f"Study: {named}", "title")]
        parts.append(notebook.paragraph(notebook.escape(" · ".join(self.facts))))
        if not views or not any(line.values for line in lines):
            return notebook.piece(*parts, notebook.paragraph("No setting could be chosen: see the remarks."))
        clients = worded(views, "clients")
        methods = _tables.methods_html(lines, self.metric, self.covers, self.baseline, clients)
        return notebook.piece(*parts, *methods)

    def __repr__(self) -> str:
        done = sum(outcome.status == "done" for outcome in self.outcomes)
        tried = len({outcome.setting._replace(case={}) for outcome in self.outcomes})
        return f"Study({len(self.methods)} methods, {tried} settings, {len(self.outcomes)} runs, {done} of them sound)"

    @cached_property
    def choices(self) -> Mapping[tuple[str, str], Choice | None]:
        """``(method, condition)`` -> what was chosen; None where no setting is sound."""
        choices: dict[tuple[str, str], Choice | None] = {}
        for case in map(str, self.cases):
            # The method that the others must be close to is chosen by itself.
            near = self._near(case)
            for method in self.methods:
                goal = () if method == self.rule.near else near
                choices[method, case] = choose(self._sound(method, case), self.rule, self.metric, goal)
        return choices

    def _tolerance(self) -> str:
        """Which settings were good enough, and what decided among these; empty where the best one was chosen."""
        rule, better = self.rule, direction(self.rule.statistic, self.metric)
        if not rule.within and rule.near is None and rule.then is None:
            return ""
        # Of the statistics that are compared, shares are shown in percent, and differences of shares in points.
        scale = formatting.factor(rule.statistic, self.metric) if rule.statistic in STATISTICS else 1.0
        amount = f"{scale * rule.within:.4g}" + {100.0: " points", 1e4: " %²"}.get(scale, "")
        amount = "1 point" if amount == "1 points" else amount
        good = f"of the settings within {amount} of the best"
        if rule.near is not None:
            good = f"of the settings at most {amount} {'below' if better > 0 else 'above'} {rule.near}"
        elif not rule.within:
            good = "of equally good settings"
        least = "least" if rule.then and direction(rule.then, self.metric) < 0 else "highest"
        return f": {good}, the {f'one with the {least} {rule.then}' if rule.then else 'first'}"

    def _near(self, case: str) -> Sequence[RunView]:
        """The runs that the rule wants others to be close to, if it does."""
        name = self.rule.near
        choice = None if name is None else choose(self._sound(name, case), self.rule, self.metric)
        return () if choice is None else _seen(choice.setting, self._tuning)

    def _sound(self, method: str, case: str) -> dict[Setting, list[RunView]]:
        """The runs of each setting of a method; none where one of them failed or was stopped."""
        runs: dict[Setting, list[Outcome]] = {}
        for run in self._tuning:
            if run.setting.method == method and str(run.setting.case) == case:
                runs.setdefault(run.setting, []).append(run)
        # A run that diverged stays: whether it may win depends on the splits of the rule, which `choose` checks.
        lost = {setting for setting in runs if {run.status for run in runs[setting]} & {"failed", "stopped"}}
        return {setting: [] if setting in lost else seen(outcomes) for setting, outcomes in runs.items()}

    @property
    def _tuning(self) -> list[Outcome]:
        """The runs that choose."""
        apart = self.tuning_seeds
        return [outcome for outcome in self.outcomes if not apart or outcome.seed in apart]

    @property
    def _reported(self) -> list[Outcome]:
        """The runs that are compared."""
        return [outcome for outcome in self.outcomes if outcome.seed not in self.tuning_seeds]

    def _views(self, setting: Setting) -> list[RunView]:
        """The runs of a setting that are compared."""
        return _seen(setting, self._reported)

    def _chosen(self, case: str) -> dict[str, tuple[Setting, list[RunView]]]:
        """Method -> its setting and the runs that are compared, where one was chosen under the condition."""
        choices = {method: self.choices[method, case] for method in self.methods}
        settings = {name: choice.setting for name, choice in choices.items() if choice is not None}
        return {name: (setting, self._views(setting)) for name, setting in settings.items()}

    def _condition(self) -> str:
        """The only condition, by which choices are known."""
        return str(only_case(self.cases))


def _seen(setting: Setting, outcomes: Sequence[Outcome]) -> list[RunView]:
    """The runs of a setting among these, except for those that failed."""
    return seen(run for run in outcomes if str(run.setting) == str(setting))


# --- what a reader must know ----------------------------------------------------------------------------------


def _remarks(study: Study) -> Iterator[str]:
    """Remarks, in sentences."""
    outcomes, split = study.outcomes, study.rule.split
    if study.chooses and (runs := seen(outcomes)):
        reader = "by which settings were chosen"
        sentences = [undefined_sentence(runs, split, study.metric, reader)]
        yield from filter(None, [*sentences, few_sentence(runs, split, [study.metric], reader)])
    views = [outcome.view for outcome in outcomes if outcome.view is not None]
    for kind in OF_THE_DATA:
        yield from _once([next((x for x in view.findings if x.kind == kind), None) for view in views])
    if study.chooses:
        yield from _once([_without_a_say(run, split) for run in outcomes if run.view is not None])
    if any(view.malicious is not None for view in views):
        yield "Under attack, all numbers cover honest clients only, also in the choice of settings and curves by round."
    yield from dict.fromkeys(
        f"{condition(outcome.setting.case)}: {x.sentence}" if outcome.setting.case else x.sentence
        for outcome in outcomes
        for x in (() if outcome.view is None else outcome.view.findings)
        if x.kind == "unattacked"
    )
    yield from _on_the_comparison(study)
    choices = [choice for choice in study.choices.values() if choice is not None]
    for choice in choices:
        yield from choice.remarks
    yield from edge_remarks(choices)
    for status in ("diverged", "failed"):
        if bad := [outcome for outcome in outcomes if outcome.status == status]:
            yield f"{len(bad)} of {len(outcomes)} runs {status}; the first is {_first(bad)}"
    if bad := [outcome for outcome in outcomes if outcome.status == "done" and outcome.reason]:
        runs = f"{len(bad)} of {len(outcomes)} runs have test numbers that are not finite"
        yield f"{runs}; test numbers do not choose settings. The first is {_first(bad)}"
    if stopped := sum(outcome.status == "stopped" for outcome in outcomes):
        yield f"{stopped} of {len(outcomes)} runs were stopped early by successive halving; none of them can be chosen."


def _once(findings: Sequence[Finding | None]) -> Iterator[str]:
    """What several runs have found, in one sentence: the first, and how many have it where not all of them do."""
    # Runs on the same data have the same sentence; of data that are drawn anew, the first run's stands for the others'.
    sentences = [finding.sentence for finding in findings if finding is not None]
    if sentences:
        count, total = len(sentences), len(findings)
        runs = f"all {total}" if count == total else f"{count} of {total}"
        is_same = count == total and len(set(sentences)) == 1
        yield sentences[0] + ("" if is_same else f" (In {runs} runs; the numbers are those of the first.)")


def _without_a_say(outcome: Outcome, split: str) -> Finding | None:
    """The clients that have no examples by which settings are chosen."""
    seen = outcome.seen
    if split != "valid" or seen is None:
        return None
    noun = worded([seen], "client") if seen.whole is None else "honest client"
    return unmeasured(seen.sizes, split=split, noun=noun)


def _first(outcomes: Sequence[Outcome]) -> str:
    return f"{outcomes[0].setting}, seed {outcomes[0].seed}: {outcomes[0].reason}"


def _on_the_comparison(study: Study) -> Iterator[str]:
    """Where it is less than it seems."""
    tried: dict[str, set[str]] = {}
    for outcome in study.outcomes:
        # Under several conditions, each setting is tried under each.
        tried.setdefault(outcome.setting.method, set()).add(outcome.setting.expression)
    if len(set(map(len, tried.values()))) > 1:
        counts = ", ".join(f"{method} {len(settings)}" for method, settings in tried.items())
        yield f"The methods were not tuned equally: settings tried were {counts}."
    sound = {method for (method, _), choice in study.choices.items() if choice is not None}
    if sound and study.baseline in tried and study.baseline not in sound:
        yield f"{study.baseline}, which the others are compared with, has no sound setting: name another baseline."
    if len(tried) > 1 and len({run.seed for run in study.outcomes} - {*study.tuning_seeds}) == 1:
        yield f"One seed each proves little: give at least {least_pairs()}."


# --- its folder -----------------------------------------------------------------------------------------------


def save(study: Study, store: Store) -> Study:
    """Lists the study's runs in its folder; returns it with a note on files of an earlier version that were read."""
    study = _with_remark(study, store)
    fields: dict[str, Any] = {"rule": study.rule, "baseline": study.baseline, "metric": study.metric}
    fields |= {"notes": study.notes, "about": study.about}
    fields |= {"tuning_seeds": study.tuning_seeds} if study.tuning_seeds else {}
    store.describe(study.outcomes, fields)
    return study


def load(folder: str | Path) -> Study:
    """Loads a study that ``study(..., folder=...)`` wrote; hyper-parameters that are not constants are text.

    Raises:
      EvenhandError: there is no study, it has not ended, or a file is damaged.
    """
    store = Store(Path(folder))
    return _with_remark(Study(**store.described()), store)


def _with_remark(study: Study, store: Store) -> Study:
    remark = store.remark()
    return replace(study, notes=tuple(dict.fromkeys((*study.notes, remark)))) if remark else study
