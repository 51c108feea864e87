"""What the best constant answer reaches: a model that ignores its features, against which a loss is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evenhand.data import FederatedDataset, Split
from evenhand.evaluation._classes import NDArray
from evenhand.evaluation._statistics import half_width
from evenhand.text import measured
from evenhand.types import Array, Model

_PerRow = Callable[[NDArray, NDArray], NDArray]
"""``(constant output, labels) -> (rows,)``, the loss of that answer for each label."""

_FITTED = 2**16
"""Most training examples that the constant is fitted on, evenly spaced."""
_SCORES = 20.0
"""The largest score that is tried where the labels are classes: its logistic chance is within 2e-9 of 0 or 1."""
_SHARPEST = 10.0
_SAMPLE_ROWS, _SAMPLE_NUMBERS = 1024, 2**22


class Baseline(NamedTuple):
    r"""A run's loss and that of the best constant answer, over the same clients and examples.

    With :math:`F_k` the mean loss of client :math:`k` with the model that it is served, :math:`n_k` its examples, and
    :math:`B_k` its mean loss under the one output that is best for the training examples of all clients.

    Attributes:
      split: which examples: those for testing or, without any, those for validation or training.
      metric: the name of a metric that equals the loss, such as ``"squared_error"``; else ``"loss"``.
      answer: the constant output, where it is one number; else None, as for the logits of several classes.
      loss: the mean of :math:`F_k` over the clients.
      constant: the mean of :math:`B_k` over the clients.
      loss_per_row: :math:`\sum_k n_k F_k / \sum_k n_k`.
      constant_per_row: :math:`\sum_k n_k B_k / \sum_k n_k`; with cross-entropy the entropy of the base rate.
      clients: how many have such examples.
      rows: the examples.
      of_classes: whether the labels are classes, of which a tilted or fair method may give one up and still be right.
      is_worse: whether the 95 % interval of the mean of :math:`F_k - B_k` over the clients lies above 0.
    """

    split: str
    metric: str
    answer: float | None
    loss: float
    constant: float
    loss_per_row: float
    constant_per_row: float
    clients: int
    rows: int
    of_classes: bool = False
    is_worse: bool = False


def baseline(
    model: Model, data: FederatedDataset, clients: Mapping[str, Mapping[str, NDArray]], positions: NDArray
) -> Baseline | None:
    """Compares a run with the best constant answer; None if that is unknown, as for outputs unlike the labels.

    The constant is found by minimising ``model.losses`` itself, so any loss has one: the mean of the targets for
    squared errors, their median for absolute ones, a quantile for the pinball loss, the shares of the classes for
    cross-entropy.  Targets that are all equal give None: they are mere placeholders in some models' data.

    Args:
      model: what was trained.
      data: the clients' examples.
      clients: split -> metric -> one value per client in ``positions``, and ``"loss"`` among the metrics.
      positions: which clients count, ascending, ``(m,)``.
    """
    for split, rows in (("test", data.test), ("valid", data.valid), ("train", data.train)):
        sizes = rows.sizes[positions]
        if split in clients and "loss" in clients[split] and sizes.any():
            break
    else:
        return None
    fitted = _best_constant(model, data)
    if fitted is None:
        return None
    answer, per_row = fitted
    filled = np.flatnonzero(sizes)
    metrics = {name: np.asarray(values, np.float64)[filled] for name, values in clients[split].items()}
    loss, counts = metrics.pop("loss"), sizes[filled]
    constant = _per_client(rows, per_row(answer, rows.y))[positions][filled]
    worse = loss - constant
    return Baseline(
        split=split,
        metric=next(
            (
                name
                for name, values in metrics.items()
                if np.array_equal(values, loss) and measured(name) == name
            ),
            "loss",
        ),
        answer=float(answer.item()) if answer.size == 1 else None,
        loss=float(np.mean(loss)),
        constant=float(np.mean(constant)),
        loss_per_row=float(np.average(loss, weights=counts)),
        constant_per_row=float(np.average(constant, weights=counts)),
        clients=len(filled),
        rows=int(counts.sum()),
        of_classes=rows.y.dtype.kind == "i",
        # No test by signs as between two methods: it takes memory for all clients at 65,536 choices.
        is_worse=bool(np.mean(worse) > 0) and float(np.mean(worse)) > half_width(worse),
    )


def _per_client(rows: Split, losses: NDArray) -> NDArray:
    """The mean over each client's rows; 0 for a client without any."""
    client = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
    return np.bincount(client, losses, minlength=len(rows.sizes)) / np.maximum(rows.sizes, 1)


