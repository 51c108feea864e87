"""TERM under privacy: against a NumPy loop and DP-FedAvg; the noise of both sums, and what bounds a client."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from private_oracle import MODEL, examples, far, mean_of, near, norms, promised, tree_map
from scipy import stats

import evenhand as eh
from evenhand.algorithms.averaging import Message
from evenhand.errors import EvenhandError
from evenhand.privacy import dp_fedavg, dp_term
from evenhand.privacy.dp_term import Tilted
from evenhand.types import Release, Sum, Upload

DATA = eh.testing.toy_data()
N, RATE, CLIP, LARGEST = DATA.num_clients, 0.1, 0.03, 2.0
WORK = eh.local.sgd(MODEL, RATE, epochs=1)


def method(t=1.5, noise=0.0, work: Any = WORK, **settings: Any):
    given = {"largest_loss": LARGEST, "clip": CLIP, "rate": 1.0, **settings}
    return dp_term(work, t=t, noise_multiplier=noise, **given)


def rule_of(method) -> Sum:
    return method.phases[0].aggregator


def ran(method, rounds=3):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=max(rounds, 1))


# --- what it computes --------------------------------------------------------------------------------------------


def losses(w):
    found = []
    for x, y in map(DATA.train.client, range(N)):
        logits = x.astype(np.float64) @ w["w"] + w["b"]
        top = logits.max(axis=1)
        all_of_them = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        found.append((all_of_them - logits[np.arange(len(y)), y]).mean())
    return np.array(found)


def loop(t, rounds=3, largest=LARGEST, public=False):
    """Without noise, all clients in each round, one full step per client; the mean weights beside the model."""
    w = tree_map(np.float64, ran(method(), 0).params)
    means = []
    for _ in range(rounds):
        clipped = np.clip(losses(w), 0, largest)
        a = np.exp(t * (clipped - (largest if t > 0 else 0.0)))
        updates = [
            tree_map(lambda g: -RATE * g, mean_of(examples(w, *DATA.train.client(k)))) for k in range(N)
        ]
        stacked = tree_map(lambda *leaves: np.stack(leaves), *updates)
        factors = a * np.minimum(1, CLIP / norms(stacked)) / (N if public else a.sum())
        w = tree_map(lambda w, leaf, factors=factors: w + np.tensordot(factors, leaf, axes=1), w, stacked)
        means.append(a.mean())
    return w, means


@pytest.mark.parametrize(("t", "largest"), [(1.5, 2.0), (1.5, 1.4), (3.0, 1.4), (-3.0, 2.0), (-3.0, 1.4)])
def test_without_noise_it_is_term_on_clipped_losses_and_updates(t, largest):
    expected, means = loop(t, largest=largest)
    found = ran(method(t, largest_loss=largest))
    near(found.params, expected)
    np.testing.assert_allclose(found.per_round["mean_weight"], means, rtol=1e-4)
    far(found.params, loop(0.0)[0], least=2e-4)
    far(found.params, loop(-t, largest=largest)[0], least=2e-4)
    far(found.params, loop(t, largest=3.4 - largest)[0], least=2e-5)


def test_it_is_term_itself_where_nothing_is_clipped():
    free = {"clip": 1e3, "largest_loss": 4.0}
    found = ran(method(1.5, **free), 4).params
    sampling = eh.sampling.uniform(weighted=False)
    near(found, tree_map(np.float64, ran(eh.algorithms.term(WORK, t=1.5, sampling=sampling), 4).params))
    far(found, tree_map(np.float64, ran(eh.algorithms.fedavg(WORK, sampling=sampling), 4).params))


def test_a_public_denominator_shrinks_the_step_by_the_mean_weight():
    expected, means = loop(1.5, public=True)
    found = ran(method(1.5, share=0.0))
    near(found.params, expected)
    assert found.per_round["mean_weight"].tolist() == [1.0] * 3 and max(means) < 0.9
    far(found.params, loop(1.5)[0])


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_without_a_tilt_it_is_dp_fedavg_under_the_noise_of_the_update(share):
    """The range of the weights closes with the tilt, and with it what the denominator needs to hide."""
    of_update = 0.5 * (1 + share) ** 0.5
    plain = ran(dp_fedavg(WORK, clip=CLIP, noise_multiplier=of_update, rate=1.0)).params
    for t in (0.0, 1e-6):
        near(ran(method(t, noise=0.5, share=share)).params, tree_map(np.float64, plain), atol=1e-6)
    far(ran(method(1.5, noise=0.5, share=share)).params, tree_map(np.float64, plain), least=1e-4)


# --- what it gives away ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_both_sums_together_spend_what_was_asked_for(share):
    """``1 / z^2 = 1 / z_w^2 + 1 / z_a^2``, on one sample."""
    found = promised(method(noise=1.5, rate=0.3, share=share))
    (release,) = found.releases(10)
    assert release.noise_multiplier == pytest.approx(1.5, rel=1e-12)
    assert release._replace(noise_multiplier=1.5) == Release(1.5, 0.3, times=10)
    assert found.public == promised(dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0, rate=0.5)).public


LIKE = Tilted({"w": jnp.zeros((3, 2)), "b": jnp.zeros(4)}, jnp.float32(0))


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_each_sum_has_the_noise_of_its_part(share):
    """The weights' is over half of their range; it is read off the mean weight, from 30 clients in the middle."""
    z, t, clients, rate = 0.8, 1.0, 60, 0.5
    rule = rule_of(method(t, noise=z, rate=rate, share=share))
    middle, half = (1 + np.exp(-t * LARGEST)) / 2, (1 - np.exp(-t * LARGEST)) / 2
    state = rule.init(LIKE, clients)
    keys = jax.random.split(jax.random.key(0), 3000)
    found = jax.jit(jax.vmap(lambda key: rule.lower(LIKE, state, key)[0]))(keys)
    weights = np.asarray(found.weight, np.float64)
    updates = np.concatenate([np.asarray(leaf).reshape(3000, -1) for leaf in found.delta.values()], axis=1)
    updates = (updates * weights[:, None] * rate * clients).ravel() / (CLIP * z * (1 + share) ** 0.5)
    counts = (weights - middle) * rate * clients / (half * z * (1 + 1 / share) ** 0.5)
    for sample in (updates, counts):
        assert stats.kstest(sample, "norm").pvalue > 1e-4
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(sample * wrong, "norm").pvalue < 1e-6
    assert abs(np.corrcoef(updates.reshape(3000, -1)[:, 0], counts)[0, 1]) < 0.07


