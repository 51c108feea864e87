"""Images with noisy labels: ERM, weights of single examples, GCE and TERM; and classes that are noisy and rare.

Tables 7.4, 7.9 and 7.11 of Li, Beirami, Sanjabi, Smith, *On Tilted Losses in Machine Learning*, JMLR 2023 (numbered as
in the first author's dissertation).  From the root of the repository, with ``cifar10_jpeg.npz`` in ``--data-dir``:

    python -m experiments.term.classification --data-dir DIR
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import lax
from PIL import Image

import evenhand as eh
from evenhand.centralized import Solver, Weighed, Weighting
from evenhand.models import losses
from evenhand.types import Array, Key, Model, PyTree
from experiments.fairness import Measures
from experiments.term.table import TermExperiment, kept, run

UNNORMALISED = "TERM, unnormalised"
IN_BATCH = "TERM_sc, classes in a batch"
METHODS = ("ERM", "RandomRect", "SelfPaced", "MentorNet-PD", "GCE", "TERM", UNNORMALISED, "Genie ERM")
RARE_METHODS = ("ERM", "GCE", "TERM_sc", IN_BATCH)
PAPER = {
    "ERM": {"20 %": 0.775, "40 %": 0.719, "80 %": 0.284},
    "RandomRect": {"20 %": 0.744, "40 %": 0.699, "80 %": 0.384},
    "SelfPaced": {"20 %": 0.784, "40 %": 0.733, "80 %": 0.272},
    "MentorNet-PD": {"20 %": 0.798, "40 %": 0.731, "80 %": 0.312},
    "GCE": {"20 %": 0.805, "40 %": 0.750, "80 %": 0.433},
    "TERM": {"20 %": 0.795, "40 %": 0.768, "80 %": 0.455},
    "Genie ERM": {"20 %": 0.828, "40 %": 0.820, "80 %": 0.792},
}
PAPER[UNNORMALISED] = PAPER["TERM"]
RARE_PAPER = {
    "ERM": {"noisy, rare": 0.529, "clean, common": 0.944},
    "GCE": {"noisy, rare": 0.482, "clean, common": 0.916},
    "TERM_sc": {"noisy, rare": 0.585, "clean, common": 0.913},
}
RARE_PAPER[IN_BATCH] = RARE_PAPER["TERM_sc"]
NOT_RUN = {
    "MentorNet-DD": "its weights come from a network trained beforehand on clean labels, which is not part of Evenhand",
    "MentorNet": "as MentorNet-DD",
    "MW-Net": "it learns a network of weights on clean validation images, and is not part of Evenhand",
    "HAR": "its regulariser is adapted to the data in several trainings, and is not part of Evenhand",
}
PAIRS = (("cat", "dog"), ("automobile", "truck"))
"""Section 7.7.3.2: look-alike classes whose labels are exchanged, and which are rare."""
RARE = "rare"
"""In place of a share of noisy labels: table 7.9."""
TUNING_SEED = 1000
"""A seed that no run of the tables has."""


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    rows: int = 10_000
    """Ours, for the sake of time: training images, drawn anew for each seed from the 50,000."""
    valid: int = 5000
    """Ours: validation images, from the other training images; their labels are as noisy."""
    noise: tuple[float, ...] = (0.2, 0.4, 0.8)
    """Table 7.4: the share of training images whose label is replaced by one of all ten, drawn uniformly."""
    exchanged: float = 0.4
    """Section 7.7.3.2, and so is the next: the share of the look-alike classes' images with the other's label."""
    thinned: float = 0.1
    """The share of the look-alike classes' images that is kept."""
    epochs: int = 10
    """Ours, for the sake of time: the paper has 120,000 steps, 307 epochs of all images."""
    batch: int = 128
    """The authors' code, and so are the next two."""
    decay: float = 0.65
    """After this share of the steps the rate is a tenth."""
    t: float = -2.0
    """The tilt of TERM at the last step; it grows linearly from 0."""
    share: float = 0.2
    """Section 7.7.3.2, and nothing is said for table 7.4: the share of the newest batch in a risk."""
    class_t: float = 3.0
    """Section 7.7.3.2: the tilt over classes at the last step, from 0."""
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    """Candidates for each method, with momentum 0.9: ours, but 0.1 in the authors' code."""
    rare_rates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
    """The same for table 7.9, where TERM_sc takes smaller ones."""
    qs: tuple[float, ...] = (0.4, 0.8, 1.0)
    """Candidates for q of GCE: the authors' code."""

    @property
    def steps(self) -> int:
        """All steps."""
        return self.epochs * self.rows // self.batch


