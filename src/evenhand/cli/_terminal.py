"""What a terminal shows: sentences and names without markup or control codes, and saved runs in 80 columns."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from evenhand.evaluation import is_higher_better
from evenhand.report import (
    Comparison,
    RunView,
    caution,
    covered,
    differences,
    further,
    metric_remarks,
    private_summaries,
    verdict,
)
from evenhand.report.formatting import Row, Table, Value, deviation, size
from evenhand.report.tables import COMMUNICATION, communication, difference_text, gains_text
from evenhand.simulation import Expectation
from evenhand.text import counted, extent, visible

# --- sentences and names ------------------------------------------------------------------------------------


_OF_PAGES = dict.fromkeys(map(ord, "\u2068\u2069")) | {ord("\u202f"): " "}


def named(text: object, style: str = "") -> Text:
    """A name for a cell of a table."""
    return Text(visible(text), style)


class Expression:
    """The name of a method in a cell of a table: too long for its column, it is broken between its arguments.

    An argument that is too long by itself is broken where its own arguments begin.
    """

    def __init__(self, name: str) -> None:
        self._name = visible(name)
        self._parts = _broken(self._name)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [cell_len(part.rstrip()) for part in self._parts]
        return Measurement(max(widths, default=0), cell_len("".join(self._parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        arguments = re.findall(r"(?:[^,]|,(?!\s))+,?\s*", self._name)
        fits = [cell_len(argument.rstrip()) <= width for argument in arguments]
        split = [
            [argument] if fit else _broken(argument) for argument, fit in zip(arguments, fits, strict=True)
        ]
        yield Text(_lines([part for parts in split for part in parts], width), overflow="fold")


def _broken(name: str) -> list[str]:
    """The parts of a name, each up to the next place where arguments begin or end."""
    return re.findall(r"[^(,=\s]*[(,=\s]\s*|[^(,=\s]+", name)


def say(console: Console, *sentences: str, style: str = "") -> None:
    """Prints sentences, without the characters that isolate names on a page.

    A terminal gets them broken between words; a file or a pipe, each as one line.
    """
    for sentence in sentences:
        text = visible(sentence.translate(_OF_PAGES))
        if console.is_terminal:  # not by rich, which would cut a long path, too, and then it cannot be copied
            text = _lines(re.findall(r"\S+\s*", text), console.width)
        console.print(Text(text, style), soft_wrap=True)


def remark(*sentences: str) -> None:
    """Prints sentences that are not a result, on the error stream."""
    say(Console(file=sys.stderr, highlight=False), *(f"evenhand: {sentence}" for sentence in sentences))


def _lines(parts: Sequence[str], width: int) -> str:
    """The parts, as many on a line as fit into it."""
    lines = [""]
    for part in parts:
        fits = cell_len((lines[-1] + part).rstrip()) <= width
        lines[-1:] = [lines[-1] + part] if fits or not lines[-1] else [lines[-1].rstrip(), part]
    return "\n".join(lines)


# --- tables of saved runs -----------------------------------------------------------------------------------


_COLUMNS = {
    "mean": "mean",
    "weighted_mean": "weighted\nmean",
    "worst10": "worst\n10 %",
    "best10": "best\n10 %",
    "variance": "var.",
    "angle": "angle\n°",
}
_EVENNESS = ("variance", "angle")
"""Lower is better, whatever the metric."""

_STAR = "*"
"""The mark of the best, which a terminal without colours shows as well."""

_MOST_COLUMNS = 6
"""Most methods side by side in a table of clients; further ones are in another table below."""

_MOST_HEADS, _WIDEST_HEAD = 4, 24
"""More methods than that, or longer names, are numbered, and the table of clients names them by number."""


def show_comparison(
    comparison: Comparison,
    console: Console,
    *,
    lines: Iterable[str] = (),
    without: Collection[str] = (),
    baseline: str | None = None,
) -> None:
    """Prints what to know about saved runs, their tables, and how far the differences between them can be trusted.

    Args:
      comparison: of one method or several.
      console: where.
      lines: sentences to print before the tables.
      without: kinds of findings that have been reported already.
      baseline: the method that the others are compared with; None: the first.
    """
    for notice in comparison.notices:
        if notice.finding.kind not in without:
            say(console, notice.text, style="yellow")
    say(console, *lines)
    console.print(overview(comparison))
    if len(comparison.methods) > 1:
        say(console, verdict(comparison), style="yellow" if comparison.obstacles else "")
    if noise := caution(comparison):
        is_marked = comparison.seeds == 1 and comparison.may_mark
        say(console, f"* best of its column. {noise}" if is_marked else noise)
    if (table := metric_table(comparison)) is not None:
        console.print(table)
    say(console, *metric_remarks(comparison))
    if (table := difference_table(comparison, baseline)) is not None:
        console.print(table)
    sent = None if comparison.is_pooled else communication(comparison, brief=True)
    if len(comparison.methods) > 1 and sent is not None:
        heads = [name.lower() for name in sent.head]
        console.print(_Drawn(f"{COMMUNICATION[:1].lower()}{COMMUNICATION[1:]}", sent._replace(head=heads)))


def kept_rounds(comparison: Comparison) -> list[str]:
    """Which round the numbers of a run are of, a sentence for each run that does not have those of its last one."""
    kept = ((name, run.info.get("kept")) for name, run in comparison.named_runs)
    return [f"{name}: {comparison.worded(words)}." for name, words in kept if words is not None]


def show_private(run: RunView, console: Console) -> None:
    """Prints what a server learns that sees no client's number, if the run was asked for it."""
    summaries, refused = private_summaries(run)
    for summary in summaries:
        source = f"from a secure histogram of {counted(summary.bins, 'bin')}"
        console.print(_Drawn(f"private {summary.quantity}, {source}", summary.brief()))
        say(console, *filter(None, [summary.remark]))
    if refused:
        say(console, refused, style="yellow")


