"""Federated averaging that hides whether any one client took part."""

from __future__ import annotations

import optax

from evenhand.algorithms import fedavg
from evenhand.local import Work
from evenhand.privacy.noisy_mean import AdaptiveClip, noisy_mean
from evenhand.privacy.private import private
from evenhand.sampling import poisson
from evenhand.types import Algorithm

__all__ = ["dp_fedadam", "dp_fedavg"]


def dp_fedavg(
    work: Work,
    *,
    clip: float | AdaptiveClip,
    noise_multiplier: float,
    rate: float = 0.1,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""DP-FedAvg: clients of a Poisson sample train, and the server averages their clipped updates under noise.

    .. math::
        w^{t+1} = w^t + \frac1{q N} \Big( \sum_{k \in S_t} \Delta_k \min\Big(1, \frac{C}{\|\Delta_k\|}\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad \Pr[k \in S_t] = q,

    where :math:`\Delta_k` is what local work on :math:`F_k` changes in :math:`w^t`.  Whoever sees all models
    cannot tell whether any one client took part; ``run.privacy`` has the :math:`\varepsilon` and :math:`\delta`.

    Args:
      work: what clients do and the model that they train.
      clip: :math:`C`, in the units of an update, or :func:`evenhand.privacy.adaptive_clip`.
      noise_multiplier: :math:`z`; :func:`evenhand.privacy.noise_for` finds it for a budget.
      rate: :math:`q`, the chance with which each client is drawn in a round.
      server_opt: the server's optimiser on the noisy pseudo-gradient; ``sgd(1.0)`` is plain averaging.

    Raises:
      EvenhandError: a number out of range, or local work that promises privacy by itself.

    Edge cases: a round without clients steps along noise alone.  All clients count alike, whatever their size: the
    objective is :math:`\frac1N \sum_k F_k`.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=100)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(dp_fedavg(work, clip=0.5, noise_multiplier=1.0, rate=0.1), data, rounds=20)
      >>> round(run.privacy.epsilon, 2), run.privacy.delta
      (1.86, 0.01)

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, algorithm 1; as in
    Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, algorithm 10 with :math:`A = 1`.

    Differs from the paper: algorithm 10 prints noise at each device; its code and its :math:`\varepsilon` are those of
    noise added once to the sum, as here.
    """
    noisy = noisy_mean(clip, noise_multiplier=noise_multiplier, rate=rate)
    method = private(fedavg(work, server_opt=server_opt, aggregator=noisy, sampling=poisson(rate)))
    return method._replace(name=f"dp_fedavg(noise_multiplier={noise_multiplier:g}, rate={rate:g})")


def dp_fedadam(
    work: Work,
    *,
    clip: float | AdaptiveClip,
    noise_multiplier: float,
    rate: float = 0.1,
    server_lr: float = 1.0,
) -> Algorithm:
    r"""DP-FedAdam: DP-FedAvg whose noisy averages :math:`u^t` are the steps of Adam at the server.

    .. math::
        m^t = .9 \, m^{t-1} + .1 \, u^t, \quad v^t = .999 \, v^{t-1} + .001 \, (u^t)^2, \quad
        w^{t+1} = w^t + \gamma \frac{m^t / (1 - .9^t)}{\sqrt{v^t / (1 - .999^t)} + 10^{-8}}

    Args:
      work, clip, noise_multiplier, rate: as in :func:`dp_fedavg`, and with the same promise.
      server_lr: :math:`\gamma`.

    Raises:
      EvenhandError: as for :func:`dp_fedavg`.

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> dp_fedadam(work, clip=0.5, noise_multiplier=1.0, rate=0.1, server_lr=0.1).name
      'dp_fedadam(noise_multiplier=1, rate=0.1)'

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, under noise as in Li et al., *Private Adaptive
    Optimization with Side Information*, ICML 2022, figure 7.
    """
    adam = optax.adam(server_lr, b1=0.9, b2=0.999, eps=1e-8)
    method = dp_fedavg(work, clip=clip, noise_multiplier=noise_multiplier, rate=rate, server_opt=adam)
    return method._replace(name=f"dp_fedadam(noise_multiplier={noise_multiplier:g}, rate={rate:g})")
