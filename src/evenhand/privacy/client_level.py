"""Client-level privacy: the guarantee for any method whose aggregators add noise, and DP-FedAvg, the simplest one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax

from evenhand import tree
from evenhand.algorithms import fedavg
from evenhand.errors import EvenhandError, expect
from evenhand.local import Work, check_rows_apart
from evenhand.privacy._renyi import joint
from evenhand.privacy.gaussian import AdaptiveClip, noisy_mean
from evenhand.sampling import poisson
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Info,
    Key,
    Params,
    Phase,
    Privacy,
    PyTree,
    Release,
    Stack,
    Sum,
)

__all__ = ["PRIVATE_WORK", "check_learned", "dp_fedadam", "dp_fedavg", "private", "promise"]


_ADDED = "one client, with all its examples, added or removed"


_REPLACED = "one client, with all its examples, replaced by another"


_SEEN = "individual uploads, which the server sees"


_KNOWN_IF_SUMMED = "which clients take part in a round: the server knows, so sampling hides nobody from it"


PRIVATE_WORK = "its local work already guarantees privacy: give it eh.local.sgd(model, ...)"


_NOISY = "give the method aggregator=eh.privacy.noisy_mean(clip, noise_multiplier=..., rate=...)"


# --- the guarantee -----------------------------------------------------------------------------------------


class _State(NamedTuple):
    """The method's own state, and how many clients a cohort is expected to have, int32."""

    inner: PyTree
    expected: Array


def private(method: Algorithm) -> Algorithm:
    r"""The same method with a client-level differential-privacy guarantee for its global models.

    For any two neighbouring sets of clients :math:`U, U'`, and any set :math:`O` of sequences of global models,

    .. math:: \Pr[\mathcal M(U) \in O] \le e^\varepsilon \Pr[\mathcal M(U') \in O] + \delta,

    with :math:`\varepsilon` and :math:`\delta` from ``run.privacy``.  Under Poisson sampling, one of two neighbours has
    one client more.  In cohorts of a fixed size, one client is replaced by another.  The server is trusted if it adds
    the noise, since it sees all uploads.  With :func:`evenhand.privacy.discrete_mean` it sees noisy sums only, against
    which :math:`\varepsilon` is larger, as the server knows who takes part.

    Args:
      method: one whose only look at its clients is through aggregators that add noise
        (:func:`evenhand.privacy.noisy_mean`), on cohorts from :func:`evenhand.sampling.poisson` of the same rate, or
        from :func:`evenhand.sampling.fixed` if their noise is made for it.

    Raises:
      EvenhandError: the method gives away something without noise, with the reason and what to do instead: an
        aggregator that sees single uploads, or weighs clients by what they report; a fixed cohort under noise for
        another sampling; a training loss that it observes; personal models; local work that guarantees something else.

    Edge cases: rounds without clients still step, with noise alone.  Where clients add the noise, one whose update is
    not finite sends zeros under its noise and keeps its state: who answers does not depend on its examples.  The
    server's step gets the expected number of uploads in place of the true one, which is private.  Put
    :func:`evenhand.personalization.ditto` and :func:`~evenhand.personalization.finetune` around it, not inside.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=30)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> noisy = eh.privacy.noisy_mean(0.5, noise_multiplier=1.0, rate=0.5)
      >>> method = private(eh.algorithms.fedprox(work, mu=0.1, aggregator=noisy, sampling=eh.sampling.poisson(0.5)))
      >>> run = eh.simulate(method, data, rounds=4)
      >>> round(run.privacy.epsilon, 1)
      4.0

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, definition 1.
    """
    expect("method", method, Algorithm, "eh.algorithms.fedavg(work, ...)")
    check_learned(method)
    for objection in _objections(method):
        raise EvenhandError(f"private({method.name}): {objection}.")
    drawn, rate = method.sampling, method.sampling.rate
    assert rate is not None  # else there was an objection
    in_a_round = _round_releases(method)
    sums = [phase.aggregator for phase in method.phases if isinstance(phase.aggregator, Sum)]
    is_secure = all(total.summation is not None and total.summation.is_secure for total in sums)
    server = _KNOWN_IF_SUMMED if is_secure else _SEEN

    def releases(rounds: int) -> tuple[Release, ...]:
        return tuple(release._replace(times=rounds) for release in in_a_round)

    def init(params: Params, clients: int) -> _State:
        return _State(method.init(params, clients), jnp.int32(max(1, round(rate * clients))))

    return method._replace(
        init=init,
        phases=tuple(map(_blind, method.phases)),
        global_params=lambda state: method.global_params(state.inner),
        privacy=promise(releases, _ADDED if drawn.independent else _REPLACED, server),
        name=f"private({method.name})",
    )


