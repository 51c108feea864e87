"""Local loops that are not plain descent, from the parts that plain descent is made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import local, tree
from evenhand.types import Array, ClientData, Key, Model, Params, PyTree


def pfedme(
    model: Model, schedule: local.Batches, *, step: float, lam: float, inner_step: float, inner_steps: int
) -> local.Work:
    """pFedMe (Dinh et al., 2020): a step along the gradient of the Moreau envelope, lam (w - theta), for each batch."""
    estimate = local.batch_gradient(model)

    def solve(
        params: Params, data: ClientData, key: Key, correction: optax.GradientTransformation
    ) -> tuple[Params, PyTree]:
        def envelope_step(carry: PyTree, batch: local.Batch, key: Key) -> PyTree:
            w, state = carry
            pull = local.proximal(lam, w)

            def approach(_: Array, theta: Params) -> Params:
                gradient, _ = pull.update(estimate(theta, batch, key), optax.EmptyState(), theta)
                return tree.subtract(theta, tree.scale(inner_step, gradient))

            theta = lax.fori_loop(0, inner_steps, approach, w)
            gradient, state = correction.update(tree.scale(lam, tree.subtract(w, theta)), state, w)
            return tree.subtract(w, tree.scale(step, gradient)), state

        return local.over_batches(schedule, envelope_step, (params, correction.init(params)), data, key)

    return local.Work(model, solve, schedule.effort)


def apfl(
    model: Model, schedule: local.Batches, *, step: float, data: ClientData, key: Key, begin: PyTree
) -> PyTree:
    """Adaptive APFL (Deng et al., 2020): ``(w, v, alpha)`` after one round, on the same batches for both models."""
    estimate = local.batch_gradient(model)

    def one(carry: PyTree, batch: local.Batch, key: Key) -> PyTree:
        w, v, alpha = carry
        mixed = tree.add(tree.scale(alpha, v), tree.scale(1 - alpha, w))
        slope = estimate(mixed, batch, key)
        products = jax.tree.map(lambda v, w, g: jnp.sum((v - w) * g), v, w, slope)
        along = sum(jax.tree.leaves(products), jnp.float32(0.0))
        return (
            tree.subtract(w, tree.scale(step, estimate(w, batch, key))),
            tree.subtract(v, tree.scale(step * alpha, slope)),
            jnp.clip(alpha - step * along, 0.0, 1.0),
        )

    return local.over_batches(schedule, one, begin, data, key)
