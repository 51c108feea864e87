"""The settings of runs: which define a method, and in which two methods differ."""

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
"""Settings that may differ between the runs of a method."""

_IDLE = ("lanes", "checkpoint", "eval_every", "quiet", "out", "overwrite", "config", "watch")
"""Settings that do not affect the numbers."""

_DATA = (
    *("data", "clients", "alpha", "test_fraction", "data_seed", "client_column", "label_column"),
    *("features", "drop", "regression", "text"),
)
_BUDGET = ("rounds", "cohort", "stragglers")
_MOST_NAMED = 3
"""Most settings in a method's name."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for key, setting in config.items():
        inner = (
            flat(setting, f"{prefix}{key}.") if isinstance(setting, Mapping) else {f"{prefix}{key}": setting}
        )
        found |= inner
    return found


def shown(setting: Any, most: int = 200) -> str:
    """A setting as a table shows it."""
    if isinstance(setting, float):
        return f"{setting:.12g}"
    text = setting if isinstance(setting, str) else json.dumps(setting, default=str)
    return text if len(text) <= most else text[: most - 1] + "…"


def as_methods(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Runs grouped by method, and sorted by seed; see :func:`~evenhand.report.compare`."""
    groups: dict[Any, list[RunView]] = {}
    for i, run in enumerate(runs):
        key = [run.title, *(f"{name}={setting!r}" for name, setting in _method_settings(run).items())]
        if "data_seed" not in run.config:  # else its settings identify the data
            key.append(repr(data_of(run)))
        if not run.config and run.title == ANONYMOUS:
            key.append(str(i))
        groups.setdefault(tuple(key), []).append(run)
    parts = [part for group in groups.values() for same in _by_data(group) for part in _without_repeats(same)]
    return [sorted(part, key=_trial_order) for part in parts]


def method_names(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """The titles; equal ones are followed by the settings that differ, or numbered where none does."""
    titles = [group[0].title for group in groups]
    names: list[str] = []
    for title, group in zip(titles, groups, strict=True):
        alike = [_method_settings(other[0]) for other in groups if other[0].title == title]
        settings = _method_settings(group[0])
        keys = [key for key in settings if len({repr(other.get(key)) for other in alike}) > 1]
        added = [f" {key.rsplit('.', 1)[-1]}={_brief(settings[key])}" for key in keys[:_MOST_NAMED]]
        names.append(title + "".join(added))
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


def obstacles(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """What differs between the methods but must not, for a comparison."""
    found: list[str] = []
    if _differ(groups, data_of):
        configs = [flat(run.config) for group in groups for run in group]
        texts_by_key = {key: dict.fromkeys(_brief(c[key]) for c in configs if key in c) for key in _DATA}
        names = [
            f"{key.replace('_', ' ')} {', '.join(texts)}"
            for key, texts in texts_by_key.items()
            if len(texts) > 1
        ]
        found.append(f"data ({'; '.join(names)})" if names else "data")
    if _differ(groups, lambda run: run.info.get("seed")):
        seeds = dict.fromkeys(", ".join(str(run.info.get("seed")) for run in group) for group in groups)
        found.append(f"seeds ({'; '.join(seeds)})")
    spent = {name: dict.fromkeys(_brief(_budget(group[0])[name]) for group in groups) for name in _BUDGET}
    words = {"rounds": "rounds", "cohort": "cohorts", "stragglers": "shares of stragglers"}
    found += [f"{words[name]} ({', '.join(texts)})" for name, texts in spent.items() if len(texts) > 1]
    if not found and _differ(groups, clients_of):
        is_attacked = any(run.whole is not None for group in groups for run in group)
        found.append("honest clients" if is_attacked else "evaluated clients")
    if not found and _differ(groups, _trial):
        found.append("pairing of seeds with data")
    return found


def data_of(run: RunView) -> str:
    """A key that is equal for equal data: the fingerprint where known, else that of the clients."""
    known = run.info.get("fingerprint")  # malicious clients are a part of the data, and may differ by seed
    return clients_of(run.whole or run) if known is None else str(known)


def clients_of(run: RunView) -> str:
    """A key that is equal for the same clients with equally many examples."""
    digest = hashlib.blake2b(repr(tuple(run.client_ids)).encode("utf-8", "surrogatepass"))
    for split in sorted(run.sizes):
        sizes = np.asarray(run.sizes[split], np.int64)
        if sizes.any():
            digest.update(split.encode() + sizes.tobytes())
    return digest.hexdigest()


def _method_settings(run: RunView) -> dict[str, Any]:
    """The settings that define a method, with the rounds done rather than those asked for."""
    settings = flat(run.config)
    kept = {name: setting for name, setting in settings.items() if name not in (*SEEDS, *_IDLE)}
    return kept | {name: setting for name, setting in _budget(run).items() if setting is not None}


def _budget(run: RunView) -> dict[str, Any]:
    budget = {name: run.info.get(name, run.config.get(name)) for name in _BUDGET}
    return budget | {"stragglers": budget["stragglers"] or 0}


def _by_data(group: list[RunView]) -> list[list[RunView]]:
    """The group split by data, where the data changed although ``data_seed`` did not."""
    data = {repr(run.config.get("data_seed")): set[str]() for run in group}
    for run in group:
        data[repr(run.config.get("data_seed"))].add(data_of(run))
    if all(len(found) == 1 for found in data.values()):
        return [group]
    keys = dict.fromkeys(data_of(run) for run in group)
    return [[run for run in group if data_of(run) == key] for key in keys]


def _without_repeats(group: list[RunView]) -> list[list[RunView]]:
    """The group split so that no part has two runs with the same seed and data."""
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
    """Whether ``of`` takes different sets of values on the methods' runs."""
    return len({frozenset(map(of, group)) for group in groups}) > 1


def _brief(setting: Any) -> str:
    """A setting as part of a name; of a path, the last component."""
    text = shown(setting, 40)
    return Path(text).name if "/" in text else text
