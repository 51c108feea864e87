"""``evenhand study``: tune several methods fairly over several seeds, and say which differences are real.

From top to bottom: the options and the command, with ``--dry-run``, which says about how long the runs take; the plan
in a TOML file, as words of the command line; the results of a study, for a terminal.
"""

from __future__ import annotations

import ast
import itertools
import math
import os
import pkgutil
import shlex
import time
import tomllib
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli import _options
from evenhand.cli._arguments import Words, changed, flat, hyphenated, typed
from evenhand.cli._data import DataOptions, remarks, without_effect
from evenhand.cli._folder import PAGE, default_folder
from evenhand.cli._models import ModelOptions
from evenhand.cli._options import GridOptions, Recipe, SharedOptions
from evenhand.cli._terminal import duration, say, show_comparison
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, EvenhandWarning, ModelError, perhaps, whole_number
from evenhand.evaluation import OF_THE_DATA, least_pairs
from evenhand.evaluation.metrics import resolved
from evenhand.expressions import Braced, braced, parse
from evenhand.expressions.kinds import kind_of, names_of
from evenhand.expressions.reading import plugins_in, shadowed
from evenhand.report import compare
from evenhand.simulation import iterate
from evenhand.studies import Family, Halving, Rule, Study, study
from evenhand.systems import Systems, stragglers
from evenhand.testing import toy_model
from evenhand.text import counted
from evenhand.types import Algorithm, Attack, Model

# --- the command --------------------------------------------------------------------------------------------


_Grid: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]
"""Method -> hyper-parameter -> its values."""

_Texts: TypeAlias = Positional[tuple[str, ...]]
_UNSHOWN = {"quiet", "plan", "dry_run", "dask", "slurm"}
"""Options that decide no number, of which the page's command needs none."""
_DEFAULT_OUT, _NO_HALVING = "(default: studies/METHODS-DATA)", "(default: all run to the end)"


@dataclass(frozen=True)
class StudyOptions(SharedOptions):
    """How long to train, with which seeds, how settings are chosen, and where to write the results."""

    evaluations: ClassVar[int] = 10

    # Several values, where a run has one.
    cohort: Annotated[str, arg(metavar="INT|{all},...")] = "all"  # pyright: ignore[reportIncompatibleVariableOverride]
    """clients drawn per round m; each of several values is tried with every method"""
    seeds: Annotated[str, arg(metavar="INT|A,B,C")] = "6"
    """number of seeds, or a list; with fewer than 6, no difference between two methods can be significant"""
    tuning_seeds: Annotated[str | None, arg(metavar="INT|A,B,C", help_behavior_hint="(default: none)")] = None
    """further seeds (a number or a list) that only choose settings; --seeds then run only the chosen settings"""
    select: Annotated[str, arg(metavar="SPLIT:STATISTIC[:METRIC]")] = "valid:mean"
    """how each method's setting is chosen: by valid:mean, valid:worst10, valid:worst10:auc, train:variance, ..."""
    within: float = 0.0
    """settings this close to the best count as equally good; --then decides among them"""
    then: Annotated[str | None, arg(metavar="STATISTIC", help_behavior_hint="(default: none)")] = None
    """statistic that decides among the equally good settings of --within, such as variance"""
    baseline: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="(default: the first)")] = None
    """baseline method that the others are compared with"""
    stragglers: Annotated[str, arg(metavar="FLOAT,...")] = "0"
    """share of each cohort that is slow and does only part of its work; several values are studied separately"""
    fresh_data: bool = False
    """draw a new partition, train/test split or synthetic data set for each seed"""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint=_DEFAULT_OUT)] = None
    """folder of the study; a study that is started again in the same folder repeats no finished run"""
    halving: Annotated[int | None, arg(metavar="ROUNDS", help_behavior_hint=_NO_HALVING)] = None
    """successive halving: after this many rounds, keep the best third of a method's settings; again at 3x, 9x, ..."""
    checkpoint: float = 30.0
    """seconds between checkpoints of an unfinished run; 0: at each evaluation"""
    dask: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="(default: none)")] = None
    """train the runs on the workers of this Dask scheduler, such as tcp://10.0.0.1:8786"""
    slurm: Annotated[str | None, arg(metavar="NAME=VALUE,...", help_behavior_hint="(default: none)")] = None
    """train the runs as Slurm jobs with these parameters of submitit: timeout_min=60,slurm_partition=gpu"""
    dry_run: bool = False
    """time a few rounds, print the number of runs and their estimated time, and stop"""
    plan: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """TOML file of methods and options; those given here take precedence"""

    @property
    def cohorts(self) -> list[int | str]:
        """The sizes of a cohort that are tried."""
        return _options.several("cohort", self.cohort, lambda text: text if text == "all" else int(text))

    @property
    def clients_per_round(self) -> int | None:
        """The first size of a cohort; None: all clients."""
        first = self.cohorts[0]
        return None if isinstance(first, str) else first


