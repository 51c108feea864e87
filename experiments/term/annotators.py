"""Annotators of low quality: TERM over annotators, against all labels, only clean ones, and fewer annotators.

Figures 7.9 and 7.20 of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (numbered as in the first author's
dissertation), on MNIST in place of CIFAR-10.  From the root of the repository:

    python -m experiments.term.annotators --data-dir DIR
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import tyro

import evenhand as eh
from evenhand.types import Array
from experiments.fairness import Measures
from experiments.term.table import TermExperiment, kept, run

CLASSES = 10
TUNING_SEED = 1000
RAMPED = "TERM, tilt ramped"
PAPER = {"TERM": {"test_accuracy": 0.825}, "Genie ERM": {"test_accuracy": 0.825}}
"""Figure 7.9, on CIFAR-10: TERM reaches the limit of Genie ERM.  Figure 7.20 has no numbers."""


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    images: int = 50_000
    """Figure 7.9: divided among the annotators."""
    valid: int = 5000
    """Ours: further images with clean labels, on which each method's learning rate is chosen."""
    annotators: int = 100
    """Figure 7.9: half a thousand images each."""
    hammers: int = 20
    """Figure 7.9: annotators whose labels are right; the others' are uniformly random."""
    shares: tuple[float, ...] = (0.0, 0.2, 0.4, 1.0)
    """Figure 7.20: random labels of the first annotators; one more gives the next label after the right one."""
    t: float = -2.0
    """Section 7.7: all negative tilts."""
    rate: float = 0.2
    """The authors' code: the share of the newest batch in an annotator's loss."""
    hidden: int = 64
    """Ours: the network's one hidden layer."""
    batch_size: int = 100
    """The authors' code, and so are the next three."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    ramp: float = 0.25
    """Ours, in the ramped row: the tilt falls from 0 during this share of the steps (section 7.5 advises it)."""
    drops: tuple[float, ...] = (0.5, 0.8)
    """The authors' code: the learning rate falls to a tenth after these shares of the steps."""
    steps: int = 4000
    """Ours: 8 epochs; the authors' code has 100."""
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Ours, with 0.1 from the authors' code; for each method the best on validation images."""


class Labelled(NamedTuple):
    """Images in the order of their annotators, with what each is shown to have.

    Attributes:
      x: pixels from 0 to 1.
      y: the annotators' labels.
      annotator: of each image.
      is_random: whether the label was drawn, or is the next one; by chance a drawn one may be right.
      valid: images and clean labels, to choose by.
      test: images and clean labels.
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int32]
    annotator: npt.NDArray[np.int32]
    is_random: npt.NDArray[np.bool_]
    valid: tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]
    test: tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]


# --- data --------------------------------------------------------------------------------------------------------


@cache
def images(data_dir: Path) -> tuple[Any, Any, Any, Any]:
    """MNIST as it is stored: images and labels for training and for the test."""
    path = data_dir / "mnist.npz"
    if not path.exists():
        raise SystemExit(f"no {path}: say with --data-dir where it is.")
    with np.load(path) as file:
        return file["x_train"], file["y_train"], file["x_test"], file["y_test"]


def hammers_and_spammers(config: Config, seed: int) -> Labelled:
    """Recipe of figure 7.9: the first annotators are right, and the others' labels are uniformly random."""
    return _labelled(config, seed, config.annotators, _spam)


def graded(config: Config, seed: int) -> Labelled:
    """Recipe of figure 7.20: annotators of falling quality, and one that gives the next label after the right one."""
    return _labelled(config, seed, len(config.shares) + 1, _grade)


