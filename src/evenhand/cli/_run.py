"""``evenhand run``: train one method on one data set, and write a run folder.

From top to bottom: the command; a run recorded as it happens, every evaluation at once, and a complete run folder
whenever the run ends; what ``config.json`` says of it, which :mod:`evenhand.cli._restored` reads back.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from tyro.conf import Suppress

from evenhand.cli._arguments import changed, flat, typed
from evenhand.cli._data import DataOptions, idle, remarks, without_effect
from evenhand.cli._folder import claim, default_folder, free
from evenhand.cli._keep import BestRound, KeepRule, Results, best_so_far, copied, rule_of, with_best
from evenhand.cli._models import ModelOptions
from evenhand.cli._options import (
    LocalOptions,
    Recipe,
    TrainingOptions,
    check_headline,
    check_private,
    check_watch,
    trackers,
)
from evenhand.cli._terminal import remark, say, show_comparison, show_estimate, show_private
from evenhand.data import Features, FederatedDataset, hold_out_clients, load_features
from evenhand.errors import EvenhandError, ModelError
from evenhand.evaluation import feature_scales, is_share, primary_metric
from evenhand.evaluation.metrics import BACKDOOR, resolved
from evenhand.expressions import ExpressionError, parse, plugins
from evenhand.expressions.reading import plugins_in, shadowed
from evenhand.privacy.client_level import cohort_line
from evenhand.records import json_text, read_json, sum_of_file, uninterrupted, write_text, writing
from evenhand.report import (
    backdoor_line,
    communication_line,
    compare,
    headline_split,
    honest,
    in_words,
    latest,
    levels_in_words,
    newcomers_in_words,
    privacy_line,
    private_json,
    swing,
    write_report,
)
from evenhand.simulation import Checkpoint, Run, estimate, iterate, load_run
from evenhand.simulation import folder as files
from evenhand.simulation.saving import configuration, write_results, write_summary
from evenhand.systems import Systems, stragglers
from evenhand.testing import toy_model
from evenhand.text import counted, listed, quoted
from evenhand.types import Algorithm, Attack, Model, Params

# --- the command --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunCommand:
    """Train METHOD on data spread over clients; `run METHOD --help` shows all options."""

    method: Suppress[str]
    training: TrainingOptions = field(default_factory=TrainingOptions)
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    local: LocalOptions = field(default_factory=LocalOptions)

    def execute(self, *, with_remarks: bool | None = None) -> int:
        """Trains, writes the run folder and returns the exit code.

        Args:
          with_remarks: whether to print what to know about the data; None: unless the run is quiet.
        """
        run = replace(self, data=self.data.pooled()) if self.recipe.pools() else self
        return run._execute(not self.training.quiet if with_remarks is None else with_remarks)

    def _execute(self, with_remarks: bool) -> int:
        options = self.training
        names = (self.method[:60], Path(self.data.data).name, str(options.seed))
        folder = options.out or default_folder("runs", *names)
        trackers(options.watch, folder)  # one that is not installed is reported before anything is loaded
        with nullcontext() if options.dry_run else free(folder, overwrite=options.overwrite):
            data = self.data.load(quiet=not with_remarks)
            recipe = self.recipe
            if options.limit is not None:
                beside = recipe.beside.read(partial(self.data.labelled_rows, data))
                recipe = recipe._replace(beside=beside)
                recipe = recipe.funded(self._divided(data)[0], self.model.build(data.form))
            # Of data with clients of their own, the one client of pooled examples says nothing.
            clients = None if recipe.pools() and data.num_clients > 1 else self.data.clients
            complete = replace(self, method=recipe.text, data=replace(self.data, clients=clients))
            if options.dry_run:
                return complete._announce(data)
            return complete._start(data, folder, with_remarks)

    def _announce(self, data: FederatedDataset) -> int:
        """Prints what the run would take, and returns the exit code."""
        options, model = self.training, self.model.build(data.form)
        console = Console(stderr=True, quiet=options.quiet, highlight=False)
        say(console, *remarks(data))
        if (rule := rule_of(options.keep)) is not None:
            rule.check(data)
        data, _ = self._divided(data)
        algorithm = self._checked(model, console, data, resumed=False)
        expected = estimate(algorithm, data, **self._simulated(model, algorithm, data))
        show_estimate(expected, data.num_clients, Console(highlight=False))
        return 0

    def _simulated(self, model: Model, algorithm: Algorithm, data: FederatedDataset) -> dict[str, Any]:
        """The arguments of the simulation that decide what is computed."""
        options = self.training
        return {
            "rounds": options.rounds,
            "cohort": options.clients_per_round,
            "seed": options.seed,
            "eval_every": options.every,
            "systems": self.systems(model),
            "attack": self.attack(model),
            "lanes": options.lanes,
            "eval_clients": options.eval_clients,
            "metrics": options.metrics or (),
            "untrained": options.untrained,
            "masks": options.masks,
            "start": None if options.start is None else started(Path(options.start), algorithm.model, data),
        }

    def _start(self, data: FederatedDataset, folder: Path, with_remarks: bool) -> int:
        config, options = self.recorded(data), self.training
        if with_remarks:
            say(Console(stderr=True, highlight=False), *remarks(data))
            remark(*idle(flat(self), flat(RunCommand(self.method)), data), *shadowed(self.method))
            remark(*([] if options.config is None else changes(options.config, config)))
        return self.train(data, Place(folder, config, resumed=False))

    @property
    def recipe(self) -> Recipe:
        """The method before its model is known."""
        return Recipe(self.method, self.local.work, self.training.limit, self.training.beside)

    def recorded(self, data: FederatedDataset) -> dict[str, Any]:
        """What ``config.json`` holds of this run on ``data``."""
        unused = [*without_effect(flat(self), data), *([] if self.recipe.takes_work() else flat(self.local))]
        training, start = self.training, {}
        if training.start is not None:
            folder = Path(training.start).resolve()
            training = replace(training, start=str(folder))
            # Of the file: whether a resumed run begins from the same model is known without reading the arrays.
            start = {"start": {"sha256": load_run(folder).params_sum}}
        paths = {name: path.resolve() for name, path in training.beside.files.items()}
        training = replace(training, **{name: str(path) for name, path in paths.items()})
        beside = {"beside": {name: sum_of_file(path).sha256 for name, path in paths.items()}} if paths else {}
        options = flat(replace(self, data=self.data.rooted(), training=training))
        kept = {name: value for name, value in options.items() if name not in ELSEWHERE}
        texts = [self.method, *(kept[name] for name in ("attack", "systems") if name in kept)]
        used = {plugin.distribution: plugin.version for text in texts for plugin in plugins_in(text)}
        return {
            **configuration(self.method, kept, data),
            # The file keeps the options that have no effect, and reports leave them out.
            "without_effect": [name for name in kept if name in unused],
            **({"plugins": used} if used else {}),
            **start,
            **beside,
        }

    def train(self, data: FederatedDataset, place: Place) -> int:
        """Trains, or trains on, in a run folder, and returns the exit code."""
        options, model = self.training, self.model.build(data.form)
        if (rule := rule_of(options.keep)) is not None:
            rule.check(data)
        data, unseen = self._divided(data)
        console = Console(stderr=True, quiet=options.quiet, highlight=False)
        algorithm = self._checked(model, console, data, resumed=place.resumed)
        if (finding := feature_scales(data)) is not None:
            say(console, finding.sentence, style="yellow")
        if (sentence := cohort_line(algorithm, data.num_clients)) is not None:
            say(console, sentence)
        if options.start is not None and (sentence := rescaled(Path(options.start), data)):
            say(console, sentence, style="yellow")
        runs = iterate(
            algorithm,
            data,
            **self._simulated(model, algorithm, data),
            checkpoint=None
            if options.checkpoint == "off"
            else Checkpoint(place.folder / files.CHECKPOINT, options.checkpoint, fresh=not place.resumed),
            progress=console.is_terminal and not options.quiet,
            watch=trackers(options.watch, place.folder, place.config),
        )
        return record(runs, place, rounds=options.rounds, console=console, unseen=unseen)

    def _checked(self, model: Model, console: Console, data: FederatedDataset, *, resumed: bool) -> Algorithm:
        """The method, which fits the private metrics and the budget of privacy that were asked for."""
        algorithm = self.algorithm(model, console, data)
        check_private(self.training, algorithm.client_model)
        check_headline(self.training, algorithm.client_model)
        limit = self.training.limit
        return algorithm if limit is None else limit.checked(algorithm, data, resumed=resumed)

    def _divided(self, data: FederatedDataset) -> tuple[FederatedDataset, FederatedDataset | None]:
        """The clients that train, and those set aside."""
        share, seed = self.training.unseen, self.training.unseen_seed
        return hold_out_clients(data, share, seed=seed) if share else (data, None)

    def check(self, before: Recorded | None = None) -> None:
        """Builds the method and its parts for a toy model: faults are found before the data are loaded.

        Args:
          before: the configuration that the run starts from; a fault that it holds is reported with its file.
        """
        recorded = {} if before is None else {**before.options, "method": before.method}
        for name, text, build in (
            ("method", self.method, self.recipe.build),
            ("systems", self.training.systems, self.systems),
            ("attack", self.training.attack, self.attack),
            ("loss", self.model.loss, self.model.row_loss),
        ):
            path = before.path if before and recorded.get(name) == text else None
            with naming(path), suppress(ModelError):  # a toy model is not the user's
                build(toy_model())
        self.training.beside.check_used(self.method)
        metrics = resolved(self.training.metrics or ())
        check_watch(self.training.watch)
        check_private(self.training)
        check_headline(self.training)
        if (rule := rule_of(self.training.keep)) is not None:
            rule.check_metric([metric.name for metric in metrics])

    def algorithm(self, model: Model, console: Console, data: FederatedDataset | None = None) -> Algorithm:
        """The method; the ``console`` shows which options of local work it does without.

        Without data, for a model that is only applied, stand-ins have the place of the files beside the method.
        """
        recipe = self.recipe
        if data is not None:
            recipe = recipe._replace(beside=recipe.beside.read(partial(self.data.labelled_rows, data)))
        unused = " and ".join(" ".join(typed(*pair)) for pair in changed(self.local).items())
        if unused and not recipe.takes_work(model):
            sentence = f"{unused}: no effect, since {recipe.text:.80} sets its own local work."
            say(console, sentence, style="yellow")
        return recipe.build(model)

    def systems(self, model: Model) -> Systems | None:
        """Which clients are slow or drop out."""
        text, share = self.training.systems, self.training.stragglers
        if text is None:
            return stragglers(share) if share else None
        if share:
            raise EvenhandError("--systems and --stragglers exclude each other: give one of them.")
        return parse(text, Systems, model, lambda: self.local.work(model))

    def attack(self, model: Model) -> Attack | None:
        """What malicious clients do."""
        text = self.training.attack
        return None if text is None else parse(text, Attack, model, lambda: self.local.work(model))


def started(folder: Path, model: Model, data: FederatedDataset) -> Params:
    """The global parameters of an earlier run, from which another one begins.

    Raises:
      EvenhandError: there is no such run, or it has another model, or the same numbers of other inputs or classes.
    """
    saved = load_run(folder, model=model)
    if not saved.fits:
        raise EvenhandError(
            f"--start {folder}: its model differs from the one to be trained: name a run with the same --model, on "
            "examples of the same form."
        )
    named = [("classes", saved.form.names, data.form.names)]
    if (features := _features(folder)) is not None and data.features is not None:
        named.append(("inputs", features.inputs, data.features.inputs))
    for parts, before, now in named:
        if before and now and before != now:
            change = [f"{listed(names, 6)} only {place}" for names, place in _apart(before, now) if names]
            raise EvenhandError(
                f"--start {folder}: the {parts} of its model are not those of {data.name} "
                f"({'; '.join(change) or 'their order differs'}): give data with the same columns, categories and "
                "classes, or leave --start out."
            )
    return saved.params


def _apart(before: Sequence[str], now: Sequence[str]) -> list[tuple[list[str], str]]:
    """The names that only the earlier run has, and those that only the data have."""
    return [
        ([name for name in before if name not in {*now}], "there"),
        ([name for name in now if name not in {*before}], "here"),
    ]


def rescaled(folder: Path, data: FederatedDataset) -> str:
    """A sentence if the same model reads other numbers than in the run that it begins from; ``""`` if it does not."""
    features = _features(folder)
    if features is None or data.features is None or features == data.features:
        return ""
    return (
        f"Other training rows than those of {folder} set the scale of columns here, so that its model answers "
        "otherwise than there before the first round; --no-standardize in both runs leaves numbers as they are."
    )


def _features(folder: Path) -> Features | None:
    """How the run in a folder encoded its table; None if it had none."""
    return load_features(folder) if (folder / files.FEATURES).is_file() else None


# --- a run recorded as it happens ---------------------------------------------------------------------------


_MOST_PERSONAL = 2**32
"""Bytes of all personal models that a run folder keeps without being asked to."""


class Place(NamedTuple):
    """Where a run is written.

    Attributes:
      folder: the run folder.
      config: what goes into ``config.json``.
      resumed: whether the run continues from what the folder holds already.
      remarks: sentences to print once the run is known to start.
    """

    folder: Path
    config: Mapping[str, Any]
    resumed: bool
    remarks: tuple[str, ...] = ()

    @property
    def is_resumable(self) -> bool:
        """Whether the run saves its state; stopped before the first save, it starts over."""
        return self.config["options"]["checkpoint"] != "off"

    @property
    def rule(self) -> KeepRule | None:
        """Which round the results describe: the best by this rule, or None, the last."""
        return rule_of(self.config["options"].get("keep", "last"))

    def discards(self, run: Run) -> str:
        """Why the models that this run serves to single clients are not kept, as a sentence; empty if they are."""
        options = self.config["options"]
        if options.get("keep_personal"):
            return ""
        size = run.data.num_clients * sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
        reasons = {
            "--checkpoint off": not self.is_resumable,
            f"--keep {options.get('keep')}": self.rule is not None,
            f"they would take {size / 1e9:.1f} GB": size > _MOST_PERSONAL,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        return reason and f"Personal models are not kept ({reason}): --keep-personal keeps them."

    def begin(self, run: Run) -> None:
        """Writes the files as they are before the next round; lines that a killed run wrote beyond it are dropped."""
        remark(*self.remarks)
        if not self.resumed:
            claim(self.folder, checkpoint=self.is_resumable)
        config, metrics = json_text(self.config), files.metrics_text(run.history)
        files.begin_checksums(self.folder, config=config, metrics=metrics)
        _write_text(self.folder / files.CONFIG, config)
        if run.data.features is not None:
            _write_text(self.folder / files.FEATURES, json_text(run.data.features.to_json()))
        _write_text(self.folder / files.METRICS, metrics)


def record(
    runs: Iterator[Run],
    place: Place,
    *,
    rounds: int,
    console: Console,
    unseen: FederatedDataset | None = None,
) -> int:
    """Drives ``runs`` to the end, or to Ctrl-C, writes the run folder, and returns the exit code.

    Nothing is written before the first evaluation, so that bad input leaves no folder behind.

    Args:
      runs: the run so far at each evaluation.
      place: where the run is written.
      rounds: how many rounds were asked for.
      console: shows the progress, unless a live bar does.
      unseen: clients that take no part in the training, and are served at the end.
    """
    folder, rule = place.folder, place.rule
    last, best, interrupted, keeps = None, None, False, False
    try:
        for run in runs:
            with uninterrupted():
                if last is None:
                    if rule is not None:
                        rule.value(run.view())  # refuses a metric that the model does not have
                        best = (
                            best_so_far(folder, rule, int(run.history["round"][-1]))
                            if place.resumed
                            else None
                        )
                    place.begin(run)
                    keeps = run.has_personal_models and not place.discards(run)
                else:
                    files.append_metrics(folder, run.history)
                if rule is not None:
                    results = partial(_write_measured, run=run, place=place, unseen=unseen, personal=keeps)
                    best = with_best(folder, rule, best, run.view(), results)
                before, last = last, run
                if not keeps or best is not None:  # the files need only its metrics and global model
                    run.release()
            if not console.is_terminal and _tenth(run, rounds) > _tenth(before, rounds):
                row = {name: float(values[-1]) for name, values in run.history.items()}
                is_attacked = 0 < run.malicious.sum() < run.data.num_clients
                console.print(f"round {int(row['round'])} of {rounds}, {latest(row, honest=is_attacked)}")
    except KeyboardInterrupt:
        interrupted = True
    if last is None:
        remark("Stopped before the first evaluation, so nothing was written.")
        return 130
    if place.config["options"].get("diagnostics") and not interrupted:
        last = last.diagnosed()
    personal = keeps and not last.kept.is_gone
    results = partial(_write_measured, run=last, place=place, unseen=unseen, personal=personal)
    if rule is not None and best is not None:
        results = partial(copied, best=best, rule=rule, run=last)
    with uninterrupted():
        if rule is None:  # an edited configuration no longer asks for the best round
            shutil.rmtree(folder / files.BEST, ignore_errors=True)
        _finish(folder, last, rounds, results, interrupted=interrupted)
    if not console.quiet:
        _print_result(place, last, rounds, best, interrupted=interrupted)
    return 130 if interrupted else 0


def _tenth(run: Run | None, rounds: int) -> int:
    """How many tenths of the rounds are done; a log gets about ten lines, whatever the number of rounds."""
    return -1 if run is None else 10 * int(run.history["round"][-1]) // max(rounds, 1)


def _write_text(path: Path, text: str) -> None:
    with writing(path):
        write_text(path, text)


def _write_measured(
    folder: Path, *, run: Run, place: Place, unseen: FederatedDataset | None, personal: bool
) -> dict[str, Any]:
    """Writes the files that describe the run's latest round, and returns what the summary says about it."""
    about, options = write_results(folder, run, unseen=unseen, personal=personal), place.config["options"]
    if options.get("private_metrics"):
        about["private_metrics"] = _measured_privately(run, options.get("private_limit"))
    return about


