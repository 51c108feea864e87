"""FedTilt's aggregator: clients weighted by how far they drifted."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.aggregators.mean import reciprocal
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["drift_tilted"]

_SHORTEST = 1e-5
"""Plain distances below this one count as this one."""


def drift_tilted(
    tilt: float,
    *,
    steps: int = 1,
    distance: Literal["squared", "plain"] = "squared",
    start: Literal["zero", "mean"] = "zero",
) -> Stack:
    r"""FedTilt's server: steps towards the point with the least tilted squared distance to the clients' models.

    .. math::
        \tilde R_G(q; w) = \frac1q \log \frac1m \sum_k e^{q \|w_k - w\|^2}, \qquad
        w \leftarrow w - \eta_3 \nabla \tilde R_G, \qquad
        \nabla \tilde R_G = 2 \Big( w - \sum_k p_k w_k \Big), \quad p_k \propto e^{q \|w_k - w\|^2}

    One step of size 1/2 from the broadcast model gives :math:`\sum_k p_k w_k`.  For ``q < 0`` further steps of 1/2 are
    mean shift, which descends to a mode; for ``q > 0`` steps of :math:`1 / (2 + q D^2)`, with ``D`` the largest
    distance between two clients' models, descend to the unique minimiser.  With plain distances
    :math:`\|w_k - w\|` in the place of squared ones,

    .. math::
        \nabla \tilde R_G = \sum_k \beta_k (w - w_k), \qquad
        \beta_k = \frac{p_k}{\max(\|w_k - w\|, 10^{-5})}, \quad p_k \propto e^{q \|w_k - w\|},

    one step gives :math:`\sum_k \beta_k w_k / \sum_k \beta_k`, and further ones have the size
    :math:`1 / (\sum_k \beta_k + \max(q, 0))`.

    Args:
      tilt: :math:`q`, finite; above 0, clients that drifted far count more; below 0, less; 0 is the plain mean for any
        ``steps``, with plain distances the geometric median.
      steps: 1: the one step above; more: this many descent steps.
      distance: ``"squared"`` or ``"plain"``.
      start: where the steps begin: ``"zero"``, the broadcast model, or the ``"mean"`` of the clients' models; for
        ``q < 0`` it decides to which mode they lead.

    Raises:
      EvenhandError: ``tilt`` not finite, ``steps`` not a whole number from 1, or another ``distance`` or ``start``.

    Edge cases: a single client gets all the weight.  Reported weights are ignored.  Distances are over all
    parameters together, in float32: where ``q`` times a squared distance is 1e4, weights are accurate to 1e-3.

    Differs from the paper, which calls the distance Euclidean and squares it in all its formulas; without a tilt it is
    FedAvg with the squared one only.  It gives neither the size nor the number of the steps.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> start = jnp.array([[0.25, 0.5]])
      >>> clients = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]) - start
      >>> step = eh.aggregators.aggregate(drift_tilted(1.0), clients)
      >>> [round(x, 4) for x in (step + start[0]).tolist()]
      [0.1643, 1.4722]

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    equation 10 and algorithm 1, ServerUpdate.
    """
    if not math.isfinite(real_number(tilt)):
        raise EvenhandError(f"drift_tilted(tilt={tilt!r:.40}): the tilt must be finite.")
    steps = whole_number("steps", steps, 1, 10**6)
    for name, value, choices in (
        ("distance", distance, ("squared", "plain")),
        ("start", start, ("zero", "mean")),
    ):
        if str(value) not in choices:  # an array has no truth value
            raise EvenhandError(
                f"drift_tilted({name}={value!r:.40}): give {' or '.join(map(repr, choices))}."
            )
    squared = distance == "squared"

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        clients = uploads.delta
        zero = tree.zeros_like(tree.take(clients, jnp.int32(0)))
        begin = zero if start == "zero" else tree.weighted_mean(clients, present.astype(jnp.float32))
        single = steps == 1 or (tilt == 0 and squared)
        width = _width(clients, present) if squared and tilt > 0 and not single else jnp.float32(0.0)

        def goal(point: PyTree) -> tuple[PyTree, Array]:
            """Where one step leads, and the part of the way there that a descent step goes."""
            distances = jax.vmap(lambda client: tree.norm(tree.subtract(client, point)))(clients)
            shares = _shares(distances, present, tilt, squared)
            if squared:
                part = 2.0 / (2.0 + max(tilt, 0.0) * jnp.square(width))
                return tree.weighted_mean(clients, shares), part
            pulls = shares * reciprocal(jnp.sum(shares)) / jnp.maximum(distances, _SHORTEST)
            pulls = jnp.where(present, pulls, 0.0)
            total = jnp.sum(pulls)
            return tree.weighted_mean(clients, pulls), total * reciprocal(total + max(tilt, 0.0))

        def descend(_: Array, point: PyTree) -> PyTree:
            end, part = goal(point)
            return tree.add(point, tree.scale(part, tree.subtract(end, point)))

        return goal(begin)[0] if single else lax.fori_loop(0, steps, descend, begin), state

    return Stack(lambda like, clients: (), apply)


def _shares(distances: Array, present: Array, tilt: float, squared: bool) -> Array:
    """The clients' weights, the largest of which is 1."""
    if tilt == 0:  # also of one whose distance overflows
        return present.astype(jnp.float32)
    powers = tilt * (jnp.square(distances) if squared else distances)
    largest = jnp.max(jnp.where(present, powers, -jnp.inf))
    # Squares may overflow where their differences do not.
    heaviest = (
        jnp.max(jnp.where(present, distances, -jnp.inf))
        if tilt > 0
        else jnp.min(jnp.where(present, distances, jnp.inf))
    )
    apart = jnp.where(distances == heaviest, 0.0, distances - heaviest)  # also of two that are infinite
    differences = tilt * apart * (distances + heaviest if squared else 1.0)
    gaps = jnp.where(jnp.isfinite(largest), powers - largest, differences)
    return jnp.where(present, jnp.exp(jnp.where(present, gaps, 0.0)), 0.0)


def _width(clients: PyTree, present: Array) -> Array:
    """The largest distance between two clients."""

    def furthest(client: PyTree) -> Array:
        distances = jax.vmap(lambda other: tree.norm(tree.subtract(client, other)))(clients)
        return jnp.max(jnp.where(present, distances, 0.0))

    return jnp.max(jnp.where(present, lax.map(furthest, clients), 0.0))
