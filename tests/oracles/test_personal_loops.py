"""Personal models against loops written in NumPy from the papers, sharing no code with the library.

Softmax regression on the toy clients, full batches, three of six clients in each of ten rounds, in float64.  The loops
take from the library which clients are drawn (and, for L2GD, how the server's coin falls).  Each is
``(w, own, clients) -> w`` for one round, where ``own`` holds what each client keeps.
"""

from functools import cache

import numpy as np
import pytest
from personal_oracle import (
    COUNT,
    GLOBAL,
    LR,
    ROUNDS,
    STEPS,
    WORK,
    averaged,
    begin,
    distance,
    drawn,
    inner,
    local,
    mix,
    only,
    plus,
    pull,
    scaled,
    steps,
)
from softmax_oracle import DATA, MODEL, SIZES, average, combine, gradient, loss

import evenhand as eh

LAM = 0.5
P = eh.personalization


# --- one round of each method ------------------------------------------------------------------------------------


def ditto(w, own, clients, lam=LAM, shrink=1.0):
    for k in clients:
        own[k] = steps(own[k], lambda v, k=k: plus(gradient(v, k), pull(v, w, lam)), lr=LR * shrink)
    return averaged(w, clients)


def late(w, own, clients):
    """A client's model begins as the first one that it receives."""
    for k in clients:
        before = own[k][0] if isinstance(own[k], tuple) else w
        own[k] = (steps(before, lambda v, k=k: plus(gradient(v, k), pull(v, w, LAM))),)
    return averaged(w, clients)


def implicit(w, own, clients):
    """v <- (v - lr grad + lr lam w) / (1 + lr lam), a step on the penalty taken at its end."""
    for k in clients:
        for _ in range(STEPS):
            g = gradient(own[k], k)
            own[k] = combine(lambda v, g, a: (v - LR * g + LR * 30.0 * a) / (1 + LR * 30.0), own[k], g, w)
    return averaged(w, clients)


def fedalt(w, own, clients, ridge=0.0, lr=LR, count=STEPS):
    """The bias is personal: steps on it first, then on the matrix with the new bias held."""
    first, models = begin(), []
    for k in clients:
        both = {"w": w["w"], "b": own[k]["b"]}
        both = steps(
            both, lambda v, k=k: only("b", plus(gradient(v, k), pull(v, first, 2 * ridge))), lr, count
        )
        own[k] = both
        models.append(steps(both, lambda v, k=k: only("w", gradient(v, k))))
    return {"w": average(models, SIZES[clients])["w"], "b": w["b"]}


def fedsim(w, own, clients, ridge=0.0):
    first, models = begin(), []
    for k in clients:
        both = {"w": w["w"], "b": own[k]["b"]}
        own[k] = steps(both, lambda v, k=k: plus(gradient(v, k), only("b", pull(v, first, 2 * ridge))))
        models.append(own[k])
    return {"w": average(models, SIZES[clients])["w"], "b": w["b"]}


def stateless(w, own, clients):
    """FedSim whose clients begin with the first bias in every round; nobody keeps any."""
    models = [steps({"w": w["w"], "b": begin()["b"]}, lambda v, k=k: gradient(v, k)) for k in clients]
    return {"w": average(models, SIZES[clients])["w"], "b": w["b"]}


def fedbabu(w, own, clients):
    return average([steps(w, lambda v, k=k: only("w", gradient(v, k))) for k in clients], SIZES[clients])


def local_only(w, own, clients):
    for k in clients:
        own[k] = local(own[k], k)
    return w


def apfl(w, own, clients, begin_at=0.3, rate=0.0):
    models = []
    for k in clients:
        (v, alpha), u = own[k] if isinstance(own[k], tuple) else (own[k], begin_at), w
        for _ in range(STEPS):
            g = gradient(mix(alpha, v, u), k)
            towards = inner(combine(np.subtract, v, u), g)
            v, u, alpha = (
                combine(lambda p, g, alpha=alpha: p - LR * alpha * g, v, g),
                combine(lambda p, g: p - LR * g, u, gradient(u, k)),
                np.clip(alpha - rate * towards, 0, 1),
            )
        own[k] = v, alpha
        models.append(u)
    return average(models, SIZES[clients])


def mapper(w, own, clients):
    models = []
    for k in clients:
        v = own[k][0] if isinstance(own[k], tuple) else own[k]
        tried = []
        for gamma in (0.25, 0.5, 0.75):
            new = steps(
                v,
                lambda v, k=k, c=gamma: scaled(c, gradient(mix(c, v, w), k)),
            )
            tried.append((loss(mix(gamma, new, w), k), gamma, new))
        _, gamma, v = min(tried, key=lambda each: each[0])
        own[k] = v, gamma
        g = gradient(mix(gamma, v, w), k)
        models.append(combine(lambda p, g, c=gamma: p - LR * (1 - c) * g, w, g))
    return average(models, SIZES[clients])


