"""Spoilt features of the training examples of malicious clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from evenhand.errors import EvenhandError
from evenhand.types import Attack

__all__ = ["feature_noise", "negative"]


def feature_noise(fraction: float = 0.0, *, std: float = 1.0) -> Attack:
    r"""Adds noise to each feature, drawn once before the run: :math:`x \leftarrow x + \mathcal N(0, \sigma^2)`.

    Args:
      fraction: share of the clients that are malicious.
      std: :math:`\sigma`, in the units of the features.

    Raises:
      EvenhandError: ``std`` not above 0; when a run begins, features that are no floating-point numbers.

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    section IV-B; with a new draw in each round: :func:`persistent_outliers`.
    """
    if not 0.0 < std < math.inf:
        raise EvenhandError(f"feature_noise(std={std}): give a number above 0.")

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        return _floats(x, "feature_noise()") + rng.normal(0.0, std, x.shape).astype(x.dtype), y

    return Attack(fraction, rows=rows)


def negative(fraction: float = 0.0, *, highest: float = 1.0) -> Attack:
    r"""Turns images into their negatives: :math:`x \leftarrow h - x`.

    Args:
      fraction: share of the clients that are malicious.
      highest: :math:`h`, the value of the brightest pixel.

    Raises:
      EvenhandError: when a run begins, features that are no floating-point numbers.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, section V.
    """

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        return (highest - _floats(x, "negative()")).astype(x.dtype), y

    return Attack(fraction, rows=rows)


def _floats(x: Any, name: str) -> Any:
    x = np.asarray(x)
    if not np.issubdtype(x.dtype, np.floating):
        raise EvenhandError(
            f"{name}: the features are {x.dtype}, which noise does not go with: attack the labels."
        )
    return x
