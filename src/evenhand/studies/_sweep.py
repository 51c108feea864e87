"""Planning and running a study: every method with every choice of its hyper-parameters, for every seed.

:func:`study` reads top to bottom; below it are its parts: the settings that methods and grids make, the data and the
conditions, checks, and what is noted about the data.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from evenhand._platform import check_process
from evenhand.data import FederatedDataset, hold_out
from evenhand.errors import (
    Argument,
    EvenhandError,
    EvenhandWarning,
    expect,
    perhaps,
    real_number,
    whole_number,
)
from evenhand.evaluation import Metric, Metrics, check_metrics, unmeasured
from evenhand.evaluation.metrics import BUILT_IN, resolved
from evenhand.records import held
from evenhand.simulation import Execution, Job, Run, check_job, check_start
from evenhand.studies._columns import Executor, Measure, Measurements, Planned, Workers
from evenhand.studies._runs import Display, run_all
from evenhand.studies._selection import Halving, Rule, Setting, shown
from evenhand.studies._store import Store
from evenhand.studies._study import Study, save
from evenhand.systems import Systems
from evenhand.text import counted, listed
from evenhand.types import Algorithm, Attack, Model, Params
from evenhand.watch import Watch, watchers

_FEW = 30
"""Validation examples of a client, below which an accuracy is known to no better than 10 points."""


class Family(NamedTuple):
    """Methods that differ in hyper-parameters whose names are known only when the program runs.

    Attributes:
      arguments: the hyper-parameters.
      make: hyper-parameter -> value, to the method.
    """

    arguments: tuple[str, ...]
    make: Callable[[Mapping[str, Any]], Algorithm]


Methods: TypeAlias = Mapping[str, Algorithm | Callable[..., Algorithm] | Family]
Grid: TypeAlias = Mapping[str, Sequence[Any] | Mapping[str, Sequence[Any]]]
Source: TypeAlias = FederatedDataset | Callable[[int], FederatedDataset]


def study(
    methods: Methods,
    data: Source | Mapping[str, Source],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 6,
    tuning_seeds: int | Iterable[int] | None = None,
    grid: Grid | None = None,
    select: Rule | tuple[str, str] = ("valid", "mean"),
    baseline: str | None = None,
    cohort: int | None = None,
    eval_every: int = 10,
    attack: Attack | Mapping[str, Attack | None] | None = None,
    systems: Systems | Mapping[str, Systems | None] | None = None,
    eval_clients: int | None = None,
    metrics: Metrics = (),
    untrained: Literal["global", "initial"] = "global",
    start: Params | None = None,
    masks: bool = False,
    measure: Measure | None = None,
    folder: str | Path | None = None,
    halving: Halving | None = None,
    checkpoint: float = 30.0,
    executor: Executor | None = None,
    progress: bool = False,
    watch: Watch = None,
    about: Mapping[str, Any] | None = None,
) -> Study:
    """Runs methods with every combination of hyper-parameters for every seed, and compares their best settings.

    Runs that are one program train side by side (:func:`evenhand.simulation.iterate_many`).  A run that diverges or
    fails is a result like any other.

    Args:
      methods: name -> a method, or a function of hyper-parameters that makes one.
      data: the clients; or several data sets by name, each of which is studied; or a function of the seed, for data
        that are drawn anew with each seed.
      rounds: number of rounds of each run.
      seeds: number of seeds, or a list; every setting runs with each of them.  With fewer than 6, no difference between
        two methods can be significant (:func:`evenhand.evaluation.least_pairs`).
      tuning_seeds: how many seeds after the last of ``seeds``, or which, choose the settings: every setting runs with
        each of them, and then each method's chosen setting runs with ``seeds``, whose runs alone are reported.  None:
        every setting runs with ``seeds``, which both choose and are reported.
      grid: argument of the methods' functions -> values to try, for each method that has such an argument; or method ->
        its own grid, which goes before.  ``"cohort"`` is an argument of every run, the clients drawn per round or
        ``"all"``, as in ``{"cohort": [10, 20]}``, unless a method's function has an argument of that name.
      select: the split and the statistic by which the best setting of each method is chosen, or a :class:`Rule`.
        If settings have to be chosen and there are no validation examples, a fifth of each client's training
        examples are held out for validation.
      baseline: the method that the others are compared with; None: the first.
      cohort: as for :func:`evenhand.simulate`, and so are the next ones.
      eval_every: rounds between two evaluations.
      attack: what malicious clients do, or several attacks by name, each of which is studied.
      systems: stragglers and dropouts, or several by name.
      eval_clients: number of clients to evaluate.
      metrics: metrics of a set of examples, such as ``("auc",)``, as for :func:`evenhand.simulate`; that of ``select``
        need not be among them.
      untrained: the model for clients whose personal model never trained: ``"global"`` or ``"initial"``.
      start: the parameters from which each run begins, such as another run's ``params``, as for
        :func:`evenhand.simulate`; None: those of its seed.
      masks: draw the masks of secure sums, as for :func:`evenhand.simulate`.
      measure: ``run -> {name: number}``, called with each run at each evaluation, for what the statistics do not cover,
        such as how the model does on other rows.  :attr:`Outcome.measures` keeps its numbers.  A name that is a column
        of :meth:`Study.frame`, such as ``"seed"``, or a hyper-parameter is refused.
      folder: keeps the results.  Started again, a study repeats no run that has ended, and continues those that were
        interrupted; with more seeds, values or methods it makes only the runs that are new.
      halving: successive halving: few rounds for many settings, many for few; None: all rounds for all settings.
      checkpoint: seconds between checkpoints of an unfinished run; 0: at each evaluation.
      executor: where columns of runs train, such as ``client.get_executor()`` of Dask: whatever has ``submit``, and
        whose workers reach ``folder`` under the same path.  A worker with as many devices as this process gives the
        same bits.  None: here.
      progress: show a live bar with the runs that are done, their rate, the time left and the best setting so far.
      watch: trackers to which each run is logged, such as ``eh.watch.tensorboard("logs")``.
      about: further lines of the page under "What was run", by name, such as ``{"batch size": 10}``.

    Raises:
      EvenhandError: a number out of range, a name that does not exist, a seed for tuning that is reported, a start that
        does not fit some method's model, or a folder of another study.

    Warns:
      EvenhandWarning: validation examples were made.

    Example:
      >>> import evenhand as eh
      >>> data = eh.data.load("digits", clients=10, valid_fraction=0.2)
      >>> model = eh.models.softmax_regression(features=64, classes=10)
      >>> def fedavg(lr):
      ...     return eh.algorithms.fedavg(eh.local.sgd(model, lr, epochs=1, batch_size=10))
      >>> def fedprox(lr, mu):
      ...     return eh.algorithms.fedprox(eh.local.sgd(model, lr, epochs=1, batch_size=10), mu=mu)
      >>> grid = {"lr": [0.001, 0.1], "mu": [0.1]}
      >>> result = study({"fedavg": fedavg, "fedprox": fedprox}, data, rounds=4, seeds=2, eval_every=4, grid=grid)
      >>> result
      Study(2 methods, 4 settings, 8 runs, 8 of them sound)
      >>> str(result.best("fedavg"))
      'fedavg(lr=0.1)'
    """
    expect("select", select, tuple, '("valid", "mean"), or an eh.studies.Rule')
    by, names = (select if isinstance(select, Rule) else Rule(*select)).checked(), list(methods)
    wanted = settings(methods, grid)
    _expect_known(names, {"baseline": baseline, "near": by.near})
    # Made once for all seeds: what is traced of a method, and what identifies it, is found again by the object.
    algorithms = {str(setting): _made(setting, methods[setting.method]) for setting in wanted}
    chooses, seeds = len(wanted) > len(names), _check_seeds("seeds", seeds)
    apart = _apart(tuning_seeds, seeds, chooses=chooses)
    metrics = _measured_by(by, resolved(metrics), next(iter(algorithms.values())).client_model)
    job = partial(Job, rounds=rounds, cohort=cohort, eval_every=eval_every, eval_clients=eval_clients)
    job = partial(job, metrics=metrics, untrained=untrained, start=start, execution=Execution(masks=masks))
    sources = _Sources(by.split == "valid" and chooses)
    planner = _Planner(algorithms, sources, job, _by_run(methods))
    cases = _cases(data, attack, systems)
    first = [run for case in cases for run in planner.runs(wanted, case, apart or seeds)]
    sources.warn()
    _check(first[0].job, algorithms, by, halving, checkpoint)
    store = None if folder is None else _free_store(folder, first, _facts(first, seeds, apart, about))
    measured = Measurements(measure := _apart_from(wanted, measure), store)
    runs = [rounds] * (len(first) + (len(cases) * len(names) * len(seeds) if apart else 0))
    opened = _opened(store, executor, measure)
    with Display(runs, by, watchers(watch), show=progress) as shown, opened as workers:
        outcomes = run_all(first, by, halving, measured, store, checkpoint, shown, workers)
        metric = by.metric_of(outcome.view for outcome in outcomes)
        result = Study(tuple(outcomes), by, baseline or names[0], metric, tuning_seeds=tuple(apart))
        # With all rounds: a setting that was chosen while tuning is reported at the last one.
        second = planner.chosen(result, cases, seeds) if apart else []
        sources.warn()
        outcomes += run_all(second, by, None, measured, store, checkpoint, shown, workers)
    notes = (*sources.notes, *_cautions(first, seeds, apart, by, sources.chooses))
    result = replace(result, outcomes=tuple(outcomes), notes=notes, about=_facts(first, seeds, apart, about))
    return result if store is None else save(result, store)


def _free_store(folder: str | Path, runs: Sequence[Planned], about: Mapping[str, Any]) -> Store:
    store = Store(Path(folder))
    store.check_free(((run.setting, run.seed) for run in runs), about)
    return store


# --- methods and grids ----------------------------------------------------------------------------------------


_MOST = 100_000
_COHORT = "cohort"
"""What a grid may have for runs, beside the arguments of methods."""
_COLUMNS = {
    "method",
    "seed",
    "status",
    "tuning",
    "data",
    "attack",
    "systems",
    "bytes_down",
    "bytes_up",
    "secure_sums",
}


def settings(methods: Methods, grid: Grid | None) -> list[Setting]:
    """The settings of all methods, method by method.

    Raises:
      EvenhandError: a method's argument has no values, or values are for no argument.
    """
    expect("methods", methods, Mapping, '{"fedavg": fedavg(work), "fedprox": lambda lr, mu: ...}')
    if not methods:
        raise EvenhandError("study(methods={}): give at least one method, by name.")
    expect("grid", grid, Mapping | None, '{"lr": [0.01, 0.1]}')
    own = {name: values for name, values in (grid or {}).items() if isinstance(values, Mapping)}
    axes = {name: values for name, values in (grid or {}).items() if not isinstance(values, Mapping)}
    for name in own:
        if name not in methods:
            raise _slip(
                f"there is no method {name!r}{perhaps(name, methods)}: give a grid for one method under its name."
            )
    wanted: list[Setting] = []
    arguments = {name: _with_cohort(_arguments(name, method)) for name, method in methods.items()}
    for name, defaults in arguments.items():
        given = {**axes, **own.get(name, {})}
        if extra := [argument for argument in own.get(name, {}) if argument not in defaults]:
            raise _slip(f"{name} has no argument {extra[0]!r}{perhaps(extra[0], defaults)}.")
        if missing := [argument for argument in defaults if not (defaults[argument] or argument in given)]:
            raise _slip(
                f"{name} needs values of {missing[0]!r}, such as grid={{{missing[0]!r}: [0.01, 0.1]}}."
            )
        # In the order of the factory's arguments, whatever that of the grid: a setting's text names its folder.
        values = {argument: _values(argument, given[argument]) for argument in defaults if argument in given}
        choices = itertools.product(*values.values())
        wanted += [Setting(name, dict(zip(values, choice, strict=True))) for choice in choices]
    accepted = {argument for defaults in arguments.values() for argument in defaults}
    if unused := [axis for axis in axes if axis not in accepted]:
        raise _slip(f"no method has an argument {unused[0]!r}{perhaps(unused[0], accepted)}: leave it out.")
    if len(wanted) > _MOST:
        raise _slip(f"that makes more than {_MOST:,} settings: give fewer values.")
    _expect_distinct(wanted)
    return wanted


def _with_cohort(arguments: dict[str, bool]) -> dict[str, bool]:
    """The arguments of a factory, with the cohort of its runs, which need not be given."""
    return {**arguments, _COHORT: arguments.get(_COHORT, True)}


def _by_run(methods: Methods) -> Collection[str]:
    """The methods that have no argument called cohort of their own."""
    return frozenset(name for name, method in methods.items() if _COHORT not in _arguments(name, method))


def _slip(words: str) -> EvenhandError:
    return EvenhandError(f"study(grid): {words}")


def _expect_distinct(wanted: Sequence[Setting]) -> None:
    by_text = dict[str, Setting]()
    for setting in wanted:
        # By their texts, as the folder has them: a method's name may be an expression that has the other's values.
        if (other := by_text.setdefault(str(setting), setting)) is not setting:
            raise EvenhandError(
                f"study has {str(setting)!r:.60} twice, under {other.method!r:.40} and {setting.method!r:.40}: leave "
                "one of them out, or give it another name."
            )


def _arguments(name: str, method: Any) -> dict[str, bool]:
    """Argument of a factory -> whether it has a default."""
    if isinstance(method, Algorithm):
        return {}
    if isinstance(method, Family):
        return dict.fromkeys(method.arguments, False)
    if not callable(method):
        cure = "give a method, or a function that makes one"
        raise EvenhandError(f"study(methods): {name} is {method!r:.60}: {cure}.")
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(method).parameters.values()
    return {x.name: x.default is not inspect.Parameter.empty for x in parameters if x.kind in kinds}


def _values(argument: str, given: Any) -> list[Any]:
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    # As Python's numbers, which the study's files keep as numbers; NumPy's would come back as texts.
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if argument in _COLUMNS:
        raise _slip(f"{argument!r} is a column of the results: rename the argument.")
    if not values or len({shown(value) for value in values}) < len(values):
        raise _slip(f"{argument}={given!r:.60}: give a list of distinct values.")
    for value in values:
        if " at 0x" in shown(value):  # an address, which differs from process to process
            raise _slip(
                f"{argument} has a value of type {type(value).__name__}, which has no stable "
                "name: give names, and let the method's function look up the values."
            )
    return values


def _apart_from(wanted: Sequence[Setting], measure: Measure | None) -> Measure | None:
    """The user's function, with names that are no columns of the results."""
    taken = _COLUMNS.union(*(setting.numbers for setting in wanted))
    return None if measure is None else partial(_measured, measure, taken)


