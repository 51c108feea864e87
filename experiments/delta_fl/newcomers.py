"""Clients that were never seen in training: finetuning (table 4), and those with little data (figures 4 and 9)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from matplotlib.figure import Figure

import evenhand as eh
from evenhand.studies import Family, Outcome
from experiments.delta_fl.data import HeldOut, NDArray, held_out, network
from experiments.delta_fl.settings import PERSONAL, Newcomers
from experiments.evidence import Contrast, Finding, Rival, claims, contrast
from experiments.fairness import Measures, collect, picture

__all__ = ["Runs", "draw", "serve_newcomers"]

Served: TypeAlias = dict[tuple[str, float], dict[int, Measures]]
"""Method and learning rate -> seed -> what its run came to."""

_AVERAGE = "FedAvg"
_CHOOSES = "p90 valid"
"""The measure that chooses learning rates: section 7.2 has the 90th percentile of validation errors, too."""
_COLORS = ("#0072B2", "#999999", "#009E73", "#D55E00")
"""Told apart by the colour-blind, too."""


class Runs(NamedTuple):
    """What the runs have in common with those of the tables.

    Attributes:
      place: whose images.
      setting: of the clients and the training.
      data_dir: with the files.
      seeds: that are reported: 0 and so on.
      tilt: of Tilted-ERM.
      folder: keeps each run; None: they are not kept.
    """

    place: HeldOut
    setting: Newcomers
    data_dir: Path
    seeds: int
    tilt: float
    folder: Path | None

    @property
    def ours(self) -> str:
        """The name of the Delta-FL that is compared."""
        return f"Delta-FL, theta={self.setting.theta:g}"


def serve_newcomers(runs: Runs, out: Path, config: Mapping[str, Any]) -> Path:
    """Tunes and runs all methods in one place, and saves numbers, findings and figure; returns the JSON file."""
    setting, methods = runs.setting, _methods(runs)
    tuning = range(runs.seeds, runs.seeds + setting.tuning)
    first, further = range(runs.seeds), range(tuning.stop, tuning.stop + setting.more_seeds)
    every = dict.fromkeys(methods, setting.rates)
    tried = _trained(runs, every, tuning)
    rates = {key: _tuned(tried, key) for key in (_CHOOSES, "mean valid", "p90 valid, finetuned")}
    pair = (_AVERAGE, runs.ours)
    chosen = {method: [rate] for method, rate in rates[_CHOOSES].items()}
    served = _served(runs, _trained(runs, chosen | dict.fromkeys(pair, setting.rates), first))
    more = _served(runs, _trained(runs, {method: chosen[method] for method in pair}, further))
    found = {method: list(served[method, rate].values()) for method, (rate,) in chosen.items()}
    shown = (_AVERAGE, f"Tilted-ERM, t={runs.tilt:g}", f"q-FFL, q={setting.q:g}", runs.ours)
    path = out / f"newcomers_{runs.place}.json"
    extra = {
        "rates": rates,
        "sizes": dict(zip(("loss", "error"), _sizes(runs), strict=True)),
        "clients": {method: _clients(found[method], setting.data["clients"]) for method in shown},
        "findings": findings(runs, rates, served, more),
    }
    kept = {method: [_without_clients(seed) for seed in seeds] for method, seeds in found.items()}
    title = f"{runs.place}, unseen clients"
    collect(path, title, {**config, **asdict(setting)}, kept, PERSONAL, extra)
    draw(path)
    return path


# --- the runs -----------------------------------------------------------------------------------------------------


def _methods(runs: Runs) -> dict[str, Callable[[eh.local.Work, dict[str, Any]], eh.Algorithm]]:
    """Every method as a function of the local work and of the server's steps."""
    make, setting = eh.algorithms, runs.setting
    uniform = eh.sampling.uniform()
    return {
        _AVERAGE: lambda work, server: make.fedavg(work, **server),
        f"Tilted-ERM, t={runs.tilt:g}": lambda work, server: make.term(work, t=runs.tilt, **server),
        f"q-FFL, q={setting.q:g}": lambda work, server: make.qfedavg(
            work, q=setting.q, sampling=uniform, **server
        ),
        **{
            f"Delta-FL, theta={theta:g}": lambda work, server, theta=theta: make.delta_fl(
                work, theta=theta, **server
            )
            for theta in setting.thetas
        },
    }


