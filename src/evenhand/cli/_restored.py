"""A run restored from its ``config.json``, to be trained further or applied to new rows.

From top to bottom: the configuration of an earlier run, in the options of a new one (``run --config``); ``evenhand
resume``, where a stopped run continues, and ends as if it had never been stopped: it never replaces more rounds by
fewer, and it rebuilds damaged results from the checkpoint; ``evenhand predict``, the trained model of a run folder,
applied to new rows.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from rich.console import Console
from tyro.conf import Positional, arg

from evenhand.cli._arguments import construct, hyphenated, options_of
from evenhand.cli._data import DataOptions, labels_of
from evenhand.cli._folder import refuse_file_of_run, refuse_other
from evenhand.cli._run import ELSEWHERE, Place, Recorded, RunCommand, changes, config_file, naming
from evenhand.cli._terminal import remark, say
from evenhand.data import load_features
from evenhand.data.loaders import NewRows
from evenhand.errors import EvenhandError
from evenhand.evaluation import is_share, unlabelled
from evenhand.evaluation.metrics import check, measure, resolved
from evenhand.expressions import canonical, plugins
from evenhand.records import CHECKSUMS, NewerFormat, check_format, held, read_json, replacing, writing
from evenhand.simulation import Checkpoint, SavedRun, load_run
from evenhand.simulation import folder as files
from evenhand.simulation.results import Predicted
from evenhand.simulation.saving import SAVED_BY
from evenhand.text import counted, quoted, spreadsheet_cell, visible
from evenhand.types import PyTree

# --- config.json, read back into options --------------------------------------------------------------------


_EITHER = {"epochs": "steps", "steps": "epochs", "stragglers": "systems", "systems": "stragglers"}


class _SavedFromPython(EvenhandError):
    """A run that no command repeats or continues."""


def recorded(path: Path) -> Recorded:
    """What a run folder or its ``config.json`` says.

    Raises:
      NewerFormat: a later version of Evenhand wrote it.
      EvenhandError: the file is missing, not JSON, or not the configuration of a run.
    """
    path = config_file(path)
    config = read_json(path)
    check_format(path, config)
    if SAVED_BY in config:
        raise _SavedFromPython(
            f"{path.parent} was saved from Python, so no command can repeat or continue it: repeat it in Python."
        )
    method, options = config.get("method"), config.get("options")
    if not isinstance(method, str) or not isinstance(options, dict):
        raise EvenhandError(
            f"{path} is not the configuration of a run: name the config.json of a run folder."
        )
    with naming(path):
        return Recorded(path, canonical(method), options, files.dict_in(config, "plugins"))


def recorded_run(before: Recorded, method: str, given: Mapping[str, Any] = {}) -> RunCommand:
    """A run with the options that a file records, except for those that are ``given``.

    Args:
      before: what the file says.
      method: the expression of the method.
      given: name -> value.

    Raises:
      EvenhandError: the file has a setting that no run has, or a value of another kind.
    """
    dropped = {other for name, other in _EITHER.items() if name in given}.union(given)
    kept = {name: value for name, value in before.options.items() if name not in dropped}
    options = options_of(RunCommand)
    for name, value in kept.items():
        option = f"--{hyphenated(name)}"
        if option not in options or "-" in name:
            raise EvenhandError(f"{before.path}: run has no option {option}: leave {name!r:.40} out.")
        if options[option].inverts:
            switch = name.removeprefix("no_")
            raise EvenhandError(f"{before.path}: write {switch!r}, true or false, in place of {name!r}.")
        if not options[option].holds(value):
            raise EvenhandError(f"{before.path}: {option} takes {options[option]}, not {value!r:.40}.")
    kept = {name: value for name, value in kept.items() if name not in ELSEWHERE}
    return construct(RunCommand, {**kept, **given, "method": method})


# --- evenhand resume ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResumeCommand:
    """Continue a run that was stopped or killed; the results are the same as without the interruption."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run`"""
    rounds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as before)")] = None
    """total number of rounds, including those already done; a larger number trains further"""
    quiet: bool = False
    """print nothing but errors"""

    def execute(self) -> int:
        """Trains on, completes the run folder and returns the exit code."""
        refuse_other(self.run, "is a study: run the `evenhand study` command that made it again to finish it")
        with held(self.run):
            return self._resume()

    def _resume(self) -> int:
        path = self.run / files.CONFIG
        before = _restored(path)
        options = replace(before.training, quiet=self.quiet)
        if self.rounds is not None and self.rounds != options.rounds:
            # Evaluated as often as before, whatever the new number of rounds would have led to.
            options = replace(options, rounds=self.rounds, eval_every=options.every)
        run = replace(before, training=options)
        condition = files.condition_of(self.run)
        if not condition.damaged and (name := files.damaged_model(self.run)) is not None:
            condition = condition._replace(damaged=(name,))
        ended = _ended(self.run, condition)
        # A run that has not ended has done no more rounds than were asked for, whatever a damaged line says; an edited
        # configuration no longer says how many that were.
        limit = before.training.rounds if not condition.is_edited else sys.maxsize
        most = max(ended or 0, min(files.last_round(self.run), limit))
        again = f"`evenhand run --config {quoted(self.run)} --rounds {options.rounds} --out NEW`"
        if options.rounds < most:
            raise EvenhandError(
                f"{self.run} has already done {most} rounds, more than the {options.rounds} asked for: ask for more, "
                f"or train fewer in another folder with {again}."
            )
        is_complete = (self.run / files.REPORT).exists() and not condition.damaged
        if ended is not None and ended == options.rounds and is_complete:
            if not self.quiet:
                shown = visible(self.run)
                print(f"{shown} is finished after {ended} rounds: --rounds {2 * ended} trains further.")
            return 0
        saved = bool(Checkpoint(self.run / files.CHECKPOINT).saved())
        if options.checkpoint == "off" or (not saved and (ended is not None or condition.damaged)):
            raise EvenhandError(
                f"{self.run} has no checkpoint to continue from: repeat the run with {again}."
            )
        return self._train(path, run, list(self._remarks(condition, saved=saved)))

    def _remarks(self, condition: files.Condition, *, saved: bool) -> Iterator[str]:
        if condition.is_edited and not self.quiet:
            yield f"{self.run / files.CONFIG} was changed since it was written: the new settings apply."
        for name in condition.damaged[:1]:
            yield f"{self.run / name} is damaged: the results are rebuilt from the checkpoint."
        if not (saved or self.quiet):
            yield f"{self.run} was stopped before its first state was saved: the run starts over."

    def _train(self, path: Path, run: RunCommand, remarks: list[str]) -> int:
        data, before = run.data.load(quiet=self.quiet), read_json(path)
        anew = f"start over with `evenhand run --config {quoted(self.run)} --out NEW`"
        if files.dict_in(before, "data").get("fingerprint") != data.fingerprint:
            raise EvenhandError(
                f"The data {run.data.data} are not those that {self.run} was trained on: restore them, or {anew}."
            )
        config = run.recorded(data)
        if before.get("start") != config.get("start"):
            raise EvenhandError(
                f"The model in {run.training.start} is not the one from which {self.run} began: restore it, or {anew}."
            )
        for name, path in run.training.beside.files.items():
            if files.dict_in(before, "beside").get(name) != config["beside"][name]:
                raise EvenhandError(
                    f"--{hyphenated(name)} {path} is not the file with which {self.run} began: restore it, or {anew}."
                )
        remarks += [] if self.quiet else changes(path, config)
        return run.train(data, Place(self.run, config, resumed=True, remarks=tuple(remarks)))


