r"""The types every method, aggregator and attack is written in.

A federated method is a value, not a subclass: a factory closes over the hyper-parameters and returns a NamedTuple of
pure functions.  The compiled engine and its readable twin run the same value, so every function obeys one set of laws.

**Laws.**

* *Pure.*  The same arguments give the same result, arguments are not written to, randomness comes from a key passed in.
* *Traceable.*  Arguments may be JAX tracers: no branch on a value, no shape that depends on one.
* *Closed.*  States keep their tree structure, shapes and dtypes from one round to the next.
* *Untrusted.*  Everything in an :class:`Upload` was said by a client and may be a lie, a NaN or an infinity.

Symbols: ``N`` clients, ``m`` of them in a round's cohort, ``n_k`` training rows at client ``k``, ``w`` the
broadcast parameters, ``F_k(w)`` client ``k``'s mean training loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax

from evenhand.naming import short

__all__ = [
    "Aggregator",
    "Algorithm",
    "Array",
    "Attack",
    "ClientData",
    "Effort",
    "Info",
    "Key",
    "Model",
    "OfLosses",
    "Params",
    "Phase",
    "PyTree",
    "Report",
    "Risk",
    "Sampling",
    "Stack",
    "Sum",
    "Upload",
]

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = Any
State: TypeAlias = Any
Info: TypeAlias = Mapping[str, Array]


class Model(NamedTuple):
    """What is trained: parameters, a forward pass, and *unreduced* losses.

    Losses stay one per row because tilting, masking and per-example clipping all need them so.

    Attributes:
      init: ``key -> params``.  The same key gives the same parameters.
      apply: ``(params, x) -> outputs`` for evaluation; ``x`` has rows first, outputs too.
      losses: ``(outputs, y) -> (rows,)`` float, one loss per row, each depending on its own row only.
      metrics: name -> ``(outputs, y) -> (rows,)`` float, e.g. ``{"accuracy": ...}``; may be empty.
      apply_train: ``(params, x, key) -> outputs`` when training differs from evaluation (dropout); None: ``apply``.
      name: for people.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    losses: Callable[[PyTree, Array], Array]
    metrics: Mapping[str, Callable[[PyTree, Array], Array]]
    apply_train: Callable[[Params, Array, Key], PyTree] | None = None
    name: str = ""
    __repr__ = short


class ClientData(NamedTuple):
    """One client's training rows, as its local work sees them: a window on flat arrays, never a padded copy.

    The client's rows are ``x[start : start + size]``.  All but ``capacity``, a Python int, may be tracers.

    Attributes:
      x: rows of one or many clients, ``(rows, ...)``.
      y: their labels, ``(rows, ...)``.
      start: int32 scalar, first row of this client.
      size: int32 scalar ``n_k``; 0 only for the engine's padding, whose results are thrown away.
      progress: float32 scalar in [0, 1): the share of the local work that a straggler gets done; >= 1: all of it.
      capacity: the largest ``size`` that can occur.
    """

    x: Array
    y: Array
    start: Array
    size: Array
    progress: Array
    capacity: int


class Report(NamedTuple):
    """The two numbers a client can tell *before* it trains.

    Attributes:
      weight: its weight in the average: ``n_k``, or 1 where clients count alike.
      loss: ``F_k(w)`` at the broadcast parameters over all its training rows; NaN where nobody asks for it.
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
      rows: rows in the batches of all of them together.
    """

    steps: Array
    rows: Array


class OfLosses(Protocol):
    """A function of losses ``(n,)`` and of weights ``(n,)``, none below 0, of any sum; None: equal weights."""

    def __call__(self, losses: Array, weights: Array | None = None) -> Array:
        """The function's value."""
        ...


class Risk(NamedTuple):
    """Losses of examples, groups or clients to one number, and how much each of them counts in it.

    Law: the number lies between the smallest and the largest loss and does not fall when a loss rises, unless the risk
    says otherwise; its gradient with respect to the losses is a multiple, not below 0, of the weights; a loss of
    weight 0 does not exist, NaN or not; the order of the losses does not matter.  Without any loss all are 0.

    Attributes:
      value: the number, a scalar of the losses' dtype; differentiable.
      weights: ``(n,)``, none below 0, that sum to 1.
    """

    value: OfLosses
    weights: OfLosses
    __repr__ = short


class Sum(NamedTuple):
    """An aggregator that needs sums only: it streams, shards, works under secure summation and takes noise.

    Law: the direction does not depend on the order of the uploads, nor on how they are grouped into partial sums.

    Attributes:
      init: ``(like, num_clients) -> state``, where ``like`` is a tree with the structure of one upload's delta.
      lift: ``(upload, state) -> tree of arrays to be summed``; runs on the client.
      lower: ``(total, state, key) -> (direction, state)``; runs on the server.  A total of no uploads gives zeros.
      weigh: ``(reports, ids, state) -> (weights, state)`` turns the cohort's reports (fields of shape ``(m,)``)
        into the weights that the uploads get; None: the weights stay as reported and the server need not see them.
      needs_loss: whether clients must report their loss.
      passes: how many exchanges one aggregation takes; the client keeps its delta between them.
      sensitivity: a bound on ``||lift(upload)||_2`` over admissible uploads, None if there is none.
    """

    init: Callable[[PyTree, int], State]
    lift: Callable[[Upload, State], PyTree]
    lower: Callable[[PyTree, State, Key], tuple[PyTree, State]]
    weigh: Callable[[Report, Array, State], tuple[Array, State]] | None = None
    needs_loss: bool = False
    passes: int = 1
    sensitivity: float | None = None
    __repr__ = short


