"""The figures of a study, and its page in HTML.

The page shows the report on the methods at their chosen settings, to which it adds what was tried: figures and a table
of all settings, with the tables as files inside.  This module loads matplotlib, so it is imported when it is needed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import OF_THE_DATA, SPLIT_NAMES, SPLITS, column, is_share, paired_difference
from evenhand.report import (
    STATISTICS,
    Comparison,
    RunView,
    compare,
    covered,
    direction,
    draw,
    figures,
    formatting,
    headline_split,
    statistics,
    worded,
)
from evenhand.report.formatting import Cell, Table, escape, factor, over_seeds, svg
from evenhand.report.page import body, document
from evenhand.studies._selection import NDArray, condition, is_number, only_case, seen, shown
from evenhand.studies._tables import Tried, columns, head, methods_files, settings_files, titles
from evenhand.text import listed

if TYPE_CHECKING:
    # Through the package: a study loads this module when it writes its page, and lends it nothing but its type.
    from evenhand.studies import Study

# --- figures --------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """The figures of a study; each method returns a ``matplotlib.figure.Figure``.

    Under attack, all of them are of the honest clients.  Of a study of several conditions, there is
    :meth:`by_condition`, and the others are those of one of them: ``study.under({"attack": "flip"}).figures``.

    Attributes:
      tried: all settings.
      metric: what the statistics are of.
      split: the examples by which settings were chosen.
      statistic: the statistic by which they were.
      conditions: each condition, and method -> the runs at its chosen setting that are compared under it.
    """

    tried: Sequence[Tried]
    metric: str
    split: str
    statistic: str
    conditions: Sequence[tuple[Mapping[str, str], Mapping[str, Sequence[RunView]]]]

    @property
    def runs(self) -> Mapping[str, Sequence[RunView]]:
        """Method -> the runs at its chosen setting that are compared.

        Raises:
          EvenhandError: the study has several conditions.
        """
        only_case([case for case, _ in self.conditions])
        return self.conditions[0][1]

    def learning_curve(
        self,
        *,
        metric: str | None = None,
        split: str | None = None,
        panels: bool | None = None,
        colors: figures.Colors = None,
    ) -> Figure:
        """The chosen settings: a metric by round, its mean over clients and (dashed) that of the worst tenth.

        Args:
          metric: what to draw; None: the study's metric, or the loss if the study's is measured after the last round
            only, such as the AUC.
          split: the split to measure it on; None: test if there are test examples.
          panels: see :mod:`evenhand.report.figures`, as for ``colors``, which each figure takes.
          colors: method -> its colour.
        """
        if metric is None:
            metric = self.metric if figures.has_curve(self.runs, metric=self.metric, split=split) else "loss"
        return figures.learning_curve(self.runs, metric=metric, split=split, panels=panels, colors=colors)

    def metric_against(
        self, x: str = "bytes", *, panels: bool | None = None, colors: figures.Colors = None
    ) -> Figure:
        """The chosen settings: the metric against what the runs have spent so far, such as bytes or ``"time"``."""
        return figures.metric_against(self.runs, x, metric=self.metric, panels=panels, colors=colors)

    def client_curve(self, *, panels: bool | None = None, colors: figures.Colors = None) -> Figure:
        """The chosen settings: every client, worst served first."""
        return figures.client_curve(self.runs, metric=self.metric, panels=panels, colors=colors)

    def client_histogram(self, *, colors: figures.Colors = None) -> Figure:
        """The chosen settings: how many clients get how much."""
        return figures.client_histogram(self.runs, metric=self.metric, colors=colors)

    def size_scatter(self, *, colors: figures.Colors = None) -> Figure:
        """The chosen settings: what each client gets, by its number of training examples."""
        return figures.size_scatter(self.runs, metric=self.metric, colors=colors)

    def plane(self, split: str = "test", *, colors: figures.Colors = None) -> Figure:
        """All settings: the worst tenth of the clients against their mean, with the frontier that none surpasses.

        A mark is a setting's mean over the seeds, its arms one standard deviation; the chosen settings are ringed.
        Settings with a run that diverged or failed have no mark.
        """
        only_case([case for case, _ in self.conditions])
        x, y, metric = column(split, "mean"), column(split, "worst10"), self.metric
        looks = draw.looks(None, colors)
        over = worded([run for runs in self.runs.values() for run in runs], "mean over clients")
        name, unit = f"{draw.label(metric, split)}, {over}", " (%)" if is_share(metric) else ""
        figure, axes = draw.single_panel(name, f"worst tenth{unit}")
        sound = [setting for setting in self.tried if np.isfinite([setting.mean(x), setting.mean(y)]).all()]
        at = np.array([[setting.mean(x), setting.mean(y)] for setting in sound]).reshape(-1, 2)
        edge = draw.scaled(at[frontier(direction("mean", metric) * at)], metric)
        axes.plot(*edge.T, color=draw.MUTED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        for i, method in enumerate(_methods(self.tried)):
            (colour, _), marker = looks.at(i, method), draw.MARKERS[i % len(draw.MARKERS)]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "none"}
            for setting, place in zip(sound, at, strict=True):
                if setting.setting.method != method:
                    continue
                # One seed has no deviation: its mark has arms of length 0.
                across, up = (draw.scaled(np.nan_to_num(setting.std(key)), metric) for key in (x, y))
                arms: dict[str, Any] = {"xerr": across, "yerr": up, "elinewidth": 0.6, "markeredgewidth": 0}
                center, alpha = draw.scaled(place, metric), 1.0 if setting.chosen else 0.45
                axes.errorbar(*center, alpha=alpha, **arms, **look)
                if setting.chosen:
                    axes.plot(*center, "o", color=draw.INK, markersize=11, markerfacecolor="none")
            # An empty line of full colour for the legend, where the marks of settings are pale.
            axes.plot([], [], label=draw.short(method), **look)
        draw.legend(figure, axes)
        return figure

    def sensitivity(self, name: str, *, colors: figures.Colors = None) -> Figure:
        """A hyper-parameter: what each of its values gave, with the best choice of the other hyper-parameters.

        By the statistic and on the examples that chose; a band spans the lowest to the highest seed.

        Args:
          name: the hyper-parameter.
          colors: method -> its colour.

        Raises:
          EvenhandError: no method was tried with several values of it.
        """
        only_case([case for case, _ in self.conditions])
        grids = varied(self.tried)
        if name not in grids:
            words = f"no method has several values of it{perhaps(name, grids)}"
            raise EvenhandError(f"sensitivity({name!r}): {words}.")
        values, key = grids[name], column(self.split, self.statistic)
        plain = all(map(is_number, values))
        places: NDArray = np.asarray(values if plain else range(len(values)), np.float64)
        metric = self.metric if self.statistic not in _OTHER_UNITS else ""
        quantity = f"{SPLIT_NAMES[self.split]} {self.statistic}{' (%)' if is_share(metric) else ''}"
        figure, axes = draw.single_panel(draw.short(name), quantity)
        sign, looks = direction(self.statistic, self.metric), draw.looks(None, colors)
        for i, method in enumerate(_methods(self.tried)):
            best = [_best(self.tried, method, name, value, key, sign) for value in values]
            if len(best) - best.count(None) < 2:
                continue
            # NaN where each setting with a value was lost, so that the line has a gap there.
            seeds = [np.full(1, np.nan) if setting is None else setting.values[key] for setting in best]
            low, mean, high = (np.array([end(row) for row in seeds]) for end in (np.min, np.mean, np.max))
            (colour, style), marker = looks.at(i, method), draw.MARKERS[i % len(draw.MARKERS)]
            draw.band(axes, places, low, high, metric, colour)
            draw.line(axes, places, mean, metric, colour, style, method, marker=marker)
        _ticks(axes, values, places, plain=plain)
        draw.legend(figure, axes)
        return figure

    def by_condition(
        self, statistic: str = "mean", *, split: str | None = None, colors: figures.Colors = None
    ) -> Figure:
        """The chosen settings: a statistic over clients under each condition, such as each share of malicious clients.

        A line for each method, its mean over the seeds, with 95 % intervals (Student's t); the axis says which clients
        the numbers cover.  A method has a gap where none of its settings was sound.

        Args:
          statistic: a name from :func:`evenhand.evaluation.summarize`, such as ``"mean"`` or ``"worst10"``.
          split: the split to measure it on; None: test if there are test examples.
          colors: method -> its colour.

        Raises:
          EvenhandError: the study has a single condition, or there is no such statistic.
        """
        if len(self.conditions) < 2:
            raise EvenhandError(
                "by_condition(): this study has a single condition: give several by name, such as "
                "study(attack={'none': None, 'flip': ...})."
            )
        views = [view for _, runs in self.conditions for seeds in runs.values() for view in seeds]
        if not views:
            raise EvenhandError(
                "by_condition(): no setting could be chosen under any condition, see study.remarks."
            )
        split = headline_split(views, self.metric) if split is None else split
        names = statistics(views[0], split, self.metric)
        if statistic not in names:
            words = f"there is no such statistic{perhaps(statistic, names)}"
            raise EvenhandError(f"by_condition({statistic!r}): {words}.")
        scale, end = 1.0, ""
        if statistic in STATISTICS:  # the others have units of their own
            scale, end = factor(statistic, self.metric), formatting.unit(statistic, self.metric)
        clients = textwrap.fill(
            f"over {covered(views, split, self.metric).text}", 36
        )  # fits a column of a paper
        axis = ", ".join(_differing([case for case, _ in self.conditions]))
        quantity = f"{SPLIT_NAMES[split]} {draw.short(self.metric)},\n{_WORDS.get(statistic, statistic)}{end}"
        figure, axes = draw.single_panel(f"{draw.short(axis)}\n{clients}", quantity)
        figure.set_figheight(figure.get_figheight() + 0.5)  # for the clients and slanted names
        methods, looks = _methods(self.tried), draw.looks(None, colors)
        for i, method in enumerate(methods):
            seeds = [
                scale
                * np.array([statistics(view, split, self.metric)[statistic] for view in runs.get(method, ())])
                for _, runs in self.conditions
            ]
            # Beside each other, so that intervals do not hide one another.
            x: NDArray = np.arange(len(seeds), dtype=np.float64) + 0.06 * (i - (len(methods) - 1) / 2)
            (colour, style), marker = looks.at(i, method), draw.MARKERS[i % len(draw.MARKERS)]
            mean, half = np.array([_interval(values) for values in seeds]).T
            draw.line(axes, x, mean, "", colour, style, method, marker=marker)
            axes.errorbar(x, mean, half, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2)
        _name_ticks(axes, [case for case, _ in self.conditions])
        bar = Line2D([], [], color=draw.MUTED, marker="|", markersize=9, linestyle="none")
        several = len({view.info.get("seed") for view in views}) > 1
        draw.legend(figure, axes, [(bar, "95 % interval")] if several else [])
        return figure

    def all(self) -> dict[str, Figure]:
        """File name without its ending -> figure, of those that have something to show."""
        if len(self.conditions) > 1:
            return {f"by_condition_{name}": self.by_condition(name) for name in ("mean", "worst10")}
        curves, has_curve = dict[str, Figure](), figures.has_curve(self.runs, metric=self.metric)
        if has_curve:
            curves["learning_curve"] = self.learning_curve()
        if self.metric != "loss" and figures.has_curve(self.runs, metric="loss", split="train"):
            curves["training_loss"] = self.learning_curve(metric="loss", split="train")
        for name, x in (("communication", "bytes"), ("time", "time")):
            if has_curve and figures.has_recorded(self.runs, x):
                curves[name] = self.metric_against(x)
        return {
            **curves,
            "client_curve": self.client_curve(),
            "client_histogram": self.client_histogram(),
            "size_scatter": self.size_scatter(),
            "plane": self.plane(),
            **{f"sensitivity_{name}": self.sensitivity(name) for name in varied(self.tried)},
        }


_WORDS = {
    "mean": "mean over clients",
    "worst10": "worst tenth",
    "best10": "best tenth",
    "variance": "variance",
}
"""What statistics are called on an axis; the others by their own names."""


def _interval(values: NDArray) -> tuple[float, float]:
    """The mean over the seeds and half the width of its 95 % interval; NaN where a value is missing."""
    if not values.size or not np.isfinite(values).all():
        return np.nan, np.nan
    interval = paired_difference(values, np.zeros_like(values))
    # A single seed has no interval, and its mark no arms.
    return interval.mean, interval.high - interval.mean if values.size > 1 else np.nan


def _differing(cases: Sequence[Mapping[str, str]]) -> list[str]:
    """What differs between the conditions."""
    return [name for name in cases[0] if len({case[name] for case in cases}) > 1]


def _name_ticks(axes: Axes, cases: Sequence[Mapping[str, str]]) -> None:
    """A tick for each condition, with its name; slanted if names are long or many."""
    varying = _differing(cases)
    names = [draw.short(", ".join(case[name] for name in varying), 24) for case in cases]
    is_slanted = max(map(len, names)) * len(names) > 40
    slant: dict[str, Any] = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
    axes.set_xticks(range(len(names)), names, **slant)
    axes.set_xlim(-0.4, len(names) - 0.6)


_OTHER_UNITS = ("variance", "angle", "kl", "entropy", "jain")
"""Statistics that are not in the metric's unit, such as percent."""


def varied(tried: Sequence[Tried]) -> dict[str, list[Any]]:
    """Hyper-parameter -> its values, sorted, where some method has several."""
    grids: dict[str, dict[str, Any]] = {}
    for method in _methods(tried):
        own = [setting.setting.numbers for setting in tried if setting.setting.method == method]
        for name in dict.fromkeys(name for hyperparameters in own for name in hyperparameters):
            # By their texts: 1 and 1.0 are one value, and a value need not have a hash.
            values = {shown(choice[name]): choice[name] for choice in own if name in choice}
            if len(values) > 1:
                grids[name] = grids.get(name, {}) | values
    return {name: _sorted(list(values.values())) for name, values in grids.items()}


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
    own = [entry for entry in tried if entry.setting.method == method and name in entry.setting.numbers]
    alike = [entry for entry in own if shown(entry.setting.numbers[name]) == shown(value)]
    finite = [entry for entry in alike if np.isfinite(entry.mean(key))]
    return max(finite, key=lambda entry: sign * entry.mean(key), default=None)


def _ticks(axes: Axes, values: Sequence[Any], places: NDArray, *, plain: bool) -> None:
    """A tick at each value that was tried; a logarithmic axis where they span more than a decade."""
    if plain and places.min() > 0 and places.max() / places.min() >= 10:
        axes.set_xscale("log")
    axes.set_xticks(places, [shown(value) for value in values])
    axes.minorticks_off()


# --- the page -------------------------------------------------------------------------------------------------


def page(study: Study) -> str:
    """The whole page; one part for each condition."""
    methods, cases = study.methods, study.cases
    heading = f"Study: {listed(methods)}" if len(methods) < 4 else f"Study: {len(methods)} methods"
    several, remarks = len(cases) > 1, _remarks(study)
    parts = [
        f"<header>\n<h1>{escape(heading)}</h1>\n{formatting.note(' · '.join(study.facts), 'facts')}\n</header>"
    ]
    if several:
        parts += [formatting.section("Under all conditions", _conditions(study)), remarks]
    for i, case in enumerate(cases):
        if several:
            parts.append(f"<h1>{escape(condition(case))}</h1>")
        text = "\n".join(filter(None, _condition(study.under(case), "" if several else remarks)))
        # The reports of several conditions use the same ids, for their figures' shapes too: each gets a prefix.
        parts.append(re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>c{i}-", text) if several else text)
    script = resources.files("evenhand.studies").joinpath("study.js").read_text(encoding="utf-8")
    return document(heading, parts, script)


def _condition(part: Study, remarks: str) -> list[str]:
    """All about one condition: the report on the chosen settings, and what the study adds to it."""
    chosen = part.figures.runs
    runs = {name: [_described(run, name, part.about) for run in views] for name, views in chosen.items()}
    if not runs:
        split, views = part.rule.split, seen(part.outcomes)
        lost = (
            f"No client has {SPLIT_NAMES[split]} examples to choose settings by, so there is nothing to compare."
            if views and not any(split in view.sizes for view in views)
            else f"Each setting of each method diverged or failed in some run, or has no {SPLIT_NAMES[split]} "
            f"{part.metric} to choose it by, so there is nothing to compare."
        )
        return [f'<p class="lead">{lost}</p>', remarks, _settings(part)]
    subject = _displayed(compare(runs, part.metric), part.about)
    html = {"results": _chosen(part), "remarks": remarks, "settings": _settings(part)}
    return body(subject, baseline=part.baseline, figures=_figures(part, subject.split), **html)


def _remarks(part: Study) -> str:
    items = "".join(f"<li>{escape(remark)}</li>\n" for remark in part.remarks)
    title = "<h2>Limitations of this study</h2>"
    return f'<aside class="remarks">\n{title}\n<ul>\n{items}</ul>\n</aside>' if items else ""


def _chosen(part: Study) -> str:
    links = _links("methods", methods_files(part.table(), part.metric, part.covers, part.baseline))
    chosen = [tried.setting for tried in part.tried if tried.chosen and tried.setting.numbers]
    words = f"Chosen: {'; '.join(escape(setting.expression) for setting in chosen)}. " if chosen else ""
    return f'<p class="note">{words}Download these results and differences as {links}.</p>'


def _figures(part: Study, split: str) -> list[str]:
    """What the report on the chosen settings does not have: all settings, and each hyper-parameter."""
    figures, at = part.figures, " At the seeds for tuning." if part.tuning_seeds else ""
    drawn: list[str] = []
    if len(part.tried) > 1:
        title = worded(seen(part.outcomes), "All settings: worst-served clients against the average")
        note = (
            "One mark per setting; bars: one standard deviation over seeds. Ringed: chosen. Dashed: settings that no "
            f"other setting beats in both (Pareto front).{at}"
        )
        drawn.append(svg(figures.plane(split), "plane", title, note, f"{title}. {note}"))
    for i, name in enumerate(varied(part.tried)):
        title = f"Sensitivity to {name}"
        by = f"{SPLIT_NAMES[part.rule.split]} {part.metric} ({part.rule.statistic})"
        note = f"At each {name}, the setting with the best {by}. Bands: lowest to highest seed.{at}"
        # Numbered, since a name may hold what an id may not.
        drawn.append(svg(figures.sensitivity(name), f"sensitivity{i}", title, note, f"{title}. {note}"))
    return drawn


def _settings(part: Study) -> str:
    """The table of all settings, and the same as files."""
    names, metric, (_, axes) = columns(part.tried), part.metric, head(part.tried)
    rows: list[list[Cell]] = []
    for tried in part.tried:
        mark, chosen = ("best", " (chosen)") if tried.chosen else ("", "")
        given = tried.setting.numbers
        cells = [_axis(given[name]) if name in given else Cell("") for name in axes]
        cells.append(_data(tried.lost, f"{tried.lost} of {tried.runs}"))
        cells += [_over_seeds(tried.values.get(name, np.full(1, np.nan)), name, metric) for name in names]
        first = Cell(escape(tried.setting.method) + chosen, mark)
        rows.append([first, *(cell._replace(classes=f"{cell.classes} {mark}") for cell in cells)])
    seeds = "seeds for tuning" if part.tuning_seeds else "seeds"
    per_client = worded(seen(part.outcomes), "per client")
    text = f"{metric} {per_client}: means over the {seeds} ± their standard deviation; bold: chosen"
    table = Table(["Setting", *axes, "Runs lost", *titles(names, metric)], rows)
    html = table.html(_caption(text, part, names), "numbers sortable")
    links = _links("settings", settings_files(part.tried, metric))
    return formatting.section("All settings", html, f'<p class="note">Download the table as {links}.</p>')


def _conditions(study: Study) -> str:
    """Each method at its chosen setting under each condition."""
    rows: list[list[str | Cell]] = []
    for line in study.table():
        chosen = "no setting could be chosen" if line.setting is None else line.setting.expression
        cells = [_over_seeds(line.values.get(key), key, study.metric) for key in formatting.COMPARED]
        rows.append([condition(line.case), chosen, *cells])
    split, percent = study.headline_split, " in percent" if is_share(study.metric) else ""
    text = f"{SPLIT_NAMES[split]} {study.metric} per client{percent}"
    text += ", at the setting that was chosen under each condition"
    table = Table(["Condition", "Chosen", *formatting.COMPARED.values()], rows)
    return table.html(_caption(text, study, [column(split, "mean")]), "numbers sortable")


def _caption(text: str, part: Study, columns: Sequence[str]) -> str:
    """A caption, and which clients the columns of each split cover, where these are not all."""
    views = seen(part.outcomes)
    for split in SPLITS:
        if views and any(name.startswith(f"{split}_") for name in columns):
            clients = covered(views, split, part.metric)
            text += "" if clients.is_complete else f"; {SPLIT_NAMES[split]}: {clients.text}"
    return formatting.capital(text)


def _links(name: str, files: Mapping[str, str]) -> str:
    """Files that are inside the page, by their endings."""
    kinds = {".csv": ("CSV", "csv"), ".md": ("Markdown", "markdown"), ".tex": ("LaTeX", "plain")}
    return ", ".join(
        f'<a download="{name}{end}" href="data:text/{kind};charset=utf-8,{quote(files[end])}">{word}</a>'
        for end, (word, kind) in kinds.items()
    )


def _over_seeds(values: NDArray | None, name: str, metric: str) -> Cell:
    if values is None:
        return Cell("–", "number")
    return _data(float(values.mean()), over_seeds(values, factor(name, metric)).joined())


def _axis(value: object) -> Cell:
    return _data(float(value), shown(value)) if is_number(value) else Cell(escape(shown(value)), "number")


def _data(value: float, text: str) -> Cell:
    return Cell(f'<data value="{value!r}">{escape(text)}</data>', "number")


def _described(run: RunView, method: str, facts: Mapping[str, Any]) -> RunView:
    """With what all runs have in common; what is wrong with the data is among the remarks, once for all runs."""
    # A report shows the command apart, and the method first; the seeds are among the facts.
    info = {**run.info, **{name: fact for name, fact in facts.items() if name == "command"}}
    first = {name: value for name, value in run.config.items() if name == "method"}
    rest = {name: value for name, value in run.config.items() if name not in ("method", "seed")}
    # A run's own seed of the data goes before that of the study: without it, the seeds of a method with new data for
    # each would count as methods on different data.
    own = {"command", *({"cohort", _DATA_SEED} & set(rest))}
    config = first | rest | {name: fact for name, fact in facts.items() if name not in own}
    findings = [finding for finding in run.findings if finding.kind not in OF_THE_DATA]
    return run._replace(title=method, findings=findings, config=config, info=info)


_DATA_SEED = "data_seed"


def _displayed(subject: Comparison, facts: Mapping[str, Any]) -> Comparison:
    """As a page shows the runs: with the seed of the data that the study was given, not with those of the runs."""
    shared = {_DATA_SEED: facts[_DATA_SEED]} if _DATA_SEED in facts else {}
    methods = [
        method._replace(
            runs=tuple(
                run._replace(
                    config={name: x for name, x in run.config.items() if name != _DATA_SEED} | shared
                )
                for run in method.runs
            )
        )
        for method in subject.methods
    ]
    return subject._replace(methods=tuple(methods))