@dataclass(frozen=True)
class StudyCommand:
    """Train METHODS with every combination of hyper-parameters over several seeds, and compare their best settings."""

    methods: Annotated[_Texts, arg(metavar="METHOD METHOD ...", help_behavior_hint="(required)")] = ()
    """names or expressions; all values in braces are tried (also in --systems, --attack): 'fedprox(mu={0.1, 1})'"""
    study: StudyOptions = field(default_factory=StudyOptions)
    grid: GridOptions = field(default_factory=GridOptions)
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)

    def execute(self) -> int:
        """Runs the study, writes its folder and returns the exit code."""
        options, console = self.study, Console(stderr=True, quiet=self.study.quiet, highlight=False)
        methods, systems, attacks = self._methods(), self._systems(), self._attacks()
        names = (*[name[:30] for name in methods][:4], Path(self.data.data).name)
        folder = options.out or default_folder("studies", *names)
        watching = _options.trackers(options.watch, folder)
        data = self._source.load(quiet=options.quiet)
        notes = [text for method in methods.values() for text in shadowed(method.text)]
        say(console, *remarks(data), *notes, *self._idle(data))
        say(console, *self._too_few(), style="yellow")
        model = self.model.build(data.form)
        families = {name: self._family(method, model, data) for name, method in methods.items()}
        grid = {name: self._axes(methods[name], family) for name, family in families.items()}
        private = self._private(families, grid)
        say(console, *private.values())
        if options.dry_run:
            self._announce(families, grid, data, cases=max(1, len(systems)) * max(1, len(attacks)))
            return 0
        try:
            with warnings.catch_warnings(), _executor(options, folder) as executor:
                if options.quiet:
                    warnings.simplefilter("ignore", EvenhandWarning)
                results = study(
                    families,
                    self._drawn if options.fresh_data else data,
                    rounds=options.rounds,
                    seeds=self._seeds(),
                    tuning_seeds=self._tuning_seeds(),
                    grid=grid,
                    select=self._rule(),
                    baseline=options.baseline,
                    cohort=options.clients_per_round,
                    eval_every=options.every,
                    systems={name: make(model) for name, make in systems.items()} or None,
                    attack={name: make(model) for name, make in attacks.items()} or None,
                    eval_clients=options.eval_clients,
                    metrics=options.metrics or (),
                    untrained=options.untrained,
                    masks=options.masks,
                    folder=folder,
                    halving=None if options.halving is None else Halving(options.halving),
                    checkpoint=options.checkpoint,
                    executor=executor,
                    progress=console.is_terminal and not options.quiet,
                    watch=watching,
                    about=self._about(data) | private,
                )
        except KeyboardInterrupt:
            ended = len(list((folder / "runs").glob("*/result.json")))
            kept = f"Interrupted. {folder} keeps the {ended} finished runs"
            say(console, f"{kept}: the same command runs the rest and writes the page.", style="yellow")
            raise
        _finish(results, folder, Console(highlight=False, quiet=options.quiet))
        return 0

    def check(self) -> None:
        """Builds every setting for a toy model, so that faults are found before the data are loaded."""
        model = toy_model()
        for method in self._methods().values():
            with suppress(ModelError):  # the toy model is not the user's
                family = self._family(method, model)
                for setting in _settings(self._axes(method, family)):
                    family.make(setting)
        self.study.beside.check_used(*(method.text for method in self._methods().values()))
        for make in [*self._systems().values(), *self._attacks().values()]:
            make(model)
        self.model.row_loss(model)
        self._seeds()
        self._tuning_seeds()
        self._rule()
        resolved(self.study.metrics or ())
        options, names = self.study, list(self._methods())
        _options.check_watch(options.watch)
        for cohort in options.cohorts:
            if cohort != "all":
                whole_number("cohort", cohort, 1)
        for name in ("rounds", "eval_every", "eval_clients", "halving"):
            if (value := vars(options)[name]) is not None:
                whole_number(name, value, 1)
        if options.dask is not None and options.slurm is not None:
            raise EvenhandError("--dask and --slurm exclude each other: give one of them.")
        if options.slurm is not None:
            _parameters(options.slurm)
        if not 0 <= options.checkpoint < math.inf:
            raise EvenhandError(f"--checkpoint {options.checkpoint}: give seconds, at least 0.")
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
        methods: dict[str, Braced] = {}
        for text in self.methods:
            name = text.replace("-", "_")
            method = braced(f"{name}()" if name in names_of(kind_of(Algorithm)) else text)
            if any(method.text == other.text for other in methods.values()):
                raise EvenhandError(f"study has {text!r:.60} twice: give each method once.")
            methods[method.name if method.name not in methods else method.text] = method
        return methods

    def _family(self, method: Braced, model: Model, data: FederatedDataset | None = None) -> Family:
        """The methods of an expression; one that has its own local work needs no values of the grid.

        A budget of privacy is met for ``data``; without them, the noise is any that a method can have.
        """
        limit = self.study.limit
        funded: dict[str, Recipe] = {}  # the search for noise takes a second, and step sizes do not change it
        beside = (
            self.study.beside
            if data is None
            else self.study.beside.read(partial(self.data.labelled_rows, data))
        )

        def recipe(values: Mapping[str, Any]) -> Recipe:
            return Recipe(method.fill(values), lambda model: self.grid.work(model, values), limit, beside)

        def make(values: Mapping[str, Any]) -> Algorithm:
            setting = recipe(values)
            algorithm = setting.build(model)
            if limit is None or data is None or algorithm.privacy is None:
                return algorithm
            if setting.text not in funded:
                funded[setting.text] = setting.funded(data, model)
            return limit.checked(setting._replace(text=funded[setting.text].text).build(model), data)

        axes = self.grid.axes | dict(method.axes)
        takes_work = recipe({name: values[0] for name, values in axes.items()}).takes_work(model)
        local = [name for name in self.grid.axes if takes_work and name not in method.axes]
        return Family((*local, *method.axes), make)

    def _private(self, families: Mapping[str, Family], grid: _Grid) -> dict[str, str]:
        """What the page and the terminal say about the budget of privacy; nothing without one."""
        if self.study.epsilon is None:
            return {}
        firsts = {name: _first(family, grid[name]) for name, family in families.items()}
        private = [name for name, method in firsts.items() if method.privacy is not None]
        others = [name for name in firsts if name not in private]
        if not private:
            raise EvenhandError(
                f"--epsilon is for methods that guarantee privacy, and none of {', '.join(others)} does: try "
                "'dp_fedavg(clip=1)'."
            )
        text = f"Each run of {', '.join(private)} stays within epsilon {self.study.epsilon:g}."
        without = f" No privacy is guaranteed by {', '.join(others)}." if others else ""
        return {"privacy budget": text + without}

    def _axes(self, method: Braced, family: Family) -> dict[str, list[Any]]:
        axes = {name: (self.grid.axes | dict(method.axes))[name] for name in family.arguments}
        if len(self.study.cohorts) == 1:
            return axes
        if "cohort" in axes:
            raise EvenhandError(
                f"--cohort {self.study.cohort:.40} has several values, and so has the argument cohort of "
                f"{method.text:.60}: give one of them."
            )
        return axes | {"cohort": self.study.cohorts}

    def _systems(self) -> dict[str, Callable[[Model], Systems | None]]:
        """Name -> systems; empty for none at all."""
        options = self.study
        shares = _options.several("stragglers", options.stragglers, float)
        if options.systems is None:
            shown = [] if shares == [0.0] else shares
            return {f"stragglers({share:g})": _stragglers(share) for share in shown}
        if shares != [0.0]:
            raise EvenhandError("--systems and --stragglers exclude each other: give one of them.")
        return self._values(options.systems, Systems)

    def _attacks(self) -> dict[str, Callable[[Model], Any]]:
        """Name -> attack; empty for none at all."""
        return {} if self.study.attack is None else self._values(self.study.attack, Attack)

    def _values(self, text: str, kind: type) -> dict[str, Callable[[Model], Any]]:
        """What expressions with commas between them stand for, with each choice of the values in braces, by text."""
        expression = braced(text)
        filled = map(expression.fill, _settings(expression.axes))
        texts = dict.fromkeys(itertools.chain.from_iterable(map(_parts, filled)))
        return {text: partial(self._value, text, kind) for text in texts}

    def _value(self, text: str, kind: type, model: Model) -> Any:
        if text == "none":  # one of several
            return None
        return parse(text, kind, model, lambda: self.grid.work(model, {}))

    def _seeds(self) -> int | list[int]:
        return seeds_of("seeds", self.study.seeds)

    def _tuning_seeds(self) -> int | list[int] | None:
        text = self.study.tuning_seeds
        return None if text is None else seeds_of("tuning_seeds", text)

    def _too_few(self) -> Iterator[str]:
        """A sentence, before anything is trained, where no difference between the methods can be significant."""
        count, others = _count(self._seeds()), len(self._methods()) - 1
        least = least_pairs(max(1, others))
        if others >= 1 and count < least:
            seeds = counted(count, "seed")
            yield f"With {seeds} no difference between these methods can be significant: use at least {least}."

    def _rule(self) -> Rule:
        parts = self.study.select.split(":")
        if len(parts) not in (2, 3):
            raise EvenhandError(
                f"--select {self.study.select!r:.40} is not understood: write SPLIT:STATISTIC or "
                "SPLIT:STATISTIC:METRIC, e.g. valid:mean or valid:worst10:auc."
            )
        split, statistic, metric = *parts[:2], parts[2] if parts[2:] else None
        return Rule(
            split=split, statistic=statistic, within=self.study.within, then=self.study.then, metric=metric
        ).checked()

    def _drawn(self, seed: int) -> FederatedDataset:
        return replace(self._source, data_seed=self.data.data_seed + seed).load(quiet=self.study.quiet)

    @property
    def _recipes(self) -> list[Recipe]:
        """The first setting of each method."""
        settings = [
            method.fill({name: values[0] for name, values in method.axes.items()})
            for method in self._methods().values()
        ]
        beside = self.study.beside
        return [Recipe(text, lambda model: self.grid.work(model, {}), beside=beside) for text in settings]

    @property
    def _source(self) -> DataOptions:
        """The data; methods that train on all examples together need no clients, if all methods are such."""
        return self.data.pooled() if all(recipe.pools() for recipe in self._recipes) else self.data

    def _unused(self, data: FederatedDataset) -> dict[str, str]:
        """Why options of the data, the model and the local work have no effect, by name."""
        options = flat(self.data) | flat(self.model) | {"cohort": "all", "stragglers": 0.0}
        unused = without_effect(options, data)
        if self.data.groups is not None:
            unused["client_column"] = "groups take the place of clients"
        if any(recipe.takes_work() for recipe in self._recipes):
            return unused
        return unused | dict.fromkeys(flat(self.grid), "each method sets its own local work")

    def _idle(self, data: FederatedDataset) -> list[str]:
        """A sentence for each option that was set and has no effect."""
        return [
            f"{' '.join(typed(name, self._changed[name]))} has no effect: {why}."
            for name, why in self._unused(data).items()
            if name in self._changed
        ]

    @property
    def _changed(self) -> dict[str, Any]:
        return changed(self.grid) | changed(self.data) | changed(self.model)

    def _about(self, data: FederatedDataset) -> dict[str, Any]:
        """What the page tells of the runs: what decides their numbers, and the command."""
        parts, unused = flat(self.data) | flat(self.model) | flat(self.grid), self._unused(data)
        kept = {
            name: value
            for name, value in parts.items()
            if name not in unused and (name in self._changed or value not in ("", (), False))
        }
        texts = [*(method.text for method in self._methods().values()), self.study.attack or ""]
        if used := {plugin.package for text in filter(None, texts) for plugin in plugins_in(text)}:
            kept["plugins"] = ", ".join(sorted(used))
        options = changed(self.study) | self._changed
        shown = [typed(*pair) for pair in options.items() if pair[0] not in _UNSHOWN]
        return kept | {"command": shlex.join(["evenhand", "study", *self.methods, *itertools.chain(*shown)])}

    def _announce(
        self, families: Mapping[str, Family], grid: _Grid, data: FederatedDataset, *, cases: int
    ) -> None:
        """Prints how many runs there are of each method, and about how long they take one by one.

        Args:
          families: the methods.
          grid: method -> hyper-parameter -> its values.
          data: the clients.
          cases: how many conditions.
        """
        tuning, seeds = (cases * _count(seeds) for seeds in (self._tuning_seeds(), self._seeds()))
        per_setting, per_choice = (tuning, seeds) if tuning else (seeds, 0)
        total, runs, rounds = 0.0, 0, self.study.rounds
        for name, family in families.items():
            count = per_setting * math.prod(map(len, grid[name].values())) + per_choice
            seconds = _seconds_per_run(_first(family, grid[name]), data, self.study)
            print(f"{name}: {count} runs of {rounds} rounds, about {duration(seconds)} each")
            total, runs = total + count * seconds, runs + count
        print(
            f"{runs} runs, about {duration(total)} one after another, without compilation; small models train side by "
            "side in less time, and finished runs are not repeated."
        )


