r"""DP-FTRL: noise that is correlated over the rounds, so that most of it cancels in the sum of all.

The noise of round :math:`t` is :math:`(B Z)_t`, where :math:`Z` has fresh noise in each row and :math:`B = C^{-1}` is
lower triangular.  It hides as much as :math:`Z` does on :math:`C x`: a client that moves the sum of one round by at
most 1 moves that by at most the longest column of :math:`C`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evenhand import tree
from evenhand.algorithms import fedavg
from evenhand.errors import EvenhandError, whole_number
from evenhand.local import Work
from evenhand.privacy._checks import NDArray, checked_clip, noise
from evenhand.privacy.client_level import PRIVATE_WORK, check_learned, promise
from evenhand.privacy.gaussian import noisy_mean, with_gaussian
from evenhand.sampling import cyclic
from evenhand.types import Algorithm, Array, Key, PyTree, Release, Sum

__all__ = [
    "CorrelatedNoise",
    "Correlation",
    "StreamingMatrix",
    "dp_ftrl",
    "streamed_noise",
    "toeplitz_noise",
    "tree_noise",
]


# --- correlated noise ------------------------------------------------------------------------------------


class CorrelatedNoise(NamedTuple):
    """Correlated noise for a sequence of rounds.

    Attributes:
      init: ``like -> state``, before the first of them.
      step: ``(fresh, state) -> (noise, state)``, what a round adds, given independent noise.
      sensitivity: how far a client that takes part in one of the rounds moves what the noise hides, over its clip.
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    sensitivity: float


Correlation: TypeAlias = Callable[[int], CorrelatedNoise]
"""``rounds -> CorrelatedNoise``."""


class StreamingMatrix(Protocol):
    """A lower triangular matrix that is applied row by row, as those of the package jax_privacy."""

    @property
    def init_multiply(self) -> Callable[[Any], Any]: ...

    @property
    def multiply_next(self) -> Callable[[Any, Any], tuple[Any, Any]]: ...


def tree_noise() -> Correlation:
    r"""Tree aggregation: noise at the nodes of a binary tree over rounds; a prefix sum has the noise of its nodes.

    The noise of the sum of :math:`t` rounds is that of as many nodes as :math:`t` has binary ones, and a client is in
    :math:`h = \lfloor \log_2 T \rfloor + 1` nodes: sensitivity :math:`\sqrt h`.

    Example:
      >>> round(tree_noise()(4).sensitivity, 4)
      1.7321

    Source: Kairouz et al., *Practical and Private (Deep) Learning without Sampling or Shuffling*, ICML 2021.
    """
    return _tree


def _tree(rounds: int) -> CorrelatedNoise:
    height = rounds.bit_length()
    levels = jnp.arange(height)

    def init(like: PyTree) -> tuple[Array, PyTree]:
        return jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros((height, *leaf.shape), leaf.dtype), like)

    def step(fresh: PyTree, state: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
        done, old = state[0] + 1, state[1]
        # The node that ends at this round replaces those below it.
        level = jnp.sum(jnp.cumprod(1 - (done >> levels) % 2))

        def updated(nodes: Array, new: Array) -> Array:
            where = levels.reshape((height,) + (1,) * new.ndim)
            after = jnp.where(where < level, 0.0, jnp.where(where == level, new[None], nodes))
            return after.astype(nodes.dtype)

        nodes = jax.tree.map(updated, old, fresh)
        before, after = (jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), tree) for tree in (old, nodes))
        return tree.subtract(after, before), (done, nodes)

    return CorrelatedNoise(init, step, math.sqrt(height))


def toeplitz_noise(bands: int | None = None) -> Correlation:
    r"""Correlated noise from a Toeplitz matrix: subtracts shares of the noise of earlier rounds.

    .. math::
        n_t = z_t - \sum_{j=1}^{b - 1} c_j n_{t - j}, \qquad c_j = \binom{2j}{j} 4^{-j}

    The matrix :math:`C` with these diagonals is, without bands, the square root of that which adds up rounds, and of
    all with constant diagonals the best at the worst round.  After 100 rounds its noise is 2.5 times that of one round
    with the same guarantee; that of the tree is 4.6 times, that of independent noise 10 times.

    Args:
      bands: :math:`b`, from 1: noise of so many rounds is kept; None: of all.  With 1 it is independent noise.

    Raises:
      EvenhandError: ``bands`` is not a whole number from 1.

    Example:
      >>> round(toeplitz_noise()(4).sensitivity ** 2, 4)
      1.4883

    Source: Fichtenberger, Henzinger and Upadhyay, *Constant Matters: Fine-grained Complexity of Differentially Private
    Continual Observation*, ICML 2023; bands: Choquette-Choo et al., *(Amplified) Banded Matrix Factorization*, NeurIPS
    2023.
    """
    if bands is not None:
        bands = whole_number("toeplitz_noise(bands=)", bands, 1)

    def correlation(rounds: int) -> CorrelatedNoise:
        kept = rounds if bands is None else min(bands, rounds)
        j = np.arange(1, kept)
        diagonals = np.cumprod(np.concatenate([[1.0], (2 * j - 1) / (2 * j)]))
        earlier = jnp.asarray(diagonals[1:], jnp.float32)

        def init(like: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.zeros((kept - 1, *leaf.shape), leaf.dtype), like)

        def step(fresh: PyTree, last: PyTree) -> tuple[PyTree, PyTree]:
            noise = jax.tree.map(lambda z, n: z - jnp.tensordot(earlier, n, 1).astype(z.dtype), fresh, last)
            after = jax.tree.map(lambda new, old: jnp.concatenate([new[None], old])[: kept - 1], noise, last)
            return noise, after

        return CorrelatedNoise(init, step, float(np.linalg.norm(diagonals)))

    return correlation


