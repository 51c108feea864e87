"""FedProx without its two changes is FedAvg, and stragglers are the same for every method."""

from __future__ import annotations

import numpy as np
import pytest
from identity_runs import flat, gap, path, runs

FEDAVG, KEEPING, PROX = "fedavg, batches", "fedavg keeping, batches", "fedprox 0, batches"


def _path(method: str, slow: float | None = None, seed: int = 0) -> np.ndarray:
    return path(method, slow=slow, cohort=4, seed=seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_fedprox_with_mu_zero_is_fedavg_bit_for_bit(seed: int) -> None:
    fedavg = _path(FEDAVG, seed=seed)
    assert np.array_equal(_path(PROX, seed=seed), fedavg)
    pulled = _path("fedprox 0.1, batches", seed=seed)
    assert np.array_equal(pulled[0], fedavg[0])
    assert gap(pulled[1], fedavg[1]) > 1e-3


def test_the_proximal_term_shortens_the_first_step() -> None:
    free, pulled = _path(PROX), _path("fedprox 0.1, batches")
    assert np.linalg.norm(pulled[1] - pulled[0]) < np.linalg.norm(free[1] - free[0])


def test_a_share_of_zero_stragglers_is_none() -> None:
    assert np.array_equal(_path(FEDAVG, slow=0.0), _path(FEDAVG))
    for method in (FEDAVG, PROX):
        assert gap(_path(method, slow=0.5)[1], _path(method)[1]) > 1e-3


def test_under_stragglers_keeping_partial_work_is_all_that_mu_zero_changes() -> None:
    keeping = _path(KEEPING, slow=0.5)
    assert np.array_equal(_path(PROX, slow=0.5), keeping)
    assert gap(_path(FEDAVG, slow=0.5)[1], keeping[1]) > 1e-3, "FedAvg drops it"


def test_a_round_that_no_client_finishes_changes_nothing() -> None:
    empty = runs(FEDAVG, cohort=4, slow=1.0)
    assert all(np.array_equal(flat(run.params), flat(empty[0].params)) for run in empty)
    assert empty[-1].per_round["reported"].tolist() == [0.0] * 3
    assert gap(_path(FEDAVG, slow=0.5)[1], _path(FEDAVG, slow=0.5)[0]) > 1e-3


def test_stragglers_report_in_fedprox_and_not_in_fedavg() -> None:
    for method, reported in ((FEDAVG, 2.0), (PROX, 4.0)):
        run = runs(method, cohort=4, slow=0.5)[-1]
        assert run.per_round["reported"].tolist() == [reported] * 3
