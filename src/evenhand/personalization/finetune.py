"""Finetuning: clients train the model that they are served once more, for themselves, before they use it.

Three things may hold them back: a quadratic penalty (:func:`finetune`), one that is weighted by what each parameter
matters globally (:func:`ewc`), and how far their predictions move (:func:`skl`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import lax

from evenhand import local, tree
from evenhand._paths import Personal, division
from evenhand.algorithms.beside import check_method, non_negative, uncovered
from evenhand.errors import EvenhandError, whole_number
from evenhand.personalization._partial import restricted
from evenhand.streams import Purpose, stream
from evenhand.types import Algorithm, Array, ClientData, Key, Params

__all__ = ["ewc", "finetune", "skl"]


def finetune(
    method: Algorithm, work: local.Work, *, lam: float = 0.0, personal: Personal | None = None
) -> Algorithm:
    r"""Finetuning: trains as the method does; before use, each client finetunes the model on its own examples.

    .. math:: v_k \leftarrow w^T, \qquad v_k \leftarrow v_k - \eta \big( \nabla F_k(v_k; b) + \lambda (v_k - w^T) \big)

    Nobody keeps a state: this is the stateless form of Ditto, and with ``lam=0`` plain finetuning.  It happens at each
    evaluation anew, from the model :math:`w^T` that the method serves then, for clients that never took part, too.

    Args:
      method: any method; it is trained as if this were not here.
      work: the finetuning, with its step size :math:`\eta`.
      lam: :math:`\lambda \ge 0`.
      personal: the only parameters that are trained, as in :func:`evenhand.personalization.fedalt`; None: all.

    Raises:
      EvenhandError: ``lam`` negative or not finite; different models; a path that no parameter has.

    Edge cases: around a method with personal models, these are finetuned, and are the anchor; around another
    finetuning, that comes first.  A client without training examples is served :math:`w^T` itself.

    Differs from the authors' code, which does :math:`\max(\lfloor E n_k / B \rfloor, E)` steps in ``E`` epochs; here
    the last, smaller batch of each epoch counts, too.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> method = eh.algorithms.fedavg(work)
      >>> plain, tuned = (eh.simulate(one, data, rounds=2) for one in (method, finetune(method, work, lam=0.1)))
      >>> bool((plain.params["bias"] == tuned.params["bias"]).all())
      True
      >>> bool(tuned.history["train_loss"][-1] < plain.history["train_loss"][-1])
      True

    Source: Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, section 3.2 and
    appendix D.1; of one part only: Pillutla et al., ICML 2022.
    """
    check_method("finetune", method, work, keeps=True)
    non_negative("finetune", "lam", lam)
    part = None if personal is None else division(work.model, personal)
    on_part = None if part is None else restricted(work, part, "finetune", personal=True)

    def adapt(params: Params, data: ClientData, key: Key) -> Params:
        if part is None or on_part is None:
            pull = local.proximal(lam, params) if lam > 0 else optax.identity()
            return work.solve(params, data, key, pull)[0]
        fixed, own = (part.part(params, personal=which) for which in (False, True))
        return part.whole(fixed, on_part(own, fixed, data, key, local.proximal(lam, own)))

    return _after(method, adapt, f"finetune({method.name or 'method'}, lam={lam:g})")


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
    check_method("ewc", method, work, keeps=True)
    non_negative("ewc", "lam", lam)
    batches = whole_number("batches", batches, 1)
    schedule, estimate, _ = local.parts_of(work, "ewc")

    def fisher(params: Params, data: ClientData, key: Key) -> Params:
        batch = schedule.draw(data, key)

        def add(i: Array, total: Params) -> Params:
            gradient = estimate(params, batch(i), jax.random.fold_in(key, i))
            return tree.add(total, jax.tree.map(jnp.square, gradient))

        return tree.scale(1.0 / batches, lax.fori_loop(0, batches, add, tree.zeros_like(params)))

    def adapt(anchor: Params, data: ClientData, key: Key) -> Params:
        weights = fisher(anchor, data, key)

        def pull(updates: Params, params: Params | None) -> Params:
            return jax.tree.map(lambda g, f, w, a: g + lam * f * (w - a), updates, weights, params, anchor)

        return work.solve(anchor, data, key, optax.stateless(pull))[0]

    return _after(method, adapt, f"ewc({method.name or 'method'}, lam={lam:g})")


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
    check_method("skl", method, work, keeps=True)
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

    return _after(method, adapt, f"skl({method.name or 'method'}, lam={lam:g})")


def divergence(outputs: Array, before: Array) -> Array:
    """The symmetrised divergence of each row of logits from those before, ``(n,)``."""
    if jnp.ndim(outputs) < 2 or outputs.shape[-1] < 2:
        raise EvenhandError(
            "skl() compares predicted classes: it needs a model whose outputs are logits, (rows, classes)."
        )
    log_p, log_q = jax.nn.log_softmax(outputs), jax.nn.log_softmax(before)
    terms = (jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)
    return jnp.sum(terms, axis=tuple(range(1, terms.ndim)))


def _after(method: Algorithm, adapt: Callable[[Params, ClientData, Key], Params], name: str) -> Algorithm:
    """``method`` with one more thing that clients do to their models before each evaluation."""
    before = method.adapt
    earlier = before.steps if isinstance(before, _InTurn) else () if before is None else (before,)
    return method._replace(adapt=_InTurn((*earlier, adapt)), privacy=uncovered(method.privacy), name=name)


@dataclass(frozen=True)  # jax.jit takes no named tuple
class _InTurn:
    """What clients do to their models before each evaluation, each step with draws of its own."""

    steps: tuple[Callable[[Params, ClientData, Key], Params], ...]

    def __call__(self, params: Params, data: ClientData, key: Key) -> Params:
        first, *further = self.steps
        params = first(params, data, key)
        for number, step in enumerate(further):
            params = step(params, data, stream(key, Purpose.PERSONAL, number))
        return params
