"""Reports, figures, tables and comparisons of runs, the same from Python and from the command line.

The figures are in :mod:`evenhand.report.figures`, which loads matplotlib when the first of them is drawn.
"""

from evenhand.report import figures
from evenhand.report._clients_csv import ClientTable, read_clients_csv, write_clients_csv
from evenhand.report._course import Swing, latest, swing
from evenhand.report._notebook import Summary, run_html
from evenhand.report._privacy_line import privacy_line
from evenhand.report._report import write_report
from evenhand.report._view import Coverage, RunView, among, covered, headline_split, honest, statistics
from evenhand.report.comparison import (
    Comparison,
    Method,
    Notice,
    caution,
    compare,
    may_be_starred,
    may_win,
    verdict,
)
from evenhand.report.differences import STATISTICS, Differences, differences
from evenhand.report.gains import Gain, gains, in_words
from evenhand.report.measured import further, metric_remarks, undefined_sentence

__all__ = [
    "STATISTICS",
    "ClientTable",
    "Comparison",
    "Coverage",
    "Differences",
    "Gain",
    "Method",
    "Notice",
    "RunView",
    "Summary",
    "Swing",
    "among",
    "caution",
    "compare",
    "covered",
    "differences",
    "figures",
    "further",
    "gains",
    "headline_split",
    "honest",
    "in_words",
    "latest",
    "may_be_starred",
    "may_win",
    "metric_remarks",
    "privacy_line",
    "read_clients_csv",
    "run_html",
    "statistics",
    "swing",
    "undefined_sentence",
    "verdict",
    "write_clients_csv",
    "write_report",
]
