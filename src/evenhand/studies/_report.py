"""The figures of a study, and its page in HTML.

The page shows the report on the methods at their chosen settings, to which it adds what was tried: figures and a table
of all settings, with the tables as files inside.  This module loads matplotlib, so it is imported when it is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import OF_THE_DATA, SPLIT_NAMES, SPLITS, column, is_higher_better, is_share
from evenhand.report import RunView, compare, covered, draw, figures
from evenhand.report.formatting import (
    COMPARED,
    Cell,
    Table,
    capital,
    escape,
    factor,
    number,
    over_seeds,
    svg,
    unit,
)
from evenhand.report.page import body, document
from evenhand.studies._selection import NDArray, Outcome, Rule, direction, shown
from evenhand.studies._tables import Line, Tried, columns, head, methods_files, settings_files
from evenhand.text import counted, listed

# --- figures --------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """The figures of a study under one condition; each returns a ``matplotlib.figure.Figure``.

    Attributes:
      tried: all settings.
      metric: what the statistics are of.
      split: the examples by which settings were chosen.
      statistic: the statistic by which they were.
      runs: method -> the runs at its chosen setting that are compared.
    """

    tried: Sequence[Tried]
    metric: str
    split: str
    statistic: str
    runs: Mapping[str, Sequence[RunView]]

    def learning_curve(self) -> Figure:
        """The chosen settings: the metric by round, its mean over clients and (dashed) that of the worst tenth."""
        return figures.learning_curve(self.runs, metric=self.metric)

    def client_curve(self) -> Figure:
        """The chosen settings: every client, worst served first."""
        return figures.client_curve(self.runs, metric=self.metric)

    def client_histogram(self) -> Figure:
        """The chosen settings: how many clients get how much."""
        return figures.client_histogram(self.runs, metric=self.metric)

    def size_scatter(self) -> Figure:
        """The chosen settings: what each client gets, by its number of training examples."""
        return figures.size_scatter(self.runs, metric=self.metric)

    def plane(self, split: str = "test") -> Figure:
        """All settings: the worst tenth of the clients against their mean, with the frontier that none surpasses.

        A mark is a setting's mean over the seeds, its arms one standard deviation; the chosen settings are ringed.
        Settings with a run that diverged or failed have no mark.
        """
        x, y, metric = column(split, "mean"), column(split, "worst10"), self.metric
        unit = " (%)" if is_share(metric) else ""
        figure, axes = draw.single_panel(
            f"{draw.label(metric, split)}, mean over clients", f"worst tenth{unit}"
        )
        sound = [setting for setting in self.tried if np.isfinite([setting.mean(x), setting.mean(y)]).all()]
        sign = 1 if is_higher_better(metric) else -1
        at = np.array([[setting.mean(x), setting.mean(y)] for setting in sound]).reshape(-1, 2)
        edge = at[frontier(sign * at)]
        axes.plot(
            *draw.scaled(edge, metric).T, color=draw.MUTED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1
        )
        for i, method in enumerate(_methods(self.tried)):
            colour, marker = draw.look(i)[0], draw.MARKERS[i % len(draw.MARKERS)]
            for setting, place in zip(sound, at, strict=True):
                if setting.setting.method != method:
                    continue
                # One seed has no deviation: its mark has arms of length 0.
                across, up = (draw.scaled(np.nan_to_num(setting.std(key)), metric) for key in (x, y))
                center = draw.scaled(place, metric)
                axes.errorbar(
                    *center,
                    xerr=across,
                    yerr=up,
                    color=colour,
                    elinewidth=0.6,
                    alpha=1.0 if setting.chosen else 0.45,
                    marker=marker,
                    markersize=5,
                    markeredgewidth=0,
                    linestyle="none",
                )
                if setting.chosen:
                    axes.plot(*center, "o", color=draw.INK, markersize=11, markerfacecolor="none")
            # An empty line of full colour for the legend, where the marks of settings are pale.
            axes.plot([], [], marker, color=colour, markersize=5, label=draw.short(method))
        draw.legend(figure, axes)
        return figure

    def sensitivity(self, name: str) -> Figure:
        """A hyper-parameter: what each of its values gave, with the best choice of the other hyper-parameters.

        By the statistic and on the examples that chose; a band spans the lowest to the highest seed.

        Args:
          name: the hyper-parameter.

        Raises:
          EvenhandError: no method was tried with several values of it.
        """
        grids = varied(self.tried)
        if name not in grids:
            raise EvenhandError(
                f"sensitivity({name!r}): no method has several values of it{perhaps(name, grids)}."
            )
        values, key = grids[name], column(self.split, self.statistic)
        plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        places: NDArray = np.asarray(values if plain else range(len(values)), np.float64)
        metric = self.metric if self.statistic not in _OTHER_UNITS else ""
        unit = " (%)" if is_share(metric) else ""
        figure, axes = draw.single_panel(
            draw.short(name), f"{SPLIT_NAMES[self.split]} {self.statistic}{unit}"
        )
        sign = direction(self.statistic, self.metric)
        for i, method in enumerate(_methods(self.tried)):
            best = [_best(self.tried, method, name, value, key, sign) for value in values]
            if len(best) - best.count(None) < 2:
                continue
            # NaN where each setting with a value was lost, so that the line has a gap there.
            seeds = [np.full(1, np.nan) if setting is None else setting.values[key] for setting in best]
            low, mean, high = (np.array([end(row) for row in seeds]) for end in (np.min, np.mean, np.max))
            colour, style = draw.look(i)
            draw.band(axes, places, low, high, metric, colour)
            marker = draw.MARKERS[i % len(draw.MARKERS)]
            draw.line(axes, places, mean, metric, colour, style, method, marker=marker)
        _ticks(axes, values, places, plain=plain)
        draw.legend(figure, axes)
        return figure

    def all(self) -> dict[str, Figure]:
        """File name without its ending -> figure."""
        return {
            "learning_curve": self.learning_curve(),
            "client_curve": self.client_curve(),
            "client_histogram": self.client_histogram(),
            "size_scatter": self.size_scatter(),
            "plane": self.plane(),
            **{f"sensitivity_{name}": self.sensitivity(name) for name in varied(self.tried)},
        }


_OTHER_UNITS = ("variance", "angle", "kl", "entropy", "jain")
"""Statistics that are not in the metric's unit, such as percent."""


