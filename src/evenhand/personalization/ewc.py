"""Finetuning held back by elastic weight consolidation: the more a parameter matters globally, the less it moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import local, tree
from evenhand.errors import whole_number
from evenhand.personalization._after import after
from evenhand.personalization._beside import check_method, non_negative
from evenhand.types import Algorithm, Array, ClientData, Key, Params

__all__ = ["ewc"]


def ewc(method: Algorithm, work: local.Work, *, lam: float, batches: int = 4) -> Algorithm:
    r"""Finetuning with elastic weight consolidation (EWC): the penalty is weighted by the Fisher information.

    .. math::
        \min_v F_k(v) + \frac{\lambda}{2} \sum_i f_i (v_i - w^T_i)^2, \qquad
        f_i = \frac1B \sum_{b=1}^B \big( \nabla_i F_k(w^T; b) \big)^2

    Args:
      method: any method, as in :func:`evenhand.personalization.finetune`.
      work: the finetuning, made by :func:`evenhand.local.sgd`.
      lam: :math:`\lambda \ge 0`.
      batches: ``B``, the number of batches from which :math:`f` is estimated, once, at :math:`w^T`.

    Raises:
      EvenhandError: as for ``finetune``; or ``batches`` is not a whole number above 0.

    Edge cases: ``lam=0`` is plain finetuning; :math:`f = 1` would be Ditto's finetuning form.

    Does not differ from the authors' code: squares of the gradients of batches, not of examples.  Elsewhere EWC squares
    the gradient of each example.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(ewc(eh.algorithms.fedavg(work), work, lam=10.0), data, rounds=2)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Yu, Bagdasaryan and Shmatikov, *Salvaging Federated Learning by Local Adaptation*, 2020; Li et al., *Ditto*,
    ICML 2021, appendix C.2.
    """
    check_method("ewc", method, work)
    non_negative("ewc", "lam", lam)
    whole_number("batches", batches, 1)
    schedule, estimate, _ = local.parts_of(work, "ewc")

    def fisher(params: Params, data: ClientData, key: Key) -> Params:
        batch = schedule.draw(data, key)

        def add(i: Array, total: Params) -> Params:
            gradient = estimate(params, batch(i), jax.random.fold_in(key, i))
            return tree.add(total, jax.tree.map(jnp.square, gradient))

        return tree.scale(1.0 / batches, lax.fori_loop(0, batches, add, tree.zeros_like(params)))

    def adapt(params: Params, data: ClientData, key: Key) -> Params:
        return work.solve(params, data, key, _weighted(lam, fisher(params, data, key), params))[0]

    return after(method, adapt, f"ewc({method.name or 'method'}, lam={lam:g})")


def _weighted(lam: float, fisher: Params, anchor: Params) -> optax.GradientTransformation:
    """Adds the gradient of the penalty."""

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None
    ) -> tuple[Params, optax.OptState]:
        return jax.tree.map(lambda g, f, w, a: g + lam * f * (w - a), updates, fisher, params, anchor), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