class Rows(NamedTuple):
    """Patches of images, and labels; ``true`` has the right labels of the training images."""

    x: Array
    y: Array
    true: Array
    valid_x: Array
    valid_y: Array


class Setting(NamedTuple):
    """A candidate: the rate, and the q of GCE."""

    rate: float
    q: float = 0.0

    def label(self) -> str:
        """As it is printed."""
        return f"rate {self.rate:g}" + (f", q={self.q:g}" if self.q else "")


# --- data ------------------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """Half-size images, ``(n, 16, 16, 3)`` with means of 0 and deviations of 1, labels, and the names of classes."""

    train: np.ndarray
    train_y: np.ndarray
    test: np.ndarray
    test_y: np.ndarray
    classes: tuple[str, ...]


@cache
def images(folder: Path) -> Images:
    """All images, decoded, averaged over 2 x 2 pixels, and standardised each by itself."""
    path = folder / "cifar10_jpeg.npz"
    if not path.exists():
        raise SystemExit(f"There is no {path}: say with --data-dir where cifar10_jpeg.npz is.")
    with np.load(path) as file:
        jpeg, offsets, label, is_test, classes = (
            file[name] for name in ("jpeg", "offsets", "label", "is_test", "classes")
        )
    x = np.empty((len(label), 16, 16, 3), np.float32)
    for place, (begin, end) in enumerate(pairwise(offsets)):
        pixels = np.asarray(Image.open(io.BytesIO(jpeg[begin:end].tobytes())), np.float32)
        x[place] = pixels.reshape(16, 2, 16, 2, 3).mean((1, 3))
    x -= x.mean((1, 2, 3), keepdims=True)
    x /= np.maximum(x.std((1, 2, 3), keepdims=True), 1.0)
    y = label.astype(np.int32)
    return Images(x[~is_test], y[~is_test], x[is_test], y[is_test], tuple(map(str, classes)))


def patches(x: np.ndarray) -> Array:
    """Windows of 5 x 5 pixels that are 2 apart, ``(n, 64, 75)``, of images with a frame of zeros."""
    framed = np.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (5, 5), (1, 2))[:, ::2, ::2]
    return jnp.asarray(windows.reshape(-1, 64, 75))


@cache
def tests(folder: Path) -> tuple[Array, Array]:
    """Patches and labels of all test images."""
    content = images(folder)
    return patches(content.test), jnp.asarray(content.test_y)


