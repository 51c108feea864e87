"""What a report adds for runs with personal models, under attack, or with a privacy guarantee.

Each has a section of the page that is empty for other runs; gains of personal models and the privacy that was spent
are also put into sentences, for the command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand.evaluation import SPLIT_NAMES, is_higher_better, is_share, of_global
from evenhand.report._view import NDArray, RunView, among, client_values, honest, statistics
from evenhand.report.comparison import Comparison, Method
from evenhand.report.formatting import Cell, escape, factor, number, plural, table, value

__all__ = [
    "Gain",
    "attacked",
    "gains",
    "in_words",
    "left_out",
    "personal",
    "personalized",
    "privacy",
    "privacy_line",
    "trained",
    "untrained",
]


# --- personal models: what clients gain by models of their own ----------------------------------------------------


def personal(subject: Comparison) -> str:
    """The section on global and personal models; empty where nobody has a model of its own."""
    split, metric, methods = subject.split, subject.metric, personalized(subject)
    if not methods:
        return ""
    rows = [row for method in methods for row in _personal_rows(method, split, metric)]
    unit = "; means in percent" if is_share(metric) else ""
    over = "; ± over seeds" if subject.seeds > 1 else ""
    caption = (
        f"{subject.what[:1].upper()}{subject.what[1:]} of the global model and of clients' own{unit}{over}"
    )
    head = ["Method", "Clients", "How many", "Global model", "Own model", "Gain", "Better", "Worse"]
    caption += "; clients that never trained are left out" if left_out(methods) else ""
    body = table(caption, head, rows, "numbers")
    return f"<section>\n<h2>What clients gain by models of their own</h2>\n{body}\n</section>"


def personalized(subject: Comparison) -> tuple[Method, ...]:
    """The methods whose clients have models of their own."""
    of = (subject.split, subject.metric)
    return tuple(method for method in subject.methods if all(gains(run, *of) for run in method.runs))


def left_out(methods: Sequence[Method]) -> bool:
    """Whether some clients have no personal model because they never trained."""
    return any(untrained(run) for method in methods for run in method.runs)


def _personal_rows(method: Method, split: str, metric: str) -> list[list[str | Cell]]:
    scale = 100.0 if is_share(metric) else 1.0
    by_group: dict[str, list[Gain]] = {}
    names = {"all": "trained", "honest": "honest and trained"} if left_out([method]) else {}
    for run in method.runs:
        for each in gains(run, split, metric):
            by_group.setdefault(names.get(each.who, each.who), []).append(each)
    rows: list[list[str | Cell]] = []
    for who, group in by_group.items():
        numbers = [
            [scale * each.alone for each in group],
            [scale * each.own for each in group],
            [scale * (each.own - each.alone) for each in group],
        ]
        counts = [[each.gained for each in group], [each.lost for each in group]]
        texts = [
            *map(_mean_over_seeds, numbers),
            *(_mean_over_seeds(of) if len(of) > 1 else f"{of[0]:,}" for of in counts),
        ]
        cells = [Cell(escape(text), "number") for text in texts]
        rows.append(
            [method.name, Cell(escape(who), "number"), Cell(f"{group[0].clients:,}", "number"), *cells]
        )
    return rows


_THIRDS_FROM = 6
"""From this many clients on, they are also shown in thirds by size."""


class Gain(NamedTuple):
    """What some clients gain by models of their own.

    Attributes:
      who: which clients.
      clients: how many of them have a value of the metric.
      alone: the mean of the metric over them with the global model.
      own: with their own models.
      gained: how many are served better by their own.
      lost: how many are served worse.
    """

    who: str
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
    known = np.flatnonzero(np.isfinite(own) & np.isfinite(alone) & trained(run))
    found = [_gain("all" if run.whole is None else "honest", own[known], alone[known], metric)]
    if len(known) >= _THIRDS_FROM and "train" in run.sizes:
        ranked = known[np.argsort(run.sizes["train"][known], kind="stable")]
        for name, third in zip(("smallest", "middle", "largest"), np.array_split(ranked, 3), strict=True):
            found.append(_gain(f"{name} third", own[third], alone[third], metric))
    if run.unseen is not None:
        found += [each._replace(who="unseen in training") for each in gains(run.unseen, split, metric)[:1]]
    return [each for each in found if each.clients]


def _gain(who: str, own: NDArray, alone: NDArray, metric: str) -> Gain:
    better = own - alone if is_higher_better(metric) else alone - own
    before, after = (float(values.mean()) if values.size else float("nan") for values in (alone, own))
    return Gain(who, own.size, before, after, int((better > 0).sum()), int((better < 0).sum()))


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
    """The same in a sentence or two; empty where clients have no models of their own."""
    found = {each.who: each for each in gains(run, split, metric)}
    left_out, kind = untrained(run), "client" if run.malicious is None else "honest client"
    models, examples = int(trained(honest(run)).sum()), f"{SPLIT_NAMES[split]} examples"
    sentences: list[str] = []
    for who, name in (("all", kind), ("honest", kind), ("unseen in training", "unseen client")):
        if (each := found.get(who)) is not None:
            noun = plural(each.clients, name)
            if name == kind and each.clients < models:  # some with a model of their own are not measured
                has = "has" if each.clients == 1 else "have"
                noun += f" that trained and {has} {examples}" if left_out else f" with {examples}"
            elif name == kind and left_out:
                noun += " that trained"
            means = f"mean {value(each.own, metric)}, global {value(each.alone, metric)}"
            sentences.append(
                f"Of {noun}, {each.gained:,} {'is' if each.gained == 1 else 'are'} served better by a model of "
                f"{'its' if each.gained == 1 else 'their'} own than by the global one, {each.lost:,} worse ({means})."
            )
    if left_out and sentences:
        sentences.append(
            f"{plural(left_out, kind)} never trained and {'is' if left_out == 1 else 'are'} left out."
        )
    return " ".join(sentences)


# --- attacks: how honest and malicious clients are served ---------------------------------------------------------

_ATTACKED = {"mean": "Mean over clients", "worst10": "Worst 10 %", "variance": "Variance"}

_MOST_NAMED = 20


def attacked(subject: Comparison) -> str:
    """The section on honest and malicious clients; empty where nobody attacked."""
    every = [run.whole or run for run in subject.runs]
    if all(run.malicious is None for run in every):
        return ""
    rows: list[list[str | Cell]] = []
    for name, method in zip(subject.names, subject.methods, strict=True):
        for who in ("all", "honest", "malicious"):
            runs = [among(run.whole or run, who) for run in method.runs]
            if not all(len(run.client_ids) for run in runs):
                continue
            found = [statistics(run, subject.split, subject.metric) for run in runs]
            cells = [
                Cell(
                    escape(_mean_over_seeds([each[key] for each in found], factor(key, subject.metric))),
                    "number",
                )
                for key in _ATTACKED
            ]
            rows.append([name, who, Cell(str(len(runs[0].client_ids)), "number"), *cells])
    head = ["Method", "Clients", "How many", *_ATTACKED.values()]
    unit = " in percent (variance: %²)" if is_share(subject.metric) else ""
    what = subject.what[:1].upper() + subject.what[1:]
    made = table(f"{what} per client{unit}; ± over seeds", head, rows, "numbers")
    return f"<section>\n<h2>Honest and malicious clients</h2>\n{made}\n{_malicious_names(every)}\n</section>"


def _malicious_names(runs: Sequence[RunView]) -> str:
    """Who was malicious, where that is the same in all runs."""
    names = {
        tuple(among(run, "malicious").client_ids) if run.malicious is not None else () for run in runs
    } - {()}
    if len(names) != 1:
        return (
            '<p class="note">Malicious clients differ between the runs. All other metrics of clients on this page are '
            "those of the honest clients of each run.</p>"
        )
    [found] = names
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    text = f"{plural(len(found), 'malicious client')}: {', '.join(found[:_MOST_NAMED])}{more}."
    rest = (
        "All other metrics of clients on this page are those of honest ones."
        if any(run.malicious is not None and not run.malicious.all() for run in runs)
        else "No client is honest, so the numbers of this page are of malicious ones."
    )
    return f'<p class="note">{escape(text)} They are measured on clean examples, like all others. {rest}</p>'


# --- privacy: what a private method promises, and what it has spent -----------------------------------------------

_PRIVACY = {
    "Epsilon": "epsilon",
    "Delta": "delta",
    "Accountant": "accountant",
    "Cannot be told apart": "neighbours",
    "Given away": "released",
    "Under noise": "releases",
    "Taken to be known": "public",
    "Not covered": "unprotected",
}
"""What a row says -> the name of it in :attr:`RunView.info`."""


def privacy(subject: Comparison) -> str:
    """The section on privacy; empty where no method promises any."""
    told = {
        method.name: method.runs[0].info["privacy"]
        for method in subject.methods
        if method.runs[0].info.get("privacy")
    }
    if not told:
        return ""
    several = len(subject.methods) > 1
    none = [name for name in subject.names if name not in told]
    rows: list[list[str | Cell]] = []
    for what, of in _PRIVACY.items():
        cells = [
            "; ".join(each[of]) if isinstance(each[of], list) else _told_as(each, of)
            for each in told.values()
        ]
        rows.append([what, *(Cell(escape(text), "setting") for text in cells)])
    head = ["", *(told if several else ["Value"])]
    note = f"<p>{escape(', '.join(none))} promises nothing.</p>\n" if none else ""
    body = table("What is promised, and what the promise rests on", head, rows)
    return f"<section>\n<h2>Privacy</h2>\n{body}\n{note}</section>"


def privacy_line(told: Mapping[str, Any]) -> str:
    """The promise in a sentence."""
    return (
        f"Privacy: epsilon {_told_as(told, 'epsilon')} at delta {told['delta']:g}, for {told['neighbours']} "
        f"(accountant: {told['accountant']})."
    )


def _told_as(told: Mapping[str, Any], of: str) -> str:
    """One of the things that are told; files keep no infinity, and have nothing in its place."""
    if of in ("epsilon", "delta"):
        return number(math.inf if told[of] is None else float(told[of]), 4)
    return str(told[of])


# --- numbers ------------------------------------------------------------------------------------------------------


def _mean_over_seeds(values: Sequence[float], scale: float = 1.0) -> str:
    at = scale * np.asarray(values, np.float64)
    more = f" ± {number(float(at.std(ddof=1)), 2)}" if at.size > 1 else ""
    return number(float(at.mean())) + more
