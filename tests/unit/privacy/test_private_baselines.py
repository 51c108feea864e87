"""What private adaptive methods are compared with, against NumPy loops; what they promise, and what they do not."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from private_oracle import (
    CLIP,
    COMMON,
    KEYS,
    MODEL,
    NOISE,
    PUBLIC,
    RATE,
    ROUNDS,
    STEPS,
    X,
    Y,
    begin,
    client,
    descend,
    draws,
    examples,
    far,
    loop,
    mean_of,
    near,
    norms,
    promised,
    public_batch_gradient,
    public_gradient,
    same,
    trained,
    tree_map,
    zeros,
)

import evenhand as eh
from evenhand import local
from evenhand.errors import EvenhandError
from evenhand.privacy import Query
from evenhand.privacy.gaussian import with_gaussian
from evenhand.streams import Purpose, stream

P = eh.privacy
LR, EPS, TOTAL = 0.2, 0.1, ROUNDS * STEPS
SETTINGS = {"clip": CLIP, **COMMON}


def average(at, name, decay, value):
    old = at.kept.get(name, zeros())
    at.kept[name] = tree_map(lambda a, b: decay * a + (1 - decay) * b, old, value)
    return at.kept[name]


def square(g):
    return tree_map(lambda g: g * g, g)


def outside(v, eps=EPS):
    return tree_map(lambda v: np.sqrt(v) + eps, v)


def adam_step(w, m, v, t, b1, b2, eps, size):
    ratio = tree_map(lambda m, v: m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps), m, v)
    return descend(w, ratio, size)


def r_pub(w, ask, at):
    v = average(at, "v", 0.9, square(public_gradient(w)))
    return descend(w, tree_map(np.divide, ask(w, CLIP), outside(v)), LR)


def adam_pub(w, ask, at):
    hat = public_gradient(w)
    mixed = tree_map(lambda a, b: 0.8 * a + 0.2 * b, ask(w, CLIP), hat)
    m, v = average(at, "m", 0.7, mixed), average(at, "v", 0.95, square(hat))
    return adam_step(w, m, v, at.t + 1, 0.7, 0.95, 1e-3, LR)


def mirror(public):
    def step(w, ask, at):
        alpha = np.cos(np.pi * min(at.t, TOTAL) / (2 * TOTAL))
        return descend(w, tree_map(lambda a, b: alpha * a + (1 - alpha) * b, ask(w, CLIP), public(w, at)), LR)

    return step


def scaled(w, ask, at):
    scales = outside(at.kept.get("v", zeros()), 0.5)
    g = tree_map(np.multiply, ask(w, CLIP, scales), scales)
    m, v = average(at, "m", 0.9, g), average(at, "v", 0.99, square(g))
    return adam_step(w, m, v, at.t + 1, 0.9, 0.99, 1e-3, 0.1)


def clean(w, at):
    if not len(at.rows):
        return zeros()
    return mean_of(examples(w, X[at.rows], Y[at.rows]))


def ideal(w, ask, at):
    v = average(at, "v", 0.9, square(clean(w, at)))
    return descend(w, ask(w, CLIP, outside(v)), LR)


C2, RANK = 0.5, 3


def projected(rank, last=False):
    def step(w, ask, at):
        s = at.kept["s"] = tree_map(np.add, at.kept.get("s", zeros()), square(clean(w, at)))
        h = np.concatenate([np.sqrt(s[name]).ravel() for name in ("b", "w")])
        h = h * min(1.0, C2 / max(np.linalg.norm(h), 1e-30))
        normal = with_gaussian(stream(at.key, Purpose.NOISE), jax.tree.map(jnp.zeros_like, begin()), 1.0)
        h = h + NOISE * C2 * np.concatenate([np.ravel(normal[name]) for name in ("b", "w")])
        rows = examples(w, *PUBLIC)
        matrix = np.concatenate([rows["b"], rows["w"].reshape(len(rows["b"]), -1)], axis=1)
        vectors = np.linalg.eigh(matrix.T @ matrix)[1]  # ascending
        basis = vectors[:, :rank] if last else vectors[:, -rank:]
        h = basis @ (basis.T @ h) + 5.0
        scales = {"b": h[:3], "w": h[3:].reshape(4, 3)}
        return descend(w, tree_map(np.divide, ask(w, CLIP), scales), 1.0)

    return step


KNOWN = {"public": PUBLIC, **SETTINGS}
BETAS = {"betas": (0.8, 0.7, 0.95), "eps": 1e-3}
PROJECTED = {"clips": (CLIP, C2), "public": PUBLIC, "rank": RANK, "eps": 5.0, **COMMON}
CASES = {
    "dp_r_pub": (P.dp_r_pub(MODEL, LR, eps=EPS, **KNOWN), r_pub),
    "dp_adam_pub": (P.dp_adam_pub(MODEL, LR, **BETAS, **KNOWN), adam_pub),
    "pda_dpmd": (P.pda_dpmd(MODEL, LR, total_steps=TOTAL, **KNOWN), mirror(lambda w, at: public_gradient(w))),
    "pda_dpmd of batches": (
        P.pda_dpmd(MODEL, LR, total_steps=TOTAL, public_batch_size=4, **KNOWN),
        mirror(lambda w, at: public_batch_gradient(w, at.key, 4)),
    ),
    "scale_then_privatize": (
        P.scale_then_privatize(MODEL, 0.1, b2=0.99, eps=1e-3, scale_eps=0.5, **SETTINGS),
        scaled,
    ),
    "ideal_adadps": (P.ideal_adadps(MODEL, LR, eps=EPS, **SETTINGS), ideal),
    "projected_adagrad": (P.projected_adagrad(MODEL, 1.0, **PROJECTED), projected(RANK)),
}
PRIVATE = [name for name, (work, _) in CASES.items() if work.privacy is not None]


@cache
def result(name):
    return tree_map(np.asarray, trained(CASES[name][0])[0])


@pytest.mark.parametrize("name", CASES)
def test_it_is_its_loop(name):
    near(result(name), loop(CASES[name][1]), 5e-5)
    for other, (_, rival) in CASES.items():
        if other != name:
            far(result(name), loop(rival), 5e-4)


def test_the_projection_is_on_the_first_singular_vectors_not_the_last():
    far(result("projected_adagrad"), loop(projected(RANK, last=True)), 5e-4)
    far(result("projected_adagrad"), loop(projected(RANK - 1)), 5e-4)


# --- what they promise -----------------------------------------------------------------------------------------------


def test_those_with_one_query_a_step_promise_what_dp_sgd_does_and_the_others_nothing():
    assert set(CASES) - set(PRIVATE) == {"ideal_adadps", "projected_adagrad"}
    for name in PRIVATE:
        assert promised(CASES[name][0]).releases(7) == (eh.types.Release(NOISE, RATE, times=35),)


@pytest.mark.parametrize("name", PRIVATE)
def test_private_rules_keep_nothing_of_examples_but_answers(name):
    """Whatever the examples: where all answers are noise of the same keys, so is all that is kept."""
    make = {
        "dp_r_pub": lambda **c: P.dp_r_pub(MODEL, LR, eps=EPS, public=PUBLIC, **c),
        "dp_adam_pub": lambda **c: P.dp_adam_pub(MODEL, LR, public=PUBLIC, **BETAS, **c),
        "pda_dpmd": lambda **c: P.pda_dpmd(MODEL, LR, total_steps=TOTAL, public=PUBLIC, **c),
        "pda_dpmd of batches": lambda **c: P.pda_dpmd(MODEL, LR, total_steps=TOTAL, public=PUBLIC, **c),
        "scale_then_privatize": lambda **c: P.scale_then_privatize(MODEL, 0.1, **c),
    }[name]
    work = make(clip=1e-9, noise_multiplier=1e8, rate=RATE, steps=STEPS)
    one = trained(work, KEYS[:1])
    other = trained(work, KEYS[:1], client(X * 3.0 + 1.0, (Y + 1) % 3))
    close = jax.tree.map(lambda a, b: bool(np.allclose(a, b, atol=1e-4, rtol=1e-3)), one, other)
    assert jax.tree.all(close)


def test_methods_that_promise_nothing_run_in_one_place_only():
    data = eh.data.from_arrays(X, Y, client=np.zeros(len(Y)))
    for name in ("ideal_adadps", "projected_adagrad"):
        with pytest.raises(EvenhandError, match="alone"):
            eh.simulate(eh.algorithms.fedavg(CASES[name][0]), data, rounds=1)
    assert eh.algorithms.alone(CASES["ideal_adadps"][0]).privacy is None


def test_public_examples_are_no_part_of_a_private_query():
    assert "public" not in Query._fields


# --- mirror descent --------------------------------------------------------------------------------------------------


def test_the_private_share_falls_as_a_cosine_over_all_rounds():
    """Public gradients of 0 and private ones of -1: the model grows by the share."""
    line = MODEL._replace(
        init=lambda key: {"w": jnp.zeros(1)},
        apply=lambda params, x: params["w"][0] * x[:, 0],
        losses=lambda out, y: out,
    )
    public: Any = (np.zeros((3, 1), np.float32), np.zeros(3, np.int32))
    common = {"clip": 10.0, "noise_multiplier": 0.0, "rate": 1.0, "steps": 1}
    work = P.pda_dpmd(line, 1.0, public=public, total_steps=6, **common)
    continued = work.continued
    assert continued is not None
    data, params = client(-np.ones((4, 1), np.float32), np.zeros(4, np.int32)), line.init(KEYS[0])
    solve = jax.jit(lambda params, state, key: continued.solve(params, state, data, key))
    state, path = continued.init(params), [0.0]
    for _ in range(8):
        params, state = solve(params, state, KEYS[0])
        path.append(float(params["w"][0]))
    shares = np.diff(path)
    assert shares[0] == pytest.approx(1.0)
    assert shares[3] == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert shares[4] == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_allclose(shares[6:], 0.0, atol=1e-6)


def test_the_public_gradient_is_not_clipped():
    w = tree_map(lambda leaf: np.asarray(leaf, np.float64), begin())
    loud = (PUBLIC[0] * 20.0, PUBLIC[1])
    tiny = {"clip": 1e-3, "noise_multiplier": 0.0, "rate": RATE, "steps": 1}
    work = P.pda_dpmd(MODEL, 1.0, public=loud, total_steps=1, **tiny)
    continued = work.continued
    assert continued is not None
    state = continued.init(begin())
    data = client(X, Y)
    solve = jax.jit(lambda params, state, key: continued.solve(params, state, data, key))
    end = solve(begin(), (state[0], state[1] + 1), KEYS[0])[0]  # the last step is public alone
    g = mean_of(examples(w, *loud))
    assert norms(tree_map(lambda leaf: leaf[None], g))[0] > 1.0
    near(end, descend(w, g, 1.0), 1e-4)


# --- warm start ------------------------------------------------------------------------------------------------------


def test_a_warm_start_is_rmsprop_on_public_examples():
    rmsprop = optax.rmsprop(0.05, decay=0.9, eps=1e-3, eps_in_sqrt=False)
    warm = P.warm_start(MODEL, rmsprop, public=PUBLIC, epochs=3, batch_size=5)
    key = jax.random.key(1)
    w, v = tree_map(lambda leaf: np.asarray(leaf, np.float64), MODEL.init(key)), zeros()
    batch = local.batches(epochs=3, batch_size=5).draw(client(*PUBLIC), stream(key, Purpose.WORK))
    seen = []
    for i in range(9):
        rows = np.array(batch(jnp.int32(i)).positions)[np.array(batch(jnp.int32(i)).inside)]
        seen += rows.tolist()
        g = mean_of(examples(w, PUBLIC[0][rows], PUBLIC[1][rows]))
        v = tree_map(lambda v, g: 0.9 * v + 0.1 * g * g, v, g)
        w = descend(w, tree_map(lambda g, v: g / (np.sqrt(v) + 1e-3), g, v), 0.05)
    assert sorted(seen) == sorted(3 * list(range(12)))
    near(warm.init(key), w)
    assert same(warm.init(key), warm.init(key))
    assert warm.apply is MODEL.apply
    assert warm.losses is MODEL.losses


def test_private_training_goes_on_from_the_warm_start():
    warm = P.warm_start(MODEL, 0.1, public=PUBLIC, epochs=2, batch_size=None)
    still = P.dp_sgd(warm, 0.0, **SETTINGS)
    data = eh.data.from_arrays(X, Y, client=np.zeros(len(Y)))
    run = eh.simulate(eh.algorithms.alone(still), data, rounds=0)
    cold = eh.simulate(eh.algorithms.alone(P.dp_sgd(MODEL, 0.0, **SETTINGS)), data, rounds=0)
    w = tree_map(lambda leaf: np.asarray(leaf, np.float64), cold.params)
    for _ in range(2):
        w = descend(w, public_gradient(w), 0.1)
    near(run.params, w)
    assert promised(still).releases(3) == promised(P.dp_sgd(MODEL, 0.0, **SETTINGS)).releases(3)


def test_the_default_is_ten_epochs():
    ten = P.warm_start(MODEL, 0.1, public=PUBLIC)
    assert same(ten.init(KEYS[0]), P.warm_start(MODEL, 0.1, public=PUBLIC, epochs=10).init(KEYS[0]))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: P.pda_dpmd(MODEL, LR, total_steps=0, **KNOWN), "total_steps"),
        (lambda: P.dp_adam_pub(MODEL, LR, betas=(0.9, 1.0, 0.9), **KNOWN), "betas"),
        (lambda: P.dp_adam_pub(MODEL, LR, **{**KNOWN, "betas": (0.9, 0.9)}), "betas"),
        (lambda: P.dp_r_pub(MODEL, LR, eps=-1.0, **KNOWN), "eps"),
        (lambda: P.dp_r_pub(MODEL, LR, **{**KNOWN, "public": (PUBLIC[0], PUBLIC[1][1:])}), "as many inputs"),
        (lambda: P.scale_then_privatize(MODEL, LR, scale_eps=0.0, **SETTINGS), "eps"),
        (lambda: P.scale_then_privatize(MODEL, -1.0, **SETTINGS), "step"),
        (lambda: P.ideal_adadps(MODEL, LR, decay=2.0, **SETTINGS), "decay"),
        (lambda: P.projected_adagrad(MODEL, LR, **{**PROJECTED, "rank": 13}), "rank"),
        (lambda: P.projected_adagrad(MODEL, LR, **{**PROJECTED, "clips": (1.0, 0.0)}), "clips"),
        (lambda: P.warm_start(MODEL, 0.1, public=(PUBLIC[0][:0], PUBLIC[1][:0])), "at least one"),
    ],
)
def test_what_makes_no_sense_is_refused(make, match):
    with pytest.raises(EvenhandError, match=match):
        make()


def test_the_oracle_has_no_empty_batch_and_rows_of_both_rounds():
    assert all(len(draws(round_, i)[0]) for round_ in range(ROUNDS) for i in range(STEPS))
