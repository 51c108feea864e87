"""What a model gives for examples: its outputs, and the metrics of sets of examples that are computed from them.

First, the outputs for new examples, which have no labels.  Then the outputs for all clients' examples, each with the
model that the client is served: they may not fit into memory, so they come to the host in windows of rows, in the
order of the clients, and are dropped once those of whole clients have been measured.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evenhand.data import FederatedDataset
from evenhand.devices import Devices, dealt, everywhere
from evenhand.errors import EvenhandError
from evenhand.evaluation._classes import NDArray
from evenhand.evaluation._evaluate import ParamsOf, Prepared, chunk_rows, divided, filled, on_devices
from evenhand.evaluation.metrics import Metric, check, measure_clients
from evenhand.lowering import lowered
from evenhand.models import Margin, hinge, squared_error
from evenhand.text import listed
from evenhand.types import Array, Model, Params, PyTree

# --- new examples -------------------------------------------------------------------------------------------------


def outputs(model: Model, params: Params, x: NDArray) -> PyTree:
    """The raw outputs of a model, such as logits, for examples of any number.

    The examples go through the model in chunks, so that its inner layers need no more memory for more of them.

    Args:
      model: gives ``apply``.
      params: its parameters.
      x: the examples, ``(rows, ...)``, of the shape and type that the model was trained on.

    Returns:
      What ``model.apply(params, x)`` returns, as NumPy arrays: ``(rows, outputs)``, or a tree of such arrays.

    Example:
      >>> import jax, numpy as np, evenhand as eh
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> params = {"kernel": np.eye(3, 2, dtype=np.float32), "bias": np.zeros(2, np.float32)}
      >>> outputs(model, params, np.ones((5, 3), np.float32)).shape
      (5, 2)
    """
    # A power of two where they are few, so that inputs of many lengths share few programs.
    width = min(chunk_rows(x), 1 << max(0, len(x) - 1).bit_length())
    # Without rows there is one chunk all the same, which gives the outputs' shape.
    chunks = [
        _apply(model.apply, params, jnp.asarray(filled(x, slice(first, min(first + width, len(x))), width)))
        for first in range(0, len(x) or 1, width)
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(x)], *chunks)


def unlabelled(x: npt.ArrayLike, shape: tuple[int, ...], dtype: Any, source: str = "x") -> NDArray:
    """Examples without labels, checked against those that a model was trained on.

    Args:
      x: ``(rows, *shape)``.
      shape: of one example.
      dtype: float32, or int32 for tokens.
      source: what the examples are called in errors.

    Raises:
      EvenhandError: they have another shape or kind, or a number is not finite.

    Example:
      >>> unlabelled([[1, 2], [3, 4]], (2,), "float32").dtype
      dtype('float32')
    """
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        raise EvenhandError(
            f"{source}: the examples are ragged: give every example the same length."
        ) from None
    wanted = np.dtype(dtype)
    if array.shape == shape and shape:
        raise EvenhandError(
            f"{source}: this is a single example, of shape {shape}: give x[None], a row of it."
        )
    if array.ndim == 0 or array.shape[1:] != shape:
        raise EvenhandError(
            f"{source}: the examples have shape {array.shape}, but the model was trained on rows of shape {shape}: "
            f"give an array of shape ({', '.join(['rows', *map(str, shape)])})."
        )
    if array.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        kind = "whole numbers (tokens)" if wanted.kind == "i" else "numbers"
        raise EvenhandError(f"{source}: the examples are {array.dtype}, but the model was trained on {kind}.")
    with np.errstate(over="ignore"):
        examples = array.astype(wanted, copy=False)
    finite = np.isfinite(examples).reshape(len(examples), math.prod(shape)).all(axis=1)
    if not finite.all():
        raise EvenhandError(
            f"{source}: row {int(np.argmin(finite))} holds a number that is not a finite 32-bit number: repair it."
        )
    return examples


@partial(jax.jit, static_argnums=0)
def _apply(apply: Callable[[Params, Array], PyTree], params: Params, x: Array) -> PyTree:
    return apply(params, x)


# --- all clients' examples ----------------------------------------------------------------------------------------

_NUMBERS = 2**22
"""About how many outputs, or features where the examples are on the host, are in a call of the program."""


_TRIED = 1000
"""Examples of the largest client, at most, on which metrics are tried."""


def check_metrics(metrics: Sequence[Metric], model: Model, data: FederatedDataset) -> None:
    """The model and the data have what the metrics need, and each metric can be measured.

    Raises:
      EvenhandError: they have not; or the model has a metric of that name; or a metric of one's own fails.
    """
    if not metrics:
        return
    if name := next((metric.name for metric in metrics if metric.name in model.metrics), ""):
        raise EvenhandError(f"metrics: the model already measures {name!r} on each example: leave it out.")
    x, y = (jax.ShapeDtypeStruct((2, *part.shape[1:]), part.dtype) for part in (data.train.x, data.train.y))
    given = jax.eval_shape(lambda x: model.apply(model.init(jax.random.key(0)), x), x)
    outputs = _output_array(given)
    if outputs is None:
        raise EvenhandError(
            "metrics: the outputs of this model are several arrays, and metrics need one: use a model that gives one."
        )
    kind = _targets(model, np.empty(0, y.dtype)).dtype
    if kind.kind != "f" and y.size != 2:
        raise EvenhandError(
            f"metrics: the labels of {data.name!r} are class numbers of shape {y.shape[1:]}, and metrics need one "
            f"class number per example: leave out {listed([metric.name for metric in metrics])}."
        )
    check(metrics, outputs.shape, kind, margins=isinstance(given, Margin) or model.losses is hinge)
    # A function of the user's that gives no number should fail now, not after the training.
    labels = _targets(model, data.train.client(int(data.train.sizes.argmax()))[1][:_TRIED])
    made_up = np.random.default_rng(0).standard_normal((len(labels), *outputs.shape[1:]))
    with warnings.catch_warnings(action="ignore"):
        try:
            measure_clients(metrics, made_up, labels, [0, len(labels)])
        except EvenhandError as error:
            # A function may need outputs that a model gives and these are not, such as probabilities: it failed itself.
            if error.__cause__ is None:
                raise


def measured_clients(
    model: Model,
    states: PyTree,
    prepared: Prepared,
    metrics: Sequence[Metric],
    *,
    params_of: ParamsOf | None = None,
    lanes: int = 1,
    widest: NDArray | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """Each metric of each client, ``(K,)``; NaN for a client without examples.

    Args:
      model: gives the outputs.
      states: what parameters are made from; without ``params_of`` the parameters that all clients share.
      prepared: the examples.
      metrics: what is measured.
      params_of: as in :func:`evenhand.evaluation.evaluate_personal`.
      lanes: how many windows go through the model side by side.
      widest: the sizes of all clients that will ever be measured, so that one program serves them all.
    """
    if changed := [metric for metric in metrics if metric.inputs is not None]:
        among = partial(measured_clients, states=states, prepared=prepared, params_of=params_of)
        among = partial(among, lanes=lanes, widest=widest)
        rest = among(model, metrics=[metric for metric in metrics if metric.inputs is None])
        for metric in changed:
            assert metric.inputs is not None
            shown = model._replace(apply=_after(metric.inputs, model.apply))
            rest |= among(shown, metrics=[metric._replace(inputs=None)])
        return rest
    if not metrics:
        return {}
    offsets = prepared.offsets - prepared.offsets[0]
    values = {metric.name: np.full(len(prepared.sizes), np.nan) for metric in metrics}
    labels = _targets(model, np.asarray(prepared.y))
    first, waiting, count = 0, list[NDArray](), 0
    widest = prepared.sizes if widest is None else widest
    for rows in _client_outputs(model, states, prepared, params_of, lanes, widest):
        waiting.append(rows)
        count += len(rows)
        last = int(np.searchsorted(offsets, offsets[first] + count, "right")) - 1
        if last > first:  # some clients are complete
            whole, ends = np.concatenate(waiting), offsets[first : last + 1] - offsets[first]
            begin, size = int(prepared.offsets[first]), int(ends[-1])
            complete = measure_clients(metrics, whole[:size], labels[begin : begin + size], ends)
            for name, column in complete.items():
                values[name][first:last] = column
            first, waiting, count = last, [whole[size:]], len(whole) - size
    return values


# Cached, so that one program serves all evaluations of a model.
@lru_cache(maxsize=16)
def _after(inputs: Callable[[Any], Any], apply: Callable[[Params, Array], PyTree]) -> Any:
    """The forward pass on changed examples."""
    return lambda params, x: apply(params, inputs(x))


def _targets(model: Model, y: NDArray) -> NDArray:
    """The labels; as numbers, not classes, where the model predicts numbers."""
    return y.astype(np.float64) if squared_error in (model.losses, *model.metrics.values()) else y


def _output_array(outputs: Any) -> Any:
    """The array that a model's outputs consist of; None where they are several."""
    if isinstance(outputs, Margin):
        return outputs.score
    leaves = jax.tree.leaves(outputs)
    return leaves[0] if len(leaves) == 1 else None


