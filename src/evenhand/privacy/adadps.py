"""AdaDPS: gradients are divided by what is known of their geometry before they are clipped.

:func:`adadps` for examples, :func:`adadps_fl` for clients; and what it is compared with: :func:`adas`, without privacy,
and :func:`ideal_adadps`, with the moments of the private gradients themselves.
"""

from __future__ import annotations

import optax

from evenhand import tree
from evenhand.local import Work, check_work, descent, parts_of
from evenhand.privacy import update_rules
from evenhand.privacy._preconditioners import (
    Moment,
    PublicExamples,
    PublicKind,
    fitting_scales,
    side_information,
    squares,
)
from evenhand.privacy.client_level import dp_fedavg
from evenhand.privacy.gaussian import AdaptiveClip
from evenhand.privacy.update_rules import Iteration, Noise, Query, UpdateRule, private_work
from evenhand.types import Algorithm, Model, Params

__all__ = ["adadps", "adadps_fl", "adas", "ideal_adadps"]


def adadps(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    divided_by: Params | None = None,
    public: PublicExamples | None = None,
    public_batch_size: int | None = None,
    kind: PublicKind = "rmsprop",
    decay: float | optax.Schedule = 0.9,
    eps: float | optax.Schedule = 1e-3,
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

    The guarantee is that of :func:`evenhand.privacy.dp_sgd` with the same :math:`q, z` and steps.

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
      decay: :math:`\beta`, or :math:`\beta^t`: a function of the steps so far, from 0, such as a schedule of optax.
      eps: :math:`\epsilon`, or such a function.
      refresh_every: None: :math:`A` follows every step, as in the paper.  A number of steps, such as those of an epoch:
        :math:`A = \sqrt{v + \epsilon}` is computed afresh that often, :math:`v` being the mean of :math:`\hat g^2` over
        all public mini-batches, as in the authors' code.

    Raises:
      EvenhandError: a number out of range, also of a schedule at a step of the first round; both or none of
        ``divided_by`` and ``public``.

    Edge cases: :math:`(A, C, \text{step}) \to (cA, C / c, c \cdot \text{step})` changes nothing, for fixed :math:`A`.
    Public moments begin at 0 and their bias is not corrected.  The paper's theorem for convex losses asks for
    ``decay=lambda t: 1 - 1 / (t + 1)``, with which :math:`v` is the mean of all :math:`\hat g^2` so far, and steps in
    proportion to :math:`1 / \sqrt t`, a schedule of the ``optimiser``.  Both begin anew in each round, except with
    :func:`evenhand.algorithms.alone`, whose later steps no check sees.

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
    moment = Moment(kind, decay, eps)
    side = side_information(
        "adadps", model, divided_by, public, public_batch_size, moment, refresh_every, steps
    )
    rule = UpdateRule(method="adadps", optimiser=optimiser, init=side.init, before=side.before)
    return private_work(model, rule, Noise(clip, noise_multiplier, rate, steps))


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
    in noise that is the same everywhere.  The guarantee is that of :func:`evenhand.privacy.dp_fedavg`.

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
        mini-batch descent, or already guarantees privacy.

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
    parts = parts_of(check_work(work), "adadps_fl")
    scales = fitting_scales("adadps_fl", work.model, divided_by)
    divided = optax.stateless(lambda gradient, params: tree.divide(gradient, scales))
    client_opt = parts.client_opt
    parts = parts._replace(client_opt=lambda data: optax.chain(divided, client_opt(data)))
    work = check_work(work)._replace(
        solve=descent(*parts), step_size=None, of_risk=None, parts=parts, continued=None
    )
    method = dp_fedavg(work, clip=clip, noise_multiplier=noise_multiplier, rate=rate, server_opt=server_opt)
    return method._replace(name=f"adadps_fl(noise_multiplier={noise_multiplier:g}, rate={rate:g})")


def adas(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    divided_by: Params | None = None,
    public: PublicExamples | None = None,
    public_batch_size: int | None = None,
    kind: PublicKind = "rmsprop",
    decay: float | optax.Schedule = 0.9,
    eps: float | optax.Schedule = 1e-3,
    refresh_every: int | None = None,
) -> Work:
    r"""AdaS: AdaDPS on ordinary mini-batches, without clipping or noise.  It guarantees no privacy.

    .. math:: w^{t+1} = w^t + \text{optimiser}\Big(\frac1{|B|} \sum_{i \in B} \frac{g_i}{A^t}\Big)

    Args:
      model, optimiser: as in :func:`evenhand.privacy.adadps`.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.
      divided_by, public, public_batch_size, kind, decay, eps, refresh_every: as in :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: as :func:`evenhand.privacy.adadps` and :func:`evenhand.local.sgd`.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> halves = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), model.init(jax.random.key(0)))
      >>> adas(model, 0.05, divided_by=halves, epochs=1, batch_size=10).privacy is None
      True

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, section 4.
    """
    moment = Moment(kind, decay, eps)
    count = 1 if steps is None else steps
    side = side_information(
        "adas", model, divided_by, public, public_batch_size, moment, refresh_every, count
    )
    rule = UpdateRule(method="adas", optimiser=optimiser, init=side.init, before=side.before)
    return update_rules.clean_work(model, rule, epochs=epochs, steps=steps, batch_size=batch_size)


def ideal_adadps(
    model: Model,
    optimiser: optax.GradientTransformation | float,
    *,
    clip: float,
    noise_multiplier: float,
    rate: float,
    steps: int,
    decay: float = 0.9,
    eps: float = 1e-3,
) -> Work:
    r"""AdaDPS-RMSProp whose second moment is that of clean private gradients.  Not private, even with noise.

    .. math::
        v^t = \beta v^{t-1} + (1 - \beta) \Big(\frac1{|B|} \sum_{i \in B} g_i\Big)^2, \qquad
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{\sqrt{v^t} + \epsilon}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t + \text{optimiser}(\tilde g^t)

    It is the upper bound, "ideal", that :func:`evenhand.privacy.adadps` is compared with, and makes no guarantee.

    Args:
      model, optimiser, clip, noise_multiplier, rate, steps, decay, eps: as in :func:`evenhand.privacy.adadps`.

    Raises:
      EvenhandError: a number out of range, or a method other than :func:`evenhand.algorithms.alone`.

    Edge cases: an empty batch has a gradient of 0.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> ideal_adadps(model, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.05, steps=20).privacy is None
      True

    Source: Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, table 3.
    """
    moment = Moment("rmsprop", decay, eps).checked("ideal_adadps", ("rmsprop",))

    def before(state: Params, iteration: Iteration) -> tuple[Query, Params]:
        state = moment.follow(state, squares(iteration.gradient()))
        return Query(divided_by=moment.root(state)), state

    rule = UpdateRule(method="ideal_adadps", optimiser=optimiser, init=tree.zeros_like, before=before)
    return update_rules.oracle_work(model, rule, Noise(clip, noise_multiplier, rate, steps))
