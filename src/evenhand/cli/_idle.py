"""Options that have no effect on the data at hand, each reported in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evenhand.cli._data import DataOptions
from evenhand.data import FederatedDataset
from evenhand.data.loaders import NAMES
from evenhand.errors import EvenhandError

__all__ = ["check_labels", "idle", "without_effect"]


class _Case(NamedTuple):
    """A run before it starts.

    Attributes:
      options: name -> value, for those that have one.
      name: the data's name, as given.
      clients: how many there are.
      cohort: how many of them take part in a round.
      kind: "built in", "synthetic", "table", "LEAF" or "pictures".
      spread: whether the examples were spread over clients, rather than naming their client.
      tested: whether the data come with a test part.
      real: whether the labels are real numbers.
    """

    options: Mapping[str, Any]
    name: str
    clients: int
    cohort: int
    kind: str
    spread: bool
    tested: bool
    real: bool


_Reason: TypeAlias = Callable[[_Case], str | None]


def idle(options: Mapping[str, Any], defaults: Mapping[str, Any], data: FederatedDataset) -> list[str]:
    """One sentence for each option that was set and has no effect on ``data``.

    Args:
      options: name -> value, for those that have one.
      defaults: the same for a run without options.
      data: what the run is about to train on.
    """
    case = _case(options, data)
    sentences: list[str] = []
    for name, reason in _REASONS.items():
        value = options.get(name)
        if value != defaults.get(name) and (why := reason(case)):
            option = "--" + name.replace("_", "-")
            typed = (
                option if value is True else f"--no-{option[2:]}" if value is False else f"{option} {value}"
            )
            sentences.append(f"{typed} has no effect: {why}.")
    return sentences


def without_effect(options: Mapping[str, Any], data: FederatedDataset) -> list[str]:
    """The options, set or not, that have no effect on ``data``: a page need not list them."""
    case = _case(options, data)
    return [name for name, reason in _REASONS.items() if name in options and reason(case)]


def check_labels(data: DataOptions) -> None:
    """Checks that ``--regression`` is not given for data whose labels are known to be classes.

    Raises:
      EvenhandError: it is.
    """
    if data.regression and _kind(data.data) in ("built in", "synthetic"):
        raise EvenhandError(
            f"--regression is for labels that are real numbers, but those of {data.data} are classes: leave it out, "
            "or name other data with --data."
        )


def _kind(name: str) -> str:
    path = Path(name)
    if name in NAMES:
        return "built in"
    if name.partition(":")[0] == "synthetic":
        return "synthetic"
    if "ubyte" in path.name or (path.is_dir() and any("ubyte" in entry.name for entry in path.iterdir())):
        return "pictures"
    return "LEAF" if path.is_dir() or path.suffix.lower() == ".json" else "table"


def _case(options: Mapping[str, Any], data: FederatedDataset) -> _Case:
    name, cohort, clients = str(options["data"]), options["cohort"], data.num_clients
    kind = _kind(name)
    # A table names its clients, unless it has no column of them and --clients says how many there are.
    spread = kind in ("built in", "pictures") or (kind == "table" and options.get("clients") == clients)
    return _Case(
        options,
        name,
        clients,
        clients if cohort == "all" else min(cohort, clients),
        kind,
        spread,
        _has_test_part(name, kind),
        data.num_classes is None,
    )


def _has_test_part(name: str, kind: str) -> bool:
    path = Path(name)
    match kind:
        case "built in":
            return name != "digits"
        case "LEAF":
            return (path / "test").is_dir()
        case "pictures":
            return path.is_dir() and any(entry.name.startswith("t10k") for entry in path.iterdir())
        case _:
            if path.suffix != ".npz":
                return False
            with np.load(path) as arrays:
                return "x_test" in arrays.files


def _columns(case: _Case) -> str | None:
    return None if case.kind == "table" else f"{case.name} has no columns to choose from"


def _alpha(case: _Case) -> str | None:
    if case.kind == "synthetic":
        return "synthetic data take it from their name, --data synthetic:ALPHA,BETA"
    if not case.spread:
        return f"{case.name} names the client of each example"
    return f"examples with real-valued labels, as in {case.name}, are spread evenly" if case.real else None


def _clients(case: _Case) -> str | None:
    if case.options["clients"] == case.clients:
        return None
    return f"{case.name} names the client of each example, which makes {case.clients} clients"


def _data_seed(case: _Case) -> str | None:
    if case.spread or not case.tested:
        return None
    return f"{case.name} comes with clients and a test part, so nothing is drawn"


def _no_more(name: str, what: str) -> _Reason:
    """For a number of clients that is larger than there are."""

    def reason(case: _Case) -> str | None:
        asked = case.options[name]
        more = isinstance(asked, int) and asked > case.clients
        return f"there are {case.clients} clients, all of which {what}" if more else None

    return reason


def _lanes(case: _Case) -> str | None:
    return f"a round trains at most {case.cohort} clients" if case.options["lanes"] > case.cohort else None


def _stragglers(case: _Case) -> str | None:
    share = case.options["stragglers"]
    none = 0 <= share <= 1 and round(case.cohort * (1 - share)) == case.cohort
    return f"{share} of a cohort of {case.cohort} rounds to no client" if none else None


_REASONS: dict[str, _Reason] = {
    "client_column": _columns,
    "label_column": _columns,
    "standardize": lambda case: None if case.kind == "table" else f"{case.name} is not a table",
    "text": lambda case: (
        None if case.kind == "LEAF" else f"{case.name} is not LEAF data, and only those hold text"
    ),
    "clients": _clients,
    "alpha": _alpha,
    "test_fraction": lambda case: f"{case.name} comes with a test part" if case.tested else None,
    "data_seed": _data_seed,
    "standardize_target": lambda case: None if case.real else f"the labels of {case.name} are classes",
    "hidden": lambda case: None if case.options.get("model") == "mlp" else "it is for --model mlp only",
    "cohort": _no_more("cohort", "take part in each round"),
    "eval_clients": _no_more("eval_clients", "are evaluated"),
    "lanes": _lanes,
    "stragglers": _stragglers,
}
"""Option -> why it has no effect; None where it has one."""
