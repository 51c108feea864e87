"""FedTilt against the worked round of its specification, and its toy data."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenhand as eh
from evenhand.types import Algorithm, ClientData, Model

MODEL = Model(
    init=lambda key: jnp.float32(1.0),
    apply=lambda v, x: jnp.broadcast_to(v, x.shape),
    losses=lambda outputs, z: 0.5 * jnp.square(outputs - z),
    metrics={},
)
# Here the label is the class, and the feature is the value.
BY_FEATURE = MODEL._replace(apply=lambda v, x: v - x, losses=lambda outputs, y: 0.5 * jnp.square(outputs))
ROWS = np.array([0.0, 2.0, 4.0, 1.0, -1.0, 3.0], np.float32)
CLASSES = np.array([0, 1, 1, 0, 0, 1], np.int32)


def method(tau: float, lam: float, q: float = 0.0, **options: Any) -> Algorithm:
    work = eh.local.sgd(BY_FEATURE, 0.1, epochs=2)
    tilts = {"tilt_class": tau, "tilt_sample": lam, "tilt_server": q}
    return eh.algorithms.fedtilt(work, classes=2, prox_mu=0.5, **tilts, **options)


@cache
def round_of(tau: float, lam: float) -> tuple[list[float], list[float]]:
    """Both clients' ``w_n`` and ``v_n`` after one round from w = 1 and v = 0, 0.5."""
    algorithm = method(tau, lam)
    (phase,) = algorithm.phases
    assert algorithm.personal_params is not None
    message = phase.broadcast(algorithm.init(jnp.float32(1.0), 2), jnp.int32(0))
    global_ones, personal = [], []
    for start, initial in ((0, 0.0), (3, 0.5)):
        data = ClientData(
            jnp.asarray(ROWS), jnp.asarray(CLASSES), jnp.int32(start), jnp.int32(3), jnp.float32(1), 3
        )
        kept = algorithm.init_client(jnp.float32(initial))
        delta, kept = phase.work(message, kept, data, jax.random.key(0))
        global_ones.append(float(1.0 + delta))
        personal.append(float(algorithm.personal_params((), kept)))
    return global_ones, personal


@pytest.mark.parametrize(
    ("tau", "lam", "w", "v", "literal"),
    [
        (0, 0, (1.19, 1.0), (0.4625, 0.63875), (1.1, 1.0)),
        (
            1,
            -1,
            (1.114362687803, 1.230108682710),
            (0.447605848897, 0.931870442065),
            (1.062283329024, 1.127729575969),
        ),
        (1, 1, (1.533098915424, 1.0), (0.829954822021, 0.858518726765), (1.289398946792, 1.0)),
    ],
)
def test_a_round_is_the_specifications(
    tau: float,
    lam: float,
    w: tuple[float, float],
    v: tuple[float, float],
    literal: tuple[float, float],
) -> None:
    """T24; read literally, the paper's loop would begin anew with each batch, and end at other numbers."""
    found_w, found_v = round_of(tau, lam)
    np.testing.assert_allclose(found_w, w, atol=1e-6)
    np.testing.assert_allclose(found_v, v, atol=1e-6)
    assert abs(found_w[0] - literal[0]) > 1e-2


@pytest.mark.parametrize(
    ("tau", "lam", "q", "after"),
    [
        (0, 0, 0, 1.095),
        (0, 0, 10, 1.111963672015),
        (0, 0, -10, 1.078036327985),
        (1, -1, 10, 1.183622558692),
        (1, -1, -10, 1.160848811821),
        (1, 1, 0, 1.266549457712),
        (1, 1, 10, 1.503725585691),
        (1, 1, -10, 1.029373329733),
    ],
)
def test_the_servers_step_is_the_specifications(tau: float, lam: float, q: float, after: float) -> None:
    """T24, one step of 1/2 from w = 1."""
    deltas = jnp.asarray(round_of(tau, lam)[0]) - 1.0
    (phase,) = method(tau, lam, q).phases
    step = eh.aggregators.aggregate(phase.aggregator, deltas, weights=jnp.ones(2))
    np.testing.assert_allclose(1.0 + step, after, atol=2e-6)


def test_the_server_may_have_any_aggregator() -> None:
    """Its tilt is that of the method then, or none: one of both decides."""
    deltas = jnp.asarray(round_of(1, 1)[0]) - 1.0
    given = {q: method(1, 1, aggregator=eh.aggregators.drift_tilted(q, start="mean")) for q in (10.0, 0.0)}
    steps = {
        q: float(eh.aggregators.aggregate(each.phases[0].aggregator, deltas)) for q, each in given.items()
    }
    middle = deltas.mean()
    shares = np.exp(10.0 * np.square(deltas - middle))
    np.testing.assert_allclose([steps[10.0], steps[0.0]], [shares @ deltas / shares.sum(), middle], rtol=1e-5)
    with pytest.raises(eh.EvenhandError, match="give the aggregator the tilt"):
        method(1, 1, q=1.0, aggregator=eh.aggregators.coordinate_median())
    with pytest.raises(eh.EvenhandError, match="give the aggregator the tilt"):
        method(1, 1, server_steps=3, aggregator=eh.aggregators.mean())


