"""The course of a run's metric: its latest value in words, and how much it swings in the last rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import SPLIT_NAMES, SPLITS, column, is_share

__all__ = ["Swing", "latest", "swing"]

_PART = 5
_FEWEST = 3
_POINTS = 0.01
_RELATIVE = 0.05


class Swing(NamedTuple):
    """How far a metric went up and down in the last evaluations of a run.

    Attributes:
      size: the smaller of the largest rise and the largest fall between any two of them, consecutive or not: 0 for a
        metric that only rises or only falls, which is a trend.
      first: the round of the first of them.
      last: the round of the last of them.
      metric: the metric.
    """

    size: float
    first: int
    last: int
    metric: str

    @property
    def text(self) -> str:
        """What the metric did, in words."""
        size = f"{100 * self.size:.1f} points" if is_share(self.metric) else f"{self.size:.3g}"
        return f"went up and down by {size} between rounds {self.first} and {self.last}"


def swing(history: Mapping[str, npt.NDArray[Any]], split: str, metric: str) -> Swing | None:
    """How much a metric swings in the last rounds, if enough to doubt its last value.

    The rule: of the evaluations after round 0 the last fifth counts, but at least three; a swing counts from 1 point
    on for an accuracy, and from 5 % of the last value on for any other metric.  It is that of the mean over clients if
    the history has it (``"test_accuracy_mean"``), else of the mean over examples.

    Returns:
      None if it is smaller than that, if there are fewer than three evaluations, or if one is not finite.

    Example:
      >>> import numpy as np
      >>> noisy = {"round": np.arange(6), "test_accuracy": np.array([0.1, 0.5, 0.7, 0.80, 0.75, 0.83])}
      >>> swing(noisy, "test", "accuracy").text
      'went up and down by 5.0 points between rounds 3 and 5'
      >>> swing(noisy | {"test_accuracy": np.linspace(0, 1, 6)}, "test", "accuracy") is None
      True
    """
    over_rows = history.get(column(split, metric), [])
    values = np.asarray(history.get(column(split, metric, "mean"), over_rows), np.float64)
    after = np.asarray(history["round"]) > 0 if len(values) else np.zeros(0, bool)
    count = max(_FEWEST, int(np.sum(after)) // _PART)
    rounds, values = np.asarray(history["round"])[: len(values)][after][-count:], values[after][-count:]
    if len(values) < _FEWEST or not np.isfinite(values).all():
        return None
    rise = float(np.max(values - np.minimum.accumulate(values)))
    fall = float(np.max(np.maximum.accumulate(values) - values))
    size = min(rise, fall)
    least = _POINTS if is_share(metric) else _RELATIVE * abs(values[-1])
    return Swing(size, int(rounds[0]), int(rounds[-1]), metric) if size >= least and size > 0 else None


def latest(row: Mapping[str, float], *, honest: bool = False) -> str:
    """The latest training loss in words and, where known, the accuracy, on test examples if there are any.

    Args:
      row: name -> value at the latest evaluation.
      honest: whether these are the numbers of honest clients only, which the words then say.

    Example:
      >>> latest({"train_loss": 0.31234, "train_accuracy": 0.91, "test_accuracy": 0.876})
      'loss 0.3123, test accuracy 87.6 %'
    """
    loss, whose = f"loss {row.get('train_loss', math.nan):.4g}", " (honest clients)" if honest else ""
    for split in reversed(SPLITS):
        accuracy = row.get(f"{split}_accuracy")
        if accuracy is not None:
            return f"{loss}, {SPLIT_NAMES[split]} accuracy {100 * accuracy:.1f} %{whose}"
    return loss + whose
