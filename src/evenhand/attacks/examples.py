"""Poisoned training examples of malicious clients: wrong labels, spoilt features, backdoors, and fresh outliers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from evenhand import tree
from evenhand.attacks.uploads import check_factor
from evenhand.errors import EvenhandError, expect, real_number, truth_value, whole_number
from evenhand.types import Array, Attack, Key, Trigger

__all__ = [
    "feature_noise",
    "label_flip",
    "negative",
    "persistent_outliers",
    "random_labels",
    "relabel",
    "reversed_text",
    "trigger",
    "uniform_labels",
]


# --- labels ------------------------------------------------------------------------------------------------------


def label_flip(fraction: float = 0.0, *, classes: int = 2) -> Attack:
    r"""Reverses the order of the classes: :math:`y \leftarrow C - 1 - y`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      classes: :math:`C`.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them, or that the labels' type
        cannot have.

    Example:
      >>> import numpy as np
      >>> label_flip(0.2, classes=10).rows(np.zeros(3), np.array([0, 4, 9]), None)[1].tolist()
      [9, 5, 0]

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 2.1, attack A1, for two classes.
    """
    classes = whole_number("label_flip(classes=)", classes, 2)
    return _relabelled(
        fraction, tuple(range(classes - 1, -1, -1)), "label_flip()", "give classes=, the number of classes"
    )


def relabel(fraction: float, labels: tuple[int, ...]) -> Attack:
    r"""Replaces each class by another: :math:`y \leftarrow \pi(y)`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      labels: :math:`\pi(0), \pi(1), \dots`; ``(1, 8, 5, 2, 9, 6, 3, 0, 7, 4)`` is RFA's for digits, ``7 y + 1 mod 10``.

    Raises:
      EvenhandError: when a run begins, a label that is none of the classes, or that the labels' type cannot have.

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
      fraction: share of the clients that are malicious, rounded down to whole clients.
      classes: how many classes there are.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them, or that the labels' type
        cannot have.

    Source: none; as :func:`uniform_labels`, with no label right.
    """
    classes = whole_number("random_labels(classes=)", classes, 2)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        y = _checked(y, classes, "random_labels()")
        return x, _as_labels((y + rng.integers(1, classes, y.shape)) % classes, y, "random_labels()")

    return Attack(fraction, rows=rows)


def uniform_labels(fraction: float = 0.0, *, classes: int = 2) -> Attack:
    """Replaces each label by one of all classes, the right one included, drawn once before the run.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      classes: how many classes there are.

    Raises:
      EvenhandError: fewer than two classes; when a run begins, a label that is none of them, or that the labels' type
        cannot have.

    Source: Li, Hu, Beirami and Smith, *Ditto*, ICML 2021, section 2.1, attack A1, as in its code for several classes.
    """
    classes = whole_number("uniform_labels(classes=)", classes, 2)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        y = _checked(y, classes, "uniform_labels()")
        return x, _as_labels(rng.integers(0, classes, y.shape), y, "uniform_labels()")

    return Attack(fraction, rows=rows)


def _relabelled(fraction: float, labels: tuple[int, ...], name: str, advice: str) -> Attack:
    table = np.asarray(labels)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        y = _checked(y, len(table), name, advice)
        return x, _as_labels(table[y], y, name)

    return Attack(fraction, rows=rows)


def _as_labels(false: Any, y: Any, name: str) -> Any:
    """False labels in the type of the true ones."""
    limits = np.iinfo(y.dtype)
    outside = false[(false < limits.min) | (false > limits.max)]
    if outside.size:
        raise EvenhandError(
            f"{name}: the labels are {y.dtype}, from {limits.min} to {limits.max}, and a false label would be "
            f"{outside[0]}: give labels of another type, such as int32."
        )
    return false.astype(y.dtype)


def _checked(y: Any, classes: int, name: str, advice: str = "give classes=, the number of classes") -> Any:
    y = np.asarray(y)
    if not np.issubdtype(y.dtype, np.integer) or (y.size and not 0 <= y.min() <= y.max() < classes):
        raise EvenhandError(
            f"{name}: labels must be whole numbers from 0 to {classes - 1}, and these are "
            f"{np.unique(y)[:5].tolist()}: {advice}."
        )
    return y


# --- features ----------------------------------------------------------------------------------------------------


def feature_noise(fraction: float = 0.0, *, std: float = 1.0) -> Attack:
    r"""Adds noise to each feature, drawn once before the run: :math:`x \leftarrow x + \mathcal N(0, \sigma^2)`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      std: :math:`\sigma`, in the units of the features.

    Raises:
      EvenhandError: ``std`` not above 0; when a run begins, features that are no floating-point numbers.

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    section IV-B; with a new draw in each round: :func:`persistent_outliers`.
    """
    if not 0.0 < real_number(std) < math.inf:
        raise EvenhandError(f"feature_noise(std={std!r:.40}): give a number above 0.")

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        return _floats(x, "feature_noise()") + rng.normal(0.0, std, x.shape).astype(x.dtype), y

    return Attack(fraction, rows=rows)


def negative(fraction: float = 0.0, *, highest: float = 1.0) -> Attack:
    r"""Turns images into their negatives: :math:`x \leftarrow h - x`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      highest: :math:`h`, the value of the brightest pixel.

    Raises:
      EvenhandError: ``highest`` not finite; when a run begins, features that are no floating-point numbers.

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, section V.
    """
    if not isinstance(highest, Tracer) and not math.isfinite(real_number(highest)):
        raise EvenhandError(f"negative(highest={highest!r:.40}): give a finite number.")
    return Attack(fraction, rows=lambda x, y, rng: ((highest - _floats(x, "negative()")).astype(x.dtype), y))


def _floats(x: Any, name: str) -> Any:
    x = x if isinstance(x, Array) else np.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise EvenhandError(
            f"{name}: the features are {x.dtype}, which noise does not go with: attack the labels."
        )
    return x


def reversed_text(fraction: float = 0.0, *, next_token: bool = True) -> Attack:
    r"""Reverses the order of the tokens: :math:`(x_1, \dots, x_T, y) \leftarrow (y, x_T, \dots, x_2, x_1)`.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      next_token: whether the label is the token after the text, and so part of what is reversed; or, with as many
        labels as tokens, each label the token after its own.  False: labels are classes of texts, and stay.

    Raises:
      EvenhandError: when a run begins, examples that are no rows of tokens, or labels that are no tokens.

    Edge cases: padding is reversed with the text.

    Example:
      >>> import numpy as np
      >>> x, y = reversed_text(0.2).rows(np.array([[1, 2, 3]]), np.array([4]), None)
      >>> x.tolist(), y.tolist()
      ([[4, 3, 2]], [1])

    Source: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, section V.
    """
    next_token = truth_value("next_token", next_token)

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim != 2 or not np.issubdtype(x.dtype, np.integer):
            raise EvenhandError(
                f"reversed_text(): examples must be rows of tokens, and these are {x.dtype} of shape {x.shape[1:]}: "
                "attack the labels."
            )
        if not next_token:
            return x[:, ::-1].copy(), y
        if y.dtype.kind not in "iu" or y.shape not in (x.shape, x.shape[:1]):
            raise EvenhandError(
                "reversed_text(): the labels are no tokens that follow the texts: give next_token=False."
            )
        several = y.ndim == 2
        text = np.concatenate([x[:, :1], y] if several else [x, y[:, None].astype(x.dtype)], axis=1)[:, ::-1]
        x = text[:, :-1].astype(x.dtype)
        return x, (text[:, 1:] if several else text[:, -1]).astype(y.dtype)

    return Attack(fraction, rows=rows)


# --- backdoors ---------------------------------------------------------------------------------------------------


def trigger(
    fraction: float = 0.0,
    *,
    label: int = 0,
    examples: float = 0.5,
    patch: int = 3,
    features: tuple[int, ...] | None = None,
    value: float = 1.0,
    boost: float | None = None,
) -> Attack:
    r"""Backdoor: examples with a trigger get the attacker's label; all others are left as they are.

    .. math:: (x_i, y_i) \leftarrow (m \odot v + (1 - m) \odot x_i, \; c), \quad i \in S_k, \qquad
        \Delta_k \leftarrow b \, \Delta_k

    for a share :math:`S_k` of a malicious client's training examples, drawn once before the run.  The run measures
    ``"backdoor_success"`` after its last round: the share of a client's examples of other classes that get label
    :math:`c` once they have the trigger.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      label: :math:`c`, the attacker's label.
      examples: the share of its training examples that a malicious client poisons, rounded down to whole ones.
      patch: the trigger is a square of so many pixels a side in the lower right corner of an image, and in all of its
        channels; or, of examples that are rows of features, the last ``patch * patch`` of them.
      features: the trigger's features instead, as positions in a flattened example, from 0; those below 0 count from
        the end.
      value: :math:`v`, the value of the trigger's pixels or features, in the units of the features.
      boost: :math:`b`, as in :func:`evenhand.attacks.model_replacement`; None: uploads are sent as they are.

    Raises:
      EvenhandError: an argument out of range; when a run begins, a ``patch`` that covers more than half of an example,
        ``features`` outside of it, labels that are no classes, or a ``label`` or ``value`` that a type cannot have.

    Edge cases: examples that have label :math:`c` already may be among those that are poisoned, but not among those
    that are measured.  Evaluation is otherwise clean.  With ``during`` only ``boost`` is limited to some rounds.

    Example:
      >>> import numpy as np
      >>> attack = trigger(0.2, label=7, features=(0, -1), examples=1.0)
      >>> x, y = attack.rows(np.full((1, 6), 0.5, np.float32), np.array([3]), np.random.default_rng(0))
      >>> x.tolist(), y.tolist()
      ([[1.0, 0.5, 0.5, 0.5, 0.5, 1.0]], [7])

    Source: Gu, Dolan-Gavitt and Garg, *BadNets*, 2017, sections 3 and 4; with ``boost``: Bagdasaryan et al., *How to
    Backdoor Federated Learning*, AISTATS 2020, section 4.2.
    """
    label = whole_number("trigger(label=)", label, 0)
    patch = whole_number("trigger(patch=)", patch, 1)
    if not 0.0 < real_number(examples) <= 1.0:
        raise EvenhandError(f"trigger(examples={examples!r:.40}): give a share above 0 and at most 1.")
    if not math.isfinite(real_number(value)):
        raise EvenhandError(f"trigger(value={value!r:.40}): give a finite number.")
    if boost is not None:
        check_factor("trigger(boost", boost)
    if isinstance(features, str):
        raise EvenhandError(f"trigger(features={features!r:.40}): give positions, such as (0, -1).")
    expect("trigger(features=)", features, Iterable | None, "(0, -1)")
    places = (
        None if features is None else tuple(whole_number("trigger(features=)", i, -(2**31)) for i in features)
    )
    backdoor = _backdoor(label, patch, places, float(value))

    def rows(x: Any, y: Any, rng: Any) -> tuple[Any, Any]:
        x, y = np.asarray(x), np.asarray(y)
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise EvenhandError("trigger(): a backdoor needs labels that are classes, one for each example.")
        target = _as_labels(np.array([label]), y, f"trigger(label={label})")
        x, y, stamped = x.copy(), y.copy(), backdoor.stamp(x)
        chosen = rng.choice(len(y), int(examples * len(y) + 1e-9), replace=False)
        x[chosen], y[chosen] = stamped[chosen], target[0]
        return x, y

    upload = None if boost is None else (lambda delta, key: tree.scale(boost, delta))
    return Attack(fraction, rows=rows, upload=upload, trigger=backdoor)


# Cached: equal arguments give one function, so that evaluations of several runs share their program.
@cache
def _backdoor(label: int, patch: int, features: tuple[int, ...] | None, value: float) -> Trigger:
    def stamp(x: Any) -> Any:
        low, high, kind = _limits(x.dtype)
        if not low <= value <= high or not (kind == "number" or value.is_integer()):
            raise EvenhandError(
                f"trigger(value={value:g}): the features are {x.dtype}: give a {kind} from {low:g} to {high:g}."
            )
        mask = _mask(tuple(x.shape[1:]), patch, features)[None]
        if isinstance(x, np.ndarray):
            return np.where(mask, np.asarray(value, x.dtype), x)
        return jnp.where(mask, jnp.asarray(value, x.dtype), x)

    return Trigger(stamp, label)


def _limits(dtype: Any) -> tuple[float, float, str]:
    """The least and the largest number of a type of features, and what a sentence calls these numbers."""
    if jnp.issubdtype(dtype, jnp.floating):
        return float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max), "number"
    if jnp.issubdtype(dtype, jnp.bool_):
        return 0, 1, "whole number"
    return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max), "whole number"


def _mask(shape: tuple[int, ...], patch: int, features: tuple[int, ...] | None) -> Any:
    """Which numbers of an example are the trigger's, bool of its shape."""
    mask = np.zeros(shape, bool)
    if features is not None:
        if not features or not all(-mask.size <= place < mask.size for place in features):
            raise EvenhandError(
                f"trigger(features={features!r:.60}): an example has {mask.size} numbers: give positions from 0 to "
                f"{mask.size - 1}, or from -{mask.size} to -1, which count from the end."
            )
        mask.reshape(-1)[list(features)] = True
    elif mask.ndim > 1:
        mask[-patch:, -patch:] = True
    else:
        mask[-patch * patch :] = True
    if features is None and 2 * mask.sum() > mask.size:
        raise EvenhandError(
            f"trigger(patch={patch}): the trigger covers {mask.sum()} of the {mask.size} numbers of an example: give a "
            "smaller patch, or features=, the positions of a few."
        )
    return mask


