"""FedProx: a proximal term, and partial work that counts; and FedProx whose proximal weight follows the loss."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax

from evenhand import local
from evenhand.aggregators import mean
from evenhand.algorithms.averaging import Message, ServerState
from evenhand.algorithms.fedavg import staying, variant
from evenhand.algorithms.fedprox_measured import fedprox_measured
from evenhand.errors import EvenhandError, real_number
from evenhand.sampling import uniform
from evenhand.types import Aggregator, Algorithm, Array, ClientData, Info, Key, Params, Sampling

__all__ = ["fedprox", "fedprox_adaptive"]


def fedprox(
    work: local.Work,
    *,
    mu: float | Literal["theory"],
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = True,
) -> Algorithm:
    r"""FedProx: a proximal term keeps local work near the broadcast model; stragglers' partial work counts.

    .. math::
        h_k(w; w^t) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2, \qquad
        w \leftarrow w - \eta \big( \nabla F_k(w; b) + \mu (w - w^t) \big),

    aggregated as in :func:`evenhand.algorithms.fedavg` over the *whole* cohort, with weights that do not depend
    on how much work a client completed.  The anchor :math:`w^t` stays fixed during the round.

    Args:
      work: local work, as in ``fedavg``.
      mu: :math:`\mu \ge 0`; plain gradient steps of size :math:`\eta` need :math:`\eta \mu < 2` to be stable.
        ``"theory"``: measured in each round, as in :func:`evenhand.algorithms.fedprox_measured`.
      keep_partial: aggregate stragglers' partial work.
      server_opt, aggregator, sampling: as in ``fedavg``.

    Raises:
      EvenhandError: ``mu`` negative, not finite, or another word; ``"theory"`` for work without plain steps.

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
    if mu == "theory":
        return fedprox_measured(
            work, server_opt=server_opt, aggregator=aggregator, sampling=sampling, keep_partial=keep_partial
        )
    if not 0.0 <= real_number(mu) < float("inf"):
        raise EvenhandError(
            f'fedprox(mu={mu!r:.40}): the proximal weight must be a finite number >= 0, or "theory".'
        )

    def correction(message: Message, data: ClientData) -> optax.GradientTransformation:
        return local.proximal(mu, message.params)

    method = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        correction=correction,
        keeps=True,
        statistics_stay=True,
    )
    return staying(method._replace(name=f"fedprox(mu={mu:g})"))


# --- a proximal weight that follows the training loss ------------------------------------------------------------

_PATIENCE = 5


class _Mu(NamedTuple):
    """``mu`` in whole tenths, so that steps of 0.1 cannot drift."""

    tenths: Array
    streak: Array
    loss: Array


def fedprox_adaptive(
    work: local.Work,
    *,
    mu0: float,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    aggregator: Aggregator = mean(),
    sampling: Sampling = uniform(),
    keep_partial: bool = True,
) -> Algorithm:
    r"""FedProx with :math:`\mu` raised when the loss rises and lowered after five falls in a row.

    With :math:`f_t` the training loss of :math:`w^t` over *all* clients, before round ``t``:

    .. math::
        \mu \leftarrow \begin{cases}
          \mu + 0.1 & f_t > f_{t-1} \text{ or } f_t \text{ not finite} \\
          \max(0, \mu - 0.1) & f_t < f_{t-1} \text{ for the fifth time in a row.}
        \end{cases}

    Args:
      work: local work, as in ``fedavg``.
      mu0: the initial :math:`\mu`, a multiple of 0.1.  The paper deliberately starts from the wrong end: 1 on IID
        data, 0 otherwise.
      keep_partial, server_opt, aggregator, sampling: as in ``fedprox``.

    Raises:
      EvenhandError: ``mu0`` negative or not a multiple of 0.1.

    Differs from the paper, which states only the two triggers: here the count of falls restarts when :math:`\mu` is
    lowered and after an equal loss, and :math:`\mu` stays at or above 0.  Only a simulation knows the global loss;
    it costs one pass over all training examples per round.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=0.0, beta=0.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.01, epochs=1, batch_size=10)
      >>> method = fedprox_adaptive(work, mu0=1.0)
      >>> run = eh.simulate(method, data, rounds=6, seed=0)
      >>> [round(float(mu), 1) for mu in run.per_round["mu"]]
      [1.0, 1.0, 1.0, 1.0, 1.0, 0.9]

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, section 5.3.3 and figure 3.
    """
    tenths = round(10 * mu0) if 0.0 <= real_number(mu0) < float("inf") else -1
    if tenths < 0 or abs(10 * mu0 - tenths) > 1e-6:
        raise EvenhandError(f"fedprox_adaptive(mu0={mu0}): start from a multiple of 0.1 that is >= 0.")
    base = variant(
        work,
        server_opt,
        aggregator,
        sampling,
        keep_partial=keep_partial,
        name=f"fedprox_adaptive(mu0={mu0:g})",
        correction=lambda message, data: local.proximal(message.extra, message.params),
        attach=_value,
        extra=lambda params, clients: _Mu(jnp.int32(tenths), jnp.int32(0), jnp.float32(jnp.nan)),
        keeps=True,
    )
    (train,) = base.phases

    def server(state: ServerState, direction: Params, reported: Array, key: Key) -> tuple[ServerState, Info]:
        state, info = train.server(state, direction, reported, key)
        return state, {**info, "mu": _value(state.extra)}

    return base._replace(
        phases=(train._replace(server=server),),
        observe=lambda state, loss: state._replace(extra=_adapt(state.extra, loss)),
    )


def _value(mu: _Mu) -> Array:
    return mu.tenths.astype(jnp.float32) / 10.0


def _adapt(mu: _Mu, loss: Array) -> _Mu:
    # The first loss is compared with NaN: neither a rise nor a fall.
    rose = (loss > mu.loss) | ~jnp.isfinite(loss)
    streak = jnp.where(loss < mu.loss, mu.streak + 1, 0)
    patient = streak == _PATIENCE
    tenths = mu.tenths + rose.astype(jnp.int32) - patient.astype(jnp.int32)
    return _Mu(jnp.maximum(tenths, 0), jnp.where(patient, 0, streak), loss)