def pfedme(w, own, clients, lam=2.0, inner_step=0.1, inner_steps=4):
    models = []
    for k in clients:
        u = theta = w
        for _ in range(STEPS):
            theta = steps(
                theta,
                lambda v, k=k, u=u: plus(gradient(v, k), pull(v, u, lam)),
                inner_step,
                inner_steps,
            )
            u = combine(lambda p, t: p - LR * lam * (p - t), u, theta)
        own[k] = theta
        models.append(u)
    return average(models, np.ones(len(clients)))


def per_fedavg(w, own, clients, alpha=0.4, first_order=False, delta=0.05):
    def slope(u, k):
        g = gradient(combine(lambda p, g: p - alpha * g, u, gradient(u, k)), k)
        if first_order:
            return g
        ahead, behind = (gradient(combine(lambda p, g, s=s: p + s * g, u, g), k) for s in (delta, -delta))
        return combine(lambda g, a, b: g - alpha * (a - b) / (2 * delta), g, ahead, behind)

    return average([steps(w, lambda u, k=k: slope(u, k)) for k in clients], SIZES[clients])


def l2sgd(w, own, clients, exact=True):
    """The centre is the mean of all clients' models, of which those drawn have changed."""
    changes = []
    for k in clients:
        new = steps(own[k], lambda v, k=k: plus(gradient(v, k), pull(v, w, LAM)))
        changes.append(combine(np.subtract, new, own[k] if exact else w))
        own[k] = new
    return combine(lambda p, d: p + len(clients) / len(SIZES) * d, w, average(changes, np.ones(len(clients))))


def kept(own, w):
    return own


CASES = {
    "ditto": (P.ditto(GLOBAL, WORK, lam=LAM), ditto, kept),
    "ditto, same batches": (P.ditto(GLOBAL, WORK, lam=LAM, same_batches=True), ditto, kept),
    "ditto, late": (
        P.ditto(GLOBAL, WORK, lam=LAM, origin="received"),
        late,
        lambda own, w: own[0] if isinstance(own, tuple) else w,
    ),
    "ditto, implicit": (P.ditto(GLOBAL, WORK, lam=30.0, implicit=True), implicit, kept),
    "fedalt": (P.fedalt(WORK, personal="b"), fedalt, lambda own, w: {"w": w["w"], "b": own["b"]}),
    "fedalt, ridge, own work": (
        P.fedalt(WORK, personal="b", ridge=0.4, personal_work=eh.local.sgd(MODEL, 0.3, epochs=2)),
        lambda w, own, clients: fedalt(w, own, clients, ridge=0.4, lr=0.3, count=2),
        lambda own, w: {"w": w["w"], "b": own["b"]},
    ),
    "fedsim": (P.fedsim(WORK, personal="b"), fedsim, lambda own, w: {"w": w["w"], "b": own["b"]}),
    "fedsim, ridge": (
        P.fedsim(WORK, personal="b", ridge=0.4),
        lambda w, own, clients: fedsim(w, own, clients, ridge=0.4),
        lambda own, w: {"w": w["w"], "b": own["b"]},
    ),
    "fedsim, stateless": (P.fedsim(WORK, personal="b", stateful=False), stateless, lambda own, w: w),
    "fedbabu": (P.fedbabu(WORK, head="b"), fedbabu, lambda own, w: w),
    "local only": (P.local_only(WORK), local_only, kept),
    "apfl": (
        P.apfl(WORK, alpha=0.3),
        apfl,
        lambda own, w: mix(0.3, own[0] if isinstance(own, tuple) else own, w),
    ),
    "apfl, adaptive": (
        P.apfl(WORK, alpha=0.3, alpha_step=0.5),
        lambda w, own, clients: apfl(w, own, clients, rate=0.5),
        lambda own, w: mix(own[1], own[0], w) if isinstance(own, tuple) else mix(0.3, own, w),
    ),
    "mapper": (
        P.mapper(WORK),
        mapper,
        lambda own, w: mix(own[1], own[0], w) if isinstance(own, tuple) else w,
    ),
    "pfedme": (P.pfedme(WORK, lam=2.0, inner_step=0.1, inner_steps=4), pfedme, kept),
    "per_fedavg": (P.per_fedavg(WORK, alpha=0.4, delta=0.05), per_fedavg, lambda own, w: w),
    "per_fedavg, first order": (
        P.per_fedavg(WORK, alpha=0.4, first_order=True),
        lambda w, own, clients: per_fedavg(w, own, clients, first_order=True),
        lambda own, w: w,
    ),
    "l2sgd": (P.l2sgd(WORK, lam=LAM), l2sgd, kept),
    "l2sgd, as the authors": (
        P.l2sgd(WORK, lam=LAM, exact=False),
        lambda w, own, clients: l2sgd(w, own, clients, exact=False),
        kept,
    ),
}
"""Name -> method, one round, and ``(own, w) ->`` the model that a client is served."""