def _measured_privately(run: Run, limit: float | None) -> dict[str, Any]:
    """What a server learns that sees no client's number, of every metric that has bounds, as JSON."""
    split = headline_split([honest(run.view())], primary_metric(run.clients["train"]))
    asked = [
        "accuracy",
        *(metric.name for metric in run.metrics if metric.name != BACKDOOR and is_share(metric.name)),
    ]
    largest: dict[str, float | None] = {name: None for name in asked if name in run.clients[split]}
    largest |= {} if limit is None else {"loss": limit}
    try:
        return private_json(*(run.private_summary(split, name, largest=x) for name, x in largest.items()))
    except EvenhandError as error:  # too few clients: no reason to lose what has been trained
        return private_json(refused=str(error))


def _finish(folder: Path, run: Run, rounds: int, results: Results, *, interrupted: bool) -> None:
    """Completes the run folder; ``results`` writes the files that describe the round that is kept."""
    (folder / files.REPORT).unlink(missing_ok=True)
    files.reopen_checksums(folder)
    _write_text(folder / files.METRICS, files.metrics_text(run.history))
    write_summary(folder, run, rounds=rounds, about=results(folder), interrupted=interrupted)
    files.seal(folder)
    write_report(folder / files.REPORT, [load_run(folder).view()])


