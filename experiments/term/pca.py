"""Fair principal components: two groups of borrowers, one projection, tilted towards the group that loses more.

Figures 7.10 and 7.11 of Li et al., *On Tilted Losses in Machine Learning*, JMLR 2023 (tables and figures numbered as in
the first author's dissertation).  From the root of the repository, after ``pip install cvxpy`` (for the semidefinite
program alone):

    python -m experiments.term.pca --data-dir DIR
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import tyro
from jax import lax
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from scipy.special import rel_entr

import evenhand as eh
from evenhand.types import Array
from experiments.fairness import Measures, picture
from experiments.term.table import TermExperiment, kept, run

FloatArray = npt.NDArray[np.float64]
GROUPS = ("low", "high")
"""Education.  The low group comes first, as in the authors' files."""

_FIGURE = {
    1: (0.0816, 0.0694, 0.0377, 0.0020, 0.0066, 0.0222, 0.0389),
    2: (0.0750, 0.0607, 0.0263, 0.0035, 0.0088, 0.0145, 0.0245),
    3: (0.7739, 0.2245, 0.1812, 0.0255, 0.1788, 0.1731, 0.1845),
    4: (0.2287, 0.1544, 0.1075, 0.0080, 0.0395, 0.0879, 0.0975),
    5: (0.1647, 0.1139, 0.0718, 0.0069, 0.0259, 0.0563, 0.0573),
    6: (0.4436, 0.2094, 0.1493, 0.0154, 0.0978, 0.1347, 0.1356),
    7: (0.5545, 0.3139, 0.2474, 0.0096, 0.1581, 0.2301, 0.2321),
    8: (0.6437, 0.3760, 0.3053, 0.0107, 0.1935, 0.2855, 0.3075),
    9: (0.6139, 0.3851, 0.2914, 0.0076, 0.1884, 0.2746, 0.2734),
    10: (0.4978, 0.3360, 0.2326, 0.0077, 0.1298, 0.2170, 0.2247),
    11: (0.4822, 0.2015, 0.1290, 0.0047, 0.1048, 0.1232, 0.1392),
    12: (0.0209, 0.0210, 0.0149, 0.0006, 0.0021, 0.0039, 0.0106),
    13: (0.0141, 0.0147, 0.0110, 0.0005, 0.0019, 0.0026, 0.0058),
    14: (0.0124, 0.0131, 0.0100, 0.0004, 0.0019, 0.0023, 0.0051),
    15: (0.0054, 0.0065, 0.0055, 0.0002, 0.0017, 0.0015, 0.0022),
    16: (0.0048, 0.0059, 0.0051, 0.0002, 0.0016, 0.0015, 0.0020),
    17: (0.0033, 0.0045, 0.0040, 0.0001, 0.0016, 0.0014, 0.0014),
    18: (0.0034, 0.0046, 0.0041, 0.0001, 0.0016, 0.0014, 0.0014),
    19: (0.0024, 0.0036, 0.0034, 0.0001, 0.0015, 0.0014, 0.0010),
    20: (0.0015, 0.0027, 0.0026, 0.0001, 0.0015, 0.0014, 0.0007),
}
_COLUMNS: tuple[str, ...] = (
    "low, standard",
    "low, t=10",
    "low, t=100",
    "high, standard",
    "high, t=10",
    "high, t=100",
    "min-max",
)
PAPER: dict[str, dict[str, float]] = {
    f"r={r}": dict(zip(_COLUMNS, numbers, strict=True)) for r, numbers in _FIGURE.items()
}
"""Read from the vector figure in the authors' repository: a variant of figure 7.10 with t = 100."""


