"""What a report shows of a run, wherever the run comes from.

A :class:`RunView` holds all that reports and figures know about a run.  What is shown is about its honest clients, and
says how many clients that are; the numbers are statistics over clients at the end of the run, and the course of a
metric by round.  A table of the clients is kept in ``clients.csv`` and read back from there.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from evenhand import evaluation
from evenhand.errors import EvenhandError
from evenhand.evaluation import CLASS_COLUMNS, RAREST, SPLIT_NAMES, SPLITS, Finding, column, is_share
from evenhand.evaluation.metrics import OF_CLASSES
from evenhand.text import counted, extent, listed, spreadsheet_cell, spreadsheet_name, visible

NDArray = npt.NDArray[Any]


class RunView(NamedTuple):
    """All that reports and figures know about a run.

    Attributes:
      title: a short name, such as that of the method.
      history: equal-length arrays: ``"round"``; ``"<split>_<metric>"``, such as ``"test_accuracy"``, over examples;
        the same followed by ``"_mean"``, ``"_worst10"`` or ``"_best10"``, over clients; and whatever else was
        recorded.  NaN where a value is missing.
      sizes: examples per client, ``(K,)``, of the splits ``"train"``, ``"valid"`` and ``"test"`` that exist.
      client_ids: the clients' names, ``K`` of them.
      clients: split -> metric -> ``(K,)``, at the end of the run; NaN for a client without examples.
      info: facts about the run itself. Known keys, all optional: ``"rounds"``, ``"cohort"``, ``"seed"``, ``"data"`` and
        ``"method"`` (names), ``"client_column"`` (what a client is, such as ``"hospital"``), ``"fingerprint"`` (equal
        for equal data), ``"clients"`` (how many the data have, those that were not evaluated included), ``"seconds"``
        (activity -> seconds), ``"communication"`` (as in :attr:`evenhand.simulation.Run.info`), ``"adapts"`` (whether
        clients adapt the model that they are served to their examples before they use it), ``"examples_per_second"`` of
        training, ``"padded"`` (share of the executed steps), ``"command"`` (the line that repeats the run),
        ``"versions"`` (package -> version), ``"by_class"`` (split ->
        what :func:`~evenhand.evaluation.by_class` gives), ``"metrics"`` (metric of a set of examples -> what clients
        for which it is undefined have in common), ``"privacy"`` (what :class:`evenhand.privacy.Account` says in words),
        ``"base_rate"`` (whether the accuracy is no better than that of one constant answer), ``"constant"``
        (``metric``, ``split`` and ``mean``: what the best constant answer gives the same clients, where the run is
        judged by its loss or the accuracy is no better), ``"tried"`` (settings of the budget, such as the cohort, that
        a study has chosen as hyper-parameters), ``"levels"`` (the names of the models from which each client is served
        one), ``"kept"`` (which round the numbers of clients are of, in words, if that is not the last one),
        ``"headline"`` (the metric that reports are about, in place of the accuracy or the loss), ``"pooled"`` (whether
        one model was trained on all examples in one place, so that pages say "group" in place of "client"; also without
        it if ``"communication"`` is of no numbers).
      config: every setting of the run, possibly nested.
      classes: split -> what :func:`~evenhand.evaluation.class_columns` gives, ``(K,)`` each; only for splits with
        classes, and not for runs saved by versions that did not measure it.
      findings: what to know before trusting the numbers, the worst first.
      malicious: which clients are, bool ``(K,)``; None: no client of this view is.
      unseen: how clients are served that took no part in the training; None: there are none.
      whole: the run with its malicious clients, where this is its honest part (:func:`honest`); else None.
      last_round: the last round, counted from 1, in which each client trained, ``(K,)``; 0: it never did; None: it is
        not known, as in runs that earlier versions saved.
      level: the name of the model that each client is served, ``(K,)``, where there are several to choose from, whose
        names are in ``info["levels"]``; None: there is one.
      availability: the share of the rounds in which each client was available, ``(K,)``; None: all always were.
    """

    title: str
    history: Mapping[str, NDArray]
    sizes: Mapping[str, NDArray]
    client_ids: Sequence[str]
    clients: Mapping[str, Mapping[str, NDArray]]
    info: Mapping[str, Any]
    config: Mapping[str, Any]
    classes: Mapping[str, Mapping[str, NDArray]] = MappingProxyType({})
    findings: Sequence[Finding] = ()
    malicious: NDArray | None = None
    unseen: RunView | None = None
    whole: RunView | None = None
    last_round: NDArray | None = None
    level: NDArray | None = None
    availability: NDArray | None = None


# --- runs as they are given ---------------------------------------------------------------------------------------


class Viewable(Protocol):
    """Anything that has a :class:`RunView`, such as a :class:`~evenhand.simulation.Run`."""

    def view(self) -> RunView:
        """All that reports and figures know about it."""
        ...


Runs: TypeAlias = RunView | Viewable | Sequence[RunView | Viewable] | Mapping[str, "Runs"]
"""A run, several runs, or a mapping from names to the run or runs of each name."""

ANONYMOUS = "run"
"""The title of a run without one."""


def views(runs: Runs) -> list[RunView]:
    """The views of all runs, titled by the names of the mapping where there is one.

    Raises:
      EvenhandError: there is no run.
    """
    flat = _views(runs)
    if not flat:
        raise EvenhandError("There is no run to report on: give at least one.")
    return flat


def _views(runs: Runs) -> list[RunView]:
    if isinstance(runs, RunView):
        return [runs]
    if isinstance(runs, Mapping):
        return [view._replace(title=name) for name, part in runs.items() for view in _views(part)]
    if isinstance(runs, Sequence):
        return [view for run in runs for view in _views(run)]
    return [runs.view()]


# --- which clients count ------------------------------------------------------------------------------------------


def diverged(run: RunView, splits: Collection[str] | None = None) -> bool:
    """Whether the run diverged, so that none of its numbers on some splits (None: all) may be called the best."""
    return any(
        finding.kind == "diverged" and (splits is None or not finding.split or finding.split in splits)
        for finding in run.findings
    )


Group: TypeAlias = Literal["all", "honest", "malicious"]


def among(run: RunView, group: Group) -> RunView:
    """The run with some of its clients only: all of them where nobody attacked, or for ``"all"``."""
    if run.malicious is None or group == "all":
        return run
    return chosen(run, run.malicious if group == "malicious" else ~run.malicious)


def chosen(run: RunView, which: NDArray) -> RunView:
    """The run with those of its clients only that are chosen, bool ``(K,)``."""

    def part(metrics: Mapping[str, NDArray]) -> dict[str, NDArray]:
        return {name: values[which] for name, values in metrics.items()}

    return run._replace(
        sizes=part(run.sizes),
        client_ids=tuple(compress(run.client_ids, which)),
        clients={split: part(metrics) for split, metrics in run.clients.items()},
        classes={split: part(columns) for split, columns in run.classes.items()},
        malicious=None if run.malicious is None else run.malicious[which],
        last_round=None if run.last_round is None else run.last_round[which],
        level=None if run.level is None else run.level[which],
        availability=None if run.availability is None else run.availability[which],
    )


def honest(run: RunView) -> RunView:
    """The run's honest clients, whom every headline is about; all clients where no client attacks, or each does."""
    if run.malicious is None or run.malicious.all():  # numbers of no client at all would say nothing
        return run
    return among(run, "honest")._replace(malicious=None, whole=run)


