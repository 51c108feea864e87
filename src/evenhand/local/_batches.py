"""Which of its examples a client trains on in each step, and how many steps and examples that makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evenhand.errors import Argument, EvenhandError, real_number, whole_number
from evenhand.streams import permutation_words, permute
from evenhand.text import short
from evenhand.types import Array, ClientData, Effort, Key

_MOST = 10**6
"""Most epochs, steps or examples per batch: a larger number is a typo, and would overflow an int32."""


class Batch(NamedTuple):
    """Some or all of a client's examples; none is copied before :meth:`read`.

    Attributes:
      data: the client.
      positions: int32 ``(b,)``, which of its examples; None: all of them.
      inside: bool ``(b,)``, which entries of ``positions`` count: the last batch of an epoch may be smaller.
    """

    data: ClientData
    positions: Array | None = None
    inside: Array | None = None

    def read(self) -> tuple[Array, Array, Array]:
        """``(x, y, inside)``: inputs, labels, and which of them count."""
        positions, inside = self.positions, self.inside
        if positions is None or inside is None:
            positions = jnp.arange(self.data.capacity, dtype=jnp.int32)
            inside = positions < self.data.size
        return *rows_at(self.data, jnp.where(inside, positions, 0)), inside


def rows_at(data: ClientData, positions: Array) -> tuple[Array, Array]:
    """The inputs and labels of the client's examples at these positions."""
    if jax.default_backend() != "cpu":
        # Copied once: XLA:GPU would draw the permutation anew for every number of every window of a convolution.
        index = data.start + positions
        return lax.optimization_barrier((data.x[index], data.y[index]))
    # XLA:CPU gathers number by number and recomputes the index for each; a slice per row is a plain copy of memory.
    index = lax.optimization_barrier(data.start + positions)

    def copy(row: Array, batch: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(batch, lax.dynamic_slice_in_dim(data.x, index[row], 1), row, 0)

    batch = jnp.zeros((*index.shape, *data.x.shape[1:]), data.x.dtype)
    return lax.fori_loop(0, index.shape[0], copy, batch), data.y[index]


# --- the schedule of a round -------------------------------------------------------------------------------------


class Batches(NamedTuple):
    """A schedule of local steps, made by :func:`batches`.

    Attributes:
      effort: ``data -> Effort``, the steps and examples of one round, or a straggler's part of them.
      draw: ``(data, key) -> (i -> Batch)``, the batch of each step.
    """

    effort: Callable[[ClientData], Effort]
    draw: Callable[[ClientData, Key], Callable[[Array], Batch]]
    __repr__ = short


def batches(
    *, epochs: int | None = None, steps: int | None = None, batch_size: int | float | None = None
) -> Batches:
    """Consecutive slices of a fresh permutation of the client's examples, one permutation per epoch.

    No example is left out or counted twice: the last slice of an epoch may be smaller, and nothing is padded.

    Args:
      epochs: passes over the client's examples; give this or ``steps``.
      steps: the number of batches, over as many passes as they take.
      batch_size: examples per batch; a number below 1 is the share of a client's examples, rounded down to at least one
        example; None: all of the client's examples, one step per epoch.

    A straggler (``data.progress < 1``) does ``1 + floor(progress * epochs)`` epochs, or that share of its steps
    where there is only one epoch or work is counted in steps.

    Raises:
      EvenhandError: not exactly one of ``epochs`` and ``steps`` given, or an argument that is not a whole number from 1
        to a million, nor a share.
    """
    if (epochs is None) == (steps is None):
        raise EvenhandError("Local work needs exactly one of epochs= and steps=: give one of them.")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            whole_number(name, value, 1, _MOST)
    rows_of = None if batch_size is None else rows_in(batch_size)

    # lax.div and lax.rem: // and % of jax.numpy are a dozen operations each, for numbers below 0, which do not occur
    # here, and for a divisor of 0, with which a client without rows computes positions that nobody reads.
    def per_epoch(data: ClientData) -> Array:
        if rows_of is None:
            return jnp.int32(1)
        rows = rows_of(data.size)
        return lax.div(data.size + (rows - 1), jnp.int32(rows))

    def effort(data: ClientData) -> Effort:
        epoch = jnp.maximum(per_epoch(data), 1)
        over = lax.rem(total := _num_steps(data, epoch, epochs, steps), epoch)
        partial = data.size if rows_of is None else jnp.minimum(over * rows_of(data.size), data.size)
        return Effort(total, lax.div(total, epoch) * data.size + jnp.where(over > 0, partial, 0))

    def draw(data: ClientData, key: Key) -> Callable[[Array], Batch]:
        if rows_of is None:
            return lambda i: Batch(data)
        word, epoch, rows = permutation_words(key), per_epoch(data), rows_of(data.size)
        # The most that a client can have in a batch: room for all of them.
        places = jnp.arange(min(int(rows_of(data.capacity)), data.capacity), dtype=jnp.int32)

        def batch(i: Array) -> Batch:
            positions = lax.rem(i, epoch) * rows + places
            order = permute(positions, data.size, word, lax.div(i, epoch))
            inside = positions < data.size
            return Batch(data, order, inside if isinstance(rows, int) else inside & (places < rows))

        return batch

    return Batches(effort, draw)


def rows_in(batch_size: float, whole: str = "a client's examples") -> Callable[[Array | int], Array | int]:
    """``size -> rows``, the examples in a batch of so many: a given number, or a share of the ``whole``."""
    if not 0.0 < (share := real_number(batch_size)) < 1.0:
        if isinstance(batch_size, float):
            raise EvenhandError(
                Argument("batch_size", repr(batch_size)),
                f": give a whole number from 1 to {_MOST}, or a share of {whole} between 0 and 1.",
            )
        rows = whole_number("batch_size", batch_size, 1, _MOST)
        return lambda size: rows
    # 0.018 of 1,500 is 26.999998 in float32, and must be 27.
    factor = np.float32(share * (1.0 + 2e-7))

    def rows_of(size: Array | int) -> Array | int:
        if isinstance(size, int):
            return max(int(np.float32(size) * factor), 1)
        return jnp.maximum((size.astype(jnp.float32) * factor).astype(jnp.int32), 1)

    return rows_of


def _num_steps(data: ClientData, per_epoch: Array, epochs: int | None, steps: int | None) -> Array:
    """Local steps of this client in this round: all, or the part that a straggler completes."""

    def part(whole: Array) -> Array:
        done = 1 + jnp.floor(data.progress * whole.astype(jnp.float32)).astype(jnp.int32)
        return jnp.where(data.progress < 1, jnp.minimum(done, whole), whole)

    if steps is not None:
        total = part(jnp.int32(steps))
    elif epochs == 1:
        total = part(per_epoch)
    else:
        total = part(jnp.int32(epochs or 0)) * per_epoch
    return jnp.where(data.size > 0, total, 0)


def over_batches(
    schedule: Batches, step: Callable[[Any, Batch, Key], Any], begin: Any, data: ClientData, key: Key
) -> Any:
    """Folds ``step(carry, batch, step_key) -> carry`` over the batches of one round, from ``begin``.

    For local optimisers with their own loop: they get the same batches, in the same order, as plain descent.
    """
    batch, total = schedule.draw(data, key), schedule.effort(data).steps

    def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        i, kept = carry
        return i + 1, step(kept, batch(i), jax.random.fold_in(key, i))

    return lax.while_loop(lambda carry: carry[0] < total, body, (jnp.int32(0), begin))[1]


# --- effort: steps and examples, so that clients of similar effort train at the same time ------------------------


def step_per_row(data: ClientData) -> Effort:
    """The effort assumed where it is unknown: one step, on one example, per example or a straggler's share of them."""
    rows = jnp.ceil(data.size.astype(jnp.float32) * jnp.minimum(data.progress, 1.0)).astype(jnp.int32)
    return Effort(rows, rows)


def every_row(data: ClientData) -> Effort:
    """The effort of one pass over all examples, whatever the share of a straggler: a step for each of them."""
    return Effort(data.size, data.size)


def in_turn(*efforts: Callable[[ClientData], Effort]) -> Callable[[ClientData], Effort]:
    """The effort of several pieces of local work, one after the other."""

    def effort(data: ClientData) -> Effort:
        first, *others = (effort_of(data) for effort_of in efforts)
        return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), first, *others)

    return effort


def with_gradients(effort: Callable[[ClientData], Effort], count: int) -> Callable[[ClientData], Effort]:
    """The effort of local work each of whose steps computes ``count`` gradients, on batches of one size."""

    def more(data: ClientData) -> Effort:
        plain = effort(data)
        return plain._replace(rows=count * plain.rows)

    return more
