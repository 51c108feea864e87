"""Wrong labels on the training examples of malicious clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.errors import EvenhandError, whole_number
from evenhand.types import Attack

__all__ = ["label_flip", "random_labels", "relabel", "uniform_labels"]


def label_flip(fraction: float = 0.0, *, classes: int = 2) -> Attack:
    r"""Reverses the order of the classes: :math:`y \leftarrow C - 1 - y`.

    Args:
      fraction: share of the clients that are malicious.
      classes: :math:`C`.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them.

    Example:
      >>> import numpy as np
      >>> label_flip(0.2, classes=10).rows(np.zeros(3), np.array([0, 4, 9]), None)[1].tolist()
      [9, 5, 0]

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 2.1, attack A1, for two classes.
    """
    whole_number("label_flip(classes=)", classes, 2)
    return _relabelled(
        fraction, tuple(range(classes - 1, -1, -1)), "label_flip()", "give classes=, the number of classes"
    )


def relabel(fraction: float, labels: tuple[int, ...]) -> Attack:
    r"""Replaces each class by another: :math:`y \leftarrow \pi(y)`.

    Args:
      fraction: share of the clients that are malicious.
      labels: :math:`\pi(0), \pi(1), \dots`; ``(1, 8, 5, 2, 9, 6, 3, 0, 7, 4)`` is RFA's for digits, ``7 y + 1 mod 10``.

    Raises:
      EvenhandError: when a run begins, a label that is none of the classes.

    Example:
      >>> import numpy as np
      >>> relabel(0.2, (1, 2, 0)).rows(np.zeros(2), np.array([0, 2]), None)[1].tolist()
      [1, 0]

    Source: the code of Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022.
    """
    return _relabelled(fraction, labels, "relabel()", "give labels= for all of them")


def random_labels(fraction: float = 0.0, *, classes: int = 2) -> Attack:
    """Replaces each label by one of the other classes, drawn once before the run.

    Args:
      fraction: share of the clients that are malicious.
      classes: how many classes there are.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them.

    Source: none; as :func:`uniform_labels`, with no label right.
    """
    whole_number("random_labels(classes=)", classes, 2)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        y = _checked(y, classes, "random_labels()")
        return x, ((y + rng.integers(1, classes, y.shape)) % classes).astype(y.dtype)

    return Attack(fraction, rows=rows)


def uniform_labels(fraction: float = 0.0, *, classes: int = 2) -> Attack:
    """Replaces each label by one of all classes, the right one included, drawn once before the run.

    Args:
      fraction: share of the clients that are malicious.
      classes: how many classes there are.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them.

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 2.1, attack A1, as in its code for several classes.
    """
    whole_number("uniform_labels(classes=)", classes, 2)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        y = _checked(y, classes, "uniform_labels()")
        return x, rng.integers(0, classes, y.shape).astype(y.dtype)

    return Attack(fraction, rows=rows)


def _relabelled(fraction: float, labels: tuple[int, ...], name: str, advice: str) -> Attack:
    table = np.asarray(labels)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        return x, table[_checked(y, len(table), name, advice)].astype(np.asarray(y).dtype)

    return Attack(fraction, rows=rows)


def _checked(y: Any, classes: int, name: str, advice: str = "give classes=, the number of classes") -> Any:
    y = np.asarray(y)
    if not np.issubdtype(y.dtype, np.integer) or (y.size and not 0 <= y.min() <= y.max() < classes):
        raise EvenhandError(
            f"{name}: labels must be whole numbers from 0 to {classes - 1}, and these are "
            f"{np.unique(y)[:5].tolist()}: {advice}."
        )
    return y
