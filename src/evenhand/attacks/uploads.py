"""False uploads that a malicious client makes of its own or of the model: noise, other lengths and signs, nothing."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jax.core import Tracer

from evenhand import tree
from evenhand.errors import EvenhandError, real_number
from evenhand.types import Array, Attack, Key, Params, PyTree

__all__ = ["false_sum", "gaussian", "model_replacement", "non_finite", "random_model", "sign_flip", "zero"]


def gaussian(fraction: float = 0.0, *, std: float | None = None) -> Attack:
    r"""Sends noise in place of the update: :math:`\Delta_k \leftarrow \mathcal N(0, \sigma^2 I)`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      std: :math:`\sigma`; None: the standard deviation over all coordinates of the update that it replaces.

    Raises:
      EvenhandError: ``std`` below 0.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> noise = gaussian(0.2, std=1e3).upload({"w": jnp.zeros(10_000)}, jax.random.key(0))
      >>> 950 < float(jnp.std(noise["w"])) < 1050
      True

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 2.1, attack A2.
    """
    if std is not None and not 0.0 <= real_number(std) < math.inf:
        raise EvenhandError(f"gaussian(std={std!r:.40}): give a number of at least 0.")

    def upload(delta: PyTree, key: Key) -> PyTree:
        return _noise(_deviation(jax.tree.leaves(delta)) if std is None else jnp.float32(std), delta, key)

    return Attack(fraction, upload=upload)


def random_model(fraction: float = 0.0) -> Attack:
    r"""Proposes a random model as long as the one that was broadcast: :math:`\Delta_k \leftarrow r - w`.

    .. math:: r = \|w\| \, \frac{z}{\|z\|}, \qquad z \sim \mathcal N(0, I)

    with :math:`w` the model that the client has received.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.

    Raises:
      EvenhandError: when a run begins, a method whose uploads are not of the form of the model, such as SCAFFOLD's, or
        that sends only a part of the model, such as FedAlt.

    Edge cases: of a model of zeros, :math:`r = 0`, so malicious clients send zeros until it has been trained.  Of a
    method of several phases, only the last one's uploads are false.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> w = {"w": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}
      >>> sent = random_model(0.2).reply(jax.tree.map(jnp.zeros_like, w), w, jax.random.key(0))
      >>> round(float(jnp.hypot(jnp.hypot(*(sent["w"] + w["w"])), sent["b"] + w["b"])), 4)
      5.0

    Source: ``gauss2`` in the code of Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022.
    """

    def reply(delta: PyTree, params: Params, key: Key) -> PyTree:
        sent, received = (
            (jax.tree.structure(values), [jnp.shape(leaf) for leaf in jax.tree.leaves(values)])
            for values in (delta, params)
        )
        if sent != received:
            raise EvenhandError(
                "random_model(): clients of this method do not upload a changed model: give another attack, such as "
                "gaussian(0.2)."
            )
        noise = _noise(jnp.float32(1.0), delta, key)
        length = tree.norm(params) / jnp.maximum(tree.norm(noise), 1e-30)
        return jax.tree.map(lambda r, w: (length * r - w).astype(r.dtype), noise, params)

    return Attack(fraction, reply=reply)


def model_replacement(fraction: float = 0.0, *, boost: float) -> Attack:
    r"""Model replacement: boosts the update so that the mean becomes the client's own model: :math:`b \Delta_k`.

    With :math:`b` the size of the cohort and equal weights, one malicious client replaces the model by its own.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      boost: :math:`b`; any finite factor, such as 0.5, too.

    Raises:
      EvenhandError: ``boost`` not finite.

    Source: Bagdasaryan et al., *How to Backdoor Federated Learning*, AISTATS 2020, section 4.2; Ditto's attack A3.
    """
    check_factor("model_replacement(boost", boost)
    return Attack(fraction, upload=lambda delta, key: tree.scale(boost, delta))


def sign_flip(fraction: float = 0.0, *, scale: float = 1.0) -> Attack:
    r"""Sends the update in the opposite direction: :math:`-s \Delta_k`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      scale: :math:`s`.

    Raises:
      EvenhandError: ``scale`` not finite.

    Source: Allen-Zhu, Ebrahimianghazani, Li and Alistarh, *Byzantine-Resilient Non-Convex Stochastic Gradient Descent*,
    ICLR 2021, section 5.
    """
    check_factor("sign_flip(scale", scale)
    return Attack(fraction, upload=lambda delta, key: tree.scale(-scale, delta))


def zero(fraction: float = 0.0) -> Attack:
    """Sends nothing but zeros, with the full weight.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.

    Source: none; what a free rider sends.
    """
    return Attack(fraction, upload=lambda delta, key: tree.zeros_like(delta))


_NonFinite: TypeAlias = Literal["nan", "inf"]


def non_finite(fraction: float = 0.0, *, value: _NonFinite = "nan") -> Attack:
    """Sends NaN or infinity: such uploads are rejected and counted, whatever the aggregator.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      value: which.

    Raises:
      EvenhandError: another ``value``.

    Source: none; what a client with a broken machine sends.
    """
    if value not in get_args(_NonFinite):
        raise EvenhandError(f"non_finite(value={value!r:.40}): give 'nan' or 'inf'.")
    return Attack(
        fraction,
        upload=lambda delta, key: jax.tree.map(lambda leaf: jnp.full_like(leaf, float(value)), delta),
    )


def false_sum(fraction: float = 0.0, *, scale: float = -1e3) -> Attack:
    r"""Adds false numbers to a sum in each of its passes: :math:`s x_k` in place of :math:`x_k`.

    A false *upload* is still weighted by the client's software as the aggregator asks; this client replaces the
    product.  Arrays of a single number, such as its weight, are sent as they should be.  A server that sees single
    uploads could check the product.  Under :func:`evenhand.aggregators.secure` it cannot, and only the fixed point
    bounds what the client adds.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      scale: :math:`s`.

    Raises:
      EvenhandError: ``scale`` not finite; when a run begins, an aggregator that sends other numbers than sums of real
        ones.  Aggregators that take uploads one by one, such as Krum, have no sums, and this does nothing to them.

    Example:
      >>> import evenhand as eh, jax, jax.numpy as jnp
      >>> numbers = (jnp.array([1.0, 2.0]), jnp.float32(4.0))
      >>> [x.tolist() for x in false_sum(0.1, scale=-10.0).lifted(numbers, (), jax.random.key(0))]
      [[-10.0, -20.0], 4.0]

    Source: none; what a secure sum cannot rule out without proofs of what was added.
    """

    check_factor("false_sum(scale", scale)

    def lifted(numbers: PyTree, public: PyTree, key: Key) -> PyTree:
        return jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else scale * leaf, numbers)

    return Attack(fraction, lifted=lifted)


def check_factor(call: str, factor: float) -> None:
    """Checks that a factor is finite, unless it is traced; ``call`` is the attack's, up to the argument's name."""
    if not isinstance(factor, Tracer) and not math.isfinite(real_number(factor)):
        raise EvenhandError(f"{call}={factor!r:.40}): give a finite factor.")


def _noise(scale: Array, like: PyTree, key: Key) -> PyTree:
    """Normal noise of this standard deviation, a tree like another one."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    noise = [
        (scale * jax.random.normal(leaf_key, leaf.shape)).astype(leaf.dtype)
        for leaf_key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noise)


def _deviation(leaves: list[Array]) -> Array:
    """The standard deviation over the entries of all arrays."""
    count = sum(leaf.size for leaf in leaves)
    mean = sum((jnp.sum(leaf) for leaf in leaves), jnp.float32(0.0)) / count
    squares = sum((jnp.sum(jnp.square(leaf - mean)) for leaf in leaves), jnp.float32(0.0))
    return jnp.sqrt(squares / count)
