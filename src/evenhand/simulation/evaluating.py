"""Losses and metrics of each client, or of a sample of them, with the model that it is served.

:class:`Serve` says which model that is, :class:`Served` is what an evaluation finds, and :class:`Evaluation` finds it.
Where the method does that, each client adapts its model to its rows first (:func:`adapt_all`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from evenhand import evaluation, tree
from evenhand._jaxpr.hoist import ByProgram, by_program
from evenhand.data import Split
from evenhand.devices import Devices, everywhere, here, local
from evenhand.evaluation import ClassIndex, ClassMetrics, Metric, Prepared, column, filled, of_global
from evenhand.memory import aligned
from evenhand.rounds import RoundState, malicious_clients
from evenhand.simulation._job import Job, Untrained
from evenhand.simulation.program import Program, Resident, Source, gathered, must_stream, rows_of, sent
from evenhand.simulation.store import HostStore, NDArray
from evenhand.streams import Keys, Purpose, client_stream, stream
from evenhand.text import of_model
from evenhand.types import Algorithm, Array, ClientData, Key, Model, Params, PyTree

# What other packages take; the other names are for this package.
__all__ = ["Evaluation", "Served", "columns_of", "honest_among"]

# --- which model a client is served, and what an evaluation finds -----------------------------------------------------


class Serve(NamedTuple):
    """``(states, k) -> params`` that client ``k`` is served, for ``states`` of the server, the clients and
    :func:`has_own`.

    It holds no data, since compiled functions keep what they are keyed with.
    """

    global_params: Callable[[PyTree], Params]
    personal_params: Callable[[PyTree, PyTree], Params] | None

    def __call__(self, states: PyTree, k: Array) -> Params:
        server, clients, own = states
        shared = self.global_params(server)
        if self.personal_params is None:
            return shared
        # What a client has kept since the start is no personal model, and may be far behind the global one.
        return tree.select(own[k], self.personal_params(server, tree.take(clients, k)), shared)


def has_own(last_round: NDArray, untrained: Untrained) -> NDArray:
    """Which clients are served their personal models, bool like ``last_round``."""
    return np.ones(last_round.shape, bool) if untrained == "initial" else last_round > 0


class Served(NamedTuple):
    """What one evaluation finds.

    Attributes:
      clients: split -> metric -> a number for each client that is evaluated; if clients have personal models,
        also ``"global_<metric>"``, with the global model.
      classes: split -> the accuracy of each class at each client, clients as positions among those evaluated; only
        for splits whose rows have classes.
      level: which of several models each client is served, ``(K,)``; None: there is one.
    """

    clients: dict[str, dict[str, NDArray]]
    classes: dict[str, ClassMetrics]
    level: NDArray | None = None

    @staticmethod
    def from_splits(measured: Mapping[str, tuple[dict[str, NDArray], ClassMetrics | None]]) -> Served:
        """From what is found of each split."""
        classes = {name: cells for name, (_, cells) in measured.items() if cells is not None}
        return Served({name: metrics for name, (metrics, _) in measured.items()}, classes)

    @staticmethod
    def joined(parts: Mapping[int, Served]) -> Served:
        """From some clients after the others, by the position of the first of them."""
        clients, classes, _ = next(iter(parts.values()))
        return Served(
            {
                split: {
                    name: np.concatenate([part.clients[split][name] for part in parts.values()])
                    for name in metrics
                }
                for split, metrics in clients.items()
            },
            {
                split: ClassMetrics.joined({first: part.classes[split] for first, part in parts.items()})
                for split in classes
            },
        )

    @staticmethod
    def best_of(models: Mapping[str, Served], splits: Sequence[str]) -> Served:
        """From what is found of each model: each client with the model that is best on its examples.

        Args:
          models: name -> what is found of that model.
          splits: where clients choose: on the first of these in which a client has examples.
        """
        every = list(models.values())
        metric = evaluation.primary_metric(every[0].clients["train"])
        scores = [np.full_like(every[0].clients["train"][metric], np.nan) for _ in every]
        for split in splits:
            missing = np.isnan(scores).all(axis=0)
            scores = [
                np.where(missing, model.clients[split][metric], score)
                for model, score in zip(every, scores, strict=True)
            ]
        level = evaluation.best_level(scores, metric)
        clients = picked(level, {name: model.clients for name, model in models.items()})
        cells = {
            split: first._replace(
                accuracy=_pick(level[first.clients], [model.classes[split].accuracy for model in every])
            )
            for split, first in every[0].classes.items()
        }
        return Served(clients, cells, level)

    def with_metrics(self, measured: Mapping[str, Mapping[str, NDArray]]) -> Served:
        """With further metrics of the clients, of each split."""
        clients = {split: {**metrics, **measured[split]} for split, metrics in self.clients.items()}
        return self._replace(clients=clients)

    def beside(self, alone: Mapping[str, Mapping[str, NDArray]]) -> Served:
        """With the metrics ``alone`` of the global model, of each split, beside those of personal models."""
        clients = {
            split: metrics | {of_global(name): values for name, values in alone[split].items()}
            for split, metrics in self.clients.items()
        }
        return self._replace(clients=clients)


def picked(
    level: NDArray, models: Mapping[str, Mapping[str, Mapping[str, NDArray]]]
) -> dict[str, dict[str, NDArray]]:
    """Split -> metric -> ``(K,)`` with the model that each client is served, then with each model, under its name."""
    every = list(models.values())
    return {
        split: {name: _pick(level, [clients[split][name] for clients in every]) for name in metrics}
        | {
            of_model(name, model): clients[split][name]
            for model, clients in models.items()
            for name in metrics
        }
        for split, metrics in every[0].items()
    }


def _pick(level: NDArray, values: Sequence[NDArray]) -> NDArray:
    """Of an array for each model, the entry of the model that ``level`` has in the same place."""
    return np.stack(values)[level, np.arange(len(level))]


# --- an evaluation ----------------------------------------------------------------------------------------------------

ParamsOf: TypeAlias = Callable[[PyTree, Array], Params]
Parts: TypeAlias = Mapping[str, tuple[Prepared, ClassIndex | None]]
_MOST_ROWS = 2**25
"""Examples, times models, that are evaluated at once: the values of all of them are in memory."""


class _Window(NamedTuple):
    """Some clients with their examples, and the model that each is served: ``params_of(states, k)``."""

    states: PyTree
    parts: Parts
    params_of: ParamsOf


class Evaluation:
    """All splits of all clients, or of as many as are drawn once for the whole run.

    Args:
      job: the run.
      program: what it compiles.
      keys: its roots.
      source: its training rows; None: they are only measured.
      store: its clients' states, where they are on the host.

    Attributes:
      drawn: who is evaluated, ascending; None: all.
      malicious: which clients are, ``(N,)``.
      untrained: what clients are served that never trained.
      chosen_on: the splits on which clients choose among several models.
      parts: of each split, their rows, and which of them have rows of which classes; None where rows have no classes.
    """

    def __init__(
        self, job: Job, program: Program, keys: Keys, source: Source | None, store: HostStore | None
    ) -> None:
        data = job.data
        self.untrained: Untrained = job.untrained
        self.chosen_on: tuple[str, ...] = ("valid",)
        self.algorithm, self.lanes = program.algorithm, program.lanes
        self.root, self.capacity = keys.shared, program.capacity
        self.drawn = _drawn(data.num_clients, job.seed, job.eval_clients)
        self.malicious = malicious_clients(job.attack, data.client_ids, job.seed)
        mesh = self._mesh = local(program.mesh)
        poisoned = job.attack is not None and job.attack.rows is not None
        self.store = store
        self.parts: dict[str, tuple[Prepared, ClassIndex | None]] = {}
        for name, whole in (("train", data.train), ("valid", data.valid), ("test", data.test)):
            is_whole = name == "train" and self.drawn is None
            on_device = source.rows if is_whole and isinstance(source, Resident) else None
            split = whole if self.drawn is None else _some(whole, self.drawn)
            if on_device is not None and not poisoned:  # malicious clients are measured on clean rows
                rows = (on_device.x, on_device.y)
                x, y = here(rows) if mesh is None else everywhere(mesh, rows)
            elif on_device is None and must_stream(split):
                x, y = np.asarray(split.x), np.asarray(split.y)
            else:
                x, y = sent(mesh, (aligned(split.x), aligned(split.y)))
            index = _index(self.algorithm.model, split, data.num_classes)
            self.parts[name] = Prepared(x, y, split.offsets, self.drawn, mesh), index

    @staticmethod
    def without_rounds(job: Job, capacity: int, keys: Keys) -> Evaluation:
        """Of clients that are only measured, one by one on one device; ``capacity``: the most training rows of any.

        A method for a fixed number of clients does for any number of them: it neither begins nor draws a cohort.
        """
        program = Program(
            algorithm=job.algorithm,
            cohort=1,
            capacity=capacity,
            lanes=1,
            systems=None,
            attack=None,
            buffer=1,
        )
        return Evaluation(job, program, keys, None, None)

    def shared_by(self, program: Program, keys: Keys, store: HostStore | None) -> Evaluation:
        """The same clients' examples, evaluated with the models of another run."""
        # A shallow copy: the rows, which take most of the memory, are those of the first.
        other = copy.copy(self)
        other.algorithm, other.root, other.store = program.algorithm, keys.shared, store
        return other

    @staticmethod
    def of_each(evaluations: Sequence[Evaluation], states: Sequence[RoundState]) -> list[Served]:
        """What each evaluation finds of its state, all at once: of the same clients, of methods that are alike."""
        first = evaluations[0]
        model, rows = first.algorithm.model, sum(split.x.shape[0] for split, _ in first.parts.values())
        pairs = list(zip(evaluations, states, strict=True))
        if rows * len(states) > _MOST_ROWS:
            return [alone.served(state) for alone, state in pairs]
        # One program for all models: its products are batched, where one model after the other would leave cores idle.
        params = _stacked([alone.algorithm.global_params(state.server) for alone, state in pairs])
        measure = partial(evaluation.per_class_of_each, model, params)
        measured = {name: measure(*part) for name, part in first.parts.items()}
        return [
            Served.from_splits({name: models[i] for name, models in measured.items()})
            for i in range(len(states))
        ]

    @staticmethod
    def are_alike(algorithms: Sequence[Algorithm]) -> bool:
        """Whether global models alone are evaluated, by the same functions."""
        return all(
            not algorithm.levels
            and algorithm.adapt is None
            and algorithm.personal_params is None
            and _measured(algorithm.model) == _measured(algorithms[0].model)
            for algorithm in algorithms
        )

    def served(self, state: RoundState) -> Served:
        """Every client that is evaluated, with the model that it gets."""
        if self._mesh is None:
            state = here(state)
        model, params = self.algorithm.model, self.algorithm.global_params(state.server)
        if self.algorithm.levels:
            return Served.best_of(
                {
                    level.name: Served.from_splits(
                        {
                            name: evaluation.per_class(level.model, own, *part)
                            for name, part in self.parts.items()
                        }
                    )
                    for level, own in zip(self.algorithm.levels, params, strict=True)
                },
                self.chosen_on,
            )
        if not self._is_personal:
            return Served.from_splits(
                {name: evaluation.per_class(model, params, *part) for name, part in self.parts.items()}
            )
        alone = {name: evaluation.per_client(model, params, part) for name, (part, _) in self.parts.items()}
        measure = partial(evaluation.personal_per_class, model, lanes=self.lanes)
        windows: dict[int, Served] = {}
        for first, (states, parts, params_of) in self._windows(state):
            windows[first] = Served.from_splits(
                {
                    name: measure(states, part, index, params_of=params_of, widest=self._sizes(name))
                    for name, (part, index) in parts.items()
                }
            )
        return Served.joined(windows).beside(alone)

    def _sizes(self, split: str) -> NDArray:
        """The evaluated clients' rows."""
        return self.parts[split][0].sizes

    @property
    def _is_personal(self) -> bool:
        """Whether clients are served personal models."""
        return self.algorithm.adapt is not None or self.algorithm.personal_params is not None

    def measured(
        self, state: RoundState, metrics: Sequence[Metric], level: NDArray | None = None
    ) -> dict[str, dict[str, NDArray]]:
        """Split -> metric of a set of examples -> ``(K,)``, with the models of :meth:`served`, which has found the
        ``level``, and as there the global model's besides."""
        if self._mesh is None:
            state = here(state)
        measure = partial(evaluation.measured_clients, self.algorithm.client_model, metrics=metrics)
        params = self.algorithm.global_params(state.server)
        if level is not None:
            by_level = {
                choice.name: {name: measure(own, part) for name, (part, _) in self.parts.items()}
                for choice, own in zip(self.algorithm.levels, params, strict=True)
            }
            return picked(level, by_level)
        alone = {name: measure(params, part) for name, (part, _) in self.parts.items()}
        if not self._is_personal:
            return alone
        blank = {
            split: {name: np.full(len(self._sizes(split)), np.nan) for name in values}
            for split, values in alone.items()
        }
        own = Served(blank, {}).beside(alone).clients
        for first, (states, parts, params_of) in self._windows(state):
            for split, (part, _) in parts.items():
                widest = self._sizes(split)
                values = measure(states, part, params_of=params_of, lanes=self.lanes, widest=widest)
                for name, of_clients in values.items():
                    own[split][name][first : first + len(of_clients)] = of_clients
        return own

    def initial_loss(self, state: RoundState) -> NDArray:
        """Each client's training loss with the global model; nothing, where all are served that."""
        if not self._is_personal:
            return np.zeros(0)
        server = here(state.server) if self._mesh is None else state.server
        params = self.algorithm.global_params(server)
        return evaluation.per_client(self.algorithm.model, params, self.parts["train"][0])["loss"]

    def _windows(self, state: RoundState) -> Iterator[tuple[int, _Window]]:
        """As many clients at a time as memory allows, by the position of the first: all at once, unless their models
        are adapted or their states come from a store."""
        train, adapt, store = self.parts["train"][0], self.algorithm.adapt, self.store
        own = has_own(np.asarray(here(state.last_round)), self.untrained)
        # Equal for methods that serve by the same program.
        serve = by_program(
            Serve(self.algorithm.global_params, self.algorithm.personal_params),
            (state.server, state.clients if store is None else store.like, own),
            np.int32(0),
        )
        if adapt is None and store is None:
            yield 0, _Window((state.server, state.clients, own), self.parts, serve)
            return
        clients = np.arange(len(train.sizes)) if self.drawn is None else self.drawn
        model = jax.eval_shape(self.algorithm.global_params, state.server)
        together = fitting(train, model)
        adapting = Adapting(adapt, self.root, self.capacity, self.lanes, together)
        for window in tiles(0, len(clients), together):
            parts: Parts = {
                name: (split.some(window), None if index is None else index.some(window))
                for name, (split, index) in self.parts.items()
            }
            ids = places = clients[window]
            states: PyTree = (state.server, state.clients, own)
            if store is not None:
                places = np.arange(len(ids))
                # Padded like the states, so that the last window compiles nothing.
                mine = np.pad(own[ids], (0, together - len(ids)))
                states = (state.server, everywhere(self._mesh, store.read(ids, together)), mine)
            if adapt is None:
                yield window.start, _Window(states, parts, serve)
            else:
                params = adapting.all(serve, states, parts["train"][0], ids, places)
                yield window.start, _Window(params, parts, tree.take)

    def columns(self, served: Served) -> dict[str, float]:
        """What the history keeps of them: of the honest clients, or of all where each client is malicious."""
        chosen = honest_among(self.malicious, self.drawn)
        return columns_of(served, {split: self._sizes(split) for split in served.clients}, chosen)


