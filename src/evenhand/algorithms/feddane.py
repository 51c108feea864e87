"""FedDane: two exchanges a round, the first of which collects gradients."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.aggregators import mean
from evenhand.algorithms.averaging import Message, ServerState
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, real_number, truth_value
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Effort, Info, Key, Params, Sampling

__all__ = ["feddane"]


def feddane(
    work: local.Work,
    *,
    mu: float,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = True,
    fresh_cohort: bool = True,
) -> Algorithm:
    r"""FedDane: local gradients are corrected towards a global gradient collected beforehand.

    In each round, with cohorts :math:`S_t` and :math:`S'_t` and :math:`\nabla F_k` over all examples of client ``k``:

    .. math::
        g^t &= \textstyle\sum_{k \in S_t} \omega_k \nabla F_k(w^t) \big/ \sum_{k \in S_t} \omega_k \\
        w &\leftarrow w - \eta \big( \nabla F_k(w; b) + g^t - \nabla F_k(w^t) + \mu (w - w^t) \big),
            \qquad k \in S'_t.

    Args:
      work: local work, as in ``fedavg``.
      mu: the proximal weight :math:`\mu \ge 0`.
      fresh_cohort: draw :math:`S'_t` independently of :math:`S_t`; False: keep the same clients, as in the
        reference code.
      aggregator: reduces the gradients of the first exchange and the updates of the second.
      keep_partial: aggregate stragglers' partial work; False: drop stragglers from both exchanges.
      server_opt, sampling: as in ``fedavg``.

    Raises:
      EvenhandError: ``mu`` negative or not finite.

    Edge cases: for a single client, for clients with the same data, and in a round whose first exchange no client
    answers, the correction is 0 and this is FedProx.  On heterogeneous clients it can diverge, as its authors report.

    Does not differ from the paper.  Clients receive three times and send twice as much as in FedProx: both exchanges
    begin with the model, also where they have the same cohort.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=0.0, beta=0.0, clients=4, seed=0, iid=True, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.01, epochs=1, batch_size=10)
      >>> method = feddane(work, mu=0.001)
      >>> run = eh.simulate(method, data, rounds=2, seed=0)
      >>> sorted(run.per_round)
      ['gradient_norm', 'rejected', 'reported', 'update_norm']

    Source: Li et al., *FedDANE: A Federated Newton-Type Method*, Asilomar 2019, algorithm 2; compared with FedProx in
    Li et al., MLSys 2020, appendix B.
    """
    fresh_cohort = truth_value("fresh_cohort", fresh_cohort)
    if not 0.0 <= real_number(mu) < float("inf"):
        raise EvenhandError(f"feddane(mu={mu}): the proximal weight must be a finite number >= 0.")

    def correction(message: Message, data: ClientData) -> optax.GradientTransformation:
        gradient, collected = message.extra
        client_gradient = local.full_gradient(work.model, message.params, data)
        towards = local.shift(tree.scale(collected, tree.subtract(gradient, client_gradient)))
        return optax.chain(towards, local.proximal(mu, message.params))

    base = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name=f"feddane(mu={mu:g})",
        correction=correction,
        attach=lambda extra: extra,
        extra=lambda params, clients: (tree.zeros_like(params), jnp.float32(0.0)),
        keeps=True,
    )
    (train,) = base.phases

    def keep(state: ServerState, direction: Params, reported: Array, key: Key) -> tuple[ServerState, Info]:
        collected = (reported > 0).astype(jnp.float32)
        return state._replace(extra=(direction, collected)), {"gradient_norm": tree.norm(direction)}

    # The first exchange: full gradients at the broadcast model.
    collect = train._replace(
        broadcast=lambda state, client: Message(state.params, ()),
        work=lambda message, kept, data, key: (local.full_gradient(work.model, message.params, data), kept),
        server=keep,
        effort=local.every_row,
        steps_if_empty=True,
    )
    # The correction takes another gradient, over all examples, which the work's steps do not count.
    effort = local.in_turn(work.effort, lambda data: Effort(jnp.int32(0), data.size))
    return base._replace(phases=(collect, train._replace(fresh_cohort=fresh_cohort, effort=effort)))
