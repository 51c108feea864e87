"""Every risk of the package obeys the published contract, and a risk that breaks one of its laws is found out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from evenhand import risks
from evenhand.testing import Check, check_risk, risk_checks
from evenhand.types import Array, Risk

_GROUPS = jnp.array([0, 0, 1, 1, 1, 3, 3])
_RISKS = {
    "mean": risks.mean(),
    "superquantile": risks.superquantile(0.3),
    "superquantile, the mean": risks.superquantile(1.0),
    "superquantile, the largest": risks.superquantile(0.01),
    "inverse_superquantile": risks.inverse_superquantile(0.4),
    "smoothed_superquantile": risks.smoothed_superquantile(0.3, 0.5),
    "smoothed_superquantile, hardly": risks.smoothed_superquantile(0.3, 1e-5),
    "squared_superquantile": risks.squared_superquantile(0.3, 20.0),
    "squared_superquantile, hardly": risks.squared_superquantile(0.3, 1e-5),
    "chi_square_ball": risks.chi_square_ball(0.3),
    "chi_square_ball, hardly": risks.chi_square_ball(1e-6),
    "chi_square_ball, nearly the largest": risks.chi_square_ball(3.0),
    "human_risk": risks.human_risk(0.4, 0.3),
    "human_risk, of the large losses": risks.human_risk(0.01, 0.0),
    "value_at_risk": risks.value_at_risk(0.3),
    "kth_smallest": risks.kth_smallest(3),
    "entropic_value_at_risk": risks.entropic_value_at_risk(0.3),
    "entropic_value_at_risk, nearly the mean": risks.entropic_value_at_risk(0.99),
    **{f"tilted, t={t}": risks.tilted(t) for t in (0.0, 1e-8, 1.0, -2.0, -1e4, math.inf, -math.inf)},
}
_UNEVEN = {
    "tilted_value_at_risk": (risks.tilted_value_at_risk(0.5), True),
    "tilted_value_at_risk, the smallest": (risks.tilted_value_at_risk(1.0), True),
    "power": (risks.power(2.0), True),
    "power, nearly the largest": (risks.power(100.0), True),
    "tilts of powers' logarithms": (risks.hierarchical(risks.power(1.0), risks.mean(), _GROUPS, 4), False),
}


_LAWS = [check.name for check in risk_checks(_RISKS["mean"])]
_PARTS = "a loss may be given in two parts"
_INDIVISIBLE = ("kth_smallest", "squared_superquantile")
"""Risks that count losses, or compare weights other than by their ratios."""


@lru_cache(maxsize=1)
def _checks(name: str) -> dict[str, Check]:
    return {check.name: check for check in risk_checks(_RISKS[name])}


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, law) for name in _RISKS for law in _LAWS if name not in _INDIVISIBLE or law != _PARTS],
)
def test_risks_obey_the_contract(name: str, law: str) -> None:
    """The oracle is the contract."""
    _checks(name)[law]()


@pytest.mark.parametrize("name", _INDIVISIBLE)
def test_risks_that_depend_on_how_losses_are_divided_say_so(name: str) -> None:
    check_risk(_RISKS[name], divisible=False)
    with pytest.raises(AssertionError, match="given twice"):
        check_risk(_RISKS[name])


@pytest.mark.parametrize("name", [*_RISKS, *_UNEVEN])
def test_a_loss_that_is_no_number_shows_in_every_risk_and_one_without_weight_in_none(name: str) -> None:
    """A rank would give it no weight, so that a model that diverged would have the risk 0."""
    risk = _RISKS[name] if name in _RISKS else _UNEVEN[name][0]
    one = jnp.array([1.0, 2.0, math.nan, 3.0, 0.5, 4.0, 2.5])
    assert jnp.isnan(risk.value(one, jnp.ones(7))) and jnp.isnan(
        risk.value(jnp.full(7, math.nan), jnp.ones(7))
    )
    assert jnp.isfinite(risk.value(one, jnp.ones(7).at[2].set(0.0)))


@pytest.mark.parametrize("name", _UNEVEN)
def test_risks_that_are_not_translation_equivariant_obey_the_other_laws(name: str) -> None:
    """The oracle is the contract, first without the law of translation, then with it."""
    risk, symmetric = _UNEVEN[name]
    check_risk(risk, symmetric=symmetric, translation=False)
    if name != "tilted_value_at_risk, the smallest":
        with pytest.raises(AssertionError, match="not equal to the weights"):
            check_risk(risk, symmetric=symmetric)


@pytest.mark.parametrize(
    "risk",
    [
        risks.mixture(jnp.array([1.0, 1.0, 3.0, 0.0, 5.0, 3.0, 2.0])),
        risks.hierarchical(risks.tilted(2.0), risks.tilted(-1.0), _GROUPS, 5),
        risks.hierarchical(risks.superquantile(0.4), risks.value_at_risk(0.5), _GROUPS, 5),
    ],
    ids=["mixture", "hierarchical tilts", "hierarchical tails"],
)
def test_risks_that_depend_on_positions_obey_the_other_laws(risk: Risk) -> None:
    """The oracle is the contract, first without the law of order, then with it."""
    check_risk(risk, symmetric=False)
    with pytest.raises(AssertionError, match="order"):
        check_risk(risk)


def test_the_number_of_losses_can_be_chosen() -> None:
    """The oracle is the contract."""
    check_risk(risks.kth_smallest(3), losses=3, divisible=False)


def test_float64_is_checked_where_jax_has_it() -> None:
    """A risk that always returns float32 passes without float64 and is found out with it."""

    def narrow(losses: Array, weights: Array | None = None) -> Array:
        return jnp.asarray(risks.mean().value(losses, weights)).astype(jnp.float32)

    risk = risks.mean()._replace(value=narrow)
    check_risk(risk)
    with jax.enable_x64(True):
        check_risk(risks.mean())
        with pytest.raises(AssertionError, match="dtype"):
            check_risk(risk)


# --- broken risks ------------------------------------------------------------------------------------------------

_MEAN = risks.mean()
_LARGEST = risks.tilted(math.inf)


def _of(value: Any, shares: Any, without_losses: str = "zeros") -> Risk:
    """A risk from functions of losses without NaN and of weights that sum to 1."""

    def population(losses: Any, given: Any) -> tuple[Array, Array]:
        f = jnp.asarray(losses)
        w = jnp.ones_like(f) if given is None else jnp.asarray(given)
        total = jnp.sum(w)
        fallback = jnp.zeros_like(f) if without_losses == "zeros" else jnp.full_like(f, 1 / len(f))
        p = jnp.where(total > 0, w / jnp.where(total > 0, total, 1.0), fallback)
        return jnp.where(p > 0, f, 0.0), p

    return Risk(
        lambda losses, weights=None: value(*population(losses, weights)),
        lambda losses, weights=None: shares(*population(losses, weights)),
    )


def _mean(f: Array, p: Array) -> Array:
    return jnp.sum(p * f)


def _p(f: Array, p: Array) -> Array:
    return p


def _linear(weigh: Any) -> Risk:
    """The mean under these weights, which are also its gradient, rightly or not."""
    return _of(lambda f, p: jnp.sum(jax.lax.stop_gradient(weigh(f, p)) * f), weigh)


def _pretends(value: Any) -> Risk:
    """A risk of this value with the gradient of the mean."""
    value = jax.custom_jvp(value)
    value.defjvp(lambda primals, tangents: (value(*primals), jnp.sum(primals[1] * tangents[0])))
    return _of(value, _p)


def _scaled(f: Array, p: Array) -> Array:
    return p / jnp.where(jnp.sum(p) > 0, jnp.sum(p), 1.0)


def _by_position(f: Array, p: Array) -> Array:
    return _scaled(f, p * jnp.arange(1.0, len(f) + 1.0))


def _gentle(f: Array, p: Array) -> Array:
    return _scaled(f, p * jnp.exp(-5.0 * f))


def _largest(f: Array, p: Array) -> Array:
    return jnp.max(jnp.where(p > 0, f, -jnp.inf))


_CALLS: list[int] = []


def _noisy(f: Array, p: Array) -> Array:
    def noise(_: Any) -> Any:
        _CALLS.append(0)
        return np.asarray(1e-6 * (len(_CALLS) % 97), np.float32)

    form = jax.ShapeDtypeStruct((), np.float32)
    return _mean(f, p) + jax.pure_callback(noise, form, jax.lax.stop_gradient(f[0]), vmap_method="sequential")


def _compiled_otherwise(losses: Any, weights: Any = None) -> Array:
    value = _MEAN.value(losses, weights)
    return 1.01 * value if isinstance(losses, Tracer) else value


def _writes(losses: Any, weights: Any = None) -> Array:
    if isinstance(losses, np.ndarray):
        losses *= np.float32(1 + 1e-6)
    return _MEAN.value(losses, weights)


def _square_counts(losses: Any, weights: Any = None) -> Array:
    w = jnp.ones_like(losses) if weights is None else jnp.asarray(weights)
    return _MEAN.weights(losses, w + 0.1 * w**2)


def _of_square_counts(losses: Any, weights: Any = None) -> Array:
    return jnp.sum(_square_counts(losses, weights) * jnp.asarray(losses))


def _largest_without_weights(losses: Any, weights: Any = None) -> Array:
    return (_LARGEST if weights is None else _MEAN).value(losses, weights)


def _bare(losses: Any, weights: Any = None) -> Array:
    return jnp.sum(_MEAN.weights(losses, weights) * jnp.asarray(losses))


@pytest.mark.parametrize(
    ("words", "risk"),
    [
        ("not a scalar", _MEAN._replace(value=_MEAN.weights)),
        ("is not finite", _of(lambda f, p: _mean(f, p) * jnp.nan, _p)),
        ("other bits", _of(_noisy, _p)),
        ("compiled", _MEAN._replace(value=_compiled_otherwise)),
        ("wrote", _MEAN._replace(value=_writes)),
        ("is below 0", _of(_mean, lambda f, p: -p)),
        ("sum to 1", _of(_mean, lambda f, p: 2.0 * p)),
        ("not a nonnegative multiple", _of(_mean, _by_position)),
        ("not a nonnegative multiple", _of(lambda f, p: -_mean(f, p), _p)),
        ("not equal to the weights", _of(lambda f, p: 0.5 * _mean(f, p), _p)),
        ("not lie between", _of(lambda f, p: _mean(f, p) + 4.0, _p)),
        (
            "another scale",
            Risk(_of_square_counts, _square_counts),
        ),
        ("Without weights", _MEAN._replace(value=_largest_without_weights)),
        ("order", _linear(_by_position)),
        ("constant", _pretends(lambda f, p: _mean(f, p) * (1 - 0.01 * (_largest(f, p) - _mean(f, p))))),
        ("falls", _linear(_gentle)),
        ("slope", _pretends(lambda f, p: 0.5 * _mean(f, p) + 0.5 * _largest(f, p))),
        (
            "weight 0 counts",
            Risk(
                lambda losses, weights=None: _LARGEST.value(losses),
                lambda losses, weights=None: _LARGEST.weights(losses),
            ),
        ),
        ("weight 0 counts", _MEAN._replace(value=_bare)),
        (
            "weight 0 counts",
            Risk(
                lambda losses, weights=None: risks.tilted(0.2 * len(losses)).value(losses, weights),
                lambda losses, weights=None: risks.tilted(0.2 * len(losses)).weights(losses, weights),
            ),
        ),
        ("given twice", _linear(lambda f, p: _scaled(f, (p > 0).astype(p.dtype)))),
        ("given twice", _linear(lambda f, p: _scaled(f, p * p))),
        ("Without any loss", _of(_mean, _p, without_losses="uniform")),
    ],
)
def test_a_broken_risk_is_found_out(words: str, risk: Risk) -> None:
    """Each risk obeys the laws that are checked before the one it breaks."""
    with pytest.raises(AssertionError, match=words):
        check_risk(risk)


def test_flags_waive_one_law_each() -> None:
    """A risk that breaks one law passes when that law is waived."""
    half = _of(lambda f, p: 0.5 * _mean(f, p), _p)
    check_risk(half, between=False, translation=False)
    check_risk(half, between=False, translation=False, losses=4)
    with pytest.raises(AssertionError, match="between"):
        check_risk(half, translation=False)
    with pytest.raises(AssertionError, match="slope"):
        check_risk(_linear(_gentle), monotone=False)


def test_a_risk_that_overflows_for_large_losses_is_found_out() -> None:
    """The tilted risk without the largest loss subtracted: where losses are small it is the right one."""
    tilted = risks.tilted(1.0)

    def value(losses: Array, weights: Array | None = None) -> Array:
        usual = tilted.value(losses, weights)
        return usual + 0.0 * jnp.sum(jnp.exp(jnp.where(jnp.isfinite(losses) & (losses < 1e5), losses, 0.0)))

    with pytest.raises(AssertionError, match="up to 3000 is not finite"):
        check_risk(tilted._replace(value=value))