def varied(tried: Sequence[Tried]) -> dict[str, list[Any]]:
    """Hyper-parameter -> its values, sorted, where some method has several."""
    grids: dict[str, list[Any]] = {}
    for method in _methods(tried):
        own = [setting.setting.numbers for setting in tried if setting.setting.method == method]
        for name in dict.fromkeys(name for hyperparameters in own for name in hyperparameters):
            # By their texts: 1 and 1.0 are one value, and a value need not have a hash.
            values = {shown(choice[name]): choice[name] for choice in own if name in choice}
            if len(values) > 1:
                both = {shown(value): value for value in grids.get(name, [])} | values
                grids[name] = list(both.values())
    return {name: _sorted(values) for name, values in grids.items()}


def frontier(points: npt.ArrayLike) -> list[int]:
    """Which of the points ``(n, 2)`` no other one beats in both coordinates, by the first one; more is better.

    Example:
      >>> frontier([[1, 3], [2, 2], [1, 1], [3, 0]])
      [0, 1, 3]
    """
    at: npt.NDArray[Any] = np.asarray(points, np.float64)
    best, edge = -np.inf, list[int]()
    # From the best in the first coordinate on, a point is on the frontier if it raises the best second one.
    for i in np.lexsort((-at[:, 1], -at[:, 0])):
        if at[i, 1] > best:
            edge.append(int(i))
            best = at[i, 1]
    return edge[::-1]


