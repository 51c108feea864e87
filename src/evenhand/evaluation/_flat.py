"""Losses and metrics of every client, from one pass over the rows of all of them.

A model that all clients share does not care whose row it sees: the rows go through it in chunks of one size,
and only the sums per client, on the host and in float64, know about clients.  The result does not depend on
how the rows fall into chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from evenhand import tree
from evenhand.data._dataset import Split
from evenhand.errors import EvenhandError
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["Prepared", "evaluate", "evaluate_personal", "mean_loss", "per_client", "prepare"]

_CHUNK_NUMBERS = 2**19
"""Numbers in the rows of one chunk, about: what a forward pass makes of them must fit in memory."""
_CHUNK_ROWS = (128, 4096)
"""Fewest and most rows in a chunk."""

Measure = Callable[[Any, Array], Array]


class Prepared(NamedTuple):
    """A split that lies on the device, to be evaluated again and again.

    Attributes:
      x: features of all clients' rows, ``(rows, ...)``, on the device.
      y: labels, ``(rows, ...)``, on the device.
      offsets: ``(K + 1,)`` on the host; client ``k`` owns rows ``offsets[k]`` up to ``offsets[k + 1]``.
    """

    x: Array
    y: Array
    offsets: npt.NDArray[np.int64]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Rows per client, ``(K,)``."""
        return np.diff(self.offsets)


def prepare(split: Split) -> Prepared:
    """Copies a split's rows to the device; rows that are there already stay where they are."""
    return Prepared(jnp.asarray(split.x), jnp.asarray(split.y), np.asarray(split.offsets, np.int64))


def evaluate(model: Model, params: Params, split: Split) -> dict[str, npt.NDArray[np.float64]]:
    """Mean loss and mean metrics of each client, all with the same parameters.

    To evaluate the same rows many times, :func:`prepare` them once and call :func:`per_client`.

    Returns:
      ``"loss"`` and each of the model's metrics, ``(K,)`` float64; NaN for a client without rows.

    Example:
      >>> import jax.numpy as jnp
      >>> squares = Model(
      ...     init=lambda key: jnp.zeros(()),
      ...     apply=lambda w, x: w * x,
      ...     losses=lambda outputs, y: (outputs - y) ** 2,
      ...     metrics={"error": lambda outputs, y: abs(outputs - y)},
      ... )
      >>> y = np.arange(4, dtype=np.float32)
      >>> split = Split(x=np.ones(4, np.float32), y=y, offsets=np.array([0, 1, 1, 4]))
      >>> {name: values.tolist() for name, values in evaluate(squares, jnp.zeros(()), split).items()}
      {'loss': [0.0, nan, 4.666666666666667], 'error': [0.0, nan, 2.0]}
    """
    return per_client(model, params, prepare(split))


def per_client(model: Model, params: Params, prepared: Prepared) -> dict[str, npt.NDArray[np.float64]]:
    """As :func:`evaluate`, on rows that are on the device already; compiles once per model and shape of rows.

    The chunks are separate calls of one compiled function, not a loop inside it: a convolution in a compiled
    loop is far slower on a CPU, and the calls overlap anyway.
    """
    measures, rows = _measures(model), prepared.x.shape[0]
    width = min(_chunk_rows(prepared.x), rows)
    starts = range(0, rows, max(width, 1))
    # The last window is moved back to end with the last row, so that no row is made up.
    windows = [
        _chunk(params, prepared.x, prepared.y, np.int32(min(start, rows - width)), measures, width)
        for start in starts
    ]
    values = [np.asarray(window)[:, start - rows :] for window, start in zip(windows, starts, strict=True)]
    if not values:
        return _means(np.zeros((len(measures.names), len(prepared.sizes))), measures, prepared)
    flat = np.concatenate(values, axis=1).astype(np.float64)
    client = np.repeat(np.arange(len(prepared.sizes)), prepared.sizes)
    totals = np.stack([np.bincount(client, row, len(prepared.sizes)) for row in flat], dtype=np.float64)
    return _means(totals, measures, prepared)


