"""A rival's own loop gets the batches, the stragglers' share and the estimator of plain descent."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rival_loops

import evenhand as eh
from evenhand import local
from evenhand.types import ClientData

# F_k(w) is half the mean of (w - x)^2.
MODEL = eh.models.from_functions(
    init=lambda key: jnp.float32(0.5),
    apply=lambda w, x: w - x[:, 0],
    losses=lambda outputs, y: 0.5 * jnp.square(outputs),
)
X = np.random.default_rng(0).normal(size=(7, 1)).astype(np.float32)
SCHEDULE = local.batches(epochs=4, batch_size=3)
KEY = jax.random.key(5)


def client(progress: float) -> ClientData:
    return ClientData(
        jnp.asarray(X), jnp.zeros(7, jnp.int32), jnp.int32(0), jnp.int32(7), jnp.float32(progress), 7
    )


def trained(work: local.Work, data: ClientData) -> float:
    """The model that one round of local work makes of 0.5."""
    return float(jax.jit(lambda w: work.solve(w, data, KEY, optax.identity())[0])(jnp.float32(0.5)))


def means(data: ClientData) -> list[float]:
    """The mean row of each batch: all that these losses know of it."""
    batch = SCHEDULE.draw(data, KEY)
    read = [batch(jnp.int32(i)).read() for i in range(int(SCHEDULE.effort(data).steps))]
    return [float(np.mean(np.asarray(x)[np.asarray(inside), 0], dtype=np.float64)) for x, _, inside in read]


@pytest.mark.parametrize(("progress", "steps"), [(1.0, 12), (0.4, 6)])
def test_pfedme_descends_the_envelope_of_each_batch(progress: float, steps: int) -> None:
    """theta = (c + lam w) / (1 + lam) once the inner loop has converged, for the batch's mean c."""
    lam, step, data = 2.0, 0.1, client(progress)
    work = rival_loops.pfedme(MODEL, SCHEDULE, step=step, lam=lam, inner_step=0.2, inner_steps=60)
    w = trained(work, data)
    expected = 0.5
    assert len(means(data)) == steps
    for c in means(data):
        expected -= step * lam / (1 + lam) * (expected - c)
    assert w == pytest.approx(expected, rel=1e-5)
    assert abs(trained(local.sgd(MODEL, step, epochs=4, batch_size=3), data) - expected) > 1e-2


def test_pfedme_is_local_work_like_any_other() -> None:
    schedule = local.batches(steps=3, batch_size=4)
    work = rival_loops.pfedme(
        eh.testing.toy_model(), schedule, step=0.1, lam=1.0, inner_step=0.1, inner_steps=3
    )
    eh.testing.check_algorithm(eh.algorithms.fedprox(work, mu=0.1), lanes=(2,), rounds=2)


@pytest.mark.parametrize(("progress", "steps"), [(1.0, 12), (0.4, 6)])
def test_apfl_adapts_its_mixture_on_the_batches_of_plain_descent(progress: float, steps: int) -> None:
    step, data = 0.3, client(progress)
    round_of = jax.jit(partial(rival_loops.apfl, MODEL, SCHEDULE, step=step, data=data, key=KEY))
    found = round_of(begin=(jnp.float32(0.5), jnp.float32(-1.0), jnp.float32(0.25)))
    w, v, alpha = 0.5, -1.0, 0.25
    assert len(means(data)) == steps
    for c in means(data):
        slope = alpha * v + (1 - alpha) * w - c
        w, v, alpha = (
            w - step * (w - c),
            v - step * alpha * slope,
            min(max(alpha - step * (v - w) * slope, 0.0), 1.0),
        )
    np.testing.assert_allclose(np.array(found), [w, v, alpha], rtol=1e-4, atol=1e-6)
    assert abs(alpha - 0.25) > 1e-2
    assert trained(local.sgd(MODEL, step, epochs=4, batch_size=3), data) == pytest.approx(w, rel=1e-5)
