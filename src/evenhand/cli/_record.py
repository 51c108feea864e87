"""A run recorded as it happens: every evaluation at once, and a complete run folder whenever the run ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from evenhand.cli import _checksums, _folder
from evenhand.cli._saved import load_run
from evenhand.cli._tables import metric_table, overview
from evenhand.cli._terminal import remark, say
from evenhand.data import FederatedDataset
from evenhand.interrupts import uninterrupted
from evenhand.report import (
    among,
    compare,
    covered,
    honest,
    in_words,
    latest,
    metric_remarks,
    privacy_line,
    statistics,
    swing,
    write_clients_csv,
    write_report,
)
from evenhand.simulation import Run
from evenhand.text import counted
from evenhand.types import Params

__all__ = ["Place", "record"]


class Place(NamedTuple):
    """Where a run is written.

    Attributes:
      folder: the run folder.
      config: what goes into ``config.json``.
      resumed: whether the run continues from what the folder holds already.
      remarks: sentences to print once the run is known to start.
    """

    folder: Path
    config: Mapping[str, Any]
    resumed: bool
    remarks: tuple[str, ...] = ()

    @property
    def is_resumable(self) -> bool:
        """Whether the run saves its state; stopped before the first save, it starts over."""
        return self.config["options"]["checkpoint"] != "off"

    def begin(self, run: Run) -> None:
        """Writes the files as they are before the next round; lines that a killed run wrote beyond it are dropped."""
        for sentence in self.remarks:
            remark(sentence)
        if not self.resumed:
            _folder.claim(self.folder, checkpoint=self.is_resumable)
        config, metrics = _folder.json_text(self.config), _folder.metrics_text(run.history)
        _checksums.begin(self.folder, config=config, metrics=metrics)
        _folder.write_text(self.folder / _folder.CONFIG, config)
        if run.data.features is not None:
            features = _folder.json_text(run.data.features.to_json())
            _folder.write_text(self.folder / _folder.FEATURES, features)
        _folder.write_text(self.folder / _folder.METRICS, metrics)


def record(
    runs: Iterator[Run],
    place: Place,
    *,
    rounds: int,
    console: Console,
    unseen: FederatedDataset | None = None,
) -> int:
    """Drives ``runs`` to the end, or to Ctrl-C, writes the run folder, and returns the exit code.

    Nothing is written before the first evaluation, so that bad input leaves no folder behind.

    Args:
      runs: the run so far at each evaluation.
      place: where the run is written.
      rounds: how many rounds were asked for.
      console: shows the progress, unless a live bar does.
      unseen: clients that take no part in the training, and are served at the end.
    """
    folder = place.folder
    last, interrupted = None, False
    try:
        for run in runs:
            with uninterrupted():
                if last is None:
                    place.begin(run)
                else:
                    _folder.append_metrics(folder, run.history)
                before, last = last, run
                run.release()  # the files need only its metrics and global model
            if not console.is_terminal and _tenth(run, rounds) > _tenth(before, rounds):
                row = {name: float(values[-1]) for name, values in run.history.items()}
                is_attacked = 0 < run.malicious.sum() < run.data.num_clients
                console.print(f"round {int(row['round'])} of {rounds}, {latest(row, honest=is_attacked)}")
    except KeyboardInterrupt:
        interrupted = True
    if last is None:
        remark("Stopped before the first evaluation, so nothing was written.")
        return 130
    with uninterrupted():
        _finish(folder, last, rounds, unseen, interrupted=interrupted)
    if not console.quiet:
        _print_result(folder, last, rounds, interrupted=interrupted, resumable=place.is_resumable)
    return 130 if interrupted else 0


def _tenth(run: Run | None, rounds: int) -> int:
    """How many tenths of the rounds are done; a log gets about ten lines, whatever the number of rounds."""
    return -1 if run is None else 10 * int(run.history["round"][-1]) // max(rounds, 1)


def _finish(
    folder: Path, run: Run, rounds: int, unseen: FederatedDataset | None, *, interrupted: bool
) -> None:
    done, view = int(run.history["round"][-1]), run.view(unseen=unseen)
    (folder / _folder.REPORT).unlink(missing_ok=True)
    _checksums.reopen(folder)
    _folder.write_text(folder / _folder.METRICS, _folder.metrics_text(run.history))
    with _folder.replacing(folder / _folder.CLIENTS) as temporary:
        write_clients_csv(temporary, view)
    with _folder.replacing(folder / _folder.PARAMS) as temporary:
        _write_params(temporary, run.params)
    summary: dict[str, Any] = {
        "rounds": done,
        "rounds_asked": rounds,
        "cohort": run.info["cohort"],
        "clients": run.data.num_clients,
        "interrupted": interrupted,
        "last": {name: values[-1] for name, values in run.history.items()},
        "seconds": run.info["seconds"],
        "examples_per_second": run.info["examples_per_second"],
        "padded": run.info["padded"],
        "by_class": view.info["by_class"],
        "privacy": view.info.get("privacy"),
        "constant": view.info.get("constant"),
        "metrics": view.info["metrics"],
        "adapts": view.info["adapts"],
        "findings": [finding._asdict() for finding in view.findings],
    }
    seen = honest(view)
    summary["covers"] = {split: covered([seen], split).text for split in view.clients}
    for split, metrics in view.clients.items():
        summary[split] = {metric: statistics(seen, split, metric) for metric in metrics}
        if view.malicious is not None:
            for who in ("all", "honest", "malicious"):
                part = among(view, who)
                summary[f"{split}_{who}"] = {metric: statistics(part, split, metric) for metric in metrics}
        if view.unseen is not None:
            summary[f"{split}_unseen"] = {
                metric: statistics(view.unseen, split, metric) for metric in view.unseen.clients[split]
            }
    _folder.write_text(folder / _folder.SUMMARY, _folder.json_text(summary))
    _checksums.seal(folder)
    with _folder.replacing(folder / _folder.REPORT) as temporary:
        write_report(temporary, [load_run(folder).view])


def _write_params(path: Path, params: Params) -> None:
    """Writes arrays under slash-joined names; a single array is called ``params``."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = (jax.tree_util.keystr(keys, simple=True, separator="/") or "params" for keys, _ in leaves)
    arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    with path.open("wb") as file:  # a path would get the suffix .npz
        np.savez(file, allow_pickle=False, **arrays)


