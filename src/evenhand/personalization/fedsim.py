"""FedSim: a shared and a personal part of one model, trained at the same time."""

from __future__ import annotations

import jax
import optax

from evenhand import local
from evenhand.aggregators import mean
from evenhand.algorithms import fedavg
from evenhand.personalization._beside import non_negative
from evenhand.personalization._division import Division, Named, Personal, division, shown
from evenhand.personalization._partial import partial
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, ClientData, Key, Params, Sampling

__all__ = ["fedsim"]


def fedsim(
    work: local.Work,
    *,
    personal: Personal,
    ridge: float = 0.0,
    stateful: bool = True,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedSim: clients share the parameters ``u`` of a model and keep the others, ``v_k``, and train both at once.

    .. math::
        \min_{u, v_1, \dots, v_K} \sum_k p_k F_k(u, v_k), \qquad
        (u, v_k) \leftarrow (u, v_k) - \gamma \nabla \big( F_k(u, v_k; b) + \rho \|v_k - v^0\|^2 \big),

    both gradients at the same point.  Only :math:`u - u^t` is uploaded.

    Args:
      work: local work on both parts, of any kind.
      personal, ridge, stateful, server_opt, aggregator, sampling, keep_partial: as in
        :func:`evenhand.personalization.fedalt`.

    Raises:
      EvenhandError: as for ``fedalt``.

    Edge cases: with ``personal=()`` this is FedAvg bit for bit; with ``personal="*"`` it is
    :func:`evenhand.personalization.local_only`.  With ``personal="output"`` it is FedPer.

    Differs from the paper in the weights, as ``fedalt`` does.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.mlp(64, classes=10, hidden=(16,)), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(fedsim(work, personal="output"), data, rounds=4, cohort=5)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Pillutla et al., *Federated Learning with Partial Model Personalization*, ICML 2022, algorithm 3; FedPer:
    Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019.
    """
    non_negative("fedsim", "ridge", ridge)
    method = fedavg(
        work, server_opt=server_opt, aggregator=aggregator, sampling=sampling, keep_partial=keep_partial
    )
    parts = division(work.model, personal)

    def train(shared: Named, kept: Named, fresh: Named, data: ClientData, key: Key) -> tuple[Named, Named]:
        towards = _towards(parts, ridge, fresh) if ridge > 0 else optax.identity()
        params, _ = work.solve(parts.whole(shared, kept), data, key, towards)
        return parts.part(params, personal=False), parts.part(params, personal=True)

    return partial(
        method,
        parts,
        train,
        effort=work.effort,
        sends_fresh=ridge > 0,
        stateful=stateful,
        name=f"fedsim({shown(personal)})",
    )


def _towards(parts: Division, ridge: float, fresh: Named) -> optax.GradientTransformation:
    """Adds the gradient of the ridge, to that of the personal part only."""

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        own, at = (parts.part(part, personal=True) for part in (updates, params))
        pulled = jax.tree.map(lambda g, v, begin: g + 2.0 * ridge * (v - begin), own, at, fresh)
        return parts.whole(parts.part(updates, personal=False), pulled), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
