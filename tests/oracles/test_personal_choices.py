"""Methods in which clients choose, or a coin does, against NumPy loops: Ditto with dynamic penalties, and L2GD.

As in test_personal_loops: full batches, three of six clients in each of ten rounds, float64.
"""

import itertools
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from personal_oracle import (
    COUNT,
    GLOBAL,
    LR,
    ROUNDS,
    WORK,
    averaged,
    begin,
    distance,
    drawn,
    plus,
    pull,
    scaled,
    steps,
)
from softmax_oracle import DATA, MODEL, SIZES, accuracy, combine, gradient, loss

import evenhand as eh
from evenhand.types import ClientData

P = eh.personalization
FEW, SHARE = 3, 0.3


def candidates(k, lams, few_lam):
    """The examples to train on, those held out, and the penalties; some clients have few of the latter, others not."""
    held = min(math.ceil(SHARE * SIZES[k]), SIZES[k] - 1)
    rest, valid = slice(0, SIZES[k] - held), slice(SIZES[k] - held, None)
    return rest, valid, (few_lam,) if held < FEW else lams


def by_step(lams, few_lam):
    def one_round(w, own, clients):
        for k in clients:
            rest, valid, penalties = candidates(k, lams, few_lam)
            for _ in range(3):
                g = gradient(own[k], k, rest)
                tried = [
                    combine(lambda v, g: v - LR * g, own[k], plus(g, pull(own[k], w, lam)))
                    for lam in penalties
                ]
                own[k] = (
                    tried[0]
                    if len(tried) == 1
                    else min(tried, key=lambda v, k=k, valid=valid: loss(v, k, valid))
                )
        return averaged(w, clients)

    return one_round, lambda own: own


def by_run(lams, few_lam):
    def one_round(w, own, clients):
        for k in clients:
            rest, valid, penalties = candidates(k, lams, few_lam)
            kept = own[k]["models"] if "models" in own[k] else [own[k]] * len(lams)
            penalties = penalties * (len(lams) if len(penalties) == 1 else 1)
            kept = [
                steps(v, lambda v, k=k, lam=lam, rest=rest: plus(gradient(v, k, rest), pull(v, w, lam)))
                for v, lam in zip(kept, penalties, strict=True)
            ]
            some = range(SIZES[k])[valid]
            ranks = [(-accuracy(v, k, some), loss(v, k, some)) if some else (0, 0) for v in kept]
            own[k] = {"models": kept, "best": kept[min(range(len(kept)), key=ranks.__getitem__)]}
        return averaged(w, clients)

    return one_round, lambda own: own.get("best", own)


NOT_STRONG, STRONG = ((0.1, 1.0, 2.0), 1.0), ((0.05, 0.1, 0.2), 0.1)
CHOICES = {
    "weak": ({}, by_step(*NOT_STRONG)),
    "strong": ({"strong_attack": True}, by_step(*STRONG)),
    "given": ({"lams": (3.0, 0.0), "few_lam": 0.4}, by_step((0.0, 3.0), 0.4)),
    "per run": ({"per_run": True}, by_run(*NOT_STRONG)),
    "per run, given": (
        {"per_run": True, "lams": (3.0, 0.0), "few_lam": 0.4},
        by_run((0.0, 3.0), 0.4),
    ),
}


def final(one_round, serve):
    w, own = begin(), [begin() for _ in SIZES]
    for clients in drawn():
        w = one_round(w, own, clients)
    return w, [serve(each) for each in own]


@pytest.mark.parametrize("name", CHOICES)
def test_dynamic_ditto_equals_its_numpy_loop(name):
    held = [math.ceil(SHARE * size) for size in SIZES]
    assert min(held) < FEW <= max(held)
    arguments, loop = CHOICES[name]
    method = P.dynamic_ditto(GLOBAL, WORK, **arguments, few=FEW, held_out=SHARE)
    run = eh.simulate(method, DATA, rounds=ROUNDS, cohort=COUNT, eval_every=ROUNDS)
    assert distance(run, final(*loop)) < 2e-6
    for other in set(CHOICES) - {name}:
        assert distance(run, final(*CHOICES[other][1])) > 1e-4, other


def test_a_share_of_the_examples_is_held_out_exactly():
    """In float32, 0.3 * 50 is a little above 15."""
    method = P.dynamic_ditto(GLOBAL, WORK, held_out=0.3)
    x, y = jnp.zeros((50, *DATA.train.x.shape[1:])), jnp.zeros(50, DATA.train.y.dtype)
    data = ClientData(x, y, jnp.int32(0), jnp.int32(50), jnp.float32(1.0), 50)
    rest, counted = data._replace(size=jnp.int32(35)), method.phases[-1].effort
    assert counted is not None
    assert int(counted(data).rows) == int(WORK.effort(data).rows + WORK.effort(rest).rows)


