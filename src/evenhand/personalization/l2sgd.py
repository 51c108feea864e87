"""L2SGD: personal models held near their own average."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms import fedavg
from evenhand.personalization._beside import non_negative
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Info, Key, Params, PyTree

__all__ = ["l2sgd"]


def l2sgd(work: local.Work, *, lam: float, exact: bool = True, aggregator: Aggregator = mean()) -> Algorithm:
    r"""L2SGD: mean-regularised personal models, in the form that Ditto's authors compare with.

    .. math::
        \min_{v_1, \dots, v_K} \sum_k F_k(v_k) + \frac{\lambda}{2} \|v_k - \bar v\|^2, \qquad
        \bar v = \frac1K \sum_k v_k

    A client that is drawn goes on from its own :math:`v_k` with :math:`v_k \leftarrow v_k - \eta \big( \nabla F_k(v_k;
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
    non_negative("l2sgd", "lam", lam)
    method = fedavg(work, aggregator=aggregator, sampling=uniform(weighted=False))
    (phase,) = method.phases

    def init(params: Params, clients: int) -> PyTree:
        return method.init(params, clients)._replace(extra=jnp.float32(clients))

    def train(message: PyTree, own: Params, data: ClientData, key: Key) -> tuple[Params, Params]:
        center = method.received(message)
        params, _ = work.solve(own, data, key, local.proximal(lam, center))
        return tree.subtract(params, own if exact else center), params

    def server(state: PyTree, direction: Params, reported: Array, key: Key) -> tuple[PyTree, Info]:
        share = reported.astype(jnp.float32) / state.extra
        return phase.server(state, tree.scale(share, direction), reported, key)

    return method._replace(
        init=init,
        phases=(phase._replace(work=train, server=server),),
        init_client=lambda params: params,
        personal_params=lambda server, own: own,
        name=f"l2sgd(lam={lam:g})",
    )
