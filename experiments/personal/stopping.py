"""Finetuning from the global model of earlier rounds of an attacked run, and what could tell when to stop it.

Figures 7 and 8 of the paper on Ditto: one run with model replacement, the one that :mod:`experiments.personal.joint`
ends with, is stopped after each tenth of its rounds, and clients finetune what it has come to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import evenhand as eh
from evenhand import personalization as personal
from evenhand.rounds import poisoned
from evenhand.types import Params
from experiments.personal import joint
from experiments.personal.comparison import Runs

__all__ = ["FINETUNING", "RATE", "SIGNALS", "as_seen", "markdown", "measured", "stops"]

RATE = 0.1
"""The step size that validation rows have chosen for the global model and both solvers in joint.json."""
_PARTS = 10
"""Of a run, at the end of each of which it is stopped."""
_SOLVER = "finetuning solver"
FINETUNING: Mapping[str, Sequence[float]] = {"plain finetuning": (0.0,), _SOLVER: joint.LAMS}
"""With each of these penalties."""

SIGNALS: Mapping[str, tuple[str, bool]] = {
    "least training loss, all clients": ("loss of all", False),
    "best validation accuracy, all clients": ("validation of all", True),
    "best validation accuracy, benign clients": ("validation of benign", True),
    "best validation accuracy, benign clients, after finetuning": ("validation after finetuning", True),
}
"""What could choose a round -> the measure that it reads, and whether more of it is better."""

Course = dict[str, list[float]]
"""Measure -> its value after each part of a run, from round 0 on."""


def measured(runs: Runs) -> dict[str, Any]:
    """What becomes of both kinds of finetuning from each round, beside the joint solver after as many.

    For each round, the validation rows of benign clients choose penalty and epochs at one more seed.

    Args:
      runs: what all of them have in common; of its step sizes the first counts.
    """
    runs = runs._replace(data=cache(runs.data))
    choice, valid = _choice(runs, runs.first + runs.seeds)
    seeds = [_courses(runs, seed, choice) for seed in range(runs.first, runs.first + runs.seeds)]
    return {"rounds": _rounds(runs), "chosen": choice, "valid": valid, "seeds": seeds}


def as_seen(data: eh.data.FederatedDataset, attack: eh.types.Attack, run: eh.Run) -> eh.data.FederatedDataset:
    """The clients as their server would see them: the malicious ones measure losses on their false labels."""
    assert attack.rows is not None
    y, offsets = data.train.y.copy(), data.train.offsets
    for client in np.flatnonzero(run.malicious):
        rows = slice(offsets[client], offsets[client + 1])
        _, y[rows] = poisoned(attack.rows, data.train.x[rows], y[rows], run.seed, int(client))
    return replace(data, train=data.train._replace(y=y))


def stops(seeds: Sequence[Course]) -> dict[str, dict[str, list[float]]]:
    """Signal -> the parts of a run after which it would have stopped at each seed, and what that costs.

    Returns:
      ``"part"``, from 1; ``"percent"``, the accuracy of the finetuning solver from there; ``"behind"``, by how much the
      solver would have been better from the best round after round 0; and the same for the last and for the best round.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name, (measure, more) in {
        **SIGNALS,
        "the last round": ("", True),
        "the best round, by test accuracy": (_SOLVER, True),
    }.items():
        found[name] = {"part": [], "percent": [], "behind": []}
        for seed in seeds:
            solver = seed[_SOLVER][1:]
            read = np.array(seed[measure][1:]) if measure else np.arange(len(solver))
            part = int(np.argmax(read if more else -read))
            found[name]["part"].append(part + 1)
            found[name]["percent"].append(solver[part])
            found[name]["behind"].append(max(solver) - solver[part])
    return found


def markdown(found: Mapping[str, Any]) -> str:
    """Both tables of one place: all measures by round, and the rounds that signals choose."""
    columns = {
        "global": "global",
        "plain finetuning": "plain finetuning",
        _SOLVER: _SOLVER,
        "joint solver": "joint solver, so far",
        "loss of all": "training loss, all",
        "validation of all": "validation, all",
    }
    lines = [f"| round | {' | '.join(columns.values())} |", f"|---|{'---:|' * len(columns)}"]
    for part, number in enumerate(found["rounds"]):
        cells = [
            _cell([seed[name][part] for seed in found["seeds"]], 2 if "loss" in name else 1)
            for name in columns
        ]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    lines += [
        "",
        "| stopped by | round at each seed | finetuning solver | behind the best round |",
        "|---|---|---:|---:|",
    ]
    for name, each in stops(found["seeds"]).items():
        rounds = ", ".join(str(found["rounds"][part]) for part in each["part"])
        lines.append(f"| {name} | {rounds} | {_cell(each['percent'])} | {_cell(each['behind'])} |")
    return "\n".join(lines)


