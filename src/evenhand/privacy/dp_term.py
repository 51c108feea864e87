"""TERM over clients under privacy: clients tilt their updates by their own losses, which the server never sees."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from evenhand import local, tree
from evenhand.algorithms.averaging import Message, ServerState, global_params, server_init, server_step
from evenhand.errors import EvenhandError, expect, real_number
from evenhand.privacy._checks import check_sampled_noise, checked_clip, positive
from evenhand.privacy._renyi import joint
from evenhand.privacy.client_level import private
from evenhand.privacy.gaussian import with_gaussian
from evenhand.sampling import poisson
from evenhand.types import (
    Algorithm,
    Array,
    ClientData,
    Info,
    Key,
    Params,
    Phase,
    PyTree,
    Release,
    Report,
    Sum,
    Upload,
)

__all__ = ["dp_term"]


def dp_term(
    work: local.Work,
    *,
    t: float,
    largest_loss: float,
    clip: float,
    noise_multiplier: float,
    rate: float = 0.1,
    share: float = 0.05,
    server_opt: optax.GradientTransformation = optax.sgd(1.0),
) -> Algorithm:
    r"""TERM with client-level differential privacy: a noisy sum of tilted updates over a noisy sum of tilts.

    .. math::
        w^{t+1} = w^t + \frac{\sum_{k \in S_t} a_k \, \mathrm{clip}(\Delta_k, C) + \mathcal N(0, z_w^2 C^2 I)}{A},
        \qquad a_k = e^{t (\bar F_k(w^t) - F^*)} \in [e^{-|t| B}, 1]

    where :math:`\bar F_k` is the client's loss clipped to :math:`[0, B]`, and :math:`F^*` is :math:`B` for
    :math:`t > 0` and 0 for :math:`t < 0`: the loss that counts most has weight 1.  So a client moves the numerator by
    at most :math:`C`, as in DP-FedAvg.  The denominator is a noisy sum as well, counted from the middle of the range:

    .. math::
        A = q N m + \sum_{k \in S_t} (a_k - m) + \mathcal N(0, z_a^2 h^2), \qquad
        m = \frac{1 + e^{-|t| B}}2, \quad h = \frac{1 - e^{-|t| B}}2, \qquad
        z_w = z \sqrt{1 + r}, \quad z_a = z \sqrt{1 + 1 / r}

    A client moves that sum by at most :math:`h`, so both together are one Gaussian mechanism with multiplier :math:`z`.
    The normaliser costs a factor :math:`\sqrt{1 + r}` in the noise of the update: 2.5 % at the default.  Clients
    compute :math:`a_k` themselves, from :math:`t`, :math:`B` and their own loss; under a secure sum the server
    sees nothing but the two noisy sums.

    Args:
      work: as in :func:`evenhand.algorithms.term`.
      t: the tilt, in units of 1/loss: above 0 favours the worst-off clients, below 0 is robust to outliers.
      largest_loss: :math:`B`, to which losses are clipped; public.  Choose it near the largest loss that occurs.
      clip: :math:`C`, in the units of an update.
      noise_multiplier: :math:`z`, of both sums together.
      rate: :math:`q`, the chance with which each client is drawn.
      share: :math:`r`, the denominator's budget over that of the update, in concentrated privacy; 0: the denominator is
        the public :math:`q N`, which costs no privacy; steps then shrink with the mean weight, as losses fall.
      server_opt: the server's optimiser; ``sgd(1.0)`` is averaging.

    Raises:
      EvenhandError: a number out of range, or a tilt so strong that :math:`e^{-|t| B}` is 0 in float32.

    Privacy: the number of clients and all arguments are public.  Losses, weights, and how many clients take part are
    not.  ``per_round["mean_weight"]`` is :math:`A / (q N)`, from the noisy sum, so publishing it costs nothing more.

    Edge cases: :math:`A` is kept between :math:`q N` and the larger of its smallest possible value
    :math:`q N e^{-|t| B}` and its own noise, so that noise can neither turn nor blow up the step.  ``t=0`` is DP-FedAvg
    with noise :math:`z_w`.  An update or a loss that is not finite counts as no client.  A strong tilt costs accuracy,
    not privacy: where the mean weight is :math:`\bar a`, the update has :math:`1 / \bar a` times the noise.

    Differs from the paper, which knows no privacy, in the bounded losses and in the normaliser.  Alternatives: a public
    denominator (``share=0``); an average of noisy denominators over rounds, as :func:`evenhand.algorithms.term` has
    with ``running``, which has less noise and lags where losses fall fast; :func:`evenhand.privacy.dp_delta_fl`, whose
    weights are 0 or 1, which needs one more exchange and no bound on how far weights differ.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=60, alpha=0.3)
      >>> work = eh.local.sgd(eh.models.softmax_regression(features=64, classes=10), 0.1, epochs=1, batch_size=10)
      >>> method = dp_term(work, t=1.0, largest_loss=3.0, clip=0.5, noise_multiplier=1.0, rate=0.5)
      >>> run = eh.simulate(method, data, rounds=4)
      >>> weights = run.per_round["mean_weight"]
      >>> bool(0 < weights.min() <= weights.max() <= 1), round(run.privacy.epsilon, 1)
      (True, 4.0)

    Source: Li et al., *Tilted Empirical Risk Minimization*, ICLR 2021, section on fair federated learning, under the
    privacy of McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, which the authors
    leave open.
    """
    if not math.isfinite(real_number(t)) or not 0.0 <= real_number(share) < math.inf:
        raise EvenhandError(f"dp_term(t={t}, share={share}): give a finite tilt, and a share of at least 0.")
    positive("dp_term(largest_loss=)", largest_loss)
    checked_clip("dp_term(clip=)", clip)
    check_sampled_noise("dp_term", noise_multiplier, rate)
    local.check_work(work)
    expect("server_opt", server_opt, optax.GradientTransformation, "optax.sgd(1.0)")
    least = math.exp(-abs(t) * largest_loss)
    if least < _TINY:
        raise EvenhandError(
            f"dp_term(t={t:g}, largest_loss={largest_loss:g}): weights of the best and the worst client would differ "
            f"by more than float32 can tell: give a tilt below {-math.log(_TINY) / largest_loss:.3g} in size."
        )
    aggregator = _tilted_mean(clip, least, noise_multiplier, rate, share)
    method = Algorithm(
        model=work.model,
        init=lambda params, clients: server_init(server_opt, params),
        phases=(_phase(work, t, largest_loss, aggregator, server_opt),),
        global_params=global_params,
        sampling=poisson(rate),
    )
    return private(method)._replace(name=f"dp_term(t={t:g}, noise_multiplier={noise_multiplier:g})")


_TINY = 1e-6
"""Smaller weights are lost in a float32 sum beside those of 1."""


class Tilted(NamedTuple):
    """What a client sends: its update, and its weight ``a_k``, float32."""

    delta: Params
    weight: Array


def _phase(
    work: local.Work, t: float, largest_loss: float, aggregator: Sum, server_opt: optax.GradientTransformation
) -> Phase:
    """Clients train, and weigh themselves by their loss before."""
    most = largest_loss if t > 0 else 0.0

    def train(message: Message, state: PyTree, data: ClientData, key: Key) -> tuple[Tilted, PyTree]:
        loss = jnp.clip(local.full_loss(work.model, message.params, data), 0.0, largest_loss)
        params, _ = work.solve(message.params, data, key, optax.identity())
        weight = jnp.exp(t * (loss - most)).astype(jnp.float32)
        return Tilted(tree.subtract(params, message.params), weight), state

    def server(state: ServerState, direction: Tilted, reported: Array, key: Key) -> tuple[ServerState, Info]:
        state, info = server_step(server_opt, state, direction.delta)
        return state, {**info, "mean_weight": direction.weight}

    return Phase(
        broadcast=lambda state, client: Message(state.params, ()),
        report=lambda message, state, data: Report(jnp.float32(1.0), jnp.float32(jnp.nan)),
        work=train,
        aggregator=aggregator,
        server=server,
        effort=work.effort,
    )


def _tilted_mean(clip: float, least: float, noise_multiplier: float, rate: float, share: float) -> Sum:
    """The mean of clipped uploads by weights from ``least`` to 1, and the mean weight, both under noise."""
    middle, half = (1.0 + least) / 2.0, (1.0 - least) / 2.0
    of_mean = noise_multiplier * math.sqrt(1.0 + share)
    of_weight = noise_multiplier * math.sqrt(1.0 + 1.0 / share) if share else 0.0
    release = Release(joint([of_mean, of_weight]) if of_weight else of_mean, rate)

    def init(like: PyTree, clients: int) -> Array:
        if any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(like)):
            raise EvenhandError(
                "dp_term(): in half precision a sum is rounded by more than one client may change it: keep the "
                "model's parameters in float32."
            )
        return jnp.float32(rate * clients)

    def lift(upload: Upload, public: Any, key: Key) -> Tilted:
        # What a client claims is bounded here, so that the sensitivity rests on nobody's word.
        delta, weight = upload.delta.delta, jnp.clip(upload.delta.weight, least, 1.0)
        norm = tree.norm(delta)
        lifted = Tilted(tree.scale(weight * clip / jnp.maximum(norm, clip), delta), weight - middle)
        return tree.select(jnp.isfinite(norm) & jnp.isfinite(weight), lifted, tree.zeros_like(lifted))

    def lower(total: Tilted, expected: Array, key: Key) -> tuple[Tilted, Array]:
        mean_key, weight_key = jax.random.split(key)
        deltas = with_gaussian(mean_key, total.delta, of_mean * clip)
        if not share:
            return Tilted(tree.scale(1.0 / expected, deltas), jnp.float32(1.0)), expected
        deviation = of_weight * half
        weights = expected * middle + total.weight + deviation * jax.random.normal(weight_key)
        weights = jnp.clip(weights, jnp.minimum(jnp.maximum(expected * least, deviation), expected), expected)
        return Tilted(tree.scale(1.0 / weights, deltas), weights / expected), expected

    return Sum(init=init, lift=lift, lower=lower, sensitivity=math.hypot(clip, half), release=release)
