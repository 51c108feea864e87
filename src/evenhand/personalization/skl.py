"""Finetuning held back by how far the predictions move from those of the global model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from evenhand import local
from evenhand.errors import EvenhandError
from evenhand.personalization._after import after
from evenhand.personalization._beside import check_method, non_negative
from evenhand.types import Algorithm, Array, ClientData, Key, Params

__all__ = ["skl"]


def skl(method: Algorithm, work: local.Work, *, lam: float) -> Algorithm:
    r"""Finetuning with a symmetrised Kullback-Leibler divergence (SKL) between new and old predictions as penalty.

    .. math::
        \min_v F_k(v) + \frac{\lambda}{2 n_k} \sum_{x \in D_k} \sum_c (p_c - q_c) (\log p_c - \log q_c), \qquad
        p = \mathrm{softmax}(f(x; v)), \; q = \mathrm{softmax}(f(x; w^T))

    Args:
      method: any method, as in :func:`evenhand.personalization.finetune`.
      work: the finetuning, made by :func:`evenhand.local.sgd` without ``risk``; its model's outputs are logits.
      lam: :math:`\lambda \ge 0`.

    Raises:
      EvenhandError: as for ``finetune``; the work is of another kind; or the outputs are not logits of classes.

    Edge cases: ``lam=0`` is plain finetuning; at :math:`w^T` the penalty and its gradient are 0.

    Differs from the authors' code, which takes :math:`\lambda` times the sum over all of the client's examples at each
    step: its :math:`\lambda` is :math:`2 n_k` times smaller.  Here it is a mean over the batch, like the loss.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(skl(eh.algorithms.fedavg(work), work, lam=1.0), data, rounds=2)
      >>> bool(run.history["test_accuracy"][-1] > run.history["test_accuracy"][0])
      True

    Source: Yu, Bagdasaryan and Shmatikov, *Salvaging Federated Learning by Local Adaptation*, 2020; Li et al., *Ditto*,
    ICML 2021, appendix C.2.
    """
    check_method("skl", method, work)
    non_negative("skl", "lam", lam)
    schedule, _, client_opt = local.parts_of(work, "skl")
    if work.of_risk is None:
        raise EvenhandError(
            "skl() adds to the mean loss: make the work with eh.local.sgd(model, ...), without risk=."
        )
    model = work.model

    def adapt(params: Params, data: ClientData, key: Key) -> Params:
        held = model._replace(
            apply=lambda own, x: (model.apply(own, x), model.apply(params, x)),
            apply_train=None
            if (forward := model.apply_train) is None
            else lambda own, x, key: (forward(own, x, key), model.apply(params, x)),
            losses=lambda outputs, y: model.losses(outputs[0], y) + 0.5 * lam * divergence(*outputs),
        )
        solve = local.descent(schedule, local.batch_gradient(held), client_opt)
        return solve(params, data, key, optax.identity())[0]

    return after(method, adapt, f"skl({method.name or 'method'}, lam={lam:g})")


def divergence(outputs: Array, before: Array) -> Array:
    """The symmetrised divergence of each row of logits from those before, ``(n,)``."""
    if jnp.ndim(outputs) < 2 or outputs.shape[-1] < 2:
        raise EvenhandError(
            "skl() compares predicted classes: it needs a model whose outputs are logits, (rows, classes)."
        )
    log_p, log_q = jax.nn.log_softmax(outputs), jax.nn.log_softmax(before)
    terms = (jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)
    return jnp.sum(terms, axis=tuple(range(1, terms.ndim)))
