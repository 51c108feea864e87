"""FedTilt's aggregator: clients weighted by how far they drifted."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from evenhand import tree
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["drift_tilted"]


def drift_tilted(tilt: float, *, steps: int = 1) -> Stack:
    r"""FedTilt's server: steps towards the point with the least tilted squared distance to the clients' models.

    .. math::
        \tilde R_G(q; w) = \frac1q \log \frac1m \sum_k e^{q \|w_k - w\|^2}, \qquad
        w \leftarrow w - \eta_3 \nabla \tilde R_G, \qquad
        \nabla \tilde R_G = 2 \Big( w - \sum_k p_k w_k \Big), \quad p_k \propto e^{q \|w_k - w\|^2}

    One step of size 1/2 from the broadcast model gives :math:`\sum_k p_k w_k`.  For ``q < 0`` further steps of 1/2 are
    mean shift, which descends to a mode; for ``q > 0`` steps of :math:`1 / (2 + q D^2)`, with ``D`` the largest
    distance between two clients' models, descend to the unique minimiser.

    Args:
      tilt: :math:`q`, finite; above 0, clients that drifted far count more; below 0, less; 0 is the plain mean for any
        ``steps``.
      steps: 1: one step of size 1/2; more: this many descent steps from the broadcast model.

    Raises:
      EvenhandError: ``tilt`` not finite, or ``steps`` not a whole number from 1.

    Edge cases: a single client gets all the weight.  Reported weights are ignored.  Distances are over all
    parameters together, in float32: where ``q`` times a squared distance is 1e4, weights are accurate to 1e-3.

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
    whole_number("steps", steps, 1, 10**6)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        clients = uploads.delta
        begin = tree.zeros_like(tree.take(clients, jnp.int32(0)))
        if tilt == 0 or steps == 1:
            return tree.weighted_mean(clients, _shares(clients, present, begin, tilt)), state
        rate = 1.0 / (2.0 + tilt * jnp.square(_width(clients, present))) if tilt > 0 else jnp.float32(0.5)

        def descend(_: Array, point: PyTree) -> PyTree:
            goal = tree.weighted_mean(clients, _shares(clients, present, point, tilt))
            return tree.add(point, tree.scale(2.0 * rate, tree.subtract(goal, point)))

        return lax.fori_loop(0, steps, descend, begin), state

    return Stack(lambda like, clients: (), apply)


def _shares(clients: PyTree, present: Array, point: PyTree, tilt: float) -> Array:
    distances = jax.vmap(lambda client: tree.norm(tree.subtract(client, point)))(clients)
    powers = tilt * jnp.square(distances)
    largest = jnp.max(jnp.where(present, powers, -jnp.inf))
    # Squares may overflow where their differences do not.
    heaviest = (
        jnp.max(jnp.where(present, distances, -jnp.inf))
        if tilt > 0
        else jnp.min(jnp.where(present, distances, jnp.inf))
    )
    apart = jnp.where(distances == heaviest, 0.0, distances - heaviest)  # also of two that are infinite
    differences = tilt * apart * (distances + heaviest)
    gaps = jnp.where(jnp.isfinite(largest), powers - largest, differences)
    return jnp.where(present, jnp.exp(jnp.where(present, gaps, 0.0)), 0.0)


def _width(clients: PyTree, present: Array) -> Array:
    """The largest distance between two clients."""

    def furthest(client: PyTree) -> Array:
        distances = jax.vmap(lambda other: tree.norm(tree.subtract(client, other)))(clients)
        return jnp.max(jnp.where(present, distances, 0.0))

    return jnp.max(jnp.where(present, lax.map(furthest, clients), 0.0))