def _sorted(values: list[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # such as numbers beside None
        return values


def _methods(tried: Sequence[Tried]) -> list[str]:
    return list(dict.fromkeys(setting.setting.method for setting in tried))


def _best(tried: Sequence[Tried], method: str, name: str, value: Any, key: str, sign: int) -> Tried | None:
    candidates = [
        candidate
        for candidate in tried
        if candidate.setting.method == method
        and name in candidate.setting.numbers
        and shown(candidate.setting.numbers[name]) == shown(value)
        and np.isfinite(candidate.mean(key))
    ]
    return max(candidates, key=lambda candidate: sign * candidate.mean(key), default=None)


def _ticks(axes: Axes, values: Sequence[Any], places: NDArray, *, plain: bool) -> None:
    """A tick at each value that was tried; a logarithmic axis where they span more than a decade."""
    if plain and places.min() > 0 and places.max() / places.min() >= 10:
        axes.set_xscale("log")
    axes.set_xticks(places, [shown(value) for value in values])
    axes.minorticks_off()


# --- the page -------------------------------------------------------------------------------------------------


class Contents(NamedTuple):
    """What the page shows of a study, or of its part under one condition; the fields are those of the study.

    Attributes:
      lines: the methods side by side.
      runs: method -> its runs that are compared, of a single condition.
    """

    outcomes: Sequence[Outcome]
    rule: Rule
    baseline: str
    metric: str
    about: Mapping[str, Any]
    remarks: Sequence[str]
    tuning_seeds: Sequence[int]
    lines: Sequence[Line]
    tried: Sequence[Tried]
    runs: Mapping[str, Sequence[RunView]]


def page(whole: Contents, under: Sequence[tuple[Mapping[str, str], Contents]]) -> str:
    """The whole page; one part for each condition."""
    methods = list(dict.fromkeys(line.method for line in whole.lines))
    heading = f"Study: {listed(methods)}" if len(methods) < 4 else f"Study: {len(methods)} methods"
    several = len(under) > 1
    facts = _facts(whole, chooses=len(whole.tried) > len(methods) * len(under))
    parts = [f"<header>\n<h1>{escape(heading)}</h1>\n{facts}\n</header>"]
    if several:
        parts.append(f"<section>\n<h2>Under all conditions</h2>\n{_conditions(whole)}\n</section>")
        parts.append(_remarks(whole))
    for i, (case, part) in enumerate(under):
        if several:
            parts.append(f"<h1>{escape(_named(case))}</h1>")
        text = "\n".join(filter(None, _condition(part, "" if several else _remarks(whole))))
        # The reports of several conditions use the same ids, for their figures' shapes too: each gets a prefix.
        parts.append(re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>c{i}-", text) if several else text)
    script = resources.files("evenhand.studies").joinpath("study.js").read_text(encoding="utf-8")
    return document(heading, parts, script)


def _condition(part: Contents, remarks: str) -> list[str]:
    """All about one condition: the report on the chosen settings, and what the study adds to it."""
    runs = {
        method: [_described(run, method, part.about) for run in rows] for method, rows in part.runs.items()
    }
    if not runs:
        split = part.rule.split
        seen = [outcome.seen for outcome in part.outcomes if outcome.seen is not None]
        lost = (
            f"No client has {SPLIT_NAMES[split]} examples to choose settings by, so there is nothing to compare."
            if seen and not any(split in view.sizes for view in seen)
            else f"Each setting of each method diverged or failed in some run, or has no {SPLIT_NAMES[split]} "
            f"{part.metric} to be chosen by, so there is nothing to compare."
        )
        return [f'<p class="lead">{lost}</p>', remarks, _settings(part)]
    subject = compare(runs, part.metric)
    return body(
        subject,
        baseline=part.baseline,
        results=_chosen(part),
        remarks=remarks,
        figures=_figures(part, subject.split),
        settings=_settings(part),
    )


def _facts(whole: Contents, *, chooses: bool) -> str:
    rule, tuning = whole.rule, whole.tuning_seeds
    seeds = {outcome.seed for outcome in whole.outcomes}.difference(tuning)
    by = f"chosen by the {SPLIT_NAMES[rule.split]} {whole.metric} ({rule.statistic})"
    if rule.then:
        by += f", within {number(rule.within)} of the best by its {rule.then}"
    if not chooses:
        by = "one setting each, so that nothing was chosen"
    if tuning:
        by += f" at {counted(len(tuning), 'other seed')}"
    nouns = {"setting": whole.tried, "seed": seeds, "run": whole.outcomes}
    facts = [*(counted(len(values), noun) for noun, values in nouns.items()), by]
    return f'<p class="facts">{" · ".join(map(escape, facts))}</p>'


def _remarks(part: Contents) -> str:
    if not part.remarks:
        return ""
    items = "".join(f"<li>{escape(remark)}</li>\n" for remark in part.remarks)
    return f'<aside class="remarks">\n<h2>Before you rely on it</h2>\n<ul>\n{items}</ul>\n</aside>'


def _chosen(part: Contents) -> str:
    links = _links("methods", methods_files(part.lines, part.metric))
    chosen = [tried.setting for tried in part.tried if tried.chosen and tried.setting.numbers]
    names = "; ".join(escape(setting._replace(case={})) for setting in chosen)
    words = f"Chosen: {names}. " if chosen else ""
    return f'<p class="note">{words}These results with their differences as {links}.</p>'


def _figures(part: Contents, split: str) -> list[str]:
    """What the report on the chosen settings does not have: all settings, and each hyper-parameter."""
    figures = Figures(part.tried, part.metric, part.rule.split, part.rule.statistic, part.runs)
    at = " At the seeds for tuning." if part.tuning_seeds else ""
    drawn: list[str] = []
    if len(part.tried) > 1:
        title = "All settings: the worst served against the average"
        note = (
            "A mark per setting, arms: one standard deviation over seeds. Ringed: chosen. Dashed: settings that no "
            f"other beats in both.{at}"
        )
        drawn.append(svg(figures.plane(split), "plane", title, note, f"{title}. {note}"))
    for i, name in enumerate(varied(part.tried)):
        title = f"How much {name} matters"
        by = f"{SPLIT_NAMES[part.rule.split]} {part.metric} ({part.rule.statistic})"
        note = f"At each {name}, the setting with the best {by}. Bands: lowest to highest seed.{at}"
        # Numbered, since a name may hold what an id may not.
        drawn.append(svg(figures.sensitivity(name), f"sensitivity{i}", title, note, f"{title}. {note}"))
    return drawn


def _settings(part: Contents) -> str:
    """The table of all settings, and the same as files."""
    names, metric = columns(part.tried), part.metric
    _, axes = head(part.tried)
    words = [name.replace("_", " ") + unit(name, metric) for name in names]
    rows: list[list[str | Cell]] = []
    for tried in part.tried:
        mark, chosen = ("best", " (chosen)") if tried.chosen else ("", "")
        given = tried.setting.numbers
        cells = [_axis(given[name]) if name in given else Cell("") for name in axes]
        cells.append(_data(tried.lost, f"{tried.lost} of {tried.runs}"))
        for name in names:
            cell = over_seeds(tried.values.get(name, [math.nan]), factor(name, metric))
            cells.append(_data(tried.mean(name), cell.joined()))
        first = Cell(escape(tried.setting.method) + chosen, mark)
        rows.append([first, *(cell._replace(classes=f"{cell.classes} {mark}") for cell in cells)])
    which = "seeds for tuning" if part.tuning_seeds else "seeds"
    text = f"{metric} per client: means over the {which} ± their standard deviation; bold: chosen"
    html = Table(["Setting", *axes, "Runs lost", *words], rows).html(
        _caption(text, part, names), "numbers sortable"
    )
    links = _links("settings", settings_files(part.tried, metric))
    return f'<section>\n<h2>All settings</h2>\n{html}\n<p class="note">The table as {links}.</p>\n</section>'


def _conditions(whole: Contents) -> str:
    """Each method at its chosen setting under each condition."""
    rows: list[list[str | Cell]] = []
    for line in whole.lines:
        chosen = "no setting could be chosen" if line.setting is None else str(line.setting._replace(case={}))
        cells = [_over_seeds(line, name, whole.metric) for name in COMPARED]
        rows.append([_named(line.case), chosen, *cells])
    percent = " in percent" if is_share(whole.metric) else ""
    text = f"{whole.metric} per client{percent}, at the setting that was chosen under each condition"
    html = Table(["Condition", "Chosen", *COMPARED.values()], rows).html
    return html(_caption(text, whole, ["test_"]), "numbers sortable")


def _caption(text: str, part: Contents, columns: Sequence[str]) -> str:
    """A caption, and which clients the columns of each split cover, where these are not all."""
    views = [outcome.seen for outcome in part.outcomes if outcome.seen is not None]
    for split in SPLITS:
        if views and any(name.startswith(f"{split}_") for name in columns):
            clients = covered(views, split, part.metric)
            text += "" if clients.is_complete else f"; {SPLIT_NAMES[split]}: {clients.text}"
    return capital(text)


def _links(name: str, files: Mapping[str, str]) -> str:
    """Files that are inside the page, by their endings."""
    kinds = {
        ".csv": ("CSV", "text/csv"),
        ".md": ("Markdown", "text/markdown"),
        ".tex": ("LaTeX", "text/plain"),
    }
    return ", ".join(
        f'<a download="{name}{end}" href="data:{kind};charset=utf-8,{quote(files[end])}">{word}</a>'
        for end, (word, kind) in kinds.items()
    )


def _over_seeds(line: Line, name: str, metric: str) -> Cell:
    if name not in line.values:
        return Cell("–", "number")
    values = line.values[name]
    return _data(float(values.mean()), over_seeds(values, factor(name, metric)).joined())


def _axis(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _data(float(value), shown(value))
    return Cell(escape(shown(value)), "number")


def _data(value: float, text: str) -> Cell:
    return Cell(f'<data value="{value!r}">{escape(text)}</data>', "number")


def _named(case: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.items())


def _described(run: RunView, method: str, facts: Mapping[str, Any]) -> RunView:
    """With what all runs have in common; what is wrong with the data is among the remarks, once for all runs."""
    about = dict(facts)
    # A report shows the command apart, and the method first; the seeds are among the facts.
    command = {"command": about.pop("command")} if "command" in about else {}
    first = {name: value for name, value in run.config.items() if name == "method"}
    left_out = {"method", "seed", "data_seed"}
    return run._replace(
        title=method,
        findings=[finding for finding in run.findings if finding.kind not in OF_THE_DATA],
        config=first | {name: run.config[name] for name in run.config if name not in left_out} | about,
        info={**run.info, **command},
    )