@contextmanager
def _executor(options: StudyOptions, folder: Path) -> Generator[Any]:
    """Where the runs train: None in this process."""
    if options.dask is not None:
        try:
            from distributed import Client  # an extra
        except ImportError:
            raise _missing("--dask", "distributed", "dask") from None
        try:
            client = Client(options.dask, timeout=10)
        except (OSError, ValueError) as error:
            raise EvenhandError(
                f"--dask {options.dask:.80}: no scheduler answers there ({str(error) or type(error).__name__:.200}): "
                "start one with `dask scheduler`, and its workers with `dask worker ADDRESS --nthreads 1`."
            ) from None
        with client:
            _check_workers(client, options)
            yield client.get_executor()
    elif options.slurm is not None:
        # Else it logs each job to standard output, where the results are printed.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        try:
            from submitit import AutoExecutor  # an extra
        except ImportError:
            raise _missing("--slurm", "submitit", "slurm") from None
        parameters = _parameters(options.slurm)
        try:
            executor = AutoExecutor(folder / "jobs", cluster=parameters.pop("cluster", "slurm"))
            executor.update_parameters(**parameters)
        except Exception as error:  # submitit raises several kinds
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            raise EvenhandError(
                f"--slurm {options.slurm:.80}: {reason}. Give parameters of submitit on a machine that has Slurm's "
                "commands."
            ) from None
        yield executor
    else:
        yield None