def _best_constant(model: Model, data: FederatedDataset) -> tuple[NDArray, _PerRow] | None:
    """The output that is best for the training examples, and the loss of such an output for each label."""
    x, y = data.train.x[:2], data.train.y[:: -(-data.train.rows // _FITTED)]
    outputs = jax.eval_shape(lambda: model.apply(model.init(jax.random.key(0)), jnp.asarray(x)))
    if not isinstance(outputs, jax.ShapeDtypeStruct) or not outputs.shape:
        return None
    shape, width = outputs.shape[1:], int(np.prod(outputs.shape[1:], dtype=int))

    reported = model.metrics.get("loss", model.losses)  # a metric of that name is reported as the loss
    try:
        losses_of = _losses_of(reported, shape)
    except TypeError:  # it has no hash
        losses_of = _losses_of.__wrapped__(reported, shape)

    def losses(answer: NDArray, y: NDArray) -> NDArray:
        return np.asarray(losses_of(np.asarray(answer, np.float32), y), np.float64)

    if y.dtype.kind == "i":
        return _of_classes(losses, y, width)
    if np.size(y) != width * len(y) or np.ptp(y) == 0:
        return None
    targets = np.asarray(y, np.float64).reshape(len(y), width)
    candidates = [np.mean(targets, axis=0), np.median(targets, axis=0)]

    def mean(answer: NDArray) -> float:
        return float(np.mean(losses(answer, y)))

    if width == 1:
        candidates.append(_lowest(lambda z: mean(np.array([z])), float(targets.min()), float(targets.max())))
    return min(candidates, key=mean), losses


@lru_cache(maxsize=16)  # the runs of a study have one model
def _losses_of(
    reported: Callable[[Array, Any], Array], shape: tuple[int, ...]
) -> Callable[[Array | NDArray, Any], Array]:
    """``(answer, y) -> losses`` of one output of this shape for all labels."""

    @jax.jit  # one program, where each operation would be one
    def losses_of(answer: Array | NDArray, y: Any) -> Array:
        return reported(jnp.broadcast_to(jnp.reshape(answer, shape), (len(y), *shape)), y)

    return losses_of


def _of_classes(losses: _PerRow, y: NDArray, width: int) -> tuple[NDArray, _PerRow] | None:
    """The best logits, a multiple of the logarithms of the classes' shares, or the best score of two classes."""
    labels, counts = np.unique(y, return_counts=True)
    if y.ndim != 1 or (width > 1 and labels[-1] >= width):
        return None

    def per_row(answer: NDArray, y: NDArray) -> NDArray:
        present, inverse = np.unique(y, return_inverse=True)
        return losses(answer, present)[inverse]

    if width > 1:  # half an example of each class that no training example has keeps its logit finite
        counts = np.maximum(np.bincount(y, minlength=width), 0.5)
        labels = np.arange(width, dtype=y.dtype)

    def mean(answer: NDArray) -> float:
        return float(np.average(losses(answer, labels), weights=counts))

    if width == 1:
        return _lowest(lambda z: mean(np.array([z])), -_SCORES, _SCORES), per_row
    logits = np.log(counts / counts.sum())
    best = _lowest(lambda sharpness: mean(sharpness * logits), 0.0, _SHARPEST)
    return min((logits, best * logits), key=mean), per_row


def _lowest(value: Callable[[float], float], low: float, high: float) -> NDArray:
    """Where a function is lowest between two numbers, ``(1,)``."""
    from scipy.optimize import minimize_scalar  # slow to import, and most runs need none

    lowest: Any = minimize_scalar(
        value, bounds=(low, high), method="bounded", options={"xatol": 1e-6 * (high - low)}
    )
    return np.array([float(lowest.x)])


# --- a model that knows nothing -------------------------------------------------------------------------------------


def blank_loss(data: FederatedDataset) -> float:
    """The approximate loss of a model that knows nothing; no training should end far above it.

    For ``C`` classes ``ln(C)``, the cross-entropy of equal chances, and ``ln(2)`` for fewer than 2.  For real targets
    the mean of their squares, the squared error of answering 0, over a sample of the training examples; 0, for unknown,
    where all of them are 0, as such labels are mere placeholders in some models' data.
    """
    if data.num_classes is not None:
        return math.log(max(data.num_classes, 2))
    return float(np.mean(np.square(np.asarray(sampled(data.train.y), np.float64))))


def sampled(rows: NDArray) -> NDArray:
    """Evenly spaced rows, few enough to be read at once, even from a file."""
    width = max(1, math.prod(rows.shape[1:]))
    count = max(1, min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // width))
    return rows[:: -(-len(rows) // count)]