def columns_of(served: Served, sizes: Mapping[str, NDArray], chosen: NDArray) -> dict[str, float]:
    """What the history keeps of an evaluation, over the ``chosen`` clients, bool ``(K,)``.

    ``sizes`` has the rows of each evaluated client, of each split.
    """
    columns: dict[str, float] = {}
    for split, metrics in served.clients.items():
        rows = np.where(chosen, sizes[split], 0)
        if not rows.any():
            continue
        has = rows > 0
        for name, values in metrics.items():
            columns[column(split, name)] = float(np.average(values[has], weights=rows[has]))
        name = evaluation.primary_metric(metrics)
        higher_is_better = evaluation.is_higher_better(name)
        over = evaluation.evenness(metrics[name], rows, higher_is_better=higher_is_better)
        columns |= {column(split, name, measure): value for measure, value in over.items()}
        if split in served.classes:
            spreads = evaluation.class_spread(served.classes[split], len(rows))
            over = evaluation.summarize_classes({name: x[chosen] for name, x in spreads.items()})
            columns |= {column(split, name): over[name] for name in ("class_spread", "worst_class")}
    return columns


def honest_among(malicious: NDArray, evaluated: NDArray | None) -> NDArray:
    """Which of the evaluated clients headlines are about: the honest ones; all where each of them is malicious."""
    attacking = malicious if evaluated is None else malicious[evaluated]
    return np.ones_like(attacking) if attacking.all() else ~attacking