def check_learned(method: Algorithm) -> None:
    """Checks that a method sends nothing but what gradients have changed.

    Raises:
      EvenhandError: its model has running statistics.
    """
    reason = (
        "means and variances of a client's examples have no bound like that of an update, and noise would make "
        "variances negative"
    )
    check_rows_apart(method.model, f"private({method.name})", reason)


def promise(
    releases: Callable[[int], tuple[Release, ...]], neighbours: str = _ADDED, server: str = _SEEN
) -> Privacy:
    """The client-level guarantee of a method whose rounds release this, and nothing else."""
    return Privacy(
        unit="client",
        releases=releases,
        neighbours=neighbours,
        released=("the global model after every round",),
        public=("the number of clients", "the settings of the method"),
        unprotected=(
            server,
            "the seed, from which a simulation draws its noise",
            "metrics of a simulation, such as the accuracy of a client and the training loss",
            "hyper-parameter tuning, if it uses the same clients",
        ),
    )


def beyond(privacy: Privacy | None, *, started: bool, copied: bool) -> list[str]:
    """What a guarantee does not cover in a run.

    Args:
      privacy: the guarantee; None: there is none, and nothing to say.
      started: whether the run starts from given parameters, which other runs may have trained.
      copied: whether malicious clients read the uploads of others, and may send them again.
    """
    if privacy is None:
        return []
    start = f"the parameters that the run started from, if they were trained on the same {privacy.unit}s"
    # A copy of an upload that has noise already, as under example-level privacy, gives nothing more away.
    copies = (
        "uploads that malicious clients copy: the clip and the noise are for each client's own upload alone"
    )
    return [start] * started + [copies] * (copied and privacy.unit == "client")


def _round_releases(method: Algorithm) -> list[Release]:
    """What one round gives away, once for each cohort."""
    releases = list[Release]()
    for phase in method.phases:
        assert isinstance(phase.aggregator, Sum) and phase.aggregator.release is not None
        release = phase.aggregator.release
        if releases and not phase.fresh_cohort:
            # Several looks at one cohort are one look through less noise, Gaussian if all of theirs is.
            before = releases.pop()
            multiplier = joint([before.noise_multiplier, release.noise_multiplier])
            mechanism = release.mechanism if before.mechanism == "gaussian" else before.mechanism
            release = release._replace(noise_multiplier=multiplier, mechanism=mechanism)
        releases.append(release)
    return releases


def _objections(method: Algorithm) -> Iterator[str]:
    """What a method gives away of its clients past the noise of its aggregators; what needs another method first."""
    if method.observe is not None:
        yield (
            "it observes the training loss of all clients before each round, without noise: take a method that does not"
        )
    if method.personal_params is not None or method.adapt is not None:
        yield (
            "its clients have personal models, which the guarantee does not cover: put the personal method "
            "around private(), as in ditto(private(...), work)"
        )
    if method.privacy is not None:
        yield PRIVATE_WORK
    sums = list[Sum]()
    for phase in method.phases:
        if isinstance(phase.aggregator, Stack):
            yield (
                "its aggregator must see every upload, and what one client changes in its result has no bound: "
                + _NOISY
            )
        elif phase.aggregator.weigh is not None or phase.aggregator.needs_loss:
            yield (
                "its aggregator weighs clients by what they report in the clear, such as their loss: take one with "
                "equal weights, as in private(fedavg(aggregator=noisy_mean(...), sampling=poisson(rate))), or a "
                "method that hides the losses, dp_term(...) or dp_delta_fl(...)"
            )
        else:
            sums.append(phase.aggregator)
    if method.sampling.rate is None:
        yield _fixed_size([total.release for total in sums])
        return
    for total in sums:
        yield from _noise_objections(total, method.sampling.rate, method.sampling.independent)


def _fixed_size(releases: Sequence[Release | None]) -> str:
    """The objection to cohorts whose size is that of the run, with all that the method needs instead."""
    release = releases[0]
    draw = "poisson" if release is None or release.sampling == "poisson" else "fixed"
    rate = "rate" if release is None else f"{release.rate:g}"
    cure = f"give the method sampling=eh.sampling.{draw}({rate})"
    if release is None:
        also = ", and its aggregator adds no noise"
        cure += " and aggregator=eh.privacy.noisy_mean(clip, noise_multiplier=..., rate=rate)"
    else:
        also = ""
        cure += ", for which the noise of its aggregator is made"
    return (
        "its cohorts have a fixed size, but the accountant assumes clients that are drawn independently of each "
        f"other{also}: {cure}"
    )


