"""Losses and metrics of each client, or of a sample of them, with the model that it is served."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from evenhand import tree
from evenhand.data import FederatedDataset, Split
from evenhand.devices import everywhere, here, local
from evenhand.evaluation import (
    ClassIndex,
    Metric,
    Prepared,
    class_spread,
    column,
    evenness,
    index_classes,
    is_higher_better,
    measured_clients,
    of_global,
    per_class,
    per_class_of_each,
    per_client,
    personal_per_class,
    primary_metric,
    summarize_classes,
)
from evenhand.memory import aligned, empty_aligned
from evenhand.rounds import RoundState, malicious_clients
from evenhand.simulation._adapted import adapt_all, fitting
from evenhand.simulation._hoist import ByProgram, by_program
from evenhand.simulation._rows import Resident, must_stream, sent
from evenhand.simulation._served import Serve, Served, Untrained, has_own
from evenhand.simulation.setup import Setup
from evenhand.streams import Purpose
from evenhand.types import Algorithm, Array, Model, Params, PyTree

__all__ = ["Evaluation", "honest_among"]

NDArray = npt.NDArray[Any]
Parts: TypeAlias = Mapping[str, tuple[Prepared, ClassIndex | None]]

_MOST_ROWS = 2**25
"""Examples, times models, that are evaluated at once: the values of all of them are in memory."""


class _Window(NamedTuple):
    """Some clients with their examples, and the model that each is served: ``params_of(states, k)``."""

    states: PyTree
    parts: Parts
    params_of: Callable[[PyTree, Array], Params]


class Evaluation:
    """All splits of all clients, or of as many as are drawn once for the whole run.

    Attributes:
      drawn: who is evaluated, ascending; None: all.
      malicious: which clients are, ``(N,)``.
      untrained: what clients are served that never trained.
      splits: their rows.
      indices: which of them have rows of which classes; None where rows have no classes.
    """

    def __init__(
        self,
        setup: Setup,
        data: FederatedDataset,
        seed: int,
        clients: int | None,
        untrained: Untrained = "global",
    ) -> None:
        program = setup.program
        self.untrained: Untrained = untrained
        self.algorithm, self.lanes = program.algorithm, program.lanes
        self.root, self.capacity = setup.keys.shared, program.capacity
        self.drawn = _drawn(data.num_clients, seed, clients)
        self.malicious = malicious_clients(program.attack, data.client_ids, seed)
        mesh = self._mesh = local(program.mesh)
        poisoned = program.attack is not None and program.attack.rows is not None
        self.store = setup.store
        self.splits: dict[str, Prepared] = {}
        self.indices: dict[str, ClassIndex | None] = {}
        classes = data.num_classes
        for name, whole in (("train", data.train), ("valid", data.valid), ("test", data.test)):
            on_device = setup.source.rows if name == "train" and isinstance(setup.source, Resident) else None
            split = whole if self.drawn is None else _some(whole, self.drawn)
            if (
                on_device is not None and self.drawn is None and not poisoned
            ):  # malicious clients are measured on clean rows
                x, y = (
                    here((on_device.x, on_device.y))
                    if mesh is None
                    else everywhere(mesh, (on_device.x, on_device.y))
                )
                self.splits[name] = Prepared(x, y, split.offsets, None, mesh)
            else:
                host = must_stream(split) if on_device is None or self.drawn is not None else False
                self.splits[name] = _prepared(split, self.drawn, mesh, host=host)
            self.indices[name] = _index(self.algorithm.model, split, classes)

    def shared_by(self, setup: Setup) -> Evaluation:
        """The same clients' examples, evaluated with the models of another run."""
        other = copy.copy(self)
        other.algorithm, other.root = setup.program.algorithm, setup.keys.shared
        other.store = setup.store
        return other

    @staticmethod
    def of_each(evaluations: Sequence[Evaluation], states: Sequence[RoundState]) -> list[Served]:
        """What each evaluation finds of its state, all at once: of the same clients, of methods that are alike."""
        first = evaluations[0]
        model, rows = first.algorithm.model, sum(split.x.shape[0] for split in first.splits.values())
        if rows * len(states) > _MOST_ROWS:
            return [each.served(state) for each, state in zip(evaluations, states, strict=True)]
        params = _stacked(
            [
                each.algorithm.global_params(state.server)
                for each, state in zip(evaluations, states, strict=True)
            ]
        )
        found = {
            name: per_class_of_each(model, params, split, first.indices[name])
            for name, split in first.splits.items()
        }
        return [Served.of({name: each[i] for name, each in found.items()}) for i in range(len(states))]

    @staticmethod
    def are_alike(algorithms: Sequence[Algorithm]) -> bool:
        """Whether global models alone are evaluated, by the same functions."""
        return all(
            of.adapt is None
            and of.personal_params is None
            and _measured(of.model) == _measured(algorithms[0].model)
            for of in algorithms
        )

    def served(self, state: RoundState) -> Served:
        """Every client that is evaluated, with the model that it gets."""
        if self._mesh is None:
            state = here(state)
        of, params = self.algorithm, self.algorithm.global_params(state.server)
        model = of.model
        if of.adapt is not None or of.personal_params is not None:
            alone = {name: per_client(model, params, split) for name, split in self.splits.items()}
            windows = self._windows(state)
            return Served.joined({first: self._personal(*window) for first, window in windows}).beside(alone)
        return Served.of(
            {name: per_class(model, params, split, self.indices[name]) for name, split in self.splits.items()}
        )

    def measured(self, state: RoundState, metrics: Sequence[Metric]) -> dict[str, dict[str, NDArray]]:
        """Split -> metric of a set of examples -> ``(K,)``, with the models of :meth:`served`, and as there the global
        model's besides."""
        if self._mesh is None:
            state = here(state)
        of = self.algorithm
        measure, params = partial(measured_clients, of.model, metrics=metrics), of.global_params(state.server)
        alone = {name: measure(params, split) for name, split in self.splits.items()}
        if of.adapt is None and of.personal_params is None:
            return alone
        own: dict[str, dict[str, NDArray]] = {
            split: {
                **{name: np.full(len(self.splits[split].sizes), np.nan) for name in values},
                **{of_global(name): of_clients for name, of_clients in values.items()},
            }
            for split, values in alone.items()
        }
        for first, (states, parts, params_of) in self._windows(state):
            for split, (part, _) in parts.items():
                widest = self.splits[split].sizes
                values = measure(states, part, params_of=params_of, lanes=self.lanes, widest=widest)
                for name, of_clients in values.items():
                    own[split][name][first : first + len(of_clients)] = of_clients
        return own

    def initial_loss(self, state: RoundState) -> NDArray:
        """Each client's training loss with the global model; nothing, where all are served that."""
        if self.algorithm.adapt is None and self.algorithm.personal_params is None:
            return np.zeros(0)
        server = here(state.server) if self._mesh is None else state.server
        params = self.algorithm.global_params(server)
        return per_client(self.algorithm.model, params, self.splits["train"])["loss"]

    def _serving(self, like: PyTree) -> ByProgram:
        """``(states, k) -> params`` that client ``k`` is served, equal for methods that serve by the same program.

        ``like`` has the form of the states.
        """
        serve = Serve(self.algorithm.global_params, self.algorithm.personal_params)
        return by_program(serve, like, np.int32(0))

    def _personal(self, states: PyTree, parts: Parts, params_of: Callable[[PyTree, Array], Params]) -> Served:
        measure = partial(
            personal_per_class, self.algorithm.model, states, params_of=params_of, lanes=self.lanes
        )
        return Served.of(
            {
                name: measure(part, index, widest=self.splits[name].sizes)
                for name, (part, index) in parts.items()
            }
        )

    def _windows(self, state: RoundState) -> Iterator[tuple[int, _Window]]:
        """As many clients at a time as memory allows, by the position of the first: all at once, unless their models
        are adapted or their states come from a store."""
        train, adapt, store = self.splits["train"], self.algorithm.adapt, self.store
        own = has_own(np.asarray(here(state.last_round)), self.untrained)
        serve = self._serving((state.server, state.clients if store is None else store.like, own))
        if adapt is None and store is None:
            whole: Parts = {name: (split, self.indices[name]) for name, split in self.splits.items()}
            yield 0, _Window((state.server, state.clients, own), whole, serve)
            return
        clients = np.arange(len(train.sizes)) if self.drawn is None else self.drawn
        model = jax.eval_shape(self.algorithm.global_params, state.server)
        together = fitting(train, sum(leaf.size for leaf in jax.tree.leaves(model)))
        for first in range(0, len(clients), together):
            window = slice(first, min(first + together, len(clients)))
            parts: Parts = {
                name: (
                    split.some(window),
                    None if (index := self.indices[name]) is None else index.some(window),
                )
                for name, split in self.splits.items()
            }
            ids = places = clients[window]
            states: PyTree = (state.server, state.clients, own)
            if store is not None:
                places = np.arange(len(ids))
                mine = np.pad(own[ids], (0, together - len(ids)))
                states = (state.server, everywhere(self._mesh, store.of(ids, together)), mine)
            if adapt is None:
                yield first, _Window(states, parts, serve)
            else:
                how = (ids, places, together, self.root, self.capacity, self.lanes)
                params = adapt_all(adapt, serve, states, parts["train"][0], *how)
                yield first, _Window(params, parts, tree.take)

    def columns(self, served: Served) -> dict[str, float]:
        """What the history keeps of them: of the honest clients, or of all where each client is malicious."""
        columns: dict[str, float] = {}
        chosen = honest_among(self.malicious, self.drawn)
        for split, metrics in served.clients.items():
            sizes = np.where(chosen, self.splits[split].sizes, 0)
            if not sizes.any():
                continue
            for name, values in metrics.items():
                has = sizes > 0
                columns[column(split, name)] = float(np.average(values[has], weights=sizes[has]))
            name = primary_metric(metrics)
            over = evenness(metrics[name], sizes, higher_is_better=is_higher_better(name))
            columns |= {column(split, name, what): value for what, value in over.items()}
            if split in served.classes:
                spreads = class_spread(served.classes[split], len(sizes))
                over = summarize_classes({name: values[chosen] for name, values in spreads.items()})
                columns |= {column(split, what): over[what] for what in ("class_spread", "worst_class")}
        return columns