def _cell(values: Sequence[float], digits: int = 1) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def _rounds(runs: Runs) -> list[int]:
    every = max(1, runs.rounds // _PARTS)
    return [*range(0, runs.rounds, every), runs.rounds]


def _course(runs: Runs, method: eh.Algorithm, seed: int) -> Iterator[eh.Run]:
    """The attacked run so far, at its beginning and after each part."""
    return eh.simulation.iterate(
        method,
        runs.data(seed),
        rounds=runs.rounds,
        cohort=runs.cohort,
        seed=seed,
        eval_every=max(1, runs.rounds // _PARTS),
        attack=runs.attack,
    )


def _percent(run: eh.Run, split: str) -> float:
    """Mean accuracy over benign clients."""
    return 100.0 * float(run.summary(split, "accuracy", who="honest")["mean"])


def _at(
    data: eh.data.FederatedDataset, method: eh.Algorithm, seed: int, start: Params, **given: Any
) -> eh.Run:
    """What clients are served without any further round."""
    # Unlike simulate(), iterate() does not say each time what is unusual about the data.
    return next(eh.simulation.iterate(method, data, rounds=0, seed=seed, start=start, **given))


def _finetuned(runs: Runs, seed: int, start: Params, lam: float, epochs: int) -> eh.Run:
    """Every client finetunes this model."""
    rate = runs.rates[0]
    method = personal.finetune(joint.average(rate), joint.work(rate, epochs), lam=lam)
    return _at(runs.data(seed), method, seed, start, cohort=runs.cohort, attack=runs.attack)


def _choice(runs: Runs, seed: int) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[float]]]:
    """Method -> the numbers that are best at each stop, by validation; and all that they were chosen from."""
    rate = runs.rates[0]
    models = [run.params for run in _course(runs, joint.average(rate), seed)]
    valid: dict[str, list[float]] = {}
    choice: dict[str, list[dict[str, Any]]] = {}
    for name, lams in FINETUNING.items():
        tried: list[dict[str, Any]] = [
            {"lam": lam, "epochs": epochs} for lam in lams for epochs in joint.EPOCHS
        ]
        for each in tried:
            valid[str(each)] = [_percent(_finetuned(runs, seed, model, **each), "valid") for model in models]
        choice[name] = [max(tried, key=lambda each: valid[str(each)][part]) for part in range(len(models))]
    for lam in joint.LAMS:
        method = personal.ditto(joint.average(rate), joint.work(rate), lam=lam)
        valid[f"joint, {lam:g}"] = [_percent(run, "valid") for run in _course(runs, method, seed)]
    best = max(joint.LAMS, key=lambda lam: valid[f"joint, {lam:g}"][-1])
    return {**choice, "joint solver": [{"lam": best}]}, valid


def _courses(runs: Runs, seed: int, choice: Mapping[str, Sequence[Mapping[str, Any]]]) -> Course:
    """All measures of one seed."""
    rate, data = runs.rates[0], runs.data(seed)
    found: Course = {
        name: [] for name in ("global", *FINETUNING, *(measure for measure, _ in SIGNALS.values()))
    }
    for part, run in enumerate(_course(runs, joint.average(rate), seed)):
        assert runs.attack is not None
        found["global"].append(_percent(run, "test"))
        found["validation of benign"].append(_percent(run, "valid"))
        seen = _at(as_seen(data, runs.attack, run), joint.average(rate), seed, run.params)
        found["loss of all"].append(float(seen.history["train_loss"][-1]))
        found["validation of all"].append(100.0 * float(seen.history["valid_accuracy"][-1]))
        after = {name: _finetuned(runs, seed, run.params, **choice[name][part]) for name in FINETUNING}
        for name, each in after.items():
            found[name].append(_percent(each, "test"))
        found["validation after finetuning"].append(_percent(after[_SOLVER], "valid"))
    method = personal.ditto(joint.average(rate), joint.work(rate), **choice["joint solver"][0])
    found["joint solver"] = [_percent(run, "test") for run in _course(runs, method, seed)]
    return found
