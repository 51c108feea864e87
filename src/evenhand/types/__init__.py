r"""The types every method, aggregator and attack is written in.

A federated method is a value, not a subclass: a factory closes over the hyper-parameters and returns a NamedTuple of
pure functions.  The compiled engine and its readable twin run the same value, so every function obeys one set of laws.

**Laws.**

* *Pure.*  The same arguments give the same result, arguments are not modified, randomness comes from a key passed in.
* *Traceable.*  Arguments may be JAX tracers: no branch on a value, no shape that depends on one.
* *Closed.*  States keep their tree structure, shapes and dtypes from one round to the next.
* *Untrusted.*  Everything in an :class:`Upload` comes from a client, which may be malicious or broken.  What is not
  finite, or has a weight below 0 or above the largest honest one, is rejected before an aggregator sees it.
* *Presence.*  A cohort has ``m`` slots, some of which may be empty because a client was not drawn, dropped out, or
  was rejected.  The report and the upload of an empty slot are zeros, and no result depends on them.

Symbols: ``N`` clients, ``m`` slots in a round's cohort, ``n_k`` training examples at client ``k``, ``w`` the broadcast
parameters, ``F_k(w)`` client ``k``'s mean training loss.

A :class:`Risk` reduces losses, a :class:`Sum` or a :class:`Stack` reduces uploads.  An aggregator also says how many
uploads its guarantee needs (:class:`Need`) and what a round gives away under noise (:class:`Release`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from evenhand.text import short

__all__ = [
    "Aggregator",
    "Algorithm",
    "Array",
    "Attack",
    "ClientData",
    "Cohort",
    "Compression",
    "Effort",
    "Info",
    "Key",
    "Level",
    "Model",
    "Need",
    "OfLosses",
    "Params",
    "Phase",
    "Privacy",
    "PyTree",
    "Radial",
    "Release",
    "Report",
    "Risk",
    "RunningStatistics",
    "Sampling",
    "Stack",
    "Sum",
    "Summation",
    "Trigger",
    "Upload",
]

# --- what a client has, reports and sends ------------------------------------------------------------------------

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = Any
State: TypeAlias = Any
Info: TypeAlias = Mapping[str, Array]


class Model(NamedTuple):
    """A model to train: parameters, a forward pass, and *unreduced* losses.

    Losses stay one per example because tilting, masking and per-example clipping all need that.

    Attributes:
      init: ``key -> params``.  The same key gives the same parameters.
      apply: ``(params, x) -> outputs`` for evaluation; ``x`` has rows first, outputs too.
      losses: ``(outputs, y) -> (rows,)`` float, one loss per example, each depending on that example only.
      metrics: name -> ``(outputs, y) -> (rows,)`` float, e.g. ``{"accuracy": ...}``; may be empty.  One called
        ``"loss"`` is reported in place of ``losses``, which remain what is trained by.
      apply_train: ``(params, x, key) -> outputs`` when training differs from evaluation (dropout); None: ``apply``.
      name: shown to users.
      statistics: which parameters training measures instead of learning them (BatchNorm); None: none.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], PyTree]
    losses: Callable[[PyTree, Array], Array]
    metrics: Mapping[str, Callable[[PyTree, Array], Array]]
    apply_train: Callable[[Params, Array, Key], PyTree] | None = None
    name: str = ""
    statistics: RunningStatistics | None = None
    __repr__ = short


class RunningStatistics(NamedTuple):
    """Parameters that training measures instead of learning them: the running means and variances of BatchNorm.

    Evaluation normalises by them.  In training a batch is normalised by its own mean and variance, which move them.

    Attributes:
      paths: of these parameters, such as ``"norm/mean"``.
      forward: ``(params, x, inside, key) -> (outputs, params)``, the forward pass for training on the rows that are
        ``inside``, a bool for each, and the parameters with the statistics after it; the others stay as they are.
      stay: whether they stay with the client that measured them; False: they are sent and averaged.
    """

    paths: tuple[str, ...]
    forward: Callable[[Params, Array, Array, Key], tuple[PyTree, Params]]
    stay: bool = False
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
      round: int32 scalar, the round in which the client works, counted from 0; None: it works outside of any round, as
        in finetuning before an evaluation, and schedules of step sizes do not apply.
    """

    x: Array
    y: Array
    start: Array
    size: Array
    progress: Array
    capacity: int
    round: Array | None = None


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
        Whole numbers and truth values that the work gives are float32 in it.
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


# --- reductions of many losses to one number, and of many uploads to one direction -------------------------------


class OfLosses(Protocol):
    """A function of losses ``(n,)`` and of nonnegative weights ``(n,)`` with any sum; None: equal weights."""

    def __call__(self, losses: Array, weights: Array | None = None) -> Array:
        """The function's value."""
        ...


