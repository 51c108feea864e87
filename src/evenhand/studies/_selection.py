"""What ran in a study, and which setting of each method is chosen.

A :class:`Setting` is a method with its hyper-parameters, an :class:`Outcome` is one run of it.  A :class:`Rule` chooses
among the settings of a method (:func:`choose`), and among those that :class:`Halving` lets continue
(:func:`survivors`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from evenhand.errors import Argument, EvenhandError, perhaps, real_number, whole_number
from evenhand.evaluation import SPLIT_NAMES, primary_metric, summarize
from evenhand.report import RunView, direction, honest, may_win, statistics
from evenhand.simulation import Run
from evenhand.text import listed

NDArray = npt.NDArray[np.float64]


# --- what ran -------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A method with one choice of its hyper-parameters, under one condition.

    Attributes:
      method: its name in the study.
      numbers: hyper-parameter -> value, in the order of the factory's arguments.
      case: what else is varied, ``"data"``, ``"attack"`` or ``"systems"`` -> name; empty where nothing is.
    """

    method: str
    numbers: Mapping[str, Any]
    case: Mapping[str, str] = {}

    @property
    def expression(self) -> str:
        """The method with its hyper-parameters, whatever the condition: ``fedprox(lr=0.1, mu=1)``."""
        given = self.arguments
        if not self.method.endswith(")"):
            return f"{self.method}({given})"
        return f"{self.method}, {given}" if given else self.method  # its name is an expression already

    @property
    def arguments(self) -> str:
        """The hyper-parameters alone: ``lr=0.1, mu=1``."""
        return ", ".join(f"{name}={shown(value)}" for name, value in self.numbers.items())

    def __str__(self) -> str:
        """As an expression, followed by the condition: ``fedprox(lr=0.1, mu=1) [data=digits]``."""
        within = ", ".join(f"{name}={value}" for name, value in self.case.items())
        return self.expression + (f" [{within}]" if within else "")

    # Mappings have no hash, and a value need not have one: the texts of settings differ in any case.
    def __hash__(self) -> int:
        return hash(str(self))


