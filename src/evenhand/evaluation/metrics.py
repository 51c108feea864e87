"""Metrics of a set of examples, such as the area under the ROC curve, which are no means over examples.

:func:`evenhand.simulate` measures them after the last round, client by client, from the outputs of the model that each
client is served::

    run = eh.simulate(method, data, rounds=50, metrics=("auc", "macro_f1"))
    run.client_metrics("test")["auc"], run.summary(metric="auc")["worst10"]

A client for which a metric is undefined, such as the AUC of examples of one class, has NaN there.  It does not count in
any statistic of that metric, whose ``"clients"`` says how many do.

Everything here is NumPy in float64, for many clients at once: scikit-learn's functions take several milliseconds for
each client, 40 to 200 times as long.

* **Outputs** are what a model gives for each example: one logit per class, ``(n, C)``; a single logit of the second of
  two classes, ``(n,)`` or ``(n, 1)``; or predicted numbers, ``(n,)`` or ``(n, d)``.
* **Labels** are class numbers of an integer type, ``(n,)``, where with a single logit every label above 0 is the second
  class; or real targets of the outputs' size.

Logits become probabilities by softmax, a single one by the logistic function.  The predicted class is the first of the
most probable ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, expect, perhaps, truth_value
from evenhand.evaluation._classes import CLASS_COLUMNS, NDArray
from evenhand.text import measured
from evenhand.types import Trigger

__all__ = [
    "BUILT_IN",
    "Metric",
    "Metrics",
    "auc",
    "average_precision",
    "backdoor_success",
    "balanced_accuracy",
    "brier",
    "calibration_error",
    "check",
    "from_function",
    "macro_f1",
    "mae",
    "measure",
    "measure_clients",
    "r2",
    "resolved",
    "undefined",
]


# --- the names of splits and metrics ------------------------------------------------------------------------------

SPLITS = ("train", "valid", "test")

SPLIT_NAMES = {"train": "training", "valid": "validation", "test": "test"}

BACKDOOR = "backdoor_success"

_SHARES = ("accuracy", "macro_f1", "calibration_error", BACKDOOR)

_LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "brier", BACKDOOR)


OF_CLASSES = ("auc", "average_precision", "balanced_accuracy", "macro_f1")
"""Metrics of classes that count alike, however rare they are: they show what an accuracy hides."""


def column(split: str, metric: str, statistic: str = "") -> str:
    """The column of a history for a metric of a split, or a statistic of it over clients: ``"test_accuracy_mean"``."""
    return "_".join(filter(None, (split, metric, statistic)))


def primary_metric(metrics: Iterable[str]) -> str:
    """The metric that a model is judged by, given the names of those that it has."""
    return "accuracy" if "accuracy" in metrics else "loss"


def of_global(metric: str) -> str:
    """The name of a metric measured with the global model, if clients have personal models."""
    return f"global_{metric}"


def is_higher_better(metric: str) -> bool:
    """Whether higher is better; not for losses and errors, which are known by their names."""
    return not any(word in measured(metric) for word in _LOWER_IS_BETTER)


def is_share(metric: str) -> bool:
    """Whether a metric is shown in percent: accuracies, F1 scores and calibration errors, but not AUC and R²."""
    return any(word in measured(metric) for word in _SHARES)


# --- metrics of a set of examples ---------------------------------------------------------------------------------

Vector = npt.NDArray[np.float64]

_BINS = 15


class Metric(NamedTuple):
    """A metric of a set of examples.

    Attributes:
      name: as in :meth:`evenhand.simulation.Run.client_metrics`.
      values: ``(outputs, labels, offsets) -> (K,)`` for ``K`` sets of examples, none of them empty; set ``k`` has the
        rows ``offsets[k]`` up to ``offsets[k + 1]``.  NaN where it is undefined.  Outputs are float64 and ``(n, C)`` or
        ``(n, d)``, a single logit ``z`` as ``(0, z)``; labels are ``(n,)`` class numbers or ``(n, d)`` targets.
      needs: ``"classes"``; ``"probabilities"``, which are classes whose logits are those of probabilities, as of
        cross-entropy but not of a support vector machine; ``"numbers"``; or ``"any"`` of these.
      higher_is_better: as :func:`evenhand.evaluation.is_higher_better` says of the name, from which all tables read it.
      undefined: what the sets for which it is undefined have in common, after "which".
      inputs: ``x -> x``, what becomes of the examples, ``(rows, ...)``, before the model gets them; traceable; None:
        they stay as they are.
    """

    name: str
    values: Callable[[NDArray, NDArray, NDArray], Vector]
    needs: Literal["classes", "probabilities", "numbers", "any"] = "any"
    higher_is_better: bool = True
    undefined: str = "have too few examples for it"
    inputs: Callable[[Any], Any] | None = None


Metrics: TypeAlias = str | Sequence[str | Metric]
"""Names, values, or both; a single text holds names with commas between them."""


def auc() -> Metric:
    r"""Area under the ROC curve: the probability that a random example of a class scores above one that is not of it.

    .. math:: \mathrm{AUC}_c = \frac{1}{P N} \sum_{i: y_i = c} \sum_{j: y_j \ne c}
        \big([s_{ic} > s_{jc}] + \tfrac12 [s_{ic} = s_{jc}]\big)

    with :math:`P` examples of class :math:`c` and :math:`N` others.  Two classes have one AUC.  For more it is the mean
    over the classes that occur among the labels, each against all others, where :math:`s_{ic}` is the probability of
    class :math:`c`: scikit-learn's ``roc_auc_score(multi_class="ovr", average="macro")`` if all classes occur.

    Undefined where only one class occurs.  Probabilities are compared by their log-odds, so that very confident outputs
    do not become ties.

    Example:
      >>> import numpy as np
      >>> measure([auc()], np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
      {'auc': 0.75}

    Source: Fawcett, *An introduction to ROC analysis*, Pattern Recognition Letters 27, 2006.
    """
    return Metric("auc", _auc, needs="classes", undefined="have examples of one class only")


def average_precision() -> Metric:
    r"""Average precision: the mean precision over the examples of a class, each at the score of that example.

    .. math:: \mathrm{AP}_c = \frac{1}{P} \sum_{i: y_i = c}
        \frac{|\{j : y_j = c, s_{jc} \ge s_{ic}\}|}{|\{j : s_{jc} \ge s_{ic}\}|}

    with :math:`P` examples of class :math:`c`.  Of two classes it is that of the second, by which a random order scores
    about the share of that class, not 0.5.  For more it is the mean over the classes that occur among the labels, each
    against all others: scikit-learn's ``average_precision_score``.

    Undefined where only one class occurs.  Probabilities are compared as in :func:`auc`.

    Example:
      >>> import numpy as np
      >>> value = measure([average_precision()], np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
      >>> round(value["average_precision"], 6)
      0.833333
    """
    return Metric(
        "average_precision", _average_precision, needs="classes", undefined="have examples of one class only"
    )


def balanced_accuracy() -> Metric:
    """Balanced accuracy: mean recall over the classes that occur among the labels.

    scikit-learn's ``balanced_accuracy_score``; with one class it is the accuracy.

    Example:
      >>> import numpy as np
      >>> measure([balanced_accuracy()], np.array([-1.0, -1.0, -1.0, 1.0]), np.array([0, 0, 1, 1]))
      {'balanced_accuracy': 0.75}
    """
    return Metric("balanced_accuracy", _balanced_accuracy, needs="classes")


def macro_f1() -> Metric:
    r"""Macro F1: mean of the classes' :math:`F_1 = 2 T / (P + L)`, with ``P`` predictions, ``L`` labels, ``T`` in both.

    Over the classes that occur among labels or predictions, as scikit-learn's ``f1_score(average="macro")``.

    Example:
      >>> import numpy as np
      >>> value = measure([macro_f1()], np.array([-1.0, -1.0, -1.0, 1.0]), np.array([0, 0, 1, 1]))["macro_f1"]
      >>> round(value, 6)
      0.733333
    """
    return Metric("macro_f1", _macro_f1, needs="classes")


def calibration_error() -> Metric:
    r"""Expected calibration error: how far the confidence of predictions is from their accuracy.

    .. math:: \sum_b \frac{n_b}{n} \big|\mathrm{acc}_b - \mathrm{conf}_b\big|

    over 15 bins of equal width, ``((b - 1) / 15, b / 15]``, by the probability of the predicted class.  With few
    examples it is far above 0 even where the probabilities are right, so compare clients of one size.

    Example:
      >>> import numpy as np
      >>> logits = np.log([[0.9, 0.1], [0.9, 0.1]])
      >>> round(measure([calibration_error()], logits, np.array([0, 1]))["calibration_error"], 6)
      0.4

    Source: Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017, equation 3.
    """
    return Metric("calibration_error", _calibration_error, needs="probabilities", higher_is_better=False)


def brier() -> Metric:
    r"""Brier score: half the squared distance between the predicted probabilities and the label, mean over examples.

    .. math:: \frac{1}{2n} \sum_i \sum_c \big(p_{ic} - [y_i = c]\big)^2

    For two classes it is the mean of :math:`(p_i - y_i)^2`, with the probability and the label of the second class.  It
    lies between 0 and 1, and less is better: scikit-learn's ``brier_score_loss(scale_by_half=True)``.

    Example:
      >>> import numpy as np
      >>> logits = np.log([[0.9, 0.1], [0.9, 0.1]])
      >>> round(measure([brier()], logits, np.array([0, 1]))["brier"], 6)
      0.41

    Source: Brier, *Verification of Forecasts Expressed in Terms of Probability*, Monthly Weather Review 78, 1950 (twice
    this number).
    """
    return Metric("brier", _brier, needs="probabilities", higher_is_better=False)


def r2() -> Metric:
    r"""Coefficient of determination ``1 - sum((y - o)^2) / sum((y - mean(y))^2)``; several targets: the mean over them.

    The mean of ``y`` is that of the client's own examples, so predicting it scores 0, and a model may score below 0.
    Undefined where a target has one value only, and so for a single example.

    Example:
      >>> import numpy as np
      >>> measure([r2()], np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
      {'r2': 0.5}
    """
    return Metric("r2", _r2, needs="numbers", undefined="have one target value only")


def mae() -> Metric:
    """Mean absolute error, in the unit of the targets; several targets: the mean over them.

    Example:
      >>> import numpy as np
      >>> measure([mae()], np.array([1.0, 2.0, 6.0]), np.array([1.0, 2.0, 3.0]))
      {'mae': 1.0}
    """
    return Metric("mae", _mae, needs="numbers", higher_is_better=False)


def backdoor_success(trigger: Trigger) -> Metric:
    r"""Share of examples of other classes that get the attacker's label :math:`c` once the trigger is on them.

    .. math:: \frac{|\{i : y_i \ne c, \; \hat y(\mathrm{stamp}(x_i)) = c\}|}{|\{i : y_i \ne c\}|}

    A run under an attack with a trigger measures it by itself.  Less is better for all but the attacker.

    Args:
      trigger: that of the attack, such as ``eh.attacks.trigger(label=7).trigger``.

    Example:
      >>> import numpy as np
      >>> from evenhand.types import Trigger
      >>> metric = backdoor_success(Trigger(lambda x: x, label=1))  # outputs are of examples with the trigger
      >>> measure([metric], np.array([9.0, -9.0, 9.0]), np.array([0, 0, 1]))
      {'backdoor_success': 0.5}

    Source: Bagdasaryan et al., *How to Backdoor Federated Learning*, AISTATS 2020, section 5 (backdoor accuracy).
    """

    def values(outputs: NDArray, labels: NDArray, offsets: NDArray) -> Vector:
        others = labels != trigger.label
        hits = others & (outputs.argmax(axis=1) == trigger.label)
        counts = np.add.reduceat(others.astype(np.float64), offsets[:-1])
        shares = np.add.reduceat(hits.astype(np.float64), offsets[:-1])
        return np.where(counts > 0, shares / np.maximum(counts, 1.0), np.nan)

    return Metric(
        name=BACKDOOR,
        values=values,
        needs="classes",
        higher_is_better=False,
        undefined="have examples of the attacker's label only",
        inputs=trigger.stamp,
    )


def from_function(
    name: str,
    function: Callable[[NDArray, NDArray], float],
    *,
    higher_is_better: bool = True,
    undefined: str = "have too few examples for it",
) -> Metric:
    """A metric of your own, called once for each client.

    Args:
      name: what it is called; where less is better, the name must say so by "loss", "error", "mse", "mae",
        "perplexity" or "brier" in it.
      function: ``(outputs, labels) -> value`` of some examples, at least one; shapes as in :class:`Metric`.  It returns
        NaN where it is undefined.
      higher_is_better: whether more is better.
      undefined: what clients for which it is undefined have in common, after "which".

    Measuring it raises an ``EvenhandError`` if the function fails, or returns anything but one number.

    Example:
      >>> import numpy as np
      >>> top2 = from_function(
      ...     "top2", lambda outputs, y: np.mean([c in row.argsort()[-2:] for row, c in zip(outputs, y)])
      ... )
      >>> measure([top2], np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.array([1, 2]))
      {'top2': 0.5}
    """
    higher_is_better = truth_value("higher_is_better", higher_is_better)

    def value(outputs: NDArray, labels: NDArray) -> float:
        try:
            given = function(outputs, labels)
        except Exception as error:
            raise EvenhandError(
                f"metric {name!r:.60} failed on outputs of shape {outputs.shape} and labels of shape {labels.shape}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if shape := getattr(given, "shape", ()):
            raise EvenhandError(
                f"metric {name!r:.60} gives an array of shape {shape}: give one number for each client, such as "
                "its .mean()."
            )
        try:
            return float(given)
        except (TypeError, ValueError):
            raise EvenhandError(
                f"metric {name!r:.60} gives {given!r:.40}: give one number for each client."
            ) from None

    def values(outputs: NDArray, labels: NDArray, offsets: NDArray) -> Vector:
        ends = itertools.pairwise(offsets)
        return np.array([value(outputs[a:b], labels[a:b]) for a, b in ends], np.float64)

    return Metric(name, values, higher_is_better=higher_is_better, undefined=undefined)


BUILT_IN: Mapping[str, Callable[[], Metric]] = {
    factory.__name__: factory
    for factory in (
        *(balanced_accuracy, macro_f1, auc, average_precision, brier, calibration_error),
        *(r2, mae),
    )
}
"""The metrics that may be given by name."""


# --- measuring them -----------------------------------------------------------------------------------------------


def resolved(metrics: Metrics) -> tuple[Metric, ...]:
    """The metrics, looked up where they are given by name.

    Raises:
      EvenhandError: there is no such metric, it is there twice, or its name cannot be used.
    """
    expect("metrics", metrics, Iterable, '("auc", "macro_f1")')
    asked = map(str.strip, metrics.split(",")) if isinstance(metrics, str) else metrics
    chosen = tuple(entry if isinstance(entry, Metric) else _built_in(entry) for entry in asked)
    names = [metric.name for metric in chosen]
    for metric in chosen:
        if names.count(metric.name) > 1:
            raise EvenhandError(f"metrics: {metric.name!r:.60} is there twice: leave one of them out.")
        if is_higher_better(metric.name) != metric.higher_is_better:
            better, cure = ("more", "without") if metric.higher_is_better else ("less", "with")
            raise EvenhandError(
                f"metrics: {better} of {metric.name!r:.60} is better, which its name must show: choose a name {cure} "
                'one of "loss", "error", "mse", "mae", "perplexity" and "brier" in it.'
            )
        if metric.name in ("", "loss", "rows", *CLASS_COLUMNS) or metric.name.startswith(of_global("")):
            raise EvenhandError(
                f"metrics: {metric.name!r:.60} cannot be a metric's name: choose another one."
            )
    return chosen


def _built_in(name: object) -> Metric:
    if not isinstance(name, str):
        raise EvenhandError(
            f'metrics: {name!r:.60} is no metric: give names, such as "auc", or Metric values.'
        )
    if name not in BUILT_IN:
        names = ", ".join(BUILT_IN)
        raise EvenhandError(f"There is no metric {name!r:.60}{perhaps(name, BUILT_IN)}: choose from {names}.")
    return BUILT_IN[name]()


def check(
    metrics: Iterable[Metric], outputs: tuple[int, ...], labels: np.dtype[Any], *, margins: bool = False
) -> None:
    """Checks that outputs and labels of these kinds have such metrics.

    Args:
      metrics: the metrics.
      outputs: their shape.
      labels: the type of the labels: integers are classes, anything else is a target.
      margins: whether the logits are not those of probabilities.

    Raises:
      EvenhandError: one of the metrics needs another kind.
    """
    are_classes = labels.kind in "iub"
    if len(outputs) > 2:
        raise EvenhandError(
            f"metrics: the model gives outputs of shape {outputs[1:]} for an example, and metrics need one row of "
            "numbers."
        )
    for metric in metrics:
        if metric.needs in ("classes", "probabilities") and not are_classes:
            raise EvenhandError(
                f"{metric.name} needs classes, and these targets are numbers: choose r2 or mae, or give labels of an "
                "integer type."
            )
        if metric.needs == "numbers" and are_classes:
            raise EvenhandError(
                f"{metric.name} needs targets that are numbers, and these labels are classes: choose auc, "
                "average_precision, balanced_accuracy, macro_f1, brier or calibration_error."
            )
        if metric.needs == "probabilities" and margins:
            raise EvenhandError(
                f"{metric.name} needs probabilities, and the outputs of this model are margins, not logits: train it "
                'with the loss "logistic" or "cross_entropy".'
            )


def measure(metrics: Metrics, outputs: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
    """Each metric of one set of examples; NaN where it is undefined, for outputs with NaN, and without examples.

    Args:
      metrics: names or values.
      outputs: what a model gives for each example; see the top of this page.
      labels: class numbers or targets.

    Raises:
      EvenhandError: there is no such metric, or the outputs or labels do not suit it.

    Example:
      >>> import numpy as np
      >>> measure("auc, macro_f1", np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]]), np.array([0, 1, 0]))
      {'auc': 1.0, 'macro_f1': 1.0}
    """
    chosen, (x, y) = resolved(metrics), _normal(outputs, labels)
    return {name: float(value[0]) for name, value in _measured(chosen, x, y, np.array([0, len(y)])).items()}


def measure_clients(
    metrics: Metrics, outputs: npt.ArrayLike, labels: npt.ArrayLike, offsets: npt.ArrayLike
) -> dict[str, Vector]:
    """As :func:`measure` of ``K`` clients, ``(K,)``: client ``k`` has the rows ``offsets[k]`` up to ``offsets[k + 1]``.

    Example:
      >>> import numpy as np
      >>> measure_clients("auc", np.array([0.2, 0.7, 0.1, 0.3]), np.array([0, 1, 1, 1]), [0, 2, 4])
      {'auc': array([ 1., nan])}
    """
    return _measured(resolved(metrics), *_normal(outputs, labels), np.asarray(offsets, np.int64))


def _measured(chosen: Sequence[Metric], x: NDArray, y: NDArray, at: NDArray) -> dict[str, Vector]:
    """Metrics of clients, of outputs and labels in the shapes that :class:`Metric` describes."""
    check(chosen, x.shape, y.dtype)
    if not len(at) or at[0] != 0 or at[-1] != len(y) or (np.diff(at) < 0).any():
        raise EvenhandError(f"metrics: offsets must rise from 0 to the number of rows, {len(y)}.")
    filled = np.flatnonzero(np.diff(at))
    starts = np.append(at[filled], len(y))
    # A model may rule classes out by a logit of minus infinity.
    ruled_out: NDArray = np.isneginf(x) & (y.dtype.kind in "iub")
    lost = np.asarray(~(np.isfinite(x) | ruled_out).all(axis=1) | ruled_out.all(axis=1))
    failed = np.add.reduceat(lost, starts[:-1]) > 0 if len(filled) else np.zeros(0, bool)
    x = np.where(lost[:, None], 0.0, x)
    values = {metric.name: np.full(len(at) - 1, np.nan) for metric in chosen}
    for metric in chosen if len(filled) else ():
        values[metric.name][filled] = np.where(failed, np.nan, metric.values(x, y, starts))
    return values


def undefined(clients: Mapping[str, NDArray], metric: str) -> NDArray:
    """For which clients a metric of this module is undefined, bool ``(K,)``: it is NaN although their loss is finite.

    Args:
      clients: metric -> ``(K,)`` of one split, with the loss.
      metric: one of the names; as :func:`evenhand.evaluation.of_global` spells it for the global model.
    """
    loss = of_global("loss") if metric.startswith(of_global("")) else "loss"
    return np.isnan(clients[metric]) & np.isfinite(clients[loss])


def _numbers(given: npt.ArrayLike, kind: str) -> NDArray:
    """Class numbers as they are, and anything else in float64."""
    try:
        array = np.atleast_1d(np.asarray(given))
        return array if array.dtype.kind in "iub" else np.asarray(array, np.float64)
    except (TypeError, ValueError):
        raise EvenhandError(
            f"metrics: the {kind} are no array of numbers: give outputs as numbers, and labels as class numbers from 0 "
            "or as targets."
        ) from None


def _normal(outputs: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[NDArray, NDArray]:
    """Outputs and labels in the shapes that :class:`Metric` describes."""
    outputs, labels = _numbers(outputs, "outputs"), _numbers(labels, "labels")
    n = len(labels)
    if len(outputs) != n or outputs.ndim > 2:
        raise EvenhandError(
            f"metrics: outputs of shape {outputs.shape} do not go with labels of shape {labels.shape}: give a row of "
            "outputs for each label."
        )
    x = np.asarray(outputs, np.float64).reshape(n, *(outputs.shape[1:] or (1,)))
    if labels.dtype.kind not in "iub":
        if labels.size != x.size:
            raise EvenhandError(
                f"metrics: outputs of shape {outputs.shape} do not go with targets of shape {labels.shape}: give one "
                "output for each target."
            )
        return x, labels.reshape(x.shape)
    if labels.size != n:
        raise EvenhandError(
            f"metrics: the labels are classes of shape {labels.shape}, and metrics need one class number per example."
        )
    y = labels.reshape(-1).astype(np.int64)
    if x.shape[1] == 1:
        return np.concatenate([np.zeros_like(x), x], axis=1), (y > 0).astype(np.int64)
    if n and not 0 <= y.min() <= y.max() < x.shape[1]:
        raise EvenhandError(
            f"metrics: the labels run from {y.min()} to {y.max()}, and the model knows classes 0 to {x.shape[1] - 1}."
        )
    return x, y


# --- the built-in metrics of K sets of examples, none of them empty -----------------------------------------------


def _sets(offsets: NDArray) -> NDArray:
    """The set of each row, ``(n,)``."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