def _measured(measure: Measure, taken: Collection[str], run: Run) -> Mapping[str, float]:
    """What the user's function measures of a run.

    Raises:
      EvenhandError: one of its names is taken.
    """
    numbers = measure(run)
    for name in numbers:
        if name in taken:
            raise EvenhandError(
                f"study(measure): {name!r:.60} is a column of the results: give the number another name."
            )
    return numbers


def _made(setting: Setting, method: Any) -> Algorithm:
    """The method at one of its settings."""
    own = _arguments(setting.method, method)
    numbers = {name: value for name, value in setting.numbers.items() if name in own}
    if isinstance(method, Family):
        algorithm = method.make(numbers)
    else:
        algorithm = method if isinstance(method, Algorithm) else method(**numbers)
    expect(setting.method, algorithm, Algorithm, "eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))")
    return algorithm


def _expect_known(methods: list[str], names: Mapping[str, str | None]) -> None:
    for argument, name in names.items():
        if name is not None and name not in methods:
            words = f": there is no such method{perhaps(name, methods)}."
            raise EvenhandError(Argument(argument, f"{name:.60}"), words)


def _check_seeds(name: str, given: int | Iterable[int], first: int = 0) -> list[int]:
    """The seeds, distinct; a number ``n`` stands for ``first, ..., first + n - 1``."""
    if isinstance(given, Iterable):
        seeds = [whole_number(name, seed, 0, 2**32 - 1) for seed in given]
    else:
        seeds = list(range(first, first + whole_number(name, given, 1, 10_000)))
    if not seeds or len(set(seeds)) < len(seeds):
        raise EvenhandError(_listed(name, seeds), ": give at least one seed, and none of them twice.")
    return seeds


