"""Federated averaging, with any optax optimiser on either side."""

from __future__ import annotations

from collections.abc import Callable

import optax

from evenhand.aggregators import mean
from evenhand.algorithms import averaging
from evenhand.local import Work
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Params, PyTree, Sampling

__all__ = ["fedavg", "variant"]


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
    return variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name="fedavg",
        private=True,
        keeps=True,
    )


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
    )
    return Algorithm(
        model=work.model,
        init=lambda params, clients: averaging.server_init(server_opt, params, extra(params, clients)),
        phases=(phase,),
        global_params=averaging.global_params,
        sampling=sampling,
        init_client=averaging.kept_state(work),
        partial_work=keep_partial,
        privacy=work.privacy,
        name=name,
    )
