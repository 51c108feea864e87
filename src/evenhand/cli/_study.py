"""``evenhand study``: tune several methods fairly over several seeds, and say which differences are real.

From top to bottom: the options and the command; the plan in a TOML file, as words of the command line; ``--dry-run``,
which says about how long the runs take; what a study has found, for a terminal; the command as a person types it.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from evenhand import studies
from evenhand.cli._arguments import METHODS
from evenhand.cli._data import DataOptions, check_labels, remarks
from evenhand.cli._folder import PAGE
from evenhand.cli._options import (
    GridOptions,
    ModelOptions,
    budget,
    check_trackers,
    several,
    trackers,
    with_noise,
)
from evenhand.cli._terminal import difference_table, metric_table, overview, say
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, ModelError, perhaps, whole_number
from evenhand.evaluation import OF_THE_DATA, least_pairs
from evenhand.evaluation.metrics import resolved
from evenhand.expressions import Braced, braced, built
from evenhand.local import Work
from evenhand.report import caution, compare, metric_remarks, verdict
from evenhand.simulation import iterate
from evenhand.studies import Family, Halving, Rule, study
from evenhand.systems import Systems, stragglers
from evenhand.testing import toy_model
from evenhand.text import counted
from evenhand.types import Algorithm, Attack, Model

__all__ = [
    "Study",
    "planned",
]


# --- the command --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyOptions:
    """How long to train, with which seeds, how settings are chosen, and where to write the results."""

    rounds: int = 50
    """rounds of communication T"""
    seeds: Annotated[str, arg(metavar="INT|A,B,C")] = "6"
    """how many seeds, or which; no difference between two methods can be significant with fewer than 6"""
    tuning_seeds: Annotated[str | None, arg(metavar="INT|A,B,C", help_behavior_hint="(default: none)")] = None
    """choose settings with so many further seeds, or with these; --seeds then run the chosen settings alone"""
    select: Annotated[str, arg(metavar="SPLIT:STATISTIC[:METRIC]")] = "valid:mean"
    """what chooses the setting of each method: valid:mean, valid:worst10, valid:worst10:auc, train:variance, ..."""
    within: float = 0.0
    """settings this close to the best are good enough, and --then decides between them"""
    then: Annotated[str | None, arg(metavar="STATISTIC", help_behavior_hint="(default: none)")] = None
    """the statistic that decides between settings that are good enough, such as variance"""
    baseline: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="(default: the first)")] = None
    """the method that the others are compared with"""
    cohort: int | Literal["all"] = "all"
    """clients drawn per round m"""
    stragglers: Annotated[str, arg(metavar="FLOAT,...")] = "0"
    """shares of each cohort that are slow; several are studied one by one"""
    systems: Annotated[str | None, arg(metavar="SYSTEMS", help_behavior_hint="(default: none)")] = None
    """which clients are slow or drop out, instead of --stragglers; 'dropouts({0.1, 0.5})' are studied one by one"""
    attack: Annotated[str | None, arg(metavar="ATTACK", help_behavior_hint="(default: none)")] = None
    """what malicious clients do: 'sign_flip(0.2)'; 'sign_flip({0, 0.2, 0.4})' are studied one by one"""
    epsilon: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: no limit)")] = None
    """privacy budget of each run of a private method; without a noise_multiplier, the least that suffices is used"""
    delta: Annotated[
        float | None,
        arg(metavar="FLOAT", help_behavior_hint="(default: a power of ten, at most 1 / clients)"),
    ] = None
    """the probability that goes with --epsilon"""
    fresh_data: bool = False
    """spread, split or make the data anew for each seed"""
    eval_every: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 10 times a run)")] = (
        None
    )
    """rounds between two evaluations of every client"""
    eval_clients: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None
    """evaluate only so many clients, drawn once per run"""
    metrics: Annotated[str | None, arg(metavar="METRIC,...", help_behavior_hint="(default: none)")] = None
    """further metrics of each client, measured after the last round: auc, macro_f1, ...; see `evenhand list metrics`"""
    untrained: Literal["global", "initial"] = "global"
    """what clients are served whose personal model never trained: the current global model, or the initial model"""
    watch: Annotated[str | None, arg(metavar="TRACKER,...", help_behavior_hint="(default: none)")] = None
    """who else is told what is measured: tensorboard (files in the folder), mlflow, wandb"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: studies/METHODS-DATA)")] = (
        None
    )
    """the study's folder; started again with it, a study repeats nothing that has ended"""
    halving: Annotated[
        int | None, arg(metavar="ROUNDS", help_behavior_hint="(default: all run to the end)")
    ] = None
    """after so many rounds only the best third of each method's settings goes on; after three times as many, again"""
    checkpoint: float = 30.0
    """seconds between two saves of a run that has not ended; 0: at each evaluation"""
    dry_run: bool = False
    """say how many runs there are and about how long they take, and train nothing else"""
    plan: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """methods and options from a TOML file; those given here take precedence"""
    quiet: bool = False
    """print nothing but errors"""