class Risk(NamedTuple):
    """Reduces losses of examples, groups or clients to one number, and says how much each of them counts in it.

    Law: the value lies between the smallest and the largest loss and does not fall when a loss rises, unless the risk
    says otherwise; its gradient with respect to the losses is a nonnegative multiple of the weights; a loss of weight 0
    has no effect, even if NaN; the order of the losses does not matter, nor, unless the risk says otherwise, whether a
    loss is given once or in parts that share its weight.  Without any loss, value and weights are 0.

    Attributes:
      value: a scalar of the losses' dtype; differentiable.
      weights: ``(n,)``, nonnegative, that sum to 1.
    """

    value: OfLosses
    weights: OfLosses
    __repr__ = short


class Need(NamedTuple):
    """How many uploads an aggregator needs; ``m`` counts those that are accepted in a round.

    Attributes:
      name: the aggregator with the number that it is built for, such as ``"krum(5)"``.
      holds: ``m -> bool``, whether its guarantee against malicious clients holds with so many.
      works: ``m -> bool``, whether anything is left of so many once those that it distrusts are gone; it does not hold
        where this is False.  A run whose cohorts have a size with which it does not work is refused.
      refusal: ``m -> sentence`` of that refusal; None: it is that of a robust aggregator with too few uploads.
    """

    name: str
    holds: Callable[[int], bool]
    works: Callable[[int], bool]
    refusal: Callable[[int], str] | None = None
    __repr__ = short

    @staticmethod
    def over(name: str, malicious: int, holds: Callable[[int], bool]) -> Need:
        """That of an aggregator that leaves ``malicious`` of the uploads out: one more must be there."""
        return Need(name, holds, lambda m: m > malicious)

    def least(self, m: int, most: int = 10**5) -> int | None:
        """The smallest number from ``m`` to ``most`` with which it holds; None: there is none."""
        return next((count for count in range(m, most + 1) if self.holds(count)), None)


class Release(NamedTuple):
    """Something computed from private data and given away under noise, so many times.

    Attributes:
      noise_multiplier: the noise's standard deviation over the sensitivity: how far one unit can move what is released.
      rate: the chance with which a unit takes part; 1: all do.
      sampling: whether units take part independently of each other (``"poisson"``), or a fixed number of them does,
        drawn without replacement (``"fixed"``).
      times: how often, each time with a new sample and new noise.
      mechanism: ``"gaussian"``, or ``"concentrated"`` where all that is known is that Renyi divergences of order
        ``alpha`` are at most ``alpha / (2 noise_multiplier^2)``, as for discrete noise.
    """

    noise_multiplier: float
    rate: float = 1.0
    sampling: Literal["poisson", "fixed"] = "poisson"
    times: int = 1
    mechanism: Literal["gaussian", "concentrated"] = "gaussian"


