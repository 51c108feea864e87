"""Training one model on all examples in one place: with a risk, early stopping and results by group, or by a solver.

From top to bottom: the result (:class:`Fit`); :func:`fit`; the rows for training and validation; the solver that a risk
gets; the measurements and when they end the training; the compiled loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax import lax

from evenhand import evaluation
from evenhand._platform import check_process
from evenhand.centralized._solver import Solver, check_model, check_risk
from evenhand.centralized._solvers import batch
from evenhand.centralized.quasi_newton import quasi_newton
from evenhand.errors import EvenhandError, expect, real_number, truth_value, whole_number
from evenhand.live import line
from evenhand.lowering import lowered
from evenhand.report import RunView, write_report
from evenhand.risks import hierarchical, mean
from evenhand.streams import Purpose, root_key, stream
from evenhand.types import Array, Key, Model, Params, PyTree, Risk

NDArray = npt.NDArray[Any]

_STEPS = 1000
"""Most steps of the solver that needs no step size; it ends earlier, once no step descends."""
_EVALUATIONS = 200
"""How often a fit is measured by default."""


class Fit(NamedTuple):
    """The result of :func:`fit`: the trained parameters, how training went, and what continues it.

    Attributes:
      params: as in the model; with validation rows, those of the lowest validation risk.
      state: the solver's, after the last step.
      steps: the number of steps done.
      seed: decides the rows for validation and the batches.
      model: what was trained.
      history: equal-length arrays: ``"step"``; ``"<split>_risk"``, the objective, and ``"<split>_<metric>"``, over the
        examples of the splits ``"train"`` and ``"valid"``.  Empty where nothing was measured.
      groups: the groups' names; one, ``"all"``, where none were given.
      sizes: split -> examples per group.
      by_group: split -> metric -> a number for each group, at ``params``.
    """

    params: Params
    state: PyTree
    steps: int
    seed: int
    model: Model
    history: Mapping[str, NDArray] = {}
    groups: tuple[str, ...] = ()
    sizes: Mapping[str, NDArray] = {}
    by_group: Mapping[str, Mapping[str, NDArray]] = {}

    def predict(self, x: npt.ArrayLike) -> NDArray:
        """The model's outputs for new examples, ``(rows, ...)``: logits or scores for classes, numbers otherwise."""
        outputs = jax.jit(self.model.apply)(self.params, jnp.asarray(x))
        return jax.tree.map(np.asarray, outputs)

    def report(self, path: str | Path, title: str = "fit") -> Path:
        """Writes one self-contained HTML page about the groups, and returns its path.

        Raises:
          EvenhandError: nothing was measured.
        """
        if not self.history:
            raise EvenhandError(
                "report(): this fit was not measured: give fit() eval_every=, or a model instead of a solver."
            )
        history = {("round" if name == "step" else name): values for name, values in self.history.items()}
        info = {
            "rounds": self.steps,
            "seed": self.seed,
            "clients": len(self.groups),
            "pooled": True,
        }
        view = RunView(
            title=title,
            history=history,
            sizes=self.sizes,
            client_ids=self.groups,
            clients=self.by_group,
            info={**info, "adapts": False},
            config={},
        )
        return write_report(path, [view])


