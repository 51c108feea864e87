"""``evenhand fit``: train one model on a table, without clients, on a risk of all examples, and measure it by group.

Each seed is a run like those of ``evenhand run``, of the method ``fit(...)``; several are compared in one folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli._data import DataOptions
from evenhand.cli._folder import claim, default_folder, seed_folders
from evenhand.cli._models import ModelOptions
from evenhand.cli._options import TrainingOptions
from evenhand.cli._run import RunCommand, unmeasured
from evenhand.cli._study import seeds_of
from evenhand.cli._terminal import kept_rounds, say, show_comparison
from evenhand.errors import EvenhandError
from evenhand.evaluation.metrics import resolved
from evenhand.expressions import canonical
from evenhand.expressions.reading import outermost
from evenhand.records import held, json_text, write_text, writing
from evenhand.report import RunView, compare, write_report
from evenhand.simulation import folder as files
from evenhand.simulation import load_run
from evenhand.simulation.saving import by_group

_DEFAULT_OUT = "(default: runs/fit-DATA)"
_NONE = "(default: L-BFGS, which needs none)"
_SAME = (
    "Every seed has the same training and test examples, so ± reflects training randomness only: --fresh-data draws a "
    "new split for each seed."
)


@dataclass(frozen=True)
class FitOptions:
    """How long to train, with which seeds, and where to write the results."""

    seeds: Annotated[str, arg(metavar="INT|A,B,C")] = "1"
    """number of seeds, or a list; with several, each gets its own run folder, and a page compares them"""
    rounds: int = 50
    """number of rounds of solver steps; the model can be evaluated after each"""
    steps: int = 10
    """solver steps per round"""
    learning_rate: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint=_NONE)] = None
    """learning rate (step size) of Adam"""
    batch_size: Annotated[
        int | float | None, arg(metavar="INT|FLOAT", help_behavior_hint="(default: all)")
    ] = None
    """examples per step; below 1, the share of all examples"""
    fresh_data: bool = False
    """draw a new train/test split for each seed"""
    metrics: Annotated[str | None, arg(metavar="METRIC,...", help_behavior_hint="(default: none)")] = None
    """further metrics of each group, measured at the end: auc, macro_f1, ...; see `evenhand list metrics`"""
    keep: str = "last"
    """round that the results are from: last, or best:SPLIT:STATISTIC, such as best:valid:mean"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_DEFAULT_OUT)] = None
    """folder for the results"""
    overwrite: bool = False
    """replace an earlier fit in that folder"""
    quiet: bool = False
    """print nothing but errors"""


