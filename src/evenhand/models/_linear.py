"""Models that see an example as a vector: linear and softmax regression, support vector machine, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError
from evenhand.models._adapters import from_flax, from_functions
from evenhand.models._layers import Affine, check_sizes, glorot_uniform, vector_rows, zeros
from evenhand.models._losses import binary_accuracy, hinge
from evenhand.types import Array, Model, Params

__all__ = ["Margin", "linear_regression", "mlp", "softmax_regression", "svm"]


def linear_regression(features: int, *, outputs: int = 1) -> Model:
    r"""Linear regression ``x W + b`` with squared error, ``l(w; x, y) = (1 / d) ||x W + b - y||^2``.

    No factor of one half: the mean loss is the mean squared error.  ``W`` and ``b`` start at 0; metrics are
    ``"squared_error"`` and ``"absolute_error"``.

    Args:
      features: numbers per example; examples of any shape are flattened.
      outputs: the number ``d`` of targets per example, ``(n, d)``, or ``(n,)`` where ``d`` is 1.

    Params:
      ``{"kernel": (features, outputs), "bias": (outputs,)}``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.linear_regression(2)
      >>> x, y = jnp.eye(2), jnp.array([1.0, 3.0])
      >>> model.losses(model.apply(model.init(jax.random.key(0)), x), y)
      Array([1., 9.], dtype=float32)
    """
    check_sizes({"features": features, "outputs": outputs})
    model = from_flax(Affine(features, outputs, zeros), loss="squared_error", sample=_vector(features))
    return model._replace(name=f"linear_regression(features={features}, outputs={outputs})")


def softmax_regression(features: int, *, classes: int) -> Model:
    r"""Multinomial logistic regression, ``l(w; x, y) = log sum_c exp(z_c) - z_y`` with ``z = x W + b``.

    Kernel Glorot uniform, bias 0, no regularisation; metric ``"accuracy"``.

    Args:
      features: numbers per example; examples of any shape are flattened.
      classes: labels are integers ``0 .. classes - 1``.

    Params:
      ``{"kernel": (features, classes), "bias": (classes,)}``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.softmax_regression(60, classes=10)
      >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
      610
    """
    check_sizes({"features": features, "classes": classes})
    module = Affine(features, classes, glorot_uniform)
    model = from_flax(module, loss="cross_entropy", sample=_vector(features))
    return model._replace(name=f"softmax_regression(features={features}, classes={classes})")


class Margin(NamedTuple):
    """Outputs of :func:`svm`.

    Attributes:
      score: ``x W + b``, ``(n,)``.
      penalty: ``(lambda / 2) ||W||^2``, the same number in each of the ``n`` rows.
    """

    score: Array
    penalty: Array


def svm(features: int, *, regularization: float = 0.01) -> Model:
    r"""Linear support vector machine, ``l(w; x, y) = max(0, 1 - y (x W + b)) + (lambda / 2) ||W||^2``.

    Labels are -1/+1 or 0/1; ``W`` and ``b`` start at 0 and ``b`` is not penalised.  The penalty is part of every
    example's loss, through the outputs (:class:`Margin`), so the mean over any examples, with any weights that
    sum to 1, is the mean hinge loss plus one penalty.  Metric: ``"accuracy"``, a score of 0 being wrong.

    Differs from the paper: there a client's objective is the *sum* ``(1/2) ||W||^2 + sum_i max(0, 1 - y_i
    z_i)``, which is ``n_k`` times this one with ``regularization = 1 / n_k``; means keep step sizes and
    ``F_k`` comparable between clients of different sizes.

    Args:
      features: numbers per example; examples of any shape are flattened.
      regularization: ``lambda >= 0``.

    Params:
      ``{"kernel": (features, 1), "bias": (1,)}``.

    Raises:
      EvenhandError: ``regularization`` is negative.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.svm(2, regularization=0.1)
      >>> params = {"kernel": jnp.array([[1.0], [0.0]]), "bias": jnp.zeros(1)}
      >>> model.losses(model.apply(params, jnp.eye(2)), jnp.array([1, -1]))
      Array([0.05, 1.05], dtype=float32)

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (Vehicle).
    """
    if regularization < 0:
        raise EvenhandError(f"regularization must be at least 0, but it is {regularization}.")
    check_sizes({"features": features})
    linear = from_flax(Affine(features, 1, zeros), loss="hinge", sample=_vector(features))

    def apply(params: Params, x: Array) -> Margin:
        score = linear.apply(params, x)[:, 0]
        penalty = 0.5 * regularization * jnp.sum(jnp.square(params["kernel"]))
        return Margin(score, jnp.full_like(score, penalty))

    def losses(outputs: Margin, y: Array) -> Array:
        return hinge(outputs.score, y) + outputs.penalty

    def right(outputs: Margin, y: Array) -> Array:
        return binary_accuracy(outputs.score, y)

    model = from_functions(init=linear.init, apply=apply, losses=losses, metrics={"accuracy": right})
    return model._replace(name=f"svm(features={features}, regularization={regularization:g})")


def mlp(features: int, *, classes: int, hidden: Sequence[int] = (128,)) -> Model:
    r"""Multilayer perceptron with ReLUs, ``z = relu(... relu(x W_0 + b_0) ...) W + b``, and cross-entropy.

    Kernels Glorot uniform, biases 0; metric ``"accuracy"``.

    Args:
      features: numbers per example; examples of any shape are flattened.
      classes: labels are integers ``0 .. classes - 1``.
      hidden: widths of the hidden layers; empty: softmax regression.

    Params:
      ``dense_0``, ``dense_1``, ..., ``output``, each with ``kernel`` and ``bias``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.mlp(784, hidden=(300, 100), classes=10)
      >>> sorted(jax.eval_shape(model.init, jax.random.key(0)))
      ['dense_0', 'dense_1', 'output']
    """
    if isinstance(hidden, int):
        raise EvenhandError(
            f"hidden={hidden}: give the widths of all hidden layers, e.g. hidden=({hidden},)."
        )
    check_sizes(
        {"features": features, "classes": classes, **{f"hidden[{i}]": w for i, w in enumerate(hidden)}}
    )
    model = from_flax(
        _Perceptron(features, tuple(hidden), classes), loss="cross_entropy", sample=_vector(features)
    )
    return model._replace(name=f"mlp(features={features}, classes={classes}, hidden={tuple(hidden)})")


class _Perceptron(nn.Module):
    features: int
    hidden: tuple[int, ...]
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = vector_rows(x, self.features)
        for layer, width in enumerate(self.hidden):
            x = nn.relu(nn.Dense(width, kernel_init=glorot_uniform, name=f"dense_{layer}")(x))
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


def _vector(features: int) -> npt.NDArray[np.float32]:
    return np.zeros((1, features), np.float32)
