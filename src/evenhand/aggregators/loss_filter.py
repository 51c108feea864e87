"""k-loss: the uploads of the clients with the largest losses are dropped."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.aggregators._stacked import least, mean_of
from evenhand.errors import whole_number
from evenhand.types import Array, Key, Need, PyTree, Stack, Upload

__all__ = ["loss_filter"]


def loss_filter(malicious: int, *, several: bool = False, weighted: bool = False) -> Stack:
    r"""The upload of the client with the largest loss but ``malicious``: k-loss.

    .. math:: \Delta = \Delta_k, \qquad F_k(w^t) \text{ the } (f + 1)\text{-th largest loss of the cohort}

    Args:
      malicious: :math:`f`, how many uploads of a cohort are dropped.
      several: take the mean of all uploads but those with the ``malicious`` largest losses.
      weighted: whether that mean has the reported weights.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: against clients that train on poisoned examples and report the loss on them.  One that lies about its
    loss is kept, and the form with one upload then takes it alone.  Without ``weighted`` each client counts alike,
    whatever weight it reports: one with 0.6 % of the examples as much as one with 30 %.

    Edge cases: of equal losses the last are dropped; with at most ``malicious`` accepted uploads, zeros.

    Differs from the paper: its text says the k-th largest loss, its appendix and code the (k+1)-th, as here.  Its code
    for StackOverflow keeps several uploads, which is ``several=True``.

    Cost: each upload is read once; clients must report their loss.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> deltas, losses = jnp.array([[1.0], [2.0], [3.0], [4.0]]), jnp.array([0.5, 2.0, 1.0, 3.0])
      >>> eh.aggregators.aggregate(loss_filter(1), deltas, losses=losses).tolist()
      [2.0]
      >>> eh.aggregators.aggregate(loss_filter(1, several=True), deltas, losses=losses).tolist()
      [2.0]

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 4.3 and appendix D.4.
    """
    whole_number("loss_filter(malicious=)", malicious, 0)

    def apply(uploads: Upload, present: Array, state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        count = jnp.sum(present) - malicious
        kept = least(uploads.loss, present, count)
        if not several:
            kept = kept & ~least(uploads.loss, present, count - 1)
        return mean_of(uploads, kept, weighted), state

    return Stack(
        lambda like, clients: (),
        apply,
        needs_loss=True,
        needs=(Need.over(f"loss_filter({malicious})", malicious, lambda m: m > malicious),),
    )
