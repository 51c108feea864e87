"""Several methods in one federation: one cohort, one visit to each client, one model per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenhand.algorithms._in_parts import each_part, model_in_parts, phase_in_parts
from evenhand.errors import EvenhandError, expect
from evenhand.types import Algorithm, ClientData, Key, PyTree, Sum

__all__ = ["side_by_side"]


def side_by_side(methods: Mapping[str, Algorithm]) -> Algorithm:
    r"""Trains several models at once, each by a method of its own, on the same cohorts and the same batches.

    .. math:: w_j^{t+1} = A_j\big(w_j^t; S_t\big), \qquad j = 1, \dots, r

    for methods :math:`A_j` such as Delta-FL with several ``theta``, of whose models every client then takes the one
    that suits it (:func:`evenhand.evaluation.serve_by_level`).

    Args:
      methods: name -> method, of one model; they must have the same phases, draw their cohorts by the same scheme,
        however they weigh them, and treat stragglers alike.

    A run's parameters are a tuple, in the order of the methods.  ``"loss"`` and the model's metrics are those of the
    first method, and ``"accuracy (name)"`` is that of the method of this name.

    Raises:
      EvenhandError: methods that cannot go together.

    Edge cases: each method's model is that of a run alone, up to rounding, unless an upload is rejected: then for all.

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
    each, names = list(methods.values()), list(methods)
    first = _check(each)

    def personal_params(states: PyTree, owns: PyTree) -> PyTree:
        return each_part(
            lambda method, state, own: (
                method.global_params(state)
                if method.personal_params is None
                else method.personal_params(state, own)
            ),
            each,
            states,
            owns,
        )

    def adapt(params: PyTree, data: ClientData, key: Key) -> PyTree:
        return each_part(
            lambda method, one: one if method.adapt is None else method.adapt(one, data, key), each, params
        )

    return first._replace(
        name=f"side_by_side({', '.join(names)})",
        model=model_in_parts(first.model, names),
        init=lambda params, clients: each_part(lambda method, one: method.init(one, clients), each, params),
        phases=each_part(lambda *phases: phase_in_parts(phases, names), *(method.phases for method in each)),
        global_params=lambda states: each_part(
            lambda method, state: method.global_params(state), each, states
        ),
        init_client=lambda params: each_part(lambda method, one: method.init_client(one), each, params),
        personal_params=personal_params if any(method.personal_params for method in each) else None,
        adapt=adapt if any(method.adapt for method in each) else None,
        received=lambda messages: each_part(lambda method, one: method.received(one), each, messages),
    )


def _check(each: Sequence[Algorithm]) -> Algorithm:
    if not each:
        raise EvenhandError("side_by_side() got no method: give at least one, by its name.")
    for method in each:
        expect("method", method, Algorithm, "eh.algorithms.fedavg(work)")
    if any(method.model != each[0].model for method in each):
        raise EvenhandError(
            "side_by_side() got methods of different models: make them all with the same one."
        )
    if any(method.sampling.draw != each[0].sampling.draw for method in each):
        raise EvenhandError(
            "side_by_side() got methods that draw their cohorts by different schemes: give all of them the same one, "
            "e.g. sampling=eh.sampling.uniform(weighted=False)."
        )
    shapes = {(m.partial_work, *((p.fresh_cohort, p.steps_if_empty) for p in m.phases)) for m in each}
    sums = all(isinstance(p.aggregator, Sum) and p.aggregator.passes == 1 for m in each for p in m.phases)
    if len(shapes) > 1 or not sums or any(method.observe for method in each):
        raise EvenhandError(
            "side_by_side() got methods that cannot share their rounds: they need the same phases, the same "
            "treatment of stragglers, aggregators that are sums in one pass, and none may watch its global loss."
        )
    return each[0]