def _print_result(place: Place, run: Run, rounds: int, best: BestRound | None, *, interrupted: bool) -> None:
    console, folder = Console(highlight=False), place.folder
    comparison = compare(load_run(folder).view())
    sizes = f"{run.data.train.rows:,} training and {run.data.test.rows:,} test examples"
    clients = f"{run.data.name}: {comparison.worded(counted(run.data.num_clients, 'client'))}, {sizes}"
    # The scales of features were said before the training.
    show_comparison(comparison, console, lines=[clients], without=["scales"])
    view, split, metric = comparison.runs[0], comparison.split, comparison.metric
    words = [describe(view, split, metric) for describe in (newcomers_in_words, in_words, levels_in_words)]
    for sentence in filter(None, words):
        say(console, sentence)
    if backdoor := view.info.get("backdoor"):
        say(console, backdoor_line(backdoor))
    if guarantee := view.info.get("privacy"):
        say(console, privacy_line(guarantee))
    if sentence := communication_line(view):
        say(console, sentence)
    show_private(view, console)
    swung = swing(run.history, split, metric)
    if (kept := view.info.get("kept")) is not None:
        say(console, f"{kept[:1].upper()}{kept[1:]}.")
        say(console, *unmeasured(folder, view.clients[split], [metric.name for metric in run.metrics]))
    elif swung is not None:
        say(console, f"Training has not settled: the {split} {metric} {swung.text}.")
    done = int(run.history["round"][-1])
    if interrupted:
        resume = f", and `evenhand resume {quoted(folder)}` continues" if place.is_resumable else ""
        say(console, f"Stopped after round {done} of {rounds}; the folder holds the results so far{resume}.")
    say(console, f"Report: {folder / files.REPORT}")
    say(console, *_about_models(place, run, best))


