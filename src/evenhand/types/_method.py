"""A federated method: how it draws its cohorts, its exchanges, its promise of privacy; and attacks on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from evenhand.text import short
from evenhand.types._client import (
    Array,
    ClientData,
    Cohort,
    Effort,
    Info,
    Key,
    Model,
    Params,
    PyTree,
    Report,
    State,
    Upload,
)
from evenhand.types._reduction import Aggregator, Release


class Sampling(NamedTuple):
    """How a round's cohort is drawn, and the weights that make the average right for that draw.

    Attributes:
      draw: ``(key, sizes, m) -> Cohort``, given all clients' training sizes ``(N,)``; of ``m`` slots, or as many as a
        random number of clients needs.
      weight: ``n_k -> weight`` of a drawn client, >= 0; does not fall with ``n_k``.
      repeats: whether a client can be drawn twice in one cohort.
      tabulate: ``sizes -> table``, computed once for the draws of all rounds; None: there is no table.
      look_up: ``(key, table, m) -> Cohort``, the same cohort as from ``draw``; None: there is no table.
      rate: the part of all clients that is drawn, on average or exactly; None: as many as are asked for.
      scheduled: ``(key, number, sizes, m) -> Cohort`` for cohorts that depend on the round, from 0, with one key for
        all rounds; None: ``draw`` has a new key in each.
      slots: ``clients -> m``, how many slots such a part needs, or a cohort has where the method rests on its size;
        None: as many as clients are asked for.
      independent: whether each client is drawn with the chance ``rate``, independently of all others.
    """

    draw: Callable[[Key, Array, int], Cohort]
    weight: Callable[[Array], Array]
    repeats: bool = False
    tabulate: Callable[[Array], PyTree] | None = None
    look_up: Callable[[Key, PyTree, int], Cohort] | None = None
    rate: float | None = None
    slots: Callable[[int], int] | None = None
    scheduled: Callable[[Key, Array, Array, int], Cohort] | None = None
    independent: bool = False
    __repr__ = short


class Phase(NamedTuple):
    """One exchange between the server and the cohort; almost every method has one, FedDane has two.

    Attributes:
      broadcast: ``(server_state, client_id) -> message``, all that the client gets.
      report: ``(message, client_state, data) -> Report``, before the work.
      work: ``(message, client_state, data, key) -> (delta, client_state)``, the local training.
      aggregator: reduces the uploads to one direction.
      server: ``(server_state, direction, reported, key) -> (server_state, info)``; ``reported``, int32, is the number
        of accepted uploads; ``info`` maps names to scalars that are only recorded.
      fresh_cohort: draw new clients before this phase rather than keep those of the previous one.
      effort: ``data -> Effort`` of the work, so that clients of similar effort train at the same time; None: one step
        per example.
      steps_if_empty: whether the server steps even if no upload was accepted, as with noise; False: nothing changes.
    """

    broadcast: Callable[[State, Array], PyTree]
    report: Callable[[PyTree, State, ClientData], Report]
    work: Callable[[PyTree, State, ClientData, Key], tuple[PyTree, State]]
    aggregator: Aggregator
    server: Callable[[State, PyTree, Array, Key], tuple[State, Info]]
    fresh_cohort: bool = False
    effort: Callable[[ClientData], Effort] | None = None
    steps_if_empty: bool = False
    __repr__ = short


class Privacy(NamedTuple):
    """A promise of differential privacy, which travels with the method that makes it.

    Attributes:
      unit: what is protected: all of one client's examples together, or each example by itself.
      releases: ``rounds -> releases``, all that so many rounds give away; a sequence of :class:`Release`.
      neighbours: the relation between data sets that must not be told apart, such as "one client added or removed".
      released: what is given away, such as "the global model after each round".
      public: what is taken to be known already, such as "the number of clients".
      unprotected: what the promise does not cover, such as "personal models".
      delta: the probability that its epsilon is told for; None: the usual one for the number of units.
    """

    unit: Literal["client", "example"]
    releases: Callable[[int], tuple[Release, ...]]
    neighbours: str
    released: tuple[str, ...]
    public: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    delta: float | None = None
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
      personal_params: ``(server_state, client_state) -> params`` that a client is served once it has trained; until
        then it is served the global ones.  None: all clients are.
      partial_work: whether a straggler's partial work is aggregated (FedProx) or dropped (FedAvg).
      observe: ``(server_state, train_loss) -> server_state``, before each round; None: that loss is not computed.
      adapt: ``(params, data, key) -> params``, how a client finetunes the model that it is served, on its training
        examples, before evaluation; None: it does not.
      received: ``message -> params``, the global model in the last phase's broadcast, for methods that wrap this one.
      privacy: what it promises about the privacy of clients or examples; None: nothing.
      name: shown to users, e.g. ``"fedprox(mu=0.1)"``.
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
    received: Callable[[PyTree], Params] = lambda message: message.params
    privacy: Privacy | None = None
    name: str = ""
    __repr__ = short


class Attack(NamedTuple):
    """What malicious clients do.  They are drawn once per run, from a stream that nothing else uses.

    Attributes:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      rows: ``(x_k, y_k, rng) -> (x_k, y_k)`` poisons a malicious client's training examples once, before the run, as
        NumPy arrays of the same shapes; None: they are clean.
      upload: ``(delta, key) -> delta`` replaces what a malicious client uploads; None: it uploads what it computed.
      report: ``(report, key) -> report`` replaces the weight and the loss that it reports; None: the true ones.
      collude: ``(uploads, malicious, present, key) -> deltas`` of a coalition that knows all uploads of the cohort
        (leading axis ``m``; ``malicious`` and ``present`` are bool ``(m,)``); those of honest clients are kept.
      clients: positions or ids of the malicious clients, instead of ``fraction``.
      first: the first round, counted from 1, in which uploads, reports and ``fresh`` examples are replaced; those that
        were poisoned before the run always are.
      last: the last such round; None: that of the run.
      lifted: ``(numbers, public, key) -> numbers`` replaces what a malicious client adds to a sum in each of its
        passes, whatever its upload is; ``public`` is what the server has published.  Under a secure sum nobody sees it,
        and only the modulus bounds it; None: it adds what it should.
      fresh: ``(x, y, size, key) -> (x, y)`` poisons its training examples for one round, from the clean ones, of which
        the first ``size`` are its own; None: every round has the same.
    """

    fraction: float = 0.0
    rows: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    upload: Callable[[PyTree, Key], PyTree] | None = None
    report: Callable[[Report, Key], Report] | None = None
    collude: Callable[[Upload, Array, Array, Key], PyTree] | None = None
    clients: tuple[int | str, ...] | None = None
    first: int = 1
    last: int | None = None
    fresh: Callable[[Array, Array, Array, Key], tuple[Array, Array]] | None = None
    lifted: Callable[[PyTree, PyTree, Key], PyTree] | None = None
    __repr__ = short
