"""A model that starts where training on public examples has ended."""

from __future__ import annotations

import jax
import optax

from evenhand import local
from evenhand.privacy._public import public_examples
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, Model, Params

__all__ = ["warm_start"]


def warm_start(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    public: tuple[Array, Array],
    epochs: int = 10,
    batch_size: int | None = 64,
) -> Model:
    r"""The same model, whose initial parameters have been trained on public examples alone.

    .. math:: w^0 \leftarrow w^0 + \text{optimiser}(\nabla \hat F(w^0; b)), \qquad \hat F \text{ the mean public loss}

    Private examples have no part in it, so that the model's private training promises what it would promise anyway.

    Args:
      model: what is trained.
      optimiser: a step size, or any optax optimiser; the paper's is
        ``optax.rmsprop(lr, decay=0.9, eps=1e-3, eps_in_sqrt=False)``.
      public: ``(x, y)``, examples that are not among the private ones.
      epochs: passes over them.
      batch_size: of a step; None: all.

    Returns:
      A model like ``model``, but for ``init``.

    Raises:
      EvenhandError: as :func:`evenhand.local.sgd`, or ``public`` is not as many inputs as labels.

    Example:
      >>> import evenhand as eh, optax
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> rmsprop = optax.rmsprop(0.01, decay=0.9, eps=1e-3, eps_in_sqrt=False)
      >>> warm = warm_start(model, rmsprop, public=(x[:100], y[:100]))
      >>> work = eh.privacy.dp_sgd(warm, 0.5, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20)

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, appendix, "DP-SGD with warm
    start".
    """
    examples = public_examples("warm_start", model, public, batch_size)
    work = local.sgd(model, optimiser, epochs=epochs, batch_size=batch_size)

    def init(key: Key) -> Params:
        return work.solve(model.init(key), examples.data(), stream(key, Purpose.WORK), optax.identity())[0]

    return model._replace(init=jax.jit(init), name=f"warm_start({model.name})")
