"""All constraints in one table: it runs at a tiny size, and its page says what its saved numbers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

import evenhand as eh
from experiments import evidence
from experiments.constraints import __main__ as command
from experiments.constraints.methods import CONDITIONS, Budget, Condition, methods

FOLDER = Path(command.__file__).parent
MODEL = eh.models.softmax_regression(features=4, classes=3)


def saved(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    return content


@pytest.mark.parametrize("condition", CONDITIONS)
def test_ten_methods_have_a_form_for_each_condition(condition: Condition) -> None:
    """A private form promises privacy at the noise that it is given; the others do not."""
    made = methods(condition, MODEL, Budget(0.5, 2.0))
    assert len(made) == 10
    for name, candidates in made.items():
        first = {argument: values[0] for argument, values in candidates.grid.items()}
        method = candidates.make({"rate": 0.1, **first})
        is_private = condition in ("privacy", "all")
        assert (method.privacy is not None) == is_private, name
        if is_private:
            assert method.privacy is not None
            account = eh.privacy.account(method.privacy, rounds=3, units=100, delta=1e-3)
            alone = eh.privacy.epsilon(noise_multiplier=2.0, rate=0.5, steps=3, delta=1e-3)
            assert account.epsilon == pytest.approx(alone, rel=1e-3), name


def test_the_noise_stays_within_the_budget() -> None:
    config = command.Config()
    noise = command.budget(config, 8.0).noise_multiplier
    spent = eh.privacy.epsilon(noise_multiplier=noise, rate=0.1, steps=100, delta=1e-3)
    assert 7.99 < spent <= 8.0
    assert config.delta <= 1 / config.clients


def test_it_runs_at_a_tiny_size(tmp_path: Path) -> None:
    y = np.tile(np.arange(10, dtype=np.uint8), 200)
    x = np.random.default_rng(0).integers(0, 60, (len(y), 28, 28))
    x[np.arange(len(y)), :, 2 * y + 3] += 150
    np.savez(tmp_path / "mnist.npz", x_train=x.astype(np.uint8), y_train=y)
    words = [
        "--data-dir",
        str(tmp_path),
        "--out",
        str(tmp_path),
        "--seeds",
        "2",
        "--clients",
        "10",
        "--rounds",
        "2",
    ]
    words += ["--images", "400", "--rates", "0.1", "--rate", "0.5", "--methods", *command.ABOUT_DITTO]
    command.main(tyro.cli(command.Config, args=[*words, "--conditions", "plain", "all"]))
    percent = json.loads((tmp_path / "table.json").read_text())["percent"]
    assert list(percent) == ["plain", "all"]
    assert all(len(percent[c][m]["seeds"]) == 2 for c in percent for m in command.ABOUT_DITTO)
    assert percent["plain"]["fedavg"]["seeds"] != percent["all"]["fedavg"]["seeds"]


def test_the_page_has_the_saved_tables_and_findings() -> None:
    text = (FOLDER / "README.md").read_text()
    table, budgets = saved("table"), saved("budgets")
    assert command.table(table["percent"]) in text
    assert command.budgets_table(budgets["percent"]) in text
    for content in (table, budgets):
        assert evidence.section(content["claims"]) in text
    assert list(table["percent"]) == list(CONDITIONS)
    assert all(len(method["seeds"]) == 5 for found in table["percent"].values() for method in found.values())