def _noise_objections(aggregator: Sum, rate: float, independent: bool) -> Iterator[str]:
    """What a sum gives away without noise, or with noise for other cohorts."""
    if aggregator.release is None and aggregator.summation is not None:
        yield (
            "its aggregator uses a secure sum without noise made for it: give the method "
            "aggregator=eh.privacy.discrete_mean(clip, noise_multiplier=..., rate=..., fewest=...)"
        )
    elif aggregator.release is None:
        bounded = aggregator.sensitivity
        yield f"its {'aggregator adds no noise' if bounded else 'uploads have no bounded effect'}: {_NOISY}"
    elif not math.isclose(aggregator.release.rate, rate):
        yield (
            f"clients are drawn with probability {rate:g}, but its aggregator adds noise for "
            f"{aggregator.release.rate:g}: give both the same rate"
        )
    elif (aggregator.release.sampling == "poisson") != independent:
        yield (
            "its sampling differs from the sampling that its aggregator's noise is made for: give "
            'sampling=eh.sampling.poisson(rate) and noisy_mean(..., sampling="poisson"), or fixed(rate) and "fixed"'
        )


def _blind(phase: Phase) -> Phase:
    """The phase on the state with the expected number of uploads, which its server gets in place of the true one.

    Where clients add the noise, all that take part add it, whatever they have learnt.
    """

    def broadcast(state: _State, client: Array) -> PyTree:
        return phase.broadcast(state.inner, client)

    def work(message: PyTree, state: PyTree, data: ClientData, key: Key) -> tuple[PyTree, PyTree]:
        delta, after = phase.work(message, state, data, key)
        # Else it is rejected, and missing in the count of answers, as is the noise that its client adds.
        sent = jnp.isfinite(tree.norm(delta))
        return tree.select(sent, delta, tree.zeros_like(delta)), tree.select(sent, after, state)

    def server(state: _State, direction: PyTree, reported: Array, key: Key) -> tuple[_State, Info]:
        inner, info = phase.server(state.inner, direction, state.expected, key)
        return state._replace(inner=inner), info

    blind = phase._replace(broadcast=broadcast, server=server, steps_if_empty=True)
    # A server that adds the noise itself adds all of it, whoever answers.
    adds_noise = isinstance(phase.aggregator, Sum) and phase.aggregator.summation is not None
    return blind._replace(work=work) if adds_noise else blind


# --- what a run says of noise -------------------------------------------------------------------------------


_FEW = 5
"""Clients of a cohort, on average, under which noise on their mean is usually larger than what they have in common."""


def cohort_line(method: Algorithm, clients: int) -> str | None:
    """The sentence on the cohorts of a method that draws a part of the ``clients``; None: those of the run's size."""
    rate = method.sampling.rate
    if rate is None:
        return None
    if method.sampling.independent:
        chance = "" if rate == 1.0 else f", each with probability {rate:g}"
        return f"A round draws {_number(rate * clients)} of {clients:,} clients on average{chance}."
    return f"A round draws {_number(_expected(method, clients))} of {clients:,} clients."


def worth_of_noise(
    method: Algorithm, clients: int
) -> Iterator[tuple[Literal["unaccounted", "few_expected"], str]]:
    """What there is to say of noise that a method adds, as kinds and sentences: it guarantees nothing, or few share it.

    The rule for the latter: fewer than 5 of the ``clients`` are expected in a round, and more could be.
    """
    releases = (phase.aggregator.release for phase in method.phases if isinstance(phase.aggregator, Sum))
    if not any(release is not None and release.noise_multiplier > 0 for release in releases):
        return
    if method.privacy is None:
        yield (
            "unaccounted",
            "The aggregator adds noise to the updates, but no privacy guarantee is computed, so this noise promises "
            "nothing: put private(...) around the method, which checks all that it gives away and computes epsilon, as "
            "in private(fedavg(aggregator=noisy_mean(...), sampling=poisson(rate))).",
        )
    rate = method.sampling.rate
    if rate is None or rate == 1.0 or _expected(method, clients) >= _FEW:
        return
    yield (
        "few_expected",
        f"A round draws {_number(_expected(method, clients))} of {clients:,} clients on average, and the noise on the "
        f"mean of their updates is divided by that number: with fewer than {_FEW}, it usually hides what they have "
        "learnt. Give a larger rate; with few clients, rate=1 has the least noise at the same epsilon, with the noise "
        "multiplier that eh.privacy.noise_for (--epsilon) finds for it.",
    )


