"""How well and how evenly a model serves its clients, and what to know before trusting the numbers."""

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
from evenhand.evaluation._findings import Finding, blank_loss, feature_scales, findings
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
from evenhand.evaluation._paired import PairedDifference, holm, paired_difference
from evenhand.evaluation._personal import evaluate_personal, filled, personal_per_class
from evenhand.evaluation._summary import angle, best, entropy, evenness, jain, kl_to_uniform, summarize, worst

__all__ = [
    "CLASS_COLUMNS",
    "ERROR_NAMES",
    "SPLITS",
    "SPLIT_NAMES",
    "ClassIndex",
    "ClassMetrics",
    "Dissimilarity",
    "Finding",
    "Levels",
    "PairedDifference",
    "Prepared",
    "angle",
    "best",
    "blank_loss",
    "by_class",
    "class_spread",
    "column",
    "dissimilarity",
    "entropy",
    "evaluate",
    "evaluate_personal",
    "evenness",
    "feature_scales",
    "filled",
    "findings",
    "holm",
    "index_classes",
    "inexactness",
    "is_higher_better",
    "is_share",
    "jain",
    "kl_to_uniform",
    "mean_loss",
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
    "unlabelled",
    "worst",
]
