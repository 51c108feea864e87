"""DP^2: preconditioners from noisy gradients of the past, whose noise averages out."""

from __future__ import annotations

from typing import Literal

from evenhand.local import Work
from evenhand.privacy._clean import clean_work
from evenhand.privacy._delayed import Settings, delayed_rule, delays_of, pair_of
from evenhand.privacy._moments import check_moments
from evenhand.privacy._work import check_clip, private_work
from evenhand.types import Model

__all__ = ["delayed_rmsprop", "dp2"]


def dp2(
    model: Model,
    step_sizes: tuple[float, float],
    *,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    delay: int | tuple[int, int],
    kind: Literal["rmsprop", "adagrad", "yogi"] = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    unbiased: bool = False,
    noise_first: bool = False,
    adaptive_first: bool = False,
) -> Work:
    r"""DP^2: phases of DP-SGD alternate with phases that precondition by what the last such phase has learnt.

    .. math::
        \tilde g^t = \frac1{q n} \Big( \sum_{i \in B} \mathrm{clip}\Big(\frac{g_i}{D^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t - \alpha \tilde g^t

    For :math:`s_1` steps :math:`D = 1`, and :math:`G` sums up their :math:`\tilde g^t`.  Then :math:`v` follows:

    =============  ==========================================================================================
    ``"rmsprop"``  :math:`v \leftarrow \beta v + (1 - \beta) (G / s_1)^2`
    ``"adagrad"``  :math:`v \leftarrow v + (G / s_1)^2`
    ``"yogi"``     :math:`v \leftarrow v + (1 - \beta) \, \mathrm{sign}\big((G / s_1)^2 - v\big) \, (G / s_1)^2`
    =============  ==========================================================================================

    For :math:`s_2` steps :math:`D = \sqrt v + \epsilon`, and so on.  Each phase has a clip :math:`C` and a step size
    :math:`\alpha` of its own.  All of that follows from the :math:`\tilde g^t`, one query per step, so that the promise
    is that of :func:`evenhand.privacy.dp_sgd` with the same :math:`q, z` and steps.

    Args:
      model: what is trained.
      step_sizes: :math:`\alpha` of the SGD phase, and of the adaptive phase.
      clips: :math:`C` of each, the second in the units of a preconditioned gradient.
      noise_multiplier: :math:`z`, the same in both.
      rate: :math:`q`.
      steps: in one round; with :func:`evenhand.algorithms.alone`, phases run on from round to round.
      delay: :math:`s_1 = s_2`, or both, ``(s1, s2)``.
      kind: how :math:`v` follows, above.
      decay: :math:`\beta`.
      eps: :math:`\epsilon`.
      unbiased: subtract the noise's part, :math:`z^2 C^2 / (s_1 q^2 n^2)`, from :math:`(G / s_1)^2`, down to 0 at most.
      noise_first: divide by :math:`D` after clipping and noise, which then grows where :math:`D < 1`: an ablation.
      adaptive_first: begin with the adaptive phase, as DP-SGD, for want of a :math:`v`.

    Raises:
      EvenhandError: a number out of range.

    Edge cases: up to :math:`s_1` steps are those of DP-SGD.  That :math:`v` begins at 0 is not corrected for.
    With an ``eps`` far above the scales the divisor is a constant, and this is DP-SGD with a second step size.

    Differs from the paper: Yogi's sign is printed as that of :math:`G / s_1 - v^2`, and is Yogi's own here.  The
    authors' code shuffles where their accountant assumes the Poisson samples of here, and adds the gradient of an L2
    penalty to the noisy one.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=1)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> work = dp2(model, (0.5, 0.05), clips=(1.0, 5.0), noise_multiplier=1.0, rate=0.05, steps=20, delay=25)
      >>> run = eh.simulate(eh.algorithms.alone(work), data, rounds=5)
      >>> bool(run.history["test_accuracy"][-1] > 0.6)
      True

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023,
    algorithm 1 and appendix; :math:`\beta` from its code.
    """
    check_moments("dp2", kind, ("rmsprop", "adagrad", "yogi"), decay, eps)
    settings = Settings(
        step_sizes=pair_of("dp2", step_sizes),
        clips=(check_clip("dp2", clips[0], "clips"), check_clip("dp2", clips[1], "clips")),
        delays=delays_of(delay),
        kind=kind,
        decay=decay,
        eps=eps,
        unbiased=unbiased,
        noise_first=noise_first,
        adaptive_first=adaptive_first,
    )
    rule = delayed_rule(settings)
    return private_work(model, rule, who="dp2", noise_multiplier=noise_multiplier, rate=rate, steps=steps)


def delayed_rmsprop(
    model: Model,
    step_sizes: tuple[float, float],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    delay: int | tuple[int, int],
    decay: float = 0.9,
    eps: float = 1e-3,
) -> Work:
    r"""Delayed RMSProp: :func:`dp2` on ordinary mini-batches, without clipping and noise.  It promises no privacy.

    .. math:: w^{t+1} = w^t - \frac{\alpha}{|B|} \sum_{i \in B} \frac{g_i}{D^t}

    Args:
      model, step_sizes, delay, decay, eps: as in :func:`dp2`.
      epochs, steps, batch_size: as in :func:`evenhand.local.sgd`.

    Raises:
      EvenhandError: as :func:`dp2` and :func:`evenhand.local.sgd`.

    Example:
      >>> import evenhand as eh
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> delayed_rmsprop(model, (0.1, 0.01), delay=50, epochs=1, batch_size=10).privacy is None
      True

    Source: as :func:`dp2`, section 3.1.
    """
    check_moments("delayed_rmsprop", "rmsprop", ("rmsprop",), decay, eps)
    sizes = pair_of("delayed_rmsprop", step_sizes)
    settings = Settings(sizes, (1.0, 1.0), delays_of(delay), "rmsprop", decay, eps)
    return clean_work(model, delayed_rule(settings), epochs=epochs, steps=steps, batch_size=batch_size)
