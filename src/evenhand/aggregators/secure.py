"""Secure summation, under any aggregator that needs sums only."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from evenhand import tree
from evenhand.errors import EvenhandError
from evenhand.secure import LIMB_BITS, FixedPoint, carried, fixed_point, masked_sum
from evenhand.types import Aggregator, Key, PyTree, Sum, Summation, Upload

__all__ = ["secure"]


def secure(
    then: Aggregator,
    *,
    bits: int = 64,
    largest: float = 2.0**20,
    cohort: int = 2**13,
) -> Sum:
    r"""Secure aggregation: the server learns only the sum of the uploads, as masked whole numbers.

    .. math::
        \hat x_k = \left\lfloor 2^f \operatorname{clip}(x_k, \pm R) \right\rceil \bmod 2^b, \qquad
        y_k = \hat x_k + \text{masks that cancel}, \qquad
        \sum_k x_k \approx 2^{-f} \Big(\sum_k y_k \bmod 2^b\Big)

    where :math:`x_k` is what the client sends for ``then``, such as :math:`(\omega_k \Delta_k, \omega_k)`, and
    :math:`f` is as large as the cohort allows (:func:`evenhand.secure.fixed_point`); rounding is random, so that the
    mean is kept.  The masked sum is that of the whole numbers to the bit.  :mod:`evenhand.secure` has the protocol,
    with keys, AES and shares.  A simulation adds the whole numbers as they arrive; with ``masks=True``, as in
    :func:`evenhand.simulate`, it adds and takes away masks from JAX's generator in the same places.

    Args:
      then: a sum: :func:`mean`, :func:`geometric_median`, :func:`centered_clipping`, or one behind :func:`clip`.
      bits: :math:`b`, 32 or 64, per number on the wire.
      largest: :math:`R`, to which clients clip; in the units of :math:`x_k`: a weight, or a weight times an update.
      cohort: clients in a round, at most; :math:`m R 2^f < 2^{b-1}`, so that no sum wraps around.

    Raises:
      EvenhandError: ``then`` needs to see single uploads, or weighs clients by reports in the clear; or too few bits.

    Robustness: that of ``then`` against false uploads only.  A client that sends false numbers into the sum itself is
    seen by nobody, and no aggregator withstands it: with weights :math:`\beta_k` that it ignores, it can move the
    direction of a geometric median at will.  What it gains is bounded: the server clips each sum to :math:`\pm m R`,
    which no honest sum exceeds.  But :math:`m` is the count in the same sum, so a client can falsify it, too, to any
    number from 2 to ``cohort``: each sum is within ``cohort`` times :math:`R` in any case.  Give the smallest
    ``largest`` and ``cohort`` that honest rounds need.  In a simulation :func:`evenhand.attacks.false_sum` is such a
    client, with a true count.  Nor can a server that sees no upload reject one: in a simulation uploads that are not
    finite are still left out, which on a real device the client's software does.

    Edge cases: a round with one client is lost, as the sum would be its upload; so is one with more than ``cohort``.
    As that tells how many took part, what ``then`` releases under noise is no longer private.
    A simulation recovers from any number of dropouts; the protocol needs more than half of each client's neighbours,
    and masks that link all who are left.

    Cost: ``bits / 32`` times the traffic, and keys and shares of some 450 bytes per neighbour
    (:class:`evenhand.secure.Plan` has the bytes).  A simulation with masks keeps all uploads of a round, and makes
    about ``3 log2(m)`` masks a client.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> rule = secure(eh.aggregators.mean())
      >>> eh.aggregators.aggregate(rule, jnp.array([[1.0, -0.5], [2.0, 0.25]])).tolist()
      [1.5, -0.125]

    Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017; with the
    geometric median: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022.
    """
    then = _checked(then)
    point = fixed_point(bits, largest=largest, cohort=cohort)

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        return sent(point, numbers(upload, public, key), jax.random.split(key)[1])

    def numbers(upload: Upload, public: PyTree, key: Key) -> PyTree:
        return then.lift(upload, public, jax.random.split(key)[0])

    def sent(point: FixedPoint, numbers: PyTree, key: Key) -> PyTree:
        limbs = point.encode(numbers, key)
        return limbs, jnp.zeros(point.limbs, jnp.uint32).at[0].set(jnp.uint32(1))

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        # One program for the rest, with masks before it and without: merged with them, it could round differently.
        limbs, count = jax.lax.optimization_barrier(total)
        # No honest sum is larger, so this changes none; a client that clips nothing can reach half of the modulus.  The
        # count comes from the same sum: one that falsifies it, too, gets up to `cohort`, beyond which a round is lost.
        most = carried(count)[0].astype(jnp.float32) * jnp.float32(point.largest)
        bounded = jax.tree.map(lambda leaf: jnp.clip(point.decode(leaf), -most, most), limbs)
        direction, after = then.lower(bounded, state, key)
        # Whoever is counted in higher limbs is one of 65,536 or more, beyond what a fixed point allows.
        whole = carried(count)
        enough = (whole[0] >= 2) & (whole[0] <= cohort) & jnp.all(whole[1:] == 0)
        return tree.select(enough, direction, tree.zeros_like(direction)), tree.select(enough, after, state)

    return then._replace(
        lift=lift,
        lower=lower,
        sensitivity=None,
        # A round of too few gives zeros without noise, and so would tell who was there.
        release=None,
        summation=Summation(
            LIMB_BITS,
            partial(masked_sum, point),
            numbers,
            partial(sent, point._replace(largest=point.reach)),
            in_limbs=True,
        ),
    )


def _checked(then: Aggregator) -> Sum:
    """An aggregator whose sums can be secure."""
    if not isinstance(then, Sum):
        raise EvenhandError(
            "secure(then=): this aggregator must see each upload, which a secure sum hides: give mean(), "
            "geometric_median(), centered_clipping(radius) or clip(longest), which need sums only."
        )
    if then.weigh is not None:
        raise EvenhandError(
            "secure(then=): this aggregator weights clients by what they report to the server in the clear, such as "
            "their loss, which a secure sum should hide: give mean() or geometric_median(), or use "
            "eh.privacy.secure_delta_fl, which finds the quantile of the losses in secret."
        )
    if then.compression is not None:
        raise EvenhandError(
            "secure(then=): masked sums need whole numbers of equal length, so uploads cannot be compressed: "
            "give secure(mean(), bits=32) for half of the bits, or quantized(...) or top_k(...) without secure()."
        )
    if then.summation is not None:
        raise EvenhandError("secure(then=secure(...)): its sums are secure already: give it alone.")
    return then