def _restored(path: Path) -> RunCommand:
    """The command that a ``config.json`` records."""
    try:
        before = recorded(path)
    except (NewerFormat, _SavedFromPython):
        raise  # the file is as it was written
    except EvenhandError as error:
        raise _damaged(path, error) from None
    plugins.moved(path, before.plugins)  # one that is missing is not damage
    try:
        run = recorded_run(before, before.method)
        run.check()
    except EvenhandError as error:
        raise _damaged(path, error) from None
    return run


def _damaged(path: Path, error: EvenhandError) -> EvenhandError:
    return EvenhandError(f"{path} is damaged: {str(error).removeprefix(f'{path}: ')}")


def _ended(folder: Path, condition: files.Condition) -> int | None:
    """How many rounds the run finished with, or None if it did not finish."""
    if condition.results == "none" or {files.SUMMARY, CHECKSUMS} & set(condition.damaged):
        return None
    try:
        summary = read_json(folder / files.SUMMARY)
    except EvenhandError:
        return None  # it will be written again
    rounds = summary.get("rounds")
    return None if summary.get("interrupted") or not isinstance(rounds, int) else rounds


# --- evenhand predict ---------------------------------------------------------------------------------------


NDArray = npt.NDArray[Any]

_SHOWN = 3
"""Names of unknown clients or labels that a sentence lists."""


