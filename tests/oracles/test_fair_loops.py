"""The fair methods against loops written in NumPy and SciPy from the papers, in float64."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy.optimize import linprog
from softmax_oracle import DATA, MODEL, SIZES, average, combine, gradient, loss

import evenhand as eh
from evenhand.streams import Purpose, stream

ROUNDS, LR, CLIENTS = 20, 0.2, range(len(SIZES))
WORK = eh.local.sgd(MODEL, LR, epochs=1)
EQUAL_WEIGHTS = eh.sampling.uniform(weighted=False)


def begin():
    params = MODEL.init(stream(jax.random.key(0), Purpose.INIT))
    return {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in tree.values()))


def step(w, direction, size=1.0):
    return combine(lambda a, d: a - size * d, w, direction)


def total(trees):
    return combine(lambda *leaves: sum(leaves), *trees)


def scaled(factor, tree):
    return {name: factor * leaf for name, leaf in tree.items()}


def assert_agree(method, expected, tolerance=1e-6):
    run = eh.simulate(method, DATA, rounds=ROUNDS)
    for name, leaf in expected.items():
        np.testing.assert_allclose(
            run.params[name], leaf, rtol=0, atol=tolerance * max(1, np.abs(leaf).max())
        )
    return run


def assert_unlike(a, b):
    assert max(np.abs(a[name] - b[name]).max() for name in a) > 1e-3


def q_fedavg(q, lipschitz, weights, scales=(1,) * 6):
    """Algorithm 4: Delta_k = F^q g_k, h_k = q F^(q-1) |g_k|^2 + L F^q with g_k = L (w - w_k), of scaled losses F."""
    w = begin()
    for _ in range(ROUNDS):
        numerator, denominator = [], 0.0
        for k in CLIENTS:
            local = step(w, gradient(w, k), LR)
            g = scaled(lipschitz, combine(np.subtract, w, local))
            f = scales[k] * loss(w, k) + 1e-10
            numerator.append(scaled(weights[k] * f**q, g))
            denominator += weights[k] * (q * f ** (q - 1) * norm(g) ** 2 + lipschitz * f**q)
        w = step(w, total(numerator), 1 / denominator)
    return w


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
def test_q_fedavg_and_q_fedsgd_equal_algorithm_four(q):
    expected = q_fedavg(q, 1 / LR, np.ones(6))
    assert_agree(eh.algorithms.qfedavg(WORK, q=q, lipschitz=1 / LR, sampling=EQUAL_WEIGHTS), expected)
    assert_agree(eh.algorithms.qfedsgd(MODEL, q=q, lipschitz=1 / LR), expected)
    larger_q = q_fedavg(q + 0.3, 1 / LR, np.ones(6))
    assert max(np.abs(expected[name] - larger_q[name]).max() for name in larger_q) > 1e-3


def test_q_fedavg_weights_both_sums_by_examples_where_the_sampling_does():
    expected = q_fedavg(1.0, 2.0, SIZES)
    assert_agree(eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=2.0, sampling=eh.sampling.uniform()), expected)
    assert_unlike(expected, q_fedavg(1.0, 2.0, np.ones(6)))


def test_q_fedavgs_summed_losses_are_means_times_numbers_of_examples():
    expected = q_fedavg(1.0, 2.0, np.ones(6), SIZES)
    method = eh.algorithms.qfedavg(WORK, q=1.0, lipschitz=2.0, summed=True, sampling=EQUAL_WEIGHTS)
    assert_agree(method, expected)
    assert_unlike(expected, q_fedavg(1.0, 2.0, np.ones(6)))
    assert_unlike(expected, q_fedavg(1.0, 2.0, SIZES))


def test_q_fedsgd_with_a_fixed_step_follows_the_objectives_gradient():
    """w - eta mean(F^q grad F): the baseline FedSGD."""
    w = begin()
    for _ in range(ROUNDS):
        w = step(w, average([scaled(loss(w, k) ** 2, gradient(w, k)) for k in CLIENTS], np.ones(6)), 0.03)
    assert_agree(eh.algorithms.qfedsgd(MODEL, q=2.0, step_size=0.03), w)
    assert_unlike(w, q_fedavg(2.0, 1 / LR, np.ones(6)))


def project(y):
    """The projection onto the simplex by bisection on the shift, which the library does not use."""
    low, high = y.min() - 1.0, y.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(y - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(y - low, 0)


def test_afl_equals_its_loop():
    """Simultaneous descent and ascent, and the running average of the iterates, which is what is evaluated."""
    w, mixture, iterates = begin(), np.full(6, 1 / 6), []
    for _ in range(ROUNDS):
        losses = np.array([loss(w, k) for k in CLIENTS])
        w = step(w, average([gradient(w, k) for k in CLIENTS], mixture), LR)
        mixture = project(mixture + 0.05 * losses)
        iterates.append(w)
    mean = average(iterates, np.ones(ROUNDS))
    run = assert_agree(eh.algorithms.afl(MODEL, gamma_w=LR, gamma_lambda=0.05), mean)
    np.testing.assert_allclose(run.state.aggregators[0], mixture, atol=1e-6)
    assert np.abs(mean["w"] - w["w"]).max() > 1e-2, "the last iterate is another model"
    assert np.abs(mixture - 1 / 6).max() > 0.05


@pytest.mark.parametrize("theta", [0.3, 0.5, 0.8])
def test_delta_fl_equals_a_loop_whose_weights_a_linear_programme_finds(theta):
    """max pi F subject to 0 <= pi <= p / theta, sum pi = 1; p in proportion to numbers of examples."""
    p, w = SIZES / SIZES.sum(), begin()
    for _ in range(ROUNDS):
        losses = np.array([loss(w, k) for k in CLIENTS])
        caps = [(0, share / theta) for share in p]
        pi = linprog(-losses, A_eq=np.ones((1, 6)), b_eq=[1], bounds=caps).x
        w = step(w, average([gradient(w, k) for k in CLIENTS], pi), LR)
    assert_agree(eh.algorithms.delta_fl(WORK, theta=theta), w)
    assert_unlike(w, term(0.0, "cohort"))


def term(t, mode, rate=0.5):
    """TERM with one of three normalisers; the reference divides by K twice, and its running average starts at 0."""
    p, w = SIZES / SIZES.sum(), begin()
    running: Any = None if mode == "running" else 0.0
    for _ in range(ROUNDS):
        f = np.array([loss(w, k) for k in CLIENTS])
        if mode == "cohort":
            weights = p * np.exp(t * f) / np.sum(p * np.exp(t * f))
        elif mode == "running":
            normaliser = np.sum(p * np.exp(t * f))
            running = normaliser if running is None else (1 - rate) * running + rate * normaliser
            weights = p * np.exp(t * f) / running
        else:
            powers = np.exp(t * (f - f.max()))
            running = (1 - rate) * running + rate * powers.mean()
            weights = powers / (6 * running) / 6
        w = step(w, total([scaled(a, gradient(w, k)) for k, a in zip(CLIENTS, weights, strict=True)]), LR)
    return w


@pytest.mark.parametrize("t", [2.0, -1.0])
@pytest.mark.parametrize("mode", ["cohort", "running", "reference"])
def test_term_equals_its_loop_with_every_normaliser(t, mode):
    expected = term(t, mode)
    options = {"cohort": {}, "running": {"running": 0.5}, "reference": {"reference": True}}[mode]
    assert_agree(eh.algorithms.term(WORK, t=t, **options), expected, 2e-6)
    others = [term(t, other) for other in ("cohort", "running", "reference") if other != mode]
    assert all(np.abs(expected["w"] - other["w"]).max() > 1e-3 for other in others)


def test_terms_summed_losses_are_means_times_numbers_of_examples():
    """Tilting sums by t is tilting means by t n_k: the tilt of the largest client is 17 t."""
    w, p = begin(), SIZES / SIZES.sum()
    for _ in range(ROUNDS):
        powers = p * np.exp(0.05 * SIZES * np.array([loss(w, k) for k in CLIENTS]))
        w = step(w, average([gradient(w, k) for k in CLIENTS], powers), LR)
    assert_agree(eh.algorithms.term(WORK, t=0.05, summed=True), w)
    assert_unlike(w, term(0.05, "cohort"))


def test_q_maml_equals_its_loop():
    """First-order: the gradient after an inner step on the first half of the rows, at the other half."""
    rows = {k: DATA.train.client(k) for k in CLIENTS}

    def part(w, k, chosen):
        x, y = rows[k][0][chosen].astype(np.float64), rows[k][1][chosen]
        logits = x @ w["w"] + w["b"]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        value = -np.mean(np.log(p[np.arange(len(y)), y]))
        p[np.arange(len(y)), y] -= 1
        return value, {"w": x.T @ p / len(y), "b": p.mean(axis=0)}

    def loop(adapt):
        w = begin()
        for _ in range(ROUNDS):
            numerator, denominator = [], 0.0
            for k in CLIENTS:
                half = max(SIZES[k] // 2, 1)
                support, query = (slice(0, half), slice(half, None)) if SIZES[k] > 1 else (slice(None),) * 2
                inner = step(w, part(w, k, support)[1], LR) if adapt else w
                f, g = part(inner, k, query)
                f += 1e-10
                numerator.append(scaled(f, g))
                denominator += norm(g) ** 2 + f / LR
            w = step(w, total(numerator), 1 / denominator)
        return w

    adapted, plain = loop(True), loop(False)
    run = assert_agree(eh.algorithms.qmaml(MODEL, q=1.0, step_size=LR, sampling=EQUAL_WEIGHTS), adapted)
    for k in CLIENTS:
        personal = adapted
        for _ in range(5):
            personal = step(personal, part(personal, k, slice(0, max(SIZES[k] // 2, 1)))[1], LR)
        served = run.personal_params(k)
        assert max(np.abs(served[name] - personal[name]).max() for name in personal) < 1e-5
        assert_unlike(served, adapted)
        assert run.client_metrics("train")["loss"][k] == pytest.approx(loss(personal, k), rel=1e-5)
        assert run.client_metrics("train")["global_loss"][k] == pytest.approx(loss(adapted, k), rel=1e-5)
    run = assert_agree(
        eh.algorithms.qmaml(MODEL, q=1.0, step_size=LR, adapt=False, sampling=EQUAL_WEIGHTS), plain
    )
    assert_unlike(run.personal_params(0), plain)
    assert np.abs(adapted["w"] - plain["w"]).max() > 1e-3
