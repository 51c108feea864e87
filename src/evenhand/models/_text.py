"""Next-character models."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.errors import EvenhandError
from evenhand.models._adapters import from_flax
from evenhand.models._layers import check_sizes, glorot_uniform, zeros
from evenhand.types import Array, Model

__all__ = ["lstm"]


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
        ``0 .. vocabulary - 1``.  A token beyond the vocabulary gives NaN.
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
    module = _CharacterLSTM(vocabulary, embedding, hidden, layers)
    model = from_flax(module, loss="cross_entropy", sample=np.zeros((1, 2), np.int32))
    return model._replace(name=f"lstm({vocabulary}, embedding={embedding}, hidden={hidden}, layers={layers})")


class _CharacterLSTM(nn.Module):
    vocabulary: int
    embedding: int
    hidden: int
    layers: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        if tokens.ndim != 2 or tokens.shape[1] == 0 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise EvenhandError(
                "The LSTM needs integer tokens of shape (rows, length), but the inputs are "
                f"{tokens.dtype} of shape {tokens.shape}."
            )
        table = self.param("embedding", glorot_uniform, (self.vocabulary, self.embedding), jnp.float32)
        sequence = jnp.take(table, tokens.T, axis=0)
        for layer in range(self.layers):
            sequence = _LSTMLayer(self.hidden, name=f"lstm_{layer}")(sequence)
        return nn.Dense(self.vocabulary, kernel_init=glorot_uniform, name="output")(sequence[-1])


class _LSTMLayer(nn.Module):
    """One layer, time first: ``(T, n, inputs) -> (T, n, hidden)``."""

    hidden: int

    @nn.compact
    def __call__(self, sequence: Array) -> Array:
        inputs = sequence.shape[-1]
        kernel = self.param("kernel", glorot_uniform, (inputs + self.hidden, 4 * self.hidden), jnp.float32)
        bias = self.param("bias", zeros, (4 * self.hidden,), jnp.float32)
        return _recurrence(sequence @ kernel[:inputs] + bias[None, None, :], kernel[inputs:])


def _cell(gates: Array, memory: Array) -> tuple[Array, Array]:
    """``(gates (n, 4h), c_{t-1}) -> (h_t, c_t)``."""
    i, j, f, o = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(f + 1.0) * memory + jax.nn.sigmoid(i) * jnp.tanh(j)
    return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


@jax.custom_vjp
def _recurrence(driven: Array, kernel: Array) -> Array:
    """``driven``: gates from the inputs, ``(T, n, 4h)``; ``kernel``: ``(h, 4h)``; gives ``(T, n, h)``."""
    return _run(driven, kernel)[0]


_Steps = tuple[Array, Array, Array]


def _run(driven: Array, kernel: Array) -> _Steps:
    """Outputs, memories and gates of all steps."""
    start = jnp.zeros((driven.shape[1], kernel.shape[0]), driven.dtype)

    def step(carry: tuple[Array, Array], drive: Array) -> tuple[tuple[Array, Array], _Steps]:
        output, memory = carry
        gates = drive + output @ kernel
        output, memory = _cell(gates, memory)
        return (output, memory), (output, memory, gates)

    return lax.scan(step, (start, start), driven)[1]


def _forward(driven: Array, kernel: Array) -> tuple[Array, tuple[Array, _Steps]]:
    steps = _run(driven, kernel)
    return steps[0], (kernel, steps)


def _backward(saved: tuple[Array, _Steps], given: Array) -> tuple[Array, Array]:
    # The transpose of a scan adds an (h, 4h) matrix at every step; here one product does it for all steps.
    kernel, (outputs, memories, gates) = saved
    # Made once: XLA:CPU moves the transpose of a constant of the loop into the loop, and makes it at every step.
    back = lax.optimization_barrier(kernel.T)
    start = jnp.zeros_like(outputs[:1])
    before, memories_before = (jnp.concatenate([start, a[:-1]]) for a in (outputs, memories))

    def step(carry: tuple[Array, Array], at: _Steps) -> tuple[tuple[Array, Array], Array]:
        d_output, d_memory = carry
        d_given, gates, memory = at
        pull = jax.vjp(_cell, gates, memory)[1]
        d_gates, d_memory = pull((d_output + d_given, d_memory))
        return (d_gates @ back, d_memory), d_gates

    d_driven = lax.scan(step, (start[0], start[0]), (given, gates, memories_before), reverse=True)[1]
    hidden, width = kernel.shape
    return d_driven, before.reshape(-1, hidden).T @ d_driven.reshape(-1, width)


_recurrence.defvjp(_forward, _backward)