def streamed_noise(matrix: StreamingMatrix) -> Correlation:
    """Correlated noise from any lower triangular matrix given row by row, such as a buffered linear Toeplitz one.

    Args:
      matrix: :math:`B = C^{-1}`; with the package jax_privacy, ``buffered_toeplitz.optimize(n=rounds)`` finds one that
        keeps the noise of a few rounds only, whose ``inverse_as_streaming_matrix()`` this is.

    Raises:
      EvenhandError: when it is made for some rounds: the matrix has no inverse.

    Edge cases: the sensitivity is computed from the whole matrix, which takes time that grows with the cube of the
    number of rounds.

    Source: Dvijotham et al., *Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy*, FOCS
    2024.
    """

    def correlation(rounds: int) -> CorrelatedNoise:
        return CorrelatedNoise(matrix.init_multiply, matrix.multiply_next, _longest_column(matrix, rounds))

    return correlation


def _longest_column(matrix: StreamingMatrix, rounds: int) -> float:
    """Of the inverse."""
    rows, state = list[NDArray](), matrix.init_multiply(jnp.zeros(rounds))
    for unit in np.eye(rounds, dtype=np.float32):
        row, state = matrix.multiply_next(jnp.asarray(unit), state)
        rows.append(np.asarray(row, np.float64))
    whole = np.tril(np.stack(rows))
    if not np.all(np.isfinite(whole)) or not np.all(np.diag(whole)):
        raise EvenhandError(
            "streamed_noise(matrix): it has no inverse, so that its noise hides nothing: give another."
        )
    return float(np.linalg.norm(np.linalg.inv(whole), axis=0).max())


# --- the method ------------------------------------------------------------------------------------------


class _State(NamedTuple):
    """The state of the clipped mean, rounds done in this turn, int32, and the state of the noise."""

    inner: PyTree
    done: Array
    noise: PyTree


