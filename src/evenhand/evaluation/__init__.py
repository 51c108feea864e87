"""What a model does for each client, how evenly, and reports, figures and comparisons about it.

The figures are in :mod:`evenhand.evaluation.figures`, which loads matplotlib when the first of them is drawn.
"""

from evenhand.evaluation import figures
from evenhand.evaluation._classes import ClassMetrics, by_class, class_spread, summarize_classes
from evenhand.evaluation._course import Swing, latest, swing
from evenhand.evaluation._diagnostics import Dissimilarity, dissimilarity, inexactness
from evenhand.evaluation._findings import blank_loss, feature_scales, findings
from evenhand.evaluation._flat import Prepared, evaluate, mean_loss, per_client, prepare
from evenhand.evaluation._levels import Levels, serve_by_level
from evenhand.evaluation._notebook import Summary, run_html
from evenhand.evaluation._personal import evaluate_personal
from evenhand.evaluation._report import write_report
from evenhand.evaluation._summary import angle, best, entropy, jain, kl_to_uniform, summarize, worst
from evenhand.evaluation._view import Finding, RunView, is_higher_better, write_clients_csv
from evenhand.evaluation.comparison import Comparison, Method, caution, compare, may_win, verdict

__all__ = [
    "ClassMetrics",
    "Comparison",
    "Dissimilarity",
    "Finding",
    "Levels",
    "Method",
    "Prepared",
    "RunView",
    "Summary",
    "Swing",
    "angle",
    "best",
    "blank_loss",
    "by_class",
    "caution",
    "class_spread",
    "compare",
    "dissimilarity",
    "entropy",
    "evaluate",
    "evaluate_personal",
    "feature_scales",
    "figures",
    "findings",
    "inexactness",
    "is_higher_better",
    "jain",
    "kl_to_uniform",
    "latest",
    "may_win",
    "mean_loss",
    "per_client",
    "prepare",
    "run_html",
    "serve_by_level",
    "summarize",
    "summarize_classes",
    "swing",
    "verdict",
    "worst",
    "write_clients_csv",
    "write_report",
]
