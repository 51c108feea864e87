"""The report as one page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from evenhand._version import __version__
from evenhand.report import _sections as sections
from evenhand.report._class_table import class_table
from evenhand.report._difference_table import difference_table
from evenhand.report._gallery import gallery
from evenhand.report._metric_table import metric_section
from evenhand.report._privacy import privacy
from evenhand.report._tables import summary
from evenhand.report._view import Runs
from evenhand.report.attacked import attacked
from evenhand.report.comparison import Comparison, compare
from evenhand.report.html import escape
from evenhand.report.personal import personal, personal_figures
from evenhand.text import isolated

__all__ = ["body", "document", "page"]


def page(runs: Runs, title: str | None) -> str:
    """The whole page about the runs."""
    subject = compare(runs)
    heading = _heading(subject) if title is None else title
    header = f"<header>\n<h1>{escape(heading)}</h1>\n{sections.facts(subject)}\n</header>"
    return document(heading, [header, *body(subject)])


def body(
    subject: Comparison,
    *,
    baseline: str | None = None,
    results: str = "",
    remarks: str = "",
    figures: Sequence[str] = (),
    tables: str = "",
) -> list[str]:
    """The sections about some runs.

    Args:
      subject: the runs.
      baseline: the method that the others are compared with; None: the first.
      results: further HTML below the headline.
      remarks: further HTML below the differences.
      figures: further figures.
      tables: further HTML below the summary.
    """
    return [
        sections.notice(subject),
        sections.headline(subject),
        results,
        metric_section(subject),
        difference_table(subject, baseline),
        remarks,
        attacked(subject),
        personal(subject),
        privacy(subject),
        gallery(subject, [*personal_figures(subject), *figures]),
        summary(subject),
        tables,
        sections.worst_clients(subject),
        class_table(subject.runs),
        sections.time(subject),
        sections.settings(subject),
        sections.reproduce(subject),
    ]


def document(heading: str, parts: Sequence[str], script: str = "") -> str:
    """A page of these parts; ``script`` may make it more comfortable, but all of it can be read without."""
    style = resources.files("evenhand.report").joinpath("report.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(heading)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            *(part for part in parts if part),
            f"<footer>Made by evenhand {escape(__version__)}.</footer>\n</main>",
            *([f"<script>\n{script}</script>"] if script else []),
            "</body>\n</html>\n",
        ]
    )


def _heading(subject: Comparison) -> str:
    if len(subject.methods) == 1:
        return subject.names[0]
    word = "Side by side" if subject.obstacles else "Comparison"
    if len(subject.methods) > 3 or sum(map(len, subject.names)) > 90:
        return f"{word}: {len(subject.methods)} methods"
    return f"{word}: {', '.join(map(isolated, subject.names))}"
