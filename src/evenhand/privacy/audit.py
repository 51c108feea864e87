"""Audits: how much privacy a mechanism has been seen to lose, which must not be more than it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from evenhand import tree
from evenhand.errors import EvenhandError, real_number, whole_number
from evenhand.local import Work
from evenhand.privacy._checks import probability
from evenhand.streams import root_key
from evenhand.types import Array, ClientData, Model, Params, Sum, Upload

__all__ = ["Audit", "audit_mean", "audit_scores", "audit_work", "least_epsilon"]

NDArray = npt.NDArray[Any]


class Audit(NamedTuple):
    """The result of a privacy audit.

    Attributes:
      epsilon: the mechanism loses at least so much, with the confidence asked for.
      guesses: how many canaries were guessed to be in or out.
      correct: how many guesses were right.
      scores: of all canaries: what they have left in the result.
      included: which of them were in.
    """

    epsilon: float
    guesses: int
    correct: int
    scores: NDArray
    included: NDArray


def least_epsilon(
    correct: int, guesses: int, *, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    r"""Lower bound on epsilon from the number of right guesses about canaries.

    Each canary is in or out by a fair coin.  Under :math:`(\varepsilon, \delta)`-differential privacy the number of
    right guesses is at most that of coins with :math:`p = e^\varepsilon / (1 + e^\varepsilon)`, but for

    .. math::
        \Pr[W \ge v] \le \Pr[B \ge v] + 2 m \delta \max_{1 \le i \le v} \frac1i \Pr[v - i \le B < v], \qquad
        B \sim \text{Binomial}(r, p).

    Args:
      correct: :math:`v`.
      guesses: :math:`r`.
      canaries: :math:`m`.
      delta: :math:`\delta`.
      confidence: one minus the probability of such an accident; above 0 and below 1.

    Raises:
      EvenhandError: more right guesses than guesses, or more of these than canaries; a probability out of range.

    Edge cases: 0 where guesses are no better than a coin.

    Example:
      >>> round(least_epsilon(90, 100, canaries=1000, delta=1e-6), 2)
      1.63

    Source: Steinke, Nasr and Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023, theorem 5.2.
    """
    from scipy import stats  # half a second, which only audits take

    if not 0 <= correct <= guesses <= canaries:
        raise EvenhandError(
            f"least_epsilon({correct}, {guesses}, canaries={canaries}): give no more right guesses than guesses, and "
            "no more of these than canaries."
        )
    _check_odds(delta, confidence)

    def accident(epsilon: float) -> float:
        p = 1.0 / (1.0 + math.exp(-epsilon))
        # Far below the mean there is nothing left that could make a mean of probabilities larger.
        reach = abs(correct - guesses * p) + 12.0 * math.sqrt(guesses * p * (1.0 - p)) + 12.0
        count = min(correct, math.ceil(reach))
        below = stats.binom.pmf(np.arange(correct - 1, correct - 1 - count, -1), guesses, p).cumsum()
        worst = float(np.max(below / np.arange(1, count + 1), initial=0.0))
        return float(stats.binom.sf(correct - 1, guesses, p)) + 2.0 * canaries * delta * worst

    if accident(0.0) > 1.0 - confidence:
        return 0.0
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if accident(middle) <= 1.0 - confidence else (low, middle)
    return low


def audit_scores(
    scores: NDArray, included: npt.NDArray[np.bool_], *, delta: float, confidence: float = 0.95
) -> Audit:
    r"""Audits any mechanism by scores of canaries, each included independently with probability 1/2.

    The highest scores are guessed to be in, the lowest ones out; how many of each is tried out, and paid for in the
    confidence.

    Args:
      scores: of the canaries, ``(m,)``, from what the mechanism gives away: the more, the likelier they were in.
      included: bool ``(m,)``, which of them were in.
      delta: of the guarantee that is audited.
      confidence: as in :func:`least_epsilon`.

    Raises:
      EvenhandError: fewer than ten canaries, or not one coin for each score; a probability out of range.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> coins = rng.random(10_000) < 0.5
      >>> audit = audit_scores(coins + 2.0 * rng.normal(size=10_000), coins, delta=1e-6)  # a Gaussian mechanism
      >>> import evenhand as eh
      >>> 0.5 < audit.epsilon < eh.privacy.epsilon(noise_multiplier=2.0, rate=1.0, steps=1, delta=1e-6)
      True

    Source: as of :func:`least_epsilon`, algorithm 1 there.
    """
    _check_odds(delta, confidence)
    scores, included = np.asarray(scores), np.asarray(included, bool)
    if scores.ndim != 1 or scores.shape != included.shape or len(scores) < 10:
        raise EvenhandError(
            "audit_scores(): give ten scores or more, and for each whether its canary was in."
        )
    order, canaries = np.argsort(-scores, kind="stable"), len(scores)
    right_in, right_out = np.cumsum(included[order]), np.cumsum(~included[order[::-1]])
    tries = np.unique(np.geomspace(5, canaries // 2, 12).astype(int))
    # Each of the tries, for the highest alone or for both ends, may be the accident.
    corrected = 1.0 - (1.0 - confidence) / (2 * len(tries))
    best = Audit(0.0, 0, 0, scores, included)
    for count in tries:
        top, both = int(right_in[count - 1]), int(right_in[count - 1] + right_out[count - 1])
        for correct, guesses in ((top, int(count)), (both, 2 * int(count))):
            epsilon = least_epsilon(correct, guesses, canaries=canaries, delta=delta, confidence=corrected)
            if epsilon > best.epsilon:
                best = Audit(epsilon, guesses, correct, scores, included)
    return best


def audit_mean(
    aggregator: Sum,
    *,
    rounds: int,
    length: float,
    delta: float,
    canaries: int = 6000,
    runs: int = 10,
    seed: int = 0,
    confidence: float = 0.95,
) -> Audit:
    r"""Audits a noisy sum with canary clients, whose uploads are long and orthogonal.

    Canary :math:`j` uploads :math:`L e_j` in every round, if it is in at all; its score is coordinate :math:`j` of the
    sum of all directions.

    Args:
      aggregator: such as :func:`evenhand.privacy.noisy_mean`.
      rounds: in which every canary that is in takes part.
      length: :math:`L`; a correct mechanism clips it.
      delta: of the guarantee that is audited.
      canaries: how many, in one run.
      runs: how often all of this happens, each time with canaries of its own; what one run finds in so many more
        canaries, several find in less time.
      seed: decides which canaries are in, and the noise.
      confidence: as in :func:`least_epsilon`.

    Example:
      >>> import evenhand as eh
      >>> rule = eh.privacy.noisy_mean(1.0, noise_multiplier=2.0, rate=1.0)
      >>> audit = audit_mean(rule, rounds=1, length=100.0, delta=1e-5, canaries=500, runs=2)
      >>> audit.epsilon < eh.privacy.epsilon(noise_multiplier=2.0, rate=1.0, steps=1, delta=1e-5)
      True
    """
    rounds = whole_number("rounds", rounds, 1)
    _check_odds(delta, confidence)
    _check_length(length)
    included, keys = _runs(canaries, runs, seed)
    like = _halves(jnp.zeros(canaries))

    def upload(position: Array) -> Upload:
        delta = _halves(jnp.zeros(canaries).at[position].set(length))
        return Upload(delta, jnp.float32(1.0), jnp.float32(jnp.nan))

    def direction(included: Array, key: Array) -> Array:
        state = aggregator.init(like, canaries)
        public = aggregator.publish(state)

        def add(position: Array, sums: Any) -> Any:
            lifted = aggregator.lift(upload(position), public, jax.random.fold_in(key, position))
            return tree.add(sums, tree.select(included[position], lifted, tree.zeros_like(lifted)))

        begin = tree.zeros(jax.eval_shape(aggregator.lift, upload(jnp.int32(0)), public, key))
        mean, _ = aggregator.lower(jax.lax.fori_loop(0, canaries, add, begin), state, key)
        return _whole(mean)

    @jax.jit
    def scores(included: Array, key: Array) -> Array:
        return jnp.sum(jax.lax.map(partial(direction, included), jax.random.split(key, rounds)), axis=0)

    measured = [scores(jnp.asarray(coins), key) for coins, key in zip(included, keys, strict=True)]
    return audit_scores(np.ravel(measured), np.ravel(included), delta=delta, confidence=confidence)


def audit_work(
    make: Callable[[Model], Work],
    *,
    length: float,
    delta: float,
    canaries: int = 2000,
    runs: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
) -> Audit:
    r"""Audits private local work with canary examples, whose gradients are long and orthogonal.

    The loss of canary :math:`j` is :math:`-L w_j`; its score is where :math:`w_j` ends, times the number of examples.

    Args:
      make: the work on a model, as in ``lambda model: eh.privacy.dp_sgd(model, 1.0, clip=1.0, ...)``; the number of
        its examples is half of that of the canaries, about.
      length: :math:`L`, the length of a gradient before it is clipped.
      delta, canaries, runs, seed, confidence: as in :func:`audit_mean`.

    Example:
      >>> import evenhand as eh
      >>> def make(model):
      ...     return eh.privacy.dp_sgd(model, 1.0, clip=1.0, noise_multiplier=2.0, rate=1.0, steps=1)
      >>> audit = audit_work(make, length=100.0, delta=1e-5, canaries=500)
      >>> audit.epsilon < eh.privacy.epsilon(noise_multiplier=2.0, rate=1.0, steps=1, delta=1e-5)
      True
    """
    _check_odds(delta, confidence)
    _check_length(length)
    included, keys = _runs(canaries, runs, seed)

    def init(key: Array) -> Params:
        return _halves(jnp.zeros(canaries))

    def apply(params: Params, x: Array) -> Array:
        return length * _whole(params)[x]

    work = make(Model(init, apply, lambda outputs, y: -outputs, {}, name="canaries"))

    counts = included.sum(axis=1).astype(np.int32)
    most = int(counts.max())

    def ended(given: tuple[Array, Array, Array]) -> Array:
        rows, count, key = given
        data = ClientData(
            x=rows,
            y=jnp.zeros(most),
            start=jnp.int32(0),
            size=count,
            progress=jnp.float32(1.0),
            capacity=most,
        )
        end, _ = work.solve(init(key), data, key, optax.identity())
        # Steps are divided by the number of examples, which differs from run to run.
        return count.astype(jnp.float32) * _whole(end)

    # Of each run, the canaries that are in, in order; what follows them does not count.
    rows = np.argsort(~included, axis=1, kind="stable")[:, :most].astype(np.int32)
    ends = jax.jit(lambda given: jax.lax.map(ended, given))((jnp.asarray(rows), jnp.asarray(counts), keys))
    return audit_scores(np.ravel(ends), np.ravel(included), delta=delta, confidence=confidence)


def _check_odds(delta: float, confidence: float) -> None:
    """Checks both before anything is trained; out of range, every audit would find nothing."""
    probability("delta", delta, zero=True)
    probability("confidence", confidence)


def _check_length(length: float) -> None:
    """Checks that canaries have a length."""
    if not 0.0 < real_number(length) < math.inf:
        raise EvenhandError(f"length={length!r:.40}: give the length of a canary, a finite number above 0.")


def _halves(whole: Array) -> Params:
    """A number for each canary as a tree of two leaves, as of a model."""
    half = len(whole) // 2
    return {"a": whole[:half], "b": whole[half:]}


def _whole(halves: Params) -> Array:
    return jnp.concatenate([halves["a"], halves["b"]])


def _runs(canaries: int, runs: int, seed: int) -> tuple[NDArray, Array]:
    """Which canaries are in, bool ``(runs, canaries)``, and a key for each run."""
    runs = whole_number("runs", runs, 1)
    canaries = whole_number("canaries", canaries, 10)
    coins = [np.random.default_rng(seed * runs + run).random(canaries) < 0.5 for run in range(runs)]
    return np.stack(coins), jax.random.split(root_key(seed), runs)
