"""Agnostic federated learning: the worst mixture of clients."""

from __future__ import annotations

import math

from evenhand import local
from evenhand.aggregators import ascending_mixture
from evenhand.algorithms.averaged import averaged
from evenhand.algorithms.fedavg import fedavg
from evenhand.errors import EvenhandError, real_number
from evenhand.sampling import uniform
from evenhand.types import Algorithm, Model

__all__ = ["afl"]


def afl(model: Model, *, gamma_w: float, gamma_lambda: float) -> Algorithm:
    r"""AFL (agnostic FL): descent on the model, ascent on a mixture of *all* clients; the result is the averaged model.

    .. math::
        \min_w \max_{\lambda \in \Lambda} \sum_k \lambda_k F_k(w), \qquad
        w^{t+1} = w^t - \gamma_w \sum_k \lambda_k^t \nabla F_k(w^t), \quad
        \lambda^{t+1} = \Pi_\Lambda\big( \lambda^t + \gamma_\lambda F(w^t) \big), \quad
        \bar w^{t+1} = \frac{1}{t+1} \sum_{s=1}^{t+1} w^s

    Args:
      model: what is trained.
      gamma_w: the model's step size, > 0.
      gamma_lambda: the mixture's step size, >= 0; 0 is gradient descent on the plain mean over clients.

    Raises:
      EvenhandError: ``gamma_w`` or ``gamma_lambda`` out of range.

    Edge cases: meant for ``cohort=None``, all clients; in a smaller cohort, only the weights of its members climb
    (:func:`evenhand.aggregators.ascending_mixture`).

    Differs from the paper, which samples examples: gradients are over all of them, as in the comparison with q-FFL,
    whose reference code ignores :math:`\lambda` in the model's step.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.synthetic(alpha=1.0, beta=1.0, clients=4, seed=0, max_size=80)
      >>> model = eh.models.softmax_regression(features=60, classes=10)
      >>> run = eh.simulate(afl(model, gamma_w=0.1, gamma_lambda=0.1), data, rounds=5, seed=0)
      >>> bool(run.history["train_loss"][-1] < run.history["train_loss"][0])
      True

    Source: Mohri et al., *Agnostic Federated Learning*, ICML 2019; the deterministic form: Li et al., *Fair Resource
    Allocation in Federated Learning*, ICLR 2020, section 4 and appendix.
    """
    if not 0.0 < real_number(gamma_w) < math.inf:
        raise EvenhandError(f"afl(gamma_w={gamma_w}): the step must be a finite number above 0.")
    method = fedavg(
        local.sgd(model, gamma_w, steps=1)._replace(effort=local.step_per_row),
        aggregator=ascending_mixture(gamma_lambda),
        sampling=uniform(weighted=False),
    )
    return averaged(method, initial=False)._replace(
        name=f"afl(gamma_w={gamma_w:g}, gamma_lambda={gamma_lambda:g})"
    )