def shown(value: Any) -> str:
    """A hyper-parameter as a person writes it."""
    return format(value, ".6g") if isinstance(value, float) else str(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a hyper-parameter is a number, so that its values have an order; a switch is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def condition(case: Mapping[str, str]) -> str:
    """A condition as a person writes it: ``data digits, attack flip``."""
    return ", ".join(f"{name} {value}" for name, value in case.items())


def only_case(cases: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The condition of a study that has one.

    Raises:
      EvenhandError: it has several.
    """
    first, *others = cases
    if others:
        raise EvenhandError(
            f"This study has {1 + len(others)} conditions: choose one, as in study.under({dict(first)})."
        )
    return first


Status: TypeAlias = Literal["done", "diverged", "failed", "stopped"]


class Outcome(NamedTuple):
    """One run of a study.

    Attributes:
      setting: the method and its hyper-parameters.
      seed: the run's seed.
      status: ``"done"``, ``"diverged"`` (on training or validation examples, so that it cannot be chosen),
        ``"failed"``, or ``"stopped"`` before its last round, by :class:`Halving`.
      reason: why it is not done, in a sentence; of a run that is done, what is wrong with its test numbers, which
        choose nothing; empty otherwise.
      view: what reports show of it; None where it failed.
      measures: name -> a number for each evaluation, from the study's ``measure``.
    """

    setting: Setting
    seed: int
    status: Status
    reason: str
    view: RunView | None
    measures: Mapping[str, NDArray] = MappingProxyType({})

    @property
    def seen(self) -> RunView | None:
        """The run as the study's statistics see it: under attack, its honest clients only, where there are any."""
        return None if self.view is None else honest(self.view)

    def is_sound(self, splits: Collection[str]) -> bool:
        """Whether the run ended, or came to a rung, with finite numbers on these splits and did not diverge on them."""
        ended = self.status not in ("failed", "stopped")
        return ended and self.view is not None and may_win(self.view, splits)

    @staticmethod
    def of(
        setting: Setting,
        seed: int,
        result: Run | Exception,
        measures: Mapping[str, NDArray] = MappingProxyType({}),
        *,
        new_data: bool = False,
    ) -> Outcome:
        """From the last evaluation of a run, or from what ended it before; ``new_data``: each seed has its own data."""
        if isinstance(result, Exception):
            reason = str(result) or type(result).__name__
            return Outcome(setting, seed, status="failed", reason=reason, view=None)
        numbers = {name: x for name, x in setting.numbers.items() if isinstance(x, bool | int | float | str)}
        config = {"method": setting.method, **numbers, **setting.case, "seed": seed}
        config |= {"data_seed": seed} if new_data else {}
        view = result.view(str(setting), config)
        if "cohort" in setting.numbers:  # a hyper-parameter here, in which methods may differ
            view = view._replace(info={**view.info, "tried": ["cohort"]})
        outcome = Outcome(setting=setting, seed=seed, status="done", reason="", view=view, measures=measures)
        if may_win(view):
            return outcome
        sentences = [finding.sentence for finding in view.findings if finding.kind == "diverged"]
        reason = (*sentences, "A loss or metric is not finite.")[0]
        # A run that is not finite on test examples alone stays a candidate: they have no say in the choice.
        status = "done" if may_win(view, ("train", "valid")) else "diverged"
        return outcome._replace(status=status, reason=reason)


def seen(outcomes: Iterable[Outcome]) -> list[RunView]:
    """The runs as the study's statistics see them, without those that failed."""
    return [view for outcome in outcomes if (view := outcome.seen) is not None]


# --- which setting is chosen ----------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How a setting is chosen: by the mean over the seeds of a statistic over the clients.

    Attributes:
      split: ``"valid"`` or ``"train"``; test examples are never used to choose.
      statistic: a name from :func:`evenhand.evaluation.summarize`, such as ``"mean"`` or ``"worst10"``.
      within: settings whose statistic is this close to the best one are all good enough, and ``then`` decides.
      then: another statistic, such as ``"variance"``: among settings good enough, the best in it is chosen.
      metric: e.g. ``"auc"``, a metric of the model or of :mod:`evenhand.evaluation.metrics`; None: the accuracy, or the
        loss where the model has none.
      near: a method, such as ``"fedavg"``: settings no worse than its chosen one by more than ``within`` are good
        enough, and the closest where there is none; None: what is close to the best setting of the same method.
    """

    split: str = "valid"
    statistic: str = "mean"
    within: float = 0.0
    then: str | None = None
    metric: str | None = None
    near: str | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """The splits that may drop a run; the test examples have no say, not even by being too much for a setting."""
        return "train", self.split

    def metric_of(self, views: Iterable[RunView | None]) -> str:
        """What the statistic is of: the rule's metric, else the accuracy where all runs have one, else the loss."""
        everywhere = all("accuracy" in view.clients["train"] for view in views if view is not None)
        return self.metric or primary_metric(["accuracy"] if everywhere else [])

    def checked(self) -> Rule:
        """The rule itself.

        Raises:
          EvenhandError: it names the test split, or no known split or statistic.
        """
        if self.split == "test":
            raise EvenhandError(
                "Test examples must not choose the settings that are tested on them: select by 'valid' or 'train'."
            )
        if self.split not in SPLIT_NAMES:
            raise EvenhandError(
                f"There is no split {self.split!r:.40} to select by: give 'valid' or 'train'."
            )
        names = set(summarize([0.5, 1.0]))
        for name in (self.statistic, self.then):
            if name is not None and name not in names:
                raise EvenhandError(f"There is no statistic {name!r:.40} to select by{perhaps(name, names)}.")
        if not self.within >= 0:
            raise EvenhandError(Argument("within", str(self.within)), ": give a number of at least 0.")
        return self


class Choice(NamedTuple):
    """The setting that was chosen, and what weakens the choice.

    Attributes:
      setting: what was chosen.
      remarks: in sentences.
      edges: hyper-parameters whose chosen value is at the edge of its grid, as ``"lr 0.3 (of 0.1 to 0.3)"``, or as
        good as those up to it, as ``"lr 0.2 (of 0.1 to 0.3, as good up to 0.3)"``; see :func:`edge_remarks`.
    """

    setting: Setting
    remarks: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()


def choose(
    candidates: Mapping[Setting, Sequence[RunView]], by: Rule, metric: str, near: Sequence[RunView] = ()
) -> Choice | None:
    """The best setting, or None if each of them diverged or failed in some run.

    Args:
      candidates: the runs of each setting, one per seed; none for a setting of which a run failed or was stopped.
      by: how it is chosen.
      metric: what the statistic is of.
      near: the runs of the setting that the others must be close to; none: the best of them.
    """
    # One lost seed drops a setting: its mean over the others would be compared with means over all seeds.
    won = {setting: [may_win(run, by.splits) for run in runs] for setting, runs in candidates.items()}
    sound = {setting: runs for setting, runs in candidates.items() if runs and all(won[setting])}
    first = _scores(sound, by.split, by.statistic, metric)
    if not first:  # without a choice there need not be examples to choose by
        return Choice(next(iter(sound))) if sound and len(candidates) == 1 else None
    top = max(first.values())
    goal = _mean(near, by.split, by.statistic, metric) if near else top
    # Relative, so that means that differ by their rounding are ties; and if no setting reaches the goal, the closest
    # ones are good enough.
    least = min(goal - max(by.within, _SAME * abs(goal)), top - _SAME * abs(top))
    good = [setting for setting, value in first.items() if value >= least]
    if by.then is not None:
        second = _scores({setting: sound[setting] for setting in good}, by.split, by.then, metric)
        most = max(second.values())
        good = [setting for setting, value in second.items() if value >= most - _SAME * abs(most)]
    best, *tied = good
    remarks = [f"{_place(best)}: {len(good)} settings are equally good; {best} is the first."] if tied else []
    if top < goal - by.within:
        remarks += [
            f"{_place(best)}: no setting is within the tolerance of {by.near}; {best} is the closest."
        ]
    return Choice(best, tuple(remarks), _at_edges(best, list(candidates), tied))


def _scores(
    candidates: Mapping[Setting, Sequence[RunView]], split: str, statistic: str, metric: str
) -> dict[Setting, float]:
    """Setting -> mean over its runs; more is better."""
    means = {setting: _mean(runs, split, statistic, metric) for setting, runs in candidates.items()}
    return {setting: mean for setting, mean in means.items() if np.isfinite(mean)}


_SAME = 1e-12
_FEWEST = 3
"""Values of a grid that has an inside: of two, the best is always at the edge."""


def _mean(runs: Sequence[RunView], split: str, statistic: str, metric: str) -> float:
    """More is better."""
    values = [statistics(run, split, metric)[statistic] for run in runs]
    return direction(statistic, metric) * float(np.mean(values))


def _place(best: Setting) -> str:
    """The method and the condition that a remark is about."""
    return f"{best.method} under {condition(best.case)}" if best.case else best.method


def _at_edges(best: Setting, settings: Sequence[Setting], tied: Sequence[Setting]) -> tuple[str, ...]:
    """The hyper-parameters whose chosen value is the largest or smallest, but for tied settings."""
    edges: list[str] = []
    for name, value in best.numbers.items():
        grid = {other.numbers[name] for other in settings if name in other.numbers}
        # Without the settings that are as good as the best: where those reach the edge of the grid, so does the best.
        tried = {other.numbers[name] for other in settings if name in other.numbers and other not in tied}
        # Where all values are as good as the best, the hyper-parameter makes no difference.
        matters = grid != {other.numbers.get(name) for other in (best, *tied)}
        is_line = len(grid) >= _FEWEST and matters and all(map(is_number, grid))
        if not is_line or value not in (min(tried), max(tried)):
            continue
        way, end = ("down", min(grid)) if value == min(tried) else ("up", max(grid))
        alike = "" if value == end else f", as good {way} to {shown(end)}"
        edges.append(f"{name} {shown(value)} (of {shown(min(grid))} to {shown(max(grid))}{alike})")
    return tuple(edges)


def edge_remarks(choices: Iterable[Choice]) -> list[str]:
    """A sentence on all chosen values that are at the edge of their grid; none where there are none."""
    places: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        for edge in choice.edges:
            cases = places.setdefault((choice.setting.method, edge), [])
            cases += [condition(choice.setting.case)] if choice.setting.case else []
    values = [
        f"{method}, {edge}" + (f" under {listed(cases)}" if cases else "")
        for (method, edge), cases in places.items()
    ]
    if not values:
        return []
    if values[1:]:
        return [f"Some best values are at the edges of their grids: {'; '.join(values)}. Widen the grids."]
    return [f"A best value is at the edge of its grid: {values[0]}. Widen the grid."]


# --- which settings stop early --------------------------------------------------------------------------------


class Halving(NamedTuple):
    """Successive halving: only the best settings continue after ``first`` rounds, and after ``1 / keep`` times as many.

    Every method keeps the same share of its settings, at all of its seeds, so that each is tuned with the same effort.
    A setting that needs many rounds to show its worth may be stopped: ``first`` must be long enough to show it.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS
    2016, figure 3 (with equal times between the choices replaced by equal factors, as in Hyperband).

    Attributes:
      first: rounds before the first choice; raised to a multiple of ``eval_every``.
      keep: the share of the settings that continues, rounded up.
    """

    first: int
    keep: float = 1 / 3


def rungs(halving: Halving | None, rounds: int, eval_every: int) -> list[int]:
    """After how many rounds settings are stopped, all below ``rounds``.

    Example:
      >>> rungs(Halving(first=10, keep=0.5), rounds=100, eval_every=5)
      [10, 20, 40, 80]
    """
    if halving is None:
        return []
    whole_number("first", halving.first, 1)
    if not 0 < real_number(halving.keep) < 1:
        raise EvenhandError(f"Halving(keep={halving.keep}): give a share between 0 and 1.")
    ends, reached = list[int](), float(halving.first)
    # Settings are compared at evaluations; rounded first, since a quotient may exceed the number it stands for.
    while (rung := eval_every * math.ceil(round(reached / eval_every, 6))) < rounds:
        ends += [rung] if rung not in ends else []
        reached /= halving.keep
    return ends


def survivors(outcomes: Sequence[Outcome], by: Rule, keep: float) -> set[Setting]:
    """The settings that continue: for each method and condition, the share that is best by the rule's statistic."""
    metric = by.metric_of(outcome.view for outcome in outcomes)
    groups: dict[tuple[str, str], dict[Setting, list[Outcome]]] = {}
    for outcome in outcomes:
        key = (outcome.setting.method, str(outcome.setting.case))
        groups.setdefault(key, {}).setdefault(outcome.setting, []).append(outcome)
    kept = set[Setting]()
    for group in groups.values():
        sound = [setting for setting, runs in group.items() if all(run.is_sound(by.splits) for run in runs)]
        runs = {setting: seen(group[setting]) for setting in sound}
        scores = _scores(runs, by.split, by.statistic, metric)
        best = sorted(scores, key=lambda setting: -scores[setting])  # of equal ones, the first
        # A method with a single setting keeps it, sound or not: there is nothing to choose.
        kept.update(best[: math.ceil(keep * len(group))] if len(group) > 1 else group)
    return kept
