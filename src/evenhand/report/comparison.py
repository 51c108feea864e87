"""Runs side by side: which are one method, whether methods may be compared, and which differences exceed noise."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand.evaluation import (
    SPLIT_NAMES,
    Finding,
    is_higher_better,
    is_share,
    least_pairs,
    paired_difference,
)
from evenhand.report._settings import as_methods, clients_of, data_of, method_names, obstacles
from evenhand.report._view import (
    Coverage,
    Runs,
    RunView,
    client_values,
    common_metric,
    covered,
    diverged,
    headline_split,
    honest,
    statistics,
    undefined_at,
    views,
)
from evenhand.report.numbers import listed, value
from evenhand.text import isolated, visible

__all__ = ["Comparison", "Method", "Notice", "caution", "compare", "may_be_starred", "may_win", "verdict"]

NDArray = npt.NDArray[np.float64]

_JUDGING = ("train", "valid")
"""The splits that can drop a run: test examples judge, and must choose nothing."""
_MOST_NAMED = 3
"""Most methods that a notice names."""


class Method(NamedTuple):
    """Runs that differ only in their seeds, in the order of the seeds.

    Attributes:
      name: distinct from those of the other methods, and safe to show (see :func:`evenhand.text.visible`).
      runs: one for each seed.
    """

    name: str
    runs: tuple[RunView, ...]

    @property
    def is_sound(self) -> bool:
        """Whether no run diverged on training or validation examples (:func:`may_win`)."""
        return all(may_win(run, _JUDGING) for run in self.runs)

    def may_be_starred(self, metric: str) -> bool:
        """Whether the method may be marked as the best in a metric (:func:`may_be_starred`)."""
        return all(may_be_starred(run, metric) for run in self.runs)

    def statistics(self, split: str, metric: str) -> dict[str, NDArray]:
        """The statistics of :func:`~evenhand.evaluation.summarize`, ``(runs,)`` each; NaN where a run has none."""
        found = [statistics(run, split, metric) for run in self.runs]
        keys = dict.fromkeys(key for one in found for key in one)
        return {key: np.array([one.get(key, math.nan) for one in found]) for key in keys}

    def clients(self, split: str, metric: str) -> NDArray:
        """A metric of each client, ``(runs, K)``; only where the runs have the same clients."""
        return np.stack([client_values(run, split, metric) for run in self.runs])


class Notice(NamedTuple):
    """A finding, and which of several runs it is about.

    Attributes:
      finding: of the first of them.
      names: the methods, with the seeds where not all runs of a method are concerned; empty for a single run.
      runs: how many runs have it.
      total: how many there are.
      varies: whether the sentences of the others are not the same, but for example have other numbers.
    """

    finding: Finding
    names: tuple[str, ...]
    runs: int
    total: int
    varies: bool = False

    @property
    def text(self) -> str:
        """The sentence, after the names of the runs."""
        if not self.names:
            return self.finding.sentence
        if self.runs == 1:
            return f"{self.names[0]}: {self.finding.sentence}"
        shown = list(self.names[:_MOST_NAMED])
        shown += [f"{len(self.names) - _MOST_NAMED} more"] if len(self.names) > _MOST_NAMED else []
        runs = f"{self.runs} of {self.total} runs ({listed(shown)})"
        runs = f"All {self.total} runs" if self.runs == self.total else runs
        return f"{runs}{', for example' if self.varies else ''}: {self.finding.sentence}"


class Comparison(NamedTuple):
    """Methods compared by one metric on one split, over their honest clients.

    Attributes:
      methods: in the order of their first runs; of a run under attack, its honest clients
        (:func:`evenhand.report.honest`).
      metric: what :func:`compare` was asked for; without that the accuracy if all runs have one, else the loss.
      split: ``"test"`` if all runs have results on it, else ``"valid"``, else ``"train"``.
      obstacles: differences because of which the methods' numbers must not be compared, such as
        ``"data (alpha 0.1, 0.5)"``; empty for a fair comparison.
    """

    methods: tuple[Method, ...]
    metric: str
    split: str
    obstacles: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the methods."""
        return [method.name for method in self.methods]

    @property
    def runs(self) -> list[RunView]:
        """All runs, method by method."""
        return [run for method in self.methods for run in method.runs]

    @property
    def named_runs(self) -> list[tuple[str, RunView]]:
        """All runs, each under its method's name, with the seed where there are several."""
        return [
            (f"{method.name}, seed {run.info.get('seed')}" if len(method.runs) > 1 else method.name, run)
            for method in self.methods
            for run in method.runs
        ]

    @property
    def client_kind(self) -> str:
        """What a client is, such as ``"hospital"``, where all runs name the same column; else empty."""
        columns = {str(run.info.get("client_column") or "") for run in self.runs}
        column = columns.pop() if len(columns) == 1 else ""
        return "" if column == "client" else visible(column)

    @property
    def covered(self) -> Coverage:
        """Which clients the numbers cover."""
        return covered(self.runs, self.split, self.metric)

    @property
    def notices(self) -> list[Notice]:
        """What to know before trusting the numbers: each kind of finding once, with the runs that have it."""
        total, groups = len(self.runs), dict[tuple[str, str], dict[str, list[Finding]]]()
        seeds = dict[tuple[str, str], dict[str, list[str]]]()
        for method in self.methods:
            for run in method.runs:
                first = dict[tuple[str, str], Finding]()  # the worst first, as in the run
                for finding in run.findings:
                    first.setdefault((finding.kind, finding.split), finding)
                for kind, finding in first.items():
                    groups.setdefault(kind, {}).setdefault(method.name, []).append(finding)
                    seeds.setdefault(kind, {}).setdefault(method.name, []).append(str(run.info.get("seed")))
        sizes = {method.name: len(method.runs) for method in self.methods}
        notices: list[Notice] = []
        for kind, by_method in groups.items():
            every = [finding for part in by_method.values() for finding in part]
            names = [_named(name, of, sizes[name]) for name, of in seeds[kind].items()] if total > 1 else []
            varies = len({finding.sentence for finding in every}) > 1
            notices.append(Notice(every[0], tuple(names), len(every), total, varies))
        return notices

    @property
    def seeds(self) -> int:
        """The largest number of runs of a method."""
        return max(len(method.runs) for method in self.methods)

    @property
    def what(self) -> str:
        """The metric on its split, in words."""
        return f"{SPLIT_NAMES[self.split]} {visible(self.metric)}"

    @property
    def is_share(self) -> bool:
        """Whether the metric is a share, to be shown in percent."""
        return is_share(self.metric)

    @property
    def same_clients(self) -> bool:
        """Whether all runs have the same clients with the same examples."""
        return len({data_of(run) for run in self.runs}) == len({clients_of(run) for run in self.runs}) == 1

    @property
    def comparisons(self) -> int:
        """How many differences decide whether a method is the best: those to every other sound method."""
        return max(1, sum(method.may_be_starred(self.metric) for method in self.methods) - 1)

    @property
    def may_mark(self) -> bool:
        """Whether a best method can be marked at all: in a fair comparison, with one seed or with enough of them."""
        return not self.obstacles and (self.seeds == 1 or self.seeds >= least_pairs(self.comparisons))

    def winners(self, values: Sequence[NDArray], texts: Sequence[str], sign: int) -> set[int]:
        """Which methods are best in a statistic by more than noise.

        No method is if the comparison is unfair, or if fewer than two may be (:func:`may_be_starred`).  With one run
        each, the method with the best value is, and so are those that show the same, unless all do: one seed can say
        no more.  With several seeds, a method is the best if its paired difference (over equal seeds) to every other
        method is above 0 and may be marked (:meth:`evenhand.evaluation.PairedDifference.may_be_marked`): its 95 %
        interval leaves out 0, and there are enough seeds for the test by signs.

        Args:
          values: the statistic, ``(runs,)`` for each method.
          texts: how each method's mean is shown.
          sign: 1 if more is better, -1 if less is.
        """
        able = [
            i
            for i, method in enumerate(self.methods)
            if method.may_be_starred(self.metric) and np.isfinite(values[i]).all()
        ]
        if self.obstacles or len(able) < 2:
            return set()
        top = max(able, key=lambda i: float(sign * np.mean(values[i])))
        if self.seeds == 1:
            alike = {i for i in able if texts[i] == texts[top]}
            return set() if len(alike) == len(self.methods) else alike
        gains = [paired_difference(sign * values[top], sign * values[i]) for i in able if i != top]
        is_best = all(gain.may_be_marked(self.comparisons) for gain in gains)  # its mean is the highest
        return {top} if is_best else set()


