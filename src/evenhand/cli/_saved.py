"""A run folder read back, for reports and comparisons."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from evenhand.cli._folder import CLIENTS, CONFIG, SUMMARY, dict_in, read_json, read_metrics, sound_condition
from evenhand.errors import EvenhandError
from evenhand.evaluation import Finding
from evenhand.report import RunView, read_clients_csv

__all__ = ["SavedRun", "load_run"]


class SavedRun(NamedTuple):
    """What a run folder holds.

    Attributes:
      folder: where it is.
      view: what reports show of it.
      interrupted: whether Ctrl-C ended it before its last round.
      fingerprint: of the data; runs with equal fingerprints had equal data.
      remarks: what a reader of the numbers should know about the folder, in sentences.
    """

    folder: Path
    view: RunView
    interrupted: bool
    fingerprint: str
    remarks: tuple[str, ...] = ()


def load_run(folder: Path) -> SavedRun:
    """The run in ``folder``.

    Raises:
      EvenhandError: there are no results yet, or a file is missing or damaged.
    """
    config = _known(folder / CONFIG, read_json(folder / CONFIG), _CONFIG)
    condition = sound_condition(folder)
    summary = _known(folder / SUMMARY, read_json(folder / SUMMARY), _SUMMARY)
    history = read_metrics(folder, condition.length)
    table, unseen = read_clients_csv(folder / CLIENTS), None
    if table.unseen is not None:
        table, unseen = table.of(~table.unseen), table.of(table.unseen)
    unused = {name for name in config.get("without_effect") or [] if isinstance(name, str)}
    options = {name: value for name, value in config["options"].items() if name not in unused}
    view = RunView(
        title=config["method"].removesuffix("()"),
        history=history,
        sizes=table.sizes,
        client_ids=table.client_ids,
        clients=table.clients,
        info=_info(folder, config, summary),
        config={"method": config["method"], **options},
        classes=table.classes,
        findings=_findings(folder / SUMMARY, summary.get("findings", [])),
        malicious=table.malicious,
        last_round=table.last_round,
    )
    if unseen is not None:
        parts = {"client_ids": unseen.client_ids, "sizes": unseen.sizes, "clients": unseen.clients}
        parts |= {"classes": unseen.classes, "last_round": unseen.last_round}
        view = view._replace(unseen=view._replace(**parts, malicious=None))
    remarks = tuple(condition.remarks(folder))
    return SavedRun(folder, view, summary["interrupted"], config["data"]["fingerprint"], remarks)


def _info(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": config["method"].partition("(")[0],
        "data": config["data"]["name"],
        "client_column": config["data"].get("client_column", ""),
        "rounds": summary["rounds"],
        "cohort": summary["cohort"],
        "clients": summary.get("clients"),
        "seed": config["options"]["seed"],
        "fingerprint": config["data"]["fingerprint"],
        "seconds": summary["seconds"],
        "examples_per_second": summary.get("examples_per_second"),
        "padded": summary.get("padded"),
        "by_class": summary.get("by_class"),
        "privacy": summary.get("privacy"),
        "constant": summary.get("constant"),
        "metrics": {name: str(reason) for name, reason in dict_in(summary, "metrics").items()},
        "adapts": summary.get("adapts"),
        "kept": dict_in(summary, "kept").get("words"),
        "command": f"evenhand run --config {shlex.quote(str(folder / CONFIG))}",
        "versions": config["versions"],
    }


def _findings(path: Path, found: Any) -> tuple[Finding, ...]:
    """The recorded findings; none in a folder of a version that looked for none."""
    try:
        return tuple(
            Finding(each["kind"], str(each["sentence"]), str(each.get("split", ""))) for each in found
        )
    except (AttributeError, KeyError, TypeError):
        raise EvenhandError(
            f"{path} is not what `evenhand run` writes (findings): restore it or repeat the run."
        ) from None


_CONFIG = {
    "method": (str,),
    "options": (dict,),
    "options.seed": (int,),
    "data": (dict,),
    "data.name": (str,),
    "data.client_column": (str, NoneType),  # earlier versions did not say
    "data.fingerprint": (str,),
    "versions": (dict,),
    "versions.*": (str,),
    "without_effect": (list, NoneType),  # earlier versions did not say
}
_SUMMARY = {
    "rounds": (int,),
    "cohort": (int,),
    "clients": (int, NoneType),
    "interrupted": (bool,),
    "seconds": (dict,),
    "seconds.*": (int, float),
    "examples_per_second": (int, float, NoneType),
    "padded": (int, float, NoneType),
    "by_class": (dict, NoneType),
    "privacy": (dict, NoneType),
    "adapts": (bool, NoneType),
    "kept": (dict, NoneType),
}
"""What these files must hold, and of which type; ``*`` stands for every name."""


def _known(path: Path, of: dict[str, Any], expected: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """``of``, once its values are checked to have the expected types."""
    for name, kinds in expected.items():
        outer, _, inner = name.rpartition(".")
        within = of[outer] if outer else of
        for value in within.values() if inner == "*" else [within.get(inner)]:
            if type(value) not in kinds:
                raise EvenhandError(
                    f"{path} is not what `evenhand run` writes ({name} is {value!r:.40}): restore it or repeat the run."
                )
    return of
