"""A run recorded as it happens: every evaluation at once, and a complete run folder whenever the run ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from evenhand.cli import _checksums, _folder
from evenhand.cli._keep import BestRound, Results, Rule, best_so_far, copied, rule_of, with_best
from evenhand.cli._params import write_params, write_personal
from evenhand.cli._saved import load_run
from evenhand.cli._tables import metric_table, overview
from evenhand.cli._terminal import remark, say
from evenhand.data import FederatedDataset
from evenhand.records import uninterrupted
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

__all__ = ["Place", "record"]

_MOST_PERSONAL = 2**32
"""Bytes of all personal models that a run folder keeps without being asked to."""


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

    @property
    def rule(self) -> Rule | None:
        """Which round the results describe: the best by this rule, or None, the last."""
        return rule_of(self.config["options"].get("keep", "last"))

    def discards(self, run: Run) -> str:
        """Why the models that this run serves to single clients are not kept, as a sentence; empty if they are."""
        options = self.config["options"]
        if options.get("keep_personal"):
            return ""
        size = run.data.num_clients * sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
        reasons = {
            "--checkpoint off": not self.is_resumable,
            f"--keep {options.get('keep')}": self.rule is not None,
            f"they would take {size / 1e9:.1f} GB": size > _MOST_PERSONAL,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        return (
            "" if reason is None else f"Personal models are not kept ({reason}): --keep-personal keeps them."
        )

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
    folder, rule = place.folder, place.rule
    last, best, interrupted, keeps, is_released = None, None, False, False, False
    try:
        for run in runs:
            with uninterrupted():
                if last is None:
                    if rule is not None:
                        rule.value(run.view())  # refuses a metric that the model does not have
                        best = best_so_far(folder, rule) if place.resumed else None
                    place.begin(run)
                    keeps = run.has_personal_models and not place.discards(run)
                else:
                    _folder.append_metrics(folder, run.history)
                if rule is not None:
                    results = partial(_write_results, run=run, unseen=unseen, personal=keeps)
                    best = with_best(folder, rule, best, run.view(), results)
                before, last = last, run
                # The files need only its metrics and global model, and those of the last round the clients' states.
                is_last = run.info["rounds"] == rounds
                is_released = not (keeps and best is None and (is_last or run.kept.light))
                if is_released:
                    run.release()
            if not console.is_terminal and _tenth(run, rounds) > _tenth(before, rounds):
                row = {name: float(values[-1]) for name, values in run.history.items()}
                is_attacked = 0 < run.malicious.sum() < run.data.num_clients
                console.print(f"round {int(row['round'])} of {rounds}, {latest(row, honest=is_attacked)}")
    except KeyboardInterrupt:
        interrupted = True
    if last is None:
        remark("Stopped before the first evaluation, so nothing was written.")
        return 130
    results = partial(_write_results, run=last, unseen=unseen, personal=keeps and not is_released)
    if rule is not None and best is not None:
        results = partial(copied, best=best, rule=rule, rounds=last.info["rounds"])
    with uninterrupted():
        if rule is None:  # an edited configuration no longer asks for the best round
            shutil.rmtree(folder / _folder.BEST, ignore_errors=True)
        _finish(folder, last, rounds, results, interrupted=interrupted)
    if not console.quiet:
        _print_result(folder, last, rounds, interrupted=interrupted, resumable=place.is_resumable)
        for sentence in _about_models(place, last, best):
            say(Console(highlight=False), sentence)
    return 130 if interrupted else 0


def _tenth(run: Run | None, rounds: int) -> int:
    """How many tenths of the rounds are done; a log gets about ten lines, whatever the number of rounds."""
    return -1 if run is None else 10 * int(run.history["round"][-1]) // max(rounds, 1)


def _finish(folder: Path, run: Run, rounds: int, results: Results, *, interrupted: bool) -> None:
    """Completes the run folder; ``results`` writes the files that describe the round that is kept."""
    (folder / _folder.REPORT).unlink(missing_ok=True)
    _checksums.reopen(folder)
    _folder.write_text(folder / _folder.METRICS, _folder.metrics_text(run.history))
    summary = {
        "rounds": int(run.history["round"][-1]),
        "rounds_asked": rounds,
        "cohort": run.info["cohort"],
        "clients": run.data.num_clients,
        "interrupted": interrupted,
        "last": {name: values[-1] for name, values in run.history.items()},
        "seconds": run.info["seconds"],
        "examples_per_second": run.info["examples_per_second"],
        "padded": run.info["padded"],
        "privacy": None if run.privacy is None else run.privacy.in_words(),
        **results(folder),
    }
    _folder.write_text(folder / _folder.SUMMARY, _folder.json_text(summary))
    _checksums.seal(folder)
    with _folder.replacing(folder / _folder.REPORT) as temporary:
        write_report(temporary, [load_run(folder).view])


def _write_results(
    folder: Path, *, run: Run, unseen: FederatedDataset | None, personal: bool
) -> dict[str, Any]:
    """Writes the files that describe the run's latest round, and returns what the summary says about that round."""
    view = run.view(unseen=unseen)
    with _folder.replacing(folder / _folder.CLIENTS) as temporary:
        write_clients_csv(temporary, view)
    write_params(folder / _folder.PARAMS, run.params)
    shutil.rmtree(folder / _folder.PERSONAL, ignore_errors=True)
    if personal:
        write_personal(folder, run.data.client_ids, run.personal_models(), run.personal_clients)
    about: dict[str, Any] = {
        "by_class": view.info["by_class"],
        "constant": view.info.get("constant"),
        "metrics": view.info["metrics"],
        "adapts": view.info["adapts"],
        "findings": [finding._asdict() for finding in view.findings],
    }
    seen = honest(view)
    about["covers"] = {split: covered([seen], split).text for split in view.clients}
    for split, metrics in view.clients.items():
        about[split] = {metric: statistics(seen, split, metric) for metric in metrics}
        if view.malicious is not None:
            for who in ("all", "honest", "malicious"):
                part = among(view, who)
                about[f"{split}_{who}"] = {metric: statistics(part, split, metric) for metric in metrics}
        if view.unseen is not None and split in view.unseen.clients:  # none of them may have examples in it
            about[f"{split}_unseen"] = {
                metric: statistics(view.unseen, split, metric) for metric in view.unseen.clients[split]
            }
    return about


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
    if (kept := of.runs[0].info.get("kept")) is not None:
        say(console, f"{kept[:1].upper()}{kept[1:]}.")
        measured = of.runs[0].clients[of.split]
        if lacking := ",".join(metric.name for metric in run.metrics if metric.name not in measured):
            measures = f"`evenhand predict {folder} --data FILE --metrics {lacking}` measures the kept model"
            say(console, f"{lacking}: not measured, since --metrics are those of the last round; {measures}.")
    elif swung is not None:
        say(console, f"This has not settled: the {of.split} {of.metric} {swung.text}.")
    done = int(run.history["round"][-1])
    if interrupted:
        resume = f", and `evenhand resume {folder}` continues" if resumable else ""
        stopped = f"Stopped after round {done} of {rounds}; the folder holds the results so far{resume}."
        say(console, stopped)
    say(console, f"Report: {folder / _folder.REPORT}")


def _about_models(place: Place, run: Run, best: BestRound | None) -> Iterator[str]:
    """What to know about the models in the folder, in sentences."""
    if place.rule is not None and best is None:
        yield f"--keep {place.rule.text}: no round has a finite value, so the results are those of the last round."
    if not run.has_personal_models:
        if place.config["options"].get("keep_personal"):
            yield "--keep-personal has no effect: the method has one model for all clients."
    elif (folder := place.folder / _folder.PERSONAL).is_dir():
        yield f"Personal models: {folder}"
    else:
        later = f"The personal models are written when the run ends: `evenhand resume {place.folder}` continues it."
        yield place.discards(run) or later
