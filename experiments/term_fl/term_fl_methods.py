"""The methods that are compared: one local work, one way to draw devices, and ever other weights at the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optax

import evenhand as eh

__all__ = ["agnostic", "family", "fedavg", "on_sums"]

_PENALISED = {"kernel": True, "bias": False}


def family(
    rate: float,
    *,
    features: int,
    batch_size: int,
    cohort: int,
    tilt: float,
    tilts: Sequence[float],
    powers: Sequence[float],
) -> dict[str, eh.Algorithm]:
    """FedAvg, q-FFL and TERM, each on the means of a device's losses and on their sums.

    Args:
      rate: of local steps along the mean over a batch.
      features: of a row.
      batch_size: rows of a batch.
      cohort: devices of a round, by which the reference code divides once too often.
      tilt: of summed losses.
      tilts: of mean losses.
      powers: q-FFL's q.
    """
    model, work = _work(rate, features, batch_size)
    term, qffl = eh.algorithms.term, eh.algorithms.qfedavg
    scale = {"server_opt": optax.sgd(float(cohort))}
    sums = f"t={tilt:g}, sums"
    known = {"FedAvg": fedavg(rate, features=features, batch_size=batch_size)}
    known |= {f"q-FFL, q={q:g}": qffl(model, q=q, lipschitz=1 / rate, **work) for q in powers}
    # A step along a sum of so many losses is so much shorter for the same effect.
    short = batch_size / rate
    known |= {f"q-FFL, q={q:g}, sums": on_sums(qffl(model, q=q, lipschitz=short, **work)) for q in powers}
    known[f"TERM, {sums}"] = term(model, t=tilt, summed=True, **work)
    known |= {f"TERM, t={t:g}": term(model, t=t, **work) for t in tilts}
    known[f"TERM running, {sums}"] = term(model, t=tilt, summed=True, running=0.5, **work)
    known |= {f"TERM running, t={t:g}": term(model, t=t, running=0.5, **work) for t in tilts}
    known[f"TERM reference, {sums}"] = term(model, t=tilt, summed=True, reference=True, **work)
    return known | {
        f"TERM reference x {cohort}, {sums}": term(
            model, t=tilt, summed=True, reference=True, **work, **scale
        )
    }


def fedavg(rate: float, *, features: int, batch_size: int) -> eh.Algorithm:
    """Federated averaging with the local work of :func:`family`."""
    model, work = _work(rate, features, batch_size)
    return eh.algorithms.fedavg(model, **work)


def agnostic(features: int, batch_size: int, *, gamma_w: float, gamma_lambda: float) -> eh.Algorithm:
    """AFL on the same objective: gradients over all rows of all devices, and a mixture that ascends."""
    model = eh.models.svm(features, regularization=1 / batch_size)
    return eh.algorithms.afl(model, gamma_w=gamma_w, gamma_lambda=gamma_lambda)


def on_sums(method: eh.Algorithm) -> eh.Algorithm:
    """The same method, told the sum of a device's losses in place of their mean."""
    (phase,) = method.phases

    def report(message: Any, client_state: Any, data: Any) -> Any:
        told = phase.report(message, client_state, data)
        return told._replace(loss=told.loss * data.size.astype(told.loss.dtype))

    return method._replace(phases=(phase._replace(report=report),))


def _work(rate: float, features: int, batch_size: int) -> tuple[eh.Model, dict[str, Any]]:
    # The penalty is in the steps and not in the model's losses: the reference code does not tilt it, and sums of it
    # over rows would count for more on large devices.
    model = eh.models.svm(features, regularization=0.0)
    optimiser = optax.chain(
        optax.add_decayed_weights(1 / batch_size, mask=_PENALISED),
        optax.sgd(rate),
    )
    sampling = eh.sampling.proportional(replace=False)
    return model, {"client_opt": optimiser, "epochs": 1, "batch_size": batch_size, "sampling": sampling}