def unmeasured(folder: Path, measured: Collection[str], asked: Iterable[str]) -> Iterator[str]:
    """Which metrics that were asked for a run lacks, as it keeps an earlier round than the last, in a sentence."""
    if lacking := ",".join(name for name in asked if name not in measured):
        measures = (
            f"`evenhand predict {quoted(folder)} --data FILE --metrics {lacking}` measures the kept model"
        )
        yield f"{lacking}: not measured, because --metrics are of the last round only; {measures}."


def _about_models(place: Place, run: Run, best: BestRound | None) -> Iterator[str]:
    """What to know about the models in the folder, in sentences."""
    if place.rule is not None and best is None:
        yield f"--keep {place.rule.text}: no round has a finite value, so the results are those of the last round."
    if not run.has_personal_models:
        if place.config["options"].get("keep_personal"):
            yield "--keep-personal has no effect: the method has one model for all clients."
    elif (folder := place.folder / files.PERSONAL).is_dir():
        yield f"Personal models: {folder}"
    else:
        resume = f"`evenhand resume {quoted(place.folder)}`"
        later = f"The personal models are written when the run ends: {resume} continues it."
        yield place.discards(run) or later


# --- config.json: the method's expression, the options and the data -----------------------------------------


ELSEWHERE = {"method", "out", "overwrite", "quiet", "config", "dry_run"}
"""Fields that are recorded separately, or that say where numbers go and not what they are."""