def _apart(tuning_seeds: int | Iterable[int] | None, seeds: Sequence[int], *, chooses: bool) -> list[int]:
    """The seeds that choose settings and are not reported; a number counts on from the last that is."""
    if tuning_seeds is None:
        return []
    apart = _check_seeds("tuning_seeds", tuning_seeds, first=max(seeds) + 1)
    if both := sorted(set(apart) & set(seeds)):
        words = f": seed {both[0]} is one of seeds, which are reported: tune on others."
        raise EvenhandError(_listed("tuning_seeds", apart), words)
    if not chooses:
        words = ": each method has a single setting, so there is nothing to tune: leave it out."
        raise EvenhandError(_listed("tuning_seeds", apart), words)
    return apart


def _listed(name: str, seeds: Sequence[int]) -> Argument:
    return Argument(name, f"{','.join(map(str, seeds)):.60}")


# --- data and conditions --------------------------------------------------------------------------------------


class _Sources:
    """The data of each run; with validation examples, where a study needs them to choose."""

    def __init__(self, chooses: bool) -> None:
        self.notes: list[str] = []
        self.chooses = chooses
        self._made: dict[tuple[int, int], FederatedDataset] = {}
        self._sentences: list[str] = []

    def at(self, source: Any, seed: int) -> FederatedDataset:
        """One object for each data set, so that its runs can train together."""
        key = (id(source), seed if callable(source) else 0)
        if key not in self._made:
            data: Any = source(seed) if callable(source) else source
            expect("data", data, FederatedDataset, 'eh.data.load("digits", clients=10)')
            if self.chooses and not data.valid.rows:
                data = hold_out(data)
                note = (
                    f"{data.name} had no validation examples: a fifth of each client's training examples were set "
                    "aside to choose settings."
                )
                missing = unmeasured({"valid": data.valid.sizes}, split="valid")
                if not data.valid.rows and missing is not None:  # the study's remarks say it, too
                    self._sentences.append(missing.sentence)
                elif note not in self.notes:
                    self.notes.append(note)
                    self._sentences.append(note)
            self._made[key] = data
        return self._made[key]

    def warn(self) -> None:
        """Warns of what was noticed since the last call, at the line that called :func:`study`.

        Only :func:`study` itself may call it.  Where data are made, the frames in between cannot be counted: a list
        comprehension is one of them before Python 3.12, and none from then on.
        """
        while self._sentences:
            warnings.warn(self._sentences.pop(0), EvenhandWarning, stacklevel=3)