def test_noise_can_neither_turn_nor_blow_up_a_step():
    """The denominator stays between its noise, or its smallest value, and the expected number of clients."""
    for noise, share, least in (
        (2.0, 0.01, 2.0 * 101**0.5 * (1 - np.exp(-3)) / 2 / 30),
        (1e-6, 1.0, np.exp(-3)),
    ):
        rule = rule_of(method(1.5, noise=noise, rate=0.5, share=share))
        state = rule.init(LIKE, 60)
        for total, expected in ((-1e3, least), (1e3, 1.0)):
            end, _ = rule.lower(LIKE._replace(weight=jnp.float32(total)), state, jax.random.key(0))
            assert float(end.weight) == pytest.approx(expected, rel=1e-5)
    rule = rule_of(method(1.5, noise=1e3, rate=0.5))
    assert float(rule.lower(LIKE, rule.init(LIKE, 60), jax.random.key(0))[0].weight) == 1.0


_RULES = {t: rule_of(method(t, noise=1.0)) for t in (-1.5, 1.5)}
_LIFTS = {
    t: jax.jit(lambda delta, rule=rule: rule.lift(_sent(delta), (), jax.random.key(0)))
    for t, rule in _RULES.items()
}


def _sent(delta):
    return Upload(delta, jnp.float32(1), jnp.float32(jnp.nan))


_NUMBERS = st.floats(width=32)


