"""Meta-learning on sine waves, few of which have large amplitudes: MAML, TR-MAML and TERM.

Table 7.6 of Li, Beirami, Sanjabi, Smith, *On Tilted Losses in Machine Learning*, JMLR 2023 (numbered as in the first
author's dissertation).  From the root of the repository:

    python -m experiments.term.meta
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import evenhand as eh
from evenhand.types import Array, Key, Model, Params
from experiments.fairness import Measures
from experiments.term.table import TermExperiment, kept, run

PAPER = {
    "MAML": {"mean": 1.23, "std": 1.63, "max": 19.1, "worst10": 5.16},
    "TR-MAML": {"mean": 1.25, "std": 1.51, "max": 14.31, "worst10": 4.85},
    "TERM": {"mean": 1.14, "std": 1.33, "max": 13.59, "worst10": 4.29},
}


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    tasks: int = 5000
    """Section 7.7.2.3: tasks for meta-training, and so are the next five."""
    hard: int = 250
    hard_amplitudes: tuple[float, float] = (4.95, 5.0)
    easy_amplitudes: tuple[float, float] = (0.01, 1.0)
    test_tasks: int = 5000
    test_amplitudes: tuple[float, float] = (0.1, 5.0)
    t: float = 2.0
    """Section 7.7.2.3, and so is the next."""
    inner_step: float = 0.01
    shots: int = 10
    """Code of TR-MAML, which has 5 and 10: examples for the inner step, and as many for the loss after it."""
    queries: int = 1000
    """Code of TR-MAML: examples for the loss of a test task after its step."""
    cohort: int = 25
    """Code of TR-MAML: tasks in a meta-step."""
    width: int = 40
    """Code of TR-MAML: units in each of two hidden layers."""
    rounds: int = 10_000
    """Ours, for the sake of time: meta-steps; 70,000 in the code of TR-MAML."""
    meta_steps: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01)
    """Ours, around the 0.001 of the code of TR-MAML: candidates for the step of Adam."""
    mixture_steps: tuple[float, ...] = (1e-6, 1e-5, 1e-4)
    """Ours, around the 1e-5 and 2e-5 of the code of TR-MAML: candidates for its step on the weights of tasks."""
    tuning_seed: int = 1000
    """Ours: steps are chosen on tasks that no run of the table has."""
    validation_tasks: int = 1000
    """Ours: tasks with the amplitudes of test tasks, by whose mean loss the steps are chosen, for each method."""


class Tasks(NamedTuple):
    """Sine waves ``(n,)`` by amplitude and phase."""

    amplitude: np.ndarray
    phase: np.ndarray


def train_tasks(config: Config, rng: np.random.Generator) -> Tasks:
    """Few tasks of large amplitude, many of small amplitude."""
    amplitude = np.concatenate(
        [
            rng.uniform(*config.hard_amplitudes, config.hard),
            rng.uniform(*config.easy_amplitudes, config.tasks - config.hard),
        ]
    )
    return Tasks(amplitude, rng.uniform(0.0, np.pi, config.tasks))


def further_tasks(config: Config, rng: np.random.Generator, count: int) -> Tasks:
    """Tasks of all amplitudes alike."""
    return Tasks(rng.uniform(*config.test_amplitudes, count), rng.uniform(0.0, np.pi, count))


def points(tasks: Tasks, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``count`` points of each wave, ``(n, count, 1)`` and ``(n, count)``."""
    x = rng.uniform(-5.0, 5.0, (tasks.phase.size, count))
    y = tasks.amplitude[:, None] * np.sin(x - tasks.phase[:, None])
    return x[:, :, None].astype(np.float32), y.astype(np.float32)