def overview(subject: Comparison) -> RenderableType:
    """One row per method; the best of each column carries a star, where the comparison allows one."""
    percent = " in % (variance: %²)" if subject.is_share else ""
    seeds = f"; ± over {subject.seeds} seeds" if subject.seeds > 1 else ""
    stats = [method.statistics(subject.split, subject.metric) for method in subject.methods]
    columns = [_starred(subject, [by_key[key] for by_key in stats], key) for key in _COLUMNS]
    rows = list(zip(_names(subject), *columns, strict=True))
    title = f"{subject.split} {subject.metric}{percent} over {subject.covered.text}{seeds}"
    return _Drawn(title, Table(["method", *_COLUMNS.values()], rows))


def metric_table(subject: Comparison) -> RenderableType | None:
    """The metrics that were asked for besides, one row per method each; None where there are none."""
    rows, several, keys = list[list[str | Value]](), len(subject.methods) > 1, ("mean", "worst10", "best10")
    for about in further(subject):
        stats = [method.statistics(about.split, about.metric) for method in about.methods]
        columns = [_starred(about, [by_key[key] for by_key in stats], key) for key in keys]
        unit = ", %" if about.is_share else ""
        for i, (name, *cells) in enumerate(zip(_names(subject), *columns, strict=True)):
            metric = about.metric + unit if i == 0 else ""
            rows.append([metric, *([name] if several else []), *cells, extent(stats[i]["clients"])])
    if not rows:
        return None
    words = ["metric", *(["method"] if several else [])]
    table = Table([*words, "mean", "worst\n10 %", "best\n10 %", subject.worded("clients")], rows, len(words))
    # Of any metric, also where the headline's is undefined.
    clients = subject.worded(covered(subject.runs, subject.split).text)
    return _Drawn(f"more {subject.split} metrics over {clients}, where defined", table)


def difference_table(subject: Comparison, baseline: str | None = None) -> RenderableType | None:
    """One row per method but the baseline (None: the first), with intervals; None for single seeds."""
    runs = {method.name: method.runs for method in subject.methods if method.is_sound}
    base = subject.names[0] if baseline is None else baseline
    if subject.obstacles or subject.seeds < 2 or base not in runs:
        return None
    paired = differences(runs, base, subject.split, subject.metric)
    rows: list[list[str | Value]] = []
    for name, difference in paired.items():
        cells = [
            Value(difference_text(by, key, subject.metric), is_marked=by.may_be_marked(len(paired)))
            for key, by in difference.by.items()
            if key in ("mean", "worst10")
        ]
        rows.append([name, *cells, f"{difference.p['worst10']:.2g}", gains_text(difference.gains)])
    meaning = "with 95 % intervals; p of the worst 10 % (Holm); +/−: at every seed"
    title = f"minus {base}, at equal seeds, {meaning}"
    head = ["method", "mean", "worst 10 %", "p", subject.worded("clients\n+ / −")]
    return _Drawn(title, Table(head, rows)) if rows else None


