"""FedTilt: fair to clients and to the classes within a client, and robust to its outliers, by three tilts."""

from __future__ import annotations

import math

import jax.numpy as jnp

from evenhand import local
from evenhand.aggregators import drift_tilted, mean
from evenhand.algorithms.beside import beside, check_same
from evenhand.algorithms.fedavg import fedavg
from evenhand.algorithms.fedprox import fedprox
from evenhand.errors import EvenhandError, real_number, truth_value, whole_number
from evenhand.risks import hierarchical, tilted
from evenhand.sampling import uniform
from evenhand.text import call_text
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Key, Params, Risk

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
    aggregator: Aggregator | None = None,
) -> Algorithm:
    r"""FedTilt: personal models near the global one, all trained on losses tilted over classes and over examples.

    .. math::
        \tilde R_n(\tau, \lambda; v) = \frac1\tau \log \sum_k \frac{|D_n^k|}{|D_n|} e^{\tau \tilde R_n^k(\lambda; v)},
        \quad \tilde R_n^k(\lambda; v) = \frac1\lambda \log \frac{1}{|D_n^k|} \sum_{z \in D_n^k} e^{\lambda l(z; v)}

    for the examples :math:`D_n^k` of client ``n`` with label ``k``.  On each batch ``b``, the same for both models,

    .. math::
        u \leftarrow u - \eta_1 \nabla \tilde R_b(u), \qquad
        v \leftarrow v - \eta_2 \big( \nabla \tilde R_b(v) + \mu (v - w) \big),

    where ``u`` starts from the broadcast ``w`` and ``v`` from where the client left it.  Only ``u`` is uploaded; the
    server steps towards the point of least tilted squared distance (:func:`evenhand.aggregators.drift_tilted`).

    Args:
      work: made by :func:`evenhand.local.sgd` without ``risk``, with step size :math:`\eta_1`; its loss is tilted here.
      classes: the number of classes, labelled from 0; None: found in each batch, which is slow for large batches.
      tilt_class: :math:`\tau`, finite or infinite: above 0 evens out a client's classes; far below 0 sacrifices one.
      tilt_sample: :math:`\lambda`: above 0 evens out the examples of a class, below 0 is robust to its outliers.
      tilt_server: ``q``, finite: above 0, clients that drifted far count more; below 0, less.
      prox_mu: :math:`\mu \ge 0`; infinite: all clients are served the global model.
      tied: one model per client, trained from ``w`` with the proximal term and uploaded; without tilts, FedProx.
      personal: local work of the personal models, or of the tied one, with step size :math:`\eta_2`; None: as ``work``.
      server_steps: the server's descent steps in a round, if it has a tilt.
      aggregator: in place of the server's, such as :func:`evenhand.aggregators.drift_tilted` with plain distances or
        from the mean, or a robust one; None: of ``tilt_server`` and ``server_steps``.

    Raises:
      EvenhandError: a tilt is NaN, ``prox_mu`` negative, or infinite while ``tied`` or with ``personal``, the loss of
        the work cannot be tilted, or both ``aggregator`` and a tilt or steps of the server.  When a run starts: the
        data have more than ``classes``.

    Edge cases: without tilts the global model is that of FedAvg with equally weighted clients, and the personal models
    are Ditto's; equal tilts of classes and examples are one tilt of all examples.  Classes absent from a batch do not
    count.  The tilted risk of a batch is a biased estimate of that of all examples; ``batch_size=None`` is exact.
    A simulation on data with more than ``classes`` is refused when it starts; in a deployment, the server rejects the
    uploads of clients that have labels outside of them.

    Differs from the paper only where it is silent: the server's step size; personal models start as the initial one,
    and a client never drawn is served the global one.  The paper's distance is called Euclidean and is squared in all
    of its formulas, as here.

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
    tied, server_steps = truth_value("tied", tied), whole_number("server_steps", server_steps, 1, 10**6)
    classes = None if classes is None else whole_number("classes", classes, 1, 10**6)
    if not real_number(prox_mu) >= 0.0:
        raise EvenhandError(
            f"fedtilt(prox_mu={prox_mu}): the proximal weight must be a number >= 0, or infinite."
        )
    local.check_work(work)
    own_work = work if personal is None else local.check_work(personal, "personal")
    if prox_mu == math.inf and (tied or personal is not None):
        ignored = "tied=True" if tied else "personal=..."
        raise EvenhandError(
            f"fedtilt({ignored}, prox_mu=inf): no client could leave the global model; give a finite prox_mu."
        )
    check_same("fedtilt() got work= and personal=", work.model, own_work.model)
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

    grouped = None if tilt_class == tilt_sample == 0 else classes
    rule, sampling = _at_server(aggregator, tilt_server, server_steps), uniform(weighted=False)
    method = fedavg(tilt(work), aggregator=rule, sampling=sampling)._replace(classes=grouped)
    name = _name((tilt_class, tilt_sample, tilt_server), prox_mu, aggregator, server_steps, tied)
    if prox_mu == math.inf:
        return method._replace(name=name)
    own = tilt(own_work)
    if tied:
        near = fedprox(own, mu=prox_mu, aggregator=rule, sampling=sampling, keep_partial=False)
        return near._replace(name=name, classes=grouped)

    def train(v: Params, received: Params, data: ClientData, key: Key) -> Params:
        # The key of the global model's work, so that both models see the same batches.
        return own.solve(v, data, key, local.proximal(prox_mu, received))[0]

    return beside(method, train=train, effort=own.effort, name=name)


def _name(
    tilts: tuple[float, float, float], prox_mu: float, aggregator: Aggregator | None, steps: int, tied: bool
) -> str:
    """The method's name, with the options that are not the usual ones."""
    at_class, at_sample, at_server = (f"{tilt:g}" for tilt in tilts)
    if aggregator is not None:
        at_server = "the aggregator's"
    shown = f"tilts {at_class}, {at_sample}, {at_server}; prox_mu={prox_mu:g}"
    return call_text("fedtilt", shown, {f"server_steps={steps}": steps != 1, "tied=True": tied})


def _at_server(aggregator: Aggregator | None, tilt: float, steps: int) -> Aggregator:
    """What reduces the uploads: the given one, or that of the tilt; refused if both are given."""
    if aggregator is None:
        return mean() if real_number(tilt) == 0 else drift_tilted(tilt, steps=steps)
    if real_number(tilt) != 0 or steps != 1:
        raise EvenhandError(
            f"fedtilt(aggregator=..., tilt_server={tilt}, server_steps={steps}): give the aggregator the tilt and the "
            "steps, as in eh.aggregators.drift_tilted(1.0, steps=10)."
        )
    return aggregator
