"""AdaDPS in federated learning: clients divide by what is known of the geometry, and the server adds noise once."""

from __future__ import annotations

import jax
import optax

from evenhand.local import Work, descent, parts_of
from evenhand.privacy._side import fitting_scales
from evenhand.privacy.dp_fedavg import dp_fedavg
from evenhand.privacy.noisy_mean import AdaptiveClip
from evenhand.types import Algorithm, Params, PyTree

__all__ = ["adadps_fl"]


def adadps_fl(
    work: Work,
    *,
    divided_by: Params,
    clip: float | AdaptiveClip,
    noise_multiplier: float,
    rate: float = 0.1,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""AdaDPS-FL: DP-FedAvg whose clients divide each gradient by known scales before they step along it.

    .. math::
        w_k \leftarrow w_k - \eta \frac{\nabla F_k(w_k; b)}{A} \quad \text{in each local step from } w^t, \qquad
        w^{t+1} = w^t + \frac1{q N} \Big( \sum_{k \in S_t} \mathrm{clip}(w_k - w^t, C)
        + \mathcal N(0, z^2 C^2 I) \Big).

    An update then is long where gradients are known to be small, such as those of rare tokens, and less of it is lost
    in noise that is the same everywhere.  The promise is that of :func:`evenhand.privacy.dp_fedavg`.

    Args:
      work: mini-batch descent, from :func:`evenhand.local.sgd`; its optimiser gets the divided gradients.
      divided_by: :math:`A`, a tree like the parameters that no client has a part in, such as
        :func:`evenhand.privacy.token_frequencies` of public texts.
      clip: :math:`C`, in the units of an update, or :func:`evenhand.privacy.adaptive_clip`.
      noise_multiplier: :math:`z`.
      rate: :math:`q`, the chance with which each client is drawn in a round.
      server_opt: the server's optimiser on the noisy pseudo-gradient; ``sgd(1.0)`` is plain averaging.

    Raises:
      EvenhandError: a number out of range; scales that are not above 0 or do not fit the parameters; work that is not
        mini-batch descent, or promises privacy by itself.

    Edge cases: :math:`A = 1` is DP-FedAvg, bit for bit.  A client without examples sends zeros.

    Differs from the paper: algorithm 10 prints noise at each device, and its code adds it once to the sum, as here; a
    cohort is a Poisson sample, which the paper's accountant assumes; the norm of an update is that of all its numbers,
    where the code takes the largest singular value of a matrix, which bounds nothing.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=3, classes=2)
      >>> work = eh.local.sgd(model, 0.1, epochs=1, batch_size=10)
      >>> scales = eh.privacy.token_frequencies(model, [[8, 1, 0], [8, 0, 0]])
      >>> adadps_fl(work, divided_by=scales, clip=0.5, noise_multiplier=1.0).name
      'adadps_fl(noise_multiplier=1, rate=0.1)'

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, algorithm 10.
    """
    parts = parts_of(work, "adadps_fl")
    scales = fitting_scales("adadps_fl", work.model, divided_by)
    divided = optax.stateless(lambda gradient, params: _quotient(gradient, scales))
    parts = parts._replace(client_opt=optax.chain(divided, parts.client_opt))
    work = work._replace(solve=descent(*parts), step_size=None, of_risk=None, parts=parts, continued=None)
    method = dp_fedavg(work, clip=clip, noise_multiplier=noise_multiplier, rate=rate, server_opt=server_opt)
    return method._replace(name=f"adadps_fl(noise_multiplier={noise_multiplier:g}, rate={rate:g})")


def _quotient(gradient: PyTree, scales: Params) -> PyTree:
    return jax.tree.map(lambda g, a: g / a, gradient, scales)
