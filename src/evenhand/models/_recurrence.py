"""LSTM and GRU as a loop over time, with a gradient of their own.

Two things make the loop fast on a CPU.  The gates stand in arrays of their own: a part of what a step reads of a larger
array is computed number by number, at half the speed.  And the gradient keeps what a step computed, so that it has no
exponential to compute again, and multiplies once for all steps where a scan's would add a matrix at each.

And the other layers of PyTorch that torchax computes slowly, or otherwise than PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.models._modules import is_traced, overwrite
from evenhand.types import Array, Key

Gates: TypeAlias = tuple[Array, ...]
"""An array for each, ``(n, h)``, or ``(T, n, h)`` for all steps."""


class RecurrentCell(NamedTuple):
    """A step, and its derivative.

    Attributes:
      join: ``(driven, recurrent) -> gates``: of what comes from the inputs and, ``(n, k)``, from the last output.
      forward: ``(gates, c_{t-1}) -> (h_t, c_t, kept)``.
      backward: ``(kept, d_h_t, d_c_t) -> (d_gates, d_c_{t-1})``.
      part: ``d_gates -> (d_recurrent, others)``, where others are the slopes of gates that no output drives.
      driven: ``(d_recurrent, others) -> d_driven``.
    """

    join: Callable[[Gates, Array], Gates]
    forward: Callable[[Gates, Array], tuple[Array, Array, Gates]]
    backward: Callable[[Gates, Array, Array], tuple[Gates, Array]]
    part: Callable[[Gates], tuple[Array, Gates]]
    driven: Callable[[Array, Gates], Gates]


def recurrence(
    cell: RecurrentCell, driven: Gates, kernel: Array, output: Array, memory: Array
) -> tuple[Array, Array]:
    """The outputs of all steps, ``(T, n, h)``, and the last memory, ``(n, h)``.

    Args:
      cell: the step.
      driven: what comes from the inputs, for each gate, ``(T, n, h)``.
      kernel: of what comes from the last output, ``(h, k)``.
      output: :math:`h_0`, ``(n, h)``.
      memory: :math:`c_0`, ``(n, h)``.
    """
    return _loop(cell, driven, kernel, output, memory)


# --- cells ---------------------------------------------------------------------------------------------------


def lstm_cell(input: int, forget: int, new: int, output: int) -> RecurrentCell:
    r"""A step of an LSTM, whose gates stand at these places; the memory is :math:`c`.

    .. math:: c_t = \sigma(f) \, c_{t-1} + \sigma(i) \tanh(g), \qquad h_t = \sigma(o) \tanh(c_t)
    """

    def forward(gates: Gates, memory: Array) -> tuple[Array, Array, Gates]:
        i, f, o = (jax.nn.sigmoid(gates[place]) for place in (input, forget, output))
        g = jnp.tanh(gates[new])
        after = f * memory + i * g
        bent = jnp.tanh(after)
        return o * bent, after, (i, f, g, o, bent, memory)

    def backward(kept: Gates, d_output: Array, d_memory: Array) -> tuple[Gates, Array]:
        i, f, g, o, bent, memory = kept
        d_memory = d_memory + d_output * o * (1.0 - bent * bent)
        slopes = {
            input: d_memory * g * i * (1.0 - i),
            forget: d_memory * memory * f * (1.0 - f),
            new: d_memory * i * (1.0 - g * g),
            output: d_output * bent * o * (1.0 - o),
        }
        return tuple(slopes[place] for place in range(4)), d_memory * f

    def join(driven: Gates, recurrent: Array) -> Gates:
        return tuple(x + h for x, h in zip(driven, jnp.split(recurrent, 4, axis=-1), strict=True))

    return RecurrentCell(join, forward, backward, _lstm_part, _lstm_driven)


def _lstm_part(d_gates: Gates) -> tuple[Array, Gates]:
    return jnp.concatenate(d_gates, axis=-1), ()


def _lstm_driven(d_recurrent: Array, others: Gates) -> Gates:
    return tuple(jnp.split(d_recurrent, 4, axis=-1))


def _gru_forward(gates: Gates, memory: Array) -> tuple[Array, Array, Gates]:
    r, z = (jax.nn.sigmoid(gate) for gate in gates[:2])
    new = jnp.tanh(gates[2] + r * gates[3])
    output = (1.0 - z) * new + z * memory
    return output, output, (r, z, new, gates[3], memory)


def _gru_backward(kept: Gates, d_output: Array, d_memory: Array) -> tuple[Gates, Array]:
    r, z, new, from_output, memory = kept
    d = d_output + d_memory
    d_new = d * (1.0 - z) * (1.0 - new * new)
    d_r = d_new * from_output * r * (1.0 - r)
    return (d_r, d * (memory - new) * z * (1.0 - z), d_new, d_new * r), d * z


def _gru_join(driven: Gates, recurrent: Array) -> Gates:
    r, z, new = jnp.split(recurrent, 3, axis=-1)
    return driven[0] + r, driven[1] + z, driven[2], new + driven[3]


def _gru_part(d_gates: Gates) -> tuple[Array, Gates]:
    r, z, from_input, from_output = d_gates
    return jnp.concatenate([r, z, from_output], axis=-1), (from_input,)


def _gru_driven(d_recurrent: Array, others: Gates) -> Gates:
    r, z, from_output = jnp.split(d_recurrent, 3, axis=-1)
    return r, z, *others, from_output


GRU = RecurrentCell(_gru_join, _gru_forward, _gru_backward, _gru_part, _gru_driven)
r"""A step of a GRU, from gates :math:`r, z` and both parts of :math:`n`; its memory is its output.