@dataclass(frozen=True, kw_only=True)
class Config(TermExperiment):
    """What is run, with the place that a default comes from, or else "ours"."""

    seeds: int = 1
    """Ours: nothing here is random, so a second seed would repeat the first."""
    dimensions: tuple[int, ...] = tuple(range(1, 21))
    """Figure 7.10."""
    tilts: tuple[float, ...] = (10.0, 100.0, 200.0)
    """Figure 7.10 and its variant in the authors' repository."""
    rate: float = 0.001
    """The authors' code, and so are the steps."""
    steps: int = 40_000
    exact_rate: float = 0.01
    """Ours: for losses at orthonormal U, where ten times the step also converges at all tilts."""
    first_rows: int | None = 21
    """The authors' files: only so many rows of each group are centred.  None: all rows."""
    solver: str = "CLARABEL"
    """Ours: for the semidefinite program; the other that CVXPY brings is SCS."""
    path_dimension: int = 7
    """Figure 7.11."""
    path_tilts: tuple[float, ...] = (1.0, 10.0, 50.0, 100.0, 200.0)
    """Ours, within the range of figure 7.11."""
    path_rates: tuple[float, ...] = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0)
    """Ours: figure 7.11 has the best rate for each tilt."""
    path_steps: int = 2000
    """Ours."""


class Second(NamedTuple):
    """What a projection's losses depend on.

    Attributes:
      grams: :math:`S_g = X_g^\\top X_g / |g|`, ``(2, d, d)``.
      shares: of the rows, ``(2,)``.
      pooled: :math:`M^\\top M / n` of all rows.
    """

    grams: FloatArray
    shares: FloatArray
    pooled: FloatArray


def moments(config: Config) -> Second:
    """Second moments of the two groups of borrowers, from 21 features of standard deviation 1."""
    path = config.data_dir / "term" / "credit.npz"
    if not path.exists():
        raise SystemExit(f"no {path}: say with --data-dir where the folder term/ with credit.npz is.")
    with np.load(path) as file:
        x, is_low = file["x"][:, :21].astype(np.float64), file["low_education"]
    x = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    parts = [x[is_low], x[~is_low]]
    for part in parts:
        part[: config.first_rows] -= part.mean(axis=0)
    grams = np.stack([part.T @ part / len(part) for part in parts])
    return Second(grams, np.array([len(part) for part in parts]) / len(x), x.T @ x / len(x))


# --- projections and their losses --------------------------------------------------------------------------------


def standard(second: FloatArray, r: int) -> FloatArray:
    """The eigenvectors of the ``r`` largest eigenvalues, ``(d, r)``: principal components."""
    return np.linalg.eigh(second)[1][:, ::-1][:, :r]


def captured(grams: FloatArray, r: int) -> FloatArray:
    """The most variance that ``r`` components capture of each group."""
    return np.linalg.eigvalsh(grams)[..., ::-1][..., :r].sum(axis=-1)


def excess(grams: Any, best: Any, u: Any) -> Any:
    r"""Each group's loss: its reconstruction error less the least possible.

    .. math:: \ell_g(U) = \frac1{|g|} (\|X_g - X_g U U^\top\|_F^2 - \|X_g - \hat X_g\|_F^2)
        = b_g - 2 \operatorname{tr}(P S_g) + \operatorname{tr}(P P S_g), \qquad P = U U^\top

    with :math:`b_g` the most variance that as many components capture.
    """
    projection = u @ u.T
    middle = 2.0 * projection - projection @ projection
    return best - (middle[None] * grams).sum(axis=(-2, -1))


def descend(
    second: Second, u: FloatArray, *, t: float, rate: float, steps: int, orthonormal: bool
) -> tuple[FloatArray, FloatArray]:
    r"""TERM over groups, by the authors' descent; returns the last U and, before each step, the losses at Q.

    .. math:: U \leftarrow Q + \eta \sum_g w_g S_g Q, \qquad U = Q R, \qquad
        w_g \propto |g| e^{t \ell_g(U)}

    Args:
      second: the groups' moments.
      u: where to start.
      t: the tilt.
      rate: :math:`\eta`.
      steps: how many.
      orthonormal: whether the weights are of the losses at Q.  The authors' are of those at U, whose columns are too
        long by the last step.
    """
    with jax.enable_x64(True):
        best = captured(second.grams, u.shape[1])
        numbers = map(jnp.asarray, (u, second.grams, second.shares, best, t, rate))
        last, path = _descent(steps, orthonormal)(*numbers)
        return np.asarray(last), np.asarray(path)


@cache
def _descent(steps: int, orthonormal: bool) -> Any:
    def path(u: Array, grams: Array, shares: Array, best: Array, t: Array, rate: Array) -> Any:
        def body(u: Array, _: Any) -> tuple[Array, Array]:
            q, _ = jnp.linalg.qr(u)
            weights = eh.risks.tilted(t).weights(excess(grams, best, q if orthonormal else u), shares)
            return q + rate * jnp.tensordot(weights, grams, 1) @ q, excess(grams, best, q)

        return lax.scan(body, u, None, length=steps)

    return jax.jit(path)


