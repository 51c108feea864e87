"""Models of real targets that are trained in standard units and judged in the targets' own."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from evenhand.errors import EvenhandError
from evenhand.models._losses import PerRow
from evenhand.types import Array, Key, Model, Params

__all__ = ["standardized"]


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
      EvenhandError: a number is not finite, or ``deviation`` is not positive.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.standardized(models.linear_regression(2), mean=100.0, deviation=10.0)
      >>> outputs, y = model.apply(model.init(jax.random.key(0)), jnp.eye(2)), jnp.array([90.0, 130.0])
      >>> outputs[:, 0].tolist(), model.losses(outputs, y).tolist(), model.metrics["loss"](outputs, y).tolist()
      ([100.0, 100.0], [1.0, 9.0], [100.0, 900.0])
    """
    if not (math.isfinite(mean) and math.isfinite(deviation) and deviation > 0):
        raise EvenhandError(
            f"standardized(mean={mean}, deviation={deviation}): give finite numbers, and a deviation above 0."
        )
    of = (float(mean), float(deviation))
    return model._replace(
        apply=_Predict(model.apply, *of),
        losses=_Trained(model.losses, *of),
        metrics={"loss": model.losses, **model.metrics},
        apply_train=None if model.apply_train is None else _Predict(model.apply_train, *of),
    )


# Values rather than closures: equal models then share compiled programs.
class _Predict(NamedTuple):
    """Outputs in own units, in evaluation and in training."""

    function: Any
    mean: float
    deviation: float

    def __call__(self, params: Params, x: Array, *key: Key) -> Array:
        return self.mean + self.deviation * self.function(params, x, *key)


class _Trained(NamedTuple):
    """Losses in standard units."""

    function: PerRow
    mean: float
    deviation: float

    def __call__(self, outputs: Array, y: Array) -> Array:
        return self.function((outputs - self.mean) / self.deviation, (y - self.mean) / self.deviation)
