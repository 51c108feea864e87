r"""Losses and metrics, one number per example: nothing here is averaged over examples.

A :class:`Loss` is a loss as a value, made by a factory such as ``huber(1.0)``; models take one wherever they take a
function ``(outputs, y) -> (rows,)``, and :func:`evenhand.models.with_loss` gives a model another one.

``outputs`` has rows first.  A single score may come as ``(n,)`` or ``(n, 1)``, and so may its labels.
Results are float32 at least, whatever the precision of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from evenhand.errors import EvenhandError, perhaps, real_number
from evenhand.text import short
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
    "focal",
    "generalized_cross_entropy",
    "hinge",
    "huber",
    "logistic",
    "resolve",
    "squared_error",
]

PerRow: TypeAlias = Callable[[PyTree, Array], Array]
LossName: TypeAlias = Literal["cross_entropy", "squared_error", "hinge", "logistic"]


class Loss(NamedTuple):
    """A loss as a value: a function of outputs and labels, which calling it calls.

    Losses made by equal calls are equal, and so models with them share compiled programs.

    Attributes:
      per_row: ``(outputs, y) -> (rows,)``, one loss per example.
      metrics: those of models that have no others.
      name: as an expression makes it, such as ``"huber(delta=1)"``.
    """

    per_row: PerRow
    metrics: Mapping[str, PerRow]
    name: str
    __repr__ = short

    def __call__(self, outputs: PyTree, y: Array) -> Array:
        """One loss per example, ``(rows,)``."""
        return self.per_row(outputs, y)

    def __hash__(self) -> int:  # that of a tuple would need metrics that can be hashed
        return hash((self.per_row, self.name))


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
      EvenhandError: outputs and targets differ in size, or in the order of their axes.

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


# --- losses with hyper-parameters ---------------------------------------------------------------------------


def huber(delta: float = 1.0) -> Loss:
    r"""Huber loss: half the squared error of small residuals, and a slope of no more than ``delta`` for large ones.

    With the residual :math:`r = \text{output} - y`, one loss is the mean over an example's components of

    .. math::
        h_\delta(r) = \begin{cases}
            \frac12 r^2 & |r| \le \delta \\
            \delta \left(|r| - \frac12 \delta\right) & |r| > \delta
        \end{cases}
        \qquad h_\delta'(r) = \max(-\delta, \min(r, \delta))

    Metrics: ``"squared_error"`` and ``"absolute_error"``.

    Args:
      delta: from which residual on the loss grows linearly, > 0, in units of the labels; ``inf``: it never does.

    Raises:
      EvenhandError: ``delta`` is not above 0; when called, outputs and targets differ in size.

    Edge cases: ``delta=inf`` is half of :func:`squared_error`, whose factor is 1; a small ``delta`` is ``delta`` times
    :func:`absolute_error`.  Finite for residuals up to 1e18 in float32.

    Differs from the paper: the convex solver of TERM's code minimises twice this loss, which has the same minimisers.
    The location of Huber's paper is a model's output here, and his :math:`k` is ``delta``.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> models.losses.huber(1.0)(jnp.array([0.5, 3.0, -3.0]), jnp.zeros(3))
      Array([0.125, 2.5  , 2.5  ], dtype=float32)

    Source: Huber, *Robust Estimation of a Location Parameter*, Annals of Mathematical Statistics 1964; a
    baseline of TERM in tables 7.2 and 7.3.
    """
    _check_between("huber", "delta", delta, 0.0, math.inf, above=True)
    return Loss(
        per_row=_Parametric(_huber, (float(delta),)),
        metrics=_METRICS[squared_error],
        name=f"huber(delta={_number(delta)})",
    )


def focal(gamma: float = 2.0, alpha: float | tuple[float, ...] | None = None) -> Loss:
    r"""Focal loss: cross-entropy in which an example counts less, the more probable its label is to the model already.

    With :math:`p_y` the probability of the label,

    .. math::
        \ell = -\alpha_y (1 - p_y)^\gamma \log p_y, \qquad
        \frac{\partial \ell}{\partial s}
            = -\alpha_y (1 - p_y)^\gamma \left(1 - p_y - \gamma\, p_y \log p_y\right)

    where :math:`s = \log p_y - \log(1 - p_y)`.  Outputs are logits ``(n, C)`` with labels ``0 .. C - 1``, as of
    :func:`cross_entropy`, or one logit ``(n,)`` or ``(n, 1)`` with labels 0/1 or -1/+1, as of :func:`logistic`.
    Metric: ``"accuracy"``.

    Args:
      gamma: how much less, >= 0; 0 is cross-entropy.
      alpha: a number weighs label 1 by ``alpha`` and label 0 by ``1 - alpha``; a tuple has one factor per class; None:
        all classes count alike.

    Raises:
      EvenhandError: ``gamma`` or ``alpha`` is out of range; when called, ``alpha`` has not one factor per class, or the
        shapes do not fit.

    Edge cases: everything is computed from :math:`s`, so losses and gradients are finite for logits up to 1e30, at
    :math:`p_y = 0`, where the loss is :math:`-\alpha_y s`, and at :math:`p_y = 1`, where it and its gradient are 0 for
    ``gamma > 0``.  With ``gamma > 0`` the loss is not convex in :math:`s`.  A label outside ``0 .. C - 1`` gives NaN.

    Differs from the paper: a mean over an example's middle axes takes the place of the sum over anchors divided by the
    number of matched ones; and ``alpha`` is None unless given, where the paper uses 0.25 beside ``gamma=2``.  Which
    label is the rare one is up to the data: a number multiplies label 1, which is the common class (digit 9) where
    TERM's figure 7.14 sets it to 0.05.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> logits, y = jnp.array([[0.0, 0.0], [2.0, 0.0]]), jnp.array([1, 0])
      >>> models.losses.focal(gamma=0.0)(logits, y).round(4), models.losses.focal(gamma=2.0)(logits, y).round(4)
      (Array([0.6931, 0.1269], dtype=float32), Array([0.1733, 0.0018], dtype=float32))

    Source: Lin et al., *Focal Loss for Dense Object Detection*, ICCV 2017, equations 4 and 5; a baseline of TERM in
    tables 7.7 and 7.8 and figure 7.14.
    """
    _check_between("focal", "gamma", gamma, 0.0, _MOST)
    name, factors = f"focal(gamma={_number(gamma)}", None
    if isinstance(alpha, tuple):
        for factor in alpha:
            _check_between("focal", "alpha", factor, 0.0, _MOST)
        if len(alpha) < 2 or not any(alpha):
            raise EvenhandError(f"focal(alpha={alpha}): give one factor per class, and one that is above 0.")
        name, factors = f"{name}, alpha=({', '.join(map(_number, alpha))})", tuple(map(float, alpha))
    elif alpha is not None:
        _check_between("focal", "alpha", alpha, 0.0, 1.0)
        name, factors = f"{name}, alpha={_number(alpha)}", (1.0 - float(alpha), float(alpha))
    return Loss(_Parametric(_focal, (float(gamma), factors)), {"accuracy": _label_accuracy}, f"{name})")


def generalized_cross_entropy(q: float = 0.7) -> Loss:
    r"""Generalised cross-entropy: between cross-entropy, at ``q=0``, and one minus the label's probability, at ``q=1``.

    With :math:`p_y` the probability of the label,

    .. math::
        \ell = \frac{1 - p_y^q}{q} \;\xrightarrow{q \to 0}\; -\log p_y, \qquad
        \nabla \ell = p_y^q \, \nabla (-\log p_y)

    so an example counts less, the less probable its label is, as a wrong label tends to be.  Outputs and labels are
    those of :func:`focal`.  Metric: ``"accuracy"``.

    Args:
      q: robustness to wrong labels, 0 to 1.

    Raises:
      EvenhandError: ``q`` is out of range; when called, the shapes do not fit.

    Edge cases: computed from :math:`\log p_y` as :math:`-\mathrm{expm1}(q \log p_y) / q`, which loses no digits as
    ``q`` becomes small.  Losses and gradients are finite for finite logits.  At :math:`p_y = 0` the loss is ``1 / q``
    and its gradient 0, so with ``q > 0`` an example of which the first model is sure, and wrong, is never learnt.  A
    label outside ``0 .. C - 1`` gives NaN.

    Differs from the paper: ``q=0`` is allowed, and is cross-entropy.  The paper's mean absolute error, summed over the
    classes, is twice the loss of ``q=1``.  The paper's *truncated* loss, which also prunes examples, is not built in.
    TERM's code adds 1e-8 to :math:`p_y`, which a loss in :math:`\log p_y` does not need.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> logits, y = jnp.array([[0.0, 0.0], [0.0, 1e4]]), jnp.array([0, 0])
      >>> [models.losses.generalized_cross_entropy(q)(logits, y).round(4).tolist() for q in (0.5, 1.0)]
      [[0.5857999920845032, 2.0], [0.5, 1.0]]

    Source: Zhang and Sabuncu, *Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels*,
    NeurIPS 2018, section 3; a baseline of TERM in tables 7.4 and 7.8.
    """
    _check_between("generalized_cross_entropy", "q", q, 0.0, 1.0)
    return Loss(
        per_row=_Parametric(_generalized_cross_entropy, (float(q),)),
        metrics={"accuracy": _label_accuracy},
        name=f"generalized_cross_entropy(q={_number(q)})",
    )


class _Parametric(NamedTuple):
    """A loss of outputs, labels and hyper-parameters: a value, so that equal losses share compiled programs."""

    function: Callable[..., Array]
    settings: tuple[Any, ...]

    def __call__(self, outputs: Array, y: Array) -> Array:
        return self.function(outputs, y, *self.settings)


_MOST = 1e30
"""Largest ``gamma`` and factor of a class; products with them stay finite in float32."""
_LEAST_Q = 1e-30
"""A smaller ``q`` is 0, as ``q log p`` would lose its digits in float32."""


def _huber(outputs: Array, y: Array, delta: float) -> Array:
    predicted, targets = _paired("huber", outputs, y)
    residual = predicted - targets
    # One formula for both pieces: a branch that is not taken cannot spoil a gradient.
    slope = jnp.clip(residual, -delta, delta)
    return _mean_per_example(slope * (residual - 0.5 * slope))


def _focal(outputs: Array, y: Array, gamma: float, factors: tuple[float, ...] | None) -> Array:
    log_odds, labels, classes = _log_odds("focal", outputs, y)
    # In the logarithms of p_y and 1 - p_y: a power of 1 - p_y has an infinite slope at 0 where gamma < 1.
    losses = jnp.exp(-gamma * jax.nn.softplus(log_odds)) * jax.nn.softplus(-log_odds)
    if factors is not None:
        if len(factors) != classes:
            raise EvenhandError(
                f"focal got {len(factors)} factors alpha, and the outputs are of {classes} classes: give a tuple with "
                "one factor per class; a single number is for two classes."
            )
        losses = jnp.asarray(factors, losses.dtype)[jnp.clip(labels, 0, classes - 1)] * losses
    return _mean_per_example(losses)


def _generalized_cross_entropy(outputs: Array, y: Array, q: float) -> Array:
    log_odds, _, _ = _log_odds("generalized_cross_entropy", outputs, y)
    losses = jax.nn.softplus(-log_odds)
    return _mean_per_example(losses if q < _LEAST_Q else -jnp.expm1(-q * losses) / q)


def _log_odds(name: str, outputs: Array, y: Array) -> tuple[Array, Array, int]:
    """``log(p_y / (1 - p_y))`` of each label, the labels as classes, and how many classes there are."""
    if _is_single_score(outputs):
        scores, signs = _signed(name, outputs, y)
        return signs * scores, (signs > 0).astype(jnp.int32), 2
    logits, labels = _classes(name, outputs, y)
    classes = logits.shape[-1]
    chosen = labels[..., None] == jnp.arange(classes, dtype=jnp.int32)[(None,) * labels.ndim]
    others = jax.nn.logsumexp(jnp.where(chosen, -jnp.inf, logits), axis=-1)
    log_odds = jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1) - others
    return jnp.where(jnp.any(chosen, axis=-1), log_odds, jnp.nan), labels, classes


def _label_accuracy(outputs: Array, y: Array) -> Array:
    """:func:`binary_accuracy` of a single score, :func:`accuracy` of one logit per class."""
    return binary_accuracy(outputs, y) if _is_single_score(outputs) else accuracy(outputs, y)


def _is_single_score(outputs: PyTree) -> bool:
    return not isinstance(outputs, tuple | Mapping) and math.prod(jnp.shape(outputs)[1:]) == 1


def _check_between(
    factory: str, name: str, value: Any, least: float, most: float, *, above: bool = False
) -> None:
    """Checks a hyper-parameter; with ``above``, ``least`` itself is refused."""
    number = real_number(value)
    if not least <= number <= most or (above and number == least):
        begin = f"above {least:g}" if above else f"from {least:g}"
        limits = begin if most == math.inf else f"{begin} to {most:g}"
        raise EvenhandError(f"{factory}({name}={value!r:.40}): give a number {limits}.")


def _number(value: float) -> str:
    """``2`` for 2.0, and all digits of any other number."""
    shown = f"{value:g}"
    return shown if float(shown) == value else repr(float(value))


# --- losses by name, and their metrics ----------------------------------------------------------------------


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
        for factory in (huber, focal, generalized_cross_entropy):
            if loss is factory:
                name = factory.__name__
                raise EvenhandError(f"loss={name}: it makes a loss and is none itself: call it, {name}().")
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


def _one_array(name: str, outputs: PyTree) -> Array:
    if isinstance(outputs, tuple | Mapping):
        raise EvenhandError(
            f"{name} takes outputs that are one array, but these are a {type(outputs).__name__}: "
            "give another model, or a loss of such outputs."
        )
    return jnp.asarray(outputs)


def _float(values: Array) -> Array:
    return values if values.dtype == jnp.float64 else values.astype(jnp.float32)


def _mean_per_example(values: Array) -> Array:
    return jnp.mean(values, axis=tuple(range(1, values.ndim)))


def _paired(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = _one_array(name, outputs), jnp.asarray(y)
    axes, others = ([n for n in array.shape if n != 1] for array in (outputs, y))
    # Axes may be folded or unfolded, but not be in another order.
    is_turned = axes != others and sorted(axes) == sorted(others)
    if outputs.shape[:1] != y.shape[:1] or outputs.ndim == 0 or outputs.size != y.size or is_turned:
        raise EvenhandError(
            f"{name} needs one target per output, but the outputs have shape {outputs.shape} and the targets "
            f"{y.shape}; check the model's number of outputs and the order of axes."
        )
    predicted = _float(outputs)
    return predicted, y.reshape(outputs.shape).astype(predicted.dtype)


def _signed(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = _one_array(name, outputs), jnp.asarray(y)
    if outputs.ndim == 0 or y.ndim == 0 or not outputs.size == outputs.shape[0] == y.size == y.shape[0]:
        raise EvenhandError(
            f"{name} needs one score and one label per row, but the outputs have shape {outputs.shape} and "
            f"the labels {y.shape}; for more than two classes use cross_entropy."
        )
    scores = _float(outputs).reshape(-1)
    return scores, jnp.where(y.reshape(-1).astype(scores.dtype) > 0, 1.0, -1.0).astype(scores.dtype)


def _classes(name: str, outputs: Array, y: Array) -> tuple[Array, Array]:
    outputs, y = _one_array(name, outputs), jnp.asarray(y)
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
