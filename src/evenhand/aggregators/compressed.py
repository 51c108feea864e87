"""Short uploads in front of any aggregator: numbers of few bits, and the largest numbers alone."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from evenhand import tree
from evenhand.aggregators._reduce import check_then
from evenhand.aggregators.mean import mean
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Aggregator, Array, Compression, Key, PyTree, Sum

__all__ = ["quantized", "top_k"]

_MOST_BITS = 16
"""Beyond, a float32 no longer holds how far a number is between its two neighbours."""


def quantized(bits: int = 8, *, then: Aggregator = mean()) -> Aggregator:
    r"""Quantization (QSGD): few bits per number, with random rounding that is right on average.

    .. math::
        Q(\Delta)_i = \frac{M}{s} \operatorname{sgn}(\Delta_i)
            \Big\lfloor \frac{s |\Delta_i|}{M} + u_i \Big\rfloor, \qquad
        M = \max_i |\Delta_i|, \quad s = 2^{b - 1} - 1, \quad u_i \sim \mathrm{Unif}[0, 1)

    for each array of the upload, with an :math:`M` of its own.  A client sends :math:`M`, and for each number its sign
    and one of the levels :math:`0, \dots, s`.  Then

    .. math:: \mathbb E\, Q(\Delta) = \Delta, \qquad
        \mathbb E \|Q(\Delta) - \Delta\|^2 \le \frac{d M^2}{4 s^2} \le \frac{d}{4 s^2} \|\Delta\|^2

    where :math:`d` is how many numbers the array has.

    Args:
      bits: :math:`b`, from 2 (the signs of some numbers, and zeros) to 16.
      then: reduces the uploads as the server reads them off.

    Raises:
      EvenhandError: ``bits`` outside that range, or a ``then`` that is a secure sum or compresses uploads already.

    Robustness: that of ``then``.  In a simulation an attack replaces what the server has read off, so that a malicious
    client can send more than so many bits hold.

    Edge cases: an array of zeros stays; one with a number that is not finite becomes NaN, and its upload is rejected.
    Clients keep nothing, so that a client may be drawn twice in one round.

    Differs from the paper: the scale is the largest magnitude, as in its experiments, and not the Euclidean norm of its
    theorem, whose variance grows with :math:`\sqrt d`; levels have a fixed number of bits, and are not coded further.

    Cost: ``bits`` per number and 32 per array, up; the broadcast stays as it is.  The server lifts the uploads itself,
    so that an aggregator of several passes needs one exchange.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> uploads = jnp.array([[1.0, -0.3, 0.0], [1.0, 0.4, 0.2]])
      >>> eh.aggregators.aggregate(quantized(2), uploads).tolist()
      [1.0, 0.0, 0.0]
      >>> [round(x, 3) for x in eh.aggregators.aggregate(quantized(16), uploads).tolist()]
      [1.0, 0.05, 0.1]

    Source: Alistarh et al., *QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding*, NeurIPS 2017,
    section 3.1.
    """
    bits = whole_number("quantized(bits=)", bits, 2, _MOST_BITS)
    levels = 2 ** (bits - 1) - 1

    def shorten(delta: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        leaves, structure = jax.tree.flatten(delta)
        sent = [_rounded(leaf, levels, jax.random.fold_in(key, i)) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, sent), memory

    def bits_of(like: PyTree) -> int:
        return sum(32 + bits * leaf.size for leaf in jax.tree.leaves(like))

    return _before(then, "quantized", Compression(lambda like: (), shorten, bits_of))


def _rounded(leaf: Array, levels: int, key: Key) -> Array:
    """An array with its numbers on a grid of so many levels up to the largest magnitude."""
    wide = tree.widened(leaf)  # a uniform number of bfloat16 is a multiple of 1/128
    step = jnp.max(jnp.abs(wide), initial=0.0) / levels
    place = jnp.abs(wide) / jnp.where(step > 0, step, 1.0)
    below = jnp.floor(place)
    # A choice, not the floor of a sum: the sum would be rounded once more.
    up = jax.random.uniform(key, wide.shape, wide.dtype) < place - below
    rounded = jnp.sign(wide) * jnp.minimum(jnp.where(up, below + 1, below), levels) * step
    return rounded.astype(leaf.dtype)


def top_k(fraction: float, *, then: Aggregator = mean()) -> Aggregator:
    r"""Top-k sparsification with error feedback: sends the largest numbers, and adds the rest to the next upload.

    .. math::
        c_k = e_k + \Delta_k, \qquad \hat\Delta_k = \operatorname{top}_K(c_k), \qquad
        e_k \leftarrow c_k - \hat\Delta_k, \qquad K = \lceil \rho d \rceil

    where :math:`\operatorname{top}_K` keeps the :math:`K` numbers of the largest magnitude among all :math:`d` of the
    upload, and sets the others to 0.  The memory :math:`e_k` of client :math:`k` begins with zeros, and is part of what
    the client keeps between rounds.  No number is lost: what was sent and the memory are together the sum of the
    updates, up to the rounding of :math:`e_k + \Delta_k`.

    Args:
      fraction: :math:`\rho`, above 0; 1 sends everything.
      then: reduces the uploads as the server reads them off.

    Raises:
      EvenhandError: ``fraction`` outside (0, 1], or a ``then`` that is a secure sum or compresses uploads already.
        When a run starts: the method's sampling can draw a client twice in one round.

    Robustness: that of ``then`` against uploads with many zeros, to which medians per coordinate answer with zeros.  In
    a simulation an attack replaces what the server has read off, so that a malicious client can send more numbers.

    Edge cases: of equal magnitudes, the first are sent.  A client that is absent, or whose upload is rejected, keeps
    the memory that it had; what it had found in a rejected update is lost.  An upload with a number that is not finite
    is NaN, and is rejected.  Outside training, :func:`aggregate` has an empty memory.

    Differs from the papers: they have clients that take part in every step, and a memory in units of the gradient times
    the step size; here it is in units of the update, and waits until the client is drawn again.

    Cost: :math:`K` numbers and as many positions, of 32 bits each, or all :math:`d` numbers where that is less.  A
    model's worth of memory at each client, and a partial sort of :math:`d` numbers.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> eh.aggregators.aggregate(top_k(0.3), jnp.array([[5.0, -1.0, 0.5], [1.0, -3.0, 0.5]])).tolist()
      [2.5, -1.5, 0.0]

    Source: Stich, Cordonnier and Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018, algorithm 1; Karimireddy et al.,
    *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, ICML 2019, algorithm 2.
    """
    if not 0.0 < real_number(fraction) <= 1.0:
        raise EvenhandError(
            f"top_k(fraction={fraction!r:.40}): give a share of the numbers, above 0 and at most 1."
        )

    def count_of(size: int) -> int:
        # 29 % of 100 are 29, not 29.000000000000004.
        return min(size, max(1, math.ceil(fraction * size - 1e-9)))

    def shorten(delta: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        owed, unflatten = ravel_pytree(tree.add(memory, delta))
        if (count := count_of(owed.size)) == owed.size:
            return unflatten(owed), tree.zeros_like(memory)
        largest = jax.lax.top_k(jnp.abs(owed), count)[1]
        chosen = jnp.zeros(owed.shape, bool).at[largest].set(True)
        # Else what is not finite could stay in the memory, and be found much later.
        sound = jnp.all(jnp.isfinite(owed))
        sent = jnp.where(sound, jnp.where(chosen, owed, 0.0), jnp.nan)
        return unflatten(sent), unflatten(jnp.where(chosen, 0.0, owed))

    def bits_of(like: PyTree) -> int:
        sizes = [(leaf.size, 8 * leaf.dtype.itemsize) for leaf in jax.tree.leaves(like)]
        every, widest = sum(size * bits for size, bits in sizes), max((bits for _, bits in sizes), default=0)
        return min(every, count_of(sum(size for size, _ in sizes)) * (widest + 32))

    return _before(then, "top_k", Compression(tree.zeros_like, shorten, bits_of))


def _before(then: Aggregator, name: str, compression: Compression) -> Aggregator:
    """``then`` on uploads that clients shorten.

    Raises:
      EvenhandError: it cannot be.
    """
    check_then(name, then)
    if then.compression is not None:
        raise EvenhandError(
            f"{name}(then=): this aggregator compresses uploads already: give one of quantized(...) and top_k(...)."
        )
    if isinstance(then, Sum) and then.summation is not None:
        raise EvenhandError(
            f"{name}(then=): this sum needs whole numbers of equal length, so uploads cannot be compressed: "
            "give secure(mean(), bits=32) for half of the bits, or a sum of real numbers, such as mean()."
        )
    return then._replace(compression=compression)
