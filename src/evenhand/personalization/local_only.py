"""No collaboration: a separate model for each client."""

from __future__ import annotations

from evenhand import local
from evenhand.personalization.fedalt import fedsim
from evenhand.types import Algorithm

__all__ = ["local_only"]


def local_only(work: local.Work) -> Algorithm:
    r"""Local-only training: each client drawn continues to train its own model; nothing is shared.

    .. math:: \min_{v_k} F_k(v_k), \qquad v_k \leftarrow v_k - \eta \nabla F_k(v_k; b)

    Args:
      work: local work, as in :func:`evenhand.algorithms.fedavg`.

    Edge cases: under partial participation a client trains only in the rounds in which it is drawn, with as many steps
    as in any federated method: this is the baseline "local" of the literature, and not training to convergence.  It is
    Ditto with ``lam=0`` and the same batches, and FedSim with all parameters personal; nothing crosses the wire but a
    weight.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(local_only(work), data, rounds=4)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, section 3.1.
    """
    local.check_work(work, statistics_stay=True)
    return fedsim(work, personal="*")._replace(name="local_only")