def _print_result(folder: Path, run: Run, rounds: int, *, interrupted: bool, resumable: bool) -> None:
    console = Console(highlight=False)
    of = compare(load_run(folder).view)
    for notice in of.notices:
        if notice.finding.kind != "scales":  # said before the training
            say(console, notice.text, "yellow")
    sizes = f"{run.data.train.rows:,} training and {run.data.test.rows:,} test examples"
    say(console, f"{run.data.name}: {counted(run.data.num_clients, 'client')}, {sizes}")
    console.print(overview(of))
    if (table := metric_table(of)) is not None:
        console.print(table)
    for sentence in metric_remarks(of):
        say(console, sentence)
    for sentence in filter(None, (in_words(of.runs[0], of.split, of.metric),)):
        say(console, sentence)
    if told := of.runs[0].info.get("privacy"):
        say(console, privacy_line(told))
    swung = swing(run.history, of.split, of.metric)
    if swung is not None:
        say(console, f"This has not settled: the {of.split} {of.metric} {swung.text}.")
    done = int(run.history["round"][-1])
    if interrupted:
        resume = f", and `evenhand resume {folder}` continues" if resumable else ""
        stopped = f"Stopped after round {done} of {rounds}; the folder holds the results so far{resume}."
        say(console, stopped)
    say(console, f"Report: {folder / _folder.REPORT}")
