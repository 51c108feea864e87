"""Models from the user's functions, and from another model: with another loss, or other targets."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast, get_args

import jax

from evenhand.errors import Argument, EvenhandError, ModelError, expect, real_number
from evenhand.models._modules import is_equinox
from evenhand.models.losses import Loss, LossLike, LossName, PerRow, default_metrics, resolve
from evenhand.types import Array, Key, Model, Params, PyTree

# --- functions -----------------------------------------------------------------------------


def from_functions(
    init: Callable[[Key], Params],
    apply: Callable[[Params, Array], PyTree],
    losses: PerRow | Loss,
    metrics: Mapping[str, PerRow] | None = None,
    apply_train: Callable[[Params, Array, Key], PyTree] | None = None,
) -> Model:
    r"""A model made of pure functions, which are used as they are.

    Args:
      init: ``key -> params``, a pytree of float arrays.
      apply: ``(params, x) -> outputs``; ``x`` and outputs have rows first.
      losses: ``(outputs, y) -> (rows,)``, one loss per example, not their mean; or a loss such as ``huber(1.0)``.
      metrics: name -> ``(outputs, y) -> (rows,)``; None: those of a loss such as ``huber(1.0)``, none of a function.
      apply_train: ``(params, x, key) -> outputs`` in training; None: ``apply``.

    Raises:
      EvenhandError: a function is an equinox module, which holds its parameters: :func:`from_equinox` takes it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.from_functions(
      ...     init=lambda key: jnp.zeros(2),
      ...     apply=lambda params, x: x @ params,
      ...     losses=lambda outputs, y: (outputs - y) ** 2,
      ... )
      >>> model.losses(model.apply(model.init(jax.random.key(0)), jnp.eye(2)), jnp.array([1.0, 2.0]))
      Array([1., 4.], dtype=float32)
    """
    for argument, function in (("init", init), ("apply", apply), ("apply_train", apply_train)):
        # An equinox function without arrays, such as a partial one, is a function like others.
        if is_equinox(function) and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(function)):
            raise EvenhandError(
                f"from_functions: {argument}= is the equinox module {type(function).__name__}, which holds its "
                "parameters: give it to eh.models.from_equinox(module, loss=..., sample=...)."
            )
    if metrics is None:
        metrics = losses.metrics if isinstance(losses, Loss) else {}
    return Model(init, apply, losses, dict(metrics), apply_train)


# --- another loss -------------------------------------------------------------------------------------------


def with_loss(model: Model, loss: LossLike) -> Model:
    r"""``model`` with another loss: the same parameters and outputs, trained and judged by ``loss``.

    Its metrics stay; where it has none, it gets those of the loss, if any.

    Args:
      model: its outputs are one array.
      loss: one of :mod:`evenhand.models.losses`, such as ``focal(gamma=2.0)``; ``(outputs, y) -> (rows,)``; or
        ``"cross_entropy"``, ``"squared_error"``, ``"hinge"``, ``"logistic"``.

    Raises:
      EvenhandError: the loss has an unknown name; the metrics say that the model is for classes and the loss for real
        targets, or the reverse; or the model is one of :func:`svm`, whose outputs hold a penalty beside the score.  A
        loss of :mod:`evenhand.models.losses` raises where it first gets other outputs that are no array.

    Edge cases: a model of :func:`standardized` is trained by the loss in standard units, and reports what it did
    before.

    Example:
      >>> from evenhand import models
      >>> models.with_loss(models.softmax_regression(features=64, classes=10), models.losses.focal(gamma=2.0))
      <Model softmax_regression(features=64, classes=10, loss=focal(gamma=2))>
    """
    expect("model", model, Model, "eh.models.softmax_regression(features=64, classes=10)")
    row_loss = resolve(loss)
    name = loss if isinstance(loss, str) else _name_of(row_loss)
    given, whose = Argument("loss", name), model.name or "this model"
    if not callable(row_loss):
        raise EvenhandError(
            given, ": give a function (outputs, y) -> (rows,), or a loss such as focal(gamma=2.0)."
        )
    if model.name.startswith("svm("):
        raise ModelError(
            given,
            f" does not fit {whose}, whose outputs are a score and a penalty: give a model of one array.",
        )
    own = default_metrics(row_loss)
    for_model, for_loss = _labels_of(model.metrics), _labels_of(own)
    if for_model and for_loss and for_model != for_loss:
        raise ModelError(
            given, f" is for {for_loss}, and {whose} for {for_model}: give a loss of {for_model}."
        )
    before = model.losses
    return model._replace(
        losses=before._replace(function=row_loss) if isinstance(before, _Trained) else row_loss,
        metrics=dict(model.metrics or own),
        name=_name_with(model.name, name),
    )


def _labels_of(metrics: Mapping[str, PerRow]) -> str:
    """The labels that these metrics are for; empty if they do not say."""
    if "accuracy" in metrics:
        return "classes"
    return "real targets" if "squared_error" in metrics else ""


def _name_of(loss: PerRow) -> str:
    """What a loss is called; a user's function never has the name of another one of the library."""
    # A partial function, or an object that can be called, has no name.
    name = loss.name if isinstance(loss, Loss) else getattr(loss, "__name__", "<lambda>")
    is_another = name in get_args(LossName) and resolve(cast(LossName, name)) is not loss
    return type(loss).__name__ if name == "<lambda>" or is_another else name


