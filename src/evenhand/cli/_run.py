"""``evenhand run``: train one method on one data set, and write a run folder."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import arg

from evenhand.cli._config import changes, configuration, flat
from evenhand.cli._data import DataOptions, remarks
from evenhand.cli._expression import built
from evenhand.cli._folder import CHECKPOINT, free
from evenhand.cli._idle import check_labels, idle
from evenhand.cli._local import LocalOptions
from evenhand.cli._methods import Choice
from evenhand.cli._models import ModelOptions
from evenhand.cli._record import Place, record
from evenhand.cli._terminal import remark, say
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.evaluation import feature_scales
from evenhand.local import Work
from evenhand.simulation import Checkpoint, iterate
from evenhand.systems import Systems, stragglers
from evenhand.text import visible
from evenhand.types import Algorithm, Model

__all__ = ["Run"]

_EVALUATIONS = 50
_DEFAULT_EVERY = f"(default: {_EVALUATIONS} times a run)"
_DEFAULT_OUT = "(default: runs/METHOD-DATA-SEED)"


@dataclass(frozen=True)
class Run:
    """Train METHOD on data spread over clients; `run METHOD --help` shows all options."""

    method: Annotated[Choice, arg(name="")]
    data: Annotated[DataOptions, arg(name="")] = field(default_factory=DataOptions)
    model: Annotated[ModelOptions, arg(name="")] = field(default_factory=ModelOptions)
    local: Annotated[LocalOptions, arg(name="")] = field(default_factory=LocalOptions)
    rounds: int = 50
    """rounds of communication T"""
    cohort: int | Literal["all"] = "all"
    """clients drawn per round m"""
    stragglers: float = 0.0
    """share of each cohort that is slow and does only part of its work"""
    systems: Annotated[str | None, arg(metavar="SYSTEMS", help_behavior_hint="(default: none)")] = None
    """which clients are slow or drop out, instead of --stragglers: 'chain(stragglers(0.5), dropouts(0.1))'"""
    seed: int = 0
    """seed of the initial model, cohorts, batches and stragglers"""
    eval_every: Annotated[int | None, arg(metavar="INT", help_behavior_hint=_DEFAULT_EVERY)] = None
    """rounds between two evaluations of every client"""
    eval_clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None
    """evaluate only so many clients, drawn once per run; metrics, clients.csv and report cover these"""
    lanes: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: from the device)")] = None
    """clients trained side by side"""
    checkpoint: float | Literal["off"] = 10.0
    """seconds between two saves of the state, for `evenhand resume`; 0: at each evaluation; off: none"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_DEFAULT_OUT)] = None
    """the run folder"""
    overwrite: bool = False
    """replace an earlier run in that folder"""
    quiet: bool = False
    """print nothing but errors"""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """start from the config.json of an earlier run; options given here take precedence"""

    def execute(self) -> int:
        """Trains, writes the run folder and returns the exit code."""
        folder = self._default_folder() if self.out is None else self.out
        with free(folder, overwrite=self.overwrite):
            check_labels(self.data)
            data = self.data.load()
            config = self.recorded(data)
            if not self.quiet:
                for sentence in remarks(data):
                    print(visible(sentence), file=sys.stderr)
                cautions = idle(flat(self), flat(Run(self.method)), data)
                cautions += [] if self.config is None else changes(self.config, config)
                for sentence in cautions:
                    remark(sentence)
            return self.train(data, Place(folder, config, resumed=False))

    @property
    def every(self) -> int:
        """Rounds between two evaluations."""
        return max(1, self.rounds // _EVALUATIONS) if self.eval_every is None else self.eval_every

    def recorded(self, data: FederatedDataset) -> dict[str, Any]:
        """What ``config.json`` holds of this run on ``data``."""
        return configuration(self.method.text(), replace(self, data=self.data.rooted()), data)

    def train(self, data: FederatedDataset, place: Place) -> int:
        """Trains, or trains on, in a run folder, and returns the exit code."""
        model = self.model.build(data)
        console = Console(stderr=True, quiet=self.quiet, highlight=False)
        algorithm = self._algorithm(model, console)
        if (finding := feature_scales(data)) is not None:
            say(console, finding.sentence, "yellow")
        checkpoint = None
        if self.checkpoint != "off":
            checkpoint = Checkpoint(place.folder / CHECKPOINT, self.checkpoint, fresh=not place.resumed)
        runs = iterate(
            algorithm,
            data,
            rounds=self.rounds,
            cohort=None if self.cohort == "all" else self.cohort,
            seed=self.seed,
            eval_every=self.every,
            systems=self._systems(model),
            checkpoint=checkpoint,
            progress=console.is_terminal and not self.quiet,
            lanes=self.lanes,
            eval_clients=self.eval_clients,
        )
        return record(runs, place, rounds=self.rounds, console=console)

    def _algorithm(self, model: Model, console: Console) -> Algorithm:
        asked: list[bool] = []

        def work() -> Work:
            asked.append(True)
            return self.local.work(model)

        text = self.method.text()
        algorithm = built(text, Algorithm, model, work)
        if not asked and self.local.idle:
            idle = " and ".join(self.local.idle)
            say(console, f"{idle}: no effect, since {text:.80} sets its own local work.", "yellow")
        return algorithm

    def _systems(self, model: Model) -> Systems | None:
        if self.systems is None:
            return stragglers(self.stragglers) if self.stragglers else None
        if self.stragglers:
            raise EvenhandError("--systems and --stragglers exclude each other: give one of them.")
        return built(self.systems, Systems, model, lambda: self.local.work(model))

    def _default_folder(self) -> Path:
        name, _, arguments = self.method.text().partition("(")
        method = self.method.text()[:60] if "(" in arguments else name
        words = [re.sub(r"[^\w.-]+", "-", word).strip("-") for word in (method, Path(self.data.data).name)]
        return Path("runs") / f"{'-'.join(words)}-{self.seed}"
