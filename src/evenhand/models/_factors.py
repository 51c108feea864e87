"""Models of low rank: principal components, autoencoders, and the factors of a matrix with missing entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evenhand.errors import EvenhandError
from evenhand.models._adapters import from_functions
from evenhand.models._flax import from_flax
from evenhand.models._linear import Initializer, check_sizes, table_rows, vector_rows
from evenhand.models.losses import squared_error
from evenhand.types import Array, Key, Model, Params


class Reconstruction(NamedTuple):
    """Outputs of :func:`pca` and :func:`autoencoder`.

    Attributes:
      output: what the model makes of the examples, ``(n, features)``.
      example: the examples themselves, ``(n, features)``.
    """

    output: Array
    example: Array


# --- principal components -----------------------------------------------------------------------------------


def pca(features: int, *, components: int) -> Model:
    r"""Principal component analysis, ``l(U; x, y) = ||x - x U U^T||^2 - y``, with the excess loss of fair PCA.

    The label ``y`` is the loss that the example could have had: 0 for the reconstruction error itself.  **Fair PCA**
    compares each group ``g``, with rows :math:`X_g`, to the best projection :math:`\hat X_g` for that group alone,

    .. math:: f_g(U) = \tfrac{1}{|g|} \bigl( \|X_g - X_g U U^\top\|_F^2 - \|X_g - \hat X_g\|_F^2 \bigr),

    which is the mean loss of the group if each of its labels is
    :math:`\tfrac{1}{|g|} \|X_g - \hat X_g\|_F^2`.  The loss of one example may then be negative.  TERM tilts over the
    means of groups: ``eh.risks.hierarchical(eh.risks.tilted(t), eh.risks.mean(), groups, n)``, not
    ``eh.risks.tilted(t)``.

    The loss is a reconstruction error only if the columns of ``U`` are orthonormal, as they are at the start (uniformly
    distributed) but not after a step of descent: wrap the optimiser in :func:`on_orthonormal`, or call
    :func:`orthonormal` between steps.

    Args:
      features: numbers per example ``d``; examples of any shape are flattened.  They are not centred.
      components: the number ``r <= d`` of columns.

    Params:
      ``{"basis": (features, components)}``, that is ``U``.

    Metric: ``"reconstruction_error"``, :math:`\|x - x U U^\top\|^2`, whatever the labels are.

    Raises:
      EvenhandError: more components than features; not one label per row.

    Edge cases: with as many components as features every reconstruction error is 0.

    Differs from the paper: its step is along :math:`X^\top X U / n`, without the factor 2 and the part inside the span
    of ``U``.  To first order, half the step size gives the same subspace here.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> x = jnp.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
      >>> model = pca(2, components=1)
      >>> descent = on_orthonormal(optax.sgd(0.05))
      >>> plain = eh.centralized.batch(model, eh.risks.tilted(0.0), optimiser=descent)
      >>> params = eh.centralized.fit(plain, x, jnp.zeros(4), steps=200).params
      >>> model.losses(model.apply(params, x), jnp.zeros(4)).round(3).tolist()
      [0.0, 0.0, 1.0, 1.0]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (fair PCA, figure 7.10); the excess loss of
    Samadi et al., *The Price of Fair PCA*, NeurIPS 2018.
    """
    check_sizes({"features": features, "components": components})
    if components > features:
        raise EvenhandError(
            f"pca(features={features}, components={components}): there are at most {features} components."
        )

    def init(key: Key) -> Params:
        return orthonormal({"basis": jax.random.normal(key, (features, components))})

    def apply(params: Params, x: Array) -> Reconstruction:
        rows, basis = vector_rows(x, features), params["basis"]
        return Reconstruction((rows @ basis) @ basis.T, rows)

    model = from_functions(init, apply, _excess, {"reconstruction_error": _squared_distance})
    return model._replace(name=f"pca(features={features}, components={components})")


def orthonormal(params: Params) -> Params:
    r"""The parameters of :func:`pca` with orthonormal columns, ``Q`` of the QR factorisation ``U = Q R``.

    The diagonal of ``R`` is made positive, so that an orthonormal ``U`` stays as it is.

    Args:
      params: ``{"basis": U}`` with linearly independent columns.

    Example:
      >>> import jax.numpy as jnp
      >>> basis = orthonormal({"basis": jnp.array([[3.0], [-4.0]])})["basis"]
      >>> [round(float(number), 4) for number in basis[:, 0]]
      [0.6, -0.8]
    """
    q, r = jnp.linalg.qr(params["basis"])
    return {"basis": q * jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0).astype(q.dtype)[None, :]}


def on_orthonormal(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    r"""An optimiser of :func:`pca` whose every step ends in :func:`orthonormal`: ``U <- qr(U + update(gradient))``.

    Args:
      optimiser: of the step before that, such as ``optax.sgd(0.001)``.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> params = {"basis": jnp.array([[1.0], [0.0]])}
      >>> descent = on_orthonormal(optax.sgd(1.0))
      >>> updates, _ = descent.update({"basis": jnp.array([[0.0], [-1.0]])}, descent.init(params), params)
      >>> [round(float(number), 4) for number in optax.apply_updates(params, updates)["basis"][:, 0]]
      [0.7071, 0.7071]

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (the authors' code of fair PCA).
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise EvenhandError("on_orthonormal needs the parameters: update(gradient, state, params).")
        updates, state = optimiser.update(updates, state, params)
        after = orthonormal(optax.apply_updates(params, updates))
        return jax.tree.map(jnp.subtract, after, params), state

    return optax.GradientTransformation(optimiser.init, update)


def _squared_distance(outputs: Reconstruction, y: Array) -> Array:
    return jnp.sum(jnp.square(outputs.output - outputs.example), axis=1)


def _excess(outputs: Reconstruction, y: Array) -> Array:
    errors, y = _squared_distance(outputs, y), jnp.asarray(y)
    if y.size != errors.size or y.shape[:1] != errors.shape:
        raise EvenhandError(
            f"pca needs one label per row, the loss that it could have had or 0, but for {errors.size} rows the labels "
            f"have shape {y.shape}."
        )
    return errors - y.reshape(errors.shape).astype(errors.dtype)


# --- autoencoders -------------------------------------------------------------------------------------------


def autoencoder(features: int, *, widths: Sequence[int] = (1000, 500, 250, 30)) -> Model:
    r"""Autoencoder with sigmoids, trained on the mean squared error of each example, ``l = (1 / d) ||z(x) - x||^2``.

    An encoder of the given widths, the last being the code, and a decoder with the same widths in reverse:

    .. math:: x \to h_1 \to \dots \to h_k = c \to h_{k-1}' \to \dots \to h_1' \to z(x)

    Each arrow is an affine layer.  A sigmoid follows each but the code ``c``, so that reconstructions lie between 0
    and 1.  Kernels start Glorot uniform, biases at 0.  2,837,314 parameters for 784 pixels.

    Args:
      features: numbers per example ``d``, from 0 to 1; examples of any shape are flattened.
      widths: of the encoder's layers, the code last.

    Params:
      ``dense_0``, ``dense_1``, ..., each with ``kernel`` and ``bias``.

    Labels are not read; metric ``"squared_error"``, which is the loss.

    Raises:
      EvenhandError: no widths, or one that is not a whole number from 1.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.autoencoder(784).init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      2837314

    Source: Hinton and Salakhutdinov, *Reducing the Dimensionality of Data with Neural Networks*, Science 2006; Li et
    al., *Private Adaptive Optimization with Side Information*, ICML 2022 (MNIST).
    """
    if not np.ndim(widths) or not len(widths):
        raise EvenhandError(
            f"widths={widths}: give the widths of the encoder's layers, the code last, e.g. (256, 30)."
        )
    check_sizes({"features": features, **{f"widths[{i}]": width for i, width in enumerate(widths)}})
    widths = tuple(map(int, widths))
    model = from_flax(
        _Autoencoder(features, widths),
        loss=_mean_square,
        sample=jnp.zeros((1, features), jnp.float32),
        metrics={"squared_error": _mean_square},
    )
    return model._replace(name=f"autoencoder(features={features}, widths={widths})")


# flax's own, which is up to one bit from the library's: the committed results were made with it.
_glorot_uniform: Initializer = nn.initializers.glorot_uniform()


class _Autoencoder(nn.Module):
    features: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Reconstruction:
        rows = vector_rows(x, self.features)
        code, hidden = len(self.widths) - 1, rows
        for layer, width in enumerate((*self.widths, *self.widths[-2::-1], self.features)):
            hidden = nn.Dense(width, kernel_init=_glorot_uniform, name=f"dense_{layer}")(hidden)
            hidden = hidden if layer == code else nn.sigmoid(hidden)
        return Reconstruction(hidden, rows)


def _mean_square(outputs: Reconstruction, y: Array) -> Array:
    return jnp.mean(jnp.square(outputs.output - outputs.example), axis=1)


# --- matrix factorisation -----------------------------------------------------------------------------------


def matrix_factorisation(users: int, items: int, *, dimension: int = 100) -> Model:
    r"""Matrix factorisation, ``l(P, Q; (u, i), y) = (1 / 2) (p_u . q_i - y)^2``.

    The rating of item ``i`` by user ``u`` is ``y``, and its prediction is the product of two rows of ``P`` and ``Q``.
    No biases and no regularisation.  Factors start as :math:`0.01 \, \xi` with :math:`\xi` standard normal truncated to
    :math:`|\xi| \le 2`; metric ``"squared_error"``, twice the loss.

    Args:
      users: the number of rows of ``P``.
      items: the number of rows of ``Q``.
      dimension: of their vectors.

    Params:
      ``{"users": (users, dimension), "items": (items, dimension)}``.

    Inputs are integers ``(n, 2)``: a user ``0 .. users - 1`` and an item ``0 .. items - 1``.  Other numbers give NaN.

    Raises:
      EvenhandError: inputs of another form.

    Example:
      >>> import jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.matrix_factorisation(2, 3, dimension=1)
      >>> params = {"users": jnp.array([[1.0], [2.0]]), "items": jnp.array([[0.0], [1.0], [2.0]])}
      >>> model.losses(model.apply(params, jnp.array([[0, 1], [1, 2]])), jnp.array([3.0, 3.0]))
      Array([2. , 0.5], dtype=float32)

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023
    (MovieLens, the authors' code).
    """
    check_sizes({"users": users, "items": items, "dimension": dimension})

    def init(key: Key) -> Params:
        keys, sizes = jax.random.split(key), {"users": users, "items": items}
        return {
            name: 0.01 * jax.random.truncated_normal(key, -2.0, 2.0, (size, dimension))
            for key, (name, size) in zip(keys, sizes.items(), strict=True)
        }

    def apply(params: Params, x: Array) -> Array:
        if x.shape[1:] != (2,) or not jnp.issubdtype(x.dtype, jnp.integer):
            raise EvenhandError(
                "matrix_factorisation reads whole numbers of shape (rows, 2), a user and an item, but the inputs are "
                f"{x.dtype} of shape {x.shape}."
            )
        user, item = (table_rows(params[name], x[:, i]) for i, name in enumerate(("users", "items")))
        return jnp.sum(user * item, axis=1)

    model = from_functions(init, apply, _half_square, {"squared_error": squared_error})
    return model._replace(name=f"matrix_factorisation({users}, {items}, dimension={dimension})")


def _half_square(outputs: Array, y: Array) -> Array:
    return 0.5 * squared_error(outputs, y)