def _finetuned(runs: Runs, method: str, rate: float) -> eh.Algorithm:
    """``finetune`` around a method: steps shrink in the course of training, and finetuning takes the last of them."""
    setting = runs.setting
    # The server's step, because the clients' optimisers start anew in every round and do not see its number.
    steps = jnp.array([1.0, setting.decay, setting.decay**2])
    server = {"server_opt": optax.sgd(lambda count: steps[3 * jnp.asarray(count) // setting.rounds])}
    work = _work(setting, rate, epochs=1)
    trained = _methods(runs)[method](work, server)
    return eh.personalization.finetune(trained, _work(setting, rate * setting.decay**2, setting.epochs))


def _work(setting: Newcomers, rate: float, epochs: int) -> eh.local.Work:
    return eh.local.sgd(_model(setting.hidden), rate, epochs=epochs, batch_size=setting.batch_size)


@lru_cache(maxsize=1)
def _model(hidden: tuple[int, ...]) -> eh.Model:
    """The same object for training and finetuning."""
    return network("mnist", hidden)


def _trained(runs: Runs, rates: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> list[Outcome]:
    """The runs of each method at its learning rates, on these seeds."""
    setting = runs.setting
    study = eh.study(
        {method: Family(("rate",), partial(_of_numbers, runs, method)) for method in rates},
        lambda seed: held_out(runs.place, runs.data_dir, seed, **setting.data)[0],
        rounds=setting.rounds,
        seeds=seeds,
        grid={method: {"rate": list(values)} for method, values in rates.items()},
        cohort=setting.cohort,
        eval_every=setting.rounds,
        measure=partial(measure, runs),
        folder=runs.folder,
        progress=True,
    )
    if failed := [outcome for outcome in study.outcomes if outcome.status == "failed"]:
        raise SystemExit(f"{failed[0].setting}, seed {failed[0].seed}: {failed[0].reason}")
    return list(study.outcomes)


def _of_numbers(runs: Runs, method: str, numbers: Mapping[str, Any]) -> eh.Algorithm:
    return _finetuned(runs, method, numbers["rate"])


def measure(runs: Runs, run: eh.Run) -> Measures:
    """Errors of the unseen clients in percent, before and after finetuning, and losses of the training clients."""
    setting = runs.setting
    if run.history["round"][-1] < setting.rounds:
        return {}
    trained, unseen = held_out(runs.place, runs.data_dir, run.seed, **setting.data)
    model, params = run.algorithm.model, run.params
    halves = [_errors(eh.evaluation.evaluate(model, params, split)) for split in (unseen.train, unseen.test)]
    values = _spread("before", halves[1]) | _spread(
        "after", _errors(run.serve(unseen).client_metrics("test"))
    )
    for rate in setting.finetune_rates:
        work = _work(setting, rate, setting.epochs)
        other = eh.personalization.finetune(eh.algorithms.fedavg(work), work)
        served = eh.simulate(other, unseen, rounds=0, start=params, seed=run.seed)
        values |= _spread(f"after, step {rate:g}", _errors(served.client_metrics("test")))
    errors = np.average(halves, axis=0, weights=[unseen.train.sizes, unseen.test.sizes])
    losses = eh.evaluation.evaluate(model, params, trained.train)["loss"]
    values |= _spread("valid", _errors(eh.evaluation.evaluate(model, params, trained.valid)))
    values |= _spread("valid, finetuned", _errors(run.client_metrics("valid")))
    values |= {"train loss": float(np.mean(losses)), "train loss std": float(np.std(losses))}
    values |= {f"error of {k}": float(error) for k, error in enumerate(errors)}
    return values | {f"loss of {k}": float(loss) for k, loss in enumerate(losses)}


def _errors(metrics: Mapping[str, NDArray]) -> NDArray:
    """Percent."""
    return 100.0 * (1.0 - metrics["accuracy"])


def _spread(name: str, errors: NDArray) -> Measures:
    """Mean and 90th percentile over clients, all alike."""
    return {f"mean {name}": float(np.mean(errors)), f"p90 {name}": float(np.quantile(errors, 0.9))}


def _by_size(seed: Measures, rows: NDArray, few: int) -> Measures:
    """Mean, 90th percentile and standard deviation of the errors of clients with few rows, and with many.

    Those of the smallest and of the largest fifth of the clients, too.
    """
    errors, ends = np.array([seed[f"error of {k}"] for k in range(len(rows))]), np.quantile(rows, [0.2, 0.8])
    groups = {"few": rows < few, "many": rows >= few, "fewest": rows <= ends[0], "most": rows >= ends[1]}
    values = {}
    for name, chosen in groups.items():
        among = errors[chosen]
        values |= _spread(name, among) | {f"std {name}": float(np.std(among))}
    return values


def _sizes(runs: Runs) -> tuple[list[int], list[int]]:
    """Examples that training clients learn from, and all examples of unseen clients; every seed has the same."""
    trained, unseen = held_out(runs.place, runs.data_dir, 0, **runs.setting.data)
    return trained.train.sizes.tolist(), (unseen.train.sizes + unseen.test.sizes).tolist()


def _without_clients(values: Measures) -> Measures:
    return {name: value for name, value in values.items() if " of " not in name}


def _clients(seeds: Sequence[Measures], clients: int) -> dict[str, list[list[float]]]:
    """The error of each unseen client and the loss of each training client, seed by seed."""
    return {
        name: [[round(seed[f"{name} of {k}"], 3) for k in range(clients)] for seed in seeds]
        for name in ("error", "loss")
    }


# --- which learning rates -----------------------------------------------------------------------------------------


def _tuned(outcomes: Sequence[Outcome], key: str) -> dict[str, float]:
    """Each method's learning rate with the lowest measure on the tuning seeds; one that diverges is not chosen."""
    scores: dict[str, dict[float, list[float]]] = {}
    for outcome in outcomes:
        score = float(outcome.measures[key][-1]) if outcome.status == "done" else math.inf
        by_rate = scores.setdefault(outcome.setting.method, {})
        by_rate.setdefault(outcome.setting.numbers["rate"], []).append(score)
    return {
        method: min(by_rate, key=lambda rate: float(np.mean(by_rate[rate])))
        for method, by_rate in scores.items()
    }


def _served(runs: Runs, outcomes: Sequence[Outcome]) -> Served:
    """What each run came to at its end."""
    rows = np.array(_sizes(runs)[1])
    served: Served = {}
    for outcome in outcomes:
        values = {name: float(course[-1]) for name, course in outcome.measures.items()}
        by_seed = served.setdefault((outcome.setting.method, outcome.setting.numbers["rate"]), {})
        by_seed[outcome.seed] = values | _by_size(values, rows, runs.setting.few)
    return served


# --- what is found ------------------------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """A claim on Delta-FL against FedAvg.

    Attributes:
      sentence: with ``{}`` for the difference.
      key: the measure that is compared.
      minus: another measure that is taken off it.
      others: measures of other finetuning steps that tuning may choose.
      selection: what else may explain the finding by what was selected, and the run that tests it.
      chooses: the measure that chooses the learning rates of that run.
      instead: ``key`` and ``minus`` of that run; None: those above.
    """

    sentence: str
    key: str
    minus: str | None = None
    others: tuple[str, ...] = ()
    selection: tuple[str, str] = ("", "")
    chooses: str = _CHOOSES
    instead: tuple[str, str | None] | None = None


def _claims(runs: Runs) -> dict[str, _Claim]:
    where = {"mnist": "MNIST with skewed digits", "femnist": "FEMNIST's digits"}[runs.place]
    few = f"fewer than {runs.setting.few} examples"
    unseen = f"On unseen clients of {where},"
    against = f"of Delta-FL (theta = {runs.setting.theta:g}) differs from that of FedAvg by {{}}."
    chooses = "the 90th percentile chose the learning rates"
    divides = "the size that divides the clients was chosen"
    return {
        "before": _Claim(
            f"{unseen} the 90th percentile of errors before finetuning {against}",
            "p90 before",
            selection=(chooses, "learning rates chosen by the mean of validation errors"),
            chooses="mean valid",
        ),
        "after": _Claim(
            f"{unseen} the 90th percentile of errors after {runs.setting.epochs} epochs of finetuning {against}",
            "p90 after",
            others=tuple(f"p90 after, step {rate:g}" for rate in runs.setting.finetune_rates),
            selection=(
                "learning rates were chosen before finetuning",
                "learning rates chosen by validation errors after finetuning",
            ),
            chooses="p90 valid, finetuned",
        ),
        "few": _Claim(
            f"{unseen} the mean error of those with {few}, less that of the others, {against}",
            "mean few",
            minus="mean many",
            selection=(divides, "the smallest fifth of the clients against the largest"),
            instead=("mean fewest", "mean most"),
        ),
        "spread": _Claim(
            f"{unseen} the standard deviation of errors among those with {few} {against}",
            "std few",
            selection=(divides, "the smallest fifth of the clients"),
            instead=("std fewest", None),
        ),
    }


_TUNING = "steps suit one method better", "each method at the steps that are best on these very clients"
_SEEDS = "the five seeds are special", "five further seeds, with the same learning rates"


def findings(
    runs: Runs, rates: Mapping[str, Mapping[str, float]], served: Served, more: Served
) -> dict[str, Any]:
    """The findings on table 4 and figures 4 and 9, each with its rival explanations.

    Args:
      runs: what was run.
      rates: measure -> the learning rates that it chooses.
      served: the runs of the seeds that are reported, of FedAvg and Delta-FL with all learning rates.
      more: further seeds, with the learning rates of the comparison.
    """
    saved = {}
    for name, claim in _claims(runs).items():
        key, minus = claim.key, claim.minus
        main, further, other, tuned = [], [], [], []
        for method in (runs.ours, _AVERAGE):
            rate = rates[_CHOOSES][method]
            main.append(_values(served[method, rate], key, minus))
            further.append(_values(more[method, rate], key, minus))
            other.append(
                _values(served[method, rates[claim.chooses][method]], *(claim.instead or (key, minus)))
            )
            tuned.append(_hindsight(served, method, claim))
        rivals = [
            Rival("tuning", *_TUNING, _difference(tuned)),
            Rival("seeds", *_SEEDS, _difference(further)),
            Rival("selection", *claim.selection, _difference(other)),
        ]
        saved[name] = claims(Finding(claim.sentence, _difference(main)), rivals)
    return saved


def _values(seeds: Mapping[int, Measures], key: str, minus: str | None) -> list[float]:
    """A measure of each seed, in the order of the seeds."""
    return [seeds[seed][key] - (seeds[seed][minus] if minus else 0.0) for seed in sorted(seeds)]


def _hindsight(served: Served, method: str, claim: _Claim) -> list[float]:
    """The values of a claim at the learning rate, and the finetuning step, with the lowest measure over the seeds."""
    tried = [
        (float(np.mean(_values(seeds, key, None))), seeds, key)
        for (name, _), seeds in served.items()
        for key in (claim.key, *claim.others)
        if name == method
    ]
    _, seeds, key = min(tried, key=lambda one: one[0])
    return _values(seeds, key, claim.minus)


def _difference(both: Sequence[Sequence[float]]) -> Contrast:
    ours, theirs = ([{"value": value} for value in values] for values in both)
    return contrast(ours, theirs, "value")


def draw(path: Path) -> Path:
    """Errors of unseen clients, and losses of training clients, over their sizes; the PNG lies beside the JSON file.

    Each mark is a client of one seed; a line joins the means of groups of clients of about the same size.
    """
    content = json.loads(path.read_text())
    methods, sizes = content["clients"], content["sizes"]
    labels = {"error": "error of unseen clients (%)", "loss": "loss of training clients"}
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.2, 3.0), layout="constrained")
        for axis, (name, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
            rows = np.array(sizes[name])
            groups = [np.flatnonzero(rows == size) for size in np.unique(rows)]
            if len(groups) > 10:
                groups = np.array_split(np.argsort(rows, kind="stable"), 10)
            for (method, saved), color in zip(methods.items(), _COLORS, strict=True):
                values = np.array(saved[name])
                marked = method in (_AVERAGE, list(methods)[-1])
                if marked:
                    axis.scatter(np.tile(rows, len(values)), values, 4, color, alpha=0.2, linewidths=0)
                means = [values[:, group].mean() for group in groups]
                middle = [rows[group].mean() for group in groups]
                axis.plot(middle, means, "-" if marked else "--", color=color, lw=1.3, label=method)
            axis.set_xscale("log")
            axis.set_xticks([50, 100, 200, 400], ["50", "100", "200", "400"])
            axis.minorticks_off()
            axis.set_xlim(0.9 * rows.min(), 1.1 * rows.max())
            axis.set_xlabel("examples of the client")
            axis.set_ylabel(label)
        axis.legend(frameon=False, fontsize=8)
        return picture(figure, path.with_suffix(".png"))
