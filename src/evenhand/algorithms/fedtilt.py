"""FedTilt: fair to clients, to the classes within a client, and deaf to its outliers, by three tilts."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand import local, tree
from evenhand.aggregators import drift_tilted, mean
from evenhand.algorithms._checks import check_work
from evenhand.algorithms.fedavg import fedavg
from evenhand.errors import EvenhandError, whole_number
from evenhand.risks import hierarchical, tilted
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Array, ClientData, Key, Params, PyTree, Risk

__all__ = ["fedtilt"]


def fedtilt(
    work: local.Work,
    *,
    classes: int | None = None,
    tilt_class: float = 0.0,
    tilt_sample: float = 0.0,
    tilt_server: float = 0.0,
    prox_mu: float = 0.01,
    tied: bool = False,
    personal: local.Work | None = None,
    server_steps: int = 1,
) -> Algorithm:
    r"""FedTilt: a personal model near the global one, both trained on a loss tilted over classes and over rows.

    .. math::
        \tilde R_n(\tau, \lambda; v) = \frac1\tau \log \sum_k \frac{|D_n^k|}{|D_n|} e^{\tau \tilde R_n^k(\lambda; v)},
        \quad \tilde R_n^k(\lambda; v) = \frac1\lambda \log \frac{1}{|D_n^k|} \sum_{z \in D_n^k} e^{\lambda l(z; v)}

    for the rows :math:`D_n^k` of client ``n`` that have label ``k``.  On each batch ``b``, the same for both models,

    .. math::
        u \leftarrow u - \eta_1 \nabla \tilde R_b(u), \qquad
        v \leftarrow v - \eta_2 \big( \nabla \tilde R_b(v) + \mu (v - w) \big),

    ``u`` from the broadcast ``w``, ``v`` from where the client left it.  Only ``u`` is sent; the server steps towards
    the point of least tilted squared distance to those (:func:`evenhand.aggregators.drift_tilted`).

    Args:
      work: local work on :func:`evenhand.local.sgd`'s plain loss, with the step :math:`\eta_1`; it is tilted here.
      classes: how many labels there are, from 0; None: told apart in each batch, more work where batches are large.
      tilt_class: :math:`\tau`, any real or infinite: above 0 evens out a client's classes; far below 0 gives one up.
      tilt_sample: :math:`\lambda`: above 0 evens out the rows of a class, below 0 ignores its outliers.
      tilt_server: ``q``, finite: above 0 clients that drifted far count for more, below 0 for less.
      prox_mu: :math:`\mu \ge 0`; infinite: everybody is served the global model.
      tied: one model per client: trained from ``w`` with the proximal term, and sent.  Without tilts this is FedProx.
      personal: local work of the personal models, with the step :math:`\eta_2`, also if ``tied``; None: ``work``.
      server_steps: with a ``tilt_server``: 1, or how many descending steps.

    Raises:
      EvenhandError: a tilt is NaN, ``prox_mu`` negative, or infinite while ``tied``, or work whose loss
        cannot be tilted.

    Edge cases: without tilts the global model is that of FedAvg over clients that count alike, and the personal ones
    are those of Ditto; equal tilts of classes and samples are one tilt of all rows.  Classes absent from a batch do
    not count.  The tilt of a batch is a biased estimate of that of all rows; ``batch_size=None`` is exact.

    Differs from the paper where that is silent: the server's step; and a personal model begins as the initial one.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=6)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> method = fedtilt(eh.local.sgd(model, 0.1, epochs=1, batch_size=10), tilt_class=2.0)
      >>> run = eh.simulate(method, data, rounds=3, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    equations 8 to 11 and algorithm 1.
    """
    _check(classes, prox_mu, tied)
    check_work(work)
    personal = work if personal is None else check_work(personal, "personal")
    if personal.model != work.model:
        raise EvenhandError(
            "fedtilt() got personal= of another model than the work's: make both with the same one."
        )
    outer, inner = tilted(tilt_class), tilted(tilt_sample)

    def two_level(y: Array) -> Risk:
        if classes is not None:
            return hierarchical(outer, inner, y, classes)
        first_alike = jnp.argmax(y[:, None] == y[None], axis=1)
        return hierarchical(outer, inner, first_alike, y.shape[0])

    def tilt(work: local.Work) -> local.Work:
        if tilt_class == tilt_sample == 0:
            return work
        if work.of_risk is None:
            raise EvenhandError(
                "fedtilt() got work whose loss cannot be tilted: make it with eh.local.sgd(model, ...), without risk=."
            )
        return work.of_risk(two_level)

    method = fedavg(
        tilt(work),
        aggregator=mean() if tilt_server == 0 else drift_tilted(tilt_server, steps=server_steps),
        sampling=uniform(weighted=False),
    )._replace(name=f"fedtilt(tilts {tilt_class:g}, {tilt_sample:g}, {tilt_server:g}; prox_mu={prox_mu:g})")
    if prox_mu == math.inf:
        return method
    solve = tilt(personal).solve
    return _tied(method, solve, prox_mu) if tied else _personal(method, solve, prox_mu)


def _personal(method: Algorithm, solver: local.Solver, mu: float) -> Algorithm:
    (phase,) = method.phases

    def train(message: PyTree, own: Params, data: ClientData, key: Key) -> tuple[Params, Params]:
        delta, _ = phase.work(message, (), data, key)
        params, _ = solver(own, data, key, local.proximal(mu, message.params))
        return delta, params

    return method._replace(
        phases=(phase._replace(work=train),),
        init_client=lambda params: params,
        personal_params=lambda server, own: own,
    )


def _tied(method: Algorithm, solver: local.Solver, mu: float) -> Algorithm:
    (phase,) = method.phases

    def train(message: PyTree, own: PyTree, data: ClientData, key: Key) -> tuple[Params, PyTree]:
        params, _ = solver(message.params, data, key, local.proximal(mu, message.params))
        return tree.subtract(params, message.params), own

    return method._replace(phases=(phase._replace(work=train),))


def _check(classes: int | None, prox_mu: float, tied: bool) -> None:
    whole_number("classes", 1 if classes is None else classes, 1, 10**6)
    if not prox_mu >= 0.0:
        raise EvenhandError(
            f"fedtilt(prox_mu={prox_mu}): the proximal weight must be a number >= 0, or infinite."
        )
    if tied and prox_mu == math.inf:
        raise EvenhandError(
            "fedtilt(tied=True, prox_mu=inf): no client could leave the global model; give a finite prox_mu."
        )
