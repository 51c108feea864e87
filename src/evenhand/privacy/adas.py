"""AdaS: AdaDPS without privacy."""

from __future__ import annotations

import optax

from evenhand.local import Work
from evenhand.privacy._clean import clean_work
from evenhand.privacy._side import PublicKind, preconditioned, side_information
from evenhand.privacy._work import optimiser_of
from evenhand.types import Array, Model, Params

__all__ = ["adas"]


def adas(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    divided_by: Params | None = None,
    public: tuple[Array, Array] | None = None,
    public_batch_size: int | None = None,
    kind: PublicKind = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    refresh_every: int | None = None,
) -> Work:
    r"""AdaS: AdaDPS on ordinary mini-batches, without clipping and noise.  It promises no privacy.

    .. math:: w^{t+1} = w^t + \text{optimiser}\Big(\frac1{|B|} \sum_{i \in B} \frac{g_i}{A^t}\Big)

    Args:
      model, optimiser: as in :func:`evenhand.privacy.adadps`.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.
      divided_by, public, public_batch_size, kind, decay, eps, refresh_every: as in :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: as :func:`evenhand.privacy.adadps` and :func:`evenhand.local.sgd`.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> halves = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), model.init(jax.random.key(0)))
      >>> adas(model, 0.05, divided_by=halves, epochs=1, batch_size=10).privacy is None
      True

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, section 4.
    """
    side = side_information(
        "adas",
        model,
        divided_by=divided_by,
        public=public,
        public_batch_size=public_batch_size,
        kind=kind,
        decay=decay,
        eps=eps,
        refresh_every=refresh_every,
    )
    rule = preconditioned(optimiser_of("adas", optimiser), side, clip=1.0)
    return clean_work(model, rule, epochs=epochs, steps=steps, batch_size=batch_size)
