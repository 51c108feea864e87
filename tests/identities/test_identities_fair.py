"""When a fair method becomes federated averaging, or another method, and when it must not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fair_runs import METHODS, WORK, end, run, served
from identity_runs import DATA, MODEL, flat, gap

import evenhand as eh
from evenhand.types import Params

SAME = [
    ("q 0", "fedavg, equal weights", "q 1"),
    ("q 0, by examples", "fedavg", "q 0"),
    ("t 0", "fedavg", "t 1"),
    ("t 1e-6", "fedavg", "t 1"),
    ("t 0, running", "fedavg", "t 1"),
    ("t 1, newest only", "t 1", "t 0"),
    ("t 1000", "t inf", "t 1"),
    ("theta 1", "fedavg", "theta 0.5"),
    ("theta 1, filtered", "fedavg", "theta 0.5, filtered"),
    # Of 6 equally weighted clients exactly three count; "as printed" also takes the fourth, at the quantile.
    (
        "theta 0.5, filtered, equal weights",
        "theta 0.5, equal weights",
        "theta 0.5, as printed, equal weights",
    ),
    (
        "theta 0.6, filtered, equal weights",
        "theta 0.5, equal weights",
        "theta 0.5, as printed, equal weights",
    ),
    ("theta 1, smoothed", "fedavg", "theta 0.5"),
    ("theta 0.5, hardly smoothed", "theta 0.5", "theta 0.5, all smoothed"),
    ("theta 0.5, all smoothed", "fedavg", "theta 0.5"),
    ("theta 0.01", "t inf", "theta 0.5"),
    ("theta 0.01, nu 1", "t 1", "theta 0.01"),
    ("tilts 0", "fedavg, batches", "tilts 2"),
    ("tilts 0, mu 2", "fedavg, batches", "fedprox 0.5, equal weights"),
    ("tilts 0, mu inf", "fedavg, batches", "tilts 2"),
    ("tilts 0, tied", "fedprox 0.5, equal weights", "fedavg, batches"),
    ("tilts 2", "fedavg, examples tilted 2", "tilts 2 and -1"),
    ("tilts 2 and -1, any labels", "tilts 2 and -1", "tilts 2"),
    ("fedavg, examples tilted 0", "fedavg, batches", "fedavg, examples tilted 2"),
    ("server tilt 1e-6", "tilts 0", "server tilt 0.5"),
]


@pytest.mark.parametrize(("one", "same", "other"), SAME, ids=[f"{a} = {b}" for a, b, _ in SAME])
def test_two_methods_agree_and_a_third_does_not(one: str, same: str, other: str) -> None:
    assert gap(end(one), end(same)) < 5e-6
    assert gap(end(one), end(other)) > 1e-3


@pytest.mark.parametrize(
    "options", [{"filtered": True, "nu": 1.0}, {"strict": False}, {"strict": False, "nu": 1.0}]
)
def test_delta_fl_refuses_what_it_would_ignore(options: dict[str, Any]) -> None:
    with pytest.raises(eh.EvenhandError, match=r"delta_fl\(\) got"):
        eh.algorithms.delta_fl(WORK, theta=0.5, **options)


def test_the_references_normaliser_divides_by_the_cohort_once_more_and_starts_from_zero() -> None:
    """At t = 0, round i is FedAvg's step over K (1 - 2^-(i+1)): for K = 6 clients a third in the first one."""
    whole = end("fedavg, equal weights", 1) - end("fedavg, equal weights", 0)
    part = end("t 0, reference", 1) - end("t 0, reference", 0)
    assert gap(part, whole / 3) < 1e-6
    assert gap(part, whole) > 1e-3