def _check_workers(client: Any, options: StudyOptions) -> None:
    """Refuses workers without Evenhand, which end when they get a task; says if there are none to train a run yet."""
    # A function of Python's own, which every worker can read.
    workers = client.run(pkgutil.resolve_name, "evenhand:__version__", on_error="return")
    lacking = [name for name, version in workers.items() if isinstance(version, ImportError)]
    if lacking:
        raise EvenhandError(
            f"--dask {options.dask:.80}: {counted(len(lacking), 'worker')} of {len(workers)} cannot import evenhand, "
            f"the first at {lacking[0]}: install 'evenhand[dask]' there, in the version of this machine."
        )
    if not workers:
        console = Console(stderr=True, quiet=options.quiet, highlight=False)
        words = (
            f"The scheduler has no workers yet: the runs wait for `dask worker {options.dask} --nthreads 1`."
        )
        say(console, words, style="yellow")


def _parameters(text: str) -> dict[str, Any]:
    """The parameters of a job for submitit, by name; what looks like a number is one."""
    parameters: dict[str, Any] = {"timeout_min": 24 * 60}  # submitit's own limit is five minutes
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not (sign and name.strip() and value.strip()):
            raise EvenhandError(
                f"--slurm {text:.80}: {part!r:.40} is not NAME=VALUE, such as timeout_min=60 or slurm_partition=gpu."
            )
        parameters[name.strip()] = _number_or_text(value.strip())
    return parameters


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _missing(option: str, package: str, extra: str) -> EvenhandError:
    return EvenhandError(
        f"{option} needs the package {package}, which is not installed: pip install 'evenhand[{extra}]'."
    )


