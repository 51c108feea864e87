"""TERM over clients: a tilt between the average client and the worst, or the best."""

from __future__ import annotations

import optax

from evenhand import risks
from evenhand.aggregators import reference_tilt, risk_weighted, running_tilt
from evenhand.algorithms.averaging import of_sums
from evenhand.algorithms.fedavg import staying, variant
from evenhand.errors import EvenhandError, truth_value
from evenhand.local import Work
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Sampling

__all__ = ["term"]


def term(
    work: Work,
    *,
    t: float,
    running: float | None = None,
    reference: bool = False,
    summed: bool = False,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""TERM-FL (tilted empirical risk minimisation): weights clients by an exponential of their loss.

    .. math::
        \min_w \frac1t \log \sum_k p_k e^{t F_k(w)}, \qquad
        w^{t+1} = w^t + \sum_{k \in S_t} \omega_k (w_k - w^t), \quad
        \omega_k \propto p_k e^{t F_k(w^t)}, \quad \sum_{k \in S_t} \omega_k = 1

    with losses over all of a client's examples before it trains, and :math:`p_k` its share of the cohort's.  To tilt
    examples within a client, train with ``eh.local.sgd(model, 0.1, risk=eh.risks.tilted(t), ...)``, in any method.

    Args:
      work: local work, as in ``fedavg``.
      t: the tilt, in units of 1/loss: above 0 favours the worst-off clients, below 0 is robust to outliers; infinite:
        only the worst (best) client counts.
      running: average the normaliser over rounds, in log space, with this share in (0, 1] of the newest round, as the
        paper's stochastic solver does; it lags where losses fall fast.  None: normalise over the round's cohort.
      reference: use the normaliser of the reference code, which divides by the cohort's size once more
        (:func:`evenhand.aggregators.reference_tilt`).
      summed: take a client's loss as the sum over its examples rather than the mean, as the reference code does; tilts
        then act more strongly, above all on large clients.
      server_opt, sampling, keep_partial: as in ``fedavg``.

    Raises:
      EvenhandError: ``t`` is NaN, ``running`` out of range or given together with ``reference``.

    Robustness: a client can claim any loss.  With ``running`` or ``reference``, a single huge one can raise the
    normaliser, which is kept, so far that training stalls for good (:func:`evenhand.aggregators.running_tilt`).

    Edge cases: ``t=0`` is FedAvg.  Nothing overflows in float32 while ``|t F|`` is below 1e4.  A penalty in a model's
    losses is tilted with them, and with ``summed`` scaled by the client's size; to leave it out, put it into the
    clients' optimiser (``optax.add_decayed_weights``).

    Differs from the paper in the normaliser, unless ``running`` is given; the reference code differs from both.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> worst = []
      >>> for t in (0.0, 2.0):
      ...     method = term(work, t=t)
      ...     run = eh.simulate(method, data, rounds=20, seed=0)
      ...     worst.append(float(max(run.client_metrics("train")["loss"])))
      >>> worst[1] < worst[0]
      True

    Source: Li et al., *Tilted Empirical Risk Minimization*, ICLR 2021, section on fair federated learning, and
    *On Tilted Losses in Machine Learning*, JMLR 2023.
    """
    reference = truth_value("reference", reference)
    summed = truth_value("summed", summed)
    if reference and running is not None:
        raise EvenhandError(
            "term() got reference=True and running=: they are two normalisers, so give only one of them."
        )
    if reference:
        rule, kind = reference_tilt(t), ", reference=True"
    elif running is not None:
        rule, kind = running_tilt(t, running), f", running={running:g}"
    else:
        rule, kind = risk_weighted(risks.tilted(t)), ""
    method = variant(
        work,
        server_opt,
        rule,
        sampling,
        keep_partial=keep_partial,
        name=f"term(t={t:g}{kind}{', summed=True' if summed else ''})",
        keeps=True,
        statistics_stay=True,
    )
    if summed:
        method = method._replace(phases=tuple(map(of_sums, method.phases)))
    return staying(method)