def network(width: int) -> Model:
    """Two hidden layers of rectified units; weights from a normal distribution truncated at twice 0.01."""
    sizes = [(1, width), (width, width), (width, 1)]

    def init(key: Key) -> Params:
        keys = jax.random.split(key, len(sizes))
        return [
            {"kernel": 0.01 * jax.random.truncated_normal(each, -2.0, 2.0, size), "bias": jnp.zeros(size[1])}
            for each, size in zip(keys, sizes, strict=True)
        ]

    def apply(params: Params, x: Array) -> Array:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["kernel"] + layer["bias"][None, :])
        return x @ params[-1]["kernel"][:, 0] + params[-1]["bias"]

    def losses(outputs: Array, y: Array) -> Array:
        return jnp.square(outputs - y)

    return eh.models.from_functions(init, apply, losses)


def loss_after_a_step(model: Model, inner_step: float, params: Params, rows: tuple[Array, ...]) -> Array:
    """A task's mean squared error on the last two of ``rows``, ``x`` and ``y``, after a step on the first two."""
    x, y, query_x, query_y = rows

    def loss(params: Params, x: Array, y: Array) -> Array:
        return jnp.mean(model.losses(model.apply(params, x), y))

    gradient = jax.grad(loss)(params, x, y)
    adapted = jax.tree.map(lambda leaf, slope: leaf - inner_step * slope, params, gradient)
    return loss(adapted, query_x, query_y)


class Learner(NamedTuple):
    """The initial parameters that are learned, the state of Adam, and the weights of tasks in TR-MAML."""

    params: Params
    adam: optax.OptState
    mixture: Array


class Rule(NamedTuple):
    """What is minimised over tasks: their tilted mean or, with a step on the mixture, the worst mixture (TR-MAML)."""

    t: float = 0.0
    mixture_step: float | None = None


def begin(config: Config, meta_step: float, key: Key) -> Learner:
    """The state before the first step."""
    params = network(config.width).init(key)
    return Learner(params, optax.adam(meta_step).init(params), jnp.full(config.tasks, 1.0 / config.tasks))


def stepper(
    config: Config, rule: Rule, meta_step: float
) -> Callable[[Learner, Array, tuple[Array, ...]], Learner]:
    """``(learner, ids, rows) -> learner``: a step of second-order :func:`evenhand.algorithms.qmaml` on these tasks.

    The same mathematics without the bookkeeping of rounds, which takes several times longer than so small a network; a
    test compares the two.
    """
    model, optimiser = network(config.width), optax.adam(meta_step)

    def step(learner: Learner, ids: Array, rows: tuple[Array, ...]) -> Learner:
        def total(params: Params) -> tuple[Array, Array]:
            losses = jax.vmap(lambda rows: loss_after_a_step(model, config.inner_step, params, rows))(rows)
            if rule.mixture_step is None:
                weights = eh.risks.tilted(rule.t).weights(jax.lax.stop_gradient(losses))
            else:
                weights = learner.mixture[ids] * config.tasks / ids.size
            return weights @ losses, losses

        gradient, losses = jax.grad(total, has_aux=True)(learner.params)
        updates, adam = optimiser.update(gradient, learner.adam, learner.params)
        mixture = learner.mixture
        if rule.mixture_step is not None:
            mixture = eh.risks.project_simplex(mixture.at[ids].add(rule.mixture_step * losses))
        return Learner(jax.tree.map(jnp.add, learner.params, updates), adam, mixture)

    return step


def learned(config: Config, rule: Rule, meta_step: float, tasks: Tasks, seed: int) -> Params:
    """Meta-training in one compiled loop; each step draws tasks, and new points of each."""
    amplitude, phase = (jnp.asarray(part, jnp.float32) for part in tasks)
    step = stepper(config, rule, meta_step)
    root = jax.random.key(seed)

    def body(number: Array, learner: Learner) -> Learner:
        draw, place = jax.random.split(jax.random.fold_in(root, number))
        ids = jax.random.randint(draw, (config.cohort,), 0, config.tasks)
        x = jax.random.uniform(place, (config.cohort, 2 * config.shots), minval=-5.0, maxval=5.0)
        y = amplitude[ids, None] * jnp.sin(x - phase[ids, None])
        support, query = slice(0, config.shots), slice(config.shots, None)
        return step(learner, ids, (x[:, support, None], y[:, support], x[:, query, None], y[:, query]))

    learner = begin(config, meta_step, jax.random.fold_in(root, config.rounds))
    return jax.jit(lambda learner: jax.lax.fori_loop(0, config.rounds, body, learner))(learner).params