def replaced(y: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Labels of which each is replaced with this probability, by one of all ten classes."""
    return np.where(rng.random(len(y)) < share, rng.integers(0, 10, len(y)), y).astype(np.int32)


def exchanged(
    y: np.ndarray, share: float, pairs: list[tuple[int, int]], rng: np.random.Generator
) -> np.ndarray:
    """Labels of which this share, in each class of a pair, is that of the look-alike class."""
    noisy = y.copy()
    for a, b in [*pairs, *((b, a) for a, b in pairs)]:
        places = np.flatnonzero(y == a)
        noisy[rng.permutation(places)[: round(share * len(places))]] = b
    return noisy


def pairs_of(content: Images) -> list[tuple[int, int]]:
    """The look-alike classes as labels."""
    return [(content.classes.index(a), content.classes.index(b)) for a, b in PAIRS]


@cache
def drawn(config: Config, noise: float | str, seed: int) -> Rows:
    """Images of this seed, with noisy labels for training and for validation."""
    rng, content = np.random.default_rng(seed), images(config.data_dir)
    order = rng.permutation(len(content.train_y))
    if isinstance(noise, str):
        parts = _thinned(config, content, order)
        noisy = partial(exchanged, share=config.exchanged, pairs=pairs_of(content), rng=rng)
    else:
        parts = order[: config.rows], order[config.rows : config.rows + config.valid]
        noisy = partial(replaced, share=noise, rng=rng)
    (x, y), (valid_x, valid_y) = ((content.train[part], content.train_y[part]) for part in parts)
    labels = jnp.asarray(noisy(y))
    return Rows(patches(x), labels, jnp.asarray(y), patches(valid_x), jnp.asarray(noisy(valid_y)))


def _thinned(config: Config, content: Images, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Training images with few of the look-alike classes, and validation images with as many of each class."""
    rare = {label for pair in pairs_of(content) for label in pair}
    common = config.rows / (10 - len(rare) * (1.0 - config.thinned))
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for label in range(10):
        places = order[content.train_y[order] == label]
        count = math.ceil(common * config.thinned) if label in rare else int(common)
        parts[0].append(places[:count])
        parts[1].append(places[count : count + config.valid // 10])
    return np.concatenate(parts[0]), np.concatenate(parts[1])


# --- network and solvers ---------------------------------------------------------------------------------------


class Small(nn.Module):
    """Convolutions of 5 x 5 on patches, and of 2 x 2, with steps of 2, and a hidden layer of 64."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Ten logits for each image."""
        x = nn.relu(nn.Dense(16, name="first")(x))
        x = x.reshape(-1, 4, 2, 4, 2, 16).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 64)
        x = nn.relu(nn.Dense(48, name="second")(x))
        x = nn.relu(nn.Dense(64, name="dense")(x.reshape(-1, 768)))
        return nn.Dense(10, name="output")(x)


def network(loss: Any = "cross_entropy") -> Model:
    """The small network, with a loss."""
    return eh.models.from_flax(Small(), sample=jnp.zeros((1, 64, 75)), loss=loss)


def unnormalised(t: float) -> Weighting:
    """Weights :math:`e^{t f}` with a tilt that grows from 0 to t, as in the authors' code: nothing divides them."""

    def weigh(model: Model, state: PyTree, batch: Weighed) -> tuple[Array, PyTree]:
        return jnp.exp(t * batch.progress * batch.losses), state

    return Weighting(lambda model, x, y: (), weigh, f"unnormalised(t={t:g})")


def tilted_classes(t: float, tau: float, rate: float) -> Weighting:
    r"""Hierarchical TERM over the classes of one batch, with an estimate of each class's risk.

    .. math::
        w_x = e^{t (\tilde R_g - \tilde J)} e^{\tau (f(x) - \tilde R_g)}, \qquad
        \tilde J = \frac1t \log \sum_g \frac{|g|}{N} e^{t \tilde R_g}

    Both tilts grow linearly from 0.  Estimates are those of ``eh.centralized.grouped``.
    """

    def init(model: Model, x: Array, y: Array) -> tuple[Array, Array, Array]:
        return jnp.zeros(10), jnp.zeros(10, bool), jnp.bincount(y, length=10) / y.shape[0]

    def weigh(model: Model, state: PyTree, batch: Weighed) -> tuple[Array, PyTree]:
        risks, seen, shares = state
        outer, inner = t * batch.progress, tau * batch.progress

        def newer(g: Array, risk: Array, is_seen: Array) -> tuple[Array, Array]:
            inside = (batch.y == g).astype(batch.losses.dtype)
            means = inside / jnp.maximum(inside.sum(), 1.0)
            newest = _tilted_mean(batch.losses, means, inner)
            mixed = _tilted_mean(jnp.stack([risk, newest]), jnp.array([1.0 - rate, rate]), inner)
            after = jnp.where(is_seen, mixed, newest)
            return jnp.where(inside.any(), after, risk), is_seen | inside.any()

        risks, seen = jax.vmap(newer)(jnp.arange(10), risks, seen)
        whole = _tilted_mean(risks, shares, outer)
        of_class = risks[batch.y]
        weights = jnp.exp(outer * (of_class - whole) + inner * (batch.losses - of_class))
        return weights, (risks, seen, shares)

    return Weighting(init, weigh, f"tilted_classes(t={t:g}, tau={tau:g}, rate={rate:g})")


def _tilted_mean(values: Array, shares: Array, t: Array) -> Array:
    """The tilted mean of values with weights, which is their mean near t = 0."""
    safe = jnp.where(jnp.abs(t) < 1e-3, 1.0, t)
    # A share of 0 times a large exponential is no number, so both go together.
    tilted = jax.nn.logsumexp(safe * values, b=shares) / safe
    return jnp.where(jnp.abs(t) < 1e-3, jnp.sum(shares * values), tilted)


def solver_of(
    config: Config, method: str, q: float, noise: float | str, rate: Array | float, rows: Rows
) -> Solver:
    """A method as a solver; the rate may be traced."""
    steps, batch = config.steps, config.batch
    last = config.decay * steps
    optimiser = optax.sgd(lambda step: rate * jnp.where(jnp.asarray(step) < last, 1.0, 0.1), momentum=0.9)
    if method == "TERM_sc":
        return eh.centralized.grouped(
            network(),
            groups=np.asarray(rows.y),
            t=lambda step: config.class_t * step / steps,
            tau=lambda step: config.t * step / steps,
            rate=config.share,
            batch_size=batch,
            optimiser=optimiser,
        )
    if method in ("ERM", "Genie ERM", "GCE", "TERM"):
        model = network(losses.generalized_cross_entropy(q) if method == "GCE" else "cross_entropy")
        t = (lambda step: config.t * step / steps) if method == "TERM" else 0.0
        return eh.centralized.stochastic(model, t=t, rate=config.share, batch_size=batch, optimiser=optimiser)
    weighting = {
        "RandomRect": eh.centralized.random_weights,
        "SelfPaced": eh.centralized.self_paced,
        "MentorNet-PD": partial(eh.centralized.mentornet_pd, 50.0 if noise == 0.8 else 75.0),
        UNNORMALISED: partial(unnormalised, config.t),
        IN_BATCH: partial(tilted_classes, config.class_t, config.t, config.share),
    }[method]()
    return eh.centralized.weighted(network(), weighting, batch_size=batch, optimiser=optimiser, steps=steps)


def trained(config: Config, method: str, setting: Setting, noise: float | str, seed: int) -> Measures:
    """Accuracies of the last model: on validation images against their noisy labels, and on test images."""
    rows = drawn(config, noise, seed)
    if method == "Genie ERM":
        right = np.flatnonzero(np.asarray(rows.y == rows.true))
        rows = rows._replace(x=rows.x[right], y=rows.y[right], true=rows.true[right])
    solver = solver_of(config, method, setting.q, noise, setting.rate, rows)
    start, key = jax.random.split(jax.random.key(seed))
    begin = solver.model.init(start)
    if method == "TERM_sc":  # its groups are part of the program
        params = _looped(config, solver, begin, rows.x, rows.y, key)
    else:
        # Neither matters to the programs of the other methods.
        level = noise if method == "MentorNet-PD" else 0.0
        params = _programmed(_for_program(config), method, setting.q, level, setting.rate, begin, rows, key)
    test_x, test_y = tests(config.data_dir)
    valid, test = (
        by_class(_predicted(params, x), y) for x, y in ((rows.valid_x, rows.valid_y), (test_x, test_y))
    )
    if isinstance(noise, str):
        rare = sorted(label for pair in pairs_of(images(config.data_dir)) for label in pair)
        common = sorted(set(range(10)) - set(rare))
        return {"valid": valid.mean(), "noisy, rare": test[rare].mean(), "clean, common": test[common].mean()}
    weights = np.bincount(np.asarray(rows.valid_y), minlength=10) / len(rows.valid_y)
    return {"valid": float(weights @ valid), "test": float(test.mean())}


def by_class(predicted: Array, y: Array) -> np.ndarray:
    """The share of right answers in each class."""
    right, labels = np.asarray(predicted == y, np.float64), np.asarray(y)
    return np.bincount(labels, right, 10) / np.maximum(np.bincount(labels, minlength=10), 1)


def _looped(config: Config, solver: Solver, params: PyTree, x: Array, y: Array, key: Key) -> PyTree:
    """The parameters after all steps."""

    @jax.jit
    def all_steps(params: PyTree, x: Array, y: Array) -> PyTree:
        def step(i: Array, state: PyTree) -> PyTree:
            return solver.step(state, x, y, i, jax.random.fold_in(key, i))

        return solver.params(lax.fori_loop(0, config.steps, step, solver.init(params, x, y)))

    return all_steps(params, x, y)


@partial(jax.jit, static_argnames=("config", "method", "q", "noise"))
def _programmed(
    config: Config,
    method: str,
    q: float,
    noise: float | str,
    rate: Array | float,
    params: PyTree,
    rows: Rows,
    key: Key,
) -> PyTree:
    """The same with one program for all rates and seeds."""
    return _looped(config, solver_of(config, method, q, noise, rate, rows), params, rows.x, rows.y, key)


@jax.jit
def _predicted(params: PyTree, x: Array) -> Array:
    """The most probable class of each image."""
    model = network()
    return lax.map(lambda one: jnp.argmax(model.apply(params, one[None])[0], -1), x, batch_size=500)


def _for_program(config: Config) -> Config:
    """The same without what no program depends on."""
    return Config(**asdict(config) | {"folder": None, "out": Path(), "data_dir": Path(), "seeds": 0})


# --- the tables ------------------------------------------------------------------------------------------------


def column(noise: float | str) -> str:
    """A share of noisy labels as a heading."""
    return noise if isinstance(noise, str) else f"{100 * noise:g} %"


def tried(config: Config, method: str, setting: Setting, noise: float | str, seed: int) -> Measures:
    """A run, which is kept."""
    name = f"{method}, {column(noise)}, {setting.label()}, seed {seed}"
    return kept(config, "classification", name, lambda: trained(config, method, setting, noise, seed))


def chosen(config: Config, method: str, noise: float | str) -> tuple[Setting, dict[str, float]]:
    """The candidate of highest accuracy on validation images with noisy labels, and all these accuracies."""
    qs = config.qs if method == "GCE" else (0.0,)
    rates = config.rare_rates if noise == RARE else config.rates
    tries = [Setting(rate, q) for q in qs for rate in rates]
    accuracies = [tried(config, method, setting, noise, TUNING_SEED)["valid"] for setting in tries]
    labels = [setting.label() for setting in tries]
    return tries[int(np.argmax(accuracies))], dict(zip(labels, accuracies, strict=True))


def tuned(
    config: Config, method: str, levels: tuple[float | str, ...]
) -> tuple[list[Setting], dict[str, Any]]:
    """The setting at each level of noise, and what is saved of the choice."""
    choices = [chosen(config, method, noise) for noise in levels]
    saved = {
        column(noise): {"chosen": setting.label(), "accuracies": accuracies}
        for noise, (setting, accuracies) in zip(levels, choices, strict=True)
    }
    return [setting for setting, _ in choices], saved


def noisy(config: Config) -> Path:
    """Tables 7.4 and 7.11."""
    choices = {method: tuned(config, method, config.noise) for method in METHODS}

    def row(method: str, settings: list[Setting]) -> Callable[[int], Measures]:
        pairs = list(zip(config.noise, settings, strict=True))
        return lambda seed: {
            column(noise): tried(config, method, s, noise, seed)["test"] for noise, s in pairs
        }

    rivals = [method for method in METHODS if not method.startswith("TERM")]
    return run(
        config,
        "classification",
        "Tables 7.4 and 7.11: test accuracy by share of noisy labels",
        {method: row(method, settings) for method, (settings, _) in choices.items()},
        settings=asdict(config),
        paper=PAPER,
        orderings={
            f"{term} is above {rival} at {column(noise)}": (term, rival, column(noise), True)
            for term in ("TERM", UNNORMALISED)
            for rival in rivals
            for noise in config.noise
        },
        more={"tuning": {method: saved for method, (_, saved) in choices.items()}, "not run": NOT_RUN},
    )


def rare(config: Config) -> Path:
    """Table 7.9."""
    choices = {method: tuned(config, method, (RARE,)) for method in RARE_METHODS}

    def row(method: str, setting: Setting) -> Callable[[int], Measures]:
        def measures(seed: int) -> Measures:
            numbers = tried(config, method, setting, RARE, seed)
            return {name: numbers[name] for name in ("noisy, rare", "clean, common")}

        return measures

    return run(
        config,
        "classification_rare",
        "Table 7.9: test accuracy on look-alike classes, which are noisy and rare, and on the others",
        {method: row(method, settings[0]) for method, (settings, _) in choices.items()},
        settings=asdict(config),
        paper=RARE_PAPER,
        orderings={
            f"{term} is above {rival} on {name}": (term, rival, name, True)
            for term in ("TERM_sc", IN_BATCH)
            for rival in ("ERM", "GCE")
            for name in ("noisy, rare", "clean, common")
        },
        more={"tuning": {method: saved for method, (_, saved) in choices.items()}, "not run": NOT_RUN},
    )


def main(config: Config) -> None:
    """Settings are chosen on validation images; then come the seeds of each method."""
    noisy(config)
    rare(config)


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.classification", description=__doc__))
