"""DP^2 in a federation: the server learns from its own noisy means by what clients divide their updates."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.algorithms import fedavg
from evenhand.errors import EvenhandError, truth_value
from evenhand.local import Work
from evenhand.privacy._checks import check_sampled_noise, checked_clip, noise, pair
from evenhand.privacy._preconditioners import Moment, StepNumber, delayed_rule
from evenhand.privacy.client_level import private
from evenhand.privacy.dp_ftrl import Correlation, Turns, tree_noise
from evenhand.privacy.gaussian import noisy_mean
from evenhand.privacy.update_rules import Iteration, Query, UpdateRule
from evenhand.sampling import cyclic, poisson
from evenhand.types import Algorithm, Array, Key, Params, PyTree, Sum, Upload

__all__ = ["dp_fed2"]


def dp_fed2(
    work: Work,
    *,
    step_sizes: tuple[StepNumber, StepNumber],
    clips: tuple[float, float],
    noise_multiplier: float,
    delay: int | tuple[int, int],
    rate: float = 0.1,
    kind: Literal["rmsprop", "adagrad", "yogi"] = "rmsprop",
    decay: float = 0.9,
    eps: float = 1e-3,
    unbiased: bool = False,
    noise_first: bool = False,
    cohort: int | None = None,
    clients: int | None = None,
    correlation: Correlation = tree_noise(),
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""DP^2 for clients: alternates rounds of DP-FedAvg with rounds preconditioned by their noisy averages.

    .. math::
        u^t = \frac1{q N} \Big( \sum_{k \in S_t} \mathrm{clip}\Big(\frac{\Delta_k}{D^t}, C\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad w^{t+1} = w^t + \alpha u^t

    For :math:`s_1` rounds :math:`D = 1`, and :math:`G` sums up their :math:`u^t`.  Then :math:`v` follows
    :math:`(G / s_1)^2` as in :func:`evenhand.privacy.dp2`, and for :math:`s_2` rounds :math:`D = \sqrt v + \epsilon`.
    The server broadcasts :math:`D`, and each client divides its update :math:`\Delta_k` by it before it clips.

    With ``cohort`` and ``clients``, clients take turns and the noise is correlated as in
    :func:`evenhand.privacy.dp_ftrl`.  The noise of :math:`G`, a sum over rounds, then largely cancels.

    Args:
      work: as in :func:`evenhand.privacy.dp_fedavg`.
      step_sizes: :math:`\alpha` of the plain rounds, 1 for averaging, and of the divided ones; each a number, or a
        function of the rounds of both so far, from 0, such as a schedule of optax.
      clips: :math:`C` of each; the first in the units of an update, the second without units.
      noise_multiplier: :math:`z`, the same in both.
      delay: :math:`s_1 = s_2` in rounds, or both, ``(s1, s2)``.
      rate: :math:`q`, the chance with which each client is drawn in a round; without use where clients take turns.
      kind: how :math:`v` follows.
      decay: :math:`\beta`.
      eps: :math:`\epsilon`, in the units of an update.
      unbiased: subtract the noise's part, :math:`z^2 C^2 / (s_1 q^2 N^2)`, from :math:`(G / s_1)^2`, down to 0 at most.
      noise_first: the server divides after clipping and noise, which then grows where :math:`D < 1`: an ablation.
      cohort: clients in each round, where they take turns; None: cohorts are drawn independently.
      clients: :math:`N`, where they take turns.
      correlation: of the noise in a turn, as in ``dp_ftrl``.
      server_opt: the server's optimiser on :math:`\alpha u^t`.

    Raises:
      EvenhandError: a number out of range; one of ``cohort`` and ``clients`` without the other; ``unbiased`` under
        correlated noise, whose variance over a phase depends on where in a turn the phase is; local work that already
        guarantees privacy.

    Privacy: :math:`D`, :math:`C` and :math:`\alpha` follow from the noisy :math:`u^t` of earlier rounds, so the server
    may publish them.  The guarantee is that of ``dp_fedavg``, or ``dp_ftrl``, with the same noise and rounds.

    Edge cases: up to :math:`s_1` rounds are those of DP-FedAvg with the server step :math:`\alpha`.  An ``eps`` far
    above the scales makes the divisor constant: this is then DP-FedAvg with two step sizes.

    Differs from the paper, which has examples and gradients where this has clients and updates.  For clients of one
    example and one local step of size 1 both are the same.  Two alternatives: clients that divide each local gradient
    (:func:`evenhand.privacy.adadps_fl` with known scales) need :math:`D` in the units of a gradient, which the server
    does not see after several local steps; ``noise_first`` needs no broadcast, but clips before it divides.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=60)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> pairs = {"step_sizes": (1.0, 0.1), "clips": (0.5, 5.0)}  # of plain rounds, and of divided ones
      >>> method = dp_fed2(work, **pairs, noise_multiplier=1.0, rate=0.5, delay=4)
      >>> run = eh.simulate(method, data, rounds=12)
      >>> bool(run.history["test_accuracy"][-1] > 0.4), round(run.privacy.epsilon, 1)
      (True, 7.5)

    Source: Li et al., *Differentially Private Adaptive Optimization with Delayed Preconditioners*, ICLR 2023,
    algorithm 1, for clients instead of examples, which the authors leave open; correlated noise: Kairouz et al.,
    *Practical and Private (Deep) Learning without Sampling or Shuffling*, ICML 2021.
    """
    unbiased = truth_value("unbiased", unbiased)
    noise_first = truth_value("noise_first", noise_first)
    moment = Moment(kind, decay, eps).checked("dp_fed2", ("rmsprop", "adagrad", "yogi"))
    first, second = _pair(clips)
    rule = delayed_rule("dp_fed2", step_sizes, (first, second), delay, moment, unbiased, noise_first)
    name = f"dp_fed2(noise_multiplier={noise('dp_fed2(noise_multiplier=)', noise_multiplier):g})"
    if cohort is None or clients is None:
        if cohort is not clients:
            raise EvenhandError(
                f"dp_fed2(cohort={cohort}, clients={clients}): give both, for clients that take turns, or none."
            )
        check_sampled_noise("dp_fed2", noise_multiplier, rate)
        mean = noisy_mean(1.0, noise_multiplier=noise_multiplier, rate=rate)
        aggregator = _ruled(rule, mean, noise_multiplier, rate)
        method = fedavg(work, server_opt=server_opt, aggregator=aggregator, sampling=poisson(rate))
        return private(method)._replace(name=name)
    if unbiased:
        raise EvenhandError(
            "dp_fed2(unbiased=True): the noise of a phase has a known variance where cohorts are drawn independently: "
            "leave cohort= and clients= out."
        )
    turns = Turns.of("dp_fed2", cohort, clients, correlation)
    aggregator = _ruled(rule, turns.mean(1.0, noise_multiplier), 0.0, 1.0)
    method = fedavg(work, server_opt=server_opt, aggregator=aggregator, sampling=cyclic(cohort))
    return turns.private(method)._replace(name=name)


