"""Each client takes the model that suits its rows best."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh


class Measured:
    """A run with given metrics."""

    def __init__(self, valid: list[float], test: list[float]) -> None:
        self.metrics = {"valid": valid, "test": test}

    def client_metrics(self, split: str = "test") -> dict[str, np.ndarray]:
        values = np.array(self.metrics[split])
        return {"accuracy": values, "loss": 1 - values}


RUNS = [
    Measured([0.5, 0.9, 0.4, np.nan], [0.1, 0.2, 0.3, 0.4]),
    Measured([0.6, 0.9, 0.3, np.nan], [0.5, 0.6, 0.7, 0.8]),
]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_clients_choose_on_their_validation_rows_the_first_of_equals(metric: str) -> None:
    """The second client's models are equal, and the last has nothing to choose by."""
    served = eh.evaluation.serve_by_level(RUNS, metric=metric)
    assert served.level.tolist() == [1, 0, 0, 0]
    np.testing.assert_array_equal(served.metrics["accuracy"], [0.5, 0.2, 0.3, 0.4])
    halves = [np.array([np.nan, 0.1]), np.array([0.2, np.nan])]
    assert eh.evaluation.best_level(halves, metric).tolist() == [1, 0], (
        "a model that diverged is not the best"
    )


def test_choosing_on_the_test_rows_gives_other_levels() -> None:
    served = eh.evaluation.serve_by_level(RUNS, choose_on="test")
    assert served.level.tolist() == [1, 1, 1, 1]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        eh.evaluation.serve_by_level([])
    with pytest.raises(ValueError, match="valid_fraction"):
        eh.evaluation.serve_by_level([Measured([np.nan, np.nan], [0.1, 0.2])])
    with pytest.raises(
        eh.EvenhandError, match=r"no such metric \(.*accuracy\): choose one of accuracy, loss"
    ):
        eh.evaluation.serve_by_level(RUNS, metric="acuracy")
    with pytest.raises(ValueError, match="same data"):
        eh.evaluation.serve_by_level([RUNS[0], Measured([0.1], [0.1])])
