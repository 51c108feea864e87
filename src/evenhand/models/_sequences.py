"""Networks that predict the next token, beside the LSTM: gated recurrent units, and a transformer."""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from evenhand.errors import EvenhandError, ModelError
from evenhand.models._flax import from_flax
from evenhand.models._linear import check_sizes, glorot_uniform, named_model, table_rows, zeros
from evenhand.models._networks import TokenReader, tokens_of
from evenhand.models._recurrence import GRU, recurrence
from evenhand.models.losses import accuracy, cross_entropy
from evenhand.types import Array, Model

# --- gated recurrent units ----------------------------------------------------------------------------------


def gru(vocabulary: int = 80, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    r"""Stacked GRU that reads a sequence of tokens and predicts the next one, with cross-entropy loss.

    Embedding, ``layers`` GRU layers, and a dense layer on the last step's output.  A layer with input ``x_t`` computes

    .. math:: (r, z) &= \sigma \bigl( x_t K_{rz} + h_{t-1} U_{rz} + b_{rz} \bigr), \qquad
       n = \tanh \bigl( x_t K_n + b_n + r \, (h_{t-1} U_n + c) \bigr) \\
       h_t &= (1 - z) \, n + z \, h_{t-1}

    from ``h_0 = 0``, as PyTorch's GRU does with one bias for ``r`` and ``z`` in place of two that are only ever added.
    Kernels and embedding start Glorot uniform, biases at 0.  The default has 619,216 parameters.

    The recurrence has a custom gradient, as that of :func:`lstm`.

    Args:
      vocabulary: the number of distinct tokens; inputs, ``(n, T)``, and labels, ``(n,)``, are integers
        ``0 .. vocabulary - 1``.  Another token gives NaN.
      embedding: numbers per embedded token.
      hidden: width of each layer.
      layers: how many layers.

    Params:
      ``embedding``; ``gru_0``, ``gru_1``, ... with ``kernel`` (inputs, 3 x hidden), ``recurrent`` (hidden, 3 x hidden),
      ``bias`` (3 x hidden) and ``bias_n`` (hidden), that is :math:`c`; ``output``.

    Raises:
      EvenhandError: the inputs are not integers ``(n, T)`` with ``T >= 1``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.gru(vocabulary=10, hidden=4)
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> jax.eval_shape(model.apply, params, jnp.zeros((3, 7), jnp.int32)).shape
      (3, 10)

    Source: Cho et al., *Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation*,
    EMNLP 2014; with the reset gate after the product, as in cuDNN and PyTorch.
    """
    check_sizes({"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers})
    name = f"gru({vocabulary}, embedding={embedding}, hidden={hidden}, layers={layers})"
    return named_model(
        name, TokenReader(vocabulary, embedding, hidden, layers, _GRULayer, "GRU"), 2, dtype=np.int32
    )


class _GRULayer(nn.Module):
    """One layer, time first: ``(T, n, inputs) -> (T, n, hidden)``."""

    hidden: int

    @nn.compact
    def __call__(self, sequence: Array) -> Array:
        inputs, h = sequence.shape[-1], self.hidden
        kernel = self.param("kernel", glorot_uniform, (inputs, 3 * h), jnp.float32)
        recurrent = self.param("recurrent", glorot_uniform, (h, 3 * h), jnp.float32)
        bias = self.param("bias", zeros, (3 * h,), jnp.float32)
        bias_n = self.param("bias_n", zeros, (h,), jnp.float32)
        start = jnp.zeros((sequence.shape[1], h), sequence.dtype)
        driven = jnp.split(sequence @ kernel + bias[None, None, :], 3, axis=-1)
        # The bias within the reset gate comes with the inputs, as a fourth part, so that the loop adds nothing.
        within = jnp.broadcast_to(bias_n, driven[0].shape)
        return recurrence(GRU, (*driven, within), recurrent, start, start)[0]


# --- a transformer ------------------------------------------------------------------------------------------


def transformer(
    vocabulary: int = 80,
    *,
    length: int = 80,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    predicts: Literal["next", "all"] = "next",
) -> Model:
    r"""Transformer with causal attention and normalisation before each part, which predicts next tokens.

    Tokens and places have trained vectors of ``width`` numbers.  Each of ``layers`` blocks computes

    .. math:: x &\leftarrow x + \mathrm{Attention}(\mathrm{LayerNorm}(x)) \\
       x &\leftarrow x + W_2 \, \mathrm{gelu}(W_1 \, \mathrm{LayerNorm}(x) + b_1) + b_2,

    with ``heads`` heads that see the places up to their own, and :math:`W_1` four times as wide; the output layer reads
    one more LayerNorm.  The loss is the cross-entropy of the token after the last place, or its mean over the next
    tokens at all places.  The default has 115,536 parameters.

    Args:
      vocabulary: the number of distinct tokens; inputs, ``(n, T)``, are integers ``0 .. vocabulary - 1``.  Another
        token gives NaN.
      length: the longest sequence, :math:`T` at most.
      width: numbers per place, a multiple of ``heads``.
      heads: of each attention.
      layers: how many blocks.
      predicts: ``"next"``: labels, ``(n,)``, are the token after each sequence, as for :func:`lstm`; ``"all"``: labels,
        ``(n, T)``, are the token after each place, which makes ``T`` times as much of a sequence.

    Params:
      ``tokens`` with ``embedding``; ``places``; ``block_0``, ``block_1``, ... with ``norm_0``, ``attention``,
      ``norm_1``, ``wide`` and ``narrow``; ``norm``; ``output``.

    Metric: ``"accuracy"``, over all places where ``predicts="all"``.

    Raises:
      EvenhandError: ``heads`` does not divide ``width``; or the inputs are not integers ``(n, T)`` with ``1 <= T <=
        length``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.transformer(vocabulary=10, length=7, width=8, heads=2)
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> jax.eval_shape(model.apply, params, jnp.zeros((3, 7), jnp.int32)).shape
      (3, 10)

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017; normalisation first: Xiong et al., *On Layer
    Normalization in the Transformer Architecture*, ICML 2020.
    """
    check_sizes(
        {"vocabulary": vocabulary, "length": length, "width": width, "heads": heads, "layers": layers}
    )
    if width % heads:
        raise EvenhandError(
            f"transformer(width={width}, heads={heads}): give a width that is a multiple of heads."
        )
    if predicts not in ("next", "all"):
        raise EvenhandError(f"transformer(predicts={predicts!r:.40}): give 'next' or 'all'.")
    module = _Transformer(vocabulary, length, width, heads, layers, everywhere=predicts == "all")
    sizes = f"length={length}, width={width}, heads={heads}, layers={layers}, predicts={predicts!r}"
    name = f"transformer({vocabulary}, {sizes})"
    if predicts == "next":
        return named_model(name, module, 2, dtype=np.int32)
    model = from_flax(
        module,
        loss=_mean_cross_entropy,
        sample=np.zeros((1, 1), np.int32),
        metrics={"accuracy": accuracy},
    )
    return model._replace(name=name)


def _mean_cross_entropy(outputs: Array, y: Array) -> Array:
    if y.shape != outputs.shape[:-1]:
        raise ModelError(
            f'transformer(predicts="all") needs a label for each place, of shape {outputs.shape[:-1]}, but labels have '
            f'shape {y.shape}: give the next token at each place, or use predicts="next".'
        )
    return cross_entropy(outputs, y)


class _Transformer(nn.Module):
    vocabulary: int
    length: int
    width: int
    heads: int
    layers: int
    everywhere: bool

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        tokens = tokens_of(tokens, "transformer")
        if tokens.shape[1] > self.length:
            raise EvenhandError(
                f"The transformer was made for {self.length} places, but a sequence has {tokens.shape[1]}: make it "
                f"with length={tokens.shape[1]}."
            )
        x = table_rows(nn.Embed(self.vocabulary, self.width, name="tokens").embedding, tokens)
        places = self.param("places", nn.initializers.normal(0.02), (self.length, self.width), jnp.float32)
        x = x + places[None, : tokens.shape[1]]
        mask = nn.make_causal_mask(tokens)
        for layer in range(self.layers):
            x = _Block(self.heads, name=f"block_{layer}")(x, mask)
        x = nn.LayerNorm(name="norm")(x if self.everywhere else x[:, -1])
        return nn.Dense(self.vocabulary, kernel_init=glorot_uniform, name="output")(x)


class _Block(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: Array, mask: Array) -> Array:
        width = x.shape[-1]
        x = x + nn.MultiHeadDotProductAttention(self.heads, name="attention")(
            nn.LayerNorm(name="norm_0")(x), mask=mask
        )
        wide = nn.Dense(4 * width, kernel_init=glorot_uniform, name="wide")(nn.LayerNorm(name="norm_1")(x))
        return x + nn.Dense(width, kernel_init=glorot_uniform, name="narrow")(nn.gelu(wide))