class Summation(NamedTuple):
    """How a sum is found that is not found by adding lifted arrays as they arrive.

    Attributes:
      bits: of each lifted number on the wire.
      add: ``(lifted, present, key) -> total`` of a whole cohort, whose lifted arrays have a leading axis ``m``; what
        empty slots hold does not matter; None: they are added as they arrive.  With ``is_secure`` it draws masks, and
        ``lower`` must give the same bits for its total as for a plain sum: a simulation uses it only with
        ``masks=True``.
      numbers: as :attr:`Sum.lift`, but the real numbers before they become whole; None: it has none.
      anything: ``(numbers, key) -> lifted``, how a client that obeys no bound but the modulus would send such numbers.
      is_secure: whether the server learns the total alone; False: it sees what each client sends.
      in_limbs: whether a number is a few limbs of ``bits`` bits, along the last axis of each lifted array
        (:func:`evenhand.secure.to_limbs`); False: each is a number of its own, modulo ``2**bits``.
      fewest: clients of a sum, at least: with fewer, a client of a network reveals nothing, as the sum would be that of
        one, or under too little noise.
      clip: a bound on the norm of an update in a sum without ``numbers``; 0: there is none in it, as in counts of
        losses; None: there is no bound.
    """

    bits: int
    add: Callable[[PyTree, Array, Key], PyTree] | None = None
    numbers: Callable[[Upload, PyTree, Key], PyTree] | None = None
    anything: Callable[[PyTree, Key], PyTree] | None = None
    is_secure: bool = True
    in_limbs: bool = False
    fewest: int = 2
    clip: float | None = None
    __repr__ = short


class Radial(NamedTuple):
    """A lift that multiplies an upload by a number that depends on how far it lies from a point.

    Law: ``lift(upload, public, key) == (factor * delta, factor)``.  Where a server has all uploads at hand, it may
    find their distances by one product with them, and their sum by another.

    Attributes:
      lift: the sum's own; a wrapper that gives the sum another lift so leaves this behind.
      point: ``public -> tree``, with the structure of an upload's delta.
      factor: ``(distance, weight, public) -> factor``.
    """

    lift: Callable[[Upload, PyTree, Key], PyTree]
    point: Callable[[PyTree], PyTree]
    factor: Callable[[Array, Array, PyTree], Array]
    __repr__ = short


class Compression(NamedTuple):
    """How clients shorten what they upload; the server reads it off in full length before it aggregates.

    Attributes:
      begin: ``like -> memory`` of a client that has not sent anything, where ``like`` is a tree of zeros with the
        structure of one upload's delta.  ``()``: it keeps nothing.
      shorten: ``(delta, memory, key) -> (delta, memory)``: what the server reads off the short message, with the
        structure of the upload, and what the client keeps; None: the work of the phase does it.
      bits: ``like -> bits`` of one short message.
    """

    begin: Callable[[PyTree], PyTree]
    shorten: Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]] | None
    bits: Callable[[PyTree], int]
    __repr__ = short