def _pair(clips: tuple[float, float]) -> tuple[float, float]:
    """The clip of each phase, checked."""
    plain, divided = pair("dp_fed2(clips", clips, "of the plain rounds and of the divided ones")
    return checked_clip("dp_fed2(clips=)", plain), checked_clip("dp_fed2(clips=)", divided)


class _State(NamedTuple):
    """The states of the rule and of the mean, and how many clients a cohort is expected to have, float32."""

    rule: PyTree
    mean: PyTree
    expected: Array


class _Question(NamedTuple):
    """What clients are told: the clip, float32, and what they divide their updates by; None: by nothing."""

    clip: Array
    scales: Params | None


def _ruled(rule: UpdateRule, mean: Sum, noise_multiplier: float, rate: float) -> Sum:
    """The rule's queries of the cohort, each answered by the noisy ``mean`` of uploads clipped to 1, times the clip.

    Uploads in units of the clip have one sensitivity in all rounds, which correlated noise calls for.
    """

    def ask(state: _State) -> tuple[_Question, PyTree, Iteration]:
        iteration = Iteration(
            params=(),
            key=jax.random.key(0),
            deviation=lambda clip: noise_multiplier * clip / state.expected,
            gradient=tuple,
        )
        query, after = rule.before(state.rule, iteration)
        assert isinstance(query, Query) and query.clip is not None
        return _Question(jnp.float32(query.clip), query.divided_by), after, iteration

    def init(like: PyTree, clients: int) -> _State:
        return _State(rule.init(like), mean.init(like, clients), jnp.float32(rate * clients))

    def publish(state: _State) -> tuple[_Question, PyTree]:
        return ask(state)[0], mean.publish(state.mean)

    def lift(upload: Upload, public: tuple[_Question, PyTree], key: Key) -> PyTree:
        question, of_mean = public
        delta = upload.delta if question.scales is None else tree.divide(upload.delta, question.scales)
        return mean.lift(upload._replace(delta=tree.scale(1.0 / question.clip, delta)), of_mean, key)

    def lower(total: PyTree, state: _State, key: Key) -> tuple[Params, _State]:
        question, asked, iteration = ask(state)
        answer, of_mean = mean.lower(total, state.mean, key)
        direction, after = rule.after(tree.scale(question.clip, answer), asked, iteration)
        return direction, _State(after, of_mean, state.expected)

    return mean._replace(init=init, lift=lift, lower=lower, publish=publish, sensitivity=None)
