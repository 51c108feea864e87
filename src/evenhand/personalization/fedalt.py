"""FedAlt and FedSim: a shared and a personal part of one model, trained one after the other or at the same time.

FedBN is FedSim whose personal part are the normalisation layers.
"""

from __future__ import annotations

import jax
import optax

from evenhand import local
from evenhand._paths import Division, Named, Personal, division
from evenhand.aggregators import mean
from evenhand.algorithms.beside import check_same, non_negative
from evenhand.algorithms.fedavg import variant
from evenhand.errors import EvenhandError, ModelError
from evenhand.personalization._partial import part_name, partial, restricted
from evenhand.sampling import uniform
from evenhand.streams import Purpose, stream
from evenhand.types import Aggregator, Algorithm, ClientData, Key, Params, Sampling

__all__ = ["fedalt", "fedbn", "fedsim"]


def fedalt(
    work: local.Work,
    *,
    personal: Personal,
    personal_work: local.Work | None = None,
    ridge: float = 0.0,
    stateful: bool = True,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedAlt: partial personalization with shared parameters ``u`` and personal ``v_k``; clients train ``v_k`` first.

    .. math::
        \min_{u, v_1, \dots, v_K} \sum_k p_k F_k(u, v_k), \qquad
        v_k &\leftarrow v_k - \gamma_v \nabla_v \big( F_k(u^t, v_k; b) + \rho \|v_k - v^0\|^2 \big) \\
        u &\leftarrow u - \gamma_u \nabla_u F_k(u, v_k^+; b),

    all steps on :math:`v_k` at the received :math:`u^t`, then all steps on ``u`` at the new :math:`v_k^+`.  Only
    :math:`u - u^t` is uploaded.

    Args:
      work: local work on ``u``, made by :func:`evenhand.local.sgd`.
      personal: which parameters are personal, by path: ``"output"`` (FedRep), the first layer, ``"*norm*"`` (FedBN's
        idea with layer or group normalisation), adapters, a tuple of patterns, or a function that gives a tree of
        bools.
      personal_work: local work on ``v_k``, with its step size :math:`\gamma_v`; None: as ``work``.
      ridge: :math:`\rho \ge 0`, without a factor of one half, towards the initial :math:`v^0`.
      stateful: clients keep their :math:`v_k`; False: each begins with :math:`v^0` in every round and forgets it; put
        :func:`evenhand.personalization.finetune` around it to measure personal models.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`, on ``u``.

    Raises:
      EvenhandError: no parameter has a path that ``personal`` matches; ``ridge`` negative or not finite; work that is
        not mini-batch descent; or two kinds of work with different models.

    Edge cases: with no personal parameter, ``personal=()``, this is FedAvg bit for bit; with all of them, ``"*"``, no
    client learns anything from another.  A client never drawn is served the global model, which is :math:`v^0` with
    the latest ``u``.  An aggregator that needs losses gets those of the personal models.

    Differs from the paper: the authors weight by the number of batches; here the sampling scheme decides, by default
    the number of examples.  Their code does a full pass over the data for each part, as here, which is twice the
    gradients of FedSim; to do one pass in all, give each part work with half the steps.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.mlp(64, classes=10, hidden=(16,)), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(fedalt(work, personal="output"), data, rounds=2, cohort=5)
      >>> run.info["floats"]["up"] == 64 * 16 + 16 + 1  # the hidden layer, and a weight
      True

    Source: Pillutla et al., *Federated Learning with Partial Model Personalization*, ICML 2022, algorithm 2.
    """
    non_negative("fedalt", "ridge", ridge)
    method = variant(work, server_opt, aggregator, sampling, keep_partial=keep_partial)
    parts = division(work.model, personal)
    own = work if personal_work is None else local.check_work(personal_work, "personal_work")
    check_same("fedalt() got work and personal_work", work.model, own.model)
    on_shared = restricted(work, parts, "fedalt", personal=False)
    on_personal = restricted(own, parts, "fedalt", personal=True)

    # A part without parameters takes no steps.
    owned = set(parts.is_personal.values())
    efforts = [part_work.effort for part_work, kind in ((own, True), (work, False)) if kind in owned]

    def train(shared: Named, kept: Named, fresh: Named, data: ClientData, key: Key) -> tuple[Named, Named]:
        if kept:
            towards = local.proximal(2.0 * ridge, fresh) if ridge > 0 else optax.identity()
            kept = on_personal(kept, shared, data, stream(key, Purpose.PERSONAL), towards)
        return on_shared(shared, kept, data, key, optax.identity()) if shared else shared, kept

    name, effort = part_name("fedalt", personal, ridge, stateful), local.in_turn(*efforts)
    return partial(method, parts, train, effort=effort, sends_fresh=ridge > 0, stateful=stateful, name=name)


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
    r"""FedSim: partial personalization with shared parameters ``u`` and personal ``v_k``, trained simultaneously.

    .. math::
        \min_{u, v_1, \dots, v_K} \sum_k p_k F_k(u, v_k), \qquad
        (u, v_k) \leftarrow (u, v_k) - \gamma \nabla \big( F_k(u, v_k; b) + \rho \|v_k - v^0\|^2 \big),

    both gradients at the same point.  Only :math:`u - u^t` is uploaded.

    Args:
      work: local work on both parts, of any kind.
      personal, ridge, stateful, server_opt, aggregator, sampling, keep_partial: as in
        :func:`evenhand.personalization.fedalt`.

    Raises:
      EvenhandError: as for ``fedalt``; or a ``ridge`` for work that guarantees privacy.

    Edge cases: with ``personal=()`` this is FedAvg bit for bit; with ``personal="*"`` it is
    :func:`evenhand.personalization.local_only`.  With ``personal="output"`` it is FedPer.  Running statistics of a
    model with ``state="local"`` are personal, too.

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
    method = variant(
        work, server_opt, aggregator, sampling, keep_partial=keep_partial, private=True, statistics_stay=True
    )
    if ridge > 0 and work.privacy is not None:
        raise EvenhandError(
            f"fedsim(ridge={ridge:g}): the ridge is added to gradients, and work that guarantees privacy takes noisy "
            "answers alone: leave ridge= out, or give ordinary work."
        )
    parts = division(work.model, personal)
    if (statistics := work.model.statistics) is not None and statistics.stay:
        if not stateful:
            raise EvenhandError(
                "fedsim(stateful=False) forgets the running statistics, which stay with clients here "
                '(state="local"): leave stateful=False out, or make the model with state="average".'
            )
        owned = {path: own or path in statistics.paths for path, own in parts.is_personal.items()}
        parts = parts._replace(is_personal=owned)

    def train(shared: Named, kept: Named, fresh: Named, data: ClientData, key: Key) -> tuple[Named, Named]:
        towards = _towards(parts, ridge, fresh) if ridge > 0 else optax.identity()
        params, _ = work.solve(parts.whole(shared, kept), data, key, towards)
        return parts.part(params, personal=False), parts.part(params, personal=True)

    name = part_name("fedsim", personal, ridge, stateful)
    return partial(
        method, parts, train, effort=work.effort, sends_fresh=ridge > 0, stateful=stateful, name=name
    )


def fedbn(
    work: local.Work,
    *,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""FedBN: clients keep their batch normalisation, and share all other parameters.

    .. math::
        \min_{u, v_1, \dots, v_K} \sum_k p_k F_k(u, v_k), \qquad
        (u, v_k) \leftarrow (u, v_k) - \gamma \nabla F_k(u, v_k; b),

    where :math:`v_k` are the scales and shifts of the layers with running statistics; the statistics are measured on
    client ``k``'s batches and stay there, too.  Only :math:`u - u^t` is uploaded.

    Args:
      work: local work on a model with running statistics, such as one of :func:`evenhand.models.from_flax` or
        :func:`evenhand.models.from_torch` with ``state="average"`` or ``"local"``; both are the same here.
      server_opt, aggregator, sampling, keep_partial: as in :func:`evenhand.algorithms.fedavg`, on ``u``.

    Raises:
      ModelError: the model keeps no running statistics.

    Edge cases: a client that has not trained yet is served the normalisation that the model began with, which fits no
    data: draw all clients early, or put :func:`finetune` around this method.  SiloBN, which shares scales and shifts
    and keeps the statistics only, is :func:`evenhand.algorithms.fedavg` on a model with ``state="local"``.

    Differs from the paper: clients are weighted by their numbers of examples, where the paper averages them equally,
    with clients of one size.

    Example:
      >>> import evenhand as eh, flax.linen as nn
      >>> class Net(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x, train: bool):
      ...         x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(16)(x))
      ...         return nn.Dense(10)(nn.relu(x))
      >>> data = eh.data.load("digits", clients=10)
      >>> model = eh.models.from_flax(Net(), loss="cross_entropy", sample=data.train.x[:1], state="local")
      >>> run = eh.simulate(fedbn(eh.local.sgd(model, 0.1, epochs=1, batch_size=10)), data, rounds=3)
      >>> run.info["floats"]["up"] == 64 * 16 + 16 + 16 * 10 + 10 + 1  # the dense layers, and a weight
      True

    Source: Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021;
    SiloBN: Andreux et al., *Siloed Federated Learning for Multi-Centric Histopathology Datasets*, 2020.
    """
    if (statistics := local.check_work(work, statistics_stay=True).model.statistics) is None:
        raise ModelError(
            "fedbn() keeps layers that have running statistics, and this model has none: make it with "
            'eh.models.from_flax(..., state="local") or from_torch(...), or use fedsim(work, personal="*norm*").'
        )
    layers = {path.rpartition("/")[0] or path for path in statistics.paths}
    method = fedsim(
        work,
        personal=tuple(sorted(layers)),
        server_opt=server_opt,
        aggregator=aggregator,
        sampling=sampling,
        keep_partial=keep_partial,
    )
    return method._replace(name="fedbn")


def _towards(parts: Division, ridge: float, fresh: Named) -> optax.GradientTransformation:
    """Adds the gradient of the ridge, to that of the personal part only."""

    def pull(updates: Params, params: Params | None) -> Params:
        own, at = (parts.part(part, personal=True) for part in (updates, params))
        pulled = jax.tree.map(lambda g, v, begin: g + 2.0 * ridge * (v - begin), own, at, fresh)
        return parts.whole(parts.part(updates, personal=False), pulled)

    return optax.stateless(pull)