class Coverage(NamedTuple):
    """Which clients a number covers.

    Attributes:
      text: in words, such as ``"30 clients"`` or ``"24 of 30 clients, the honest ones"``.
      is_complete: whether these are all clients of the data.
      noun: what one of them is called, such as ``"honest client with test examples"``.
    """

    text: str
    is_complete: bool
    noun: str


def is_pooled(runs: Sequence[RunView]) -> bool:
    """Whether each run trained one model on the examples of all clients in one place, and nothing was sent."""
    return bool(runs) and all(map(_is_pooled, runs))


def _is_pooled(run: RunView) -> bool:
    sent = (run.info.get("communication") or {}).get("per_client_and_round") or {}
    is_silent = bool(sent) and not any(way["numbers"] for way in sent.values())
    return is_silent or bool(run.info.get("pooled"))


def worded(runs: Sequence[RunView], text: str) -> str:
    """Words about clients, which are called groups if all runs are pooled; names of users are not among them."""
    return text.replace("client", "group").replace("Client", "Group") if is_pooled(runs) else text


def covered(runs: Sequence[RunView], split: str, metric: str = "") -> Coverage:
    """Which clients the numbers of some runs on a split cover: those that were evaluated and have examples in it.

    Where the metric is undefined for some of these, such as the AUC of one class, it does not cover them.
    """
    whole = [run.whole or run for run in runs]
    totals, evaluated = [clients_of_data(run) for run in runs], [len(run.client_ids) for run in whole]
    having = [has_examples(run, split) for run in runs]
    lost = [has & undefined_at(run, split, metric) for has, run in zip(having, runs, strict=True)]
    counts = [int(np.sum(has & ~without)) for has, without in zip(having, lost, strict=True)]
    client = worded(runs, "client")
    all_clients = counted(max(totals), client)
    if min(totals) < max(totals):
        all_clients = f"{min(totals):,} to {all_clients}"
    is_honest = any(run.whole is not None for run in runs)
    is_undefined, is_lacking = any(map(np.any, lost)), not all(map(np.all, having))
    is_sample = any(count < total for count, total in zip(evaluated, totals, strict=True))
    examples = f" with {SPLIT_NAMES[split]} examples" if is_lacking else ""
    examples += " for which it is defined" if is_undefined else ""
    is_part = is_honest or is_lacking or is_undefined
    noun = f"{'honest ' if is_honest else ''}{client}{examples}"
    if all(run.malicious is not None for run in runs):
        return Coverage(f"{counted(max(counts), 'client')}, all of them malicious", False, "malicious client")
    if not (is_part or is_sample):
        return Coverage(all_clients, True, noun)
    words = ("the honest ones" if is_honest else "those" if is_part else "drawn for evaluation") + examples
    base = all_clients
    if is_sample and is_part:
        base = f"the {counted(max(evaluated), client)} drawn for evaluation from {max(totals):,}"
    return Coverage(f"{extent(counts)} of {base}, {words}", False, noun)