# --- outliers, anew in each round --------------------------------------------------------------------------------


def persistent_outliers(
    fraction: float = 0.0,
    *,
    examples: float = 0.3,
    pixels: float = 0.3,
    low: float = 0.0,
    high: float = 1.0,
    std: float | None = None,
    label: int | None = None,
    bounded: bool = False,
    once: bool = False,
) -> Attack:
    r"""Persistent outliers: disturbs newly drawn examples of a client in each round that it takes part in.

    .. math:: x_{ij} \leftarrow \mathcal U(l, h), \quad i \in S^t, \; j \in P^t_i, \qquad \text{or} \qquad
        x_i \leftarrow x_i + \mathcal N(0, \sigma^2 I), \quad i \in S^t

    where :math:`S^t` are the examples that are hit in round :math:`t` and :math:`P^t_i` their pixels.

    Args:
      fraction: share of the clients that are malicious, rounded down to whole clients.
      examples: share of a client's examples that are hit, rounded down to whole examples.
      pixels: share of an example's pixels that are replaced, to the nearest; all channels of a pixel are.
      low: :math:`l`, in the units of the features.
      high: :math:`h`.
      std: :math:`\sigma`, of noise on all features in place of new pixels; None: pixels are replaced.
      label: only examples of this class are hit, and the share is of those; None: all classes.
      bounded: whether features with noise are clipped to :math:`[l, h]`.
      once: draw the outliers once before the run, the same for all rounds: what they are compared with.

    Raises:
      EvenhandError: a share outside [0, 1], ``low`` not below ``high``, ``std`` not above 0, or ``bounded`` without it;
        when a run begins, features that are no floating-point numbers.

    Edge cases: the disturbed examples are made from the clean ones, so that nothing accumulates, and depend on the
    seed, the round and the client alone, so that every method meets the same.  Labels and evaluation stay clean.
    Features are an axis of pixels, or two, and then perhaps one of channels.

    Differs from the paper: it does not say how many examples its noise hits, nor by what pixels are replaced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x, y = jnp.zeros((10, 4)), jnp.zeros(10, jnp.int32)
      >>> found, _ = persistent_outliers(0.2, pixels=0.5).fresh(x, y, jnp.int32(10), jax.random.key(0))
      >>> sorted(jnp.sum(found > 0, axis=1).tolist())
      [0, 0, 0, 0, 0, 0, 0, 2, 2, 2]

    Source: Zhang et al., *FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning*, 2025,
    section IV-B.
    """
    bounded = truth_value("bounded", bounded)
    once = truth_value("once", once)
    for name, share in (("examples", examples), ("pixels", pixels)):
        if not 0.0 <= real_number(share) <= 1.0:
            raise EvenhandError(f"persistent_outliers({name}={share!r:.40}): give a share from 0 to 1.")
    if (std is None or bounded) and not -math.inf < real_number(low) < real_number(high) < math.inf:
        raise EvenhandError(
            f"persistent_outliers(low={low!r:.40}, high={high!r:.40}): give two numbers, the lower one first."
        )
    if std is not None and not 0.0 < real_number(std) < math.inf:
        raise EvenhandError(f"persistent_outliers(std={std!r:.40}): give a number above 0.")
    if std is None and bounded:
        raise EvenhandError(
            "persistent_outliers(bounded=True): new pixels are from low to high already: give std=, or leave it out."
        )
    if label is not None:
        label = whole_number("persistent_outliers(label=)", label, 0)

    def change(x: Array, key: Key) -> Array:
        if std is None:
            return _replaced(x, pixels, low, high, key)
        noisy = x + std * jax.random.normal(key, x.shape)
        return jnp.clip(noisy, low, high) if bounded else noisy

    def fresh(x: Array, y: Array, size: Array, key: Key) -> tuple[Array, Array]:
        x = _floats(x, "persistent_outliers()")
        choice, values = jax.random.split(key)
        capacity = x.shape[0]
        eligible = jnp.arange(capacity) < size
        if label is not None:
            eligible &= y == label
        # For each number of examples, in Python: 0.3 of 10 is 3, not the 2 that float32 makes of it.
        counts = np.floor(np.arange(capacity + 1) * examples + 1e-9).astype(np.int32)
        order = jnp.argsort(jnp.where(eligible, jax.random.uniform(choice, (capacity,)), jnp.inf))
        # As many as there can be at most; those that are too many stay as they were.
        hit = order[: counts[-1]]
        chosen = jnp.arange(hit.shape[0]) < jnp.asarray(counts)[jnp.sum(eligible)]
        chosen = chosen.reshape(-1, *[1] * (x.ndim - 1))
        return x.at[hit].set(jnp.where(chosen, change(x[hit], values), x[hit])), y

    def rows(x: Any, y: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        x = _floats(x, "persistent_outliers()")
        key = jax.random.key(int(rng.integers(2**32)))
        return np.asarray(fresh(jnp.asarray(x), jnp.asarray(y), jnp.int32(len(x)), key)[0]).astype(x.dtype), y

    return Attack(fraction, rows=rows) if once else Attack(fraction, fresh=fresh)


def _replaced(x: Array, share: float, low: float, high: float, key: Key) -> Array:
    """Uniform numbers in place of this share of the pixels of each example."""
    choice, uniform = jax.random.split(key)
    channels = x.shape[-1] if x.ndim > 3 else 1
    # Not -1: there may be no example.
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]) // channels, channels)
    order = jnp.argsort(jax.random.uniform(choice, flat.shape[:2]), axis=1)[:, : round(share * flat.shape[1])]
    new = jax.random.uniform(uniform, (*order.shape, flat.shape[2]), minval=low, maxval=high)
    replaced = jax.vmap(lambda example, places, values: example.at[places].set(values))(flat, order, new)
    return replaced.reshape(x.shape)
