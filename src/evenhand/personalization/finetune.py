"""Finetuning: clients train the model that they are served once more, for themselves, before they use it."""

from __future__ import annotations

import optax

from evenhand import local
from evenhand.personalization._after import after
from evenhand.personalization._beside import check_method, non_negative
from evenhand.personalization._division import Personal, division
from evenhand.personalization._partial import restricted
from evenhand.types import Algorithm, ClientData, Key, Params

__all__ = ["finetune"]


def finetune(
    method: Algorithm, work: local.Work, *, lam: float = 0.0, personal: Personal | None = None
) -> Algorithm:
    r"""Finetuning: training stays as it is; before it uses the model, each client trains it on its own examples.

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
    check_method("finetune", method, work)
    non_negative("finetune", "lam", lam)
    part = None if personal is None else division(work.model, personal)
    on_part = None if part is None else restricted(work, part, "finetune", personal=True)

    def adapt(params: Params, data: ClientData, key: Key) -> Params:
        if part is None or on_part is None:
            return work.solve(
                params, data, key, local.proximal(lam, params) if lam > 0 else optax.identity()
            )[0]
        fixed, own = (part.part(params, personal=which) for which in (False, True))
        return part.whole(fixed, on_part(own, fixed, data, key, local.proximal(lam, own)))

    return after(method, adapt, f"finetune({method.name or 'method'}, lam={lam:g})")