# --- the formulas -------------------------------------------------------------------------------------------------


def _auc(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    return _one_against_rest(_areas, logits, y, offsets)


def _average_precision(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    return _one_against_rest(_precisions, logits, y, offsets)


def _one_against_rest(
    of_class: Callable[[NDArray, NDArray, NDArray, int], Vector],
    logits: NDArray,
    y: NDArray,
    offsets: NDArray,
) -> Vector:
    """The mean of a metric over the classes that occur in each set; of two classes, that of the second."""
    number, classes, of_row = len(offsets) - 1, logits.shape[1], _sets(offsets)
    counts = np.bincount(of_row * classes + y, minlength=number * classes).reshape(number, classes)
    present = np.count_nonzero(counts, axis=1)
    several, scores, total = present > 1, _log_odds(logits), np.zeros(number)
    # Of two classes the second says it all: the log-odds of the first are its negatives.
    for c in [1] if classes == 2 else np.flatnonzero(counts.any(axis=0)):
        has = several & (counts[:, c] > 0)
        rows = has[of_row]
        total += of_class(scores[rows, c], y[rows] == c, of_row[rows], number)
    return np.where(several, total / (1 if classes == 2 else np.maximum(present, 1)), np.nan)


def _areas(scores: NDArray, positive: NDArray, of_row: NDArray, number: int) -> Vector:
    """The AUC of each set that has rows, all of which have positive and other rows; 0 for the others."""
    if not len(scores):
        return np.zeros(number)
    order = np.lexsort((scores, of_row))
    scores, positive, of_row = scores[order], positive[order], of_row[order]
    is_new = np.ones(len(scores), bool)
    is_new[1:] = (scores[1:] != scores[:-1]) | (of_row[1:] != of_row[:-1])
    first = np.flatnonzero(is_new)
    # Equal scores share the middle one of their places, which counts each tie as one half.
    middle = first + (np.diff(first, append=len(scores)) - 1) / 2
    place = middle[np.cumsum(is_new) - 1]
    rows, hits = np.bincount(of_row, minlength=number), np.bincount(of_row, positive, number)
    begins = np.cumsum(rows) - rows
    below = np.bincount(of_row, positive * place, number) - hits * begins - hits * (hits - 1) / 2
    return below / np.maximum(hits * (rows - hits), 1)


def _precisions(scores: NDArray, positive: NDArray, of_row: NDArray, number: int) -> Vector:
    """The average precision of each set that has rows, all of which have positive and other rows; 0 for the others."""
    if not len(scores):
        return np.zeros(number)
    order = np.lexsort((-scores, of_row))
    scores, positive, of_row = scores[order], positive[order], of_row[order]
    is_last = np.ones(len(scores), bool)
    is_last[:-1] = (scores[1:] != scores[:-1]) | (of_row[1:] != of_row[:-1])
    # Equal scores are taken together, as no threshold divides them.
    last, hits_so_far = np.flatnonzero(is_last), np.cumsum(positive)
    rows, hits = np.bincount(of_row, minlength=number), np.bincount(of_row, positive, number)
    owner, gained = of_row[last], np.diff(hits_so_far[last], prepend=0)
    hits_taken = hits_so_far[last] - (np.cumsum(hits) - hits)[owner]
    taken = last + 1 - (np.cumsum(rows) - rows)[owner]
    return np.bincount(owner, gained * hits_taken / taken, number) / np.maximum(hits, 1)


def _log_odds(logits: NDArray) -> NDArray:
    """``log(p / (1 - p))`` of each class: the logit minus the log-sum-exp of the others, without cancellation."""
    if logits.shape[1] == 2:
        with np.errstate(invalid="ignore"):
            return logits - logits[:, ::-1]
    rows, best = np.arange(len(logits)), np.argmax(logits, axis=1)
    top = logits[rows, best]
    shares, rest = np.exp(logits - top[:, None]), logits.copy()
    others = np.log(np.maximum(np.sum(shares, axis=1, keepdims=True) - shares, 1e-300)) + top[:, None]
    rest[rows, best] = -np.inf
    second = np.max(rest, axis=1)
    safe = np.where(np.isneginf(second), 0.0, second)
    with np.errstate(divide="ignore"):
        others[rows, best] = safe + np.log(np.sum(np.exp(rest - safe[:, None]), axis=1))
    # In the precision of the outputs: rounding would order the scores of rows whose exact probabilities are equal.
    return (logits - others).astype(np.float32)


def _tally(logits: NDArray, y: NDArray, offsets: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Per set and class, ``(K, C)``: labels, predictions, and labels that are predicted right."""
    number, classes = len(offsets) - 1, logits.shape[1]
    cells, answers = _sets(offsets) * classes, np.argmax(logits, axis=1)

    def table(classes_of_rows: NDArray) -> NDArray:
        return np.bincount(classes_of_rows, minlength=number * classes).reshape(number, classes)

    return table(cells + y), table(cells + answers), table((cells + y)[answers == y])


def _balanced_accuracy(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    labelled, _, right = _tally(logits, y, offsets)
    return np.sum(right / np.maximum(labelled, 1), axis=1) / np.count_nonzero(labelled, axis=1)


def _macro_f1(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    labelled, predicted, right = _tally(logits, y, offsets)
    both = labelled + predicted
    return np.sum(2 * right / np.maximum(both, 1), axis=1) / np.count_nonzero(both, axis=1)


def _brier(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    shares = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    gaps = shares / np.sum(shares, axis=1, keepdims=True)
    gaps[np.arange(len(y)), y] -= 1.0
    return np.add.reduceat(np.sum(np.square(gaps), axis=1) / 2, offsets[:-1]) / np.diff(offsets)


def _calibration_error(logits: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    number = len(offsets) - 1
    top, answers = np.max(logits, axis=1), np.argmax(logits, axis=1)
    confidence = 1 / np.sum(np.exp(logits - top[:, None]), axis=1)
    bins = np.clip(np.ceil(confidence * _BINS) - 1, 0, _BINS - 1).astype(np.int64)
    gaps = np.bincount(_sets(offsets) * _BINS + bins, (answers == y) - confidence, number * _BINS)
    return np.sum(np.abs(gaps.reshape(number, _BINS)), axis=1) / np.diff(offsets)


def _r2(outputs: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    starts, sizes, of_row = offsets[:-1], np.diff(offsets)[:, None], _sets(offsets)
    lost = np.add.reduceat(np.square(y - outputs), starts)
    spread = np.add.reduceat(np.square(y - (np.add.reduceat(y, starts) / sizes)[of_row]), starts)
    # A mean is rounded, so that the spread of equal targets may not be exactly 0.
    varies = np.maximum.reduceat(y, starts) > np.minimum.reduceat(y, starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mean(np.where(varies, 1 - lost / spread, np.nan), axis=1)


def _mae(outputs: NDArray, y: NDArray, offsets: NDArray) -> Vector:
    return np.mean(np.add.reduceat(np.abs(y - outputs), offsets[:-1]) / np.diff(offsets)[:, None], axis=1)