def _name_with(model: str, loss: str) -> str:
    """A model's name with ``loss`` as its last argument, in the place of an earlier one; that of no name is none."""
    if not model:
        return ""
    try:
        call, value = (ast.parse(text, mode="eval").body for text in (model, loss))
    except SyntaxError:  # the user's own names
        return f"{model} with {loss}"
    if not isinstance(call, ast.Call):
        call = ast.Call(call, [], [])
    kept = [word for word in call.keywords if word.arg != "loss"]
    return ast.unparse(ast.Call(call.func, call.args, [*kept, ast.keyword("loss", value)]))


# --- real targets in standard units -------------------------------------------------------------------------


def standardized(model: Model, *, mean: float, deviation: float) -> Model:
    r"""``model`` for targets of any size: trained on ``(y - mean) / deviation``, reported in the units of ``y``.

    With the outputs :math:`f(w; x)` and the losses :math:`\ell(\text{outputs}, y)` of ``model``, and ``mean``
    :math:`\mu` and ``deviation`` :math:`\sigma`, the new model

    * predicts :math:`\mu + \sigma f(w; x)`;
    * is trained by :math:`\ell(f(w; x), (y - \mu) / \sigma)`, so the usual step sizes, tilts and clips apply;
    * reports :math:`\ell(\mu + \sigma f(w; x), y)` as its loss, through ``metrics["loss"]``, and its other metrics
      likewise.  A squared error is :math:`\sigma^2` times the one that it is trained by.

    Parameters are those of ``model``: its first prediction, where its outputs begin at 0, is the mean.

    Args:
      model: its outputs are predictions of real targets, one array.
      mean: of the training targets, as in :class:`evenhand.data.Target`.
      deviation: their standard deviation, > 0.

    Raises:
      EvenhandError: a number is not finite, or ``deviation`` is not positive; or, where it is first applied, the model
        has outputs that are no array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.standardized(models.linear_regression(2), mean=100.0, deviation=10.0)
      >>> outputs, y = model.apply(model.init(jax.random.key(0)), jnp.eye(2)), jnp.array([90.0, 130.0])
      >>> outputs[:, 0].tolist(), model.losses(outputs, y).tolist(), model.metrics["loss"](outputs, y).tolist()
      ([100.0, 100.0], [1.0, 9.0], [100.0, 900.0])
    """
    if not (math.isfinite(real_number(mean)) and 0 < real_number(deviation) < math.inf):
        raise EvenhandError(
            f"standardized(mean={mean}, deviation={deviation}): give finite numbers, and a deviation above 0."
        )
    scale = (float(mean), float(deviation))
    return model._replace(
        apply=_Predict(model.apply, *scale),
        losses=_Trained(model.losses, *scale),
        metrics={"loss": model.losses, **model.metrics},
        apply_train=None if model.apply_train is None else _Predict(model.apply_train, *scale),
        statistics=(statistics := model.statistics)
        and statistics._replace(forward=_PredictAndMeasure(statistics.forward, *scale)),
        name=f"standardized({model.name}, mean={scale[0]}, deviation={scale[1]})",
    )


# Values rather than closures: equal models then share compiled programs.
class _Predict(NamedTuple):
    """Outputs in own units, in evaluation and in training."""

    function: Any
    mean: float
    deviation: float

    def __call__(self, params: Params, x: Array, *key: Key) -> Array:
        return self.mean + self.deviation * _one_array(self.function(params, x, *key))


class _PredictAndMeasure(NamedTuple):
    """Outputs in own units beside the parameters with new running statistics."""

    function: Any
    mean: float
    deviation: float

    def __call__(self, params: Params, x: Array, inside: Array, key: Key) -> tuple[Array, Params]:
        outputs, after = self.function(params, x, inside, key)
        return self.mean + self.deviation * _one_array(outputs), after


def _one_array(outputs: PyTree) -> Array:
    if not jax.tree_util.all_leaves([outputs]):
        raise ModelError(
            f"standardized takes a model whose outputs are one array, but these are a {type(outputs).__name__}: give "
            "another model."
        )
    return outputs


class _Trained(NamedTuple):
    """Losses in standard units."""

    function: PerRow
    mean: float
    deviation: float

    def __call__(self, outputs: Array, y: Array) -> Array:
        return self.function((outputs - self.mean) / self.deviation, (y - self.mean) / self.deviation)