def honest_among(malicious: NDArray, evaluated: NDArray | None) -> NDArray:
    """Which of the evaluated clients headlines are about: the honest ones; all where each of them is malicious."""
    attacking = malicious if evaluated is None else malicious[evaluated]
    return np.ones_like(attacking) if attacking.all() else ~attacking


def _measured(model: Model) -> tuple[Any, ...]:
    """The functions by which a model is evaluated."""
    return model.apply, model.losses, tuple(model.metrics.items())


@jax.jit
def _stacked(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _drawn(clients: int, seed: int, asked: int | None) -> NDArray | None:
    if asked is None or asked >= clients:
        return None
    rng = np.random.default_rng((seed, int(Purpose.EVALUATION)))
    return np.sort(rng.choice(clients, asked, replace=False))


def _prepared(split: Split, clients: NDArray | None, mesh: Mesh | None, *, host: bool) -> Prepared:
    if host:
        return Prepared(np.asarray(split.x), np.asarray(split.y), split.offsets, clients, mesh)
    x, y = sent(mesh, (aligned(split.x), aligned(split.y)))
    return Prepared(x, y, split.offsets, clients, mesh)


def _index(model: Model, split: Split, classes: int | None) -> ClassIndex | None:
    """Which clients have rows of which classes, where rows have classes and the model measures accuracy."""
    if classes is None or "accuracy" not in model.metrics or split.y.size != split.rows:
        return None
    return index_classes(split.y, split.offsets, classes)


def _some(split: Split, clients: NDArray) -> Split:
    """The rows of some clients only."""
    sizes = split.sizes[clients]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    index = np.repeat(split.offsets[clients] - offsets[:-1], sizes) + np.arange(offsets[-1])
    parts: list[NDArray] = []
    for part in (split.x, split.y):
        taken = empty_aligned((len(index), *part.shape[1:]), part.dtype)
        parts.append(
            np.take(np.asarray(part), index, axis=0, out=taken, mode="clip") if len(index) else taken
        )
    return Split(parts[0], parts[1], offsets)
