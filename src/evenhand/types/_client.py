"""What a client has, reports and sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from evenhand.text import short

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = Any
State: TypeAlias = Any
Info: TypeAlias = Mapping[str, Array]


class Model(NamedTuple):
    """What is trained: parameters, a forward pass, and *unreduced* losses.

    Losses stay one per example because tilting, masking and per-example clipping all need that.

    Attributes:
      init: ``key -> params``.  The same key gives the same parameters.
      apply: ``(params, x) -> outputs`` for evaluation; ``x`` has rows first, outputs too.
      losses: ``(outputs, y) -> (rows,)`` float, one loss per example, each depending on that example only.
      metrics: name -> ``(outputs, y) -> (rows,)`` float, e.g. ``{"accuracy": ...}``; may be empty.  One called
        ``"loss"`` is reported in place of ``losses``, which remain what is trained by.
      apply_train: ``(params, x, key) -> outputs`` when training differs from evaluation (dropout); None: ``apply``.
      name: shown to users.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    losses: Callable[[PyTree, Array], Array]
    metrics: Mapping[str, Callable[[PyTree, Array], Array]]
    apply_train: Callable[[Params, Array, Key], PyTree] | None = None
    name: str = ""
    __repr__ = short


class ClientData(NamedTuple):
    """One client's training examples, as its local work sees them: a window on flat arrays, never a padded copy.

    The client's examples are ``x[start : start + size]``.  All but ``capacity``, a Python int, may be tracers.

    Attributes:
      x: examples of one or many clients, ``(rows, ...)``.
      y: their labels, ``(rows, ...)``.
      start: int32 scalar, the first row of this client.
      size: int32 scalar ``n_k``; 0 only for an empty slot, whose results are discarded.
      progress: float32 scalar in [0, 1): the share of the local work that a straggler completes; >= 1: all of it.
      capacity: the largest ``size`` that can occur.
    """

    x: Array
    y: Array
    start: Array
    size: Array
    progress: Array
    capacity: int


class Cohort(NamedTuple):
    """The clients of one exchange; fields ``(m,)``.

    Attributes:
      ids: int32, the client in each slot.
      present: whether the slot holds a client; the id of an empty slot is any valid one.
      progress: float32, the share of its local work that the client does; >= 1: all of it.
    """

    ids: Array
    present: Array
    progress: Array

    @staticmethod
    def of(ids: Array, present: Array | None = None) -> Cohort:
        """Clients that do all of their work; without ``present``, no slot is empty."""
        present = jnp.ones(ids.shape, bool) if present is None else present
        return Cohort(ids, present, jnp.ones(ids.shape, jnp.float32))


class Report(NamedTuple):
    """The two numbers that a client reports *before* it trains.

    Attributes:
      weight: its weight in the average, from :attr:`Sampling.weight`.
      loss: ``F_k(w)`` at the broadcast parameters over all its training examples; NaN where it is not needed.
    """

    weight: Array
    loss: Array


class Upload(NamedTuple):
    """All that crosses the wire from a client to the server.  Everything in it is untrusted.

    Attributes:
      delta: what is aggregated: parameters after minus before local work, or that and more (SCAFFOLD sends a pair).
      weight: as in :class:`Report`, or what :attr:`Sum.weigh` made of it.
      loss: as in :class:`Report`.
    """

    delta: PyTree
    weight: Array
    loss: Array


class Effort(NamedTuple):
    """How much local work a client has in one phase; int32 scalars.

    Attributes:
      steps: local steps.
      rows: examples whose gradient is computed in all of them together, as often as it is computed; not counted are
        passes that compute losses only, and the reports before the work.
    """

    steps: Array
    rows: Array
