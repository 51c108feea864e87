"""The digit 4 rare beside the digit 9: ERM, weights of single examples, focal loss and TERM.

Figure 7.14 of Li, Beirami, Sanjabi, Smith, *On Tilted Losses in Machine Learning*, JMLR 2023 (numbered as in the first
author's dissertation).  From the root of the repository, with ``mnist.npz`` in ``--data-dir``:

    python -m experiments.term.imbalance --data-dir DIR
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import lax

import evenhand as eh
from evenhand.centralized import Solver
from evenhand.models import losses
from evenhand.types import Array, Key, Model, Params, PyTree
from experiments.fairness import Measures
from experiments.term.table import TermExperiment, kept, run

PAPER = {
    "ERM": {"98 %": 0.9392, "99 %": 0.9010, "99.5 %": 0.8130},
    "HardMine": {"98 %": 0.9692, "99 %": 0.9480, "99.5 %": 0.9240},
    "FocalLoss": {"98 %": 0.9616, "99 %": 0.9370, "99.5 %": 0.9010},
    "LearnReweight": {"98 %": 0.9760, "99 %": 0.9760, "99.5 %": 0.9700},
    "TERM": {"98 %": 0.9756, "99 %": 0.9760, "99.5 %": 0.9650},
}
EXACT = "TERM, exact means"
PAPER[EXACT] = PAPER["TERM"]
METHODS = (
    "ERM",
    "random",
    "InverseRatio",
    "HardMine",
    "FocalLoss",
    "LearnReweight",
    "TERM",
    EXACT,
)
TUNING_SEED = 1000
"""A seed that no run of the table has."""


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    rows: int = 5000
    """The authors' code, and so are the next three: training images."""
    first: int = 55_000
    """Training images are among so many; validation images among the others."""
    held: int = 250
    """Images of each digit for validation, and as many others for the test."""
    batch: int = 100
    rare: tuple[int, ...] = (100, 50, 25)
    """Figure 7.14: fours among the training images."""
    mined_batch: int = 500
    """The authors' code: the batch of HardMine."""
    clean: int = 10
    """The authors' code: images that LearnReweight takes out of its training images, half of each digit."""
    tilts: tuple[float, ...] = (50.0, 100.0)
    """Candidates for t: 50 in the authors' figure, 100 in the text."""
    share: float = 0.2
    """Section 7.7.1.3, on annotators, as nothing is said here: the share of the newest batch in a class's risk."""
    start: float = 0.69
    """Ours: a class's risk before it is first drawn, log 2, the loss of a model that knows nothing."""
    gammas: tuple[float, ...] = (2.0, 1.0)
    """Candidates for focal loss: the authors' code has 2; 1 is in their grid."""
    alpha: float = 0.05
    """The authors' code: the factor of the common class in focal loss."""
    adam_rates: tuple[float, ...] = (0.002, 0.0005)
    """Candidates: 0.002 for TERM in the authors' code; the other is ours."""
    momentum_rates: tuple[float, ...] = (0.01, 0.1)
    """Candidates, with momentum 0.9: 0.1 for focal loss in the authors' code; it has 0.001 and 8,000 steps for ERM."""
    steps: int = 2000
    """The authors' code, for TERM; it has 4,000 to 8,000 for the others."""
    mined_steps: int = 1000
    """Half the steps for HardMine, as in the authors' code."""
    exact_steps: int = 500
    """Ours, for the sake of time: TERM with exact means, which takes all losses in each step, at TERM's setting."""
    every: int = 100
    """Ours: steps between two looks at the validation images; each run keeps its best model on these."""
    papers_network: bool = False
    """False, ours, for the sake of time: a smaller network on images of half the size."""


class Rows(NamedTuple):
    """Images and labels, 0 for the rare digit 4; in each part the rare ones come first.

    ``held`` has validation images, then test images.
    """

    x: Array
    y: Array
    held_x: Array
    held_y: Array
    clean_x: Array
    clean_y: Array


class Setting(NamedTuple):
    """A candidate: the optimiser, which is Adam or descent with momentum 0.9, TERM's t and the gamma of focal loss."""

    is_adam: bool | Array
    rate: float | Array
    t: float | Array = 0.0
    gamma: float = 0.0

    def label(self) -> str:
        """As it is printed."""
        text = f"{'Adam' if self.is_adam else 'momentum'} {self.rate:g}"
        return (
            text + (f", t={self.t:g}" if self.t else "") + (f", gamma={self.gamma:g}" if self.gamma else "")
        )


