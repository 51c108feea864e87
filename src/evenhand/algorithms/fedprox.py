"""FedProx: a proximal term, and partial work that counts."""

from __future__ import annotations

import optax

from evenhand import local
from evenhand.aggregators import mean
from evenhand.algorithms import _rounds
from evenhand.errors import EvenhandError
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Sampling

__all__ = ["fedprox"]


def fedprox(
    work: local.Work,
    *,
    mu: float,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = True,
) -> Algorithm:
    r"""FedProx: local work kept near the broadcast model by a proximal term; stragglers' partial work counts.

    .. math::
        h_k(w; w^t) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2, \qquad
        w \leftarrow w - \eta \big( \nabla F_k(w; b) + \mu (w - w^t) \big),

    aggregated as in :func:`evenhand.algorithms.fedavg` over the *whole* cohort, with weights that do not depend
    on how much work a client completed.  The anchor :math:`w^t` stays fixed during the round.

    Args:
      work: local work, as in ``fedavg``.
      mu: :math:`\mu \ge 0`; plain gradient steps of size :math:`\eta` need :math:`\eta \mu < 2` to be stable.
      keep_partial: aggregate stragglers' partial work.
      server_opt, aggregator, sampling: as in ``fedavg``.

    Raises:
      EvenhandError: ``mu`` negative or not finite.

    Edge cases: ``mu=0`` without stragglers is FedAvg, bit for bit; with stragglers it is FedAvg with partial
    work.  For a finite ``mu`` the fixed point is biased away from the minimiser of :math:`f`, less so as ``mu`` grows.

    Differs from the reference code, which for sparse (embedding) gradients loses the anchor after the first batch.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.01, epochs=5, batch_size=10)
      >>> method = fedprox(work, mu=1.0)
      >>> run = eh.simulate(method, data, rounds=2, seed=0, systems=eh.systems.stragglers(0.5))
      >>> run.per_round["reported"].tolist()
      [4.0, 4.0]

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, algorithm 2 and equation 2.
    """
    if not (mu >= 0.0 and mu < float("inf")):
        raise EvenhandError(f"fedprox(mu={mu}): the proximal weight must be a finite number >= 0.")
    phase = _rounds.training(
        work,
        server_opt=server_opt,
        aggregator=aggregator,
        sampling=sampling,
        correction=lambda message, data: local.proximal(mu, message.params),
    )
    return Algorithm(
        model=work.model,
        init=lambda params, clients: _rounds.server_init(server_opt, params),
        phases=(phase,),
        global_params=_rounds.global_params,
        sampling=sampling,
        partial_work=keep_partial,
        name=f"fedprox(mu={mu:g})",
    )
