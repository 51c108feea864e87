"""``evenhand run``: train one method on one data set, and write a run folder."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from evenhand.cli._arguments import Composed, MethodChoice
from evenhand.cli._config import Recorded, changes, configuration, flat, naming
from evenhand.cli._data import DataOptions, check_labels, idle, remarks, without_effect
from evenhand.cli._folder import CHECKPOINT, free
from evenhand.cli._keep import rule_of
from evenhand.cli._options import (
    Budget,
    LocalOptions,
    ModelOptions,
    TrainingOptions,
    budget,
    check_trackers,
    of_run,
    trackers,
    with_noise,
)
from evenhand.cli._record import Place, record
from evenhand.cli._terminal import remark, say
from evenhand.data import FederatedDataset, hold_out_clients
from evenhand.errors import EvenhandError, ModelError
from evenhand.evaluation import feature_scales
from evenhand.evaluation.metrics import resolved
from evenhand.expressions import built
from evenhand.local import Work
from evenhand.simulation import Checkpoint, iterate
from evenhand.systems import Systems, stragglers
from evenhand.testing import toy_model
from evenhand.types import Algorithm, Attack, Model

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """Train METHOD on data spread over clients; `run METHOD --help` shows all options."""

    method: Annotated[MethodChoice, arg(name="")]
    training: TrainingOptions = field(default_factory=TrainingOptions)
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    local: LocalOptions = field(default_factory=LocalOptions)

    def execute(self) -> int:
        """Trains, writes the run folder and returns the exit code."""
        options = self.training
        folder = self._default_folder() if options.out is None else options.out
        trackers(options.watch, folder)  # one that is not installed is told before anything is loaded
        with free(folder, overwrite=options.overwrite):
            check_labels(self.data)
            data = self.data.load()
            return self._funded(data)._start(data, folder)

    def _start(self, data: FederatedDataset, folder: Path) -> int:
        config, options = self.recorded(data), self.training
        if not options.quiet:
            for sentence in remarks(data):
                say(Console(file=sys.stderr, highlight=False), sentence)
            cautions = idle(flat(self), flat(Run(self.method)), data)
            cautions += [] if options.config is None else changes(options.config, config)
            for sentence in cautions:
                remark(sentence)
        return self.train(data, Place(folder, config, resumed=False))

    def _funded(self, data: FederatedDataset) -> Run:
        """The same run, with noise for its budget where the method has none."""
        if (limit := self.budget) is None:
            return self
        trained = self._divided(data)[0]

        def method(text: str) -> Algorithm:
            with suppress(ModelError):  # the toy model is not the user's
                return replace(self, method=Composed(text)).algorithm(toy_model(), Console(quiet=True))
            return replace(self, method=Composed(text)).algorithm(self.model.build(data), Console(quiet=True))

        return replace(self, method=Composed(limit.expression(self.method.text(), trained, method)))

    @property
    def budget(self) -> Budget | None:
        """What the run may spend of its clients' privacy."""
        return budget(self.training.epsilon, self.training.delta, self.training.rounds)

    def recorded(self, data: FederatedDataset) -> dict[str, Any]:
        """What ``config.json`` holds of this run on ``data``."""
        options = flat(self)
        unused = without_effect(options, data)
        if not self._has_local_options():
            unused += flat(self.local)
        return configuration(self.method.text(), replace(self, data=self.data.rooted()), data, unused)

    def _has_local_options(self) -> bool:
        """Whether the method takes its local work from the options, rather than from its expression."""
        asked: list[bool] = []

        def work() -> Work:
            asked.append(True)
            return self.local.work(toy_model())

        text = self.method.text() if self.training.epsilon is None else with_noise(self.method.text(), 1.0)
        with suppress(ModelError):  # the toy model is not the user's
            built(text, Algorithm, toy_model(), work)
        return bool(asked)

    def train(self, data: FederatedDataset, place: Place) -> int:
        """Trains, or trains on, in a run folder, and returns the exit code."""
        options, model = self.training, self.model.build(data)
        if (rule := rule_of(options.keep)) is not None:
            rule.check(data)
        data, unseen = self._divided(data)
        console = Console(stderr=True, quiet=options.quiet, highlight=False)
        algorithm = self.algorithm(model, console)
        if (limit := self.budget) is not None:
            algorithm = limit.checked(algorithm, data, resumed=place.resumed)
        if (finding := feature_scales(data)) is not None:
            say(console, finding.sentence, "yellow")
        checkpoint = None
        if options.checkpoint != "off":
            checkpoint = Checkpoint(place.folder / CHECKPOINT, options.checkpoint, fresh=not place.resumed)
        runs = iterate(
            algorithm,
            data,
            rounds=options.rounds,
            cohort=None if options.cohort == "all" else options.cohort,
            seed=options.seed,
            eval_every=options.every,
            systems=self.systems(model),
            attack=self.attack(model),
            checkpoint=checkpoint,
            progress=console.is_terminal and not options.quiet,
            lanes=options.lanes,
            eval_clients=options.eval_clients,
            metrics=options.metrics or (),
            untrained=options.untrained,
            watch=[
                of_run(each, place.folder, place.config) for each in trackers(options.watch, place.folder)
            ],
        )
        return record(runs, place, rounds=options.rounds, console=console, unseen=unseen)

    def _divided(self, data: FederatedDataset) -> tuple[FederatedDataset, FederatedDataset | None]:
        """The clients that train, and those set aside."""
        return hold_out_clients(data, self.training.unseen) if self.training.unseen else (data, None)

    def check(self, before: Recorded | None = None) -> None:
        """Builds the method, the systems and the attack for a toy model: faults are found before the data are loaded.

        Args:
          before: the configuration that the run starts from; a fault that it holds is reported with its file.
        """
        model, path = toy_model(), None if before is None else before.path
        is_same = before is not None and before.method == self.method.text()
        with naming(path if is_same else None), suppress(ModelError):  # the toy model is not the user's
            self.algorithm(model, Console(quiet=True))
        for name, build in (("systems", self.systems), ("attack", self.attack)):
            is_same = before is not None and before.options.get(name) == vars(self.training)[name]
            with naming(path if is_same else None):
                build(model)
        metrics = resolved(self.training.metrics or ())
        check_trackers(self.training.watch)
        if (rule := rule_of(self.training.keep)) is not None:
            rule.check_metric([metric.name for metric in metrics])

    def algorithm(self, model: Model, console: Console) -> Algorithm:
        """The method; the ``console`` shows which options of local work it does without."""
        asked: list[bool] = []

        def work() -> Work:
            asked.append(True)
            return self.local.work(model)

        text = self.method.text()
        text = text if self.training.epsilon is None else with_noise(text, 1.0)
        algorithm = built(text, Algorithm, model, work)
        if not asked and self.local.idle:
            idle = " and ".join(self.local.idle)
            say(console, f"{idle}: no effect, since {text:.80} sets its own local work.", "yellow")
        return algorithm

    def systems(self, model: Model) -> Systems | None:
        """Which clients are slow or drop out."""
        text, share = self.training.systems, self.training.stragglers
        if text is None:
            return stragglers(share) if share else None
        if share:
            raise EvenhandError("--systems and --stragglers exclude each other: give one of them.")
        return built(text, Systems, model, lambda: self.local.work(model))

    def attack(self, model: Model) -> Attack | None:
        """What malicious clients do."""
        text = self.training.attack
        return None if text is None else built(text, Attack, model, lambda: self.local.work(model))

    def _default_folder(self) -> Path:
        names = (self.method.text()[:60], Path(self.data.data).name)
        words = [re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names]
        return Path("runs") / f"{'-'.join(words)}-{self.training.seed}"
