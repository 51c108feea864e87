"""L2GD and L2SGD: personal models held near their own average, by the toss of a coin or in each local step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms import fedavg
from evenhand.algorithms.averaging import Message
from evenhand.algorithms.beside import non_negative
from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Info, Key, Model, Params, PyTree

__all__ = ["l2gd", "l2sgd"]


class _Coin(NamedTuple):
    """Whether the next step goes towards the average; the number of clients."""

    heads: Array
    clients: Array


def l2gd(model: Model, *, lam: float, p: float, step_size: float) -> Algorithm:
    r"""L2GD: penalises the spread of personal models; each step is at random a local one, or one towards the average.

    .. math::
        \min_{x_1, \dots, x_K} \frac1K \sum_k F_k(x_k) + \frac{\lambda}{2 K} \sum_k \|x_k - \bar x\|^2

    In each round all clients see the same :math:`\xi \sim \mathrm{Bernoulli}(p)`:

    .. math::
        \xi = 0: \; x_k \leftarrow x_k - \frac{\alpha}{K (1 - p)} \nabla F_k(x_k), \qquad
        \xi = 1: \; x_k \leftarrow x_k - \frac{\alpha \lambda}{K p} (x_k - \bar x).

    Args:
      model: what is trained.
      lam: :math:`\lambda \ge 0`.
      p: the chance of a step towards the average, in (0, 1).
      step_size: :math:`\alpha > 0`; steps towards the average are stable if :math:`\alpha \lambda < 2 K p`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: it is defined for full participation; with a smaller cohort only the clients drawn take a step.  Clients
    need to communicate only where a 1 follows a 0, in a share ``p (1 - p)`` of the rounds, ``"communicated"`` in the
    history; the simulation sends every change, so that its traffic is larger.

    Differs from the paper in the first round, which is always one of gradients: the models are equal before it.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> run = eh.simulate(l2gd(model, lam=1.0, p=0.3, step_size=5.0), data, rounds=20)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Hanzely and Richtarik, *Federated Learning of a Mixture of Global and Local Models*, 2020, algorithm 1.
    """
    non_negative("l2gd", "lam", lam)
    if not 0.0 < real_number(p) < 1.0 or not 0.0 < real_number(step_size) < float("inf"):
        raise EvenhandError(
            f"l2gd(p={p}, step_size={step_size}): give a chance between 0 and 1, and a finite step above 0."
        )
    nothing = local.Work(model, lambda params, data, key, correction: (params, correction.init(params)))
    method = fedavg(nothing, sampling=uniform(weighted=False))
    (phase,) = method.phases

    def broadcast(state: PyTree, client: Array) -> Message:
        return Message(method.global_params(state), state.extra)

    def train(message: Message, own: Params, data: ClientData, key: Key) -> tuple[Params, Params]:
        coin: _Coin = message.extra
        size = step_size / coin.clients
        slope = tree.scale(size / (1.0 - p), local.full_gradient(model, own, data))
        spread = tree.scale(size * lam / p, tree.subtract(own, message.params))
        change = tree.scale(-1.0, tree.select(coin.heads, spread, slope))
        return change, tree.add(own, change)

    def server(state: PyTree, direction: Params, reported: Array, key: Key) -> tuple[PyTree, Info]:
        before: _Coin = state.extra
        share = reported.astype(jnp.float32) / before.clients
        state, info = phase.server(state, tree.scale(share, direction), reported, key)
        heads = jax.random.bernoulli(key, p)
        communicated = (heads & ~before.heads).astype(jnp.float32)
        return state._replace(extra=before._replace(heads=heads)), {**info, "communicated": communicated}

    return method._replace(
        init=lambda params, n: method.init(params, n)._replace(extra=_Coin(jnp.bool_(False), jnp.float32(n))),
        phases=(phase._replace(broadcast=broadcast, work=train, server=server),),
        init_client=lambda params: params,
        personal_params=lambda server, own: own,
        name=f"l2gd(lam={lam:g}, p={p:g})",
    )


def l2sgd(work: local.Work, *, lam: float, exact: bool = True, aggregator: Aggregator = mean()) -> Algorithm:
    r"""L2SGD: mean-regularised personal models, in the form that Ditto's authors use as a baseline.

    .. math::
        \min_{v_1, \dots, v_K} \sum_k F_k(v_k) + \frac{\lambda}{2} \|v_k - \bar v\|^2, \qquad
        \bar v = \frac1K \sum_k v_k

    A client that is drawn continues from its :math:`v_k` with :math:`v_k \leftarrow v_k - \eta \big( \nabla F_k(v_k;
    b) + \lambda (v_k - \bar v) \big)`, at a fixed :math:`\bar v`, and uploads the change :math:`v_k^+ - v_k`:

    .. math:: \bar v \leftarrow \bar v + \frac{|S|}{K} \, \mathrm{mean}_{k \in S} (v_k^+ - v_k).

    Args:
      work: local work on :math:`v_k`, with its step size :math:`\eta`.
      lam: :math:`\lambda \ge 0`.
      exact: keep :math:`\bar v` the mean of all clients' models; False: clients upload :math:`v_k^+ - \bar v` instead,
        as in the authors' code, with which :math:`\bar v` is not the mean.
      aggregator: in place of the mean over the cohort.

    Raises:
      EvenhandError: ``lam`` negative or not finite.

    Edge cases: ``lam=0`` is :func:`evenhand.personalization.local_only`.  The global model is :math:`\bar v`,
    which a client never drawn is served, though its own :math:`v_k` counts in the mean.

    Differs from the original L2GD, which flips a coin between local steps and averaging:
    :func:`evenhand.personalization.l2gd`.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(l2sgd(work, lam=0.5), data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, appendix C.2; the
    objective: Hanzely and Richtarik, *Federated Learning of a Mixture of Global and Local Models*, 2020.
    """
    exact = truth_value("exact", exact)
    non_negative("l2sgd", "lam", lam)
    local.check_work(work)
    method = fedavg(work, aggregator=aggregator, sampling=uniform(weighted=False))
    (phase,) = method.phases

    def train(message: PyTree, own: Params, data: ClientData, key: Key) -> tuple[Params, Params]:
        center = method.received(message)
        params, _ = work.solve(own, data, key, local.proximal(lam, center))
        return tree.subtract(params, own if exact else center), params

    def server(state: PyTree, direction: Params, reported: Array, key: Key) -> tuple[PyTree, Info]:
        share = reported.astype(jnp.float32) / state.extra
        return phase.server(state, tree.scale(share, direction), reported, key)

    return method._replace(
        init=lambda params, clients: method.init(params, clients)._replace(extra=jnp.float32(clients)),
        phases=(phase._replace(work=train, server=server),),
        init_client=lambda params: params,
        personal_params=lambda server, own: own,
        name=f"l2sgd(lam={lam:g}{'' if exact else ', exact=False'})",
    )
