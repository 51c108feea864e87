"""What runs were told: which settings make a method, and in what two methods differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.report._view import ANONYMOUS, RunView

__all__ = ["as_methods", "clients_of", "data_of", "flat", "method_names", "obstacles", "shown"]

SEEDS = ("seed", "data_seed")
"""Settings of which a method has many."""

_IDLE = ("lanes", "checkpoint", "eval_every", "quiet", "out", "overwrite", "config")
"""Settings that change no number."""

_DATA = (
    *("data", "clients", "alpha", "test_fraction", "data_seed", "client_column", "label_column"),
    *("features", "drop", "regression", "text"),
)
_BUDGET = ("rounds", "cohort", "stragglers")
_MOST_NAMED = 3
"""A name gets at most so many settings."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots between the names."""
    found: dict[str, Any] = {}
    for key, setting in config.items():
        inner = (
            flat(setting, f"{prefix}{key}.") if isinstance(setting, Mapping) else {f"{prefix}{key}": setting}
        )
        found |= inner
    return found


def shown(setting: Any, most: int = 200) -> str:
    """A setting in a table."""
    if isinstance(setting, float):
        return f"{setting:.12g}"
    text = setting if isinstance(setting, str) else json.dumps(setting, default=str)
    return text if len(text) <= most else text[: most - 1] + "…"


def as_methods(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Runs that are one method together, sorted by seed; see :func:`~evenhand.report.compare`."""
    groups: dict[Any, list[RunView]] = {}
    for i, run in enumerate(runs):
        key = [run.title, *(f"{name}={setting!r}" for name, setting in _told(run).items())]
        if "data_seed" not in run.config:  # else its settings say what data it had
            key.append(repr(data_of(run)))
        if not run.config and run.title == ANONYMOUS:
            key.append(str(i))
        groups.setdefault(tuple(key), []).append(run)
    parts = [part for group in groups.values() for same in _by_data(group) for part in _without_repeats(same)]
    return [sorted(part, key=_trial_order) for part in parts]


def method_names(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """The titles; where these are alike, with the settings that differ, and numbered where none does."""
    titles = [group[0].title for group in groups]
    names: list[str] = []
    for title, group in zip(titles, groups, strict=True):
        alike = [_told(other[0]) for other in groups if other[0].title == title]
        told = _told(group[0])
        keys = [key for key in told if len({repr(other.get(key)) for other in alike}) > 1]
        added = [f" {key.rsplit('.', 1)[-1]}={_brief(told[key])}" for key in keys[:_MOST_NAMED]]
        names.append(title + "".join(added))
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


def obstacles(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """In what methods differ that must not differ where they are compared."""
    found: list[str] = []
    if _differ(groups, data_of):
        configs = [flat(run.config) for group in groups for run in group]
        told = {key: dict.fromkeys(_brief(c[key]) for c in configs if key in c) for key in _DATA}
        names = [
            f"{key.replace('_', ' ')} {', '.join(texts)}" for key, texts in told.items() if len(texts) > 1
        ]
        found.append(f"data ({'; '.join(names)})" if names else "data")
    if _differ(groups, lambda run: run.info.get("seed")):
        seeds = dict.fromkeys(", ".join(str(run.info.get("seed")) for run in group) for group in groups)
        found.append(f"seeds ({'; '.join(seeds)})")
    spent = {name: dict.fromkeys(_brief(_budget(group[0])[name]) for group in groups) for name in _BUDGET}
    words = {"rounds": "rounds", "cohort": "cohorts", "stragglers": "shares of stragglers"}
    found += [f"{words[name]} ({', '.join(texts)})" for name, texts in spent.items() if len(texts) > 1]
    if not found and _differ(groups, clients_of):
        found.append("evaluated clients")
    if not found and _differ(groups, _trial):
        found.append("choice of which seed goes with which data")
    return found


def data_of(run: RunView) -> str:
    """What is equal for equal data: the fingerprint where it is known, else the clients."""
    known = run.info.get("fingerprint")
    return clients_of(run) if known is None else str(known)


def clients_of(run: RunView) -> str:
    """What is equal for the same clients with as many rows."""
    digest = hashlib.blake2b(repr(tuple(run.client_ids)).encode("utf-8", "surrogatepass"))
    for split in sorted(run.sizes):
        rows = np.asarray(run.sizes[split], np.int64)
        if rows.any():
            digest.update(split.encode() + rows.tobytes())
    return digest.hexdigest()


def _told(run: RunView) -> dict[str, Any]:
    """The settings that make a method; of the rounds, those done."""
    settings = flat(run.config)
    kept = {name: setting for name, setting in settings.items() if name not in (*SEEDS, *_IDLE)}
    return kept | {name: setting for name, setting in _budget(run).items() if setting is not None}


def _budget(run: RunView) -> dict[str, Any]:
    told = {name: run.info.get(name, run.config.get(name)) for name in _BUDGET}
    return told | {"stragglers": told["stragglers"] or 0}


def _by_data(group: list[RunView]) -> list[list[RunView]]:
    """Apart by their data where these changed though ``data_seed`` did not."""
    data = {repr(run.config.get("data_seed")): set[str]() for run in group}
    for run in group:
        data[repr(run.config.get("data_seed"))].add(data_of(run))
    if all(len(found) == 1 for found in data.values()):
        return [group]
    keys = dict.fromkeys(data_of(run) for run in group)
    return [[run for run in group if data_of(run) == key] for key in keys]


def _without_repeats(group: list[RunView]) -> list[list[RunView]]:
    """A second run with the seed and the data of a first is in a list of its own."""
    parts: list[list[RunView]] = []
    for run in group:
        free = [part for part in parts if _trial(run) not in [_trial(other) for other in part]]
        if free:
            free[0].append(run)
        else:
            parts.append([run])
    return parts


def _trial(run: RunView) -> object:
    return run.info.get("seed"), data_of(run), clients_of(run)


def _trial_order(run: RunView) -> tuple[int, str, str, str]:
    seed = run.info.get("seed")
    return seed if isinstance(seed, int) else -1, str(seed), data_of(run), clients_of(run)


def _differ(groups: Sequence[Sequence[RunView]], of: Any) -> bool:
    """Whether methods have unlike sets of something."""
    return len({frozenset(map(of, group)) for group in groups}) > 1


def _brief(setting: Any) -> str:
    """A setting in a name: of a path, the last part."""
    text = shown(setting, 40)
    return Path(text).name if "/" in text else text