def clients_of_data(run: RunView) -> int:
    """How many clients the data of a run have, those that were not evaluated included."""
    return max(int(run.info.get("clients") or 0), len((run.whole or run).client_ids))


def has_examples(run: RunView, split: str) -> NDArray:
    """Which clients have examples in a split, bool ``(K,)``; all of them where the sizes are not known."""
    return np.asarray(run.sizes.get(split, np.ones(len(run.client_ids)))) > 0


# --- the numbers of a run -----------------------------------------------------------------------------------------


def common_metric(runs: Sequence[RunView]) -> str:
    """The metric that a report is about: the headline that all runs name and have, else :func:`usual_metric`."""
    first, *others = [run.info.get("headline") for run in runs]
    is_shared = first is not None and all(other == first for other in others) and _have(runs, str(first))
    return str(first) if is_shared else usual_metric(runs)


def usual_metric(runs: Sequence[RunView]) -> str:
    """The accuracy if all runs have one, else the loss."""
    return evaluation.primary_metric(["accuracy"] if _have(runs, "accuracy") else [])


def _have(runs: Sequence[RunView], metric: str) -> bool:
    """Whether all runs have a metric on some split."""
    return all(any(metric in metrics for metrics in run.clients.values()) for run in runs)


def headline_split(runs: Sequence[RunView], metric: str) -> str:
    """The split that a report is about: test if all runs have results on it, else validation, else training."""
    for split in reversed(SPLITS):
        if all(np.isfinite(client_values(run, split, metric)).any() for run in runs):
            return split
    for split in reversed(SPLITS):  # a run that diverged has no finite value anywhere
        if all(metric in run.clients.get(split, {}) for run in runs):
            return split
    lacking = (run.title for run in runs if not any(metric in metrics for metrics in run.clients.values()))
    place = next((f" ({title!r:.60} has none)" for title in lacking), "")
    raise EvenhandError(
        f"No split has the metric {metric} per client in every run{place}, so there is nothing to report."
    )


def client_values(run: RunView, split: str, metric: str) -> NDArray:
    """A metric of each client, ``(K,)``; NaN where it is unknown."""
    missing = np.full(len(run.client_ids), np.nan)
    return np.asarray(run.clients.get(split, {}).get(metric, missing), np.float64)


def statistics(run: RunView, split: str, metric: str) -> dict[str, float]:
    """The summary of one metric on one split; for the accuracy also that over classes, where known."""
    values, sizes = client_values(run, split, metric), run.sizes.get(split)
    # A weight of 0 leaves a client out; the NaN of a diverged model is a result, and stays.
    weights = None if sizes is None else np.where(undefined_at(run, split, metric), 0, sizes)
    summary = evaluation.summarize(values, weights, higher_is_better=evaluation.is_higher_better(metric))
    over_classes = metric == "accuracy" and split in run.classes
    return summary | (evaluation.summarize_classes(run.classes[split]) if over_classes else {})


