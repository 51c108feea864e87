"""The laws of a :class:`evenhand.types.Risk`, each as a check."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from evenhand.testing._check import Check, are_equal, check_all, checks_of
from evenhand.types import Array, Risk

_CASES = 6
_STEP = 2e-3
"""The step of finite differences: large enough for float32, small enough for a tilt of 100."""


_LARGE = 1e3
"""By how much losses are larger where training diverges."""


class _Parts(NamedTuple):
    value: Any
    weights: Any
    gradient: Any = None


def check_risk(
    risk: Risk,
    *,
    losses: int = 7,
    symmetric: bool = True,
    divisible: bool = True,
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
    * A loss that is given twice, each time with a part of its weight, counts as before (unless ``symmetric=False`` or
      ``divisible=False``).
    * It can be compiled and mapped, gives the same bits twice, and does not modify its arguments.

    Args:
      risk: what is checked, on losses between 0.1 and 3.
      losses: the number of losses to generate, at least 3.
      symmetric: whether losses may be permuted and absent ones left out; False for a risk that knows a loss by its
        position, such as one over groups.
      divisible: whether a loss may be given in two parts that share its weight; False for a risk that counts losses,
        such as the k-th smallest, or compares weights other than by their ratios, such as ``squared_superquantile``.
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
    check_all(
        risk_checks(
            risk,
            losses=losses,
            symmetric=symmetric,
            divisible=divisible,
            translation=translation,
            monotone=monotone,
            between=between,
            tolerance=tolerance,
        )
    )


def risk_checks(
    risk: Risk,
    *,
    losses: int = 7,
    symmetric: bool = True,
    divisible: bool = True,
    translation: bool = True,
    monotone: bool = True,
    between: bool = True,
    tolerance: float = 1e-5,
) -> tuple[Check, ...]:
    """The laws of :func:`check_risk`, each as a check of its own, for a test runner to show one by one.

    Arguments are those of :func:`check_risk`.  Nothing is computed before the first check is called, and all of them
    share one compiled program.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_risk` calls them.

    Example:
      >>> import evenhand as eh
      >>> [check.name for check in risk_checks(eh.risks.mean())][:2]
      ['value and weights have the form of losses', 'finite losses have a finite risk']
    """
    subject = _Subject(risk, losses, symmetric, translation, tolerance)
    return checks_of(
        (True, "value and weights have the form of losses", subject.check_forms),
        (True, "finite losses have a finite risk", subject.check_finite),
        (True, "the same losses give the same bits", subject.check_same_bits),
        (True, "compiled and mapped it is the same", subject.check_compiled),
        (True, "arguments are not modified", subject.check_arguments),
        (True, "weights are those of a mean and of the gradient", subject.check_weights),
        (between, "the value lies between the losses", subject.check_between),
        (True, "the scale of weights does not matter", subject.check_scale),
        (True, "without weights losses count equally", subject.check_unweighted),
        (symmetric, "the order does not matter", subject.check_order),
        (translation, "a constant is added to the value", subject.check_translation),
        (monotone, "a larger loss is no smaller risk", subject.check_monotone),
        (True, "the gradient is the slope", subject.check_slope),
        (True, "losses of weight 0 do not count", subject.check_absence),
        (symmetric and divisible, "a loss may be given in two parts", subject.check_parts),
        (True, "without losses the risk is 0", subject.check_nothing),
    )


class _Subject:
    """A risk under test: its laws, and the losses and the compiled program that they share."""

    def __init__(self, risk: Risk, losses: int, symmetric: bool, translation: bool, tolerance: float) -> None:
        self.risk, self.symmetric, self.translation, self.tolerance = risk, symmetric, translation, tolerance
        rng = np.random.default_rng(0)
        f = rng.uniform(0.1, 3.0, (_CASES, losses)).astype(np.float32)
        f[0] = f[0, 0]  # all equal
        f[1, 1:] = np.sort(f[1, 1:])
        f[1, 2], f[1, -1] = f[1, 1], f[1, -2]  # ties at either end
        p = rng.integers(1, 20, f.shape).astype(np.float32)
        self.f, self.p, self.copies = f, p, (f.copy(), p.copy())
        self.order = rng.permutation(losses)
        self.step = _STEP * np.sign(rng.normal(size=f.shape)).astype(np.float32)

    @cached_property
    def batched(self) -> Any:
        def parts(f: Array, p: Array) -> _Parts:
            value, gradient = jax.value_and_grad(self.risk.value)(f, p)
            return _Parts(value, self.risk.weights(f, p), gradient)

        return jax.jit(jax.vmap(parts))

    def measure(self, f: Any, p: Any) -> _Parts:
        return jax.tree.map(np.array, self.batched(f, p))

    @cached_property
    def once(self) -> _Parts:
        return self.measure(self.f, self.p)

    def same(self, a: Any, b: Any) -> bool:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return all(np.all(np.abs(x - y) <= self.tolerance * np.maximum(1.0, np.abs(y))) for x, y in pairs)

    def check_forms(self) -> None:
        f, p, wide = self.f[0], self.p[0], jax.config.read("jax_enable_x64")
        for dtype in (np.float32, np.float64) if wide else (np.float32,):
            forms = [jax.eval_shape(part, f.astype(dtype), p.astype(dtype)) for part in self.risk]
            assert [(form.shape, form.dtype) for form in forms] == [((), dtype), (f.shape, dtype)], (
                "The value is not a scalar, or there is not one weight per loss, or a dtype is not that of the losses."
            )

    def check_finite(self) -> None:
        for scale in (1.0, _LARGE):
            parts = self.measure(np.float32(scale) * self.f, self.p)
            assert all(np.isfinite(part).all() for part in parts), (
                f"The risk of losses up to {3 * scale:g} is not finite, or its weights or gradient are not: subtract "
                "the largest loss before exp, and guard divisions by 0."
            )

    def check_same_bits(self) -> None:
        again = map(np.array_equal, self.once, self.measure(self.f, self.p))
        assert all(again), "The same losses gave other bits."

    def check_compiled(self) -> None:
        plain = [part(self.f[1], self.p[1]) for part in self.risk]
        assert self.same(plain, [self.once.value[1], self.once.weights[1]]), (
            "The risk changes when it is compiled and mapped over many vectors of losses."
        )

    def check_arguments(self) -> None:
        # Outside of a compiled program, which gets arrays of its own.
        for part in self.risk:
            part(self.f[1], self.p[1])
        assert are_equal((self.f, self.p), self.copies), "The risk wrote to its arguments."

    def check_weights(self) -> None:
        _, weights, gradient = self.once
        assert np.all(weights >= 0), "A weight is below 0."
        assert np.all(np.abs(weights.sum(axis=1) - 1) <= self.tolerance), "The weights do not sum to 1."
        length = gradient.sum(axis=1, keepdims=True)
        gap = np.abs(gradient - length * weights)
        near = gap <= self.tolerance * np.maximum(1.0, np.abs(length))
        assert np.all(near) and np.all(length >= -self.tolerance), (
            "The gradient of the value is not a nonnegative multiple of the weights."
        )
        assert not self.translation or np.all(np.abs(gradient - weights) <= self.tolerance), (
            "The gradient of the value is not equal to the weights."
        )

    def check_between(self) -> None:
        value, f = self.once.value, self.f
        inside = (f.min(axis=1) - self.tolerance <= value) & (value <= f.max(axis=1) + self.tolerance)
        assert np.all(inside), "The value does not lie between the smallest and the largest loss."

    def check_scale(self) -> None:
        for scale in (1e-3, 1e3):
            scaled = self.measure(self.f, scale * self.p)
            assert self.same(scaled, self.once), "Weights of another scale change the risk."

    def check_unweighted(self) -> None:
        value, equal = jax.jit(jax.vmap(self.risk.value))(self.f), self.measure(self.f, np.ones_like(self.p))
        assert self.same(value, equal.value), "Without weights the losses do not count equally."

    def check_order(self) -> None:
        order, (value, weights, gradient) = self.order, self.once
        expected = _Parts(value, weights[:, order], gradient[:, order])
        turned = self.measure(self.f[:, order], self.p[:, order])
        assert self.same(turned, expected), "The risk depends on the order of the losses."

    def check_translation(self) -> None:
        moved = self.measure(self.f + np.float32(1.75), self.p)
        lifted = self.once._replace(value=self.once.value + 1.75)
        assert self.same(moved, lifted), "A constant added to all losses is not added to the value."

    def check_monotone(self) -> None:
        for unit in np.eye(self.f.shape[1], dtype=np.float32):
            raised = self.measure(self.f + np.float32(0.5) * unit, self.p).value
            assert np.all(raised >= self.once.value - self.tolerance), "The value falls when a loss rises."

    def check_slope(self) -> None:
        """By finite differences, in most cases: in some, a step may cross a kink of the value."""
        ahead, behind = (self.measure(self.f + side * self.step, self.p).value for side in (1, -1))
        slope = (ahead - behind) / (2 * _STEP)
        gaps = np.abs(slope - np.sum(self.once.gradient * self.step, axis=1) / _STEP)[2:]
        assert np.median(gaps) <= 0.02, "The gradient of the value is not its slope."

    def check_absence(self) -> None:
        f, p, words = self.f, self.p, "A loss of weight 0 counts."
        gone = np.arange(f.shape[1]) == 1
        present = np.where(gone, np.float32(0), p)
        absent = self.measure(np.where(gone, np.float32(0.5), f), present)
        assert not absent.weights[:, gone].any() and not absent.gradient[:, gone].any(), words
        for filler in (np.nan, np.inf, 1e6, 0.0):
            assert self.same(self.measure(np.where(gone, np.float32(filler), f), present), absent), words
        if self.symmetric:
            without = self.measure(f[:, ~gone], p[:, ~gone])
            kept = _Parts(absent.value, absent.weights[:, ~gone], absent.gradient[:, ~gone])
            assert self.same(kept, without), words

    def check_parts(self) -> None:
        f, twice, once = self.f.copy(), self.p, self.p.copy()
        f[:, 1] = f[:, 0]
        once[:, 0], once[:, 1] = twice[:, 0] + twice[:, 1], 0.0
        parts, whole = self.measure(f, twice), self.measure(f, once)
        for of_losses in (parts.weights, parts.gradient):
            of_losses[:, 0], of_losses[:, 1] = of_losses[:, 0] + of_losses[:, 1], 0.0
        assert self.same(parts, whole), (
            "A loss that is given twice, each time with a part of its weight, changes the risk: it must count by its "
            "weight, unless divisible=False."
        )

    def check_nothing(self) -> None:
        nothing = self.measure(self.f, np.zeros_like(self.p))
        assert not any(np.any(part) for part in nothing), "Without any loss the risk is not 0."