def _labelled(config: Config, seed: int, annotators: int, corrupt: Any) -> Labelled:
    x, y, x_test, y_test = images(config.data_dir)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    if len(order) < config.images + config.valid:
        raise SystemExit(
            f"{len(order)} images are fewer than --images {config.images} and --valid {config.valid}."
        )
    rows, held = order[: config.images], order[config.images :][: config.valid]
    annotator = np.repeat(np.arange(annotators, dtype=np.int32), config.images // annotators)
    rows = rows[: len(annotator)]
    labels, is_random = corrupt(config, y[rows].astype(np.int32), annotator, rng)
    return Labelled(
        x=_pixels(x[rows]),
        y=labels,
        annotator=annotator,
        is_random=is_random,
        valid=(_pixels(x[held]), y[held].astype(np.int32)),
        test=(_pixels(x_test), y_test.astype(np.int32)),
    )


def _spam(config: Config, y: Any, annotator: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    is_random = annotator >= config.hammers
    return np.where(is_random, rng.integers(CLASSES, size=len(y), dtype=np.int32), y), is_random


def _grade(config: Config, y: Any, annotator: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    size = np.bincount(annotator)[0]
    place = np.arange(len(y)) % size
    last = annotator == len(config.shares)
    share = np.array([*config.shares, 0.0])[annotator]
    is_random = place < np.rint(share * size)
    drawn = rng.integers(CLASSES, size=len(y), dtype=np.int32)
    return np.where(last, (y + 1) % CLASSES, np.where(is_random, drawn, y)), is_random | last


def _pixels(x: Any) -> Any:
    return x.reshape(len(x), -1).astype(np.float32) / 255


# --- methods -----------------------------------------------------------------------------------------------------


def fitted(
    config: Config,
    labelled: Labelled,
    keep: npt.NDArray[np.bool_] | None,
    rate: float,
    seed: int,
    ramp: bool = False,
) -> Measures:
    """Accuracies of one training: plain on the kept images, or TERM over annotators on all.

    Args:
      config: the settings.
      labelled: the data.
      keep: the images of plain training; None: TERM.
      rate: the learning rate.
      seed: of the initial parameters and the batches.
      ramp: whether the tilt goes from 0 to its end at first.
    """
    x, y = labelled.x, labelled.y
    if keep is None:
        solver = _tilted(config, x.shape[1], rate, int(labelled.annotator.max()) + 1, ramp)
    else:
        x, y = x[keep], y[keep]
        solver = _plain(config, x.shape[1], rate)
    model = solver.model
    fit = eh.centralized.fit(solver, x, y, steps=config.steps, seed=seed)
    scores = {
        "test_accuracy": _accuracy(model, fit.params, *labelled.test),
        "valid_accuracy": _accuracy(model, fit.params, *labelled.valid),
    }
    shares = (
        np.bincount(labelled.annotator[keep])
        if keep is not None
        else jax.nn.softmax(config.t * fit.state.risks)
    )
    return scores | {"first_share": float(_first(config, np.asarray(shares, np.float64)))}


@cache
def _plain(config: Config, features: int, rate: float) -> eh.centralized.Solver:
    """Stochastic descent on the mean loss; one value for all seeds, so that it is compiled once."""
    return eh.centralized.stochastic(
        _model(config, features),
        t=0.0,
        rate=1.0,
        batch_size=config.batch_size,
        optimiser=_optimiser(config, rate),
    )


@cache
def _tilted(config: Config, features: int, rate: float, annotators: int, ramp: bool) -> eh.centralized.Solver:
    """TERM over annotators, who have their images side by side."""

    def tilt(step: Array) -> Array:
        return config.t * jnp.minimum(step / (config.ramp * config.steps), 1.0)

    return eh.centralized.grouped(
        _model(config, features),
        groups=np.repeat(np.arange(annotators), config.images // annotators),
        t=tilt if ramp else config.t,
        tau=0.0,
        rate=config.rate,
        batch_size=config.batch_size,
        optimiser=_optimiser(config, rate),
        start=float(np.log(CLASSES)),
    )


def _model(config: Config, features: int) -> eh.types.Model:
    return eh.models.mlp(features, hidden=(config.hidden,), classes=CLASSES)


def _optimiser(config: Config, rate: float) -> optax.GradientTransformation:
    drops = [int(share * config.steps) for share in config.drops]

    def learning_rate(count: Any) -> Array:
        return jnp.asarray(rate * 0.1 ** sum((count >= drop).astype(jnp.float32) for drop in drops))

    return optax.chain(
        optax.add_decayed_weights(config.weight_decay),
        optax.sgd(learning_rate, momentum=config.momentum),
    )


def _first(config: Config, shares: npt.NDArray[np.float64]) -> float:
    """The share of the batches, at the end, that the hammers label, or the best of the graded annotators."""
    best = config.hammers if len(shares) > len(config.shares) + 1 else 1
    return shares[:best].sum() / shares.sum()


def _accuracy(model: eh.types.Model, params: Any, x: Any, y: Any) -> float:
    return float(jnp.mean(jnp.argmax(model.apply(params, x), axis=1) == y))


def kept_rows(labelled: Labelled, method: str) -> npt.NDArray[np.bool_] | None:
    """The images that a method trains on; None: all of them, tilted over annotators."""
    annotators = int(labelled.annotator.max()) + 1
    return {
        "ERM": np.ones(len(labelled.y), bool),
        "TERM": None,
        RAMPED: None,
        "Genie ERM": ~labelled.is_random,
        "without the worst annotator": labelled.annotator < annotators - 1,
        "without the two worst": labelled.annotator < annotators - 2,
    }[method]


def table_of(
    config: Config, name: str, title: str, draw: Callable[[Config, int], Labelled], methods: tuple[str, ...]
) -> None:
    """Chooses each method's learning rate, runs it on all seeds, and saves the table."""

    def measured(method: str, rate: float, seed: int) -> Measures:
        labelled = draw(config, seed)
        return fitted(config, labelled, kept_rows(labelled, method), rate, seed, ramp=method == RAMPED)

    tuning: dict[str, dict[str, float]] = {}
    for method in methods:
        for rate in config.learning_rates:
            measures = kept(
                config,
                f"{name}_tuning",
                f"{method}, rate {rate:g}",
                partial(measured, method, rate, TUNING_SEED),
            )
            tuning.setdefault(method, {})[f"{rate:g}"] = measures["valid_accuracy"]
    chosen = {method: float(max(scores, key=lambda rate: scores[rate])) for method, scores in tuning.items()}
    run(
        config,
        name,
        title,
        {method: partial(measured, method, chosen[method]) for method in methods},
        settings=asdict(config),
        paper=PAPER if name == "annotators" else None,
        orderings=_orderings(methods),
        more={"tuning": tuning, "learning_rate": chosen},
    )


def _orderings(methods: tuple[str, ...]) -> Mapping[str, tuple[str, str, str, bool]]:
    tilted = ("TERM", RAMPED)
    pairs = [(mine, other) for mine in tilted for other in methods if other not in tilted]
    return {f"{mine}, above {other}": (mine, other, "test_accuracy", True) for mine, other in pairs}


def main(config: Config) -> None:
    """Both scenarios."""
    plain = ("ERM", "TERM", RAMPED, "Genie ERM")
    dropped = ("without the worst annotator", "without the two worst")
    table_of(config, "annotators", "hammers and spammers, MNIST", hammers_and_spammers, plain)
    table_of(config, "annotators_graded", "graded annotators, MNIST", graded, plain + dropped)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.annotators", description=__doc__))
