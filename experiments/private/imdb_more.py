"""Further methods on film reviews: ablations, rivals with public reviews, and other public texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import optax

import evenhand as eh
from evenhand import privacy
from evenhand.types import Params, Release

__all__ = ["PAPER", "more", "scaled_by_tfidf", "without_privacy"]

NDArray: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = Mapping[str, Any]
Make: TypeAlias = Callable[[Numbers], eh.local.Work]
Examples: TypeAlias = tuple[Any, Any]

PAPER = {
    "AdaDPS, frequencies of other reviews": 75.0,
    "AdaDPS, frequencies with padding": 75.0,
    "AdaDPS, 50 public": 80.0,
    "AdaDPS, 10 public": 75.0,
    "DP2, two queries": 79.9,
    "DP2, noise first": 64.3,
    "DP-SGD, warm start": 73.0,
    "DP-Adam-Pub": 74.0,
    "ideal": 82.0,
    "SGD": 66.0,
    "Adam": 88.0,
    "AdaS, public": 88.0,
    "AdaS, frequencies with padding": 88.0,
}
"""Test accuracy in percent (tables 6.2, 6.4, 6.7, 6.8, 6.10 at epsilon 1.5, and 6.9 without privacy; DP2's variants:
table 6.14, sigma 1)."""

_WIDE = (3.0, 10.0, 30.0)


def more(
    model: eh.Model, public: Examples, others: NDArray, common: Mapping[str, Any], delta: float
) -> dict[str, tuple[Make, Mapping[str, Sequence[Any]]]]:
    """What makes each method, and the six settings that are tried of it.

    Args:
      model: what is trained.
      public: the public reviews, with labels.
      others: how often each token occurs in each of the test reviews that are not measured.
      common: noise, rate and steps of all methods with one query per step.
      delta: of the promise.
    """
    clips = {"clip": (0.1, 0.5)}
    return {
        "AdaDPS, frequencies of other reviews": (
            _counted(model, others, common),
            {"lr": (10.0, 30.0, 100.0), "clip": (0.2, 0.5)},
        ),
        "AdaDPS, frequencies with padding": (
            _counted(model, others, common, length=290),
            {"lr": (0.3, 1.0, 3.0), "clip": (0.5, 2.0)},
        ),
        "DP2, two queries": (
            _two_queries(model, twice(common, delay=195, delta=delta)),
            {"lr": (0.3, 1.0, 3.0), "clip": (1.0, 2.0)},
        ),
        "DP2, noise first": (
            _noise_first(model, common),
            {"lr": (0.003, 0.03, 0.3), "clip": (0.25, 0.5)},
        ),
        "DP-SGD, warm start": (
            _warm(model, public, common),
            {"warm": (0.1, 1.0), "lr": (1.0, 3.0, 10.0)},
        ),
        "DP-Adam-Pub": (_adam_pub(model, public, common), {"lr": (0.01, 0.03, 0.1), **clips}),
        "DP-R-Pub": (_r_pub(model, public, common), {"lr": (0.001, 0.01, 0.1), **clips}),
        **{
            f"AdaDPS, {few} public": (
                _with_public(model, (public[0][:few], public[1][:few]), common),
                {"lr": _WIDE, "clip": (2.0, 5.0)},
            )
            for few in (50, 10)
        },
        "ideal": (_ideal(model, common), {"lr": _WIDE, "clip": (2.0, 5.0)}),
    }


def without_privacy(
    model: eh.Model, public: Examples, others: NDArray, plain: Mapping[str, Any]
) -> dict[str, tuple[Make, Mapping[str, Sequence[Any]]]]:
    """The same for methods that neither clip nor add noise, for so many steps on batches of one size."""
    padded = _frequencies(model, others, length=290)

    def sgd(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, optax.sgd(n["lr"]), **plain)

    def adam(n: Numbers) -> eh.local.Work:
        return eh.local.sgd(model, optax.adam(n["lr"], eps=1e-8), **plain)

    def adas(n: Numbers) -> eh.local.Work:
        return privacy.adas(model, n["lr"], public=public, eps=1e-3, **plain)

    def counted(n: Numbers) -> eh.local.Work:
        return privacy.adas(model, n["lr"], divided_by=padded, **plain)

    return {
        "SGD": (sgd, {"lr": (0.1, 0.3, 1.0, 2.0, 3.0, 6.0)}),
        "Adam": (adam, {"lr": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}),
        "AdaS, public": (adas, {"lr": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}),
        "AdaS, frequencies with padding": (counted, {"lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}),
    }


def scaled_by_tfidf(
    model: eh.Model, others: NDArray, common: Mapping[str, Any]
) -> tuple[Make, Mapping[str, Sequence[Any]]]:
    """AdaDPS by the TF-IDF of words in other reviews, and the six settings that are tried of it."""
    counts: Any = others
    scales = privacy.tfidf_scales(model, counts, special=())

    def make(n: Numbers) -> eh.local.Work:
        return privacy.adadps(model, n["lr"], clip=n["clip"], divided_by=scales, **common)

    return make, {"lr": (0.3, 1.0, 3.0), "clip": (0.5, 2.0)}


def twice(common: Mapping[str, Any], *, delay: int, delta: float) -> dict[str, Any]:
    """The same with the noise that :func:`evenhand.privacy.dp2_extra_query` needs, which asks twice in most steps."""
    single = -(-common["steps"] // delay)
    budget = privacy.spent(
        _releases(common, common["noise_multiplier"], common["steps"]), delta=delta
    ).epsilon
    little, enough = common["noise_multiplier"], common["noise_multiplier"] * 2**0.5
    for _ in range(30):
        middle = (little + enough) / 2
        if privacy.spent(_releases(common, middle, single), delta=delta).epsilon > budget:
            little = middle
        else:
            enough = middle
    return {**common, "noise_multiplier": enough, "delay": delay}


def _releases(common: Mapping[str, Any], noise: float, single: int) -> list[Release]:
    """Of a run that asks once in so many of its steps, and twice in the others."""
    two = Release(noise / 2**0.5, common["rate"], times=common["steps"] - single)
    return [Release(noise, common["rate"], times=single)] + ([two] if two.times else [])


def _counted(model: eh.Model, others: NDArray, common: Mapping[str, Any], length: int | None = None) -> Make:
    """AdaDPS by frequencies."""
    scales = _frequencies(model, others, length)

    def make(n: Numbers) -> eh.local.Work:
        return privacy.adadps(model, n["lr"], clip=n["clip"], divided_by=scales, **common)

    return make


def _frequencies(model: eh.Model, others: NDArray, length: int | None) -> Params:
    """How frequent tokens are; with a length, compared with a token that pads reviews to it.

    The authors' vocabulary has such a token, ours has not.  It is more frequent than any word, so that the scales of
    all words are smaller beside that of the bias, which is 1.
    """
    padding = 1.0
    if length is not None:
        missing = np.maximum(length - others.sum(axis=1, dtype=np.int64), 0).mean()
        padding = max(1.0, float(missing / others.mean(axis=0).max()))
    counts: Any = others
    return privacy.token_frequencies(model, counts, most=1e4 / padding, unit=100.0 / padding)


def _two_queries(model: eh.Model, given: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        return privacy.dp2_extra_query(model, (0.1, n["lr"]), clips=(0.5, n["clip"]), eps=1e-7, **given)

    return make


def _noise_first(model: eh.Model, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        given: dict[str, Any] = {"clips": (n["clip"], n["clip"]), "delay": 195, "eps": 1e-3, **common}
        return privacy.dp2(model, (0.3, n["lr"]), noise_first=True, **given)

    return make


def _warm(model: eh.Model, public: Examples, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        rmsprop = optax.rmsprop(n["warm"], decay=0.9, eps=1e-3, eps_in_sqrt=False)
        warm = privacy.warm_start(model, rmsprop, public=public)
        return privacy.dp_sgd(warm, n["lr"], clip=0.5, **common)

    return make


def _adam_pub(model: eh.Model, public: Examples, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        return privacy.dp_adam_pub(model, n["lr"], clip=n["clip"], public=public, eps=1e-3, **common)

    return make


def _r_pub(model: eh.Model, public: Examples, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        return privacy.dp_r_pub(model, n["lr"], clip=n["clip"], public=public, eps=1e-3, **common)

    return make


def _with_public(model: eh.Model, public: Examples, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        return privacy.adadps(model, n["lr"], clip=n["clip"], public=public, eps=1e-3, **common)

    return make


def _ideal(model: eh.Model, common: Mapping[str, Any]) -> Make:
    def make(n: Numbers) -> eh.local.Work:
        return privacy.ideal_adadps(model, n["lr"], clip=n["clip"], eps=1e-3, **common)

    return make
