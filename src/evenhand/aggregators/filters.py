"""Filters: k-norm drops the longest uploads, k-loss those of the clients with the largest losses."""

from __future__ import annotations

import jax.numpy as jnp

from evenhand.aggregators.stacked import least, mean_of, norms, robust
from evenhand.errors import truth_value
from evenhand.types import Array, Key, PyTree, Stack, Upload

__all__ = ["loss_filter", "norm_filter"]


def norm_filter(malicious: int, *, weighted: bool = False) -> Stack:
    r"""k-norm: averages the uploads after dropping a given number of the longest.

    .. math:: \Delta = \frac{1}{m - f} \sum_{k \in S} \Delta_k, \qquad
        S \text{ without the } f \text{ uploads of largest } \|\Delta_k\|

    Args:
      malicious: :math:`f`, how many uploads of a cohort are dropped.
      weighted: whether the mean has the reported weights.

    Raises:
      EvenhandError: ``malicious`` below 0.

    Robustness: only against long uploads: malicious ones that are no longer than the honest are all kept, and honest
    atypical clients are the first to go.  Without ``weighted`` each client counts alike, whatever it
    reports: one with 0.6 % of the examples as much as one with 30 %.  With it, one that reports the largest admissible
    weight has that weight's share: see :func:`evenhand.aggregators.bounded_weights`.

    Edge cases: ``malicious=0`` gives the mean; of equally long uploads the last are dropped; with at most ``malicious``
    accepted uploads, zeros.  :math:`m` counts the accepted uploads.

    Cost: each upload is read twice.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp
      >>> eh.aggregators.aggregate(norm_filter(1), jnp.array([[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]])).tolist()
      [0.5, 1.0]

    Source: Li, Hu, Beirami and Smith, *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021,
    appendix D.4.
    """
    weighted = truth_value("weighted", weighted)

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        kept = least(norms(uploads.delta), present, jnp.sum(present) - malicious)
        return mean_of(uploads, kept, weighted)

    return robust("norm_filter", malicious, lambda m: m > malicious, reduced)


def loss_filter(malicious: int, *, several: bool = False, weighted: bool = False) -> Stack:
    r"""k-loss: drops a given number of uploads with the largest losses and selects the one with the next largest.

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
    several = truth_value("several", several)
    weighted = truth_value("weighted", weighted)

    def reduced(uploads: Upload, present: Array, key: Key) -> PyTree:
        count = jnp.sum(present) - malicious
        kept = least(uploads.loss, present, count)
        if not several:
            kept = kept & ~least(uploads.loss, present, count - 1)
        return mean_of(uploads, kept, weighted)

    return robust("loss_filter", malicious, lambda m: m > malicious, reduced)._replace(needs_loss=True)
