"""AdaDPS-FL: DP-FedAvg where the scales are one, and a NumPy loop where they are not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand.privacy import adadps_fl, dp_fedavg

MODEL = eh.models.softmax_regression(features=3, classes=2)
WORK = eh.local.sgd(MODEL, 0.5, steps=3)
A = {"kernel": jnp.array([[1.0, 0.5], [0.1, 0.2], [4.0, 3.0]]), "bias": jnp.array([1.0, 2.0])}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), RNG.integers(0, 2, 40)
CLIENT = np.repeat(np.arange(8), [2, 3, 4, 5, 5, 6, 7, 8])
DATA = eh.data.from_arrays(X, Y, client=CLIENT, test_fraction=0.25)


def run(method, rounds=2):
    return eh.simulate(method, DATA, rounds=rounds, eval_every=rounds)


def of(params):
    return np.concatenate([np.asarray(params["kernel"]), np.asarray(params["bias"])[None]])


def numpy_loop(clip, rounds=2, lr=0.5, steps=3):
    """Softmax regression, in which the bias is the weight of a feature that is always 1."""
    scales, rows = of(A), DATA.train
    x, y = np.hstack([np.asarray(rows.x, np.float64), np.ones((rows.rows, 1))]), np.asarray(rows.y)
    w = of(eh.simulate(dp_fedavg(WORK, clip=1.0, noise_multiplier=1.0), DATA, rounds=0).params).astype(float)
    for _ in range(rounds):
        total = np.zeros_like(w)
        for k in range(DATA.num_clients):
            mine = slice(int(rows.offsets[k]), int(rows.offsets[k + 1]))
            local = w.copy()
            for _ in range(steps):
                p = np.exp(x[mine] @ local)
                p /= p.sum(axis=1, keepdims=True)
                p[np.arange(len(p)), y[mine]] -= 1.0
                local -= lr * (x[mine].T @ p / len(p)) / scales
            delta = local - w
            total += delta * min(1.0, clip / np.linalg.norm(delta))
        w = w + total / DATA.num_clients
    return w


@pytest.mark.parametrize("clip", [1.0, 1e6])
def test_each_local_step_is_divided_and_updates_are_clipped_as_a_whole(clip):
    method = adadps_fl(WORK, divided_by=A, clip=clip, noise_multiplier=0.0, rate=1.0)
    np.testing.assert_allclose(of(run(method).params), numpy_loop(clip), rtol=2e-5, atol=1e-6)


def test_scales_of_one_are_dp_fedavg_to_the_bit():
    how: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 1.0, "rate": 0.5, "server_opt": optax.sgd(0.3)}
    ones = jax.tree.map(jnp.ones_like, A)
    plain, one, scaled = (
        of(run(method).params)
        for method in (
            dp_fedavg(WORK, **how),
            adadps_fl(WORK, divided_by=ones, **how),
            adadps_fl(WORK, divided_by=A, **how),
        )
    )
    assert np.array_equal(plain, one)
    assert np.abs(plain - scaled).max() > 1e-3


def test_it_promises_what_dp_fedavg_does():
    how: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 1.5, "rate": 0.2}
    method, plain = adadps_fl(WORK, divided_by=A, **how), dp_fedavg(WORK, **how)
    assert method.privacy is not None and plain.privacy is not None
    assert method.privacy.releases(7) == plain.privacy.releases(7)
    assert method.privacy[2:] == plain.privacy[2:]


def test_what_makes_no_sense_is_refused():
    how: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 1.0}
    with pytest.raises(eh.EvenhandError, match=r"adadps_fl\(divided_by=...\): give finite numbers above 0"):
        adadps_fl(WORK, divided_by=jax.tree.map(jnp.zeros_like, A), **how)
    with pytest.raises(eh.EvenhandError, match="arrays of their shapes"):
        adadps_fl(WORK, divided_by={"kernel": A["kernel"]}, **how)
    with pytest.raises(eh.EvenhandError, match="not mini-batch descent"):
        adadps_fl(WORK._replace(parts=None), divided_by=A, **how)
