"""When one method becomes another, and when it must not."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from identity_runs import DATA, METHODS, MODEL, ROUNDS, flat, gap, path, runs

import evenhand as eh
from evenhand.streams import Purpose, keys_of, stream
from evenhand.types import Cohort


def _with_rows(x: np.ndarray, y: np.ndarray, offsets: np.ndarray) -> eh.data.FederatedDataset:
    clients = len(offsets) - 1
    none = eh.data.Split(x[:0], y[:0], np.zeros(clients + 1, int))
    ids = tuple(map(str, range(clients)))
    return eh.data.FederatedDataset(eh.data.Split(x, y, offsets), none, none, ids)


def _final(method: str, data: eh.data.FederatedDataset) -> np.ndarray:
    return flat(runs(method, data)[-1].params)


def test_feddane_on_identical_clients_is_fedprox() -> None:
    one_row = np.zeros(DATA.train.rows, int)
    same = _with_rows(DATA.train.x[one_row], DATA.train.y[one_row], DATA.train.offsets)
    assert gap(_final("feddane 1", same), _final("fedprox 1", same)) < 1e-6
    assert gap(path("feddane 1")[-1], path("fedprox 1")[-1]) > 1e-3


def test_feddane_with_one_client_is_fedprox() -> None:
    alone = _with_rows(DATA.train.x, DATA.train.y, np.array([0, DATA.train.rows]))
    assert gap(_final("feddane 1", alone), _final("fedprox 1", alone)) < 1e-6


def test_feddane_without_answers_to_its_first_exchange_is_fedprox() -> None:
    """Nor does it correct by the gradient of an earlier round: in the second round, the first exchange is empty."""
    silence = jax.random.key_data(stream(keys_of(0).shared, Purpose.STRAGGLERS, 1, 1))

    def draw(key: Any, cohort: Cohort, keep_partial: bool) -> Cohort:
        return cohort._replace(present=cohort.present & (jax.random.key_data(key) != silence).any())

    work, systems = eh.local.sgd(MODEL, 0.1, steps=3), eh.systems.Systems(draw)  # of all examples
    dane = eh.algorithms.feddane(work, mu=1.0)
    _, first, second = eh.simulation.iterate(dane, DATA, rounds=2, eval_every=1, systems=systems)
    assert second.per_round["gradient_norm"][0] > 1e-2 and second.per_round["reported"].tolist() == [6.0, 6.0]
    prox = eh.simulate(eh.algorithms.fedprox(work, mu=1.0), DATA, rounds=1, start=first.params)
    assert gap(flat(second.params), flat(prox.params)) < 1e-6
    usual = eh.simulate(dane, DATA, rounds=2)
    assert gap(flat(usual.params), flat(prox.params)) > 1e-3


def test_scaffold_begins_as_fedavg() -> None:
    scaffold, fedavg = path("scaffold"), path("fedavg, equal weights")
    assert gap(scaffold[1], fedavg[1]) < 1e-7
    assert gap(scaffold[1], scaffold[0]) > 1e-2
    assert gap(scaffold[2], fedavg[2]) > 1e-3
    assert gap(scaffold[1], path("fedavg")[1]) > 1e-3, "its clients have equal weights"


def test_server_momentum_of_zero_is_fedavg() -> None:
    assert gap(path("fedavgm 0"), path("fedavg")) < 1e-6
    with_momentum = path("fedavgm 0.9")
    assert gap(with_momentum[1], path("fedavg")[1]) < 1e-6, "nothing to remember in the first round"
    assert gap(with_momentum[2], path("fedavg")[2]) > 1e-3


def test_half_a_server_step_is_half_the_way() -> None:
    whole, half = path("fedavg"), path("fedavg, half a step")
    np.testing.assert_allclose(half[1] - half[0], (whole[1] - whole[0]) / 2, rtol=1e-4, atol=1e-7)
    assert gap(half[2] - half[0], (whole[2] - whole[0]) / 2) > 1e-3


def test_adaptive_fedprox_is_fedprox_until_mu_moves() -> None:
    adaptive = runs("fedprox adaptive from 1", rounds=8)
    fixed = runs("fedprox 1", rounds=8)
    moved = next(t for t, mu in enumerate(adaptive[-1].per_round["mu"]) if mu != 1.0)
    gaps = [gap(flat(a.params), flat(f.params)) for a, f in zip(adaptive, fixed, strict=True)]
    assert moved >= 1
    assert max(gaps[: moved + 1]) < 1e-6
    assert gaps[moved + 1] > 1e-5


def test_without_a_cohort_all_clients_take_part() -> None:
    all_clients = path("fedavg", cohort=6)
    assert np.array_equal(path("fedavg", cohort=None), all_clients)
    assert np.array_equal(path("fedavg", cohort=99), all_clients), (
        "a cohort is no larger than the number of clients"
    )
    assert gap(path("fedavg", cohort=4)[1], all_clients[1]) > 1e-3


def test_the_two_sampling_schemes_differ() -> None:
    assert gap(path("fedavg, scheme A", cohort=4)[1], path("fedavg", cohort=4)[1]) > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_start_from_the_model_that_the_seed_gives(method: str) -> None:
    start = eh.simulate(METHODS[method], DATA, rounds=0, seed=3)
    assert np.array_equal(flat(start.params), flat(MODEL.init(stream(jax.random.key(3), Purpose.INIT))))
    assert gap(flat(start.params), flat(eh.simulate(METHODS[method], DATA, rounds=0, seed=4).params)) > 1e-3
    assert start.history["round"].tolist() == [0]


def test_runs_begin_at_the_initial_model() -> None:
    untouched = flat(eh.simulate(METHODS["fedavg"], DATA, rounds=0).params)
    for method in ("fedavg", "scaffold", "feddane 1", "fedprox 1"):
        assert np.array_equal(path(method)[0], untouched)
        assert gap(path(method)[1], untouched) > 1e-3
        assert len(path(method)) == ROUNDS + 1