def dp_ftrl(
    work: Work,
    *,
    clip: float,
    noise_multiplier: float,
    cohort: int,
    clients: int,
    correlation: Correlation = tree_noise(),
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""DP-FTRL: averaging with correlated noise that largely cancels over rounds; needs no random cohorts.

    .. math::
        w^{t+1} = w^0 + \frac1m \Big( \sum_{s \le t} \sum_{k \in S_s} \Delta_k \min\Big(1, \frac{C}{\|\Delta_k\|}\Big)
        + \sum_{\nu \in \text{nodes}(t + 1)} \xi_\nu \Big), \qquad \xi_\nu \sim \mathcal N(0, z^2 C^2 I)

    The nodes are sums over rounds in a binary tree, those that make up the rounds :math:`1, \dots, t + 1`: as many as
    :math:`t + 1` has binary ones.  Clients take turns (:func:`evenhand.sampling.cyclic`), so that each is in at most
    :math:`h = \lfloor \log_2 \lceil N / m \rceil \rfloor + 1` nodes of a turn; each turn has a tree of its own.
    Other ``correlation`` than the tree's cancels more: :func:`toeplitz_noise` halves what is left at the end.

    Args:
      work: as in :func:`evenhand.privacy.dp_fedavg`.
      clip: :math:`C`.
      noise_multiplier: :math:`z`, of the independent noise that is correlated: a whole turn has less, by the
        correlation's sensitivity, which is :math:`\sqrt h` for the tree.
      cohort: :math:`m`, which a run need not repeat: with another one, a client would be in more nodes.
      clients: :math:`N`, of which there may be no more.
      correlation: of the noise in a turn: :func:`tree_noise`, :func:`toeplitz_noise` or :func:`streamed_noise`.
      server_opt: as in :func:`evenhand.privacy.dp_fedavg`; momentum makes it the authors' method with momentum.

    Raises:
      EvenhandError: a number out of range, or local work that already guarantees privacy.  When a run starts: another
        number of clients, or cohorts of another size.

    Edge cases: where cohorts can be drawn independently, DP-FedAvg needs less noise for the same guarantee; this is for
    where they cannot.  The guarantee is for clients whose updates are replaced by zeros, as the others' turns would
    differ without them.

    Differs from the paper: each client takes part once per turn, which bounds its part without counting; prefixes are
    not denoised (Honaker's estimator).

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=40)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> method = dp_ftrl(work, clip=0.5, noise_multiplier=4.0, cohort=10, clients=40)
      >>> run = eh.simulate(method, data, rounds=8)
      >>> round(run.privacy.epsilon, 2)
      1.46

    Source: Kairouz et al., *Practical and Private (Deep) Learning without Sampling or Shuffling*, ICML 2021, algorithms
    1 and B.1; for clients: appendix D.
    """
    turns = Turns.of("dp_ftrl", cohort, clients, correlation)
    aggregator = turns.mean(clip, noise_multiplier)
    method = fedavg(work, server_opt=server_opt, aggregator=aggregator, sampling=cyclic(cohort))
    return turns.private(method)._replace(name=f"dp_ftrl(noise_multiplier={noise_multiplier:g})")


class Turns(NamedTuple):
    """How clients take turns under correlated noise, as in :func:`dp_ftrl`; ``method`` is named in errors."""

    method: str
    cohort: int
    clients: int
    correlated: CorrelatedNoise

    @staticmethod
    def of(method: str, cohort: int, clients: int, correlation: Correlation) -> Turns:
        """Cohorts of this size, until all clients have been in one; the numbers are checked."""
        cohort = whole_number(f"{method}(cohort=)", cohort, 1)
        clients = whole_number(f"{method}(clients=)", clients, cohort)
        return Turns(method, cohort, clients, correlation(-(-clients // cohort)))

    @property
    def rounds(self) -> int:
        """Of a turn."""
        return -(-self.clients // self.cohort)

    def mean(self, clip: float, noise_multiplier: float) -> Sum:
        """The mean of the cohort's clipped uploads under the correlated noise."""
        checked_clip(f"{self.method}(clip=)", clip)
        noise(f"{self.method}(noise_multiplier=)", noise_multiplier)
        return _correlated_mean(clip, noise_multiplier, self.rounds, self.cohort, self.correlated)

    def private(self, method: Algorithm) -> Algorithm:
        """The method on such means, with what it guarantees: each turn releases what its aggregators say."""
        check_learned(method)
        if method.privacy is not None:
            raise EvenhandError(f"{self.method}(): {PRIVATE_WORK}.")
        release, turn = _release(method), self.rounds

        def releases(rounds: int) -> tuple[Release, ...]:
            return (release._replace(times=-(-rounds // turn)),)

        def init(params: PyTree, num_clients: int) -> PyTree:
            if num_clients != self.clients:
                raise EvenhandError(
                    f"{self.method}(clients={self.clients}): there are {num_clients}: give their number."
                )
            return method.init(params, num_clients)

        return method._replace(
            init=init,
            phases=tuple(phase._replace(steps_if_empty=True) for phase in method.phases),
            privacy=promise(releases, "one client, whose updates are replaced by zeros"),
        )


def _release(method: Algorithm) -> Release:
    """What the aggregator of the only phase gives away."""
    (phase,) = method.phases
    assert isinstance(phase.aggregator, Sum) and phase.aggregator.release is not None
    return phase.aggregator.release


def _correlated_mean(
    clip: float, noise_multiplier: float, turn: int, cohort: int, correlated: CorrelatedNoise
) -> Sum:
    """The clipped mean over ``cohort``, plus what this round adds to the noise of the prefix."""
    plain, deviation = noisy_mean(clip, noise_multiplier=0.0, rate=1.0), noise_multiplier * clip

    def init(like: PyTree, clients: int) -> _State:
        return _State(plain.init(like, cohort), jnp.int32(0), correlated.init(tree.zeros_like(like)))

    def lower(total: PyTree, state: _State, key: Key) -> tuple[PyTree, _State]:
        mean, inner = plain.lower(total, state.inner, key)
        zeros, done = tree.zeros_like(mean), state.done + 1
        noise, after = correlated.step(with_gaussian(key, zeros, deviation), state.noise)
        is_over = done == turn
        left = tree.select(is_over, correlated.init(zeros), after)
        direction = tree.add(mean, tree.scale(1.0 / cohort, noise))
        return direction, _State(inner, jnp.where(is_over, 0, done), left)

    return plain._replace(
        init=init,
        publish=lambda state: plain.publish(state.inner),
        lower=lower,
        release=Release(noise_multiplier / correlated.sensitivity),
    )
