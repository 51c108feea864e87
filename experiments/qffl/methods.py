"""The methods that are compared."""

from __future__ import annotations

from collections.abc import Sequence

import evenhand as eh

__all__ = ["against_afl", "family"]


def family(powers: Sequence[float], step: float, *, epochs: int, batch_size: int) -> dict[str, eh.Algorithm]:
    """q-FedAvg for each q, devices drawn by their rows; and the mean over devices drawn uniformly.

    All sums are plain, as in the reference code.
    """
    model = eh.models.softmax_regression(features=60, classes=10)
    work = eh.local.sgd(model, step, epochs=epochs, batch_size=batch_size)
    alike = eh.sampling.uniform(weighted=False)
    known = {f"q={q:g}": eh.algorithms.qfedavg(work, q=q, lipschitz=1 / step) for q in powers}
    return known | {"uniform sampling": eh.algorithms.fedavg(work, sampling=alike)}


def against_afl(
    data: eh.data.FederatedDataset, powers: Sequence[float], *, gamma_w: float, gamma_lambda: float
) -> dict[str, eh.Algorithm]:
    """q-FedSGD for each q; AFL, whose result is the mean of its iterates, and its last iterate; all rows pooled.

    All of them step by ``gamma_w`` against gradients over all rows; devices count alike but in the last.
    """
    (features,) = data.feature_shape
    model = eh.models.softmax_regression(features, classes=2)
    known = {f"q={q:g}": eh.algorithms.qfedsgd(model, q=q, lipschitz=1 / gamma_w) for q in powers}
    by_rows = eh.algorithms.qfedsgd(model, q=0.0, lipschitz=1 / gamma_w, sampling=eh.sampling.uniform())
    average = eh.algorithms.afl(model, gamma_w=gamma_w, gamma_lambda=gamma_lambda)
    return known | {
        "AFL": average,
        "AFL, last iterate": average._replace(global_params=lambda state: by_rows.global_params(state.inner)),
        "q=0, devices by rows": by_rows,
    }
