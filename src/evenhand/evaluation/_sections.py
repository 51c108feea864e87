"""The sections of the report, from top to bottom; the statistics have a module of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.evaluation._course import swing
from evenhand.evaluation._html import Cell, bar, escape, number, swatch, table, value
from evenhand.evaluation._tables import ranking, spread
from evenhand.evaluation._view import (
    SPLITS,
    RunView,
    Subject,
    client_values,
    diverged,
    is_higher_better,
    is_share,
    statistics,
)

__all__ = ["facts", "headline", "notice", "reproduce", "settings", "time", "worst_clients"]

_WORST = 10


def facts(subject: Subject) -> str:
    """The line under the title: what was run."""
    runs = subject.runs
    method = _shared(runs, "method")
    known = [None if method in subject.names else method, _shared(runs, "data")]
    counts = {len(run.client_ids) for run in runs}
    known.append(_plural(counts.pop(), "client") if len(counts) == 1 else None)
    rounds = _shared(runs, "rounds")
    known.append(None if rounds is None else _plural(rounds, "round"))
    for name in ("cohort", "seed"):
        found = _shared(runs, name)
        known.append(None if found is None else f"{name} {found}")
    text = " · ".join(escape(fact) for fact in known if fact is not None)
    return f'<p class="facts">{text}</p>'


def notice(subject: Subject) -> str:
    """What a reader must know before believing the numbers: a box for each run that something is wrong with."""
    several = len(subject.runs) > 1
    boxes: list[str] = []
    for name, run in zip(subject.names, subject.runs, strict=True):
        title = "Do not rely on these numbers" if diverged(run) else "Read these numbers with care"
        title += f": {name}" if several else ""
        body = "".join(f"<p>{escape(finding.sentence)}</p>\n" for finding in run.findings)
        if body:
            boxes.append(f'<aside class="notice">\n<h2>{escape(title)}</h2>\n{body}</aside>')
    return "\n".join(boxes)


def headline(subject: Subject) -> str:
    """The result in a sentence and in a few numbers, or in a ranking."""
    metric, stats = subject.metric, [statistics(run, subject.split, subject.metric) for run in subject.runs]
    means = [s["mean"] for s in stats]
    if not any(map(math.isfinite, means)):
        return _lead(f"Training diverged: the {subject.what} is not a finite number.")
    if len(stats) == 1:
        swung = swing(subject.runs[0].history, subject.split, metric)
        told = "" if swung is None else f" This is not settled: the {subject.what} {swung.text}."
        return _lead(_sentence(subject, stats[0]) + told) + _cards(stats[0], metric)
    sound = [not diverged(run) and math.isfinite(mean) for run, mean in zip(subject.runs, means, strict=True)]
    if not any(sound):
        return _lead("All of these runs diverged, so none serves anybody best.") + ranking(subject)
    pick = max if is_higher_better(metric) else min
    winners: list[tuple[str, str]] = []
    for key in ("mean", "worst10"):
        known = [s[key] if well else math.nan for s, well in zip(stats, sound, strict=True)]
        top = pick(x for x in known if math.isfinite(x))
        leaders = [
            n for n, x in zip(subject.names, known, strict=True) if value(x, metric) == value(top, metric)
        ]
        winners.append((" and ".join(leaders), value(top, metric)))
    (mean, mean_text), (tail, tail_text) = winners
    worst = _tail(min(s["clients"] for s in stats))
    text = f"The average client is served best by {mean} ({subject.what} {mean_text}), "
    text += f"{worst} {'too' if mean == tail else 'by ' + tail} ({tail_text})."
    return _lead(text) + ranking(subject)


def worst_clients(subject: Subject) -> str:
    """The ten clients that get least, and what the other runs give them."""
    runs, metric, split = subject.runs, subject.metric, subject.split
    lists = [dict(zip(run.client_ids, client_values(run, split, metric), strict=True)) for run in runs]
    sizes = runs[0].sizes.get(split, [1] * len(runs[0].client_ids))
    known = {name: lists[0][name] for name, n in zip(runs[0].client_ids, sizes, strict=True) if n}
    if not known:
        return ""
    sign = 1 if is_higher_better(metric) else -1
    # Nothing is worse than a model that has diverged.
    order = sorted(known, key=lambda name: -math.inf if math.isnan(known[name]) else sign * known[name])[
        :_WORST
    ]
    finite = [x for values in lists for name, x in values.items() if name in order and math.isfinite(x)]
    top = 1.0 if is_share(metric) else max([*finite, 1e-30])
    position = {name: k for k, name in enumerate(runs[0].client_ids)}
    splits = [s for s in SPLITS if s in runs[0].sizes and (s == "train" or s == split)]
    rows: list[list[str | Cell]] = []
    for name in order:
        counts = [Cell(f"{int(runs[0].sizes[s][position[name]]):,}", "number") for s in splits]
        bars = [
            bar(value(values.get(name, math.nan), metric), values.get(name, math.nan) / top, i)
            for i, values in enumerate(lists)
        ]
        rows.append([name, *counts, *bars])
    title = "The ten worst served clients" if len(known) > _WORST else "The clients, worst served first"
    names = [f"{subject.what}, {name}" for name in subject.names] if len(runs) > 1 else [subject.what]
    rest = f" by {subject.names[0]}, and what they get from the others" if len(runs) > 1 else ""
    head = ["Client", *(f"{'training' if s == 'train' else s} rows" for s in splits), *names]
    body = table(f"Ordered by {subject.what}{rest}", head, rows, "numbers")
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def time(subject: Subject) -> str:
    """Where the time went: a bar per run."""
    timed = [(i, run.info["seconds"]) for i, run in enumerate(subject.runs) if run.info.get("seconds")]
    if not timed:
        return ""
    activities = list(dict.fromkeys(name for _, seconds in timed for name in seconds))
    longest = max(sum(seconds.values()) for _, seconds in timed) or 1.0
    rows: list[list[str | Cell]] = []
    for i, seconds in timed:
        parts = "".join(
            f'<span style="--c:var(--c{k % 6});width:{100 * seconds.get(name, 0.0) / longest:.2f}%"></span>'
            for k, name in enumerate(activities)
        )
        rounds, train = subject.runs[i].info.get("rounds"), seconds.get("train")
        shown = [f"{number(seconds.get(name, math.nan), 3)} s" for name in activities]
        shown.append(f"{number(sum(seconds.values()), 3)} s")
        shown.append(number(rounds / train, 3) if rounds and train else "–")
        speed, padded = (subject.runs[i].info.get(name) for name in ("examples_per_second", "padded"))
        shown.append("–" if speed is None else f"{speed:,.0f}")
        shown.append("–" if padded is None else f"{100 * padded:.1f} %")
        stack = Cell(f'<div class="time" aria-hidden="true">{parts}</div>')
        rows.append([subject.names[i], stack, *(Cell(escape(text), "number") for text in shown)])
    key = "".join(f"<li>{swatch(k)}{escape(name)}</li>" for k, name in enumerate(activities))
    head = ["Run", "", *activities, "total", "rounds / s", "examples / s", "padded"]
    caption = "Seconds per activity; rounds and examples per second of training; padding among executed steps"
    body = table(caption, head, rows, "numbers")
    return f'<section>\n<h2>Where the time went</h2>\n{body}\n<ul class="legend">{key}</ul>\n</section>'


def settings(subject: Subject) -> str:
    """Every setting; in a comparison those that differ first."""
    configs = [_flat(run.config) for run in subject.runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    if not keys:
        return ""
    texts = {key: [_setting(config[key]) if key in config else "–" for config in configs] for key in keys}
    differing = [key for key in keys if len(set(texts[key])) > 1]
    ordered = differing + [key for key in keys if key not in differing]
    rows = [
        [
            Cell(escape(key), "differs" if key in differing else ""),
            *(Cell(escape(text), "setting") for text in texts[key]),
        ]
        for key in ordered
    ]
    several = len(subject.runs) > 1
    head = ["Setting", *(subject.names if several else ["Value"])]
    caption = "Settings; those that differ are marked" if several else "Settings"
    return f"<section>\n<h2>What was run</h2>\n{table(caption, head, rows)}\n</section>"


def reproduce(subject: Subject) -> str:
    """How to get the same numbers again."""
    parts = ["<section>\n<h2>How to run it again</h2>"]
    commands = [str(run.info["command"]) for run in subject.runs if run.info.get("command")]
    if commands:
        parts.append(f"<pre>{escape(chr(10).join(commands))}</pre>")
    text = "The same settings and seed give the same numbers, bit for bit on the same hardware and versions"
    versions = _shared(subject.runs, "versions")
    listed = ", ".join(f"{name} {version}" for name, version in versions.items()) if versions else ""
    parts.append(f"<p>{escape(text)}{escape(f' ({listed})' if listed else '')}.</p>")
    return "\n".join([*parts, "</section>"])


def _lead(text: str) -> str:
    return f'<p class="lead">{escape(text)}</p>\n'


def _sentence(subject: Subject, stats: Mapping[str, float]) -> str:
    metric, clients = subject.metric, int(stats["clients"])
    if clients == 1:
        return f"The only client gets a {subject.what} of {value(stats['mean'], metric)}."
    mean, worst = value(stats["mean"], metric), value(stats["worst10"], metric)
    return f"The average client gets a {subject.what} of {mean}, {_tail(clients)} {worst}."


def _tail(clients: float) -> str:
    return "the worst tenth of the clients" if clients >= 20 else "the worst client"


def _cards(stats: Mapping[str, float], metric: str) -> str:
    clients = int(stats["clients"])
    tail = _plural(max(1, clients // 10), "client")
    cards = [
        (
            "Mean over clients",
            value(stats["mean"], metric),
            f"{value(stats['weighted_mean'], metric)} over rows",
        ),
        ("Worst 10 % of clients", value(stats["worst10"], metric), tail),
        ("Best 10 % of clients", value(stats["best10"], metric), tail),
        ("Spread", spread(stats["std"], metric), f"standard deviation over {_plural(clients, 'client')}"),
    ]
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}<small>{escape(note)}</small></dd></div>\n"
        for name, text, note in cards
    )
    return f'<dl class="cards">\n{body}</dl>'


def _shared(runs: Sequence[RunView], name: str) -> Any:
    """What all runs say of themselves, None where they differ."""
    found = [run.info.get(name) for run in runs]
    return found[0] if all(other == found[0] for other in found) else None


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots between the names."""
    flat: dict[str, Any] = {}
    for key, setting in config.items():
        inner = (
            _flat(setting, f"{prefix}{key}.") if isinstance(setting, Mapping) else {f"{prefix}{key}": setting}
        )
        flat |= inner
    return flat


def _setting(setting: Any) -> str:
    if isinstance(setting, float):
        return f"{setting:.12g}"
    text = setting if isinstance(setting, str) else json.dumps(setting, default=str)
    return text if len(text) <= 200 else text[:199] + "…"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
