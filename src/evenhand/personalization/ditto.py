"""Ditto: a personal model held near the global one, beside any global method."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.algorithms.beside import beside, check_method, non_negative
from evenhand.errors import EvenhandError, truth_value
from evenhand.streams import Purpose, stream
from evenhand.text import call_text
from evenhand.types import Algorithm, Array, ClientData, Key, Params, PyTree

__all__ = ["ditto"]


class _Own(NamedTuple):
    """What a client keeps: its model, and the optimiser that trains it."""

    params: Params
    optimiser: optax.OptState


class _Late(NamedTuple):
    """The same of a client whose model begins as the first one that it receives, and whether it has received any."""

    own: PyTree
    begun: Array


def ditto(
    method: Algorithm,
    work: local.Work,
    *,
    lam: float = 1.0,
    same_batches: bool = False,
    implicit: bool = False,
    origin: Literal["initial", "received"] = "initial",
) -> Algorithm:
    r"""Ditto: each client also trains a personal model, which a quadratic penalty keeps near the global model.

    .. math::
        \min_{v_k} h_k(v_k; w^*) = F_k(v_k) + \frac{\lambda}{2} \|v_k - w^*\|^2
        \quad \text{s.t.} \quad w^* \in \arg\min_w G\big(F_1(w), \dots, F_K(w)\big)

    In each round a client of the cohort works for the global method as if alone, and then, from the :math:`v_k` that
    it kept,

    .. math:: v_k \leftarrow v_k - \eta \big( \nabla F_k(v_k; b) + \lambda (v_k - w^t) \big)

    for each batch ``b``.  The anchor is the model :math:`w^t` that it *received*, the same for all steps.

    Args:
      method: the global method :math:`G`: any, with any aggregator.  Ditto changes no bit of it, whatever ``lam`` is.
      work: local work on :math:`v_k`, with its step size :math:`\eta`; its model is that of the method.
      lam: :math:`\lambda \ge 0`.  0 trains separate models; infinity serves every client the global one.
      same_batches: draw the personal batches with the key of the global ones, which makes them the same if the work is
        the same, as in the authors' code; False: independent batches.
      implicit: take each step implicitly in the penalty, :math:`v_k \leftarrow (v_k - \eta \nabla F_k + \eta \lambda
        w^t) / (1 + \eta \lambda)`, which is stable for every ``lam``; needs plain descent.
      origin: what :math:`v_k` is before its first round: the ``"initial"`` model :math:`w^0`, or the first :math:`w^t`
        ``"received"``, which spares a client that is drawn late the rounds that it has missed.

    Raises:
      EvenhandError: ``lam`` negative or NaN; different models; ``implicit`` without a plain step size; or another
        ``origin``.

    Edge cases: :math:`v_k` changes only in rounds in which the client is drawn.  A client never drawn is served the
    current global model, as in the authors' code for StackOverflow; their other code serves it :math:`w^0`, as
    :func:`evenhand.simulate` does with ``untrained="initial"``.  An explicit step needs
    :math:`\eta (L + \lambda) < 2` for curvature :math:`L`.  The personal models of malicious clients never reach the
    server.  What clients would do to the method's own model, such as :func:`evenhand.personalization.finetune`, is left
    out: put that around Ditto.  Personal models of the method itself, as in ``ditto(ditto(...))``, are trained on the
    same batches; nobody is served them.

    Differs from the paper: its algorithm 2 averages uniformly over clients drawn in proportion to their size:
    ``fedavg(work, sampling=eh.sampling.proportional(replace=False))``; the default of ``fedavg`` draws uniformly and
    weights by size.  Local iterations are those of ``work``; the authors' code drops the remainder of each epoch.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> robust = eh.algorithms.fedavg(work, aggregator=eh.aggregators.geometric_median())
      >>> run = eh.simulate(ditto(robust, work, lam=0.1), data, rounds=4, cohort=5)
      >>> run.personal_params(0)["kernel"].shape
      (64, 10)

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, algorithms 1, 2.
    """
    same_batches = truth_value("same_batches", same_batches)
    implicit = truth_value("implicit", implicit)
    check_method("ditto", method, work, keeps=True)
    non_negative("ditto", "lam", lam, infinite=True)
    if implicit and work.step_size is None:
        raise EvenhandError(
            "ditto(implicit=True) needs work with a plain step size, e.g. eh.local.sgd(model, 0.1, ...)."
        )
    if str(origin) not in ("initial", "received"):
        raise EvenhandError(f"ditto(origin={origin!r:.40}): give 'initial' or 'received'.")
    options = _options(origin, implicit, same_batches)
    name = call_text("ditto", f"{method.name or 'method'}, lam={lam:g}", options)
    if lam == math.inf:
        return _without_own_models(method)._replace(name=name)

    def pull(received: Params, data: ClientData) -> optax.GradientTransformation:
        size = work.step_in(data) if implicit else None
        return optax.chain(
            local.proximal(lam, received), optax.scale(1.0 if size is None else 1.0 / (1.0 + lam * size))
        )

    kept = work.kept

    def begin(params: Params) -> PyTree:
        return params if kept is None else _Own(params, kept.init(params))

    def train(own: PyTree, received: Params, data: ClientData, key: Key) -> PyTree:
        key = key if same_batches else stream(key, Purpose.PERSONAL)
        if kept is None:
            return work.solve(own, data, key, pull(received, data))[0]
        params, optimiser, *_ = kept.solve(own.params, own.optimiser, data, key, pull(received, data))
        return _Own(params, optimiser)

    def serve(own: PyTree) -> Params:
        return own if kept is None else own.params

    if origin == "initial":
        return beside(method, begin=begin, train=train, serve=serve, effort=work.effort, name=name)

    def begins_late(late: _Late, received: Params, data: ClientData, key: Key) -> _Late:
        own = tree.select(late.begun, late.own, begin(received))
        return _Late(train(own, received, data, key), jnp.bool_(True))

    return beside(
        method,
        begin=lambda params: _Late(begin(params), jnp.bool_(False)),
        train=begins_late,
        serve=lambda late: serve(late.own),
        effort=work.effort,
        name=name,
    )


def _options(origin: str, implicit: bool, same_batches: bool) -> dict[str, bool]:
    """The options that the method's name shows, each with whether it is not the usual one."""
    return {
        "origin='received'": origin == "received",
        "implicit=True": implicit,
        "same_batches=True": same_batches,
    }


def _without_own_models(method: Algorithm) -> Algorithm:
    """The method, with its global model for every client; refused, as beside it, where clients get no whole model."""
    *before, last = method.phases

    def work(message: PyTree, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        jax.eval_shape(method.received, message)  # raises while it is traced, and adds nothing to the program
        return last.work(message, state, data, key)

    return method._replace(phases=(*before, last._replace(work=work)), personal_params=None, adapt=None)
