"""Planning and running a study: every method with every choice of its hyper-parameters, for every seed.

:func:`study` reads top to bottom; below it are its parts: the settings that methods and grids make, the data and the
conditions, checks, and what is noted about the data.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from evenhand._platform import check_process
from evenhand.data import FederatedDataset, hold_out
from evenhand.errors import Argument, EvenhandError, EvenhandWarning, expect, perhaps, whole_number
from evenhand.evaluation import Metric, Metrics, check_metrics, unmeasured
from evenhand.evaluation.metrics import BUILT_IN, resolved
from evenhand.records import held
from evenhand.report.formatting import listed
from evenhand.simulation import Job, check_job
from evenhand.studies._runs import Bar, Measure, Measured, Planned, Shown, run_all
from evenhand.studies._selection import Halving, Rule, Setting, shown
from evenhand.studies._store import Store
from evenhand.studies._study import Study, save
from evenhand.systems import Systems
from evenhand.types import Algorithm, Attack, Model
from evenhand.watch import Watch, watchers

__all__ = ["Family", "study"]

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
    measure: Measure | None = None,
    folder: str | Path | None = None,
    halving: Halving | None = None,
    checkpoint: float = 30.0,
    progress: bool = False,
    watch: Watch = None,
    about: Mapping[str, Any] | None = None,
) -> Study:
    """Runs methods with every choice of their hyper-parameters for every seed, and compares them at their best.

    Runs that are one program train side by side (:func:`evenhand.simulation.iterate_many`).  A run that diverges or
    fails is a result like any other.

    Args:
      methods: name -> a method, or a function of hyper-parameters that makes one.
      data: the clients; or several data sets by name, each of which is studied; or a function of the seed, for data
        that are drawn anew with each seed.
      rounds: how many rounds each run has.
      seeds: how many, or which; every setting runs with each of them.  With fewer than 6, no difference between two
        methods can be significant (:func:`evenhand.evaluation.least_pairs`).
      tuning_seeds: how many seeds after the last of ``seeds``, or which, choose the settings: every setting runs with
        each of them, and then each method's chosen setting runs with ``seeds``, whose runs alone are reported.  None:
        every setting runs with ``seeds``, which both choose and are reported.
      grid: argument of the methods' functions -> values to try, for each method that has such an argument; or method ->
        a grid of its own, which goes before.
      select: the split and the statistic by which the best setting of each method is chosen, or a :class:`Rule`.
        Where settings have to be chosen and there are no validation examples, a fifth of each client's training
        examples become that.
      baseline: the method that the others are compared with; None: the first.
      cohort: as for :func:`evenhand.simulate`, and so are the next ones.
      eval_every: rounds between two evaluations.
      attack: what malicious clients do, or several attacks by name, each of which is studied.
      systems: stragglers and dropouts, or several by name.
      eval_clients: how many clients are evaluated.
      metrics: metrics of a set of examples, such as ``("auc",)``, as for :func:`evenhand.simulate`; that of ``select``
        need not be among them.
      untrained: what clients are served that never trained a personal model: ``"global"`` or ``"initial"``.
      measure: ``run -> {name: number}``, called with each run at each evaluation, for what the statistics do not tell,
        such as how the model does on other rows.  :attr:`Outcome.measures` keeps its numbers.
      folder: keeps the results.  Started again, a study repeats no run that has ended, and continues those that were
        interrupted; with more seeds, values or methods it makes only the runs that are new.
      halving: gives few rounds to many settings and many to few; None: all rounds to all settings.
      checkpoint: seconds between two saves of a run that has not ended; 0: at each evaluation.
      progress: show a live bar with the runs that are done, their rate, the time left and the best setting so far.
      watch: trackers that are told what each run measures, such as ``eh.watch.tensorboard("logs")``.
      about: what the page shall tell besides under "What was run", by name, such as ``{"batch size": 10}``.

    Raises:
      EvenhandError: a number out of range, a name that does not exist, a seed for tuning that is reported, or a folder
        of another study.

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
      >>> found = study({"fedavg": fedavg, "fedprox": fedprox}, data, rounds=4, seeds=2, eval_every=4, grid=grid)
      >>> found
      Study(2 methods, 4 settings, 8 runs, 8 of them sound)
      >>> str(found.best("fedavg"))
      'fedavg(lr=0.1)'
    """
    expect("select", select, tuple, '("valid", "mean"), or an eh.studies.Rule')
    by, names = (select if isinstance(select, Rule) else Rule(*select)).checked(), list(methods)
    settings_of, makers = settings(methods, grid)
    _expect_known(names, {"baseline": baseline, "near": by.near})
    wanted = [setting for each in settings_of.values() for setting in each]
    algorithms = {str(setting): makers[setting.method](setting) for setting in wanted}
    sources = _Sources(by.split == "valid" and len(wanted) > len(names))
    seeds = _check_seeds("seeds", seeds)
    apart = _apart(tuning_seeds, seeds, chooses=len(wanted) > len(names))
    how: dict[str, Any] = {"cohort": cohort, "eval_every": eval_every}
    how |= {"eval_clients": eval_clients, "untrained": untrained}
    how["metrics"] = _measured_by(by, resolved(metrics), next(iter(algorithms.values())).model)
    planner = _Planner(algorithms, sources, rounds, how)
    cases = _cases(data, attack, systems)
    first = [run for case in cases for run in planner.runs(wanted, case, apart or seeds)]
    _check(first[0].job, by, halving, checkpoint)
    store = None if folder is None else Store(Path(folder))
    measured = Measured(measure, store)
    later = len(cases) * len(names) * len(seeds) if apart else 0
    with ExitStack() as stack:
        bar = stack.enter_context(Bar([rounds] * (len(first) + later), by, progress))
        shown = stack.enter_context(Shown(bar, watchers(watch)))
        if store is not None:
            stack.enter_context(held(store.folder))
        outcomes = run_all(first, by, halving, measured, store, checkpoint, shown)
        metric = by.metric_of(each.view for each in outcomes)
        found = Study(tuple(outcomes), by, baseline or names[0], metric, tuning_seeds=tuple(apart))
        # With seeds for tuning, the chosen settings run with those that are reported.
        second = planner.chosen(found, cases, seeds) if apart else []
        outcomes += run_all(second, by, None, measured, store, checkpoint, shown)
    notes = (*sources.notes, *_cautions(first, seeds, by, sources.chooses), *_on_tuning(apart, seeds))
    facts = _facts(first, seeds, apart) | dict(about or {})
    found = replace(found, outcomes=tuple(outcomes), notes=notes, about=facts)
    return found if store is None else save(found, store)


# --- methods and grids ----------------------------------------------------------------------------------------


_MOST = 100_000
_COLUMNS = {"method", "seed", "status", "tuning", "data", "attack", "systems"}


def settings(
    methods: Methods, grid: Grid | None
) -> tuple[dict[str, list[Setting]], dict[str, Callable[[Setting], Algorithm]]]:
    """The settings of each method, and what makes a method from one of them.

    Raises:
      EvenhandError: a method's argument has no values, or values are for no argument.
    """
    expect("methods", methods, Mapping, '{"fedavg": fedavg(work), "fedprox": lambda lr, mu: ...}')
    if not methods:
        raise EvenhandError("study(methods={}): give at least one method, by name.")
    expect("grid", grid, Mapping | None, '{"lr": [0.01, 0.1]}')
    axes = {name: values for name, values in (grid or {}).items() if not isinstance(values, Mapping)}
    own = {name: values for name, values in (grid or {}).items() if isinstance(values, Mapping)}
    for name in own:
        if name not in methods:
            raise EvenhandError(
                f"study(grid): there is no method {name!r}{perhaps(name, methods)}: its own grid needs its name."
            )
    found: dict[str, list[Setting]] = {}
    makers: dict[str, Callable[[Setting], Algorithm]] = {}
    used = set[str]()
    for name, method in methods.items():
        arguments = _arguments(name, method)
        given = {**axes, **own.get(name, {})}
        for extra in own.get(name, {}):
            if extra not in arguments:
                raise EvenhandError(
                    f"study(grid): {name} has no argument {extra!r}{perhaps(extra, arguments)}."
                )
        needed = [argument for argument, has_default in arguments.items() if not has_default]
        if missing := [argument for argument in needed if argument not in given]:
            raise EvenhandError(
                f"study(grid): {name} needs values of {missing[0]!r}, such as grid={{{missing[0]!r}: [0.01, 0.1]}}."
            )
        taken = {argument: _values(argument, given[argument]) for argument in arguments if argument in given}
        used |= set(taken)
        found[name] = [
            Setting(name, dict(zip(taken, choice, strict=True)))
            for choice in itertools.product(*taken.values())
        ]
        makers[name] = _maker(name, method)
    if unused := [axis for axis in axes if axis not in used]:
        known = {argument for name, method in methods.items() for argument in _arguments(name, method)}
        raise EvenhandError(
            f"study(grid): no method has an argument {unused[0]!r}{perhaps(unused[0], known)}: leave it out."
        )
    if sum(map(len, found.values())) > _MOST:
        raise EvenhandError(f"study(grid): that makes more than {_MOST:,} settings: give fewer values.")
    _expect_distinct([setting for each in found.values() for setting in each])
    return found, makers


def _expect_distinct(wanted: Sequence[Setting]) -> None:
    known = dict[str, Setting]()
    for setting in wanted:
        if (other := known.setdefault(str(setting), setting)) is not setting:
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
        raise EvenhandError(
            f"study(methods): {name} is {method!r:.60}: give a method, or a function that makes one."
        )
    parameters = inspect.signature(method).parameters.values()
    return {
        each.name: each.default is not each.empty
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }


def _values(argument: str, values: Any) -> list[Any]:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    found = [value.item() if isinstance(value, np.generic) else value for value in found]
    if argument in _COLUMNS:
        raise EvenhandError(
            f"study(grid): {argument!r} is a column of the results: call the argument otherwise."
        )
    if not found or len({shown(value) for value in found}) < len(found):
        raise EvenhandError(f"study(grid): {argument}={values!r:.60}: give a list of distinct values.")
    for value in found:
        if " at 0x" in shown(value):  # which differs from process to process
            raise EvenhandError(
                f"study(grid): {argument} has a value of type {type(value).__name__}, which has no name to be found "
                "again by: give names, and let the method's function choose by them."
            )
    return found


def _maker(name: str, method: Any) -> Callable[[Setting], Algorithm]:
    def make(setting: Setting) -> Algorithm:
        if isinstance(method, Family):
            made = method.make(setting.numbers)
        else:
            made = method if isinstance(method, Algorithm) else method(**setting.numbers)
        expect(name, made, Algorithm, "eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1))")
        return made

    return make


def _expect_known(methods: list[str], asked: Mapping[str, str | None]) -> None:
    for what, name in asked.items():
        if name is not None and name not in methods:
            raise EvenhandError(
                Argument(what, f"{name:.60}"), f": there is no such method{perhaps(name, methods)}."
            )


def _check_seeds(name: str, seeds: int | Iterable[int], first: int = 0) -> list[int]:
    """The seeds, distinct; a number ``n`` stands for ``first, ..., first + n - 1``."""
    if isinstance(seeds, Iterable):
        found = [whole_number(name, seed, 0, 2**32 - 1) for seed in seeds]
    else:
        found = list(range(first, first + whole_number(name, seeds, 1, 10_000)))
    if not found or len(set(found)) < len(found):
        shown = ",".join(map(str, found))
        raise EvenhandError(
            Argument(name, f"{shown:.60}"), ": give at least one seed, and none of them twice."
        )
    return found


def _apart(tuning_seeds: int | Iterable[int] | None, seeds: Sequence[int], *, chooses: bool) -> list[int]:
    """The seeds that choose settings and are not reported; a number counts on from the last that is."""
    if tuning_seeds is None:
        return []
    found = _check_seeds("tuning_seeds", tuning_seeds, first=max(seeds) + 1)
    if both := sorted(set(found) & set(seeds)):
        raise EvenhandError(
            Argument("tuning_seeds", f"{','.join(map(str, found)):.60}"),
            f": seed {both[0]} is one of seeds, which are reported: tune on others.",
        )
    if not chooses:
        raise EvenhandError(
            Argument("tuning_seeds", f"{','.join(map(str, found)):.60}"),
            ": each method has a single setting, so there is nothing to tune: leave it out.",
        )
    return found


# --- data and conditions --------------------------------------------------------------------------------------


class _Sources:
    """The data of each run; with validation examples, where a study needs them to choose."""

    def __init__(self, chooses: bool) -> None:
        self.notes: list[str] = []
        self.chooses = chooses
        self._known: dict[tuple[int, int], FederatedDataset] = {}

    def of(self, source: Any, seed: int) -> FederatedDataset:
        """One object for each data set, so that its runs can train together."""
        key = (id(source), seed if callable(source) else 0)
        if key not in self._known:
            data: Any = source(seed) if callable(source) else source
            expect("data", data, FederatedDataset, 'eh.data.load("digits", clients=10)')
            if self.chooses and not data.valid.rows:
                data = hold_out(data)
                note = (
                    f"{data.name} had no validation examples: a fifth of each client's training examples were set "
                    "aside to choose by."
                )
                missing = unmeasured({"valid": data.valid.sizes}, split="valid")
                if not data.valid.rows and missing is not None:  # the study's remarks say it, too
                    warnings.warn(missing.sentence, EvenhandWarning, stacklevel=5)
                elif note not in self.notes:
                    self.notes.append(note)
                    warnings.warn(note, EvenhandWarning, stacklevel=5)
            self._known[key] = data
        return self._known[key]


class _Planner(NamedTuple):
    """Plans runs: ``methods`` by their settings' names, and what all runs have in common."""

    methods: Mapping[str, Algorithm]
    sources: _Sources
    rounds: int
    how: Mapping[str, Any]

    def runs(self, wanted: Iterable[Setting], case: _Case, seeds: Sequence[int]) -> list[Planned]:
        """The runs of settings under a condition."""
        which = {"attack": case.attack, "systems": case.systems}
        planned: list[Planned] = []
        for setting, seed in itertools.product(wanted, seeds):
            method, data = self.methods[str(setting._replace(case={}))], self.sources.of(case.source, seed)
            job = Job(method, data, self.rounds, seed, **which, **self.how)
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
        return [({axis: str(name)}, each) for name, each in value.items()]

    return [
        _Case({**a, **b, **c}, source, lies, slow)
        for a, source in named("data", data)
        for b, lies in named("attack", attack)
        for c, slow in named("systems", systems)
    ]


