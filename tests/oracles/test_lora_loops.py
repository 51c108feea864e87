"""Low-rank factors in a federation: each round by hand in NumPy, from each client's own work.

Linear regression with full batches, so that gradients are products of matrices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import evenhand as eh
from evenhand import models

RNG = np.random.default_rng(11)
CLIENT = np.repeat(np.arange(4), (5, 12, 9, 20))
X: Any = RNG.normal(size=(46, 5)).astype(np.float32) + 0.5 * CLIENT[:, None].astype(np.float32)
TARGETS: Any = RNG.normal(size=(46, 3)).astype(np.float32) * (1 + CLIENT[:, None]).astype(np.float32)
DATA = eh.data.from_arrays(X, TARGETS, CLIENT, test_fraction=0.2)
LINE = models.linear_regression(5, outputs=3)
START: Any = {
    "kernel": RNG.normal(size=(5, 3)).astype(np.float32),
    "bias": RNG.normal(size=3).astype(np.float32),
}
ALPHA, RANK, RATE, STEPS, ROUNDS = 3.0, 2, 0.05, 4, 3
SCALE = ALPHA / RANK


class Weights(NamedTuple):
    """What is trained, in float64, and the residual."""

    a: Any
    b: Any
    bias: Any
    residual: Any = 0.0

    @property
    def whole(self) -> Any:
        """Outputs by inputs."""
        return START["kernel"].T + self.residual + SCALE * self.b @ self.a


def trained(w: Weights, k: int, *, train_a: bool, train_bias: bool) -> Weights:
    """A client's steps of gradient descent on the mean squared error of its examples and their components."""
    x, y = (np.asarray(part[CLIENTS[k]], np.float64) for part in (DATA.train.x, DATA.train.y))
    for _ in range(STEPS):
        errors = 2.0 * (x @ w.whole.T + w.bias - y) / y.size
        slope = errors.T @ x
        w = w._replace(
            a=w.a - RATE * SCALE * w.b.T @ slope if train_a else w.a,
            b=w.b - RATE * SCALE * slope @ w.a.T,
            bias=w.bias - RATE * errors.sum(axis=0) if train_bias else w.bias,
        )
    return w


CLIENTS = [slice(*DATA.train.offsets[k : k + 2]) for k in range(4)]
SHARES = np.diff(DATA.train.offsets) / len(DATA.train.x)


def mean(values: list[Any]) -> Any:
    return sum(p * value for p, value in zip(SHARES, values, strict=True))


def rounds(begin: Weights, *, exact: bool, train_a: bool = True, train_bias: bool = False) -> list[Any]:
    """``(weights after the round, mean of the clients' whole weights)`` for each round."""
    path, w = [], begin
    for _ in range(ROUNDS):
        own = [trained(w, k, train_a=train_a, train_bias=train_bias) for k in range(4)]
        a, b, bias = (mean([getattr(each, part) for each in own]) for part in ("a", "b", "bias"))
        products = mean([each.b @ each.a for each in own])
        residual = w.residual + SCALE * (products - b @ a) if exact else w.residual
        w = Weights(a, b, bias, residual)
        path.append((w, mean([each.whole for each in own])))
    return path


def model_of(**how: Any) -> eh.types.Model:
    return models.lora(LINE, START, rank=RANK, on="kernel", alpha=ALPHA, **how)


def begin_of(model: eh.types.Model) -> Weights:
    """Factors that are not zero, so that the first round already has products of both."""
    factors = model.init(jax.random.key(5))["kernel"]
    rng = np.random.default_rng(6)
    drawn = factors.get("a", rng.normal(size=(RANK, 5)))
    return Weights(
        np.asarray(drawn, np.float64), rng.normal(size=(3, RANK)), START["bias"].astype(np.float64)
    )


def params_of(w: Weights, *parts: str) -> Any:
    arrays = {"a": w.a, "b": w.b, "residual": w.residual + np.zeros((3, 5))}
    arrays["residual"] = arrays["residual"].T
    return {"kernel": {part: np.asarray(arrays[part], np.float32) for part in parts}}


def near(a: Any, b: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), b, rtol=tolerance, atol=tolerance)


@lru_cache(maxsize=4)
def exact_run(count: int, also: Any = ()) -> Any:
    model = model_of(also=also)
    work = eh.local.sgd(model, RATE, epochs=STEPS)
    method = eh.algorithms.fedex_lora(work)
    start = params_of(begin_of(model), "a", "b", "residual")
    start |= {"bias": START["bias"]} if also else {}
    return eh.simulate(method, DATA, rounds=count, start=start)


