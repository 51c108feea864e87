"""What a reader must know before believing a run's numbers: found from what was measured, and told in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.data import FederatedDataset
from evenhand.evaluation._classes import ClassMetrics
from evenhand.evaluation._metrics import SPLIT_NAMES
from evenhand.text import counted

__all__ = ["Finding", "blank_loss", "feature_scales", "findings"]

NDArray = npt.NDArray[Any]

_LOSSES = {f"{split}_loss": name for split, name in SPLIT_NAMES.items()}
_WORSE, _MUCH_WORSE, _LATEST = 3.0, 100.0, 3
_TINY, _STILL = 1e-6, 1e-5
_ROWS_OF_ONE, _ROWS, _LEARNT = 20, 100, 1.2
_APART = 1000.0
_SAMPLE_ROWS, _SAMPLE_NUMBERS = 1024, 2**22


Kind: TypeAlias = Literal["diverged", "unmoved", "rejected", "guessing", "scales"]


class Finding(NamedTuple):
    """One thing that is wrong with a run.

    Attributes:
      kind: ``"diverged"``, ``"unmoved"`` (nothing was learnt because nothing changed), ``"rejected"`` (uploads
        that no honest client can send), ``"guessing"`` (the model does
        no better than one answer for everybody) or ``"scales"`` (of the features).
      sentence: what it is, since when, how much, and what to try; plain text, of one or more sentences.
    """

    kind: Kind
    sentence: str


def findings(
    history: Mapping[str, NDArray],
    *,
    per_round: Mapping[str, NDArray],
    classes: Mapping[str, ClassMetrics],
    blank: float,
    class_names: Sequence[str] | None = None,
    scales: Finding | None = None,
) -> tuple[Finding, ...]:
    """All that is wrong with a run, the worst first; nothing is, before the first round, but the features' scales.

    Args:
      history: as in :attr:`evenhand.simulation.Run.history`.
      per_round: as in :attr:`evenhand.simulation.Run.per_round`.
      classes: split -> accuracy of each class at each client, of the splits that have classes.
      blank: from :func:`blank_loss`.
      class_names: what classes 0, 1, ... are called; None: by number.
      scales: from :func:`feature_scales`.
    """
    known = () if scales is None else (scales,)
    if not len(history["round"]) or history["round"][-1] < 1:
        return known
    rejected = _rejected(history, per_round, scaled=scales is None)
    if rejected is not None:
        known = (rejected, *known)
        if not np.any(per_round["reported"]) and _is_still(history):
            return known
    failed = _diverged(history, blank, scaled=scales is None) or _unmoved(history, per_round)
    if failed is not None:
        return failed, *known
    guessing = _one_class(classes.get("train"), class_names) or _guessing(classes, class_names)
    return known if guessing is None else (guessing, *known)


def _rejected(
    history: Mapping[str, NDArray], per_round: Mapping[str, NDArray], *, scaled: bool
) -> Finding | None:
    """The server has rejected an upload: some number in it was not finite, or its weight was impossible."""
    rejected = np.asarray(per_round.get("rejected", ()), np.float64)
    if not np.any(rejected):
        return None
    rounds, reported = np.flatnonzero(rejected), np.asarray(per_round["reported"], np.float64)
    text = (
        f"The server rejected {counted(int(rejected.sum()), 'upload')} in {counted(len(rounds), 'round')} of "
        f"{len(rejected):,}, first in round {rounds[0] + 1}: a number in them was not finite, or their weight was "
        "below 0 or above that of the largest client"
    )
    empty = int(np.sum(reported[rounds] == 0))
    if not np.any(reported) and _is_still(history):
        text = f"The model never moved. {text}; none was ever left"
    elif empty:
        text += f". In {counted(empty, 'round')} none was left"
    cure = _slower(scaled=scaled, at_once=rounds[0] == 0)
    return Finding("rejected", f"{text}. Where no client is malicious, local training diverges. {cure}")


def _diverged(history: Mapping[str, NDArray], blank: float, *, scaled: bool) -> Finding | None:
    """The training loss ends far above where it was, or some loss is not a number.

    The rule: a loss of some split is NaN or infinite at the last evaluation; or, with the floor as the larger of the
    lowest training loss of any evaluation and the loss of a model that knows nothing (where that is not known, the
    loss at round 0; 1e-6 at least), each of the last three evaluations after round 0 is 3 times the floor or more; or
    the last one is 100 times the floor or more.

    So a loss that starts near 0 may rise to what a model that knows nothing has, and three times that; a loss that a
    fair, robust or private method trades for something else may rise that far as well; and one bad round in the middle,
    or among the last three, is a swing, not a divergence.
    """
    rounds, loss = history["round"], np.asarray(history["train_loss"], np.float64)
    for name, what in _LOSSES.items():
        column = np.asarray(history.get(name, [0.0]), np.float64)
        if not math.isfinite(column[-1]):
            first = 1 + int(np.max(np.flatnonzero(np.isfinite(column)), initial=-1))
            text = f"Training diverged: the {what} loss is not a finite number from round {rounds[first]} on"
            if first > 0:
                text += f"; at round {rounds[first - 1]} it was {_text(column[first - 1])}"
            return Finding("diverged", f"{text}. {_slower(scaled=scaled, at_once=first <= 1)}")
    finite = np.where(np.isfinite(loss), loss, np.inf)
    floor = max(float(np.min(finite)), blank if blank > 0 else float(finite[0]), _TINY)
    if np.min(finite[1:][-_LATEST:]) < _WORSE * floor and finite[-1] < _MUCH_WORSE * floor:
        return None
    lowest = int(np.argmin(finite))
    first = 1 + int(np.max(np.flatnonzero(finite < _WORSE * floor), initial=0))
    text = (
        f"Training diverged: the training loss rose from {_text(loss[lowest])} at round {rounds[lowest]} to "
        f"{_text(loss[-1])} at round {rounds[-1]}"
    )
    if first < len(loss) - 1:
        text += f", and from round {rounds[first]} on it stayed at {_text(_WORSE * floor)} or more"
    return Finding("diverged", f"{text}. {_slower(scaled=scaled, at_once=first <= 1)}")


def _slower(*, scaled: bool, at_once: bool) -> str:
    step = "a step of the clients a hundred times smaller" if at_once else "a smaller step of the clients"
    rest = f"{step}, clipped gradients, fewer local epochs or a smaller step of the server"
    return f"Try {rest}." if scaled else f"Bring the features to one scale first; then try {rest}."


def _unmoved(history: Mapping[str, NDArray], per_round: Mapping[str, NDArray]) -> Finding | None:
    """Training has changed nothing.

    The rule: at all evaluations each split's loss differs from that of round 0 by a 1e-5th of it at most, and that of
    the training rows is not 0, which leaves nothing to learn; or no client has reported in any round.
    """
    rounds, loss = int(history["round"][-1]), float(history["train_loss"][0])
    reported = per_round.get("reported")
    if reported is not None and len(reported) and not np.any(reported) and _is_still(history):
        text = (
            f"The model never moved: no client reported in any of the {rounds} rounds, because all of them "
            "dropped out, or were stragglers, whose work this method drops. Lower the share of either, or take a "
            "method that keeps partial work, such as FedProx."
        )
        return Finding("unmoved", text)
    if loss == 0 or not _is_still(history):
        return None
    norms = [values for name, values in per_round.items() if name.startswith("update_norm")]
    text = f"The model did not move: after {rounds} rounds the training loss is {_text(loss)}, as before the first"
    if norms and not any(np.any(values) for values in norms):
        text += (
            ", and every update had norm 0. Check that the clients' step is not 0, that the loss depends on the "
            "parameters, and that the aggregator does not reject every upload."
        )
    else:
        text += ". Try a larger step of the clients or of the server, unless the model was trained already."
    return Finding("unmoved", text)


def _is_still(history: Mapping[str, NDArray]) -> bool:
    """Whether no loss of any split has changed since round 0."""
    columns = [np.asarray(history[name]) for name in _LOSSES if name in history]
    return not any(np.any(np.abs(x - x[0]) > _STILL * np.abs(x[0])) for x in columns)


def _one_class(cells: ClassMetrics | None, names: Sequence[str] | None) -> Finding | None:
    """All training rows, 20 or more, are of one class."""
    if cells is None or len(there := np.unique(cells.classes[cells.counts > 0])) != 1:
        return None
    if (rows := int(np.sum(cells.counts))) < _ROWS_OF_ONE:
        return None
    text = f"All {rows:,} training rows are of one class, {_called(there[0], names)}"
    text += ": there is nothing to tell apart, and an accuracy of 100 % says nothing."
    return Finding("guessing", f"{text} Check which column holds the labels, or add rows of other classes.")


def _called(number: int, names: Sequence[str] | None) -> str:
    return f"class {number}" if names is None else f"“{names[number]}”"


def _guessing(classes: Mapping[str, ClassMetrics], names: Sequence[str] | None) -> Finding | None:
    """The model does no better than one answer for everybody, on the test rows or whatever stands in for them.

    The rule, where the rows have two classes or more and, of the ``n`` rows, the most frequent class has a share ``p``:

    * one answer: all rows of one class are right and none of any other, of 20 rows or more;
    * no better: the accuracy over all rows is at most ``p + sqrt(p (1 - p) / n)``, of 100 rows or more, and the mean of
      the classes' accuracies at most 1.2 times that of a guess.  A fair model that gives up accuracy over all rows for
      the rare classes gets a higher mean, and is not meant.
    """
    split = next(
        (name for name in ("test", "valid", "train") if name in classes and len(classes[name].counts)), None
    )
    if split is None:
        return None
    cells = classes[split]
    counts = np.bincount(cells.classes, cells.counts)
    right = np.bincount(cells.classes, cells.counts * cells.accuracy)
    there = np.flatnonzero(counts)
    counts, right, n = counts[there], right[there], float(np.sum(counts))
    if len(there) < 2 or not np.isfinite(right).all():
        return None
    most, share, accuracy = int(np.argmax(counts)), float(np.max(counts) / n), float(np.sum(right) / n)
    told = [_called(c, names) for c in there.tolist()]
    cure = "Train for more rounds, change the step of the clients, or check that features and labels belong together."
    some = np.flatnonzero(right > 0.5)
    if n >= _ROWS_OF_ONE and len(some) == 1 and right[some[0]] > counts[some[0]] - 0.5:
        text = f"The model gives one answer, {told[some[0]]}, for all {n:,.0f} {SPLIT_NAMES[split]} rows"
        text += ", the most frequent one" if some[0] == most else ""
        return Finding("guessing", f"{text}: it has learnt nothing that tells them apart. {cure}")
    allowed = share + math.sqrt(share * (1 - share) / n)
    if n >= _ROWS and accuracy <= allowed and np.mean(right / counts) <= _LEARNT / len(there):
        text = (
            f"The model is no better than a guess: its accuracy over all {SPLIT_NAMES[split]} rows is "
            f"{100 * accuracy:.1f} %, and always answering {told[most]}, their most frequent class, gives "
            f"{100 * share:.1f} %."
        )
        return Finding("guessing", f"{text} {cure}")
    return None


def blank_loss(data: FederatedDataset) -> float:
    """The loss, about, of a model that knows nothing: what no training should end far above.

    For ``C`` classes ``ln(C)``, the cross-entropy of equal chances, and ``ln(2)`` for fewer than 2.  For real targets
    the mean of their squares, the squared error of answering 0, over a sample of the training rows; 0, for not known,
    where all of them are 0, since labels that say nothing are all that some models get.
    """
    classes = data.num_classes
    if classes is not None:
        return math.log(max(classes, 2))
    y = np.asarray(_some(data.train.y), np.float64)
    return float(np.mean(np.square(y)))


def feature_scales(data: FederatedDataset, names: Sequence[str] | None = None) -> Finding | None:
    """Whether some features are on scales so unlike that one step size cannot suit all of them.

    The rule: a column's scale is the root of the mean square of its values that are not 0, since those are what a
    gradient meets however rare they are; together with 1, the scale of an intercept, the columns' scales span a factor
    of 1000 or more.  Rows of more than one axis, such as images, are one column; integers (tokens) have no scale.  At
    most 1024 training rows, evenly spread, and 4 million numbers are looked at, whatever the size of the data.

    Args:
      data: the clients' rows.
      names: of the columns; None: those that a table gave them, else their positions, from 0.
    """
    if data.train.x.dtype.kind != "f":
        return None
    x = np.asarray(_some(data.train.x), np.float64)
    flat = x.ndim == 2
    squares = np.square(x).reshape(len(x), -1) if flat else np.square(x).reshape(-1, 1)
    filled = np.count_nonzero(squares, axis=0)
    columns = np.flatnonzero(filled)
    if not len(columns):
        return None
    scale = np.sqrt(np.sum(squares, axis=0)[columns] / filled[columns])
    low, high = int(np.argmin(scale)), int(np.argmax(scale))
    if max(scale[high], 1.0) / min(scale[low], 1.0) < _APART:
        return None
    if names is None and data.features is not None:
        names = data.features.inputs
    names = names if names is not None or not flat else [f"column {k}" for k in range(x.shape[1])]
    each = [
        f"{'the features' if names is None else names[columns[k]]} (about {_text(scale[k])})"
        for k in (low, high)
    ]
    if scale[high] / scale[low] >= _APART:
        text = f"Features are on unlike scales, from {each[0]} to {each[1]}"
    else:
        text = f"Features are far from the scale of 1: {each[1] if scale[high] >= _APART else each[0]}"
    text += ": one step size hardly suits them all, and training may diverge or stand still."
    cure = "Standardise each feature: subtract its mean over the training rows and divide by its standard deviation."
    return Finding("scales", f"{text} {cure}")


def _some(rows: NDArray) -> NDArray:
    """Rows evenly spread over all of them, few enough to be read at once wherever they are."""
    width = max(1, math.prod(rows.shape[1:]))
    count = max(1, min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // width))
    return rows[:: -(-len(rows) // count)]


def _text(x: float) -> str:
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e6 else f"{x:.3g}"