_LESS_IS_BETTER = {"variance", "std", "angle", "kl", "class_spread", "class_spread_std"}
_MORE_IS_BETTER = {"entropy", "jain"}
"""Statistics of which less, or more, is better, whatever the metric."""


def direction(statistic: str, metric: str) -> int:
    """1 where more of a statistic is better, -1 where less is."""
    fewer = statistic in _LESS_IS_BETTER or "error" in statistic
    more = statistic in _MORE_IS_BETTER or evaluation.is_higher_better(metric)
    return 1 if more and not fewer else -1


def undefined_at(run: RunView, split: str, metric: str) -> NDArray:
    """For which clients a metric of a set of examples is undefined, bool ``(K,)``; for none of any other metric."""
    clients = run.clients.get(split, {})
    if metric not in clients or metric not in (run.info.get("metrics") or ()):
        return np.zeros(len(run.client_ids), bool)
    return evaluation.undefined(clients, metric)


def undefined_sentence(runs: Sequence[RunView], split: str, metric: str, reader: str = "") -> str:
    """For how many clients a metric is undefined, at most where runs differ; empty where it is for none.

    Args:
      runs: the runs, at least one.
      split: whose examples are measured.
      metric: the metric.
      reader: what is said of the metric between commas, such as "by which settings were chosen".
    """
    counts = [int(np.count_nonzero(undefined_at(run, split, metric))) for run in runs]
    run, count = runs[int(np.argmax(counts))], max(counts)
    if not count:
        return ""
    clients = int(np.count_nonzero(has_examples(run, split)))
    reason = visible(run.info["metrics"][metric])
    clause = reason if count > 1 else reason.replace("have ", "has ", 1)
    name = f"The {SPLIT_NAMES[split]} {visible(metric)}{f', {reader},' if reader else ''}"
    return f"{name} is undefined for {_most(counts)} of {counted(clients, 'client')}, which {clause}."


def _most(counts: Sequence[int]) -> str:
    """The count of all runs, or the largest one where they differ."""
    return f"{'up to ' if min(counts) < max(counts) else ''}{max(counts):,}"


_FEW = 10


def few_sentence(runs: Sequence[RunView], split: str, metrics: Sequence[str], reader: str = "") -> str:
    """At how many clients metrics rest on fewer than ten examples of a class, at most where runs differ.

    Empty if there are none, if none of the metrics is of classes (:data:`evenhand.evaluation.metrics.OF_CLASSES`), and
    for runs saved by versions that did not count examples of classes.  ``reader`` as for :func:`undefined_sentence`.
    """
    names = [metric for metric in metrics if metric in OF_CLASSES]
    rarest = [run.classes[split][RAREST] for run in runs if RAREST in run.classes.get(split, {})]
    counts = [int(np.sum((rows > 0) & (rows < _FEW))) for rows in rarest]
    if not names or not any(counts):
        return ""
    at, count = int(np.argmax(counts)), max(counts)
    several, has = int(np.sum(rarest[at] > 0)), "has" if count == 1 else "have"
    rests = "rests on few examples and is" if len(names) == 1 else "rest on few examples and are"
    whose, clause = "its" if count == 1 else "their", f", {reader}," if reader else ""
    return (
        f"Of {counted(several, 'client')} with {SPLIT_NAMES[split]} examples of several classes, {_most(counts)} {has} "
        f"fewer than {_FEW} of {whose} rarest class: {whose} {listed(names)}{clause} {rests} noisy."
    )


# --- the course of a metric ---------------------------------------------------------------------------------------

_PART, _FEWEST = 5, 3
_POINTS, _RELATIVE = 0.01, 0.05


class Swing(NamedTuple):
    """How far a metric went up and down in the last evaluations of a run.

    Attributes:
      size: the smaller of the largest rise and the largest fall between any two of them, consecutive or not: 0 for a
        metric that only rises or only falls, which is a trend.
      first: the round of the first of them.
      last: the round of the last of them.
      metric: the metric.
    """

    size: float
    first: int
    last: int
    metric: str

    @property
    def text(self) -> str:
        """What the metric did, in words."""
        size = f"{100 * self.size:.1f} points" if is_share(self.metric) else f"{self.size:.3g}"
        return f"went up and down by {size} between rounds {self.first} and {self.last}"