@pytest.mark.parametrize("count", range(1, ROUNDS + 1))
def test_fedex_lora_serves_the_mean_of_the_clients_weights(count: int) -> None:
    run, (w, weights) = exact_run(count), rounds(begin_of(model_of()), exact=True)[count - 1]
    near(models.thaw(run.algorithm.model, run.params)["kernel"], weights.T)
    near(run.params["kernel"]["residual"], w.residual.T)
    near(run.params["kernel"]["a"], w.a)
    near(run.params["kernel"]["b"], w.b)
    assert np.abs(w.residual).max() > 1e-2, "without it the test would be one of the mean of the factors"
    shown = np.linalg.norm(w.residual - rounds(begin_of(model_of()), exact=True)[count - 2][0].residual)
    if count > 1:
        near(run.per_round["residual_norm"][-1], shown, 1e-4)


def test_partial_work_is_kept_or_dropped_as_asked() -> None:
    work = eh.local.sgd(model_of(), RATE, epochs=STEPS)
    exact = eh.algorithms.fedex_lora
    assert [exact(work, keep_partial=keep).partial_work for keep in (True, False)] == [True, False]
    assert not exact(work).partial_work


def test_what_is_trained_in_full_is_averaged_beside() -> None:
    run = exact_run(2, "bias")
    w, weights = rounds(begin_of(model_of()), exact=True, train_bias=True)[1]
    near(run.params["bias"], w.bias)
    near(models.thaw(run.algorithm.model, run.params)["kernel"], weights.T)
    assert np.abs(w.bias - START["bias"]).max() > 0.1


def test_the_mean_of_the_factors_is_another_model() -> None:
    model = model_of()
    run = eh.simulate(
        eh.algorithms.fedavg(eh.local.sgd(model, RATE, epochs=STEPS)),
        DATA,
        rounds=1,
        start=params_of(begin_of(model), "a", "b"),
    )
    w, weights = rounds(begin_of(model), exact=False)[0]
    served = np.asarray(models.thaw(model, run.params)["kernel"])
    near(served, w.whole.T)
    assert np.abs(served - weights.T).max() > 1e-2


def test_with_a_shared_a_the_mean_of_b_is_exact() -> None:
    model = model_of(train="b", seed=3)
    fixed = np.asarray(model.apply.fixed["kernel"], np.float64)  # pyright: ignore[reportFunctionMemberAccess]
    begin = begin_of(model)._replace(a=fixed)
    work = eh.local.sgd(model, RATE, epochs=STEPS)
    run = eh.simulate(eh.algorithms.fedavg(work), DATA, rounds=ROUNDS, start=params_of(begin, "b"))
    w, weights = rounds(begin, exact=False, train_a=False)[-1]
    near(run.params["kernel"]["b"], w.b)
    near(models.thaw(model, run.params)["kernel"], weights.T)


def test_one_client_has_no_residual() -> None:
    alone = eh.data.from_arrays(X, TARGETS, np.zeros(46, np.int32), test_fraction=0.2)
    model = model_of()
    work, start = eh.local.sgd(model, RATE, epochs=STEPS), params_of(begin_of(model), "a", "b", "residual")
    run = eh.simulate(eh.algorithms.fedex_lora(work), alone, rounds=2, start=start)
    del start["kernel"]["residual"]
    plain = eh.simulate(eh.algorithms.fedavg(work), alone, rounds=2, start=start)
    near(run.params["kernel"]["residual"], 0.0, 1e-6)
    near(run.params["kernel"]["a"], plain.params["kernel"]["a"], 1e-6)
    near(run.params["kernel"]["b"], plain.params["kernel"]["b"], 1e-6)


def test_after_one_step_of_b_from_zero_exact_and_full_rank_descent_are_one() -> None:
    """With A orthogonal of full rank and B zero, a step of B is the step of the weights: B A = -rate s^2 slope A'A."""
    model = models.lora(LINE, START, rank=3, on="kernel", also="bias")
    q = np.linalg.qr(RNG.normal(size=(5, 5)))[0]
    start: Any = {
        "bias": START["bias"],
        "kernel": {
            "a": q[:3].astype(np.float32),
            "b": np.zeros((3, 3), np.float32),
            "residual": np.zeros((5, 3), np.float32),
        },
    }
    run = eh.simulate(
        eh.algorithms.fedex_lora(eh.local.sgd(model, RATE, epochs=1)), DATA, rounds=1, start=start
    )
    full = eh.simulate(eh.algorithms.fedavg(eh.local.sgd(LINE, RATE, epochs=1)), DATA, rounds=1, start=START)
    change, whole = (
        np.asarray(params["kernel"]) - START["kernel"]
        for params in (models.thaw(run.algorithm.model, run.params), full.params)
    )
    # The inputs' part in the span of A, all of it where A is square.
    near(change, q[:3].T @ q[:3] @ whole)
    assert np.abs(change - whole).max() > 1e-3
    near(run.params["bias"], full.params["bias"])


# --- what crosses the wire, and what is refused ---------------------------------------------------------------------