def _measured(model: Model) -> tuple[Any, ...]:
    """The functions by which a model is evaluated."""
    return model.apply, model.losses, tuple(model.metrics.items())


_stacked = jax.jit(tree.stack)


def _drawn(clients: int, seed: int, asked: int | None) -> NDArray | None:
    if asked is None or asked >= clients:
        return None
    rng = np.random.default_rng((seed, int(Purpose.EVALUATION)))
    return np.sort(rng.choice(clients, asked, replace=False))


def _index(model: Model, split: Split, classes: int | None) -> ClassIndex | None:
    """Which clients have rows of which classes, where rows have classes and the model measures accuracy."""
    # By the shape of a label, since a split without rows has as many numbers as rows.
    if classes is None or "accuracy" not in model.metrics or math.prod(split.y.shape[1:]) != 1:
        return None
    return evaluation.index_classes(split.y, split.offsets, classes)


def _some(split: Split, clients: NDArray) -> Split:
    """The rows of some clients only."""
    index, offsets = rows_of(split, clients)
    return Split(gathered(split.x, index), gathered(split.y, index), offsets)


# --- models that clients adapt to their rows --------------------------------------------------------------------------

Adapt: TypeAlias = Callable[[Params, ClientData, Key], Params]
_ROOM = 2**25
"""Numbers in the models of the clients that adapt together, and in their rows where these are not on the device."""


