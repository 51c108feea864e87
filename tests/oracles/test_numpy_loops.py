"""The methods against loops written in NumPy from the papers, sharing no code with the library.

Softmax regression, full batches, all clients or three of six, ragged sizes, 20 rounds.  With p = softmax(X W + b) and
Y one-hot, grad_W F_k = X'(p - Y) / n_k and grad_b F_k = mean(p - Y).  Everything is in float64.  The only
thing that the loops take from the library is which clients are drawn.
"""

from functools import cache, partial

import jax.numpy as jnp
import numpy as np
import pytest
from softmax_oracle import DATA, MODEL, SIZES, average, combine, gradient

import evenhand as eh
from evenhand import streams
from evenhand.rounds import cohort, work_key
from evenhand.streams import keys_of

ROUNDS, STEPS, LR, MU = 20, 3, 0.2, 0.3
COMMON = eh.local.sgd(MODEL, LR, epochs=STEPS)


def local(w0, k, extra):
    """STEPS full-batch steps with ``extra(w)`` added to the gradient; the last model and the mean raw gradient."""
    w, raw = w0, []
    for _ in range(STEPS):
        raw.append(gradient(w, k))
        w = combine(lambda p, g, e: p - LR * (g + e), w, raw[-1], extra(w))
    return w, average(raw, np.ones(STEPS))


def zero(w):
    return combine(np.zeros_like, w)


def fedavg(w, drawn):
    return average([local(w, k, zero)[0] for k in drawn[-1]], SIZES[drawn[-1]])


def fedprox(w, drawn):
    models = [local(w, k, lambda v: combine(lambda a, b: MU * (a - b), v, w))[0] for k in drawn[-1]]
    return average(models, SIZES[drawn[-1]])


def feddane(w, drawn):
    """``drawn``: the clients whose gradients are collected, and those that train."""
    collect, train = drawn
    g = average([gradient(w, k) for k in collect], SIZES[collect])

    def extra(v, g_k):
        return combine(lambda a, b, c, d: a - b + MU * (c - d), g, g_k, v, w)

    models = [local(w, k, partial(extra, g_k=gradient(w, k)))[0] for k in train]
    return average(models, SIZES[train])


def repeat(one_round):
    def rounds(w, draws):
        for drawn in draws:
            w = one_round(w, drawn)
        return w

    return rounds


def scaffold(w, draws, share=None):
    """Karimireddy et al., algorithm 1, option II: c_k+ = c_k - c + (w - w_k) / (S lr), c += |S| / N mean(c_k+ - c_k).

    ``share`` stands in for |S| / N.
    """
    c, controls = zero(w), [zero(w) for _ in SIZES]
    for (drawn,) in draws:
        models, changes = [], []
        for k in drawn:
            new, _ = local(w, k, lambda v, c=c, c_k=controls[k]: combine(np.subtract, c, c_k))
            control = combine(lambda ck, cc, a, b: ck - cc + (a - b) / (STEPS * LR), controls[k], c, w, new)
            models.append(new)
            changes.append(combine(np.subtract, control, controls[k]))
            controls[k] = control
        w = average(models, np.ones(len(drawn)))
        change = average(changes, np.ones(len(drawn)))
        factor = len(drawn) / len(SIZES) if share is None else share
        c = combine(lambda old, new, factor=factor: old + factor * new, c, change)
    return w


CASES = {
    "fedavg": (eh.algorithms.fedavg(COMMON), repeat(fedavg)),
    "fedprox": (eh.algorithms.fedprox(COMMON, mu=MU), repeat(fedprox)),
    "feddane": (eh.algorithms.feddane(COMMON, mu=MU), repeat(feddane)),
    "feddane, same cohort": (
        eh.algorithms.feddane(COMMON, mu=MU, fresh_cohort=False),
        repeat(feddane),
    ),
    "scaffold": (eh.algorithms.scaffold(COMMON), scaffold),
}


def begin(seed):
    start = eh.simulate(CASES["fedavg"][0], DATA, rounds=0, seed=seed).params
    return {name: np.array(leaf, np.float64) for name, leaf in start.items()}


def draws(method, count):
    """The clients of each phase of each round, as the library draws them."""
    sizes, keys = jnp.asarray(SIZES, jnp.int32), keys_of(0)
    return [
        [
            np.array(cohort(method, None, sizes, count, keys, number, phase).ids)
            for phase in range(len(method.phases))
        ]
        for number in range(ROUNDS)
    ]


@cache
def final(name, count):
    """What the loop ends with from the common start."""
    method, loop = CASES[name]
    return loop(begin(0), draws(method, count))


def far(a, b):
    return max(np.max(np.abs(np.array(a[leaf]) - np.array(b[leaf]))) for leaf in ("w", "b")) > 1e-3


@pytest.mark.parametrize("count", [6, 3])
@pytest.mark.parametrize("name", CASES)
def test_method_equals_its_numpy_loop(name, count):
    run = eh.simulate(CASES[name][0], DATA, rounds=ROUNDS, cohort=count, eval_every=ROUNDS)
    expected = final(name, count)
    for leaf in ("w", "b"):
        np.testing.assert_allclose(run.params[leaf], expected[leaf], atol=1e-6)
    for other in set(CASES) - {name}:
        same = (
            count == 6 and "feddane" in name and "feddane" in other
        )  # two draws of all clients are the same
        assert far(run.params, final(other, count)) != same, f"{name} is {other}."
    assert far(run.params, final(name, 9 - count)), "who takes part matters"


def test_three_different_clients_of_six_are_drawn_and_feddane_draws_twice():
    for name, (method, _) in CASES.items():
        for drawn in draws(method, 3):
            assert all(len(set(ids.tolist())) == 3 for ids in drawn)
        differ = [set(drawn[0]) != set(drawn[-1]) for drawn in draws(method, 3)]
        assert any(differ) == (name == "feddane")
    assert all(ids.tolist() == list(range(6)) for drawn in draws(CASES["feddane"][0], 6) for ids in drawn)


def test_the_share_of_clients_in_scaffolds_control_variate_counts():
    six, three = (draws(CASES["scaffold"][0], count) for count in (6, 3))
    assert far(scaffold(begin(0), three, share=1.0), final("scaffold", 3))
    assert not far(scaffold(begin(0), six, share=1.0), final("scaffold", 6)), "the share of all clients is 1"


def test_mini_batches_with_a_partial_last_one_equal_a_numpy_loop():
    """One epoch of batches of 4 in the library's own order: rows seen by index, means over each batch's own size."""
    run = eh.simulate(
        eh.algorithms.fedavg(eh.local.sgd(MODEL, LR, epochs=1, batch_size=4)), DATA, rounds=1, seed=3
    )
    start, models = begin(3), []
    for k, n in enumerate(SIZES):
        word = streams.permutation_words(work_key(keys_of(3), 0, 0, jnp.int32(k)))
        order = np.array(streams.permute(jnp.arange(n), jnp.int32(n), word, jnp.int32(0)))
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
