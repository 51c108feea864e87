"""Evaluation on the clients' machines: what the server sends for it, what a client measures, and what it sends back.

A client is evaluated by the same code as in a simulation, on a data set of its own rows.  Of the server's state it gets
only those arrays on which the models depend that clients are served: others, such as the state of a noise mechanism,
are none of its business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import tree
from evenhand._jaxpr.programs import used_inputs
from evenhand.data import FederatedDataset
from evenhand.evaluation import ClassMetrics, of_global
from evenhand.network.terms import Agreed
from evenhand.rounds import RoundState
from evenhand.simulation import Job
from evenhand.simulation.evaluating import Evaluation, Served
from evenhand.streams import Keys
from evenhand.text import measured, of_model
from evenhand.types import Algorithm, Key, PyTree
from evenhand.wire.messages import Packet, PacketError, packed, unpacked

__all__ = ["Evaluated", "Measuring", "needed", "served_from", "served_message", "shown_state"]

NDArray = npt.NDArray[Any]


# --- the server's state, as far as clients need it --------------------------------------------------------------------


def _server_like(agreed: Agreed) -> PyTree:
    """The shapes of the method's server state."""
    return jax.eval_shape(lambda params: agreed.algorithm.init(params, agreed.terms.clients), agreed.params)


def needed(agreed: Agreed) -> tuple[bool, ...]:
    """Which leaves of the server's state the models depend on that clients are served."""
    algorithm, server = agreed.algorithm, _server_like(agreed)

    def models(server: PyTree, client: PyTree) -> Any:
        shared = algorithm.global_params(server)
        if algorithm.personal_params is None:
            return shared
        return shared, algorithm.personal_params(server, client)

    used = used_inputs(jax.make_jaxpr(models)(server, agreed.state))
    return tuple(used[: len(jax.tree.leaves(server))])


def shown_state(agreed: Agreed, server: PyTree) -> tuple[NDArray, ...]:
    """The leaves of the server's state that clients get before an evaluation."""
    return packed([leaf for leaf, use in zip(jax.tree.leaves(server), needed(agreed), strict=True) if use])


# --- one client -------------------------------------------------------------------------------------------------------


class Evaluated(NamedTuple):
    """One evaluation of a client.

    Attributes:
      agreed: the run.
      data: its examples.
      server: the server's state, as far as the client's models depend on it.
      client: what the client keeps.
      own: whether it is served a personal model, where the method has such.
      served: what was measured.
      round: rounds done.
      repeats: how often it has worked where it had worked before, each time with new noise.
    """

    agreed: Agreed
    data: FederatedDataset
    server: PyTree
    client: PyTree
    own: bool
    served: Served
    round: int
    repeats: int = 0


class Measuring:
    """The evaluation of one client.

    Args:
      agreed: the run.
      data: a data set of this client alone.
      key: of what finetuning draws before an evaluation.
    """

    def __init__(self, agreed: Agreed, data: FederatedDataset, key: Key) -> None:
        self._agreed, self._needed = agreed, needed(agreed)
        algorithm = _with_key(agreed.algorithm, key)
        classes = agreed.terms.form.classes
        if classes is not None and data.classes is None:
            # One client may lack the last class, and would count fewer of them.
            data = replace(data, classes=tuple(map(str, range(classes))))
        job = Job(algorithm=algorithm, data=data, rounds=0)
        self._evaluation = Evaluation.without_rounds(job, agreed.terms.capacity, Keys(key, key))

    def server_state(self, arrays: Sequence[NDArray]) -> PyTree:
        """The server's state, from the leaves that were sent; the others are zeros, and nothing depends on them.

        Raises:
          PacketError: the arrays are others.
        """
        leaves, structure = jax.tree.flatten(_server_like(self._agreed))
        like = [leaf for leaf, use in zip(leaves, self._needed, strict=True) if use]
        sent = iter(unpacked(arrays, like, "the models that are evaluated"))
        made = [
            next(sent) if use else tree.zeros(leaf) for leaf, use in zip(leaves, self._needed, strict=True)
        ]
        return jax.tree.map(jnp.asarray, jax.tree.unflatten(structure, made))

    def served(self, server: PyTree, client: PyTree, own: bool) -> Served:
        """What the client measures; ``own``: it is served the model that it has kept, where the method has such."""
        last = jnp.full(1, int(own), jnp.int32)
        clients = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], client)
        return self._evaluation.served(RoundState(server, (), clients, last))