class _Planner(NamedTuple):
    """Plans runs.

    Attributes:
      methods: the methods by their settings' names.
      sources: the data.
      job: knows what all runs have in common.
      by_run: the methods whose grid sets the cohort of a run, and no argument of the method.
    """

    methods: Mapping[str, Algorithm]
    sources: _Sources
    job: Callable[..., Job]
    by_run: Collection[str]

    def runs(self, wanted: Iterable[Setting], case: _Case, seeds: Sequence[int]) -> list[Planned]:
        """The runs of settings under a condition."""
        planned: list[Planned] = []
        for setting, seed in itertools.product(wanted, seeds):
            method, data = self.methods[setting.expression], self.sources.at(case.source, seed)
            job = self.job(method, data, seed=seed, attack=case.attack, systems=case.systems).plain
            if setting.method in self.by_run and _COHORT in setting.numbers:
                cohort = setting.numbers[_COHORT]
                job = job._replace(cohort=None if cohort == "all" else whole_number(_COHORT, cohort, 1))
            planned.append(Planned(setting._replace(case=case.names), seed, job, callable(case.source)))
        return planned

    def chosen(self, tuned: Study, cases: Sequence[_Case], seeds: Sequence[int]) -> list[Planned]:
        """The runs of each method's chosen setting under each condition."""
        return [
            run
            for case in cases
            for method in tuned.methods
            if (choice := tuned.choices[method, str(case.names)]) is not None
            for run in self.runs([choice.setting], case, seeds)
        ]


