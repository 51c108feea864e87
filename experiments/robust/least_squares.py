"""RFA's theorem on least squares: the error halves with each round, down to a floor that unlike clients set.

Client ``i`` has ``y = x . w_i + noise`` with ``|x| <= 1`` and covariance ``H_i``.  In round ``t`` it takes ``2^t``
times as many steps of SGD as in the first, from the model ``w_t``, and sends the mean of the second half of its
iterates, minus ``w_t``.  The theorem, for a share ``1/2 + c`` of honest clients:

    E |w_t - w*|^2 <~ |w_0 - w*|^2 / 2^t + (d sigma^2 t / 2^t + eps^2 / m^2 + Omega_X^2 Omega_Y^2) / c^2

where ``Omega_Y`` is the largest distance between honest clients' ``w_i``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import evenhand as eh

__all__ = ["RULES", "Problem", "errors", "measure"]

NDArray: TypeAlias = npt.NDArray[Any]

RULES: Mapping[str, eh.types.Aggregator] = {
    "mean": eh.aggregators.mean(),
    "RFA": eh.aggregators.geometric_median(20),
    "one-step": eh.aggregators.geometric_median(1),
}


class Problem(NamedTuple):
    """Least squares at ``clients`` clients, all of which take part in each round.

    Attributes:
      clients: how many.
      malicious: how many of them send an update that turns the mean into its opposite.
      unlike: ``Omega_Y``.
      dimensions: ``d``.
      noise: standard deviation of the noise, ``sigma``.
      steps: of a client in the first round.
      rounds: how many.
    """

    clients: int = 40
    malicious: int = 10
    unlike: float = 0.0
    dimensions: int = 10
    noise: float = 0.1
    steps: int = 20
    rounds: int = 11


def measure(problem: Problem, rule: eh.types.Aggregator, seed: int) -> list[float]:
    """``|w_t - w*|^2`` before the first round and after each; infinity once it is beyond 1e12."""
    rng = np.random.default_rng(seed)
    honest = problem.clients - problem.malicious
    scales = rng.uniform(0.5, 1.0, (problem.clients, problem.dimensions))
    apart = rng.standard_normal((problem.clients, problem.dimensions))
    # Half of Omega_Y from the middle in all directions: no two are farther apart.
    own = 0.5 * problem.unlike * apart / np.linalg.norm(apart, axis=1, keepdims=True) + 1.0
    # Uniform on the sphere, so that E[x x'] = diag(scales^2) / d.
    weights = scales[:honest] ** 2
    best = (weights * own[:honest]).sum(0) / weights.sum(0)
    w, found = np.zeros(problem.dimensions), list[float]()
    for number in range(problem.rounds + 1):
        found.append(float(np.sum((w - best) ** 2)))
        if not found[-1] < 1e12:
            return found[:-1] + [float("inf")] * (problem.rounds + 2 - len(found))
        if number == problem.rounds:
            break
        updates = _trained(problem, w, own, scales, problem.steps * 2**number, rng) - w
        updates[honest:] = -2.0 * updates[:honest].sum(0) / problem.malicious if problem.malicious else 0.0
        w = w + np.asarray(eh.aggregators.aggregate(rule, jnp.asarray(updates, jnp.float32)), np.float64)
    return found


def errors(problem: Problem, rule: str, seeds: int) -> list[list[float]]:
    """:func:`measure` for each seed."""
    return [measure(problem, RULES[rule], seed) for seed in range(seeds)]


def _trained(
    problem: Problem, w: NDArray, own: NDArray, scales: NDArray, steps: int, rng: np.random.Generator
) -> NDArray:
    """The mean of the second half of each client's iterates, ``(clients, d)``."""
    at = np.tile(w, (problem.clients, 1))
    total = np.zeros_like(at)
    for step in range(steps):
        x = rng.standard_normal(at.shape)
        x = scales * x / np.linalg.norm(x, axis=1, keepdims=True)
        error = np.sum(x * (at - own), axis=1) + problem.noise * rng.standard_normal(problem.clients)
        at = at - error[:, None] * x
        if step >= steps // 2:
            total += at
    return total / (steps - steps // 2)
