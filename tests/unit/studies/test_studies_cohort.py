"""The cohort as a hyper-parameter: FedAvg with as many clients as Delta-FL keeps, and a value for every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenhand as eh
from evenhand.report import compare
from evenhand.studies import Study, study
from evenhand.types import Algorithm

MODEL = eh.testing.toy_model()
DATA = eh.data.hold_out(eh.testing.toy_data(), 0.4)
WORK = eh.local.sgd(MODEL, 0.1, epochs=1, batch_size=4)
FEDAVG, DELTA = eh.algorithms.fedavg(WORK), eh.algorithms.delta_fl(WORK, theta=0.5)
HOW: dict[str, Any] = {"rounds": 2, "seeds": [3, 5], "eval_every": 2}


def fedavg(lr: float) -> Algorithm:
    return eh.algorithms.fedavg(eh.local.sgd(MODEL, lr, epochs=1, batch_size=4))


@pytest.fixture(scope="module")
def tuned() -> Study:
    return study({"fedavg": FEDAVG, "delta_fl": DELTA}, DATA, grid={"cohort": [2, 4, "all"]}, **HOW)


def test_every_run_draws_as_many_clients_as_its_setting_says(tuned: Study) -> None:
    ran = {str(outcome.setting): outcome for outcome in tuned.outcomes if outcome.seed == 5}
    assert list(ran) == [f"{name}(cohort={m})" for name in ("fedavg", "delta_fl") for m in (2, 4, "all")]
    for m in (2, 4, "all"):
        view = ran[f"fedavg(cohort={m})"].view
        alone = eh.simulate(FEDAVG, DATA, rounds=2, seed=5, cohort=None if m == "all" else m)
        assert view is not None
        assert view.info["cohort"] == alone.info["cohort"] == (DATA.num_clients if m == "all" else m)
        np.testing.assert_allclose(view.history["test_loss"][-1], alone.history["test_loss"][-1], rtol=1e-5)
    losses = [outcome.view.history["test_loss"][-1] for outcome in ran.values() if outcome.view is not None]
    assert len(set(losses)) == len(losses)


def test_the_cohort_is_a_column_of_the_table_and_is_chosen(tuned: Study) -> None:
    frame = tuned.frame()
    assert frame["cohort"].tolist() == [m for _ in range(2) for m in ("2", "2", "4", "4", "all", "all")]
    for method in ("fedavg", "delta_fl"):
        best = frame[frame["method"] == method].groupby("cohort")["valid_mean"].mean()
        assert best[str(tuned.best(method).numbers["cohort"])] == best.max()


def test_methods_whose_chosen_cohorts_differ_are_compared(tuned: Study) -> None:
    """A cohort that was tried is a hyper-parameter; of runs by themselves it is an obstacle."""
    views = {outcome.setting.method: outcome.view for outcome in tuned.outcomes if outcome.seed == 3}
    by_name = {str(outcome.setting): outcome.view for outcome in tuned.outcomes if outcome.seed == 3}
    pair = {"a": by_name["fedavg(cohort=2)"], "b": by_name["delta_fl(cohort=4)"]}
    assert None not in views.values() and None not in pair.values()
    assert not compare({name: view for name, view in pair.items() if view is not None}).obstacles
    alone = {
        "a": eh.simulate(FEDAVG, DATA, rounds=2, cohort=2).view(),
        "b": eh.simulate(DELTA, DATA, rounds=2, cohort=4).view(),
    }
    assert any("cohorts (2, 4)" in obstacle for obstacle in compare(alone).obstacles)


def test_a_method_may_have_a_cohort_of_its_own(tmp_path: Path) -> None:
    """FedAvg-Sub: as many clients as Delta-FL keeps, beside FedAvg with all that it draws."""
    result = study(
        {"fedavg": fedavg, "fedavg_sub": fedavg, "delta_fl": DELTA},
        DATA,
        grid={"lr": [0.1], "fedavg_sub": {"cohort": [2]}},
        cohort=4,
        folder=tmp_path / "a",
        **HOW,
    )
    cohorts = {
        outcome.setting.method: outcome.view.info["cohort"] for outcome in result.outcomes if outcome.view
    }
    assert cohorts == {"fedavg": 4, "fedavg_sub": 2, "delta_fl": 4}
    assert str(result.best("fedavg_sub")) == "fedavg_sub(lr=0.1, cohort=2)"
    assert result.about["cohort"] == 4
    again = eh.load_study(tmp_path / "a")
    assert again.best("fedavg_sub").numbers == {"lr": 0.1, "cohort": 2}
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "fedavg_sub(lr=0.1, cohort=2)" in page and "Side by side" not in page


def test_the_same_method_at_two_cohorts_keeps_two_results(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 1, "seeds": 1, "eval_every": 1, "folder": tmp_path}
    study({"f": FEDAVG}, DATA, grid={"cohort": [2]}, **how)
    more = study({"f": FEDAVG}, DATA, grid={"cohort": [2, 4]}, **how)
    assert [outcome.view.info["cohort"] for outcome in more.outcomes if outcome.view] == [2, 4]
    assert "cohort" not in more.about
    alone = study({"f": FEDAVG}, DATA, grid={"cohort": [4]}, **how)
    assert alone.outcomes[0].view is not None and alone.outcomes[0].view.info["cohort"] == 4


def test_an_argument_of_that_name_is_the_method_s_own() -> None:
    asked: list[int] = []

    def made(cohort: int) -> Algorithm:
        asked.append(cohort)
        return FEDAVG

    result = study({"own": made}, DATA, grid={"cohort": [2, 3]}, cohort=4, rounds=1, seeds=1, eval_every=1)
    assert asked == [2, 3]
    assert {outcome.view.info["cohort"] for outcome in result.outcomes if outcome.view} == {4}


@pytest.mark.parametrize("wrong", [0, 2.5, "few", None])
def test_a_cohort_is_a_number_of_clients_or_all(wrong: object) -> None:
    with pytest.raises(eh.EvenhandError, match=r"^cohort="):
        study({"fedavg": FEDAVG}, DATA, grid={"cohort": [2, wrong]}, rounds=1)