class _Case(NamedTuple):
    """A condition: its names where there are several, and its data, attack and systems."""

    names: dict[str, str]
    source: Any
    attack: Attack | None
    systems: Systems | None


def _cases(data: Any, attack: Any, systems: Any) -> list[_Case]:
    """Every condition."""

    def named(axis: str, value: Any) -> list[tuple[dict[str, str], Any]]:
        if not isinstance(value, Mapping):
            return [({}, value)]
        if not value:
            raise EvenhandError(f"study({axis}={{}}): give at least one.")
        if len({str(name) for name in value}) < len(value):
            raise EvenhandError(f"study({axis}): two of its names are the same text: give others.")
        return [({axis: str(name)}, choice) for name, choice in value.items()]

    return [
        _Case({**a, **b, **c}, source, threat, system)
        for a, source in named("data", data)
        for b, threat in named("attack", attack)
        for c, system in named("systems", systems)
    ]


# --- metrics, and what would make every run fail --------------------------------------------------------------


def _measured_by(by: Rule, metrics: tuple[Metric, ...], model: Model) -> tuple[Metric, ...]:
    """The metrics, with the one that settings are chosen by where the model does not measure it by itself."""
    name, measured = by.metric, {*model.metrics, *(metric.name for metric in metrics)}
    if name is None or name not in BUILT_IN or name in measured:
        return metrics
    return (*metrics, *resolved(name))


