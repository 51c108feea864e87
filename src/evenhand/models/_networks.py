"""Networks of the federated literature: perceptrons, convolutions for images, LSTMs for characters and for words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand.errors import EvenhandError, expect, whole_number
from evenhand.models._linear import check_sizes, glorot_uniform, named_model, table_rows, vector_rows, zeros
from evenhand.models._recurrence import lstm_cell, recurrence
from evenhand.types import Array, Key, Model, Params, PyTree

# --- perceptrons --------------------------------------------------------------------------------------------


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
    if hidden is None or not np.ndim(hidden):  # pyright: ignore[reportUnnecessaryComparison]  (people try)
        example = (hidden,) if isinstance(hidden, int) else (200,)
        raise EvenhandError(
            f"hidden={hidden!r:.40}: give the widths of all hidden layers, e.g. hidden={example}."
        )
    widths = {f"hidden[{i}]": width for i, width in enumerate(hidden)}
    check_sizes({"features": features, "classes": classes, **widths})
    hidden = tuple(map(int, hidden))
    name = f"mlp(features={features}, classes={classes}, hidden={hidden})"
    return named_model(name, _Perceptron(features, hidden, classes), features)


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


# --- convolutions -------------------------------------------------------------------------------------------


_Shape = tuple[int, int, int]

_GREY, _COLOUR = (28, 28, 1), (32, 32, 3)


def cnn_femnist(classes: int = 62, *, hidden: int = 512) -> Model:
    r"""The network with two convolutions for 28 x 28 grey images, with cross-entropy loss.

    ``conv 5x5x32 same, ReLU, pool 2, conv 5x5x64 same, ReLU, pool 2, dense hidden, ReLU, dense classes``;
    1,690,046 parameters by default, 1,663,370 with ten classes.  Kernels start Glorot uniform, biases at 0;
    metric ``"accuracy"``.

    With ``hidden=0``, the smaller network of Delta-FL: ``conv 5x5x32 valid, ReLU, pool 2, conv 5x5x64 valid, ReLU,
    pool 2, dense classes``, that is convolutions without padding and no hidden layer; 115,646 parameters.

    Args:
      classes: labels are integers ``0 .. classes - 1``.
      hidden: width of the dense layer: 512 in the first paper, 2048 in LEAF; 0: none, see above.

    Params:
      ``conv_0``, ``conv_1``, ``dense`` (unless ``hidden`` is 0), ``output``, each with ``kernel`` and ``bias``.

    Inputs are pixels, float, ``(n, 28, 28)``, ``(n, 28, 28, 1)`` or ``(n, 784)``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_femnist().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1690046

    Source: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*,
    AISTATS 2017, section 3; Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018; for ``hidden=0``, Pillutla
    et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023, section
    7.1.
    """
    check_sizes({"classes": classes})
    hidden = whole_number("hidden", hidden, 0)
    module = _PooledCNN(_GREY, hidden, classes)
    return named_model(f"cnn_femnist({classes}, hidden={hidden})", module, *_GREY)


def cnn_femnist_dropout(classes: int = 62) -> Model:
    r"""The network with dropout for 28 x 28 grey images, with cross-entropy loss.

    ``conv 3x3x32 valid, ReLU, conv 3x3x64 valid, ReLU, pool 2, dropout 0.25, dense 128, ReLU, dropout 0.5,
    dense classes``; 1,206,590 parameters with 62 classes.  Dropout acts in training only.  Inputs, parameter
    names, initial values and metric as for :func:`cnn_femnist`.

    Args:
      classes: labels are integers ``0 .. classes - 1``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_femnist_dropout().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1206590

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021 (EMNIST character recognition).
    """
    check_sizes({"classes": classes})
    return named_model(f"cnn_femnist_dropout({classes})", _DropoutCNN(_GREY, classes), *_GREY)


def cnn_cifar(classes: int = 10) -> Model:
    r"""The network with dropout for 32 x 32 colour images, with cross-entropy loss.

    The layers of :func:`cnn_femnist_dropout` on inputs ``(n, 32, 32, 3)``, channels last, or ``(n, 3072)`` in
    that order: the dense layer has 12,544 inputs.  1,626,442 parameters with ten classes.

    Args:
      classes: labels are integers ``0 .. classes - 1``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.cnn_cifar().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1626442
    """
    check_sizes({"classes": classes})
    return named_model(f"cnn_cifar({classes})", _DropoutCNN(_COLOUR, classes), *_COLOUR)


class _PooledCNN(nn.Module):
    shape: _Shape
    hidden: int
    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x, padding = image_rows(x, self.shape), "SAME" if self.hidden else "VALID"
        for layer, width in enumerate((32, 64)):
            convolution = nn.Conv(
                width, (5, 5), padding=padding, kernel_init=glorot_uniform, name=f"conv_{layer}"
            )
            x = halved(nn.relu(convolution(x)))
        x = flat(x)
        if self.hidden:
            x = nn.relu(nn.Dense(self.hidden, kernel_init=glorot_uniform, name="dense")(x))
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


class _DropoutCNN(nn.Module):
    shape: _Shape
    classes: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = image_rows(x, self.shape)
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID", kernel_init=glorot_uniform, name="conv_0")(x))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID", kernel_init=glorot_uniform, name="conv_1")(x))
        x = flat(_Dropout(0.25)(halved(x), train))
        x = nn.relu(nn.Dense(128, kernel_init=glorot_uniform, name="dense")(x))
        x = _Dropout(0.5)(x, train)
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(x)


class _Dropout(nn.Module):
    """Dropout at a rate in 256ths, from 8 random bits per unit: a quarter of what ``nn.Dropout`` draws."""

    rate: float

    def __call__(self, x: Array, train: bool) -> Array:
        dropped = 256 * self.rate
        if dropped % 1:
            raise ValueError(f"The rate must be a multiple of 1/256, but it is {self.rate}.")
        if not train:
            return x
        words = jax.random.bits(self.make_rng("dropout"), (-(-x.size // 4),))
        bits = (words[None] >> jnp.arange(0, 32, 8, jnp.uint32)[:, None]) & 255
        keep = (bits >= int(dropped)).ravel()[: x.size].reshape(x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0)


def image_rows(x: Array, shape: tuple[int, int, int]) -> Array:
    """Rows as float32 images ``(n, height, width, channels)``.

    Rows may be flat, or lack the axis of a single channel; channels first is refused, since it would be
    scrambled.
    """
    x = jnp.asarray(x)
    allowed = [shape, (math.prod(shape),)] + [shape[:2]] * (shape[2] == 1)
    if x.shape[1:] not in allowed:
        raise EvenhandError(
            f"The model was made for images of shape {shape} (height, width, channels), or flat rows of "
            f"{math.prod(shape)} numbers, but a row has shape {x.shape[1:]}."
        )
    return x.reshape(x.shape[0], *shape).astype(jnp.float32)


def halved(x: Array) -> Array:
    """The largest of each 2 x 2 pixels."""
    return nn.max_pool(x, (2, 2), (2, 2))


def flat(x: Array) -> Array:
    """The numbers of each row along one axis."""
    # -1 would be ambiguous for zero rows.
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


# --- LSTMs: the next character, and the class of a sequence --------------------------------------------------


def lstm(vocabulary: int = 80, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    r"""Stacked LSTM that reads a sequence of tokens and predicts the next one, with cross-entropy loss.

    Embedding, ``layers`` LSTM layers, and a dense layer on the last step's output.  A layer with input
    ``x_t`` computes

    .. math:: (i, j, f, o) &= [x_t, h_{t-1}] K + b \\
       c_t &= \sigma(f + 1) \, c_{t-1} + \sigma(i) \tanh(j), \qquad h_t = \sigma(o) \tanh(c_t)

    from ``h_0 = c_0 = 0``: no peepholes, forget bias 1.  Kernels and embedding start Glorot uniform, biases
    at 0.  The default has 817,872 parameters: ``embedding`` (80, 8), ``lstm_0`` and ``lstm_1`` with ``kernel``
    (inputs + 256, 4 x 256) and ``bias``, ``output``.

    The recurrence has a custom gradient (one product for the kernel's gradient over all steps); reverse mode
    and forward over reverse work, ``jax.jvp`` of the bare model does not.

    Args:
      vocabulary: the number of distinct tokens; inputs, ``(n, T)``, and labels, ``(n,)``, are integers
        ``0 .. vocabulary - 1``.  Another token gives NaN.
      embedding: numbers per embedded token.
      hidden: width of each layer.
      layers: how many layers.

    Raises:
      EvenhandError: the inputs are not integers ``(n, T)`` with ``T >= 1``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.lstm(vocabulary=10, hidden=4)
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> jax.eval_shape(model.apply, params, jnp.zeros((3, 7), jnp.int32)).shape
      (3, 10)

    Source: Caldas et al., *LEAF: A Benchmark for Federated Settings*, 2018; Li et al., *Federated
    Optimization in Heterogeneous Networks*, MLSys 2020 (Shakespeare).
    """
    check_sizes({"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers})
    name = f"lstm({vocabulary}, embedding={embedding}, hidden={hidden}, layers={layers})"
    return named_model(
        name, TokenReader(vocabulary, embedding, hidden, layers, _LSTMLayer, "LSTM"), 2, dtype=np.int32
    )


def lstm_classifier(
    features: int, *, classes: int = 2, hidden: int = 100, layers: int = 2, dense: int = 30
) -> Model:
    r"""Stacked LSTM that reads a sequence of vectors, such as those of words, and predicts its class.

    ``layers`` LSTM layers as in :func:`lstm`, on the last step's output a dense layer without activation, and a dense
    layer for the classes:

    .. math:: z = (h_T D + d) W + b.

    Kernels start Glorot uniform, biases at 0; metric ``"accuracy"``.  Texts become such sequences by
    :func:`evenhand.data.encode_vectors`, or from tokens by :func:`embedded`; the vectors of words are not trained.

    Args:
      features: numbers per step.
      classes: labels are integers ``0 .. classes - 1``, with cross-entropy loss; 1: labels 0 and 1 by one logit, with
        logistic loss.
      hidden: width of each LSTM layer.
      layers: how many LSTM layers.
      dense: width of the dense layer between; 0: none.

    Params:
      ``lstm_0``, ``lstm_1``, ... with ``kernel`` (inputs + hidden, 4 x hidden) and ``bias``; ``dense`` and ``output``.

    The networks for Sent140 are ``lstm_classifier(300)`` in q-FFL, with 243,892 parameters; ``lstm_classifier(300,
    classes=1)`` in FedProx, with 243,861; and ``lstm_classifier(50, classes=1, hidden=50, layers=1, dense=0)`` in
    Delta-FL.

    Differs from the paper: Delta-FL's LSTM comes from PyTorch, which has two biases per gate that are only ever added:
    20,451 parameters in place of 20,251; it starts uniform in :math:`\pm 1 / \sqrt{50}` and computes in 64 bits.

    Raises:
      EvenhandError: the inputs are not floats ``(n, T, features)`` with ``T >= 1``.

    Example:
      >>> import jax
      >>> from evenhand import models
      >>> params = jax.eval_shape(models.lstm_classifier(300).init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      243892

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020; Li et al., *Fair Resource
    Allocation in Federated Learning*, ICLR 2020 (Sent140); Pillutla et al., *Federated Learning with Superquantile
    Aggregation for Heterogeneous Data*, Machine Learning 2023, section 7.1.
    """
    check_sizes({"features": features, "classes": classes, "hidden": hidden, "layers": layers})
    dense = whole_number("dense", dense, 0)
    name = f"lstm_classifier({features}, classes={classes}, hidden={hidden}, layers={layers}, dense={dense})"
    module = _SequenceLSTM(features, classes, hidden, layers, dense)
    return named_model(name, module, 2, features, loss="logistic" if classes == 1 else "cross_entropy")


class _SequenceLSTM(nn.Module):
    features: int
    classes: int
    hidden: int
    layers: int
    dense: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.asarray(x)
        if x.ndim != 3 or x.shape[1] == 0 or x.shape[2] != self.features:
            raise EvenhandError(
                f"The LSTM was made for sequences of shape (length, {self.features}), but a row has shape "
                f"{x.shape[1:]}."
            )
        sequence = jnp.swapaxes(x, 0, 1).astype(jnp.float32)
        for layer in range(self.layers):
            sequence = _LSTMLayer(self.hidden, name=f"lstm_{layer}")(sequence)
        last = sequence[-1]
        if self.dense:
            last = nn.Dense(self.dense, kernel_init=glorot_uniform, name="dense")(last)
        return nn.Dense(self.classes, kernel_init=glorot_uniform, name="output")(last)


def embedded(model: Model, vectors: npt.ArrayLike) -> Model:
    r"""``model`` for tokens: each is replaced by its row of a table of vectors, which is not trained.

    With the table :math:`E`, the outputs for the tokens :math:`i_1, \dots, i_T` are those of ``model`` for
    :math:`(E_{i_1}, \dots, E_{i_T})`.  Parameters are those of ``model``, so the table is neither sent nor private.

    Args:
      model: its inputs are sequences of vectors, ``(n, T, d)``, such as :func:`lstm_classifier`.
      vectors: the table, ``(words, d)``, such as ``vectors`` of :func:`evenhand.data.load_vectors`.  It is part of the
        compiled program: load only the words that occur.

    Raises:
      EvenhandError: the table is no matrix of finite numbers, or the inputs are no tokens ``(n, T)``.

    Edge cases: a token that has no row in the table, such as -1, gives NaN.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from evenhand import models
      >>> model = models.embedded(models.lstm_classifier(3, hidden=4), jnp.eye(3))
      >>> params = model.init(jax.random.key(0))
      >>> model.apply(params, jnp.array([[0, 2, 1]])).shape
      (1, 2)

    Source: the frozen GloVe vectors of Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020
    (Sent140).
    """
    expect("model", model, Model, "eh.models.lstm_classifier(300)")
    table = np.asarray(vectors, np.float32)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise EvenhandError(f"embedded: vectors has shape {table.shape}: give a matrix of finite numbers.")

    def looked_up(x: Array) -> Array:
        x = jnp.asarray(x)
        if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise EvenhandError(
                f"The model needs integer tokens of shape (rows, length), but the inputs are {x.dtype} of shape "
                f"{x.shape}."
            )
        return table_rows(table, x)

    train = model.apply_train

    def apply(params: Params, x: Array) -> PyTree:
        return model.apply(params, looked_up(x))

    def apply_train(params: Params, x: Array, key: Key) -> PyTree:
        assert train is not None
        return train(params, looked_up(x), key)

    if (statistics := model.statistics) is not None:
        inner = statistics.forward
        statistics = statistics._replace(
            forward=lambda params, x, inside, key: inner(params, looked_up(x), inside, key)
        )
    return model._replace(
        apply=apply,
        apply_train=None if train is None else apply_train,
        statistics=statistics,
        name=f"embedded({model.name}, words={len(table)})",
    )


def tokens_of(tokens: Array, network: str) -> Array:
    """Inputs, checked to be tokens ``(n, T)``.

    Raises:
      EvenhandError: they are not.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise EvenhandError(
            f"The {network} needs integer tokens of shape (rows, length), but the inputs are {tokens.dtype} of shape "
            f"{tokens.shape}."
        )
    return tokens


class TokenReader(nn.Module):
    """Embedding, recurrent layers, and a dense layer on the last step's output: the next token.

    Attributes:
      vocabulary, embedding, hidden, layers: as of :func:`lstm`.
      layer: the module of a layer, ``(T, n, inputs) -> (T, n, hidden)``, made of ``hidden``.
      network: what it is called in sentences, and in small letters in the names of layers.
    """

    vocabulary: int
    embedding: int
    hidden: int
    layers: int
    layer: type[nn.Module]
    network: str

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        tokens = tokens_of(tokens, self.network)
        table = self.param("embedding", glorot_uniform, (self.vocabulary, self.embedding), jnp.float32)
        sequence = table_rows(table, tokens.T)
        for number in range(self.layers):
            sequence = self.layer(self.hidden, name=f"{self.network.lower()}_{number}")(sequence)
        return nn.Dense(self.vocabulary, kernel_init=glorot_uniform, name="output")(sequence[-1])


class _LSTMLayer(nn.Module):
    """One layer, time first: ``(T, n, inputs) -> (T, n, hidden)``."""

    hidden: int

    @nn.compact
    def __call__(self, sequence: Array) -> Array:
        inputs = sequence.shape[-1]
        kernel = self.param("kernel", glorot_uniform, (inputs + self.hidden, 4 * self.hidden), jnp.float32)
        bias = self.param("bias", zeros, (4 * self.hidden,), jnp.float32)
        start = jnp.zeros((sequence.shape[1], self.hidden), sequence.dtype)
        driven = jnp.split(sequence @ kernel[:inputs] + bias[None, None, :], 4, axis=-1)
        driven[2] = driven[2] + 1.0  # the forget bias
        return recurrence(_CELL, tuple(driven), kernel[inputs:], start, start)[0]


_CELL = lstm_cell(input=0, new=1, forget=2, output=3)