def _expected(method: Algorithm, clients: int) -> float:
    """How many clients a method draws in a round, on average."""
    share = (method.sampling.rate or 0.0) * clients
    return share if method.sampling.independent else float(int(share + 1e-9))


def _number(clients: float) -> str:
    return f"{clients:,.0f}" if clients >= 100 or abs(clients - round(clients)) < 0.05 else f"{clients:.1f}"


# --- DP-FedAvg -------------------------------------------------------------------------------------------


def dp_fedavg(
    work: Work,
    *,
    clip: float | AdaptiveClip,
    noise_multiplier: float,
    rate: float = 0.1,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""DP-FedAvg: a Poisson sample of clients trains, and the server averages their clipped updates and adds noise.

    .. math::
        w^{t+1} = w^t + \frac1{q N} \Big( \sum_{k \in S_t} \Delta_k \min\Big(1, \frac{C}{\|\Delta_k\|}\Big)
        + \mathcal N(0, z^2 C^2 I) \Big), \qquad \Pr[k \in S_t] = q,

    where :math:`\Delta_k` is what local work on :math:`F_k` changes in :math:`w^t`.  Whoever sees all models
    cannot tell whether any one client took part; ``run.privacy`` has the :math:`\varepsilon` and :math:`\delta`.

    Args:
      work: what clients do and the model that they train.
      clip: :math:`C`, in the units of an update, or :func:`evenhand.privacy.adaptive_clip`.
      noise_multiplier: :math:`z`; :func:`evenhand.privacy.noise_for` finds it for a budget.
      rate: :math:`q`, the chance with which each client is drawn in a round.
      server_opt: the server's optimiser on the noisy pseudo-gradient; ``sgd(1.0)`` is plain averaging.

    Raises:
      EvenhandError: a number out of range, or local work that already guarantees privacy.

    Edge cases: a round without clients steps along noise alone.  All clients count alike, whatever their size: the
    objective is :math:`\frac1N \sum_k F_k`.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=100)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> run = eh.simulate(dp_fedavg(work, clip=0.5, noise_multiplier=1.0, rate=0.1), data, rounds=20)
      >>> round(run.privacy.epsilon, 2), run.privacy.delta
      (1.86, 0.01)

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, algorithm 1; as in
    Li et al., *Private Adaptive Optimization with Side Information*, ICML 2022, algorithm 10 with :math:`A = 1`.

    Differs from the paper: algorithm 10 prints noise at each device; its code and its :math:`\varepsilon` are those of
    noise added once to the sum, as here.
    """
    noisy = noisy_mean(clip, noise_multiplier=noise_multiplier, rate=rate)
    method = private(fedavg(work, server_opt=server_opt, aggregator=noisy, sampling=poisson(rate)))
    return method._replace(name=f"dp_fedavg(noise_multiplier={noise_multiplier:g}, rate={rate:g})")


def dp_fedadam(
    work: Work,
    *,
    clip: float | AdaptiveClip,
    noise_multiplier: float,
    rate: float = 0.1,
    server_lr: float = 1.0,
) -> Algorithm:
    r"""DP-FedAdam: DP-FedAvg with Adam at the server, on the noisy averages :math:`u^t`.

    .. math::
        m^t = .9 \, m^{t-1} + .1 \, u^t, \quad v^t = .999 \, v^{t-1} + .001 \, (u^t)^2, \quad
        w^{t+1} = w^t + \gamma \frac{m^t / (1 - .9^t)}{\sqrt{v^t / (1 - .999^t)} + 10^{-8}}

    Args:
      work, clip, noise_multiplier, rate: as in :func:`dp_fedavg`, and with the same guarantee.
      server_lr: :math:`\gamma`.

    Raises:
      EvenhandError: as for :func:`dp_fedavg`.

    Example:
      >>> import evenhand as eh
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> dp_fedadam(work, clip=0.5, noise_multiplier=1.0, rate=0.1, server_lr=0.1).name
      'dp_fedadam(noise_multiplier=1, rate=0.1)'

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, under noise as in Li et al., *Private Adaptive
    Optimization with Side Information*, ICML 2022, figure 7.
    """
    adam = optax.adam(server_lr, b1=0.9, b2=0.999, eps=1e-8)
    method = dp_fedavg(work, clip=clip, noise_multiplier=noise_multiplier, rate=rate, server_opt=adam)
    return method._replace(name=f"dp_fedadam(noise_multiplier={noise_multiplier:g}, rate={rate:g})")