def mean_loss(model: Model, params: Params, prepared: Prepared) -> Array:
    r"""The training objective ``f(w) = sum_k (n_k / n) F_k(w)``: mean loss over all rows of all clients.

    A float32 scalar, accurate to a few units in the last place however many rows there are; NaN without rows.
    Made to be called from compiled code: ``params`` and the rows may be tracers.
    """
    rows = prepared.x.shape[0]
    if not rows:
        return jnp.float32(jnp.nan)
    width = min(_chunk_rows(prepared.x), rows)
    measures = _Measures(model.apply, ("loss",), (model.losses,))

    def body(chunk: Array, total: _Total) -> _Total:
        first = chunk.astype(jnp.int32) * width
        start = jnp.minimum(first, rows - width)
        values = _values(params, prepared.x, prepared.y, start, measures, width)
        fresh = start + jnp.arange(width, dtype=jnp.int32) >= first
        return _add(total, jnp.where(fresh[None], values, 0.0))

    nothing = jnp.zeros(1, jnp.float32)
    total = lax.fori_loop(0, -(-rows // width), body, _Total(nothing, nothing))
    return _sum(total)[0] / rows


def evaluate_personal(
    model: Model,
    states: PyTree,
    prepared: Prepared,
    *,
    params_of: Callable[[PyTree, Array], Params] = tree.take,
    lanes: int = 1,
) -> dict[str, npt.NDArray[np.float64]]:
    """Mean loss and mean metrics of each client with parameters of its own.

    Args:
      model: gives the losses and metrics.
      states: what the parameters are made from; by default the stacked parameters, with a leading axis ``K``.
      prepared: the rows, from :func:`prepare`.
      params_of: ``(states, k) -> params`` of client ``k``, a traced int32; pass the same function every time,
        or it is compiled every time.
      lanes: how many clients go through the model side by side.

    Returns:
      As :func:`evaluate`.
    """
    measures, sizes = _measures(model), prepared.sizes
    if not prepared.x.shape[0]:
        return _means(np.zeros((len(measures.names), len(sizes))), measures, prepared)
    width = min(_chunk_rows(prepared.x), int(sizes.max()))
    windows = (prepared.offsets[:-1].astype(np.int32), sizes.astype(np.int32))
    totals = _personal(states, prepared.x, prepared.y, windows, measures, params_of, width, lanes)
    return _means(np.asarray(totals, np.float64).T, measures, prepared)


class _Measures(NamedTuple):
    """What to compute of each row; hashable, so that compiled code is found again."""

    apply: Callable[[Params, Array], PyTree]
    names: tuple[str, ...]
    functions: tuple[Measure, ...]


class _Total(NamedTuple):
    """A running sum and what rounding has taken from it so far (Neumaier)."""

    sum: Array
    lost: Array


def _measures(model: Model) -> _Measures:
    return _Measures(model.apply, ("loss", *model.metrics), (model.losses, *model.metrics.values()))


def _chunk_rows(x: Array) -> int:
    fitting = _CHUNK_NUMBERS // max(1, int(np.prod(x.shape[1:])))
    return int(np.clip(2 ** (max(fitting, 1).bit_length() - 1), *_CHUNK_ROWS))


def _values(params: Params, x: Array, y: Array, start: Array, measures: _Measures, width: int) -> Array:
    """All measures of ``width`` rows from ``start`` on, ``(measures, width)``."""
    x, y = lax.dynamic_slice_in_dim(x, start, width), lax.dynamic_slice_in_dim(y, start, width)
    outputs = measures.apply(params, x)
    columns: list[Array] = []
    for name, function in zip(measures.names, measures.functions, strict=True):
        column = function(outputs, y)
        if column.shape != (width,):
            raise EvenhandError(
                f"The model's {name!r} gives an array of shape {column.shape} for {width} rows; "
                f"it must give one number per row, shape ({width},)."
            )
        columns.append(column.astype(jnp.float32))
    return jnp.stack(columns)


_chunk = jax.jit(_values, static_argnums=(4, 5))


@partial(jax.jit, static_argnums=(4, 5, 6, 7))
def _personal(
    states: PyTree,
    x: Array,
    y: Array,
    windows: tuple[Array, Array],
    measures: _Measures,
    params_of: Callable[[PyTree, Array], Params],
    width: int,
    lanes: int,
) -> Array:
    """Totals of all measures over each client's rows, ``(K, measures)``."""
    rows = x.shape[0]

    def client(window: tuple[Array, Array, Array]) -> Array:
        k, offset, size = window
        params = params_of(states, k)

        def body(carry: tuple[Array, _Total]) -> tuple[Array, _Total]:
            done, total = carry
            start = jnp.minimum(offset + done, rows - width)
            row = start + jnp.arange(width, dtype=jnp.int32)
            own = (row >= offset + done) & (row < offset + size)
            values = _values(params, x, y, start, measures, width)
            return done + width, _add(total, jnp.where(own[None], values, 0.0))

        nothing = jnp.zeros(len(measures.names), jnp.float32)
        begin = (jnp.int32(0), _Total(nothing, nothing))
        return _sum(lax.while_loop(lambda carry: carry[0] < size, body, begin)[1])

    ids = jnp.arange(windows[0].shape[0], dtype=jnp.int32)
    return lax.map(client, (ids, *windows), batch_size=lanes if lanes > 1 else None)


def _add(total: _Total, values: Array) -> _Total:
    """Adds the sum over the last axis of ``values``."""
    term = jnp.sum(values, axis=-1)
    new = total.sum + term
    lost = jnp.where(jnp.abs(total.sum) >= jnp.abs(term), (total.sum - new) + term, (term - new) + total.sum)
    return _Total(new, total.lost + lost)


def _sum(total: _Total) -> Array:
    # After an infinity the correction is NaN and the sum is right without it.
    return jnp.where(jnp.isfinite(total.sum), total.sum + total.lost, total.sum)


def _means(
    totals: npt.NDArray[np.float64], measures: _Measures, prepared: Prepared
) -> dict[str, npt.NDArray[np.float64]]:
    sizes = prepared.sizes
    means = np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)
    return dict(zip(measures.names, means, strict=True))
