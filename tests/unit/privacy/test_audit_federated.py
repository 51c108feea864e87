"""Whole runs are audited, from the clients' examples to the final model: canaries are clients of one example each.

Everybody is there in each round: a rate below one is audited with the aggregator alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.privacy import (
    Histogram,
    adadps_fl,
    adaptive_clip,
    audit_scores,
    dp_delta_fl,
    dp_fedavg,
    dp_ftrl,
    spent,
)
from evenhand.types import Model, Upload

DELTA, NOISE, ROUNDS, CANARIES = 1e-7, 2 / 0.3, 4, 6000
INCLUDED = np.random.default_rng(0).random(CANARIES) < 0.5
PRESENT = int(INCLUDED.sum())


def canaries():
    """The loss of client j is -100 times the j-th number, so that its updates are long and orthogonal."""

    def init(key):
        return {"w": jnp.zeros(CANARIES)}

    def apply(params, x):
        return 100.0 * params["w"][x[:, 0]]

    return Model(init, apply, lambda outputs, y: -outputs, {}, name="canaries")


WORK = eh.local.sgd(canaries(), 1.0, epochs=1, batch_size=1)
SCALES = {"w": jnp.where(jnp.arange(CANARIES) % 2 == 0, 0.1, 3.0)}
GIVEN: dict[str, Any] = {"clip": 1.0, "rate": 1.0}

METHODS = {
    "dp_fedavg": lambda noise: dp_fedavg(WORK, noise_multiplier=noise, **GIVEN),
    "an adaptive clip": lambda noise: dp_fedavg(
        WORK, clip=adaptive_clip(1.0, noise=2e3), noise_multiplier=noise, rate=1.0
    ),
    "adadps_fl": lambda noise: adadps_fl(WORK, divided_by=SCALES, noise_multiplier=noise, **GIVEN),
    "dp_delta_fl": lambda noise: dp_delta_fl(
        WORK, theta=1.0, largest_loss=1.0, share=0.01, noise_multiplier=noise, **GIVEN
    ),
    "dp_ftrl": lambda noise: dp_ftrl(WORK, clip=1.0, noise_multiplier=noise, cohort=PRESENT, clients=PRESENT),
}


def loses(method, clients_of_each=1):
    """Judged by where the number of each canary ends."""
    rows = np.repeat(np.flatnonzero(INCLUDED), clients_of_each)
    train = eh.data.Split(
        rows[:, None].astype(np.int32), np.zeros(len(rows), np.float32), np.arange(len(rows) + 1)
    )
    none = eh.data.Split(train.x[:0], train.y[:0], np.zeros(len(rows) + 1, int))
    data = eh.data.FederatedDataset(
        train, none, none, tuple(str(i) for i in range(len(rows))), name="canaries"
    )
    run = eh.simulate(method, data, rounds=ROUNDS, eval_every=ROUNDS)
    return audit_scores(np.asarray(run.params["w"]), INCLUDED, delta=DELTA).epsilon


def says(method):
    return spent(method.privacy.releases(ROUNDS), delta=DELTA).epsilon


@pytest.mark.parametrize("name", METHODS)
def test_a_run_loses_no_more_than_it_says_and_is_caught_with_a_third_of_the_noise(name):
    make = METHODS[name]
    assert 0.3 < loses(make(NOISE)) < says(make(NOISE)) < loses(make(NOISE / 3))


def test_somebody_who_is_three_clients_is_caught():
    method = METHODS["dp_fedavg"](NOISE)
    assert loses(method, clients_of_each=3) > says(method)


def test_the_quantile_of_delta_fl_loses_no_more_than_its_part_and_is_caught_with_half_of_the_noise(
    monkeypatch,
):
    """Judged by the noisy counts on the path of one client, which the server sees before it reads a quantile off."""

    def on_the_path(self, total, clients, *, theta):
        leaf, levels = self.bins - 1, self.levels
        starts = np.cumsum([0, *(self.bins >> level for level in range(levels - 1))])
        return jnp.sum(self.counts(total)[starts + np.array([leaf >> level for level in range(levels)])])

    monkeypatch.setattr(Histogram, "decode", on_the_path)
    coins = np.random.default_rng(0).random(500_000) < 0.5

    def judged(noise):
        given = {"theta": 0.5, "largest_loss": 1.0, "share": 1.0, "bins": 4, **GIVEN}
        method = dp_delta_fl(WORK, noise_multiplier=noise, **given)
        rule = method.phases[0].aggregator

        @jax.jit
        @jax.vmap
        def score(here, key):
            upload = Upload(jnp.float32(1.0), jnp.float32(1.0), jnp.float32(jnp.nan))
            counts, clients = rule.lift(upload, rule.publish(rule.init(jnp.float32(0.0), 1)), key)
            return rule.lower((jnp.where(here, counts, 0), clients), (), key)[0]

        scores = score(jnp.asarray(coins), jax.random.split(jax.random.key(0), len(coins)))
        return audit_scores(np.asarray(scores), coins, delta=DELTA).epsilon, spent(
            [rule.release], delta=DELTA
        ).epsilon

    (sound, told), (half, _) = judged(2.0), judged(1.0)
    assert 0.3 < sound < told < half