def test_dynamic_ditto_with_one_candidate_and_nothing_held_out_is_ditto():
    few = eh.local.sgd(MODEL, LR, steps=3, batch_size=2)
    for work, per_run in itertools.product((WORK, few), (False, True)):
        method = P.dynamic_ditto(GLOBAL, work, lams=(0.7,), few_lam=0.7, held_out=0.0, per_run=per_run)
        chosen = eh.simulate(method, DATA, rounds=3, cohort=COUNT, eval_every=3)
        fixed, other = (
            eh.simulate(P.ditto(GLOBAL, work, lam=lam), DATA, rounds=3, cohort=COUNT, eval_every=3)
            for lam in (0.7, 0.9)
        )
        for k in range(len(SIZES)):
            np.testing.assert_allclose(
                chosen.personal_params(k)["w"], fixed.personal_params(k)["w"], atol=1e-6
            )
        assert any(
            np.abs(chosen.personal_params(k)["w"] - other.personal_params(k)["w"]).max() > 1e-4
            for k in range(len(SIZES))
        )


def test_ties_go_to_the_smallest_penalty():
    """With nothing held out, all candidates are equally good."""

    def personal(*lams):
        method = P.dynamic_ditto(GLOBAL, WORK, lams=lams, few=0, held_out=0.0, per_run=True)
        result = eh.simulate(method, DATA, rounds=3, cohort=COUNT, eval_every=3)
        return np.stack([result.personal_params(k)["w"] for k in range(len(SIZES))])

    np.testing.assert_allclose(personal(2.0, 0.1), personal(0.1), atol=1e-6)
    assert np.abs(personal(0.1) - personal(2.0)).max() > 1e-3


@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")  # it is meant to diverge
def test_a_step_whose_candidates_all_diverge_is_not_taken():
    rows = DATA.train
    x = np.array(rows.x)
    third = slice(rows.offsets[3], rows.offsets[3] + SIZES[3])
    x[third] = 1e30
    broken = replace(DATA, train=rows._replace(x=x))
    method = P.dynamic_ditto(GLOBAL, WORK, few=0)
    # Its uploads are rejected, so that it counts as never trained.
    run = eh.simulate(method, broken, rounds=2, eval_every=2, untrained="initial")
    start = begin()
    np.testing.assert_array_equal(run.personal_params(3)["w"], np.float32(start["w"]))
    assert np.abs(run.personal_params(1)["w"] - start["w"]).max() > 1e-3


def test_l2gd_equals_its_numpy_loop():
    """Hanzely and Richtarik, Algorithm 1: by the coin, x_k -= a / (n (1 - p)) grad F_k(x_k), or
    x_k -= a lam / (n p) (x_k - mean(x)); the coin is the library's."""
    n, lam, p, size = len(SIZES), 0.7, 0.4, 0.9
    method = P.l2gd(MODEL, lam=lam, p=p, step_size=size)
    models, flips = [begin() for _ in SIZES], []
    for number in range(ROUNDS):
        heads = bool(eh.simulate(method, DATA, rounds=number, eval_every=ROUNDS).state.server.extra.heads)
        flips.append(heads)
        mean = scaled(1 / n, plus(*models))
        models = [
            combine(lambda v, d: v - d, v, pull(v, mean, size * lam / (n * p)))
            if heads
            else combine(lambda v, g: v - size / (n * (1 - p)) * g, v, gradient(v, k))
            for k, v in enumerate(models)
        ]
    run = eh.simulate(method, DATA, rounds=ROUNDS, eval_every=ROUNDS)
    assert distance(run, (scaled(1 / n, plus(*models)), models)) < 2e-6
    assert 2 <= sum(flips) <= ROUNDS - 2
    assert not flips[0]  # all models are equal then: their mean tells nothing
    last = bool(run.state.server.extra.heads)
    rising = [now and not then for then, now in zip(flips, [*flips[1:], last], strict=True)]
    np.testing.assert_array_equal(run.per_round["communicated"], rising)


def test_the_coin_of_l2gd_is_heads_with_its_probability():
    for p in (0.2, 0.7):
        method = P.l2gd(MODEL, lam=1.0, p=p, step_size=0.01)
        run = eh.simulate(method, DATA, rounds=400, eval_every=400)
        rate = np.mean(run.per_round["communicated"])  # tails and then heads
        assert abs(rate - p * (1 - p)) < 4 * math.sqrt(0.16 / 400)
        assert abs(rate - p) > 2 * math.sqrt(0.16 / 400) or p == 0.2