@hypothesis.given(st.sampled_from([-1.5, 1.5]), st.lists(_NUMBERS, min_size=4, max_size=4), _NUMBERS)
@hypothesis.settings(max_examples=80, deadline=None)
def test_no_client_moves_either_sum_by_more_than_its_noise_is_for(t, numbers, weight):
    """Whatever it sends as its update and its weight."""
    delta = {"w": jnp.zeros((3, 2)), "b": jnp.asarray(numbers, jnp.float32)}
    lifted = _LIFTS[t](Tilted(delta, jnp.float32(weight)))
    half = (1 - np.exp(-1.5 * LARGEST)) / 2
    assert float(eh.tree.norm(lifted.delta)) <= CLIP * (1 + 1e-6)
    assert abs(float(lifted.weight)) <= half * (1 + 1e-6)
    if not np.isfinite(np.float32(weight)) or not np.isfinite(numbers).all():
        assert float(eh.tree.norm(lifted)) == 0


def test_the_server_gets_no_loss_and_no_number_of_clients():
    found = method(1.5, noise=1.0, rate=0.5)
    (phase,) = found.phases
    rule = rule_of(found)
    assert not rule.needs_loss and rule.weigh is None and rule.streams
    params = MODEL.init(jax.random.key(0))
    state, direction = found.init(params, N), Tilted(params, jnp.float32(0.5))
    few, many = (phase.server(state, direction, jnp.int32(n), jax.random.key(0))[0] for n in (1, 20))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), few, many))


@pytest.mark.parametrize(
    ("shift", "weight"), [(np.nan, np.nan), (np.inf, 1.0), (1e3, 1.0), (-1e3, np.exp(-1.5 * LARGEST))]
)
def test_losses_out_of_range_are_clipped(shift, weight):
    """One that is no number makes a weight that is none, with which a client does not count."""
    model = MODEL._replace(losses=lambda outputs, y: MODEL.losses(outputs, y) + shift)
    (phase,) = method(1.5, work=WORK._replace(model=model)).phases
    x, y = DATA.train.client(0)
    rows = eh.types.ClientData(
        jnp.asarray(x), jnp.asarray(y), jnp.int32(0), jnp.int32(len(y)), jnp.float32(1.0), len(y)
    )
    sent, _ = phase.work(Message(MODEL.init(jax.random.key(0)), ()), (), rows, jax.random.key(0))
    assert float(sent.weight) == pytest.approx(weight, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"t": np.inf}, "finite tilt"),
        ({"t": np.nan}, "finite tilt"),
        ({"share": -0.1}, "share of at least 0"),
        ({"largest_loss": 0.0}, "give a number above 0"),
        ({"clip": np.inf}, "give a number above 0"),
        ({"t": 50.0}, "give a tilt below 6.91"),
        ({"rate": 2.0}, "rate=.*the chance"),
        ({"noise": -1.0}, "noise_multiplier=.*at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, words):
    with pytest.raises(EvenhandError, match=words):
        method(**settings)


def test_work_that_would_lose_its_optimiser_or_its_own_privacy_is_refused():
    kept = eh.local.sgd(MODEL, optax.sgd(0.1, momentum=0.9), epochs=1, keep_optimiser=True)
    private = eh.privacy.dp_sgd(MODEL, 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=2)
    for work, words in ((kept, "keep no optimiser"), (private, "guarantees privacy, but"), (0.1, "work=0.1")):
        with pytest.raises(EvenhandError, match=words):
            method(work=work)
    with pytest.raises(EvenhandError, match=r"server_opt=0.1"):
        method(server_opt=0.1)
    numbers: dict[str, Any] = {
        "theta": 0.5,
        "largest_loss": 3.0,
        "clip": 0.5,
        "noise_multiplier": 1.0,
        "rate": 0.5,
    }
    with pytest.raises(EvenhandError, match=r"server_opt=0.1"):
        eh.privacy.dp_delta_fl(WORK, server_opt=0.1, **numbers)  # pyright: ignore[reportArgumentType]


def test_half_precision_is_refused():
    rule = method().phases[0].aggregator
    with pytest.raises(EvenhandError, match="half precision"):
        rule.init(Tilted(jnp.zeros(3, jnp.float16), jnp.float32(0)), 9)
