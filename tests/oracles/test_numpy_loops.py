"""The methods against loops written in NumPy from the papers, sharing no code with the library.

Softmax regression, full batches, all clients, ragged sizes, 20 rounds.  With p = softmax(X W + b) and Y one-hot,
grad_W F_k = X'(p - Y) / n_k and grad_b F_k = mean(p - Y).  Everything in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import evenhand as eh
from evenhand import permutation
from evenhand.simulation._round import work_key

ROUNDS, STEPS, LR, MU = 20, 3, 0.2, 0.3
MODEL = eh.testing.toy_model()
DATA = eh.testing.toy_data()
SIZES = DATA.train.sizes
COMMON = {"client_opt": optax.sgd(LR), "epochs": STEPS, "batch_size": None}


def gradient(w, k):
    x, y = DATA.train.client(k)
    logits = x.astype(np.float64) @ w["w"] + w["b"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return {"w": x.T @ p / len(y), "b": p.mean(axis=0)}


def combine(function, *trees):
    return {name: function(*(t[name] for t in trees)) for name in ("w", "b")}


def average(trees, weights):
    share = np.asarray(weights, np.float64) / np.sum(weights)
    return combine(lambda *leaves: sum(s * leaf for s, leaf in zip(share, leaves, strict=True)), *trees)


def local(w0, k, extra):
    """STEPS full-batch steps with ``extra(w)`` added to the gradient; the last model and the mean raw gradient."""
    w, raw = w0, []
    for _ in range(STEPS):
        raw.append(gradient(w, k))
        w = combine(lambda p, g, e: p - LR * (g + e), w, raw[-1], extra(w))
    return w, average(raw, np.ones(STEPS))


def zero(w):
    return combine(np.zeros_like, w)


def fedavg(w):
    return average([local(w, k, zero)[0] for k in range(6)], SIZES)


def fedprox(w):
    return average(
        [local(w, k, lambda v: combine(lambda a, b: MU * (a - b), v, w))[0] for k in range(6)], SIZES
    )


def feddane(w):
    own = [gradient(w, k) for k in range(6)]
    g = average(own, SIZES)
    return average(
        [
            local(w, k, lambda v, k=k: combine(lambda a, b, c, d: a - b + MU * (c - d), g, own[k], v, w))[0]
            for k in range(6)
        ],
        SIZES,
    )


def scaffold_rounds(w):
    """Karimireddy et al., algorithm 1, option II: c_k+ = c_k - c + (w - w_k) / (S lr)."""
    c, controls = zero(w), [zero(w) for _ in range(6)]
    for _ in range(ROUNDS):
        models, changes = [], []
        for k in range(6):
            new, _ = local(w, k, lambda v, c=c, own=controls[k]: combine(np.subtract, c, own))
            control = combine(lambda ck, cc, a, b: ck - cc + (a - b) / (STEPS * LR), controls[k], c, w, new)
            models.append(new)
            changes.append(combine(np.subtract, control, controls[k]))
            controls[k] = control
        w = average(models, np.ones(6))
        c = combine(np.add, c, average(changes, np.ones(6)))
    return w


def repeat(one_round):
    def rounds(w):
        for _ in range(ROUNDS):
            w = one_round(w)
        return w

    return rounds


CASES = {
    "fedavg": (eh.algorithms.fedavg(MODEL, **COMMON), repeat(fedavg)),
    "fedprox": (eh.algorithms.fedprox(MODEL, mu=MU, **COMMON), repeat(fedprox)),
    "feddane": (eh.algorithms.feddane(MODEL, mu=MU, **COMMON), repeat(feddane)),
    "scaffold": (eh.algorithms.scaffold(MODEL, **COMMON), scaffold_rounds),
}


@pytest.fixture(scope="module")
def finals():
    """What each loop makes of the same start."""
    start = eh.simulate(CASES["fedavg"][0], DATA, rounds=0).params
    start = {name: np.array(leaf, np.float64) for name, leaf in start.items()}
    return {name: loop(start) for name, (_, loop) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_method_equals_its_numpy_loop(name, finals):
    run = eh.simulate(CASES[name][0], DATA, rounds=ROUNDS, eval_every=ROUNDS)
    for leaf in ("w", "b"):
        np.testing.assert_allclose(run.params[leaf], finals[name][leaf], atol=1e-6)
    for other in set(CASES) - {name}:
        assert np.max(np.abs(np.array(run.params["w"]) - finals[other]["w"])) > 1e-3, f"{name} is {other}."


def test_mini_batches_with_a_partial_last_one_equal_a_numpy_loop():
    """One epoch of batches of 4 in the library's own order: rows seen by index, means over each batch's own size."""
    run = eh.simulate(
        eh.algorithms.fedavg(MODEL, client_opt=optax.sgd(LR), epochs=1, batch_size=4), DATA, rounds=1, seed=3
    )
    start = eh.simulate(CASES["fedavg"][0], DATA, rounds=0, seed=3).params
    start = {name: np.array(leaf, np.float64) for name, leaf in start.items()}
    models = []
    for k, n in enumerate(SIZES):
        word = permutation.words(work_key(jax.random.key(3), 0, 0, jnp.int32(k)))
        order = np.array(permutation.permute(jnp.arange(n), jnp.int32(n), word, jnp.int32(0)))
        x, y = DATA.train.client(k)
        w = start
        for first in range(0, n, 4):
            rows = order[first : first + 4]
            logits = x[rows].astype(np.float64) @ w["w"] + w["b"]
            p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(3)[y[rows]]
            w = {"w": w["w"] - LR * x[rows].T @ p / len(rows), "b": w["b"] - LR * p.mean(axis=0)}
        models.append(w)
    expected = average(models, SIZES)
    np.testing.assert_allclose(run.params["w"], expected["w"], atol=1e-6)
