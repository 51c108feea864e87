"""Reports, figures, tables and comparisons of runs, the same from Python and from the command line.

The figures are in :mod:`evenhand.report.figures`, which loads matplotlib when the first of them is drawn.
"""

from evenhand.report import figures
from evenhand.report._comparison import (
    Comparison,
    Method,
    Notice,
    caution,
    compare,
    further,
    may_be_starred,
    may_win,
    metric_remarks,
    verdict,
)
from evenhand.report._families import (
    Gain,
    attendance,
    backdoor_line,
    gains,
    in_words,
    newcomers_in_words,
    privacy_line,
)
from evenhand.report._levels import LevelRow, by_level, levels_in_words, levels_summary
from evenhand.report._private import PrivateSummary, private_json, private_summaries
from evenhand.report._view import (
    Coverage,
    RunView,
    Swing,
    among,
    covered,
    direction,
    few_sentence,
    headline_split,
    honest,
    latest,
    read_clients_csv,
    statistics,
    swing,
    undefined_sentence,
    write_clients_csv,
)
from evenhand.report.page import ReportPath, Summary, run_html, write_report
from evenhand.report.tables import STATISTICS, Differences, communication_line, differences

__all__ = [
    "STATISTICS",
    "Comparison",
    "Coverage",
    "Differences",
    "Gain",
    "LevelRow",
    "Method",
    "Notice",
    "PrivateSummary",
    "ReportPath",
    "RunView",
    "Summary",
    "Swing",
    "among",
    "attendance",
    "backdoor_line",
    "by_level",
    "caution",
    "communication_line",
    "compare",
    "covered",
    "differences",
    "direction",
    "few_sentence",
    "figures",
    "further",
    "gains",
    "headline_split",
    "honest",
    "in_words",
    "latest",
    "levels_in_words",
    "levels_summary",
    "may_be_starred",
    "may_win",
    "metric_remarks",
    "newcomers_in_words",
    "privacy_line",
    "private_json",
    "private_summaries",
    "read_clients_csv",
    "run_html",
    "statistics",
    "swing",
    "undefined_sentence",
    "verdict",
    "write_clients_csv",
    "write_report",
]
