"""The laws of a :class:`evenhand.types.Risk`, each as a check."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from evenhand._platform import check_process
from evenhand.types import Array, Risk

__all__ = ["check_risk"]

_CASES = 6
_STEP = 2e-3
"""The step of finite differences: large enough for float32, small enough for a tilt of 100."""


class _Parts(NamedTuple):
    value: Any
    weights: Any
    gradient: Any = None


def check_risk(
    risk: Risk,
    *,
    losses: int = 7,
    symmetric: bool = True,
    translation: bool = True,
    monotone: bool = True,
    between: bool = True,
    tolerance: float = 1e-5,
) -> None:
    """Checks that a risk obeys the laws every risk must obey.

    * The value is a scalar and there is one weight per loss, all of the losses' dtype; float64 too where JAX has it
      enabled.
    * The value lies between the smallest and the largest loss (unless ``between=False``) and does not fall when a
      loss rises (unless ``monotone=False``); ``risk(f + c) = risk(f) + c`` (unless ``translation=False``).
    * The weights are nonnegative and sum to 1, and the gradient of the value is a nonnegative multiple of them; with
      ``translation`` it is equal to them.
    * A loss of weight 0 has no effect, even if NaN; without any loss, value and weights are 0; the scale of the
      weights, and (unless ``symmetric=False``) the order of the losses, do not matter.
    * It can be compiled and mapped, gives the same bits twice, and does not modify its arguments.

    Args:
      risk: what is checked, on losses between 0.1 and 3.
      losses: the number of losses to generate, at least 3.
      symmetric: whether losses may be permuted and absent ones left out; False for a risk that knows a loss by its
        position, such as one over groups.
      translation: whether adding a constant to all losses must add it to the value.
      monotone: whether the value must not fall when a loss rises.
      between: whether the value must lie between the smallest and the largest loss.
      tolerance: difference allowed between two computations of a number, relative to the larger of 1 and the number.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> check_risk(eh.risks.superquantile(0.3))
    """
    check_process()
    rng = np.random.default_rng(0)
    f = rng.uniform(0.1, 3.0, (_CASES, losses)).astype(np.float32)
    f[0] = f[0, 0]  # all equal
    f[1, 1:] = np.sort(f[1, 1:])
    f[1, 2], f[1, -1] = f[1, 1], f[1, -2]  # ties at either end
    p = rng.integers(1, 20, f.shape).astype(np.float32)
    copies = f.copy(), p.copy()

    def parts(f: Array, p: Array) -> _Parts:
        value, gradient = jax.value_and_grad(risk.value)(f, p)
        return _Parts(value, risk.weights(f, p), gradient)

    batched = jax.jit(jax.vmap(parts))

    def measure(f: Any, p: Any) -> _Parts:
        return jax.tree.map(np.array, batched(f, p))

    def same(a: Any, b: Any) -> bool:
        return all(
            bool(np.all(np.abs(x - y) <= tolerance * np.maximum(1.0, np.abs(y))))
            for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        )

    _check_forms(risk, f, p)
    one = measure(f, p)
    assert all(np.all(np.isfinite(part)) for part in one), "The risk of finite losses is not finite."
    assert jax.tree.all(jax.tree.map(np.array_equal, one, measure(f, p))), "The same losses gave other bits."
    plain = [of(f[1], p[1]) for of in risk]
    assert same(plain, [one.value[1], one.weights[1]]), (
        "The risk changes when it is compiled and mapped over many vectors of losses."
    )
    assert np.array_equal(f, copies[0]) and np.array_equal(p, copies[1]), "The risk wrote to its arguments."
    _check_weights(one, translation, tolerance)
    if between:
        inside = (f.min(axis=1) - tolerance <= one.value) & (one.value <= f.max(axis=1) + tolerance)
        assert np.all(inside), "The value does not lie between the smallest and the largest loss."
    for scale in (1e-3, 1e3):
        assert same(measure(f, scale * p), one), "Weights of another scale change the risk."
    alike = measure(f, np.ones_like(p))
    assert same(jax.jit(jax.vmap(risk.value))(f), alike.value), (
        "Without weights the losses do not count equally."
    )
    _check_moves(measure, same, one, (f, p), rng.permutation(losses) if symmetric else None, translation)
    for j in range(losses if monotone else 0):
        raised = measure(f + np.float32(0.5) * np.eye(losses, dtype=np.float32)[j], p)
        assert np.all(raised.value >= one.value - tolerance), "The value falls when a loss rises."
    _check_derivative(measure, one, f, p, rng)
    _check_absence(measure, same, f, p, symmetric)


def _check_forms(risk: Risk, f: Any, p: Any) -> None:
    wide = jax.config.read("jax_enable_x64")
    for dtype in (np.float32, np.float64) if wide else (np.float32,):
        forms = [jax.eval_shape(of, f[0].astype(dtype), p[0].astype(dtype)) for of in risk]
        assert [(form.shape, form.dtype) for form in forms] == [((), dtype), (f[0].shape, dtype)], (
            "The value is not a scalar, or there is not one weight per loss, or a dtype is not that of the losses."
        )


def _check_weights(one: _Parts, translation: bool, tolerance: float) -> None:
    assert np.all(one.weights >= 0), "A weight is below 0."
    assert np.all(np.abs(one.weights.sum(axis=1) - 1) <= tolerance), "The weights do not sum to 1."
    length = one.gradient.sum(axis=1, keepdims=True)
    gap = np.abs(one.gradient - length * one.weights)
    assert np.all(gap <= tolerance * np.maximum(1.0, np.abs(length))) and np.all(length >= -tolerance), (
        "The gradient of the value is not a nonnegative multiple of the weights."
    )
    assert not translation or np.all(np.abs(one.gradient - one.weights) <= tolerance), (
        "The gradient of the value is not equal to the weights."
    )


def _check_moves(measure: Any, same: Any, one: _Parts, of: Any, order: Any, translation: bool) -> None:
    """Checks the risk of permuted losses, and of losses plus a constant."""
    f, p = of
    if order is not None:
        turned = _Parts(one.value, one.weights[:, order], one.gradient[:, order])
        assert same(measure(f[:, order], p[:, order]), turned), "The risk depends on the order of the losses."
    if translation:
        moved = measure(f + np.float32(1.75), p)
        assert same(moved, one._replace(value=one.value + 1.75)), (
            "A constant added to all losses is not added to the value."
        )


def _check_derivative(measure: Any, one: _Parts, f: Any, p: Any, rng: np.random.Generator) -> None:
    """Checks the gradient by finite differences, in most cases: in some, a step may cross a kink of the value."""
    step = _STEP * np.sign(rng.normal(size=f.shape)).astype(np.float32)
    slope = (measure(f + step, p).value - measure(f - step, p).value) / (2 * _STEP)
    gaps = np.abs(slope - np.sum(one.gradient * step, axis=1) / _STEP)[2:]
    assert np.median(gaps) <= 0.02, "The gradient of the value is not its slope."


def _check_absence(measure: Any, same: Any, f: Any, p: Any, symmetric: bool) -> None:
    gone = np.arange(f.shape[1]) == 1
    present = np.where(gone, np.float32(0), p)
    absent = measure(np.where(gone, np.float32(0.5), f), present)
    words = "A loss of weight 0 counts."
    assert not absent.weights[:, gone].any() and not absent.gradient[:, gone].any(), words
    for filler in (np.nan, np.inf, 1e6, 0.0):
        assert same(measure(np.where(gone, np.float32(filler), f), present), absent), words
    if symmetric:
        without = measure(f[:, ~gone], p[:, ~gone])
        kept = _Parts(absent.value, absent.weights[:, ~gone], absent.gradient[:, ~gone])
        assert same(kept, without), words
    nothing = measure(f, np.zeros_like(p))
    assert not any(np.any(part) for part in nothing), "Without any loss the risk is not 0."