def swing(history: Mapping[str, npt.NDArray[Any]], split: str, metric: str) -> Swing | None:
    """How much a metric swings in the last rounds, if enough to doubt its last value.

    The rule: of the evaluations after round 0 the last fifth counts, but at least three; a swing counts from 1 point
    on for an accuracy, and from 5 % of the last value on for any other metric.  It is that of the mean over clients if
    the history has it (``"test_accuracy_mean"``), else of the mean over examples.

    Returns:
      None if it is smaller than that, if there are fewer than three evaluations, or if one is not finite.

    Example:
      >>> import numpy as np
      >>> noisy = {"round": np.arange(6), "test_accuracy": np.array([0.1, 0.5, 0.7, 0.80, 0.75, 0.83])}
      >>> swing(noisy, "test", "accuracy").text
      'went up and down by 5.0 points between rounds 3 and 5'
      >>> swing(noisy | {"test_accuracy": np.linspace(0, 1, 6)}, "test", "accuracy") is None
      True
    """
    over_rows = history.get(column(split, metric), [])
    values = np.asarray(history.get(column(split, metric, "mean"), over_rows), np.float64)
    after = np.asarray(history["round"]) > 0 if len(values) else np.zeros(0, bool)
    count = max(_FEWEST, int(np.sum(after)) // _PART)
    rounds, values = np.asarray(history["round"])[: len(values)][after][-count:], values[after][-count:]
    if len(values) < _FEWEST or not np.isfinite(values).all():
        return None
    # A trend has only one of the two, so the smaller one is what went up and came down again.
    rise = float(np.max(values - np.minimum.accumulate(values)))
    fall = float(np.max(np.maximum.accumulate(values) - values))
    size = min(rise, fall)
    least = _POINTS if is_share(metric) else _RELATIVE * abs(values[-1])
    return Swing(size, int(rounds[0]), int(rounds[-1]), metric) if size >= least and size > 0 else None


def latest(row: Mapping[str, float], *, honest: bool = False) -> str:
    """The latest training loss in words and, where known, the accuracy, on test examples if there are any.

    Args:
      row: name -> value at the latest evaluation.
      honest: whether these are the numbers of honest clients only, which the words then say.

    Example:
      >>> latest({"train_loss": 0.31234, "train_accuracy": 0.91, "test_accuracy": 0.876})
      'loss 0.3123, test accuracy 87.6 %'
    """
    loss, whose = f"loss {row.get('train_loss', math.nan):.4g}", " (honest clients)" if honest else ""
    for split in reversed(SPLITS):
        if (accuracy := row.get(f"{split}_accuracy")) is not None:
            return f"{loss}, {SPLIT_NAMES[split]} accuracy {100 * accuracy:.1f} %{whose}"
    return loss + whose


# --- clients.csv --------------------------------------------------------------------------------------------------

_ROWS, _MALICIOUS, _UNSEEN, _LAST_ROUND, _LEVEL = "rows", "malicious", "unseen", "last_round", "level"
_AVAILABILITY = "availability"


def write_clients_csv(path: str | Path, view: RunView) -> None:
    """Writes one line per client: its id, its examples in each split (``"test_rows"``), and each metric in each split.

    Where examples have classes, also how many classes a client has in each split (``"test_classes"``), the spread of
    its accuracies over them and the lowest, as in :func:`~evenhand.evaluation.class_spread`; ``"last_round"``, the
    last round in which the client trained, 0 if it never did; ``"level"``, the name of the model that it is served,
    where there are several; where it is limited, ``"availability"``, the share of the rounds in which the client was
    available; under an attack, ``"malicious"``, 1 or 0; with clients
    that took no part in the training, which come last, ``"unseen"``.  A metric is an empty field for a client without
    examples in that split.  A name that a spreadsheet would take for a formula is preceded by ``'``, and hidden
    characters in names are codes: :func:`evenhand.text.spreadsheet_name` undoes both.
    """
    columns, names = _columns(view), [*view.client_ids]
    if view.malicious is not None:
        columns[_MALICIOUS] = [str(int(flag)) for flag in view.malicious]
    if view.unseen is not None:
        further, count = _columns(view.unseen), len(view.unseen.client_ids)
        columns = {name: texts + further.get(name, [""] * count) for name, texts in columns.items()}
        columns[_UNSEEN] = ["0"] * len(names) + ["1"] * count
        names += view.unseen.client_ids
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *map(spreadsheet_cell, columns)])
        writer.writerows(zip(map(spreadsheet_cell, names), *columns.values(), strict=True))