def client_table(subject: Comparison, count: int) -> Group:
    """The ``count`` clients that the first method serves worst, one line each; means over seeds."""
    served = [np.mean(method.clients(subject.split, subject.metric), axis=0) for method in subject.methods]
    first, split, numbered = subject.runs[0], subject.split, _numbered(subject)
    sign = 1 if is_higher_better(subject.metric) else -1
    order = np.argsort(sign * served[0], kind="stable")
    shown = [int(k) for k in order if not np.isnan(served[0][k])][:count]
    tables: list[RichTable] = []
    for begin in range(0, len(subject.methods), _MOST_COLUMNS):
        table = new_table()
        table.add_column(named(subject.client_kind or subject.worded("client")), overflow="fold")
        table.add_column(f"{split}\nrows", justify="right")
        values = served[begin : begin + _MOST_COLUMNS]
        for i, name in enumerate(subject.names[begin : begin + _MOST_COLUMNS], begin + 1):
            head = str(i) if numbered else name
            table.add_column(named(head), justify="right", overflow="fold", min_width=5)
        for k in shown:
            rows = f"{int(first.sizes[split][k])}" if split in first.sizes else ""
            table.add_row(named(first.client_ids[k]), rows, *(_text(x[k], "mean", subject) for x in values))
        tables.append(table)
    under = f"method 1, {subject.names[0]}" if numbered else subject.names[0]
    covered = "" if subject.covered.is_complete else f", of {subject.covered.text}"
    seeds = f" (means over {subject.seeds} seeds)" if subject.seeds > 1 else ""
    clients = subject.worded(counted(len(shown), "client"))
    title = f"{split} {subject.metric} of the {clients} worst off under {under}{covered}{seeds}"
    return Group(named(title, "bold"), *tables)


def tally(subject: Comparison) -> str:
    """How many clients the second of two methods serves better than the first; with several seeds, in each of them."""
    before, after = (method.clients(subject.split, subject.metric) for method in subject.methods)
    gain = after - before if is_higher_better(subject.metric) else before - after
    better, worse = (int(np.sum((sign * gain > 0).all(axis=0))) for sign in (1, -1))
    equal = int(np.sum((gain == 0).all(axis=0)))
    rest = int(np.sum(~np.isnan(gain).any(axis=0))) - better - worse - equal
    first, second = subject.names
    text = f"{second} serves {subject.worded(counted(better, 'client'))} better than {first}"
    if subject.seeds == 1:
        return f"{text}, {worse} worse and {equal} equally well."
    if not better and not worse:
        return f"No {subject.worded('client')} is consistently better or worse off across the {subject.seeds} seeds."
    always = f"In each of {subject.seeds} seeds, {text}, {worse} worse and {equal} equally well"
    return f"{always}; for the other {rest} it depends on the seed." if rest else f"{always}."


def _numbered(subject: Comparison) -> bool:
    count, widest = len(subject.methods), max(map(cell_len, subject.names))
    return count > _MOST_HEADS or (count > 1 and widest > _WIDEST_HEAD)


def _names(subject: Comparison) -> list[str]:
    return [f"{i}  {name}" if _numbered(subject) else name for i, name in enumerate(subject.names, 1)]


def new_table(*, is_tight: bool = False) -> RichTable:
    """A table with a line below its head only; ``is_tight``: with one blank between columns."""
    return RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if is_tight else 1))


_SHORTEST, _LONGEST_PART = 4, 16
"""How narrow a column of words may become, and how much room its longest part gets before numbers are broken."""


class _Drawn:
    """A table of methods under its title.

    If it would be too wide, intervals are below their means, and if that is not enough, columns are closer together.
    """

    def __init__(self, title: str, table: Table) -> None:
        self._title, self._table = title, table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | RichTable]:
        parts = [
            max((Measurement.get(console, options, cell).minimum for cell in column), default=0)
            for column in zip(*map(self._words, self._table.rows), strict=True)
        ]
        # Measured as if the line had no end, since a table says that it is at most as wide as the line.
        endless = options.update_width(_ENDLESS)

        def fits(*, is_broken: bool) -> bool:
            # Numbers are never cut, so that a table has at least the width of these and of the longest parts of names.
            widths = [min(part, _LONGEST_PART) for part in parts]
            narrow = self._made(widths, is_least=True, is_broken=is_broken)
            return Measurement.get(console, endless, narrow).maximum <= options.max_width

        yield named(self._title, "bold")
        widths = [min(part, _SHORTEST) for part in parts]
        is_broken = not fits(is_broken=False)
        yield self._made(widths, is_broken=is_broken, is_tight=is_broken and not fits(is_broken=True))

    def _words(self, row: Row) -> list[Text | Expression]:
        """The first cells of a row, of which the last is a method and is broken between its arguments."""
        *words, name = map(str, row[: self._table.words])
        return [*map(named, words), Expression(name)]

    def _made(
        self,
        widths: Sequence[int],
        *,
        is_least: bool = False,
        is_broken: bool = False,
        is_tight: bool = False,
    ) -> RichTable:
        """The table.

        Args:
          widths: the least width of each column of words.
          is_least: whether these columns have that width and no more.
          is_broken: whether intervals are in a line of their own.
          is_tight: whether there is one blank between columns, and two behind the words.
        """
        made, count = new_table(is_tight=is_tight), self._table.words
        for name, width in zip(self._table.head, widths, strict=False):
            made.add_column(name, overflow="fold", min_width=width, width=width if is_least else None)
        for name in self._table.head[count:]:
            made.add_column(name, justify="right", no_wrap=True)
        for row in self._table.rows:
            cells = [cell if isinstance(cell, Value) else Value(str(cell)) for cell in row[count:]]
            if is_broken:
                cells = [cell._replace(text=cell.text.replace(" [", "\n[")) for cell in cells]
            words = [Padding(word, (0, int(is_tight), 0, 0)) for word in self._words(row)]
            made.add_row(*words, *map(_cell, cells))
        return made