def fit(
    model: Model | Solver,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    risk: Risk | Callable[[Array], Risk] | Solver | None = None,
    steps: int | None = None,
    optimiser: optax.GradientTransformation | None = None,
    groups: npt.ArrayLike | None = None,
    inner: Risk | None = None,
    valid_fraction: float = 0.0,
    patience: int | None = None,
    eval_every: int | None = None,
    seed: int | None = None,
    params: Params | None = None,
    after: Fit | None = None,
    progress: bool = False,
) -> Fit:
    r"""Trains a central model: minimises a risk of all examples together.

    .. math:: \min_\theta R\big(f(x_1, y_1; \theta), \dots, f(x_N, y_N; \theta)\big)

    Args:
      model: what is trained; or a solver, which has its model.
      x: features, ``(n, ...)``.
      y: labels, ``(n, ...)``.
      risk: of the losses, such as ``eh.risks.tilted(50.0)``; a function of the step number that gives one, to ramp a
        tilt, with an ``optimiser``; or a solver.  None: the mean.
      steps: the number of steps; None: at most 1,000, and fewer once no step descends.
      optimiser: takes the gradient of the risk, such as ``optax.sgd(0.1)``; it needs ``steps``.  None: L-BFGS, which
        has no step size to choose (:func:`evenhand.centralized.quasi_newton`).
      groups: ``(n,)``, the group of each example, numbers or text; results are given for each group.
      inner: the risk within each group, such as ``eh.risks.mean()``: ``risk`` is then one over groups,
        as in hierarchical TERM.  None: ``risk`` is over all examples, whatever their groups.
      valid_fraction: the share of each group's examples held out for validation; the parameters of the lowest
        validation risk are kept.
      patience: end after so many evaluations without a lower validation risk; None: never.
      eval_every: steps between two evaluations; None: a 200th of the steps, and none for a solver given first.
      seed: decides the initial parameters, if none are given, the rows for validation and the batches; None: 0, or that
        of ``after``.
      params: where to start; None: the model's own initial ones.
      after: an earlier fit to continue, with the batches that would have come next, by the same solver or optimiser;
        its parameters are kept as long as none have a lower validation risk.
      progress: show a live bar.

    Raises:
      EvenhandError: no examples, not one label or group per example, a number out of range, or arguments that exclude
        each other.

    Edge cases: for ``t < 0`` a tilted risk is not convex; where losses are large at the start, ramp the tilt or start
    from the parameters of a robust fit.

    Example:
      >>> import evenhand as eh, jax.numpy as jnp, optax
      >>> model = eh.models.linear_regression(features=1)
      >>> x = jnp.arange(10.0)[:, None] / 10
      >>> y = jnp.where(jnp.arange(10) == 9, 5.0, 2 * x[:, 0])  # a line, and an outlier
      >>> [round(float(fit(model, x, y, risk=risk).params["kernel"][0, 0]), 2) for risk in (
      ...     eh.risks.mean(), eh.risks.tilted(-2.0))]
      [3.75, 2.0]
      >>> worst = eh.centralized.batch(model, eh.risks.tilted(50.0), optimiser=optax.sgd(0.05))
      >>> fit(worst, x, y, steps=1000).steps
      1000

    Source: Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023, sections on the solvers of TERM.
    """
    progress = truth_value("progress", progress)
    check_process()
    if seed is None:
        seed = 0 if after is None else after.seed
    seed = whole_number("seed", seed, 0, 2**32 - 1)
    steps = whole_number(
        "steps", _default_steps(model, risk, optimiser) if steps is None else steps, 0, 10**9
    )
    rows = _divided(_numbers("x", x), _numbers("y", y), groups, valid_fraction, seed)
    if inner is not None and groups is None:
        raise EvenhandError("fit(inner=...): give groups=, over which the risk then is.")
    solver, objective = _planned(model, risk, inner, optimiser, rows)
    if patience is not None and whole_number("patience", patience, 1) and rows.valid is None:
        raise EvenhandError(
            f"fit(patience={patience}): give valid_fraction=, the rows that say when to stop."
        )
    # Batches are keyed by the step's number, so that a fit in two parts draws those of one in a single part.
    root = root_key(seed)
    if after is None:
        initial = solver.model.init(stream(root, Purpose.INIT)) if params is None else params
        state, first = solver.init(initial, rows.train.x, rows.train.y), 0
    else:
        state, first = _continued(solver, after, params, rows.train), after.steps
    advance = partial(_steps(solver.step), x=rows.train.x, y=rows.train.y, root=root)
    if isinstance(model, Solver) and eval_every is None and rows.valid is None and groups is None:
        state = advance(state, first=jnp.int32(first), count=jnp.int32(steps))
        return Fit(solver.params(state), state, first + steps, seed, solver.model)
    every = max(1, steps // _EVALUATIONS) if eval_every is None else whole_number("eval_every", eval_every, 1)
    course = _Course(solver, objective, rows, patience)
    if after is not None:
        course.continue_from(after.params)
    with line("step", steps, show=progress) as bar:
        done = 0
        is_going = course.measure(first, state)
        while done < steps and is_going:
            count = min(every, steps - done)
            state = advance(state, first=jnp.int32(first + done), count=jnp.int32(count))
            done += count
            is_going = course.measure(first + done, state)
            bar.update(done, latest=course.latest)
    return course.result(state, first + done, seed)


def _continued(solver: Solver, after: Fit, params: Params | None, rows: _Rows) -> PyTree:
    """The state from which a fit continues, if it is one of this solver."""
    if params is not None:
        raise EvenhandError(
            "fit(params=..., after=...): a fit continues from where it ended: leave params out."
        )
    begun = jax.eval_shape(lambda params: solver.init(params, rows.x, rows.y), after.params)
    shapes = [
        jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)
        for tree in (begun, after.state)
    ]
    if shapes[0] != shapes[1]:
        raise EvenhandError(
            "fit(after=...): it is the fit of another model, solver or optimiser: continue it with the same ones."
        )
    return after.state


def _numbers(name: str, values: npt.ArrayLike) -> Array:
    try:
        return jnp.asarray(values)
    except (TypeError, ValueError):
        raise EvenhandError(
            f"fit({name}=...) is not an array of numbers: number classes from 0, and leave out what is missing."
        ) from None


# --- the rows for training and validation, and the solver of a risk -------------------------------------------------


