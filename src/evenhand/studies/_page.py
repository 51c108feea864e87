"""The page of a study: the methods at their chosen settings, how far they differ, and all settings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from evenhand.evaluation import OF_THE_DATA, SPLIT_NAMES, SPLITS, is_share
from evenhand.report import RunView, compare, covered
from evenhand.report.formatting import Cell, escape, factor, listed, number, plural, svg, table
from evenhand.report.page import body, document
from evenhand.studies._export import as_csv, as_latex, as_markdown, columns, head
from evenhand.studies._export_methods import methods_csv, methods_latex, methods_markdown
from evenhand.studies._figures import varied
from evenhand.studies._lines import Line
from evenhand.studies._plan import shown

if TYPE_CHECKING:
    from evenhand.studies._study import Study

__all__ = ["page"]

_SHOWN = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}


def page(of: Study) -> str:
    """The whole page; one part for each condition."""
    heading = f"Study: {listed(of.methods)}" if len(of.methods) < 4 else f"Study: {len(of.methods)} methods"
    parts = [f"<header>\n<h1>{escape(heading)}</h1>\n{_facts(of)}\n</header>"]
    several = len(of.cases) > 1
    if several:
        parts.append(f"<section>\n<h2>Under all conditions</h2>\n{_conditions(of)}\n</section>")
        parts.append(_remarks(of))
    for i, case in enumerate(of.cases):
        if several:
            parts.append(f"<h1>{escape(_named(case))}</h1>")
        text = "\n".join(part for part in _condition(of.under(case), "" if several else _remarks(of)) if part)
        parts.append(re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>c{i}-", text) if several else text)
    script = resources.files("evenhand.studies").joinpath("study.js").read_text(encoding="utf-8")
    return document(heading, parts, script)


def _condition(of: Study, remarks: str) -> list[str]:
    """All about one condition: the report on the chosen settings, and what the study adds to it."""
    runs = {
        line.method: [_described(run, of) for run in of.views(line.method)]
        for line in of.table()
        if line.setting is not None
    }
    if not runs:
        split = of.rule.split
        seen = [each.seen for each in of.outcomes if each.seen is not None]
        lost = (
            f"No client has {SPLIT_NAMES[split]} examples to choose settings by, so there is nothing to compare."
            if seen and not any(split in view.sizes for view in seen)
            else f"Each setting of each method diverged or failed in some run, or has no {SPLIT_NAMES[of.rule.split]} "
            f"{of.metric} to be chosen by, so there is nothing to compare."
        )
        return [f'<p class="lead">{lost}</p>', remarks, _settings(of)]
    subject = compare(runs, of.metric)
    return body(
        subject,
        baseline=of.baseline,
        results=_chosen(of),
        remarks=remarks,
        figures=_figures(of, subject.split),
        tables=_settings(of),
    )


def _facts(of: Study) -> str:
    rule, seeds = of.rule, len({each.seed for each in of.outcomes})
    by = f"chosen by the {SPLIT_NAMES[rule.split]} {of.metric} ({rule.statistic})"
    if rule.then:
        by += f", within {number(rule.within)} of the best by its {rule.then}"
    if len(of.tried) == len(of.methods) * len(of.cases):
        by = "one setting each, so that nothing was chosen"
    facts = [plural(len(of.tried), "setting"), plural(seeds, "seed"), plural(len(of.outcomes), "run"), by]
    return f'<p class="facts">{" · ".join(map(escape, facts))}</p>'


def _remarks(of: Study) -> str:
    if not of.remarks:
        return ""
    items = "".join(f"<li>{escape(remark)}</li>\n" for remark in of.remarks)
    return f'<aside class="remarks">\n<h2>Before you rely on it</h2>\n<ul>\n{items}</ul>\n</aside>'


def _chosen(of: Study) -> str:
    lines = of.table()
    links = _links(
        "methods", methods_csv(lines), methods_markdown(lines, of.metric), methods_latex(lines, of.metric)
    )
    chosen = [each for each in of.tried if each.chosen and each.setting.numbers]
    named = "; ".join(escape(each.setting._replace(case={})) for each in chosen)
    words = f"Chosen: {named}. " if chosen else ""
    return f'<p class="note">{words}These results with their differences as {links}.</p>'


def _links(name: str, comma_separated: str, notes: str, paper: str) -> str:
    """Files that are inside the page."""
    files = {
        "CSV": ("csv", "text/csv", comma_separated),
        "Markdown": ("md", "text/markdown", notes),
        "LaTeX": ("tex", "text/plain", paper),
    }
    return ", ".join(
        f'<a download="{name}.{end}" href="data:{kind};charset=utf-8,{quote(text)}">{word}</a>'
        for word, (end, kind, text) in files.items()
    )


def _figures(of: Study, split: str) -> list[str]:
    """What the report on the chosen settings does not have: all settings, and each hyper-parameter."""
    made, found = of.figures, list[str]()
    note = (
        "A mark per setting, arms: one standard deviation over seeds. Ringed: chosen. Dashed: settings that no other "
        "beats in both."
    )
    if len(of.tried) > 1:
        title = "All settings: the worst served against the average"
        found.append(svg(made.plane(split), "plane", title, note, f"{title}. {note}"))
    for i, name in enumerate(varied(of.tried)):
        title = f"How much {name} matters"
        by = f"{SPLIT_NAMES[of.rule.split]} {of.metric} ({of.rule.statistic})"
        note = f"At each {name}, the setting with the best {by}. Bands: lowest to highest seed."
        found.append(svg(made.sensitivity(name), f"sensitivity{i}", title, note, f"{title}. {note}"))
    return found


def _settings(of: Study) -> str:
    """The table of all settings, and the same as files."""
    tried, names = of.tried, columns(of.tried)
    _, axes = head(tried)
    share = is_share(of.metric)
    units = [" (%²)" if share and "variance" in name else " (%)" if share else "" for name in names]
    top = [
        "Setting",
        *axes,
        "Runs lost",
        *(name.replace("_", " ") + unit for name, unit in zip(names, units, strict=True)),
    ]
    rows: list[list[str | Cell]] = []
    for each in tried:
        mark = "best" if each.chosen else ""
        words = escape(each.setting.method) + (" (chosen)" if each.chosen else "")
        cells = [
            _axis(each.setting.numbers[name]) if name in each.setting.numbers else Cell("") for name in axes
        ]
        cells.append(_data(each.lost, f"{each.lost} of {each.runs}"))
        for name in names:
            scale, std = factor(name, of.metric), each.std(name)
            spread = "" if math.isnan(std) else f" ± {number(scale * std, 2)}"
            cells.append(_data(each.mean(name), number(scale * each.mean(name)) + spread))
        rows.append([Cell(words, mark), *(cell._replace(classes=f"{cell.classes} {mark}") for cell in cells)])
    links = _links("settings", as_csv(tried), as_markdown(tried, of.metric), as_latex(tried, of.metric))
    caption = f"{of.metric} per client: means over the seeds ± their standard deviation; bold: chosen"
    caption = f"{caption[:1].upper()}{caption[1:]}{_covers(of, names)}"
    return (
        f"<section>\n<h2>All settings</h2>\n{table(caption, top, rows, 'numbers sortable')}\n"
        f'<p class="note">The table as {links}.</p>\n</section>'
    )


def _covers(of: Study, columns: Sequence[str]) -> str:
    """Which clients the columns of each split cover, where these are not all."""
    views = [each.seen for each in of.outcomes if each.seen is not None]
    found: list[str] = []
    for split in SPLITS:
        if views and any(name.startswith(f"{split}_") for name in columns):
            whose = covered(views, split, of.metric)
            found += [] if whose.is_complete else [f"; {SPLIT_NAMES[split]}: {whose.text}"]
    return "".join(found)


def _conditions(of: Study) -> str:
    """Each method at its chosen setting under each condition."""
    rows: list[list[str | Cell]] = []
    for line in of.table():
        chosen = "no setting could be chosen" if line.setting is None else str(line.setting._replace(case={}))
        cells = [_over_seeds(line, name, of.metric) for name in _SHOWN]
        rows.append([_named(line.case), chosen, *cells])
    unit = " in percent" if is_share(of.metric) else ""
    caption = f"{of.metric} per client{unit}, at the setting that was chosen under each condition"
    caption = f"{caption[:1].upper()}{caption[1:]}{_covers(of, ['test_'])}"
    return table(caption, ["Condition", "Chosen", *_SHOWN.values()], rows, "numbers sortable")


def _over_seeds(line: Line, name: str, metric: str) -> Cell:
    if name not in line.values:
        return Cell("–", "number")
    scale, values = factor(name, metric), line.values[name]
    spread = f" ± {number(scale * float(values.std(ddof=1)), 2)}" if values.size > 1 else ""
    return _data(float(values.mean()), number(scale * float(values.mean())) + spread)


def _axis(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _data(float(value), shown(value))
    return Cell(escape(shown(value)), "number")


def _data(value: float, text: str) -> Cell:
    return Cell(f'<data value="{value!r}">{escape(text)}</data>', "number")


def _named(case: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.items())


def _described(run: RunView, of: Study) -> RunView:
    """With what all runs have in common; what is wrong with the data is among the remarks, once for all runs."""
    about, known = dict(of.about), {"method"}
    command = {"command": about.pop("command")} if "command" in about else {}
    left_out = known | {"seed", "data_seed"}
    config = {name: value for name, value in run.config.items() if name not in left_out} | about
    return run._replace(
        findings=[each for each in run.findings if each.kind not in OF_THE_DATA],
        config={name: run.config[name] for name in known & set(run.config)} | config,
        info={**run.info, **command},
    )