class Stack(NamedTuple):
    """An aggregator that must see every upload: Krum, medians, filters.

    Law: the direction does not depend on the order of the uploads, ties apart.

    Attributes:
      init: ``(like, num_clients) -> state``, as for :class:`Sum`.
      apply: ``(uploads, state, key) -> (direction, state)``; each leaf of ``uploads`` has a leading axis ``m``.
      needs_loss: whether clients must report their loss.
    """

    init: Callable[[PyTree, int], State]
    apply: Callable[[Upload, State, Key], tuple[PyTree, State]]
    needs_loss: bool = False
    __repr__ = short


Aggregator: TypeAlias = Sum | Stack


class Sampling(NamedTuple):
    """How a round's cohort is drawn, and the weight that makes the average right for that draw.

    Attributes:
      draw: ``(key, sizes, m) -> (m,)`` int32 client ids, given all clients' training sizes ``(N,)``.
      weight: ``n_k -> weight`` of a drawn client.
      repeats: whether a client can be drawn twice in one cohort.
      tabulate: ``sizes -> table``, what the draws of all rounds share, and with it
      look_up: ``(key, table, m) -> (m,)``, the very ids that ``draw`` gives.  None, both of them: ``draw`` is all.
    """

    draw: Callable[[Key, Array, int], Array]
    weight: Callable[[Array], Array]
    repeats: bool = False
    tabulate: Callable[[Array], PyTree] | None = None
    look_up: Callable[[Key, PyTree, int], Array] | None = None
    __repr__ = short


class Phase(NamedTuple):
    """One exchange between the server and the cohort; almost every method has one, FedDane has two.

    Attributes:
      broadcast: ``(server_state, client_id) -> message``, all that the client gets.
      report: ``(message, client_state, data) -> Report``, before the work.
      work: ``(message, client_state, data, key) -> (delta, client_state)``, the local training.
      aggregator: reduces the uploads to one direction.
      server: ``(server_state, direction, reported, key) -> (server_state, info)``; ``reported``, int32, is the number
        of uploads; ``info`` maps names to scalars that are only reported.
      fresh_cohort: draw new clients before this phase rather than keep those of the phase before.
      effort: ``data -> Effort`` of the work, so that clients of like effort train side by side; None: a step per row.
    """

    broadcast: Callable[[State, Array], PyTree]
    report: Callable[[PyTree, State, ClientData], Report]
    work: Callable[[PyTree, State, ClientData, Key], tuple[PyTree, State]]
    aggregator: Aggregator
    server: Callable[[State, PyTree, Array, Key], tuple[State, Info]]
    fresh_cohort: bool = False
    effort: Callable[[ClientData], Effort] | None = None
    __repr__ = short


class Algorithm(NamedTuple):
    """A federated method.

    Attributes:
      model: what it trains.
      init: ``(params, num_clients) -> server_state``.
      phases: the exchanges of one round.
      global_params: ``server_state -> params``.
      sampling: how cohorts are drawn.
      init_client: ``params -> client_state`` of a client never seen before; ``()`` for stateless methods.
      personal_params: ``(server_state, client_state) -> params`` that a client is served; None: the global ones.
      partial_work: whether a straggler's partial work is aggregated (FedProx) or dropped (FedAvg).
      observe: ``(server_state, train_loss) -> server_state``, before each round; None: that loss is not computed.
      adapt: ``(params, data, key) -> params``, what a client makes of the model that it is served, on its training
        rows, before it is evaluated with it (finetuning); None: it uses the model as it is.
      name: for people, ``"fedprox(mu=0.1)"``.
    """

    model: Model
    init: Callable[[Params, int], State]
    phases: tuple[Phase, ...]
    global_params: Callable[[State], Params]
    sampling: Sampling
    init_client: Callable[[Params], State] = lambda params: ()
    personal_params: Callable[[State, State], Params] | None = None
    partial_work: bool = False
    observe: Callable[[State, Array], State] | None = None
    adapt: Callable[[Params, ClientData, Key], Params] | None = None
    name: str = ""
    __repr__ = short


class Attack(NamedTuple):
    """What the liars among the clients do.  Who lies is drawn once per run, from a stream of its own.

    Attributes:
      fraction: share of the clients that lie, rounded down to whole clients.
      rows: ``(x_k, y_k, rng) -> (x_k, y_k)`` poisons a liar's training rows once, before the run, as NumPy arrays of
        the same shapes; None: its rows are clean.
      upload: ``(delta, key) -> delta`` replaces what a liar sends; None: it sends what it computed.
      report: ``(report, key) -> report`` replaces the weight and the loss that a liar tells; None: it tells the truth.
    """

    fraction: float
    rows: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    upload: Callable[[PyTree, Key], PyTree] | None = None
    report: Callable[[Report, Key], Report] | None = None
    __repr__ = short
