"""Runs side by side: which are one method, whether methods may be compared, and which is better by more than noise.

:func:`compare` sorts runs into methods by their settings and lists what stands in the way of a comparison; the
:class:`Comparison` says which methods are best in a statistic.  Then what is said of it in sentences: the verdict, how
far to trust it, and for which clients further metrics are undefined.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenhand import notebook
from evenhand.evaluation import SPLIT_NAMES, Finding, is_share, least_pairs, of_global, paired_difference
from evenhand.evaluation.metrics import BACKDOOR
from evenhand.report import _view
from evenhand.report._view import (
    Coverage,
    Runs,
    RunView,
    direction,
    few_sentence,
    honest,
    undefined_at,
    undefined_sentence,
)
from evenhand.report.formatting import COMPARED, Value, capital, factor, over_seeds, value
from evenhand.text import counted, isolated, listed, visible

NDArray = npt.NDArray[np.float64]


def compare(runs: Runs, metric: str | None = None) -> Comparison:
    """Sorts runs into methods and says whether these may be compared.

    **Under attack**, all numbers are of the honest clients; of all where each client is malicious.

    **A method** is all settings of a run but its seeds: the method's name and numbers, the model, the local work (step
    size, epochs, batch), the rounds and the cohort.  Runs that differ only in ``seed`` are one method, and so are runs
    that also differ in ``data_seed``: papers repeat experiments in this way, with clients or splits drawn anew, and the
    spread over the runs then includes that of the draw.  How fast or how often something was done (``lanes``,
    ``eval_every``, ``checkpoint``) does not matter.  Nor does what was measured besides (``metrics``,
    ``diagnostics``), what was kept (``keep_personal``), or whether masks were drawn, which cancel (``masks``).  A
    second run with the settings and the seed of a first is a separate method, because one draw would count twice.

    **Methods may be compared** when they had the same data (by the fingerprint where known, else by the clients' names
    and numbers of examples), evaluated the same clients, and ran as many rounds with as large cohorts, as many
    stragglers and under the same systems, all from the same seeds.  Models, step sizes and epochs may differ: they are
    what is compared.

    Args:
      runs: a run, several, or several by name; see :mod:`evenhand.report.figures`.
      metric: what they are compared by; None: the headline that all runs name, else the accuracy if all runs have
        one, else the loss.

    Raises:
      EvenhandError: there is no run, or the runs have no metric in common.

    Example:
      >>> import evenhand as eh
      >>> data = eh.testing.toy_data()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> runs = [eh.simulate(method, data, rounds=2, seed=seed) for seed in (0, 1)]
      >>> comparison = eh.report.compare({"fedavg": runs})
      >>> comparison.names, comparison.seeds, comparison.obstacles
      (['fedavg'], 2, ())
    """
    every = [honest(view) for view in _view.views(runs)]
    metric = _view.common_metric(every) if metric is None else metric
    groups = _as_methods(every)
    names, obstacles = map(visible, _method_names(groups)), tuple(map(visible, _obstacles(groups)))
    methods = tuple(Method(name, tuple(group)) for name, group in zip(names, groups, strict=True))
    return Comparison(methods, metric, _view.headline_split(every, metric), obstacles)


# --- methods and their comparison ---------------------------------------------------------------------------------

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
        by_run = [_view.statistics(run, split, metric) for run in self.runs]
        # Of runs saved by earlier versions, some lack the statistics over classes.
        keys = dict.fromkeys(key for stats in by_run for key in stats)
        return {key: np.array([stats.get(key, math.nan) for stats in by_run]) for key in keys}

    def means(self, split: str, metric: str) -> dict[str, float]:
        """The means over the runs of these statistics."""
        return {key: float(np.mean(values)) for key, values in self.statistics(split, metric).items()}

    def clients(self, split: str, metric: str) -> NDArray:
        """A metric of each client, ``(runs, K)``; only where the runs have the same clients."""
        return np.stack([_view.client_values(run, split, metric) for run in self.runs])


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
        if self.runs == self.total:
            runs = "Both runs" if self.total == 2 else f"All {self.total} runs"
        return f"{runs}{', for example' if self.varies else ''}: {self.finding.sentence}"


class Comparison(NamedTuple):
    """Methods compared by one metric on one split, over their honest clients.

    Attributes:
      methods: in the order of their first runs; of a run under attack, its honest clients
        (:func:`evenhand.report.honest`).
      metric: what :func:`compare` was asked for; without that the headline that all runs name (``evenhand run
        --headline``, the metric of a study's choice), else the accuracy if all runs have one, else the loss.
      split: ``"test"`` if all runs have results on it, else ``"valid"``, else ``"train"``.
      obstacles: differences because of which the methods' numbers must not be compared, such as
        ``"data (alpha 0.1, 0.5)"``; empty for a fair comparison.
    """

    methods: tuple[Method, ...]
    metric: str
    split: str
    obstacles: tuple[str, ...]

    def __repr__(self) -> str:
        seeds = counted(self.seeds, "seed")
        return f"Comparison({listed(self.names)}; {self.quantity} over {self.covered.text}, {seeds} each)"

    def _repr_html_(self) -> str:
        stats = [method.statistics(self.split, self.metric) for method in self.methods]
        columns = {
            key: [over_seeds(by_key[key], factor(key, self.metric)) for by_key in stats] for key in COMPARED
        }
        for key, shown in columns.items():
            values = [by_key[key] for by_key in stats]
            best = self.winners(values, [cell.text for cell in shown], direction(key, self.metric))
            columns[key] = [cell._replace(is_marked=i in best) for i, cell in enumerate(shown)]
        rows = [
            [notebook.name(method.name), *(_cell(column[i]) for column in columns.values())]
            for i, method in enumerate(self.methods)
        ]
        percent = " in % (variance: %²)" if self.is_share else ""
        over = f"{capital(self.quantity)}{percent} over {self.covered.text}"
        head = ["method", *(self.worded(name[:1].lower() + name[1:]) for name in COMPARED.values())]
        notices = notebook.remarks([notice.text for notice in self.notices], "comparison.notices")
        sentences = [verdict(self), caution(self)] if len(self.methods) > 1 else []
        return notebook.piece(
            notices,
            notebook.paragraph(
                f"Comparison: {listed([notebook.name(name) for name in self.names])}", "title"
            ),
            *(notebook.paragraph(notebook.escape(sentence)) for sentence in filter(None, sentences)),
            notebook.table(head, rows),
            notebook.paragraph(notebook.escape(over), "note"),
        )

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
            (f"{method.name}, seed {run.info.get('seed', i)}" if len(method.runs) > 1 else method.name, run)
            for method in self.methods
            for i, run in enumerate(method.runs)
        ]

    @property
    def client_kind(self) -> str:
        """What a client is, such as ``"hospital"``, where all runs name the same column; else empty."""
        columns = {str(run.info.get("client_column") or "") for run in self.runs}
        column = columns.pop() if len(columns) == 1 else ""
        return "" if column == "client" else visible(column)

    @property
    def is_pooled(self) -> bool:
        """Whether each run trained one model on the examples of all clients in one place, and nothing was sent."""
        return _view.is_pooled(self.runs)

    def worded(self, text: str) -> str:
        """Words about clients, which are called groups if :attr:`is_pooled`; names of users are not among them."""
        return _view.worded(self.runs, text)

    @property
    def covered(self) -> Coverage:
        """Which clients the numbers cover."""
        return _view.covered(self.runs, self.split, self.metric)

    @property
    def notices(self) -> list[Notice]:
        """What to know before trusting the numbers: each kind of finding once, with the runs that have it."""
        groups = dict[tuple[str, ...], list[tuple[str, str, Finding]]]()
        for name, run in [(method.name, run) for method in self.methods for run in method.runs]:
            first = dict[tuple[str, ...], Finding]()  # the worst first, as in the run
            for finding in run.findings:
                first.setdefault((finding.kind, finding.split, _meaning(finding)), finding)
            for kind, finding in first.items():
                groups.setdefault(kind, []).append((name, str(run.info.get("seed")), finding))
        notices, total = list[Notice](), len(self.runs)
        for entries in groups.values():
            seeds = {m.name: [seed for name, seed, _ in entries if name == m.name] for m in self.methods}
            names = tuple(_named(m.name, seeds[m.name], len(m.runs)) for m in self.methods if seeds[m.name])
            varies = len({finding.sentence for *_, finding in entries}) > 1
            notices.append(Notice(entries[0][2], names if total > 1 else (), len(entries), total, varies))
        return notices

    @property
    def seeds(self) -> int:
        """The largest number of runs of a method."""
        return max(len(method.runs) for method in self.methods)

    @property
    def quantity(self) -> str:
        """The metric on its split, in words: ``"test accuracy"``."""
        return f"{SPLIT_NAMES[self.split]} {visible(self.metric)}"

    @property
    def is_share(self) -> bool:
        """Whether the metric is a share, to be shown in percent."""
        return is_share(self.metric)

    @property
    def same_clients(self) -> bool:
        """Whether all runs have the same clients with the same examples."""
        return len({_data_of(run) for run in self.runs}) == len({clients_of(run) for run in self.runs}) == 1

    @property
    def candidates(self) -> list[Method]:
        """The methods that may be marked as the best (:func:`may_be_starred`)."""
        return [method for method in self.methods if method.may_be_starred(self.metric)]

    @property
    def comparisons(self) -> int:
        """How many differences are tested together: those of a method to all others that did not diverge."""
        # That a method only guesses is seen in its results: leaving it out would make marks too easy.
        return max(1, sum(method.is_sound for method in self.methods) - 1)

    @property
    def may_mark(self) -> bool:
        """Whether a best method can be marked at all: of two candidates, fairly compared, with one seed or enough."""
        enough = self.seeds == 1 or self.seeds >= least_pairs(self.comparisons)
        return not self.obstacles and len(self.candidates) > 1 and enough

    def winners(self, values: Sequence[NDArray], texts: Sequence[str], sign: int) -> set[int]:
        """Which methods are best in a statistic by more than noise.

        No method is if the comparison is unfair, or if fewer than two may be (:func:`may_be_starred`).  With one run
        each, the method with the best value is, and so are those that show the same, unless all do: one seed can say
        no more.  With several seeds, a method is the best if its paired difference (over equal seeds) to every other
        method is above 0 and may be marked (:meth:`evenhand.evaluation.PairedDifference.may_be_marked`): its 95 %
        interval excludes 0, and there are enough seeds for the test by signs.

        Args:
          values: the statistic, ``(runs,)`` for each method.
          texts: how each method's mean is shown.
          sign: 1 if more is better, -1 if less is.
        """
        starred = [method.may_be_starred(self.metric) for method in self.methods]
        able = [i for i, x in enumerate(values) if starred[i] and np.isfinite(x).all()]
        if self.obstacles or len(able) < 2:
            return set()
        # One candidate is enough: if the method with the highest mean is not better than all, then none is.
        top = max(able, key=lambda i: float(sign * np.mean(values[i])))
        if self.seeds == 1:
            alike = {i for i in able if texts[i] == texts[top]}
            return set() if len(alike) == len(self.methods) else alike
        gains = [paired_difference(sign * values[top], sign * values[i]) for i in able if i != top]
        is_best = all(gain.may_be_marked(self.comparisons) for gain in gains)  # its mean is the highest
        return {top} if is_best else set()


def _cell(shown: Value) -> str:
    """A cell of a notebook's table; the best of its column is bold."""
    text = notebook.escape(shown.joined())
    return f"<strong>{text}</strong>" if shown.is_marked else text


def _meaning(finding: Finding) -> str:
    """The first sentence without its numbers: findings of one kind may say opposite things."""
    return re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", finding.sentence.partition(". ")[0])


def _named(method: str, seeds: Sequence[str], total: int) -> str:
    """A method, with the seeds of the runs that are meant where these are not all of them."""
    return method if len(seeds) == total else f"{method}, seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}"


def may_win(run: RunView, splits: Collection[str] | None = None) -> bool:
    """Whether a run may be called the best: not if it diverged, or if a number of an honest client is not finite.

    Args:
      run: the run.
      splits: those that count; None: all.
    """
    run = honest(run)

    def is_finite(split: str, metric: str) -> bool:
        sound = np.isfinite(_view.client_values(run, split, metric)) | undefined_at(run, split, metric)
        return bool(sound[_view.has_examples(run, split)].all())

    judging = [split for split in run.clients if splits is None or split in splits]
    metrics = [(split, metric) for split in judging for metric in run.clients[split]]
    return not _view.diverged(run, splits) and all(is_finite(*place) for place in metrics)


_OF_PROBABILITIES = ("loss", "brier", "calibration_error")
"""Metrics in which a run is no better than one constant answer if its loss is not: they judge its probabilities."""

_OF_SQUARES = ("loss", "squared_error", "r2")
"""The same for real targets: the loss, and what squared errors decide."""


def may_be_starred(run: RunView, metric: str) -> bool:
    """Whether a run may be marked as the best in a metric: if it may win, and is better than one constant answer.

    A run of classes that guesses (the finding "guessing") is the best in none.  One whose accuracy alone is that of a
    guess, as of a rare label, may be the best in any other metric: in its loss, and in metrics of its probabilities, if
    the loss is below that of the best constant.  A run of real targets whose loss is that of a guess may be the best in
    other errors: outliers can decide the squared error, and hardly change the absolute one.
    """
    if not may_win(run, _JUDGING):
        return False
    is_guess = any(map(_is_of_a_guess, run.findings))
    if "accuracy" not in run.clients.get("train", {}):
        return not (_is_of_the_loss(run, metric) and (is_guess or _reached_by_a_constant(run)))
    if is_guess or (metric in _OF_PROBABILITIES and _reached_by_a_constant(run)):
        return False
    of_accuracy = run.info.get("base_rate") or any(x.kind in ("base_rate", "guessing") for x in run.findings)
    return metric != "accuracy" or not of_accuracy


def _is_of_the_loss(run: RunView, metric: str) -> bool:
    """Whether a metric of real targets is of squared errors, or has the values of the loss under another name."""
    return metric in _OF_SQUARES or all(
        np.allclose(*(_view.client_values(run, split, x) for x in (metric, "loss")), atol=0, equal_nan=True)
        for split in run.clients
    )


def _is_of_a_guess(finding: Finding) -> bool:
    """Whether a run is no better than one constant answer, by more than its accuracy."""
    # Earlier versions had one kind for this and for what only the accuracy hides.
    return finding.kind == "guessing" and "Accuracy cannot show" not in finding.sentence


def _reached_by_a_constant(run: RunView) -> bool:
    """Whether the best constant answer has a loss at least as good for the run's clients, where that is known."""
    if (constant := run.info.get("constant")) is None:
        return False
    return _view.statistics(honest(run), constant["split"], constant["metric"])["mean"] >= constant["mean"]


# --- which runs are one method, and what differs between methods --------------------------------------------------

SEEDS = ("seed", "data_seed")
"""Settings that may differ between the runs of a method."""

_IDLE = (
    *("lanes", "checkpoint", "eval_every", "quiet", "out", "overwrite", "config", "watch", "headline"),
    *("private_metrics", "private_limit", "metrics", "diagnostics", "keep_personal", "masks"),
)
"""Settings that do not affect the numbers that are compared."""

_DATA = (
    *("data", "clients", "alpha", "test_fraction", "data_seed", "client_column", "label_column"),
    *("features", "drop", "regression", "text"),
)

_BUDGET = ("rounds", "cohort", "stragglers")

_MOST_SETTINGS = 3
"""Most settings in a method's name."""


def _as_methods(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Runs grouped by method, and sorted by seed; see :func:`~evenhand.report.compare`."""
    groups: dict[Any, list[RunView]] = {}
    for i, run in enumerate(runs):
        key = [run.title, *(f"{name}={setting!r}" for name, setting in _method_settings(run).items())]
        if "data_seed" not in run.config:  # else its settings identify the data
            key.append(repr(_data_of(run)))
        if not run.config and run.title == _view.ANONYMOUS:
            key.append(str(i))
        groups.setdefault(tuple(key), []).append(run)
    parts = [part for group in groups.values() for same in _by_data(group) for part in _without_repeats(same)]
    return [sorted(part, key=_trial_order) for part in parts]


def _method_names(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """The titles; equal ones are followed by the settings that differ, or numbered where none does."""
    titles = [group[0].title for group in groups]
    names: list[str] = []
    for title, group in zip(titles, groups, strict=True):
        alike = [_method_settings(other[0]) for other in groups if other[0].title == title]
        settings = _method_settings(group[0])
        keys = [key for key in settings if len({repr(other.get(key)) for other in alike}) > 1]
        added = [f" {key.rsplit('.', 1)[-1]}={_brief(settings[key])}" for key in keys[:_MOST_SETTINGS]]
        names.append(title + "".join(added))
    counts = [names[: i + 1].count(name) if names.count(name) > 1 else 0 for i, name in enumerate(names)]
    return [f"{name} ({count})" if count else name for name, count in zip(names, counts, strict=True)]


def _obstacles(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """What differs between the methods but must not, for a comparison."""
    differences: list[str] = []
    if _differ(groups, _data_of):
        configs = [flat_settings(run.config) for group in groups for run in group]
        texts_by_key = {key: dict.fromkeys(_brief(c[key]) for c in configs if key in c) for key in _DATA}
        several = {key.replace("_", " "): texts for key, texts in texts_by_key.items() if len(texts) > 1}
        names = [f"{key} {', '.join(texts)}" for key, texts in several.items()]
        differences.append(f"data ({'; '.join(names)})" if names else "data")
    if _differ(groups, lambda run: run.info.get("seed")):
        seeds = dict.fromkeys(", ".join(str(run.info.get("seed")) for run in group) for group in groups)
        differences.append(f"seeds ({'; '.join(seeds)})")
    tried = {name for group in groups for name in group[0].info.get("tried") or ()}
    spent = {
        name: dict.fromkeys(_brief(_budget(group[0])[name]) for group in groups)
        for name in _BUDGET
        if name not in tried
    }
    words = {"rounds": "rounds", "cohort": "cohorts", "stragglers": "shares of stragglers"}
    differences += [f"{words[name]} ({', '.join(texts)})" for name, texts in spent.items() if len(texts) > 1]
    systems = dict.fromkeys(_brief(group[0].config.get("systems") or "none") for group in groups)
    differences += [f"systems ({', '.join(systems)})"] if len(systems) > 1 else []
    if not differences and _differ(groups, clients_of):
        # The clients of honest runs are all that were evaluated; under an attack, those that do not attack.
        is_attacked = any(run.whole is not None for group in groups for run in group)
        differences.append("honest clients" if is_attacked else "evaluated clients")
    if not differences and _differ(groups, _trial):
        differences.append("pairing of seeds with data")
    return differences


def _data_of(run: RunView) -> str:
    """A key that is equal for equal data: the fingerprint where known, else that of the clients."""
    fingerprint = run.info.get("fingerprint")
    # Malicious clients are a part of the data, and may differ by seed.
    return clients_of(run.whole or run) if fingerprint is None else str(fingerprint)


def clients_of(run: RunView) -> str:
    """A key that is equal for the same clients with equally many examples."""
    digest = hashlib.blake2b(repr(tuple(run.client_ids)).encode("utf-8", "surrogatepass"))
    for split in sorted(run.sizes):
        sizes = np.asarray(run.sizes[split], np.int64)
        if sizes.any():
            digest.update(split.encode() + sizes.tobytes())
    return digest.hexdigest()


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    settings: dict[str, Any] = {}
    for key, setting in config.items():
        name = f"{prefix}{key}"
        settings |= flat_settings(setting, f"{name}.") if isinstance(setting, Mapping) else {name: setting}
    return settings


def setting_text(setting: Any, most: int = 200) -> str:
    """A setting as a table shows it."""
    if isinstance(setting, float):
        return f"{setting:.12g}"
    text = setting if isinstance(setting, str) else json.dumps(setting, default=str)
    return text if len(text) <= most else text[: most - 1] + "…"


def _method_settings(run: RunView) -> dict[str, Any]:
    """The settings that define a method, with the rounds done rather than those asked for."""
    settings = flat_settings(run.config)
    kept = {name: setting for name, setting in settings.items() if name not in (*SEEDS, *_IDLE)}
    return kept | {name: setting for name, setting in _budget(run).items() if setting is not None}


def _budget(run: RunView) -> dict[str, Any]:
    budget = {name: run.info.get(name, run.config.get(name)) for name in _BUDGET}
    return budget | {"stragglers": budget["stragglers"] or 0}


def _by_data(group: list[RunView]) -> list[list[RunView]]:
    """The group split by data, where the data changed although ``data_seed`` did not."""
    # Seeds of the data that each gave one data set differ by design; two for one seed mean that the data changed.
    seeds_and_data = {(repr(run.config.get("data_seed")), _data_of(run)) for run in group}
    if len({seed for seed, _ in seeds_and_data}) == len(seeds_and_data):
        return [group]
    keys = dict.fromkeys(_data_of(run) for run in group)
    return [[run for run in group if _data_of(run) == key] for key in keys]


def _without_repeats(group: list[RunView]) -> list[list[RunView]]:
    """The group split so that no part has two runs with the same seed and data."""
    trials = [_trial(run) for run in group]
    repeats = [trials[:i].count(trial) for i, trial in enumerate(trials)]
    numbered = list(zip(repeats, group, strict=True))
    return [[run for count, run in numbered if count == part] for part in sorted(set(repeats))]


def _trial(run: RunView) -> tuple[object, str, str]:
    return run.info.get("seed"), _data_of(run), clients_of(run)


def _trial_order(run: RunView) -> tuple[int, str, str, str]:
    seed, data, clients = _trial(run)
    return seed if isinstance(seed, int) else -1, str(seed), data, clients


def _differ(groups: Sequence[Sequence[RunView]], fact: Callable[[RunView], object]) -> bool:
    """Whether a fact takes different sets of values on the methods' runs."""
    return len({frozenset(map(fact, group)) for group in groups}) > 1


def _brief(setting: Any) -> str:
    """A setting as part of a name; of a path, the last component."""
    text = setting_text(setting, 40)
    return Path(text).name if "/" in text else text


# --- the result in sentences --------------------------------------------------------------------------------------


def verdict(subject: Comparison) -> str:
    """What a comparison shows, in a sentence or two; method names are isolated (:func:`evenhand.text.isolated`)."""
    if subject.obstacles:
        differences = listed(subject.obstacles)
        return f"These runs are shown side by side, not compared: they differ in their {differences}."
    stats = [method.statistics(subject.split, subject.metric) for method in subject.methods]
    sign, winners, texts = direction("mean", subject.metric), list[str](), list[str]()
    for key in ("mean", "worst10"):
        values = [by_key[key] for by_key in stats]
        shown = [value(float(np.mean(x)), subject.metric) for x in values]
        best = sorted(subject.winners(values, shown, sign))
        winners.append(listed([isolated(subject.names[i]) for i in best]))
        texts.append(shown[best[0]] if best else "")
    sound = [(m, by_key) for m, by_key in zip(subject.methods, stats, strict=True) if m.is_sound]
    lost = [m for m in subject.methods if not m.is_sound]
    unknown = [m for m, by_key in sound if not np.isfinite(by_key["mean"]).all()]
    poor = [m for m, _ in sound if not m.may_be_starred(subject.metric)]
    tail = subject.worded(tail_name(min(float(np.min(by_key["clients"])) for by_key in stats)))
    return (
        _sentence(winners, texts, tail, subject)
        + _left_out("training diverged", lost if any(winners) else [])
        + _left_out(f"{subject.quantity} not finite", unknown)
        + _left_out("no better than one constant answer", poor if any(winners) else [])
    )


def _left_out(reason: str, methods: Sequence[Method]) -> str:
    names = listed([isolated(method.name) for method in methods])
    return f" Left out ({reason}): {names}." if methods else ""


def _sentence(winners: Sequence[str], texts: Sequence[str], tail: str, subject: Comparison) -> str:
    """Who serves the average client best, and who the worst tenth; or why none is called the best."""
    (first, second), able, quantity = winners, subject.candidates, subject.quantity
    average = subject.worded("the average client")
    if len(able) < 2:
        whole = f"All of these {'runs' if subject.seeds == 1 else 'methods'}"
        lost = f"All methods but {isolated(able[0].name)}" if able else whole
        others = [m.is_sound for m in subject.methods if not m.may_be_starred(subject.metric)]
        faults = ["diverged"] * (not all(others)) + ["are no better than one constant answer"] * any(others)
        # Not each of a method's seeds need have failed.
        have = "" if subject.seeds == 1 else "have runs that "
        # Other metrics may see more than this one.
        place = f" in {quantity}" if any(others) else ""
        return f"{lost} {have}{' or '.join(faults)}, so none is called the best{place}."
    if not first and not second:
        noise = f" by more than the noise of {subject.seeds} seeds" if subject.seeds > 1 else ""
        text = f"No method is better than all others{noise}, for {average} or for {tail}."
    elif not first:
        text = f"{capital(tail)} is served best by {second} ({quantity} {texts[1]}); "
        text += f"for {average} no method is best."
    else:
        text = f"{capital(average)} is served best by {first} ({quantity} {texts[0]})"
        same = "and so is " + tail if first == second else f"{tail} by {second}"
        text += f", {same} ({texts[1]})." if second else f"; for {tail} no method is best."
    covered = subject.covered
    return text if covered.is_complete else f"Over {covered.text}, {text[:1].lower()}{text[1:]}"


def caution(subject: Comparison) -> str:
    """How far marks of the best can be trusted; empty where there are none."""
    if subject.obstacles or len(subject.methods) < 2:
        return ""
    if (seeds := subject.seeds) == 1:
        return (
            "One seed each proves little: repeat the runs with other seeds to tell a difference from noise."
        )
    means = f"Means over {seeds} seeds ± their standard deviation"
    if seeds < (least := least_pairs(subject.comparisons)):
        return f"{means}. With {seeds} seeds no difference can be significant: use at least {least}."
    return (
        f"{means}; best is marked only where the 95 % interval of the differences at equal seeds to every other method "
        "lies above 0."
    )


def tail_name(clients: float) -> str:
    """The words for the worst tenth of this many clients."""
    return "the worst tenth of the clients" if clients >= 20 else "the worst client"


# --- metrics of sets of examples that runs were asked for ---------------------------------------------------------


def further(subject: Comparison) -> list[Comparison]:
    """The comparison by each further metric that was asked for in all runs, on the same split.

    The accuracy or, without one, the loss comes first where the headline is about another metric.
    """
    first, *others = [list(run.info.get("metrics") or ()) for run in subject.runs]
    names = [name for name in first if not name.startswith(of_global("")) and all(name in x for x in others)]
    names = dict.fromkeys([_view.usual_metric(subject.runs), *names])
    return [subject._replace(metric=name) for name in names if name != subject.metric]


def metric_remarks(subject: Comparison) -> list[str]:
    """For how many clients metrics are undefined or rest on few examples, and which some runs lack, in sentences."""
    shown = dict.fromkeys([subject.metric, *(about.metric for about in further(subject))])
    measured = dict.fromkeys(name for run in subject.runs for name in run.info.get("metrics") or ())
    # No option asks for the success of a backdoor: runs without one have none.
    others = (*shown, BACKDOOR)
    lacking = [name for name in measured if name not in others and not name.startswith(of_global(""))]
    remarks = [undefined_sentence(subject.runs, subject.split, name) for name in shown]
    remarks.append(few_sentence(subject.runs, subject.split, list(shown)))
    missing = f"Not every run has the {listed(lacking)} of its clients: repeat the others with --metrics."
    return [subject.worded(remark) for remark in [*remarks, missing if lacking else ""] if remark]
