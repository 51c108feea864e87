"""Federated averaging, with any optax optimiser on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import optax

from evenhand import tree
from evenhand._paths import Named, division
from evenhand.aggregators import mean
from evenhand.algorithms import averaging
from evenhand.algorithms.averaging import Message, ServerState
from evenhand.errors import EvenhandError, truth_value
from evenhand.local import Work
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Info, Key, Params, PyTree, Sampling

__all__ = ["fedavg", "staying", "variant"]


def fedavg(
    work: Work,
    *,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedAvg: each client of the cohort trains from the global model, and the server averages their updates.

    .. math::
        \min_w f(w) = \sum_k p_k F_k(w), \qquad
        w^{t+1} = w^t + \frac{\sum_{k \in S_t} \omega_k (w_k - w^t)}{\sum_{k \in S_t} \omega_k},

    where :math:`w_k` is :math:`w^t` after local work on :math:`F_k`, the mean loss over client ``k``'s examples.

    Args:
      work: what clients do and the model that they train, e.g. :func:`evenhand.local.sgd`.
      server_opt: the server's optimiser on the pseudo-gradient :math:`-\Delta`; ``sgd(1.0)`` is plain averaging;
        :mod:`evenhand.server_opt` has others, such as ``fedadam(0.1)``.
      aggregator: how uploads are combined, such as ``geometric_median()``.
      sampling: how cohorts are drawn and the weights :math:`\omega_k` that go with it: ``uniform()`` (the default,
        :math:`\omega_k = n_k`) or ``proportional()`` (:math:`\omega_k = 1`).
      keep_partial: aggregate stragglers' partial work; False: drop stragglers, as FedAvg does.

    Raises:
      EvenhandError: an argument of the wrong kind.

    Edge cases: a round in which every client is dropped leaves the model unchanged.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
      >>> method = fedavg(work)
      >>> run = eh.simulate(method, data, rounds=3, cohort=2, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS
    2017, algorithm 1; the server optimiser: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021.
    """
    method = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name="fedavg",
        private=True,
        keeps=True,
        statistics_stay=True,
    )
    return staying(method)


def variant(
    work: Work,
    server_opt: optax.GradientTransformation,
    aggregator: Aggregator,
    sampling: Sampling,
    *,
    keep_partial: bool,
    name: str = "",
    correction: averaging.Correction = lambda message, data: optax.identity(),
    attach: Callable[[PyTree], PyTree] = lambda extra: (),
    extra: Callable[[Params, int], PyTree] = lambda params, clients: (),
    private: bool = False,
    keeps: bool = False,
    statistics_stay: bool = False,
) -> Algorithm:
    """FedAvg or a variant of it, whose one phase is :func:`~evenhand.algorithms.averaging.training`.

    ``extra`` is ``(params, clients) -> extra``, what the server keeps beside the model at first; the other arguments
    are those of ``training`` and of ``fedavg``.
    """
    phase = averaging.training(
        work,
        server_opt=server_opt,
        aggregator=aggregator,
        sampling=sampling,
        correction=correction,
        attach=attach,
        private=private,
        keeps=keeps,
        statistics_stay=statistics_stay,
    )
    return Algorithm(
        model=work.model,
        init=lambda params, clients: averaging.server_init(server_opt, params, extra(params, clients)),
        phases=(phase,),
        global_params=averaging.global_params,
        sampling=sampling,
        init_client=averaging.kept_state(work),
        partial_work=truth_value("keep_partial", keep_partial),
        privacy=work.privacy,
        name=name,
    )


# --- running statistics that stay with their client ----------------------------------------------------------------


class _Server(NamedTuple):
    """The state of the method on what is sent, and the running statistics that clients begin with."""

    inner: ServerState
    fresh: Named


class _Own(NamedTuple):
    """What a client keeps for the method, and its running statistics."""

    inner: PyTree
    statistics: Named


def staying(method: Algorithm) -> Algorithm:
    """A variant of FedAvg whose clients keep the running statistics, where the model says that they stay.

    Of any other model the method is returned as it is.  The method sends nothing like the parameters but the model
    itself.  A client that has not trained yet is served the statistics that the model began with.
    """
    statistics = method.model.statistics
    if statistics is None or not statistics.stay:
        return method
    parts = division(method.model, statistics.paths)
    (phase,) = method.phases

    def init(params: Params, clients: int) -> _Server:
        shared = parts.part(params, personal=False)
        return _Server(method.init(shared, clients), parts.part(params, personal=True))

    def completed(message: Message, own: _Own) -> Message:
        return message._replace(params=parts.whole(message.params, own.statistics))

    def work(message: Message, own: _Own, data: ClientData, key: Key) -> tuple[Named, _Own]:
        whole = completed(message, own)
        delta, inner = phase.work(whole, own.inner, data, key)
        after = parts.part(tree.add(whole.params, delta), personal=True)
        return parts.part(delta, personal=False), _Own(inner, after)

    def server(state: _Server, direction: Named, reported: Array, key: Key) -> tuple[_Server, Info]:
        inner, info = phase.server(state.inner, direction, reported, key)
        return state._replace(inner=inner), info

    def served(state: _Server, statistics: Named) -> Params:
        return parts.whole(method.global_params(state.inner), statistics)

    own_phase = phase._replace(
        broadcast=lambda state, client: phase.broadcast(state.inner, client),
        report=lambda message, own, data: phase.report(completed(message, own), own.inner, data),
        work=work,
        server=server,
    )
    return method._replace(
        init=init,
        phases=(own_phase,),
        global_params=lambda state: served(state, state.fresh),
        init_client=lambda params: _Own(method.init_client(params), parts.part(params, personal=True)),
        personal_params=lambda state, own: served(state, own.statistics),
        received=_refuse,
    )


def _refuse(message: PyTree) -> Params:
    raise EvenhandError(
        "The running statistics of this model stay with their clients, so that no method that needs the whole model, "
        'such as ditto(), can be put around it: put finetune() around it, or make the model with state="average".'
    )
