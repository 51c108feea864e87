"""Central training on a risk: ``fit``, L-BFGS, early stopping, results by group, and the same as a method of a run.

Minima are compared with those that SciPy finds from losses written out in NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special
from scipy.optimize import minimize

import evenhand as eh
from evenhand.centralized import Weighed, Weighting, fit, quasi_newton
from evenhand.centralized.methods import fit as method
from evenhand.models.losses import focal
from evenhand.types import ClientData, Risk

logsumexp: Any = special.logsumexp  # SciPy declares no type of what it returns

MODEL = eh.models.linear_regression(features=2)
SOFTMAX = eh.models.softmax_regression(features=2, classes=3)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 2)).astype(np.float32)
Y = (X @ [1.0, -2.0] + 0.5 + 0.3 * RNG.normal(size=60)).astype(np.float32)
GROUPS = np.where(np.arange(60) < 45, "common", "rare")
LABELS = np.argmax(X @ RNG.normal(size=(2, 3)) + 0.7 * RNG.normal(size=(60, 3)), axis=1).astype(np.int32)


def squared(theta: np.ndarray) -> np.ndarray:
    return (X @ theta[:2] + theta[2] - Y) ** 2


def losses_of(params: Any) -> jax.Array:
    return SOFTMAX.losses(SOFTMAX.apply(params, jnp.asarray(X)), jnp.asarray(LABELS))


def tilt(losses: np.ndarray, t: float) -> float:
    return float((logsumexp(t * losses) - np.log(len(losses))) / t)


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(params["kernel"]), np.ravel(params["bias"])])


@pytest.mark.parametrize("t", [-0.5, 0.5, 5.0])
def test_lbfgs_finds_the_minimum_of_the_tilted_risk(t: float) -> None:
    expected = minimize(lambda theta: tilt(squared(theta), t), np.zeros(3), method="BFGS", tol=1e-10)
    fitted = fit(MODEL, X, Y, risk=eh.risks.tilted(t))
    np.testing.assert_allclose(flat(fitted.params), expected.x, atol=2e-3)
    # It ends by itself, once no step descends.
    assert fitted.steps < 200
    assert fitted.history["train_risk"][-1] == pytest.approx(expected.fun, abs=1e-5)


def test_the_mean_is_the_default_and_differs_from_a_tilt() -> None:
    design = np.hstack([X, np.ones((60, 1))])
    expected = np.linalg.lstsq(design, Y, rcond=None)[0]
    np.testing.assert_allclose(flat(fit(MODEL, X, Y).params), expected, atol=1e-3)
    assert np.abs(flat(fit(MODEL, X, Y, risk=eh.risks.tilted(5.0)).params) - expected).max() > 0.01


def test_an_inner_risk_makes_the_outer_one_a_risk_over_groups() -> None:
    rare = GROUPS == "rare"

    def over_groups(theta: np.ndarray) -> float:
        means = np.array([squared(theta)[~rare].mean(), squared(theta)[rare].mean()])
        return float(logsumexp(50.0 * means, b=np.array([0.75, 0.25])) / 50.0)

    expected = minimize(over_groups, np.zeros(3), method="BFGS", tol=1e-10)
    risk, inner = eh.risks.tilted(50.0), eh.risks.mean()
    fitted = fit(MODEL, X, Y, risk=risk, groups=GROUPS, inner=inner)
    assert fitted.history["train_risk"][-1] == pytest.approx(expected.fun, abs=1e-4)
    np.testing.assert_allclose(flat(fitted.params), expected.x, atol=5e-3)
    flat_risk = fit(MODEL, X, Y, risk=risk, groups=GROUPS)
    assert np.abs(flat(flat_risk.params) - expected.x).max() > 0.02
    # An order of the rows in which groups alternate gives the same fit.
    order = RNG.permutation(60)
    again = fit(MODEL, X[order], Y[order], risk=risk, groups=GROUPS[order], inner=inner)
    np.testing.assert_allclose(flat(again.params), flat(fitted.params), atol=2e-3)


def test_results_by_group_are_those_of_the_groups_rows() -> None:
    fitted = fit(MODEL, X, Y, groups=GROUPS)
    theta = flat(fitted.params)
    assert fitted.groups == ("common", "rare")
    assert fitted.sizes["train"].tolist() == [45, 15]
    expected = [squared(theta)[name == GROUPS].mean() for name in fitted.groups]
    np.testing.assert_allclose(fitted.by_group["train"]["loss"], expected, rtol=1e-4)
    assert fitted.history["train_loss"][-1] == pytest.approx(squared(theta).mean(), rel=1e-4)
    np.testing.assert_allclose(fitted.predict(X)[:, 0], X @ theta[:2] + theta[2], atol=1e-5)


def test_validation_rows_are_a_share_of_each_group_and_choose_the_parameters() -> None:
    model = eh.models.mlp(2, hidden=(64,), classes=3)
    options = {"optimiser": optax.adam(0.1), "steps": 200, "groups": GROUPS, "valid_fraction": 0.4}
    fitted = fit(model, X, LABELS, eval_every=10, seed=3, **options)
    assert fitted.sizes["valid"].tolist() == [18, 6]
    assert fitted.sizes["train"].tolist() == [27, 9]
    best = fitted.history["valid_risk"].min()
    assert best < fitted.history["valid_risk"][-1]  # it overfits
    kept = np.average(fitted.by_group["valid"]["loss"], weights=fitted.sizes["valid"])
    assert kept == pytest.approx(best, rel=1e-4)
    stopped = fit(model, X, LABELS, eval_every=10, seed=3, patience=2, **options)
    steps = stopped.history["step"]
    assert stopped.steps == steps[-1] < 200
    assert np.argmin(stopped.history["valid_risk"]) == len(steps) - 3
    other = fit(model, X, LABELS, eval_every=100, seed=4, **options)
    assert other.history["valid_loss"][0] != fitted.history["valid_loss"][0]
    rounded = fit(model, np.zeros((100, 2)), np.zeros(100, int), steps=0, valid_fraction=0.29)
    assert rounded.sizes["valid"].tolist() == [29], "0.29 * 100 is a little below 29"


def test_a_risk_that_is_no_number_at_first_is_replaced_by_any_number() -> None:
    def value(losses: jax.Array, weights: Any = None) -> jax.Array:
        return jnp.where(jnp.mean(losses) < 2.0, jnp.mean(losses), jnp.nan)

    risk = Risk(value, eh.risks.mean().weights)
    fitted = fit(MODEL, X, Y, risk=risk, optimiser=optax.sgd(0.1), steps=50, valid_fraction=0.3)
    assert np.isnan(fitted.history["valid_risk"][0])
    assert fitted.by_group["valid"]["loss"][0] == pytest.approx(
        np.nanmin(fitted.history["valid_risk"]), rel=1e-4
    )


def test_a_fit_in_two_parts_is_one() -> None:
    solver = eh.centralized.stochastic(MODEL, t=1.0, rate=0.5, batch_size=4, optimiser=optax.sgd(0.01))
    whole = fit(solver, X, Y, steps=20, seed=7)
    part = fit(solver, X, Y, steps=8, seed=7)
    rest = fit(solver, X, Y, steps=12, after=part, eval_every=5)
    np.testing.assert_array_equal(flat(whole.params), flat(rest.params))
    assert rest.history["step"].tolist() == [8, 13, 18, 20]
    assert whole.history == {}
    as_risk = fit(MODEL, X, Y, risk=solver, steps=20, seed=7)
    np.testing.assert_array_equal(flat(whole.params), flat(as_risk.params))


def test_the_report_names_the_groups(tmp_path: Path) -> None:
    fitted = fit(SOFTMAX, X, LABELS, groups=GROUPS, valid_fraction=0.2, steps=20, eval_every=5)
    page = fitted.report(tmp_path / "fit.html", title="tilted").read_text(encoding="utf-8")
    assert "<h1>tilted</h1>" in page
    assert "common" in page and "rare" in page
    with pytest.raises(eh.EvenhandError, match="not measured"):
        fit(quasi_newton(SOFTMAX, eh.risks.mean()), X, LABELS, steps=1).report(tmp_path / "none.html")


def test_a_step_that_does_not_descend_is_not_taken() -> None:
    solver = quasi_newton(MODEL, eh.risks.mean())
    once = fit(solver, X, Y, steps=60)
    twice = fit(solver, X, Y, steps=60, after=once)
    np.testing.assert_array_equal(flat(once.params), flat(twice.params))
    # After a first one, the next step has the gradient alone, which may descend.
    missed = solver.init(MODEL.init(jax.random.key(0)), jnp.asarray(X), jnp.asarray(Y))._replace(missed=1)
    risks = [
        float(jnp.mean(MODEL.losses(MODEL.apply(state.params, jnp.asarray(X)), jnp.asarray(Y))))
        for state in (
            missed,
            solver.step(missed, jnp.asarray(X), jnp.asarray(Y), jnp.int32(0), jax.random.key(0)),
        )
    ]
    assert risks[1] < 0.9 * risks[0]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"y": Y[:-1]}, "one label per row"),
        ({"groups": GROUPS[:-1]}, "one group for each of 60 rows"),
        ({"groups": [None, *GROUPS[1:]]}, "misses a group"),
        ({"groups": np.where(np.arange(60) == 3, np.nan, 1.0)}, "misses a group"),
        ({"valid_fraction": 1.0}, "valid_fraction=1.0"),
        ({"patience": 3}, "give valid_fraction="),
        ({"optimiser": optax.sgd(0.1)}, "give steps="),
        ({"risk": lambda step: eh.risks.tilted(step)}, "needs an optimiser="),
        ({"risk": "tilted"}, "give a value such as eh.risks.tilted"),
        ({"eval_every": 0}, "eval_every"),
        ({"patience": 0, "valid_fraction": 0.2}, "patience"),
        ({"valid_fraction": 0.001}, "give a larger share"),
        ({"inner": eh.risks.mean()}, "give groups="),
        ({"risk": eh.risks.tilted}, "call it, as in"),
        ({"y": np.full(60, "good")}, "not an array of numbers"),
        (
            {"x": np.where(np.arange(60)[:, None] == 3, np.nan, X), "valid_fraction": 0.9},
            "loss of the initial model",
        ),
        ({"steps": -1}, "steps"),
        ({"x": X * np.nan}, "not finite"),
    ],
)
def test_faults_are_sentences(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(eh.EvenhandError, match=fault):
        fit(MODEL, **{"x": X, "y": Y, **arguments})
    solver = quasi_newton(MODEL, eh.risks.mean())
    with pytest.raises(eh.EvenhandError, match="has its own risk and optimiser"):
        fit(solver, X, Y, steps=1, risk=eh.risks.mean())


# --- the same as a method, on the examples of all clients ------------------------------------------------------------


def clients() -> eh.data.FederatedDataset:
    order = np.argsort(GROUPS, kind="stable")
    return eh.data.from_arrays(X[order], Y[order], GROUPS[order], test_fraction=0.2, seed=1)


def test_as_a_method_it_fits_the_pooled_examples_and_measures_each_client() -> None:
    data, risk = clients(), eh.risks.tilted(5.0)
    run = eh.simulate(method(MODEL, risk=risk), data, rounds=10, eval_every=10)
    alone = fit(MODEL, data.train.x, data.train.y, risk=risk)
    np.testing.assert_allclose(flat(run.params), flat(alone.params), atol=2e-3)
    assert run.client_metrics("train")["loss"].shape == (2,)
    rows = slice(*data.train.offsets[1:3])
    residuals = data.train.x[rows] @ flat(run.params)[:2] + flat(run.params)[2] - data.train.y[rows]
    assert run.client_metrics("train")["loss"][1] == pytest.approx(np.mean(residuals**2), rel=1e-4)
    assert run.last_round.tolist() == [10, 10]
    assert run.info["cohort"] == 1
    mean = eh.simulate(method(MODEL), data, rounds=10, eval_every=10)
    assert np.abs(flat(mean.params) - flat(run.params)).max() > 0.01


def test_as_a_method_an_inner_risk_is_over_the_classes() -> None:
    data = eh.data.from_arrays(X, LABELS, np.zeros(60), test_fraction=0.0)
    outer, inner = eh.risks.tilted(5.0), eh.risks.mean()
    run = eh.simulate(method(SOFTMAX, risk=outer, inner=inner), data, rounds=5, eval_every=5)
    alone = fit(SOFTMAX, X, LABELS, risk=outer, inner=inner, groups=LABELS)

    def value(params: Any) -> float:
        losses = np.asarray(losses_of(params), np.float64)
        means = [losses[label == LABELS].mean() for label in range(3)]
        return float(logsumexp(5.0 * np.array(means), b=np.bincount(LABELS) / 60) / 5.0)

    assert value(run.params) == pytest.approx(value(alone.params), abs=1e-4)
    assert value(run.params) < value(fit(SOFTMAX, X, LABELS).params) - 1e-3


def test_as_a_method_its_state_lives_on_from_round_to_round() -> None:
    data = eh.data.from_arrays(X, LABELS, np.zeros(60), test_fraction=0.0)
    # Adam's moments and the weighting's state: without them ten rounds of one step would not be one of ten.
    one = eh.simulate(method(SOFTMAX, learning_rate=0.1, steps=10), data, rounds=1)
    ten = eh.simulate(method(SOFTMAX, learning_rate=0.1, steps=1), data, rounds=10)
    np.testing.assert_allclose(flat(one.params), flat(ten.params), atol=1e-6)
    adam, state, params = optax.adam(0.1), None, SOFTMAX.init(jax.random.key(0))
    params = eh.simulate(method(SOFTMAX), data, rounds=0).params
    state = adam.init(params)
    for _ in range(10):
        gradient = jax.grad(lambda w: jnp.mean(losses_of(w)))(params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types inside
            updates, state = adam.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(flat(one.params), flat(params), atol=1e-5)


def test_as_a_method_its_steps_have_different_keys() -> None:
    def weigh(model: Any, state: Any, batch: Weighed) -> tuple[Any, Any]:
        number, keys = state
        return jnp.ones(batch.losses.shape), (number + 1, keys.at[number].set(jax.random.bits(batch.key)))

    recording = Weighting(lambda model, x, y: (0, jnp.zeros(3, jnp.uint32)), weigh, "recording")
    pooled, key = method(SOFTMAX, weighting=recording, steps=3), jax.random.key(0)
    assert pooled.pooled is not None
    x, y = jnp.asarray(X), jnp.asarray(LABELS)
    data = ClientData(x, y, jnp.int32(0), jnp.int32(60), jnp.float32(1.0), 60)
    params = SOFTMAX.init(key)
    _, state = pooled.phases[0].work(params, pooled.pooled(params, x, y), data, key)
    assert len(set(state.solver.weighting[1].tolist())) == 3


def test_as_a_method_it_takes_losses_weightings_and_batches() -> None:
    data = eh.data.from_arrays(X, LABELS, np.zeros(60), test_fraction=0.0)
    loss = focal(2.0)
    run = eh.simulate(method(SOFTMAX, loss=loss), data, rounds=5, eval_every=5)
    alone = fit(eh.models.with_loss(SOFTMAX, loss), X, LABELS)
    np.testing.assert_allclose(run.params["kernel"], alone.params["kernel"], atol=0.02)
    # Trained by the focal loss, it is judged by the model's own.
    own = losses_of(run.params).mean()
    assert run.history["train_loss"][-1] == pytest.approx(float(own), rel=1e-4)
    assert alone.history["train_loss"][-1] < 0.5 * float(own)
    calls = [
        "fit()",
        "fit(batch_size=8)",
        "fit(weighting=random_weights(), batch_size=8)",
        "fit(risk=superquantile(0.3), learning_rate=0.05)",
    ]
    work = eh.local.sgd(SOFTMAX, 0.1, epochs=1)
    ends = [
        flat(eh.simulate(eh.expressions.parse(text, eh.Algorithm, SOFTMAX, work), data, rounds=3).params)
        for text in calls
    ]
    assert all(np.abs(a - b).max() > 1e-3 for i, a in enumerate(ends) for b in ends[:i])


def test_a_share_of_all_examples_is_a_batch_of_so_many() -> None:
    data = clients()
    count = int(data.train.sizes.sum()) // 4
    methods = [method(MODEL, learning_rate=0.3, batch_size=size) for size in (0.25, count)]
    share, number = (flat(eh.simulate(kind, data, rounds=3).params) for kind in methods)
    np.testing.assert_array_equal(share, number)
    x, y = jnp.zeros((48, 2)), jnp.zeros(48)
    client = ClientData(x, y, jnp.int32(0), jnp.int32(48), jnp.float32(1.0), 48)
    efforts = [effort(client) for kind in methods if (effort := kind.phases[0].effort)]
    assert [int(effort.rows) for effort in efforts] == [10 * count] * 2
    with pytest.raises(eh.EvenhandError, match="or a share of all examples between 0 and 1"):
        method(MODEL, batch_size=1.5)


def test_a_pooled_method_takes_no_attack_and_resumes(tmp_path: Path) -> None:
    data = clients()
    with pytest.raises(eh.EvenhandError, match="trains on the pooled examples of all clients"):
        eh.simulate(method(MODEL), data, rounds=1, attack=eh.attacks.sign_flip(0.5))
    pooled = method(MODEL, learning_rate=0.1, batch_size=8)
    whole = eh.simulate(pooled, data, rounds=4, eval_every=2)
    for rounds in (2, 4):
        part = eh.simulate(pooled, data, rounds=rounds, eval_every=2, checkpoint=tmp_path)
    np.testing.assert_array_equal(flat(whole.params), flat(part.params))
    assert part.last_round.tolist() == [4, 4]
    with pytest.raises(eh.EvenhandError, match="give federated methods"):
        eh.algorithms.side_by_side({"a": pooled})
    with pytest.raises(eh.EvenhandError, match="both weigh examples"):
        method(MODEL, risk=eh.risks.tilted(1.0), weighting=eh.centralized.self_paced())


@pytest.mark.parametrize("kind", ["risk", "solver"])
def test_groups_to_measure_move_no_example_away_from_the_groups_to_train_by(kind: str) -> None:
    """A risk, or a solver, that has groups of its own: every fourth of forty labels is 1, and the others are 0.

    The worse of two groups' means of ``(c - y)^2`` is least at 0.5, where both are equal; the mean of all at 0.25.
    """
    member = (np.arange(40) % 4 == 0).astype(np.int32)
    model, x, y = (
        eh.models.linear_regression(features=1),
        np.ones((40, 1), np.float32),
        member.astype(np.float32),
    )
    risk = eh.risks.hierarchical(eh.risks.tilted(50.0), eh.risks.mean(), jnp.asarray(member), 2)
    solver = eh.centralized.batch(model, risk, optimiser=optax.sgd(0.05))
    if kind == "solver":
        how: dict[str, Any] = {
            "t": 20.0,
            "tau": 0.0,
            "rate": 0.5,
            "batch_size": 4,
            "optimiser": optax.sgd(0.02),
        }
        solver = eh.centralized.grouped(model, groups=member, **how)
    fits = [fit(solver, x, y, steps=3000, eval_every=3000, groups=groups) for groups in (None, member)]
    constants = [float(fitted.predict(x[:1])[0, 0]) for fitted in fits]
    assert constants[0] == constants[1] and constants[0] > 0.4
    # Each group is measured on its own examples: the losses are (c - 0)^2 and (c - 1)^2.
    loss, c = fits[1].by_group["train"]["loss"], constants[1]
    np.testing.assert_allclose(loss / loss[0], [1.0, (c - 1) ** 2 / c**2], rtol=1e-4)


def test_a_fit_in_two_parts_keeps_the_best_model_of_both() -> None:
    how: dict[str, Any] = {"optimiser": optax.sgd(0.3), "valid_fraction": 0.3, "eval_every": 1, "seed": 1}
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 5)).astype(np.float32), rng.normal(size=60).astype(np.float32)
    model = eh.models.linear_regression(features=5)
    whole, first = fit(model, x, y, steps=80, **how), fit(model, x, y, steps=40, **how)
    rest = fit(model, x, y, steps=40, after=first, **how)
    assert (
        first.history["valid_risk"].min() < rest.history["valid_risk"].min()
    )  # the best is in the first part
    np.testing.assert_array_equal(flat(rest.params), flat(whole.params))


def test_the_first_measurement_of_a_fit_that_goes_on_costs_no_patience() -> None:
    how: dict[str, Any] = {"optimiser": optax.sgd(0.01), "valid_fraction": 0.3, "eval_every": 1}
    first = fit(MODEL, X, Y, steps=2, **how)
    assert fit(MODEL, X, Y, steps=3, after=first, patience=1, **how).steps == 5


def test_a_fit_continues_by_the_same_solver_from_where_it_ended() -> None:
    begun = fit(MODEL, X, Y, steps=2, optimiser=optax.adam(0.1))
    with pytest.raises(eh.EvenhandError, match=r"fit\(params=\.\.\., after=\.\.\.\): .* leave params out"):
        fit(MODEL, X, Y, steps=2, optimiser=optax.adam(0.1), after=begun, params=begun.params)
    for other in (optax.sgd(0.1), None):
        with pytest.raises(eh.EvenhandError, match="the fit of another model, solver or optimiser"):
            fit(MODEL, X, Y, steps=2, optimiser=other, after=begun)
    assert fit(MODEL, X, Y, steps=2, optimiser=optax.adam(0.1), after=begun).steps == 4


def test_a_risk_over_classes_takes_the_scores_of_a_support_vector_machine() -> None:
    labels = (Y > 0).astype(np.int32)
    data = eh.data.from_arrays(X, labels, np.arange(60) % 3)
    of_classes = method(
        eh.models.svm(features=2), risk=eh.risks.tilted(5.0), inner=eh.risks.mean(), learning_rate=0.1
    )
    run = eh.simulate(of_classes, data, rounds=20)
    assert run.history["train_loss"][-1] < run.history["train_loss"][0]


@pytest.mark.parametrize("rate", [0.0, -1.0, np.nan, np.inf])
def test_a_learning_rate_is_a_finite_number_above_0(rate: float) -> None:
    data = eh.data.from_arrays(X, LABELS, np.arange(60) % 3)
    with pytest.raises(eh.EvenhandError, match=r"fit\(learning_rate=.*\): give a finite number above 0"):
        eh.simulate(method(SOFTMAX, learning_rate=rate), data, rounds=1)


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.sgd(optax.linear_schedule(0.0, 0.3, 20)),
        optax.MultiSteps(optax.sgd(0.3), 4).gradient_transformation(),
    ],
    ids=["a step size from 0", "accumulated gradients"],
)
def test_a_step_that_changes_nothing_does_not_end_a_fit(optimiser: Any) -> None:
    """It is measured after each step, and only a solver that says that it is done ends before ``steps``."""
    measured = fit(MODEL, X, Y, optimiser=optimiser, steps=60)
    unmeasured = fit(eh.centralized.batch(MODEL, eh.risks.mean(), optimiser=optimiser), X, Y, steps=60)
    assert measured.steps == 60
    assert np.array_equal(measured.params["kernel"], unmeasured.params["kernel"])
    assert float(jnp.abs(measured.params["kernel"]).max()) > 0.5


@pytest.mark.parametrize("seed", [-1, 1.5, 2**32])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(eh.EvenhandError, match=r"seed=.*whole number"):
        fit(MODEL, X, Y, steps=2, optimiser=optax.sgd(0.1), valid_fraction=0.5, seed=seed)