class Sum(NamedTuple):
    """An aggregator that needs sums only: it streams, shards, works under secure summation and takes noise.

    Law: the direction does not depend on the order of the uploads, nor on how they are grouped into partial sums.

    Attributes:
      init: ``(like, num_clients) -> state``, where ``like`` is a tree with the structure of one upload's delta.
      lift: ``(upload, public, key) -> tree of arrays to be summed``; runs on the client, which keeps the key secret.
      lower: ``(total, state, key) -> (direction, state)``; runs on the server.  A total of no uploads gives zeros.
      publish: ``state -> public``, what clients learn of the state before each pass.
      weigh: ``(reports, cohort, state) -> (weights, state)`` turns the cohort's reports (fields of shape ``(m,)``)
        into the weights that the uploads get; None: the weights stay as reported and the server need not see them.
      needs_loss: whether clients must report their loss.
      passes: the number of exchanges in one aggregation; the client keeps its delta between them.
      sensitivity: a bound on ``||lift(upload)||_2`` over admissible uploads, None if there is none.
      summation: how the lifted arrays are added, where they are whole numbers; None: as real numbers, as they arrive.
      release: what one round gives away under noise; None: the sum itself.
      needs: how many uploads its guarantees need; each of them must hold.
      compression: how clients shorten their uploads, which the server then lifts itself; None: they do not.
      radial: that the lift depends on a distance; None: it does not, or nobody says so.
      of_slots: whether ``weigh`` counts empty slots, so that a cohort keeps as many slots as were drawn, also where
        systems leave slots out.
    """

    init: Callable[[PyTree, int], State]
    lift: Callable[[Upload, PyTree, Key], PyTree]
    lower: Callable[[PyTree, State, Key], tuple[PyTree, State]]
    publish: Callable[[State], PyTree] = lambda state: ()
    weigh: Callable[[Report, Cohort, State], tuple[Array, State]] | None = None
    needs_loss: bool = False
    passes: int = 1
    sensitivity: float | None = None
    summation: Summation | None = None
    release: Release | None = None
    needs: tuple[Need, ...] = ()
    compression: Compression | None = None
    radial: Radial | None = None
    of_slots: bool = False
    __repr__ = short

    @property
    def streams(self) -> bool:
        """Whether lifted arrays can be added as they arrive, so that nobody needs to keep them."""
        return self.summation is None or self.summation.add is None

    @property
    def unmasked(self) -> Sum:
        """The same sum without masks, which cancel: if it is secure, its whole numbers are added as they arrive.

        The direction is the same to the bit.
        """
        if self.summation is None or not self.summation.is_secure or self.summation.add is None:
            return self
        return self._replace(summation=self.summation._replace(add=None))

    def limbs_apart(self, lifted: PyTree) -> PyTree:
        """The lifted arrays as they are added: of numbers in limbs one for each limb, and of half precision in float32.

        XLA:CPU makes and adds limbs three times as fast so: it vectorises no loop over a last axis of four.
        """
        if self.summation is None:
            # 256 + 1 is 256 in bfloat16.
            return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if _is_half(leaf) else leaf, lifted)
        if not self.summation.in_limbs:
            return lifted
        return jax.tree.map(lambda leaf: tuple(leaf[..., i] for i in range(leaf.shape[-1])), lifted)

    def limbs_together(self, total: PyTree, like: PyTree) -> PyTree:
        """The total of :meth:`limbs_apart` as :attr:`lower` takes it; ``like`` is what one client lifts."""
        if self.summation is None:
            return jax.tree.map(
                lambda own, leaf: leaf.astype(own.dtype) if _is_half(own) else leaf, like, total
            )
        if not self.summation.in_limbs:
            return total
        return jax.tree.map(lambda _, limbs: jnp.stack(limbs, axis=-1), like, total)


