"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.averaging import Message, ServerState, server_step
from evenhand.algorithms.fedavg import variant
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Info, Key, Params, Sampling

__all__ = ["scaffold"]


class _Control(NamedTuple):
    """The server's control variate ``c`` and the number of clients."""

    variate: Params
    clients: Array


class _Own(NamedTuple):
    """What a client keeps where its work keeps the optimiser: that and its control variate."""

    variate: Params
    optimiser: optax.OptState


class _Change(NamedTuple):
    """What a client uploads: the changes of its model and of its control variate."""

    params: Params
    variate: Params


def scaffold(
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(weighted=False),
    keep_partial: bool = False,
) -> Algorithm:
    r"""SCAFFOLD: control variates correct local gradients for client drift.

    With control variates :math:`c_k` at the clients and :math:`c` at the server, all zero at first:

    .. math::
        w &\leftarrow w - \eta \big( \nabla F_k(w; b) - c_k + c \big) \\
        c_k^+ &= \text{mean of } \nabla F_k(w; b) \text{ over the local steps}
               = c_k - c + \tfrac{1}{S \eta} (w^t - w_k) \\
        c &\leftarrow c + \tfrac{|S_t|}{N} \, \mathrm{mean}_{k \in S_t} (c_k^+ - c_k),

    the second form of :math:`c_k^+` being the paper's option II for ``S`` plain gradient steps of size :math:`\eta`.

    Args:
      work: local work, as in ``fedavg``.
      aggregator: reduces the pair (change of model, change of control variate) as one vector, so that a robust
        aggregator that discards a client's model discards its control variate too.
      sampling: uniform with equal weights, as in the paper.
      keep_partial: aggregate stragglers' partial work.
      server_opt: as in ``fedavg``.

    Raises:
      EvenhandError: an argument of the wrong kind.

    Edge cases: in the first round, and for a single client with full batches, this is FedAvg.  Each client keeps one
    vector of the model's size.

    Differs from the paper: option II is computed from the gradients themselves, which is the same for plain
    gradient steps and meaningful for every other optimiser.  Traffic is twice that of FedAvg.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
      >>> method = scaffold(work)
      >>> run = eh.simulate(method, data, rounds=10, cohort=2, seed=0)
      >>> bool(run.per_round["control_norm"][-1] > 0)
      True

    Source: Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML 2020,
    algorithm 1.
    """

    def correction(message: Message, variate: Params) -> optax.GradientTransformation:
        return optax.chain(local.mean_gradient(), local.shift(tree.subtract(message.extra, variate)))

    def change(message: Message, variate: Params, params: Params, gradient: Params) -> _Change:
        return _Change(tree.subtract(params, message.params), tree.subtract(gradient, variate))

    def train(message: Message, variate: Params, data: ClientData, key: Key) -> tuple[_Change, Params]:
        added = correction(message, variate)
        params, (gradients, _) = work.solve(message.params, data, key, added)
        return change(message, variate, params, gradients.mean), gradients.mean

    def continues(message: Message, own: _Own, data: ClientData, key: Key) -> tuple[_Change, _Own]:
        assert work.kept is not None
        added = correction(message, own.variate)
        params, state, (gradients, _) = work.kept.solve(message.params, own.optimiser, data, key, added)
        return change(message, own.variate, params, gradients.mean), _Own(gradients.mean, state)

    def server(state: ServerState, direction: _Change, reported: Array, key: Key) -> tuple[ServerState, Info]:
        averages = local.spared(server_opt, work.model.statistics, sign=-1.0)
        state, info = server_step(averages, state, direction.params)
        share = reported.astype(jnp.float32) / state.extra.clients
        variate = tree.add(state.extra.variate, tree.scale(share, direction.variate))
        extra = state.extra._replace(variate=variate)
        return state._replace(extra=extra), {**info, "control_norm": tree.norm(variate)}

    base = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name="scaffold",
        attach=lambda control: control.variate,
        extra=lambda params, clients: _Control(tree.zeros_like(params), jnp.float32(clients)),
        keeps=True,
    )
    phase = base.phases[0]._replace(work=train, server=server)
    if work.kept is None:
        return base._replace(phases=(phase,), init_client=tree.zeros_like)
    return base._replace(
        phases=(phase._replace(work=continues),),
        init_client=lambda params: _Own(tree.zeros_like(params), base.init_client(params)),
    )
