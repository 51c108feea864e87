"""Losses and metrics of every client: of one model that all share, or of a model for each.

For a model that all clients share, it does not matter whose example it sees: the examples go through it in chunks of
one size, and only the sums per client, on the host and in float64, tell clients apart.  The result depends neither on
how the examples fall into chunks nor on which device evaluates a chunk.

For personal models, a compiled loop goes through the clients, and an inner one through the examples of each; float32
sums that remember what rounding has lost stand in for float64.  Last, clients may choose among several models that
have been evaluated already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evenhand import tree
from evenhand._jaxpr.hoist import has_large_arrays, hoist, is_switched_on, warn_of
from evenhand._jaxpr.programs import UnknownForm
from evenhand._platform import check_process
from evenhand.data import Split
from evenhand.devices import Devices, dealt, everywhere
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation._classes import ClassIndex, ClassMetrics, NDArray
from evenhand.evaluation.metrics import Vector, is_higher_better, of_global
from evenhand.lowering import lowered
from evenhand.types import Array, Model, Params, PyTree

ParamsOf: TypeAlias = Callable[[PyTree, Array], Params]
"""``(states, k) -> params`` of client ``k``."""

_CHUNK_NUMBERS = 2**19
"""About how many numbers a chunk of features has: its forward pass must fit in memory."""

_CHUNK_ROWS = (128, 4096)
"""Fewest and most rows in a chunk."""

_AHEAD = 4
"""Chunks in flight: enough to keep the devices busy, and few enough to copy little of the split."""

_TOGETHER = 2**16
"""Clients that are summed at a time: in float64, the values of all examples could take more memory than they do."""

_BLOCK_NUMBERS = 2**23
"""About how many numbers are sent to a device at a time, where the examples are on the host."""

_BLOCK_CLIENTS = 2**12
"""Most clients that are sent with them."""


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

    x: Array | NDArray
    y: Array | NDArray
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


# --- one model for all clients ------------------------------------------------------------------------------------


def evaluate(model: Model, params: Params, split: Split) -> dict[str, Vector]:
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


def per_client(model: Model, params: Params, prepared: Prepared) -> dict[str, Vector]:
    """As :func:`evaluate`, on prepared examples; compiles once per model and shape of the examples."""
    return per_class(model, params, prepared, None)[0]


def per_class(
    model: Model, params: Params, prepared: Prepared, index: ClassIndex | None
) -> tuple[dict[str, Vector], ClassMetrics | None]:
    """As :func:`per_client`; with an ``index``, also the accuracy of each class at each client."""
    return _by_client(model, params, prepared, index, several=False)[0]


def per_class_of_each(
    model: Model, params: Params, prepared: Prepared, index: ClassIndex | None
) -> list[tuple[dict[str, Vector], ClassMetrics | None]]:
    """As :func:`per_class`, of several models at once; ``params`` have a leading axis, one entry per model."""
    return _by_client(model, params, prepared, index, several=True)


def _by_client(
    model: Model, params: Params, prepared: Prepared, index: ClassIndex | None, *, several: bool
) -> list[tuple[dict[str, Vector], ClassMetrics | None]]:
    """What each model gives each client: all examples are measured, then added up by client."""
    sizes, offsets, devices = prepared.sizes, prepared.offsets, Devices(prepared.mesh).size
    plan = _plan(model, prepared, -(-prepared.x.shape[0] // devices))
    values = _of_rows(everywhere(prepared.mesh, params), prepared, plan, several)
    totals: Any = np.zeros((*values.shape[:2], len(sizes)))
    # `bincount` copies what it adds up to float64, so it gets the examples of some clients at a time.
    for first in range(0, len(sizes) if values.shape[-1] else 0, _TOGETHER):
        last = min(first + _TOGETHER, len(sizes))
        client = np.repeat(np.arange(last - first), sizes[first:last])
        for place in np.ndindex(*values.shape[:2]):
            rows = values[place][offsets[first] : offsets[last]]
            totals[place][first:last] = np.bincount(client, rows, last - first)
    by_model = [_means(total, plan, prepared) for total in totals]
    if index is None:
        return [(metrics, None) for metrics in by_model]
    right = index.sums(*values[:, plan.names.index("accuracy")])
    return [(metrics, index.metrics(sums)) for metrics, sums in zip(by_model, right, strict=True)]


def mean_loss(model: Model, params: Params, prepared: Prepared) -> Array:
    r"""The training objective ``f(w) = sum_k (n_k / n) F_k(w)``: mean loss over all examples of all clients.

    A float32 scalar, accurate to a few units in the last place for any number of examples; NaN without any.  It can
    be called from compiled code: ``params`` and the examples may be tracers.
    """
    rows = prepared.x.shape[0]
    if not rows:
        return jnp.float32(jnp.nan)
    width = min(chunk_rows(prepared.x), rows)
    plan = _Plan(model.apply, ("loss",), (model.losses,), width)

    def body(chunk: Array, total: _CompensatedSum) -> _CompensatedSum:
        first = chunk.astype(jnp.int32) * width
        start = jnp.minimum(first, rows - width)
        values = _measured(params, prepared.x, prepared.y, start, plan)
        fresh = start + jnp.arange(width, dtype=jnp.int32) >= first
        return _accumulate(total, jnp.where(fresh[None], values, 0.0))

    nothing = jnp.zeros(1, jnp.float32)
    total = lax.fori_loop(0, -(-rows // width), body, _CompensatedSum(nothing, nothing))
    return _value_of(total)[0] / rows


def _of_rows(params: Params, prepared: Prepared, plan: _Plan, several: bool) -> npt.NDArray[np.float32]:
    """All measures of every example by each model, ``(models, measures, examples)``."""
    rows, width, devices = prepared.x.shape[0], plan.width, Devices(plan.mesh).size
    models = jax.tree.leaves(params)[0].shape[0] if several else 1
    values = np.empty((models, len(plan.names), rows), np.float32)
    pending: deque[tuple[int, Array]] = deque()

    def collect() -> None:
        first, measured = pending.popleft()
        for start, window in zip(range(first, rows, width), np.asarray(measured), strict=False):
            values[..., start : start + width] = window[..., -min(width, rows - start) :]

    for first in range(0, rows, width * devices):
        # A window that would end beyond the last row is moved back, so that no row is made up.
        starts = np.minimum(first + width * np.arange(devices), rows - width)
        pending.append((first, _windows(params, prepared, starts, plan, several)))
        if len(pending) > _AHEAD:
            collect()
    while pending:
        collect()
    return values


def _windows(params: Params, prepared: Prepared, starts: NDArray, plan: _Plan, several: bool) -> Array:
    """A window of rows on each device, ``(devices, ..., measures, width)``."""
    x, y, spec = prepared.x, prepared.y, PartitionSpec()
    if isinstance(x, np.ndarray):
        x, y = (dealt(plan.mesh, [part[start : start + plan.width] for start in starts]) for part in (x, y))
        starts, spec = np.zeros_like(starts), divided(plan.mesh)
    return _chunks(plan, several, spec)(params, x, y, starts.astype(np.int32))


@lru_cache(maxsize=64)
def _chunks(plan: _Plan, several: bool, spec: PartitionSpec) -> Callable[..., Array]:
    """``(params, x, y, starts)`` -> the measures of a window on each device."""

    def on_device(params: Params, x: Array, y: Array, starts: Array) -> Array:
        def measured(params: Params) -> Array:
            return _measured(params, x, y, starts[0], plan)

        return (jax.vmap(measured) if several else measured)(params)[None]

    specs = (PartitionSpec(), spec, spec, divided(plan.mesh))
    return _Apart(on_devices(on_device, plan.mesh, specs), plan.mesh)


# --- a model for each client --------------------------------------------------------------------------------------


def evaluate_personal(
    model: Model, states: PyTree, prepared: Prepared, *, params_of: ParamsOf = tree.take, lanes: int = 1
) -> dict[str, Vector]:
    """Mean loss and mean metrics of each client, evaluated with its own parameters.

    Args:
      model: gives the losses and metrics.
      states: what the parameters are made from; by default the stacked parameters, with a leading axis ``K``.
      prepared: the examples, from :func:`prepare`.
      params_of: ``(states, k) -> params`` of client ``k``, a traced int32; pass the same function every time,
        or each call compiles again.
      lanes: how many clients are evaluated side by side.

    Returns:
      As :func:`evaluate`.
    """
    return personal_per_class(model, states, prepared, None, params_of=params_of, lanes=lanes)[0]


def personal_per_class(
    model: Model,
    states: PyTree,
    prepared: Prepared,
    index: ClassIndex | None,
    *,
    params_of: ParamsOf = tree.take,
    lanes: int = 1,
    widest: NDArray | None = None,
) -> tuple[dict[str, Vector], ClassMetrics | None]:
    """As :func:`evaluate_personal`; with an ``index``, also the accuracy of each class at each client.

    ``widest`` holds the sizes of all clients that will ever be evaluated, so that one program serves them all.
    """
    sizes, classes = prepared.sizes, 0 if index is None else index.number
    plan = _plan(model, prepared, int(np.max(sizes if widest is None else widest, initial=0)))
    totals = np.zeros((len(sizes), len(plan.names)))
    right = np.zeros(0 if index is None else len(index.clients))
    if prepared.x.shape[0]:
        states = everywhere(prepared.mesh, states)
        blocks = _on_host if isinstance(prepared.x, np.ndarray) else _on_device
        for block in blocks(prepared, len(sizes) if index is None else index.fitting()):
            program = _personal_program(plan, params_of, lanes, block.spec, classes)
            sums = np.asarray(program(states, block.x, block.y, block.windows), np.float64)
            clients, sums = block.clients[block.clients >= 0], sums[block.clients >= 0]
            totals[clients] = sums[:, : len(plan.names)]
            if index is not None:
                cells, correct = index.cells(clients[0], sums[:, len(plan.names) :])
                right[cells] = correct
    return _means(totals.T, plan, prepared), None if index is None else index.metrics(right)


class _Block(NamedTuple):
    """A block of clients, equally many for each device.

    Attributes:
      x: features, on the devices.
      y: labels.
      clients: positions among those evaluated, -1 for padding.
      windows: the clients' numbers in the data set, the first row of each, counted from its device's first, and how
        many rows each has, int32; 0 for padding.
      spec: how ``x`` and ``y`` are divided among the devices.
    """

    x: Any
    y: Any
    clients: NDArray
    windows: tuple[NDArray, ...]
    spec: PartitionSpec


def _on_device(prepared: Prepared, together: int) -> Iterator[_Block]:
    """All clients, divided evenly among the devices, each of which holds all rows; at most ``together`` on one."""
    count, devices = len(prepared.sizes), Devices(prepared.mesh).size
    most = devices * min(-(-count // devices), together)
    for first in range(0, count, most):
        positions = np.arange(first, min(first + most, count))
        clients = np.pad(positions, (0, most - len(positions)), constant_values=-1)
        yield _block(prepared, prepared.x, prepared.y, clients, prepared.offsets[clients], PartitionSpec())


def _on_host(prepared: Prepared, together: int) -> Iterator[_Block]:
    """As many clients at a time as fit into a block of rows, one block per device."""
    offsets, mesh = prepared.offsets, prepared.mesh
    room = _BLOCK_NUMBERS // max(1, int(np.prod(prepared.x.shape[1:])))
    room = min(prepared.x.shape[0], max(room, int(prepared.sizes.max())))
    most = min(_BLOCK_CLIENTS, len(prepared.sizes), together)
    first = 0
    while first < len(prepared.sizes):
        rows, clients, starts = list[slice](), list[NDArray](), list[NDArray]()
        for _ in range(Devices(mesh).size):
            fitting = int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            positions = np.arange(first, min(first + most, fitting))
            rows.append(slice(offsets[first], offsets[first + len(positions)]))
            clients.append(np.pad(positions, (0, most - len(positions)), constant_values=-1))
            starts.append(offsets[clients[-1]] - offsets[first])
            first += len(positions)
        x, y = (dealt(mesh, [filled(part, own, room) for own in rows]) for part in (prepared.x, prepared.y))
        yield _block(prepared, x, y, np.concatenate(clients), np.concatenate(starts), divided(mesh))


def _block(
    prepared: Prepared, x: Any, y: Any, clients: NDArray, starts: NDArray, spec: PartitionSpec
) -> _Block:
    ids = clients if prepared.clients is None else prepared.clients[clients]
    parts = (ids, starts, prepared.sizes[clients])
    windows = tuple(np.where(clients >= 0, part, 0).astype(np.int32) for part in parts)
    return _Block(x, y, clients, windows, spec)


def filled(part: Any, rows: slice, room: int) -> NDArray:
    """The rows ``part[rows]``, padded with zeros to ``room`` rows."""
    whole = np.zeros((room, *part.shape[1:]), part.dtype)
    whole[: rows.stop - rows.start] = part[rows]
    return whole


def divided(mesh: Mesh | None) -> PartitionSpec:
    """How an array is divided whose parts are dealt to the devices of the mesh."""
    return PartitionSpec(*(() if mesh is None else mesh.axis_names))


def on_devices(
    on_device: Callable[..., Array], mesh: Mesh | None, specs: tuple[PartitionSpec, ...]
) -> Callable[..., Array]:
    """The function on each device of the mesh, with its part of the arguments; without a mesh, as it is."""
    if mesh is None:
        return on_device
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=divided(mesh), check_vma=False)


@lru_cache(maxsize=64)  # a cache of JAX's would keep every method that was ever evaluated
def _personal_program(
    plan: _Plan, params_of: ParamsOf, lanes: int, spec: PartitionSpec, classes: int
) -> Callable[..., Array]:
    """``(states, x, y, windows)`` -> each client's totals of all measures, then of the accuracy by class,
    ``(K, measures + classes)``."""
    plan, width = plan._replace(apply=lowered(plan.apply)), plan.width
    accuracy, number = plan.names.index("accuracy") if classes else 0, len(plan.names)

    def on_device(states: PyTree, x: Array, y: Array, windows: tuple[Array, Array, Array]) -> Array:
        def client(window: tuple[Array, Array, Array]) -> Array:
            k, offset, size = window
            params = params_of(states, k)

            def body(carry: tuple[Array, _CompensatedSum, Array]) -> tuple[Array, _CompensatedSum, Array]:
                done, total, right = carry
                # A window that would end beyond the last row is moved back, and the rows of others count as 0.
                start = jnp.minimum(offset + done, x.shape[0] - width)
                row = start + jnp.arange(width, dtype=jnp.int32)
                fresh = (row >= offset + done) & (row < offset + size)
                values = jnp.where(fresh[None], _measured(params, x, y, start, plan), 0.0)
                if classes:
                    labels = lax.dynamic_slice_in_dim(y, start, width).reshape(width, 1)
                    chosen = labels == jnp.arange(classes, dtype=labels.dtype)[None]
                    right = right + jnp.sum(jnp.where(chosen, values[accuracy][:, None], 0.0), axis=0)
                return done + width, _accumulate(total, values), right

            nothing = jnp.zeros(number, jnp.float32)
            begin = (jnp.int32(0), _CompensatedSum(nothing, nothing), jnp.zeros(classes, jnp.float32))
            _, total, right = lax.while_loop(lambda carry: carry[0] < size, body, begin)
            return jnp.concatenate([_value_of(total), right])

        return lax.map(client, windows, batch_size=lanes if lanes > 1 else None)

    specs = (PartitionSpec(), spec, spec, divided(plan.mesh))
    return _Apart(on_devices(on_device, plan.mesh, specs), plan.mesh)


# --- programs apart from large arrays -----------------------------------------------------------------------------


class _Apart:
    """A compiled function; large arrays that it closes over, such as frozen parameters, are arguments of its program.

    JAX 0.10 would write them into every program that evaluates them.
    """

    def __init__(self, function: Callable[..., Array], mesh: Mesh | None) -> None:
        self._whole, self._mesh = jax.jit(function), mesh
        self._ready: dict[Any, Callable[..., Array]] = {}

    def __call__(self, *arguments: Any) -> Array:
        form = tree.form(arguments)
        if form not in self._ready:
            # Traced here: each function in between stands in what an error in a model is read through.
            self._ready[form] = self._compile(self._whole.trace(*arguments).jaxpr)
        return self._ready[form](*arguments)

    def _compile(self, program: Any) -> Callable[..., Array]:
        try:
            if not (is_switched_on() and has_large_arrays(program)):
                return self._whole
            hoisted = hoist(program)
        except UnknownForm as error:
            warn_of(error)
            return self._whole
        # On the devices once, and not at every call.
        values, constants = everywhere(self._mesh, (hoisted.values, list(hoisted.constants)))
        run = jax.jit(hoisted.run)
        return lambda *given: run(values, constants, jax.tree.leaves(given))[0]


# --- what both measure --------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """What to compute for each example, of how many at a time, and where; hashable, so that code is found again."""

    apply: Callable[[Params, Array], PyTree]
    names: tuple[str, ...]
    functions: tuple[Callable[[Any, Array], Array], ...]
    width: int
    mesh: Mesh | None = None


def _plan(model: Model, prepared: Prepared, most: int) -> _Plan:
    """All measures of a model, of at most so many examples at a time."""
    measures = {"loss": model.losses, **model.metrics}  # a metric called "loss" is reported as the loss
    width = min(chunk_rows(prepared.x), max(1, most))
    return _Plan(model.apply, tuple(measures), tuple(measures.values()), width, prepared.mesh)


def chunk_rows(x: Array | NDArray) -> int:
    """How many rows go through the model at a time: a power of two, so that few shapes are compiled."""
    fitting = _CHUNK_NUMBERS // max(1, int(np.prod(x.shape[1:])))
    return int(np.clip(2 ** (max(fitting, 1).bit_length() - 1), *_CHUNK_ROWS))


def _measured(params: Params, x: Any, y: Any, start: Any, plan: _Plan) -> Array:
    """All measures of ``width`` examples from row ``start`` on, ``(measures, width)``."""
    width = plan.width
    x, y = lax.dynamic_slice_in_dim(x, start, width), lax.dynamic_slice_in_dim(y, start, width)
    outputs = plan.apply(params, x)
    columns = [function(outputs, y) for function in plan.functions]
    for name, column in zip(plan.names, columns, strict=True):
        if column.shape != (width,):
            raise EvenhandError(
                f"The model's {name!r} gives an array of shape {column.shape} for {width} examples; "
                f"it must give one number per example, shape ({width},)."
            )
    return jnp.stack([column.astype(jnp.float32) for column in columns])


def _means(totals: Vector, plan: _Plan, prepared: Prepared) -> dict[str, Vector]:
    sizes = prepared.sizes
    averages = np.where(sizes > 0, totals / np.maximum(sizes, 1), np.nan)
    return dict(zip(plan.names, averages, strict=True))


# --- sums in float32 that remember what rounding has lost ---------------------------------------------------------


class _CompensatedSum(NamedTuple):
    """A running sum and what rounding has lost of it so far (Neumaier)."""

    sum: Array
    lost: Array


def _accumulate(total: _CompensatedSum, values: Array) -> _CompensatedSum:
    """Adds the sum over the last axis of ``values``."""
    term = jnp.sum(values, axis=-1)
    new = total.sum + term
    lost = jnp.where(jnp.abs(total.sum) >= jnp.abs(term), (total.sum - new) + term, (term - new) + total.sum)
    return _CompensatedSum(new, total.lost + lost)


def _value_of(total: _CompensatedSum) -> Array:
    """The sum."""
    # After an infinity the correction is NaN and the sum is right without it.
    return jnp.where(jnp.isfinite(total.sum), total.sum + total.lost, total.sum)


# --- several models, of which each client takes one ---------------------------------------------------------------


class Measured(Protocol):
    """A run, by what each of its clients gets."""

    def client_metrics(self, split: str = "test") -> Mapping[str, NDArray]:
        """Metric -> ``(num_clients,)``."""
        ...


class Levels(NamedTuple):
    """What each client gets when it chooses among several models.

    Attributes:
      level: ``(num_clients,)``, the position of the run whose model the client chose.
      metrics: metric -> ``(num_clients,)``, with that model; summarise with :func:`evenhand.evaluation.summarize`.
    """

    level: npt.NDArray[np.int64]
    metrics: dict[str, NDArray]


class _Level(NamedTuple):
    """One of several models that a run trained side by side."""

    run: Measured
    name: str

    def client_metrics(self, split: str = "test") -> dict[str, NDArray]:
        suffix, metrics = f" ({self.name})", self.run.client_metrics(split)
        return {name.removesuffix(suffix): x for name, x in metrics.items() if name.endswith(suffix)}


def serve_by_level(
    runs: Sequence[Measured] | Measured,
    *,
    choose_on: str = "valid",
    metric: str = "accuracy",
    split: str = "test",
) -> Levels:
    """Serves each client the one of several runs' models that is best on its own examples.

    One model per level: q-FFL with a ``q`` for each device, Delta-FL with several ``theta``.  Runs with the same data
    and the same seed draw the same cohorts and batches, as if all levels were trained side by side; their traffic
    and work add up.

    Args:
      runs: one per level, on the same data, or the one run of :func:`evenhand.algorithms.side_by_side`; of equal levels
        the first is taken, so begin with the least fair.
      choose_on: the split that clients choose on, ``"valid"`` or ``"train"``.
      metric: the metric that they choose by.
      split: the split of the returned metrics.

    Raises:
      EvenhandError: there is no run, the runs have different numbers of clients, one lacks the metric, or no client has
        examples to choose on.

    Edge cases: a client without examples to choose on takes the first model.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80, valid_fraction=0.2)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> runs = [
      ...     eh.simulate(eh.algorithms.delta_fl(work, theta=theta), data, rounds=10)
      ...     for theta in (1.0, 0.5, 0.1)
      ... ]
      >>> served = serve_by_level(runs)
      >>> sorted(set(served.level.tolist())) != [0], len(served.metrics["accuracy"])
      (True, 8)

    Source: Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020, table 12; Pillutla et al.,
    *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine Learning 2023, figure 1.
    """
    runs = runs if isinstance(runs, Sequence) else _levels(runs)
    if not runs:
        raise EvenhandError(
            "serve_by_level() needs at least one run, or one run of several methods side by side."
        )
    measured = [run.client_metrics(choose_on) for run in runs]
    if lacking := next((of_run for of_run in measured if metric not in of_run), None):
        raise EvenhandError(
            f"serve_by_level(metric={metric!r:.60}): a run has no such metric{perhaps(metric, lacking)}: choose one of "
            f"{', '.join(lacking)}."
        )
    by_run = [np.asarray(of_run[metric], np.float64) for of_run in measured]
    if len({x.shape for x in by_run}) > 1:
        raise EvenhandError(
            "serve_by_level() got runs with different numbers of clients: use the same data for all."
        )
    if np.all(np.isnan(by_run)):
        raise EvenhandError(
            f"serve_by_level(): no client has {choose_on} examples to choose on: load the data with "
            'valid_fraction=0.2, or give choose_on="train".'
        )
    level = best_level(by_run, metric)
    metrics = [run.client_metrics(split) for run in runs]
    names = [name for name in metrics[0] if not name.startswith(of_global(""))]
    names = [name for name in names if all(name in of_run for of_run in metrics)]
    chosen = (level, np.arange(level.size))
    return Levels(level, {name: np.stack([of_run[name] for of_run in metrics])[chosen] for name in names})


def best_level(by_model: Sequence[NDArray], metric: str) -> npt.NDArray[np.int64]:
    """Which of several models is best for each client, ``(K,)``.

    Args:
      by_model: the metric of each client with each model, ``(K,)`` each; of equal models, and where there is nothing to
        choose by, the first is taken.
      metric: what it is.

    Example:
      >>> import numpy as np
      >>> best_level([np.array([0.5, 0.5, np.nan]), np.array([0.5, 0.6, np.nan])], "accuracy").tolist()
      [0, 1, 0]
    """
    scores = np.stack(by_model) * (1.0 if is_higher_better(metric) else -1.0)
    return np.argmax(np.where(np.isnan(scores), -np.inf, scores), axis=0)


def _levels(run: Measured) -> list[_Level]:
    losses = (name for name in run.client_metrics("train") if name.startswith("loss ("))
    return [_Level(run, name.removeprefix("loss (").removesuffix(")")) for name in losses]