def test_the_two_level_loss_of_the_first_round_is_the_specifications() -> None:
    """T24, the first column: R_1 and R_2 at w = 1."""
    tilts = (
        (0, 0, 1.833333333, 1.333333333),
        (1, -1, 0.996332131, 1.291273211),
        (1, 1, 3.437364011, 1.660011387),
    )
    for tau, lam, first, second in tilts:
        for rows, expected in ((slice(0, 3), first), (slice(3, 6), second)):
            outer, inner = eh.risks.tilted(float(tau)), eh.risks.tilted(float(lam))
            risk = eh.risks.hierarchical(outer, inner, jnp.asarray(CLASSES[rows]), 2)
            losses = 0.5 * np.square(1.0 - ROWS[rows])
            np.testing.assert_allclose(risk.value(jnp.asarray(losses)), expected, rtol=1e-6)


def test_a_proximal_weight_has_only_one_place() -> None:
    """An infinite one takes the personal models away, and two readings of one argument are refused."""
    alone = eh.algorithms.fedtilt(eh.local.sgd(MODEL, 0.1, epochs=1), classes=2, prox_mu=math.inf)
    assert alone.personal_params is None and alone.init_client(1.0) == ()
    with pytest.raises(eh.EvenhandError, match="finite prox_mu"):
        eh.algorithms.fedtilt(eh.local.sgd(MODEL, 0.1, epochs=1), classes=2, prox_mu=math.inf, tied=True)
    with pytest.raises(eh.EvenhandError, match="proximal weight"):
        eh.algorithms.fedtilt(eh.local.sgd(MODEL, 0.1, epochs=1), classes=2, prox_mu=-1.0)


# Table IV of the paper: centre and standard deviation of each class at each client.
TOY = {
    1: (((0.5, 2.0), 0.5), ((2.5, 1.0), 0.5), ((1.0, 2.2), 0.5), ((2.2, 0.8), 0.5)),
    2: (((0.5, 2.0), 0.35), ((2.0, 1.0), 0.25), ((0.5, 2.0), 0.35), ((2.5, 1.8), 0.25)),
    3: (((1.0, 2.0), 1.0), ((2.5, 1.0), 0.3), ((1.0, 2.0), 1.0), ((2.5, 1.0), 0.3)),
}


# Logistic regression with a bias, from zero.
LOGISTIC = Model(
    init=lambda key: {"w": jnp.zeros(2), "b": jnp.zeros(())},
    apply=lambda params, x: x @ params["w"] + params["b"],
    losses=lambda score, y: jax.nn.softplus(score) - score * y.astype(jnp.float32),
    metrics={},
)


def toy_accuracies(experiment: int, tilted: Algorithm, seed: int) -> np.ndarray:
    """Class accuracies in percent of both personal models, (client, class), on many fresh examples."""
    rng = np.random.default_rng((experiment, seed))
    sizes = (100, 100) if experiment == 1 else (150, 50)
    x, y, client = [], [], []
    for place, (centre, deviation) in enumerate(TOY[experiment]):
        x.append(rng.normal(centre, deviation, (sizes[place % 2], 2)))
        y += [place % 2] * len(x[-1])
        client += [place // 2] * len(x[-1])
    rows = np.concatenate(x).astype(np.float32)
    data = eh.data.from_arrays(rows, np.array(y), np.array(client), test_fraction=0.0)
    run = eh.simulate(tilted, data, rounds=50, eval_every=50)
    found = np.zeros((2, 2))
    for place, (centre, deviation) in enumerate(TOY[experiment]):
        fresh = np.random.default_rng(99).normal(centre, deviation, (20_000, 2)).astype(np.float32)
        score = np.asarray(LOGISTIC.apply(run.personal_params(place // 2), jnp.asarray(fresh)))
        found[place // 2, place % 2] = 100 * np.mean((score > 0) == place % 2)
    return found


@pytest.mark.parametrize(
    ("experiment", "tau", "lam", "expected", "within"),
    [
        (2, -10, 10, [[100, 0], [100, 0]], 3),
        (3, 10, -10, [[82.6, 99.6], [81.1, 99.8]], 6),
        (3, 10, 10, [[93.5, 80.8], [93.5, 79.6]], 6),
    ],
)
def test_accuracies_on_the_toy_data_are_those_simulated_for_the_specification(
    experiment: int, tau: float, lam: float, expected: list[list[float]], within: float
) -> None:
    """Section 9.7, means over three seeds: a negative tilt over classes gives one class up, and a positive one over
    examples lets the wide class win."""
    tilted = eh.algorithms.fedtilt(
        eh.local.sgd(LOGISTIC, 0.01, epochs=10, batch_size=10), classes=2, tilt_class=tau, tilt_sample=lam
    )
    found = np.mean([toy_accuracies(experiment, tilted, seed) for seed in range(3)], axis=0)
    np.testing.assert_allclose(found, expected, atol=within)
