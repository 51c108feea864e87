"""FedMGDA+: a direction that is good for every client of the cohort."""

from __future__ import annotations

import optax

from evenhand.aggregators import min_norm
from evenhand.algorithms.fedavg import staying, variant
from evenhand.local import Work
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Sampling

__all__ = ["fedmgda"]


def fedmgda(
    work: Work,
    *,
    epsilon: float = 0.1,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedMGDA+: the shortest combination of the clients' normalised updates, with nearly equal weights.

    .. math::
        w^{t+1} = w^t + \eta \sum_k \alpha_k^* \frac{\Delta_k}{\|\Delta_k\|}, \qquad
        \alpha^* = \arg\min_{\alpha \in \Delta,\ |\alpha_k - 1/m| \le \epsilon}
        \Big\| \sum_k \alpha_k \frac{\Delta_k}{\|\Delta_k\|} \Big\|^2

    Args:
      work: local work, as in ``fedavg``.
      epsilon: how far weights may be from equal, from 0 (the mean) to 1 (MGDA); the source tries 0, 0.1, 0.5 and 1.
      server_opt: sets :math:`\eta`, the longest step of a round.
      sampling: as in ``fedavg``; its weights are ignored.
      keep_partial: as in ``fedavg``.

    The original paper lets the longest step decay: ``server_opt=optax.sgd(optax.exponential_decay(1.0, 100, 0.5))``.

    Raises:
      EvenhandError: ``epsilon`` outside [0, 1].

    Edge cases: uploads of norm 0 are left out.

    Differs from Ditto's code, where it is a baseline, only in the server step, which is 1 there.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> method = fedmgda(work, epsilon=0.1)
      >>> run = eh.simulate(method, data, rounds=3, seed=0)
      >>> bool((run.per_round["update_norm"] <= 1.001).all())
      True

    Source: Hu et al., *Federated Learning Meets Multi-Objective Optimization*, 2022, algorithm 1.
    """
    rule = min_norm(epsilon)
    method = variant(
        work,
        server_opt,
        rule,
        sampling,
        keep_partial=keep_partial,
        private=True,
        keeps=True,
        statistics_stay=True,
    )
    return staying(method._replace(name=f"fedmgda(epsilon={epsilon:g})"))