def seeds_of(name: str, text: str) -> int | list[int]:
    """How many seeds, or which."""
    seeds = _options.several(name, text, int)
    if "," not in text:
        return whole_number(name, seeds[0], 1, 10_000)
    return [whole_number(name, seed, 0, 2**32 - 1) for seed in seeds]


def _settings(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Each choice of a value on every axis."""
    return (dict(zip(axes, choice, strict=True)) for choice in itertools.product(*axes.values()))


def _parts(text: str) -> list[str]:
    """Expressions with commas between them, one by one."""
    tree = ast.parse(text, mode="eval").body
    several = isinstance(tree, ast.Tuple) and tree.elts
    return [ast.unparse(part) for part in several] if several else [text]


def _count(seeds: int | list[int] | None) -> int:
    return len(seeds) if isinstance(seeds, list) else seeds or 0


def _first(family: Family, axes: Mapping[str, Sequence[Any]]) -> Algorithm:
    """The method at the first of its settings."""
    return family.make({name: values[0] for name, values in axes.items()})


def _seconds_per_run(algorithm: Algorithm, data: FederatedDataset, options: SharedOptions) -> float:
    """Of one run, from the first rounds of another."""
    every = min(options.every, 5)
    rounds, cohort = min(2 * every, options.rounds), options.clients_per_round
    start = partial(
        iterate, algorithm, data, rounds=rounds, cohort=cohort, eval_every=every, masks=options.masks
    )
    for _ in start():  # compiles, which most runs need not
        pass
    times = [time.perf_counter(), *(time.perf_counter() for _ in start())]
    training = (times[-1] - times[-2]) * options.rounds / every if len(times) > 2 else 0.0
    return times[1] - times[0] + training


def _stragglers(share: float) -> Callable[[Model], Systems | None]:
    return lambda model: stragglers(share) if share else None


# --- --plan: methods and options in a TOML file, as words of the command line -------------------------------


def planned(words: Words) -> Words:
    """The words of a study, with those of its ``--plan`` before them: of an option given twice, the last counts.

    Raises:
      EvenhandError: the file cannot be read, or holds something else than options.
    """
    if not (name := words.given.get("--plan")):
        return words
    path = Path(name)
    try:
        entries = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise EvenhandError(f"--plan {path}: there is no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvenhandError(f"--plan {path} is not TOML ({error}).") from None
    methods = entries.pop("methods", [])
    if not isinstance(methods, list) or not all(isinstance(method, str) for method in methods):
        raise EvenhandError(f"--plan {path}: methods must be a list of strings.")
    options = tuple(_option(path, *entry) for entry in entries.items())
    return words._replace(loose=words.loose or tuple(methods), options=(*options, *words.options))


def _option(path: Path, name: str, value: Any) -> tuple[str, str | None]:
    option = hyphenated(name)
    if isinstance(value, dict):
        raise EvenhandError(f"--plan {path}: {name} is a table, but must be an option.")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}", None
    if not isinstance(value, list):
        return f"--{option}", str(value)
    alone = name in ("seeds", "tuning_seeds") and len(value) == 1  # that seed, not so many
    return f"--{option}", ",".join(map(str, value)) + "," * alone


# --- the results of a study ---------------------------------------------------------------------------------


def _finish(study: Study, folder: Path, console: Console) -> None:
    """Prints what the study shows, and writes its tables and its page."""
    for case in study.cases:
        show_study(study.under(case), console)
    say(console, *study.remarks, style="yellow")
    for name in ("csv", "md", "tex"):
        study.export(folder / f"settings.{name}")
        study.export(folder / f"methods.{name}", "methods")
    say(console, f"Report: {study.report(folder / PAGE)}")


def show_study(study: Study, console: Console) -> None:
    """Prints the methods at their chosen settings under one condition, and how far they differ."""
    case = ", ".join(f"{name} {value}" for name, value in study.cases[0].items())
    chosen = [line.setting for line in study.table() if line.setting is not None]
    if case:
        console.print()
        say(console, case, style="bold")
    say(console, f"Chosen: {'; '.join(str(setting._replace(case={})) for setting in chosen) or 'nothing'}.")
    if chosen:
        views = {setting.method: study.views(setting.method) for setting in chosen}
        # Findings about the data are among the study's remarks.
        show_comparison(compare(views, study.metric), console, without=OF_THE_DATA, baseline=study.baseline)