# --- metrics, and what would make every run fail --------------------------------------------------------------


def _measured_by(by: Rule, metrics: tuple[Metric, ...], model: Model) -> tuple[Metric, ...]:
    """The metrics, with the one that settings are chosen by where the model does not measure it by itself."""
    name = by.metric
    if (
        name is None
        or name not in BUILT_IN
        or name in model.metrics
        or any(name == metric.name for metric in metrics)
    ):
        return metrics
    return *metrics, *resolved(name)


def _check(job: Job, by: Rule, halving: Halving | None, checkpoint: float) -> None:
    """Finds what would make every run fail before any is made."""
    check_process()
    check_job(job)
    whole_number("rounds", job.rounds, 1)
    expect("halving", halving, Halving | None, "eh.studies.Halving(20)")
    if not 0 <= checkpoint < math.inf:
        raise EvenhandError(Argument("checkpoint", str(checkpoint)), ": give seconds, at least 0.")
    check_metrics(metrics := resolved(job.metrics), job.algorithm.model, job.data)
    known = list({"loss": None, **job.algorithm.model.metrics}) + [metric.name for metric in metrics]
    if by.metric is not None and by.metric not in known:
        names = ", ".join(dict.fromkeys([*known, *BUILT_IN]))
        raise EvenhandError(
            f"There is no metric {by.metric!r:.40} to select by{perhaps(by.metric, known)}: choose from {names}."
        )


