"""Definitions of robust aggregators, in NumPy with loops and sorts, and 200 random cohorts.

A case has nine clients, of whom up to three send a NaN and so do not count, and some of whom lie far away.  All cases
of a rule are one program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import aggregators as agg

CASES, CLIENTS, F = 200, 9, 2


def cases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Updates ``(cases, clients, 5)``, weights and losses ``(cases, clients)``."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(CASES, CLIENTS, 5)) * np.exp(rng.normal(size=(CASES, 1, 1)))
    x += rng.normal(size=(CASES, 1, 5)) * 3
    far = rng.random((CASES, CLIENTS)) < 0.15
    x = np.where(far[..., None], x * 40 + 7, x)
    for case in range(CASES):
        gone = rng.choice(CLIENTS, rng.integers(0, 4), replace=False)
        x[case, gone, rng.integers(5)] = np.nan
    return (
        x.astype(np.float32),
        rng.integers(1, 30, (CASES, CLIENTS)),
        rng.permuted(np.tile(np.arange(CLIENTS) + 0.5, (CASES, 1)), axis=1),
    )


X, WEIGHTS, LOSSES = cases()
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


# --- definitions: (updates (n, d), weights (n,), losses (n,)) -> direction, of the clients that count ------------


def squared(x: np.ndarray) -> np.ndarray:
    return np.array([[np.sum((a - b) ** 2) for b in x] for a in x])


def by_score(x: np.ndarray, f: int, neighbours: int = -2, power: float = 1.0) -> np.ndarray:
    """The uploads in the order of their Krum scores; of equal ones, that with the least sum of distances first."""
    d = squared(x) ** power
    count = max(len(x) - f + neighbours, 0)
    scores = [np.sort(np.delete(d[i], i))[:count].sum() for i in range(len(x))]
    return np.lexsort((d.sum(axis=1), scores))


def multi_krum(x: np.ndarray, w: np.ndarray, keep: int) -> np.ndarray:
    best = by_score(x, F)[:keep]
    return np.average(x[best], axis=0, weights=w[best])


def around_median(x: np.ndarray, count: int, w: np.ndarray | None = None) -> np.ndarray:
    """Values that are equally near to the median, at the edge, share what is kept of them."""
    median, columns, w = np.median(x, axis=0), [], np.ones(len(x)) if w is None else w
    for j in range(x.shape[1]):
        apart = np.abs(x[:, j] - median[j])
        edge = np.sort(apart)[count - 1]
        share = (count - np.sum(apart < edge)) / np.sum(apart == edge)
        columns.append(
            np.average(x[:, j], weights=w * np.where(apart < edge, 1.0, np.where(apart == edge, share, 0.0)))
        )
    return np.array(columns)


def bulyan(x: np.ndarray, f: int) -> np.ndarray:
    left, chosen = list(range(len(x))), list[int]()
    while len(chosen) < max(len(x) - 2 * f, 1):
        best = left[int(by_score(x[left], f)[0])]
        chosen.append(best)
        left.remove(best)
    return around_median(x[chosen], max(len(chosen) - 2 * f, 1))


def mda(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    d = squared(x)
    sets = [list(kept) for kept in combinations(range(len(x)), len(x) - F)]
    best = min(sets, key=lambda kept: ((part := d[np.ix_(kept, kept)]).max(), part.sum()))
    return np.average(x[best], axis=0, weights=w[best])


def caf(x: np.ndarray, f: int) -> np.ndarray:
    x = x.astype(np.float64)
    c, least, best = np.ones(len(x)), np.inf, x.mean(axis=0)
    while c.sum() > max(len(x) - 2 * f, 0) and least > 0:
        mean = c @ x / c.sum()
        covariance = ((x - mean) * c[:, None]).T @ (x - mean) / c.sum()
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < least:
            least, best = values[-1], mean
        tau = ((x - mean) @ vectors[:, -1]) ** 2
        c = c * (1 - tau / max(tau[c > 0].max(), 1e-300)) * (c > 0)
    return best


def trimmed(x: np.ndarray, w: np.ndarray, fraction: float) -> np.ndarray:
    cut = min(int(np.ceil(fraction * len(x) - 1e-9)), (len(x) - 1) // 2)
    columns = []
    for j in range(x.shape[1]):
        kept = np.argsort(x[:, j], kind="stable")[cut : len(x) - cut]
        columns.append(np.average(x[kept, j], weights=w[kept]))
    return np.array(columns)


def weighted_median(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    columns = []
    for j in range(x.shape[1]):
        order = np.argsort(x[:, j])
        below, values = np.cumsum(w[order]), x[order, j]
        lower = values[np.argmax(below >= w.sum() / 2)]
        upper = values[np.argmax(below > w.sum() / 2)]
        columns.append((lower + upper) / 2)
    return np.array(columns)


def clipped(x: np.ndarray, longest: float) -> np.ndarray:
    return x * np.minimum(1, longest / np.maximum(np.linalg.norm(x, axis=1), 1e-12))[:, None]


def arc(x: np.ndarray, f: int) -> np.ndarray:
    lengths = np.sort(np.linalg.norm(x, axis=1))[::-1]
    return clipped(x, lengths[int(2 * f * (len(x) - f) / len(x) + 1e-9)])


def nnm(x: np.ndarray, f: int) -> np.ndarray:
    return np.array([x[np.argsort(row, kind="stable")[: len(x) - f]].mean(axis=0) for row in squared(x)])


def least(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(values, kind="stable")[:count]


def weiszfeld(x: np.ndarray, w: np.ndarray, passes: int, z: np.ndarray, nu: float = 1e-5) -> np.ndarray:
    for _ in range(passes):
        beta = w / np.maximum(np.linalg.norm(x - z, axis=1), nu)
        z = beta @ x / beta.sum()
    return z


def weighted(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.average(x, axis=0, weights=w)


def centered(x: np.ndarray, w: np.ndarray, radius: float, passes: int) -> np.ndarray:
    v = np.zeros(x.shape[1])
    for _ in range(passes):
        v = v + np.average(clipped(x - v, radius), axis=0, weights=w)
    return v


RULES: dict[str, tuple[Any, Rule]] = {
    "krum": (agg.krum(F), lambda x, w, s: x[by_score(x, F)[0]]),
    "multi_krum": (agg.multi_krum(F), lambda x, w, s: multi_krum(x, 0 * w + 1, len(x) - F)),
    "multi_krum, weighted": (agg.multi_krum(F, weighted=True), lambda x, w, s: multi_krum(x, w, len(x) - F)),
    "multi_krum, keep": (agg.multi_krum(F, keep=3), lambda x, w, s: multi_krum(x, 0 * w + 1, 3)),
    "bulyan": (agg.bulyan(1), lambda x, w, s: bulyan(x, 1)),
    "mda": (agg.mda(F), lambda x, w, s: mda(x, 0 * w + 1)),
    "mda, weighted": (agg.mda(F, weighted=True), lambda x, w, s: mda(x, w)),
    "meamed": (agg.meamed(F), lambda x, w, s: around_median(x, len(x) - F)),
    "meamed, weighted": (
        agg.meamed(F, weighted=True),
        lambda x, w, s: around_median(x, len(x) - F, w),
    ),
    "caf": (agg.caf(F), lambda x, w, s: caf(x, F)),
    "median": (agg.coordinate_median(), lambda x, w, s: np.median(x, axis=0)),
    "median, weighted": (agg.coordinate_median(weighted=True), lambda x, w, s: weighted_median(x, w)),
    "trimmed": (agg.trimmed_mean(0.2), lambda x, w, s: trimmed(x, 0 * w + 1, 0.2)),
    "trimmed, weighted": (agg.trimmed_mean(0.3, weighted=True), lambda x, w, s: trimmed(x, w, 0.3)),
    "norm": (
        agg.norm_filter(F),
        lambda x, w, s: x[least(np.linalg.norm(x, axis=1), len(x) - F)].mean(axis=0),
    ),
    "norm, weighted": (
        agg.norm_filter(F, weighted=True),
        lambda x, w, s: weighted(*(part[least(np.linalg.norm(x, axis=1), len(x) - F)] for part in (x, w))),
    ),
    "loss": (agg.loss_filter(F), lambda x, w, s: x[np.argsort(s)[len(x) - F - 1]]),
    "losses": (agg.loss_filter(F, several=True), lambda x, w, s: x[least(s, len(x) - F)].mean(axis=0)),
    "losses, weighted": (
        agg.loss_filter(F, several=True, weighted=True),
        lambda x, w, s: weighted(x[least(s, len(x) - F)], w[least(s, len(x) - F)]),
    ),
    "clip": (agg.clip(2.0), lambda x, w, s: weighted(clipped(x, 2.0), w)),
    "clip, median": (
        agg.clip(),
        lambda x, w, s: weighted(clipped(x, float(np.median(np.linalg.norm(x, axis=1)))), w),
    ),
    "clip, median, then krum": (
        agg.clip(then=agg.krum(F)),
        lambda x, w, s: (y := clipped(x, float(np.median(np.linalg.norm(x, axis=1)))))[by_score(y, F)[0]],
    ),
    "normalize": (
        agg.normalize(3.0),
        lambda x, w, s: weighted(3 * x / np.linalg.norm(x, axis=1, keepdims=True), w),
    ),
    "arc": (agg.arc(F, then=agg.mean()), lambda x, w, s: weighted(arc(x, F), w)),
    "nnm": (agg.nnm(F, then=agg.mean()), lambda x, w, s: weighted(nnm(x, F), w)),
    "nnm, then trimmed": (
        agg.nnm(F, then=agg.trimmed_mean(0.2)),
        lambda x, w, s: trimmed(nnm(x, F), 0 * w + 1, 0.2),
    ),
    "bounded weights": (
        agg.bounded_weights(1.5, then=agg.mean()),
        lambda x, w, s: weighted(x, np.minimum(w, 1.5 * np.sort(w)[(len(w) - 1) // 2])),
    ),
    "bounded weights of a stack": (
        agg.bounded_weights(1.5, then=agg.coordinate_median(weighted=True)),
        lambda x, w, s: weighted_median(x, np.minimum(w, 1.5 * np.sort(w)[(len(w) - 1) // 2])),
    ),
    "geometric median": (agg.geometric_median(4), lambda x, w, s: weiszfeld(x, w, 4, np.zeros(x.shape[1]))),
    "geometric median, one step": (
        agg.geometric_median(1),
        lambda x, w, s: weiszfeld(x, w, 1, np.zeros(x.shape[1])),
    ),
    "geometric median, from the mean": (
        agg.geometric_median(3, start="mean"),
        lambda x, w, s: weiszfeld(x, w, 2, weighted(x, w)),
    ),
    "geometric median, nu": (
        agg.geometric_median(3, nu=2.0),
        lambda x, w, s: weiszfeld(x, w, 3, np.zeros(x.shape[1]), 2.0),
    ),
    "centered clipping": (agg.centered_clipping(2.0, passes=3), lambda x, w, s: centered(x, w, 2.0, 3)),
    "reject": (
        agg.reject(8.0, then=agg.mean()),
        lambda x, w, s: weighted(x, w) * (np.linalg.norm(weighted(x, w)) < 8),
    ),
    "reject a stack": (
        agg.reject(8.0, then=agg.krum(F)),
        lambda x, w, s: (y := x[by_score(x, F)[0]]) * (np.linalg.norm(y) < 8),
    ),
}


def traced(rule: Any) -> Any:
    """A new program: ``(updates (cases, n, 5), weights (cases, n), losses (cases, n)) -> directions``."""

    def one(x: Any, w: Any, s: Any) -> Any:
        found = agg.aggregate(rule, {"a": x[:, :2], "b": x[:, 2:].reshape(-1, 1, 3)}, w, s)
        return jnp.concatenate([found["a"], found["b"].ravel()])

    return jax.jit(jax.vmap(one))


once = cache(traced)
"""One for each rule."""


def directions(
    rule: Any, order: Any = slice(None), updates: np.ndarray = X, program: Callable[[Any], Any] = once
) -> np.ndarray:
    """The rule's direction in every case, clients in this order; a tree of two leaves."""
    return np.asarray(program(rule)(updates[:, order], WEIGHTS[:, order], LOSSES[:, order]))


def expected(definition: Rule, updates: np.ndarray = X) -> np.ndarray:
    found = []
    for x, w, s in zip(updates, WEIGHTS, LOSSES, strict=True):
        here = np.isfinite(x).all(axis=1)
        found.append(definition(x[here].astype(np.float64), w[here].astype(np.float64), s[here]))
    return np.array(found)


def agree(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which cases agree to float32."""
    return (np.abs(found - wanted) <= 2e-4 * np.maximum(1.0, np.abs(wanted).max(axis=1, keepdims=True))).all(
        axis=1
    )