TWINS = [{"ditto", "ditto, same batches"}]
"""Whose loops are the same where batches are full."""


@cache
def final(name):
    """The global model and those that clients are served, after all rounds."""
    _, one_round, serve = CASES[name]
    w, own = begin(), [begin() for _ in SIZES]
    for clients in drawn():
        w = one_round(w, own, clients)
    return w, [serve(each, w) for each in own]


@pytest.mark.parametrize("name", CASES)
def test_a_personal_method_equals_its_numpy_loop(name):
    assert len({*np.concatenate(drawn()[:2]).tolist()}) < len(SIZES)  # some begin later than others
    run = eh.simulate(CASES[name][0], DATA, rounds=ROUNDS, cohort=COUNT, eval_every=ROUNDS)
    assert distance(run, final(name)) < 2e-6
    for other in set(CASES) - {name}:
        if {name, other} not in TWINS:
            assert distance(run, final(other)) > 1e-4, f"{name} is {other}"


# --- what clients do to the model before they use it ---------------------------------------------------------------

W = begin()
LOGITS = {k: np.asarray(DATA.train.client(k)[0], np.float64) @ W["w"] + W["b"] for k in range(len(SIZES))}


def fisher(k):
    return combine(np.square, gradient(W, k))  # of one batch, with all examples


def probabilities(logits):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def skl_slope(v, k, lam):
    """d/dz of 1/2 sum_j (p_j - q_j)(log p_j - log q_j), by central differences of the definition in float64."""
    x = np.asarray(DATA.train.client(k)[0], np.float64)
    q = probabilities(LOGITS[k])

    def penalty(v):
        p = probabilities(x @ v["w"] + v["b"])
        return 0.5 * lam * np.mean(np.sum(p * np.log(p / q) + q * np.log(q / p), axis=1))

    slopes = {}
    for name, leaf in v.items():
        slopes[name] = np.zeros_like(leaf)
        for place in np.ndindex(leaf.shape):
            ahead, behind = ({**v, name: leaf.copy()} for _ in range(2))
            ahead[name][place] += 1e-5
            behind[name][place] -= 1e-5
            slopes[name][place] = (penalty(ahead) - penalty(behind)) / 2e-5
    return slopes


ADAPTING = {
    "finetune": (P.finetune(GLOBAL, WORK), lambda v, k: gradient(v, k)),
    "finetune, proximal": (
        P.finetune(GLOBAL, WORK, lam=LAM),
        lambda v, k: plus(gradient(v, k), pull(v, W, LAM)),
    ),
    "finetune, a part": (P.finetune(GLOBAL, WORK, personal="b"), lambda v, k: only("b", gradient(v, k))),
    "finetune, a part, proximal": (
        P.finetune(GLOBAL, WORK, personal="b", lam=LAM),
        lambda v, k: only("b", plus(gradient(v, k), pull(v, W, LAM))),
    ),
    "ewc": (
        P.ewc(GLOBAL, WORK, lam=20.0, batches=2),
        lambda v, k: plus(gradient(v, k), combine(lambda f, p: 20.0 * f * p, fisher(k), pull(v, W, 1.0))),
    ),
    "skl": (P.skl(GLOBAL, WORK, lam=3.0), lambda v, k: plus(gradient(v, k), skl_slope(v, k, 3.0))),
}


@pytest.mark.parametrize("name", ADAPTING)
def test_finetuning_equals_its_numpy_loop(name):
    method, _ = ADAPTING[name]
    run = eh.simulate(method, DATA, rounds=0, cohort=COUNT)
    for k in (0, 3):
        found = run.personal_params(k)
        for other, (_, slope) in ADAPTING.items():
            expected = steps(W, lambda v, k=k, slope=slope: slope(v, k))
            error = max(np.abs(np.array(found[leaf]) - expected[leaf]).max() for leaf in ("w", "b"))
            assert (error < 2e-6) == (name == other), (other, error)
