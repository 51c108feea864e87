"""Losses and metrics of every client, from one pass over the examples of all of them.

For a model that all clients share, it does not matter whose example it sees: the examples go through it in chunks of
one size, and only the sums per client, on the host and in float64, tell clients apart.  The result depends neither on
how the examples fall into chunks nor on which device evaluates a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evenhand._platform import check_process
from evenhand.data import Split
from evenhand.devices import dealt, everywhere
from evenhand.errors import EvenhandError
from evenhand.evaluation._classes import ClassIndex, ClassMetrics
from evenhand.evaluation._totals import Total, add, sum_of
from evenhand.types import Array, Model, Params, PyTree

__all__ = ["Prepared", "evaluate", "mean_loss", "per_client", "prepare"]

_CHUNK_NUMBERS = 2**19
"""About how many numbers a chunk of features has: its forward pass must fit in memory."""
_CHUNK_ROWS = (128, 4096)
"""Fewest and most rows in a chunk."""
_AHEAD = 4
"""Chunks in flight: enough to keep the devices busy, and few enough to copy little of the split."""
_TOGETHER = 2**16
"""Clients that are summed at a time: in float64, the values of all examples could take more memory than they do."""

Measure = Callable[[Any, Array], Array]


class Prepared(NamedTuple):
    """A split, or some of its clients, ready to be evaluated repeatedly.

    Attributes:
      x: features of all clients' examples, ``(examples, ...)``: on the device, or a NumPy array that stays on the host
        or in its file and is sent to the device chunk by chunk.
      y: labels, ``(examples, ...)``, likewise.
      offsets: ``(K + 1,)`` on the host; client ``k`` has rows ``offsets[k]`` up to ``offsets[k + 1]``.
      clients: the clients' numbers, ``(K,)``; None: ``0 .. K - 1``.
      mesh: devices of this process that share the work, each with all of ``x`` unless it is on the host; None: one.
    """

    x: Array | npt.NDArray[Any]
    y: Array | npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    clients: npt.NDArray[np.int64] | None = None
    mesh: Mesh | None = None

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Examples per client, ``(K,)``."""
        return np.diff(self.offsets)

    def some(self, chosen: slice) -> Prepared:
        """Only the clients in the slice ``chosen``, renumbered from 0; no examples are moved."""
        return self._replace(offsets=self.offsets[chosen.start : chosen.stop + 1], clients=None)


def prepare(split: Split) -> Prepared:
    """Copies a split's examples to the device, unless they are on it already."""
    check_process()
    return Prepared(jnp.asarray(split.x), jnp.asarray(split.y), np.asarray(split.offsets, np.int64))


