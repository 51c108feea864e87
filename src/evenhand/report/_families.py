"""What a report adds for runs with personal models, under attack, with limited availability, or a privacy guarantee.

Each has a section of the page that is empty for other runs; gains of personal models and the privacy that was spent
are also put into sentences, for the command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from evenhand.evaluation import SPLIT_NAMES, of_global, primary_metric, rank_correlation
from evenhand.report import formatting
from evenhand.report._comparison import Comparison, Method
from evenhand.report._view import (
    Group,
    NDArray,
    RunView,
    among,
    chosen,
    client_values,
    direction,
    has_examples,
    honest,
    undefined_at,
)
from evenhand.report.formatting import Cell, Row, Table, Value, capital, escape, over_seeds, section, value
from evenhand.text import counted, extent

# --- personal models: what clients gain from personal models ------------------------------------------------------


def personal(subject: Comparison) -> str:
    """The section on global and personal models; empty if nobody has a personal model."""
    methods = personalized(subject)
    if not methods:
        return ""
    rows = [row for method in methods for row in _personal_rows(method, subject.split, subject.metric)]
    caption = f"{capital(subject.quantity)} of the global model and of personal models"
    caption += "; means in percent" if subject.is_share else ""
    caption += f", {_over_clients(subject)}"
    caption += "; clients that never trained are left out" if left_out(methods) else ""
    head = ["Method", "Clients", "How many", "Global model", "Own model", "Gain", "Better", "Worse"]
    return section("What clients gain from personal models", Table(head, rows).html(caption))


def personalized(subject: Comparison) -> tuple[Method, ...]:
    """The methods whose clients have personal models."""
    place = (subject.split, subject.metric)
    return tuple(method for method in subject.methods if all(gains(run, *place) for run in method.runs))


def left_out(methods: Sequence[Method]) -> bool:
    """Whether some clients have no personal model because they never trained."""
    return any(untrained(run) for method in methods for run in method.runs)


def _personal_rows(method: Method, split: str, metric: str) -> list[Row]:
    scale, by_group = formatting.factor("mean", metric), dict[str, list[Gain]]()
    sign = direction("mean", metric)
    names = {"all": "trained", "honest": "honest and trained"} if left_out([method]) else {}
    for run in method.runs:
        for gain in gains(run, split, metric):
            by_group.setdefault(names.get(gain.group, gain.group), []).append(gain)
    rows: list[Row] = []
    for group, parts in by_group.items():
        if len(parts) < len(method.runs):  # a seed may have too few clients for thirds
            continue
        means = [[g.alone for g in parts], [g.own for g in parts], [sign * (g.own - g.alone) for g in parts]]
        counts = [[g.gained for g in parts], [g.lost for g in parts]]
        cells = [over_seeds(values, scale) for values in means]
        cells += [over_seeds(n) if len(n) > 1 else Value(f"{n[0]:,}") for n in counts]
        rows.append([method.name, group, Value(extent(gain.clients for gain in parts)), *cells])
    return rows


_THIRDS_FROM = 6
"""From this many clients on, they are also shown in thirds by size."""


class Gain(NamedTuple):
    """What some clients gain from personal models.

    Attributes:
      group: which clients.
      clients: how many of them have a value of the metric.
      alone: the mean of the metric over them with the global model.
      own: with their own models.
      gained: how many are served better by their own.
      lost: how many are served worse.
    """

    group: str
    clients: int
    alone: float
    own: float
    gained: int
    lost: int


def gains(run: RunView, split: str, metric: str) -> list[Gain]:
    """Of all honest clients that trained, of thirds of them by training examples, and of those unseen in training.

    Empty where clients have no personal models, and for runs saved by versions that did not measure it.
    """
    if of_global(metric) not in run.clients.get(split, {}):
        return []
    run = honest(run)
    own, alone = (client_values(run, split, name) for name in (metric, of_global(metric)))
    measured = np.flatnonzero(np.isfinite(own) & np.isfinite(alone) & trained(run))
    groups = {"all" if run.whole is None else "honest": measured}
    if len(measured) >= _THIRDS_FROM and "train" in run.sizes:
        ranked = measured[np.argsort(run.sizes["train"][measured], kind="stable")]
        names = ("smallest third", "middle third", "largest third")
        groups |= dict(zip(names, np.array_split(ranked, 3), strict=True))
    unseen = [] if run.unseen is None else gains(run.unseen, split, metric)[:1]
    return [
        *(_gain(group, own[at], alone[at], metric) for group, at in groups.items() if at.size),
        *(gain._replace(group="unseen in training") for gain in unseen),
    ]


def _gain(group: str, own: NDArray, alone: NDArray, metric: str) -> Gain:
    better = direction("mean", metric) * (own - alone)
    counts = int((better > 0).sum()), int((better < 0).sum())
    return Gain(group, own.size, float(alone.mean()), float(own.mean()), *counts)


def trained(run: RunView) -> NDArray:
    """Which clients have personal models, bool ``(K,)``: those that trained, where that is known.

    All have one where clients adapt the model that they are served, or where none of them took part in the training.
    """
    if run.last_round is None or run.info.get("adapts") or not run.last_round.any():
        return np.ones(len(run.client_ids), bool)
    return run.last_round > 0


def untrained(run: RunView) -> int:
    """How many honest clients have no personal model because they never trained."""
    return int((~trained(honest(run))).sum())


def in_words(run: RunView, split: str, metric: str) -> str:
    """The same in a sentence or two; empty where clients have no personal models."""
    by_group = {gain.group: gain for gain in gains(run, split, metric)}
    left_out, kind = untrained(run), "client" if run.malicious is None else "honest client"
    models, examples = int(trained(honest(run)).sum()), f"{SPLIT_NAMES[split]} examples"
    sentences: list[str] = []
    for group, name in (("all", kind), ("honest", kind), ("unseen in training", "unseen client")):
        if (gain := by_group.get(group)) is not None:
            noun = counted(gain.clients, name)
            if name == kind and gain.clients < models:  # some with a personal model are not measured
                has = "has" if gain.clients == 1 else "have"
                noun += f" that trained and {has} {examples}" if left_out else f" with {examples}"
            elif name == kind and left_out:
                noun += " that trained"
            verb, whose = ("is", "its") if gain.gained == 1 else ("are", "their")
            means = f"mean {value(gain.own, metric)}, global model {value(gain.alone, metric)}"
            sentences.append(
                f"Of {noun}, {gain.gained:,} {verb} served better by {whose} personal model than by the global "
                f"model, {gain.lost:,} worse ({means})."
            )
    if left_out and sentences:
        verb = "is" if left_out == 1 else "are"
        sentences.append(f"{counted(left_out, kind)} never trained and {verb} left out.")
    return " ".join(sentences)


# --- clients that took no part in the training ----------------------------------------------------------------------


def newcomers(subject: Comparison) -> str:
    """The section on clients unseen in training, beside those that trained; empty where no run has any."""
    rows = list[Row]()
    for method in subject.methods:
        others = tuple(run.unseen for run in method.runs if run.unseen is not None)
        if len(others) == len(method.runs):
            kind = "in training" if all(run.whole is None for run in method.runs) else "in training, honest"
            rows += [_served(method.name, kind, method.runs, subject)]
            rows += [_served(method.name, "unseen in training", others, subject)]
    if not rows:
        return ""
    head = ["Method", "Clients", "How many", *formatting.COMPARED.values()]
    unit = " in percent (variance: %²)" if subject.is_share else ""
    caption = f"{capital(subject.quantity)} per client{unit}, {_over_clients(subject)}"
    return section("Clients unseen in training", Table(head, rows).html(caption))


def _served(name: str, kind: str, runs: tuple[RunView, ...], subject: Comparison) -> Row:
    """A row of the comparing statistics over a group of clients, and how many of these they cover."""
    stats = Method(name, runs).statistics(subject.split, subject.metric)
    cells = [over_seeds(stats[key], formatting.factor(key, subject.metric)) for key in formatting.COMPARED]
    return [name, kind, Value(extent(stats["clients"])), *cells]


def _over_clients(subject: Comparison) -> str:
    """Which clients the numbers of a group cover, and that they are over seeds, for a caption."""
    over = "; ± over seeds" if subject.seeds > 1 else ""
    return f"over clients with {SPLIT_NAMES[subject.split]} examples{over}"


def newcomers_in_words(run: RunView, split: str, metric: str) -> str:
    """The same of one run in a sentence; empty where it has no such clients."""
    if run.unseen is None:
        return ""
    count, examples = (
        int(np.isfinite(client_values(run.unseen, split, metric)).sum()),
        f"{SPLIT_NAMES[split]} examples",
    )
    if not count:
        return f"No client unseen in training has {examples}, so it is not known how they are served."
    stats = Method("", (run.unseen,)).means(split, metric)
    return (
        f"Unseen in training: {counted(count, 'client')} with {examples}, mean "
        f"{value(stats['mean'], metric)}, worst 10 % {value(stats['worst10'], metric)}."
    )


# --- attacks: how honest and malicious clients are served ---------------------------------------------------------

_MOST_NAMED = 20


def attacked(subject: Comparison) -> str:
    """The section on honest and malicious clients; empty where nobody attacked."""
    every = [run.whole or run for run in subject.runs]
    if all(run.malicious is None for run in every):
        return ""
    rows = list[Row]()
    groups: tuple[Group, ...] = ("all", "honest", "malicious")
    for method, group in product(subject.methods, groups):
        runs = tuple(among(run.whole or run, group) for run in method.runs)
        if all(len(run.client_ids) for run in runs):
            rows.append(_served(method.name, group, runs, subject))
    head = ["Method", "Clients", "How many", *formatting.COMPARED.values()]
    unit = " in percent (variance: %²)" if subject.is_share else ""
    caption = f"{capital(subject.quantity)} per client{unit}, {_over_clients(subject)}"
    table = Table(head, rows).html(caption)
    # Of several seeds, the table of further metrics has the mean.
    alone = [method for method in subject.methods if len(method.runs) == 1]
    lines = [
        (f"{method.name}: " if len(subject.methods) > 1 else "") + backdoor_line(planted)
        for method in alone
        if (planted := method.runs[0].info.get("backdoor"))
    ]
    notes = map(formatting.note, [_malicious_names(every), *lines])
    return section("Honest and malicious clients", table, *notes)


def backdoor_line(backdoor: Mapping[str, Any]) -> str:
    """How well a backdoor works, in a sentence."""
    success, examples = (
        backdoor["success"],
        f"{backdoor['examples']:,} {SPLIT_NAMES[backdoor['split']]} examples",
    )
    if success is None:
        return f"Backdoor: honest clients have no {SPLIT_NAMES[backdoor['split']]} examples of other classes."
    return (
        f"Backdoor: with the trigger, {formatting.percent(success)} of the honest clients' {examples} of other classes "
        f"get class {backdoor['label']}, the attacker's."
    )


def _malicious_names(runs: Sequence[RunView]) -> str:
    """Who was malicious, where that is the same in all runs."""
    names = {tuple(among(run, "malicious").client_ids) for run in runs if run.malicious is not None} - {()}
    if len(names) != 1:
        return (
            "Malicious clients differ between the runs. All other client metrics on this page are of the honest "
            "clients of each run."
        )
    [ids] = names
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    others = (
        "All other client metrics on this page are of honest clients only."
        if any(run.malicious is not None and not run.malicious.all() for run in runs)
        else "No client is honest, so the numbers on this page are of malicious clients."
    )
    return (
        f"{counted(len(ids), 'malicious client')}: {', '.join(ids[:_MOST_NAMED])}{more}. "
        f"They are measured on clean examples, like all others. {others}"
    )


# --- availability: how often clients could take part, and how they are served ----------------------------------------


def available(subject: Comparison) -> str:
    """The section on how often clients were available; empty where all always were."""
    methods = availability_limited(subject)
    if not methods:
        return ""
    split, metric, rows = subject.split, subject.metric, list[Row]()
    for method in methods:
        runs = [chosen(run, _covers(run, split, metric)) for run in method.runs]
        groups = [_by_availability(run) for run in runs]
        # Seeds may have other clients that were never available: only the groups that all of them have are shown.
        for name in [name for name in groups[0] if all(name in others for others in groups)]:
            parts = [chosen(run, some[name]) for run, some in zip(runs, groups, strict=True)]
            shares = [float(np.mean(_share(part))) for part in parts]
            stats = Method(method.name, tuple(parts)).statistics(split, metric)
            cells = [over_seeds(stats[key], formatting.factor(key, metric)) for key in _SHOWN]
            count = Value(extent(stats["clients"]))
            rows.append([method.name, Value(name), count, over_seeds(shares, 100.0), *cells])
    unit = "means in percent" if subject.is_share else "means"
    caption = f"{capital(subject.quantity)} by how often clients were available; {unit}, availability in percent of "
    caption += f"the rounds, {_over_clients(subject)}"
    head = ["Method", "Clients", "How many", "Available", *_SHOWN.values()]
    words = " ".join(availability_words(method, split, metric) for method in methods)
    return section(
        "How often clients were available", Table(head, rows).html(caption), formatting.note(words)
    )


_SHOWN = {"mean": "Mean", "worst10": "Worst tenth"}
"""The statistics of a group of clients."""


def availability_limited(subject: Comparison) -> tuple[Method, ...]:
    """The methods whose clients were not always available."""
    return tuple(m for m in subject.methods if all(run.availability is not None for run in m.runs))


def availability_words(method: Method, split: str, metric: str) -> str:
    """How far availability and what clients get go together, in a sentence."""
    if not any(differs_in_availability(run) for run in method.runs):
        return f"{method.name}: all clients were available equally often."
    defined = [_correlation(run, split, metric) for run in method.runs]
    defined = [entry for entry in defined if not math.isnan(entry["spearman"])]
    name = f"{SPLIT_NAMES[split]} {metric.replace('_', ' ')}"
    if not defined:
        return f"{method.name}: all clients have the same {name}, so it has no correlation with availability."
    return (
        f"{method.name}: the rank correlation (Spearman) of availability and {name} is "
        f"{over_seeds([entry['spearman'] for entry in defined]).joined()}, over "
        f"{extent(entry['clients'] for entry in defined)} clients with {SPLIT_NAMES[split]} examples."
    )


def attendance(run: RunView) -> dict[str, Any]:
    """How often the clients of a run were available: over clients, and its rank correlation with what they get.

    Returns:
      ``mean``, ``min`` and ``max`` of the shares of rounds, how many clients were ``never`` available, how many
      ``clients`` these numbers cover, and for each split the ``correlation`` with the primary metric.
    """
    share = _share(run)
    return {
        "mean": float(np.mean(share)),
        "min": float(np.min(share)),
        "max": float(np.max(share)),
        "never": int(np.sum(share == 0)),
        "clients": len(share),
        "correlation": {
            split: _correlation(run, split, primary_metric(metrics)) for split, metrics in run.clients.items()
        },
    }


def _correlation(run: RunView, split: str, metric: str) -> dict[str, Any]:
    values = client_values(run, split, metric)
    return {
        "metric": metric,
        "spearman": rank_correlation(_share(run), values),
        "clients": int(np.sum(np.isfinite(values))),
    }


def differs_in_availability(run: RunView) -> bool:
    """Whether some clients of a run were available more often than others."""
    return run.availability is not None and np.unique(run.availability).size > 1


def _share(run: RunView) -> NDArray:
    assert run.availability is not None
    return run.availability


def _covers(run: RunView, split: str, metric: str) -> NDArray:
    """Which clients the statistics of a metric cover, bool ``(K,)``: those with examples for which it is defined."""
    return has_examples(run, split) & ~undefined_at(run, split, metric)


def _by_availability(run: RunView) -> dict[str, NDArray]:
    """Which clients are in each group: those never available, and thirds of the others where there are enough.

    Clients that were available equally often are in one group, so there may be only two groups, or one.
    """
    share = _share(run)
    shares, counts = np.unique(share[share > 0], return_counts=True)
    ends, total = np.cumsum(counts), int(counts.sum())
    # All clients with one share are in the third of the middle one of them.
    third = 3 * (ends - counts // 2 - 1) // total if total >= _THIRDS_FROM else 0 * counts
    parts = [shares[third == i] for i in np.unique(third)]
    groups = dict(zip(_OFTEN[len(parts)], (np.isin(share, part) for part in parts), strict=True))
    return ({"never": share == 0} if (share == 0).any() else {}) | groups


_OFTEN = ((), ("available",), ("least often", "most often"), ("least often", "in between", "most often"))
"""The names of so many groups of clients that were available."""


# --- privacy: what a private method guarantees, and what it has spent ---------------------------------------------

_PRIVACY = {
    "Epsilon": "epsilon",
    "Delta": "delta",
    "Accountant": "accountant",
    "Neighbouring data": "neighbours",
    "Released": "released",
    "Under noise": "releases",
    "Assumed public": "public",
    "Not covered": "unprotected",
}
"""What a row says -> the name of it in :attr:`RunView.info`."""


def privacy(subject: Comparison) -> str:
    """The section on privacy; empty if no method guarantees any."""
    facts = {method.name: method.runs[0].info.get("privacy") for method in subject.methods}
    promises = {name: promise for name, promise in facts.items() if promise}
    if not promises:
        return ""
    rows: list[Row] = [
        [title, *(Cell(escape(_promised(promise, name)), "setting") for promise in promises.values())]
        for title, name in _PRIVACY.items()
    ]
    head = ["", *(promises if len(subject.methods) > 1 else ["Value"])]
    body = Table(head, rows).html("The privacy guarantee, and the assumptions that it rests on", "")
    none = ", ".join(name for name in subject.names if name not in promises)
    return section("Privacy", body, f"<p>No privacy is guaranteed by {escape(none)}.</p>" if none else "")


def privacy_line(promise: Mapping[str, Any]) -> str:
    """The privacy guarantee in a sentence."""
    return (
        f"Privacy: epsilon {_promised(promise, 'epsilon')} at delta {promise['delta']:g}, for "
        f"{promise['neighbours']} (accountant: {promise['accountant']})."
    )


def _promised(promise: Mapping[str, Any], name: str) -> str:
    """One part of a guarantee; files keep no infinity, and have nothing in its place."""
    part = promise[name]
    if name in ("epsilon", "delta"):
        return formatting.number(math.inf if part is None else float(part), 4)
    return "; ".join(part) if isinstance(part, list) else str(part)
