"""The methods that are compared: one local work and one way to draw devices, weighed in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import optax

import evenhand as eh

__all__ = ["agnostic", "chosen", "family", "fedavg"]

_PENALISED = {"kernel": True, "bias": False}
_TOLERANCE = 1.0
_BY_ROWS = eh.sampling.proportional(replace=False)


def family(
    rate: float,
    *,
    features: int,
    batch_size: int,
    cohort: int,
    tilt: float,
    tilts: Sequence[float],
    running_tilts: Sequence[float],
    powers: Sequence[float],
) -> dict[str, dict[str, eh.Algorithm]]:
    """FedAvg, q-FFL and TERM, each with its forms; q-FFL and TERM with means and with sums of a device's losses.

    Args:
      rate: of local steps along the mean over a batch.
      features: of a row.
      batch_size: rows of a batch.
      cohort: devices of a round, by which the reference code of TERM divides once more.
      tilt: of summed losses.
      tilts: of mean losses.
      running_tilts: the same, with the normaliser that is averaged over rounds.
      powers: q-FFL's q.
    """
    work = _work(rate, features, batch_size)
    term, qffl = (
        partial(make, work, sampling=_BY_ROWS) for make in (eh.algorithms.term, eh.algorithms.qfedavg)
    )
    sums, short = f"t={tilt:g}, sums", optax.sgd(1 / cohort)
    on_sum = partial(term, t=tilt, summed=True)
    # The reference code's step along a sum over a batch, for the same effect.
    curvature = batch_size / rate
    powers_of_sums = {q: qffl(q=q, lipschitz=curvature, summed=True) for q in powers}
    return {
        "FedAvg": {"": eh.algorithms.fedavg(work, sampling=_BY_ROWS)},
        f"FedAvg, step 1/{cohort}": {"": eh.algorithms.fedavg(work, sampling=_BY_ROWS, server_opt=short)},
        "q-FFL": {
            **{f"q={q:g}": qffl(q=q, lipschitz=1 / rate) for q in powers},
            **{f"q={q:g}, sums": method for q, method in powers_of_sums.items()},
        },
        "TERM": {**{f"t={t:g}": term(t=t) for t in tilts}, sums: on_sum()},
        f"TERM, {sums}, step 1/{cohort}": {"": on_sum(server_opt=short)},
        "TERM reference": {sums: on_sum(reference=True)},
        "TERM running": {
            sums: on_sum(running=0.5),
            **{f"t={t:g}": term(t=t, running=0.5) for t in running_tilts},
        },
    }


def fedavg(rate: float, *, features: int, batch_size: int) -> eh.Algorithm:
    """Federated averaging with the local work of :func:`family`."""
    return eh.algorithms.fedavg(_work(rate, features, batch_size), sampling=_BY_ROWS)


def agnostic(features: int, batch_size: int, gamma_w: float, gamma_lambda: float) -> eh.Algorithm:
    """AFL on the same objective.

    Args:
      features: of a row.
      batch_size: of the other methods, which decides how much the penalty counts.
      gamma_w: step of the model, along a gradient over all rows.
      gamma_lambda: step of the mixture.
    """
    model = eh.models.svm(features, regularization=1 / batch_size)
    return eh.algorithms.afl(model, gamma_w=gamma_w, gamma_lambda=gamma_lambda)


def chosen(
    study: eh.studies.Study, found: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, list[dict[str, float]]]:
    """For each seed, what its validation rows choose of a family; FedAvg where no form keeps FedAvg's average.

    Args:
      study: with the paper's rule; its seeds are 0, 1, ...
      found: method -> the numbers of each seed, with ``valid_mean``.
    """
    picked: dict[str, list[dict[str, float]]] = {}
    for family in ("q-FFL", "TERM"):
        best = picked[f"{family}, chosen on validation rows"] = []
        for seed, plain in enumerate(found["FedAvg"]):
            one = found[f"{family}, {study.at(seed).best(family).numbers['form']}"][seed]
            best.append(dict(plain if one["valid_mean"] < plain["valid_mean"] - _TOLERANCE else one))
    return picked


def _work(rate: float, features: int, batch_size: int) -> eh.local.Work:
    # The penalty is in the steps and not in the model's losses: the reference code does not tilt it, and a sum of it
    # over rows would count for more on large devices.
    model = eh.models.svm(features, regularization=0.0)
    optimiser = optax.chain(
        optax.add_decayed_weights(1 / batch_size, mask=_PENALISED),
        optax.sgd(rate),
    )
    return eh.local.sgd(model, optimiser, epochs=1, batch_size=batch_size)
