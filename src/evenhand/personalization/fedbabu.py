"""FedBABU: the body is trained with a head that stays as it was initialised."""

from __future__ import annotations

import optax

from evenhand import local
from evenhand._paths import Named, Personal, division, shown
from evenhand.aggregators import mean
from evenhand.algorithms.fedavg import variant
from evenhand.personalization._partial import partial, restricted
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, ClientData, Key, Sampling

__all__ = ["fedbabu"]


def fedbabu(
    work: local.Work,
    *,
    head: Personal,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedBABU: clients train the body ``u`` of a model; the random head :math:`v^0` is never trained.

    .. math:: \min_u \sum_k p_k F_k(u, v^0), \qquad u \leftarrow u - \eta \nabla_u F_k(u, v^0; b)

    The head is learned only when a client finetunes the model that it is served: put
    :func:`evenhand.personalization.finetune` around this.

    Args:
      work: local work on the body, made by :func:`evenhand.local.sgd`.
      head: which parameters are not trained, as ``personal`` in :func:`evenhand.personalization.fedalt`.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`.

    Raises:
      EvenhandError: no parameter has a path that ``head`` matches, or work that is not mini-batch descent.

    Edge cases: ``head=()`` is FedAvg bit for bit.

    Differs from the paper only in that the head crosses the wire with every broadcast here.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.mlp(64, classes=10, hidden=(16,)), 0.1, epochs=1, batch_size=10)
      >>> method = eh.personalization.finetune(fedbabu(work, head="output"), work)
      >>> run = eh.simulate(method, data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Oh, Kim and Yun, *FedBABU: Towards Enhanced Representation for Federated Image Classification*, ICLR 2022.
    """
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    parts = division(work.model, head)
    on_body = restricted(work, parts, "fedbabu", personal=False)

    def train(shared: Named, kept: Named, fresh: Named, data: ClientData, key: Key) -> tuple[Named, Named]:
        return on_body(shared, fresh, data, key, optax.identity()), kept

    name = f"fedbabu({shown(head)})"
    return partial(method, parts, train, effort=work.effort, sends_fresh=True, stateful=False, name=name)