.. math:: n = \tanh(n_x + \sigma(r) \, n_h), \qquad h_t = (1 - \sigma(z)) \, n + \sigma(z) \, h_{t-1}

The last output drives three, :math:`r, z` and :math:`n_h`.
"""


# --- the loop ------------------------------------------------------------------------------------------------


def _plain(
    cell: RecurrentCell, driven: Gates, kernel: Array, output: Array, memory: Array
) -> tuple[Array, Array]:
    def step(carry: tuple[Array, Array], drive: Gates) -> tuple[tuple[Array, Array], Array]:
        output, memory, _ = cell.forward(cell.join(drive, carry[0] @ kernel), carry[1])
        return (output, memory), output

    (_, memory), outputs = lax.scan(step, (output, memory), driven)
    return outputs, memory


_loop = jax.custom_vjp(_plain, nondiff_argnums=(0,))

_Saved: TypeAlias = tuple[Array, Array, Array, Gates]


def _forward(
    cell: RecurrentCell, driven: Gates, kernel: Array, output: Array, memory: Array
) -> tuple[tuple[Array, Array], _Saved]:
    def step(carry: tuple[Array, Array], drive: Gates) -> tuple[tuple[Array, Array], tuple[Array, Gates]]:
        output, memory, kept = cell.forward(cell.join(drive, carry[0] @ kernel), carry[1])
        return (output, memory), (output, kept)

    (_, memory), (outputs, kept) = lax.scan(step, (output, memory), driven)
    return (outputs, memory), (kernel, output, outputs, kept)


def _backward(
    cell: RecurrentCell, saved: _Saved, given: tuple[Array, Array]
) -> tuple[Gates, Array, Array, Array]:
    kernel, output, outputs, kept = saved
    # Made once: XLA:CPU moves the transpose of a constant of the loop into the loop, and makes it at every step.
    back = lax.optimization_barrier(kernel.T)

    def step(
        carry: tuple[Array, Array], at: tuple[Array, Gates]
    ) -> tuple[tuple[Array, Array], tuple[Array, Gates]]:
        d_given, kept = at
        d_gates, d_memory = cell.backward(kept, carry[0] + d_given, carry[1])
        d_recurrent, others = cell.part(d_gates)
        return (d_recurrent @ back, d_memory), (d_recurrent, others)

    ends = (jnp.zeros_like(output), given[1])
    (d_output, d_memory), slopes = lax.scan(step, ends, (given[0], kept), reverse=True)
    before = jnp.concatenate([output[None], outputs[:-1]])
    hidden, width = kernel.shape
    d_kernel = before.reshape(-1, hidden).T @ slopes[0].reshape(-1, width)
    return cell.driven(*slopes), d_kernel, d_output, d_memory


_loop.defvjp(_forward, _backward)


# --- layers of PyTorch ---------------------------------------------------------------------------------------


class LSTMState(NamedTuple):
    """Of one layer in one direction, ``(n, h)`` each."""

    output: Array
    memory: Array


class GRUState(NamedTuple):
    """Of one layer in one direction, ``(n, h)``."""

    output: Array


_LSTM = lstm_cell(input=0, forget=1, new=2, output=3)


class Layers(NamedTuple):
    """Recurrent layers, as PyTorch hands them to its functions.

    Attributes:
      weights: layer by layer and direction by direction: from the inputs, from the outputs, their biases, a projection.
      has_biases: whether there are biases.
      depth: how many layers there are.
      dropout: the share that is dropped between layers in training.
      training: whether that is done.
      directions: 1, or 2 that read the sequence from both ends.
      batch_first: whether sequences are ``(n, T, d)`` rather than ``(T, n, d)``.
    """

    weights: tuple[Array, ...]
    has_biases: bool
    depth: int
    dropout: float
    training: bool
    directions: int
    batch_first: bool

    @classmethod
    def of(cls, weights: tuple[Array, ...], *options: Any) -> Layers:
        """From the arguments after the weights."""
        has_biases, depth, dropout, training, bidirectional, batch_first = options
        return cls(
            weights=weights,
            has_biases=has_biases,
            depth=depth,
            dropout=dropout,
            training=training,
            directions=1 + bidirectional,
            batch_first=batch_first,
        )

    def run(self, draw: Callable[[], Key], x: Array, states: list[Any]) -> tuple[Array, list[Any]]:
        """The outputs of the last layer, and the last state of each; ``draw`` gives the key of each dropout."""
        sequence = jnp.swapaxes(x, 0, 1) if self.batch_first else x
        size, ends = len(self.weights) // (self.depth * self.directions), list[Any]()
        for layer in range(self.depth):
            if layer and self.dropout and self.training:
                kept = jax.random.bernoulli(draw(), 1 - self.dropout, sequence.shape)
                sequence = jnp.where(kept, sequence / (1 - self.dropout), 0.0)
            outputs = list[Array]()
            for direction in range(self.directions):
                i = layer * self.directions + direction
                weights = self.weights[size * i : size * (i + 1)]
                end, read = self._read(sequence[::-1] if direction else sequence, states[i], weights)
                ends.append(end)
                outputs.append(read[::-1] if direction else read)
            sequence = jnp.concatenate(outputs, axis=-1)
        return (jnp.swapaxes(sequence, 0, 1) if self.batch_first else sequence), ends

    def _read(self, sequence: Array, state: Any, weights: tuple[Array, ...]) -> tuple[Any, Array]:
        """One layer in one direction: its last state, and its outputs by time."""
        inputs, hidden, *others = weights
        biases, projection = others[: 2 * self.has_biases], others[2 * self.has_biases :]
        # Of all steps at once; and the transpose within the loop would be made at every step.
        driven, kernel = sequence @ inputs.T, hidden.T
        driven = driven + biases[0] if biases else driven
        if isinstance(state, GRUState):
            r, z, new = jnp.split(driven, 3, axis=-1)
            b_r, b_z, b_new = jnp.split(biases[1], 3) if biases else (0.0, 0.0, jnp.zeros(new.shape[-1]))
            gates = (r + b_r, z + b_z, new, jnp.broadcast_to(b_new, new.shape))
            outputs = recurrence(GRU, gates, kernel, state.output, state.output)[0]
            return GRUState(outputs[-1]), outputs
        gates = tuple(jnp.split(driven + biases[1] if biases else driven, 4, axis=-1))
        if not projection:
            outputs, memory = recurrence(_LSTM, gates, kernel, state.output, state.memory)
            return LSTMState(outputs[-1], memory), outputs
        (smaller,) = projection

        def body(before: LSTMState, drive: tuple[Array, ...]) -> tuple[LSTMState, Array]:
            output, memory, _ = _LSTM.forward(_LSTM.join(drive, before.output @ kernel), before.memory)
            return LSTMState(output @ smaller.T, memory), output @ smaller.T

        return jax.lax.scan(body, state, gates)


def lstm_layer(environment: Any) -> Callable[..., Any]:
    """``torch.lstm`` as a loop over time, where torchax would write out every step."""

    def run(x: Any, hidden: Any, weights: Any, *options: Any) -> Any:
        sequence, (outputs, memories), kernels = environment.t2j_iso((x, tuple(hidden), tuple(weights)))
        layers = Layers.of(kernels, *options)
        states = [LSTMState(output, memory) for output, memory in zip(outputs, memories, strict=True)]
        sequence, ends = layers.run(environment.get_and_rotate_prng_key, sequence, states)
        return environment.j2t_iso((sequence, *map(jnp.stack, zip(*ends, strict=True))))

    return run


def gru_layer(environment: Any) -> Callable[..., Any]:
    """``torch.gru`` as a loop over time."""

    def run(x: Any, hidden: Any, weights: Any, *options: Any) -> Any:
        sequence, outputs, kernels = environment.t2j_iso((x, hidden, tuple(weights)))
        layers = Layers.of(kernels, *options)
        sequence, ends = layers.run(
            environment.get_and_rotate_prng_key, sequence, [GRUState(output) for output in outputs]
        )
        return environment.j2t_iso((sequence, jnp.stack([end.output for end in ends])))

    return run


# --- other layers, and random numbers ------------------------------------------------------------------------


def group_norm_layer(environment: Any) -> Callable[..., Any]:
    """``torch.nn.functional.group_norm``, channel by channel first: a picture split into groups would be turned."""

    def run(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        values, scale, shift = environment.t2j_iso((input, weight, bias))
        groups = num_groups
        n, channels, *sizes = values.shape
        axes, along = tuple(range(2, values.ndim)), (n, channels, *[1] * len(sizes))

        def mean(x: Array) -> Array:
            """Over each group, for each of its channels."""
            by_group = jnp.mean(jnp.mean(x, axis=axes).reshape(n, groups, channels // groups), axis=-1)
            return jnp.repeat(by_group, channels // groups, axis=1)

        apart = values - mean(values).reshape(along)
        factor = jax.lax.rsqrt(mean(jnp.square(apart)) + eps)
        outputs = apart * (factor if scale is None else factor * scale[None]).reshape(along)
        return environment.j2t_iso(outputs if shift is None else outputs + shift.reshape(along[1:]))

    return run


def average_pool_layer(environment: Any, plain: Callable[..., Array]) -> Callable[..., Any]:
    """``aten.avg_pool2d`` and its kin: ``plain``, but for ``ceil_mode``, whose last windows torchax divides wrongly."""

    def run(
        x: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        values = environment.t2j_iso(x)
        if not ceil_mode:
            options = (kernel_size, stride, padding, False, count_include_pad, divisor_override)
            return environment.j2t_iso(plain(values, *options))
        dims, strides = len(kernel_size), stride or kernel_size
        pads = [(0, 0)] * (values.ndim - dims)
        counts = np.ones(())
        paddings = [int(pad) for pad in np.broadcast_to(padding, dims)]
        for size, width, step, pad in zip(values.shape[-dims:], kernel_size, strides, paddings, strict=True):
            windows = -(-(size + 2 * pad - width) // step) + 1
            windows -= (windows - 1) * step >= size + pad  # the last one begins inside
            starts = np.arange(windows) * step - pad
            pads.append((pad, max(int(starts[-1]) + width - size, 0)))
            # A window counts what it has of the padded input, or of the input.
            low, high = (-pad, size + pad) if count_include_pad else (0, size)
            counts = counts[..., None] * (np.minimum(starts + width, high) - np.maximum(starts, low))
        leading = (1,) * (values.ndim - dims)
        sums = jax.lax.reduce_window(
            values, 0.0, jax.lax.add, (*leading, *kernel_size), (*leading, *strides), pads
        )
        return environment.j2t_iso(sums / jnp.asarray(divisor_override or counts, values.dtype))

    return run


def householder_layer(environment: Any) -> Callable[..., Any]:
    r"""``torch.linalg.householder_product``, of which JAX has no gradient.

    .. math::
        \prod_i (I - \tau_i v_i v_i^\top) = I - V (I + D U)^{-1} D V^\top, \quad D = \operatorname{diag}(\tau)

    where :math:`U` is the part of :math:`V^\top V` above its diagonal.
    """

    def run(reflectors: Any, scales: Any) -> Any:
        lower, tau = environment.t2j_iso((reflectors, scales))
        (m, n), k = lower.shape[-2:], tau.shape[-1]
        v = jnp.tril(lower, -1)[..., :k] + jnp.eye(m, k)
        above = jnp.triu(jnp.matrix_transpose(v) @ v, 1)
        inner = jnp.linalg.solve(jnp.eye(k) + tau[..., None] * above, tau[..., None] * jnp.eye(k))
        return environment.j2t_iso(jnp.eye(m, n) - v @ inner @ jnp.matrix_transpose(v[..., :n, :]))

    return run


def draws() -> dict[Any, Callable[..., Array]]:
    """Operations of PyTorch that fill a tensor with random numbers: ``(key, shape, *arguments) -> numbers``."""
    import torch  # pyright: ignore[reportMissingImports]

    def normal(key: Key, shape: tuple[int, ...], mean: float = 0.0, std: float = 1.0) -> Array:
        return jax.random.normal(key, shape) * std + mean

    def log_normal(key: Key, shape: tuple[int, ...], mean: float = 1.0, std: float = 2.0) -> Array:
        return jnp.exp(normal(key, shape, mean, std))

    def exponential(key: Key, shape: tuple[int, ...], lambd: float = 1.0) -> Array:
        return jax.random.exponential(key, shape) / lambd

    def cauchy(key: Key, shape: tuple[int, ...], median: float = 0.0, sigma: float = 1.0) -> Array:
        return jax.random.cauchy(key, shape) * sigma + median

    def random(key: Key, shape: tuple[int, ...], *bounds: int) -> Array:
        # Up to the last of the whole numbers that float32 has.
        low, high = (0, *(bounds or (2**24 + 1,)))[-2:]
        return jax.random.randint(key, shape, low, high)

    aten = torch.ops.aten
    drawn = {aten.normal_: normal, aten.log_normal_: log_normal, aten.exponential_: exponential}
    return drawn | {aten.cauchy_: cauchy, aten.random_: random}


def drawing_layer(environment: Any, draw: Callable[..., Array]) -> Callable[..., Any]:
    """What fills a tensor with random numbers, of the environment's key."""

    def run(x: Any, *arguments: Any, generator: Any = None) -> Any:
        key = environment.get_and_rotate_prng_key(generator)
        return environment.j2t_iso(draw(key, x.shape, *arguments).astype(x.jax().dtype))

    return run


def truncated_layer(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.nn.init.trunc_normal_``, which otherwise asks for the values that it drew."""

    def run(tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None) -> Any:
        if not is_traced(tensor):
            return plain(tensor, mean, std, a, b, generator)
        key = tensor._env.get_and_rotate_prng_key(generator)
        drawn = jax.random.truncated_normal(key, (a - mean) / std, (b - mean) / std, tensor.shape)
        overwrite(tensor, mean + std * drawn)
        return tensor

    return run