@dataclass(frozen=True)
class Study:
    """Train METHODS with every choice of their hyper-parameters, over several seeds, and compare them at their best."""

    methods: Annotated[Positional[tuple[str, ...]], arg(metavar="METHOD METHOD ...")] = ()
    """names or expressions; values in braces are all tried: 'fedprox(mu={0.1, 1})'"""
    study: StudyOptions = field(default_factory=StudyOptions)
    grid: GridOptions = field(default_factory=GridOptions)
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)

    def execute(self) -> int:
        """Runs the study, writes its folder and returns the exit code."""
        options, console = self.study, Console(stderr=True, quiet=self.study.quiet, highlight=False)
        methods, systems, attacks = self._methods(), self._systems(), self._attacks()
        folder = self._default_folder() if options.out is None else options.out
        watching = trackers(options.watch, folder)
        check_labels(self.data)
        data = self.data.load()
        for sentence in remarks(data):
            say(console, sentence)
        if (caution := self._too_few()) is not None:
            say(console, caution, "yellow")
        model = self.model.build(data)
        families = {name: self._family(each, model, data) for name, each in methods.items()}
        private = self._private(methods, families)
        for sentence in private.values():
            say(console, sentence)
        if options.dry_run:
            axes = {name: self._axes(methods[name], family) for name, family in families.items()}
            cases = len(systems or [0]) * len(attacks or [0])
            tuning, seeds = (cases * _count(of) for of in (self._tuning_seeds(), self._seeds()))
            how = {"cohort": self._cohort, "eval_every": self._every}
            announce(families, axes, data, (tuning, seeds) if tuning else (seeds, 0), options.rounds, how)
            return 0
        try:
            found = study(
                families,
                self._drawn if options.fresh_data else data,
                rounds=options.rounds,
                seeds=self._seeds(),
                tuning_seeds=self._tuning_seeds(),
                grid={name: self._axes(methods[name], families[name]) for name in families},
                select=self._rule(),
                baseline=options.baseline,
                cohort=self._cohort,
                eval_every=self._every,
                systems=None if systems is None else {name: make(model) for name, make in systems.items()},
                attack=None if attacks is None else {name: make(model) for name, make in attacks.items()},
                eval_clients=options.eval_clients,
                metrics=options.metrics or (),
                untrained=options.untrained,
                folder=folder,
                halving=None if options.halving is None else Halving(options.halving),
                checkpoint=options.checkpoint,
                progress=console.is_terminal and not options.quiet,
                watch=watching,
                about=self._about() | private,
            )
        except KeyboardInterrupt:
            ended = len(list((folder / "runs").glob("*/result.json")))
            kept = f"{folder} keeps the {ended} runs that have ended: the same command goes on, and writes the page."
            say(console, f"Interrupted. {kept}", "yellow")
            raise
        _finish(found, folder, Console(highlight=False, quiet=options.quiet))
        return 0

    def check(self) -> None:
        """Builds every setting for a toy model, so that faults are found before the data are loaded."""
        model = toy_model()
        for each in self._methods().values():
            with suppress(ModelError):  # the toy model is not the user's
                family = self._family(each, model)
                axes = self._axes(each, family)
                for choice in itertools.product(*axes.values()):
                    family.make(dict(zip(axes, choice, strict=True)))
        for make in [*(self._systems() or {}).values(), *(self._attacks() or {}).values()]:
            make(model)
        self._seeds()
        self._tuning_seeds()
        self._rule()
        resolved(self.study.metrics or ())
        options, names = self.study, list(self._methods())
        check_trackers(options.watch)
        for name in ("rounds", "eval_every", "eval_clients"):
            if (value := vars(options)[name]) is not None:
                whole_number(name, value, 1)
        if not 0 <= options.checkpoint < math.inf:
            raise EvenhandError(f"--checkpoint {options.checkpoint}: give seconds, at least 0.")
        if options.halving is not None:
            whole_number("halving", options.halving, 1)
        if options.baseline is not None and options.baseline not in names:
            raise EvenhandError(
                f"--baseline {options.baseline!r:.40}: there is no such method{perhaps(options.baseline, names)}."
            )

    def _methods(self) -> dict[str, Braced]:
        """Name -> expression."""
        if not self.methods:
            raise EvenhandError(
                "study needs methods, such as `evenhand study fedavg 'fedprox(mu={0.1, 1})'`."
            )
        plain = {name: f"{name.replace('-', '_')}()" for name in METHODS}
        found: dict[str, Braced] = {}
        for text in self.methods:
            each = braced(plain.get(text.replace("_", "-"), text))
            if any(each.text == other.text for other in found.values()):
                raise EvenhandError(f"study has {text!r:.60} twice: give each method once.")
            found[each.name if each.name not in found else each.text] = each
        return found

    def _family(self, each: Braced, model: Model, data: FederatedDataset | None = None) -> Family:
        """The methods of an expression; an expression with local work of its own needs none of the grid.

        A budget of privacy is met for ``data``; without them, the noise is any that a method can have.
        """
        asked: list[bool] = []
        limit = budget(self.study.epsilon, self.study.delta, self.study.rounds)
        funded: dict[str, str] = {}  # the search for noise takes a second, and step sizes do not change it

        def make(values: Mapping[str, Any]) -> Algorithm:
            def work() -> Work:
                asked.append(True)
                return self.grid.work(model, values)

            def method(text: str) -> Algorithm:
                return built(text, Algorithm, model, work)

            text = each.fill(values)
            if limit is None:
                return method(text)
            algorithm = method(with_noise(text, 1.0))
            if data is None or algorithm.privacy is None:
                return algorithm
            if text not in funded:
                funded[text] = limit.expression(text, data, method)
            return limit.checked(method(funded[text]), data)

        make(
            {name: of[0] for name, of in each.axes.items()}
            | {name: of[0] for name, of in self.grid.axes.items() if name not in each.axes}
        )
        local = [name for name in self.grid.axes if name not in each.axes] if asked else []
        return Family((*local, *each.axes), make)

    def _private(self, methods: Mapping[str, Braced], families: Mapping[str, Family]) -> dict[str, str]:
        """What the page and the terminal say about the budget of privacy; nothing without one."""
        if self.study.epsilon is None:
            return {}
        firsts = {
            name: family.make({axis: values[0] for axis, values in self._axes(methods[name], family).items()})
            for name, family in families.items()
        }
        private = [name for name, method in firsts.items() if method.privacy is not None]
        others = [name for name in firsts if name not in private]
        if not private:
            raise EvenhandError(
                f"--epsilon is for methods that guarantee privacy, and none of {', '.join(others)} does: try "
                "'dp_fedavg(clip=1)'."
            )
        text = f"Each run of {', '.join(private)} stays within epsilon {self.study.epsilon:g}."
        return {
            "privacy budget": text + (f" No privacy is guaranteed by {', '.join(others)}." if others else "")
        }

    def _axes(self, each: Braced, family: Family) -> dict[str, list[Any]]:
        return {name: (self.grid.axes | dict(each.axes))[name] for name in family.arguments}

    def _systems(self) -> dict[str, Callable[[Model], Systems | None]] | None:
        """Name -> systems, for several of them; None for none at all."""
        options = self.study
        shares = several("stragglers", options.stragglers, float)
        if options.systems is None:
            if shares == [0.0]:
                return None
            return {f"stragglers({share:g})": _slow(share) for share in shares}
        if shares != [0.0]:
            raise EvenhandError("--systems and --stragglers exclude each other: give one of them.")
        return self._each(options.systems, Systems)

    def _attacks(self) -> dict[str, Callable[[Model], Any]] | None:
        """Name -> attack, for several of them; None for none at all."""
        return None if self.study.attack is None else self._each(self.study.attack, Attack)

    def _each(self, text: str, kind: type) -> dict[str, Callable[[Model], Any]]:
        """What an expression stands for with each choice of the values in its braces, by its text."""
        each = braced(text)
        choices = itertools.product(*each.axes.values())
        texts = [each.fill(dict(zip(each.axes, choice, strict=True))) for choice in choices]

        def make(text: str) -> Callable[[Model], Any]:
            return lambda model: built(text, kind, model, lambda: self.grid.work(model, {}))

        return {text: make(text) for text in texts}

    def _seeds(self) -> int | list[int]:
        return _seeds("seeds", self.study.seeds)

    def _tuning_seeds(self) -> int | list[int] | None:
        text = self.study.tuning_seeds
        return None if text is None else _seeds("tuning_seeds", text)

    def _too_few(self) -> str | None:
        """A sentence, before anything is trained, where no difference between the methods can be significant."""
        count, others = _count(self._seeds()), len(self._methods()) - 1
        least = least_pairs(max(1, others))
        if others < 1 or count >= least:
            return None
        seeds = counted(count, "seed")
        return f"With {seeds} no difference between these methods can be significant: use at least {least}."

    def _rule(self) -> Rule:
        parts = self.study.select.split(":")
        if len(parts) not in (2, 3):
            raise EvenhandError(
                f"--select {self.study.select!r:.40} is not understood: write SPLIT:STATISTIC or "
                "SPLIT:STATISTIC:METRIC, e.g. valid:mean or valid:worst10:auc."
            )
        split, statistic, metric = *parts[:2], parts[2] if parts[2:] else None
        return Rule(split, statistic, self.study.within, self.study.then, metric).checked()

    @property
    def _cohort(self) -> int | None:
        return None if self.study.cohort == "all" else self.study.cohort

    @property
    def _every(self) -> int:
        return max(1, self.study.rounds // 10) if self.study.eval_every is None else self.study.eval_every

    def _drawn(self, seed: int) -> FederatedDataset:
        return replace(self.data, data_seed=self.data.data_seed + seed).load()

    def _about(self) -> dict[str, Any]:
        """What the page tells of the runs: what decides their numbers, and the command."""
        parts: dict[str, Any] = {**asdict(self.data), **asdict(self.model), **asdict(self.grid)}
        kept = {name: value for name, value in parts.items() if value not in (None, "", (), False)}
        options = (self.study, self.grid, self.data, self.model)
        return kept | {"command": command("study", self.methods, options, {"quiet", "plan", "dry_run"})}

    def _default_folder(self) -> Path:
        names = (*[name[:30] for name in self._methods()][:4], Path(self.data.data).name)
        words = [re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names]
        return Path("studies") / "-".join(words)


def _finish(found: studies.Study, folder: Path, console: Console) -> None:
    """Prints what the study shows, and writes its tables and its page."""
    for case in found.cases:
        show_study(found.under(case), console)
    for sentence in found.remarks:
        say(console, sentence, "yellow")
    for name in ("csv", "md", "tex"):
        found.export(folder / f"settings.{name}")
        found.export(folder / f"methods.{name}", "methods")
    say(console, f"Report: {found.report(folder / PAGE)}")


def _slow(share: float) -> Callable[[Model], Systems | None]:
    return lambda model: stragglers(share) if share else None


# --- --plan: methods and options in a TOML file, as words of the command line -------------------------------


def planned(words: Sequence[str]) -> list[str]:
    """The words of a study, with those that its ``--plan`` stands for before them.

    Raises:
      EvenhandError: the file cannot be read, or holds something else than options.
    """
    path = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--plan":
            path = Path(value if equals else following)
    if path is None:
        return list(words)
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise EvenhandError(f"--plan {path}: there is no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvenhandError(f"--plan {path} is not TOML ({error}).") from None
    methods = found.pop("methods", [])
    if not isinstance(methods, list) or not all(isinstance(each, str) for each in methods):
        raise EvenhandError(f"--plan {path}: methods must be a list of texts.")
    rest = [word for i, word in enumerate(words) if not _is_plan(words, i)]
    given = list(itertools.takewhile(lambda word: not word.startswith("-"), rest[1:]))
    return [words[0], *(given or methods), *_plan_words(path, found), *rest[1 + len(given) :]]


def _plan_words(path: Path, found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            raise EvenhandError(f"--plan {path}: {name} is a table, where an option belongs.")
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}"
        else:
            is_seeds = name in ("seeds", "tuning_seeds")
            alone = is_seeds and isinstance(value, list) and len(value) == 1  # that seed, not so many
            yield f"{option}={','.join(map(str, value)) if isinstance(value, list) else value}{',' * alone}"


def _is_plan(words: Sequence[str], i: int) -> bool:
    """Whether a word is ``--plan``, or its value."""
    return words[i].partition("=")[0] == "--plan" or (i > 0 and words[i - 1] == "--plan")


# --- --dry-run: how many runs there are, and about how long they take ---------------------------------------


def _seeds(name: str, text: str) -> int | list[int]:
    """How many seeds, or which."""
    found = several(name, text, int)
    if "," not in text:
        return whole_number(name, found[0], 1, 10_000)
    return [whole_number(name, seed, 0, 2**32 - 1) for seed in found]


def _count(seeds: int | list[int] | None) -> int:
    return len(seeds) if isinstance(seeds, list) else seeds or 0


def announce(
    families: Mapping[str, Family],
    axes: Mapping[str, Mapping[str, Sequence[Any]]],
    data: FederatedDataset,
    each: tuple[int, int],
    rounds: int,
    how: Mapping[str, Any],
) -> None:
    """Prints how many runs there are of each method, and about how long they take one by one.

    Args:
      families: the methods.
      axes: method -> hyper-parameter -> its values.
      data: the clients.
      each: runs of each setting, and further runs of each chosen one.
      rounds: of a run.
      how: the cohort, and the rounds between two evaluations.
    """
    total, runs = 0.0, 0
    for name, family in families.items():
        mine = each[0] * math.prod(map(len, axes[name].values())) + each[1]
        first = family.make({axis: values[0] for axis, values in axes[name].items()})
        seconds = _seconds_per_run(first, data, rounds, how)
        print(f"{name}: {mine} runs of {rounds} rounds, about {_duration(seconds)} each")
        total, runs = total + mine * seconds, runs + mine
    print(
        f"{runs} runs, about {_duration(total)} one by one and without compilation; small models train side by side in "
        "less, and runs that have ended are not repeated."
    )


def _seconds_per_run(
    algorithm: Algorithm, data: FederatedDataset, rounds: int, how: Mapping[str, Any]
) -> float:
    """Of one run, from the first rounds of another."""
    every = min(how["eval_every"], 5)
    some: dict[str, Any] = {**how, "rounds": min(2 * every, rounds), "eval_every": every}
    for _ in iterate(algorithm, data, **some):  # compiles, which most runs need not
        pass
    times = [time.perf_counter(), *(time.perf_counter() for _ in iterate(algorithm, data, **some))]
    training = (times[-1] - times[-2]) * rounds / every if len(times) > 2 else 0.0
    return times[1] - times[0] + training


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


# --- what a study has found ---------------------------------------------------------------------------------


def show_study(found: studies.Study, console: Console) -> None:
    """Prints the methods at their chosen settings under one condition, and how far they differ."""
    case = ", ".join(f"{name} {value}" for name, value in found.cases[0].items())
    chosen = [line.setting for line in found.table() if line.setting is not None]
    if case:
        console.print()
        say(console, case, "bold")
    say(console, f"Chosen: {'; '.join(str(each._replace(case={})) for each in chosen) or 'nothing'}.")
    if not chosen:
        return
    of = compare({each.method: found.views(each.method) for each in chosen}, found.metric)
    for notice in of.notices:
        if notice.finding.kind not in OF_THE_DATA:  # those are among the study's remarks
            say(console, notice.text, "yellow")
    console.print(overview(of))
    if len(chosen) > 1:
        say(console, verdict(of))
    if noise := caution(of):
        say(console, noise)
    if (table := metric_table(of)) is not None:
        console.print(table)
    for sentence in metric_remarks(of):
        say(console, sentence)
    if (table := difference_table(of, found.baseline)) is not None:
        console.print(table)


# --- the command, from its options --------------------------------------------------------------------------


def command(name: str, words: Sequence[str], options: Sequence[Any], without: Collection[str] = ()) -> str:
    """``evenhand NAME WORDS --OPTION VALUE ...``, with the options that differ from their defaults.

    Args:
      name: the command.
      words: its positional arguments.
      options: data classes of options.
      without: options that are left out.
    """
    found = ["evenhand", name, *words]
    for each in options:
        for entry in fields(each):
            value = vars(each)[entry.name]
            if entry.name in without or value == entry.default:
                continue
            option = f"--{entry.name.replace('_', '-')}"
            if isinstance(value, bool):
                found.append(option if value else f"--no-{option[2:]}")
            else:
                values = value if isinstance(value, list | tuple) else [value]
                found += [option, *map(str, values)]
    return shlex.join(found)
