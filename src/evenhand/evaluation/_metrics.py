"""The names of splits and metrics, and whether higher or lower is better."""

from __future__ import annotations

from collections.abc import Iterable

from evenhand.text import measured

__all__ = [
    "SPLITS",
    "SPLIT_NAMES",
    "column",
    "is_higher_better",
    "is_share",
    "of_global",
    "primary_metric",
]

SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {"train": "training", "valid": "validation", "test": "test"}

_SHARES = ("accuracy", "macro_f1", "calibration_error")
_LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity")


def is_higher_better(metric: str) -> bool:
    """Whether higher is better; not for losses and errors, which are known by their names."""
    return not any(word in measured(metric) for word in _LOWER_IS_BETTER)


def is_share(metric: str) -> bool:
    """Whether a metric is shown in percent: accuracies, F1 scores and calibration errors, but not AUC and R²."""
    return any(word in measured(metric) for word in _SHARES)


def of_global(metric: str) -> str:
    """The name of a metric measured with the global model, where clients have models of their own."""
    return f"global_{metric}"


def primary_metric(metrics: Iterable[str]) -> str:
    """The metric that a model is judged by, given the names of those that it has."""
    return "accuracy" if "accuracy" in metrics else "loss"


def column(split: str, metric: str, statistic: str = "") -> str:
    """The column of a history for a metric of a split, or a statistic of it over clients: ``"test_accuracy_mean"``."""
    return "_".join(filter(None, (split, metric, statistic)))