def compare(runs: Runs, metric: str | None = None) -> Comparison:
    """Sorts runs into methods and says whether these may be compared.

    **Under attack**, all numbers are of the honest clients; of all where each client is malicious.

    **A method** is all settings of a run but its seeds: the method's name and numbers, the model, the local work (step
    size, epochs, batch), the rounds and the cohort.  Runs that differ only in ``seed`` are one method, and so are runs
    that also differ in ``data_seed``: papers repeat experiments in this way, with clients or splits drawn anew, and the
    spread over the runs then includes that of the draw.  How fast or how often something was done (``lanes``,
    ``eval_every``, ``checkpoint``) does not matter.  A second run with the settings and the seed of a first is a
    separate method, because one draw would count twice.

    **Methods may be compared** when they had the same data (by the fingerprint where known, else by the clients' names
    and numbers of examples), evaluated the same clients, and ran as many rounds with as large cohorts and as many
    stragglers, all from the same seeds.  Models, step sizes and epochs may differ: they are what is compared.

    Args:
      runs: a run, several, or several by name; see :mod:`evenhand.report.figures`.
      metric: what they are compared by; None: the accuracy if all runs have one, else the loss.

    Raises:
      EvenhandError: there is no run, or the runs have no metric in common.

    Example:
      >>> import evenhand as eh
      >>> data = eh.testing.toy_data()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> runs = [eh.simulate(method, data, rounds=2, seed=seed) for seed in (0, 1)]
      >>> found = eh.report.compare({"fedavg": runs})
      >>> found.names, found.seeds, found.obstacles
      (['fedavg'], 2, ())
    """
    every = [honest(view) for view in views(runs)]
    metric = common_metric(every) if metric is None else metric
    groups = as_methods(every)
    found = tuple(
        Method(visible(name), tuple(group)) for name, group in zip(method_names(groups), groups, strict=True)
    )
    return Comparison(found, metric, headline_split(every, metric), tuple(map(visible, obstacles(groups))))


