"""Delta-FL: training for the worst-off fraction of the clients."""

from __future__ import annotations

import optax

from evenhand import risks
from evenhand.aggregators import risk_weighted
from evenhand.algorithms.fedavg import staying, variant
from evenhand.errors import EvenhandError, truth_value
from evenhand.local import Work
from evenhand.sampling import uniform
from evenhand.text import call_text
from evenhand.types import Algorithm, Sampling

__all__ = ["delta_fl", "shown_options"]


def delta_fl(
    work: Work,
    *,
    theta: float,
    nu: float = 0.0,
    filtered: bool = False,
    strict: bool = True,
    follow: bool = False,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
    sampling: Sampling = uniform(),
    keep_partial: bool = False,
) -> Algorithm:
    r"""Delta-FL (Simplicial-FL): minimises the superquantile of the clients' losses.

    .. math::
        \min_w \mathbb S_\theta\big( F_1(w), \dots, F_N(w) \big), \qquad
        w^{t+1} = w^t + \sum_{k \in S_t} \pi_k (w_k - w^t), \quad
        \pi = \arg\max_{\pi_k \le p_k / \theta,\ \sum \pi = 1} \sum_{k \in S_t} \pi_k F_k(w^t) - \nu \sum_k \pi_k \log
        \frac{\pi_k}{p_k}

    with losses :math:`F_k(w^t)` over all of a client's examples, before it trains, and :math:`p_k` its share of the
    cohort's examples.

    Args:
      work: local work, as in ``fedavg``.
      theta: the tail fraction in (0, 1]: 1 is FedAvg, and near 0 only the worst client of a cohort counts, as at 0
        itself, which ``filtered`` does not take.  Older papers give the level ``1 - theta``.
      nu: strength of the smoothing by relative entropy, in units of loss; 0: exact reweighting.
      filtered: use the paper's first algorithm, which keeps only the clients whose loss is above the cohort's quantile.
      strict: with ``filtered``; False: also keep clients whose loss equals the quantile, as printed in the paper; if
        ``theta m`` is a whole number, that is one client more than the objective asks for.
      follow: ``theta`` follows availability, so that the number of clients that count stays the same.  Of :math:`m`
        slots of which :math:`|S_t|` have reported, the round's tail fraction is :math:`\theta m / |S_t|`, and at most
        1: about :math:`\theta m` clients count while so many are there, and all of them otherwise.
      sampling: as in ``fedavg``; ``uniform(weighted=False)`` weights clients, rather than examples, equally.
      server_opt, keep_partial: as in ``fedavg``.

    With ``follow``, a round in which few clients are available does not narrow the tail to one or two of them, whose
    mean update would be noisy; with every slot filled, nothing changes.  The paper names availability as the limit of
    its method, which must draw :math:`m' / \theta` clients for :math:`m'` to count, and leaves it open.

    Put a ridge into the clients' optimiser: ``optax.chain(optax.add_decayed_weights(lam), optax.sgd(lr))``.  It is then
    not in the losses that are compared, where it would be the same for all clients.

    Raises:
      EvenhandError: ``theta`` or ``nu`` out of range, a ``nu`` or ``strict`` that would be ignored, ``follow`` with
        :func:`evenhand.sampling.poisson`, or an argument of the wrong kind.

    Edge cases: clients tied at the quantile share the remaining weight; ``filtered`` leaves them out, unless no client
    is above it.  With equal weights and no ties, ``filtered`` keeps ``floor(theta m)`` clients (at least one), and if
    ``theta m`` is a whole number this is the exact reweighting.  About ``theta m`` clients of a cohort count: to
    aggregate as many updates as FedAvg, draw cohorts ``1 / theta`` times as large.  The whole cohort trains, including
    clients whose weight will be 0, so that taking part does not reveal who is in the tail.

    Differs from the paper in that the server sees the cohort's losses, as in the paper's experiments;
    :func:`evenhand.privacy.secure_delta_fl` finds the quantile from a secure sum of histograms instead, and
    :func:`evenhand.privacy.dp_delta_fl` from a noisy one.  For the averaged iterate of the paper's theorem see
    :func:`evenhand.algorithms.averaged`.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=8, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> work = eh.local.sgd(model, 0.05, epochs=1, batch_size=10)
      >>> method = delta_fl(work, theta=0.5)
      >>> run = eh.simulate(method, data, rounds=20, seed=0)
      >>> average = eh.algorithms.fedavg(work)
      >>> other = eh.simulate(average, data, rounds=20, seed=0)
      >>> float(max(run.client_metrics("train")["loss"])) < float(max(other.client_metrics("train")["loss"]))
      True

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithms 1 and 3, equations 14 and 15.
    """
    filtered = truth_value("filtered", filtered)
    strict = truth_value("strict", strict)
    follow = truth_value("follow", follow)
    if filtered and nu != 0:
        raise EvenhandError(
            "delta_fl() got filtered=True and nu=: a filter has no smoothing, so give only one of them."
        )
    if not (strict or filtered):
        raise EvenhandError(
            "delta_fl() got strict=False without filtered=True: only the filter can be strict or not."
        )
    if filtered:
        risk = risks.tail_mean(theta, strict=strict)
    else:
        risk = risks.smoothed_superquantile(theta, nu) if nu != 0 else risks.superquantile(theta)
    method = variant(
        work,
        server_opt,
        risk_weighted(risk, of_slots=follow),
        sampling,
        keep_partial=keep_partial,
        keeps=True,
        statistics_stay=True,
    )
    if follow and sampling.independent:
        raise EvenhandError(
            "delta_fl() got follow=True and sampling that draws each client independently: such cohorts have no "
            "planned size that theta could follow; leave follow out, or sample with eh.sampling.uniform()."
        )
    options = {**shown_options(nu, filtered, strict), "follow=True": follow}
    return staying(method._replace(name=call_text("delta_fl", f"theta={theta:g}", options)))


def shown_options(nu: float, filtered: bool, strict: bool) -> dict[str, bool]:
    """The options of one level or several, each with whether it is not the usual one, as a method's name shows it."""
    return {f"nu={nu:g}": nu != 0, "filtered=True": filtered, "strict=False": not strict}