def test_an_infinite_tilt_follows_the_worst_client_alone() -> None:
    losses = run("t inf", 0).client_metrics("train")["loss"]
    worst = int(np.argmax(losses))
    step = end("t inf", 1) - end("t inf", 0)
    gradients = [flat(jax.grad(_loss)(run("t inf", 0).params, k)) for k in range(DATA.num_clients)]
    assert gap(step, -0.1 * gradients[worst]) < 1e-6
    assert min(gap(step, -0.1 * gradients[k]) for k in range(DATA.num_clients) if k != worst) > 1e-3


def _loss(params: Params, k: int) -> jax.Array:
    x, y = DATA.train.client(k)
    return jnp.mean(MODEL.losses(MODEL.apply(params, jnp.asarray(x)), jnp.asarray(y)))


def test_without_tilts_the_global_model_ignores_the_personal_models() -> None:
    assert np.array_equal(end("tilts 0"), end("tilts 0, mu 2"))
    assert np.array_equal(end("tilts 0"), end("tilts 0, mu 0"))
    assert gap(served("tilts 0"), served("tilts 0, mu 2")) > 1e-2


def test_the_personal_models_have_their_own_optimiser() -> None:
    assert np.array_equal(end("tilts 0"), end("tilts 0, personal step"))
    assert gap(served("tilts 0"), served("tilts 0, personal step")) > 1e-2


def test_an_infinite_proximal_weight_serves_each_client_the_global_model() -> None:
    models = served("tilts 0, mu inf")
    assert np.array_equal(models, np.repeat(end("tilts 0, mu inf")[None], 6, axis=0))
    assert gap(served("tilts 0, mu 2"), models) > 1e-3


def test_a_proximal_weight_of_zero_is_training_alone() -> None:
    """A client's personal model is the same bit for bit when the rows of other clients change."""
    spoiled = DATA.train.x.copy()
    first = slice(0, DATA.train.offsets[3])
    spoiled[first] = 1 - spoiled[first]
    data = eh.data.FederatedDataset(DATA.train._replace(x=spoiled), DATA.valid, DATA.test, DATA.client_ids)
    alone = eh.simulate(METHODS["tilts 0, mu 0"], data, rounds=3)
    pulled = eh.simulate(METHODS["tilts 0, mu 2"], data, rounds=3)
    for k in (3, 4, 5):
        assert np.array_equal(flat(alone.personal_params(k)), served("tilts 0, mu 0")[k])
        assert gap(flat(pulled.personal_params(k)), served("tilts 0, mu 2")[k]) > 1e-4


def test_clients_that_were_not_drawn_keep_their_personal_model() -> None:
    method = METHODS["tilts 2"]
    before, after = (
        eh.simulate(method, DATA, rounds=rounds, cohort=2, untrained="initial") for rounds in (1, 2)
    )
    kept = [
        all(
            np.array_equal(a, b)
            for a, b in zip(
                jax.tree.leaves(before.personal_params(k)),
                jax.tree.leaves(after.personal_params(k)),
                strict=True,
            )
        )
        for k in range(DATA.num_clients)
    ]
    assert sum(kept) >= 4 and not all(kept)


def test_a_run_reports_its_effective_cohort() -> None:
    """By examples it is (sum n)^2 / sum n^2, at an infinite tilt 1; a method that needs no losses reports none."""
    sizes = DATA.train.sizes
    found = [run(name).per_round["effective_cohort"] for name in ("theta 1", "t inf", "q 0")]
    np.testing.assert_allclose(found[0], np.sum(sizes) ** 2 / np.sum(sizes**2), rtol=1e-5)
    np.testing.assert_allclose(found[1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found[2], 6.0, rtol=1e-6)
    assert "effective_cohort" not in run("fedavg").per_round


def test_afl_without_ascent_is_averaged_gradient_descent() -> None:
    descent = [end("fedsgd", rounds) for rounds in (1, 2, 3)]
    assert gap(end("afl 0"), np.mean(descent, axis=0)) < 1e-6
    assert gap(end("afl 0.1"), end("afl 0")) > 1e-4
    assert gap(end("afl 0"), descent[-1]) > 1e-3
