"""Noisy AdaGrad whose preconditioner is projected on the space of public gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from evenhand import tree
from evenhand.errors import EvenhandError, whole_number
from evenhand.local import Work
from evenhand.privacy._clean import Look, LookingRule, looking_work
from evenhand.privacy._moments import descend, divide, squares
from evenhand.privacy._noise import with_gaussian
from evenhand.privacy._public import Public, public_examples
from evenhand.privacy._work import check_clip, check_step
from evenhand.streams import Purpose, stream
from evenhand.types import Array, Key, Model, Params

__all__ = ["projected_adagrad"]


def projected_adagrad(
    model: Model,
    step_size: float,
    *,
    clips: tuple[float, float],
    noise_multiplier: float,
    rate: float,
    steps: int,
    public: tuple[Array, Array],
    rank: int = 50,
    eps: float = 1e-3,
) -> Work:
    r"""Noisy diagonal AdaGrad with projection.  **It promises no privacy**; see below.

    .. math::
        S^t = S^{t-1} + \Big(\frac1{|B|} \sum_{i \in B} g_i\Big)^2, \qquad
        H^t = V V^\top \big( \mathrm{clip}(\sqrt{S^t}, C_2) + \mathcal N(0, z^2 C_2^2 I) \big), \qquad
        w^{t+1} = w^t - \alpha \frac{\tilde g^t}{H^t + \epsilon}

    with :math:`\tilde g^t` the noisy mean of :func:`evenhand.privacy.dp_sgd`, clipped at :math:`C_1`, and
    :math:`V` the top right singular vectors of the matrix whose rows are the gradients of the public examples.

    :math:`S` keeps clean squares of all steps, so that an example in one batch has a part in every later :math:`H`.
    The accountant's credit for sampling anew in each step does not hold for it, nor, given :math:`H`, for
    :math:`\tilde g`; and the noise is not that of the sensitivity :math:`2 C_2` of :math:`H`.

    Args:
      model, noise_multiplier, rate, steps: as in :func:`evenhand.privacy.dp_sgd`.
      step_size: :math:`\alpha`.
      clips: :math:`(C_1, C_2)`.
      public: ``(x, y)``, examples that are not among the private ones.
      rank: how many singular vectors; at most as many as there are public examples.
      eps: :math:`\epsilon`.

    Raises:
      EvenhandError: a number out of range, or a method other than :func:`evenhand.algorithms.alone`.

    Edge cases: :math:`H + \epsilon` may be close to 0, or negative, and the step then is as long as that makes it.

    Differs from the paper: the authors' code takes the *last* singular vectors, and divides by the wrong number of
    examples, which does not change them; expect other results than in the figure.

    Example:
      >>> import evenhand as eh
      >>> x, y = eh.data.load("digits", clients=1).train.client(0)
      >>> model, known = eh.models.softmax_regression(features=64, classes=10), (x[:20], y[:20])
      >>> work = projected_adagrad(
      ...     model, 0.1, clips=(1.0, 1.0), noise_multiplier=1.0, rate=0.05, steps=20, public=known, rank=10)
      >>> work.privacy is None
      True

    Source: Asi et al., *Private Adaptive Gradient Methods for Convex Optimization*, ICML 2021, and Kairouz et al.,
    *(Nearly) Dimension Independent Private ERM with AdaGrad Rates*, COLT 2021, as in Li et al., *Differentially Private
    Adaptive Optimization with Delayed Preconditioners*, ICLR 2023, appendix.
    """
    first, second = (check_clip("projected_adagrad", clip, "clips") for clip in clips)
    check_step("projected_adagrad", step_size)
    examples = public_examples("projected_adagrad", model, public, 1)
    whole_number("rank", rank, 1, len(examples.x))
    if not 0.0 <= eps < float("inf"):
        raise EvenhandError(f"projected_adagrad(eps={eps}): give a finite number of at least 0.")

    def step(params: Params, state: Params, look: Look) -> tuple[Params, Params]:
        total = tree.add(state, squares(look.clean(params)))
        size = tree.norm(roots := jax.tree.map(jnp.sqrt, total))
        clipped = tree.scale(jnp.minimum(1.0, second / jnp.maximum(size, 1e-30)), roots)
        noisy = with_gaussian(stream(look.key, Purpose.NOISE), clipped, noise_multiplier * second)
        flat, tree_of = ravel_pytree(noisy)
        basis = _top(examples, params, rank, look.key)
        scales = jax.tree.map(lambda h: h + eps, tree_of((flat @ basis.T) @ basis))
        return descend(params, divide(look.query(params, clip=first), scales), step_size), total

    return looking_work(
        model,
        LookingRule(tree.zeros_like, step),
        who="projected_adagrad",
        noise_multiplier=noise_multiplier,
        rate=rate,
        steps=steps,
    )


def _top(public: Public, params: Params, rank: int, key: Key) -> Array:
    """The top right singular vectors of the public gradients, as rows."""

    def one(i: Array) -> Array:
        batch = public.schedule.draw(public.data(), key)(i)
        return ravel_pytree(public.estimate(params, batch, key))[0]

    gradients = jax.lax.map(one, jnp.arange(len(public.x)))
    return jnp.linalg.svd(gradients, full_matrices=False)[2][:rank]
