"""What both sides of a federation agree on before the first round, and the hash by which every message names it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from evenhand import communication, rounds, tree
from evenhand._jaxpr.programs import used_inputs
from evenhand._version import __version__
from evenhand.data import Form
from evenhand.errors import EvenhandError
from evenhand.privacy import account, usual_delta
from evenhand.rounds import Wire
from evenhand.text import counted
from evenhand.types import (
    Aggregator,
    Algorithm,
    Params,
    Phase,
    Privacy,
    PyTree,
    Release,
    Sampling,
    Sum,
    Summation,
)
from evenhand.wire.messages import Packet, encode, packed, unpacked, whole
from evenhand.wire.secure_sums import SumForm, sum_form
from evenhand.wire.sum_messages import MOST_CLIENTS, Occasion

__all__ = [
    "MOST_CLASSES",
    "MOST_EXAMPLES",
    "Agreed",
    "Allowed",
    "Terms",
    "agree",
    "check_deployable",
    "check_epsilon",
    "check_masked",
    "check_method",
    "check_sum",
    "check_terms",
    "example_rows",
    "is_masked",
    "is_published",
    "occasion_of_sum",
    "slots_of",
    "sum_form_of",
]

NDArray = npt.NDArray[Any]


class Terms(NamedTuple):
    """One run, as the server announces it to each client.

    Attributes:
      run: a name that no other run has.
      method: as text, which each client compares with that of its own file.
      version: of Evenhand.
      form: of the examples that all clients have.
      label: the shape of one example's label.
      clients: how many there are.
      capacity: training examples of the largest client.
      rounds: of the whole run; no client works in more.
      slots: clients drawn in a round.
      scale: mean and deviation of each column of numbers, where the examples are rows of a table.
      seed: of the run in the test mode, in which both sides derive all keys from it; None: the keys of noise and of
        private work come from the operating system of the machine that uses them.
    """

    run: str
    method: str
    form: Form
    label: tuple[int, ...]
    clients: int
    capacity: int
    rounds: int
    slots: int
    seed: int | None = None
    scale: tuple[tuple[float, float], ...] | None = None
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """The fields of a message; :meth:`from_json` reads them."""
        return {**self._asdict(), "form": self.form.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Terms:
        """The inverse of :meth:`to_json`.

        Raises:
          KeyError, TypeError, ValueError: ``value`` is something else.
        """
        numbers = {name: whole(value, name) for name in ("clients", "capacity", "rounds", "slots")}
        if min(numbers.values()) < 0 or max(numbers.values()) >= 2**31:
            raise ValueError("a number is out of range")
        texts = value["run"], value["method"], value["version"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name is not text")
        return Terms(
            run=str(value["run"]),
            method=str(value["method"]),
            form=Form.from_json(value["form"]),
            label=tuple(int(size) for size in value["label"]),
            **numbers,
            seed=None if value["seed"] is None else whole(value, "seed"),
            scale=None
            if value["scale"] is None
            else tuple((float(mean), float(deviation)) for mean, deviation in value["scale"]),
            version=str(value["version"]),
        )


class Agreed(NamedTuple):
    """What follows from the terms and the method, the same on both sides.

    Attributes:
      terms: what was announced.
      algorithm: the method, with uploads as its aggregators compress them.
      wires: the shapes of what crosses the wire in each phase.
      params: the shapes of the model's parameters.
      state: the shapes of a client's state.
      shared: for each phase, whether all clients get the same broadcast.
      schema: the hash of all of that, in hexadecimal.
    """

    terms: Terms
    algorithm: Algorithm
    wires: tuple[Wire, ...]
    params: Params
    state: PyTree
    shared: tuple[bool, ...]
    schema: str


def agree(algorithm: Algorithm, terms: Terms) -> Agreed:
    """What both sides compute from the same method and terms.

    Raises:
      EvenhandError: the method cannot run on a network (:func:`check_deployable`).
    """
    check_deployable(algorithm)
    params = jax.eval_shape(algorithm.model.init, jax.random.key(0))
    rows = example_rows(terms, terms.capacity)
    shapes = params, rows, terms.capacity, terms.clients
    algorithm = communication.compressed(algorithm, *shapes)
    state = jax.eval_shape(lambda params: rounds.newcomer(algorithm, params, terms.capacity), params)
    wires = rounds.wires(algorithm, *shapes)
    parts = {
        "terms": terms.to_json(),
        "params": _described(params),
        "state": _described(state),
        "wires": [_described(wire._replace(restarts=())) for wire in wires],
    }
    schema = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    server = jax.eval_shape(lambda params: algorithm.init(params, terms.clients), params)
    return Agreed(
        terms=terms,
        algorithm=algorithm,
        wires=wires,
        params=params,
        state=state,
        shared=tuple(_is_shared(phase, server) for phase in algorithm.phases),
        schema=schema,
    )


def _is_shared(phase: Phase, server: PyTree) -> bool:
    """Whether a broadcast does not depend on the client that gets it."""
    return not used_inputs(jax.make_jaxpr(phase.broadcast)(server, jnp.int32(0)))[-1]


def occasion_of_sum(
    agreed: Agreed,
    index: int,
    place: tuple[int, int],
    broadcast: Sequence[NDArray],
    public: Sequence[NDArray],
) -> Occasion:
    """The secure sum of pass ``place[1]`` in the exchange ``place[0]``, as every client signs it.

    Its name has the hash of what the server has published and, where that is the same for all, broadcast: clients that
    were given different models, or different centres, are in different sums, and none of these comes about.
    """
    run, common = agreed.terms.run, broadcast if agreed.shared[index] else ()
    content = hashlib.sha256(encode(Packet("common", {}, (*common, *public)))).hexdigest()
    return Occasion(run, f"{run} {content[:32]}", *place)


def example_rows(terms: Terms, rows: int) -> tuple[Any, Any]:
    """The shapes of so many examples and their labels."""
    kind = jnp.float32 if terms.form.classes is None else jnp.int32
    x = jax.ShapeDtypeStruct((rows, *terms.form.shape), jnp.dtype(terms.form.dtype))
    return x, jax.ShapeDtypeStruct((rows, *terms.label), kind)


def _described(tree: PyTree) -> list[list[Any]]:
    """Places, types and shapes of the leaves of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [[jax.tree_util.keystr(path), str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves]


def is_masked(aggregator: Aggregator) -> bool:
    """Whether clients add what they send under masks, so that the server learns the sum alone."""
    summation = aggregator.summation if isinstance(aggregator, Sum) else None
    return summation is not None and summation.is_secure


def sum_form_of(agreed: Agreed, index: int) -> SumForm:
    """How what clients lift in a phase becomes the whole numbers of a secure sum."""
    aggregator = agreed.algorithm.phases[index].aggregator
    assert isinstance(aggregator, Sum)
    return sum_form(aggregator.summation, agreed.wires[index].lifted)


def is_published(agreed: Agreed, index: int, arrays: tuple[NDArray, ...]) -> bool:
    """Whether the server may publish these arrays before clients lift their uploads.

    Where clients add the noise, what is published is the scale of uploads beside it, which never changes: clients know
    it from the method, and need not believe a server.

    Raises:
      PacketError: they have other types or shapes.
    """
    aggregator, wire = agreed.algorithm.phases[index].aggregator, agreed.wires[index]
    unpacked(arrays, wire.published, "what the server publishes")
    if not isinstance(aggregator, Sum) or (agreed.algorithm.privacy is None and aggregator.release is None):
        return True
    own = packed(aggregator.publish(aggregator.init(tree.zeros(wire.delta), agreed.terms.clients)))
    return all(np.allclose(*pair, rtol=1e-6, atol=0) for pair in zip(own, arrays, strict=True))


def check_deployable(algorithm: Algorithm) -> None:
    """Refuses methods that have no meaning on a network, each in a sentence.

    Raises:
      EvenhandError: the method is one of them.
    """
    name = algorithm.name or "This method"
    if algorithm.pooled is not None:
        raise EvenhandError(
            f"{name} trains on the examples of all clients in one place, which a deployment cannot do: deploy "
            "a federated method."
        )
    if algorithm.observe is not None:
        raise EvenhandError(
            f"{name} needs the training loss over all clients before each round, which would take an exchange with "
            "every client: deploy fedprox(mu=...) with a fixed mu."
        )
    if algorithm.sampling.repeats:
        raise EvenhandError(
            f"{name} can draw a client twice in one round, but in a deployment a client works once: give "
            "sampling=eh.sampling.uniform()."
        )
    if isinstance(algorithm.init_client, rounds.PerExample):
        raise EvenhandError(
            f"{name} keeps a number for each example of the largest client, so its clients would have to know how many "
            "examples that has: deploy another method."
        )
    for phase in algorithm.phases:
        rule = phase.aggregator
        summation = rule.summation if isinstance(rule, Sum) else None
        if summation is not None and not summation.is_secure:
            raise EvenhandError(
                f"{name} sums numbers without masks, so that the server sees those of each client, which is only "
                "simulated: deploy another method, or let its clients add the noise, with at_server=False and "
                "fewest=... as in dp_delta_fl."
            )


def slots_of(algorithm: Algorithm, clients: int, cohort: int) -> int:
    """The most clients of a round, out of so many; a ``cohort`` of 0 has all of them."""
    if algorithm.sampling.slots is not None:
        return algorithm.sampling.slots(clients)
    return clients if cohort == 0 else min(cohort, clients)


def _cohort_sizes(sampling: Sampling, clients: int, slots: int) -> tuple[int, int]:
    """The fewest clients that a round draws, where it draws any, and the most: ``slots``."""
    if sampling.independent:
        return 1, slots
    # The last cohort of a turn has those that are left.
    return (clients % max(slots, 1) or slots) if sampling.scheduled is not None else slots, slots


def check_masked(algorithm: Algorithm, clients: int, slots: int, colluding: int) -> None:
    """Refuses methods under masks some of whose cohorts, out of so many clients, cannot meet a secure sum.

    Raises:
      EvenhandError: the method is one of them.
    """
    sums = [summation for summation in map(_masked, algorithm.phases) if summation is not None]
    if not sums:
        return
    title, (fewest, most) = algorithm.name or "This method", _cohort_sizes(algorithm.sampling, clients, slots)
    # A cohort of one takes no sum: nobody counts in its round.
    if (fewest := max(fewest, 2)) < most:
        least = max(summation.fewest for summation in sums)
        check_sum(f"{title}, whose cohorts differ in size,", fewest, colluding, least)
    check_sum(title, most, colluding)


def _masked(phase: Phase) -> Summation | None:
    """How a phase is summed under masks; None: it is not."""
    aggregator = phase.aggregator
    return aggregator.summation if isinstance(aggregator, Sum) and is_masked(aggregator) else None


def check_sum(title: str, clients: int, colluding: int, least: int = 2) -> None:
    """Refuses secure sums of so many clients that would be repeated for ever; ``title`` is what takes the sum.

    Raises:
      EvenhandError: there are fewer clients than ``least``, too few beside those that collude, or too many.
    """
    begin = f"{title} takes secure sums of {counted(clients, 'client')}"
    if clients < (needed := max(least, colluding + 2)):
        raise EvenhandError(
            f"{begin}, and with colluding = {colluding} they need at least {needed}: lower colluding, or have "
            "more clients in each cohort."
        )
    if clients > MOST_CLIENTS:
        raise EvenhandError(
            f"{begin}, and at most {MOST_CLIENTS:,} can be in one: have fewer clients in each cohort."
        )


def as_deployed(agreed: Agreed) -> Algorithm:
    """The method, whose guarantee counts all clients of the run and names what a deployment gives away beside it."""
    algorithm, terms = agreed.algorithm, agreed.terms
    if (promise := algorithm.privacy) is None:
        return algorithm
    delta = promise.delta
    if promise.unit == "client" and delta is None:
        # The folder of a client has its own examples only, and one client would have a delta of 0.1.
        delta = usual_delta(terms.clients)
    is_scaled = any(tuple(pair) != (0.0, 1.0) for pair in terms.scale or ())
    exact = (_MEASURED, _SCALED) if is_scaled else (_MEASURED,)
    return algorithm._replace(
        privacy=promise._replace(delta=delta, unprotected=(*promise.unprotected, *exact))
    )


_MEASURED = "metrics that clients send or count in a histogram, which have no noise"

_SCALED = (
    "the means and deviations of columns, which all clients agreed on before the training, without noise"
)


# --- what a client's own file allows ----------------------------------------------------------------------------------


MOST_EXAMPLES = 10**6
"""Of one client, if a federation's files say nothing else."""

MOST_CLASSES = 10**5
"""Of labels, and of tokens, likewise: a model has weights for each of them."""


class Allowed(NamedTuple):
    """What a client's own file allows.

    Attributes:
      cohort: the fewest clients that may be drawn in a round in which it works.
      noise_multiplier: the least of any release of the method, which may be below the argument of the method.
      epsilon: the most that the method may spend in the whole run; against the server if clients add the noise.
      clip: the largest norm of an update as it is sent, without its weight.
      most_examples: of the largest client, to which all pad their own.
      metrics: whether its losses and metrics may leave it.
      histogram: whether its accuracy may be counted in a histogram under a secure sum.
      test_keys: whether all its keys, those of noise included, may come from a seed that the server knows.
    """

    cohort: int = 1
    noise_multiplier: float = 0.0
    epsilon: float = math.inf
    clip: float = math.inf
    most_examples: int = MOST_EXAMPLES
    metrics: bool = False
    histogram: bool = False
    test_keys: bool = False


def check_terms(allowed: Allowed, terms: Terms) -> None:
    """Refuses terms that a client's file does not allow, whatever the method.

    Raises:
      EvenhandError: the terms are such.
    """
    if terms.seed is not None and not allowed.test_keys:
        raise EvenhandError(
            "The server asks for keys from a seed that it knows, with which it could subtract this client's noise: "
            "a client agrees only if its own file says test_keys = true."
        )
    if terms.capacity > allowed.most_examples:
        raise EvenhandError(
            f"The largest client has {terms.capacity:,} examples, to which this client would have to pad its own; "
            f"its file allows {allowed.most_examples:,}: raise most_examples there."
        )


def check_method(allowed: Allowed, colluding: int, agreed: Agreed, rows: int) -> None:
    """Refuses a method that does not protect a client with so many ``rows`` as its file asks.

    Raises:
      EvenhandError: the method is such.
    """
    algorithm, terms = agreed.algorithm, agreed.terms
    _check_noise(allowed, agreed)
    check_epsilon(allowed, agreed, rows, terms.rounds, "The run would spend")
    _check_clip(allowed, algorithm)
    fewest, _ = _cohort_sizes(algorithm.sampling, terms.clients, terms.slots)
    # Its round could not count nobody instead: whether it does would depend on one client, and no noise hides that.
    if fewest < allowed.cohort:
        raise EvenhandError(
            f"A round of {algorithm.name} may draw only {counted(fewest, 'client')}, and this client's file asks for "
            f"cohorts of at least {allowed.cohort}: lower cohort there, or deploy a method with larger cohorts of a "
            "fixed size."
        )
    check_masked(algorithm, terms.clients, terms.slots, colluding)


def _check_noise(allowed: Allowed, agreed: Agreed) -> None:
    """The method guarantees privacy if the file asks for it, with as much noise as it asks for."""
    promise = agreed.algorithm.privacy
    if allowed.noise_multiplier <= 0 and math.isinf(allowed.epsilon):
        return
    if promise is None:
        raise EvenhandError(
            f"{agreed.algorithm.name} guarantees no differential privacy, but this client's file asks for it: "
            "deploy a private method."
        )
    releases = promise.releases(agreed.terms.rounds)
    least = min((release.noise_multiplier for release in releases), default=math.inf)
    if least < allowed.noise_multiplier:
        raise EvenhandError(
            f"The noise of a release is {least:g} times its sensitivity, and this client's file asks for a "
            f"noise_multiplier of at least {allowed.noise_multiplier:g}: deploy the method with more noise."
        )


def check_epsilon(allowed: Allowed, agreed: Agreed, rows: int, rounds: int, begin: str) -> None:
    """So many rounds spend no more than the file of a client with so many ``rows`` allows.

    Raises:
      EvenhandError: they do; the sentence starts with ``begin``.
    """
    (promise, against), most = _guarantee_to_client(agreed.algorithm), allowed.epsilon
    if promise is None or math.isinf(most):
        return
    units = agreed.terms.clients if promise.unit == "client" else max(rows, 2)
    spent = account(promise, rounds=rounds, units=units).epsilon
    if not spent <= most:
        raise EvenhandError(
            f"{begin} epsilon {spent:.3g}{against}, and this client's file allows {most:g}: deploy the method with "
            "more noise or fewer rounds."
        )


def _guarantee_to_client(algorithm: Algorithm) -> tuple[Privacy | None, str]:
    """The guarantee that a client's file limits, and the words for whom it is against.

    Under masked sums of noise of its clients it holds against the server.  The server draws the cohorts, so their
    sampling hides no client from it.
    """
    promise = algorithm.privacy
    if (
        promise is None
        or promise.unit != "client"
        or not all(is_masked(phase.aggregator) for phase in algorithm.phases)
    ):
        return promise, ""

    def releases(rounds: int) -> tuple[Release, ...]:
        return tuple(release._replace(rate=1.0) for release in promise.releases(rounds))

    return promise._replace(releases=releases), " against the server, which knows who takes part"


def _check_clip(allowed: Allowed, algorithm: Algorithm) -> None:
    """Where masks and noise hide how long an update is, the method itself clips it as the file asks."""
    for summation in map(_masked, algorithm.phases):
        if summation is None or summation.numbers is not None or math.isinf(allowed.clip):
            continue
        if summation.clip is None:
            raise EvenhandError(
                f"This client's file limits the clip, which cannot be checked in the sums of {algorithm.name}: deploy "
                "another method, or remove clip from the file."
            )
        if summation.clip > allowed.clip:
            raise EvenhandError(
                f"{algorithm.name} clips updates to {summation.clip:g}, and this client's file allows "
                f"{allowed.clip:g}: deploy the method with a smaller clip."
            )
