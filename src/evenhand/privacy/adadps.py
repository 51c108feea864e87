"""AdaDPS: gradients are divided by what is known of their geometry before they are clipped."""

from __future__ import annotations

import optax

from evenhand.local import Work
from evenhand.privacy._side import PublicKind, preconditioned, side_information
from evenhand.privacy._work import check_clip, optimiser_of, private_work
from evenhand.types import Array, Model, Params

__all__ = ["adadps"]


def adadps(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    divided_by: Params | None = None,
    public: tuple[Array, Array] | None = None,
    public_batch_size: int | None = None,
    kind: PublicKind = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    refresh_every: int | None = None,
) -> Work:
    r"""AdaDPS: DP-SGD whose gradients are preconditioned with side information before they are clipped.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{A^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t + \text{optimiser}(\tilde g^t),

    with :math:`g_i = \nabla f(x_i; w^t)`, and a batch :math:`B` that each example is in with probability :math:`q`.
    :math:`A^t` is a fixed tree, or follows gradients :math:`\hat g^t` of public examples:

    =============  =======================================================================================
    ``"rmsprop"``  :math:`A = \sqrt v + \epsilon`, :math:`v \leftarrow \beta v + (1 - \beta) \hat g^2`
    ``"adagrad"``  :math:`A = \sqrt v + \epsilon`, :math:`v \leftarrow v + \hat g^2`
    ``"adam"``     as RMSProp, on :math:`\beta g_i + (1 - \beta) M`, :math:`M \leftarrow \beta M + (1 - \beta) \hat g`
    =============  =======================================================================================

    The promise is that of :func:`evenhand.privacy.dp_sgd` with the same :math:`q, z` and steps.

    Args:
      model: what is trained.
      optimiser: a step size, or any optax optimiser.
      clip: :math:`C`, in the units of a preconditioned gradient.
      noise_multiplier: :math:`z`.
      rate: :math:`q`.
      steps: in one round.
      divided_by: a fixed :math:`A`, a tree like the parameters that no private example has a part in, such as
        :func:`evenhand.privacy.token_frequencies` of public texts; give this or ``public``.
      public: ``(x, y)``, examples that are not among the private ones.
      public_batch_size: how many of them :math:`\hat g^t` is the mean of; None: all.
      kind: how moments follow public gradients.
      decay: :math:`\beta`.
      eps: :math:`\epsilon`.
      refresh_every: None: :math:`A` follows every step, as in the paper.  A number of steps, such as those of an epoch:
        :math:`A = \sqrt{v + \epsilon}` is computed afresh that often, :math:`v` being the mean of :math:`\hat g^2` over
        all public mini-batches, as in the authors' code.

    Raises:
      EvenhandError: a number out of range; both or none of ``divided_by`` and ``public``.

    Edge cases: :math:`(A, C, \text{step}) \to (cA, C / c, c \cdot \text{step})` changes nothing, for fixed :math:`A`.
    Public moments begin at 0 and their bias is not corrected.

    Differs from the paper: its code clips means of four examples, which doubles what one example can change; shuffles
    where its accountant assumes the Poisson samples of here; and counts public examples among the private ones.

    Example:
      >>> import evenhand as eh
      >>> import numpy as np
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> data = eh.data.from_arrays(x[100:], y[100:], client=np.zeros(len(y) - 100))
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = adadps(
      ...     model, 0.05, public=(x[:100], y[:100]), eps=0.1, clip=5.0, noise_multiplier=1.0, rate=0.05, steps=20)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.6)
      True

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, algorithm 1.
    """
    side = side_information(
        "adadps",
        model,
        divided_by=divided_by,
        public=public,
        public_batch_size=public_batch_size,
        kind=kind,
        decay=decay,
        eps=eps,
        refresh_every=refresh_every,
    )
    rule = preconditioned(optimiser_of("adadps", optimiser), side, check_clip("adadps", clip))
    return private_work(model, rule, who="adadps", noise_multiplier=noise_multiplier, rate=rate, steps=steps)