# --- data ------------------------------------------------------------------------------------------------------


@cache
def digits(folder: Path, first: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Fours and nines for training, for validation and for the test."""
    path = folder / "mnist.npz"
    if not path.exists():
        raise SystemExit(f"There is no {path}: say with --data-dir where mnist.npz is.")
    with np.load(path) as file:
        x, y, test_x, test_y = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    parts = {"train": (x[:first], y[:first]), "valid": (x[first:], y[first:]), "test": (test_x, test_y)}
    return {name: (images[labels == 4], images[labels == 9]) for name, (images, labels) in parts.items()}


def drawn(config: Config, rare: int, seed: int, *, clean: bool) -> Rows:
    """Images of this seed; with ``clean``, some training images are set apart."""
    rng = np.random.default_rng(seed)
    parts = digits(config.data_dir, config.first)

    def some(part: str, counts: tuple[int, int]) -> list[np.ndarray]:
        both = zip(parts[part], counts, strict=True)
        return [images[rng.permutation(len(images))[:count]] for images, count in both]

    fours, nines = some("train", (rare, config.rows - rare))
    held = [*some("valid", (config.held, config.held)), *some("test", (config.held, config.held))]
    apart = config.clean // 2 if clean else 0
    return Rows(
        *_labelled(config, fours[apart:], nines[apart:]),
        *_labelled(config, *held),
        *_labelled(config, fours[:apart], nines[:apart]),
    )


def _labelled(config: Config, *parts: np.ndarray) -> tuple[Array, Array]:
    """Pixels in [0, 1], and labels for parts that are rare and common by turns."""
    x = np.concatenate(parts).astype(np.float32) / 255.0
    if not config.papers_network:
        x = patches(x.reshape(-1, 14, 2, 14, 2).mean((2, 4)))
    y = np.concatenate([np.full(len(part), turn % 2, np.int32) for turn, part in enumerate(parts)])
    return jnp.asarray(x), jnp.asarray(y)


def patches(x: np.ndarray) -> np.ndarray:
    """Windows of 5 x 5 pixels that are 2 apart, ``(n, 49, 25)``, of images of 14 x 14 with a frame of zeros."""
    framed = np.pad(x, ((0, 0), (1, 2), (1, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (5, 5), (1, 2))[:, ::2, ::2]
    return windows.reshape(-1, 49, 25)


# --- networks and solvers --------------------------------------------------------------------------------------


class Small(nn.Module):
    """A convolution of 5 x 5 with 8 channels and steps of 2, on patches, and a hidden layer of 50."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Two logits for each image."""
        x = nn.relu(nn.Dense(8, name="conv")(x))
        x = nn.relu(nn.Dense(50, name="dense")(x.reshape(x.shape[0], 49 * 8)))
        return nn.Dense(2, name="output")(x)


def network(config: Config, loss: Any = "cross_entropy") -> Model:
    """The paper's network or the small one, with a loss."""
    if config.papers_network:
        return eh.models.with_loss(eh.models.lenet(2), loss)
    return eh.models.from_flax(Small(), sample=jnp.zeros((1, 49, 25)), loss=loss)


def optimiser_of(setting: Setting) -> optax.GradientTransformation:
    """Both optimisers side by side, so that one program serves all settings."""
    adam, momentum = optax.adam(setting.rate), optax.sgd(setting.rate, momentum=0.9)

    def init(params: Params) -> tuple[PyTree, PyTree]:
        return adam.init(params), momentum.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        first, first_state = adam.update(updates, state[0], params)
        second, second_state = momentum.update(updates, state[1], params)
        either = jax.tree.map(lambda a, b: jnp.where(setting.is_adam, a, b), first, second)
        return either, (first_state, second_state)

    return optax.GradientTransformation(init, update)


def solver_of(config: Config, method: str, setting: Setting, rows: Rows, rare: int) -> Solver:
    """A method as a solver; of the setting, all but gamma may be traced."""
    optimiser = optimiser_of(setting)
    if method.startswith("TERM"):
        solver = eh.centralized.grouped(
            network(config),
            groups=np.repeat([0, 1], [rare, config.rows - rare]),
            t=lambda step: jnp.asarray(setting.t),
            tau=0.0,
            rate=config.share,
            batch_size=config.batch,
            optimiser=optimiser,
            start=config.start,
        )
        return solver if method == "TERM" else exact(solver, rare)
    if method in ("ERM", "FocalLoss"):
        loss = losses.focal(setting.gamma, config.alpha) if method == "FocalLoss" else "cross_entropy"
        model = network(config, loss)
        return eh.centralized.stochastic(model, t=0.0, rate=1.0, batch_size=config.batch, optimiser=optimiser)
    weighting = {
        "random": eh.centralized.random_weights,
        "InverseRatio": eh.centralized.inverse_ratio,
        "HardMine": partial(eh.centralized.hard_mine, rare=0),
        "LearnReweight": partial(eh.centralized.learn_to_reweight, rows.clean_x, rows.clean_y),
    }[method]()
    size = config.mined_batch if method == "HardMine" else config.batch
    return eh.centralized.weighted(
        network(config), weighting, batch_size=size, optimiser=optimiser, steps=config.steps
    )


def exact(solver: Solver, rare: int) -> Solver:
    """Stochastic hierarchical TERM that draws a class by the mean losses of all its images, as the authors' code."""

    def step(state: PyTree, x: Array, y: Array, number: Array, key: Key) -> PyTree:
        by_image = solver.model.losses(solver.model.apply(state.params, x), y)
        means = jnp.stack([jnp.mean(by_image[:rare]), jnp.mean(by_image[rare:])])
        return solver.step(state._replace(risks=means), x, y, number, key)

    return solver._replace(step=step)


@partial(jax.jit, static_argnames=("config", "method", "gamma", "rare"))
def _advanced(
    config: Config,
    method: str,
    gamma: float,
    rare: int,
    numbers: tuple[Array, Array, Array],
    state: PyTree,
    rows: Rows,
    first: Array,
    key: Key,
) -> tuple[PyTree, Array]:
    """The state after ``config.every`` steps, and the accuracy by split and class."""
    solver = solver_of(config, method, Setting(*numbers, gamma), rows, rare)

    def step(i: Array, inside: PyTree) -> PyTree:
        return solver.step(inside, rows.x, rows.y, first + i, jax.random.fold_in(key, first + i))

    state = lax.fori_loop(0, config.every, step, state)
    return state, _accuracies(network(config), solver.params(state), rows)


def _accuracies(model: Model, params: Params, rows: Rows) -> Array:
    """``(2 splits, 2 classes)``."""
    is_right = jnp.argmax(model.apply(params, rows.held_x), axis=-1) == rows.held_y
    return jnp.mean(is_right.reshape(2, 2, -1), axis=-1)


def trained(config: Config, method: str, setting: Setting, rare: int, seed: int, steps: int) -> Measures:
    """Accuracies every ``config.every`` steps; "valid" and "test" are over as many images of each digit."""
    rows = drawn(config, rare, seed, clean=method == "LearnReweight")
    solver = solver_of(config, method, setting, rows, rare)
    start, key = jax.random.split(jax.random.key(seed))
    state = solver.init(solver.model.init(start), rows.x, rows.y)
    numbers = (jnp.bool_(setting.is_adam), jnp.float32(setting.rate), jnp.float32(setting.t))
    # Only TERM's program depends on how many images are rare.
    groups = rare if method.startswith("TERM") else 0
    shared, measures = _for_program(config), {}
    for first in range(0, steps, config.every):
        state, accuracies = _advanced(
            shared, method, setting.gamma, groups, numbers, state, rows, jnp.int32(first), key
        )
        (_, _), (rare_test, common_test) = shares = np.asarray(accuracies, np.float64).round(6)
        done = first + config.every
        measures |= {f"valid {done}": shares[0].mean(), f"test {done}": shares[1].mean()}
        measures |= {f"rare {done}": rare_test, f"common {done}": common_test}
    return measures


def _for_program(config: Config) -> Config:
    """The same without what no program depends on."""
    return Config(**asdict(config) | {"folder": None, "seeds": 0, "rare": ()})


# --- the table -------------------------------------------------------------------------------------------------


def candidates(config: Config, method: str) -> list[Setting]:
    """The settings that are tried: the same optimisers for each method, with each t of TERM and each gamma."""
    optimisers = [Setting(True, rate) for rate in config.adam_rates]
    optimisers += [Setting(False, rate) for rate in config.momentum_rates]
    if method.startswith("TERM"):
        return [setting._replace(t=t) for t in config.tilts for setting in optimisers]
    if method == "FocalLoss":
        return [setting._replace(gamma=gamma) for gamma in config.gammas for setting in optimisers]
    return optimisers


def limit_of(config: Config, method: str) -> int:
    """The most steps of a method."""
    fewer = {"HardMine": config.mined_steps, EXACT: config.exact_steps}
    return fewer.get(method, config.steps)


def best(config: Config, method: str, setting: Setting, rare: int, seed: int) -> Measures:
    """The accuracies of a run after the steps of highest accuracy on validation images; of equals, the fewest."""
    path = kept(
        config,
        "imbalance",
        f"{method}, {rare}, {setting.label()}, seed {seed}",
        lambda: trained(config, method, setting, rare, seed, limit_of(config, method)),
    )
    counts = range(config.every, limit_of(config, method) + 1, config.every)
    steps = max(counts, key=lambda count: path[f"valid {count}"])
    return {name: path[f"{name} {steps}"] for name in ("valid", "test", "rare", "common")} | {"steps": steps}


def chosen(config: Config, method: str) -> tuple[Setting, dict[str, float]]:
    """The candidate of highest mean accuracy on validation images over the ratios, and these means."""
    tries = candidates(config, method)
    means = [
        float(np.mean([best(config, method, setting, rare, TUNING_SEED)["valid"] for rare in config.rare]))
        for setting in tries
    ]
    labels = [setting.label() for setting in tries]
    return tries[int(np.argmax(means))], dict(zip(labels, means, strict=True))


def column(config: Config, rare: int) -> str:
    """The share of the common class, as in figure 7.14."""
    return f"{100 * (config.rows - rare) / config.rows:g} %"


def row(config: Config, method: str, setting: Setting) -> Callable[[int], Measures]:
    """``seed -> test accuracies`` of a method with its setting, then those on the rare digit."""

    def measures(seed: int) -> Measures:
        runs = {column(config, rare): best(config, method, setting, rare, seed) for rare in config.rare}
        of_rare = {f"rare, {name}": numbers["rare"] for name, numbers in runs.items()}
        steps = {f"steps, {name}": numbers["steps"] for name, numbers in runs.items()}
        return {name: numbers["test"] for name, numbers in runs.items()} | of_rare | steps

    return measures


def variants(config: Config, setting: Setting) -> dict[str, Measures]:
    """TERM with other estimates at the start, or of other batches: accuracy on the validation images of tuning."""
    changes: dict[str, dict[str, float]] = {
        "as in the table": {},
        "estimates from 0": {"start": 0.0},
        "estimates from the newest batch": {"share": 1.0},
    }
    measures: dict[str, Measures] = {}
    for name, change in changes.items():
        changed, at = replace(config, **change), f"seed {TUNING_SEED}"
        paths = {
            rare: kept(
                config,
                "imbalance",
                f"TERM, {name}, {rare}, {setting.label()}, {at}",
                lambda rare=rare, changed=changed: trained(
                    changed, "TERM", setting, rare, TUNING_SEED, config.steps
                ),
            )
            for rare in config.rare
        }
        counts = range(config.every, config.steps + 1, config.every)
        measures[name] = {}
        for rare, path in paths.items():
            measures[name][column(config, rare)] = max(path[f"valid {count}"] for count in counts)
            measures[name][f"{column(config, rare)}, at the end"] = path[f"valid {config.steps}"]
    return measures


def main(config: Config) -> None:
    """A setting is chosen for each method on validation images; then five seeds of each method."""
    choices = {method: chosen(config, method) for method in METHODS if method != EXACT}
    choices[EXACT] = choices["TERM"][0], {}
    rivals = METHODS[: METHODS.index("TERM")]
    run(
        config,
        "imbalance",
        "Figure 7.14: test accuracy by share of the common digit",
        {method: row(config, method, setting) for method, (setting, _) in choices.items()},
        settings=asdict(config),
        paper=PAPER,
        orderings={
            f"TERM is above {rival} at {name}": ("TERM", rival, name, True)
            for rival in rivals
            for name in (column(config, rare) for rare in config.rare)
        },
        more={
            "tuning": {
                method: {"chosen": setting.label(), "accuracies": means}
                for method, (setting, means) in choices.items()
            },
            "variants": variants(config, choices["TERM"][0]),
        },
    )


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.imbalance", description=__doc__))