@dataclass(frozen=True)
class PredictCommand:
    """Apply a trained model to new rows: the client's personal model if the run kept one, else the global model."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """a folder written by `evenhand run`"""
    data: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(required)")] = None
    """new rows: a table with the feature columns of the training data, or an .npz file with its array of features"""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: print them)")] = None
    """CSV file for the predictions, with one line per row"""
    metrics: Annotated[str | None, arg(metavar="METRIC,...", help_behavior_hint="(default: none)")] = None
    """further metrics of the rows with a known label: auc, macro_f1, ...; see `evenhand list metrics`"""
    quiet: bool = False
    """print no remarks"""

    def execute(self) -> int:
        """Writes the predictions and returns the exit code."""
        if self.data is None:
            raise EvenhandError(
                f"predict needs rows: `evenhand predict {quoted(self.run)} --data NEW.csv --out P.csv`."
            )
        if self.out is not None:
            refuse_file_of_run(self.out)
            if self.out.resolve() == self.data.resolve():
                raise EvenhandError(f"--out {self.out} is the file of --data: name another file.")
        metrics = resolved(self.metrics or ())
        saved, options = _trained(self.run, quiet=self.quiet)
        features = load_features(self.run) if (self.run / files.FEATURES).is_file() else None
        rows = options.new_rows(self.data, features)
        rows = rows._replace(x=unlabelled(rows.x, saved.form.shape, saved.form.dtype, str(self.data)))
        if not len(rows.x):
            raise EvenhandError(f"{self.data} has no rows: add at least one below the header.")
        y, has_label = labels_of(rows, saved.form)
        if metrics:
            if not has_label.any():
                raise EvenhandError(
                    f"--metrics {self.metrics:.60} needs labels, and {self.data} has none that the model knows: add "
                    f"the column {options.label_column}."
                )
            check(metrics, (0,), y.dtype, margins=saved.applied().gives == "margin")
        predicted, measures = _measured(saved, rows, y, has_label)
        _write(self.out, _lines(saved, rows, predicted))
        console = Console(stderr=self.out is None, quiet=self.quiet, highlight=False)
        further = measure(metrics, predicted.scores[has_label], y[has_label])
        quality = _how_good(rows, measures, has_label, further)
        say(console, *_who(saved, options, rows, predicted), *_unseen(rows), *quality)
        if options.weight_column is not None and has_label.any():
            say(console, f"Here each row counts once, whatever column {options.weight_column} says.")
        if self.out is not None:
            say(console, f"Predictions: {self.out}")
        return 0


def _trained(folder: Path, *, quiet: bool) -> tuple[SavedRun, DataOptions]:
    """The run in a folder, with its model, and how its data were read.

    Raises:
      EvenhandError: it is no run folder, has no results, or they are damaged.
    """
    path = folder / files.CONFIG
    refuse_other(folder, "is the folder of a study: name a run folder that `evenhand run` wrote")
    saved = load_run(folder)
    remark(*([] if quiet else saved.remarks))
    model, form = saved.model, saved.form
    options = DataOptions(client_column=saved.config["data"].get("client_column") or "client")
    if saved.is_of_command:
        before = recorded(path)
        if (sentence := plugins.moved(path, before.plugins)) is not None and not quiet:
            remark(sentence)
        with naming(path):
            run = recorded_run(before, before.method)
            # Of the method, since a method may train another model than the one that it is given.
            model, options = run.algorithm(run.model.build(form), Console(quiet=True)).client_model, run.data
    if model is None:
        raise EvenhandError(
            f"{folder} was saved from Python with a model that only Python has: use "
            "eh.load_run(folder, model=model).predict(x)."
        )
    return replace(saved, model=model), options


def _measured(
    saved: SavedRun, rows: NewRows, y: NDArray, has_label: NDArray
) -> tuple[Predicted, Mapping[str, NDArray]]:
    """What the models make of the rows; and the loss and each metric of the model, NaN for a row without a label."""
    model = saved.applied().model
    # A model may report its loss otherwise than it is trained by.
    measured = {**model.metrics, "loss": model.metrics.get("loss", model.losses)}
    measures = {name: np.full(len(rows.x), np.nan) for name in measured}

    def measure_part(outcome: PyTree, chosen: NDArray) -> None:
        for name, of_rows in measured.items() if len(has_label) else ():
            values = np.asarray(of_rows(jax.tree.map(jnp.asarray, outcome), jnp.asarray(y[chosen])))
            measures[name][chosen] = np.where(has_label[chosen], values, np.nan)

    return saved.predicted(rows.x, rows.clients, measure_part), measures


def _lines(saved: SavedRun, rows: NewRows, predicted: Predicted) -> Iterator[list[str]]:
    """The header and a line for each row."""
    columns = {"row": np.arange(1, len(rows.x) + 1)}
    columns |= {} if rows.clients is None else {"client": rows.clients}
    columns |= {**saved.applied().columns(predicted.scores), "model": predicted.models}
    yield [spreadsheet_cell(visible(name)) for name in columns]
    yield from map(list, zip(*map(_cells, columns.values()), strict=True))


def _cells(values: NDArray) -> list[str]:
    """A column as text; -1 is a class that a model that diverged does not choose, and stays empty."""
    match values.dtype.kind:
        case "f":
            return [format(value, ".9g") for value in values.tolist()]
        case "i":
            return ["" if value < 0 else str(value) for value in values.tolist()]
        case _:
            return [spreadsheet_cell(visible(value)) for value in values.tolist()]


def _write(path: Path | None, lines: Iterable[Sequence[str]]) -> None:
    if path is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), replacing(path) as new, new.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _who(saved: SavedRun, options: DataOptions, rows: NewRows, predicted: Predicted) -> Iterator[str]:
    """Which models the rows got, in sentences."""
    own, count = int(predicted.is_personal.sum()), len(rows.x)
    if saved.level is not None:
        yield f"{counted(count, 'row')}: {own:,} predicted by the model of the client's level."
        if own < count:
            yield (
                f"{counted(count - own, 'row')} of clients that the run did not serve, or without a client in column "
                f"{options.client_column}, predicted by {saved.info['levels'][0]}."
            )
        return
    if not saved.personal:
        yield f"{counted(count, 'row')}, predicted by the global model."
        if saved.has_personal_models and not (saved.folder / files.PERSONAL).is_dir():
            yield (
                f"{saved.folder} has no {files.PERSONAL}/, and so no personal models: train it again with "
                "--keep-personal to use them."
            )
        return
    others = f"{count - own:,} by the global model"
    yield f"{counted(count, 'row')}: {own:,} predicted by the client's personal model, {others}."
    if rows.clients is None:
        column = options.client_column
        yield f"The rows have no client ids: add the column {column} to use personal models."
        return
    absent = dict.fromkeys(rows.clients[~predicted.is_personal].tolist())
    nameless, unknown = "" in absent, [name for name in absent if name]
    if unknown:
        yield (
            f"{counted(len(unknown), 'client')} {'has' if len(unknown) == 1 else 'have'} no model in "
            f"{files.PERSONAL}/: {_some(unknown)}."
        )
    if nameless:
        yield f"{counted(int((rows.clients == '').sum()), 'row')} without a client id."


def _how_good(
    rows: NewRows, measures: Mapping[str, NDArray], has_label: NDArray, further: Mapping[str, float]
) -> Iterator[str]:
    """How good the predictions are where the labels are known, in sentences; ``further`` metrics are of all of them."""
    if rows.labels is None or not len(has_label):
        return
    labelled = int(has_label.sum())
    if labelled:
        means = {
            name: float(np.mean(of_rows[has_label], dtype=np.float64)) for name, of_rows in measures.items()
        }
        means |= further
        shown = [
            f"{name} undefined"
            if name in further and np.isnan(mean)
            else f"{name} {f'{100 * mean:.1f} %' if is_share(name) else f'{mean:.4g}'}"
            for name, mean in means.items()
        ]
        yield f"Over the {counted(labelled, 'row')} with a known label: {', '.join(shown)}."
    strange = dict.fromkeys(name for name in rows.labels[~has_label].tolist() if name)
    if strange:
        count = int((~has_label & (rows.labels != "")).sum())
        yield f"{counted(count, 'row')} with a label that the model does not know: {_some(list(strange))}."


def _unseen(rows: NewRows) -> Iterator[str]:
    """Texts of the table that no training row had, in sentences."""
    for column, (count, text) in rows.unseen.items():
        had = f"{counted(count, 'row')} with a {column!r} that no training row had, such as {text!r:.60}"
        yield f"{had}: all inputs of this column are 0 there."


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:40]) for name in names[:_SHOWN]) + (", ..." if names[_SHOWN:] else "")