@dataclass(frozen=True)
class FitCommand:
    """Train one central model on the examples of all clients, with a RISK such as 'tilted(t=50)'."""

    risk: Annotated[Positional[str], arg(metavar="RISK", help_behavior_hint="(default: mean())")] = "mean()"
    """risk of the losses (see `evenhand list risks`); or fit(...), with a loss, a weighting or a risk over classes"""
    fit: FitOptions = field(default_factory=FitOptions)
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)

    def check(self) -> None:
        """Finds faults before the data are loaded."""
        for option, is_given in {
            "--client-column": self.data.client_column != "client",
            "--clients": self.data.clients is not None,
        }.items():
            if is_given:
                raise EvenhandError(
                    f"{option} is for federated methods, and fit has no clients: leave it out, or name groups with "
                    "--groups."
                )
        seeds_of("seeds", self.fit.seeds)
        self._run(0, self._folder).check()

    def execute(self) -> int:
        """Trains with each seed, writes the folder and returns the exit code."""
        numbers = seeds_of("seeds", self.fit.seeds)
        seeds = list(range(numbers)) if isinstance(numbers, int) else numbers
        folder = self._folder
        if len(seeds) == 1:
            code = self._run(seeds[0], folder).execute()
            if code == 0 and self.fit.overwrite:
                _drop(seed_folders(folder))
            return code
        if not self.fit.overwrite and folder.is_dir() and any(folder.iterdir()):
            raise EvenhandError(f"--out {folder} is not empty: name another folder, or add --overwrite.")
        for seed in seeds:
            run = self._run(seed, folder / f"seed-{seed}", alone=False)
            if (code := run.execute(with_remarks=seed == seeds[0] and not self.fit.quiet)) != 0:
                return code
            if seed == seeds[0]:  # now the new fit trains, so an earlier one in this folder may go
                with held(folder):
                    claim(folder, checkpoint=False)
                    ours = {f"seed-{seed}" for seed in seeds}
                    _drop(path for path in seed_folders(folder) if path.name not in ours)
        views = [load_run(folder / f"seed-{seed}").view() for seed in seeds]
        with writing(folder / files.SUMMARY):
            write_text(folder / files.SUMMARY, json_text(_summary(self.expression, seeds, views)))
        if not self.fit.quiet:
            console, comparison = Console(highlight=False), compare(views)
            show_comparison(comparison, console, lines=kept_rounds(comparison))
            say(console, *self._unmeasured(folder, seeds, views, comparison.split))
            if not self.fit.fresh_data:
                say(console, _SAME)
            page = write_report(folder / files.REPORT, views)
            Console(stderr=True, highlight=False).print(f"The page is {page}.", soft_wrap=True)
        else:
            write_report(folder / files.REPORT, views)
        return 0

    @property
    def expression(self) -> str:
        """The method: ``fit(...)``, with the options as its arguments."""
        call = outermost(text := canonical(self.risk))
        words = {} if call.name == "fit" else {"risk": text}
        options = {name: vars(self.fit)[name] for name in ("steps", "learning_rate", "batch_size")}
        words |= call.keywords if call.name == "fit" else {}
        for name, value in options.items():
            is_given = value is not None and value != FitOptions.__dataclass_fields__[name].default
            if is_given and name in words:
                raise EvenhandError(f"{text!r:.80} has {name}= already: leave the option out.")
            words |= {name: repr(value)} if is_given else {}
        if "weighting" in words and "length" not in words:
            # What changes with the progress, such as mentornet_pd, needs to know how long this training is.
            words["length"] = repr(self.fit.rounds * int(words.get("steps", self.fit.steps)))
        if self.data.valid_fraction == 0.0 and self.fit.keep.startswith("best:valid"):
            raise EvenhandError(f"--keep {self.fit.keep} needs validation examples: give --valid-fraction.")
        places = call.positional if call.name == "fit" else []
        return canonical(
            f"fit({', '.join([*places, *(f'{name}={value}' for name, value in words.items())])})"
        )

    def _unmeasured(
        self, folder: Path, seeds: Sequence[int], views: Sequence[RunView], split: str
    ) -> list[str]:
        """On the metrics that the kept round of a seed lacks, a sentence about the first such seed."""
        asked = [metric.name for metric in resolved(self.fit.metrics or ())]
        sentences = [
            sentence
            for seed, view in zip(seeds, views, strict=True)
            for sentence in unmeasured(folder / f"seed-{seed}", view.clients[split], asked)
        ]
        return sentences[:1]

    @property
    def _folder(self) -> Path:
        return self.fit.out or default_folder("runs", "fit", Path(self.data.data).name)

    def _run(self, seed: int, folder: Path, *, alone: bool = True) -> RunCommand:
        """The run of one seed."""
        options = self.fit
        training = TrainingOptions(
            rounds=options.rounds,
            seed=seed,
            metrics=options.metrics,
            keep=options.keep,
            out=folder,
            overwrite=options.overwrite,
            quiet=options.quiet or not alone,
        )
        data = replace(self.data, data_seed=self.data.data_seed + (seed if options.fresh_data else 0))
        return RunCommand(method=self.expression, training=training, data=data, model=self.model)


def _drop(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)


def _summary(expression: str, seeds: Sequence[int], views: Sequence[RunView]) -> dict[str, Any]:
    """Of several seeds: the mean and the standard deviation of each number of each group."""
    groups: list[Mapping[str, Mapping[str, Mapping[str, float]]]] = [by_group(view) for view in views]

    def over_seeds(group: str, split: str, metric: str) -> dict[str, float]:
        values = [numbers[group][split][metric] for numbers in groups]
        return {"mean": float(np.mean(values)), "std": float(np.std(values))}

    return {
        "method": expression,
        "seeds": list(seeds),
        "groups": {
            group: {
                split: {metric: over_seeds(group, split, metric) for metric in metrics}
                for split, metrics in splits.items()
            }
            for group, splits in groups[0].items()
        },
    }