class _Rows(NamedTuple):
    """Examples, and the group of each."""

    x: Array
    y: Array
    members: NDArray

    def by_group(self, groups: int) -> evaluation.Prepared:
        """The same examples in the order of their groups, which are measured one by one."""
        ends = np.concatenate([[0], np.cumsum(np.bincount(self.members, minlength=groups))])
        x, y = self.x, self.y
        if (np.diff(self.members) < 0).any():
            order = np.argsort(self.members, kind="stable")
            x, y = x[order], y[order]
        return evaluation.Prepared(x, y, ends, None, None)


class _Divided(NamedTuple):
    """The rows of a fit; without a validation part, ``valid`` is None, and the order is as it was given."""

    train: _Rows
    valid: _Rows | None
    groups: tuple[str, ...]


def _divided(x: Array, y: Array, groups: npt.ArrayLike | None, fraction: float, seed: int) -> _Divided:
    """The rows by group, of which each gives a share to validation, all but one at most."""
    rows = x.shape[0] if x.ndim else 0
    if not rows or y.shape[:1] != x.shape[:1]:
        raise EvenhandError(
            f"fit() got x of shape {x.shape} and y of shape {y.shape}: give one label per row."
        )
    if not 0.0 <= real_number(fraction) < 1.0:
        raise EvenhandError(f"fit(valid_fraction={fraction}): give a number from 0, and below 1.")
    member = np.zeros(rows, np.int64) if groups is None else np.asarray(groups)
    if member.shape != (rows,):
        raise EvenhandError(
            f"fit(groups=...) has shape {member.shape}: give one group for each of {rows} rows."
        )
    try:
        names, codes = np.unique(member, return_inverse=True)
        is_whole = names[-1] == names[-1]  # NaN is the last of numbers
    except TypeError:  # None among texts, or texts among numbers
        names = codes = member
        is_whole = False
    if not is_whole:
        raise EvenhandError(
            "fit(groups=...) misses a group, or mixes texts with numbers: give all as one kind."
        )
    sizes = np.bincount(codes)
    named = ("all",) if groups is None else tuple(map(str, names))
    if not fraction:
        # A risk or a solver may have groups of its own, by the places of the examples: these stay where they are.
        return _Divided(_Rows(x, y, codes), None, named)
    draws = np.random.default_rng((seed, int(Purpose.EVALUATION))).random(rows)
    order = np.lexsort((draws, codes))
    rank = np.arange(rows) - (np.cumsum(sizes) - sizes)[codes[order]]
    held = np.minimum(np.floor(fraction * sizes + 1e-9), sizes - 1)
    is_valid = rank < held[codes[order]]

    def part(chosen: NDArray) -> _Rows:
        index = order[chosen]
        return _Rows(x[index], y[index], codes[index])

    if not is_valid.any():
        raise EvenhandError(
            f"fit(valid_fraction={fraction}): that is less than one example of each group: give a larger share."
        )
    return _Divided(part(~is_valid), part(is_valid), named)


def _default_steps(model: object, risk: object, optimiser: object) -> int:
    if isinstance(model, Solver) or isinstance(risk, Solver) or optimiser is not None:
        raise EvenhandError(
            "fit(): give steps=, as only the solver without a step size knows when it is done."
        )
    return _STEPS


Objective: TypeAlias = Callable[[_Rows], Risk]


def _planned(
    model: Model | Solver,
    risk: Risk | Callable[[Array], Risk] | Solver | None,
    inner: Risk | None,
    optimiser: optax.GradientTransformation | None,
    rows: _Divided,
) -> tuple[Solver, Objective]:
    """The solver, and the risk that is measured: the mean where a solver hides its own."""
    if isinstance(model, Solver) or isinstance(risk, Solver):
        extra = {"optimiser": optimiser, "inner": inner, "risk": risk if isinstance(model, Solver) else None}
        for name, value in extra.items():
            if value is not None:
                raise EvenhandError(
                    f"fit({name}=...): a solver has its own risk and optimiser: leave it out."
                )
        solver = model if isinstance(model, Solver) else risk
        assert isinstance(solver, Solver)
        return solver, lambda part: mean()
    check_model(model)
    assert isinstance(model, Model)
    if risk is None or isinstance(risk, Risk):
        outer = mean() if risk is None else risk

        def objective(part: _Rows) -> Risk:
            return (
                outer
                if inner is None
                else hierarchical(outer, inner, jnp.asarray(part.members), len(rows.groups))
            )

        train = objective(rows.train)
        if optimiser is None:
            return quasi_newton(model, train), objective
        return batch(model, train, optimiser=optimiser), objective
    expect("risk", risk, FunctionType, "eh.risks.tilted(1.0), or a function of the step that gives one")
    check_risk(risk)
    if optimiser is None or inner is not None:
        raise EvenhandError(
            "fit(risk=...): a risk that changes with the step needs an optimiser=, and has no inner= risk."
        )
    return batch(model, risk, optimiser=optimiser), lambda part: mean()


