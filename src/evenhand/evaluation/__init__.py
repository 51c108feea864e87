"""How well and how evenly a model serves its clients, and what to know before trusting the numbers."""

from evenhand.evaluation import metrics
from evenhand.evaluation._classes import (
    CLASS_COLUMNS,
    ClassIndex,
    ClassMetrics,
    by_class,
    class_spread,
    index_classes,
    summarize_classes,
)
from evenhand.evaluation._diagnostics import Dissimilarity, dissimilarity, inexactness
from evenhand.evaluation._error import ERROR_NAMES
from evenhand.evaluation._findings import (
    OF_THE_DATA,
    Finding,
    blank_loss,
    diverged_clients,
    feature_scales,
    findings,
    headline_of,
    no_guarantee,
    unmeasured,
    untrained_clients,
)
from evenhand.evaluation._flat import (
    Prepared,
    evaluate,
    mean_loss,
    per_class,
    per_class_of_each,
    per_client,
    prepare,
)
from evenhand.evaluation._forward import outputs, unlabelled
from evenhand.evaluation._guess import Baseline, baseline
from evenhand.evaluation._levels import Levels, serve_by_level
from evenhand.evaluation._metrics import (
    SPLIT_NAMES,
    SPLITS,
    column,
    is_higher_better,
    is_share,
    of_global,
    primary_metric,
)
from evenhand.evaluation._outputs import check_metrics, measured_clients
from evenhand.evaluation._paired import PairedDifference, holm, least_pairs, paired_difference
from evenhand.evaluation._personal import evaluate_personal, filled, personal_per_class
from evenhand.evaluation._summary import angle, best, entropy, evenness, jain, kl_to_uniform, summarize, worst
from evenhand.evaluation.metrics import Metric, Metrics, undefined

__all__ = [
    "CLASS_COLUMNS",
    "ERROR_NAMES",
    "OF_THE_DATA",
    "SPLITS",
    "SPLIT_NAMES",
    "Baseline",
    "ClassIndex",
    "ClassMetrics",
    "Dissimilarity",
    "Finding",
    "Levels",
    "Metric",
    "Metrics",
    "PairedDifference",
    "Prepared",
    "angle",
    "baseline",
    "best",
    "blank_loss",
    "by_class",
    "check_metrics",
    "class_spread",
    "column",
    "dissimilarity",
    "diverged_clients",
    "entropy",
    "evaluate",
    "evaluate_personal",
    "evenness",
    "feature_scales",
    "filled",
    "findings",
    "headline_of",
    "holm",
    "index_classes",
    "inexactness",
    "is_higher_better",
    "is_share",
    "jain",
    "kl_to_uniform",
    "least_pairs",
    "mean_loss",
    "measured_clients",
    "metrics",
    "no_guarantee",
    "of_global",
    "outputs",
    "paired_difference",
    "per_class",
    "per_class_of_each",
    "per_client",
    "personal_per_class",
    "prepare",
    "primary_metric",
    "serve_by_level",
    "summarize",
    "summarize_classes",
    "undefined",
    "unlabelled",
    "unmeasured",
    "untrained_clients",
    "worst",
]
