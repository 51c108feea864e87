"""``--keep``: which evaluated round the results describe, the last one or the best so far.

``best/ROUND/`` holds ``clients.csv``, ``params.npz``, ``results.npz``, perhaps ``personal/``, and what ``summary.json``
says about that round, under checksums of their own.  It is written as soon as a round is the best so far, so that a
killed run finds it again; at the end its files are copied into the run folder.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evenhand import records
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError, perhaps
from evenhand.evaluation import SPLIT_NAMES, primary_metric, summarize
from evenhand.report import RunView, honest, statistics
from evenhand.simulation import Run
from evenhand.simulation import folder as files
from evenhand.simulation.saving import with_history
from evenhand.studies import direction
from evenhand.text import quoted

Results = Callable[[Path], Mapping[str, Any]]
"""Writes the results of a round into a folder, and returns what the summary says about that round."""

_WORDS = {
    "mean": "mean over clients",
    "weighted_mean": "mean over examples",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
}


class KeepRule(NamedTuple):
    """What makes an evaluated round the best.

    Attributes:
      split: ``"valid"`` or ``"train"``; the test examples choose nothing.
      statistic: over clients, a name from :func:`evenhand.evaluation.summarize`.
      metric: of each client; None: the accuracy where the model has one, else the loss.
      text: the rule as the option spells it.
    """

    split: str
    statistic: str
    metric: str | None
    text: str

    @property
    def words(self) -> str:
        """The rule as a sentence names it."""
        metric = "" if self.metric is None else f"{self.metric}, "
        return f"best {SPLIT_NAMES[self.split]} {metric}{_WORDS.get(self.statistic, self.statistic)}"

    def check_metric(self, last: Collection[str]) -> None:
        """Refuses a metric that is measured after the ``last`` round only."""
        if self.metric in last:
            raise EvenhandError(
                f"--keep {self.text:.60}: {self.metric} of --metrics is measured after the last round only: choose "
                "a metric that is measured at each evaluation, such as accuracy or loss."
            )

    def check(self, data: FederatedDataset) -> None:
        """Refuses data without examples to choose by."""
        if self.split == "valid" and not data.valid.rows:
            raise EvenhandError(
                f"--keep {self.text} needs validation examples, and {data.name} has none: set some aside with "
                f"--valid-fraction 0.2, or choose by training examples with --keep best:train:{self.statistic}."
            )

    def value(self, view: RunView) -> float:
        """How good a round is, more being better, over the honest clients; NaN where that is unknown."""
        if self.split not in view.clients:  # none of the evaluated clients has examples there
            return math.nan
        metrics = view.clients[self.split]
        metric = primary_metric(metrics) if self.metric is None else self.metric
        if metric not in metrics:
            raise EvenhandError(
                f"--keep {self.text}: there is no metric {metric!r:.40} among {', '.join(sorted(metrics))}."
            )
        value = statistics(honest(view), self.split, metric)[self.statistic]
        return direction(self.statistic, metric) * value


class BestRound(NamedTuple):
    """The best round so far.

    Attributes:
      round: which it is.
      score: how good it is, more being better.
      place: the folder of its results.
    """

    round: int
    score: float
    place: Path


def rule_of(text: str) -> KeepRule | None:
    """The rule that an option spells; None for the last round.

    Raises:
      EvenhandError: it spells none, or names the test examples.
    """
    if text == "last":
        return None
    kind, *parts = text.split(":")
    if kind != "best" or len(parts) not in (2, 3):
        raise EvenhandError(
            f"--keep {text:.60} is not understood: write last, or best:SPLIT:STATISTIC, such as best:valid:worst10."
        )
    split, statistic = parts[:2]
    if split == "test":
        raise EvenhandError(
            f"--keep {text:.60}: test examples must not choose the round that is tested on them: write "
            f"best:valid:{statistic:.40} or best:train:{statistic:.40}."
        )
    if split not in SPLIT_NAMES:
        raise EvenhandError(f"--keep {text:.60}: there is no split {split!r:.40}: write valid or train.")
    names = set(summarize([0.5, 1.0]))
    if statistic not in names:
        raise EvenhandError(
            f"--keep {text:.60}: there is no statistic {statistic!r:.40}{perhaps(statistic, names)}: write mean, "
            "worst10, variance or another that summary.json lists."
        )
    return KeepRule(split, statistic, parts[2] if len(parts) == 3 else None, text)


def best_so_far(folder: Path, rule: KeepRule, done: int) -> BestRound | None:
    """The best round of a run that was stopped and continues after ``done`` rounds, by the same rule.

    That of another rule is removed, and that of a run that starts over, whose settings may have been edited.

    Raises:
      EvenhandError: its files are damaged.
    """
    places = {int(place.name): place for place in (folder / files.BEST).glob("*") if place.name.isdigit()}
    if not places:
        return None
    if done == 0:
        shutil.rmtree(folder / files.BEST)
        return None
    place = places[max(places)]  # a later one was better
    if not files.is_whole(place) or files.damaged_model(place) is not None:
        raise EvenhandError(
            f"{place} is damaged, and with it the best round so far: repeat the run with "
            f"`evenhand run --config {quoted(folder)} --out NEW`."
        )
    kept = records.read_json(place / files.SUMMARY)["kept"]
    if kept["rule"] != rule.text:
        shutil.rmtree(folder / files.BEST)
        return None
    return BestRound(kept["round"], kept["score"], place)


def with_best(
    folder: Path, rule: KeepRule, best: BestRound | None, view: RunView, results: Results
) -> BestRound | None:
    """The best round, once another has been evaluated; of equally good rounds the first.

    Args:
      folder: the run folder.
      rule: what makes a round the best.
      best: the best of the rounds before; None: none had a finite value.
      view: the round that was evaluated.
      results: writes its results into a folder.
    """
    done, value = int(view.history["round"][-1]), rule.value(view)
    if not math.isfinite(value) or (best is not None and value <= best.score):
        return best
    place = folder / files.BEST / str(done)
    part = folder / files.BEST / f".{done}.part"
    for old in (part, place):  # of a run that was killed here, and trains these rounds again
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    kept = {"round": done, "rule": rule.text, "score": value}
    about = results(part)
    with records.writing(part / files.SUMMARY):
        records.write_text(part / files.SUMMARY, records.json_text({**about, "kept": kept}))
    files.seal_part(part)
    os.replace(part, place)
    for other in (folder / files.BEST).iterdir():
        if other != place:
            shutil.rmtree(other)
    return BestRound(done, value, place)


def copied(folder: Path, *, best: BestRound, rule: KeepRule, run: Run) -> dict[str, Any]:
    """Copies the files of the best round into the run folder, and returns what the summary says about it."""
    for name in (files.CLIENTS, files.PARAMS):
        with records.writing(folder / name), records.replacing(folder / name) as temporary:
            shutil.copyfile(best.place / name, temporary)
    with records.writing(folder / files.RESULTS), records.replacing(folder / files.RESULTS) as temporary:
        records.write_arrays(temporary, with_history(records.read_arrays(best.place / files.RESULTS), run))
    personal = folder / files.PERSONAL
    shutil.rmtree(personal, ignore_errors=True)
    if (best.place / files.PERSONAL).is_dir():
        with records.writing(personal), records.replacing_folder(personal) as part:
            shutil.copytree(best.place / files.PERSONAL, part, dirs_exist_ok=True)
    about = records.read_json(best.place / files.SUMMARY)
    about["kept"]["words"] = f"kept round {best.round} of {run.info['rounds']}: {rule.words}"
    return about