def may_win(run: RunView, splits: Collection[str] | None = None) -> bool:
    """Whether a run may be called the best: not if it diverged, or if a number of an honest client is not finite.

    Args:
      run: the run.
      splits: those that count; None: all.
    """
    run = honest(run)
    if diverged(run, splits):
        return False
    for split, metrics in run.clients.items():
        if splits is not None and split not in splits:
            continue
        counted = np.asarray(run.sizes.get(split, np.ones(len(run.client_ids)))) > 0
        for name, values in metrics.items():
            sound = np.isfinite(np.asarray(values, np.float64)) | undefined_at(run, split, name)
            if not sound[counted].all():
                return False
    return True


def may_be_starred(run: RunView, metric: str) -> bool:
    """Whether a run may be marked as the best in a metric: if it may win, and is better than one constant answer.

    A run whose accuracy, or whose loss where nothing else is measured, is that of a guess may still be the best in a
    metric that sees more, such as the area under the ROC curve.
    """
    guesses = any(finding.kind == "guessing" for finding in run.findings)
    seen = metric not in ("accuracy", "loss") and "accuracy" in run.clients.get("train", {})
    return may_win(run, _JUDGING) and (seen or not guesses)


def verdict(of: Comparison) -> str:
    """What a comparison shows, in a sentence or two; method names are isolated (:func:`evenhand.text.isolated`)."""
    if of.obstacles:
        return (
            f"These runs are shown side by side, not compared: they differ in their {listed(of.obstacles)}."
        )
    found = [method.statistics(of.split, of.metric) for method in of.methods]
    sign = 1 if is_higher_better(of.metric) else -1
    winners: list[str] = []
    texts: list[str] = []
    for key in ("mean", "worst10"):
        values = [s[key] for s in found]
        shown = [value(float(np.mean(x)), of.metric) for x in values]
        best = sorted(of.winners(values, shown, sign))
        winners.append(listed([isolated(of.names[i]) for i in best]))
        texts.append(shown[best[0]] if best else "")
    tail = tail_name(min(float(np.min(s["clients"])) for s in found))
    lost = [isolated(method.name) for method in of.methods if not method.is_sound]
    unknown = [
        isolated(method.name)
        for method, stats in zip(of.methods, found, strict=True)
        if method.is_sound and not np.isfinite(stats["mean"]).all()
    ]
    left_out = f" Left out, since training diverged: {listed(lost)}." if lost and any(winners) else ""
    left_out += f" Left out, since its {of.what} is not finite: {listed(unknown)}." if unknown else ""
    poor = [isolated(m.name) for m in of.methods if m.is_sound and not m.may_be_starred(of.metric)]
    left_out += f" Left out, since no better than a guess: {listed(poor)}." if poor and any(winners) else ""
    return _sentence(winners, texts, tail, of) + left_out


