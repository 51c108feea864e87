"""Fixed scales for AdaDPS, from how often tokens occur."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from evenhand._platform import check_process
from evenhand.errors import EvenhandError
from evenhand.types import Array, Model, Params

__all__ = ["tfidf_scales", "token_frequencies"]


def token_frequencies(model: Model, x: Array, *, most: float = 1e4, unit: float = 100.0) -> Params:
    r"""Scales :math:`A` that are small for rare tokens, whose weights then take larger steps.

    .. math:: A_j = \frac{100}{\min(10^4, \max_k f_k / f_j)}, \qquad f_j = \frac{\text{count}_j + 0.1}{n} + 10^{-10}

    for the weights of token :math:`j`, and 1 for biases.

    Args:
      model: a linear model or embedding of tokens: weights are the arrays whose first axis has an entry for each token.
      x: how often each token occurs in each text, ``(n, tokens)``.  **These texts should be public**: where they are
        the private ones, :math:`A` tells about them what no accountant sees.
      most: the largest factor between the steps of two tokens, :math:`10^4` above.
      unit: the scale of the most frequent token, 100 above.

    Returns:
      A tree like the parameters, for ``divided_by`` of :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: ``x`` is not a matrix of counts, or the model has no weights for that many tokens.

    Edge cases: biases keep the scale 1, so that ``unit`` decides how much of the clip they take.  Where texts are
    padded to a length, as in the authors' code, padding is the most frequent token, and the scales of all words are
    smaller: give it a column, or divide ``most`` and ``unit`` by how much more frequent than any word it would be.

    Differs from the paper: its code counts the tokens of the private texts.

    Example:
      >>> import evenhand as eh, numpy as np
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> scales = token_frequencies(model, np.array([[8, 1, 0], [8, 0, 0]]))
      >>> [round(float(scale), 2) for scale in scales["kernel"][:, 0]]
      [100.0, 6.83, 0.62]

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, section 4.2, with the constants
    of its code.
    """
    counts = _sums("token_frequencies", x)
    if not most >= 1.0 or not 0.0 < unit < np.inf:
        raise EvenhandError(
            f"token_frequencies(most={most}, unit={unit}): give at least 1, and a number above 0."
        )
    shares = (counts + 0.1) / len(x) + 1e-10
    return _on_weights("token_frequencies", model, unit / np.minimum(most, shares.max() / shares))


def tfidf_scales(model: Model, x: Array, *, special: Sequence[int] = (0, 1, 2)) -> Params:
    r"""Scales :math:`A` that are small for tokens of large TF-IDF, whose weights then take larger steps.

    .. math:: A_j = \frac1{10 \, \big(\sum_i \text{tfidf}_{ij} + 10^{-10}\big)}

    for the weights of token :math:`j`, 100 for those of special tokens, and 1 for biases.

    Args:
      model: as in :func:`token_frequencies`.
      x: the TF-IDF of each token in each text, ``(n, tokens)``, **of public texts**, as there.
      special: tokens for padding, the start of a text, and words outside the vocabulary.

    Returns:
      A tree like the parameters, for ``divided_by`` of :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: as :func:`token_frequencies`, or a special token that does not exist.

    Differs from the paper: its code takes the TF-IDF of the private texts, and document frequencies from the test set,
    too.

    Example:
      >>> import evenhand as eh, numpy as np
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> scales = tfidf_scales(model, np.array([[9.0, 0.1, 0.0], [9.0, 0.1, 0.5]]), special=(0,))
      >>> [round(float(scale), 2) for scale in scales["kernel"][:, 0]], scales["bias"].tolist()
      ([100.0, 0.5, 0.2], [1.0, 1.0])

    Source: as :func:`token_frequencies`.
    """
    factors = 10.0 * (_sums("tfidf_scales", x) + 1e-10)
    for token in special:
        if not 0 <= token < len(factors):
            raise EvenhandError(
                f"tfidf_scales(special={tuple(special)}): tokens are 0 to {len(factors) - 1}."
            )
        factors[token] = 0.01
    return _on_weights("tfidf_scales", model, 1.0 / factors)


def _sums(who: str, x: Array) -> np.ndarray:
    """The sum of each column, in float64."""
    values = np.asarray(x)
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all() or (values < 0).any():
        raise EvenhandError(
            f"{who}(): give one row of numbers of at least 0 for each text, one column per token."
        )
    return values.sum(axis=0, dtype=np.float64)


def _on_weights(who: str, model: Model, scales: np.ndarray) -> Params:
    check_process()
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def is_weight(leaf: Array) -> bool:
        return leaf.ndim >= 2 and leaf.shape[0] == len(scales)

    def spread(leaf: Array) -> Array:
        if not is_weight(leaf):
            return jnp.ones(leaf.shape, leaf.dtype)
        column = jnp.asarray(scales, leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.broadcast_to(column, leaf.shape)

    if not any(is_weight(leaf) for leaf in jax.tree.leaves(shapes)):
        raise EvenhandError(f"{who}(): the model has no weights for {len(scales)} tokens.")
    return jax.tree.map(spread, shapes)