_ENDLESS = 10_000
"""More characters than the widest table has."""


def _cell(value: Value) -> Text:
    """A number, with its deviation over the seeds below."""
    style = "bold green" if value.unit == _STAR else "bold" if value.is_marked else ""
    cell = Text(value.text + value.unit, style)
    return Text.assemble(cell, (f"\n±{value.deviation} ", "dim")) if value.deviation else cell


def _starred(subject: Comparison, values: Sequence[np.ndarray], key: str) -> list[Value]:
    """The column, the best marked by a star, for which the others leave room."""
    sign = 1 if is_higher_better(subject.metric) and key not in _EVENNESS else -1
    texts = [_text(float(np.mean(x)), key, subject) for x in values]
    best = subject.winners(values, texts, sign)
    spreads = [_text(deviation(x), key, subject, digits=2) if subject.seeds > 1 else "" for x in values]
    return [
        Value(text, spread, _STAR if i in best else " ", i in best)
        for i, (text, spread) in enumerate(zip(texts, spreads, strict=True))
    ]


def _text(value: float, key: str, subject: Comparison, digits: int = 4) -> str:
    if math.isnan(value):
        return "–"
    if key == "angle" or not subject.is_share:
        # Amounts, such as 89,330, are shorter than 8.933e+04, which leaves room for the names of methods.
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.{digits}g}"
    return f"{value * (1e4 if key == 'variance' else 1e2):.1f}"


# --- what a run would take ----------------------------------------------------------------------------------


def show_estimate(expected: Expectation, clients: int, console: Console) -> None:
    """Prints what a run would take, how that was found, and how sure it is."""
    fastest, mean, slowest = expected.seconds
    rounds, steps = expected.rounds, expected.steps
    is_ranged = math.isfinite(slowest)
    low, high = duration(fastest), duration(slowest) if is_ranged else ""
    between = f" ({low} to {high})" if is_ranged and low != high else ""
    peaks = [f"{size(count)} of the {name}" for name, count in expected.memory.items()]
    facts = {
        "rounds": f"{rounds:,}, evaluated {counted(expected.evaluations, 'time')}",
        "clients": f"{expected.clients:,} of {clients:,} in each round",
        "work": f"{_whole(steps)} steps on {_whole(expected.examples)} examples a round, all clients together; "
        f"{_whole(rounds * steps)} steps in all",
        "model": f"{expected.parameters:,} parameters; a client receives {size(expected.sent['down'])} and sends "
        f"{size(expected.sent['up'])} in a round",
        "memory": " and ".join(peaks) or "unknown on this system",
        "time": f"about {duration(mean)}{between}: {duration(expected.compiling)} to set up and compile, "
        f"{duration(expected.per_round[1])} a round, {duration(expected.per_evaluation)} an evaluation",
    }
    table = RichTable.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in facts.items():
        table.add_row(name, named(text))
    console.print(table)
    say(
        console,
        f"Measured on this machine: {counted(expected.timed, 'round')} of this run were trained, timed and discarded. "
        "Nothing was written.",
        ("The range is that of the fastest and the slowest of these rounds. " if between else "")
        + "With other load on this machine, or cohorts of larger clients, the run can take longer."
        if is_ranged
        else "The time is from a single measurement, so its range is unknown.",
        "The run itself compiles faster, because compiled programs are cached. Memory is the peak so far, including "
        "the data and the compiled programs. The time does not include loading the data, checkpoints and the report.",
    )


def duration(seconds: float) -> str:
    """A time in the unit that suits it, to two or three digits.

    Example:
      >>> duration(0.0123), duration(75), duration(9000)
      ('0.012 s', '1.25 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def _whole(x: float) -> str:
    """A count, which on average may be no whole number."""
    return f"{x:,.0f}" if x >= 100 or x == round(x) else f"{x:.3g}"