def _sentence(winners: Sequence[str], texts: Sequence[str], tail: str, of: Comparison) -> str:
    first, second = winners
    able = [method.name for method in of.methods if method.may_be_starred(of.metric)]
    if len(able) < 2:
        lost = f"All methods but {isolated(able[0])}" if able else "All of these runs"
        others = [method.is_sound for method in of.methods if method.name not in able]
        fault = "diverged" if not any(others) else "diverged or are no better than a guess"
        fault = "are no better than a guess" if all(others) else fault
        return f"{lost} {fault}, so none is called the best."
    if not first and not second:
        noise = f" by more than the noise of {of.seeds} seeds" if of.seeds > 1 else ""
        text = f"No method is better than all others{noise}, for the average client or for {tail}."
    elif not first:
        text = f"{tail[0].upper()}{tail[1:]} is served best by {second} ({of.what} {texts[1]}); "
        text += "for the average client no method is best."
    else:
        text = f"The average client is served best by {first} ({of.what} {texts[0]})"
        same = "and so is " + tail if first == second else f"{tail} by {second}"
        text += f", {same} ({texts[1]})." if second else f"; for {tail} no method is best."
    return text if of.covered.is_complete else f"Over {of.covered.text}, {text[:1].lower()}{text[1:]}"


def caution(of: Comparison) -> str:
    """How far marks of the best can be trusted; empty where there are none."""
    if of.obstacles or len(of.methods) < 2:
        return ""
    if of.seeds == 1:
        return (
            "One seed each proves little: repeat the runs with other seeds to tell a difference from noise."
        )
    means = f"Means over {of.seeds} seeds ± their standard deviation"
    least = least_pairs(of.comparisons)
    if of.seeds < least:
        return f"{means}. With {of.seeds} seeds no difference can be significant: use at least {least}."
    return (
        f"{means}; best is marked only where the 95 % interval of the differences at equal seeds to every other method "
        "lies above 0."
    )


def tail_name(clients: float) -> str:
    """The words for the worst tenth of this many clients."""
    return "the worst tenth of the clients" if clients >= 20 else "the worst client"


def _named(method: str, seeds: Sequence[str], total: int) -> str:
    """A method, with the seeds of the runs that are meant where these are not all of them."""
    return method if len(seeds) == total else f"{method}, seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}"
