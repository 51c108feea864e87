"""The private quantile as an aggregator, so that rounds, secure sums and networks carry it like any other sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from evenhand.errors import EvenhandError, whole_number
from evenhand.privacy.quantile import Histogram
from evenhand.secure import masked_words
from evenhand.types import Key, PyTree, Sum, Summation, Upload

__all__ = ["quantile_sum"]


def quantile_sum(
    counting: Histogram,
    *,
    theta: float,
    fewest: int = 2,
    integers_only: bool = False,
    at_server: bool = False,
) -> Sum:
    r"""Reduces clients' losses to their private quantile, through a masked sum of noisy histograms.

    .. math:: \text{lift: } \ell_k \mapsto \big((c\, x_k + \xi_k) \bmod M,\ 1\big), \qquad
        \text{lower: } (s, m) \mapsto l_{j^*}

    in the symbols of :func:`quantile`.  What a client uploads is its loss, a scalar, as ``Upload.delta``: it is lifted
    on the client, and neither the report nor the sum shows it.

    Args:
      counting: from :func:`histogram` or :func:`histogram_for`.
      theta: the tail fraction in (0, 1]; with 1 clients send zeros, and the direction is 0, below every loss.
      fewest: clients below which a sum is given up, and the direction is 0; what :func:`concentrated` was given.
      integers_only: leave out the masks, which cancel, as for :func:`evenhand.aggregators.secure`.  The direction is
        the same to the bit, and clients stream.
      at_server: the server adds Gaussian noise of ``counting.sigma`` to the sum, rounded to whole numbers, and clients
        add none.  It must then be trusted with the sum, and nothing rests on how many clients there are: the noisy
        count stands for them, and ``fewest`` has no effect.

    Returns:
      A sum whose direction is a float32 scalar.

    Raises:
      EvenhandError: ``theta`` outside (0, 1], or ``fewest`` not a whole number from 1.  When a run starts: uploads are
        not scalars.

    Edge cases: a loss that is not finite is rejected by the engine before it is counted.  The server learns how many
    clients take part.  Filtering with a direction of 0 keeps all of them.

    Differs from the paper: sums are taken modulo :math:`2^{32}` and then modulo :math:`M`, which is the same number; on
    a network the masks are modulo :math:`M`, so that the server sees no more than that.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> from evenhand.privacy import histogram
      >>> rule = quantile_sum(histogram(8, largest=8.0, sigma=0.0), theta=0.5)
      >>> losses = jnp.array([0.5, 1.5, 1.7, 2.2, 3.3, 4.1, 5.0, 7.9])
      >>> float(eh.aggregators.aggregate(rule, losses))
      3.0

    Source: Pillutla et al., *Federated Learning with Superquantile Aggregation for Heterogeneous Data*, Machine
    Learning 2023, algorithm 2.
    """
    if not 0.0 < theta <= 1.0:
        raise EvenhandError(f"quantile_sum(theta={theta}): the tail fraction must lie in (0, 1].")
    whole_number("quantile_sum(fewest=)", fewest, 1)
    clean = counting._replace(sigma=0.0) if at_server else counting

    def init(like: PyTree, num_clients: int) -> PyTree:
        if [leaf.shape for leaf in jax.tree.leaves(like)] != [()]:
            raise EvenhandError("quantile_sum(): clients must upload one number each, their loss.")
        return ()

    def lift(upload: Upload, public: PyTree, key: Key) -> PyTree:
        (loss,) = jax.tree.leaves(upload.delta)
        numbers = jnp.zeros(counting.nodes, jnp.uint32) if theta == 1.0 else clean.encode(loss, key)
        return numbers, jnp.uint32(1)

    def lower(total: PyTree, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        numbers, clients = total
        if at_server:
            # To round what is noisy costs nothing: the sum gives away what a Gaussian mechanism does.
            noise = jnp.round(counting.sigma * jax.random.normal(key, (counting.nodes,), jnp.float32))
            noisy = numbers.astype(jnp.uint32) + lax.bitcast_convert_type(noise.astype(jnp.int32), jnp.uint32)
            return counting.decode(counting.modulo(noisy), None, theta=theta), state
        edge = counting.decode(counting.modulo(numbers.astype(jnp.uint32)), clients, theta=theta)
        return jnp.where(clients >= jnp.uint32(fewest), edge, jnp.float32(0)), state

    return Sum(
        init,
        lift,
        lower,
        summation=Summation(counting.bits, None if integers_only else masked_words),
    )