def evaluate(model: Model, params: Params, split: Split) -> dict[str, npt.NDArray[np.float64]]:
    """Mean loss and mean metrics of each client, all with the same parameters.

    To evaluate the same examples many times, :func:`prepare` them once and call :func:`per_client`.

    Returns:
      ``"loss"`` and each of the model's metrics, ``(K,)`` float64; NaN for a client without examples.

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
    """As :func:`evaluate`, on prepared examples; compiles once per model and shape of the examples."""
    return per_class(model, params, prepared, None)[0]


def per_class(
    model: Model, params: Params, prepared: Prepared, index: ClassIndex | None
) -> tuple[dict[str, npt.NDArray[np.float64]], ClassMetrics | None]:
    """As :func:`per_client`; with an ``index``, also the accuracy of each class at each client."""
    measures = measures_of(model)
    values = _of_rows(everywhere(prepared.mesh, params), prepared, measures)
    return _by_client([values], measures, prepared, index)[0]


def per_class_of_each(
    model: Model, params: Params, prepared: Prepared, index: ClassIndex | None
) -> list[tuple[dict[str, npt.NDArray[np.float64]], ClassMetrics | None]]:
    """As :func:`per_class`, of several models at once; ``params`` have a leading axis, one entry per model."""
    measures = measures_of(model)
    values = _of_rows(everywhere(prepared.mesh, params), prepared, measures, several=True)
    return _by_client(list(values), measures, prepared, index)


def _by_client(
    values: Sequence[npt.NDArray[np.float32]],
    measures: Measures,
    prepared: Prepared,
    index: ClassIndex | None,
) -> list[tuple[dict[str, npt.NDArray[np.float64]], ClassMetrics | None]]:
    """From the measures of every example, ``(measures, examples)``, of each model."""
    totals = [np.zeros((len(measures.names), len(prepared.sizes))) for _ in values]
    if prepared.x.shape[0]:
        for first in range(0, len(prepared.sizes), _TOGETHER):
            sizes = prepared.sizes[first : first + _TOGETHER]
            rows = slice(prepared.offsets[first], prepared.offsets[first + len(sizes)])
            client = np.repeat(np.arange(len(sizes)), sizes)
            for of, into in zip(values, totals, strict=True):
                for row, total in zip(of[:, rows], into, strict=True):
                    total[first : first + len(sizes)] = np.bincount(client, row, len(sizes))
    found = [means(each, measures, prepared) for each in totals]
    if index is None:
        return [(each, None) for each in found]
    right = [np.zeros(len(index.clients))] * len(values)
    if prepared.x.shape[0]:
        right = index.sums(*(each[measures.names.index("accuracy")] for each in values))
    return [(each, index.metrics(sums)) for each, sums in zip(found, right, strict=True)]


def mean_loss(model: Model, params: Params, prepared: Prepared) -> Array:
    r"""The training objective ``f(w) = sum_k (n_k / n) F_k(w)``: mean loss over all examples of all clients.

    A float32 scalar, accurate to a few units in the last place for any number of examples; NaN without any.  It can
    be called from compiled code: ``params`` and the examples may be tracers.
    """
    rows = prepared.x.shape[0]
    if not rows:
        return jnp.float32(jnp.nan)
    width = min(chunk_rows(prepared.x), rows)
    measures = Measures(model.apply, ("loss",), (model.losses,))

    def body(chunk: Array, total: Total) -> Total:
        first = chunk.astype(jnp.int32) * width
        start = jnp.minimum(first, rows - width)
        values = values_of(params, prepared.x, prepared.y, start, measures, width)
        fresh = start + jnp.arange(width, dtype=jnp.int32) >= first
        return add(total, jnp.where(fresh[None], values, 0.0))

    nothing = jnp.zeros(1, jnp.float32)
    total = lax.fori_loop(0, -(-rows // width), body, Total(nothing, nothing))
    return sum_of(total)[0] / rows


class Measures(NamedTuple):
    """What to compute for each example; hashable, so that compiled code is found again."""

    apply: Callable[[Params, Array], PyTree]
    names: tuple[str, ...]
    functions: tuple[Measure, ...]


def measures_of(model: Model) -> Measures:
    measures = {
        "loss": model.losses,
        **model.metrics,
    }  # a metric called "loss" is what is reported as the loss
    return Measures(model.apply, tuple(measures), tuple(measures.values()))


def chunk_rows(x: Array | npt.NDArray[Any]) -> int:
    fitting = _CHUNK_NUMBERS // max(1, int(np.prod(x.shape[1:])))
    return int(np.clip(2 ** (max(fitting, 1).bit_length() - 1), *_CHUNK_ROWS))


def values_of(params: Params, x: Any, y: Any, start: Any, measures: Measures, width: int) -> Array:
    """All measures of ``width`` examples from row ``start`` on, ``(measures, width)``."""
    x, y = lax.dynamic_slice_in_dim(x, start, width), lax.dynamic_slice_in_dim(y, start, width)
    outputs = measures.apply(params, x)
    columns: list[Array] = []
    for name, function in zip(measures.names, measures.functions, strict=True):
        column = function(outputs, y)
        if column.shape != (width,):
            raise EvenhandError(
                f"The model's {name!r} gives an array of shape {column.shape} for {width} examples; "
                f"it must give one number per example, shape ({width},)."
            )
        columns.append(column.astype(jnp.float32))
    return jnp.stack(columns)


def _values_of(
    params: Params, x: Any, y: Any, start: Any, measures: Measures, width: int, several: bool
) -> Array:
    """As :func:`values_of`; of several models, ``(models, measures, width)``."""

    def of(params: Params) -> Array:
        return values_of(params, x, y, start, measures, width)

    return jax.vmap(of)(params) if several else of(params)


_chunk = jax.jit(_values_of, static_argnums=(4, 5, 6))


@partial(jax.jit, static_argnums=(4, 5, 6, 7, 8))
def _chunks(
    params: Params,
    x: Array,
    y: Array,
    starts: Array,
    measures: Measures,
    width: int,
    several: bool,
    mesh: Mesh,
    spec: PartitionSpec,
) -> Array:
    """A chunk per device, ``(devices, ..., measures, width)``."""

    def on_device(params: Params, x: Array, y: Array, starts: Array) -> Array:
        return _values_of(params, x, y, starts[0], measures, width, several)[None]

    each = PartitionSpec(*mesh.axis_names)
    specs = (PartitionSpec(), spec, spec, each)
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=each, check_vma=False)(
        params, x, y, starts
    )


def _of_rows(
    params: Params, prepared: Prepared, measures: Measures, several: bool = False
) -> npt.NDArray[np.float32]:
    """All measures of every example, ``(measures, examples)``; of several models, ``(models, measures, examples)``."""
    rows, mesh = prepared.x.shape[0], prepared.mesh
    devices = 1 if mesh is None else mesh.size
    models = (jax.tree.leaves(params)[0].shape[0],) if several else ()
    values = np.empty((*models, len(measures.names), rows), np.float32)
    if not rows:
        return values
    width = min(chunk_rows(prepared.x), -(-rows // devices))
    pending: deque[tuple[int, Array]] = deque()

    def collect() -> None:
        first, found = pending.popleft()
        for start, window in zip(range(first, rows, width), np.asarray(found), strict=False):
            values[..., start : start + width] = window[..., -min(width, rows - start) :]

    for first in range(0, rows, width * devices):
        # A window that would end beyond the last row is moved back, so that no row is made up.
        starts = np.minimum(first + width * np.arange(devices), rows - width)
        pending.append((first, _windows(params, prepared, starts, measures, width, several)))
        if len(pending) > _AHEAD:
            collect()
    while pending:
        collect()
    return values


def _windows(
    params: Params,
    prepared: Prepared,
    starts: npt.NDArray[Any],
    measures: Measures,
    width: int,
    several: bool,
) -> Array:
    x, y, mesh, spec = prepared.x, prepared.y, prepared.mesh, PartitionSpec()
    if isinstance(x, np.ndarray):
        x, y = (dealt(mesh, [part[start : start + width] for start in starts]) for part in (x, y))
        starts, spec = np.zeros_like(starts), PartitionSpec(*(() if mesh is None else mesh.axis_names))
    starts = starts.astype(np.int32)
    if mesh is None:
        return _chunk(params, x, y, starts[0], measures, width, several)[None]
    return _chunks(params, x, y, starts, measures, width, several, mesh, spec)


def means(
    totals: npt.NDArray[np.float64], measures: Measures, prepared: Prepared
) -> dict[str, npt.NDArray[np.float64]]:
    sizes = prepared.sizes
    means = np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)
    return dict(zip(measures.names, means, strict=True))