class Adapting(NamedTuple):
    """How clients adapt their models, some of them at a time.

    Attributes:
      adapt: what each of them does.
      root: the run's key.
      capacity: the most training rows of any client of the run.
      lanes: how many clients adapt side by side.
      together: the most clients in one call: the program is compiled for that many.
    """

    adapt: Adapt | None
    root: Key
    capacity: int
    lanes: int
    together: int

    def all(
        self, params_of: ParamsOf, states: PyTree, train: Prepared, ids: NDArray, places: NDArray
    ) -> Params:
        """The models of the clients whose training rows these are, with a leading axis.

        Args:
          params_of: ``(states, place) -> params``, what each of them is served.
          states: what those parameters are computed from.
          train: the rows of these clients.
          ids: which clients these are.
          places: where ``params_of`` finds them.
        """
        assert self.adapt is not None
        mesh, x, y, starts = train.mesh, train.x, train.y, train.offsets[:-1]
        if isinstance(x, np.ndarray):
            rows, room = slice(train.offsets[0], train.offsets[-1]), self.together * self.capacity
            x, y, starts = filled(x, rows, room), filled(y, rows, room), starts - rows.start
        devices = 1 if mesh is None else mesh.size
        # One number of windows, the same on each device, so that the last clients compile nothing.
        missing = -(-self.together // devices) * devices - len(ids)
        parts = (ids, places, starts, train.sizes)
        windows = tuple(np.pad(part.astype(np.int32), (0, missing)) for part in parts)
        sent = everywhere(mesh, (states, self.root, x, y))
        adapted = _AdaptedClient(self.adapt, params_of, self.capacity)
        client = by_program(adapted, *sent, (np.int32(0),) * 4)
        models = _adapt(client, self.lanes, mesh)(windows, sent)
        return jax.tree.map(lambda leaf: leaf[: len(ids)], models)


def tiles(first: int, last: int, size: int) -> Iterator[slice]:
    """The positions from ``first`` to before ``last``, ``size`` at a time."""
    return (slice(begin, min(begin + size, last)) for begin in range(first, last, size))


class _AdaptedClient(NamedTuple):
    """``(states, root, x, y, window) -> params`` of one client, adapted."""

    adapt: Adapt
    params_of: ParamsOf
    capacity: int

    def __call__(self, states: PyTree, root: Key, x: Array, y: Array, window: tuple[Array, ...]) -> Params:
        k, place, start, size = window
        data = ClientData(x=x, y=y, start=start, size=size, progress=jnp.float32(1.0), capacity=self.capacity)
        params = self.params_of(states, place)
        # The same key at every evaluation, so that evaluations differ by the model alone.
        return self.adapt(params, data, client_stream(stream(root, Purpose.PERSONAL, 0, 1), k))


@lru_cache(maxsize=64)  # a cache of JAX's would keep every method that ever adapted
def _adapt(client: ByProgram, lanes: int, mesh: Mesh | None) -> Callable[..., Params]:
    """``(windows, (states, root, x, y))`` -> the adapted models, with a leading axis."""

    def on_device(windows: tuple[Array, ...], shared: tuple[Any, ...]) -> Params:
        return lax.map(partial(client, *shared), windows, batch_size=lanes if lanes > 1 else None)

    return jax.jit(Devices(mesh).spread(on_device))


def fitting(train: Prepared, model: Params) -> int:
    """How many clients adapt at a time, models like ``model``."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model))
    row = int(np.prod(train.x.shape[1:])) if isinstance(train.x, np.ndarray) else 0
    return int(np.clip(_ROOM // (numbers + row * int(train.sizes.max())), 1, len(train.sizes)))