def _check(
    job: Job, methods: Mapping[str, Algorithm], by: Rule, halving: Halving | None, checkpoint: float
) -> None:
    """Finds what would make every run fail before any is made."""
    check_process()
    check_job(job)
    for name, method in methods.items() if job.start is not None else ():
        check_start(job.start, method.model, caller="study", owner=name)
    whole_number("rounds", job.rounds, 1)
    expect("halving", halving, Halving | None, "eh.studies.Halving(20)")
    if not 0 <= real_number(checkpoint) < math.inf:
        raise EvenhandError(Argument("checkpoint", str(checkpoint)), ": give seconds, at least 0.")
    check_metrics(metrics := resolved(job.metrics), job.algorithm.client_model, job.data)
    measured = ["loss", *job.algorithm.client_model.metrics, *(metric.name for metric in metrics)]
    if by.metric is not None and by.metric not in measured:
        names = ", ".join(dict.fromkeys([*measured, *BUILT_IN]))
        raise EvenhandError(
            f"There is no metric {by.metric!r:.40} to select by{perhaps(by.metric, measured)}: choose from {names}."
        )


@contextmanager
def _opened(store: Store | None, executor: Any, measure: Measure | None) -> Generator[Workers | None]:
    """Keeps other studies out of the folder; gives the workers of the executor, if there is one."""
    if executor is not None:
        _check_executor(executor, store)
    with ExitStack() as stack:
        workers: Workers | None = None
        if store is not None:
            stack.enter_context(held(store.folder))
            if executor is not None:
                workers = stack.enter_context(Workers(executor, store.folder, measure))
        yield workers