class _Windows(NamedTuple):
    """Windows of rows of one client each, in the order of the rows.

    Attributes:
      ids: whose parameters are used.
      starts: the first row of each.
      sizes: how many rows each has.
    """

    ids: NDArray
    starts: NDArray
    sizes: NDArray

    @staticmethod
    def up_to(width: int, prepared: Prepared, *, shared: bool) -> _Windows:
        """Those of each client; of all rows together where clients share the parameters."""
        offsets = prepared.offsets[[0, -1]] if shared else prepared.offsets
        counts = -(-np.diff(offsets) // width)
        client = np.repeat(np.arange(len(counts)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        starts = offsets[client] + width * (np.arange(len(client)) - before)
        ids = client if shared or prepared.clients is None else prepared.clients[client]
        return _Windows(ids, starts, np.minimum(width, offsets[client + 1] - starts))

    def batch(self, first: int, count: int) -> _Windows:
        """``count`` of them from the ``first`` on, the missing ones empty."""
        parts = (part[first : first + count] for part in self)
        return _Windows(*(np.pad(part, (0, count - len(part))) for part in parts))


def _client_outputs(
    model: Model, states: PyTree, prepared: Prepared, params_of: ParamsOf | None, lanes: int, widest: NDArray
) -> Iterator[NDArray]:
    """The outputs of all rows of these clients, ``(rows, outputs)``, some rows at a time."""
    x, mesh, shared = prepared.x, prepared.mesh, params_of is None
    if prepared.offsets[-1] == prepared.offsets[0]:
        return
    width = min(chunk_rows(x), x.shape[0] if shared else int(widest.max()))
    windows = _Windows.up_to(width, prepared, shared=shared)
    host, devices = x if isinstance(x, np.ndarray) else None, Devices(mesh).size
    serve = _shared if params_of is None else params_of
    states = everywhere(mesh, states)
    like = jax.ShapeDtypeStruct((width, *x.shape[1:]), x.dtype)
    outputs = jax.eval_shape(lambda s, x: _rows(model.apply, serve(s, jnp.int32(0)), x), states, like)
    numbers = max(outputs.size, 0 if host is None else like.size)
    most = devices * int(np.clip(_NUMBERS // numbers, 1, -(-len(windows.ids) // devices)))
    program = _program(model.apply, serve, width, lanes, mesh, host is not None)
    for first in range(0, len(windows.ids), most):
        ids, starts, sizes = batch = windows.batch(first, most)
        if host is not None:
            # Each window's own rows, cut or padded to the width: its outputs come from row 0 on.
            sent, at = dealt(mesh, _cut(host, batch, width, devices)), np.zeros_like(starts)
        else:
            # A window that would end beyond the last row is moved back.
            sent, at = x, np.minimum(starts, x.shape[0] - width)
        skipped = starts - at if host is None else at
        values = np.asarray(program(states, sent, ids.astype(np.int32), at.astype(np.int32)))
        row = np.arange(width)
        yield values[(row >= skipped[:, None]) & (row < (skipped + sizes)[:, None])]


def _cut(x: NDArray, windows: _Windows, width: int, devices: int) -> list[NDArray]:
    """The rows of the windows of each device, ``(windows, width, ...)``."""
    ends = zip(windows.starts, windows.starts + windows.sizes, strict=True)
    rows = [filled(x, slice(a, b), width) for a, b in ends]
    share = len(rows) // devices
    return [np.stack(rows[i : i + share]) for i in range(0, len(rows), share)]


def _shared(params: Params, client: Array) -> Params:
    return params


def _rows(apply: Callable[[Params, Array], PyTree], params: Params, x: Array) -> Array:
    outputs = _output_array(apply(params, x))
    return jnp.reshape(outputs, (x.shape[0], -1)).astype(jnp.float32)


# Few at a time, since the key holds functions of the method and thereby all that they have closed over.
@lru_cache(maxsize=16)
def _program(
    apply: Callable[..., PyTree], serve: ParamsOf, width: int, lanes: int, mesh: Mesh | None, on_host: bool
) -> Callable[..., Array]:
    """``(states, x, ids, starts) -> (windows, width, outputs)``; the windows are dealt to the devices.

    ``x`` are all rows, or on the host those of each window.
    """
    inside = lowered(apply)

    def on_device(states: PyTree, x: Array, ids: Array, starts: Array) -> Array:
        def window(part: tuple[Array, Any, Array]) -> Array:
            client, rows, start = part
            own = rows if on_host else lax.dynamic_slice_in_dim(x, start, width)
            return _rows(inside, serve(states, client), own)

        windows = (ids, x if on_host else (), starts)
        return lax.map(window, windows, batch_size=lanes if lanes > 1 else None)

    part = divided(mesh)
    specs = (PartitionSpec(), part if on_host else PartitionSpec(), part, part)
    return jax.jit(on_devices(on_device, mesh, specs))
