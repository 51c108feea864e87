"""What the experiments share: the numbers of a study's runs, saved beside the paper's and printed as a table.

For each of its tables an experiment runs a study, and calls :func:`collect` with what the runs came to.
"""

from __future__ import annotations

import io
import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import evenhand as eh
from evenhand.records import write_text
from evenhand.report import RunView, statistics

__all__ = [
    "Experiment",
    "Measures",
    "accuracy",
    "by_name",
    "collect",
    "measured",
    "picture",
    "table",
    "views",
    "write",
]

Measures: TypeAlias = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What every experiment takes from the command line; each adds its own options, with their sources."""

    out: Path
    """Folder that gets the JSON files and the figures."""
    folder: Path | None = None
    """Folder that keeps each run (ours): with it, an experiment that was stopped goes on."""

    def under(self, name: str) -> Path | None:
        """The part of ``folder`` with runs of this name; None: they are not kept."""
        return self.folder and self.folder / name


def accuracy(run: RunView, split: str = "test") -> Measures:
    """Accuracy over clients in percent, its variance in percent squared, errors in percent, the angle in degrees."""
    told = statistics(run, split, "accuracy")
    percent = ("mean", "weighted_mean", "worst10", "best10", "std", "error_p90")
    return {
        **{name: 100.0 * told[name] for name in percent},
        "variance": 1e4 * told["variance"],
        "angle": told["angle"],
        "kl": told["kl"],
    }


def views(study: eh.studies.Study) -> dict[str, list[RunView]]:
    """The run of each seed, by the names of condition and method."""
    return {name: [one.view for one in each if one.view] for name, each in by_name(study).items()}


def measured(study: eh.studies.Study) -> dict[str, list[Measures]]:
    """What the study's own function told of each run at its end, by the same names."""
    return {
        name: [{what: float(values[-1]) for what, values in one.measures.items()} for one in each]
        for name, each in by_name(study).items()
    }


def by_name(study: eh.studies.Study) -> dict[str, list[eh.studies.Outcome]]:
    """The outcome of each seed, by the names of condition, method and form.

    Raises:
      SystemExit: a run failed.
    """
    found: dict[str, list[eh.studies.Outcome]] = {}
    for each in study.outcomes:
        if each.status == "failed":
            raise SystemExit(f"{each.setting}, seed {each.seed}: {each.reason}")
        case, method, numbers = each.setting.case, each.setting.method, each.setting.numbers
        name = ", ".join(part for part in (*case.values(), method, *numbers.values()) if part)
        found.setdefault(name, []).append(each)
    return found


def collect(
    path: Path,
    title: str,
    config: Mapping[str, Any],
    found: Mapping[str, list[Measures]],
    paper: Mapping[str, Mapping[str, float]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Saves numbers in a small JSON file beside the paper's, and prints them as a table.

    Args:
      path: the JSON file.
      title: what the table shows.
      config: the settings, to be saved with the numbers.
      found: method -> the numbers of each seed.
      paper: method -> measure -> the paper's number.
      more: what else is saved with them, by name.
    """
    methods = {name: {"seeds": each, **_over_seeds(each)} for name, each in found.items()}
    write(path, {"title": title, "methods": methods, "paper": paper or {}, **(more or {})}, config)
    print(table(path), flush=True)


def write(path: Path, content: Mapping[str, Any], config: Mapping[str, Any], digits: int = 6) -> Path:
    """Writes numbers as JSON, with what repeats them: the command, the settings and the versions."""
    # With -m, Python puts the path of the experiment's __main__.py there.
    experiment = Path(sys.argv[0]).parent.name
    head = {
        "command": shlex.join(["python", "-m", f"experiments.{experiment}", *sys.argv[1:]]),
        "versions": {
            "evenhand": eh.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "config": {name: str(value) if isinstance(value, Path) else value for name, value in config.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_rounded({**head, **content}, digits), indent=1, allow_nan=False)
    # One line per innermost group of numbers.
    write_text(
        path, re.sub(r"\{[^{}]*\}|\[[^\[\]{}]*\]", lambda part: re.sub(r"\s+", " ", part[0]), text) + "\n"
    )
    return path


def table(path: Path) -> str:
    """A saved comparison in Markdown: mean and standard deviation over the seeds; the paper's number in brackets."""
    content = json.loads(path.read_text())
    names = list(next(iter(content["methods"].values()))["mean"])
    rows = [f"| {content['title']} | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for method, each in content["methods"].items():
        cells = [
            f"{each['mean'][name]:.4g} ± {each['std'][name]:.2g}"
            + (f" [{content['paper'][method][name]:g}]" if name in content["paper"].get(method, {}) else "")
            for name in names
        ]
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(rows)


def picture(figure: Figure, path: Path) -> Path:
    """Writes a figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120)
    # A palette makes the file three times smaller, and the figures have few colours.
    Image.open(buffer).convert("RGB").quantize(96).save(path, optimize=True)
    return path


def _over_seeds(each: list[Measures]) -> dict[str, Measures]:
    return {
        what: {name: float(statistic([one[name] for one in each])) for name in each[0]}
        for what, statistic in (("mean", np.mean), ("std", np.std))
    }


def _rounded(value: Any, digits: int) -> Any:
    """The same with so many significant digits, and null for what is no number."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _rounded(item, digits) for name, item in value.items()}
    return [_rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value