def _columns(view: RunView) -> dict[str, list[str]]:
    """Examples and metrics of each client, as text."""
    sizes = {column(split, _ROWS): view.sizes[split] for split in SPLITS if split in view.sizes}
    columns = {name: [str(int(rows)) for rows in values] for name, values in sizes.items()}
    for split in SPLITS:
        by_class = view.classes.get(split, {})
        spreads = {name: by_class[name] for name in CLASS_COLUMNS if name in by_class}
        for metric, values in {**view.clients.get(split, {}), **spreads}.items():
            columns[column(split, metric)] = ["" if np.isnan(v) else format(v, ".9g") for v in values]
    if view.last_round is not None:
        columns[_LAST_ROUND] = [str(int(number)) for number in view.last_round]
    if view.level is not None:
        columns[_LEVEL] = [spreadsheet_cell(str(name)) for name in view.level]
    if view.availability is not None:
        columns[_AVAILABILITY] = ["" if np.isnan(v) else format(v, ".9g") for v in view.availability]
    return columns


def read_clients_csv(path: str | Path) -> RunView:
    """Reads what :func:`write_clients_csv` wrote.

    Returns:
      A view that holds what is in the file, with the clients that took no part in the training in its ``unseen``; its
      title, history, facts and settings are empty.

    Raises:
      EvenhandError: there is no such file, or it is not such a table.
    """
    client_ids, columns, level = _read(Path(path))
    sizes = {split: columns[column(split, _ROWS)] for split in SPLITS if column(split, _ROWS) in columns}
    classes, clients = dict[str, Mapping[str, NDArray]](), dict[str, Mapping[str, NDArray]]()
    for split in sizes:
        prefix = f"{split}_"
        metrics = {name.removeprefix(prefix): x for name, x in columns.items() if name.startswith(prefix)}
        del metrics[_ROWS]
        if all(name in metrics for name in CLASS_COLUMNS):
            classes[split] = {name: metrics.pop(name) for name in CLASS_COLUMNS}
        clients[split] = metrics
    malicious = columns[_MALICIOUS] == 1 if _MALICIOUS in columns else None
    last_round = np.nan_to_num(columns[_LAST_ROUND]).astype(np.int64) if _LAST_ROUND in columns else None
    view = RunView(
        title="",
        history={},
        sizes=sizes,
        client_ids=client_ids,
        clients=clients,
        info={},
        config={},
        malicious=malicious,
        last_round=last_round,
        classes=classes,
        level=level,
        availability=columns.get(_AVAILABILITY),
    )
    if _UNSEEN not in columns:
        return view
    is_unseen = columns[_UNSEEN] == 1
    # An attack needs clients that train, so the others cannot be malicious; nor does availability concern them.
    others = chosen(view, is_unseen)._replace(malicious=None, availability=None)
    return chosen(view, ~is_unseen)._replace(unseen=others)


def _read(path: Path) -> tuple[tuple[str, ...], dict[str, NDArray], NDArray | None]:
    """The clients' ids, each column of numbers as ``(K,)`` float64 with NaN for an empty field, and the levels."""
    if not path.is_file():
        raise EvenhandError(f"{path} does not exist: name a folder that `evenhand run` wrote.")
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
            header, *lines = list(csv.reader(file, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise EvenhandError(f"{path} is not a table in UTF-8 ({error}): repeat the run.") from None
    if not lines:
        raise EvenhandError(f"{path} holds no clients: repeat the run.")
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise EvenhandError(
                f"{path}, line {number} has {len(line)} fields, but the header {len(header)}: repeat the run."
            )
    level = None
    if _LEVEL in header:
        place = header.index(_LEVEL)
        level = np.array([spreadsheet_name(line[place]) for line in lines])
        header, *lines = [[*line[:place], *line[place + 1 :]] for line in (header, *lines)]
    try:
        table = np.array([[float(field or "nan") for field in line[1:]] for line in lines], np.float64)
    except ValueError as error:
        raise EvenhandError(f"{path} holds a field that is not a number ({error}): repeat the run.") from None
    names = map(spreadsheet_name, header[1:])
    columns = dict(zip(names, table.reshape(len(lines), len(header) - 1).T, strict=True))
    return tuple(spreadsheet_name(line[0]) for line in lines), columns, level
