"""Linear models: linear and softmax regression, the support vector machine, and the affine layer that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, real_number, truth_value, whole_number
from evenhand.models._flax import from_flax
from evenhand.models._modules import State
from evenhand.models.losses import LossName, binary_accuracy, hinge
from evenhand.types import Array, Key, Model, Params


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
    name = f"linear_regression(features={features}, outputs={outputs})"
    return named_model(name, Affine(features, outputs, zeros), features, loss="squared_error")


def softmax_regression(features: int, *, classes: int, bias: bool = True) -> Model:
    r"""Multinomial logistic regression, ``l(w; x, y) = log sum_c exp(z_c) - z_y`` with ``z = x W + b``.

    Kernel Glorot uniform, bias 0, no regularisation; metric ``"accuracy"``.

    Args:
      features: numbers per example; examples of any shape are flattened.
      classes: labels are integers ``0 .. classes - 1``.
      bias: whether there is a ``b``; Delta-FL's linear model for 62 classes of images, of 48,608 parameters, has none.

    Params:
      ``{"kernel": (features, classes), "bias": (classes,)}``; no ``"bias"`` without one.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.softmax_regression(60, classes=10)
      >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
      610
    """
    bias = truth_value("bias", bias)
    check_sizes({"features": features, "classes": classes})
    name = f"softmax_regression(features={features}, classes={classes}{'' if bias else ', bias=False'})"
    return named_model(name, Affine(features, classes, glorot_uniform, bias), features)


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
      EvenhandError: ``regularization`` is negative, or not a finite number.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.svm(2, regularization=0.1)
      >>> params = {"kernel": jnp.array([[1.0], [0.0]]), "bias": jnp.zeros(1)}
      >>> model.losses(model.apply(params, jnp.eye(2)), jnp.array([1, -1]))
      Array([0.05, 1.05], dtype=float32)

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020 (Vehicle).
    """
    if not 0.0 <= real_number(regularization) < math.inf:
        raise EvenhandError(
            Argument("svm(regularization=)", f"{regularization!r:.40}"),
            ": give a finite number of at least 0.",
        )
    check_sizes({"features": features})
    name = f"svm(features={features}, regularization={regularization})"
    linear = named_model(name, Affine(features, 1, zeros), features, loss="hinge")

    def apply(params: Params, x: Array) -> Margin:
        score = linear.apply(params, x)[:, 0]
        penalty = 0.5 * regularization * jnp.sum(jnp.square(params["kernel"]))
        return Margin(score, jnp.full_like(score, penalty))

    def losses(outputs: Margin, y: Array) -> Array:
        return hinge(outputs.score, y) + outputs.penalty

    def right(outputs: Margin, y: Array) -> Array:
        return binary_accuracy(outputs.score, y)

    return linear._replace(apply=apply, losses=losses, metrics={"accuracy": right})


# --- the affine layer ---------------------------------------------------------------------------------------


Initializer: TypeAlias = Callable[..., Array]

zeros: Initializer = nn.initializers.zeros_init()


def glorot_uniform(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """``U(-a, a)``, ``a^2 = 6 / (fan_in + fan_out)``, the same numbers as from flax's initialiser of that name."""
    limit = math.sqrt(6.0 / (math.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    # Drawn flat: on the CPU, XLA takes six times longer to compile the draw of a small matrix.
    draw = jax.random.uniform(key, (math.prod(shape),), dtype, -limit, limit)
    return draw.reshape(tuple(shape))


class Affine(nn.Module):
    """``x @ kernel + bias`` of rows flattened to ``features`` numbers; parameters ``kernel`` and ``bias``.

    Attributes:
      features: numbers per example.
      outputs: outputs per example.
      kernel_init: initialiser of the kernel ``(features, outputs)``; the bias starts at 0.
      has_bias: whether there is one.
    """

    features: int
    outputs: int
    kernel_init: Initializer
    has_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", self.kernel_init, (self.features, self.outputs), jnp.float32)
        if not self.has_bias:
            return vector_rows(x, self.features) @ kernel
        bias = self.param("bias", zeros, (self.outputs,), jnp.float32)
        return vector_rows(x, self.features) @ kernel + bias[None, :]


def vector_rows(x: Array, features: int) -> Array:
    """Rows of any shape as float32 vectors, ``(n, features)``."""
    x = jnp.asarray(x)
    if x.ndim == 0 or math.prod(x.shape[1:]) != features:
        raise EvenhandError(
            f"The model was made for {features} features per row, but a row has shape {x.shape[1:]}; "
            f"give it features={math.prod(x.shape[1:])} or other data."
        )
    return x.reshape(x.shape[0], features).astype(jnp.float32)


def named_model(
    name: str,
    module: nn.Module,
    *shape: int,
    loss: LossName = "cross_entropy",
    dtype: npt.DTypeLike = np.float32,
    state: State = "refuse",
) -> Model:
    """The model of a module; flax learns the shapes of the parameters from an example of zeros of this shape."""
    return from_flax(module, loss=loss, sample=np.zeros((1, *shape), dtype), state=state)._replace(name=name)


def table_rows(table: npt.ArrayLike, numbers: Array) -> Array:
    """The rows of a table that have these numbers, such as tokens; NaN for a number that is not one of a row."""
    # JAX would count negative numbers from the end.
    return jnp.asarray(table).at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Checks that the widths of a model, by argument name, are whole numbers in range.

    Raises:
      EvenhandError: one of them is not.
    """
    for name, size in sizes.items():
        whole_number(name, size, 1)