# --- what a reader must know ----------------------------------------------------------------------------------


def _cautions(planned: Sequence[Planned], seeds: Sequence[int], by: Rule, chooses: bool) -> list[str]:
    """What the data of a study do not allow to conclude, in sentences."""
    found: list[str] = []
    if len(seeds) > 1 and not any(each.new_data for each in planned):
        found.append(
            "Every seed has the same training and test examples: the intervals tell how much training varies, not what "
            "other examples would show. Data that are drawn anew for each seed (--fresh-data) tell that as well."
        )
    if len(seeds) > 1 and all(each.new_data for each in planned):
        found.append(
            "Each seed has training and test examples of its own, and the intervals tell how much both vary; splits of "
            "one table overlap, which makes them a little narrower than those over new examples."
        )
    sizes = np.asarray(planned[0].job.data.valid.sizes)
    sizes = sizes[sizes > 0]
    if chooses and sizes.size and np.median(sizes) < _FEW:
        tail = f", the worst tenth of which are {math.ceil(0.1 * sizes.size)}" if "worst10" in by[1:4] else ""
        found.append(
            f"Settings were chosen by {np.median(sizes):g} validation examples of a typical client, of {sizes.size} "
            f"clients{tail}: another such sample may well choose others."
        )
    return found


def _on_tuning(apart: Sequence[int], seeds: Sequence[int]) -> list[str]:
    """Which seeds chose, and which are reported."""
    if not apart:
        return []
    chose, told = (listed([str(seed) for seed in of]) for of in (apart, seeds))
    return [
        f"Settings were chosen with {'seeds' if apart[1:] else 'seed'} {chose} alone; the methods are compared with "
        f"{'seeds' if seeds[1:] else 'seed'} {told}, which had no say in the choice."
    ]


def _facts(planned: Sequence[Planned], seeds: Sequence[int], apart: Sequence[int]) -> dict[str, Any]:
    """What all runs of a study have in common."""
    job, found = planned[0].job, dict[str, Any]()
    names = list(dict.fromkeys(each.job.data.name for each in planned))
    found["data"] = ", ".join(names)
    if len(names) == 1:
        data = job.data
        found["clients"] = data.num_clients
        found["examples"] = f"train {data.train.rows:,}, valid {data.valid.rows:,}, test {data.test.rows:,}"
    found["new data for each seed"] = any(each.new_data for each in planned)
    cohort = "all" if job.cohort is None else job.cohort
    found |= {"rounds": job.rounds, "cohort": cohort, "eval_every": job.eval_every}
    found["seeds"] = ", ".join(map(str, seeds))
    return found | ({"seeds for tuning": ", ".join(map(str, apart))} if apart else {})