class Recorded(NamedTuple):
    """What a ``config.json`` says of a run.

    Attributes:
      path: the file.
      method: an expression, canonical.
      options: name -> value.
      plugins: other packages that it used -> their versions.
    """

    path: Path
    method: str
    options: dict[str, Any]
    plugins: Mapping[str, str] = {}


def changes(path: Path, config: Mapping[str, Any]) -> list[str]:
    """Why a run with ``config``, made from the file ``path``, may give other numbers than the run of that file."""
    old = read_json(config_file(path))
    if files.dict_in(old, "data").get("fingerprint") != config["data"]["fingerprint"]:
        return [f"The data are not those of {path}, so the numbers will differ."]
    versions = files.dict_in(old, "versions")
    if (sentence := plugins.moved(path, files.dict_in(old, "plugins"))) is not None:
        return [sentence]
    moved = [name for name, version in config["versions"].items() if versions.get(name) != version]
    if moved:
        return [f"{', '.join(moved)} changed since {path} was written: the last digits may differ."]
    return []


def config_file(path: Path) -> Path:
    """A run folder stands for its ``config.json``; anything but a file is refused, as reading a pipe would wait."""
    if path.is_dir():
        path = path / files.CONFIG
    if path.exists() and not path.is_file():
        raise EvenhandError(f"{path} is not a file: name a run folder or the config.json of one.")
    return path


@contextmanager
def naming(path: Path | None) -> Generator[None]:
    """Names the file that a faulty expression comes from; None: it comes from the command line."""
    try:
        yield
    except ExpressionError as error:
        if path is None:
            raise
        raise EvenhandError(f"{path}: {error}") from None
