"""DP-FTRL: noise that is correlated over the rounds, for clients that take turns."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.algorithms import fedavg
from evenhand.errors import EvenhandError, whole_number
from evenhand.local import Work
from evenhand.privacy._checks import noise
from evenhand.privacy._noise import with_gaussian
from evenhand.privacy.correlated import CorrelatedNoise, Correlation, tree_noise
from evenhand.privacy.noisy_mean import noisy_mean
from evenhand.privacy.private import promise
from evenhand.sampling import cyclic
from evenhand.types import Algorithm, Array, Key, PyTree, Release, Sum

__all__ = ["dp_ftrl"]


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
    r"""DP-FTRL: averaging whose noise largely cancels from round to round, without counting on random cohorts.

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
      EvenhandError: a number out of range.  When a run starts: another number of clients, or cohorts of another size.

    Edge cases: where cohorts can be drawn independently, DP-FedAvg needs less noise for the same promise; this is for
    where they cannot.  The promise is to clients whose updates are replaced by zeros, as the turns of the others would
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
    whole_number("dp_ftrl(cohort=)", cohort, 1)
    whole_number("dp_ftrl(clients=)", clients, cohort)
    noise("dp_ftrl(noise_multiplier=)", noise_multiplier)
    turn = -(-clients // cohort)
    correlated = correlation(turn)
    release = Release(noise_multiplier / correlated.sensitivity)
    aggregator = _correlated_mean(clip, noise_multiplier, turn, cohort, correlated)
    method = fedavg(work, server_opt=server_opt, aggregator=aggregator, sampling=cyclic(cohort))
    (phase,) = method.phases

    def releases(rounds: int) -> tuple[Release, ...]:
        return (release._replace(times=-(-rounds // turn)),)

    def init(params: PyTree, found: int) -> PyTree:
        if found != clients:
            raise EvenhandError(f"dp_ftrl(clients={clients}): there are {found}: give their number.")
        return method.init(params, found)

    return method._replace(
        init=init,
        phases=(phase._replace(steps_if_empty=True),),
        privacy=promise(releases)._replace(neighbours="one client, whose updates are replaced by zeros"),
        name=f"dp_ftrl(noise_multiplier={noise_multiplier:g})",
    )


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
        return tree.add(mean, tree.scale(1.0 / cohort, noise)), _State(
            inner, jnp.where(is_over, 0, done), left
        )

    return plain._replace(
        init=init,
        publish=lambda state: plain.publish(state.inner),
        lower=lower,
        release=Release(noise_multiplier / correlated.sensitivity),
    )
