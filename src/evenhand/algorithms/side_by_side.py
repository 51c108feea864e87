"""Several methods in one federation: one cohort, one visit to each client, one model per method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.aggregators import in_parts
from evenhand.errors import EvenhandError, expect, truth_value
from evenhand.local import in_turn, step_per_row
from evenhand.streams import root_key
from evenhand.text import of_model
from evenhand.types import Algorithm, Array, ClientData, Info, Key, Level, Model, Phase, PyTree, Report, Sum

__all__ = ["side_by_side"]


def side_by_side(methods: Mapping[str, Algorithm], *, by_level: bool = False) -> Algorithm:
    r"""Trains several models at once, each with its own method, on the same cohorts and the same batches.

    .. math:: w_j^{t+1} = A_j\big(w_j^t; S_t\big), \qquad j = 1, \dots, r

    for methods :math:`A_j` such as Delta-FL with several ``theta``; each client can then be served the model that
    suits it best (``by_level``, or :func:`evenhand.evaluation.serve_by_level` after the run).

    Args:
      methods: name -> method, all with the same model; they must have the same phases, draw cohorts by the same scheme
        (weights may differ), and treat stragglers alike.
      by_level: serve each client the model that is best on its validation examples, by accuracy or, without classes, by
        loss; of equally good ones, and at a client without such examples, the first.  False: the first method's.

    A run's parameters are a tuple, in the order of the methods.  ``"loss"`` and the model's metrics are those of the
    model that a client is served, and ``"accuracy (name)"`` is that of the method called ``name``.  Clients that took
    no part in the training choose on their training examples where they have none for validation.

    Raises:
      EvenhandError: the methods have no names, or cannot be combined; or one has personal models, of which
        ``by_level`` does not choose.

    Edge cases: each model is that of the method run alone, up to rounding; but a rejected upload is rejected for all,
    and attacks that measure a length, such as :func:`evenhand.attacks.random_model`, measure that of all models
    together.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80, valid_fraction=0.2)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> method = side_by_side({f"theta={c:g}": eh.algorithms.delta_fl(work, theta=c) for c in (1.0, 0.5)})
      >>> run = eh.simulate(method, data, rounds=10, cohort=4)
      >>> served = eh.evaluation.serve_by_level(run)
      >>> len(run.params), served.level.shape
      (2, (8,))

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, figure 1 and section 4.1.
    """
    by_level = truth_value("by_level", by_level)
    expect("methods", methods, Mapping, '{"fedavg": eh.algorithms.fedavg(work), ...}')
    members, names = list(methods.values()), list(methods)
    first = _check(members)

    def served(method: Algorithm, state: PyTree, own: PyTree) -> PyTree:
        return method.personal_params(state, own) if method.personal_params else method.global_params(state)

    def adapt(params: PyTree, data: ClientData, key: Key) -> PyTree:
        return _parts(
            lambda method, own: method.adapt(own, data, key) if method.adapt else own, members, params
        )

    is_personal = any(method.personal_params or method.adapt for method in members)
    if by_level and is_personal:
        raise EvenhandError(
            "side_by_side(by_level=True) got a method with personal models: give methods with a global model each, or "
            "leave by_level out."
        )

    sampling, weights = first.sampling, tuple(method.sampling.weight for method in members)
    if len(set(weights)) > 1:
        sampling = sampling._replace(weight=_weights_in_parts(weights))
    return first._replace(
        sampling=sampling,
        name=f"side_by_side({', '.join(names)})",
        model=_model_in_parts(first.model, names),
        init=lambda params, n: _parts(lambda method, own: method.init(own, n), members, params),
        phases=_parts(lambda *phases: _phase_in_parts(phases, names), *(m.phases for m in members)),
        global_params=lambda states: _parts(lambda method, own: method.global_params(own), members, states),
        init_client=lambda params: _parts(lambda method, own: method.init_client(own), members, params),
        personal_params=(lambda states, own: _parts(served, members, states, own))
        if any(method.personal_params for method in members)
        else None,
        adapt=adapt if any(method.adapt for method in members) else None,
        received=lambda messages: _parts(lambda method, own: method.received(own), members, messages),
        levels=tuple(Level(name, method.model) for name, method in methods.items()) if by_level else (),
    )


def _check(methods: Sequence[Algorithm]) -> Algorithm:
    if not methods:
        raise EvenhandError("side_by_side() got no method: give at least one, as name -> method.")
    for method in methods:
        expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    if any(method.privacy is not None for method in methods):
        raise EvenhandError(
            "side_by_side() got a method that guarantees privacy: together, the methods release more than it "
            "accounts for, and they share their keys: run each separately, with a different seed."
        )
    if any(method.pooled is not None for method in methods):
        raise EvenhandError(
            "side_by_side() got a method that trains on the examples of all clients together: give federated methods."
        )
    if any(method.model != methods[0].model for method in methods):
        raise EvenhandError(
            "side_by_side() got methods with different models: make them all with the same model."
        )
    if any(method.sampling.draw != methods[0].sampling.draw for method in methods):
        raise EvenhandError(
            "side_by_side() got methods that draw their cohorts by different schemes: give all of them the same one, "
            "e.g. sampling=eh.sampling.uniform(weighted=False)."
        )
    shapes = {(m.partial_work, *(p.fresh_cohort for p in m.phases)) for m in methods}
    rules = [phase.aggregator for method in methods for phase in method.phases]
    sums = all(isinstance(rule, Sum) and rule.passes == 1 and rule.unmasked.streams for rule in rules)
    if len(shapes) > 1 or not sums or any(method.observe for method in methods) or not _rest_alike(methods):
        raise EvenhandError(
            "side_by_side() got methods that cannot share their rounds: all must have the same phases, treat "
            "stragglers and rounds without uploads alike, aggregate by sums in one pass, and not adapt to the global "
            "loss."
        )
    return methods[0]


def _rest_alike(methods: Sequence[Algorithm]) -> bool:
    """Whether each phase steps without uploads in all methods or in none, or no aggregator that rests has a state."""
    params = jax.eval_shape(methods[0].model.init, root_key(0))

    def has_state(phase: Phase) -> bool:
        return bool(jax.tree.leaves(jax.eval_shape(lambda like: phase.aggregator.init(like, 1), params)))

    for phases in zip(*(method.phases for method in methods), strict=True):
        resting = [phase for phase in phases if not phase.steps_if_empty]
        # A server that rests keeps its state; that of its aggregator goes on with those of the others.
        if len(resting) < len(phases) and any(map(has_state, resting)):
            return False
    return True


# --- one method made of several: its states, messages and updates are tuples with an entry for each --------------

_Measure: TypeAlias = Callable[[PyTree, Array], Array]


# Cached, so that equal methods get the same function, and with it the same program.
@cache
def _weights_in_parts(weights: tuple[Callable[[Array], Array], ...]) -> Callable[[Array], Array]:
    """The weight of a client by each method, to which the server holds what clients report for that method."""
    return lambda size: jnp.stack([jnp.asarray(weight(size), jnp.float32) for weight in weights])


def _parts(function: Callable[..., Any], *parts: Iterable[Any]) -> tuple[Any, ...]:
    """``map`` over parts, as a tuple."""
    return tuple(function(*entries) for entries in zip(*parts, strict=True))


def _model_in_parts(model: Model, names: Sequence[str]) -> Model:
    """A copy of ``model`` for each name; metrics are the first copy's, and each copy's under its name."""

    def of_copy(j: int, measure: _Measure) -> _Measure:
        return lambda outputs, y: measure(outputs[j], y)

    measures = {"loss": model.losses, **model.metrics}
    named = {
        of_model(name, level): of_copy(j, measure)
        for j, level in enumerate(names)
        for name, measure in measures.items()
    }
    return Model(
        init=lambda key: tuple(model.init(key) for _ in names),
        apply=lambda params, x: tuple(model.apply(copy, x) for copy in params),
        losses=of_copy(0, model.losses),
        metrics={name: of_copy(0, measure) for name, measure in model.metrics.items()} | named,
    )


def _phase_in_parts(phases: Sequence[Phase], names: Sequence[str]) -> Phase:
    """One exchange that runs all ``phases``; what each records is recorded under its name."""

    def report(messages: PyTree, client_states: PyTree, data: ClientData) -> Report:
        reports = _parts(lambda phase, *both: phase.report(*both, data), phases, messages, client_states)
        # A loss that one phase does not need must not invalidate the report of the others.
        losses = [
            own.loss if phase.aggregator.needs_loss else jnp.zeros_like(own.loss)
            for phase, own in zip(phases, reports, strict=True)
        ]
        return Report(jnp.stack([own.weight for own in reports]), jnp.stack(losses))

    def work(messages: PyTree, client_states: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        # All share the key that the client would have in this round if each method ran alone.
        done = _parts(lambda phase, *both: phase.work(*both, data, key), phases, messages, client_states)
        return _parts(lambda pair: pair[0], done), _parts(lambda pair: pair[1], done)

    steps_if_empty = any(phase.steps_if_empty for phase in phases)

    def step(
        phase: Phase, state: PyTree, direction: PyTree, reported: Array, key: Key
    ) -> tuple[PyTree, Info]:
        stepped, info = phase.server(state, direction, reported, key)
        rests = steps_if_empty and not phase.steps_if_empty
        return tree.select(reported > 0, stepped, state) if rests else stepped, info

    def server(states: PyTree, directions: PyTree, reported: Array, key: Key) -> tuple[PyTree, Info]:
        done = _parts(
            lambda phase, own, way: step(phase, own, way, reported, key), phases, states, directions
        )
        infos = {
            of_model(metric, name): value
            for name, (_, info) in zip(names, done, strict=True)
            for metric, value in info.items()
        }
        return _parts(lambda pair: pair[0], done), infos

    return Phase(
        broadcast=lambda states, k: _parts(lambda phase, own: phase.broadcast(own, k), phases, states),
        report=report,
        work=work,
        aggregator=in_parts([phase.aggregator for phase in phases if isinstance(phase.aggregator, Sum)]),
        server=server,
        fresh_cohort=phases[0].fresh_cohort,
        effort=in_turn(*(phase.effort or step_per_row for phase in phases)),
        steps_if_empty=steps_if_empty,
    )