def _is_half(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4


class Stack(NamedTuple):
    """An aggregator that must see every upload: Krum, medians, filters.

    Law: the direction does not depend on the order of the uploads, except for ties.

    Attributes:
      init: ``(like, num_clients) -> state``, as for :class:`Sum`.
      apply: ``(uploads, present, state, key) -> (direction, state)``; each leaf of ``uploads`` has a leading axis
        ``m``, and those of empty slots, where ``present``, bool ``(m,)``, is False, are zeros.  It does not learn which
        client is in which slot, so its state can hold nothing of single clients.
      needs_loss: whether clients must report their loss.
      needs: how many uploads its guarantees need; each of them must hold.
      compression: as for :class:`Sum`.
      skips_absent: whether ``apply`` does not read what empty slots hold, which then may be anything, NaN included:
        zeros in their place cost a copy of all uploads.
    """

    init: Callable[[PyTree, int], State]
    apply: Callable[[Upload, Array, State, Key], tuple[PyTree, State]]
    needs_loss: bool = False
    needs: tuple[Need, ...] = ()
    compression: Compression | None = None
    skips_absent: bool = False
    __repr__ = short

    @property
    def unmasked(self) -> Stack:
        """Itself: a server that sees every upload has nothing to mask."""
        return self


Aggregator: TypeAlias = Sum | Stack


# --- a federated method: its cohorts, its exchanges, its privacy guarantee; and attacks on it -------------------


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
      among: ``(key, sizes, present, m) -> Cohort`` drawn among the clients that are ``present``, bool ``(N,)``; the
        cohort of ``draw`` where all are.  None: it is drawn from all clients only, or it is ``scheduled``, in which
        case the slots of absent clients are empty.
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
    among: Callable[[Key, Array, Array, int], Cohort] | None = None
    __repr__ = short


class Phase(NamedTuple):
    """One exchange between the server and the cohort; almost every method has one, FedDane has two.

    Attributes:
      broadcast: ``(server_state, client_id) -> message``, all that the client gets.
      report: ``(message, client_state, data) -> Report``, before the work.
      work: ``(message, client_state, data, key) -> (delta, client_state)``, the local training.
      aggregator: reduces the uploads to one direction.
      server: ``(server_state, direction, reported, key) -> (server_state, info)``; ``reported``, int32, is the number
        of accepted uploads; ``info`` maps names, none of which the history has otherwise, to scalars that are only
        recorded.
      fresh_cohort: draw new clients before this phase rather than keep those of the previous one.
      effort: ``data -> Effort`` of the work, so that clients of similar effort train at the same time; None: one step
        per example.  Clients of equally many examples are taken to have equal efforts when the engine chooses how many
        train side by side.
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
    """A differential-privacy guarantee, which travels with the method that makes it.

    Attributes:
      unit: what is protected: all of one client's examples together, or each example by itself.
      releases: ``rounds -> releases``, all that so many rounds give away; a sequence of :class:`Release`.
      neighbours: the relation between data sets that must not be told apart, such as "one client added or removed".
      released: what is given away, such as "the global model after each round".
      public: what is taken to be known already, such as "the number of clients".
      unprotected: what the guarantee does not cover, such as "personal models".
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


class Level(NamedTuple):
    """One of several models that a method trains and from which each client is served one.

    Attributes:
      name: of the model, such as ``"theta=0.3"``; in metrics it follows the metric's name.
      model: what it is.
    """

    name: str
    model: Model
    __repr__ = short


class Algorithm(NamedTuple):
    """A federated method.

    Attributes:
      model: what it trains.
      init: ``(params, num_clients) -> server_state``.
      phases: the exchanges of one round, from 1 to 16.
      global_params: ``server_state -> params``.
      sampling: how cohorts are drawn.
      init_client: ``params -> client_state`` of a client never seen before; ``()`` for stateless methods; a
        :class:`evenhand.rounds.PerExample` where that depends on the number of its training examples.
      personal_params: ``(server_state, client_state) -> params`` that a client is served once it has trained; until
        then it is served the global ones.  None: all clients are.
      partial_work: whether a straggler's partial work is aggregated (FedProx) or dropped (FedAvg).
      observe: ``(server_state, train_loss) -> server_state``, before each round; None: that loss is not computed.
      adapt: ``(params, data, key) -> params``, how a client finetunes the model that it is served, on its training
        examples, before evaluation; None: it does not.
      received: ``message -> params``, the global model in the last phase's broadcast, for methods that wrap this one.
      privacy: what it guarantees about the privacy of clients or examples; None: nothing.
      pooled: ``(params, x, y) -> client_state`` before the first round, for a method that trains on the examples of all
        clients together, as if one client had them; clients are then only evaluated.  None: each client trains on its
        own examples.
      levels: the models from which each client is served the one that is best on its validation examples, or the first
        of equally good ones; the global parameters are then a tuple with an entry for each.  Empty: there is one model.
      classes: the most classes that the data may have, where the method groups examples by their labels, from 0; a run
        on data with more is refused.  None: any.
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
    pooled: Callable[[Params, Array, Array], State] | None = None
    levels: tuple[Level, ...] = ()
    classes: int | None = None
    name: str = ""
    __repr__ = short

    @property
    def client_model(self) -> Model:
        """What a client is served: the model that is trained, or that of a level."""
        return self.levels[0].model if self.levels else self.model


class Trigger(NamedTuple):
    """What a backdoor answers to.

    Attributes:
      stamp: ``x -> x`` with the trigger on each example, ``(rows, ...)``, of the same shape and type; x is an array of
        NumPy or of JAX.
      label: the class that examples with the trigger are to get.
    """

    stamp: Callable[[Any], Any]
    label: int
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
      trigger: that of the backdoor that it plants; a run then measures how often honest clients' examples with it get
        its label; None: there is no backdoor.
      reply: ``(delta, params, key) -> delta`` replaces what a malicious client uploads, after ``upload``, for an attack
        that depends on the global model that the client has received; in the last phase of a round only.
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
    trigger: Trigger | None = None
    reply: Callable[[PyTree, Params, Key], PyTree] | None = None
    __repr__ = short