def served(config: Config, params: Params, tasks: Tasks, rng: np.random.Generator) -> np.ndarray:
    """The mean squared error of each task, on other points than those of its one step of adaptation."""
    model = network(config.width)
    rows = (*points(tasks, config.shots, rng), *points(tasks, config.queries, rng))

    def task(rows: tuple[Array, ...]) -> Array:
        return loss_after_a_step(model, config.inner_step, params, rows)

    return np.asarray(jax.jit(lambda rows: jax.lax.map(task, rows, batch_size=50))(rows), np.float64)


def measures(losses: np.ndarray) -> Measures:
    """Section 7.7.2.3: over tasks; "worst10" is the mean over the tenth of the tasks with the highest losses."""
    worst = np.sort(losses)[-max(1, losses.size // 10) :]
    return {"mean": losses.mean(), "std": losses.std(), "max": losses.max(), "worst10": worst.mean()}


def trained(config: Config, rule: Rule, meta_step: float, seed: int, validation: bool) -> Measures:
    """Meta-trains on tasks drawn for this seed, and measures losses on further tasks."""
    rng = np.random.default_rng(seed)
    params = learned(config, rule, meta_step, train_tasks(config, rng), seed)
    tasks = further_tasks(config, rng, config.validation_tasks if validation else config.test_tasks)
    return measures(served(config, params, tasks, rng))


def rules(config: Config) -> dict[str, dict[str, Rule]]:
    """Method -> name of a candidate -> its rule."""
    mixtures = {f"mixture step {step:g}": Rule(mixture_step=step) for step in config.mixture_steps}
    return {"MAML": {"": Rule()}, "TR-MAML": mixtures, "TERM": {"": Rule(config.t)}}


def chosen(config: Config) -> tuple[dict[str, Callable[[int], Measures]], dict[str, Any]]:
    """The methods with the settings of least mean loss on validation tasks, and the losses of all settings."""
    methods: dict[str, Callable[[int], Measures]] = {}
    tuning: dict[str, Any] = {}
    for name, candidates in rules(config).items():
        tries = {
            ", ".join(filter(None, [f"Adam {step:g}", candidate])): (candidates[candidate], step)
            for candidate, step in product(candidates, config.meta_steps)
        }
        losses = {
            label: kept(
                config,
                "meta",
                f"tuning {name}, {label}",
                lambda rule=rule, step=step: trained(config, rule, step, config.tuning_seed, validation=True),
            )["mean"]
            for label, (rule, step) in tries.items()
        }
        best = min(losses, key=lambda label: (not np.isfinite(losses[label]), losses[label]))
        tuning[name] = {"chosen": best, "losses": losses}
        rule, step = tries[best]
        methods[name] = lambda seed, rule=rule, step=step: trained(config, rule, step, seed, validation=False)
    return methods, tuning


def main(config: Config) -> None:
    """Settings are chosen on validation tasks; then all methods on the same tasks, seed by seed."""
    methods, tuning = chosen(config)
    orderings = {
        f"TERM has a lower {label} than {rival}": ("TERM", rival, measure, False)
        for rival in ("MAML", "TR-MAML")
        for measure, label in (("mean", "mean"), ("std", "std"), ("max", "max"), ("worst10", "worst 10 %"))
    }
    orderings["TR-MAML has a lower worst 10 % than MAML"] = ("TR-MAML", "MAML", "worst10", False)
    run(
        config,
        "meta",
        "Table 7.6: squared error over meta-test tasks after a step",
        methods,
        settings=asdict(config),
        paper=PAPER,
        orderings=orderings,
        more={"tuning": tuning},
    )


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.meta", description=__doc__))