def test_traffic_is_counted_in_both_directions() -> None:
    def floats(model: eh.types.Model, method: Any) -> dict[str, int]:
        return eh.simulate(method(eh.local.sgd(model, RATE, epochs=1)), DATA, rounds=1).info["floats"]

    a, b, weight = RANK * 5, RANK * 3, 1
    fedavg, exact = eh.algorithms.fedavg, eh.algorithms.fedex_lora
    assert floats(model_of(), fedavg) == {"down": a + b, "up": a + b + weight}
    assert floats(model_of(), exact) == {"down": 5 * 3 + a + b, "up": a + b + weight}
    assert floats(model_of(train="b"), fedavg) == {"down": b, "up": b + weight}


def ditto_around(method: eh.types.Algorithm) -> eh.types.Algorithm:
    return eh.personalization.ditto(method, eh.local.sgd(method.model, 0.1, epochs=1), lam=0.5)


METHODS = {
    "both factors": lambda model, work: eh.algorithms.fedavg(work),
    "exact": lambda model, work: eh.algorithms.fedex_lora(work),
    "exact, partial work": lambda model, work: eh.algorithms.fedex_lora(work, keep_partial=True),
    "exact, ditto": lambda model, work: ditto_around(eh.algorithms.fedex_lora(work)),
    "secure": lambda model, work: eh.algorithms.fedavg(
        work, aggregator=eh.aggregators.secure(eh.aggregators.mean())
    ),
}


@lru_cache(maxsize=1)
def checks(name: str) -> dict[str, Any]:
    whole = eh.testing.toy_model()
    train = "b" if name == "secure" else "both"
    model = models.lora(whole, whole.init(jax.random.key(9)), rank=2, on="w", also="b", train=train)
    work = eh.local.sgd(model, 0.1, epochs=2, batch_size=4)
    systems = eh.systems.stragglers(0.5) if "partial" in name else None
    method = METHODS[name](model, work)
    listed = eh.testing.algorithm_checks(method, systems=systems, lanes=(2,), rounds=2)
    return {check.name: check for check in listed}


LAWS = [
    check.name
    for check in eh.testing.algorithm_checks(eh.algorithms.fedavg(eh.local.sgd(LINE, 0.1, epochs=1)))
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_methods_on_factors_obey_the_contract(name: str, law: str) -> None:
    if law not in checks(name):
        assert "partial" in name and "network" in law, "stragglers are simulated"
        return
    checks(name)[law]()


def test_work_on_a_model_with_residuals_is_work_on_its_factors() -> None:
    model = model_of()
    method = eh.algorithms.fedex_lora(eh.local.sgd(model, RATE, epochs=STEPS))
    again = eh.algorithms.fedex_lora(eh.local.sgd(method.model, RATE, epochs=STEPS))
    assert again.model is method.model
    runs = [eh.simulate(each, DATA, rounds=2, seed=1) for each in (method, again)]
    jax.tree.map(np.testing.assert_array_equal, runs[0].params, runs[1].params)
    # Averaged as any other parameters, residuals have no gradient.
    averaging = eh.algorithms.fedavg(eh.local.sgd(method.model, RATE, epochs=STEPS))
    plain = eh.simulate(averaging, DATA, rounds=2, seed=1)
    assert not np.any(plain.params["kernel"]["residual"]) and np.any(plain.params["kernel"]["b"])
    tuned = eh.personalization.finetune(method, eh.local.sgd(method.model, RATE, epochs=1))
    run = eh.simulate(tuned, DATA, rounds=2, seed=1)
    jax.tree.map(np.testing.assert_array_equal, run.params, runs[0].params)


def test_models_and_work_that_have_no_exact_mean_are_refused() -> None:
    def refused(model: eh.types.Model, words: str, **how: Any) -> None:
        with pytest.raises(eh.EvenhandError, match=words):
            eh.algorithms.fedex_lora(eh.local.sgd(model, 0.1, epochs=1, **how))

    refused(LINE, r"fedex_lora: linear_regression.* has no low-rank factors.*eh\.models\.lora")
    refused(
        model_of(train="b"), "only the factors B are trained, so the mean of the factors is exact: use fedavg"
    )
    frozen = models.freeze(model_of(also="bias"), model_of(also="bias").init(jax.random.key(0)), "bias")
    refused(frozen, "was frozen after it got them")
    refused(model_of(), "has keep_optimiser=True", keep_optimiser=True)
    private = eh.privacy.dp_sgd(model_of(), 0.1, clip=1.0, noise_multiplier=1.0, rate=0.5, steps=2)
    with pytest.raises(eh.EvenhandError, match=r'guarantees privacy, but .*train="b"'):
        eh.algorithms.fedex_lora(private)
    with pytest.raises(eh.EvenhandError, match="work="):
        eh.algorithms.fedex_lora(LINE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(eh.EvenhandError, match="sampling="):
        eh.algorithms.fedex_lora(eh.local.sgd(model_of(), 0.1, epochs=1), sampling=0.5)  # pyright: ignore[reportArgumentType]