def _check_executor(executor: Any, store: Store | None) -> None:
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise EvenhandError(
            f"executor={executor!r:.60}: give an executor, which has submit(function, argument), such as "
            "concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context('spawn'))."
        )
    if store is None:
        raise EvenhandError(
            "study(executor=...): give folder=..., on a file system that all workers share: the runs keep their state "
            "there."
        )
    if find_spec("cloudpickle") is None:
        raise EvenhandError(
            "study(executor=...) needs the package cloudpickle, which is not installed: pip install "
            "'evenhand[executor]'."
        )


# --- what a reader must know ----------------------------------------------------------------------------------


def _cautions(
    planned: Sequence[Planned], seeds: Sequence[int], apart: Sequence[int], by: Rule, chooses: bool
) -> Iterator[str]:
    """What the data and the seeds of a study do not allow to conclude, in sentences."""
    # Of several data sets, some may be drawn anew for each seed, and others not: neither sentence holds for all.
    fresh = [run.new_data for run in planned]
    if len(seeds) > 1 and not any(fresh):
        yield (
            "Every seed has the same training and test examples, so the intervals reflect training randomness only. "
            "With data drawn anew for each seed (--fresh-data), they would also cover split-to-split variation."
        )
    if len(seeds) > 1 and all(fresh):
        yield (
            "Each seed has its own training and test examples, so the intervals cover training randomness and "
            "split-to-split variation. If the examples are splits of one table, they overlap, and the intervals are a "
            "little narrower than with new examples."
        )
    if chooses:
        yield from _on_few_examples(planned, by)
    if apart:
        tuning, reported = (
            f"{'seeds' if group[1:] else 'seed'} {listed([str(seed) for seed in group])}"
            for group in (apart, seeds)
        )
        yield (
            f"Settings were chosen with {tuning} alone; the methods are compared with {reported}, which were not used "
            "for the choice."
        )


def _on_few_examples(planned: Sequence[Planned], by: Rule) -> Iterator[str]:
    """A sentence for each data set in which clients have few validation examples."""
    first = dict[str, FederatedDataset]()
    for run in planned:  # of data that are drawn anew for each seed, the first stand for the others
        first.setdefault(run.setting.case.get("data", ""), run.job.data)
    client = "group" if all(run.job.algorithm.pooled for run in planned) else "client"
    for name, data in first.items():
        sizes = np.asarray(data.valid.sizes)
        sizes = sizes[sizes > 0]
        if not sizes.size or (typical := float(np.median(sizes))) >= _FEW:
            continue
        examples = "example" if typical == 1 else "examples"
        tail = f"; worst tenth: {max(1, sizes.size // 10)} of them" if "worst10" in by[1:4] else ""
        yield (
            f"Settings{f' under data {name}' if name else ''} were chosen on {typical:g} validation {examples} per "
            f"{client} (median of {counted(sizes.size, client)}{tail}): a different validation sample could select "
            "other settings."
        )


def _facts(
    planned: Sequence[Planned], seeds: Sequence[int], apart: Sequence[int], about: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What all runs of a study have in common, and the user's own lines."""
    job, names = planned[0].job, list(dict.fromkeys(run.job.data.name for run in planned))
    facts: dict[str, Any] = {"data": ", ".join(names)}
    if len(names) == 1:
        train, valid, test = (part.rows for part in (job.data.train, job.data.valid, job.data.test))
        examples = f"train {train:,}, valid {valid:,}, test {test:,}"
        facts |= {"clients": job.data.num_clients, "examples": examples}
    facts |= {"new data for each seed": any(run.new_data for run in planned), "rounds": job.rounds}
    # Where every setting has a cohort, there is none that all runs have in common.
    shared = [run.job.cohort for run in planned if _COHORT not in run.setting.numbers]
    facts |= {"cohort": shared[0] or "all"} if shared else {}
    facts["eval_every"] = job.eval_every
    facts["seeds"] = ", ".join(map(str, seeds))
    facts |= {"seeds for tuning": ", ".join(map(str, apart))} if apart else {}
    return facts | dict(about or {})