def optimum(second: Second, r: int, t: float) -> float:
    r"""The least tilted risk of any projection, for ``t = inf`` the min-max value, from one number.

    .. math:: \min_U \frac1t \log \sum_g p_g e^{t \ell_g(U)}
        = \max_{q \in \Delta_2} \sum_g q_g b_g - \lambda_1 - \dots - \lambda_r - \frac1t D(q \| p)

    with :math:`\lambda` the largest eigenvalues of :math:`\sum_g q_g S_g`.  The two sides are equal for two groups, as
    the relaxation of projections to their convex hull is then tight.
    """
    best = captured(second.grams, r)

    def negative(low: float) -> float:
        q = np.array([low, 1.0 - low])
        price = 0.0 if np.isinf(t) else float(rel_entr(q, second.shares).sum()) / t
        return float(captured(np.tensordot(q, second.grams, 1), r) - q @ best) + price

    solution: Any = minimize_scalar(negative, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-10})
    return -float(solution.fun)


def semidefinite(second: Second, r: int, solver: str) -> float:
    r"""The min-max value, by the program :math:`\min_P \max_g \, b_g - \langle S_g, P \rangle`.

    Over :math:`0 \preceq P \preceq I` and :math:`\operatorname{tr} P \le r`.
    """
    try:
        import cvxpy  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise SystemExit("the min-max baseline is a semidefinite program: pip install cvxpy") from None
    p, z = cvxpy.Variable(second.pooled.shape, symmetric=True), cvxpy.Variable()
    identity = np.eye(len(second.pooled))
    losses = [
        b - cvxpy.trace(gram @ p) for b, gram in zip(captured(second.grams, r), second.grams, strict=True)
    ]
    limits = [p >> 0, identity - p >> 0, cvxpy.trace(p) <= r, *(z >= loss for loss in losses)]
    problem = cvxpy.Problem(cvxpy.Minimize(z), limits)
    problem.solve(solver=solver)
    value: Any = problem.value
    return float(value)


# --- the two figures ---------------------------------------------------------------------------------------------


def row(config: Config, second: Second, r: int) -> Measures:
    """All methods at one dimension: each group's loss, and how far TERM is from the least tilted risk."""
    start, best = standard(second.pooled, r), captured(second.grams, r)
    measures = _by_group(excess(second.grams, best, start), "standard")
    for t in config.tilts:
        last, _ = descend(second, start, t=t, rate=config.rate, steps=config.steps, orthonormal=False)
        measures |= _by_group(excess(second.grams, best, last), f"t={t:g}")
        _, path = descend(second, start, t=t, rate=config.exact_rate, steps=config.steps, orthonormal=True)
        measures |= _by_group(path[-1], f"t={t:g}, orthonormal")
        measures[f"gap, t={t:g}"] = float(tilted(path[-1:], second.shares, t)[0]) - optimum(second, r, t)
    measures["min-max"] = semidefinite(second, r, config.solver)
    measures["min-max by eigenvalues"] = optimum(second, r, np.inf)
    return measures


def speed(config: Config, second: Second, t: float) -> Measures:
    """After how many steps the tilted risk stays within 1 % of its fall, at each rate and at the fastest."""
    steps = {
        rate: float(after) if (after := _settled(config, second, t, rate)) < config.path_steps else np.nan
        for rate in config.path_rates
    }
    if np.isnan(list(steps.values())).all():
        raise SystemExit(f"t={t:g} does not settle in {config.path_steps} steps: give more, or other rates.")
    rate = min(steps, key=lambda rate: np.nan_to_num(steps[rate], nan=np.inf))
    return {"rate": rate, "steps": steps[rate]}


def _settled(config: Config, second: Second, t: float, rate: float) -> int:
    risk, least = _fall(config, second, t, rate)
    is_far = risk - least > 0.01 * (risk[0] - least)
    return int(np.flatnonzero(is_far)[-1]) + 1


