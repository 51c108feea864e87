"""The experiments on personal models: they run at a tiny size, and their saved numbers say what their page claims."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

from experiments.personal import __main__ as command
from experiments.personal.methods import PERSONAL, ROBUST, candidates

FOLDER = Path(command.__file__).parent
TINY = ["--seeds", "1", "--clients", "5", "--rounds", "2", "--cohort", "3", "--rates", "0.1"]


def test_every_method_can_be_made_of_each_of_its_numbers() -> None:
    every = candidates(196, 1, strong=True)
    assert {*ROBUST, *PERSONAL, "global", "local", "TERM", "Ditto", "Ditto, dynamic"} < set(every)
    for each in every.values():
        for values in product(*each.grid.values()):
            assert each.make({"rate": 0.1, **dict(zip(each.grid, values, strict=True))}).name


def test_a_table_at_a_tiny_size(tmp_path: Path) -> None:
    words = ["--places", "synthetic", "--attacks", "A3 20", "--methods", "global", "Ditto"]
    config = tyro.cli(command.Config, args=["--out", str(tmp_path), *TINY, *words])
    command.main(config)
    found = json.loads((tmp_path / "synthetic.json").read_text())["percent"]["A3 20"]
    assert set(found) == {"global", "Ditto"}
    ditto = found["Ditto"]
    assert len(ditto["seeds"]) == 1 and len(ditto["valid"]) == 3
    best = max(ditto["valid"].values())
    assert ditto["valid"][str(ditto["chosen"])] == best
    assert 0 <= ditto["seeds"][0]["mean"] <= 100


@pytest.mark.parametrize(("name", "share"), [("A1 50", 0.5), ("A2 50", 0.5), ("A3 10", 0.1)])
def test_attacks_are_those_of_the_paper(name: Any, share: float) -> None:
    attack = command.attack(name, cohort=10)
    assert attack is not None and attack.fraction == share and attack.rows is not None
    assert (attack.upload is None) == (name == "A1 50")


def saved(name: str, attack: str, method: str, what: str) -> np.ndarray[Any, Any]:
    content = json.loads((FOLDER / "results" / f"{name}.json").read_text())["percent"]
    return np.array([each[what] for each in content[attack][method]["seeds"]])


ALONE = ("median", "clipping", "FedMGDA+")
"""The robust rivals that do better than Ditto under model replacement, where clients have many digits each."""


@pytest.mark.parametrize("name", ["two_classes", "dirichlet"])
@pytest.mark.parametrize("attack", ["clean", "A1 50", "A3 10"])
def test_the_pages_claims_are_in_the_saved_numbers(name: str, attack: str) -> None:
    ditto = saved(name, attack, "Ditto", "mean")
    assert len(ditto) == 5
    assert (ditto > saved(name, attack, "global", "mean")).all()
    better = {rival for rival in ROBUST if saved(name, attack, rival, "mean").mean() >= ditto.mean()}
    assert better == ({*ALONE} if (name, attack) == ("dirichlet", "A3 10") else set())


def test_two_digits_a_client_are_served_more_evenly_at_every_seed() -> None:
    for attack in ("clean", "A1 50", "A3 10"):
        ditto, alone = (saved("two_classes", attack, method, "std") for method in ("Ditto", "global"))
        assert (ditto < alone).all()