# --- measurements, and when they end the training -------------------------------------------------------------------


class _Course:
    """What has been measured, and the best parameters so far.

    Args:
      solver: has the model.
      objective: the risk of some rows.
      rows: for training and validation.
      patience: evaluations without a lower validation risk that end the training; None: no number does.
    """

    def __init__(self, solver: Solver, objective: Objective, rows: _Divided, patience: int | None) -> None:
        self._solver, self._patience, self._groups = solver, patience, rows.groups
        self._parts = {"train": rows.train} | ({} if rows.valid is None else {"valid": rows.valid})
        self._prepared = {name: part.by_group(len(rows.groups)) for name, part in self._parts.items()}
        self._risks = {name: objective(part) for name, part in self._parts.items()}
        self._history: list[dict[str, float]] = []
        self._best: tuple[float, Params] | None = None
        self._waited = 0

    def continue_from(self, before: Params) -> None:
        """Begins with the best parameters of the earlier fit, measured on the validation rows of this one."""
        if "valid" in self._parts:
            # The first measurement is of the state where that fit ended, and does not count towards the patience.
            self._best, self._waited = (self._risk("valid", before), before), -1

    def _risk(self, name: str, params: Params) -> float:
        model, part = self._solver.model, self._parts[name]
        value = _value_of(model.apply, model.losses, self._risks[name].value)
        return float(value(params, jnp.asarray(part.x), jnp.asarray(part.y)))

    def measure(self, step: int, state: PyTree) -> bool:
        """Measures a state, and returns whether training continues."""
        params, model = self._solver.params(state), self._solver.model
        row = {"step": float(step)}
        for name, part in self._prepared.items():
            row[f"{name}_risk"] = self._risk(name, params)
            by_group, sizes = evaluation.per_client(model, params, part), part.sizes
            has = sizes > 0
            row |= {
                f"{name}_{metric}": float(np.average(values[has], weights=sizes[has]))
                for metric, values in by_group.items()
            }
        bad = [name for name in self._prepared if not math.isfinite(row[f"{name}_loss"])]
        if bad and not self._history:
            raise EvenhandError(
                f"fit(): the {bad[0]} loss of the initial model is not finite: check that labels lie in the model's "
                "range, and that features are numbers of ordinary size."
            )
        self._history.append(row)
        is_done = self._solver.is_done
        return self._goes_on(row, params) and not (is_done is not None and bool(is_done(state)))

    def _goes_on(self, row: Mapping[str, float], params: Params) -> bool:
        if "valid_risk" in row:
            # Comparisons with NaN are false, so a NaN that was kept as the best would never be replaced.
            if self._best is None or row["valid_risk"] < self._best[0] or math.isnan(self._best[0]):
                self._best, self._waited = (row["valid_risk"], params), 0
            else:
                self._waited += 1
            if self._patience is not None and self._waited >= self._patience:
                return False
        return True

    @property
    def latest(self) -> str:
        """The last losses, for the bar."""
        row = self._history[-1]
        return ", ".join(f"{name} loss {row[f'{name}_loss']:.4g}" for name in self._prepared)

    def result(self, state: PyTree, steps: int, seed: int) -> Fit:
        """The fit, with the parameters of the lowest validation risk where there is one."""
        model = self._solver.model
        params = self._solver.params(state) if self._best is None else self._best[1]
        names = dict.fromkeys(name for row in self._history for name in row)
        return Fit(
            params=params,
            state=state,
            steps=steps,
            seed=seed,
            model=model,
            history={name: np.array([row[name] for row in self._history]) for name in names},
            groups=self._groups,
            sizes={name: part.sizes for name, part in self._prepared.items()},
            by_group={
                name: evaluation.per_client(model, params, part) for name, part in self._prepared.items()
            },
        )


@lru_cache(maxsize=16)
def _value_of(apply: Any, losses: Any, risk: Any) -> Callable[[Params, Array, Array], Array]:
    """``(params, x, y)`` -> the risk of the losses of these rows."""
    return jax.jit(lambda params, x, y: risk(losses(lowered(apply)(params, x), y)))


@lru_cache(maxsize=16)  # a cache of JAX's would keep every solver that ever ran
def _steps(step: Any) -> Callable[..., PyTree]:
    """``(state, x, y, root, first, count)`` -> the state after these steps."""

    def steps(state: PyTree, x: Array, y: Array, root: Key, first: Array, count: Array) -> PyTree:
        def body(number: Array, state: PyTree) -> PyTree:
            return step(state, x, y, number, stream(root, Purpose.WORK, number))

        return lax.fori_loop(first, first + count, body, state)

    return jax.jit(steps)