def _fall(config: Config, second: Second, t: float, rate: float) -> tuple[FloatArray, float]:
    """The tilted risk before each step of the path, and its least value."""
    r = config.path_dimension
    start = standard(second.pooled, r)
    _, losses = descend(second, start, t=t, rate=rate, steps=config.path_steps, orthonormal=True)
    return tilted(losses, second.shares, t), optimum(second, r, t)


def tilted(losses: FloatArray, shares: FloatArray, t: float) -> FloatArray:
    """The tilted risk of each row of losses."""
    with jax.enable_x64(True):
        value = jax.vmap(eh.risks.tilted(t).value, (0, None))
        return np.asarray(value(jnp.asarray(losses), jnp.asarray(shares)))


def main(config: Config) -> None:
    """The table behind figure 7.10, the steps of figure 7.11, and both as pictures."""
    second = moments(config)
    paths = {
        f"t={t:g}": kept(config, "pca_path", f"t={t:g}", lambda t=t: speed(config, second, t))
        for t in config.path_tilts
    }
    rows = {
        f"r={r}": kept(config, "pca", f"r={r}, seed 0", lambda r=r: row(config, second, r))
        for r in config.dimensions
    }
    path = run(
        config,
        "pca",
        "excess loss",
        {name: lambda seed, measures=measures: measures for name, measures in rows.items()},
        settings=asdict(config),
        paper={name: PAPER[name] for name in rows},
        more={"path": paths, "dimensions": evenness(config, rows)},
    )
    draw(config, second, path)


def evenness(config: Config, rows: Mapping[str, Measures]) -> dict[str, str]:
    """In how many dimensions the groups' losses are closer than by a lesser tilt, and the greater one is less."""
    methods = ["standard", *(f"t={t:g}, orthonormal" for t in sorted(config.tilts))]
    counts = {}
    for before, after in pairwise(methods):
        pairs = [
            [[row[f"{group}, {method}"] for group in GROUPS] for method in (before, after)]
            for row in rows.values()
        ]
        closer = sum(np.ptp(new) < np.ptp(old) for old, new in pairs)
        less = sum(max(new) < max(old) for old, new in pairs)
        names = f"{after.split(',')[0]} and {before.split(',')[0]}"
        counts[f"smaller difference, {names}"] = f"{closer} of {len(rows)}"
        counts[f"smaller maximum, {names}"] = f"{less} of {len(rows)}"
    return counts


def draw(config: Config, second: Second, path: Path) -> Path:
    """Losses by dimension on the left; on the right, how the tilted risk falls at the fastest rate of each tilt."""
    content = json.loads(path.read_text())
    rows = {name: numbers["mean"] for name, numbers in content["methods"].items()}
    with mpl.rc_context({"font.size": 8, "lines.linewidth": 1.2}):
        figure = Figure(figsize=(8.6, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        methods = ["standard", *(f"t={t:g}, orthonormal" for t in config.tilts)]
        for color, method in enumerate(methods):
            for group, line in zip(GROUPS, ("-", "--"), strict=True):
                losses = [row[f"{group}, {method}"] for row in rows.values()]
                label = f"{method.split(',')[0]}, {group}"
                left.plot(config.dimensions, losses, line, color=f"C{color}", marker=".", label=label)
        left.plot(config.dimensions, [row["min-max"] for row in rows.values()], "k:", label="min-max")
        left.set(
            xlabel="components r", ylabel="excess reconstruction loss", ylim=(0, None), xticks=range(0, 21, 5)
        )
        left.legend(ncols=2, fontsize=6.5)
        for t in config.path_tilts:
            risk, least = _fall(config, second, t, content["path"][f"t={t:g}"]["rate"])
            right.semilogy((risk - least) / (risk[0] - least), label=f"t={t:g}")
        right.set(xlabel="steps", ylabel="share of the fall that is left", xlim=(0, 600), ylim=(1e-4, 1))
        right.set_title(f"r={config.path_dimension}, fastest rate", fontsize=8)
        right.legend()
        return picture(figure, path.with_suffix(".png"))


def _by_group(losses: FloatArray, method: str) -> Measures:
    return {f"{group}, {method}": float(loss) for group, loss in zip(GROUPS, losses, strict=True)}


if __name__ == "__main__":
    main(tyro.cli(Config, prog="python -m experiments.term.pca", description=__doc__))
