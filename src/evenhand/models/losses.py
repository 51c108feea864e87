r"""Losses and metrics, one number per example: nothing here is averaged over examples.

A :class:`Loss` is a loss as a value, made by a factory such as ``huber(1.0)``; models take one wherever they take a
function ``(outputs, y) -> (rows,)``, and :func:`evenhand.models.with_loss` gives a model another one.

``outputs`` has rows first.  A single score may come as ``(n,)`` or ``(n, 1)``, and so may its labels.
Results are float32 at least, whatever the precision of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, perhaps
from evenhand.types import Array, PyTree

__all__ = [
    "Loss",
    "LossLike",
    "LossName",
    "PerRow",
    "absolute_error",
    "accuracy",
    "binary_accuracy",
    "cross_entropy",
    "default_metrics",
    "hinge",
    "logistic",
    "resolve",
    "squared_error",
]

PerRow: TypeAlias = Callable[[PyTree, Array], Array]
LossName: TypeAlias = Literal["cross_entropy", "squared_error", "hinge", "logistic"]


class Loss(NamedTuple):
    """A loss as a value: a function of outputs and labels, which calling it calls.

    Attributes:
      per_row: ``(outputs, y) -> (rows,)``, one loss per example.
      metrics: those of models that have no others.
      name: as an expression makes it, such as ``"huber(delta=1)"``.
    """

    per_row: PerRow
    metrics: Mapping[str, PerRow]
    name: str

    def __call__(self, outputs: PyTree, y: Array) -> Array:
        """One loss per example, ``(rows,)``."""
        return self.per_row(outputs, y)


LossLike: TypeAlias = PerRow | Loss | LossName


def cross_entropy(outputs: Array, y: Array) -> Array:
    r"""Softmax cross-entropy ``log sum_c exp(z_c) - z_y`` of logits ``z`` and integer labels ``y``.

    Args:
      outputs: logits, ``(n, C)``, or ``(n, ..., C)``, where the loss is the mean over the middle axes.
      y: classes ``0 .. C - 1``, integers, ``(n,)`` or ``(n, ...)``.

    Returns:
      ``(n,)``, >= 0; the largest logit is subtracted first, so that large logits lose no digits.  A label
      outside ``0 .. C - 1`` gives NaN.

    Raises:
      EvenhandError: the labels are not integers, or not one per vector of logits.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.cross_entropy(jnp.array([[0.0, 0.0], [1e4, 0.0]]), jnp.array([1, 0])).round(4)
      Array([0.6931, 0.    ], dtype=float32)
    """
    logits, labels = _classes("cross_entropy", outputs, y)
    classes = logits.shape[-1]
    chosen = labels[..., None] == jnp.arange(classes, dtype=jnp.int32)[(None,) * labels.ndim]
    losses = jnp.sum(jnp.where(chosen, -jax.nn.log_softmax(logits, axis=-1), 0.0), axis=-1)
    is_class = (labels >= 0) & (labels < classes)
    return _mean_per_example(jnp.where(is_class, losses, jnp.nan))


def accuracy(outputs: Array, y: Array) -> Array:
    """1 where the largest logit is the label's, else 0; shapes and errors as in :func:`cross_entropy`.

    Of equal logits the first counts as the largest.  A NaN among an example's logits gives NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.accuracy(jnp.array([[0.0, 2.0], [0.0, 2.0]]), jnp.array([1, 0]))
      Array([1., 0.], dtype=float32)
    """
    logits, labels = _classes("accuracy", outputs, y)
    right = jnp.argmax(logits, axis=-1).astype(jnp.int32) == labels
    # argmax stops at the first NaN, so a diverged model would be credited with class 0.
    unknown = jnp.any(jnp.isnan(logits), axis=-1)
    return _mean_per_example(jnp.where(unknown, jnp.nan, right.astype(logits.dtype)))


def squared_error(outputs: Array, y: Array) -> Array:
    r"""Mean over an example's components of ``(output - y)^2``, without a factor of one half.

    With ``d`` components, ``(1 / d) ||output - y||^2``; its mean over examples is the mean squared error.

    Args:
      outputs: ``(n,)``, ``(n, 1)`` or ``(n, ..., d)``.
      y: targets, of the same size as the outputs.

    Raises:
      EvenhandError: outputs and targets differ in size.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.squared_error(jnp.array([[1.0], [3.0]]), jnp.array([1.0, 1.0]))
      Array([0., 4.], dtype=float32)
    """
    predicted, targets = _paired("squared_error", outputs, y)
    return _mean_per_example(jnp.square(predicted - targets))


def absolute_error(outputs: Array, y: Array) -> Array:
    """Mean over an example's components of ``|output - y|``; shapes and errors as in :func:`squared_error`.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.absolute_error(jnp.array([[1.0], [3.0]]), jnp.array([1.0, 1.0]))
      Array([0., 2.], dtype=float32)
    """
    predicted, targets = _paired("absolute_error", outputs, y)
    return _mean_per_example(jnp.abs(predicted - targets))


def hinge(outputs: Array, y: Array) -> Array:
    r"""Hinge loss ``max(0, 1 - s z)`` of a score ``z``, with ``s = 1`` where ``y > 0`` and ``-1`` elsewhere.

    So labels may be -1/+1 or 0/1.  At the kink ``s z = 1`` the subgradient 0 is taken.

    Args:
      outputs: scores, ``(n,)`` or ``(n, 1)``.
      y: labels, ``(n,)`` or ``(n, 1)``, of any dtype.

    Raises:
      EvenhandError: there is not one score and one label per example.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.hinge(jnp.array([0.5, 2.0, 0.5]), jnp.array([1, 1, -1]))
      Array([0.5, 0. , 1.5], dtype=float32)
    """
    scores, signs = _signed("hinge", outputs, y)
    return jax.nn.relu(1.0 - signs * scores)


def logistic(outputs: Array, y: Array) -> Array:
    r"""Logistic loss ``log(1 + exp(-s z))`` of one logit ``z``; arguments and errors as in :func:`hinge`.

    Finite for every finite logit.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.logistic(jnp.array([0.0, -1e4]), jnp.array([1, 0])).round(4)
      Array([0.6931, 0.    ], dtype=float32)
    """
    scores, signs = _signed("logistic", outputs, y)
    return jax.nn.softplus(-signs * scores)


def binary_accuracy(outputs: Array, y: Array) -> Array:
    """1 where the score has the label's sign, else 0; a score of 0 is wrong, and NaN gives NaN; arguments as in
    :func:`hinge`.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.binary_accuracy(jnp.array([0.5, -0.5, 0.0]), jnp.array([1, 1, 1]))
      Array([1., 0., 0.], dtype=float32)
    """
    scores, signs = _signed("binary_accuracy", outputs, y)
    return jnp.where(jnp.isnan(scores), jnp.nan, (signs * scores > 0).astype(scores.dtype))


_LOSSES: Mapping[str, PerRow] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "hinge": hinge,
    "logistic": logistic,
}
_METRICS: Mapping[PerRow, Mapping[str, PerRow]] = {
    cross_entropy: {"accuracy": accuracy},
    squared_error: {"squared_error": squared_error, "absolute_error": absolute_error},
    hinge: {"accuracy": binary_accuracy},
    logistic: {"accuracy": binary_accuracy},
}


def resolve(loss: LossLike) -> PerRow:
    """The loss function, looked up if it is given by name."""
    if not isinstance(loss, str):
        return loss
    if loss not in _LOSSES:
        names = ", ".join(f'"{name}"' for name in _LOSSES)
        raise EvenhandError(
            f'There is no loss named "{loss}"{perhaps(loss, _LOSSES)}; give one of {names}, or a function '
            "(outputs, y) -> (rows,)."
        )
    return _LOSSES[loss]


def default_metrics(loss: PerRow) -> Mapping[str, PerRow]:
    """The metrics that go with one of the losses above; none for any other."""
    if isinstance(loss, Loss):
        return loss.metrics
    return _METRICS.get(loss, {})


def _float(values: Array) -> Array:
    return values if values.dtype == jnp.float64 else values.astype(jnp.float32)


def _mean_per_example(values: Array) -> Array:
    return jnp.mean(values, axis=tuple(range(1, values.ndim)))


def _paired(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = jnp.asarray(outputs), jnp.asarray(y)
    if outputs.shape[:1] != y.shape[:1] or outputs.ndim == 0 or outputs.size != y.size:
        raise EvenhandError(
            f"{name} needs one target per output, but the outputs have shape {outputs.shape} and the targets "
            f"{y.shape}; check the model's number of outputs."
        )
    predicted = _float(outputs)
    return predicted, y.reshape(outputs.shape).astype(predicted.dtype)


def _signed(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = jnp.asarray(outputs), jnp.asarray(y)
    if outputs.ndim == 0 or y.ndim == 0 or not outputs.size == outputs.shape[0] == y.size == y.shape[0]:
        raise EvenhandError(
            f"{name} needs one score and one label per row, but the outputs have shape {outputs.shape} and "
            f"the labels {y.shape}; for more than two classes use cross_entropy."
        )
    scores = _float(outputs).reshape(-1)
    return scores, jnp.where(y.reshape(-1).astype(scores.dtype) > 0, 1.0, -1.0).astype(scores.dtype)


def _classes(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = jnp.asarray(outputs), jnp.asarray(y)
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise EvenhandError(
            f"{name} needs integer class labels 0, 1, 2, ..., but these are {y.dtype}; "
            "convert the labels, or use squared_error for real targets."
        )
    if outputs.ndim < 2 or y.shape not in (outputs.shape[:-1], (*outputs.shape[:-1], 1)):
        raise EvenhandError(
            f"{name} needs logits of shape (rows, classes) and labels (rows,), but they have shapes "
            f"{outputs.shape} and {y.shape}."
        )
    return _float(outputs), y.reshape(outputs.shape[:-1]).astype(jnp.int32)