def _with_key(algorithm: Algorithm, key: Key) -> Algorithm:
    """The method with clients that adapt their models with this key."""
    adapt = algorithm.adapt
    return (
        algorithm
        if adapt is None
        else algorithm._replace(adapt=lambda params, data, _: adapt(params, data, key))
    )


# --- what it sends back -----------------------------------------------------------------------------------------------


def served_message(served: Served) -> Packet:
    """What a client has measured, as a message; numbers as arrays, since they may be NaN."""
    fields = {
        "metrics": [[split, list(metrics)] for split, metrics in served.clients.items()],
        "classes": list(served.classes),
        "level": served.level is not None,
    }
    arrays = [values for metrics in served.clients.values() for values in metrics.values()]
    cells = [np.asarray(part) for split in served.classes.values() for part in split]
    levels = [] if served.level is None else [np.asarray(served.level)]
    return Packet("measured", fields, (*map(np.asarray, arrays), *cells, *levels))


def served_from(message: Packet, agreed: Agreed, sizes: Mapping[str, int]) -> Served:
    """The inverse of :func:`served_message`.

    Args:
      message: the client's.
      agreed: the run.
      sizes: split -> examples of the client.

    Raises:
      PacketError: the message is something else than what such a client of this run measures.
    """
    form, algorithm, fields = agreed.terms.form, agreed.algorithm, message.fields
    names, splits = metrics_of(algorithm), ("train", "valid", "test")
    has_classes = form.classes is not None and "accuracy" in names and math.prod(agreed.terms.label) == 1
    classes = splits if has_classes else ()
    due = [[split, list(names)] for split in splits], list(classes), bool(algorithm.levels)
    try:
        if (fields["metrics"], fields["classes"], fields["level"]) != due:
            raise ValueError("another form")
        arrays = iter(message.arrays)
        clients = {split: {name: _numbers(next(arrays), "f", 1) for name in names} for split in splits}
        cells = {
            split: _cells([next(arrays) for _ in ClassMetrics._fields], form.classes, sizes[split])
            for split in classes
        }
        level = _numbers(next(arrays), "i", 1) if algorithm.levels else None
        shares = [
            values for metrics in clients.values() for name, values in metrics.items() if _is_share(name)
        ]
        # NaN is what diverged training gives.
        if any(np.any((values < 0) | (values > 1 + 1e-6)) for values in shares):
            raise ValueError("other accuracies")
        if level is not None and not 0 <= level[0] < len(algorithm.levels):
            raise ValueError("another level")
    except (KeyError, ValueError, StopIteration):
        raise PacketError("It sent invalid measurements.") from None
    return Served(clients, cells, level)


def metrics_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The metrics that each client measures on each split, in the order of an :class:`Evaluation`."""
    model = algorithm.levels[0].model if algorithm.levels else algorithm.model
    names = tuple({"loss": None, **model.metrics})
    if algorithm.levels:
        return (*names, *(of_model(name, level.name) for level in algorithm.levels for name in names))
    if algorithm.adapt is None and algorithm.personal_params is None:
        return names
    return (*names, *map(of_global, names))


def _is_share(metric: str) -> bool:
    """Whether it is an accuracy, of whichever model."""
    return measured(metric) in ("accuracy", of_global("accuracy"))


def _cells(arrays: Sequence[NDArray], classes: int | None, examples: int) -> ClassMetrics:
    """The accuracy of each class at the one client that has sent it, which has so many examples."""
    cells = ClassMetrics(*(_numbers(*part) for part in zip(arrays, "iiif", strict=True)))
    count = len(cells.classes)
    if any(len(part) != count for part in cells) or classes is None:
        raise ValueError("another shape")
    is_sorted = np.all(np.diff(cells.classes) > 0)
    is_known = count == 0 or (cells.classes[0] >= 0 and cells.classes[-1] < classes)
    is_measured = not np.any((cells.accuracy < 0) | (cells.accuracy > 1) | (cells.counts <= 0))
    is_measured &= sum(cells.counts.tolist()) == examples  # as Python's numbers, which do not overflow
    if not (is_sorted and is_known and is_measured and np.all(cells.clients == 0)):
        raise ValueError("other classes")
    return cells


def _numbers(array: NDArray, kind: str, count: int | None = None) -> NDArray:
    """A vector of floats (``"f"``) or whole numbers (``"i"``)."""
    if array.ndim != 1 or array.dtype.kind != kind or (count is not None and len(array) != count):
        raise ValueError("another shape")
    return array
