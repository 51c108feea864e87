"""Learning to reweight: examples count if a step along them lowers the loss of a few clean examples."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy.typing as npt

from evenhand import tree
from evenhand.centralized._weighting import Weighed, Weighting, normalised, stateless
from evenhand.errors import EvenhandError, array_of, real_number
from evenhand.lowering import lowered
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["learn_to_reweight"]


def learn_to_reweight(
    x: npt.NDArray[Any] | Array, y: npt.NDArray[Any] | Array, *, step: float = 1.0, kappa: float | None = None
) -> Weighting:
    r"""Weights by how much each example lowers the loss of clean validation examples (LearnReweight).

    A virtual step of plain descent has weights :math:`\epsilon` on the examples of a batch, and one step of descent of
    the validation loss on :math:`\epsilon` gives the weights of the real step:

    .. math::
        \hat\theta(\epsilon) = \theta - \eta \sum_i \epsilon_i \nabla f_i(\theta), \qquad
        w \propto \max\Big(0,\ \epsilon - \frac\kappa\eta \nabla_\epsilon L_{\text{val}}(\hat\theta(\epsilon)) \Big),
        \qquad
        -\frac{\partial L_{\text{val}}}{\partial \epsilon_i}
        = \eta \nabla f_i(\theta)^\top \nabla L_{\text{val}}(\hat\theta(\epsilon))

    scaled to a mean of 1.  Without ``kappa`` this starts from :math:`\epsilon = 0` and

    .. math:: w_i \propto \max\big(0,\ \nabla f_i(\theta)^\top \nabla L_{\text{val}}(\theta)\big);

    with it, it starts from plain training, :math:`\epsilon_i = 1/m`, and

    .. math::
        w_i \propto \max\Big(0,\ \frac1m + \kappa \nabla f_i(\theta)^\top
        \nabla L_{\text{val}}\big(\theta - \eta \tfrac1m \textstyle\sum_j \nabla f_j(\theta)\big)\Big)

    These are exact derivatives: one gradient of the validation loss, and one derivative of the batch's losses in its
    direction; with ``kappa``, one gradient of the batch before them.

    Args:
      x: features of *clean* validation examples, ``(v, ...)``, which the other methods do not have: say in a comparison
        how many there are, and take them out of the training set.  The paper has 10 balanced MNIST images, and 10 rare
        and 10 common HIV-1 examples.
      y: their labels, ``(v, ...)``.
      step: :math:`\eta > 0`, the step size of the virtual step, which only the form with ``kappa`` depends on: 1 in the
        paper's class imbalance, 0.1 on HIV-1.
      kappa: :math:`\kappa \ge 0`, 0.001 (table 7.7) or 0.1 (table 7.8) on all examples of HIV-1.  None: the form of the
        mini-batches of class imbalance.

    Raises:
      EvenhandError: no validation examples, not one label for each, or a number out of range.

    Edge cases: if no example lowers the validation loss, all weights are 0.  ``kappa=0`` is plain training.  Validation
    examples with gradients of 0 leave all weights at 0 without ``kappa`` and at 1 with it.  The weights' gradients are
    those of the model in evaluation, without dropout.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> model = eh.models.linear_regression(features=1)
      >>> params = model.init(jax.random.key(0))  # predicts 0
      >>> x, y = jnp.ones((3, 1)), jnp.array([1.0, 3.0, -1.0])
      >>> losses = model.losses(model.apply(params, x), y)
      >>> batch = eh.centralized.Weighed(params, x=x, y=y, losses=losses, progress=0.0, key=None)
      >>> clean = learn_to_reweight(jnp.ones((1, 1)), jnp.array([2.0]))
      >>> clean.weigh(model, (), batch)[0].tolist()
      [0.75, 2.25, 0.0]

    Source: Ren et al., *Learning to Reweight Examples for Robust Deep Learning*, ICML 2018, algorithm 1; Li et al.,
    *On Tilted Losses in Machine Learning*, JMLR 2023, figure 7.14, tables 7.7 and 7.8.
    """
    for name, values in (("x", x), ("y", y)):
        # NumPy cannot read the rows of a function that is being traced; their type is known.
        dtype = values.dtype if isinstance(values, Array) else array_of(values).dtype
        if dtype.kind in "OSUMm":  # "V" is bfloat16 and its like
            raise EvenhandError(f"learn_to_reweight() got {name} of type {dtype}: give an array of numbers.")
    clean_x, clean_y = jnp.asarray(x), jnp.asarray(y)
    if not clean_x.ndim or not clean_x.shape[0] or clean_y.shape[:1] != clean_x.shape[:1]:
        raise EvenhandError(
            f"learn_to_reweight() got x of shape {clean_x.shape} and y of shape {clean_y.shape}: "
            "give one label per clean validation example."
        )
    if not 0.0 < real_number(step) < math.inf:
        raise EvenhandError(f"learn_to_reweight(step={step}): a step size must be a finite number above 0.")
    if kappa is not None and not 0.0 <= real_number(kappa) < math.inf:
        raise EvenhandError(f"learn_to_reweight(kappa={kappa}): give a finite number >= 0, or None.")

    def weigh(model: Model, state: PyTree, batch: Weighed) -> tuple[Array, PyTree]:
        def losses(params: Params) -> Array:
            return model.losses(lowered(model.apply)(params, batch.x), batch.y)

        def validation(params: Params) -> Array:
            return jnp.mean(model.losses(lowered(model.apply)(params, clean_x), clean_y))

        ahead = batch.params
        if kappa is not None:
            plain = jax.grad(lambda params: jnp.mean(losses(params)))(batch.params)
            ahead = tree.subtract(ahead, tree.scale(step, plain))
        direction = jax.grad(validation)(ahead)
        # The derivative of all losses in one direction has all inner products, without a gradient per example: the
        # transpose of the gradient, which exists for models without forward mode, too, such as lstm.
        values, pull = jax.vjp(losses, batch.params)
        (products,) = jax.vjp(pull, jnp.zeros_like(values))[1]((direction,))
        scores = products if kappa is None else 1.0 / products.size + kappa * products
        return normalised(jnp.maximum(scores, 0.0)), state

    rule = f"step={step:g}" if kappa is None else f"step={step:g}, kappa={kappa:g}"
    return Weighting(stateless, weigh, f"learn_to_reweight({clean_x.shape[0]} clean rows, {rule})")
